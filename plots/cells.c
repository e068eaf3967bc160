/*
 * cells.c - pooling. gnuplot samples images at points: 4096 columns drawn into 1024 pixels lose
 * three of four one-column lines. Pooling happens here instead, by maximum for weights, so that one
 * cell is at least one pixel. O(cells) for maps, O(spans) for masks.
 */
#include "plots/cells.h"

#include "core/intmath.h"
#include "core/mem.h"

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

int cells_new(const struct cells_span *span, int64_t tokens, struct cells *c, struct err *err)
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
    int rc = cells_new(&(struct cells_span){0, n_q, 0, n_k}, tokens * factor, &c, err);
    if (rc)
        return rc;
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
