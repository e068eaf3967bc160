/*
 * chipmunk.cu - the keys that a group of 192 queries keeps on Chipmunk's full steps (arXiv
 * 2506.03275): the largest column masses under given normalisers, drawn keys, and the static ones.
 * The CPU side is sim/methods/chipmunk/chipmunk.c.
 *
 * Static keys and drawn ones are integers. Masses are sums in fp32 of e^(s - normaliser) from bf16
 * products: a thread block has a group and walks over keys, a warp has 96 rows and 32 keys, whose
 * operands stay in registers. One Q K^T and an exponential per pair; a few heads at a time, so that
 * the masses stay small.
 */
#include "core/rng.h"
#include "cuda/mma.cuh"
#include "cuda/select/method.cuh"
#include "cuda/select/wide.cuh"

#define ROWS 192 /* of a group */
#define TILE 128 /* keys at a time, and of the published kernel's tile */
#define TILES 8  /* that a thread block walks */
#define THREADS 256
#define SUM_BYTES ((int64_t)512 << 20) /* of the masses of some heads */

struct chip_args : head_args {
    int head0, at_once; /* heads whose masses there is room for */
    struct chip_rule_numbers rule;
    float *lse;                   /* [heads][n] in base 2 */
    uint64_t *stream;             /* [heads] of the keys drawn anew */
    uint32_t *fixed;              /* [groups][words] static keys */
    int32_t *n_fixed;             /* [groups] */
    float *sum;                   /* [some heads][groups][n] */
    unsigned long long *selected; /* [heads] pairs before padding */
};

/* ---- static keys ---------------------------------------------------------------------------- */

static __device__ __forceinline__ bool within(int64_t j, int64_t lo, int64_t hi)
{
    return j >= lo && j < hi;
}

/* First of `side` boxes around x on an axis of `size` boxes, moved inwards at the borders. */
static __device__ __forceinline__ int64_t cube_start(int64_t x, int64_t size, int64_t side)
{
    return max((int64_t)0, min(x - side / 2, size - side));
}

static __device__ bool in_cube(const chip_rule_numbers &r, int64_t g, int64_t j)
{
    int64_t box = j / ROWS, side = r.local_voxels / 2 * 2 + 1, plane = r.grid[1] * r.grid[2];
    int64_t own[3] = {g / plane, g / r.grid[2] % r.grid[1], g % r.grid[2]};
    int64_t at[3] = {box / plane, box / r.grid[2] % r.grid[1], box % r.grid[2]};
    bool in = box < plane * r.grid[0];
    for (int a = 0; a < 3; a++) {
        int64_t lo = cube_start(own[a], r.grid[a], side);
        in &= within(at[a], lo, lo + side);
    }
    return in;
}

/* What a group keeps whatever the data (chip_static). */
static __device__ bool is_static(const chip_args &a, int64_t g, int64_t j)
{
    const chip_rule_numbers &r = a.rule;
    int64_t voxels = r.grid[0] * r.grid[1] * r.grid[2], lv = r.local_voxels;
    int64_t last = a.groups - ((r.n - r.video) / ROWS + 1), centre = g * ROWS + ROWS / 2;
    bool keep = j >= r.video;

    if (g >= voxels)
        keep |= lv > 0 && j >= r.n - ROWS * lv * lv * lv;
    else
        keep |= (!r.clean && (lv == 0 || lv % 2 == 1) && j < ROWS) || (lv > 0 && in_cube(r, g, j));
    if (g >= last)
        keep |= j >= r.n - r.n / TILE * TILE;
    else if (r.random_keys > 0)
        keep |= rng_uniform(r.seed, r.stream, (uint64_t)(g * r.n + j)) < r.random_keys;
    if (r.window > 0 && g < r.video / ROWS)
        keep |= within(j, centre - r.window, min(r.video, centre + r.window));
    return keep;
}

/* A thread block per group. */
static __global__ void __launch_bounds__(WIDE) static_keys(const chip_args a)
{
    int64_t g = blockIdx.x;
    int kept = 0;
    wide_bits(a.fixed + g * a.map.words, a.map.words, [&](int j) {
        bool keep = j < a.nk && is_static(a, g, j);
        kept += keep;
        return keep;
    });
    kept = wide_sum(kept);
    if (threadIdx.x == 0)
        a.n_fixed[g] = kept;
}

/* ---- column masses -------------------------------------------------------------------------- */

/* e^(s - normaliser) of 96 rows from `row` on and 32 keys, added up down the columns. b: the keys;
 * lse [rows]: of the group's rows. */
template <int D>
static __device__ __forceinline__ void
add_rows(const chip_args &a, uint32_t q, int row, const float *lse, int rows,
         const uint32_t (&b)[D / 16][2][4], float (&sum)[4][2])
{
    int lane = threadIdx.x & 31;
    for (int r = row; r < row + ROWS / 2; r += 16) {
        float acc[4][4] = {{0}};
#pragma unroll
        for (int kk = 0; kk < D / 16; kk++) {
            uint32_t x[4];
            load_a<D>(q, r, kk, x);
#pragma unroll
            for (int n = 0; n < 4; n++)
                mma_bf16(acc[n], x, b[kk][n / 2][n % 2 * 2], b[kk][n / 2][n % 2 * 2 + 1]);
        }
        int at = r + (lane >> 2);
        float low = at < rows ? lse[at] : INFINITY, high = at + 8 < rows ? lse[at + 8] : INFINITY;
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sum[n][i % 2] += exp2_fast(fmaf(acc[n][i], a.scale_log2, i < 2 ? -low : -high));
    }
}

/* TILES tiles of keys of group blockIdx.y of head head0 + blockIdx.z, whose queries stay. Warp w:
 * rows of half w / 4, keys of quarter w % 4 of a tile. */
template <int D>
static __global__ void __launch_bounds__(THREADS, 2) column_masses(const chip_args a)
{
    extern __shared__ __align__(128) uint8_t memory[];
    __shared__ float part[TILE]; /* of the second half; two thread blocks just fit */
    uint32_t q = shared_addr(memory), k = q + ROWS * D * 2;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, half = warp / 4, key = warp % 4 * 32;
    int64_t head = a.head0 + blockIdx.z, row0 = blockIdx.y * (int64_t)ROWS;
    int64_t key0 = blockIdx.x * (int64_t)(TILE * TILES), end = min(key0 + TILE * TILES, a.nk);
    const uint4 *keys = a.k + head / a.per_kv * a.nk * (D / 8);
    float *to = a.sum + (blockIdx.z * (int64_t)a.groups + blockIdx.y) * a.nk;

    copy_tile<D, ROWS, THREADS>(q, a.q + head * a.nk * (D / 8), row0, a.nk);
    copy_tile<D, TILE, THREADS>(k, keys, key0, a.nk);
    copy_commit();
    for (int turn = 0; key0 < end; key0 += TILE, turn ^= 1) {
        uint32_t b[D / 16][2][4];
        float sum[4][2] = {{0}};
        copy_wait<0>();
        __syncthreads();
#pragma unroll
        for (int kk = 0; kk < D / 16; kk++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                load_b<D>(k + turn * TILE * D * 2, key + 16 * e, kk, b[kk][e]);
        if (key0 + TILE < end)
            copy_tile<D, TILE, THREADS>(k + (turn ^ 1) * TILE * D * 2, keys, key0 + TILE, a.nk);
        copy_commit();
        add_rows<D>(a, q, half * (ROWS / 2), a.lse + head * a.nk + row0,
                    (int)min((int64_t)ROWS, a.nk - row0), b, sum);
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
#pragma unroll
                for (int step = 4; step < 32; step *= 2)
                    sum[n][e] += __shfl_xor_sync(~0u, sum[n][e], step);
                if (half == 1 && lane < 4)
                    part[key + 8 * n + 2 * lane + e] = sum[n][e];
            }
        __syncthreads();
#pragma unroll
        for (int e = 0; e < 8; e++) {
            int j = key + 8 * (e / 2) + 2 * lane + e % 2;
            if (half == 0 && lane < 4 && key0 + j < a.nk)
                to[key0 + j] = sum[e / 2][e % 2] + part[j];
        }
    }
}

/* ---- the choice ----------------------------------------------------------------------------- */

/* Group blockIdx.x of head head0 + blockIdx.y. */
static __global__ void __launch_bounds__(WIDE) choose_keys(const chip_args a)
{
    int64_t g = blockIdx.x, head = a.head0 + blockIdx.y, row = head * a.groups + g;
    const float *sum = a.sum + (blockIdx.y * (int64_t)a.groups + g) * a.nk;
    const uint32_t *fixed = a.fixed + g * a.map.words;
    uint32_t *map = a.map.map + row * a.map.words;
    const chip_rule_numbers &r = a.rule;
    int fixed_keys = a.n_fixed[g], kept = 0, seen = 0;
    bool add = !r.all && r.top > 0 && fixed_keys + r.top_share < a.nk;
    auto value = [=](int x) { return sum[x]; };
    wide_cut c = {INFINITY, INFINITY, 0, 0};
    if (add) {
        wide_list<decltype(value)> list(value, (int)a.nk);
        c = wide_largest(list, (int)r.top);
    }
    for (int j0 = 0; j0 < a.map.words * 32; j0 += WIDE) {
        int j = j0 + (int)threadIdx.x;
        bool valid = j < a.nk, keep = valid && (r.all || (fixed[j / 32] >> (j % 32) & 1));
        if (add) /* for all threads alike, because they wait for each other */
            keep |=
                wide_has(c, valid ? sum[j] : 0, valid, &seen) ||
                (valid && rng_uniform(r.seed, a.stream[head], (uint64_t)(g * a.nk + j)) < r.redraw);
        uint32_t word = __ballot_sync(~0u, keep);
        if ((threadIdx.x & 31) == 0 && j / 32 < a.map.words)
            map[j / 32] = word;
        kept += keep;
    }
    kept = wide_sum(kept);
    if (threadIdx.x == 0)
        atomicAdd(a.selected + head,
                  (unsigned long long)(min((int64_t)ROWS, a.nk - g * ROWS) * kept));
    int64_t lack = r.clean ? 0 : (r.multiple - kept % r.multiple) % r.multiple;
    int want = (int)min(lack, a.nk - kept);
    seen = 0;
    for (int j0 = 0; seen < want; j0 += WIDE) {
        int j = j0 + (int)threadIdx.x, w = j / 32, all;
        uint32_t had = w < a.map.words ? map[w] : 0;
        bool lacks = j < a.nk && !(had >> (j % 32) & 1);
        int before = seen + wide_rank(lacks, &all);
        uint32_t word = had | __ballot_sync(~0u, lacks && before < want);
        seen += all;
        if ((threadIdx.x & 31) == 0 && w < a.map.words)
            map[w] = word;
    }
}

/* ---- the table's functions ------------------------------------------------------------------ */

static int launch(struct gpu *g, const struct select_job *job, struct err *err)
{
    chip_args a = *(const chip_args *)job->state;
    int smem = (ROWS + 2 * TILE) * a.d * 2;

    PASS_ON_CU(err, cudaMemsetAsync(a.selected, 0, (size_t)a.heads * 8, g->stream));
    PASS_ON_CU(err, run_kernel(g->stream, static_keys, a.groups, WIDE, 0, a));
    for (a.head0 = 0; a.head0 < a.heads; a.head0 += a.at_once) {
        int n = MIN(a.heads - a.head0, a.at_once);
        PASS_ON_CU(err,
                   run_kernel(g->stream, a.d == 128 ? column_masses<128> : column_masses<64>,
                              dim3(ceil_div(a.nk, TILE * TILES), a.groups, n), THREADS, smem, a));
        PASS_ON_CU(err, run_kernel(g->stream, choose_keys, dim3(a.groups, n), WIDE, 0, a));
    }
    return 0;
}

static int init(struct gpu *g, struct select_job *job, struct err *err)
{
    const struct select_problem *p = &job->problem;
    chip_args *a = NULL;
    int64_t sums, n = p->nq;

    PASS_ON(method_init(g, job, ROWS, 1, &a, err));
    a->rule = select_rule(p, 0)->chip;
    sums = a->groups * n;
    a->at_once = (int)MAX(MIN(SUM_BYTES / (4 * sums), p->heads), 1);
    PASS_ON(put_each(g, p->heads * n, &a->lse, err, [=](int64_t i) {
        const struct chip_given *given = (const struct chip_given *)select_given(p, (int)(i / n));
        return (float)(given->lse[i % n] * M_LOG2E);
    }));
    PASS_ON(put_each(g, p->heads, &a->stream, err, [=](int64_t h) {
        return ((const struct chip_given *)select_given(p, (int)h))->stream;
    }));
    PASS_ON(take(g, err, &a->fixed, a->groups * (int64_t)a->map.words, &a->n_fixed, a->groups,
                 &a->sum, a->at_once * sums, &a->selected, p->heads));
    job->lists.own = a->selected;
    job->lists.own_bytes = 8;
    return 0;
}

extern "C" const struct select_method select_chipmunk = {
    "chipmunk", dims_fit, init, launch, NULL, NULL, false, NULL,
};
