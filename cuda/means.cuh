/*
 * means.cuh - means of token blocks and the products of all means of one side with those of the
 * other, in double.
 */
#ifndef LACUNA_MEANS_CUH
#define LACUNA_MEANS_CUH

#include <stdint.h>

/* Eight bf16 values. */
static __device__ __forceinline__ void unpack(const uint4 &raw, float (&x)[8])
{
    const uint32_t w[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[2 * i] = __uint_as_float(w[i] << 16);
        x[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
    }
}

/* Mean of rows [row0, row0 + rows) of a head, summed in double and divided by `by`, into mean [D];
 * 256 threads. */
template <int D>
static __device__ __forceinline__ void mean_of(const uint4 *x, int64_t row0, int rows, int by,
                                               float *mean)
{
    constexpr int LANES = D / 8, STEP = 256 / LANES;
    __shared__ double shared[STEP][D + 1];
    int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    double sum[8] = {0};
    for (int r = group; r < rows; r += STEP) {
        float v[8];
        unpack(x[(row0 + r) * LANES + lane], v);
#pragma unroll
        for (int c = 0; c < 8; c++)
            sum[c] += v[c];
    }
#pragma unroll
    for (int c = 0; c < 8; c++)
        shared[group][lane * 8 + c] = sum[c];
    __syncthreads();
    if (threadIdx.x >= D)
        return;
    double all = 0;
    for (int i = 0; i < STEP; i++)
        all += shared[i][threadIdx.x];
    mean[threadIdx.x] = (float)(all / by);
}

/* mean[head][block] of `block` rows of x [heads][n][D]; of a ragged last block over its rows, or
 * with `padded` as if zero rows followed. Grid (blocks, heads). */
template <int D>
static __global__ void __launch_bounds__(256)
    mean_blocks(const uint4 *x, int64_t n, int block, int padded, float *mean)
{
    int64_t row0 = blockIdx.x * (int64_t)block;
    int rows = (int)min((int64_t)block, n - row0);
    mean_of<D>(x, blockIdx.y * n + row0, rows, padded ? block : rows,
               mean + (blockIdx.y * (int64_t)gridDim.x + blockIdx.x) * D);
}

/* mean[head] of `rows` rows from row0 on. Grid (heads). */
template <int D>
static __global__ void __launch_bounds__(256)
    mean_rows(const uint4 *x, int64_t n, int64_t row0, int rows, float *mean)
{
    mean_of<D>(x, blockIdx.x * n + row0, rows, rows, mean + (int64_t)blockIdx.x * D);
}

#define SCORE_TILE 64
#define SCORE_STEP 32
#define SCORE_PITCH (SCORE_STEP + 4) /* so that 8 rows of 4 channels lie in different banks */

/* d (+)= A B^T, 8 x 4 and 8 x 4, in double: lane / 4 is the row of A and of B, lane % 4 the
 * channel; d: row lane / 4, columns 2 (lane % 4) and the next. */
static __device__ __forceinline__ void mma_f64(double (&d)[2], double a, double b)
{
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+d"(d[0]), "+d"(d[1])
                 : "d"(a), "d"(b));
}

static __device__ __forceinline__ void load_means(const float *x, int row0, int n, int d, int c0,
                                                  float (*tile)[SCORE_PITCH])
{
#pragma unroll
    for (int e = threadIdx.x; e < SCORE_TILE * SCORE_STEP / 4; e += 128) {
        int r = e / (SCORE_STEP / 4), c = e % (SCORE_STEP / 4) * 4;
        *(float4 *)&tile[r][c] = row0 + r < n
                                     ? *(const float4 *)(x + (int64_t)(row0 + r) * d + c0 + c)
                                     : make_float4(0, 0, 0, 0);
    }
}

/* score[head][i][j] = q_mean_i . k_mean_j scale for a tile of 64 x 64 blocks, in double, a warp for
 * each quarter. Tiles without an admissible pair are left alone. */
static __global__ void __launch_bounds__(128)
    score_means(const float *q, const float *k, int d, int groups, int units, int per_kv,
                double scale, int causal, int bq, int bk, double *score)
{
    __shared__ alignas(16) float a[SCORE_TILE][SCORE_PITCH], b[SCORE_TILE][SCORE_PITCH];
    int i0 = blockIdx.y * SCORE_TILE, j0 = blockIdx.x * SCORE_TILE, head = blockIdx.z;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int row = warp / 2 * 32 + (lane >> 2), col = warp % 2 * 32 + (lane >> 2);
    double acc[4][4][2] = {{{0}}};
    int64_t last = (int64_t)min(i0 + SCORE_TILE, groups) * bq;

    if (causal && (int64_t)j0 * bk >= last)
        return;
    q += (int64_t)head * groups * d;
    k += (int64_t)(head / per_kv) * units * d;
    for (int c0 = 0; c0 < d; c0 += SCORE_STEP) {
        load_means(q, i0, groups, d, c0, a);
        load_means(k, j0, units, d, c0, b);
        __syncthreads();
#pragma unroll
        for (int c = lane & 3; c < SCORE_STEP; c += 4) {
            double x[4], y[4];
#pragma unroll
            for (int u = 0; u < 4; u++) {
                x[u] = a[row + 8 * u][c];
                y[u] = b[col + 8 * u][c];
            }
#pragma unroll
            for (int u = 0; u < 4; u++)
#pragma unroll
                for (int v = 0; v < 4; v++)
                    mma_f64(acc[u][v], x[u], y[v]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int u = 0; u < 4; u++)
#pragma unroll
        for (int v = 0; v < 4; v++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int i = i0 + row + 8 * u, j = j0 + warp % 2 * 32 + 8 * v + 2 * (lane & 3) + e;
                if (i < groups && j < units)
                    score[((int64_t)head * groups + i) * units + j] = acc[u][v][e] * scale;
            }
}

#endif
