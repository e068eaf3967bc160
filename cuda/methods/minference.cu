/*
 * minference.cu - MInference's patterns that look at q and k (arXiv:2407.02490, section 3.2). The
 * CPU side is sim/methods/minference/minference.c and sim/blocks/vslash.c.
 *
 * Vertical-slash: mass per key and per distance of the last rows (lastrows.cuh), the best of both,
 * and the lists of 64-row blocks (slashmap.cuh). Block: products of mean-pooled queries and keys,
 * and a fixed number of best blocks per row block of 64; reads Q and K once, 2 nb^2 d FLOP in
 * double.
 */
#include "cuda/select/lastrows.cuh"
#include "cuda/select/means.cuh"
#include "cuda/select/method.cuh"
#include "cuda/select/scorerows.cuh"
#include "cuda/select/slashmap.cuh"

#define BLOCK 64
#define MAX_UNITS 24576 /* of a row in shared memory */

struct minference_state : head_args {
    bool slash, realised; /* vertical-slash; its lists or the pairs asked for */
    last_rows last;
    slash_lists lists;

    int top;                /* the block pattern */
    float *q_mean, *k_mean; /* [heads][groups][d], [kv_heads][units][d] */
    double *score;          /* [heads][groups][units] */
};

/* ---- sizes for a share of dense work --------------------------------------------------------
 *
 * How many columns and distances multiply a given share: sparsity=, search_lists of
 * minference.c. A fifth of a budget of tokens are columns, the rest distances. The budget is
 * halved for all heads side by side: choose, count the listed blocks and columns, compare. Counts
 * are whole numbers, so that equal scores give equal sizes here and there. */

struct share_search {          /* of a head */
    int lo, hi;                /* the budget lies between */
    double below, above;       /* shares of the budgets lo - 1 and hi */
    unsigned long long listed; /* keys of the lists of all 64-row blocks */
};

/* A warp per 64 rows: add what the lists hold. */
static __global__ void slash_listed(const slash_lists a, share_search *search)
{
    extern __shared__ uint32_t covers[];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, head = blockIdx.y;
    int group = blockIdx.x * (blockDim.x >> 5) + warp, end, blocks;
    uint32_t *cover = covers + warp * a.words;
    const uint32_t *cols = a.cols + (int64_t)head * a.stride;

    if (group >= (a.n + SLASH_ROWS - 1) / SLASH_ROWS)
        return;
    if (a.both) {
        end = a.n;
        blocks = cover_both(a, head, group * SLASH_ROWS, cover);
    } else {
        end = cover_distances(a, head, (group + 1) * SLASH_ROWS, cover, &blocks);
        end = min(end, a.n);
    }
    int columns = 0;
    for (int w = lane; w < a.words; w += 32)
        columns += __popc(cols[w] & ~cover[w] & below(w, end));
    columns = __reduce_add_sync(~0u, columns);
    if (lane == 0)
        atomicAdd(&search[head].listed, (unsigned long long)(SLASH_ROWS * blocks + columns));
}

/* A thread per head: take the count of the budget that was tried, and try the next one; after the
 * last, the nearer of the two that are left. An empty budget multiplies nothing, and five times the
 * prompt everything. */
static __global__ void share_step(share_search *search, int *want, int heads, int n, double share,
                                  double dense, bool begin)
{
    int head = blockIdx.x * blockDim.x + threadIdx.x;
    if (head >= heads)
        return;
    share_search s = begin ? share_search{1, 5 * n, 0, 1, 0} : search[head];
    int tried = s.lo + (s.hi - s.lo) / 2;
    if (!begin && s.lo < s.hi) {
        double work = (double)s.listed / SLASH_ROWS / dense;
        if (work < share) {
            s.lo = tried + 1;
            s.below = work;
        } else {
            s.hi = tried;
            s.above = work;
        }
    }
    s.listed = 0;
    search[head] = s;
    bool upper = fabs(s.above - share) <= fabs(s.below - share);
    int tokens = s.lo < s.hi ? s.lo + (s.hi - s.lo) / 2 : upper ? s.lo : s.lo - 1;
    want[2 * head] = min(tokens / 5, n);
    want[2 * head + 1] = min(tokens - tokens / 5, n);
}

/* Fill a->want, which comes from the arena, from the scores that are there; 0 < share < 1. */
static int share_sizes(struct gpu *g, slash_lists *a, double share, struct err *err)
{
    double nb = ceil((double)a->n / SLASH_ROWS), dense = a->both ? nb * nb : nb * (nb + 1) / 2;
    int warps = 4, bytes = warps * a->words * 4, threads = 128;
    int64_t groups = ceil_div((int64_t)nb, warps), steps = ceil_div(a->heads, threads);
    share_search *search = NULL;
    int *want = NULL;

    PASS_ON(take(g, err, &search, a->heads, &want, 2LL * a->heads));
    a->want = want;
    PASS_ON_CU(err, run_kernel(g->stream, share_step, steps, threads, 0, search, want, a->heads,
                               a->n, share, dense, true));
    for (int left = 5 * a->n - 1; left > 0; left /= 2) {
        PASS_ON(slash_choose(g, *a, err));
        PASS_ON_CU(err, run_kernel(g->stream, slash_listed, dim3(groups, a->heads), 32 * warps,
                                   bytes, *a, search));
        PASS_ON_CU(err, run_kernel(g->stream, share_step, steps, threads, 0, search, want, a->heads,
                                   a->n, share, dense, false));
    }
    return 0;
}

/* ---- blocks --------------------------------------------------------------------------------- */

/* A warp per row: the `top` best of the blocks that it sees, up to the diagonal or all. */
static __global__ void __launch_bounds__(32 * MAX_ROW_WARPS)
    best_blocks(const double *score, int64_t rows, int units, int top, int causal,
                const map_rows map)
{
    extern __shared__ double ranks[];
    int64_t row = blockIdx.x * (int64_t)(blockDim.x >> 5) + (threadIdx.x >> 5);
    double *rank = ranks + (int64_t)(threadIdx.x >> 5) * units;
    if (row < rows)
        keep_best(map, row, causal ? (int)(row % units) + 1 : units, top, -1, rank,
                  [&](int j) { return (float)score[row * units + j]; });
}

/* ---- launches ------------------------------------------------------------------------------- */

static int launch_blocks(struct gpu *g, const minference_state *s, int64_t rows, struct err *err)
{
    int n = s->units, warps = row_warps(n * 8);
    const float *none = NULL;
    auto means = s->d == 128 ? means_of<128> : means_of<64>;
    PASS_ON_CU(err, run_kernel(g->stream, means, dim3(n, s->heads), 256, 0, s->q, s->nq, BLOCK,
                               BLOCK, BLOCK, none, 0.0, s->q_mean));
    PASS_ON_CU(err, run_kernel(g->stream, means, dim3(n, s->kv_heads), 256, 0, s->k, s->nk, BLOCK,
                               BLOCK, BLOCK, none, 0.0, s->k_mean));
    PASS_ON_CU(err, run_scores(g->stream, g->sms, s->heads, s->q_mean, s->k_mean, s->d, n, n,
                               s->per_kv, 1, s->causal, BLOCK, BLOCK, s->score));
    return CU_STATUS(err, run_kernel(g->stream, best_blocks, ceil_div(rows, warps), 32 * warps,
                                     warps * n * 8, s->score, rows, n, s->top, s->causal, s->map));
}

static int launch(struct gpu *g, const struct select_job *job, struct err *err)
{
    const minference_state *s = (const minference_state *)job->state;
    int rc = s->slash ? last_rows_launch(g, s->last, s->d, err)
                      : launch_blocks(g, s, job->lists.rows, err);
    return rc || !s->slash ? rc : slash_launch(g, s->lists, s->realised, err);
}

/* ---- set-up --------------------------------------------------------------------------------- */

static bool fits(const struct select_problem *p, char why[160])
{
    int64_t most = select_rule(p, 0)->minf.blocks ? (int64_t)MAX_UNITS * BLOCK : SLASH_MOST;
    return dims_fit(p, why) &&
           ((p->nq == p->nk && p->nk <= most) ||
            refuse(why, "the GPU side takes whole prompts of up to %lld tokens", (long long)most));
}

/* For a share of work the sizes are searched here, once: the search stands for those that somebody
 * has tuned before, and is in no time of a choice. */
static int init_slash(struct gpu *g, struct select_job *job, struct err *err)
{
    const struct select_problem *p = &job->problem;
    const struct minf_rule *r = &select_rule(p, 0)->minf;
    minference_state *s = NULL;

    PASS_ON(method_init(g, job, r->realised ? SLASH_ROWS : 1, 1, &s, err));
    s->slash = true;
    s->realised = r->realised;
    PASS_ON(last_rows_init(g, p, (int)r->rows, 1, &s->last, err));
    s->lists.n_cols = (int)r->v;
    s->lists.n_dists = (int)r->s;
    s->lists.force_cols = (int)r->force_cols;
    s->lists.force_dists = (int)r->force_dists;
    PASS_ON(slash_init(g, job, &s->last, 0, &s->lists, err));
    if (!(r->work > 0))
        return 0;
    PASS_ON(last_rows_launch(g, s->last, p->d, err));
    return share_sizes(g, &s->lists, r->work, err);
}

static int init(struct gpu *g, struct select_job *job, struct err *err)
{
    const struct minf_rule *r = &select_rule(&job->problem, 0)->minf;
    minference_state *s = NULL;
    int64_t rows;

    if (!r->blocks)
        return init_slash(g, job, err);
    PASS_ON(method_init(g, job, BLOCK, BLOCK, &s, err));
    s->top = (int)r->top;
    rows = job->lists.rows;
    return take(g, err, &s->q_mean, rows * s->d, &s->k_mean, (int64_t)s->kv_heads * s->units * s->d,
                &s->score, rows * s->units);
}

extern "C" const struct select_method select_minference = {
    "minference", fits, init, launch, NULL, NULL, false, NULL,
};
