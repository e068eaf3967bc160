/*
 * twilight.c - of the tokens that another selector keeps with a generous budget, the fewest whose
 * estimated softmax mass reaches p.
 *
 *   select   quest: the ceil(budget / page) pages with the largest bound; ds: `budget` tokens; all
 *   estimate softmax of q khat scale over these, khat = k at 4 bits per token (bits=16: k)
 *   prune    keep the estimates above a threshold that a bisection between 0 and the estimate of
 *            the row's first key finds (profile=official), or the fewest largest (profile=exact)
 *
 * The official threshold is never above the first key's estimate: where this is not the largest,
 * everything larger stays, and where that key was not selected nothing is pruned. Estimates within
 * 1e-5 of each other are not told apart.
 *
 * Lin et al., Twilight, arXiv 2502.02770; tsinghua-ideal/Twilight (csrc/include/sampling.cuh).
 * O(N d / page + budget d) a row.
 *
 * Deviations: every row of a prompt counts as a step of decoding unless rows=decode; sums are in
 * double.
 */
#include "core/intmath.h"
#include "core/mem.h"
#include "core/method.h"
#include "sim/blocks/blockpool.h"
#include "sim/blocks/rowselect.h"
#include "sim/blocks/selectcost.h"

#include <stdio.h>
#include <stdlib.h>

enum selector { QUEST, DS, ALL };
enum profile { OFFICIAL, EXACT };

struct params {
    double p;
    int64_t budget, page, dense_layers;
    int select, bits, profile, rows;
    char *channels;
};

static const struct opt options[] = {
    OPT_NUM(struct params, p, "0.85", 0, 1, "mass share", "estimated mass that a row keeps",
            .flags = OPT_MIN_OPEN),
    OPT_ENUM(struct params, select, "quest", TEXTS("quest", "ds", "all"),
             "what is pruned: pages by their bound, tokens by few channels, or all"),
    OPT_INT(struct params, budget, "8192", 1, 1e9, "tokens", "keys that are selected"),
    OPT_INT(struct params, page, "16", 1, 1024, "tokens", "keys of a page"),
    OPT_STR(struct params, channels, NULL, NULL,
            "channels of the labels as of ds; unset: a quarter, the head's"),
    OPT_ENUM(struct params, bits, "4", TEXTS("4", "16"), "bits of the keys of the estimate"),
    OPT_ENUM(struct params, profile, "official", TEXTS("official", "exact"), "how it prunes"),
    OPT_INT(struct params, dense_layers, "2", 0, 1e9, "layers", "first layers that stay dense"),
    OPT_ENUM(struct params, rows, "all", TEXTS("all", "decode"),
             "decode leaves a whole prompt dense"),
    {0},
};

static const struct metric_def metrics[] = {
    OWN_METRIC("budget_select", "keys that a row selects, mean over the rows"),
    OWN_METRIC("budget_final", "keys that stay of them, mean over the rows"),
    {0},
};

struct state {
    const struct params *params;
    const struct head_in *in;
    struct key_pages pages;
    struct key_labels labels;
    struct prefix_work *work;
    float *khat;                            /* [nk][d] */
    int32_t *key;                           /* [nk] selected keys of the row at hand, ascending */
    double *mass;                           /* [nk + ROW_LANES] their estimates */
    char dense[160];                        /* why the head is; "" = it is not */
    int64_t rows, computed, selected, kept; /* so far; computed: bounds or scores */
};

static void release(void *state)
{
    struct state *s = state;
    key_pages_free(&s->pages);
    key_labels_free(&s->labels);
    prefix_work_free(s->work);
    free(s->khat);
    free(s->key);
    free(s->mass);
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    const struct params *p = params;
    const struct attn_in *x = &in->x;
    struct state *s = state;
    int rc = 0;

    s->params = p;
    s->in = in;
    if (head_left_dense(in, p->dense_layers, 0, p->rows, s->dense))
        return 0;
    TRY(prefix_work_new(&s->work, err));
    if (p->select == QUEST)
        TRY(key_pages_init(&s->pages, x, p->page, false, err));
    if (p->select == DS && (rc = key_labels_init(&s->labels, ctx, in, p->channels, 4, 4, err)) != 0)
        goto out;
    TRY(mem_alloc(&s->khat, x->nk * x->d, sizeof *s->khat, "estimated keys", err));
    TRY(mem_alloc(&s->key, x->nk, sizeof *s->key, "selected keys", err));
    TRY(mem_alloc(&s->mass, x->nk + ROW_LANES, sizeof *s->mass, "estimates", err));
    for (int64_t j = 0; j < x->nk; j++)
        token_quantise(x->k + j * x->d, x->d, p->bits ? 16 : 4, s->khat + j * x->d);
out:
    return rc;
}

/* The keys [0, limit) that the selector keeps: s->key, how many. */
static int select_keys(struct state *s, const float *q, int64_t limit, int64_t *n, struct err *err)
{
    const struct params *p = s->params;
    int64_t unit = p->select == QUEST ? p->page : 1, units = ceil_div(limit, unit);
    int64_t best = ceil_div(p->budget, unit);
    const double *rank = p->select == QUEST ? s->pages.bound : s->labels.score;
    struct prefix top = {0};
    bool all = p->select == ALL || best >= units;
    int rc = 0;

    *n = 0;
    if (!all && p->select == QUEST)
        key_pages_bounds(&s->pages, q, limit);
    else if (!all)
        key_labels_scores(&s->labels, q, limit);
    if (!all) {
        s->computed += units;
        TRY(prefix_topk(s->work, rank, units, best, &top, err));
    }
    for (int64_t u = 0; u < units; u++)
        for (int64_t j = u * unit; j < MIN((u + 1) * unit, limit); j++)
            if (all || prefix_has(&top, rank[u], u))
                s->key[(*n)++] = (int32_t)j;
out:
    return rc;
}

/* Softmax of the estimated scores, rounded to float. */
static void estimate(struct state *s, const float *q, int64_t n)
{
    const struct attn_in *x = &s->in->x;
    for (int64_t e = 0; e < n; e++)
        s->mass[e] = x->scale * row_product(q, s->khat + (int64_t)s->key[e] * x->d, x->d);
    double sum = exp_sum_f64(s->mass, n, row_max_f64(s->mass, n));
    for (int64_t e = 0; e < n; e++)
        s->mass[e] = (float)(s->mass[e] / sum);
}

static int select_row(void *state, int64_t i, struct mask *m, struct err *err)
{
    struct state *s = state;
    const struct params *p = s->params;
    const struct attn_in *x = &s->in->x;
    const float *q = x->q + i * x->d;
    struct prefix top = {0};
    int64_t n;
    int rc = 0;

    TRY(select_keys(s, q, attn_limit(x, i), &n, err));
    estimate(s, q, n);
    if (p->p == 1) /* rounded estimates may reach 1 without the smallest */
        top = (struct prefix){.cut = -1};
    else if (p->profile == EXACT)
        TRY(prefix_select(s->work, s->mass, s->mass, n, 0, p->p, &top, err));
    else
        top = (struct prefix){
            .cut = bisected_threshold(s->mass, n, s->key[0] == 0 ? s->mass[0] : 0, p->p),
            .last = -1};
    for (int64_t e = 0; e < n; e++)
        if (prefix_has(&top, s->mass[e], e)) {
            TRY(mask_lists_add(m, i - m->row0, s->key[e], err));
            s->kept++;
        }
    s->rows++;
    s->selected += n;
out:
    return rc;
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct state *s = state;
    return row_lists(&s->in->x, s->dense[0], 1, select_row, s, row0, row1, out, err);
}

static int report(void *state, struct record *r, struct err *err)
{
    const struct state *s = state;
    double rows = (double)MAX(s->rows, 1);
    return s->dense[0] ? 0
                       : RECORD_ALL(r, err, {"budget_select", (double)s->selected / rows},
                                    {"budget_final", (double)s->kept / rows});
}

/* The selector's, then keys at few bits and their softmax. */
static bool cost(const void *state, struct select_cost *c)
{
    const struct state *s = state;
    int d = s->in->x.d, label = s->labels.n;
    double computed = (double)s->computed, selected = (double)s->selected;
    cost_products(c, computed, label ? label : d);
    if (label)
        c->bytes += computed * label / 2;
    cost_rows(c, s->in, (double)s->rows + (label ? 0 : 2 * computed), d);
    cost_products(c, selected, d);
    cost_softmax(c, selected);
    c->bytes += selected * d * (s->params->bits ? (double)dtype_size(s->in->src_dtype) : 0.5);
    return true;
}

static bool why_full(const void *state, char why[160])
{
    return snprintf(why, 160, "%s", ((const struct state *)state)->dense) > 0;
}

const struct method method_twilight = {
    .name = "twilight",
    .summary = "a selector's tokens, pruned to the estimated mass p",
    .paper = "Lin et al., Twilight: Adaptive Attention Sparsity with Hierarchical Top-p Pruning, "
             "arXiv 2502.02770",
    .flags = METHOD_ROWS | METHOD_CAUSAL,
    .params = {.table = options,
               .size = sizeof(struct params),
               .scopes = PARAM_SCOPES({"page", "select=quest"}, {"channels", "select=ds"},
                                      {"budget", "select=quest|ds"}),
               .budget = BUDGET_PARAMS(BUDGET_BY(BUDGET_COMPLEMENT, "p"))},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .release = release,
    .metrics = metrics,
    .cost = cost,
    .why_full = why_full,
    .decode = {.each_row = method_always},
    .tests = {.full = "select=all:p=1:profile=exact:bits=16",
              .variants = TEXTS("dense_layers=0:budget=64", "dense_layers=0:select=ds:budget=40",
                                "dense_layers=0:select=all:profile=exact:p=0.5",
                                "rows=decode:dense_layers=0"),
              .budgets = METHOD_BUDGETS({"dense_layers=0:select=all:profile=exact:bits=16:p=%s",
                                         {"0.2", "0.5", "0.9", "1"}})},
};
