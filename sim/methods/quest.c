/*
 * quest.c - pages of keys whose largest possible score is largest.
 *
 *   u_j = sum_d max(q_d min_jd, q_d max_jd) over the keys of page j; a row keeps the pages with the
 * largest u, of equal ones the lower. With P pages at the row and B = floor(budget / page):
 *
 *   profile=eval       min(max(floor, B), P) pages, that of the row among the rivals
 *   profile=kernel     that of the row and the B - 1 best others; all where P <= B; bounds in fp16
 *   profile=frontier   that of the row and the B best others; all where P <= B
 *
 * Tang et al., Quest, arXiv 2406.10774; mit-han-lab/Quest, evaluation (eval) and kernels (kernel);
 * PiotrNawrot/sparse-frontier (frontier). O(N d / page) a row.
 *
 * Deviations: every row of a prompt counts as a step of decoding unless rows=decode.
 * sparse-frontier adds up the bounds of a group's query heads and makes one choice per kv head;
 * here each query head chooses. Bounds are summed in double.
 */
#include "core/intmath.h"
#include "core/method.h"
#include "sim/blocks/rowselect.h"
#include "sim/blocks/selectcost.h"

#include <stdio.h>

enum profile { EVAL, KERNEL, FRONTIER };

struct params {
    int64_t page, budget, floor, dense_layers;
    int profile, rows;
};

static const struct opt options[] = {
    OPT_INT(struct params, page, "16", 1, 1024, "tokens", "keys of a page"),
    OPT_INT(struct params, budget, "1024", 1, 1e9, "tokens", "keys of the pages that a row keeps"),
    OPT_ENUM(struct params, profile, "eval", TEXTS("eval", "kernel", "frontier"),
             "whose rule: the published evaluation, its kernels, or sparse-frontier's"),
    OPT_INT(struct params, floor, "3", 1, 1e9, "pages", "least number of pages"),
    OPT_INT(struct params, dense_layers, NULL, 0, 1e9, "layers",
            "first layers that stay dense; unset: 2, with profile=frontier 0"),
    OPT_ENUM(struct params, rows, "all", TEXTS("all", "decode"),
             "decode leaves a whole prompt dense"),
    {0},
};

static const struct metric_def metrics[] = {
    OWN_METRIC("pages_kept", "pages that a row keeps, mean over the rows"),
    OWN_METRIC("pages_bound", "pages whose bound a row computes, mean over the rows"),
    {0},
};

struct state {
    const struct params *params;
    const struct head_in *in;
    struct key_pages pages;
    struct ranked rank;
    char dense[160];        /* why the head is; "" = it is not */
    int64_t rows, computed; /* so far: rows, bounds */
};

static void release(void *state)
{
    struct state *s = state;
    key_pages_free(&s->pages);
    ranked_free(&s->rank);
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    const struct params *p = params;
    struct state *s = state;
    int64_t layers = p->dense_layers != INT64_MIN ? p->dense_layers
                     : p->profile == FRONTIER     ? 0
                                                  : 2;

    s->params = p;
    s->in = in;
    if (head_left_dense(in, layers, 0, p->rows, s->dense))
        return 0;
    PASS_ON(ranked_init(&s->rank, 0, err));
    return key_pages_init(&s->pages, &in->x, p->page, p->profile == KERNEL, err);
}

/* A row with n pages: how many are ranked, and how many of these stay; those behind them stay all.
 */
static void rule(const struct params *p, int64_t n, int64_t *ranked, int64_t *best)
{
    int64_t budget = p->budget / p->page;
    *ranked = p->profile == EVAL ? n : n - 1;
    *best = p->profile == EVAL     ? MAX(p->floor, budget)
            : n <= budget          ? n
            : p->profile == KERNEL ? MAX(budget - 1, 0)
                                   : budget;
}

static int select_row(void *state, int64_t i, struct mask *m, struct err *err)
{
    struct state *s = state;
    const struct attn_in *x = &s->in->x;
    int64_t limit = attn_limit(x, i), n = ceil_div(limit, s->params->page), ranked, best;

    s->rows++;
    rule(s->params, n, &ranked, &best);
    if (best < ranked) {
        key_pages_bounds(&s->pages, x->q + i * x->d, limit);
        s->computed += ranked;
    }
    return ranked_add(&s->rank, s->pages.bound, ranked, best, n, m, i - m->row0, err);
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct state *s = state;
    return row_lists(&s->in->x, s->dense[0], s->params->page, select_row, s, row0, row1, out, err);
}

static int report(void *state, struct record *r, struct err *err)
{
    const struct state *s = state;
    double rows = (double)MAX(s->rows, 1);
    return s->dense[0] ? 0
                       : RECORD_ALL(r, err, {"pages_kept", (double)s->rank.kept / rows},
                                    {"pages_bound", (double)s->computed / rows});
}

/* Per row the least and the largest key of its pages. They are made when a page is complete. */
static bool cost(const void *state, struct select_cost *c)
{
    const struct state *s = state;
    double bounds = (double)s->computed;
    int d = s->in->x.d;
    cost_products(c, bounds, d);
    cost_rows(c, s->in, (double)s->rows + 2 * bounds, d);
    return true;
}

static bool why_full(const void *state, char why[160])
{
    const struct state *s = state;
    if (snprintf(why, 160, "%s", s->dense) > 0)
        return true;
    return s->computed == 0 && budget_is_all("budget", s->params->budget, 1, s->in->x.nk, why);
}

const struct method method_quest = {
    .name = "quest",
    .summary = "pages of keys with the largest bound of their scores",
    .paper = "Tang et al., Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference, "
             "arXiv 2406.10774",
    .flags = METHOD_ROWS | METHOD_CAUSAL | METHOD_SOFTCAP | METHOD_SINK,
    .params = {.table = options,
               .size = sizeof(struct params),
               .scopes = PARAM_SCOPES({"floor", "profile=eval"}),
               .budget = BUDGET_PARAMS(BUDGET_BY(BUDGET_COUNT, "budget"))},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .release = release,
    .metrics = metrics,
    .cost = cost,
    .why_full = why_full,
    .decode = {.each_row = method_always},
    .tests = {.full = "budget=1000000",
              .variants =
                  TEXTS("dense_layers=0:budget=48", "dense_layers=0:budget=64:profile=kernel",
                        "budget=16:profile=frontier:page=8", "rows=decode:dense_layers=0"),
              .budgets =
                  METHOD_BUDGETS({"dense_layers=0:floor=1:budget=%s", {"16", "64", "128", "400"}},
                                 {"profile=frontier:budget=%s", {"16", "64", "128", "400"}})},
};
