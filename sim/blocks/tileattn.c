/*
 * tileattn.c - see tileattn.h: the exact arithmetic, in the precision of its operands, the
 * quantised one, and what both share: the walk over a mask, rows that see no key, the dtype of the
 * output.
 */
#include "sim/blocks/tileattn.h"

#include "core/gemm.h"
#include "core/intmath.h"
#include "core/mem.h"
#include "core/simd.h"
#include "core/attention.h"
#include "sim/blocks/blockpool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LOG2E 1.4426950408889634074
#define LN2 0.69314718055994530942

/* Keys of [key0, key0 + keys) that a row may see. */
static int64_t tile_visible(const struct tile_attn *t, int64_t row, int64_t key0, int64_t keys)
{
    int64_t n = key_limit(t->nq, t->nk, t->causal, row) - key0;
    return n < 0 ? 0 : n > keys ? keys : n;
}

static int64_t tile_scopes(const struct tile_attn *t, int64_t rows)
{
    return ceil_div(rows, t->scope);
}

/* Is P.V computed for a scope whose largest gap is this? The last tiles of a list are exempt. */
static bool tile_computes(const struct tile_attn *t, double gap, bool exempt)
{
    return exempt || t->pv == INFINITY || gap + t->pv > 0;
}

/* ---- operands of the quantised arithmetic ---------------------------------------------------- */

static int quantise_values(struct tile_attn *t, struct tile_operands *o,
                           const struct own_quantised *r, const float *v, struct err *err)
{
    int64_t n = t->nk * t->dv;
    PASS_ON(mem_alloc(&o->v, n, sizeof *o->v, "quantised values", err));
    for (int64_t i = 0; i < n; i++)
        o->v[i] = r->values_as != DT_F16   ? v[i]
                  : r->inputs_as == DT_F16 ? f16_finite(v[i])
                                           : f16_round(v[i]);
    if (r->smooth_v) {
        PASS_ON(mem_alloc(&o->v_mean, t->dv, sizeof *o->v_mean, "value mean", err));
        token_mean(o->v, t->nk, t->dv, DT_F32, o->v_mean);
        token_centre(o->v, t->nk, t->dv, o->v_mean, DT_F32, o->v);
    }
    if (r->e4m3) {
        PASS_ON(mem_alloc(&o->v_scale, t->dv, sizeof *o->v_scale, "value scales", err));
        quant_channels_e4m3(o->v, t->nk, t->dv, r->v_top, o->v, o->v_scale);
    }
    for (int64_t i = 0; !r->e4m3 && i < n; i++)
        o->v[i] = f16_round(o->v[i]);
    t->v = o->v;
    t->v_scale = o->v_scale;
    t->v_mean = o->v_mean;
    return 0;
}

int tile_quantise(struct tile_attn *t, struct tile_operands *o, const struct own_quantised *r,
                  const struct attn_in *x, const float *q, const float *k, const float *kbar,
                  struct err *err)
{
    struct quant_groups gq = {r->gran, false, r->bq, r->warp}, gk = {r->gran, true, r->bk, 0};
    PASS_ON(quant_int(&o->q, q, t->nq, t->d, &gq, r->levels, r->round, err));
    PASS_ON(quant_int(&o->k, k, t->nk, t->d, &gk, r->levels, r->round, err));
    t->q = &o->q;
    t->k = &o->k;
    t->score_scale = r->fold_scale ? 1 : (float)(x->scale * LOG2E);
    t->kbar = r->smooth_k ? kbar : NULL;
    t->p_type = r->e4m3 ? TILE_P_E4M3 : TILE_P_F16;
    t->p_offset = r->offset;
    t->p_factor = r->factor;
    t->acc = r->sum;
    t->mma_keys = r->e4m3 ? 32 : 16;
    return quantise_values(t, o, r, x->v, err);
}

void tile_operands_free(struct tile_operands *o)
{
    quant_free(&o->q);
    quant_free(&o->k);
    free(o->v);
    free(o->v_scale);
    free(o->v_mean);
}

/* ---- exact ----------------------------------------------------------------------------------
 *
 * Whether P.V of a tile is computed depends only on scores up to this tile, not on P. Several tiles
 * are therefore processed at once: one product for their scores, one pass over their maxima that
 * decides, one softmax against the maximum after all of them, one product with V. The sum is the
 * same as tile by tile, because l and O only hold terms 2^(s - m) under a common m. The products
 * are as wide as those of core/attention.c; a product of 64 keys runs at half their speed. 4 bq bk
 * d operations per tile, 2 bq bk d where P.V is skipped by every scope.
 *
 * The engine is not core/attention.c with a filter: its scores are in units of log2, as the
 * filter's distance is; the filter needs the maxima of all tiles before the first exponential; and
 * a list of tiles needs no spans. The loops inside a row are the same (core/attention.h).
 */

#define RUN_KEYS 512 /* taken at once, whole tiles: scores of a block stay in L2 */

struct tile_exact {
    const struct attn_ops *ops;
    int64_t run;             /* tiles taken at once */
    void *q, *s, *k, *v, *o; /* [bq][d], [bq][run bk], [run bk][d], [run bk][dv], [bq][dv] */
    double *m, *l;           /* [bq] */
    double *gap;             /* [bq / scope][run] largest of the scope's rows */
    bool *computed;          /* [bq / scope][run] */
    int64_t *visible;        /* [bq] leading columns of the run that the row sees */
};

static void tile_exact_free(struct tile_exact *w)
{
    if (!w)
        return;
    void *all[] = {w->q, w->s, w->k, w->v, w->o, w->m, w->l, w->gap, w->computed, w->visible};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    free(w);
}
OWN_AT(tile_exact_free, struct tile_exact *)

static int tile_exact_new(const struct tile_attn *t, struct tile_exact **out, struct err *err)
{
    OWN(tile_exact_free_at) struct tile_exact *w = NULL;
    int64_t run = t->bk < RUN_KEYS ? RUN_KEYS / t->bk : 1, keys = run * t->bk;
    int64_t size = t->exact->prec == PREC_F64 ? sizeof(double) : sizeof(float);
    int64_t scopes = tile_scopes(t, t->bq);

    PASS_ON(mem_zalloc(&w, 1, sizeof *w, "tile buffers", err));
    w->run = run;
    PASS_ON(exact_operands(t->exact, &w->ops, err));
    PASS_ON(mem_alloc(&w->q, t->bq * t->d, size, "query tile", err));
    PASS_ON(mem_alloc(&w->s, t->bq * keys, size, "score tile", err));
    PASS_ON(mem_alloc(&w->k, keys * t->d, size, "key tile", err));
    PASS_ON(mem_alloc(&w->v, keys * t->dv, size, "value tile", err));
    PASS_ON(mem_alloc(&w->o, t->bq * t->dv, size, "output tile", err));
    PASS_ON(mem_alloc(&w->m, t->bq, sizeof *w->m, "row maxima", err));
    PASS_ON(mem_alloc(&w->l, t->bq, sizeof *w->l, "row sums", err));
    PASS_ON(mem_alloc(&w->gap, scopes * run, sizeof *w->gap, "gaps", err));
    PASS_ON(mem_alloc(&w->computed, scopes * run, sizeof *w->computed, "computed scopes", err));
    PASS_ON(mem_alloc(&w->visible, t->bq, sizeof *w->visible, "visible keys", err));
    *out = HAND_OVER(w);
    return 0;
}

/* The tiles taken at once: tile e holds the columns [e bk, e bk + bk) of the run's `keys`, the last
 * tile of the sequence (so of the run) fewer. */
struct run {
    int64_t row0, rows;
    const int32_t *col;
    int64_t n, keys;
    int64_t exempt; /* first tile that the filter must compute */
};

static int64_t tile_keys(const struct tile_attn *t, const struct run *run, int64_t e)
{
    int64_t left = run->keys - e * t->bk;
    return left < t->bk ? left : t->bk;
}

/* Decide for every scope and tile; returns the share of computed scopes, summed over the tiles. */
static double vote(const struct tile_attn *t, struct tile_exact *w, const struct run *run)
{
    int64_t scopes = tile_scopes(t, run->rows), n = 0;
    for (int64_t i = 0; i < scopes * run->n; i++) {
        w->computed[i] = tile_computes(t, w->gap[i], i % run->n >= run->exempt);
        n += w->computed[i];
    }
    return (double)n / (double)scopes;
}

static bool any_scope(const struct tile_attn *t, const struct tile_exact *w, const struct run *run,
                      int64_t e)
{
    for (int64_t g = 0; g < tile_scopes(t, run->rows); g++)
        if (w->computed[g * run->n + e])
            return true;
    return false;
}

/* ---- float ---------------------------------------------------------------------------------- */
#define REAL float
#define SUF(name) name##_f32
#define GEMM_NT gemm_nt_f32
#define GEMM_NN gemm_nn_f32
#include "sim/blocks/tileexact_kernel.inc"
#undef REAL
#undef SUF
#undef GEMM_NT
#undef GEMM_NN

/* ---- double --------------------------------------------------------------------------------- */
#define REAL double
#define SUF(name) name##_f64
#define GEMM_NT gemm_nt_f64
#define GEMM_NN gemm_nn_f64
#include "sim/blocks/tileexact_kernel.inc"

static void tile_exact_block(const struct tile_attn *t, struct tile_exact *w, int64_t row0,
                             int64_t rows, const int32_t *col, int64_t n, double *out, double *lse,
                             double *tiles_pv)
{
    if (w->ops->prec == PREC_F64)
        block_f64(t, w, w->ops->k64, w->ops->v64, row0, rows, col, n, out, lse, tiles_pv);
    else
        block_f32(t, w, t->exact->x.k, t->exact->x.v, row0, rows, col, n, out, lse, tiles_pv);
}

/* ---- quantised: one tile at a time, as the kernels do, whose float state is rounded after every
 * tile. 4 bq bk d operations per tile, 2 bq bk d where P.V is skipped.
 * ----------------------------- */

#define F16_CHAIN 64
#define TOGETHER 2 /* tiles at most */

/* A tile whose scores are known. */
struct tile_scores {
    int64_t key0, keys;
    float *s;         /* [bq][bk] in log2 units */
    int64_t *visible; /* [bq] visible keys */
    bool *computed;   /* [bq / scope] */
};

struct tile_quant {
    struct tile_scores tile[TOGETHER];
    float *p;              /* [bq][bk] integer dot products, then P */
    float *acc;            /* [bq][dv] one tile's P.V */
    float *q, *k;          /* [bq][d], [bk][d] integers as floats */
    float *q_scale;        /* [bq] */
    float *k_scale, *bias; /* [bk] */
    float *m, *l, *o;      /* [bq], [bq], [bq][dv] */
    double *gap;           /* [bq] */
};

static void tile_quant_free(struct tile_quant *w)
{
    if (!w)
        return;
    void *all[] = {w->p,    w->acc, w->q, w->k, w->q_scale, w->k_scale,
                   w->bias, w->m,   w->l, w->o, w->gap};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    for (int i = 0; i < TOGETHER; i++) {
        free(w->tile[i].s);
        free(w->tile[i].visible);
        free(w->tile[i].computed);
    }
    free(w);
}
OWN_AT(tile_quant_free, struct tile_quant *)

static int tile_quant_new(const struct tile_attn *t, struct tile_quant **out, struct err *err)
{
    OWN(tile_quant_free_at) struct tile_quant *w = NULL;
    int64_t bq = t->bq, bk = t->bk;

    PASS_ON(mem_zalloc(&w, 1, sizeof *w, "tile buffers", err));
    for (int i = 0; i < t->together || i == 0; i++) {
        struct tile_scores *x = w->tile + i;
        PASS_ON(mem_alloc(&x->s, bq * bk, sizeof *x->s, "score tile", err));
        PASS_ON(mem_alloc(&x->visible, bq, sizeof *x->visible, "visible keys", err));
        PASS_ON(mem_alloc(&x->computed, tile_scopes(t, bq), sizeof *x->computed, "computed scopes",
                          err));
    }
    PASS_ON(mem_alloc(&w->p, bq * bk, sizeof *w->p, "probability tile", err));
    PASS_ON(mem_alloc(&w->acc, bq * t->dv, sizeof *w->acc, "product tile", err));
    PASS_ON(mem_alloc(&w->q, bq * t->d, sizeof *w->q, "query tile", err));
    PASS_ON(mem_alloc(&w->k, bk * t->d, sizeof *w->k, "key tile", err));
    PASS_ON(mem_alloc(&w->q_scale, bq, sizeof *w->q_scale, "query scales", err));
    PASS_ON(mem_alloc(&w->k_scale, bk, sizeof *w->k_scale, "key scales", err));
    PASS_ON(mem_alloc(&w->bias, bk, sizeof *w->bias, "score bias", err));
    PASS_ON(mem_alloc(&w->m, bq, sizeof *w->m, "row maxima", err));
    PASS_ON(mem_alloc(&w->l, bq, sizeof *w->l, "row sums", err));
    PASS_ON(mem_alloc(&w->o, bq * t->dv, sizeof *w->o, "output tile", err));
    PASS_ON(mem_alloc(&w->gap, bq, sizeof *w->gap, "row gaps", err));
    *out = HAND_OVER(w);
    return 0;
}

/* ---- rows ----------------------------------------------------------------------------------- */

/* 2^(s_j - m + offset) * factor in float, results below 2^-126 flushed to 0 as by the GPU's ex2. */
SIMD_CLONES
static void exp2_row(const float *s, int64_t n, float m, float offset, float factor, float *p)
{
    for (int64_t j = 0; j < n; j++) {
        float x = s[j] - m + offset, c = x > -126 ? x : -126;
        float t = c + 0x1.8p23f, k = t - 0x1.8p23f, r = (c - k) * (float)LN2, e, f;
        uint32_t bits;
        memcpy(&bits, &t, sizeof bits);
        bits = (bits << 23) + 0x3f800000u;
        memcpy(&f, &bits, sizeof f);
        e = 1 +
            r * (1 + r * (1.0f / 2 +
                          r * (1.0f / 6 + r * (1.0f / 24 + r * (1.0f / 120 + r * (1.0f / 720))))));
        p[j] = x > -126 ? e * f * factor : 0;
    }
}

SIMD_CLONES
static void round_f16(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = f16_round(x[i]);
}

SIMD_CLONES
static void round_e4m3(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = e4m3_round(x[i]);
}

SIMD_CLONES
static void cut_fp22(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = fp22_cut(x[i]);
}

SIMD_CLONES
static float sum_f32(const float *x, int64_t n)
{
    float lane[8] = {0}, total = 0;
    int64_t j = 0;
    for (; j + 8 <= n; j += 8)
        for (int k = 0; k < 8; k++)
            lane[k] += x[j + k];
    for (; j < n; j++)
        lane[0] += x[j];
    for (int k = 0; k < 8; k++)
        total += lane[k];
    return total;
}

/* ---- scores --------------------------------------------------------------------------------- */

static void load_queries(const struct tile_attn *t, struct tile_quant *w, int64_t row0,
                         int64_t rows)
{
    for (int64_t i = 0; i < rows * t->d; i++)
        w->q[i] = (float)t->q->q[row0 * t->d + i];
    for (int64_t r = 0; r < rows; r++)
        w->q_scale[r] = t->score_scale * quant_scale_of(t->q, row0 + r);
}

static void scores(const struct tile_attn *t, struct tile_quant *w, int64_t row0, int64_t rows,
                   const struct tile_scores *x)
{
    int64_t key0 = x->key0, keys = x->keys;
    for (int64_t i = 0; i < keys * t->d; i++)
        w->k[i] = (float)t->k->q[key0 * t->d + i];
    for (int64_t j = 0; j < keys; j++)
        w->k_scale[j] = quant_scale_of(t->k, key0 + j);
    gemm_nt_f32(rows, keys, t->d, 1, w->q, t->d, w->k, t->d, 0, w->p, keys);
    memset(w->bias, 0, (size_t)keys * sizeof *w->bias);
    if (t->qbar)
        gemv_f32(keys, t->d, t->bias_scale, t->k_bias + key0 * t->d, t->d,
                 t->qbar + row0 / t->bq * t->d, w->bias);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < keys; j++) {
            float s = w->p[r * keys + j] * (w->q_scale[r] * w->k_scale[j]);
            x->s[r * keys + j] = s + w->bias[j];
        }
}

/* ---- one tile ------------------------------------------------------------------------------- */

/* New maxima, gaps, rescaling of l and O. */
static void update_maxima(const struct tile_attn *t, struct tile_quant *w, int64_t row0,
                          int64_t rows, const struct tile_scores *x)
{
    for (int64_t r = 0; r < rows; r++) {
        x->visible[r] = tile_visible(t, row0 + r, x->key0, x->keys);
        float top = row_max_f32(x->s + r * x->keys, x->visible[r]), m = w->m[r];
        w->gap[r] = top == -INFINITY ? -INFINITY : (double)top - m;
        if (top <= m)
            continue;
        w->m[r] = top;
        if (w->l[r] == 0)
            continue;
        float f = exp2f(m - top);
        w->l[r] *= f;
        for (int c = 0; c < t->dv; c++)
            w->o[r * t->dv + c] *= f;
    }
}

/* P of one row into the buffer of the P.V product, l updated. */
static void softmax_row(const struct tile_attn *t, struct tile_quant *w, int64_t r,
                        const struct tile_scores *x)
{
    int64_t keys = x->keys, n = w->m[r] == -INFINITY ? 0 : x->visible[r];
    float *p = w->p + r * keys;

    exp2_row(x->s + r * keys, n, w->m[r], t->p_offset, t->p_factor, p);
    memset(p + n, 0, (size_t)(keys - n) * sizeof *p);
    float sum = t->l_rounded ? 0 : sum_f32(p, n);
    if (t->p_type == TILE_P_F16)
        round_f16(p, n);
    else if (t->p_type == TILE_P_E4M3)
        round_e4m3(p, n);
    if (t->l_rounded)
        sum = sum_f32(p, n);
    w->l[r] += sum;
}

static void gemm_pv(const struct tile_attn *t, struct tile_quant *w, int64_t r0, int64_t rows,
                    const float *v, int64_t keys, int64_t k0, int64_t k1, float beta)
{
    gemm_nn_f32(rows, t->dv, k1 - k0, 1, w->p + r0 * keys + k0, keys, v + k0 * t->dv, t->dv, beta,
                w->acc, t->dv);
}

static void add_acc(const struct tile_attn *t, struct tile_quant *w, int64_t r0, int64_t rows)
{
    for (int64_t i = 0; i < rows * t->dv; i++)
        w->o[r0 * t->dv + i] += w->acc[i];
}

/* O += P V for rows [r0, r0 + rows) of the block. */
static void product(const struct tile_attn *t, struct tile_quant *w, int64_t r0, int64_t rows,
                    int64_t key0, int64_t keys)
{
    const float *v = t->v + key0 * t->dv;
    if (t->acc == OWN_SUM_F32) {
        gemm_pv(t, w, r0, rows, v, keys, 0, keys, 0);
        add_acc(t, w, r0, rows);
        return;
    }
    int64_t chain = t->acc == OWN_SUM_F16 ? F16_CHAIN : keys;
    for (int64_t c = 0; c < keys; c += chain) {
        int64_t end = c + chain < keys ? c + chain : keys;
        for (int64_t k = c; k < end; k += t->mma_keys) {
            gemm_pv(t, w, r0, rows, v, keys, k, k + t->mma_keys < end ? k + t->mma_keys : end,
                    k > c);
            if (t->acc == OWN_SUM_F16)
                round_f16(w->acc, rows * t->dv);
            else
                cut_fp22(w->acc, rows * t->dv);
        }
        add_acc(t, w, r0, rows);
    }
}

/* Which scopes compute P.V. Returns their number. */
static int64_t quant_vote(const struct tile_attn *t, const struct tile_quant *w, int64_t rows,
                          bool exempt, const struct tile_scores *x)
{
    int64_t n = 0;
    for (int64_t g = 0; g * t->scope < rows; g++) {
        double gap = -INFINITY;
        for (int64_t r = g * t->scope; r < rows && r < (g + 1) * t->scope; r++)
            gap = w->gap[r] > gap ? w->gap[r] : gap;
        x->computed[g] = tile_computes(t, gap, exempt);
        n += x->computed[g];
    }
    return n;
}

/* The scores of the tile from key0 on; the maxima, l and O follow. */
static void look_at_tile(const struct tile_attn *t, struct tile_quant *w, int64_t row0,
                         int64_t rows, int64_t key0, bool exempt, struct tile_scores *x,
                         double *tiles_pv)
{
    x->key0 = key0;
    x->keys = t->nk - key0 < t->bk ? t->nk - key0 : t->bk;
    scores(t, w, row0, rows, x);
    update_maxima(t, w, row0, rows, x);
    int64_t n = quant_vote(t, w, rows, exempt, x);
    if (tiles_pv)
        *tiles_pv += (double)n / (double)tile_scopes(t, rows);
}

/* Its P, relative to the maxima as they are now, and P V. */
static void take_tile(const struct tile_attn *t, struct tile_quant *w, int64_t rows,
                      const struct tile_scores *x)
{
    int64_t scopes = tile_scopes(t, rows);
    for (int64_t r = 0; r < rows; r++)
        if (t->keep_denominator || x->computed[r / t->scope])
            softmax_row(t, w, r, x);
    for (int64_t g = 0; g < scopes; g++) {
        int64_t g0 = g;
        while (g < scopes && x->computed[g])
            g++;
        int64_t r0 = g0 * t->scope, r1 = g * t->scope < rows ? g * t->scope : rows;
        if (r1 > r0)
            product(t, w, r0, r1 - r0, x->key0, x->keys);
    }
}

/* ---- one query block ------------------------------------------------------------------------ */

static void finish_row(const struct tile_attn *t, const struct tile_quant *w, int64_t row,
                       int64_t r, double *out, double *lse)
{
    const float *o = w->o + r * t->dv;
    for (int c = 0; c < t->dv; c++) {
        float x = o[c] / w->l[r];
        if (t->v_scale)
            x *= t->v_scale[c];
        if (t->v_mean)
            x += t->v_mean[c];
        out[c] = x;
    }
    *lse = (w->m[r] + log2(w->l[r]) - t->p_offset - log2(t->p_factor)) * LN2;
    if (t->kbar) {
        double dot = 0;
        for (int c = 0; c < t->d; c++)
            dot += (double)t->exact->x.q[row * t->d + c] * t->kbar[c];
        *lse += t->exact->x.scale * dot;
    }
}

static void tile_quant_block(const struct tile_attn *t, struct tile_quant *w, int64_t row0,
                             int64_t rows, const int32_t *col, int64_t n, double *out, double *lse,
                             double *tiles_pv)
{
    load_queries(t, w, row0, rows);
    for (int64_t r = 0; r < rows; r++) {
        w->m[r] = -INFINITY;
        w->l[r] = 0;
    }
    memset(w->o, 0, (size_t)(rows * t->dv) * sizeof *w->o);
    int64_t at_once = t->together ? t->together : 1;
    for (int64_t e = 0, k = (n + at_once - 1) % at_once + 1; e < n; e += k, k = at_once) {
        for (int64_t i = 0; i < k; i++)
            look_at_tile(t, w, row0, rows, col[e + i] * t->bk, e + i >= n - t->tail, w->tile + i,
                         tiles_pv);
        for (int64_t i = 0; i < k; i++)
            take_tile(t, w, rows, w->tile + i);
    }
    for (int64_t r = 0; r < rows; r++)
        if (w->m[r] == -INFINITY)
            lse[r] = -INFINITY;
        else
            finish_row(t, w, row0 + r, r, out + r * t->dv, &lse[r]);
}

/* ---- both ----------------------------------------------------------------------------------- */

struct tile_work {
    struct tile_exact *exact; /* one of the two */
    struct tile_quant *quant;
};

int tile_work_new(const struct tile_attn *t, struct tile_work **out, struct err *err)
{
    OWN(tile_work_free_at) struct tile_work *w = NULL;

    PASS_ON(mem_zalloc(&w, 1, sizeof *w, "tile buffers", err));
    if (t->q)
        PASS_ON(tile_quant_new(t, &w->quant, err));
    else
        PASS_ON(tile_exact_new(t, &w->exact, err));
    *out = HAND_OVER(w);
    return 0;
}

void tile_work_free(struct tile_work *w)
{
    if (!w)
        return;
    tile_exact_free(w->exact);
    tile_quant_free(w->quant);
    free(w);
}

static void dead_row(const struct tile_attn *t, const int32_t *col, int64_t n, double *out)
{
    int64_t count = 0;
    memset(out, 0, (size_t)t->dv * sizeof *out);
    for (int64_t e = 0; t->dead_mean && e < n; e++) {
        int64_t k0 = col[e] * t->bk, k1 = k0 + t->bk < t->nk ? k0 + t->bk : t->nk;
        for (int64_t k = k0; k < k1; k++, count++)
            for (int c = 0; c < t->dv; c++)
                out[c] += t->exact->x.v[k * t->dv + c];
    }
    for (int c = 0; count && c < t->dv; c++)
        out[c] /= (double)count;
}

void tile_attn_block(const struct tile_attn *t, struct tile_work *w, int64_t row0, int64_t rows,
                     const int32_t *col, int64_t n, double *out, double *lse, double *tiles_pv)
{
    if (t->q)
        tile_quant_block(t, w->quant, row0, rows, col, n, out, lse, tiles_pv);
    else
        tile_exact_block(t, w->exact, row0, rows, col, n, out, lse, tiles_pv);
    for (int64_t r = 0; r < rows; r++) {
        double *o = out + r * t->dv;
        if (lse[r] == -INFINITY)
            dead_row(t, col, n, o);
        for (int c = 0; t->out_dtype != DT_NONE && c < t->dv; c++)
            o[c] = dtype_round(t->out_dtype, (float)o[c]);
    }
}

int tile_attn_rows(const struct tile_attn *t, const struct mask *m, double *out, double *lse,
                   double *tiles_pv, struct err *err)
{
    OWN(tile_work_free_at) struct tile_work *w = NULL;
    OWN(free_at) int32_t *all = NULL;
    int64_t units = ceil_div(t->nk, t->bk);

    PASS_ON(tile_work_new(t, &w, err));
    PASS_ON(mem_alloc(&all, units, sizeof *all, "tile list", err));
    for (int64_t i = 0; i < units; i++)
        all[i] = (int32_t)i;
    for (int64_t r = m->row0; r < m->row1; r += t->bq) {
        int64_t rows = m->row1 - r < t->bq ? m->row1 - r : t->bq, g = (r - m->row0) / t->bq;
        const int32_t *col = all;
        int64_t n = ceil_div(mask_limit(m, r + rows - 1), t->bk);
        if (m->form == MASK_LISTS) {
            col = m->col + m->ptr[g];
            n = m->ptr[g + 1] - m->ptr[g];
        }
        tile_attn_block(t, w, r, rows, col, n, out + (r - m->row0) * t->dv, lse + (r - m->row0),
                        tiles_pv);
    }
    return 0;
}
