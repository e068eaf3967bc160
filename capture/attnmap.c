/*
 * attnmap.c - pooled maps of all heads, one row of cells at a time over the threads; the cells come
 * from core/poolmap.
 */
#include "capture/attnmap.h"

#include "core/mem.h"
#include "core/pool.h"
#include "core/attention.h"

#include <stdlib.h>
#include <string.h>

int attnmap_init(struct attnmap *m, int heads, int64_t n_q, int64_t n_k, int64_t pool,
                 struct err *err)
{
    int rc = 0;
    *m =
        (struct attnmap){pool, (n_q + pool - 1) / pool, (n_k + pool - 1) / pool, heads, NULL, NULL};
    int64_t cells = heads * m->cells_q * m->cells_k;
    TRY(mem_zalloc(&m->sum, cells, sizeof(float), "map sums", err));
    TRY(mem_zalloc(&m->max, cells, sizeof(float), "map maxima", err));
out:
    if (rc)
        attnmap_free(m);
    return rc;
}

void attnmap_free(struct attnmap *m)
{
    free(m->sum);
    free(m->max);
    memset(m, 0, sizeof *m);
}

struct map_job {
    struct attnmap *m;
    const float *q;
    const struct nn_kv *kv;
    int64_t row0, n, nk, cell_rows;
    double scale;
    bool causal;
    const double *lse;
};

/* One row of cells of one head. */
static int map_item(void *ctx, int64_t item, int worker, struct err *err)
{
    const struct map_job *j = ctx;
    struct attnmap *m = j->m;
    const struct nn_kv *kv = j->kv;
    int64_t head = item / j->cell_rows, cell = item % j->cell_rows;
    int64_t a = cell * m->pool, b = a + m->pool < j->n ? a + m->pool : j->n, d = kv->d;
    int64_t kv_at = head / (m->heads / kv->heads) * kv->n * d;
    int64_t at = (head * m->cells_q + j->row0 / m->pool + cell) * m->cells_k;
    float *q = NULL;
    struct attn_ops ops = {0};
    int rc = 0;

    /* These rows against the keys up to their end are a head of their own. */
    int64_t nk = j->causal ? b + j->nk - j->n : j->nk;
    TRY(mem_alloc(&q, (b - a) * d, sizeof *q, "queries of a cell row", err));
    nn_take_head(j->q + a * m->heads * d, b - a, m->heads, kv->d, (int)head, q);
    struct attn_in in = {.nq = b - a,
                         .nk = nk,
                         .d = kv->d,
                         .dv = kv->d,
                         .q = q,
                         .k = kv->k + kv_at,
                         .scale = j->scale,
                         .causal = j->causal,
                         .reach = kv->reach};
    TRY(attn_prepare(&ops, &in, PREC_F32, err));
    TRY(pool_map(&ops, j->lse + head * j->n + a, m->pool, m->sum + at, m->max + at, err));
out:
    attn_release(&ops);
    free(q);
    return rc;
}

int attnmap_rows(struct attnmap *m, const float *q, const struct nn_kv *kv, int64_t row0, int64_t n,
                 int64_t nk, double scale, bool causal, const double *lse, int jobs,
                 struct err *err)
{
    struct map_job j = {m, q, kv, row0, n, nk, (n + m->pool - 1) / m->pool, scale, causal, lse};
    return pool_run(jobs, m->heads * j.cell_rows, map_item, &j, err);
}
