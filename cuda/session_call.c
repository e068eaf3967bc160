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

#include <assert.h>
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
    struct own_operands *operands; /* [n_operands] of 8 bits, for some of `attend` */
    struct select_job *select;
    int n, n_operands;
};

typedef int launch_fn(struct gpu *g, const void *job, struct err *err);

/* Launch n jobs of so many bytes, side by side: one fills what the last rows of another leave.
 * Those with a filter come first, as rows are whole where a head skips. */
static int launch_beside(struct gpu *g, launch_fn *fn, const void *jobs, size_t size, int n,
                         struct err *err)
{
    struct gpu beside = *g;
    beside.stream = g->side;
    if (n > 1)
        PASS_ON(gpu_fork(g, err));
    for (int i = 0; i < n; i++)
        PASS_ON(fn(n > 1 && i % 2 == 0 ? &beside : g, (const char *)jobs + (size_t)i * size, err));
    return n > 1 ? gpu_join(g, err) : 0;
}

static int launch_attend(struct gpu *g, const void *job, struct err *err)
{
    return attn_job_launch(g, job, err);
}

static int launch_attends(struct gpu *g, const void *jobs, struct err *err)
{
    const struct jobs *j = jobs;
    return launch_beside(g, launch_attend, j->attend, sizeof *j->attend, j->n, err);
}

static int launch_operands(struct gpu *g, const void *jobs, struct err *err)
{
    const struct jobs *j = jobs;
    for (int i = 0; i < j->n_operands; i++)
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
    }
    for (int i = 0; i < j->n_operands; i++)
        own_operands_free(j->operands + i);
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

/* Which kernels a launch has. */
enum launch_kind { LAUNCH_FILTER, LAUNCH_LISTS, LAUNCH_DENSE, LAUNCH_KINDS };

/* Heads of the section that attend together, whatever lies between them. */
struct launch {
    enum launch_kind kind;
    int first, n;                      /* they are order[first .. first + n) */
    const struct accel_filter *filter; /* of the first of them, NULL: none; others differ in pv */
    const struct attn_kernel *kernel;
    const struct filter_kernel *filtering; /* LAUNCH_FILTER: what `kernel` belongs to */
    const struct own_operands *quant;      /* of the section; NULL: q, k, v as they are */
    struct attn_problem problem;           /* of all heads of the section */
    struct attn_plan plan;                 /* owned; rows are those of `problem` */
};

struct attend {
    struct accel_session *s;
    const struct accel_call *call;
    bool own_kernel, adds, filters;  /* the heads have it, or `added`; some have a filter */
    struct attn_tensors x;           /* of all heads */
    float *whole_lse;                /* [n][nq] of the whole masks, where x.lse is not */
    struct own_job own;              /* with `own_kernel`, in place of `jobs` */
    struct added_job added;          /* with `adds`, after `jobs` */
    const struct session_plan *held; /* of the lists, made for an earlier call; or NULL */
    struct accel_lists lists;        /* as asked, or of `plan` or `held`: ptr of the host, the rest
                                      * not set */
    struct map_plan plan;            /* tiles of masks that are on the device, */
    struct list_plan *block_plans;   /* or blocks of them: of launches that are planned together;
                                      * owned */
    int n_block_plans;
    struct launch *launches; /* [n_launches], owned; those of a kind follow each other */
    int n_launches;
    int *order;      /* [count] heads, counted from the section's first; owned */
    int64_t *blocks; /* [count] in the lists of each, owned */
    struct jobs jobs, whole, dense, select, build; /* `jobs` and `whole`: of `launches` */
    int64_t groups;                                /* rows of blocks of a head */
};

/* The heads that the lists are of. */
static struct head_run section_of(const struct attend *a)
{
    return (struct head_run){a->lists.first, a->lists.count, a->lists.count / a->call->group};
}

static struct accel_head *head_at(const struct attend *a, int i)
{
    return a->call->heads + a->lists.first + a->order[i];
}

static bool makes_blocks(const struct attend *a)
{
    return a->lists.made == ACCEL_LISTS;
}

static bool keeps_all(const struct attend *a)
{
    return !a->lists.ptr && !makes_blocks(a);
}

/* ---- launches ------------------------------------------------------------------------------- */

static enum attn_element element_of(const struct accel_filter *f)
{
    return !f || !f->quant.levels ? ATTN_BF16 : f->quant.e4m3 ? ATTN_INT8 : ATTN_INT8_F16;
}

/* Have dense kernels the arithmetic of a head that keeps everything? */
static bool dense_takes(const struct attend *a, const struct accel_filter *f)
{
    enum attn_element element = element_of(f);
    return element == ATTN_BF16 ||
           (a->s->gpu.sm == 90 && attn8_takes(&f->quant, element, element == ATTN_INT8 ? 128 : 64));
}

static enum launch_kind kind_of(const struct attend *a, const struct accel_head *h)
{
    const struct accel_lists *l = &a->lists;
    bool blocks = makes_blocks(a) || (!l->made && !l->bits && !l->keys && !a->held);
    if (keeps_all(a) || (h->whole && blocks && dense_takes(a, h->filter)))
        return LAUNCH_DENSE;
    return h->filter ? LAUNCH_FILTER : LAUNCH_LISTS;
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

/* May heads with these filters be of one launch? Each has its own distance there. Heads that skip
 * nothing have a launch of their own, whose kernel may have no filter. */
static bool same_filter(const struct accel_filter *a, const struct accel_filter *b)
{
    if (!a || !b)
        return a == b;
    return a->scope == b->scope && a->tail == b->tail &&
           a->keep_denominator == b->keep_denominator &&
           (a->pv == INFINITY) == (b->pv == INFINITY) && same_arithmetic(&a->quant, &b->quant);
}

/* Put the heads of the section into launches, as few as there can be. */
static int set_launches(struct attend *a, struct err *err)
{
    const struct accel_head *heads = a->call->heads + a->lists.first;
    int count = a->lists.count, at = 0;
    OWN(free_at) bool *there = NULL;

    PASS_ON(mem_zalloc(&there, count, sizeof *there, "launches", err));
    PASS_ON(mem_zalloc(&a->launches, count, sizeof *a->launches, "launches", err));
    PASS_ON(mem_zalloc(&a->order, count, sizeof *a->order, "launches", err));
    for (enum launch_kind kind = 0; kind < LAUNCH_KINDS; kind++)
        for (int i = 0; i < count; i++) {
            if (there[i] || kind_of(a, heads + i) != kind)
                continue;
            struct launch *l = a->launches + a->n_launches++;
            *l = (struct launch){.kind = kind, .first = at, .filter = heads[i].filter};
            for (int k = i; k < count; k++) {
                bool joins =
                    kind_of(a, heads + k) == kind && same_filter(l->filter, heads[k].filter);
                there[k] |= joins;
                if (joins)
                    a->order[at++] = k;
            }
            l->n = at - l->first;
        }
    return 0;
}

static struct attn_problem problem_of(const struct attend *a)
{
    struct attn_problem p = a->s->call.problem;
    const struct accel_lists *l = &a->lists;
    struct head_run r = section_of(a);
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

static int find_kernel(const struct attend *a, struct launch *l, struct err *err)
{
    char why[160];
    l->problem = problem_of(a);
    if (l->kind == LAUNCH_DENSE)
        l->problem.lists = ATTN_DENSE;
    if (l->kind != LAUNCH_FILTER)
        return attn_kernel_for(&l->problem, a->s->gpu.sm, element_of(l->filter), &l->kernel, err);
    assert(l->filter);
    l->filtering = filter_kernel_find(l->problem.d, a->s->gpu.sm, l->filter, why);
    if (!l->filtering)
        return err_set(err, ERR_RUN, "%s", why);
    l->kernel = &l->filtering->kernel;
    l->problem.lists = l->kernel->lists;
    return 0;
}

/* ---- plans ---------------------------------------------------------------------------------- */

/* The problem of n heads of a launch alone, as its plan is made. */
static struct attn_problem part_of(const struct attend *a, const struct launch *l, int n)
{
    struct attn_problem p = l->problem;
    p.heads = n;
    p.kv_heads = ceil_div(n, a->call->group);
    return p;
}

/* Rows of a head of the section in the lists. */
static const int64_t *rows_of(const struct attend *a, int head)
{
    return a->lists.ptr + head * a->groups;
}

/* The list of row g of blocks of a head, whose blocks are several of the kernel's: those of them
 * with a pair that is allowed. Returns their number. */
static int64_t split_blocks(const struct attend *a, int head, int64_t g, int split, int32_t *out)
{
    const struct accel_lists *l = &a->lists;
    const struct attn_problem *p = &a->s->call.problem;
    const int64_t *row = rows_of(a, head) + g;
    int64_t last = MIN((g + 1) * l->bq, p->nq), keys = p->causal ? last + p->nk - p->nq : p->nk;
    int64_t n = 0;
    for (int64_t i = row[0]; i < row[1]; i++)
        for (int k = 0; k < split; k++)
            if ((l->col[i] * (int64_t)split + k) * (l->bk / split) < keys)
                out[n++] = l->col[i] * split + k;
    return n;
}

/* Lists of the host that are no part of the caller's. */
struct own_lists {
    int64_t *ptr;
    int32_t *col;
};

static void own_lists_free(struct own_lists *l)
{
    free(l->ptr);
    free(l->col);
}

/* The lists of a launch's heads one after the other, in blocks of its kernel. */
static int gather_lists(struct attend *a, const struct launch *l, int split, struct own_lists *own,
                        struct err *err)
{
    int64_t n = 0, at = 0;
    for (int i = l->first; i < l->first + l->n; i++)
        n += a->blocks[a->order[i]];
    PASS_ON(mem_alloc(&own->ptr, l->n * a->groups + 1, sizeof *own->ptr, "lists of heads", err));
    PASS_ON(mem_alloc(&own->col, n * split, sizeof *own->col, "lists of heads", err));
    for (int i = 0; i < l->n; i++) {
        int head = a->order[l->first + i];
        int64_t from = at;
        for (int64_t g = 0; g < a->groups; g++) {
            own->ptr[i * a->groups + g] = at;
            at += split_blocks(a, head, g, split, own->col + at);
        }
        a->blocks[head] = at - from;
    }
    own->ptr[l->n * a->groups] = at;
    return 0;
}

static int csr_of(struct attend *a, const struct launch *l, struct own_lists *own,
                  struct attn_csr *csr, struct err *err)
{
    const struct accel_lists *x = &a->lists;
    bool blocks = !x->made && !x->bits && !x->keys;
    int split = blocks ? x->bk / attn_block_keys(l->problem.lists, NULL) : 1;

    *csr = x->made ? a->plan.tiles.csr : (struct attn_csr){x->ptr,   x->col,    x->bits, x->keys,
                                                           x->words, x->n_bits, false};
    if (l->n == x->count && split == 1)
        return 0;
    PASS_ON(gather_lists(a, l, split, own, err));
    *csr = (struct attn_csr){.ptr = own->ptr, .col = own->col};
    return 0;
}

/* How many of a list's last blocks the launch's kernel never skips, -1: it skips none. */
static int tail_of(const struct launch *l)
{
    return l->kind == LAUNCH_FILTER && l->filtering->skips ? l->filter->tail : -1;
}

/* The plan of a launch over lists of the host, or over all keys. */
static int plan_here(struct attend *a, struct launch *l, struct accel_result *res, struct err *err)
{
    struct attn_problem p = part_of(a, l, l->n);
    const struct attn_tile *tile = &l->kernel->tile;
    int sms = a->s->gpu.sms;
    bool dense = l->kind == LAUNCH_DENSE;
    OWN(own_lists_free) struct own_lists own = {0};
    struct attn_csr csr;
    double since = clock_ns();

    if (!dense)
        PASS_ON(csr_of(a, l, &own, &csr, err));
    if (l->kind == LAUNCH_FILTER)
        PASS_ON(filter_plan_make(&p, l->filtering, &csr, l->filter->tail, sms, &l->plan, err));
    else
        PASS_ON(attn_plan_make(&p, tile, dense ? NULL : &csr, sms, &l->plan, err));
    if (a->lists.static_id && !dense && l->n == a->call->n)
        PASS_ON(session_keep_plan(a->s, a->lists.static_id, &p, &csr, a->groups, &l->plan, err));
    if (l->n < a->lists.count)
        attn_plan_move(&l->plan, a->order + l->first);
    res->host_plan_ns += clock_ns() - since;
    return 0;
}

/* The plans of n launches, whose tiles have one shape, that the device makes together. */
static int plan_blocks(struct attend *a, struct launch *l, int n, struct list_plan *x,
                       struct err *err)
{
    int first = l->first, heads = l[n - 1].first + l[n - 1].n - first;
    struct attn_problem p = part_of(a, l, heads);
    OWN(free_at) struct list_run *runs = NULL;
    OWN(free_at) struct attn_plan *plans = NULL;
    OWN(free_at) int64_t *blocks = NULL;

    PASS_ON(mem_alloc(&runs, n, sizeof *runs, "launches", err));
    PASS_ON(mem_zalloc(&plans, n, sizeof *plans, "launches", err));
    PASS_ON(mem_zalloc(&blocks, heads, sizeof *blocks, "counts of blocks", err));
    for (int i = 0; i < n; i++)
        runs[i] = (struct list_run){l[i].first - first, l[i].n, part_of(a, l, l[i].n).kv_heads,
                                    tail_of(l + i)};
    PASS_ON(list_plan_make(&a->s->gpu, &a->s->kept.lists, a->lists.first, a->order + first, &p,
                           &l->kernel->tile, l->kernel->teams, runs, n, x, plans, blocks, err));
    for (int i = 0; i < n; i++)
        l[i].plan = plans[i];
    for (int i = 0; i < heads; i++)
        a->blocks[a->order[first + i]] = blocks[i];
    return 0;
}

/* Would both have the same items, of the same heads? */
static bool same_items(const struct launch *a, const struct launch *b)
{
    return a->kind == b->kind && (tail_of(a) < 0) == (tail_of(b) < 0) &&
           memcmp(&a->kernel->tile, &b->kernel->tile, sizeof a->kernel->tile) == 0;
}

/* The plan of launch i, and of those that come with it: *n in all. */
static int plan_from(struct attend *a, int i, int *n, struct accel_result *res, struct err *err)
{
    struct launch *l = a->launches + i;
    *n = 1;
    if (l->kind == LAUNCH_DENSE)
        return plan_here(a, l, res, err);
    if (a->held) {
        l->plan = a->held->plan;
        return 0;
    }
    if (makes_blocks(a)) {
        while (i + *n < a->n_launches && tail_of(l) >= 0 && same_items(l, l + *n))
            ++*n;
        return plan_blocks(a, l, *n, a->block_plans + a->n_block_plans++, err);
    }
    if (a->lists.made)
        return row_plan_make(&a->s->gpu, &l->problem, &l->kernel->tile, &a->plan.tiles.csr,
                             a->plan.tiles.at, &a->plan.rows, &l->plan, err);
    return plan_here(a, l, res, err);
}

/* Put the heads into launches, and plan these. */
static int plan_launches(struct attend *a, struct accel_result *res, struct err *err)
{
    PASS_ON(set_launches(a, err));
    PASS_ON(mem_zalloc(&a->block_plans, a->n_launches, sizeof *a->block_plans, "plans", err));
    PASS_ON(mem_zalloc(&a->blocks, a->lists.count, sizeof *a->blocks, "counts of blocks", err));
    for (int h = 0; h < a->lists.count && a->lists.ptr; h++)
        a->blocks[h] = rows_of(a, h)[a->groups] - rows_of(a, h)[0];
    for (int i = 0; i < a->n_launches; i++)
        PASS_ON(find_kernel(a, a->launches + i, err));
    for (int i = 0, n; i < a->n_launches; i += n)
        PASS_ON(plan_from(a, i, &n, res, err));
    for (int i = 0; i < a->n_launches; i++)
        res->balance = fmax(res->balance, a->launches[i].plan.balance);
    return 0;
}

/* ---- jobs ----------------------------------------------------------------------------------- */

/* Operands of 8 bits for a launch, those of an earlier one with the same arithmetic. */
static int make_operands(struct attend *a, struct launch *l, struct err *err)
{
    struct attn_tensors x = run_tensors(&a->s->call, &a->x, section_of(a));
    if (element_of(l->filter) == ATTN_BF16)
        return 0;
    for (const struct launch *k = a->launches; k < l; k++)
        if (k->quant && same_arithmetic(&k->filter->quant, &l->filter->quant)) {
            l->quant = k->quant;
            return 0;
        }
    struct own_operands *ops = a->jobs.operands + a->jobs.n_operands++;
    l->quant = ops;
    return own_operands_init(&a->s->gpu, &l->problem, &l->filter->quant, &x, ops, err);
}

/* A launch's job; x: where the outputs go. */
static int make_job(const struct attend *a, const struct launch *l, const struct attn_tensors *x,
                    struct attn_job *job, struct err *err)
{
    struct gpu *g = &a->s->gpu;
    struct attn_tensors own = run_tensors(&a->s->call, x, section_of(a));
    const struct own_operands *q = l->quant;
    OWN(free_at) struct accel_filter *f = NULL;

    if (l->kind != LAUNCH_FILTER)
        return q ? attn8_job_init(g, &l->problem, l->kernel, &l->plan, &q->x, &q->scales, job, err)
                 : attn_job_init(g, &l->problem, l->kernel, &l->plan, &own, job, err);
    PASS_ON(mem_alloc(&f, a->lists.count, sizeof *f, "filters", err));
    for (int h = 0; h < a->lists.count; h++)
        f[h] = *l->filter;
    for (int i = l->first; i < l->first + l->n; i++)
        f[a->order[i]].pv = head_at(a, i)->filter->pv;
    return filter_job_init(g, &l->problem, l->filtering, &l->plan, f, a->lists.count,
                           q ? &q->x : &own, q ? &q->scales : NULL, job, err);
}

/* Units of a filter with a pair that is allowed. */
static double units_allowed(const struct attn_problem *p, const struct accel_filter *f)
{
    int64_t n = 0;
    for (int64_t row = f->bq; row - f->bq < p->nq; row += f->bq) {
        int64_t keys = p->causal ? MIN(row, p->nq) + p->nk - p->nq : p->nk;
        n += keys > 0 ? ceil_div(keys, f->bk) : 0;
    }
    return (double)n;
}

/* Pairs that the heads of a launch multiply; those with a filter are counted by their kernel. */
static void count_pairs(const struct attend *a, const struct launch *l)
{
    int64_t pairs = (int64_t)attn_block_rows(l->problem.lists, &l->kernel->tile) *
                    attn_block_keys(l->problem.lists, &l->kernel->tile);
    for (int i = l->first; i < l->first + l->n; i++) {
        struct accel_head *h = head_at(a, i);
        bool dense = l->kind == LAUNCH_DENSE;
        h->pairs_exec = pairs * (dense ? l->plan.blocks / l->n : a->blocks[a->order[i]]);
        if (dense && h->filter)
            h->tiles_pv = units_allowed(&l->problem, h->filter);
        snprintf(h->kernel, sizeof h->kernel, "%s", l->kernel->name);
    }
}

/* The methods' own arithmetic for all heads of the section. */
static int make_own(struct attend *a, struct accel_result *res, struct err *err)
{
    struct head_run all = section_of(a);
    struct attn_problem p = problem_of(a);
    struct attn_tensors x = run_tensors(&a->s->call, &a->x, all);
    OWN(free_at) struct own_rule *rules = NULL;
    PASS_ON(mem_alloc(&rules, all.n, sizeof *rules, "rules of heads", err));
    for (int h = 0; h < all.n; h++)
        rules[h] = *a->call->heads[all.first + h].own_kernel;
    PASS_ON(own_job_init(&a->s->gpu, &p, rules, &x, &a->own, err));
    res->host_plan_ns += a->own.plan_ns;
    res->balance = a->own.balance;
    for (int h = 0; h < all.n; h++) {
        struct accel_head *head = a->call->heads + all.first + h;
        head->pairs_exec = a->own.pairs[h];
        snprintf(head->kernel, sizeof head->kernel, "%s", a->own.name);
    }
    return 0;
}

static int make_jobs(struct attend *a, struct accel_result *res, struct err *err)
{
    const struct accel_lists *l = &a->lists;

    a->groups = l->ptr ? ceil_div(a->s->call.problem.nq, l->bq) : 0;
    if (a->own_kernel)
        return make_own(a, res, err);
    PASS_ON(plan_launches(a, res, err));
    PASS_ON(mem_zalloc(&a->jobs.attend, a->n_launches, sizeof *a->jobs.attend, "launches", err));
    PASS_ON(
        mem_zalloc(&a->jobs.operands, a->n_launches, sizeof *a->jobs.operands, "operands", err));
    for (int i = 0; i < a->n_launches; i++) {
        a->jobs.n = i + 1;
        PASS_ON(make_operands(a, a->launches + i, err));
        PASS_ON(make_job(a, a->launches + i, &a->x, a->jobs.attend + i, err));
        count_pairs(a, a->launches + i);
    }
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
        return 0;
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

/* Is the LSE of a launch not that of its whole masks? */
static bool lacks_whole(const struct attend *a, const struct launch *l)
{
    return a->own_kernel || (l->filter && (!l->filter->keep_denominator || l->quant));
}

/* Attention of a launch once more, exactly and with skipped tiles in its normaliser. A filter that
 * skips nothing may have no kernel in exact arithmetic: lists have. */
static int add_whole(struct attend *a, const struct launch *l, const struct attn_tensors *x,
                     struct err *err)
{
    struct accel_filter f = l->filter ? *l->filter : (struct accel_filter){0};
    struct accel_result ignored = {0};
    struct list_plan on_device;
    struct launch exact = *l;
    char why[160];
    int rc = 0;

    f.keep_denominator = true;
    f.quant = (struct own_quantised){0};
    exact.filter = l->filter ? &f : NULL;
    exact.quant = NULL;
    if (l->kind == LAUNCH_FILTER && !filter_kernel_find(l->problem.d, a->s->gpu.sm, &f, why)) {
        exact.kind = LAUNCH_LISTS;
        exact.filter = NULL;
    }
    PASS_ON(find_kernel(a, &exact, err));
    bool here = l->kind == LAUNCH_DENSE || !makes_blocks(a), planned = !same_items(&exact, l);
    if (planned) {
        exact.plan = (struct attn_plan){0};
        rc =
            here ? plan_here(a, &exact, &ignored, err) : plan_blocks(a, &exact, 1, &on_device, err);
    }
    rc = rc ? rc : make_job(a, &exact, x, a->whole.attend + a->whole.n++, err);
    if (planned)
        attn_plan_free(&exact.plan);
    return rc;
}

/* The LSE of the whole masks, where own arithmetic or a filter has another. Outputs go to the
 * call's scratch. */
static int run_whole(struct attend *a, struct err *err)
{
    struct gpu *g = &a->s->gpu;
    struct attn_tensors x = a->s->call.x;
    int64_t bytes = a->s->call.problem.heads * a->s->call.problem.nq * 4;
    struct accel_result ignored = {0};

    a->whole_lse = a->x.lse;
    if (a->own_kernel && keeps_all(a))
        return 0;
    if (a->own_kernel)
        PASS_ON(plan_launches(a, &ignored, err));
    bool any = false;
    for (int i = 0; i < a->n_launches; i++)
        any |= lacks_whole(a, a->launches + i);
    if (!any)
        return 0;
    PASS_ON(gpu_alloc(g, bytes, &x.lse, err));
    PASS_ON(gpu_copy(g, x.lse, a->x.lse, bytes, err));
    PASS_ON(mem_zalloc(&a->whole.attend, a->n_launches, sizeof *a->whole.attend, "launches", err));
    for (int i = 0; i < a->n_launches; i++)
        if (lacks_whole(a, a->launches + i))
            PASS_ON(add_whole(a, a->launches + i, &x, err));
    PASS_ON(launch_attends(g, &a->whole, err));
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
static int count_filtered(struct attend *a, struct err *err)
{
    const struct accel_lists *l = &a->lists;
    OWN(free_at) double *tiles = NULL;
    PASS_ON(mem_alloc(&tiles, a->lists.count, sizeof *tiles, "counts of tiles", err));
    for (int i = 0; i < a->jobs.n; i++) {
        const struct launch *of = a->launches + i;
        if (of->kind != LAUNCH_FILTER)
            continue;
        if (of->filtering->skips)
            PASS_ON(filter_tiles(&a->s->gpu, a->jobs.attend + i, of->filtering, tiles, err));
        for (int k = of->first; k < of->first + of->n; k++) {
            struct accel_head *h = head_at(a, k);
            int head = a->order[k];
            h->tiles_pv = of->filtering->skips ? tiles[head] : (double)a->blocks[head];
            h->pairs_exec =
                (int64_t)(((double)a->blocks[head] + h->tiles_pv) / 2 * ((double)l->bq * l->bk));
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
    if (!makes_blocks(a))
        return map_plan_launch(g, &a->plan, err);
    return launch_beside(g, list_plan_launch, a->block_plans, sizeof *a->block_plans,
                         a->n_block_plans, err);
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
    bool own_quant = a->own_kernel && a->own.has_quant, quant = own_quant || a->jobs.n_operands,
         plan =
             (makes_blocks(a) ? a->n_block_plans > 0 : a->lists.made) && !a->own_kernel && !built;
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
static void find_way(struct attend *a)
{
    const struct accel_head *h = a->call->heads;
    a->own_kernel = h->own_kernel;
    a->adds = h->added;
    for (int i = 0; i < a->call->n; i++)
        a->filters |= h[i].filter != NULL;
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
    for (int i = 0; i < a->n_launches; i++)
        attn_plan_free(&a->launches[i].plan);
    free(a->launches);
    free(a->block_plans);
    free(a->order);
    free(a->blocks);
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

/* The kernels of the launches, each once. */
static void name_kernels(const struct attend *a, struct accel_result *r)
{
    size_t n = 0;
    snprintf(r->kernel, sizeof r->kernel, "%s", a->own.name);
    for (int i = 0; i < a->jobs.n; i++) {
        const struct attn_kernel *k = a->launches[i].kernel;
        bool named = false;
        for (int j = 0; j < i; j++)
            named |= a->launches[j].kernel == k;
        if (!named && n < sizeof r->kernel)
            n += (size_t)snprintf(r->kernel + n, sizeof r->kernel - n, "%s%s", n ? "+" : "",
                                  k->name);
    }
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
    name_kernels(a, r);
    if (a->own_kernel)
        PASS_ON(own_job_quant(&s->gpu, &a->own, err));
    PASS_ON(launch_operands(&s->gpu, &a->jobs, err));
    PASS_ON(launch_all(&s->gpu, a, err));
    for (int h = own_head(a); h < end; h++)
        PASS_ON(fetch_head(a, h, err));
    PASS_ON(gpu_sync(&s->gpu, err)); /* outputs that stay are read by others next */
    if (a->filters)
        PASS_ON(count_filtered(a, err));
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
    find_way(&a);
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
