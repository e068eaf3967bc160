/*
 * slashmap.cuh - vertical-slash masks as bit maps (MInference, arXiv:2407.02490, section 4.2): the
 * best columns and distances of a head, and either the pairs that the 64-row lists of the published
 * kernel cover for them, or the requested pairs. The CPU side is sim/blocks/vslash.c.
 *
 * A thread block chooses from a list (wide.cuh), a warp makes a row of the map.
 */
#pragma once

#include "cuda/select/lastrows.cuh"
#include "cuda/select/method.cuh"
#include "cuda/select/wide.cuh"

#define SLASH_ROWS 64
#define SLASH_MOST (1 << 18) /* tokens for which the words of `follow` have enough bits */

struct slash_lists {
    int n, words, heads, groups; /* words: of n bits; groups: rows of the map, per head */
    int n_cols, n_dists;         /* chosen, 0 .. n, with the forced ones */
    int force_cols, force_dists;
    int both;                /* bidirectional: a distance stands for both sides */
    const int *want;         /* [heads][2] n_cols and n_dists of each head; NULL: as above */
    const double *ver, *sla; /* [heads][n] scores >= 0 */
    uint32_t *cols, *dists;  /* [words] of the first head; the next one's are `stride` words on */
    int stride;
    int32_t *last;    /* [heads][words]: the last word of dists up to here that has
                       * a bit, or -1 */
    uint32_t *follow; /* [heads][n]: see follow_distances */
    uint32_t *ahead;  /* [heads][words + 2], both: see look_ahead */
    map_rows map;     /* [heads][groups] */
};

/* Sizes and memory for the lists of a job and the sums of its last rows. Columns and distances are
 * what comes beside its masks, after `first` bytes, a multiple of 8. */
static int slash_init(struct gpu *g, struct select_job *job, const last_rows *last, int64_t first,
                      slash_lists *a, struct err *err)
{
    a->n = (int)job->problem.nk;
    a->words = (int)job->lists.words;
    a->heads = job->problem.heads;
    a->groups = (int)job->lists.groups;
    a->both = !job->problem.causal;
    a->ver = last->ver;
    a->sla = last->sla;
    a->map = map_rows_of(&job->lists);
    job->lists.own_bytes = first + job->lists.words * 8;
    PASS_ON(gpu_alloc(g, job->problem.heads * job->lists.own_bytes, &job->lists.own, err));
    a->cols = (uint32_t *)job->lists.own + first / 4;
    a->dists = a->cols + a->words;
    a->stride = (int)(job->lists.own_bytes / 4);
    return take(g, err, &a->last, a->heads * (int64_t)a->words, &a->follow,
                a->heads * (int64_t)a->n, &a->ahead, a->heads * (int64_t)(a->words + 2));
}

/* ---- distances as bits ---------------------------------------------------------------------- */

/* Bits of word w below x. */
static __device__ __forceinline__ uint32_t below(int w, int x)
{
    int n = x - 32 * w;
    return n >= 32 ? ~0u : n <= 0 ? 0 : (1u << n) - 1;
}

/* Largest distance below x, -1 when there is none. */
static __device__ __forceinline__ int distance_below(const uint32_t *dists, const int32_t *last,
                                                     int x)
{
    if (x <= 0)
        return -1;
    int w = (x - 1) >> 5;
    uint32_t bits = dists[w] & below(w, x);
    if (bits == 0) {
        w = w ? last[w - 1] : -1;
        if (w < 0)
            return -1;
        bits = dists[w];
    }
    return 32 * w + 31 - __clz((int)bits);
}

/* The 64 distances from x on, as bits. x may be negative. */
static __device__ __forceinline__ uint64_t distances_from(const uint32_t *dists, int words, int x)
{
    int w = x >> 5;
    uint32_t first = w >= 0 && w < words ? dists[w] : 0;
    uint32_t second = w + 1 >= 0 && w + 1 < words ? dists[w + 1] : 0;
    uint32_t third = w + 2 >= 0 && w + 2 < words ? dists[w + 2] : 0;
    return (uint64_t)__funnelshift_r(second, third, x) << 32 | __funnelshift_r(first, second, x);
}

/* ---- choice --------------------------------------------------------------------------------- */

/* For each word the last one up to it that has a bit. */
static __device__ void last_words(const uint32_t *bits, int words, int32_t *last)
{
    __shared__ int shared[32];
    int each = (words + WIDE - 1) / WIDE, lane = threadIdx.x & 31;
    int w0 = threadIdx.x * each, w1 = min(w0 + each, words), at = -1;
    for (int w = w0; w < w1; w++)
        at = bits[w] ? w : at;
    for (int step = 1; step < 32; step *= 2) {
        int left = __shfl_up_sync(~0u, at, step);
        at = lane >= step ? max(at, left) : at;
    }
    __syncthreads();
    if (lane == 31)
        shared[threadIdx.x >> 5] = at;
    __syncthreads();
    int before = __shfl_up_sync(~0u, at, 1);
    before = lane ? before : -1;
    int warps = lane < (int)(threadIdx.x >> 5) ? shared[lane] : -1;
    before = max(before, __reduce_max_sync(~0u, warps));
    for (int w = w0; w < w1; w++)
        last[w] = before = bits[w] ? w : before;
}

/* Bit p of ahead [n]: is there a distance among the 64 from p - 64 on? */
static __device__ void look_ahead(const uint32_t *bits, int words, uint32_t *ahead, int n)
{
    wide_bits(ahead, n, [=](int p) { return distances_from(bits, words, p - SLASH_ROWS) != 0; });
}

/* What follows a block that starts at distance p. Bits 19 and up: how many more blocks follow
 * without a gap, that is, while there is a distance among the next 64 below. Lower bits: 1 + the
 * distance at which the block after these starts. Blocks are placed by their distance from the end
 * of the rows, so one table serves all row blocks. */
static __device__ void follow_distances(const uint32_t *bits, const int32_t *last, int words, int n,
                                        uint32_t *follow)
{
    extern __shared__ uint32_t goes_on[]; /* bit p */
    look_ahead(bits, words, goes_on, words);
    __syncthreads();
    if (threadIdx.x < SLASH_ROWS) {
        uint32_t run = 0;
#pragma unroll 4
        for (int p = threadIdx.x; p < n; p += SLASH_ROWS) {
            run = goes_on[p / 32] >> p % 32 & 1 ? run + 1 : 0;
            follow[p] = run;
        }
    }
    __syncthreads();
    for (int p = threadIdx.x; p < n; p += WIDE) {
        int run = (int)follow[p], end = distance_below(bits, last, p - SLASH_ROWS * run);
        follow[p] = (uint32_t)run << 19 | (uint32_t)(end + 1);
    }
}

/* Head blockIdx.x; blockIdx.y 0: columns, 1: distances. The best by score, ties by index, the first
 * `force` before all others. */
static __global__ void __launch_bounds__(WIDE) slash_pick(const slash_lists a)
{
    int head = blockIdx.x, n = a.n, number = blockIdx.y ? a.n_dists : a.n_cols;
    int force = blockIdx.y ? a.force_dists : a.force_cols;
    const double *score = (blockIdx.y ? a.sla : a.ver) + (int64_t)head * n;
    uint32_t *bits = (blockIdx.y ? a.dists : a.cols) + (int64_t)head * a.stride;
    auto value = [=](int x) { return x < force ? INFINITY : (float)score[x]; };
    wide_pick(value, n, a.want ? a.want[2 * head + blockIdx.y] : number, bits, a.words);
    __syncthreads();
    if (blockIdx.y == 0)
        return;
    if (a.both) {
        look_ahead(bits, a.words, a.ahead + (int64_t)head * (a.words + 2), a.words + 2);
        return;
    }
    int32_t *last = a.last + (int64_t)head * a.words;
    last_words(bits, a.words, last);
    __syncthreads();
    follow_distances(bits, last, a.words, n, a.follow + (int64_t)head * n);
}

/* ---- maps ----------------------------------------------------------------------------------- */

/* Set the bits [lo, lo + 64) of `words` words; by several lanes at a time. */
static __device__ __forceinline__ void cover_block(uint32_t *cover, int words, int lo)
{
    int w = lo >> 5, s = lo & 31;
    if (w < words)
        atomicOr(cover + w, ~0u << s);
    if (w + 1 < words)
        cover[w + 1] = ~0u;
    if (s && w + 2 < words)
        atomicOr(cover + w + 2, (1u << s) - 1);
}

/* A warp: the keys of the blocks of the row block that ends at e, 32 runs of blocks at a time, and
 * the number of these blocks; returns one past the last column that is still listed. */
static __device__ __forceinline__ int cover_distances(const slash_lists &a, int head, int e,
                                                      uint32_t *cover, int *listed)
{
    const uint32_t *follow = a.follow + (int64_t)head * a.n;
    const uint32_t *dists = a.dists + (int64_t)head * a.stride;
    const int32_t *last = a.last + (int64_t)head * a.words;
    int lane = threadIdx.x & 31, d = distance_below(dists, last, min(e, a.n)), hi = e;
    for (int w = lane; w < a.words; w += 32)
        cover[w] = 0;
    __syncwarp();
    *listed = 0;
    if (d < 0)
        return e;
    d = min(d, e - SLASH_ROWS); /* a block is not before the first key */
    while (d >= 0) {
        int from = 0, blocks = 0;
        for (int i = 0; i < 32 && d >= 0; i++) {
            uint32_t next = follow[d];
            int run = (int)(next >> 19);
            if (lane == i) {
                from = e - d - SLASH_ROWS;
                blocks = run + 1;
            }
            hi = e - d + SLASH_ROWS * run;
            *listed += run + 1;
            d = (int)(next & 0x7ffff) - 1;
        }
        for (uint32_t left = __ballot_sync(~0u, blocks > 4); left; left &= left - 1) {
            int owner = __ffs((int)left) - 1, first = __shfl_sync(~0u, from, owner);
            int number = __shfl_sync(~0u, blocks, owner);
            for (int i = lane; i < number; i += 32)
                cover_block(cover, a.words, first + SLASH_ROWS * i);
        }
        for (int i = 0; blocks <= 4 && i < blocks; i++)
            cover_block(cover, a.words, from + SLASH_ROWS * i);
    }
    __syncwarp();
    return hi;
}

/* A warp per 64 rows: blocks at any offset that cover the distances, and the columns outside. */
static __global__ void slash_lists_map(const slash_lists a)
{
    extern __shared__ uint32_t covers[];
    int warp = threadIdx.x >> 5, head = blockIdx.y, blocks;
    int group = blockIdx.x * (blockDim.x >> 5) + warp, e = (group + 1) * SLASH_ROWS;
    uint32_t *cover = covers + warp * a.words;
    const uint32_t *cols = a.cols + (int64_t)head * a.stride;

    if (group >= a.groups)
        return;
    int end = cover_distances(a, head, e, cover, &blocks);
    fill_row_words(a.map, (int64_t)head * a.groups + group, [&](int w) {
        return (cover[w] | (cols[w] & below(w, end))) & below(w, min(e, a.n));
    });
}

/* Keys at one of the distances, to either side, from some of the rows [m, end): fewer than 64. */
static __device__ void mark_last(const slash_lists &a, const uint32_t *dists, int m, int end,
                                 uint32_t *cover)
{
    uint64_t rows = ~0ull >> (SLASH_ROWS - (end - m));
    for (int k0 = 0; k0 < a.words * 32; k0 += 32) {
        int k = k0 + (int)(threadIdx.x & 31);
        uint64_t wanted = distances_from(dists, a.words, m - k) |      /* of rows m, m + 1, ... */
                          distances_from(dists, a.words, k - end + 1); /* end - 1, end - 2, ... */
        uint32_t word = __ballot_sync(~0u, k < a.n && (wanted & rows) != 0);
        if ((threadIdx.x & 31) == 0)
            cover[k0 / 32] = word;
    }
}

/* The same from the 64 rows m, m + 1, ...: of the row m, key k stands at m - k, of the last one at
 * k - m - 63. */
static __device__ void mark_rows(const slash_lists &a, const uint32_t *ahead, int m,
                                 uint32_t *cover)
{
    for (int w = threadIdx.x & 31; w < a.words; w += 32) {
        int before = m - 32 * w - 31 + SLASH_ROWS, behind = 32 * w - m + 1;
        uint32_t bits = __brev((uint32_t)distances_from(ahead, a.words + 2, before)) |
                        (uint32_t)distances_from(ahead, a.words + 2, behind);
        cover[w] = bits & below(w, a.n);
    }
}

/* Blocks of 64 keys, from the left: one starts at each marked key that none covers yet. By one
 * lane, to which it returns their number. */
static __device__ int cover_marked(uint32_t *cover, int words)
{
    uint32_t covered = 0; /* bits of word w that the block before covers */
    int blocks = 0;
    for (int w = 0; w < words;) {
        uint32_t bits = cover[w] & ~covered;
        if (bits == 0) {
            cover[w++] |= covered;
            covered = 0;
            continue;
        }
        int s = __ffs((int)bits) - 1; /* the block ends at this bit two words on */
        cover[w] |= covered | ~0u << s;
        if (w + 1 < words)
            cover[w + 1] = ~0u;
        covered = (1u << s) - 1;
        w += 2;
        blocks++;
    }
    return blocks;
}

/* Bidirectional: the keys of the blocks that cover the distances of rows m, ..., m + 63;
 * lane 0 receives the number of these blocks. */
static __device__ __forceinline__ int cover_both(const slash_lists &a, int head, int m,
                                                 uint32_t *cover)
{
    int blocks = 0;
    if (m + SLASH_ROWS <= a.n)
        mark_rows(a, a.ahead + (int64_t)head * (a.words + 2), m, cover);
    else
        mark_last(a, a.dists + (int64_t)head * a.stride, m, a.n, cover);
    __syncwarp();
    if ((threadIdx.x & 31) == 0)
        blocks = cover_marked(cover, a.words);
    __syncwarp();
    return blocks;
}

/* Bidirectional: a warp per 64 rows, blocks that cover the distances, and the columns. */
static __global__ void slash_both_map(const slash_lists a)
{
    extern __shared__ uint32_t covers[];
    int warp = threadIdx.x >> 5, head = blockIdx.y;
    int group = blockIdx.x * (blockDim.x >> 5) + warp, m = group * SLASH_ROWS;
    uint32_t *cover = covers + warp * a.words;
    const uint32_t *cols = a.cols + (int64_t)head * a.stride;

    if (group >= a.groups)
        return;
    cover_both(a, head, m, cover);
    fill_row_words(a.map, (int64_t)head * a.groups + group,
                   [&](int w) { return (cover[w] | cols[w]) & below(w, a.n); });
}

/* A warp per query: the columns and distances themselves. */
static __global__ void slash_pairs_map(const slash_lists a)
{
    int head = blockIdx.y;
    int q = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    const uint32_t *cols = a.cols + (int64_t)head * a.stride;
    const uint32_t *dists = a.dists + (int64_t)head * a.stride;
    if (q >= a.n)
        return;
    fill_row_words(a.map, (int64_t)head * a.n + q, [&](int w) {
        /* Key 32 w + j stands at distance q - 32 w - j: 32 distances, reversed; behind the query at
         * 32 w + j - q. */
        uint32_t keys = __brev((uint32_t)distances_from(dists, a.words, q - 32 * w - 31)) | cols[w];
        if (a.both)
            keys |= (uint32_t)distances_from(dists, a.words, 32 * w - q);
        return keys & below(w, a.both ? a.n : q + 1);
    });
}

/* From scores to columns and distances. */
static int slash_choose(struct gpu *g, const slash_lists &a, struct err *err)
{
    int bits = a.words * 4;
    return CU_STATUS(err, run_kernel(g->stream, slash_pick, dim3(a.heads, 2), WIDE, bits, a));
}

/* From scores to the map: groups of 64 rows (realised), or single rows. */
static int slash_launch(struct gpu *g, const slash_lists &a, bool realised, struct err *err)
{
    int warps = 4, bits = a.words * 4;
    PASS_ON(slash_choose(g, a, err));
    if (realised)
        return CU_STATUS(err, run_kernel(g->stream, a.both ? slash_both_map : slash_lists_map,
                                         dim3(ceil_div(a.groups, warps), a.heads), 32 * warps,
                                         warps * bits, a));
    return CU_STATUS(
        err, run_kernel(g->stream, slash_pairs_map, dim3(ceil_div(a.n, 8), a.heads), 256, 0, a));
}
