/*
 * kmeans.c - see kmeans.h.
 */
#include "sim/kmeans.h"

#include "core/mem.h"
#include "core/simd.h"

#include <cblas.h>
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

static void squares(const float *x, int64_t n, int d, float *out)
{
    for (int64_t i = 0; i < n; i++) {
        float sum = 0;
        for (int c = 0; c < d; c++)
            sum += x[i * d + c] * x[i * d + c];
        out[i] = sum;
    }
}

/* Distances replace the products; the first smallest one wins. */
SIMD_CLONES
static int32_t nearest(float *dots, const float *centroid_sq, float token_sq, int64_t k)
{
    float best = INFINITY;
    for (int64_t j = 0; j < k; j++) {
        float dist = token_sq + centroid_sq[j] - 2 * dots[j];
        dist = dist > 0 ? dist : 0;
        dots[j] = dist;
        best = dist < best ? dist : best;
    }
    for (int64_t j = 0; j < k; j++)
        if (dots[j] == best)
            return (int32_t)j;
    return 0;
}

static void assign(struct kmeans *m, const float *x, struct scratch *w)
{
    squares(m->centroids, m->k, m->d, w->centroid_sq);
    memset(m->sizes, 0, (size_t)m->k * sizeof *m->sizes);
    for (int64_t i0 = 0; i0 < m->n; i0 += TILE) {
        int64_t rows = m->n - i0 < TILE ? m->n - i0 : TILE;
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, (int)m->k, m->d, 1,
                    x + i0 * m->d, m->d, m->centroids, m->d, 0, w->dots, (int)m->k);
        for (int64_t r = 0; r < rows; r++) {
            int32_t label = nearest(w->dots + r * m->k, w->centroid_sq, w->token_sq[i0 + r], m->k);
            m->labels[i0 + r] = label;
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
    squares(x, m->n, m->d, w.token_sq);
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
