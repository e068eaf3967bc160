#include "sim/methods/evict/score.h"

#include "core/intmath.h"
#include "core/mem.h"
#include "core/rng.h"
#include "core/simd.h"
#include "sim/blocks/blockpool.h"
#include "sim/blocks/exact.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool by_sums(const struct evict_rule *rule)
{
    return rule->by == BY_H2O || rule->by == BY_OBSERVED;
}

/* Is a key's worth the same for all heads over its cache? */
static bool by_keys(const struct evict_rule *rule)
{
    return rule->by == BY_STREAMING || rule->by == BY_KNORM || rule->by == BY_KEYDIFF ||
           rule->by == BY_RANDOM;
}

/* Lengths of the keys of every cache. */
static int key_norms(struct evict_work *w, struct err *err)
{
    PASS_ON(mem_alloc(&w->norm, w->n_caches * w->nk, sizeof *w->norm, "lengths of keys", err));
    for (int64_t i = 0; i < w->n_caches * w->nk; i++) {
        const struct attn_in *x = &w->layer->heads[i / w->nk * w->layer->share]->x;
        const float *k = x->k + i % w->nk * x->d;
        w->norm[i] = sqrt(row_product(k, k, x->d));
    }
    return 0;
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
    w->rule = rule;
    w->layer = layer;
    w->nk = nk;
    w->n_caches = layer->n / layer->share;
    if (rows && layer->from < seen)
        return method_skip(ctx,
                           "the last %lld rows of the prompt score its keys and %lld are "
                           "stored: capture with --window %lld",
                           (long long)seen, (long long)layer->from, (long long)seen);
    PASS_ON(prefix_work_new(&w->prefix, err));
    PASS_ON(mem_alloc(&w->z, 2 * nk, sizeof *w->z, "scores of keys", err));
    PASS_ON(mem_alloc(&w->score, w->n_caches * nk, sizeof *w->score, "scores of keys", err));
    if (rows)
        PASS_ON(mem_alloc(&w->rows, seen * nk, sizeof *w->rows, "scores of rows", err));
    if (rule->by == BY_KNORM || rule->by == BY_KEYDIFF)
        PASS_ON(key_norms(w, err));
    if (by_sums(rule))
        PASS_ON(mem_zalloc(&w->sum, layer->n * nk, sizeof *w->sum, "column sums", err));
    for (int h = 0; w->sum && h < layer->n; h++)
        PASS_ON(prompt_sums(layer, h, w->sum + h * nk, ctx, err));
    return 0;
}

void evict_work_free(struct evict_work *w)
{
    prefix_work_free(w->prefix);
    free(w->sum);
    free(w->score);
    free(w->norm);
    free(w->rows);
    free(w->seen);
    free(w->z);
}

/* ---- scores --------------------------------------------------------------------------------- */

/* Scores of row r, by position, of the keys in the cache; -inf where it does not look. */
static void gather(const struct attn_in *x, const struct kv_cache *k, int64_t r, const double *s,
                   double *z)
{
    int64_t first = attn_first(x, r), limit = attn_limit(x, r);
    for (int64_t i = 0; i < k->n; i++)
        z[i] = k->at[i] >= first && k->at[i] < limit ? s[k->at[i]] : -INFINITY;
}

/* Add softmax(z) to sum; z is overwritten. */
static void add_softmax(double *z, int64_t n, double *sum)
{
    double top = row_max_f64(z, n), total = top == -INFINITY ? 0 : exp_sum_f64(z, n, top);
    double by = total > 0 ? 1 / total : 0;
    for (int64_t i = 0; i < n; i++)
        sum[i] += z[i] * by;
}

static const struct kv_cache *cache_of(const struct evict_work *w, int h)
{
    return w->layer->caches + h / w->layer->share;
}

static double *seen_row(const struct evict_work *w, int h, int64_t r)
{
    return w->seen + (h * w->rule->window + r % w->rule->window) * w->stride;
}

void evict_add_row(struct evict_work *w, int64_t row, const double *const *score)
{
    for (int h = 0; h < w->layer->n; h++) {
        const struct kv_cache *k = cache_of(w, h);
        double *sum = w->z + w->nk;
        for (int64_t r = 0; w->seen && r < w->rule->window; r++)
            seen_row(w, h, r)[k->n - 1] = -INFINITY;
        if (w->seen)
            gather(&w->layer->heads[h]->x, k, row, score[h], seen_row(w, h, row));
        if (!w->sum)
            continue;
        memset(sum, 0, (size_t)k->n * sizeof *sum);
        gather(&w->layer->heads[h]->x, k, row, score[h], w->z);
        add_softmax(w->z, k->n, sum);
        for (int64_t i = 0; i < k->n; i++)
            w->sum[h * w->nk + k->at[i]] += sum[i];
    }
}

/* Room for the scores of the last rows and the keys that stay or join a cache. */
static int make_room(struct evict_work *w, struct err *err)
{
    for (int c = 0; c < w->n_caches; c++) {
        int64_t n = w->nk - w->layer->prompt;
        for (int64_t i = 0; i < w->layer->caches[c].n; i++)
            n += !w->layer->caches[c].drop[i];
        w->stride = MAX(w->stride, n);
    }
    return mem_alloc(&w->seen, w->layer->n * w->rule->window * w->stride, sizeof *w->seen,
                     "scores of the last rows", err);
}

/* Keep the scores of the last rows of the keys that stay, so that they are computed once. */
static int keep_rows(struct evict_work *w, int64_t row, struct err *err)
{
    int64_t first = MAX(0, row + 1 - w->rule->window);
    bool fresh = !w->seen;
    PASS_ON(fresh ? make_room(w, err) : 0);
    for (int h = 0; h < w->layer->n; h++) {
        const struct head_in *in = w->layer->heads[h];
        const struct kv_cache *k = cache_of(w, h);
        if (fresh)
            PASS_ON(exact_scores(in->exact, first, row + 1, 0, w->nk, w->rows, err));
        for (int64_t r = first; r <= row; r++) {
            double *to = seen_row(w, h, r), *from = fresh ? w->z : to;
            int64_t m = 0;
            if (fresh)
                gather(&in->x, k, r, w->rows + (r - first) * w->nk, from);
            for (int64_t i = 0; i < k->n; i++)
                if (!k->drop[i])
                    to[m++] = from[i];
        }
    }
    return 0;
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
static int add_window(struct evict_work *w, int h, int64_t row, const double *score, int64_t recent,
                      double *out, struct err *err)
{
    const struct head_in *in = w->layer->heads[h];
    const struct kv_cache *k = cache_of(w, h);
    bool last = w->rule->by == BY_TOVA; /* the row alone, no pooling */
    int64_t rows = last ? 1 : w->rule->window, first = MAX(0, row - rows + 1), n = k->n;
    int64_t pool = last ? 1 : w->rule->pool;
    bool anew = !w->seen && !(last && score);
    double *sum = w->z + w->nk;
    memset(sum, 0, (size_t)n * sizeof *sum);
    if (anew)
        PASS_ON(exact_scores(in->exact, first, row + 1, 0, w->nk, w->rows, err));
    for (int64_t r = first; r <= row; r++) {
        if (w->seen)
            memcpy(w->z, seen_row(w, h, r), (size_t)n * sizeof *w->z);
        else
            gather(&in->x, k, r, anew ? w->rows + (r - first) * w->nk : score, w->z);
        add_softmax(w->z, n, sum);
    }
    if (recent >= rows && pool > 1)
        n = MAX(0, n - recent);
    add_pooled(sum, n, pool, out);
    return 0;
}

SIMD_CLONES
static void add_scaled(const float *k, double by, int d, double *sum)
{
    for (int c = 0; c < d; c++)
        sum[c] += (double)k[c] * by;
}

SIMD_CLONES
static double product(const double *a, const float *k, int d)
{
    double lane[8] = {0}, sum = 0;
    int c = 0;
    for (; c + 8 <= d; c += 8)
        for (int e = 0; e < 8; e++)
            lane[e] += a[c + e] * (double)k[c + e];
    for (; c < d; c++)
        sum += a[c] * (double)k[c];
    for (int e = 0; e < 8; e++)
        sum += lane[e];
    return sum;
}

/* -cosine with the mean of the keys of unit length. */
static int add_keydiff(const struct attn_in *x, const double *norm, const struct kv_cache *k,
                       double *out, struct err *err)
{
    double *mean = NULL, size = 0;
    PASS_ON(mem_zalloc(&mean, x->d, sizeof *mean, "mean of keys", err));
    for (int64_t i = 0; i < k->n; i++)
        if (norm[k->at[i]] > 0)
            add_scaled(x->k + k->at[i] * (int64_t)x->d, 1 / norm[k->at[i]], x->d, mean);
    for (int c = 0; c < x->d; c++)
        size += mean[c] * mean[c];
    size = sqrt(size);
    for (int64_t i = 0; i < k->n; i++)
        if (norm[k->at[i]] > 0 && size > 0)
            out[i] -= product(mean, x->k + k->at[i] * (int64_t)x->d, x->d) / norm[k->at[i]] / size;
    free(mean);
    return 0;
}

static int add_future(struct evict_work *w, int h, double *out, struct err *err)
{
    const struct head_in *in = w->layer->heads[h];
    const struct kv_cache *k = cache_of(w, h);
    memset(w->z, 0, (size_t)w->nk * sizeof *w->z);
    int rc = column_mass(in, w->layer->from, in->x.nq, w->z, err);
    for (int64_t i = 0; i < k->n; i++)
        out[i] += w->z[k->at[i]];
    return rc;
}

/* Add what head h says of the keys of its cache. */
static int add_scores(struct evict_work *w, int h, int64_t row, const double *score, int64_t recent,
                      double *out, struct err *err)
{
    const struct attn_in *x = &w->layer->heads[h]->x;
    const struct kv_cache *k = cache_of(w, h);
    int64_t norm = h / w->layer->share * w->nk, sum = h * w->nk; /* where the head's begin */
    enum evict_by by = w->rule->by;
    int64_t seen = attn_limit(x, row);
    if (by == BY_SNAPKV || by == BY_ADAKV || by == BY_TOVA)
        return add_window(w, h, row, score, recent, out, err);
    if (by == BY_FUTURE)
        return add_future(w, h, out, err);
    if (by == BY_KEYDIFF)
        return add_keydiff(x, w->norm + norm, k, out, err);
    for (int64_t i = 0; i < k->n; i++)
        out[i] += by == BY_H2O        ? w->sum[sum + k->at[i]]
                  : by == BY_OBSERVED ? w->sum[sum + k->at[i]] / (double)(seen - k->at[i])
                  : by == BY_KNORM    ? -w->norm[norm + k->at[i]]
                  : by == BY_RANDOM   ? rng_uniform(w->rule->seed, 0, (uint64_t)k->at[i])
                                      : (double)k->at[i];
    return 0;
}

/* The sum over the heads of each cache, or of the layer, whose caches then are equal; what keys
 * alone say counts once. */
static int score_caches(struct evict_work *w, int64_t row, const double *const *score,
                        const struct evict_size *size, struct err *err)
{
    bool of_layer = w->rule->unit == UNIT_LAYER;
    int share = w->layer->share;
    memset(w->score, 0, (size_t)(w->n_caches * w->nk) * sizeof *w->score);
    for (int h = 0; h < w->layer->n; h += by_keys(w->rule) ? share : 1)
        PASS_ON(add_scores(w, h, row, score ? score[h] : NULL, size[h / share].recent,
                           w->score + (of_layer ? 0 : h / share * w->nk), err));
    for (int c = 1; c < w->n_caches && of_layer; c++)
        memcpy(w->score + c * w->nk, w->score, (size_t)w->nk * sizeof *w->score);
    return 0;
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
static int keep_of_layer(struct evict_work *w, int64_t keep, struct err *err)
{
    struct prefix p;
    for (int c = 0; c < w->n_caches; c++)
        for (int64_t i = w->layer->caches[c].n; i < w->nk; i++)
            w->score[c * w->nk + i] = NAN;
    PASS_ON(prefix_topk(w->prefix, w->score, w->n_caches * w->nk, keep, &p, err));
    for (int64_t i = 0; i < w->n_caches * w->nk; i++)
        if (i % w->nk < w->layer->caches[i / w->nk].n)
            w->layer->caches[i / w->nk].drop[i % w->nk] =
                !isnan(w->score[i]) && !prefix_has(&p, w->score[i], i);
    return 0;
}

int evict_apply(struct evict_work *w, int64_t row, const double *const *score,
                const struct evict_size *size, struct err *err)
{
    const struct evict_rule *rule = w->rule;
    bool full = false, close = rule->every > 0 && rule->every < rule->window;
    int64_t rest = 0;
    for (int c = 0; c < w->n_caches; c++)
        full |= size[c].keys >= 0 && w->layer->caches[c].n > size[c].keys;
    if (!full)
        return 0;
    PASS_ON(score_caches(w, row, score, size, err));
    for (int c = 0; c < w->n_caches; c++) {
        struct kv_cache *k = w->layer->caches + c;
        double *worth = w->score + c * w->nk;
        int64_t keep = MIN(size[c].keys, k->n);
        for (int64_t i = 0; i < k->n; i++)
            if (size[c].keys < 0 || i < rule->sink || i >= k->n - size[c].recent) {
                worth[i] = NAN;
                keep--;
            }
        int64_t safe = (int64_t)((double)MAX(0, keep) * rule->safe);
        rest += MAX(0, keep) - safe;
        PASS_ON(keep_best(w, k, worth, safe, err));
    }
    if (rest > 0)
        PASS_ON(keep_of_layer(w, rest, err));
    if (w->rows && rule->by != BY_TOVA && close)
        return keep_rows(w, row, err);
    return 0;
}
