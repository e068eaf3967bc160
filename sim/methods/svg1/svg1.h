/*
 * svg1.h - the band masks of Sparse VideoGen (arXiv 2502.01776) in the two token orders of a head,
 * which do not depend on q, k or v, and the choice between them, which does.
 *
 * A head's tokens stand frame by frame (spatial) or place by place (temporal: the video token of
 * frame f, place p stands at position p T + f); text tokens keep their places. For the query at a
 * position, a rule keeps at most three runs of key positions. In the token order of the trace, each
 * run of a temporal head becomes several runs, in every frame.
 */
#pragma once

#include "core/mask.h"
#include "core/method.h"
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

/* ---- classes of heads ------------------------------------------------------------------------ */

/* find out which of two masks reproduces a head better, on a few of its rows (Sparse
 * VideoGen, arXiv 2502.01776, section 4.1). */

struct svg_class {
    double mse[2]; /* spatial, temporal: mean squared error over the rows and channels */
    double pairs;  /* kept by the two masks in the rows, together */
    int64_t rows;
    bool temporal; /* the temporal error is smaller; a tie is spatial */
};

/* rows [n_rows] are query rows; a repeated row counts again; NULL = every row of the head once.
 * trial[0] is the spatial mask, trial[1] the temporal mask. A row without kept keys has output 0.
 * With bf16, scores, probabilities, outputs and errors are rounded as in 16-bit tensors; otherwise
 * the precision is that of in->exact, and the rows are compared with the head's dense output. Cost:
 * rows x (kept keys of both masks) x (d + dv); with bf16 another rows x N x d. */
int svg_classify(const struct head_in *in, const struct svg_band trial[2], const int64_t *rows,
                 int64_t n_rows, bool bf16, struct svg_class *out, struct err *err);
