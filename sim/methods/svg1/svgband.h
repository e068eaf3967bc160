/*
 * svgband.h - the band masks of Sparse VideoGen (arXiv 2502.01776) in the two token orders of a
 * head. Nothing here depends on q, k or v.
 *
 * A head's tokens stand frame by frame (spatial) or place by place (temporal: the video token of
 * frame f, place p stands at position p T + f); text tokens keep their places. For the query at a
 * position, a rule keeps at most three runs of key positions. In the token order of the trace, each
 * run of a temporal head becomes several runs, in every frame.
 */
#ifndef LACUNA_SVGBAND_H
#define LACUNA_SVGBAND_H

#include "core/mask.h"
#include "sim/blocks/svgcommon.h"

#include <stdbool.h>
#include <stdint.h>

/* Width in frames of the band that has target N^2 pairs, including the rows and columns of C text
 * tokens: N (1 - sqrt(1 - s')) / F with s' = target - 2 C / N. NAN when s' <= 0. */
double svg_width_frames(double target, int64_t text, int64_t n, int64_t F);

/* Half-width in tokens: rounded up (wan, cosmos) or down (hunyuan, cog) to a multiple of 128; with
 * `plain` to the nearest token. */
int64_t svg_half_width(enum svg_family family, double width_frames, int64_t F, bool plain);

/* Limit of a trial band, which keeps block pairs with |a - b| < limit: floor(2 F / 128) for wan and
 * cosmos, floor(1.5 F / 128) for hunyuan and cog. */
int64_t svg_trial_limit(enum svg_family family, int64_t F);

#define SVG_BLOCK 128

struct svg_band {
    enum svg_family family;
    int64_t T, F;
    int64_t text; /* valid text tokens; in front with family cog, else behind */
    bool temporal;
    bool sink;     /* columns of the first F positions (cog: behind the text) */
    bool trial;    /* the fixed block band by which heads are classified */
    int64_t width; /* executed: half-width in tokens; trial: limit in blocks */
};

static inline int64_t svg_band_tokens(const struct svg_band *b)
{
    return b->T * b->F + b->text;
}

/* Position of a token in the head's order. */
int64_t svg_band_position(const struct svg_band *b, int64_t token);

/* The same for a query token and key tokens of the trace; room for svg_band_max_spans. */
int64_t svg_band_row(const struct svg_band *b, int64_t token, struct span *out);
int64_t svg_band_max_spans(const struct svg_band *b);

/* Mask of the token rows [row0, row1), one list per row. */
int svg_band_mask(const struct svg_band *b, int64_t row0, int64_t row1, struct mask *m,
                  struct err *err);

/* Count kept pairs, and 128 x 128 tiles with a kept pair, in the head's order. `padding` tokens
 * follow the others and see only each other. O(N) runs. */
struct svg_count {
    int64_t pairs, tiles;
};
int svg_band_count(const struct svg_band *b, int64_t padding, struct svg_count *c, struct err *err);

#endif
