/*
 * spargeattn.cu - filter 1 of SpargeAttn (arXiv 2502.18137, section 3.3).
 *
 *   mean of K over the tokens; per block of Q and of K minus that mean: mean and self-similarity;
 *   scores of the means, their softmax per query block, and the largest up to a sum of tau
 *
 * The CPU side is sim/methods/spargeattn/spargeattn.c, and the order of its arithmetic is
 * followed where a threshold decides: means are sums in double rounded to float, scores, softmax
 * and running sums are in double, ties go to the lower block. Sums over blocks and norms are in
 * float, first over the eight rows of a thread, then over the warps.
 *
 * A block of 64 or 128 rows of q or k stays in the registers of a thread block, so that memory is
 * read once. Beside memory, the number of instructions limits the pass; therefore the lanes of a
 * row share the work on its norm. Rows of the map are cut by a warp each, without sorting
 * (cut.cuh).
 *
 * Bytes: K twice and Q once for the selection (K for its mean first), 0.2 ms for 32 heads of 32K x
 * 128 at 4 TB/s. The passes over K and that over Q run beside each other on two streams. Scores,
 * softmax and cut move few bytes; their kernels are bound by the latency of a row, and half of the
 * heads at a time beside the pass over the other half took longer than all of them at its end.
 */
#include "cuda/select/cut.cuh"
#include "cuda/select/means.cuh"
#include "cuda/select/method.cuh"
#include "cuda/warp.cuh"

#include <cuda_bf16.h>

#define THREADS 256
#define MAX_UNITS 24576 /* of a row whose probabilities fit into shared memory */
#define MEAN_GROUPS 8
#define SHORT 512   /* units of a row whose probabilities fit into registers */
#define ROW_WARPS 4 /* of a thread block that cuts rows in registers */

/* ---- the mean of k over the tokens ---------------------------------------------------------- */

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

/* Four rows are added in float, which is exact for bf16 unless they are 2^14 apart, and the sums in
 * double. */
template <int D>
static __global__ void __launch_bounds__(THREADS)
    sum_keys(const uint4 *k, int64_t nk, int share, int64_t shares, double *partial)
{
    constexpr int LANES = D / 8, STEP = THREADS / LANES;
    __shared__ double shared[THREADS / 32 * D];
    int64_t head = blockIdx.y, row0 = blockIdx.x * (int64_t)share;
    const uint4 *at = k + (head * nk + row0) * LANES + threadIdx.x;
    int rows = (int)min((int64_t)share, nk - row0);
    int row = threadIdx.x / LANES;
    double sum[8] = {0};

    for (int r = row; r < rows; r += 4 * STEP, at += 4 * STEP * LANES) {
        uint4 raw[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            raw[i] = r + i * STEP < rows ? at[i * STEP * LANES] : make_uint4(0, 0, 0, 0);
        float x[4][8];
#pragma unroll
        for (int i = 0; i < 4; i++)
            unpack(raw[i], x[i]);
#pragma unroll
        for (int c = 0; c < 8; c++)
            sum[c] += (x[0][c] + x[1][c]) + (x[2][c] + x[3][c]);
    }
    double total = sum_columns<D>(sum, shared);
    if (threadIdx.x < D)
        partial[(head * shares + blockIdx.x) * D + threadIdx.x] = total;
}

/* D x MEAN_GROUPS threads; the groups' sums are added in order. */
template <int D>
static __global__ void __launch_bounds__(D *MEAN_GROUPS)
    finish_mean(const double *partial, int64_t shares, int64_t nk, int smooth, float *kbar)
{
    __shared__ double shared[MEAN_GROUPS][D];
    int c = threadIdx.x % D, group = threadIdx.x / D;
    double sum = 0;
    shares = smooth ? shares : 0;
    partial += blockIdx.x * shares * D + c;
#pragma unroll 8
    for (int64_t s = group; s < shares; s += MEAN_GROUPS)
        sum += partial[s * D];
    shared[group][c] = sum;
    __syncthreads();
    if (group > 0)
        return;
    for (int i = 1; i < MEAN_GROUPS; i++)
        sum += shared[i][c];
    kbar[blockIdx.x * D + c] = (float)(sum / (double)nk);
}

/* ---- blocks: mean, self-similarity ---------------------------------------------------------- */

struct block_args {
    const uint4 *x;    /* [heads][n][d] */
    const float *kbar; /* [heads][d] or NULL */
    int64_t n, blocks;
    const double *theta; /* [heads][judges] */
    int judges;          /* query heads that judge a head's blocks, each by its own theta */
    int paper;
    float *mean;   /* [heads][blocks][d] */
    uint8_t *like; /* [heads][judges][blocks] */
};

#define JUDGE_ROWS 8 /* of a thread, 8 channels each */

/* A thread has rows row, row + STEP, ... of a block, of the LANES that share a row one each. */
template <int D, int BLOCK> struct judge_shape {
    static constexpr int LANES = D / 8, STEP = BLOCK / JUDGE_ROWS, SIZE = STEP * LANES,
                         WARPS = SIZE / 32;
};

/* Each warp's part of a block: sums of its rows and of its rows scaled to length 1, the largest
 * |x|^2. */
template <int D, int BLOCK> struct judge_shared {
    static constexpr int WARPS = judge_shape<D, BLOCK>::WARPS;
    alignas(16) float sum[WARPS][D];
    alignas(16) float unit[WARPS][D];
    float longest[WARPS];
};

/* Sums over the lanes of a row of 8 values each, one per row: lane l gets that of row l % 8. */
template <int LANES> static __device__ __forceinline__ float share_rows(const float (&n)[8])
{
    int lane = threadIdx.x;
    float a[4], b[2], c;
#pragma unroll
    for (int i = 0; i < 4; i++)
        a[i] = (lane & 1 ? n[2 * i + 1] : n[2 * i]) +
               __shfl_xor_sync(~0u, lane & 1 ? n[2 * i] : n[2 * i + 1], 1);
#pragma unroll
    for (int i = 0; i < 2; i++)
        b[i] = (lane & 2 ? a[2 * i + 1] : a[2 * i]) +
               __shfl_xor_sync(~0u, lane & 2 ? a[2 * i] : a[2 * i + 1], 2);
    c = (lane & 4 ? b[1] : b[0]) + __shfl_xor_sync(~0u, lane & 4 ? b[0] : b[1], 4);
    if (LANES == 16)
        c += __shfl_xor_sync(~0u, c, 8);
    return c;
}

/* A row's eight channels in float, of keys minus the token mean. */
template <bool KEYS>
static __device__ __forceinline__ void judge_row(const uint4 &raw, const float (&kbar)[8],
                                                 float (&x)[8])
{
    unpack(raw, x);
    if (KEYS)
#pragma unroll
        for (int c = 0; c < 8; c++)
            x[c] -= kbar[c];
}

/* Add the values of the lanes of a warp that hold the same channels, and store them with the warps'
 * sums. */
template <int D> static __device__ __forceinline__ void judge_columns(float (&a)[8], float *to)
{
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int step = D / 8; step < 32; step *= 2)
#pragma unroll
        for (int c = 0; c < 8; c++)
            a[c] += __shfl_xor_sync(~0u, a[c], step);
    if (lane < D / 8) {
        *(float4 *)(to + lane * 8) = make_float4(a[0], a[1], a[2], a[3]);
        *(float4 *)(to + lane * 8 + 4) = make_float4(a[4], a[5], a[6], a[7]);
    }
}

/* Channels 4 * lane of D of the sums of WARPS warps. */
template <int D, int WARPS>
static __device__ __forceinline__ float4 judge_total(const float (&part)[WARPS][D], int lane)
{
    float4 all = make_float4(0, 0, 0, 0);
    if (lane * 4 < D)
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            float4 a = *(const float4 *)&part[w][lane * 4];
            all.x += a.x, all.y += a.y, all.z += a.z, all.w += a.w;
        }
    return all;
}

/* Mean of the block, by one warp. */
template <int D, int WARPS>
static __device__ __forceinline__ void judge_mean(const float (&part)[WARPS][D], int rows, int lane,
                                                  float *mean)
{
    float4 m = judge_total<D, WARPS>(part, lane);
    if (lane * 4 < D)
        *(float4 *)(mean + lane * 4) = make_float4(__fdiv_rn(m.x, rows), __fdiv_rn(m.y, rows),
                                                   __fdiv_rn(m.z, rows), __fdiv_rn(m.w, rows));
}

/* Self-similarity of block number `block` of a head, by one warp: |mean of unit rows|^2; as in the
 * paper, |mean|^2 / |longest row|^2. */
template <int D, int WARPS>
static __device__ __forceinline__ void
judge_like(const block_args &a, const float (&part)[WARPS][D], const float (&longest)[WARPS],
           int rows, int lane, bool whole, int64_t head, int64_t block)
{
    float4 u = judge_total<D, WARPS>(part, lane);
    double s =
        warp_add((double)u.x * u.x + (double)u.y * u.y + (double)u.z * u.z + (double)u.w * u.w);
    if (lane)
        return;
    s /= (double)rows * rows;
    if (a.paper) {
        float top = 0;
        for (int w = 0; w < WARPS; w++)
            top = fmaxf(top, longest[w]);
        s = top > 0 ? s / top : 1;
    }
    s = fmin(s, 1.0);
    for (int64_t i = head * a.judges; i < (head + 1) * a.judges; i++)
        a.like[i * a.blocks + block] = a.paper ? s >= a.theta[i] : whole && s > a.theta[i];
}

/* Place of a thread's rows. Past the end of x the last row is read again, which changes no maximum.
 */
template <int D, int BLOCK> struct judge_place {
    static constexpr int STEP = judge_shape<D, BLOCK>::STEP;
    const uint4 *from;
    int left; /* rows from the thread's first to the end of the block */
    __device__ __forceinline__ judge_place(const block_args &a, int64_t head, int64_t block)
    {
        int row = threadIdx.x / (D / 8);
        int64_t row0 = block * BLOCK;
        left = (int)min((int64_t)BLOCK, a.n - row0) - row;
        from = a.x + (head * a.n + row0) * (D / 8) + threadIdx.x;
    }
    __device__ __forceinline__ bool real(int i) const
    {
        return i * STEP < left;
    }
    __device__ __forceinline__ uint4 load(int i) const /* for the last time */
    {
        return __ldcs(from + min(i * STEP, left - 1) * (D / 8));
    }
    __device__ __forceinline__ void load(uint4 (&raw)[8]) const
    {
        if (real(JUDGE_ROWS - 1)) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                raw[i] = __ldcs(from + i * STEP * (D / 8));
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++)
                raw[i] = load(i);
        }
    }
};

/* 1 / |x| of the row threadIdx.x % 8 of the thread's, given |x|^2; 0 of a zero row. *square becomes
 * |x|^2, -1 of a zero row. Where squares leave the range of float a row is read again and scaled.
 */
template <int D, int BLOCK, bool KEYS>
static __device__ __forceinline__ float judge_norm(const judge_place<D, BLOCK> &place,
                                                   const float (&kbar)[8], float *square)
{
    float n2 = *square, inverse = rsqrtf(n2);
    if (__all_sync(~0u, n2 >= 1e-24f && n2 <= 1e30f))
        return inverse;
#pragma unroll 1
    for (int i = 0; i < 8; i++) {
        float x[8];
        judge_row<KEYS>(place.load(i), kbar, x);
#pragma unroll 1
        for (int t = 0; t < 2; t++) {
            float up = t ? 0x1p-64f : 0x1p+64f, down = t ? 0x1p+64f : 0x1p-64f, scaled = 0;
#pragma unroll
            for (int c = 0; c < 8; c++)
                scaled = fmaf(x[c] * up, x[c] * up, scaled);
#pragma unroll
            for (int step = 1; step < D / 8; step *= 2)
                scaled += __shfl_xor_sync(~0u, scaled, step);
            if ((threadIdx.x & 7) == i && (t ? n2 > 1e30f : n2 < 1e-24f)) {
                inverse = scaled > 0 ? up * rsqrtf(scaled) : 0;
                *square = scaled > 0 ? scaled * down * down : -1;
            }
        }
    }
    return inverse;
}

/* The token mean of the thread's channels. */
template <int D>
static __device__ __forceinline__ void judge_kbar(const block_args &a, int64_t head,
                                                  float (&kbar)[8])
{
    const float4 *mean = (const float4 *)(a.kbar + head * D) + threadIdx.x % (D / 8) * 2;
    float4 low = mean[0], high = mean[1];
    kbar[0] = low.x, kbar[1] = low.y, kbar[2] = low.z, kbar[3] = low.w;
    kbar[4] = high.x, kbar[5] = high.y, kbar[6] = high.z, kbar[7] = high.w;
}

/* The largest of float x >= 0 in a warp. */
static __device__ __forceinline__ float judge_max(float x)
{
    return __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(x)));
}

/* Sums, longest rows and norms of the rows in `raw`, the first two into `sh`. Returns 1 / |x| of
 * the row threadIdx.x % 8 of the thread's; *zero says that it is a zero row. */
template <int D, int BLOCK, bool KEYS>
static __device__ __forceinline__ float
judge_rows(const block_args &a, const judge_place<D, BLOCK> &place, const float (&kbar)[8],
           const uint4 (&raw)[8], judge_shared<D, BLOCK> &sh, bool *zero)
{
    int warp = threadIdx.x >> 5;
    float sum[8] = {0}, n[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float x[8], once = place.real(i) ? 1 : 0;
        judge_row<KEYS>(raw[i], kbar, x);
        n[i] = 0;
#pragma unroll
        for (int c = 0; c < 8; c++) {
            n[i] = fmaf(x[c], x[c], n[i]);
            sum[c] = fmaf(x[c], once, sum[c]);
        }
    }
    float square = share_rows<D / 8>(n);
    judge_columns<D>(sum, sh.sum[warp]);
    float inverse = judge_norm<D, BLOCK, KEYS>(place, kbar, &square);
    bool real = place.real(threadIdx.x & 7);
    float longest = a.paper ? judge_max(fmaxf(square, 0)) : 0;
    if ((threadIdx.x & 31) == 0)
        sh.longest[warp] = longest;
    *zero = real && square < 0;
    return real ? inverse : 0;
}

/* Second step over the rows: the sums of rows scaled to length 1 into `sh`. `mine`: the result of
 * judge_rows. */
template <int D, int BLOCK, bool KEYS>
static __device__ __forceinline__ void judge_units(const float (&kbar)[8], const uint4 (&raw)[8],
                                                   float mine, judge_shared<D, BLOCK> &sh)
{
    float unit[8] = {0};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float x[8], weight = __shfl_sync(~0u, mine, (threadIdx.x & 24) + i);
        judge_row<KEYS>(raw[i], kbar, x);
#pragma unroll
        for (int c = 0; c < 8; c++)
            unit[c] = fmaf(x[c], weight, unit[c]);
    }
    judge_columns<D>(unit, sh.unit[threadIdx.x >> 5]);
}

/* Mean and self-similarity of a block. Grid (blocks, heads); keys are walked from the end, where
 * their mean was taken last. 32 warps per multiprocessor leave 64 registers to each thread. */
template <int D, int BLOCK, bool KEYS>
static __global__ void __launch_bounds__(judge_shape<D, BLOCK>::SIZE,
                                         32 / judge_shape<D, BLOCK>::WARPS)
    judge_blocks(const block_args a)
{
    constexpr int WARPS = judge_shape<D, BLOCK>::WARPS;
    __shared__ judge_shared<D, BLOCK> sh;
    int64_t block = KEYS ? a.blocks - 1 - blockIdx.x : blockIdx.x;
    int64_t head = KEYS ? gridDim.y - 1 - blockIdx.y : blockIdx.y, at = head * a.blocks + block;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int rows = (int)min((int64_t)BLOCK, a.n - block * BLOCK);
    judge_place<D, BLOCK> place(a, head, block);
    float kbar[8] = {0};
    uint4 raw[8];
    bool zero;

    place.load(raw);
    if (KEYS)
        judge_kbar<D>(a, head, kbar);
    float mine = judge_rows<D, BLOCK, KEYS>(a, place, kbar, raw, sh, &zero);
    bool whole = !__syncthreads_or(zero) && rows == BLOCK;
#pragma unroll
    for (int i = 0; i < 8; i++) /* unpacked again: as floats they would not fit into registers */
        asm volatile("" : "+r"(raw[i].x), "+r"(raw[i].y), "+r"(raw[i].z), "+r"(raw[i].w));
    judge_units<D, BLOCK, KEYS>(kbar, raw, mine, sh);
    __syncthreads();
    if (warp == 1)
        judge_mean<D, WARPS>(sh.sum, rows, lane, a.mean + at * D);
    else if (warp == 0)
        judge_like<D, WARPS>(a, a.paper ? sh.sum : sh.unit, sh.longest, rows, lane, whole, head,
                             block);
}

/* ---- rows: softmax of the means' scores, its cut, the map ----------------------------------- */

/* Where a head's rows are cut. */
struct head_cut {
    double tau;
    int top;   /* entries of select=topk */
    int dense; /* every block is kept */
};

struct row_args {
    const double *score;
    const uint8_t *q_like, *k_like; /* [heads][groups], [heads][units] */
    const head_cut *of;             /* [heads] */
    int groups, units, causal, bq, bk;
    int paper, topk_cut, sink;
    int64_t rows, words;
    uint32_t *map;
    double *mass; /* [rows] probability that the cut takes, -1 of a row that is not judged */
};

/* Probabilities over the judged blocks of the first `limit`, rounded to float; false when there is
 * none. */
template <class L>
static __device__ __forceinline__ bool coarse_row(const double *score, const uint8_t *k_like,
                                                  int limit, L &p)
{
    double top = -INFINITY, sum = 0;
    p.edit([&](int j, double &x) {
        bool seen = j < limit;
        double own = seen ? score[j] : -INFINITY; /* loaded beside the flag */
        x = seen && k_like[j] ? own : -INFINITY;
        top = x > top ? x : top;
    });
    top = warp_max(top);
    if (top == -INFINITY)
        return false;
    p.edit([&](int, double &x) {
        x = x == -INFINITY ? 0 : exp(x - top);
        sum += x;
    });
    double inverse = 1 / warp_add(sum);
    p.edit([&](int j, double &x) { x = j < limit ? (float)(x * inverse) : -1; });
    return true;
}

/* The cut of a row of `limit` blocks: sorted by (probability descending, block ascending), the
 * longest prefix whose sum, as a float, stays at or below the bound; or the `top` largest. *mass:
 * their sum. */
template <class L>
static __device__ __forceinline__ cut cut_row(const row_args &a, const head_cut &at, const L &p,
                                              int limit, double *mass)
{
    int number, m;
    *mass = cut_mass(p, 0, true, &number);
    float bound = a.paper ? (float)(at.tau * *mass) : (float)at.tau;
    if (!a.topk_cut && (float)*mass <= bound)
        return {-0.5, 0};
    cut_point c =
        cut_find(p, a.topk_cut ? 0 : (float)(*mass - bound) / limit,
                 [&](double sum, int n) { return a.topk_cut ? n >= at.top : (float)sum > bound; });
    if (a.topk_cut) {
        m = min(at.top - c.number, c.equal);
    } else {
        m = c.t > 0 ? (int)fminf((float)(bound - c.above) / (float)c.t, (float)c.equal) : c.equal;
        m = max(m, 0);
        while (m < c.equal && (float)(c.above + (m + 1) * c.t) <= bound)
            m++;
        while (m > 0 && (float)(c.above + m * c.t) > bound)
            m--;
        m = c.number + m == 0 && !a.paper ? 1 : m;
    }
    *mass = c.above + m * c.t;
    return {c.t, m};
}

/* A word of the map: which of 32 blocks of a judged row, from j0 on, are kept. `p` is the lane's
 * probability. */
static __device__ __forceinline__ uint32_t keep_blocks(const row_args &a, int j0, int limit,
                                                       const uint8_t *k_like, const cut &c,
                                                       double p, int *seen)
{
    int j = j0 + (threadIdx.x & 31);
    bool taken = cut_has(c, p, j < limit, seen);
    return __ballot_sync(~0u, j < limit && (taken || !k_like[j] || (a.sink && j == 0)));
}

/* A row of a head: the first `limit` blocks are seen. */
struct row_place {
    int limit;
    const double *score;
    const uint8_t *k_like;
    uint32_t *map;
    head_cut at;
    bool judged;
};

static __device__ __forceinline__ row_place place_of(const row_args &a, int64_t row)
{
    int head = (int)(row / a.groups), end = ((int)(row % a.groups) + 1) * a.bq;
    row_place x = {a.units, a.score + row * a.units, a.k_like + (int64_t)head * a.units,
                   a.map + row * a.words, a.of[head]};
    if (a.causal)
        x.limit = min(a.units, (end + a.bk - 1) / a.bk);
    x.judged = !x.at.dense && a.q_like[row];
    return x;
}

/* Words [from, words) of a row that is kept as far as it is seen. */
static __device__ __forceinline__ void keep_seen(const row_args &a, const row_place &x, int from)
{
    for (int w = from + (threadIdx.x & 31); w < a.words; w += 32)
        x.map[w] = low_bits(~0u, x.limit - 32 * w);
}

/* A row of up to 32 N blocks that are seen. Returns the mass that the cut takes, -1 of a row that
 * is not judged. */
template <int N>
static __device__ __forceinline__ double select_short(const row_args &a, const row_place &x)
{
    list_registers<N> p;
    uint32_t word = 0; /* of the lane with its number */
    double mass = -1;
    int lane = threadIdx.x & 31, seen = 0;
    if (!x.judged || !coarse_row(x.score, x.k_like, x.limit, p)) {
        keep_seen(a, x, 0);
        return mass;
    }
    cut c = cut_row(a, x.at, p, x.limit, &mass);
#pragma unroll
    for (int u = 0; u < N; u++) {
        uint32_t kept = keep_blocks(a, u * 32, x.limit, x.k_like, c, p.v[u], &seen);
        word = lane == u ? kept : word;
    }
    if (lane < a.words)
        x.map[lane] = word;
    return mass;
}

/* Rows of up to 32 N blocks, a warp each. A list that is no longer than what the row sees takes
 * fewer instructions. */
template <int N>
static __global__ void __launch_bounds__(32 * ROW_WARPS, 6) select_short_rows(const row_args a)
{
    int64_t row = blockIdx.x * (int64_t)ROW_WARPS + (threadIdx.x >> 5);
    if (row >= a.rows)
        return;
    row_place x = place_of(a, row);
    int quarter = (x.limit - 1) / (8 * N);
    double mass = quarter == 0   ? select_short<N / 4>(a, x)
                  : quarter == 1 ? select_short<N / 2>(a, x)
                  : quarter == 2 ? select_short<3 * N / 4>(a, x)
                                 : select_short<N>(a, x);
    if ((threadIdx.x & 31) == 0)
        a.mass[row] = mass;
}

/* Rows of any length, whose probabilities lie in shared memory. */
static __global__ void __launch_bounds__(32 * MAX_ROW_WARPS) select_rows(const row_args a)
{
    extern __shared__ double shared[];
    int64_t row = blockIdx.x * (int64_t)(blockDim.x >> 5) + (threadIdx.x >> 5);
    if (row >= a.rows)
        return;
    row_place x = place_of(a, row);
    int lane = threadIdx.x & 31, seen = 0, done = 0;
    double mass = -1;
    list_shared p = {shared + (int64_t)(threadIdx.x >> 5) * a.units, x.limit};
    if (x.judged && coarse_row(x.score, x.k_like, x.limit, p)) {
        cut c = cut_row(a, x.at, p, x.limit, &mass);
        for (; done * 32 < x.limit; done++) {
            int j = done * 32 + lane;
            uint32_t kept =
                keep_blocks(a, done * 32, x.limit, x.k_like, c, j < x.limit ? p.v[j] : 0, &seen);
            if (lane == 0)
                x.map[done] = kept;
        }
    }
    keep_seen(a, x, done);
    if (lane == 0)
        a.mass[row] = mass;
}

/* ---- launches ------------------------------------------------------------------------------- */

struct sparge_state : head_args {
    struct sparge_rule rule; /* what all heads have */
    bool dense;              /* no head is judged */
    double *theta;           /* [heads] */
    head_cut *cuts;          /* [heads] */
    int share;               /* keys of a thread block's share of the token mean */
    int64_t shares;
    double *partial;          /* [kv_heads][shares][d] */
    float *kbar;              /* [kv_heads][d] */
    float *q_mean, *k_mean;   /* [heads][groups][d], [kv_heads][units][d] */
    uint8_t *q_like, *k_like; /* [heads][groups], [heads][units]: self-similar, as the query head
                               * judges */
    double *score;            /* [heads][groups][units] */
    double *mass;             /* [heads][groups] */
};

template <int D, bool KEYS>
static int launch_blocks(cudaStream_t stream, int heads, int block, const block_args &a,
                         struct err *err)
{
    int size = block == 64 ? judge_shape<D, 64>::SIZE : judge_shape<D, 128>::SIZE;
    auto judge = block == 64 ? judge_blocks<D, 64, KEYS> : judge_blocks<D, 128, KEYS>;
    return CU_STATUS(err, run_kernel(stream, judge, dim3(a.blocks, heads), size, 0, a));
}

/* Token means of k, then its blocks; beside them the blocks of the queries, which fill what those
 * leave idle. */
template <int D> static int launch_means(struct gpu *g, const sparge_state *s, struct err *err)
{
    block_args k = {s->k,      s->kbar,       s->nk,     s->units, s->theta,
                    s->per_kv, s->rule.paper, s->k_mean, s->k_like};
    block_args q = {s->q, NULL, s->nq, s->groups, s->theta, 1, s->rule.paper, s->q_mean, s->q_like};
    PASS_ON(gpu_fork(g, err));
    if (s->rule.smooth_k)
        PASS_ON_CU(err, run_kernel(g->side, sum_keys<D>, dim3(s->shares, s->kv_heads), THREADS, 0,
                                   s->k, s->nk, s->share, s->shares, s->partial));
    PASS_ON_CU(err, run_kernel(g->side, finish_mean<D>, s->kv_heads, D * MEAN_GROUPS, 0, s->partial,
                               s->shares, s->nk, s->rule.smooth_k, s->kbar));
    PASS_ON((launch_blocks<D, true>(g->side, s->kv_heads, (int)s->rule.bk, k, err)));
    PASS_ON((launch_blocks<D, false>(g->stream, s->heads, (int)s->rule.bq, q, err)));
    return gpu_join(g, err);
}

/* What the heads keep. */
static int launch_rows(struct gpu *g, const struct select_job *job, struct err *err)
{
    const sparge_state *s = (const sparge_state *)job->state;
    int n = s->units, bq = (int)s->rule.bq, bk = (int)s->rule.bk;
    int warps = n > SHORT ? row_warps(8 * n) : ROW_WARPS;
    int64_t rows = job->lists.rows;
    auto select = n > SHORT       ? select_rows
                  : n > SHORT / 2 ? select_short_rows<SHORT / 32>
                                  : select_short_rows<SHORT / 64>;
    row_args a = {
        s->score,  s->q_like,    s->k_like,  s->cuts,       s->groups,        n,
        s->causal, bq,           bk,         s->rule.paper, s->rule.by_count, s->rule.sink,
        rows,      s->map.words, s->map.map, s->mass};
    if (!s->dense)
        PASS_ON_CU(err,
                   run_scores(g->stream, g->sms, s->heads, s->q_mean, s->k_mean, s->d, s->groups, n,
                              s->per_kv, job->problem.scale, s->causal, bq, bk, s->score));
    return CU_STATUS(err, run_kernel(g->stream, select, ceil_div(rows, warps), 32 * warps,
                                     n > SHORT ? 8 * n * warps : 0, a));
}

static int launch(struct gpu *g, const struct select_job *job, struct err *err)
{
    const sparge_state *s = (const sparge_state *)job->state;
    PASS_ON(s->d == 128 ? launch_means<128>(g, s, err) : launch_means<64>(g, s, err));
    return launch_rows(g, job, err);
}

/* ---- set-up --------------------------------------------------------------------------------- */

static bool fits(const struct select_problem *p, char why[160])
{
    if (!dims_fit(p, why))
        return false;
    return (ceil_div(p->nk, select_rule(p, 0)->sparge.bk) <= MAX_UNITS && p->nq <= INT32_MAX / 2) ||
           refuse(why, "the GPU side takes rows of up to %d blocks", MAX_UNITS);
}

/* ---- numbers beside the masks ---------------------------------------------------------------- */

/* The numbers of head blockIdx.x, by one warp. */
static __global__ void __launch_bounds__(32)
    collect_numbers(int groups, int units, const double *mass, const uint8_t *q_like,
                    const uint8_t *k_like, uint8_t *own, int64_t own_bytes)
{
    int64_t head = blockIdx.x;
    int lane = threadIdx.x, rows = 0;
    own += head * own_bytes;
    struct sparge_own *first = (struct sparge_own *)own;
    double sum = 0;
    for (int i = lane; i < groups; i += 32) {
        double x = mass[head * groups + i];
        sum += x < 0 ? 0 : x;
        rows += x >= 0;
        own[sizeof *first + i] = q_like[head * groups + i];
    }
    for (int j = lane; j < units; j += 32)
        own[sizeof *first + groups + j] = k_like[head * units + j];
    sum = warp_add(sum);
    rows = __reduce_add_sync(~0u, rows);
    if (lane == 0) {
        first->mass = sum;
        first->rows = rows;
    }
}

static int make_numbers(struct gpu *g, const struct select_job *job, struct err *err)
{
    const sparge_state *s = (const sparge_state *)job->state;
    return CU_STATUS(err, run_kernel(g->stream, collect_numbers, s->heads, 32, 0, s->groups,
                                     s->units, s->mass, s->q_like, s->k_like,
                                     (uint8_t *)job->lists.own, job->lists.own_bytes));
}

static int init(struct gpu *g, struct select_job *job, struct err *err)
{
    const struct select_problem *p = &job->problem;
    const struct sparge_rule *r = &select_rule(p, 0)->sparge;
    struct select_lists *l = &job->lists;
    int64_t kv = p->kv_heads, d = p->d;
    sparge_state *s = NULL;

    PASS_ON(method_init(g, job, r->bq, r->bk, &s, err));
    s->rule = *r;
    s->share = kv * p->nk < 512LL * 2 * g->sms ? 128 : 512;
    s->shares = ceil_div(p->nk, s->share);
    s->dense = true;
    for (int h = 0; h < p->heads; h++)
        s->dense &= select_rule(p, h)->sparge.dense;
    PASS_ON(put_each(g, p->heads, &s->theta, err,
                     [=](int64_t h) { return select_rule(p, (int)h)->sparge.theta; }));
    PASS_ON(put_each(g, p->heads, &s->cuts, err, [=](int64_t h) {
        const struct sparge_rule *of = &select_rule(p, (int)h)->sparge;
        return head_cut{of->tau, (int)of->top, of->dense};
    }));
    PASS_ON(take(g, err, &s->partial, kv * s->shares * d, &s->kbar, kv * d, &s->q_mean, l->rows * d,
                 &s->k_mean, kv * l->units * d, &s->q_like, l->rows, &s->k_like,
                 p->heads * l->units, &s->score, l->rows * l->units, &s->mass, l->rows));
    l->own_bytes = ceil_div((int64_t)sizeof(struct sparge_own) + l->groups + l->units, 8) * 8;
    l->own_make = make_numbers;
    return gpu_alloc(g, p->heads * l->own_bytes, &l->own, err);
}

/* Heads differ in what a calibration gives them. */
static bool together(const union method_rule *a, const union method_rule *b)
{
    const struct sparge_rule *x = &a->sparge, *y = &b->sparge;
    return x->bq == y->bq && x->bk == y->bk && x->paper == y->paper && x->by_count == y->by_count &&
           x->sink == y->sink && x->smooth_k == y->smooth_k;
}

extern "C" const struct select_method select_spargeattn = {
    "spargeattn", fits, init, launch, NULL, NULL, false, together,
};
