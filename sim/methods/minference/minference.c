/*
 * MInference: per head an A-shape, the best columns and distances of the last 64 rows, or the best
 * blocks of pooled queries and keys, with fixed budgets.
 *
 * H. Jiang et al., "MInference 1.0: Accelerating Pre-filling for Long-Context LLMs via Dynamic
 * Sparse Attention", arXiv:2407.02490. Heads with N_q = N_k. Budgets come from parameters, a
 * calibration file, or a table in the published JSON layout. Estimation 2 last_q N d; attention
 * exact on the mask that the 64-row lists of the published kernel realise (mask=realised), or on
 * the pairs that were asked for.
 *
 * profile=official follows the published code, in whose tables vertical-slash is nearly everywhere;
 * profile=paper has the same attention and the paper's search; profile=frontier is a port with one
 * budget for all heads. Deviations: ties go to the lower column and the smaller distance (the
 * code's order is unspecified); a row block that no selected distance reaches gets its columns only
 * (the code reads past its list). Bidirectional heads are not the paper's: a distance stands for
 * both sides of the query, columns and blocks for all queries; the rows that estimate stay the last
 * ones.
 */
#include "core/fileio.h"
#include "core/hash.h"
#include "core/intmath.h"
#include "core/mem.h"
#include "core/method.h"
#include "core/rules.h"
#include "sim/methods/minference/minference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum profile { PROFILE_OFFICIAL, PROFILE_PAPER, PROFILE_FRONTIER };
enum pattern { PATTERN_TABLE, PATTERN_VS, PATTERN_ASHAPE, PATTERN_BLOCK, PATTERN_TRISHAPE };

static const char *const presets[] = {"profile", "default",       "llama31",
                                      "light",   "dense-columns", NULL};

struct params {
    int profile, pattern, preset, mask, emulate, search;
    int64_t v, s, last_q, force_cols, force_dists, min_v, min_s, top; /* INT64_MIN: by profile */
    int64_t init, local, last, start_layer, rows_from;
    double ratio, budget, sparsity;
    char *table, *table_id;
    bool scale_sizes;
};

static const struct opt options[] = {
    OPT_ENUM(struct params, profile, "official", TEXTS("official", "paper", "frontier"),
             "official and paper differ in calibrate only; frontier is a port with one budget for "
             "all heads."),
    OPT_ENUM(struct params, pattern, "table", TEXTS("table", "vs", "ashape", "block", "trishape"),
             "Pattern of the head; table: from the table, else vertical-slash."),
    OPT_STR(struct params, table, NULL, NULL, "Per-head table in the published JSON layout.",
            .flags = OPT_CALIB_FIXED, .unit = "file"),
    OPT_STR(struct params, table_id, NULL, NULL,
            "Content of the table; filled in, and refused where the file has another.",
            .flags = OPT_CALIB_FIXED, .unit = "checksum"),
    OPT_ENUM(struct params, preset, "profile", presets,
             "v and s of a published setting; unset: 1000 and 6096, frontier 512 and 512.",
             .flags = OPT_CALIB_FIXED),
    OPT_INT(struct params, v, NULL, 1, 2147483647, "columns",
            "Vertical-slash columns, forced ones included; unset: the preset's."),
    OPT_INT(struct params, s, NULL, 1, 2147483647, "distances",
            "Vertical-slash distances, forced ones included; unset: the preset's."),
    OPT_NUM(struct params, ratio, "1", 0, 1e6, "",
            "Multiplies the sizes of the table, or v and s, before the clamps.",
            .flags = OPT_MIN_OPEN),
    OPT_NUM(struct params, budget, "0", 0, 1, "share of N",
            "Above 0: v and s are 0.2 and 0.8 of this share of the prompt."),
    OPT_NUM(struct params, sparsity, NULL, 0, 1, "share of dense work",
            "v and s (0.2 and 0.8 of a budget) or top are searched per head so that the kernel "
            "leaves out this share: papers' \"MInference (0.5)\".",
            .flags = OPT_MIN_OPEN | OPT_MAX_OPEN),
    OPT_INT(struct params, last_q, NULL, 1, 2147483647, "rows",
            "Estimation rows, the last of the prompt; unset: 64, frontier 256."),
    OPT_INT(struct params, force_cols, NULL, 0, 2147483647, "columns",
            "First columns always kept; unset: 30, frontier 4."),
    OPT_INT(struct params, force_dists, NULL, 0, 2147483647, "distances",
            "Smallest distances always kept; unset: 100, frontier 64."),
    OPT_INT(struct params, min_v, NULL, 1, 2147483647, "columns",
            "Lower clamp of v; unset: 30, frontier 4."),
    OPT_INT(struct params, min_s, NULL, 1, 2147483647, "distances",
            "Lower clamp of s; unset: 50, frontier 64."),
    OPT_INT(struct params, init, "128", 0, 2147483647, "tokens", "A-shape: first keys kept."),
    OPT_INT(struct params, local, "3968", 1, 2147483647, "tokens", "A-shape: window."),
    OPT_INT(struct params, last, "100", 0, 2147483647, "rows", "Tri-shape: last rows dense."),
    OPT_INT(struct params, top, NULL, 1, 2147483647, "blocks",
            "Block pattern: blocks of a row block; unset: 100, frontier 64."),
    OPT_INT(struct params, start_layer, "-1", -1, 1e6, "layer", "Layers below are dense."),
    OPT_ENUM(struct params, mask, "realised", TEXTS("realised", "requested"),
             "Vertical-slash: what the kernel's lists cover, or the pairs that were asked for."),
    OPT_ENUM(struct params, emulate, "none", TEXTS("none", "bf16"),
             "bf16 reproduces the code's roundings of logits, block means and block scores."),
    OPT_ENUM(struct params, search, "realised", TEXTS("realised", "exact"),
             "calibrate, profile=official: judge the kernels' masks, or the token-exact ones of "
             "the published routine.",
             .flags = OPT_IDENTITY_NOT),
    OPT_BOOL(struct params, scale_sizes, "0", "calibrate: candidate sizes times N/131072.",
             .flags = OPT_IDENTITY_NOT),
    OPT_INT(struct params, rows_from, NULL, 0, 2147483647, "row",
            "calibrate: first row of the mean recall; unset: 2500, below 10000 tokens N/4.",
            .flags = OPT_IDENTITY_NOT),
    {0},
};

/* A table that cannot be read is none for every head. */
static int validate(void *params, struct err *err)
{
    const struct params *p = params;
    const char *other = p->table                         ? "table"
                        : p->v != INT64_MIN              ? "v"
                        : p->s != INT64_MIN              ? "s"
                        : p->top != INT64_MIN            ? "top"
                        : p->preset                      ? "preset"
                        : p->ratio != 1                  ? "ratio"
                        : p->budget > 0                  ? "budget"
                        : p->profile == PROFILE_FRONTIER ? "profile=frontier"
                                                         : NULL;
    if (!isnan(p->sparsity) && other)
        return err_set(err, ERR_USAGE, "sparsity searches the sizes itself: leave %s out", other);
    return p->table ? minf_table_check(p->table, err) : 0;
}

/* Records that were made with another table are others, whatever the file is called. */
static int identify(void *params, struct err *err)
{
    struct params *p = params;
    char id[HASH_TEXT_MAX];
    struct buf file = {0};
    int rc = 0;
    if (!p->table)
        return p->table_id ? err_set(err, ERR_USAGE, "table_id is of a table: give table=FILE") : 0;
    TRY(buf_read_file(&file, p->table, (size_t)64 << 20, err));
    hash_text(hash_bytes(buf_str(&file), file.len), id);
    id[strcspn(id, ":") + 1 + 16] = '\0'; /* half of it, as for masks */
    const char *is = strchr(id, ':') + 1;
    if (p->table_id && strcmp(p->table_id, is) != 0)
        FAIL(err, ERR_INPUT, "%s has the checksum %s, not %s: it has changed", p->table, is,
             p->table_id);
    if (!p->table_id && !(p->table_id = strdup(is)))
        rc = err_set(err, ERR_NOMEM, "%s: out of memory", p->table);
out:
    buf_free(&file);
    return rc;
}

static int64_t or_default(int64_t value, int64_t otherwise)
{
    return value == INT64_MIN ? otherwise : value;
}

/* v and s by preset. */
static const struct {
    int64_t v, s;
} SIZES[] = {{1000, 6096}, {1000, 6096}, {512, 2048}, {100, 800}, {3500, 100}};

/* v and s before ratio and clamps. */
static void sizes(const struct params *p, int64_t n, int64_t *v, int64_t *s)
{
    bool port = p->profile == PROFILE_FRONTIER && p->preset == 0;
    *v = or_default(p->v, port ? 512 : SIZES[p->preset].v);
    *s = or_default(p->s, port ? 512 : SIZES[p->preset].s);
    if (p->budget > 0)
        minf_budget(n, p->budget, v, s);
}

static int64_t clamped(int64_t x, double ratio, int64_t least, int64_t n)
{
    double y = fmin(trunc((double)x * ratio), (double)n);
    return y < (double)least ? (least < n ? least : n) : (int64_t)y;
}

/* Everything but pattern, v and s. */
static struct minf_config base_config(const struct params *p, const struct head_in *in)
{
    bool port = p->profile == PROFILE_FRONTIER;
    enum dtype t = in->src_dtype == DT_BF16 || in->src_dtype == DT_F16 ? in->src_dtype : DT_F32;
    return (struct minf_config){
        .n = in->x.nk,
        .last_q = or_default(p->last_q, port ? 256 : 64),
        .force_cols = or_default(p->force_cols, port ? 4 : 30),
        .force_dists = or_default(p->force_dists, port ? 64 : 100),
        .realised = p->mask == 0,
        .bf16 = p->emulate == 1,
        .p_dtype = port ? t : DT_F32,
        .init = p->init,
        .local = p->local,
        .last = p->last,
        .top = or_default(p->top, port ? 64 : 100),
        .block = port ? 16 : 64,
        .force_blocks = port,
        .both = !in->x.causal,
        .work = isnan(p->sparsity) ? 0 : 1 - p->sparsity,
    };
}

static int64_t min_v(const struct params *p)
{
    return or_default(p->min_v, p->profile == PROFILE_FRONTIER ? 4 : 30);
}

static int64_t min_s(const struct params *p)
{
    return or_default(p->min_s, p->profile == PROFILE_FRONTIER ? 64 : 50);
}

static int resolve(const struct params *p, const struct head_in *in, struct minf_config *c,
                   struct err *err)
{
    static const enum minf_pattern KINDS[] = {MINF_VS, MINF_VS, MINF_ASHAPE, MINF_BLOCK,
                                              MINF_TRISHAPE};
    *c = base_config(p, in);
    c->pattern = in->layer < p->start_layer ? MINF_DENSE : KINDS[p->pattern];
    sizes(p, c->n, &c->v, &c->s);
    if (p->pattern == PATTERN_TABLE && p->table && c->pattern != MINF_DENSE) {
        int rc = minf_table_entry(p->table, in->layer, in->head, &c->pattern, &c->v, &c->s, err);
        if (rc)
            return rc;
        if (c->pattern == MINF_ASHAPE) {
            c->init = clamped(c->v, p->ratio, 0, c->n);
            c->local = clamped(c->s, p->ratio, 1, c->n);
        }
    }
    c->asked_v = clamped(c->v, p->ratio, min_v(p), INT64_MAX);
    c->asked_s = clamped(c->s, p->ratio, min_s(p), INT64_MAX);
    c->v = clamped(c->v, p->ratio, min_v(p), c->n);
    c->s = clamped(c->s, p->ratio, min_s(p), c->n);
    return 0;
}

static int check_shape(struct method_ctx *ctx, const struct head_in *in)
{
    if (in->x.nq != in->x.nk)
        return method_skip(ctx, "whole prompts only: %lld queries, %lld keys", (long long)in->x.nq,
                           (long long)in->x.nk);
    return 0;
}

static void release(void *state)
{
    minf_free(state);
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    struct minf_head *h = state;
    struct minf_config c;
    int rc = check_shape(ctx, in);
    if (rc)
        return rc;
    TRY(resolve(params, in, &c, err));
    TRY(minf_begin(h, &c, in, err));
    ctx->unit_rows = minf_unit(h);
out:
    return rc;
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    return minf_select(state, row0, row1, out, err);
}

static bool rule(const void *state, struct rule *rule, char why[160])
{
    const struct minf_config *c = &((const struct minf_head *)state)->c;
    const char *no = c->pattern != MINF_VS && c->pattern != MINF_BLOCK
                         ? "the pattern looks at no query"
                     : c->force_blocks || c->bf16
                         ? "the GPU side has the profiles official and paper with emulate=none"
                         : NULL;
    if (no)
        snprintf(why, 160, "%s", no);
    else if (c->pattern == MINF_BLOCK)
        rule->of.minf = (struct minf_rule){.blocks = true, .top = c->top};
    else
        rule->of.minf = (struct minf_rule){.rows = MIN(c->last_q, c->n),
                                           .v = c->v,
                                           .s = c->s,
                                           .force_cols = c->force_cols,
                                           .force_dists = c->force_dists,
                                           .realised = c->realised,
                                           .work = c->work};
    return !no;
}

static int take(void *state, const struct device_choice *c, struct err *err)
{
    return minf_take(state, c, err);
}

static bool keep_on_device(const void *state)
{
    const struct minf_head *h = state;
    return h->c.pattern == MINF_VS || h->c.pattern == MINF_BLOCK;
}

static int report_lists(const struct minf_head *h, struct record *r, struct err *err)
{
    int rc = 0;
    double allowed = (double)pairs_allowed(h->c.n, h->c.n, !h->c.both);
    TRY(record_metric(r, "columns", (double)h->lists.n_cols, err));
    TRY(record_metric(r, "slashes", (double)h->lists.n_dists, err));
    TRY(record_metric(r, "density_requested", (double)vslash_requested(&h->lists) / allowed, err));
    if (!h->c.realised)
        goto out;
    double exec = (double)vslash_exec(&h->lists);
    TRY(record_metric(r, "pairs_exec", exec, err));
    TRY(record_metric(r, "density_exec", exec / allowed, err));
    if (h->c.force_blocks) /* what the port prints */
        TRY(record_metric(r, "density_native", exec / allowed, err));
    TRY(record_metric(r, "list_blocks", (double)h->lists.blocks, err));
    TRY(record_metric(r, "list_columns", (double)h->lists.columns, err));
out:
    return rc;
}

/* density_native of the block pattern: 2 * 64 top / N, which ignores the dense early rows; the port
 * counts them. */
static double native_blocks(const struct minf_config *c)
{
    double nb = ceil((double)c->n / (double)c->block), t = fmin((double)c->top, nb);
    if (c->both)
        return t / nb;
    if (c->force_blocks)
        return (t * (t + 1) / 2 + (nb - t) * t) / (nb * (nb + 1) / 2);
    return 2 * (double)c->block * (double)c->top / (double)c->n;
}

static struct mask_origin origin(void *state)
{
    const struct minf_head *h = state;
    bool chosen = h->c.pattern == MINF_VS || h->c.pattern == MINF_BLOCK;
    return (struct mask_origin){.source = chosen ? SOURCE_OWN : SOURCE_STATIC};
}

static bool cost(const void *state, struct select_cost *c)
{
    minf_cost(state, c);
    return true;
}

static bool why_full(const void *state, char why[160])
{
    const struct minf_config *c = &((const struct minf_head *)state)->c;
    long long n = (long long)c->n;
    if (c->pattern == MINF_VS && c->asked_v + c->asked_s >= c->n)
        snprintf(why, 160,
                 "its budget of %lld + %lld columns is not below the sequence's %lld keys",
                 (long long)c->asked_v, (long long)c->asked_s, n);
    else if (c->pattern == MINF_BLOCK && c->top * c->block >= c->n)
        snprintf(why, 160,
                 "its %lld blocks of %lld keys a row are not fewer than the sequence's %lld",
                 (long long)c->top, (long long)c->block, n);
    else if (c->pattern == MINF_DENSE)
        snprintf(why, 160, "layers below start_layer attend to all");
    else if (c->pattern != MINF_VS && c->pattern != MINF_BLOCK && c->init + c->local >= c->n)
        snprintf(
            why, 160,
            "its %lld first keys and window of %lld are not fewer than the sequence's %lld keys",
            (long long)c->init, (long long)c->local, n);
    else
        return false;
    return true;
}

static int report(void *state, struct record *r, struct err *err)
{
    static const char *const NAMES[] = {"dense", "vs", "ashape", "trishape", "block"};
    const struct minf_head *h = state;
    int rc = 0;
    record_note(r, "pattern=%s", NAMES[h->c.pattern]);
    if (h->work > 0)
        rc = record_metric(r, "sparsity_reached", 1 - h->work, err);
    if (rc || h->c.pattern == MINF_VS)
        return rc ? rc : report_lists(h, r, err);
    return h->c.pattern == MINF_BLOCK
               ? record_metric(r, "density_native", native_blocks(&h->c), err)
               : 0;
}

/* ---- calibration ------------------------------------------------------------------------ */

static int check_samples(struct method_ctx *ctx, const struct params *p,
                         const struct head_in *samples, int n, struct err *err)
{
    for (int i = 0; i < n; i++) {
        int rc = check_shape(ctx, &samples[i]);
        if (!rc && !samples[i].x.causal)
            rc = method_skip(ctx, "the search is of causal heads");
        if (rc)
            return rc;
        if (samples[i].x.nk < 4096 && p->rows_from == INT64_MIN)
            return err_set(err, ERR_USAGE,
                           "method minference: a trace of %lld tokens is too short to calibrate on "
                           "(4096); set rows_from to the first row that counts",
                           (long long)samples[i].x.nk);
    }
    return 0;
}

static void write_choice(const struct minf_candidate *c, struct jw *w)
{
    static const char *const NAMES[] = {
        [MINF_VS] = "vs", [MINF_ASHAPE] = "ashape", [MINF_BLOCK] = "block"};
    jw_kstr(w, "pattern", NAMES[c->pattern]);
    if (c->pattern == MINF_BLOCK) {
        jw_kint(w, "top", c->v);
        return;
    }
    jw_kint(w, c->pattern == MINF_VS ? "v" : "init", c->v);
    jw_kint(w, c->pattern == MINF_VS ? "s" : "local", c->s);
}

/* The lists are chosen on the CPU, from a few rows; what costs N^2 is judging them. */
static bool judges(const void *params, char why[160])
{
    (void)params;
    (void)why;
    return true;
}

static int calibrate(struct method_ctx *ctx, const void *params, const struct head_in *samples,
                     int n, struct jw *w, struct err *err)
{
    const struct params *p = params;
    struct minf_candidate cand[MINF_CANDIDATES];
    struct minf_search s = {.kind = p->search == 1 ? MINF_SEARCH_EXACT : MINF_SEARCH_REALISED,
                            .rows_from = or_default(p->rows_from, -1),
                            .min_v = min_v(p),
                            .min_s = min_s(p),
                            .scale_sizes = p->scale_sizes};
    int count, rc;
    if (p->profile == PROFILE_FRONTIER)
        return err_set(err, ERR_USAGE,
                       "method minference: profile=frontier has one budget for all heads and is "
                       "not calibrated; use official or paper");
    if (p->table || p->ratio != 1 || p->budget > 0 || !isnan(p->sparsity))
        return err_set(
            err, ERR_USAGE,
            "method minference: table, ratio, budget and sparsity are not searched: leave them out "
            "here; ratio and budget can be given to the replay, beside calib=");
    if (p->profile == PROFILE_PAPER)
        s.kind = MINF_SEARCH_PAPER;
    if ((rc = check_samples(ctx, p, samples, n, err)) != 0)
        return rc;
    struct minf_config base = base_config(p, &samples[0]);
    int best = minf_search_run(&s, &base, samples, n, cand, &count, err);
    if (best < 0)
        return best;
    write_choice(&cand[best], w);
    return 0;
}

static const struct metric_def metrics[] = {
    OWN_METRIC("columns", "tokens selected as key columns"),
    OWN_METRIC("slashes", "distances selected"),
    OWN_METRIC("density_requested",
               "pairs that columns and distances ask for / |A|; the kernel's lists cover more",
               .better = BETTER_LOWER),
    OWN_METRIC("sparsity_reached",
               "share of dense work that the kernel leaves out, where sparsity= asked for one"),
    OWN_METRIC("list_blocks", "64 x 64 blocks in the kernel's lists, over all row blocks",
               .better = BETTER_LOWER),
    OWN_METRIC("list_columns", "gathered columns in the kernel's lists, over all row blocks",
               .better = BETTER_LOWER),
    {0},
};

const struct method method_minference = {
    .name = "minference",
    .summary = "A-shape, vertical-slash or block pattern per head with fixed budgets",
    .paper = "MInference 1.0, arXiv:2407.02490",
    .flags = METHOD_ROWS | METHOD_CAUSAL | METHOD_BIDIRECTIONAL | METHOD_SINK,
    .params =
        {.table = options,
         .size = sizeof(struct params),
         .scopes = PARAM_SCOPES(
             {"v s preset budget force_cols force_dists min_v min_s mask", "pattern=table|vs"},
             {"init local", "pattern=table|ashape|trishape"}, {"last", "pattern=table|trishape"},
             {"top", "pattern=table|block"}, {"sparsity", "pattern=table|vs|block"}),
         .budget = BUDGET_PARAMS(
             BUDGET_BY(BUDGET_LOG, "ratio", .only = "pattern=table|vs", .lo = 1e-3, .hi = 1e4),
             BUDGET_BY(BUDGET_COUNT, "top", .only = "pattern=block"),
             BUDGET_BY(BUDGET_COUNT, "local", .only = "pattern=ashape|trishape")),
         .validate = validate,
         .identify = identify},
    .state_size = sizeof(struct minf_head),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .release = release,
    .metrics = metrics,
    .cost = cost,
    .why_full = why_full,
    .device = {.rule = rule, .take = take, .keep_on_device = keep_on_device},
    .reuse = {.of = origin},
    .search = {.calibrate = calibrate, .passes = 4, .trials = MINF_CANDIDATES, .on_device = judges},
    .tests = {.full = "v=2147483647:s=2147483647",
              .variants = TEXTS("v=40:s=60:force_dists=10:min_s=10",
                                "v=20:s=30:force_dists=5:min_s=5:mask=requested",
                                "pattern=ashape:init=4:local=30",
                                "pattern=trishape:init=4:local=30:last=20", "pattern=block:top=2",
                                "sparsity=0.5", "sparsity=0.4:pattern=block",
                                "profile=frontier:pattern=block:top=5"),
              .calibrate_short = "rows_from=0"},
};
