/*
 * exact.c - see exact.h. Dense rows: O(rows nk (d + dv)), memory nq (dv + 1) doubles once asked
 * for.
 */
#include "sim/blocks/exact.h"

#include "core/clock.h"
#include "core/intmath.h"
#include "core/mem.h"
#include "core/method.h"

#include <stdlib.h>
#include <string.h>

enum { EXACT_LSE = 1, EXACT_OUT = 2 };

/* attn_rows takes a full mask in blocks of that many rows from its first row on: blocks that start
 * at multiples of it have the same bits whether they are computed one by one or all together. */
#define DENSE_BLOCK ATTN_ROWS

void exact_init(struct exact *e, const struct attn_in *x, enum precision prec)
{
    *e = (struct exact){.x = *x, .prec = prec, .block = DENSE_BLOCK};
}

void exact_sampled(struct exact *e, const struct row_sample *rows)
{
    e->rows = rows;
    e->block = gcd(DENSE_BLOCK, rows->group); /* no block has rows outside of the sample */
}

void exact_free(struct exact *e)
{
    attn_release(&e->ops);
    free(e->lse);
    free(e->out);
    free(e->done);
    memset(e, 0, sizeof *e);
}

void exact_expect_out(struct exact *e)
{
    e->with_out = true;
}

void exact_dense_from(struct exact *e, exact_dense_fn *fn, void *self)
{
    e->dense = fn;
    e->dense_self = self;
}

void exact_below_from(struct exact *e, exact_below_fn *fn, void *self)
{
    e->below = fn;
    e->below_self = self;
}

void exact_masked_from(struct exact *e, exact_masked_fn *fn, void *self)
{
    e->masked = fn;
    e->masked_self = self;
}

int exact_operands(struct exact *e, const struct attn_ops **ops, struct err *err)
{
    double t = clock_ns();
    int rc = 0;
    if (!e->prepared)
        TRY(attn_prepare(&e->ops, &e->x, e->prec, err));
    e->prepared = true;
    e->ns += clock_ns() - t;
    *ops = &e->ops;
out:
    return rc;
}

/* ---- dense rows ----------------------------------------------------------------------------- */

static int rows_on_cpu(struct exact *e, int64_t row0, int64_t row1, bool out, struct err *err)
{
    const struct attn_ops *ops;
    struct mask full;
    int rc = exact_operands(e, &ops, err);
    if (rc)
        return rc;
    attn_full_mask(&e->x, row0, row1, &full);
    return attn_rows(ops, &full, out ? e->out + row0 * e->x.dv : NULL, e->lse + row0, err);
}

/* The blocks [b0, b1), of which none is there. */
static int blocks_run(struct exact *e, int64_t b0, int64_t b1, bool out, struct err *err)
{
    int64_t row0 = b0 * e->block, row1 = b1 * e->block < e->x.nq ? b1 * e->block : e->x.nq;
    int rc = e->dense ? e->dense(e->dense_self, row0, row1, out ? e->out : NULL, e->lse, err)
                      : rows_on_cpu(e, row0, row1, out, err);
    if (!rc)
        memset(e->done + b0, out ? EXACT_LSE | EXACT_OUT : EXACT_LSE, (size_t)(b1 - b0));
    return rc;
}

static int make_room(struct exact *e, bool out, struct err *err)
{
    const struct attn_in *x = &e->x;
    int rc = 0;
    if (!e->done)
        TRY(mem_zalloc(&e->done, ceil_div(x->nq, e->block), 1, "dense rows", err));
    if (!e->lse)
        TRY(mem_alloc(&e->lse, x->nq, sizeof *e->lse, "dense log-sum-exp", err));
    if (out && !e->out)
        TRY(mem_alloc(&e->out, x->nq * x->dv, sizeof *e->out, "dense output", err));
out:
    return rc;
}

/* Compute what the rows [row0, row1) lack, stretches of blocks at a time. */
static int ensure(struct exact *e, int64_t row0, int64_t row1, bool out, struct err *err)
{
    unsigned char want = out ? EXACT_OUT : EXACT_LSE;
    int64_t b = row0 / e->block, end = ceil_div(row1, e->block), b1;
    int rc = 0;

    out |= e->with_out;
    TRY(make_room(e, out, err));
    for (; b < end; b = b1) {
        b1 = b + 1;
        if (e->done[b] & want)
            continue;
        while (b1 < end && !(e->done[b1] & want))
            b1++;
        TRY(blocks_run(e, b, b1, out, err));
    }
out:
    return rc;
}

static int ensure_timed(struct exact *e, int64_t row0, int64_t row1, bool out, struct err *err)
{
    double before = e->ns, t = clock_ns();
    int rc = ensure(e, row0, row1, out, err);
    e->ns = before + clock_ns() - t; /* operands that it made are in that time */
    return rc;
}

int exact_lse(struct exact *e, int64_t row0, int64_t row1, const double **lse, struct err *err)
{
    int rc = ensure_timed(e, row0, row1, false, err);
    if (!rc)
        *lse = e->lse + row0;
    return rc;
}

int exact_out(struct exact *e, int64_t row0, int64_t row1, const double **out, struct err *err)
{
    int rc = ensure_timed(e, row0, row1, true, err);
    if (!rc)
        *out = e->out + row0 * e->x.dv;
    return rc;
}

/* ---- the rest of the map -------------------------------------------------------------------- */

int exact_probs(struct exact *e, int64_t row0, int64_t row1, double *p, struct err *err)
{
    const struct attn_ops *ops;
    const double *lse;
    int rc = 0;
    TRY(exact_lse(e, row0, row1, &lse, err));
    TRY(exact_operands(e, &ops, err));
    TRY(attn_probs(ops, row0, row1, lse, p, err));
out:
    return rc;
}

int exact_scores(struct exact *e, int64_t row0, int64_t row1, int64_t k0, int64_t k1, double *s,
                 struct err *err)
{
    const struct attn_ops *ops;
    int rc = exact_operands(e, &ops, err);
    return rc ? rc : attn_scores(ops, row0, row1, k0, k1, s, err);
}

int exact_attend(struct exact *e, const struct mask *m, double *out, double *lse, struct err *err)
{
    const struct attn_ops *ops;
    int rc = exact_operands(e, &ops, err);
    return rc ? rc : attn_rows(ops, m, out, lse, err);
}

int exact_attend_all(struct exact *e, const struct mask *m, double *out, double *lse,
                     struct err *err)
{
    int rc = e->masked ? e->masked(e->masked_self, m, out, lse, err) : METHOD_SKIP;
    return rc == METHOD_SKIP ? exact_attend(e, m, out, lse, err) : rc;
}
