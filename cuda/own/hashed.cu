/*
 * hashed.cu - attention of HyperAttention's squares (own.h; the reference is `attend` of
 * sim/methods/hyperattention).
 *
 * A tile is 128 sorted queries of a square, a warp has 16 of them. They attend to the sorted keys
 * of their blocks, those of other rows' blocks left out, and to the square's drawn keys, whose
 * scores have the logarithm of their weight added: one online softmax (FlashAttention-2, arXiv
 * 2307.08691, algorithm 1). Keys and values are gathered by cp.async, 64 at a time, two steps ahead
 * of the products; 4 d (block + samples) operations and as many bytes per tile from L2. A last
 * kernel mixes what a query has in its squares and its exact range by their log-sum-exps.
 */
#include "cuda/own/own.h"
#include "cuda/softrows.cuh"

#include <cuda_bf16.h>
#include <math.h>

#define ROWS HASHED_ROWS
#define KEYS HASHED_KEYS
#define THREADS (2 * ROWS)
#define LN2 0.69314718055994531f

/* A warp has 16 rows. Shared memory: the queries, and per stage keys, values and places of drawn
 * keys. */
template <int D> struct shape {
    static constexpr int STAGES = 3, BLOCKS = D == 64 ? 2 : 1;
    static constexpr int Q = ROWS * D * 2, TILE = KEYS * D * 2, PLACES = 2 * TILE;
    static constexpr int STAGE = PLACES + KEYS * 4, ALL = Q + STAGES * STAGE;
};

/* What the rows of a tile attend to: keys [e0, e1) of the square's order, then its drawn keys. */
struct tile_keys {
    int token0; /* of the KV head among those of all */
    const int32_t *order;
    const int2 *drawn;
    int e0, e1, m, own_steps, steps;
    bool one_block; /* all rows have the keys [e0, e1) */

    /* First entry of step i, and one past the last of its kind. */
    __device__ __forceinline__ int first(int i) const
    {
        return i < own_steps ? e0 + KEYS * i : KEYS * (i - own_steps);
    }
    __device__ __forceinline__ int end(int i) const
    {
        return i < own_steps ? e1 : m;
    }
};

static __device__ __forceinline__ void copy_word(uint32_t dst, const void *src)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(dst), "l"(src) : "memory");
}

/* Keys, values and places of step i to shared memory. A group of copies of each thread. */
template <int D>
static __device__ __forceinline__ void load_step(const hashed_attend &a, const tile_keys &t, int i,
                                                 uint32_t to)
{
    using L = shape<D>;
    constexpr int CHUNKS = D / 8;
    int chunk = threadIdx.x % CHUNKS, first = t.first(i), end = t.end(i);
    bool own = i < t.own_steps;
#pragma unroll
    for (int n = 0; n < KEYS * CHUNKS / THREADS; n++) {
        int r = threadIdx.x / CHUNKS + n * (THREADS / CHUNKS), e = min(first + r, end - 1);
        int token = own ? __ldg(t.order + e) : __ldg(&t.drawn[e].x);
        int64_t from = (int64_t)(t.token0 + token) * CHUNKS + chunk;
        uint32_t at = to + chunk_at<D>(r, chunk);
        copy_async(at, (const uint4 *)a.c.k + from, first + r < end);
        copy_async(at + L::TILE, (const uint4 *)a.v + from, first + r < end);
    }
    if (!own && threadIdx.x < KEYS)
        copy_word(to + L::PLACES + 4 * threadIdx.x,
                  &t.drawn[min(first + (int)threadIdx.x, end - 1)].y);
    copy_commit();
}

/* The 16 rows of a warp; a thread has two of them, lane / 4 and 8 below. */
template <int D> struct warp_rows {
    uint32_t q[D / 16][4];
    float s[KEYS / 8][4], o[D / 8][4], m[2], l[2];
    int lo[2]; /* first of a row's own keys in the order of the square */

    static __device__ __forceinline__ int lane()
    {
        return threadIdx.x & 31;
    }

    /* The warp's first row in the tile. */
    static __device__ __forceinline__ int base()
    {
        return 16 * (threadIdx.x >> 5);
    }

    __device__ __forceinline__ void start(uint32_t q_smem)
    {
#pragma unroll
        for (int kk = 0; kk < D / 16; kk++)
            load_a<D>(q_smem, base(), kk, q[kk]);
#pragma unroll
        for (int i = 0; i < D / 8; i++)
            o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0;
        m[0] = m[1] = -INFINITY;
        l[0] = l[1] = 0;
    }

    /* In log2 units, with the logarithm of a weight added. */
    __device__ __forceinline__ void scores(uint32_t k_smem, float scale_log2, float weight)
    {
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
            s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0;
#pragma unroll
        for (int kk = 0; kk < D / 16; kk++) {
#pragma unroll
            for (int j = 0; j < KEYS / 8; j += 2) {
                uint32_t b[4];
                load_b<D>(k_smem, 8 * j, kk, b);
                mma_bf16(s[j], q[kk], b[0], b[1]);
                mma_bf16(s[j + 1], q[kk], b[2], b[3]);
            }
        }
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[j][e] = fmaf(s[j][e], scale_log2, weight);
    }

    /* Leave out keys of other blocks, of those from `first` on in the square's order. */
    __device__ __forceinline__ void leave_others(int first, int block)
    {
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int key = first + 8 * j + 2 * (lane() & 3) + (e & 1);
                if ((unsigned)(key - lo[e >> 1]) >= (unsigned)block)
                    s[j][e] = -INFINITY;
            }
    }

    /* Leave out drawn keys of the row's own block, given their places in the square's order. */
    __device__ __forceinline__ void leave_own(const int *places, int block)
    {
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++) {
            int2 at = *(const int2 *)(places + 8 * j + 2 * (lane() & 3));
#pragma unroll
            for (int e = 0; e < 4; e++)
                if ((unsigned)((e & 1 ? at.y : at.x) - lo[e >> 1]) < (unsigned)block)
                    s[j][e] = -INFINITY;
        }
    }

    /* Columns from `n` on. */
    __device__ __forceinline__ void leave_rest(int n)
    {
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (8 * j + 2 * (lane() & 3) + (e & 1) >= n)
                    s[j][e] = -INFINITY;
    }

    /* Largest scores, of those before too. Where any row's has grown, sums and outputs follow. */
    __device__ __forceinline__ void raise()
    {
        float top[2];
        bool grown = false;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float x = m[r];
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++)
                x = fmaxf(x, fmaxf(s[j][2 * r], s[j][2 * r + 1]));
            top[r] = row_max(x);
            grown |= top[r] > m[r];
        }
        if (!__any_sync(~0u, grown))
            return;
#pragma unroll
        for (int r = 0; r < 2; r++)
            raise_row(m, l, o, r, top[r]);
    }

    __device__ __forceinline__ void softmax()
    {
        raise();
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float base = m[r] == -INFINITY ? 0 : m[r], add = 0;
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
                for (int e = 2 * r; e < 2 * r + 2; e++) {
                    s[j][e] = exp2_fast(s[j][e] - base);
                    add += s[j][e];
                }
            l[r] += add;
        }
    }

    static __device__ __forceinline__ uint32_t pack(float lo, float hi)
    {
        __nv_bfloat162 x = __floats2bfloat162_rn(lo, hi);
        return *(uint32_t *)&x;
    }

    __device__ __forceinline__ void values(uint32_t v_smem)
    {
#pragma unroll
        for (int kk = 0; kk < KEYS / 16; kk++) {
            uint32_t x[4];
#pragma unroll
            for (int e = 0; e < 4; e++)
                x[e] = pack(s[2 * kk + e / 2][e % 2 * 2], s[2 * kk + e / 2][e % 2 * 2 + 1]);
#pragma unroll
            for (int i = 0; i < D / 8; i += 2) {
                uint32_t b[4];
                load_transposed(v_smem + chunk_at<D>(16 * kk + (lane() & 15), i + (lane() >> 4)),
                                b);
                mma_bf16(o[i], x, b[0], b[1]);
                mma_bf16(o[i + 1], x, b[2], b[3]);
            }
        }
    }

    /* `zeros` keys of score 0 and value 0 for a row whose sum is complete. */
    __device__ __forceinline__ void add_zeros(int r, int zeros)
    {
        float score = log2f((float)zeros);
        raise_row(m, l, o, r, fmaxf(m[r], score));
        l[r] += exp2_fast(score - m[r]);
    }
};

/* The keys of a tile of rows [row0, row1), and which of them each row of the thread has. */
template <int D>
static __device__ __forceinline__ void find_keys(const hashed_attend &a, const hashed_square &s,
                                                 int head, int row0, tile_keys &t, warp_rows<D> &w)
{
    int kv = head / a.c.per_kv, row1 = min(row0 + ROWS, s.nq);
    int from = row0 / s.per, to = (row1 - 1) / s.per;
    t.token0 = kv * (int)a.c.nk;
    t.order = a.c.k_order + kv * a.c.k_all + s.k_at;
    t.drawn = a.c.drawn + head * a.c.draws + s.draw_at;
    t.m = s.draw_at >= 0 ? (int)a.c.rule.samples : 0;
    t.e0 = from * s.block;
    t.e1 = (int)min((int64_t)s.nk, (to + 1) * (int64_t)s.block);
    t.own_steps = (t.e1 - t.e0 + KEYS - 1) / KEYS;
    t.steps = t.own_steps + (t.m + KEYS - 1) / KEYS;
    t.one_block = from == to;
    for (int r = 0; r < 2; r++) {
        int row = row0 + w.base() + (w.lane() >> 2) + 8 * r;
        w.lo[r] = min(row, row1 - 1) / s.per * s.block;
    }
}

/* Scores of the keys of step i, with what a row does not attend to at -inf. */
template <int D>
static __device__ __forceinline__ void take_scores(const hashed_attend &a, const hashed_square &s,
                                                   const tile_keys &t, int i, uint32_t stage,
                                                   const int *places, warp_rows<D> &w)
{
    bool own = i < t.own_steps;
    int left = t.end(i) - t.first(i);
    w.scores(stage, a.scale_log2, own ? 0 : s.weight);
    if (own && !t.one_block)
        w.leave_others(t.first(i), s.block);
    if (!own && a.c.rule.exclude)
        w.leave_own(places, s.block);
    if (left < KEYS)
        w.leave_rest(left);
}

/* The warp's rows to their tokens: through the shared memory of its queries, so that a row is
 * written in whole. */
template <int D>
static __device__ __forceinline__ void store_rows(const hashed_attend &a, const hashed_square &s,
                                                  int head, int row0, uint8_t *shared,
                                                  warp_rows<D> &w)
{
    constexpr int CHUNKS = D / 8;
    const int32_t *order = a.c.q_order + head * a.c.q_all + s.q_at;
    int lane = w.lane();
    int64_t to = head * a.c.q_all + s.q_at - s.q0;
    __syncwarp(); /* nobody reads the queries any more */
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int in_tile = w.base() + (lane >> 2) + 8 * r, row = row0 + in_tile;
        float &l = w.l[r];
        l = row_add(l);
        if (s.zeros && w.lo[r] / s.block == s.last)
            w.add_zeros(r, s.zeros);
        float inv = l > 0 ? 1 / l : 0;
#pragma unroll
        for (int i = 0; i < CHUNKS; i++)
            *(uint32_t *)(shared + chunk_at<D>(in_tile, i) + 4 * (lane & 3)) =
                w.pack(w.o[i][2 * r] * inv, w.o[i][2 * r + 1] * inv);
        if (row < s.nq && (lane & 3) == 0)
            a.lse[to + __ldg(order + row)] = l > 0 ? (w.m[r] + log2f(l)) * LN2 : -INFINITY;
    }
    __syncwarp();
#pragma unroll 4
    for (int e = lane; e < 16 * CHUNKS; e += 32) {
        int r = w.base() + e / CHUNKS, row = row0 + r;
        if (row < s.nq)
            ((uint4 *)a.out)[(to + __ldg(order + row)) * CHUNKS + e % CHUNKS] =
                *(const uint4 *)(shared + chunk_at<D>(r, e % CHUNKS));
    }
}

/* Grid (tiles, heads). */
template <int D>
static __global__ void __launch_bounds__(THREADS, shape<D>::BLOCKS)
    attend_squares(const __grid_constant__ hashed_attend a)
{
    using L = shape<D>;
    constexpr int CHUNKS = D / 8, AHEAD = L::STAGES - 1;
    extern __shared__ __align__(128) uint8_t shared[];
    int2 tile = __ldg(a.tiles + blockIdx.x);
    int head = blockIdx.y, row0 = tile.y, chunk = threadIdx.x % CHUNKS;
    const hashed_square &s = a.c.squares[tile.x];
    const int32_t *order = a.c.q_order + head * a.c.q_all + s.q_at;
    uint32_t q_smem = shared_addr(shared);
    tile_keys t;
    warp_rows<D> w;

    find_keys<D>(a, s, head, row0, t, w);
    for (int r = threadIdx.x / CHUNKS; r < ROWS; r += THREADS / CHUNKS) {
        int64_t token = __ldg(order + min(row0 + r, s.nq - 1));
        copy_async(q_smem + chunk_at<D>(r, chunk),
                   (const uint4 *)a.c.q + (head * a.c.nq + token) * CHUNKS + chunk,
                   row0 + r < s.nq);
    }
    load_step<D>(a, t, 0, q_smem + L::Q); /* and the queries; a tile has keys of its own */
    if (t.steps > 1)
        load_step<D>(a, t, 1, q_smem + L::Q + L::STAGE);
    else
        copy_commit();
    for (int i = 0, at = 0; i < t.steps; i++, at = at == AHEAD ? 0 : at + 1) {
        int stage = L::Q + at * L::STAGE;
        copy_wait<AHEAD - 1>();
        __syncthreads(); /* the step is there, and nobody is at the one before it */
        if (i + AHEAD < t.steps)
            load_step<D>(a, t, i + AHEAD, q_smem + L::Q + (at == 0 ? AHEAD : at - 1) * L::STAGE);
        else
            copy_commit();
        if (i == 0)
            w.start(q_smem);
        take_scores<D>(a, s, t, i, q_smem + stage, (const int *)(shared + stage + L::PLACES), w);
        w.softmax();
        w.values(q_smem + stage + L::TILE);
    }
    store_rows<D>(a, s, head, row0, shared, w);
}

template <int D> static int launch_attend(struct gpu *g, const hashed_attend *a, struct err *err)
{
    using L = shape<D>;
    int bytes = L::ALL;
    dim3 grid((unsigned)a->n_tiles, (unsigned)a->c.heads);
    PASS_ON_CU(err, cudaFuncSetAttribute((const void *)attend_squares<D>,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    attend_squares<D><<<grid, THREADS, bytes, g->stream>>>(*a);
    return LAUNCH_STATUS(err);
}

int hashed_attend_launch(struct gpu *g, const struct hashed_attend *a, struct err *err)
{
    return a->c.d == 64 ? launch_attend<64>(g, a, err) : launch_attend<128>(g, a, err);
}

/* ---- merge ---------------------------------------------------------------------------------- */

#define MERGE_THREADS 256

/* Channels of a lane as floats. */
template <int PER> struct alignas(2 * PER) lane_channels {
    uint32_t x[PER / 2];
    __device__ __forceinline__ float at(int c) const
    {
        return __uint_as_float(c % 2 ? x[c / 2] & 0xffff0000u : x[c / 2] << 16);
    }
};

/* A warp per row. What has no square stays. */
template <int PER>
static __global__ void __launch_bounds__(MERGE_THREADS)
    merge_rows(const __grid_constant__ hashed_merge a)
{
    using lane_x = lane_channels<PER>;
    int64_t row = (blockIdx.x * (int64_t)MERGE_THREADS + threadIdx.x) >> 5;
    int lane = threadIdx.x & 31;
    if (row >= a.c.heads * a.c.nq)
        return;
    int64_t head = row / a.c.nq, i = row - head * a.c.nq;
    own_walk walk = {0, a.c.nq, 1};
    int32_t at = own_walk_next(a.c.node, i, &walk);
    if (at < 0)
        return;
    lane_x *out = (lane_x *)a.out + row * 32 + lane, own = *out;
    float top = a.lse[row], sum = 1, acc[PER];
#pragma unroll
    for (int c = 0; c < PER; c++)
        acc[c] = own.at(c);
    for (; at >= 0; at = own_walk_next(a.c.node, i, &walk)) {
        const hashed_square &s = a.c.squares[at];
        int64_t from = head * a.c.q_all + s.q_at + i - s.q0;
        lane_x part = ((const lane_x *)a.part)[from * 32 + lane];
        float lse = a.part_lse[from], most = fmaxf(top, lse);
        float old = expf(top - most), more = expf(lse - most);
        sum = sum * old + more;
        top = most;
#pragma unroll
        for (int c = 0; c < PER; c++)
            acc[c] = acc[c] * old + more * part.at(c);
    }
#pragma unroll
    for (int c = 0; c < PER; c += 2) {
        __nv_bfloat162 two = __floats2bfloat162_rn(acc[c] / sum, acc[c + 1] / sum);
        own.x[c / 2] = *(uint32_t *)&two;
    }
    *out = own;
    __syncwarp(); /* every lane has read it */
    if (lane == 0)
        a.lse[row] = top + logf(sum);
}

int hashed_merge_launch(struct gpu *g, const struct hashed_merge *a, struct err *err)
{
    unsigned grid =
        (unsigned)((a->c.heads * a->c.nq + MERGE_THREADS / 32 - 1) / (MERGE_THREADS / 32));
    if (a->c.d == 64)
        merge_rows<2><<<grid, MERGE_THREADS, 0, g->stream>>>(*a);
    else
        merge_rows<4><<<grid, MERGE_THREADS, 0, g->stream>>>(*a);
    return LAUNCH_STATUS(err);
}
