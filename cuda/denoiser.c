/*
 * denoiser.c - a Wan 2.1 video diffusion transformer on the GPU (core/denoiser.h).
 *
 * Device memory: the weights of all blocks as bf16 terms (decoder_ops.h), the latent, the hidden
 * state of all tokens, q, k, v and the attention's output by head in float16 (or bf16), and the
 * activations of a chunk of tokens. Linear layers and residuals are exact to about 1e-5; attention
 * takes rounded operands and accumulates in float32.
 */
#include "cuda/backend.h"
#include "cuda/decoder_ops.h"
#include "cuda/denoiser_body.h"

#include "core/intmath.h"

#include <math.h>
#include <stdlib.h>

#define CHUNK_BYTES (1LL << 30) /* of activations */
#define MIN_ROWS 256

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
    int rc = pad_head_dim(s->head_dim, &d->padded, err);
    if (rc)
        return rc;
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
    int rc = 0;

    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        TRY(gpu_alloc(g, bytes, own[i], err));
        TRY(gpu_zero(g, *own[i], bytes, err)); /* channels from head_dim on stay 0 */
    }
    for (size_t i = 0; i < sizeof of_text / sizeof *of_text; i++) {
        TRY(gpu_alloc(g, text, of_text[i], err));
        TRY(gpu_zero(g, *of_text[i], text, err));
    }
    TRY(gpu_alloc(g, s->heads * d->tokens * 4, &d->lse, err));
    TRY(gpu_alloc(g, 4, &d->overflow, err));
    TRY(gpu_zero(g, d->overflow, 4, err));
out:
    return rc;
}

static int alloc_activations(struct denoiser *d, struct err *err)
{
    const struct denoiser_shape *s = &d->shape;
    struct gpu *g = &d->on.gpu;
    int64_t pixels = s->size[0] * s->size[1] * s->size[2];
    int64_t largest = MAX(MAX(6 * d->dim, s->ffn), widest_input(d)) * d->dim;
    int rc = 0;

    TRY(gpu_alloc(g, MAX(s->in_channels, s->out_channels) * pixels * 4, &d->latent, err));
    TRY(gpu_alloc(g, d->tokens * d->dim * 4, &d->h, err));
    TRY(gpu_alloc(g, d->rows * widest_output(d) * 4, &d->y, err));
    TRY(gpu_alloc(g, d->rows * widest_input(d) * 6, &d->x, err));
    TRY(gpu_alloc(g, s->freq * 4, &d->freq, err));
    TRY(gpu_alloc(g, s->n_text * s->text_dim * 4, &d->text_in, err));
    TRY(gpu_alloc(g, s->n_text * d->dim * 4, &d->text, err));
    TRY(gpu_alloc(g, d->dim * 4, &d->temb, err));
    TRY(gpu_alloc(g, 6 * d->dim * 4, &d->emod, err));
    TRY(gpu_alloc(g, 6 * d->dim * 4, &d->mod, err));
    d->on.raw_bytes = 4 * MAX(largest, patch_values(s, s->out_channels) * d->dim);
    TRY(gpu_alloc(g, d->on.raw_bytes, &d->on.raw, err));
    TRY(mem_alloc(&d->host, d->rows * 3 * d->dim, sizeof *d->host, "queries, keys and values",
                  err));
out:
    return rc;
}

static int make_tables(struct denoiser *d, struct err *err)
{
    const struct denoiser_shape *s = &d->shape;
    struct gpu *g = &d->on.gpu;
    double *freq = NULL;
    int64_t at = 0;
    int rc = 0;

    TRY(gpu_upload(g, s->inv_freq, s->head_dim / 2 * 8, &freq, err));
    for (int a = 0; a < 3; at += s->pairs[a++]) {
        TRY(gpu_alloc(g, MAX(d->in.grid[a] * s->pairs[a], 1) * 8, &d->table[a], err));
        if (s->pairs[a])
            TRY(ops_rope_table(g, freq + at, (int)s->pairs[a], d->in.grid[a], 1, d->table[a], err));
    }
    TRY(gpu_sync(g, err));
out:
    return rc;
}

/* The plan of attention over nk keys. */
static int make_attention(struct denoiser *d, const void *k, const void *v, int64_t nk,
                          struct attn_job *job, struct err *err)
{
    const struct denoiser_shape *s = &d->shape;
    struct attn_problem p = {s->heads,  s->heads,  (int)d->padded,
                             d->tokens, nk,        1 / sqrt(s->head_dim),
                             false,     ATTN_DENSE};
    struct attn_tensors x = {d->q, k, v, d->o, d->lse};
    const struct attn_kernel *kernel;
    struct attn_plan plan = {0};
    int rc = 0;

    TRY(attn_kernel_for(&p, d->on.gpu.sm, s->bf16 ? ATTN_BF16 : ATTN_F16, &kernel, err));
    TRY(attn_plan_make(&p, &kernel->tile, NULL, d->on.gpu.sms, true, &plan, err));
    TRY(attn_job_init(&d->on.gpu, &p, kernel, &plan, &x, job, err));
out:
    attn_plan_free(&plan);
    return rc;
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
    int rc = 0;
    struct denoiser *d = calloc(1, sizeof *d);
    if (!d)
        return err_set(err, ERR_NOMEM, "denoiser: out of memory");
    d->shape = *s;
    TRY(set_sizes(d, err));
    TRY(model_run_open(local_rank, &d->on, err));
    TRY(mem_zalloc(&d->blocks, s->layers, sizeof *d->blocks, "blocks", err));
    TRY(alloc_activations(d, err));
    TRY(alloc_operands(d, err));
    TRY(make_tables(d, err));
    TRY(make_attention(d, d->k, d->v, d->tokens, &d->self, err));
    TRY(make_attention(d, d->k2, d->v2, s->n_text, &d->cross, err));
    d->shape.inv_freq = NULL;
    *out = d;
    d = NULL;
out:
    denoiser_close(&d);
    return rc;
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
    int rc = 0;
    if (count(t) != n)
        FAIL(err, ERR_RUN, "a weight has %lld values, the model's sizes say %lld",
             (long long)count(t), (long long)n);
    TRY(gpu_alloc(&d->on.gpu, n * 4, to, err));
    TRY(put_vector(&d->on, t, *to, err));
out:
    return rc;
}

/* Matrices and their biases, one below the other. */
static int keep_linear(struct denoiser *d, const struct decoder_tensor *w, struct part p,
                       struct linear *l, struct err *err)
{
    int64_t rows = 0, at = 0, cols = w[p.first].cols;
    int terms = matrix_terms(w, p.first, p.n), rc = 0;

    for (int i = 0; i < p.n; i++)
        rows += w[p.first + 2 * i].rows;
    l->m = (struct matrix){NULL, rows, cols, terms};
    TRY(gpu_alloc(&d->on.gpu, rows * cols * 2 * terms, &l->m.w, err));
    TRY(gpu_alloc(&d->on.gpu, rows * 4, &l->bias, err));
    TRY(put_matrix(&d->on, w, p.first, p.n, &l->m, err));
    for (int i = 0; i < p.n; i++) {
        const struct decoder_tensor *bias = w + p.first + 2 * i + 1;
        if (at + count(bias) > rows)
            FAIL(err, ERR_RUN, "a bias is longer than the model's sizes say");
        TRY(put_vector(&d->on, bias, l->bias + at, err));
        at += count(bias);
    }
out:
    return rc;
}

static int put_outer(struct denoiser *d, const struct decoder_tensor *w, struct err *err)
{
    int rc = 0;
    for (int i = 0; i < OUTER_MATRICES; i++)
        TRY(keep_linear(d, w, outer_parts[i], d->outer + i, err));
    TRY(keep_vector(d, w + WAN_OUT_MOD, 2 * d->dim, &d->out_mod, err));
    TRY(gpu_sync(&d->on.gpu, err));
out:
    return rc;
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
    int rc = 0;

    for (int i = 0; i < BLOCK_MATRICES; i++)
        TRY(keep_linear(d, w, block_parts[i], b->l + i, err));
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
        if (w[vectors[i].from].data)
            TRY(keep_vector(d, w + vectors[i].from, vectors[i].n, vectors[i].to, err));
    TRY(gpu_sync(&d->on.gpu, err));
out:
    return rc;
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
