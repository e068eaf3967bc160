/*
 * ownrule.h - a method's own arithmetic, resolved for one head into plain numbers, for a device
 * that has kernels for it (core/accel.h). The method's `attend` is the reference.
 */
#ifndef LACUNA_OWNRULE_H
#define LACUNA_OWNRULE_H

#include "core/dtype.h"

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
 * tokens, P V in fp16 or e4m3. The words of the three enums are explained in sim/blocks/quant.h and
 * sim/blocks/tileattn.h. */
enum own_round { OWN_RHA_EPS, OWN_RHA, OWN_RNE };
enum own_gran { OWN_BY_TENSOR, OWN_BY_BLOCK, OWN_BY_WARP, OWN_BY_THREAD, OWN_BY_TOKEN };
enum own_sum { OWN_SUM_F32, OWN_SUM_FP22, OWN_SUM_F16 };
struct own_quantised {
    int bq, bk, warp; /* rows and keys of a tile, rows of a warp's part of it */
    int levels;       /* largest integer: 127 or 7 */
    enum own_gran gran;
    enum own_round round;
    bool fold_scale;      /* the integers of q hold the softmax scale */
    bool smooth_k;        /* keys less their token mean */
    bool smooth_v;        /* values less their token mean, which the output gets back */
    enum dtype mean_as;   /* type to which the token mean of k is rounded */
    enum dtype keys_as;   /* type to which k less its mean is rounded */
    bool e4m3;            /* p and v in e4m3, v with a scale per channel; else in fp16 */
    float offset, factor; /* p = 2^(s - m + offset) factor */
    float v_top;          /* largest |v| in e4m3 */
    enum own_sum sum;     /* of one tile of P V */
};

/* HyperAttention (arXiv 2310.05869): queries and keys sorted by a hash, exact attention of a block
 * of queries to the block of keys at its place, and drawn keys with weights for all others.
 * core/squares.h says how a head is cut. Random numbers are those of seed, call and head. */
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

#endif
