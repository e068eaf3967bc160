/*
 * staticmasks.h - masks that follow from parameters and sizes alone, kept for a whole replay: each
 * is made, checked and counted once, and every head, layer and step that has it takes it from here.
 */
#pragma once

#include "core/err.h"
#include "core/mask.h"
#include "sim/metrics.h"

#include <stdbool.h>
#include <stdint.h>

struct static_masks;

/* One of them. Who has taken it only reads it. */
struct static_mask {
    uint64_t id;        /* no other mask of the process has it; never 0 */
    struct mask *masks; /* [n], owned: chunks of rows, in order */
    int64_t n;
    struct mask_tally tally; /* over all chunks */
    void *counted;           /* owned, as in struct mask_origin; NULL: nothing */
};

/* Who makes a mask that is not there: chunk i of n, each once. */
struct static_maker {
    int (*chunk)(void *ctx, int64_t i, struct mask *m, struct err *err);
    void *ctx;
    int64_t n;
    bool any_order; /* chunks may be made in any order and several at a time, else one by one */
    const void *counted; /* what is kept beside the chunks, [bytes], once they are made; or NULL */
    size_t bytes;
};

/* An eighth of the machine's memory, in bytes. */
int64_t static_masks_room(void);

/* bytes: of masks that nobody has taken at the moment; beyond that the one that was not asked for
 * longest goes. jobs: threads that make a mask. */
int static_masks_new(int64_t bytes, int jobs, struct static_masks **out, struct err *err);
void static_masks_free(struct static_masks **s); /* nobody has one any more; accepts NULL inside */

/* The mask with this key, made if it is not there, while others that ask for the same one wait.
 * Thread-safe. *out is to be returned. */
int static_masks_take(struct static_masks *s, const char *key, const struct static_maker *maker,
                      const struct static_mask **out, struct err *err);
void static_masks_return(struct static_masks *s, const struct static_mask *m);

/* A number for heads that have these masks, in this order: the same for the same n ids, and no
 * mask's id; never 0. Thread-safe. */
int static_masks_number(struct static_masks *s, const uint64_t *ids, int n, uint64_t *number,
                        struct err *err);
