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
    bool dense, steps;   /* steps: of the decode phase */
    float *mean;         /* [chunks][d] */
    struct ranked rank;  /* of chunks */
    int64_t rows, gates; /* so far */
};

static void release(void *state)
{
    struct state *s = state;
    free(s->mean);
    ranked_free(&s->rank);
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    const struct params *p = params;
    struct state *s = state;
    int64_t n = ceil_div(in->x.nk, p->chunk);
    int rc = 0;
    s->p = p;
    s->in = in;
    s->x = in->x;
    s->steps = ctx->steps;
    s->dense = in->layer >= in->n_layers - p->dense_last;
    TRY(mem_alloc(&s->mean, n * in->x.d, sizeof *s->mean, "means of chunks", err));
    TRY(ranked_init(&s->rank, n, err));
    for (int64_t j = 0; j < n && !s->dense; j++)
        block_mean(in->x.k + j * p->chunk * in->x.d, MIN(p->chunk, in->x.nk - j * p->chunk),
                   in->x.d, in->src_dtype, s->mean + j * in->x.d);
out:
    return rc;
}

static int select_row(void *state, int64_t i, struct mask *m, struct err *err)
{
    struct state *s = state;
    int64_t at = i + s->x.nk - s->x.nq, own = at / s->p->chunk;
    double *gate = s->rank.score;
    if (at < 0)
        return 0;
    for (int64_t j = 0; j < own; j++)
        gate[j] = row_product(s->x.q + i * s->x.d, s->mean + j * s->x.d, s->x.d);
    s->rows++;
    s->gates += own;
    return ranked_add(&s->rank, gate, own, s->p->topk - 1, own + 1, m, i - m->row0, err);
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct state *s = state;
    int rc = row_lists(&s->x, s->dense, s->p->chunk, select_row, s, row0, row1, out, err);
    if (!s->dense)
        out->exec = EXEC_NONE; /* the kernel gathers the queries of a chunk */
    return rc;
}

static int report(void *state, struct record *r, struct err *err)
{
    return ranked_report(&((struct state *)state)->rank, r, err);
}

/* A step reads the means, a prompt makes them of its keys. */
static bool cost(const void *state, struct select_cost *c)
{
    const struct state *s = state;
    double chunks = (double)ceil_div(s->x.nk, s->p->chunk), gates = (double)s->gates;
    if (s->dense)
        return true;
    cost_products(c, gates, s->x.d);
    cost_rows(c, s->in, (double)s->rows + (s->steps ? gates : (double)s->x.nk), s->x.d);
    if (s->steps)
        return true;
    cost_sums(c, (double)s->x.nk * s->x.d);
    cost_kept(c, chunks * s->x.d + gates);
    return true;
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
    .decode = {.each_row = method_always},
    .tests = {.full = "",
              .variants = TEXTS("chunk=16:topk=3:dense_last=0", "chunk=7:topk=1:dense_last=0"),
              .budgets = METHOD_BUDGETS({"chunk=16:dense_last=0:topk=%s", {"1", "3", "8", "20"}})},
};
