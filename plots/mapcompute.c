/*
 * mapcompute.c - attention maps in the cells of a picture, out of q and k: a block of rows of exact
 * probabilities at a time, of which each cell keeps the largest or the sum. Time O(rows n_k d),
 * memory a few rows of n_k doubles.
 */
#include "plots/mapfig.h"

#include "core/attention.h"
#include "core/intmath.h"
#include "core/mem.h"
#include "core/trace.h"

#include <math.h>
#include <stdlib.h>

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

static int head_read(const struct trace *t, const struct map_panel *p, struct head *h,
                     struct err *err)
{
    const struct trace_meta *m = trace_meta(t);
    int rc = 0;
    TRY(trace_attn(t, p->call, p->stored, &h->in, &h->rel, err));
    TRY(mem_alloc(&h->q, h->in.nq * h->in.d, sizeof *h->q, "q", err));
    TRY(mem_alloc(&h->k, h->in.nk * h->in.d, sizeof *h->k, "k", err));
    TRY(trace_read(t, p->call, TRACE_Q, p->stored, 0, h->in.nq, h->q, err));
    TRY(trace_read(t, p->call, TRACE_K, p->stored / (m->heads / m->kv_heads), 0, h->in.nk, h->k,
                   err));
    h->in.q = h->q;
    h->in.k = h->k;
    TRY(attn_prepare(&h->ops, &h->in, PREC_F32, err));
out:
    return rc;
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
    int rc = 0;
    for (int64_t r = top; r < bottom; r += block) {
        int64_t end = MIN(r + block, bottom);
        attn_full_mask(&h->in, r, end, &all);
        TRY(attn_rows(&h->ops, &all, NULL, lse, err));
        TRY(attn_probs(&h->ops, r, end, lse, p, err));
        for (int64_t i = r; i < end; i++)
            fold(p + (i - r) * h->in.nk, attn_key_share(&h->in, lse[i - r]), c, mean, row);
    }
out:
    return rc;
}

static int fill(const struct head *h, bool mean, struct cells *c, struct err *err)
{
    struct head_shape shape = attn_shape(&h->in);
    int64_t block = MAX(8, MIN(ATTN_ROWS, (4 << 20) / MAX(h->in.nk, 1)));
    double *p = NULL, *lse = NULL, *row = NULL;
    int rc = 0;

    TRY(mem_alloc(&p, block * h->in.nk, sizeof *p, "rows of probabilities", err));
    TRY(mem_alloc(&lse, block, sizeof *lse, "rows of probabilities", err));
    TRY(mem_alloc(&row, c->cols, sizeof *row, "cells of a map", err));
    for (int64_t y = 0; y < c->rows; y++) {
        int64_t top = c->q0 + y * c->tokens, bottom = MIN(top + c->tokens, c->q0 + c->n_q);
        for (int64_t x = 0; x < c->cols; x++)
            row[x] = 0;
        TRY(fill_row(h, top, bottom, block, mean, c, p, lse, row, err));
        for (int64_t x = 0; x < c->cols; x++) {
            int64_t left = c->k0 + x * c->tokens, right = MIN(left + c->tokens, c->k0 + c->n_k);
            int64_t pairs = pairs_within(&shape, top, bottom, left, right);
            c->v[y * c->cols + x] =
                pairs == 0 ? NAN : (float)(mean ? row[x] / (double)pairs : row[x]);
        }
    }
out:
    free(p);
    free(lse);
    free(row);
    return rc;
}

int map_compute(const struct trace *t, const struct map_panel *p, const struct cells_span *span,
                int64_t tokens, bool mean, struct cells *out, struct err *err)
{
    struct head h = {.q = NULL};
    struct cells c = {0};
    struct row_sample sample;
    int rc = 0;

    if (trace_rows(t, &sample))
        FAIL(err, ERR_INPUT, "%s holds a sample of query rows; maps are of all rows",
             trace_path(t));
    TRY(cells_new(span, tokens, &c, err));
    TRY(head_read(t, p, &h, err));
    TRY(fill(&h, mean, &c, err));
    *out = c;
    c.v = NULL;
out:
    head_free(&h);
    cells_free(&c);
    return rc;
}
