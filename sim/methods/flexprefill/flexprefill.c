/*
 * FlexPrefill: per head either the best block columns and diagonals, counted from the exact rows of
 * the last 128 queries, or blocks of pooled queries against pooled keys.
 *
 * X. Lai et al., "FlexPrefill: A Context-Aware Sparse Attention Mechanism for Efficient
 * Long-Sequence Inference", arXiv:2502.20766. Heads with N_q = N_k. Sampling 2 B N d, two
 * sorts of N values; query-aware heads add nb^2 pooled products. Attention exact inside kept B x B
 * blocks.
 *
 * profile=official follows the published code, profile=paper selects the tokens that hold gamma of
 * the sampled mass, profile=frontier is a port without the pattern test that runs 64-row lists of
 * blocks and columns. Deviations: the published code sorts unstably, here ties go to the lower
 * block column and the lower bin; entries above the diagonal, which the code may list at gamma near
 * 1, are left out. Bidirectional heads are not the paper's: a distance stands for both sides of the
 * query, columns and pooled blocks for all queries; the sampled rows stay the last ones.
 */
#include "core/intmath.h"
#include "core/mem.h"
#include "core/attention.h"
#include "core/sort.h"
#include "sim/blocks/blockpool.h"
#include "sim/blocks/gpusum.h"
#include "sim/blocks/selectcost.h"
#include "sim/blocks/slicemask.h"
#include "sim/blocks/vslash.h"
#include "sim/methods/flexprefill/flexprefill.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the two block patterns: algorithms 1, 3 and 4 ------------------------------------------ */

/* Official: gamma is applied to sorted tokens, the count is divided by 128, and that many best
 * block columns and diagonals are kept; these blocks are in general not the blocks that hold the
 * counted tokens. Paper: the tokens themselves are selected, and the mask is the smallest block
 * superset. */

/* The published code divides token counts by 128 whatever the block size. */
#define TOKENS_PER_BLOCK 128

/* ---- estimate ------------------------------------------------------------------------------- */

/* FlexPrefill's estimate (arXiv:2502.20766, algorithms 2 and 3): exact rows
 * of the last B queries, token and block sums, pooled keys, and the distance between both estimates
 * of the column mass.
 *
 * Cost: 2 B N d for the rows, N d for pooling, two sorts of N values. */

/* Smallest and largest number of block columns, and of block diagonals. */
static int64_t flex_min_blocks(const struct flex_config *c)
{
    int64_t b = ceil_div(c->min_budget, c->block);
    return b > 1 ? b : 1;
}

static int64_t flex_max_blocks(const struct flex_config *c)
{
    int64_t nb = ceil_div(c->n, c->block), b = ceil_div(c->max_budget, c->block);
    return c->max_budget > 0 && b < nb ? b : nb;
}

/* False for a prompt that is so short that the head stays dense. */
static bool flex_applies(const struct flex_config *c)
{
    return c->n > 2 * c->block && c->n > flex_min_blocks(c) * c->block;
}

int flex_scores_init(struct flex_scores *s, const struct flex_config *c, int d, struct err *err)
{
    memset(s, 0, sizeof *s);
    s->nb = ceil_div(c->n, c->block);
    PASS_ON(mem_zalloc(&s->ver, c->n, sizeof *s->ver, "column mass", err));
    PASS_ON(mem_zalloc(&s->sla, c->n, sizeof *s->sla, "distance mass", err));
    PASS_ON(mem_zalloc(&s->col, s->nb, sizeof *s->col, "block columns", err));
    PASS_ON(mem_zalloc(&s->diag, s->nb, sizeof *s->diag, "block diagonals", err));
    PASS_ON(mem_zalloc(&s->est, s->nb, sizeof *s->est, "pooled estimate", err));
    PASS_ON(mem_zalloc(&s->kbar, s->nb * d, sizeof *s->kbar, "pooled keys", err));
    return mem_zalloc(&s->qbar, s->nb * d, sizeof *s->qbar, "pooled queries", err);
}

void flex_scores_free(struct flex_scores *s)
{
    free(s->ver);
    free(s->sla);
    free(s->col);
    free(s->diag);
    free(s->est);
    free(s->kbar);
    free(s->qbar);
    memset(s, 0, sizeof *s);
}

void flex_block_sums(struct flex_scores *s, const struct flex_config *c)
{
    memset(s->col, 0, (size_t)s->nb * sizeof *s->col);
    memset(s->diag, 0, (size_t)s->nb * sizeof *s->diag);
    for (int64_t k = 0; k < c->n; k++) {
        s->col[k / c->block] += s->ver[k];
        s->diag[(c->n - 1 - k) / c->block] += s->sla[k];
    }
}

/* ---- pooled queries and keys ------------------------------------------------------------ */

static float bf16(float x)
{
    return dtype_round(DT_BF16, x);
}

/* Channel sum of x[0..rows) (stride d) in bf16, as the published kernel adds the tokens of a block
 * of `block`: 4 warps, of which every thread loads 8 channels, so that 256 / d lanes of a warp
 * (d rounded up to a power of two) take consecutive tokens. Tokens past the end are zeros. */
static float bf16_token_sum(const float *x, int64_t rows, int64_t block, int d)
{
    enum { WARPS = 4, LANES = 32 };
    float s[WARPS * LANES];
    int wide = 8, lanes = LANES, warps = WARPS;
    while (wide < d)
        wide *= 2;
    while (lanes > 1 && (lanes * wide > 256 || lanes > block))
        lanes /= 2;
    while (warps > 1 && warps * lanes > block)
        warps /= 2;
    for (int i = 0; i < warps * lanes; i++) {
        s[i] = i < rows ? bf16(x[i * d]) : 0;
        for (int64_t t = i + warps * lanes; t < rows; t += warps * lanes)
            s[i] = bf16(s[i] + bf16(x[t * d]));
    }
    return gpusum_fold(s, warps, lanes);
}

/* Mean of the keys of block j over its real tokens. */
static void pool_keys(const struct flex_config *c, const struct head_in *in, int64_t j, float *out)
{
    int d = in->x.d;
    int64_t k0 = j * c->block, keys = c->n - k0 < c->block ? c->n - k0 : c->block;
    if (!c->bf16)
        block_mean(in->x.k + k0 * d, keys, d, DT_F32, out);
    for (int e = 0; c->bf16 && e < d; e++)
        out[e] = bf16(bf16_token_sum(in->x.k + k0 * d + e, keys, c->block, d) / (float)keys);
}

/* The code divides the sum of a partial block by the block size first, and scales last. */
void flex_pool_query(const struct flex_config *c, const struct head_in *in, int64_t i, float *out)
{
    int d = in->x.d;
    int64_t r0 = i * c->block, rows = c->n - r0 < c->block ? c->n - r0 : c->block;
    const float *q = in->x.q + r0 * d;
    if (!c->bf16)
        block_mean(q, rows, d, DT_F32, out);
    for (int e = 0; c->bf16 && e < d; e++) {
        double sum = 0;
        for (int64_t t = 0; t < rows; t++)
            sum += bf16(q[t * d + e]);
        float mean = bf16((float)(sum / (double)c->block));
        if (rows < c->block)
            mean = bf16(bf16(mean * (float)c->block) / (float)rows);
        out[e] = bf16(mean * (float)c->scale);
    }
}

double flex_pooled_score(const struct flex_config *c, const float *qbar, const float *kbar, int d)
{
    double dot = 0;
    for (int e = 0; e < d; e++)
        dot += (double)qbar[e] * kbar[e];
    return c->bf16 ? bf16((float)dot) : c->scale * dot;
}

/* Mean of the last `rows` queries; the code scales and rounds every one of them first. */
static void pool_last_queries(const struct flex_config *c, const struct head_in *in, int64_t rows,
                              float *out)
{
    int d = in->x.d;
    const float *q = in->x.q + (c->n - rows) * d;
    if (!c->bf16)
        block_mean(q, rows, d, DT_F32, out);
    for (int e = 0; c->bf16 && e < d; e++) {
        double sum = 0;
        for (int64_t t = 0; t < rows; t++)
            sum += bf16(bf16(q[t * d + e]) * (float)c->scale);
        out[e] = bf16((float)(sum / (double)rows));
    }
}

/* Column mass as mean-pooled keys see it: softmax over all blocks of scale * mean(q) . kbar. */
static int pooled_estimate(struct flex_scores *s, const struct flex_config *c,
                           const struct head_in *in, int64_t rows, struct err *err)
{
    int d = in->x.d;
    OWN(free_at) float *q = NULL;
    PASS_ON(mem_alloc(&q, d, sizeof *q, "mean query", err));
    pool_last_queries(c, in, rows, q);
    for (int64_t j = 0; j < s->nb; j++) {
        pool_keys(c, in, j, s->kbar + j * d);
        s->est[j] = flex_pooled_score(c, q, s->kbar + j * d, d);
    }
    softmax_f64(s->est, s->nb);
    return 0;
}

int flex_scores_run(struct flex_scores *s, const struct flex_config *c, const struct head_in *in,
                    int64_t rows, bool pooled, struct err *err)
{
    PASS_ON(flex_scores_init(s, c, in->x.d, err));
    PASS_ON(
        token_scores(in, rows, c->bf16 ? TOK_BF16_QUERY : TOK_EXACT, DT_F32, s->ver, s->sla, err));
    for (int64_t k = 0; k < c->n; k++) {
        s->ver[k] /= (double)rows;
        s->sla[k] /= (double)rows;
    }
    flex_block_sums(s, c);
    if (pooled)
        PASS_ON(pooled_estimate(s, c, in, rows, err));
    return 0;
}

int flex_count(const double *v, int64_t n, double gamma, bool official, int64_t *count,
               struct err *err)
{
    OWN(free_at) int32_t *order = NULL;
    int64_t i = 0;
    double sum = 0;
    if (gamma >= 1) {
        *count = official ? n + 1 : n;
        return 0;
    }
    PASS_ON(mem_alloc(&order, n, sizeof *order, "score order", err));
    PASS_ON(order_descending(v, n, order, err));
    if (official) {
        while (i < n && (sum += v[order[i]]) <= gamma)
            i++;
        i++;
    } else {
        while (i < n && (i == 0 || sum < gamma))
            sum += v[order[i++]];
    }
    *count = i;
    return 0;
}

double flex_js(const double *a, const double *b, int64_t n, bool zero_is_nan)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        float x = (float)a[i], y = (float)b[i];
        double m = ((double)x + y) / 2;
        if ((x == 0 || y == 0) && zero_is_nan)
            return NAN;
        sum += (x > 0 ? x * log(x / m) : 0) / 2 + (y > 0 ? y * log(y / m) : 0) / 2;
    }
    return sqrt(fmax(sum, 0));
}

static void set_column(struct block_map *m, int64_t j)
{
    for (int64_t i = m->causal ? j : 0; i < m->rows; i++)
        block_map_set(m, i, j);
}

/* Diagonal d; in a bidirectional head on both sides. */
static void set_diagonal(struct block_map *m, int64_t d)
{
    for (int64_t i = d; i < m->rows; i++) {
        block_map_set(m, i, i - d);
        if (!m->causal)
            block_map_set(m, i - d, i);
    }
}

/* ---- official: best block columns and diagonals ----------------------------------------- */

static int64_t blocks_of(const struct flex_config *c, int64_t tokens)
{
    int64_t k = tokens / TOKENS_PER_BLOCK + 1, lo = flex_min_blocks(c), hi = flex_max_blocks(c);
    k = k < lo ? lo : k;
    return k > hi ? hi : k;
}

/* Indices of the best `count` of score[0..n) into order, entry `forced` first. */
static int best_blocks(const double *score, int64_t n, int64_t forced, int32_t *order,
                       struct err *err)
{
    OWN(free_at) double *s = NULL;
    PASS_ON(mem_alloc(&s, n, sizeof *s, "block scores", err));
    memcpy(s, score, (size_t)n * sizeof *s);
    s[forced] = INFINITY;
    return order_descending(s, n, order, err);
}

static int vertical_slash(struct flex_plan *p, const struct flex_scores *s, struct err *err)
{
    OWN(free_at) int32_t *order = NULL;
    int64_t nb = s->nb;
    PASS_ON(mem_alloc(&order, nb, sizeof *order, "block order", err));
    PASS_ON(best_blocks(s->col, nb, 0, order, err));
    for (int64_t i = 0; i < p->k_v; i++)
        set_column(&p->map, order[i]);
    PASS_ON(best_blocks(s->diag, nb, nb - 1, order, err));
    for (int64_t i = 0; i < p->k_s; i++)
        set_diagonal(&p->map, nb - 1 - order[i]);
    return 0;
}

/* ---- query-aware ------------------------------------------------------------------------ */

struct entry {
    double w;
    int64_t id;
};

static int by_weight(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->w != y->w)
        return x->w < y->w ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

int flex_keep_entries(const double *w, int64_t nb, double budget, bool cross, struct block_map *map,
                      struct err *err)
{
    OWN(free_at) struct entry *e = NULL;
    int64_t n = 0, kept = 0;
    double sum = 0;
    PASS_ON(mem_alloc(&e, nb * nb, sizeof *e, "block map entries", err));
    for (int64_t i = 0; i < nb; i++)
        for (int64_t j = 0; j < (map->causal ? i + 1 : nb); j++)
            e[n++] = (struct entry){w[i * nb + j], i * nb + j};
    qsort(e, (size_t)n, sizeof *e, by_weight);
    if (cross)
        while (kept < n && (kept == 0 || sum < budget))
            sum += e[kept++].w;
    else
        while (kept < n && (sum += e[kept].w) <= budget)
            kept++;
    for (int64_t i = 0; i < kept; i++)
        block_map_set(map, e[i].id / nb, e[i].id % nb);
    return 0;
}

/* Row I of the estimated block map: softmax over the J that it sees of scale * qbar_I . kbar_J. */
static void pooled_row(const struct flex_config *c, const struct flex_scores *s, int d, int64_t i,
                       double *w)
{
    double top = -INFINITY, sum = 0;
    int64_t seen = c->both ? s->nb : i + 1;
    for (int64_t j = 0; j < seen; j++) {
        w[j] = flex_pooled_score(c, s->qbar + i * d, s->kbar + j * d, d);
        top = fmax(top, w[j]);
    }
    for (int64_t j = 0; j < seen; j++)
        sum += w[j] = exp(w[j] - top);
    for (int64_t j = 0; j < seen; j++)
        w[j] /= sum;
}

static int query_aware(struct flex_plan *p, const struct flex_config *c, struct flex_scores *s,
                       const struct head_in *in, struct err *err)
{
    int d = in->x.d;
    int64_t nb = s->nb;
    OWN(free_at) double *w = NULL;
    PASS_ON(mem_zalloc(&w, nb * nb, sizeof *w, "estimated block map", err));
    for (int64_t i = 0; i < nb; i++) {
        flex_pool_query(c, in, i, s->qbar + i * d);
        pooled_row(c, s, d, i, w + i * nb);
    }
    /* At gamma = 1 rounding of the running sum must not leave entries out. */
    double budget = c->gamma >= 1 ? INFINITY : c->gamma * (double)nb;
    return flex_keep_entries(w, nb, budget, c->profile == FLEX_PAPER, &p->map, err);
}

/* ---- paper: the tokens themselves ------------------------------------------------------- */

static int64_t budget_tokens(const struct flex_config *c, int64_t tokens)
{
    tokens = tokens < c->min_budget ? c->min_budget : tokens;
    tokens = c->max_budget > 0 && tokens > c->max_budget ? c->max_budget : tokens;
    return tokens < c->n ? tokens : c->n;
}

static int token_superset(struct flex_plan *p, const struct flex_config *c,
                          const struct flex_scores *s, struct err *err)
{
    OWN(free_at) int32_t *order = NULL;
    PASS_ON(mem_alloc(&order, c->n, sizeof *order, "token order", err));
    PASS_ON(order_descending(s->ver, c->n, order, err));
    for (int64_t i = 0; i < p->k_v; i++)
        set_column(&p->map, order[i] / c->block);
    PASS_ON(order_descending(s->sla, c->n, order, err));
    for (int64_t i = 0; i < p->k_s; i++) {
        set_diagonal(&p->map, order[i] / c->block);
        if (order[i] % c->block)
            set_diagonal(&p->map, order[i] / c->block + 1);
    }
    set_column(&p->map, 0);
    return 0;
}

/* ---- both ------------------------------------------------------------------------------- */

int flex_plan_build(struct flex_plan *p, const struct flex_config *c, struct flex_scores *s,
                    const struct head_in *in, struct err *err)
{
    bool official = c->profile == FLEX_OFFICIAL;
    memset(p, 0, sizeof *p);
    PASS_ON(block_map_init(&p->map, c->n, c->n, c->block, !c->both, err));
    PASS_ON(flex_count(s->ver, c->n, c->gamma, official, &p->t_v, err));
    PASS_ON(flex_count(s->sla, c->n, c->gamma, official, &p->t_s, err));
    p->js = flex_js(s->est, s->col, s->nb, official);
    p->query_aware = p->js < c->tau; /* false for NaN */
    if (official) {
        p->k_v = p->query_aware ? flex_min_blocks(c) : blocks_of(c, p->t_v);
        p->k_s = p->query_aware ? flex_min_blocks(c) : blocks_of(c, p->t_s);
        PASS_ON(vertical_slash(p, s, err));
    } else if (!p->query_aware) {
        p->k_v = budget_tokens(c, p->t_v);
        p->k_s = budget_tokens(c, p->t_s);
        PASS_ON(token_superset(p, c, s, err));
    }
    if (p->query_aware)
        PASS_ON(query_aware(p, c, s, in, err));
    set_diagonal(&p->map, 0);
    return 0;
}

/* The plan of a device (profile official): its mask, and `own` that came beside it. */
static int flex_plan_take(struct flex_plan *p, const struct flex_config *c,
                          const struct device_choice *chosen, const struct flex_own *own,
                          struct err *err)
{
    *p = (struct flex_plan){.query_aware = own->aware != 0,
                            .js = own->js,
                            .t_v = own->tokens[0],
                            .t_s = own->tokens[1]};
    p->k_v = p->query_aware ? flex_min_blocks(c) : blocks_of(c, p->t_v);
    p->k_s = p->query_aware ? flex_min_blocks(c) : blocks_of(c, p->t_s);
    PASS_ON(block_map_init(&p->map, c->n, c->n, c->block, !c->both, err));
    return block_map_take(&p->map, chosen, err);
}

/* Kept blocks over those that dense attention has. */
static double flex_work(const struct flex_plan *p)
{
    double nb = (double)p->map.rows;
    return (double)block_map_count(&p->map) / (p->map.causal ? nb * (nb + 1) / 2 : nb * nb);
}

void flex_plan_free(struct flex_plan *p)
{
    block_map_free(&p->map);
    memset(p, 0, sizeof *p);
}

enum profile { PROFILE_OFFICIAL, PROFILE_PAPER, PROFILE_FRONTIER };

/* Sampled rows and forced entries of the port. */
#define FRONTIER_ROWS 512
#define FRONTIER_COLS 4
#define FRONTIER_DISTS 64

static const char *const presets[] = {"profile", "paper-a", "paper-b", "readme",
                                      "api",     "tight",   NULL};

struct params {
    int profile, preset, block, emulate;
    double gamma, tau;              /* NAN: from the preset */
    int64_t min_budget, max_budget; /* min: INT64_MIN: from the preset */
    double sparsity;                /* NAN: gamma decides */
};

static const struct opt options[] = {
    OPT_ENUM(struct params, profile, "official", TEXTS("official", "paper", "frontier"),
             "official: the published code; paper: selects the tokens themselves; frontier: a port "
             "without the pattern test."),
    OPT_ENUM(
        struct params, preset, "profile", presets,
        "gamma, tau and min_budget of a published setting; unset: paper-a, frontier 0.65 and 512.",
        .flags = OPT_CALIB_FIXED),
    OPT_NUM(struct params, gamma, NULL, 0, 1, "mass share",
            "Cumulative threshold; unset: the preset's (0.95).", .flags = OPT_MIN_OPEN),
    OPT_NUM(struct params, tau, NULL, 0, 0.8326, "JS distance",
            "Query-aware below this distance, 0 = never; unset: the preset's (0.1)."),
    OPT_INT(struct params, min_budget, NULL, 0, 9e15, "tokens",
            "Least columns and least distances; unset: the preset's (1024)."),
    OPT_INT(struct params, max_budget, "0", 0, 9e15, "tokens",
            "Most columns and most distances, 0 = no limit."),
    OPT_ENUM(struct params, block, "128", TEXTS("32", "64", "128"),
             "Block size and number of sampled rows.", .unit = "tokens"),
    OPT_NUM(struct params, sparsity, NULL, 0, 1, "share of blocks",
            "gamma is searched per head so that this share of dense attention's blocks is left "
            "out: papers' \"FlexPrefill (0.35)\".",
            .flags = OPT_MIN_OPEN | OPT_MAX_OPEN),
    OPT_ENUM(struct params, emulate, "none", TEXTS("none", "bf16"),
             "bf16 reproduces the code's roundings of scaled queries, logits, pooled means and "
             "pooled scores."),
    {0},
};

/* Settings by preset: none, the authors' two benchmark settings, the README's, the function's
 * defaults, a strict one; and the port's. */
struct setting {
    double gamma, tau;
    int64_t min_budget;
};
static const struct setting SETTINGS[] = {{0.95, 0.1, 1024}, {0.95, 0.1, 1024}, {0.90, 0.1, 1024},
                                          {0.90, 0.1, 512},  {0.90, 0, 0},      {0.99, 0.1, 1024}};
static const struct setting FRONTIER_SETTING = {0.65, 0, 512};

static struct flex_config resolve(const struct params *p, const struct attn_in *x)
{
    static const int SIZES[] = {32, 64, 128};
    struct setting s = SETTINGS[p->preset];
    if (p->profile == PROFILE_FRONTIER && p->preset == 0)
        s = FRONTIER_SETTING;
    return (struct flex_config){
        .profile = p->profile == PROFILE_PAPER ? FLEX_PAPER : FLEX_OFFICIAL,
        .n = x->nk,
        .block = SIZES[p->block],
        .gamma = isnan(p->gamma) ? s.gamma : p->gamma,
        .tau = isnan(p->tau) ? s.tau : p->tau,
        .scale = x->scale,
        .min_budget = p->min_budget == INT64_MIN ? s.min_budget : p->min_budget,
        .max_budget = p->max_budget,
        .bf16 = p->emulate == 1,
        .both = !x->causal,
    };
}

enum kind { DENSE, PLAN, LISTS };

struct state {
    enum kind kind;
    const struct head_in *in;
    struct flex_config c;
    struct flex_plan plan; /* PLAN */
    struct vslash lists;   /* LISTS */
    int64_t t_v, t_s;
    double sparsity;         /* to search for; NAN: none */
    double reached;          /* share of blocks left out by a search, NAN without one */
    bool chosen;             /* by the first select, or taken */
    struct slice_mask given; /* LISTS: the mask that was taken, if it is here */
};

static int validate(void *params, struct err *err)
{
    const struct params *p = params;
    const char *other = !isnan(p->gamma)                 ? "gamma"
                        : p->profile == PROFILE_FRONTIER ? "profile=frontier"
                                                         : NULL;
    if (!isnan(p->sparsity) && other)
        return err_set(err, ERR_USAGE, "sparsity searches gamma itself: leave %s out", other);
    return 0;
}

static void release(void *state)
{
    struct state *s = state;
    flex_plan_free(&s->plan);
    vslash_free(&s->lists);
    slice_mask_free(&s->given);
}

static int64_t frontier_tokens(const struct flex_config *c, int64_t tokens)
{
    tokens = tokens < c->min_budget ? c->min_budget : tokens;
    return c->max_budget > 0 && tokens > c->max_budget ? c->max_budget : tokens;
}

static int choose_lists(struct state *s, const struct head_in *in, struct err *err)
{
    OWN(flex_scores_free) struct flex_scores f = {0};
    int64_t n = s->c.n, rows = n < FRONTIER_ROWS ? n : FRONTIER_ROWS;
    PASS_ON(flex_scores_run(&f, &s->c, in, rows, false, err));
    PASS_ON(flex_count(f.ver, n, s->c.gamma, true, &s->t_v, err));
    PASS_ON(flex_count(f.sla, n, s->c.gamma, true, &s->t_s, err));
    PASS_ON(vslash_select(&s->lists, n, f.ver, frontier_tokens(&s->c, s->t_v), FRONTIER_COLS, f.sla,
                          frontier_tokens(&s->c, s->t_s), FRONTIER_DISTS, err));
    s->lists.both = s->c.both;
    return 0;
}

/* The plan at gamma = 1 - e^-t. */
static int plan_at(struct state *s, double t, struct flex_scores *f, const struct head_in *in,
                   struct err *err)
{
    s->c.gamma = -expm1(-t);
    flex_plan_free(&s->plan);
    return flex_plan_build(&s->plan, &s->c, f, in, err);
}

/* gamma whose plan comes nearest to the share of blocks; more gamma keeps more. */
static int search_gamma(struct state *s, double sparsity, struct flex_scores *f,
                        const struct head_in *in, struct err *err)
{
    double lo = 1e-6, hi = 30, want = 1 - sparsity, below;
    for (int i = 0; i < 32; i++) {
        PASS_ON(plan_at(s, (lo + hi) / 2, f, in, err));
        if (flex_work(&s->plan) < want)
            lo = (lo + hi) / 2;
        else
            hi = (lo + hi) / 2;
    }
    PASS_ON(plan_at(s, lo, f, in, err));
    below = flex_work(&s->plan);
    PASS_ON(plan_at(s, hi, f, in, err));
    if (fabs(below - want) < fabs(flex_work(&s->plan) - want))
        PASS_ON(plan_at(s, lo, f, in, err));
    s->reached = 1 - flex_work(&s->plan);
    return 0;
}

static int choose_plan(struct state *s, const struct head_in *in, struct err *err)
{
    OWN(flex_scores_free) struct flex_scores f = {0};
    PASS_ON(flex_scores_run(&f, &s->c, in, s->c.block, true, err));
    PASS_ON(isnan(s->sparsity) ? flex_plan_build(&s->plan, &s->c, &f, in, err)
                               : search_gamma(s, s->sparsity, &f, in, err));
    s->t_v = s->plan.t_v;
    s->t_s = s->plan.t_s;
    return 0;
}

static int choose(struct state *s, struct err *err)
{
    s->chosen = true;
    return s->kind == LISTS  ? choose_lists(s, s->in, err)
           : s->kind == PLAN ? choose_plan(s, s->in, err)
                             : 0;
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    const struct params *p = params;
    struct state *s = state;
    PASS_ON(method_whole_prompt(ctx, in));
    s->in = in;
    s->c = resolve(p, &in->x);
    s->reached = NAN;
    if (p->profile == PROFILE_FRONTIER)
        PASS_ON(method_all_rows(ctx, in, "profile=frontier"));
    s->sparsity = p->sparsity;
    s->kind = p->profile == PROFILE_FRONTIER ? LISTS : flex_applies(&s->c) ? PLAN : DENSE;
    if (s->kind == DENSE && !isnan(s->sparsity))
        s->reached = 0;
    if (in->rows) /* whether the sample serves depends on the pattern */
        PASS_ON(choose(s, err));
    if (s->kind == PLAN && s->plan.query_aware)
        PASS_ON(method_all_rows(ctx, in, "a query-aware head"));
    ctx->unit_rows = s->kind == LISTS ? VSLASH_BLOCK : s->c.block;
    return 0;
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct state *s = state;
    PASS_ON(s->chosen ? 0 : choose(s, err));
    if (s->given.bits)
        return slice_mask_lists(&s->given, row0, row1, out, err);
    if (s->kind == LISTS)
        return vslash_mask(&s->lists, true, row0, row1, out, err);
    if (s->kind == PLAN)
        return block_map_mask(&s->plan.map, row0, row1, out, err);
    mask_full(out, s->c.n, s->c.n, row0, row1, !s->c.both);
    out->bq = out->bk = out->exec_bq = out->exec_bk = s->c.block;
    return 0;
}

/* ---- the choice of a device ----------------------------------------------------------------- */

static bool rule(const void *state, struct rule *rule, char why[160])
{
    const struct state *s = state;
    const struct flex_config *c = &s->c;
    bool all = s->kind == DENSE, lists = s->kind == LISTS;
    int64_t nb = ceil_div(c->n, c->block), most = c->max_budget > 0 ? c->max_budget : c->n;
    if (!all && (c->profile == FLEX_PAPER || c->bf16))
        return method_refuses(
            why, "the GPU side has the profiles official and frontier with emulate=none");
    if (!all && !isnan(s->sparsity))
        return method_refuses(why, "sparsity is searched on the CPU; give gamma");
    rule->of.flex =
        (struct flex_rule){.all = all,
                           .lists = lists,
                           .block = c->block,
                           .gamma = c->gamma,
                           .tau = c->tau,
                           .least = lists ? MIN(c->min_budget, c->n) : MIN(flex_min_blocks(c), nb),
                           .most = lists ? MIN(most, c->n) : flex_max_blocks(c)};
    return true;
}

static int take_lists(struct state *s, const struct accel_own *own, struct err *err)
{
    int64_t words = ceil_div(s->c.n, 32);
    struct flex_own numbers;
    PASS_ON(
        accel_own_check(own, (int64_t)sizeof numbers + 2 * words * (int64_t)sizeof(uint32_t), err));
    memcpy(&numbers, own->data, sizeof numbers);
    s->t_v = numbers.tokens[0];
    s->t_s = numbers.tokens[1];
    PASS_ON(vslash_from_bits(&s->lists, s->c.n, (const uint32_t *)own->data + sizeof numbers / 4,
                             words, err));
    s->lists.both = s->c.both;
    PASS_ON(vslash_add_all(&s->lists, err));
    s->chosen = true;
    return 0;
}

static int take_plan(struct state *s, const struct device_choice *c, struct err *err)
{
    struct flex_own numbers;
    PASS_ON(accel_own_check(c->own, sizeof numbers, err));
    memcpy(&numbers, c->own->data, sizeof numbers);
    s->chosen = true;
    s->t_v = numbers.tokens[0];
    s->t_s = numbers.tokens[1];
    return flex_plan_take(&s->plan, &s->c, c, &numbers, err);
}

static int take(void *state, const struct device_choice *c, struct err *err)
{
    struct state *s = state;
    if (s->kind == DENSE)
        return c->lists->form == MASK_FULL ? 0
                                           : err_set(err, ERR_RUN, "a choice where all is kept");
    if (s->kind == PLAN)
        return take_plan(s, c, err);
    PASS_ON(take_lists(s, c->own, err));
    return slice_mask_take(&s->given, c, VSLASH_BLOCK, 1, VSLASH_BLOCK, err);
}

static bool keep_on_device(const void *state)
{
    return ((const struct state *)state)->kind != DENSE;
}

/* ---- numbers -------------------------------------------------------------------------------- */

/* The mean of every block of tokens of x, and its products with `pairs` others. */
static void pooled_cost(const struct state *s, double pairs, struct select_cost *c)
{
    const struct attn_in *x = &s->in->x;
    double nb = (double)s->plan.map.rows;
    cost_sums(c, (double)x->nk * x->d);
    cost_rows(c, s->in, (double)x->nk, x->d);
    cost_kept(c, nb * x->d + pairs);
    cost_products(c, pairs, x->d);
    cost_softmax(c, pairs);
}

/* Keys are pooled for the pattern test, queries of query-aware heads alone. The test itself, a few
 * logarithms per block, is left out. */
static bool cost(const void *state, struct select_cost *c)
{
    const struct state *s = state;
    const struct attn_in *x = &s->in->x;
    int64_t n = s->c.n, most = s->kind == LISTS ? FRONTIER_ROWS : s->c.block;
    int64_t rows = n < most ? n : most;
    double nb = (double)s->plan.map.rows;
    if (s->kind == DENSE)
        return true;
    cost_exact_rows(c, s->in, (double)rows, cost_pairs(x, n - rows, n, 1), 2);
    cost_rows(c, s->in, (double)n, x->d);
    cost_kept(c, 2 * (double)n);
    if (s->kind == LISTS)
        return true;
    cost_sums(c, 2 * (double)n);       /* of blocks */
    cost_sums(c, (double)rows * x->d); /* the mean query */
    cost_rows(c, s->in, (double)rows, x->d);
    pooled_cost(s, nb, c);
    if (s->plan.query_aware)
        pooled_cost(s, s->c.both ? nb * nb : nb * (nb + 1) / 2, c);
    return true;
}

/* The port prints executed pairs: whole blocks and columns, also where they leave the triangle. */
static int report_lists(const struct state *s, struct record *r, struct err *err)
{
    double exec = (double)vslash_exec(&s->lists);
    double density = exec / ((double)s->c.n * (double)(s->c.n + 1) / 2);
    return RECORD_ALL(r, err, {"pairs_exec", exec}, {"density_exec", density},
                      {"density_native", density}, {"columns", s->lists.n_cols},
                      {"slashes", s->lists.n_dists}, {"list_blocks", s->lists.blocks},
                      {"list_columns", s->lists.columns});
}

static bool why_full(const void *state, char why[160])
{
    const struct state *s = state;
    if (s->c.min_budget >= s->c.n)
        snprintf(why, 160,
                 "its least budget of %lld tokens a row is not below the sequence's %lld keys",
                 (long long)s->c.min_budget, (long long)s->c.n);
    else
        snprintf(why, 160, "%lld tokens are too few for blocks of %lld and min_budget=%lld",
                 (long long)s->c.n, (long long)s->c.block, (long long)s->c.min_budget);
    return s->kind == DENSE || s->c.min_budget >= s->c.n;
}

/* density_native: kept blocks over the full square; the code reports 1 for short prompts. */
static int report(void *state, struct record *r, struct err *err)
{
    const struct state *s = state;
    const struct flex_plan *p = &s->plan;
    record_note(r, "pattern=%s",
                s->kind == DENSE   ? "dense"
                : s->kind == LISTS ? "lists"
                : p->query_aware   ? "query-aware"
                                   : "vertical-slash");
    if (s->kind == DENSE && !isnan(s->reached))
        PASS_ON(record_metric(r, "sparsity_reached", s->reached, err));
    if (s->kind == DENSE)
        return record_metric(r, "density_native", 1, err);
    PASS_ON(RECORD_ALL(r, err, {"tokens_columns", s->t_v}, {"tokens_slashes", s->t_s}));
    if (s->kind == LISTS)
        return report_lists(s, r, err);
    double nb = (double)p->map.rows;
    PASS_ON(record_metric(r, "density_native", (double)block_map_count(&p->map) / (nb * nb), err));
    if (isfinite(p->js)) /* a block without mass has none */
        PASS_ON(record_metric(r, "js_distance", p->js, err));
    if (!isnan(s->reached)) {
        PASS_ON(record_metric(r, "sparsity_reached", s->reached, err));
        record_note(r, "gamma=%.6g", s->c.gamma);
    }
    return RECORD_ALL(r, err, {"columns", p->k_v}, {"slashes", p->k_s});
}

static const struct metric_def metrics[] = {
    OWN_METRIC("columns", "key columns selected: blocks; tokens with profile=paper and in lists"),
    OWN_METRIC("slashes",
               "diagonals selected: of blocks; of tokens with profile=paper and in lists"),
    OWN_METRIC("tokens_columns", "key columns needed for the share gamma of the sampled mass"),
    OWN_METRIC("tokens_slashes", "distances needed for the share gamma of the sampled mass"),
    OWN_METRIC("js_distance",
               "Jensen-Shannon distance of the sampled and the pooled column mass (natural log)",
               .noise = NOISE_ROUNDING),
    OWN_METRIC("sparsity_reached",
               "share of dense work that the kernel leaves out, where sparsity= asked for one"),
    OWN_METRIC("list_blocks", "64 x 64 blocks in the kernel's lists, over all row blocks",
               .better = BETTER_LOWER),
    OWN_METRIC("list_columns", "gathered columns in the kernel's lists, over all row blocks",
               .better = BETTER_LOWER),
    {0},
};

const struct method method_flexprefill = {
    .name = "flexprefill",
    .summary = "block columns and diagonals, or pooled blocks, chosen per head by a pattern test",
    .paper = "FlexPrefill, arXiv:2502.20766",
    .flags = METHOD_ROWS | METHOD_CAUSAL | METHOD_BIDIRECTIONAL | METHOD_SINK,
    .params = {.table = options,
               .size = sizeof(struct params),
               .budget = BUDGET_PARAMS(BUDGET_BY(BUDGET_COMPLEMENT, "gamma")),
               .validate = validate},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .release = release,
    .metrics = metrics,
    .cost = cost,
    .why_full = why_full,
    .device = {.rule = rule, .take = take, .keep_on_device = keep_on_device},
    .tests = {.full = "gamma=1",
              .variants =
                  TEXTS("block=32:min_budget=0", "block=32:min_budget=0:tau=0.8326",
                        "block=32:min_budget=0:tau=0:profile=paper:gamma=0.7",
                        "block=32:min_budget=0:tau=0.8326:profile=paper",
                        "block=32:min_budget=32:sparsity=0.5", "profile=frontier:min_budget=40")},
};
