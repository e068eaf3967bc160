/*
 * oracle_cut.cuh - which of a row's entries, or of a query block's units, are kept: the k largest,
 * or the shortest prefix by value descending whose mass reaches its target. A thread block per row;
 * ties go to the lower index.
 *
 * Values become keys, unsigned integers of the same order, in shared memory or, where a row is too
 * long for it, in place of its scores. The cut is found by bisection over the keys: how much do the
 * keys below t have, in number or in mass? Sums are of what is left out, because a sum of floats is
 * as exact as it is small. As soon as few keys are in question they are collected, and only these
 * are looked at. A thread adds up floats, the thread block doubles, all in a fixed order.
 */
#ifndef LACUNA_ORACLE_CUT_CUH
#define LACUNA_ORACLE_CUT_CUH

#include "cuda/methods/oracle/oracle_common.cuh"
#include "cuda/select/wide.cuh"

#include <math.h>

#define KEY_NONE 0xffffffffu /* of what takes no part: above all limits */
#define KEY_STEP (4 * WIDE)  /* keys that the thread block reads at once; lists are padded to it */
#define KEY_FEW 4096         /* that are collected */
#define KEY_RANKED 256       /* of these, that are compared each with each */

/* Unsigned integers with the order of the floats. */
static __device__ __forceinline__ uint32_t ordered_bits(float x)
{
    uint32_t bits = __float_as_uint(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

struct key_sum {
    int count;
    double mass;
};

/* Sums over the thread block; all threads get them. */
static __device__ key_sum wide_both(int count, double mass)
{
    __shared__ double masses[32];
    __shared__ int counts[32];
    count = __reduce_add_sync(~0u, count);
    mass = warp_add(mass);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) {
        counts[threadIdx.x >> 5] = count;
        masses[threadIdx.x >> 5] = mass;
    }
    __syncthreads();
    return {__reduce_add_sync(~0u, counts[threadIdx.x & 31]), warp_add(masses[threadIdx.x & 31])};
}

static __device__ float wide_most(float x)
{
    __shared__ float part[32];
    x = warp_max(x);
    __syncthreads();
    if ((threadIdx.x & 31) == 0)
        part[threadIdx.x >> 5] = x;
    __syncthreads();
    return warp_max(part[threadIdx.x & 31]);
}

/* f(four values, index of the first) for n values, by all threads; from n on whatever is there. A
 * thread has 16 values on their way at a time, and none of a batch is written before it is read. */
template <class F>
static __device__ __forceinline__ void each_value(const float *values, int n, F f)
{
    for (int x0 = 4 * (int)threadIdx.x; x0 < n; x0 += 4 * KEY_STEP) {
        float4 v[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (x0 + i * KEY_STEP < n)
                v[i] = *(const float4 *)(values + x0 + i * KEY_STEP);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (x0 + i * KEY_STEP < n)
                f(v[i], x0 + i * KEY_STEP);
    }
}

/* n keys, a multiple of KEY_STEP. MASS: they are the bits of floats >= 0, which are summed. */
template <bool MASS> struct key_list {
    const uint32_t *keys;
    int n;

    /* f(key, index) four at a time by each thread. */
    template <class F> __device__ __forceinline__ void each(F f) const
    {
        for (int x = 4 * (int)threadIdx.x; x < n; x += KEY_STEP) {
            uint4 key = *(const uint4 *)(keys + x);
            f(key.x, x);
            f(key.y, x + 1);
            f(key.z, x + 2);
            f(key.w, x + 3);
        }
    }

    __device__ __forceinline__ key_sum below(uint32_t t) const
    {
        float sum[4] = {0, 0, 0, 0};
        int count = 0;
#pragma unroll 4
        for (int x = 4 * (int)threadIdx.x; x < n; x += KEY_STEP) {
            uint4 four = *(const uint4 *)(keys + x);
            const uint32_t key[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int e = 0; e < 4; e++) {
                count += key[e] < t;
                if (MASS)
                    sum[e] += key[e] < t ? __uint_as_float(key[e]) : 0;
            }
        }
        return wide_both(count, (double)(sum[0] + sum[1]) + (double)(sum[2] + sum[3]));
    }
};

/* The keys in [low, high) are in question: what is below `low` may be left out, what is below
 * `high` may not. */
struct key_range {
    uint32_t low, high;
    key_sum at_low, at_high;
};

template <bool MASS> static __device__ __forceinline__ bool spares(const key_sum &s, double spare)
{
    return MASS ? s.mass <= spare : (double)s.count <= spare;
}

/* Narrow the range until at most `few` keys are in it, of which the list has all; `base` is below
 * all of the list. */
template <bool MASS>
static __device__ __forceinline__ void narrow(const key_list<MASS> &list, const key_sum &base,
                                              double spare, int few, key_range *r)
{
    while (r->high - r->low > 1 && r->at_high.count - r->at_low.count > few) {
        uint32_t middle = r->low + (r->high - r->low) / 2;
        key_sum s = list.below(middle);
        s.count += base.count;
        s.mass += base.mass;
        if (spares<MASS>(s, spare)) {
            r->low = middle;
            r->at_low = s;
        } else {
            r->high = middle;
            r->at_high = s;
        }
    }
}

/* The keys in the range, in a fixed order, into few [room]; no more than that. */
template <bool MASS>
static __device__ __forceinline__ void collect(const key_list<MASS> &list, const key_range &r,
                                               uint32_t *few, int room)
{
    int count = 0, all;
    list.each([&](uint32_t key, int) { count += key >= r.low && key < r.high; });
    int at = wide_before(count, &all);
    list.each([&](uint32_t key, int) {
        if (key >= r.low && key < r.high)
            few[at++] = key;
    });
    for (int x = all + (int)threadIdx.x; x < room; x += WIDE)
        few[x] = KEY_NONE;
    __syncthreads();
}

/* Narrow the range to the keys of one value: the largest key below which no more than `spare` is.
 * keys [KEY_RANKED] are those in the range. */
template <bool MASS>
static __device__ __forceinline__ void rank_keys(const uint32_t *keys, double spare, key_range *r)
{
    __shared__ uint32_t best;
    __shared__ int writer;
    __shared__ int found_count;
    __shared__ double found_mass;
    uint32_t own = KEY_NONE;
    key_sum below = r->at_low;
    if (threadIdx.x == 0) {
        best = r->low;
        writer = WIDE;
    }
    __syncthreads();
    if (threadIdx.x < KEY_RANKED && (own = keys[threadIdx.x]) != KEY_NONE) {
        float sum = 0;
#pragma unroll 4
        for (int x = 0; x < KEY_RANKED; x++) {
            uint32_t key = keys[x];
            below.count += key < own;
            if (MASS)
                sum += key < own ? __uint_as_float(key) : 0;
        }
        below.mass += (double)sum;
        if (spares<MASS>(below, spare))
            atomicMax(&best, own);
    }
    __syncthreads();
    bool last = own == best && own != KEY_NONE;
    if (last)
        atomicMin(&writer, (int)threadIdx.x);
    __syncthreads();
    if ((int)threadIdx.x == writer) {
        found_count = below.count;
        found_mass = below.mass;
    }
    int equal = __syncthreads_count(last);
    r->low = best;
    r->high = best + 1;
    r->at_low = {found_count, found_mass};
    r->at_high.count = found_count + equal;
}

/* What is kept: the keys >= from but for KEY_NONE, and the first m of those equal to `tie`. */
struct key_cut {
    uint32_t from, tie;
    int m;
};

/* Leave out as much as `spare`, in number or in mass, the smallest first, equal ones from the back.
 * all: of the list; `high` is above every key but KEY_NONE. */
template <bool MASS>
static __device__ __forceinline__ key_cut find_cut(const key_list<MASS> &list, double spare,
                                                   const key_sum &all, uint32_t high, uint32_t *few)
{
    key_range r = {0, high, {0, 0}, all};
    if (spare < 0)
        return {0, KEY_NONE, 0};
    if (spares<MASS>(all, spare))
        return {KEY_NONE, KEY_NONE, 0};
    if (MASS) { /* all values below this one together have no more than half of what is spare */
        r.low = __float_as_uint((float)(spare / all.count / 2));
        r.at_low = list.below(r.low);
    }
    narrow(list, {0, 0}, spare, KEY_FEW, &r);
    if (r.at_high.count - r.at_low.count <= KEY_FEW) {
        key_sum base = r.at_low;
        collect(list, r, few, KEY_FEW);
        narrow(key_list<MASS>{few, KEY_FEW}, base, spare, KEY_RANKED, &r);
        if (r.at_high.count - r.at_low.count <= KEY_RANKED) {
            __shared__ uint32_t last[KEY_RANKED];
            collect(key_list<MASS>{few, KEY_FEW}, r, last, KEY_RANKED);
            rank_keys<MASS>(last, spare, &r);
        }
    }
    int equal = r.at_high.count - r.at_low.count;
    if (equal <= 1)
        return {r.low, KEY_NONE, 0};
    double value = MASS ? (double)__uint_as_float(r.low) : 1, out = 0;
    if (value > 0)
        out = floor((spare - (MASS ? r.at_low.mass : r.at_low.count)) / value);
    return {r.high, r.low, equal - (int)fmin(out, MASS ? equal - 1.0 : equal)};
}

/* Bits of the kept keys, and of the units [lo, hi). `seen` ties lie before the list; returns those
 * up to its end. */
template <bool MASS>
static __device__ __forceinline__ int write_kept(const oracle_args &a, int64_t row,
                                                 const key_list<MASS> &list, const key_cut &cut,
                                                 int lo, int hi, int seen = 0)
{
    int lane = threadIdx.x & 31;
    for (int x = 4 * (int)threadIdx.x; x - 4 * (int)threadIdx.x < a.words * 32; x += KEY_STEP) {
        uint4 four = x < list.n ? *(const uint4 *)(list.keys + x)
                                : make_uint4(KEY_NONE, KEY_NONE, KEY_NONE, KEY_NONE);
        const uint32_t key[4] = {four.x, four.y, four.z, four.w};
        uint32_t bits = 0;
        int ties = 0, before = 0, all = 0;
#pragma unroll
        for (int e = 0; e < 4; e++)
            ties += key[e] == cut.tie;
        if (cut.m > 0) /* for all threads alike */
            before = seen + wide_before(ties, &all);
        seen += all;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            bool tie = cut.m > 0 && key[e] == cut.tie;
            bool keep = (key[e] >= cut.from && key[e] != KEY_NONE) || (tie && before < cut.m) ||
                        (x + e >= lo && x + e < hi);
            before += tie;
            bits |= (uint32_t)keep << e;
        }
        bits <<= 4 * (lane & 7);
#pragma unroll
        for (int step = 1; step < 8; step *= 2)
            bits |= __shfl_xor_sync(~0u, bits, step);
        if ((lane & 7) == 0 && x / 32 < a.words)
            a.map[row * a.words + x / 32] = bits;
    }
    return seen;
}

/* share_resolve() of core/opt.c. */
static __device__ __forceinline__ double keys_wanted(const struct oracle_rule &r, int of)
{
    if (!r.k_share)
        return fmin(r.k, (double)of);
    double x = r.k * (double)of, near = rint(x);
    x = fabs(x - near) <= 1e-9 * fmax(1.0, near) ? near : ceil(x);
    return fmin(x, (double)of);
}

/* The keys of n values, of which those in [lo, hi) take no part: in shared memory, or in place of
 * the values. */
template <bool MASS, class F>
static __device__ __forceinline__ key_list<MASS> make_keys(float *values, uint32_t *shared, int n,
                                                           int lo, int hi, F key_of)
{
    uint32_t *to = shared ? shared : (uint32_t *)values;
    int end = (n + KEY_STEP - 1) / KEY_STEP * KEY_STEP;
    each_value(values, end, [&](float4 v, int x) {
        auto key = [&](float y, int at) {
            return at < n && !(at >= lo && at < hi) ? key_of(y) : KEY_NONE;
        };
        *(uint4 *)(to + x) =
            make_uint4(key(v.x, x), key(v.y, x + 1), key(v.z, x + 2), key(v.w, x + 3));
    });
    __syncthreads();
    return {to, end};
}

static __device__ __forceinline__ float largest_score(const float *s, int n)
{
    float top = -INFINITY;
    each_value(s, n, [&](float4 v, int x) {
        top = fmaxf(top, v.x);
        top = fmaxf(top, x + 1 < n ? v.y : top);
        top = fmaxf(top, x + 2 < n ? v.z : top);
        top = fmaxf(top, x + 3 < n ? v.w : top);
    });
    return wide_most(top);
}

/* A row of scores, by count. */
static __device__ __forceinline__ void choose_largest(const oracle_args &a, int64_t row, float *s,
                                                      uint32_t *shared, uint32_t *few, int n,
                                                      int lo, int hi)
{
    key_list<false> list = make_keys<false>(s, shared, n, lo, hi, ordered_bits);
    int free = n - (hi - lo);
    double want = fmax(keys_wanted(a.rule, n) - (hi - lo), 0.0);
    key_cut cut = find_cut<false>(list, free - want, {free, 0}, KEY_NONE, few);
    write_kept(a, row, list, cut, lo, hi);
}

/* A row of scores, by mass: relative to the largest, whose e^0 is 1. */
static __device__ __forceinline__ void choose_mass(const oracle_args &a, int64_t row, float *s,
                                                   uint32_t *shared, uint32_t *few, int n, int lo,
                                                   int hi)
{
    float top = largest_score(s, n);
    double given = 0;
    for (int x = lo + (int)threadIdx.x; x < hi; x += WIDE)
        given += (double)oracle_exp(a, s[x], top);
    given = lo < hi ? wide_add(given) : 0;
    __syncthreads();
    key_list<true> list = make_keys<true>(
        s, shared, n, lo, hi, [&](float x) { return __float_as_uint(oracle_exp(a, x, top)); });
    key_sum all = list.below(KEY_NONE);
    key_cut cut = find_cut<true>(list, (1 - a.rule.alpha) * (all.mass + given), all,
                                 __float_as_uint(1.0f) + 1, few);
    write_kept(a, row, list, cut, lo, hi);
}

/* Shared memory of a thread block: few collected keys, and the keys of a row if they fit. */
extern __shared__ __align__(16) uint32_t key_memory[];

static __device__ __forceinline__ uint32_t *shared_keys(const oracle_args &a)
{
    return a.in_shared ? key_memory + KEY_FEW : NULL;
}

/* Grid: the rows of the launch's tiles. */
static __global__ void __launch_bounds__(WIDE) oracle_choose_rows(const oracle_args a)
{
    int tile = a.tile0 + (int)blockIdx.x / ORACLE_TILE, lo, hi;
    int64_t i = (int64_t)(tile % a.row_tiles) * ORACLE_TILE + blockIdx.x % ORACLE_TILE;
    if (i >= a.nq)
        return;
    int64_t row = (int64_t)(tile / a.row_tiles) * a.nq + i;
    float *s = a.score + blockIdx.x * a.pitch;
    oracle_forced(a, i, i + 1, &lo, &hi);
    if (a.rule.by == ORACLE_TOPK)
        choose_largest(a, row, s, shared_keys(a), key_memory, oracle_limit(a, i), lo, hi);
    else
        choose_mass(a, row, s, shared_keys(a), key_memory, oracle_limit(a, i), lo, hi);
}

/* Normalisers of the rows of the launch's tiles, a thread block each. */
static __global__ void __launch_bounds__(WIDE) oracle_row_norms(const oracle_args a)
{
    int64_t i = (a.tile0 + blockIdx.x / ORACLE_TILE) % a.row_tiles * (int64_t)ORACLE_TILE +
                blockIdx.x % ORACLE_TILE;
    int n = i < a.nq ? oracle_limit(a, i) : 0;
    const float *s = a.score + blockIdx.x * a.pitch;
    float top = largest_score(s, n), sum = 0;
    each_value(s, n, [&](float4 v, int x) {
        sum += oracle_exp(a, v.x, top);
        sum += x + 1 < n ? oracle_exp(a, v.y, top) : 0;
        sum += x + 2 < n ? oracle_exp(a, v.z, top) : 0;
        sum += x + 3 < n ? oracle_exp(a, v.w, top) : 0;
    });
    double all = wide_add((double)sum);
    if (threadIdx.x == 0)
        a.norm[blockIdx.x] = n > 0 ? make_float2(top, (float)(1 / all)) : make_float2(0, 0);
}

/* Rows of [r0, r1) that see no key: the first ones, where there are more queries than keys. */
static __device__ __forceinline__ int oracle_blind(const oracle_args &a, int64_t r0, int64_t r1)
{
    return (int)(a.causal ? min(max(a.nq - a.nk - r0, (int64_t)0), r1 - r0) : 0);
}

/* Grid: the query blocks of the launch's tiles. */
static __global__ void __launch_bounds__(WIDE) oracle_choose_units(const oracle_args a)
{
    int tile = a.tile0 + (int)blockIdx.x / a.per_tile, block = (int)blockIdx.x % a.per_tile, lo, hi;
    int64_t r0 = (int64_t)(tile % a.row_tiles) * ORACLE_TILE + (int64_t)block * a.bq;
    double given = 0;
    if (r0 >= a.nq)
        return;
    int64_t r1 = min(r0 + a.bq, a.nq), row = (int64_t)(tile / a.row_tiles) * a.groups + r0 / a.bq;
    float *mass = a.mass + blockIdx.x * a.mass_pitch;
    int n = (int)((oracle_limit(a, r1 - 1) + a.bk - 1) / a.bk);
    oracle_forced(a, r0, r1, &lo, &hi);
    for (int x = lo + (int)threadIdx.x; x < hi; x += WIDE)
        given += (double)mass[x];
    given = lo < hi ? wide_add(given) : 0;
    __syncthreads();
    key_list<true> list = make_keys<true>(mass, shared_keys(a), n, lo, hi,
                                          [](float x) { return __float_as_uint(x); });
    key_sum all = list.below(KEY_NONE);
    double spare = (1 - a.rule.alpha) * (all.mass + given) - a.rule.alpha * oracle_blind(a, r0, r1);
    key_cut cut =
        find_cut<true>(list, spare, all, __float_as_uint(2.0f * ORACLE_TILE) + 1, key_memory);
    write_kept(a, row, list, cut, lo, hi);
}

/* ---- one choice for a head ------------------------------------------------------------------ */

/* Masses of a head's query blocks, row after row, become keys; those that take no part, and what is
 * kept in advance, leave the list. */
struct head_sums {
    double given;
    int allowed, forced; /* units that some row sees; those kept in advance */
};
static __device__ head_sums head_keys(const oracle_args &a, float *mass, int rows)
{
    head_sums s = {0, 0, 0};
    for (int g = 0; g < rows; g++) {
        int64_t r0 = (int64_t)g * a.bq, r1 = min(r0 + a.bq, a.nq);
        int n = 0, lo = 0, hi = 0;
        if (r0 < a.nq) {
            n = (int)((oracle_limit(a, r1 - 1) + a.bk - 1) / a.bk);
            oracle_forced(a, r0, r1, &lo, &hi);
        }
        for (int64_t x = threadIdx.x; x < a.mass_pitch; x += WIDE) {
            float *at = mass + g * a.mass_pitch + x, value = *at;
            bool forced = x >= lo && x < hi, in = x < n && !forced;
            s.given += forced ? value : 0;
            *(uint32_t *)at = in ? __float_as_uint(value) : KEY_NONE;
        }
        s.allowed += n;
        s.forced += hi - lo;
    }
    s.given = wide_add(s.given);
    __syncthreads();
    return s;
}

/* Head head0 + blockIdx.x, whose query blocks have one cut; ties go to the earlier query block. */
static __global__ void __launch_bounds__(WIDE) oracle_choose_head(const oracle_args a, int head0)
{
    int rows = a.row_tiles * a.per_tile, seen = 0;
    int64_t head = head0 + blockIdx.x, n = rows * a.mass_pitch;
    float *mass = a.mass + blockIdx.x * n;
    const uint32_t *keys = (const uint32_t *)mass;
    head_sums s = head_keys(a, mass, rows);
    key_cut cut;
    if (a.rule.by == ORACLE_TOPK) {
        int free = s.allowed - s.forced;
        double want = fmax(keys_wanted(a.rule, s.allowed) - s.forced, 0.0);
        cut = find_cut<false>({keys, (int)n}, free - want, {free, 0}, KEY_NONE, key_memory);
    } else {
        key_list<true> list = {keys, (int)n};
        key_sum all = list.below(KEY_NONE);
        cut = find_cut<true>(list, (1 - a.rule.alpha) * (all.mass + s.given), all,
                             __float_as_uint(2.0f * ORACLE_TILE) + 1, key_memory);
    }
    for (int g = 0; g < a.groups; g++) {
        int64_t r0 = (int64_t)g * a.bq, r1 = min(r0 + a.bq, a.nq);
        int lo, hi;
        oracle_forced(a, r0, r1, &lo, &hi);
        key_list<true> row = {keys + g * a.mass_pitch, (int)a.mass_pitch};
        seen = write_kept(a, head * a.groups + g, row, cut, lo, hi, seen);
    }
}

#endif
