/*
 * xattention.cu - XAttention's selection (arXiv:2503.16428): antidiagonal scores of strided cells,
 * block masses, and per row block the most massive blocks up to a share tau. The CPU side is
 * sim/methods/xattention/xattention.c.
 *
 *   s[r][j] = sum_t Q[S r + S - 1 - t] . K[S j + t]
 *
 * is a product of depth S d over N / S reduced rows and columns: N^2 d / S FLOP causal. Tiles of
 * these scores (xattn_sm90.cu; elsewhere by
 * mma.sync, for any stride and number of tokens) leave each row's largest score of 128 columns
 * and the sums of e^(s - largest) per column block of 128 / S. The row kernel combines the tiles of
 * a row. Scores are bf16 products summed in float, masses and cuts are in double.
 */
#include "cuda/methods/xattention/xattn_sm90.cuh"
#include "cuda/mma.cuh"
#include "cuda/select/cut.cuh"

#define MAX_COLS 20480 /* masses of a row in shared memory */
#define MAX_PER_BLOCK 32
#define ROW_THREADS 64
#define SHORT 256 /* masses of a row in the registers of a warp */

struct xattn_state : xattn_args {
    bool sm90;
    xattn_sm90 hop;
};

/* ---- scores without wgmma ------------------------------------------------------------------
 *
 * A thread block computes 128 x 128 scores, keeps them in shared memory and reduces them by two
 * threads a row. */

#define PITCH 129 /* floats of a row of scores in shared memory: rows in different banks */
#define THREADS 256

#define DEPTH 64 /* channels of a stage */
#define STAGES 3
#define BYTES (TILE * DEPTH * 2)

/* Rows S (r0 + i) + t, i = 0 .. 127, of x [n][D], channels of part `part`. */
template <int D>
static __device__ __forceinline__ void copy_strided(uint32_t dst, const uint4 *x, int64_t r0, int t,
                                                    int part, int stride, int64_t n)
{
#pragma unroll
    for (int e = threadIdx.x; e < TILE * (DEPTH / 8); e += THREADS) {
        int r = e / (DEPTH / 8), c = e % (DEPTH / 8);
        int64_t row = (r0 + r) * stride + t;
        bool valid = row < n;
        copy_async(dst + chunk_at<DEPTH>(r, c),
                   x + (valid ? row : 0) * (D / 8) + part * (DEPTH / 8) + c, valid);
    }
}

/* Stage s of a tile: offset s / (D / 64) of the runs, channels of part s % (D / 64). */
template <int D>
static __device__ __forceinline__ void copy_stage(const xattn_args &a, uint32_t base,
                                                  const uint4 *q, const uint4 *k, int r0, int j0,
                                                  int s)
{
    constexpr int PARTS = D / DEPTH;
    uint32_t to = base + s % STAGES * 2 * BYTES;
    if (s < a.stride * PARTS) {
        copy_strided<D>(to, q, r0, a.stride - 1 - s / PARTS, s % PARTS, a.stride, a.nq);
        copy_strided<D>(to + BYTES, k, j0, s / PARTS, s % PARTS, a.stride, a.nk);
    }
    copy_commit();
}

/* From the scores of a tile in shared memory: two threads a row. */
static __device__ void reduce_tile(const xattn_args &a, const float *s, int head, int r0, int j0)
{
    int r = threadIdx.x / 2, half = threadIdx.x % 2, row = r0 + r;
    int64_t limit = row < a.rows ? columns(a, row) : 0;
    int n = (int)min(max(min(limit, (int64_t)a.keys) - j0, (int64_t)0), (int64_t)TILE);
    float top = -INFINITY;
    for (int j = half; j < n; j += 2)
        top = fmaxf(top, s[r * PITCH + j]);
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1)) * a.factor;
    if (row >= a.rows)
        return;
    int64_t at = (int64_t)head * a.rows + row;
    if (half == 0)
        a.top[at * a.tiles + j0 / TILE] = n > 0 ? top : -INFINITY;
    for (int b = half; b < a.stride; b += 2) {
        int block = j0 / a.per_block + b;
        float sum = 0;
        if (block >= a.units)
            break;
        for (int j = b * a.per_block; j < (b + 1) * a.per_block; j++)
            sum += j < n ? exp2f(fmaf(s[r * PITCH + j], a.factor, -top)) : 0;
        a.sum[at * a.pitch + block] = sum;
    }
}

/* Warp w: reduced rows of quarter w % 4, columns of half w / 4. */
template <int D>
static __global__ void __launch_bounds__(THREADS, 2) score_tiles(const xattn_args a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    int j0 = blockIdx.x * TILE, r0 = blockIdx.y * TILE, head = blockIdx.z;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n = a.stride * (D / DEPTH);
    const uint4 *q = a.q + (int64_t)head * a.nq * (D / 8);
    const uint4 *k = a.k + (int64_t)(head / a.per_kv) * a.nk * (D / 8);
    uint32_t base = shared_addr(shared);
    float acc[2][8][4] = {{{0}}};

    if (j0 >= columns(a, min(r0 + TILE, a.rows) - 1))
        return;
    for (int s = 0; s < STAGES - 1; s++)
        copy_stage<D>(a, base, q, k, r0, j0, s);
    for (int s = 0; s < n; s++) {
        uint32_t here = base + s % STAGES * 2 * BYTES;
        copy_wait<STAGES - 2>();
        __syncthreads();
        copy_stage<D>(a, base, q, k, r0, j0, s + STAGES - 1);
        add_scores<DEPTH, 2, 8>(here, warp % 4 * 32, here + BYTES, warp / 4 * 64, acc);
    }
    __syncthreads();
    float *s = (float *)shared;
    copy_wait<0>();
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[(warp % 4 * 32 + 16 * m + (lane >> 2) + 8 * (i / 2)) * PITCH + warp / 4 * 64 +
                  8 * n + 2 * (lane & 3) + i % 2] = acc[m][n][i];
    __syncthreads();
    reduce_tile(a, s, head, r0, j0);
}

/* ---- rows ----------------------------------------------------------------------------------- */

/* Reduced row r of a head: what its sums are multiplied by. */
struct row_scale {
    double share, pad; /* 1 / sum over the row; mass of a padded column (logit 0) */
    float top;         /* the row's largest score */
    int blocks, limit; /* column blocks with a real column, reduced columns */
};

static __device__ row_scale scale_of(const xattn_args &a, int64_t head, int r)
{
    int lane = threadIdx.x & 31, limit = columns(a, r), real = min(limit, a.keys);
    int blocks = (real + a.per_block - 1) >> a.block_shift;
    const float *tops = a.top + (head * a.rows + r) * a.tiles;
    const float *sums = a.sum + (head * a.rows + r) * a.pitch;
    float top = limit > a.keys ? 0 : -INFINITY;
    double all = 0;
    for (int t = lane; t << a.top_shift < blocks; t += 32)
        top = fmaxf(top, tops[t]);
    top = warp_max(top);
    for (int j = lane; j < blocks; j += 32)
        all += (double)sums[j] * exp2f(tops[j >> a.top_shift] - top);
    double pad = limit > a.keys ? exp2f(-top) : 0;
    all = warp_add(all) + max(limit - a.keys, 0) * pad;
    return {1 / all, pad > 0 ? pad / all : 0, top, blocks, limit};
}

/* Mass of column block j in a row block of n reduced rows from r0 on, padded columns included. */
static __device__ double mass_of(const xattn_args &a, const row_scale *rows, int64_t head, int r0,
                                 int n, int j)
{
    const float *tops = a.top + (head * a.rows + r0) * a.tiles + (j >> a.top_shift);
    const float *sums = a.sum + (head * a.rows + r0) * a.pitch + j;
    double mass = 0;
#pragma unroll 4
    for (int r = 0; r < n; r++)
        if (j < rows[r].blocks)
            mass += (double)sums[(int64_t)r * a.pitch] *
                    exp2f(tops[(int64_t)r * a.tiles] - rows[r].top) * rows[r].share;
    int from = max(j << a.block_shift, a.keys), end = (j + 1) << a.block_shift;
    for (int r = 0; from < end && r < n; r++)
        mass += max(min(end, rows[r].limit) - from, 0) * rows[r].pad;
    return mass;
}

/* Masses of a row block in shared memory. */
struct mass_shared : list_shared {
    __device__ __forceinline__ double at(int j) const
    {
        return j < n ? v[j] : -1;
    }
};

/* Masses of a row block in registers, lane l has blocks l, l + 32, ... */
template <int N> struct mass_registers : list_registers<N> {
    using list_registers<N>::v;
    __device__ __forceinline__ double at(int j) const
    {
        long long x = 0; /* bits: a choice of doubles would put the list into memory */
#pragma unroll
        for (int i = 0; i < N; i++)
            x |= __double_as_longlong(v[i]) & -(long long)(j >> 5 == i);
        return __longlong_as_double(x);
    }
};

/* One entry more than the cut has: the next in order. */
template <class L> static __device__ __forceinline__ cut cut_one_more(const L &list, const cut &c)
{
    int equal, above;
    cut_mass(list, c.t, true, &equal);
    cut_mass(list, c.t, false, &above);
    if (c.m < equal - above)
        return {c.t, c.m + 1};
    return {cut_below(list, c.t), 1};
}

/* A block of 128 queries of a head. */
struct row_block {
    int64_t row; /* of the map */
    int head, n; /* n: column blocks it sees */
    int r0, rows, own, last;
    bool forced, first;
};

static __device__ row_block block_at(const xattn_args &a, int64_t row)
{
    int head = (int)(row / a.groups), i = (int)(row % a.groups), r0 = i << a.block_shift;
    int64_t end = min((int64_t)(i + 1) * BLOCK, a.nq);
    int own = (int)((i * (int64_t)BLOCK + a.shift) / BLOCK);
    int last = (int)((end - 1 + a.shift) / BLOCK);
    bool first = a.causal && a.profile == XATTN_OFFICIAL &&
                 a.shift / BLOCK + i / a.chunk_blocks * a.chunk_blocks == 0;
    return {row, head, a.causal ? last + 1 : a.cols,         r0,   min(a.per_block, a.rows - r0),
            own, last, a.causal && a.profile != XATTN_PAPER, first};
}

/* Choose those of a row's blocks that reach tau together with the blocks that are kept anyway,
 * whose mass becomes -1 here: with `forced`, block 0 and the blocks from `own` on. `first` (first
 * chunk of rows of the published code): the last block is kept anyway, and of the others always the
 * best one, and one more than reaches the need. */
template <class L>
static __device__ __forceinline__ cut cut_row(const xattn_args &a, L &list, const row_block &b)
{
    int number;
    double need = a.tau * cut_mass(list, 0, true, &number), taken = 0;
    list.edit([&](int j, double &mass) {
        bool kept = b.first ? j == b.n - 1 : b.forced && (j == 0 || j >= b.own);
        if (kept && j < b.n) {
            taken += mass;
            mass = -1;
        }
    });
    cut c = cut_reach(list, b.n, need - warp_add(taken), 0);
    return b.first ? cut_one_more(list, c) : c;
}

/* The row of the map, by one warp. */
template <class L>
static __device__ __forceinline__ void keep_row(const xattn_args &a, L &list, const row_block &b)
{
    cut c = cut_row(a, list, b);
    int limit = min(b.n, a.units), seen = 0;
    fill_row(a.map, b.row, [&](int j) {
        double mass = list.at(j);
        bool keep = cut_has(c, mass, mass >= 0, &seen);
        keep = keep || (b.forced && (j == 0 || (j >= b.own && j <= b.last))) ||
               (!a.causal && a.profile == XATTN_OFFICIAL && j == 0);
        return keep && j < limit;
    });
}

/* A thread block per row block: a warp per reduced row, a thread per column block, and the first
 * warp cuts. Rows with many columns come first, and heads whose scores are latest and may be in L2.
 */
static __global__ void __launch_bounds__(ROW_THREADS, 24) select_rows(const xattn_args a)
{
    extern __shared__ double mass[];
    __shared__ row_scale scales[MAX_PER_BLOCK];
    row_block b = block_at(a, gridDim.x - 1 - (int64_t)blockIdx.x);
    for (int r = threadIdx.x >> 5; r < b.rows; r += ROW_THREADS / 32)
        scales[r] = scale_of(a, b.head, b.r0 + r);
    __syncthreads();
    for (int j = threadIdx.x; j < b.n; j += ROW_THREADS)
        mass[j] = mass_of(a, scales, b.head, b.r0, b.rows, j);
    __syncthreads();
    if (threadIdx.x >= 32)
        return;
    mass_shared list = {{mass, b.n}};
    keep_row(a, list, b);
}

/* Add reduced row r to the masses; a lane loads the sums of its blocks, and tops for all lanes:
 * there are no more than 64, two for four blocks of 32 reduced columns. */
template <int N>
static __device__ __forceinline__ void add_row(const xattn_args &a, int head, int r,
                                               mass_registers<N> &list)
{
    int lane = threadIdx.x & 31, limit = columns(a, r), real = min(limit, a.keys);
    int blocks = (real + a.per_block - 1) >> a.block_shift, padded = max(limit - a.keys, 0);
    int64_t at = (int64_t)head * a.rows + r;
    const float *tops = a.top + at * a.tiles, *sums = a.sum + at * a.pitch;
    int n_tops = blocks > 0 ? ((blocks - 1) >> a.top_shift) + 1 : 0;
    float t[2] = {lane < n_tops ? tops[lane] : -INFINITY,
                  lane + 32 < n_tops ? tops[lane + 32] : -INFINITY};
    float x[N];
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = i * 32 + lane < blocks ? sums[i * 32 + lane] : 0;
    float top = warp_max(fmaxf(fmaxf(t[0], t[1]), padded ? 0 : -INFINITY));
    t[0] = exp2f(t[0] - top);
    t[1] = exp2f(t[1] - top);
    double w[N], all = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        int j = i * 32 + lane, of = j >> a.top_shift;
        float factor = __shfl_sync(~0u, t[0], of & 31);
        if (n_tops > 32) {
            float high = __shfl_sync(~0u, t[1], of & 31);
            factor = of < 32 ? factor : high;
        }
        w[i] = j < blocks ? (double)x[i] * factor : 0;
        all += w[i];
    }
    double pad = padded ? exp2f(-top) : 0, share = 1 / (warp_add(all) + padded * pad);
    if (padded)
#pragma unroll
        for (int i = 0; i < N; i++) {
            int from = max((i * 32 + lane) << a.block_shift, a.keys);
            int end = min((i * 32 + lane + 1) << a.block_shift, limit);
            w[i] += max(end - from, 0) * pad;
        }
#pragma unroll
    for (int i = 0; i < N; i++)
        list.v[i] += w[i] * share;
}

/* A row block of at most 32 N column blocks. */
template <int N>
static __device__ __forceinline__ void select_row(const xattn_args &a, const row_block &b)
{
    mass_registers<N> list = {};
#pragma unroll 1
    for (int r = 0; r < b.rows; r++)
        add_row(a, b.head, b.r0 + r, list);
    list.edit([&](int j, double &mass) { mass = j < b.n ? mass : -1; });
    keep_row(a, list, b);
}

/* The same for at most SHORT column blocks, a warp per row block: each sum is loaded once. Causal
 * rows see a part of the columns, and a list that is no longer than this part takes fewer
 * instructions. */
static __global__ void __launch_bounds__(32, 28) select_short_rows(const xattn_args a)
{
    row_block b = block_at(a, gridDim.x - 1 - (int64_t)blockIdx.x);
    int seen = (columns(a, b.r0 + b.rows - 1) + a.per_block - 1) >> a.block_shift;
    switch ((max(seen, b.n) + SHORT / 4 - 1) / (SHORT / 4)) {
    case 0:
    case 1:
        return select_row<SHORT / 128>(a, b);
    case 2:
        return select_row<SHORT / 64>(a, b);
    case 3:
        return select_row<3 * SHORT / 128>(a, b);
    default:
        return select_row<SHORT / 32>(a, b);
    }
}

/* ---- launches ------------------------------------------------------------------------------- */

static int launch(struct gpu *g, const struct select_job *job, struct err *err)
{
    const xattn_state &s = *(const xattn_state *)job->state;
    const xattn_args &a = s;

    if (s.sm90)
        PASS_ON(xattn_sm90_launch(g, a, s.hop, err));
    else /* more shared memory than the TILE x PITCH scores take */
        PASS_ON_CU(err, run_kernel(g->stream, a.d == 128 ? score_tiles<128> : score_tiles<64>,
                                   dim3(a.tiles, ceil_div(a.rows, TILE), a.heads), THREADS,
                                   STAGES * 2 * BYTES, a));
    if (a.cols <= SHORT)
        return CU_STATUS(err, run_kernel(g->stream, select_short_rows, job->lists.rows, 32, 0, a));
    return CU_STATUS(
        err, run_kernel(g->stream, select_rows, job->lists.rows, ROW_THREADS, a.cols * 8, a));
}

/* ---- set-up --------------------------------------------------------------------------------- */

/* Column blocks, padded ones included: whole passes of rows of the published code. */
static int column_blocks(const struct xattn_rule *r, int64_t nk)
{
    int64_t unit = r->profile == XATTN_OFFICIAL ? r->chunk : BLOCK;
    return (int)(ceil_div(nk, unit) * (unit / BLOCK));
}

static bool fits(const struct select_problem *p, char why[160])
{
    const struct xattn_rule *r = &select_rule(p, 0)->xattn;
    if (!dims_fit(p, why))
        return false;
    if (r->tau <= 0 || r->tau >= 1)
        return refuse(why, "the GPU side has 0 < tau < 1");
    return column_blocks(r, p->nk) <= MAX_COLS ||
           refuse(why, "the GPU side takes up to %d blocks of keys", MAX_COLS);
}

static void resolve(const struct xattn_rule *r, double scale, xattn_args *a)
{
    bool official = r->profile == XATTN_OFFICIAL;
    int64_t unit = official ? r->chunk : BLOCK;
    a->profile = r->profile;
    a->stride = (int)r->stride;
    a->per_block = BLOCK / a->stride;
    a->rows = (int)ceil_div(a->nq, a->stride);
    a->keys = (int)ceil_div(a->nk, a->stride);
    a->cols = column_blocks(r, a->nk);
    a->shift = official ? (int64_t)a->cols * BLOCK - ceil_div(a->nq, unit) * unit : a->nk - a->nq;
    a->chunk_blocks = official ? (int)(unit / BLOCK) : 1;
    a->tau = r->tau;
    double s = r->profile == XATTN_PAPER ? sqrt(a->stride) : a->stride;
    a->factor = (float)(scale / (s * r->norm) * M_LOG2E);
}

/* With one top for so many reduced columns. */
static void lay_out_sums(xattn_args *a, int columns)
{
    a->tiles = (int)ceil_div(a->keys, columns);
    a->pitch = a->tiles * (columns / a->per_block);
    a->block_shift = __builtin_ctz(a->per_block);
    a->top_shift = __builtin_ctz(columns / a->per_block);
}

static int init(struct gpu *g, struct select_job *job, struct err *err)
{
    const struct select_problem *p = &job->problem;
    xattn_state *s = NULL;
    int64_t rows;

    PASS_ON(method_init(g, job, BLOCK, BLOCK, &s, err));
    resolve(&select_rule(p, 0)->xattn, p->scale, s);
    s->sm90 = g->sm == 90 && s->per_block >= 8; /* fewer columns a block take many registers */
    lay_out_sums(s, s->sm90 ? XATTN_COLUMNS : TILE);
    rows = (int64_t)s->heads * s->rows;
    PASS_ON(take(g, err, &s->top, rows * s->tiles, &s->sum, rows * s->pitch));
    if (s->sm90)
        return xattn_sm90_init(g, *s, &s->hop, err);
    return 0;
}

extern "C" const struct select_method select_xattention = {
    "xattention", fits, init, launch, NULL, NULL, false, NULL,
};
