/*
 * svgband.h - the band masks of Sparse VideoGen (arXiv 2502.01776) in the two token orders of a
 * head. Pure geometry.
 *
 * A head's tokens stand frame by frame (spatial) or place by place (temporal: the video token of
 * frame f, place p stands at position p T + f); text tokens keep their places. A rule keeps, for
 * the query at a position, at most three runs of key positions; a temporal head's runs fall apart
 * into runs of every frame when they are written in the order of the trace.
 */
#ifndef LACUNA_SVGBAND_H
#define LACUNA_SVGBAND_H

#include "core/mask.h"
#include "sim/svgcommon.h"

#include <stdbool.h>
#include <stdint.h>

/* width_frames = N (1 - sqrt(1 - s')) / F, s' = target - 2 C / N: the band of `target` N^2 pairs,
 * text rows and columns included, in frames. NAN when s' <= 0. */
double svg_width_frames(double target, int64_t text, int64_t n, int64_t F);

/* Half-width in tokens: rounded up (wan, cosmos) or down (hunyuan, cog) to 128, or to the nearest
 * token with `plain`. */
int64_t svg_half_width(enum svg_family family, double width_frames, int64_t F, bool plain);

/* Blocks of a trial band: block pairs |a - b| < limit, floor(2 F / 128) for wan and cosmos,
 * floor(1.5 F / 128) for hunyuan and cog. */
int64_t svg_trial_limit(enum svg_family family, int64_t F);

#define SVG_BLOCK 128

struct svg_band {
    enum svg_family family;
    int64_t T, F;
    int64_t text; /* valid text tokens; in front with family cog, else behind */
    bool temporal;
    bool sink;     /* columns of the first F positions (cog: behind the text) */
    bool trial;    /* the fixed block band that heads are classified with */
    int64_t width; /* executed: half-width in tokens; trial: limit in blocks */
};

static inline int64_t svg_band_tokens(const struct svg_band *b)
{
    return b->T * b->F + b->text;
}

/* Position of a token in the head's order. */
int64_t svg_band_position(const struct svg_band *b, int64_t token);

/* Key positions that the query at a position keeps: sorted, disjoint, at most 3. */
int64_t svg_band_positions(const struct svg_band *b, int64_t position, struct span *out);

/* The same for a query token and key tokens of the trace; room for svg_band_max_spans. */
int64_t svg_band_row(const struct svg_band *b, int64_t token, struct span *out);
int64_t svg_band_max_spans(const struct svg_band *b);

/* Mask of the token rows [row0, row1), one list per row. */
int svg_band_mask(const struct svg_band *b, int64_t row0, int64_t row1, struct mask *m,
                  struct err *err);

/* Kept pairs and 128 x 128 tiles with a kept pair, in the head's order; `padding` tokens behind the
 * others see each other and nothing else. O(N) runs. */
struct svg_count {
    int64_t pairs, tiles;
};
int svg_band_count(const struct svg_band *b, int64_t padding, struct svg_count *c, struct err *err);

#endif
