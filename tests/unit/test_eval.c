/* `lacuna eval` on code-lm as a process: exact attention against a capture, full budgets, excluded
 * layers, errors by layer, masks against a replay's, killed runs. The program is $LACUNA (default
 * build/lacuna). */
#include "core/fileio.h"
#include "core/maskfile.h"
#include "core/npy.h"
#include "core/record.h"
#include "core/trace.h"
#include "sim/registry.h"
#include "tests/harness/evalcmd.h"
#include "tests/harness/suite.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MODEL "datasets/models/code-lm"
#define TEXT "tests/data/code-lm-a.txt" /* 770 tokens */

enum { LAYERS = 6, N = 256 };

static struct err err;

/* The likelihoods of exact attention are those of a capture, to the last bit. */
TEST(exact_attention_equals_capture)
{
    int64_t rows, n;
    OWN(trace_close) struct trace *t = NULL;
    const char *trace = evalcmd_own_path("t.h5"), *nll = evalcmd_own_path("nll.npy"),
               *dir = evalcmd_own_path("d");
    OWN(free_at) float *want = NULL;
    int64_t n_want;
    evalcmd_run_ok("capture --model %s -p %s -n %d --layers 0 --maps 0 -q -o %s", MODEL, TEXT, N,
                   trace);
    evalcmd_run_ok("eval --model %s -m dense --task %s -n %d --windows 1 --dump-nll %s -q -o %s",
                   MODEL, TEXT, N, nll, dir);
    OWN(free_at) float *x = evalcmd_read_nll(nll, &rows, &n);
    ck_assert_int_eq(rows, 1);
    ck_assert_int_eq(n, N - 1);
    assert_ok(trace_open(trace, &t, &err), &err);
    assert_ok(trace_read_run(t, TRACE_NLL, &want, &n_want, &err), &err);
    ck_assert_int_eq(n_want, n);
    for (int i = 0; i < N - 1; i++)
        ck_assert_float_eq(x[i], want[i]);
}

/* Every method whose mask becomes full, with exact softmax over it, is exact attention. */
TEST(full_budgets_are_exact_attention)
{
    struct buf line = {0};
    const char *nll = evalcmd_own_path("nll.npy"), *dir = evalcmd_own_path("d");
    int64_t rows, n, methods = 0;
    buf_printf(&line, "eval --model %s --task %s -n %d --windows 1 --dump-nll %s -q -o %s", MODEL,
               TEXT, N, nll, dir);
    for (int i = 0; sim_methods[i]; i++) {
        const struct method *m = sim_methods[i];
        if (!(m->flags & METHOD_CAUSAL) || !m->tests.full || strcmp(m->name, "dense") == 0 ||
            m->session.takes) /* what a trace has beside q, k and v is not there */
            continue;
        buf_printf(&line, " -m %s:%s", m->name, m->tests.full);
    }
    evalcmd_run_ok("%s", buf_str(&line));
    buf_free(&line);
    OWN(free_at) float *x = evalcmd_read_nll(nll, &rows, &n);
    struct evalcmd_records r = evalcmd_load(dir);
    ck_assert_int_eq(r.n, rows);
    for (int64_t i = 1; i < rows; i++) {
        const struct record *rec = r.r + i;
        if (rec->status == RECORD_SKIP)
            continue;
        methods++;
        ck_assert_double_eq_tol(record_get(rec, "nll_delta"), 0, 1e-6);
        ck_assert_double_lt(record_get(rec, "kl_max"), 1e-6);
        ck_assert_double_eq(record_get(rec, "top1_agree"), 1);
        ck_assert_double_eq(record_get(rec, "density_elem"), 1);
        for (int64_t k = 0; k < n; k++)
            ck_assert_msg(fabsf(x[i * n + k] - x[k]) < 1e-5F * (1 + x[k]), "%s: token %lld",
                          rec->method, (long long)k);
    }
    ck_assert_int_ge(methods, 7);
    records_free(r.r, r.n);
}

/* With all layers excluded a method is exact attention, bit for bit, and keeps density 1. */
TEST(excluded_layers_attend_exactly)
{
    const char *dir = evalcmd_own_path("d");
    evalcmd_run_ok(
        "eval --model %s -m streaming:window=16 --dense-layers 0-5 --task %s -n %d --windows "
        "1 -q -o %s",
        MODEL, TEXT, N, dir);
    struct evalcmd_records r = evalcmd_load(dir);
    const struct record *rec = evalcmd_find(&r, "streaming", "window=16");
    ck_assert_double_eq(record_get(rec, "kl_max"), 0);
    ck_assert_double_eq(record_get(rec, "nll_delta"), 0);
    ck_assert_double_eq(record_get(rec, "density_elem"), 1);
    ck_assert_double_eq(record_get(rec, "heads_dense"), 48);
    ck_assert(isnan(record_get(rec, "density_sparse")));
    ck_assert_double_eq(record_get(rec, "err_resid@layer=5"), 0);
    ck_assert_str_eq(rec->setting, "dense_layers=0,1,2,3,4,5");
    ck_assert_str_eq(evalcmd_find(&r, "dense", "")->setting, "");
    records_free(r.r, r.n);
}

/* In the first sparse layer q, k, v are still the exact run's: both errors are the same number.
 * One head of layer 1 is excluded besides. */
TEST(errors_begin_where_the_method_does)
{
    const char *dir = evalcmd_own_path("d");
    evalcmd_run_ok(
        "eval --model %s -m streaming:sink=2:window=32 --dense-layers 0 --dense-heads 1:3 "
        "--local-errors --task %s -n %d --windows 1 -q -o %s",
        MODEL, TEXT, N, dir);
    struct evalcmd_records r = evalcmd_load(dir);
    const struct record *rec = evalcmd_find(&r, "streaming", "sink=2:window=32");
    /* Band of 32 and 2 sinks: rows of 34 keys, fewer at the beginning. */
    double kept = 34.0 * N - 34.0 * 33 / 2, d = kept / (N * (N + 1) / 2.0);
    ck_assert_double_eq(record_get(rec, "err_attn@layer=0"), 0);
    ck_assert_double_eq(record_get(rec, "err_resid@layer=0"), 0);
    ck_assert_double_gt(record_get(rec, "err_attn@layer=1"), 0.01);
    ck_assert_double_eq_tol(record_get(rec, "err_local@layer=1"),
                            record_get(rec, "err_attn@layer=1"), 1e-5);
    ck_assert_double_gt(
        fabs(record_get(rec, "err_local@layer=5") - record_get(rec, "err_attn@layer=5")), 1e-3);
    ck_assert_double_eq_tol(record_get(rec, "density_sparse"), d, 1e-12);
    ck_assert_double_eq_tol(record_get(rec, "density_elem"), (9 + 39 * d) / 48, 1e-12);
    ck_assert_double_eq_tol(record_get(rec, "density_elem@layer=1"), (1 + 7 * d) / 8, 1e-12);
    ck_assert_double_eq(record_get(rec, "heads_dense"), 9);
    ck_assert_str_eq(rec->setting, "dense_layers=0:dense_heads=1/3");
    records_free(r.r, r.n);
}

/* Rows of exact attention at the end count with all their pairs. */
TEST(last_rows_attend_exactly)
{
    const char *dir = evalcmd_own_path("d");
    evalcmd_run_ok("eval --model %s -m streaming:sink=0:window=8 --dense-last 100 --task %s -n %d "
                   "--windows 1 -q -o %s",
                   MODEL, TEXT, N, dir);
    struct evalcmd_records r = evalcmd_load(dir);
    const struct record *rec = evalcmd_find(&r, "streaming", "sink=0:window=8");
    double all = N * (N + 1) / 2.0, front = (N - 100) * (N - 99) / 2.0;
    double kept = 8.0 * (N - 100) - 8.0 * 7 / 2 + (all - front);
    ck_assert_double_eq_tol(record_get(rec, "density_elem"), kept / all, 1e-12);
    ck_assert(isnan(record_get(rec, "density_exec")));
    records_free(r.r, r.n);
}

static void mask_of(const char *path, const char *method, int head, struct mask *m)
{
    OWN(maskfile_close) struct maskfile *f = NULL;
    assert_ok(maskfile_open(path, &f, &err), &err);
    for (int64_t i = 0; i < maskfile_cells(f); i++) {
        OWN(record_free) struct record id;
        assert_ok(maskfile_cell(f, i, &id, &err), &err);
        if (id.layer == 0 && id.head == head && strcmp(id.method, method) == 0) {
            assert_ok(maskfile_read(f, i, m, &err), &err);
            return;
        }
    }
    ck_abort_msg("%s: no mask of %s for head %d", path, method, head);
}

/* With q, k, v rounded as a trace holds them, the first layer's masks are those of a replay. */
TEST(masks_of_the_first_layer_are_a_replays)
{
    static const char *const names[] = {"oracle", "spargeattn", "sale"};
    static const char methods[] = "-m oracle -m spargeattn:theta=-1:tau=0.7 -m sale";
    const char *trace = evalcmd_own_path("t.h5"), *dir = evalcmd_own_path("d"),
               *dir2 = evalcmd_own_path("e");
    const char *a = evalcmd_own_path("a.h5"), *b = evalcmd_own_path("b.h5");
    evalcmd_run_ok("capture --model %s -p %s -n %d --layers 0 --maps 0 -q -o %s", MODEL, TEXT, N,
                   trace);
    evalcmd_run_ok("replay %s %s --precision f32 --dump-masks %s -q -o %s", trace, methods, a, dir);
    evalcmd_run_ok(
        "eval --model %s %s --qkv model --task %s -n %d --windows 1 --dump-masks %s -q -o %s",
        MODEL, methods, TEXT, N, b, dir2);
    for (int h = 0; h < 3 * 8; h++) {
        OWN(mask_free) struct mask x = {0}, y = {0};
        mask_of(a, names[h / 8], h % 8, &x);
        mask_of(b, names[h / 8], h % 8, &y);
        OWN(free_at) struct span *p = calloc((size_t)mask_max_spans(&x) + 1, sizeof *p);
        OWN(free_at) struct span *q = calloc((size_t)mask_max_spans(&y) + 1, sizeof *q);
        for (int64_t i = 0; i < N; i++) {
            int64_t n = mask_row_spans(&x, i, p);
            ck_assert_int_eq(n, mask_row_spans(&y, i, q));
            ck_assert_int_eq(memcmp(p, q, (size_t)n * sizeof *p), 0);
        }
    }
}

/* What comes later in a text changes nothing: windows of 128 tokens of a text, scored alone. */
TEST(windows_are_texts_of_their_own)
{
    int64_t rows, n, rows1, n1;
    const char *dir = evalcmd_own_path("d"), *a = evalcmd_own_path("a.npy"),
               *b = evalcmd_own_path("b.npy");
    evalcmd_run_ok(
        "eval --model %s -m streaming:window=24 --task %s -n 128 --windows 3 --dump-nll %s -q "
        "-o %s",
        MODEL, TEXT, a, dir);
    evalcmd_run_ok(
        "eval --model %s -m streaming:window=24 --task %s -n 100 --windows 1 --dump-nll %s -q "
        "-o %s",
        MODEL, TEXT, b, dir);
    OWN(free_at) float *x = evalcmd_read_nll(a, &rows, &n), *y = evalcmd_read_nll(b, &rows1, &n1);
    ck_assert_int_eq(n, 3 * 127);
    ck_assert_int_eq(n1, 99);
    for (int64_t s = 0; s < 2; s++)
        for (int64_t i = 0; i < n1; i++)
            ck_assert_float_eq_tol(x[s * n + i], y[s * n1 + i], 1e-5);
    struct evalcmd_records r = evalcmd_load(dir);
    ck_assert_int_eq(r.n, 4);
    records_free(r.r, r.n);
}

/* Cells of a killed run are done once, and a setting that comes later adds its own. */
TEST(killed_runs_continue)
{
    OWN(buf_free) struct buf line = {0};
    const char *dir = evalcmd_own_path("d"), *whole = evalcmd_own_path("w");
    int killed = 0;
    buf_printf(&line, "eval --model %s -m streaming:window=16,32 -q -j 1 -n 64 --windows 1", MODEL);
    for (int i = 0; i < 5; i++) {
        char name[32];
        snprintf(name, sizeof name, "text%d", i);
        const char *path = evalcmd_own_path(name);
        struct buf text = {0};
        for (int k = 0; k < 200; k++)
            buf_printf(&text, "a%d = %d;\n", i, k);
        assert_ok(file_write_atomic(path, text.data, text.len, &err), &err);
        buf_free(&text);
        buf_printf(&line, " --task %s", path);
    }
    size_t len = line.len;
    buf_printf(&line, " -o %s", whole);
    evalcmd_run_ok("%s", buf_str(&line));
    line.len = len;
    buf_printf(&line, " -o %s", dir);
    for (int k = 0; k < 6; k++) {
        pid_t pid = evalcmd_start(buf_str(&line));
        nanosleep(&(struct timespec){0, 1000000L * (40 + 60 * k)}, NULL);
        kill(pid, SIGKILL);
        killed += evalcmd_finish(pid) == 128 + SIGKILL;
    }
    ck_assert_int_gt(killed, 0);
    evalcmd_run_ok("%s", buf_str(&line));
    ck_assert_int_eq(evalcmd_count_lines(dir, "records.jsonl"), 15);
    struct evalcmd_records a = evalcmd_load(dir), b = evalcmd_load(whole);
    ck_assert_int_eq(b.n, 15);
    for (int64_t i = 0; i < b.n; i++) {
        const struct record *x = NULL;
        for (int64_t k = 0; k < a.n; k++)
            if (strcmp(a.r[k].task, b.r[i].task) == 0 &&
                strcmp(a.r[k].params, b.r[i].params) == 0 &&
                strcmp(a.r[k].method, b.r[i].method) == 0)
                x = a.r + k;
        ck_assert_ptr_nonnull(x);
        for (int64_t m = 0; m < record_metrics(x); m++)
            ck_assert_double_eq(x->values[m], record_get(b.r + i, x->names->name[m]));
    }
    buf_puts(&line, " -m oracle:kind=topk:k=8");
    evalcmd_run_ok("%s", buf_str(&line));
    ck_assert_int_eq(evalcmd_count_lines(dir, "records.jsonl"), 20);
    records_free(a.r, a.n);
    records_free(b.r, b.n);
}
