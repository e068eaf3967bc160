/*
 * planrows.cu - rows in the order in which they are taken, and their pieces (mapplan.h).
 *
 * Sums over the order say which row is the first to end late, and where the shares of what is left
 * begin.
 */
#include "cuda/attn/orderrows.cuh"
#include "cuda/blocksum.cuh"

#include <stdlib.h>

#define THREADS 256
#define CUT_THREADS 1024

static __device__ __forceinline__ int units_of(const row_plan &r, int64_t row)
{
    return r.at ? r.per_entry * (int)(r.at[row + 1] - r.at[row]) : r.units[row];
}

static __device__ __forceinline__ int stages_of(const row_plan &r, int64_t row)
{
    return (units_of(r, row) + r.per_stage - 1) / r.per_stage;
}

static __device__ __forceinline__ int row_of(const row_plan &r, int row)
{
    return r.of ? r.of[row] : row;
}

/* By section, longest first; rows without a unit behind all others. */
static __global__ void make_keys(row_plan r)
{
    int64_t row = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (row >= r.rows)
        return;
    int n = stages_of(r, row);
    r.key[row] = n ? (unsigned long long)(row / r.section) << 32 | (uint32_t)~n : ~0ull;
}

/* Sum up the cost of the rows before each, and of all; the number of rows with a unit. */
static __device__ int sum_rows(const row_plan &r)
{
    __shared__ int64_t part[2][32];
    int rows = (int)r.rows, some = 0;
    int64_t before = 0, all;
    for (int base = 0, turn = 0; base < rows; base += CUT_THREADS, turn ^= 1) {
        int i = base + threadIdx.x, n = i < rows ? r.order[i].stages : 0;
        int64_t at = before + sum_before(n ? n + ITEM_COST : 0, part[turn], &all);
        if (i < rows)
            r.before[i] = at;
        some += __syncthreads_count(n > 0);
        before += all;
    }
    if (threadIdx.x == 0)
        r.before[rows] = before;
    __syncthreads();
    return some;
}

/* The first of the rows with a unit that would end late; their number: none would. */
static __device__ int first_late(const row_plan &r, int some)
{
    __shared__ int first;
    int64_t all = r.before[some];
    if (threadIdx.x == 0)
        first = some;
    __syncthreads();
    for (int i = threadIdx.x; i < some; i += CUT_THREADS) {
        int64_t at = r.before[i], last = i ? at - r.before[i - 1] : 0;
        if (attn_row_late(i, r.before[i + 1] - at, last, all - at,
                          all - r.before[i < r.workers ? 0 : i - r.workers], r.workers))
            atomicMin(&first, i);
    }
    __syncthreads();
    return first;
}

/* A row's pieces, from its end to its beginning, as the items from `item` on of `to`. */
static __device__ void write_row(const row_plan &r, int row, attn_line line, attn_cut cut,
                                 attn_item *to, int item, int slot, int split)
{
    int units = units_of(r, row), end = units;
    int beg = (int)(r.at ? r.per_entry * r.at[row] : row * r.room), of = row_of(r, row);
    for (int k = 0; k < cut.pieces; k++) {
        int from = (int)attn_piece_begin(line, cut, cut.pieces - 1 - k, units, r.per_stage);
        to[item + k] = {of, beg + from, beg + end, cut.pieces > 1 ? slot + k : -1};
        r.stages[item + k] = (end - from + r.per_stage - 1) / r.per_stage;
        end = from;
    }
    if (cut.pieces > 1)
        r.splits[split] = {of, slot, cut.pieces};
}

/* The items [first, n), longest first. Four lanes compare an item with a quarter of the others
 * each.
 */
static __device__ void order_items(const row_plan &r, int first, int n)
{
    __shared__ int stages[CUT_THREADS];
    int lane = threadIdx.x & 3;
    for (int base = first; base < n; base += CUT_THREADS / 4) {
        int i = base + threadIdx.x / 4, own = i < n ? r.stages[i] : 0, before = 0;
        for (int from = first; from < n; from += CUT_THREADS) {
            int count = min(CUT_THREADS, n - from);
            __syncthreads();
            if (threadIdx.x < count)
                stages[threadIdx.x] = r.stages[from + threadIdx.x];
            __syncthreads();
#pragma unroll 8
            for (int j = lane; j < count; j += 4)
                before += stages[j] > own || (stages[j] == own && from + j < i);
        }
        before += __shfl_xor_sync(~0u, before, 1);
        before += __shfl_xor_sync(~0u, before, 2);
        if (i < n && lane == 0)
            r.items[first + before] = r.cut[i];
    }
}

/* One thread block: the rows' pieces and their places. Slots and split rows are summed up together.
 */
static __global__ void __launch_bounds__(CUT_THREADS) cut_rows(row_plan r)
{
    __shared__ int64_t part[2][32];
    int rows = (int)r.rows, some = sum_rows(r), first = first_late(r, some);
    int64_t cut = 0, all, start = r.before[first];
    attn_line line =
        attn_line_of(r.before[some] - start - (some - first) * (int64_t)ITEM_COST, r.workers);

    for (int base = 0, turn = 0; base < rows; base += CUT_THREADS, turn ^= 1) {
        int i = base + threadIdx.x, row = i < rows ? r.order[i].row : 0;
        attn_cut c = {0, 0, 1};
        if (i >= first && i < some)
            c = attn_row_cut(line, r.before[i] - start - (i - first) * (int64_t)ITEM_COST,
                             r.order[i].stages);
        int64_t own = c.pieces > 1 ? (int64_t)c.pieces << 32 | 1 : 0;
        int64_t at = cut + sum_before(own, part[turn], &all);
        int slot = (int)(at >> 32), split = (int)at;
        if (i < some)
            write_row(r, row, line, c, i < first ? r.items : r.cut, i + slot - split, slot, split);
        else if (i < rows)
            r.empty[i - some] = row_of(r, row);
        cut += all;
    }
    int slots = (int)(cut >> 32), splits = (int)cut, n = some + slots - splits;
    __syncthreads();
    order_items(r, first, n);
    if (threadIdx.x == 0)
        *r.n = {n, splits, slots, rows - some};
}

/* To be called for a row's place. */
struct put_row {
    struct ordered_row *order;
    __device__ void operator()(int row, int place, int stages) const
    {
        order[place] = {row, stages};
    }
};

int row_plan_cut(struct gpu *g, const struct row_plan *r, struct err *err)
{
    PASS_ON(launch_order(g, r, put_row{r->order}, err));
    cut_rows<<<1, CUT_THREADS, 0, g->stream>>>(*r);
    return LAUNCH_STATUS(err);
}

/* Make it again, keys included. */
static int row_plan_launch(struct gpu *g, const struct row_plan *r, struct err *err)
{
    make_keys<<<(unsigned)((r->rows + THREADS - 1) / THREADS), THREADS, 0, g->stream>>>(*r);
    PASS_ON_LAUNCH(err);
    return row_plan_cut(g, r, err);
}

/* *to, the caller's, from the device. */
template <class T>
static int fetch(struct gpu *g, const T *from, int64_t n, T **to, struct err *err)
{
    free(*to);
    *to = NULL;
    PASS_ON(mem_alloc(to, n, sizeof **to, "plan", err));
    return gpu_get(g, *to, from, n * (int64_t)sizeof **to, err);
}

int row_plan_fetch(struct gpu *g, const struct row_plan *r, struct attn_plan *plan, struct err *err)
{
    struct plan_counts n;
    PASS_ON(gpu_get(g, &n, r->n, sizeof n, err));
    PASS_ON(fetch(g, r->items, n.items, &plan->items, err));
    PASS_ON(fetch(g, r->splits, n.splits, &plan->splits, err));
    PASS_ON(fetch(g, r->empty, n.empty, &plan->empty, err));
    plan->n_items = n.items;
    plan->n_splits = n.splits;
    plan->n_slots = n.slots;
    plan->n_empty = n.empty;
    plan->device = {r->items,         r->splits,        r->empty,         plan->lists.col,
                    plan->lists.bits, plan->lists.keys, plan->lists.words};
    return attn_plan_rate(plan, r->workers, err);
}

int map_plan_launch(struct gpu *g, const void *plan, struct err *err)
{
    const struct map_plan *p = (const struct map_plan *)plan;
    PASS_ON(map_tiles_launch(g, &p->tiles, err));
    return row_plan_launch(g, &p->rows, err);
}

int row_plan_init(struct gpu *g, int64_t rows, int per_stage, int workers, struct row_plan *r,
                  struct err *err)
{
    int64_t most = attn_most_items(rows, workers);
    *r = {};
    r->rows = rows;
    r->workers = workers;
    r->per_stage = per_stage;
    PASS_ON(gpu_alloc(g, rows * 8, &r->key, err));
    PASS_ON(gpu_alloc(g, rows * 4, &r->units, err));
    PASS_ON(gpu_alloc(g, rows * (int64_t)sizeof *r->order, &r->order, err));
    PASS_ON(gpu_alloc(g, (rows + 1) * 8, &r->before, err));
    PASS_ON(gpu_alloc(g, most * (int64_t)sizeof *r->cut, &r->cut, err));
    PASS_ON(gpu_alloc(g, most * 4, &r->stages, err));
    PASS_ON(gpu_alloc(g, most * (int64_t)sizeof *r->items, &r->items, err));
    PASS_ON(gpu_alloc(g, rows * (int64_t)sizeof *r->splits, &r->splits, err));
    PASS_ON(gpu_alloc(g, rows * 4, &r->empty, err));
    return gpu_alloc(g, sizeof *r->n, &r->n, err);
}

int row_plan_make(struct gpu *g, const struct attn_problem *p, const struct attn_tile *tile,
                  const struct attn_csr *csr, const int64_t *at, struct row_plan *r,
                  struct attn_plan *plan, struct err *err)
{
    int rc = 0;

    TRY(attn_plan_begin(p, tile, csr, plan, err));
    TRY(row_plan_init(g, (int64_t)p->heads * plan->q_blocks, tile->units, g->sms, r, err));
    r->section = attn_section_rows(p, plan->q_blocks);
    r->at = at;
    r->per_entry = attn_units_per_block(p, tile);
    TRY(row_plan_launch(g, r, err));
    TRY(row_plan_fetch(g, r, plan, err));
out:
    if (rc)
        attn_plan_free(plan);
    return rc;
}
