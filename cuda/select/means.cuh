/*
 * means.cuh - means of token blocks and the products of all means of one side with those of the
 * other, in double.
 */
#pragma once

#include <cuda_bf16.h>
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

static __device__ __forceinline__ float as_bf16(float x)
{
    return __bfloat162float(__float2bfloat16_rn(x));
}

/* Sum of `rows` rows of x [][D] in double, a channel for each thread below D; 256 threads. Of
 * x - minus [D], rounded to bf16, unless that is NULL. */
template <int D>
static __device__ __forceinline__ double sum_rows(const uint4 *x, int rows,
                                                  const float *minus = NULL)
{
    constexpr int LANES = D / 8, STEP = 256 / LANES;
    __shared__ double shared[STEP][D + 1];
    int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    double sum[8] = {0}, all = 0;
    float off[8] = {0};
    for (int c = 0; minus && c < 8; c++)
        off[c] = minus[lane * 8 + c];
#pragma unroll 4
    for (int r = group; r < rows; r += STEP) {
        float v[8];
        unpack(x[(int64_t)r * LANES + lane], v);
#pragma unroll
        for (int c = 0; c < 8; c++)
            sum[c] += minus ? as_bf16(v[c] - off[c]) : v[c];
    }
#pragma unroll
    for (int c = 0; c < 8; c++)
        shared[group][lane * 8 + c] = sum[c];
    __syncthreads();
    if (threadIdx.x < D)
        for (int i = 0; i < STEP; i++)
            all += shared[i][threadIdx.x];
    return all;
}

/* mean[head][i] of the rows [i stride, i stride + block) of x [heads][n][D]: their sum over `by`,
 * 0: over the rows that there are. Less minus [heads][D] unless that is NULL; times `factor` and
 * rounded to bf16 unless that is 0. Grid (means, heads). */
template <int D>
static __global__ void __launch_bounds__(256)
    means_of(const uint4 *x, int64_t n, int64_t block, int64_t stride, int by, const float *minus,
             double factor, float *mean)
{
    int64_t row0 = blockIdx.x * stride, head = blockIdx.y;
    int rows = (int)min(block, n - row0);
    double sum =
        sum_rows<D>(x + (head * n + row0) * (D / 8), rows, minus ? minus + head * D : NULL);
    float value = (float)(sum / (by ? by : rows));
    if (threadIdx.x < D)
        mean[(head * gridDim.x + blockIdx.x) * D + threadIdx.x] =
            factor != 0 ? as_bf16((float)(value * factor)) : value;
}

/* Tiles of TILE x TILE scores, made of STEP channels at a time. */
template <int TILE_> struct score_shape {
    static constexpr int TILE = TILE_, STEP = 2048 / TILE;
    static constexpr int PITCH = STEP + 4; /* so that 8 rows of 4 channels lie in different banks */
};

/* d (+)= A B^T, 16 x 8 and 8 x 8, in double: with g = lane / 4 and t = lane % 4, a: rows g, g + 8
 * of channel t, then of channel t + 4; b: row g, channels t and t + 4; d: row g, columns 2 t and
 * the next, then row g + 8. Hopper has an instruction for all of it, which is faster than its
 * parts. */
static __device__ __forceinline__ void mma_f64(double (&d)[4], const double (&a)[4],
                                               const double (&b)[2])
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
                 : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
#else
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, "
                         "{%0, %1};"
                         : "+d"(d[2 * half]), "+d"(d[2 * half + 1])
                         : "d"(a[2 * k + half]), "d"(b[k]));
#endif
}

/* x as a double, made from its bits because conversion instructions are slow; numbers below 2^-126
 * become 0. */
static __device__ __forceinline__ double widen(float x)
{
    uint32_t bits = __float_as_uint(x), size = bits & 0x7fffffffu;
    return __hiloint2double(
        (int)((bits & 0x80000000u) | (size < 0x00800000u ? 0 : (size >> 3) + 0x38000000u)),
        (int)(bits << 29));
}

static __device__ __forceinline__ float4 load_four(const float *x)
{
    return *(const float4 *)x;
}

static __device__ __forceinline__ float4 load_four(const __nv_bfloat16 *x)
{
    uint2 w = *(const uint2 *)x;
    return make_float4(__uint_as_float(w.x << 16), __uint_as_float(w.x & 0xffff0000u),
                       __uint_as_float(w.y << 16), __uint_as_float(w.y & 0xffff0000u));
}

template <class S, class T>
static __device__ __forceinline__ void load_means(const T *x, int row0, int n, int d, int c0,
                                                  float (*tile)[S::PITCH])
{
#pragma unroll
    for (int e = threadIdx.x; e < S::TILE * S::STEP / 4; e += 128) {
        int r = e / (S::STEP / 4), c = e % (S::STEP / 4) * 4;
        *(float4 *)&tile[r][c] = row0 + r < n ? load_four(x + (int64_t)(row0 + r) * d + c0 + c)
                                              : make_float4(0, 0, 0, 0);
    }
}

/* score[head][i][j] = q_i . k_mean_j scale for a tile, in double, a warp for each quarter. q:
 * means, or bf16 rows themselves. Tiles without an admissible pair are not written. */
template <class S, class T>
static __global__ void __launch_bounds__(128, 4)
    score_means(const T *q, const float *k, int d, int groups, int units, int per_kv, double scale,
                int causal, int bq, int bk, double *score)
{
    constexpr int TILE = S::TILE, DOWN = TILE / 32, ACROSS = TILE / 16; /* products of a warp */
    __shared__ alignas(16) float a[TILE][S::PITCH], b[TILE][S::PITCH];
    int i0 = blockIdx.y * TILE, j0 = blockIdx.x * TILE, head = blockIdx.z;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int row = warp / 2 * (TILE / 2) + (lane >> 2), col = warp % 2 * (TILE / 2) + (lane >> 2);
    double acc[DOWN][ACROSS][4] = {{{0}}};
    int64_t last = (int64_t)min(i0 + TILE, groups) * bq;

    if (causal && (int64_t)j0 * bk >= last)
        return;
    q += (int64_t)head * groups * d;
    k += (int64_t)(head / per_kv) * units * d;
    for (int c0 = 0; c0 < d; c0 += S::STEP) {
        load_means<S>(q, i0, groups, d, c0, a);
        load_means<S>(k, j0, units, d, c0, b);
        __syncthreads();
#pragma unroll 2
        for (int c = lane & 3; c < S::STEP; c += 8) {
            double x[DOWN][4], y[ACROSS][2];
#pragma unroll
            for (int e = 0; e < 4 * DOWN; e++)
                x[e / 4][e % 4] = widen(a[row + 16 * (e / 4) + 8 * (e % 2)][c + 4 * (e / 2 % 2)]);
#pragma unroll
            for (int e = 0; e < 2 * ACROSS; e++)
                y[e / 2][e % 2] = widen(b[col + 8 * (e / 2)][c + 4 * (e % 2)]);
#pragma unroll
            for (int u = 0; u < DOWN; u++)
#pragma unroll
                for (int v = 0; v < ACROSS; v++)
                    mma_f64(acc[u][v], x[u], y[v]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int u = 0; u < DOWN; u++)
#pragma unroll
        for (int v = 0; v < ACROSS; v++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int i = i0 + row + 16 * u + 8 * (e / 2);
                int j = j0 + warp % 2 * (TILE / 2) + 8 * v + 2 * (lane & 3) + e % 2;
                if (i < groups && j < units)
                    score[((int64_t)head * groups + i) * units + j] = acc[u][v][e] * scale;
            }
}

/* Launch it for `heads` heads, in small tiles where large ones would leave multiprocessors idle. */
template <class T>
static cudaError_t run_scores(cudaStream_t stream, int sms, int heads, const T *q, const float *k,
                              int d, int groups, int units, int per_kv, double scale, int causal,
                              int bq, int bk, double *score)
{
    auto grid = [=](int tile) {
        return dim3((units + tile - 1) / tile, (groups + tile - 1) / tile, heads);
    };
    dim3 large = grid(64);
    bool few = (int64_t)large.x * large.y * large.z < 4 * sms;
    auto kernel = few ? score_means<score_shape<32>, T> : score_means<score_shape<64>, T>;
    kernel<<<few ? grid(32) : large, 128, 0, stream>>>(q, k, d, groups, units, per_kv, scale,
                                                       causal, bq, bk, score);
    return cudaGetLastError();
}
