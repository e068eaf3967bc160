/*
 * checkcu_maps.c - tiles with bits, and lists of blocks, that the GPU makes of maps of kept units,
 * against those that the host makes of the same masks (sim/accelattend.h, cuda/attn/plan.h), bit by
 * bit, the counts of the masks, and plans of such tiles and lists.
 */
#include "tests/gpu/checkcu.h"

#include "core/accel.h"
#include "core/intmath.h"
#include "core/mask.h"
#include "core/mem.h"
#include "core/rng.h"
#include "cuda/attn/mapplan.h"
#include "sim/accelattend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAPS 4 /* heads at most */

enum pattern { RANDOM, SPARSE, ALL, NOTHING, STRIPES, SOME_ROWS, DIAGONAL, PATTERNS };

struct shape {
    int64_t nq, nk;
    bool causal;
    int64_t bq, bk;
};

struct maps {
    struct shape shape;
    int heads;
    struct mask mask[MAPS]; /* owned */
    uint32_t *bits[MAPS];   /* owned: [groups][words] */
    const uint32_t *dev[MAPS];
    int64_t groups, words;
};

static bool keeps(enum pattern pattern, int head, int64_t g, int64_t u, uint64_t seed)
{
    double x = rng_uniform(seed, (uint64_t)head, (uint64_t)(g * 100003 + u));
    switch (pattern) {
    case RANDOM:
        return x < 0.4;
    case SPARSE:
        return x < 0.01 * (head + 1);
    case ALL:
        return true;
    case STRIPES:
        return (u + head) % 11 == 0;
    case SOME_ROWS:
        return g % 3 == 0 && x < 0.6;
    case DIAGONAL:
        return u >= g - 3 && u <= g + 3;
    default:
        return false;
    }
}

static int64_t map_bytes(const struct maps *m)
{
    return m->groups * m->words * (int64_t)sizeof(uint32_t);
}

/* A head's mask and the same as bits, with bits of keys that nobody may see. */
static int make_head(struct maps *m, int head, enum pattern pattern, uint64_t seed, struct err *err)
{
    const struct shape *s = &m->shape;
    struct mask *mask = m->mask + head;
    int64_t units = ceil_div(s->nk, s->bk);

    PASS_ON(mask_lists_init(mask, s->nq, s->nk, 0, s->nq, s->causal, s->bq, s->bk, err));
    PASS_ON(mem_zalloc(&m->bits[head], m->groups * m->words, sizeof(uint32_t), "map", err));
    for (int64_t g = 0; g < m->groups; g++) {
        int64_t limit = key_limit(s->nq, s->nk, s->causal, MIN((g + 1) * s->bq, s->nq) - 1);
        for (int64_t u = 0; u < units; u++) {
            if (!keeps(pattern, head, g, u, seed))
                continue;
            m->bits[head][g * m->words + u / 32] |= 1u << u % 32;
            if (u * s->bk < limit)
                PASS_ON(mask_lists_add(mask, g, (int32_t)u, err));
        }
    }
    mask_lists_finish(mask);
    return 0;
}

static int make_maps(struct gpu *g, const struct shape *s, int heads, enum pattern pattern,
                     uint64_t seed, struct maps *m, struct err *err)
{
    *m = (struct maps){.shape = *s,
                       .heads = heads,
                       .groups = ceil_div(s->nq, s->bq),
                       .words = ceil_div(ceil_div(s->nk, s->bk), 32)};
    for (int h = 0; h < heads; h++) {
        PASS_ON(make_head(m, h, pattern, seed, err));
        PASS_ON(gpu_alloc(g, map_bytes(m), (void *)&m->dev[h], err));
        PASS_ON(gpu_put(g, (void *)m->dev[h], m->bits[h], map_bytes(m), err));
    }
    return 0;
}

static void free_maps(struct maps *m)
{
    for (int h = 0; h < m->heads; h++) {
        mask_free(m->mask + h);
        free(m->bits[h]);
    }
}

/* ---- comparison ----------------------------------------------------------------------------- */

/* The counts of the maps that `rows` or `lists` are of. */
static int wrong_totals(struct gpu *g, const struct maps *m, const struct tile_rows *rows,
                        const struct map_lists *lists, char what[200], struct err *err)
{
    struct map_totals totals[MAPS];
    OWN(free_at) int32_t *units = NULL;
    PASS_ON(mem_alloc(&units, m->heads * m->groups, sizeof *units, "counts", err));
    if (lists)
        PASS_ON(map_lists_totals(g, lists, totals, units, err));
    else
        PASS_ON(tile_rows_totals(g, rows, totals, units, err));
    for (int h = 0; h < m->heads; h++) {
        struct mask_counts c;
        int64_t kept, large, allowed;
        PASS_ON(mask_count(m->mask + h, &c, err));
        PASS_ON(mask_tiles_kept(m->mask + h, 64, 64, &kept, &allowed, err));
        PASS_ON(mask_tiles_kept(m->mask + h, 128, 128, &large, &allowed, err));
        if ((int64_t)totals[h].kept128 != large || (int64_t)totals[h].empty != c.rows_empty)
            snprintf(what, 200, "head %d: %llu tiles of 128, %llu empty rows, not %lld, %lld", h,
                     totals[h].kept128, totals[h].empty, (long long)large, (long long)c.rows_empty);
        if ((int64_t)totals[h].pairs != c.pairs_kept || (int64_t)totals[h].units != c.tiles_kept ||
            (int64_t)totals[h].kept64 != kept)
            snprintf(what, 200,
                     "head %d: %llu pairs, %llu units, %llu tiles of 64, not %lld, %lld, %lld", h,
                     totals[h].pairs, totals[h].units, totals[h].kept64, (long long)c.pairs_kept,
                     (long long)c.tiles_kept, (long long)kept);
        for (int64_t r = 0; r < m->groups; r++)
            if (units[h * m->groups + r] != m->mask[h].ptr[r + 1] - m->mask[h].ptr[r])
                snprintf(what, 200, "head %d, group %lld: %d units, not %lld", h, (long long)r,
                         units[h * m->groups + r],
                         (long long)(m->mask[h].ptr[r + 1] - m->mask[h].ptr[r]));
    }
    return 0;
}

/* What came back of the tiles. */
struct fetched {
    int32_t *col, *bits, *key; /* owned */
    uint64_t *words;
};

static int fetch(struct gpu *g, const struct map_tiles *t, int64_t n, struct fetched *f,
                 struct err *err)
{
    PASS_ON(mem_alloc(&f->bits, n, sizeof *f->bits, "tiles", err));
    PASS_ON(mem_alloc(&f->words, t->csr.n_bits * ACCEL_TILE_WORDS, sizeof *f->words, "bits", err));
    PASS_ON(mem_alloc(&f->col, n, sizeof *f->col, "tiles", err));
    PASS_ON(mem_alloc(&f->key, n * ACCEL_TILE, sizeof *f->key, "keys", err));
    PASS_ON(gpu_get(g, f->bits, t->bits, n * 4, err));
    PASS_ON(gpu_get(g, f->words, t->words, t->csr.n_bits * ACCEL_TILE_WORDS * 8, err));
    if (t->gathered)
        return gpu_get(g, f->key, t->key, n * ACCEL_TILE * 4, err);
    return gpu_get(g, f->col, t->col, n * 4, err);
}

static bool same_tile(const struct fetched *f, int64_t i, const struct accel_tiles *want, int64_t k)
{
    if (want->keys
            ? memcmp(f->key + i * ACCEL_TILE, want->keys + k * ACCEL_TILE, ACCEL_TILE * 4) != 0
            : f->col[i] != want->col[k])
        return false;
    if (f->bits[i] < 0 || want->bits[k] < 0)
        return f->bits[i] < 0 && want->bits[k] < 0;
    return memcmp(f->words + f->bits[i] * (int64_t)ACCEL_TILE_WORDS,
                  want->words + want->bits[k] * (int64_t)ACCEL_TILE_WORDS,
                  ACCEL_TILE_WORDS * 8) == 0;
}

/* The tiles of head h, number `at` in t. */
static int wrong_head(const struct maps *m, const struct map_tiles *t, const struct fetched *f,
                      int h, char what[200], struct err *err)
{
    int64_t groups = ceil_div(m->shape.nq, ACCEL_TILE);
    const int64_t *ptr = t->csr.ptr + (h - t->first) * groups;
    OWN(accel_tiles_free) struct accel_tiles want = {0};
    int64_t wrong = 0;
    char why[160];

    PASS_ON(accel_tiles_make(m->mask + h, 1, t->gathered, INT64_MAX, &want, why, err));
    for (int64_t r = 0; r <= groups; r++)
        if (ptr[r] - ptr[0] != want.ptr[r]) {
            snprintf(what, 200, "head %d: row %lld begins with tile %lld, not %lld", h,
                     (long long)r, (long long)(ptr[r] - ptr[0]), (long long)want.ptr[r]);
            return 0;
        }
    for (int64_t k = 0; k < want.n_tiles; k++)
        wrong += !same_tile(f, ptr[0] + k, &want, k);
    if (wrong)
        snprintf(what, 200, "head %d: %lld of %lld %s tiles differ", h, (long long)wrong,
                 (long long)want.n_tiles, t->gathered ? "gathered" : "in place");
    return 0;
}

static int wrong_tiles(struct gpu *g, const struct maps *m, const struct tile_rows *rows, int first,
                       bool gathered, char what[200], struct err *err)
{
    int64_t groups = ceil_div(m->shape.nq, ACCEL_TILE);
    struct gpu_mark mark = gpu_mark(g);
    struct map_tiles t = {0};
    struct fetched f = {0};
    int count = m->heads - first, rc = 0;

    TRY(map_tiles_make(g, rows, first, count, gathered, &t, err));
    TRY(map_tiles_launch(g, &t, err)); /* again, as a sample does */
    TRY(fetch(g, &t, t.csr.ptr[count * groups], &f, err));
    for (int h = first; h < m->heads && !what[0]; h++)
        TRY(wrong_head(m, &t, &f, h, what, err));
out:
    map_tiles_free(&t);
    free(f.col);
    free(f.bits);
    free(f.key);
    free(f.words);
    gpu_release(g, mark);
    return rc;
}

/* ---- plans ---------------------------------------------------------------------------------- */

static bool differ(const void *a, const void *b, int64_t n, size_t size)
{
    return n && memcmp(a, b, (size_t)n * size) != 0;
}

/* A plan of the GPU against the host's. */
static void compare_plans(const struct attn_plan *got, const struct attn_plan *want, char what[200])
{
    if (got->n_items != want->n_items || got->n_splits != want->n_splits ||
        got->n_slots != want->n_slots || got->n_empty != want->n_empty)
        snprintf(what, 200,
                 "a plan of %d items, %d split rows, %d slots, %d empty rows, not %d, %d, %d, %d",
                 got->n_items, got->n_splits, got->n_slots, got->n_empty, want->n_items,
                 want->n_splits, want->n_slots, want->n_empty);
    else if (differ(got->items, want->items, want->n_items, sizeof *want->items) ||
             differ(got->splits, want->splits, want->n_splits, sizeof *want->splits) ||
             differ(got->empty, want->empty, want->n_empty, sizeof *want->empty))
        snprintf(what, 200, "the plan of %d items differs", want->n_items);
    else if (got->masked_units != want->masked_units || got->balance != want->balance)
        snprintf(what, 200, "%d masked units, balance %.6f, not %d, %.6f", got->masked_units,
                 got->balance, want->masked_units, want->balance);
}

/* The GPU's plan of these lists against the host's. */
static int wrong_plan(struct gpu *g, const struct attn_problem *p, const struct attn_csr *csr,
                      const int64_t *at, char what[200], struct err *err)
{
    static const struct attn_tile tile = {ACCEL_TILE, ACCEL_TILE, 1};
    struct gpu_mark mark = gpu_mark(g);
    struct attn_plan got = {0}, want = {0};
    struct row_plan rows;
    int rc = 0;

    TRY(attn_plan_make(p, &tile, csr, g->sms, &want, err));
    TRY(row_plan_make(g, p, &tile, csr, at, &rows, &got, err));
    compare_plans(&got, &want, what);
out:
    attn_plan_free(&got);
    attn_plan_free(&want);
    gpu_release(g, mark);
    return rc;
}

/* Tiles of a row of so many at most. */
static int64_t row_length(enum pattern pattern, int64_t row, int64_t block, int64_t most,
                          uint64_t seed)
{
    double x = rng_uniform(seed, 7, (uint64_t)row);
    switch (pattern) {
    case RANDOM:
        return (int64_t)(x * (double)(most + 1));
    case SPARSE:
        return x < 0.1 ? 1 : 0;
    case ALL:
        return most;
    case STRIPES:
        return block % 11 == 0 ? most : 3;
    case SOME_ROWS:
        return x < 0.02 ? most : 0;
    case DIAGONAL: /* causal */
        return block + 1 < most ? block + 1 : most;
    default:
        return 0;
    }
}

static int check_lengths(struct gpu *g, enum pattern pattern, int heads, int64_t blocks,
                         uint64_t seed, char what[200], struct err *err)
{
    struct attn_problem p = {.heads = heads,
                             .kv_heads = heads % 2 ? heads : heads / 2,
                             .d = 128,
                             .nq = blocks * ACCEL_TILE,
                             .nk = blocks * ACCEL_TILE,
                             .scale = 1,
                             .lists = ATTN_BITS};
    struct gpu_mark mark = gpu_mark(g);
    int64_t rows = heads * blocks, *ptr = NULL, *at;
    int rc = 0;

    TRY(mem_alloc(&ptr, rows + 1, sizeof *ptr, "lists", err));
    ptr[0] = 0;
    for (int64_t r = 0; r < rows; r++)
        ptr[r + 1] = ptr[r] + row_length(pattern, r, r % blocks, blocks, seed);
    struct attn_csr csr = {.ptr = ptr, .on_device = true};
    TRY(gpu_alloc(g, (rows + 1) * 8, &at, err));
    TRY(gpu_put(g, at, ptr, (rows + 1) * 8, err));
    TRY(wrong_plan(g, &p, &csr, at, what, err));
out:
    free(ptr);
    gpu_release(g, mark);
    return rc;
}

/* True: the GPU is lost. */
static bool check_plans(struct gpu *g, const struct cu_choice *choice)
{
    static const int64_t sizes[][2] = {{1, 1}, {1, 7}, {2, 64}, {3, 333}, {8, 256}, {9, 1024}};
    int n_sizes = (int)(sizeof sizes / sizeof *sizes) - (choice->brief ? 2 : 0);
    bool lost = false;
    for (int i = 0; i < n_sizes * PATTERNS && !lost; i++) {
        const int64_t *n = sizes[i / PATTERNS];
        struct err err = {0};
        char what[200] = "";
        int rc = check_lengths(g, (enum pattern)(i % PATTERNS), (int)n[0], n[1], (uint64_t)i, what,
                               &err);
        ++cu_checks;
        if (!rc && !what[0])
            continue;
        ++cu_failures;
        printf("FAIL plan of %lld heads of %lld rows, pattern %d: %s\n", (long long)n[0],
               (long long)n[1], i % PATTERNS, rc ? err.msg : what);
        lost = rc && cudaGetLastError() != cudaSuccess;
    }
    return lost;
}

/* ---- lists of blocks ------------------------------------------------------------------------ */

/* A kernel's lists: blocks, tile, and whether it has a filter. */
struct geometry {
    enum attn_lists lists;
    struct attn_tile tile;
    bool filter;
};

/* Three teams of one warpgroup, or two warpgroups that have items together. */
static int teams_of(const struct geometry *k)
{
    return k->tile.bm == 64 ? 3 : 1;
}

/* The lists of the heads first + heads[0 .. n), in the kernel's blocks. *ptr and *col are the
 * caller's. */
static int make_csr(const struct maps *m, const struct geometry *k, int first, const int *heads,
                    int n, int64_t **ptr, int32_t **col, struct err *err)
{
    const struct shape *s = &m->shape;
    int64_t bq = attn_block_rows(k->lists, &k->tile), bk = attn_block_keys(k->lists, &k->tile);
    int64_t rows = ceil_div(s->nq, bq), split = s->bk / bk, at = 0;
    PASS_ON(mem_alloc(ptr, n * rows + 1, sizeof **ptr, "lists", err));
    PASS_ON(mem_alloc(col, n * rows * ceil_div(s->nk, bk) + 1, sizeof **col, "lists", err));
    for (int64_t r = 0; r < n * rows; r++) {
        const struct mask *mask = m->mask + first + heads[r / rows];
        int64_t row0 = r % rows * bq, g = row0 / s->bq;
        int64_t limit = key_limit(s->nq, s->nk, s->causal, MIN(row0 + bq, s->nq) - 1);
        (*ptr)[r] = at;
        for (int64_t i = mask->ptr[g]; i < mask->ptr[g + 1]; i++)
            for (int64_t b = mask->col[i] * split; b < (mask->col[i] + 1) * split; b++)
                if (b * bk < limit)
                    (*col)[at++] = (int32_t)b;
    }
    (*ptr)[n * rows] = at;
    return 0;
}

/* Items and entries of a host's plan as the GPU has them: every row with the same room. */
static int spread_rows(struct attn_plan *plan, int64_t rows, int64_t room, int per_block,
                       struct err *err)
{
    OWN(free_at) int32_t *cols = NULL, *beg = NULL;
    PASS_ON(mem_zalloc(&cols, rows * room, sizeof *cols, "entries", err));
    PASS_ON(mem_alloc(&beg, rows, sizeof *beg, "rows", err));
    for (int64_t r = 0; r < rows; r++)
        beg[r] = INT32_MAX;
    for (int32_t i = 0; i < plan->n_items; i++)
        beg[plan->items[i].row] = MIN(beg[plan->items[i].row], plan->items[i].beg);
    for (int32_t i = 0; i < plan->n_items; i++) {
        struct attn_item *it = plan->items + i;
        int64_t from = it->beg / per_block, n = ceil_div(it->end, per_block) - from;
        int32_t shift = (int32_t)(it->row * room * per_block) - beg[it->row];
        it->beg += shift;
        it->end += shift;
        memcpy(cols + it->beg / per_block, plan->cols + from, (size_t)n * sizeof *cols);
    }
    free(plan->cols);
    plan->cols = cols;
    cols = NULL;
    return 0;
}

/* Entries of the items of a run, whose first row is row0 of the GPU's. */
static void compare_entries(const int32_t *got, const struct attn_plan *want, int per_block,
                            int64_t at, char what[200])
{
    for (int32_t i = 0; i < want->n_items && !what[0]; i++) {
        int64_t beg = want->items[i].beg / per_block;
        int64_t n = ceil_div(want->items[i].end, per_block) - beg;
        if (memcmp(got + at + beg, want->cols + beg, (size_t)n * sizeof *got) != 0)
            snprintf(what, 200, "the entries of item %d, row %d, differ", i, want->items[i].row);
    }
}

/* So wide that every head has a section of its own, or not. */
static int width_of(const struct maps *m)
{
    return m->heads % 2 ? 128 : 1 << 24;
}

/* The plan of a run of the heads: items of the GPU count units from the first row of all. */
static int wrong_run(const struct maps *m, const struct geometry *k, const struct list_plan *x,
                     const int *heads, const struct list_run *run, struct attn_plan *got,
                     const int32_t *cols, int64_t blocks, int workers, char what[200],
                     struct err *err)
{
    const struct shape *s = &m->shape;
    struct attn_problem p = {run->heads, run->kv_heads, width_of(m), s->nq, s->nk,
                             1,          s->causal,     k->lists};
    int64_t at = (int64_t)run->first * x->shape.q_blocks * x->room;
    struct attn_plan want = {0};
    int64_t *ptr = NULL;
    int32_t *col = NULL;
    int rc = 0;

    TRY(make_csr(m, k, x->shape.first, heads + run->first, run->heads, &ptr, &col, err));
    struct attn_csr csr = {.ptr = ptr, .col = col};
    if (k->filter)
        TRY(attn_plan_filtered(&p, &k->tile, &csr, run->tail, workers, &want, err));
    else
        TRY(attn_plan_make(&p, &k->tile, &csr, workers, &want, err));
    TRY(spread_rows(&want, run->heads * (int64_t)want.q_blocks, x->room, x->per_block, err));
    attn_plan_move(&want, heads + run->first);
    for (int32_t i = 0; i < got->n_items; i++) {
        got->items[i].beg -= (int32_t)(at * x->per_block);
        got->items[i].end -= (int32_t)(at * x->per_block);
    }
    compare_plans(got, &want, what);
    if (!what[0])
        compare_entries(cols, &want, x->per_block, at, what);
    if (!what[0] && (blocks != want.blocks || got->blocks != want.blocks))
        snprintf(what, 200, "%lld blocks, not %lld", (long long)blocks, (long long)want.blocks);
out:
    attn_plan_free(&want);
    free(ptr);
    free(col);
    return rc;
}

/* Plans of the heads from `first` on, the last one first; with a filter each has a run and a tail
 * of its own, but for the last two, which share one. */
static int wrong_lists(struct gpu *g, const struct maps *m, const struct map_lists *lists,
                       const struct geometry *k, int first, char what[200], struct err *err)
{
    const struct shape *s = &m->shape;
    int n = m->heads - first, n_runs = k->filter && n > 2 ? n - 1 : 1, rc = 0;
    struct attn_problem p = {n, n, width_of(m), s->nq, s->nk, 1, s->causal, k->lists};
    struct gpu_mark mark = gpu_mark(g);
    struct list_run runs[MAPS];
    struct attn_plan plans[MAPS];
    int heads[MAPS];
    struct list_plan x;
    int64_t blocks[MAPS];
    int32_t *cols = NULL;

    memset(plans, 0, sizeof plans);
    for (int i = 0; i < n; i++)
        heads[i] = n - 1 - i;
    for (int i = 0; i < n_runs; i++) {
        int of = i == n_runs - 1 ? n - i : 1;
        runs[i] = (struct list_run){i, of, of % 2 ? of : of / 2, k->filter ? i : -1};
    }
    TRY(list_plan_make(g, lists, first, heads, &p, &k->tile, teams_of(k), runs, n_runs, &x, plans,
                       blocks, err));
    TRY(list_plan_launch(g, &x, err)); /* again, as a sample does */
    TRY(mem_alloc(&cols, x.rows.rows * x.room, sizeof *cols, "entries", err));
    TRY(gpu_get(g, cols, x.cols, x.rows.rows * x.room * 4, err));
    for (int i = 0; i < n_runs && !what[0]; i++) {
        int64_t sum = 0;
        for (int h = runs[i].first; h < runs[i].first + runs[i].heads; h++)
            sum += blocks[h];
        TRY(wrong_run(m, k, &x, heads, runs + i, plans + i, cols, sum, g->sms * teams_of(k), what,
                      err));
    }
out:
    for (int i = 0; i < n_runs; i++)
        attn_plan_free(plans + i);
    free(cols);
    gpu_release(g, mark);
    return rc;
}

static int check_list(struct gpu *g, const struct shape *s, const struct geometry *k, int heads,
                      enum pattern pattern, uint64_t seed, char what[200], struct err *err)
{
    struct gpu_mark mark = gpu_mark(g);
    struct map_lists lists;
    struct maps m;
    int rc = make_maps(g, s, heads, pattern, seed, &m, err);
    struct unit_maps u = {heads, s->nq, s->nk, s->bq, s->bk, m.words, s->causal, m.dev};

    if (rc)
        goto out;
    TRY(map_lists_init(g, &u, &lists, err));
    if (s->bk % 64 == 0) /* else tiles are counted */
        TRY(wrong_totals(g, &m, NULL, &lists, what, err));
    if (!what[0])
        TRY(wrong_lists(g, &m, &lists, k, 0, what, err));
    if (!what[0])
        TRY(wrong_lists(g, &m, &lists, k, heads / 2, what, err));
out:
    free_maps(&m);
    gpu_release(g, mark);
    return rc;
}

/* True: the GPU is lost. */
static bool check_lists(struct gpu *g, const struct cu_choice *choice)
{
    static const int64_t lengths[][2] = {{1, 1},      {129, 129},   {300, 77},    {61, 300},
                                         {140, 9000}, {1000, 1000}, {2309, 2309}, {9000, 4500}};
    static const struct {
        int64_t bq, bk;
        struct geometry k;
    } kinds[] = {{128, 128, {ATTN_128x128, {128, 128, 1}, false}},
                 {128, 128, {ATTN_128x128, {128, 192, 3}, false}},
                 {128, 64, {ATTN_128x64, {128, 192, 3}, false}},
                 {64, 64, {ATTN_64x64, {128, 128, 2}, false}},
                 {64, 128, {ATTN_64x64, {128, 128, 2}, false}},
                 {64, 64, {ATTN_64x64, {64, 64, 1}, false}},
                 {64, 32, {ATTN_64x32, {128, 128, 4}, false}},
                 {128, 96, {ATTN_64x32, {128, 128, 4}, false}},
                 {256, 192, {ATTN_128x64, {128, 128, 2}, false}},
                 {64, 128, {ATTN_64x128, {128, 128, 1}, true}},
                 {128, 64, {ATTN_128x64, {128, 128, 2}, true}},
                 {64, 128, {ATTN_64x128, {64, 128, 1}, true}},
                 {128, 64, {ATTN_128x64, {64, 128, 2}, true}},
                 {64, 128, {ATTN_64x128, {64, 128, 1}, false}},
                 {128, 64, {ATTN_128x64, {64, 128, 2}, false}},
                 {64, 32, {ATTN_64x32, {64, 128, 4}, false}}};
    int n_lengths = (int)(sizeof lengths / sizeof *lengths) - (choice->small ? 2 : 0);
    int n_kinds = (int)(sizeof kinds / sizeof *kinds);
    bool lost = false;

    for (int i = 0; i < n_lengths * n_kinds * 2 && !lost; i += choice->brief ? 5 : 1) {
        const int64_t *n = lengths[i / 2 % n_lengths];
        int kind = i / 2 / n_lengths, pattern = i % PATTERNS;
        struct shape s = {n[0], n[1], i % 2, kinds[kind].bq, kinds[kind].bk};
        int last = choice->small || choice->brief ? pattern + 1 : pattern + PATTERNS;
        for (; pattern < last && !lost; pattern++) {
            struct err err = {0};
            char what[200] = "";
            int rc =
                check_list(g, &s, &kinds[kind].k, 1 + (i + pattern) % MAPS,
                           (enum pattern)(pattern % PATTERNS), (uint64_t)cu_checks, what, &err);
            ++cu_checks;
            if (!rc && !what[0])
                continue;
            ++cu_failures;
            printf("FAIL lists %lld x %lld%s, units %lld x %lld, kind %d, pattern %d: %s\n",
                   (long long)s.nq, (long long)s.nk, s.causal ? " causal" : "", (long long)s.bq,
                   (long long)s.bk, kind, pattern % PATTERNS, rc ? err.msg : what);
            lost = rc && cudaGetLastError() != cudaSuccess;
        }
    }
    return lost;
}

/* ---- cases ---------------------------------------------------------------------------------- */

static int check_map(struct gpu *g, const struct shape *s, int heads, enum pattern pattern,
                     uint64_t seed, char what[200], struct err *err)
{
    struct gpu_mark mark = gpu_mark(g);
    struct tile_rows rows;
    struct maps m;
    int rc = make_maps(g, s, heads, pattern, seed, &m, err);
    struct unit_maps u = {heads, s->nq, s->nk, s->bq, s->bk, m.words, s->causal, m.dev};

    if (rc)
        goto out;
    TRY(tile_rows_init(g, &u, &rows, err));
    TRY(wrong_totals(g, &m, &rows, NULL, what, err));
    for (int gathered = 0; gathered < 2 && !what[0]; gathered++)
        TRY(wrong_tiles(g, &m, &rows, gathered ? 0 : heads / 2, gathered, what, err));
out:
    free_maps(&m);
    gpu_release(g, mark);
    return rc;
}

bool check_maps(struct gpu *g, const struct cu_choice *choice)
{
    static const int64_t lengths[][2] = {{1, 1},       {127, 127},   {128, 128},  {129, 129},
                                         {1, 300},     {300, 77},    {260, 131},  {140, 9000},
                                         {1000, 1000}, {2309, 2309}, {130, 33500}};
    static const int64_t units[][2] = {{1, 1},  {32, 1},  {64, 32}, {128, 1},
                                       {16, 8}, {256, 1}, {48, 20}};
    int n_lengths = (int)(sizeof lengths / sizeof *lengths) - (choice->small ? 3 : 0);
    int n_units = choice->brief ? 4 : (int)(sizeof units / sizeof *units);
    int64_t before = cu_checks, failed = cu_failures;
    bool lost = check_plans(g, choice) || check_lists(g, choice);

    for (int i = 0; i < n_lengths * n_units * 2 && !lost; i += choice->brief ? 3 : 1) {
        const int64_t *n = lengths[i / 2 % n_lengths], *b = units[i / 2 / n_lengths];
        struct shape s = {n[0], n[1], i % 2, b[0], b[1]};
        int pattern = i % PATTERNS, last = choice->small ? pattern + 1 : pattern + PATTERNS;
        for (; pattern < last && !lost; pattern++) {
            struct err err = {0};
            char what[200] = "";
            int rc = check_map(g, &s, 1 + i % MAPS, (enum pattern)(pattern % PATTERNS),
                               (uint64_t)cu_checks, what, &err);
            ++cu_checks;
            if (!rc && !what[0])
                continue;
            ++cu_failures;
            printf("FAIL maps %lld x %lld%s, units %lld x %lld, pattern %d: %s\n", (long long)s.nq,
                   (long long)s.nk, s.causal ? " causal" : "", (long long)s.bq, (long long)s.bk,
                   pattern % PATTERNS, rc ? err.msg : what);
            lost = rc && cudaGetLastError() != cudaSuccess;
        }
    }
    printf("  %-5s maps: %lld checks\n", cu_failures > failed ? "FAIL" : "ok",
           (long long)(cu_checks - before));
    return lost;
}
