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

struct own_rule {
    enum { OWN_DILATED, OWN_QUANTISED } kind;
    union {
        struct own_dilated dilated;
        struct own_quantised quantised;
    } of;
};

#endif
