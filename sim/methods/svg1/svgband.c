/*
 * svgband.c - see svg1.h.
 */
#include "sim/methods/svg1/svg1.h"

#include "core/intmath.h"
#include "core/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool wan_like(enum svg_family f)
{
    return f == SVG_WAN || f == SVG_COSMOS;
}

double svg_width_frames(double target, int64_t text, int64_t n, int64_t F)
{
    double all = (double)n * (double)n;
    double share = (target * all - 2 * (double)n * (double)text) / all;
    return share > 0 ? (double)n * (1 - sqrt(1 - share)) / (double)F : NAN;
}

int64_t svg_half_width(enum svg_family family, double width_frames, int64_t F, bool plain)
{
    double tokens = width_frames * (double)F;
    if (plain)
        return llrint(tokens);
    double blocks = tokens / SVG_BLOCK;
    return (int64_t)(wan_like(family) ? ceil(blocks) : floor(blocks)) * SVG_BLOCK;
}

int64_t svg_trial_limit(enum svg_family family, int64_t F)
{
    return (wan_like(family) ? 2 * F : F + F / 2) / SVG_BLOCK;
}

/* ---- positions ------------------------------------------------------------------------------ */

static int64_t video_start(const struct svg_band *b)
{
    return b->family == SVG_COG ? b->text : 0;
}

int64_t svg_band_position(const struct svg_band *b, int64_t token)
{
    int64_t v = token - video_start(b);
    if (!b->temporal || v < 0 || v >= b->T * b->F)
        return token;
    return video_start(b) + v % b->F * b->T + v / b->F;
}

/* Insert [lo, hi), cut to [from, to), into the sorted disjoint runs. */
static int64_t add_run(struct span *s, int64_t n, int64_t lo, int64_t hi, int64_t from, int64_t to)
{
    lo = MAX(lo, from);
    hi = MIN(hi, to);
    if (lo >= hi)
        return n;
    int64_t at = 0, end;
    while (at < n && s[at].hi < lo)
        at++;
    for (end = at; end < n && s[end].lo <= hi; end++) {
        lo = MIN(lo, s[end].lo);
        hi = MAX(hi, s[end].hi);
    }
    memmove(s + at + 1, s + end, (size_t)(n - end) * sizeof *s);
    s[at] = (struct span){(int32_t)lo, (int32_t)hi};
    return n - (end - at) + 1;
}

static int64_t trial_band(const struct svg_band *b, int64_t x, int64_t blocks, int64_t shift,
                          int64_t end, struct span *out)
{
    int64_t a = (x - shift) / SVG_BLOCK;
    if (b->width <= 0 || a >= blocks)
        return 0;
    return add_run(out, 0, shift + (a - b->width + 1) * SVG_BLOCK,
                   shift + MIN(blocks, a + b->width) * SVG_BLOCK, shift, end);
}

/* Blocks are counted from the first token of the video, except in the spatial trial of CogVideoX,
 * which counts them from the first token of the sequence. Its temporal trial has no text at all. */
static int64_t trial_positions(const struct svg_band *b, int64_t x, struct span *out)
{
    int64_t video = b->T * b->F, n = svg_band_tokens(b), v0 = video_start(b);
    int64_t blocks = (video + SVG_BLOCK - 1) / SVG_BLOCK, count;
    bool text = x < v0 || x >= v0 + video;

    if (b->family == SVG_COG && b->temporal)
        return text ? 0 : trial_band(b, x, blocks, v0, n, out);
    if (text)
        return add_run(out, 0, 0, n, 0, n);
    count = trial_band(b, x, blocks, 0, b->family == SVG_COG ? n : video, out);
    if (b->family == SVG_COG)
        return add_run(out, count, 0, v0, 0, n);
    return add_run(out, count, video, n, 0, n);
}

static int64_t executed_positions(const struct svg_band *b, int64_t x, struct span *out)
{
    int64_t video = b->T * b->F, n = svg_band_tokens(b), v0 = video_start(b);
    int64_t reach = wan_like(b->family) ? b->width : b->width - 1;
    if (x < v0 || x >= v0 + video)
        return add_run(out, 0, 0, n, 0, n);
    int64_t count = add_run(out, 0, x - reach, x + reach + 1, 0, n);
    return v0 ? add_run(out, count, 0, v0, 0, n) : add_run(out, count, video, n, 0, n);
}

/* Key positions that the query at a position keeps: sorted, disjoint, at most 3. */
static int64_t svg_band_positions(const struct svg_band *b, int64_t position, struct span *out)
{
    int64_t v0 = video_start(b);
    int64_t n = b->trial ? trial_positions(b, position, out) : executed_positions(b, position, out);
    return b->sink ? add_run(out, n, v0, v0 + b->F, 0, svg_band_tokens(b)) : n;
}

/* ---- tokens --------------------------------------------------------------------------------- */

int64_t svg_band_max_spans(const struct svg_band *b)
{
    return b->temporal ? 3 * b->T + 3 : 3;
}

static int64_t push(struct span *out, int64_t n, int64_t lo, int64_t hi)
{
    if (lo >= hi)
        return n;
    if (n && out[n - 1].hi == lo) {
        out[n - 1].hi = (int32_t)hi;
        return n;
    }
    out[n] = (struct span){(int32_t)lo, (int32_t)hi};
    return n + 1;
}

int64_t svg_band_row(const struct svg_band *b, int64_t token, struct span *out)
{
    struct span run[3];
    int64_t v0 = video_start(b), v1 = v0 + b->T * b->F, n = 0;
    if (!b->temporal)
        return svg_band_positions(b, token, out);
    int64_t runs = svg_band_positions(b, svg_band_position(b, token), run);
    for (int64_t k = 0; k < runs; k++)
        n = push(out, n, run[k].lo, MIN(run[k].hi, v0));
    /* Of the positions [lo, hi) frame f holds the places p with lo <= p T + f < hi. */
    for (int64_t f = 0; f < b->T; f++)
        for (int64_t k = 0; k < runs; k++) {
            int64_t lo = MAX(run[k].lo, v0) - v0, hi = MIN(run[k].hi, v1) - v0;
            int64_t start = v0 + f * b->F;
            if (lo < hi)
                n = push(out, n, start + ceil_div(MAX(lo - f, 0), b->T),
                         start + ceil_div(MAX(hi - f, 0), b->T));
        }
    for (int64_t k = 0; k < runs; k++)
        n = push(out, n, MAX(run[k].lo, v1), run[k].hi);
    return n;
}

int svg_band_mask(const struct svg_band *b, int64_t row0, int64_t row1, struct mask *m,
                  struct err *err)
{
    int64_t n = svg_band_tokens(b);
    struct span *s = NULL;
    int rc = 0;

    TRY(mem_alloc(&s, svg_band_max_spans(b), sizeof *s, "band of a row", err));
    TRY(mask_lists_init(m, n, n, row0, row1, false, 1, 1, err));
    for (int64_t i = row0; i < row1; i++) {
        int64_t spans = svg_band_row(b, i, s);
        for (int64_t k = 0; k < spans; k++)
            TRY(mask_lists_add_run(m, i - row0, s[k].lo, s[k].hi, err));
    }
    mask_lists_finish(m);
out:
    free(s);
    return rc;
}

/* ---- counts --------------------------------------------------------------------------------- */

static void count_row(const struct span *s, int64_t n, uint8_t *hit, struct svg_count *c)
{
    for (int64_t k = 0; k < n; k++) {
        c->pairs += s[k].hi - s[k].lo;
        for (int64_t t = s[k].lo / SVG_BLOCK; t <= (s[k].hi - 1) / SVG_BLOCK; t++) {
            c->tiles += !hit[t];
            hit[t] = 1;
        }
    }
}

int svg_band_count(const struct svg_band *b, int64_t padding, struct svg_count *c, struct err *err)
{
    int64_t n = svg_band_tokens(b), all = n + padding, tiles = ceil_div(all, SVG_BLOCK);
    uint8_t *hit = NULL;
    struct span s[3], pad = {(int32_t)n, (int32_t)all};
    int rc = 0;

    *c = (struct svg_count){0};
    TRY(mem_alloc(&hit, tiles, 1, "tiles of a row", err));
    for (int64_t x = 0; x < all; x++) {
        if (x % SVG_BLOCK == 0)
            memset(hit, 0, (size_t)tiles);
        if (x < n)
            count_row(s, svg_band_positions(b, x, s), hit, c);
        else
            count_row(&pad, 1, hit, c);
    }
out:
    free(hit);
    return rc;
}
