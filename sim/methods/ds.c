/*
 * ds.c - double sparsity: the tokens with the largest scores in few channels.
 *
 *   score_j = sum of q_d khat_jd over the r channels of a head with the largest mean |q_d k_d| of
 * pairs of one position; khat = k at 4 bits per token (label_bits=16: k). A row keeps the `budget`
 * tokens with the largest score, of equal ones the lower.
 *
 * Yang et al., Post-Training Sparse Attention with Double Sparsity, arXiv 2408.07092;
 * andy-yang-1/DoubleSparse. O(N r) a row.
 *
 * `lacuna calibrate ds` finds the channels from other captures, as published; unset they are those
 * of the head itself, which its own queries choose. The scale of the scores changes no order.
 * Deviations: every row of a prompt counts as a step of decoding unless rows=decode.
 */
#include "core/intmath.h"
#include "core/mem.h"
#include "core/method.h"
#include "sim/blocks/numlist.h"
#include "sim/blocks/rowselect.h"
#include "sim/blocks/selectcost.h"

#include <stdio.h>

struct params {
    int64_t budget, group_factor, dense_layers;
    int label_bits, rows;
    char *channels;
};

static const struct opt options[] = {
    OPT_INT(struct params, budget, "128", 1, 1e9, "tokens", "keys that a row keeps"),
    OPT_INT(struct params, group_factor, "4", 1, 512, "", "a label has 1 of so many channels"),
    OPT_ENUM(struct params, label_bits, "4", TEXTS("4", "16"), "bits of a label; 16: as the keys"),
    OPT_STR(struct params, channels, NULL, NULL,
            "the channels, a+b+c, as calibrate writes them; unset: those of the head"),
    OPT_INT(struct params, dense_layers, "0", 0, 1e9, "layers", "first layers that stay dense"),
    OPT_ENUM(struct params, rows, "all", TEXTS("all", "decode"),
             "decode leaves a whole prompt dense"),
    {0},
};

struct state {
    const struct params *params;
    const struct head_in *in;
    struct key_labels labels;
    struct ranked rank;
    char dense[160];      /* why the head is; "" = it is not */
    int64_t rows, scores; /* so far */
};

static void release(void *state)
{
    struct state *s = state;
    key_labels_free(&s->labels);
    ranked_free(&s->rank);
}

static int validate(void *params, struct err *err)
{
    const struct params *p = params;
    int64_t channel[CHANNELS_MOST];
    int n = 0;
    return p->channels
               ? int_list_parse(p->channels, "channels", -1, channel, CHANNELS_MOST, &n, err)
               : 0;
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    const struct params *p = params;
    struct state *s = state;

    s->params = p;
    s->in = in;
    if (head_left_dense(in, p->dense_layers, 0, p->rows, s->dense))
        return 0;
    PASS_ON(ranked_init(&s->rank, 0, err));
    return key_labels_init(&s->labels, ctx, in, p->channels, p->group_factor,
                           p->label_bits ? 16 : 4, err);
}

static int select_row(void *state, int64_t i, struct mask *m, struct err *err)
{
    struct state *s = state;
    const struct attn_in *x = &s->in->x;
    int64_t limit = attn_limit(x, i), best = s->params->budget;

    s->rows++;
    const double *score = NULL;
    if (best < limit) {
        score = key_labels_scores(&s->labels, i, m->row1);
        s->scores += limit;
    }
    return ranked_add(&s->rank, score, limit, best, limit, m, i - m->row0, err);
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct state *s = state;
    return row_lists(&s->in->x, s->dense[0], 1, select_row, s, row0, row1, out, err);
}

/* Labels are made when a key comes in. */
static bool cost(const void *state, struct select_cost *c)
{
    const struct state *s = state;
    double bits = s->params->label_bits ? 8 * (double)dtype_size(s->in->src_dtype) : 4;
    cost_products(c, (double)s->scores, s->labels.n);
    cost_rows(c, s->in, (double)s->rows, s->labels.n);
    c->bytes += (double)s->scores * s->labels.n * bits / 8;
    return true;
}

static bool why_full(const void *state, char why[160])
{
    const struct state *s = state;
    if (snprintf(why, 160, "%s", s->dense) > 0)
        return true;
    return s->scores == 0 && budget_is_all("budget", s->params->budget, 1, s->in->x.nk, why);
}

/* ---- calibration ---------------------------------------------------------------------------- */

static int calibrate(struct method_ctx *ctx, const void *params, const struct head_in *samples,
                     int n, struct jw *w, struct err *err)
{
    const struct params *p = params;
    double sum[CHANNELS_MOST] = {0};
    int64_t channel[CHANNELS_MOST];
    OWN(buf_free) struct buf text = {0};
    int d = samples[0].x.d, r = (int)MAX(1, d / p->group_factor);

    if (d > CHANNELS_MOST)
        return method_skip(ctx, "labels are of at most %d channels", CHANNELS_MOST);
    for (int i = 0; i < n; i++)
        channel_products(&samples[i].x, sum);
    channels_of(sum, d, r, channel);
    for (int c = 0; c < r; c++)
        buf_printf(&text, "%s%lld", c ? "+" : "", (long long)channel[c]);
    PASS_ON(buf_check(&text, "channels", err));
    jw_kstr(w, "channels", buf_str(&text));
    return 0;
}

const struct method method_ds = {
    .name = "ds",
    .summary = "tokens with the largest scores in few channels (double sparsity)",
    .paper = "Yang et al., Post-Training Sparse Attention with Double Sparsity, arXiv 2408.07092",
    .flags = METHOD_ROWS | METHOD_CAUSAL | METHOD_SOFTCAP | METHOD_SINK,
    .params = {.table = options,
               .size = sizeof(struct params),
               .budget = BUDGET_PARAMS(BUDGET_BY(BUDGET_COUNT, "budget")),
               .validate = validate},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .release = release,
    .cost = cost,
    .why_full = why_full,
    .decode = {.each_row = method_always},
    .search = {.calibrate = calibrate, .passes = 0.1},
    .tests = {.full = "budget=1000000",
              .variants = TEXTS("budget=20", "budget=16:channels=0+5+17+63",
                                "budget=1:label_bits=16:group_factor=64", "rows=decode:budget=9"),
              .budgets = METHOD_BUDGETS({"budget=%s", {"1", "16", "100", "400"}})},
};
