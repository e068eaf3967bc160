/*
 * cells.c - attention maps and masks as grids of cells: pooled, or computed from q and k.
 *
 * gnuplot samples images at points: 4096 columns drawn into 1024 pixels lose three of four
 * one-column lines. Pooling happens here instead, by maximum for weights, so that one cell is at
 * least one pixel. O(cells) for maps, O(spans) for masks.
 */
#include "plots/cells.h"

#include "core/attention.h"
#include "core/intmath.h"
#include "core/mem.h"
#include "core/trace.h"

#include <math.h>
#include <stdlib.h>

void cells_free(struct cells *c)
{
    free(c->v);
    *c = (struct cells){0};
}

int64_t cells_factor(int64_t rows, int64_t cols, int64_t most)
{
    int64_t side = rows > cols ? rows : cols;
    return side <= most ? 1 : (side + most - 1) / most;
}

/* Cells of a part of a map, without values. */
static int cells_new(const struct cells_span *span, int64_t tokens, struct cells *c,
                     struct err *err)
{
    int64_t n;
    *c = (struct cells){.n_q = span->n_q,
                        .n_k = span->n_k,
                        .rows = ceil_div(span->n_q, tokens),
                        .cols = ceil_div(span->n_k, tokens),
                        .tokens = tokens,
                        .q0 = span->q0,
                        .k0 = span->k0};
    if (!mul_ok(c->rows, c->cols, &n))
        return err_set(err, ERR_NOMEM, "a map of %lld x %lld cells is too large",
                       (long long)c->rows, (long long)c->cols);
    return mem_alloc(&c->v, n, sizeof *c->v, "cells of a map", err);
}

int64_t cells_sample(int64_t s, int64_t samples, int64_t n, int64_t tokens)
{
    return ((s + 1) * n - 1) / (samples * tokens);
}

/* One output cell from the cells [r0, r1) x [c0, c1) of the map. */
static float pool_cell(const float *m, int64_t cols, int64_t r0, int64_t r1, int64_t c0, int64_t c1,
                       enum cells_pool pool, int64_t pairs)
{
    double sum = 0, max = 0;
    for (int64_t r = r0; r < r1; r++)
        for (int64_t c = c0; c < c1; c++) {
            double x = (double)m[r * cols + c];
            sum += x;
            if (x > max)
                max = x;
        }
    return (float)(pool == POOL_MAX ? max : sum / (double)pairs);
}

int cells_from_map(const float *m, const struct head_shape *h, int64_t tokens, int64_t factor,
                   enum cells_pool pool, struct cells *out, struct err *err)
{
    struct cells c;
    int64_t n_q = h->nq, n_k = h->nk;
    int64_t rows = (n_q + tokens - 1) / tokens, cols = (n_k + tokens - 1) / tokens;
    PASS_ON(cells_new(&(struct cells_span){0, n_q, 0, n_k}, tokens * factor, &c, err));
    for (int64_t r = 0; r < c.rows; r++)
        for (int64_t k = 0; k < c.cols; k++) {
            int64_t pairs = pairs_within(h, r * c.tokens, MIN((r + 1) * c.tokens, n_q),
                                         k * c.tokens, MIN((k + 1) * c.tokens, n_k));
            c.v[r * c.cols + k] =
                pairs == 0 ? NAN
                           : pool_cell(m, cols, r * factor, MIN((r + 1) * factor, rows), k * factor,
                                       MIN((k + 1) * factor, cols), pool, pairs);
        }
    *out = c;
    return 0;
}

/* Add the kept pairs of one row, of those in the part, to its row of cells. */
static void add_spans(const struct span *s, int64_t n, const struct cells *c, float *row)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = MAX(s[i].lo, c->k0) - c->k0, last = MIN(s[i].hi - c->k0, c->n_k);
             k < last;) {
            int64_t cell = k / c->tokens, end = MIN((cell + 1) * c->tokens, last);
            row[cell] += (float)(end - k);
            k = end;
        }
}

/* Kept pairs become shares. */
static void divide(const struct mask *m, struct cells *c)
{
    struct head_shape shape = {m->nq, m->nk, m->causal, m->reach};
    for (int64_t r = 0; r < c->rows; r++)
        for (int64_t k = 0; k < c->cols; k++) {
            int64_t top = c->q0 + r * c->tokens, left = c->k0 + k * c->tokens;
            int64_t pairs = pairs_within(&shape, top, MIN(top + c->tokens, c->q0 + c->n_q), left,
                                         MIN(left + c->tokens, c->k0 + c->n_k));
            float *v = &c->v[r * c->cols + k];
            *v = pairs ? *v / (float)pairs : NAN;
        }
}

int cells_from_mask(const struct mask *m, const struct cells_span *span, int64_t tokens,
                    struct cells *out, struct err *err)
{
    struct cells c = {0};
    struct cells_span all = {0, m->nq, 0, m->nk};
    struct span *spans = NULL;
    int rc = 0;
    TRY(cells_new(span ? span : &all, tokens, &c, err));
    TRY(mem_alloc(&spans, mask_max_spans(m), sizeof *spans, "spans of a row", err));
    for (int64_t i = 0; i < c.rows * c.cols; i++)
        c.v[i] = 0;
    for (int64_t i = MAX(m->row0, c.q0); i < MIN(m->row1, c.q0 + c.n_q); i++)
        add_spans(spans, mask_row_spans(m, i, spans), &c, c.v + (i - c.q0) / tokens * c.cols);
    divide(m, &c);
    *out = c;
out:
    free(spans);
    if (rc)
        cells_free(&c);
    return rc;
}

/* ---- maps of a trace ------------------------------------------------------------------------ */

int map_stored(const struct trace *t, int64_t call, int head, bool mean, int64_t most,
               struct cells *out, struct err *err)
{
    const struct trace_meta *m = trace_meta(t);
    int64_t rows, cols, n;
    OWN(free_at) float *map = NULL;
    if (m->pool <= 0 || !trace_call(t, call)->has_map)
        return err_set(
            err, ERR_INPUT,
            "%s: layer %d has no pooled maps: capture or import with --maps, or let them be "
            "computed (--map computed)",
            trace_path(t), trace_call(t, call)->layer);
    rows = trace_map_cells(t, false);
    cols = trace_map_cells(t, true);
    if (!mul_ok(rows, cols, &n))
        return err_set(err, ERR_INPUT, "%s: a map of %lld x %lld cells is too large", trace_path(t),
                       (long long)rows, (long long)cols);
    PASS_ON(mem_alloc(&map, n, sizeof *map, "pooled map", err));
    PASS_ON(trace_read_map(t, call, head, mean ? map : NULL, mean ? NULL : map, err));
    const struct trace_score *score = &trace_call(t, call)->score;
    struct head_shape shape = {m->n_q, m->n_k, trace_causal(m, score), score->reach};
    return cells_from_map(map, &shape, m->pool, cells_factor(rows, cols, most),
                          mean ? POOL_MEAN : POOL_MAX, out, err);
}

/* A block of rows of exact probabilities at a time, of which each cell keeps the largest or the
 * sum. Time O(rows n_k d), memory a few rows of n_k doubles. */

/* One head. */
struct head {
    struct attn_in in;
    struct attn_ops ops;
    float *q, *k, *rel;
};

static void head_free(struct head *h)
{
    attn_release(&h->ops);
    free(h->q);
    free(h->k);
    free(h->rel);
}

static int head_read(const struct trace *t, int64_t call, int head, struct head *h, struct err *err)
{
    const struct trace_meta *m = trace_meta(t);
    PASS_ON(trace_attn(t, call, head, &h->in, &h->rel, err));
    PASS_ON(mem_alloc(&h->q, h->in.nq * h->in.d, sizeof *h->q, "q", err));
    PASS_ON(mem_alloc(&h->k, h->in.nk * h->in.d, sizeof *h->k, "k", err));
    PASS_ON(trace_read(t, call, TRACE_Q, head, 0, h->in.nq, h->q, err));
    PASS_ON(trace_read(t, call, TRACE_K, head / (m->heads / m->kv_heads), 0, h->in.nk, h->k, err));
    h->in.q = h->q;
    h->in.k = h->k;
    return attn_prepare(&h->ops, &h->in, PREC_F32, err);
}

/* Add a row of probabilities to its row of cells. */
static void fold(const double *p, double share, const struct cells *c, bool mean, double *row)
{
    for (int64_t x = 0; x < c->cols; x++) {
        int64_t k = c->k0 + x * c->tokens, end = MIN(k + c->tokens, c->k0 + c->n_k);
        double v = row[x];
        for (; k < end; k++)
            v = mean ? v + p[k] * share : fmax(v, p[k] * share);
        row[x] = v;
    }
}

/* Queries [top, bottom) into one row of cells. */
static int fill_row(const struct head *h, int64_t top, int64_t bottom, int64_t block, bool mean,
                    const struct cells *c, double *p, double *lse, double *row, struct err *err)
{
    struct mask all;
    for (int64_t r = top; r < bottom; r += block) {
        int64_t end = MIN(r + block, bottom);
        attn_full_mask(&h->in, r, end, &all);
        PASS_ON(attn_rows(&h->ops, &all, NULL, lse, err));
        PASS_ON(attn_probs(&h->ops, r, end, lse, p, err));
        for (int64_t i = r; i < end; i++)
            fold(p + (i - r) * h->in.nk, attn_key_share(&h->in, lse[i - r]), c, mean, row);
    }
    return 0;
}

static int fill(const struct head *h, bool mean, struct cells *c, struct err *err)
{
    struct head_shape shape = attn_shape(&h->in);
    int64_t block = MAX(8, MIN(ATTN_ROWS, (4 << 20) / MAX(h->in.nk, 1)));
    OWN(free_at) double *p = NULL, *lse = NULL, *row = NULL;
    PASS_ON(mem_alloc(&p, block * h->in.nk, sizeof *p, "rows of probabilities", err));
    PASS_ON(mem_alloc(&lse, block, sizeof *lse, "rows of probabilities", err));
    PASS_ON(mem_alloc(&row, c->cols, sizeof *row, "cells of a map", err));
    for (int64_t y = 0; y < c->rows; y++) {
        int64_t top = c->q0 + y * c->tokens, bottom = MIN(top + c->tokens, c->q0 + c->n_q);
        for (int64_t x = 0; x < c->cols; x++)
            row[x] = 0;
        PASS_ON(fill_row(h, top, bottom, block, mean, c, p, lse, row, err));
        for (int64_t x = 0; x < c->cols; x++) {
            int64_t left = c->k0 + x * c->tokens, right = MIN(left + c->tokens, c->k0 + c->n_k);
            int64_t pairs = pairs_within(&shape, top, bottom, left, right);
            c->v[y * c->cols + x] =
                pairs == 0 ? NAN : (float)(mean ? row[x] / (double)pairs : row[x]);
        }
    }
    return 0;
}

int map_compute(const struct trace *t, int64_t call, int head, const struct cells_span *span,
                int64_t tokens, bool mean, struct cells *out, struct err *err)
{
    OWN(head_free) struct head h = {.q = NULL};
    OWN(cells_free) struct cells c = {0};
    struct row_sample sample;
    if (trace_rows(t, &sample))
        return err_set(err, ERR_INPUT, "%s holds a sample of query rows; maps are of all rows",
                       trace_path(t));
    PASS_ON(cells_new(span, tokens, &c, err));
    PASS_ON(head_read(t, call, head, &h, err));
    PASS_ON(fill(&h, mean, &c, err));
    *out = c;
    c.v = NULL;
    return 0;
}
