/*
 * svg1.c - Sparse VideoGen: a head of a video transformer gets a band mask around the diagonal,
 * either of the tokens in their order (spatial) or of the tokens sorted by place (temporal).
 *
 * Sparse VideoGen, arXiv 2502.01776. On every call R sampled rows are computed exactly and under
 * the two masks; the smaller squared error decides. The band holds
 * `target` N^2 pairs: half-width N (1 - sqrt(1 - s')), rounded to 128.
 * Selection R N (d + dv) and two masked products; attention target N^2.
 *
 * profile=official classifies with a fixed narrower band of 128-token blocks, whatever the target,
 * on rows of the first 10000 tokens; profile=plain with the masks that are then run, on rows of the
 * whole sequence, and without rounding the width.
 *
 * Masks are given in the order of the trace: a temporal head's list is a few runs per frame. Its
 * tiles are those of its own order. Deviations: padding text tokens take no part in classification,
 * a row that a trial mask leaves without keys has output 0 (the code has NaN), families without a
 * classification mask of their own text placement are refused.
 */
#include "core/intmath.h"
#include "core/mem.h"
#include "sim/blocks/callrng.h"
#include "sim/blocks/exact.h"
#include "sim/blocks/selectcost.h"
#include "sim/metrics.h"
#include "sim/methods/svg1/svg1.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- bands ---------------------------------------------------------------------------------- */

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
    int64_t blocks = ceil_div(video, SVG_BLOCK), count;
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
    /* Frame f holds the places p with lo <= p T + f < hi of the positions [lo, hi). */
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
    OWN(free_at) struct span *s = NULL;
    PASS_ON(mem_alloc(&s, svg_band_max_spans(b), sizeof *s, "band of a row", err));
    PASS_ON(mask_lists_init(m, n, n, row0, row1, false, 1, 1, err));
    for (int64_t i = row0; i < row1; i++) {
        int64_t spans = svg_band_row(b, i, s);
        for (int64_t k = 0; k < spans; k++)
            PASS_ON(mask_lists_add_run(m, i - row0, s[k].lo, s[k].hi, err));
    }
    mask_lists_finish(m);
    return 0;
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
    OWN(free_at) uint8_t *hit = NULL;
    struct span s[3], pad = {(int32_t)n, (int32_t)all};
    *c = (struct svg_count){0};
    PASS_ON(mem_alloc(&hit, tiles, 1, "tiles of a row", err));
    for (int64_t x = 0; x < all; x++) {
        if (x % SVG_BLOCK == 0)
            memset(hit, 0, (size_t)tiles);
        if (x < n)
            count_row(s, svg_band_positions(b, x, s), hit, c);
        else
            count_row(&pad, 1, hit, c);
    }
    return 0;
}

/* ---- exact errors of two masks -------------------------------------------------------------- */

/* Rows of one mask that are computed together: all of a stretch when every row is wanted. */
#define STRETCH 64

static double squared_error(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t c = 0; c < n; c++)
        sum += (a[c] - b[c]) * (a[c] - b[c]);
    return sum;
}

static int exact_error(const struct head_in *in, const struct svg_band *trial, int64_t row0,
                       int64_t row1, double *out, double *lse, double *sum, double *pairs,
                       struct err *err)
{
    int64_t dv = in->x.dv;
    const double *ref;
    OWN(mask_free) struct mask m = {0};
    struct mask_counts n;
    PASS_ON(svg_band_mask(trial, row0, row1, &m, err));
    PASS_ON(mask_count(&m, &n, err));
    *pairs += (double)n.pairs_kept;
    PASS_ON(exact_attend(in->exact, &m, out, lse, err));
    PASS_ON(exact_out(in->exact, row0, row1, &ref, err));
    *sum += squared_error(out, ref, (row1 - row0) * dv);
    return 0;
}

static int classify_exact(const struct head_in *in, const struct svg_band trial[2],
                          const int64_t *rows, int64_t n_rows, double sum[2], double *pairs,
                          struct err *err)
{
    OWN(free_at) double *out = NULL, *lse = NULL;
    int64_t step = rows ? 1 : STRETCH;
    PASS_ON(mem_alloc(&out, step * in->x.dv, sizeof *out, "trial output", err));
    PASS_ON(mem_alloc(&lse, step, sizeof *lse, "trial normaliser", err));
    for (int64_t r = 0; r < n_rows; r += step) {
        int64_t row0 = rows ? rows[r] : r, row1 = row0 + MIN(n_rows - r, step);
        for (int k = 0; k < 2; k++)
            PASS_ON(exact_error(in, &trial[k], row0, row1, out, lse, &sum[k], pairs, err));
    }
    return 0;
}

/* ---- imitation of 16-bit tensors ------------------------------------------------------------ */

static float round_bf16(double x)
{
    return bf16_to_f32(f32_to_bf16((float)x));
}

/* Softmax over the keys of the spans and its product with v: probabilities and outputs are rounded,
 * sums are not. */
static void rounded_row(const struct attn_in *x, const float *s, const struct span *spans,
                        int64_t n_spans, float *out, double *sums)
{
    double top = -INFINITY, total = 0;
    for (int64_t k = 0; k < n_spans; k++)
        for (int64_t j = spans[k].lo; j < spans[k].hi; j++)
            top = fmax(top, s[j]);
    for (int64_t k = 0; k < n_spans; k++)
        for (int64_t j = spans[k].lo; j < spans[k].hi; j++)
            total += exp(s[j] - top);
    for (int c = 0; c < x->dv; c++)
        sums[c] = 0;
    for (int64_t k = 0; k < n_spans; k++)
        for (int64_t j = spans[k].lo; j < spans[k].hi; j++) {
            double p = round_bf16(exp(s[j] - top) / total);
            for (int c = 0; c < x->dv && p > 0; c++)
                sums[c] += p * x->v[j * x->dv + c];
        }
    for (int c = 0; c < x->dv; c++)
        out[c] = round_bf16(sums[c]);
}

struct rounded {
    double *scores, *sums; /* [nk], [dv] */
    float *s, *golden, *out;
    struct span *spans;
};

static int rounded_init(struct rounded *w, const struct attn_in *x, const struct svg_band trial[2],
                        struct err *err)
{
    int64_t a = svg_band_max_spans(&trial[0]), b = svg_band_max_spans(&trial[1]);
    PASS_ON(mem_alloc(&w->scores, x->nk, sizeof *w->scores, "scores of a row", err));
    PASS_ON(mem_alloc(&w->s, x->nk, sizeof *w->s, "rounded scores", err));
    PASS_ON(mem_alloc(&w->sums, x->dv, sizeof *w->sums, "trial output", err));
    PASS_ON(mem_alloc(&w->golden, x->dv, sizeof *w->golden, "trial output", err));
    PASS_ON(mem_alloc(&w->out, x->dv, sizeof *w->out, "trial output", err));
    return mem_alloc(&w->spans, MAX(a, b), sizeof *w->spans, "trial mask", err);
}

static void rounded_free(struct rounded *w)
{
    free(w->scores);
    free(w->s);
    free(w->sums);
    free(w->golden);
    free(w->out);
    free(w->spans);
}

static int classify_bf16(const struct head_in *in, const struct svg_band trial[2],
                         const int64_t *rows, int64_t n_rows, double sum[2], struct err *err)
{
    const struct attn_in *x = &in->x;
    OWN(rounded_free) struct rounded w = {0};
    struct span all = {0, (int32_t)x->nk};
    PASS_ON(rounded_init(&w, x, trial, err));
    for (int64_t r = 0; r < n_rows; r++) {
        int64_t row = rows ? rows[r] : r;
        PASS_ON(exact_scores(in->exact, row, row + 1, 0, x->nk, w.scores, err));
        for (int64_t j = 0; j < x->nk; j++)
            w.s[j] = round_bf16(round_bf16(w.scores[j] / x->scale) * x->scale);
        rounded_row(x, w.s, &all, 1, w.golden, w.sums);
        for (int k = 0; k < 2; k++) {
            rounded_row(x, w.s, w.spans, svg_band_row(&trial[k], row, w.spans), w.out, w.sums);
            for (int c = 0; c < x->dv; c++) {
                double delta = round_bf16((double)w.out[c] - w.golden[c]);
                sum[k] += round_bf16(delta * delta);
            }
        }
    }
    return 0;
}

int svg_classify(const struct head_in *in, const struct svg_band trial[2], const int64_t *rows,
                 int64_t n_rows, bool bf16, struct svg_class *out, struct err *err)
{
    double sum[2] = {0}, pairs = 0;
    n_rows = rows ? n_rows : in->x.nq;
    double n = (double)(n_rows * in->x.dv);
    if (bf16)
        PASS_ON(classify_bf16(in, trial, rows, n_rows, sum, err));
    else
        PASS_ON(classify_exact(in, trial, rows, n_rows, sum, &pairs, err));
    out->pairs = pairs;
    out->rows = n_rows;
    for (int k = 0; k < 2; k++)
        out->mse[k] = bf16 ? round_bf16(sum[k] / n) : sum[k] / n;
    out->temporal = out->mse[1] < out->mse[0];
    return 0;
}

#define STREAM_ROWS 0x73766731726f7773ull

enum profile { PROFILE_OFFICIAL, PROFILE_PLAIN };
enum trial { TRIAL_EMULATION, TRIAL_EXECUTED };

struct params {
    int profile, family, preset, trial, sink, arith;
    double target, dense_layers, dense_steps;
    int64_t row_limit;
    char *rows;
};

static const struct opt options[] = {
    OPT_ENUM(struct params, profile, "official", TEXTS("official", "plain"),
             "the published code, or the method without its shortcuts"),
    OPT_ENUM(struct params, family, "auto", svg_families,
             "model family: mask rule; auto = of the preset, else from the place of the text"),
    OPT_ENUM(struct params, preset, NULL, svg_presets,
             "published settings; unset = the family's at 720p"),
    OPT_NUM(struct params, target, NULL, 0, 1, "share of pairs",
            "density that the width is computed for; unset = of the preset, else 0.3 (wan), 0.25",
            .flags = OPT_MIN_OPEN | OPT_MAX_OPEN),
    OPT_STR(struct params, rows, NULL, NULL,
            "sampled query rows, or all; unset = of the preset (64, cog 32)", .unit = "rows"),
    OPT_INT(struct params, row_limit, NULL, 1, INT_MAX, "rows",
            "rows are drawn from the first so many; unset = 10000; cog and profile=plain: all"),
    OPT_ENUM(struct params, trial, NULL, TEXTS("emulation", "executed"),
             "masks that classify: fixed block bands, or those that are run; unset = by profile"),
    OPT_ENUM(struct params, sink, NULL, TEXTS("0", "1"),
             "always keep the first frame's columns; unset = 1 for wan and cosmos"),
    OPT_ENUM(struct params, arith, "f32", TEXTS("f32", "bf16"),
             "bf16 rounds the classification as the code does"),
    OPT_NUM(struct params, dense_layers, NULL, 0, 1, "share of layers",
            "first layers that run dense; unset = preset"),
    OPT_NUM(struct params, dense_steps, NULL, 0, 1, "share of steps",
            "first denoising steps that run dense; unset = preset"),
    {0},
};

struct state {
    struct attn_in x;
    const struct head_in *in;
    const struct params *params;
    const struct svg_preset *preset;
    struct svg_band band;
    double width_frames;
    bool dense, bf16, changed;
    bool classified; /* by the first select, or taken */
    struct svg_class class;
    int64_t n_padding;
    uint64_t seed;
};

/* ---- parameters ----------------------------------------------------------------------------- */

/* "all" = 0. */
static int parse_rows(const char *text, int64_t *n, struct err *err)
{
    char *end;
    *n = 0;
    if (strcmp(text, "all") == 0)
        return 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || v < 1 || v > INT_MAX)
        return err_set(err, ERR_USAGE, "rows=%s: expected a number of rows, at least 1, or all",
                       text);
    *n = v;
    return 0;
}

static int validate(void *params, struct err *err)
{
    const struct params *p = params;
    int64_t n;
    return p->rows ? parse_rows(p->rows, &n, err) : 0;
}

static int make_band(const struct params *p, const struct head_in *in, enum svg_family family,
                     struct state *s, struct err *err)
{
    int64_t F = in->geom.h * in->geom.w, n = in->x.nq + in->n_padding;
    int64_t text = in->geom.text + in->n_padding;
    double target = !isnan(p->target)           ? p->target
                    : !isnan(s->preset->target) ? s->preset->target
                    : family == SVG_WAN         ? 0.3
                                                : 0.25;
    s->width_frames = svg_width_frames(target, text, n, F);
    if (isnan(s->width_frames))
        return err_set(err, ERR_INPUT,
                       "target below text share: rows and columns of %lld text tokens alone are %g "
                       "of all pairs; give a target above it",
                       (long long)text, 2 * (double)text / (double)n);
    s->band = (struct svg_band){
        .family = family,
        .T = in->geom.t,
        .F = F,
        .text = in->geom.text,
        .sink = p->sink < 0 ? wan_like(family) : p->sink == 1,
        .width = svg_half_width(family, s->width_frames, F, p->profile == PROFILE_PLAIN)};
    return 0;
}

/* ---- classification ------------------------------------------------------------------------- */

/* Sampled rows, 0 = all, and the first so many that they are drawn from. */
static void sample_size(const struct state *s, int64_t *n, int64_t *limit)
{
    const struct params *p = s->params;
    bool everywhere = p->profile == PROFILE_PLAIN || s->band.family == SVG_COG;
    struct err none = {0};
    *n = s->preset->rows;
    if (p->rows)
        parse_rows(p->rows, n, &none); /* validate has read it */
    *n = MIN(*n, s->x.nq);
    *limit = p->row_limit != INT64_MIN ? p->row_limit : everywhere ? s->x.nq : 10000;
    *limit = MIN(*limit, s->x.nq);
}

/* *rows = NULL: all. */
static int sample_rows(const struct state *s, int64_t **rows, int64_t *n, struct err *err)
{
    uint64_t stream = call_stream(STREAM_ROWS, s->in);
    int64_t limit;
    *rows = NULL;
    sample_size(s, n, &limit);
    if (*n == 0)
        return 0;
    PASS_ON(mem_alloc(rows, *n, sizeof **rows, "sampled rows", err));
    for (int64_t r = 0; r < *n; r++)
        (*rows)[r] = (int64_t)rng_below(s->seed, stream, (uint64_t)r, (uint64_t)limit);
    return 0;
}

static void trial_bands(const struct state *s, struct svg_band trial[2])
{
    const struct params *p = s->params;
    for (int k = 0; k < 2; k++) {
        trial[k] = s->band;
        trial[k].temporal = k == 1;
        trial[k].trial = (p->trial < 0 ? p->profile == PROFILE_PLAIN : p->trial) == TRIAL_EMULATION;
        if (trial[k].trial)
            trial[k].width = svg_trial_limit(s->band.family, s->band.F);
    }
}

static int classify(struct state *s, struct err *err)
{
    struct svg_band trial[2];
    struct svg_class exact;
    OWN(free_at) int64_t *rows = NULL;
    int64_t n;
    if (s->dense || s->classified)
        return 0;
    trial_bands(s, trial);
    PASS_ON(sample_rows(s, &rows, &n, err));
    PASS_ON(svg_classify(s->in, trial, rows, n, false, &exact, err));
    s->class = exact;
    if (s->bf16)
        PASS_ON(svg_classify(s->in, trial, rows, n, true, &s->class, err));
    s->class.pairs = exact.pairs;
    s->class.rows = exact.rows;
    s->changed = s->class.temporal != exact.temporal;
    s->band.temporal = s->class.temporal;
    s->classified = true;
    return 0;
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    const struct params *p = params;
    enum svg_family family = svg_family(p->family, p->preset, in);
    const struct svg_preset *preset = svg_preset(p->preset, family);
    struct state *s = state;
    struct svg_warmup warm;
    PASS_ON(svg_check_head(ctx, family, in));
    PASS_ON(svg_warmup(ctx, family, isnan(p->dense_layers) ? preset->dense_layers : p->dense_layers,
                       isnan(p->dense_steps) ? preset->dense_steps : p->dense_steps, in, &warm));
    s->x = in->x;
    s->in = in;
    s->params = p;
    s->seed = ctx->seed;
    s->preset = preset;
    s->bf16 = p->arith == 1;
    s->n_padding = in->n_padding;
    s->dense = in->layer < warm.layers || in->step < warm.steps;
    PASS_ON(make_band(p, in, family, s, err));
    ctx->unit_rows = SVG_BLOCK;
    return 0;
}

/* ---- masks and numbers ---------------------------------------------------------------------- */

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct state *s = state;
    const struct svg_band *b = &s->band;
    PASS_ON(classify(s, err));
    if (!s->dense && (b->temporal || !wan_like(b->family)))
        return svg_band_mask(b, row0, row1, out, err);
    if (s->dense)
        mask_full(out, s->x.nq, s->x.nk, row0, row1, false);
    else
        mask_band(out, s->x.nq, s->x.nk, row0, row1, false,
                  (struct band){b->sink ? b->F : 0, b->width + 1, s->x.nq});
    out->bq = out->bk = out->exec_bq = out->exec_bk = SVG_BLOCK;
    return 0;
}

static int report_band(const struct state *s, struct record *r, struct err *err)
{
    int64_t all = s->x.nq + s->n_padding;
    int64_t side = ceil_div(s->x.nq, SVG_BLOCK);
    int64_t side_all = ceil_div(all, SVG_BLOCK);
    struct tile_count tiles = {SVG_BLOCK, SVG_BLOCK, 0, side * side, side * side};
    struct svg_count c;
    PASS_ON(svg_band_count(&s->band, 0, &c, err));
    tiles.kept = c.tiles;
    PASS_ON(tile_count_report(&tiles, r, err));
    PASS_ON(svg_band_count(&s->band, s->n_padding, &c, err));
    PASS_ON(RECORD_ALL(r, err, {"density_native", (double)c.tiles / (double)(side_all * side_all)},
                       {"temporal", s->class.temporal}, {"mse_spatial", s->class.mse[0]},
                       {"mse_temporal", s->class.mse[1]}));
    if (s->bf16)
        PASS_ON(record_metric(r, "class_changed", s->changed, err));
    record_note(r, "half_width=%lld", (long long)s->band.width);
    record_note(r, "width_frames=%.6f", s->width_frames);
    return 0;
}

/* One mask for each class, and that of a dense call. */
static struct mask_origin origin(void *state)
{
    const struct state *s = state;
    return (struct mask_origin){.source = s->dense ? SOURCE_STATIC : SOURCE_OWN,
                                .same_mask = true,
                                .which = s->dense ? 2 : s->band.temporal,
                                .any_order = s->dense || s->classified};
}

static bool rule(const void *state, struct rule *rule, char why[160])
{
    const struct state *s = state;
    struct svg_band trial[2];
    int64_t rows, limit;
    sample_size(s, &rows, &limit);
    if (s->bf16 || rows == 0)
        return method_refuses(why, "the GPU side has sampled rows with arith=f32");
    trial_bands(s, trial);
    rule->of.svg1 = (struct svg1_rule){.frames = s->band.T,
                                       .frame = s->band.F,
                                       .text = s->band.text,
                                       .wide = wan_like(s->band.family),
                                       .front = s->band.family == SVG_COG,
                                       .sink = trial->sink,
                                       .trial = trial->trial,
                                       .width = trial->width,
                                       .rows = rows,
                                       .limit = limit,
                                       .seed = s->seed,
                                       .stream = call_stream(STREAM_ROWS, s->in)};
    return true;
}

/* Pairs of the sampled rows under both trials. */
static int count_pairs(struct state *s, struct err *err)
{
    struct svg_band trial[2];
    OWN(free_at) struct span *spans = NULL;
    OWN(free_at) int64_t *rows = NULL;
    trial_bands(s, trial);
    PASS_ON(sample_rows(s, &rows, &s->class.rows, err));
    PASS_ON(mem_alloc(&spans, svg_band_max_spans(&trial[1]), sizeof *spans, "trial mask", err));
    for (int64_t r = 0; r < s->class.rows; r++)
        for (int k = 0; k < 2; k++)
            for (int64_t i = svg_band_row(&trial[k], rows[r], spans) - 1; i >= 0; i--)
                s->class.pairs += spans[i].hi - spans[i].lo;
    return 0;
}

static int take(void *state, const struct device_choice *c, struct err *err)
{
    struct state *s = state;
    const struct mask *m = c->lists;
    const struct svg1_own *numbers = c->own->data;
    if (m->form != MASK_LISTS || m->bq != s->x.nq || m->bk != s->x.nk ||
        c->own->bytes != (int64_t)sizeof *numbers)
        return err_set(err, ERR_RUN, "the device has chosen no class of the head");
    s->class = (struct svg_class){.mse = {numbers->mse[0], numbers->mse[1]},
                                  .temporal = m->ptr[1] > m->ptr[0]};
    s->band.temporal = s->class.temporal;
    s->classified = true;
    return count_pairs(s, err);
}

/* Three attentions of every sampled row: over all keys, and over the keys of either mask. */
static bool cost(const void *state, struct select_cost *c)
{
    const struct state *s = state;
    const struct attn_in *x = &s->x;
    double rows = (double)s->class.rows, pairs = s->class.pairs + rows * (double)x->nk;
    cost_products(c, pairs, x->d + x->dv);
    cost_softmax(c, pairs);
    cost_products(c, 2 * rows, x->dv); /* differences, squared */
    cost_rows(c, s->in, rows + 3 * (double)x->nk, x->d);
    cost_rows(c, s->in, 3 * (double)x->nk, x->dv);
    cost_kept(c, 3 * rows * x->dv);
    return true;
}

static int report(void *state, struct record *r, struct err *err)
{
    const struct state *s = state;
    record_note(r, "family=%s", svg_families[s->band.family]);
    record_note(r, "preset=%s", svg_preset_name(s->preset));
    PASS_ON(record_metric(r, "dense_call", s->dense, err));
    if (s->dense)
        return record_metric(r, "density_native", 1, err);
    return report_band(s, r, err);
}

static const struct metric_def metrics[] = {
    OWN_METRIC("temporal", "1 for a head classified as temporal, 0 for a spatial one"),
    OWN_METRIC_IN("output^2", "mse_spatial",
                  "mean squared error of the sampled rows under the spatial trial mask",
                  .better = BETTER_LOWER, .noise = NOISE_ROUNDING),
    OWN_METRIC_IN("output^2", "mse_temporal",
                  "mean squared error of the sampled rows under the temporal trial mask",
                  .better = BETTER_LOWER, .noise = NOISE_ROUNDING),
    OWN_METRIC("class_changed", "1 where 16-bit arithmetic changes the class"),
    {0},
};

const struct method method_svg1 = {
    .name = "svg1",
    .alias = "sparsevideogen",
    .summary = "video: heads sorted into spatial and temporal ones, a band in the order of each",
    .paper = "Sparse VideoGen: Accelerating Video Diffusion Transformers with Spatial-Temporal "
             "Sparsity, arXiv 2502.01776",
    .flags = METHOD_BIDIRECTIONAL | METHOD_RANDOM,
    .params = {.table = options,
               .size = sizeof(struct params),
               .budget = BUDGET_PARAMS(BUDGET_BY(BUDGET_LIN, "target")),
               .validate = validate},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .metrics = metrics,
    .cost = cost,
    .device = {.rule = rule, .take = take},
    .reuse = {.of = origin},
    .tests = {.variants = TEXTS("preset=none", "preset=none:arith=bf16:rows=7",
                                "profile=plain:dense_steps=0:target=0.45",
                                "dense_steps=0:trial=executed:rows=all:sink=0"),
              .budgets = METHOD_BUDGETS({"profile=plain:trial=emulation:dense_steps=0:target=%s",
                                         {"0.1", "0.3", "0.7", "0.99"}})},
};
