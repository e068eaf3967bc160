/*
 * work.h - what the GPU kernels have to do for a mask (work_* of core/metrics.def), for the cost
 * model. It follows from the mask alone.
 */
#pragma once

#include "core/accel.h"
#include "core/gpumodel.h"
#include "core/mask.h"
#include "core/record.h"

enum work_lists {
    WORK_128x128,
    WORK_128x64,
    WORK_WIDE_128x128, /* stages of 192 keys, as kernels of 64 channels have them */
    WORK_WIDE_128x64,
    WORK_64x64,
    WORK_64x32,
    WORK_BITS,
    WORK_GATHER,
    WORK_LISTS
};

/* Zeroed: nothing counted. */
struct mask_work {
    int64_t unit_q, unit_k; /* of which all masks are made; 0: every pair is kept */
    struct work_counts of[WORK_LISTS];
};

/* Add a mask whose first row is a multiple of 128. */
int work_add(struct mask_work *w, const struct mask *m, struct err *err);

/* Add rows of tiles to bits and gathered keys. */
void work_add_tiles(struct mask_work *w, const struct accel_tile_row *t, int64_t rows);

/* Add other rows, or another head. */
void work_join(struct mask_work *w, const struct mask_work *more);

/* Record work_*@LISTS, with the lists that the kernels of d channels take such masks as; nothing
 * where every pair is kept. */
int work_record(const struct mask_work *w, int64_t d, struct record *r, struct err *err);
