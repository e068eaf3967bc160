/*
 * lists.cu - prefix sums of the row counts by one thread block, then a warp per row writes the
 * indices of the bits (lists.h).
 */
#include "cuda/lists.h"

#define SCAN_THREADS 1024

/* ptr[r] = count[0] + ... + count[r - 1], r = 0 .. rows. */
static __global__ void __launch_bounds__(SCAN_THREADS)
    scan_counts(const int32_t *count, int64_t rows, int64_t *ptr)
{
    __shared__ int64_t warp_sum[32];
    int     lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int64_t base = 0;
    for (int64_t from = 0; from < rows; from += SCAN_THREADS) {
        int64_t r = from + threadIdx.x, own = r < rows ? count[r] : 0, sum = own;
        for (int step = 1; step < 32; step *= 2) {
            int64_t left = __shfl_up_sync(~0u, sum, step);
            sum += lane >= step ? left : 0;
        }
        if (lane == 31)
            warp_sum[warp] = sum;
        __syncthreads();
        int64_t before = 0, total = 0;
        for (int w = 0; w < 32; w++) {
            before += w < warp ? warp_sum[w] : 0;
            total += warp_sum[w];
        }
        if (r < rows)
            ptr[r] = base + before + sum - own;
        base += total;
        __syncthreads();
    }
    if (threadIdx.x == 0)
        ptr[rows] = base;
}

static __global__ void fill_columns(const uint32_t *map, int64_t rows, int64_t words,
                                    const int64_t *ptr, int32_t *col)
{
    int64_t r = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) >> 5;
    int     lane = threadIdx.x & 31;
    if (r >= rows)
        return;
    int64_t at = ptr[r];
    for (int64_t w0 = 0; w0 < words; w0 += 32) {
        uint32_t bits = w0 + lane < words ? map[r * words + w0 + lane] : 0;
        int      n = __popc(bits), sum = n;
        for (int step = 1; step < 32; step *= 2) {
            int left = __shfl_up_sync(~0u, sum, step);
            sum += lane >= step ? left : 0;
        }
        int64_t to = at + sum - n;
        for (; bits; bits &= bits - 1)
            col[to++] = (int32_t)((w0 + lane) * 32 + __ffs((int)bits) - 1);
        at += __shfl_sync(~0u, sum, 31);
    }
}

extern "C" int lists_make(struct gpu *g, const struct select_lists *l, struct err *err)
{
    int rc = 0;
    scan_counts<<<1, SCAN_THREADS, 0, g->stream>>>(l->count, l->rows, l->ptr);
    CU_LAUNCHED(err);
    fill_columns<<<(unsigned)((l->rows + 7) / 8), 256, 0, g->stream>>>(l->map, l->rows, l->words,
                                                                      l->ptr, l->col);
    CU_LAUNCHED(err);
out:
    return rc;
}
