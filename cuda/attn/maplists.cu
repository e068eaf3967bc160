/*
 * maplists.cu - maps of kept units become lists of blocks and their plan (mapplan.h).
 *
 * A warp has a row of tiles. Every row has room for all blocks, so that its entries, their number
 * and its place in the order are found without those of the others. With them rows are ordered and
 * cut as planrows.cu does it for tiles; rows with a filter stay whole.
 */
#include "cuda/attn/orderrows.cuh"

#include "core/intmath.h"
#include "cuda/attn/unitmaps.cuh"

#include <stdlib.h>
#include <string.h>

#define THREADS 256
#define WARPS (THREADS / 32)

/* ---- maps ----------------------------------------------------------------------------------- */

/* The maps of the one or two lists of a row of tiles; `seen`: blocks that some of their queries may
 * see. Where there is one list, it counts twice. */
struct row_maps {
    const uint32_t *map[2];
    int seen[2], words; /* words: of blocks that are seen */
};

static __device__ row_maps maps_of_row(const list_shape &p, int head, int block)
{
    const unit_maps &m = p.lists.maps;
    const uint32_t *map = p.lists.map[p.first + head];
    int nq = (int)m.nq, bq = (int)m.bq;
    row_maps x;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row0 = block * p.bm / p.block_rows * p.block_rows;
        row0 += p.block_rows < p.bm ? i * p.block_rows : 0;
        int last = min(row0 + p.block_rows, nq) - 1;
        x.map[i] = map;
        x.seen[i] = 0;
        if (row0 < nq) {
            x.map[i] = map + row0 / bq * m.words;
            x.seen[i] = (key_limit_of(m, last) + p.block_keys - 1) / p.block_keys;
        }
    }
    x.words = (max(x.seen[0], x.seen[1]) + 31) / 32;
    return x;
}

/* Blocks [32 w, 32 w + 32) of list i. */
static __device__ __forceinline__ uint32_t blocks_of(const list_shape &p, const row_maps &x, int i,
                                                     int w)
{
    int left = x.seen[i] - 32 * w;
    uint32_t bits = 0;
    if (left <= 0)
        return 0;
    if (p.split == 1)
        return x.map[i][w] & low_bits(left);
    for (int k = 0; k < 32 && k < left; k++) {
        int unit = (32 * w + k) / p.split;
        bits |= (x.map[i][unit / 32] >> unit % 32 & 1) << k;
    }
    return bits;
}

/* ---- counts --------------------------------------------------------------------------------- */

/* Tiles with a kept pair: blocks of 64 x 64 and, two by two, tiles of 128 x 128. A warp per row of
 * the latter. */
static __global__ void __launch_bounds__(THREADS)
    count_kept(list_shape p, int64_t rows, map_totals *totals)
{
    int64_t row = (blockIdx.x * (int64_t)THREADS + threadIdx.x) >> 5;
    int lane = threadIdx.x & 31, kept64 = 0, kept128 = 0;
    if (row >= rows)
        return;
    int head = (int)row / p.q_blocks;
    row_maps x = maps_of_row(p, head, (int)row - head * p.q_blocks);
    for (int w = lane; w < x.words; w += 32) {
        uint32_t a = blocks_of(p, x, 0, w), b = blocks_of(p, x, 1, w), any = a | b;
        kept64 += __popc(a) + __popc(b);
        kept128 += __popc((any | any >> 1) & 0x55555555);
    }
    kept64 = warp_add(kept64);
    kept128 = warp_add(kept128);
    if (lane)
        return;
    atomicAdd(&totals[head].kept64, (unsigned long long)kept64);
    atomicAdd(&totals[head].kept128, (unsigned long long)kept128);
}

int map_lists_init(struct gpu *g, const struct unit_maps *m, struct map_lists *l, struct err *err)
{
    int64_t bytes = m->heads * (int64_t)sizeof *m->map;
    *l = {*m, NULL};
    l->maps.map = NULL;
    PASS_ON(gpu_upload(g, m->map, bytes, &l->map, err));
    return gpu_sync(g, err); /* m->map is the caller's */
}

int map_lists_totals(struct gpu *g, const struct map_lists *l, struct map_totals *totals,
                     int32_t *units, struct err *err)
{
    int q_blocks = (int)((l->maps.nq + 127) / 128);
    int64_t rows = l->maps.heads * (int64_t)q_blocks;
    list_shape shape = {*l, 0, q_blocks, 128, 64, 64, (int)l->maps.bk / 64};
    auto tiles = [&](map_totals *sums) {
        int rc = 0;
        count_kept<<<(unsigned)((rows + WARPS - 1) / WARPS), THREADS, 0, g->stream>>>(shape, rows,
                                                                                      sums);
        CU_LAUNCHED(err);
    out:
        return rc;
    };
    return unit_totals<true>(g, &l->maps, l->map, tiles, totals, units, err);
}

/* ---- entries -------------------------------------------------------------------------------- */

/* Entries of a row of tiles: of its lists, of their union; the last block, -1: none. */
struct row_counts {
    int list[2], all, last;
};

static __device__ row_counts count_row(const list_plan &p, const row_maps &x)
{
    row_counts c = {{0, 0}, 0, -1};
    for (int w = threadIdx.x & 31; w < x.words; w += 32) {
        uint32_t a = blocks_of(p.shape, x, 0, w), b = blocks_of(p.shape, x, 1, w), any = a | b;
        c.list[0] += __popc(a);
        c.list[1] += __popc(b);
        c.all += __popc(any);
        c.last = any ? 32 * w + 31 - __clz(any) : c.last;
    }
    c.list[0] = warp_add(c.list[0]);
    c.list[1] = warp_add(c.list[1]);
    c.all = warp_add(c.all);
    c.last = __reduce_max_sync(~0u, c.last);
    return c;
}

/* The first n of some bits; none for n < 0. */
static __device__ uint32_t first_bits(uint32_t bits, int n)
{
    if (n <= 0)
        return 0;
    while (__popc(bits) > n)
        bits ^= 1u << (31 - __clz(bits));
    return bits;
}

/* Who wants an entry of a pair of lists. */
enum { FIRST, SECOND, BOTH, KINDS };

/* Entries of each kind among the first `n` of a pair, which change places: as many of a kind as a
 * stage has, `per`, make one (arrange_pairs in plan.c). */
struct pair_kinds {
    int n, per, count[KINDS];
};

static __device__ pair_kinds count_kinds(const list_plan &p, const row_maps &x, int all)
{
    int lane = threadIdx.x & 31, per = p.rows.per_stage, n = max(all - p.fixed, 0);
    pair_kinds k = {n - n % per, per, {0, 0, 0}};
    for (int w0 = 0, done = 0; w0 < x.words && done < k.n; w0 += 32) {
        uint32_t a = w0 + lane < x.words ? blocks_of(p.shape, x, 0, w0 + lane) : 0;
        uint32_t b = w0 + lane < x.words ? blocks_of(p.shape, x, 1, w0 + lane) : 0;
        int own = __popc(a | b), sum = own;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            int left = __shfl_up_sync(~0u, sum, step);
            sum += lane >= step ? left : 0;
        }
        uint32_t moved = first_bits(a | b, k.n - done - (sum - own));
        k.count[FIRST] += __popc(moved & a & ~b);
        k.count[SECOND] += __popc(moved & b & ~a);
        k.count[BOTH] += __popc(moved & a & b);
        done += __shfl_sync(~0u, sum, 31);
    }
#pragma unroll
    for (int i = 0; i < KINDS; i++)
        k.count[i] = warp_add(k.count[i]);
    return k;
}

/* The place of entry j of a kind: stages that both want come first, then those of either in turns,
 * then what is left of each. */
static __device__ int pair_place(const pair_kinds &k, int kind, int j)
{
    int per = k.per, stage = j / per, in = j % per;
    int first = k.count[FIRST] / per, second = k.count[SECOND] / per, both = k.count[BOTH] / per;
    int rest = per * (first + second + both) + in;
    if (kind == BOTH)
        return stage < both ? j : rest + k.count[FIRST] % per + k.count[SECOND] % per;
    if (kind == SECOND)
        return stage < second ? per * (both + min(stage + 1, first) + stage) + in
                              : rest + k.count[FIRST] % per;
    return stage < first ? per * (both + stage + min(stage, second)) + in : rest;
}

/* Entries that are written. */
struct written {
    int list[2], all, kind[KINDS];
};

/* The entries of a word of blocks, a lane for each. `tail`: see attn_plan_filtered. */
template <int FORM>
static __device__ __forceinline__ void write_word(const row_counts &c, const pair_kinds &k,
                                                  int tail, uint32_t a, uint32_t b, int w,
                                                  written &done, int32_t *to)
{
    int lane = threadIdx.x & 31;
    uint32_t any = a | b, below = (1u << lane) - 1, in_a = a >> lane & 1, in_b = b >> lane & 1;
    uint32_t entry = (uint32_t)(32 * w + lane);
    int place = done.all + __popc(any & below);
    if (FORM != LIST_BLOCKS)
        entry |= in_a << FILTER_WANTED | in_b << (FILTER_WANTED + 1);
    if (FORM == LIST_FILTER) {
        bool last_a = done.list[0] + __popc(a & below) >= c.list[0] - tail;
        bool last_b = done.list[1] + __popc(b & below) >= c.list[1] - tail;
        entry |= (in_a & last_a) << FILTER_EXEMPT | (in_b & last_b) << (FILTER_EXEMPT + 1);
        done.list[0] += __popc(a);
        done.list[1] += __popc(b);
    }
    if (FORM == LIST_PAIRS) {
        uint32_t of[KINDS] = {a & ~b, b & ~a, a & b};
        int kind = in_a & in_b ? BOTH : in_a ? FIRST : SECOND, j = 0;
#pragma unroll
        for (int i = 0; i < KINDS; i++) {
            j = kind == i ? done.kind[i] + __popc(of[i] & below) : j;
            done.kind[i] += __popc(of[i]);
        }
        place = place < k.n ? pair_place(k, kind, j) : place;
    }
    if (in_a | in_b)
        to[place] = (int32_t)entry;
    done.all += __popc(any);
}

template <int FORM>
static __device__ void write_row(const list_plan &p, const row_maps &x, const row_counts &c,
                                 int tail, int32_t *to)
{
    int lane = threadIdx.x & 31;
    pair_kinds k = {0, 1, {0, 0, 0}};
    written done = {{0, 0}, 0, {0, 0, 0}};
    if (FORM == LIST_PAIRS)
        k = count_kinds(p, x, c.all);
    for (int w0 = 0; w0 < x.words; w0 += 32) {
        uint32_t a = w0 + lane < x.words ? blocks_of(p.shape, x, 0, w0 + lane) : 0;
        uint32_t b = w0 + lane < x.words ? blocks_of(p.shape, x, 1, w0 + lane) : 0;
        for (unsigned left = __ballot_sync(~0u, (a | b) != 0); left; left &= left - 1) {
            int from = __ffs(left) - 1;
            uint32_t its_a = __shfl_sync(~0u, a, from), its_b = __shfl_sync(~0u, b, from);
            write_word<FORM>(c, k, tail, its_a, its_b, w0 + from, done, to);
        }
    }
}

/* Units of a row: those of its last block that no query sees are left out. */
static __device__ int units_of_row(const list_plan &p, const row_counts &c, int block)
{
    int rows = max(p.shape.bm, p.shape.block_rows);
    int last_row = min((block * p.shape.bm / rows + 1) * rows, (int)p.shape.lists.maps.nq) - 1;
    int seen = key_limit_of(p.shape.lists.maps, last_row) - c.last * p.shape.block_keys;
    int beyond = max(p.shape.block_keys - seen, 0) / p.unit_keys;
    return c.all ? c.all * p.per_block - beyond : 0;
}

/* By section, longest first, those without an entry last. */
static __device__ unsigned long long key_of_row(const list_plan &p, const list_head &h, int row,
                                                int units)
{
    int stages = (units + p.rows.per_stage - 1) / p.rows.per_stage;
    int section = units ? h.section + (row - h.row0) / h.per_section : h.last;
    return (unsigned long long)(uint32_t)section << 32 | (uint32_t)~stages;
}

/* A warp per row of tiles. */
template <int FORM> static __global__ void __launch_bounds__(THREADS, 4) make_lists(list_plan p)
{
    int64_t row = (blockIdx.x * (int64_t)THREADS + threadIdx.x) >> 5;
    if (row >= p.rows.rows)
        return;
    int head = (int)row / p.shape.q_blocks, block = (int)row - head * p.shape.q_blocks;
    const list_head &h = p.heads[head];
    row_maps x = maps_of_row(p.shape, h.head, block);
    row_counts c = count_row(p, x);
    write_row<FORM>(p, x, c, h.tail, p.cols + row * p.room);
    if (threadIdx.x & 31)
        return;
    int units = units_of_row(p, c, block);
    p.of[row] = h.head * p.shape.q_blocks + block;
    p.rows.units[row] = units;
    p.rows.key[row] = key_of_row(p, h, (int)row, units);
    bool begins = block * p.shape.bm % p.shape.block_rows == 0;
    p.blocks[row] = (begins ? c.list[0] : 0) + (p.shape.block_rows < p.shape.bm ? c.list[1] : 0);
}

/* The item of a whole row. Those of a run have as many places as it has rows, its empty rows the
 * last of them. */
struct put_item {
    list_plan p;
    __device__ void operator()(int row, int place, int) const
    {
        const row_plan &r = p.rows;
        int n = r.units[row], beg = (int)(row * r.room);
        if (n)
            r.items[place] = {p.of[row], beg, beg + n, -1};
        else
            r.empty[place] = p.of[row];
    }
};

int list_plan_launch(struct gpu *g, const void *plan, struct err *err)
{
    const struct list_plan *p = (const struct list_plan *)plan;
    unsigned grid = (unsigned)((p->rows.rows + WARPS - 1) / WARPS);
    if (p->form == LIST_FILTER)
        make_lists<LIST_FILTER><<<grid, THREADS, 0, g->stream>>>(*p);
    else if (p->form == LIST_PAIRS)
        make_lists<LIST_PAIRS><<<grid, THREADS, 0, g->stream>>>(*p);
    else
        make_lists<LIST_BLOCKS><<<grid, THREADS, 0, g->stream>>>(*p);
    PASS_ON_LAUNCH(err);
    return p->form == LIST_FILTER ? launch_order(g, &p->rows, put_item{*p}, err)
                                  : row_plan_cut(g, &p->rows, err);
}

/* ---- plans ---------------------------------------------------------------------------------- */

/* What the lists of a kernel are made of. */
static int set_shape(const struct map_lists *l, const struct attn_problem *p,
                     const struct attn_tile *tile, const struct attn_plan *plan, bool filter,
                     struct list_plan *x, struct err *err)
{
    int64_t rows = (int64_t)p->heads * plan->q_blocks;
    x->shape.lists = *l;
    x->shape.q_blocks = plan->q_blocks;
    x->shape.bm = tile->bm;
    x->shape.block_rows = attn_block_rows(p->lists, tile);
    x->shape.block_keys = attn_block_keys(p->lists, tile);
    x->form = filter ? LIST_FILTER : x->shape.block_rows < x->shape.bm ? LIST_PAIRS : LIST_BLOCKS;
    x->shape.split = (int)(l->maps.bk / x->shape.block_keys);
    x->unit_keys = tile->bn / tile->units;
    x->per_block = x->shape.block_keys / x->unit_keys;
    x->fixed = plan->masked_units;
    x->room = (int)ceil_div(p->nk, x->shape.block_keys);
    if (l->maps.bk % x->shape.block_keys || l->maps.bq % x->shape.block_rows)
        return err_set(err, ERR_RUN, "units of %lld x %lld are no blocks of a kernel",
                       (long long)l->maps.bq, (long long)l->maps.bk);
    if (rows * x->room > (INT32_MAX - 1024) / x->per_block)
        return err_set(err, ERR_RUN,
                       "lists of %d heads over %lld keys are too large for one launch", p->heads,
                       (long long)p->nk);
    return 0;
}

/* The runs' heads. Runs are ordered one after the other, sections inside them. */
static int put_heads(struct gpu *g, const struct attn_problem *p, const int *of,
                     const struct list_run *runs, int n_runs, struct list_plan *x, struct err *err)
{
    OWN(free_at) struct list_head *heads = NULL;
    int64_t bytes = p->heads * (int64_t)sizeof *heads;
    int32_t section = 0;

    PASS_ON(mem_alloc(&heads, p->heads, sizeof *heads, "plan", err));
    for (int i = 0; i < n_runs; i++) {
        struct attn_problem of_run = *p;
        of_run.heads = runs[i].heads;
        of_run.kv_heads = runs[i].kv_heads;
        int64_t rows = runs[i].heads * (int64_t)x->shape.q_blocks;
        int64_t per_section = MIN(attn_section_rows(&of_run, x->shape.q_blocks), rows);
        int32_t n = (int32_t)((rows + per_section - 1) / per_section);
        /* row_plan_cut knows rows without an entry by the largest key. */
        int32_t last = x->form == LIST_FILTER ? section + n : -1;
        for (int h = runs[i].first; h < runs[i].first + runs[i].heads; h++)
            heads[h] = {
                of[h],       runs[i].first * x->shape.q_blocks, (int32_t)per_section, section, last,
                runs[i].tail};
        section += n + 1;
    }
    PASS_ON(gpu_upload(g, heads, bytes, &x->heads, err));
    return gpu_sync(g, err);
}

/* A run's part of plans of whole rows. units: of all rows. */
static int fetch_run(struct gpu *g, const struct list_plan *x, const struct list_run *run,
                     const int32_t *units, struct attn_plan *plan, struct err *err)
{
    const struct row_plan *r = &x->rows;
    int64_t row0 = (int64_t)run->first * x->shape.q_blocks,
            rows = (int64_t)run->heads * x->shape.q_blocks;
    for (int64_t i = row0; i < row0 + rows; i++)
        plan->n_items += units[i] > 0;
    plan->n_empty = (int32_t)rows - plan->n_items;
    plan->masked_units = 1;
    plan->device.items = r->items + row0;
    plan->device.splits = r->splits;
    plan->device.empty = r->empty + row0 + plan->n_items;
    plan->device.cols = x->cols;
    PASS_ON(gpu_get(g, plan->items, plan->device.items,
                    plan->n_items * (int64_t)sizeof *plan->items, err));
    PASS_ON(gpu_get(g, plan->empty, plan->device.empty, plan->n_empty * 4LL, err));
    return attn_plan_rate(plan, r->workers, err);
}

/* What the host needs of all plans. */
static int fetch_plans(struct gpu *g, const struct attn_problem *p, const struct list_plan *x,
                       const struct list_run *runs, int n_runs, struct attn_plan *plans,
                       int64_t *blocks, struct err *err)
{
    int64_t rows = x->rows.rows;
    OWN(free_at) int32_t *n = NULL;

    PASS_ON(mem_alloc(&n, 2 * rows, sizeof *n, "plan", err));
    PASS_ON(gpu_get(g, n, x->rows.units, rows * 4, err));
    PASS_ON(gpu_get(g, n + rows, x->blocks, rows * 4, err));
    for (int h = 0; h < p->heads; h++) {
        blocks[h] = 0;
        for (int64_t i = h * (int64_t)x->shape.q_blocks; i < (h + 1) * (int64_t)x->shape.q_blocks;
             i++)
            blocks[h] += n[rows + i];
    }
    for (int i = 0; i < n_runs; i++) {
        struct attn_plan *plan = plans + i;
        for (int h = runs[i].first; h < runs[i].first + runs[i].heads; h++)
            plan->blocks += blocks[h];
        plan->lists.col = x->cols;
        plan->lists.on_device = true;
        if (x->form == LIST_FILTER)
            PASS_ON(fetch_run(g, x, runs + i, n, plan, err));
        else
            PASS_ON(row_plan_fetch(g, &x->rows, plan, err));
    }
    return 0;
}

int list_plan_make(struct gpu *g, const struct map_lists *l, int first, const int *heads,
                   const struct attn_problem *p, const struct attn_tile *tile, int teams,
                   const struct list_run *runs, int n_runs, struct list_plan *x,
                   struct attn_plan *plans, int64_t *blocks, struct err *err)
{
    int64_t rows;
    int rc = 0;

    *x = {};
    memset(plans, 0, (size_t)n_runs * sizeof *plans);
    for (int i = 0; i < n_runs; i++) {
        struct attn_problem of_run = *p;
        of_run.heads = runs[i].heads;
        of_run.kv_heads = runs[i].kv_heads;
        TRY(attn_plan_begin(&of_run, tile, NULL, plans + i, err));
    }
    TRY(set_shape(l, p, tile, plans, runs->tail >= 0, x, err));
    x->shape.first = first;
    rows = (int64_t)p->heads * x->shape.q_blocks;
    TRY(row_plan_init(g, rows, tile->units, g->sms * teams, &x->rows, err));
    x->rows.room = (int64_t)x->room * x->per_block;
    TRY(gpu_alloc(g, rows * x->room * 4, &x->cols, err));
    TRY(gpu_alloc(g, rows * 4, &x->blocks, err));
    TRY(gpu_alloc(g, rows * 4, &x->of, err));
    x->rows.of = x->of;
    TRY(put_heads(g, p, heads, runs, n_runs, x, err));
    TRY(list_plan_launch(g, x, err));
    TRY(fetch_plans(g, p, x, runs, n_runs, plans, blocks, err));
out:
    for (int i = 0; rc && i < n_runs; i++)
        attn_plan_free(plans + i);
    return rc;
}
