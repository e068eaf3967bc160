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
#include "core/simd.h"
#include "sim/blocks/blockpool.h"
#include "sim/blocks/exact.h"
#include "sim/blocks/rowselect.h"
#include "sim/blocks/selectcost.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    OWN_METRIC("recall_select",
               "exact mass of the keys that a row selects, mean over the rows; where "
               "the exact map is computed"),
    {0},
};

#define ROWS 32  /* that look at the keys together, */
#define KEYS 256 /* so many at a time */
#define PANEL 16 /* of which so many are multiplied by four rows that select them all */

/* A row's selected keys, ascending, and their estimates. */
struct row {
    int32_t *key;  /* [nk] */
    double *mass;  /* [nk + ROW_LANES] */
    int64_t n, at; /* at: estimated so far */
};

struct state {
    const struct params *params;
    const struct head_in *in;
    struct key_pages pages;
    struct key_labels labels;
    struct prefix_work *work;
    float *khat;          /* [KEYS][d] keys at few bits */
    double *q;            /* [ROWS][d] the rows */
    float *panel;         /* [d][PANEL] of them */
    struct row row[ROWS]; /* those of the rows [row0, row1), while they select */
    int64_t row0, row1;
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
    free(s->panel);
    free(s->q);
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
    TRY(mem_zalloc(&s->khat, KEYS * x->d, sizeof *s->khat, "estimated keys", err));
    TRY(mem_alloc(&s->q, ROWS * x->d, sizeof *s->q, "rows in double", err));
    TRY(mem_alloc(&s->panel, PANEL * x->d, sizeof *s->panel, "estimated keys", err));
out:
    return rc;
}

/* The keys that the selector keeps of those that row i sees. */
static int select_keys(struct state *s, int64_t i, int64_t end, struct row *r, struct err *err)
{
    const struct params *p = s->params;
    const struct attn_in *x = &s->in->x;
    int64_t limit = attn_limit(x, i), unit = p->select == QUEST ? p->page : 1;
    int64_t units = ceil_div(limit, unit), best = ceil_div(p->budget, unit);
    const int32_t *list = NULL;
    struct prefix top;

    r->n = r->at = 0;
    if (p->select != ALL && best < units) {
        if (p->select == QUEST)
            key_pages_bounds(&s->pages, x->q + i * x->d, limit);
        const double *rank =
            p->select == QUEST ? s->pages.bound : key_labels_scores(&s->labels, i, end);
        s->computed += units;
        PASS_ON(prefix_topk(s->work, rank, units, best, &top, err));
        list = prefix_list(s->work, &top, rank, units, &units);
    }
    for (; !list && r->n < limit; r->n++)
        r->key[r->n] = (int32_t)r->n;
    for (int64_t e = 0; list && e < units; e++)
        for (int64_t j = list[e] * unit; j < MIN((list[e] + 1) * unit, limit); j++)
            r->key[r->n++] = (int32_t)j;
    return 0;
}

/* Scaled products of four rows of d numbers with a panel [d][PANEL]: out [4][PANEL]. */
SIMD_CLONES EXACT_PRODUCTS static void panel_products(const double *const *q, const float *panel,
                                                      int d, double scale, double *out)
{
    double l0[PANEL] = {0}, l1[PANEL] = {0}, l2[PANEL] = {0}, l3[PANEL] = {0};
    const double *q0 = q[0], *q1 = q[1], *q2 = q[2], *q3 = q[3];
    for (int c = 0; c < d; c++)
        for (int k = 0; k < PANEL; k++) {
            double b = panel[c * PANEL + k];
            l0[k] += q0[c] * b;
            l1[k] += q1[c] * b;
            l2[k] += q2[c] * b;
            l3[k] += q3[c] * b;
        }
    for (int k = 0; k < PANEL; k++) {
        out[k] = l0[k] * scale;
        out[PANEL + k] = l1[k] * scale;
        out[2 * PANEL + k] = l2[k] * scale;
        out[3 * PANEL + k] = l3[k] * scale;
    }
}

/* The same of rows that select all keys they see, and the keys [first, end). */
static void estimate_all(struct state *s, int64_t rows, int64_t first, int64_t end)
{
    int64_t d = s->in->x.d;
    double out[4][PANEL];
    const double *q[4];
    for (int64_t k = first; k < end; k += PANEL) {
        for (int64_t c = 0; c < d; c++)
            for (int64_t j = 0; j < PANEL; j++)
                s->panel[c * PANEL + j] = s->khat[(k - first + j) * d + c];
        for (int64_t g = 0; g < rows; g += 4) {
            for (int64_t e = 0; e < 4; e++)
                q[e] = s->q + MIN(g + e, rows - 1) * d;
            panel_products(q, s->panel, (int)d, s->in->x.scale, out[0]);
            for (int64_t e = g; e < MIN(g + 4, rows); e++)
                memcpy(s->row[e].mass + k, out[e - g],
                       (size_t)MAX(0, MIN(PANEL, s->row[e].n - k)) * sizeof **out);
        }
    }
}

/* Scaled products of the rows with their keys in [first, end), whose estimates are at hand. */
static void estimate_keys(struct state *s, int64_t rows, int64_t first, int64_t end)
{
    const struct attn_in *x = &s->in->x;
    for (int64_t e = 0; e < rows; e++) {
        struct row *r = s->row + e;
        int32_t at[KEYS];
        double *z = r->mass + r->at;
        int64_t n = 0;
        for (; r->at < r->n && r->key[r->at] < end; r->at++)
            at[n++] = (int32_t)(r->key[r->at] - first);
        row_products(x->q + (s->row0 + e) * x->d, s->khat, x->d, at, n, z);
        for (int64_t j = 0; j < n; j++)
            z[j] *= x->scale;
    }
}

/* Softmax of the estimated scores of the rows [row0, row1), rounded to float. */
static int estimate(struct state *s, int64_t row0, int64_t row1, struct err *err)
{
    const struct attn_in *x = &s->in->x;
    int64_t rows = row1 - row0, nk = attn_limit(x, row1 - 1);
    bool all = true;
    s->row0 = row0;
    s->row1 = row1;
    for (int64_t e = 0; e < rows; e++) {
        PASS_ON(select_keys(s, row0 + e, row1, s->row + e, err));
        all &= s->row[e].n == attn_limit(x, row0 + e);
    }
    for (int64_t e = 0; e < rows * x->d; e++)
        s->q[e] = x->q[row0 * x->d + e];
    for (int64_t j = 0; j < nk; j += KEYS) {
        for (int64_t k = j; k < MIN(j + KEYS, nk); k++)
            token_quantise(x->k + k * x->d, x->d, s->params->bits ? 16 : 4,
                           s->khat + (k - j) * x->d);
        if (all)
            estimate_all(s, rows, j, MIN(j + KEYS, nk));
        else
            estimate_keys(s, rows, j, j + KEYS);
    }
    for (struct row *r = s->row; r < s->row + rows; r++) {
        double sum = exp_sum_f64(r->mass, r->n, row_max_f64(r->mass, r->n));
        for (int64_t e = 0; e < r->n; e++)
            r->mass[e] = (float)(r->mass[e] / sum);
    }
    return 0;
}

static int select_row(void *state, int64_t i, struct mask *m, struct err *err)
{
    struct state *s = state;
    const struct params *p = s->params;
    struct prefix top = {0};

    if (i == m->row0 || i >= s->row1)
        PASS_ON(estimate(s, i, MIN(i + ROWS, m->row1), err));
    struct row *r = s->row + (i - s->row0);
    if (p->p == 1) /* rounded estimates may reach 1 without the smallest */
        top = (struct prefix){.cut = -1};
    else if (p->profile == EXACT)
        PASS_ON(prefix_select(s->work, r->mass, r->mass, r->n, 0, p->p, &top, err));
    else
        top = (struct prefix){
            .cut = bisected_threshold(r->mass, r->n, r->key[0] == 0 ? r->mass[0] : 0, p->p),
            .last = -1};
    int64_t kept = 0;
    for (int64_t e = 0; e < r->n; e++) {
        r->key[kept] = r->key[e];
        kept += prefix_has(&top, r->mass[e], e);
    }
    PASS_ON(mask_lists_add_all(m, i - m->row0, r->key, kept, err));
    s->kept += kept;
    s->rows++;
    s->selected += r->n;
    return 0;
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct state *s = state;
    int64_t nk = s->in->x.nk, rows = s->dense[0] ? 0 : MIN(ROWS, row1 - row0);
    OWN(free_at) int32_t *key = NULL;
    OWN(free_at) double *mass = NULL;
    PASS_ON(mem_alloc(&key, rows * nk, sizeof *key, "selected keys", err));
    PASS_ON(mem_alloc(&mass, rows * (nk + ROW_LANES), sizeof *mass, "estimates", err));
    for (int64_t e = 0; e < rows; e++)
        s->row[e] = (struct row){.key = key + e * nk, .mass = mass + e * (nk + ROW_LANES)};
    return row_lists(&s->in->x, s->dense[0], 1, select_row, s, row0, row1, out, err);
}

/* Exact mass of what the selector keeps, mean over the rows. */
static int selected_recall(struct state *s, double *recall, struct err *err)
{
    const struct attn_in *x = &s->in->x;
    int64_t computed = s->computed;
    struct row r = {.n = 0};
    const double *lse;
    int rc = 0;
    TRY(mem_alloc(&r.key, x->nk, sizeof *r.key, "selected keys", err));
    TRY(mem_alloc(&r.mass, x->nk, sizeof *r.mass, "scores", err));
    TRY(exact_lse(s->in->exact, 0, x->nq, &lse, err));
    *recall = 0;
    for (int64_t i = 0; i < x->nq; i++) {
        TRY(select_keys(s, i, i + 1, &r, err));
        row_products(x->q + i * x->d, x->k, x->d, r.key, r.n, r.mass);
        for (int64_t e = 0; e < r.n; e++)
            *recall += exp(r.mass[e] * x->scale - lse[i]) / (double)x->nq;
    }
    s->computed = computed; /* the choice is not paid twice */
out:
    free(r.key);
    free(r.mass);
    return rc;
}

static int report(void *state, struct record *r, struct err *err)
{
    struct state *s = state;
    double rows = (double)MAX(s->rows, 1), recall;
    if (s->dense[0])
        return 0;
    PASS_ON(RECORD_ALL(r, err, {"budget_select", (double)s->selected / rows},
                       {"budget_final", (double)s->kept / rows}));
    if (exact_known(s->in->exact)) {
        PASS_ON(selected_recall(s, &recall, err));
        return record_metric(r, "recall_select", fmin(recall, 1), err);
    }
    return 0;
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
