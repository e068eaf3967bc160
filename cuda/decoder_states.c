/*
 * decoder_states.c - several hidden states through a decoder's layers (core/decoder.h).
 *
 * Each state has its residual stream on the device; everything else is shared, one state after the
 * other. Attention's outputs are float rows, whoever computed them, and go into the output
 * projection as bf16 terms.
 */
#include "cuda/decoder_body.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SCORE_BYTES (512LL << 20) /* of logits */

int decoder_alloc_states(struct decoder *d, struct err *err)
{
    const struct decoder_shape *s = &d->shape;
    struct gpu *g = &d->on.gpu;
    int64_t n = s->tokens, kept = s->kept ? (int64_t)s->kept * s->states : 1;
    int rc = 0;

    d->cap = n;
    TRY(mem_zalloc(&d->states, s->states, sizeof *d->states, "states", err));
    for (int i = 0; i < s->states; i++)
        TRY(gpu_alloc(g, n * s->hidden * 4, &d->states[i], err));
    d->h = d->states[0];
    TRY(gpu_alloc(g, n * d->qdim * 4, &d->o_rows, err));
    TRY(gpu_alloc(g, n * d->qdim * 4, &d->o_ref, err));
    TRY(gpu_alloc(g, n * d->qdim * 4, &d->q_rows, err));
    TRY(gpu_alloc(g, kept * n * d->kvdim * 4, &d->k_rows, err));
    TRY(gpu_alloc(g, kept * n * d->kvdim * 4, &d->v_rows, err));
    TRY(gpu_alloc(g, 2 * OPS_SUMS * 8, &d->sums, err));
    TRY(gpu_alloc(g, n * 4, &d->ids, err));
    if (s->kept)
        TRY(decoder_alloc_few(d, err));
out:
    return rc;
}

/* ---- a sequence ----------------------------------------------------------------------------- */

/* Below what belongs to one sequence. */
static int put_table(struct decoder *d, const struct decoder_tensor *table, struct err *err)
{
    const struct decoder_shape *s = &d->shape;
    int64_t bytes = table->rows * table->cols * (int64_t)dtype_size(table->dtype);
    int rc = 0;

    if (table->rows != s->vocab || table->cols != s->hidden)
        FAIL(err, ERR_RUN, "the embeddings do not have the shape that the model's sizes say");
    TRY(gpu_upload(&d->on.gpu, table->data, bytes, &d->table, err));
    TRY(gpu_sync(&d->on.gpu, err));
    d->table_type = table->dtype;
    d->base = gpu_mark(&d->on.gpu);
out:
    return rc;
}

static int begin(struct decoder *d, const int32_t *tokens, int64_t n, struct err *err)
{
    int64_t bytes = n * d->shape.hidden * 4;
    struct gpu *g = &d->on.gpu;
    int rc = 0;

    if (n < 1 || n > d->cap)
        FAIL(err, ERR_RUN, "%lld tokens, room for %lld", (long long)n, (long long)d->cap);
    attn_job_free(&d->attend);
    d->attend = (struct attn_job){0};
    gpu_release(g, d->base);
    d->shape.tokens = n;
    TRY(decoder_make_attention(d, err));
    TRY(gpu_put(g, d->ids, tokens, n * 4, err));
    TRY(ops_take_rows(g, d->table, d->table_type, d->shape.hidden, d->ids, n, d->states[0], err));
    for (int i = 1; i < d->shape.states; i++)
        TRY(gpu_copy(g, d->states[i], d->states[0], bytes, err));
    TRY(gpu_sync(g, err));
out:
    return rc;
}

/* ---- a layer -------------------------------------------------------------------------------- */

static int load(struct decoder *d, int layer, const struct decoder_tensor *w, struct err *err)
{
    d->layer = layer;
    d->w = d->layers + (d->shape.kept ? layer : 0);
    return w ? decoder_put_weights(d, w, err) : 0;
}

/* Heads of one tensor to the host. */
static int fetch_heads(struct decoder *d, const float *from, int heads, float *to, struct err *err)
{
    int64_t n = d->shape.tokens * d->shape.head_dim, step = d->cap * d->shape.head_dim;
    int rc = 0;
    for (int h = 0; h < heads; h++)
        TRY(fetch_locked(&d->on, to + h * n, from + h * step, n * 4, err));
out:
    return rc;
}

/* What was projected, to the host; nobody has waited for it. */
static int fetch_rows(struct decoder *d, struct decoder_rows *rows, struct err *err)
{
    const struct decoder_shape *s = &d->shape;
    int64_t q = s->tokens * d->qdim, kv = s->tokens * d->kvdim;
    int rc = 0;
    if (!d->pinned)
        TRY(host_locked(d->cap * (d->qdim + 2 * d->kvdim) * 4, "queries, keys and values",
                        &d->pinned, err));
    *rows = (struct decoder_rows){d->pinned, d->pinned + q, d->pinned + q + kv};
    TRY(fetch_heads(d, d->q_rows, s->heads, rows->q, err));
    TRY(fetch_heads(d, decoder_kept_rows(d, d->k_rows), s->kv_heads, rows->k, err));
    TRY(fetch_heads(d, decoder_kept_rows(d, d->v_rows), s->kv_heads, rows->v, err));
out:
    return rc;
}

static int project(struct decoder *d, int state, struct decoder_rows *rows,
                   struct decoder_operands *operands, struct err *err)
{
    int rc = 0;
    d->state = state;
    d->h = d->states[state];
    for (int64_t t = 0; t < d->shape.tokens; t += d->rows)
        TRY(decoder_project(d, t, decoder_chunk(d, t), err));
    if (rows)
        TRY(fetch_rows(d, rows, err));
    TRY(decoder_check_overflow(d, err)); /* waits for the device */
    *operands = (struct decoder_operands){d->q, d->k, d->v, (int)d->padded, d->o_rows};
out:
    return rc;
}

static int attend(struct decoder *d, struct err *err)
{
    const struct decoder_shape *s = &d->shape;
    int rc = 0;
    TRY(attn_job_launch(&d->on.gpu, &d->attend, err));
    TRY(ops_head_rows(&d->on.gpu, d->o, s->heads, s->tokens, s->head_dim, (int)d->padded, d->o_rows,
                      err));
out:
    return rc;
}

static int put_attended(struct decoder *d, const float *o, struct err *err)
{
    int rc = gpu_put(&d->on.gpu, d->o_rows, o, d->shape.tokens * d->qdim * 4, err);
    return rc ? rc : gpu_sync(&d->on.gpu, err);
}

/* Sums of squares of x - ref and of ref. */
static int difference(struct decoder *d, const float *x, const float *ref, int64_t n, double *diff,
                      double *norm, struct err *err)
{
    double sums[2 * OPS_SUMS];
    int rc = 0;
    TRY(ops_difference(&d->on.gpu, x, ref, n, d->sums, err));
    TRY(gpu_get(&d->on.gpu, sums, d->sums, sizeof sums, err));
    *diff = *norm = 0;
    for (int i = 0; i < OPS_SUMS; i++) {
        *diff += sums[2 * i];
        *norm += sums[2 * i + 1];
    }
out:
    return rc;
}

/* Everything behind the attention whose outputs are in `o`. */
static int finish_rows(struct decoder *d, const float *o, struct err *err)
{
    int rc = 0;
    for (int64_t t = 0; t < d->shape.tokens; t += d->rows) {
        int64_t n = decoder_chunk(d, t);
        TRY(ops_split_rows(&d->on.gpu, o + t * d->qdim, n, d->qdim, decoder_out_terms(d), d->x,
                           err));
        TRY(decoder_finish(d, t, n, err));
    }
out:
    return rc;
}

static int finish(struct decoder *d, int state, struct decoder_diff *diff, struct err *err)
{
    int64_t n = d->shape.tokens;
    int rc = 0;

    d->h = d->states[state];
    TRY(finish_rows(d, d->o_rows, err));
    if (state == 0) { /* what the other states are compared with */
        float *now = d->o_rows;
        d->o_rows = d->o_ref;
        d->o_ref = now;
    } else if (diff) {
        TRY(difference(d, d->o_rows, d->o_ref, n * d->qdim, &diff->attn, &diff->attn_ref, err));
        TRY(difference(d, d->h, d->states[0], n * d->shape.hidden, &diff->resid, &diff->resid_ref,
                       err));
    }
out:
    return rc;
}

static int get_hidden(struct decoder *d, int state, int64_t row, int64_t n, float *h,
                      struct err *err)
{
    int64_t width = d->shape.hidden;
    return gpu_get(&d->on.gpu, h, d->states[state] + row * width, n * width * 4, err);
}

/* ---- likelihoods ---------------------------------------------------------------------------- */

/* Buffers of a score: output weights, logits of state 0 and of another one. */
struct scoring {
    void *w;
    int terms;
    int64_t rows; /* that the logits have */
    float *p, *q;
    int32_t *ids;
    struct decoder_score *scores; /* [rows] */
};

static int scoring_open(struct decoder *d, const struct decoder_tensor *norm,
                        const struct decoder_tensor *head, const int32_t *tokens, struct scoring *s,
                        struct err *err)
{
    struct gpu *g = &d->on.gpu;
    int64_t vocab = d->shape.vocab, n = d->shape.tokens;
    int rc = 0;

    s->terms = head->dtype == DT_BF16 ? 2 : 3;
    s->rows = SCORE_BYTES / (8 * vocab);
    s->rows = s->rows < 1 ? 1 : s->rows < d->rows ? s->rows : d->rows;
    s->rows = s->rows < n ? s->rows : n;
    TRY(gpu_alloc(g, head->rows * head->cols * 2 * s->terms, &s->w, err));
    TRY(gpu_alloc(g, s->rows * vocab * 4, &s->p, err));
    TRY(gpu_alloc(g, s->rows * vocab * 4, &s->q, err));
    TRY(gpu_alloc(g, n * 4, &s->ids, err));
    TRY(gpu_alloc(g, s->rows * (int64_t)sizeof *s->scores, &s->scores, err));
    TRY(decoder_put_head(d, head, s->terms, s->w, err));
    TRY(put_vector(&d->on, norm, d->norm, err));
    if (tokens)
        TRY(gpu_put(g, s->ids, tokens, n * 4, err));
    TRY(gpu_sync(g, err));
out:
    return rc;
}

/* Logits of the rows [t, t + n) of a state. */
static int logits(struct decoder *d, const struct scoring *s, int state, int64_t t, int64_t n,
                  float *out, struct err *err)
{
    const struct decoder_shape *c = &d->shape;
    int rc = 0;
    TRY(ops_rms_norm(&d->on.gpu, d->states[state] + t * c->hidden, n, c->hidden, d->norm, c->eps,
                     s->terms, d->x, err));
    TRY(blas_bf16(d->on.blas, n, c->vocab, c->hidden * s->terms, d->x, s->w, 0, out, c->vocab,
                  err));
out:
    return rc;
}

static int score(struct decoder *d, const struct decoder_tensor *norm,
                 const struct decoder_tensor *head, const int32_t *tokens, int64_t from,
                 const bool *wants, struct decoder_score *const *out, struct err *err)
{
    struct gpu_mark mark = gpu_mark(&d->on.gpu);
    struct scoring s = {0};
    int64_t n = d->shape.tokens;
    int rc = 0;

    TRY(scoring_open(d, norm, head, tokens, &s, err));
    /* The row at t predicts the token at t + 1. */
    for (int64_t t = from - 1; t < n - 1; t += s.rows) {
        int64_t rows = n - 1 - t < s.rows ? n - 1 - t : s.rows;
        TRY(logits(d, &s, 0, t, rows, s.p, err));
        for (int i = 0; i < d->shape.states; i++) {
            if (i && !wants[i])
                continue;
            if (i)
                TRY(logits(d, &s, i, t, rows, s.q, err));
            TRY(ops_score_rows(&d->on.gpu, s.p, i ? s.q : s.p, rows, d->shape.vocab, s.ids + t + 1,
                               s.scores, err));
            TRY(gpu_get(&d->on.gpu, out[i] + (t - from + 1), s.scores,
                        rows * (int64_t)sizeof *s.scores, err));
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
    int rc = 0;
    d->state = 0;
    d->h = w->scratch;
    for (int64_t t = 0; t < d->shape.tokens; t += d->rows)
        TRY(decoder_project(d, t, decoder_chunk(d, t), err));
    TRY(finish_rows(d, d->o_rows, err));
out:
    return rc;
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
    return logits(w->d, &w->s, 0, w->d->shape.tokens - 1, 1, w->s.p, err);
}

static int time_head(struct decoder *d, const struct decoder_tensor *norm,
                     const struct decoder_tensor *head, int samples, double *ns, struct err *err)
{
    struct gpu_mark mark = gpu_mark(&d->on.gpu);
    struct head_work w = {.d = d};
    int rc = 0;
    TRY(scoring_open(d, norm, head, NULL, &w.s, err));
    TRY(time_work(&d->on, head_work, &w, samples, ns, err));
out:
    gpu_release(&d->on.gpu, mark);
    return rc;
}

const struct decoder_states cuda_decoder_states = {
    .put_table = put_table,
    .begin = begin,
    .load = load,
    .project = project,
    .attend = attend,
    .put_attended = put_attended,
    .finish = finish,
    .score = score,
    .get_hidden = get_hidden,
    .rows = decoder_run_few,
    .time_layer = time_layer,
    .time_head = time_head,
};
