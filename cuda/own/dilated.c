/*
 * dilated.c - LongNet's attention (arXiv 2307.02486; the reference is sim/methods/longnet.c).
 *
 * A branch is dense attention over many small problems: the places of one head in one segment. The
 * rows of the problems are gathered one after the other, problems of equal size are the heads of
 * one launch of the dense kernels, and a last kernel mixes the branches. 4 d sum_b N w_b / r_b^2
 * operations per head, half when causal; 8 N d / r_b bytes gathered per head and branch.
 *
 * Query heads of a group share the gathered keys where they have the same phase.
 */
#include "cuda/own/own.h"

#include "core/clock.h"
#include "core/intmath.h"
#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Queries of one head in one segment: nq places that stand at the end of nk when causal. */
struct part {
    int head, kv;
    int64_t segment, q_token, k_token, nq, nk, t0; /* t0: place of the first query */
};

/* Parts of equal size: one launch. */
struct launch {
    struct dilated_gather q, k, v;
    struct attn_job job;
};

struct state {
    struct launch *launches; /* owned */
    int64_t n, cap;
    struct dilated_gather *gathers; /* [3 n], on the device: q, k, v of the launches */
    int64_t most;                   /* rows of the largest */
    struct dilated_merge merge;
};

/* What one branch is made from. */
struct making {
    struct gpu *g;
    struct own_job *job;
    struct state *s;
    const struct own_rule *rules;
    int b;
    bool shared;        /* all heads of a group have one phase */
    struct part *parts; /* owned; the heads of a group follow each other */
    int64_t n, cap, segments;
    int64_t *base; /* [heads][segments], owned, as all below */
    float *zeros;
    int *phase;
    void *out;
    float *lse;
    int64_t rows; /* of out so far */
};

static const struct own_branch *branch_of(const struct making *m, int head)
{
    return m->rules[head].of.dilated.b + m->b;
}

/* Number of places among the first x tokens of a segment. */
static int64_t places_below(const struct own_branch *b, int64_t x)
{
    return x > b->phase ? ceil_div(x - b->phase, b->r) : 0;
}

static int add_part(struct making *m, int head, int64_t segment, struct err *err)
{
    const struct attn_problem *p = &m->job->problem;
    const struct own_branch *b = branch_of(m, head);
    int64_t start = segment * b->w, shift = p->nk - p->nq;
    int64_t p0 = MAX(MAX(0, shift), start), p1 = MIN(p->nk, start + b->w);
    int64_t t0 = places_below(b, p0 - start), t1 = places_below(b, p1 - start);
    int64_t first = start + b->phase;

    if (p1 <= p0 || t1 == t0)
        return 0;
    PASS_ON(mem_grow(&m->parts, &m->cap, m->n + 1, sizeof *m->parts, "segments", err));
    m->parts[m->n++] = (struct part){.head = head,
                                     .kv = head / (p->heads / p->kv_heads),
                                     .segment = segment,
                                     .q_token = first + b->r * t0 - shift,
                                     .k_token = first,
                                     .nq = t1 - t0,
                                     .nk = t1,
                                     .t0 = t0};
    if (!p->causal)
        m->parts[m->n - 1].nk = places_below(b, MIN(b->w, p->nk - start));
    return 0;
}

/* ln of the number of zero keys that fill the segment up. */
static float zeros_of(const struct making *m, int head, int64_t segment)
{
    const struct own_branch *b = branch_of(m, head);
    int64_t valid = MIN(b->w, m->job->problem.nk - segment * b->w);
    int64_t padded = ceil_div(b->w, b->r) * b->r;
    int64_t n = places_below(b, padded) - places_below(b, valid);
    return n > 0 ? logf((float)n) : -INFINITY;
}

static int find_parts(struct making *m, struct err *err)
{
    const struct attn_problem *p = &m->job->problem;
    int size = p->heads / p->kv_heads;
    m->segments = ceil_div(p->nk, branch_of(m, 0)->w);
    m->shared = true;
    for (int h = 0; h < p->heads; h++)
        m->shared &= branch_of(m, h)->phase == branch_of(m, h / size * size)->phase;
    for (int kv = 0; kv < p->kv_heads; kv++)
        for (int64_t s = 0; s < m->segments; s++)
            for (int i = 0; i < size; i++)
                PASS_ON(add_part(m, kv * size + i, s, err));
    return 0;
}

/* ---- a launch ------------------------------------------------------------------------------- */

static bool same_size(const struct part *a, const struct part *b)
{
    return a->nq == b->nq && a->nk == b->nk;
}

/* Where the rows of the parts like `like` come from; queries one by one, keys once per group where
 * they are shared. The rows of out that they take become known. */
static int gather_lists(struct making *m, const struct part *like, struct launch *l,
                        struct err *err)
{
    const struct attn_problem *p = &m->job->problem;
    int size = m->shared ? p->heads / p->kv_heads : 1;
    OWN(free_at) int2 *from = NULL;
    int2 *q = NULL, *k = NULL;
    int64_t n = 0;

    PASS_ON(mem_alloc(&from, 2 * m->n, sizeof *from, "rows of segments", err));
    for (int64_t i = 0; i < m->n; i++) {
        const struct part *x = m->parts + i;
        if (!same_size(x, like))
            continue;
        m->base[x->head * m->segments + x->segment] = m->rows + n * x->nq - x->t0;
        from[n] = (int2){x->head, (int)x->q_token};
        from[m->n + n / size] = (int2){x->kv, (int)x->k_token};
        n++;
    }
    PASS_ON(gpu_upload(m->g, from, n * (int64_t)sizeof *q, &q, err));
    PASS_ON(gpu_upload(m->g, from + m->n, n / size * (int64_t)sizeof *k, &k, err));
    PASS_ON(gpu_sync(m->g, err));
    int64_t r = branch_of(m, 0)->r;
    l->q = (struct dilated_gather){m->job->x.q, NULL, q, p->nq, n, like->nq, r};
    l->k = (struct dilated_gather){m->job->x.k, NULL, k, p->nk, n / size, like->nk, r};
    l->v = l->k;
    l->v.x = m->job->x.v;
    return 0;
}

static int plan_launch(struct making *m, struct launch *l, struct err *err)
{
    struct own_job *job = m->job;
    struct attn_problem p = job->problem;
    struct attn_tensors x = {l->q.out, l->k.out, l->v.out, NULL, NULL};
    const struct attn_kernel *k = NULL;
    OWN(attn_plan_free) struct attn_plan plan = {0};

    p.heads = (int)l->q.parts;
    p.kv_heads = (int)l->k.parts;
    p.nq = l->q.n;
    p.nk = l->k.n;
    x.out = (char *)m->out + m->rows * p.d * 2;
    x.lse = m->lse + m->rows;
    PASS_ON(attn_kernel_find(&p, m->g->sm, NULL, &k, err));
    double since = clock_ns();
    PASS_ON(attn_plan_make(&p, &k->tile, NULL, m->g->sms, &plan, err));
    job->plan_ns += clock_ns() - since;
    job->balance = fmax(job->balance, plan.balance);
    PASS_ON(attn_job_init(m->g, &p, k, &plan, &x, &l->job, err));
    int64_t pairs = plan.blocks / p.heads * attn_block_rows(p.lists, &k->tile) *
                    attn_block_keys(p.lists, &k->tile);
    for (int64_t i = 0; i < m->n; i++)
        if (m->parts[i].nq == p.nq && m->parts[i].nk == p.nk)
            job->pairs[m->parts[i].head] += pairs;
    snprintf(job->name, sizeof job->name, "dilated-%.50s", k->name);
    return 0;
}

static int add_launch(struct making *m, const struct part *like, struct err *err)
{
    struct state *s = m->s;
    PASS_ON(mem_grow(&s->launches, &s->cap, s->n + 1, sizeof *s->launches, "launches", err));
    struct launch *l = s->launches + s->n;
    memset(l, 0, sizeof *l);
    s->n++;
    PASS_ON(gather_lists(m, like, l, err));
    int64_t row = m->job->problem.d * 2;
    PASS_ON(gpu_alloc(m->g, l->q.parts * l->q.n * row, &l->q.out, err));
    PASS_ON(gpu_alloc(m->g, l->k.parts * l->k.n * row, &l->k.out, err));
    PASS_ON(gpu_alloc(m->g, l->v.parts * l->v.n * row, &l->v.out, err));
    PASS_ON(plan_launch(m, l, err));
    m->rows += l->q.parts * l->q.n;
    return 0;
}

/* ---- a branch ------------------------------------------------------------------------------- */

/* What the merge has to know of the branch. */
static int put_branch(struct making *m, struct err *err)
{
    struct dilated_branch *to = m->s->merge.b + m->b;
    const struct own_branch *b = branch_of(m, 0);
    int heads = m->job->problem.heads;
    int64_t n = heads * m->segments;

    *to = (struct dilated_branch){
        .w = b->w, .r = b->r, .segments = m->segments, .out = m->out, .lse = m->lse};
    for (int h = 0; h < heads; h++) {
        m->phase[h] = (int)branch_of(m, h)->phase;
        for (int64_t s = 0; s < m->segments; s++)
            m->zeros[h * m->segments + s] = zeros_of(m, h, s);
    }
    PASS_ON(gpu_upload(m->g, m->phase, heads * (int64_t)sizeof *m->phase, &to->phase, err));
    PASS_ON(gpu_upload(m->g, m->base, n * (int64_t)sizeof *m->base, &to->base, err));
    if (m->rules->of.dilated.padded)
        PASS_ON(gpu_upload(m->g, m->zeros, n * (int64_t)sizeof *m->zeros, &to->zeros, err));
    return gpu_sync(m->g, err);
}

static int add_branch(struct making *m, struct err *err)
{
    const struct attn_problem *p = &m->job->problem;
    int64_t rows = 0;
    int rc = 0;

    TRY(find_parts(m, err));
    for (int64_t i = 0; i < m->n; i++)
        rows += m->parts[i].nq;
    TRY(mem_zalloc(&m->base, p->heads * m->segments, sizeof *m->base, "segments", err));
    TRY(mem_zalloc(&m->zeros, p->heads * m->segments, sizeof *m->zeros, "segments", err));
    TRY(mem_zalloc(&m->phase, p->heads, sizeof *m->phase, "phases", err));
    TRY(gpu_alloc(m->g, rows * p->d * 2, &m->out, err));
    TRY(gpu_alloc(m->g, rows * 4, &m->lse, err));
    for (int64_t i = 0; i < m->n; i++) {
        int64_t j = 0;
        while (!same_size(m->parts + j, m->parts + i))
            j++;
        if (j == i)
            TRY(add_launch(m, m->parts + i, err));
    }
    TRY(put_branch(m, err));
out:
    free(m->parts);
    free(m->base);
    free(m->zeros);
    free(m->phase);
    return rc;
}

/* ---- the kind ------------------------------------------------------------------------------- */

static int check_rules(const struct own_job *job, const struct own_rule *rules, struct err *err)
{
    const struct own_dilated *a = &rules->of.dilated;
    for (int h = 1; h < job->problem.heads; h++) {
        const struct own_dilated *d = &rules[h].of.dilated;
        bool same = d->n == a->n && d->padded == a->padded;
        for (int b = 0; b < a->n && same; b++)
            same = d->b[b].w == a->b[b].w && d->b[b].r == a->b[b].r;
        if (!same)
            return err_set(err, ERR_RUN,
                           "heads of one call with other segments or ratios: --copies replays "
                           "them one by one");
    }
    return 0;
}

static void release(void *state)
{
    struct state *s = state;
    for (int64_t i = 0; s && i < s->n; i++)
        attn_job_free(&s->launches[i].job);
    free(s ? s->launches : NULL);
    free(s);
}

static int put_gathers(struct gpu *g, struct state *s, struct err *err)
{
    OWN(free_at) struct dilated_gather *all = NULL;
    int64_t bytes = 3 * s->n * (int64_t)sizeof *all;
    PASS_ON(mem_alloc(&all, 3 * s->n, sizeof *all, "rows of segments", err));
    for (int64_t i = 0; i < s->n; i++) {
        const struct launch *l = s->launches + i;
        all[3 * i] = l->q;
        all[3 * i + 1] = l->k;
        all[3 * i + 2] = l->v;
        s->most = MAX(s->most, MAX(l->q.parts * l->q.n, l->k.parts * l->k.n));
    }
    PASS_ON(gpu_upload(g, all, bytes, &s->gathers, err));
    return gpu_sync(g, err);
}

static int init(struct gpu *g, struct own_job *job, const struct own_rule *rules, struct err *err)
{
    const struct attn_problem *p = &job->problem;
    struct state *s = NULL;

    PASS_ON(check_rules(job, rules, err));
    PASS_ON(mem_zalloc(&s, 1, sizeof *s, "dilated attention", err));
    job->state = s;
    s->merge = (struct dilated_merge){.n = rules->of.dilated.n,
                                      .heads = p->heads,
                                      .d = p->d,
                                      .nq = p->nq,
                                      .shift = p->nk - p->nq,
                                      .out = job->x.out,
                                      .lse = job->x.lse};
    snprintf(job->name, sizeof job->name, "dilated");
    for (int b = 0; b < s->merge.n; b++) {
        struct making m = {.g = g, .job = job, .s = s, .rules = rules, .b = b};
        PASS_ON(add_branch(&m, err));
    }
    if (s->n)
        PASS_ON(put_gathers(g, s, err));
    job->launches = (int)s->n;
    return 0;
}

static int attend(struct gpu *g, const struct own_job *job, struct err *err)
{
    const struct state *s = job->state;
    if (s->n)
        PASS_ON(dilated_gather_launch(g, s->gathers, 3 * s->n, s->most, job->problem.d, err));
    for (int64_t i = 0; i < s->n; i++)
        PASS_ON(attn_job_launch(g, &s->launches[i].job, err));
    return dilated_merge_launch(g, &s->merge, err);
}

const struct own_kind own_kind_dilated = {.init = init, .attend = attend, .release = release};
