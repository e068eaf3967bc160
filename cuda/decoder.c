/*
 * decoder.c - a Llama-family decoder on the GPU (core/decoder.h).
 *
 * Device memory: the hidden state of all tokens, q, k, v and the attention's output by head in
 * float16 (of several states bf16), one layer's weights as bf16 terms (ops.h), and the activations
 * of a chunk of tokens. Linear layers and residuals are exact to about 1e-5; attention takes
 * operands rounded to float16 (2^-12 each) and accumulates in float32.
 *
 * With several states, each has its residual stream on the device; everything else is shared, one
 * state after the other. Attention's outputs are float rows, whoever computed them, and go into the
 * output projection as bf16 terms.
 *
 * Rows behind a sequence go through all layers of a decoder that keeps them: answers are generated
 * a token at a time, and scored some tokens at a time. All of that is in float32 accuracy, as on
 * the CPU: linear layers by bf16 terms, attention over keys and values in float32.
 */
#include "cuda/backend.h"

#include "core/intmath.h"
#include "core/mem.h"
#include "cuda/modelrun.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES (1LL << 30)   /* of activations */
#define LOGIT_BYTES (512LL << 20) /* of one or two states */
#define MIN_ROWS 256
#define FEW_ROWS 64             /* behind a sequence, at a time */
#define PART_BYTES (64LL << 20) /* of their attention */

/* Matrices that are multiplied as one. */
enum { QKV, OUT, GATE_UP, DOWN, MATRICES };

/* Weights of a layer. */
struct decoder_weights {
    struct matrix m[MATRICES];
    float *vector[LLM_LAYER_TENSORS]; /* norms and biases */
    bool has[LLM_LAYER_TENSORS];
};

struct decoder {
    struct model_run on;
    struct decoder_shape shape;
    struct attn_job attend;
    struct gpu_mark base; /* top of the arena below what belongs to one sequence */
    int64_t rows;         /* tokens of a chunk */
    int64_t qdim, kvdim, padded;
    int64_t wide_in, wide_out; /* widest input and output of a matrix */
    float *h;                  /* [tokens][hidden] */
    float *y;                  /* [rows][wide_out] */
    void *x;                   /* bf16 [rows][3 wide_in] */
    void *q, *k, *v, *o;       /* float16, of several states bf16: [heads][tokens][padded] */
    float *lse, *rope;
    int *overflow;
    struct decoder_weights *layers; /* one, or [shape.kept]; the array is owned */
    struct decoder_weights *w;      /* of the layer at hand */
    float *norm;                    /* [hidden]: the last one */
    float *host;                    /* [rows][qdim + 2 kvdim] by tensor; owned, of one state */

    /* For several states (core/decoder.h); h is then the hidden state of the one at hand. */
    float **states; /* [shape.states] of [cap][hidden]; the array is owned */
    int64_t cap;    /* tokens that everything has room for; shape.tokens are the sequence's */
    float *o_rows, *o_ref; /* [cap][qdim]: outputs of attention, of the state at hand and of 0 */
    /* In float32, by head: [heads][cap][d], [kv_heads][cap][d]; k and v of kept layers
     * [kept][states] of these. */
    float *q_rows, *k_rows, *v_rows;
    int layer, state; /* at hand */
    double *sums;     /* partial sums of ops_difference */
    void *table;      /* embeddings as stored */
    enum dtype table_type;
    int32_t *ids;     /* [cap] */
    float *pinned;    /* q, k, v for the host; owned, page-locked, NULL before they are wanted */
    struct few_rows { /* for `rows` rows at a time */
        int64_t rows;
        float *h, *o, *parts;
        int32_t *ids;
    } few;
};

/* k or v in float32 of the layer and state at hand; all: d->k_rows or d->v_rows. */
static float *kept_rows(const struct decoder *d, float *all)
{
    int64_t size = d->kvdim * d->cap;
    return d->shape.kept ? all + ((int64_t)d->layer * d->shape.states + d->state) * size : all;
}

/* Tokens of the chunk that begins at t. */
static int64_t chunk(const struct decoder *d, int64_t t)
{
    return d->shape.tokens - t < d->rows ? d->shape.tokens - t : d->rows;
}

/* ---- opening -------------------------------------------------------------------------------- */

static int set_sizes(struct decoder *d, struct err *err)
{
    const struct decoder_shape *s = &d->shape;
    PASS_ON(pad_head_dim(s->head_dim, &d->padded, err));
    d->qdim = (int64_t)s->heads * s->head_dim;
    d->kvdim = (int64_t)s->kv_heads * s->head_dim;
    d->wide_in = MAX(MAX(s->hidden, d->qdim), s->ffn);
    d->wide_out = MAX(d->qdim + 2 * d->kvdim, 2 * s->ffn);
    d->rows = CHUNK_BYTES / (4 * d->wide_out + 6 * d->wide_in);
    d->rows = d->rows < MIN_ROWS ? MIN_ROWS : d->rows;
    d->rows = d->rows < s->tokens ? d->rows : s->tokens;
    return 0;
}

static int alloc_few(struct decoder *d, struct err *err)
{
    const struct decoder_shape *s = &d->shape;
    struct few_rows *f = &d->few;
    struct gpu *g = &d->on.gpu;
    int64_t parts = ops_few_parts(s->heads, s->head_dim, d->cap);

    f->rows = MAX(1, MIN(MIN(FEW_ROWS, d->rows), PART_BYTES / (4 * parts)));
    PASS_ON(gpu_alloc(g, f->rows * s->hidden * 4, &f->h, err));
    PASS_ON(gpu_alloc(g, f->rows * d->qdim * 4, &f->o, err));
    PASS_ON(gpu_alloc(g, f->rows * 4, &f->ids, err));
    return gpu_alloc(g, f->rows * parts * 4, &f->parts, err);
}

static int alloc_states(struct decoder *d, struct err *err)
{
    const struct decoder_shape *s = &d->shape;
    struct gpu *g = &d->on.gpu;
    int64_t n = s->tokens, kept = s->kept ? (int64_t)s->kept * s->states : 1;

    d->cap = n;
    PASS_ON(mem_zalloc(&d->states, s->states, sizeof *d->states, "states", err));
    for (int i = 0; i < s->states; i++)
        PASS_ON(gpu_alloc(g, n * s->hidden * 4, &d->states[i], err));
    d->h = d->states[0];
    PASS_ON(gpu_alloc(g, n * d->qdim * 4, &d->o_rows, err));
    PASS_ON(gpu_alloc(g, n * d->qdim * 4, &d->o_ref, err));
    PASS_ON(gpu_alloc(g, n * d->qdim * 4, &d->q_rows, err));
    PASS_ON(gpu_alloc(g, kept * n * d->kvdim * 4, &d->k_rows, err));
    PASS_ON(gpu_alloc(g, kept * n * d->kvdim * 4, &d->v_rows, err));
    PASS_ON(gpu_alloc(g, 2 * OPS_SUMS * 8, &d->sums, err));
    PASS_ON(gpu_alloc(g, n * 4, &d->ids, err));
    if (s->kept)
        return alloc_few(d, err);
    return 0;
}

static int alloc_activations(struct decoder *d, struct err *err)
{
    const struct decoder_shape *s = &d->shape;
    struct gpu *g = &d->on.gpu;
    int64_t n = s->tokens;

    if (s->states)
        PASS_ON(alloc_states(d, err));
    else
        PASS_ON(gpu_alloc(g, n * s->hidden * 4, &d->h, err));
    PASS_ON(gpu_alloc(g, d->rows * d->wide_out * 4, &d->y, err));
    PASS_ON(gpu_alloc(g, d->rows * d->wide_in * 6, &d->x, err));
    PASS_ON(gpu_alloc(g, s->heads * n * d->padded * 2, &d->q, err));
    PASS_ON(gpu_alloc(g, s->heads * n * d->padded * 2, &d->o, err));
    PASS_ON(gpu_alloc(g, s->kv_heads * n * d->padded * 2, &d->k, err));
    PASS_ON(gpu_alloc(g, s->kv_heads * n * d->padded * 2, &d->v, err));
    PASS_ON(gpu_alloc(g, s->heads * n * 4, &d->lse, err));
    PASS_ON(gpu_alloc(g, n * (s->head_dim / 2) * 8, &d->rope, err));
    PASS_ON(gpu_alloc(g, 4, &d->overflow, err));
    PASS_ON(gpu_zero(g, d->overflow, 4, err));
    if (!s->states)
        return mem_alloc(&d->host, d->rows * (d->qdim + 2 * d->kvdim), sizeof *d->host,
                         "queries, keys and values", err);
    return 0;
}

static int alloc_weights(struct decoder *d, struct err *err)
{
    const struct decoder_shape *s = &d->shape;
    const int64_t rows[MATRICES] = {d->qdim + 2 * d->kvdim, s->hidden, 2 * s->ffn, s->hidden};
    const int64_t cols[MATRICES] = {s->hidden, d->qdim, s->hidden, s->ffn};
    int layers = MAX(s->kept, 1);

    PASS_ON(mem_zalloc(&d->layers, layers, sizeof *d->layers, "layers", err));
    d->w = d->layers;
    for (struct decoder_weights *w = d->layers; w < d->layers + layers; w++) {
        for (int i = 0; i < MATRICES; i++) {
            w->m[i] = (struct matrix){NULL, rows[i], cols[i], 2};
            PASS_ON(gpu_alloc(&d->on.gpu, rows[i] * cols[i] * 6, &w->m[i].w, err));
        }
        for (int i = 0; i < LLM_LAYER_TENSORS; i++)
            PASS_ON(gpu_alloc(&d->on.gpu, d->wide_in * 4, &w->vector[i], err));
    }
    PASS_ON(gpu_alloc(&d->on.gpu, s->hidden * 4, &d->norm, err));
    d->on.raw_bytes = 4 * s->hidden * d->wide_in;
    return gpu_alloc(&d->on.gpu, d->on.raw_bytes, &d->on.raw, err);
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

static int make_attention(struct decoder *d, struct err *err)
{
    const struct decoder_shape *s = &d->shape;
    const struct attn_problem p = {s->heads,  s->kv_heads,           (int)d->padded, s->tokens,
                                   s->tokens, 1 / sqrt(s->head_dim), true,           ATTN_DENSE};
    const struct attn_tensors x = {d->q, d->k, d->v, d->o, d->lse};
    return plan_attention(&d->on, &p, s->states > 0, &x, &d->attend, err);
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
    OWN(decoder_close) struct decoder *d = NULL;
    PASS_ON(mem_zalloc(&d, 1, sizeof *d, "decoder", err));
    d->shape = *s;
    PASS_ON(set_sizes(d, err));
    PASS_ON(model_run_open(local_rank, &d->on, err));
    PASS_ON(alloc_activations(d, err));
    PASS_ON(alloc_weights(d, err));
    PASS_ON(make_rope(d, err));
    d->base = gpu_mark(&d->on.gpu);
    if (!s->states)
        PASS_ON(make_attention(d, err));
    d->shape.inv_freq = NULL;
    *out = d;
    d = NULL;
    return 0;
}

/* ---- weights -------------------------------------------------------------------------------- */

static int put_weights(struct decoder *d, const struct decoder_tensor *w, struct err *err)
{
    PASS_ON(put_matrix(&d->on, w, LLM_Q, 3, &d->w->m[QKV], err));
    PASS_ON(put_matrix(&d->on, w, LLM_O, 1, &d->w->m[OUT], err));
    PASS_ON(put_matrix(&d->on, w, LLM_GATE, 2, &d->w->m[GATE_UP], err));
    PASS_ON(put_matrix(&d->on, w, LLM_DOWN, 1, &d->w->m[DOWN], err));
    for (int i = 0; i < LLM_LAYER_TENSORS; i++) {
        d->w->has[i] = w[i].data && w[i].cols == 1;
        if (d->w->has[i])
            PASS_ON(put_vector(&d->on, w + i, d->w->vector[i], err));
    }
    return gpu_sync(&d->on.gpu, err);
}

/* ---- a layer -------------------------------------------------------------------------------- */

static int add_bias(struct decoder *d, int which, float *y, int64_t n, int64_t width, int64_t ld,
                    struct err *err)
{
    return d->w->has[which] ? ops_add_bias(&d->on.gpu, y, n, width, ld, d->w->vector[which], err)
                            : 0;
}

static int project_rows(struct decoder *d, const float *h, int64_t n, struct ops_heads *to,
                        struct err *err)
{
    const struct decoder_shape *s = &d->shape;
    const struct decoder_weights *w = d->w;
    struct gpu *g = &d->on.gpu;
    int64_t ld = d->qdim + 2 * d->kvdim;

    PASS_ON(
        ops_rms_norm(g, h, n, s->hidden, w->vector[LLM_NORM1], s->eps, w->m[QKV].terms, d->x, err));
    PASS_ON(multiply(&d->on, &w->m[QKV], n, d->x, 0, d->y, err));
    PASS_ON(add_bias(d, LLM_Q_B, d->y, n, d->qdim, ld, err));
    PASS_ON(add_bias(d, LLM_K_B, d->y + d->qdim, n, d->kvdim, ld, err));
    PASS_ON(add_bias(d, LLM_V_B, d->y + d->qdim + d->kvdim, n, d->kvdim, ld, err));
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
    return ops_split_heads(g, to, d->y, err);
}

static int project_chunk(struct decoder *d, int64_t t0, int64_t n, struct err *err)
{
    const struct decoder_shape *s = &d->shape;
    struct ops_heads to = {
        .tok0 = t0, .tokens = s->tokens, .bf16 = s->states > 0, .q = d->q, .k = d->k, .v = d->v};
    if (s->states) {
        to.q32 = d->q_rows;
        to.k32 = kept_rows(d, d->k_rows);
        to.v32 = kept_rows(d, d->v_rows);
        to.tokens32 = d->cap;
    }
    return project_rows(d, d->h + t0 * s->hidden, n, &to, err);
}

static int finish_chunk(struct decoder *d, int64_t t0, int64_t n, struct err *err)
{
    const struct decoder_shape *s = &d->shape;
    struct gpu *g = &d->on.gpu;
    float *h = d->h + t0 * s->hidden;

    PASS_ON(multiply(&d->on, &d->w->m[OUT], n, d->x, 1, h, err));
    PASS_ON(add_bias(d, LLM_O_B, h, n, s->hidden, s->hidden, err));
    PASS_ON(ops_rms_norm(g, h, n, s->hidden, d->w->vector[LLM_NORM2], s->eps,
                         d->w->m[GATE_UP].terms, d->x, err));
    PASS_ON(multiply(&d->on, &d->w->m[GATE_UP], n, d->x, 0, d->y, err));
    PASS_ON(add_bias(d, LLM_GATE_B, d->y, n, s->ffn, 2 * s->ffn, err));
    PASS_ON(add_bias(d, LLM_UP_B, d->y + s->ffn, n, s->ffn, 2 * s->ffn, err));
    PASS_ON(ops_silu_gate(g, d->y, n, s->ffn, d->w->m[DOWN].terms, d->x, err));
    PASS_ON(multiply(&d->on, &d->w->m[DOWN], n, d->x, 1, h, err));
    return add_bias(d, LLM_DOWN_B, h, n, s->hidden, s->hidden, err);
}

static int hand_out(struct decoder *d, const struct decoder_sink *sink, int64_t t0, int64_t n,
                    struct err *err)
{
    float *q = d->host, *k = q + n * d->qdim, *v = k + n * d->kvdim;
    int64_t ld = d->qdim + 2 * d->kvdim;
    PASS_ON(fetch_columns(&d->on, d->y, ld, n, 0, d->qdim, q, err));
    PASS_ON(fetch_columns(&d->on, d->y, ld, n, d->qdim, d->kvdim, k, err));
    PASS_ON(fetch_columns(&d->on, d->y, ld, n, d->qdim + d->kvdim, d->kvdim, v, err));
    PASS_ON(gpu_sync(&d->on.gpu, err));
    return sink->rows(sink->ctx, t0, n, q, k, v, err);
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

    PASS_ON(put_weights(d, w, err));
    for (int64_t t = 0; t < tokens; t += d->rows) {
        int64_t n = chunk(d, t);
        PASS_ON(span_begin(&d->on, err));
        PASS_ON(project_chunk(d, t, n, err));
        PASS_ON(span_end(&d->on, err));
        if (sink->rows)
            PASS_ON(hand_out(d, sink, t, n, err));
    }
    PASS_ON(check_operands(&d->on, d->overflow, d->shape.states > 0, err));
    PASS_ON(span_begin(&d->on, err));
    PASS_ON(attn_job_launch(&d->on.gpu, &d->attend, err));
    for (int64_t t = 0; t < tokens; t += d->rows) {
        int64_t n = chunk(d, t);
        PASS_ON(ops_join_heads(&d->on.gpu, &o, t, n, d->w->m[OUT].terms, d->x, err));
        PASS_ON(finish_chunk(d, t, n, err));
    }
    PASS_ON(span_end(&d->on, err));
    if (sink->pool)
        return make_layer_maps(d, sink, err);
    return 0;
}

static int put_hidden(struct decoder *d, int64_t tok0, int64_t n, const float *h, struct err *err)
{
    int64_t width = d->shape.hidden;
    PASS_ON(gpu_put(&d->on.gpu, d->h + tok0 * width, h, n * width * 4, err));
    return gpu_sync(&d->on.gpu, err);
}

/* ---- likelihoods ---------------------------------------------------------------------------- */

/* Buffers of scores: output weights, and logits of one or two states. */
struct scoring {
    void *w;
    int terms;
    int64_t rows; /* that the logits have */
    float *p, *q; /* q: NULL for one */
    int32_t *ids;
};

/* The head's weights in pieces that fit the staging buffer. */
static int put_head(struct decoder *d, const struct decoder_tensor *head, int terms, void *w,
                    struct err *err)
{
    int64_t row = head->cols * (int64_t)dtype_size(head->dtype), step = d->on.raw_bytes / row;
    for (int64_t r = 0; r < head->rows; r += step) {
        struct decoder_tensor part = *head;
        part.data = (const char *)head->data + r * row;
        part.rows = head->rows - r < step ? head->rows - r : step;
        PASS_ON(put_raw(&d->on, &part, err));
        PASS_ON(ops_split_weights(&d->on.gpu, d->on.raw, part.dtype, part.rows, part.cols, terms,
                                  (char *)w + 2 * r * part.cols * terms, err));
    }
    return 0;
}

static int scoring_open(struct decoder *d, const struct decoder_tensor *norm,
                        const struct decoder_tensor *head, const int32_t *tokens, int states,
                        struct scoring *s, struct err *err)
{
    struct gpu *g = &d->on.gpu;
    int64_t vocab = d->shape.vocab, n = d->shape.tokens;

    s->terms = head->dtype == DT_BF16 ? 2 : 3;
    s->rows = MIN(MAX(LOGIT_BYTES / (4 * states * vocab), 1), MIN(d->rows, n));
    PASS_ON(gpu_alloc(g, head->rows * head->cols * 2 * s->terms, &s->w, err));
    PASS_ON(gpu_alloc(g, s->rows * vocab * 4, &s->p, err));
    if (states > 1)
        PASS_ON(gpu_alloc(g, s->rows * vocab * 4, &s->q, err));
    PASS_ON(gpu_alloc(g, n * 4, &s->ids, err));
    PASS_ON(put_head(d, head, s->terms, s->w, err));
    PASS_ON(put_vector(&d->on, norm, d->norm, err));
    if (tokens)
        PASS_ON(gpu_put(g, s->ids, tokens, n * 4, err));
    return gpu_sync(g, err);
}

/* Logits of the rows h [n][hidden]. */
static int logits(struct decoder *d, const struct scoring *s, const float *h, int64_t n, float *out,
                  struct err *err)
{
    const struct decoder_shape *c = &d->shape;
    PASS_ON(ops_rms_norm(&d->on.gpu, h, n, c->hidden, d->norm, c->eps, s->terms, d->x, err));
    return blas_bf16(d->on.blas, n, c->vocab, c->hidden * s->terms, d->x, s->w, 0, out, c->vocab,
                     err);
}

static int likelihoods(struct decoder *d, const struct decoder_tensor *norm,
                       const struct decoder_tensor *head, const int32_t *tokens, float *nll,
                       struct err *err)
{
    const struct decoder_shape *c = &d->shape;
    struct gpu *g = &d->on.gpu;
    struct gpu_mark mark = gpu_mark(g);
    struct scoring s = {0};
    float *out = NULL;
    int rc = 0;

    TRY(gpu_alloc(g, c->tokens * 4, &out, err));
    TRY(scoring_open(d, norm, head, tokens, 1, &s, err));
    TRY(span_begin(&d->on, err));
    for (int64_t t = 0; t < c->tokens - 1; t += s.rows) {
        int64_t n = MIN(s.rows, c->tokens - 1 - t);
        TRY(logits(d, &s, d->h + t * c->hidden, n, s.p, err));
        TRY(ops_nll(g, s.p, n, c->vocab, s.ids + t + 1, out + t, err));
    }
    TRY(span_end(&d->on, err));
    TRY(gpu_get(g, nll, out, (c->tokens - 1) * 4, err));
out:
    gpu_release(g, mark);
    return rc;
}

/* ---- a sequence ----------------------------------------------------------------------------- */

/* Below what belongs to one sequence. */
static int put_table(struct decoder *d, const struct decoder_tensor *table, struct err *err)
{
    const struct decoder_shape *s = &d->shape;
    int64_t bytes = table->rows * table->cols * (int64_t)dtype_size(table->dtype);

    if (table->rows != s->vocab || table->cols != s->hidden)
        return err_set(err, ERR_RUN,
                       "the embeddings do not have the shape that the model's sizes say");
    PASS_ON(gpu_upload(&d->on.gpu, table->data, bytes, &d->table, err));
    PASS_ON(gpu_sync(&d->on.gpu, err));
    d->table_type = table->dtype;
    d->base = gpu_mark(&d->on.gpu);
    return 0;
}

static int begin(struct decoder *d, const int32_t *tokens, int64_t n, struct err *err)
{
    int64_t bytes = n * d->shape.hidden * 4;
    struct gpu *g = &d->on.gpu;

    if (n < 1 || n > d->cap)
        return err_set(err, ERR_RUN, "%lld tokens, room for %lld", (long long)n, (long long)d->cap);
    attn_job_free(&d->attend);
    gpu_release(g, d->base);
    d->shape.tokens = n;
    PASS_ON(make_attention(d, err));
    PASS_ON(gpu_put(g, d->ids, tokens, n * 4, err));
    PASS_ON(
        ops_take_rows(g, d->table, d->table_type, d->shape.hidden, d->ids, n, d->states[0], err));
    for (int i = 1; i < d->shape.states; i++)
        PASS_ON(gpu_copy(g, d->states[i], d->states[0], bytes, err));
    return gpu_sync(g, err);
}

/* ---- a layer of a state --------------------------------------------------------------------- */

static int load(struct decoder *d, int layer, const struct decoder_tensor *w, struct err *err)
{
    d->layer = layer;
    d->w = d->layers + (d->shape.kept ? layer : 0);
    return w ? put_weights(d, w, err) : 0;
}

/* Heads of one tensor to the host. */
static int fetch_heads(struct decoder *d, const float *from, int heads, float *to, struct err *err)
{
    int64_t n = d->shape.tokens * d->shape.head_dim, step = d->cap * d->shape.head_dim;
    for (int h = 0; h < heads; h++)
        PASS_ON(fetch_locked(&d->on, to + h * n, from + h * step, n * 4, err));
    return 0;
}

/* What was projected, to the host; nobody has waited for it. */
static int fetch_rows(struct decoder *d, struct decoder_rows *rows, struct err *err)
{
    const struct decoder_shape *s = &d->shape;
    int64_t q = s->tokens * d->qdim, kv = s->tokens * d->kvdim;
    if (!d->pinned)
        PASS_ON(host_locked(d->cap * (d->qdim + 2 * d->kvdim) * 4, "queries, keys and values",
                            &d->pinned, err));
    *rows = (struct decoder_rows){d->pinned, d->pinned + q, d->pinned + q + kv};
    PASS_ON(fetch_heads(d, d->q_rows, s->heads, rows->q, err));
    PASS_ON(fetch_heads(d, kept_rows(d, d->k_rows), s->kv_heads, rows->k, err));
    return fetch_heads(d, kept_rows(d, d->v_rows), s->kv_heads, rows->v, err);
}

static int project(struct decoder *d, int state, struct decoder_rows *rows,
                   struct decoder_operands *operands, struct err *err)
{
    d->state = state;
    d->h = d->states[state];
    for (int64_t t = 0; t < d->shape.tokens; t += d->rows)
        PASS_ON(project_chunk(d, t, chunk(d, t), err));
    if (rows)
        PASS_ON(fetch_rows(d, rows, err));
    PASS_ON(
        check_operands(&d->on, d->overflow, d->shape.states > 0, err)); /* waits for the device */
    *operands = (struct decoder_operands){d->q, d->k, d->v, (int)d->padded, d->o_rows};
    return 0;
}

static int attend(struct decoder *d, struct err *err)
{
    const struct decoder_shape *s = &d->shape;
    PASS_ON(attn_job_launch(&d->on.gpu, &d->attend, err));
    return ops_head_rows(&d->on.gpu, d->o, s->heads, s->tokens, s->head_dim, (int)d->padded, 1,
                         d->o_rows, d->qdim, err);
}

static int put_attended(struct decoder *d, const float *o, struct err *err)
{
    PASS_ON(gpu_put(&d->on.gpu, d->o_rows, o, d->shape.tokens * d->qdim * 4, err));
    return gpu_sync(&d->on.gpu, err);
}

/* Sums of squares of x - ref and of ref. */
static int difference(struct decoder *d, const float *x, const float *ref, int64_t n, double *diff,
                      double *norm, struct err *err)
{
    double sums[2 * OPS_SUMS];
    PASS_ON(ops_difference(&d->on.gpu, x, ref, n, d->sums, err));
    PASS_ON(gpu_get(&d->on.gpu, sums, d->sums, sizeof sums, err));
    *diff = *norm = 0;
    for (int i = 0; i < OPS_SUMS; i++) {
        *diff += sums[2 * i];
        *norm += sums[2 * i + 1];
    }
    return 0;
}

/* Everything behind the attention whose outputs are in `o`. */
static int finish_rows(struct decoder *d, const float *o, struct err *err)
{
    for (int64_t t = 0; t < d->shape.tokens; t += d->rows) {
        int64_t n = chunk(d, t);
        PASS_ON(
            ops_split_rows(&d->on.gpu, o + t * d->qdim, n, d->qdim, d->w->m[OUT].terms, d->x, err));
        PASS_ON(finish_chunk(d, t, n, err));
    }
    return 0;
}

static int finish(struct decoder *d, int state, struct decoder_diff *diff, struct err *err)
{
    int64_t n = d->shape.tokens;

    d->h = d->states[state];
    PASS_ON(finish_rows(d, d->o_rows, err));
    if (state == 0) { /* what the other states are compared with */
        float *now = d->o_rows;
        d->o_rows = d->o_ref;
        d->o_ref = now;
    } else if (diff) {
        PASS_ON(difference(d, d->o_rows, d->o_ref, n * d->qdim, &diff->attn, &diff->attn_ref, err));
        return difference(d, d->h, d->states[0], n * d->shape.hidden, &diff->resid,
                          &diff->resid_ref, err);
    }
    return 0;
}

static int get_hidden(struct decoder *d, int state, int64_t row, int64_t n, float *h,
                      struct err *err)
{
    int64_t width = d->shape.hidden;
    return gpu_get(&d->on.gpu, h, d->states[state] + row * width, n * width * 4, err);
}

/* ---- scores --------------------------------------------------------------------------------- */

static int score(struct decoder *d, const struct decoder_tensor *norm,
                 const struct decoder_tensor *head, const int32_t *tokens, int64_t from,
                 const bool *wants, struct decoder_score *const *out, struct err *err)
{
    struct gpu_mark mark = gpu_mark(&d->on.gpu);
    struct decoder_score *scores; /* [s.rows], on the device */
    struct scoring s = {0};
    int64_t n = d->shape.tokens, width = d->shape.hidden;
    int rc = 0;

    TRY(scoring_open(d, norm, head, tokens, 2, &s, err));
    TRY(gpu_alloc(&d->on.gpu, s.rows * (int64_t)sizeof *scores, &scores, err));
    /* The row at t predicts the token at t + 1. */
    for (int64_t t = from - 1; t < n - 1; t += s.rows) {
        int64_t rows = n - 1 - t < s.rows ? n - 1 - t : s.rows;
        TRY(logits(d, &s, d->states[0] + t * width, rows, s.p, err));
        for (int i = 0; i < d->shape.states; i++) {
            if (i && !wants[i])
                continue;
            if (i)
                TRY(logits(d, &s, d->states[i] + t * width, rows, s.q, err));
            TRY(ops_score_rows(&d->on.gpu, s.p, i ? s.q : s.p, rows, d->shape.vocab, s.ids + t + 1,
                               scores, err));
            TRY(gpu_get(&d->on.gpu, out[i] + (t - from + 1), scores, rows * (int64_t)sizeof *scores,
                        err));
        }
    }
out:
    gpu_release(&d->on.gpu, mark);
    return rc;
}

/* ---- time ----------------------------------------------------------------------------------- */

struct layer_work {
    struct decoder *d;
    float *scratch;
};

static int layer_work(void *ctx, struct err *err)
{
    const struct layer_work *w = ctx;
    struct decoder *d = w->d;
    d->state = 0;
    d->h = w->scratch;
    for (int64_t t = 0; t < d->shape.tokens; t += d->rows)
        PASS_ON(project_chunk(d, t, chunk(d, t), err));
    return finish_rows(d, d->o_rows, err);
}

static int time_layer(struct decoder *d, int samples, double *ns, struct err *err)
{
    struct gpu_mark mark = gpu_mark(&d->on.gpu);
    int64_t bytes = d->shape.tokens * d->shape.hidden * 4;
    struct layer_work w = {.d = d};
    int rc = 0;

    TRY(gpu_alloc(&d->on.gpu, bytes, &w.scratch, err));
    TRY(gpu_copy(&d->on.gpu, w.scratch, d->states[0], bytes, err));
    TRY(time_work(&d->on, layer_work, &w, samples, ns, err));
    TRY(gpu_zero(&d->on.gpu, d->overflow, 4, err)); /* the copy may have grown beyond all bounds */
out:
    d->h = d->states[0];
    gpu_release(&d->on.gpu, mark);
    return rc;
}

struct head_work {
    struct decoder *d;
    struct scoring s;
};

static int head_work(void *ctx, struct err *err)
{
    const struct head_work *w = ctx;
    const struct decoder_shape *c = &w->d->shape;
    return logits(w->d, &w->s, w->d->states[0] + (c->tokens - 1) * c->hidden, 1, w->s.p, err);
}

static int time_head(struct decoder *d, const struct decoder_tensor *norm,
                     const struct decoder_tensor *head, int samples, double *ns, struct err *err)
{
    struct gpu_mark mark = gpu_mark(&d->on.gpu);
    struct head_work w = {.d = d};
    int rc = 0;
    TRY(scoring_open(d, norm, head, NULL, 2, &w.s, err));
    TRY(time_work(&d->on, head_work, &w, samples, ns, err));
out:
    gpu_release(&d->on.gpu, mark);
    return rc;
}

/* ---- rows behind a sequence ----------------------------------------------------------------- */

static int attend_few(struct decoder *d, int64_t pos, int64_t m, struct err *err)
{
    const struct decoder_shape *s = &d->shape;
    struct ops_few few = {.q = d->y,
                          .k = kept_rows(d, d->k_rows),
                          .v = kept_rows(d, d->v_rows),
                          .ld = d->qdim + 2 * d->kvdim,
                          .stride = d->cap,
                          .pos = pos,
                          .m = m,
                          .heads = s->heads,
                          .kv_heads = s->kv_heads,
                          .d = s->head_dim,
                          .scale = 1 / sqrt(s->head_dim),
                          .parts = d->few.parts,
                          .out = d->few.o};
    return ops_attend_few(&d->on.gpu, &few, err);
}

/* The rows whose hidden state is in d->few.h. */
static int run_few_layer(struct decoder *d, int layer, int64_t pos, int64_t m, struct err *err)
{
    struct ops_heads to = {.tok0 = pos, .tokens32 = d->cap};

    d->layer = layer;
    d->w = d->layers + layer;
    to.k32 = kept_rows(d, d->k_rows);
    to.v32 = kept_rows(d, d->v_rows);
    PASS_ON(project_rows(d, d->few.h, m, &to, err));
    PASS_ON(attend_few(d, pos, m, err));
    PASS_ON(ops_split_rows(&d->on.gpu, d->few.o, m, d->qdim, d->w->m[OUT].terms, d->x, err));
    d->h = d->few.h;
    return finish_chunk(d, 0, m, err);
}

static int run_few(struct decoder *d, int state, const int32_t *tokens, int64_t pos, int64_t m,
                   float *h, struct err *err)
{
    const struct decoder_shape *s = &d->shape;
    struct gpu *g = &d->on.gpu;

    if (!s->kept || pos + m > d->cap)
        return err_set(err, ERR_RUN,
                       "rows at %lld behind a sequence: the GPU has kept %d layers of %lld tokens",
                       (long long)pos, s->kept, (long long)d->cap);
    d->state = state;
    for (int64_t t = 0; t < m; t += d->few.rows) {
        int64_t n = MIN(d->few.rows, m - t);
        PASS_ON(gpu_put(g, d->few.ids, tokens + t, n * 4, err));
        PASS_ON(ops_take_rows(g, d->table, d->table_type, s->hidden, d->few.ids, n, d->few.h, err));
        for (int layer = 0; layer < s->kept; layer++)
            PASS_ON(run_few_layer(d, layer, pos + t, n, err));
        PASS_ON(gpu_get(g, h + t * s->hidden, d->few.h, n * s->hidden * 4, err));
    }
    return 0;
}

static const struct decoder_states decoder_states = {
    .put_table = put_table,
    .begin = begin,
    .load = load,
    .project = project,
    .attend = attend,
    .put_attended = put_attended,
    .finish = finish,
    .score = score,
    .get_hidden = get_hidden,
    .rows = run_few,
    .time_layer = time_layer,
    .time_head = time_head,
};

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
    .states = &decoder_states,
};
