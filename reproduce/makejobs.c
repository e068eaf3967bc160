/*
 * makejobs.c - a Makefile with a rule for each job that is missing, and make itself.
 */
#include "reproduce/makejobs.h"

#include "core/environment.h"
#include "core/fileio.h"
#include "core/log.h"
#include "core/pool.h"
#include "reproduce/drawnrecords.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- what is missing -------------------------------------------------------------------------
 */

void plan_look(struct plan *p)
{
    for (int i = 0; i < p->n; i++) {
        struct step *s = &p->s[i];
        s->done = !s->left_out && (!s->id[0] || access(s->id, F_OK) == 0);
        if (step_job(p, s)->kind != DO_DRAW || s->done || s->left_out || !p->no_gnuplot)
            continue;
        s->left_out = s->postponed = true;
        snprintf(s->reason, sizeof s->reason,
                 "gnuplot was not found; the same command draws where it is");
    }
}

/* Prompts and captures are made for jobs that read them and are missing themselves. */
static bool is_missing(const struct plan *p, int i)
{
    const struct step *s = &p->s[i];
    enum job_do kind = step_job(p, s)->kind;
    if (s->done || s->left_out)
        return false;
    if (kind != DO_PROMPT && kind != DO_CAPTURE)
        return true;
    for (int k = i + 1; k < p->n; k++)
        if (step_reads(&p->s[k], i) && (is_missing(p, k) || p->s[k].postponed))
            return true;
    return false;
}

enum phase { SIDE_BY_SIDE, TIMED, DRAWINGS, PHASES };

static enum phase phase_of(const struct plan *p, const struct step *s)
{
    return step_job(p, s)->kind == DO_DRAW ? DRAWINGS : step_timed(p, s) ? TIMED : SIDE_BY_SIDE;
}

/* ---- the Makefile ----------------------------------------------------------------------------
 */

/* A shell command in a recipe; texts of several lines are variables that make exports. */
static void put_command(const struct str_list *argv, struct buf *b, struct buf *texts, int *n_texts)
{
    struct str_list words = {0};
    struct buf line = {0};
    for (int64_t i = 0; i < argv->n; i++) {
        if (!strchr(argv->items[i], '\n')) {
            str_list_add(&words, argv->items[i]);
            continue;
        }
        char name[24];
        snprintf(name, sizeof name, "%%TEXT_%d%%", ++*n_texts);
        str_list_add(&words, name);
        buf_printf(texts, "define TEXT_%d\n", *n_texts);
        for (const char *c = argv->items[i]; *c; c++)
            buf_printf(texts, *c == '$' ? "$$" : "%c", *c);
        buf_printf(texts, "\nendef\nexport TEXT_%d\n\n", *n_texts);
    }
    command_text(&words, "\1", &line);
    for (const char *c = buf_str(&line); *c; c++) {
        size_t len = strncmp(c, "%TEXT_", 6) == 0 ? strcspn(c + 1, "%") : 0;
        if (len) {
            buf_printf(b, "\"$$%.*s\"", (int)len, c + 1);
            c += len + 1;
        } else {
            buf_printf(b, *c == '$' ? "$$" : *c == '\1' ? "$@.part" : "%c", *c);
        }
    }
    str_list_free(&words);
    buf_free(&line);
}

static void job_name(const struct plan *p, const struct step *s, struct buf *b)
{
    buf_printf(b, "%s for %s, %s", job_do_names[step_job(p, s)->kind], p->recipes[s->recipe].id,
               step_job(p, s)->name);
    buf_puts(b, s->n_vars ? " " : "");
    step_text(s, b);
}

/* Each command takes the place of its shell, so that make's signals reach it. */
static void put_rule(const struct plan *p, const struct step *s, struct buf *b, struct buf *texts,
                     int *n_texts)
{
    enum job_do kind = step_job(p, s)->kind;
    bool once = kind == DO_PROMPT || kind == DO_CAPTURE || kind == DO_CALIBRATE;
    buf_printf(b, "\n# ");
    job_name(p, s, b);
    buf_printf(b, "\n%s: |", s->id);
    for (int i = 0; i < s->n_in; i++)
        if (!p->s[s->in[i]].done)
            buf_printf(b, " %s", p->s[s->in[i]].id);
    if (log_get_level() >= LOG_INFO) {
        buf_puts(b, "\n\t@echo 'lacuna: ");
        job_name(p, s, b);
        buf_puts(b, "'");
    }
    buf_puts(b, "\n\t@mkdir -p $@.part\n");
    for (int k = 0; k < 2 && s->argv[k].n; k++) {
        bool trace = strcmp(s->argv[k].items[0], "trace") == 0;
        buf_puts(b, "\t@");
        if (once && k == 0) /* of an interrupted job */
            buf_printf(b, "test -e $@.part/%s || ", job_output_name(kind));
        buf_puts(b, "exec \"$$LACUNA\"");
        put_command(&s->argv[k], b, texts, n_texts);
        buf_printf(b, "%s </dev/null >>$@.part/log.txt 2>&1\n",
                   trace ? "" : " --jobs $(THREADS) --progress none");
    }
    buf_puts(b, "\t@mv $@.part $@\n");
}

static int write_makefile(const struct plan *p, struct err *err)
{
    struct buf rules = {0}, texts = {0}, all = {0};
    struct str_list known = {0};
    int rc = 0, n_texts = 0;
    for (int i = 0; i < p->n; i++) {
        if (!is_missing(p, i) || str_list_has(&known, p->s[i].id))
            continue;
        str_list_add(&known, p->s[i].id);
        put_rule(p, &p->s[i], &rules, &texts, &n_texts);
    }
    buf_puts(&all, "# Written by lacuna reproduce. A target is the folder of a job.\n"
                   "export LACUNA ?= lacuna\nTHREADS := 1\n\nall:");
    for (int64_t i = 0; i < known.n; i++)
        buf_printf(&all, " %s", known.items[i]);
    buf_printf(&all, "\n\n%s", buf_str(&texts));
    buf_puts(&all, buf_str(&rules));
    TRY(buf_check(&rules, "Makefile", err));
    TRY(buf_check(&texts, "Makefile", err));
    TRY(buf_check(&all, "Makefile", err));
    TRY(file_write_atomic("Makefile", all.data, all.len, err));
out:
    str_list_free(&known);
    buf_free(&rules);
    buf_free(&texts);
    buf_free(&all);
    return rc;
}

/* ---- make ------------------------------------------------------------------------------------
 */

/* Settings of another make, which must not change this one. */
static bool is_setting(const char *variable)
{
    return strncmp(variable, "MAKE", 4) == 0 || strncmp(variable, "MFLAGS=", 7) == 0;
}

/* Started in a group of its own. When this process dies, the kernel tells make, and make its jobs.
 */
static pid_t start_make(char **argv, char **env, int log)
{
    pid_t self = getpid(), pid = fork();
    if (pid != 0)
        return pid;
    setpgid(0, 0);
    if (prctl(PR_SET_PDEATHSIG, SIGTERM) != 0 || getppid() != self || dup2(2, 1) < 0 ||
        dup2(log, 2) < 0)
        _exit(127);
    execvpe("make", argv, env);
    _exit(127);
}

/* Wait until make and whatever it left behind have ended. */
static int wait_for_make(pid_t pid, struct err *err)
{
    int status = 0;
    bool told = false;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (interrupted() && !told)
            told = kill(pid, SIGTERM) == 0;
        nanosleep(&(struct timespec){0, 10 * 1000 * 1000}, NULL);
    }
    kill(-pid, SIGTERM);
    while (waitpid(-1, NULL, 0) > 0 || errno == EINTR)
        ;
    if (interrupted())
        return err_set(err, ERR_INTERRUPTED, "interrupted; the same command continues");
    if (WIFSIGNALED(status) || WEXITSTATUS(status) == 127)
        return err_set(err, ERR_RUN,
                       "make ended by itself; jobs/make.log may say why, and the same "
                       "command continues");
    return 0;
}

static int run_make(const struct str_list *goals, int jobs, int threads, struct err *err)
{
    struct str_list words = {0};
    char program[4096], text[2][32], **argv = NULL, **env = NULL;
    int rc = 0, log = open("make.log", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    ssize_t len = readlink("/proc/self/exe", program, sizeof program - 1);
    if (log < 0)
        FAIL(err, ERR_IO, "jobs/make.log: %s", strerror(errno));
    program[len < 0 ? 0 : len] = '\0';
    if (setenv("LACUNA", program, 1) != 0)
        FAIL(err, ERR_NOMEM, "environment: out of memory");
    env = environment_without(is_setting);
    snprintf(text[0], sizeof text[0], "-j%d", jobs);
    snprintf(text[1], sizeof text[1], "THREADS=%d", threads);
    const char *const first[] = {"make", "--no-print-directory", "-k", "-r", text[0], text[1]};
    for (size_t i = 0; i < sizeof first / sizeof *first; i++)
        str_list_add(&words, first[i]);
    for (int64_t i = 0; i < goals->n; i++)
        str_list_add(&words, goals->items[i]);
    argv = calloc((size_t)words.n + 1, sizeof *argv);
    if (!argv || !env || words.failed)
        FAIL(err, ERR_NOMEM, "make: out of memory");
    memcpy(argv, words.items, (size_t)words.n * sizeof *argv);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    pid_t pid = start_make(argv, env, log);
    rc = pid < 0 ? err_sys(err, ERR_RUN, "starting make") : wait_for_make(pid, err);
out:
    if (log >= 0)
        close(log);
    free(argv);
    free(env);
    str_list_free(&words);
    return rc;
}

/* All processes below inherit the lock: when this one is killed, the next command waits until its
 * jobs have ended, and continues what they left. */
static int lock_jobs(int *fd, struct err *err)
{
    bool told = false;
    *fd = open("lock", O_RDWR | O_CREAT, 0666);
    if (*fd < 0)
        return err_sys(err, ERR_IO, "jobs/lock");
    while (flock(*fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return err_sys(err, ERR_IO, "jobs/lock");
        if (interrupted())
            return err_set(err, ERR_INTERRUPTED, "interrupted");
        if (!told)
            log_info("jobs/lock: another command works here; waiting");
        told = true;
        nanosleep(&(struct timespec){0, 10 * 1000 * 1000}, NULL);
    }
    return 0;
}

/* ---- failures --------------------------------------------------------------------------------
 */

/* The last error of a job's output. */
static void last_error(const char *id, char why[300])
{
    struct buf b = {0}, path = {0};
    struct err ignored = {0};
    snprintf(why, 300, "the command ended without a message; jobs/make.log may say why");
    buf_printf(&path, "%s.part/log.txt", id);
    if (buf_read_file(&b, buf_str(&path), (size_t)1 << 26, &ignored) == 0) {
        const char *found = NULL;
        for (const char *c = buf_str(&b); (c = strstr(c, "error: ")); c++)
            found = c + 7;
        if (found)
            snprintf(why, 300, "%.*s", (int)strcspn(found, "\n"), found);
    }
    buf_free(&b);
    buf_free(&path);
}

static void find_failures(struct plan *p)
{
    for (int i = 0; i < p->n; i++) {
        struct step *s = &p->s[i];
        const struct step *cause = NULL;
        struct buf name = {0};
        bool told = false;
        if (!is_missing(p, i))
            continue;
        s->failed = true;
        for (int k = 0; k < s->n_in && !cause; k++)
            cause = p->s[s->in[k]].failed ? &p->s[s->in[k]] : NULL;
        if (cause) {
            snprintf(s->reason, sizeof s->reason, "%s", cause->reason);
            continue;
        }
        last_error(s->id, s->reason);
        for (int k = 0; k < i && !told; k++)
            told = strcmp(p->s[k].id, s->id) == 0;
        if (told)
            continue;
        job_name(p, s, &name);
        log_warn("%s failed: %s", buf_str(&name), s->reason);
        buf_free(&name);
    }
}

/* ---- phases ----------------------------------------------------------------------------------
 */

/* Those of a phase whose inputs are there, or, side by side, are made on the way. */
static int find_goals(const struct plan *p, enum phase phase, struct str_list *goals,
                      struct err *err)
{
    int rc = 0;
    for (int i = 0; i < p->n; i++) {
        const struct step *s = &p->s[i];
        bool ready = true;
        if (!is_missing(p, i) || phase_of(p, s) != phase || str_list_has(goals, s->id))
            continue;
        for (int k = 0; k < s->n_in; k++)
            ready = ready && (phase == SIDE_BY_SIDE || p->s[s->in[k]].done);
        if (!ready)
            continue;
        if (step_draws_records(p, s))
            TRY(drawn_records_write(p, s, err));
        str_list_add(goals, s->id);
    }
    rc = goals->failed ? err_set(err, ERR_NOMEM, "make: out of memory") : 0;
out:
    return rc;
}

static int run_phase(struct plan *p, enum phase phase, const struct make_opts *o, struct err *err)
{
    struct str_list goals = {0};
    int jobs = phase == TIMED ? 1 : o->jobs, rc = 0;
    /* Beside others a job gets three times its share of the threads: most have phases of one. */
    int threads = jobs > 3 ? o->threads * 3 / jobs : o->threads;
    TRY(find_goals(p, phase, &goals, err));
    if (goals.n)
        TRY(run_make(&goals, jobs, threads < 1 ? 1 : threads, err));
    plan_look(p);
out:
    str_list_free(&goals);
    return rc;
}

int jobs_run(struct plan *p, const struct make_opts *o, struct err *err)
{
    bool any = false;
    int fd = -1, rc = 0;
    plan_look(p);
    for (int i = 0; i < p->n && !any; i++)
        any = is_missing(p, i);
    if (!any)
        return 0;
    if (!program_found("make"))
        return err_set(err, ERR_MACHINE,
                       "reproduce: make was not found, which runs the jobs "
                       "(package make)");
    TRY(lock_jobs(&fd, err));
    unlink("make.log"); /* of the last run */
    plan_look(p);
    TRY(write_makefile(p, err));
    for (int i = 0; i < PHASES; i++)
        TRY(run_phase(p, (enum phase)i, o, err));
    find_failures(p);
out:
    if (fd >= 0)
        close(fd);
    return rc;
}
