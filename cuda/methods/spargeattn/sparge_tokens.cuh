/*
 * sparge_tokens.cuh - the mean of k over the tokens for SpargeAttn. Sums in double, or in float
 * over two rows.
 */
#ifndef LACUNA_SPARGE_TOKENS_CUH
#define LACUNA_SPARGE_TOKENS_CUH

#include "cuda/select/means.cuh"

#define THREADS 256
#define MEAN_GROUPS 8
#define MEAN_ROWS 512 /* keys of a thread block's share of the token mean */

/* Sum of a[] over the threads of a block that hold the same 8 channels; the first D threads get one
 * channel each. Lanes of a channel group are apart by D / 8. */
template <int D> static __device__ double sum_columns(double (&a)[8], double *shared)
{
    constexpr int LANES = D / 8;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int step = LANES; step < 32; step *= 2)
            a[i] += __shfl_xor_sync(~0u, a[i], step);
    __syncthreads();
    if (lane < LANES)
#pragma unroll
        for (int i = 0; i < 8; i++)
            shared[warp * D + lane * 8 + i] = a[i];
    __syncthreads();
    double sum = 0;
    if (threadIdx.x < D)
        for (int w = 0; w < THREADS / 32; w++)
            sum += shared[w * D + threadIdx.x];
    return sum;
}

/* Two rows are added in float, which is exact for bf16 unless they are 2^16 apart, and the pairs in
 * double. */
template <int D>
static __global__ void __launch_bounds__(THREADS)
    sum_keys(const uint4 *k, int64_t nk, int64_t shares, double *partial)
{
    constexpr int LANES = D / 8, STEP = THREADS / LANES;
    __shared__ double shared[THREADS / 32 * D];
    int64_t head = blockIdx.y, row0 = blockIdx.x * (int64_t)MEAN_ROWS;
    const uint4 *at = k + (head * nk + row0) * LANES + threadIdx.x;
    int rows = (int)min((int64_t)MEAN_ROWS, nk - row0);
    int row = threadIdx.x / LANES;
    double sum[8] = {0};

    for (int r = row; r < rows; r += 4 * STEP, at += 4 * STEP * LANES) {
        uint4 raw[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            raw[i] = r + i * STEP < rows ? at[i * STEP * LANES] : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            float x[8], y[8];
            unpack(raw[i], x);
            unpack(raw[i + 1], y);
#pragma unroll
            for (int c = 0; c < 8; c++)
                sum[c] += x[c] + y[c];
        }
    }
    double total = sum_columns<D>(sum, shared);
    if (threadIdx.x < D)
        partial[(head * shares + blockIdx.x) * D + threadIdx.x] = total;
}

/* D x MEAN_GROUPS threads; the groups' sums are added in order. Also clears the maxima of V, which
 * later kernels raise. */
template <int D>
static __global__ void __launch_bounds__(D *MEAN_GROUPS)
    finish_mean(const double *partial, int64_t shares, int64_t nk, int smooth, float *kbar,
                unsigned *v_max)
{
    __shared__ double shared[MEAN_GROUPS][D];
    int c = threadIdx.x % D, group = threadIdx.x / D;
    double sum = 0;
    for (int64_t s = group; s < shares && smooth; s += MEAN_GROUPS)
        sum += partial[(blockIdx.x * shares + s) * D + c];
    shared[group][c] = sum;
    __syncthreads();
    if (group > 0)
        return;
    for (int i = 1; i < MEAN_GROUPS; i++)
        sum += shared[i][c];
    kbar[blockIdx.x * D + c] = (float)(sum / (double)nk);
    v_max[blockIdx.x * D + c] = 0;
}

#endif
