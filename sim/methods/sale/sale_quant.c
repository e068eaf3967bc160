/*
 * sale_quant.c - SALE's smoothing and group quantisation (sale.h). O(n d).
 *
 *   x' = fl16(x - mean)      integers RNE(x' L/amax)      sq = fl16(amax/L)  sk = fl16(1/(L/amax))
 *
 * With 4 bits the correction is rounded to fp16, as the published kernel stores it; the products of
 * wider integers leave the range of fp16, so with 8 bits it stays fp32. An all-zero group has zero
 * integers and scale 0.
 */
#include "sim/methods/sale/sale.h"

#include "core/mem.h"

#include <stdlib.h>

static struct sale_scale sale_group_scale(float amax, int levels)
{
    if (!(amax > 0))
        return (struct sale_scale){0};
    float l = (float)levels, mul = l / amax;
    return (struct sale_scale){mul, sale_fl16(amax / l), sale_fl16(1 / mul)};
}

/* Token mean of fp16(x) per channel, rounded to fp16. */
static void token_mean(const float *x, int64_t n, int d, double *sum, float *mean)
{
    memset(sum, 0, (size_t)d * sizeof *sum);
    for (int64_t t = 0; t < n; t++)
        for (int c = 0; c < d; c++)
            sum[c] += sale_fl16(x[t * d + c]);
    for (int c = 0; c < d; c++)
        mean[c] = sale_fl16((float)(sum[c] / (double)n));
}

static float group_max(float amax, const float *x, int d)
{
    for (int c = 0; c < d; c++)
        amax = fmaxf(amax, fabsf(x[c]));
    return amax;
}

/* x' of one row of q (s->q holds fp16(q)). */
static void smooth_q(const struct sale_quant *s, int64_t row, float *out)
{
    for (int c = 0; c < s->d; c++)
        out[c] = sale_fl16(s->q[row * s->d + c] - s->qbar[c]);
}

static int quantise_q(struct sale_quant *s, struct err *err)
{
    float *x = NULL;
    int d = s->d, rc = mem_alloc(&x, 2 * d, sizeof *x, "smoothed rows", err);
    if (rc)
        return rc;
    for (int64_t r = 0; r < s->n; r += r % 8 == 7 ? 9 : 1) {
        int rows = r + 8 < s->n ? 2 : 1;
        float amax = 0;
        for (int i = 0; i < rows; i++) {
            smooth_q(s, r + 8 * i, x + i * d);
            amax = group_max(amax, x + i * d, d);
        }
        struct sale_scale g = sale_group_scale(amax, s->levels);
        s->sq[sale_q_group(r)] = g.sq;
        for (int i = 0; i < rows; i++)
            for (int c = 0; c < d; c++)
                s->qi[(r + 8 * i) * d + c] = (int8_t)sale_rne(x[i * d + c] * g.mul);
    }
    free(x);
    return 0;
}

/* Integers, scale and correction of group c of the 32-key block at token t0. */
static void quantise_k_group(struct sale_quant *s, int64_t t0, int c)
{
    int d = s->d;
    float amax = 0;
    for (int t = 2 * c; t < SALE_BK && t0 + t < s->n; t += t % 2 ? 7 : 1)
        amax = group_max(amax, s->k + (t0 + t) * d, d);
    struct sale_scale g = sale_group_scale(amax, s->levels);
    s->sk[t0 / SALE_BK * 4 + c] = g.sk;
    for (int t = 2 * c; t < SALE_BK && t0 + t < s->n; t += t % 2 ? 7 : 1) {
        const float *k = s->k + (t0 + t) * d;
        float dot = 0;
        for (int e = 0; e < d; e++) {
            s->ki[t0 * d + e * SALE_BK + sale_lane(t)] = (int8_t)sale_rne(k[e] * g.mul);
            dot += s->qbar[e] * k[e];
        }
        dot *= g.mul;
        s->corr[t0 + sale_lane(t)] = s->levels == 7 ? sale_fl16(dot) : dot;
    }
}

static int init_integers(struct sale_quant *s, struct err *err)
{
    int rc = 0;
    TRY(mem_zalloc(&s->qi, s->npad * s->d, 1, "low-bit queries", err));
    TRY(mem_zalloc(&s->ki, s->npad * s->d, 1, "low-bit keys", err));
    TRY(mem_zalloc(&s->sq, s->npad / 2, sizeof *s->sq, "query scales", err));
    TRY(mem_zalloc(&s->sk, s->npad / 8, sizeof *s->sk, "key scales", err));
    TRY(mem_zalloc(&s->corr, s->npad, sizeof *s->corr, "query mean correction", err));
    TRY(quantise_q(s, err));
    for (int64_t t0 = 0; t0 < s->n; t0 += SALE_BK)
        for (int c = 0; c < 4; c++)
            quantise_k_group(s, t0, c);
out:
    return rc;
}

int sale_quant_init(struct sale_quant *s, const float *q, const float *k, int64_t n, int d,
                    int bits, struct err *err)
{
    int rc = 0;
    double *sum = NULL;
    memset(s, 0, sizeof *s);
    s->n = n;
    s->npad = (n + SALE_BQ - 1) / SALE_BQ * SALE_BQ;
    s->d = d;
    s->levels = bits == 4 ? 7 : bits == 8 ? 127 : 0;
    TRY(mem_alloc(&sum, d, sizeof *sum, "token mean", err));
    TRY(mem_alloc(&s->qbar, d, sizeof *s->qbar, "query mean", err));
    TRY(mem_alloc(&s->kbar, d, sizeof *s->kbar, "key mean", err));
    TRY(mem_alloc(&s->q, n * d, sizeof *s->q, "fp16 queries", err));
    TRY(mem_alloc(&s->k, n * d, sizeof *s->k, "smoothed keys", err));
    token_mean(q, n, d, sum, s->qbar);
    token_mean(k, n, d, sum, s->kbar);
    for (int64_t i = 0; i < n * d; i++) {
        s->q[i] = sale_fl16(q[i]);
        s->k[i] = sale_fl16(sale_fl16(k[i]) - s->kbar[i % d]);
    }
    if (s->levels)
        TRY(init_integers(s, err));
out:
    free(sum);
    if (rc)
        sale_quant_free(s);
    return rc;
}

void sale_quant_free(struct sale_quant *s)
{
    free(s->qbar);
    free(s->kbar);
    free(s->q);
    free(s->k);
    free(s->qi);
    free(s->ki);
    free(s->sq);
    free(s->sk);
    free(s->corr);
    memset(s, 0, sizeof *s);
}
