/*
 * pooled.cu - units by the products of means: vsa, sla, subblock, moba, draft, sol and nsa (struct
 * pooled_rule in core/rules.h). The CPU sides are sim/methods/pooled.c, moba.c, sol.c and nsa.c.
 *
 * Means are sums in double, products and all that follows are double. One launch makes the scores
 * of all heads, or of as many KV heads as SCORE_BYTES hold; a warp per row then says what the row
 * keeps. Reads Q and K once (sla: K twice, nsa: kernel / stride times), 2 d FLOP in double per
 * score.
 */
#include "cuda/select/means.cuh"
#include "cuda/select/method.cuh"
#include "cuda/select/scorerows.cuh"
#include "cuda/select/wide.cuh"

#define MAX_UNITS 24576         /* scores of a row in shared memory */
#define SCORE_BYTES (2LL << 30) /* at once, where several KV heads are there */
#define MOST_BYTES (16LL << 30) /* of one KV head */
#define LOG2E 1.4426950408889634

struct pooled_state : head_args {
    struct pooled_rule rule;
    int q_rows, k_cols; /* of a head's scores: cells or single queries, cells or windows of keys */
    int in_unit, in_window; /* strides; POOLED_SHARES */
    int at_once;            /* KV heads whose scores are there together */
    double scale;           /* of products */
    float *k_all;           /* [kv_heads][d] mean of all keys */
    float *q_mean;          /* [heads][q_rows][d]; of single queries NULL */
    float *k_mean;          /* [kv_heads][k_cols][d] */
    double *k_var;          /* [kv_heads][d] variance of the mean keys; POOLED_ABOVE */
    double *score;          /* [heads at once][q_rows][k_cols] */
    double *limit;          /* [heads at once] POOLED_HEAD: what is above stays */
    int head0, count;       /* heads of a launch */
};

/* ---- means ---------------------------------------------------------------------------------- */

/* Variance of each coordinate of the mean keys of a KV head. */
template <int D> static __global__ void __launch_bounds__(WIDE) spread_of(const pooled_state s)
{
    __shared__ double part[2][WIDE];
    const float *x = s.k_mean + (int64_t)blockIdx.x * s.k_cols * D;
    double sum = 0, square = 0;
    for (int64_t e = threadIdx.x; e < (int64_t)s.k_cols * D; e += WIDE) {
        sum += x[e];
        square += (double)x[e] * x[e];
    }
    part[0][threadIdx.x] = sum;
    part[1][threadIdx.x] = square;
    __syncthreads();
    if (threadIdx.x >= D)
        return;
    for (int i = threadIdx.x + D; i < WIDE; i += D) {
        sum += part[0][i];
        square += part[1][i];
    }
    sum /= s.k_cols;
    s.k_var[(int64_t)blockIdx.x * D + threadIdx.x] = square / s.k_cols - sum * sum;
}

/* ---- rows ----------------------------------------------------------------------------------- */

/* The warp's row of so many, or -1; *shared: `each` doubles of its own. */
static __device__ __forceinline__ int64_t warp_row(int64_t rows, int each, double **shared)
{
    extern __shared__ double memory[];
    int warp = threadIdx.x >> 5;
    int64_t row = blockIdx.x * (int64_t)(blockDim.x >> 5) + warp;
    *shared = memory + (int64_t)warp * each;
    return row < rows ? row : -1;
}

/* Score of units i and j given a head's products: to base 2 where they have cells. */
static __device__ __forceinline__ double score_of(const pooled_state &s, const double *product,
                                                  int64_t i, int64_t j)
{
    const int qc = s.rule.q_cells, kc = s.rule.k_cells;
    if (qc * kc == 1)
        return product[i * s.k_cols + j];
    int64_t a1 = min((i + 1) * qc, (int64_t)s.q_rows), b1 = min((j + 1) * kc, (int64_t)s.k_cols);
    double top = -INFINITY, sum = 0;
    for (int64_t a = i * qc; a < a1; a++)
        for (int64_t b = j * kc; b < b1; b++)
            top = fmax(top, product[a * s.k_cols + b]);
    for (int64_t a = i * qc; a < a1; a++)
        for (int64_t b = j * kc; b < b1; b++)
            sum += exp2(product[a * s.k_cols + b] - top);
    return top + log2(sum);
}

static __global__ void __launch_bounds__(32 * MAX_ROW_WARPS) best_units(const pooled_state s)
{
    double *rank;
    int64_t row = warp_row((int64_t)s.count * s.groups, s.units, &rank);
    if (row < 0)
        return;
    int64_t i = row % s.groups, at = i + s.nk - s.nq; /* of a causal row, a single query */
    int own = !s.causal || at < 0 ? -1 : (int)(at / s.rule.bk);
    const double *product = s.score + row / s.groups * s.q_rows * s.k_cols;
    keep_best(s.map, (int64_t)s.head0 * s.groups + row, !s.causal ? s.units : max(own, 0),
              (int)s.rule.top, own, rank, [&](int j) { return score_of(s, product, i, j); });
}

/* The softmax of every row, in place. */
static __global__ void __launch_bounds__(32 * MAX_ROW_WARPS) soften_rows(const pooled_state s)
{
    double *none;
    int64_t row = warp_row((int64_t)s.count * s.groups, 0, &none);
    if (row < 0)
        return;
    double *z = s.score + row * s.units;
    row_scale r = scale_row(z, s.units);
    for (int j = threadIdx.x & 31; j < s.units; j += 32)
        z[j] = exp(z[j] - r.top) / r.sum;
}

/* A limit below the `top`-th largest probability of a head and above all that are less, by
 * bisection over its bits. */
static __global__ void __launch_bounds__(WIDE) head_limits(const pooled_state s)
{
    int64_t n = (int64_t)s.groups * s.units;
    const double *p = s.score + blockIdx.x * n;
    uint64_t low = 0, high = (uint64_t)__double_as_longlong(1) + 1;
    bool found = false;
    while (high - low > 1 && !found) {
        uint64_t middle = low + (high - low) / 2;
        double t = __longlong_as_double((long long)middle);
        int number = 0;
        for (int64_t e = threadIdx.x; e < n; e += WIDE)
            number += p[e] >= t;
        number = wide_sum(number);
        found = number == s.rule.top;
        if (number >= s.rule.top)
            low = middle;
        else
            high = middle;
    }
    if (threadIdx.x == 0)
        s.limit[blockIdx.x] = s.rule.top == 0 ? INFINITY
                              : low == 0      ? -1
                                              : __longlong_as_double((long long)low - 1);
}

/* Mean and tau deviations of a row of scores, whose mean query is q [d]. */
static __device__ __forceinline__ double deviations(const pooled_state &s, const double *z,
                                                    const float *q, const double *k_var)
{
    double mean = 0, var = 0;
    int lane = threadIdx.x & 31;
    for (int j = lane; j < s.units; j += 32)
        mean += z[j];
    mean = warp_add(mean) / s.units;
    for (int j = lane; s.rule.exact && j < s.units; j += 32)
        var += (z[j] - mean) * (z[j] - mean) / s.units;
    for (int c = lane; !s.rule.exact && c < s.d; c += 32)
        var += s.scale * q[c] * k_var[c] * s.scale * q[c];
    return mean + s.rule.tau * sqrt(fmax(warp_add(var), 0.0) + 1e-6);
}

static __global__ void __launch_bounds__(32 * MAX_ROW_WARPS) units_above(const pooled_state s)
{
    double *none;
    const struct pooled_rule &r = s.rule;
    int64_t row = warp_row((int64_t)s.count * s.groups, 0, &none);
    if (row < 0)
        return;
    int64_t i = row % s.groups, head = s.head0 + row / s.groups, at = head * s.groups + i;
    const double *z = s.score + row * s.units;
    bool deviates = r.by == POOLED_ABOVE;
    double limit = deviates ? deviations(s, z, s.q_mean + at * s.d, s.k_var + head / s.per_kv * s.d)
                            : s.limit[row / s.groups];
    fill_row(s.map, at, [&](int j) {
        bool stays = deviates && (llabs(i - j) <= r.near || (j >= r.first && j < r.last));
        return j < s.units && (z[j] > limit || stays);
    });
}

/* The shares of the windows that touch unit b, each as often as strides of it lie there. */
static __device__ __forceinline__ double shares_of(const pooled_state &s, const double *share,
                                                   int b)
{
    double sum = 0, most = 0;
    for (int m = b * s.in_unit; m < (b + 1) * s.in_unit; m++)
        for (int j = m; j > m - s.in_window; j--) {
            double p = j >= 0 && j < s.k_cols ? share[j] : 0;
            sum += p;
            most = fmax(most, p);
        }
    return s.rule.largest ? most : sum;
}

/* A warp per query of rule.heads heads, which keep the same. */
static __global__ void __launch_bounds__(32 * MAX_ROW_WARPS, 2) best_shares(const pooled_state s)
{
    double *share;
    const int heads = s.rule.heads, nq = (int)s.nq, lane = threadIdx.x & 31;
    int row = (int)warp_row(s.count / heads * nq, s.k_cols + s.units, &share);
    if (row < 0)
        return;
    int head = row / nq * heads, i = row % nq, at = i + (int)(s.nk - s.nq);
    int past = at + 1 - (int)s.rule.kernel;
    int seen = past < 0 ? 0 : past / (int)s.rule.stride + 1,
        own = at < 0 ? -1 : at / (int)s.rule.bk;
    for (int j = lane; j < s.k_cols; j += 32)
        share[j] = 0;
    for (int h = 0; h < heads; h++) {
        const double *z = s.score + ((int64_t)(head + h) * nq + i) * s.k_cols;
        row_scale x = scale_row(z, seen);
        double one = 1 / x.sum;
        for (int j = lane; j < seen; j += 32)
            share[j] += exp(z[j] - x.top) * one;
    }
    __syncwarp();
    uint32_t *to = s.map.map + ((int64_t)(s.head0 + head) * nq + i) * s.map.words;
    keep_best({to, s.map.words}, 0, own + 1, (int)s.rule.top, -1, share + s.k_cols, [&](int b) {
        return b >= s.rule.init && b <= own - s.rule.local ? shares_of(s, share, b)
               : s.rule.shares_own                         ? heads
                                                           : 1e300;
    });
    __syncwarp();
    for (int h = 1; h < heads; h++)
        for (int w = lane; w < s.map.words; w += 32)
            to[(int64_t)h * nq * s.map.words + w] = to[w];
}

/* ---- launches ------------------------------------------------------------------------------- */

template <int D> static int launch_means(struct gpu *g, const pooled_state *s, struct err *err)
{
    const struct pooled_rule *r = &s->rule;
    const float *none = NULL, *minus = r->centre ? s->k_all : NULL;
    int64_t q_cell = r->bq / r->q_cells, k_cell = r->bk / r->k_cells;
    bool shares = r->by == POOLED_SHARES, above = r->by == POOLED_ABOVE;
    if (r->centre)
        PASS_ON_CU(err, run_kernel(g->stream, means_of<D>, dim3(1, s->kv_heads), 256, 0, s->k,
                                   s->nk, s->nk, s->nk, 0, none, 1.0, s->k_all));
    if (s->q_mean)
        PASS_ON_CU(err, run_kernel(g->stream, means_of<D>, dim3(s->q_rows, s->heads), 256, 0, s->q,
                                   s->nq, q_cell, q_cell, 0, none, above ? 0.0 : r->q_factor,
                                   s->q_mean));
    if (s->k_cols)
        PASS_ON_CU(err,
                   run_kernel(g->stream, means_of<D>, dim3(s->k_cols, s->kv_heads), 256, 0, s->k,
                              s->nk, shares ? r->kernel : k_cell, shares ? r->stride : k_cell, 0,
                              minus, shares ? 0.0 : 1.0, s->k_mean));
    if (above && !r->exact)
        return CU_STATUS(err, run_kernel(g->stream, spread_of<D>, s->kv_heads, WIDE, 0, *s));
    return 0;
}

/* The scores of the heads [head0, head0 + count); q: means, or single queries in bf16. */
template <class T>
static int launch_scores(struct gpu *g, const pooled_state *s, const T *q, struct err *err)
{
    int key_step = (int)(s->rule.by == POOLED_SHARES ? s->rule.stride : s->rule.bk);
    int64_t q0 = (int64_t)s->head0 * s->q_rows, k0 = (int64_t)s->head0 / s->per_kv * s->k_cols;
    int clip = s->causal && s->nq == s->nk;
    if (s->k_cols)
        return CU_STATUS(err,
                         run_scores(g->stream, g->sms, s->count, q + q0 * s->d,
                                    s->k_mean + k0 * s->d, s->d, s->q_rows, s->k_cols, s->per_kv,
                                    s->scale, clip, (int)s->rule.bq, key_step, s->score));
    return 0;
}

/* Warps per row, each with so many doubles in shared memory. */
static int launch_rows(struct gpu *g, void (*kernel)(const pooled_state), int64_t rows, int each,
                       const pooled_state *s, struct err *err)
{
    int warps = row_warps(each * 8);
    return CU_STATUS(err, run_kernel(g->stream, kernel, ceil_div(rows, warps), 32 * warps,
                                     warps * each * 8, *s));
}

static int launch_choice(struct gpu *g, const pooled_state *s, struct err *err)
{
    int64_t rows = (int64_t)s->count * s->groups;
    switch (s->rule.by) {
    case POOLED_BEST:
        PASS_ON(launch_rows(g, best_units, rows, s->units, s, err));
        break;
    case POOLED_HEAD:
        PASS_ON(launch_rows(g, soften_rows, rows, 0, s, err));
        PASS_ON_CU(err, run_kernel(g->stream, head_limits, s->count, WIDE, 0, *s));
        PASS_ON(launch_rows(g, units_above, rows, 0, s, err));
        break;
    case POOLED_ABOVE:
        PASS_ON(launch_rows(g, units_above, rows, 0, s, err));
        break;
    case POOLED_SHARES:
        PASS_ON(launch_rows(g, best_shares, rows / s->rule.heads, s->k_cols + s->units, s, err));
        break;
    }
    return 0;
}

static int launch(struct gpu *g, const struct select_job *job, struct err *err)
{
    pooled_state s = *(const pooled_state *)job->state;
    PASS_ON((s.d == 128 ? launch_means<128> : launch_means<64>)(g, &s, err));
    for (int kv = 0; kv < s.kv_heads; kv += s.at_once) {
        s.head0 = kv * s.per_kv;
        s.count = (s.kv_heads - kv < s.at_once ? s.kv_heads - kv : s.at_once) * s.per_kv;
        if (s.q_mean)
            PASS_ON(launch_scores(g, &s, s.q_mean, err));
        else
            PASS_ON(launch_scores(g, &s, (const __nv_bfloat16 *)s.q, err));
        PASS_ON(launch_choice(g, &s, err));
    }
    return 0;
}

/* ---- set-up --------------------------------------------------------------------------------- */

static bool dense(const struct select_problem *p)
{
    return select_rule(p, 0)->pooled.all;
}

static int64_t q_rows_of(const struct select_problem *p, const struct pooled_rule *r)
{
    return ceil_div(p->nq, r->bq / r->q_cells);
}

static int64_t k_cols_of(const struct select_problem *p, const struct pooled_rule *r)
{
    if (r->by == POOLED_SHARES)
        return p->nk < r->kernel ? 0 : (p->nk - r->kernel) / r->stride + 1;
    return ceil_div(p->nk, r->bk / r->k_cells);
}

/* Scores of the heads of a KV head. */
static double score_bytes(const struct select_problem *p, const struct pooled_rule *r)
{
    return 8.0 * (p->heads / p->kv_heads) * (double)q_rows_of(p, r) * (double)k_cols_of(p, r);
}

static bool fits(const struct select_problem *p, char why[160])
{
    const struct pooled_rule *r = &select_rule(p, 0)->pooled;
    bool shares = r->by == POOLED_SHARES;
    int64_t row = ceil_div(p->nk, r->bk) + (shares ? k_cols_of(p, r) : 0);
    if (!dims_fit(p, why) || (r->bq == 1 && !pair_maps_fit(p, why)))
        return false;
    if (row > MAX_UNITS)
        return refuse(why, "the GPU side takes rows of up to %d units, found %lld", MAX_UNITS,
                      (long long)row);
    if (shares && r->heads > 1 && r->heads != p->heads / p->kv_heads)
        return refuse(why,
                      "the GPU side needs all %d heads of a KV head in a call, without --copies",
                      r->heads);
    return score_bytes(p, r) <= (double)MOST_BYTES ||
           refuse(why, "the scores of a KV head take more than %lld GB; larger units take less",
                  MOST_BYTES >> 30);
}

static int init(struct gpu *g, struct select_job *job, struct err *err)
{
    const struct select_problem *p = &job->problem;
    const struct pooled_rule *r = &select_rule(p, 0)->pooled;
    int64_t at_once = (int64_t)((double)SCORE_BYTES / (score_bytes(p, r) + 1));
    pooled_state *s = NULL;
    PASS_ON(method_init(g, job, r->bq, r->bk, &s, err));
    s->rule = *r;
    s->q_rows = (int)q_rows_of(p, r);
    s->k_cols = (int)k_cols_of(p, r);
    if (r->by == POOLED_SHARES) {
        s->in_unit = (int)(r->bk / r->stride);
        s->in_window = (int)(r->kernel / r->stride);
    }
    s->at_once = (int)(at_once < 1 ? 1 : at_once > s->kv_heads ? s->kv_heads : at_once);
    s->scale = r->by == POOLED_BEST ? 1 : r->by == POOLED_ABOVE ? p->scale * LOG2E : p->scale;
    if (r->bq > 1)
        PASS_ON(take(g, err, &s->q_mean, (int64_t)s->heads * s->q_rows * s->d));
    return take(g, err, &s->k_all, (int64_t)s->kv_heads * s->d, &s->k_mean,
                (int64_t)s->kv_heads * s->k_cols * s->d + 1, &s->k_var, (int64_t)s->kv_heads * s->d,
                &s->score, (int64_t)s->at_once * s->per_kv * s->q_rows * s->k_cols + 1, &s->limit,
                (int64_t)s->heads);
}

#define POOLED(name) name, fits, init, launch, dense, NULL, false, NULL

extern "C" const struct select_method select_vsa = {POOLED("vsa")};
extern "C" const struct select_method select_sla = {POOLED("sla")};
extern "C" const struct select_method select_draft = {POOLED("draft")};
extern "C" const struct select_method select_subblock = {POOLED("subblock")};
extern "C" const struct select_method select_moba = {POOLED("moba")};
extern "C" const struct select_method select_nsa = {POOLED("nsa")};
extern "C" const struct select_method select_sol = {POOLED("sol")};
