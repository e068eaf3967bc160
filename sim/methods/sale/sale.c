/*
 * SALE: key blocks tested pair by pair with 4-bit queries and keys against a threshold from the
 * exact statistics of an always-kept sink and local region.
 *
 * "SALE: Low-bit Estimation for Efficient Sparse Attention in Long-context LLM Prefilling",
 * arXiv:2505.24179. Blocks of 64 queries x 32 keys; N <= 1024 or tau < 1e-5 stays dense. Selection
 * O(N^2 d / 2) integer products; attention exact, or INT8 Q.K with fp16 P.V (arith=sage1).
 *
 * profile=official follows the published kernels (strict test, fp16 threshold and estimate);
 * profile=paper keeps ties and leaves threshold and estimate in fp32. Operands, means and scales
 * are fp16 and the correction for the mean of Q is a whole number of units in both. Deviations from
 * the kernels: rows past N have no vote, an all-zero query group is estimated by its correction,
 * the correction's dot product is accumulated in fp32, any head dimension that is a multiple of 16.
 */
#include "core/log.h"
#include "core/mem.h"
#include "core/method.h"
#include "core/rules.h"
#include "sim/blocks/exact.h"
#include "sim/blocks/judge.h"
#include "sim/blocks/quant.h"
#include "sim/methods/sale/sale.h"
#include "sim/blocks/tileattn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum profile { PROFILE_OFFICIAL, PROFILE_PAPER };
enum arith { ARITH_EXACT, ARITH_SAGE1 };

struct params {
    int bounds, profile, local, bits, thr_dtype, sl_mask, arith, quant, calib_local;
    double tau, theta, tau0, tau_min;
    int64_t bq, bk, sink, dense_below;
};

/* Bounds that the paper used per model (arXiv 2505.24179): theta is absolute, of the scale of V. */
static const char *const bounds_of[] = {"none", "llama3.1", "qwen2.5", NULL};
static const double bounds_values[] = {0.4, 0.4, 2.0};

static const struct opt options[] = {
    OPT_ENUM(struct params, profile, "official", TEXTS("official", "paper"),
             "official: estimate > threshold, both in fp16; paper: >=, both in fp32. Operands are "
             "fp16 in either."),
    OPT_NUM(struct params, tau, "0.004", 0, 1, "share",
            "Keep a block when a pair's relative score exceeds it; below 1e-5 the head is dense.",
            .flags = OPT_MAX_OPEN),
    OPT_INT(struct params, bq, "64", SALE_BQ, SALE_BQ, "tokens", "Rows of a block; fixed."),
    OPT_INT(struct params, bk, "32", SALE_BK, SALE_BK, "tokens", "Keys of a block; fixed."),
    OPT_INT(struct params, sink, "32", SALE_BK, SALE_BK, "tokens",
            "Always kept at the start: one key block; fixed."),
    OPT_ENUM(struct params, local, "128", TEXTS("128", "256"),
             "Least always-kept stretch before the diagonal.", .unit = "tokens"),
    OPT_INT(struct params, dense_below, "1024", 0, 9e15, "tokens",
            "Prompts up to this length stay dense."),
    OPT_ENUM(struct params, bits, "4", TEXTS("4", "8", "16"),
             "Width of the estimate; 16 is fp16 without integers.", .unit = "bit"),
    OPT_ENUM(struct params, thr_dtype, "profile", TEXTS("profile", "f16", "f32"),
             "Rounding of threshold and estimate; unset: f16, with profile=paper f32."),
    OPT_ENUM(struct params, sl_mask, "causal", TEXTS("causal", "none"),
             "Mask inside the sink-local statistics; none lets later keys in."),
    OPT_ENUM(struct params, arith, "exact", TEXTS("exact", "sage1"),
             "Attention on kept blocks: exact softmax, or INT8 Q.K and fp16 P.V."),
    OPT_ENUM(struct params, quant, "none", TEXTS("none", "int8"),
             "int8 is another name of arith=sage1."),
    OPT_NUM(struct params, theta, "0.4", 0, INFINITY, "output L1 per token",
            "calibrate: bound of the output error.", .flags = OPT_IDENTITY_NOT | OPT_MIN_OPEN),
    OPT_ENUM(struct params, bounds, "none", bounds_of,
             "calibrate: theta that the paper used for this model.",
             .flags = OPT_IDENTITY_NOT | OPT_CALIB_FIXED),
    OPT_NUM(struct params, tau0, "0.008", 0, 1, "share", "calibrate: first tau.",
            .flags = OPT_IDENTITY_NOT | OPT_MIN_OPEN | OPT_MAX_OPEN),
    OPT_NUM(struct params, tau_min, "1e-4", 0, 1, "share",
            "calibrate: at or below it tau becomes 0.", .flags = OPT_IDENTITY_NOT | OPT_MAX_OPEN),
    OPT_ENUM(struct params, calib_local, "profile", TEXTS("profile", "128", "256"),
             "calibrate: local stretch; unset: 256, with profile=paper 128.",
             .flags = OPT_IDENTITY_NOT, .unit = "tokens"),
    {0},
};

static struct sale_config resolve(const struct params *p, double scale)
{
    static const int WIDTHS[] = {4, 8, 16};
    return (struct sale_config){
        .tau = p->tau,
        .scale = scale,
        .bits = WIDTHS[p->bits],
        .w = (p->local ? 256 : 128) / SALE_BK,
        .dense_below = p->dense_below,
        .f16 = p->thr_dtype == 0 ? p->profile == PROFILE_OFFICIAL : p->thr_dtype == 1,
        .strict = p->profile == PROFILE_OFFICIAL,
        .causal_stats = p->sl_mask == 0,
    };
}

/* INT8 and fp16 operands of the attention on kept blocks. */
struct sage {
    struct quant q, k;
    float *v; /* [n][dv] values of fp16 */
    struct tile_attn t;
};

struct state {
    struct sale_head head;
    double in_bytes; /* of a number of q or k in the trace */
    bool sage1;
    struct sage s;
};

static void release(void *state)
{
    struct state *s = state;
    sale_head_free(&s->head);
    quant_free(&s->s.q);
    quant_free(&s->s.k);
    free(s->s.v);
}

/* Q: INT8 per 64 rows, not smoothed; K: INT8 per 32 keys of k - kbar; V in fp16; fp16 chains of one
 * key block added in fp32. */
static int prepare_sage(struct state *st, const struct head_in *in, struct err *err)
{
    static const struct quant_groups QUERIES = {QUANT_BLOCK, false, SALE_BQ, SALE_BQ};
    static const struct quant_groups KEYS = {QUANT_BLOCK, true, SALE_BK, SALE_BK};
    const struct attn_in *x = &in->x;
    const struct sale_quant *z = &st->head.z;
    struct sage *s = &st->s;
    int rc = 0;
    TRY(quant_int(&s->q, z->q, x->nq, x->d, &QUERIES, 127, QUANT_RNE, err));
    TRY(quant_int(&s->k, z->k, x->nk, x->d, &KEYS, 127, QUANT_RNE, err));
    TRY(mem_alloc(&s->v, x->nk * x->dv, sizeof *s->v, "fp16 values", err));
    for (int64_t i = 0; i < x->nk * x->dv; i++)
        s->v[i] = sale_fl16(x->v[i]);
    s->t = (struct tile_attn){
        .nq = x->nq,
        .nk = x->nk,
        .d = x->d,
        .dv = x->dv,
        .causal = true,
        .bq = SALE_BQ,
        .bk = SALE_BK,
        .exact = in->exact,
        .q = &s->q,
        .k = &s->k,
        .score_scale = (float)(x->scale * M_LOG2E),
        .v = s->v,
        .p_type = TILE_P_F16,
        .p_factor = 1,
        .acc = TILE_ACC_F16,
        .mma_keys = 16,
        .kbar = z->kbar,
        .pv = INFINITY,
        .scope = SALE_BQ,
        .out_dtype = in->src_dtype == DT_BF16 ? DT_BF16 : DT_F16,
    };
out:
    return rc;
}

static int check_shape(struct method_ctx *ctx, const struct head_in *in)
{
    const struct attn_in *x = &in->x;
    if (!x->causal)
        return method_skip(ctx, "causal only");
    if (x->nq != x->nk)
        return method_skip(ctx, "whole prompts only: %lld queries, %lld keys", (long long)x->nq,
                           (long long)x->nk);
    if (x->d % 16 || x->d > TILE_MAX_D)
        return method_skip(ctx, "head dimension %d is not a multiple of 16 up to %d", x->d,
                           TILE_MAX_D);
    return 0;
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    const struct params *p = params;
    struct state *s = state;
    struct sale_config c = resolve(p, in->x.scale);
    int rc = check_shape(ctx, in);
    if (rc)
        return rc;
    sale_head_init(&s->head, &c, in->x.q, in->x.k, in->x.nq, in->x.d);
    s->in_bytes = (double)dtype_size(in->src_dtype);
    s->sage1 = p->arith == ARITH_SAGE1 || p->quant;
    if (s->sage1)
        TRY(sale_head_quantise(&s->head, err));
    if (s->sage1)
        TRY(prepare_sage(s, in, err));
    ctx->unit_rows = SALE_BQ;
out:
    return rc;
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct state *s = state;
    return sale_select(&s->head, row0, row1, out, err);
}

static struct mask_origin origin(void *state)
{
    const struct state *s = state;
    return (struct mask_origin){.source = sale_dense(&s->head) ? SOURCE_STATIC : SOURCE_OWN};
}

static bool has_gpu_side(const struct sale_config *c, char why[160])
{
    if (c->bits == 4 && c->f16)
        return true;
    snprintf(why, 160, "the GPU side has the estimate of 4 bits in fp16, not bits=%d%s", c->bits,
             c->f16 ? "" : ":thr_dtype=f32");
    return false;
}

static bool rule(const void *state, struct rule *rule, char why[160])
{
    const struct sale_config *c = &((const struct state *)state)->head.c;
    if (!has_gpu_side(c, why))
        return false;
    rule->of.sale = (struct sale_rule){.tau = c->tau,
                                       .scale = c->scale,
                                       .local_blocks = c->w,
                                       .strict = c->strict,
                                       .causal_stats = c->causal_stats};
    return true;
}

static int take(void *state, const struct device_choice *c, struct err *err)
{
    return sale_head_take(&((struct state *)state)->head, c->lists, err);
}

static void how(const void *state, struct arithmetic *a, char why[160])
{
    a->kind = ((const struct state *)state)->sage1 ? ARITH_CPU : ARITH_SOFTMAX;
}

static int attend(void *state, const struct mask *m, double *out, double *lse, double *tiles_pv,
                  struct err *err)
{
    struct state *s = state;
    *tiles_pv = 0;
    return tile_attn_rows(&s->s.t, m, out, lse, tiles_pv, err);
}

static bool cost(const void *state, struct select_cost *c)
{
    const struct state *s = state;
    sale_cost(&s->head, s->in_bytes, c);
    return true;
}

static bool why_full(const void *state, char why[160])
{
    const struct sale_head *h = &((const struct state *)state)->head;
    if (h->n <= h->c.dense_below)
        snprintf(why, 160, "%lld tokens are not above dense_below=%lld", (long long)h->n,
                 (long long)h->c.dense_below);
    else
        snprintf(why, 160, "tau %g is below 1e-5", h->c.tau);
    return sale_dense(h);
}

static int report(void *state, struct record *r, struct err *err)
{
    int rc = 0;
    const struct state *s = state;
    const struct sale_counts *n = &s->head.counts;
    double tiles = (double)n->tiles, tested = (double)n->tested;
    TRY(record_metric(r, "density_native", (double)n->kept / tiles, err));
    TRY(record_metric(r, "tau", s->head.c.tau, err));
    TRY(record_metric(r, "tested_share", tested / tiles, err));
    TRY(record_metric(r, "tested_kept", tested > 0 ? (double)n->tested_kept / tested : 0, err));
    if (!s->head.taken)
        TRY(record_metric(r, "ties", (double)n->ties, err));
    if (sale_dense(&s->head))
        record_note(r, "dense=%s", s->head.n <= s->head.c.dense_below ? "short" : "tau");
out:
    return rc;
}

/* ---- calibration ------------------------------------------------------------------------ */

extern const struct method method_sale;

struct trial {
    const struct params *params; /* of the calibration run */
    const struct head_in *samples;
    struct state *state; /* of sample `current` */
    int current;
    struct method_ctx *ctx;
};

enum { TRIAL_ROWS = 16 * SALE_BQ };

/* sum |O - O_ref| of the query rows [row0, row1) by the method's own arithmetic. */
static int own_error(struct state *s, const struct head_in *in, int64_t row0, int64_t row1,
                     double *out, double *sum, struct err *err)
{
    int rc = 0, dv = in->x.dv;
    struct mask m = {0};
    double tiles_pv = 0;
    double *lse = out + (row1 - row0) * dv;
    const double *ref;
    TRY(sale_select(&s->head, row0, row1, &m, err));
    TRY(attend(s, &m, out, lse, &tiles_pv, err));
    TRY(exact_out(in->exact, row0, row1, &ref, err));
    for (int64_t i = 0; i < (row1 - row0) * dv; i++)
        *sum += fabs(out[i] - ref[i]);
out:
    mask_free(&m);
    return rc;
}

static int own_errors(struct state *s, const struct head_in *in, double *sum, struct err *err)
{
    int64_t n = in->x.nq;
    double *out = NULL;
    int rc = 0;
    TRY(mem_alloc(&out, TRIAL_ROWS * (in->x.dv + 1), sizeof *out, "output rows", err));
    for (int64_t r = 0; r < n; r += TRIAL_ROWS)
        TRY(own_error(s, in, r, r + TRIAL_ROWS < n ? r + TRIAL_ROWS : n, out, sum, err));
out:
    free(out);
    return rc;
}

/* The blocks of the whole head, from whoever judges. */
static int chosen_blocks(struct state *s, const struct judge *by, struct judging *j,
                         struct err *err)
{
    struct mask m = {0};
    struct rule r = {0};
    char why[160] = "";
    int rc = rule(s, &r, why) ? by->choose(by->self, "sale", &r.of, &m, why, err) : METHOD_SKIP;
    if (rc == METHOD_SKIP)
        return err_set(err, ERR_RUN, "sale: the GPU does not choose: %s", why);
    return rc ? rc : judge_add(j, &m, err);
}

/* The same sum with exact softmax on the kept blocks. */
static int exact_errors(struct state *s, const struct head_in *in, double *sum, struct err *err)
{
    const struct judge *by = judge_of(in->exact);
    int64_t n = in->x.nq;
    struct judging j;
    int rc = 0;
    judge_begin(&j, in->exact, NULL);
    if (by && !sale_dense(&s->head)) {
        TRY(chosen_blocks(s, by, &j, err));
    } else {
        for (int64_t r = 0; r < n; r += TRIAL_ROWS) {
            struct mask m = {0};
            int64_t end = r + TRIAL_ROWS < n ? r + TRIAL_ROWS : n;
            if ((rc = sale_select(&s->head, r, end, &m, err)) != 0) {
                mask_free(&m);
                goto out;
            }
            TRY(judge_add(&j, &m, err));
        }
    }
    TRY(judge_end(&j, NULL, err));
    *sum = j.sum.abs_delta;
out:
    judge_free(&j);
    return rc;
}

static int within_bound(void *ctx, int i, double tau, bool *ok, struct err *err)
{
    struct trial *t = ctx;
    const struct head_in *in = &t->samples[i];
    int64_t n = in->x.nq;
    double sum = 0;
    int rc = 0;
    if (t->current != i) {
        void *state;
        method_release(&method_sale, t->state);
        t->current = i;
        rc = method_prepare(&method_sale, t->ctx, t->params, in, &state, err);
        t->state = state;
        if (rc)
            goto out;
    }
    t->state->head.c.tau = tau;
    TRY((t->state->sage1 ? own_errors : exact_errors)(t->state, in, &sum, err));
    *ok = sum < t->params->theta * (double)n;
    log_debug("sale: layer %d head %d sample %d tau %g: error %g per token", in->layer, in->head,
              i + 1, tau, sum / (double)n);
out:
    return rc;
}

static bool judges(const void *params, char why[160])
{
    const struct params *p = params;
    struct sale_config c = resolve(p, 1);
    if (p->arith == ARITH_SAGE1 || p->quant)
        snprintf(why, 160, "no CUDA kernel for arith=sage1; arith=exact has one");
    else
        return has_gpu_side(&c, why);
    return false;
}

static int calibrate(struct method_ctx *ctx, const void *params, const struct head_in *samples,
                     int n, struct jw *w, struct err *err)
{
    struct params p = *(const struct params *)params;
    struct sale_search search = {.theta = p.theta, .tau0 = p.tau0, .tau_min = p.tau_min};
    struct trial t = {.params = &p, .samples = samples, .current = -1, .ctx = ctx};
    double tau;
    int64_t rounds;
    int rc = 0;
    p.local = p.calib_local == 0 ? p.profile == PROFILE_OFFICIAL : p.calib_local == 2;
    for (int i = 0; i < n; i++)
        if ((rc = check_shape(ctx, &samples[i])) != 0)
            goto out;
    TRY(sale_search_tau(&search, n, within_bound, &t, &tau, &rounds, err));
    log_debug("sale: layer %d head %d: tau %g after %lld rounds", samples[0].layer, samples[0].head,
              tau, (long long)rounds);
    jw_knum(w, "tau", tau);
out:
    method_release(&method_sale, t.state);
    return rc;
}

static const struct metric_def metrics[] = {
    OWN_METRIC("tau", "threshold that was used for the head"),
    OWN_METRIC("tested_share", "tested tiles / tiles with an allowed pair", .axis = AXIS_SHARE),
    OWN_METRIC("tested_kept", "kept tiles / tested tiles", .axis = AXIS_SHARE),
    {0},
};

static int validate(void *params, struct err *err)
{
    struct params *p = params;
    if (p->bounds && p->theta != bounds_values[0])
        return err_set(err, ERR_USAGE, "bounds=%s sets theta; leave it out", bounds_of[p->bounds]);
    if (p->bounds)
        p->theta = bounds_values[p->bounds];
    p->bounds = 0;
    return 0;
}

const struct method method_sale = {
    .name = "sale",
    .summary = "blocks tested pair by pair with 4-bit queries and keys",
    .paper = "SALE, arXiv:2505.24179",
    .flags = METHOD_ROWS | METHOD_CAUSAL | METHOD_SINK,
    .params = {.table = options,
               .size = sizeof(struct params),
               .budget = BUDGET_PARAMS(
                   BUDGET_BY(BUDGET_LOG, "tau", .falls = true, .lo = 1e-6, .hi = 0.999)),
               .validate = validate},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .release = release,
    .metrics = metrics,
    .cost = cost,
    .why_full = why_full,
    .device = {.rule = rule, .take = take},
    .arith = {.kind = ARITH_CPU, .how = how, .attend = attend},
    .reuse = {.of = origin},
    .search = {.calibrate = calibrate, .passes = 1, .trials = 6, .on_device = judges},
    .tests = {.full = "tau=0",
              .variants = TEXTS("dense_below=0", "dense_below=0:tau=0.05:bits=16",
                                "dense_below=0:profile=paper:arith=sage1")},
};
