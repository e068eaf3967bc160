/*
 * rules.h - how a mask is to be chosen, resolved for one head: what a method's parameters,
 * calibration and step come to, in plain numbers. A device that chooses masks reads nothing else.
 */
#ifndef LACUNA_RULES_H
#define LACUNA_RULES_H

#include <stdbool.h>
#include <stdint.h>

/* FG-Attn (arXiv 2509.16518v1, sections 4.2-4.4): slices of M rows x 1 key. */
enum fg_choose { FG_CHOOSE_MAX, FG_CHOOSE_NORM, FG_CHOOSE_LITERAL, FG_CHOOSE_TOPK };
struct fg_rule {
    enum fg_choose by;
    bool dense_call; /* the call attends densely, so that its log-sum-exps are there already */
    int64_t M, width;
    double at; /* MAX: keep iff a slice's largest p > at; NORM: iff softmax of its mean query >= at;
                * LITERAL: iff scale k . qbar >= at */
    int64_t want;         /* TOPK: keys of a group */
    int64_t text0, text1; /* keys that every group keeps; as rows, they keep all keys */
};

/* SALE (arXiv:2505.24179, algorithm 1): blocks of 64 rows x 32 keys, 4-bit estimate. */
struct sale_rule {
    double tau, scale;
    int64_t local_blocks; /* always kept before the diagonal, at least */
    bool strict;          /* keep iff estimate > threshold, else >= */
    bool causal_stats;    /* causal mask inside the sink-local statistics */
};

union method_rule {
    struct fg_rule fg;
    struct sale_rule sale;
};

#endif
