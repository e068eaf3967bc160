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

/* The lock goes to this one child alone: while it lives, nobody else works on its job. */
static int spawn(char **argv, int log, int lock, pid_t *pid)
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
        e = posix_spawn_file_actions_adddup2(&fa, lock, lock); /* clears close-on-exec */
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

static int start_child(struct running *r, const struct str_list *argv, const char *part,
                       struct err *err)
{
    struct str_list words = {0};
    char **list = NULL;
    int rc = 0, e;

    TRY(child_words(argv, part, r->threads, &words, err));
    list = calloc((size_t)words.n + 1, sizeof *list);
    if (!list)
        FAIL(err, ERR_NOMEM, "command: out of memory");
    memcpy(list, words.items, (size_t)words.n * sizeof *list);
    if ((e = spawn(list, r->log, r->lock, &r->pid)) != 0) {
        r->pid = 0;
        errno = e;
        rc = err_sys(err, ERR_RUN, "starting lacuna %s", argv->items[0]);
    }
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

/* Start the next command that has something to do; none is left: pid stays 0. */
static int next_command(struct running *r, struct err *err)
{
    char part[32];
    snprintf(part, sizeof part, "%s.part", r->job.id);
    while (r->command < r->job.n_argv && is_made(&r->job, r->command, part))
        r->command++;
    if (r->command == r->job.n_argv)
        return 0;
    return start_child(r, &r->job.argv[r->command++], part, err);
}

/* The child inherits the lock: when this process is killed, the next one waits until the orphan has
 * ended, and continues what it left. */
static int lock_job(struct running *r, struct err *err)
{
    char path[32];
    snprintf(path, sizeof path, "%s.lock", r->job.id);
    if (r->lock < 0)
        r->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (r->lock < 0)
        return err_sys(err, ERR_IO, "jobs/%s", path);
    bool waited = r->waits;
    r->waits = flock(r->lock, LOCK_EX | LOCK_NB) != 0;
    if (r->waits && errno != EWOULDBLOCK && errno != EINTR)
        return err_sys(err, ERR_IO, "jobs/%s", path);
    if (r->waits && !waited)
        log_info("jobs/%s: another command works on it; waiting", path);
    return 0;
}

void job_unlock(const char *id)
{
    char path[32];
    snprintf(path, sizeof path, "%s.lock", id);
    unlink(path);
}

/* The lock is ours: begin in ID.part, unless another command has finished the job meanwhile. */
static int begin(struct running *r, struct err *err)
{
    char part[32], path[64];
    if (access(r->job.id, F_OK) == 0)
        return 0;
    snprintf(part, sizeof part, "%s.part", r->job.id);
    if (mkdir(part, 0777) != 0 && errno != EEXIST)
        return err_sys(err, ERR_IO, "jobs/%s", part);
    snprintf(path, sizeof path, "%s/log.txt", part);
    r->log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (r->log < 0)
        return err_sys(err, ERR_IO, "jobs/%s", path);
    return next_command(r, err);
}

int job_start(struct running *r, struct job *j, const char *what, int threads, struct err *err)
{
    memset(r, 0, sizeof *r);
    r->job = *j;
    memset(j, 0, sizeof *j);
    r->lock = r->log = -1;
    r->threads = threads;
    r->start = clock_s();
    int rc = lock_job(r, err);
    if (!rc && (r->waits || access(r->job.id, F_OK) != 0))
        log_info("%s", what);
    return rc || r->waits ? rc : begin(r, err);
}

static int finish(const struct running *r, struct err *err)
{
    char part[32];
    int rc = 0;
    snprintf(part, sizeof part, "%s.part", r->job.id);
    TRY(write_job(&r->job, part, clock_s() - r->start, err));
    if (rename(part, r->job.id) != 0)
        rc = err_sys(err, ERR_IO, "jobs/%s", r->job.id);
    else
        rc = io_sync_directory_of(r->job.id, err);
out:
    return rc;
}

/* Has the child ended, and how? */
static int poll_child(struct running *r, bool *failed, struct err *err)
{
    int status = 0;
    pid_t got = waitpid(r->pid, &status, WNOHANG);
    if (got == 0 || (got < 0 && errno == EINTR))
        return 0;
    r->pid = 0;
    if (got < 0)
        return err_sys(err, ERR_RUN, "waiting for lacuna");
    *failed = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    return 0;
}

int job_poll(struct running *r, bool *ended, char why[300], struct err *err)
{
    char log_path[64];
    bool failed = false;
    int rc = 0;
    *ended = false;
    if (r->waits) {
        TRY(lock_job(r, err));
        if (r->waits)
            return 0;
        TRY(begin(r, err));
    }
    if (r->pid)
        TRY(poll_child(r, &failed, err));
    if (!r->pid && !failed && r->log >= 0)
        TRY(next_command(r, err));
    if (r->pid)
        return 0;
    *ended = true;
    if (failed) {
        snprintf(log_path, sizeof log_path, "%s.part/log.txt", r->job.id);
        last_error(log_path, why);
        rc = ERR_CHECK;
    } else if (r->log >= 0) {
        TRY(finish(r, err));
    }
    job_unlock(r->job.id);
out:
    return rc;
}

/* Another signal than that of a terminal, which reaches the child too, and of which the second one
 * kills. */
void job_end(struct running *r)
{
    if (r->pid && !r->ends)
        kill(r->pid, SIGTERM);
    r->ends = true;
}

void job_leave(struct running *r)
{
    while (r->pid && waitpid(r->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    if (r->log >= 0)
        close(r->log);
    if (r->lock >= 0)
        close(r->lock);
    job_free(&r->job);
}
