/*
 * flexprefill_scores.c - FlexPrefill's estimate (arXiv:2502.20766, algorithms 2 and 3): exact rows
 * of the last B queries, token and block sums, pooled keys, and the distance between both estimates
 * of the column mass.
 *
 * Cost: 2 B N d for the rows, N d for pooling, two sorts of N values.
 */
#include "sim/flexprefill.h"

#include "core/mem.h"
#include "sim/blockpool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

static void softmax(double *z, int64_t n)
{
    double top = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++)
        top = fmax(top, z[i]);
    for (int64_t i = 0; i < n; i++)
        sum += z[i] = exp(z[i] - top);
    for (int64_t i = 0; i < n; i++)
        z[i] /= sum;
}

/* Column mass as mean-pooled keys see it: softmax over all blocks of scale * mean(q) . kbar. */
static int pooled_estimate(struct flex_scores *s, const struct flex_config *c,
                           const struct head_in *in, int64_t rows, struct err *err)
{
    int d = in->x.d, rc = 0;
    enum dtype t = c->bf16 ? DT_BF16 : DT_F32;
    float *q = NULL;
    TRY(mem_alloc(&q, d, sizeof *q, "mean query", err));
    block_mean(in->x.q + (c->n - rows) * d, rows, d, t, q);
    for (int64_t j = 0; j < s->nb; j++) {
        int64_t k0 = j * c->block, keys = c->n - k0 < c->block ? c->n - k0 : c->block;
        double dot = 0;
        block_mean(in->x.k + k0 * d, keys, d, t, s->kbar + j * d);
        for (int e = 0; e < d; e++)
            dot += (double)q[e] * s->kbar[j * d + e];
        s->est[j] = c->scale * dot;
    }
    softmax(s->est, s->nb);
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
