/*
 * moba.c - Mixture of Block Attention: a query attends to its own chunk of keys and to the chunks
 * whose mean key has the largest product with it.
 *
 *   g_tj = q_t . mean_j, unscaled; keep the own chunk and the topk - 1 best of those before it
 *
 * E. Lu et al., MoBA, arXiv 2502.13189, and moonshotai/MoBA 61e456b, whose two implementations give
 * this mask up to ties; here they go to the lower chunk. Means are summed in double and rounded to
 * the type of the keys. O(N d + N^2 d / chunk), causal heads. A model is trained for it: a trace of
 * another one says what it would lose.
 */
#include "core/intmath.h"
#include "core/mem.h"
#include "sim/blocks/blockpool.h"
#include "sim/blocks/rowselect.h"
#include "sim/blocks/selectcost.h"
#include "sim/blocks/slicemask.h"

#include <stdio.h>
#include <stdlib.h>

struct params {
    int64_t chunk, topk, dense_last;
};

static const struct opt options[] = {
    OPT_INT(struct params, chunk, "4096", 1, 1e9, "tokens", "Keys of a chunk."),
    OPT_INT(struct params, topk, "12", 1, 1e9, "chunks", "Chunks of a query, its own among them."),
    OPT_INT(struct params, dense_last, "3", 0, 1e6, "layers", "Last layers that attend densely."),
    {0},
};

struct state {
    const struct params *p;
    const struct head_in *in;
    struct attn_in x;
    bool dense;
    float *mean;             /* [chunks][d] */
    struct ranked rank;      /* of chunks */
    int64_t gates;           /* so far */
    struct slice_mask given; /* by a device */
};

static void release(void *state)
{
    struct state *s = state;
    free(s->mean);
    ranked_free(&s->rank);
    slice_mask_free(&s->given);
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    const struct params *p = params;
    struct state *s = state;
    s->p = p;
    s->in = in;
    s->x = in->x;
    s->dense = in->layer >= in->n_layers - p->dense_last;
    return 0;
}

/* The mean of every chunk. */
static int pool(struct state *s, struct err *err)
{
    const struct attn_in *x = &s->x;
    int64_t chunk = s->p->chunk, n = ceil_div(x->nk, chunk);
    PASS_ON(mem_alloc(&s->mean, n * x->d, sizeof *s->mean, "means of chunks", err));
    PASS_ON(ranked_init(&s->rank, n, err));
    for (int64_t j = 0; j < n; j++)
        block_mean(x->k + j * chunk * x->d, MIN(chunk, x->nk - j * chunk), x->d, s->in->src_dtype,
                   s->mean + j * x->d);
    return 0;
}

static int select_row(void *state, int64_t i, struct mask *m, struct err *err)
{
    struct state *s = state;
    int64_t at = i + s->x.nk - s->x.nq, own = at / s->p->chunk;
    double *gate = s->rank.score;
    if (at < 0)
        return 0;
    row_products(s->x.q + i * s->x.d, s->mean, s->x.d, NULL, own, gate);
    s->gates += own;
    return ranked_add(&s->rank, gate, own, s->p->topk - 1, own + 1, m, i - m->row0, err);
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct state *s = state;
    if (s->given.bits)
        return slice_mask_lists(&s->given, row0, row1, out, err);
    if (!s->rank.work && !s->dense)
        PASS_ON(pool(s, err));
    PASS_ON(row_lists(&s->x, s->dense, s->p->chunk, select_row, s, row0, row1, out, err));
    if (!s->dense)
        out->exec = EXEC_NONE; /* the kernel gathers the queries of a chunk */
    return 0;
}

static bool rule(const void *state, struct rule *rule, char why[160])
{
    const struct state *s = state;
    if (s->in->src_dtype != DT_BF16)
        return method_refuses(why, "the GPU side has means in bf16, as of a trace in bf16");
    rule->of.pooled = (struct pooled_rule){.all = s->dense,
                                           .by = POOLED_BEST,
                                           .bq = 1,
                                           .bk = s->p->chunk,
                                           .q_cells = 1,
                                           .k_cells = 1,
                                           .top = s->p->topk - 1};
    return true;
}

static int take(void *state, const struct device_choice *c, struct err *err)
{
    struct state *s = state;
    return s->dense ? 0 : slice_mask_take(&s->given, c, 1, s->p->chunk, 0, err);
}

static int report(void *state, struct record *r, struct err *err)
{
    const struct state *s = state;
    return s->dense ? 0 : units_record(&s->x, s->p->chunk, s->p->topk, r, err);
}

static bool cost(const void *state, struct select_cost *c)
{
    const struct state *s = state;
    double chunks = (double)ceil_div(s->x.nk, s->p->chunk), gates = 0;
    if (s->dense)
        return true;
    for (int64_t i = MAX(0, s->x.nq - s->x.nk); i < s->x.nq; i++)
        gates += (double)((i + s->x.nk - s->x.nq) / s->p->chunk);
    cost_sums(c, (double)s->x.nk * s->x.d);
    cost_products(c, gates, s->x.d);
    cost_rows(c, s->in, (double)(s->x.nq + s->x.nk), s->x.d);
    cost_kept(c, chunks * s->x.d + gates);
    return true;
}

/* The means of a row; a mean is made when its chunk is complete. */
static double step_bytes(const void *state)
{
    const struct state *s = state;
    struct select_cost c = {0, 0};
    cost_rows(&c, s->in, (double)s->gates, s->x.d);
    return c.bytes;
}

static bool why_full(const void *state, char why[160])
{
    const struct state *s = state;
    if (!s->dense)
        return budget_is_all("topk", s->p->topk, s->p->chunk, s->x.nk, why);
    return snprintf(why, 160, "layer %d is one of the last %lld (dense_last)", s->in->layer,
                    (long long)s->p->dense_last) > 0;
}

const struct method method_moba = {
    .name = "moba",
    .summary = "the chunks of keys whose means fit a query best, and its own (MoBA)",
    .paper = "Lu et al., MoBA: Mixture of Block Attention for Long-Context LLMs, arXiv 2502.13189",
    .flags = METHOD_ROWS | METHOD_CAUSAL,
    .params = {.table = options,
               .size = sizeof(struct params),
               .budget = BUDGET_PARAMS(BUDGET_BY(BUDGET_COUNT, "topk"))},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .release = release,
    .cost = cost,
    .why_full = why_full,
    .decode = {.each_row = method_always, .step_bytes = step_bytes},
    .device = {.rule = rule, .take = take, .keep_on_device = method_always},
    .tests = {.full = "",
              .variants = TEXTS("chunk=16:topk=3:dense_last=0", "chunk=7:topk=1:dense_last=0"),
              .budgets = METHOD_BUDGETS({"chunk=16:dense_last=0:topk=%s", {"1", "3", "8", "20"}})},
};
