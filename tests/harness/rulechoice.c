/*
 * rulechoice.c - see rulechoice.h.
 */
#include "tests/harness/rulechoice.h"

#include "core/intmath.h"
#include "sim/blocks/vslash.h"
#include "sim/methods/flexprefill/flexprefill.h"
#include "sim/methods/minference/minference.h"
#include "sim/methods/sampleattention/sampleattention.h"
#include "sim/methods/spargeattn/spargeattn.h"
#include "sim/methods/xattention/xattention.h"
#include "tests/harness/suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct err err;

/* Room for what comes beside the mask, zeroed; also where nobody wants it. */
static void *room(struct accel_own *own, size_t bytes)
{
    static char unwanted[1 << 16];
    ck_assert_uint_le(bytes, sizeof unwanted);
    memset(unwanted, 0, sizeof unwanted);
    if (!own)
        return unwanted;
    own->bytes = (int64_t)bytes;
    own->data = calloc(1, bytes);
    ck_assert_ptr_nonnull(own->data);
    return own->data;
}

/* ---- SpargeAttn ----------------------------------------------------------------------------- */

static void choose_judged(const struct sparge_rule *r, const struct head_in *in,
                          struct accel_own *own, struct mask *m)
{
    const struct attn_in *x = &in->x;
    const struct sparge_params p = {.profile = r->paper ? SPARGE_PAPER : SPARGE_OFFICIAL,
                                    .tile = r->bq == 64,
                                    .select = r->by_count ? SPARGE_TOPK : SPARGE_CDF,
                                    .judge = true,
                                    .theta = r->theta,
                                    .tau = r->tau,
                                    .topk = ((double)r->top + 0.5) / (double)ceil_div(x->nk, r->bk),
                                    .lambda = NAN,
                                    .pv_scope = -1,
                                    .pv_tail = INT64_MIN,
                                    .sink = r->sink,
                                    .smooth_k = r->smooth_k,
                                    .dense = r->dense};
    struct sparge *s = NULL;
    assert_ok(sparge_new(&p, in, &s, &err), &err);
    size_t nq = (size_t)s->nq_blocks, nk = (size_t)s->nk_blocks;
    struct sparge_own *to = room(own, (sizeof *to + nq + nk + 7) / 8 * 8);
    uint8_t *flags = (uint8_t *)(to + 1);
    OWN(free_at) int32_t *col = calloc(nk, sizeof *col);
    assert_ok(mask_lists_init(m, x->nq, x->nk, 0, x->nq, x->causal, r->bq, r->bk, &err), &err);
    for (size_t i = 0; i < nq; i++) {
        double mass;
        int64_t n = sparge_list(s, s->row, (int64_t)i, col, &mass);
        assert_ok(mask_lists_add_all(m, (int64_t)i, col, n, &err), &err);
        to->mass += mass >= 0 ? mass : 0;
        to->rows += mass >= 0;
        flags[i] = s->qb.similar[i];
    }
    mask_lists_finish(m);
    for (size_t j = 0; j < nk; j++)
        flags[nq + j] = s->kb.similar[j];
    sparge_free(s);
}

/* ---- SampleAttention ------------------------------------------------------------------------ */

static void choose_tokens(const struct sample_rule *r, const struct head_in *in,
                          struct accel_own *own, struct mask *m)
{
    const struct attn_in *x = &in->x;
    OWN(sample_v2_free)
    struct sample_v2 v = {
        .nq = x->nq, .nk = x->nk, .window = r->window, .bottom = r->bottom, .step = r->step};
    assert_ok(sample_v2_choose(&v, r->alpha, in->exact, &err), &err);
    assert_ok(sample_v2_mask(&v, 0, x->nq, m, &err), &err);
    *(int32_t *)room(own, sizeof(int32_t)) = (int32_t)v.ncols;
}

static void choose_slices(const struct sample_rule *r, const struct head_in *in,
                          struct accel_own *own, struct mask *m)
{
    struct sample_config config = {.nq = in->x.nq,
                                   .nk = in->x.nk,
                                   .block = r->block,
                                   .chunks = r->chunks,
                                   .alpha_c = r->alpha_c,
                                   .alpha_s = r->alpha_s,
                                   .extend = r->extend,
                                   .merge = r->merge,
                                   .keep_diag = r->keep_diag,
                                   .keep_sink = r->keep_sink};
    size_t n = (size_t)(config.chunks * sample_blocks(&config));
    OWN(sample_scores_free) struct sample_scores s = {0};
    OWN(sample_plan_free) struct sample_plan p;
    int64_t forced = 0;
    assert_ok(sample_scores_init(&s, &config, &err), &err);
    assert_ok(sample_scores_run(&s, &config, in->exact, &err), &err);
    assert_ok(sample_plan_build(&p, &config, &s, &err), &err);
    assert_ok(sample_plan_mask(&p, 0, in->x.nq, m, &forced, &err), &err);
    double *to = room(own, 2 * n * sizeof(double));
    memcpy(to, s.col, n * sizeof(double));
    memcpy(to + n, s.slash, n * sizeof(double));
}

/* ---- FlexPrefill ---------------------------------------------------------------------------- */

static void set_bits(const struct vslash *v, uint32_t *bits)
{
    int64_t words = ceil_div(v->n, 32);
    for (int64_t i = 0; i < v->n_cols; i++)
        bits[v->cols[i] / 32] |= 1u << v->cols[i] % 32;
    for (int64_t i = 0; i < v->n_dists; i++)
        bits[words + v->dists[i] / 32] |= 1u << v->dists[i] % 32;
}

static void choose_blocks(const struct flex_rule *r, const struct head_in *in,
                          struct accel_own *own, struct mask *m)
{
    const struct flex_config config = {.n = in->x.nk,
                                       .block = r->block,
                                       .gamma = r->gamma,
                                       .tau = r->tau,
                                       .scale = in->x.scale,
                                       .min_budget = r->least * r->block,
                                       .max_budget = r->most * r->block,
                                       .both = !in->x.causal};
    OWN(flex_scores_free) struct flex_scores f = {0};
    OWN(flex_plan_free) struct flex_plan p;
    assert_ok(flex_scores_run(&f, &config, in, config.block, true, &err), &err);
    assert_ok(flex_plan_build(&p, &config, &f, in, &err), &err);
    assert_ok(block_map_mask(&p.map, 0, in->x.nq, m, &err), &err);
    *(struct flex_own *)room(own, sizeof(struct flex_own)) =
        (struct flex_own){p.js, {(int32_t)p.t_v, (int32_t)p.t_s}, p.query_aware, 0};
}

/* The port always keeps 4 columns and 64 distances. */
static void choose_lists(const struct flex_rule *r, const struct head_in *in, struct accel_own *own,
                         struct mask *m)
{
    int64_t n = in->x.nk, t[2];
    const struct flex_config config = {.n = n, .block = r->block, .both = !in->x.causal};
    OWN(flex_scores_free) struct flex_scores f = {0};
    OWN(vslash_free) struct vslash v;
    assert_ok(flex_scores_run(&f, &config, in, MIN(512, n), false, &err), &err);
    assert_ok(flex_count(f.ver, n, r->gamma, true, t, &err), &err);
    assert_ok(flex_count(f.sla, n, r->gamma, true, t + 1, &err), &err);
    assert_ok(vslash_select(&v, n, f.ver, MIN(MAX(t[0], r->least), r->most), 4, f.sla,
                            MIN(MAX(t[1], r->least), r->most), 64, &err),
              &err);
    v.both = config.both;
    assert_ok(vslash_mask(&v, true, 0, n, m, &err), &err);
    struct flex_own *to = room(own, sizeof *to + 2 * (size_t)ceil_div(n, 32) * 4);
    to->tokens[0] = (int32_t)t[0];
    to->tokens[1] = (int32_t)t[1];
    set_bits(&v, (uint32_t *)(to + 1));
}

/* ---- XAttention and MInference -------------------------------------------------------------- */

static void choose_antidiagonal(const struct xattn_rule *r, const struct head_in *in,
                                struct mask *m)
{
    const struct xattn_config config = {.profile = r->profile,
                                        .stride = (int)r->stride,
                                        .tau = r->tau,
                                        .norm = r->norm,
                                        .chunk = r->chunk};
    struct xattn_config c = xattn_config_of(&config, &in->x);
    OWN(xattn_free) struct xattn x;
    OWN(block_map_free) struct block_map map;
    assert_ok(xattn_init(&x, &c, in->x.q, in->x.k, &err), &err);
    assert_ok(block_map_init(&map, c.nq, c.nk, XATTN_BLOCK, c.causal, &err), &err);
    OWN(free_at) double *mass = calloc((size_t)x.cols, sizeof *mass);
    OWN(free_at) bool *keep = calloc((size_t)x.cols, sizeof *keep);
    for (int64_t i = 0; i < x.row_blocks; i++) {
        assert_ok(xattn_keep(&x, i, mass, keep, &err), &err);
        for (int64_t j = 0; j < xattn_limit(&x, i); j++)
            if (keep[j])
                block_map_set(&map, i, j);
    }
    assert_ok(block_map_mask(&map, 0, c.nq, m, &err), &err);
}

static void choose_pattern(const struct minf_rule *r, const struct head_in *in,
                           struct accel_own *own, struct mask *m)
{
    const struct minf_config c = {.pattern = r->blocks ? MINF_BLOCK : MINF_VS,
                                  .n = in->x.nk,
                                  .v = r->v,
                                  .s = r->s,
                                  .last_q = r->rows,
                                  .force_cols = r->force_cols,
                                  .force_dists = r->force_dists,
                                  .realised = r->realised,
                                  .p_dtype = DT_F32,
                                  .top = r->top,
                                  .block = 64,
                                  .both = !in->x.causal,
                                  .work = r->work};
    OWN(minf_free) struct minf_head h;
    assert_ok(minf_init(&h, &c, in, &err), &err);
    assert_ok(minf_select(&h, 0, c.n, m, &err), &err);
    if (!r->blocks)
        set_bits(&h.lists, room(own, 2 * (size_t)ceil_div(c.n, 32) * sizeof(uint32_t)));
}

/* ---- units by means -------------------------------------------------------------------------- */

/* Mean of the rows [from, to) of x [][d], as the rule rounds it. */
static void mean_of(const float *x, int64_t from, int64_t to, int d, double factor, enum dtype t,
                    float *mean)
{
    for (int c = 0; c < d; c++) {
        double sum = 0;
        for (int64_t i = from; i < to; i++)
            sum += x[i * d + c];
        mean[c] = dtype_round(t, (float)((float)(sum / (double)(to - from)) * factor));
    }
}

/* The score of unit j for the rows [r0, r1): of one pair of means, or the log-sum-exp over cells.
 */
static double unit_score(const struct pooled_rule *r, const struct attn_in *x, const float *k,
                         int64_t r0, int64_t r1, int64_t j)
{
    enum dtype q_type = r->by == POOLED_ABOVE || r->bq == 1 ? DT_F32 : DT_BF16;
    int64_t q_step = r->bq / r->q_cells, k_step = r->bk / r->k_cells;
    float a[64], b[64];
    double product[64], top = -INFINITY, sum = 0;
    int n = 0;
    for (int64_t i = r0; i < r1; i += q_step)
        for (int64_t e = j * r->bk; e < MIN((j + 1) * r->bk, x->nk); e += k_step) {
            mean_of(x->q, i, MIN(i + q_step, r1), x->d, r->q_factor ? r->q_factor : 1, q_type, a);
            mean_of(k, e, MIN(e + k_step, x->nk), x->d, 1, DT_BF16, b);
            product[n] = 0;
            for (int c = 0; c < x->d; c++)
                product[n] += (double)a[c] * b[c];
            top = fmax(top, product[n++]);
        }
    for (int i = 0; i < n; i++)
        sum += exp2(product[i] - top);
    return top + log2(sum);
}

/* Keep the `top` best of z [n], the lower of equal ones. */
static void keep_top(const double *z, int64_t n, int64_t top, bool *keep)
{
    for (int64_t j = 0; j < n; j++) {
        int64_t better = 0;
        for (int64_t o = 0; o < n; o++)
            better += z[o] > z[j] || (z[o] == z[j] && o < j);
        keep[j] = better < top;
    }
}

static void keep_deviating(const struct pooled_rule *r, const struct attn_in *x, const double *z,
                           int64_t i, int64_t n, bool *keep)
{
    float mean[64], k[64];
    double mu = 0, var = 0, c2 = pow(x->scale * M_LOG2E, 2);
    for (int64_t j = 0; j < n; j++)
        mu += z[j] / (double)n;
    for (int64_t j = 0; j < n && r->exact; j++)
        var += pow(z[j] - mu, 2) / (double)n;
    mean_of(x->q, i * r->bq, MIN((i + 1) * r->bq, x->nq), x->d, 1, DT_F32, mean);
    for (int c = 0; c < x->d && !r->exact; c++) {
        double sum = 0, square = 0;
        for (int64_t j = 0; j < n; j++) {
            mean_of(x->k, j * r->bk, MIN((j + 1) * r->bk, x->nk), x->d, 1, DT_BF16, k);
            sum += k[c] / (double)n;
            square += (double)k[c] * k[c] / (double)n;
        }
        var += c2 * mean[c] * mean[c] * (square - sum * sum);
    }
    for (int64_t j = 0; j < n; j++)
        keep[j] = z[j] > mu + r->tau * sqrt(fmax(var, 0) + 1e-6) || llabs(i - j) <= r->near ||
                  (j >= r->first && j < r->last);
}

/* Of one head: the shares of its windows touch units. */
static void share_scores(const struct pooled_rule *r, const struct attn_in *x, int64_t row,
                         int64_t own, double *z)
{
    int64_t at = row + x->nk - x->nq, n = 0;
    OWN(free_at) double *p = calloc((size_t)x->nk, sizeof *p);
    float k[64];
    for (; n * r->stride + r->kernel <= at + 1; n++) {
        mean_of(x->k, n * r->stride, n * r->stride + r->kernel, x->d, 1, DT_F32, k);
        for (int c = 0; c < x->d; c++)
            p[n] += x->scale * x->q[row * x->d + c] * k[c];
    }
    softmax_f64(p, n);
    for (int64_t b = 0; b <= own; b++) {
        z[b] = r->shares_own ? 1 : INFINITY;
        if (b < r->init || b > own - r->local)
            continue;
        z[b] = 0;
        for (int64_t m = 0; m < r->bk / r->stride; m++)
            for (int64_t e = 0; e < r->kernel / r->stride; e++) {
                int64_t w = b * (r->bk / r->stride) + m - e;
                double one = w >= 0 && w < n ? p[w] : 0;
                z[b] = r->largest ? fmax(z[b], one) : z[b] + one;
            }
    }
}

static void keep_of_head(const struct pooled_rule *r, const struct attn_in *x, double *z,
                         int64_t rows, int64_t n, bool *keep)
{
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < n; j++)
            z[i * n + j] *= x->scale;
        softmax_f64(z + i * n, n);
    }
    keep_top(z, rows * n, r->top, keep);
    double least = 1;
    for (int64_t e = 0; e < rows * n; e++)
        least = keep[e] ? fmin(least, z[e]) : least;
    for (int64_t e = 0; e < rows * n; e++)
        keep[e] = r->top > 0 && z[e] >= least;
}

static void choose_pooled(const struct pooled_rule *r, const struct head_in *in, struct mask *m)
{
    const struct attn_in *x = &in->x;
    int64_t rows = ceil_div(x->nq, r->bq), n = ceil_div(x->nk, r->bk);
    double factor = r->by == POOLED_ABOVE ? x->scale * M_LOG2E : 1;
    OWN(free_at) double *z = calloc((size_t)(rows * n), sizeof *z);
    OWN(free_at) bool *keep = calloc((size_t)(rows * n), sizeof *keep);
    OWN(free_at) float *k = calloc((size_t)(x->nk * x->d), sizeof *k);
    float all[64];
    mean_of(x->k, 0, x->nk, x->d, 1, DT_BF16, all);
    for (int64_t e = 0; e < x->nk * x->d; e++)
        k[e] = r->centre ? dtype_round(DT_BF16, x->k[e] - all[e % x->d]) : x->k[e];
    for (int64_t i = 0; i < rows; i++) {
        int64_t at = i + x->nk - x->nq, own = x->causal ? (at < 0 ? -1 : at / r->bk) : n;
        double *row = z + i * n;
        for (int64_t j = 0; j < own && r->by != POOLED_SHARES; j++)
            row[j] = factor * unit_score(r, x, k, i * r->bq, MIN((i + 1) * r->bq, x->nq), j);
        if (r->by == POOLED_SHARES && own >= 0)
            share_scores(r, x, i, own, row);
        if (r->by == POOLED_ABOVE)
            keep_deviating(r, x, row, i, n, keep + i * n);
        else
            keep_top(row, r->by == POOLED_SHARES ? own + 1 : MAX(own, 0), r->top, keep + i * n);
        if (x->causal && own >= 0 && r->by == POOLED_BEST)
            keep[i * n + own] = true;
    }
    if (r->by == POOLED_HEAD)
        keep_of_head(r, x, z, rows, n, keep);
    assert_ok(mask_lists_init(m, x->nq, x->nk, 0, x->nq, x->causal, r->bq, r->bk, &err), &err);
    for (int64_t e = 0; e < rows * n; e++)
        if (keep[e])
            assert_ok(mask_lists_add(m, e / n, (int32_t)(e % n), &err), &err);
    mask_lists_finish(m);
}

/* ---- all ------------------------------------------------------------------------------------ */

bool rule_choose(const struct accel_choice *c, const struct head_in *in, struct mask *m)
{
    const union method_rule *r = c->rule;
    const struct attn_in *x = &in->x;
    bool sample = strcmp(c->method, "sampleattention") == 0;
    bool flex = strcmp(c->method, "flexprefill") == 0;
    static const char *const pooled[] = {"vsa", "sla", "subblock", "draft", "moba", "sol", "nsa"};
    for (size_t i = 0; i < sizeof pooled / sizeof *pooled; i++)
        if (strcmp(c->method, pooled[i]) == 0 && !r->pooled.all) {
            choose_pooled(&r->pooled, in, m);
            return true;
        }
    if ((sample && r->sample.all) || (flex && r->flex.all))
        mask_full(m, x->nq, x->nk, 0, x->nq, x->causal);
    else if (sample)
        (r->sample.tokens ? choose_tokens : choose_slices)(&r->sample, in, c->own, m);
    else if (flex)
        (r->flex.lists ? choose_lists : choose_blocks)(&r->flex, in, c->own, m);
    else if (strcmp(c->method, "spargeattn") == 0)
        choose_judged(&r->sparge, in, c->own, m);
    else if (strcmp(c->method, "xattention") == 0)
        choose_antidiagonal(&r->xattn, in, m);
    else if (strcmp(c->method, "minference") == 0)
        choose_pattern(&r->minf, in, c->own, m);
    else
        return false;
    return true;
}

/* Ties that an oracle has counted, if it does. */
static void count_ties(const struct method *me, void *state, struct accel_own *own)
{
    OWN(record_free) struct record r;
    record_init(&r);
    assert_ok(me->report(state, &r, &err), &err);
    if (!isnan(record_get(&r, "ties")))
        *(int32_t *)room(own, sizeof(int32_t)) = (int32_t)record_get(&r, "ties");
}

bool setting_choose(const struct method_run *runs, int64_t n, const struct accel_choice *c,
                    const struct head_in *in, struct mask *m)
{
    for (int64_t i = 0; i < n; i++) {
        const struct method *me = runs[i].method;
        struct method_ctx ctx = {0};
        struct rule rule;
        void *state = NULL;
        char why[160];
        if (strcmp(me->name, c->method) != 0)
            continue;
        memset(&rule, 0, sizeof rule);
        assert_ok(method_prepare(me, &ctx, runs[i].params, in, &state, &err), &err);
        bool same =
            me->device.rule(state, &rule, why) && memcmp(&rule.of, c->rule, sizeof rule.of) == 0;
        if (same)
            assert_ok(me->select(state, 0, in->x.nq, m, &err), &err);
        if (same && strcmp(me->name, "oracle") == 0)
            count_ties(me, state, c->own);
        method_release(me, state);
        if (same)
            return true;
    }
    return false;
}
