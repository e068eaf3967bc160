/*
 * fg_pooled_sm90.cu - FG-Attn's mode=pooled on Hopper, by the rules that compare with a number: the
 * scores of a group's mean query are multiplied twice and stored never. One pass finds the
 * log-sum-exp of each group, the next compares scores with the group's number and stores bits.
 *
 * Tile: 128 mean queries x 128 keys. Two warpgroups have 64 mean queries each, one warp copies
 * keys; the terms of the mean queries stay in shared memory. The 64 are as few groups as possible
 * of several heads that have the same keys, because causal groups of one head see fewer keys each
 * than the last. The warpgroups take turns at the tensor cores: else both multiply at once, and
 * then both reduce at once.
 *
 * All tiles in a row, cut into as many spans of equal cost as there are multiprocessors, are the
 * thread blocks' work: pieces of one pair of 64 mean queries each.
 */
#include "cuda/methods/fg_pooled.cuh"
#include "cuda/device.h"
#include "cuda/wgmma.cuh"

#define KEYS 128
#define ROWS 64 /* mean queries of a warpgroup */
#define STAGES 3
#define THREADS (256 + 32)
#define MOST_TOGETHER 8 /* heads of a warpgroup */
#define TERMS 3         /* of a mean query */
#define LSE_TERMS 2     /* the third changes a score by less than the sums' rounding does */

/* Key tiles [first, last) of the mean queries of some heads from `head` on: of a warpgroup's groups
 * each, from group0 on. It is number `at` of `number` pieces of these mean queries. */
struct piece {
    int head, group0, first, last, at, number;
};

/* Owned: the host's part and the maps; the rest is on the device and g's. */
struct fg_pooled {
    CUtensorMap mean, keys; /* boxes of 64 channels of a warpgroup's mean queries; of KEYS keys */
    int together, blocks, most; /* heads of a warpgroup; pieces of a mean query at most */
    piece *pieces;
    int32_t *first; /* pieces of thread block b: from first[b] to first[b + 1] */
    float2 *part;   /* [heads][groups][most]: largest in base 2, sum */
};

template <int D> struct pooled_smem {
    alignas(1024) uint8_t q[TERMS][2 * ROWS * D * 2];
    alignas(1024) uint8_t k[STAGES][KEYS * D * 2];
    uint64_t q_full, q_empty, full[STAGES], empty[STAGES];
};

/* Key tiles that some of a warpgroup's groups sees. */
static __device__ __host__ __forceinline__ int tiles_of(const fg_args &a, int group0, int groups)
{
    int limit = 0, forced, last = group0 + groups < a.groups ? group0 + groups : a.groups;
    if (group0 < a.groups)
        group_bounds(a, last - 1, &limit, &forced);
    return (limit + KEYS - 1) / KEYS;
}

/* ---- copies --------------------------------------------------------------------------------- */

/* The terms of the mean queries of a piece: boxes of 64 channels of a warpgroup's rows. */
template <int D>
DEVICE void load_means(pooled_smem<D> &sm, const fg_args &a, const fg_pooled &p, const piece &x,
                       const CUtensorMap *map, int terms)
{
    uint32_t bar = smem_addr(&sm.q_full);
    mbar_expect(bar, terms * sizeof sm.q[0]);
    for (int term = 0; term < terms; term++)
        for (int w = 0; w < 2; w++)
            for (int c = 0; c < D / 64; c++)
                tma_load(smem_addr(sm.q[term]) + (2 * c + w) * (ROWS * 128), map, bar, 64 * c,
                         x.group0 + w * (ROWS / p.together), term * a.heads + x.head,
                         L2_EVICT_LAST);
}

template <int D>
DEVICE void produce(pooled_smem<D> &sm, const fg_args &a, const fg_pooled &p, const CUtensorMap *mq,
                    const CUtensorMap *mk, int terms)
{
    int end = p.first[blockIdx.x + 1];
    ring<STAGES> k;
    ring<1> q;
    for (int i = p.first[blockIdx.x]; i < end; i++) {
        piece x = p.pieces[i];
        mbar_wait(smem_addr(&sm.q_empty), q.parity ^ 1);
        load_means(sm, a, p, x, mq, terms);
        q.next();
        for (int t = x.first; t < x.last; t++) {
            uint32_t bar = smem_addr(&sm.full[k.at]);
            mbar_wait(smem_addr(&sm.empty[k.at]), k.parity ^ 1);
            mbar_expect(bar, sizeof sm.k[0]);
            for (int c = 0; c < D / 64; c++)
                tma_load(smem_addr(sm.k[k.at]) + c * (KEYS * 128), mk, bar, 64 * c, t * KEYS,
                         x.head / a.per_kv, L2_EVICT_LAST);
            k.next();
        }
    }
}

/* ---- products ------------------------------------------------------------------------------- */

/* Where a warpgroup stands. */
struct stand {
    int group;     /* of threads */
    int own, both; /* key tiles that it and that both warpgroups have of a piece */
    ring<STAGES> k;
    ring<1> q;
};

/* Terms of the mean queries, small ones first, times a tile of keys. */
template <int D, int N> DEVICE void multiply(uint32_t q, uint32_t k, float (&acc)[64])
{
#pragma unroll
    for (int term = N - 1; term >= 0; term--)
#pragma unroll
        for (int kk = 0; kk < D / 16; kk++) {
            uint32_t step = kk / 4 * (128 * 128) + kk % 4 * 32;
            uint32_t from = q + term * (2 * ROWS * D * 2) + step;
            wgmma_ss<128>(acc, descriptor(desc_low(from, 16)), descriptor(desc_low(k + step, 16)),
                          term < N - 1 || kk > 0);
        }
}

/* use(tile, products) for each tile of a piece that the warpgroup has; product 4 j + 2 h + e of a
 * thread: its row h, key 8 j + 2 (lane % 4) + e. */
template <int D, int N, class F>
DEVICE void walk_keys(pooled_smem<D> &sm, const piece &x, stand &at, F use)
{
    uint32_t q = smem_addr(sm.q[0]) + at.group * (ROWS * 128);
    float acc[64];
    mbar_wait(smem_addr(&sm.q_full), at.q.parity);
#pragma unroll 1
    for (int t = x.first; t < x.last; t++) {
        mbar_wait(smem_addr(&sm.full[at.k.at]), at.k.parity);
        uint32_t empty = smem_addr(&sm.empty[at.k.at]), k = smem_addr(sm.k[at.k.at]);
        at.k.next();
        if (t >= at.own) {
            warp_arrive(empty);
            continue;
        }
        if (t < at.both)
            named_sync(1 + at.group, 256);
        wgmma_fence();
        multiply<D, N>(q, k, acc);
        wgmma_commit();
        if (t < at.both)
            named_arrive(2 - at.group, 256);
        wgmma_wait<0>();
        hold(acc);
        warp_arrive(empty);
        use(t, acc);
    }
    warp_arrive(smem_addr(&sm.q_empty));
    at.q.next();
}

/* A thread's two rows of a piece. */
struct two_rows {
    int head[2], group[2], limit[2], forced[2]; /* keys that count, keys kept anyway from there */
};

DEVICE two_rows rows_of(const fg_args &a, const fg_pooled &p, const piece &x, int group)
{
    two_rows r;
    int groups = ROWS / p.together;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = 16 * (threadIdx.x >> 5 & 3) + (threadIdx.x >> 2 & 7) + 8 * h;
        r.head[h] = x.head + row / groups;
        r.group[h] = x.group0 + group * groups + row % groups;
        r.limit[h] = r.forced[h] = 0;
        if (r.group[h] < a.groups)
            group_bounds(a, r.group[h], &r.limit[h], &r.forced[h]);
    }
    return r;
}

/* ---- log-sum-exps --------------------------------------------------------------------------- */

/* {largest, sum of 2^(score - largest)} of two parts of a group. */
DEVICE float2 join_parts(float2 x, float2 y)
{
    float most = fmaxf(x.x, y.x), base = most == -INFINITY ? 0 : most;
    return make_float2(most, x.y * exp2_fast(x.x - base) + y.y * exp2_fast(y.x - base));
}

/* The keys of a tile that group h of the thread has, as far as they count. */
DEVICE float2 add_keys(float2 part, const float (&acc)[64], int h, int limit, float scale)
{
    float most = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < 32; i++)
        if (8 * (i / 2) + i % 2 < limit)
            most = fmaxf(most, acc[4 * (i / 2) + 2 * h + i % 2]);
    most = fmaxf(part.x, scale * most);
    float base = most == -INFINITY ? 0 : most;
#pragma unroll
    for (int i = 0; i < 32; i++)
        if (8 * (i / 2) + i % 2 < limit)
            sum += exp2_fast(fmaf(acc[4 * (i / 2) + 2 * h + i % 2], scale, -base));
    return make_float2(most, part.y * exp2_fast(part.x - base) + sum);
}

/* A tile that both groups of the thread see, with two chains each for their maxima and sums. */
DEVICE void add_tile(float2 (&part)[2], const float (&acc)[64], float scale)
{
    float most[2][2] = {{-INFINITY, -INFINITY}, {-INFINITY, -INFINITY}}, sum[2][2] = {{0}};
#pragma unroll
    for (int i = 0; i < 64; i++)
        most[i / 2 % 2][i % 2] = fmaxf(most[i / 2 % 2][i % 2], acc[i]);
#pragma unroll
    for (int h = 0; h < 2; h++)
        most[h][0] = fmaxf(part[h].x, scale * fmaxf(most[h][0], most[h][1]));
#pragma unroll
    for (int i = 0; i < 64; i++)
        sum[i / 2 % 2][i % 2] += exp2_fast(fmaf(acc[i], scale, -most[i / 2 % 2][0]));
#pragma unroll
    for (int h = 0; h < 2; h++)
        part[h] = make_float2(
            most[h][0], fmaf(part[h].y, exp2_fast(part[h].x - most[h][0]), sum[h][0] + sum[h][1]));
}

template <int D>
DEVICE void sum_groups(pooled_smem<D> &sm, const fg_args &a, const fg_pooled &p, const piece &x,
                       const two_rows &r, stand &at)
{
    float2 part[2] = {{-INFINITY, 0}, {-INFINITY, 0}};
    float scale = a.scale * 1.4426950408889634f;
    auto add = [&](int t, const float(&acc)[64]) {
        int from = t * KEYS + 2 * (threadIdx.x & 3), end = (t + 1) * KEYS;
        if (min(r.limit[0], r.limit[1]) >= end) {
            add_tile(part, acc, scale);
            return;
        }
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (r.limit[h] > t * KEYS)
                part[h] = add_keys(part[h], acc, h, r.limit[h] - from, scale);
    };
    walk_keys<D, LSE_TERMS>(sm, x, at, add);
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int step = 1; step < 4; step *= 2)
            part[h] = join_parts(part[h], make_float2(__shfl_xor_sync(~0u, part[h].x, step),
                                                      __shfl_xor_sync(~0u, part[h].y, step)));
        if ((threadIdx.x & 3) == 0 && r.group[h] < a.groups)
            p.part[(r.head[h] * (int64_t)a.groups + r.group[h]) * p.most + x.at] = part[h];
    }
}

/* ---- bits ----------------------------------------------------------------------------------- */

/* From which score on a group keeps a key. */
DEVICE float cut_of(const fg_args &a, const fg_pooled &p, int head, int group, int limit,
                    int number)
{
    if (a.by != FG_CHOOSE_NORM)
        return a.at;
    if (group >= a.groups || limit <= 0)
        return INFINITY;
    const float2 *part = p.part + (head * (int64_t)a.groups + group) * p.most;
    float top = -INFINITY;
    double sum = 0;
    for (int i = 0; i < number; i++)
        top = fmaxf(top, part[i].x);
    for (int i = 0; i < number; i++)
        sum += (double)part[i].y * exp2f(part[i].x - top);
    return (float)(log(sum * (double)a.at) + (double)top * 0.6931471805599453);
}

/* Bits [from, to) of the word that begins with key `key`. */
DEVICE uint32_t bits_between(int key, int from, int to)
{
    int lo = max(from - key, 0), hi = min(to - key, 32);
    return lo < hi ? (~0u >> (32 - (hi - lo))) << lo : 0;
}

/* No bits in the words from `from` on of a warp's 16 rows. */
DEVICE void clear_words(const fg_args &a, const two_rows &r, int from)
{
#pragma unroll
    for (int h = 0; h < 2; h++)
        for (int row = 0; row < 8; row++) {
            int head = __shfl_sync(~0u, r.head[h], 4 * row);
            int group = __shfl_sync(~0u, r.group[h], 4 * row);
            uint32_t *to = a.map.map + (head * (int64_t)a.groups + group) * a.map.words;
            for (int w = from + (threadIdx.x & 31); group < a.groups && w < a.map.words; w += 32)
                to[w] = 0;
        }
}

template <int D>
DEVICE void choose_groups(pooled_smem<D> &sm, const fg_args &a, const fg_pooled &p, const piece &x,
                          const two_rows &r, stand &at)
{
    int quad = threadIdx.x & 3, text0 = (int)a.text0, text1 = (int)a.text1;
    float cut[2] = {cut_of(a, p, r.head[0], r.group[0], r.limit[0], x.number),
                    cut_of(a, p, r.head[1], r.group[1], r.limit[1], x.number)};
    auto compare = [&](int t, const float(&acc)[64]) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t mine = 0; /* a word of 32 keys for each lane of the quad */
#pragma unroll
            for (int w = 0; w < 4; w++) {
                uint32_t word = 0;
#pragma unroll
                for (int i = 0; i < 8; i++)
                    word |= acc[16 * w + 4 * (i / 2) + 2 * h + i % 2] * a.scale >= cut[h]
                                ? 1u << (8 * (i / 2) + i % 2)
                                : 0;
                word <<= 2 * quad;
                word |= __shfl_xor_sync(~0u, word, 1);
                word |= __shfl_xor_sync(~0u, word, 2);
                mine = w == quad ? word : mine;
            }
            int key = t * KEYS + 32 * quad;
            mine |= bits_between(key, r.forced[h], (int)a.nk) | bits_between(key, text0, text1);
            mine &= bits_between(key, 0, r.limit[h]);
            if (r.group[h] < a.groups && key < a.nk)
                a.map.map[(r.head[h] * (int64_t)a.groups + r.group[h]) * a.map.words + key / 32] =
                    mine;
        }
    };
    walk_keys<D, TERMS>(sm, x, at, compare);
    if (x.at == x.number - 1)
        clear_words(a, r, at.own * (KEYS / 32));
}

/* ---- launches ------------------------------------------------------------------------------- */

template <int D, bool CHOOSE>
DEVICE void consume(pooled_smem<D> &sm, const fg_args &a, const fg_pooled &p)
{
    int end = p.first[blockIdx.x + 1], groups = ROWS / p.together;
    stand at = {uniform(threadIdx.x >> 7), 0, 0, {}, {}};
    if (at.group == 1)
        named_arrive(1, 256);
    for (int i = p.first[blockIdx.x]; i < end; i++) {
        piece x = p.pieces[i];
        int own0 = tiles_of(a, x.group0, groups), own1 = tiles_of(a, x.group0 + groups, groups);
        at.own = uniform(at.group ? own1 : own0);
        at.both = uniform(min(own0, own1));
        two_rows r = rows_of(a, p, x, at.group);
        if (CHOOSE)
            choose_groups<D>(sm, a, p, x, r, at);
        else
            sum_groups<D>(sm, a, p, x, r, at);
    }
}

template <int D, bool CHOOSE>
static __global__ void __launch_bounds__(THREADS, 1)
    pooled_pass(const __grid_constant__ fg_args a, const __grid_constant__ fg_pooled p)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t raw[];
    pooled_smem<D> &sm = *(pooled_smem<D> *)raw;
    if (threadIdx.x == 0) {
        mbar_init(smem_addr(&sm.q_full), 1);
        mbar_init(smem_addr(&sm.q_empty), 8);
        for (int i = 0; i < STAGES; i++) {
            mbar_init(smem_addr(&sm.full[i]), 1);
            mbar_init(smem_addr(&sm.empty[i]), 8);
        }
        mbar_init_fence();
    }
    __syncthreads();
    if (uniform(threadIdx.x >> 5) == 8) {
        if ((threadIdx.x & 31) == 0)
            produce<D>(sm, a, p, &p.mean, &p.keys, CHOOSE ? TERMS : LSE_TERMS);
        return;
    }
    consume<D, CHOOSE>(sm, a, p);
#endif
}

template <int D>
static int launch_passes(struct gpu *g, const fg_args &a, const fg_pooled &p, struct err *err)
{
    int bytes = sizeof(pooled_smem<D>);
    if (a.by == FG_CHOOSE_NORM)
        PASS_ON_CU(err,
                   (run_kernel(g->stream, pooled_pass<D, false>, p.blocks, THREADS, bytes, a, p)));
    return CU_STATUS(err,
                     (run_kernel(g->stream, pooled_pass<D, true>, p.blocks, THREADS, bytes, a, p)));
}

int fg_pooled_launch(struct gpu *g, const fg_args &a, const struct fg_pooled *p, struct err *err)
{
    return a.d == 128 ? launch_passes<128>(g, a, *p, err) : launch_passes<64>(g, a, *p, err);
}

/* ---- which thread block has which pieces ---------------------------------------------------- */

/* Costs of a tile of both warpgroups, and of one, whose products wait for its softmax. */
#define COST_BOTH 4
#define COST_ONE 3
#define LEAST 3 /* tiles of a piece, if there are as many */

/* Pieces under construction. */
struct pieces {
    piece *x;
    int32_t *first;
    int64_t n, most, spent, total;
    int block, blocks;
};

static bool is_spent(const pieces *p, int ahead)
{
    return p->block < p->blocks - 1 && p->spent + ahead >= (p->block + 1) * p->total / p->blocks;
}

static void next_block(pieces *p)
{
    p->first[++p->block] = (int32_t)p->n;
}

/* The pieces of a pair with `both` tiles of both warpgroups among n. */
static void cut_pair(pieces *p, int head, int group0, int both, int n)
{
    int64_t from = p->n;
    int t = 0;
    do {
        int first = t;
        if (is_spent(p, LEAST * COST_ONE))
            next_block(p);
        while (t < n && (t < first + LEAST || n - t < LEAST || !is_spent(p, 0)))
            p->spent += t++ < both ? COST_BOTH : COST_ONE;
        p->x[p->n] = {head, group0, first, t, (int)(p->n - from), 0};
        p->n++;
    } while (t < n);
    for (int64_t i = from; i < p->n; i++)
        p->x[i].number = (int)(p->n - from);
    p->most = max(p->most, p->n - from);
}

/* f(head, group0, tiles of both, tiles) for every pair, those with many keys first. */
template <class F> static void each_pair(const fg_args &a, int together, F f)
{
    int groups = ROWS / together;
    for (int head = 0; head < a.heads; head += together)
        for (int pair = (a.groups - 1) / (2 * groups); pair >= 0; pair--) {
            int g0 = pair * 2 * groups, n0 = tiles_of(a, g0, groups);
            int n1 = tiles_of(a, g0 + groups, groups);
            f(head, g0, min(n0, n1), max(n0, n1));
        }
}

static int make_pieces(struct gpu *g, const fg_args &a, fg_pooled *p, struct err *err)
{
    pieces w = {};
    int64_t pairs = 0;
    int rc = 0;
    each_pair(a, p->together, [&](int, int, int both, int n) {
        w.total += both * COST_BOTH + (n - both) * COST_ONE;
        pairs++;
    });
    w.blocks = (int)max(min((int64_t)g->sms, w.total / (LEAST * COST_BOTH)), (int64_t)1);
    TRY(mem_alloc(&w.x, pairs + w.blocks, sizeof *w.x, "pieces of a pass", err));
    TRY(mem_zalloc(&w.first, w.blocks + 1, sizeof *w.first, "pieces of thread blocks", err));
    each_pair(a, p->together,
              [&](int head, int group0, int both, int n) { cut_pair(&w, head, group0, both, n); });
    while (w.block < w.blocks)
        next_block(&w);
    p->blocks = w.blocks;
    p->most = (int)w.most;
    TRY(put_array(g, w.x, w.n, &p->pieces, err));
    TRY(put_array(g, w.first, w.blocks + 1, &p->first, err));
out:
    free(w.x);
    free(w.first);
    return rc;
}

int fg_pooled_init(struct gpu *g, const fg_args &a, struct fg_pooled **out, struct err *err)
{
    fg_pooled *p = NULL;
    int box[3] = {64, 0, 0};
    if (posix_memalign((void **)&p, 128, sizeof *p) != 0) /* tensor maps */
        return err_set(err, ERR_NOMEM, "fg-attn on the GPU: out of memory");
    memset(p, 0, sizeof *p);
    *out = p;
    p->together = 1;
    while (p->together < MOST_TOGETHER && a.per_kv % (2 * p->together) == 0)
        p->together *= 2;
    PASS_ON(make_pieces(g, a, p, err));
    PASS_ON(take(g, err, &p->part, (int64_t)a.heads * a.groups * p->most));
    box[1] = ROWS / p->together;
    box[2] = p->together;
    PASS_ON(tensor_map_boxes(&p->mean, a.mean, a.d, a.groups, 3 * a.heads, box, err));
    return tensor_map(&p->keys, a.k, a.d, a.nk, a.kv_heads, KEYS, err);
}

void fg_pooled_free(struct fg_pooled *p)
{
    free(p);
}
