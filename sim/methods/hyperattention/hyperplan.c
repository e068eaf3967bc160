/*
 * hyperplan.c - see hyperplan.h. HyperAttention, arXiv:2310.05869, algorithms 1 to 4, as the
 * published code has them. O(N projs D) for the hash, O(N log N) for the order, per level of the
 * recursion.
 */
#include "sim/methods/hyperattention/hyperplan.h"

#include "core/intmath.h"
#include "core/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void hyper_merge(double lse1, double lse2, double *t, double *lse)
{
    double top = fmax(lse1, lse2);
    if (top == -INFINITY) {
        *t = 1;
        *lse = -INFINITY;
        return;
    }
    double a = exp(lse1 - top), b = exp(lse2 - top);
    *t = a / (a + b);
    *lse = top + log(a + b);
}

/* ---- the hash ------------------------------------------------------------------------------- */

static int make_directions(struct hyper_plan *p, int d, struct err *err)
{
    const struct own_hashed *r = &p->rule;
    int64_t n = r->projs;
    uint64_t stream = own_direction_stream(r);
    int rc = mem_alloc(&p->dir, n * d, sizeof *p->dir, "directions", err);
    for (int64_t i = 0; i < n * d && !rc; i++)
        p->dir[i] = r->axes ? (double)(i % d == i / d) : rng_normal(r->seed, stream, (uint64_t)i);
    return rc;
}

static uint32_t rank_of(const struct hyper_plan *p, const float *x, int d)
{
    uint32_t bin = 0;
    for (int r = 0; r < p->rule.projs; r++) {
        double sum = 0;
        for (int c = 0; c < d; c++)
            sum += p->dir[(int64_t)r * d + c] * (double)x[c];
        bin |= (uint32_t)(sum > 0) << r;
    }
    return own_hash_rank(bin, p->rule.inverse);
}

/* Rows [r0, r1) of x in the order of their ranks, stably: order [r1 - r0], absolute. */
static int sort_rows(const struct hyper_plan *p, const float *x, int64_t r0, int64_t r1, int d,
                     int32_t *order, struct err *err)
{
    int64_t bins = (int64_t)1 << p->rule.projs, n = r1 - r0, *start = NULL;
    uint32_t *rank = NULL;
    int rc = 0;

    TRY(mem_alloc(&rank, n, sizeof *rank, "ranks", err));
    TRY(mem_zalloc(&start, bins + 1, sizeof *start, "bins", err));
    for (int64_t i = 0; i < n; i++) {
        rank[i] = rank_of(p, x + (r0 + i) * d, d);
        start[rank[i] + 1]++;
    }
    for (int64_t b = 0; b < bins; b++)
        start[b + 1] += start[b];
    for (int64_t i = 0; i < n; i++)
        order[start[rank[i]]++] = (int32_t)(r0 + i);
out:
    free(rank);
    free(start);
    return rc;
}

/* ---- a square ------------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static int by_key(const void *a, const void *b)
{
    return ascending(&((const struct hyper_sample *)a)->key,
                     &((const struct hyper_sample *)b)->key);
}

/* Keys drawn from the sorted order with replacement, equal ones together. */
static int draw(const struct hyper_plan *p, int64_t square, struct err *err)
{
    const struct own_square *at = p->at.square + square;
    struct hyper_square *s = p->squares + square;
    int64_t m = p->rule.samples, n = at->k1 - at->k0, kept = 0;
    uint64_t stream = rng_head_stream(own_draw_stream(&p->rule, square), p->rule.head);
    int rc = mem_alloc(&s->samples, m, sizeof *s->samples, "drawn keys", err);
    if (rc)
        return rc;
    for (int64_t i = 0; i < m; i++) {
        int64_t to = (int64_t)rng_below(p->rule.seed, stream, (uint64_t)i, (uint64_t)n);
        s->samples[i] = (struct hyper_sample){s->keys[to], (int32_t)(to / p->rule.block), 1};
    }
    qsort(s->samples, (size_t)m, sizeof *s->samples, by_key);
    for (int64_t i = 0; i < m; i++)
        if (kept && s->samples[kept - 1].key == s->samples[i].key)
            s->samples[kept - 1].count++;
        else
            s->samples[kept++] = s->samples[i];
    s->n_samples = kept;
    return 0;
}

static int hash_square(const struct hyper_plan *p, const struct attn_in *x, int64_t square,
                       struct err *err)
{
    const struct own_square *at = p->at.square + square;
    struct hyper_square *s = p->squares + square;
    int64_t nq = at->q1 - at->q0, nk = at->k1 - at->k0, b = p->rule.block;
    int32_t *order = NULL;
    int rc = 0;

    TRY(mem_alloc(&s->block_of, nq, sizeof *s->block_of, "blocks of queries", err));
    TRY(mem_alloc(&s->keys, nk, sizeof *s->keys, "keys by block", err));
    TRY(mem_alloc(&order, nq, sizeof *order, "sorted queries", err));
    TRY(sort_rows(p, x->q, at->q0, at->q1, x->d, order, err));
    for (int64_t i = 0; i < nq; i++)
        s->block_of[order[i] - at->q0] = (int32_t)(i / at->per);
    TRY(sort_rows(p, x->k, at->k0, at->k1, x->d, s->keys, err));
    if (at->draws)
        TRY(draw(p, square, err));
    for (int64_t c = 0; c < at->blocks; c++)
        qsort(s->keys + c * b, (size_t)MIN(b, nk - c * b), sizeof *s->keys, ascending);
out:
    free(order);
    return rc;
}

/* ---- a head --------------------------------------------------------------------------------- */

int hyper_plan_cut(struct hyper_plan *p, const struct own_hashed *rule, const struct attn_in *x,
                   struct err *err)
{
    *p = (struct hyper_plan){.rule = *rule, .nk = x->nk};
    return own_squares_make(rule, x->nq, x->nk, x->causal, &p->at, err);
}

int hyper_plan_hash(struct hyper_plan *p, const struct attn_in *x, struct err *err)
{
    int rc = 0;
    TRY(mem_zalloc(&p->squares, p->at.n + 1, sizeof *p->squares, "squares", err));
    TRY(make_directions(p, x->d, err));
    for (int64_t k = 0; k < p->at.n; k++)
        if (p->at.square[k].hashed)
            TRY(hash_square(p, x, k, err));
out:
    free(p->dir);
    p->dir = NULL;
    return rc;
}

void hyper_plan_free(struct hyper_plan *p)
{
    for (int64_t i = 0; p->squares && i < p->at.n; i++) {
        free(p->squares[i].block_of);
        free(p->squares[i].keys);
        free(p->squares[i].samples);
    }
    free(p->squares);
    free(p->dir);
    own_squares_free(&p->at);
    memset(p, 0, sizeof *p);
}

/* ---- a row ---------------------------------------------------------------------------------- */

static struct hyper_part hashed_part(const struct hyper_plan *p, int64_t square, int64_t i)
{
    int64_t block = p->squares[square].block_of[i - p->at.square[square].q0];
    return (struct hyper_part){0, 0, square, block};
}

int hyper_parts(const struct hyper_plan *p, int64_t i, struct hyper_part parts[HYPER_PARTS])
{
    struct own_walk w = {0, p->at.nq, 1};
    int n = 0;
    if (!p->at.causal) {
        parts[0] = p->at.n_hashed ? hashed_part(p, 0, i) : (struct hyper_part){0, p->nk, -1, 0};
        return 1;
    }
    for (int32_t s; (s = own_walk_next(p->at.node, i, &w)) >= 0;)
        parts[n++] = hashed_part(p, s, i);
    parts[n++] = (struct hyper_part){w.lo, i + 1, -1, 0};
    return n;
}

int64_t hyper_block(const struct hyper_plan *p, int64_t square, int64_t block, const int32_t **keys)
{
    const struct own_square *at = p->at.square + square;
    int64_t b = p->rule.block, n = at->k1 - at->k0, from = block * b;
    *keys = p->squares[square].keys + from;
    return MIN(b, n - from);
}
