/*
 * fuzz.c - runner of one fuzzer: its cases, and what counts as a failure.
 */
#include "tests/fuzz/fuzz_run.h"
#include "core/fileio.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/utf8.h"

#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* Present in sanitizer builds. */
int __lsan_do_recoverable_leak_check(void) __attribute__((weak));
void __sanitizer_set_death_callback(void (*f)(void)) __attribute__((weak));
const char *__asan_default_options(void);
const char *__lsan_default_options(void);

/* A reader that asks for more than this because of a few bytes in a file has trusted them. */
#define MEMORY_MAX_MB 1024

const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1:max_allocation_size_mb=1024:hard_rss_limit_mb=3072";
}

const char *__lsan_default_options(void)
{
    return "print_suppressions=0";
}

enum { CPU_LIMIT_S = 5, WAIT_LIMIT_S = 3600, LEAK_EVERY = 4096 };

/* What a signal handler needs of the case in progress. */
static struct {
    const struct fuzz_target *target;
    uint64_t seed;
    int64_t index;
    int64_t accepted;
    const struct buf *input;
    char program[400], crash[512], dir[256];
    char wild[512];
} now;

/* ---- failures ------------------------------------------------------------------------------- */

static void save_input(void)
{
    snprintf(now.crash, sizeof now.crash, "%s-%s-%llu-%lld.crash", now.program, now.target->name,
             (unsigned long long)now.seed, (long long)now.index);
    int fd = now.input ? open(now.crash, O_WRONLY | O_CREAT | O_TRUNC, 0666) : -1;
    if (fd < 0 || !now.input)
        return;
    ssize_t put = write(fd, now.input->data, now.input->len);
    close(fd);
    fprintf(stderr, "fuzz_%s: failed in case %lld of seed %llu; input (%zd bytes) is in %s\n",
            now.target->name, (long long)now.index, (unsigned long long)now.seed, put, now.crash);
}

static void on_signal(int sig)
{
    save_input();
    fprintf(stderr, "fuzz_%s: %s\n", now.target->name,
            sig == SIGPROF || sig == SIGALRM ? "took too long" : strsignal(sig));
    _exit(1);
}

static void remove_dir(void)
{
    char cmd[300];
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", now.dir);
    if (now.dir[0] && system(cmd) != 0)
        fprintf(stderr, "could not remove %s\n", now.dir);
}

static int setup(const struct fuzz_target *t, const char *program)
{
    const char *base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : getenv("TMPDIR");
    now.target = t;
    snprintf(now.program, sizeof now.program, "%s", program);
    snprintf(now.dir, sizeof now.dir, "%s/lacuna-fuzz-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(now.dir)) {
        perror(now.dir);
        return 1;
    }
    atexit(remove_dir);
    log_set_level(LOG_ERROR);
    signal(SIGPROF, on_signal);
    signal(SIGALRM, on_signal);
    if (__sanitizer_set_death_callback) {
        __sanitizer_set_death_callback(save_input);
    } else {
        struct rlimit limit = {(rlim_t)MEMORY_MAX_MB << 20, (rlim_t)MEMORY_MAX_MB << 20};
        setrlimit(RLIMIT_AS, &limit);
        signal(SIGSEGV, on_signal);
        signal(SIGBUS, on_signal);
        signal(SIGFPE, on_signal);
        signal(SIGABRT, on_signal);
    }
    return 0;
}

/* Processor time catches loops on a busy machine, the wall clock what waits for ever. */
static void set_timers(int cpu_s, int wait_s)
{
    struct itimerval cpu = {.it_value.tv_sec = cpu_s}, wait = {.it_value.tv_sec = wait_s};
    setitimer(ITIMER_PROF, &cpu, NULL);
    setitimer(ITIMER_REAL, &wait, NULL);
}

int fuzz_wild(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(now.wild, sizeof now.wild, fmt, ap);
    va_end(ap);
    return 0;
}

/* One input through the target; NULL or what is wrong with it. */
static const char *run_case(const struct buf *x, bool show)
{
    static char text[1024];
    char fault[UTF8_FAULT_MAX];
    struct err err = {0};
    now.wild[0] = '\0';
    now.input = x;
    set_timers(CPU_LIMIT_S, WAIT_LIMIT_S);
    int rc = now.target->run(buf_str(x), x->len, &err);
    set_timers(0, 0);
    now.accepted += rc == 0;
    if (show)
        printf("%d: %s\n", rc, rc ? err.msg : "accepted");
    if (now.wild[0])
        snprintf(text, sizeof text, "accepted with a wild result: %s", now.wild);
    else if (rc > 0 || (rc == 0) != (err.code == 0))
        snprintf(text, sizeof text, "returned %d with error code %d '%s'", rc, err.code, err.msg);
    else if (rc && !err.msg[0])
        snprintf(text, sizeof text, "error %d without a message", rc);
    else if (utf8_fault(err.msg, fault))
        snprintf(text, sizeof text, "%s in the message '%s'", fault, err.msg);
    else if (rc == ERR_NOMEM)
        snprintf(text, sizeof text, "asked for too much memory: %s", err.msg);
    else
        return NULL;
    return text;
}

/* ---- cases ---------------------------------------------------------------------------------- */

const char *fuzz_dir(void)
{
    return now.dir;
}

const char *fuzz_file(const char *name, const void *data, size_t len)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", now.dir, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0 || write(fd, data, len) != (ssize_t)len || close(fd) != 0) {
        perror(path);
        _exit(2);
    }
    return path;
}

void fuzz_add(struct fuzz_corpus *c, const void *data, size_t len)
{
    struct err err = {0};
    if (mem_grow(&c->seeds, &c->cap, c->n + 1, sizeof *c->seeds, "corpus", &err) != 0)
        _exit(2);
    memset(&c->seeds[c->n], 0, sizeof *c->seeds);
    buf_put(&c->seeds[c->n++], data, len);
}

int fuzz_add_file(struct fuzz_corpus *c, const char *path, struct err *err)
{
    OWN(buf_free) struct buf b = {0};
    PASS_ON(buf_read_file(&b, path, 64 << 20, err));
    fuzz_add(c, buf_str(&b), b.len);
    return 0;
}

void fuzz_unseal(struct buf *text)
{
    for (char *at = text->data; at && (at = strstr(at, "\"sum\":"));) {
        size_t begin = (size_t)(at - text->data);
        char *digest = strstr(at, "\"xxh3:");
        if (!digest)
            return;
        fuzz_splice(text, (size_t)(digest - text->data), 39, "null", 4);
        at = text->data + begin + 1; /* the text may have moved */
    }
}

static void mutate(struct fuzz_rng *r, struct buf *x, const struct fuzz_corpus *c)
{
    if (now.target->mutate)
        now.target->mutate(r, x, c);
    else if (now.target->text && fuzz_below(r, 4))
        fuzz_tokens(r, x, 0, x->len);
    else
        fuzz_bytes(r, x, c);
}

/* Input of case `index`: a seed, changed one to eight times. */
static void make_case(const struct fuzz_options *o, const struct fuzz_corpus *c, int64_t index,
                      struct buf *x)
{
    struct fuzz_rng r = {o->seed, (uint64_t)index, 0};
    now.index = index;
    const struct buf *seed = &c->seeds[fuzz_below(&r, (uint64_t)c->n)];
    uint64_t changes = 1 + fuzz_below(&r, 1 + fuzz_below(&r, 8));
    buf_reset(x);
    buf_put(x, buf_str(seed), seed->len);
    for (uint64_t k = 0; k < changes; k++)
        mutate(&r, x, c);
    now.seed = o->seed;
}

static int report(const char *what)
{
    if (!what)
        return 0;
    save_input();
    fprintf(stderr, "fuzz_%s: %s\n", now.target->name, what);
    return 1;
}

static void (*tidy_up)(void);

void fuzz_before_leaks(void (*tidy)(void))
{
    tidy_up = tidy;
}

static int check_leaks(const struct fuzz_options *o, int64_t first, int64_t last)
{
    if (tidy_up)
        tidy_up();
    if (!__lsan_do_recoverable_leak_check || !__lsan_do_recoverable_leak_check())
        return 0;
    fprintf(stderr, "fuzz_%s: memory leaked in cases %lld to %lld of seed %llu\n", now.target->name,
            (long long)first, (long long)last, (unsigned long long)o->seed);
    return 1;
}

/* Unchanged seeds must be accepted: a fuzzer of inputs that are all refused at once tests nothing.
 */
static int run_seeds(const struct fuzz_corpus *c)
{
    for (int64_t i = 0; i < c->n; i++) {
        struct err err = {0};
        now.index = -1 - i;
        if (report(run_case(&c->seeds[i], false)))
            return 2;
        if (now.target->run(buf_str(&c->seeds[i]), c->seeds[i].len, &err) != 0) {
            fprintf(stderr, "fuzz_%s: seed %lld is refused: %s\n", now.target->name, (long long)i,
                    err.msg);
            return 2;
        }
    }
    return 0;
}

/* Of this process. */
static double cpu_s(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

static int run_cases(const struct fuzz_options *o, const struct fuzz_corpus *c)
{
    OWN(buf_free) struct buf x = {0};
    int64_t i = o->first, checked = i;
    int bad = run_seeds(c);
    for (; !bad && i - o->first < o->cases && cpu_s() < o->seconds; i++) {
        make_case(o, c, i, &x);
        bad = report(run_case(&x, false));
        if (!bad && (i + 1) % LEAK_EVERY == 0) {
            bad = check_leaks(o, checked, i);
            checked = i + 1;
        }
    }
    if (!bad)
        bad = check_leaks(o, checked, i - 1);
    if (!bad)
        printf("fuzz_%s: %lld cases of seed %llu, %lld inputs accepted, %.1f s\n", now.target->name,
               (long long)(i - o->first), (unsigned long long)o->seed, (long long)now.accepted,
               cpu_s());
    now.input = NULL;
    return bad;
}

static int run_one(const struct fuzz_options *o, const struct fuzz_corpus *c)
{
    OWN(buf_free) struct buf x = {0};
    make_case(o, c, o->only, &x);
    int bad = report(run_case(&x, true)) || check_leaks(o, o->only, o->only);
    now.input = NULL;
    return bad;
}

static int run_files(const struct fuzz_options *o)
{
    int bad = 0;
    for (int i = 0; i < o->n_files && !bad; i++) {
        OWN(buf_free) struct buf x = {0};
        struct err err = {0};
        if (buf_read_file(&x, o->files[i], 64 << 20, &err) != 0) {
            fprintf(stderr, "%s\n", err.msg);
            bad = 2;
        } else {
            printf("%s: ", o->files[i]);
            bad = report(run_case(&x, true)) || check_leaks(o, -1, -1);
        }
        now.input = NULL;
    }
    return bad;
}

/* ---- a run ---------------------------------------------------------------------------------- */

int fuzz_run(const struct fuzz_target *t, const struct fuzz_options *o, const char *program)
{
    struct fuzz_corpus c = {0};
    struct err err = {0};
    int bad = setup(t, program);
    now.seed = o->seed;
    if (bad)
        return 2;
    if (o->n_files > 0)
        return run_files(o);
    if (t->seeds(&c, &err) != 0) {
        fprintf(stderr, "fuzz_%s: making seeds: %s\n", t->name, err.msg);
        return 2;
    }
    bad = o->only >= 0 ? run_one(o, &c) : run_cases(o, &c);
    for (int64_t i = 0; i < c.n; i++)
        buf_free(&c.seeds[i]);
    free(c.seeds);
    return bad;
}
