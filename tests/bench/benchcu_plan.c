/*
 * benchcu_plan.c - lines of benchcu for the way from masks on the GPU to a launch: 8 causal heads
 * of 32K tokens.
 */
#include "core/mem.h"
#include "core/rng.h"
#include "cuda/attn/mapplan.h"
#include "tests/bench/benchcu.h"

#include <stdio.h>
#include <stdlib.h>

enum { HEADS = 8, TOKENS = 32768 };

struct plan_case {
    const char *name;
    int64_t bq, bk;
    int halvings; /* units are kept with the probability 2^-halvings */
    int keep;     /* in `keep` of 16 of the units that a row of tiles may keep any of */
    bool gathered;
};

/* Units that a row of tiles may keep, a bit each. */
static uint32_t allowed_units(const struct plan_case *c, int64_t tile, int64_t w)
{
    uint32_t bits = 0;
    for (int i = 0; i < 32; i++)
        bits |=
            (uint32_t)(rng_u64(99, (uint64_t)tile, (uint64_t)(32 * w + i)) % 16 < (uint64_t)c->keep)
            << i;
    return bits;
}

/* A head's map, rows of tiles word by word. */
static void fill_map(const struct plan_case *c, int64_t rows, int64_t words, uint32_t *map)
{
    int64_t of_tile = c->bq < 128 ? 128 / c->bq : 1;
    for (int64_t i = 0; i < rows * words; i++) {
        int64_t tile = i / (words * of_tile), w = i / of_tile % words;
        int64_t r = tile * of_tile + i % of_tile;
        uint32_t bits = i % of_tile ? map[(r - 1) * words + w] : 0;
        if (i % of_tile == 0)
            bits = allowed_units(c, tile, w);
        map[r * words + w] = bits;
    }
    for (int64_t i = 0; i < rows * words; i++)
        for (int k = 0; k < c->halvings; k++)
            map[i] &= (uint32_t)rng_u64((uint64_t)k, (uint64_t)i, 0);
}

/* The same map for every head, each a copy of its own. */
static int put_maps(struct gpu *g, const struct plan_case *c, int64_t rows, int64_t words,
                    const uint32_t *dev[HEADS], struct err *err)
{
    int64_t bytes = rows * words * (int64_t)sizeof(uint32_t);
    OWN(free_at) uint32_t *map = NULL;
    PASS_ON(mem_alloc(&map, rows * words, sizeof *map, "map", err));
    fill_map(c, rows, words, map);
    for (int h = 0; h < HEADS; h++) {
        PASS_ON(gpu_alloc(g, bytes, (void *)&dev[h], err));
        if (h == 0)
            PASS_ON(gpu_put(g, (void *)dev[0], map, bytes, err));
        else
            PASS_ON_CU(err, cudaMemcpyAsync((void *)dev[h], dev[0], (size_t)bytes,
                                            cudaMemcpyDeviceToDevice, g->stream));
    }
    return 0;
}

/* A line: `what` follows the time. */
static int sample(struct bench *b, const char *name, const struct work *w, const char *what,
                  struct err *err)
{
    int64_t ids[MAX_SAMPLES] = {0};
    struct series s = {.n = b->samples, .launches = 1};

    PASS_ON(bench_warm_up(b, w, 0.1, err));
    if (b->kernels)
        timer_by_name(b->timer);
    timer_reset(b->timer);
    for (int i = 0; i < s.n; i++)
        PASS_ON(bench_timed(b, w, &ids[i], err));
    PASS_ON(timer_collect(b->timer, &b->gpu, err));
    for (int i = 0; i < s.n; i++)
        s.ns[i] = timer_ns(b->timer, ids[i]);
    bench_raw(b, name, &s, 0);
    printf("%-58s %9.1f us, %s\n", name, quartiles_of(s.ns, s.n).median * 1e-3, what);
    if (b->kernels)
        timer_print_names(stdout);
    fflush(stdout);
    b->lines++;
    return 0;
}

static int bench_plan(struct bench *b, const struct plan_case *c, struct err *err)
{
    int64_t rows = TOKENS / c->bq + (TOKENS % c->bq != 0), words = TOKENS / c->bk / 32;
    struct gpu_mark mark = gpu_mark(&b->gpu);
    const struct attn_problem p = {HEADS, HEADS, 64, TOKENS, TOKENS, 1, true, ATTN_BITS};
    static const struct attn_tile tile = {ACCEL_TILE, ACCEL_TILE, 1};
    struct map_plan planned = {0};
    struct attn_plan plan = {0};
    struct tile_rows made;
    const uint32_t *dev[HEADS];
    struct unit_maps m = {HEADS, TOKENS, TOKENS, c->bq, c->bk, words, true, dev};
    char what[80];
    int rc = 0;

    if (!bench_is_wanted(b, c->name, ""))
        return 0;
    TRY(put_maps(&b->gpu, c, rows, words, dev, err));
    TRY(tile_rows_init(&b->gpu, &m, &made, err));
    TRY(tile_rows_launch(&b->gpu, &made, 0, HEADS, err));
    TRY(map_tiles_make(&b->gpu, &made, 0, HEADS, c->gathered, &planned.tiles, err));
    TRY(row_plan_make(&b->gpu, &p, &tile, &planned.tiles.csr, planned.tiles.at, &planned.rows,
                      &plan, err));
    snprintf(what, sizeof what, "%lld tiles%s, %lld with bits",
             (long long)planned.tiles.csr.ptr[HEADS * made.groups],
             c->gathered ? " of gathered keys" : "", (long long)planned.tiles.csr.n_bits);
    TRY(sample(b, c->name, &(struct work){map_plan_launch, &planned, 1}, what, err));
out:
    attn_plan_free(&plan);
    map_tiles_free(&planned.tiles);
    gpu_release(&b->gpu, mark);
    return rc;
}

/* The plan of lists of blocks of the map's units, of a kernel for head dim 128; filter: its lists
 * for a filter, all heads in one run. */
struct list_case {
    struct plan_case map;
    enum attn_lists lists;
    struct attn_tile tile;
    bool filter;
};

static int bench_blocks(struct bench *b, const struct list_case *c, struct err *err)
{
    int64_t rows = TOKENS / c->map.bq, words = TOKENS / c->map.bk / 32, blocks[HEADS], sum = 0;
    struct gpu_mark mark = gpu_mark(&b->gpu);
    const struct attn_problem p = {HEADS, HEADS, 128, TOKENS, TOKENS, 1, true, c->lists};
    const struct list_run run = {0, HEADS, HEADS, c->filter ? 0 : -1};
    const uint32_t *dev[HEADS];
    int heads[HEADS];
    struct unit_maps m = {HEADS, TOKENS, TOKENS, c->map.bq, c->map.bk, words, true, dev};
    struct map_lists lists;
    struct list_plan planned;
    struct attn_plan plan = {0};
    char what[80];
    int rc = 0;

    if (!bench_is_wanted(b, c->map.name, ""))
        return 0;
    TRY(put_maps(&b->gpu, &c->map, rows, words, dev, err));
    TRY(map_lists_init(&b->gpu, &m, &lists, err));
    for (int h = 0; h < HEADS; h++)
        heads[h] = h;
    TRY(list_plan_make(&b->gpu, &lists, 0, heads, &p, &c->tile, 1, &run, 1, &planned, &plan, blocks,
                       err));
    for (int h = 0; h < HEADS; h++)
        sum += blocks[h];
    snprintf(what, sizeof what, "%lld blocks, %d items, balance %.4f", (long long)sum, plan.n_items,
             plan.balance);
    TRY(sample(b, c->map.name, &(struct work){list_plan_launch, &planned, 1}, what, err));
out:
    attn_plan_free(&plan);
    gpu_release(&b->gpu, mark);
    return rc;
}

int bench_plans(struct bench *b, struct err *err)
{
    static const struct plan_case cases[] = {
        {"plan of 64 x 32 units, 1/8 kept", 64, 32, 3, 16, false},
        {"plan of 192 x 1 units, half kept", 192, 1, 1, 16, false},
        {"plan of 192 x 1 units, 1/16 kept, gathered", 192, 1, 4, 16, true},
        {"plan of single pairs, 1/16 kept", 1, 1, 4, 16, false},
        {"plan of single pairs, half of 5/16 of the keys, gathered", 1, 1, 1, 5, true},
    };
    static const struct list_case lists[] = {
        {{"plan of 128 x 128 blocks, 1/10 kept", 128, 128, 3, 13, false},
         ATTN_128x128,
         {128, 128, 1},
         false},
        {{"plan of 128 x 128 blocks, half kept", 128, 128, 1, 16, false},
         ATTN_128x128,
         {128, 128, 1},
         false},
        {{"plan of 64 x 64 blocks, 1/10 kept", 64, 64, 3, 13, false},
         ATTN_64x64,
         {128, 128, 2},
         false},
        {{"plan of 64 x 64 blocks, half kept", 64, 64, 1, 16, false},
         ATTN_64x64,
         {128, 128, 2},
         false},
        {{"plan of 64 x 128 tiles with a filter, 1/10 kept", 64, 128, 3, 13, false},
         ATTN_64x128,
         {128, 128, 1},
         true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        PASS_ON(bench_plan(b, cases + i, err));
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        PASS_ON(bench_blocks(b, lists + i, err));
    return 0;
}
