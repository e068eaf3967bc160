/*
 * fgattn_mask.c - the two selection rules of FG-Attn.
 *
 *   cached   a_gj = max over the rows i of group g of e^(s_ij - LSE_i); keep iff a_gj > c/N, strict
 *   pooled   t_gj = scale k_j . qbar_g with the mean query of the group
 *              norm     keep iff softmax_j(t_gj) >= c1/N
 *              literal  keep iff t_gj >= ln(tau1 d)    (the printed e^t/d < tau1, as a logarithm)
 *              topk     keep the ceil(kappa N) largest
 *
 * Forced in all of them (our extension, the paper treats bidirectional video only): causal, the
 * keys at or after the group's first row; text tokens in the sequence, as keys for every group and,
 * as rows, with all keys. A group that holds a text row keeps everything, because its rows share
 * one list. Cached: one Q K pass. Pooled: N_q/M x N_k dot products.
 */
#include "core/intmath.h"
#include "sim/methods/fgattn/fgattn.h"

#include "core/mem.h"
#include "core/simd.h"
#include "sim/blocks/exactmap.h"
#include "sim/blocks/prefix.h"
#include "sim/blocks/selectcost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TIE 1e-3

double fg_n(const struct fg_params *p, const struct head_in *in)
{
    return (double)(in->x.nk + (p->normaliser_n ? in->n_padding : 0));
}

/* ---- forced units --------------------------------------------------------------------------- */

static void set_range(struct slice_mask *m, int64_t g, int64_t lo, int64_t hi)
{
    for (int64_t u = lo; u < hi; u++)
        slice_mask_set(m, g, u);
}

void fg_text_keys(const struct head_in *in, int64_t *t0, int64_t *t1)
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
        set_range(m, g, t0 / m->width, MIN(visible, (t1 + m->width - 1) / m->width));
}

/* ---- cached --------------------------------------------------------------------------------- */

struct cached_run {
    struct slice_mask *mask;
    const struct head_in *in;
    struct fg_stats *stats;
    double c, n;
};

/* Of the last unit only those that exist. */
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
    int rc = 0;

    *stats = (struct fg_stats){0, INFINITY, INT64_MAX};
    TRY(slice_mask_init(out, x->nq, x->nk, x->causal, p->M, p->width, err));
    TRY(map_groups(in->exact, lse, p->M, cached_group, &run, err));
out:
    return rc;
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
    int rc = mem_zalloc(&mean, x->d, sizeof *mean, "mean query", err);
    if (rc)
        return rc;
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

int64_t fg_topk_units(const struct fg_params *p, const struct head_in *in)
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
    int rc = 0;

    TRY(fg_pooled_values(p, in, m, g, keys, value, &n, err));
    if (p->pool == FG_POOL_TOPK) {
        TRY(prefix_topk(work, value, n, fg_topk_units(p, in), &top, err));
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
out:
    return rc;
}

int fg_pooled_mask(const struct fg_params *p, const struct head_in *in, struct slice_mask *out,
                   struct err *err)
{
    const struct attn_in *x = &in->x;
    double *keys = NULL, *value = NULL;
    struct prefix_work *work = NULL;
    int rc = 0;

    TRY(slice_mask_init(out, x->nq, x->nk, x->causal, p->M, p->width, err));
    TRY(mem_alloc(&keys, x->nk, sizeof *keys, "pooled scores", err));
    TRY(mem_alloc(&value, out->units, sizeof *value, "pooled values", err));
    TRY(prefix_work_new(&work, err));
    for (int64_t g = 0; g < out->groups; g++)
        TRY(pooled_group(p, in, out, g, keys, value, work, err));
out:
    free(keys);
    free(value);
    prefix_work_free(work);
    return rc;
}

/* ---- what it costs -------------------------------------------------------------------------- */

/* One pass over all scores, e^(s - LSE) of each; before it another one for the normalisers. */
void fg_cached_cost(const struct head_in *in, bool has_lse, struct select_cost *c)
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

void fg_pooled_cost(const struct fg_params *p, const struct head_in *in, struct select_cost *c)
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

int fg_given_mask(const struct fg_params *p, const struct head_in *in, const struct mask *m,
                  struct slice_mask *out, int64_t *keys_min, struct err *err)
{
    const struct attn_in *x = &in->x;
    int rc = 0;

    if (m->form != MASK_LISTS || m->bq != p->M || m->bk != p->width)
        return err_set(err, ERR_RUN, "a choice in units of %lld x %lld, expected %lld x %lld",
                       (long long)m->bq, (long long)m->bk, (long long)p->M, (long long)p->width);
    TRY(slice_mask_init(out, x->nq, x->nk, x->causal, p->M, p->width, err));
    *keys_min = INT64_MAX;
    for (int64_t g = 0; g < out->groups; g++) {
        mask_mark_units(out->bits + g * out->words, m->col + m->ptr[g], m->ptr[g + 1] - m->ptr[g]);
        force(out, in, g);
        *keys_min = MIN(*keys_min, kept_keys(out, g));
    }
out:
    return rc;
}
