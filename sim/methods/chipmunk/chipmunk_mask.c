/*
 * chipmunk_mask.c - see chipmunk.h.
 */
#include "core/intmath.h"
#include "sim/methods/chipmunk/chipmunk.h"

#include "core/mem.h"
#include "core/rng.h"
#include "sim/blocks/exactmap.h"
#include "sim/blocks/prefix.h"

#include <math.h>
#include <stdlib.h>

void chip_shape_of(const struct geometry *g, const int64_t voxel[3], struct chip_shape *out)
{
    int64_t size[3] = {g->t, g->h, g->w};
    *out = (struct chip_shape){.video = g->t * g->h * g->w, .text = g->text, .voxels = 1};
    for (int a = 0; a < 3; a++) {
        out->grid[a] = size[a] / voxel[a];
        out->voxels *= out->grid[a];
    }
    out->n = out->video + out->text;
    out->groups = (out->n + CHIP_ROWS - 1) / CHIP_ROWS;
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

/* The published table of neighbours has (side + 1)^3 slots for odd sides; the unused ones are zero
 * and name the first box. */
static bool first_box_for_all(const struct chip_rule *r)
{
    return !r->clean && (r->local_voxels == 0 || r->local_voxels % 2 == 1);
}

static void keep_neighbours(const struct chip_shape *s, const struct chip_rule *r, int64_t g,
                            struct slice_mask *m)
{
    int64_t lv = r->local_voxels;
    if (g >= s->voxels) {
        keep_range(m, g, lv > 0 ? s->n - CHIP_ROWS * lv * lv * lv : s->n, s->n);
        return;
    }
    if (first_box_for_all(r))
        keep_range(m, g, 0, CHIP_ROWS);
    if (lv > 0)
        keep_cube(s, r, g, m);
}

int chip_static(const struct chip_shape *s, const struct chip_rule *r, struct slice_mask *out,
                struct err *err)
{
    int64_t last = s->groups - (s->text / CHIP_ROWS + 1); /* groups from here on see nearly all */
    int64_t window = (int64_t)(r->local_1d * (double)s->video) / 2;
    int rc = slice_mask_init(out, s->n, s->n, false, CHIP_ROWS, 1, err);
    if (rc)
        return rc;
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
    int rc = prefix_topk(run->work, g->sum, n, run->top, &best, err);
    if (rc)
        return rc;
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
    int rc = 0;

    if (run->rule->top_keys == 1)
        keep_range(run->mask, g->index, 0, run->shape->n);
    else if (run->top > 0 && chip_sparse_group(run->shape, run->rule, fixed))
        TRY(add_selected(run, g, err));
    run->selected += (g->row1 - g->row0) * slice_mask_count(run->mask, g->index);
    if (!run->rule->clean)
        chip_pad(run->mask, g->index, run->rule->multiple);
out:
    return rc;
}

int chip_raise(const struct head_in *in, const double *lse, double *out, struct err *err)
{
    const double *own;
    int rc = exact_lse(in->exact, 0, in->x.nq, &own, err);
    if (rc)
        return rc;
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
