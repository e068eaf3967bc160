/*
 * evalcmd.c - see evalcmd.h.
 */
#include "tests/harness/evalcmd.h"

#include "core/fileio.h"
#include "core/npy.h"
#include "tests/harness/suite.h"

#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct err err;

static const char *program(void)
{
    const char *p = getenv("LACUNA");
    return p ? p : "build/lacuna";
}

const char *evalcmd_own_path(const char *name)
{
    static char paths[32][600];
    char full[600];
    int i = 0;
    snprintf(full, sizeof full, "%s/%s-%d-%d", test_tmpdir(), name, (int)getpid(), suite_row());
    while (i < 31 && paths[i][0] && strcmp(paths[i], full) != 0)
        i++;
    snprintf(paths[i], sizeof paths[i], "%s", full);
    return paths[i];
}

pid_t evalcmd_exec(const char *const argv[])
{
    const char *log = evalcmd_own_path("log");
    pid_t pid = fork();
    if (pid == 0) {
        int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0666);
        dup2(fd, 1);
        dup2(fd, 2);
        execv(program(), (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    ck_assert_int_gt(pid, 0);
    return pid;
}

pid_t evalcmd_start(const char *line)
{
    char words[4096], *rest = words;
    const char *argv[80] = {"lacuna"};
    int n = 1;
    snprintf(words, sizeof words, "%s", line);
    for (char *w; (w = strsep(&rest, " ")) != NULL;)
        if (*w)
            argv[n++] = w;
    argv[n] = NULL;
    return evalcmd_exec(argv);
}

int evalcmd_finish(pid_t pid)
{
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void evalcmd_run_ok(const char *fmt, ...)
{
    OWN(buf_free) struct buf b = {0};
    char line[4096];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    int code = evalcmd_finish(evalcmd_start(line));
    assert_ok(buf_read_file(&b, evalcmd_own_path("log"), 1 << 20, &err), &err);
    ck_assert_msg(code == 0, "%s -> %d %s", line, code, buf_str(&b));
}

struct evalcmd_records evalcmd_load(const char *dir)
{
    struct evalcmd_records x = {0};
    assert_ok(records_load(dir, &x.r, &x.n, &err), &err);
    return x;
}

const struct record *evalcmd_find(const struct evalcmd_records *x, const char *method,
                                  const char *params)
{
    for (int64_t i = 0; i < x->n; i++)
        if (strcmp(x->r[i].method, method) == 0 && strcmp(x->r[i].params, params) == 0)
            return x->r + i;
    ck_abort_msg("no record of %s:%s", method, params);
    return NULL;
}

float *evalcmd_read_nll(const char *path, int64_t *rows, int64_t *n)
{
    OWN(npy_close) struct npy *f = NULL;
    assert_ok(npy_open(path, false, &f, &err), &err);
    ck_assert_int_eq(f->ndim, 2);
    float *x = malloc((size_t)f->count * sizeof *x);
    ck_assert_ptr_nonnull(x);
    assert_ok(npy_read_f32(f, x, &err), &err);
    *rows = f->shape[0];
    *n = f->shape[1];
    return x;
}

int64_t evalcmd_count_lines(const char *dir, const char *file)
{
    OWN(buf_free) struct buf b = {0};
    char path[700];
    int64_t n = 0;
    snprintf(path, sizeof path, "%s/%s", dir, file);
    if (access(path, F_OK))
        return 0;
    assert_ok(buf_read_file(&b, path, 1 << 24, &err), &err);
    for (size_t i = 0; i < b.len; i++)
        n += b.data[i] == '\n';
    return n;
}
