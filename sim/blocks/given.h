/*
 * given.h - the mask of a whole head that comes from outside of lacuna: checked, clipped to the
 * causal triangle, handed out in row ranges.
 */
#pragma once

#include "core/attention.h"
#include "core/err.h"
#include "core/mask.h"

#include <stdint.h>

/* Units of group g as bytes 0 or 1: keep [ceil(nk / bk)]. */
typedef int given_row_fn(void *ctx, int64_t g, uint8_t *keep, struct err *err);

struct given {
    struct mask whole; /* form full, band or lists: the mask; of `row` its geometry alone */
    given_row_fn *row; /* NULL: the mask is in `whole` */
    void *ctx;
    bool as_is;      /* lists of lacuna's own: units beyond the diagonal stay listed */
    int64_t dropped; /* pairs left out so far, because their unit lies after all its queries */
};

/* Start a mask in units of bq x bk for a head of x's shape, without rows yet. A unit of several
 * keys is a tile of its kernel, several queries of one key are gathered; what a kernel does with
 * single pairs nobody said. */
int given_init(struct given *g, const struct attn_in *x, int64_t bq, int64_t bk, struct err *err);
void given_free(struct given *g); /* also of a zeroed one */

/* Take over lists: ptr [groups + 1], col [n], malloc'd, the given's also after a failure.
 * ERR_INPUT unless ptr begins with 0, does not fall and ends with n, and the columns of a group are
 * in range, ascending and unique; the message names the group, what was found and expected. */
int given_lists(struct given *g, int64_t *ptr, int32_t *col, int64_t n, struct err *err);

/* Mask of the rows [row0, row1). */
int given_select(struct given *g, int64_t row0, int64_t row1, struct mask *out, struct err *err);

/* "64x32" to bq and bk, both in 1..2^20. ERR_USAGE. */
int unit_parse(const char *text, int64_t *bq, int64_t *bk, struct err *err);
