/*
 * sparge_rows.cuh - from the scores of the block means to the blocks that SpargeAttn keeps: softmax
 * of a row, its cut, the map. One warp per row; everything in double, as on the CPU
 * (sim/methods/spargeattn/spargeattn.c); no sorting (cut.cuh).
 */
#ifndef LACUNA_SPARGE_ROWS_CUH
#define LACUNA_SPARGE_ROWS_CUH

#include "cuda/select/cut.cuh"
#include "cuda/select/maprows.cuh"

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

/* Probabilities over the judged, admissible blocks, rounded to float; false when there is none. Of
 * a row in registers, lane l has the blocks l, l + 32, ... */
template <int N>
static __device__ bool coarse_row(const row_args &a, int64_t row, int i, const uint8_t *k_like,
                                  list_registers<N> &p)
{
    int lane = threadIdx.x & 31;
    double top = -INFINITY, sum = 0;
#pragma unroll
    for (int u = 0; u < N; u++) {
        int j = u * 32 + lane;
        bool judged =
            j < a.units && k_like[j] && (!a.causal || (int64_t)j * a.bk < (int64_t)(i + 1) * a.bq);
        p.v[u] = judged ? a.score[row * a.units + j] : -INFINITY;
        top = p.v[u] > top ? p.v[u] : top;
    }
    top = warp_max(top);
    if (top == -INFINITY)
        return false;
#pragma unroll
    for (int u = 0; u < N; u++) {
        p.v[u] = p.v[u] == -INFINITY ? 0 : exp(p.v[u] - top);
        sum += p.v[u];
    }
    double inverse = 1 / warp_add(sum);
#pragma unroll
    for (int u = 0; u < N; u++)
        p.v[u] = u * 32 + lane < a.units ? (float)(p.v[u] * inverse) : -1;
    return true;
}

/* The same in shared memory. */
static __device__ bool coarse_row(const row_args &a, int64_t row, int i, const uint8_t *k_like,
                                  double *p)
{
    int lane = threadIdx.x & 31;
    double top = -INFINITY, sum = 0;
    for (int j = lane; j < a.units; j += 32) {
        bool judged = k_like[j] && (!a.causal || (int64_t)j * a.bk < (int64_t)(i + 1) * a.bq);
        p[j] = judged ? a.score[row * a.units + j] : -INFINITY;
        top = p[j] > top ? p[j] : top;
    }
    top = warp_max(top);
    if (top == -INFINITY)
        return false;
    for (int j = lane; j < a.units; j += 32) {
        p[j] = p[j] == -INFINITY ? 0 : exp(p[j] - top);
        sum += p[j];
    }
    double inverse = 1 / warp_add(sum);
    for (int j = lane; j < a.units; j += 32)
        p[j] = (float)(p[j] * inverse);
    return true;
}

/* Does a prefix of this sum and number go past the cut? */
static __device__ __forceinline__ bool cut_full(const row_args &a, int top, float bound, double sum,
                                                int n)
{
    return a.topk_cut ? n >= top : (float)sum > bound;
}

/* The largest entry t for which the entries >= t go past the cut, for lists in shared memory. */
static __device__ __forceinline__ double cut_value(const row_args &a, const list_shared &p,
                                                   double mass, int top, float bound)
{
    double guess = a.topk_cut ? 0 : (mass - bound) / a.units;
    return cut_find(p, guess, [&](double sum, int n) { return cut_full(a, top, bound, sum, n); });
}

/* The same for a row in registers. The search uses integers, which one instruction adds over the
 * warp: entries are compared by their bits as floats, sums are in units of 2^-31. The result is
 * then checked in double, and moved entry by entry where roundings decided. */
template <int N>
static __device__ __forceinline__ double cut_value(const row_args &a, const list_registers<N> &p,
                                                   double mass, int top, float bound)
{
    uint32_t key[N], weight[N], low = 1, high = 0, need = __float2uint_rz(bound * 0x1p31f);
    int at_low = 0, at_high = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        float v = (float)p.v[i];
        key[i] = v < 0 ? 0 : __float_as_uint(v) + 1; /* 0: no entry */
        weight[i] = v < 0 ? 0 : __float2uint_rn(v * 0x1p31f);
        high = max(high, key[i]);
        at_low += key[i] > 0;
    }
    high = __reduce_max_sync(~0u, high) + 1;
    at_low = __reduce_add_sync(~0u, at_low);
    uint32_t middle = a.topk_cut ? low + (high - low) / 2
                                 : __float_as_uint(fmaxf((float)(mass - bound) / a.units, 0)) + 1;
    while (at_low - at_high > 1 && high - low > 1) {
        uint32_t sum = 0;
        int n = 0;
        middle = middle <= low ? low + 1 : middle >= high ? high - 1 : middle;
#pragma unroll
        for (int i = 0; i < N; i++) {
            sum += key[i] >= middle ? weight[i] : 0;
            n += key[i] >= middle;
        }
        sum = __reduce_add_sync(~0u, sum);
        n = __reduce_add_sync(~0u, n);
        bool full = a.topk_cut ? n >= top : sum > need;
        low = full ? middle : low;
        high = full ? high : middle;
        at_low = full ? n : at_low;
        at_high = full ? at_high : n;
        middle = low + (high - low) / 2;
    }
    double t = cut_below(p, (double)__uint_as_float(high - 1)); /* the largest key below high */
    t = t < 0 ? cut_above(p, -1) : t;
    for (;;) {
        int n, above;
        double sum = cut_mass(p, t, true, &n), sum_above = cut_mass(p, t, false, &above);
        if (!cut_full(a, top, bound, sum, n) && t > 0)
            t = cut_below(p, t);
        else if (above && cut_full(a, top, bound, sum_above, above))
            t = cut_above(p, t);
        else
            return t;
    }
}

/* The cut of a row: sorted by (probability descending, block ascending), the longest prefix whose
 * sum, as a float, stays at or below the bound; or the `top` largest. */
template <class L>
static __device__ __forceinline__ cut cut_row(const row_args &a, const head_cut &at, const L &p)
{
    int number, equal;
    double mass = cut_mass(p, 0, true, &number);
    float bound = a.paper ? (float)(at.tau * mass) : (float)at.tau;
    if (!a.topk_cut && (float)mass <= bound)
        return {-0.5, 0};
    double t = cut_value(a, p, mass, at.top, bound);
    cut_mass(p, t, true, &equal);
    mass = cut_mass(p, t, false, &number);
    equal -= number;
    if (a.topk_cut)
        return {t, at.top - number};
    int m = t > 0 ? (int)fmin((bound - mass) / t, (double)equal) : equal;
    m = max(m, 0);
    while (m < equal && (float)(mass + (m + 1) * t) <= bound)
        m++;
    while (m > 0 && (float)(mass + m * t) > bound)
        m--;
    return {t, number + m == 0 && !a.paper ? 1 : m};
}

/* Write to the map which of 32 blocks of a row, from j0 on, are kept. `p` is the lane's
 * probability; `judged` says that the row was cut at all. */
static __device__ __forceinline__ void keep_blocks(const row_args &a, int64_t row, int i, int j0,
                                                   const uint8_t *k_like, bool all, bool judged,
                                                   const cut &c, double p, int *seen, double *mass)
{
    int j = j0 + (threadIdx.x & 31);
    bool in = j < a.units && (!a.causal || (int64_t)j * a.bk < (int64_t)(i + 1) * a.bq);
    bool taken = cut_has(c, p, judged && j < a.units, seen);
    bool keep = in && (all || taken || !k_like[j] || (a.sink && j == 0));
    uint32_t word = __ballot_sync(~0u, keep);
    *mass += taken ? p : 0;
    if ((threadIdx.x & 31) == 0)
        a.map[row * a.words + j0 / 32] = word;
}

/* A warp per row of up to 32 N blocks; N = 0: of any number, in shared memory. */
template <int N>
static __global__ void __launch_bounds__(32 * MAX_ROW_WARPS) select_rows(const row_args a)
{
    extern __shared__ double shared[];
    int64_t row = blockIdx.x * (int64_t)(blockDim.x >> 5) + (threadIdx.x >> 5);
    if (row >= a.rows)
        return;
    int head = (int)(row / a.groups), i = (int)(row % a.groups), seen = 0;
    const uint8_t *k_like = a.k_like + (int64_t)head * a.units;
    const head_cut at = a.of[head];
    bool all = at.dense || !a.q_like[row], judged = false;
    double mass = 0; /* of the lane's blocks that the cut takes */
    cut c = {0, 0};
    if constexpr (N > 0) {
        list_registers<N> p;
        judged = !all && coarse_row(a, row, i, k_like, p);
        if (judged)
            c = cut_row(a, at, p);
#pragma unroll
        for (int u = 0; u < N; u++)
            if (u * 32 < a.units)
                keep_blocks(a, row, i, u * 32, k_like, all, judged, c, judged ? p.v[u] : 0, &seen,
                            &mass);
    } else {
        double *p = shared + (int64_t)(threadIdx.x >> 5) * a.units;
        judged = !all && coarse_row(a, row, i, k_like, p);
        if (judged)
            c = cut_row(a, at, list_shared{p, a.units});
        for (int j0 = 0; j0 < a.units; j0 += 32) {
            int j = j0 + (threadIdx.x & 31);
            keep_blocks(a, row, i, j0, k_like, all, judged, c, judged && j < a.units ? p[j] : 0,
                        &seen, &mass);
        }
    }
    mass = warp_add(mass);
    if ((threadIdx.x & 31) == 0)
        a.mass[row] = judged ? mass : -1;
}

#endif
