/*
 * kmeans.c - see svg2.h.
 */
#include "sim/methods/svg2/svg2.h"

#include "core/gemm.h"
#include "core/mem.h"
#include "core/simd.h"
#include "sim/blocks/gpusum.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Tokens whose products with all centroids exist at a time. */
#define TILE 256

int kmeans_init(struct kmeans *m, int64_t n, int64_t k, int d, enum dtype dtype, struct err *err)
{
    int rc = 0;
    *m = (struct kmeans){.n = n, .k = k, .d = d, .dtype = dtype};
    TRY(mem_zalloc(&m->centroids, k * d, sizeof *m->centroids, "centroids", err));
    TRY(mem_zalloc(&m->labels, n, sizeof *m->labels, "cluster labels", err));
    TRY(mem_zalloc(&m->sizes, k, sizeof *m->sizes, "cluster sizes", err));
out:
    if (rc)
        kmeans_free(m);
    return rc;
}

void kmeans_free(struct kmeans *m)
{
    free(m->centroids);
    free(m->labels);
    free(m->sizes);
    memset(m, 0, sizeof *m);
}

struct scratch {
    float *dots;        /* [TILE][k] */
    float *token_sq;    /* [n] */
    float *centroid_sq; /* [k] */
    double *sums;       /* [k][d] */
    float *next;        /* [k][d] */
};

static void scratch_free(struct scratch *w)
{
    free(w->dots);
    free(w->token_sq);
    free(w->centroid_sq);
    free(w->sums);
    free(w->next);
}

static int scratch_init(struct scratch *w, const struct kmeans *m, struct err *err)
{
    int rc = 0;
    TRY(mem_alloc(&w->dots, TILE * m->k, sizeof *w->dots, "products with centroids", err));
    TRY(mem_alloc(&w->token_sq, m->n, sizeof *w->token_sq, "squared tokens", err));
    TRY(mem_alloc(&w->centroid_sq, m->k, sizeof *w->centroid_sq, "squared centroids", err));
    TRY(mem_alloc(&w->sums, m->k * m->d, sizeof *w->sums, "sums of clusters", err));
    TRY(mem_alloc(&w->next, m->k * m->d, sizeof *w->next, "next centroids", err));
out:
    return rc;
}

/* The published code squares tokens in their own type and rounds their sum to it. */
static float token_square(const float *x, int d, bool bf16)
{
    float sum = 0;
    for (int c = 0; c < d; c++)
        sum += bf16 ? dtype_round(DT_BF16, x[c] * x[c]) : x[c] * x[c];
    return bf16 ? dtype_round(DT_BF16, sum) : sum;
}

/* c^2 + sum, rounded once. */
static float fma_bf16(float c, float sum)
{
    return dtype_round(DT_BF16, (float)((double)c * c + sum));
}

/* |c|^2 of the published kernel, whose accumulators hold the centroids: thread g of warp w has the
 * channels 16w + g and 16w + g + 8 of every 64. (Triton 3.6 on Hopper; most of the tile sizes that
 * the kernel tries have these four warps.) */
static float bf16_centroid_square(const float *c, int d)
{
    enum { WARPS = 4, LANES = 8, STEP = 16 * WARPS };
    float s[WARPS * LANES];
    for (int i = 0; i < WARPS * LANES; i++) {
        int e = i / LANES * 16 + i % LANES;
        float sum = e + 8 < d ? fma_bf16(c[e + 8], 0) : 0;
        sum = e < d ? fma_bf16(c[e], sum) : sum;
        for (e += STEP; e < d; e += STEP) {
            sum = fma_bf16(c[e], sum);
            sum = e + 8 < d ? fma_bf16(c[e + 8], sum) : sum;
        }
        s[i] = sum;
    }
    return gpusum_fold(s, WARPS, LANES);
}

static void centroid_squares(const struct kmeans *m, float *out)
{
    for (int64_t j = 0; j < m->k; j++) {
        const float *c = m->centroids + j * m->d;
        out[j] = m->bf16_norms ? bf16_centroid_square(c, m->d) : token_square(c, m->d, false);
    }
}

/* Lower bounds of the distances replace the products; returns the least upper bound. `slack` times
 * |x|^2 + |c|^2 covers what the order of additions inside BLAS can do to a distance. */
SIMD_CLONES
static float bound(float *dots, const float *centroid_sq, float token_sq, int64_t k, float slack)
{
    float least = INFINITY;
    for (int64_t j = 0; j < k; j++) {
        float sq = token_sq + centroid_sq[j], off = slack * sq;
        float dist = sq - 2 * dots[j];
        dist = dist > 0 ? dist : 0;
        dots[j] = dist - off;
        least = dist + off < least ? dist + off : least;
    }
    return least;
}

/* The distance that decides: additions in one order, so that it is the same on every processor. */
static float distance(const float *x, const float *c, int d, float token_sq, float centroid_sq)
{
    double dot = 0;
    for (int e = 0; e < d; e++)
        dot += (double)x[e] * c[e];
    float dist = token_sq + centroid_sq - 2 * (float)dot;
    return dist > 0 ? dist : 0;
}

/* Nearest centroid of token x, the lower of equals. BLAS only says which ones come into question:
 * the bound of a sum of d products in any order is d 2^-24 |x| |c|; the few other roundings and the
 * rounding of the squares are in the constants. */
static int32_t nearest(const struct kmeans *m, const float *x, float *dots, float token_sq,
                       const float *centroid_sq)
{
    float slack = (float)(m->d + 8) * 0x1p-23f, best = INFINITY;
    float least = bound(dots, centroid_sq, token_sq, m->k, slack);
    int32_t label = 0;
    for (int64_t j = 0; j < m->k; j++) {
        if (dots[j] > least)
            continue;
        float dist = distance(x, m->centroids + j * m->d, m->d, token_sq, centroid_sq[j]);
        if (dist < best) {
            best = dist;
            label = (int32_t)j;
        }
    }
    return label;
}

static void assign(struct kmeans *m, const float *x, struct scratch *w)
{
    centroid_squares(m, w->centroid_sq);
    memset(m->sizes, 0, (size_t)m->k * sizeof *m->sizes);
    for (int64_t i0 = 0; i0 < m->n; i0 += TILE) {
        int64_t rows = m->n - i0 < TILE ? m->n - i0 : TILE;
        gemm_nt_f32(rows, m->k, m->d, 1, x + i0 * m->d, m->d, m->centroids, m->d, 0, w->dots, m->k);
        for (int64_t r = 0; r < rows; r++) {
            int64_t i = i0 + r;
            int32_t label =
                nearest(m, x + i * m->d, w->dots + r * m->k, w->token_sq[i], w->centroid_sq);
            m->labels[i] = label;
            m->sizes[label]++;
        }
    }
}

/* New centroids into w->next; returns how far the farthest one moves. */
static double update(const struct kmeans *m, const float *x, struct scratch *w)
{
    double shift = 0;
    memset(w->sums, 0, (size_t)(m->k * m->d) * sizeof *w->sums);
    for (int64_t i = 0; i < m->n; i++)
        for (int c = 0; c < m->d; c++)
            w->sums[m->labels[i] * m->d + c] += x[i * m->d + c];
    for (int64_t j = 0; j < m->k; j++) {
        double moved = 0;
        for (int64_t c = j * m->d; c < (j + 1) * m->d; c++) {
            w->next[c] = m->sizes[j] == 0
                             ? m->centroids[c]
                             : dtype_round(m->dtype, (float)(w->sums[c] / (double)m->sizes[j]));
            moved += pow((double)w->next[c] - m->centroids[c], 2);
        }
        shift = fmax(shift, sqrt(moved));
    }
    return shift;
}

int kmeans_run(struct kmeans *m, const float *x, int64_t most, double tol, struct err *err)
{
    struct scratch w = {0};
    int rc = 0;

    TRY(scratch_init(&w, m, err));
    for (int64_t i = 0; i < m->n; i++)
        w.token_sq[i] = token_square(x + i * m->d, m->d, m->bf16_norms);
    m->iterations = 0;
    for (bool moving = true; moving && m->iterations < most; m->iterations++) {
        assign(m, x, &w);
        m->shift = update(m, x, &w);
        moving = m->shift >= tol;
        if (moving)
            memcpy(m->centroids, w.next, (size_t)(m->k * m->d) * sizeof *w.next);
    }
out:
    scratch_free(&w);
    return rc;
}
