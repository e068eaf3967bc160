/*
 * xattn_sm90.cu - antidiagonal scores of strided cells on Hopper: wgmma, q and k by TMA.
 *
 * A run of S tokens is one row of S D channels in memory, so the scores are a plain product of two
 * matrices of N / S rows; only the runs of q are read from their last token to their first. A
 * thread block per multiprocessor takes one tile of 192 x 256 scores after the other, of which 110
 * FLOP are made per byte from L2. One thread copies, three warpgroups have 64 rows each, and one
 * may reduce its scores, in registers, while the others multiply the next tile. At the diagonal a
 * warpgroup multiplies no more columns than its rows see, in steps of 64.
 */
#include "cuda/methods/xattention/xattn_sm90.cuh"
#include "cuda/device.h"
#include "cuda/warp.cuh"
#include "cuda/wgmma.cuh"

#define DEPTH 64 /* channels of a stage */
#define STAGES 4
/* Tiles at work. A tile has no fewer than STAGES stages, so that copies are at most two tiles ahead
 * of the slowest warpgroup. */
#define SLOTS 4
/* Columns of a wgmma. One of 256 takes more registers than the compiler counts with, the share of a
 * thread before they are dealt out anew. */
#define MOST 128
#define COLUMNS XATTN_COLUMNS
#define BOX 128 /* columns of a copy */
#define ROWS 64 /* of a warpgroup */
#define WARPGROUPS 3
#define TILE_ROWS (ROWS * WARPGROUPS)

struct score_smem {
    alignas(1024) uint8_t q[STAGES][TILE_ROWS * DEPTH * 2];
    alignas(1024) uint8_t k[STAGES][COLUMNS * DEPTH * 2];
    alignas(16) int4 tiles[SLOTS]; /* at work, {place, 0}; y < 0: no more */
    uint64_t full[STAGES], empty[STAGES];
};

struct place {
    int head, row0, key0, boxes; /* reduced rows; copies of keys */
};

static DEVICE place place_at(int2 tile)
{
    return {tile.x >> 16, (tile.x & 0xffff) * TILE_ROWS, (tile.y & 0xffffff) * COLUMNS,
            tile.y >> 24};
}

/* Columns of a tile that one of `rows` rows from row0 on sees. */
static __host__ __device__ __forceinline__ int seen_columns(const xattn_args &a, int row0, int rows,
                                                            int key0)
{
    int last = row0 + rows < a.rows ? row0 + rows - 1 : a.rows - 1;
    int end = row0 < a.rows ? columns(a, last) : 0;
    end = (end < a.keys ? end : a.keys) - key0;
    return end < 0 ? 0 : end < COLUMNS ? end : COLUMNS;
}

/* ---- copies --------------------------------------------------------------------------------- */

/* Stage c of a tile into buffer `at`, by one thread, when the buffer's phase is over. */
static DEVICE void copy_stage(score_smem &sm, const xattn_args &a, const CUtensorMap *mq,
                              const CUtensorMap *mk, const place &p, int c, int log_d, int at)
{
    uint32_t bar = smem_addr(&sm.full[at]), k = smem_addr(sm.k[at]);
    int x = c * DEPTH, t = x >> log_d;
    mbar_expect(bar, sizeof sm.q[0] + p.boxes * (BOX * DEPTH * 2));
    tma_load(smem_addr(sm.q[at]), mq, bar, x + ((a.stride - 1 - 2 * t) << log_d), p.row0, p.head,
             L2_EVICT_LAST);
    tma_load(k, mk, bar, x, p.key0, p.head / a.per_kv, L2_EVICT_LAST);
    if (p.boxes > 1)
        tma_load(k + BOX * DEPTH * 2, mk, bar, x, p.key0 + BOX, p.head / a.per_kv, L2_EVICT_LAST);
}

/* A warpgroup's way through the stages: wait for one, and return its buffer. */
struct walk {
    score_smem &sm;
    const xattn_args &a;
    int stages, group;
    ring<STAGES> at;

    DEVICE void give_back(int buffer)
    {
        warp_arrive(smem_addr(&sm.empty[buffer]));
    }

    /* A warpgroup without scores in a tile. */
    DEVICE void pass_by()
    {
        for (int c = 0; c < stages; c++) {
            mbar_wait(smem_addr(&sm.full[at.at]), at.parity);
            give_back(at.at);
            at.next();
        }
    }
};

/* All stages of the thread block's tiles, by one thread, as buffers come back. */
struct feed {
    score_smem &sm;
    const xattn_args &a;
    const CUtensorMap *mq, *mk;
    const xattn_sm90 &s;
    int stages, log_d;
    ring<STAGES> at;

    /* Copies a tile and takes the next one: late, so that it goes to a block that is free early,
     * and before a wait, under which it arrives. */
    DEVICE int copy_tile(int i, int tile)
    {
        int2 where = s.tiles[tile];
        place p = place_at(where);
        int next = 0;
#pragma unroll 1
        for (int c = 0; c < stages; c++) {
            if (c == stages - 1)
                next = atomicAdd(s.taken, 1) + (int)gridDim.x;
            mbar_wait(smem_addr(&sm.empty[at.at]), at.parity ^ 1);
            if (c == 0)
                sm.tiles[i % SLOTS] = make_int4(where.x, where.y, 0, 0);
            copy_stage(sm, a, mq, mk, p, c, log_d, at.at);
            at.next();
        }
        return next;
    }

    DEVICE void run()
    {
        int i = 0;
        for (int tile = blockIdx.x; tile < s.n; i++)
            tile = copy_tile(i, tile);
        mbar_wait(smem_addr(&sm.empty[at.at]), at.parity ^ 1);
        sm.tiles[i % SLOTS] = make_int4(0, -1, 0, 0);
        mbar_arrive(smem_addr(&sm.full[at.at]));
        if (atomicAdd(s.taken + 1, 1) ==
            (int)gridDim.x - 1) /* the last block: for the next launch */
            s.taken[0] = s.taken[1] = 0;
    }
};

/* ---- products -------------------------------------------------------------------------------- */

/* Scores of a warpgroup's 64 rows with the first N columns of a tile. */
template <int N> static DEVICE void multiply(walk &w, float (&acc)[N / 2])
{
    ring<STAGES> before;
#pragma unroll 1
    for (int c = 0; c < w.stages; c++) {
        mbar_wait(smem_addr(&w.sm.full[w.at.at]), w.at.parity);
        uint64_t q = descriptor(desc_low(smem_addr(w.sm.q[w.at.at]) + w.group * ROWS * 128, 16));
        uint64_t k = descriptor(desc_low(smem_addr(w.sm.k[w.at.at]), 16));
        wgmma_fence();
#pragma unroll
        for (int kk = 0; kk < DEPTH / 16; kk++)
            if constexpr (N == 2 * MOST) {
                wgmma_ss<MOST>((float(&)[MOST / 2]) acc[0], q + 2 * kk, k + 2 * kk, c + kk > 0);
                wgmma_ss<MOST>((float(&)[MOST / 2]) acc[MOST / 2], q + 2 * kk,
                               k + MOST * DEPTH * 2 / 16 + 2 * kk, c + kk > 0);
            } else {
                wgmma_ss<N>(acc, q + 2 * kk, k + 2 * kk, c + kk > 0);
            }
        wgmma_commit();
        wgmma_wait<1>(); /* the stage before is done */
        if (c > 0)
            w.give_back(before.at);
        before = w.at;
        w.at.next();
    }
    wgmma_wait<0>();
    hold(acc);
    w.give_back(before.at);
}

/* ---- scores of a tile ------------------------------------------------------------------------ */

/* `to` is aligned to as many floats as divide N. */
template <int N> static DEVICE void store_sums(float *to, const float (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        if (N % 4 == 0 && i % 4 == 0)
            ((float4 *)to)[i / 4] = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
        else if (N % 4 && N % 2 == 0 && i % 2 == 0)
            ((float2 *)to)[i / 2] = make_float2(x[i], x[i + 1]);
        else if (N % 2)
            to[i] = x[i];
}

/* The largest score and the block sums of one of a thread's two rows; PER reduced columns a block.
 * A quad has the row, and each of its lanes stores the sums of a quarter of the blocks. */
template <int PER, int N>
static DEVICE void reduce_row(const xattn_args &a, int64_t row, int key0, int half, bool really,
                              const float (&score)[N / 2])
{
    constexpr int MINE = N / PER / 4, CELLS = PER / 8; /* blocks of a lane; 8 columns of a block */
    int quad = threadIdx.x & 3;
    float tops[2] = {-INFINITY, -INFINITY}, sum[MINE];
#pragma unroll
    for (int c = 0; c < N / 4; c++)
        tops[c % 2] = fmaxf(tops[c % 2], score[4 * (c / 2) + 2 * half + c % 2]);
    float top = fmaxf(tops[0], tops[1]);
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2)) * a.factor;
    float base = top == -INFINITY ? 0 : top;
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        float part[4];
#pragma unroll
        for (int lane = 0; lane < 4; lane++) {
            part[lane] = 0;
#pragma unroll
            for (int c = 0; c < 2 * CELLS; c++) {
                int cell = (lane * MINE + i) * CELLS + c / 2;
                float x = fmaf(score[4 * cell + 2 * half + c % 2], a.factor, -base);
                part[lane] += exp2_fast(x);
            }
        }
        sum[i] = quad_add(part[0], part[1], part[2], part[3]);
    }
    if (really && quad == 0)
        a.top[row * a.tiles + key0 / COLUMNS] = top;
    if (really)
        store_sums<MINE>(a.sum + row * a.pitch + key0 / PER + quad * MINE, sum);
}

/* Columns from n on are not seen by a row. */
template <int N> static DEVICE void hide_columns(float (&score)[N / 2], int half, int n)
{
    int from = n - 2 * (threadIdx.x & 3);
#pragma unroll
    for (int c = 0; c < N / 4; c++) {
        float &x = score[4 * (c / 2) + 2 * half + c % 2];
        x = 8 * (c / 2) + c % 2 < from ? x : -INFINITY;
    }
}

/* A warpgroup's part of a tile, of which some of its rows see more than N - 64 columns, or N - 128.
 */
template <int PER, int N> static DEVICE void score_tile(walk &w, const int2 &tile)
{
    float acc[N / 2] = {0}; /* else the registers of all widths live through the loop over tiles */
    multiply<N>(w, acc);
    const xattn_args &a = w.a;
    place p = place_at(tile);
    int row0 = p.row0 + ROWS * w.group;
    int row = row0 + 16 * (threadIdx.x >> 5 & 3) + (threadIdx.x >> 2 & 7);
    int64_t at_row = (int64_t)p.head * a.rows + row;
    if (N < COLUMNS || uniform(seen_columns(a, row0, 1, p.key0)) < N)
#pragma unroll
        for (int half = 0; half < 2; half++)
            hide_columns<N>(acc, half, seen_columns(a, row + 8 * half, 1, p.key0));
#pragma unroll
    for (int half = 0; half < 2; half++)
        reduce_row<PER, N>(a, at_row + 8 * half, p.key0, half, row + 8 * half < a.rows, acc);
}

template <int PER> static DEVICE void consume(walk &w, const xattn_sm90 &s)
{
    constexpr int STEP = PER < 32 ? 64 : 128; /* four lanes share the blocks of a step */
    for (int i = 0;; i++) {
        mbar_wait(smem_addr(&w.sm.full[w.at.at]), w.at.parity);
        int4 at = warp_load(&w.sm.tiles[i % SLOTS]);
        int2 tile = make_int2(at.x, at.y);
        if (tile.y < 0)
            return;
        place p = place_at(tile);
        int n = uniform(seen_columns(w.a, p.row0 + ROWS * w.group, ROWS, p.key0));
        int width = (n + STEP - 1) / STEP * STEP;
        if (width == 256)
            score_tile<PER, 256>(w, tile);
        else if (STEP == 64 && width == 192)
            score_tile<PER, STEP == 64 ? 192 : 128>(w, tile);
        else if (width == 128)
            score_tile<PER, 128>(w, tile);
        else if (STEP == 64 && width == 64)
            score_tile<PER, STEP>(w, tile);
        else
            w.pass_by();
    }
}

template <int PER>
static __global__ void __launch_bounds__(128 * (WARPGROUPS + 1), 1)
    score_runs(const __grid_constant__ CUtensorMap mq, const __grid_constant__ CUtensorMap mk,
               const __grid_constant__ xattn_args a, const __grid_constant__ xattn_sm90 s,
               int log_d)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t raw[];
    score_smem &sm = *(score_smem *)raw;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            mbar_init(smem_addr(&sm.full[i]), 1);
            mbar_init(smem_addr(&sm.empty[i]), 4 * WARPGROUPS);
        }
        mbar_init_fence();
    }
    __syncthreads();
    int stages = (a.stride << log_d) / DEPTH, group = uniform(threadIdx.x >> 7);
    if (group == 0) {
        regs_dec<32>(); /* with 3 x 160 all that a multiprocessor has */
        if (threadIdx.x == 0)
            feed{sm, a, &mq, &mk, s, stages, log_d}.run();
    } else {
        regs_inc<160>();
        walk w = {sm, a, stages, group - 1};
        consume<PER>(w, s);
    }
#endif
}

/* ---- launches ------------------------------------------------------------------------------- */

/* Heads of n rows of `width` uint4 become heads of m >= n rows, the further ones zero. */
static __global__ void pad_heads(const uint4 *x, int64_t n, int64_t m, int width, int heads,
                                 uint4 *to)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    int64_t head = i / (m * width), row = i / width % m;
    if (head < heads)
        to[i] = row < n ? x[(head * n + row) * width + i % width] : make_uint4(0, 0, 0, 0);
}

static int pad(struct gpu *g, const uint4 *x, int64_t n, int64_t m, int width, int heads, uint4 *to,
               struct err *err)
{
    if (to)
        return CU_STATUS(err, run_kernel(g->stream, pad_heads, ceil_div(heads * m * width, 256),
                                         256, 0, x, n, m, width, heads, to));
    return 0;
}

int xattn_sm90_launch(struct gpu *g, const xattn_args &a, const xattn_sm90 &s, struct err *err)
{
    int log_d = a.d == 128 ? 7 : 6;
    auto runs = a.per_block == 8    ? score_runs<8>
                : a.per_block == 16 ? score_runs<16>
                                    : score_runs<32>;
    PASS_ON(pad(g, a.q, a.nq, (int64_t)a.rows * a.stride, a.d / 8, a.heads, s.padded[0], err));
    PASS_ON(pad(g, a.k, a.nk, (int64_t)a.keys * a.stride, a.d / 8, a.kv_heads, s.padded[1], err));
    if (s.blocks > 0)
        return CU_STATUS(err, run_kernel(g->stream, runs, s.blocks, 128 * (WARPGROUPS + 1),
                                         sizeof(score_smem), s.q, s.k, a, s, log_d));
    return 0;
}

/* ---- which thread block has which tiles ------------------------------------------------------ */

struct job {
    int2 tile;
    int cost;
};

#define TILE_COST 10 /* of a tile beside its products */
#define STEP_COST 20 /* of 64 x 64 scores */
#define LAST 3       /* tiles per thread block that are taken in order of their cost */

static int cost_of(const xattn_args &a, int row0, int key0)
{
    int steps = 0;
    for (int w = 0; w < WARPGROUPS; w++)
        steps += (seen_columns(a, row0 + w * ROWS, ROWS, key0) + 63) / 64;
    return steps > 0 ? TILE_COST + STEP_COST * steps : 0;
}

static int dearer(const void *x, const void *y)
{
    const job *l = (const job *)x, *r = (const job *)y;
    if (l->cost != r->cost)
        return l->cost > r->cost ? -1 : 1;
    if (l->tile.x != r->tile.x)
        return l->tile.x < r->tile.x ? -1 : 1;
    return l->tile.y < r->tile.y ? -1 : l->tile.y > r->tile.y;
}

/* Tiles that hold a score: row by row, long rows first, so that tiles at work share rows and
 * columns in L2; the last ones in order of their cost, so that all of the `blocks` thread blocks
 * end together. Returns their number. */
static int64_t list_jobs(const xattn_args &a, int blocks, job *jobs)
{
    int64_t n = 0;
    for (int head = 0; head < a.heads; head++)
        for (int r = (a.rows - 1) / TILE_ROWS; r >= 0; r--)
            for (int t = 0; t < a.tiles; t++) {
                int cost = cost_of(a, r * TILE_ROWS, t * COLUMNS);
                int seen = seen_columns(a, r * TILE_ROWS, TILE_ROWS, t * COLUMNS);
                int boxes = (seen + BOX - 1) / BOX;
                if (cost > 0)
                    jobs[n++] = {{head << 16 | r, boxes << 24 | t}, cost};
            }
    int64_t sorted = n < LAST * (int64_t)blocks ? n : LAST * (int64_t)blocks;
    qsort(jobs + n - sorted, (size_t)sorted, sizeof *jobs, dearer);
    return n;
}

static int make_tiles(struct gpu *g, const xattn_args &a, xattn_sm90 *s, struct err *err)
{
    int64_t most = a.heads * ceil_div(a.rows, TILE_ROWS) * a.tiles, n = 0;
    OWN(free_at) job *jobs = NULL;
    PASS_ON(mem_alloc(&jobs, most, sizeof *jobs, "tiles of scores", err));
    n = list_jobs(a, g->sms, jobs);
    s->n = (int)n;
    s->blocks = (int)(n < g->sms ? n : g->sms);
    PASS_ON(put_each(g, n, &s->tiles, err, [=](int64_t i) { return jobs[i].tile; }));
    PASS_ON(take(g, err, &s->taken, 2));
    return CU_STATUS(err, cudaMemsetAsync(s->taken, 0, 8, g->stream));
}

int xattn_sm90_init(struct gpu *g, const xattn_args &a, xattn_sm90 *s, struct err *err)
{
    int64_t nq = (int64_t)a.rows * a.stride, nk = (int64_t)a.keys * a.stride;
    if (nq != a.nq)
        PASS_ON(take(g, err, &s->padded[0], a.heads * nq * (a.d / 8)));
    if (nk != a.nk)
        PASS_ON(take(g, err, &s->padded[1], a.kv_heads * nk * (a.d / 8)));
    PASS_ON(tensor_map(&s->q, s->padded[0] ? s->padded[0] : a.q, a.stride * a.d, a.rows, a.heads,
                       TILE_ROWS, err));
    PASS_ON(tensor_map(&s->k, s->padded[1] ? s->padded[1] : a.k, a.stride * a.d, a.keys, a.kv_heads,
                       BOX, err));
    return make_tiles(g, a, s, err);
}
