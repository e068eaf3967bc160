/*
 * crew.c - starting jobs, waiting for them, and what follows from their end.
 */
#include "reproduce/crew.h"

#include "core/environment.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/pool.h"
#include "reproduce/estimate.h"
#include "reproduce/runjob.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Jobs that run now. */
struct crew {
    const struct work *work;
    struct running r[MAX_AT_ONCE];
    int number[MAX_AT_ONCE];
    int n, started;
};

static void job_name(const struct plan *p, const struct job *j, int n, struct buf *b)
{
    const struct step *t = &p->s[j->first];
    buf_printf(b, "%d: %s for %s", n, job_do_names[j->kind], p->recipes[t->recipe].id);
    buf_printf(b, ", %s", step_job(p, t)->name);
    if (t->n_vars)
        buf_puts(b, " ");
    step_text(t, b);
    if (t->seconds >= 1)
        buf_printf(b, ", about %.0f s; %.0f s in all", t->seconds, plan_seconds(p));
}

/* Beside others a job gets three times its share of the threads: most have phases of one. */
static int start_job(struct crew *c, struct job *j, struct err *err)
{
    struct plan *p = c->work->plan;
    struct buf name = {0};
    int threads = c->work->threads, share = p->at_once > 3 ? threads * 3 / p->at_once : threads;
    int n = c->number[c->n] = ++c->started, rc = 0;
    job_name(p, j, n, &name);
    TRY(buf_check(&name, "job", err));
    TRY(job_records(p, j, err));
    TRY(plan_begun(p, j, err));
    rc = job_start(&c->r[c->n++], j, buf_str(&name), j->timed ? threads : share, err);
out:
    buf_free(&name);
    return rc;
}

/* Start what can be run beside what runs. */
static int start_jobs(struct crew *c, struct err *err)
{
    struct plan *p = c->work->plan;
    bool found = true;
    int rc = 0;
    while (!rc && found && c->n < p->at_once && !(c->n && c->r[0].job.timed)) {
        struct job j;
        rc = plan_next(p, &j, &found, err);
        if (!rc && found)
            rc = start_job(c, &j, err);
        job_free(&j);
    }
    return rc;
}

/* Job i has ended; `failed`: why. */
static int end_job(struct crew *c, int i, const char *failed, struct err *err)
{
    struct plan *p = c->work->plan;
    struct job *j = &c->r[i].job;
    int rc = 0;
    plan_ended(p, j);
    if (failed) {
        struct buf name = {0};
        job_name(p, j, c->number[i], &name);
        log_warn("%s failed: %s", buf_str(&name), failed);
        buf_free(&name);
        plan_fail(p, j, failed);
    } else {
        rc = job_store_add(p->store, j->id, err);
    }
    job_leave(&c->r[i]);
    c->n--;
    c->r[i] = c->r[c->n];
    c->number[i] = c->number[c->n];
    return rc;
}

static int look_at(struct crew *c, int i, struct err *err)
{
    char why[300] = "";
    bool ended;
    int rc = job_poll(&c->r[i], &ended, why, err);
    if (rc && (rc != ERR_CHECK || err->code))
        return rc;
    return ended ? end_job(c, i, rc ? why : NULL, err) : 0;
}

/* Wait until a job has ended. */
static int wait_for_one(struct crew *c, struct err *err)
{
    int n = c->n, rc = 0;
    while (!rc && c->n == n) {
        if (interrupted())
            return err_set(err, ERR_INTERRUPTED, "interrupted; the same command continues");
        nanosleep(&(struct timespec){0, 10 * 1000 * 1000}, NULL);
        for (int i = c->n - 1; i >= 0 && !rc; i--)
            rc = look_at(c, i, err);
    }
    return rc;
}

static void leave_jobs(struct crew *c)
{
    for (int i = 0; i < c->n; i++)
        job_end(&c->r[i]);
    while (c->n)
        job_leave(&c->r[--c->n]);
}

/* The steps of a recipe are finished, as far as they can be. */
static bool is_settled(const struct plan *p, int recipe)
{
    for (int i = 0; i < p->n; i++)
        if (p->s[i].recipe == recipe && !p->s[i].done && !p->s[i].failed && !p->s[i].left_out)
            return false;
    return true;
}

static int write_pages(const struct work *w, bool *written, struct err *err)
{
    int rc = 0;
    for (int i = 0; i < w->plan->n_recipes && !rc; i++)
        if (!written[i] && is_settled(w->plan, i)) {
            written[i] = true;
            rc = output_page(w->output, i, err);
        }
    return rc;
}

int work_run(const struct work *w, struct err *err)
{
    struct crew *c = NULL;
    bool *written = NULL;
    int rc = 0;
    TRY(mem_zalloc(&c, 1, sizeof *c, "jobs", err));
    TRY(mem_zalloc(&written, w->plan->n_recipes + 1, sizeof *written, "pages", err));
    c->work = w;
    do {
        if (c->n)
            TRY(wait_for_one(c, err));
        TRY(plan_resolve(w->plan, err));
        plan_fit(w->plan, w->budget, w->threads);
        TRY(start_jobs(c, err));
        TRY(write_pages(w, written, err));
    } while (c->n);
    rc = output_close(w->output, err);
out:
    if (c)
        leave_jobs(c);
    free(c);
    free(written);
    return rc;
}
