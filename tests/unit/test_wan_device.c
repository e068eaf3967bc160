/*
 * test_wan_device.c - a video model on a device (capture/wan_device.c) hands it every weight, input
 * and row in its place: a device made of the CPU's own building blocks gives what the CPU's run
 * gives, in evaluations and in a capture from the noise to the trace.
 */
#include "capture/wan_device.h"
#include "core/mem.h"
#include "core/rng.h"
#include "tests/harness/capturerun.h"
#include "tests/harness/suite.h"
#include "tests/harness/tinymodel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WAN_CONFIG "tests/data/tiny/wan-config.json"
#define WAN_WEIGHTS "tests/data/tiny/wan-weights.safetensors"

static struct err err;

/* The tiny checkpoint: 3 layers, 3 heads of 16 channels, patches of 1 x 2 x 2 of 16 channels. */
enum { LAYERS = 3, HEADS = 3, DIM = 48, N = 3 * 4 * 6, TEXT = 6, TEXT_DIM = 20 };
enum { SIZE = 16 * 3 * 8 * 12, POOL = 16, CELLS = (N + POOL - 1) / POOL };

/* ---- the device ----------------------------------------------------------------------------- */

struct denoiser {
    struct denoiser_shape s;
    double inv_freq[64];
    float *outer[WAN_OUTER_TENSORS], *block[8][WAN_BLOCK_TENSORS];
    int64_t grid[3], n, dim;
    float *h, *text, *temb, *mod;
    int next, layers; /* the layer that comes next; all of them so far */
};

static int n_open, fail_layer; /* devices that are open; the layer that fails, -1 = none */

static float *room(int64_t n)
{
    float *x = calloc((size_t)n, sizeof *x);
    ck_assert_ptr_nonnull(x);
    return x;
}

static int dev_open(int rank, const struct denoiser_shape *s, struct denoiser **out, struct err *e)
{
    struct denoiser *d = calloc(1, sizeof *d);
    ck_assert_ptr_nonnull(d);
    ck_assert(!s->bf16 && s->layers <= 8);
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
    n_open++;
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
    n_open--;
}

static float *wide(const struct decoder_tensor *t)
{
    float *x;
    if (!t->data)
        return NULL;
    x = room(t->rows * t->cols);
    for (int64_t i = 0; i < t->rows * t->cols; i++)
        x[i] = t->dtype == DT_F32    ? ((const float *)t->data)[i]
               : t->dtype == DT_BF16 ? bf16_to_f32(((const uint16_t *)t->data)[i])
                                     : f16_to_f32(((const uint16_t *)t->data)[i]);
    return x;
}

static int dev_put_outer(struct denoiser *d, const struct decoder_tensor *w, struct err *e)
{
    ck_assert(w[WAN_PATCH].rows == d->dim && w[WAN_PATCH].cols == 64);
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
    float *rows = room(d->n * values), *tmp = room((s->n_text + 1) * d->dim);

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
    free(rows);
    free(tmp);
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
    int rc = sink->rows(sink->ctx, 0, part, q, k, v, e);
    return rc ? rc : sink->rows(sink->ctx, part, d->n - part, q + rest, k + rest, v + rest, e);
}

struct scratch {
    float *x, *q, *k, *v, *o, *k2, *v2, *ffn;
    double *lse;
};

static int self_attention(struct denoiser *d, float **w, const float *mod, struct scratch *a,
                          const struct denoiser_sink *sink, struct err *e)
{
    const struct denoiser_shape *s = &d->s;
    int64_t dim = d->dim;
    struct decoder_operands there = {a->q, a->k, a->v, s->head_dim};
    struct nn_kv kv = {0};
    int rc = 0;

    modulate(d, mod, mod + dim, a->x);
    linear(w, WAN_Q1, a->x, d->n, dim, dim, a->q);
    linear(w, WAN_K1, a->x, d->n, dim, dim, a->k);
    linear(w, WAN_V1, a->x, d->n, dim, dim, a->v);
    nn_rms_norm(a->q, d->n, dim, w[WAN_NQ1], s->eps, a->q);
    nn_rms_norm(a->k, d->n, dim, w[WAN_NK1], s->eps, a->k);
    rotate(d, a->q);
    rotate(d, a->k);
    if (sink->rows)
        TRY(hand_out(d, sink, a->q, a->k, a->v, e));
    attend(d, a->q, a->k, a->v, d->n, a->lse, &kv, a->o);
    if (sink->pool) {
        int64_t cells = (d->n + sink->pool - 1) / sink->pool;
        struct attnmap m = {sink->pool, cells, cells, s->heads, sink->map_sum, sink->map_max};
        TRY(attnmap_rows(&m, a->q, &kv, 0, d->n, d->n, 1 / sqrt(s->head_dim), false, a->lse, 1, e));
    }
    if (sink->attend)
        TRY(sink->attend(sink->ctx, &there, a->o, e));
    linear(w, WAN_O1, a->o, d->n, dim, dim, a->x);
    add_gated(d, a->x, mod + 2 * dim);
out:
    nn_kv_free(&kv);
    return rc;
}

static void cross_attention(struct denoiser *d, float **w, struct scratch *a)
{
    const struct denoiser_shape *s = &d->s;
    int64_t dim = d->dim;
    struct nn_kv kv = {0};

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
    nn_kv_free(&kv);
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
    if (d->layers++ == fail_layer)
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
    free(rows);
    free(x);
    free(mod);
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
static const struct denoiser_accel fake = {
    .name = "fake", .arithmetic = "float32 of a test", .computed_by = dev_computed_by,
    .open = dev_open, .close = dev_close, .put_outer = dev_put_outer, .put_block = dev_put_block,
    .begin = dev_begin, .layer = dev_layer, .end = dev_end, .seconds = dev_seconds,
    .device = dev_name,
};
/* clang-format on */

/* ---- evaluations ----------------------------------------------------------------------------- */

struct seen {
    int quiet; /* the layer that is not wanted */
    int rows, maps;
    float qkv[LAYERS][3][N * DIM], sum[LAYERS][HEADS * CELLS * CELLS],
        max[LAYERS][HEADS * CELLS * CELLS], v[SIZE];
    double seconds;
};

static int keep_rows(void *ctx, int layer, const float *q, const float *k, const float *v,
                     struct err *e)
{
    struct seen *s = ctx;
    const float *from[3] = {q, k, v};
    ck_assert_int_eq(layer, s->rows++);
    for (int i = 0; i < 3 && layer != s->quiet; i++)
        memcpy(s->qkv[layer][i], from[i], sizeof s->qkv[layer][i]);
    return 0;
}

static bool wants(void *ctx, int layer)
{
    return layer != ((struct seen *)ctx)->quiet;
}

static int keep_map(void *ctx, int layer, const struct attnmap *map, struct err *e)
{
    struct seen *s = ctx;
    ck_assert(layer != s->quiet && map->cells_q == CELLS && map->heads == HEADS);
    s->maps++;
    memcpy(s->sum[layer], map->sum, sizeof s->sum[layer]);
    memcpy(s->max[layer], map->max, sizeof s->max[layer]);
    return 0;
}

static void put_model(void)
{
    json_t *c = NULL;
    assert_ok(json_read_file(WAN_CONFIG, 1 << 16, &c, &err), &err);
    tiny_put_config(test_tmpdir(), c);
    json_decref(c);
    tiny_put_checkpoint(test_tmpdir(), WAN_WEIGHTS, "diffusion_pytorch_model", 1, NULL);
}

static const struct wan_device_ask ask = {
    .on = &fake, .local_rank = 0, .size = {3, 8, 12}, .n_text = TEXT};

static int evaluate(const struct denoiser_accel *device, const struct layer_attention *own,
                    int quiet, struct seen *s)
{
    static float x[SIZE], text[TEXT * TEXT_DIM];
    struct wan_device_ask here = ask;
    struct wan_model m;
    int rc = 0;

    memset(s, 0, sizeof *s);
    s->quiet = quiet;
    for (int i = 0; i < SIZE; i++)
        x[i] = (float)rng_normal(1, 1, (uint64_t)i);
    for (int i = 0; i < TEXT * TEXT_DIM; i++)
        text[i] = (float)rng_normal(1, 2, (uint64_t)i);
    struct wan_input in = {x, 3, 8, 12, 731.25, text, TEXT};
    struct wan_hooks hooks = {s, keep_rows, wants, POOL, keep_map};
    assert_ok(wan_open(test_tmpdir(), 1 << 30, &m, &err), &err);
    here.on = device;
    m.attention = own;
    if (device)
        TRY(wan_device_open(&m, &here, &err));
    TRY(wan_forward(&m, &in, 1, &hooks, s->v, &err));
    s->seconds = device ? wan_device_seconds(m.device) : 0;
out:
    wan_close(&m);
    return rc;
}

static void check_same(const char *what, const float *x, const float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ck_assert_msg(fabs((double)x[i] - y[i]) <= 2e-5 * (1 + fabs((double)y[i])),
                      "%s[%zu] = %g on the device, %g on the CPU", what, i, x[i], y[i]);
}

static void compare(const struct seen *got, const struct seen *ref)
{
    check_same("q, k, v", got->qkv[0][0], ref->qkv[0][0], sizeof ref->qkv / sizeof(float));
    check_same("map sum", got->sum[0], ref->sum[0], sizeof ref->sum / sizeof(float));
    check_same("map max", got->max[0], ref->max[0], sizeof ref->max / sizeof(float));
    check_same("velocity", got->v, ref->v, SIZE);
    ck_assert(got->rows == ref->rows && got->maps == ref->maps);
}

static struct seen on_cpu, on_device;

START_TEST(equals_the_cpu)
{
    put_model();
    fail_layer = -1;
    assert_ok(evaluate(NULL, NULL, -1, &on_cpu), &err);
    assert_ok(evaluate(&fake, NULL, -1, &on_device), &err);
    ck_assert(on_cpu.rows == LAYERS && on_cpu.maps == LAYERS);
    compare(&on_device, &on_cpu);
    ck_assert_double_eq(on_device.seconds, 0.25 * LAYERS);
    ck_assert_int_eq(n_open, 0);
}
END_TEST

START_TEST(unwanted_layer_hands_out_nothing)
{
    put_model();
    fail_layer = -1;
    assert_ok(evaluate(NULL, NULL, 1, &on_cpu), &err);
    assert_ok(evaluate(&fake, NULL, 1, &on_device), &err);
    ck_assert(on_cpu.rows == LAYERS && on_cpu.maps == LAYERS - 1);
    compare(&on_device, &on_cpu);
}
END_TEST

/* An attention that is none: half of the query plus the value. */
struct own {
    int refuse, exact; /* layers, -1 = none */
    const struct decoder_operands *there;
    int calls, were_there;
};

static int own_attend(void *ctx, int layer, const float *q, int64_t nq, const struct nn_kv *kv,
                      int64_t nk, float *out, struct err *e)
{
    struct own *o = ctx;
    int d = kv->d;
    ck_assert(nq == N && nk == N && kv->heads == HEADS && d == DIM / HEADS);
    o->calls++;
    o->were_there += o->there != NULL;
    if (o->refuse == layer)
        return 1;
    for (int64_t t = 0; t < N; t++)
        for (int64_t i = 0; i < DIM; i++)
            out[t * DIM + i] = q[t * DIM + i] / 2 + kv->v[(i / d * N + t) * d + i % d];
    return 0;
}

static bool own_exact(void *ctx, int layer, int64_t n)
{
    ck_assert_int_eq(n, N);
    return ((struct own *)ctx)->exact == layer;
}

static void own_there(void *ctx, const struct decoder_operands *there, int64_t n)
{
    ck_assert_int_eq(n, there ? N : 0);
    ((struct own *)ctx)->there = there;
}

START_TEST(own_attention_takes_the_place_of_exact_attention)
{
    struct own o = {.refuse = -1, .exact = -1};
    struct layer_attention own = {&o, own_attend, own_exact, own_there};
    put_model();
    fail_layer = -1;
    assert_ok(evaluate(NULL, &own, 0, &on_cpu), &err);
    ck_assert(o.calls == LAYERS && o.were_there == 0);
    assert_ok(evaluate(&fake, &own, 0, &on_device), &err);
    ck_assert(o.calls == 2 * LAYERS && o.were_there == LAYERS && !o.there);
    ck_assert_int_eq(on_cpu.maps, 0);
    compare(&on_device, &on_cpu);
    o.refuse = 1;
    ck_assert_int_eq(evaluate(NULL, &own, 0, &on_cpu), 1);
    ck_assert_int_eq(evaluate(&fake, &own, 0, &on_device), 1);
    ck_assert_int_eq(n_open, 0);
}
END_TEST

/* Where it says no, the device attends: with one layer of its own, what precedes it is exact. */
START_TEST(own_attention_may_leave_a_layer_to_the_device)
{
    struct own o = {.refuse = -1, .exact = 0};
    struct layer_attention own = {&o, own_attend, own_exact, own_there};
    put_model();
    fail_layer = -1;
    assert_ok(evaluate(NULL, NULL, -1, &on_cpu), &err);
    assert_ok(evaluate(&fake, &own, -1, &on_device), &err);
    ck_assert_int_eq(o.calls, LAYERS - 1);
    check_same("q, k, v", on_device.qkv[1][0], on_cpu.qkv[1][0],
               sizeof on_cpu.qkv[1] / sizeof(float));
    ck_assert(fabsf(on_device.v[0] - on_cpu.v[0]) > 1e-4F);
}
END_TEST

START_TEST(errors_name_the_layer_and_close)
{
    put_model();
    fail_layer = 1;
    assert_fails(evaluate(&fake, NULL, -1, &on_device), &err, ERR_RUN,
                 "layer 1: the device is lost");
    ck_assert(on_device.rows == 1 && n_open == 0); /* fails before it hands out rows */
}
END_TEST

static int no_device(int rank, const struct denoiser_shape *s, struct denoiser **out, struct err *e)
{
    return err_set(e, ERR_MACHINE, "no GPU");
}

START_TEST(missing_device_is_named)
{
    struct denoiser_accel none = fake;
    none.open = no_device;
    put_model();
    assert_fails(evaluate(&none, NULL, -1, &on_device), &err, ERR_MACHINE, "--device fake: no GPU");
    ck_assert_int_eq(on_device.rows, 0);
}
END_TEST

START_TEST(other_sizes_are_refused)
{
    static float x[2 * SIZE], text[TEXT * TEXT_DIM], v[2 * SIZE];
    struct wan_input in = {x, 3, 8, 24, 500, text, TEXT};
    struct wan_model m;
    put_model();
    fail_layer = -1;
    assert_ok(wan_open(test_tmpdir(), 1 << 30, &m, &err), &err);
    assert_ok(wan_device_open(&m, &ask, &err), &err);
    assert_fails(wan_forward(&m, &in, 1, NULL, v, &err), &err, ERR_RUN, "3x8x24");
    wan_close(&m);
    ck_assert_int_eq(n_open, 0);
}
END_TEST

/* ---- captures -------------------------------------------------------------------------------- */

static void same_values(struct trace *a, struct trace *b, int64_t call)
{
    enum { MANY = N * DIM };
    static float x[MANY], y[MANY];
    for (enum trace_what w = TRACE_Q; w <= TRACE_V; w++)
        for (int h = 0; h < 2; h++) {
            assert_ok(trace_read(a, call, w, h, 0, N, x, &err), &err);
            assert_ok(trace_read(b, call, w, h, 0, N, y, &err), &err);
            check_same(trace_what_name(w), x, y, (size_t)N * DIM / HEADS);
        }
}

/* With guidance, of two heads of two layers of two steps. */
START_TEST(capture_equals_that_of_the_cpu)
{
#define RUN                                                                                        \
    "--size 3x8x12 --steps 3 --capture-steps 0,2 --layers 0,2 --heads 0,2 --guidance 4 "           \
    "--dtype f32 --maps 16 --jobs 1 --noise tests/data/tiny/wan-golden.safetensors "               \
    "--text tests/data/tiny/wan-golden.safetensors"
    put_model();
    fail_layer = -1;
    assert_ok(capture_run(test_tmpdir(), test_path("cpu.h5"), RUN, "", &err), &err);
    assert_ok(capture_run_on(&fake, test_tmpdir(), test_path("dev.h5"), RUN, "--device cuda", &err),
              &err);
    ck_assert_int_eq(n_open, 0);
    struct trace *a = open_trace(test_path("dev.h5")), *b = open_trace(test_path("cpu.h5"));
    const struct trace_meta *m = trace_meta(a);
    ck_assert_str_eq(m->compute, "float32 of a test");
    ck_assert_str_eq(m->computed_by, "nothing but a test");
    ck_assert_int_eq(trace_calls(a), 8);
    for (int64_t c = 0; c < 8; c++) {
        const struct trace_call *x = trace_call(a, c), *y = trace_call(b, c);
        ck_assert(x->layer == y->layer && x->step == y->step && x->order == y->order);
        ck_assert_str_eq(x->branch, y->branch);
        ck_assert(x->has_map && y->has_map);
        same_values(a, b, c);
    }
    trace_close(&a);
    trace_close(&b);
}
END_TEST

START_TEST(a_build_without_devices_says_so)
{
    put_model();
    assert_fails(capture_run(test_tmpdir(), test_path("no.h5"), RUN, "--device cuda", &err), &err,
                 ERR_MACHINE, "needs a build with CUDA");
}
END_TEST

Suite *make_suite(void)
{
    Suite *s = suite_create("wan_device");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, equals_the_cpu);
    tcase_add_test(t, unwanted_layer_hands_out_nothing);
    tcase_add_test(t, own_attention_takes_the_place_of_exact_attention);
    tcase_add_test(t, own_attention_may_leave_a_layer_to_the_device);
    tcase_add_test(t, errors_name_the_layer_and_close);
    tcase_add_test(t, missing_device_is_named);
    tcase_add_test(t, other_sizes_are_refused);
    tcase_add_test(t, capture_equals_that_of_the_cpu);
    tcase_add_test(t, a_build_without_devices_says_so);
    suite_add_tcase(s, t);
    return s;
}
