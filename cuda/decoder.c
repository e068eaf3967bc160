/*
 * decoder.c - a Llama-family decoder on the GPU (core/decoder.h).
 *
 * Device memory: the hidden state of all tokens, q, k, v and the attention's output by head in
 * float16 (of several states bf16), one layer's weights as bf16 terms (decoder_ops.h), and the
 * activations of a chunk of tokens. Linear layers and residuals are exact to about 1e-5; attention
 * takes operands rounded to float16 (2^-12 each) and accumulates in float32.
 */
#include "cuda/backend.h"
#include "cuda/decoder_body.h"

#include "core/intmath.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES (1LL << 30) /* of activations */
#define LOGIT_BYTES (512LL << 20)
#define MIN_ROWS 256

/* ---- opening -------------------------------------------------------------------------------- */

static int set_sizes(struct decoder *d, struct err *err)
{
    const struct decoder_shape *s = &d->shape;
    int rc = pad_head_dim(s->head_dim, &d->padded, err);
    if (rc)
        return rc;
    d->qdim = (int64_t)s->heads * s->head_dim;
    d->kvdim = (int64_t)s->kv_heads * s->head_dim;
    d->wide_in = MAX(MAX(s->hidden, d->qdim), s->ffn);
    d->wide_out = MAX(d->qdim + 2 * d->kvdim, 2 * s->ffn);
    d->rows = CHUNK_BYTES / (4 * d->wide_out + 6 * d->wide_in);
    d->rows = d->rows < MIN_ROWS ? MIN_ROWS : d->rows;
    d->rows = d->rows < s->tokens ? d->rows : s->tokens;
    return 0;
}

static int alloc_activations(struct decoder *d, struct err *err)
{
    const struct decoder_shape *s = &d->shape;
    struct gpu *g = &d->on.gpu;
    int64_t n = s->tokens;
    int rc = 0;

    if (s->states)
        TRY(decoder_alloc_states(d, err));
    else
        TRY(gpu_alloc(g, n * s->hidden * 4, &d->h, err));
    TRY(gpu_alloc(g, d->rows * d->wide_out * 4, &d->y, err));
    TRY(gpu_alloc(g, d->rows * d->wide_in * 6, &d->x, err));
    TRY(gpu_alloc(g, s->heads * n * d->padded * 2, &d->q, err));
    TRY(gpu_alloc(g, s->heads * n * d->padded * 2, &d->o, err));
    TRY(gpu_alloc(g, s->kv_heads * n * d->padded * 2, &d->k, err));
    TRY(gpu_alloc(g, s->kv_heads * n * d->padded * 2, &d->v, err));
    TRY(gpu_alloc(g, s->heads * n * 4, &d->lse, err));
    TRY(gpu_alloc(g, n * (s->head_dim / 2) * 8, &d->rope, err));
    TRY(gpu_alloc(g, 4, &d->overflow, err));
    TRY(gpu_zero(g, d->overflow, 4, err));
    if (!s->states)
        TRY(mem_alloc(&d->host, d->rows * (d->qdim + 2 * d->kvdim), sizeof *d->host,
                      "queries, keys and values", err));
out:
    return rc;
}

static int alloc_weights(struct decoder *d, struct err *err)
{
    const struct decoder_shape *s = &d->shape;
    const int64_t rows[MATRICES] = {d->qdim + 2 * d->kvdim, s->hidden, 2 * s->ffn, s->hidden};
    const int64_t cols[MATRICES] = {s->hidden, d->qdim, s->hidden, s->ffn};
    int layers = MAX(s->kept, 1), rc = 0;

    TRY(mem_zalloc(&d->layers, layers, sizeof *d->layers, "layers", err));
    d->w = d->layers;
    for (struct decoder_weights *w = d->layers; w < d->layers + layers; w++) {
        for (int i = 0; i < MATRICES; i++) {
            w->m[i] = (struct matrix){NULL, rows[i], cols[i], 2};
            TRY(gpu_alloc(&d->on.gpu, rows[i] * cols[i] * 6, &w->m[i].w, err));
        }
        for (int i = 0; i < LLM_LAYER_TENSORS; i++)
            TRY(gpu_alloc(&d->on.gpu, d->wide_in * 4, &w->vector[i], err));
    }
    TRY(gpu_alloc(&d->on.gpu, s->hidden * 4, &d->norm, err));
    d->on.raw_bytes = 4 * s->hidden * d->wide_in;
    TRY(gpu_alloc(&d->on.gpu, d->on.raw_bytes, &d->on.raw, err));
out:
    return rc;
}

static int make_rope(struct decoder *d, struct err *err)
{
    int half = d->shape.head_dim / 2, rc = 0;
    struct gpu_mark mark = gpu_mark(&d->on.gpu);
    double *freq = NULL;
    TRY(gpu_upload(&d->on.gpu, d->shape.inv_freq, half * 8, &freq, err));
    TRY(ops_rope_table(&d->on.gpu, freq, half, d->shape.tokens, d->shape.rope_factor, d->rope,
                       err));
    TRY(gpu_sync(&d->on.gpu, err));
out:
    gpu_release(&d->on.gpu, mark);
    return rc;
}

int decoder_make_attention(struct decoder *d, struct err *err)
{
    const struct decoder_shape *s = &d->shape;
    struct attn_problem p = {s->heads,  s->kv_heads,           (int)d->padded, s->tokens,
                             s->tokens, 1 / sqrt(s->head_dim), true,           ATTN_DENSE};
    struct attn_tensors x = {d->q, d->k, d->v, d->o, d->lse};
    const struct attn_kernel *kernel;
    struct attn_plan plan = {0};
    int rc = 0;

    TRY(attn_kernel_for(&p, d->on.gpu.sm, s->states ? ATTN_BF16 : ATTN_F16, &kernel, err));
    TRY(attn_plan_make(&p, &kernel->tile, NULL, d->on.gpu.sms, true, &plan, err));
    TRY(attn_job_init(&d->on.gpu, &p, kernel, &plan, &x, &d->attend, err));
out:
    attn_plan_free(&plan);
    return rc;
}

static void decoder_close(struct decoder **out)
{
    struct decoder *d = *out;
    if (!d)
        return;
    attn_job_free(&d->attend);
    model_run_close(&d->on);
    host_locked_free(d->pinned);
    free(d->layers);
    free(d->states);
    free(d->host);
    free(d);
    *out = NULL;
}

static int decoder_open(int local_rank, const struct decoder_shape *s, struct decoder **out,
                        struct err *err)
{
    int rc = 0;
    struct decoder *d = calloc(1, sizeof *d);
    if (!d)
        return err_set(err, ERR_NOMEM, "decoder: out of memory");
    d->shape = *s;
    TRY(set_sizes(d, err));
    TRY(model_run_open(local_rank, &d->on, err));
    TRY(alloc_activations(d, err));
    TRY(alloc_weights(d, err));
    TRY(make_rope(d, err));
    d->base = gpu_mark(&d->on.gpu);
    if (!s->states)
        TRY(decoder_make_attention(d, err));
    d->shape.inv_freq = NULL;
    *out = d;
    d = NULL;
out:
    decoder_close(&d);
    return rc;
}

/* ---- weights -------------------------------------------------------------------------------- */

int decoder_put_weights(struct decoder *d, const struct decoder_tensor *w, struct err *err)
{
    int rc = 0;
    TRY(put_matrix(&d->on, w, LLM_Q, 3, &d->w->m[QKV], err));
    TRY(put_matrix(&d->on, w, LLM_O, 1, &d->w->m[OUT], err));
    TRY(put_matrix(&d->on, w, LLM_GATE, 2, &d->w->m[GATE_UP], err));
    TRY(put_matrix(&d->on, w, LLM_DOWN, 1, &d->w->m[DOWN], err));
    for (int i = 0; i < LLM_LAYER_TENSORS; i++) {
        d->w->has[i] = w[i].data && w[i].cols == 1;
        if (d->w->has[i])
            TRY(put_vector(&d->on, w + i, d->w->vector[i], err));
    }
    TRY(gpu_sync(&d->on.gpu, err));
out:
    return rc;
}

/* ---- a layer -------------------------------------------------------------------------------- */

static int add_bias(struct decoder *d, int which, float *y, int64_t n, int64_t width, int64_t ld,
                    struct err *err)
{
    return d->w->has[which] ? ops_add_bias(&d->on.gpu, y, n, width, ld, d->w->vector[which], err)
                            : 0;
}

int decoder_project_to(struct decoder *d, const float *h, int64_t n, struct ops_heads *to,
                       struct err *err)
{
    const struct decoder_shape *s = &d->shape;
    const struct decoder_weights *w = d->w;
    struct gpu *g = &d->on.gpu;
    int64_t ld = d->qdim + 2 * d->kvdim;
    int rc = 0;

    TRY(ops_rms_norm(g, h, n, s->hidden, w->vector[LLM_NORM1], s->eps, w->m[QKV].terms, d->x, err));
    TRY(multiply(&d->on, &w->m[QKV], n, d->x, 0, d->y, err));
    TRY(add_bias(d, LLM_Q_B, d->y, n, d->qdim, ld, err));
    TRY(add_bias(d, LLM_K_B, d->y + d->qdim, n, d->kvdim, ld, err));
    TRY(add_bias(d, LLM_V_B, d->y + d->qdim + d->kvdim, n, d->kvdim, ld, err));
    to->heads = s->heads;
    to->kv_heads = s->kv_heads;
    to->d = s->head_dim;
    to->padded = (int)d->padded;
    to->n = n;
    to->q_norm = w->has[LLM_QN] ? w->vector[LLM_QN] : NULL;
    to->k_norm = w->has[LLM_KN] ? w->vector[LLM_KN] : NULL;
    to->eps = s->eps;
    to->rope = d->rope;
    to->overflow = d->overflow;
    TRY(ops_split_heads(g, to, d->y, err));
out:
    return rc;
}

int decoder_project(struct decoder *d, int64_t t0, int64_t n, struct err *err)
{
    const struct decoder_shape *s = &d->shape;
    struct ops_heads to = {
        .tok0 = t0, .tokens = s->tokens, .bf16 = s->states > 0, .q = d->q, .k = d->k, .v = d->v};
    if (s->states) {
        to.q32 = d->q_rows;
        to.k32 = decoder_kept_rows(d, d->k_rows);
        to.v32 = decoder_kept_rows(d, d->v_rows);
        to.tokens32 = d->cap;
    }
    return decoder_project_to(d, d->h + t0 * s->hidden, n, &to, err);
}

int decoder_finish(struct decoder *d, int64_t t0, int64_t n, struct err *err)
{
    const struct decoder_shape *s = &d->shape;
    struct gpu *g = &d->on.gpu;
    float *h = d->h + t0 * s->hidden;
    int rc = 0;

    TRY(multiply(&d->on, &d->w->m[OUT], n, d->x, 1, h, err));
    TRY(add_bias(d, LLM_O_B, h, n, s->hidden, s->hidden, err));
    TRY(ops_rms_norm(g, h, n, s->hidden, d->w->vector[LLM_NORM2], s->eps, d->w->m[GATE_UP].terms,
                     d->x, err));
    TRY(multiply(&d->on, &d->w->m[GATE_UP], n, d->x, 0, d->y, err));
    TRY(add_bias(d, LLM_GATE_B, d->y, n, s->ffn, 2 * s->ffn, err));
    TRY(add_bias(d, LLM_UP_B, d->y + s->ffn, n, s->ffn, 2 * s->ffn, err));
    TRY(ops_silu_gate(g, d->y, n, s->ffn, d->w->m[DOWN].terms, d->x, err));
    TRY(multiply(&d->on, &d->w->m[DOWN], n, d->x, 1, h, err));
    TRY(add_bias(d, LLM_DOWN_B, h, n, s->hidden, s->hidden, err));
out:
    return rc;
}

static int hand_out(struct decoder *d, const struct decoder_sink *sink, int64_t t0, int64_t n,
                    struct err *err)
{
    float *q = d->host, *k = q + n * d->qdim, *v = k + n * d->kvdim;
    int64_t ld = d->qdim + 2 * d->kvdim;
    int rc = 0;
    TRY(fetch_columns(&d->on, d->y, ld, n, 0, d->qdim, q, err));
    TRY(fetch_columns(&d->on, d->y, ld, n, d->qdim, d->kvdim, k, err));
    TRY(fetch_columns(&d->on, d->y, ld, n, d->qdim + d->kvdim, d->kvdim, v, err));
    TRY(gpu_sync(&d->on.gpu, err));
    TRY(sink->rows(sink->ctx, t0, n, q, k, v, err));
out:
    return rc;
}

int decoder_check_overflow(struct decoder *d, struct err *err)
{
    int flag = 0, rc = gpu_get(&d->on.gpu, &flag, d->overflow, 4, err);
    if (!rc && flag)
        rc = err_set(err, ERR_RUN, "q, k or v is beyond %s or not a number: use --device cpu",
                     d->shape.states ? "2^39" : "float16's range (65504)");
    return rc;
}

/* Tokens of the chunk that begins at t. */
int64_t decoder_chunk(const struct decoder *d, int64_t t)
{
    return d->shape.tokens - t < d->rows ? d->shape.tokens - t : d->rows;
}

static int make_layer_maps(struct decoder *d, const struct decoder_sink *sink, struct err *err)
{
    const struct decoder_shape *s = &d->shape;
    struct map_source from = {d->q,        d->k,           d->lse,    s->heads,
                              s->kv_heads, (int)d->padded, s->tokens, 1 / sqrt(s->head_dim),
                              true};
    return make_maps(&d->on, &from, sink->pool, sink->map_sum, sink->map_max, err);
}

static int decoder_layer(struct decoder *d, const struct decoder_tensor *w,
                         const struct decoder_sink *sink, struct err *err)
{
    const struct decoder_shape *s = &d->shape;
    struct ops_outputs o = {d->o, s->heads, s->head_dim, (int)d->padded, s->tokens, false};
    int64_t tokens = s->tokens;
    int rc = 0;

    TRY(decoder_put_weights(d, w, err));
    for (int64_t t = 0; t < tokens; t += d->rows) {
        int64_t n = decoder_chunk(d, t);
        TRY(span_begin(&d->on, err));
        TRY(decoder_project(d, t, n, err));
        TRY(span_end(&d->on, err));
        if (sink->rows)
            TRY(hand_out(d, sink, t, n, err));
    }
    TRY(decoder_check_overflow(d, err));
    TRY(span_begin(&d->on, err));
    TRY(attn_job_launch(&d->on.gpu, &d->attend, err));
    for (int64_t t = 0; t < tokens; t += d->rows) {
        int64_t n = decoder_chunk(d, t);
        TRY(ops_join_heads(&d->on.gpu, &o, t, n, d->w->m[OUT].terms, d->x, err));
        TRY(decoder_finish(d, t, n, err));
    }
    TRY(span_end(&d->on, err));
    if (sink->pool)
        TRY(make_layer_maps(d, sink, err));
out:
    return rc;
}

static int put_hidden(struct decoder *d, int64_t tok0, int64_t n, const float *h, struct err *err)
{
    int64_t width = d->shape.hidden;
    int rc = gpu_put(&d->on.gpu, d->h + tok0 * width, h, n * width * 4, err);
    return rc ? rc : gpu_sync(&d->on.gpu, err);
}

/* ---- likelihoods ---------------------------------------------------------------------------- */

/* The head's weights in pieces that fit the staging buffer. */
int decoder_put_head(struct decoder *d, const struct decoder_tensor *head, int terms, void *w,
                     struct err *err)
{
    int64_t row = head->cols * (int64_t)dtype_size(head->dtype), step = d->on.raw_bytes / row;
    int rc = 0;
    for (int64_t r = 0; r < head->rows; r += step) {
        struct decoder_tensor part = *head;
        part.data = (const char *)head->data + r * row;
        part.rows = head->rows - r < step ? head->rows - r : step;
        TRY(put_raw(&d->on, &part, err));
        TRY(ops_split_weights(&d->on.gpu, d->on.raw, part.dtype, part.rows, part.cols, terms,
                              (char *)w + 2 * r * part.cols * terms, err));
    }
out:
    return rc;
}

static int likelihood_rows(struct decoder *d, int64_t rows, const void *w, int terms, float *logits,
                           const int32_t *tokens, float *nll, struct err *err)
{
    const struct decoder_shape *s = &d->shape;
    int rc = 0;
    for (int64_t t = 0; t < s->tokens - 1; t += rows) {
        int64_t n = s->tokens - 1 - t < rows ? s->tokens - 1 - t : rows;
        TRY(ops_rms_norm(&d->on.gpu, d->h + t * s->hidden, n, s->hidden, d->norm, s->eps, terms,
                         d->x, err));
        TRY(blas_bf16(d->on.blas, n, s->vocab, s->hidden * terms, d->x, w, 0, logits, s->vocab,
                      err));
        TRY(ops_nll(&d->on.gpu, logits, n, s->vocab, tokens + t + 1, nll + t, err));
    }
out:
    return rc;
}

static int likelihoods(struct decoder *d, const struct decoder_tensor *norm,
                       const struct decoder_tensor *head, const int32_t *tokens, float *nll,
                       struct err *err)
{
    const struct decoder_shape *s = &d->shape;
    struct gpu *g = &d->on.gpu;
    struct gpu_mark mark = gpu_mark(g);
    int terms = head->dtype == DT_BF16 ? 2 : 3, rc = 0;
    int64_t rows = LOGIT_BYTES / (4 * s->vocab);
    void *w = NULL;
    float *logits = NULL, *out = NULL;
    int32_t *ids = NULL;

    rows = rows < 1 ? 1 : rows < d->rows ? rows : d->rows;
    TRY(gpu_alloc(g, head->rows * head->cols * 2 * terms, &w, err));
    TRY(gpu_alloc(g, rows * s->vocab * 4, &logits, err));
    TRY(gpu_alloc(g, s->tokens * 4, &ids, err));
    TRY(gpu_alloc(g, s->tokens * 4, &out, err));
    TRY(decoder_put_head(d, head, terms, w, err));
    TRY(put_vector(&d->on, norm, d->norm, err));
    TRY(gpu_put(g, ids, tokens, s->tokens * 4, err));
    TRY(gpu_sync(g, err));
    TRY(span_begin(&d->on, err));
    TRY(likelihood_rows(d, rows, w, terms, logits, ids, out, err));
    TRY(span_end(&d->on, err));
    TRY(gpu_get(g, nll, out, (s->tokens - 1) * 4, err));
out:
    gpu_release(g, mark);
    return rc;
}

static double seconds(const struct decoder *d)
{
    return d->on.seconds;
}

static const char *device(const struct decoder *d)
{
    return d->on.gpu.name;
}

const struct decoder_accel cuda_decoder = {
    .name = "cuda",
    .arithmetic = "float32, attention float16",
    .computed_by = model_computed_by,
    .open = decoder_open,
    .close = decoder_close,
    .put_hidden = put_hidden,
    .layer = decoder_layer,
    .likelihoods = likelihoods,
    .seconds = seconds,
    .device = device,
    .states = &cuda_decoder_states,
};
