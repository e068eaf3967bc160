/*
 * hyperplan.h - which keys a query of HyperAttention attends to, with which weight.
 *
 * A head is cut into squares and exact ranges (core/ownrule.h). The key ranges that one query has
 * in them are disjoint.
 */
#pragma once

#include "core/err.h"
#include "core/method.h"
#include "core/ownrule.h"

#include <stdint.h>

/* A key that was drawn. */
struct hyper_sample {
    int32_t key, block, count; /* of the sorted keys; how often */
};

/* A hashed square's tokens; of others all is zero. Arrays are owned. */
struct hyper_square {
    int32_t *block_of;            /* [queries] block of each query */
    int32_t *keys;                /* [keys] by block, ascending in a block */
    struct hyper_sample *samples; /* ascending by key */
    int64_t n_samples;            /* different keys */
};

struct hyper_plan {
    struct own_hashed rule;
    int64_t nk;
    struct own_squares at;
    struct hyper_square *squares; /* [at.n], owned; NULL: nothing is hashed yet */
    double *dir;                  /* [projs][d], while tokens are hashed */
};

/* The squares of a head of that shape, O(squares). Release with hyper_plan_free, also after a
 * failure. */
int hyper_plan_cut(struct hyper_plan *p, const struct own_hashed *rule, const struct attn_in *x,
                   struct err *err);

/* Hash, sort and draw. */
int hyper_plan_hash(struct hyper_plan *p, const struct attn_in *x, struct err *err);
void hyper_plan_free(struct hyper_plan *p);

/* What a query attends to. */
struct hyper_part {
    int64_t lo, hi; /* keys [lo, hi), all of them, or */
    int64_t square; /* not -1: block `block` of it and its samples */
    int64_t block;
};
#define HYPER_PARTS 64

/* Parts of query i in ascending order of keys; returns their number. */
int hyper_parts(const struct hyper_plan *p, int64_t i, struct hyper_part parts[HYPER_PARTS]);

/* Keys of a block: *keys [returned number]. */
int64_t hyper_block(const struct hyper_plan *p, int64_t square, int64_t block,
                    const int32_t **keys);

/* Softmax over two disjoint sets of keys: share *t of the first one's output, and the
 * log-sum-exp of both. */
void hyper_merge(double lse1, double lse2, double *t, double *lse);
