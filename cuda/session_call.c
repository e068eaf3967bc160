/*
 * session_call.c - a call on the device, and the masks of all its heads (struct accel_call in
 * core/accel.h).
 */
#include "cuda/select/select_session.h"
#include "cuda/session_runs.h"

#include <stdio.h>
#include <string.h>

/* ---- runs ----------------------------------------------------------------------------------- */

struct head_run run_from(int n, int group, int first, same_head_fn *same, const void *ctx)
{
    int end = first + 1;
    while (end < n && same(ctx, first, end))
        end++;
    int whole = first % group == 0 ? (end - first) / group : 0;
    if (whole)
        return (struct head_run){first, whole * group, whole};
    int last = (first / group + 1) * group; /* of its group */
    return (struct head_run){first, (end < last ? end : last) - first, 1};
}

struct attn_tensors run_tensors(const struct session_call *c, const struct attn_tensors *x,
                                struct head_run r)
{
    const struct attn_problem *p = &c->problem;
    int64_t q = r.first * p->nq * p->d * 2, rows = r.first * p->nq;
    int64_t k = r.first / (p->heads / p->kv_heads) * p->nk * p->d * 2;
    return (struct attn_tensors){(const char *)x->q + q, (const char *)x->k + k,
                                 (const char *)x->v + k, (char *)x->out + q, x->lse + rows};
}

int session_bring_call(struct accel_session *s, const struct accel_call *call, struct err *err)
{
    int rc = 0;
    session_lock(s);
    CU(err, cudaSetDevice(s->gpu.device));
    rc = session_put_call(s, call, err);
out:
    session_unlock(s);
    return rc;
}

/* ---- selection ------------------------------------------------------------------------------ */

static bool same_band(const struct mask *a, const struct mask *b)
{
    return a == b || (a && b && a->form == b->form && a->sink == b->sink &&
                      a->window == b->window && a->dense_from == b->dense_from);
}

static bool same_rule(const union method_rule *a, const union method_rule *b)
{
    return a == b || (a && b && memcmp(a, b, sizeof *a) == 0);
}

bool run_same_choice(const void *choices, int i, int k)
{
    const struct accel_choice *a = (const struct accel_choice *)choices + i;
    const struct accel_choice *b = (const struct accel_choice *)choices + k;
    return a->method && b->method && strcmp(a->method, b->method) == 0 && a->seed == b->seed &&
           a->params == b->params && same_band(a->shape, b->shape) && same_rule(a->rule, b->rule);
}

const struct select_method *run_select(const struct session_call *c,
                                       const struct accel_choice *choice, struct head_run r,
                                       struct select_problem *p, bool *full, char why[160])
{
    struct attn_tensors t = run_tensors(c, &c->x, r);
    *p = select_problem_of(choice);
    p->heads = r.n;
    p->kv_heads = r.kv;
    p->q = t.q;
    p->k = t.k;
    const struct select_method *m = select_for(choice->method, p);
    *full = m && m->dense && m->dense(p);
    if (!m)
        snprintf(why, 160, "method %s has no GPU side", choice->method);
    return m && (*full || m->fits(p, why)) ? m : NULL;
}

static int select_run(struct accel_session *s, const struct select_method *m,
                      const struct select_problem *p, struct head_run r, struct mask *masks,
                      struct err *err)
{
    struct gpu_mark mark = gpu_mark(&s->gpu);
    struct select_job job = {0};
    int rc = 0;
    TRY(select_job_init(&s->gpu, m, p, &job, err));
    TRY(m->launch(&s->gpu, &job, err));
    for (int i = 0; i < r.n; i++)
        TRY(select_head_mask(&s->gpu, &job, i, masks + r.first + i, err));
out:
    select_job_free(&job);
    gpu_release(&s->gpu, mark);
    return rc < 0 ? err_prefix(err, "%s on the GPU", m->name) : rc;
}

static int select_locked(struct accel_session *s, const struct accel_call *call,
                         const struct accel_choice *choices, struct mask *masks, int *answers,
                         char (*why)[160], struct err *err)
{
    const struct attn_in *x = call->x[0];
    struct head_run r;
    int rc = 0;

    CU(err, cudaSetDevice(s->gpu.device));
    TRY(session_put_call(s, call, err));
    for (int i = 0; i < call->n; i += r.n) {
        struct select_problem p;
        bool full = false;
        r = (struct head_run){i, 1, 1};
        if (!choices[i].method)
            continue;
        r = run_from(call->n, call->group, i, run_same_choice, choices);
        const struct select_method *m = run_select(&s->call, choices + i, r, &p, &full, why[i]);
        for (int k = i; k < i + r.n; k++) {
            answers[k] = m ? 0 : ACCEL_NO_SELECT;
            if (!m && k > i)
                memcpy(why[k], why[i], sizeof *why);
            if (full)
                mask_full(masks + k, x->nq, x->nk, 0, x->nq, x->causal);
        }
        if (m && !full)
            TRY(select_run(s, m, &p, r, masks, err));
    }
out:
    return rc;
}

int session_select_call(struct accel_session *s, const struct accel_call *call,
                        const struct accel_choice *choices, struct mask *masks, int *answers,
                        char (*why)[160], struct err *err)
{
    session_lock(s);
    int rc = select_locked(s, call, choices, masks, answers, why, err);
    session_unlock(s);
    return rc;
}
