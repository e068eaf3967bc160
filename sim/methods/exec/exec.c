/*
 * exec.c - a program of the user's selects the mask, in any language.
 *
 *   the program gets q, k, v of a head and answers with lists of blocks or with a bitmap of pairs;
 *   exact softmax over what it keeps, all metrics
 *
 * No paper. doc/methods/exec.md describes the messages; capture/torch/lacuna_trace/method.py speaks
 * them for Python. One program per worker is started and lives for the whole replay. After a
 * failure it is started again for the next cell; failures in a row end the replay, because a
 * program that never works would only fill the records.
 */
#include "core/child.h"
#include "core/clock.h"
#include "core/intmath.h"
#include "core/json.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/method.h"
#include "core/pool.h"
#include "core/text.h"
#include "core/utf8.h"
#include "sim/blocks/given.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- a program that runs --------------------------------------------------------------------- */

#define PAUSE_MS 100   /* between looks at the interrupt flag */
#define END_SECONDS 2  /* that a program has to end by itself */
#define LINE_BYTES 500 /* of standard error in the log */
#define LINES_MOST 100 /* of a cell there */
#define ENDS 4         /* descriptors of the program */
#define MEMORY_FIRST 4096

extern char **environ;

/* A program that lacuna started and talks to over pipes: requests on its standard input, answers on
 * its standard output, arrays in the file behind its descriptor 3. Lines of its standard error go
 * to the log.
 *
 * No call waits beyond a deadline, and each ends when the user interrupts (ERR_INTERRUPTED). What
 * the program does wrong is ERR_RUN; a machine without memory or processes is ERR_MACHINE. SIGPIPE
 * is ignored, as interrupt_install has it. */
struct execproc {
    struct child child;
    int in, out, err; /* our ends of its standard input, output and error; -1 = closed */
    int memory;
    void *map;
    int64_t mapped;
    double deadline; /* clock_s */
    char cell[96];
    char line[LINE_BYTES + 1], last[LINE_BYTES + 1]; /* of standard error: unfinished, last */
    size_t line_len;
    int lines;        /* of this cell */
    char ahead[4096]; /* read from its standard output, not asked for yet */
    size_t ahead_at, ahead_len;
};

/* ---- start and end -------------------------------------------------------------------------- */

static void close_end(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* "ended with status 3", "was killed by signal 9". */
static void describe_end(int status, char text[64])
{
    if (WIFSIGNALED(status))
        snprintf(text, 64, "was ended by signal %d", WTERMSIG(status));
    else
        snprintf(text, 64, "ended with status %d", WEXITSTATUS(status));
}

/* Kill it at once. Accepts NULL. */
static void execproc_kill(struct execproc **pp)
{
    struct execproc *p = *pp;
    if (!p)
        return;
    child_kill(&p->child);
    close_end(&p->in);
    close_end(&p->out);
    close_end(&p->err);
    close_end(&p->memory);
    if (p->map)
        munmap(p->map, (size_t)p->mapped);
    free(p);
    *pp = NULL;
}

/* Close its input and wait a moment for its end; then kill it with everything it started. Accepts
 * NULL. */
static void execproc_end(struct execproc **pp)
{
    struct execproc *p = *pp;
    int status;
    if (!p)
        return;
    close_end(&p->in);
    child_wait(&p->child, END_SECONDS, &status);
    execproc_kill(pp);
}

/* Ends of a pipe: ours does not block, its is handed over by spawn. */
static int make_pipe(int *ours, int *its, bool we_write, struct err *err)
{
    int fd[2];
    if (pipe2(fd, O_CLOEXEC) != 0)
        return err_sys(err, ERR_MACHINE, "a pipe to a program");
    *ours = fd[we_write];
    *its = fd[!we_write];
    if (fcntl(*ours, F_SETFL, O_NONBLOCK) != 0)
        return err_sys(err, ERR_MACHINE, "a pipe to a program");
    return 0;
}

/* Memory that this mapping alone can write: the program's descriptor is for reading, and seals keep
 * it from cutting the file, which would kill us by SIGBUS, and from opening it for writing. */
static int make_memory(struct execproc *p, int *its, struct err *err)
{
    char path[64];
    p->memory = memfd_create("lacuna-exec", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    snprintf(path, sizeof path, "/proc/self/fd/%d", p->memory);
    if (p->memory < 0 || ftruncate(p->memory, MEMORY_FIRST) != 0)
        return err_sys(err, ERR_MACHINE, "memory shared with a program");
    p->map = mmap(NULL, MEMORY_FIRST, PROT_READ | PROT_WRITE, MAP_SHARED, p->memory, 0);
    if (p->map == MAP_FAILED) {
        p->map = NULL;
        return err_sys(err, ERR_MACHINE, "memory shared with a program");
    }
    p->mapped = MEMORY_FIRST;
    *its = open(path, O_RDONLY | O_CLOEXEC);
    if (*its < 0 || fcntl(p->memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE) != 0)
        return err_sys(err, ERR_MACHINE, "memory shared with a program (Linux 5.1 or newer)");
    return 0;
}

static int spawn(struct execproc *p, char *const *argv, const int its[ENDS], struct err *err)
{
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    for (int i = 0; i < ENDS; i++)
        posix_spawn_file_actions_adddup2(&files, its[i], i);
    posix_spawn_file_actions_addclosefrom_np(&files, ENDS);
    errno = child_start(&p->child, argv, environ, &files);
    posix_spawn_file_actions_destroy(&files);
    if (errno == 0)
        return 0;
    return err_sys(err, errno == ENOENT || errno == EACCES ? ERR_USAGE : ERR_MACHINE,
                   "program '%s' does not start", argv[0]);
}

/* Start argv (found as a shell finds it) in a process group of its own. ERR_USAGE if there is no
 * such program. */
static int execproc_start(char *const *argv, struct execproc **out, struct err *err)
{
    struct execproc *p = NULL;
    int its[ENDS] = {-1, -1, -1, -1}, rc = 0;

    TRY(mem_zalloc(&p, 1, sizeof *p, "program", err));
    p->in = p->out = p->err = p->memory = -1;
    TRY(make_memory(p, &its[3], err));
    TRY(make_pipe(&p->in, &its[0], true, err));
    TRY(make_pipe(&p->out, &its[1], false, err));
    TRY(make_pipe(&p->err, &its[2], false, err));
    TRY(spawn(p, argv, its, err));
    *out = HAND_OVER(p);
out:
    for (int i = 0; i < ENDS; i++)
        close_end(&its[i]);
    execproc_kill(&p);
    return rc;
}

/* Memory of at least n bytes that the program sees in its descriptor 3; valid until the next call.
 */
static int execproc_memory(struct execproc *p, int64_t n, void **out, struct err *err)
{
    if (n > p->mapped) {
        void *at = MAP_FAILED;
        struct stat is;
        /* The program may have made it longer. */
        if (fstat(p->memory, &is) == 0 && (is.st_size >= n || ftruncate(p->memory, n) == 0))
            at = mremap(p->map, (size_t)p->mapped, (size_t)n, MREMAP_MAYMOVE);
        if (at == MAP_FAILED)
            return err_sys(err, ERR_MACHINE, "%lld bytes shared with a program", (long long)n);
        p->map = at;
        p->mapped = n;
    }
    *out = p->map;
    return 0;
}

/* ---- what it says beside -------------------------------------------------------------------- */

static void log_line(struct execproc *p)
{
    p->line[p->line_len] = '\0';
    p->line_len = 0;
    utf8_make_plain(p->line);
    if (!p->line[0])
        return;
    memcpy(p->last, p->line, sizeof p->last);
    if (p->lines < LINES_MOST)
        log_info("exec: %s: %s", p->cell, p->line);
    else if (p->lines == LINES_MOST)
        log_warn(
            "exec: %s: more than %d lines on standard error; the rest of this cell is left out",
            p->cell, LINES_MOST);
    p->lines++;
}

/* Take what is there of its standard error, a pipe's worth at most: it can write without end. */
static void drain_err(struct execproc *p)
{
    char b[1024];
    ssize_t n;
    for (int k = 0; k < 64 && p->err >= 0 && (n = read(p->err, b, sizeof b)) != -1; k++) {
        if (n == 0)
            close_end(&p->err);
        for (ssize_t i = 0; i < n; i++)
            if (b[i] == '\n' || p->line_len == LINE_BYTES)
                log_line(p);
            else
                p->line[p->line_len++] = b[i];
    }
}

/* It closed a pipe: how it ended, and its last words. */
static int fail_ended(struct execproc *p, const char *doing, struct err *err)
{
    char end[64] = "closed its end of the pipe";
    int status = 0;

    if (child_wait(&p->child, END_SECONDS, &status) > 0)
        describe_end(status, end);
    drain_err(p);
    if (p->line_len)
        log_line(p);
    return err_set(err, ERR_RUN, "the program %s %s%s%s", end, doing,
                   p->last[0] ? "; it wrote: " : "", p->last);
}

/* ---- waiting -------------------------------------------------------------------------------- */

/* Wait until `fd` is ready for `events`. */
static int wait_ready(struct execproc *p, int fd, short events, const char *doing, struct err *err)
{
    for (;;) {
        struct pollfd f[2] = {{.fd = fd, .events = events}, {.fd = p->err, .events = POLLIN}};
        double left = p->deadline - clock_s();
        if (interrupted())
            return err_set(err, ERR_INTERRUPTED, "interrupted while the program was %s", doing);
        if (left <= 0)
            return err_set(
                err, ERR_RUN,
                "the program was still %s at the time limit; timeout=SECONDS gives it more%s%s",
                doing, p->last[0] ? "; it wrote: " : "", p->last);
        int ms = left * 1000 < PAUSE_MS ? (int)(left * 1000) + 1 : PAUSE_MS;
        if (poll(f, 2, ms) < 0 && errno != EINTR)
            return err_sys(err, ERR_RUN, "waiting for the program");
        if (f[1].revents)
            drain_err(p);
        if (f[0].revents)
            return 0;
    }
}

/* From here on calls have `seconds`; `cell` names lines of its standard error. It must not have
 * written anything before. */
static int execproc_begin(struct execproc *p, double seconds, const char *cell, struct err *err)
{
    char b;
    snprintf(p->cell, sizeof p->cell, "%s", cell);
    p->last[0] = '\0';
    p->lines = 0;
    p->deadline = clock_s() + seconds;
    if (p->ahead_at < p->ahead_len || read(p->out, &b, 1) == 1)
        return err_set(err, ERR_RUN, "the program wrote more than its last answer");
    return 0;
}

static int execproc_write(struct execproc *p, const void *data, size_t n, struct err *err)
{
    const char *at = data;
    while (n > 0) {
        ssize_t done = write(p->in, at, n);
        if (done >= 0) {
            at += done;
            n -= (size_t)done;
        } else if (errno == EPIPE) {
            return fail_ended(p, "before it read the request", err);
        } else if (errno != EAGAIN && errno != EINTR) {
            return err_sys(err, ERR_RUN, "writing to the program");
        } else {
            PASS_ON(wait_ready(p, p->in, POLLOUT, "not reading", err));
        }
    }
    return 0;
}

/* Some bytes, at least one. */
static int read_some(struct execproc *p, char *dst, size_t cap, size_t *got, struct err *err)
{
    for (;;) {
        ssize_t n = read(p->out, dst, cap);
        if (n > 0) {
            drain_err(p); /* what it wrote before it answered */
            *got = (size_t)n;
            return 0;
        }
        if (n == 0)
            return fail_ended(p, "before its answer was complete", err);
        if (errno != EAGAIN && errno != EINTR)
            return err_sys(err, ERR_RUN, "reading from the program");
        PASS_ON(wait_ready(p, p->out, POLLIN, "at work", err));
    }
}

/* The next line without its newline into text; longer than cap - 1 is ERR_RUN. */
static int execproc_line(struct execproc *p, char *text, size_t cap, struct err *err)
{
    size_t n = 0;
    for (;;) {
        if (p->ahead_at == p->ahead_len) {
            p->ahead_at = p->ahead_len = 0;
            PASS_ON(read_some(p, p->ahead, sizeof p->ahead, &p->ahead_len, err));
        }
        char c = p->ahead[p->ahead_at++];
        if (c == '\n')
            break;
        if (n == cap - 1)
            return err_set(err, ERR_RUN,
                           "the program's answer does not begin with a line of at most %zu bytes",
                           cap - 1);
        text[n++] = c;
    }
    text[n] = '\0';
    return 0;
}

/* Exactly n bytes. */
static int execproc_read(struct execproc *p, void *dst, int64_t n, struct err *err)
{
    char *to = dst;
    while (n > 0) {
        size_t got = p->ahead_len - p->ahead_at, most = n < 1 << 30 ? (size_t)n : 1 << 30;
        if (got > 0) {
            got = got < most ? got : most;
            memcpy(to, p->ahead + p->ahead_at, got);
            p->ahead_at += got;
        } else {
            PASS_ON(read_some(p, to, most, &got, err));
        }
        to += got;
        n -= (int64_t)got;
    }
    return 0;
}

#define FAILURES_MAX 3 /* one after the other */

struct params {
    char *cmd, *params;
    bool rows;
    double timeout;
};

static const struct opt options[] = {
    OPT_STR(struct params, cmd, NULL, NULL,
            "Program and arguments; quotes keep words together, no shell is involved.",
            .flags = OPT_REQUIRED | OPT_OUTSIDE, .unit = "command"),
    OPT_STR(struct params, params, "", NULL,
            "Text for the program; part of the setting, as cmd is."),
    OPT_BOOL(struct params, rows, "0",
             "1: the program chooses for a sample of query rows, whose positions it is told; the "
             "others are 0 in q."),
    OPT_NUM(struct params, timeout, "120", 0, 1e6, "s",
            "Time for one head, the start of the program included.",
            .flags = OPT_MIN_OPEN | OPT_IDENTITY_NOT),
    {0},
};

static const struct metric_def metrics[] = {
    OWN_METRIC("pairs_dropped", "pairs of a mask from outside that were left out because their "
                                "unit lies after all its queries (causal)"),
    OWN_METRIC_IN("ns", "host_exec_ns",
                  "wall time from the request to a program to its whole answer; its own start is "
                  "in the first",
                  .better = BETTER_LOWER, .axis = AXIS_LOG, .noise = NOISE_MEASURED),
    {0},
};

/* ---- programs ------------------------------------------------------------------------------- */

struct idle {
    struct execproc *proc;
    struct idle *next;
};

/* The programs of a run: as many as threads that ask at once. */
struct exec_session {
    struct str_list words; /* ends with a NULL that n does not count */
    pthread_mutex_t lock;
    struct idle *idle;
    int64_t cells; /* asked so far */
    int failures;  /* in a row */
};

static void close_session(void *session)
{
    struct exec_session *s = session;
    if (!s)
        return;
    while (s->idle) {
        OWN(free_at) struct idle *i = s->idle;
        s->idle = i->next;
        execproc_end(&i->proc);
    }
    str_list_free(&s->words);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* Keep a program for the next cell; without memory for that it ends. */
static void give_back(struct exec_session *s, struct execproc *p)
{
    struct idle *i = malloc(sizeof *i);
    if (!i) {
        execproc_end(&p);
        return;
    }
    i->proc = p;
    pthread_mutex_lock(&s->lock);
    i->next = s->idle;
    s->idle = i;
    pthread_mutex_unlock(&s->lock);
}

static int take(struct exec_session *s, struct execproc **p, int64_t *cell, struct err *err)
{
    pthread_mutex_lock(&s->lock);
    OWN(free_at) struct idle *i = s->idle;
    if (i)
        s->idle = i->next;
    *cell = s->cells++;
    pthread_mutex_unlock(&s->lock);
    *p = i ? i->proc : NULL;
    return *p ? 0 : execproc_start(s->words.items, p, err);
}

/* The first program is started here: a command that does not exist ends the replay at once. */
static int open_session(const void *params, void **session, struct err *err)
{
    const struct params *p = params;
    struct exec_session *s = NULL;
    struct execproc *first = NULL;
    int rc = 0;

    TRY(mem_zalloc(&s, 1, sizeof *s, "programs", err));
    pthread_mutex_init(&s->lock, NULL);
    TRY(words_split(p->cmd, &s->words, err));
    TRY(mem_grow(&s->words.items, &s->words.cap, s->words.n + 1, sizeof *s->words.items,
                 "words of a command", err));
    s->words.items[s->words.n] = NULL;
    TRY(execproc_start(s->words.items, &first, err));
    give_back(s, first);
    *session = HAND_OVER(s);
out:
    close_session(s);
    return rc;
}

static int validate(void *params, struct err *err)
{
    const struct params *p = params;
    OWN(str_list_free) struct str_list words = {0};
    int rc = words_split(p->cmd, &words, err);
    return rc ? err_prefix(err, "cmd") : 0;
}

/* ---- messages -------------------------------------------------------------------------------- */

#define LINE_MAX_BYTES 65536
#define ALIGN 64

/* A bitmap of units: row g begins at byte g * width, lowest bit first. ctx of the given mask. */
struct exec_bits {
    uint8_t *bits; /* owned */
    int64_t width, units;
};

/* ---- request -------------------------------------------------------------------------------- */

static int64_t aligned(int64_t n)
{
    return ceil_div(n, ALIGN) * ALIGN;
}

/* Offsets of q, k, v in the shared memory, and its size. */
static void place(const struct attn_in *x, int64_t at[4])
{
    at[0] = 0;
    at[1] = aligned(x->nq * x->d * 4);
    at[2] = at[1] + aligned(x->nk * x->d * 4);
    at[3] = at[2] + aligned(x->nk * x->dv * 4);
}

static void put_array(struct jw *w, const char *name, int64_t at, int64_t rows, int64_t cols)
{
    jw_key(w, name);
    jw_arr(w);
    jw_int(w, at);
    jw_arr(w);
    jw_int(w, rows);
    jw_int(w, cols);
    jw_arr_end(w);
    jw_arr_end(w);
}

static void put_grid(struct jw *w, const struct geometry *g)
{
    jw_key(w, "grid");
    if (!g->t) {
        jw_null(w);
    } else {
        jw_arr(w);
        jw_int(w, g->t);
        jw_int(w, g->h);
        jw_int(w, g->w);
        jw_arr_end(w);
    }
    jw_kint(w, "text", g->text);
    jw_kstr(w, "text_place", g->text == 0 ? "none" : g->text_place == 1 ? "front" : "back");
}

/* What else bounds or changes the scores; null where the head has none. */
static void put_score(struct jw *w, const struct attn_in *x)
{
    const struct {
        const char *name;
        int64_t value, set;
    } parts[] = {{"window_left", (int64_t)x->reach.back - 1, x->reach.back},
                 {"window_right", (int64_t)x->reach.ahead - 1, x->reach.ahead},
                 {"chunk", x->reach.chunk, x->reach.chunk},
                 {"prefix", x->reach.prefix, x->reach.prefix}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        jw_key(w, parts[i].name);
        if (parts[i].set)
            jw_int(w, parts[i].value);
        else
            jw_null(w);
    }
    jw_key(w, "softcap");
    if (x->mods.softcap > 0)
        jw_num(w, x->mods.softcap);
    else
        jw_null(w);
}

/* Runs of sampled query rows, [position, rows]; null where q has all rows. */
static void put_rows(struct jw *w, const struct row_sample *s)
{
    jw_key(w, "rows");
    if (!s) {
        jw_null(w);
        return;
    }
    jw_arr(w);
    for (int64_t g = 0; g < row_sample_groups(s); g++) {
        struct row_span span = row_sample_span(s, g);
        jw_arr(w);
        jw_int(w, span.pos);
        jw_int(w, span.rows);
        jw_arr_end(w);
    }
    jw_arr_end(w);
}

static void put_request(struct jw *w, int64_t cell, const struct head_in *in, uint64_t seed,
                        const char *params, const int64_t at[4])
{
    const struct attn_in *x = &in->x;
    jw_obj(w);
    jw_kint(w, "lacuna", 1);
    jw_kint(w, "cell", cell);
    jw_kint(w, "nq", x->nq);
    jw_kint(w, "nk", x->nk);
    jw_kint(w, "d", x->d);
    jw_kint(w, "dv", x->dv);
    jw_knum(w, "scale", x->scale);
    jw_kbool(w, "causal", x->causal);
    jw_kint(w, "layer", in->layer);
    jw_kint(w, "head", in->head);
    jw_kint(w, "kv_head", in->kv_head);
    jw_kint(w, "step", in->step);
    jw_kint(w, "n_steps", in->n_steps);
    jw_kstr(w, "branch", in->branch);
    put_grid(w, &in->geom);
    put_score(w, x);
    put_rows(w, in->rows);
    jw_kint(w, "seed", (int64_t)seed);
    jw_kstr(w, "params", params);
    jw_key(w, "arrays");
    jw_obj(w);
    put_array(w, "q", at[0], x->nq, x->d);
    put_array(w, "k", at[1], x->nk, x->d);
    put_array(w, "v", at[2], x->nk, x->dv);
    jw_obj_end(w);
    jw_obj_end(w);
}

/* Write the head's arrays into the shared memory and its request to the program. */
static int exec_ask(struct execproc *p, int64_t cell, const struct head_in *in, uint64_t seed,
                    const char *params, struct err *err)
{
    const struct attn_in *x = &in->x;
    int64_t at[4];
    OWN(buf_free) struct buf line = {0};
    struct jw w;
    void *memory = NULL;

    place(x, at);
    PASS_ON(execproc_memory(p, at[3], &memory, err));
    memcpy((char *)memory + at[0], x->q, (size_t)(x->nq * x->d) * sizeof *x->q);
    memcpy((char *)memory + at[1], x->k, (size_t)(x->nk * x->d) * sizeof *x->k);
    memcpy((char *)memory + at[2], x->v, (size_t)(x->nk * x->dv) * sizeof *x->v);
    jw_init(&w, &line, 0);
    put_request(&w, cell, in, seed, params, at);
    buf_puts(&line, "\n");
    PASS_ON(buf_check(&line, "request to a program", err));
    return execproc_write(p, line.data, line.len, err);
}

/* ---- answer --------------------------------------------------------------------------------- */

/* bq and bk of the answer; 1 where they are absent and `optional`. */
static int get_unit(const json_t *o, bool optional, int64_t *bq, int64_t *bk, struct err *err)
{
    *bq = *bk = 1;
    PASS_ON(optional ? jget_int_opt(o, "bq", "answer", bq, err)
                     : jget_int(o, "bq", "answer", bq, err));
    PASS_ON(optional ? jget_int_opt(o, "bk", "answer", bk, err)
                     : jget_int(o, "bk", "answer", bk, err));
    if (*bq < 1 || *bk < 1 || *bq > 1 << 20 || *bk > 1 << 20)
        return err_set(err, ERR_RUN, "the answer has units of %lld x %lld, expected 1..1048576",
                       (long long)*bq, (long long)*bk);
    return 0;
}

static int read_lists(struct execproc *p, const json_t *o, const struct head_in *in,
                      struct given *g, struct err *err)
{
    int64_t bq, bk, n, most = 0;
    OWN(free_at) int64_t *ptr = NULL;
    OWN(free_at) int32_t *col = NULL;
    int rc = 0;

    PASS_ON(get_unit(o, false, &bq, &bk, err));
    PASS_ON(jget_int(o, "nnz", "answer", &n, err));
    PASS_ON(given_init(g, &in->x, bq, bk, err));
    int64_t groups = g->whole.ngroups, units = ceil_div(in->x.nk, bk);
    if (!mul_ok(groups, units, &most) || n < 0 || n > most)
        return err_set(err, ERR_RUN,
                       "the answer lists %lld units, expected 0..%lld (%lld groups of %lld)",
                       (long long)n, (long long)most, (long long)groups, (long long)units);
    PASS_ON(mem_alloc(&ptr, groups + 1, sizeof *ptr, "row pointers", err));
    PASS_ON(mem_alloc(&col, n, sizeof *col, "columns", err));
    PASS_ON(execproc_read(p, ptr, (groups + 1) * (int64_t)sizeof *ptr, err));
    PASS_ON(execproc_read(p, col, n * (int64_t)sizeof *col, err));
    rc = given_lists(g, ptr, col, n, err);
    ptr = NULL;
    col = NULL;
    return rc;
}

static int bit_row(void *ctx, int64_t g, uint8_t *keep, struct err *err)
{
    const struct exec_bits *b = ctx;
    const uint8_t *row = b->bits + g * b->width;
    for (int64_t c = 0; c < b->units; c++)
        keep[c] = row[c / 8] >> (c % 8) & 1;
    return 0;
}

static int read_bits(struct execproc *p, const json_t *o, const struct head_in *in, struct given *g,
                     struct exec_bits *b, struct err *err)
{
    int64_t bq, bk;

    PASS_ON(get_unit(o, true, &bq, &bk, err));
    PASS_ON(given_init(g, &in->x, bq, bk, err));
    int64_t groups = g->whole.ngroups;
    b->units = ceil_div(in->x.nk, bk);
    b->width = ceil_div(b->units, 8);
    PASS_ON(mem_alloc(&b->bits, groups * b->width, 1, "bitmap", err));
    PASS_ON(execproc_read(p, b->bits, groups * b->width, err));
    for (int64_t r = 0; b->units % 8 && r < groups; r++)
        if (b->bits[(r + 1) * b->width - 1] >> (b->units % 8))
            return err_set(err, ERR_RUN,
                           "row %lld of the bitmap has bits behind its last unit, %lld",
                           (long long)r, (long long)b->units - 1);
    g->row = bit_row;
    g->ctx = b;
    return 0;
}

static int take_answer(struct execproc *p, const json_t *o, int64_t cell, const struct head_in *in,
                       struct method_ctx *ctx, struct given *g, struct exec_bits *bits,
                       bool *orderly, struct err *err)
{
    const char *skip = NULL, *error = NULL, *form = NULL;
    int64_t of = cell;

    PASS_ON(jget_int_opt(o, "cell", "answer", &of, err));
    PASS_ON(jget_str_opt(o, "skip", "answer", &skip, err));
    PASS_ON(jget_str_opt(o, "error", "answer", &error, err));
    *orderly = error && of == cell;
    if (of != cell)
        return err_set(err, ERR_RUN, "the answer is of cell %lld, asked was %lld", (long long)of,
                       (long long)cell);
    if (error)
        return err_set(err, ERR_RUN, "the program says: %s", error);
    if (skip)
        return method_skip(ctx, "%s", skip[0] ? skip : "the program gives no reason");
    PASS_ON(jget_str(o, "form", "answer", &form, err));
    if (strcmp(form, "lists") == 0)
        return read_lists(p, o, in, g, err);
    if (strcmp(form, "bits") == 0)
        return read_bits(p, o, in, g, bits, err);
    return err_set(err, ERR_RUN, "the answer has form '%s', expected lists or bits", form);
}

/* Read and check the answer into *g (release with given_free, also after a failure) and *bits. 0,
 * or METHOD_SKIP with the program's reason; an {"error": ...} is ERR_RUN with *orderly = true. */
static int exec_answer(struct execproc *p, int64_t cell, const struct head_in *in,
                       struct method_ctx *ctx, struct given *g, struct exec_bits *bits,
                       bool *orderly, struct err *err)
{
    OWN(free_at) char *line = NULL;
    OWN(json_decrefp) json_t *o = NULL;

    *orderly = false;
    PASS_ON(mem_alloc(&line, LINE_MAX_BYTES, 1, "answer of a program", err));
    PASS_ON(execproc_line(p, line, LINE_MAX_BYTES, err));
    PASS_ON(json_read_text(line, strlen(line), "first line of the answer", &o, err));
    if (!json_is_object(o))
        return err_set(err, ERR_RUN, "the first line of the answer is not a JSON object: %.80s",
                       line);
    return take_answer(p, o, cell, in, ctx, g, bits, orderly, err);
}

/* ---- a head --------------------------------------------------------------------------------- */

struct state {
    struct exec_session *own; /* opened here, without a session */
    struct given given;
    struct exec_bits bits;
    double ns;
};

static void release(void *state)
{
    struct state *s = state;
    given_free(&s->given);
    free(s->bits.bits);
    close_session(s->own);
}

/* Three failures in a row become an error that ends the replay. */
static int count_failure(struct exec_session *s, int rc, struct err *err)
{
    int n = __atomic_add_fetch(&s->failures, 1, __ATOMIC_RELAXED);
    if (n < FAILURES_MAX || rc == ERR_INTERRUPTED || !err)
        return rc;
    err->code = ERR_IO;
    return err_prefix(err, "the program failed %d times in a row", n);
}

/* Answers are input, but what is wrong with them is a failure of the run. */
static int ask(struct exec_session *s, const struct params *p, struct method_ctx *ctx,
               const struct head_in *in, struct state *state, struct err *err)
{
    struct execproc *proc = NULL;
    char name[96];
    int64_t cell;
    bool orderly = false;
    int rc = 0;

    snprintf(name, sizeof name, "step %d layer %d head %d", in->step, in->layer, in->head);
    TRY(take(s, &proc, &cell, err));
    TRY(execproc_begin(proc, p->timeout, name, err));
    TRY(exec_ask(proc, cell, in, ctx->seed, p->params, err));
    rc = exec_answer(proc, cell, in, ctx, &state->given, &state->bits, &orderly, err);
out:
    if (rc < 0 && !orderly) {
        execproc_kill(&proc);
        return count_failure(s, rc, err);
    }
    __atomic_store_n(&s->failures, 0, __ATOMIC_RELAXED);
    give_back(s, proc);
    return rc;
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    struct state *s = state;
    void *session = ctx->session;

    if (in->rows && !((const struct params *)params)->rows)
        return method_skip(ctx, "the trace holds a sample of the query rows: rows=1 gives it to a "
                                "program that knows of samples");
    if (!session) {
        PASS_ON(open_session(params, &session, err));
        s->own = session;
    }
    double t = clock_ns();
    PASS_ON(ask(session, params, ctx, in, s, err));
    s->ns = clock_ns() - t;
    ctx->unit_rows = s->given.whole.bq;
    return 0;
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    return given_select(&((struct state *)state)->given, row0, row1, out, err);
}

static int report(void *state, struct record *r, struct err *err)
{
    struct state *s = state;
    PASS_ON(record_metric(r, "pairs_dropped", (double)s->given.dropped, err));
    return record_metric(r, "host_exec_ns", s->ns, err);
}

const struct method method_exec = {
    .name = "exec",
    .summary = "the mask that a program of yours selects, in any language",
    .paper = "none: masks from outside",
    .flags = METHOD_ROWS | METHOD_CAUSAL | METHOD_BIDIRECTIONAL | METHOD_RANDOM | METHOD_ANY_SCORE |
             METHOD_PREFIX,
    .params = {.table = options,
               .size = sizeof(struct params),
               .validate = validate,
               .may_be_empty = method_always},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .release = release,
    .metrics = metrics,
    .session = {.open = open_session, .close = close_session},
};
