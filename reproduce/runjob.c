/*
 * runjob.c - running a job so that a kill at any moment loses nothing: work happens in ID.part, and
 * ID appears by one rename. Commands that can continue (replay, eval, calibrate) do so in the same
 * .part; of the others a finished output is kept and an unfinished one made again.
 */
#include "reproduce/runjob.h"

#include "core/clock.h"
#include "core/environment.h"
#include "core/fileio.h"
#include "core/log.h"
#include "core/pool.h"
#include "core/sealed.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

void command_text(const struct str_list *argv, const char *out, struct buf *b)
{
    buf_puts(b, "lacuna");
    for (int64_t i = 0; i < argv->n; i++) {
        const char *w = argv->items[i];
        bool plain = *w && strspn(w, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                     "0123456789_./:=,+@%{}-") == strlen(w);
        buf_puts(b, plain ? " " : " '");
        for (; *w; w++) {
            if (strncmp(w, "{}", 2) == 0) {
                buf_puts(b, out);
                w++;
            } else {
                buf_puts(b, *w == '\'' ? "'\\''" : (char[]){*w, '\0'});
            }
        }
        buf_puts(b, plain ? "" : "'");
    }
}

/* ---- the child ------------------------------------------------------------------------------- */

/* A setting of the user's for another command must not change what a recipe says. */
static bool is_setting(const char *variable)
{
    return strncmp(variable, "LACUNA_", 7) == 0 && strncmp(variable, "LACUNA_DATA=", 12) != 0;
}

/* Wait for the child; on an interrupt, pass it on once: as another signal than that of a terminal,
 * which reaches the child too, and of which the second one kills. */
static int wait_for(pid_t pid)
{
    const struct timespec pause = {0, 10 * 1000 * 1000};
    bool told = false;
    int status = 0;
    for (;;) {
        pid_t got = waitpid(pid, &status, WNOHANG);
        if (got == pid)
            return status;
        if (got < 0 && errno != EINTR)
            return -1;
        if (interrupted() && !told) {
            kill(pid, SIGTERM);
            told = true;
        }
        nanosleep(&pause, NULL);
    }
}

static int spawn(char **argv, int log, pid_t *pid)
{
    posix_spawn_file_actions_t fa;
    char **env = environment_without(is_setting);
    if (!env)
        return ENOMEM;
    int e = posix_spawn_file_actions_init(&fa);
    if (e) {
        free(env);
        return e;
    }
    e = posix_spawn_file_actions_addopen(&fa, 0, "/dev/null", O_RDONLY, 0);
    if (!e)
        e = posix_spawn_file_actions_adddup2(&fa, log, 1);
    if (!e)
        e = posix_spawn_file_actions_adddup2(&fa, log, 2);
    if (!e)
        e = posix_spawn(pid, "/proc/self/exe", &fa, NULL, argv, env);
    posix_spawn_file_actions_destroy(&fa);
    free(env);
    return e;
}

/* Words of a command with the folder in place of "{}" and the options of every child behind. */
static int child_words(const struct str_list *argv, const char *part, int threads,
                       struct str_list *out, struct err *err)
{
    char jobs[16];
    str_list_add(out, "lacuna");
    for (int64_t i = 0; i < argv->n; i++) {
        const char *w = argv->items[i], *at = strstr(w, "{}");
        struct buf b = {0};
        buf_put(&b, w, at ? (size_t)(at - w) : strlen(w));
        if (at)
            buf_printf(&b, "%s%s", part, at + 2);
        str_list_add(out, buf_str(&b));
        buf_free(&b);
    }
    if (strcmp(argv->items[0], "trace") != 0) {
        snprintf(jobs, sizeof jobs, "%d", threads);
        str_list_add(out, "--jobs");
        str_list_add(out, jobs);
        str_list_add(out, "--progress");
        str_list_add(out, "none");
    }
    return out->failed ? err_set(err, ERR_NOMEM, "command: out of memory") : 0;
}

static int run_child(const struct str_list *argv, const char *part, int threads, int log,
                     int *status, struct err *err)
{
    struct str_list words = {0};
    char **list = NULL;
    pid_t pid;
    int rc = 0, e;

    TRY(child_words(argv, part, threads, &words, err));
    list = calloc((size_t)words.n + 1, sizeof *list);
    if (!list)
        FAIL(err, ERR_NOMEM, "command: out of memory");
    memcpy(list, words.items, (size_t)words.n * sizeof *list);
    if ((e = spawn(list, log, &pid)) != 0) {
        errno = e;
        rc = err_sys(err, ERR_RUN, "starting lacuna %s", argv->items[0]);
        goto out;
    }
    *status = wait_for(pid);
    if (interrupted())
        FAIL(err, ERR_INTERRUPTED, "interrupted; the same command continues");
out:
    free(list);
    str_list_free(&words);
    return rc;
}

/* The last error line of the log, for the pages. */
static void last_error(const char *log, char why[300])
{
    struct buf b = {0};
    struct err ignored = {0};
    snprintf(why, 300, "the command ended without a message");
    if (buf_read_file(&b, log, (size_t)1 << 26, &ignored) == 0) {
        const char *text = buf_str(&b), *found = NULL;
        for (const char *p = text; (p = strstr(p, "error: ")); p++)
            found = p + 7;
        if (found)
            snprintf(why, 300, "%.*s", (int)strcspn(found, "\n"), found);
    }
    buf_free(&b);
}

/* ---- the folder -------------------------------------------------------------------------------
 */

static int write_job(const struct job *j, const char *part, double seconds, struct err *err)
{
    struct buf b = {0}, path = {0}, line = {0};
    struct jw w;
    char output[40];
    int rc = 0;

    TRY(job_output_id(j->kind, part, output, err));
    jw_init(&w, &b, 1);
    jw_obj(&w);
    jw_kstr(&w, "do", job_do_names[j->kind]);
    jw_kstr(&w, "key", j->key);
    jw_kstr(&w, "output", output);
    jw_knum(&w, "seconds", seconds);
    jw_key(&w, "steps");
    jw_arr(&w);
    for (int64_t i = 0; i < j->steps.n; i++)
        jw_str(&w, j->steps.items[i]);
    jw_arr_end(&w);
    jw_key(&w, "units");
    jw_arr(&w);
    for (int64_t i = 0; i < j->units.n; i++)
        jw_str(&w, j->units.items[i]);
    jw_arr_end(&w);
    jw_key(&w, "commands");
    jw_arr(&w);
    for (int i = 0; i < j->n_argv; i++) {
        buf_reset(&line);
        command_text(&j->argv[i], j->id, &line);
        jw_str(&w, buf_str(&line));
    }
    jw_arr_end(&w);
    jw_obj_end(&w);
    seal_put(&b, 0);
    buf_puts(&b, "\n");
    buf_printf(&path, "%s/job.json", part);
    TRY(buf_check(&b, "job.json", err));
    TRY(buf_check(&path, "path", err));
    TRY(file_write_atomic(buf_str(&path), b.data, b.len, err));
out:
    buf_free(&b);
    buf_free(&path);
    buf_free(&line);
    return rc;
}

/* An output that an earlier run finished is used; what can continue is started again. */
static bool is_made(const struct job *j, int command, const char *part)
{
    char path[64];
    bool once = j->kind == DO_PROMPT || j->kind == DO_CAPTURE || j->kind == DO_CALIBRATE;
    snprintf(path, sizeof path, "%s/%s", part, job_output_name(j->kind));
    return once && command == 0 && access(path, F_OK) == 0;
}

static int run_commands(const struct job *j, const char *part, int threads, char why[300],
                        struct err *err)
{
    char log_path[64];
    int log = -1, status = 0, rc = 0;

    snprintf(log_path, sizeof log_path, "%s/log.txt", part);
    log = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (log < 0)
        return err_sys(err, ERR_IO, "%s", log_path);
    for (int i = 0; i < j->n_argv; i++) {
        if (is_made(j, i, part))
            continue;
        TRY(run_child(&j->argv[i], part, threads, log, &status, err));
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            last_error(log_path, why);
            rc = ERR_CHECK;
            break;
        }
    }
out:
    close(log);
    return rc;
}

/* The lock is inherited by the child: when this process is killed, the next one waits until the
 * orphan has ended, and continues what it left. */
static int lock_job(const char *path, int *fd, struct err *err)
{
    *fd = open(path, O_RDWR | O_CREAT, 0666);
    if (*fd < 0)
        return err_sys(err, ERR_IO, "%s", path);
    if (flock(*fd, LOCK_EX | LOCK_NB) == 0)
        return 0;
    log_info("jobs/%s: another command works on it; waiting", path);
    while (flock(*fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return err_sys(err, ERR_IO, "jobs/%s", path);
        if (interrupted())
            return err_set(err, ERR_INTERRUPTED, "interrupted");
        nanosleep(&(struct timespec){0, 50 * 1000 * 1000}, NULL);
    }
    return 0;
}

void job_unlock(const char *id)
{
    char path[32];
    snprintf(path, sizeof path, "%s.lock", id);
    unlink(path);
}

int job_run(const struct job *j, const char *what, int threads, char why[300], struct err *err)
{
    char part[32], lock_path[32];
    int lock = -1, rc = 0;
    double start = clock_s();

    snprintf(part, sizeof part, "%s.part", j->id);
    snprintf(lock_path, sizeof lock_path, "%s.lock", j->id);
    TRY(lock_job(lock_path, &lock, err));
    if (access(j->id, F_OK) == 0)
        goto out;
    log_info("%s", what);
    if (mkdir(part, 0777) != 0 && errno != EEXIST) {
        rc = err_sys(err, ERR_IO, "jobs/%s", part);
        goto out;
    }
    TRY(run_commands(j, part, threads, why, err));
    TRY(write_job(j, part, clock_s() - start, err));
    if (rename(part, j->id) != 0)
        rc = err_sys(err, ERR_IO, "jobs/%s", j->id);
    else
        rc = io_sync_directory_of(j->id, err);
out:
    if (lock >= 0) {
        if (!rc || rc == ERR_CHECK)
            unlink(lock_path);
        close(lock);
    }
    return rc;
}
