/*
 * seer.c - SeerAttention: a trained gate scores blocks of keys.
 *
 *   A_i = softmax over j of gq_i . gk_j / sqrt(d_g)
 *
 * Gao et al., arXiv 2410.13276 (profile=prefill) and 2506.08889 (profile=decode);
 * microsoft/SeerAttention aba03e3. gq and gk are operands of the call, after the gate's pooling,
 * linear maps, norms and rotation.
 *
 *   prefill   a gq for every block of queries and query head; blocks j <= i. Kept is A > threshold,
 *             or with `nz` the int((1 - sqrt(1 - nz)) n) largest, at least 1, where later blocks
 *             count as the least. The last `last_dense` blocks of rows are dense; no diagonal is
 *             forced
 *   decode    a gq for every row and KV head; rows without one are dense. A block that is not
 *             complete at the row has gk = 0. Kept is A > threshold, or with `budget` the
 *             budget / block largest; and the last block
 *
 * Ties go to the lower block. Products and softmax are in double. O(n d_g) a row of n blocks.
 */
#include "core/intmath.h"
#include "sim/blocks/blockpool.h"
#include "sim/blocks/operand.h"
#include "sim/blocks/rowselect.h"
#include "sim/blocks/selectcost.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { GATE_Q, GATE_K, OPERANDS };
static const enum trace_aux operands[OPERANDS] = {AUX_GATE_Q, AUX_GATE_K};
enum profile { PREFILL, DECODE };

struct params {
    double threshold, nz;
    int64_t budget, block, last_dense;
    int profile;
};

static const struct opt options[] = {
    OPT_ENUM(
        struct params, profile, "prefill", TEXTS("prefill", "decode"),
        "gates of blocks of queries (SeerAttention), or of generated tokens (SeerAttention-R)"),
    OPT_NUM(struct params, threshold, NULL, 0, 1, "probability",
            "a block stays above it; unset: 0.002, or by nz or budget"),
    OPT_NUM(struct params, nz, NULL, 0, 1, "share", "pairs that stay, about, in place of it",
            .flags = OPT_MIN_OPEN),
    OPT_INT(struct params, budget, NULL, 1, 1e9, "tokens", "keys that stay in place of it"),
    OPT_INT(struct params, block, "64", 1, 1e6, "tokens", "keys of a block"),
    OPT_INT(struct params, last_dense, "2", 0, 1e9, "blocks", "last blocks of rows that are dense"),
    {0},
};

struct state {
    const struct params *p;
    const struct head_in *in;
    struct operand of[OPERANDS];
    int64_t head[OPERANDS]; /* of each operand */
    struct ranked rank;     /* of blocks */
    int64_t rows, scores;   /* so far: rows with a gate, products */
};

static void release(void *state)
{
    struct state *s = state;
    for (int i = 0; i < OPERANDS; i++)
        free(s->of[i].x);
    ranked_free(&s->rank);
}

static int validate(void *params, struct err *err)
{
    const struct params *p = params;
    int rules = !isnan(p->threshold) + !isnan(p->nz) + (p->budget != INT64_MIN);
    if (rules <= 1)
        return 0;
    return err_set(err, ERR_USAGE,
                   "method seer: threshold, nz and budget are ways to say what stays: give one");
}

static int takes(struct method_ctx *ctx, const void *params, const struct head_in *in,
                 struct err *err)
{
    (void)params;
    return operands_there(ctx, in, in->layer, operands, OPERANDS, err);
}

/* The heads of the gate that decide for this head; false: the operands do not fit it. */
static bool fits(struct state *s)
{
    const struct aux_shape q = s->of[GATE_Q].shape, k = s->of[GATE_K].shape;
    bool decode = s->p->profile == DECODE;
    int64_t nq = s->in->x.nq, whole = s->in->x.nk / s->p->block;
    if (q.dim != k.dim || q.heads % k.heads != 0)
        return false;
    s->head[GATE_Q] = decode ? s->in->kv_head : s->in->head;
    s->head[GATE_K] = s->head[GATE_Q] / (q.heads / k.heads);
    return s->head[GATE_Q] < q.heads && k.rows >= whole + (!decode && nq % s->p->block != 0) &&
           (decode ? q.rows <= nq : q.rows == ceil_div(nq, s->p->block));
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    const struct params *p = params;
    struct state *s = state;
    int rc = 0;
    s->p = p;
    s->in = in;
    if (p->profile == PREFILL && (rc = method_whole_prompt(ctx, in)) != 0)
        return rc;
    for (int i = 0; i < OPERANDS; i++)
        if ((rc = operand_read(ctx, in, in->layer, operands[i], s->of + i, err)) != 0)
            return rc;
    if (!fits(s))
        FAIL(err, ERR_INPUT,
             "aux/gate_q of %lld heads x %lld rows x %lld and aux/gate_k of %lld x %lld x %lld do "
             "not fit profile=%s, %lld queries and blocks of %lld",
             (long long)s->of[0].shape.heads, (long long)s->of[0].shape.rows,
             (long long)s->of[0].shape.dim, (long long)s->of[1].shape.heads,
             (long long)s->of[1].shape.rows, (long long)s->of[1].shape.dim,
             p->profile ? "decode" : "prefill", (long long)in->x.nq, (long long)p->block);
    ctx->unit_rows = p->profile == PREFILL ? p->block : 1;
    TRY(ranked_init(&s->rank, ceil_div(in->x.nk, p->block), err));
out:
    return rc;
}

/* Which of n blocks stay by gate row r, the first `whole` of which have a key: the `best` ones, or
 * with best < 0 those above the threshold; and the last one if `last`. Into group g of m. */
static int choose(struct state *s, int64_t r, int64_t n, int64_t whole, int64_t best, bool last,
                  struct mask *m, int64_t g, struct err *err)
{
    int d = (int)s->of[GATE_Q].shape.dim;
    const float *gq = operand_row(&s->of[GATE_Q], s->head[GATE_Q], r);
    const float *gk = operand_row(&s->of[GATE_K], s->head[GATE_K], 0);
    double least = isnan(s->p->threshold) ? 2e-3 : s->p->threshold, *share = s->rank.score;
    int64_t above = 0, ahead = 0; /* blocks above the threshold; before the last one */

    for (int64_t j = 0; j < n; j++)
        share[j] = j < whole ? row_product(gq, gk + j * d, d) / sqrt(d) : 0;
    softmax_f64(share, n);
    for (int64_t j = 0; j < n; j++)
        above += share[j] > least;
    for (int64_t j = 0; j < n - 1; j++)
        ahead += share[j] >= share[n - 1];
    best = best < 0 ? above : best;
    best += last && ahead >= best;
    share[n - 1] = last ? INFINITY : share[n - 1];
    s->rows++;
    s->scores += whole;
    return ranked_add(&s->rank, share, n, best, n, m, g, err);
}

static int select_block(struct state *s, int64_t i, struct mask *m, int64_t g, struct err *err)
{
    const struct params *p = s->p;
    int64_t n = s->of[GATE_Q].shape.rows;
    int64_t best = isnan(p->nz) ? -1 : MAX(1, (int64_t)((1 - sqrt(1 - p->nz)) * (double)n));
    if (i >= n - p->last_dense)
        return ranked_add(&s->rank, NULL, 0, 0, i + 1, m, g, err);
    return choose(s, i, i + 1, i + 1, best, false, m, g, err);
}

static int select_row(void *state, int64_t i, struct mask *m, struct err *err)
{
    struct state *s = state;
    const struct params *p = s->p;
    int64_t limit = attn_limit(&s->in->x, i), n = ceil_div(limit, p->block);
    int64_t r = i - (s->in->x.nq - s->of[GATE_Q].shape.rows);
    int64_t best = p->budget == INT64_MIN ? -1 : p->budget / p->block;
    if (r < 0 || n <= best)
        return ranked_add(&s->rank, NULL, 0, 0, n, m, i - m->row0, err);
    return choose(s, r, n, limit / p->block, best, true, m, i - m->row0, err);
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct state *s = state;
    const struct attn_in *x = &s->in->x;
    int64_t b = s->p->block;
    if (s->p->profile == DECODE)
        return row_lists(x, false, b, select_row, s, row0, row1, out, err);
    PASS_ON(mask_lists_init(out, x->nq, x->nk, row0, row1, true, b, b, err));
    for (int64_t g = 0; g < out->ngroups; g++)
        PASS_ON(select_block(s, row0 / b + g, out, g, err));
    mask_lists_finish(out);
    return 0;
}

static int report(void *state, struct record *r, struct err *err)
{
    const struct ranked *k = &((struct state *)state)->rank;
    double share = (double)k->kept / (double)k->seen;
    return k->seen ? record_metric(r, "density_native", share, err) : 0;
}

/* The gate's own pools and linear maps are not counted: a trace has their results. */
static bool cost(const void *state, struct select_cost *c)
{
    const struct state *s = state;
    int d = (int)s->of[GATE_Q].shape.dim;
    cost_products(c, (double)s->scores, d);
    cost_softmax(c, (double)s->scores);
    cost_rows(c, s->in, (double)(s->scores + s->rows), d);
    return true;
}

static bool why_full(const void *state, char why[160])
{
    const struct state *s = state;
    return snprintf(why, 160, "%s",
                    s->rows ? "no probability of its gate is at or below the threshold"
                            : "its last_dense rows of blocks, or its budget, are the whole") > 0;
}

static bool may_be_empty(const void *params)
{
    const struct params *p = params;
    return p->profile == PREFILL && isnan(p->nz);
}

static bool each_row(const void *params)
{
    return ((const struct params *)params)->profile == DECODE;
}

const struct method method_seer = {
    .name = "seer",
    .summary = "blocks that the model's own trained gate scores highest (SeerAttention)",
    .paper = "Gao et al., SeerAttention: Learning Intrinsic Sparse Attention in Your LLMs, arXiv "
             "2410.13276",
    .flags = METHOD_CAUSAL | METHOD_SOFTCAP | METHOD_SINK,
    .params = {.table = options,
               .size = sizeof(struct params),
               .scopes =
                   PARAM_SCOPES({"nz last_dense", "profile=prefill"}, {"budget", "profile=decode"}),
               .budget = BUDGET_PARAMS(
                   BUDGET_BY(BUDGET_LOG, "threshold", .falls = true, .lo = 1e-9, .hi = 1)),
               .validate = validate,
               .may_be_empty = may_be_empty},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .release = release,
    .cost = cost,
    .why_full = why_full,
    .session = {.takes = takes},
    .decode = {.each_row = each_row},
    .tests = {.full = "nz=1",
              .variants = TEXTS("threshold=0.2:last_dense=1", "nz=0.6:last_dense=0",
                                "profile=decode:block=16:threshold=0.1",
                                "profile=decode:block=8:budget=24"),
              .budgets =
                  METHOD_BUDGETS({"last_dense=0:nz=%s", {"0.1", "0.7", "0.9", "1"}},
                                 {"profile=decode:block=8:budget=%s", {"8", "24", "80", "400"}})},
};
