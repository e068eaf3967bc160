/*
 * oracle.h - the parts of the oracles that have tests of their own.
 */
#pragma once

#include "core/err.h"
#include "core/method.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- prefixes of a head ---------------------------------------------------------------------- */

/* The shortest prefix of all entries of a matrix, sorted by value, whose sum or number reaches a
 * target, without storing the matrix.
 *
 * Order: value descending, equal values by ascending column, then ascending row. The matrix is read
 * row by row, several times: a histogram over the 16 leading bits of the values finds the bin in
 * which the sum crosses the target; the bin is collected and sorted when it fits into the buffer,
 * else it is split by the next 16 bits. A bin of a single value is cut by counting columns. At most
 * 4 histogram passes, usually 1 or 2, and one pass to collect. O(columns) memory + buffer. */

/* Row r of the matrix: n values >= 0 in v (a negative value is not an entry), and the mass and
 * number of entries that already count towards the target. v stays valid until the next call. */
struct head_row {
    const double *v;
    int64_t n;
    double given;
    int64_t given_n;
};
typedef int head_row_fn(void *ctx, int64_t r, struct head_row *row, struct err *err);

/* Entry (r, c) of value v belongs to the prefix iff head_prefix_has. */
struct head_prefix {
    double cut;
    int64_t col, row; /* among entries of value `cut`: those in earlier columns, and in this column
                       * rows up to this one */
    int64_t count;
    double sum, before;
};

static inline bool head_prefix_has(const struct head_prefix *p, double v, int64_t r, int64_t c)
{
    return v > p->cut || (v == p->cut && (c < p->col || (c == p->col && r <= p->row)));
}

/* Where the prefix ends: at a sum, or at a number of entries. */
enum head_measure { HEAD_BY_SUM, HEAD_BY_COUNT };

/* Find the prefix of a rows x cols matrix. `buffer` = number of entries (24 bytes each) that may be
 * collected and sorted. If all entries together do not reach the target, all are taken. */
int head_prefix_select(head_row_fn *fn, void *ctx, int64_t rows, int64_t cols, enum head_measure by,
                       double target, int64_t buffer, struct head_prefix *out, struct err *err);

/* ---- columns and slashes --------------------------------------------------------------------- */

/* Rows [*row0, *row1) of chunk i of `chunks` equal ones of n rows: the last ceil(rows / chunks). */
void ranking_rows(int64_t n, int64_t rows, int64_t chunks, int64_t i, int64_t *row0, int64_t *row1);
