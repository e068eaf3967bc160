/*
 * cut.cuh - how many of a list's largest values reach a sum, by bisection over the values' bits,
 * one warp per list, without sorting. Values are doubles >= 0, whose bits have the same order;
 * negative values are ignored. The order of a list is by value descending, ties by index.
 *
 * A cut is {t, m}: the entries above t and the first m of those equal to t.
 */
#ifndef LACUNA_CUT_CUH
#define LACUNA_CUT_CUH

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

/* Sum and number of the entries above t; with equal ones included if asked for. */
template <class L>
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
    return warp_add(sum);
}

/* Largest value below the limit, -1 when there is none. */
template <class L> static __device__ __forceinline__ double cut_below(const L &list, double limit)
{
    double most = -1;
    list.each([&](double v) {
        if (v < limit && v > most)
            most = v;
    });
    return warp_max(most);
}

/* Smallest value above the limit, infinity when there is none. */
template <class L> static __device__ __forceinline__ double cut_above(const L &list, double limit)
{
    double least = INFINITY;
    list.each([&](double v) {
        if (v > limit && v < least)
            least = v;
    });
    return -warp_max(-least);
}

/* The largest value t for which enough(sum, number) of the entries >= t is true; it must be true
 * for all entries together. A good guess below t, such as (total - need) / n, saves passes. */
template <class L, class F>
static __device__ __forceinline__ double cut_find(const L &list, double guess, F enough)
{
    double top = cut_below(list, INFINITY), mass;
    uint64_t low = 0, high = (uint64_t)__double_as_longlong(top > 0 ? top : 0) + 1;
    int number, at_high = 0, at_low;
    guess = guess < 0 ? 0 : guess > top ? top : guess;
    mass = cut_mass(list, guess, true, &at_low);
    if (enough(mass, at_low))
        low = (uint64_t)__double_as_longlong(guess);
    else
        cut_mass(list, 0, true, &at_low);
    while (at_low - at_high > 1 && high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        mass = cut_mass(list, __longlong_as_double((long long)middle), true, &number);
        bool holds = enough(mass, number);
        low = holds ? middle : low;
        high = holds ? high : middle;
        at_low = holds ? number : at_low;
        at_high = holds ? at_high : number;
    }
    return cut_below(list, __longlong_as_double((long long)high));
}

/* The fewest of n entries, at least `least` (0 or 1), whose sum reaches the need; all entries if
 * their sum does not reach it. */
template <class L>
static __device__ __forceinline__ cut cut_reach(const L &list, int n, double need, int least)
{
    int number, equal;
    double total = cut_mass(list, 0, true, &number);
    if (need > total)
        return {-0.5, 0}; /* above it lies everything that takes part */
    if (need <= 0)
        return {cut_below(list, INFINITY), least};
    double t = cut_find(list, (total - need) / n, [=](double mass, int) { return mass >= need; });
    cut_mass(list, t, true, &equal);
    double above = cut_mass(list, t, false, &number);
    int m = number == 0 && least ? 1 : 0;
    while (m < equal - number && above + m * t < need)
        m++;
    return {t, m};
}

/* The `want` largest entries, ties by index; there must be more than `want`, all finite. Bisection
 * ends where a limit has that many above it, or lies between one value and the next. */
template <class L> static __device__ __forceinline__ cut cut_largest(const L &list, int want)
{
    auto from = [&](uint64_t bits) {
        double t = __longlong_as_double((long long)bits);
        int count = 0;
        list.each([&](double v) { count += v >= t; });
        return __reduce_add_sync(~0u, count);
    };
    uint64_t low = (uint64_t)__double_as_longlong(cut_above(list, -0.5));
    uint64_t high = (uint64_t)__double_as_longlong(cut_below(list, INFINITY)) + 1;
    int above = 0; /* from high on */
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        int number = from(middle);
        if (number == want)
            return {__longlong_as_double((long long)middle - 1), 0};
        if (number > want) {
            low = middle;
        } else {
            high = middle;
            above = number;
        }
    }
    return {__longlong_as_double((long long)low), want - above};
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

#endif
