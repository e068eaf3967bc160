/*
 * spargeattn.cu - filter 1 of SpargeAttn (arXiv 2502.18137, section 3.3) and its 8-bit operands.
 *
 *   mean of K over the tokens; per block of Q and of K minus that mean: mean and self-similarity;
 *   scores of the means, their softmax per query block, and the largest up to a sum of tau
 *
 * The CPU side is sim/spargeattn_select.c, and the order of its arithmetic is followed where a
 * threshold decides: means are sums in double rounded to float, scores, softmax and running sums
 * are in double, ties go to the lower block. Sums run in another order, which moves a mean by at
 * most the last bit of a float; norms of rows are in float.
 *
 * Bytes: K twice and Q once for the selection (K for its mean first), 0.2 ms for 32 heads of 32K x
 * 128 at 4 TB/s; the quantised operands are written in the same passes, V is read twice.
 */
#include "cuda/lists.h"

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <math.h>
#include <stdio.h>

#define THREADS 256
#define MEAN_ROWS 512 /* keys of a thread block's share of the token mean */
#define ROW_WARPS 8
#define MAX_UNITS 24576 /* of a row whose probabilities fit into shared memory */

struct sparge_state {
    bool     paper, topk_cut, dense, sink, smooth_k;
    int      bq, bk;
    double   theta, tau, topk;
    float    v_top;
    int64_t  shares;          /* of the token mean */
    double  *partial;         /* [kv_heads][shares][d] */
    float   *kbar;            /* [kv_heads][d] */
    float   *q_mean, *k_mean; /* [heads][groups][d], [kv_heads][units][d] */
    uint8_t *q_like, *k_like; /* self-similar */
    double  *score;           /* [heads][groups][units] */
    unsigned *v_max;          /* [kv_heads][d]: bits of max |v| */
};

/* ---- token mean ----------------------------------------------------------------------------- */

static __device__ __forceinline__ void unpack(const uint4 &raw, float (&x)[8])
{
    const uint32_t w[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[2 * i] = __uint_as_float(w[i] << 16);
        x[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
    }
}

/* Sum of a[] over the threads of a block that hold the same 8 channels; the first D threads get one
 * channel each. Lanes of a channel group are apart by D / 8. */
template <int D, class T> static __device__ T sum_columns(T (&a)[8], T *shared)
{
    constexpr int LANES = D / 8;
    int           lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
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
    T sum = 0;
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
    constexpr int     LANES = D / 8, STEP = THREADS / LANES;
    __shared__ double shared[THREADS / 32 * D];
    int64_t           head = blockIdx.y, row0 = blockIdx.x * (int64_t)MEAN_ROWS;
    const uint4      *at = k + (head * nk + row0) * LANES + threadIdx.x;
    int               rows = (int)min((int64_t)MEAN_ROWS, nk - row0);
    int               row = threadIdx.x / LANES;
    double            sum[8] = {0};

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

/* Also clears the maxima of V, which the next kernels raise. */
static __global__ void finish_mean(const double *partial, int64_t shares, int64_t nk, int smooth,
                                   float *kbar, unsigned *v_max)
{
    int    d = blockDim.x;
    double sum = 0;
    for (int64_t s = 0; s < shares && smooth; s++)
        sum += partial[(blockIdx.x * shares + s) * d + threadIdx.x];
    kbar[blockIdx.x * d + threadIdx.x] = (float)(sum / (double)nk);
    v_max[blockIdx.x * d + threadIdx.x] = 0;
}

/* ---- blocks --------------------------------------------------------------------------------- */

struct block_args {
    const uint4   *x;     /* [heads][n][d] */
    const float   *kbar;  /* [heads][d] or NULL */
    int64_t        n, blocks;
    double         theta;
    int            paper;
    float         *mean;  /* [heads][blocks][d] */
    uint8_t       *like;  /* [heads][blocks] */
    uint2         *q8;    /* [heads][n][d], NULL: not quantised */
    float         *scale; /* [heads][blocks] */
};

/* amax/127 + 1e-7, half away from zero; a quotient near a half is divided in full, so that the
 * integers are those of x / delta. */
static __device__ __forceinline__ int quantised(float x, float delta, float inverse)
{
    float t = fmaf(fabsf(x), inverse, 0.5f), n = truncf(t), part = t - n;
    if (part < 1e-4f || part > 1 - 1e-4f)
        n = truncf(fabsf(x) / delta + 0.5f);
    n = fminf(n, 127.0f);
    return (int)copysignf(n, x);
}

template <int D, int ROWS>
static __device__ void quantise_block(const block_args &a, const uint4 (&raw)[ROWS],
                                      const float (&kbar)[8], float amax, int64_t first, int rows)
{
    constexpr int LANES = D / 8, STEP = THREADS / LANES;
    float         delta = amax / 127.0f + 1e-7f, inverse = 1 / delta;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        int r = threadIdx.x / LANES + i * STEP;
        if (r >= rows)
            break;
        float x[8];
        unpack(raw[i], x);
        uint32_t w[2] = {0, 0};
#pragma unroll
        for (int c = 0; c < 8; c++)
            w[c / 4] |= ((uint32_t)quantised(x[c] - kbar[c], delta, inverse) & 0xff) << c % 4 * 8;
        a.q8[(first + r) * LANES + threadIdx.x % LANES] = make_uint2(w[0], w[1]);
    }
    if (threadIdx.x == 0)
        a.scale[blockIdx.y * a.blocks + blockIdx.x] = delta;
}

/* Largest over the block, in all threads. */
static __device__ float block_max(float x, float *shared)
{
    for (int step = 16; step; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
    __syncthreads();
    if ((threadIdx.x & 31) == 0)
        shared[threadIdx.x >> 5] = x;
    __syncthreads();
    for (int w = 0; w < THREADS / 32; w++)
        x = fmaxf(x, shared[w]);
    return x;
}

/* Sum over the block in a fixed order, valid in thread 0. */
static __device__ double block_sum(double x, double *shared)
{
    for (int step = 16; step; step /= 2)
        x += __shfl_xor_sync(~0u, x, step);
    __syncthreads();
    if ((threadIdx.x & 31) == 0)
        shared[threadIdx.x >> 5] = x;
    __syncthreads();
    for (int w = 1; w < THREADS / 32 && threadIdx.x == 0; w++)
        x += shared[w];
    return x;
}

/* |x| over the D / 8 lanes of a row, away from where squares leave the range of float. */
template <int D> static __device__ __forceinline__ float row_norm2(const float (&x)[8], float &up)
{
    float n2 = 0;
#pragma unroll
    for (int c = 0; c < 8; c++)
        n2 = fmaf(x[c], x[c], n2);
#pragma unroll
    for (int step = 1; step < D / 8; step *= 2)
        n2 += __shfl_xor_sync(~0u, n2, step);
    up = 1;
    if (n2 < 1e-24f || n2 > 1e30f) {
        up = n2 > 1 ? 0x1p-64f : 0x1p+64f;
        n2 = 0;
#pragma unroll
        for (int c = 0; c < 8; c++)
            n2 = fmaf(x[c] * up, x[c] * up, n2);
        uint32_t lanes = D == 128 ? 0xffffu << (threadIdx.x & 16) : 0xffu << (threadIdx.x & 24);
#pragma unroll
        for (int step = 1; step < D / 8; step *= 2)
            n2 += __shfl_xor_sync(lanes, n2, step);
    }
    return n2;
}

/* Mean and self-similarity of one block; its integers where a.q8 is given. */
template <int D, int BLOCK>
static __global__ void __launch_bounds__(THREADS) judge_blocks(const block_args a)
{
    constexpr int     LANES = D / 8, STEP = THREADS / LANES, ROWS = BLOCK / STEP;
    __shared__ double wide[THREADS / 32 * D];
    __shared__ float  narrow[THREADS / 32 * D];
    int64_t           first = blockIdx.y * a.n + blockIdx.x * (int64_t)BLOCK;
    int               rows = (int)min((int64_t)BLOCK, a.n - blockIdx.x * (int64_t)BLOCK);
    int               lane = threadIdx.x % LANES, row = threadIdx.x / LANES;
    uint4             raw[ROWS];
    float             kbar[8], unit[8] = {0}, amax = 0, longest = 0;
    double            sum[8] = {0};
    bool              zero = false;

#pragma unroll
    for (int i = 0; i < ROWS; i++)
        if (row + i * STEP < rows)
            raw[i] = a.x[(first + row + i * STEP) * LANES + lane];
#pragma unroll
    for (int c = 0; c < 8; c++)
        kbar[c] = a.kbar ? a.kbar[blockIdx.y * D + lane * 8 + c] : 0;
#pragma unroll
    for (int i = 0; i < ROWS; i += 2) {
        float pair[8] = {0};
#pragma unroll
        for (int j = i; j < i + 2 && j < ROWS; j++) {
            float x[8] = {0}, up;
            if (row + j * STEP < rows) {
                unpack(raw[j], x);
#pragma unroll
                for (int c = 0; c < 8; c++)
                    x[c] -= kbar[c];
            }
            float n2 = row_norm2<D>(x, up), inverse = n2 > 0 ? up / sqrtf(n2) : 0;
            zero = zero || (n2 == 0 && row + j * STEP < rows);
            longest = fmaxf(longest, n2 / (up * up));
#pragma unroll
            for (int c = 0; c < 8; c++) {
                unit[c] = fmaf(x[c], inverse, unit[c]);
                pair[c] += x[c];
                amax = fmaxf(amax, fabsf(x[c]));
            }
        }
#pragma unroll
        for (int c = 0; c < 8; c++)
            sum[c] += pair[c];
    }
    if (a.q8) {
        amax = block_max(amax, narrow);
        quantise_block<D, ROWS>(a, raw, kbar, amax, first, rows);
    }
    int64_t at = blockIdx.y * a.blocks + blockIdx.x;
    double  total = sum_columns<D>(sum, wide);
    double  direction = sum_columns<D>(unit, narrow);
    if (threadIdx.x < D)
        a.mean[at * D + threadIdx.x] = (float)(total / rows);
    if (a.paper) {
        longest = block_max(longest, narrow);
        direction = total;
    }
    double s = block_sum(threadIdx.x < D ? direction * direction : 0, wide);
    int    whole = !__syncthreads_or(zero) && rows == BLOCK;
    if (threadIdx.x == 0) {
        s /= (double)rows * rows;
        if (a.paper)
            s = longest > 0 ? s / longest : 1;
        s = fmin(s, 1.0);
        a.like[at] = a.paper ? s >= a.theta : whole && s > a.theta;
    }
}

/* ---- scores of the means -------------------------------------------------------------------- */

#define SCORE_TILE 64
#define SCORE_STEP 32

/* score[head][i][j] = q_mean_i . k_mean_j scale for a tile of 64 x 64 blocks, in double. Tiles
 * without an admissible pair are left alone. */
static __global__ void __launch_bounds__(256)
    score_means(const float *q, const float *k, int d, int groups, int units, int per_kv, double scale,
                int causal, int bq, int bk, double *score)
{
    __shared__ double a[SCORE_STEP][SCORE_TILE + 2], b[SCORE_STEP][SCORE_TILE + 2];
    int     i0 = blockIdx.y * SCORE_TILE, j0 = blockIdx.x * SCORE_TILE, head = blockIdx.z;
    int     tx = threadIdx.x & 15, ty = threadIdx.x >> 4;
    double  acc[4][4] = {{0}};
    int64_t last = (int64_t)min(i0 + SCORE_TILE, groups) * bq;

    if (causal && (int64_t)j0 * bk >= last)
        return;
    q += (int64_t)head * groups * d;
    k += (int64_t)(head / per_kv) * units * d;
    for (int c0 = 0; c0 < d; c0 += SCORE_STEP) {
        for (int e = threadIdx.x; e < SCORE_TILE * SCORE_STEP; e += 256) {
            int r = e / SCORE_STEP, c = e % SCORE_STEP;
            a[c][r] = i0 + r < groups ? q[(int64_t)(i0 + r) * d + c0 + c] : 0;
            b[c][r] = j0 + r < units ? k[(int64_t)(j0 + r) * d + c0 + c] : 0;
        }
        __syncthreads();
#pragma unroll 8
        for (int c = 0; c < SCORE_STEP; c++) {
            double x[4], y[4];
#pragma unroll
            for (int u = 0; u < 4; u++) {
                x[u] = a[c][ty + 16 * u];
                y[u] = b[c][tx + 16 * u];
            }
#pragma unroll
            for (int u = 0; u < 4; u++)
#pragma unroll
                for (int v = 0; v < 4; v++)
                    acc[u][v] = fma(x[u], y[v], acc[u][v]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int u = 0; u < 4; u++)
#pragma unroll
        for (int v = 0; v < 4; v++) {
            int i = i0 + ty + 16 * u, j = j0 + tx + 16 * v;
            if (i < groups && j < units)
                score[((int64_t)head * groups + i) * units + j] = acc[u][v] * scale;
        }
}

/* ---- rows ----------------------------------------------------------------------------------- */

struct row_args {
    const double  *score;
    const uint8_t *q_like, *k_like;
    int            groups, units, per_kv, causal, bq, bk;
    int            paper, topk_cut, dense, sink;
    float          tau;
    double         tau_wide;
    int            top; /* entries of select=topk */
    int64_t        rows, words;
    uint32_t      *map;
    int32_t       *count;
};

static __device__ __forceinline__ double warp_add(double x)
{
    for (int step = 16; step; step /= 2)
        x += __shfl_xor_sync(~0u, x, step);
    return x;
}

static __device__ __forceinline__ int warp_add(int x)
{
    return __reduce_add_sync(~0u, x);
}

/* Probabilities of a row over its judged, admissible blocks into p [units], rounded to float.
 * False when there is none. */
static __device__ bool coarse_row(const row_args &a, int64_t row, int i, const uint8_t *k_like,
                                  double *p)
{
    int    lane = threadIdx.x & 31;
    double top = -INFINITY, sum = 0;
    for (int j = lane; j < a.units; j += 32) {
        bool judged = k_like[j] && (!a.causal || (int64_t)j * a.bk < (int64_t)(i + 1) * a.bq);
        p[j] = judged ? a.score[row * a.units + j] : -INFINITY;
        top = fmax(top, p[j]);
    }
    for (int step = 16; step; step /= 2)
        top = fmax(top, __shfl_xor_sync(~0u, top, step));
    if (top == -INFINITY)
        return false;
    for (int j = lane; j < a.units; j += 32) {
        p[j] = p[j] == -INFINITY ? 0 : exp(p[j] - top);
        sum += p[j];
    }
    sum = warp_add(sum);
    for (int j = lane; j < a.units; j += 32)
        p[j] = (float)(p[j] / sum);
    return true;
}

/* Sum and number of the entries above t, or of those equal to it as well. */
static __device__ void mass_from(const double *p, int n, double t, bool equal, double *mass,
                                 int *number)
{
    double sum = 0;
    int    count = 0;
    for (int j = threadIdx.x & 31; j < n; j += 32)
        if (p[j] > t || (equal && p[j] == t)) {
            sum += p[j];
            count++;
        }
    *mass = warp_add(sum);
    *number = warp_add(count);
}

/* The cut of a row: all entries above t are taken, and the first m of those equal to it. Sorted by
 * (probability descending, block ascending) that is the longest prefix whose sum, as a float, stays
 * at or below the bound; t is found bit by bit, without sorting. */
static __device__ void cut_row(const row_args &a, const double *p, double *t, int *m)
{
    double mass;
    int    number;
    float  bound = a.tau;
    mass_from(p, a.units, 0, true, &mass, &number);
    if (a.paper)
        bound = (float)(a.tau_wide * mass);
    *t = -1;
    *m = 0;
    if (!a.topk_cut && (float)mass <= bound)
        return;
    uint32_t bits = 0;
    for (uint32_t bit = 1u << 30; bit; bit >>= 1) {
        mass_from(p, a.units, __uint_as_float(bits | bit), true, &mass, &number);
        if (a.topk_cut ? number >= a.top : (float)mass > bound)
            bits |= bit;
    }
    *t = __uint_as_float(bits);
    int equal;
    mass_from(p, a.units, *t, true, &mass, &equal);
    mass_from(p, a.units, *t, false, &mass, &number);
    equal -= number;
    if (a.topk_cut) {
        *m = a.top - number;
        return;
    }
    int fits = *t > 0 ? (int)fmin((bound - mass) / *t, (double)equal) : equal;
    fits = max(fits, 0);
    while (fits < equal && (float)(mass + (fits + 1) * *t) <= bound)
        fits++;
    while (fits > 0 && (float)(mass + fits * *t) > bound)
        fits--;
    *m = number + fits == 0 && !a.paper ? 1 : fits;
}

static __global__ void select_rows(const row_args a)
{
    extern __shared__ double shared[];
    int     lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int64_t row = blockIdx.x * (int64_t)(blockDim.x >> 5) + warp;
    if (row >= a.rows)
        return;
    double        *p = shared + (int64_t)warp * a.units;
    int            head = (int)(row / a.groups), i = (int)(row % a.groups), m = 0;
    const uint8_t *k_like = a.k_like + (int64_t)(head / a.per_kv) * a.units;
    bool           all = a.dense || !a.q_like[row], none = true;
    double         t = 0;
    if (!all && coarse_row(a, row, i, k_like, p)) {
        none = false;
        __syncwarp();
        cut_row(a, p, &t, &m);
    }
    int equal = 0, kept = 0;
    for (int j0 = 0; j0 < a.units; j0 += 32) {
        int  j = j0 + lane;
        bool in = j < a.units && (!a.causal || (int64_t)j * a.bk < (int64_t)(i + 1) * a.bq);
        bool tie = !all && !none && j < a.units && p[j] == t;
        uint32_t ties = __ballot_sync(~0u, tie);
        bool taken = !all && !none && j < a.units &&
                     (p[j] > t || (tie && equal + __popc(ties & ((1u << lane) - 1)) < m));
        equal += __popc(ties);
        bool     keep = in && (all || !k_like[j] || taken || (a.sink && j == 0));
        uint32_t word = __ballot_sync(~0u, keep);
        kept += __popc(word);
        if (lane == 0)
            a.map[row * a.words + j0 / 32] = word;
    }
    if (lane == 0)
        a.count[row] = kept;
}

/* ---- values --------------------------------------------------------------------------------- */

template <int D>
static __global__ void __launch_bounds__(THREADS)
    max_values(const uint4 *v, int64_t nk, unsigned *v_max)
{
    constexpr int    LANES = D / 8, STEP = THREADS / LANES;
    __shared__ float shared[THREADS / 32][D];
    int64_t          row0 = blockIdx.x * (int64_t)MEAN_ROWS;
    int              rows = (int)min((int64_t)MEAN_ROWS, nk - row0);
    int              lane = threadIdx.x & 31;
    float            top[8] = {0};
    for (int r = threadIdx.x / LANES; r < rows; r += STEP) {
        float x[8];
        unpack(v[(blockIdx.y * nk + row0 + r) * LANES + threadIdx.x % LANES], x);
#pragma unroll
        for (int c = 0; c < 8; c++)
            top[c] = fmaxf(top[c], fabsf(x[c]));
    }
#pragma unroll
    for (int c = 0; c < 8; c++)
#pragma unroll
        for (int step = LANES; step < 32; step *= 2)
            top[c] = fmaxf(top[c], __shfl_xor_sync(~0u, top[c], step));
    if (lane < LANES)
#pragma unroll
        for (int c = 0; c < 8; c++)
            shared[threadIdx.x >> 5][lane * 8 + c] = top[c];
    __syncthreads();
    if (threadIdx.x < D) {
        float most = 0;
        for (int w = 0; w < THREADS / 32; w++)
            most = fmaxf(most, shared[w][threadIdx.x]);
        atomicMax(v_max + blockIdx.y * D + threadIdx.x, __float_as_uint(most));
    }
}

/* 128 keys: V transposed, in e4m3, the keys of each 16 in the order 0,1,8,9,2,3,10,11, ... that an
 * 8-bit A operand made of score accumulators has. */
template <int D>
static __global__ void __launch_bounds__(THREADS)
    quantise_values(const uint4 *v, int64_t nk, int64_t v_keys, float v_top, const unsigned *v_max,
                    uint8_t *out, float *scale)
{
    constexpr int                       LANES = D / 8;
    __shared__ alignas(16) uint16_t tile[128][D + 8];
    int64_t                             row0 = blockIdx.x * 128ll, head = blockIdx.y;
    int                                 rows = (int)min((int64_t)128, nk - row0);
    for (int e = threadIdx.x; e < 128 * LANES; e += THREADS) {
        int r = e / LANES, c = e % LANES;
        *(uint4 *)&tile[r][c * 8] =
            r < rows ? v[(head * nk + row0 + r) * LANES + c] : make_uint4(0, 0, 0, 0);
    }
    __syncthreads();
    for (int e = threadIdx.x; e < D * 8; e += THREADS) {
        int      c = e % D, part = e / D;
        float    most = __uint_as_float(v_max[head * D + c]);
        float    factor = most > 0 ? v_top / most : 0;
        uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float x[4];
#pragma unroll
            for (int u = 0; u < 4; u++)
                x[u] = __uint_as_float((uint32_t)tile[part * 16 + 2 * i + u % 2 + u / 2 * 8][c] << 16) *
                       factor;
            w[i] = __nv_cvt_float2_to_fp8x2(make_float2(x[0], x[1]), __NV_SATFINITE, __NV_E4M3) |
                   (uint32_t)__nv_cvt_float2_to_fp8x2(make_float2(x[2], x[3]), __NV_SATFINITE,
                                                      __NV_E4M3)
                       << 16;
        }
        *(uint4 *)(out + (head * D + c) * v_keys + row0 + part * 16) =
            make_uint4(w[0], w[1], w[2], w[3]);
    }
    if (blockIdx.x == 0 && threadIdx.x < D)
        scale[head * D + threadIdx.x] = __uint_as_float(v_max[head * D + threadIdx.x]) / v_top;
}

/* ---- launches ------------------------------------------------------------------------------- */

template <int D>
static int launch_blocks(struct gpu *g, int heads, int block, const block_args &a, struct err *err)
{
    int  rc = 0;
    dim3 grid((unsigned)a.blocks, heads);
    if (block == 64)
        judge_blocks<D, 64><<<grid, THREADS, 0, g->stream>>>(a);
    else
        judge_blocks<D, 128><<<grid, THREADS, 0, g->stream>>>(a);
    CU_LAUNCHED(err);
out:
    return rc;
}

template <int D>
static int launch_pooling(struct gpu *g, const struct select_job *job, bool quantise, struct err *err)
{
    const struct select_problem  *p = &job->problem;
    const struct select_lists    *l = &job->lists;
    const struct select_operands *o = &job->operands;
    const sparge_state           *s = (const sparge_state *)job->state;
    int                           rc = 0;
    block_args q = {(const uint4 *)p->q, NULL, p->nq, l->groups, s->theta, s->paper, s->q_mean,
                    s->q_like, quantise ? (uint2 *)o->q : NULL, o->q_scale};
    block_args k = {(const uint4 *)p->k, s->kbar, p->nk, l->units, s->theta, s->paper, s->k_mean,
                    s->k_like, quantise ? (uint2 *)o->k : NULL, o->k_scale};
    if (s->smooth_k)
        sum_keys<D><<<dim3((unsigned)s->shares, p->kv_heads), THREADS, 0, g->stream>>>(
            (const uint4 *)p->k, p->nk, s->shares, s->partial);
    CU_LAUNCHED(err);
    finish_mean<<<p->kv_heads, D, 0, g->stream>>>(s->partial, s->shares, p->nk, s->smooth_k,
                                                  s->kbar, s->v_max);
    CU_LAUNCHED(err);
    TRY(launch_blocks<D>(g, p->kv_heads, s->bk, k, err));
    TRY(launch_blocks<D>(g, p->heads, s->bq, q, err));
    if (!quantise)
        goto out;
    max_values<D><<<dim3((unsigned)s->shares, p->kv_heads), THREADS, 0, g->stream>>>(
        (const uint4 *)p->v, p->nk, s->v_max);
    CU_LAUNCHED(err);
    quantise_values<D><<<dim3((unsigned)(o->v_keys / 128), p->kv_heads), THREADS, 0, g->stream>>>(
        (const uint4 *)p->v, p->nk, o->v_keys, s->v_top, s->v_max, o->v, o->v_scale);
    CU_LAUNCHED(err);
out:
    return rc;
}

static int launch_rows(struct gpu *g, const struct select_job *job, struct err *err)
{
    const struct select_problem *p = &job->problem;
    const struct select_lists   *l = &job->lists;
    const sparge_state          *s = (const sparge_state *)job->state;
    int      rc = 0, n = (int)l->units, per_kv = p->heads / p->kv_heads, warps = ROW_WARPS;
    int64_t  top = (int64_t)((float)s->topk * (float)n);
    row_args a = {s->score,  s->q_like, s->k_like, (int)l->groups, n,      per_kv,       p->causal,
                  s->bq,     s->bk,     s->paper,  s->topk_cut,    s->dense, s->sink,
                  (float)s->tau, s->tau, (int)(top < 1 ? 1 : top > n ? n : top), l->rows, l->words,
                  l->map,    l->count};
    while (warps > 1 && warps * n * 8 > 48 * 1024)
        warps /= 2;
    int smem = warps * n * 8;
    if (!s->dense)
        score_means<<<dim3((n + SCORE_TILE - 1) / SCORE_TILE,
                           ((unsigned)l->groups + SCORE_TILE - 1) / SCORE_TILE, p->heads),
                      256, 0, g->stream>>>(s->q_mean, s->k_mean, p->d, (int)l->groups, n, per_kv,
                                           p->scale, p->causal, s->bq, s->bk, s->score);
    CU_LAUNCHED(err);
    CU(err, cudaFuncSetAttribute((const void *)select_rows,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, smem));
    select_rows<<<(unsigned)((l->rows + warps - 1) / warps), 32 * warps, smem, g->stream>>>(a);
    CU_LAUNCHED(err);
    TRY(lists_make(g, l, err));
out:
    return rc;
}

static int launch(struct gpu *g, const struct select_job *job, struct err *err)
{
    int rc = job->problem.d == 128 ? launch_pooling<128>(g, job, false, err)
                                   : launch_pooling<64>(g, job, false, err);
    return rc ? rc : launch_rows(g, job, err);
}

static int launch_quantised(struct gpu *g, const struct select_job *job, struct err *err)
{
    int rc = job->problem.d == 128 ? launch_pooling<128>(g, job, true, err)
                                   : launch_pooling<64>(g, job, true, err);
    return rc ? rc : launch_rows(g, job, err);
}

/* ---- set-up --------------------------------------------------------------------------------- */

/* Tile of the official kernels (sim/spargeattn_head.c). */
static void tile_of(const struct select_problem *p, int *bq, int *bk)
{
    const char *tile = select_word(p, "tile");
    bool        wide = tile ? tile[0] == '6' : select_is(p, "arch", "sm90");
    *bq = wide ? 64 : 128;
    *bk = wide ? 128 : 64;
}

static bool fits(const struct select_problem *p, char why[160])
{
    int bq, bk;
    tile_of(p, &bq, &bk);
    if (p->d != 64 && p->d != 128)
        snprintf(why, 160, "head dimension %d, the GPU side has 64 and 128", p->d);
    else if (!select_is(p, "map_dtype", "f32") || !select_is(p, "cdf_dtype", "f32"))
        snprintf(why, 160, "the GPU side has map_dtype=f32 and cdf_dtype=f32");
    else if ((p->nk + bk - 1) / bk > MAX_UNITS || p->nq > INT32_MAX / 2)
        snprintf(why, 160, "the GPU side takes rows of up to %d blocks", MAX_UNITS);
    else
        return true;
    return false;
}

static int init_operands(struct gpu *g, struct select_job *job, struct err *err)
{
    const struct select_problem *p = &job->problem;
    const struct select_lists   *l = &job->lists;
    struct select_operands      *o = &job->operands;
    int                          rc = 0;
    o->v_keys = (p->nk + 127) / 128 * 128;
    TRY(gpu_alloc(g, p->heads * p->nq * p->d, &o->q, err));
    TRY(gpu_alloc(g, p->kv_heads * p->nk * p->d, &o->k, err));
    TRY(gpu_alloc(g, p->heads * l->groups * 4, &o->q_scale, err));
    TRY(gpu_alloc(g, p->kv_heads * l->units * 4, &o->k_scale, err));
    TRY(gpu_alloc(g, p->kv_heads * p->d * o->v_keys, &o->v, err));
    TRY(gpu_alloc(g, p->kv_heads * p->d * 4LL, &o->v_scale, err));
out:
    return rc;
}

static int init(struct gpu *g, struct select_job *job, struct err *err)
{
    const struct select_problem *p = &job->problem;
    const struct select_lists   *l = &job->lists;
    sparge_state                *s = (sparge_state *)calloc(1, sizeof *s);
    int                          rc = 0;

    job->state = s;
    if (!s)
        FAIL(err, ERR_NOMEM, "spargeattn on the GPU: out of memory");
    tile_of(p, &s->bq, &s->bk);
    s->paper = select_is(p, "profile", "paper");
    s->topk_cut = select_is(p, "select", "topk");
    s->dense = select_flag(p, "dense");
    s->sink = select_flag(p, "sink");
    s->smooth_k = select_flag(p, "smooth_k");
    s->theta = select_num(p, "theta");
    if (isnan(s->theta))
        s->theta = s->topk_cut ? -0.1 : 0.6;
    if (!select_flag(p, "judge"))
        s->theta = -1;
    s->tau = select_num(p, "tau");
    s->topk = select_num(p, "topk");
    s->v_top = select_is(p, "v_max", "2.25") ? 2.25f : 448.0f;
    s->shares = (p->nk + MEAN_ROWS - 1) / MEAN_ROWS;
    TRY(select_lists_init(g, job, s->bq, s->bk, err));
    TRY(gpu_alloc(g, p->kv_heads * s->shares * p->d * 8, &s->partial, err));
    TRY(gpu_alloc(g, p->kv_heads * p->d * 4LL, &s->kbar, err));
    TRY(gpu_alloc(g, l->rows * p->d * 4, &s->q_mean, err));
    TRY(gpu_alloc(g, p->kv_heads * l->units * p->d * 4, &s->k_mean, err));
    TRY(gpu_alloc(g, l->rows, &s->q_like, err));
    TRY(gpu_alloc(g, p->kv_heads * l->units, &s->k_like, err));
    TRY(gpu_alloc(g, l->rows * l->units * 8, &s->score, err));
    TRY(gpu_alloc(g, p->kv_heads * p->d * 4LL, &s->v_max, err));
    TRY(init_operands(g, job, err));
out:
    return rc;
}

extern "C" const struct select_method select_spargeattn = {
    "spargeattn", fits, init, launch, launch_quantised,
};
