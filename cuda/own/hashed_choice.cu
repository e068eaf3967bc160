/*
 * hashed_choice.cu - ranks, orders and draws of HyperAttention (own.h; the reference is
 * sim/methods/hyperattention/hyperattention.c), equal to the reference's to the last bit.
 *
 * A rank is the token's in every square, so tokens are hashed once: signs of products in float, and
 * in double with the reference's order of sums where float does not tell the sign. A thread block
 * sorts the queries or keys of one square: a counting sort of 8 bits of the rank at a time, stable
 * because each warp has tokens that follow one another. 2 N d projs operations, 12 bytes moved per
 * token and level of the recursion.
 */
#include "core/rng.h"
#include "cuda/own/own.h"
#include "cuda/select/products.cuh"

#include <math.h>

/* ---- ranks ---------------------------------------------------------------------------------- */

/* Is the product with a direction above 0, as the reference takes it? */
static __device__ __noinline__ bool exact_side(const double *g, const uint4 *x, int d)
{
    return exact_product(g, x, d) > 0;
}

/* Ranks of x [heads][n][d]. Grid (ceil(n / 128), heads), 128 threads, a token each; at most P
 * directions. */
template <int P>
static __global__ void __launch_bounds__(128)
    rank_tokens(const __grid_constant__ hashed_choice a, const uint4 *tokens, int64_t n,
                uint16_t *rank)
{
    __shared__ alignas(16) float shared[128 * P];
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, head = blockIdx.y;
    const uint4 *x = tokens + (head * n + min(i, n - 1)) * (a.d / 8);
    float dot[P] = {0}, most = 0;
    uint32_t bin = 0;

    for (int e = threadIdx.x; e < a.d * P; e += 128)
        shared[e] = e % P < a.rule.projs ? (float)a.dir[e % P * a.d + e / P] : 0;
    __syncthreads();
    if (i >= n)
        return;
    add_products<P>(x, a.d, shared, dot, &most);
    bool range = products_in_range(most);
#pragma unroll
    for (int r = 0; r < P; r++) {
        if (r >= a.rule.projs)
            break;
        bool sure = range && fabsf(dot[r]) > a.slack[r] * most;
        bool above = sure ? dot[r] > 0 : exact_side(a.dir + (int64_t)r * a.d, x, a.d);
        bin |= (uint32_t)above << r;
    }
    rank[head * n + i] = (uint16_t)own_hash_rank(bin, a.rule.inverse);
}

/* ---- orders --------------------------------------------------------------------------------- */

#define BINS 256
#define ITEMS 8 /* tokens of a thread at a time */

template <int WARPS> struct sort_memory {
    uint16_t count[WARPS][BINS]; /* of a warp's tokens; then of those of the warps before it */
    int base[BINS], total[BINS]; /* place of the next token of a bin; tokens of this turn */
};

/* base = how many tokens have a smaller byte. */
template <int WARPS, class T>
static __device__ __forceinline__ void find_bases(sort_memory<WARPS> &m, int n, T byte_of)
{
    int lane = threadIdx.x & 31, sum = 0, each[BINS / 32];
    for (int b = threadIdx.x; b < BINS; b += 32 * WARPS)
        m.base[b] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += 32 * WARPS)
        atomicAdd(&m.base[byte_of(i)], 1);
    __syncthreads();
    if (threadIdx.x < 32) {
#pragma unroll
        for (int k = 0; k < BINS / 32; k++) {
            each[k] = sum;
            sum += m.base[lane * (BINS / 32) + k];
        }
        int before = sum;
        for (int step = 1; step < 32; step *= 2) {
            int other = __shfl_up_sync(~0u, before, step);
            before += lane >= step ? other : 0;
        }
        before -= sum;
#pragma unroll
        for (int k = 0; k < BINS / 32; k++)
            m.base[lane * (BINS / 32) + k] = before + each[k];
    }
    __syncthreads();
}

/* Place of every bin's first token of a warp, from the bin's base on, and the bin's tokens. */
template <int WARPS> static __device__ __forceinline__ void add_warps(sort_memory<WARPS> &m)
{
    for (int b = threadIdx.x; b < BINS; b += 32 * WARPS) {
        int sum = 0;
        for (int w = 0; w < WARPS; w++) {
            int own = m.count[w][b];
            m.count[w][b] = (uint16_t)sum;
            sum += own;
        }
        m.total[b] = sum;
    }
}

/* to = the tokens from[0 .. n), or first, first + 1, ... where it is NULL, in the order of bits
 * [shift, shift + 8) of their ranks, stably. By all threads of the block. */
template <int WARPS>
static __device__ void sort_byte(sort_memory<WARPS> &m, const uint16_t *rank, const int32_t *from,
                                 int first, int n, int shift, int32_t *to)
{
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    auto token_of = [&](int i) { return from ? from[i] : first + i; };
    auto byte_of = [&](int i) { return rank[token_of(i)] >> shift & (BINS - 1); };
    find_bases<WARPS>(m, n, byte_of);
    for (int turn = 0; turn < n; turn += 32 * WARPS * ITEMS) {
        int token[ITEMS], place[ITEMS];
        for (int e = threadIdx.x; e < WARPS * BINS; e += 32 * WARPS)
            m.count[e / BINS][e % BINS] = 0;
        __syncthreads();
#pragma unroll
        for (int k = 0; k < ITEMS; k++) {
            int i = turn + (warp * ITEMS + k) * 32 + lane;
            token[k] = i < n ? token_of(i) : -1;
            int byte = i < n ? rank[token[k]] >> shift & (BINS - 1) : BINS;
            uint32_t same = __match_any_sync(~0u, byte);
            int before = __popc(same & ((1u << lane) - 1)), more = i < n ? m.count[warp][byte] : 0;
            __syncwarp();
            if (i < n && before == 0)
                m.count[warp][byte] = (uint16_t)(more + __popc(same));
            __syncwarp();
            place[k] = (more + before) << 8 | (byte & (BINS - 1));
        }
        __syncthreads();
        add_warps<WARPS>(m);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < ITEMS; k++) {
            int byte = place[k] & (BINS - 1);
            if (token[k] >= 0)
                to[m.base[byte] + m.count[warp][byte] + (place[k] >> 8)] = token[k];
        }
        __syncthreads();
        for (int b = threadIdx.x; b < BINS; b += 32 * WARPS)
            m.base[b] += m.total[b];
    }
    __syncthreads(); /* what was written is there for the next pass */
}

/* Grid (squares, heads + KV heads): the queries, then the keys of a square. Thread blocks of the
 * other size sort the squares that are not of this one's. */
template <int WARPS>
static __global__ void __launch_bounds__(32 * WARPS)
    sort_tokens(const __grid_constant__ hashed_choice a, bool large)
{
    __shared__ sort_memory<WARPS> memory;
    const hashed_square &s = a.squares[blockIdx.x];
    int head = blockIdx.y;
    bool keys = head >= a.heads;
    int n = keys ? s.nk : s.nq, first = keys ? s.k0 : s.q0;
    if (n == 0 || (n > HASHED_LARGE) != large)
        return;
    head -= keys ? a.heads : 0;
    const uint16_t *rank = keys ? a.k_rank + head * a.nk : a.q_rank + head * a.nq;
    int64_t at = keys ? head * a.k_all + s.k_at : head * a.q_all + s.q_at;
    int32_t *order = (keys ? a.k_order : a.q_order) + at;
    if (a.rule.projs <= 8) {
        sort_byte<WARPS>(memory, rank, NULL, first, n, 0, order);
        return;
    }
    int32_t *spare = (keys ? a.k_spare : a.q_spare) + at;
    sort_byte<WARPS>(memory, rank, NULL, first, n, 0, spare);
    sort_byte<WARPS>(memory, rank, spare, first, n, 8, order);
}

/* ---- draws ---------------------------------------------------------------------------------- */

/* A thread per drawn key. Grid (ceil(draws / 256), heads). */
static __global__ void draw_keys(const __grid_constant__ hashed_choice a)
{
    int64_t e = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, head = blockIdx.y;
    if (e >= a.draws)
        return;
    const hashed_square &s = a.squares[a.drawer[e / a.rule.samples]];
    uint64_t stream = rng_head_stream(s.stream, a.head[head]);
    int64_t i = e % a.rule.samples;
    int at = (int)rng_below(a.rule.seed, stream, (uint64_t)i, (uint64_t)s.nk);
    a.drawn[head * a.draws + e] = make_int2(a.k_order[head / a.per_kv * a.k_all + s.k_at + at], at);
}

/* ---- launches ------------------------------------------------------------------------------- */

template <int P> static int launch_ranks(struct gpu *g, const hashed_choice &a, struct err *err)
{
    dim3 q((unsigned)((a.nq + 127) / 128), (unsigned)a.heads);
    dim3 k((unsigned)((a.nk + 127) / 128), (unsigned)a.kv_heads);
    rank_tokens<P><<<q, 128, 0, g->stream>>>(a, (const uint4 *)a.q, a.nq, a.q_rank);
    PASS_ON_LAUNCH(err);
    rank_tokens<P><<<k, 128, 0, g->stream>>>(a, (const uint4 *)a.k, a.nk, a.k_rank);
    return LAUNCH_STATUS(err);
}

int hashed_choice_launch(struct gpu *g, const struct hashed_choice *c, struct err *err)
{
    dim3 sides((unsigned)c->n, (unsigned)(c->heads + c->kv_heads));
    PASS_ON(c->rule.projs <= 8 ? launch_ranks<8>(g, *c, err) : launch_ranks<16>(g, *c, err));
    if (c->large) {
        sort_tokens<32><<<sides, 1024, 0, g->stream>>>(*c, true);
        PASS_ON_LAUNCH(err);
    }
    if (c->small) {
        sort_tokens<4><<<sides, 128, 0, g->stream>>>(*c, false);
        PASS_ON_LAUNCH(err);
    }
    if (c->draws) {
        dim3 draws((unsigned)((c->draws + 255) / 256), (unsigned)c->heads);
        draw_keys<<<draws, 256, 0, g->stream>>>(*c);
        return LAUNCH_STATUS(err);
    }
    return 0;
}
