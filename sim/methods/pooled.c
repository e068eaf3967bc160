/*
 * pooled.c - block selectors of video models by pooled scores: means of blocks of queries and keys
 * stand for their tokens, and every query block keeps the key blocks with the largest products.
 *
 *   vsa       tiles of 4x4x4 tokens, K = ceil((1 - sparsity) n) per row of blocks (FastVideo
 *             2f3d407)
 *   sla       blocks of the sequence, keys without their mean, K = int(topk n) (thu-ml/SLA d973e55)
 *   draft     patches of 8x16 tokens, one threshold for the head's softmax map (draft-attention
 *             f3c81d5)
 *   subblock  score = log-sum-exp over the products of finer cells, K a multiple of 8 (SGLang
 *             #34148)
 *
 * What their papers train beside the choice (gates, projections, a coarse or linear branch) is no
 * part of it: output and recall are those of the sparse branch alone. Means are summed in double
 * and rounded as the code stores them, products are sums in double, ties go to the lower block.
 * O(N d) for the means, 2 d n^2 (subblock: times the cells of a pair of blocks) for the scores.
 */
#include "core/intmath.h"
#include "core/mem.h"
#include "core/sort.h"
#include "sim/blocks/blockpool.h"
#include "sim/blocks/prefix.h"
#include "sim/blocks/selectcost.h"
#include "sim/blocks/slicemask.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what the four have in common ------------------------------------------------------------ */

enum method_kind { VSA, SLA, DRAFT, SUBBLOCK };

struct config {
    enum method_kind kind;
    int64_t bq, bk;  /* tokens of a whole block */
    int64_t tile[3]; /* the video tokens of one, in time, height, width; 0: a run of tokens */
    int64_t q_cells, k_cells; /* of a block, each with a mean */
    enum dtype mean;          /* in which means are stored */
    double q_factor;          /* of the query means */
    double share;             /* sparsity, or topk of sla */
    bool compete;             /* vsa: text keys take part in the ranking */
};

/* Queries or keys: block b has the tokens [at[b], at[b + 1]); video blocks are [v0, v1). */
struct side {
    int64_t n, v0, v1, unit; /* unit divides every boundary but the last */
    int64_t *at;             /* [n + 1] */
    float *mean;             /* [n][cells][d] */
};

struct state {
    struct config c;
    const struct head_in *in;
    struct attn_in x;
    struct side q, k;
    bool dense, chosen;
    int64_t there;           /* kept blocks of a device's choice */
    struct slice_mask given; /* by a device */
    uint8_t *keep;           /* [q.n][k.n] */
    double *score;           /* [k.n], of draft [q.n][k.n] */
    double *products;        /* [q_cells * k_cells] of a pair of blocks */
};

static void release(void *state)
{
    struct state *s = state;
    free(s->q.at);
    free(s->q.mean);
    free(s->k.at);
    free(s->k.mean);
    free(s->keep);
    free(s->score);
    free(s->products);
    slice_mask_free(&s->given);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* Boundaries of runs of `size` tokens in [from, to), to excluded. */
static void cut_runs(struct side *t, int64_t from, int64_t to, int64_t size)
{
    for (int64_t i = from; i < to; i += size)
        t->at[t->n++] = i;
}

/* Tiles in raster order, cut off at the ends of the grid (token order tile:AxBxC). */
static void cut_tiles(struct side *t, const struct geometry *g, const int64_t tile[3], int64_t from)
{
    for (int64_t a = 0; a < g->t; a += tile[0])
        for (int64_t b = 0; b < g->h; b += tile[1])
            for (int64_t c = 0; c < g->w; c += tile[2]) {
                t->at[t->n++] = from;
                from += MIN(tile[0], g->t - a) * MIN(tile[1], g->h - b) * MIN(tile[2], g->w - c);
            }
}

static int cut(const struct config *c, const struct head_in *in, int64_t tokens, int64_t size,
               struct side *t, struct err *err)
{
    const struct geometry *g = &in->geom;
    int64_t video = c->tile[0] ? g->t * g->h * g->w : tokens;
    int64_t front = c->tile[0] && g->text_place == 1 ? g->text : 0;
    PASS_ON(mem_alloc(&t->at, tokens + 2, sizeof *t->at, "block boundaries", err));
    cut_runs(t, 0, front, size);
    t->v0 = t->n;
    if (c->tile[0])
        cut_tiles(t, g, c->tile, front);
    else
        cut_runs(t, 0, tokens, size);
    t->v1 = t->n;
    cut_runs(t, front + video, tokens, size);
    t->at[t->n] = tokens;
    t->unit = size;
    for (int64_t b = 0; b < t->n; b++)
        t->unit = gcd(t->unit, t->at[b]);
    return 0;
}

static int means(const struct config *c, const float *x, int d, int64_t size, int64_t cells,
                 double factor, struct side *t, struct err *err)
{
    int64_t cell = size / cells;
    PASS_ON(mem_zalloc(&t->mean, t->n * cells * d, sizeof *t->mean, "block means", err));
    for (int64_t b = 0; b < t->n; b++)
        for (int64_t i = t->at[b], e = 0; i < t->at[b + 1]; i += cell, e++) {
            float *mean = t->mean + (b * cells + e) * d;
            block_mean(x + i * d, MIN(cell, t->at[b + 1] - i), d, factor == 1 ? c->mean : DT_F32,
                       mean);
            for (int k = 0; factor != 1 && k < d; k++)
                mean[k] = dtype_round(c->mean, (float)(mean[k] * factor));
        }
    return 0;
}

/* ---- the choice ------------------------------------------------------------------------------ */

/* Score of blocks i and j: the product of their means, or the log-sum-exp, to base 2, over cells.
 */
static double score(const struct state *s, int64_t i, int64_t j)
{
    const struct config *c = &s->c;
    int64_t nq = ceil_div(s->q.at[i + 1] - s->q.at[i], c->bq / c->q_cells);
    int64_t nk = ceil_div(s->k.at[j + 1] - s->k.at[j], c->bk / c->k_cells);
    double most = -INFINITY, sum = 0;
    for (int64_t a = 0; a < nq; a++)
        for (int64_t b = 0; b < nk; b++)
            most = fmax(most, s->products[a * nk + b] =
                                  row_product(s->q.mean + (i * c->q_cells + a) * s->x.d,
                                              s->k.mean + (j * c->k_cells + b) * s->x.d, s->x.d));
    for (int64_t e = 0; e < nq * nk; e++)
        sum += exp2(s->products[e] - most);
    return most + log2(sum);
}

/* Blocks that a row of blocks keeps of n. */
static int64_t count(const struct config *c, int64_t n)
{
    if (c->kind == SLA)
        return MIN(n, (int64_t)(c->share * (double)n));
    int64_t k = (int64_t)ceil((1 - c->share) * (double)n);
    return MIN(n, c->kind == SUBBLOCK ? 8 * MAX(1, ceil_div(k, 8)) : MAX(1, k));
}

static int keep_best(struct state *s, int64_t i, struct prefix_work *work, struct err *err)
{
    bool all = s->c.compete;
    int64_t lo = all ? 0 : s->k.v0, hi = all ? s->k.n : s->k.v1;
    int64_t want = count(&s->c, s->k.v1 - s->k.v0) + (all ? s->k.n - (s->k.v1 - s->k.v0) : 0);
    struct prefix top;
    for (int64_t j = lo; j < hi; j++)
        s->score[j] = score(s, i, j);
    PASS_ON(prefix_topk(work, s->score + lo, hi - lo, want, &top, err));
    for (int64_t j = lo; j < hi; j++)
        s->keep[i * s->k.n + j] = want > 0 && prefix_has(&top, s->score[j], j - lo);
    return 0;
}

/* draft: the int(sparsity n^2)-th smallest entry of the head's map is the threshold; it stays. */
static int64_t dropped(const struct state *s)
{
    int64_t n = s->k.v1 - s->k.v0;
    return (int64_t)((1 - (1 - s->c.share)) * (double)(n * n));
}

static int keep_above(struct state *s, struct err *err)
{
    int64_t n = s->k.v1 - s->k.v0, v0 = s->k.v0, drop = dropped(s);
    OWN(free_at) double *sorted = NULL;
    double *p = s->score;
    PASS_ON(mem_alloc(&sorted, n * n, sizeof *sorted, "block probabilities", err));
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < n; j++)
            p[i * n + j] = s->x.scale * score(s, v0 + i, v0 + j);
        softmax_f64(p + i * n, n);
    }
    memcpy(sorted, p, (size_t)(n * n) * sizeof *p);
    sort_f64(sorted, n * n);
    for (int64_t e = 0; e < n * n; e++)
        s->keep[(v0 + e / n) * s->k.n + v0 + e % n] =
            drop < n * n && (drop == 0 || p[e] >= sorted[drop - 1]);
    return 0;
}

static int choose(struct state *s, struct err *err)
{
    const struct attn_in *x = &s->x;
    OWN(free_at) float *centred = NULL, *mean = NULL;
    OWN(prefix_work_free_at) struct prefix_work *work = NULL;
    if (s->c.kind == SLA) {
        PASS_ON(mem_alloc(&centred, x->nk * x->d, sizeof *centred, "keys without their mean", err));
        PASS_ON(mem_alloc(&mean, x->d, sizeof *mean, "key mean", err));
        token_mean(x->k, x->nk, x->d, s->c.mean, mean);
        token_centre(x->k, x->nk, x->d, mean, s->c.mean, centred);
    }
    PASS_ON(means(&s->c, x->q, x->d, s->c.bq, s->c.q_cells, s->c.q_factor, &s->q, err));
    PASS_ON(means(&s->c, centred ? centred : x->k, x->d, s->c.bk, s->c.k_cells, 1, &s->k, err));
    PASS_ON(prefix_work_new(&work, err));
    memset(s->keep, 1, (size_t)(s->q.n * s->k.n)); /* text */
    if (s->c.kind == DRAFT)
        PASS_ON(keep_above(s, err));
    for (int64_t i = s->q.v0; i < s->q.v1 && s->c.kind != DRAFT; i++)
        PASS_ON(keep_best(s, i, work, err));
    s->chosen = true;
    return 0;
}

/* ---- callbacks ------------------------------------------------------------------------------- */

static int check_grid(struct method_ctx *ctx, const struct config *c, const struct head_in *in)
{
    const struct geometry *g = &in->geom;
    if (in->x.nq != in->x.nk || g->t * g->h * g->w + g->text != in->x.nq)
        return method_skip(ctx, "%lld queries and %lld keys are not the %lldx%lldx%lld grid",
                           (long long)in->x.nq, (long long)in->x.nk, (long long)g->t,
                           (long long)g->h, (long long)g->w);
    if (c->kind == DRAFT && (g->h % c->tile[1] || g->w % c->tile[2]))
        return method_skip(ctx, "patches of 8x16 tokens do not divide frames of %lldx%lld",
                           (long long)g->h, (long long)g->w);
    return 0;
}

static int begin(struct method_ctx *ctx, const struct config *c, const struct head_in *in,
                 struct state *s, struct err *err)
{
    PASS_ON(c->tile[0] ? check_grid(ctx, c, in) : 0);
    s->c = *c;
    s->in = in;
    s->x = in->x;
    PASS_ON(cut(c, in, in->x.nq, c->bq, &s->q, err));
    PASS_ON(cut(c, in, in->x.nk, c->bk, &s->k, err));
    PASS_ON(mem_zalloc(&s->keep, s->q.n * s->k.n, sizeof *s->keep, "kept blocks", err));
    PASS_ON(mem_alloc(&s->score, (c->kind == DRAFT ? s->q.n : 1) * s->k.n, sizeof *s->score,
                      "block scores", err));
    PASS_ON(mem_alloc(&s->products, c->q_cells * c->k_cells, sizeof *s->products, "cells", err));
    ctx->unit_rows = s->q.unit;
    return 0;
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct state *s = state;
    int64_t i = 0, u = s->k.unit;
    if (s->dense) {
        mask_full(out, s->x.nq, s->x.nk, row0, row1, false);
        return 0;
    }
    if (s->given.bits)
        return slice_mask_lists(&s->given, row0, row1, out, err);
    if (!s->chosen)
        PASS_ON(choose(s, err));
    PASS_ON(mask_lists_init(out, s->x.nq, s->x.nk, row0, row1, false, s->q.unit, u, err));
    out->exec = EXEC_NONE; /* report: blocks that are cut off are multiplied whole */
    for (int64_t g = 0; g < out->ngroups; g++) {
        while (s->q.at[i + 1] <= row0 + g * s->q.unit)
            i++;
        for (int64_t j = 0; j < s->k.n; j++)
            if (s->keep[i * s->k.n + j])
                PASS_ON(mask_lists_add_run(out, g, (int32_t)(s->k.at[j] / u),
                                           (int32_t)ceil_div(s->k.at[j + 1], u), err));
    }
    mask_lists_finish(out);
    return 0;
}

/* ---- on a device ----------------------------------------------------------------------------- */

static bool rule(const void *state, struct rule *rule, char why[160])
{
    const struct state *s = state;
    const struct config *c = &s->c;
    bool head = c->kind == DRAFT;
    int64_t all = s->k.n * s->k.n, drop = dropped(s);
    if (s->k.v1 - s->k.v0 != s->k.n || s->k.unit != c->bk || c->mean != DT_BF16)
        return method_refuses(why,
                              "the GPU side has means in bf16, tiles that divide the grid, and "
                              "no text");
    rule->of.pooled = (struct pooled_rule){.all = s->dense,
                                           .by = head ? POOLED_HEAD : POOLED_BEST,
                                           .bq = c->bq,
                                           .bk = c->bk,
                                           .q_cells = (int)c->q_cells,
                                           .k_cells = (int)c->k_cells,
                                           .top = !head         ? count(c, s->k.n)
                                                  : drop >= all ? 0
                                                  : drop == 0   ? all
                                                                : all - drop + 1,
                                           .q_factor = c->q_factor,
                                           .centre = c->kind == SLA};
    return true;
}

static int take(void *state, const struct device_choice *c, struct err *err)
{
    struct state *s = state;
    PASS_ON(s->dense ? 0 : slice_mask_take(&s->given, c, s->c.bq, s->c.bk, 0, err));
    if (!s->dense)
        s->there = c->lists ? slice_mask_total(&s->given) : c->counts->units;
    return 0;
}

/* density_native: kept blocks over all. */
static int report(void *state, struct record *r, struct err *err)
{
    const struct state *s = state;
    double kept = (double)s->there, all = (double)(s->q.n * s->k.n);
    if (s->dense)
        return 0;
    for (int64_t e = 0; e < s->q.n * s->k.n; e++)
        kept += s->keep[e];
    double exec = kept * (double)(s->c.bq * s->c.bk);
    return RECORD_ALL(r, err, {"density_native", kept / all}, {"pairs_exec", exec},
                      {"density_exec", exec / record_get(r, "pairs_allowed")});
}

static bool cost(const void *state, struct select_cost *c)
{
    const struct state *s = state;
    double nq = (double)s->x.nq, nk = (double)s->x.nk, d = s->x.d;
    double cells_q = (double)(s->q.n * s->c.q_cells), cells_k = (double)(s->k.n * s->c.k_cells);
    if (s->dense)
        return true;
    cost_sums(c, (nq + (s->c.kind == SLA ? 3 : 1) * nk) * d);
    cost_rows(c, s->in, nq + (s->c.kind == SLA ? 2 : 1) * nk, s->x.d);
    cost_products(c, cells_q * cells_k, s->x.d);
    if (s->c.kind == DRAFT || s->c.kind == SUBBLOCK)
        cost_softmax(c, cells_q * cells_k);
    cost_kept(c, (cells_q + cells_k) * d + (double)(s->q.n * s->k.n));
    return true;
}

#define POOLED(id)                                                                                 \
    .flags = METHOD_BIDIRECTIONAL, .state_size = sizeof(struct state), .prepare = id##_prepare,    \
    .select = select_rows, .report = report, .release = release, .cost = cost,                     \
    .device = {.rule = rule, .take = take, .keep_on_device = method_always}

/* ---- vsa ------------------------------------------------------------------------------------- */

struct vsa_params {
    double sparsity;
    int tile, text;
};

static const struct opt vsa_options[] = {
    OPT_NUM(struct vsa_params, sparsity, "0.9", 0, 1, "share of blocks", "Key blocks left out."),
    OPT_ENUM(struct vsa_params, tile, "4x4x4", TEXTS("4x4x4", "4x8x8"),
             "Tokens of a block in time, height and width."),
    OPT_ENUM(struct vsa_params, text, "exempt", TEXTS("exempt", "compete"),
             "Keys of text tokens: kept beside the best, or ranked among them with as many more "
             "places."),
    {0},
};

static int vsa_prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                       void *state, struct err *err)
{
    const struct vsa_params *p = params;
    int64_t side = p->tile ? 8 : 4, size = 4 * side * side;
    struct config c = {.kind = VSA,
                       .bq = size,
                       .bk = size,
                       .tile = {4, side, side},
                       .q_cells = 1,
                       .k_cells = 1,
                       .mean = DT_BF16,
                       .q_factor = 1,
                       .share = p->sparsity,
                       .compete = p->text};
    return begin(ctx, &c, in, state, err);
}

static const char *vsa_order(const void *params)
{
    return ((const struct vsa_params *)params)->tile ? "tile:4x8x8" : "tile:4x4x4";
}

const struct method method_vsa = {
    POOLED(vsa),
    .name = "vsa",
    .summary = "video tiles by the products of their means, a number per row (VSA, sparse branch)",
    .paper = "Zhang et al., VSA: Faster Video Diffusion with Trainable Sparse Attention, arXiv "
             "2505.13389",
    .params = {.table = vsa_options,
               .size = sizeof(struct vsa_params),
               .budget = BUDGET_PARAMS(BUDGET_BY(BUDGET_LIN, "sparsity", .falls = true)),
               .order = vsa_order},
    .tests = {.full = "sparsity=0",
              .variants = TEXTS("sparsity=0.4:tile=4x8x8", "sparsity=0.7:text=compete"),
              .budgets = METHOD_BUDGETS({"sparsity=%s", {"1", "0.7", "0.3", "0"}})},
};

/* ---- sla ------------------------------------------------------------------------------------- */

struct sla_params {
    double topk;
    int block;
};

static const struct opt sla_options[] = {
    OPT_NUM(struct sla_params, topk, "0.1", 0, 1, "share of blocks", "Key blocks kept."),
    OPT_ENUM(struct sla_params, block, "64x64", TEXTS("64x64", "128x64", "64x128"),
             "Queries and keys of a block: SLA, SageSLA, SageSLA on sm90."),
    {0},
};

static int sla_prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                       void *state, struct err *err)
{
    const struct sla_params *p = params;
    struct config c = {.kind = SLA,
                       .bq = p->block == 1 ? 128 : 64,
                       .bk = p->block == 2 ? 128 : 64,
                       .q_cells = 1,
                       .k_cells = 1,
                       .mean = in->src_dtype,
                       .q_factor = 1,
                       .share = p->topk};
    return begin(ctx, &c, in, state, err);
}

const struct method method_sla = {
    POOLED(sla),
    .name = "sla",
    .summary = "blocks by the products of their means, a share per row (SLA, sparse branch)",
    .paper = "Zhang et al., SLA: Beyond Sparsity in Diffusion Transformers via Fine-Tunable "
             "Sparse-Linear Attention, arXiv 2509.24006",
    .params = {.table = sla_options,
               .size = sizeof(struct sla_params),
               .budget = BUDGET_PARAMS(BUDGET_BY(BUDGET_LIN, "topk")),
               .may_be_empty = method_always}, /* int(topk n) is 0 */
    .tests = {.full = "topk=1",
              .variants = TEXTS("topk=0.4:block=128x64", "topk=0.6:block=64x128"),
              .budgets = METHOD_BUDGETS({"topk=%s", {"0", "0.3", "0.7", "1"}})},
};

/* ---- draft ----------------------------------------------------------------------------------- */

struct draft_params {
    double sparsity;
};

static const struct opt draft_options[] = {
    OPT_NUM(struct draft_params, sparsity, "0.9", 0, 1, "share of blocks",
            "Pairs of blocks left out, of all of the head; Wan in the code: 0.75."),
    {0},
};

static int draft_prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                         void *state, struct err *err)
{
    struct config c = {.kind = DRAFT,
                       .bq = 128,
                       .bk = 128,
                       .tile = {1, 8, 16},
                       .q_cells = 1,
                       .k_cells = 1,
                       .mean = in->src_dtype,
                       .q_factor = 1,
                       .share = ((const struct draft_params *)params)->sparsity};
    return begin(ctx, &c, in, state, err);
}

static const char *draft_order(const void *params)
{
    return "tile:1x8x16";
}

const struct method method_draft = {
    POOLED(draft),
    .name = "draft",
    .alias = "draft-attention",
    .summary = "patches of a frame above one threshold of the head's pooled map (DraftAttention)",
    .paper = "Shen et al., DraftAttention: Fast Video Diffusion via Low-Resolution Attention "
             "Guidance, arXiv 2505.14708",
    .params = {.table = draft_options,
               .size = sizeof(struct draft_params),
               .budget = BUDGET_PARAMS(BUDGET_BY(BUDGET_LIN, "sparsity", .falls = true)),
               .order = draft_order,
               .may_be_empty = method_always}, /* a flat row of the map */
    .tests = {.full = "sparsity=0",
              .variants = TEXTS("sparsity=0.5"),
              .budgets = METHOD_BUDGETS({"sparsity=%s", {"1", "0.7", "0.3", "0"}})},
};

/* ---- subblock -------------------------------------------------------------------------------- */

struct subblock_params {
    double sparsity;
    int64_t skip_first_steps, min_seq;
    int nq, nk;
};

static const struct opt subblock_options[] = {
    OPT_NUM(struct subblock_params, sparsity, "0.75", 0, 1, "share of blocks",
            "Key blocks left out, rounded so that a multiple of 8 stays."),
    OPT_ENUM(struct subblock_params, nq, "4", TEXTS("1", "2", "4", "8"),
             "Cells of a block of 64 queries."),
    OPT_ENUM(struct subblock_params, nk, "4", TEXTS("1", "2", "4", "8"),
             "Cells of a block of 64 keys."),
    OPT_INT(struct subblock_params, skip_first_steps, "10", 0, 1e6, "steps",
            "First denoising steps that attend densely."),
    OPT_INT(struct subblock_params, min_seq, "4096", 0, 1e9, "tokens",
            "Shorter sequences attend densely."),
    {0},
};

static int subblock_prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                            void *state, struct err *err)
{
    const struct subblock_params *p = params;
    struct state *s = state;
    struct config c = {.kind = SUBBLOCK,
                       .bq = 64,
                       .bk = 64,
                       .q_cells = 1 << p->nq,
                       .k_cells = 1 << p->nk,
                       .mean = DT_BF16,
                       .q_factor = in->x.scale * 1.4426950408889634,
                       .share = p->sparsity};
    s->dense = in->step < p->skip_first_steps || in->x.nk < p->min_seq;
    return begin(ctx, &c, in, state, err);
}

static bool subblock_why_full(const void *state, char why[160])
{
    const struct state *s = state;
    snprintf(why, 160, "step %d is below skip_first_steps, or %lld keys are below min_seq",
             s->in->step, (long long)s->x.nk);
    return s->dense;
}

const struct method method_subblock = {
    POOLED(subblock),
    .name = "subblock",
    .summary = "blocks by the log-sum-exp of the products of finer means (SubBlock)",
    .paper = "none: SubBlock of SGLang (pull request 34148)",
    .params = {.table = subblock_options,
               .size = sizeof(struct subblock_params),
               .budget = BUDGET_PARAMS(BUDGET_BY(BUDGET_LIN, "sparsity", .falls = true))},
    .why_full = subblock_why_full,
    .tests = {.full = "",
              .variants = TEXTS("min_seq=0:skip_first_steps=0:sparsity=0.9",
                                "min_seq=0:skip_first_steps=1:nq=1:nk=8"),
              .budgets = METHOD_BUDGETS({"min_seq=0:skip_first_steps=0:sparsity=%s", {"1", "0"}})},
};
