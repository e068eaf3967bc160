/*
 * own.h - attention in a method's own arithmetic (core/ownrule.h) of all heads of a problem. The
 * references are the methods' `attend`.
 */
#pragma once

#include "cuda/linkage.h"

BEGIN_C

#include "core/ownrule.h"
#include "cuda/attn/attn.h"

#include <vector_types.h>

/* Ready to be launched any number of times. Device memory comes from the arena and lives until its
 * release. */
struct own_job {
    struct attn_problem problem;
    struct attn_tensors x;
    char name[64];
    int launches;            /* of attention kernels */
    int64_t *pairs;          /* [heads] that the kernels multiply, owned */
    double plan_ns, balance; /* wall time of planning on the host; as in struct attn_plan */
    bool has_quant;
    const struct own_kind *kind;
    void *state; /* of the kind, owned */
};

/* What a kind of arithmetic brings. `fits`: false with the reason for what it cannot do; NULL: it
 * can do everything. `init` takes rules [heads] and fills name, pairs, plan_ns, balance and state
 * of a job whose other members are set; the launches may be repeated. */
struct own_kind {
    bool (*fits)(const struct attn_problem *p, const struct own_rule *r, char why[160]);
    int (*init)(struct gpu *g, struct own_job *job, const struct own_rule *rules, struct err *err);
    int (*quant)(struct gpu *g, const struct own_job *job, struct err *err); /* NULL: nothing */
    int (*attend)(struct gpu *g, const struct own_job *job, struct err *err);
    void (*release)(void *state); /* accepts NULL */
};
extern const struct own_kind own_kind_dilated, own_kind_quantised, own_kind_hashed;

/* Are there kernels for such heads? If not, why. */
bool own_fits(int sm, const struct attn_problem *p, const struct own_rule *r, char why[160]);

/* rules [heads], valid until this returns; heads of one launch may differ in phases and numbers of
 * heads alone. */
int own_job_init(struct gpu *g, const struct attn_problem *p, const struct own_rule *rules,
                 const struct attn_tensors *x, struct own_job *job, struct err *err);
void own_job_free(struct own_job *job); /* also of a zeroed one */

/* Launches, of a struct own_job: operands from q, k, v; attention over them. */
int own_job_quant(struct gpu *g, const void *job, struct err *err);
int own_job_attend(struct gpu *g, const void *job, struct err *err);

/* ---- operands of 8 bits --------------------------------------------------------------------- */

/* INT8 q, k and e4m3 or float16 v of a problem (attn.h), to be made from its q, k, v any number of
 * times. Device memory comes from the arena and lives until its release. */
struct own_operands {
    struct attn_tensors x;
    struct attn8_scales scales;
    void *args; /* owned */
};

/* x: q, k, v in bf16; out and lse, which ops->x gets. */
int own_operands_init(struct gpu *g, const struct attn_problem *p, const struct own_quantised *rule,
                      const struct attn_tensors *x, struct own_operands *ops, struct err *err);
int own_operands_make(struct gpu *g, const void *ops, struct err *err); /* a launch */
void own_operands_free(struct own_operands *ops);                       /* also of zeroed ones */

/* ---- numbers added to outputs --------------------------------------------------------------- */

/* Numbers that a method adds to the outputs of attention, such as the difference that Chipmunk
 * stores (arXiv 2506.03275; the reference is `attend` of sim/methods/chipmunk/chipmunk.c). */

/* Ready to be launched after each attention. Device memory comes from the arena and lives until its
 * release. */
struct added_job {
    void *out;        /* bf16 [heads][n] */
    float *added;     /* [parts][n], as the outputs are divided */
    int64_t n;        /* numbers of a head, a multiple of 8 */
    int heads, parts; /* head h gets part h % parts */
};

/* Upload added [parts][n], of which part i is divided by 2^exp[i]; rounded once, when it has been
 * added in float. */
int added_init(struct gpu *g, const float *const *added, const int *exp, int parts, int64_t n,
               struct added_job *job, struct err *err);
int added_launch(struct gpu *g, const struct added_job *job, struct err *err);

/* ---- dilated segments ----------------------------------------------------------------------- */

/* The kernels around the dense attention of dilated segments (dilated.c). */

/* Rows of x [..][tokens][d] of bf16: row t of part i is token from[i].y + t step of head
 * from[i].x. out [parts][n][d]. */
struct dilated_gather {
    const void *x;
    void *out;
    const int2 *from;
    int64_t tokens, parts, n, step;
};
/* `count` of them, on the device, in one launch; most: rows of the largest. */
int dilated_gather_launch(struct gpu *g, const struct dilated_gather *all, int64_t count,
                          int64_t most, int d, struct err *err);

/* One branch as the merge sees it. Place t of a segment of a head has the row base[head * segments
 * + segment] + t of out and lse. */
struct dilated_branch {
    int64_t w, r, segments;
    const int *phase;    /* [heads] */
    const int64_t *base; /* [heads][segments] */
    const float *zeros;  /* [heads][segments]: ln of the number of zero keys, -inf: none; NULL */
    const void *out;     /* bf16 [rows][d] */
    const float *lse;    /* [rows] */
};
struct dilated_merge {
    struct dilated_branch b[OWN_BRANCHES];
    int n, heads, d;
    int64_t nq, shift; /* row i is at position i + shift */
    void *out;         /* bf16 [heads][nq][d] */
    float *lse;        /* [heads][nq] */
};
int dilated_merge_launch(struct gpu *g, const struct dilated_merge *a, struct err *err);

/* ---- HyperAttention ------------------------------------------------------------------------- */

/* HyperAttention on the GPU (arXiv 2310.05869; the reference is sim/methods/hyperattention): its
 * choice, which is the orders of tokens by hash and the drawn keys, and the kernels of its
 * attention. */

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
