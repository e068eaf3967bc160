/* `lacuna replay` as a process: killed at many points and continued, sharded, redone, refused. The
 * program under test is $LACUNA (default build/lacuna). */
#include "core/fileio.h"
#include "core/record.h"
#include "core/rng.h"
#include "core/trace.h"
#include "tests/harness/evalcmd.h"
#include "tests/harness/suite.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { N = 192, D = 16, HEADS = 4, KV = 2, LAYERS = 3 };
#define METHODS "-m", "streaming:sink=2:window=8,16,32", "-m", "oracle:kind=topp"
enum { CELLS = LAYERS * HEADS * 4 };

/* A causal trace of random heads; `bad` puts a NaN into k of layer 1. */
static void make_trace_of(const char *path, bool bad, const char *ids, const char *kv_ids)
{
    struct trace_writer *w = NULL;
    /* clang-format off */
    struct trace_meta    m = {.layers = LAYERS, .heads = HEADS, .kv_heads = KV, .head_dim = D,
                              .v_dim = D, .scale = 0.25, .causal = true, .positions_applied = true,
                              .dtype = DT_F32, .n_q = N, .n_k = N};
    /* clang-format on */
    float x[N * HEADS * D];
    snprintf(m.name, sizeof m.name, "random");
    snprintf(m.source, sizeof m.source, "synthetic");
    snprintf(m.head_ids, sizeof m.head_ids, "%s", ids);
    snprintf(m.kv_head_ids, sizeof m.kv_head_ids, "%s", kv_ids);
    MUST(trace_create(path, &m, LAYERS, true, &w, ERR));
    for (int l = 0; l < LAYERS; l++) {
        struct trace_call c = {
            .layer = l, .branch = "main", .timestep = NAN, .sigma = NAN, .order = l};
        MUST(trace_begin_call(w, &c, ERR));
        for (int what = 0; what < 3; what++) {
            int heads = what == TRACE_Q ? HEADS : KV;
            for (int i = 0; i < N * heads * D; i++)
                x[i] = (float)rng_normal(7, (uint64_t)(l * 3 + what), (uint64_t)i);
            if (bad && l == 1 && what == TRACE_K)
                x[5 * heads * D + D + 3] = NAN; /* token 5, head 1, channel 3 */
            MUST(trace_put(w, what, 0, N, x, heads * D, ERR));
        }
        MUST(trace_end_call(w, ERR));
    }
    MUST(trace_commit(&w, ERR));
}

static void make_trace(const char *path, bool bad)
{
    make_trace_of(path, bad, "", "");
}

#define START(...) evalcmd_exec((const char *[]){"lacuna", "replay", __VA_ARGS__, NULL})
#define RUN(...) evalcmd_finish(START(__VA_ARGS__)) /* the exit code */

static void assert_log_has(const char *text)
{
    OWN(buf_free) struct buf b = {0};
    MUST(buf_read_file(&b, evalcmd_own_path("log"), 1 << 20, ERR));
    ck_assert_msg(strstr(buf_str(&b), text) != NULL, "'%s' is not in: %s", text, buf_str(&b));
}

static char trace[512], dir_a[512], dir_b[512];

static void set_up(void)
{
    snprintf(trace, sizeof trace, "%s/t-%d-%d.h5", test_tmpdir(), (int)getpid(), suite_row());
    snprintf(dir_a, sizeof dir_a, "%s/a-%d-%d", test_tmpdir(), (int)getpid(), suite_row());
    snprintf(dir_b, sizeof dir_b, "%s/b-%d-%d", test_tmpdir(), (int)getpid(), suite_row());
}

static int64_t count_lines(const char *dir)
{
    return evalcmd_count_lines(dir, "records.jsonl");
}

static bool timing(const char *name)
{
    return strncmp(name, "host_", 5) == 0;
}

/* The records of two directories agree in everything but host times. */
static void assert_same_records(const char *a, const char *b, int64_t want)
{
    struct record *x = NULL, *y = NULL;
    int64_t nx, ny;
    struct buf kx = {0}, ky = {0};
    MUST(records_load(a, &x, &nx, ERR));
    MUST(records_load(b, &y, &ny, ERR));
    ck_assert_int_eq(nx, want);
    ck_assert_int_eq(ny, want);
    for (int64_t i = 0; i < nx; i++) {
        int64_t j = 0;
        buf_reset(&kx);
        record_key(&x[i], &kx);
        for (; j < ny; j++) {
            buf_reset(&ky);
            record_key(&y[j], &ky);
            if (strcmp(buf_str(&kx), buf_str(&ky)) == 0)
                break;
        }
        ck_assert_msg(j < ny, "no record %s", buf_str(&kx));
        ck_assert_int_eq(x[i].status, y[j].status);
        ck_assert_int_eq(record_metrics(&x[i]), record_metrics(&y[j]));
        for (int64_t m = 0; m < record_metrics(&x[i]); m++)
            if (!timing(x[i].names->name[m]))
                ck_assert_double_eq(x[i].values[m], record_get(&y[j], x[i].names->name[m]));
    }
    buf_free(&kx);
    buf_free(&ky);
    records_free(x, nx);
    records_free(y, ny);
}

/* A child that has ended but was not waited for still takes signals: ask for its state. */
static bool is_running(pid_t pid)
{
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
}

/* A terminal that goes away, and the other ways to end a run: in order, and to be continued. */
TEST_N(closing_signals_end_a_run_in_order, 3)
{
    static const int closing[] = {SIGHUP, SIGQUIT, SIGTERM};
    char manifest[600];
    OWN(buf_free) struct buf b = {0};
    set_up();
    make_trace(trace, false);
    signal(closing[_i], SIG_DFL); /* nohup, under which tests may run, leaves SIGHUP ignored */
    pid_t pid =
        START(trace, "-m", "streaming:sink=2:window=1..190/lin150", "-o", dir_a, "-q", "-j", "1");
    while (count_lines(dir_a) == 0 && is_running(pid))
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    kill(pid, closing[_i]);
    ck_assert_int_eq(evalcmd_finish(pid), 130);
    snprintf(manifest, sizeof manifest, "%s/manifest.json", dir_a);
    MUST(buf_read_file(&b, manifest, 1 << 20, ERR));
    ck_assert_ptr_nonnull(strstr(buf_str(&b), "\"status\": \"interrupted\""));
}

TEST(killed_runs_continue_without_loss_or_repetition)
{
    set_up();
    make_trace(trace, false);
    ck_assert_int_eq(RUN(trace, METHODS, "-o", dir_a, "-q"), 0);
    ck_assert_int_eq(count_lines(dir_a), CELLS);

    int64_t before = 0;
    int killed = 0;
    for (int k = 0; k < 40; k++) {
        pid_t pid = START(trace, METHODS, "-o", dir_b, "-q", "-j", "1");
        struct timespec t = {0, 1000000L * (1 + k % 25)};
        nanosleep(&t, NULL);
        kill(pid, SIGKILL);
        int code = evalcmd_finish(pid);
        killed += code == 128 + SIGKILL;
        int64_t now = count_lines(dir_b);
        ck_assert_int_ge(now, before);
        before = now;
    }
    ck_assert_int_gt(killed, 0);
    ck_assert_int_eq(RUN(trace, METHODS, "-o", dir_b, "-q"), 0);
    ck_assert_int_eq(count_lines(dir_b), CELLS);
    assert_same_records(dir_a, dir_b, CELLS);
}

TEST(a_second_run_does_nothing_and_force_redoes)
{
    set_up();
    make_trace(trace, false);
    ck_assert_int_eq(RUN(trace, METHODS, "-o", dir_a), 0);
    ck_assert_int_eq(RUN(trace, METHODS, "-o", dir_a), 0);
    assert_log_has("0 ok, 0 skipped, 0 failed, 48 already done");
    ck_assert_int_eq(count_lines(dir_a), CELLS);
    ck_assert_int_eq(RUN(trace, METHODS, "-o", dir_a, "--force"), 0);
    assert_log_has("48 ok");
    ck_assert_int_eq(count_lines(dir_a), CELLS);
}

/* A dry run counts the records of its directory, and leaves the directory as it was. */
TEST(a_dry_run_counts_what_is_done)
{
    set_up();
    make_trace(trace, false);
    ck_assert_int_eq(RUN(trace, METHODS, "-o", dir_a, "--dry-run"), 0);
    assert_log_has("48 cells (0 already done, 48 to do)");
    ck_assert_int_ne(access(dir_a, F_OK), 0);
    ck_assert_int_eq(RUN(trace, METHODS, "-o", dir_a, "--layers", "0,2"), 0);
    ck_assert_int_eq(RUN(trace, METHODS, "-o", dir_a, "--dry-run"), 0);
    assert_log_has("48 cells (32 already done, 16 to do)");
    ck_assert_int_eq(RUN(trace, METHODS, "-o", dir_a), 0);
    ck_assert_int_eq(RUN(trace, METHODS, "-o", dir_a, "--dry-run", "--json"), 0);
    assert_log_has("\"cells_done\": 48");
    ck_assert_int_eq(RUN(trace, METHODS, "-o", dir_a, "--dry-run", "--force"), 0);
    assert_log_has("48 cells (0 already done, 48 to do)");
    ck_assert_int_eq(RUN(trace, METHODS, "-o", dir_a, "--dry-run", "--shard", "0/2"), 0);
    assert_log_has("(0 already done, ");
    ck_assert_int_eq(count_lines(dir_a), CELLS);
}

/* density_elem of the cells of one layer (-1: all), plain mean; in *reached what their records say.
 */
static double mean_density(const char *dir, const char *params, int layer, double *reached)
{
    struct record *x = NULL;
    int64_t n = 0, cells = 0;
    double sum = 0;
    MUST(records_load(dir, &x, &n, ERR));
    for (int64_t i = 0; i < n; i++) {
        if (strcmp(x[i].params, params) != 0 || (layer >= 0 && x[i].layer != layer))
            continue;
        sum += record_get(&x[i], "density_elem");
        *reached = record_get(&x[i], "budget_target") + record_get(&x[i], "budget_miss");
        cells++;
    }
    records_free(x, n);
    ck_assert_int_eq(cells, layer < 0 ? LAYERS * HEADS : HEADS);
    return sum / (double)cells;
}

#define TARGETS                                                                                    \
    "-m", "streaming:sink=0@density_elem=0.25", "-m", "hash-sparse@density_elem=0.2:per=layer",    \
        "-m", "oracle@density_elem=0.1:per=model", "-m", "oracle@err_l1_rel<=0.1"

/* A parameter that heads share is that of the trace, whatever part is replayed when. */
TEST(targets_are_searched_alike_in_parts)
{
    double reached = 0;
    set_up();
    make_trace(trace, false);
    ck_assert_int_eq(RUN(trace, TARGETS, "-o", dir_a), 0);
    assert_log_has("oracle@density_elem=0.1:per=model: all layers");
    for (int l = 0; l < LAYERS; l++)
        ck_assert_double_eq_tol(mean_density(dir_a, "@density_elem=0.2:per=layer", l, &reached),
                                reached, 1e-12);
    ck_assert_double_eq_tol(mean_density(dir_a, "@density_elem=0.1:per=model", -1, &reached),
                            reached, 1e-12);
    ck_assert_double_eq_tol(reached, 0.1, 0.002);
    ck_assert_int_eq(RUN(trace, TARGETS, "-o", dir_b, "--layers", "1", "--heads", "2"), 0);
    ck_assert_int_eq(RUN(trace, TARGETS, "-o", dir_b, "--layers", "1"), 0);
    ck_assert_int_eq(RUN(trace, TARGETS, "-o", dir_b, "--shard", "0/1"), 0);
    assert_same_records(dir_a, dir_b, 4 * LAYERS * HEADS);
}

TEST(shards_together_do_every_cell_once)
{
    set_up();
    make_trace(trace, false);
    ck_assert_int_eq(RUN(trace, METHODS, "-o", dir_a, "-q"), 0);
    for (int i = 0; i < 3; i++) {
        char shard[16];
        snprintf(shard, sizeof shard, "%d/3", i);
        ck_assert_int_eq(RUN(trace, METHODS, "-o", dir_b, "-q", "--shard", shard), 0);
    }
    assert_same_records(dir_a, dir_b, CELLS);
}

TEST(thread_count_does_not_change_results)
{
    set_up();
    make_trace(trace, false);
    ck_assert_int_eq(RUN(trace, METHODS, "-o", dir_a, "-q", "-j", "1"), 0);
    ck_assert_int_eq(RUN(trace, METHODS, "-o", dir_b, "-q", "-j", "4"), 0);
    assert_same_records(dir_a, dir_b, CELLS);
}

TEST(a_changed_trace_is_refused_in_the_same_directory)
{
    set_up();
    make_trace(trace, false);
    ck_assert_int_eq(RUN(trace, "-m", "dense", "-o", dir_a, "-q"), 0);
    make_trace(trace, true);
    ck_assert_int_eq(RUN(trace, "-m", "dense", "-o", dir_a, "-q"), 3);
    assert_log_has("changed");
}

TEST(non_finite_keys_are_named_and_refused)
{
    set_up();
    make_trace(trace, true);
    ck_assert_int_eq(RUN(trace, "-m", "dense", "-o", dir_a, "-q"), 3);
    assert_log_has("layer 1: k of head 1 has 1 non-finite values, the first at token 5, channel 3");
    ck_assert_int_eq(RUN(trace, "-m", "dense", "-o", dir_b, "-q", "--allow-nonfinite"), 0);
    struct record *r = NULL;
    int64_t n = 0, undefined = 0;
    MUST(records_load(dir_b, &r, &n, ERR));
    for (int64_t i = 0; i < n; i++) {
        bool bad = r[i].layer == 1 && r[i].kv_head == 1;
        undefined += bad;
        ck_assert_int_eq(r[i].status, bad ? RECORD_SKIP : RECORD_OK);
        ck_assert_int_eq(strstr(r[i].reason, "k holds NaN") != NULL, bad);
        ck_assert_int_eq(record_get(r + i, "cra_p1") == 1, !bad);
    }
    ck_assert_int_gt(undefined, 1); /* all query heads of the key head */
    ck_assert_int_gt(n, undefined);
    records_free(r, n);
}

TEST_N(bad_calls_are_refused, 9)
{
    static const struct {
        const char *method, *option, *value;
        int code;
        const char *message;
    } bad[] = {
        {"streeming", "--layers", "all", 2, "streaming"},
        {"streaming:windw=4", "--layers", "all", 2, "window"},
        {"streaming:window=-1", "--layers", "all", 2, "window"},
        {"dense", "--layers", "7", 2, "--layers"},
        {"dense", "--heads", "x", 2, "--heads"},
        {"dense", "--permute", "hilbert", 2, "bidirectional"},
        {"dense", "--permute", "hilbrt", 2, "hilbert"},
        {"dense", "--backend", "cuda", 4, "CUDA"},
        {"dense", "--shard", "3/3", 2, "shard"},
    };
    set_up();
    make_trace(trace, false);
    int code = RUN(trace, "-m", bad[_i].method, bad[_i].option, bad[_i].value, "-o", dir_a);
    assert_log_has(bad[_i].message);
    ck_assert_int_eq(code, bad[_i].code);
}

/* A trace of heads 1, 4, 5 and 9 of a model, with its kv heads 0 and 2. */
TEST(heads_carry_the_numbers_of_the_model)
{
    struct record *r = NULL;
    int64_t n;
    set_up();
    make_trace_of(trace, false, "1,4-5,9", "0,2");
    ck_assert_int_eq(RUN(trace, "-m", "dense", "--heads", "5", "-o", dir_a, "-q"), 0);
    MUST(records_load(dir_a, &r, &n, ERR));
    ck_assert_int_eq(n, LAYERS);
    ck_assert_int_eq(r[0].head, 5);
    ck_assert_int_eq(r[0].kv_head, 2); /* the third stored head reads the second stored kv head */
    records_free(r, n);
    ck_assert_int_eq(RUN(trace, "-m", "dense", "--heads", "0", "-o", dir_b, "-q"), 2);
    assert_log_has("--heads 0");
}

TEST(missing_pieces_are_named)
{
    set_up();
    make_trace(trace, false);
    ck_assert_int_eq(RUN(trace, "-o", dir_a), 2);
    assert_log_has("no method");
    ck_assert_int_eq(RUN("-m", "dense", "-o", dir_a), 2);
    assert_log_has("no trace");
    ck_assert_int_eq(RUN(trace, "-m", "dense"), 2);
    assert_log_has("-o DIR");
    ck_assert_int_eq(RUN("/no/such.h5", "-m", "dense", "-o", dir_a), 3);
    assert_log_has("/no/such.h5");
    ck_assert_int_eq(RUN(trace, "-m", "dense", "--dry-run"), 0);
    assert_log_has("12 cells (0 already done, 12 to do)");
}
