/*
 * sparse_transformer.c - the factorised patterns of OpenAI's Sparse Transformer, causal only.
 *
 *   local    i - l < j <= i            strided  j <= i and (i - j) mod l = 0
 *   merged   local or strided
 *   fixed    in blocks of `block`, S = l/block blocks per chunk of l tokens: query block a keeps,
 *            among the blocks <= a, those of its own chunk and in every chunk the `vertsize` blocks
 *            that end at position S - 1 - x vertsize, x = h mod verts
 *
 * with i the query's absolute position. Sparse Transformer, arXiv 1904.10509, section 4, and its
 * code. Local O(N l), strided O(N^2 / 2l) pairs.
 *
 * Deviations: no divisibility limits (the code transposes to l columns for `strided`); `merged` is
 * ours, because a single head replayed with `strided` alone lacks the local context that other
 * heads or layers give it. `fixed` is executed in blocks, the others pair by pair.
 */
#include "core/intmath.h"
#include "core/method.h"
#include "sim/blocks/slicemask.h"

enum pattern { LOCAL, STRIDED, FIXED, MERGED };

struct params {
    int pattern;
    int64_t stride, block, verts, vertsize;
};

static const struct opt options[] = {
    OPT_ENUM(struct params, pattern, "strided", TEXTS("local", "strided", "fixed", "merged"),
             "which pattern every head uses; merged = local or strided"),
    OPT_INT(struct params, stride, "128", 1, 1e9, "tokens", "local window and stride"),
    OPT_INT(struct params, block, "32", 8, 64, "tokens", "fixed: block size, 8, 16, 32 or 64"),
    OPT_INT(struct params, verts, "4", 1, 1e9, "",
            "fixed: number of different summary positions over heads"),
    OPT_INT(struct params, vertsize, "1", 1, 1e9, "blocks", "fixed: summary blocks per chunk"),
    {0},
};

struct state {
    const struct params *params;
    struct attn_in x;
    int64_t turn; /* fixed: x of this head */
};

static int validate(void *params, struct err *err)
{
    const struct params *p = params;
    if (p->pattern != FIXED)
        return 0;
    if (p->block & (p->block - 1))
        return err_set(err, ERR_USAGE, "block=%lld is not 8, 16, 32 or 64", (long long)p->block);
    if (p->stride % p->block)
        return err_set(err, ERR_USAGE, "pattern=fixed: stride=%lld is not a multiple of block=%lld",
                       (long long)p->stride, (long long)p->block);
    if (p->verts * p->vertsize > p->stride / p->block)
        return err_set(err, ERR_USAGE,
                       "pattern=fixed: verts=%lld times vertsize=%lld are more than the %lld "
                       "blocks of a chunk",
                       (long long)p->verts, (long long)p->vertsize,
                       (long long)(p->stride / p->block));
    return 0;
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    const struct params *p = params;
    struct state *s = state;
    if (p->pattern == FIXED && (in->x.nk - in->x.nq) % p->block)
        return method_skip(
            ctx, "pattern=fixed: the %lld keys before the queries are not a multiple of block=%lld",
            (long long)(in->x.nk - in->x.nq), (long long)p->block);
    s->params = p;
    s->x = in->x;
    s->turn = in->head % p->verts;
    ctx->unit_rows = p->pattern == FIXED ? p->block : 1;
    return 0;
}

static int select_strided(const struct state *s, int64_t row0, int64_t row1, struct mask *m,
                          struct err *err)
{
    int64_t l = s->params->stride;
    PASS_ON(mask_lists_init(m, s->x.nq, s->x.nk, row0, row1, true, 1, 1, err));
    m->exec_bq = m->exec_bk = 1;
    for (int64_t i = row0; i < row1; i++) {
        int64_t at = i + s->x.nk - s->x.nq;
        if (at < 0)
            continue;
        int64_t near = s->params->pattern == MERGED ? MAX(0, at - l + 1) : at;
        for (int64_t j = at % l; j < near; j += l)
            PASS_ON(mask_lists_add(m, i - row0, (int32_t)j, err));
        PASS_ON(mask_lists_add_run(m, i - row0, (int32_t)near, (int32_t)(at + 1), err));
    }
    mask_lists_finish(m);
    return 0;
}

static int select_fixed(const struct state *s, int64_t row0, int64_t row1, struct mask *m,
                        struct err *err)
{
    const struct params *p = s->params;
    int64_t per = p->stride / p->block, last = per - s->turn * p->vertsize; /* summary end + 1 */
    PASS_ON(mask_lists_init(m, s->x.nq, s->x.nk, row0, row1, true, p->block, p->block, err));
    for (int64_t g = 0; g < m->ngroups; g++) {
        int64_t a = (row0 + s->x.nk - s->x.nq) / p->block + g;
        for (int64_t b = 0; b <= a; b++) {
            bool summary = b % per < last && b % per >= last - p->vertsize;
            if (summary || b / per == a / per)
                PASS_ON(mask_lists_add(m, g, (int32_t)b, err));
        }
    }
    mask_lists_finish(m);
    return 0;
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    const struct state *s = state;
    switch (s->params->pattern) {
    case LOCAL:
        mask_band(out, s->x.nq, s->x.nk, row0, row1, true,
                  (struct band){.window = s->params->stride, .dense_from = s->x.nq});
        return 0;
    case FIXED:
        return select_fixed(s, row0, row1, out, err);
    default:
        return select_strided(s, row0, row1, out, err);
    }
}

/* Heads of a fixed pattern take turns. */
static struct mask_origin origin(void *state)
{
    const struct state *s = state;
    return (struct mask_origin){.which = s->params->pattern == FIXED ? (uint64_t)s->turn : 0,
                                .any_order = true};
}

/* ---- on a device ---------------------------------------------------------------------------- */

static bool rule(const void *state, struct rule *rule, char why[160])
{
    const struct params *p = ((const struct state *)state)->params;
    if (p->pattern == LOCAL || p->pattern == FIXED)
        return method_refuses(why,
                              "the GPU side has single pairs, pattern=strided and pattern=merged");
    rule->of.strided = (struct strided_rule){p->stride, p->pattern == MERGED ? p->stride : 0};
    return true;
}

const struct method method_sparse_transformer = {
    .name = "sparse-transformer",
    .summary = "local, strided and fixed patterns of the Sparse Transformer",
    .paper = "Child et al., Generating Long Sequences with Sparse Transformers, arXiv 1904.10509",
    .flags = METHOD_ROWS | METHOD_CAUSAL | METHOD_ANY_SCORE,
    .params = {.table = options,
               .size = sizeof(struct params),
               .scopes = PARAM_SCOPES({"block verts vertsize", "pattern=fixed"}),
               .budget = BUDGET_PARAMS(BUDGET_BY(BUDGET_COUNT, "stride", .only = "pattern=local")),
               .validate = validate},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .device = {.rule = rule, .take = pairs_take, .keep_on_device = method_always},
    .reuse = {.always_static = true, .of = origin},
    .tests = {.full = "stride=1",
              .variants = TEXTS("pattern=local:stride=16", "pattern=merged:stride=16",
                                "pattern=fixed:stride=64:block=16"),
              .budgets = METHOD_BUDGETS({"pattern=local:stride=%s", {"1", "20", "150", "400"}})},
};
