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
#include "core/gemm.h"
#include "core/intmath.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/sort.h"
#include "sim/blocks/judge.h"
#include "sim/blocks/blockmap.h"
#include "sim/blocks/exact.h"
#include "sim/blocks/selectcost.h"
#include "sim/blocks/vslash.h"
#include "sim/methods/xattention/xattention.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- antidiagonal scores -------------------------------------------------------------------- */

/* With the queries of a run in reverse order the
 * antidiagonal sum is one matrix product of depth S d over reduced rows: N^2 d / S FLOP causal. The
 * masses of a row block are computed and used one row block at a time, so memory is linear in N. */

#define B XATTN_BLOCK

int64_t xattn_auto_chunk(int64_t nk)
{
    int64_t p = 1, chunk;
    while (p < nk)
        p *= 2;
    chunk = p > 2048 ? p : 2048;
    chunk = chunk < ((int64_t)1 << 28) / p ? chunk : ((int64_t)1 << 28) / p;
    return chunk > 2048 ? chunk : 2048;
}

/* Sizes alone, for xattn_pairs and xattn_limit; nothing to free. */
static void xattn_shape(struct xattn *x, const struct xattn_config *c)
{
    int64_t unit = c->profile == XATTN_OFFICIAL ? c->chunk : B;
    memset(x, 0, sizeof *x);
    x->c = *c;
    x->row_blocks = ceil_div(c->nq, B);
    x->key_blocks = ceil_div(c->nk, B);
    x->cols = ceil_div(c->nk, unit) * (unit / B);
    x->shift =
        c->profile == XATTN_OFFICIAL ? x->cols * B - ceil_div(c->nq, unit) * unit : c->nk - c->nq;
    x->reduced_keys = ceil_div(c->nk, c->stride);
}

int xattn_init(struct xattn *x, const struct xattn_config *c, const float *q, const float *k,
               struct err *err)
{
    int64_t depth = (int64_t)c->stride * c->d, rows = B / c->stride;
    xattn_shape(x, c);
    x->q = q;
    PASS_ON(mem_zalloc(&x->k, x->reduced_keys * depth, sizeof *x->k, "padded keys", err));
    memcpy(x->k, k, (size_t)(c->nk * c->d) * sizeof *k);
    PASS_ON(twins_find(&x->equal, x->k, x->reduced_keys, depth, err));
    PASS_ON(mem_alloc(&x->a, rows * depth, sizeof *x->a, "reduced rows", err));
    PASS_ON(mem_alloc(&x->s, rows * x->reduced_keys, sizeof *x->s, "antidiagonal scores", err));
    return mem_alloc(&x->w, x->cols * rows, sizeof *x->w, "reduced softmax row", err);
}

void xattn_free(struct xattn *x)
{
    free(x->k);
    twins_free(&x->equal);
    free(x->a);
    free(x->s);
    free(x->w);
    memset(x, 0, sizeof *x);
}

/* Reduced columns that reduced row i sees when causal: those whose first key is not later than the
 * last query of the run. */
static int64_t causal_columns(const struct xattn *x, int64_t i)
{
    return (i * x->c.stride + x->c.stride - 1 + x->shift) / x->c.stride + 1;
}

void xattn_scores(struct xattn *x, int64_t i)
{
    int d = x->c.d, stride = x->c.stride, rows = B / stride, depth = stride * d;
    for (int r = 0; r < rows; r++)
        for (int t = 0; t < stride; t++) {
            int64_t q = i * B + r * stride + stride - 1 - t;
            float *a = x->a + r * depth + t * d;
            if (q < x->c.nq)
                memcpy(a, x->q + q * d, (size_t)d * sizeof *a);
            else
                memset(a, 0, (size_t)d * sizeof *a);
        }
    int64_t keys = x->reduced_keys, limit = causal_columns(x, (i + 1) * rows - 1);
    keys = x->c.causal && limit < keys ? limit : keys;
    gemm_nt_f32(rows, keys, depth, 1, x->a, depth, x->k, depth, 0, x->s, x->reduced_keys);
    for (int r = 0; r < rows; r++)
        twins_level_f32(&x->equal, x->s + r * x->reduced_keys, keys);
    if (x->c.bf16)
        for (int r = 0; r < rows; r++)
            for (int64_t j = 0; j < keys; j++)
                x->s[r * x->reduced_keys + j] = dtype_round(DT_BF16, x->s[r * x->reduced_keys + j]);
}

/* Temperature of the reduced softmax: the mean of S products, or (paper) sums over sqrt(S). */
static double temperature(const struct xattn_config *c)
{
    double s = c->profile == XATTN_PAPER ? sqrt(c->stride) : c->stride;
    return c->scale / (s * c->norm);
}

/* Softmax of reduced row r into x->w; returns the number of its columns. The published code lets
 * padded keys in, with logit 0. */
static int64_t reduced_softmax(struct xattn *x, int64_t i, int r)
{
    int64_t rows = B / x->c.stride, limit = causal_columns(x, i * rows + r);
    int64_t real = x->reduced_keys, n = x->c.profile == XATTN_OFFICIAL ? x->cols * rows : real;
    n = x->c.causal && limit < n ? limit : n;
    const float *s = x->s + r * x->reduced_keys;
    double top = -INFINITY, sum = 0, f = temperature(&x->c);
    for (int64_t j = 0; j < n; j++) {
        x->w[j] = j < real ? f * s[j] : 0;
        top = fmax(top, x->w[j]);
    }
    for (int64_t j = 0; j < n; j++)
        sum += x->w[j] = exp(x->w[j] - top);
    for (int64_t j = 0; j < n; j++)
        x->w[j] /= sum;
    return n;
}

/* Reduced pairs of row block i that have real queries and keys. */
static int64_t xattn_pairs(const struct xattn *x, int64_t i)
{
    int64_t rows = B / x->c.stride, end = ceil_div(x->c.nq, x->c.stride), pairs = 0;
    end = (i + 1) * rows < end ? (i + 1) * rows : end;
    for (int64_t r = i * rows; r < end; r++) {
        int64_t seen = causal_columns(x, r);
        pairs += x->c.causal && seen < x->reduced_keys ? seen : x->reduced_keys;
    }
    return pairs;
}

void xattn_row(struct xattn *x, int64_t i, double *mass)
{
    int rows = B / x->c.stride;
    int64_t real = ceil_div(x->c.nq, x->c.stride);
    memset(mass, 0, (size_t)x->cols * sizeof *mass);
    xattn_scores(x, i);
    for (int r = 0; r < rows && i * rows + r < real; r++) {
        int64_t n = reduced_softmax(x, i, r);
        for (int64_t j = 0; j < n; j++)
            mass[j / rows] += x->w[j];
    }
    if (x->c.bf16)
        for (int64_t j = 0; j < x->cols; j++)
            mass[j] = dtype_round(DT_BF16, (float)mass[j]);
}

/* ---- selection -------------------------------------------------------------------------- */

/* Keep the blocks of order[0..n) not yet kept, most massive first, while the mass taken so far is
 * below req. */
static void take_below(const double *mass, const int32_t *order, int64_t n, double taken,
                       double req, bool *keep)
{
    for (int64_t e = 0; e < n && taken < req; e++)
        if (!keep[order[e]]) {
            keep[order[e]] = true;
            taken += mass[order[e]];
        }
}

/* In the first chunk the published code overwrites the flag of column 0 and shifts the comparison
 * by one place: the best other block is always kept, the (n+1)-th iff the diagonal and the first
 * n - 1 others are below req. Column 0 is added at the end. */
static void first_chunk(const double *mass, const int32_t *order, int64_t n, int64_t row,
                        double req, bool *keep)
{
    double taken = mass[row], last = 0;
    int64_t others = 0;
    for (int64_t e = 0; e < n; e++) {
        if (order[e] == row)
            continue;
        if (others++ > 0) {
            if (!(taken < req))
                break;
            taken += last;
        }
        last = mass[order[e]];
        keep[order[e]] = true;
    }
}

static void select_causal(const struct xattn_config *c, const double *mass, const int32_t *order,
                          int64_t n, struct xattn_place p, double req, bool *keep)
{
    bool forced = c->profile != XATTN_PAPER;
    double taken = 0;
    for (int64_t j = p.own; (forced || c->tau <= 0) && j <= p.row; j++)
        keep[j] = true;
    if (c->profile == XATTN_OFFICIAL && p.first == 0) {
        if (c->tau > 0)
            first_chunk(mass, order, n, p.row, req, keep);
    } else {
        keep[0] = keep[0] || forced;
        for (int64_t j = 0; forced && j < n; j++)
            taken += j == 0 || j >= p.own ? mass[j] : 0;
        if (c->tau > 0)
            take_below(mass, order, n, taken, req, keep);
    }
    keep[0] = keep[0] || forced;
}

static void select_all(const struct xattn_config *c, const double *mass, const int32_t *order,
                       int64_t n, int64_t row, double req, bool *keep)
{
    take_below(mass, order, n, 0, req, keep);
    if (c->profile == XATTN_OFFICIAL)
        keep[0] = true; /* whenever a block was left out; kept anyway otherwise */
    else if (c->tau <= 0)
        keep[row < 0 ? 0 : row < n ? row : n - 1] = true;
}

int xattn_select(const struct xattn_config *c, const double *mass, int64_t cols,
                 struct xattn_place place, bool *keep, struct err *err)
{
    OWN(free_at) int32_t *order = NULL;
    int64_t n = c->causal ? place.row + 1 : cols;
    double total = 0;
    PASS_ON(mem_alloc(&order, n, sizeof *order, "block order", err));
    PASS_ON(order_descending(mass, n, order, err));
    memset(keep, 0, (size_t)cols * sizeof *keep);
    for (int64_t j = 0; j < n; j++)
        total += mass[j];
    /* At tau = 1 rounding of the running sum must not leave a block with mass out. */
    for (int64_t j = 0; c->tau >= 1 && j < n; j++)
        keep[j] = mass[j] > 0;
    double req = c->tau >= 1 ? 0 : c->tau * total;
    if (c->causal)
        select_causal(c, mass, order, n, place, req, keep);
    else
        select_all(c, mass, order, n, place.row, req, keep);
    return 0;
}

static struct xattn_place xattn_place(const struct xattn *x, int64_t i)
{
    int64_t blocks = x->c.profile == XATTN_OFFICIAL ? x->c.chunk / B : 1;
    int64_t end = (i + 1) * B < x->c.nq ? (i + 1) * B : x->c.nq;
    assert(blocks > 0); /* a chunk is a multiple of B */
    return (struct xattn_place){.own = (i * B + x->shift) / B,
                                .row = (end - 1 + x->shift) / B,
                                .first = x->shift / B + i / blocks * blocks};
}

int64_t xattn_limit(const struct xattn *x, int64_t i)
{
    int64_t n = x->c.causal ? xattn_place(x, i).row + 1 : x->key_blocks;
    return n < x->key_blocks ? n : x->key_blocks;
}

int xattn_keep(struct xattn *x, int64_t i, double *mass, bool *keep, struct err *err)
{
    xattn_row(x, i, mass);
    return xattn_select(&x->c, mass, x->cols, xattn_place(x, i), keep, err);
}

struct params {
    int profile, stride, emulate, rule;
    double tau, norm, target_err;
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

/* Set the blocks that are kept at each of n thresholds, in a map each. */
static int fill_maps(struct block_map *maps, const double *tau, int n, const struct xattn_config *c,
                     const struct head_in *in, struct err *err)
{
    OWN(xattn_free) struct xattn x = {0};
    OWN(free_at) double *mass = NULL;
    OWN(free_at) bool *keep = NULL;
    PASS_ON(xattn_init(&x, c, in->x.q, in->x.k, err));
    PASS_ON(mem_alloc(&mass, x.cols, sizeof *mass, "block mass", err));
    PASS_ON(mem_alloc(&keep, x.cols, sizeof *keep, "kept blocks", err));
    for (int64_t i = 0; i < x.row_blocks; i++)
        for (int t = 0; t < n; t++) {
            x.c.tau = tau[t];
            PASS_ON(xattn_keep(&x, i, mass, keep, err));
            for (int64_t j = 0; j < xattn_limit(&x, i); j++)
                if (keep[j])
                    block_map_set(&maps[t], i, j);
        }
    return 0;
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
    PASS_ON(check_shape(ctx, in));
    s->in = in;
    s->c = xattn_config_of(&base, &in->x);
    s->stride = s->c.stride;
    PASS_ON(count_blocks(s, err));
    ctx->unit_rows = XATTN_BLOCK;
    return 0;
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct state *s = state;
    if (!s->chosen)
        PASS_ON(fill_maps(&s->map, &s->c.tau, 1, &s->c, s->in, err));
    s->chosen = true;
    return block_map_mask(&s->map, row0, row1, out, err);
}

static bool rule(const void *state, struct rule *rule, char why[160])
{
    const struct xattn_config *c = &((const struct state *)state)->c;
    if (c->bf16)
        return method_refuses(why, "the GPU side has emulate=none");
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

/* ---- offline thresholds --------------------------------------------------------------------- */

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
    int64_t end = (i + 1) * B < in->x.nq ? (i + 1) * B : in->x.nq;
    memset(mass, 0, (size_t)cols * sizeof *mass);
    for (int64_t r0 = i * B; r0 < end; r0 += PIECE) {
        int64_t r1 = r0 + PIECE < end ? r0 + PIECE : end;
        PASS_ON(exact_probs(in->exact, r0, r1, p, err));
        for (int64_t r = 0; r < r1 - r0; r++)
            for (int64_t k = 0; k < in->x.nk; k++)
                mass[k / B] += p[r * in->x.nk + k];
    }
    return 0;
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
    OWN(xattn_free) struct xattn x = {0};
    double above = 0, total = 0;
    OWN(free_at) double *p = NULL, *exact = NULL, *est = NULL;
    OWN(free_at) int32_t *order = NULL;
    PASS_ON(xattn_init(&x, c, in->x.q, in->x.k, err));
    PASS_ON(mem_alloc(&p, PIECE * in->x.nk, sizeof *p, "exact rows", err));
    PASS_ON(mem_alloc(&exact, x.cols, sizeof *exact, "exact mass", err));
    PASS_ON(mem_alloc(&est, x.cols, sizeof *est, "estimated mass", err));
    PASS_ON(mem_alloc(&order, x.cols, sizeof *order, "block order", err));
    for (int64_t i = 0; i < x.row_blocks; i++) {
        int64_t n = xattn_limit(&x, i);
        PASS_ON(exact_row(in, i, p, x.cols, exact, err));
        xattn_row(&x, i, est);
        PASS_ON(order_descending(exact, n, order, err));
        double low = lowest_needed(exact, est, n, order);
        for (int64_t j = 0; j < n; j++) {
            total += est[j];
            above += est[j] >= low ? est[j] : 0;
        }
    }
    *tau = total > 0 ? above / total : SHARE;
    return 0;
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

static int64_t map_list(void *ctx, int t, int64_t row0, int32_t *cols)
{
    const struct block_map *maps = ctx;
    return block_map_row(&maps[t], row0 / B, cols);
}

/* Among the thresholds 0.9 * 0.9^m, m = 0..10, the sparsest whose relative output error is <=
 * target on every sample; 0.9 and *met = false if there is none. */
static int xattn_search_steps(const struct xattn_config *base, const struct head_in *samples, int n,
                              double target, double *tau, bool *met, struct err *err)
{
    int rc = 0, best = -1;
    struct block_score sum[STEPS], one[STEPS];
    struct block_map maps[STEPS] = {{0}};
    double steps[STEPS];
    for (int t = 0; t < STEPS; t++) {
        sum[t] = block_score_none;
        steps[t] = 0.9 * pow(0.9, t);
    }
    for (int i = 0; i < n; i++) {
        struct xattn_config c = xattn_config_of(base, &samples[i].x);
        struct block_grid g = {
            .in = &samples[i], .block = B, .unit = B, .n = STEPS, .ctx = maps, .list = map_list};
        for (int t = 0; t < STEPS; t++)
            TRY(block_map_init(&maps[t], c.nq, c.nk, B, c.causal, err));
        TRY(fill_maps(maps, steps, STEPS, &c, &samples[i], err));
        TRY(block_grid_run(&g, one, err));
        for (int t = 0; t < STEPS; t++) {
            block_score_add(&sum[t], &one[t], n);
            block_map_free(&maps[t]);
        }
    }
    for (int t = 0; t < STEPS; t++) {
        log_debug("xattention steps: tau=%.6f density %.6f keep p1 %.6f mean %.6f error %.6f",
                  steps[t], sum[t].density, sum[t].keep_p1, sum[t].keep_mean, sum[t].error);
        if (sum[t].error <= target && (best < 0 || sum[t].density < sum[best].density))
            best = t;
    }
    *met = best >= 0;
    *tau = steps[best < 0 ? 0 : best];
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
    for (int i = 0; i < n; i++)
        PASS_ON(check_shape(ctx, &samples[i]));
    if (p->rule == 0)
        PASS_ON(xattn_search_repo(&base, samples, n, &tau, err));
    else
        PASS_ON(xattn_search_steps(&base, samples, n, p->target_err, &tau, &met, err));
    if (!met)
        log_warn("xattention: layer %d head %d: no threshold meets target_err; tau = 0.9",
                 samples[0].layer, samples[0].head);
    jw_knum(w, "tau", tau);
    return 0;
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
