/*
 * qk_sparse.c - whole queries and keys are dropped; attention of the rest is exact.
 *
 *   random: keep query i with probability 1 - drop_q and key j with probability 1 - drop
 *   knorm, vnorm, mass: keep all queries and the ceil((1 - drop) N_k) keys with the largest |k|,
 * |v| or column mass sum_i p_ij; keep (i, j) iff both are kept and j <= i
 *
 * Faster Causal Attention Over Large Sequences Through Sparse Flash Attention, arXiv 2306.01160,
 * section 3, and its code (epfml/dynamic-sparse-flash-attention). O(N); mass needs the whole exact
 * map and is an oracle.
 *
 * The kernel compacts the kept tokens in time order and multiplies tiles of 128 x 128 of the
 * compact arrays up to the causal limit: density_exec counts these tiles.
 *
 * Deviations: the code draws queries and keys per head; here the query heads of a group share the
 * keys that are kept, as they share the keys. The other three selectors are not in the paper. The
 * code attends with unit keys (normalize_k=1).
 */
#include "core/intmath.h"
#include "core/mem.h"
#include "core/method.h"
#include "sim/blocks/callrng.h"
#include "sim/blocks/exact.h"
#include "sim/blocks/prefix.h"
#include "sim/blocks/selectcost.h"
#include "sim/blocks/slicemask.h"

#include <math.h>
#include <stdlib.h>

#define TILE 128
#define SALT_Q 0x716b2d71ull /* keep its numbers apart from those of other methods */
#define SALT_K 0x716b2d6bull

enum selector { RANDOM, KNORM, VNORM, MASS };

struct params {
    double drop, drop_q; /* drop_q: NAN = by selector */
    int select;
    bool normalize_k;
};

static const struct opt options[] = {
    OPT_NUM(struct params, drop, "0.5", 0, 1, "share", "Dropped keys.", .flags = OPT_MAX_OPEN),
    OPT_ENUM(struct params, select, "random", TEXTS("random", "knorm", "vnorm", "mass"),
             "Which keys stay: random, or the largest |k|, |v| or column mass of the exact map."),
    OPT_NUM(struct params, drop_q, NULL, 0, 1, "share",
            "Dropped queries, at random; unset: as keys with select=random, else none.",
            .flags = OPT_MAX_OPEN),
    OPT_BOOL(struct params, normalize_k, "0",
             "Attend with keys of unit length, as the code does; the choice is that of the trace's "
             "keys."),
    {0},
};

static const struct metric_def metrics[] = {
    OWN_METRIC("queries_kept", "queries that are not dropped"),
    OWN_METRIC("keys_kept", "keys that are not dropped"),
    {0},
};

struct state {
    const struct params *params;
    const struct head_in *in;
    struct attn_in x;
    bool *keep_q;  /* [nq] */
    int32_t *keys; /* [n_keys] that are kept, ascending */
    int64_t n_queries, n_keys;
    struct unit_keys unit;   /* with normalize_k */
    struct slice_mask given; /* the mask of a device that chose; bits NULL: none did */
    double drop_q;
    uint64_t seed, stream_q, stream_k;
};

static void release(void *state)
{
    struct state *s = state;
    free(s->keep_q);
    free(s->keys);
    unit_keys_free(&s->unit);
    slice_mask_free(&s->given);
}

/* ---- the choice ----------------------------------------------------------------------------- */

static double norm(const float *x, int d)
{
    double sum = 0;
    for (int c = 0; c < d; c++)
        sum += (double)x[c] * x[c];
    return sum;
}

static int rank_keys(const struct params *p, const struct head_in *in, double *rank,
                     struct err *err)
{
    const struct attn_in *x = &in->x;
    if (p->select == MASS)
        return column_mass(in, 0, x->nq, rank, err);
    for (int64_t j = 0; j < x->nk; j++)
        rank[j] = p->select == KNORM ? norm(x->k + j * x->d, x->d) : norm(x->v + j * x->dv, x->dv);
    return 0;
}

static int best_keys(struct state *s, const struct params *p, const struct head_in *in,
                     struct err *err)
{
    OWN(prefix_work_free_at) struct prefix_work *work = NULL;
    struct prefix top;
    OWN(free_at) double *rank = NULL;
    int64_t nk = in->x.nk, count = (int64_t)ceil((1 - p->drop) * (double)nk);
    PASS_ON(mem_zalloc(&rank, nk, sizeof *rank, "ranks of keys", err));
    PASS_ON(rank_keys(p, in, rank, err));
    PASS_ON(prefix_work_new(&work, err));
    PASS_ON(prefix_topk(work, rank, nk, count, &top, err));
    for (int64_t j = 0; j < nk; j++)
        if (prefix_has(&top, rank[j], j))
            s->keys[s->n_keys++] = (int32_t)j;
    return 0;
}

static void random_keys(struct state *s, const struct params *p, const struct head_in *in,
                        uint64_t seed)
{
    uint64_t stream = head_stream(SALT_K, in, in->kv_head);
    s->stream_k = stream;
    for (int64_t j = 0; j < in->x.nk; j++)
        if (rng_uniform(seed, stream, (uint64_t)j) >= p->drop)
            s->keys[s->n_keys++] = (int32_t)j;
}

static void choose_queries(struct state *s, const struct params *p, const struct head_in *in,
                           uint64_t seed)
{
    double drop = !isnan(p->drop_q) ? p->drop_q : p->select == RANDOM ? p->drop : 0;
    uint64_t stream = head_stream(SALT_Q, in, in->head);
    s->drop_q = drop;
    s->stream_q = stream;
    for (int64_t i = 0; i < in->x.nq; i++) {
        s->keep_q[i] = rng_uniform(seed, stream, (uint64_t)i) >= drop;
        s->n_queries += s->keep_q[i];
    }
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    const struct params *p = params;
    struct state *s = state;
    PASS_ON(p->select == MASS ? method_all_rows(ctx, in, "select=mass") : 0);
    s->params = p;
    s->in = in;
    s->x = in->x;
    s->seed = ctx->seed;
    PASS_ON(mem_alloc(&s->keep_q, in->x.nq, sizeof *s->keep_q, "kept queries", err));
    PASS_ON(mem_alloc(&s->keys, in->x.nk, sizeof *s->keys, "kept keys", err));
    choose_queries(s, p, in, ctx->seed);
    if (p->select == RANDOM)
        random_keys(s, p, in, ctx->seed);
    else
        PASS_ON(best_keys(s, p, in, err));
    if (p->normalize_k)
        return unit_keys_make(&s->unit, in, err);
    return 0;
}

/* ---- the mask ------------------------------------------------------------------------------- */

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    const struct state *s = state;
    if (s->given.bits)
        return slice_mask_lists(&s->given, row0, row1, out, err);
    PASS_ON(mask_lists_init(out, s->x.nq, s->x.nk, row0, row1, s->x.causal, 1, 1, err));
    out->exec = EXEC_NONE; /* report counts the tiles of the compact arrays */
    for (int64_t i = row0; i < row1; i++) {
        int64_t limit = s->keep_q[i] ? attn_limit(&s->x, i) : 0;
        PASS_ON(
            mask_lists_add_all(out, i - row0, s->keys, list_below(s->keys, s->n_keys, limit), err));
    }
    mask_lists_finish(out);
    return 0;
}

/* ---- on a device ---------------------------------------------------------------------------- */

static bool rule(const void *state, struct rule *rule, char why[160])
{
    const struct state *s = state;
    if (s->params->select != RANDOM)
        return method_refuses(why, "the GPU side has select=random");
    rule->of.qk = (struct qk_rule){s->params->drop, s->drop_q, s->seed, s->stream_q, s->stream_k};
    return true;
}

static int take(void *state, const struct device_choice *c, struct err *err)
{
    return slice_mask_take(&((struct state *)state)->given, c, 1, 1, 0, err);
}

static void how(const void *state, struct arithmetic *a, char why[160])
{
    a->kind = ((const struct state *)state)->unit.k ? ARITH_CPU : ARITH_SOFTMAX;
}

static int attend(void *state, const struct mask *m, double *out, double *lse, double *tiles_pv,
                  struct err *err)
{
    const struct state *s = state;
    return attn_rows(&s->unit.ops, m, out, lse, err);
}

/* Tiles of the compact arrays: those of a tile of queries that its last query sees a key of. */
static double tiles(const struct state *s)
{
    int64_t count = 0, queries = 0, seen = 0;
    for (int64_t i = 0; i < s->x.nq; i++) {
        if (!s->keep_q[i])
            continue;
        int64_t limit = attn_limit(&s->x, i);
        while (seen < s->n_keys && s->keys[seen] < limit)
            seen++;
        queries++;
        if (queries % TILE == 0 || queries == s->n_queries)
            count += ceil_div(seen, TILE);
    }
    return (double)count;
}

static int report(void *state, struct record *r, struct err *err)
{
    const struct state *s = state;
    double exec = tiles(s) * TILE * TILE;
    return RECORD_ALL(r, err, {"pairs_exec", exec},
                      {"density_exec", exec / record_get(r, "pairs_allowed")},
                      {"queries_kept", s->n_queries}, {"keys_kept", s->n_keys});
}

/* A random choice reads no data. */
static bool cost(const void *state, struct select_cost *c)
{
    const struct state *s = state;
    int select = s->params->select, d = select == VNORM ? s->x.dv : s->x.d;
    double nq = (double)s->x.nq, nk = (double)s->x.nk;
    if (select == RANDOM)
        return true;
    if (select == MASS)
        cost_exact_rows(c, s->in, nq, cost_pairs(&s->x, 0, s->x.nq, 1), 1);
    else
        cost_products(c, nk, d);
    cost_rows(c, s->in, nk, d);
    cost_kept(c, nk);
    return true;
}

const struct method method_qk_sparse = {
    .name = "qk-sparse",
    .summary = "whole queries and keys dropped, at random or by norm or mass",
    .paper = "Pagliardini et al., Faster Causal Attention Over Large Sequences Through Sparse "
             "Flash Attention, arXiv 2306.01160",
    .flags = METHOD_ROWS | METHOD_CAUSAL | METHOD_BIDIRECTIONAL | METHOD_RANDOM,
    .params = {.table = options,
               .size = sizeof(struct params),
               .budget = BUDGET_PARAMS(BUDGET_BY(BUDGET_LIN, "drop", .falls = true)),
               /* A dropped query, or one that sees dropped keys only. */
               .may_be_empty = method_always},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .release = release,
    .metrics = metrics,
    .cost = cost,
    .device = {.rule = rule, .take = take, .keep_on_device = method_always},
    .arith = {.kind = ARITH_CPU, .how = how, .attend = attend},
    .tests = {.full = "drop=0",
              .variants = TEXTS("drop=0.3:drop_q=0", "select=knorm:drop=0.7",
                                "select=vnorm:drop_q=0.2", "select=mass", "normalize_k=1"),
              .budgets = METHOD_BUDGETS({"select=knorm:drop=%s", {"0.9", "0.5", "0.1", "0"}},
                                        {"select=mass:drop=%s", {"0.9", "0.5", "0.1", "0"}},
                                        {"drop_q=0:drop=%s", {"0.9", "0.5", "0.1", "0"}})},
};
