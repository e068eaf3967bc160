/*
 * svg2map.c - see svg2map.h.
 */
#include "sim/methods/svg2/svg2map.h"

#include "core/mem.h"
#include "sim/blocks/gpusum.h"

#include <math.h>
#include <stdlib.h>

static float score(const float *query, const float *key, int d, double scale, bool bf16)
{
    double dot = 0;
    for (int c = 0; c < d; c++)
        dot += (double)query[c] * (double)key[c];
    if (bf16)
        return dtype_round(DT_BF16, dtype_round(DT_BF16, (float)dot) * (float)scale);
    return (float)(dot * scale);
}

void svg2_weights(const float *query, const struct kmeans *keys, double scale,
                  const struct svg2_cut *cut, float *p)
{
    float top = -INFINITY;
    double sum = 0;
    for (int64_t b = 0; b < keys->k; b++) {
        p[b] = score(query, keys->centroids + b * keys->d, keys->d, scale, cut->bf16_scores);
        top = p[b] > top ? p[b] : top;
    }
    for (int64_t b = 0; b < keys->k; b++) {
        p[b] = (float)((double)keys->sizes[b] * exp((double)p[b] - (double)top));
        sum += p[b];
    }
    for (int64_t b = 0; b < keys->k; b++)
        p[b] = dtype_round(cut->dtype, (float)((double)p[b] / fmax(sum, 1e-12)));
}

/* Sums of a row that are at or below top_p. */
static int64_t sums_within(const struct svg2_cut *cut, const float *sorted, int64_t n)
{
    float sum = 0, top_p = (float)cut->top_p;
    if (cut->bf16_sums)
        return gpusum_count(DT_BF16, cut->chunk, sorted, n, dtype_round(DT_BF16, top_p));
    for (int64_t i = 0; i < n; i++)
        if ((sum += sorted[i]) > top_p)
            return i;
    return n;
}

int64_t svg2_prefix(const struct svg2_cut *cut, const float *sorted, int64_t n)
{
    int64_t least = (int64_t)(cut->min_share * (double)n);
    int64_t kept = cut->top_p >= 1 ? n : sums_within(cut, sorted, n) + 1;
    kept = kept < n ? kept : n;
    return kept > least ? kept : least;
}

struct entry {
    float p;
    int32_t b;
};

static int descending(const void *x, const void *y)
{
    const struct entry *a = x, *b = y;
    if (a->p != b->p)
        return a->p < b->p ? 1 : -1;
    return (a->b > b->b) - (a->b < b->b);
}

int svg2_map(const struct kmeans *queries, const struct kmeans *keys, double scale,
             const struct svg2_cut *cut, uint8_t **map, struct err *err)
{
    struct entry *e = NULL;
    float *p = NULL;
    uint8_t *out = NULL;
    int64_t k = keys->k;
    int rc = 0;

    TRY(mem_zalloc(&out, queries->k * k, 1, "cluster map", err));
    TRY(mem_alloc(&e, k, sizeof *e, "sorted clusters", err));
    TRY(mem_alloc(&p, k, sizeof *p, "cluster weights", err));
    for (int64_t a = 0; a < queries->k; a++) {
        svg2_weights(queries->centroids + a * keys->d, keys, scale, cut, p);
        for (int64_t b = 0; b < k; b++)
            e[b] = (struct entry){p[b], (int32_t)b};
        qsort(e, (size_t)k, sizeof *e, descending);
        for (int64_t b = 0; b < k; b++)
            p[b] = e[b].p;
        int64_t kept = svg2_prefix(cut, p, k);
        for (int64_t r = 0; r < kept; r++)
            out[a * k + e[r].b] = 1;
    }
    *map = out;
    out = NULL;
out:
    free(out);
    free(e);
    free(p);
    return rc;
}
