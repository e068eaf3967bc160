/*
 * wide.cuh - one thread block for one long list of values >= 0: find the largest values up to a
 * number or a sum, by bisection over the bits of the values as floats, which have the same order.
 * Once no more values are in doubt than there are threads, each thread goes on with one of them.
 * Sums are in double, in a fixed order. cut.cuh serves short lists, one warp per list.
 */
#pragma once

#include "cuda/warp.cuh"

#include <stdint.h>

#define WIDE 1024            /* threads */
#define WIDE_OWN 32          /* values that a thread keeps in registers */
#define WIDE_TOP 0x7f800001u /* bits above those of infinity */

static __device__ __forceinline__ double wide_add(double x)
{
    __shared__ double part[32];
    x = warp_add(x);
    __syncthreads();
    if ((threadIdx.x & 31) == 0)
        part[threadIdx.x >> 5] = x;
    __syncthreads();
    return warp_add(part[threadIdx.x & 31]);
}

static __device__ __forceinline__ int wide_sum(int x)
{
    __shared__ int part[32];
    x = __reduce_add_sync(~0u, x);
    __syncthreads();
    if ((threadIdx.x & 31) == 0)
        part[threadIdx.x >> 5] = x;
    __syncthreads();
    return __reduce_add_sync(~0u, part[threadIdx.x & 31]);
}

/* Sum of x over the threads before this one, and into *all, unless it is NULL, over all. */
static __device__ __forceinline__ int wide_before(int x, int *all = NULL)
{
    __shared__ int part[32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, upto = x;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        int other = __shfl_up_sync(~0u, upto, step);
        upto += lane >= step ? other : 0;
    }
    __syncthreads();
    if (lane == 31)
        part[warp] = upto;
    __syncthreads();
    if (all)
        *all = __reduce_add_sync(~0u, part[lane]);
    return __reduce_add_sync(~0u, lane < warp ? part[lane] : 0) + upto - x;
}

static __device__ __forceinline__ float wide_max(float x)
{
    __shared__ float part[32];
    x = warp_max(x);
    __syncthreads();
    if ((threadIdx.x & 31) == 0)
        part[threadIdx.x >> 5] = x;
    __syncthreads();
    return warp_max(part[threadIdx.x & 31]);
}

/* Number of threads before this one, and into *all over all, for which x holds. */
static __device__ __forceinline__ int wide_rank(bool x, int *all)
{
    __shared__ int warps[32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    uint32_t mine = __ballot_sync(~0u, x);
    __syncthreads();
    if (lane == 0)
        warps[warp] = __popc(mine);
    __syncthreads();
    *all = __reduce_add_sync(~0u, warps[lane]);
    return __reduce_add_sync(~0u, lane < warp ? warps[lane] : 0) +
           __popc(mine & ((1u << lane) - 1));
}

/* Bits with the order of the floats. */
static __device__ __forceinline__ uint32_t ordered_bits(float x)
{
    uint32_t bits = __float_as_uint(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* Bit x of bits [words] is keep(x). All threads call keep, for 0 .. 1023, 1024 .. 2047, ... in
 * turn; past the last bit wanted it must return false. */
template <class F>
static __device__ __forceinline__ void wide_bits(uint32_t *bits, int words, F keep)
{
    for (int x0 = 0; x0 < words * 32; x0 += WIDE) {
        int x = x0 + (int)threadIdx.x;
        uint32_t word = __ballot_sync(~0u, keep(x));
        if ((threadIdx.x & 31) == 0 && x / 32 < words)
            bits[x / 32] = word;
    }
}

/* get(x) is value x of n. Values that do not fit into registers are fetched again in every pass. */
template <class G> struct wide_list {
    float own[WIDE_OWN];
    G get;
    int n;

    __device__ __forceinline__ wide_list(G g, int number) : get(g), n(number)
    {
#pragma unroll
        for (int i = 0; i < WIDE_OWN; i++) {
            int x = i * WIDE + (int)threadIdx.x;
            own[i] = x < n ? get(x) : NAN; /* below and above nothing */
        }
    }

    template <class F> __device__ __forceinline__ void each(F f) const
    {
#pragma unroll
        for (int i = 0; i < WIDE_OWN; i++)
            f(own[i]);
        for (int x = WIDE_OWN * WIDE + (int)threadIdx.x; x < n; x += WIDE)
            f(get(x));
    }

    /* Number, and sum, of the values >= t. */
    __device__ __forceinline__ int count(float t) const
    {
        int number = 0;
        each([&](float v) { number += v >= t; });
        return wide_sum(number);
    }
    __device__ __forceinline__ double mass(float t, int *number) const
    {
        double sum = 0;
        int mine = 0;
        each([&](float v) {
            sum += v >= t ? v : 0;
            mine += v >= t;
        });
        *number = wide_sum(mine);
        return wide_add(sum);
    }
};

/* The values from `low` up to `high`, at most WIDE of them, one a thread; NAN in the other threads.
 */
template <class G>
static __device__ __forceinline__ float wide_few(const wide_list<G> &list, uint32_t low,
                                                 uint32_t high)
{
    __shared__ float few[WIDE];
    float from = __uint_as_float(low), to = __uint_as_float(high);
    int mine = 0;
    list.each([&](float v) { mine += v >= from && !(v >= to); });
    int at = wide_before(mine);
    few[threadIdx.x] = NAN;
    __syncthreads();
    list.each([&](float v) {
        if (v >= from && !(v >= to))
            few[at++] = v;
    });
    __syncthreads();
    return few[threadIdx.x];
}

/* The `above` values >= from, and the first m of those equal to `tie`. */
struct wide_cut {
    float from, tie;
    int above, m;
};

/* The `want` largest, ties by index. */
template <class G>
static __device__ __forceinline__ wide_cut wide_largest(const wide_list<G> &list, int want)
{
    uint32_t low = 0, high = WIDE_TOP; /* more than wanted from low on, at most that from high on */
    int above = 0;
    if (want >= list.n)
        return {-1, -1, list.n, 0};
    int below = list.n; /* number of those from low on, or more */
    while (high - low > 1 && above < want && below - above > WIDE) {
        uint32_t middle = low + (high - low) / 2;
        int number = list.count(__uint_as_float(middle));
        if (number <= want) {
            high = middle;
            above = number;
        } else {
            low = middle;
            below = number;
        }
    }
    if (high - low > 1 && above < want) {
        float mine = wide_few(list, low, high);
        int base = above;
        while (high - low > 1 && above < want) {
            uint32_t middle = low + (high - low) / 2;
            int number = base + wide_sum(mine >= __uint_as_float(middle));
            if (number <= want) {
                high = middle;
                above = number;
            } else {
                low = middle;
            }
        }
    }
    return {__uint_as_float(high), __uint_as_float(high - 1), above, want - above};
}

/* The longest prefix, by value descending, ties by index, whose sum stays at or below the bound. */
template <class G>
static __device__ __forceinline__ wide_cut wide_prefix(const wide_list<G> &list, double bound)
{
    int at_low, at_high = 0, number;
    double total = list.mass(0, &at_low), above = 0;
    if (total <= bound)
        return {-1, -1, at_low, 0};
    /* Start of the search: all values below it together are less than what exceeds the bound. */
    uint32_t low = __float_as_uint((float)(total - bound) * (0.49f / (float)list.n));
    uint32_t high = __float_as_uint((float)total) + 1;
    auto narrow = [&](uint32_t middle, double sum) {
        if (sum > bound) {
            low = middle;
            at_low = number;
        } else {
            high = middle;
            at_high = number;
            above = sum;
        }
    };
    while (high - low > 1 && at_low - at_high > WIDE) {
        uint32_t middle = low + (high - low) / 2;
        narrow(middle, list.mass(__uint_as_float(middle), &number));
    }
    if (high - low > 1 && at_low - at_high > 1) {
        float mine = wide_few(list, low, high);
        int base = at_high;
        double base_sum = above;
        while (high - low > 1 && at_low - at_high > 1) {
            uint32_t middle = low + (high - low) / 2;
            bool in = mine >= __uint_as_float(middle);
            number = base + wide_sum(in);
            narrow(middle, base_sum + wide_add(in ? mine : 0));
        }
    }
    int m = 0, equal = at_low - at_high; /* one value makes the sum too large, or they are equal */
    double t = __uint_as_float(low);
    if (high - low == 1 && equal > 1) {
        m = (int)fmin((bound - above) / t, (double)equal);
        while (m < equal && above + (m + 1) * t <= bound)
            m++;
        while (m > 0 && above + m * t > bound)
            m--;
    }
    return {__uint_as_float(high), (float)t, at_high, m};
}

/* Is the thread's value in the cut? Called by all threads for the values 0 .. 1023, 1024 .. 2047,
 * ... in turn; `seen` starts at 0. */
static __device__ __forceinline__ bool wide_has(const wide_cut &c, float v, bool valid, int *seen)
{
    bool in = valid && v >= c.from;
    int all;
    if (c.m == 0)
        return in;
    bool tie = valid && v == c.tie;
    int before = *seen + wide_rank(tie, &all);
    *seen += all;
    return in || (tie && before < c.m);
}

/* The `want` largest of n values, ties by index, as bits [words]. */
template <class G>
static __device__ __forceinline__ void wide_pick(G get, int n, int want, uint32_t *bits, int words)
{
    wide_cut c;
    int seen = 0;
    {
        wide_list<G> list(get, n);
        c = wide_largest(list, want);
    }
    wide_bits(bits, words, [&](int x) { return wide_has(c, x < n ? get(x) : 0, x < n, &seen); });
}
