/*
 * flexprefill_plan.c - FlexPrefill's two block patterns (arXiv:2502.20766, algorithms 1, 3 and 4).
 *
 * Official: gamma is applied to sorted tokens, the count is divided by 128, and that many best
 * block columns and diagonals are kept; these blocks are in general not the blocks that hold the
 * counted tokens. Paper: the tokens themselves are selected, and the mask is the smallest block
 * superset.
 */
#include "core/mem.h"
#include "core/rules.h"
#include "core/softmax.h"
#include "sim/blocks/blockpool.h"
#include "sim/blocks/gpusum.h"
#include "sim/methods/flexprefill/flexprefill.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The published code divides token counts by 128 whatever the block size. */
#define TOKENS_PER_BLOCK 128

/* ---- estimate -------------------------------------------------------------------------------- */

/* FlexPrefill's estimate (arXiv:2502.20766, algorithms 2 and 3): exact rows
 * of the last B queries, token and block sums, pooled keys, and the distance between both estimates
 * of the column mass.
 *
 * Cost: 2 B N d for the rows, N d for pooling, two sorts of N values. */

int64_t flex_min_blocks(const struct flex_config *c)
{
    int64_t b = (c->min_budget + c->block - 1) / c->block;
    return b > 1 ? b : 1;
}

int64_t flex_max_blocks(const struct flex_config *c)
{
    int64_t nb = (c->n + c->block - 1) / c->block, b = (c->max_budget + c->block - 1) / c->block;
    return c->max_budget > 0 && b < nb ? b : nb;
}

bool flex_applies(const struct flex_config *c)
{
    return c->n > 2 * c->block && c->n > flex_min_blocks(c) * c->block;
}

int flex_scores_init(struct flex_scores *s, const struct flex_config *c, int d, struct err *err)
{
    int rc = 0;
    memset(s, 0, sizeof *s);
    s->nb = (c->n + c->block - 1) / c->block;
    TRY(mem_zalloc(&s->ver, c->n, sizeof *s->ver, "column mass", err));
    TRY(mem_zalloc(&s->sla, c->n, sizeof *s->sla, "distance mass", err));
    TRY(mem_zalloc(&s->col, s->nb, sizeof *s->col, "block columns", err));
    TRY(mem_zalloc(&s->diag, s->nb, sizeof *s->diag, "block diagonals", err));
    TRY(mem_zalloc(&s->est, s->nb, sizeof *s->est, "pooled estimate", err));
    TRY(mem_zalloc(&s->kbar, s->nb * d, sizeof *s->kbar, "pooled keys", err));
    TRY(mem_zalloc(&s->qbar, s->nb * d, sizeof *s->qbar, "pooled queries", err));
out:
    if (rc)
        flex_scores_free(s);
    return rc;
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
    int d = in->x.d, rc = 0;
    float *q = NULL;
    TRY(mem_alloc(&q, d, sizeof *q, "mean query", err));
    pool_last_queries(c, in, rows, q);
    for (int64_t j = 0; j < s->nb; j++) {
        pool_keys(c, in, j, s->kbar + j * d);
        s->est[j] = flex_pooled_score(c, q, s->kbar + j * d, d);
    }
    softmax_f64(s->est, s->nb);
out:
    free(q);
    return rc;
}

int flex_scores_run(struct flex_scores *s, const struct flex_config *c, const struct head_in *in,
                    int64_t rows, bool pooled, struct err *err)
{
    int rc = 0;
    TRY(flex_scores_init(s, c, in->x.d, err));
    TRY(token_scores(in, rows, c->bf16 ? TOK_BF16_QUERY : TOK_EXACT, DT_F32, s->ver, s->sla, err));
    for (int64_t k = 0; k < c->n; k++) {
        s->ver[k] /= (double)rows;
        s->sla[k] /= (double)rows;
    }
    flex_block_sums(s, c);
    if (pooled)
        TRY(pooled_estimate(s, c, in, rows, err));
out:
    if (rc)
        flex_scores_free(s);
    return rc;
}

int flex_count(const double *v, int64_t n, double gamma, bool official, int64_t *count,
               struct err *err)
{
    int32_t *order = NULL;
    int64_t i = 0;
    double sum = 0;
    int rc = 0;
    if (gamma >= 1) {
        *count = official ? n + 1 : n;
        return 0;
    }
    TRY(mem_alloc(&order, n, sizeof *order, "score order", err));
    TRY(order_descending(v, n, order, err));
    if (official) {
        while (i < n && (sum += v[order[i]]) <= gamma)
            i++;
        i++;
    } else {
        while (i < n && (i == 0 || sum < gamma))
            sum += v[order[i++]];
    }
    *count = i;
out:
    free(order);
    return rc;
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

/* Of a bidirectional head on both sides. */
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
    double *s = NULL;
    int rc = mem_alloc(&s, n, sizeof *s, "block scores", err);
    if (rc)
        return rc;
    memcpy(s, score, (size_t)n * sizeof *s);
    s[forced] = INFINITY;
    rc = order_descending(s, n, order, err);
    free(s);
    return rc;
}

static int vertical_slash(struct flex_plan *p, const struct flex_scores *s, struct err *err)
{
    int rc = 0;
    int32_t *order = NULL;
    int64_t nb = s->nb;
    TRY(mem_alloc(&order, nb, sizeof *order, "block order", err));
    TRY(best_blocks(s->col, nb, 0, order, err));
    for (int64_t i = 0; i < p->k_v; i++)
        set_column(&p->map, order[i]);
    TRY(best_blocks(s->diag, nb, nb - 1, order, err));
    for (int64_t i = 0; i < p->k_s; i++)
        set_diagonal(&p->map, nb - 1 - order[i]);
out:
    free(order);
    return rc;
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
    struct entry *e = NULL;
    int64_t n = 0, kept = 0;
    double sum = 0;
    int rc = mem_alloc(&e, nb * nb, sizeof *e, "block map entries", err);
    if (rc)
        return rc;
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
    free(e);
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
    int rc = 0, d = in->x.d;
    int64_t nb = s->nb;
    double *w = NULL;
    TRY(mem_zalloc(&w, nb * nb, sizeof *w, "estimated block map", err));
    for (int64_t i = 0; i < nb; i++) {
        flex_pool_query(c, in, i, s->qbar + i * d);
        pooled_row(c, s, d, i, w + i * nb);
    }
    /* At gamma = 1 rounding of the running sum must not leave entries out. */
    double budget = c->gamma >= 1 ? INFINITY : c->gamma * (double)nb;
    TRY(flex_keep_entries(w, nb, budget, c->profile == FLEX_PAPER, &p->map, err));
out:
    free(w);
    return rc;
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
    int rc = 0;
    int32_t *order = NULL;
    TRY(mem_alloc(&order, c->n, sizeof *order, "token order", err));
    TRY(order_descending(s->ver, c->n, order, err));
    for (int64_t i = 0; i < p->k_v; i++)
        set_column(&p->map, order[i] / c->block);
    TRY(order_descending(s->sla, c->n, order, err));
    for (int64_t i = 0; i < p->k_s; i++) {
        set_diagonal(&p->map, order[i] / c->block);
        if (order[i] % c->block)
            set_diagonal(&p->map, order[i] / c->block + 1);
    }
    set_column(&p->map, 0);
out:
    free(order);
    return rc;
}

/* ---- both ------------------------------------------------------------------------------- */

int flex_plan_build(struct flex_plan *p, const struct flex_config *c, struct flex_scores *s,
                    const struct head_in *in, struct err *err)
{
    int rc = 0;
    bool official = c->profile == FLEX_OFFICIAL;
    memset(p, 0, sizeof *p);
    TRY(block_map_init(&p->map, c->n, c->n, c->block, !c->both, err));
    TRY(flex_count(s->ver, c->n, c->gamma, official, &p->t_v, err));
    TRY(flex_count(s->sla, c->n, c->gamma, official, &p->t_s, err));
    p->js = flex_js(s->est, s->col, s->nb, official);
    p->query_aware = p->js < c->tau; /* false for NaN */
    if (official) {
        p->k_v = p->query_aware ? flex_min_blocks(c) : blocks_of(c, p->t_v);
        p->k_s = p->query_aware ? flex_min_blocks(c) : blocks_of(c, p->t_s);
        TRY(vertical_slash(p, s, err));
    } else if (!p->query_aware) {
        p->k_v = budget_tokens(c, p->t_v);
        p->k_s = budget_tokens(c, p->t_s);
        TRY(token_superset(p, c, s, err));
    }
    if (p->query_aware)
        TRY(query_aware(p, c, s, in, err));
    set_diagonal(&p->map, 0);
out:
    if (rc)
        flex_plan_free(p);
    return rc;
}

int flex_plan_take(struct flex_plan *p, const struct flex_config *c,
                   const struct device_choice *chosen, const struct flex_own *own, struct err *err)
{
    int rc = 0;
    *p = (struct flex_plan){.query_aware = own->aware != 0,
                            .js = own->js,
                            .t_v = own->tokens[0],
                            .t_s = own->tokens[1]};
    p->k_v = p->query_aware ? flex_min_blocks(c) : blocks_of(c, p->t_v);
    p->k_s = p->query_aware ? flex_min_blocks(c) : blocks_of(c, p->t_s);
    TRY(block_map_init(&p->map, c->n, c->n, c->block, !c->both, err));
    TRY(block_map_take(&p->map, chosen, err));
out:
    return rc;
}

double flex_work(const struct flex_plan *p)
{
    double nb = (double)p->map.rows;
    return (double)block_map_count(&p->map) / (p->map.causal ? nb * (nb + 1) / 2 : nb * nb);
}

void flex_plan_free(struct flex_plan *p)
{
    block_map_free(&p->map);
    memset(p, 0, sizeof *p);
}
