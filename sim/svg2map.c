/*
 * svg2map.c - see svg2map.h.
 */
#include "sim/svg2map.h"

#include "core/mem.h"

#include <math.h>
#include <stdlib.h>

void svg2_weights(const float *query, const struct kmeans *keys, double scale, enum dtype dtype,
                  float *p)
{
    float top = -INFINITY;
    double sum = 0;
    for (int64_t b = 0; b < keys->k; b++) {
        double dot = 0;
        for (int c = 0; c < keys->d; c++)
            dot += (double)query[c] * (double)keys->centroids[b * keys->d + c];
        p[b] = (float)(dot * scale);
        top = p[b] > top ? p[b] : top;
    }
    for (int64_t b = 0; b < keys->k; b++) {
        p[b] = (float)((double)keys->sizes[b] * exp((double)p[b] - (double)top));
        sum += p[b];
    }
    for (int64_t b = 0; b < keys->k; b++)
        p[b] = dtype_round(dtype, (float)((double)p[b] / fmax(sum, 1e-12)));
}

int64_t svg2_prefix(const struct svg2_cut *cut, const float *sorted, int64_t n)
{
    int64_t least = (int64_t)(cut->min_share * (double)n), kept = 0;
    float sum = 0;
    if (cut->top_p >= 1)
        return n;
    while (kept < n && (kept == 0 || sum <= (float)cut->top_p)) {
        sum += sorted[kept++];
        sum = cut->bf16_sums ? dtype_round(DT_BF16, sum) : sum;
    }
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
        svg2_weights(queries->centroids + a * keys->d, keys, scale, cut->dtype, p);
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
