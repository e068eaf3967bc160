/*
 * session_call.c - a call on the device, and the masks of all its heads (struct accel_call in
 * core/accel.h).
 */
#include "core/intmath.h"
#include "core/stopwatch.h"
#include "cuda/session.h"

#include <stdio.h>
#include <stdlib.h>
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

bool run_same_choice(const void *choices, int i, int k)
{
    const struct accel_choice *c = choices;
    return select_together(c + i, c + k);
}

const struct select_method *run_select(const struct session_call *c,
                                       const struct accel_choice *choices, struct head_run r,
                                       struct select_problem *p, bool *full, char why[160])
{
    const struct attn_problem *of = &c->problem;
    const struct accel_choice *choice = choices + r.first;
    struct attn_tensors t = run_tensors(c, &c->x, r);
    *p = (struct select_problem){.heads = r.n,
                                 .kv_heads = r.kv,
                                 .of_heads = of->heads,
                                 .d = of->d,
                                 .nq = of->nq,
                                 .nk = of->nk,
                                 .scale = of->scale,
                                 .causal = of->causal,
                                 .q = t.q,
                                 .k = t.k,
                                 .v = t.v,
                                 .v_exp = c->v_exp + r.first / (of->heads / of->kv_heads),
                                 .choices = choice,
                                 .n_choices = r.n};
    const struct select_method *m = select_find(choice->method);
    *full = m && m->dense && m->dense(p);
    if (!m)
        snprintf(why, 160, "method %s has no GPU side", choice->method);
    return m && (*full || m->fits(p, why)) ? m : NULL;
}

int call_choices(const struct accel_call *call, struct accel_choice **out, struct err *err)
{
    int rc = mem_alloc(out, call->n, sizeof **out, "choices of heads", err);
    for (int i = 0; i < call->n && !rc; i++)
        (*out)[i] = call->heads[i].choice;
    return rc;
}

/* The lists of a head to the host, and what comes beside them. */
static int fetch_mask(struct gpu *g, const struct select_job *job, int head,
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

/* The masks of a job's heads. */
static int fetch_masks(struct accel_session *s, const struct accel_call *call,
                       const struct select_job *job, struct head_run r, struct err *err)
{
    int rc = 0;
    for (int i = r.first; i < r.first + r.n && !rc; i++)
        rc = fetch_mask(&s->gpu, job, i - r.first, &call->heads[i].choice, &call->heads[i].mask,
                        err);
    return rc < 0 ? err_prefix(err, "%s on the GPU", job->method->name) : rc;
}

static int launch_run(struct accel_session *s, const struct select_method *m,
                      const struct select_problem *p, struct select_job *job, struct err *err)
{
    int rc = 0;
    TRY(select_job_init(&s->gpu, m, p, job, err));
    TRY(m->launch(&s->gpu, job, err));
out:
    return rc < 0 ? err_prefix(err, "%s on the GPU", m->name) : rc;
}

/* The heads of a call while their masks are chosen. */
struct choosing {
    const struct accel_call *call;
    struct accel_choice *choices; /* [n], owned: those of its heads */
    struct head_run *runs;        /* [n], owned: of s->kept.jobs */
    bool keep;                    /* the jobs are kept until all runs have chosen */
};

static int choose_run(struct accel_session *s, const struct choosing *c,
                      const struct select_method *m, const struct select_problem *p,
                      struct head_run r, struct err *err)
{
    struct gpu_mark mark = gpu_mark(&s->gpu);
    struct select_job job = {0};
    int rc = 0;
    if (c->keep) {
        c->runs[s->kept.n] = r;
        return launch_run(s, m, p, s->kept.jobs + s->kept.n++, err);
    }
    TRY(launch_run(s, m, p, &job, err));
    TRY(fetch_masks(s, c->call, &job, r, err));
out:
    select_job_free(&job);
    gpu_release(&s->gpu, mark);
    return rc;
}

/* ---- masks that stay ------------------------------------------------------------------------ */

/* Begin to keep the choices of a call, if all may stay. Dense attention, where metrics need it,
 * lies below them and has to be there first. */
static int begin_kept(struct accel_session *s, struct choosing *c, struct err *err)
{
    int n = c->call->n, rc = 0;
    c->keep = true;
    for (int i = 0; i < n; i++)
        c->keep &= c->choices[i].method && c->choices[i].keep_on_device;
    if (!c->keep)
        return 0;
    if (!c->call->unmeasured)
        TRY(session_call_dense(s, err));
    TRY(mem_zalloc(&c->runs, n, sizeof *c->runs, "runs of heads", err));
    s->kept.mark = gpu_mark(&s->gpu);
    TRY(mem_zalloc(&s->kept.jobs, n, sizeof *s->kept.jobs, "selections", err));
out:
    return rc;
}

/* Are units whole blocks of the kernels, as session_supports has it? */
static bool are_blocks(const struct select_lists *l)
{
    return l->bq % 64 == 0 && l->bk % 64 == 0;
}

/* Has every head a mask of one unit, and, where that is fine, nothing beside it but what goes with
 * counts alone? */
static bool can_keep(const struct accel_session *s, const struct choosing *c)
{
    const struct select_lists *first = &s->kept.jobs->lists;
    int heads = 0;
    if (s->kept.n == 0)
        return false;
    for (int i = 0; i < s->kept.n; i++) {
        const struct select_lists *l = &s->kept.jobs[i].lists;
        heads += c->runs[i].n;
        if (l->bq != first->bq || l->bk != first->bk ||
            (!are_blocks(l) && l->own && c->choices[c->runs[i].first].fetch))
            return false;
    }
    return heads == c->call->n && s->call.problem.nk <= INT32_MAX / 4;
}

static void fill_units(const struct select_lists *l, const struct map_totals *t,
                       const int32_t *count, struct accel_units *u)
{
    int32_t *own = u->count;
    memcpy(own, count, (size_t)l->groups * sizeof *own);
    *u = (struct accel_units){.on_device = true,
                              .bq = l->bq,
                              .bk = l->bk,
                              .groups = l->groups,
                              .count = own,
                              .pairs = (int64_t)t->pairs,
                              .units = (int64_t)t->units,
                              .kept64 = (int64_t)t->kept64,
                              .empty = (int64_t)t->empty,
                              .tiles = {(int64_t)t->kept128}};
}

/* Tiles that gathered keys of every head would fill. */
static int count_gathered(struct accel_session *s, const struct choosing *c, struct err *err)
{
    const struct tile_rows *r = &s->kept.rows;
    int64_t rows = c->call->n * r->groups;
    int32_t *n = NULL;
    int rc = 0;
    TRY(mem_alloc(&n, rows, sizeof *n, "tiles of rows", err));
    TRY(gpu_get(&s->gpu, n, r->keys, rows * 4, err));
    for (int64_t i = 0; i < rows; i++)
        c->choices[i / r->groups].keep_on_device->tiles[1] += ceil_div(n[i], ACCEL_TILE);
out:
    free(n);
    return rc;
}

static int count_kept(struct accel_session *s, const struct choosing *c, struct err *err)
{
    const struct select_lists *l = &s->kept.jobs->lists;
    bool blocks = s->kept.lists.maps.heads != 0;
    struct map_totals *totals = NULL;
    int32_t *count = NULL;
    int n = c->call->n, rc = 0;

    TRY(mem_alloc(&totals, n, sizeof *totals, "counts of masks", err));
    TRY(mem_alloc(&count, n * l->groups, sizeof *count, "counts of masks", err));
    if (blocks)
        TRY(map_lists_totals(&s->gpu, &s->kept.lists, totals, count, err));
    else
        TRY(tile_rows_totals(&s->gpu, &s->kept.rows, totals, count, err));
    for (int i = 0; i < n; i++) {
        struct accel_units *u = c->choices[i].keep_on_device;
        TRY(mem_alloc(&u->count, l->groups, sizeof *u->count, "counts of masks", err));
        fill_units(l, totals + i, count + i * l->groups, u);
    }
    if (!blocks)
        TRY(count_gathered(s, c, err));
out:
    free(totals);
    free(count);
    return rc;
}

static int keep_masks(struct accel_session *s, const struct choosing *c, struct err *err)
{
    const struct select_job *job = s->kept.jobs;
    const struct attn_problem *p = &s->call.problem;
    const uint32_t **map = NULL;
    int rc = 0;

    TRY(mem_alloc(&map, c->call->n, sizeof *map, "maps of heads", err));
    for (int i = 0; i < s->kept.n; i++)
        for (int h = 0; h < c->runs[i].n; h++)
            map[c->runs[i].first + h] =
                job[i].lists.map + h * job[i].lists.groups * job[i].lists.words;
    struct unit_maps m = {c->call->n,       p->nq,     p->nk, job->lists.bq, job->lists.bk,
                          job->lists.words, p->causal, map};
    if (are_blocks(&job->lists))
        TRY(map_lists_init(&s->gpu, &m, &s->kept.lists, err));
    else
        TRY(tile_rows_init(&s->gpu, &m, &s->kept.rows, err));
    TRY(count_kept(s, c, err));
out:
    free(map);
    return rc;
}

/* The maps of a job's heads to the host, and what comes beside them, where they are wanted. */
static int fetch_maps(struct accel_session *s, const struct choosing *c,
                      const struct select_job *job, struct head_run r, struct err *err)
{
    const struct select_lists *l = &job->lists;
    int64_t n = l->groups * l->words;
    int rc = 0;
    for (int i = 0; i < r.n; i++) {
        const struct accel_choice *choice = c->choices + r.first + i;
        struct accel_units *u = choice->keep_on_device;
        if (choice->own)
            TRY(select_fetch_own(&s->gpu, job, i, choice->own, err));
        if (!choice->fetch)
            continue;
        u->words = l->words;
        TRY(mem_alloc(&u->map, n, sizeof *u->map, "map of a mask", err));
        TRY(gpu_get(&s->gpu, u->map, l->map + i * n, n * (int64_t)sizeof *u->map, err));
    }
out:
    return rc;
}

static int end_kept(struct accel_session *s, const struct choosing *c, struct err *err)
{
    int rc = 0;
    if (!c->keep)
        return 0;
    bool stay = can_keep(s, c);
    if (stay)
        TRY(keep_masks(s, c, err));
    for (int i = 0; i < s->kept.n; i++)
        if (stay)
            TRY(fetch_maps(s, c, s->kept.jobs + i, c->runs[i], err));
        else
            TRY(fetch_masks(s, c->call, s->kept.jobs + i, c->runs[i], err));
    if (!stay)
        session_drop_kept(s);
out:
    return rc;
}

/* ---- selection of a call -------------------------------------------------------------------- */

/* The answer to a run of heads; `full`: every pair is kept. */
static void answer_run(struct accel_session *s, const struct accel_call *call, struct head_run r,
                       int answer, bool full)
{
    const struct attn_problem *p = &s->call.problem;
    for (int i = r.first; i < r.first + r.n; i++) {
        struct accel_head *h = call->heads + i;
        h->answer = answer;
        if (i > r.first)
            memcpy(h->why, call->heads[r.first].why, sizeof h->why);
        if (full)
            mask_full(&h->mask, p->nq, p->nk, 0, p->nq, p->causal);
    }
}

static int select_runs(struct accel_session *s, const struct choosing *c, struct err *err)
{
    const struct accel_call *call = c->call;
    struct head_run r;
    int rc = 0;

    for (int i = 0; i < call->n; i += r.n) {
        struct select_problem p;
        bool full = false;
        r = (struct head_run){i, 1, 1};
        if (!c->choices[i].method)
            continue;
        r = run_from(call->n, call->group, i, run_same_choice, c->choices);
        const struct select_method *m =
            run_select(&s->call, c->choices, r, &p, &full, call->heads[i].why);
        answer_run(s, call, r, m ? 0 : ACCEL_NO_SELECT, full);
        if (m && !full)
            TRY(choose_run(s, c, m, &p, r, err));
    }
out:
    return rc;
}

static int select_locked(struct accel_session *s, struct choosing *c, struct err *err)
{
    struct stopwatch watch = {.since = clock_ns()};
    int rc = 0;

    CU(err, cudaSetDevice(s->gpu.device));
    session_drop_kept(s);
    TRY(session_put_call(s, c->call, err));
    TRY(call_choices(c->call, &c->choices, err));
    TRY(begin_kept(s, c, err));
    stopwatch_lap(&watch, "reference");
    TRY(select_runs(s, c, err));
    stopwatch_lap(&watch, "choice");
    TRY(end_kept(s, c, err));
    stopwatch_lap(&watch, "counts");
    stopwatch_log(&watch, "choice on the GPU");
out:
    if (rc)
        session_drop_kept(s);
    free(c->choices);
    free(c->runs);
    return rc;
}

int session_select_call(struct accel_session *s, const struct accel_call *call, struct err *err)
{
    struct choosing c = {.call = call};
    session_lock(s);
    int rc = select_locked(s, &c, err);
    session_unlock(s);
    return rc;
}
