/*
 * acceltiles.h - a mask of any form as tiles of 128 x 128 pairs, with a bit per pair (struct
 * accel_lists in core/accel.h), for GPU kernels that multiply whole tiles. The 128 keys of a tile
 * are either neighbours or gathered. With gathered keys, a group of 128 rows needs only the tiles
 * that the keys kept by any of its rows fill.
 */
#ifndef LACUNA_ACCELTILES_H
#define LACUNA_ACCELTILES_H

#include "core/accel.h"
#include "core/mask.h"

/* It pays to gather where that leaves fewer than this share of the tiles, because a tile whose keys
 * are copied one by one has 0.70 to 0.74 of the speed of a tile in place (doc/performance.md). */
#define GATHER_BELOW 0.7

struct accel_tiles {
    int64_t groups; /* of 128 rows */
    int64_t *ptr;   /* [groups + 1]; all arrays are owned */
    int32_t *col, *bits;
    int32_t *keys; /* [n_tiles][128]; NULL unless gathered */
    uint64_t *words;
    int64_t n_tiles, n_bits; /* number of tiles; number of tiles with bits */
    int64_t col_cap, bits_cap, key_cap, word_cap;
};

/* Tiles that masks[0..n) touch, in place and with gathered keys; whether it pays to gather. */
int accel_tiles_count(const struct mask *masks, int64_t n, int64_t tiles[2], struct err *err);
bool accel_tiles_gather(const int64_t tiles[2]);

/* Make tiles of masks[0..n), which cover rows in order, from a multiple of 128 to another or to the
 * end. Returns METHOD_SKIP with `why` when
 * the bits would take more than max_bytes. */
int accel_tiles_make(const struct mask *masks, int64_t n, bool gathered, int64_t max_bytes,
                     struct accel_tiles *t, char why[160], struct err *err);
void accel_tiles_free(struct accel_tiles *t);

#endif
