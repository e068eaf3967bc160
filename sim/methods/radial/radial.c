/*
 * radial.c - Radial Attention: a static band around the diagonal of every pair of video frames. Its
 * width halves each time the distance of the frames doubles; beyond the smallest width, fewer frame
 * pairs are kept.
 *
 * Radial Attention, arXiv 2506.19852. T frames of F tokens, blocks of B x B pairs; bl(x) is the bit
 * length of x, r = floor(log2 max(d, 1)). A query at place k of frame i sees the key at place l of
 * frame j, with d = |i - j|, iff
 *   profile=official   |k - l| <= max(B, decay w), w = 2^bl(F) / 2^bl(d), or d <= 1; where
 *                      w < thin (128), only every (thin / w)-th distance d is kept. The mask is
 *                      then cut into B x B blocks. A column of a block is dense if more than B/3 of
 *                      its pairs are kept; a block stays if more than 3/5 of its columns with a
 *                      kept pair are dense
 *   profile=paper      |k - l| + 1 <= F / 2^r; where 2^r > F, fewer distances are kept. The rule is
 *                      applied element by element and run as the B x B tiles that it touches
 * plus a sink (all queries see frame 0) and everything that touches text. One mask for all heads.
 * Building: O(T^2 (F/B)^2); kept pairs O(F^2 T log T).
 *
 * The published code fails if N is not a multiple of B; pad=ours applies the same rule to such N.
 */
#include "core/intmath.h"
#include "core/method.h"
#include "sim/metrics.h"
#include "sim/methods/radial/radialmap.h"

#include <math.h>
#include <stdlib.h>

enum profile { PROFILE_OFFICIAL, PROFILE_PAPER };
enum kind { KIND_AUTO, KIND_WAN, KIND_HUNYUAN };
enum pad { PAD_OURS, PAD_OFFICIAL };

struct params {
    int profile, kind, block, sink, pad, preset;
    int64_t thin, dense_layers, dense_steps;
    double decay;
};

static const char *const kinds[] = {"auto", "wan", "hunyuan", NULL};
static const char *const presets[] = {"none",       "wan21",        "wan22", "hunyuan",
                                      "wan21-long", "hunyuan-long", NULL};

/* Published settings; the step counts are those of runs of 50 steps (wan22: 40). */
static const struct preset {
    enum kind kind;
    int dense_layers, dense_steps, block;
    double decay;
} preset_values[] = {
    {KIND_AUTO, 0, 0, 128, NAN},      {KIND_WAN, 1, 12, 128, 0.2}, {KIND_WAN, 1, 11, 64, 0.8},
    {KIND_HUNYUAN, 0, 12, 128, 0.95}, {KIND_WAN, 2, 2, 128, 0.2},  {KIND_HUNYUAN, 2, 2, 128, 0.95},
};
enum { PRESET_NONE, PRESET_WAN21, PRESET_HUNYUAN = 3 };

static const struct opt options[] = {
    OPT_ENUM(struct params, profile, "official", TEXTS("official", "paper"),
             "the published mask function, or the paper's formula per element"),
    OPT_ENUM(struct params, kind, "auto", kinds,
             "model family: decay and sink; auto: of the preset, else wan without joint text"),
    OPT_NUM(
        struct params, decay, NULL, 0, 1, "",
        "official: factor on the band width; unset = of the preset, else 0.2 (wan), 0.95 (hunyuan)",
        .flags = OPT_MIN_OPEN),
    OPT_ENUM(struct params, block, NULL, TEXTS("64", "128"),
             "block of the mask; unset = of the preset, else 128", .unit = "tokens"),
    OPT_ENUM(struct params, sink, NULL, TEXTS("0", "1"),
             "all queries see frame 0; unset = 1 for wan and profile=paper, 0 for hunyuan"),
    OPT_INT(struct params, thin, "128", 1, 1e9, "tokens",
            "official: band length below which frame pairs are thinned"),
    OPT_INT(struct params, dense_layers, NULL, 0, 1e6, "layers",
            "first layers that run dense; unset = preset"),
    OPT_INT(struct params, dense_steps, NULL, 0, 1e6, "steps",
            "first denoising steps that run dense; unset = preset"),
    OPT_ENUM(struct params, pad, "ours", TEXTS("ours", "official"),
             "official: skip a sequence that is no multiple of the block"),
    OPT_ENUM(struct params, preset, NULL, presets,
             "published settings; unset = wan21 or hunyuan, as the kind"),
    {0},
};

struct state {
    struct attn_in x;
    struct radial_rule rule;
    bool dense, paper;
    int kind, preset;
    int64_t n_padding;
    struct block_map map;    /* official: trimmed to the valid tokens */
    int64_t kept_full;       /* blocks of the whole sequence, padding included */
    struct tile_count tiles; /* paper */
};

static void release(void *state)
{
    struct state *s = state;
    block_map_free(&s->map);
}

/* ---- the map -------------------------------------------------------------------------------- */

/* The block rule is that of the published mask function, whose column counts follow here from the
 * limits of the band instead of an F x F matrix. */

static int bit_length(int64_t x)
{
    return x ? 64 - __builtin_clzll((unsigned long long)x) : 0;
}

/* 2^bl(F) / 2^bl(d) */
static double band_length(int64_t F, int64_t d)
{
    return ldexp(1, bit_length(F) - bit_length(d));
}

double radial_width(const struct radial_rule *r, int64_t d)
{
    if (d <= 1)
        return (double)r->F;
    return fmax(band_length(r->F, d) * r->decay, (double)r->block);
}

bool radial_frames_kept(const struct radial_rule *r, int64_t d)
{
    double length = band_length(r->F, d);
    return length >= (double)r->thin || d % (int64_t)((double)r->thin / length) == 0;
}

bool radial_column_high(int64_t rows, int64_t block)
{
    return 3 * rows > block;
}

bool radial_block_kept(int64_t high, int64_t nonzero)
{
    return 5 * high > 3 * nonzero;
}

/* One frame pair on its canvas: the frame's first token stands `row` (`col`) tokens into its first
 * block, |k - l| <= reach is kept. */
struct frame_pair {
    int64_t F, block, row, col, reach;
};

static bool pair_block(const struct frame_pair *p, int64_t r, int64_t c)
{
    int64_t B = p->block;
    int64_t k0 = MAX(0, r * B - p->row), k1 = MIN(p->F, (r + 1) * B - p->row);
    int64_t l0 = MAX(0, c * B - p->col), l1 = MIN(p->F, (c + 1) * B - p->col);
    int64_t high = 0, nonzero = 0;
    if (k0 >= k1 || l0 >= l1 || l1 - 1 < k0 - p->reach || l0 > k1 - 1 + p->reach)
        return false;
    if (l0 >= k1 - 1 - p->reach && l1 - 1 <= k0 + p->reach)
        return radial_column_high(k1 - k0, B);
    for (int64_t l = l0; l < l1; l++) {
        int64_t rows = MIN(k1, l + p->reach + 1) - MAX(k0, l - p->reach);
        nonzero += rows > 0;
        high += rows > 0 && radial_column_high(rows, B);
    }
    return radial_block_kept(high, nonzero);
}

static void add_pair(const struct radial_rule *r, int64_t i, int64_t j, struct block_map *map)
{
    int64_t B = r->block, blocks = ceil_div(r->F, B);
    bool all = r->sink && j == 0;
    struct frame_pair p = {r->F, B, i * r->F % B, j * r->F % B,
                           all ? r->F : (int64_t)floor(radial_width(r, llabs(i - j)))};
    int64_t row0 = i * r->F / B, col0 = j * r->F / B;
    if (!all && !radial_frames_kept(r, llabs(i - j)))
        return;
    for (int64_t a = 0; a < MIN(blocks, map->rows - row0); a++)
        for (int64_t b = 0; b < MIN(blocks, map->cols - col0); b++)
            if (pair_block(&p, a, b))
                block_map_set(map, row0 + a, col0 + b);
}

int radial_map(const struct radial_rule *r, struct block_map *map, struct err *err)
{
    int64_t video = r->F * r->T, n = video + r->text;
    PASS_ON(block_map_init(map, n, n, r->block, false, err));
    for (int64_t i = 0; i < r->T; i++)
        for (int64_t j = 0; j < r->T; j++)
            add_pair(r, i, j, map);
    for (int64_t a = video / r->block; r->text > 0 && a < map->rows; a++)
        for (int64_t b = 0; b < map->cols; b++) {
            block_map_set(map, a, b);
            block_map_set(map, b, a);
        }
    return 0;
}

int64_t radial_spilled_pairs(const struct radial_rule *r)
{
    int64_t B = r->block, canvas = ceil_div(r->F, B) * B, n = 0;
    for (int64_t i = 0; i < r->T; i++)
        for (int64_t j = 0; i * r->F % B + r->F > canvas && j < r->T; j++)
            n += (r->sink && j == 0) || radial_frames_kept(r, llabs(i - j));
    return n;
}

/* ---- the printed formula -------------------------------------------------------------------- */

int64_t radial_reach(const struct radial_rule *r, int64_t d)
{
    int64_t band = (int64_t)1 << (bit_length(MAX(d, 1)) - 1); /* 2^floor(log2 d) */
    if (band <= r->F)
        return r->F / band - 1;
    return d % ceil_div(band, r->F) == 0 ? 0 : -1;
}

void radial_row(const struct radial_rule *r, int64_t i, int64_t k, int64_t j, int64_t *lo,
                int64_t *hi)
{
    int64_t reach = r->sink && j == 0 ? r->F : radial_reach(r, llabs(i - j));
    *lo = *hi = j * r->F;
    if (reach < 0)
        return;
    *lo += MAX(0, k - reach);
    *hi += MIN(r->F, k + reach + 1);
}

/* ---- parameters ----------------------------------------------------------------------------- */

static void resolve(const struct params *p, const struct head_in *in, struct state *s)
{
    bool text = in->geom.text > 0 || in->n_padding > 0;
    int kind = p->kind ? p->kind : p->preset > 0 ? (int)preset_values[p->preset].kind : KIND_AUTO;
    s->kind = kind ? kind : text ? KIND_HUNYUAN : KIND_WAN;
    s->preset = p->preset >= 0 ? p->preset : s->kind == KIND_WAN ? PRESET_WAN21 : PRESET_HUNYUAN;
    s->paper = p->profile == PROFILE_PAPER;

    const struct preset *of = &preset_values[s->preset];
    double decay = isnan(of->decay) ? (s->kind == KIND_WAN ? 0.2 : 0.95) : of->decay;
    s->rule = (struct radial_rule){
        .F = in->geom.h * in->geom.w,
        .T = in->geom.t,
        .text = in->geom.text + in->n_padding,
        .block = p->block < 0 ? of->block
                 : p->block   ? 128
                              : 64,
        .thin = p->thin,
        .decay = isnan(p->decay) ? decay : p->decay,
        .sink = p->sink < 0 ? s->paper || s->kind == KIND_WAN : p->sink == 1,
    };
    int64_t layers = p->dense_layers == INT64_MIN ? of->dense_layers : p->dense_layers;
    int64_t steps = p->dense_steps == INT64_MIN ? of->dense_steps : p->dense_steps;
    s->dense = in->layer < layers || in->step < steps;
}

static int check_head(struct method_ctx *ctx, const struct head_in *in)
{
    const struct geometry *g = &in->geom;
    if (g->t <= 0)
        return method_skip(ctx, "needs a video grid");
    if (g->text > 0 && g->text_place == 1)
        return method_skip(ctx, "text tokens stand in front of the video, not behind it");
    if (in->order)
        return method_skip(ctx, "needs the tokens in raster order, they are in order '%s'",
                           in->order);
    if (in->x.nq != in->x.nk || g->t * g->h * g->w + g->text != in->x.nq)
        return method_skip(ctx, "%lld queries and %lld keys are not the %lldx%lldx%lld grid",
                           (long long)in->x.nq, (long long)in->x.nk, (long long)g->t,
                           (long long)g->h, (long long)g->w);
    return 0;
}

/* Blocks of padding tokens are part of the published mask, and of no head. */
static void trim(struct block_map *map, int64_t n)
{
    int64_t blocks_left = ceil_div(n, map->block);
    for (int64_t i = 0; i < blocks_left; i++)
        for (int64_t j = blocks_left; j < map->cols; j++)
            block_map_clear(map, i, j);
    map->nq = map->nk = n;
    map->rows = map->cols = blocks_left;
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    const struct params *p = params;
    struct state *s = state;
    PASS_ON(check_head(ctx, in));
    resolve(p, in, s);
    s->x = in->x;
    s->n_padding = in->n_padding;
    s->tiles.bq = s->tiles.bk = s->rule.block;
    int64_t n = in->x.nq + in->n_padding;
    if (p->pad == PAD_OFFICIAL && n % s->rule.block)
        return method_skip(ctx, "%lld tokens are no multiple of the block of %lld", (long long)n,
                           (long long)s->rule.block);
    if (!s->dense && !s->paper) {
        PASS_ON(radial_map(&s->rule, &s->map, err));
        s->kept_full = block_map_count(&s->map);
        trim(&s->map, in->x.nq);
    }
    ctx->unit_rows = s->rule.block;
    return 0;
}

/* ---- masks ---------------------------------------------------------------------------------- */

static int paper_row(const struct state *s, int64_t i, struct mask *m, struct err *err)
{
    const struct radial_rule *r = &s->rule;
    int64_t g = i - m->row0, video = r->F * r->T, lo, hi;
    if (i >= video)
        return mask_lists_add_run(m, g, 0, (int32_t)s->x.nk, err);
    for (int64_t j = 0; j < r->T; j++) {
        radial_row(r, i / r->F, i % r->F, j, &lo, &hi);
        PASS_ON(mask_lists_add_run(m, g, (int32_t)lo, (int32_t)hi, err));
    }
    return mask_lists_add_run(m, g, (int32_t)video, (int32_t)s->x.nk, err);
}

static int paper_select(struct state *s, int64_t row0, int64_t row1, struct mask *m,
                        struct err *err)
{
    PASS_ON(mask_lists_init(m, s->x.nq, s->x.nk, row0, row1, false, 1, 1, err));
    for (int64_t i = row0; i < row1; i++)
        PASS_ON(paper_row(s, i, m, err));
    mask_lists_finish(m);
    return tile_count_add(&s->tiles, m, err);
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct state *s = state;
    if (!s->dense)
        return s->paper ? paper_select(s, row0, row1, out, err)
                        : block_map_mask(&s->map, row0, row1, out, err);
    mask_full(out, s->x.nq, s->x.nk, row0, row1, false);
    out->bq = out->bk = out->exec_bq = out->exec_bk = s->rule.block;
    return 0;
}

/* The first layers and steps run dense. */
static struct mask_origin origin(void *state)
{
    struct state *s = state;
    return (struct mask_origin){.which = s->dense, .counted = &s->tiles, .bytes = sizeof s->tiles};
}

static int report(void *state, struct record *r, struct err *err)
{
    const struct state *s = state;
    int64_t side = ceil_div(s->x.nq + s->n_padding, s->rule.block);
    record_note(r, "kind=%s", kinds[s->kind]);
    record_note(r, "preset=%s", presets[s->preset]);
    PASS_ON(record_metric(r, "dense_call", s->dense, err));
    if (s->dense) {
        return record_metric(r, "density_native", 1, err);
    } else if (s->paper) {
        PASS_ON(tile_count_report(&s->tiles, r, err));
        return record_metric(r, "density_native", record_get(r, "density_elem"), err);
    } else {
        PASS_ON(
            record_metric(r, "density_native", (double)s->kept_full / (double)(side * side), err));
        record_note(r, "spilled_pairs=%lld", (long long)radial_spilled_pairs(&s->rule));
    }
    return 0;
}

/* A band of few rows of the last block, by shares of whole blocks, may be empty. */
static bool may_be_empty(const void *params)
{
    const struct params *p = params;
    return p->preset == PRESET_NONE;
}

const struct method method_radial = {
    .name = "radial",
    .summary = "video: bands around the diagonal of frame pairs, narrower with their distance",
    .paper = "Radial Attention: O(n log n) Sparse Attention with Energy Decay for Long Video "
             "Generation, arXiv 2506.19852",
    .flags = METHOD_BIDIRECTIONAL | METHOD_SOFTCAP | METHOD_BIAS | METHOD_SINK,
    .params = {.table = options,
               .size = sizeof(struct params),
               .scopes = PARAM_SCOPES({"decay thin pad", "profile=official"}),
               .budget = BUDGET_PARAMS(BUDGET_BY(BUDGET_LIN, "decay", .only = "profile=official")),
               .may_be_empty = may_be_empty},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .release = release,
    .reuse = {.always_static = true, .of = origin},
    .tests = {.variants =
                  TEXTS("preset=none", "preset=none:block=64:decay=0.5:thin=8",
                        "preset=none:kind=hunyuan:block=64:thin=32", "preset=none:profile=paper",
                        "preset=none:profile=paper:sink=0:block=64")},
};
