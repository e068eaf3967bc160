/*
 * fakedenoiser.c - see fakedenoiser.h.
 */
#include "tests/harness/fakedenoiser.h"
#include "core/mem.h"

#include "capture/nn.h"
#include "tests/harness/floats.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct err err;

struct denoiser {
    struct denoiser_shape s;
    double inv_freq[64];
    float *outer[WAN_OUTER_TENSORS], *block[8][WAN_BLOCK_TENSORS];
    int64_t grid[3], n, dim;
    float *h, *text, *temb, *mod;
    int next, layers; /* the layer that comes next; all of them so far */
};

int fake_denoisers, fake_denoiser_timed, fake_denoiser_fails = -1;

static int dev_open(int rank, const struct denoiser_shape *s, struct denoiser **out, struct err *e)
{
    struct denoiser *d = calloc(1, sizeof *d);
    ck_assert_ptr_nonnull(d);
    ck_assert_int_le(s->layers, 8);
    d->s = *s;
    memcpy(d->inv_freq, s->inv_freq, (size_t)(s->head_dim / 2) * sizeof(double));
    d->n = 1;
    for (int a = 0; a < 3; a++)
        d->n *= d->grid[a] = s->size[a] / s->patch[a];
    d->dim = (int64_t)s->heads * s->head_dim;
    d->h = room(d->n * d->dim);
    d->text = room(s->n_text * d->dim);
    d->temb = room(d->dim);
    d->mod = room(6 * d->dim);
    fake_denoisers++;
    *out = d;
    return 0;
}

static void dev_close(struct denoiser **out)
{
    struct denoiser *d = *out;
    if (!d)
        return;
    for (int i = 0; i < WAN_OUTER_TENSORS; i++)
        free(d->outer[i]);
    for (int b = 0; b < 8; b++)
        for (int i = 0; i < WAN_BLOCK_TENSORS; i++)
            free(d->block[b][i]);
    free(d->h);
    free(d->text);
    free(d->temb);
    free(d->mod);
    free(d);
    *out = NULL;
    fake_denoisers--;
}

static int dev_put_outer(struct denoiser *d, const struct decoder_tensor *w, struct err *e)
{
    ck_assert_int_eq(w[WAN_PATCH].rows, d->dim);
    ck_assert(w[WAN_OUT_MOD].rows == 2 * d->dim && w[WAN_OUT_MOD].cols == 1);
    for (int i = 0; i < WAN_OUTER_TENSORS; i++)
        d->outer[i] = wide(w + i);
    return 0;
}

static int dev_put_block(struct denoiser *d, int block, const struct decoder_tensor *w,
                         struct err *e)
{
    ck_assert(w[WAN_F0].rows == d->s.ffn && w[WAN_F0].cols == d->dim);
    ck_assert(w[WAN_MOD].rows == 6 * d->dim && w[WAN_MOD].cols == 1);
    for (int i = 0; i < WAN_BLOCK_TENSORS; i++)
        d->block[block][i] = wide(w + i);
    return 0;
}

/* y = x w[at]^T + w[at + 1] */
static void linear(float **w, int at, const float *x, int64_t n, int64_t in, int64_t out, float *y)
{
    assert_ok(nn_linear(x, n, in, w[at], w[at + 1], out, 1, y, &err), &err);
}

static int64_t pixel(const struct denoiser *d, int64_t token, int64_t ch, int64_t dt, int64_t dh,
                     int64_t dw)
{
    const struct denoiser_shape *s = &d->s;
    int64_t t = token / (d->grid[1] * d->grid[2]) * s->patch[0] + dt;
    int64_t h = token / d->grid[2] % d->grid[1] * s->patch[1] + dh;
    int64_t w = token % d->grid[2] * s->patch[2] + dw;
    return ((ch * s->size[0] + t) * s->size[1] + h) * s->size[2] + w;
}

static int dev_begin(struct denoiser *d, const float *x, const float *frequencies,
                     const float *text, struct err *e)
{
    const struct denoiser_shape *s = &d->s;
    const int64_t *p = s->patch;
    int64_t values = s->in_channels * p[0] * p[1] * p[2], at = 0;
    OWN(free_at) float *rows = room(d->n * values), *tmp = room((s->n_text + 1) * d->dim);
    ck_assert_int_eq(d->next, 0);
    linear(d->outer, WAN_TIME1, frequencies, 1, s->freq, d->dim, tmp);
    nn_silu(tmp, d->dim);
    linear(d->outer, WAN_TIME2, tmp, 1, d->dim, d->dim, d->temb);
    memcpy(tmp, d->temb, (size_t)d->dim * sizeof *tmp);
    nn_silu(tmp, d->dim);
    linear(d->outer, WAN_TIME_PROJ, tmp, 1, d->dim, 6 * d->dim, d->mod);
    linear(d->outer, WAN_TEXT1, text, s->n_text, s->text_dim, d->dim, tmp);
    nn_gelu_tanh(tmp, s->n_text * d->dim);
    linear(d->outer, WAN_TEXT2, tmp, s->n_text, d->dim, d->dim, d->text);
    for (int64_t token = 0; token < d->n; token++)
        for (int64_t i = 0; i < values; i++) {
            int64_t dw = i % p[2], dh = i / p[2] % p[1], dt = i / (p[1] * p[2]) % p[0];
            rows[at++] = x[pixel(d, token, i / (p[0] * p[1] * p[2]), dt, dh, dw)];
        }
    linear(d->outer, WAN_PATCH, rows, d->n, values, d->dim, d->h);
    return 0;
}

/* LN(h) (1 + scale) + shift, each a row of the modulation. */
static void modulate(const struct denoiser *d, const float *shift, const float *scale, float *y)
{
    nn_layer_norm(d->h, d->n, d->dim, NULL, NULL, d->s.eps, y);
    for (int64_t i = 0; i < d->n * d->dim; i++)
        y[i] = y[i] * (1 + scale[i % d->dim]) + shift[i % d->dim];
}

static void add_gated(struct denoiser *d, const float *o, const float *gate)
{
    for (int64_t i = 0; i < d->n * d->dim; i++)
        d->h[i] += gate ? gate[i % d->dim] * o[i] : o[i];
}

static void rotate(const struct denoiser *d, float *x)
{
    const int64_t *g = d->grid, *pairs = d->s.pairs;
    for (int64_t t = 0; t < d->n; t++) {
        int64_t pos[3] = {t / (g[1] * g[2]), t / g[2] % g[1], t % g[2]};
        for (int64_t i = 0; i < d->dim / 2; i++) {
            int64_t p = i % (d->s.head_dim / 2);
            int axis = p < pairs[0] ? 0 : p < pairs[0] + pairs[1] ? 1 : 2;
            double a = (double)pos[axis] * d->inv_freq[p];
            float *at = x + t * d->dim + 2 * i, u = at[0], w = at[1];
            float c = (float)cos(a), s = (float)sin(a);
            at[0] = u * c - w * s;
            at[1] = u * s + w * c;
        }
    }
}

static void attend(const struct denoiser *d, const float *q, const float *k, const float *v,
                   int64_t nk, double *lse, struct nn_kv *kv, float *out)
{
    const struct denoiser_shape *s = &d->s;
    assert_ok(nn_kv_init(kv, nk, s->heads, s->head_dim, &err), &err);
    nn_kv_put(kv, 0, nk, k, v);
    assert_ok(
        nn_attention(q, kv, d->n, nk, s->heads, 1 / sqrt(s->head_dim), false, 1, out, lse, &err),
        &err);
}

/* Rows in two parts, as a device with little memory hands them out. */
static int hand_out(const struct denoiser *d, const struct denoiser_sink *sink, const float *q,
                    const float *k, const float *v, struct err *e)
{
    int64_t part = 50, rest = part * d->dim;
    PASS_ON(sink->rows(sink->ctx, 0, part, q, k, v, e));
    return sink->rows(sink->ctx, part, d->n - part, q + rest, k + rest, v + rest, e);
}

struct scratch {
    float *x, *q, *k, *v, *o, *k2, *v2, *ffn;
    double *lse;
};

/* What the caller puts in its place: queries by head, as keys and values are in kv. */
static int attend_own(struct denoiser *d, const struct denoiser_sink *sink, struct scratch *a,
                      const struct nn_kv *kv, struct err *e)
{
    const struct denoiser_shape *s = &d->s;
    int64_t size = d->n * s->head_dim;
    OWN(free_at) float *q = room(d->n * d->dim), *stays = room(d->n * d->dim);
    struct decoder_operands there = {a->q, a->k, a->v, s->head_dim, stays};
    struct decoder_rows rows = {q, kv->k, kv->v};
    bool stayed = false;
    for (int h = 0; h < s->heads; h++)
        nn_take_head(a->q, d->n, s->heads, s->head_dim, h, q + h * size);
    int rc = sink->attend(sink->ctx, &there, &rows, a->o, &stayed, e);
    if (stayed)
        memcpy(a->o, stays, (size_t)(d->n * d->dim) * sizeof *stays);
    return rc;
}

static int self_attention(struct denoiser *d, float **w, const float *mod, struct scratch *a,
                          const struct denoiser_sink *sink, struct err *e)
{
    const struct denoiser_shape *s = &d->s;
    int64_t dim = d->dim;
    OWN(nn_kv_free) struct nn_kv kv = {0};
    modulate(d, mod, mod + dim, a->x);
    linear(w, WAN_Q1, a->x, d->n, dim, dim, a->q);
    linear(w, WAN_K1, a->x, d->n, dim, dim, a->k);
    linear(w, WAN_V1, a->x, d->n, dim, dim, a->v);
    nn_rms_norm(a->q, d->n, dim, w[WAN_NQ1], s->eps, a->q);
    nn_rms_norm(a->k, d->n, dim, w[WAN_NK1], s->eps, a->k);
    rotate(d, a->q);
    rotate(d, a->k);
    if (sink->rows)
        PASS_ON(hand_out(d, sink, a->q, a->k, a->v, e));
    attend(d, a->q, a->k, a->v, d->n, a->lse, &kv, a->o);
    if (sink->pool) {
        int64_t cells = (d->n + sink->pool - 1) / sink->pool;
        struct attnmap m = {sink->pool, cells, cells, s->heads, sink->map_sum, sink->map_max};
        PASS_ON(
            attnmap_rows(&m, a->q, &kv, 0, d->n, d->n, 1 / sqrt(s->head_dim), false, a->lse, 1, e));
    }
    if (sink->attend)
        PASS_ON(attend_own(d, sink, a, &kv, e));
    linear(w, WAN_O1, a->o, d->n, dim, dim, a->x);
    add_gated(d, a->x, mod + 2 * dim);
    return 0;
}

static void cross_attention(struct denoiser *d, float **w, struct scratch *a)
{
    const struct denoiser_shape *s = &d->s;
    int64_t dim = d->dim;
    OWN(nn_kv_free) struct nn_kv kv = {0};
    memcpy(a->x, d->h, (size_t)(d->n * dim) * sizeof *a->x);
    if (w[WAN_NORM2])
        nn_layer_norm(d->h, d->n, dim, w[WAN_NORM2], w[WAN_NORM2_B], s->eps, a->x);
    linear(w, WAN_Q2, a->x, d->n, dim, dim, a->q);
    nn_rms_norm(a->q, d->n, dim, w[WAN_NQ2], s->eps, a->q);
    linear(w, WAN_K2, d->text, s->n_text, dim, dim, a->k2);
    nn_rms_norm(a->k2, s->n_text, dim, w[WAN_NK2], s->eps, a->k2);
    linear(w, WAN_V2, d->text, s->n_text, dim, dim, a->v2);
    attend(d, a->q, a->k2, a->v2, s->n_text, NULL, &kv, a->o);
    linear(w, WAN_O2, a->o, d->n, dim, dim, a->x);
    add_gated(d, a->x, NULL);
}

static int dev_layer(struct denoiser *d, int layer, const struct denoiser_sink *sink, struct err *e)
{
    int64_t dim = d->dim, nd = d->n * dim, td = d->s.n_text * dim;
    float **w = d->block[layer], *mod = room(6 * dim);
    struct scratch a = {room(nd),
                        room(nd),
                        room(nd),
                        room(nd),
                        room(nd),
                        room(td),
                        room(td),
                        room(d->n * d->s.ffn),
                        calloc((size_t)(d->n * d->s.heads), sizeof(double))};
    int rc = 0;
    ck_assert_int_eq(layer, d->next++);
    if (d->layers++ == fake_denoiser_fails)
        FAIL(e, ERR_RUN, "the device is lost");
    for (int64_t i = 0; i < 6 * dim; i++)
        mod[i] = w[WAN_MOD][i] + d->mod[i];
    TRY(self_attention(d, w, mod, &a, sink, e));
    cross_attention(d, w, &a);
    modulate(d, mod + 3 * dim, mod + 4 * dim, a.x);
    linear(w, WAN_F0, a.x, d->n, dim, d->s.ffn, a.ffn);
    nn_gelu_tanh(a.ffn, d->n * d->s.ffn);
    linear(w, WAN_F2, a.ffn, d->n, d->s.ffn, dim, a.o);
    add_gated(d, a.o, mod + 5 * dim);
out:
    free(mod);
    free(a.x);
    free(a.q);
    free(a.k);
    free(a.v);
    free(a.o);
    free(a.k2);
    free(a.v2);
    free(a.ffn);
    free(a.lse);
    return rc;
}

static int dev_end(struct denoiser *d, float *v, struct err *e)
{
    const struct denoiser_shape *s = &d->s;
    const int64_t *p = s->patch, c = s->out_channels;
    int64_t values = c * p[0] * p[1] * p[2], at = 0;
    OWN(free_at)
    float *rows = room(d->n * values), *x = room(d->n * d->dim), *mod = room(2 * d->dim);
    ck_assert_int_eq(d->next, s->layers);
    d->next = 0;
    for (int64_t i = 0; i < 2 * d->dim; i++)
        mod[i] = d->outer[WAN_OUT_MOD][i] + d->temb[i % d->dim];
    modulate(d, mod, mod + d->dim, x);
    linear(d->outer, WAN_OUT, x, d->n, d->dim, values, rows);
    for (int64_t token = 0; token < d->n; token++)
        for (int64_t i = 0; i < values; i++) {
            int64_t dw = i / c % p[2], dh = i / (c * p[2]) % p[1], dt = i / (c * p[1] * p[2]);
            v[pixel(d, token, i % c, dt, dh, dw)] = rows[at++];
        }
    return 0;
}

static int dev_time(struct denoiser *d, int samples, struct denoiser_times *t, struct err *e)
{
    ck_assert_int_eq(d->next, 0); /* between two evaluations, after one */
    ck_assert_int_ge(d->layers, d->s.layers);
    ck_assert_int_eq(samples, 5);
    *t = (struct denoiser_times){.linear = 700, .product = 500, .attention = 12000};
    fake_denoiser_timed++;
    return 0;
}

static double dev_seconds(const struct denoiser *d)
{
    return 0.25 * d->layers;
}

static const char *dev_name(const struct denoiser *d)
{
    return "a device made of the CPU";
}

static void dev_computed_by(char *text, size_t size)
{
    snprintf(text, size, "nothing but a test");
}

/* clang-format off */
const struct denoiser_accel fake_denoiser = {
    .name = "fake", .arithmetic = "float32 of a test", .computed_by = dev_computed_by,
    .open = dev_open, .close = dev_close, .put_outer = dev_put_outer, .put_block = dev_put_block,
    .begin = dev_begin, .layer = dev_layer, .end = dev_end, .time = dev_time,
    .seconds = dev_seconds, .device = dev_name,
};
/* clang-format on */
