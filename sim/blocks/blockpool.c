/*
 * blockpool.c - block means and self-similarity, see blockpool.h.
 */
#include "sim/blocks/blockpool.h"

#include "core/intmath.h"
#include "core/simd.h"

#include <assert.h>
#include <math.h>
#include <string.h>

void block_mean(const float *x, int64_t n, int d, enum dtype t, float *mean)
{
    double sum[BLOCKPOOL_MAX_D];
    assert(d <= BLOCKPOOL_MAX_D && n > 0);
    memset(sum, 0, (size_t)d * sizeof *sum);
    for (int64_t a = 0; a < n; a++)
        for (int c = 0; c < d; c++)
            sum[c] += x[a * d + c];
    for (int c = 0; c < d; c++)
        mean[c] = dtype_round(t, (float)(sum[c] / (double)n));
}

void token_mean(const float *x, int64_t n, int d, enum dtype t, float *mean)
{
    block_mean(x, n, d, t, mean);
}

void token_centre(const float *x, int64_t n, int d, const float *mean, enum dtype t, float *out)
{
    for (int64_t a = 0; a < n; a++)
        for (int c = 0; c < d; c++)
            out[a * d + c] = x[a * d + c] - mean[c];
    if (t != DT_F32)
        for (int64_t i = 0; i < n * d; i++)
            out[i] = dtype_round(t, out[i]);
}

/* Partial sums let the compiler vectorise. */
SIMD_CLONES
double row_product(const float *a, const float *b, int d)
{
    double lane[16] = {0}, sum = 0;
    int c = 0;
    for (; c + 16 <= d; c += 16)
        for (int k = 0; k < 16; k++)
            lane[k] += (double)a[c + k] * b[c + k];
    for (; c < d; c++)
        sum += (double)a[c] * b[c];
    for (int k = 0; k < 16; k++)
        sum += lane[k];
    return sum;
}

/* Four at a time, so that their sums do not wait for each other. */
SIMD_CLONES EXACT_PRODUCTS static void four_products(const float *a, const float *const *b, int d,
                                                     double *out)
{
    double l0[16] = {0}, l1[16] = {0}, l2[16] = {0}, l3[16] = {0};
    const float *b0 = b[0], *b1 = b[1], *b2 = b[2], *b3 = b[3];
    int c = 0;
    for (; c + 16 <= d; c += 16)
        for (int k = 0; k < 16; k++) {
            double x = a[c + k];
            l0[k] += x * b0[c + k];
            l1[k] += x * b1[c + k];
            l2[k] += x * b2[c + k];
            l3[k] += x * b3[c + k];
        }
    for (int e = 0; e < 4; e++) {
        out[e] = 0;
        for (int r = c; r < d; r++)
            out[e] += (double)a[r] * b[e][r];
    }
    for (int k = 0; k < 16; k++) {
        out[0] += l0[k];
        out[1] += l1[k];
        out[2] += l2[k];
        out[3] += l3[k];
    }
}

void row_products(const float *a, const float *b, int d, const int32_t *at, int64_t n, double *out)
{
    for (int64_t j = 0; j < n; j += 4) {
        const float *row[4];
        double four[4];
        for (int64_t e = 0; e < 4; e++) {
            int64_t i = MIN(j + e, n - 1);
            row[e] = b + (at ? at[i] : i) * d;
        }
        four_products(a, row, d, four);
        memcpy(out + j, four, (size_t)MIN(4, n - j) * sizeof *out);
    }
}

static double norm2(const float *x, int d)
{
    double s = 0;
    for (int c = 0; c < d; c++)
        s += (double)x[c] * x[c];
    return s;
}

double block_cosine(const float *x, int64_t n, int d, bool *zero_row)
{
    double sum[BLOCKPOOL_MAX_D] = {0}, s = 0;
    bool zero = false;
    assert(d <= BLOCKPOOL_MAX_D && n > 0);
    for (int64_t a = 0; a < n; a++) {
        double len = sqrt(norm2(x + a * d, d));
        if (len == 0) {
            zero = true;
            continue;
        }
        for (int c = 0; c < d; c++)
            sum[c] += x[a * d + c] / len;
    }
    for (int c = 0; c < d; c++)
        s += sum[c] * sum[c];
    if (zero_row)
        *zero_row = zero;
    return fmin(s / ((double)n * (double)n), 1.0);
}

double block_mean_share(const float *x, int64_t n, int d)
{
    double sum[BLOCKPOOL_MAX_D] = {0}, top = 0, s = 0;
    assert(d <= BLOCKPOOL_MAX_D && n > 0);
    for (int64_t a = 0; a < n; a++) {
        top = fmax(top, norm2(x + a * d, d));
        for (int c = 0; c < d; c++)
            sum[c] += x[a * d + c];
    }
    for (int c = 0; c < d; c++)
        s += sum[c] * sum[c];
    return top > 0 ? fmin(s / ((double)n * (double)n) / top, 1.0) : 1.0;
}
