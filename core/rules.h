/*
 * rules.h - how a mask is to be chosen, resolved for one head: what a method's parameters,
 * calibration and step come to, in plain numbers. A device that chooses masks reads nothing else.
 */
#pragma once

#include "core/ownrule.h"

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

/* Oracle: the k largest scores of every row, or the shortest prefix of every query block, by mass
 * descending, that holds the share alpha of its rows. */
enum oracle_by { ORACLE_TOPK, ORACLE_MASS };
enum oracle_forced { ORACLE_FORCED_NONE, ORACLE_DIAG, ORACLE_SINK, ORACLE_WINDOW };
struct oracle_rule {
    enum oracle_by by;
    int64_t bq, bk; /* rows and keys of a unit */
    double alpha;   /* ORACLE_MASS */
    double k;       /* ORACLE_TOPK: a number of keys, or a share of those that a row sees */
    bool k_share;
    bool head_wide; /* one cut for all query blocks, by mass: of the head, or its k largest units */
    enum oracle_forced forced; /* entries kept in advance, which count */
    int64_t forced_n;          /* ORACLE_SINK, ORACLE_WINDOW: keys */
};

/* Own, of a choice by mass for each query block: how many blocks rounding may have decided, an
 * int32_t. Their running sum passes alpha within ORACLE_TIE (1 + |largest score|), or another mass
 * is as near to the last one, relative to it. */
#define ORACLE_TIE 1e-6

/* Hash-sparse attention (arXiv 2306.01160, section 3): pairs of equal bucket. */
struct hash_rule {
    int64_t buckets;
    bool strict; /* causal: not the query's own position */
    bool axes;   /* directions are unit vectors; else rng_normal of seed and stream (core/rng.h) */
    uint64_t seed, stream;
};

/* The same paper's dropped queries and keys: token t stays if rng_uniform of its number >= drop. */
struct qk_rule {
    double drop, drop_q;
    uint64_t seed, stream_q, stream_k;
};

/* Sparse VideoGen (arXiv 2502.01776): sampled rows are attended to densely and under two trial
 * bands, in the order of the tokens and in that of their places; the smaller squared error decides.
 * The choice is one unit over all rows and keys, kept by a temporal head. Own: struct svg1_own. */
struct svg1_rule {
    int64_t frames, frame, text; /* frames, tokens of a frame and of the text */
    bool wide;                   /* wan and cosmos: the executed band reaches one token farther */
    bool front;                  /* cog: the text stands in front */
    bool sink;                   /* the first frame's columns */
    bool trial;                  /* bands of blocks of 128 tokens; else those that are executed */
    int64_t width;               /* in blocks, or in tokens */
    int64_t rows, limit;         /* rows drawn from the first so many */
    uint64_t seed, stream;
};
struct svg1_own {
    double mse[2]; /* of the spatial and the temporal trial */
};

/* Chipmunk (arXiv 2506.03275): slices of 192 rows x 1 key in voxel order (sim/methods/chipmunk).
 * Data: struct chip_given. Own: int64_t, kept pairs before the lists are padded. */
struct chip_rule_numbers {
    int64_t n, video, grid[3]; /* tokens; boxes in time, height, width */
    int64_t top;               /* keys of a group by mass */
    int64_t top_share;         /* keys that, with the static ones, make a group full */
    bool all;                  /* every key */
    bool clean;                /* without the first box and the padding */
    double random_keys, redraw;
    int64_t window;       /* tokens on either side of the group's middle */
    int64_t local_voxels; /* side of the cube of boxes, 0: none */
    int64_t multiple;
    uint64_t seed, stream; /* of the static keys */
};
struct chip_given {
    const double *lse; /* [n] normalisers of the rows */
    uint64_t stream;   /* of the keys that are drawn anew */
};

/* Sparse VideoGen 2 (arXiv 2505.18875): k-means of queries and keys, the heaviest key clusters of
 * every query cluster. The choice is one unit, or the pairs of a mask that stays. Data: struct
 * svg2_given. Own: struct svg2_own. */
struct svg2_rule {
    int64_t video, qc, kc; /* tokens that are clustered, from 0 on; clusters */
    int64_t iterations;    /* at most */
    double tol, top_p;
    int64_t least; /* clusters that are kept at least */
    uint64_t seed; /* of the tokens to start from */
};
struct svg2_given {
    uint64_t stream[2];        /* of queries and of keys */
    const float *centroids[2]; /* [qc][d], [kc][d], numbers of bf16; NULL: start from tokens */
};
struct svg2_own { /* followed by centroids float [qc][d], [kc][d], labels int32_t [video] of queries
                   * and of keys, and the map uint8_t [qc][kc] */
    int64_t iterations[2];
};

/* Patterns of single pairs that follow from parameters and sizes. LongNet's is the support of its
 * branches (core/ownrule.h). The Sparse Transformer's (arXiv 1904.10509), causal: a key whose
 * distance is a multiple of the stride or below `near`. */
struct strided_rule {
    int64_t stride, near;
};

/* HyperAttention's choice is the orders and the drawn keys of its arithmetic (core/ownrule.h),
 * whose mask is every pair with a weight. `head` of the rule is 0. Data: int32_t, the head's
 * number. */

/* SpargeAttn (arXiv 2502.18137, section 3.3): blocks of bq queries and bk keys, judged by their
 * means. Own: struct sparge_own, then a byte per query block and a byte per key block:
 * self-similar. */
struct sparge_rule {
    int64_t bq, bk;
    bool paper; /* similarity and empty rows by the printed formulas, else by the authors' code */
    bool by_count; /* the cut takes `top` blocks, else the mass tau */
    bool sink;     /* key block 0 always */
    bool smooth_k; /* K without its token mean */
    /* What a calibration gives each head: */
    bool dense; /* every block */
    double theta, tau;
    int64_t top;
};
struct sparge_own {
    double mass;  /* coarse probability that the cuts take, over the judged query blocks */
    int64_t rows; /* these blocks */
};

/* SampleAttention (arXiv:2406.15486, algorithm 1): block columns and bins of distances that hold a
 * share of the mass of sampled slices. Own: double [2][chunks][blocks], mass of block columns and
 * of distance bins of every slice. The earlier algorithm (v1 and v2) has tokens in the place of
 * blocks. Own: int32_t, the columns. */
enum sample_extend { SAMPLE_COVER2, SAMPLE_COVER1, SAMPLE_CENTRED };
enum sample_merge { SAMPLE_PERCHUNK, SAMPLE_UNION, SAMPLE_MEAN };
struct sample_rule {
    bool all;    /* too few rows for the slices: every pair */
    bool tokens; /* the earlier algorithm */
    /* Blocks: */
    int64_t block;
    int chunks;
    double alpha_c, alpha_s;
    enum sample_extend extend;
    enum sample_merge merge;
    bool keep_diag, keep_sink;
    /* Tokens: */
    double alpha;
    int64_t window, step, bottom; /* window in keys; every step-th row is sampled, from the last one
                                   * back; last rows that keep all keys */
};

/* FlexPrefill (arXiv:2502.20766). Own: struct flex_own, after which with `lists` come the columns
 * and distances as for MInference. */
struct flex_rule {
    bool all;   /* so short a prompt that every pair stays */
    bool lists; /* the port: columns and distances, no pattern test */
    int64_t block;
    double gamma, tau;
    int64_t least, most; /* block columns, and block diagonals; with lists columns, and distances */
};
struct flex_own {
    double js;          /* distance of the pattern test; NAN: undefined */
    int32_t tokens[2];  /* columns and distances that hold gamma, as the method counts them */
    int32_t aware, pad; /* query-aware */
};

/* XAttention (arXiv:2503.16428): blocks of 128 x 128, scored along antidiagonals. */
enum xattn_profile { XATTN_OFFICIAL, XATTN_CLEAN, XATTN_PAPER };
struct xattn_rule {
    enum xattn_profile profile;
    int64_t stride, chunk; /* chunk: rows of a pass, XATTN_OFFICIAL */
    double tau, norm;      /* norm divides the scores */
};

/* MInference (arXiv:2407.02490): columns and distances by the mass of the last rows, or the best
 * blocks of 64 x 64 by the products of their means. Own, of columns and distances: uint32_t [2][
 * ceil(tokens / 32)], a bit per chosen column and per chosen distance. */
struct minf_rule {
    bool blocks;
    int64_t top; /* blocks of a row of blocks */
    /* Columns and distances: */
    int64_t rows; /* last rows */
    int64_t v, s; /* number of columns and of distances, with the forced ones */
    int64_t force_cols, force_dists;
    bool realised; /* what the kernel's lists cover, else the pairs asked for */
    double work;   /* above 0: v and s are searched for this share of dense work */
};

/* Units by the products of the means of their tokens, in bf16, or of single queries with means:
 *   POOLED_BEST    vsa (arXiv 2505.13389), sla (2509.24006), subblock, moba (2502.13189): the `top`
 *                  best of each row; of a causal row those before its own unit, which stays
 *   POOLED_HEAD    draft (2505.14708): the `top` largest entries of the head's softmax, and those
 *                  equal to the smallest of them
 *   POOLED_ABOVE   sol (2607.24027): above mean and tau deviations of their row. Mean queries are
 *                  not rounded
 *   POOLED_SHARES  nsa (2502.11089): the `top` best by softmax over the means of overlapping
 *                  windows of keys, which are not rounded, summed over some heads */
enum pooled_by { POOLED_BEST, POOLED_HEAD, POOLED_ABOVE, POOLED_SHARES };
struct pooled_rule {
    bool all; /* every pair */
    enum pooled_by by;
    int64_t bq, bk; /* bq 1: single queries */
    int q_cells,
        k_cells; /* of a unit, each with a mean; more than one pair: log-sum-exp over them */
    int64_t top;
    /* POOLED_BEST: */
    double q_factor; /* of the query means */
    bool centre;     /* keys without the mean of all keys */
    /* POOLED_ABOVE: */
    double tau;
    bool exact;          /* variance of the scores, else from those of the coordinates */
    int64_t near;        /* units on either side of the row's own that stay */
    int64_t first, last; /* units [first, last) stay */
    /* POOLED_SHARES: */
    int64_t kernel, stride; /* keys of a window; between two */
    int64_t init, local;    /* first and last units that come first */
    int heads;              /* of a KV head, or 1 */
    bool largest;           /* the largest share that touches a unit, else their sum */
    bool shares_own; /* what comes first has a share of 1 in every head, else any share is less */
};

/* skip-softmax (arXiv 2512.12087): tiles of bq rows and 128 keys. */
struct skip_rule {
    int64_t bq;
    double bound; /* ln(lambda) */
    bool calib;   /* the maximum of a row counts the tile itself */
};

union method_rule {
    struct fg_rule fg;
    struct sale_rule sale;
    struct oracle_rule oracle;
    struct hash_rule hash;
    struct qk_rule qk;
    struct svg1_rule svg1;
    struct chip_rule_numbers chip;
    struct svg2_rule svg2;
    struct own_dilated dilated;
    struct own_hashed hashed;
    struct strided_rule strided;
    struct sparge_rule sparge;
    struct sample_rule sample;
    struct flex_rule flex;
    struct xattn_rule xattn;
    struct minf_rule minf;
    struct pooled_rule pooled;
    struct skip_rule skip;
};

/* How the mask of one head is chosen. Heads whose `of` has equal bytes are chosen for together;
 * `data`, NULL where the struct of the method says nothing of it, is the head's own. */
struct rule {
    union method_rule of;
    const void *data;
};
