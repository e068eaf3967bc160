/*
 * accelattend.h - attention over the masks of a call on a GPU back end (core/accel.h): lists of
 * blocks, or, for masks of any form, tiles of 128 x 128 pairs with a bit per pair (struct
 * accel_lists), for kernels that multiply whole tiles. The 128 keys of a tile are either neighbours
 * or gathered. With gathered keys, a group of 128 rows needs only the tiles that the keys kept by
 * any of its rows fill.
 */
#pragma once

#include "core/accel.h"
#include "core/mask.h"

struct attend_how {
    int jobs;              /* threads that make lists */
    int64_t section_bytes; /* of tiles, before a section is full; 0: the default */
    uint64_t static_id;    /* as in struct accel_lists */
    bool untimed;          /* the same */
};

/* Attend to the call's heads over their chunks, or over masks that stay on the device, in one
 * geometry and as few launches as filters and memory allow. Fills *r and the heads' results, and
 * adds the time to make the lists to r->host_plan_ns. METHOD_SKIP with `why` when the back end
 * cannot attend to such heads, or when a mask's bits would take too much memory. */
int accel_attend_masks(const struct accel *a, struct accel_session *s, const struct attend_how *how,
                       const struct accel_call *call, struct accel_result *r, char why[160],
                       struct err *err);

/* It pays to gather where that leaves fewer than this share of the tiles, because a tile whose keys
 * are copied one by one has 0.77 to 0.89 of the speed of a tile in place with 128 channels, and
 * nearly all of it with 64 (doc/performance.md). */
#define GATHER_BELOW 0.8

/* Units of 64 x 32 are lists of blocks where they fill less than this share of the tiles, because
 * such lists have 0.55 to 0.62 of the speed of dense attention, and tiles with bits 0.64 to 0.8. */
#define SLIM_BELOW 0.8

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
