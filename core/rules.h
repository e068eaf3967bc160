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
    enum oracle_forced forced; /* entries kept in advance, which count */
    int64_t forced_n;          /* ORACLE_SINK, ORACLE_WINDOW: keys */
};

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

union method_rule {
    struct fg_rule fg;
    struct sale_rule sale;
    struct oracle_rule oracle;
    struct hash_rule hash;
    struct qk_rule qk;
};

#endif
