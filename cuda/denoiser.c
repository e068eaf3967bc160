/*
 * denoiser.c - a Wan 2.1 video diffusion transformer on the GPU (core/denoiser.h), the steps of
 * capture/wan_forward.c over chunks of tokens.
 *
 * Device memory: the weights of all blocks as bf16 terms (ops.h), the latent, the hidden state of
 * all tokens, q, k, v and the attention's output by head in float16 (or bf16), and the activations
 * of a chunk of tokens. Linear layers and residuals are exact to about 1e-5; attention takes
 * rounded operands and accumulates in float32.
 */
#include "cuda/backend.h"

#include "core/intmath.h"
#include "core/mem.h"
#include "cuda/modelrun.h"

#include <math.h>
#include <stdlib.h>

#define CHUNK_BYTES (1LL << 30) /* of activations */
#define MIN_ROWS 256

/* Matrices that are multiplied as one. */
enum { QKV1, OUT1, Q2, KV2, OUT2, FFN0, FFN2, BLOCK_MATRICES };
enum { PATCH, TIME1, TIME2, TIME_PROJ, TEXT1, TEXT2, HEAD, OUTER_MATRICES };

struct linear {
    struct matrix m;
    float *bias; /* [rows of m] */
};

struct block {
    struct linear l[BLOCK_MATRICES];
    float *mod, *q1_norm, *k1_norm, *q2_norm, *k2_norm;
    float *norm2, *norm2_b; /* NULL: no norm before cross-attention */
};

struct denoiser {
    struct model_run on;
    struct denoiser_shape shape;
    struct ops_grid in, out;
    int64_t tokens, dim, padded;
    int64_t rows; /* tokens of a chunk */
    struct attn_job self, cross;
    struct linear outer[OUTER_MATRICES];
    float *out_mod;
    struct block *blocks; /* [layers], owned */

    float *latent;       /* the input, at the end the velocity */
    float *h;            /* [tokens][dim] */
    float *y;            /* [rows][widest output of a matrix] */
    void *x;             /* bf16 [rows][3 * widest input] */
    void *q, *k, *v, *o; /* [heads][tokens][padded] */
    void *k2, *v2;       /* [heads][n_text][padded] */
    float *lse, *table[3];
    float *freq, *text_in, *text; /* inputs of the embeddings; [n_text][dim] */
    float *temb, *emod, *mod;     /* [dim], [6][dim] of the timestep, [6][dim] of a block */
    int *overflow;
    float *host;            /* [rows][3 dim] by tensor; owned */
    struct {                /* of somebody else's attention, NULL before it */
        float *qkv, *out;   /* on the device: [3][heads][tokens][d], [tokens][dim] */
        float *host;        /* qkv for the host; owned, page-locked */
        float *attended;    /* [tokens][dim], owned */
        bool wanted, there; /* in the layer at hand; its outputs are in `out` */
    } own;
};

/* The tensors behind a matrix: `n` of them from `first` on, a bias behind each. */
struct part {
    int first, n;
};
static const struct part block_parts[BLOCK_MATRICES] = {
    [QKV1] = {WAN_Q1, 3}, [OUT1] = {WAN_O1, 1}, [Q2] = {WAN_Q2, 1},   [KV2] = {WAN_K2, 2},
    [OUT2] = {WAN_O2, 1}, [FFN0] = {WAN_F0, 1}, [FFN2] = {WAN_F2, 1},
};
static const struct part outer_parts[OUTER_MATRICES] = {
    [PATCH] = {WAN_PATCH, 1}, [TIME1] = {WAN_TIME1, 1},
    [TIME2] = {WAN_TIME2, 1}, [TIME_PROJ] = {WAN_TIME_PROJ, 1},
    [TEXT1] = {WAN_TEXT1, 1}, [TEXT2] = {WAN_TEXT2, 1},
    [HEAD] = {WAN_OUT, 1},
};

/* ---- opening -------------------------------------------------------------------------------- */

static int64_t patch_values(const struct denoiser_shape *s, int64_t channels)
{
    return channels * s->patch[0] * s->patch[1] * s->patch[2];
}

static int64_t widest_input(const struct denoiser *d)
{
    const struct denoiser_shape *s = &d->shape;
    int64_t embeddings = MAX(s->text_dim, s->freq);
    return MAX(MAX(MAX(d->dim, s->ffn), patch_values(s, s->in_channels)), embeddings);
}

static int64_t widest_output(const struct denoiser *d)
{
    return MAX(MAX(3 * d->dim, d->shape.ffn), patch_values(&d->shape, d->shape.out_channels));
}

static int set_sizes(struct denoiser *d, struct err *err)
{
    const struct denoiser_shape *s = &d->shape;
    PASS_ON(pad_head_dim(s->head_dim, &d->padded, err));
    d->dim = (int64_t)s->heads * s->head_dim;
    d->tokens = 1;
    for (int a = 0; a < 3; a++) {
        d->in.size[a] = s->size[a];
        d->in.patch[a] = s->patch[a];
        d->in.grid[a] = s->size[a] / s->patch[a];
        d->tokens *= d->in.grid[a];
    }
    d->out = d->in;
    d->in.channels = s->in_channels;
    d->out.channels = s->out_channels;
    d->rows = MAX(MIN_ROWS, CHUNK_BYTES / (4 * widest_output(d) + 6 * widest_input(d)));
    d->rows = MAX(MIN(d->rows, d->tokens), s->n_text);
    return 0;
}

static int alloc_operands(struct denoiser *d, struct err *err)
{
    const struct denoiser_shape *s = &d->shape;
    struct gpu *g = &d->on.gpu;
    int64_t bytes = s->heads * d->tokens * d->padded * 2;
    int64_t text = s->heads * s->n_text * d->padded * 2;
    void **const own[] = {&d->q, &d->k, &d->v, &d->o}, **const of_text[] = {&d->k2, &d->v2};

    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        PASS_ON(gpu_alloc(g, bytes, own[i], err));
        PASS_ON(gpu_zero(g, *own[i], bytes, err)); /* channels from head_dim on stay 0 */
    }
    for (size_t i = 0; i < sizeof of_text / sizeof *of_text; i++) {
        PASS_ON(gpu_alloc(g, text, of_text[i], err));
        PASS_ON(gpu_zero(g, *of_text[i], text, err));
    }
    PASS_ON(gpu_alloc(g, s->heads * d->tokens * 4, &d->lse, err));
    PASS_ON(gpu_alloc(g, 4, &d->overflow, err));
    return gpu_zero(g, d->overflow, 4, err);
}

static int alloc_activations(struct denoiser *d, struct err *err)
{
    const struct denoiser_shape *s = &d->shape;
    struct gpu *g = &d->on.gpu;
    int64_t pixels = s->size[0] * s->size[1] * s->size[2];
    int64_t largest = MAX(MAX(6 * d->dim, s->ffn), widest_input(d)) * d->dim;

    PASS_ON(gpu_alloc(g, MAX(s->in_channels, s->out_channels) * pixels * 4, &d->latent, err));
    PASS_ON(gpu_alloc(g, d->tokens * d->dim * 4, &d->h, err));
    PASS_ON(gpu_alloc(g, d->rows * widest_output(d) * 4, &d->y, err));
    PASS_ON(gpu_alloc(g, d->rows * widest_input(d) * 6, &d->x, err));
    PASS_ON(gpu_alloc(g, s->freq * 4, &d->freq, err));
    PASS_ON(gpu_alloc(g, s->n_text * s->text_dim * 4, &d->text_in, err));
    PASS_ON(gpu_alloc(g, s->n_text * d->dim * 4, &d->text, err));
    PASS_ON(gpu_alloc(g, d->dim * 4, &d->temb, err));
    PASS_ON(gpu_alloc(g, 6 * d->dim * 4, &d->emod, err));
    PASS_ON(gpu_alloc(g, 6 * d->dim * 4, &d->mod, err));
    d->on.raw_bytes = 4 * MAX(largest, patch_values(s, s->out_channels) * d->dim);
    PASS_ON(gpu_alloc(g, d->on.raw_bytes, &d->on.raw, err));
    return mem_alloc(&d->host, d->rows * 3 * d->dim, sizeof *d->host, "queries, keys and values",
                     err);
}

static int make_tables(struct denoiser *d, struct err *err)
{
    const struct denoiser_shape *s = &d->shape;
    struct gpu *g = &d->on.gpu;
    double *freq = NULL;
    int64_t at = 0;

    PASS_ON(gpu_upload(g, s->inv_freq, s->head_dim / 2 * 8, &freq, err));
    for (int a = 0; a < 3; at += s->pairs[a++]) {
        PASS_ON(gpu_alloc(g, MAX(d->in.grid[a] * s->pairs[a], 1) * 8, &d->table[a], err));
        if (s->pairs[a])
            PASS_ON(
                ops_rope_table(g, freq + at, (int)s->pairs[a], d->in.grid[a], 1, d->table[a], err));
    }
    return gpu_sync(g, err);
}

/* The plan of attention over nk keys. */
static int make_attention(struct denoiser *d, const void *k, const void *v, int64_t nk,
                          struct attn_job *job, struct err *err)
{
    const struct denoiser_shape *s = &d->shape;
    const struct attn_problem p = {s->heads,  s->heads,  (int)d->padded,
                                   d->tokens, nk,        1 / sqrt(s->head_dim),
                                   false,     ATTN_DENSE};
    const struct attn_tensors x = {d->q, k, v, d->o, d->lse};
    return plan_attention(&d->on, &p, s->bf16, &x, job, err);
}

static void denoiser_close(struct denoiser **out)
{
    struct denoiser *d = *out;
    if (!d)
        return;
    attn_job_free(&d->self);
    attn_job_free(&d->cross);
    model_run_close(&d->on);
    free(d->blocks);
    free(d->host);
    free(d->own.attended);
    host_locked_free(d->own.host);
    free(d);
    *out = NULL;
}

static int denoiser_open(int local_rank, const struct denoiser_shape *s, struct denoiser **out,
                         struct err *err)
{
    OWN(denoiser_close) struct denoiser *d = NULL;
    PASS_ON(mem_zalloc(&d, 1, sizeof *d, "denoiser", err));
    d->shape = *s;
    PASS_ON(set_sizes(d, err));
    PASS_ON(model_run_open(local_rank, &d->on, err));
    PASS_ON(mem_zalloc(&d->blocks, s->layers, sizeof *d->blocks, "blocks", err));
    PASS_ON(alloc_activations(d, err));
    PASS_ON(alloc_operands(d, err));
    PASS_ON(make_tables(d, err));
    PASS_ON(make_attention(d, d->k, d->v, d->tokens, &d->self, err));
    PASS_ON(make_attention(d, d->k2, d->v2, s->n_text, &d->cross, err));
    d->shape.inv_freq = NULL;
    *out = d;
    d = NULL;
    return 0;
}

/* ---- weights -------------------------------------------------------------------------------- */

static int64_t count(const struct decoder_tensor *t)
{
    return t->rows * t->cols;
}

/* A vector of `n` values into memory of its own. */
static int keep_vector(struct denoiser *d, const struct decoder_tensor *t, int64_t n, float **to,
                       struct err *err)
{
    if (count(t) != n)
        return err_set(err, ERR_RUN, "a weight has %lld values, the model's sizes say %lld",
                       (long long)count(t), (long long)n);
    PASS_ON(gpu_alloc(&d->on.gpu, n * 4, to, err));
    return put_vector(&d->on, t, *to, err);
}

/* Matrices and their biases, one below the other. */
static int keep_linear(struct denoiser *d, const struct decoder_tensor *w, struct part p,
                       struct linear *l, struct err *err)
{
    int64_t rows = 0, at = 0, cols = w[p.first].cols;
    int terms = matrix_terms(w, p.first, p.n);

    for (int i = 0; i < p.n; i++)
        rows += w[p.first + 2 * i].rows;
    l->m = (struct matrix){NULL, rows, cols, terms};
    PASS_ON(gpu_alloc(&d->on.gpu, rows * cols * 2 * terms, &l->m.w, err));
    PASS_ON(gpu_alloc(&d->on.gpu, rows * 4, &l->bias, err));
    PASS_ON(put_matrix(&d->on, w, p.first, p.n, &l->m, err));
    for (int i = 0; i < p.n; i++) {
        const struct decoder_tensor *bias = w + p.first + 2 * i + 1;
        if (at + count(bias) > rows)
            return err_set(err, ERR_RUN, "a bias is longer than the model's sizes say");
        PASS_ON(put_vector(&d->on, bias, l->bias + at, err));
        at += count(bias);
    }
    return 0;
}

static int put_outer(struct denoiser *d, const struct decoder_tensor *w, struct err *err)
{
    for (int i = 0; i < OUTER_MATRICES; i++)
        PASS_ON(keep_linear(d, w, outer_parts[i], d->outer + i, err));
    PASS_ON(keep_vector(d, w + WAN_OUT_MOD, 2 * d->dim, &d->out_mod, err));
    return gpu_sync(&d->on.gpu, err);
}

static int put_block(struct denoiser *d, int block, const struct decoder_tensor *w, struct err *err)
{
    struct block *b = d->blocks + block;
    const struct {
        enum wan_tensor from;
        float **to;
        int64_t n;
    } vectors[] = {
        {WAN_MOD, &b->mod, 6 * d->dim},     {WAN_NQ1, &b->q1_norm, d->dim},
        {WAN_NK1, &b->k1_norm, d->dim},     {WAN_NQ2, &b->q2_norm, d->dim},
        {WAN_NK2, &b->k2_norm, d->dim},     {WAN_NORM2, &b->norm2, d->dim},
        {WAN_NORM2_B, &b->norm2_b, d->dim},
    };

    for (int i = 0; i < BLOCK_MATRICES; i++)
        PASS_ON(keep_linear(d, w, block_parts[i], b->l + i, err));
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
        if (w[vectors[i].from].data)
            PASS_ON(keep_vector(d, w + vectors[i].from, vectors[i].n, vectors[i].to, err));
    return gpu_sync(&d->on.gpu, err);
}

/* ---- pieces of an evaluation ---------------------------------------------------------------- */

/* y = x w^T without the bias, of n rows whose terms are in d->x. */
static int apply(struct denoiser *d, const struct linear *l, int64_t n, float *y, struct err *err)
{
    return multiply(&d->on, &l->m, n, d->x, 0, y, err);
}

/* The same with the bias. */
static int apply_bias(struct denoiser *d, const struct linear *l, int64_t n, float *y,
                      struct err *err)
{
    PASS_ON(apply(d, l, n, y, err));
    return ops_add_bias(&d->on.gpu, y, n, l->m.rows, l->m.rows, l->bias, err);
}

/* x -> the terms that the next product takes. */
static int take(struct denoiser *d, const float *x, int64_t n, const struct linear *next,
                struct err *err)
{
    return ops_split_rows(&d->on.gpu, x, n, next->m.cols, next->m.terms, d->x, err);
}

/* LN(h) scale + shift of tokens from t on. */
static int take_normed(struct denoiser *d, int64_t t, int64_t n, const float *scale,
                       const float *shift, const struct linear *next, struct err *err)
{
    return ops_layer_norm(&d->on.gpu, d->h + t * d->dim, n, d->dim, scale, shift, d->shape.eps,
                          next->m.terms, d->x, err);
}

/* f(d->y + the bias of `of`). */
static int take_activated(struct denoiser *d, int64_t n, const struct linear *of,
                          enum ops_function f, const struct linear *next, struct err *err)
{
    return ops_activate(&d->on.gpu, d->y, n, of->m.rows, of->bias, f, next->m.terms, d->x, err);
}

/* Outputs of attention of tokens from t on. */
static int take_attended(struct denoiser *d, int64_t t, int64_t n, const struct linear *next,
                         struct err *err)
{
    const struct denoiser_shape *s = &d->shape;
    struct ops_outputs o = {d->o, s->heads, s->head_dim, (int)d->padded, d->tokens, s->bf16};
    return ops_join_heads(&d->on.gpu, &o, t, n, next->m.terms, d->x, err);
}

/* h += gate * (x w^T + b) */
static int add_to_hidden(struct denoiser *d, int64_t t, int64_t n, const struct linear *l,
                         const float *gate, struct err *err)
{
    PASS_ON(apply(d, l, n, d->y, err));
    return ops_add_gated(&d->on.gpu, d->h + t * d->dim, d->y, n, d->dim, l->bias, gate, err);
}

/* Tokens of the chunk that begins at t. */
static int64_t chunk(const struct denoiser *d, int64_t t)
{
    return MIN(d->rows, d->tokens - t);
}

/* An operand of `tokens` tokens from columns of d->y. */
static int split(struct denoiser *d, float *y, int64_t ld, int64_t t, int64_t n, int64_t tokens,
                 const float *norm, bool rotate, void *to, float *wide, struct err *err)
{
    const struct denoiser_shape *s = &d->shape;
    /* clang-format off */
    struct ops_wide w = {
        .heads = s->heads, .d = s->head_dim, .padded = (int)d->padded, .n = n, .tok0 = t, .ld = ld,
        .tokens = tokens, .norm = norm, .eps = s->eps, .rotate = rotate, .bf16 = s->bf16, .to = to,
        .wide = wide, .overflow = d->overflow};
    /* clang-format on */
    for (int a = 0; a < 3; a++) {
        w.grid[a] = d->in.grid[a];
        w.pairs[a] = s->pairs[a];
        w.table[a] = d->table[a];
    }
    return ops_split_wide(&d->on.gpu, &w, y, err);
}

/* ---- begin ---------------------------------------------------------------------------------- */

static int embed_time(struct denoiser *d, struct err *err)
{
    const struct linear *o = d->outer;
    PASS_ON(take(d, d->freq, 1, o + TIME1, err));
    PASS_ON(apply(d, o + TIME1, 1, d->y, err));
    PASS_ON(take_activated(d, 1, o + TIME1, OPS_SILU, o + TIME2, err));
    PASS_ON(apply_bias(d, o + TIME2, 1, d->temb, err));
    PASS_ON(ops_activate(&d->on.gpu, d->temb, 1, d->dim, NULL, OPS_SILU, o[TIME_PROJ].m.terms, d->x,
                         err));
    return apply_bias(d, o + TIME_PROJ, 1, d->emod, err);
}

static int embed_text(struct denoiser *d, struct err *err)
{
    const struct linear *o = d->outer;
    int64_t n = d->shape.n_text;
    PASS_ON(take(d, d->text_in, n, o + TEXT1, err));
    PASS_ON(apply(d, o + TEXT1, n, d->y, err));
    PASS_ON(take_activated(d, n, o + TEXT1, OPS_GELU_TANH, o + TEXT2, err));
    return apply_bias(d, o + TEXT2, n, d->text, err);
}

/* Embeddings of timestep, text and latent. */
static int embed(struct denoiser *d, struct err *err)
{
    const struct linear *patch = d->outer + PATCH;
    PASS_ON(embed_time(d, err));
    PASS_ON(embed_text(d, err));
    for (int64_t t = 0; t < d->tokens; t += d->rows) {
        int64_t n = chunk(d, t);
        PASS_ON(ops_patches(&d->on.gpu, d->latent, &d->in, t, n, patch->m.terms, d->x, err));
        PASS_ON(apply_bias(d, patch, n, d->h + t * d->dim, err));
    }
    return 0;
}

static int denoiser_begin(struct denoiser *d, const float *x, const float *frequencies,
                          const float *text, struct err *err)
{
    const struct denoiser_shape *s = &d->shape;
    struct gpu *g = &d->on.gpu;
    int64_t pixels = s->size[0] * s->size[1] * s->size[2];

    PASS_ON(gpu_put(g, d->latent, x, s->in_channels * pixels * 4, err));
    PASS_ON(gpu_put(g, d->freq, frequencies, s->freq * 4, err));
    PASS_ON(gpu_put(g, d->text_in, text, s->n_text * s->text_dim * 4, err));
    PASS_ON(span_begin(&d->on, err));
    PASS_ON(embed(d, err));
    return span_end(&d->on, err);
}

/* ---- a layer -------------------------------------------------------------------------------- */

/* q, k, v of the self-attention of a chunk, in d->y and by head. */
static int project(struct denoiser *d, const struct block *b, int64_t t, int64_t n, struct err *err)
{
    int64_t dim = d->dim, ld = 3 * dim, N = d->tokens;
    float *q = d->own.wanted ? d->own.qkv : NULL, *k = q ? q + N * dim : NULL;
    float *v = q ? k + N * dim : NULL;
    PASS_ON(take_normed(d, t, n, d->mod + dim, d->mod, b->l + QKV1, err));
    PASS_ON(apply_bias(d, b->l + QKV1, n, d->y, err));
    PASS_ON(split(d, d->y, ld, t, n, N, b->q1_norm, true, d->q, q, err));
    PASS_ON(split(d, d->y + dim, ld, t, n, N, b->k1_norm, true, d->k, k, err));
    return split(d, d->y + 2 * dim, ld, t, n, N, NULL, false, d->v, v, err);
}

static int hand_out(struct denoiser *d, const struct denoiser_sink *sink, int64_t t, int64_t n,
                    struct err *err)
{
    int64_t dim = d->dim, ld = 3 * dim;
    float *at[3] = {d->host, d->host + n * dim, d->host + 2 * n * dim};
    for (int i = 0; i < 3; i++)
        PASS_ON(fetch_columns(&d->on, d->y, ld, n, i * dim, dim, at[i], err));
    PASS_ON(gpu_sync(&d->on.gpu, err));
    return sink->rows(sink->ctx, t, n, at[0], at[1], at[2], err);
}

/* Modulation, keys and values of the text. */
static int project_text(struct denoiser *d, const struct block *b, struct err *err)
{
    int64_t n_text = d->shape.n_text, dim = d->dim;
    PASS_ON(
        ops_modulation(&d->on.gpu, b->mod, d->emod, false, 6, dim, 1u << 1 | 1u << 4, d->mod, err));
    PASS_ON(take(d, d->text, n_text, b->l + KV2, err));
    PASS_ON(apply_bias(d, b->l + KV2, n_text, d->y, err));
    PASS_ON(split(d, d->y, 2 * dim, 0, n_text, n_text, b->k2_norm, false, d->k2, NULL, err));
    return split(d, d->y + dim, 2 * dim, 0, n_text, n_text, NULL, false, d->v2, NULL, err);
}

/* The same, then q, k, v of all tokens. */
static int project_all(struct denoiser *d, const struct block *b, const struct denoiser_sink *sink,
                       struct err *err)
{
    PASS_ON(span_begin(&d->on, err));
    PASS_ON(project_text(d, b, err));
    PASS_ON(span_end(&d->on, err));
    for (int64_t t = 0; t < d->tokens; t += d->rows) {
        PASS_ON(span_begin(&d->on, err));
        PASS_ON(project(d, b, t, chunk(d, t), err));
        PASS_ON(span_end(&d->on, err));
        if (sink->rows)
            PASS_ON(hand_out(d, sink, t, chunk(d, t), err));
    }
    return 0;
}

/* Room for somebody else's attention. */
static int open_own(struct denoiser *d, struct err *err)
{
    int64_t n = d->tokens * d->dim;
    if (d->own.attended)
        return 0;
    if (!d->own.qkv)
        PASS_ON(gpu_alloc(&d->on.gpu, 3 * n * 4, &d->own.qkv, err));
    if (!d->own.out)
        PASS_ON(gpu_alloc(&d->on.gpu, n * 4, &d->own.out, err));
    if (!d->own.host)
        PASS_ON(host_locked(3 * n * 4, "queries, keys and values", &d->own.host, err));
    return mem_alloc(&d->own.attended, n, sizeof(float), "attention output", err);
}

static int attend_own(struct denoiser *d, const struct denoiser_sink *sink, struct err *err)
{
    int64_t n = d->tokens * d->dim;
    struct decoder_operands there = {d->q, d->k, d->v, (int)d->padded, d->own.out};
    struct decoder_rows rows = {d->own.host, d->own.host + n, d->own.host + 2 * n};
    PASS_ON(fetch_locked(&d->on, d->own.host, d->own.qkv, 3 * n * 4, err));
    PASS_ON(gpu_sync(&d->on.gpu, err));
    d->own.there = false;
    return sink->attend(sink->ctx, &there, &rows, d->own.attended, &d->own.there, err);
}

/* Self-attention, its maps, and what somebody else puts in its place. */
static int attend(struct denoiser *d, const struct denoiser_sink *sink, struct err *err)
{
    const struct denoiser_shape *s = &d->shape;
    struct map_source from = {d->q,     d->k,           d->lse,    s->heads,
                              s->heads, (int)d->padded, d->tokens, 1 / sqrt(s->head_dim),
                              false};

    if (sink->pool && s->bf16)
        return err_set(err, ERR_RUN, "maps are made of float16 operands");
    if (sink->pool || !sink->attend) {
        PASS_ON(span_begin(&d->on, err));
        PASS_ON(attn_job_launch(&d->on.gpu, &d->self, err));
        PASS_ON(span_end(&d->on, err));
    }
    if (sink->pool)
        PASS_ON(make_maps(&d->on, &from, sink->pool, sink->map_sum, sink->map_max, err));
    if (sink->attend)
        return attend_own(d, sink, err);
    return 0;
}

/* What follows self-attention, up to the queries of cross-attention. */
static int finish_self(struct denoiser *d, const struct block *b, int64_t t, int64_t n,
                       struct err *err)
{
    float *own = d->own.there ? d->own.out + t * d->dim : d->y;
    if (d->own.wanted) {
        if (!d->own.there)
            PASS_ON(gpu_put(&d->on.gpu, own, d->own.attended + t * d->dim, n * d->dim * 4, err));
        PASS_ON(take(d, own, n, b->l + OUT1, err));
    } else {
        PASS_ON(take_attended(d, t, n, b->l + OUT1, err));
    }
    PASS_ON(add_to_hidden(d, t, n, b->l + OUT1, d->mod + 2 * d->dim, err));
    if (b->norm2)
        PASS_ON(take_normed(d, t, n, b->norm2, b->norm2_b, b->l + Q2, err));
    else
        PASS_ON(take(d, d->h + t * d->dim, n, b->l + Q2, err));
    PASS_ON(apply_bias(d, b->l + Q2, n, d->y, err));
    return split(d, d->y, d->dim, t, n, d->tokens, b->q2_norm, false, d->q, NULL, err);
}

/* What follows cross-attention. */
static int finish_cross(struct denoiser *d, const struct block *b, int64_t t, int64_t n,
                        struct err *err)
{
    const float *mod = d->mod;
    int64_t dim = d->dim;
    PASS_ON(take_attended(d, t, n, b->l + OUT2, err));
    PASS_ON(add_to_hidden(d, t, n, b->l + OUT2, NULL, err));
    PASS_ON(take_normed(d, t, n, mod + 4 * dim, mod + 3 * dim, b->l + FFN0, err));
    PASS_ON(apply(d, b->l + FFN0, n, d->y, err));
    PASS_ON(take_activated(d, n, b->l + FFN0, OPS_GELU_TANH, b->l + FFN2, err));
    return add_to_hidden(d, t, n, b->l + FFN2, mod + 5 * dim, err);
}

/* What follows self-attention of all tokens. */
static int finish(struct denoiser *d, const struct block *b, struct err *err)
{
    for (int64_t t = 0; t < d->tokens; t += d->rows)
        PASS_ON(finish_self(d, b, t, chunk(d, t), err));
    PASS_ON(attn_job_launch(&d->on.gpu, &d->cross, err));
    for (int64_t t = 0; t < d->tokens; t += d->rows)
        PASS_ON(finish_cross(d, b, t, chunk(d, t), err));
    return 0;
}

static int denoiser_layer(struct denoiser *d, int at, const struct denoiser_sink *sink,
                          struct err *err)
{
    const struct block *b = d->blocks + at;

    d->own.wanted = sink->attend != NULL;
    if (d->own.wanted)
        PASS_ON(open_own(d, err));
    PASS_ON(project_all(d, b, sink, err));
    PASS_ON(check_operands(&d->on, d->overflow, d->shape.bf16, err));
    PASS_ON(attend(d, sink, err));
    PASS_ON(span_begin(&d->on, err));
    PASS_ON(finish(d, b, err));
    PASS_ON(span_end(&d->on, err));
    return check_operands(&d->on, d->overflow, d->shape.bf16, err);
}

/* -> d->latent */
static int velocity(struct denoiser *d, struct err *err)
{
    const struct linear *head = d->outer + HEAD;
    struct gpu *g = &d->on.gpu;
    PASS_ON(ops_modulation(g, d->out_mod, d->temb, true, 2, d->dim, 1u << 1, d->mod, err));
    for (int64_t t = 0; t < d->tokens; t += d->rows) {
        int64_t n = chunk(d, t);
        PASS_ON(take_normed(d, t, n, d->mod + d->dim, d->mod, head, err));
        PASS_ON(apply(d, head, n, d->y, err));
        PASS_ON(ops_pixels(g, d->y, head->bias, &d->out, t, n, d->latent, err));
    }
    return 0;
}

static int denoiser_end(struct denoiser *d, float *v, struct err *err)
{
    const struct denoiser_shape *s = &d->shape;
    int64_t pixels = s->size[0] * s->size[1] * s->size[2];
    struct gpu *g = &d->on.gpu;

    PASS_ON(span_begin(&d->on, err));
    PASS_ON(velocity(d, err));
    PASS_ON(span_end(&d->on, err));
    return gpu_get(g, v, d->latent, s->out_channels * pixels * 4, err);
}

/* ---- time ----------------------------------------------------------------------------------- */

/* An evaluation without self-attention, whose outputs are those of before. */
static int all_but_attention(void *ctx, struct err *err)
{
    struct denoiser *d = ctx;
    PASS_ON(embed(d, err));
    for (int i = 0; i < d->shape.layers; i++) {
        PASS_ON(project_text(d, d->blocks + i, err));
        for (int64_t t = 0; t < d->tokens; t += d->rows)
            PASS_ON(project(d, d->blocks + i, t, chunk(d, t), err));
        PASS_ON(finish(d, d->blocks + i, err));
    }
    return velocity(d, err);
}

/* Products of n rows with the matrices `which` of l. */
static int products(struct denoiser *d, const struct linear *l, const int *which, int count,
                    int64_t n, struct err *err)
{
    for (int i = 0; i < count; i++)
        PASS_ON(apply(d, l + which[i], n, d->y, err));
    return 0;
}

/* The products of an evaluation, of whatever rows lie in d->x. */
static int all_products(void *ctx, struct err *err)
{
    static const int of_time[] = {TIME1, TIME2, TIME_PROJ}, of_text[] = {TEXT1, TEXT2};
    static const int of_tokens[] = {PATCH, HEAD}, of_block_text[] = {KV2};
    static const int of_block[] = {QKV1, OUT1, Q2, OUT2, FFN0, FFN2};
    struct denoiser *d = ctx;
    int64_t n_text = d->shape.n_text;

    PASS_ON(products(d, d->outer, of_time, 3, 1, err));
    PASS_ON(products(d, d->outer, of_text, 2, n_text, err));
    for (int64_t t = 0; t < d->tokens; t += d->rows)
        PASS_ON(products(d, d->outer, of_tokens, 2, chunk(d, t), err));
    for (int i = 0; i < d->shape.layers; i++) {
        PASS_ON(products(d, d->blocks[i].l, of_block_text, 1, n_text, err));
        for (int64_t t = 0; t < d->tokens; t += d->rows)
            PASS_ON(products(d, d->blocks[i].l, of_block, 6, chunk(d, t), err));
    }
    return 0;
}

static int self_attention(void *ctx, struct err *err)
{
    struct denoiser *d = ctx;
    for (int i = 0; i < d->shape.layers; i++)
        PASS_ON(attn_job_launch(&d->on.gpu, &d->self, err));
    return 0;
}

static int denoiser_time(struct denoiser *d, int samples, struct denoiser_times *t, struct err *err)
{
    const struct block *last = d->blocks + d->shape.layers - 1;

    d->own.wanted = false;
    PASS_ON(time_work(&d->on, all_but_attention, d, samples, &t->linear, err));
    PASS_ON(time_work(&d->on, all_products, d, samples, &t->product, err));
    for (int64_t at = 0; at < d->tokens; at += d->rows) /* cross-attention has used the queries */
        PASS_ON(project(d, last, at, chunk(d, at), err));
    PASS_ON(time_work(&d->on, self_attention, d, samples, &t->attention, err));
    return gpu_zero(&d->on.gpu, d->overflow, 4, err); /* a state may have grown beyond all bounds */
}

/* ---- all of it ------------------------------------------------------------------------------ */

static double seconds(const struct denoiser *d)
{
    return d->on.seconds;
}

static const char *device(const struct denoiser *d)
{
    return d->on.gpu.name;
}

const struct denoiser_accel cuda_denoiser = {
    .name = "cuda",
    .arithmetic = "float32, attention float16",
    .computed_by = model_computed_by,
    .open = denoiser_open,
    .close = denoiser_close,
    .put_outer = put_outer,
    .put_block = put_block,
    .begin = denoiser_begin,
    .layer = denoiser_layer,
    .end = denoiser_end,
    .time = denoiser_time,
    .seconds = seconds,
    .device = device,
};
