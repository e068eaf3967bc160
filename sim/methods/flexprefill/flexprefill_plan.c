/*
 * flexprefill_plan.c - FlexPrefill's two block patterns (arXiv:2502.20766, algorithms 1, 3 and 4).
 *
 * Official: gamma is applied to sorted tokens, the count is divided by 128, and that many best
 * block columns and diagonals are kept; these blocks are in general not the blocks that hold the
 * counted tokens. Paper: the tokens themselves are selected, and the mask is the smallest block
 * superset.
 */
#include "sim/methods/flexprefill/flexprefill.h"

#include "core/mem.h"
#include "core/rules.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The published code divides token counts by 128 whatever the block size. */
#define TOKENS_PER_BLOCK 128

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
