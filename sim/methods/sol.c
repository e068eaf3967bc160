/*
 * sol.c - block selection for video with a stand-in for what is left out: every query block keeps
 * the key blocks whose mean score lies tau deviations above that of all blocks, and one mean key
 * with the sum of its values stands for each of the others.
 *
 *   kc_j = mean of the keys of block j, vs_j = sum of its values, both bf16; qc_i = mean of queries
 *   keep (i, j) iff c qc_i . kc_j > mu_i + tau sqrt(max(var_i, 0) + 1e-6), c = scale log2(e),
 *   or |i - j| <= near, or block j holds a token of [sink_from, sink_to)
 *   mu_i, var_i: over all j; var=diag takes the coordinates of kc as independent
 *
 * Sol-Attention, arXiv 2607.24027, and NVlabs/Sana (44b9354, 6f064c5). Bidirectional heads. O(N d)
 * for the means, 2 N n d for the scores of n blocks, which the compensation needs again.
 */
#include "core/intmath.h"
#include "core/mem.h"
#include "sim/blocks/blockmap.h"
#include "sim/blocks/blockpool.h"
#include "sim/blocks/exact.h"
#include "sim/blocks/selectcost.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define B 64
#define LOG2E 1.4426950408889634

struct params {
    double tau;
    int var;
    int64_t near, sink_from, sink_to, dense_layers, dense_steps;
    bool compensate;
};

static const struct opt options[] = {
    OPT_NUM(struct params, tau, "1", -1000, 1000, "deviations",
            "How far above the mean a block's score must lie; ComfyUI has 1.3."),
    OPT_ENUM(struct params, var, "diag", TEXTS("diag", "exact"),
             "Variance of the scores: from the variances of the coordinates alone, or exact."),
    OPT_INT(struct params, near, "1", 0, 1e9, "blocks",
            "Blocks on either side of the query's own that stay with it."),
    OPT_INT(struct params, sink_from, "0", 0, 1e9, "tokens", "First key that everybody keeps."),
    OPT_INT(struct params, sink_to, "0", 0, 1e9, "tokens", "End of these keys."),
    OPT_BOOL(struct params, compensate, "1",
             "Attend to one mean key in place of each block that is left out."),
    OPT_INT(struct params, dense_layers, "2", 0, 1e6, "layers",
            "First layers that attend densely."),
    OPT_INT(struct params, dense_steps, "10", 0, 1e6, "steps",
            "First denoising steps that attend densely."),
    {0},
};

static const struct metric_def metrics[] = {
    OWN_METRIC("pairs_comp", "pairs of a query and a mean key that stands for its block"),
    {0},
};

struct state {
    const struct params *p;
    const struct head_in *in;
    struct attn_in x;
    bool dense, chosen;
    struct block_map map;
    float *kc, *vs;     /* [cols][d], [cols][dv] */
    double *mean, *cov; /* [d], [d][d] of kc_j over j */
    double *logit;      /* [cols] of a row */
};

static void release(void *state)
{
    struct state *s = state;
    block_map_free(&s->map);
    free(s->kc);
    free(s->vs);
    free(s->mean);
    free(s->cov);
    free(s->logit);
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    const struct params *p = params;
    struct state *s = state;
    int rc = 0;
    s->p = p;
    s->in = in;
    s->x = in->x;
    s->dense = in->layer < p->dense_layers || in->step < p->dense_steps;
    TRY(block_map_init(&s->map, in->x.nq, in->x.nk, B, false, err));
    ctx->unit_rows = B;
out:
    return rc;
}

/* ---- the choice ------------------------------------------------------------------------------ */

static void pool(struct state *s)
{
    const struct attn_in *x = &s->x;
    for (int64_t j = 0; j < s->map.cols; j++) {
        int64_t len = MIN(B, x->nk - j * B);
        float *sum = s->vs + j * x->dv;
        block_mean(x->k + j * B * x->d, len, x->d, DT_BF16, s->kc + j * x->d);
        block_mean(x->v + j * B * x->dv, len, x->dv, DT_F32, sum);
        for (int c = 0; c < x->dv; c++)
            sum[c] = dtype_round(DT_BF16, sum[c] * (float)len);
    }
}

/* Mean and covariance of the mean keys over the blocks; var=diag: of a coordinate with itself. */
static void moments(struct state *s)
{
    int d = s->x.d;
    double n = (double)s->map.cols;
    for (int64_t e = 0; e < s->map.cols * d; e++)
        s->mean[e % d] += s->kc[e] / n;
    for (int64_t j = 0; j < s->map.cols; j++)
        for (int a = 0; a < d; a++)
            for (int b = s->p->var ? 0 : a; b < (s->p->var ? d : a + 1); b++)
                s->cov[a * d + b] += (double)s->kc[j * d + a] * s->kc[j * d + b] / n;
    for (int a = 0; a < d; a++)
        for (int b = s->p->var ? 0 : a; b < (s->p->var ? d : a + 1); b++)
            s->cov[a * d + b] -= s->mean[a] * s->mean[b];
}

/* qc: the mean query times c. */
static double threshold(const struct state *s, const double *qc)
{
    double mu = 0, var = 0;
    int d = s->x.d;
    for (int a = 0; a < d; a++) {
        mu += qc[a] * s->mean[a];
        for (int b = 0; b < d; b++)
            var += qc[a] * s->cov[a * d + b] * qc[b];
    }
    return mu + s->p->tau * sqrt(fmax(var, 0) + 1e-6);
}

static void choose_row(struct state *s, int64_t i, double *qc)
{
    const struct params *p = s->p;
    int64_t end = MIN((i + 1) * B, s->x.nq);
    int d = s->x.d;
    for (int a = 0; a < d; a++) {
        qc[a] = 0;
        for (int64_t r = i * B; r < end; r++)
            qc[a] += s->x.q[r * d + a];
        qc[a] *= s->x.scale * LOG2E / (double)(end - i * B);
    }
    double least = threshold(s, qc);
    for (int64_t j = 0; j < s->map.cols; j++) {
        double score = 0;
        for (int a = 0; a < d; a++)
            score += qc[a] * s->kc[j * d + a];
        bool sink = j >= p->sink_from / B && j < ceil_div(p->sink_to, B);
        if (score > least || llabs(i - j) <= p->near || sink)
            block_map_set(&s->map, i, j);
    }
}

static int choose(struct state *s, struct err *err)
{
    const struct attn_in *x = &s->x;
    int64_t n = s->map.cols;
    double *qc = NULL;
    int rc = 0;
    TRY(mem_alloc(&s->kc, n * x->d, sizeof *s->kc, "mean keys", err));
    TRY(mem_alloc(&s->vs, n * x->dv, sizeof *s->vs, "sums of values", err));
    TRY(mem_alloc(&s->logit, n, sizeof *s->logit, "logits of mean keys", err));
    TRY(mem_zalloc(&s->mean, x->d, sizeof *s->mean, "mean of mean keys", err));
    TRY(mem_zalloc(&s->cov, (int64_t)x->d * x->d, sizeof *s->cov, "covariance of mean keys", err));
    TRY(mem_alloc(&qc, x->d, sizeof *qc, "mean query", err));
    pool(s);
    moments(s);
    for (int64_t i = 0; i < s->map.rows; i++)
        choose_row(s, i, qc);
    s->chosen = true;
out:
    free(qc);
    return rc;
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct state *s = state;
    int rc = 0;
    if (s->dense) {
        mask_full(out, s->x.nq, s->x.nk, row0, row1, false);
        return 0;
    }
    if (!s->chosen)
        TRY(choose(s, err));
    rc = block_map_mask(&s->map, row0, row1, out, err);
out:
    return rc;
}

static bool rule(const void *state, struct rule *rule, char why[160])
{
    const struct state *s = state;
    const struct params *p = s->p;
    rule->of.pooled = (struct pooled_rule){.all = s->dense,
                                           .by = POOLED_ABOVE,
                                           .bq = B,
                                           .bk = B,
                                           .q_cells = 1,
                                           .k_cells = 1,
                                           .tau = p->tau,
                                           .exact = p->var,
                                           .near = p->near,
                                           .first = p->sink_from / B,
                                           .last = ceil_div(p->sink_to, B)};
    return true;
}

static int take(void *state, const struct device_choice *c, struct err *err)
{
    struct state *s = state;
    s->chosen = true;
    return s->dense ? 0 : block_map_take(&s->map, c, err);
}

static bool stays(const void *state)
{
    return !((const struct state *)state)->dense;
}

/* ---- compensation ---------------------------------------------------------------------------- */

static void how(const void *state, struct arithmetic *a, char why[160])
{
    const struct state *s = state;
    bool softmax = s->dense || !s->p->compensate;
    a->kind = softmax ? ARITH_SOFTMAX : ARITH_CPU;
    if (!softmax)
        method_refuses(why, "no CUDA kernel for compensate=1; compensate=0 has one");
}

/* One softmax over the kept keys and the mean keys, which count as often as they have tokens. out
 * comes with attention over the kept keys, whose log-sum-exp is lse. */
static void compensate_row(struct state *s, int64_t i, double lse, double *out)
{
    const struct attn_in *x = &s->x;
    double top = lse;
    for (int64_t j = 0; j < s->map.cols; j++) {
        s->logit[j] = block_map_get(&s->map, i / B, j)
                          ? -INFINITY
                          : x->scale * row_product(x->q + i * x->d, s->kc + j * x->d, x->d);
        top = fmax(top, s->logit[j]);
    }
    double sum = exp(lse - top);
    for (int c = 0; c < x->dv; c++)
        out[c] *= sum;
    for (int64_t j = 0; j < s->map.cols; j++) {
        double w = exp(s->logit[j] - top);
        sum += w * (double)MIN(B, x->nk - j * B);
        for (int c = 0; c < x->dv && w > 0; c++)
            out[c] += w * s->vs[j * x->dv + c];
    }
    for (int c = 0; c < x->dv; c++)
        out[c] /= sum;
}

/* lse stays that of the kept keys, so that recall is theirs. */
static int attend(void *state, const struct mask *m, double *out, double *lse, double *tiles_pv,
                  struct err *err)
{
    struct state *s = state;
    int rc = exact_attend(s->in->exact, m, out, lse, err);
    for (int64_t i = m->row0; rc == 0 && out && i < m->row1; i++)
        compensate_row(s, i, lse[i - m->row0], out + (i - m->row0) * s->x.dv);
    return rc;
}

/* ---- callbacks ------------------------------------------------------------------------------- */

static int report(void *state, struct record *r, struct err *err)
{
    const struct state *s = state;
    double blocks = (double)(s->map.rows * s->map.cols), comp = 0;
    if (s->dense)
        return 0;
    for (int64_t i = 0; i < s->map.rows && s->p->compensate; i++)
        for (int64_t j = 0; j < s->map.cols; j++)
            comp += block_map_get(&s->map, i, j) ? 0 : (double)MIN(B, s->x.nq - i * B);
    if (s->p->compensate)
        record_note(r, "output=compensated");
    return RECORD_ALL(r, err, {"pairs_comp", comp},
                      {"density_native", (double)block_map_count(&s->map) / blocks});
}

/* The kernel forms the scores row by row and keeps them for the compensation. */
static bool cost(const void *state, struct select_cost *c)
{
    const struct state *s = state;
    double cols = (double)s->map.cols, nq = (double)s->x.nq, nk = (double)s->x.nk;
    if (s->dense)
        return true;
    cost_sums(c, nk * (s->x.d + s->x.dv) + nq * cols);
    cost_rows(c, s->in, nq + nk, s->x.d);
    cost_rows(c, s->in, nk, s->x.dv);
    cost_products(c, nq * cols, s->x.d);
    cost_kept(c, cols * (s->x.d + s->x.dv) + (double)s->map.rows * cols);
    return true;
}

static bool why_full(const void *state, char why[160])
{
    const struct state *s = state;
    snprintf(why, 160, "layer %d is below dense_layers=%lld or step %d below dense_steps=%lld",
             s->in->layer, (long long)s->p->dense_layers, s->in->step,
             (long long)s->p->dense_steps);
    return s->dense;
}

const struct method method_sol = {
    .name = "sol",
    .summary = "blocks above mean and deviation of the scores; mean keys stand for the rest (Sol)",
    .paper = "Sol-Attention, arXiv 2607.24027",
    .flags = METHOD_BIDIRECTIONAL,
    .params = {.table = options,
               .size = sizeof(struct params),
               .budget =
                   BUDGET_PARAMS(BUDGET_BY(BUDGET_LIN, "tau", .falls = true, .lo = -5, .hi = 10))},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .release = release,
    .metrics = metrics,
    .cost = cost,
    .why_full = why_full,
    .device = {.rule = rule, .take = take, .keep_on_device = stays},
    .arith = {.kind = ARITH_CPU, .how = how, .attend = attend},
    .tests = {.full = "dense_layers=0:dense_steps=0:tau=-1000",
              .variants = TEXTS("dense_layers=0:dense_steps=0",
                                "dense_layers=0:dense_steps=0:var=exact:tau=0.5:compensate=0",
                                "dense_layers=0:dense_steps=0:near=0:sink_from=70:sink_to=100"),
              .budgets = METHOD_BUDGETS(
                  {"compensate=0:dense_layers=0:dense_steps=0:tau=%s", {"3", "1", "0", "-3"}})},
};
