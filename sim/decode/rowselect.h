/*
 * rowselect.h - a method without state chooses the keys of one decode step.
 *
 * It sees the row as the only query of a causal head whose keys are those that the cache holds, so
 * that nothing it does can depend on later tokens.
 */
#ifndef LACUNA_ROWSELECT_H
#define LACUNA_ROWSELECT_H

#include "sim/decode/keysets.h"
#include "sim/simulate.h"

/* Keys and values of a cache, gathered. */
struct cached_kv {
    const int32_t *at; /* [n]: positions */
    int64_t n;
    float *k, *v; /* [n][d], [n][dv] */
};

/* Append the set that the method of the cell chooses for query `row` of its head. kv NULL: the
 * cache holds all keys up to the row's own. 0, METHOD_SKIP with the context's reason, or an error.
 */
int row_select(const struct sim_cell *cell, int64_t row, const struct cached_kv *kv,
               struct keysets *out, struct err *err);

#endif
