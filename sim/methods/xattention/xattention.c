/*
 * XAttention: 128 x 128 blocks are scored by sums along the antidiagonals of strided cells, and
 * every row block keeps its blocks of largest mass up to a share tau.
 *
 * R. Xu et al., "XAttention: Block Sparse Attention with Antidiagonal Scoring", arXiv:2503.16428.
 * Causal and bidirectional heads. Estimator N^2 d / S FLOP (causal), selection nb sorts of nb
 * masses, attention exact inside kept blocks.
 *
 * profile=official follows the published code (dot products averaged over the stride, column 0 and
 * diagonal forced, other rules in the first chunk of rows, padded keys in the softmax of
 * bidirectional heads); clean is the rule that the code means; paper is the printed algorithm. The
 * code sorts unstably, here ties go to the lower block. Its keep_sink and keep_recent switches do
 * nothing useful and are not offered.
 */
#include "core/log.h"
#include "core/mem.h"
#include "core/method.h"
#include "sim/blocks/blockgrid.h"
#include "sim/blocks/blockmap.h"
#include "sim/blocks/exact.h"
#include "sim/blocks/selectcost.h"
#include "sim/blocks/tokscore.h"
#include "sim/methods/xattention/xattention.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct params {
    int profile, stride, emulate, rule;
    double tau, norm, target_err;
    int64_t block;
    char *chunk;
};

static const struct opt options[] = {
    OPT_ENUM(struct params, profile, "official", TEXTS("official", "clean", "paper"),
             "official: the published code; clean: its rule without chunk and padding effects; "
             "paper: the printed algorithm."),
    OPT_ENUM(struct params, stride, "16", TEXTS("4", "8", "16", "32", "64"),
             "Antidiagonal run length S.", .unit = "tokens"),
    OPT_NUM(struct params, tau, "0.9", 0, 1, "mass share",
            "Share of a row block's estimated mass to keep."),
    OPT_NUM(struct params, norm, "1", 0, INFINITY, "", "Divides the scores.",
            .flags = OPT_MIN_OPEN | OPT_MAX_OPEN),
    OPT_INT(struct params, block, "128", XATTN_BLOCK, XATTN_BLOCK, "tokens", "Block size; fixed."),
    OPT_STR(
        struct params, chunk, "auto", NULL,
        "Rows of an estimator pass, a multiple of 128, or auto; matters for profile=official only.",
        .unit = "rows"),
    OPT_ENUM(struct params, emulate, "none", TEXTS("none", "bf16"),
             "bf16 rounds scores and block masses as the code does."),
    OPT_ENUM(struct params, rule, "repo", TEXTS("repo", "dp"),
             "calibrate: repo is the published routine, dp steps of 0.9 under an error bound.",
             .flags = OPT_IDENTITY_NOT),
    OPT_NUM(struct params, target_err, "0.05", 0, INFINITY, "",
            "calibrate, rule=dp: largest relative L2 error of the output.",
            .flags = OPT_IDENTITY_NOT),
    {0},
};

/* Rows of chunk=TEXT, 0 for auto, -1 if it is neither. */
static int64_t chunk_rows(const char *text)
{
    char *end;
    if (strcmp(text, "auto") == 0)
        return 0;
    if (!isdigit((unsigned char)text[0]))
        return -1;
    long long rows = strtoll(text, &end, 10);
    return *end || rows <= 0 || rows % XATTN_BLOCK || rows > (1ll << 40) ? -1 : rows;
}

static int validate(void *params, struct err *err)
{
    const struct params *p = params;
    if (chunk_rows(p->chunk) < 0)
        return err_set(err, ERR_USAGE,
                       "method xattention: chunk: '%s' is neither auto nor a multiple of %d",
                       p->chunk, XATTN_BLOCK);
    return 0;
}

static struct xattn_config resolve(const struct params *p)
{
    return (struct xattn_config){.profile = (enum xattn_profile)p->profile,
                                 .stride = 4 << p->stride,
                                 .tau = p->tau,
                                 .norm = p->norm,
                                 .bf16 = p->emulate == 1,
                                 .chunk = chunk_rows(p->chunk)};
}

struct state {
    struct xattn_config c;
    struct block_map map;
    bool chosen; /* the map is filled, by the first select or by a device's choice */
    const struct head_in *in;
    double scores; /* reduced pairs: antidiagonal sums that were formed */
    int stride;
    int64_t allowed; /* blocks that a dense mask would keep */
};

static void release(void *state)
{
    struct state *s = state;
    block_map_free(&s->map);
}

/* What follows from the sizes. */
static int count_blocks(struct state *s, struct err *err)
{
    const struct xattn_config *c = &s->c;
    struct xattn x;
    xattn_shape(&x, c);
    for (int64_t i = 0; i < x.row_blocks; i++) {
        s->scores += (double)xattn_pairs(&x, i);
        s->allowed += xattn_limit(&x, i);
    }
    return block_map_init(&s->map, c->nq, c->nk, XATTN_BLOCK, c->causal, err);
}

static int select_blocks(struct state *s, struct err *err)
{
    struct xattn x = {0};
    double *mass = NULL;
    bool *keep = NULL;
    int rc = 0;
    TRY(xattn_init(&x, &s->c, s->in->x.q, s->in->x.k, err));
    TRY(mem_alloc(&mass, x.cols, sizeof *mass, "block mass", err));
    TRY(mem_alloc(&keep, x.cols, sizeof *keep, "kept blocks", err));
    for (int64_t i = 0; i < x.row_blocks; i++) {
        TRY(xattn_keep(&x, i, mass, keep, err));
        for (int64_t j = 0; j < xattn_limit(&x, i); j++)
            if (keep[j])
                block_map_set(&s->map, i, j);
    }
out:
    xattn_free(&x);
    free(mass);
    free(keep);
    return rc;
}

static int check_shape(struct method_ctx *ctx, const struct head_in *in)
{
    if (in->x.causal && in->x.nq > in->x.nk)
        return method_skip(ctx, "more queries (%lld) than keys (%lld)", (long long)in->x.nq,
                           (long long)in->x.nk);
    return 0;
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    struct xattn_config base = resolve(params);
    struct state *s = state;
    int rc = check_shape(ctx, in);
    if (rc)
        return rc;
    s->in = in;
    s->c = xattn_config_of(&base, &in->x);
    s->stride = s->c.stride;
    TRY(count_blocks(s, err));
    ctx->unit_rows = XATTN_BLOCK;
out:
    return rc;
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct state *s = state;
    int rc = 0;
    if (!s->chosen)
        TRY(select_blocks(s, err));
    s->chosen = true;
    rc = block_map_mask(&s->map, row0, row1, out, err);
out:
    return rc;
}

static bool rule(const void *state, struct rule *rule, char why[160])
{
    const struct xattn_config *c = &((const struct state *)state)->c;
    if (c->bf16) {
        snprintf(why, 160, "the GPU side has emulate=none");
        return false;
    }
    rule->of.xattn = (struct xattn_rule){.profile = c->profile,
                                         .stride = c->stride,
                                         .chunk = c->chunk,
                                         .tau = c->tau,
                                         .norm = c->norm};
    return true;
}

static int take(void *state, const struct device_choice *c, struct err *err)
{
    struct state *s = state;
    s->chosen = true;
    return block_map_take(&s->map, c, err);
}

/* A score is a product of depth S d; each one enters the mass of its block. */
static bool cost(const void *state, struct select_cost *c)
{
    const struct state *s = state;
    const struct attn_in *x = &s->in->x;
    cost_products(c, s->scores, s->stride * x->d);
    cost_softmax(c, s->scores);
    cost_sums(c, s->scores);
    cost_rows(c, s->in, (double)(x->nq + x->nk), x->d);
    cost_kept(c, s->scores);
    return true;
}

/* density_native: kept blocks over those of a dense mask. */
static int report(void *state, struct record *r, struct err *err)
{
    const struct state *s = state;
    return record_metric(r, "density_native", (double)block_map_count(&s->map) / (double)s->allowed,
                         err);
}

/* ---- offline thresholds ---------------------------------------------------------------------- */

#define B XATTN_BLOCK
#define PIECE 16
#define SHARE 0.9
#define STEPS 11

struct xattn_config xattn_config_of(const struct xattn_config *base, const struct attn_in *x)
{
    struct xattn_config c = *base;
    c.nq = x->nq;
    c.nk = x->nk;
    c.d = x->d;
    c.scale = x->scale;
    c.causal = x->causal;
    if (c.chunk == 0)
        c.chunk = xattn_auto_chunk(x->nk);
    return c;
}

/* ---- the repository's rule -------------------------------------------------------------- */

/* Exact mass of the key blocks over the rows of row block i. p [PIECE][nk]. */
static int exact_row(const struct head_in *in, int64_t i, double *p, int64_t cols, double *mass,
                     struct err *err)
{
    int rc = 0;
    int64_t end = (i + 1) * B < in->x.nq ? (i + 1) * B : in->x.nq;
    memset(mass, 0, (size_t)cols * sizeof *mass);
    for (int64_t r0 = i * B; r0 < end; r0 += PIECE) {
        int64_t r1 = r0 + PIECE < end ? r0 + PIECE : end;
        TRY(exact_probs(in->exact, r0, r1, p, err));
        for (int64_t r = 0; r < r1 - r0; r++)
            for (int64_t k = 0; k < in->x.nk; k++)
                mass[k / B] += p[r * in->x.nk + k];
    }
out:
    return rc;
}

/* Smallest estimate among the fewest blocks that hold SHARE of the exact mass. */
static double lowest_needed(const double *exact, const double *est, int64_t n, const int32_t *order)
{
    double total = 0, running = 0, low = INFINITY;
    for (int64_t j = 0; j < n; j++)
        total += exact[j];
    for (int64_t e = 0; e < n; e++) {
        low = fmin(low, est[order[e]]);
        running += exact[order[e]];
        if (running >= SHARE * total)
            break;
    }
    return low;
}

static int repo_sample(const struct xattn_config *c, const struct head_in *in, double *tau,
                       struct err *err)
{
    int rc = 0;
    struct xattn x = {0};
    double *p = NULL, *exact = NULL, *est = NULL, above = 0, total = 0;
    int32_t *order = NULL;
    TRY(xattn_init(&x, c, in->x.q, in->x.k, err));
    TRY(mem_alloc(&p, PIECE * in->x.nk, sizeof *p, "exact rows", err));
    TRY(mem_alloc(&exact, x.cols, sizeof *exact, "exact mass", err));
    TRY(mem_alloc(&est, x.cols, sizeof *est, "estimated mass", err));
    TRY(mem_alloc(&order, x.cols, sizeof *order, "block order", err));
    for (int64_t i = 0; i < x.row_blocks; i++) {
        int64_t n = xattn_limit(&x, i);
        TRY(exact_row(in, i, p, x.cols, exact, err));
        xattn_row(&x, i, est);
        TRY(order_descending(exact, n, order, err));
        double low = lowest_needed(exact, est, n, order);
        for (int64_t j = 0; j < n; j++) {
            total += est[j];
            above += est[j] >= low ? est[j] : 0;
        }
    }
    *tau = total > 0 ? above / total : SHARE;
out:
    xattn_free(&x);
    free(p);
    free(exact);
    free(est);
    free(order);
    return rc;
}

int xattn_search_repo(const struct xattn_config *base, const struct head_in *samples, int n,
                      double *tau, struct err *err)
{
    double most = 0;
    for (int i = 0; i < n; i++) {
        struct xattn_config c = xattn_config_of(base, &samples[i].x);
        double t = 0;
        int rc = repo_sample(&c, &samples[i], &t, err);
        if (rc)
            return err_prefix(err, "sample %d", i + 1);
        most = fmax(most, t);
    }
    *tau = most;
    return 0;
}

/* ---- steps of 0.9 ----------------------------------------------------------------------- */

static double step_tau(int m)
{
    return 0.9 * pow(0.9, m);
}

static int64_t map_list(void *ctx, int t, int64_t row0, int32_t *cols)
{
    const struct block_map *maps = ctx;
    return block_map_row(&maps[t], row0 / B, cols);
}

static int build_maps(struct block_map *maps, const struct xattn_config *c,
                      const struct head_in *in, struct err *err)
{
    int rc = 0;
    struct xattn x = {0};
    double *mass = NULL;
    bool *keep = NULL;
    TRY(xattn_init(&x, c, in->x.q, in->x.k, err));
    TRY(mem_alloc(&mass, x.cols, sizeof *mass, "block mass", err));
    TRY(mem_alloc(&keep, x.cols, sizeof *keep, "kept blocks", err));
    for (int t = 0; t < STEPS; t++)
        TRY(block_map_init(&maps[t], c->nq, c->nk, B, c->causal, err));
    for (int64_t i = 0; i < x.row_blocks; i++)
        for (int t = 0; t < STEPS; t++) {
            x.c.tau = step_tau(t);
            TRY(xattn_keep(&x, i, mass, keep, err));
            for (int64_t j = 0; j < xattn_limit(&x, i); j++)
                if (keep[j])
                    block_map_set(&maps[t], i, j);
        }
out:
    xattn_free(&x);
    free(mass);
    free(keep);
    return rc;
}

int xattn_search_steps(const struct xattn_config *base, const struct head_in *samples, int n,
                       double target, double *tau, bool *met, struct err *err)
{
    int rc = 0, best = -1;
    struct block_score sum[STEPS], one[STEPS];
    struct block_map maps[STEPS] = {{0}};
    for (int t = 0; t < STEPS; t++)
        sum[t] = block_score_none;
    for (int i = 0; i < n; i++) {
        struct xattn_config c = xattn_config_of(base, &samples[i].x);
        struct block_grid g = {
            .in = &samples[i], .block = B, .unit = B, .n = STEPS, .ctx = maps, .list = map_list};
        TRY(build_maps(maps, &c, &samples[i], err));
        TRY(block_grid_run(&g, one, err));
        for (int t = 0; t < STEPS; t++) {
            block_score_add(&sum[t], &one[t], n);
            block_map_free(&maps[t]);
        }
    }
    for (int t = 0; t < STEPS; t++) {
        log_debug("xattention steps: tau=%.6f density %.6f keep p1 %.6f mean %.6f error %.6f",
                  step_tau(t), sum[t].density, sum[t].keep_p1, sum[t].keep_mean, sum[t].error);
        if (sum[t].error <= target && (best < 0 || sum[t].density < sum[best].density))
            best = t;
    }
    *met = best >= 0;
    *tau = step_tau(best < 0 ? 0 : best);
out:
    for (int t = 0; t < STEPS; t++)
        block_map_free(&maps[t]);
    return rc;
}

static int calibrate(struct method_ctx *ctx, const void *params, const struct head_in *samples,
                     int n, struct jw *w, struct err *err)
{
    const struct params *p = params;
    struct xattn_config base = resolve(p);
    double tau = 0;
    bool met = true;
    int rc = 0;
    for (int i = 0; i < n; i++)
        if ((rc = check_shape(ctx, &samples[i])) != 0)
            goto out;
    if (p->rule == 0)
        TRY(xattn_search_repo(&base, samples, n, &tau, err));
    else
        TRY(xattn_search_steps(&base, samples, n, p->target_err, &tau, &met, err));
    if (!met)
        log_warn("xattention: layer %d head %d: no threshold meets target_err; tau = 0.9",
                 samples[0].layer, samples[0].head);
    jw_knum(w, "tau", tau);
out:
    return rc;
}

const struct method method_xattention = {
    .name = "xattention",
    .summary = "blocks scored along antidiagonals, kept up to a share of each row's mass",
    .paper = "XAttention, arXiv:2503.16428",
    .flags = METHOD_ROWS | METHOD_CAUSAL | METHOD_BIDIRECTIONAL | METHOD_SINK,
    .params = {.table = options,
               .size = sizeof(struct params),
               .scopes = PARAM_SCOPES({"chunk", "profile=official"}),
               .budget = BUDGET_PARAMS(BUDGET_BY(BUDGET_COMPLEMENT, "tau")),
               .validate = validate},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .release = release,
    .cost = cost,
    .device = {.rule = rule, .take = take, .keep_on_device = method_always},
    .search = {.calibrate = calibrate, .passes = 1.5},
    /* official may misplace prompt chunks; tau = 1 keeps blocks with mass, and antidiagonals
     * sampled over a partial query block can miss a partial key block: full on squares only. */
    .tests = {.full = "profile=clean:tau=1"},
};
