/*
 * nsa.c - the selection branch of Native Sparse Attention: blocks of keys ranked for every token by
 * a softmax over mean keys, summed over the query heads of a KV head, which share the choice.
 *
 * J. Yuan et al., arXiv 2502.11089. The published codes pool by a mean where the paper has an MLP:
 *
 *   fla     fla-org/native-sparse-attention bd67af5: means of whole blocks; the own block counts 1
 *   triton  XunhaoLai/native-sparse-attention-triton 9bea856: means of half a block every quarter;
 *           a block's score is the sum over the means that touch it, each as often as it does
 *   infllm  OpenBMB/infllmv2_cuda_impl f908e73: the same means; the score is the largest of them
 *
 * The branches of compressed keys and of the window, and the gates, are trained and not replayed.
 * Means and softmax are in double, ties go to the lower block. O(G N^2 d / stride), G heads a
 * group.
 */
#include "core/intmath.h"
#include "core/mem.h"
#include "sim/blocks/blockpool.h"
#include "sim/blocks/rowselect.h"
#include "sim/blocks/selectcost.h"
#include "sim/blocks/slicemask.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum profile { FLA, TRITON, INFLLM };

struct params {
    int profile, share;
    int64_t block, kernel, stride, top, init, local, dense_below;
};

static const struct opt options[] = {
    OPT_ENUM(struct params, profile, "triton", TEXTS("fla", "triton", "infllm"), "Whose code."),
    OPT_ENUM(struct params, share, "group", TEXTS("group", "head"),
             "Scores of all query heads of a KV head, or of the head alone."),
    OPT_INT(struct params, block, "64", 1, 1e6, "tokens", "Keys of a block."),
    OPT_INT(struct params, kernel, NULL, 1, 1e6, "tokens",
            "Keys of a mean; unset: block with fla, else half of it."),
    OPT_INT(struct params, stride, NULL, 1, 1e6, "tokens",
            "Keys between two means; unset: block with fla, else a quarter of it."),
    OPT_INT(struct params, top, NULL, 1, 1e9, "blocks", "Blocks that stay; unset: 16, infllm 64."),
    OPT_INT(struct params, init, NULL, 0, 1e9, "blocks", "First forced blocks; unset: 1, fla 0."),
    OPT_INT(struct params, local, NULL, 1, 1e9, "blocks",
            "Last blocks that are forced, the own one among them; unset: 1, 2 and 32 by profile."),
    OPT_INT(struct params, dense_below, NULL, 0, 1e9, "tokens",
            "Shorter sequences attend densely; unset: 8192 with infllm, else 0."),
    {0},
};

/* The parameters with the values of their profile in place. */
static struct params resolve(const struct params *p)
{
    static const int64_t of[][6] = {
        {1, 1, 16, 0, 1, 0}, {2, 4, 16, 1, 2, 0}, {2, 4, 64, 1, 32, 8192}};
    const int64_t *unset = of[p->profile];
    struct params r = *p;
    int64_t *value[] = {&r.kernel, &r.stride, &r.top, &r.init, &r.local, &r.dense_below};
    for (int i = 0; i < 6; i++)
        if (*value[i] == INT64_MIN)
            *value[i] = i < 2 ? MAX(1, p->block / unset[i]) : unset[i];
    return r;
}

static int validate(void *params, struct err *err)
{
    struct params p = resolve(params);
    if (p.kernel % p.stride || p.block % p.stride)
        return err_set(err, ERR_USAGE,
                       "method nsa: kernel=%lld and block=%lld: expected multiples of stride=%lld",
                       (long long)p.kernel, (long long)p.block, (long long)p.stride);
    if (p.profile != FLA || (p.kernel == p.block && p.stride == p.block))
        return 0;
    return err_set(err, ERR_USAGE,
                   "method nsa: profile=fla has means of whole blocks: leave "
                   "kernel and stride out");
}

struct state {
    struct params p;
    const struct head_in *in;
    struct attn_in x;
    bool dense;
    int group;               /* heads whose scores count */
    int64_t means;           /* of the head */
    int64_t scores;          /* so far, of one head */
    float *mean;             /* [means][d] */
    float *q;                /* [group][nq][d]; NULL: x.q alone */
    double *share;           /* [means] of a row, sums over the heads; [means] of one head */
    struct ranked rank;      /* of blocks */
    struct slice_mask given; /* by a device */
};

static void release(void *state)
{
    struct state *s = state;
    free(s->mean);
    free(s->q);
    free(s->share);
    ranked_free(&s->rank);
    slice_mask_free(&s->given);
}

/* The queries of the group and the mean keys. */
static int pool(struct state *s, struct err *err)
{
    int64_t each = s->x.nq * s->x.d;
    int d = s->x.d;
    if (s->group > 1)
        PASS_ON(mem_alloc(&s->q, s->group * each, sizeof *s->q, "queries of a group", err));
    for (int g = 0; s->q && g < s->group; g++)
        PASS_ON(s->in->queries(s->in, g, s->q + g * each, err));
    PASS_ON(mem_alloc(&s->mean, s->means * d, sizeof *s->mean, "mean keys", err));
    PASS_ON(mem_alloc(&s->share, 2 * s->means, sizeof *s->share, "shares of mean keys", err));
    PASS_ON(ranked_init(&s->rank, ceil_div(s->x.nk, s->p.block), err));
    for (int64_t j = 0; j < s->means; j++)
        block_mean(s->x.k + j * s->p.stride * d, s->p.kernel, d, DT_F32, s->mean + j * d);
    return 0;
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    struct state *s = state;
    *s = (struct state){.p = resolve(params), .in = in, .x = in->x};
    s->group = s->p.share == 0 && in->n_kv_heads > 0 ? in->n_heads / in->n_kv_heads : 1;
    s->dense = in->x.nk < s->p.dense_below;
    s->means = in->x.nk < s->p.kernel ? 0 : (in->x.nk - s->p.kernel) / s->p.stride + 1;
    if (s->group > 1 && !in->queries)
        return method_skip(ctx, "needs share=head, or the queries of the %d heads of its KV head",
                           s->group);
    return 0;
}

/* Means that the token at this position sees whole. */
static int64_t means_seen(const struct state *s, int64_t at)
{
    return at + 1 < s->p.kernel ? 0 : (at + 1 - s->p.kernel) / s->p.stride + 1;
}

/* Softmax of row i over the means it sees, summed over the heads. */
static void sum_shares(struct state *s, int64_t i, int64_t seen)
{
    double *one = s->share + s->means;
    int d = s->x.d;
    memset(s->share, 0, (size_t)s->means * sizeof *s->share);
    for (int g = 0; g < s->group && seen > 0; g++) {
        const float *q = (s->q ? s->q + g * s->x.nq * d : s->x.q) + i * d;
        row_products(q, s->mean, d, NULL, seen, one);
        for (int64_t j = 0; j < seen; j++)
            one[j] *= s->x.scale;
        softmax_f64(one, seen);
        for (int64_t j = 0; j < seen; j++)
            s->share[j] += one[j];
    }
}

/* The means that touch block b, once per stride that they have in it: their sum or the largest. */
static double block_score(const struct state *s, int64_t b)
{
    int64_t in_block = s->p.block / s->p.stride, in_kernel = s->p.kernel / s->p.stride;
    double sum = 0, most = 0;
    for (int64_t m = 0; m < in_block; m++)
        for (int64_t n = 0; n < in_kernel; n++) {
            int64_t j = b * in_block + m - n;
            double p = j >= 0 && j < s->means ? s->share[j] : 0;
            sum += p;
            most = fmax(most, p);
        }
    return s->p.profile == INFLLM ? most : sum;
}

static int select_row(void *state, int64_t i, struct mask *m, struct err *err)
{
    struct state *s = state;
    const struct params *p = &s->p;
    int64_t at = i + s->x.nk - s->x.nq, own = at / p->block;
    double *score = s->rank.score;
    if (at < 0)
        return 0;
    sum_shares(s, i, means_seen(s, at));
    s->scores += means_seen(s, at);
    for (int64_t b = 0; b <= own; b++) {
        bool forced = b < p->init || b > own - p->local;
        score[b] = !forced             ? block_score(s, b)
                   : p->profile == FLA ? s->group /* a share of 1 in every head */
                                       : INFINITY;
    }
    return ranked_add(&s->rank, score, own + 1, p->top, own + 1, m, i - m->row0, err);
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct state *s = state;
    if (s->given.bits)
        return slice_mask_lists(&s->given, row0, row1, out, err);
    PASS_ON(s->rank.work || s->dense ? 0 : pool(s, err));
    return row_lists(&s->x, s->dense, s->p.block, select_row, s, row0, row1, out, err);
}

static bool rule(const void *state, struct rule *rule, char why[160])
{
    const struct state *s = state;
    const struct params *p = &s->p;
    rule->of.pooled = (struct pooled_rule){.all = s->dense,
                                           .by = POOLED_SHARES,
                                           .bq = 1,
                                           .bk = p->block,
                                           .q_cells = 1,
                                           .k_cells = 1,
                                           .top = p->top,
                                           .kernel = p->kernel,
                                           .stride = p->stride,
                                           .init = p->init,
                                           .local = p->local,
                                           .heads = s->group,
                                           .largest = p->profile == INFLLM,
                                           .shares_own = p->profile == FLA};
    return true;
}

static int take(void *state, const struct device_choice *c, struct err *err)
{
    struct state *s = state;
    return s->dense ? 0 : slice_mask_take(&s->given, c, 1, s->p.block, -1, err);
}

static int report(void *state, struct record *r, struct err *err)
{
    const struct state *s = state;
    return s->dense ? 0 : units_record(&s->x, s->p.block, s->p.top, r, err);
}

/* The head's share of its group: the choice of a KV head is made once. */
static bool cost(const void *state, struct select_cost *c)
{
    const struct state *s = state;
    double scores = 0;
    if (s->dense)
        return true;
    for (int64_t at = MAX(0, s->x.nk - s->x.nq); at < s->x.nk; at++)
        scores += (double)means_seen(s, at);
    cost_sums(c, (double)(s->means * s->p.kernel) * s->x.d + scores);
    cost_rows(c, s->in, (double)(s->x.nq + s->x.nk), s->x.d);
    cost_products(c, scores, s->x.d);
    cost_softmax(c, scores);
    cost_kept(c, (double)s->means * s->x.d + scores);
    return true;
}

/* The means that a row sees, which a KV head reads once; a mean is made when its keys are there. */
static double step_bytes(const void *state)
{
    const struct state *s = state;
    struct select_cost c = {0, 0};
    cost_rows(&c, s->in, (double)s->scores / s->group, s->x.d);
    return c.bytes;
}

/* Whether a step is dense must not depend on the later ones. */
static bool each_row(const void *params)
{
    return resolve(params).dense_below == 0;
}

static bool why_full(const void *state, char why[160])
{
    const struct state *s = state;
    if (!s->dense)
        return budget_is_all("top", s->p.top, s->p.block, s->x.nk, why);
    return snprintf(why, 160, "%lld keys are below dense_below=%lld", (long long)s->x.nk,
                    (long long)s->p.dense_below) > 0;
}

const struct method method_nsa = {
    .name = "nsa",
    .summary = "blocks by a softmax over mean keys, one choice per KV head (NSA, InfLLM-v2)",
    .paper = "Yuan et al., Native Sparse Attention, arXiv 2502.11089",
    .flags = METHOD_ROWS | METHOD_CAUSAL,
    .params = {.table = options,
               .size = sizeof(struct params),
               .budget = BUDGET_PARAMS(BUDGET_BY(BUDGET_COUNT, "top")),
               .validate = validate},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .release = release,
    .cost = cost,
    .why_full = why_full,
    .decode = {.each_row = each_row, .step_bytes = step_bytes},
    .device = {.rule = rule, .take = take, .keep_on_device = method_always},
    .tests = {.full = "share=head:top=1000000",
              .variants = TEXTS("share=head:block=16:top=4", "share=head:profile=fla:block=8:top=3",
                                "share=head:profile=infllm:block=16:top=5:local=2:dense_below=0"),
              .budgets = METHOD_BUDGETS(
                  {"share=head:profile=fla:block=16:top=%s", {"1", "3", "8", "20"}})},
};
