/*
 * maskblocks.h - masks that `lacuna replay --dump-masks` wrote, as block lists for the benchmark.
 */
#pragma once

#include "core/maskfile.h"

#define MASK_SET_HEADS 16

/* Heads that went through one method with one setting: the first MASK_SET_HEADS of the file. */
struct mask_set {
    char method[32], params[96]; /* canonical, "" = defaults; cut off where longer */
    int64_t cells[MASK_SET_HEADS];
    int heads;
    int64_t nq, nk;
    bool causal;
};

/* The sets of a file, in its order; *sets is the caller's to free. Cells of one setting but of
 * other shapes make sets of their own. */
int mask_sets(const struct maskfile *f, struct mask_set **sets, int64_t *n, struct err *err);

/* The blocks of bq x bk pairs in which a set keeps any, as struct attn_csr has them: row
 * head * ceil(nq / bq) + group has col[ptr[row] .. ptr[row + 1]). ptr and col are the caller's;
 * *share is their number over that of blocks with an allowed pair. */
int mask_blocks(const struct maskfile *f, const struct mask_set *s, int bq, int bk, int64_t **ptr,
                int32_t **col, double *share, struct err *err);
