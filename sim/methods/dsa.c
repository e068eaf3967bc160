/*
 * dsa.c - DeepSeek Sparse Attention: an indexer with queries and keys of its own ranks every token,
 * and all heads of a layer attend to the best.
 *
 *   I_ts = sum_h max(0, iq_th . ik_s) iw_th
 *
 * deepseek-ai/DeepSeek-V3.2-Exp 3b99a53, inference/model.py, class Indexer. A row keeps the `topk`
 * tokens up to its own with the largest I, of equal ones the lower; nothing is forced. iq, ik and
 * iw are operands of the call as the indexer multiplies them: after norm, rotation and Hadamard
 * transform. The constant factors of I change no order. emulate=fp8 rounds iq and ik as published:
 * a vector to e4m3, by a scale that is its largest size over 448, rounded up to a power of two.
 * Sums are in double over exact products. O(N I d_i) a row.
 */
#include "core/intmath.h"
#include "core/mem.h"
#include "core/simd.h"
#include "sim/blocks/operand.h"
#include "sim/blocks/rowselect.h"
#include "sim/blocks/selectcost.h"

#include <math.h>
#include <stdlib.h>

enum { IQ, IK, IW, OPERANDS };
static const enum trace_aux operands[OPERANDS] = {AUX_IQ, AUX_IK, AUX_IW};

struct params {
    int64_t topk, share;
    int emulate;
};

static const struct opt options[] = {
    OPT_INT(struct params, topk, "2048", 1, 1e9, "tokens", "keys that a row keeps"),
    OPT_INT(struct params, share, "1", 0, 1e6, "layers",
            "layers in a row that use the index of the first; 0: that of the last layer up to it "
            "which has one"),
    OPT_ENUM(struct params, emulate, "none", TEXTS("none", "fp8"),
             "rounding of the indexer's vectors; fp8: as published"),
    {0},
};

struct state {
    const struct params *params;
    const struct head_in *in;
    struct operand of[OPERANDS];
    struct ranked rank;
    int64_t rows, scores; /* so far */
};

static void release(void *state)
{
    struct state *s = state;
    for (int i = 0; i < OPERANDS; i++)
        free(s->of[i].x);
    ranked_free(&s->rank);
}

/* The layer whose index this one uses. */
static int leader(struct method_ctx *ctx, const struct params *p, const struct head_in *in,
                  int *layer, struct err *err)
{
    int rc = METHOD_SKIP;
    *layer = in->layer - (p->share ? in->layer % (int)p->share : 0);
    while (p->share == 0 && rc == METHOD_SKIP && *layer >= 0) {
        rc = operands_there(ctx, in, *layer, operands, 1, err);
        *layer -= rc == METHOD_SKIP;
    }
    *layer = MAX(*layer, 0);
    return rc < 0 ? rc : operands_there(ctx, in, *layer, operands, OPERANDS, err);
}

static int takes(struct method_ctx *ctx, const void *params, const struct head_in *in,
                 struct err *err)
{
    int layer;
    return leader(ctx, params, in, &layer, err);
}

static void round_fp8(struct operand *o)
{
    int64_t d = o->shape.dim;
    for (float *x = o->x, *end = x + o->shape.heads * o->shape.rows * d; x < end; x += d) {
        float most = 1e-4f;
        int up;
        for (int64_t c = 0; c < d; c++)
            most = fmaxf(most, fabsf(x[c]));
        float part = frexpf(most / 448, &up); /* 0.5 <= part < 1 */
        up -= part == 0.5f;
        for (int64_t c = 0; c < d; c++)
            x[c] = ldexpf(e4m3_round(ldexpf(x[c], -up)), up);
    }
}

static int check_shapes(const struct state *s, struct err *err)
{
    const struct aux_shape q = s->of[IQ].shape, k = s->of[IK].shape, w = s->of[IW].shape;
    if (k.heads == 1 && w.heads == q.heads && k.dim == q.dim && w.dim == 1)
        return 0;
    return err_set(err, ERR_INPUT,
                   "aux/iq of %lld heads x %lld channels, aux/ik of %lld x %lld, aux/iw of %lld x "
                   "%lld: expected one head of keys, and a weight per head and query",
                   (long long)q.heads, (long long)q.dim, (long long)k.heads, (long long)k.dim,
                   (long long)w.heads, (long long)w.dim);
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    struct state *s = state;
    int layer, rc = 0;
    s->params = params;
    s->in = in;
    if ((rc = leader(ctx, params, in, &layer, err)) != 0)
        return rc;
    for (int i = 0; i < OPERANDS; i++)
        TRY(operand_read(ctx, in, layer, operands[i], s->of + i, err));
    TRY(check_shapes(s, err));
    for (int i = IQ; i <= IK && s->params->emulate; i++)
        round_fp8(s->of + i);
    TRY(ranked_init(&s->rank, in->x.nk, err));
out:
    return rc;
}

/* Add max(0, q . k_j) w to score_j of the keys [0, n). */
SIMD_CLONES static void add_head(const float *q, double w, const float *k, int64_t n, int64_t d,
                                 double *score)
{
    for (int64_t j = 0; j < n; j++, k += d) {
        double part[ROW_LANES] = {0}, sum = 0;
        int64_t c = 0;
        for (; c + ROW_LANES <= d; c += ROW_LANES)
            for (int e = 0; e < ROW_LANES; e++)
                part[e] += (double)q[c + e] * (double)k[c + e];
        for (; c < d; c++)
            sum += (double)q[c] * (double)k[c];
        for (int e = 0; e < ROW_LANES; e++)
            sum += part[e];
        score[j] += sum > 0 ? sum * w : 0;
    }
}

static int select_row(void *state, int64_t i, struct mask *m, struct err *err)
{
    struct state *s = state;
    int64_t limit = attn_limit(&s->in->x, i), best = s->params->topk, heads = s->of[IQ].shape.heads;
    double *score = s->rank.score;

    s->rows++;
    memset(score, 0, (size_t)limit * sizeof *score);
    for (int64_t h = 0; h < heads && best < limit; h++)
        add_head(operand_row(&s->of[IQ], h, i), *operand_row(&s->of[IW], h, i), s->of[IK].x, limit,
                 s->of[IK].shape.dim, score);
    s->scores += best < limit ? limit : 0;
    return ranked_add(&s->rank, score, limit, best, limit, m, i - m->row0, err);
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct state *s = state;
    return row_lists(&s->in->x, false, 1, select_row, s, row0, row1, out, err);
}

/* A head's share of its layer's: queries and keys in 8 bits, with a scale. */
static bool cost(const void *state, struct select_cost *c)
{
    const struct state *s = state;
    const struct aux_shape q = s->of[IQ].shape;
    double heads = s->in->n_heads, scores = (double)s->scores * (double)q.heads / heads;
    cost_products(c, scores, (int)q.dim);
    cost_sums(c, 2 * scores);
    c->bytes += ((double)s->scores + (double)(s->rows * q.heads)) * ((double)q.dim + 4) / heads;
    return true;
}

static bool why_full(const void *state, char why[160])
{
    const struct state *s = state;
    return s->scores == 0 && budget_is_all("topk", s->params->topk, 1, s->in->x.nk, why);
}

const struct method method_dsa = {
    .name = "dsa",
    .summary = "tokens that the model's own indexer ranks first, for all heads (DeepSeek-V3.2)",
    .paper = "DeepSeek-AI, DeepSeek-V3.2-Exp: Boosting Long-Context Efficiency with DeepSeek "
             "Sparse Attention",
    .flags = METHOD_CAUSAL | METHOD_SOFTCAP | METHOD_SINK,
    .params = {.table = options,
               .size = sizeof(struct params),
               .budget = BUDGET_PARAMS(BUDGET_BY(BUDGET_COUNT, "topk"))},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .release = release,
    .cost = cost,
    .why_full = why_full,
    .session = {.takes = takes},
    .decode = {.each_row = method_always},
    .tests = {.full = "",
              .variants = TEXTS("topk=9", "topk=40:emulate=fp8", "topk=20:share=2"),
              .budgets = METHOD_BUDGETS({"topk=%s", {"1", "16", "100", "400"}})},
};
