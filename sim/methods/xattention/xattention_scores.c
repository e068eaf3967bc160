/*
 * xattention_scores.c - see xattention.h. With the queries of a run in reverse order the
 * antidiagonal sum is one matrix product of depth S d over reduced rows: N^2 d / S FLOP causal. The
 * masses of a row block are computed and used one row block at a time, so memory is linear in N.
 */
#include "sim/methods/xattention/xattention.h"

#include "core/dtype.h"
#include "core/gemm.h"
#include "core/intmath.h"
#include "core/mem.h"
#include "sim/blocks/tokscore.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define B XATTN_BLOCK

int64_t xattn_auto_chunk(int64_t nk)
{
    int64_t p = 1, chunk;
    while (p < nk)
        p *= 2;
    chunk = p > 2048 ? p : 2048;
    chunk = chunk < ((int64_t)1 << 28) / p ? chunk : ((int64_t)1 << 28) / p;
    return chunk > 2048 ? chunk : 2048;
}

void xattn_shape(struct xattn *x, const struct xattn_config *c)
{
    int64_t unit = c->profile == XATTN_OFFICIAL ? c->chunk : B;
    memset(x, 0, sizeof *x);
    x->c = *c;
    x->row_blocks = ceil_div(c->nq, B);
    x->key_blocks = ceil_div(c->nk, B);
    x->cols = ceil_div(c->nk, unit) * (unit / B);
    x->shift =
        c->profile == XATTN_OFFICIAL ? x->cols * B - ceil_div(c->nq, unit) * unit : c->nk - c->nq;
    x->reduced_keys = ceil_div(c->nk, c->stride);
}

int xattn_init(struct xattn *x, const struct xattn_config *c, const float *q, const float *k,
               struct err *err)
{
    int64_t depth = (int64_t)c->stride * c->d, rows = B / c->stride;
    int rc = 0;
    xattn_shape(x, c);
    x->q = q;
    TRY(mem_zalloc(&x->k, x->reduced_keys * depth, sizeof *x->k, "padded keys", err));
    memcpy(x->k, k, (size_t)(c->nk * c->d) * sizeof *k);
    TRY(twins_find(&x->equal, x->k, x->reduced_keys, depth, err));
    TRY(mem_alloc(&x->a, rows * depth, sizeof *x->a, "reduced rows", err));
    TRY(mem_alloc(&x->s, rows * x->reduced_keys, sizeof *x->s, "antidiagonal scores", err));
    TRY(mem_alloc(&x->w, x->cols * rows, sizeof *x->w, "reduced softmax row", err));
out:
    if (rc)
        xattn_free(x);
    return rc;
}

void xattn_free(struct xattn *x)
{
    free(x->k);
    twins_free(&x->equal);
    free(x->a);
    free(x->s);
    free(x->w);
    memset(x, 0, sizeof *x);
}

/* Reduced columns that reduced row i sees when causal: those whose first key is not later than the
 * last query of the run. */
static int64_t causal_columns(const struct xattn *x, int64_t i)
{
    return (i * x->c.stride + x->c.stride - 1 + x->shift) / x->c.stride + 1;
}

void xattn_scores(struct xattn *x, int64_t i)
{
    int d = x->c.d, stride = x->c.stride, rows = B / stride, depth = stride * d;
    for (int r = 0; r < rows; r++)
        for (int t = 0; t < stride; t++) {
            int64_t q = i * B + r * stride + stride - 1 - t;
            float *a = x->a + r * depth + t * d;
            if (q < x->c.nq)
                memcpy(a, x->q + q * d, (size_t)d * sizeof *a);
            else
                memset(a, 0, (size_t)d * sizeof *a);
        }
    int64_t keys = x->reduced_keys, limit = causal_columns(x, (i + 1) * rows - 1);
    keys = x->c.causal && limit < keys ? limit : keys;
    gemm_nt_f32(rows, keys, depth, 1, x->a, depth, x->k, depth, 0, x->s, x->reduced_keys);
    for (int r = 0; r < rows; r++)
        twins_level_f32(&x->equal, x->s + r * x->reduced_keys, keys);
    if (x->c.bf16)
        for (int r = 0; r < rows; r++)
            for (int64_t j = 0; j < keys; j++)
                x->s[r * x->reduced_keys + j] = dtype_round(DT_BF16, x->s[r * x->reduced_keys + j]);
}

/* Temperature of the reduced softmax: the mean of S products, or (paper) sums over sqrt(S). */
static double temperature(const struct xattn_config *c)
{
    double s = c->profile == XATTN_PAPER ? sqrt(c->stride) : c->stride;
    return c->scale / (s * c->norm);
}

/* Softmax of reduced row r into x->w; returns the number of its columns. The published code lets
 * padded keys in, with logit 0. */
static int64_t reduced_softmax(struct xattn *x, int64_t i, int r)
{
    int64_t rows = B / x->c.stride, limit = causal_columns(x, i * rows + r);
    int64_t real = x->reduced_keys, n = x->c.profile == XATTN_OFFICIAL ? x->cols * rows : real;
    n = x->c.causal && limit < n ? limit : n;
    const float *s = x->s + r * x->reduced_keys;
    double top = -INFINITY, sum = 0, f = temperature(&x->c);
    for (int64_t j = 0; j < n; j++) {
        x->w[j] = j < real ? f * s[j] : 0;
        top = fmax(top, x->w[j]);
    }
    for (int64_t j = 0; j < n; j++)
        sum += x->w[j] = exp(x->w[j] - top);
    for (int64_t j = 0; j < n; j++)
        x->w[j] /= sum;
    return n;
}

int64_t xattn_pairs(const struct xattn *x, int64_t i)
{
    int64_t rows = B / x->c.stride, end = ceil_div(x->c.nq, x->c.stride), pairs = 0;
    end = (i + 1) * rows < end ? (i + 1) * rows : end;
    for (int64_t r = i * rows; r < end; r++) {
        int64_t seen = causal_columns(x, r);
        pairs += x->c.causal && seen < x->reduced_keys ? seen : x->reduced_keys;
    }
    return pairs;
}

void xattn_row(struct xattn *x, int64_t i, double *mass)
{
    int rows = B / x->c.stride;
    int64_t real = ceil_div(x->c.nq, x->c.stride);
    memset(mass, 0, (size_t)x->cols * sizeof *mass);
    xattn_scores(x, i);
    for (int r = 0; r < rows && i * rows + r < real; r++) {
        int64_t n = reduced_softmax(x, i, r);
        for (int64_t j = 0; j < n; j++)
            mass[j / rows] += x->w[j];
    }
    if (x->c.bf16)
        for (int64_t j = 0; j < x->cols; j++)
            mass[j] = dtype_round(DT_BF16, (float)mass[j]);
}

/* ---- selection -------------------------------------------------------------------------- */

/* Keep the blocks of order[0..n) not yet kept, most massive first, while the mass taken so far is
 * below req. */
static void take_below(const double *mass, const int32_t *order, int64_t n, double taken,
                       double req, bool *keep)
{
    for (int64_t e = 0; e < n && taken < req; e++)
        if (!keep[order[e]]) {
            keep[order[e]] = true;
            taken += mass[order[e]];
        }
}

/* In the first chunk the published code overwrites the flag of column 0 and shifts the comparison
 * by one place: the best other block is always kept, the (n+1)-th iff the diagonal and the first
 * n - 1 others are below req. Column 0 is added at the end. */
static void first_chunk(const double *mass, const int32_t *order, int64_t n, int64_t row,
                        double req, bool *keep)
{
    double taken = mass[row], last = 0;
    int64_t others = 0;
    for (int64_t e = 0; e < n; e++) {
        if (order[e] == row)
            continue;
        if (others++ > 0) {
            if (!(taken < req))
                break;
            taken += last;
        }
        last = mass[order[e]];
        keep[order[e]] = true;
    }
}

static void select_causal(const struct xattn_config *c, const double *mass, const int32_t *order,
                          int64_t n, struct xattn_place p, double req, bool *keep)
{
    bool forced = c->profile != XATTN_PAPER;
    double taken = 0;
    for (int64_t j = p.own; (forced || c->tau <= 0) && j <= p.row; j++)
        keep[j] = true;
    if (c->profile == XATTN_OFFICIAL && p.first == 0) {
        if (c->tau > 0)
            first_chunk(mass, order, n, p.row, req, keep);
    } else {
        keep[0] = keep[0] || forced;
        for (int64_t j = 0; forced && j < n; j++)
            taken += j == 0 || j >= p.own ? mass[j] : 0;
        if (c->tau > 0)
            take_below(mass, order, n, taken, req, keep);
    }
    keep[0] = keep[0] || forced;
}

static void select_all(const struct xattn_config *c, const double *mass, const int32_t *order,
                       int64_t n, int64_t row, double req, bool *keep)
{
    take_below(mass, order, n, 0, req, keep);
    if (c->profile == XATTN_OFFICIAL)
        keep[0] = true; /* whenever a block was left out; kept anyway otherwise */
    else if (c->tau <= 0)
        keep[row < 0 ? 0 : row < n ? row : n - 1] = true;
}

int xattn_select(const struct xattn_config *c, const double *mass, int64_t cols,
                 struct xattn_place place, bool *keep, struct err *err)
{
    int32_t *order = NULL;
    int64_t n = c->causal ? place.row + 1 : cols;
    double total = 0;
    int rc = mem_alloc(&order, n, sizeof *order, "block order", err);
    if (rc)
        return rc;
    TRY(order_descending(mass, n, order, err));
    memset(keep, 0, (size_t)cols * sizeof *keep);
    for (int64_t j = 0; j < n; j++)
        total += mass[j];
    /* At tau = 1 rounding of the running sum must not leave a block with mass out. */
    for (int64_t j = 0; c->tau >= 1 && j < n; j++)
        keep[j] = mass[j] > 0;
    double req = c->tau >= 1 ? 0 : c->tau * total;
    if (c->causal)
        select_causal(c, mass, order, n, place, req, keep);
    else
        select_all(c, mass, order, n, place.row, req, keep);
out:
    free(order);
    return rc;
}

static struct xattn_place xattn_place(const struct xattn *x, int64_t i)
{
    int64_t blocks = x->c.profile == XATTN_OFFICIAL ? x->c.chunk / B : 1;
    int64_t end = (i + 1) * B < x->c.nq ? (i + 1) * B : x->c.nq;
    return (struct xattn_place){.own = (i * B + x->shift) / B,
                                .row = (end - 1 + x->shift) / B,
                                .first = x->shift / B + i / blocks * blocks};
}

int64_t xattn_limit(const struct xattn *x, int64_t i)
{
    int64_t n = x->c.causal ? xattn_place(x, i).row + 1 : x->key_blocks;
    return n < x->key_blocks ? n : x->key_blocks;
}

int xattn_keep(struct xattn *x, int64_t i, double *mass, bool *keep, struct err *err)
{
    xattn_row(x, i, mass);
    return xattn_select(&x->c, mass, x->cols, xattn_place(x, i), keep, err);
}
