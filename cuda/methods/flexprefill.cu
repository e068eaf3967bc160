/*
 * flexprefill.cu - FlexPrefill's selection as in the published code (arXiv:2502.20766, algorithms 1
 * to 4): exact rows of the last B queries, mass per key and per distance (lastrows.cuh), the
 * pattern test, then the best block columns and diagonals or the best pooled blocks of the whole
 * head. Everything after the rows is in double. The port (profile=frontier) keeps the counted
 * tokens themselves, as lists of 64-row blocks (slashmap.cuh). The CPU side is
 * sim/methods/flexprefill/flexprefill.c.
 */
#include "cuda/select/cut.cuh"
#include "cuda/select/lastrows.cuh"
#include "cuda/select/means.cuh"
#include "cuda/select/method.cuh"
#include "cuda/select/scorerows.cuh"
#include "cuda/select/slashmap.cuh"
#include "cuda/select/wide.cuh"

#define FIRST 1e300          /* score of a block that is always among the best */
#define TOKENS_PER_BLOCK 128 /* by which the published code divides counts of tokens */
#define MAX_BLOCKS 5120
#define FRONTIER_ROWS 512
#define FRONTIER_COLS 4 /* always kept, as the following */
#define FRONTIER_DISTS 64

struct flex_args : head_args {
    int block, nb;
    int least, most; /* columns, and distances: of blocks, or of tokens on the frontier */
    double gamma, tau, scale;
    struct last_rows last; /* the last `block` rows (frontier: 512); means over them */
    bool frontier;
    slash_lists lists;      /* of the frontier */
    double *col, *diag;     /* [heads][nb] */
    float *q_last;          /* [heads][d] mean of the last rows */
    float *q_mean, *k_mean; /* [heads][nb][d], [kv_heads][nb][d] */
    double *score;          /* [heads][nb][nb] */
    int *tokens;            /* [heads][2] */
    uint8_t *aware;         /* [heads] */
    struct flex_own *own;   /* of the first head; the next one's is own_bytes on */
    int64_t own_bytes;
    uint8_t *cols, *diags; /* [heads][nb] */
    float *share;          /* [heads][entries] of query-aware heads: probabilities */
    uint8_t *keep;         /* as share */
};

/* Entries of the block map above row i, of which row j has those that it sees: j + 1, or all. */
static __host__ __device__ __forceinline__ int64_t entries(const flex_args &a, int64_t i)
{
    return a.causal ? i * (i + 1) / 2 : i * a.nb;
}

static __device__ __forceinline__ struct flex_own *own_of(const flex_args &a, int head)
{
    return (struct flex_own *)((char *)a.own + head * a.own_bytes);
}

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
        if (k < a.nk) {
            col += a.last.ver[head * a.nk + k];
            diag += a.last.sla[head * a.nk + a.nk - 1 - k];
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

/* How many tokens, by mass descending, hold gamma, as the published code counts: head blockIdx.x,
 * keys (blockIdx.y 0) or distances (1). */
static __global__ void __launch_bounds__(WIDE) count_tokens(const flex_args a)
{
    const double *v = (blockIdx.y ? a.last.sla : a.last.ver) + (int64_t)blockIdx.x * a.nk;
    auto value = [=](int x) { return (float)v[x]; };
    int64_t number = a.nk;
    if (a.gamma < 1) {
        wide_list<decltype(value)> list(value, (int)a.nk);
        wide_cut c = wide_prefix(list, a.gamma);
        number = c.above + c.m;
    }
    if (threadIdx.x == 0)
        own_of(a, blockIdx.x)->tokens[blockIdx.y] = (int)number + 1;
    number = a.frontier ? max(number + 1, (int64_t)a.least) : number + 1;
    number = a.frontier ? min(number, (int64_t)a.most) : number;
    if (threadIdx.x == 0)
        a.tokens[2 * blockIdx.x + blockIdx.y] = (int)number;
}

/* Is the head query-aware: column mass as pooled keys see it, and its Jensen-Shannon distance from
 * the mass of the sampled rows, below tau? Both as floats; a zero makes the distance undefined. */
static __global__ void __launch_bounds__(WIDE) test_pattern(const flex_args a)
{
    extern __shared__ double est[];
    __shared__ double top;
    int head = blockIdx.x, d = a.d;
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
    if (threadIdx.x == 0) {
        struct flex_own *own = own_of(a, head);
        own->js = zeros == 0 ? sqrt(fmax(js, 0.0)) : NAN;
        a.aware[head] = own->js < a.tau;
        own->aware = a.aware[head];
    }
}

/* The best block columns (blockIdx.y 0; the first block always) or diagonals (1; the main one
 * always) of a head: as many as the counted tokens make blocks. */
static __global__ void __launch_bounds__(32) best_blocks(const flex_args a)
{
    extern __shared__ double values[];
    int head = blockIdx.x, lane = threadIdx.x, seen = 0;
    int forced = blockIdx.y ? a.nb - 1 : 0;
    const double *v = (blockIdx.y ? a.diag : a.col) + (int64_t)head * a.nb;
    uint8_t *flags = (blockIdx.y ? a.diags : a.cols) + (int64_t)head * a.nb;
    int k = a.tokens[2 * head + blockIdx.y] / TOKENS_PER_BLOCK + 1;
    cut c = {-0.5, 0};
    k = max(a.least, k);
    k = min(a.most, k);
    if (a.aware[head])
        k = a.least;
    for (int j = lane; j < a.nb; j += 32)
        values[j] = j == forced ? FIRST : v[j];
    __syncwarp();
    if (k < a.nb)
        c = cut_largest(list_shared{values, a.nb}, k);
    for (int j0 = 0; j0 < a.nb; j0 += 32) {
        int j = j0 + lane;
        bool in = cut_has(c, j < a.nb ? values[j] : 0, j < a.nb, &seen);
        if (j < a.nb)
            flags[blockIdx.y ? a.nb - 1 - j : j] = in;
    }
}

/* ---- query-aware heads: of all heads, before it is known which are ------------------------- */

/* Scores of the pooled blocks that a row sees become probabilities; a warp per row. */
static __global__ void row_softmax(const flex_args a)
{
    int64_t row = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) >> 5, head = row / a.nb;
    int lane = threadIdx.x & 31, i = (int)(row % a.nb);
    if (head >= a.heads)
        return;
    const double *w = a.score + row * a.nb;
    float *p = a.share + head * entries(a, a.nb) + entries(a, i);
    int seen = a.causal ? i + 1 : a.nb;
    row_scale s = scale_row(w, seen);
    for (int j = lane; j < seen; j += 32)
        p[j] = (float)(exp(w[j] - s.top) / s.sum);
}

/* The best entries of the head's map, while their sum stays at or below gamma nb; ties in the order
 * of rows, then columns. */
static __global__ void __launch_bounds__(WIDE) keep_entries(const flex_args a)
{
    int head = blockIdx.x, seen = 0;
    int64_t n = entries(a, a.nb);
    const float *p = a.share + head * n;
    uint8_t *keep = a.keep + head * n;
    auto value = [=](int x) { return p[x]; };
    wide_cut c = {-1, -1, 0, 0};
    if (a.gamma < 1) {
        wide_list<decltype(value)> list(value, (int)n);
        c = wide_prefix(list, a.gamma * a.nb);
    }
    for (int64_t x0 = 0; x0 < n; x0 += WIDE) {
        int64_t x = x0 + threadIdx.x;
        bool in = wide_has(c, x < n ? p[x] : 0, x < n, &seen);
        if (x < n)
            keep[x] = in;
    }
}

/* A warp per row of the map. */
static __global__ void fill_map(const flex_args a)
{
    int64_t row = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) >> 5;
    if (row >= (int64_t)a.heads * a.nb)
        return;
    int64_t head = row / a.nb;
    int i = (int)(row % a.nb);
    const uint8_t *cols = a.cols + head * a.nb, *diags = a.diags + head * a.nb;
    const uint8_t *keep = a.keep + head * entries(a, a.nb) + entries(a, i);
    bool aware = a.aware[head];
    int seen = a.causal ? i + 1 : a.nb;
    fill_row(a.map, row, [&](int j) {
        return j < seen && (j == i || cols[j] || diags[abs(i - j)] || (aware && keep[j]));
    });
}

/* ---- launches ------------------------------------------------------------------------------- */

/* What the sampled rows are not needed for, on the side stream. */
template <int D> static int launch_means(struct gpu *g, const flex_args &a, struct err *err)
{
    const float *none = NULL;
    PASS_ON_CU(err, run_kernel(g->side, means_of<D>, dim3(1, a.heads), 256, 0,
                               a.q + (a.nk - a.block) * (D / 8), a.nk, a.block, 0, 0, none, 0.0,
                               a.q_last));
    PASS_ON_CU(err, run_kernel(g->side, means_of<D>, dim3(a.nb, a.kv_heads), 256, 0, a.k, a.nk,
                               a.block, a.block, 0, none, 0.0, a.k_mean));
    PASS_ON_CU(err, run_kernel(g->side, means_of<D>, dim3(a.nb, a.heads), 256, 0, a.q, a.nk,
                               a.block, a.block, 0, none, 0.0, a.q_mean));
    PASS_ON_CU(err, run_scores(g->side, g->sms, a.heads, a.q_mean, a.k_mean, D, a.nb, a.nb,
                               a.per_kv, a.scale, a.causal, a.block, a.block, a.score));
    return CU_STATUS(
        err, run_kernel(g->side, row_softmax, ceil_div((int64_t)a.heads * a.nb, 8), 256, 0, a));
}

static int launch_frontier(struct gpu *g, const flex_args &a, struct err *err)
{
    PASS_ON(last_rows_launch(g, a.last, a.d, err));
    PASS_ON_CU(err, run_kernel(g->stream, count_tokens, dim3(a.heads, 2), WIDE, 0, a));
    return slash_launch(g, a.lists, true, err);
}

static int launch(struct gpu *g, const struct select_job *job, struct err *err)
{
    const flex_args &a = *(const flex_args *)job->state;

    if (a.frontier)
        return launch_frontier(g, a, err);
    PASS_ON(gpu_fork(g, err));
    PASS_ON(a.d == 128 ? launch_means<128>(g, a, err) : launch_means<64>(g, a, err));
    PASS_ON(last_rows_launch(g, a.last, a.d, err));
    PASS_ON_CU(err, run_kernel(g->stream, sum_blocks, dim3((a.nb + 7) / 8, a.heads), 256, 0, a));
    PASS_ON(gpu_join(g, err));
    PASS_ON(gpu_fork(g, err)); /* few thread blocks each: side by side */
    PASS_ON_CU(err, run_kernel(g->side, count_tokens, dim3(a.heads, 2), WIDE, 0, a));
    PASS_ON_CU(err, run_kernel(g->side, test_pattern, a.heads, WIDE, a.nb * 8, a));
    PASS_ON_CU(err, run_kernel(g->stream, keep_entries, a.heads, WIDE, 0, a));
    PASS_ON(gpu_join(g, err));
    PASS_ON_CU(err, run_kernel(g->stream, best_blocks, dim3(a.heads, 2), 32, a.nb * 8, a));
    return CU_STATUS(err, run_kernel(g->stream, fill_map, ceil_div(job->lists.rows, 8), 256, 0, a));
}

/* ---- set-up --------------------------------------------------------------------------------- */

static bool dense(const struct select_problem *p)
{
    return select_rule(p, 0)->flex.all;
}

static bool fits(const struct select_problem *p, char why[160])
{
    const struct flex_rule *r = &select_rule(p, 0)->flex;
    if (!dims_fit(p, why))
        return false;
    if (r->block == 32 && !r->lists)
        return refuse(why, "the GPU side has blocks of 64 and 128");
    if (p->nq != p->nk)
        return refuse(why, "whole prompts only");
    return (r->lists ? p->nk <= SLASH_MOST : ceil_div(p->nk, r->block) <= MAX_BLOCKS) ||
           refuse(why, "the GPU side takes up to %d blocks and %d tokens", MAX_BLOCKS, SLASH_MOST);
}

static int init_frontier(struct gpu *g, struct select_job *job, flex_args *a, struct err *err)
{
    int rows = (int)MIN(a->nk, FRONTIER_ROWS);
    PASS_ON(last_rows_init(g, &job->problem, rows, rows, &a->last, err));
    PASS_ON(take(g, err, &a->tokens, 2LL * a->heads));
    a->lists.force_cols = FRONTIER_COLS;
    a->lists.force_dists = FRONTIER_DISTS;
    a->lists.want = a->tokens;
    PASS_ON(slash_init(g, job, &a->last, sizeof *a->own, &a->lists, err));
    a->own = (struct flex_own *)job->lists.own;
    a->own_bytes = job->lists.own_bytes;
    return 0;
}

static int init_blocks(struct gpu *g, struct select_job *job, flex_args *a, struct err *err)
{
    int64_t h = a->heads, cells = h * a->nb, d = a->d;
    PASS_ON(last_rows_init(g, &job->problem, a->block, a->block, &a->last, err));
    PASS_ON(take(g, err, &a->col, cells, &a->diag, cells, &a->q_last, h * d, &a->q_mean, cells * d,
                 &a->k_mean, (int64_t)a->kv_heads * a->nb * d, &a->score, cells * a->nb, &a->tokens,
                 2 * h, &a->own, h, &a->aware, h, &a->cols, cells, &a->diags, cells, &a->share,
                 h * entries(*a, a->nb), &a->keep, h * entries(*a, a->nb)));
    a->own_bytes = job->lists.own_bytes = sizeof *a->own;
    job->lists.own = a->own;
    return 0;
}

static int init(struct gpu *g, struct select_job *job, struct err *err)
{
    const struct flex_rule *r = &select_rule(&job->problem, 0)->flex;
    flex_args *a = NULL;
    PASS_ON(
        method_init(g, job, r->lists ? SLASH_ROWS : r->block, r->lists ? 1 : r->block, &a, err));
    a->frontier = r->lists;
    a->block = (int)r->block;
    a->nb = (int)ceil_div(a->nk, a->block);
    a->gamma = r->gamma;
    a->tau = r->tau;
    a->least = (int)r->least;
    a->most = (int)r->most;
    a->scale = job->problem.scale;
    return a->frontier ? init_frontier(g, job, a, err) : init_blocks(g, job, a, err);
}

extern "C" const struct select_method select_flexprefill = {
    "flexprefill", fits, init, launch, dense, NULL, false, NULL,
};
