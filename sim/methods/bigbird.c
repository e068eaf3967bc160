/*
 * bigbird.c - blocks: window of three, first and last block, and r random ones per row.
 *
 * Over n = ceil(N/B) blocks, bidirectional: block rows 0 and n-1 see all blocks; every other row a
 * sees 0, a-1, a, a+1, n-1 and r random blocks. BigBird, arXiv 2007.14062, section 2 and appendix
 * D, and its code. O(N (5 + r) B) pairs.
 *
 * Where the random blocks come from (`rand_scope`):
 *   official  what the code draws. N of 1024, 2048, 3072, 4096: from the first 1024 tokens' blocks
 *             1 .. 1024/B - 1, without the row's window; for N = 1024 the last of them is the
 *             global last block, which the code then gathers twice. Other N with n > 2r + 5: from 1
 *             .. 2r+3 whatever N is (row 1 not 2r+3, row 2r+3 not 1). n <= r + 5: from 1 .. n-2
 *             (row 1 not n-2, row n-2 not 1). Where the code cannot build a plan: as uniform.
 *   uniform   from all blocks but the row's window, 0 and n-1: what the paper describes
 *
 * preset=sample is the causal baseline of SampleAttention (arXiv 2406.15486): window and global
 * columns of 8 % each, r = 0.
 *
 * Deviations: a block drawn twice is kept once (`blocks_gathered` counts it twice); entries outside
 * are masked exactly, where the code adds -10000; the generator is lacuna's, keyed by seed, layer
 * and head; a partial last block is a block.
 */
#include "core/intmath.h"
#include "core/method.h"
#include "core/mem.h"
#include "core/rng.h"
#include "core/sort.h"

#include <stdlib.h>

enum rand_scope { OFFICIAL, UNIFORM };
enum preset { PRESET_NONE, PRESET_SAMPLE };

#define RANDOM_DEFAULT 3
#define RANDOM_MOST 16

struct params {
    int64_t block, random;
    int rand_scope, preset;
};

static const struct opt options[] = {
    OPT_INT(struct params, block, "64", 16, 128, "tokens", "block size"),
    OPT_INT(struct params, random, NULL, 0, RANDOM_MOST, "blocks",
            "random key blocks per inner row block; unset = 3, with preset=sample 0"),
    OPT_ENUM(struct params, rand_scope, "official", TEXTS("official", "uniform"),
             "where they are drawn from: as the code does, or everywhere"),
    OPT_ENUM(struct params, preset, "none", TEXTS("none", "sample"),
             "sample: causal, window 8 % and global columns 8 %"),
    {0},
};

struct state {
    const struct params *params;
    struct attn_in x;
    int64_t n, random; /* blocks; random blocks per row */
    int64_t share;     /* preset=sample: window and global width */
    uint64_t seed, stream;
    int64_t *pool; /* [n] scratch: blocks to draw from */
    int64_t gathered;
};

static void release(void *state)
{
    struct state *s = state;
    free(s->pool);
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    const struct params *p = params;
    struct state *s = state;
    if (in->x.causal && p->preset != PRESET_SAMPLE)
        return method_skip(ctx, "bidirectional; preset=sample is the causal form");
    if (!in->x.causal && p->preset == PRESET_SAMPLE)
        return method_skip(ctx, "preset=sample is causal");
    if (!in->x.causal && in->x.nq != in->x.nk)
        return method_skip(ctx, "needs as many queries as keys");
    s->params = p;
    s->x = in->x;
    s->n = ceil_div(in->x.nk, p->block);
    s->random = p->random != INT64_MIN       ? p->random
                : p->preset == PRESET_SAMPLE ? 0
                                             : RANDOM_DEFAULT;
    s->share = share_resolve((struct share){0.08, true}, in->x.nk);
    s->seed = ctx->seed;
    s->stream = (uint64_t)in->layer << 32 | (uint64_t)in->head;
    PASS_ON(mem_alloc(&s->pool, s->n, sizeof *s->pool, "blocks to draw from", err));
    ctx->unit_rows = p->preset == PRESET_SAMPLE ? 1 : p->block;
    return 0;
}

/* ---- random blocks -------------------------------------------------------------------------- */

/* Blocks [lo, hi] without the row's window and `not`, into the pool; returns their number. */
static int64_t fill_pool(struct state *s, int64_t a, int64_t lo, int64_t hi, int64_t not )
{
    int64_t n = 0;
    for (int64_t b = lo; b <= hi; b++)
        if ((b < a - 1 || b > a + 1) && b != not )
            s->pool[n++] = b;
    return n;
}

/* Blocks from which row a draws: a plan of the code, or -1 when the code has none. */
static int64_t official_pool(struct state *s, int64_t a)
{
    int64_t size = s->x.nk, n = s->n, r = s->random, count;
    if (size == 1024 || size == 2048 || size == 3072 || size == 4096) {
        count = fill_pool(s, a, 1, 1024 / s->params->block - 1, -1);
    } else if (n > 2 * r + 5 || n <= r + 5) {
        int64_t last = n > 2 * r + 5 ? 2 * r + 3 : n - 2;
        count = fill_pool(s, a, 1, last, a == 1 ? last : a == last ? 1 : -1);
    } else {
        return -1;
    }
    return count < r ? -1 : count;
}

/* r distinct random blocks of row a, ascending, into draw; returns their number. */
static int64_t draw_blocks(struct state *s, int64_t a, int64_t *draw)
{
    int64_t n = s->params->rand_scope == OFFICIAL ? official_pool(s, a) : -1;
    if (n < 0)
        n = fill_pool(s, a, 1, s->n - 2, -1);
    int64_t r = MIN(s->random, n);
    for (int64_t k = 0; k < r; k++) {
        uint64_t counter = (uint64_t)(a * RANDOM_MOST + k);
        int64_t at = k + (int64_t)rng_below(s->seed, s->stream, counter, (uint64_t)(n - k));
        draw[k] = s->pool[at];
        s->pool[at] = s->pool[k];
    }
    qsort(draw, (size_t)r, sizeof *draw, compare_i64);
    return r;
}

/* ---- masks ---------------------------------------------------------------------------------- */

static int add_row(struct state *s, struct mask *m, int64_t g, int64_t a, struct err *err)
{
    int64_t list[RANDOM_MOST + 5], n, kept = 0;
    if (a == 0 || a == s->n - 1) {
        s->gathered += s->n;
        return mask_lists_add_run(m, g, 0, (int32_t)s->n, err);
    }
    n = draw_blocks(s, a, list);
    list[n++] = 0;
    list[n++] = s->n - 1;
    for (int64_t b = a - 1; b <= a + 1; b++)
        if (b > 0 && b < s->n - 1)
            list[n++] = b;
    qsort(list, (size_t)n, sizeof *list, compare_i64);
    s->gathered += n;
    for (int64_t k = 0; k < n; k++)
        if (kept == 0 || list[kept - 1] != list[k])
            list[kept++] = list[k];
    for (int64_t k = 0; k < kept; k++)
        PASS_ON(mask_lists_add(m, g, (int32_t)list[k], err));
    return 0;
}

/* preset=sample with random blocks: row i keeps its window, the global columns, and its block's
 * random blocks as far as it sees them. */
static int add_sample_row(struct state *s, struct mask *m, int64_t i, const int64_t *draw,
                          int64_t r, struct err *err)
{
    int64_t at = i + s->x.nk - s->x.nq, g = i - m->row0, block = s->params->block;
    int64_t near = MAX(0, at - s->share + 1), done = MIN(s->share, near);
    if (at < 0)
        return 0;
    PASS_ON(mask_lists_add_run(m, g, 0, (int32_t)done, err));
    for (int64_t k = 0; k < r; k++) {
        int64_t lo = MAX(done, draw[k] * block), hi = MIN(near, (draw[k] + 1) * block);
        if (lo >= hi)
            continue;
        PASS_ON(mask_lists_add_run(m, g, (int32_t)lo, (int32_t)hi, err));
        done = hi;
    }
    return mask_lists_add_run(m, g, (int32_t)near, (int32_t)(at + 1), err);
}

static int select_sample(struct state *s, int64_t row0, int64_t row1, struct mask *m,
                         struct err *err)
{
    int64_t draw[RANDOM_MOST], r = 0, block = -1;
    if (s->random == 0) {
        int64_t share = MAX(1, s->share);
        mask_band(m, s->x.nq, s->x.nk, row0, row1, true, (struct band){share, share, s->x.nq});
        return 0;
    }
    PASS_ON(mask_lists_init(m, s->x.nq, s->x.nk, row0, row1, true, 1, 1, err));
    m->exec_bq = m->exec_bk = 1;
    for (int64_t i = row0; i < row1; i++) {
        int64_t a = MAX(0, i + s->x.nk - s->x.nq) / s->params->block;
        if (a != block)
            r = draw_blocks(s, block = a, draw);
        PASS_ON(add_sample_row(s, m, i, draw, r, err));
    }
    mask_lists_finish(m);
    return 0;
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct state *s = state;
    int64_t block = s->params->block;
    if (s->params->preset == PRESET_SAMPLE)
        return select_sample(s, row0, row1, out, err);
    PASS_ON(mask_lists_init(out, s->x.nq, s->x.nk, row0, row1, false, block, block, err));
    for (int64_t g = 0; g < out->ngroups; g++)
        PASS_ON(add_row(s, out, g, row0 / block + g, err));
    mask_lists_finish(out);
    return 0;
}

/* Blocks are drawn for every head. */
static struct mask_origin origin(void *state)
{
    struct state *s = state;
    return (struct mask_origin){
        .which = s->random ? s->stream : 0, .counted = &s->gathered, .bytes = sizeof s->gathered};
}

static int report(void *state, struct record *r, struct err *err)
{
    const struct state *s = state;
    if (s->params->preset == PRESET_SAMPLE)
        return 0;
    return record_metric(r, "blocks_gathered", (double)s->gathered, err);
}

static const struct metric_def metrics[] = {
    OWN_METRIC("blocks_gathered",
               "key blocks read, one that is drawn and global at once counted twice"),
    {0},
};

const struct method method_bigbird = {
    .name = "bigbird",
    .summary = "block window, first and last block, random blocks",
    .paper = "Zaheer et al., Big Bird: Transformers for Longer Sequences, arXiv 2007.14062",
    .flags = METHOD_ROWS | METHOD_CAUSAL | METHOD_BIDIRECTIONAL | METHOD_RANDOM | METHOD_ANY_SCORE,
    .params = {.table = options,
               .size = sizeof(struct params),
               .budget = BUDGET_PARAMS(BUDGET_BY(BUDGET_COUNT, "random"))},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .release = release,
    .metrics = metrics,
    .reuse = {.always_static = true, .of = origin},
    .tests = {.variants = TEXTS("block=16", "block=16:rand_scope=uniform:random=5", "preset=sample",
                                "preset=sample:random=2:block=32")},
};
