/*
 * columnsums.c - see columnsums.h.
 */
#include "capture/columnsums.h"

#include "capture/nn.h"
#include "core/mem.h"
#include "core/pool.h"

#include <stdlib.h>
#include <string.h>

int column_sums_init(struct column_sums *c, const struct head_select *heads,
                     struct trace_shape keys, double scale, struct err *err)
{
    *c = (struct column_sums){.heads = heads, .keys = keys, .scale = scale};
    PASS_ON(mem_alloc(&c->k, keys.heads * keys.tokens * keys.dim, sizeof *c->k, "keys", err));
    return mem_alloc(&c->sum, heads->n * keys.tokens, sizeof *c->sum, "sums of columns", err);
}

void column_sums_free(struct column_sums *c)
{
    free(c->k);
    free(c->sum);
    memset(c, 0, sizeof *c);
}

struct sum_job {
    const struct column_sums *c;
    int64_t t0, n, window;
    const float *q;
};

/* The rows of one head. x [n][heads * d] -> to [n][d]. */
static void take_stored(enum dtype t, const float *x, int64_t n, int heads, int d, int head,
                        float *to)
{
    nn_take_head(x, n, heads, d, head, to);
    for (int64_t i = 0; i < n * d; i++)
        to[i] = dtype_round(t, to[i]);
}

static int sum_head(void *ctx, int64_t i, int worker, struct err *err)
{
    const struct sum_job *j = ctx;
    const struct column_sums *c = j->c;
    const struct head_select *h = c->heads;
    int d = (int)c->keys.dim, head = h->head[i], kv = head / (h->model_heads / h->model_kv);
    OWN(attn_release) struct attn_ops ops = {0};
    OWN(free_at) float *q = NULL;
    (void)worker;
    PASS_ON(mem_alloc(&q, j->n * d, sizeof *q, "queries", err));
    take_stored(c->keys.dtype, j->q, j->n, h->model_heads, d, head, q);
    struct attn_in in = {.nq = j->n,
                         .nk = j->t0 + j->n,
                         .d = d,
                         .q = q,
                         .k = c->k + kv * c->keys.tokens * d,
                         .scale = c->scale,
                         .causal = true,
                         .reach = {.back = j->window}};
    PASS_ON(attn_prepare(&ops, &in, PREC_F64, err));
    return attn_column_sums(&ops, 0, ops.in.nq, true, c->sum + i * c->keys.tokens, err);
}

int column_sums_add(struct column_sums *c, int64_t t0, int64_t n, const float *q, const float *k,
                    int64_t window, int jobs, struct err *err)
{
    int64_t d = c->keys.dim, P = c->keys.tokens;
    struct sum_job j = {c, t0, n, window, q};
    for (int h = 0; h < c->keys.heads; h++)
        take_stored(c->keys.dtype, k, n, (int)c->keys.heads, (int)d, h, c->k + (h * P + t0) * d);
    if (t0 == 0)
        memset(c->sum, 0, (size_t)(c->heads->n * P) * sizeof *c->sum);
    return pool_run(jobs, c->heads->n, sum_head, &j, err);
}

int column_sums_put(const struct column_sums *c, struct trace_writer *w, struct err *err)
{
    int64_t n = c->heads->n * c->keys.tokens;
    OWN(free_at) float *x = NULL;
    PASS_ON(mem_alloc(&x, n, sizeof *x, "sums of columns", err));
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)c->sum[i];
    return trace_put_values(w, TRACE_COL_SUM, x, err);
}
