/*
 * ownrule.h - a method's own arithmetic, resolved for one head into plain numbers, for a device
 * that has kernels for it (core/accel.h). The method's `attend` is the reference.
 */
#pragma once

#include "core/dtype.h"
#include "core/err.h"
#include "core/rng.h"

#include <stdbool.h>
#include <stdint.h>

#define OWN_BRANCHES 32

/* LongNet (arXiv 2307.02486): branch b attends densely, in segments of w tokens, among the
 * positions p with p mod w mod r = phase. The branches' outputs are mixed by softmax of their
 * log-sum-exps. */
struct own_branch {
    int64_t w, r, phase;
};
struct own_dilated {
    int n;
    bool padded; /* zero keys that make a segment w tokens long, and that a multiple of r, take part
                  * (not when causal) */
    struct own_branch b[OWN_BRANCHES];
};

/* SageAttention (arXiv 2410.02367, 2411.10958, 2505.21136): integer Q K^T, scales by group of
 * tokens, P V in fp16 or e4m3. Rounding and groups are explained in sim/blocks/quant.h. */
enum own_round { OWN_RHA_EPS, OWN_RHA, OWN_RNE };
enum own_gran { OWN_BY_TENSOR, OWN_BY_BLOCK, OWN_BY_WARP, OWN_BY_THREAD, OWN_BY_TOKEN };
/* Sum of one tile of P V, before it is added to the output in float. */
enum own_sum {
    OWN_SUM_F32,  /* float over the whole tile */
    OWN_SUM_FP22, /* low 10 mantissa bits cut after every MMA step */
    OWN_SUM_F16,  /* rounded to fp16 after every MMA step, a fresh chain every 64 keys */
};
struct own_quantised {
    int bq, bk, warp; /* rows and keys of a tile, rows of a warp's part of it */
    int levels;       /* largest integer: 127 or 7 */
    enum own_gran gran;
    enum own_round round;
    bool fold_scale;      /* the integers of q hold the softmax scale */
    bool smooth_k;        /* keys less their token mean */
    bool smooth_v;        /* values less their token mean, which the output gets back */
    enum dtype inputs_as; /* type to which q and k are rounded first; with fp16 nothing overflows:
                           * what is beyond its range becomes its largest number */
    enum dtype mean_as;   /* type to which the token mean of k is rounded */
    enum dtype keys_as;   /* type to which k less its mean is rounded */
    enum dtype values_as; /* type to which v is rounded first */
    bool e4m3;            /* p and v in e4m3, v with a scale per channel; else in fp16 */
    float offset, factor; /* p = 2^(s - m + offset) factor */
    float v_top;          /* largest |v| in e4m3 */
    enum own_sum sum;     /* of one tile of P V */
};

/* HyperAttention (arXiv 2310.05869): queries and keys sorted by a hash, exact attention of a block
 * of queries to the block of keys at its place, and drawn keys with weights for all others.
 * How a head is cut stands below. Random numbers are those of seed, call and head. */
struct own_hashed {
    int64_t block, samples, min_len; /* keys of a block, drawn keys, shortest hashed square */
    uint64_t seed;
    int32_t projs; /* bits of the hash */
    int32_t layer, step, head;
    bool inverse; /* order of the bins: the inverse Gray map, else the Gray code */
    bool exclude; /* drawn keys of the own block do not count */
    bool padded;  /* the zero rows that fill the last block are keys of score and value 0 */
    bool axes;    /* directions are unit vectors, else rng_normal */
    char branch[20];
};

struct own_rule {
    enum { OWN_DILATED, OWN_QUANTISED, OWN_HASHED } kind;
    union {
        struct own_dilated dilated;
        struct own_quantised quantised;
        struct own_hashed hashed;
    } of;
};

/* ---- squares (squares.c) ----------------------------------------------------------------------
 *
 * How HyperAttention (arXiv 2310.05869, algorithm 4) cuts a head: squares of queries that attend to
 * a range of keys, by hash or exactly, and ranges that are exact and causal. A causal head is
 * halved as long as it has more than min_len rows; the later half attends to the earlier one as a
 * square. A bidirectional head is one square. A square with fewer than min_len queries is exact. */

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
