/*
 * fgattn.c - FG-Attn: attention work is skipped in slices of M consecutive queries x one key.
 *
 * FG-Attn, arXiv 2509.16518v1, sections 4.2-4.4; v2's M x N' tiles with `width`. A slice is
 * computed when one of its M probabilities is large:
 *
 *   mode=cached   every R denoising steps attention is dense (a refresh step) and the slices with
 *                 max p > c/N are remembered; the steps in between use that list, with q and k of
 *                 their own
 *   mode=pooled   on every step the mean query of the group decides
 *
 * Kept keys of a group are gathered into 128-key tiles; arithmetic on kept slices is exact softmax.
 * Mask: N^2/M bits per head. A refresh step costs one Q K pass more than dense attention.
 *
 * There is no public code, and the paper leaves open: the tail group (a real group here), text
 * tokens and causal attention (forced keys), dense first layers and steps (options), the guidance
 * branches (separate masks) and the value of tau1 (must be given; the default reading `norm` has
 * the unit of the cached threshold). norm=previous takes the normaliser of the refresh step before,
 * which saves the second pass and costs a second dense step at the start. refresh=1 applies each
 * step's own mask: a bound, not a method.
 */
#include "core/intmath.h"
#include "core/mem.h"
#include "core/permute.h"
#include "core/simd.h"
#include "sim/blocks/exact.h"
#include "sim/blocks/prefix.h"
#include "sim/blocks/selectcost.h"
#include "sim/methods/fgattn/fgattn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the two selection rules ---------------------------------------------------------------- */

/* cached   a_gj = max over the rows i of group g of e^(s_ij - LSE_i); keep iff a_gj > c/N, strict
 *   pooled   t_gj = scale k_j . qbar_g with the mean query of the group
 *              norm     keep iff softmax_j(t_gj) >= c1/N
 *              literal  keep iff t_gj >= ln(tau1 d)    (the printed e^t/d < tau1, as a logarithm)
 *              topk     keep the ceil(kappa N) largest
 *
 * Forced in all of them (our extension, the paper treats bidirectional video only): causal, the
 * keys at or after the group's first row; text tokens in the sequence, as keys for every group and,
 * as rows, with all keys. A group that holds a text row keeps everything, because its rows share
 * one list. Cached: one Q K pass. Pooled: N_q/M x N_k dot products. */

#define TIE 1e-3
#define GATHERED 128 /* rows, and keys, that a kernel takes at once */

/* The N of the threshold c/N. */
static double fg_n(const struct fg_params *p, const struct head_in *in)
{
    return (double)(in->x.nk + (p->normaliser_n ? in->n_padding : 0));
}

/* ---- forced units --------------------------------------------------------------------------- */

static void set_range(struct slice_mask *m, int64_t g, int64_t lo, int64_t hi)
{
    for (int64_t u = lo; u < hi; u++)
        slice_mask_set(m, g, u);
}

/* Text keys [*t0, *t1) of the sequence; empty where there are none. */
static void fg_text_keys(const struct head_in *in, int64_t *t0, int64_t *t1)
{
    int64_t text = in->geom.text_place == 0 ? 0 : MAX(0, in->geom.text);
    *t0 = in->geom.text_place == 1 ? 0 : in->x.nk - text;
    *t1 = *t0 + text;
}

static void force(struct slice_mask *m, const struct head_in *in, int64_t g)
{
    int64_t r0 = g * m->height, r1 = MIN(r0 + m->height, m->nq), visible = slice_mask_visible(m, g);
    int64_t shift = m->nk - m->nq, t0, t1;
    fg_text_keys(in, &t0, &t1);
    if (m->causal)
        set_range(m, g, MAX(0, r0 + shift) / m->width, visible);
    if (t0 == t1)
        return;
    if (r0 + shift < t1 && r1 + shift > t0)
        set_range(m, g, 0, visible);
    else
        set_range(m, g, t0 / m->width, MIN(visible, ceil_div(t1, m->width)));
}

/* ---- cached --------------------------------------------------------------------------------- */

struct cached_run {
    struct slice_mask *mask;
    const struct head_in *in;
    struct fg_stats *stats;
    double c, n;
};

/* Keys that a group keeps; the last unit counts only those that exist. */
static int64_t kept_keys(const struct slice_mask *m, int64_t g)
{
    int64_t last = (m->nk - 1) / m->width, keys = slice_mask_count(m, g) * m->width;
    return slice_mask_has(m, g, last) ? keys - ((last + 1) * m->width - m->nk) : keys;
}

static int cached_group(void *ctx, const struct map_group *g, struct err *err)
{
    struct cached_run *run = ctx;
    int64_t width = run->mask->width;
    for (int64_t u = 0; u * width < g->limit; u++) {
        double a = 0;
        for (int64_t j = u * width; j < MIN(g->limit, (u + 1) * width); j++)
            a = MAX(a, g->max[j]);
        double distance = fabs(log(a * run->n / run->c));
        run->stats->ties += distance < TIE;
        run->stats->margin = MIN(run->stats->margin, distance);
        if (a * run->n > run->c)
            slice_mask_set(run->mask, g->index, u);
    }
    force(run->mask, run->in, g->index);
    run->stats->keys_min = MIN(run->stats->keys_min, kept_keys(run->mask, g->index));
    return 0;
}

int fg_cached_mask(const struct fg_params *p, const struct head_in *in, double c, const double *lse,
                   struct slice_mask *out, struct fg_stats *stats, struct err *err)
{
    const struct attn_in *x = &in->x;
    struct cached_run run = {.mask = out, .in = in, .stats = stats, .c = c, .n = fg_n(p, in)};
    *stats = (struct fg_stats){0, INFINITY, INT64_MAX};
    PASS_ON(slice_mask_init(out, x->nq, x->nk, x->causal, p->M, p->width, err));
    return map_groups(in->exact, lse, p->M, cached_group, &run, err);
}

/* ---- pooled --------------------------------------------------------------------------------- */

/* Sixteen partial sums keep the order of additions fixed and let the compiler vectorise. */
SIMD_CLONES
static double dot_mixed(const double *a, const float *b, int d)
{
    double lane[16] = {0}, sum = 0;
    int c = 0;
    for (; c + 16 <= d; c += 16)
        for (int k = 0; k < 16; k++)
            lane[k] += a[c + k] * b[c + k];
    for (; c < d; c++)
        sum += a[c] * b[c];
    for (int k = 0; k < 16; k++)
        sum += lane[k];
    return sum;
}

/* e^(t - LSE) over n keys, times N. */
static void normalise(double *t, int64_t n, double big_n)
{
    double top = -INFINITY, sum = 0;
    for (int64_t j = 0; j < n; j++)
        top = MAX(top, t[j]);
    for (int64_t j = 0; j < n; j++)
        sum += exp(t[j] - top);
    for (int64_t j = 0; j < n; j++)
        t[j] = exp(t[j] - top) / sum * big_n;
}

/* Decision values of the pooled rule for the units of group g: the largest over the unit's visible
 * keys of pi_gj N (norm) or t_gj = scale k_j . qbar_g (literal, topk).
 * keys [nk] is scratch, value [units]; *n = number of visible units. */
static int fg_pooled_values(const struct fg_params *p, const struct head_in *in,
                            const struct slice_mask *shape, int64_t g, double *keys, double *value,
                            int64_t *n, struct err *err)
{
    const struct attn_in *x = &in->x;
    int64_t r0 = g * p->M, r1 = MIN(r0 + p->M, x->nq), limit = attn_limit(x, r1 - 1);
    double *mean = NULL;
    PASS_ON(mem_zalloc(&mean, x->d, sizeof *mean, "mean query", err));
    for (int64_t i = r0; i < r1; i++)
        for (int c = 0; c < x->d; c++)
            mean[c] += x->q[i * x->d + c];
    for (int c = 0; c < x->d; c++)
        mean[c] /= (double)(r1 - r0);
    for (int64_t j = 0; j < limit; j++)
        keys[j] = x->scale * dot_mixed(mean, x->k + j * x->d, x->d);
    free(mean);
    if (p->pool == FG_POOL_NORM)
        normalise(keys, limit, fg_n(p, in));
    *n = slice_mask_visible(shape, g);
    for (int64_t u = 0; u < *n; u++) {
        value[u] = -INFINITY;
        for (int64_t j = u * p->width; j < MIN(limit, (u + 1) * p->width); j++)
            value[u] = MAX(value[u], keys[j]);
    }
    return 0;
}

/* Units of a group that pool=topk keeps: a share of all keys. */
static int64_t fg_topk_units(const struct fg_params *p, const struct head_in *in)
{
    int64_t want = share_resolve((struct share){p->kappa, true}, in->x.nk);
    return p->width > 1 ? ceil_div(want, p->width) : want;
}

static int pooled_group(const struct fg_params *p, const struct head_in *in, struct slice_mask *m,
                        int64_t g, double *keys, double *value, struct prefix_work *work,
                        struct err *err)
{
    int64_t n;
    struct prefix top;
    PASS_ON(fg_pooled_values(p, in, m, g, keys, value, &n, err));
    if (p->pool == FG_POOL_TOPK) {
        PASS_ON(prefix_topk(work, value, n, fg_topk_units(p, in), &top, err));
        for (int64_t u = 0; u < n; u++)
            if (prefix_has(&top, value[u], u))
                slice_mask_set(m, g, u);
    } else {
        double at = p->pool == FG_POOL_NORM ? p->c1 : log(p->tau1 * in->x.d);
        for (int64_t u = 0; u < n; u++)
            if (value[u] >= at)
                slice_mask_set(m, g, u);
    }
    force(m, in, g);
    return 0;
}

/* Mask of the slices that the pooled rule chooses. Initialises *out. */
static int fg_pooled_mask(const struct fg_params *p, const struct head_in *in,
                          struct slice_mask *out, struct err *err)
{
    const struct attn_in *x = &in->x;
    OWN(free_at) double *keys = NULL, *value = NULL;
    OWN(prefix_work_free_at) struct prefix_work *work = NULL;
    PASS_ON(slice_mask_init(out, x->nq, x->nk, x->causal, p->M, p->width, err));
    PASS_ON(mem_alloc(&keys, x->nk, sizeof *keys, "pooled scores", err));
    PASS_ON(mem_alloc(&value, out->units, sizeof *value, "pooled values", err));
    PASS_ON(prefix_work_new(&work, err));
    for (int64_t g = 0; g < out->groups; g++)
        PASS_ON(pooled_group(p, in, out, g, keys, value, work, err));
    return 0;
}

/* ---- what it costs -------------------------------------------------------------------------- */

/* One pass over all scores, e^(s - LSE) of each; before it another one for the normalisers, unless
 * they are there (has_lse), from a dense call or an earlier step. */
static void fg_cached_cost(const struct head_in *in, bool has_lse, struct select_cost *c)
{
    const struct attn_in *x = &in->x;
    double pairs = cost_pairs(x, 0, x->nq, 1);
    for (int pass = has_lse; pass < 2; pass++) {
        cost_products(c, pairs, x->d);
        cost_sums(c, pass == 0 ? 2 * pairs : pairs); /* exponential and sum; exponential */
        cost_rows(c, in, (double)(x->nq + x->nk), x->d);
    }
    cost_kept(c, (double)x->nq);
}

static void fg_pooled_cost(const struct fg_params *p, const struct head_in *in,
                           struct select_cost *c)
{
    const struct attn_in *x = &in->x;
    double groups = (double)ceil_div(x->nq, p->M), scores = 0;
    for (int64_t r0 = 0; r0 < x->nq; r0 += p->M)
        scores += (double)attn_limit(x, MIN(r0 + p->M, x->nq) - 1);
    cost_sums(c, (double)x->nq * x->d);
    cost_products(c, scores, x->d);
    if (p->pool == FG_POOL_NORM)
        cost_softmax(c, scores);
    cost_rows(c, in, (double)(x->nq + x->nk), x->d);
    cost_kept(c, groups * x->d + scores);
}

/* ---- chosen elsewhere ----------------------------------------------------------------------- */

/* The lists that a device chose for the whole head, without the forced slices or with them.
 * Initialises *out; *keys_min as in fg_stats. */
static int fg_given_mask(const struct fg_params *p, const struct head_in *in,
                         const struct device_choice *c, struct slice_mask *out, int64_t *keys_min,
                         struct err *err)
{
    PASS_ON(slice_mask_take(out, c, p->M, p->width, GATHERED, err));
    out->exec_bk = GATHERED;
    *keys_min = INT64_MAX;
    for (int64_t g = 0; g < out->groups; g++) {
        force(out, in, g);
        *keys_min = MIN(*keys_min, kept_keys(out, g));
    }
    return 0;
}

static const struct opt options[] = {
    OPT_ENUM(struct fg_params, mode, "cached", TEXTS("cached", "pooled"),
             "which rule chooses slices"),
    OPT_INT(struct fg_params, M, "128", 16, 256, "rows", "queries per group, a multiple of 16"),
    OPT_NUM(struct fg_params, tau, "0.5", 0, INFINITY, "1/N",
            "cached: keep iff a slice's largest p > tau/N", .flags = OPT_MIN_OPEN),
    OPT_INT(struct fg_params, refresh, "15", 1, 1e6, "steps",
            "cached: dense step and new mask every so many steps"),
    OPT_ENUM(struct fg_params, norm, "exact", TEXTS("exact", "previous"),
             "cached: normaliser of p on a refresh step"),
    OPT_ENUM(struct fg_params, pool, "norm", TEXTS("norm", "literal", "topk"),
             "pooled: reading of the rule"),
    OPT_NUM(struct fg_params, c1, "0.5", 0, INFINITY, "1/N", "pool=norm: keep iff pi >= c1/N",
            .flags = OPT_MIN_OPEN),
    OPT_NUM(struct fg_params, tau1, NULL, 0, INFINITY, "", "pool=literal: keep iff e^t/d >= tau1",
            .flags = OPT_MIN_OPEN),
    OPT_NUM(struct fg_params, kappa, NULL, 0, 1, "share of N", "pool=topk: keys kept",
            .flags = OPT_MIN_OPEN),
    OPT_INT(struct fg_params, width, "1", 1, 128, "keys", "keys per unit: 1, 8, 16, 32, 64 or 128"),
    OPT_INT(struct fg_params, dense_layers, "0", 0, 1e6, "layers", "first layers that run dense"),
    OPT_INT(struct fg_params, dense_steps, "0", 0, 1e6, "steps",
            "first denoising steps that run dense"),
    OPT_STR(struct fg_params, permute, "none", NULL,
            "token order before grouping: none, row, column, time, random, hilbert, voxel-AxBxC"),
    OPT_ENUM(struct fg_params, normaliser_n, "valid", TEXTS("valid", "all"),
             "N of c/N: valid tokens, or all with the padding text tokens"),
    OPT_BOOL(struct fg_params, compare, "0",
             "on steps that reuse a mask, compare it with the step's own (one more pass)"),
    {0},
};

/* Why a call runs the way it does. */
enum call { CALL_DENSE, CALL_REFRESH, CALL_REUSE, CALL_OWN };

/* From step to step. */
struct fg_carry {
    struct slice_mask mask;
    int made;    /* step of the mask, -1: none */
    double *lse; /* [n_lse] of the last dense step, norm=previous */
    int64_t n_lse;
    int lse_step; /* -1: none */
};

struct state {
    const struct fg_params *params;
    struct head_in in;
    enum call call;
    struct slice_mask own;         /* made by this call, when it is not carried */
    const struct slice_mask *mask; /* applied, or made on a refresh step; NULL: neither */
    struct slice_mask fresh;       /* compare=1: the step's own, once it is made */
    bool comparing;                /* it is wanted */
    struct fg_carry *carry;        /* of the framework's; NULL: no state over steps */
    const double *lse;             /* normaliser of the mask to be made; NULL: this head's */
    bool pending;                  /* a mask is to be made, by the first select or by take */
    struct fg_stats stats;
    bool has_stats, has_keys_min;
    int age;
    bool stays; /* the call's own mask is a device's, of which `pairs` and `units` are kept */
    int64_t pairs, units;
};

static void carry_free(void *data)
{
    struct fg_carry *c = data;
    slice_mask_free(&c->mask);
    free(c->lse);
    free(c);
}

static void release(void *state)
{
    struct state *s = state;
    slice_mask_free(&s->own);
    slice_mask_free(&s->fresh);
}

static int check_order(struct fg_params *p, struct err *err)
{
    /* ':' separates parameters, so on a command line the box stands behind a '-'. */
    if (strncmp(p->permute, "voxel-", 6) == 0)
        p->permute[5] = ':';
    return permute_check(p->permute, err);
}

static int validate(void *params, struct err *err)
{
    struct fg_params *p = params;
    if (p->M % 16)
        return err_set(err, ERR_USAGE, "M=%lld is not a multiple of 16", (long long)p->M);
    if (p->width != 1 && (p->width < 8 || (p->width & (p->width - 1))))
        return err_set(err, ERR_USAGE, "width=%lld is not 1, 8, 16, 32, 64 or 128",
                       (long long)p->width);
    if (p->mode == FG_POOLED && p->pool == FG_POOL_LITERAL && isnan(p->tau1))
        return err_set(err, ERR_USAGE, "pool=literal needs tau1: the paper gives no value");
    if (p->mode == FG_POOLED && p->pool == FG_POOL_TOPK && isnan(p->kappa))
        return err_set(err, ERR_USAGE, "pool=topk needs kappa, the share of keys to keep");
    return check_order(p, err);
}

static const char *token_order(const void *params)
{
    return ((const struct fg_params *)params)->permute;
}

/* ---- cached: refresh and reuse -------------------------------------------------------------- */

static int keep_lse(struct fg_carry *c, const struct head_in *in, struct err *err)
{
    const double *lse;
    if (c->n_lse != in->x.nq) {
        free(c->lse);
        c->lse = NULL;
        c->n_lse = 0;
        PASS_ON(mem_alloc(&c->lse, in->x.nq, sizeof *c->lse, "normalisers of a step", err));
        c->n_lse = in->x.nq;
    }
    PASS_ON(exact_lse(in->exact, 0, in->x.nq, &lse, err));
    memcpy(c->lse, lse, (size_t)in->x.nq * sizeof *c->lse);
    c->lse_step = in->step;
    return 0;
}

static int get_carry(struct method_ctx *ctx, struct fg_carry **out, struct err *err)
{
    *out = NULL;
    if (!ctx->carry)
        return 0;
    if (!ctx->carry->data) {
        struct fg_carry *c = NULL;
        PASS_ON(mem_zalloc(&c, 1, sizeof *c, "masks between steps", err));
        c->made = c->lse_step = -1;
        ctx->carry->data = c;
        ctx->carry->free = carry_free;
    }
    *out = ctx->carry->data;
    return 0;
}

/* The step whose normaliser a refresh step t with norm=previous takes: 0 before 1, 1 or the last
 * multiple of R before the others. -1: t is the first dense step and makes no mask. */
static int previous_step(const struct fg_params *p, int t)
{
    int64_t d = t - p->dense_steps, r = p->refresh, before;
    if (d == 0)
        return -1;
    before = (d - 1) / r * r;
    if (before == 0 && d > 1 && r > 1)
        before = 1;
    return (int)(before + p->dense_steps);
}

/* Find the normaliser that the parameters ask for. *made = false: norm=previous and this is the
 * first step, which makes no mask. */
static int find_normaliser(struct state *s, bool *made, struct method_ctx *ctx)
{
    const struct fg_params *p = s->params;
    const struct fg_carry *c = s->carry;
    *made = true;
    if (p->norm != FG_NORM_PREVIOUS)
        return 0;
    int want = previous_step(p, s->in.step);
    if (want < 0) {
        *made = false;
        return 0;
    }
    if (!c || c->lse_step != want || c->n_lse != s->in.x.nq)
        return method_skip(ctx,
                           "no refresh step in trace (step %d needs the normaliser of step %d)",
                           s->in.step, want);
    s->lse = c->lse;
    return 0;
}

/* The mask is there: applied by this call, or kept for the steps to come. */
static void keep_mask(struct state *s)
{
    struct fg_carry *c = s->carry;
    s->pending = false;
    s->mask = &s->own;
    if (!c || s->call != CALL_REFRESH)
        return;
    slice_mask_free(&c->mask);
    c->mask = s->own;
    memset(&s->own, 0, sizeof s->own);
    s->mask = &c->mask;
    c->made = s->in.step;
}

/* Make the mask that prepare has put off. */
static int make_mask(struct state *s, struct err *err)
{
    if (!s->pending)
        return 0;
    if (s->params->mode == FG_POOLED) {
        PASS_ON(fg_pooled_mask(s->params, &s->in, &s->own, err));
    } else {
        s->has_stats = s->has_keys_min = true;
        PASS_ON(fg_cached_mask(s->params, &s->in, s->params->tau, s->lse, &s->own, &s->stats, err));
    }
    keep_mask(s);
    /* Not before: the mask may want the normaliser that this one replaces. */
    if (s->carry && s->params->mode == FG_CACHED && s->params->norm == FG_NORM_PREVIOUS)
        return keep_lse(s->carry, &s->in, err);
    return 0;
}

static int prepare_refresh(struct state *s, struct method_ctx *ctx, struct err *err)
{
    bool made;
    PASS_ON(find_normaliser(s, &made, ctx));
    s->call = s->params->refresh == 1 && made ? CALL_OWN : CALL_REFRESH;
    s->pending = made;
    if (!made && s->carry)
        return keep_lse(s->carry, &s->in, err);
    return 0;
}

static int prepare_reuse(struct state *s, struct method_ctx *ctx, int want, struct err *err)
{
    const struct attn_in *x = &s->in.x;
    const struct fg_carry *c = s->carry;
    if (!c || c->made != want)
        return method_skip(ctx, "no refresh step in trace (step %d uses the mask of step %d)",
                           s->in.step, want);
    if (c->mask.nq != x->nq || c->mask.nk != x->nk || c->mask.causal != x->causal)
        return err_set(err, ERR_INPUT,
                       "step %d has %lld queries and %lld keys, step %d had %lld and %lld",
                       s->in.step, (long long)x->nq, (long long)x->nk, want, (long long)c->mask.nq,
                       (long long)c->mask.nk);
    s->call = CALL_REUSE;
    s->mask = &c->mask;
    s->age = s->in.step - want;
    s->comparing = s->params->compare;
    return 0;
}

static int prepare_cached(struct state *s, struct method_ctx *ctx, struct err *err)
{
    const struct fg_params *p = s->params;
    int64_t d = s->in.step - p->dense_steps;
    PASS_ON(get_carry(ctx, &s->carry, err));
    PASS_ON(method_all_rows(ctx, &s->in, "mode=cached")); /* before any dense row is computed */
    bool second = p->norm == FG_NORM_PREVIOUS && d == 1;
    if (d % p->refresh == 0 || second)
        return prepare_refresh(s, ctx, err);
    int64_t want = d / p->refresh * p->refresh;
    if (want == 0 && p->norm == FG_NORM_PREVIOUS)
        want = 1;
    return prepare_reuse(s, ctx, (int)(want + p->dense_steps), err);
}

/* ---- callbacks ------------------------------------------------------------------------------ */

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    struct state *s = state;
    const struct fg_params *p = params;
    s->params = p;
    s->in = *in;
    if (in->layer < p->dense_layers || in->step < p->dense_steps) {
        s->call = CALL_DENSE;
    } else if (p->mode == FG_POOLED) {
        s->call = CALL_OWN;
        s->pending = true;
    } else {
        PASS_ON(prepare_cached(s, ctx, err));
    }
    ctx->unit_rows = s->params->M;
    return 0;
}

static bool runs_dense(const struct state *s)
{
    return s->call == CALL_DENSE || s->call == CALL_REFRESH;
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct state *s = state;
    PASS_ON(make_mask(s, err));
    if (!runs_dense(s))
        return slice_mask_lists(s->mask, row0, row1, out, err);
    mask_full(out, s->in.x.nq, s->in.x.nk, row0, row1, s->in.x.causal);
    return 0;
}

/* ---- on a device ---------------------------------------------------------------------------- */

static struct mask_origin origin(void *state)
{
    const struct state *s = state;
    bool carried = s->call == CALL_REFRESH || s->call == CALL_REUSE;
    return (struct mask_origin){.source = s->call == CALL_REUSE ? SOURCE_REUSED
                                          : s->pending          ? SOURCE_OWN
                                                                : SOURCE_STATIC,
                                .calls = carried ? s->params->refresh : 1};
}

/* Only calls that made a mask come here. */
static bool cost(const void *state, struct select_cost *c)
{
    const struct state *s = state;
    if (s->params->mode == FG_POOLED)
        fg_pooled_cost(s->params, &s->in, c);
    else
        fg_cached_cost(&s->in, s->lse || runs_dense(s), c);
    return true;
}

/* How the mask of the head's own q and k is chosen. */
static void own_rule_of(const struct state *s, struct fg_rule *r)
{
    const struct fg_params *p = s->params;
    *r = (struct fg_rule){.dense_call = runs_dense(s), .M = p->M, .width = p->width};
    if (p->mode == FG_CACHED) {
        r->by = FG_CHOOSE_MAX;
        r->at = p->tau / fg_n(p, &s->in);
    } else if (p->pool == FG_POOL_NORM) {
        r->by = FG_CHOOSE_NORM;
        r->at = p->c1 / fg_n(p, &s->in);
    } else if (p->pool == FG_POOL_LITERAL) {
        r->by = FG_CHOOSE_LITERAL;
        r->at = log(p->tau1 * s->in.x.d);
    } else {
        r->by = FG_CHOOSE_TOPK;
        r->want = fg_topk_units(p, &s->in);
    }
    fg_text_keys(&s->in, &r->text0, &r->text1);
}

/* In a call that reuses a mask: the one to compare it with. */
static bool rule(const void *state, struct rule *rule, char why[160])
{
    const struct state *s = state;
    if (s->call == CALL_REUSE && !s->comparing)
        return false;
    if (s->lse)
        return method_refuses(why, "norm=previous takes the normaliser of another step");
    own_rule_of(s, &rule->of.fg);
    return true;
}

static void take_counts(struct state *s, const struct device_choice *c)
{
    const struct accel_units *u = c->counts;
    c->exec->exec = EXEC_GATHER; /* as slice_mask_lists has it */
    c->exec->exec_bq = c->exec->exec_bk = GATHERED;
    s->pending = false;
    s->stays = true;
    s->pairs = u->pairs;
    s->units = u->units;
    s->stats.keys_min = INT64_MAX;
    for (int64_t g = 0; g < u->groups; g++)
        s->stats.keys_min = MIN(s->stats.keys_min, u->count[g]);
    s->has_keys_min = s->params->mode == FG_CACHED;
}

static int take(void *state, const struct device_choice *c, struct err *err)
{
    struct state *s = state;
    int64_t keys_min;
    if (s->call == CALL_REUSE)
        return fg_given_mask(s->params, &s->in, c, &s->fresh, &keys_min, err);
    if (!c->lists) {
        take_counts(s, c);
        return 0;
    }
    int rc = fg_given_mask(s->params, &s->in, c, &s->own, &s->stats.keys_min, err);
    s->has_keys_min = !rc && s->params->mode == FG_CACHED;
    if (!rc)
        keep_mask(s);
    return rc;
}

/* What is applied by this call alone; kept_keys of counts needs units of one key. */
static bool keep_on_device(const void *state)
{
    const struct state *s = state;
    return s->call == CALL_OWN && s->params->width == 1;
}

static bool why_full(const void *state, char why[160])
{
    const struct state *s = state;
    if (s->call == CALL_DENSE)
        snprintf(why, 160, "dense_layers and dense_steps attend to all");
    else if (s->call == CALL_REFRESH)
        snprintf(why, 160,
                 "a call that makes the mask of later steps attends to all - refresh=1 and "
                 "mode=pooled use their own mask");
    return runs_dense(s);
}

/* The step's own mask, where no device made it. */
static int make_fresh(struct state *s, struct err *err)
{
    if (!s->comparing || s->fresh.bits)
        return 0;
    s->has_stats = s->has_keys_min = true;
    return fg_cached_mask(s->params, &s->in, s->params->tau, NULL, &s->fresh, &s->stats, err);
}

/* The reused mask against the one that this step would have made. */
static int report_compare(const struct state *s, struct record *r, struct err *err)
{
    double a = (double)slice_mask_total(s->mask), b = (double)slice_mask_total(&s->fresh);
    double both = (double)slice_mask_common(s->mask, &s->fresh), either = a + b - both;
    return RECORD_ALL(r, err, {"mask_precision", a > 0 ? both / a : 0},
                      {"mask_recall", b > 0 ? both / b : 0},
                      {"mask_iou", either > 0 ? both / either : 1}, {"mask_diff", either - both});
}

static int report_mask(const struct state *s, struct record *r, struct err *err)
{
    const struct attn_in *x = &s->in.x;
    double density = (double)s->pairs / (double)pairs_allowed(x->nq, x->nk, x->causal);
    int64_t units = s->units;
    if (!s->stays) {
        PASS_ON(slice_mask_density(s->mask, &density, err));
        units = slice_mask_total(s->mask);
    }
    PASS_ON(RECORD_ALL(r, err, {"mask_density_elem", density}, {"mask_units", units}));
    if (s->has_stats) {
        PASS_ON(RECORD_ALL(r, err, {"ties", s->stats.ties}, {"mask_margin", s->stats.margin}));
    }
    if (s->has_keys_min && s->call == CALL_OWN && s->params->norm == FG_NORM_EXACT) {
        double n = fg_n(s->params, &s->in);
        double kept = (double)s->stats.keys_min / n;
        return record_metric(r, "cra_bound", 1 - s->params->tau * (1 - fmin(1, kept)), err);
    }
    return 0;
}

static int report(void *state, struct record *r, struct err *err)
{
    struct state *s = state;
    PASS_ON(make_fresh(s, err));
    PASS_ON(record_metric(r, "dense_call", runs_dense(s), err));
    if (s->params->mode == FG_CACHED)
        PASS_ON(record_metric(
            r, "refresh",
            s->call == CALL_REFRESH || (s->call == CALL_OWN && s->params->refresh == 1), err));
    if (!runs_dense(s) && s->params->mode == FG_CACHED)
        PASS_ON(record_metric(r, "mask_age", s->age, err));
    if (s->mask || s->stays)
        PASS_ON(report_mask(s, r, err));
    if (s->comparing)
        return report_compare(s, r, err);
    return 0;
}

static const struct metric_def metrics[] = {
    OWN_METRIC("mask_margin", "smallest |ln(value / threshold)| over the units",
               .noise = NOISE_ROUNDING),
    OWN_METRIC("cra_bound",
               "mask of its own step: lower bound 1 - c (1 - min count / N) of cra_min",
               .better = BETTER_HIGHER, .axis = AXIS_SHARE, .noise = NOISE_ROUNDING),
    {0},
};

const struct method method_fg_attn = {
    .name = "fg-attn",
    .summary = "M x 1 slices kept where the largest p exceeds c/N, cached over steps or pooled",
    .paper = "FG-Attn: Leveraging Fine-Grained Sparse Attention in Video Diffusion Models, arXiv "
             "2509.16518",
    .flags = METHOD_ROWS | METHOD_CAUSAL | METHOD_BIDIRECTIONAL | METHOD_NEEDS_STEPS,
    .params = {.table = options,
               .size = sizeof(struct fg_params),
               .scopes = PARAM_SCOPES({"tau refresh norm compare", "mode=cached"},
                                      {"pool c1 tau1 kappa", "mode=pooled"}, {"c1", "pool=norm"},
                                      {"tau1", "pool=literal"}, {"kappa", "pool=topk"}),
               .budget = BUDGET_PARAMS(BUDGET_BY(BUDGET_LOG, "tau", .only = "mode=cached",
                                                 .falls = true, .lo = 1e-9, .hi = BUDGET_TOKENS),
                                       BUDGET_BY(BUDGET_LOG, "c1", .only = "pool=norm",
                                                 .falls = true, .lo = 1e-9, .hi = BUDGET_TOKENS),
                                       BUDGET_BY(BUDGET_LOG, "tau1", .only = "pool=literal",
                                                 .falls = true, .lo = 1e-12, .hi = 1e12),
                                       BUDGET_BY(BUDGET_LIN, "kappa", .only = "pool=topk")),
               .validate = validate,
               .order = token_order,
               /* A threshold without forced keys may keep nothing of a row. */
               .may_be_empty = method_always},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .release = release,
    .metrics = metrics,
    .cost = cost,
    .why_full = why_full,
    .device = {.rule = rule, .take = take, .keep_on_device = keep_on_device, .compares = true},
    .reuse = {.of = origin},
    .tests = {.full = "mode=pooled:pool=topk:kappa=1",
              .variants = TEXTS("refresh=1", "refresh=1:tau=3:M=16",
                                "refresh=1:tau=2:M=32:width=8:normaliser_n=all",
                                "refresh=2:tau=2:M=16:compare", "refresh=2:norm=previous:M=16",
                                "refresh=1:dense_layers=4", "refresh=1:tau=2:M=16:permute=hilbert",
                                "mode=pooled", "mode=pooled:pool=literal:tau1=0.01:M=48",
                                "mode=pooled:pool=topk:kappa=0.2:width=16"),
              .budgets = METHOD_BUDGETS(
                  {"refresh=1:M=16:tau=%s", {"20", "5", "2", "0.5", "0.01"}},
                  {"mode=pooled:M=16:c1=%s", {"10", "2", "0.5", "0.01"}},
                  {"mode=pooled:M=16:pool=topk:kappa=%s", {"0.05", "0.3", "0.7", "1"}})},
};
