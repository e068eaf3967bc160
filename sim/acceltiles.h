/*
 * acceltiles.h - a mask of any form as tiles of 128 x 128 pairs with bits for what a tile keeps
 * (struct accel_head in core/kernel.h), for GPU kernels that multiply whole tiles.
 */
#ifndef LACUNA_ACCELTILES_H
#define LACUNA_ACCELTILES_H

#include "core/kernel.h"
#include "core/mask.h"

struct accel_tiles {
    int64_t *ptr; /* [groups + 1], owned as the rest */
    int32_t *col, *bits;
    uint64_t *words;
    int64_t n_tiles, n_bits; /* tiles; those among them that keep only a part */
    int64_t tile_cap, bits_cap, word_cap;
};

/* masks[0..n) cover all nq rows in order. Returns METHOD_SKIP with `why` when the bits would take
 * more than max_bytes. */
int accel_tiles_make(const struct mask *masks, int64_t n, int64_t max_bytes, struct accel_tiles *t,
                     char why[160], struct err *err);
void accel_tiles_free(struct accel_tiles *t);

#endif
