/*
 * svg1.cu - Sparse VideoGen's classification of a head (arXiv 2502.01776, section 4.1): sampled
 * rows attended to densely and under two trial bands, in one walk over the keys; the smaller
 * squared error decides. The CPU side is sim/methods/svg1/svg1.c.
 *
 * A thread block has 64 rows and a range of keys: scores of 64 keys at a time by bf16 products,
 * then three softmaxes with maxima of their own, whose outputs a warp keeps for 8 rows in
 * registers. Ranges are put together in double. 2 R N d FLOP of products and 6 R N d in FP32 per
 * head, k and v read R / 64 times.
 */
#include "core/rng.h"
#include "cuda/mma.cuh"
#include "cuda/select/method.cuh"
#include "cuda/warp.cuh"

#define ROWS 64 /* of a thread block; a warp has 8 of them */
#define KEYS 64 /* of a tile */
#define THREADS 256
#define SETS 3 /* all keys, spatial trial, temporal trial */
#define MOST_ROWS 1024
#define BLOCK 128 /* tokens of a trial band's block */
#define MOST_SPANS 4

struct svg1_args : head_args {
    const uint4 *v;
    int ranges, tiles; /* tiles: of rows */
    int64_t each;      /* keys of a range, a multiple of KEYS */
    struct svg1_rule rule;
    double *unit;  /* [kv heads] v is divided by it */
    float2 *part;  /* [heads][ranges][tiles ROWS][SETS] largest score in base 2, sum */
    float *out;    /* as part, [d] */
    double *error; /* [heads][rows][2] */
    struct svg1_own *own;
};

/* ---- trial bands ---------------------------------------------------------------------------- */

struct keys_of { /* positions of the keys that a row keeps; they may overlap */
    int2 span[MOST_SPANS];
};

static __device__ __forceinline__ int first_video(const svg1_rule &r)
{
    return r.front ? (int)r.text : 0;
}

/* Position of a token in the order of places. */
static __device__ __forceinline__ int place_of(const svg1_rule &r, int token)
{
    int v0 = first_video(r), v = token - v0, frame = (int)r.frame;
    return v < 0 || v >= (int)(r.frames * r.frame) ? token
                                                   : v0 + v % frame * (int)r.frames + v / frame;
}

static __device__ __forceinline__ int2 cut_span(int64_t lo, int64_t hi, int64_t from, int64_t to)
{
    return make_int2((int)max(lo, from), (int)min(hi, to));
}

/* The band of blocks around position x, counted from `shift` on. */
static __device__ int2 block_band(const svg1_rule &r, int64_t x, int64_t blocks, int64_t shift,
                                  int64_t end)
{
    int64_t a = (x - shift) / BLOCK;
    if (r.width <= 0 || a >= blocks)
        return make_int2(0, 0);
    return cut_span(shift + (a - r.width + 1) * BLOCK, shift + min(blocks, a + r.width) * BLOCK,
                    shift, end);
}

/* What the query at position x keeps (svg_band_positions of svg1.c). */
static __device__ keys_of positions_of(const svg1_rule &r, int64_t x, bool temporal)
{
    int64_t v0 = first_video(r), video = r.frames * r.frame, n = video + r.text;
    int64_t blocks = (video + BLOCK - 1) / BLOCK, reach = r.wide ? r.width : r.width - 1;
    bool text = x < v0 || x >= v0 + video, bare = r.trial && r.front && temporal;
    keys_of k = {};
    if (r.sink)
        k.span[2] = cut_span(v0, v0 + r.frame, 0, n);
    if (text) {
        k.span[0] = bare ? make_int2(0, 0) : make_int2(0, (int)n);
        return k;
    }
    if (!r.trial)
        k.span[0] = cut_span(x - reach, x + reach + 1, 0, n);
    else if (bare)
        k.span[0] = block_band(r, x, blocks, v0, n);
    else
        k.span[0] = block_band(r, x, blocks, 0, r.front ? n : video);
    if (!bare)
        k.span[1] = r.front ? make_int2(0, (int)v0) : make_int2((int)video, (int)n);
    return k;
}

static __device__ __forceinline__ bool keeps(const keys_of &k, int at)
{
    bool in = false;
#pragma unroll
    for (int i = 0; i < 3; i++)
        in |= at >= k.span[i].x && at < k.span[i].y;
    return in;
}

/* ---- rows ----------------------------------------------------------------------------------- */

/* Shared memory of a thread block. */
template <int D> struct svg1_shared {
    uint4 q[ROWS * D / 8], k[KEYS * D / 8], v[KEYS * D / 8];
    float score[ROWS][KEYS + 1];
    float4 p[ROWS][KEYS]; /* of the three sets */
    keys_of keep[ROWS][2];
    int row[ROWS];
};

/* Scores of the tile in base 2, by 8 warps: 16 rows x 32 keys each. */
template <int D>
static __device__ __forceinline__ void tile_scores(const svg1_args &a, svg1_shared<D> &s)
{
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    float acc[1][4][4] = {{{0}}};
    add_scores<D, 1, 4>(shared_addr(s.q), warp % 4 * 16, shared_addr(s.k), warp / 4 * 32, acc);
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s.score[warp % 4 * 16 + (lane >> 2) + 8 * (i / 2)]
                   [warp / 4 * 32 + 8 * n + 2 * (lane & 3) + i % 2] = acc[0][n][i] * a.scale_log2;
}

/* Probabilities of a row's 64 keys, two a lane, under the maxima so far; rescales what is there. */
template <int D>
static __device__ __forceinline__ void
row_probs(const svg1_args &a, svg1_shared<D> &s, int row, int key0, const int (&place)[2],
          float (&top)[SETS], float (&sum)[SETS], float (&old)[SETS])
{
    int lane = threadIdx.x & 31;
    float p[2][SETS];
#pragma unroll
    for (int e = 0; e < 2; e++) {
        int key = key0 + lane + 32 * e;
        float x = key < a.nk ? s.score[row][lane + 32 * e] : -INFINITY;
        p[e][0] = x;
        p[e][1] = keeps(s.keep[row][0], key) ? x : -INFINITY;
        p[e][2] = keeps(s.keep[row][1], place[e]) ? x : -INFINITY;
    }
#pragma unroll
    for (int k = 0; k < SETS; k++) {
        float most = fmaxf(top[k], warp_max(fmaxf(p[0][k], p[1][k])));
        float base = most == -INFINITY ? 0 : most;
        old[k] = exp2f(top[k] - base);
        top[k] = most;
        p[0][k] = exp2f(p[0][k] - base);
        p[1][k] = exp2f(p[1][k] - base);
        sum[k] = sum[k] * old[k] + warp_add(p[0][k] + p[1][k]);
    }
#pragma unroll
    for (int e = 0; e < 2; e++)
        s.p[row][lane + 32 * e] = make_float4(p[e][0], p[e][1], p[e][2], 0);
}

/* Channels of a lane. */
template <int D>
static __device__ __forceinline__ void load_values(const svg1_shared<D> &s, int key,
                                                   float (&v)[D / 32])
{
    const uint32_t *row = (const uint32_t *)s.v + key * (D / 2) + (threadIdx.x & 31) * (D / 64);
#pragma unroll
    for (int c = 0; c < D / 64; c++) {
        v[2 * c] = __uint_as_float(row[c] << 16);
        v[2 * c + 1] = __uint_as_float(row[c] & 0xffff0000u);
    }
}

template <int D>
static __device__ __forceinline__ void load_rows(const svg1_args &a, svg1_shared<D> &s, int head,
                                                 int tile)
{
    if (threadIdx.x < 2 * ROWS) {
        int r = threadIdx.x / 2, trial = threadIdx.x % 2, at = tile * ROWS + r;
        int token =
            (int)rng_below(a.rule.seed, a.rule.stream, (uint64_t)min((int64_t)at, a.rule.rows - 1),
                           (uint64_t)a.rule.limit);
        s.keep[r][trial] =
            positions_of(a.rule, trial ? place_of(a.rule, token) : token, trial == 1);
        s.row[r] = token;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < ROWS * (D / 8); e += THREADS) {
        int r = e / (D / 8), c = e % (D / 8);
        copy_async(shared_addr(s.q) + chunk_at<D>(r, c),
                   a.q + (head * a.nk + s.row[r]) * (D / 8) + c, true);
    }
}

/* Sums of 64 rows over a range of keys. Grid (ranges, heads, tiles of rows). */
template <int D> static __global__ void __launch_bounds__(THREADS) trial_sums(const svg1_args a)
{
    extern __shared__ __align__(128) uint8_t memory[];
    svg1_shared<D> &s = *(svg1_shared<D> *)memory;
    int head = blockIdx.y, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    int64_t k0 = blockIdx.x * a.each, k1 = min(k0 + a.each, a.nk);
    const uint4 *keys = a.k + head / a.per_kv * a.nk * (D / 8);
    const uint4 *values = a.v + head / a.per_kv * a.nk * (D / 8);
    float top[8][SETS], sum[8][SETS] = {{0}}, out[8][SETS][D / 32] = {{{0}}};

#pragma unroll
    for (int r = 0; r < 8; r++)
#pragma unroll
        for (int k = 0; k < SETS; k++)
            top[r][k] = -INFINITY;
    load_rows<D>(a, s, head, blockIdx.z);
    for (int64_t at = k0; at < k1; at += KEYS) {
        copy_tile<D, KEYS, THREADS>(shared_addr(s.k), keys, at, a.nk);
        for (int e = threadIdx.x; e < KEYS * (D / 8); e += THREADS)
            copy_async(shared_addr(s.v + e),
                       values + (at + e / (D / 8) < a.nk ? at * (D / 8) + e : 0),
                       at + e / (D / 8) < a.nk);
        copy_commit();
        copy_wait<0>();
        __syncthreads();
        tile_scores<D>(a, s);
        __syncthreads();
        int place[2] = {place_of(a.rule, (int)at + lane), place_of(a.rule, (int)at + lane + 32)};
#pragma unroll
        for (int r = 0; r < 8; r++) {
            float old[SETS];
            row_probs<D>(a, s, 8 * warp + r, (int)at, place, top[r], sum[r], old);
#pragma unroll
            for (int k = 0; k < SETS; k++)
#pragma unroll
                for (int c = 0; c < D / 32; c++)
                    out[r][k][c] *= old[k];
        }
        __syncwarp();
#pragma unroll 2
        for (int key = 0; key < KEYS; key++) {
            float v[D / 32];
            load_values<D>(s, key, v);
#pragma unroll
            for (int r = 0; r < 8; r++) {
                float4 p = s.p[8 * warp + r][key];
#pragma unroll
                for (int c = 0; c < D / 32; c++) {
                    out[r][0][c] = fmaf(p.x, v[c], out[r][0][c]);
                    out[r][1][c] = fmaf(p.y, v[c], out[r][1][c]);
                    out[r][2][c] = fmaf(p.z, v[c], out[r][2][c]);
                }
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < 8; r++) {
        int64_t to = ((int64_t)head * a.ranges + blockIdx.x) * a.tiles * ROWS +
                     (int64_t)blockIdx.z * ROWS + 8 * warp + r;
#pragma unroll
        for (int k = 0; k < SETS; k++) {
            if (lane == 0)
                a.part[to * SETS + k] = make_float2(top[r][k], sum[r][k]);
#pragma unroll
            for (int c = 0; c < D / 32; c++)
                a.out[(to * SETS + k) * D + lane * (D / 32) + c] = out[r][k][c];
        }
    }
}

/* ---- errors --------------------------------------------------------------------------------- */

/* Output of a set's row at a channel; 0 where it keeps no key. */
static __device__ double output_at(const svg1_args &a, int head, int row, int set, int channel)
{
    double top = -INFINITY, sum = 0, out = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < a.ranges; i++) {
            int64_t at = (((int64_t)head * a.ranges + i) * a.tiles * ROWS + row) * SETS + set;
            float2 part = a.part[at];
            if (part.x == -INFINITY)
                continue;
            if (pass == 0) {
                top = fmax(top, (double)part.x);
                continue;
            }
            double weight = exp2((double)part.x - top);
            sum += weight * part.y;
            out += weight * a.out[at * a.d + channel];
        }
    return sum > 0 ? out / sum : 0;
}

/* Squared errors of a row; a thread per channel. Grid (rows, heads). */
static __global__ void row_errors(const svg1_args a)
{
    __shared__ double error[2][128];
    int row = blockIdx.x, head = blockIdx.y, c = threadIdx.x;
    double dense = output_at(a, head, row, 0, c);
    for (int k = 0; k < 2; k++) {
        double delta = output_at(a, head, row, 1 + k, c) - dense;
        error[k][c] = delta * delta;
    }
    __syncthreads();
    if (c < 2) {
        double sum = 0;
        for (int i = 0; i < a.d; i++)
            sum += error[c][i];
        a.error[((int64_t)head * a.rule.rows + row) * 2 + c] = sum;
    }
}

/* A thread per head. */
static __global__ void choose_class(const svg1_args a)
{
    int head = blockIdx.x * blockDim.x + threadIdx.x;
    double sum[2] = {0, 0};
    if (head >= a.heads)
        return;
    for (int64_t r = 0; r < a.rule.rows; r++)
        for (int k = 0; k < 2; k++)
            sum[k] += a.error[(head * a.rule.rows + r) * 2 + k];
    double unit = a.unit[head / a.per_kv];
    for (int k = 0; k < 2; k++)
        a.own[head].mse[k] = sum[k] / ((double)a.rule.rows * a.d) * unit * unit;
    bool temporal = a.own[head].mse[1] < a.own[head].mse[0];
    a.map.map[head] = temporal;
}

/* ---- the table's functions ------------------------------------------------------------------ */

static int launch(struct gpu *g, const struct select_job *job, struct err *err)
{
    const svg1_args &a = *(const svg1_args *)job->state;
    int smem = (int)(a.d == 128 ? sizeof(svg1_shared<128>) : sizeof(svg1_shared<64>));
    PASS_ON_CU(err, run_kernel(g->stream, a.d == 128 ? trial_sums<128> : trial_sums<64>,
                               dim3(a.ranges, a.heads, a.tiles), THREADS, smem, a));
    PASS_ON_CU(err, run_kernel(g->stream, row_errors, dim3(a.rule.rows, a.heads), a.d, 0, a));
    return CU_STATUS(err, run_kernel(g->stream, choose_class, ceil_div(a.heads, 64), 64, 0, a));
}

static bool fits(const struct select_problem *p, char why[160])
{
    int64_t rows = select_rule(p, 0)->svg1.rows;
    return dims_fit(p, why) &&
           (rows <= MOST_ROWS || refuse(why, "the GPU side has up to %d sampled rows, not %lld",
                                        MOST_ROWS, (long long)rows));
}

static int init(struct gpu *g, struct select_job *job, struct err *err)
{
    const struct select_problem *p = &job->problem;
    svg1_args *a = NULL;
    int64_t parts, ranges;

    PASS_ON(method_init(g, job, p->nq, p->nk, &a, err));
    a->v = (const uint4 *)p->v;
    a->rule = select_rule(p, 0)->svg1;
    a->tiles = (int)ceil_div(a->rule.rows, ROWS);
    ranges = 4 * g->sms / ((int64_t)a->heads * a->tiles); /* a few waves of thread blocks */
    ranges = MAX(MIN(ranges, ceil_div(a->nk, KEYS)), 1);
    a->each = ceil_div(ceil_div(a->nk, ranges), KEYS) * KEYS;
    a->ranges = (int)ceil_div(a->nk, a->each);
    parts = (int64_t)a->heads * a->ranges * a->tiles * ROWS * SETS;
    PASS_ON(put_each(g, p->kv_heads, &a->unit, err,
                     [=](int64_t h) { return ldexp(1, select_v_exp(p, (int)h)); }));
    PASS_ON(take(g, err, &a->part, parts, &a->out, parts * a->d, &a->error,
                 a->heads * a->rule.rows * 2, &a->own, a->heads));
    job->lists.own = a->own;
    job->lists.own_bytes = sizeof *a->own;
    return 0;
}

extern "C" const struct select_method select_svg1 = {
    "svg1", fits, init, launch, NULL, NULL, true, NULL,
};
