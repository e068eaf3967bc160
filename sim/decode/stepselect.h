/*
 * stepselect.h - a method without state chooses the keys of decode steps.
 *
 * It sees a row as the only query of a causal head whose keys are those that the cache holds, so
 * that nothing it does can depend on later tokens.
 */
#pragma once

#include "sim/decode/keysets.h"
#include "sim/simulate.h"

/* Keys and values of a cache, gathered. */
struct cached_kv {
    const int32_t *at; /* [n]: positions */
    int64_t n;
    float *k, *v; /* [n][d], [n][dv] */
};

/* Rows of a head, beside those of the heads that share its KV head. */
struct group_rows {
    struct head_in in;
    const struct head_in *const *group;
    int64_t row; /* of the first */
};

/* The method of a head between its steps. Zeroed at first, not to be moved. */
struct step_state {
    void *once; /* owned: the method's state for all steps, if it takes each row by itself */
    struct group_rows all;
    bool unknown; /* the method does not say what a choice reads */
    double bytes; /* that the choices of all steps so far read */
};
void step_state_end(struct step_state *s, const struct method *m); /* adds up the bytes, too */

/* Append the sets that the method of the cell chooses for the queries [row0, row1) of its head.
 * group: the heads that share its KV head. kv: what the cache holds at row0, the only one; NULL:
 * all keys up to a row's own. 0, METHOD_SKIP with the context's reason, or an error. */
int step_select(const struct sim_cell *cell, const struct head_in *const *group,
                struct step_state *s, int64_t row0, int64_t row1, const struct cached_kv *kv,
                struct keysets *out, struct err *err);
