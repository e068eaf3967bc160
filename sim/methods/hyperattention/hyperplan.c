/*
 * hyperplan.c - see hyperplan.h. HyperAttention, arXiv:2310.05869, algorithms 1 to 4, as the
 * published code has them. O(N projs D) for the hash, O(N log N) for the order, per level of the
 * recursion.
 */
#include "sim/methods/hyperattention/hyperplan.h"

#include "core/intmath.h"
#include "core/mem.h"
#include "sim/blocks/callrng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SALT_DIRECTIONS 0x687970657264ull /* keep its numbers apart from those of other methods */
#define SALT_SAMPLES 0x687970657273ull

uint32_t hyper_rank(uint32_t bin, bool inverse)
{
    if (!inverse)
        return bin ^ bin >> 1;
    for (uint32_t shift = 1; shift < 32; shift *= 2)
        bin ^= bin >> shift;
    return bin;
}

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

static int make_directions(struct hyper_plan *p, const struct head_in *in, uint64_t seed,
                           struct err *err)
{
    int64_t n = p->c.projs, d = in->x.d;
    uint64_t stream = call_stream(SALT_DIRECTIONS, in);
    int rc = mem_alloc(&p->dir, n * d, sizeof *p->dir, "directions", err);
    for (int64_t i = 0; i < n * d && !rc; i++)
        p->dir[i] = p->c.axes ? (double)(i % d == i / d) : rng_normal(seed, stream, (uint64_t)i);
    return rc;
}

static uint32_t rank_of(const struct hyper_plan *p, const float *x, int d)
{
    uint32_t bin = 0;
    for (int r = 0; r < p->c.projs; r++) {
        double sum = 0;
        for (int c = 0; c < d; c++)
            sum += p->dir[(int64_t)r * d + c] * (double)x[c];
        bin |= (uint32_t)(sum > 0) << r;
    }
    return hyper_rank(bin, p->c.inverse);
}

/* Rows [r0, r1) of x in the order of their ranks, stably: order [r1 - r0], absolute. */
static int sort_rows(const struct hyper_plan *p, const float *x, int64_t r0, int64_t r1, int d,
                     int32_t *order, struct err *err)
{
    int64_t bins = (int64_t)1 << p->c.projs, n = r1 - r0, *start = NULL;
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
static int draw(const struct hyper_plan *p, const struct head_in *in, struct hyper_square *s,
                int64_t index, const int32_t *order, uint64_t seed, struct err *err)
{
    int64_t m = p->c.samples, n = s->k1 - s->k0, kept = 0;
    uint64_t stream = head_stream(SALT_SAMPLES + (uint64_t)index, in, in->head);
    int rc = mem_alloc(&s->samples, m, sizeof *s->samples, "drawn keys", err);
    if (rc)
        return rc;
    for (int64_t i = 0; i < m; i++) {
        int64_t at = (int64_t)rng_below(seed, stream, (uint64_t)i, (uint64_t)n);
        s->samples[i] = (struct hyper_sample){order[at], (int32_t)(at / p->c.block), 1};
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

/* Queries that go to one block of keys. The published code demands that this divides evenly. */
static int64_t queries_per_block(const struct hyper_plan *p, const struct hyper_square *s)
{
    int64_t nq = s->q1 - s->q0;
    return nq == s->k1 - s->k0 ? p->c.block : ceil_div(nq, s->blocks);
}

static int hash_square(struct hyper_plan *p, const struct head_in *in, struct hyper_square *s,
                       int64_t index, uint64_t seed, struct err *err)
{
    int64_t nq = s->q1 - s->q0, nk = s->k1 - s->k0, b = p->c.block;
    int32_t *order = NULL;
    int rc = 0;

    s->blocks = ceil_div(nk, b);
    int64_t per = queries_per_block(p, s);
    TRY(mem_alloc(&s->block_of, nq, sizeof *s->block_of, "blocks of queries", err));
    TRY(mem_alloc(&s->keys, nk, sizeof *s->keys, "keys by block", err));
    TRY(mem_alloc(&order, nq, sizeof *order, "sorted queries", err));
    TRY(sort_rows(p, in->x.q, s->q0, s->q1, in->x.d, order, err));
    for (int64_t i = 0; i < nq; i++)
        s->block_of[order[i] - s->q0] = (int32_t)(i / per);
    TRY(sort_rows(p, in->x.k, s->k0, s->k1, in->x.d, s->keys, err));
    p->pairs_exec += (double)nq * (double)(b < nk ? b : nk);
    if (p->c.samples && nq > per && nk > b) {
        TRY(draw(p, in, s, index, s->keys, seed, err));
        p->pairs_exec += (double)nq * (double)p->c.samples;
    }
    s->pad = p->c.pad ? s->blocks * b - nk : 0;
    for (int64_t c = 0; c < s->blocks; c++)
        qsort(s->keys + c * b, (size_t)(c * b + b < nk ? b : nk - c * b), sizeof *s->keys,
              ascending);
out:
    free(order);
    return rc;
}

static int add_square(struct hyper_plan *p, const struct head_in *in, struct hyper_square s,
                      uint64_t seed, struct err *err)
{
    int64_t index = p->n;
    int rc = mem_grow(&p->squares, &p->cap, p->n + 1, sizeof *p->squares, "squares", err);
    if (rc)
        return rc;
    s.hashed = s.q1 - s.q0 >= p->c.min_len;
    p->squares[p->n++] = s;
    if (s.hashed)
        return hash_square(p, in, &p->squares[index], index, seed, err);
    p->pairs_exec += (double)(s.q1 - s.q0) * (double)(s.k1 - s.k0);
    return 0;
}

/* ---- a head --------------------------------------------------------------------------------- */

static bool is_leaf(const struct hyper_plan *p, int64_t n)
{
    return n <= p->c.min_len || n < 2;
}

/* Halves of the rows [lo, hi): the later attends to the earlier by a square. */
static int halve(struct hyper_plan *p, const struct head_in *in, int64_t lo, int64_t hi,
                 uint64_t seed, struct err *err)
{
    int64_t n = hi - lo, mid = lo + n / 2;
    int rc = 0;
    if (is_leaf(p, n)) {
        p->pairs_exec += (double)n * (double)(n + 1) / 2;
        return 0;
    }
    TRY(add_square(p, in, (struct hyper_square){mid, hi, lo, mid, .hashed = false}, seed, err));
    TRY(halve(p, in, lo, mid, seed, err));
    TRY(halve(p, in, mid, hi, seed, err));
out:
    return rc;
}

int hyper_plan_build(struct hyper_plan *p, const struct hyper_config *c, const struct head_in *in,
                     uint64_t seed, struct err *err)
{
    const struct attn_in *x = &in->x;
    struct hyper_square all = {0, x->nq, 0, x->nk, .hashed = false};
    int rc = 0;

    *p = (struct hyper_plan){.c = *c, .nq = x->nq, .nk = x->nk, .causal = x->causal};
    TRY(make_directions(p, in, seed, err));
    rc = x->causal ? halve(p, in, 0, x->nq, seed, err) : add_square(p, in, all, seed, err);
out:
    free(p->dir);
    p->dir = NULL;
    return rc;
}

void hyper_plan_free(struct hyper_plan *p)
{
    for (int64_t i = 0; i < p->n; i++) {
        free(p->squares[i].block_of);
        free(p->squares[i].keys);
        free(p->squares[i].samples);
    }
    free(p->squares);
    free(p->dir);
    memset(p, 0, sizeof *p);
}

/* ---- a row ---------------------------------------------------------------------------------- */

static struct hyper_part part_of(const struct hyper_square *s, int64_t i)
{
    return s->hashed ? (struct hyper_part){0, 0, s, s->block_of[i - s->q0]}
                     : (struct hyper_part){s->k0, s->k1, NULL, 0};
}

/* Squares of a subtree of n rows. */
static int64_t squares_in(const struct hyper_plan *p, int64_t n)
{
    return is_leaf(p, n) ? 0 : 1 + squares_in(p, n / 2) + squares_in(p, n - n / 2);
}

int hyper_parts(const struct hyper_plan *p, int64_t i, struct hyper_part parts[HYPER_PARTS])
{
    int64_t lo = 0, hi = p->nq, at = 0;
    int n = 0;
    if (!p->causal) {
        parts[0] = part_of(&p->squares[0], i);
        return 1;
    }
    while (!is_leaf(p, hi - lo)) {
        int64_t mid = lo + (hi - lo) / 2;
        if (i < mid) {
            hi = mid;
            at++;
        } else {
            parts[n++] = part_of(&p->squares[at], i);
            at += 1 + squares_in(p, mid - lo);
            lo = mid;
        }
    }
    parts[n++] = (struct hyper_part){lo, i + 1, NULL, 0};
    return n;
}

int64_t hyper_block(const struct hyper_plan *p, const struct hyper_square *s, int64_t block,
                    const int32_t **keys)
{
    int64_t b = p->c.block, n = s->k1 - s->k0, from = block * b;
    *keys = s->keys + from;
    return from + b < n ? b : n - from;
}
