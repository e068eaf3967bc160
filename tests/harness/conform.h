/*
 * conform.h - parameter sets, heads and checks of the conformance suite.
 */
#pragma once

#include "tests/harness/methodrun.h"

#include <stdio.h>

/* "name:params", or the name alone where there are none (NULL or ""). */
void conform_text(const struct method *m, const char *params, char text[160]);

/* The k-th run of a method: its defaults, its budget_full and its variants; false: it has fewer. */
bool conform_variant(const struct method *m, int k, char text[160]);

/* Parse one parameter set; release with method_runs_free(*runs, 1). */
const struct method *conform_method(const char *text, struct method_run **runs);

enum conform_data { NORMAL, EQUAL_KEYS, HUGE_VALUES, TINY, ONE_HOT, ZEROS, DATA_KINDS };
extern const char *const conform_data_names[];

/* Query head 5 of 8, kv head 1 of 2, d 64; square bidirectional heads are videos. */
void conform_head(enum conform_data data, int64_t nq, int64_t nk, bool causal, enum precision prec,
                  struct sim_head *h);

/* What a run left behind. */
struct conform_result {
    struct record r;
    int64_t nq, nk, dv;
    uint8_t *bits; /* [nq][nk] */
    double *out;   /* [nq][dv] */
    double *lse;   /* [nq] */
};
void conform_run(const char *text, const struct head_in *in, struct carry *carry, uint64_t seed,
                 struct conform_result *res);
void conform_result_free(struct conform_result *res);

/* The head in the token order that the method asks for; false (h untouched): the stored one. */
bool conform_reordered(const char *text, const struct head_in *in, uint64_t seed,
                       struct sim_head *h);

/* Run on a head, over three steps when the method keeps state, and check each result: finite, legal
 * mask, no empty row unless allowed, counts, recall and errors recomputed from the mask's bits. */
void conform_check(const char *text, struct sim_head *h, const char *what);

/* Runs per element: formats only on failure, while ck_assert notes every success in a file. */
#define expect(cond, ...)                                                                          \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            char expect_what[768];                                                                 \
            snprintf(expect_what, sizeof expect_what, __VA_ARGS__);                                \
            ck_abort_msg("%s: %s", where, expect_what);                                            \
        }                                                                                          \
    } while (0)

void conform_finite(const char *where, const struct conform_result *res);
