#include "sim/decode/lane.h"

#include "core/intmath.h"
#include "core/mem.h"
#include "core/method_run.h"
#include "core/simd.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int row_work_init(struct row_work *w, const struct attn_in *x, struct err *err)
{
    PASS_ON(prefix_work_new(&w->prefix, err));
    PASS_ON(mem_alloc(&w->z, LANE_STEPS * x->nk, sizeof *w->z, "scores of rows", err));
    PASS_ON(mem_alloc(&w->at, LANE_STEPS * x->nk, sizeof *w->at, "keys of rows", err));
    return mem_alloc(&w->out, LANE_STEPS * x->dv, sizeof *w->out, "outputs of rows", err);
}

void row_work_free(struct row_work *w)
{
    prefix_work_free(w->prefix);
    free(w->z);
    free(w->out);
    free(w->at);
    memset(w, 0, sizeof *w);
}

/* z_i = e^(score of at[i] - *top) with *top the largest score; returns their sum. */
static double weights(const struct step *s, const int32_t *at, int64_t n, double *z, double *top)
{
    for (int64_t i = 0; i < n; i++)
        z[i] = s->score[at[i]];
    *top = row_max_f64(z, n);
    return *top == -INFINITY ? 0 : exp_sum_f64(z, n, *top);
}

static double mass_of(const struct step *s, const int32_t *at, int64_t n, double *z)
{
    double top, sum = weights(s, at, n, z, &top);
    return sum > 0 ? sum * exp(top - *s->lse) : 0;
}

int heavy_keys(const struct step *s, struct row_work *w, int32_t *at, struct err *err)
{
    struct prefix p;
    const double *score = s->score + s->first;
    int64_t all = s->limit - s->first, n = 0;
    int rc = prefix_topk(w->prefix, score, all, DECODE_HOT, &p, err);
    const int32_t *list = rc ? NULL : prefix_list(w->prefix, &p, score, all, &n);
    for (int64_t e = 0; e < n; e++)
        at[e] = (int32_t)s->first + list[e];
    return rc;
}

/* Mass of the k heaviest allowed keys, 0 < k < all. */
static int heaviest_mass(const struct step *s, int64_t k, struct row_work *w, double *mass,
                         struct err *err)
{
    struct prefix p;
    PASS_ON(prefix_topk(w->prefix, s->score + s->first, s->limit - s->first, k, &p, err));
    prefix_values(w->prefix, &p, w->z);
    double top = row_max_f64(w->z, p.count);
    *mass = exp_sum_f64(w->z, p.count, top) * exp(top - *s->lse);
    return 0;
}

/* ---- the attention of some steps ------------------------------------------------------------ */

/* List the keys whose values a step adds up, with their weights, from `at` in the work on: those
 * that are kept, or, where more than half is kept, in mass and in keys, what is missing: that is
 * subtracted from the dense output. Returns the number. */
static int64_t list_step(const struct attn_in *x, const struct step *s, int64_t kept, int64_t at,
                         struct row_work *w, struct row_sum *r)
{
    double top, sum, scale = 0, *z = w->z + at;
    int32_t *keys = w->at + at;
    int64_t n = 0;
    *r = (struct row_sum){.at = at, .rest = 0};
    if (kept > (s->limit - s->first) / 2) {
        n = keyset_list(s->kept, s->first, s->limit, true, keys);
        sum = weights(s, keys, n, z, &top);
        scale = n ? exp(top - *s->lse) : 0;
        r->rest = 1 - sum * scale;
    }
    if (r->rest >= 0.5) {
        scale = -scale;
        r->lse = *s->lse + log(r->rest);
    } else {
        r->rest = 0;
        n = keyset_list(s->kept, s->first, s->limit, false, keys);
        sum = weights(s, keys, n, z, &top);
        r->lse = sum > 0 ? top + log(sum) : -INFINITY;
        scale = sum > 0 ? attn_key_share(x, r->lse) / sum : 0;
    }
    for (int64_t i = 0; i < n; i++)
        z[i] *= scale;
    r->end = at + n;
    return n;
}

/* Values of four keys, as all of an output's sums are loaded and stored for each call. */
SIMD_CLONES
static void add_four(const double *w, const float *const *v, int64_t dv, double *out)
{
    const float *v0 = v[0], *v1 = v[1], *v2 = v[2], *v3 = v[3];
    double w0 = w[0], w1 = w[1], w2 = w[2], w3 = w[3];
    for (int64_t c = 0; c < dv; c++)
        out[c] +=
            (w0 * (double)v0[c] + w1 * (double)v1[c]) + (w2 * (double)v2[c] + w3 * (double)v3[c]);
}

#define VALUES 64 /* that stay in the cache while all steps add theirs */

static void add_values(const struct attn_in *x, struct row_work *w, int n)
{
    memset(w->out, 0, (size_t)(n * x->dv) * sizeof *w->out);
    for (int64_t end = VALUES; end < x->nk + VALUES; end += VALUES)
        for (int r = 0; r < n; r++)
            for (struct row_sum *s = w->row + r; s->at < s->end && w->at[s->at] < end;) {
                const float *v[4];
                double weight[4];
                for (int e = 0; e < 4; e++) {
                    bool some = s->at + e < s->end;
                    weight[e] = some ? w->z[s->at + e] : 0;
                    v[e] = x->v + w->at[some ? s->at + e : s->at] * (int64_t)x->dv;
                }
                add_four(weight, v, x->dv, w->out + r * x->dv);
                s->at += 4;
            }
}

/* What the missing keys had, out of the dense output. */
static void subtract(const struct attn_in *x, const struct step *s, const struct row_sum *r,
                     double *out)
{
    double share = attn_key_share(x, *s->lse);
    for (int c = 0; c < x->dv; c++)
        out[c] = (out[c] + s->out[c] / share) / r->rest * attn_key_share(x, r->lse);
}

static bool has_all(struct keyset held, const int32_t *at, int64_t n)
{
    int64_t i = 0, k = 0;
    for (; i < n; i++) {
        while (k < held.n && held.s[k].hi <= at[i])
            k++;
        if (k == held.n || at[i] < held.s[k].lo)
            return false;
    }
    return true;
}

/* Mass that the cache no longer has. */
static void add_lost(struct lane *l, const struct step *s, struct row_work *w)
{
    double recall = l->acc.recall[s->step];
    if (!s->held.s)
        return;
    if (s->held.s != s->kept.s) {
        int64_t n = keyset_list(s->held, s->first, s->limit, false, w->at);
        recall = n == s->limit - s->first ? 1 : mass_of(s, w->at, n, w->z);
    }
    l->lost[s->step] = MAX(0, 1 - recall);
    l->hot += !has_all(s->held, s->hot, MIN(DECODE_HOT, s->limit - s->first));
}

static void add_layer_errors(struct lane *l, const struct step *s, const double *out)
{
    for (int64_t c = 0; c < l->acc.dv; c++) {
        double delta = out[c] - s->out[c];
        l->sq_delta[s->step] += delta * delta;
        l->sq_ref[s->step] += s->out[c] * s->out[c];
    }
}

/* The step as a row of the mask and of the outputs of all steps. */
static int dump_step(struct lane *l, const struct step *s, const double *out, const double *lse,
                     struct err *err)
{
    OWN(mask_free) struct mask m = {0};
    if (!l->cell->sink)
        return 0;
    PASS_ON(
        mask_lists_init(&m, l->acc.n, l->cell->in->x.nk, s->step, s->step + 1, true, 1, 1, err));
    for (int64_t i = 0; i < s->kept.n; i++)
        PASS_ON(mask_lists_add_run(&m, 0, s->kept.s[i].lo, s->kept.s[i].hi, err));
    mask_lists_finish(&m);
    mask_within(&m, &l->cell->in->x.reach);
    return l->cell->sink(l->cell->sink_ctx, &m, out, lse, err);
}

/* Allowed keys of the step that are kept. */
static int64_t kept_keys(const struct step *s)
{
    int64_t n = 0;
    for (int64_t i = 0; i < s->kept.n; i++)
        n += MAX(0, MIN(s->kept.s[i].hi, s->limit) - MAX(s->kept.s[i].lo, s->first));
    return n;
}

static int measure(struct lane *l, const struct step *s, const double *out, double lse,
                   struct row_work *w, struct err *err)
{
    int64_t allowed = s->limit - s->first, n = kept_keys(s);
    double bound = n == allowed;
    metrics_add_rows(&l->acc, s->step, 1, out, s->out, &lse, &lse, s->lse);
    add_layer_errors(l, s, out);
    PASS_ON(dump_step(l, s, out, &lse, err));
    add_lost(l, s, w);
    if (n > 0 && n < allowed)
        PASS_ON(heaviest_mass(s, n, w, &bound, err));
    l->topk += bound;
    l->pairs += n;
    l->allowed += allowed;
    if (s->step > 0)
        l->reuse += (double)keyset_common(s->kept, keysets_at(&l->last, 0)) /
                    (double)MAX(1, keyset_size(s->kept));
    keysets_clear(&l->last);
    return keysets_add(&l->last, s->kept.s, s->kept.n, err);
}

int lane_steps(struct lane *l, const struct step *s, int n, struct row_work *w, struct err *err)
{
    const struct attn_in *x = &l->cell->in->x;
    int64_t at = 0;
    for (int r = 0; r < n; r++)
        at += list_step(x, s + r, kept_keys(s + r), at, w, w->row + r);
    add_values(x, w, n);
    for (int r = 0; r < n; r++) {
        double *out = w->out + r * x->dv;
        if (w->row[r].rest > 0)
            subtract(x, s + r, w->row + r, out);
        PASS_ON(measure(l, s + r, out, w->row[r].lse, w, err));
    }
    return 0;
}

/* ---- the record ----------------------------------------------------------------------------- */

int lane_init(struct lane *l, const struct sim_cell *cell, struct call_outcome *out, int64_t steps,
              struct err *err)
{
    *l = (struct lane){.cell = cell,
                       .out = out,
                       .off = out->err.code != 0,
                       .cached = method_decodes(cell->method, cell->params)};
    PASS_ON(metrics_init(&l->acc, steps, cell->in->x.dv, err));
    PASS_ON(mem_zalloc(&l->lost, 3 * steps, sizeof *l->lost, "steps", err));
    l->sq_delta = l->lost + steps;
    l->sq_ref = l->sq_delta + steps;
    return 0;
}

void lane_free(struct lane *l)
{
    keysets_free(&l->kept);
    keysets_free(&l->last);
    metrics_free(&l->acc);
    free(l->lost);
    memset(l, 0, sizeof *l);
}

static double mean_of(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i];
    return sum / (double)n;
}

/* NAME@token=t for step t, or from t on the mean of as many as keep a record short. */
static int record_steps(struct record *r, const char *name, const double *x, int64_t n,
                        struct err *err)
{
    enum { MOST = 512 };
    int64_t stride = ceil_div(n, MOST);
    char full[METRIC_NAME];
    for (int64_t t = 0; t < n; t += stride) {
        snprintf(full, sizeof full, "%s@token=%lld", name, (long long)t);
        PASS_ON(record_metric(r, full, mean_of(x + t, MIN(stride, n - t)), err));
    }
    return 0;
}

/* Mean of the last quarter of the steps minus that of the first. */
static double drift(const double *x, int64_t n)
{
    int64_t quarter = MAX(1, n / 4);
    return mean_of(x + n - quarter, quarter) - mean_of(x, quarter);
}

static int record_eviction(struct lane *l, const struct lane_cache *c, struct err *err)
{
    struct record *r = l->out->record;
    int64_t n = l->acc.n;
    double most = 0, peak = 0;
    for (int64_t t = 0; t < n; t++) {
        peak = fmax(peak, c->held[t]);
        most = fmax(most, l->lost[t]);
    }
    PASS_ON(RECORD_ALL(r, err, {"cum_lost", mean_of(l->lost, n)}, {"lost_max", most},
                       {"lost_drift", drift(l->lost, n)}, {"hot_lost", l->hot / (double)n},
                       {"cache_keys", mean_of(c->held, n)}, {"cache_keys_peak", peak},
                       {"cache_keys_end", c->end}, {"cache_keys_padded", c->padded}));
    if (!isnan(c->regret))
        PASS_ON(record_metric(r, "regret_evict", c->regret, err));
    PASS_ON(record_steps(r, "lost", l->lost, n, err));
    return record_steps(r, "cache_keys", c->held, n, err);
}

int lane_record(struct lane *l, const struct lane_cache *c, struct err *err)
{
    struct record *r = l->out->record;
    int64_t n = l->acc.n;
    double moved = drift(l->acc.recall, n);

    r->status = RECORD_OK;
    record_note(r, "history=exact");
    PASS_ON(RECORD_ALL(r, err, {"density_elem", (double)l->pairs / (double)l->allowed},
                       {"pairs_kept", (double)l->pairs}, {"pairs_allowed", (double)l->allowed}));
    PASS_ON(record_steps(r, "recall", l->acc.recall, n, err));
    PASS_ON(metrics_output(&l->acc, false, r, err));
    PASS_ON(RECORD_ALL(r, err, {"cra_drift", moved}, {"err_l2_layer", c->err_layer},
                       {"regret_topk", fmax(0, l->topk / (double)n - record_get(r, "cra_mean"))},
                       {"bytes_kv", c->kv}, {"bytes_dense", c->dense}, {"bytes_cache", c->bytes}));
    if (!isnan(c->meta))
        PASS_ON(RECORD_ALL(r, err, {"bytes_meta", c->meta}, {"bytes_read", c->kv + c->meta}));
    if (n > 1)
        PASS_ON(record_metric(r, "reuse", l->reuse / (double)(n - 1), err));
    if (c->evicts)
        return record_eviction(l, c, err);
    return 0;
}
