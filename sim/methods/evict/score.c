#include "sim/methods/evict/score.h"

#include "core/intmath.h"
#include "core/mem.h"
#include "core/rng.h"
#include "core/sort.h"
#include "sim/blocks/exact.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool by_sums(const struct evict_rule *rule)
{
    return rule->by == BY_H2O || rule->by == BY_OBSERVED;
}

/* Sums of the columns over the rows of the prompt. */
static int prompt_sums(const struct decode_layer *layer, int h, double *sum, struct method_ctx *ctx,
                       struct err *err)
{
    const float *stored = layer->col_sum ? layer->col_sum[h] : NULL;
    for (int64_t j = 0; stored && j < layer->prompt; j++)
        sum[j] = (double)stored[j];
    if (stored)
        return 0;
    if (layer->from < layer->prompt)
        return method_skip(ctx,
                           "by=h2o and by=observed need what all rows of the prompt attended to: "
                           "capture with --col-sums, or with --window %lld",
                           (long long)layer->prompt);
    return column_mass(layer->heads[h], 0, layer->from, sum, err);
}

int evict_work_init(struct evict_work *w, const struct evict_rule *rule,
                    const struct decode_layer *layer, struct method_ctx *ctx, struct err *err)
{
    int64_t nk = layer->heads[0]->x.nk, seen = rule->by == BY_TOVA ? 1 : rule->window;
    bool rows = rule->by == BY_SNAPKV || rule->by == BY_ADAKV || rule->by == BY_TOVA;
    int rc = 0;
    w->n_heads = layer->n;
    w->n_caches = layer->n / layer->share;
    if (rows && layer->from < seen)
        return method_skip(ctx,
                           "the last %lld rows of the prompt score its keys and %lld are "
                           "stored: capture with --window %lld",
                           (long long)seen, (long long)layer->from, (long long)seen);
    TRY(prefix_work_new(&w->prefix, err));
    TRY(mem_alloc(&w->z, nk, sizeof *w->z, "scores of keys", err));
    TRY(mem_zalloc(&w->score, w->n_caches, sizeof *w->score, "scores of keys", err));
    for (int c = 0; c < w->n_caches; c++)
        TRY(mem_alloc(&w->score[c], nk, sizeof **w->score, "scores of keys", err));
    if (rows)
        TRY(mem_alloc(&w->rows, seen * nk, sizeof *w->rows, "scores of rows", err));
    if (!by_sums(rule))
        goto out;
    TRY(mem_zalloc(&w->sum, layer->n, sizeof *w->sum, "column sums", err));
    for (int h = 0; h < layer->n; h++) {
        TRY(mem_zalloc(&w->sum[h], nk, sizeof **w->sum, "column sums", err));
        TRY(prompt_sums(layer, h, w->sum[h], ctx, err));
    }
out:
    return rc;
}

void evict_work_free(struct evict_work *w)
{
    for (int h = 0; w->sum && h < w->n_heads; h++)
        free(w->sum[h]);
    for (int c = 0; w->score && c < w->n_caches; c++)
        free(w->score[c]);
    prefix_work_free(w->prefix);
    free(w->sum);
    free(w->score);
    free(w->rows);
    free(w->z);
}

/* ---- scores --------------------------------------------------------------------------------- */

/* z_i = softmax over the first n keys of the cache, of a row's scores by position. */
static void softmax_of(const struct kv_cache *k, int64_t n, const double *score, double *z)
{
    for (int64_t i = 0; i < n; i++)
        z[i] = score[k->at[i]];
    double top = row_max_f64(z, n);
    double sum = top == -INFINITY ? 0 : exp_sum_f64(z, n, top);
    for (int64_t i = 0; i < n; i++)
        z[i] = sum > 0 ? z[i] / sum : 0;
}

void evict_add_row(struct evict_work *w, const struct decode_layer *layer,
                   const double *const *score)
{
    for (int h = 0; w->sum && h < layer->n; h++) {
        const struct kv_cache *k = layer->caches + h / layer->share;
        softmax_of(k, k->n, score[h], w->z);
        for (int64_t i = 0; i < k->n; i++)
            w->sum[h][k->at[i]] += w->z[i];
    }
}

/* Add the mean over `pool` neighbours in the cache, zeros beyond its ends counted. */
static void add_pooled(const double *x, int64_t n, int64_t pool, double *out)
{
    for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int64_t e = MAX(0, i - pool / 2); e <= MIN(n - 1, i + pool / 2); e++)
            sum += x[e];
        out[i] += sum / (double)pool;
    }
}

/* The softmax of the last rows up to `row` over the cache, added up and pooled. Keys of the window
 * take no part in the pooling where all of them stay. */
static int add_window(struct evict_work *w, const struct evict_rule *rule,
                      const struct decode_layer *layer, int h, int64_t row, const double *score,
                      int64_t recent, double *out, struct err *err)
{
    const struct head_in *in = layer->heads[h];
    const struct kv_cache *k = layer->caches + h / layer->share;
    int64_t rows = rule->by == BY_TOVA ? 1 : rule->window, first = MAX(0, row - rows + 1);
    int64_t pool = rule->by == BY_TOVA ? 1 : rule->pool, nk = attn_limit(&in->x, row), n = k->n;
    double *sum = NULL;
    int rc = 0;
    TRY(mem_zalloc(&sum, k->n, sizeof *sum, "scores of keys", err));
    if (rows > 1 || !score)
        TRY(exact_scores(in->exact, first, row + 1, 0, nk, w->rows, err));
    for (int64_t r = first; r <= row; r++) {
        const double *s = rows > 1 || !score ? w->rows + (r - first) * nk : score;
        int64_t lo = 0, hi = k->n, limit = attn_limit(&in->x, r), start = attn_first(&in->x, r);
        while (hi > 0 && k->at[hi - 1] >= limit)
            hi--;
        while (lo < hi && k->at[lo] < start)
            lo++;
        struct kv_cache seen = {k->at + lo, hi - lo, NULL};
        softmax_of(&seen, seen.n, s, w->z);
        for (int64_t i = lo; i < hi; i++)
            sum[i] += w->z[i - lo];
    }
    if (recent >= rows && pool > 1)
        n = MAX(0, k->n - recent);
    add_pooled(sum, n, pool, out);
out:
    free(sum);
    return rc;
}

static double norm(const float *k, int d)
{
    double sum = 0;
    for (int c = 0; c < d; c++)
        sum += (double)k[c] * k[c];
    return sqrt(sum);
}

static void add_knorm(const struct attn_in *x, const struct kv_cache *k, double *out)
{
    for (int64_t i = 0; i < k->n; i++)
        out[i] -= norm(x->k + k->at[i] * (int64_t)x->d, x->d);
}

/* -cosine with the mean of the keys of unit length. */
static int add_keydiff(const struct attn_in *x, const struct kv_cache *k, double *out,
                       struct err *err)
{
    double *anchor = NULL, size = 0;
    int rc = mem_zalloc(&anchor, x->d, sizeof *anchor, "mean of keys", err);
    if (rc)
        return rc;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; i < k->n; i++) {
            const float *key = x->k + k->at[i] * (int64_t)x->d;
            double length = norm(key, x->d), dot = 0;
            for (int c = 0; c < x->d && length > 0; c++) {
                if (pass == 0)
                    anchor[c] += (double)key[c] / length / (double)k->n;
                dot += anchor[c] * (double)key[c] / length;
            }
            if (pass == 1 && size > 0)
                out[i] -= dot / size;
        }
        for (int c = 0; c < x->d && pass == 0; c++)
            size += anchor[c] * anchor[c];
        size = pass == 0 ? sqrt(size) : size;
    }
    free(anchor);
    return 0;
}

static int add_future(struct evict_work *w, const struct decode_layer *layer, int h,
                      const struct kv_cache *k, double *out, struct err *err)
{
    const struct head_in *in = layer->heads[h];
    memset(w->z, 0, (size_t)in->x.nk * sizeof *w->z);
    int rc = column_mass(in, layer->from, in->x.nq, w->z, err);
    for (int64_t i = 0; i < k->n; i++)
        out[i] += w->z[k->at[i]];
    return rc;
}

/* Add what head h says of the keys of its cache. */
static int add_scores(struct evict_work *w, const struct evict_rule *rule,
                      const struct decode_layer *layer, int h, int64_t row, const double *score,
                      int64_t recent, double *out, struct err *err)
{
    const struct attn_in *x = &layer->heads[h]->x;
    const struct kv_cache *k = layer->caches + h / layer->share;
    int64_t seen = attn_limit(x, row);
    switch (rule->by) {
    case BY_SNAPKV:
    case BY_ADAKV:
    case BY_TOVA:
        return add_window(w, rule, layer, h, row, score, recent, out, err);
    case BY_FUTURE:
        return add_future(w, layer, h, k, out, err);
    case BY_KEYDIFF:
        return add_keydiff(x, k, out, err);
    case BY_KNORM:
        add_knorm(x, k, out);
        return 0;
    default:
        break;
    }
    for (int64_t i = 0; i < k->n; i++)
        out[i] += rule->by == BY_H2O        ? w->sum[h][k->at[i]]
                  : rule->by == BY_OBSERVED ? w->sum[h][k->at[i]] / (double)(seen - k->at[i])
                  : rule->by == BY_RANDOM   ? rng_uniform(rule->seed, 0, (uint64_t)k->at[i])
                                            : (double)k->at[i];
    return 0;
}

/* Mean over the heads of each cache, or of the layer, whose caches then are equal. */
static int score_caches(struct evict_work *w, const struct evict_rule *rule,
                        const struct decode_layer *layer, int64_t row, const double *const *score,
                        const struct evict_size *size, struct err *err)
{
    bool of_layer = rule->unit == UNIT_LAYER;
    int64_t n = layer->caches[0].n;
    int rc = 0;
    for (int c = 0; c < w->n_caches; c++)
        memset(w->score[c], 0, (size_t)layer->caches[c].n * sizeof **w->score);
    for (int h = 0; h < layer->n; h++)
        TRY(add_scores(w, rule, layer, h, row, score ? score[h] : NULL,
                       size[h / layer->share].recent, w->score[of_layer ? 0 : h / layer->share],
                       err));
    for (int c = 1; c < w->n_caches && of_layer; c++)
        memcpy(w->score[c], w->score[0], (size_t)n * sizeof **w->score);
out:
    return rc;
}

/* ---- what stays ----------------------------------------------------------------------------- */

/* Drop all but the `keep` best keys whose score is not NAN; of equal ones the lower position stays.
 * Keys that stay leave the scores. */
static int keep_best(struct evict_work *w, const struct kv_cache *k, double *score, int64_t keep,
                     struct err *err)
{
    struct prefix p = {.count = 0};
    int rc = keep > 0 ? prefix_topk(w->prefix, score, k->n, keep, &p, err) : 0;
    for (int64_t i = 0; i < k->n; i++) {
        k->drop[i] = !isnan(score[i]) && !(keep > 0 && prefix_has(&p, score[i], i));
        score[i] = k->drop[i] ? score[i] : NAN;
    }
    return rc;
}

/* The best of what all caches would drop stay, `keep` in all; of equal ones the lower head's. */
static int keep_of_layer(struct evict_work *w, const struct decode_layer *layer, int64_t keep,
                         struct err *err)
{
    int64_t n = 0, at = 0, i = 0;
    double *all = NULL;
    struct prefix p;
    int rc = 0;
    for (int c = 0; c < w->n_caches; c++)
        n += layer->caches[c].n;
    TRY(mem_alloc(&all, n, sizeof *all, "scores of a layer", err));
    for (int c = 0; c < w->n_caches; at += layer->caches[c++].n)
        memcpy(all + at, w->score[c], (size_t)layer->caches[c].n * sizeof *all);
    TRY(prefix_topk(w->prefix, all, n, keep, &p, err));
    for (int c = 0; c < w->n_caches; c++)
        for (int64_t e = 0; e < layer->caches[c].n; e++, i++)
            layer->caches[c].drop[e] = !isnan(all[i]) && !prefix_has(&p, all[i], i);
out:
    free(all);
    return rc;
}

int evict_apply(struct evict_work *w, const struct evict_rule *rule,
                const struct decode_layer *layer, int64_t row, const double *const *score,
                const struct evict_size *size, struct err *err)
{
    int64_t rest = 0;
    bool full = false;
    int rc = 0;
    for (int c = 0; c < w->n_caches; c++)
        full |= size[c].keys >= 0 && layer->caches[c].n > size[c].keys;
    if (!full)
        return 0;
    TRY(score_caches(w, rule, layer, row, score, size, err));
    for (int c = 0; c < w->n_caches; c++) {
        struct kv_cache *k = layer->caches + c;
        int64_t keep = MIN(size[c].keys, k->n);
        for (int64_t i = 0; i < k->n; i++)
            if (size[c].keys < 0 || i < rule->sink || i >= k->n - size[c].recent) {
                w->score[c][i] = NAN;
                keep--;
            }
        int64_t safe = (int64_t)((double)MAX(0, keep) * rule->safe);
        rest += MAX(0, keep) - safe;
        TRY(keep_best(w, k, w->score[c], safe, err));
    }
    if (rest > 0)
        TRY(keep_of_layer(w, layer, rest, err));
out:
    return rc;
}
