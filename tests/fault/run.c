/*
 * run.c - runs of the program under the shim, and the directories in which they happen.
 */
#include "tests/fault/fault.h"

#include "core/fileio.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* After so many seconds a run is taken for a hang: of processor time, and of waiting. */
#define WORK_S 60
#define WAIT_S 3600

struct driver driver;

void give_up(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fputs("fault: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputs("\n", stderr);
    va_end(ap);
    exit(2);
}

uint64_t random_below(uint64_t *state, uint64_t n)
{
    /* splitmix64 */
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return n ? (z ^ z >> 31) % n : 0;
}

/* ---- directories ----------------------------------------------------------------------------- */

const char *trial_path(const char *dir, const char *name)
{
    static char paths[8][1024];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s%s%s", driver.scratch, dir, name[0] ? "/" : "", name);
    return path;
}

void remove_tree(const char *path)
{
    struct dirent **names = NULL;
    struct stat st;
    if (lstat(path, &st) != 0)
        return;
    int n = S_ISDIR(st.st_mode) ? scandir(path, &names, NULL, NULL) : 0;
    for (int i = 0; i < n; i++) {
        char below[2048];
        snprintf(below, sizeof below, "%s/%s", path, names[i]->d_name);
        if (strcmp(names[i]->d_name, ".") != 0 && strcmp(names[i]->d_name, "..") != 0)
            remove_tree(below);
        free(names[i]);
    }
    free(names);
    if (remove(path) != 0)
        give_up("%s: cannot remove", path);
}

static void copy_file(const char *from, const char *to)
{
    char data[65536];
    ssize_t n;
    int in = open(from, O_RDONLY | O_CLOEXEC);
    int out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (in < 0 || out < 0)
        give_up("%s to %s: cannot copy: %s", from, to, strerror(errno));
    while ((n = read(in, data, sizeof data)) > 0)
        if (write(out, data, (size_t)n) != n)
            give_up("%s: cannot write", to);
    close(in);
    close(out);
}

void copy_tree(const char *from, const char *to)
{
    struct dirent **names = NULL;
    struct stat st;
    if (stat(from, &st) != 0)
        give_up("%s: not there", from);
    if (!S_ISDIR(st.st_mode)) {
        copy_file(from, to);
        return;
    }
    if (mkdir(to, 0777) != 0)
        give_up("%s: cannot create", to);
    int n = scandir(from, &names, NULL, NULL);
    for (int i = 0; i < n; i++) {
        char source[2048], target[2048];
        snprintf(source, sizeof source, "%s/%s", from, names[i]->d_name);
        snprintf(target, sizeof target, "%s/%s", to, names[i]->d_name);
        if (strcmp(names[i]->d_name, ".") != 0 && strcmp(names[i]->d_name, "..") != 0)
            copy_tree(source, target);
        free(names[i]);
    }
    free(names);
}

void make_empty(const char *dir)
{
    remove_tree(trial_path(dir, ""));
    if (mkdir(trial_path(dir, ""), 0777) != 0)
        give_up("%s: cannot create", trial_path(dir, ""));
}

void begin_trial(const struct step *s, const char *dir)
{
    make_empty(dir);
    for (int i = 0; i < STEP_FILES && s->in[i]; i++) {
        char from[64];
        const char *as = strchr(s->in[i], '=');
        snprintf(from, sizeof from, "%.*s", as ? (int)(as - s->in[i]) : 63, s->in[i]);
        copy_tree(trial_path("chain", from), trial_path(dir, as ? as + 1 : from));
    }
}

void read_whole(const char *path, struct buf *b)
{
    struct err err = {0};
    if (buf_read_file(b, path, (size_t)1 << 28, &err) != 0)
        give_up("%s", err.msg);
}

void write_whole(const char *path, const struct buf *b)
{
    FILE *f = fopen(path, "we");
    if (!f || fwrite(buf_str(b), 1, b->len, f) != b->len || fclose(f) != 0)
        give_up("%s: cannot write", path);
}

/* ---- processes ------------------------------------------------------------------------------- */

static const char *const how_names[] = {"none",
#define X(id, name, counter) name,
                                        FAULTS(X)
#undef X
};

const char *how_name(enum fault_how how)
{
    return how_names[how];
}

static void set_environment(struct fault f, const char *log)
{
    char at[32];
    snprintf(at, sizeof at, "%ld", f.at);
    setenv("LD_PRELOAD", driver.shim, 1);
    setenv(FAULT_EXE, driver.program, 1);
    if (driver.scope)
        setenv(FAULT_SCOPE, driver.scope, 1);
    if (log)
        setenv(FAULT_LOG, log, 1);
    if (f.how) {
        setenv(FAULT_HOW, how_name(f.how), 1);
        setenv(FAULT_AT, at, 1);
    }
}

static void split(char *words, char **argv)
{
    static char model[1024], tiny[1024];
    int n = 0;
    char *save = NULL;
    snprintf(model, sizeof model, "%s/datasets/models/code-lm", driver.root);
    snprintf(tiny, sizeof tiny, "%s", trial_path("chain", "tiny"));
    argv[n++] = (char *)(uintptr_t) "lacuna";
    for (char *w = strtok_r(words, " ", &save); w && n < STEP_WORDS - 1;
         w = strtok_r(NULL, " ", &save))
        argv[n++] = strcmp(w, "MODEL") == 0 ? model : strcmp(w, "TINY") == 0 ? tiny : w;
    argv[n] = NULL;
}

static _Noreturn void become(const char *words, const char *dir, struct fault f, const char *log)
{
    char copy[512], *argv[STEP_WORDS];
    int out = open(trial_path("", "out"), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    int err = open(trial_path("", "err"), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    int in = open("/dev/null", O_RDONLY);
    snprintf(copy, sizeof copy, "%s", words);
    split(copy, argv);
    if (out < 0 || err < 0 || in < 0 || chdir(trial_path(dir, "")) != 0)
        _exit(98);
    dup2(in, 0);
    dup2(out, 1);
    dup2(err, 2);
    for (int fd = 3; fd < 64; fd++)
        close(fd);
    set_environment(f, log);
    setrlimit(RLIMIT_CPU, &(struct rlimit){WORK_S, WORK_S + 1});
    alarm(WAIT_S);
    execv(driver.program, argv);
    _exit(98);
}

static void read_text(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, size - 1) : -1;
    text[n > 0 ? n : 0] = '\0';
    if (fd >= 0)
        close(fd);
}

void run_words(const char *words, const char *dir, struct fault f, const char *log,
               struct outcome *o)
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0)
        become(words, dir, f, log);
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        give_up("cannot run %s", driver.program);
    o->code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    if (o->code == 98 || o->code == 99)
        give_up("%s: the run could not be set up", words);
    read_text(trial_path("", "out"), o->out, sizeof o->out);
    read_text(trial_path("", "err"), o->err, sizeof o->err);
}
