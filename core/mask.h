/*
 * mask.h - which (query, key) pairs a method keeps.
 *
 * A mask is a tagged form; every form expands to one canonical token form: for each query row a
 * sorted list of disjoint key spans, clipped to the keys that exist and, when causal, to keys at or
 * before the query. All counts and metrics are computed on the canonical form.
 *
 * A mask covers the query rows [row0, row1) of a head with nq queries and nk keys; row0 is a
 * multiple of bq. Query i stands at absolute position i + nk - nq (the last query sees the last
 * key).
 */
#pragma once

#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

enum mask_form {
    MASK_FULL,  /* every allowed pair */
    MASK_LISTS, /* per group of bq query rows a list of units of bk keys (CSR):
                 * blocks (bq x bk), slices (M x 1), per-row lists (1 x 1) */
    MASK_BAND,  /* window + sink (+ dense last rows), symmetric window when not causal */
};

/* Keys [lo, hi). */
struct span {
    int32_t lo, hi;
};

/* Keys around a row that a model lets it see, beside causality. The row at position p may see key j
 * iff j > p - back (back > 0), j < p + ahead (ahead > 0) and both lie in the same run of `chunk`
 * tokens (chunk > 0). A sliding window of W keys, the row's own among them, has back = W. Zeroed:
 * no limit. Every row of a causal head sees the first `prefix` <= nk keys too, also those after it;
 * it stands alone. The keys of a row are one run, and neither of its ends falls from row to row. */
struct reach {
    int64_t back, ahead, chunk, prefix;
};

static inline bool reach_any(const struct reach *r)
{
    return r->back || r->ahead || r->chunk || r->prefix;
}

/* First key that the row at position p >= 0 may see. */
static inline int64_t reach_first(const struct reach *r, int64_t p)
{
    int64_t first = r->back && p >= r->back ? p - r->back + 1 : 0;
    int64_t start = r->chunk ? p / r->chunk * r->chunk : 0;
    return start > first ? start : first;
}

/* One past the last, where without reach it were `limit`. */
static inline int64_t reach_limit(const struct reach *r, int64_t p, int64_t limit)
{
    if (r->ahead && p + r->ahead < limit)
        limit = p + r->ahead;
    if (r->chunk && (p / r->chunk + 1) * r->chunk < limit)
        limit = (p / r->chunk + 1) * r->chunk;
    return r->prefix > limit ? r->prefix : limit;
}

struct mask {
    enum mask_form form;
    int64_t nq, nk;     /* of the head */
    int64_t row0, row1; /* query rows covered */
    bool causal;
    struct reach reach; /* of the head; whatever the form says is clipped to it. The replay sets it
                         * (mask_within), a method that selects need not */

    /* Mask unit: tiles of density_tile and of the sparsities are bq x bk. MASK_LISTS: also the
     * geometry of the lists. MASK_FULL and MASK_BAND: the tile to count in (64 x 64). */
    int64_t bq, bk;

    /* MASK_LISTS: group g (0 = the group of row0) has units col[ptr[g] .. ptr[g+1]), ascending and
     * unique. */
    int64_t ngroups;
    int64_t *ptr; /* [ngroups + 1], owned */
    int32_t *col; /* [ptr[ngroups]], owned */
    int64_t col_cap;

    /* MASK_BAND: key j of query at position p is kept iff 0 <= p - j < window or j < sink
     * (bidirectional: |p - j| < window or j < sink); rows >= dense_from keep everything. */
    int64_t sink, window, dense_from;

    /* What the method's kernel multiplies for this mask (mask_counts.pairs_exec). */
    enum { EXEC_TILES, EXEC_GATHER, EXEC_NONE } exec;
    int64_t exec_bq, exec_bk;
};

/* Start a MASK_LISTS for rows [row0, row1): allocates ptr (zeroed). row0 % bq == 0. exec is
 * EXEC_TILES with (bq, bk) when bk > 1, EXEC_GATHER with 128 x 128 when bk == 1. */
int mask_lists_init(struct mask *m, int64_t nq, int64_t nk, int64_t row0, int64_t row1, bool causal,
                    int64_t bq, int64_t bk, struct err *err);

/* Append unit `c` to group g; groups are filled in order 0, 1, ..., units ascending. */
int mask_lists_add(struct mask *m, int64_t g, int32_t c, struct err *err);

/* Append units [c0, c1). */
int mask_lists_add_run(struct mask *m, int64_t g, int32_t c0, int32_t c1, struct err *err);

/* Append n units, ascending; those of the set bits of `words` words. */
int mask_lists_add_all(struct mask *m, int64_t g, const int32_t *units, int64_t n, struct err *err);
int mask_lists_add_bits(struct mask *m, int64_t g, const uint64_t *bits, int64_t words,
                        struct err *err);

/* Close the lists; groups without a unit become empty. Call once after the last add. */
void mask_lists_finish(struct mask *m);

/* The rows [row0, row1) of the lists m, row0 at a group of it, as lists of their own. *out is
 * initialised; release it with mask_free. */
int mask_lists_rows(const struct mask *m, int64_t row0, int64_t row1, struct mask *out,
                    struct err *err);

/* Set the bits units[0] < units[1] < ... of a bitmap. Long runs cost a word each. */
void mask_mark_units(uint64_t *bits, const int32_t *units, int64_t n);

/* Set the bits [a, b). */
void mask_mark_run(uint64_t *bits, int64_t a, int64_t b);

/* How many of the n ascending numbers are below a limit. */
int64_t list_below(const int32_t *units, int64_t n, int64_t limit);

/* How many numbers only one of two ascending lists has; how many units only one of two masks has,
 * both of which are lists of the same rows and unit. */
int64_t list_differ(const int32_t *a, int64_t na, const int32_t *b, int64_t nb);
int64_t mask_lists_differ(const struct mask *a, const struct mask *b);

/* MASK_FULL and MASK_BAND need no storage. Members of a band as in struct mask. */
struct band {
    int64_t sink, window, dense_from;
};
void mask_full(struct mask *m, int64_t nq, int64_t nk, int64_t row0, int64_t row1, bool causal);
void mask_band(struct mask *m, int64_t nq, int64_t nk, int64_t row0, int64_t row1, bool causal,
               struct band band);

void mask_free(struct mask *m); /* also of a zeroed mask; leaves it zeroed */

/* Sorted, unique, in range, row0 aligned; ERR_RUN with the first violation. Empty rows are legal
 * (and counted by mask_count). */
int mask_check(const struct mask *m, struct err *err);

/* One past the last key that query row i of a head may see (0 when it sees none). */
static inline int64_t key_limit(int64_t nq, int64_t nk, bool causal, int64_t i)
{
    int64_t p = i + nk - nq + 1;
    return !causal || p > nk ? nk : p < 0 ? 0 : p;
}

static inline int64_t mask_limit(const struct mask *m, int64_t i)
{
    return reach_limit(&m->reach, i + m->nk - m->nq, key_limit(m->nq, m->nk, m->causal, i));
}

/* The first key that row i may see. */
static inline int64_t mask_first(const struct mask *m, int64_t i)
{
    return reach_first(&m->reach, i + m->nk - m->nq);
}

/* Clip the mask to the keys that its head lets a row see. Heads with a reach have nq <= nk. */
static inline void mask_within(struct mask *m, const struct reach *r)
{
    m->reach = *r;
}

/* Largest number of spans that one row can have. */
int64_t mask_max_spans(const struct mask *m);

/* Canonical form of row i (row0 <= i < row1): sorted, disjoint, non-adjacent, clipped. Returns the
 * number of spans written (at most mask_max_spans). */
int64_t mask_row_spans(const struct mask *m, int64_t i, struct span *out);

/* Union of the spans of rows [r0, r1), sorted and merged: the keys that these rows need together.
 * out has room for mask_union_max(m, r0, r1) spans. Returns their number, or a negative code. */
int64_t mask_union_max(const struct mask *m, int64_t r0, int64_t r1);
int64_t mask_union_spans(const struct mask *m, int64_t r0, int64_t r1, struct span *out,
                         struct err *err);

/* True when all rows of [r0, r1) share one list up to the causal clip (so that no per-row test
 * besides j <= position is needed): never with a reach. */
bool mask_rows_uniform(const struct mask *m, int64_t r0, int64_t r1);

/* Allowed pairs |A|: of the whole head, of rows [row0, row1) with keys [k0, k1). */
int64_t pairs_allowed(int64_t nq, int64_t nk, bool causal);
int64_t pairs_allowed_block(int64_t nq, int64_t nk, bool causal, int64_t row0, int64_t row1,
                            int64_t k0, int64_t k1);

/* The same for the rows [row0, row1) and keys [k0, k1) of a head with a reach. O(rows). */
struct head_shape {
    int64_t nq, nk;
    bool causal;
    struct reach reach;
};
int64_t pairs_within(const struct head_shape *h, int64_t row0, int64_t row1, int64_t k0,
                     int64_t k1);

struct mask_counts {
    int64_t pairs_kept;    /* |M| */
    int64_t pairs_allowed; /* |A| over the rows covered */
    int64_t pairs_exec;    /* E_qk: EXEC_TILES kept bq x bk tiles in full; EXEC_GATHER
                            * exec_bq*ceil(rows/exec_bq)*exec_bk*ceil(cnt*bk/exec_bk) per group;
                            * -1 with EXEC_NONE */
    int64_t tiles_kept;    /* bq x bk tiles with a kept pair */
    int64_t tiles_allowed; /* bq x bk tiles with an allowed pair */
    int64_t tiles_rect;    /* all bq x bk tiles */
    int64_t rows_empty;
};

/* Counts over [row0, row1); sums over chunks give the head's. */
int mask_count(const struct mask *m, struct mask_counts *c, struct err *err);

/* Tiles of another size that hold a kept pair (rows covered must start at a multiple of bq). */
int mask_tiles_kept(const struct mask *m, int64_t bq, int64_t bk, int64_t *kept, int64_t *allowed,
                    struct err *err);
