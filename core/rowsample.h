/*
 * rowsample.h - a sample of the query rows of a causal call: aligned groups of consecutive rows,
 * against all keys. Long sequences are analysed on such a sample (doc/trace-format.md,
 * section 2.5).
 *
 * The sequence is cut into `groups` strata of equal length, and each gets one group, drawn
 * uniformly with the seed; the last stratum gets the last group of the sequence, whose rows some
 * methods use. A
 * mean over groups then estimates the mean over all rows, and differences of neighbouring groups
 * estimate its error.
 */
#pragma once

#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

/* The size of a group is a multiple of ROW_GROUP rows, so that no query block of a method or a
 * metric crosses its ends. */
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

/* Is *s a valid sample of n_k rows? If not, return the error `code` with the reason. */
int row_sample_check(const struct row_sample *s, int64_t n_k, int code, struct err *err);

/* Parse "64" or "64x256": an even number of groups, and the rows of each (default 128). Else
 * ERR_USAGE naming `option`. */
int row_sample_parse(const char *text, const char *option, int64_t *groups, int64_t *group,
                     struct err *err);

/* Draw groups from n_k rows; the caller frees *at [*n]. ERR_USAGE unless n_k exceeds the number of
 * sampled rows. */
int row_sample_draw(int64_t n_k, int64_t groups, int64_t group, uint64_t seed, int32_t **at,
                    int64_t *n, struct err *err);
