/*
 * chipmunk.h - masks of Chipmunk (arXiv 2506.03275): the keys that a group of 192 queries in voxel
 * order keeps. Shared by the method and its tests.
 *
 * Voxel order (permute.h, voxel:AxBxC): first the boxes of A x B x C tokens that fit into the grid,
 * then the tail tokens, then text. Group g holds the queries 192 g .. 192 g + 191. Each of the
 * first `voxels` groups is one box.
 */
#pragma once

#include "core/method.h"
#include "sim/blocks/slicemask.h"

#include <stdbool.h>
#include <stdint.h>

#define CHIP_ROWS 192
#define CHIP_TILE 128 /* keys of the kernel's tile */

/* Stream of the keys that are drawn once per seed. */
#define CHIP_STREAM_STATIC 0x6368697073746174ull

struct chip_shape {
    int64_t n, video, text; /* tokens */
    int64_t grid[3];        /* boxes in time, height, width */
    int64_t voxels, groups;
};

void chip_shape_of(const struct geometry *g, const int64_t voxel[3], struct chip_shape *out);

struct chip_rule {
    double top_keys;      /* share of keys kept by column mass; 1 = all */
    double random_keys;   /* probability of a key of the static mask */
    double redraw;        /* probability of a key drawn anew with every mask */
    double local_1d;      /* share of video tokens around the group */
    int64_t local_voxels; /* side of the cube of boxes around the group's own, 0 = none */
    int64_t multiple;     /* key counts are rounded to this */
    bool clean;           /* without the published code's artefacts */
    uint64_t seed;
};

/* First box of the cube of `side` boxes around coordinate x, on an axis of `size` boxes. The cube
 * is centred, and moved inwards at the borders. A cube longer than the axis starts at 0. */
int64_t chip_cube_start(int64_t x, int64_t size, int64_t side);

/* Does the cube of local_voxels fit into the grid of boxes on every axis? */
bool chip_cube_fits(const struct chip_shape *s, const struct chip_rule *r);

/* The keys that are kept whatever the data. Initialises *out (192 x 1 slices). O(groups N). */
int chip_static(const struct chip_shape *s, const struct chip_rule *r, struct slice_mask *out,
                struct err *err);

/* Does a group with this number of static keys get top keys and random keys as well? */
bool chip_sparse_group(const struct chip_shape *s, const struct chip_rule *r, int64_t static_keys);

/* Number of keys kept by column mass: round(top_keys n / multiple) multiple, half to even, at most
 * n. */
int64_t chip_top_keys(const struct chip_rule *r, int64_t n);

/* Add missing keys to group g, lowest first, until their number is a multiple or the group has all
 * keys. */
void chip_pad(struct slice_mask *m, int64_t g, int64_t multiple);

/* Normalisers lse [n], of an earlier step or the head's own, raised to out [n] by one number in
 * every group, so that no e^(s - out) exceeds 1: the order of a group's masses does not change, and
 * an old normaliser cannot overflow. */
int chip_raise(const struct head_in *in, const double *lse, double *out, struct err *err);

/* Mask of a head. A group keeps the keys of largest mass m_gj = sum_i e^(s_ij - lse_i), random keys
 * of `stream`, the static keys and, unless clean, the padding of the list. lse [n] is raised.
 * *selected = kept pairs before padding. */
int chip_mask(const struct chip_shape *s, const struct chip_rule *r, const struct head_in *in,
              const double *lse, uint64_t stream, struct slice_mask *out, int64_t *selected,
              struct err *err);

/* The full steps: those of the list, or 0, 1 and the multiples of `every`. */
struct chip_schedule {
    int64_t every;
    const int64_t *list; /* NULL: by every */
    int n;
};
bool chip_full_step(const struct chip_schedule *s, int64_t t);
int64_t chip_full_before(const struct chip_schedule *s,
                         int64_t t); /* the last full step before t, or -1 */
