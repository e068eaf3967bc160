/*
 * flexprefill.cu - FlexPrefill's selection as the published code makes it (arXiv:2502.20766,
 * algorithms 1 to 4): exact rows of the last B queries, mass per key and per distance
 * (lastrows.cuh), the pattern test, then the best block columns and diagonals or the best pooled
 * blocks of the whole head. Behind the rows everything is in double. The CPU side is
 * sim/flexprefill_scores.c and _plan.c.
 */
#include "cuda/cut.cuh"
#include "cuda/lastrows.cuh"
#include "cuda/lists.h"
#include "cuda/means.cuh"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define WIDE 1024            /* threads where one block works for a head */
#define FIRST 1e300          /* score of a block that is always among the best */
#define TOKENS_PER_BLOCK 128 /* by which the published code divides counts of tokens */
#define MAX_BLOCKS 5120

struct flex_args {
    int64_t n;
    int heads, kv_heads, per_kv, block, nb, words;
    int min_blocks, max_blocks;
    double gamma, tau, scale;
    const uint4 *q, *k;
    struct last_rows last;  /* the last `block` rows; means over them */
    double *col, *diag;     /* [heads][nb] */
    float *q_last;          /* [heads][d] mean of the last rows */
    float *q_mean, *k_mean; /* [heads][nb][d], [kv_heads][nb][d] */
    double *score;          /* [heads][nb][nb] */
    int *tokens;            /* [heads][2] */
    uint8_t *aware;         /* [heads] */
    uint8_t *cols, *diags;  /* [heads][nb] */
    uint8_t *keep;          /* [heads][nb][nb], of query-aware heads */
    uint32_t *map;
    int32_t *count;
};

/* ---- blocks of keys and distances ------------------------------------------------------------ */

/* Block sums of keys (from the front) and of distances (from the back), a warp each. */
static __global__ void sum_blocks(const flex_args a)
{
    int w = (int)((blockIdx.x * (int64_t)blockDim.x + threadIdx.x) >> 5), lane = threadIdx.x & 31;
    int64_t head = blockIdx.y;
    double col = 0, diag = 0;
    if (w >= a.nb)
        return;
    for (int e = lane; e < a.block; e += 32) {
        int64_t k = (int64_t)w * a.block + e;
        if (k < a.n) {
            col += a.last.ver[head * a.n + k];
            diag += a.last.sla[head * a.n + a.n - 1 - k];
        }
    }
    col = warp_add(col);
    diag = warp_add(diag);
    if (lane == 0) {
        a.col[head * a.nb + w] = col;
        a.diag[head * a.nb + w] = diag;
    }
}

/* ---- one block for a head ------------------------------------------------------------------- */

/* Sum of x over WIDE threads, in all of them, in a fixed order. */
static __device__ double wide_add(double x)
{
    __shared__ double part[32];
    x = warp_add(x);
    __syncthreads();
    if ((threadIdx.x & 31) == 0)
        part[threadIdx.x >> 5] = x;
    __syncthreads();
    return warp_add(part[threadIdx.x & 31]);
}

/* Entries x of [0, n) for which valid(x), of value v[x] >= t (or above t): sum and number. */
template <class F>
static __device__ double wide_mass(const double *v, int64_t n, F valid, double t, bool equal,
                                   int64_t *number)
{
    double sum = 0, count = 0;
    for (int64_t x = threadIdx.x; x < n; x += WIDE)
        if (valid(x) && (v[x] > t || (equal && v[x] == t))) {
            sum += v[x];
            count++;
        }
    *number = (int64_t)wide_add(count);
    return wide_add(sum);
}

/* The longest prefix, by value descending, whose sum stays at or below the bound: the `above`
 * entries above *t and the first *m of those equal to it. Every entry: *t = -1. */
template <class F>
static __device__ void wide_prefix(const double *v, int64_t n, F valid, double bound, double *t,
                                   int64_t *above, int64_t *m)
{
    int64_t number, equal, at_low, at_high = 0;
    double total = wide_mass(v, n, valid, 0, true, &at_low);
    uint64_t low = 0, high = (uint64_t)__double_as_longlong(FIRST);
    *t = -1;
    *m = 0;
    *above = at_low;
    if (total <= bound)
        return;
    double guess = (total - bound) / (double)n / 2;
    if (wide_mass(v, n, valid, guess, true, &number) > bound) {
        low = (uint64_t)__double_as_longlong(guess);
        at_low = number;
    }
    while (at_low - at_high > 1 && high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        bool over =
            wide_mass(v, n, valid, __longlong_as_double((long long)middle), true, &number) > bound;
        low = over ? middle : low;
        high = over ? high : middle;
        at_low = over ? number : at_low;
        at_high = over ? at_high : number;
    }
    /* The entries of [low, high) are equal, or one. */
    double from = __longlong_as_double((long long)low), to = __longlong_as_double((long long)high);
    double most = 0;
    for (int64_t x = threadIdx.x; x < n; x += WIDE)
        if (valid(x) && v[x] >= from && v[x] < to && v[x] > most)
            most = v[x];
    __shared__ double tops[32];
    most = warp_max(most);
    __syncthreads();
    if ((threadIdx.x & 31) == 0)
        tops[threadIdx.x >> 5] = most;
    __syncthreads();
    *t = warp_max(tops[threadIdx.x & 31]);
    double mass = wide_mass(v, n, valid, *t, false, above);
    wide_mass(v, n, valid, *t, true, &equal);
    equal -= *above;
    int64_t fits = *t > 0 ? (int64_t)fmin((bound - mass) / *t, (double)equal) : equal;
    fits = fits < 0 ? 0 : fits;
    while (fits < equal && mass + (double)(fits + 1) * *t <= bound)
        fits++;
    while (fits > 0 && mass + (double)fits * *t > bound)
        fits--;
    *m = fits;
}

/* How many tokens, by mass descending, hold gamma, as the published code counts: head blockIdx.x,
 * keys or distances. */
static __global__ void __launch_bounds__(WIDE) count_tokens(const flex_args a)
{
    const double *v = (blockIdx.y ? a.last.sla : a.last.ver) + (int64_t)blockIdx.x * a.n;
    int64_t above, m, number = a.n;
    double t;
    if (a.gamma < 1) {
        wide_prefix(
            v, a.n, [](int64_t) { return true; }, a.gamma, &t, &above, &m);
        number = above + m;
    }
    if (threadIdx.x == 0)
        a.tokens[2 * blockIdx.x + blockIdx.y] = (int)number + 1;
}

/* Is the head query-aware: column mass as pooled keys see it, and its Jensen-Shannon distance from
 * the mass of the sampled rows, below tau? Both as floats; a zero makes the distance undefined. */
static __global__ void __launch_bounds__(WIDE) test_pattern(const flex_args a, int d)
{
    extern __shared__ double est[];
    __shared__ double top;
    int head = blockIdx.x;
    const float *q = a.q_last + (int64_t)head * d;
    const float *k = a.k_mean + (int64_t)(head / a.per_kv) * a.nb * d;
    const double *col = a.col + (int64_t)head * a.nb;
    double most = -INFINITY, sum = 0, js = 0, zeros = 0;
    for (int j = threadIdx.x; j < a.nb; j += WIDE) {
        double dot = 0;
        for (int c = 0; c < d; c++)
            dot += (double)q[c] * k[(int64_t)j * d + c];
        est[j] = a.scale * dot;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        for (int j = threadIdx.x; j < a.nb; j += 32)
            most = est[j] > most ? est[j] : most;
        most = warp_max(most);
        if (threadIdx.x == 0)
            top = most;
    }
    __syncthreads();
    for (int j = threadIdx.x; j < a.nb; j += WIDE) {
        est[j] = exp(est[j] - top);
        sum += est[j];
    }
    sum = wide_add(sum);
    for (int j = threadIdx.x; j < a.nb; j += WIDE) {
        float x = (float)(est[j] / sum), y = (float)col[j];
        double m = ((double)x + y) / 2;
        zeros += x == 0 || y == 0;
        js += (x > 0 ? x * log(x / m) : 0) / 2 + (y > 0 ? y * log(y / m) : 0) / 2;
    }
    js = wide_add(js);
    zeros = wide_add(zeros);
    if (threadIdx.x == 0)
        a.aware[head] = zeros == 0 && sqrt(fmax(js, 0.0)) < a.tau;
}

/* The best block columns (blockIdx.y 0; the first block always) or diagonals (1; the main one
 * always) of a head: as many as the counted tokens make blocks. */
static __global__ void __launch_bounds__(32) best_blocks(const flex_args a)
{
    extern __shared__ double values[];
    int head = blockIdx.x, lane = threadIdx.x, seen = 0, above;
    int forced = blockIdx.y ? a.nb - 1 : 0;
    const double *v = (blockIdx.y ? a.diag : a.col) + (int64_t)head * a.nb;
    uint8_t *flags = (blockIdx.y ? a.diags : a.cols) + (int64_t)head * a.nb;
    int k = a.tokens[2 * head + blockIdx.y] / TOKENS_PER_BLOCK + 1;
    list_shared list = {values, a.nb};
    cut c = {-0.5, 0};
    k = max(a.min_blocks, k);
    k = min(a.max_blocks, k);
    if (a.aware[head])
        k = a.min_blocks;
    for (int j = lane; j < a.nb; j += 32)
        values[j] = j == forced ? FIRST : v[j];
    __syncwarp();
    if (k < a.nb) {
        double t = cut_find(list, 0, [=](double, int number) { return number >= k; });
        cut_mass(list, t, false, &above);
        c = {t, k - above};
    }
    for (int j0 = 0; j0 < a.nb; j0 += 32) {
        int j = j0 + lane;
        bool in = cut_has(c, j < a.nb ? values[j] : 0, j < a.nb, &seen);
        if (j < a.nb)
            flags[blockIdx.y ? a.nb - 1 - j : j] = in;
    }
}

/* ---- query-aware heads ---------------------------------------------------------------------- */

/* Scores of a row of pooled blocks become probabilities; a warp per row. */
static __global__ void row_softmax(const flex_args a)
{
    int64_t row = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) >> 5;
    int lane = threadIdx.x & 31, i = (int)(row % a.nb);
    if (row >= (int64_t)a.heads * a.nb || !a.aware[row / a.nb])
        return;
    double *w = a.score + row * a.nb, top = -INFINITY, sum = 0;
    for (int j = lane; j <= i; j += 32)
        top = w[j] > top ? w[j] : top;
    top = warp_max(top);
    for (int j = lane; j <= i; j += 32)
        sum += w[j] = exp(w[j] - top);
    sum = warp_add(sum);
    for (int j = lane; j <= i; j += 32)
        w[j] /= sum;
}

/* The best entries of the head's map, while their sum stays at or below gamma nb; ties in the order
 * of rows, then columns. */
static __global__ void __launch_bounds__(WIDE) keep_entries(const flex_args a)
{
    __shared__ int warps[32];
    int head = blockIdx.x, nb = a.nb, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int64_t n = (int64_t)nb * nb, above, m, seen = 0;
    const double *v = a.score + head * n;
    double t = -1;
    auto valid = [nb](int64_t x) { return x % nb <= x / nb; };
    if (!a.aware[head])
        return;
    m = 0;
    if (a.gamma < 1)
        wide_prefix(v, n, valid, a.gamma * nb, &t, &above, &m);
    for (int64_t x0 = 0; x0 < n; x0 += WIDE) {
        int64_t x = x0 + threadIdx.x;
        bool in = x < n && valid(x), tie = in && v[x] == t;
        uint32_t ties = __ballot_sync(~0u, tie);
        __syncthreads();
        if (lane == 0)
            warps[warp] = __popc(ties);
        __syncthreads();
        int before = __reduce_add_sync(~0u, lane < warp ? warps[lane] : 0);
        int all = __reduce_add_sync(~0u, warps[lane]);
        if (x < n)
            a.keep[head * n + x] =
                in && (v[x] > t || (tie && seen + before + __popc(ties & ((1u << lane) - 1)) < m));
        seen += all;
    }
}

/* A warp per row of the map. */
static __global__ void fill_map(const flex_args a)
{
    int64_t row = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) >> 5;
    int lane = threadIdx.x & 31, kept = 0, i = (int)(row % a.nb);
    if (row >= (int64_t)a.heads * a.nb)
        return;
    int64_t head = row / a.nb;
    const uint8_t *cols = a.cols + head * a.nb, *diags = a.diags + head * a.nb;
    bool aware = a.aware[head];
    for (int j0 = 0; j0 < a.words * 32; j0 += 32) {
        int j = j0 + lane;
        bool keep =
            j <= i && (j == i || cols[j] || diags[i - j] || (aware && a.keep[row * a.nb + j]));
        uint32_t word = __ballot_sync(~0u, keep);
        kept += __popc(word);
        if (lane == 0)
            a.map[row * a.words + j0 / 32] = word;
    }
    if (lane == 0)
        a.count[row] = kept;
}

/* ---- launches ------------------------------------------------------------------------------- */

template <int D> static int launch_means(struct gpu *g, const flex_args &a, struct err *err)
{
    int rc = 0;
    unsigned tiles = (unsigned)((a.nb + SCORE_TILE - 1) / SCORE_TILE);
    mean_rows<D><<<a.heads, 256, 0, g->stream>>>(a.q, a.n, a.n - a.block, a.block, a.q_last);
    CU_LAUNCHED(err);
    mean_blocks<D><<<dim3(a.nb, a.kv_heads), 256, 0, g->stream>>>(a.k, a.n, a.block, 0, a.k_mean);
    CU_LAUNCHED(err);
    mean_blocks<D><<<dim3(a.nb, a.heads), 256, 0, g->stream>>>(a.q, a.n, a.block, 0, a.q_mean);
    CU_LAUNCHED(err);
    test_pattern<<<a.heads, WIDE, a.nb * 8, g->stream>>>(a, D);
    CU_LAUNCHED(err);
    score_means<<<dim3(tiles, tiles, a.heads), 128, 0, g->stream>>>(
        a.q_mean, a.k_mean, D, a.nb, a.nb, a.per_kv, a.scale, 1, a.block, a.block, a.score);
    CU_LAUNCHED(err);
out:
    return rc;
}

static int launch(struct gpu *g, const struct select_job *job, struct err *err)
{
    const flex_args &a = *(const flex_args *)job->state;
    int rc = 0, d = job->problem.d;
    unsigned rows = (unsigned)((job->lists.rows + 7) / 8);

    TRY(last_rows_launch(g, a.last, d, err));
    sum_blocks<<<dim3((a.nb + 7) / 8, a.heads), 256, 0, g->stream>>>(a);
    CU_LAUNCHED(err);
    count_tokens<<<dim3(a.heads, 2), WIDE, 0, g->stream>>>(a);
    CU_LAUNCHED(err);
    TRY(d == 128 ? launch_means<128>(g, a, err) : launch_means<64>(g, a, err));
    best_blocks<<<dim3(a.heads, 2), 32, a.nb * 8, g->stream>>>(a);
    CU_LAUNCHED(err);
    row_softmax<<<rows, 256, 0, g->stream>>>(a);
    CU_LAUNCHED(err);
    keep_entries<<<a.heads, WIDE, 0, g->stream>>>(a);
    CU_LAUNCHED(err);
    fill_map<<<rows, 256, 0, g->stream>>>(a);
    CU_LAUNCHED(err);
    TRY(lists_make(g, &job->lists, err));
out:
    return rc;
}

/* ---- set-up --------------------------------------------------------------------------------- */

/* What is not given is as in the published benchmark settings (preset=profile). */
static void resolve(const struct select_problem *p, flex_args *a)
{
    int64_t least = select_int(p, "min_budget"), most = select_int(p, "max_budget");
    a->n = p->nk;
    a->heads = p->heads;
    a->kv_heads = p->kv_heads;
    a->per_kv = p->heads / p->kv_heads;
    a->block = select_is(p, "block", "64") ? 64 : 128;
    a->nb = (int)((a->n + a->block - 1) / a->block);
    a->gamma = select_num(p, "gamma");
    a->gamma = isnan(a->gamma) ? 0.95 : a->gamma;
    a->tau = select_num(p, "tau");
    a->tau = isnan(a->tau) ? 0.1 : a->tau;
    least = ((least == INT64_MIN ? 1024 : least) + a->block - 1) / a->block;
    most = (most + a->block - 1) / a->block;
    a->min_blocks = (int)(least < 1 ? 1 : least > INT32_MAX / 256 ? INT32_MAX / 256 : least);
    a->max_blocks = most > 0 && most < a->nb ? (int)most : a->nb;
    a->scale = p->scale;
    a->q = (const uint4 *)p->q;
    a->k = (const uint4 *)p->k;
    a->last.n = a->n;
    a->last.heads = a->heads;
    a->last.per_kv = a->per_kv;
    a->last.rows = a->last.tall = a->block;
    a->last.divide = a->block;
    a->last.scale_log2 = (float)(p->scale * M_LOG2E);
    a->last.q = a->q;
    a->last.k = a->k;
}

/* Prompts up to the least budget, and up to two blocks, stay dense. */
static bool dense(const struct select_problem *p)
{
    flex_args a;
    resolve(p, &a);
    return select_is(p, "profile", "official") && select_is(p, "preset", "profile") &&
           !select_is(p, "block", "32") &&
           (a.n <= 2 * a.block || a.n <= (int64_t)a.min_blocks * a.block);
}

static bool fits(const struct select_problem *p, char why[160])
{
    flex_args a;
    resolve(p, &a);
    if (p->d != 64 && p->d != 128)
        snprintf(why, 160, "head dimension %d, the GPU side has 64 and 128", p->d);
    else if (!select_is(p, "profile", "official") || !select_is(p, "preset", "profile") ||
             !select_is(p, "emulate", "none"))
        snprintf(why, 160,
                 "the GPU side has profile=official, gamma, tau and min_budget as numbers");
    else if (select_is(p, "block", "32"))
        snprintf(why, 160, "the GPU side has blocks of 64 and 128");
    else if (!p->causal || p->nq != p->nk)
        snprintf(why, 160, "whole causal prompts only");
    else if (a.nb > MAX_BLOCKS)
        snprintf(why, 160, "the GPU side takes up to %d blocks", MAX_BLOCKS);
    else
        return true;
    return false;
}

static int init(struct gpu *g, struct select_job *job, struct err *err)
{
    const struct select_problem *p = &job->problem;
    flex_args *a = (flex_args *)calloc(1, sizeof *a);
    int rc = 0;

    job->state = a;
    if (!a)
        FAIL(err, ERR_NOMEM, "flexprefill on the GPU: out of memory");
    resolve(p, a);
    TRY(select_lists_init(g, job, a->block, a->block, err));
    a->words = (int)job->lists.words;
    a->map = job->lists.map;
    a->count = job->lists.count;
    {
        int64_t h = a->heads, cells = h * a->nb;
        TRY(last_rows_alloc(g, &a->last, err));
        TRY(gpu_alloc(g, cells * 8, &a->col, err));
        TRY(gpu_alloc(g, cells * 8, &a->diag, err));
        TRY(gpu_alloc(g, h * p->d * 4, &a->q_last, err));
        TRY(gpu_alloc(g, cells * p->d * 4, &a->q_mean, err));
        TRY(gpu_alloc(g, (int64_t)a->kv_heads * a->nb * p->d * 4, &a->k_mean, err));
        TRY(gpu_alloc(g, cells * a->nb * 8, &a->score, err));
        TRY(gpu_alloc(g, h * 8, &a->tokens, err));
        TRY(gpu_alloc(g, h, &a->aware, err));
        TRY(gpu_alloc(g, cells, &a->cols, err));
        TRY(gpu_alloc(g, cells, &a->diags, err));
        TRY(gpu_alloc(g, cells * a->nb, &a->keep, err));
    }
out:
    return rc;
}

extern "C" const struct select_method select_flexprefill = {
    "flexprefill", fits, init, launch, NULL, dense, false,
};
