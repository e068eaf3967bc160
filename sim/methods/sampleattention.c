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
#include "core/log.h"
#include "core/mem.h"
#include "core/method.h"
#include "sim/sampleattention.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum profile { PROFILE_PAPER, PROFILE_STRICT, PROFILE_SAFE, PROFILE_V2 };
enum preset { PRESET_NONE, GLM4_ACC, GLM4_SPD, INTERNLM2_ACC, INTERNLM2_SPD };
enum target { TARGET_ACC, TARGET_SPD };

static const char *const PROFILES[] = {"paper", "strict", "safe", "v2", NULL};
static const char *const PRESETS[] = {"none",          "glm4-acc",      "glm4-spd",
                                      "internlm2-acc", "internlm2-spd", NULL};
static const char *const EXTENDS[] = {"cover2", "cover1", "centred", NULL};
static const char *const MERGES[] = {"perchunk", "union", "mean", NULL};
static const char *const REDUCES[] = {"sum", "max", NULL};
static const char *const BLOCKS[] = {"64", "128", NULL};
static const char *const SWITCH[] = {"profile", "0", "1", NULL};
static const char *const TARGETS[] = {"acc", "spd", NULL};

struct params {
    int profile, preset, extend, merge, reduce, block, keep_diag, keep_sink;
    double alpha_c, alpha_s; /* NAN: from the preset, else 0.95 */
    int64_t chunks;          /* INT64_MIN: from the preset, else 1 */
    double alpha, window, rows;
    int64_t bottom;
    int target;
    double target_p1, target_err, target_mean;
};

#define AT(field) offsetof(struct params, field)
static const struct opt PARAMS[] = {
    {"profile", OPT_ENUM, AT(profile), "paper", 0, 0, 0, "",
     "paper forces the diagonal block, strict no block, safe diagonal and sink; v2 is the earlier "
     "algorithm (window and token columns).",
     PROFILES, 0, NULL},
    {"alpha_c", OPT_NUM, AT(alpha_c), NULL, 0, 1, OPT_UNSET, "mass share",
     "Column threshold; unset: the preset's, else 0.95.", NULL, 0, NULL},
    {"alpha_s", OPT_NUM, AT(alpha_s), NULL, 0, 1, OPT_UNSET, "mass share",
     "Slash threshold; unset: the preset's, else 0.95.", NULL, 0, NULL},
    {"chunks", OPT_INT, AT(chunks), NULL, 1, SAMPLE_MAX_CHUNKS, OPT_UNSET, "slices",
     "Sampled slices; unset: the preset's, else 1.", NULL, 0, NULL},
    {"block", OPT_ENUM, AT(block), "128", 0, 0, 0, "tokens", "Slice height and block size.", BLOCKS,
     0, NULL},
    {"extend", OPT_ENUM, AT(extend), "cover2", 0, 0, 0, "",
     "Block diagonals of a slash bin: both it touches, the lower one, or one for centred bins.",
     EXTENDS, 0, NULL},
    {"merge", OPT_ENUM, AT(merge), "perchunk", 0, 0, 0, "",
     "Rows a slice's lists govern: its chunk, all (united), or all (scores averaged).", MERGES, 0,
     NULL},
    {"reduce", OPT_ENUM, AT(reduce), "sum", 0, 0, 0, "", "Block reduction; max is an ablation.",
     REDUCES, 0, NULL},
    {"keep_diag", OPT_ENUM, AT(keep_diag), "profile", 0, 0, 0, "",
     "Always keep the diagonal block; unset: 1, with profile=strict 0.", SWITCH, 0, NULL},
    {"keep_sink", OPT_ENUM, AT(keep_sink), "profile", 0, 0, 0, "",
     "Always keep the first key block; unset: 0, with profile=safe 1.", SWITCH, 0, NULL},
    {"preset", OPT_ENUM, AT(preset), "none", 0, 0, 0, "",
     "alpha_c, alpha_s and chunks by prompt length, from table 6 of the paper.", PRESETS, 0, NULL},
    {"alpha", OPT_NUM, AT(alpha), "0.95", 0, 1, 0, "mass share", "profile=v2: column threshold.",
     NULL, 0, NULL},
    {"window", OPT_NUM, AT(window), "0.08", 0, 1, 0, "share of N", "profile=v2: local window.",
     NULL, 0, NULL},
    {"rows", OPT_NUM, AT(rows), "0.05", 0, 1, OPT_MIN_OPEN, "share of N",
     "profile=v2: sampled rows.", NULL, 0, NULL},
    {"bottom", OPT_INT, AT(bottom), "128", 0, 2147483647, 0, "tokens",
     "profile=v2: last rows kept dense.", NULL, 0, NULL},
    {"target", OPT_ENUM, AT(target), "acc", 0, 0, OPT_IDENTITY_NOT, "",
     "calibrate: acc meets target_p1 and target_err, spd meets target_mean.", TARGETS, 0, NULL},
    {"target_p1", OPT_NUM, AT(target_p1), "0.90", 0, 1, OPT_IDENTITY_NOT, "mass share",
     "calibrate: least 1st percentile of the rows' recall.", NULL, 0, NULL},
    {"target_err", OPT_NUM, AT(target_err), "0.05", 0, INFINITY, OPT_IDENTITY_NOT, "",
     "calibrate: largest relative L2 error of the output.", NULL, 0, NULL},
    {"target_mean", OPT_NUM, AT(target_mean), "0.90", 0, 1, OPT_IDENTITY_NOT, "mass share",
     "calibrate: least mean recall.", NULL, 0, NULL},
    {0},
};

static const struct param_scope SCOPES[] = {
    {"alpha window rows bottom", "profile=v2"},
    {"alpha_c alpha_s chunks block extend merge reduce keep_diag keep_sink preset",
     "profile=paper|strict|safe"},
    {0},
};

/* Table 6 of the paper, rows N < 16K, < 48K, < 80K, < 112K, >= 112K (K = 1024). */
struct tuned {
    double alpha_c, alpha_s;
    int chunks;
};
static const struct tuned TUNED[4][5] = {
    {{.98, .90, 1}, {.95, .95, 1}, {.95, .95, 1}, {.90, .90, 2}, {.95, .85, 1}}, /* glm4-acc */
    {{.85, .85, 1}, {.85, .80, 1}, {.80, .80, 1}, {.80, .80, 1}, {.80, .80, 1}}, /* glm4-spd */
    {{.98, .95, 1}, {.95, .90, 1}, {.92, .92, 1}, {.92, .90, 2}, {.95, .90, 2}}, /* internlm2-acc */
    {{.85, .85, 1}, {.80, .80, 1}, {.80, .80, 1}, {.80, .80, 1}, {.80, .80, 1}}, /* internlm2-spd */
};

static struct tuned preset_values(int preset, int64_t n)
{
    static const int64_t LIMITS[] = {16 * 1024, 48 * 1024, 80 * 1024, 112 * 1024};
    int seg = 0;
    while (seg < 4 && n >= LIMITS[seg])
        seg++;
    return preset == PRESET_NONE ? (struct tuned){.95, .95, 1} : TUNED[preset - 1][seg];
}

static struct sample_config resolve(const struct params *p, int64_t nq, int64_t nk)
{
    struct tuned t = preset_values(p->preset, nk);
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
    struct sample_config c;
    struct sample_plan plan; /* PLAN */
    struct sample_v2 v2;     /* TOKENS */
    int64_t forced;
};

static void release(void *state)
{
    struct state *s = state;
    if (!s)
        return;
    sample_plan_free(&s->plan);
    sample_v2_free(&s->v2);
    free(s);
}

static int prepare_plan(struct state *s, const struct head_in *in, struct err *err)
{
    int rc = 0;
    struct sample_scores scores = {0};
    if (!sample_applies(&s->c)) {
        s->kind = DENSE;
        return 0;
    }
    s->kind = PLAN;
    TRY(sample_scores_init(&scores, &s->c, err));
    TRY(sample_scores_run(&scores, &s->c, in->ops, in->lse, err));
    TRY(sample_plan_build(&s->plan, &s->c, &scores, err));
out:
    sample_scores_free(&scores);
    return rc;
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void **state, struct err *err)
{
    const struct params *p = params;
    struct state *s = NULL;
    int rc = 0;
    if (!in->x.causal)
        return method_skip(ctx, "causal only");
    if (in->x.nq > in->x.nk)
        return method_skip(ctx, "more queries (%lld) than keys (%lld)", (long long)in->x.nq,
                           (long long)in->x.nk);
    TRY(mem_zalloc(&s, 1, sizeof *s, "sampleattention", err));
    s->c = resolve(p, in->x.nq, in->x.nk);
    if (p->profile == PROFILE_V2) {
        s->kind = TOKENS;
        TRY(sample_v2_build(&s->v2, in->x.nq, in->x.nk, p->alpha, p->window, p->rows, p->bottom,
                            in->ops, in->lse, err));
    } else {
        TRY(prepare_plan(s, in, err));
    }
    *state = s;
    s = NULL;
out:
    release(s);
    return rc;
}

static int64_t unit_rows(const void *state)
{
    const struct state *s = state;
    return s->kind == PLAN ? sample_unit(&s->c) : s->kind == DENSE ? s->c.block : 1;
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct state *s = state;
    if (s->kind == TOKENS)
        return sample_v2_mask(&s->v2, row0, row1, out, err);
    if (s->kind == PLAN)
        return sample_plan_mask(&s->plan, row0, row1, out, &s->forced, err);
    mask_full(out, s->c.nq, s->c.nk, row0, row1, true);
    out->bq = out->bk = out->exec_bq = out->exec_bk = s->c.block;
    return 0;
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
        return err_set(err, ERR_USAGE,
                       "method sampleattention: profile=v2 cannot be calibrated; "
                       "use paper, strict or safe");
    for (int i = 0; i < n; i++)
        if (!samples[i].x.causal || samples[i].x.nq > samples[i].x.nk)
            return method_skip(ctx, "causal only");
    struct sample_config base = resolve(p, samples[0].x.nq, samples[0].x.nk);
    int rc = sample_search(&base, &want, samples, n, &c, err);
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

const struct method method_sampleattention = {
    .name = "sampleattention",
    .summary = "key columns and slashes from exact softmax rows of sampled slices",
    .paper = "SampleAttention, arXiv:2406.15486",
    .abi = METHOD_ABI,
    .flags = METHOD_CAUSAL | METHOD_CALIBRATED | METHOD_MONOTONE,
    .params_size = sizeof(struct params),
    .params = PARAMS,
    .scopes = SCOPES,
    .budget_full = "alpha_c=1",
    .prepare = prepare,
    .unit_rows = unit_rows,
    .select = select_rows,
    .report = report,
    .calibrate = calibrate,
    .release = release,
};
