/*
 * oracle.cu - the oracle's masks by count and by mass (sim/methods/oracle/oracle.c has the rules
 * and the reference): entries of every row, or units of every query block.
 *
 * Some tiles of rows at a time, whose scores against all keys fit into half of L2: scores from bf16
 * products summed in float; of units the masses; then a thread block per row, or per query block,
 * finds its cut by bisection over unsigned integers of
 * the values' order, in shared memory or, where a row is too long for it, in place of its scores.
 * Sums are of what is left out, because a sum of floats is as exact as it is small; a thread adds
 * up floats, the thread block doubles, all in a fixed order. As soon as few keys are in question
 * they are collected, and only these are looked at. Ties go to the lower index. What an oracle
 * costs says nothing about a method, so the passes are simple ones.
 *
 * One Q K^T, 4 N^2 bytes written and read per head.
 */
#include "cuda/mma.cuh"
#include "cuda/select/method.cuh"
#include "cuda/select/wide.cuh"

#define ORACLE_TILE 128 /* rows and keys of a tile of scores */

/* Kernels work on a range of tiles of ORACLE_TILE rows; tile head * row_tiles + t has the rows from
 * t * ORACLE_TILE on. */
struct oracle_args : head_args {
    int64_t pitch;               /* floats of a row of scores */
    int row_tiles, bq, per_tile; /* per_tile: query blocks of a tile */
    int64_t bk;
    struct oracle_rule rule;
    int tile0;    /* first tile of the launch */
    float *score; /* [tiles of a launch][ORACLE_TILE][pitch] q . k, not scaled */
    float2 *norm; /* [tiles][ORACLE_TILE] largest score of a row; 1 / sum of e^(scale
                   * (s - largest)), 0 for a row without a key */
    float *mass;  /* [tiles][per_tile][mass_pitch] of units */
    int64_t mass_pitch;
    int in_shared; /* the keys of a row fit into shared memory */
    int32_t *ties; /* [heads] what core/rules.h says; NULL: not counted */
};

/* Keys that row i sees: [0, limit). */
static __device__ __forceinline__ int oracle_limit(const oracle_args &a, int64_t i)
{
    int64_t n = i + 1 + a.nk - a.nq;
    return (int)(!a.causal || n > a.nk ? a.nk : n < 0 ? 0 : n);
}

/* e^(scale (s - top)): the difference is exact where it matters, so that p is right to 1e-6 of
 * itself however large the scores are. */
static __device__ __forceinline__ float oracle_exp(const oracle_args &a, float s, float top)
{
    return exp2f((s - top) * a.scale_log2);
}

/* Units [lo, hi) of the rows [r0, r1) that are kept in advance. */
static __device__ __forceinline__ void oracle_forced(const oracle_args &a, int64_t r0, int64_t r1,
                                                     int *lo, int *hi)
{
    int64_t shift = a.nk - a.nq, n = a.rule.forced_n, from = 0, to = 0;
    if (a.rule.forced == ORACLE_DIAG) {
        from = r0 + shift;
        to = r1 + shift;
    } else if (a.rule.forced == ORACLE_SINK) {
        to = n;
    } else if (a.rule.forced == ORACLE_WINDOW) {
        from = r0 + shift - n + 1;
        to = r1 + shift + (a.causal ? 0 : n - 1);
    }
    from = max(from, (int64_t)0);
    to = min(to, (int64_t)oracle_limit(a, r1 - 1));
    *lo = (int)(from < to ? from / a.bk : 0);
    *hi = (int)(from < to ? (to + a.bk - 1) / a.bk : 0);
}

/* ---- scores --------------------------------------------------------------------------------- */

#define ORACLE_THREADS 256

/* One tile of keys (blockIdx.x) of one tile of rows (blockIdx.y). Warp w: rows of quarter w % 4,
 * keys of half w / 4. Tiles that no row sees are not written. */
template <int D>
static __global__ void __launch_bounds__(ORACLE_THREADS, 2) oracle_score_tiles(const oracle_args a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    int tile = a.tile0 + (int)blockIdx.y, head = tile / a.row_tiles;
    int64_t r0 = (int64_t)(tile % a.row_tiles) * ORACLE_TILE,
            j0 = (int64_t)blockIdx.x * ORACLE_TILE;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    uint32_t rows = shared_addr(shared), keys = rows + ORACLE_TILE * D * 2;
    float acc[2][8][4] = {{{0}}};

    if (j0 >= oracle_limit(a, min(r0 + ORACLE_TILE, a.nq) - 1))
        return;
    copy_tile<D, ORACLE_TILE, ORACLE_THREADS>(rows, a.q + head * a.nq * (D / 8), r0, a.nq);
    copy_tile<D, ORACLE_TILE, ORACLE_THREADS>(keys, a.k + head / a.per_kv * a.nk * (D / 8), j0,
                                              a.nk);
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    add_scores<D, 2, 8>(rows, warp % 4 * 32, keys, warp / 4 * 64, acc);
    float *to = a.score +
                ((int64_t)blockIdx.y * ORACLE_TILE + warp % 4 * 32 + (lane >> 2)) * a.pitch + j0 +
                warp / 4 * 64 + 2 * (lane & 3);
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                *(float2 *)(to + (16 * m + 8 * half) * a.pitch + 8 * n) =
                    make_float2(acc[m][n][2 * half], acc[m][n][2 * half + 1]);
}

/* Sums of p over the units of query block blockIdx.y: a thread adds up columns, then the units put
 * together those of their keys. */
static __global__ void __launch_bounds__(ORACLE_THREADS) oracle_unit_masses(const oracle_args a)
{
    __shared__ double part[ORACLE_THREADS];
    int tile = a.tile0 + (int)blockIdx.y / a.per_tile, block = (int)blockIdx.y % a.per_tile;
    int64_t r0 = (int64_t)(tile % a.row_tiles) * ORACLE_TILE + (int64_t)block * a.bq;
    int64_t r1 = min(r0 + a.bq, a.nq),
            at = (int64_t)(blockIdx.y / a.per_tile) * ORACLE_TILE + block * a.bq;
    int wide = (int)min(a.bk, (int64_t)ORACLE_THREADS), units = ORACLE_THREADS / wide;
    int64_t j0 = (int64_t)blockIdx.x * units * a.bk, j1 = min(j0 + units * a.bk, a.nk);
    const float *score = a.score + at * a.pitch;
    const float2 *norm = a.norm + at;
    int rows = (int)(r1 - r0), first = oracle_limit(a, r0);
    double sum = 0;
    for (int64_t j = j0 + threadIdx.x; j < j1; j += ORACLE_THREADS) {
        /* Row r of the block sees key j from here on. */
        int from = !a.causal || j < first ? 0 : (int)(j - (r0 + a.nk - a.nq));
        float part = 0;
#pragma unroll 8
        for (int r = from; r < rows; r++)
            part += oracle_exp(a, score[r * a.pitch + j], norm[r].x) * norm[r].y;
        sum += (double)part;
    }
    part[threadIdx.x] = sum;
    __syncthreads();
    int64_t unit = (int64_t)blockIdx.x * units + threadIdx.x;
    if ((int)threadIdx.x >= units || unit >= a.units)
        return;
    sum = 0;
    for (int e = 0; e < wide; e++)
        sum += part[threadIdx.x * wide + e];
    a.mass[(int64_t)blockIdx.y * a.mass_pitch + unit] = (float)sum;
}

/* ---- cuts ----------------------------------------------------------------------------------- */

#define KEY_NONE 0xffffffffu /* of what takes no part: above all limits */
#define KEY_STEP (4 * WIDE)  /* keys that the thread block reads at once; lists are padded to it */
#define KEY_FEW 4096         /* that are collected */
#define KEY_RANKED 256       /* of these, that are compared each with each */

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

/* What is kept: the keys >= from but for KEY_NONE, and the first m of those equal to `tie`. at: the
 * smallest key that is kept, or of which some are, KEY_NONE if all or none are; off: how far what
 * is left out is from what is spare, with or without one key more. */
struct key_cut {
    uint32_t from, tie;
    int m;
    uint32_t at;
    double off;
};

/* Leave out as much as `spare`, in number or in mass, the smallest first, equal ones from the back.
 * all: of the list; `high` is above every key but KEY_NONE. */
template <bool MASS>
static __device__ __forceinline__ key_cut find_cut(const key_list<MASS> &list, double spare,
                                                   const key_sum &all, uint32_t high, uint32_t *few)
{
    key_range r = {0, high, {0, 0}, all};
    if (spare < 0)
        return {0, KEY_NONE, 0, KEY_NONE, -spare};
    if (spares<MASS>(all, spare))
        return {KEY_NONE, KEY_NONE, 0, KEY_NONE, spare - all.mass};
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
    double value = MASS ? (double)__uint_as_float(r.low) : 1, out = 0;
    double left = spare - (MASS ? r.at_low.mass : r.at_low.count);
    if (equal > 1 && value > 0)
        out = fmin(floor(left / value), MASS ? equal - 1.0 : equal);
    double off = fmin(fabs(left - out * value), fabs((out + 1) * value - left));
    if (equal <= 1)
        return {r.low, KEY_NONE, 0, r.low, off};
    return {r.high, r.low, equal - (int)out, r.low, off};
}

/* The choice of a query block of the head whose mass is `all`. */
static __device__ __forceinline__ void count_tie(const oracle_args &a, int64_t head,
                                                 const key_list<true> &list, const key_cut &cut,
                                                 double all, float top)
{
    double near = ORACLE_TIE * (1 + fabs((double)top * a.scale_log2 * M_LN2));
    bool tie = cut.off < near * all;
    if (!tie && cut.at != KEY_NONE) { /* keys as large as the last one */
        float value = __uint_as_float(cut.at), by = (float)near * value;
        tie = list.below(__float_as_uint(value + by) + 1).count -
                  list.below(__float_as_uint(fmaxf(value - by, 0))).count >
              1;
    }
    if (threadIdx.x == 0 && tie)
        atomicAdd(a.ties + head, 1);
}

/* Bits of the kept keys, and of the units [lo, hi). `seen` ties lie before the list; returns those
 * up to its end. */
template <bool MASS>
static __device__ __forceinline__ int write_kept(const oracle_args &a, int64_t row,
                                                 const key_list<MASS> &list, const key_cut &cut,
                                                 int lo, int hi, int seen = 0)
{
    int lane = threadIdx.x & 31;
    for (int x = 4 * (int)threadIdx.x; x - 4 * (int)threadIdx.x < a.map.words * 32; x += KEY_STEP) {
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
        if ((lane & 7) == 0 && x / 32 < a.map.words)
            a.map.map[row * a.map.words + x / 32] = bits;
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
    return wide_max(top);
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
    count_tie(a, row / a.nq, list, cut, all.mass + given, top);
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
    const float2 *norm = a.norm + blockIdx.x / a.per_tile * ORACLE_TILE + block * a.bq;
    count_tie(a, row / a.groups, list, cut, (double)(r1 - r0), norm[r1 - r0 - 1].x);
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

/* ---- launches ------------------------------------------------------------------------------- */

struct oracle_state : oracle_args {
    int tiles;   /* of a launch */
    int at_once; /* heads that are chosen for at once, with one cut each; 0: rows, or blocks */
};

#define SHARED_BYTES (220 * 1024) /* of a thread block, beside what it declares */

/* Values of a row, padded; bytes of shared memory for a thread block that has them there. */
static int64_t row_values(int64_t n)
{
    return ceil_div(n, KEY_STEP) * KEY_STEP;
}

/* From the scores of n tiles to their rows of the map. */
static int launch_choice(struct gpu *g, const oracle_args &a, int n, struct err *err)
{
    int64_t each = a.bk < ORACLE_THREADS ? ORACLE_THREADS / a.bk : 1; /* units of a thread block */
    int64_t smem = 4 * (KEY_FEW + (a.in_shared ? row_values(a.units) : 0));
    if (a.bq == 1 && a.bk == 1 && !a.rule.head_wide) {
        PASS_ON_CU(err,
                   run_kernel(g->stream, oracle_choose_rows, (n * ORACLE_TILE), WIDE, smem, a));
        return 0;
    }
    PASS_ON_CU(err, run_kernel(g->stream, oracle_row_norms, (n * ORACLE_TILE), WIDE, 0, a));
    PASS_ON_CU(err,
               run_kernel(g->stream, oracle_unit_masses,
                          dim3(ceil_div(a.units, each), (n * a.per_tile)), ORACLE_THREADS, 0, a));
    if (a.rule.head_wide)
        return 0;
    return CU_STATUS(err,
                     run_kernel(g->stream, oracle_choose_units, (n * a.per_tile), WIDE, smem, a));
}

/* The tiles [from, to); with head-wide choices their masses follow each other. */
static int launch_tiles(struct gpu *g, const oracle_state *s, int from, int to, struct err *err)
{
    oracle_args a = *s;
    int smem = 2 * ORACLE_TILE * a.d * 2;
    for (a.tile0 = from; a.tile0 < to; a.tile0 += s->tiles) {
        int n = MIN(to - a.tile0, s->tiles);
        if (s->at_once)
            a.mass = s->mass + (a.tile0 - from) * a.per_tile * a.mass_pitch;
        PASS_ON_CU(err, run_kernel(g->stream,
                                   a.d == 128 ? oracle_score_tiles<128> : oracle_score_tiles<64>,
                                   dim3(ceil_div(a.nk, ORACLE_TILE), n), ORACLE_THREADS, smem, a));
        PASS_ON(launch_choice(g, a, n, err));
    }
    return 0;
}

static int launch_heads(struct gpu *g, const oracle_state *s, struct err *err)
{
    const oracle_args &a = *s;
    int smem = 4 * KEY_FEW;
    for (int h = 0; h < a.heads; h += s->at_once) {
        int n = MIN(a.heads - h, s->at_once);
        PASS_ON(launch_tiles(g, s, h * a.row_tiles, (h + n) * a.row_tiles, err));
        PASS_ON_CU(err, run_kernel(g->stream, oracle_choose_head, n, WIDE, smem, a, h));
    }
    return 0;
}

static int launch(struct gpu *g, const struct select_job *job, struct err *err)
{
    const oracle_state *s = (const oracle_state *)job->state;
    if (s->at_once)
        return launch_heads(g, s, err);
    PASS_ON(s->ties ? gpu_zero(g, s->ties, s->heads * 4LL, err) : 0);
    return launch_tiles(g, s, 0, s->heads * s->row_tiles, err);
}

/* ---- the table's functions ------------------------------------------------------------------ */

#define HEAD_MASSES ((int64_t)1 << 29) /* of a head with one cut */
#define MASS_BYTES ((int64_t)1 << 30)  /* of some heads */

/* Masses of a head, padded. */
static int64_t head_masses(const struct select_problem *p)
{
    const struct oracle_rule *r = &select_rule(p, 0)->oracle;
    int64_t rows = ceil_div(p->nq, ORACLE_TILE) * (ORACLE_TILE / r->bq);
    return rows * row_values(ceil_div(p->nk, r->bk));
}

static bool fits(const struct select_problem *p, char why[160])
{
    const struct oracle_rule *r = &select_rule(p, 0)->oracle;
    bool in_tile = r->bq == p->nq ? r->bq <= ORACLE_TILE : ORACLE_TILE % r->bq == 0;
    if (!dims_fit(p, why))
        return false;
    if (!(p->scale > 0))
        return refuse(why, "the GPU side has positive scales");
    if (r->by == ORACLE_MASS && r->alpha > 1 - 1e-5)
        return refuse(why, "the GPU side has alpha up to 1 - 1e-5: beyond it rounding decides");
    if (!in_tile)
        return refuse(why, "the GPU side has units of 1, 2, 4, ... 128 rows, not %lld",
                      (long long)r->bq);
    if (r->head_wide && head_masses(p) > HEAD_MASSES)
        return refuse(why, "the GPU side of one choice for a head has up to %lld units",
                      (long long)HEAD_MASSES);
    return r->bk == 1 || r->bq >= 16 || r->bq >= p->nq ||
           refuse(why, "the GPU side has units of several keys from 16 rows on");
}

/* Tiles whose scores take half of L2, at least two so that every multiprocessor has a row. */
static int tiles_at_once(const struct gpu *g, const oracle_args &a)
{
    int64_t tile = ORACLE_TILE * a.pitch * 4, n = g->l2_bytes / 2 / tile, all;
    all = (int64_t)a.heads * a.row_tiles;
    n = n < 2 ? 2 : n < 256 ? n : 256;
    return (int)(n < all ? n : all);
}

static int init(struct gpu *g, struct select_job *job, struct err *err)
{
    const struct oracle_rule *r = &select_rule(&job->problem, 0)->oracle;
    oracle_state *s = NULL;
    int64_t masses;

    PASS_ON(method_init(g, job, r->bq, r->bk, &s, err));
    s->rule = *r;
    s->bq = (int)r->bq;
    s->bk = r->bk;
    s->pitch = row_values(s->nk);
    s->row_tiles = (int)ceil_div(s->nq, ORACLE_TILE);
    s->per_tile = ORACLE_TILE / s->bq;
    s->mass_pitch = row_values(s->units);
    s->in_shared = 4 * (KEY_FEW + s->mass_pitch) <= SHARED_BYTES;
    s->tiles = tiles_at_once(g, *s);
    PASS_ON(take(g, err, &s->score, (int64_t)s->tiles * ORACLE_TILE * s->pitch));
    if (r->by == ORACLE_MASS && !r->head_wide) {
        PASS_ON(take(g, err, &s->ties, s->heads));
        job->lists.own = s->ties;
        job->lists.own_bytes = sizeof *s->ties;
    }
    if (r->bq == 1 && r->bk == 1 && !r->head_wide)
        return 0;
    masses = (int64_t)s->tiles * s->per_tile * s->mass_pitch;
    if (r->head_wide) {
        int64_t head = head_masses(&job->problem);
        s->at_once = (int)MAX(MIN(MASS_BYTES / 4 / head, s->heads), 1);
        masses = s->at_once * head;
    }
    return take(g, err, &s->norm, (int64_t)s->tiles * ORACLE_TILE, &s->mass, masses);
}

extern "C" const struct select_method select_oracle = {
    "oracle", fits, init, launch, NULL, NULL, false, NULL,
};
