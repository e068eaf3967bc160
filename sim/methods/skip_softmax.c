/*
 * skip_softmax.c - an attention kernel that walks the key tiles of a query tile from left to right
 * leaves out those that come nowhere near the maximum of their rows so far.
 *
 *   t_i = largest score of row i in the tile, m_i = running maximum of row i, -inf at first
 *   skip the tile iff t_i - m_i < ln(lambda) in every row; else m_i = max(m_i, t_i)
 *
 * J. Yuan et al., BLASST, arXiv 2512.12087, and the kernels of Model-Optimizer, FlashInfer and
 * TensorRT-LLM. O(N^2 d): every score is computed; exponentials and P V of a skipped tile are not.
 *
 * profile=calib counts as the statistics in PyTorch do: the running maximum includes the tile, and
 * a tile at the threshold exactly is skipped. Walks start at the first tile that a row of the query
 * tile may see. `lacuna calibrate` fits the scale factor as Model-Optimizer does.
 */
#include "core/intmath.h"
#include "core/mem.h"
#include "sim/blocks/exact.h"
#include "sim/blocks/selectcost.h"
#include "sim/blocks/slicemask.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BK 128

/* Thresholds that a calibration tries. */
static const double trials[] = {1e-6, 5e-6, 1e-5, 5e-5, 1e-4, 5e-4, 1e-3, 5e-3, 0.01, 0.02,
                                0.05, 0.1,  0.2,  0.3,  0.5,  0.7,  0.8,  0.9,  0.95, 0.99};
enum { TRIALS = sizeof trials / sizeof *trials };

enum profile { KERNEL, CALIB };

struct params {
    double lambda, scale_factor, target;
    int unit, profile, fit;
};

static const struct opt options[] = {
    OPT_NUM(struct params, lambda, NULL, 0, 1, "",
            "Weight beside the maximum so far below which a score counts as nothing; unset: 0.001, "
            "of a single query 0.0001, or by scale_factor.",
            .flags = OPT_MIN_OPEN),
    OPT_NUM(struct params, scale_factor, NULL, 0, INFINITY, "keys", "lambda is this over N_k.",
            .flags = OPT_MIN_OPEN | OPT_MAX_OPEN),
    OPT_ENUM(struct params, unit, "128x128", TEXTS("128x128", "64x128"),
             "Rows that decide together, and keys of a tile."),
    OPT_ENUM(struct params, profile, "kernel", TEXTS("kernel", "calib"),
             "kernel: the published kernels; calib: the statistics of their calibration."),
    OPT_NUM(struct params, target, "0.5", 0, 1, "share of tiles", "calibrate: tiles to skip.",
            .flags = OPT_IDENTITY_NOT),
    OPT_ENUM(struct params, fit, "linear", TEXTS("linear", "log"),
             "calibrate: least squares of scale factors, or of their logarithms (as for video).",
             .flags = OPT_IDENTITY_NOT),
    {0},
};

static const struct metric_def metrics[] = {
    OWN_METRIC("tiles_walked", "key tiles that the kernel visits, over all query tiles"),
    OWN_METRIC("tiles_skipped", "those of them whose exponentials and P V it leaves out"),
    {0},
};

struct state {
    const struct head_in *in;
    struct attn_in x;
    double bound; /* ln(lambda) */
    bool calib;
    int64_t bq;
    int64_t walked, skipped; /* tiles */
    double *scores;          /* [bq][BK] */
    double *top, *most;      /* [bq] of a tile; running */
    struct slice_mask given; /* by a device */
};

static void release(void *state)
{
    struct state *s = state;
    free(s->scores);
    free(s->top);
    free(s->most);
    slice_mask_free(&s->given);
}

static int validate(void *params, struct err *err)
{
    const struct params *p = params;
    if (isnan(p->lambda) || isnan(p->scale_factor))
        return 0;
    return err_set(err, ERR_USAGE,
                   "method skip-softmax: lambda and scale_factor are two ways to "
                   "say one number: give one of them");
}

static double lambda_of(const struct params *p, const struct attn_in *x)
{
    if (!isnan(p->scale_factor))
        return p->scale_factor / (double)x->nk;
    return !isnan(p->lambda) ? p->lambda : x->nq == 1 ? 1e-4 : 1e-3;
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    const struct params *p = params;
    struct state *s = state;

    s->in = in;
    s->x = in->x;
    s->bound = log(lambda_of(p, &in->x));
    s->calib = p->profile == CALIB;
    s->bq = p->unit ? 64 : 128;
    PASS_ON(mem_alloc(&s->scores, s->bq * BK, sizeof *s->scores, "scores of a tile", err));
    PASS_ON(mem_alloc(&s->top, s->bq, sizeof *s->top, "maxima of rows", err));
    PASS_ON(mem_alloc(&s->most, s->bq, sizeof *s->most, "maxima of rows", err));
    ctx->unit_rows = s->bq;
    return 0;
}

/* How far the row of [row0, row1) that comes closest stays below its maximum so far in the tile of
 * the keys [k0, k1), <= 0 or INFINITY: a row without a key so far is no reason to skip. The tile's
 * maxima go to s->top. */
static int tile_gap(struct state *s, int64_t row0, int64_t row1, int64_t k0, int64_t k1,
                    double *gap, struct err *err)
{
    int64_t ld = k1 - k0;
    int rc = exact_scores(s->in->exact, row0, row1, k0, k1, s->scores, err);
    *gap = -INFINITY;
    for (int64_t i = row0; rc == 0 && i < row1; i++) {
        int64_t lo = MAX(k0, attn_first(&s->x, i)), hi = MIN(k1, attn_limit(&s->x, i));
        const double *row = s->scores + (i - row0) * ld;
        double top = hi > lo ? row_max_f64(row + (lo - k0), hi - lo) : -INFINITY;
        double most = s->calib ? fmax(s->most[i - row0], top) : s->most[i - row0];
        s->top[i - row0] = top;
        *gap = fmax(*gap, most == -INFINITY ? INFINITY : top - most);
    }
    return rc;
}

/* The tiles of the rows [row0, row1) from left to right: those that stay to group g of m, or with m
 * NULL their gaps to count [TRIALS], and all stay. */
static int walk(struct state *s, int64_t row0, int64_t row1, struct mask *m, int64_t g,
                int64_t *count, struct err *err)
{
    int64_t limit = 0;
    for (int64_t i = row0; i < row1; i++) {
        s->most[i - row0] = -INFINITY;
        limit = MAX(limit, attn_limit(&s->x, i));
    }
    for (int64_t t = attn_first(&s->x, row0) / BK; t * BK < limit; t++) {
        double gap;
        PASS_ON(tile_gap(s, row0, row1, t * BK, MIN((t + 1) * BK, s->x.nk), &gap, err));
        bool want = !m || (s->calib ? gap > s->bound : gap >= s->bound);
        s->walked++;
        s->skipped += !want;
        for (int j = 0; !m && j < TRIALS; j++)
            count[j] += gap <= log(trials[j]);
        if (m && want)
            PASS_ON(mask_lists_add(m, g, (int32_t)t, err));
        for (int64_t i = 0; want && i < row1 - row0; i++)
            s->most[i] = fmax(s->most[i], s->top[i]);
    }
    return 0;
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct state *s = state;
    if (s->given.bits)
        return slice_mask_lists(&s->given, row0, row1, out, err);
    PASS_ON(mask_lists_init(out, s->x.nq, s->x.nk, row0, row1, s->x.causal, s->bq, BK, err));
    for (int64_t g = 0; g < out->ngroups; g++) {
        int64_t r = row0 + g * s->bq;
        PASS_ON(walk(s, r, MIN(r + s->bq, row1), out, g, NULL, err));
    }
    mask_lists_finish(out);
    return 0;
}

static bool rule(const void *state, struct rule *rule, char why[160])
{
    const struct state *s = state;
    rule->of.skip = (struct skip_rule){.bq = s->bq, .bound = s->bound, .calib = s->calib};
    return true;
}

static int take(void *state, const struct device_choice *c, struct err *err)
{
    struct state *s = state;
    int rc = slice_mask_take(&s->given, c, s->bq, BK, -1, err);
    for (int64_t row = 0; row < s->x.nq; row += s->bq)
        s->walked += ceil_div(attn_limit(&s->x, MIN(row + s->bq, s->x.nq) - 1), BK);
    if (!rc)
        s->skipped = s->walked - (c->lists ? slice_mask_total(&s->given) : c->counts->units);
    return rc;
}

static int report(void *state, struct record *r, struct err *err)
{
    const struct state *s = state;
    return RECORD_ALL(r, err, {"tiles_walked", s->walked}, {"tiles_skipped", s->skipped});
}

/* Attention needs the scores of the tiles that stay anyway. */
static bool cost(const void *state, struct select_cost *c)
{
    const struct state *s = state;
    cost_products(c, (double)(s->skipped * s->bq * BK), s->x.d);
    cost_rows(c, s->in, (double)(s->skipped * BK), s->x.d);
    return true;
}

static bool why_full(const void *state, char why[160])
{
    snprintf(why, 160,
             "every tile of %lld x %d has a row whose scores come within %.3g of its "
             "maximum so far; a larger lambda skips more",
             (long long)((const struct state *)state)->bq, BK,
             -((const struct state *)state)->bound);
    return true;
}

/* calib: nothing exceeds a maximum that is its own. */
static bool may_be_empty(const void *params)
{
    const struct params *p = params;
    return p->profile == CALIB && (p->lambda >= 1 || !isnan(p->scale_factor));
}

/* ---- calibration ----------------------------------------------------------------------------- */

/* Shares of skipped tiles and the scale factors of the thresholds. */
struct points {
    double *share, *factor; /* [n], owned */
    int64_t n;
};

/* For the model factor = a e^(b share): the best a, or log a, to b, and the sum of its squared
 * errors. */
static double best_scale(const struct points *p, bool logs, double b, double *a)
{
    double up = 0, down = 0, sum = 0;
    for (int64_t i = 0; i < p->n; i++) {
        double e = logs ? 1 : exp(b * p->share[i]);
        up += (logs ? log(p->factor[i]) - b * p->share[i] : p->factor[i]) * e;
        down += e * e;
    }
    *a = up / down;
    for (int64_t i = 0; i < p->n; i++) {
        double y = logs ? *a + b * p->share[i] : *a * exp(b * p->share[i]);
        double d = y - (logs ? log(p->factor[i]) : p->factor[i]);
        sum += d * d;
    }
    return sum;
}

/* The scale factor at `target` by the model that fits best: b from 0 to 20, or any with logs. */
static double fitted(const struct points *p, bool logs, double target)
{
    enum { STEPS = 200 };
    double lo = logs ? -200 : 0, hi = logs ? 200 : 20, a, b = lo;
    while (hi - lo > 1e-9) { /* the best point of a grid, and its neighbours next */
        double step = (hi - lo) / STEPS, least = INFINITY;
        for (int i = 0; i <= STEPS; i++) {
            double sum = best_scale(p, logs, lo + i * step, &a);
            b = sum < least ? lo + i * step : b;
            least = fmin(least, sum);
        }
        lo = fmax(lo, b - step);
        hi = fmin(hi, b + step);
    }
    best_scale(p, logs, b, &a);
    return logs ? exp(a + b * target) : a * exp(b * target);
}

static bool same_forward(const struct head_in *a, const struct head_in *b)
{
    return a->step == b->step && strcmp(a->branch, b->branch) == 0 &&
           (a->trace == b->trace || (a->trace && b->trace && strcmp(a->trace, b->trace) == 0));
}

/* Shares of skipped tiles at all trials, added to share [TRIALS]. */
static int add_shares(struct method_ctx *ctx, const struct params *params, const struct head_in *in,
                      double *share, struct err *err)
{
    OWN(release) struct state s = {.in = NULL};
    int64_t count[TRIALS] = {0};
    PASS_ON(prepare(ctx, params, in, &s, err));
    s.calib = true;
    for (int64_t r = 0; r < in->x.nq; r += s.bq)
        PASS_ON(walk(&s, r, MIN(r + s.bq, in->x.nq), NULL, 0, count, err));
    for (int j = 0; j < TRIALS; j++)
        share[j] += (double)count[j] / (double)s.walked;
    return 0;
}

/* A pass over the model is a sample, with the mean share over its heads; those between a tenth and
 * nine tenths count. */
static int calibrate(struct method_ctx *ctx, const void *params, const struct head_in *samples,
                     int n, struct jw *w, struct err *err)
{
    const struct params *p = params;
    struct points fit = {.n = 0};
    int tried = 0, rc = 0;
    TRY(mem_alloc(&fit.share, (int64_t)n * TRIALS, sizeof *fit.share, "trials", err));
    TRY(mem_alloc(&fit.factor, (int64_t)n * TRIALS, sizeof *fit.factor, "trials", err));
    for (int i = 0, end; i < n; i = end) {
        double share[TRIALS] = {0};
        for (end = i; end < n && same_forward(samples + i, samples + end); end++)
            TRY(add_shares(ctx, p, samples + end, share, err));
        for (int j = 0; j < TRIALS; j++, tried++) {
            fit.share[fit.n] = share[j] / (end - i);
            fit.factor[fit.n] = trials[j] * (double)samples[i].x.nk;
            fit.n += fit.share[fit.n] >= 0.1 && fit.share[fit.n] <= 0.9;
        }
    }
    if (fit.n >= 3)
        jw_knum(w, "scale_factor", fitted(&fit, p->fit, p->target));
    else
        rc = method_skip(ctx,
                         "%lld of %d trials skip 10 %% to 90 %% of the tiles, and a curve needs 3: "
                         "longer or more prompts have more tiles",
                         (long long)fit.n, tried);
out:
    free(fit.share);
    free(fit.factor);
    return rc;
}

const struct method method_skip_softmax = {
    .name = "skip-softmax",
    .alias = "blasst",
    .summary = "tiles that stay far below the running maximum of their rows are skipped (BLASST)",
    .paper = "Yuan et al., BLASST, arXiv 2512.12087",
    .flags = METHOD_ROWS | METHOD_CAUSAL | METHOD_BIDIRECTIONAL | METHOD_REACH | METHOD_SOFTCAP |
             METHOD_BIAS | METHOD_PREFIX,
    .params = {.table = options,
               .size = sizeof(struct params),
               .budget = BUDGET_PARAMS(
                   BUDGET_BY(BUDGET_LOG, "lambda", .falls = true, .lo = 1e-9, .hi = 1)),
               .validate = validate,
               .may_be_empty = may_be_empty},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .release = release,
    .metrics = metrics,
    .cost = cost,
    .why_full = why_full,
    .search = {.calibrate = calibrate, .passes = 1},
    .device = {.rule = rule, .take = take, .keep_on_device = method_always},
    .tests = {.full = "lambda=1e-300",
              .variants =
                  TEXTS("lambda=0.5:unit=64x128", "profile=calib:lambda=0.7", "scale_factor=20"),
              .budgets = METHOD_BUDGETS({"unit=64x128:lambda=%s", {"1", "0.9", "0.5", "0.1"}})},
};
