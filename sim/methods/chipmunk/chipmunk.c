/*
 * chipmunk.c - Chipmunk: dense attention on a few denoising steps; on the steps between,
 * column-sparse attention plus the difference between dense and sparse output of the last dense
 * step.
 *
 * Chipmunk, arXiv 2506.03275. Tokens in voxel order, groups of 192 queries:
 *
 *   full step    O dense; m_gj = sum over the group's rows of e^(s_ij - LSE_i of the full step
 *                before); keep the top_keys N largest, a few random and a static local set;
 *                store Delta = O - O_sparse
 *   other steps  O = Delta + O_sparse(q, k, v of this step), O_sparse renormalised over the list
 *
 * Per head and branch N d numbers and N^2 / 192 bits are carried. A full step costs dense
 * attention, with the column sums in the same pass, and one sparse call. Mask and recall do not
 * include Delta; the error does.
 *
 * profile=official follows the published code: list padding is made of real keys, the first voxel
 * is kept by every group, the normaliser is the previous full step's. profile=clean has neither. In
 * both the masses are exact sums (the code adds 16-bit products in any order), ties go to the lower
 * key, top_keys=1 keeps everything (in the code no group would then be sparse), padding text tokens
 * are left out. Groups that would keep nearly all keys have their static set alone, as in the code.
 */
#include "core/intmath.h"
#include "core/mem.h"
#include "core/rng.h"
#include "sim/blocks/callrng.h"
#include "sim/blocks/exact.h"
#include "sim/blocks/numlist.h"
#include "sim/blocks/prefix.h"
#include "sim/blocks/selectcost.h"
#include "sim/methods/chipmunk/chipmunk.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- masks ---------------------------------------------------------------------------------- */

void chip_shape_of(const struct geometry *g, const int64_t voxel[3], struct chip_shape *out)
{
    int64_t size[3] = {g->t, g->h, g->w};
    *out = (struct chip_shape){.video = g->t * g->h * g->w, .text = g->text, .voxels = 1};
    for (int a = 0; a < 3; a++) {
        out->grid[a] = size[a] / voxel[a];
        out->voxels *= out->grid[a];
    }
    out->n = out->video + out->text;
    out->groups = ceil_div(out->n, CHIP_ROWS);
}

/* ---- schedule ------------------------------------------------------------------------------- */

bool chip_full_step(const struct chip_schedule *s, int64_t t)
{
    for (int k = 0; k < s->n; k++)
        if (s->list[k] == t)
            return true;
    return !s->list && (t < 2 || t % s->every == 0);
}

int64_t chip_full_before(const struct chip_schedule *s, int64_t t)
{
    for (t--; t >= 0; t--)
        if (chip_full_step(s, t))
            break;
    return t;
}

/* ---- static keys ---------------------------------------------------------------------------- */

static void keep_range(struct slice_mask *m, int64_t g, int64_t lo, int64_t hi)
{
    for (int64_t j = MAX(0, lo); j < MIN(hi, m->nk); j++)
        slice_mask_set(m, g, j);
}

/* An even side acts as the next odd one. */
static int64_t cube_side(const struct chip_rule *r)
{
    return r->local_voxels / 2 * 2 + 1;
}

int64_t chip_cube_start(int64_t x, int64_t size, int64_t side)
{
    return MAX(0, MIN(x - side / 2, size - side));
}

bool chip_cube_fits(const struct chip_shape *s, const struct chip_rule *r)
{
    int64_t side = cube_side(r);
    return r->local_voxels == 0 || s->voxels == 0 ||
           (side <= s->grid[0] && side <= s->grid[1] && side <= s->grid[2]);
}

static void keep_cube(const struct chip_shape *s, const struct chip_rule *r, int64_t g,
                      struct slice_mask *m)
{
    int64_t at[3] = {g / (s->grid[1] * s->grid[2]), g / s->grid[2] % s->grid[1], g % s->grid[2]};
    int64_t lo[3], hi[3], side = cube_side(r);
    for (int a = 0; a < 3; a++) {
        lo[a] = chip_cube_start(at[a], s->grid[a], side);
        hi[a] = MIN(s->grid[a], lo[a] + side);
    }
    for (int64_t t = lo[0]; t < hi[0]; t++)
        for (int64_t y = lo[1]; y < hi[1]; y++) {
            int64_t row = (t * s->grid[1] + y) * s->grid[2];
            keep_range(m, g, (row + lo[2]) * CHIP_ROWS, (row + hi[2]) * CHIP_ROWS);
        }
}

static void keep_neighbours(const struct chip_shape *s, const struct chip_rule *r, int64_t g,
                            struct slice_mask *m)
{
    int64_t lv = r->local_voxels;
    if (g >= s->voxels) {
        keep_range(m, g, lv > 0 ? s->n - CHIP_ROWS * lv * lv * lv : s->n, s->n);
        return;
    }
    /* The published table of neighbours has (side + 1)^3 slots for odd sides; the unused ones are
     * zero and name the first box. */
    if (!r->clean && (lv == 0 || lv % 2 == 1))
        keep_range(m, g, 0, CHIP_ROWS);
    if (lv > 0)
        keep_cube(s, r, g, m);
}

int chip_static(const struct chip_shape *s, const struct chip_rule *r, struct slice_mask *out,
                struct err *err)
{
    int64_t last = s->groups - (s->text / CHIP_ROWS + 1); /* groups from here on see nearly all */
    int64_t window = (int64_t)(r->local_1d * (double)s->video) / 2;
    PASS_ON(slice_mask_init(out, s->n, s->n, false, CHIP_ROWS, 1, err));
    for (int64_t g = 0; g < s->groups; g++) {
        keep_range(out, g, s->video, s->n);
        keep_neighbours(s, r, g, out);
        if (g >= last)
            keep_range(out, g, s->n - s->n / CHIP_TILE * CHIP_TILE, s->n);
        for (int64_t j = 0; g < last && r->random_keys > 0 && j < s->n; j++)
            if (rng_uniform(r->seed, CHIP_STREAM_STATIC, (uint64_t)(g * s->n + j)) < r->random_keys)
                slice_mask_set(out, g, j);
        int64_t centre = g * CHIP_ROWS + CHIP_ROWS / 2;
        if (window > 0 && g < s->video / CHIP_ROWS)
            keep_range(out, g, centre - window, MIN(s->video, centre + window));
    }
    return 0;
}

/* ---- keys of a head ------------------------------------------------------------------------- */

bool chip_sparse_group(const struct chip_shape *s, const struct chip_rule *r, int64_t static_keys)
{
    return static_keys + (int64_t)(r->top_keys * (double)s->video) < s->n;
}

int64_t chip_top_keys(const struct chip_rule *r, int64_t n)
{
    double blocks = r->top_keys * (double)n / (double)r->multiple;
    return MIN(n, (int64_t)nearbyint(blocks) * r->multiple);
}

void chip_pad(struct slice_mask *m, int64_t g, int64_t multiple)
{
    int64_t count = slice_mask_count(m, g);
    for (int64_t j = 0; j < m->nk && count % multiple; j++)
        if (!slice_mask_has(m, g, j)) {
            slice_mask_set(m, g, j);
            count++;
        }
}

struct chip_run {
    const struct chip_shape *shape;
    const struct chip_rule *rule;
    struct slice_mask *mask;
    struct prefix_work *work;
    uint64_t stream;
    int64_t top, selected;
};

static int add_selected(struct chip_run *run, const struct map_group *g, struct err *err)
{
    int64_t n = run->shape->n;
    struct prefix best;
    PASS_ON(prefix_topk(run->work, g->sum, n, run->top, &best, err));
    for (int64_t j = 0; j < n; j++) {
        uint64_t counter = (uint64_t)(g->index * n + j);
        if (prefix_has(&best, g->sum[j], j) ||
            rng_uniform(run->rule->seed, run->stream, counter) < run->rule->redraw)
            slice_mask_set(run->mask, g->index, j);
    }
    return 0;
}

static int chip_group(void *ctx, const struct map_group *g, struct err *err)
{
    struct chip_run *run = ctx;
    int64_t fixed = slice_mask_count(run->mask, g->index);
    if (run->rule->top_keys == 1)
        keep_range(run->mask, g->index, 0, run->shape->n);
    else if (run->top > 0 && chip_sparse_group(run->shape, run->rule, fixed))
        PASS_ON(add_selected(run, g, err));
    run->selected += (g->row1 - g->row0) * slice_mask_count(run->mask, g->index);
    if (!run->rule->clean)
        chip_pad(run->mask, g->index, run->rule->multiple);
    return 0;
}

int chip_raise(const struct head_in *in, const double *lse, double *out, struct err *err)
{
    const double *own;
    PASS_ON(exact_lse(in->exact, 0, in->x.nq, &own, err));
    for (int64_t r0 = 0; r0 < in->x.nq; r0 += CHIP_ROWS) {
        int64_t r1 = MIN(r0 + CHIP_ROWS, in->x.nq);
        double most = 0;
        for (int64_t i = r0; i < r1; i++)
            most = fmax(most, own[i] - lse[i]);
        for (int64_t i = r0; i < r1; i++)
            out[i] = lse[i] + most;
    }
    return 0;
}

int chip_mask(const struct chip_shape *s, const struct chip_rule *r, const struct head_in *in,
              const double *raised, uint64_t stream, struct slice_mask *out, int64_t *selected,
              struct err *err)
{
    struct chip_run run = {
        .shape = s, .rule = r, .mask = out, .stream = stream, .top = chip_top_keys(r, s->n)};
    int rc = 0;
    TRY(chip_static(s, r, out, err));
    TRY(prefix_work_new(&run.work, err));
    TRY(map_groups(in->exact, raised, CHIP_ROWS, chip_group, &run, err));
    *selected = run.selected;
out:
    prefix_work_free(run.work);
    if (rc)
        slice_mask_free(out);
    return rc;
}

#define STREAM_REDRAW 0x6368697072656472ull
#define MOST_STEPS 256

enum profile { PROFILE_OFFICIAL, PROFILE_CLEAN };
enum kind { KIND_AUTO, KIND_WAN, KIND_HUNYUAN };
enum norm { NORM_PREVIOUS, NORM_EXACT };

struct params {
    int profile, kind, norm, voxel, multiple;
    double top_keys, random_keys, redraw, local_1d;
    int64_t local_voxels, full_every, dense_layers, rows;
    char *full_steps;
    bool recompute, delta;
};

static const char *const kinds[] = {"auto", "wan", "hunyuan", NULL};

/* Boxes of 192 tokens, time x height x width. */
static const char *const voxels[] = {"4x6x8",   "4x8x6",  "4x4x12", "4x12x4", "2x8x12",
                                     "2x12x8",  "3x8x8",  "6x4x8",  "8x4x6",  "8x6x4",
                                     "1x12x16", "1x8x24", "12x4x4", NULL};
static const char *const orders[] = {
    "voxel:4x6x8",   "voxel:4x8x6",  "voxel:4x4x12", "voxel:4x12x4", "voxel:2x8x12",
    "voxel:2x12x8",  "voxel:3x8x8",  "voxel:6x4x8",  "voxel:8x4x6",  "voxel:8x6x4",
    "voxel:1x12x16", "voxel:1x8x24", "voxel:12x4x4"};

static const struct opt options[] = {
    OPT_ENUM(struct params, profile, "official", TEXTS("official", "clean"),
             "the published code, or its idea without the artefacts"),
    OPT_ENUM(struct params, kind, "auto", kinds,
             "model family with these defaults; auto: hunyuan with joint text, else wan"),
    OPT_NUM(struct params, top_keys, NULL, 0, 1, "share of N",
            "keys kept per group by column mass; unset = 0.1 (wan), 0.05 (hunyuan); 1 keeps all"),
    OPT_NUM(struct params, random_keys, "0.01", 0, 1, "probability",
            "keys of the static mask drawn once per seed"),
    OPT_NUM(struct params, redraw, "0.01", 0, 1, "probability", "keys drawn anew with every mask"),
    OPT_INT(struct params, local_voxels, NULL, 0, 1001, "voxels",
            "side of the cube of voxels around a group's own, or 0 for none; an even side acts as "
            "the next odd one; unset = 5 (wan), 0 (hunyuan)"),
    OPT_NUM(struct params, local_1d, "0", 0, 1, "share of video tokens",
            "window of neighbours in voxel order"),
    OPT_INT(struct params, full_every, NULL, 1, 1e6, "steps",
            "full steps are 0, 1 and the multiples of it; unset = 10, or hunyuan's list"),
    OPT_STR(struct params, full_steps, NULL, NULL,
            "full steps as a+b+c instead; unset = none (wan), 0+1+10+40 (hunyuan)",
            .unit = "steps"),
    OPT_INT(struct params, dense_layers, "2", 0, 1e6, "layers",
            "first layers that are always dense"),
    OPT_BOOL(struct params, recompute, "1",
             "new mask on every full step after step 0; 0: on step 1 only"),
    OPT_INT(struct params, rows, "192", CHIP_ROWS, CHIP_ROWS, "rows", "queries of a group; fixed"),
    OPT_ENUM(struct params, multiple, "128", TEXTS("112", "128"), "key counts are rounded to this",
             .unit = "keys"),
    OPT_BOOL(struct params, delta, "1",
             "add the stored difference; 0: column-sparse attention alone"),
    OPT_ENUM(struct params, norm, NULL, TEXTS("previous", "exact"),
             "normaliser of the column mass: of the full step before, or of the step itself; unset "
             "= previous, with profile=clean exact"),
    OPT_ENUM(struct params, voxel, "4x6x8", voxels, "box of 192 tokens, time x height x width",
             .unit = "tokens"),
    {0},
};

enum call { CALL_DENSE, CALL_FULL, CALL_SPARSE };

/* From step to step. */
struct chip_carry {
    struct slice_mask mask;
    int64_t selected; /* its pairs before padding */
    int made;         /* step of the mask, -1: none */
    double *lse;      /* [n] of a full step */
    int lse_step;     /* -1: none */
    double *delta;    /* [n][dv] of a full step; NULL: a device adds `rounded` */
    float *rounded;   /* the same as a device adds it */
    int delta_step;
    int64_t n, dv; /* of lse and delta */
};

struct state {
    struct head_in in;
    const struct params *params;
    struct chip_shape shape;
    struct chip_rule rule;
    struct chip_schedule schedule;
    int64_t list[MOST_STEPS];
    bool exact_norm, made;
    int kind;
    enum call call;
    struct chip_carry *carry; /* whose mask is applied, or was made; NULL: none */

    /* Set for a call that makes a mask: the first select does, or take. */
    bool pending;
    double *raised;          /* [n] normalisers of the masses, owned */
    struct chip_given given; /* the same, for a device */
};

static void carry_free(void *data)
{
    struct chip_carry *c = data;
    slice_mask_free(&c->mask);
    free(c->lse);
    free(c->delta);
    free(c->rounded);
    free(c);
}

static void release(void *state)
{
    free(((struct state *)state)->raised);
}

static const char *token_order(const void *params)
{
    return orders[((const struct params *)params)->voxel];
}

/* ---- parameters ----------------------------------------------------------------------------- */

#define HUNYUAN_STEPS "0+1+10+40"

static int validate(void *params, struct err *err)
{
    const struct params *p = params;
    int64_t list[MOST_STEPS];
    int n;
    if (!p->full_steps)
        return 0;
    if (p->full_every != INT64_MIN)
        return err_set(
            err, ERR_USAGE,
            "full_steps and full_every are two ways to give the full steps; leave one out");
    PASS_ON(int_list_parse(p->full_steps, "full_steps", -1, list, MOST_STEPS, &n, err));
    struct chip_schedule s = {.list = list, .n = n};
    if (!chip_full_step(&s, 0) || !chip_full_step(&s, 1))
        return err_set(err, ERR_USAGE,
                       "full_steps=%s: steps 0 and 1 must be full, they make the first mask",
                       p->full_steps);
    return 0;
}

static int resolve(const struct params *p, const struct method_ctx *ctx, const struct head_in *in,
                   struct state *s, struct err *err)
{
    int64_t box[3];
    const char *steps = p->full_steps;
    s->params = p;
    s->in = *in;
    s->kind = p->kind ? p->kind : in->geom.text + in->n_padding > 0 ? KIND_HUNYUAN : KIND_WAN;
    bool wan = s->kind == KIND_WAN, clean = p->profile == PROFILE_CLEAN;
    s->exact_norm = p->norm < 0 ? clean : p->norm == NORM_EXACT;
    sscanf(voxels[p->voxel], "%" SCNd64 "x%" SCNd64 "x%" SCNd64, &box[0], &box[1], &box[2]);
    chip_shape_of(&in->geom, box, &s->shape);
    s->rule = (struct chip_rule){
        .top_keys = !isnan(p->top_keys) ? p->top_keys
                    : wan               ? 0.1
                                        : 0.05,
        .random_keys = p->random_keys,
        .redraw = p->redraw,
        .local_1d = p->local_1d,
        .local_voxels = p->local_voxels != INT64_MIN ? p->local_voxels
                        : wan                        ? 5
                                                     : 0,
        .multiple = p->multiple ? 128 : 112,
        .clean = clean,
        .seed = ctx->seed,
    };
    s->schedule.every = p->full_every != INT64_MIN ? p->full_every : 10;
    if (!steps && !wan && p->full_every == INT64_MIN)
        steps = HUNYUAN_STEPS;
    if (steps) {
        PASS_ON(int_list_parse(steps, "full_steps", -1, s->list, MOST_STEPS, &s->schedule.n, err));
        s->schedule.list = s->list;
    }
    return 0;
}

static int check_head(struct method_ctx *ctx, const struct state *s)
{
    const struct head_in *in = &s->in;
    if (in->geom.text > 0 && in->geom.text_place == 1)
        return method_skip(ctx, "text tokens stand in front of the video, not behind it");
    if (in->geom.t <= 0 || s->shape.n != in->x.nq || in->x.nq != in->x.nk)
        return method_skip(ctx, "%lld queries and %lld keys are not the %lldx%lldx%lld grid",
                           (long long)in->x.nq, (long long)in->x.nk, (long long)in->geom.t,
                           (long long)in->geom.h, (long long)in->geom.w);
    if (!s->rule.clean && !chip_cube_fits(&s->shape, &s->rule))
        return method_skip(ctx,
                           "local_voxels=%lld is a cube of side %lld, more than the %lldx%lldx%lld "
                           "voxels of the video; give fewer (0 for none) or profile=clean",
                           (long long)s->rule.local_voxels, (long long)(s->rule.local_voxels | 1),
                           (long long)s->shape.grid[0], (long long)s->shape.grid[1],
                           (long long)s->shape.grid[2]);
    return 0;
}

/* ---- full steps ----------------------------------------------------------------------------- */

static int get_carry(struct method_ctx *ctx, const struct attn_in *x, struct chip_carry **out,
                     struct err *err)
{
    struct chip_carry *c = NULL;
    *out = NULL;
    if (!ctx->carry)
        return 0;
    if (!ctx->carry->data) {
        PASS_ON(mem_zalloc(&c, 1, sizeof *c, "state between steps", err));
        c->made = c->lse_step = c->delta_step = -1;
        c->n = x->nq;
        c->dv = x->dv;
        ctx->carry->data = c;
        ctx->carry->free = carry_free;
    }
    c = ctx->carry->data;
    if (c->n != x->nq || c->dv != x->dv)
        return err_set(err, ERR_INPUT,
                       "this step has %lld tokens of %d channels, an earlier one %lld of %lld",
                       (long long)x->nq, x->dv, (long long)c->n, (long long)c->dv);
    *out = c;
    return 0;
}

static int keep_lse(struct chip_carry *c, const struct head_in *in, struct err *err)
{
    const double *lse;
    if (!c->lse)
        PASS_ON(mem_alloc(&c->lse, c->n, sizeof *c->lse, "normalisers of a step", err));
    PASS_ON(exact_lse(in->exact, 0, c->n, &lse, err));
    memcpy(c->lse, lse, (size_t)c->n * sizeof *c->lse);
    c->lse_step = in->step;
    return 0;
}

/* Everything that the choice of the mask needs; c->lse may change afterwards. */
static int plan_mask(struct state *s, struct chip_carry *c, struct err *err)
{
    const struct head_in *in = &s->in;
    const double *lse = c->lse;
    slice_mask_free(&c->mask);
    c->made = -1;
    if (s->exact_norm)
        PASS_ON(exact_lse(in->exact, 0, in->x.nq, &lse, err));
    PASS_ON(mem_alloc(&s->raised, in->x.nq, sizeof *s->raised, "normalisers", err));
    PASS_ON(chip_raise(in, lse, s->raised, err));
    s->given = (struct chip_given){s->raised, head_stream(STREAM_REDRAW, in, in->head)};
    s->made = s->pending = true;
    return 0;
}

/* Delta = O - O_sparse, in the precision of those who add it. */
static int keep_delta(const struct state *s, struct chip_carry *c, struct err *err)
{
    const struct attn_in *x = &s->in.x;
    int64_t all = c->n * c->dv;
    const double *dense;
    OWN(free_at) double *out = NULL, *lse = NULL;
    OWN(mask_free) struct mask m = {0};
    c->delta_step = -1;
    PASS_ON(mem_alloc(&out, all, sizeof *out, "stored difference", err));
    PASS_ON(mem_alloc(&lse, c->n, sizeof *lse, "normalisers", err));
    PASS_ON(slice_mask_lists(&c->mask, 0, x->nq, &m, err));
    PASS_ON(exact_attend_all(s->in.exact, &m, out, lse, err));
    PASS_ON(exact_out(s->in.exact, 0, x->nq, &dense, err));
    for (int64_t k = 0; k < all; k++)
        out[k] = dense[k] - out[k];
    if (exact_on_device(s->in.exact)) {
        if (!c->rounded)
            PASS_ON(mem_alloc(&c->rounded, all, sizeof *c->rounded, "stored difference", err));
        for (int64_t k = 0; k < all; k++)
            c->rounded[k] = (float)out[k];
    } else {
        free(c->delta);
        c->delta = HAND_OVER(out);
    }
    c->delta_step = s->in.step;
    return 0;
}

/* The mask is there: what the steps that use it need. */
static int complete(struct state *s, struct err *err)
{
    s->pending = false;
    s->carry->made = s->in.step;
    return s->params->delta ? keep_delta(s, s->carry, err) : 0;
}

static int make_mask(struct state *s, struct err *err)
{
    struct chip_carry *c = s->carry;
    PASS_ON(chip_mask(&s->shape, &s->rule, &s->in, s->raised, s->given.stream, &c->mask,
                      &c->selected, err));
    return complete(s, err);
}

static int prepare_full(struct state *s, struct method_ctx *ctx, struct chip_carry *c,
                        struct err *err)
{
    int step = s->in.step, before = (int)chip_full_before(&s->schedule, step);
    bool makes = step == 1 || (step > 1 && s->params->recompute);
    bool missing =
        makes ? !s->exact_norm && c && c->lse_step != before : step > 0 && c && c->made != 1;
    s->call = CALL_FULL;
    if (!c)
        return 0;
    if (makes && !missing)
        PASS_ON(plan_mask(s, c, err));
    if (step == 0 || makes)
        PASS_ON(keep_lse(c, &s->in, err));
    if (missing)
        return makes
                   ? method_skip(ctx,
                                 "no full step in trace (step %d needs the normaliser of step %d)",
                                 step, before)
                   : method_skip(ctx, "no full step in trace (step %d needs the mask of step 1)",
                                 step);
    if (step == 0)
        return 0;
    s->carry = c;
    if (s->params->delta && !s->pending)
        return keep_delta(s, c, err);
    return 0;
}

static int prepare_sparse(struct state *s, struct method_ctx *ctx, struct chip_carry *c)
{
    int last = (int)chip_full_before(&s->schedule, s->in.step);
    int made = s->params->recompute ? last : 1;
    if (!c || c->made != made)
        return method_skip(ctx, "no full step in trace (step %d uses the mask of step %d)",
                           s->in.step, made);
    if (s->params->delta && c->delta_step != last)
        return method_skip(ctx, "no full step in trace (step %d uses the difference of step %d)",
                           s->in.step, last);
    s->call = CALL_SPARSE;
    s->carry = c;
    return 0;
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    struct state *s = state;
    struct chip_carry *c;
    PASS_ON(resolve(params, ctx, in, s, err));
    PASS_ON(check_head(ctx, s));
    if (in->layer >= s->params->dense_layers) {
        PASS_ON(get_carry(ctx, &in->x, &c, err));
        PASS_ON(chip_full_step(&s->schedule, in->step) ? prepare_full(s, ctx, c, err)
                                                       : prepare_sparse(s, ctx, c));
    }
    ctx->unit_rows = CHIP_ROWS;
    return 0;
}

/* ---- masks, output, numbers ----------------------------------------------------------------- */

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct state *s = state;
    if (s->pending)
        PASS_ON(make_mask(s, err));
    if (s->call == CALL_SPARSE) {
        PASS_ON(slice_mask_lists(&s->carry->mask, row0, row1, out, err));
        out->exec_bq = CHIP_ROWS;
        out->exec_bk = s->rule.multiple;
        return 0;
    }
    mask_full(out, s->in.x.nq, s->in.x.nk, row0, row1, false);
    out->bq = out->exec_bq = CHIP_ROWS;
    out->bk = 1;
    out->exec = EXEC_TILES;
    return 0;
}

/* Column-sparse attention alone is exact softmax over the mask, and so is dense attention for which
 * a device stands by. */
static void how(const void *state, struct arithmetic *a, char why[160])
{
    const struct state *s = state;
    if (s->call != CALL_SPARSE) {
        a->kind = exact_on_device(s->in.exact) ? ARITH_SOFTMAX : ARITH_CPU;
    } else if (s->params->delta) {
        a->added = s->carry->rounded;
        a->kind = a->added ? ARITH_ADDED : ARITH_CPU;
    }
}

/* A full step's output is dense attention, which the head's exact map has: no second computation
 * with another order of sums. */
static int attend(void *state, const struct mask *m, double *out, double *lse, double *tiles_pv,
                  struct err *err)
{
    const struct state *s = state;
    int64_t dv = s->in.x.dv, rows = m->row1 - m->row0;
    const double *dense, *dense_lse;
    if (s->call != CALL_SPARSE) {
        PASS_ON(exact_out(s->in.exact, m->row0, m->row1, &dense, err));
        PASS_ON(exact_lse(s->in.exact, m->row0, m->row1, &dense_lse, err));
        memcpy(out, dense, (size_t)(rows * dv) * sizeof *out);
        memcpy(lse, dense_lse, (size_t)rows * sizeof *lse);
        return 0;
    }
    PASS_ON(exact_attend(s->in.exact, m, out, lse, err));
    for (int64_t k = 0; k < rows * dv; k++)
        out[k] += s->carry->delta[m->row0 * dv + k];
    return 0;
}

/* Share of the output that the stored difference is, of the full step that made it. */
static int delta_share(const struct state *s, double *share, struct err *err)
{
    const struct chip_carry *c = s->carry;
    const double *dense;
    double delta = 0, out = 0;
    PASS_ON(exact_out(s->in.exact, 0, c->n, &dense, err));
    for (int64_t k = 0; k < c->n * c->dv; k++) {
        double x = c->delta ? c->delta[k] : c->rounded[k];
        delta += x * x;
        out += dense[k] * dense[k];
    }
    *share = delta == 0 ? 0 : sqrt(delta / out);
    return 0;
}

static int report_mask(const struct state *s, struct record *r, struct err *err)
{
    const struct chip_carry *c = s->carry;
    double density, share, pairs = (double)s->shape.n * (double)s->shape.n;
    PASS_ON(slice_mask_density(&c->mask, &density, err));
    PASS_ON(RECORD_ALL(r, err, {"mask_density_elem", density},
                       {"mask_units", slice_mask_total(&c->mask)}));
    if (s->call == CALL_SPARSE) {
        return RECORD_ALL(r, err, {"mask_age", s->in.step - c->made},
                          {"density_native", (double)c->selected / pairs});
    } else if (s->params->delta) {
        PASS_ON(delta_share(s, &share, err));
        return record_metric(r, "delta_l2_rel", share, err);
    }
    return 0;
}

static bool rule(const void *state, struct rule *rule, char why[160])
{
    const struct state *s = state;
    const struct chip_rule *r = &s->rule;
    const int64_t *grid = s->shape.grid;
    rule->data = &s->given;
    rule->of.chip =
        (struct chip_rule_numbers){.n = s->shape.n,
                                   .video = s->shape.video,
                                   .grid = {grid[0], grid[1], grid[2]},
                                   .top = chip_top_keys(r, s->shape.n),
                                   .top_share = (int64_t)(r->top_keys * (double)s->shape.video),
                                   .all = r->top_keys == 1,
                                   .clean = r->clean,
                                   .random_keys = r->random_keys,
                                   .redraw = r->redraw,
                                   .window = (int64_t)(r->local_1d * (double)s->shape.video) / 2,
                                   .local_voxels = r->local_voxels,
                                   .multiple = r->multiple,
                                   .seed = r->seed,
                                   .stream = CHIP_STREAM_STATIC};
    return true;
}

static int take(void *state, const struct device_choice *c, struct err *err)
{
    struct state *s = state;
    struct chip_carry *keep = s->carry;
    PASS_ON(accel_own_check(c->own, sizeof keep->selected, err));
    PASS_ON(slice_mask_take(&keep->mask, c, CHIP_ROWS, 1, CHIP_ROWS, err));
    memcpy(&keep->selected, c->own->data, sizeof keep->selected);
    return complete(s, err);
}

static struct mask_origin origin(void *state)
{
    const struct state *s = state;
    return (struct mask_origin){.source = s->call == CALL_SPARSE ? SOURCE_REUSED
                                          : s->made              ? SOURCE_OWN
                                                                 : SOURCE_STATIC};
}

/* Only calls that made a mask come here: e^(s - normaliser) of all pairs, summed by column of a
 * group. The normalisers are those of the dense call. */
static bool cost(const void *state, struct select_cost *c)
{
    const struct state *s = state;
    const struct attn_in *x = &s->in.x;
    double pairs = cost_pairs(x, 0, x->nq, 1);
    cost_products(c, pairs, x->d);
    cost_sums(c, 2 * pairs);
    cost_rows(c, &s->in, (double)(x->nq + x->nk), x->d);
    cost_kept(c, (double)x->nq + (double)s->shape.groups * (double)x->nk);
    return true;
}

static int report(void *state, struct record *r, struct err *err)
{
    const struct state *s = state;
    record_note(r, "kind=%s", kinds[s->kind]);
    PASS_ON(RECORD_ALL(r, err, {"dense_call", s->call != CALL_SPARSE}, {"refresh", s->made}));
    if (s->call != CALL_SPARSE)
        PASS_ON(record_metric(r, "density_native", 1, err));
    if (s->carry)
        return report_mask(s, r, err);
    return 0;
}

static const struct metric_def metrics[] = {
    OWN_METRIC("delta_l2_rel",
               "sqrt(sum Delta^2) / sqrt(sum O^2) of the difference that a full step stores",
               .better = BETTER_LOWER, .noise = NOISE_ROUNDING),
    {0},
};

/* Without a neighbourhood, and with fewer keys than a tile of 128, nothing is kept. */
static bool may_be_empty(const void *params)
{
    const struct params *p = params;
    return p->local_voxels == 0;
}

const struct method method_chipmunk = {
    .name = "chipmunk",
    .summary = "video: dense on a few steps, then the heaviest columns plus a stored difference",
    .paper = "Chipmunk: Training-Free Acceleration of Diffusion Transformers with Dynamic "
             "Column-Sparse Deltas, arXiv 2506.03275",
    .flags = METHOD_BIDIRECTIONAL | METHOD_NEEDS_STEPS | METHOD_RANDOM,
    .params = {.table = options,
               .size = sizeof(struct params),
               .budget = BUDGET_PARAMS(BUDGET_BY(BUDGET_LIN, "top_keys")),
               .validate = validate,
               .order = token_order,
               .may_be_empty = may_be_empty},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .release = release,
    .metrics = metrics,
    .cost = cost,
    .device = {.rule = rule, .take = take},
    .arith = {.kind = ARITH_ADDED, .how = how, .attend = attend},
    .reuse = {.of = origin},
    .tests = {.full = "top_keys=1:profile=clean",
              .variants =
                  TEXTS("dense_layers=0:full_every=5:local_voxels=0:top_keys=0.4",
                        "profile=clean:kind=wan:top_keys=0.5:voxel=1x8x24",
                        "profile=clean:delta=0:norm=previous:recompute=0:redraw=0.2",
                        "local_voxels=0:delta=0:multiple=112:random_keys=0.3:local_1d=0.2")},
};
