/*
 * makejobs.c - a Makefile with a rule for each job that is missing, and make itself.
 */
#include "reproduce/jobplan.h"

#include "core/child.h"
#include "core/environment.h"
#include "core/fileio.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/method_run.h"
#include "core/pool.h"
#include "reproduce/evidence.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- what is missing ------------------------------------------------------------------------- */

/* Does a missing step read it, or a drawing that is postponed? */
static bool is_read(const struct plan *p, int i, bool postponed)
{
    for (int k = i + 1; k < p->n; k++)
        if (step_reads(&p->s[k], i) && (step_missing(p, k) || (postponed && p->s[k].postponed)))
            return true;
    return false;
}

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
    for (int i = p->n - 1; i >= 0; i--) {
        struct step *s = &p->s[i];
        if (s->done && s->id[0] && step_job(p, s)->kind == DO_CAPTURE && trace_deleted(s))
            s->done = !is_read(p, i, false);
    }
}

bool step_missing(const struct plan *p, int i)
{
    const struct step *s = &p->s[i];
    enum job_do kind = step_job(p, s)->kind;
    if (s->done || s->left_out)
        return false;
    return (kind != DO_PROMPT && kind != DO_CAPTURE) || is_read(p, i, true);
}

/* A capture whose trace was deleted is made again: its folder goes. */
static void remove_deleted(const struct plan *p)
{
    for (int i = 0; i < p->n; i++) {
        const struct step *s = &p->s[i];
        char log[64];
        if (s->done || step_job(p, s)->kind != DO_CAPTURE || !s->id[0] || !trace_deleted(s))
            continue;
        snprintf(log, sizeof log, "%s/log.txt", s->id);
        unlink(log);
        rmdir(s->id);
    }
}

enum phase { SIDE_BY_SIDE, TIMED, DRAWINGS, PHASES };

static enum phase phase_of(const struct plan *p, const struct step *s)
{
    return step_job(p, s)->kind == DO_DRAW ? DRAWINGS : step_timed(p, s) ? TIMED : SIDE_BY_SIDE;
}

/* ---- the Makefile ---------------------------------------------------------------------------- */

static void put_dollars(const char *s, struct buf *b)
{
    for (; *s; s++)
        buf_printf(b, *s == '$' ? "$$" : "%c", *s);
}

/* A command in a rule. Its texts of several lines are variables that make exports, which stand
 * before the rule. */
static void put_command(const struct step *s, int k, bool texts, struct buf *b)
{
    OWN(buf_free) struct buf word = {0};
    for (int64_t i = 0; i < s->argv[k].n; i++) {
        bool lines = strchr(s->argv[k].items[i], '\n') != NULL;
        buf_reset(&word);
        put_dollars(s->argv[k].items[i], &word);
        if (lines && texts)
            buf_printf(b, "define TEXT_%s_%d_%d\n%s\nendef\nexport TEXT_%s_%d_%d\n", s->id, k,
                       (int)i, buf_str(&word), s->id, k, (int)i);
        else if (lines)
            buf_printf(b, " \"$$TEXT_%s_%d_%d\"", s->id, k, (int)i);
        else if (!texts)
            word_text(buf_str(&word), "$@.part", b);
    }
    b->failed |= word.failed;
}

static void job_name(const struct plan *p, const struct step *s, struct buf *b)
{
    buf_printf(b, "%s for %s, %s", job_do_names[step_job(p, s)->kind], p->recipes[s->recipe].id,
               step_job(p, s)->name);
    buf_puts(b, s->n_vars ? " " : "");
    step_text(s, b);
}

/* Each command takes the place of its shell, so that make's signals reach it. */
static void put_rule(const struct plan *p, const struct step *s, struct buf *b)
{
    enum job_do kind = step_job(p, s)->kind;
    bool once = kind == DO_PROMPT || kind == DO_CAPTURE || kind == DO_CALIBRATE;
    buf_printf(b, "\n# ");
    job_name(p, s, b);
    buf_puts(b, "\n");
    for (int k = 0; k < 2; k++)
        put_command(s, k, true, b);
    buf_printf(b, "%s: |", s->id);
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
        put_command(s, k, false, b);
        buf_printf(b, "%s </dev/null >>$@.part/log.txt 2>&1\n",
                   trace ? "" : " --jobs $(THREADS) --progress none");
    }
    buf_puts(b, "\t@mv $@.part $@\n");
}

static int write_makefile(const struct plan *p, struct err *err)
{
    OWN(buf_free) struct buf b = {0}, goals = {0};
    buf_puts(&b, "# Written by lacuna reproduce. A target is the folder of a job.\n"
                 "export LACUNA ?= lacuna\nTHREADS := 1\nall:\n");
    for (int i = 0; i < p->n; i++) {
        if (!step_missing(p, i) || strstr(buf_str(&goals), p->s[i].id))
            continue;
        buf_printf(&goals, " %s", p->s[i].id);
        put_rule(p, &p->s[i], &b);
    }
    buf_printf(&b, "\nGOALS :=%s\nall: $(GOALS)\n", buf_str(&goals));
    PASS_ON(buf_check(&goals, "Makefile", err));
    PASS_ON(buf_check(&b, "Makefile", err));
    return file_write_atomic("Makefile", b.data, b.len, err);
}

/* ---- make ------------------------------------------------------------------------------------ */

/* Settings of another make, which must not change this one. */
static bool is_setting(const char *variable)
{
    return strncmp(variable, "MAKE", 4) == 0 || strncmp(variable, "MFLAGS=", 7) == 0;
}

/* Its output goes to standard error, its own words to the log. Returns 0 or an errno. */
static int start_make(struct child *make, const char *const *argv, char **env, int log)
{
    posix_spawn_file_actions_t files;
    int e = posix_spawn_file_actions_init(&files);
    if (e)
        return e;
    posix_spawn_file_actions_adddup2(&files, 2, 1);
    posix_spawn_file_actions_adddup2(&files, log, 2);
    e = child_start(make, (char *const *)(uintptr_t)argv, env, &files);
    posix_spawn_file_actions_destroy(&files);
    return e;
}

/* Wait until make and whatever it left behind have ended. A job that is told finishes its head
 * first, which can take minutes, and so it is killed after a second. */
static int wait_for_make(struct child *make, struct err *err)
{
    int status = 0, told = 0, ended;
    while ((ended = child_wait(make, 0.01, &status)) == 0)
        if (interrupted() && told++ % 100 == 0)
            kill(told == 1 ? make->pid : -make->pid, told == 1 ? SIGTERM : SIGKILL);
    if (ended < 0)
        return err_sys(err, ERR_RUN, "waiting for make");
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

/* `goals`: "GOALS=ID ID ..." */
static int run_make(char *goals, int jobs, int threads, struct err *err)
{
    char program[4096], text[2][32];
    OWN(free_at) char **env = NULL;
    OWN(child_kill) struct child make = {0};
    int e;
    OWN(io_close_at) int log = open("make.log", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    ssize_t len = readlink("/proc/self/exe", program, sizeof program - 1);
    if (log < 0)
        return err_set(err, ERR_IO, "jobs/make.log: %s", strerror(errno));
    program[len < 0 ? 0 : len] = '\0';
    if (setenv("LACUNA", program, 1) != 0 || !(env = environment_without(is_setting)))
        return err_set(err, ERR_NOMEM, "environment: out of memory");
    snprintf(text[0], sizeof text[0], "-j%d", jobs);
    snprintf(text[1], sizeof text[1], "THREADS=%d", threads);
    const char *const argv[] = {"make", "--no-print-directory", "-k", "-r", text[0], text[1], goals,
                                NULL};
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if ((e = start_make(&make, argv, env, log)) != 0)
        return err_set(err, ERR_RUN, "starting make: %s", strerror(e));
    return wait_for_make(&make, err);
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

/* ---- failures -------------------------------------------------------------------------------- */

/* The last error of a job's output. */
static void last_error(const char *id, char why[300])
{
    OWN(buf_free) struct buf b = {0}, path = {0};
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
}

static void find_failures(struct plan *p)
{
    for (int i = 0; i < p->n; i++) {
        struct step *s = &p->s[i];
        const struct step *cause = NULL;
        struct buf name = {0};
        if (!step_missing(p, i))
            continue;
        s->failed = true;
        for (int k = 0; k < s->n_in && !cause; k++)
            cause = p->s[s->in[k]].failed ? &p->s[s->in[k]] : NULL;
        if (cause) {
            snprintf(s->reason, sizeof s->reason, "%s", cause->reason);
            continue;
        }
        last_error(s->id, s->reason);
        if (!step_is_first(p, s))
            continue;
        job_name(p, s, &name);
        log_warn("%s failed: %s", buf_str(&name), s->reason);
        buf_free(&name);
    }
}

/* ---- what drawings show ---------------------------------------------------------------------- */

/* The job of the calibration that a method's text names by its folder; NULL: none. */
static const char *calibration_of(const struct plan *p, const struct step *s, const char *text)
{
    for (int i = s->n_from; i < s->n_in; i++) {
        const struct step *in = &p->s[s->in[i]];
        if (step_job(p, in)->kind == DO_CALIBRATE && in->id[0] && strstr(text, in->id))
            return step_job(p, in)->name;
    }
    return NULL;
}

/* Parameters with a calibration, and the name of its job; two lists of equal length. */
struct calibrations {
    struct str_list params, names;
};

static int find_calibrations(const struct plan *p, const struct step *s, struct calibrations *out,
                             struct err *err)
{
    OWN(str_list_free) struct str_list texts = {0};
    PASS_ON(step_methods(p, s, &texts, err));
    for (int64_t i = 0; i < texts.n; i++) {
        const char *name = calibration_of(p, s, texts.items[i]);
        struct method_run *runs = NULL;
        int64_t n = 0;
        if (!name)
            continue;
        PASS_ON(method_runs_parse(p->app->methods, texts.items[i], &runs, &n, err));
        for (int64_t k = 0; k < n; k++) {
            str_list_add(&out->params, runs[k].canonical);
            str_list_add(&out->names, name);
        }
        method_runs_free(runs, n);
    }
    return 0;
}

/* A calibration is called as in the recipe, not by the hash of its content. */
static void put_params(const struct calibrations *c, const char *params, struct buf *b)
{
    const char *at = strstr(params, "calib=");
    for (int64_t i = 0; at && i < c->params.n; i++) {
        if (strcmp(c->params.items[i], params) != 0)
            continue;
        buf_printf(b, "%.*s%s%s", (int)(at + 6 - params), params, c->names.items[i],
                   at + 6 + strcspn(at + 6, ":"));
        return;
    }
    buf_puts(b, params);
}

/* The name of a line as in the paper; NULL: the recipe gives none. */
static const char *series_of(const struct plan *p, const struct recipe_job *j, int step,
                             const struct record *r)
{
    const struct evidence e = {.plan = p, .recipe = p->s[step].recipe};
    const struct proof proof = {r, step};
    const char *name;
    json_t *where;
    json_object_foreach((json_t *)j->series, name, where)
    {
        if (evidence_fits(&e, &proof, where))
            return name;
    }
    return NULL;
}

/* The record with the names that the drawing shows. A named line or bar is one setting, a named set
 * of points or cells has several, which its parameters tell apart. */
static void put_record(const struct plan *p, const struct recipe_job *j, int step,
                       const struct calibrations *c, const struct record *r, struct buf *lines)
{
    struct record shown = *r;
    OWN(buf_free) struct buf params = {0};
    put_params(c, r->params ? r->params : "", &params);
    shown.params = (char *)(uintptr_t)buf_str(&params);
    const char *name = series_of(p, j, step, &shown);
    if (name)
        snprintf(shown.method, sizeof shown.method, "%s", name);
    if (name && words_have("bars curves needle", ' ', j->figure, strlen(j->figure)))
        buf_reset(&params);
    shown.params = (char *)(uintptr_t)buf_str(&params);
    record_json(&shown, lines);
    lines->failed |= params.failed;
}

/* Write ID.part/drawn.jsonl: the records of the step's inputs, with the names of lines and
 * calibrations that the recipe gives. The inputs are done. */
static int drawn_records_write(const struct plan *p, const struct step *s, struct err *err)
{
    OWN(buf_free) struct buf lines = {0}, path = {0};
    int rc = 0;
    buf_printf(&path, "%s.part", s->id);
    PASS_ON(buf_check(&path, "path", err));
    PASS_ON(make_dirs(buf_str(&path), err));
    buf_puts(&path, "/drawn.jsonl");
    for (int i = 0; i < s->n_from && !rc; i++) {
        const struct step *in = &p->s[s->in[i]];
        struct calibrations c = {{0}, {0}};
        struct record *r = NULL;
        int64_t n = 0;
        rc = find_calibrations(p, in, &c, err);
        if (!rc)
            rc = records_load(in->id, &r, &n, err);
        for (int64_t m = 0; m < n && !rc; m++)
            put_record(p, step_job(p, s), s->in[i], &c, &r[m], &lines);
        records_free(r, n);
        str_list_free(&c.params);
        str_list_free(&c.names);
    }
    if (rc)
        return rc;
    PASS_ON(buf_check(&lines, "records", err));
    PASS_ON(buf_check(&path, "path", err));
    PASS_ON(file_write_atomic(buf_str(&path), lines.data, lines.len, err));
    return rc;
}

/* ---- phases ---------------------------------------------------------------------------------- */

/* Is it of a phase, with inputs that are there, or, side by side, are made on the way? */
static bool is_goal(const struct plan *p, int i, enum phase phase)
{
    const struct step *s = &p->s[i];
    bool ready = s->now && step_missing(p, i) && phase_of(p, s) == phase;
    for (int k = 0; k < s->n_in; k++)
        ready = ready && (phase == SIDE_BY_SIDE || p->s[s->in[k]].done);
    return ready;
}

static int run_phase(struct plan *p, enum phase phase, const struct make_opts *o, struct err *err)
{
    OWN(buf_free) struct buf goals = {0};
    int jobs = phase == TIMED ? 1 : o->jobs, n = 0;
    /* Beside others a job gets three times its share of the threads: most have phases of one. */
    int threads = jobs > 3 ? o->threads * 3 / jobs : o->threads;
    buf_puts(&goals, "GOALS=");
    for (int i = 0; i < p->n; i++) {
        const struct step *s = &p->s[i];
        if (!is_goal(p, i, phase) || strstr(buf_str(&goals), s->id))
            continue;
        if (step_draws_records(p, s))
            PASS_ON(drawn_records_write(p, s, err));
        buf_printf(&goals, "%s%s", n++ ? " " : "", s->id);
    }
    PASS_ON(buf_check(&goals, "make", err));
    if (n)
        PASS_ON(run_make(goals.data, jobs, threads < 1 ? 1 : threads, err));
    plan_look(p);
    return 0;
}

int jobs_run(struct plan *p, const struct make_opts *o, struct err *err)
{
    bool any = false;
    OWN(io_close_at) int fd = -1;
    plan_look(p);
    for (int i = 0; i < p->n && !any; i++)
        any = step_missing(p, i);
    if (!any)
        return 0;
    if (!program_found("make"))
        return err_set(err, ERR_MACHINE,
                       "reproduce: make was not found, which runs the jobs "
                       "(package make)");
    PASS_ON(lock_jobs(&fd, err));
    unlink("make.log"); /* of the last run */
    plan_look(p);
    PASS_ON(disk_check(p, o->room, err));
    for (;;) {
        PASS_ON(turn_next(p, o->room, &any, err));
        if (!any)
            break;
        remove_deleted(p);
        PASS_ON(write_makefile(p, err));
        for (int i = 0; i < PHASES; i++)
            PASS_ON(run_phase(p, (enum phase)i, o, err));
        turn_end(p, o->room);
    }
    find_failures(p);
    return 0;
}
