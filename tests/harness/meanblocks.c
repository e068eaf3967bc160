/*
 * meanblocks.c - the key blocks whose mean key fits the query block's mean query best.
 *
 *   keep block b of query block a iff b = 0, b is on the diagonal, or scale qbar_a . kbar_b is
 * among the `keep` largest; O(N d + N^2 d / 64^2)
 */
#include "core/mem.h"
#include "core/method.h"
#include "sim/blocks/prefix.h"

#include <stdlib.h>

#define BLOCK 64

struct meanblocks_params {
    int64_t keep;
};

static const struct opt options[] = {
    OPT_INT(struct meanblocks_params, keep, "8", 0, 1e9, "blocks",
            "key blocks chosen by their mean"),
    {0},
};

static const struct metric_def metrics[] = {
    OWN_METRIC("blocks_per_row", "key blocks that a query block keeps, mean over the query blocks",
               .better = BETTER_LOWER),
    {0},
};

struct meanblocks_state {
    const struct meanblocks_params *params;
    struct attn_in x;
    int64_t nb;          /* key blocks */
    int64_t kept;        /* blocks, so far */
    double *kbar;        /* [nb][d] */
    double *qbar, *rank; /* [d], [nb] */
    struct prefix_work *work;
};

static void release(void *state)
{
    struct meanblocks_state *s = state;
    free(s->kbar);
    free(s->qbar);
    free(s->rank);
    prefix_work_free(s->work);
}

/* Mean of the rows [r0, r1) of x [n][d]. */
static void mean_rows(const float *x, int64_t r0, int64_t r1, int d, double *out)
{
    for (int c = 0; c < d; c++)
        out[c] = 0;
    for (int64_t i = r0; i < r1; i++)
        for (int c = 0; c < d; c++)
            out[c] += x[i * d + c] / (double)(r1 - r0);
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    struct meanblocks_state *s = state;
    int d = in->x.d;
    if (in->x.nq != in->x.nk)
        return method_skip(ctx, "needs as many queries as keys");
    s->params = params;
    s->x = in->x;
    s->nb = (in->x.nk + BLOCK - 1) / BLOCK;
    PASS_ON(mem_alloc(&s->kbar, s->nb * d, sizeof *s->kbar, "mean keys", err));
    PASS_ON(mem_alloc(&s->qbar, d, sizeof *s->qbar, "mean query", err));
    PASS_ON(mem_alloc(&s->rank, s->nb, sizeof *s->rank, "block scores", err));
    PASS_ON(prefix_work_new(&s->work, err));
    for (int64_t b = 0; b < s->nb; b++) {
        int64_t end = (b + 1) * BLOCK < in->x.nk ? (b + 1) * BLOCK : in->x.nk;
        mean_rows(in->x.k, b * BLOCK, end, d, s->kbar + b * d);
    }
    ctx->unit_rows = BLOCK;
    return 0;
}

static int select_block(struct meanblocks_state *s, struct mask *m, int64_t g, struct err *err)
{
    int64_t a = m->row0 / BLOCK + g, end = (a + 1) * BLOCK, n = s->x.causal ? a + 1 : s->nb;
    struct prefix top;
    mean_rows(s->x.q, a * BLOCK, end < s->x.nq ? end : s->x.nq, s->x.d, s->qbar);
    for (int64_t b = 0; b < n; b++) {
        s->rank[b] = 0;
        for (int c = 0; c < s->x.d; c++)
            s->rank[b] += s->x.scale * s->qbar[c] * s->kbar[b * s->x.d + c];
    }
    PASS_ON(prefix_topk(s->work, s->rank, n, s->params->keep, &top, err));
    for (int64_t b = 0; b < n; b++) {
        if (b != 0 && b != a && !prefix_has(&top, s->rank[b], b))
            continue;
        PASS_ON(mask_lists_add(m, g, (int32_t)b, err));
        s->kept++;
    }
    return 0;
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct meanblocks_state *s = state;
    PASS_ON(mask_lists_init(out, s->x.nq, s->x.nk, row0, row1, s->x.causal, BLOCK, BLOCK, err));
    for (int64_t g = 0; g < out->ngroups; g++)
        PASS_ON(select_block(s, out, g, err));
    mask_lists_finish(out);
    return 0;
}

static int report(void *state, struct record *r, struct err *err)
{
    const struct meanblocks_state *s = state;
    return record_metric(r, "blocks_per_row", (double)s->kept / (double)s->nb, err);
}

const struct method method_meanblocks = {
    .name = "mean-blocks",
    .summary = "key blocks whose mean key fits the query block's mean query",
    .paper = "none: an example",
    .flags = METHOD_CAUSAL | METHOD_BIDIRECTIONAL,
    .params = {.table = options,
               .size = sizeof(struct meanblocks_params),
               .budget = BUDGET_PARAMS(BUDGET_BY(BUDGET_COUNT, "keep"))},
    .state_size = sizeof(struct meanblocks_state),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .release = release,
    .metrics = metrics,
    .tests = {.full = "keep=1000000000",
              .variants = TEXTS("keep=0", "keep=2"),
              .budgets = METHOD_BUDGETS({"keep=%s", {"0", "1", "3", "5"}})},
};
