/*
 * decoder_map.c - pooled maps of a layer's attention (decoder_body.h), from its operands.
 */
#include "cuda/decoder_body.h"
#include "cuda/metrics/metrics.h"

#include "core/intmath.h"

#include <math.h>

/* Any cell size, any GPU: a thread block per cell. */
static int make_map_slowly(struct decoder *d, const struct decoder_sink *sink, struct err *err)
{
    const struct decoder_shape *s = &d->shape;
    int64_t cells = ceil_div(s->tokens, sink->pool);
    int64_t bytes = 4 * s->heads * cells * cells;
    float *sum = NULL, *max = NULL;
    int rc = 0;

    TRY(gpu_alloc(&d->gpu, bytes, &sum, err));
    TRY(gpu_alloc(&d->gpu, bytes, &max, err));
    TRY(decoder_span_begin(d, err));
    TRY(ops_pool_map(&d->gpu, d->q, d->k, d->lse, s->heads, s->kv_heads, s->tokens, (int)d->padded,
                     1 / sqrt(s->head_dim), sink->pool, sum, max, err));
    TRY(decoder_span_end(d, err));
    TRY(gpu_get(&d->gpu, sink->map_sum, sum, bytes, err));
    TRY(gpu_get(&d->gpu, sink->map_max, max, bytes, err));
out:
    return rc;
}

/* Of one head, to sum and max on the host. */
static int make_head_map(struct decoder *d, int head, int64_t pool, float *sum, float *max,
                         struct err *err)
{
    const struct decoder_shape *s = &d->shape;
    struct attn_problem p = {
        1, 1, (int)d->padded, s->tokens, s->tokens, 1 / sqrt(s->head_dim), true, ATTN_DENSE};
    int64_t bytes = s->tokens * d->padded * 2, kv = head / (s->heads / s->kv_heads);
    struct attn_tensors x = {.q = (char *)d->q + head * bytes, .k = (char *)d->k + kv * bytes};
    struct metrics_ask maps = {.cells = true, .sums = true, .element = ATTN_F16};
    struct metrics_pass pass = {0};
    void *norm = NULL;
    int rc = 0;

    TRY(decoder_span_begin(d, err));
    TRY(metrics_norms(&d->gpu, d->lse + head * s->tokens, s->tokens, &norm, err));
    TRY(decoder_span_end(d, err));
    TRY(metrics_pass_init(&d->gpu, &p, &x, norm, &maps, &pass, err));
    TRY(decoder_span_begin(d, err));
    TRY(metrics_pass_launch(&d->gpu, &pass, err));
    TRY(decoder_span_end(d, err));
    TRY(metrics_pass_cells(&d->gpu, &pass, pool, sum, max, err));
out:
    metrics_pass_free(&pass);
    return rc;
}

int decoder_make_map(struct decoder *d, const struct decoder_sink *sink, struct err *err)
{
    struct gpu_mark mark = gpu_mark(&d->gpu);
    int64_t cells = ceil_div(d->shape.tokens, sink->pool);
    bool fast = d->gpu.sm == 90 && sink->pool % METRICS_CELL == 0;
    int rc = fast ? 0 : make_map_slowly(d, sink, err);

    for (int h = 0; fast && h < d->shape.heads && !rc; h++) {
        rc = make_head_map(d, h, sink->pool, sink->map_sum + h * cells * cells,
                           sink->map_max + h * cells * cells, err);
        gpu_release(&d->gpu, mark);
    }
    gpu_release(&d->gpu, mark);
    return rc;
}
