/*
 * svg2.cu - Sparse VideoGen 2's clusters of queries and keys, and the key clusters that a query
 * cluster keeps (arXiv 2505.18875). The CPU side is sim/methods/svg2/svg2.c.
 *
 * Tokens and centroids are bf16, so products are exact, and a token's nearest centroid follows from
 * sums in fp32 wherever the second one is farther than such a sum can err; the other tokens are
 * decided by the reference's own distance, in double. Clusters are summed in double in the order of
 * their tokens, so every iteration gives the reference's bits. Heads that have converged wait for
 * the others.
 *
 * 2 N k d FLOP per iteration and side, plus k Q d and a sort for each query cluster.
 */
#include "core/rng.h"
#include "cuda/mma.cuh"
#include "cuda/select/means.cuh"
#include "cuda/select/method.cuh"
#include "cuda/warp.cuh"

#include <cuda_bf16.h>

#define TILE 128 /* tokens of a thread block, and centroids at a time */
#define THREADS 256
#define CHUNK 1024 /* tokens that are counted together */
#define MOST_CLUSTERS 2048

struct svg2_side {
    const uint4 *x; /* [heads / per][n][d] */
    int64_t n, video;
    int per, k, chunks, which; /* which: 0 queries, 1 keys */
    float *centroid;           /* first head's, like the next three inside of the own numbers */
    int32_t *label;
    int64_t *iterations;
    int64_t own_bytes;      /* from head to head */
    float *start;           /* [heads][k][d], NULL: tokens */
    uint64_t *stream;       /* [heads] of these tokens */
    uint16_t *bf16;         /* [heads][k][d] the centroids */
    float *next;            /* [heads][k][d] */
    float *centroid_sq;     /* [heads][k] */
    float *token_sq;        /* [heads][video] */
    int *unsure, *n_unsure; /* [heads][video] tokens to decide again, [heads] */
    int *size, *first;      /* [heads][k] tokens of a cluster, the first one's place in `order` */
    int *counts;            /* [heads][chunks][k], then the places of a chunk's tokens */
    int *order;             /* [heads][video] tokens by cluster */
    double *moved;          /* [heads][k] */
    int *done;              /* [heads] */
};

struct svg2_args : head_args { /* map: of the one unit, [heads] */
    svg2_side side[2];
    struct svg2_rule rule;
    double scale;
    uint8_t *kept; /* [qc][kc] of the first head */

    /* For a mask that stays on the device: `map` is that of its rows, `clusters` has the keys of
     * each query cluster, [heads][qc + 1], the last of them all keys, for tokens behind the video.
     */
    bool spread;
    map_rows clusters;
};

template <class T> static __device__ __forceinline__ T *of_head(const svg2_side &s, T *x, int head)
{
    return (T *)((char *)x + head * s.own_bytes);
}

/* ---- centroids ------------------------------------------------------------------------------ */

/* Cluster blockIdx.x of head blockIdx.y, a thread per channel: where it starts (first), or where it
 * has moved; its bf16 form and its square. */
static __global__ void place_centroids(const svg2_side s, const svg2_rule r, int first)
{
    __shared__ float values[128];
    int j = blockIdx.x, head = blockIdx.y, c = threadIdx.x, d = blockDim.x;
    int64_t at = ((int64_t)head * s.k + j) * d + c;
    float *to = of_head(s, s.centroid, head) + (int64_t)j * d + c, x;

    if (!first && s.done[head])
        return;
    if (!first) {
        x = s.next[at];
    } else if (s.start) {
        x = s.start[at];
    } else {
        int64_t t = (int64_t)rng_below(r.seed, s.stream[head], (uint64_t)j, (uint64_t)s.video);
        const uint16_t *row = (const uint16_t *)s.x + (head / s.per * s.n + t) * d;
        x = __uint_as_float((uint32_t)row[c] << 16);
    }
    *to = x;
    s.bf16[at] = (uint16_t)(__float_as_uint(x) >> 16);
    values[c] = x;
    __syncthreads();
    if (c)
        return;
    float sum = 0;
    for (int e = 0; e < d; e++)
        sum = __fadd_rn(sum, __fmul_rn(values[e], values[e]));
    s.centroid_sq[head * s.k + j] = sum;
    if (first && j == 0) {
        s.done[head] = 0;
        *of_head(s, s.iterations, head) = 0;
    }
}

/* A thread per token. */
static __global__ void token_squares(const svg2_side s, int d)
{
    int64_t t = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, head = blockIdx.y;
    float sum = 0;
    if (t >= s.video)
        return;
    for (int c = 0; c < d / 8; c++) {
        float v[8];
        unpack(s.x[(head / s.per * s.n + t) * (d / 8) + c], v);
#pragma unroll
        for (int e = 0; e < 8; e++)
            sum = __fadd_rn(sum, __fmul_rn(v[e], v[e]));
    }
    s.token_sq[head * s.video + t] = sum;
}

/* ---- nearest centroids ---------------------------------------------------------------------- */

/* The nearest centroid so far, by sums in any order, and the least that another may have. */
struct near {
    float dist, off, rival;
    int label;
};

static __device__ __forceinline__ void add_near(near *m, float dist, float off, int label)
{
    bool better = dist < m->dist;
    m->rival = fminf(m->rival, better ? m->dist - m->off : dist - off);
    m->dist = better ? dist : m->dist;
    m->off = better ? off : m->off;
    m->label = better ? label : m->label;
}

static __device__ __forceinline__ void merge_near(near *m, int step)
{
    float dist = __shfl_xor_sync(~0u, m->dist, step), off = __shfl_xor_sync(~0u, m->off, step);
    float rival = __shfl_xor_sync(~0u, m->rival, step);
    int label = __shfl_xor_sync(~0u, m->label, step);
    add_near(m, dist, off, label);
    m->rival = fminf(m->rival, rival);
}

/* 128 tokens of head blockIdx.y, 16 a warp, against all centroids. */
template <int D> static __global__ void __launch_bounds__(THREADS) assign_tokens(const svg2_side s)
{
    extern __shared__ __align__(128) uint8_t memory[];
    __shared__ float squares[2][TILE];
    int head = blockIdx.y, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    int64_t t0 = blockIdx.x * (int64_t)TILE;
    uint32_t tokens = shared_addr(memory), tile = tokens + TILE * D * 2;
    const uint4 *centroids = (const uint4 *)(s.bf16 + (int64_t)head * s.k * D);
    const float *sq = s.centroid_sq + head * s.k;
    float slack = (float)(D + 8) * 0x1p-23f, token_sq[2];
    near best[2];
    uint32_t a[D / 16][4];

    if (s.done[head])
        return;
    copy_tile<D, TILE, THREADS>(tokens, s.x + head / s.per * s.n * (D / 8), t0, s.video);
    copy_tile<D, TILE, THREADS>(tile, centroids, 0, s.k);
    copy_commit();
    for (int e = 0; e < 2; e++) {
        int64_t t = t0 + 16 * warp + (lane >> 2) + 8 * e;
        token_sq[e] = t < s.video ? s.token_sq[head * s.video + t] : 0;
        best[e] = {INFINITY, 0, INFINITY, 0};
    }
    for (int j0 = 0, turn = 0; j0 < s.k; j0 += TILE, turn ^= 1) {
        if (threadIdx.x < TILE)
            squares[turn][threadIdx.x] = j0 + threadIdx.x < s.k ? sq[j0 + threadIdx.x] : INFINITY;
        copy_wait<0>();
        __syncthreads();
        if (j0 == 0)
#pragma unroll
            for (int kk = 0; kk < D / 16; kk++)
                load_a<D>(tokens, 16 * warp, kk, a[kk]);
        if (j0 + TILE < s.k)
            copy_tile<D, TILE, THREADS>(tile + (turn ^ 1) * TILE * D * 2, centroids, j0 + TILE,
                                        s.k);
        copy_commit();
#pragma unroll 1
        for (int from = 0; from < TILE; from += 32) {
            float acc[4][4] = {{0}};
#pragma unroll
            for (int kk = 0; kk < D / 16; kk++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    uint32_t b[4];
                    load_b<D>(tile + turn * TILE * D * 2, from + 16 * e, kk, b);
                    mma_bf16(acc[2 * e], a[kk], b[0], b[1]);
                    mma_bf16(acc[2 * e + 1], a[kk], b[2], b[3]);
                }
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    int j = from + 8 * n + 2 * (lane & 3) + i % 2;
                    float both = token_sq[i / 2] + squares[turn][j];
                    add_near(&best[i / 2], fmaxf(both - 2 * acc[n][i], 0), slack * both, j0 + j);
                }
        }
        __syncthreads();
    }
    for (int e = 0; e < 2; e++) {
        int64_t t = t0 + 16 * warp + (lane >> 2) + 8 * e;
        merge_near(&best[e], 1);
        merge_near(&best[e], 2);
        if ((lane & 3) || t >= s.video)
            continue;
        of_head(s, s.label, head)[t] = best[e].label;
        if (!(best[e].dist + best[e].off < best[e].rival))
            s.unsure[head * s.video + atomicAdd(s.n_unsure + head, 1)] = (int)t;
    }
}

/* The reference's distance, which decides; the lower centroid of equals. A warp per token. */
static __global__ void assign_unsure(const svg2_side s, int d)
{
    int head = blockIdx.y, warps = gridDim.x * (blockDim.x >> 5), lane = threadIdx.x & 31;
    int first = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    const uint4 *centroids = (const uint4 *)(s.bf16 + (int64_t)head * s.k * d);

    if (s.done[head])
        return;
    for (int u = first; u < s.n_unsure[head]; u += warps) {
        int t = s.unsure[head * s.video + u];
        const uint4 *x = s.x + (head / s.per * s.n + t) * (d / 8);
        float token_sq = s.token_sq[head * s.video + t];
        uint64_t best = ~0ull; /* distance, then label */
        for (int j = lane; j < s.k; j += 32) {
            double dot = 0;
            for (int c = 0; c < d / 8; c++) {
                float v[8], y[8];
                unpack(x[c], v);
                unpack(centroids[(int64_t)j * (d / 8) + c], y);
#pragma unroll
                for (int e = 0; e < 8; e++)
                    dot = __dadd_rn(dot, __dmul_rn((double)v[e], (double)y[e]));
            }
            float both = __fadd_rn(token_sq, s.centroid_sq[head * s.k + j]);
            float dist = fmaxf(__fsub_rn(both, 2 * (float)dot), 0);
            uint64_t rank = (uint64_t)__float_as_uint(dist) << 32 | (uint32_t)j;
            best = rank < best ? rank : best;
        }
        for (int step = 16; step; step /= 2) {
            uint64_t other = __shfl_xor_sync(~0u, best, step);
            best = other < best ? other : best;
        }
        if (lane == 0)
            of_head(s, s.label, head)[t] = (int32_t)(best & 0xffffffffu);
    }
}

/* ---- new centroids -------------------------------------------------------------------------- */

/* Tokens of each cluster in chunk blockIdx.x. */
static __global__ void __launch_bounds__(THREADS) count_chunk(const svg2_side s)
{
    __shared__ int count[MOST_CLUSTERS];
    int head = blockIdx.y, *to = s.counts + ((int64_t)head * s.chunks + blockIdx.x) * s.k;
    int64_t t0 = blockIdx.x * (int64_t)CHUNK;
    if (s.done[head])
        return;
    for (int j = threadIdx.x; j < s.k; j += THREADS)
        count[j] = 0;
    __syncthreads();
    for (int64_t t = t0 + threadIdx.x; t < min(t0 + CHUNK, s.video); t += THREADS)
        atomicAdd(count + of_head(s, s.label, head)[t], 1);
    __syncthreads();
    for (int j = threadIdx.x; j < s.k; j += THREADS)
        to[j] = count[j];
}

/* Sizes, and counts become places: cluster by cluster, in a cluster chunk by chunk. Head
 * blockIdx.x. */
static __global__ void __launch_bounds__(1024) place_chunks(const svg2_side s)
{
    __shared__ int sums[MOST_CLUSTERS];
    int head = blockIdx.x, *counts = s.counts + (int64_t)head * s.chunks * s.k;
    if (s.done[head])
        return;
    for (int j = threadIdx.x; j < s.k; j += 1024) {
        int all = 0;
        for (int i = 0; i < s.chunks; i++)
            all += counts[(int64_t)i * s.k + j];
        s.size[head * s.k + j] = sums[j] = all;
    }
    __syncthreads();
    if (threadIdx.x < 32) { /* 32 stretches of clusters */
        int each = (s.k + 31) / 32, j0 = threadIdx.x * each, own = 0, before = 0;
        for (int j = j0; j < min(j0 + each, s.k); j++)
            own += sums[j];
        for (int i = 0; i < 32; i++) {
            int other = __shfl_sync(~0u, own, i);
            before += i < (int)threadIdx.x ? other : 0;
        }
        for (int j = j0; j < min(j0 + each, s.k); j++) {
            int n = sums[j];
            sums[j] = before;
            before += n;
        }
    }
    __syncthreads();
    for (int j = threadIdx.x; j < s.k; j += 1024) {
        int at = sums[j];
        s.first[head * s.k + j] = at;
        for (int i = 0; i < s.chunks; i++) {
            int n = counts[(int64_t)i * s.k + j];
            counts[(int64_t)i * s.k + j] = at;
            at += n;
        }
    }
}

/* Tokens by cluster, ascending; a warp per chunk. */
static __global__ void __launch_bounds__(32) order_chunk(const svg2_side s)
{
    __shared__ int place[MOST_CLUSTERS];
    int head = blockIdx.y, lane = threadIdx.x, *order = s.order + head * s.video;
    const int *from = s.counts + ((int64_t)head * s.chunks + blockIdx.x) * s.k;
    int64_t t0 = blockIdx.x * (int64_t)CHUNK;
    if (s.done[head])
        return;
    for (int j = lane; j < s.k; j += 32)
        place[j] = from[j];
    __syncwarp();
    for (int64_t u = t0; u < min(t0 + CHUNK, s.video); u += 32) {
        bool valid = u + lane < s.video;
        int label = valid ? of_head(s, s.label, head)[u + lane] : -1;
        uint32_t same = __match_any_sync(~0u, label);
        int before = __popc(same & ((1u << lane) - 1)), at = valid ? place[label] : 0;
        __syncwarp();
        if (valid && before == 0)
            place[label] = at + __popc(same);
        if (valid)
            order[at + before] = (int)(u + lane);
        __syncwarp();
    }
}

/* Where cluster blockIdx.x of head blockIdx.y goes; a thread per channel. */
static __global__ void move_centroids(const svg2_side s)
{
    __shared__ double change[128];
    int j = blockIdx.x, head = blockIdx.y, c = threadIdx.x, d = blockDim.x;
    int size, from;
    if (s.done[head])
        return;
    size = s.size[head * s.k + j];
    from = s.first[head * s.k + j];
    const int *tokens = s.order + head * s.video + from;
    const uint16_t *x = (const uint16_t *)s.x + head / s.per * s.n * d + c;
    float old = of_head(s, s.centroid, head)[(int64_t)j * d + c], next = old;
    double sum = 0;
#pragma unroll 4
    for (int i = 0; i < size; i++)
        sum += (double)__uint_as_float((uint32_t)x[(int64_t)tokens[i] * d] << 16);
    if (size)
        next = __bfloat162float(__float2bfloat16_rn((float)(sum / (double)size)));
    s.next[((int64_t)head * s.k + j) * d + c] = next;
    change[c] = ((double)next - old) * ((double)next - old);
    __syncthreads();
    if (c == 0) {
        double moved = 0;
        for (int e = 0; e < d; e++)
            moved += change[e];
        s.moved[head * s.k + j] = sqrt(moved);
    }
}

/* Has a head come to rest? */
static __global__ void __launch_bounds__(THREADS) end_iteration(const svg2_side s, double tol)
{
    __shared__ double part[THREADS / 32];
    int head = blockIdx.x;
    double most = 0;
    if (s.done[head])
        return;
    for (int j = threadIdx.x; j < s.k; j += THREADS)
        most = fmax(most, s.moved[head * s.k + j]);
    most = warp_max(most);
    if ((threadIdx.x & 31) == 0)
        part[threadIdx.x >> 5] = most;
    __syncthreads();
    if (threadIdx.x)
        return;
    for (int w = 1; w < THREADS / 32; w++)
        most = fmax(most, part[w]);
    ++*of_head(s, s.iterations, head);
    s.done[head] = !(most >= tol);
    s.n_unsure[head] = 0;
}

/* ---- the map -------------------------------------------------------------------------------- */

/* Ascending; n a power of two. */
static __device__ void sort_ranks(uint64_t *rank, int n)
{
    for (int size = 2; size <= n; size *= 2)
        for (int step = size / 2; step; step /= 2) {
            for (int i = threadIdx.x; i < n; i += blockDim.x) {
                int other = i ^ step;
                if (other < i) /* the lower one of a pair moves both */
                    continue;
                uint64_t a = rank[i], b = rank[other];
                if ((a > b) == ((i & size) == 0)) {
                    rank[i] = b;
                    rank[other] = a;
                }
            }
            __syncthreads();
        }
}

/* Key clusters of query cluster blockIdx.x of head blockIdx.y (svg2_weights, svg2_prefix). */
static __global__ void __launch_bounds__(THREADS) keep_clusters(const svg2_args a)
{
    __shared__ uint64_t rank[MOST_CLUSTERS];
    __shared__ float p[MOST_CLUSTERS];
    __shared__ double total;
    __shared__ int kept;
    const svg2_side &keys = a.side[1];
    int head = blockIdx.y, kc = keys.k, n = 1;
    const float *q = of_head(a.side[0], a.side[0].centroid, head) + (int64_t)blockIdx.x * a.d;
    const float *k = of_head(keys, keys.centroid, head);
    const int *size = keys.size + head * kc;
    uint8_t *row = of_head(keys, a.kept, head) + (int64_t)blockIdx.x * kc;
    float top = -INFINITY;

    for (int b = threadIdx.x; b < kc; b += THREADS) {
        double dot = 0;
        for (int c = 0; c < a.d; c++)
            dot = __dadd_rn(dot, __dmul_rn((double)q[c], (double)k[(int64_t)b * a.d + c]));
        p[b] = (float)(dot * a.scale);
        row[b] = 0;
    }
    __syncthreads();
    for (int b = 0; b < kc; b++)
        top = fmaxf(top, p[b]);
    __syncthreads();
    for (int b = threadIdx.x; b < kc; b += THREADS)
        p[b] = (float)((double)size[b] * exp((double)p[b] - (double)top));
    __syncthreads();
    if (threadIdx.x == 0) {
        double sum = 0;
        for (int b = 0; b < kc; b++)
            sum += p[b];
        total = fmax(sum, 1e-12);
    }
    __syncthreads();
    while (n < kc)
        n *= 2;
    for (int b = threadIdx.x; b < n; b += THREADS) {
        float x = b < kc ? __bfloat162float(__float2bfloat16_rn((float)((double)p[b] / total))) : 0;
        rank[b] = b < kc ? (uint64_t)~__float_as_uint(x) << 32 | (uint32_t)b : ~0ull;
    }
    __syncthreads();
    sort_ranks(rank, n);
    if (threadIdx.x == 0) {
        float sum = 0, most = (float)a.rule.top_p;
        int i = 0;
        while (i < kc && (sum += __uint_as_float(~(uint32_t)(rank[i] >> 32))) <= most)
            i++;
        i = a.rule.top_p >= 1 ? kc : min(i + 1, kc);
        kept = max(i, (int)a.rule.least);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < kept; i += THREADS)
        row[(uint32_t)rank[i]] = 1;
    if (!a.spread && blockIdx.x == 0 && threadIdx.x == 0)
        a.map.map[head] = 1;
}

/* ---- masks that stay ------------------------------------------------------------------------ */

/* The keys of a query cluster; a warp each. */
static __global__ void __launch_bounds__(THREADS) spread_clusters(const svg2_args a)
{
    const svg2_side &keys = a.side[1];
    int64_t row = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) >> 5, each = a.side[0].k + 1;
    if (row >= a.heads * each)
        return;
    int head = (int)(row / each), q = (int)(row % each);
    const int32_t *label = of_head(keys, keys.label, head);
    const uint8_t *kept = of_head(keys, a.kept, head) + (int64_t)q * keys.k;
    bool all = q == a.side[0].k;
    fill_row(a.clusters, row,
             [&](int64_t j) { return j < keys.n && (all || j >= keys.video || kept[label[j]]); });
}

/* A warp per row of the mask: the keys of its token's cluster. */
static __global__ void __launch_bounds__(THREADS) spread_tokens(const svg2_args a)
{
    const svg2_side &queries = a.side[0];
    int64_t row = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) >> 5, each = queries.k + 1;
    if (row >= a.heads * queries.n)
        return;
    int64_t head = row / queries.n, i = row % queries.n;
    int64_t q = i < queries.video ? of_head(queries, queries.label, (int)head)[i] : queries.k;
    copy_row_bits(a.map, row, a.clusters.map + (head * each + q) * a.clusters.words, a.side[1].n);
}

/* ---- launches ------------------------------------------------------------------------------- */

template <int D>
static int launch_side(struct gpu *g, const svg2_args &a, const svg2_side &s, struct err *err)
{
    int smem = 3 * TILE * D * 2;
    dim3 clusters(s.k, a.heads), chunks(s.chunks, a.heads);
    dim3 tiles(ceil_div(s.video, TILE), a.heads);
    PASS_ON_CU(err, cudaMemsetAsync(s.n_unsure, 0, (size_t)a.heads * 4, g->stream));
    PASS_ON_CU(err, run_kernel(g->stream, place_centroids, clusters, D, 0, s, a.rule, 1));
    PASS_ON_CU(err, run_kernel(g->stream, token_squares, dim3(ceil_div(s.video, 256), a.heads), 256,
                               0, s, D));
    for (int64_t i = 0; i < a.rule.iterations; i++) {
        PASS_ON_CU(err, run_kernel(g->stream, assign_tokens<D>, tiles, THREADS, smem, s));
        PASS_ON_CU(err, run_kernel(g->stream, assign_unsure, dim3(32, a.heads), 256, 0, s, D));
        PASS_ON_CU(err, run_kernel(g->stream, count_chunk, chunks, THREADS, 0, s));
        PASS_ON_CU(err, run_kernel(g->stream, place_chunks, a.heads, 1024, 0, s));
        PASS_ON_CU(err, run_kernel(g->stream, order_chunk, chunks, 32, 0, s));
        PASS_ON_CU(err, run_kernel(g->stream, move_centroids, clusters, D, 0, s));
        PASS_ON_CU(err, run_kernel(g->stream, end_iteration, a.heads, THREADS, 0, s, a.rule.tol));
        PASS_ON_CU(err, run_kernel(g->stream, place_centroids, clusters, D, 0, s, a.rule, 0));
    }
    return 0;
}

static int launch(struct gpu *g, const struct select_job *job, struct err *err)
{
    const svg2_args &a = *(const svg2_args *)job->state;
    for (int i = 0; i < 2; i++)
        PASS_ON(a.d == 128 ? launch_side<128>(g, a, a.side[i], err)
                           : launch_side<64>(g, a, a.side[i], err));
    PASS_ON_CU(err,
               run_kernel(g->stream, keep_clusters, dim3(a.side[0].k, a.heads), THREADS, 0, a));
    if (a.spread) {
        PASS_ON_CU(err, run_kernel(g->stream, spread_clusters,
                                   ceil_div(a.heads * (a.side[0].k + 1LL), 8), THREADS, 0, a));
        return CU_STATUS(
            err, run_kernel(g->stream, spread_tokens, ceil_div(a.heads * a.nq, 8), THREADS, 0, a));
    }
    return 0;
}

/* ---- the table's functions ------------------------------------------------------------------ */

static bool fits(const struct select_problem *p, char why[160])
{
    const struct svg2_rule *r = &select_rule(p, 0)->svg2;
    int64_t most = MAX(r->qc, r->kc);
    return dims_fit(p, why) &&
           (most <= MOST_CLUSTERS || refuse(why, "the GPU side has up to %d clusters, not %lld",
                                            MOST_CLUSTERS, (long long)most));
}

/* Streams, and centroids to start from. */
static int put_given(struct gpu *g, const struct select_problem *p, svg2_side *s, struct err *err)
{
    int64_t each = (int64_t)s->k * p->d;
    auto given = [=](int64_t h) { return (const struct svg2_given *)select_given(p, (int)h); };
    PASS_ON(put_each(g, p->heads, &s->stream, err,
                     [=](int64_t h) { return given(h)->stream[s->which]; }));
    for (int h = 0; h < p->heads; h++) {
        const float *from = given(h)->centroids[s->which];
        if (!from)
            continue;
        if (!s->start)
            PASS_ON(take(g, err, &s->start, p->heads * each));
        PASS_ON(gpu_put(g, s->start + h * each, from, each * 4, err));
    }
    return 0;
}

static int init_side(struct gpu *g, const struct select_problem *p, svg2_side *s, struct err *err)
{
    int64_t h = p->heads, clusters = h * s->k, tokens = h * s->video;
    s->chunks = (int)ceil_div(s->video, CHUNK);
    PASS_ON(put_given(g, p, s, err));
    return take(g, err, &s->bf16, clusters * p->d, &s->next, clusters * p->d, &s->centroid_sq,
                clusters, &s->token_sq, tokens, &s->unsure, tokens, &s->n_unsure, h, &s->size,
                clusters, &s->first, clusters, &s->counts, clusters * s->chunks, &s->order, tokens,
                &s->moved, clusters, &s->done, h);
}

/* Places of the own numbers. */
static int init_own(struct gpu *g, struct select_job *job, svg2_args *a, struct err *err)
{
    const struct svg2_rule *r = &a->rule;
    int64_t q = r->qc * a->d * 4, k = r->kc * a->d * 4, labels = r->video * 4;
    int64_t bytes = (int64_t)sizeof(struct svg2_own) + q + k + 2 * labels + r->qc * r->kc;
    char *own = NULL;
    job->lists.own_bytes = ceil_div(bytes, 16) * 16;
    PASS_ON(take(g, err, &own, a->heads * job->lists.own_bytes));
    job->lists.own = own;
    for (int i = 0; i < 2; i++) {
        svg2_side *s = &a->side[i];
        s->own_bytes = job->lists.own_bytes;
        s->iterations = (int64_t *)own + i;
        s->centroid = (float *)(own + sizeof(struct svg2_own) + i * q);
        s->label = (int32_t *)(own + sizeof(struct svg2_own) + q + k + i * labels);
    }
    a->kept = (uint8_t *)(own + sizeof(struct svg2_own) + q + k + 2 * labels);
    return 0;
}

/* The mask's pairs where it stays on the device and nobody asks for more; else one unit, and who
 * has the clusters makes the mask. */
static int init(struct gpu *g, struct select_job *job, struct err *err)
{
    const struct select_problem *p = &job->problem;
    bool spread = p->choices->keep_on_device && !p->choices->fetch;
    svg2_args *a = NULL;

    PASS_ON(method_init(g, job, spread ? 1 : p->nq, spread ? 1 : p->nk, &a, err));
    a->rule = select_rule(p, 0)->svg2;
    a->scale = p->scale;
    a->spread = spread;
    a->clusters = a->map;
    if (spread)
        PASS_ON(take(g, err, &a->clusters.map, a->heads * (a->rule.qc + 1) * a->clusters.words));
    PASS_ON(init_own(g, job, a, err));
    for (int i = 0; i < 2; i++) {
        svg2_side *s = &a->side[i];
        s->which = i;
        s->x = i ? a->k : a->q;
        s->n = i ? a->nk : a->nq;
        s->per = i ? a->per_kv : 1;
        s->video = a->rule.video;
        s->k = (int)(i ? a->rule.kc : a->rule.qc);
        PASS_ON(init_side(g, p, s, err));
    }
    return 0;
}

extern "C" const struct select_method select_svg2 = {
    "svg2", fits, init, launch, NULL, NULL, false, NULL,
};
