/* Parallel for: every item once, first error wins, interruption, worker numbers. */
#include "tests/harness/suite.h"

#include "core/fileio.h"
#include "core/pool.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 1000 };

struct work {
    _Atomic int count[N];
    _Atomic int in_worker[16];
    _Atomic int started, fail_at, raise_at;
    _Atomic int64_t last; /* jobs = 1 only: items in order */
    _Atomic bool ordered;
};

static struct work w;
static struct err e;

static void begin(void)
{
    memset(&w, 0, sizeof w);
    memset(&e, 0, sizeof e);
    w.fail_at = w.raise_at = -1;
    w.ordered = true;
    w.last = -1;
}
FIXTURE(begin, NULL)

static int one(void *ctx, int64_t item, int worker, struct err *err)
{
    struct work *x = ctx;
    x->started++;
    x->count[item]++;
    ck_assert(worker >= 0 && worker < 16);
    ck_assert_int_eq(x->in_worker[worker]++, 0); /* a worker does one item at a time */
    x->ordered = x->ordered && item == x->last + 1;
    x->last = item;
    if (item == x->raise_at)
        raise(SIGTERM);
    x->in_worker[worker]--;
    if (x->fail_at >= 0 && item >= x->fail_at)
        return err_set(err, ERR_INPUT, "item %lld", (long long)item);
    return 0;
}

TEST_N(every_item_is_done_once, 5)
{
    static const int jobs[] = {0, 1, 2, 7, 16};
    assert_ok(pool_run(jobs[_i], N, one, &w, &e), &e);
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(w.count[i], 1);
}

TEST(one_job_keeps_the_order)
{
    assert_ok(pool_run(1, N, one, &w, &e), &e);
    ck_assert(w.ordered);
}

TEST(nothing_to_do_is_fine)
{
    assert_ok(pool_run(4, 0, one, &w, &e), &e);
    assert_ok(pool_run(16, 1, one, &w, &e), &e);
    ck_assert_int_eq(w.started, 1);
}

TEST(an_error_stops_the_hand_out)
{
    w.fail_at = 10;
    assert_fails(pool_run(1, N, one, &w, &e), &e, ERR_INPUT, "item 10");
    ck_assert_int_eq(w.started, 11);
    begin();
    w.fail_at = 10;
    assert_fails(pool_run(4, N, one, &w, &e), &e, ERR_INPUT, "item ");
    /* Each worker stops after its first failure. */
    ck_assert_int_le(w.started, 10 + 4);
}

static int fail_without_message(void *ctx, int64_t item, int worker, struct err *err)
{
    return ERR_MACHINE;
}

TEST(a_failure_without_a_message_gets_one)
{
    assert_fails(pool_run(2, 5, fail_without_message, NULL, &e), &e, ERR_MACHINE, "machine");
}

TEST(a_signal_lets_items_finish_and_stops)
{
    interrupt_install();
    ck_assert(!interrupted());
    w.raise_at = 20;
    assert_fails(pool_run(1, N, one, &w, &e), &e, ERR_INTERRUPTED, "interrupted");
    ck_assert(interrupted());
    ck_assert_int_eq(w.started, 21);
    assert_fails(pool_run(2, N, one, &w, &e), &e, ERR_INTERRUPTED, "interrupted");
    ck_assert_int_eq(w.started, 21);
}

static const int closing[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

/* In a process of its own: how it ends when the signal comes once, and twice. */
static int end_by(int sig, int times, void (*before)(int))
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        before(sig);
        interrupt_install();
        for (int i = 0; i < times; i++)
            raise(sig);
        _exit(interrupted() ? 130 : 0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static void leave_it(int sig)
{
    signal(sig, SIG_DFL);
}

static void ignore_it(int sig)
{
    signal(sig, SIG_IGN);
}

TEST_N(every_closing_signal_interrupts_and_its_second_kills, 4)
{
    ck_assert_int_eq(end_by(closing[_i], 1, leave_it), 130);
    ck_assert_int_eq(end_by(closing[_i], 2, leave_it), -closing[_i]);
}

TEST(a_program_that_never_looks_ends_all_the_same_and_leaves_no_part)
{
    const char *path = test_path("never.h5");
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        struct io_part part = {0};
        interrupt_install();
        if (io_part_open(&part, path, NULL) != 0 || raise(SIGTERM) != 0)
            _exit(1);
        for (;;)
            pause();
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 130);
    ck_assert(test_absent("never.h5"));
}

/* nohup: the terminal goes, the run stays. */
TEST_N(what_is_ignored_stays_ignored, 4)
{
    ck_assert_int_eq(end_by(closing[_i], 2, ignore_it), closing[_i] == SIGINT ? -SIGINT : 0);
}

TEST(at_the_end_signals_are_as_they_came)
{
    struct sigaction now;
    signal(SIGHUP, SIG_IGN);
    signal(SIGQUIT, SIG_DFL); /* a job in the background of a shell has it ignored */
    interrupt_install();
    interrupt_restore();
    ck_assert(sigaction(SIGHUP, NULL, &now) == 0 && now.sa_handler == SIG_IGN);
    ck_assert(sigaction(SIGQUIT, NULL, &now) == 0 && now.sa_handler == SIG_DFL);
    signal(SIGHUP, SIG_DFL);
}

TEST(there_is_a_processor)
{
    ck_assert_int_ge(cpu_count(), 1);
}
