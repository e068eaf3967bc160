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
 * Sol-Attention, arXiv 2607.24027, and NVlabs/Sana (44b9354, 6f064c5). 2 N n d for n blocks, which
 * the compensation needs again.
 */
#include "core/intmath.h"
#include "core/mem.h"
#include "sim/blocks/blockmap.h"
#include "sim/blocks/blockpool.h"
#include "sim/blocks/exact.h"
#include "sim/blocks/rowselect.h"
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
    OPT_INT(struct params, near, "1", 0, 1e9, "blocks", "Blocks on either side that stay."),
    OPT_INT(struct params, sink_from, "0", 0, 1e9, "tokens", "First key that everybody keeps."),
    OPT_INT(struct params, sink_to, "0", 0, 1e9, "tokens", "End of these keys."),
    OPT_BOOL(struct params, compensate, "1", "A mean key stands for each block left out."),
    OPT_INT(struct params, dense_layers, "2", 0, 1e6, "layers", "First layers that stay dense."),
    OPT_INT(struct params, dense_steps, "10", 0, 1e6, "steps", "First steps that stay dense."),
    {0},
};

static const struct metric_def metrics[] = {
    OWN_METRIC("pairs_comp", "pairs of a query and a mean key that stands for its block"),
    {0},
};

struct state {
    const struct params *p;
    const struct head_in *in;
    char dense[160]; /* why the head is; "" = it is not */
    bool chosen;
    struct block_map map;
    float *kc, *vs;      /* [cols][d], owned; [cols][dv] behind it */
    double *var, *logit; /* [d] of kc_j over j, owned; [cols] of a row, behind it */
    int64_t left_out;    /* pairs of a query and a block that it does not keep */
};

static void release(void *state)
{
    struct state *s = state;
    block_map_free(&s->map);
    free(s->kc);
    free(s->var);
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    const struct params *p = params;
    struct state *s = state;
    int64_t n = ceil_div(in->x.nk, B), d = in->x.d;
    *s = (struct state){.p = p, .in = in};
    head_left_dense(in, p->dense_layers, p->dense_steps, ROWS_ALL, s->dense);
    ctx->unit_rows = B;
    PASS_ON(block_map_init(&s->map, in->x.nq, in->x.nk, B, false, err));
    PASS_ON(mem_alloc(&s->kc, n * (d + in->x.dv), sizeof *s->kc, "mean keys, sums of values", err));
    PASS_ON(mem_alloc(&s->var, d + n, sizeof *s->var, "logits of mean keys", err));
    s->vs = s->kc + n * d;
    s->logit = s->var + d;
    return 0;
}

static void choose_row(struct state *s, int64_t i)
{
    const struct params *p = s->p;
    int64_t rows = MIN(B, s->in->x.nq - i * B), n = s->map.cols;
    double mu = 0, var = 0, qc[BLOCKPOOL_MAX_D], *score = s->logit;
    int d = s->in->x.d;
    for (int a = 0; a < d; a++) {
        qc[a] = 0;
        for (int64_t r = i * B; r < i * B + rows; r++)
            qc[a] += s->in->x.q[r * d + a];
        qc[a] *= s->in->x.scale * LOG2E / (double)rows;
        var += p->var ? 0 : qc[a] * qc[a] * s->var[a];
    }
    for (int64_t j = 0; j < n; j++) {
        score[j] = 0;
        for (int a = 0; a < d; a++)
            score[j] += qc[a] * s->kc[j * d + a];
        mu += score[j] / (double)n;
    }
    for (int64_t j = 0; j < n && p->var; j++)
        var += (score[j] - mu) * (score[j] - mu) / (double)n;
    double least = mu + p->tau * sqrt(fmax(var, 0) + 1e-6);
    for (int64_t j = 0; j < n; j++)
        if (score[j] > least || llabs(i - j) <= p->near ||
            (j >= p->sink_from / B && j < ceil_div(p->sink_to, B)))
            block_map_set(&s->map, i, j);
        else
            s->left_out += rows;
}

/* Mean keys and sums of values, the variances of the former, and by them the blocks of all rows. */
static void choose(struct state *s)
{
    const struct attn_in *x = &s->in->x;
    double n = (double)s->map.cols;
    for (int64_t j = 0; j < s->map.cols; j++) {
        int64_t len = MIN(B, x->nk - j * B);
        float *sum = s->vs + j * x->dv;
        block_mean(x->k + j * B * x->d, len, x->d, DT_BF16, s->kc + j * x->d);
        block_mean(x->v + j * B * x->dv, len, x->dv, DT_F32, sum);
        for (int c = 0; c < x->dv; c++)
            sum[c] = dtype_round(DT_BF16, sum[c] * (float)len);
    }
    for (int c = 0; c < x->d; c++) {
        double mean = 0, square = 0;
        for (const float *k = s->kc + c; k < s->vs; k += x->d) {
            mean += *k / n;
            square += (double)*k * *k / n;
        }
        s->var[c] = square - mean * mean;
    }
    for (int64_t i = 0; i < s->map.rows; i++)
        choose_row(s, i);
    s->chosen = true;
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct state *s = state;
    if (s->dense[0]) {
        attn_full_mask(&s->in->x, row0, row1, out);
        return 0;
    }
    if (!s->chosen)
        choose(s);
    return block_map_mask(&s->map, row0, row1, out, err);
}

static bool rule(const void *state, struct rule *rule, char why[160])
{
    const struct state *s = state;
    const struct params *p = s->p;
    rule->of.pooled = (struct pooled_rule){.all = s->dense[0],
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
    return s->dense[0] ? 0 : block_map_take(&s->map, c, err);
}

static void how(const void *state, struct arithmetic *a, char why[160])
{
    const struct state *s = state;
    a->kind = s->dense[0] || !s->p->compensate ? ARITH_SOFTMAX : ARITH_CPU;
    if (a->kind == ARITH_CPU)
        method_refuses(why, "no CUDA kernel for compensate=1; compensate=0 has one");
}

/* One softmax over the kept keys and the mean keys, which count as often as they have tokens. out
 * comes with attention over the kept keys, whose log-sum-exp is lse. */
static void compensate_row(struct state *s, int64_t i, double lse, double *out)
{
    const struct attn_in *x = &s->in->x;
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
    PASS_ON(exact_attend(s->in->exact, m, out, lse, err));
    for (int64_t i = m->row0; out && i < m->row1; i++)
        compensate_row(s, i, lse[i - m->row0], out + (i - m->row0) * s->in->x.dv);
    return 0;
}

static int report(void *state, struct record *r, struct err *err)
{
    const struct state *s = state;
    double blocks = (double)(s->map.rows * s->map.cols);
    if (s->dense[0])
        return 0;
    if (s->p->compensate)
        record_note(r, "output=compensated");
    return RECORD_ALL(r, err, {"pairs_comp", s->p->compensate ? (double)s->left_out : 0},
                      {"density_native", (double)block_map_count(&s->map) / blocks});
}

/* The kernel forms the scores row by row and keeps them for the compensation. */
static bool cost(const void *state, struct select_cost *c)
{
    const struct state *s = state;
    double cols = (double)s->map.cols, nq = (double)s->in->x.nq, nk = (double)s->in->x.nk;
    if (s->dense[0])
        return true;
    cost_sums(c, nk * (s->in->x.d + s->in->x.dv) + nq * cols);
    cost_rows(c, s->in, nq + nk, s->in->x.d);
    cost_rows(c, s->in, nk, s->in->x.dv);
    cost_products(c, nq * cols, s->in->x.d);
    cost_kept(c, cols * (s->in->x.d + s->in->x.dv) + (double)s->map.rows * cols);
    return true;
}

static bool why_full(const void *state, char why[160])
{
    return snprintf(why, 160, "%s", ((const struct state *)state)->dense) > 0;
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
    .device = {.rule = rule, .take = take, .keep_on_device = method_always},
    .arith = {.kind = ARITH_CPU, .how = how, .attend = attend},
    .tests = {.full = "dense_layers=0:dense_steps=0:tau=-1000",
              .variants = TEXTS("dense_layers=0:dense_steps=0",
                                "dense_layers=0:dense_steps=0:var=exact:tau=0.5:compensate=0",
                                "dense_layers=0:dense_steps=0:near=0:sink_from=70:sink_to=100"),
              .budgets = METHOD_BUDGETS(
                  {"compensate=0:dense_layers=0:dense_steps=0:tau=%s", {"3", "1", "0", "-3"}})},
};
