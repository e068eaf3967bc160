/*
 * hashed.h - HyperAttention on the GPU (arXiv 2310.05869; the reference is
 * sim/methods/hyperattention): its choice, which is the orders of tokens by hash and the drawn
 * keys, and the kernels of its attention.
 */
#ifndef LACUNA_HASHED_H
#define LACUNA_HASHED_H

#include "cuda/linkage.h"

BEGIN_C

#include "core/ownrule.h"
#include "cuda/attn/plan.h"
#include "cuda/device.h"

#include <vector_types.h>

#define HASHED_LARGE 2048 /* more tokens of a square are sorted by a large thread block */

/* A square of core/ownrule.h; one that is not hashed has no queries and no keys. */
struct hashed_square {
    int32_t q0, nq, k0, nk; /* tokens */
    int32_t block, per;     /* keys of a block, queries that go to one */
    int32_t last, zeros;    /* the last block, and the zero keys that it has beside its own */
    float weight;           /* log2 of the weight of a drawn key */
    int64_t q_at, k_at;     /* where its tokens begin in the orders of a head */
    int64_t draw_at;        /* where its draws begin; -1: none */
    uint64_t stream;        /* of its draws, of the call */
};

/* Orders and draws, ready to be made any number of times. Device memory comes from the arena. */
struct hashed_choice {
    const void *q, *k; /* bf16 [heads][nq][d], [kv_heads][nk][d] */
    int heads, kv_heads, per_kv, d, causal;
    int64_t nq, nk;
    struct own_hashed rule;
    int n;                       /* squares */
    bool large, small;           /* some are sorted by large, by small thread blocks */
    int64_t drawers;             /* squares that draw */
    int64_t q_all, k_all, draws; /* of all squares of a head */

    const struct hashed_square *squares; /* [n], on the device as all below */
    const int32_t *node;                 /* causal: of struct own_squares */
    const int32_t *head;                 /* [heads] numbers in the call */
    const int32_t *drawer;               /* [drawers] squares */
    const double *dir;                   /* [projs][d] */
    const float *slack; /* [projs]: products in float are off by less than this times max |x| */
    uint16_t *q_rank, *k_rank;  /* [heads][nq], [kv_heads][nk] */
    int32_t *q_order, *k_order; /* [heads][q_all], [kv_heads][k_all]: tokens by rank */
    int32_t *q_spare, *k_spare; /* the same, where ranks are sorted in two passes */
    int2 *drawn;                /* [heads][draws] token, its place in the order of the square */
};

/* False with the reason where the choice of such a head takes too much memory. */
bool hashed_choice_fits(const struct own_hashed *r, int64_t nq, int64_t nk, bool causal,
                        char why[160]);

/* head [heads]: numbers in the call. Nothing of the arguments is kept. */
int hashed_choice_init(struct gpu *g, const struct attn_problem *p, const void *q, const void *k,
                       const struct own_hashed *rule, const int32_t *head,
                       const struct own_squares *at, struct hashed_choice *c, struct err *err);
int hashed_choice_launch(struct gpu *g, const struct hashed_choice *c, struct err *err);

/* ---- attention ------------------------------------------------------------------------------ */

#define HASHED_ROWS 128 /* sorted queries of a tile */
#define HASHED_KEYS 64  /* gathered keys of a step */

/* Squares: outputs and log-sum-exps of the queries of all squares, in the order of their tokens. */
struct hashed_attend {
    struct hashed_choice c;
    const void *v;
    const int2 *tiles; /* [n_tiles] square, first query */
    int n_tiles;
    float scale_log2;
    void *out;  /* bf16 [heads][q_all][d] */
    float *lse; /* [heads][q_all] */
};
int hashed_attend_launch(struct gpu *g, const struct hashed_attend *a, struct err *err);

/* The squares of a causal query into what it has of its exact range. */
struct hashed_merge {
    struct hashed_choice c;
    const void *part; /* of struct hashed_attend */
    const float *part_lse;
    void *out;  /* bf16 [heads][nq][d] */
    float *lse; /* [heads][nq] */
};
int hashed_merge_launch(struct gpu *g, const struct hashed_merge *a, struct err *err);

END_C

#endif
