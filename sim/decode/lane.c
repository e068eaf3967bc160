#include "sim/decode/lane.h"

#include "core/intmath.h"
#include "core/mem.h"
#include "core/method_run.h"
#include "core/simd.h"
#include "core/sort.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int row_work_init(struct row_work *w, const struct attn_in *x, struct err *err)
{
    int rc = 0;
    TRY(prefix_work_new(&w->prefix, err));
    TRY(mem_alloc(&w->z, x->nk, sizeof *w->z, "scores of a row", err));
    TRY(mem_alloc(&w->out, x->dv, sizeof *w->out, "output of a row", err));
    TRY(mem_alloc(&w->at, x->nk, sizeof *w->at, "keys of a row", err));
out:
    return rc;
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
static double weights(const struct step_truth *t, const int32_t *at, int64_t n, double *z,
                      double *top)
{
    for (int64_t i = 0; i < n; i++)
        z[i] = t->score[at[i]];
    *top = row_max_f64(z, n);
    return *top == -INFINITY ? 0 : exp_sum_f64(z, n, *top);
}

double mass_of(const struct step_truth *t, const int32_t *at, int64_t n, double *z)
{
    double top, sum = weights(t, at, n, z, &top);
    return sum > 0 ? sum * exp(top - *t->lse) : 0;
}

void heavy_keys(const struct step_truth *t, int32_t *at)
{
    int n = 0;
    double low = -INFINITY; /* the smallest of DECODE_HOT keys */
    for (int64_t j = t->first; j < t->limit; j++) {
        int out = 0;
        if (n == DECODE_HOT && t->score[j] <= low)
            continue;
        for (int i = 1; i < n; i++)
            if (t->score[at[i]] <= t->score[at[out]]) /* of equal ones the later leaves */
                out = i;
        if (n == DECODE_HOT)
            memmove(at + out, at + out + 1, (size_t)(--n - out) * sizeof *at);
        at[n++] = (int32_t)j;
        low = t->score[at[0]];
        for (int i = 1; i < n; i++)
            low = fmin(low, t->score[at[i]]);
    }
}

int heaviest(const struct step_truth *t, int64_t k, struct row_work *w, int32_t *at, int64_t *n,
             struct err *err)
{
    struct prefix p;
    const double *s = t->score + t->first;
    int rc = prefix_topk(w->prefix, s, t->limit - t->first, k, &p, err);
    *n = 0;
    for (int64_t j = 0; !rc && j < t->limit - t->first; j++)
        if (prefix_has(&p, s[j], j))
            at[(*n)++] = (int32_t)(t->first + j);
    return rc;
}

/* ---- a step --------------------------------------------------------------------------------- */

SIMD_CLONES
static void add_value(double w, const float *v, int64_t dv, double *out)
{
    for (int64_t c = 0; c < dv; c++)
        out[c] += w * (double)v[c];
}

static void add_values(const struct attn_in *x, const int32_t *at, const double *z, int64_t n,
                       double scale, double *out)
{
    for (int64_t i = 0; i < n; i++)
        add_value(z[i] * scale, x->v + at[i] * (int64_t)x->dv, x->dv, out);
}

/* Softmax over the kept keys into w->out; returns its log-sum-exp. Where more than half is kept, in
 * mass and in keys, what is missing is subtracted from the dense output. */
static double attend(const struct attn_in *x, const struct step_truth *t, struct keyset kept,
                     int64_t n, struct row_work *w)
{
    double top, sum, lse;
    int64_t allowed = t->limit - t->first;
    memset(w->out, 0, (size_t)x->dv * sizeof *w->out);
    if (n > allowed / 2) {
        double share = attn_key_share(x, *t->lse);
        int64_t gone = keyset_list(kept, t->first, t->limit, true, w->at);
        sum = weights(t, w->at, gone, w->z, &top);
        double scale = gone ? exp(top - *t->lse) : 0, rest = 1 - sum * scale;
        if (rest >= 0.5) {
            add_values(x, w->at, w->z, gone, -scale, w->out);
            lse = *t->lse + log(rest);
            for (int c = 0; c < x->dv; c++)
                w->out[c] = (w->out[c] + t->out[c] / share) / rest * attn_key_share(x, lse);
            return lse;
        }
        memset(w->out, 0, (size_t)x->dv * sizeof *w->out);
    }
    n = keyset_list(kept, t->first, t->limit, false, w->at);
    sum = weights(t, w->at, n, w->z, &top);
    if (sum == 0)
        return -INFINITY;
    lse = top + log(sum);
    add_values(x, w->at, w->z, n, attn_key_share(x, lse) / sum, w->out);
    return lse;
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
static void add_lost(struct lane *l, const struct step_truth *t, struct keyset kept,
                     struct keyset held, struct row_work *w)
{
    double recall = l->acc.recall[t->step];
    if (!held.s)
        return;
    if (held.s != kept.s) {
        int64_t n = keyset_list(held, t->first, t->limit, false, w->at);
        recall = n == t->limit - t->first ? 1 : mass_of(t, w->at, n, w->z);
    }
    l->lost[t->step] = MAX(0, 1 - recall);
    l->hot += !has_all(held, t->hot, MIN(DECODE_HOT, t->limit - t->first));
}

static void add_layer_errors(struct lane *l, const struct step_truth *t, const double *out)
{
    for (int64_t c = 0; c < l->acc.dv; c++) {
        double delta = out[c] - t->out[c];
        l->sq_delta[t->step] += delta * delta;
        l->sq_ref[t->step] += t->out[c] * t->out[c];
    }
}

/* The step as a row of the mask and of the outputs of all steps. */
static int dump_step(struct lane *l, const struct step_truth *t, struct keyset kept,
                     const double *out, const double *lse, struct err *err)
{
    struct mask m = {0};
    int rc = 0;
    if (!l->cell->sink)
        return 0;
    TRY(mask_lists_init(&m, l->acc.n, l->cell->in->x.nk, t->step, t->step + 1, true, 1, 1, err));
    for (int64_t i = 0; i < kept.n; i++)
        TRY(mask_lists_add_run(&m, 0, kept.s[i].lo, kept.s[i].hi, err));
    mask_lists_finish(&m);
    mask_within(&m, &l->cell->in->x.reach);
    TRY(l->cell->sink(l->cell->sink_ctx, &m, out, lse, err));
out:
    mask_free(&m);
    return rc;
}

int lane_step(struct lane *l, const struct step_truth *t, struct keyset kept, struct keyset held,
              struct row_work *w, struct err *err)
{
    const struct attn_in *x = &l->cell->in->x;
    int64_t allowed = t->limit - t->first, n = 0, top = 0;
    int rc = 0;

    for (int64_t i = 0; i < kept.n; i++)
        n += MAX(0, MIN(kept.s[i].hi, t->limit) - MAX(kept.s[i].lo, t->first));
    double lse = attend(x, t, kept, n, w);
    metrics_add_rows(&l->acc, t->step, 1, w->out, t->out, &lse, &lse, t->lse);
    add_layer_errors(l, t, w->out);
    TRY(dump_step(l, t, kept, w->out, &lse, err));
    add_lost(l, t, kept, held, w);
    if (n > 0 && n < allowed)
        TRY(heaviest(t, n, w, w->at, &top, err));
    l->topk += n == allowed ? 1 : n > 0 ? mass_of(t, w->at, top, w->z) : 0;
    l->pairs += n;
    l->allowed += allowed;
    if (t->step > 0)
        l->reuse += (double)keyset_common(kept, keysets_at(&l->last, 0)) /
                    (double)MAX(1, keyset_size(kept));
    keysets_clear(&l->last);
    TRY(keysets_add(&l->last, kept.s, kept.n, err));
out:
    return rc;
}

/* ---- the record ----------------------------------------------------------------------------- */

int lane_init(struct lane *l, const struct sim_cell *cell, struct call_outcome *out, int64_t steps,
              struct err *err)
{
    int rc = 0;
    *l = (struct lane){.cell = cell,
                       .out = out,
                       .off = out->err.code != 0,
                       .cached = method_decodes(cell->method, cell->params)};
    TRY(metrics_init(&l->acc, steps, cell->in->x.dv, err));
    TRY(mem_zalloc(&l->lost, 3 * steps, sizeof *l->lost, "steps", err));
    l->sq_delta = l->lost + steps;
    l->sq_ref = l->sq_delta + steps;
out:
    return rc;
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
    int rc = 0;
    for (int64_t t = 0; t < n; t += stride) {
        snprintf(full, sizeof full, "%s@token=%lld", name, (long long)t);
        TRY(record_metric(r, full, mean_of(x + t, MIN(stride, n - t)), err));
    }
out:
    return rc;
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
    int rc = 0;
    for (int64_t t = 0; t < n; t++) {
        peak = fmax(peak, c->held[t]);
        most = fmax(most, l->lost[t]);
    }
    TRY(RECORD_ALL(r, err, {"cum_lost", mean_of(l->lost, n)}, {"lost_max", most},
                   {"lost_drift", drift(l->lost, n)}, {"hot_lost", l->hot / (double)n},
                   {"cache_keys", mean_of(c->held, n)}, {"cache_keys_peak", peak},
                   {"cache_keys_end", c->end}, {"cache_keys_padded", c->padded}));
    if (!isnan(c->best))
        TRY(record_metric(r, "regret_evict", c->best - record_get(r, "cra_mean"), err));
    TRY(record_steps(r, "lost", l->lost, n, err));
    TRY(record_steps(r, "cache_keys", c->held, n, err));
out:
    return rc;
}

int lane_record(struct lane *l, const struct lane_cache *c, struct err *err)
{
    struct record *r = l->out->record;
    int64_t n = l->acc.n;
    double moved = drift(l->acc.recall, n);
    int rc = 0;

    r->status = RECORD_OK;
    record_note(r, "history=exact");
    TRY(RECORD_ALL(r, err, {"density_elem", (double)l->pairs / (double)l->allowed},
                   {"pairs_kept", (double)l->pairs}, {"pairs_allowed", (double)l->allowed}));
    TRY(record_steps(r, "recall", l->acc.recall, n, err));
    TRY(metrics_output(&l->acc, false, r, err));
    TRY(RECORD_ALL(r, err, {"cra_drift", moved}, {"err_l2_layer", c->err_layer},
                   {"regret_topk", l->topk / (double)n - record_get(r, "cra_mean")},
                   {"bytes_kv", c->kv}, {"bytes_dense", c->dense}, {"bytes_cache", c->bytes}));
    if (!isnan(c->meta))
        TRY(RECORD_ALL(r, err, {"bytes_meta", c->meta}, {"bytes_read", c->kv + c->meta}));
    if (n > 1)
        TRY(record_metric(r, "reuse", l->reuse / (double)(n - 1), err));
    if (c->evicts)
        TRY(record_eviction(l, c, err));
out:
    return rc;
}
