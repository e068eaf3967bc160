/*
 * squares.h - how HyperAttention (arXiv 2310.05869, algorithm 4) cuts a head: squares of queries
 * that attend to a range of keys, by hash or exactly, and ranges that are exact and causal.
 *
 * A causal head is halved as long as it has more than min_len rows; the later half attends to the
 * earlier one as a square. A bidirectional head is one square. A square with fewer than min_len
 * queries is exact.
 */
#ifndef LACUNA_SQUARES_H
#define LACUNA_SQUARES_H

#include "core/err.h"
#include "core/ownrule.h"
#include "core/rng.h"

#include <stdbool.h>
#include <stdint.h>

/* Queries [q0, q1) x keys [k0, k1). */
struct own_square {
    int64_t q0, q1, k0, k1;
    bool hashed;         /* else all pairs, and nothing below is set */
    bool draws;          /* keys are drawn for its queries */
    int64_t blocks, per; /* blocks of keys; queries that go to one */
    int64_t zeros;       /* zero rows that fill the last block and count as keys */
};

struct own_range {
    int64_t lo, hi;
};

struct own_squares {
    bool causal;
    int64_t nq;
    struct own_square *square; /* [n], in preorder of the recursion; owned, as all arrays */
    int64_t n, cap, n_hashed;
    struct own_range *exact; /* [n_exact], causal: query i of one attends exactly to keys [lo, i] */
    int64_t n_exact, cap_exact;
    int32_t *node; /* [n_nodes], causal: the hashed square of node i, or -1: its rows are a range of
                    * `exact`. Node 1 is the head, nodes 2i and 2i + 1 are the halves of node i; 0
                    * is none */
    int64_t n_nodes;
    double pairs; /* that the method multiplies */
};

/* Is any pair of such a head hashed? O(1). */
bool own_squares_any(const struct own_hashed *r, int64_t nq, bool causal);

/* O(squares). Release with own_squares_free, also after a failure. */
int own_squares_make(const struct own_hashed *r, int64_t nq, int64_t nk, bool causal,
                     struct own_squares *s, struct err *err);
void own_squares_free(struct own_squares *s); /* also of a zeroed one; leaves it zeroed */

/* Streams of the random numbers (core/rng.h), both of the call: number r d + c is channel c of
 * direction r; number i, of the head's own stream, is the i-th draw of square `index`. */
static inline uint64_t own_direction_stream(const struct own_hashed *r)
{
    return rng_call_stream(0x687970657264ull, r->layer, r->step, r->branch);
}
static inline uint64_t own_draw_stream(const struct own_hashed *r, int64_t index)
{
    return rng_call_stream(0x687970657273ull + (uint64_t)index, r->layer, r->step, r->branch);
}

#ifdef __CUDACC__ /* kernels do the same */
#define SQUARES_FN static inline __host__ __device__
#else
#define SQUARES_FN static inline
#endif

/* Rank of a bin: its Gray code (the published table), or the number whose Gray code it is. */
SQUARES_FN uint32_t own_hash_rank(uint32_t bin, bool inverse)
{
    if (!inverse)
        return bin ^ bin >> 1;
    for (uint32_t shift = 1; shift < 32; shift *= 2)
        bin ^= bin >> shift;
    return bin;
}

/* Down the tree of a causal head to query i: own_walk_next gives the hashed squares that the query
 * is part of, by ascending keys, then -1, when [lo, hi) is the range of `exact` that has it. */
struct own_walk {
    int64_t lo, hi;
    int64_t node;
};

SQUARES_FN int32_t own_walk_next(const int32_t *node, int64_t i, struct own_walk *w)
{
    int32_t at;
    while ((at = node[w->node]) >= 0) {
        int64_t mid = w->lo + (w->hi - w->lo) / 2;
        w->node = 2 * w->node + (i >= mid);
        if (i >= mid) {
            w->lo = mid;
            return at;
        }
        w->hi = mid;
    }
    return -1;
}

#endif
