/*
 * spargeattn.c - SpargeAttn: block-sparse attention with two online filters (arXiv 2502.18137).
 *
 *   Filter 1, once per head: every block of queries and keys is replaced by its mean. A query block
 *   keeps the key blocks whose coarse probabilities, largest first, sum to at most tau. A block
 *   whose tokens are not similar (s(X) <= theta) is not judged by its mean: it is always kept
 *   (spargeattn_head.c). Filter 2, inside the online softmax: P.V of a tile is skipped when no
 *   row comes within `pv` (log2 units) of its running maximum (tileattn.h).
 *
 * Shapes: q [nq][d], k [nk][d], v [nk][dv] of one query head; N = nq = nk when causal. O(N d) to
 * prepare, 2 n_q n_k d for the coarse map, 4 bq bk d per kept tile.
 *
 * profile=official follows the authors' code, profile=paper the printed formulas where they differ:
 * similarity, zero-block rows, scope and denominator of filter 2. Deviations from the official
 * code in both profiles: the token causal mask is always applied, ties of the coarse map go to the
 * lower block, the pooled map is float unless map_dtype=input, similarity comes from the closed
 * form in double, a row without a visible key is zero unless dead=mean.
 */
#include "core/accel.h"
#include "core/intmath.h"
#include "core/mem.h"
#include "sim/blocks/blockpool.h"
#include "sim/methods/spargeattn/spargeattn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const ariths[] = {"exact", "sage1", "sage2", NULL};
static const char *const orders[] = {"none", "random", "row", "column", "time", "hilbert", NULL};

/* Bounds that the paper prints per model (arXiv 2502.18137, section 4.1). */
static const char *const bounds_of[] = {"none",           "llama3.1", "cogvideox", "mochi",
                                        "open-sora-plan", "flux",     "sd3.5",     NULL};
static const double bounds_values[][2] = {{0, 0},        {0.08, 0.09}, {0.05, 0.06}, {0.05, 0.06},
                                          {0.03, 0.035}, {0.07, 0.08}, {0.07, 0.08}};

static const struct opt options[] = {
    OPT_ENUM(struct sparge_params, profile, "official", TEXTS("official", "paper"),
             "Rule set: the authors' code or the paper's formulas."),
    OPT_ENUM(struct sparge_params, arch, "sm80", TEXTS("sm80", "sm89", "sm90"),
             "Official preset: tile, filter scope, exempt tail, P.V type."),
    OPT_ENUM(struct sparge_params, tile, NULL, TEXTS("128x64", "64x128"),
             "Query x key tile; unset = from arch."),
    OPT_ENUM(struct sparge_params, select, "cdf", TEXTS("cdf", "topk"),
             "Cut of filter 1: by coarse mass or by number of blocks."),
    OPT_NUM(struct sparge_params, theta, NULL, -1, 1, "cosine",
            "A block is self-similar above it, below 0 all are; unset = 0.6 (cdf), -0.1 (topk)."),
    OPT_BOOL(struct sparge_params, judge, "1",
             "Judge self-similarity; 0 = theta is -1, that of a calibration file too."),
    OPT_NUM(struct sparge_params, tau, "0.98", 0, 1, "probability",
            "Coarse mass that filter 1 keeps at most."),
    OPT_NUM(struct sparge_params, topk, "0.5", 0, 1, "share of key blocks",
            "Blocks kept per row with select=topk.", .flags = OPT_MIN_OPEN),
    OPT_NUM(
        struct sparge_params, pv, "50", 0, INFINITY, "log2",
        "Filter 2 skips P.V of tiles that stay this far below the running maximum; off = never.",
        .flags = OPT_OFF),
    OPT_NUM(struct sparge_params, lambda, NULL, -INFINITY, 0, "nat",
            "The paper's form of pv: pv = -lambda log2(e).", .flags = OPT_MAX_OPEN | OPT_MIN_OPEN),
    OPT_ENUM(struct sparge_params, pv_scope, NULL, TEXTS("cta", "warp"),
             "Rows that agree before P.V is skipped; unset = cta (official), warp (paper)."),
    OPT_INT(struct sparge_params, pv_tail, NULL, 0, 2, "tiles",
            "Last kept tiles that filter 2 never skips; unset = from arch (official), 0 (paper)."),
    OPT_BOOL(struct sparge_params, sink, "0", "Always keep key block 0."),
    OPT_BOOL(struct sparge_params, smooth_k, "1",
             "Subtract the token mean of K before pooling, similarity and quantisation."),
    OPT_ENUM(struct sparge_params, map_dtype, "f32", TEXTS("f32", "input"),
             "Grid of pooled vectors, scores and probabilities."),
    OPT_ENUM(struct sparge_params, cdf_dtype, "f32", TEXTS("f32", "f16", "bf16"),
             "Type of the running sum that tau cuts."),
    OPT_ENUM(struct sparge_params, arith, "exact", ariths,
             "Arithmetic on kept tiles: exact, INT8 + fp16 (sage1), INT8 + e4m3 (sage2)."),
    OPT_ENUM(struct sparge_params, quant, "none", TEXTS("none", "int8"),
             "int8 is another way to write arith=sage1."),
    OPT_ENUM(struct sparge_params, v_max, "448", TEXTS("448", "2.25"),
             "Largest quantised |V| with arith=sage2."),
    OPT_ENUM(struct sparge_params, dead, "zero", TEXTS("zero", "mean"),
             "Output of a row that sees no key of its kept tiles."),
    OPT_ENUM(struct sparge_params, permute, "none", orders, "Token order of a video trace."),
    OPT_BOOL(struct sparge_params, dense, "0",
             "Keep every block and skip nothing: set per head by calibration."),
    OPT_ENUM(struct sparge_params, search, "bisect", TEXTS("bisect", "grid"),
             "calibrate: how tau and pv are searched.", .flags = OPT_IDENTITY_NOT),
    OPT_ENUM(struct sparge_params, bin, "sum", TEXTS("sum", "mean"),
             "calibrate: how bins of theta are ranked.", .flags = OPT_IDENTITY_NOT),
    OPT_NUM(struct sparge_params, l1, "0.07", 0, 1, "relative L1",
            "calibrate: error bound while theta and tau are searched.",
            .flags = OPT_IDENTITY_NOT | OPT_MIN_OPEN),
    OPT_NUM(struct sparge_params, l2, "0.08", 0, 1, "relative L1",
            "calibrate: error bound while pv is searched; above l1.",
            .flags = OPT_IDENTITY_NOT | OPT_MIN_OPEN),
    OPT_ENUM(struct sparge_params, bounds, "none", bounds_of,
             "calibrate: l1 and l2 that the paper used for this model.",
             .flags = OPT_IDENTITY_NOT | OPT_CALIB_FIXED),
    OPT_BOOL(struct sparge_params, tune_pv, "1", "calibrate: search pv; otherwise 20.",
             .flags = OPT_IDENTITY_NOT),
    {0},
};

static int validate(void *params, struct err *err)
{
    struct sparge_params *p = params;
    if (!isnan(p->lambda)) {
        if (p->pv != 50)
            return err_set(err, ERR_USAGE,
                           "pv and lambda are two ways to give one number; leave one out");
        p->pv = -p->lambda * 1.4426950408889634;
        p->lambda = NAN;
    }
    if (p->quant) {
        if (p->arith == SPARGE_SAGE2)
            return err_set(err, ERR_USAGE, "quant=int8 means arith=sage1; arith=sage2 is given");
        p->arith = SPARGE_SAGE1;
        p->quant = 0;
    }
    if (p->bounds) {
        if (p->l1 != 0.07 || p->l2 != 0.08)
            return err_set(err, ERR_USAGE, "bounds=%s sets l1 and l2; leave these out",
                           bounds_of[p->bounds]);
        p->l1 = bounds_values[p->bounds][0];
        p->l2 = bounds_values[p->bounds][1];
        p->bounds = 0;
    }
    if (p->l2 <= p->l1)
        return err_set(err, ERR_USAGE, "l2 (%g) must be larger than l1 (%g)", p->l2, p->l1);
    return 0;
}

static const char *token_order(const void *params)
{
    return orders[((const struct sparge_params *)params)->permute];
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    const struct sparge_params *p = params;
    struct sparge *s = state;

    if (in->x.causal && in->x.nq != in->x.nk)
        return method_skip(ctx, "causal needs nq == nk");
    if (in->x.d > BLOCKPOOL_MAX_D)
        return method_skip(ctx, "head dimension %d is above %d", in->x.d, BLOCKPOOL_MAX_D);
    if (p->arith != SPARGE_EXACT && in->x.d > TILE_MAX_D)
        return method_skip(ctx, "head dimension %d is above %d, where integer products are exact",
                           in->x.d, TILE_MAX_D);
    sparge_begin(p, in, s);
    ctx->unit_rows = s->rules.bq;
    return 0;
}

/* Rows of query block i that see no key of the first kept tile (so of none). */
static int64_t dead_rows(const struct sparge *s, int64_t i, const int32_t *col, int64_t n)
{
    int64_t row0 = i * s->rules.bq, rows = s->in.x.nq - row0;
    rows = rows < s->rules.bq ? rows : s->rules.bq;
    if (n == 0)
        return rows;
    int64_t first = s->in.x.causal ? col[0] * s->rules.bk - row0 : 0;
    return first < 0 ? 0 : first < rows ? first : rows;
}

/* The list of query block i. */
static void count_list(struct sparge *s, int64_t i, const int32_t *col, int64_t n)
{
    s->kept += n;
    s->dead_rows += dead_rows(s, i, col, n);
}

static int choose_rows(struct sparge *s, struct mask *out, struct err *err)
{
    int32_t *col = NULL;
    int rc = 0;

    TRY(mem_alloc(&col, s->nk_blocks, sizeof *col, "block list", err));
    for (int64_t g = 0; g < out->ngroups; g++) {
        double mass;
        int64_t i = out->row0 / s->rules.bq + g, n = sparge_list(s, s->row, i, col, &mass);
        TRY(mask_lists_add_all(out, g, col, n, err));
        count_list(s, i, col, n);
        if (mass >= 0) {
            s->cut_mass += mass;
            s->cut_rows++;
        }
    }
    mask_lists_finish(out);
out:
    free(col);
    return rc;
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct sparge *s = state;
    int rc = 0;

    if (!s->ready)
        TRY(sparge_make(s, err));
    if (s->given.ptr) {
        TRY(mask_lists_rows(&s->given, row0, row1, out, err));
        for (int64_t g = 0; g < out->ngroups; g++)
            count_list(s, row0 / s->rules.bq + g, out->col + out->ptr[g],
                       out->ptr[g + 1] - out->ptr[g]);
        return 0;
    }
    TRY(mask_lists_init(out, s->in.x.nq, s->in.x.nk, row0, row1, s->in.x.causal, s->rules.bq,
                        s->rules.bk, err));
    TRY(choose_rows(s, out, err));
out:
    return rc;
}

static bool rule(const void *state, struct rule *rule, char why[160])
{
    const struct sparge *s = state;
    const struct sparge_rules *r = &s->rules;
    int64_t top = (int64_t)((float)r->topk * (float)s->nk_blocks);
    if (r->map_input || r->cdf != DT_F32) {
        snprintf(why, 160, "the GPU side has map_dtype=f32 and cdf_dtype=f32");
        return false;
    }
    rule->of.sparge = (struct sparge_rule){.bq = r->bq,
                                           .bk = r->bk,
                                           .paper = r->paper,
                                           .by_count = r->topk_cut,
                                           .sink = r->sink,
                                           .smooth_k = r->smooth_k,
                                           .v_max = r->v_max,
                                           .dense = r->dense,
                                           .theta = r->theta,
                                           .tau = r->tau,
                                           .top = MAX(1, MIN(top, s->nk_blocks))};
    return true;
}

static int take(void *state, const struct device_choice *c, struct err *err)
{
    return sparge_take(state, c, err);
}

static int attend(void *state, const struct mask *m, double *out, double *lse, double *tiles_pv,
                  struct err *err)
{
    struct sparge *s = state;
    *tiles_pv = 0;
    int rc = tile_attn_rows(&s->tile, m, out, lse, tiles_pv, err);
    s->tiles_pv += *tiles_pv;
    return rc;
}

bool sparge_filter(const struct sparge_rules *r, struct accel_filter *f, char why[160])
{
    if (r->arith != SPARGE_EXACT) {
        snprintf(why, 160, "no CUDA kernel for arith=%s (8-bit operands); arith=exact has one",
                 ariths[r->arith]);
        return false;
    }
    if (r->dead_mean) {
        snprintf(why, 160, "no CUDA kernel for dead=mean; dead=zero has one");
        return false;
    }
    *f = (struct accel_filter){r->bq, r->bk, r->pv, r->scope, r->tail, r->paper};
    return true;
}

static bool is_softmax(const struct sparge_rules *r)
{
    return r->arith == SPARGE_EXACT && r->pv == INFINITY && !r->dead_mean;
}

static void how(const void *state, struct arithmetic *a, char why[160])
{
    const struct sparge_rules *r = &((const struct sparge *)state)->rules;
    bool filter = sparge_filter(r, &a->filter, why);
    a->kind = is_softmax(r) ? ARITH_SOFTMAX : filter ? ARITH_FILTER : ARITH_CPU;
}

static bool judges(const void *params, char why[160])
{
    struct sparge_rules r;
    struct accel_filter f;
    sparge_resolve(params, 64, &r); /* the filter's kernel is looked for with the real one */
    return sparge_filter(&r, &f, why);
}

static int done(void *state, double tiles_pv, const double *lse, struct err *err)
{
    ((struct sparge *)state)->tiles_pv += tiles_pv;
    return 0;
}

static bool cost(const void *state, struct select_cost *c)
{
    sparge_cost(state, c);
    return true;
}

static double share_similar(const struct sparge_blocks *b)
{
    int64_t n = 0;
    for (int64_t i = 0; i < b->n; i++)
        n += b->similar[i];
    return (double)n / (double)b->n;
}

static bool why_full(const void *state, char why[160])
{
    const struct sparge *s = state;
    if (s->rules.dense)
        snprintf(why, 160, "dense=1");
    else if (share_similar(&s->qb) == 0)
        snprintf(why, 160,
                 "no block of queries is self-similar enough to be judged by its mean, theta %g - "
                 "theta=-1 judges all",
                 s->rules.theta);
    else if (share_similar(&s->kb) == 0)
        snprintf(why, 160,
                 "no block of keys is self-similar enough to be left out, theta %g - theta=-1 "
                 "judges all",
                 s->rules.theta);
    else
        return false;
    return true;
}

static int report(void *state, struct record *r, struct err *err)
{
    const struct sparge *s = state;
    bool causal = s->in.x.causal;
    double kept = (double)s->kept, pv = is_softmax(&s->rules) ? kept : s->tiles_pv;
    double tiles_all = (double)sparge_tiles(s->nq_blocks, s->nk_blocks, &s->rules, causal);
    double native = s->rules.paper
                        ? (kept + pv) / (2 * tiles_all)
                        : kept / (double)sparge_native_tiles(s->nq_blocks, s->nk_blocks, causal);
    int rc = 0;

    TRY(record_metric(r, "density_native", native, err));
    TRY(record_metric(r, "dead_rows", (double)s->dead_rows, err));
    TRY(record_metric(r, "judged_q", share_similar(&s->qb), err));
    TRY(record_metric(r, "judged_k", share_similar(&s->kb), err));
    if (s->cut_rows)
        TRY(record_metric(r, "coarse_mass", s->cut_mass / (double)s->cut_rows, err));
    record_note(r, "tile=%lldx%lld", (long long)s->rules.bq, (long long)s->rules.bk);
    record_note(r, "cdf_dtype=%s", dtype_name(s->rules.cdf));
    if (s->tile.out_dtype != DT_NONE)
        record_note(r, "out_dtype=%s", dtype_name(s->tile.out_dtype));
out:
    return rc;
}

static void release(void *state)
{
    sparge_clear(state);
}

static const struct metric_def metrics[] = {
    OWN_METRIC("dead_rows", "rows that see no key of their kept tiles", .better = BETTER_LOWER),
    OWN_METRIC("judged_q", "query blocks similar enough to be judged by their mean / blocks",
               .axis = AXIS_SHARE),
    OWN_METRIC("judged_k", "key blocks similar enough to be judged by their mean / blocks",
               .axis = AXIS_SHARE),
    OWN_METRIC("coarse_mass",
               "coarse probability of the kept blocks, mean over judged query blocks",
               .axis = AXIS_SHARE, .noise = NOISE_ROUNDING),
    {0},
};

/* The printed rule keeps blocks while their sum stays below a bound: a first block above it leaves
 * none. */
static bool may_be_empty(const void *params)
{
    const struct sparge_params *p = params;
    return p->profile == SPARGE_PAPER;
}

const struct method method_spargeattn = {
    .name = "spargeattn",
    .alias = "sparge",
    .summary = "block means choose key blocks, an online filter skips P.V products",
    .paper = "Zhang et al., SpargeAttention, arXiv 2502.18137",
    .flags = METHOD_ROWS | METHOD_CAUSAL | METHOD_BIDIRECTIONAL | METHOD_RANDOM | METHOD_SINK,
    .params = {.table = options,
               .size = sizeof(struct sparge_params),
               .scopes = PARAM_SCOPES({"tau", "select=cdf"}, {"topk", "select=topk"}),
               .budget = BUDGET_PARAMS(BUDGET_BY(BUDGET_COMPLEMENT, "tau", .only = "select=cdf"),
                                       BUDGET_BY(BUDGET_LIN, "topk", .only = "select=topk")),
               .validate = validate,
               .order = token_order,
               .may_be_empty = may_be_empty},
    .state_size = sizeof(struct sparge),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .release = release,
    .metrics = metrics,
    .cost = cost,
    .why_full = why_full,
    .device = {.rule = rule, .take = take, .keep_on_device = method_always},
    .arith = {.kind = ARITH_FILTER, .how = how, .attend = attend, .done = done},
    .search = {.calibrate = sparge_calibrate, .passes = 8, .trials = 120, .on_device = judges},
    .tests = {.full = "theta=1:pv=off",
              .variants =
                  TEXTS("tau=0.6", "profile=paper:tau=0.7:lambda=-4", "select=topk:topk=0.3:sink=1",
                        "arch=sm90:tau=0.8:pv=10:arith=sage2", "tau=0.5:permute=time"),
              .budgets = METHOD_BUDGETS({"pv=off:tau=%s", {"0.3", "0.6", "0.9", "1"}},
                                        {"pv=off:select=topk:topk=%s", {"0.2", "0.5", "1"}})},
};
