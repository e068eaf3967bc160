/*
 * radialmap.h - the frame pairs, token pairs and blocks that Radial Attention keeps (arXiv
 * 2506.19852). Nothing here depends on q, k or v.
 *
 * F tokens per frame, T frames in raster order, then text. Frame pair (i, j), d = |i - j|, in-frame
 * positions k of the query and l of the key, bl(x) the bit length of x (bl(0) = 0).
 */
#pragma once

#include "core/err.h"
#include "sim/blocks/blockmap.h"

#include <stdbool.h>
#include <stdint.h>

struct radial_rule {
    int64_t F, T;
    int64_t text;  /* text tokens after the video, padding included */
    int64_t block; /* B */
    int64_t thin;  /* band length below which frame pairs are thinned */
    double decay;
    bool sink; /* all queries see frame 0 */
};

/* Width of the band: a query at position k of frame i keeps the keys at positions l of frame j with
 * |k - l| <= width. A real number: F for d <= 1, else decay 2^bl(F) / 2^bl(d), at least B. */
double radial_width(const struct radial_rule *r, int64_t d);

/* Does thinning keep a frame pair at distance d? With L' = 2^bl(F) / 2^bl(d): yes when L' >= thin,
 * else only when floor(thin / L') divides d. */
bool radial_frames_kept(const struct radial_rule *r, int64_t d);

/* A column of a block with `rows` kept rows is high if that is more than a third of B. A block with
 * `high` high columns and `nonzero` non-empty columns is kept if more than 0.6 of the latter are
 * high. */
bool radial_column_high(int64_t rows, int64_t block);
bool radial_block_kept(int64_t high, int64_t nonzero);

/* Block map of the whole sequence, ceil((F T + text) / B) blocks per side. Initialises *map;
 * release it with block_map_free. O(T^2 (F/B)^2) plus B per block on the edge of a band. */
int radial_map(const struct radial_rule *r, struct block_map *map, struct err *err);

/* Number of frame pairs that lose their last query rows. A frame is cut into ceil(F/B) row blocks,
 * beginning with the block in which it starts; these do not always reach the frame's end. */
int64_t radial_spilled_pairs(const struct radial_rule *r);

/* The paper's formula, element by element: the largest |k - l| that a frame pair at distance d
 * keeps. With r = floor(log2 max(d, 1)) it is floor(F / 2^r) - 1 while 2^r <= F; beyond that it is
 * 0 for d divisible by ceil(2^r / F), and -1 (nothing) for other d. */
int64_t radial_reach(const struct radial_rule *r, int64_t d);

/* Video keys [*lo, *hi) of frame j that the query at position k of frame i keeps by that formula.
 */
void radial_row(const struct radial_rule *r, int64_t i, int64_t k, int64_t j, int64_t *lo,
                int64_t *hi);
