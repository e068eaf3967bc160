/*
 * execproc.c - see execproc.h.
 */
#include "sim/methods/exec/execproc.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/utf8.h"
#include "core/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAUSE_MS 100   /* between looks at the interrupt flag */
#define END_SECONDS 2  /* that a program has to end by itself */
#define LINE_BYTES 500 /* of standard error in the log */

extern char **environ;

struct execproc {
    pid_t pid;
    int in, out, err; /* our ends of its standard input, output and error; -1 = closed */
    int memory;
    void *map;
    int64_t mapped;
    double deadline; /* clock_s */
    char cell[96];
    char line[LINE_BYTES + 1], last[LINE_BYTES + 1]; /* of standard error: unfinished, last */
    size_t line_len;
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

static int spawn(struct execproc *p, char *const *argv, const int its[3], struct err *err)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    sigset_t normal;
    int code;

    sigemptyset(&normal);
    sigaddset(&normal, SIGPIPE);
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&how);
    for (int i = 0; i < 3; i++)
        posix_spawn_file_actions_adddup2(&files, its[i], i);
    posix_spawn_file_actions_adddup2(&files, p->memory, 3);
    posix_spawn_file_actions_addclosefrom_np(&files, 4);
    posix_spawnattr_setsigdefault(&how, &normal);
    posix_spawnattr_setpgroup(&how, 0);
    posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    code = posix_spawnp(&p->pid, argv[0], &files, &how, argv, environ);
    posix_spawnattr_destroy(&how);
    posix_spawn_file_actions_destroy(&files);
    if (code == 0)
        return 0;
    p->pid = 0;
    errno = code;
    return err_sys(err, code == ENOENT || code == EACCES ? ERR_USAGE : ERR_MACHINE,
                   "program '%s' does not start", argv[0]);
}

int execproc_start(char *const *argv, struct execproc **out, struct err *err)
{
    struct execproc *p = NULL;
    int its[3] = {-1, -1, -1}, rc = 0;

    TRY(mem_zalloc(&p, 1, sizeof *p, "program", err));
    p->in = p->out = p->err = -1;
    p->memory = memfd_create("lacuna-exec", MFD_CLOEXEC);
    if (p->memory < 0) {
        rc = err_sys(err, ERR_MACHINE, "memory shared with a program");
        goto out;
    }
    TRY(make_pipe(&p->in, &its[0], true, err));
    TRY(make_pipe(&p->out, &its[1], false, err));
    TRY(make_pipe(&p->err, &its[2], false, err));
    TRY(spawn(p, argv, its, err));
    *out = p;
    p = NULL;
out:
    for (int i = 0; i < 3; i++)
        close_end(&its[i]);
    execproc_kill(&p);
    return rc;
}

/* "ended with status 3", "was killed by signal 9". */
static void describe_end(int status, char text[64])
{
    if (WIFSIGNALED(status))
        snprintf(text, 64, "was ended by signal %d", WTERMSIG(status));
    else
        snprintf(text, 64, "ended with status %d", WEXITSTATUS(status));
}

/* Wait for the end, at most so long; true when it came. */
static bool wait_end(struct execproc *p, double seconds, int *status)
{
    double until = clock_s() + seconds;
    for (;;) {
        pid_t done = waitpid(p->pid, status, WNOHANG);
        if (done == p->pid)
            p->pid = 0;
        if (p->pid == 0 || done < 0)
            return p->pid == 0;
        if (clock_s() >= until)
            return false;
        nanosleep(&(struct timespec){0, 5000000}, NULL);
    }
}

void execproc_kill(struct execproc **pp)
{
    struct execproc *p = *pp;
    int status;
    if (!p)
        return;
    if (p->pid) {
        kill(-p->pid, SIGKILL);
        waitpid(p->pid, &status, 0);
    }
    close_end(&p->in);
    close_end(&p->out);
    close_end(&p->err);
    close_end(&p->memory);
    if (p->map)
        munmap(p->map, (size_t)p->mapped);
    free(p);
    *pp = NULL;
}

void execproc_end(struct execproc **pp)
{
    struct execproc *p = *pp;
    int status;
    if (!p)
        return;
    close_end(&p->in);
    wait_end(p, END_SECONDS, &status);
    execproc_kill(pp);
}

int execproc_memory(struct execproc *p, int64_t n, void **out, struct err *err)
{
    if (n > p->mapped) {
        if (p->map)
            munmap(p->map, (size_t)p->mapped);
        p->map = NULL;
        p->mapped = 0;
        if (ftruncate(p->memory, n) != 0)
            return err_sys(err, ERR_MACHINE, "%lld bytes shared with a program", (long long)n);
        void *at = mmap(NULL, (size_t)n, PROT_READ | PROT_WRITE, MAP_SHARED, p->memory, 0);
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
    if (p->line[0]) {
        memcpy(p->last, p->line, sizeof p->last);
        log_info("exec: %s: %s", p->cell, p->line);
    }
}

/* Take what is there of its standard error. */
static void drain_err(struct execproc *p)
{
    char b[1024];
    ssize_t n;
    while (p->err >= 0 && (n = read(p->err, b, sizeof b)) != -1) {
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

    if (wait_end(p, END_SECONDS, &status))
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

int execproc_begin(struct execproc *p, double seconds, const char *cell, struct err *err)
{
    char b;
    snprintf(p->cell, sizeof p->cell, "%s", cell);
    p->last[0] = '\0';
    p->deadline = clock_s() + seconds;
    if (p->ahead_at < p->ahead_len || read(p->out, &b, 1) == 1)
        return err_set(err, ERR_RUN, "the program wrote more than its last answer");
    return 0;
}

int execproc_write(struct execproc *p, const void *data, size_t n, struct err *err)
{
    const char *at = data;
    int rc = 0;
    while (n > 0) {
        ssize_t done = write(p->in, at, n);
        if (done >= 0) {
            at += done;
            n -= (size_t)done;
        } else if (errno == EPIPE) {
            return fail_ended(p, "before it read the request", err);
        } else if (errno != EAGAIN && errno != EINTR) {
            return err_sys(err, ERR_RUN, "writing to the program");
        } else if ((rc = wait_ready(p, p->in, POLLOUT, "not reading", err)) != 0) {
            return rc;
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
            *got = (size_t)n;
            return 0;
        }
        if (n == 0)
            return fail_ended(p, "before its answer was complete", err);
        if (errno != EAGAIN && errno != EINTR)
            return err_sys(err, ERR_RUN, "reading from the program");
        int rc = wait_ready(p, p->out, POLLIN, "at work", err);
        if (rc)
            return rc;
    }
}

int execproc_line(struct execproc *p, char *text, size_t cap, struct err *err)
{
    size_t n = 0;
    for (;;) {
        if (p->ahead_at == p->ahead_len) {
            p->ahead_at = p->ahead_len = 0;
            int rc = read_some(p, p->ahead, sizeof p->ahead, &p->ahead_len, err);
            if (rc)
                return rc;
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

int execproc_read(struct execproc *p, void *dst, int64_t n, struct err *err)
{
    char *to = dst;
    while (n > 0) {
        size_t got = p->ahead_len - p->ahead_at, most = n < 1 << 30 ? (size_t)n : 1 << 30;
        if (got > 0) {
            got = got < most ? got : most;
            memcpy(to, p->ahead + p->ahead_at, got);
            p->ahead_at += got;
        } else {
            int rc = read_some(p, to, most, &got, err);
            if (rc)
                return rc;
        }
        to += got;
        n -= (int64_t)got;
    }
    return 0;
}
