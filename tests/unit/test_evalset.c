/* How methods stand in the model, as a process: calls of a part of the rows, targets, shards. */
#include "core/json.h"
#include "tests/harness/evalcmd.h"
#include "tests/harness/suite.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

#define MODEL "datasets/models/code-lm"
#define TEXT "tests/data/code-lm-a.txt" /* 770 tokens */

enum { N = 384, ALONE = 400 }; /* ALONE: TEXT has one window of so many tokens, not two */

/* A band does not depend on the rows of a call, nor does its density on how it is added up; the
 * last rows attend exactly wherever they lie. */
TEST_N(calls_of_a_part_of_the_rows_add_up, 2)
{
    static const char *const last[] = {"", "--dense-last 100"};
    const char *dir = evalcmd_own_path("d"), *part = evalcmd_own_path("p");
    const char *a = evalcmd_own_path("a.npy"), *b = evalcmd_own_path("b.npy");
    int64_t rows, n, rows1, n1;
    evalcmd_run_ok("eval --model %s -m streaming:sink=2:window=24 --task %s -n 256 --windows 1 %s "
                   "--local-errors --dump-nll %s -q -o %s",
                   MODEL, TEXT, last[_i], a, dir);
    evalcmd_run_ok(
        "eval --model %s -m streaming:sink=2:window=24 --prefill-chunk 100 --task %s -n 256 "
        "--windows 1 %s --local-errors --dump-nll %s -q -o %s",
        MODEL, TEXT, last[_i], b, part);
    OWN(free_at) float *x = evalcmd_read_nll(a, &rows, &n), *y = evalcmd_read_nll(b, &rows1, &n1);
    ck_assert_int_eq(n, n1);
    for (int64_t i = 0; i < rows * n; i++)
        ck_assert_float_eq_tol(x[i], y[i], 2e-5);
    struct evalcmd_records whole = evalcmd_load(dir), parts = evalcmd_load(part);
    const struct record *r = evalcmd_find(&whole, "streaming", "sink=2:window=24");
    const struct record *q = evalcmd_find(&parts, "streaming", "sink=2:window=24");
    ck_assert_double_eq_tol(record_get(r, "density_elem"), record_get(q, "density_elem"), 1e-12);
    ck_assert_double_eq_tol(record_get(r, "err_local@layer=3"), record_get(q, "err_local@layer=3"),
                            1e-4);
    ck_assert_ptr_nonnull(strstr(q->setting, "prefill_chunk=100"));
    ck_assert_double_lt(record_get(q, "density_elem"), 0.9);
    records_free(whole.r, whole.n);
    records_free(parts.r, parts.n);
}

/* A target is met in every head, and the record says how it went. */
TEST(targets_are_met_head_by_head)
{
    const char *dir = evalcmd_own_path("d");
    evalcmd_run_ok(
        "eval --model %s -m streaming:sink=4@density_elem=0.3 -m "
        "spargeattn:theta=-1@density_elem=0.02 --dense-layers 0 --task %s -n %d --windows 1 "
        "-q -o %s",
        MODEL, TEXT, N, dir);
    struct evalcmd_records x = evalcmd_load(dir);
    const struct record *r = evalcmd_find(&x, "streaming", "sink=4@density_elem=0.3");
    ck_assert_double_eq_tol(record_get(r, "density_sparse"), 0.3, 0.3 * 0.02);
    ck_assert_double_eq_tol(record_get(r, "density_sparse") - 0.3, record_get(r, "budget_miss"),
                            1e-12);
    ck_assert_double_eq(record_get(r, "budget_target"), 0.3);
    ck_assert_double_gt(record_get(r, "budget_evals"), 1);
    ck_assert_ptr_nonnull(strstr(r->notes.data, "budget=40 heads met, 0 between"));
    /* Blocks of 64 keys on 384: a row of blocks keeps one at least. */
    r = evalcmd_find(&x, "spargeattn", "theta=-1@density_elem=0.02");
    ck_assert_double_gt(record_get(r, "budget_miss"), 0.05);
    ck_assert_ptr_nonnull(strstr(r->notes.data, "budget=0 heads met"));
    records_free(x.r, x.n);
}

/* Three shards do every cell once, and together what one process does. */
TEST(shards_share_the_cells)
{
    char file[64];
    const char *dir = evalcmd_own_path("d"), *whole = evalcmd_own_path("w");
    const char *ask = "-m streaming:sink=4:window=16 --task needle -n 64,80 --depth 0,1 --trials 2 "
                      "--seed 7 -q -j 1";
    int64_t sum = 0;
    evalcmd_run_ok("eval --model %s %s -o %s", MODEL, ask, whole);
    for (int i = 0; i < 3; i++) {
        evalcmd_run_ok("eval --model %s %s --shard %d/3 -o %s", MODEL, ask, i, dir);
        snprintf(file, sizeof file, "records.%d-of-3.jsonl", i);
        int64_t n = evalcmd_count_lines(dir, file);
        ck_assert_int_ge(n, 4); /* 8 cells of 2 records: nobody does them all */
        ck_assert_int_eq(n % 2, 0);
        snprintf(file, sizeof file, "predictions.%d-of-3.jsonl", i);
        ck_assert_int_eq(evalcmd_count_lines(dir, file), n);
        sum += n;
    }
    ck_assert_int_eq(sum, 16);
    struct evalcmd_records a = evalcmd_load(dir), b = evalcmd_load(whole);
    ck_assert_int_eq(a.n, 16);
    ck_assert_int_eq(b.n, 16);
    for (int64_t i = 0; i < b.n; i++) {
        int found = 0;
        for (int64_t k = 0; k < a.n; k++)
            if (strcmp(a.r[k].task, b.r[i].task) == 0 &&
                strcmp(a.r[k].method, b.r[i].method) == 0) {
                found++;
                for (int64_t m = 0; m < record_metrics(&b.r[i]); m++)
                    ck_assert_double_eq(b.r[i].values[m],
                                        record_get(a.r + k, b.r[i].names->name[m]));
            }
        ck_assert_int_eq(found, 1);
    }
    records_free(a.r, a.n);
    records_free(b.r, b.n);
}

static json_t *calibration(const char *path)
{
    json_t *o = NULL;
    MUST(json_read_file(path, 1 << 24, &o, ERR));
    return o;
}

/* Parameters of a head, without its place. */
static json_t *head_of(const json_t *file, int layer, int head)
{
    size_t i;
    json_t *e;
    json_array_foreach(json_object_get(file, "heads"), i, e)
    {
        if (json_integer_value(json_object_get(e, "layer")) == layer &&
            json_integer_value(json_object_get(e, "head")) == head)
            return e;
    }
    ck_abort_msg("layer %d head %d is not there", layer, head);
    return NULL;
}

/* The first layer's q, k, v are exact attention's: `lacuna calibrate` on a capture of the same text
 * finds the same there. Behind a layer that has lost something it finds something else. */
TEST(calibration_inside_begins_as_one_on_a_trace)
{
    static const char method[] = "spargeattn:l1=0.3:l2=0.35";
    char path[700] = "";
    const char *trace = evalcmd_own_path("t.h5"), *calib = evalcmd_own_path("c.json");
    const char *dir = evalcmd_own_path("d");
    int differs = 0;
    evalcmd_run_ok("capture --model %s -p %s -n %d --maps 0 -q -o %s", MODEL, TEXT, ALONE, trace);
    evalcmd_run_ok("calibrate %s %s -q -o %s", method, trace, calib);
    evalcmd_run_ok(
        "eval --model %s -m %s --qkv model --calibrate-inside %s --calibrate-tokens %d --task "
        "core/mask.c -n 128 --windows 1 -q -o %s",
        MODEL, method, TEXT, ALONE, dir);
    DIR *d = opendir(dir);
    ck_assert_ptr_nonnull(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        if (strncmp(e->d_name, "calib-spargeattn-", 17) == 0)
            snprintf(path, sizeof path, "%s/%.100s", dir, e->d_name);
    closedir(d);
    json_t *a = calibration(calib), *b = calibration(path);
    for (int l = 0; l < 6; l++)
        for (int h = 0; h < 8; h++) {
            bool same = json_equal(head_of(a, l, h), head_of(b, l, h));
            ck_assert_msg(same || l > 0, "layer 0 head %d", h);
            differs += !same;
        }
    ck_assert_int_gt(differs, 0);
    json_decref(a);
    json_decref(b);
    struct evalcmd_records x = evalcmd_load(dir);
    ck_assert_int_eq(x.n, 2);
    ck_assert_ptr_nonnull(strstr(x.r[1].params, "calib="));
    records_free(x.r, x.n);
}
