/*
 * modelmap.c - pooled maps of a layer's attention (modelrun.h), from its operands.
 */
#include "cuda/metrics/metrics.h"
#include "cuda/modelrun.h"

#include "core/intmath.h"

/* Any cell size, any GPU: a thread block per cell. */
static int make_slowly(struct model_run *r, const struct map_source *s, int64_t pool, float *sum,
                       float *max, struct err *err)
{
    int64_t cells = ceil_div(s->tokens, pool), bytes = 4 * s->heads * cells * cells;
    struct ops_maps maps = {.q = s->q,
                            .k = s->k,
                            .lse = s->lse,
                            .heads = s->heads,
                            .kv_heads = s->kv_heads,
                            .padded = s->padded,
                            .tokens = s->tokens,
                            .pool = pool,
                            .scale = s->scale,
                            .causal = s->causal};
    int rc = 0;

    TRY(gpu_alloc(&r->gpu, bytes, &maps.sum, err));
    TRY(gpu_alloc(&r->gpu, bytes, &maps.max, err));
    TRY(span_begin(r, err));
    TRY(ops_pool_map(&r->gpu, &maps, err));
    TRY(span_end(r, err));
    TRY(gpu_get(&r->gpu, sum, maps.sum, bytes, err));
    TRY(gpu_get(&r->gpu, max, maps.max, bytes, err));
out:
    return rc;
}

/* Of one head, to sum and max on the host. */
static int make_head(struct model_run *r, const struct map_source *s, int head, int64_t pool,
                     float *sum, float *max, struct err *err)
{
    struct attn_problem p = {1,         1,        s->padded, s->tokens,
                             s->tokens, s->scale, s->causal, ATTN_DENSE};
    int64_t bytes = s->tokens * s->padded * 2, kv = head / (s->heads / s->kv_heads);
    struct attn_tensors x = {.q = (const char *)s->q + head * bytes,
                             .k = (const char *)s->k + kv * bytes};
    struct metrics_ask maps = {.cells = true, .sums = true, .element = ATTN_F16};
    struct metrics_pass pass = {0};
    void *norm = NULL;
    int rc = 0;

    TRY(gpu_alloc(&r->gpu, s->tokens * 8, &norm, err));
    TRY(span_begin(r, err));
    TRY(metrics_norms_into(&r->gpu, s->lse + head * s->tokens, s->tokens, norm, err));
    TRY(span_end(r, err));
    TRY(metrics_pass_init(&r->gpu, &p, &x, norm, &maps, &pass, err));
    TRY(span_begin(r, err));
    TRY(metrics_pass_launch(&r->gpu, &pass, err));
    TRY(span_end(r, err));
    TRY(metrics_pass_cells(&r->gpu, &pass, pool, sum, max, err));
out:
    metrics_pass_free(&pass);
    return rc;
}

int make_maps(struct model_run *r, const struct map_source *s, int64_t pool, float *sum, float *max,
              struct err *err)
{
    struct gpu_mark mark = gpu_mark(&r->gpu);
    int64_t cells = ceil_div(s->tokens, pool);
    bool fast = r->gpu.sm == 90 && pool % METRICS_CELL == 0;
    int rc = fast ? 0 : make_slowly(r, s, pool, sum, max, err);

    for (int h = 0; fast && h < s->heads && !rc; h++) {
        rc = make_head(r, s, h, pool, sum + h * cells * cells, max + h * cells * cells, err);
        gpu_release(&r->gpu, mark);
    }
    gpu_release(&r->gpu, mark);
    return rc;
}
