/*
 * select_session.c - a replay's selections on the GPU: upload of q and k, launch, lists to the
 * host, time (core/accel.h).
 */
#include "core/mem.h"
#include "cuda/select/select_session.h"
#include "cuda/session.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

int select_head_mask(struct gpu *g, const struct select_job *job, int head,
                     const struct accel_choice *c, struct mask *m, struct err *err)
{
    const struct select_problem *p = &job->problem;
    const struct select_lists *l = &job->lists;
    int64_t *ptr = NULL;
    int32_t *col = NULL;
    int rc = select_fetch_rows(g, job, head * l->groups, (head + 1) * l->groups, &ptr, &col, err);
    if (!rc)
        rc = mask_lists_init(m, p->nq, p->nk, 0, p->nq, p->causal, l->bq, l->bk, err);
    if (rc) {
        free(ptr);
        free(col);
        return rc;
    }
    free(m->ptr);
    m->ptr = ptr;
    m->col = col;
    m->col_cap = ptr[l->groups];
    rc = mask_check(m, err);
    return rc || !c->own ? rc : select_fetch_own(g, job, head, c->own, err);
}

/* Time of the selection, for copies of the head as heads of one problem. */
static int time_copies(struct accel_session *s, const struct select_method *method,
                       struct select_problem p, struct accel_heads copies, struct accel_time *time,
                       struct err *err)
{
    struct select_job job = {0};
    struct session_work work = {select_job_choose, &job};
    int rc = 0;
    p.heads = copies.q;
    p.kv_heads = copies.kv;
    p.no_mask = true;
    TRY(select_job_init(&s->gpu, method, &p, &job, err));
    TRY(session_time(s, &work, 1, time, err));
    session_share(time, copies.q);
out:
    select_job_free(&job);
    return rc;
}

static int select_locked(struct accel_session *s, const struct select_method *method,
                         struct select_problem *p, const struct accel_choice *c, struct mask *m,
                         struct accel_time *time, struct err *err)
{
    struct gpu *g = &s->gpu;
    struct gpu_mark mark = s->base;
    struct select_job job = {0};
    struct accel_heads copies =
        c->once ? (struct accel_heads){1, 1} : session_copies(s, c->call, c->x);
    int rc = 0;

    CU(err, cudaSetDevice(g->device));
    TRY(session_put_head(s, c->x, c->data, copies, method->values, err));
    mark = gpu_mark(g);
    p->q = s->head.q;
    p->k = s->head.k;
    p->v = s->head.v;
    p->v_exp = &s->head.v_exp;
    TRY(select_job_init(g, method, p, &job, err));
    TRY(method->launch(g, &job, err));
    TRY(select_head_mask(g, &job, 0, c, m, err));
    gpu_release(g, mark);
    if (s->options.samples > 0 && !c->once)
        TRY(time_copies(s, method, *p, copies, time, err));
out:
    select_job_free(&job);
    gpu_release(g, mark);
    return session_blame(rc, copies.q, err);
}

struct select_problem select_problem_of(const struct accel_choice *c)
{
    const struct attn_in *x = c->x;
    return (struct select_problem){.heads = 1,
                                   .kv_heads = 1,
                                   .d = x->d,
                                   .nq = x->nq,
                                   .nk = x->nk,
                                   .scale = x->scale,
                                   .causal = x->causal,
                                   .choices = c,
                                   .n_choices = 1};
}

int session_select(struct accel_session *s, const struct accel_choice *c, struct mask *m,
                   struct accel_time *time, char why[160], struct err *err)
{
    const struct attn_in *x = c->x;
    struct select_problem p = select_problem_of(c);
    const struct select_method *method = select_find(c->method);
    *time = (struct accel_time){NAN, NAN, NAN, 0};
    if (!method) {
        snprintf(why, 160, "method %s has no GPU side", c->method);
        return ACCEL_NO_SELECT;
    }
    if (method->dense && method->dense(&p)) {
        mask_full(m, x->nq, x->nk, 0, x->nq, x->causal);
        if (s->options.samples > 0)
            *time = (struct accel_time){0, 0, 0, s->options.samples};
        return 0;
    }
    if (!method->fits(&p, why))
        return ACCEL_NO_SELECT;
    session_lock(s);
    int rc = select_locked(s, method, &p, c, m, time, err);
    session_unlock(s);
    return rc < 0 ? err_prefix(err, "%s on the GPU", c->method) : rc;
}
