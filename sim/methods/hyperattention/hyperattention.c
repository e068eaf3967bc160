/*
 * HyperAttention: exact attention inside of blocks of hashed and sorted tokens, and a uniform
 * sample of keys that stands for all others.
 *
 *   bin(x) = sum_r 2^r [x . g_r > 0], rank = Gray code of the bin; queries and keys are sorted by
 *   rank, block c of queries attends to block c of keys with weight 1 and to the m drawn keys
 *   outside of it with weight N_k / m each: out_i = sum_j W_ij e^{s_ij} v_j / sum_j W_ij e^{s_ij}
 *
 * I. Han et al., "HyperAttention: Long-context Attention in Near-Linear Time", arXiv:2310.05869,
 * and its code (insuhan/hyper-attn). A causal head is halved until it has min_len rows: the halves
 * are causal, the later half attends to the earlier one as above. O(N (block + samples) D) per
 * level.
 *
 * Deviations: random numbers are lacuna's, keyed by seed and call; an odd half has one row more
 * and no row of padding; the blocks of queries of a square that is not square are ceil(N_q /
 * blocks) rows. official_pad=1 has the zero rows that the code puts behind the last block;
 * exclude=0 counts drawn keys of the own block twice, as one of its two paths does.
 */
#include "core/intmath.h"
#include "core/mem.h"
#include "core/sort.h"
#include "sim/blocks/exact.h"
#include "sim/blocks/selectcost.h"
#include "sim/blocks/slicemask.h"
#include "sim/methods/hyperattention/hyperplan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the plan: algorithms 1 to 4 as the published code has them ------------------------------ */

/* O(N projs D) for the hash, O(N log N) for the order, per level of the recursion. */

void hyper_merge(double lse1, double lse2, double *t, double *lse)
{
    double top = fmax(lse1, lse2);
    if (top == -INFINITY) {
        *t = 1;
        *lse = -INFINITY;
        return;
    }
    double a = exp(lse1 - top), b = exp(lse2 - top);
    *t = a / (a + b);
    *lse = top + log(a + b);
}

/* ---- the hash ------------------------------------------------------------------------------- */

static int make_directions(struct hyper_plan *p, int d, struct err *err)
{
    const struct own_hashed *r = &p->rule;
    int64_t n = r->projs;
    uint64_t stream = own_direction_stream(r);
    PASS_ON(mem_alloc(&p->dir, n * d, sizeof *p->dir, "directions", err));
    for (int64_t i = 0; i < n * d; i++)
        p->dir[i] = r->axes ? (double)(i % d == i / d) : rng_normal(r->seed, stream, (uint64_t)i);
    return 0;
}

static uint32_t rank_of(const struct hyper_plan *p, const float *x, int d)
{
    uint32_t bin = 0;
    for (int r = 0; r < p->rule.projs; r++) {
        double sum = 0;
        for (int c = 0; c < d; c++)
            sum += p->dir[(int64_t)r * d + c] * (double)x[c];
        bin |= (uint32_t)(sum > 0) << r;
    }
    return own_hash_rank(bin, p->rule.inverse);
}

/* Rows [r0, r1) of x in the order of their ranks, stably: order [r1 - r0], absolute. */
static int sort_rows(const struct hyper_plan *p, const float *x, int64_t r0, int64_t r1, int d,
                     int32_t *order, struct err *err)
{
    OWN(free_at) int64_t *start = NULL;
    int64_t bins = (int64_t)1 << p->rule.projs, n = r1 - r0;
    OWN(free_at) uint32_t *rank = NULL;
    PASS_ON(mem_alloc(&rank, n, sizeof *rank, "ranks", err));
    PASS_ON(mem_zalloc(&start, bins + 1, sizeof *start, "bins", err));
    for (int64_t i = 0; i < n; i++) {
        rank[i] = rank_of(p, x + (r0 + i) * d, d);
        start[rank[i] + 1]++;
    }
    for (int64_t b = 0; b < bins; b++)
        start[b + 1] += start[b];
    for (int64_t i = 0; i < n; i++)
        order[start[rank[i]]++] = (int32_t)(r0 + i);
    return 0;
}

/* ---- a square ------------------------------------------------------------------------------- */

static int by_key(const void *a, const void *b)
{
    return compare_i32(&((const struct hyper_sample *)a)->key,
                       &((const struct hyper_sample *)b)->key);
}

/* Keys drawn from the sorted order with replacement, equal ones together. */
static int draw(const struct hyper_plan *p, int64_t square, struct err *err)
{
    const struct own_square *at = p->at.square + square;
    struct hyper_square *s = p->squares + square;
    int64_t m = p->rule.samples, n = at->k1 - at->k0, kept = 0;
    uint64_t stream = rng_head_stream(own_draw_stream(&p->rule, square), p->rule.head);
    PASS_ON(mem_alloc(&s->samples, m, sizeof *s->samples, "drawn keys", err));
    for (int64_t i = 0; i < m; i++) {
        int64_t to = (int64_t)rng_below(p->rule.seed, stream, (uint64_t)i, (uint64_t)n);
        s->samples[i] = (struct hyper_sample){s->keys[to], (int32_t)(to / p->rule.block), 1};
    }
    qsort(s->samples, (size_t)m, sizeof *s->samples, by_key);
    for (int64_t i = 0; i < m; i++)
        if (kept && s->samples[kept - 1].key == s->samples[i].key)
            s->samples[kept - 1].count++;
        else
            s->samples[kept++] = s->samples[i];
    s->n_samples = kept;
    return 0;
}

static int hash_square(const struct hyper_plan *p, const struct attn_in *x, int64_t square,
                       struct err *err)
{
    const struct own_square *at = p->at.square + square;
    struct hyper_square *s = p->squares + square;
    int64_t nq = at->q1 - at->q0, nk = at->k1 - at->k0, b = p->rule.block;
    OWN(free_at) int32_t *order = NULL;
    PASS_ON(mem_alloc(&s->block_of, nq, sizeof *s->block_of, "blocks of queries", err));
    PASS_ON(mem_alloc(&s->keys, nk, sizeof *s->keys, "keys by block", err));
    PASS_ON(mem_alloc(&order, nq, sizeof *order, "sorted queries", err));
    PASS_ON(sort_rows(p, x->q, at->q0, at->q1, x->d, order, err));
    for (int64_t i = 0; i < nq; i++)
        s->block_of[order[i] - at->q0] = (int32_t)(i / at->per);
    PASS_ON(sort_rows(p, x->k, at->k0, at->k1, x->d, s->keys, err));
    if (at->draws)
        PASS_ON(draw(p, square, err));
    for (int64_t c = 0; c < at->blocks; c++)
        qsort(s->keys + c * b, (size_t)MIN(b, nk - c * b), sizeof *s->keys, compare_i32);
    return 0;
}

/* ---- a head --------------------------------------------------------------------------------- */

int hyper_plan_cut(struct hyper_plan *p, const struct own_hashed *rule, const struct attn_in *x,
                   struct err *err)
{
    *p = (struct hyper_plan){.rule = *rule, .nk = x->nk};
    return own_squares_make(rule, x->nq, x->nk, x->causal, &p->at, err);
}

int hyper_plan_hash(struct hyper_plan *p, const struct attn_in *x, struct err *err)
{
    int rc = 0;
    TRY(mem_zalloc(&p->squares, p->at.n + 1, sizeof *p->squares, "squares", err));
    TRY(make_directions(p, x->d, err));
    for (int64_t k = 0; k < p->at.n; k++)
        if (p->at.square[k].hashed)
            TRY(hash_square(p, x, k, err));
out:
    free(p->dir);
    p->dir = NULL;
    return rc;
}

void hyper_plan_free(struct hyper_plan *p)
{
    for (int64_t i = 0; p->squares && i < p->at.n; i++) {
        free(p->squares[i].block_of);
        free(p->squares[i].keys);
        free(p->squares[i].samples);
    }
    free(p->squares);
    free(p->dir);
    own_squares_free(&p->at);
    memset(p, 0, sizeof *p);
}

/* ---- a row ---------------------------------------------------------------------------------- */

static struct hyper_part hashed_part(const struct hyper_plan *p, int64_t square, int64_t i)
{
    int64_t block = p->squares[square].block_of[i - p->at.square[square].q0];
    return (struct hyper_part){0, 0, square, block};
}

int hyper_parts(const struct hyper_plan *p, int64_t i, struct hyper_part parts[HYPER_PARTS])
{
    struct own_walk w = {0, p->at.nq, 1};
    int n = 0;
    if (!p->at.causal) {
        parts[0] = p->at.n_hashed ? hashed_part(p, 0, i) : (struct hyper_part){0, p->nk, -1, 0};
        return 1;
    }
    for (int32_t s; (s = own_walk_next(p->at.node, i, &w)) >= 0;)
        parts[n++] = hashed_part(p, s, i);
    parts[n++] = (struct hyper_part){w.lo, i + 1, -1, 0};
    return n;
}

int64_t hyper_block(const struct hyper_plan *p, int64_t square, int64_t block, const int32_t **keys)
{
    const struct own_square *at = p->at.square + square;
    int64_t b = p->rule.block, n = at->k1 - at->k0, from = block * b;
    *keys = p->squares[square].keys + from;
    return MIN(b, n - from);
}

enum { GRAY_OFFICIAL, GRAY_INVERSE };
enum { NORMAL, AXES };
static const char *const grays[] = {"official", "inverse", NULL};

struct params {
    int64_t projs, block, samples, min_len;
    int gray, proj_dir;
    bool exclude, official_pad;
};

static const struct opt options[] = {
    OPT_INT(struct params, projs, "7", 1, 16, "bits", "Bits of the hash."),
    OPT_INT(struct params, block, "256", 1, 1e9, "tokens", "Keys of a block."),
    OPT_INT(struct params, samples, "256", 0, 1e7, "keys",
            "Keys drawn for all queries of a head (causal: of a half)."),
    OPT_INT(struct params, min_len, "4096", 0, 1e9, "tokens",
            "Shorter sequences, and causal halves up to this length, are exact."),
    OPT_ENUM(struct params, gray, "official", grays,
             "Order of the bins: their Gray code as in the published table, or the inverse map, "
             "whose neighbours differ in one bit."),
    OPT_BOOL(struct params, exclude, "1",
             "Drawn keys of the query's own block do not count again."),
    OPT_BOOL(struct params, official_pad, "0",
             "The zero rows that fill the last block count as keys of score 0, as in the code."),
    OPT_ENUM(struct params, proj_dir, "normal", TEXTS("normal", "axes"),
             "Directions: random, or the first unit vectors, which depend on no seed."),
    {0},
};

struct state {
    struct hyper_plan plan;
    const struct head_in *in;
    bool weighted;              /* weights, or zero rows */
    double *score, *weighted_v; /* [samples of a row], [dv]; NULL: attend was not called */
    double *est;                /* [nq] log-sum-exp with weights; rows not attended to: NAN */
    struct slice_mask given;    /* the mask of a device that chose; bits NULL: none did */
};

static void release(void *state)
{
    struct state *s = state;
    hyper_plan_free(&s->plan);
    free(s->score);
    free(s->weighted_v);
    free(s->est);
    slice_mask_free(&s->given);
}

/* Everything that the plan follows from, but for q and k. */
static void fill_rule(const struct params *p, const struct head_in *in, uint64_t seed,
                      struct own_hashed *r)
{
    memset(r, 0, sizeof *r);
    r->block = p->block;
    r->samples = p->samples;
    r->min_len = p->min_len;
    r->seed = seed;
    r->projs = (int32_t)p->projs;
    r->layer = in->layer;
    r->step = in->step;
    r->head = in->head;
    r->inverse = p->gray == GRAY_INVERSE;
    r->exclude = p->exclude;
    r->padded = p->official_pad;
    r->axes = p->proj_dir == AXES;
    snprintf(r->branch, sizeof r->branch, "%s", in->branch ? in->branch : "");
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    const struct params *p = params;
    struct state *s = state;
    struct own_hashed rule;
    if (in->x.causal && in->x.nq != in->x.nk)
        return method_skip(ctx, "causal heads need as many queries as keys");
    if (p->proj_dir == AXES && p->projs > in->x.d)
        return method_skip(ctx, "proj_dir=axes has no %lld unit vectors in a head of dimension %d",
                           (long long)p->projs, in->x.d);
    fill_rule(p, in, ctx->seed, &rule);
    if (in->branch && strcmp(in->branch, rule.branch) != 0)
        return err_set(err, ERR_INPUT, "branch '%s': a name of at most %zu characters was expected",
                       in->branch, sizeof rule.branch - 1);
    s->in = in;
    PASS_ON(hyper_plan_cut(&s->plan, &rule, &in->x, err));
    for (int64_t k = 0; k < s->plan.at.n; k++)
        s->weighted = s->weighted || s->plan.at.square[k].draws || s->plan.at.square[k].zeros;
    return 0;
}

/* Hash, unless that was done or there is nothing to hash. */
static int make_plan(struct state *s, struct err *err)
{
    return s->plan.squares || s->plan.at.n_hashed == 0 ? 0
                                                       : hyper_plan_hash(&s->plan, &s->in->x, err);
}

/* ---- the mask: every pair with a weight ------------------------------------------------------ */

/* The ascending lists of a block and of the drawn keys, together; without the samples: one. */
static int add_hashed(const struct state *s, const struct hyper_part *part, bool samples,
                      struct mask *m, int64_t g, struct err *err)
{
    const struct hyper_square *q = s->plan.squares + part->square;
    const int32_t *keys;
    int64_t n = hyper_block(&s->plan, part->square, part->block, &keys), a = 0, b = 0;
    int64_t drawn = samples ? q->n_samples : 0;
    while ((a < n || b < drawn)) {
        int32_t x = a < n ? keys[a] : INT32_MAX, y = b < drawn ? q->samples[b].key : INT32_MAX;
        a += x <= y;
        b += y <= x;
        PASS_ON(mask_lists_add(m, g, x < y ? x : y, err));
    }
    return 0;
}

static int make_mask(struct state *s, bool samples, int64_t row0, int64_t row1, struct mask *out,
                     struct err *err)
{
    const struct attn_in *x = &s->in->x;
    struct hyper_part parts[HYPER_PARTS];
    PASS_ON(make_plan(s, err));
    PASS_ON(mask_lists_init(out, x->nq, x->nk, row0, row1, x->causal, 1, 1, err));
    for (int64_t i = row0; i < row1; i++) {
        int n = hyper_parts(&s->plan, i, parts);
        for (int k = 0; k < n; k++)
            PASS_ON(parts[k].square >= 0 ? add_hashed(s, &parts[k], samples, out, i - row0, err)
                                         : mask_lists_add_run(out, i - row0, (int32_t)parts[k].lo,
                                                              (int32_t)parts[k].hi, err));
    }
    mask_lists_finish(out);
    return 0;
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct state *s = state;
    const struct attn_in *x = &s->in->x;
    if (s->plan.at.n_hashed == 0)
        mask_full(out, x->nq, x->nk, row0, row1, x->causal);
    else if (s->given.bits)
        PASS_ON(slice_mask_lists(&s->given, row0, row1, out, err));
    else
        PASS_ON(make_mask(s, true, row0, row1, out, err));
    out->exec = EXEC_NONE; /* report has what the blocks and samples multiply */
    return 0;
}

/* ---- on a device ---------------------------------------------------------------------------- */

static bool rule(const void *state, struct rule *rule, char why[160])
{
    const struct state *s = state;
    rule->of.hashed = s->plan.rule;
    rule->of.hashed.head = 0;
    rule->data = &s->plan.rule.head;
    return true;
}

static int take(void *state, const struct device_choice *c, struct err *err)
{
    struct state *s = state;
    if (c->lists && c->lists->form == MASK_FULL && s->plan.at.n_hashed == 0)
        return 0;
    return slice_mask_take(&s->given, c, 1, 1, 0, err);
}

/* Also without weights: blocks of sorted tokens are no tiles of a mask. */
static void how(const void *state, struct arithmetic *a, char why[160])
{
    const struct state *s = state;
    if (s->plan.at.n_hashed == 0)
        return;
    a->kind = ARITH_KERNEL;
    a->own = (struct own_rule){.kind = OWN_HASHED};
    a->own.of.hashed = s->plan.rule;
}

static int est_init(struct state *s, struct err *err)
{
    int64_t nq = s->in->x.nq;
    PASS_ON(s->est ? 0 : mem_alloc(&s->est, nq, sizeof *s->est, "estimated sums", err));
    for (int64_t i = 0; i < nq; i++)
        s->est[i] = NAN;
    return 0;
}

static int done(void *state, double tiles_pv, const double *lse, struct err *err)
{
    struct state *s = state;
    PASS_ON(est_init(s, err));
    memcpy(s->est, lse, (size_t)s->in->x.nq * sizeof *lse);
    return 0;
}

/* ---- attention ------------------------------------------------------------------------------ */

/* Does the key count as drawn for a query of this block? */
static bool counts(const struct state *s, const struct hyper_part *part,
                   const struct hyper_sample *drawn)
{
    return !s->plan.rule.exclude || drawn->block != part->block;
}

static double dot(const float *a, const float *b, int d)
{
    double sum = 0;
    for (int c = 0; c < d; c++)
        sum += (double)a[c] * b[c];
    return sum;
}

/* Scores plus log weights of the drawn keys of row i; returns the largest. The zero rows of a last
 * block are one entry, and no value: *pad. */
static double sample_scores(struct state *s, int64_t i, const struct hyper_part *parts, int n,
                            double *pad)
{
    const struct attn_in *x = &s->in->x;
    double top = -INFINITY;
    int64_t e = 0, zeros = 0;
    for (int k = 0; k < n; k++) {
        if (parts[k].square < 0)
            continue;
        const struct own_square *at = s->plan.at.square + parts[k].square;
        const struct hyper_square *q = s->plan.squares + parts[k].square;
        double share = (double)(at->k1 - at->k0) / (double)s->plan.rule.samples;
        for (int64_t r = 0; r < q->n_samples; r++) {
            if (!counts(s, &parts[k], &q->samples[r]))
                continue;
            s->score[e] =
                x->scale * dot(x->q + i * x->d, x->k + (int64_t)q->samples[r].key * x->d, x->d) +
                log(share * q->samples[r].count);
            top = fmax(top, s->score[e++]);
        }
        zeros += parts[k].block == at->blocks - 1 ? at->zeros : 0;
    }
    *pad = zeros ? log((double)zeros) : -INFINITY;
    return fmax(top, *pad);
}

/* Output and log-sum-exp of the drawn keys alone. */
static double sample_output(struct state *s, int64_t i, const struct hyper_part *parts, int n)
{
    const struct attn_in *x = &s->in->x;
    double pad, top = sample_scores(s, i, parts, n, &pad), sum = 0;
    int64_t e = 0;
    if (top == -INFINITY)
        return top;
    for (int c = 0; c < x->dv; c++)
        s->weighted_v[c] = 0;
    for (int k = 0; k < n; k++) {
        if (parts[k].square < 0)
            continue;
        const struct hyper_square *q = s->plan.squares + parts[k].square;
        for (int64_t r = 0; r < q->n_samples; r++) {
            if (!counts(s, &parts[k], &q->samples[r]))
                continue;
            double w = exp(s->score[e++] - top);
            const float *v = x->v + (int64_t)q->samples[r].key * x->dv;
            sum += w;
            for (int c = 0; c < x->dv; c++)
                s->weighted_v[c] += w * v[c];
        }
    }
    sum += exp(pad - top);
    for (int c = 0; c < x->dv; c++)
        s->weighted_v[c] /= sum;
    return top + log(sum);
}

static int buffers(struct state *s, struct err *err)
{
    int64_t samples = s->plan.rule.samples;
    if (s->score)
        return 0;
    PASS_ON(est_init(s, err));
    PASS_ON(mem_alloc(&s->weighted_v, s->in->x.dv, sizeof *s->weighted_v, "weighted values", err));
    return mem_alloc(&s->score, samples * HYPER_PARTS + 1, sizeof *s->score, "scores", err);
}

/* Pairs of weight 1 by the exact softmax of the framework, then the drawn keys of each row. */
static int attend(void *state, const struct mask *m, double *out, double *lse, double *tiles_pv,
                  struct err *err)
{
    struct state *s = state;
    struct hyper_part parts[HYPER_PARTS];
    OWN(mask_free) struct mask ones = {0};
    int64_t dv = s->in->x.dv;
    PASS_ON(buffers(s, err));
    PASS_ON(make_mask(s, false, m->row0, m->row1, &ones, err));
    PASS_ON(exact_attend(s->in->exact, &ones, out, lse, err));
    for (int64_t i = m->row0; i < m->row1; i++) {
        double t, *o = out + (i - m->row0) * dv, *l = lse + (i - m->row0);
        double drawn = sample_output(s, i, parts, hyper_parts(&s->plan, i, parts));
        if (drawn != -INFINITY) {
            hyper_merge(*l, drawn, &t, l);
            for (int64_t c = 0; c < dv; c++)
                o[c] = t * o[c] + (1 - t) * s->weighted_v[c];
        }
        s->est[i] = *l;
    }
    return 0;
}

/* Mean and standard deviation of the estimated share of a row's mass. A row's share is cut at
 * e^300, so that its square is a number. */
static int report_mass(struct state *s, struct record *r, struct err *err)
{
    int64_t nq = s->in->x.nq;
    const double *lse;
    double sum = 0, squares = 0;
    PASS_ON(exact_lse(s->in->exact, 0, nq, &lse, err));
    for (int64_t i = 0; i < nq; i++) {
        double x = !s->est || isnan(s->est[i]) ? 1 : exp(fmin(s->est[i] - lse[i], 300));
        sum += x;
        squares += x * x;
    }
    double mean = sum / (double)nq;
    return RECORD_ALL(r, err, {"mass_est_mean", mean},
                      {"mass_est_sd", sqrt(fmax(squares / (double)nq - mean * mean, 0))});
}

static int report(void *state, struct record *r, struct err *err)
{
    struct state *s = state;
    const struct own_squares *at = &s->plan.at;
    record_note(r, "squares=%lld;hashed=%lld", (long long)at->n, (long long)at->n_hashed);
    PASS_ON(RECORD_ALL(r, err, {"pairs_exec", at->pairs},
                       {"density_exec", at->pairs / record_get(r, "pairs_allowed")}));
    if (s->weighted)
        return report_mass(s, r, err);
    return 0;
}

/* Every square hashes its queries and keys; drawn keys are attended to, not chosen by data. */
static bool cost(const void *state, struct select_cost *c)
{
    const struct state *s = state;
    for (int64_t k = 0; k < s->plan.at.n; k++) {
        const struct own_square *q = s->plan.at.square + k;
        double tokens = q->hashed ? (double)(q->q1 - q->q0 + q->k1 - q->k0) : 0;
        cost_products(c, tokens * s->plan.rule.projs, s->in->x.d);
        cost_rows(c, s->in, tokens, s->in->x.d);
        cost_kept(c, tokens);
    }
    return true;
}

static bool why_full(const void *state, char why[160])
{
    const struct state *s = state;
    snprintf(why, 160, "%lld tokens have no part of min_len=%lld", (long long)s->in->x.nq,
             (long long)s->plan.rule.min_len);
    return s->plan.at.n_hashed == 0;
}

const struct method method_hyperattention = {
    .name = "hyperattention",
    .alias = "hyper-attention",
    .summary = "blocks of hashed and sorted tokens, and drawn keys with weights for the rest",
    .paper =
        "Han et al., HyperAttention: Long-context Attention in Near-Linear Time, arXiv 2310.05869",
    .flags = METHOD_CAUSAL | METHOD_BIDIRECTIONAL | METHOD_RANDOM,
    .params = {.table = options,
               .size = sizeof(struct params),
               .budget = BUDGET_PARAMS(BUDGET_BY(BUDGET_COUNT, "samples"))},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .release = release,
    .cost = cost,
    .why_full = why_full,
    .device = {.rule = rule, .take = take, .keep_on_device = method_always},
    .arith = {.kind = ARITH_KERNEL, .how = how, .attend = attend, .done = done},
    .tests = {.full = "min_len=1000000000",
              .variants = TEXTS("min_len=0:block=16:samples=8",
                                "min_len=32:block=16:samples=40:gray=inverse",
                                "min_len=0:block=24:samples=16:exclude=0:official_pad=1",
                                "min_len=50:block=64:samples=0:proj_dir=axes")},
};
