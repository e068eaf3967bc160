/*
 * SampleAttention: key columns and slashes chosen from exact softmax rows of a few sampled slices.
 *
 * Q. Zhu et al., "SampleAttention: Near-Lossless Acceleration of Long Context LLM Inference with
 * Adaptive Structured Sparse Attention", arXiv:2406.15486 (v3); profile v2 is the algorithm of
 * arXiv v1 and v2. No official code is public.
 *
 * Per head: for `chunks` slices of B queries, sum the exact rows per key block and per bin of
 * distances, keep in each list the fewest bins that reach alpha_c and alpha_s of its mass, extend
 * the bins to block diagonals, and keep the union for the rows that the slice stands for. Attention
 * inside the B x B block mask is exact. Selection O(chunks B N d), mask O(nb^2).
 *
 * Choices where the paper is silent: inner slice ends are rounded up to block boundaries; scores
 * are sums; distances are binned by token; a bin covers two diagonals (extend=cover2); lists apply
 * per chunk; the diagonal block is kept (profile=strict leaves it out).
 */
#include "core/accel.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/method.h"
#include "sim/blocks/selectcost.h"
#include "sim/blocks/slicemask.h"
#include "sim/methods/sampleattention/sampleattention.h"
#include "sim/blocks/blockgrid.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum profile { PROFILE_PAPER, PROFILE_STRICT, PROFILE_SAFE, PROFILE_V2 };
enum target { TARGET_ACC, TARGET_SPD };

static const char *const presets[] = {"none",          "glm4-acc",      "glm4-spd",
                                      "internlm2-acc", "internlm2-spd", NULL};

static const char *const switch_names[] = {"profile", "0", "1", NULL};

struct params {
    int profile, preset, extend, merge, reduce, block, keep_diag, keep_sink;
    double alpha_c, alpha_s; /* NAN: from the preset, else 0.95 */
    int64_t chunks;          /* INT64_MIN: from the preset, else 1 */
    double alpha, window, rows;
    int64_t bottom;
    int target;
    double target_p1, target_err, target_mean;
};

static const struct opt options[] = {
    OPT_ENUM(struct params, profile, "paper", TEXTS("paper", "strict", "safe", "v2"),
             "paper forces the diagonal block, strict no block, safe diagonal and sink; v2 is the "
             "earlier algorithm (window and token columns)."),
    OPT_NUM(struct params, alpha_c, NULL, 0, 1, "mass share",
            "Column threshold; unset: the preset's, else 0.95."),
    OPT_NUM(struct params, alpha_s, NULL, 0, 1, "mass share",
            "Slash threshold; unset: the preset's, else 0.95."),
    OPT_INT(struct params, chunks, NULL, 1, SAMPLE_MAX_CHUNKS, "slices",
            "Sampled slices; unset: the preset's, else 1."),
    OPT_ENUM(struct params, block, "128", TEXTS("64", "128"), "Slice height and block size.",
             .unit = "tokens"),
    OPT_ENUM(
        struct params, extend, "cover2", TEXTS("cover2", "cover1", "centred"),
        "Block diagonals of a slash bin: both it touches, the lower one, or one for centred bins."),
    OPT_ENUM(struct params, merge, "perchunk", TEXTS("perchunk", "union", "mean"),
             "Rows a slice's lists govern: its chunk, all (united), or all (scores averaged)."),
    OPT_ENUM(struct params, reduce, "sum", TEXTS("sum", "max"),
             "Block reduction; max is an ablation."),
    OPT_ENUM(struct params, keep_diag, "profile", switch_names,
             "Always keep the diagonal block; unset: 1, with profile=strict 0."),
    OPT_ENUM(struct params, keep_sink, "profile", switch_names,
             "Always keep the first key block; unset: 0, with profile=safe 1."),
    OPT_ENUM(struct params, preset, "none", presets,
             "alpha_c, alpha_s and chunks by prompt length, from table 6 of the paper.",
             .flags = OPT_CALIB_FIXED),
    OPT_NUM(struct params, alpha, "0.95", 0, 1, "mass share", "profile=v2: column threshold."),
    OPT_NUM(struct params, window, "0.08", 0, 1, "share of N", "profile=v2: local window."),
    OPT_NUM(struct params, rows, "0.05", 0, 1, "share of N", "profile=v2: sampled rows.",
            .flags = OPT_MIN_OPEN),
    OPT_INT(struct params, bottom, "128", 0, 2147483647, "tokens",
            "profile=v2: last rows kept dense."),
    OPT_ENUM(struct params, target, "acc", TEXTS("acc", "spd"),
             "calibrate: acc meets target_p1 and target_err, spd meets target_mean.",
             .flags = OPT_IDENTITY_NOT),
    OPT_NUM(struct params, target_p1, "0.90", 0, 1, "mass share",
            "calibrate: least 1st percentile of the rows' recall.", .flags = OPT_IDENTITY_NOT),
    OPT_NUM(struct params, target_err, "0.05", 0, INFINITY, "",
            "calibrate: largest relative L2 error of the output.", .flags = OPT_IDENTITY_NOT),
    OPT_NUM(struct params, target_mean, "0.90", 0, 1, "mass share", "calibrate: least mean recall.",
            .flags = OPT_IDENTITY_NOT),
    {0},
};

/* Settings of table 6 for n keys: rows n < 16K, < 48K, < 80K, < 112K, >= 112K (K = 1024). */
struct setting {
    double alpha_c, alpha_s;
    int chunks;
};
static struct setting setting_of(int preset, int64_t n)
{
    static const int64_t LIMITS[] = {16 * 1024, 48 * 1024, 80 * 1024, 112 * 1024};
    static const struct setting
        NONE = {.95, .95, 1},
        TUNED[4][5] = {
            {{.98, .90, 1}, {.95, .95, 1}, {.95, .95, 1}, {.90, .90, 2}, {.95, .85, 1}},
            {{.85, .85, 1}, {.85, .80, 1}, {.80, .80, 1}, {.80, .80, 1}, {.80, .80, 1}},
            {{.98, .95, 1}, {.95, .90, 1}, {.92, .92, 1}, {.92, .90, 2}, {.95, .90, 2}},
            {{.85, .85, 1}, {.80, .80, 1}, {.80, .80, 1}, {.80, .80, 1}, {.80, .80, 1}},
        };
    int row = 0;
    while (row < 4 && n >= LIMITS[row])
        row++;
    return preset == 0 ? NONE : TUNED[preset - 1][row];
}

static struct sample_config resolve(const struct params *p, int64_t nq, int64_t nk)
{
    struct setting t = setting_of(p->preset, nk);
    return (struct sample_config){
        .nq = nq,
        .nk = nk,
        .block = p->block == 0 ? 64 : 128,
        .chunks = p->chunks == INT64_MIN ? t.chunks : (int)p->chunks,
        .alpha_c = isnan(p->alpha_c) ? t.alpha_c : p->alpha_c,
        .alpha_s = isnan(p->alpha_s) ? t.alpha_s : p->alpha_s,
        .extend = (enum sample_extend)p->extend,
        .merge = (enum sample_merge)p->merge,
        .reduce = (enum sample_reduce)p->reduce,
        .keep_diag = p->keep_diag == 0 ? p->profile != PROFILE_STRICT : p->keep_diag == 2,
        .keep_sink = p->keep_sink == 0 ? p->profile == PROFILE_SAFE : p->keep_sink == 2,
    };
}

enum kind { DENSE, PLAN, TOKENS };

struct state {
    enum kind kind;
    const struct head_in *in;
    struct sample_config c;
    bool chosen; /* by the first select, or taken: then the mask is in `given` or `kept` */
    struct sample_plan plan; /* PLAN */
    struct sample_v2 v2;     /* TOKENS */
    double alpha;            /* of v2 */
    int64_t forced;
    struct mask given;      /* PLAN */
    struct slice_mask kept; /* TOKENS */
};

static void release(void *state)
{
    struct state *s = state;
    sample_plan_free(&s->plan);
    sample_v2_free(&s->v2);
    mask_free(&s->given);
    slice_mask_free(&s->kept);
}

/* ---- choice --------------------------------------------------------------------------------- */

static int choose(struct state *s, struct err *err)
{
    struct sample_scores scores = {0};
    int rc = 0;
    s->chosen = true;
    if (s->kind == TOKENS)
        return sample_v2_choose(&s->v2, s->alpha, s->in->exact, err);
    TRY(sample_scores_init(&scores, &s->c, err));
    TRY(sample_scores_run(&scores, &s->c, s->in->exact, err));
    TRY(sample_plan_build(&s->plan, &s->c, &scores, err));
out:
    sample_scores_free(&scores);
    return rc;
}

static bool rule(const void *state, struct rule *rule, char why[160])
{
    const struct state *s = state;
    const struct sample_config *c = &s->c;
    if (s->kind == PLAN && c->reduce == SAMPLE_MAX) {
        snprintf(why, 160, "reduce=max has no GPU side");
        return false;
    }
    if (s->kind == TOKENS)
        rule->of.sample = (struct sample_rule){.tokens = true,
                                               .alpha = s->alpha,
                                               .window = s->v2.window,
                                               .step = s->v2.step,
                                               .bottom = s->v2.bottom};
    else
        rule->of.sample = (struct sample_rule){.all = s->kind == DENSE,
                                               .block = c->block,
                                               .chunks = c->chunks,
                                               .alpha_c = c->alpha_c,
                                               .alpha_s = c->alpha_s,
                                               .extend = c->extend,
                                               .merge = c->merge,
                                               .keep_diag = c->keep_diag,
                                               .keep_sink = c->keep_sink};
    return true;
}

static int take_columns(struct state *s, const struct accel_own *own, struct err *err)
{
    int32_t n;
    int rc = accel_own_check(own, sizeof n, err);
    if (rc)
        return rc;
    memcpy(&n, own->data, sizeof n);
    s->v2.ncols = n;
    s->chosen = true;
    return 0;
}

/* The lists, and the scores from which the device made them. */
static int take_plan(struct state *s, const struct mask *m, const struct accel_own *own,
                     struct err *err)
{
    int64_t n = s->c.chunks * sample_blocks(&s->c);
    struct sample_scores scores = {own->data, (double *)own->data + n};
    int rc = 0;
    TRY(accel_own_check(own, 2 * n * (int64_t)sizeof(double), err));
    TRY(sample_plan_build(&s->plan, &s->c, &scores, err));
    TRY(mask_lists_rows(m, m->row0, m->row1, &s->given, err));
    s->chosen = true;
out:
    return rc;
}

static int take(void *state, const struct device_choice *c, struct err *err)
{
    struct state *s = state;
    if (s->kind == DENSE)
        return c->lists->form == MASK_FULL ? 0
                                           : err_set(err, ERR_RUN, "a choice where all is kept");
    if (s->kind == PLAN)
        return take_plan(s, c->lists, c->own, err);
    int rc = take_columns(s, c->own, err);
    return rc ? rc : slice_mask_take(&s->kept, c, 1, 1, 0, err);
}

static bool keep_on_device(const void *state)
{
    return ((const struct state *)state)->kind == TOKENS;
}

/* The rows of taken lists. */
static int given_rows(struct state *s, int64_t row0, int64_t row1, struct mask *out,
                      struct err *err)
{
    int64_t shift = s->c.nk - s->c.nq;
    int rc = mask_lists_rows(&s->given, row0, row1, out, err);
    for (int64_t g = 0; !rc && g < out->ngroups; g++) {
        int64_t i = (row0 + g * out->bq + shift) / s->c.block;
        int l = sample_plan_list(&s->plan, i);
        for (int64_t e = out->ptr[g]; e < out->ptr[g + 1]; e++)
            s->forced += sample_plan_keeps(&s->plan, l, i, out->col[e]) == SAMPLE_BY_FORCE;
    }
    return rc;
}

/* ---- heads ---------------------------------------------------------------------------------- */

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    const struct params *p = params;
    struct state *s = state;
    int rc = 0;
    if (!in->x.causal)
        return method_skip(ctx, "causal only");
    if (in->x.nq > in->x.nk)
        return method_skip(ctx, "more queries (%lld) than keys (%lld)", (long long)in->x.nq,
                           (long long)in->x.nk);
    s->c = resolve(p, in->x.nq, in->x.nk);
    s->c.reach = in->x.reach;
    if (p->profile == PROFILE_V2 || s->c.chunks > 1)
        rc = method_all_rows(ctx, in, p->profile == PROFILE_V2 ? "profile=v2" : "chunks > 1");
    if (rc)
        goto out;
    s->in = in;
    s->alpha = p->alpha;
    s->kind = p->profile == PROFILE_V2 ? TOKENS : sample_applies(&s->c) ? PLAN : DENSE;
    if (s->kind == TOKENS)
        sample_v2_init(&s->v2, &in->x, p->window, p->rows, p->bottom);
    ctx->unit_rows = s->kind == PLAN ? sample_unit(&s->c) : s->kind == DENSE ? s->c.block : 1;
out:
    return rc;
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct state *s = state;
    int rc = s->chosen || s->kind == DENSE ? 0 : choose(s, err);
    if (rc)
        return rc;
    if (s->kept.bits)
        return slice_mask_lists(&s->kept, row0, row1, out, err);
    if (s->given.ptr)
        return given_rows(s, row0, row1, out, err);
    if (s->kind == TOKENS)
        return sample_v2_mask(&s->v2, row0, row1, out, err);
    if (s->kind == PLAN)
        return sample_plan_mask(&s->plan, row0, row1, out, &s->forced, err);
    mask_full(out, s->c.nq, s->c.nk, row0, row1, true);
    out->bq = out->bk = out->exec_bq = out->exec_bk = s->c.block;
    return 0;
}

static bool why_full(const void *state, char why[160])
{
    const struct state *s = state;
    snprintf(why, 160, "%lld queries are too few for %d sampled slices of %lld rows",
             (long long)s->c.nq, s->c.chunks, (long long)s->c.block);
    return s->kind == DENSE;
}

/* List lengths of the slices as one note "kc=5,ks=5 4,3". */
static void note_lists(const struct sample_plan *p, struct record *r)
{
    char text[SAMPLE_MAX_CHUNKS * 24] = "";
    int len = 0;
    for (int i = 0; i < p->slices; i++)
        len += snprintf(text + len, sizeof text - (size_t)len, "%s%lld,%lld", i ? " " : "",
                        (long long)p->kc[i], (long long)p->ks[i]);
    record_note(r, "kc,ks=%s", text);
}

/* density_native: kept pairs over all nq * nk pairs, the paper's denominator, which is that of
 * density_rect. */
static int report(void *state, struct record *r, struct err *err)
{
    int rc = 0;
    struct state *s = state;
    double kc = 0, ks = 0;
    TRY(record_metric(r, "density_native", record_get(r, "density_rect"), err));
    if (s->kind == DENSE)
        record_note(r, "fallback=dense");
    if (s->kind == TOKENS)
        TRY(record_metric(r, "columns", (double)s->v2.ncols, err));
    if (s->kind != PLAN)
        goto out;
    for (int i = 0; i < s->plan.slices; i++) {
        kc += (double)s->plan.kc[i] / s->plan.slices;
        ks += (double)s->plan.ks[i] / s->plan.slices;
    }
    TRY(record_metric(r, "columns", kc, err));
    TRY(record_metric(r, "slashes", ks, err));
    TRY(record_metric(r, "units_forced", (double)s->forced, err));
    note_lists(&s->plan, r);
out:
    return rc;
}

/* The keys are read once per slice: those before its end. */
static bool cost(const void *state, struct select_cost *c)
{
    const struct state *s = state;
    const struct attn_in *x = &s->in->x;
    int64_t end[SAMPLE_MAX_CHUNKS + 1], shift = s->c.nk - s->c.nq;
    if (s->kind == TOKENS) {
        cost_exact_rows(c, s->in, (double)s->v2.sampled, s->v2.pairs, 1);
        cost_rows(c, s->in, (double)x->nk, x->d);
        cost_kept(c, (double)x->nk);
    }
    if (s->kind != PLAN)
        return true;
    sample_ends(&s->c, end);
    for (int i = 0; i < s->c.chunks; i++) {
        int64_t to = end[i + 1] - shift, from = to - s->c.block;
        cost_exact_rows(c, s->in, (double)s->c.block, cost_pairs(x, from, to, 1), 2);
        cost_rows(c, s->in, (double)end[i + 1], x->d);
        cost_kept(c, 2 * (double)sample_blocks(&s->c));
    }
    return true;
}

static int calibrate(struct method_ctx *ctx, const void *params, const struct head_in *samples,
                     int n, struct jw *w, struct err *err)
{
    const struct params *p = params;
    struct sample_target want = {.p1 = p->target_p1,
                                 .error = p->target_err,
                                 .mean = p->target_mean,
                                 .fast = p->target == TARGET_SPD};
    struct sample_choice c;
    if (p->profile == PROFILE_V2)
        return err_set(
            err, ERR_USAGE,
            "method sampleattention: profile=v2 cannot be calibrated; use paper, strict or safe");
    for (int i = 0; i < n; i++)
        if (!samples[i].x.causal || samples[i].x.nq > samples[i].x.nk)
            return method_skip(ctx, "causal only");
    struct sample_config base = resolve(p, samples[0].x.nq, samples[0].x.nk);
    int rc = sample_search(&base, &want, samples, n, &c, w, err);
    if (rc)
        return rc;
    if (!c.met)
        log_warn("sampleattention: layer %d head %d: no triple meets the target; full mask",
                 samples[0].layer, samples[0].head);
    jw_knum(w, "alpha_c", c.alpha_c);
    jw_knum(w, "alpha_s", c.alpha_s);
    jw_kint(w, "chunks", c.chunks);
    return 0;
}

static const struct metric_def metrics[] = {
    OWN_METRIC("columns",
               "key columns selected, in blocks (profile=v2: in tokens), mean over sampled slices"),
    OWN_METRIC("slashes", "diagonals of blocks selected, mean over sampled slices"),
    OWN_METRIC("units_forced", "mask units kept only because they are forced"),
    {0},
};

const struct method method_sampleattention = {
    .name = "sampleattention",
    .summary = "key columns and slashes from exact softmax rows of sampled slices",
    .paper = "SampleAttention, arXiv:2406.15486",
    .flags = METHOD_ROWS | METHOD_CAUSAL | METHOD_ANY_SCORE,
    .params = {.table = options,
               .size = sizeof(struct params),
               .scopes = PARAM_SCOPES(
                   {"alpha window rows bottom", "profile=v2"},
                   {"alpha_c alpha_s chunks block extend merge reduce keep_diag keep_sink preset",
                    "profile=paper|strict|safe"}),
               .budget = BUDGET_PARAMS(BUDGET_BY(BUDGET_COMPLEMENT, "alpha", .only = "profile=v2"),
                                       BUDGET_BY(BUDGET_COMPLEMENT, "alpha_c alpha_s"))},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .release = release,
    .metrics = metrics,
    .cost = cost,
    .why_full = why_full,
    .device = {.rule = rule, .take = take, .keep_on_device = keep_on_device},
    .search = {.calibrate = calibrate,
               .passes = 4,
               .trials = SAMPLE_TRIALS,
               .on_device = block_grid_on_device},
    .tests = {.full = "alpha_c=1",
              .variants = TEXTS("profile=safe:block=64", "profile=v2:window=0.1",
                                "merge=mean:chunks=4:reduce=max")},
};
