/*
 * test_exec.c - the method exec: a program that is right conforms, one that is wrong gets an error
 * that says how.
 */
#include "core/log.h"
#include "core/pool.h"
#include "tests/harness/conform.h"

#define PEER "exec:cmd=" EXEC_PEER " "

/* As commands do: a pipe that broke is an error, not a signal. */
FIXTURE(interrupt_install, NULL)

static const int64_t lengths[][2] = {{1, 1}, {2, 2}, {63, 63}, {65, 65}, {129, 129}, {70, 300}};

TEST(it_conforms)
{
    static const char *const texts[] = {PEER "window 9", PEER "blocks 16", PEER "everything"};
    for (int k = 0; k < 3; k++)
        for (int n = 0; n < 6; n++)
            for (int causal = 0; causal < 2; causal++) {
                OWN(sim_head_free) struct sim_head h;
                conform_head(n % DATA_KINDS, lengths[n][0], lengths[n][1], causal, PREC_F64, &h);
                conform_check(texts[k], &h, conform_data_names[n % DATA_KINDS]);
            }
}

/* The same mask from the program and from the method of lacuna. */
TEST(a_window_is_a_window)
{
    OWN(sim_head_free) struct sim_head h;
    struct conform_result own, theirs;
    conform_head(NORMAL, 300, 300, true, PREC_F64, &h);
    conform_run("streaming:sink=0:window=9", &h.in, NULL, 1, &own);
    conform_run(PEER "window 9", &h.in, NULL, 1, &theirs);
    ck_assert_int_eq(memcmp(own.bits, theirs.bits, 300 * 300), 0);
    static const char *const names[] = {"density_elem", "cra_min", "cra_mean", "err_l1_rel",
                                        "density_tile@64x64"};
    for (int k = 0; k < 5; k++)
        ck_assert_double_eq(record_get(&own.r, names[k]), record_get(&theirs.r, names[k]));
    ck_assert_double_eq(record_get(&theirs.r, "pairs_dropped"), 0);
    ck_assert_double_gt(record_get(&theirs.r, "host_exec_ns"), 0);
    conform_result_free(&own);
    conform_result_free(&theirs);
    conform_run(PEER "everything", &h.in, NULL, 1, &theirs);
    ck_assert_double_eq(record_get(&theirs.r, "density_elem"), 1);
    ck_assert_double_eq(record_get(&theirs.r, "pairs_dropped"), 300 * 299 / 2);
    conform_result_free(&theirs);
}

TEST(the_program_sees_the_arrays)
{
    OWN(sim_head_free) struct sim_head h;
    char want[200];
    double sum[3] = {0};
    conform_head(NORMAL, 70, 300, true, PREC_F64, &h);
    for (int64_t i = 0; i < 70 * 64; i++)
        sum[0] += h.in.x.q[i];
    for (int64_t i = 0; i < 300 * 64; i++) {
        sum[1] += h.in.x.k[i];
        sum[2] += h.in.x.v[i];
    }
    snprintf(want, sizeof want, "%.4f %.4f %.4f", sum[0], sum[1], sum[2]);
    assert_skips(PEER "sums", &h.in, want);
}

/* It cannot write to the arrays, whichever way it opens them. */
TEST(the_program_only_reads)
{
    OWN(sim_head_free) struct sim_head h;
    conform_head(NORMAL, 70, 300, true, PREC_F64, &h);
    assert_skips(PEER "writes", &h.in, "0 0 0 0");
}

/* ---- what is wrong -------------------------------------------------------------------------- */

static int run_once(const char *text, void *session, struct err *err)
{
    struct method_run *runs = NULL;
    struct method_ctx ctx = {.session = session};
    OWN(record_free) struct record r;
    OWN(sim_head_free) struct sim_head h;
    int64_t n = 0;

    conform_head(NORMAL, 70, 70, true, PREC_F64, &h);
    record_init(&r);
    assert_ok(method_runs_parse(test_methods, text, &runs, &n, err), err);
    struct sim_cell cell = {
        .method = runs[0].method, .params = runs[0].params, .ctx = &ctx, .in = &h.in};
    int rc = sim_run(&cell, &r, err);
    method_runs_free(runs, n);
    return rc;
}

static const struct {
    const char *mode, *why;
} wrong[] = {
    {"gone", "the program ended with status 7 before"},
    {"hang:timeout=0.3", "still at work at the time limit"},
    {"flood:timeout=0.3", "time limit; timeout=SECONDS gives it more; it wrote: and on"},
    {"garbage", "first line of the answer"},
    {"array", "not a JSON object: [1, 2]"},
    {"form", "form 'dense', expected lists or bits"},
    {"noform", "\"form\""},
    {"unit", "units of 0 x 16, expected 1..1048576"},
    {"nonnz", "\"nnz\""},
    {"othercell", "the answer is of cell 999, asked was 0"},
    {"error", "the program says: no GPU"},
    {"longline", "a line of at most 65535 bytes"},
    {"padding", "row 2 of the bitmap has bits behind its last unit, 69"},
    {"lists-range", "row group 4 has column 5, expected 0..4"},
    {"lists-unsorted", "row group 4 has column 1 after column 2"},
    {"lists-pointers", "row group 1 go from 1 to 9 of 6 entries"},
    {"lists-many", "lists 26 units, expected 0..25"},
    {"lists-negative", "lists -1 units"},
    {"lists-truncated", "ended with status 0 before its answer was complete"},
};
enum { N_WRONG = sizeof wrong / sizeof *wrong };

TEST_N(wrong_answers, N_WRONG)
{
    struct err err = {0};
    char text[600];
    snprintf(text, sizeof text, PEER "%s", wrong[_i].mode);
    log_set_level(LOG_ERROR);
    int rc = run_once(text, NULL, &err);
    ck_assert_msg(rc == ERR_RUN || rc == ERR_INPUT, "%s: %d %s", text, rc, err.msg);
    ck_assert_msg(strstr(err.msg, wrong[_i].why), "%s: '%s', wanted '%s'", text, err.msg,
                  wrong[_i].why);
}

/* A session outlives a failure: the next cell gets a new program. After three the run ends. */
TEST(a_session_starts_the_program_again)
{
    struct method_run *runs = NULL;
    char text[600];
    int64_t n = 0;

    snprintf(text, sizeof text, PEER "flaky %s", test_path("flaky"));
    MUST(method_runs_parse(test_methods, text, &runs, &n, ERR));
    MUST(method_run_open(runs, ERR));
    FAILS(run_once(text, runs[0].session, ERR), ERR_RUN,
          "ended with status 3 before its answer was complete; it wrote: out of luck");
    for (int k = 0; k < 5; k++)
        MUST(run_once(text, runs[0].session, ERR));
    method_runs_free(runs, n);
}

/* A program that cuts the file of the arrays, or makes it long, harms no cell, also not one that
 * needs more of it. */
TEST(the_file_keeps_its_size)
{
    static const char *const sizes[] = {"0", "1000000000"};
    for (int k = 0; k < 2; k++) {
        struct method_run *runs = NULL;
        char text[600];
        int64_t n = 0;
        snprintf(text, sizeof text, PEER "resize %s", sizes[k]);
        MUST(method_runs_parse(test_methods, text, &runs, &n, ERR));
        MUST(method_run_open(runs, ERR));
        for (int i = 0; i < 3; i++) {
            OWN(sim_head_free) struct sim_head h;
            struct method_ctx ctx = {.session = runs[0].session};
            OWN(record_free) struct record r;
            conform_head(NORMAL, 70 << i, 70 << i, true, PREC_F64, &h);
            struct sim_cell cell = {
                .method = runs[0].method, .params = runs[0].params, .ctx = &ctx, .in = &h.in};
            record_init(&r);
            MUST(sim_run(&cell, &r, ERR));
            ck_assert_double_gt(record_get(&r, "density_elem"), 0);
        }
        method_runs_free(runs, n);
    }
}

TEST(failures_in_a_row_end_the_run)
{
    struct method_run *runs = NULL;
    int64_t n = 0;
    MUST(method_runs_parse(test_methods, PEER "garbage", &runs, &n, ERR));
    MUST(method_run_open(runs, ERR));
    for (int k = 0; k < 2; k++)
        FAILS(run_once(PEER "garbage", runs[0].session, ERR), ERR_INPUT, "answer");
    FAILS(run_once(PEER "garbage", runs[0].session, ERR), ERR_IO,
          "the program failed 3 times in a row");
    method_runs_free(runs, n);

    /* What the program says itself is no failure of the pipe: it lives on. */
    runs = NULL;
    n = 0;
    MUST(method_runs_parse(test_methods, PEER "error", &runs, &n, ERR));
    MUST(method_run_open(runs, ERR));
    for (int k = 0; k < 5; k++)
        FAILS(run_once(PEER "error", runs[0].session, ERR), ERR_RUN, "no GPU");
    method_runs_free(runs, n);
}

/* Bytes behind an answer are found when the next cell is asked. */
TEST(answers_have_an_end)
{
    struct method_run *runs = NULL;
    int64_t n = 0;
    MUST(method_runs_parse(test_methods, PEER "lists-more", &runs, &n, ERR));
    MUST(method_run_open(runs, ERR));
    MUST(run_once(PEER "lists-more", runs[0].session, ERR));
    FAILS(run_once(PEER "lists-more", runs[0].session, ERR), ERR_RUN,
          "wrote more than its last answer");
    method_runs_free(runs, n);
}

TEST(commands_are_checked)
{
    struct method_run *runs = NULL;
    int64_t n = 0;
    assert_refused("exec", "cmd");
    assert_refused("exec:cmd=", "no command");
    assert_refused("exec:cmd='a b", "a quote is not closed");
    assert_refused("exec:cmd=a:timeout=0", "timeout");
    MUST(method_runs_parse(test_methods, "exec:cmd=./no-such-program", &runs, &n, ERR));
    FAILS(method_run_open(runs, ERR), ERR_USAGE, "'./no-such-program' does not start");
    method_runs_free(runs, n);
}

TEST(words_of_a_command)
{
    static const struct {
        const char *text, *words[5];
    } cases[] = {
        {"a", {"a"}},
        {"  a\tb  ", {"a", "b"}},
        {"a 'b c' \"d e\"", {"a", "b c", "d e"}},
        {"a\\ b 'c\\d' \"e\\\"f\\g\"", {"a b", "c\\d", "e\"f\\g"}},
        {"x'y'\"z\" ''", {"xyz", ""}},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        OWN(str_list_free) struct str_list l = {0};
        int64_t n = 0;
        MUST(words_split(cases[k].text, &l, ERR));
        while (n < 5 && cases[k].words[n]) {
            ck_assert_int_lt(n, l.n);
            ck_assert_str_eq(l.items[n], cases[k].words[n]);
            n++;
        }
        ck_assert_int_eq(n, l.n);
    }
}
