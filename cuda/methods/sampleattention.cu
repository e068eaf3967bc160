/*
 * sampleattention.cu - SampleAttention's selection (arXiv:2406.15486, algorithm 1): score lists of
 * the sampled slices, find_k, block map. The CPU side is
 * sim/methods/sampleattention/sampleattention.c.
 *
 * Keys are read once. For every unit of B/2 keys and every sampled row the kernel keeps the largest
 * score and the sums of e^(s - largest) on both sides of the one bin boundary that a unit can hold;
 * once a row's log-sum-exp is known, block columns and distance bins are sums of these over rows.
 * Scores come from bf16 products summed in float; everything after them is in double.
 *
 * 2 B N d FLOP per slice and head; the records take 32 N bytes per slice and head.
 *
 * The earlier algorithm (profile=v2, arXiv v1 and v2): exact rows, evenly strided from the last one
 * back (lastrows.cuh); the columns that hold a share of their mass, one by one; a window, and a few
 * dense last rows. 4 R N d FLOP for R rows, N^2 / 8 bytes written per head.
 */
#include "cuda/mma.cuh"
#include "cuda/select/cut.cuh"
#include "cuda/select/lastrows.cuh"
#include "cuda/select/method.cuh"
#include "cuda/select/wide.cuh"

#define MOST_TOKENS (1 << 24) /* of profile=v2 */
#define MAX_CHUNKS 64
#define MAX_BLOCKS 24576 /* a list of scores in shared memory */
#define THREADS 256
#define MOST_TILES 8 /* tiles of keys that a thread block walks */

struct sample_args : head_args {
    int block, nb, chunks, lists, halves, tiles_per_block; /* halves: half blocks of keys */
    int centred, cover2, merge, keep_diag, keep_sink;
    int mask_unit;
    double alpha_c, alpha_s;
    int end[MAX_CHUNKS + 1]; /* chunk i covers positions [end[i], end[i + 1]) */

    float4 *part;          /* [heads][chunks][halves][B]: largest, sum, sum of the lower bin */
    double *lse;           /* [heads][chunks][B], base 2 */
    double *col, *slash;   /* [chunks][nb] of the first head; the next one's are 2 chunks nb on */
    uint8_t *cols, *diags; /* [heads][lists][nb], [heads][lists][nb + 1] */
};

/* Distance d lies in bin (d + offset) / B. */
template <int B> static __device__ __forceinline__ int bin_offset(const sample_args &a)
{
    return a.centred ? B / 2 : 0;
}

/* ---- scores --------------------------------------------------------------------------------- */

/* The records of 16 MT rows and one unit from the scores of a warp. */
template <int B, int MT, int NT>
static __device__ __forceinline__ void reduce_unit(const sample_args &a, float (&acc)[MT][NT][4],
                                                   int row0, int pos0, int key0, float4 *part)
{
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int row = row0 + 16 * m + 8 * h + (lane >> 2), reach = pos0 + row - key0;
            int edge = reach < 0 ? -1 : (reach + bin_offset<B>(a)) % B;
            float top = -INFINITY, all = 0, low = 0;
            if (reach < 8 * NT - 1)
#pragma unroll
                for (int n = 0; n < NT; n++)
#pragma unroll
                    for (int e = 0; e < 2; e++)
                        if (8 * n + 2 * (lane & 3) + e > reach)
                            acc[m][n][2 * h + e] = -INFINITY;
#pragma unroll
            for (int n = 0; n < NT; n++)
                top = fmaxf(top, fmaxf(acc[m][n][2 * h], acc[m][n][2 * h + 1]));
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
            top *= a.scale_log2;
            float base = top == -INFINITY ? 0 : top;
            edge -= 2 * (lane & 3);
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float p = exp2_fast(fmaf(acc[m][n][2 * h + e], a.scale_log2, -base));
                    all += p;
                    low += 8 * n + e > edge ? p : 0;
                }
#pragma unroll
            for (int step = 1; step < 4; step *= 2) {
                all += __shfl_xor_sync(~0u, all, step);
                low += __shfl_xor_sync(~0u, low, step);
            }
            if ((lane & 3) == 0)
                part[row] = make_float4(top, all, low, 0);
        }
}

/* Slice blockIdx.y of head blockIdx.z against tiles_per_block tiles of B keys. Warp w: rows of
 * quarter w % 4, keys of half w / 4. */
template <int D, int B>
static __global__ void __launch_bounds__(THREADS, 2) score_units(const sample_args a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    constexpr int TILE = B * D * 2, MT = B / 64, NT = B / 16;
    int slice = blockIdx.y, head = blockIdx.z, warp = threadIdx.x >> 5;
    int last = a.end[slice + 1], pos0 = last - B;
    int t0 = blockIdx.x * a.tiles_per_block;
    int t1 = min(t0 + a.tiles_per_block, (last + B - 1) / B);
    uint32_t q = shared_addr(shared), k = q + TILE;
    const uint4 *keys = a.k + (int64_t)(head / a.per_kv) * a.nk * (D / 8);
    float4 *part = a.part + ((int64_t)head * a.chunks + slice) * a.halves * B;

    if (t0 >= t1)
        return;
    copy_tile<D, B, THREADS>(q, a.q + (int64_t)head * a.nq * (D / 8), pos0 - (a.nk - a.nq), a.nq);
    copy_tile<D, B, THREADS>(k, keys, (int64_t)t0 * B, a.nk);
    copy_commit();
    for (int t = t0; t < t1; t++) {
        if (t + 1 < t1)
            copy_tile<D, B, THREADS>(k + (t + 1 - t0) % 2 * TILE, keys, (int64_t)(t + 1) * B, a.nk);
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        float acc[MT][NT][4] = {{{0}}};
        int row0 = warp % 4 * (B / 4), half = warp / 4;
        add_scores<D, MT, NT>(q, row0, k + (t - t0) % 2 * TILE, half * (B / 2), acc);
        reduce_unit<B, MT, NT>(a, acc, row0, pos0, t * B + half * (B / 2),
                               part + (int64_t)(2 * t + half) * B);
        __syncthreads();
    }
}

static __device__ __forceinline__ int units_of(const sample_args &a, int slice, int b)
{
    return (a.end[slice + 1] + b - 1) / b * 2;
}

/* Log-sum-exp of 32 sampled rows, a lane each. */
template <int B>
static __global__ void __launch_bounds__(LSE_THREADS) join_units(const sample_args a)
{
    int row = blockIdx.z * 32 + (threadIdx.x & 31);
    int64_t at = (int64_t)blockIdx.y * a.chunks + blockIdx.x;
    const float4 *part = a.part + at * a.halves * B + row;
    double lse = row_lse(units_of(a, blockIdx.x, B), [=](int u) {
        float4 x = part[(int64_t)u * B];
        return make_float2(x.x, x.y);
    });
    if (threadIdx.x < 32)
        a.lse[at * B + row] = lse;
}

/* Sum over the B threads of a block in a fixed order, valid in thread 0. */
template <int B> static __device__ double rows_sum(double x, double *shared)
{
    x = warp_add(x);
    if ((threadIdx.x & 31) == 0)
        shared[threadIdx.x >> 5] = x;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int w = 1; w < B / 32; w++)
            x += shared[w];
    __syncthreads();
    return x;
}

/* Mass of the row at position pos in bin x, of the units that the bin's keys touch. */
template <int B>
static __device__ double bin_mass(const sample_args &a, const float4 *part, int pos, int x,
                                  float lse)
{
    int offset = bin_offset<B>(a);
    int high = pos - x * B + offset, low = max(high - B + 1, 0);
    double sum = 0;
    high = min(high, pos);
    if (high < 0)
        return 0;
    for (int u = low / (B / 2); u <= high / (B / 2); u++) {
        float4 r = part[(int64_t)u * B];
        int upper = (pos - u * (B / 2) + offset) / B;
        float mass = upper == x ? r.y - r.z : upper == x + 1 ? r.z : 0;
        sum += mass * exp2f(r.x - lse);
    }
    return sum;
}

/* Column block blockIdx.x and bin blockIdx.x of a slice. */
template <int B> static __global__ void __launch_bounds__(B) add_rows(const sample_args a)
{
    __shared__ double shared[B / 32];
    int j = blockIdx.x, slice = blockIdx.y, row = threadIdx.x;
    int64_t at = (int64_t)blockIdx.z * a.chunks + slice;
    const float4 *part = a.part + at * a.halves * B + row;
    int pos = a.end[slice + 1] - B + row, units = units_of(a, slice, B);
    float lse = (float)a.lse[at * B + row];
    double col = 0, slash = 0;
    for (int u = 2 * j; u < 2 * j + 2 && u < units; u++) {
        float4 r = part[(int64_t)u * B];
        col += (double)r.y * exp2f(r.x - lse);
    }
    slash = bin_mass<B>(a, part, pos, j, lse);
    if (a.centred && j == a.nb - 1) /* bins past the last one count as the last */
        slash += bin_mass<B>(a, part, pos, j + 1, lse);
    col = rows_sum<B>(col, shared);
    slash = rows_sum<B>(slash, shared);
    if (row == 0) {
        int64_t to = (2 * (int64_t)blockIdx.z * a.chunks + slice) * a.nb + j;
        a.col[to] = col / B;
        a.slash[to] = slash / B;
    }
}

/* ---- find_k --------------------------------------------------------------------------------- */

/* blockIdx.x: slice (or the mean of all); blockIdx.y: head; blockIdx.z: 0 columns, 1 bins. */
static __global__ void __launch_bounds__(32) choose(const sample_args a)
{
    extern __shared__ double values[];
    int lane = threadIdx.x, nb = a.nb;
    int to = a.merge == SAMPLE_PERCHUNK ? blockIdx.x : 0;
    const double *score = (blockIdx.z ? a.slash : a.col) + 2 * (int64_t)blockIdx.y * a.chunks * nb;
    int seen = 0, number;

    for (int x = lane; x < nb; x += 32) {
        double sum = 0;
        if (a.merge == SAMPLE_MEAN) {
            for (int i = 0; i < a.chunks; i++)
                sum += score[(int64_t)i * nb + x];
            sum /= a.chunks;
        } else {
            sum = score[(int64_t)blockIdx.x * nb + x];
        }
        values[x] = sum;
    }
    __syncwarp();
    list_shared list = {values, nb};
    double alpha = blockIdx.z ? a.alpha_s : a.alpha_c;
    cut c = {-0.5, 0}; /* alpha = 1 takes all */
    if (alpha < 1)
        c = cut_reach(list, nb, alpha * cut_mass(list, 0, true, &number), 1);
    uint8_t *cols = a.cols + ((int64_t)blockIdx.y * a.lists + to) * nb;
    uint8_t *diags = a.diags + ((int64_t)blockIdx.y * a.lists + to) * (nb + 1);
    for (int x0 = 0; x0 < nb; x0 += 32) {
        int x = x0 + lane;
        bool take = cut_has(c, x < nb ? values[x] : 0, x < nb, &seen);
        if (take && blockIdx.z == 0)
            cols[x] = 1;
        if (take && blockIdx.z == 1) {
            diags[x] = 1;
            if (a.cover2)
                diags[x + 1] = 1;
        }
    }
}

/* ---- map ------------------------------------------------------------------------------------ */

/* A warp per row of the map. */
static __global__ void fill_map(const sample_args a)
{
    int64_t row = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) >> 5;
    int l = 0, b = a.block;
    if (row >= a.heads * (int64_t)a.groups)
        return;
    int64_t head = row / a.groups;
    int i = (int)((row % a.groups * a.mask_unit + a.nk - a.nq) / b);
    int last = (int)min((int64_t)(i + 1) * b, a.nk) - 1;
    while (l < a.lists - 1 && a.end[l + 1] <= last)
        l++;
    const uint8_t *cols = a.cols + (head * a.lists + l) * a.nb;
    const uint8_t *diags = a.diags + (head * a.lists + l) * (a.nb + 1);
    fill_row(a.map, row, [&](int j) {
        return j <= i && j < a.nb &&
               (cols[j] || diags[i - j] || (a.keep_diag && i == j) || (a.keep_sink && j == 0));
    });
}

/* ---- the earlier algorithm ------------------------------------------------------------------ */

struct token_args : head_args {
    int64_t window, bottom;
    double alpha;
    last_rows rows;
    int *number;    /* [heads] columns */
    uint32_t *cols; /* [heads][words] */
};

/* Head blockIdx.x: how many columns, by mass descending, reach the share. */
static __global__ void __launch_bounds__(WIDE) count_columns(const token_args a)
{
    const double *score = a.rows.ver + blockIdx.x * a.nk;
    auto value = [=](int x) { return (float)score[x]; };
    int64_t number = a.nk;
    if (a.alpha < 1) {
        int all;
        wide_list<decltype(value)> list(value, (int)a.nk);
        wide_cut c = wide_prefix(list, a.alpha * list.mass(0, &all));
        number = min((int64_t)c.above + c.m + 1, a.nk);
    }
    if (threadIdx.x == 0)
        a.number[blockIdx.x] = (int)number;
}

static __global__ void __launch_bounds__(WIDE) choose_columns(const token_args a)
{
    const double *score = a.rows.ver + blockIdx.x * a.nk;
    wide_pick([=](int x) { return (float)score[x]; }, (int)a.nk, a.number[blockIdx.x],
              a.cols + blockIdx.x * (int64_t)a.map.words, a.map.words);
}

/* Bits of word w from x on. */
static __device__ __forceinline__ uint32_t bits_from(int w, int64_t x)
{
    int64_t n = x - 32 * (int64_t)w;
    return n <= 0 ? ~0u : n >= 32 ? 0 : ~0u << n;
}

/* A warp per row. */
static __global__ void fill_tokens(const token_args a)
{
    int64_t row = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) >> 5;
    if (row >= a.heads * a.nq)
        return;
    int64_t r = row % a.nq, pos = r + a.nk - a.nq, near = max(pos + 1 - a.window, (int64_t)0);
    const uint32_t *cols = a.cols + row / a.nq * a.map.words;
    near = r >= a.nq - a.bottom ? 0 : near;
    fill_row_words(a.map, row,
                   [&](int w) { return (cols[w] | bits_from(w, near)) & ~bits_from(w, pos + 1); });
}

static int launch_tokens(struct gpu *g, const token_args &a, struct err *err)
{
    PASS_ON(last_rows_launch(g, a.rows, a.d, err));
    PASS_ON_CU(err, run_kernel(g->stream, count_columns, a.heads, WIDE, 0, a));
    PASS_ON_CU(err, run_kernel(g->stream, choose_columns, a.heads, WIDE, 0, a));
    return CU_STATUS(err,
                     run_kernel(g->stream, fill_tokens, ceil_div(a.heads * a.nq, 8), 256, 0, a));
}

static int init_tokens(struct gpu *g, struct select_job *job, const struct sample_rule *r,
                       struct err *err)
{
    token_args *a = NULL;
    PASS_ON(method_init(g, job, 1, 1, &a, err));
    a->window = r->window;
    a->bottom = r->bottom;
    a->alpha = r->alpha;
    PASS_ON(last_rows_init(g, &job->problem, (int)ceil_div(a->nq, r->step), 1, &a->rows, err));
    a->rows.step = (int)r->step;
    a->rows.sla = NULL;
    PASS_ON(take(g, err, &a->number, a->heads, &a->cols, a->heads * (int64_t)a->map.words));
    job->lists.own = a->number;
    job->lists.own_bytes = 4;
    return 0;
}

/* ---- launches ------------------------------------------------------------------------------- */

template <int D, int B>
static int launch_scores(struct gpu *g, const sample_args &a, struct err *err)
{
    int blocks = (int)ceil_div(a.nb, a.tiles_per_block);
    PASS_ON_CU(err, (run_kernel(g->stream, score_units<D, B>, dim3(blocks, a.chunks, a.heads),
                                THREADS, 3 * B * D * 2, a)));
    PASS_ON_CU(err, run_kernel(g->stream, join_units<B>, dim3(a.chunks, a.heads, B / 32),
                               LSE_THREADS, 0, a));
    return CU_STATUS(err,
                     run_kernel(g->stream, add_rows<B>, dim3(a.nb, a.chunks, a.heads), B, 0, a));
}

static int launch(struct gpu *g, const struct select_job *job, struct err *err)
{
    if (job->lists.bk == 1)
        return launch_tokens(g, *(const token_args *)job->state, err);
    const sample_args &a = *(const sample_args *)job->state;
    int64_t flags = (int64_t)a.heads * a.lists;

    if (a.d == 128)
        PASS_ON((a.block == 128 ? launch_scores<128, 128>(g, a, err)
                                : launch_scores<128, 64>(g, a, err)));
    else
        PASS_ON((a.block == 128 ? launch_scores<64, 128>(g, a, err)
                                : launch_scores<64, 64>(g, a, err)));
    PASS_ON_CU(err, cudaMemsetAsync(a.cols, 0, (size_t)(flags * (2 * a.nb + 1)), g->stream));
    PASS_ON_CU(err, run_kernel(g->stream, choose,
                               dim3(a.merge == SAMPLE_MEAN ? 1 : a.chunks, a.heads, 2), 32,
                               a.nb * 8, a));
    return CU_STATUS(err, run_kernel(g->stream, fill_map, ceil_div(job->lists.rows, 8), 256, 0, a));
}

/* ---- set-up --------------------------------------------------------------------------------- */

static bool dense(const struct select_problem *p)
{
    return select_rule(p, 0)->sample.all;
}

static bool fits(const struct select_problem *p, char why[160])
{
    const struct sample_rule *r = &select_rule(p, 0)->sample;
    if (!dims_fit(p, why))
        return false;
    if (r->tokens)
        return p->nk <= MOST_TOKENS ||
               refuse(why, "the GPU side of profile=v2 takes up to %d keys", MOST_TOKENS);
    return ceil_div(p->nk, r->block) <= MAX_BLOCKS ||
           refuse(why, "the GPU side takes up to %d blocks of keys", MAX_BLOCKS);
}

static void resolve(const struct gpu *g, const struct sample_rule *r, sample_args *a)
{
    int64_t b = r->block, shift = a->nk - a->nq, tiles;
    a->block = (int)b;
    a->nb = (int)ceil_div(a->nk, b);
    a->chunks = r->chunks;
    a->halves = 2 * a->nb;
    a->alpha_c = r->alpha_c;
    a->alpha_s = r->alpha_s;
    a->centred = r->extend == SAMPLE_CENTRED;
    a->cover2 = r->extend == SAMPLE_COVER2;
    a->merge = r->merge;
    a->lists = r->merge == SAMPLE_PERCHUNK ? r->chunks : 1;
    a->keep_diag = r->keep_diag;
    a->keep_sink = r->keep_sink;
    a->end[0] = (int)shift;
    for (int i = 1; i < a->chunks; i++)
        a->end[i] = (int)(ceil_div(shift + i * a->nq / a->chunks, b) * b);
    a->end[a->chunks] = (int)a->nk;
    a->mask_unit = (int)gcd(b, shift % b);
    tiles = (int64_t)a->nb * a->chunks * a->heads / (2 * g->sms);
    a->tiles_per_block = (int)MAX(MIN(tiles, MOST_TILES), 1);
}

static int init(struct gpu *g, struct select_job *job, struct err *err)
{
    const struct select_problem *p = &job->problem;
    const struct sample_rule *r = &select_rule(p, 0)->sample;
    if (r->tokens)
        return init_tokens(g, job, r, err);
    sample_args *a = NULL;
    int64_t slices, lists;

    PASS_ON(method_init(g, job, gcd(r->block, (p->nk - p->nq) % r->block), r->block, &a, err));
    resolve(g, r, a);
    slices = (int64_t)a->heads * a->chunks;
    lists = (int64_t)a->heads * a->lists;
    PASS_ON(take(g, err, &a->part, slices * a->halves * a->block, &a->lse, slices * a->block,
                 &a->col, 2 * slices * a->nb, &a->cols, lists * (2 * a->nb + 1)));
    a->slash = a->col + (int64_t)a->chunks * a->nb;
    a->diags = a->cols + lists * a->nb;
    job->lists.own = a->col;
    job->lists.own_bytes = 2 * (int64_t)a->chunks * a->nb * 8;
    return 0;
}

extern "C" const struct select_method select_sampleattention = {
    "sampleattention", fits, init, launch, dense, NULL, false, NULL,
};
