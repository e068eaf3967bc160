/*
 * score.h - what a cached key is worth, by the rules of published evictions; and which keys stay.
 */
#pragma once

#include "core/method.h"
#include "sim/blocks/prefix.h"

enum evict_by {
    BY_SNAPKV,
    BY_ADAKV,
    BY_TOVA,
    BY_H2O,
    BY_STREAMING,
    BY_KNORM,
    BY_KEYDIFF,
    BY_OBSERVED,
    BY_RANDOM,
    BY_FUTURE, /* mass in all steps to come: a bound */
};

/* Whose scores decide together: a cache's own, or the mean over the caches of the layer. */
enum evict_unit { UNIT_AUTO, UNIT_HEAD, UNIT_GROUP, UNIT_LAYER };

/* A choice of the keys that stay. */
struct evict_rule {
    enum evict_by by;
    enum evict_unit unit;
    int64_t window, pool; /* rows that score, keys of the average */
    int64_t sink;         /* first keys of a cache that stay */
    double safe;          /* share of its keys that a cache keeps in any case; 1: no other caches
                           * take part */
    int64_t every;        /* steps between two choices; 0: none after the prompt */
    uint64_t seed;
};

/* Keys of a cache that stay, the last ones `recent` of them in any case; keys < 0: all. */
struct evict_size {
    int64_t keys, recent;
};

struct evict_work {
    const struct evict_rule *rule;
    const struct decode_layer *layer;
    int64_t nk, n_caches, stride;
    double *sum;   /* [heads][nk], owned: softmax columns so far, of BY_H2O and BY_OBSERVED */
    double *norm;  /* [caches][nk], owned: lengths of keys, of BY_KNORM and BY_KEYDIFF */
    double *score; /* [caches][nk], owned */
    double *rows;  /* [window][nk], owned: scores of some rows */
    double *seen;  /* [heads][window][stride], owned: scores of the last rows and the keys of the
                    * cache, row r at r % window; NULL: they are computed when they are needed */
    double *z;     /* [2][nk], owned */
    struct prefix_work *prefix;
};

/* rule and layer stay the caller's. */
int evict_work_init(struct evict_work *w, const struct evict_rule *rule,
                    const struct decode_layer *layer, struct method_ctx *ctx, struct err *err);
void evict_work_free(struct evict_work *w);

/* Take note of the scores of a row, whose key is the last one of every cache. */
void evict_add_row(struct evict_work *w, int64_t row, const double *const *score);

/* Score the keys of every cache after the attention of `row` and drop what is beyond size[c] of
 * cache c. score: as in method_decode.step; NULL after the prompt. */
int evict_apply(struct evict_work *w, int64_t row, const double *const *score,
                const struct evict_size *size, struct err *err);
