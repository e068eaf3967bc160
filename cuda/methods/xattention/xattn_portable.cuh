/*
 * xattn_portable.cuh - antidiagonal scores of strided cells by mma.sync, for any stride and number
 * of tokens. A thread block computes 128 x 128 scores, keeps them in shared memory and reduces them
 * by two threads a row.
 */
#ifndef LACUNA_XATTN_PORTABLE_CUH
#define LACUNA_XATTN_PORTABLE_CUH

#include "cuda/methods/xattention/xattn_common.cuh"
#include "cuda/mma.cuh"

#define PITCH 129 /* floats of a row of scores in shared memory: rows in different banks */
#define THREADS 256

#define DEPTH 64 /* channels of a stage */
#define STAGES 3
#define BYTES (TILE * DEPTH * 2)

/* Rows S (r0 + i) + t, i = 0 .. 127, of x [n][D], channels of part `part`. */
template <int D>
static __device__ __forceinline__ void copy_strided(uint32_t dst, const uint4 *x, int64_t r0, int t,
                                                    int part, int stride, int64_t n)
{
#pragma unroll
    for (int e = threadIdx.x; e < TILE * (DEPTH / 8); e += THREADS) {
        int r = e / (DEPTH / 8), c = e % (DEPTH / 8);
        int64_t row = (r0 + r) * stride + t;
        bool valid = row < n;
        copy_async(dst + chunk_at<DEPTH>(r, c),
                   x + (valid ? row : 0) * (D / 8) + part * (DEPTH / 8) + c, valid);
    }
}

/* Stage s of a tile: offset s / (D / 64) of the runs, channels of part s % (D / 64). */
template <int D>
static __device__ __forceinline__ void copy_stage(const xattn_args &a, uint32_t base,
                                                  const uint4 *q, const uint4 *k, int r0, int j0,
                                                  int s)
{
    constexpr int PARTS = D / DEPTH;
    uint32_t to = base + s % STAGES * 2 * BYTES;
    if (s < a.stride * PARTS) {
        copy_strided<D>(to, q, r0, a.stride - 1 - s / PARTS, s % PARTS, a.stride, a.nq);
        copy_strided<D>(to + BYTES, k, j0, s / PARTS, s % PARTS, a.stride, a.nk);
    }
    copy_commit();
}

/* From the scores of a tile in shared memory: two threads a row. */
static __device__ void reduce_tile(const xattn_args &a, const float *s, int head, int r0, int j0)
{
    int r = threadIdx.x / 2, half = threadIdx.x % 2, row = r0 + r;
    int64_t limit = row < a.rows ? columns(a, row) : 0;
    int n = (int)min(max(min(limit, (int64_t)a.keys) - j0, (int64_t)0), (int64_t)TILE);
    float top = -INFINITY;
    for (int j = half; j < n; j += 2)
        top = fmaxf(top, s[r * PITCH + j]);
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1)) * a.factor;
    if (row >= a.rows)
        return;
    int64_t at = (int64_t)head * a.rows + row;
    if (half == 0)
        a.top[at * a.tiles + j0 / TILE] = n > 0 ? top : -INFINITY;
    for (int b = half; b < a.stride; b += 2) {
        int block = j0 / a.per_block + b;
        float sum = 0;
        if (block >= a.key_blocks)
            break;
        for (int j = b * a.per_block; j < (b + 1) * a.per_block; j++)
            sum += j < n ? exp2f(fmaf(s[r * PITCH + j], a.factor, -top)) : 0;
        a.sum[at * a.pitch + block] = sum;
    }
}

/* Warp w: reduced rows of quarter w % 4, columns of half w / 4. */
template <int D>
static __global__ void __launch_bounds__(THREADS, 2) score_tiles(const xattn_args a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    int j0 = blockIdx.x * TILE, r0 = blockIdx.y * TILE, head = blockIdx.z;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n = a.stride * (D / DEPTH);
    const uint4 *q = a.q + (int64_t)head * a.nq * (D / 8);
    const uint4 *k = a.k + (int64_t)(head / a.per_kv) * a.nk * (D / 8);
    uint32_t base = shared_addr(shared);
    float acc[2][8][4] = {{{0}}};

    if (j0 >= columns(a, min(r0 + TILE, a.rows) - 1))
        return;
    for (int s = 0; s < STAGES - 1; s++)
        copy_stage<D>(a, base, q, k, r0, j0, s);
    for (int s = 0; s < n; s++) {
        uint32_t here = base + s % STAGES * 2 * BYTES;
        copy_wait<STAGES - 2>();
        __syncthreads();
        copy_stage<D>(a, base, q, k, r0, j0, s + STAGES - 1);
        add_scores<DEPTH, 2, 8>(here, warp % 4 * 32, here + BYTES, warp / 4 * 64, acc);
    }
    __syncthreads();
    float *s = (float *)shared;
    copy_wait<0>();
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[(warp % 4 * 32 + 16 * m + (lane >> 2) + 8 * (i / 2)) * PITCH + warp / 4 * 64 +
                  8 * n + 2 * (lane & 3) + i % 2] = acc[m][n][i];
    __syncthreads();
    reduce_tile(a, s, head, r0, j0);
}

#endif
