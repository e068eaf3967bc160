/*
 * orderrows.cuh - the place of each row in the order of the rows' keys (mapplan.h).
 *
 * A row's place is the number of rows before it. A thread block compares 16 rows with all of them:
 * rows^2 / 32 steps of a warp, 4 us for 2048 rows with the launch, and no passes that wait for each
 * other.
 */
#pragma once

#include "cuda/attn/mapplan.h"

#define ORDER_ROWS 16 /* of a thread block: a lane each in the two halves of a warp */
#define ORDER_THREADS 1024
#define ORDER_KEYS 2048 /* that are compared with at a time */

/* put(row, place, stages) of every row. */
template <class F>
static __global__ void __launch_bounds__(ORDER_THREADS) order_rows(row_plan r, F put)
{
    __shared__ unsigned long long keys[ORDER_KEYS];
    __shared__ int before[ORDER_ROWS];
    int lane = threadIdx.x % ORDER_ROWS, rows = (int)r.rows, n = 0;
    int row = blockIdx.x * ORDER_ROWS + lane;
    unsigned long long mine = row < rows ? r.key[row] : 0;

    if (threadIdx.x < ORDER_ROWS)
        before[lane] = 0;
    for (int base = 0; base < rows; base += ORDER_KEYS) {
        int count = min(ORDER_KEYS, rows - base);
        __syncthreads();
        for (int i = threadIdx.x; i < count; i += ORDER_THREADS)
            keys[i] = r.key[base + i];
        __syncthreads();
#pragma unroll 8
        for (int i = threadIdx.x / ORDER_ROWS; i < count; i += ORDER_THREADS / ORDER_ROWS)
            n += keys[i] < mine || (keys[i] == mine && base + i < row);
    }
    n += __shfl_xor_sync(~0u, n, ORDER_ROWS);
    if ((threadIdx.x & 31) < ORDER_ROWS)
        atomicAdd(&before[lane], n);
    __syncthreads();
    if (threadIdx.x < ORDER_ROWS && row < rows)
        put(row, before[lane], (int)~(uint32_t)mine);
}

template <class F>
static int launch_order(struct gpu *g, const struct row_plan *r, F put, struct err *err)
{
    order_rows<<<(unsigned)((r->rows + ORDER_ROWS - 1) / ORDER_ROWS), ORDER_THREADS, 0,
                 g->stream>>>(*r, put);
    return LAUNCH_STATUS(err);
}
