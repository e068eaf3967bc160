/*
 * cut.cuh - how many of a list's largest values reach a sum, one warp per list, without sorting: by
 * bisection over the values' bits until there is an entry for each lane at most, then by comparing
 * these with each other. Values are doubles >= 0, whose bits have the same order; negative values
 * are ignored. The order of a list is by value descending, ties by index.
 *
 * A cut is {t, m}: the entries above t and the first m of those equal to t.
 */
#pragma once

#include "cuda/warp.cuh"

#include <stdint.h>

struct cut {
    double t;
    int m;
};

/* A list in shared memory: lane l has the entries l, l + 32, ... */
struct list_shared {
    double *v;
    int n;
    template <class F> __device__ __forceinline__ void each(F f) const
    {
        for (int x = threadIdx.x & 31; x < n; x += 32)
            f(v[x]);
    }
    template <class F> __device__ __forceinline__ void edit(F f) /* f(index, entry) */
    {
        for (int x = threadIdx.x & 31; x < n; x += 32)
            f(x, v[x]);
        __syncwarp();
    }
};

/* The same in registers; entries past the end are negative. */
template <int N> struct list_registers {
    double v[N];
    template <class F> __device__ __forceinline__ void each(F f) const
    {
#pragma unroll
        for (int i = 0; i < N; i++)
            f(v[i]);
    }
    template <class F> __device__ __forceinline__ void edit(F f)
    {
#pragma unroll
        for (int i = 0; i < N; i++)
            f(i * 32 + (int)(threadIdx.x & 31), v[i]);
    }
};

/* The largest of entries >= 0, -1: there is none. Their bits have the same order. */
static __device__ __forceinline__ double cut_most(double x)
{
    int high = __double2hiint(x), most = __reduce_max_sync(~0u, high);
    uint32_t low = high == most ? (uint32_t)__double2loint(x) : 0;
    return __hiloint2double(most, (int)__reduce_max_sync(~0u, low));
}

/* Sum, unless SUM is false, and number of the entries above t; with equal ones included if asked
 * for. */
template <bool SUM = true, class L>
static __device__ __forceinline__ double cut_mass(const L &list, double t, bool equal, int *number)
{
    double sum = 0;
    int count = 0;
    if (equal)
        list.each([&](double v) {
            if (v >= t) {
                sum += v;
                count++;
            }
        });
    else
        list.each([&](double v) {
            if (v > t) {
                sum += v;
                count++;
            }
        });
    *number = __reduce_add_sync(~0u, count);
    return SUM ? warp_add(sum) : 0;
}

/* Largest value below the limit, -1 when there is none. */
template <class L> static __device__ __forceinline__ double cut_below(const L &list, double limit)
{
    double most = -1;
    list.each([&](double v) {
        if (v < limit && v > most)
            most = v;
    });
    return cut_most(most);
}

/* A value of a list: sum and number of the entries above it, and how many are equal. */
struct cut_point {
    double t, above;
    int number, equal;
};

#define CUT_WARPS 8 /* the most of a thread block that cuts lists */
#define CUT_NEAR 32 /* entries that are compared one by one, a lane each */

/* Memory of a warp for them. */
static __device__ __forceinline__ double *cut_memory()
{
    __shared__ double near[CUT_WARPS][CUT_NEAR];
    return near[threadIdx.x >> 5];
}

/* Gather the entries in [low, high), CUT_NEAR at most. */
template <class L>
static __device__ __forceinline__ void cut_gather(const L &list, double low, double high,
                                                  double *near)
{
    int lane = threadIdx.x & 31, own = 0, place;
    list.each([&](double v) { own += v >= low && v < high; });
    place = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        int left = __shfl_up_sync(~0u, place, step);
        place += lane >= step ? left : 0;
    }
    place -= own;
    list.each([&](double v) {
        if (v >= low && v < high)
            near[place++] = v;
    });
    __syncwarp();
}

/* cut_find among n entries, below which enough is true. `p` has what lies above them. */
template <class F>
static __device__ __forceinline__ cut_point cut_among(const double *near, int n, cut_point p,
                                                      F enough)
{
    int lane = threadIdx.x & 31, over = p.number, reach = p.number;
    double v = lane < n ? near[lane] : -1, above = p.above;
#pragma unroll 4
    for (int i = 0; i < n; i++) {
        double other = near[i];
        above += other > v ? other : 0;
        over += other > v;
        reach += other >= v;
    }
    bool holds = lane < n && enough(above + (reach - over) * v, reach);
    double t = cut_most(holds ? v : -1);
    if (t < 0) /* sums in another order */
        t = -warp_max(lane < n ? -v : -INFINITY);
    int of = __ffs(__ballot_sync(~0u, lane < n && v == t)) - 1;
    over = __shfl_sync(~0u, over, of);
    return {t, __shfl_sync(~0u, above, of), over, __shfl_sync(~0u, reach, of) - over};
}

/* The largest value t for which enough(sum, number) of the entries >= t is true; it must be true
 * for all entries together. A good guess below t, such as (total - need) / n, saves passes.
 * Bisection ends where few entries are left. SUM: enough needs sums. */
template <bool SUM = true, class L, class F>
static __device__ __forceinline__ cut_point cut_find(const L &list, double guess, F enough)
{
    double top = -1, mass = 0;
    int number = 0, all = 0;
    guess = guess > 0 ? guess : 0;
    list.each([&](double v) {
        top = v > top ? v : top;
        mass += v >= guess ? v : 0;
        number += v >= guess;
        all += v >= 0;
    });
    top = cut_most(top);
    mass = SUM ? warp_add(mass) : 0;
    number = __reduce_add_sync(~0u, number);
    bool close = enough(mass, number);
    uint64_t low = close ? (uint64_t)__double_as_longlong(guess) : 0;
    uint64_t high = (uint64_t)__double_as_longlong(top) + 1;
    int at_low = close ? number : __reduce_add_sync(~0u, all);
    cut_point p = {0, 0, 0, 0}; /* p.number, p.above: from high on */

    while (at_low - p.number > CUT_NEAR && high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        mass = cut_mass<SUM>(list, __longlong_as_double((long long)middle), true, &number);
        bool holds = enough(mass, number);
        low = holds ? middle : low;
        high = holds ? high : middle;
        at_low = holds ? number : at_low;
        p.number = holds ? p.number : number;
        p.above = holds ? p.above : mass;
    }
    p.t = __longlong_as_double((long long)low);
    p.equal = at_low - p.number;
    if (p.equal > CUT_NEAR) /* they are equal */
        return p;
    double *near = cut_memory();
    __syncwarp(); /* it may have been read for the list before */
    cut_gather(list, p.t, __longlong_as_double((long long)high), near);
    return cut_among(near, p.equal, p, enough);
}

/* The fewest of n entries, at least `least` (0 or 1), whose sum reaches the need; all entries if
 * their sum does not reach it. */
template <class L>
static __device__ __forceinline__ cut cut_reach(const L &list, int n, double need, int least)
{
    int number;
    double total = cut_mass(list, 0, true, &number);
    if (need > total)
        return {-0.5, 0}; /* above it lies everything that takes part */
    if (need <= 0)
        return {cut_below(list, INFINITY), least};
    cut_point p =
        cut_find(list, (total - need) / n, [=](double mass, int) { return mass >= need; });
    int m = p.number == 0 && least ? 1 : 0;
    while (m < p.equal && p.above + m * p.t < need)
        m++;
    return {p.t, m};
}

/* The `want` largest entries, ties by index; there must be more than `want`, all finite. */
template <class L> static __device__ __forceinline__ cut cut_largest(const L &list, int want)
{
    cut_point p = cut_find<false>(list, 0, [=](double, int number) { return number >= want; });
    return {p.t, want - p.number};
}

/* Is entry x of the lane in the cut? Called by all lanes for x = 0 .. 31, 32 .. 63, ... in turn;
 * `seen` counts the entries equal to t so far and starts at 0. */
static __device__ __forceinline__ bool cut_has(const cut &c, double value, bool valid, int *seen)
{
    bool tie = valid && value == c.t;
    uint32_t ties = __ballot_sync(~0u, tie), before = (1u << (threadIdx.x & 31)) - 1;
    bool in = valid && (value > c.t || (tie && *seen + __popc(ties & before) < c.m));
    *seen += __popc(ties);
    return in;
}
