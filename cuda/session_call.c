/*
 * session_call.c - a call on the device (struct accel_call in core/accel.h): the masks of all its
 * heads, and attention of all of them, or of a section: one launch over all their lists, metrics
 * and times.
 */
#include "cuda/session.h"

#include "core/clock.h"
#include "core/dtype.h"
#include "core/intmath.h"
#include "core/mem.h"
#include "cuda/attn/attn.h"
#include "cuda/attn/mapplan.h"
#include "cuda/ops.h"
#include "cuda/own/own.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- runs ----------------------------------------------------------------------------------- */

/* May heads a and b be of one run? */
typedef bool same_head_fn(const void *ctx, int a, int b);

/* The run that begins with head `first` of n heads in groups. */
static struct head_run run_from(int n, int group, int first, same_head_fn *same, const void *ctx)
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
    int64_t rows = r.first * p->nq, keys = r.first / (p->heads / p->kv_heads) * p->nk;
    int64_t d = p->d * 2, dv = attn_dv(p->d) * 2;
    return (struct attn_tensors){(const char *)x->q + rows * d, (const char *)x->k + keys * d,
                                 (const char *)x->v + keys * dv, (char *)x->out + rows * dv,
                                 x->lse + rows};
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

/* same_head_fn over struct accel_choice [n]: one launch can choose for both. */
static bool run_same_choice(const void *choices, int i, int k)
{
    const struct accel_choice *c = choices;
    return select_together(c + i, c + k);
}

/* The GPU side for a run and its problem, given the choices of the call's heads; *full: there is
 * nothing to choose, every pair is kept. NULL, with the reason, where the device does not choose.
 */
static const struct select_method *run_select(const struct session_call *c,
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

/* A copy of the heads' choices, one after the other; owned by the caller. */
static int call_choices(const struct accel_call *call, struct accel_choice **out, struct err *err)
{
    PASS_ON(mem_alloc(out, call->n, sizeof **out, "choices of heads", err));
    for (int i = 0; i < call->n; i++)
        (*out)[i] = call->heads[i].choice;
    return 0;
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
    int n = c->call->n;
    c->keep = true;
    for (int i = 0; i < n; i++)
        c->keep &= c->choices[i].method && c->choices[i].keep_on_device;
    if (!c->keep)
        return 0;
    if (!c->call->unmeasured)
        PASS_ON(session_call_dense(s, err));
    PASS_ON(mem_zalloc(&c->runs, n, sizeof *c->runs, "runs of heads", err));
    s->kept.mark = gpu_mark(&s->gpu);
    return mem_zalloc(&s->kept.jobs, n, sizeof *s->kept.jobs, "selections", err);
}

int session_block_keys(const struct accel_session *s, int d)
{
    struct attn_problem p = {1, 1, d, 1, 1, 1, true, ATTN_64x32};
    const struct attn_kernel *k;
    struct err e = {0};
    return attn_kernel_find(&p, s->gpu.sm, NULL, &k, &e) ? 64 : 32;
}

/* Are units whole blocks of the kernels, as session_supports has it? */
static bool are_blocks(const struct accel_session *s, const struct select_lists *l)
{
    return l->bq % 64 == 0 && l->bk % session_block_keys(s, s->call.problem.d) == 0;
}

/* May they become tiles with bits? */
static bool are_fine(const struct select_lists *l)
{
    return l->bq % 64 || l->bk % 64;
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
            (!are_blocks(s, l) && l->own && c->choices[c->runs[i].first].fetch))
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
                              .tiles = {(int64_t)t->kept128, (int64_t)t->kept128}};
}

/* The rows of tiles of every head, and the tiles that gathered keys would fill. */
static int count_tiles(struct accel_session *s, const struct choosing *c, struct err *err)
{
    const struct tile_rows *r = &s->kept.rows;
    const int32_t *from[] = {r->place, r->partial, r->keys};
    int64_t rows = c->call->n * r->groups;
    OWN(free_at) int32_t *n = NULL;
    PASS_ON(mem_alloc(&n, 3 * rows, sizeof *n, "tiles of rows", err));
    for (int k = 0; k < 3; k++)
        PASS_ON(gpu_get(&s->gpu, n + k * rows, from[k], rows * 4, err));
    for (int64_t i = 0; i < rows; i++) {
        struct accel_units *u = c->choices[i / r->groups].keep_on_device;
        if (i % r->groups == 0)
            u->tiles[1] = 0;
        if (i % r->groups == 0)
            PASS_ON(
                mem_alloc(&u->tile_rows, r->groups, sizeof *u->tile_rows, "tiles of rows", err));
        u->tile_rows[i % r->groups] = (struct accel_tile_row){n[i], n[rows + i], n[2 * rows + i]};
        u->tiles[1] += ceil_div(n[2 * rows + i], ACCEL_TILE);
    }
    return 0;
}

static int count_kept(struct accel_session *s, const struct choosing *c, struct err *err)
{
    const struct select_lists *l = &s->kept.jobs->lists;
    OWN(free_at) struct map_totals *totals = NULL;
    OWN(free_at) int32_t *count = NULL;
    int n = c->call->n;

    PASS_ON(mem_alloc(&totals, n, sizeof *totals, "counts of masks", err));
    PASS_ON(mem_alloc(&count, n * l->groups, sizeof *count, "counts of masks", err));
    if (are_fine(l))
        PASS_ON(tile_rows_totals(&s->gpu, &s->kept.rows, totals, count, err));
    else
        PASS_ON(map_lists_totals(&s->gpu, &s->kept.lists, totals, count, err));
    for (int i = 0; i < n; i++) {
        struct accel_units *u = c->choices[i].keep_on_device;
        PASS_ON(mem_alloc(&u->count, l->groups, sizeof *u->count, "counts of masks", err));
        fill_units(l, totals + i, count + i * l->groups, u);
    }
    if (!are_blocks(s, l))
        return count_tiles(s, c, err);
    return 0;
}

static int keep_masks(struct accel_session *s, const struct choosing *c, struct err *err)
{
    const struct select_job *job = s->kept.jobs;
    const struct attn_problem *p = &s->call.problem;
    OWN(free_at) const uint32_t **map = NULL;

    PASS_ON(mem_alloc(&map, c->call->n, sizeof *map, "maps of heads", err));
    for (int i = 0; i < s->kept.n; i++)
        for (int h = 0; h < c->runs[i].n; h++)
            map[c->runs[i].first + h] =
                job[i].lists.map + h * job[i].lists.groups * job[i].lists.words;
    struct unit_maps m = {c->call->n,       p->nq,     p->nk, job->lists.bq, job->lists.bk,
                          job->lists.words, p->causal, map};
    if (are_blocks(s, &job->lists))
        PASS_ON(map_lists_init(&s->gpu, &m, &s->kept.lists, err));
    if (are_fine(&job->lists))
        PASS_ON(tile_rows_init(&s->gpu, &m, &s->kept.rows, err));
    return count_kept(s, c, err);
}

/* The maps of a job's heads to the host, and what comes beside them, where they are wanted. */
static int fetch_maps(struct accel_session *s, const struct choosing *c,
                      const struct select_job *job, struct head_run r, struct err *err)
{
    const struct select_lists *l = &job->lists;
    int64_t n = l->groups * l->words;
    for (int i = 0; i < r.n; i++) {
        const struct accel_choice *choice = c->choices + r.first + i;
        struct accel_units *u = choice->keep_on_device;
        if (choice->own)
            PASS_ON(select_fetch_own(&s->gpu, job, i, choice->own, err));
        if (!choice->fetch && !are_blocks(s, l))
            continue;
        u->words = l->words;
        PASS_ON(mem_alloc(&u->map, n, sizeof *u->map, "map of a mask", err));
        PASS_ON(gpu_get(&s->gpu, u->map, l->map + i * n, n * (int64_t)sizeof *u->map, err));
    }
    return 0;
}

static int end_kept(struct accel_session *s, const struct choosing *c, struct err *err)
{
    if (!c->keep)
        return 0;
    bool stay = can_keep(s, c);
    if (stay)
        PASS_ON(keep_masks(s, c, err));
    for (int i = 0; i < s->kept.n; i++)
        if (stay)
            PASS_ON(fetch_maps(s, c, s->kept.jobs + i, c->runs[i], err));
        else
            PASS_ON(fetch_masks(s, c->call, s->kept.jobs + i, c->runs[i], err));
    if (!stay)
        session_drop_kept(s);
    return 0;
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
            PASS_ON(choose_run(s, c, m, &p, r, err));
    }
    return 0;
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

/* ---- work of a sample ----------------------------------------------------------------------- */

struct jobs {
    struct attn_job *attend;       /* [n] */
    struct own_operands *operands; /* [n] of 8 bits, of `attend`; NULL: q, k, v as they are */
    struct select_job *select;
    int n;
};

static int launch_attends(struct gpu *g, const void *jobs, struct err *err)
{
    const struct jobs *j = jobs;
    for (int i = 0; i < j->n; i++)
        PASS_ON(attn_job_launch(g, j->attend + i, err));
    return 0;
}

static int launch_operands(struct gpu *g, const void *jobs, struct err *err)
{
    const struct jobs *j = jobs;
    for (int i = 0; i < j->n && j->operands; i++)
        PASS_ON(own_operands_make(g, j->operands + i, err));
    return 0;
}

static int launch_selects(struct gpu *g, const void *jobs, struct err *err)
{
    const struct jobs *j = jobs;
    for (int i = 0; i < j->n; i++)
        PASS_ON(select_job_choose(g, j->select + i, err));
    return 0;
}

static void jobs_free(struct jobs *j)
{
    for (int i = 0; i < j->n; i++) {
        if (j->attend)
            attn_job_free(j->attend + i);
        if (j->select)
            select_job_free(j->select + i);
        if (j->operands)
            own_operands_free(j->operands + i);
    }
    free(j->attend);
    free(j->operands);
    free(j->select);
    *j = (struct jobs){0};
}

/* Selections again, of the masks that are built or of those that are not. */
static int make_selects(struct accel_session *s, const struct accel_call *call,
                        const struct accel_choice *choices, bool built, struct jobs *out,
                        struct err *err)
{
    struct head_run r;
    char why[160];

    PASS_ON(mem_zalloc(&out->select, call->n, sizeof *out->select, "selections", err));
    for (int i = 0; i < call->n; i += r.n) {
        struct select_problem p;
        bool full = false;
        r = (struct head_run){i, 1, 1};
        if (!choices[i].method || call->heads[i].is_static != built)
            continue;
        r = run_from(call->n, call->group, i, run_same_choice, choices);
        const struct select_method *m = run_select(&s->call, choices, r, &p, &full, why);
        if (!m)
            return err_set(err, ERR_RUN, "%s", why);
        if (full)
            continue;
        p.no_mask = true;
        PASS_ON(select_job_init(&s->gpu, m, &p, out->select + out->n, err));
        out->n++;
    }
    return 0;
}

/* ---- attention ------------------------------------------------------------------------------ */

struct attend {
    struct accel_session *s;
    const struct accel_call *call;
    struct accel_filter *filters;    /* [n], owned; NULL: none */
    bool own_kernel, adds;           /* the heads have it, or `added` */
    struct attn_tensors x;           /* of all heads */
    float *whole_lse;                /* [n][nq] of the whole masks, where x.lse is not */
    struct own_job own;              /* with `own_kernel`, in place of `jobs` */
    struct added_job added;          /* with `adds`, after `jobs` */
    const struct session_plan *held; /* of the lists, made for an earlier call; or NULL */
    struct accel_lists lists;        /* as asked, or of `plan` or `held`: ptr of the host, the rest
                                      * not set */
    struct map_plan plan;            /* tiles of masks that are on the device, */
    struct list_plan block_plan;     /* or blocks of them, */
    int64_t *blocks;                 /* [count] how many, owned; else NULL, */
    struct attn_plan *filter_plans;  /* and with filters the plans of the runs, owned */
    int n_filter_plans;
    struct jobs jobs, whole, dense, select, build;
    const struct filter_kernel **kernels; /* [jobs.n] with filters, owned */
    struct head_run *runs;                /* [jobs.n], owned */
    int64_t groups;                       /* rows of blocks of a head */
};

/* The heads that the lists are of. */
static struct head_run section_of(const struct attend *a)
{
    return (struct head_run){a->lists.first, a->lists.count, a->lists.count / a->call->group};
}

static bool makes_blocks(const struct attend *a)
{
    return a->lists.made == ACCEL_LISTS;
}

static bool keeps_all(const struct attend *a)
{
    return !a->lists.ptr && !makes_blocks(a);
}

/* Rows of a head of the section in the lists. */
static const int64_t *rows_of(const struct attend *a, int head)
{
    return a->lists.ptr + (head - a->lists.first) * a->groups;
}

static int64_t blocks_of(const struct attend *a, int head)
{
    if (a->blocks)
        return a->blocks[head - a->lists.first];
    const int64_t *rows = rows_of(a, head);
    return rows[a->groups] - rows[0];
}

/* The lists of a run's heads, from 0. *ptr is owned by the caller. */
static int csr_of(const struct attend *a, struct head_run r, struct attn_csr *csr, int64_t **ptr,
                  struct err *err)
{
    const struct accel_lists *l = &a->lists;
    const int64_t *rows = rows_of(a, r.first);
    int64_t n = r.n * a->groups, from = rows[0];
    if (l->made) { /* all heads of the section are one run */
        *csr = a->plan.tiles.csr;
        return 0;
    }
    PASS_ON(mem_alloc(ptr, n + 1, sizeof **ptr, "lists of a run of heads", err));
    for (int64_t i = 0; i <= n; i++)
        (*ptr)[i] = rows[i] - from;
    *csr = (struct attn_csr){*ptr,
                             l->col ? l->col + from : NULL,
                             l->bits ? l->bits + from : NULL,
                             l->keys ? l->keys + from * ACCEL_TILE : NULL,
                             l->words,
                             l->n_bits,
                             false};
    return 0;
}

static struct attn_problem problem_of(const struct attend *a, struct head_run r)
{
    struct attn_problem p = a->s->call.problem;
    const struct accel_lists *l = &a->lists;
    p.heads = r.n;
    p.kv_heads = r.kv;
    p.lists = a->held                           ? a->held->problem.lists
              : keeps_all(a)                    ? ATTN_DENSE
              : l->made == ACCEL_TILES          ? ATTN_BITS
              : l->made == ACCEL_GATHERED_TILES ? ATTN_GATHER
              : l->keys                         ? ATTN_GATHER
              : l->bits                         ? ATTN_BITS
              : l->bk == 32                     ? ATTN_64x32
              : l->bq == 64                     ? ATTN_64x64
              : l->bk == 64                     ? ATTN_128x64
                                                : ATTN_128x128;
    return p;
}

/* The plan of lists: kept, the GPU's of its own lists, or the host's, which is kept where the lists
 * are of a static mask. */
static int make_plan(struct attend *a, const struct attn_problem *p, const struct attn_kernel *k,
                     const struct attn_csr *csr, struct attn_plan *plan, struct accel_result *res,
                     struct err *err)
{
    struct gpu *g = &a->s->gpu;
    double since = clock_ns();
    if (a->held) {
        *plan = a->held->plan;
    } else if (makes_blocks(a)) {
        struct list_run all = {0, p->heads, p->kv_heads, -1};
        PASS_ON(list_plan_make(g, &a->s->kept.lists, a->lists.first, p, &k->tile, &all, 1,
                               &a->block_plan, plan, a->blocks, err));
    } else if (a->lists.made) {
        PASS_ON(row_plan_make(g, p, &k->tile, csr, a->plan.tiles.at, &a->plan.rows, plan, err));
    } else {
        PASS_ON(attn_plan_make(p, &k->tile, csr, g->sms, plan, err));
        if (a->lists.static_id && csr && p->heads == a->call->n)
            PASS_ON(session_keep_plan(a->s, a->lists.static_id, p, csr, a->groups, plan, err));
        res->host_plan_ns += clock_ns() - since;
    }
    res->balance = fmax(res->balance, plan->balance);
    return 0;
}

/* The kernel over lists (or the dense one) for a run. */
static int plain_job(struct attend *a, struct head_run r, struct attn_job *job,
                     struct accel_result *res, struct err *err)
{
    struct attn_problem p = problem_of(a, r);
    struct attn_tensors x = run_tensors(&a->s->call, &a->x, r);
    const struct attn_kernel *k = NULL;
    struct attn_plan plan = {0};
    struct attn_csr csr;
    int64_t *ptr = NULL;
    int rc = 0;

    TRY(attn_kernel_find(&p, a->s->gpu.sm, NULL, &k, err));
    if (p.lists != ATTN_DENSE && !a->held && !makes_blocks(a))
        TRY(csr_of(a, r, &csr, &ptr, err));
    TRY(make_plan(a, &p, k, p.lists == ATTN_DENSE ? NULL : &csr, &plan, res, err));
    int64_t pairs =
        (int64_t)attn_block_rows(p.lists, &k->tile) * attn_block_keys(p.lists, &k->tile);
    for (int h = r.first; h < r.first + r.n && !a->own_kernel; h++) {
        int64_t blocks = p.lists == ATTN_DENSE ? plan.blocks / r.n : blocks_of(a, h);
        a->call->heads[h].pairs_exec = blocks * pairs;
    }
    TRY(attn_job_init(&a->s->gpu, &p, k, &plan, &x, job, err));
out:
    attn_plan_free(&plan);
    free(ptr);
    return rc;
}

static int find_filter(const struct attend *a, const struct accel_filter *f, struct attn_problem *p,
                       const struct filter_kernel **kernel, struct err *err)
{
    char why[160];
    *kernel = filter_kernel_find(p->d, a->s->gpu.sm, f, why);
    if (!*kernel)
        return err_set(err, ERR_RUN, "%s", why);
    p->lists = (*kernel)->kernel.lists;
    return 0;
}

/* The host's plan of a run with a filter. */
static int filter_plan(const struct attend *a, struct head_run r, const struct attn_problem *p,
                       const struct attn_tile *tile, int tail, struct attn_plan *plan,
                       struct accel_result *res, struct err *err)
{
    struct attn_csr csr;
    OWN(free_at) int64_t *ptr = NULL;
    PASS_ON(csr_of(a, r, &csr, &ptr, err));
    double since = clock_ns();
    PASS_ON(attn_plan_filtered(p, tile, &csr, tail, a->s->gpu.sms, plan, err));
    if (res)
        res->host_plan_ns += clock_ns() - since;
    return 0;
}

/* The filter's kernel for run number i, in jobs->attend[i]. f: of the run's heads; x: where the
 * outputs go. */
static int filter_job(struct attend *a, int i, const struct accel_filter *f,
                      const struct attn_tensors *x, struct jobs *jobs,
                      const struct filter_kernel **kernel, struct accel_result *res,
                      struct err *err)
{
    struct head_run r = a->runs[i];
    struct attn_problem p = problem_of(a, r);
    struct attn_tensors own = run_tensors(&a->s->call, x, r);
    struct own_operands *ops = jobs->operands ? jobs->operands + i : NULL;
    OWN(attn_plan_free) struct attn_plan plan = {0};
    const struct attn_plan *made = a->filter_plans ? a->filter_plans + i : &plan;

    jobs->n = i + 1;
    PASS_ON(find_filter(a, f, &p, kernel, err));
    if (!a->filter_plans)
        PASS_ON(filter_plan(a, r, &p, &(*kernel)->kernel.tile, f->tail, &plan, res, err));
    if (res)
        res->balance = fmax(res->balance, made->balance);
    if (ops)
        PASS_ON(own_operands_init(&a->s->gpu, &p, &f->quant, &own, ops, err));
    return filter_job_init(&a->s->gpu, &p, *kernel, made, f, r.n, ops ? &ops->x : &own,
                           ops ? &ops->scales : NULL, jobs->attend + i, err);
}

static bool same_arithmetic(const struct own_quantised *a, const struct own_quantised *b)
{
    return a->bq == b->bq && a->bk == b->bk && a->warp == b->warp && a->levels == b->levels &&
           a->gran == b->gran && a->round == b->round && a->fold_scale == b->fold_scale &&
           a->smooth_k == b->smooth_k && a->smooth_v == b->smooth_v &&
           a->inputs_as == b->inputs_as && a->mean_as == b->mean_as && a->keys_as == b->keys_as &&
           a->values_as == b->values_as && a->e4m3 == b->e4m3 && a->offset == b->offset &&
           a->factor == b->factor && a->v_top == b->v_top && a->sum == b->sum;
}

/* May heads with these filters be of one launch? Each has its own distance there. */
static bool same_filter(const void *ctx, int i, int k)
{
    const struct accel_filter *a = (const struct accel_filter *)ctx + i;
    const struct accel_filter *b = (const struct accel_filter *)ctx + k;
    return a->scope == b->scope && a->tail == b->tail &&
           a->keep_denominator == b->keep_denominator && same_arithmetic(&a->quant, &b->quant);
}

/* The plans of n runs that the device makes together: filters of one unit have tiles of one shape.
 */
static int plan_filters(struct attend *a, int n, struct err *err)
{
    int first = a->lists.first;
    struct head_run all = section_of(a);
    struct attn_problem p = problem_of(a, all);
    const struct filter_kernel *kernel;
    OWN(free_at) struct list_run *runs = NULL;
    PASS_ON(find_filter(a, a->filters + first, &p, &kernel, err));
    PASS_ON(mem_alloc(&runs, n, sizeof *runs, "runs of heads", err));
    PASS_ON(mem_zalloc(&a->filter_plans, n, sizeof *a->filter_plans, "plans", err));
    for (int i = 0; i < n; i++) {
        struct head_run r = a->runs[i];
        runs[i] = (struct list_run){r.first - first, r.n, r.kv, a->filters[r.first].tail};
    }
    PASS_ON(list_plan_make(&a->s->gpu, &a->s->kept.lists, first, &p, &kernel->kernel.tile, runs, n,
                           &a->block_plan, a->filter_plans, a->blocks, err));
    a->n_filter_plans = n;
    return 0;
}

static int make_filter_jobs(struct attend *a, struct accel_result *res, struct err *err)
{
    const struct accel_call *call = a->call;
    int first = a->lists.first, end = first + a->lists.count, n = 0;

    PASS_ON(mem_zalloc(&a->kernels, call->n, sizeof *a->kernels, "kernels", err));
    for (int i = first; i < end; i += a->runs[n++].n)
        a->runs[n] = run_from(end, call->group, i, same_filter, a->filters);
    if (makes_blocks(a))
        PASS_ON(plan_filters(a, n, err));
    if (a->filters->quant.levels)
        PASS_ON(mem_zalloc(&a->jobs.operands, n, sizeof *a->jobs.operands, "operands", err));
    for (int i = 0; i < n; i++)
        PASS_ON(filter_job(a, i, a->filters + a->runs[i].first, &a->x, &a->jobs, a->kernels + i,
                           res, err));
    return 0;
}

/* The methods' own arithmetic for all heads of the section. */
static int make_own(struct attend *a, struct head_run all, struct accel_result *res,
                    struct err *err)
{
    struct attn_problem p = problem_of(a, all);
    struct attn_tensors x = run_tensors(&a->s->call, &a->x, all);
    OWN(free_at) struct own_rule *rules = NULL;
    PASS_ON(mem_alloc(&rules, all.n, sizeof *rules, "rules of heads", err));
    for (int h = 0; h < all.n; h++)
        rules[h] = *a->call->heads[all.first + h].own_kernel;
    PASS_ON(own_job_init(&a->s->gpu, &p, rules, &x, &a->own, err));
    res->host_plan_ns += a->own.plan_ns;
    res->balance = a->own.balance;
    for (int h = 0; h < all.n; h++)
        a->call->heads[all.first + h].pairs_exec = a->own.pairs[h];
    return 0;
}

static int launch_all(struct gpu *g, const void *attend, struct err *err)
{
    const struct attend *a = attend;
    int rc = a->own_kernel ? own_job_attend(g, &a->own, err) : launch_attends(g, &a->jobs, err);
    return rc || !a->adds ? rc : added_launch(g, &a->added, err);
}

/* What is added to the outputs of the section. */
static int make_added(struct attend *a, struct err *err)
{
    const struct session_call *c = &a->s->call;
    int first = a->lists.first, count = a->lists.count;
    int64_t n = c->problem.nq * attn_dv(c->problem.d);
    const float **added = NULL;
    int *exp = NULL, rc = 0;
    if (!a->adds)
        return 0;
    TRY(mem_alloc(&exp, count, sizeof *exp, "exponents of outputs", err));
    TRY(mem_alloc(&added, count, sizeof *added, "what is added to outputs", err));
    for (int h = 0; h < count; h++) {
        exp[h] = c->v_exp[(first + h) / (c->problem.heads / c->problem.kv_heads)];
        added[h] = a->call->heads[first + h].added;
    }
    TRY(added_init(&a->s->gpu, added, exp, count, n, &a->added, err));
    a->added.out = (char *)a->x.out + first * n * 2;
    a->added.heads = count;
out:
    free(exp);
    free(added);
    return rc;
}

static int make_jobs(struct attend *a, struct accel_result *res, struct err *err)
{
    const struct accel_lists *l = &a->lists;
    int n = a->lists.count;
    struct head_run all = section_of(a);

    a->groups = l->ptr ? ceil_div(a->s->call.problem.nq, l->bq) : 0;
    if (a->own_kernel)
        return make_own(a, all, res, err);
    PASS_ON(mem_zalloc(&a->jobs.attend, n, sizeof *a->jobs.attend, "launches", err));
    PASS_ON(mem_zalloc(&a->runs, n, sizeof *a->runs, "launches", err));
    if (a->filters)
        return make_filter_jobs(a, res, err);
    PASS_ON(plain_job(a, all, a->jobs.attend, res, err));
    a->runs[a->jobs.n++] = all;
    return 0;
}

/* The plan that an earlier call left, for the same problem. */
static int take_held(struct attend *a, struct err *err)
{
    const struct attn_problem *p = &a->s->call.problem;
    a->held = session_find_plan(a->s, a->lists.static_id);
    if (!a->held)
        return 0;
    const struct attn_problem *of = &a->held->problem;
    if (a->filters || of->heads != p->heads || of->kv_heads != p->kv_heads || of->d != p->d ||
        of->nq != p->nq || of->nk != p->nk || of->causal != p->causal)
        return err_set(err, ERR_RUN, "calls of different kinds have one number of static masks");
    a->lists.ptr = a->held->ptr;
    return 0;
}

/* The lists of the section, made on the device where its masks are. */
static int take_lists(struct attend *a, struct err *err)
{
    struct accel_session *s = a->s;
    if (!a->lists.made)
        return take_held(a, err);
    const struct unit_maps *kept = makes_blocks(a) ? &s->kept.lists.maps : &s->kept.rows.maps;
    if (kept->heads != a->call->n)
        return err_set(err, ERR_RUN, "the masks of the call are no longer on the GPU");
    if (makes_blocks(a))
        return mem_zalloc(&a->blocks, a->lists.count, sizeof *a->blocks, "counts of blocks", err);
    PASS_ON(map_tiles_make(&s->gpu, &s->kept.rows, a->lists.first, a->lists.count,
                           a->lists.made == ACCEL_GATHERED_TILES, &a->plan.tiles, err));
    a->lists.ptr = a->plan.tiles.csr.ptr;
    return 0;
}

/* Dense attention of all heads, to the call's own scratch: what it would be, and where times are
 * taken its job. */
static int make_dense(struct attend *a, struct accel_result *r, struct err *err)
{
    struct accel_session *s = a->s;
    const struct attn_problem *p = &s->call.problem;
    const struct attn_kernel *k = NULL;
    OWN(attn_plan_free) struct attn_plan plan = {0};
    PASS_ON(attn_kernel_find(p, s->gpu.sm, NULL, &k, err));
    snprintf(r->dense_kernel, sizeof r->dense_kernel, "%s", k->name);
    if (s->options.samples <= 0)
        return 0;
    PASS_ON(mem_zalloc(&a->dense.attend, 1, sizeof *a->dense.attend, "launches", err));
    PASS_ON(attn_plan_make(p, &k->tile, NULL, s->gpu.sms, &plan, err));
    PASS_ON(attn_job_init(&s->gpu, p, k, &plan, &s->call.x, a->dense.attend, err));
    a->dense.n = 1;
    return 0;
}

/* Attention over the masks that other arithmetic was about, for their LSE. Outputs go to the call's
 * scratch. */
static int run_mask(struct attend *a, struct err *err)
{
    struct accel_session *s = a->s;
    struct accel_result ignored = {0};
    struct attend mask = *a;

    mask.x = s->call.x;
    PASS_ON(gpu_alloc(&s->gpu, s->call.problem.heads * s->call.problem.nq * 4, &mask.x.lse, err));
    PASS_ON(mem_zalloc(&a->whole.attend, 1, sizeof *a->whole.attend, "launches", err));
    PASS_ON(plain_job(&mask, section_of(a), a->whole.attend, &ignored, err));
    a->whole.n = 1;
    PASS_ON(launch_attends(&s->gpu, &a->whole, err));
    a->whole_lse = mask.x.lse;
    return 0;
}

/* Have all tiles been multiplied, in an arithmetic of the methods? Filters that skip some have
 * kernels in exact arithmetic, too. */
static bool multiplies_all(const struct attend *a)
{
    char why[160];
    struct accel_filter exact;
    if (!a->filters)
        return a->own_kernel;
    exact = a->filters[0];
    exact.quant = (struct own_quantised){0};
    return !filter_kernel_find(a->s->call.problem.d, a->s->gpu.sm, &exact, why);
}

/* The filters of runs that leave skipped tiles out of their normaliser, or round their operands,
 * once more, exactly and with these tiles in it, for the LSE of the whole mask. */
static int run_whole(struct attend *a, struct err *err)
{
    struct accel_session *s = a->s;
    const struct attn_problem *p = &s->call.problem;
    struct attn_tensors x = s->call.x;
    const struct filter_kernel *kernel;
    OWN(free_at) struct accel_filter *all = NULL;

    a->whole_lse = a->x.lse;
    if (multiplies_all(a) && !keeps_all(a))
        return run_mask(a, err);
    if (!a->filters || (a->filters[0].keep_denominator && !a->jobs.operands))
        return 0;
    PASS_ON(gpu_alloc(&s->gpu, p->heads * p->nq * 4, &x.lse, err));
    PASS_ON(mem_zalloc(&a->whole.attend, a->jobs.n, sizeof *a->whole.attend, "launches", err));
    PASS_ON(mem_alloc(&all, p->heads, sizeof *all, "filters", err));
    for (int h = 0; h < p->heads; h++) {
        all[h] = a->filters[h];
        all[h].keep_denominator = true;
        all[h].quant = (struct own_quantised){0};
    }
    for (int i = 0; i < a->jobs.n; i++)
        PASS_ON(filter_job(a, i, all + a->runs[i].first, &x, &a->whole, &kernel, NULL, err));
    PASS_ON(launch_attends(&s->gpu, &a->whole, err));
    a->whole_lse = x.lse;
    return 0;
}

/* ---- results -------------------------------------------------------------------------------- */

/* The first head of the section that is no copy. */
static int own_head(const struct attend *a)
{
    return a->lists.first < a->call->copies ? a->call->copies : a->lists.first;
}

static int fetch_head(struct attend *a, int h, struct err *err)
{
    struct accel_head *r = a->call->heads + h;
    const struct session_call *c = &a->s->call;
    const struct attn_problem *p = &c->problem;
    double unit = ldexp(1, c->v_exp[h / (p->heads / p->kv_heads)]);
    int dv = attn_dv(p->d);
    int64_t n = p->nq * dv;
    const struct accel_operands *o = r->x->on_device;
    const char *from = (const char *)a->x.out + h * n * 2;
    OWN(free_at) uint16_t *out = NULL;
    OWN(free_at) float *lse = NULL;

    if (accel_keeps_output(r->x))
        PASS_ON(
            ops_head_rows(&a->s->gpu, from, 1, p->nq, dv, dv, (float)unit, o->out, o->stride, err));
    if (r->out) {
        PASS_ON(mem_alloc(&out, n, sizeof *out, "output", err));
        PASS_ON(gpu_get(&a->s->gpu, out, from, n * 2, err));
        for (int64_t i = 0; i < n; i++)
            r->out[i] = bf16_to_f32(out[i]) * unit;
    }
    if (r->lse) {
        PASS_ON(mem_alloc(&lse, p->nq, sizeof *lse, "log-sum-exp", err));
        PASS_ON(gpu_get(&a->s->gpu, lse, a->x.lse + h * p->nq, p->nq * 4, err));
        for (int64_t i = 0; i < p->nq; i++)
            r->lse[i] = lse[i];
    }
    return 0;
}

/* How many tiles of P V the launches computed. */
static int count_filtered(struct attend *a, struct accel_result *res, struct err *err)
{
    const struct accel_lists *l = &a->lists;
    OWN(free_at) double *tiles = NULL;
    PASS_ON(mem_alloc(&tiles, a->lists.count, sizeof *tiles, "counts of tiles", err));
    for (int i = 0; i < a->jobs.n; i++) {
        struct head_run r = a->runs[i];
        PASS_ON(filter_tiles(&a->s->gpu, a->jobs.attend + i, a->kernels[i], tiles, err));
        for (int h = r.first; h < r.first + r.n; h++) {
            int64_t blocks = blocks_of(a, h);
            a->call->heads[h].tiles_pv = tiles[h - r.first];
            a->call->heads[h].pairs_exec =
                (int64_t)(((double)blocks + tiles[h - r.first]) / 2 * ((double)l->bq * l->bk));
        }
    }
    return 0;
}

static int measure(struct attend *a, struct err *err)
{
    const struct session_call *c = &a->s->call;
    struct attn_problem p = c->problem;
    int dv = attn_dv(p.d), size = p.heads / p.kv_heads, first = own_head(a),
        end = a->lists.first + a->lists.count;
    int64_t row = first * p.nq, ref_row = (first - c->copies) * p.nq;
    struct metrics_dense ref = {c->dense.out + ref_row * dv, c->dense.lse + ref_row, NULL};
    OWN(free_at) struct accel_sums *sums = NULL;
    OWN(free_at) double *mass = NULL;

    PASS_ON(run_whole(a, err));
    struct metrics_outputs o = {(const char *)a->x.out + row * dv * 2, a->x.lse + row,
                                a->whole_lse + row, keeps_all(a)};
    p.heads = end - first;
    PASS_ON(mem_alloc(&sums, p.heads, sizeof *sums, "sums of errors", err));
    PASS_ON(mem_alloc(&mass, p.heads * p.nq, sizeof *mass, "kept mass of rows", err));
    PASS_ON(metrics_compare(&a->s->gpu, &p, &ref, &o, sums, mass, err));
    for (int h = first; h < end; h++) {
        struct accel_head *head = a->call->heads + h;
        head->sums = sums[h - first];
        head->sums.exp = c->v_exp[h / size];
        memcpy(head->mass, mass + (h - first) * p.nq, (size_t)p.nq * sizeof *mass);
    }
    return 0;
}

/* From masks on the device to their lists or tiles and the order of the work. */
static int launch_plan(struct gpu *g, const void *attend, struct err *err)
{
    const struct attend *a = attend;
    return makes_blocks(a) ? list_plan_launch(g, &a->block_plan, err)
                           : map_plan_launch(g, &a->plan, err);
}

/* Static masks, and what becomes of those that stay on the device. */
static int launch_build(struct gpu *g, const void *attend, struct err *err)
{
    const struct attend *a = attend;
    int rc = launch_selects(g, &a->build, err);
    return rc || !a->lists.made ? rc : launch_plan(g, a, err);
}

static int take_times(struct attend *a, struct accel_result *res, struct err *err)
{
    struct session_work work[6];
    struct accel_time times[6];
    bool chosen = a->select.n > 0, built = a->build.n > 0 && !a->own_kernel;
    bool own_quant = a->own_kernel && a->own.has_quant, quant = own_quant || a->jobs.operands,
         plan = a->lists.made && !a->own_kernel && !built;
    int n = 0;

    if (chosen)
        work[n++] = (struct session_work){launch_selects, &a->select};
    if (plan)
        work[n++] = (struct session_work){launch_plan, a};
    if (own_quant)
        work[n++] = (struct session_work){own_job_quant, &a->own};
    else if (quant)
        work[n++] = (struct session_work){launch_operands, &a->jobs};
    work[n++] = (struct session_work){launch_all, a};
    int chain = n;
    if (a->dense.n)
        work[n++] = (struct session_work){launch_attends, &a->dense};
    if (built)
        work[n++] = (struct session_work){launch_build, a};
    PASS_ON(session_time(a->s, work, n, chain, chain, times, &res->total, err));
    if (chosen)
        res->select = times[0];
    if (plan)
        res->plan = times[chosen];
    if (quant)
        res->quant = times[chain - 2];
    res->attend = times[chain - 1];
    if (a->dense.n)
        res->dense = times[chain];
    if (built)
        res->build = times[chain + 1];
    return 0;
}

/* How the heads attend. */
static int find_way(struct attend *a, struct err *err)
{
    const struct accel_head *h = a->call->heads;
    a->own_kernel = h->own_kernel;
    a->adds = h->added;
    if (!h->filter)
        return 0;
    PASS_ON(mem_alloc(&a->filters, a->call->n, sizeof *a->filters, "filters", err));
    for (int i = 0; i < a->call->n; i++)
        a->filters[i] = *h[i].filter;
    return 0;
}

static void attend_free(struct attend *a)
{
    jobs_free(&a->jobs);
    own_job_free(&a->own);
    jobs_free(&a->whole);
    jobs_free(&a->dense);
    jobs_free(&a->select);
    jobs_free(&a->build);
    map_tiles_free(&a->plan.tiles);
    for (int i = 0; i < a->n_filter_plans; i++)
        attn_plan_free(a->filter_plans + i);
    free(a->filter_plans);
    free(a->filters);
    free(a->blocks);
    free(a->kernels);
    free(a->runs);
}

/* Times and counters of the launches, and in the first section of the choices. */
static int take_samples(struct attend *a, struct accel_result *r, struct err *err)
{
    struct accel_session *s = a->s;
    OWN(free_at) struct accel_choice *choices = NULL;
    if (s->options.samples > 0 && a->lists.first == 0) {
        PASS_ON(call_choices(a->call, &choices, err));
        PASS_ON(make_selects(s, a->call, choices, false, &a->select, err));
        r->selections = a->select.n;
        PASS_ON(make_selects(s, a->call, choices, true, &a->build, err));
    }
    if (s->options.samples > 0)
        PASS_ON(take_times(a, r, err));
    if (s->counters) /* select kernels are not part of what is counted */
        return counters_measure(s->counters, &s->gpu, launch_all, a, &r->counters, err);
    return 0;
}

/* The launches over the lists, with outputs and metrics, in memory that the caller releases. */
static int attend_lists(struct attend *a, struct accel_result *r, struct stopwatch *watch,
                        struct err *err)
{
    struct accel_session *s = a->s;
    const struct attn_problem *p = &s->call.problem;
    int end = a->lists.first + a->lists.count;

    PASS_ON(take_lists(a, err));
    stopwatch_lap(watch, "tiles");
    a->x = s->call.x;
    PASS_ON(gpu_alloc(&s->gpu, p->heads * p->nq * attn_dv(p->d) * 2, &a->x.out, err));
    PASS_ON(gpu_alloc(&s->gpu, p->heads * p->nq * 4, &a->x.lse, err));
    PASS_ON(make_jobs(a, r, err));
    PASS_ON(make_added(a, err));
    if (a->lists.first == 0)
        PASS_ON(make_dense(a, r, err));
    stopwatch_lap(watch, "plan");
    r->launches = a->own_kernel ? a->own.launches : a->jobs.n;
    r->kv = p->kv_heads;
    snprintf(r->kernel, sizeof r->kernel, "%s",
             a->own_kernel ? a->own.name : a->jobs.attend[0].kernel->name);
    if (a->own_kernel)
        PASS_ON(own_job_quant(&s->gpu, &a->own, err));
    PASS_ON(launch_operands(&s->gpu, &a->jobs, err));
    PASS_ON(launch_all(&s->gpu, a, err));
    for (int h = own_head(a); h < end; h++)
        PASS_ON(fetch_head(a, h, err));
    PASS_ON(gpu_sync(&s->gpu, err)); /* outputs that stay are read by others next */
    if (a->filters)
        PASS_ON(count_filtered(a, r, err));
    stopwatch_lap(watch, "outputs");
    return 0;
}

static int attend_locked(struct accel_session *s, const struct accel_call *call,
                         const struct accel_lists *l, struct accel_result *r, struct err *err)
{
    struct attend a = {.s = s, .call = call, .lists = *l};
    bool metrics = call->heads[l->first + l->count - 1].mass != NULL;
    struct gpu_mark mark = gpu_mark(&s->gpu);
    struct stopwatch watch = {.since = clock_ns()};
    int rc = 0;

    CU(err, cudaSetDevice(s->gpu.device));
    TRY(session_put_call(s, call, err));
    if (!l->made)
        session_drop_kept(s);
    mark = gpu_mark(&s->gpu);
    if (metrics) {
        TRY(session_call_dense(s, err));
        mark = gpu_mark(&s->gpu);
    }
    stopwatch_lap(&watch, "reference");
    TRY(find_way(&a, err));
    TRY(attend_lists(&a, r, &watch, err));
    if (metrics)
        TRY(measure(&a, err));
    stopwatch_lap(&watch, "metrics");
    if (!l->untimed)
        TRY(take_samples(&a, r, err));
out:
    attend_free(&a);
    gpu_release(&s->gpu, mark);
    stopwatch_lap(&watch, "release");
    stopwatch_log(&watch, "attention on the GPU");
    return rc;
}

int session_attend_call(struct accel_session *s, const struct accel_call *call,
                        const struct accel_lists *l, struct accel_result *r, struct err *err)
{
    static const struct accel_time none = {NAN, NAN, NAN, 0};
    session_lock(s);
    r->select = r->build = r->plan = r->quant = r->attend = r->dense = r->total = none;
    r->host_plan_ns = r->balance = 0;
    r->counters = (struct accel_counters){NAN, NAN, NAN, NAN, ""};
    memcpy(r->counters.why, s->no_counters, sizeof r->counters.why);
    int rc = attend_locked(s, call, l, r, err);
    session_unlock(s);
    return rc;
}
