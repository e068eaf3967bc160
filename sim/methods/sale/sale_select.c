/*
 * sale_select.c - SALE's selection (arXiv:2505.24179, algorithm 1 and equation 4): exact statistics
 * of the sink-local region, then a low-bit test of every other pair.
 *
 *   keep block j  iff  max over its pairs of e^(S~ - m~) / l~  >  tau
 *                 iff  some pair's estimate of q . k'  >  m_raw + log2(tau l~) / (scale log2 e)
 *
 * The 8 keys of a scale group are compared as integers and only the largest is dequantised. Cost:
 * N^2/2 d integer products, whatever tau is.
 *
 * Equation 4 is printed as ln(tau l~ + m~); that does not follow from its own left side, and the
 * published kernel computes m~ + ln(tau l~), as here.
 */
#include "core/intmath.h"
#include "core/mem.h"
#include "core/method.h"
#include "core/simd.h"
#include "sim/methods/sale/sale.h"

#include <stdlib.h>

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
    int64_t seen = 2 * (m + 1), all = ceil_div(tokens, SALE_BK);
    r.n = seen < all ? seen : all;
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
    int rc = 0;
    struct scratch *s = NULL;
    if (h->scratch)
        return 0;
    TRY(scratch_new(h->d, &s, err));
    TRY(sale_quant_init(&h->z, h->q, h->k, h->n, h->d, h->c.bits, err));
    h->scratch = s;
    s = NULL;
out:
    scratch_free(s);
    return rc;
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

int sale_head_take(struct sale_head *h, const struct mask *m, struct err *err)
{
    struct mask *own = NULL;
    int rc = 0;
    if (m->form != MASK_LISTS || m->bq != SALE_BQ || m->bk != SALE_BK)
        return err_set(err, ERR_RUN, "a choice in units of %lld x %lld, expected %d x %d",
                       (long long)m->bq, (long long)m->bk, SALE_BQ, SALE_BK);
    TRY(mem_zalloc(&own, 1, sizeof *own, "taken mask", err));
    h->taken = own;
    TRY(mask_lists_rows(m, m->row0, m->row1, own, err));
out:
    return rc;
}

bool sale_dense(const struct sale_head *h)
{
    return h->n <= h->c.dense_below || h->c.tau < 1e-5;
}

/* ---- products of one query row with one key block --------------------------------------- */

/* Sums of at most d * 49 <= 32767 (d <= 668) fit the 16-bit lanes. */
#define MAX_D_16 640

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
    return f16 ? sale_fl16(thr) : thr;
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
    int64_t left = h->z.n - m * SALE_BQ;
    return left < SALE_BQ ? (int)left : SALE_BQ;
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
        s->inv[g] = h->c.f16 && h->z.levels == 7 ? sale_fl16(inv) : inv;
    }
}

/* ---- the test --------------------------------------------------------------------------- */

struct verdict {
    bool keep, near, sure; /* an estimate passes; is not below the tie range; is above it */
};

static void judge(struct verdict *v, const struct sale_head *h, int r, float value)
{
    const struct scratch *s = h->scratch;
    v->keep |= h->c.strict ? value > s->thr[r] : value >= s->thr[r];
    v->near |= value >= s->low[r];
    v->sure |= value > s->high[r];
}

/* Correction for the mean of Q in units of the query group's scale, rounded to an integer. */
SIMD_CLONES static void corrections_f16(const float *corr, float inv, int32_t *out)
{
    for (int t = 0; t < SALE_BK; t++)
        out[t] = (int32_t)sale_rne(sale_fl16(corr[t] * inv));
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
    for (int t = 0; t < SALE_BK; t++) {
        float value = corr[t] * sk[t % 4];
        judge(v, h, r, h->c.f16 ? sale_fl16(value) : value);
    }
}

static void judge_row(struct verdict *v, const struct sale_head *h, int r, const int32_t best[4],
                      float sq, const float *sk)
{
    for (int c = 0; c < 4; c++) {
        float value;
        if (h->c.f16 && h->z.levels == 7)
            value = sale_fl16((float)best[c]) * sale_fl16(sq * sk[c]);
        else
            value = (float)best[c] * (sq * sk[c]);
        judge(v, h, r, h->c.f16 ? sale_fl16(value) : value);
    }
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
    if (h->c.f16 && q->levels == 7)
        corrections_f16(corr, s->inv[group], add);
    else
        corrections_f32(corr, s->inv[group], add);
    for (int r = tile + g; r < rows && r < tile + TILE; r += 8) {
        const int8_t *qi = q->qi + (m * SALE_BQ + r) * q->d;
        if (!(sq > 0)) {
            judge_flat_row(v, h, r, corr, sk);
            continue;
        }
        if (q->levels == 7 && q->d <= MAX_D_16)
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
    bool narrow = q->levels == 7 && q->d <= MAX_D_16;
    for (int i = 0; i < q->d * SALE_BK; i++)
        if (narrow)
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
            judge(&v, h, r, h->c.f16 ? sale_fl16(z[t]) : z[t]);
    }
    return v;
}

/* Test the blocks 1 .. mid of query block m and list those that pass as group g. *kept counts
 * them. */
static int test_blocks(struct sale_head *h, int64_t m, int64_t g, int64_t mid, int64_t *kept,
                       struct mask *out, struct err *err)
{
    int rows = block_rows(h, m), rc = 0;
    if (mid > 0)
        prepare_block(h, m);
    for (int64_t j = 1; j <= mid; j++) {
        struct verdict v = h->z.levels ? test_low_bit(h, m, rows, j) : test_exact(h, m, rows, j);
        h->counts.ties += v.near && !v.sure;
        if (!v.keep)
            continue;
        ++*kept;
        TRY(mask_lists_add(out, g, (int32_t)j, err));
    }
out:
    return rc;
}

/* The same from the taken lists. */
static int take_blocks(const struct sale_head *h, int64_t m, int64_t g, int64_t mid, int64_t *kept,
                       struct mask *out, struct err *err)
{
    const struct mask *a = h->taken;
    int rc = 0;
    for (int64_t i = a->ptr[m]; i < a->ptr[m + 1]; i++) {
        if (a->col[i] < 1 || a->col[i] > mid)
            continue;
        ++*kept;
        TRY(mask_lists_add(out, g, a->col[i], err));
    }
out:
    return rc;
}

static int select_block(struct sale_head *h, int64_t m, int64_t g, struct mask *out,
                        struct err *err)
{
    int rc = 0;
    struct sale_regions r = sale_regions(h->n, m, h->c.w);
    int64_t kept = 0;
    h->counts.tiles += r.n;
    if (sale_dense(h)) {
        h->counts.kept += r.n;
        return mask_lists_add_run(out, g, 0, (int32_t)r.n, err);
    }
    TRY(mask_lists_add(out, g, 0, err));
    if (h->taken)
        TRY(take_blocks(h, m, g, r.mid, &kept, out, err));
    else
        TRY(test_blocks(h, m, g, r.mid, &kept, out, err));
    TRY(mask_lists_add_run(out, g, (int32_t)(r.mid + 1), (int32_t)r.n, err));
    h->counts.tested += r.mid;
    h->counts.tested_kept += kept;
    h->counts.kept += r.n - r.mid + kept;
out:
    return rc;
}

int sale_select(struct sale_head *h, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    int rc = 0;
    if (!h->taken && !sale_dense(h))
        TRY(sale_head_quantise(h, err));
    TRY(mask_lists_init(out, h->n, h->n, row0, row1, true, SALE_BQ, SALE_BK, err));
    for (int64_t g = 0; g < out->ngroups; g++)
        TRY(select_block(h, row0 / SALE_BQ + g, g, out, err));
    mask_lists_finish(out);
out:
    return rc;
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

void sale_cost(const struct sale_head *h, double in_bytes, struct select_cost *c)
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

/* The next smaller tau: half, or 0 when that is at or below tau_min. */
static double sale_next_tau(double tau, double tau_min)
{
    double half = tau / 2;
    return half <= tau_min ? 0 : half;
}

int sale_search_tau(const struct sale_search *s, int n, sale_judge_fn *within, void *ctx,
                    double *tau, int64_t *rounds, struct err *err)
{
    double t = s->tau0;
    *rounds = 0;
    for (int i = 0; i < n; i++)
        for (bool ok = false; !ok; ++*rounds) {
            int rc = t > 0 ? within(ctx, i, t, &ok, err) : 0;
            if (rc)
                return rc;
            if (!ok && t == 0)
                ok = true;
            else if (!ok)
                t = sale_next_tau(t, s->tau_min);
        }
    *tau = t;
    return 0;
}
