/*
 * SALE: key blocks tested pair by pair with 4-bit queries and keys against a threshold from the
 * exact statistics of an always-kept sink and local region.
 *
 * "SALE: Low-bit Estimation for Efficient Sparse Attention in Long-context LLM Prefilling",
 * arXiv:2505.24179. Blocks of 64 queries x 32 keys; N <= 1024 or tau < 1e-5 stays dense. Selection
 * O(N^2 d / 2) integer products; attention exact, or INT8 Q.K with fp16 P.V (arith=sage1).
 *
 * profile=official follows the published kernels (strict test, fp16 threshold and estimate);
 * profile=paper keeps ties and leaves threshold and estimate in fp32. Operands, means and scales
 * are fp16 and the correction for the mean of Q is a whole number of units in both. Deviations from
 * the kernels: rows past N have no vote, an all-zero query group is estimated by its correction,
 * the correction's dot product is accumulated in fp32, any head dimension that is a multiple of 16.
 */
#include "core/intmath.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/method_run.h"
#include "core/simd.h"
#include "sim/blocks/blockpool.h"
#include "sim/blocks/exact.h"
#include "sim/blocks/judge.h"
#include "sim/blocks/tileattn.h"
#include "sim/methods/sale/sale.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- selection ------------------------------------------------------------------------------- */

/* Algorithm 1 and equation 4: exact statistics
 * of the sink-local region, then a low-bit test of every other pair.
 *
 *   keep block j  iff  max over its pairs of e^(S~ - m~) / l~  >  tau
 *                 iff  some pair's estimate of q . k'  >  m_raw + log2(tau l~) / (scale log2 e)
 *
 * The 8 keys of a scale group are compared as integers and only the largest is dequantised. Cost:
 * N^2/2 d integer products, whatever tau is.
 *
 * Equation 4 is printed as ln(tau l~ + m~); that does not follow from its own left side, and the
 * published kernel computes m~ + ln(tau l~), as here. */

/* ---- smoothing and group quantisation -------------------------------------------------------- */

/* O(n d).
 *
 *   x' = fl16(x - mean)      integers RNE(x' L/amax)      sq = fl16(amax/L)  sk = fl16(1/(L/amax))
 *
 * With 4 bits the correction is rounded to fp16, as the published kernel stores it; the products of
 * wider integers leave the range of fp16, so with 8 bits it stays fp32. An all-zero group has zero
 * integers and scale 0. */

static struct sale_scale sale_group_scale(float amax, int levels)
{
    if (!(amax > 0))
        return (struct sale_scale){0};
    float l = (float)levels, mul = l / amax;
    return (struct sale_scale){mul, f16_finite(amax / l), f16_finite(1 / mul)};
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
        out[c] = f16_finite(s->q[row * s->d + c] - s->qbar[c]);
}

static int quantise_q(struct sale_quant *s, struct err *err)
{
    OWN(free_at) float *x = NULL;
    int d = s->d;
    PASS_ON(mem_alloc(&x, 2 * d, sizeof *x, "smoothed rows", err));
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
        s->corr[t0 + sale_lane(t)] = s->levels == 7 ? f16_finite(dot) : dot;
    }
}

static int init_integers(struct sale_quant *s, struct err *err)
{
    PASS_ON(mem_zalloc(&s->qi, s->npad * s->d, 1, "low-bit queries", err));
    PASS_ON(mem_zalloc(&s->ki, s->npad * s->d, 1, "low-bit keys", err));
    PASS_ON(mem_zalloc(&s->sq, s->npad / 2, sizeof *s->sq, "query scales", err));
    PASS_ON(mem_zalloc(&s->sk, s->npad / 8, sizeof *s->sk, "key scales", err));
    PASS_ON(mem_zalloc(&s->corr, s->npad, sizeof *s->corr, "query mean correction", err));
    PASS_ON(quantise_q(s, err));
    for (int64_t t0 = 0; t0 < s->n; t0 += SALE_BK)
        for (int c = 0; c < 4; c++)
            quantise_k_group(s, t0, c);
    return 0;
}

int sale_quant_init(struct sale_quant *s, const float *q, const float *k, int64_t n, int d,
                    int bits, struct err *err)
{
    memset(s, 0, sizeof *s);
    s->n = n;
    s->npad = ceil_div(n, SALE_BQ) * SALE_BQ;
    s->d = d;
    s->levels = bits == 4 ? 7 : bits == 8 ? 127 : 0;
    PASS_ON(mem_alloc(&s->qbar, d, sizeof *s->qbar, "query mean", err));
    PASS_ON(mem_alloc(&s->kbar, d, sizeof *s->kbar, "key mean", err));
    PASS_ON(mem_alloc(&s->q, n * d, sizeof *s->q, "fp16 queries", err));
    PASS_ON(mem_alloc(&s->k, n * d, sizeof *s->k, "smoothed keys", err));
    for (int64_t i = 0; i < n * d; i++) {
        s->q[i] = f16_finite(q[i]);
        s->k[i] = f16_finite(k[i]);
    }
    token_mean(s->q, n, d, DT_F16, s->qbar);
    token_mean(s->k, n, d, DT_F16, s->kbar);
    for (int64_t i = 0; i < n * d; i++)
        s->k[i] = f16_finite(s->k[i] - s->kbar[i % d]);
    return s->levels ? init_integers(s, err) : 0;
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

/* Rows tested together: one tile of query groups. */
#define TILE 16
#define MAX_LOCAL 11 /* blocks, for local = 256 */
#define STAT_KEYS ((MAX_LOCAL + 1) * SALE_BK)

/* Estimates outside this many fp16 steps around the threshold cannot be ties. */
#define TIE_STEPS 2.0f

/* ---- geometry --------------------------------------------------------------------------- */

struct sale_regions sale_regions(int64_t tokens, int64_t m, int64_t w)
{
    struct sale_regions r;
    r.n = MIN(2 * (m + 1), ceil_div(tokens, SALE_BK));
    int64_t segs = ceil_div(r.n - 1, 4), rem = r.n - 1 - 4 * segs, supp = ceil_div(w - rem, 4);
    r.n_local = 4 * supp + rem;
    r.mid = segs > supp ? 4 * (segs - supp) : 0;
    return r;
}

/* ---- scratch ---------------------------------------------------------------------------- */

struct scratch {
    float *kf;    /* [d][32] one block of k' */
    int16_t *k16; /* [d][32] the same as integers */
    int32_t *k32;
    float stat[SALE_BQ][STAT_KEYS];
    float thr[SALE_BQ], low[SALE_BQ], high[SALE_BQ]; /* threshold, and the ends of its tie range */
    float inv[SALE_BQ / 2];                          /* 1 / sq per query group */
};

static void scratch_free(struct scratch *s)
{
    if (!s)
        return;
    free(s->kf);
    free(s->k16);
    free(s->k32);
    free(s);
}

static int scratch_new(int d, struct scratch **out, struct err *err)
{
    int rc = 0;
    struct scratch *s = NULL;
    TRY(mem_zalloc(&s, 1, sizeof *s, "selection scratch", err));
    TRY(mem_alloc(&s->kf, d * SALE_BK, sizeof *s->kf, "key block", err));
    TRY(mem_alloc(&s->k16, d * SALE_BK, sizeof *s->k16, "key block", err));
    TRY(mem_alloc(&s->k32, d * SALE_BK, sizeof *s->k32, "key block", err));
    *out = s;
    s = NULL;
out:
    scratch_free(s);
    return rc;
}

void sale_head_init(struct sale_head *h, const struct sale_config *c, const float *q,
                    const float *k, int64_t n, int d)
{
    *h = (struct sale_head){.c = *c, .q = q, .k = k, .n = n, .d = d};
}

int sale_head_quantise(struct sale_head *h, struct err *err)
{
    struct scratch *s;
    if (h->scratch)
        return 0;
    PASS_ON(sale_quant_init(&h->z, h->q, h->k, h->n, h->d, h->c.bits, err));
    PASS_ON(scratch_new(h->d, &s, err));
    h->scratch = s;
    return 0;
}

void sale_head_free(struct sale_head *h)
{
    sale_quant_free(&h->z);
    scratch_free(h->scratch);
    if (h->taken)
        mask_free(h->taken);
    free(h->taken);
    memset(h, 0, sizeof *h);
}

/* From now on sale_select hands out *m, lists of 64 x 32 blocks over the whole head that somebody
 * else chose by the same rule, and tests nothing. ERR_RUN: lists of other units. */
static int sale_head_take(struct sale_head *h, const struct mask *m, struct err *err)
{
    struct mask *own = NULL;
    if (m->form != MASK_LISTS || m->bq != SALE_BQ || m->bk != SALE_BK)
        return err_set(err, ERR_RUN, "a choice in units of %lld x %lld, expected %d x %d",
                       (long long)m->bq, (long long)m->bk, SALE_BQ, SALE_BK);
    PASS_ON(mem_zalloc(&own, 1, sizeof *own, "taken mask", err));
    h->taken = own;
    return mask_lists_rows(m, m->row0, m->row1, own, err);
}

/* True if every block of the head is kept: a short prompt, or tau < 1e-5. */
static bool sale_dense(const struct sale_head *h)
{
    return h->n <= h->c.dense_below || h->c.tau < 1e-5;
}

/* ---- products of one query row with one key block --------------------------------------- */

/* Sums of at most d * 49 <= 32767 (d <= 668) fit the 16-bit lanes. */
static bool narrow(const struct sale_quant *q)
{
    return q->levels == 7 && q->d <= 640;
}

SIMD_CLONES static void dots_i16(const int8_t *q, const int16_t *k, int d, int32_t *z)
{
    int16_t acc[SALE_BK] = {0};
    for (int e = 0; e < d; e++)
        for (int t = 0; t < SALE_BK; t++)
            acc[t] = (int16_t)(acc[t] + q[e] * k[e * SALE_BK + t]);
    for (int t = 0; t < SALE_BK; t++)
        z[t] = acc[t];
}

SIMD_CLONES static void dots_i32(const int8_t *q, const int32_t *k, int d, int32_t *z)
{
    int32_t acc[SALE_BK] = {0};
    for (int e = 0; e < d; e++)
        for (int t = 0; t < SALE_BK; t++)
            acc[t] += q[e] * k[e * SALE_BK + t];
    memcpy(z, acc, sizeof acc);
}

SIMD_CLONES static void dots_f32(const float *q, const float *k, int d, float *z)
{
    float acc[SALE_BK] = {0};
    for (int e = 0; e < d; e++)
        for (int t = 0; t < SALE_BK; t++)
            acc[t] += q[e] * k[e * SALE_BK + t];
    memcpy(z, acc, sizeof acc);
}

static void load_floats(const struct sale_quant *z, int64_t j, float *kf)
{
    memset(kf, 0, (size_t)z->d * SALE_BK * sizeof *kf);
    for (int t = 0; t < SALE_BK && j * SALE_BK + t < z->n; t++)
        for (int e = 0; e < z->d; e++)
            kf[e * SALE_BK + t] = z->k[(j * SALE_BK + t) * z->d + e];
}

/* ---- exact statistics ------------------------------------------------------------------- */

float sale_threshold(float m, float l, double tau, double scale, bool f16)
{
    float thr = (float)(log2(tau * l) / (scale * M_LOG2E) + m);
    return f16 ? f16_finite(thr) : thr;
}

/* Threshold of a row from its scores against the sink-local keys; NAN marks masked keys. */
static float row_threshold(const struct sale_config *c, const float *s, int keys)
{
    float m = -INFINITY;
    double l = 0;
    for (int t = 0; t < keys; t++)
        m = s[t] > m ? s[t] : m;
    for (int t = 0; t < keys; t++)
        if (!isnan(s[t]))
            l += exp((double)(s[t] - m) * c->scale);
    return sale_threshold(m, (float)l, c->tau, c->scale, c->f16);
}

/* Scores of block j into column `at` of the statistics. */
static void stat_block(struct sale_head *h, int64_t row0, int rows, int64_t j, int at)
{
    struct scratch *s = h->scratch;
    load_floats(&h->z, j, s->kf);
    for (int r = 0; r < rows; r++) {
        float *out = s->stat[r] + at;
        dots_f32(h->z.q + (row0 + r) * h->z.d, s->kf, h->z.d, out);
        int64_t last = h->c.causal_stats ? row0 + r : h->z.n - 1;
        for (int64_t t = last + 1 - j * SALE_BK; t < SALE_BK; t++)
            if (t >= 0)
                out[t] = NAN;
    }
}

static int block_rows(const struct sale_head *h, int64_t m)
{
    return (int)MIN(h->z.n - m * SALE_BQ, SALE_BQ);
}

void sale_row_thresholds(struct sale_head *h, int64_t m, float *thr)
{
    struct scratch *s = h->scratch;
    struct sale_regions g = sale_regions(h->z.n, m, h->c.w);
    int rows = block_rows(h, m), at = 0;
    stat_block(h, m * SALE_BQ, rows, 0, at);
    for (int64_t j = g.mid + 1; j < g.n; j++)
        stat_block(h, m * SALE_BQ, rows, j, at += SALE_BK);
    for (int r = 0; r < rows; r++)
        thr[r] = row_threshold(&h->c, s->stat[r], at + SALE_BK);
}

/* Spacing of fp16 numbers at x. */
static float f16_step(float x)
{
    int e;
    frexpf(x, &e);
    return ldexpf(1.0f, (e < -13 ? -13 : e) - 11);
}

/* Is every step of the estimate rounded to fp16? */
static bool rounds_steps(const struct sale_head *h)
{
    return h->c.f16 && h->z.levels == 7;
}

static void prepare_block(struct sale_head *h, int64_t m)
{
    struct scratch *s = h->scratch;
    sale_row_thresholds(h, m, s->thr);
    for (int r = 0; r < block_rows(h, m); r++) {
        float step = TIE_STEPS * f16_step(s->thr[r]);
        s->low[r] = s->thr[r] - step;
        s->high[r] = s->thr[r] + step;
    }
    if (!h->z.levels)
        return;
    for (int g = 0; g < SALE_BQ / 2; g++) {
        float sq = h->z.sq[m * SALE_BQ / 2 + g], inv = sq > 0 ? 1 / sq : 0;
        s->inv[g] = rounds_steps(h) ? f16_finite(inv) : inv;
    }
}

/* ---- the test --------------------------------------------------------------------------- */

struct verdict {
    bool keep, near, sure; /* an estimate passes; is not below the tie range; is above it */
};

static void judge(struct verdict *v, const struct sale_head *h, int r, float value)
{
    const struct scratch *s = h->scratch;
    value = h->c.f16 ? f16_finite(value) : value;
    v->keep |= h->c.strict ? value > s->thr[r] : value >= s->thr[r];
    v->near |= value >= s->low[r];
    v->sure |= value > s->high[r];
}

/* Correction for the mean of Q in units of the query group's scale, rounded to an integer. */
SIMD_CLONES static void corrections_f16(const float *corr, float inv, int32_t *out)
{
    for (int t = 0; t < SALE_BK; t++)
        out[t] = (int32_t)sale_rne(f16_finite(corr[t] * inv));
}

/* The same without fp16; clamped so that the sum with a dot product stays in 32 bits. */
static void corrections_f32(const float *corr, float inv, int32_t *out)
{
    for (int t = 0; t < SALE_BK; t++)
        out[t] = (int32_t)rintf(fminf(fmaxf(corr[t] * inv, -1e9f), 1e9f));
}

/* Largest of z + add in each of the four key groups. */
static void group_maxima(const int32_t *z, const int32_t *add, int32_t best[4])
{
    for (int c = 0; c < 4; c++)
        best[c] = z[c] + add[c];
    for (int i = 1; i < 8; i++)
        for (int c = 0; c < 4; c++) {
            int32_t x = z[i * 4 + c] + add[i * 4 + c];
            best[c] = x > best[c] ? x : best[c];
        }
}

/* An all-zero query group: the estimate is the correction alone. */
static void judge_flat_row(struct verdict *v, const struct sale_head *h, int r, const float *corr,
                           const float *sk)
{
    for (int t = 0; t < SALE_BK; t++)
        judge(v, h, r, corr[t] * sk[t % 4]);
}

static void judge_row(struct verdict *v, const struct sale_head *h, int r, const int32_t best[4],
                      float sq, const float *sk)
{
    for (int c = 0; c < 4; c++)
        if (rounds_steps(h))
            judge(v, h, r, f16_finite((float)best[c]) * f16_finite(sq * sk[c]));
        else
            judge(v, h, r, (float)best[c] * (sq * sk[c]));
}

/* Rows r and r + 8 of a tile share a scale; `tile` is the tile's first row in the query block. */
static void test_pair(struct verdict *v, const struct sale_head *h, int64_t m, int tile, int g,
                      int rows, int64_t j)
{
    const struct scratch *s = h->scratch;
    const struct sale_quant *q = &h->z;
    const float *corr = q->corr + j * SALE_BK, *sk = q->sk + j * 4;
    int group = tile / 2 + g;
    float sq = q->sq[m * SALE_BQ / 2 + group];
    int32_t add[SALE_BK], z[SALE_BK], best[4];
    if (rounds_steps(h))
        corrections_f16(corr, s->inv[group], add);
    else
        corrections_f32(corr, s->inv[group], add);
    for (int r = tile + g; r < rows && r < tile + TILE; r += 8) {
        const int8_t *qi = q->qi + (m * SALE_BQ + r) * q->d;
        if (!(sq > 0)) {
            judge_flat_row(v, h, r, corr, sk);
            continue;
        }
        if (narrow(q))
            dots_i16(qi, s->k16, q->d, z);
        else
            dots_i32(qi, s->k32, q->d, z);
        group_maxima(z, add, best);
        judge_row(v, h, r, best, sq, sk);
    }
}

static void load_ints(const struct sale_quant *q, int64_t j, struct scratch *s)
{
    const int8_t *k = q->ki + j * q->d * SALE_BK;
    for (int i = 0; i < q->d * SALE_BK; i++)
        if (narrow(q))
            s->k16[i] = k[i];
        else
            s->k32[i] = k[i];
}

/* Low-bit test of block j against the rows of query block m. Once an estimate is surely above its
 * threshold the rest cannot change the verdict. */
static struct verdict test_low_bit(struct sale_head *h, int64_t m, int rows, int64_t j)
{
    struct verdict v = {0};
    load_ints(&h->z, j, h->scratch);
    for (int tile = 0; tile < rows && !v.sure; tile += TILE)
        for (int g = 0; g < 8 && tile + g < rows && !v.sure; g++)
            test_pair(&v, h, m, tile, g, rows, j);
    return v;
}

/* bits = 16: the estimate is q . k' itself. */
static struct verdict test_exact(struct sale_head *h, int64_t m, int rows, int64_t j)
{
    struct scratch *s = h->scratch;
    struct verdict v = {0};
    float z[SALE_BK];
    load_floats(&h->z, j, s->kf);
    for (int r = 0; r < rows && !v.sure; r++) {
        dots_f32(h->z.q + (m * SALE_BQ + r) * h->z.d, s->kf, h->z.d, z);
        for (int t = 0; t < SALE_BK; t++)
            judge(&v, h, r, z[t]);
    }
    return v;
}

/* Test the blocks 1 .. mid of query block m and list those that pass as group g. *kept counts
 * them. */
static int test_blocks(struct sale_head *h, int64_t m, int64_t g, int64_t mid, int64_t *kept,
                       struct mask *out, struct err *err)
{
    int rows = block_rows(h, m);
    if (mid > 0)
        prepare_block(h, m);
    for (int64_t j = 1; j <= mid; j++) {
        struct verdict v = h->z.levels ? test_low_bit(h, m, rows, j) : test_exact(h, m, rows, j);
        h->counts.ties += v.near && !v.sure;
        if (!v.keep)
            continue;
        ++*kept;
        PASS_ON(mask_lists_add(out, g, (int32_t)j, err));
    }
    return 0;
}

/* The same from the taken lists. */
static int take_blocks(const struct sale_head *h, int64_t m, int64_t g, int64_t mid, int64_t *kept,
                       struct mask *out, struct err *err)
{
    const struct mask *a = h->taken;
    for (int64_t i = a->ptr[m]; i < a->ptr[m + 1]; i++) {
        if (a->col[i] < 1 || a->col[i] > mid)
            continue;
        ++*kept;
        PASS_ON(mask_lists_add(out, g, a->col[i], err));
    }
    return 0;
}

static int select_block(struct sale_head *h, int64_t m, int64_t g, struct mask *out,
                        struct err *err)
{
    struct sale_regions r = sale_regions(h->n, m, h->c.w);
    int64_t kept = 0;
    h->counts.tiles += r.n;
    if (sale_dense(h)) {
        h->counts.kept += r.n;
        return mask_lists_add_run(out, g, 0, (int32_t)r.n, err);
    }
    PASS_ON(mask_lists_add(out, g, 0, err));
    if (h->taken)
        PASS_ON(take_blocks(h, m, g, r.mid, &kept, out, err));
    else
        PASS_ON(test_blocks(h, m, g, r.mid, &kept, out, err));
    PASS_ON(mask_lists_add_run(out, g, (int32_t)(r.mid + 1), (int32_t)r.n, err));
    h->counts.tested += r.mid;
    h->counts.tested_kept += kept;
    h->counts.kept += r.n - r.mid + kept;
    return 0;
}

int sale_select(struct sale_head *h, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    if (!h->taken && !sale_dense(h))
        PASS_ON(sale_head_quantise(h, err));
    PASS_ON(mask_lists_init(out, h->n, h->n, row0, row1, true, SALE_BQ, SALE_BK, err));
    for (int64_t g = 0; g < out->ngroups; g++)
        PASS_ON(select_block(h, row0 / SALE_BQ + g, g, out, err));
    mask_lists_finish(out);
    return 0;
}

/* ---- what it costs ---------------------------------------------------------------------- */

/* Means and differences of q and k in a pass each; then their scaling and the correction for the
 * mean of q, or fp16 copies. */
static void quantise_cost(const struct sale_head *h, double in_bytes, struct select_cost *c)
{
    double numbers = (double)h->n * h->d;
    bool integers = h->c.bits < 16;
    c->flops += 4 * numbers + (integers ? 4 * numbers : 0);
    c->bytes += 4 * numbers * in_bytes;
    c->bytes += 4 * numbers * h->c.bits / 8; /* q and k, written and read */
    c->bytes += integers ? 8 * (double)h->n : 0;
}

/* Operations and bytes of the choice by sizes alone: mean and quantisation of q and k, then per
 * query block with tested key blocks the exact statistics of its sink-local region and one low-bit
 * product per tested pair. Nothing for a dense head. in_bytes: of a number of q or k. */
static void sale_cost(const struct sale_head *h, double in_bytes, struct select_cost *c)
{
    double stats = 0, tests = 0, rows_tested = 0;
    if (sale_dense(h))
        return;
    quantise_cost(h, in_bytes, c);
    for (int64_t m = 0; m * SALE_BQ < h->n; m++) {
        struct sale_regions g = sale_regions(h->n, m, h->c.w);
        double rows = (double)MIN(SALE_BQ, h->n - m * SALE_BQ);
        if (g.mid == 0)
            continue;
        stats += rows * (double)(g.n - g.mid) * SALE_BK;
        tests += rows * (double)g.mid * SALE_BK;
        rows_tested += rows;
    }
    c->flops += 2 * h->d * (stats + tests) + 3 * stats;
    c->bytes += 8 * rows_tested; /* thresholds */
    if (h->c.bits == 16)
        return;
    c->flops += tests;                              /* the correction */
    c->bytes += 2 * (double)h->n * h->d * in_bytes; /* q and k again, for the statistics */
}

/* ---- calibration of the threshold ------------------------------------------------------------ */

/* The offline calibration of one head's threshold (arXiv:2505.24179, section 3.5
 * and appendix C): tau is halved until the summed absolute output error per token is below theta on
 * every sample, in order. A smaller tau keeps a superset of blocks, so earlier samples stay within
 * the bound and are not judged again. */

int sale_search_tau(const struct sale_search *s, int n, sale_judge_fn *within, void *ctx,
                    double *tau, int64_t *rounds, struct err *err)
{
    double t = s->tau0;
    *rounds = 0;
    for (int i = 0; i < n; i++)
        for (bool ok = false; !ok; ++*rounds) {
            PASS_ON(t > 0 ? within(ctx, i, t, &ok, err) : 0);
            if (!ok && t == 0)
                ok = true;
            else if (!ok)
                t = t / 2 <= s->tau_min ? 0 : t / 2;
        }
    *tau = t;
    return 0;
}

enum profile { PROFILE_OFFICIAL, PROFILE_PAPER };
enum arith { ARITH_EXACT, ARITH_SAGE1 };

struct params {
    int bounds, profile, local, bits, thr_dtype, sl_mask, arith, calib_local;
    double tau, theta, tau0, tau_min;
    int64_t dense_below;
};

/* Bounds that the paper used per model (arXiv 2505.24179): theta is absolute, of the scale of V. */
static const char *const bounds_of[] = {"none", "llama3.1", "qwen2.5", NULL};
static const double bounds_values[] = {0.4, 0.4, 2.0};

static const struct opt options[] = {
    OPT_ENUM(struct params, profile, "official", TEXTS("official", "paper"),
             "official: estimate > threshold, both in fp16; paper: >=, both in fp32. Operands are "
             "fp16 in either."),
    OPT_NUM(struct params, tau, "0.004", 0, 1, "share",
            "Keep a block when a pair's relative score exceeds it; below 1e-5 the head is dense.",
            .flags = OPT_MAX_OPEN),
    OPT_ENUM(struct params, local, "128", TEXTS("128", "256"),
             "Least always-kept stretch before the diagonal.", .unit = "tokens"),
    OPT_INT(struct params, dense_below, "1024", 0, 9e15, "tokens",
            "Prompts up to this length stay dense."),
    OPT_ENUM(struct params, bits, "4", TEXTS("4", "8", "16"),
             "Width of the estimate; 16 is fp16 without integers.", .unit = "bit"),
    OPT_ENUM(struct params, thr_dtype, "profile", TEXTS("profile", "f16", "f32"),
             "Rounding of threshold and estimate; unset: f16, with profile=paper f32."),
    OPT_ENUM(struct params, sl_mask, "causal", TEXTS("causal", "none"),
             "Mask inside the sink-local statistics; none lets later keys in."),
    OPT_ENUM(struct params, arith, "exact", TEXTS("exact", "sage1"),
             "Attention on kept blocks: exact softmax, or INT8 Q.K and fp16 P.V."),
    OPT_NUM(struct params, theta, "0.4", 0, INFINITY, "output L1 per token",
            "calibrate: bound of the output error.", .flags = OPT_IDENTITY_NOT | OPT_MIN_OPEN),
    OPT_ENUM(struct params, bounds, "none", bounds_of,
             "calibrate: theta that the paper used for this model.",
             .flags = OPT_IDENTITY_NOT | OPT_CALIB_FIXED),
    OPT_NUM(struct params, tau0, "0.008", 0, 1, "share", "calibrate: first tau.",
            .flags = OPT_IDENTITY_NOT | OPT_MIN_OPEN | OPT_MAX_OPEN),
    OPT_NUM(struct params, tau_min, "1e-4", 0, 1, "share",
            "calibrate: at or below it tau becomes 0.", .flags = OPT_IDENTITY_NOT | OPT_MAX_OPEN),
    OPT_ENUM(struct params, calib_local, "profile", TEXTS("profile", "128", "256"),
             "calibrate: local stretch; unset: 256, with profile=paper 128.",
             .flags = OPT_IDENTITY_NOT, .unit = "tokens"),
    {0},
};

static struct sale_config resolve(const struct params *p, double scale)
{
    static const int WIDTHS[] = {4, 8, 16};
    return (struct sale_config){
        .tau = p->tau,
        .scale = scale,
        .bits = WIDTHS[p->bits],
        .w = (p->local ? 256 : 128) / SALE_BK,
        .dense_below = p->dense_below,
        .f16 = p->thr_dtype == 0 ? p->profile == PROFILE_OFFICIAL : p->thr_dtype == 1,
        .strict = p->profile == PROFILE_OFFICIAL,
        .causal_stats = p->sl_mask == 0,
    };
}

struct state {
    struct sale_head head;
    struct head_in in;
    bool sage1;
    struct tile_operands operands; /* of sage1, made when they are asked for */
    struct tile_attn tile;
};

static void release(void *state)
{
    struct state *s = state;
    sale_head_free(&s->head);
    tile_operands_free(&s->operands);
}

/* Q: INT8 per 64 rows, not smoothed; K: INT8 per 32 keys of k - kbar; V in fp16; fp16 chains of one
 * key block added in fp32. A filter that skips nothing. */
static struct accel_filter sage_filter(void)
{
    return (struct accel_filter){.bq = SALE_BQ,
                                 .bk = SALE_BK,
                                 .pv = INFINITY,
                                 .scope = SALE_BQ,
                                 .keep_denominator = true,
                                 .quant = {.bq = SALE_BQ,
                                           .bk = SALE_BK,
                                           .levels = 127,
                                           .gran = OWN_BY_BLOCK,
                                           .round = OWN_RNE,
                                           .smooth_k = true,
                                           .inputs_as = DT_F16,
                                           .mean_as = DT_F16,
                                           .keys_as = DT_F16,
                                           .values_as = DT_F16,
                                           .factor = 1,
                                           .sum = OWN_SUM_F16}};
}

static int make_sage(struct state *s, struct err *err)
{
    const struct attn_in *x = &s->in.x;
    const struct sale_quant *z = &s->head.z;
    struct accel_filter f = sage_filter();
    if (s->tile.q)
        return 0;
    PASS_ON(sale_head_quantise(&s->head, err));
    s->tile = (struct tile_attn){
        .nq = x->nq,
        .nk = x->nk,
        .d = x->d,
        .dv = x->dv,
        .causal = true,
        .bq = SALE_BQ,
        .bk = SALE_BK,
        .exact = s->in.exact,
        .pv = INFINITY,
        .scope = SALE_BQ,
        .out_dtype = s->in.src_dtype == DT_BF16 ? DT_BF16 : DT_F16,
    };
    return tile_quantise(&s->tile, &s->operands, &f.quant, x, z->q, z->k, z->kbar, err);
}

static int check_shape(struct method_ctx *ctx, const struct head_in *in)
{
    const struct attn_in *x = &in->x;
    if (!x->causal)
        return method_skip(ctx, "causal only");
    if (x->nq == x->nk && (x->d % 16 || x->d > TILE_MAX_D))
        return method_skip(ctx, "head dimension %d is not a multiple of 16 up to %d", x->d,
                           TILE_MAX_D);
    return method_whole_prompt(ctx, in);
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    const struct params *p = params;
    struct state *s = state;
    struct sale_config c = resolve(p, in->x.scale);
    PASS_ON(check_shape(ctx, in));
    sale_head_init(&s->head, &c, in->x.q, in->x.k, in->x.nq, in->x.d);
    s->in = *in;
    s->sage1 = p->arith == ARITH_SAGE1;
    ctx->unit_rows = SALE_BQ;
    return 0;
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct state *s = state;
    return sale_select(&s->head, row0, row1, out, err);
}

static struct mask_origin origin(void *state)
{
    const struct state *s = state;
    return (struct mask_origin){.source = sale_dense(&s->head) ? SOURCE_STATIC : SOURCE_OWN};
}

static bool has_gpu_side(const struct sale_config *c, char why[160])
{
    if (c->bits == 4 && c->f16)
        return true;
    return method_refuses(why, "the GPU side has the estimate of 4 bits in fp16, not bits=%d%s",
                          c->bits, c->f16 ? "" : ":thr_dtype=f32");
}

static bool rule(const void *state, struct rule *rule, char why[160])
{
    const struct sale_config *c = &((const struct state *)state)->head.c;
    if (!has_gpu_side(c, why))
        return false;
    rule->of.sale = (struct sale_rule){.tau = c->tau,
                                       .scale = c->scale,
                                       .local_blocks = c->w,
                                       .strict = c->strict,
                                       .causal_stats = c->causal_stats};
    return true;
}

static int take(void *state, const struct device_choice *c, struct err *err)
{
    return sale_head_take(&((struct state *)state)->head, c->lists, err);
}

static void how(const void *state, struct arithmetic *a, char why[160])
{
    if (!((const struct state *)state)->sage1)
        return;
    a->kind = ARITH_FILTER;
    a->filter = sage_filter();
}

static int attend(void *state, const struct mask *m, double *out, double *lse, double *tiles_pv,
                  struct err *err)
{
    struct state *s = state;
    *tiles_pv = 0;
    PASS_ON(make_sage(s, err));
    return tile_attn_rows(&s->tile, m, out, lse, tiles_pv, err);
}

static bool cost(const void *state, struct select_cost *c)
{
    const struct state *s = state;
    sale_cost(&s->head, (double)dtype_size(s->in.src_dtype), c);
    return true;
}

static bool why_full(const void *state, char why[160])
{
    const struct sale_head *h = &((const struct state *)state)->head;
    if (h->n <= h->c.dense_below)
        snprintf(why, 160, "%lld tokens are not above dense_below=%lld", (long long)h->n,
                 (long long)h->c.dense_below);
    else
        snprintf(why, 160, "tau %g is below 1e-5", h->c.tau);
    return sale_dense(h);
}

static int report(void *state, struct record *r, struct err *err)
{
    const struct state *s = state;
    const struct sale_counts *n = &s->head.counts;
    double tiles = (double)n->tiles, tested = (double)n->tested;
    PASS_ON(RECORD_ALL(r, err, {"density_native", (double)n->kept / tiles}, {"tau", s->head.c.tau},
                       {"tested_share", tested / tiles},
                       {"tested_kept", tested > 0 ? (double)n->tested_kept / tested : 0}));
    if (!s->head.taken)
        PASS_ON(record_metric(r, "ties", (double)n->ties, err));
    if (sale_dense(&s->head))
        record_note(r, "dense=%s", s->head.n <= s->head.c.dense_below ? "short" : "tau");
    return 0;
}

/* ---- calibration ------------------------------------------------------------------------ */

extern const struct method method_sale;

struct trial {
    const struct params *params; /* of the calibration run */
    const struct head_in *samples;
    struct state *state; /* of sample `current` */
    int current;
    bool on_cpu; /* the arithmetic of the state is no judge's */
    struct method_ctx *ctx;
};

enum { TRIAL_ROWS = 16 * SALE_BQ };

/* sum |O - O_ref| of the query rows [row0, row1) by the method's own arithmetic. */
static int own_error(struct state *s, const struct head_in *in, int64_t row0, int64_t row1,
                     double *out, double *sum, struct err *err)
{
    int dv = in->x.dv;
    OWN(mask_free) struct mask m = {0};
    double tiles_pv = 0;
    double *lse = out + (row1 - row0) * dv;
    const double *ref;
    PASS_ON(sale_select(&s->head, row0, row1, &m, err));
    PASS_ON(attend(s, &m, out, lse, &tiles_pv, err));
    PASS_ON(exact_out(in->exact, row0, row1, &ref, err));
    for (int64_t i = 0; i < (row1 - row0) * dv; i++)
        *sum += fabs(out[i] - ref[i]);
    return 0;
}

static int own_errors(struct state *s, const struct head_in *in, double *sum, struct err *err)
{
    int64_t n = in->x.nq;
    OWN(free_at) double *out = NULL;
    PASS_ON(mem_alloc(&out, TRIAL_ROWS * (in->x.dv + 1), sizeof *out, "output rows", err));
    for (int64_t r = 0; r < n; r += TRIAL_ROWS)
        PASS_ON(own_error(s, in, r, MIN(r + TRIAL_ROWS, n), out, sum, err));
    return 0;
}

/* The blocks of the whole head, from whoever judges. */
static int chosen_blocks(struct state *s, const struct judge *by, struct judging *j,
                         struct err *err)
{
    struct mask m = {0};
    struct rule r = {0};
    char why[160] = "";
    int rc = rule(s, &r, why) ? by->choose(by->self, "sale", &r.of, &m, why, err) : METHOD_SKIP;
    if (rc == METHOD_SKIP)
        return err_set(err, ERR_RUN, "sale: the GPU does not choose: %s", why);
    return rc ? rc : judge_add(j, &m, err);
}

/* The same sum by whoever judges, or with exact softmax on the kept blocks. */
static int judged_errors(struct state *s, const struct head_in *in, double *sum, struct err *err)
{
    const struct judge *by = judge_of(in->exact);
    struct accel_filter filter = sage_filter();
    int64_t n = in->x.nq;
    struct judging j;
    int rc = 0;
    judge_begin(&j, in->exact, NULL);
    if (by && !sale_dense(&s->head)) {
        TRY(chosen_blocks(s, by, &j, err));
    } else {
        for (int64_t r = 0; r < n; r += TRIAL_ROWS) {
            OWN(mask_free) struct mask m = {0};
            TRY(sale_select(&s->head, r, MIN(r + TRIAL_ROWS, n), &m, err));
            TRY(judge_add(&j, &m, err));
        }
    }
    TRY(judge_end(&j, s->sage1 ? &filter : NULL, err));
    *sum = j.sum.abs_delta;
out:
    judge_free(&j);
    return rc;
}

static bool has_judge(const struct state *s)
{
    const struct judge *by = judge_of(s->in.exact);
    struct accel_filter f = sage_filter();
    char why[160] = "";
    if (by && by->filters(by->self, &f, why))
        return true;
    if (by)
        log_warn("sale: searched on the CPU: %s", why);
    return false;
}

static int within_bound(void *ctx, int i, double tau, bool *ok, struct err *err)
{
    struct trial *t = ctx;
    const struct head_in *in = &t->samples[i];
    int64_t n = in->x.nq;
    double sum = 0;
    int rc = 0;
    if (t->current != i) {
        void *state;
        method_release(&method_sale, t->state);
        t->current = i;
        rc = method_prepare(&method_sale, t->ctx, t->params, in, &state, err);
        t->state = state;
        if (rc)
            goto out;
        t->on_cpu = t->state->sage1 && !has_judge(t->state);
    }
    t->state->head.c.tau = tau;
    TRY((t->on_cpu ? own_errors : judged_errors)(t->state, in, &sum, err));
    *ok = sum < t->params->theta * (double)n;
    log_debug("sale: layer %d head %d sample %d tau %g: error %g per token", in->layer, in->head,
              i + 1, tau, sum / (double)n);
out:
    return rc;
}

static bool judges(const void *params, char why[160])
{
    struct sale_config c = resolve(params, 1);
    return has_gpu_side(&c, why);
}

static int calibrate(struct method_ctx *ctx, const void *params, const struct head_in *samples,
                     int n, struct jw *w, struct err *err)
{
    struct params p = *(const struct params *)params;
    struct sale_search search = {.theta = p.theta, .tau0 = p.tau0, .tau_min = p.tau_min};
    struct trial t = {.params = &p, .samples = samples, .current = -1, .ctx = ctx};
    double tau;
    int64_t rounds;
    int rc = 0;
    p.local = p.calib_local == 0 ? p.profile == PROFILE_OFFICIAL : p.calib_local == 2;
    for (int i = 0; i < n; i++)
        if ((rc = check_shape(ctx, &samples[i])) != 0)
            goto out;
    TRY(sale_search_tau(&search, n, within_bound, &t, &tau, &rounds, err));
    log_debug("sale: layer %d head %d: tau %g after %lld rounds", samples[0].layer, samples[0].head,
              tau, (long long)rounds);
    jw_knum(w, "tau", tau);
out:
    method_release(&method_sale, t.state);
    return rc;
}

static const struct metric_def metrics[] = {
    OWN_METRIC("tau", "threshold that was used for the head"),
    OWN_METRIC("tested_share", "tested tiles / tiles with an allowed pair", .axis = AXIS_SHARE),
    OWN_METRIC("tested_kept", "kept tiles / tested tiles", .axis = AXIS_SHARE),
    {0},
};

static int validate(void *params, struct err *err)
{
    struct params *p = params;
    if (p->bounds && p->theta != bounds_values[0])
        return err_set(err, ERR_USAGE, "bounds=%s sets theta; leave it out", bounds_of[p->bounds]);
    if (p->bounds)
        p->theta = bounds_values[p->bounds];
    p->bounds = 0;
    return 0;
}

const struct method method_sale = {
    .name = "sale",
    .summary = "blocks tested pair by pair with 4-bit queries and keys",
    .paper = "SALE, arXiv:2505.24179",
    .flags = METHOD_ROWS | METHOD_CAUSAL | METHOD_SINK,
    .params = {.table = options,
               .size = sizeof(struct params),
               .budget = BUDGET_PARAMS(
                   BUDGET_BY(BUDGET_LOG, "tau", .falls = true, .lo = 1e-6, .hi = 0.999)),
               .validate = validate},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .release = release,
    .metrics = metrics,
    .cost = cost,
    .why_full = why_full,
    .device = {.rule = rule, .take = take},
    .arith = {.kind = ARITH_FILTER, .how = how, .attend = attend},
    .reuse = {.of = origin},
    .search = {.calibrate = calibrate, .passes = 1, .on_device = judges},
    .tests = {.full = "tau=0",
              .variants = TEXTS("dense_below=0", "dense_below=0:tau=0.05:bits=16",
                                "dense_below=0:profile=paper:arith=sage1")},
};
