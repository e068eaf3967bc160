/*
 * lists.cu - prefix sums of the row counts by one thread block, then a warp per row writes the
 * indices of the bits (lists.h).
 */
#include "cuda/select/lists.h"

#define SCAN_THREADS 1024

/* ptr[r] = count[0] + ... + count[r - 1], r = 0 .. rows, four rows to a thread at a time. */
static __global__ void __launch_bounds__(SCAN_THREADS)
    scan_counts(const int32_t *count, int64_t rows, int64_t *ptr)
{
    __shared__ int64_t warp_sum[2][32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, turn = 0;
    int64_t base = 0;
    for (int64_t from = 0; from < rows; from += 4 * SCAN_THREADS, turn ^= 1) {
        int64_t r = from + 4 * (int64_t)threadIdx.x, own[4], sum = 0;
#pragma unroll
        for (int i = 0; i < 4; i++)
            own[i] = r + i < rows ? count[r + i] : 0;
#pragma unroll
        for (int i = 0; i < 4; i++)
            sum += own[i];
        int64_t all = sum;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            int64_t left = __shfl_up_sync(~0u, sum, step);
            sum += lane >= step ? left : 0;
        }
        if (lane == 31)
            warp_sum[turn][warp] = sum;
        __syncthreads();
        int64_t others = warp_sum[turn][lane], before = lane < warp ? others : 0;
#pragma unroll
        for (int step = 16; step; step /= 2) {
            before += __shfl_xor_sync(~0u, before, step);
            others += __shfl_xor_sync(~0u, others, step);
        }
        before += base + sum - all;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (r + i < rows)
                ptr[r + i] = before;
            before += own[i];
        }
        base += others;
    }
    if (threadIdx.x == 0)
        ptr[rows] = base;
}

static __global__ void fill_columns(const uint32_t *map, int64_t rows, int64_t words,
                                    const int64_t *ptr, int32_t *col)
{
    int64_t r = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) >> 5;
    int lane = threadIdx.x & 31;
    if (r >= rows)
        return;
    int64_t at = ptr[r];
    for (int64_t w0 = 0; w0 < words; w0 += 32) {
        uint32_t mine = w0 + lane < words ? map[r * words + w0 + lane] : 0;
        int n = (int)min(words - w0, (int64_t)32);
        for (int w = 0; w < n; w++) {
            uint32_t bits = __shfl_sync(~0u, mine, w);
            if (bits >> lane & 1)
                col[at + __popc(bits & ((1u << lane) - 1))] = (int32_t)((w0 + w) * 32 + lane);
            at += __popc(bits);
        }
    }
}

extern "C" int lists_make(struct gpu *g, const struct select_lists *l, struct err *err)
{
    int rc = 0;
    if (!l->ptr)
        return 0;
    scan_counts<<<1, SCAN_THREADS, 0, g->stream>>>(l->count, l->rows, l->ptr);
    CU_LAUNCHED(err);
    fill_columns<<<(unsigned)((l->rows + 7) / 8), 256, 0, g->stream>>>(l->map, l->rows, l->words,
                                                                       l->ptr, l->col);
    CU_LAUNCHED(err);
out:
    return rc;
}
