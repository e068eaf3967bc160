/*
 * pool.c - parallel for: threads draw the next item from a shared counter.
 */
#include "core/pool.h"

#include "core/fileio.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

/* Atomic, for all threads read what the handler writes in one of them. */
static atomic_bool interrupt_flag;

static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
#define N_SIGNALS (sizeof signals / sizeof *signals)
static bool caught[N_SIGNALS];

/* Whatever a thread is at: outputs are whole or absent, records are whole lines. */
static void end_now(int sig)
{
    static const char text[] = "lacuna: error: interrupted\n";
    (void)sig;
    io_remove_parts();
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0)
        _exit(err_exit_code(ERR_IO));
    _exit(err_exit_code(ERR_INTERRUPTED));
}

static void on_signal(int sig)
{
    static const struct itimerval soon = {.it_value.tv_usec = 800000};
    struct sigaction end = {.sa_handler = end_now};
    (void)sig;
    atomic_store(&interrupt_flag, true);
    sigemptyset(&end.sa_mask);
    sigaction(SIGALRM, &end, NULL);
    setitimer(ITIMER_REAL, &soon, NULL);
}

/* What nohup and the background jobs of a shell ignore stays ignored. SIGINT is caught all the
 * same: `kill -INT` is how scripts stop a background job. */
static bool wanted(int sig)
{
    struct sigaction now;
    return sig == SIGINT || sigaction(sig, NULL, &now) != 0 || now.sa_handler != SIG_IGN;
}

void interrupt_install(void)
{
    struct sigaction sa = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&sa.sa_mask);
    sa.sa_flags |= (int)SA_RESETHAND; /* the second one ends the program at once */
    for (size_t i = 0; i < N_SIGNALS; i++) {
        caught[i] = wanted(signals[i]);
        if (caught[i])
            sigaction(signals[i], &sa, NULL);
    }
    /* A reader that goes away shows as EPIPE: an error of gnuplot's pipe, and for standard output
     * the end that main.c chooses. */
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigemptyset(&ignore.sa_mask);
    sigaction(SIGPIPE, &ignore, NULL);
    sigaction(SIGXFSZ, &ignore, NULL); /* and a file that may not grow as EFBIG */
}

void interrupt_restore(void)
{
    if (interrupted())
        setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    for (size_t i = 0; i < N_SIGNALS; i++)
        if (caught[i])
            signal(signals[i], SIG_DFL);
}

bool interrupted(void)
{
    return atomic_load(&interrupt_flag);
}

/* Whole processors of a cgroup v2 quota ("max 100000" or "150000 100000"), 0 when there is none. */
static int cgroup_quota(void)
{
    long quota = 0, period = 0;
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (!f)
        return 0;
    int got = fscanf(f, "%ld %ld", &quota, &period);
    fclose(f);
    return got == 2 && quota > 0 && period > 0 ? (int)((quota + period - 1) / period) : 0;
}

int cpu_online(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

int cpu_count(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : cpu_online();
    int quota = cgroup_quota();
    if (quota > 0 && quota < n)
        n = quota;
    return n > 0 ? n : 1;
}

struct pool {
    pool_fn *fn;
    void *ctx;
    int64_t n;
    _Atomic int64_t next;
    _Atomic bool stop;
    pthread_mutex_t lock;
    struct err first; /* guarded by lock */
};

struct worker {
    struct pool *pool;
    pthread_t thread;
    int index;
    bool started;
};

static void fail(struct pool *p, int rc, const struct err *e)
{
    pthread_mutex_lock(&p->lock);
    if (!p->first.code) {
        p->first = *e;
        if (!p->first.code)
            err_set(&p->first, rc, "%s", err_text(rc));
    }
    pthread_mutex_unlock(&p->lock);
    atomic_store(&p->stop, true);
}

static void work(struct pool *p, int index)
{
    while (!atomic_load(&p->stop)) {
        struct err e = {0};
        int64_t item = atomic_fetch_add(&p->next, 1);
        if (item >= p->n)
            return;
        int rc = interrupted() ? err_set(&e, ERR_INTERRUPTED, "interrupted")
                               : p->fn(p->ctx, item, index, &e);
        if (rc < 0)
            fail(p, rc, &e);
    }
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    work(w->pool, w->index);
    return NULL;
}

int pool_run(int jobs, int64_t n, pool_fn *fn, void *ctx, struct err *err)
{
    struct pool p = {.fn = fn, .ctx = ctx, .n = n, .lock = PTHREAD_MUTEX_INITIALIZER};
    struct worker *workers = NULL;
    if (jobs > n)
        jobs = (int)n;
    if (jobs > 1 && !(workers = calloc((size_t)jobs, sizeof *workers)))
        return err_set(err, ERR_NOMEM, "%d worker threads: out of memory", jobs);
    /* The caller is worker 0. A thread that cannot be created leaves its items to the others. */
    for (int i = 1; i < jobs; i++) {
        workers[i].pool = &p;
        workers[i].index = i;
        workers[i].started =
            pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]) == 0;
    }
    work(&p, 0);
    for (int i = 1; i < jobs; i++)
        if (workers[i].started)
            pthread_join(workers[i].thread, NULL);
    free(workers);
    pthread_mutex_destroy(&p.lock);
    if (!p.first.code)
        return 0;
    if (err && !err->code)
        *err = p.first;
    return p.first.code;
}
