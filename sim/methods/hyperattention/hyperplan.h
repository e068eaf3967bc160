/*
 * hyperplan.h - which keys a query of HyperAttention attends to, with which weight.
 *
 * A head is cut into squares (queries that attend to a range of keys, exactly or by hash) and
 * triangles (causal, exact). The key ranges that one query has in them are disjoint.
 */
#ifndef LACUNA_HYPERPLAN_H
#define LACUNA_HYPERPLAN_H

#include "core/err.h"
#include "core/method.h"

#include <stdbool.h>
#include <stdint.h>

struct hyper_config {
    int projs;                       /* bits of the hash */
    int64_t block, samples, min_len; /* keys of a block, drawn keys, shortest hashed square */
    bool inverse, exclude, pad,
        axes; /* order of bins; own block's samples; zero rows; directions */
};

/* A key that was drawn. */
struct hyper_sample {
    int32_t key, block, count; /* of the sorted keys; how often */
};

/* Queries [q0, q1) x keys [k0, k1). */
struct hyper_square {
    int64_t q0, q1, k0, k1;
    bool hashed;                  /* else all pairs; the members below are those of a hashed one */
    int64_t blocks;               /* of keys */
    int32_t *block_of;            /* [q1 - q0] block of each query, owned like the others */
    int32_t *keys;                /* [k1 - k0] by block, ascending in a block */
    struct hyper_sample *samples; /* ascending by key */
    int64_t n_samples;            /* different keys */
    int64_t pad;                  /* zero rows of the last block */
};

struct hyper_plan {
    struct hyper_config c;
    int64_t nq, nk;
    bool causal;
    struct hyper_square *squares; /* in preorder of the recursion */
    int64_t n, cap;
    double pairs_exec; /* pairs that the method multiplies */
    double *dir;       /* [projs][d], while the plan is built */
};

/* Rank of a bin: its Gray code (the published table), or the number whose Gray code it is. */
uint32_t hyper_rank(uint32_t bin, bool inverse);

/* Build the plan of a head. Release with hyper_plan_free, also after a failure. */
int hyper_plan_build(struct hyper_plan *p, const struct hyper_config *c, const struct head_in *in,
                     uint64_t seed, struct err *err);
void hyper_plan_free(struct hyper_plan *p);

/* What a query attends to. */
struct hyper_part {
    int64_t lo, hi;                    /* keys [lo, hi), all of them, or */
    const struct hyper_square *square; /* not NULL: block `block` of it and its samples */
    int64_t block;
};
#define HYPER_PARTS 64

/* Parts of query i in ascending order of keys; returns their number. */
int hyper_parts(const struct hyper_plan *p, int64_t i, struct hyper_part parts[HYPER_PARTS]);

/* Keys of a block: *keys [returned number]. */
int64_t hyper_block(const struct hyper_plan *p, const struct hyper_square *s, int64_t block,
                    const int32_t **keys);

/* Softmax over two disjoint sets of keys: share *t of the first one's output, and the
 * log-sum-exp of both. */
void hyper_merge(double lse1, double lse2, double *t, double *lse);

#endif
