/*
 * rowsample.h - a sample of the query rows of a causal call: aligned groups of consecutive rows,
 * against all keys. Long sequences are analysed on it (doc/trace-format.md, section 2.5).
 *
 * The sequence is cut into `groups` strata of equal length, and each has one group, uniform by the
 * seed; the last stratum has the last group of the sequence, whose rows some methods look at. A
 * mean over groups then estimates the mean over all rows, and differences of neighbouring groups
 * say how well.
 */
#ifndef LACUNA_ROWSAMPLE_H
#define LACUNA_ROWSAMPLE_H

#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

/* A group has a multiple of so many rows, so that no block of queries that a method or a metric
 * uses lies across its ends. */
#define ROW_GROUP 128

/* n rows at the positions at[], ascending: groups of `group` rows that start at multiples of it.
 * The last group may be shorter, and then ends with the sequence. Views; owns nothing. */
struct row_sample {
    const int32_t *at; /* [n] */
    int64_t n, group;
};

static inline int64_t row_sample_groups(const struct row_sample *s)
{
    return (s->n + s->group - 1) / s->group;
}

/* Rows of group g: stored as [first, first + rows), at the positions pos .. pos + rows - 1. */
struct row_span {
    int64_t first, rows, pos;
};
struct row_span row_sample_span(const struct row_sample *s, int64_t g);

/* Is the row at position p in the sample? */
bool row_sample_has(const struct row_sample *s, int64_t p);

/* Is it one of n_k rows? `code` names what is wrong. */
int row_sample_check(const struct row_sample *s, int64_t n_k, int code, struct err *err);

/* "64" or "64x256": groups, an even number, and rows of each (128). ERR_USAGE naming `option`. */
int row_sample_parse(const char *text, const char *option, int64_t *groups, int64_t *group,
                     struct err *err);

/* Draw groups from n_k rows. ERR_USAGE where there are not more rows than that. *at [*n] is
 * malloc'd. */
int row_sample_draw(int64_t n_k, int64_t groups, int64_t group, uint64_t seed, int32_t **at,
                    int64_t *n, struct err *err);

#endif
