/*
 * copies.h - a head several times over, as the heads of one launch. A launch of a real call holds
 * all of its heads: alone, one of a few thousand rows leaves multiprocessors idle at its end and
 * pays every launch's start for itself, and a time of it would be no share of the call's.
 */
#ifndef LACUNA_COPIES_H
#define LACUNA_COPIES_H

#ifdef __cplusplus
extern "C" {
#endif

#include "core/kernel.h"
#include "cuda/plan.h"

/* How many of head x: `wanted`, or if 0 as many as the call has heads, but no more than are needed
 * for COPIES_ROWS rows of tiles on each multiprocessor, from where on more of them change nothing,
 * nor than fit into a share of `memory` bytes, 1 / COPIES_SHARE. Above the size of a group, the
 * query heads that share keys and values, only whole groups. Where the number wanted does not
 * consist of groups, those of the launch are the largest that divide it and are no larger. */
#define COPIES_ROWS 16
#define COPIES_SHARE 8
struct accel_heads copies_of(int wanted, struct accel_heads call, const struct attn_in *x, int sms,
                             int64_t memory);

/* The lists of h, `n` times one after the other; groups = rows of blocks of one. A single one is
 * h's own, which must outlive it. */
struct copied_lists {
    struct attn_csr csr;
    void *owned[4];
};
int copied_lists_make(const struct accel_head *h, int64_t groups, int n, struct copied_lists *l,
                      struct err *err);
void copied_lists_free(struct copied_lists *l);

#ifdef __cplusplus
}
#endif

#endif
