/*
 * test_llm_device.c - a run on a device (capture/llm_device.c) hands it every weight, token and row
 * in its place: a device made of the CPU's own building blocks gives what the CPU's run gives.
 */
#include "capture/llm_model.h"
#include "tests/harness/floats.h"
#include "tests/harness/tinymodel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct err err;

enum { N = TINY_TOKENS, MAX_ROW = 64, POOL = 16, CELLS = (N + POOL - 1) / POOL };

/* ---- the device ----------------------------------------------------------------------------- */

struct decoder {
    struct decoder_shape s;
    double inv_freq[64];
    float *h;
    int layers;
};

static int n_open, fail_layer; /* devices that are open; the layer that fails, -1 = none */

static int dev_open(int rank, const struct decoder_shape *s, struct decoder **out, struct err *e)
{
    struct decoder *d = calloc(1, sizeof *d);
    ck_assert_ptr_nonnull(d);
    ck_assert_int_eq(rank, 3);
    d->s = *s;
    memcpy(d->inv_freq, s->inv_freq, (size_t)(s->head_dim / 2) * sizeof(double));
    d->h = calloc((size_t)(s->tokens * s->hidden), sizeof *d->h);
    n_open++;
    *out = d;
    return 0;
}

static void dev_close(struct decoder **d)
{
    if (!*d)
        return;
    free((*d)->h);
    free(*d);
    *d = NULL;
    n_open--;
}

static int dev_put(struct decoder *d, int64_t tok0, int64_t n, const float *h, struct err *e)
{
    memcpy(d->h + tok0 * d->s.hidden, h, (size_t)(n * d->s.hidden) * sizeof *h);
    return 0;
}

static void norm(const float *x, int64_t n, int64_t d, const struct decoder_tensor *t, double eps,
                 float *y)
{
    OWN(free_at) float *w = wide(t);
    if (w)
        nn_rms_norm(x, n, d, w, eps, y);
}

/* y = x w^T + b; the bias stands behind its weight. */
static void linear(const float *x, const struct decoder_tensor *t, float *y)
{
    OWN(free_at) float *w = wide(t), *b = wide(t + 1);
    assert_ok(nn_linear(x, N, t->cols, w, b, t->rows, 1, y, &err), &err);
}

static int dev_layer(struct decoder *d, const struct decoder_tensor *w,
                     const struct decoder_sink *sink, struct err *e)
{
    const struct decoder_shape *s = &d->s;
    enum { WIDE = N * 512 };
    static float x[WIDE], q[WIDE], k[WIDE], v[WIDE], o[WIDE], gate[WIDE], up[WIDE];
    double lse[N * 16], scale = 1 / sqrt(s->head_dim);
    struct nn_kv kv;
    if (d->layers++ == fail_layer)
        return err_set(e, ERR_RUN, "the device is lost");
    norm(d->h, N, s->hidden, w + LLM_NORM1, s->eps, x);
    linear(x, w + LLM_Q, q);
    linear(x, w + LLM_K, k);
    linear(x, w + LLM_V, v);
    norm(q, N * s->heads, s->head_dim, w + LLM_QN, s->eps, q);
    norm(k, N * s->kv_heads, s->head_dim, w + LLM_KN, s->eps, k);
    rope_apply(q, N, s->heads, s->head_dim, 0, d->inv_freq, s->rope_factor);
    rope_apply(k, N, s->kv_heads, s->head_dim, 0, d->inv_freq, s->rope_factor);
    if (sink->rows)
        PASS_ON(sink->rows(sink->ctx, 0, N, q, k, v, e));
    PASS_ON(nn_kv_init(&kv, N, s->kv_heads, s->head_dim, e));
    nn_kv_put(&kv, 0, N, k, v);
    PASS_ON(nn_attention(q, &kv, N, N, s->heads, scale, true, 1, o, lse, e));
    if (sink->pool) {
        struct attnmap m = {sink->pool, CELLS, CELLS, s->heads, sink->map_sum, sink->map_max};
        PASS_ON(attnmap_rows(&m, q, &kv, 0, N, N, scale, true, lse, 1, e));
    }
    nn_kv_free(&kv);
    linear(o, w + LLM_O, x);
    for (int64_t i = 0; i < N * s->hidden; i++)
        d->h[i] += x[i];
    norm(d->h, N, s->hidden, w + LLM_NORM2, s->eps, x);
    linear(x, w + LLM_GATE, gate);
    linear(x, w + LLM_UP, up);
    nn_silu(gate, N * s->ffn);
    for (int64_t i = 0; i < N * s->ffn; i++)
        gate[i] *= up[i];
    linear(gate, w + LLM_DOWN, x);
    for (int64_t i = 0; i < N * s->hidden; i++)
        d->h[i] += x[i];
    return 0;
}

static int dev_likelihoods(struct decoder *d, const struct decoder_tensor *n,
                           const struct decoder_tensor *head, const int32_t *tokens, float *nll,
                           struct err *e)
{
    OWN(free_at) float *w = wide(head);
    float logits[TINY_VOCAB];
    ck_assert_int_eq(head->rows, TINY_VOCAB);
    norm(d->h, N, d->s.hidden, n, d->s.eps, d->h);
    for (int t = 0; t < N - 1; t++) {
        double sum = 0;
        PASS_ON(
            nn_linear(d->h + t * d->s.hidden, 1, d->s.hidden, w, NULL, TINY_VOCAB, 1, logits, e));
        for (int i = 0; i < TINY_VOCAB; i++)
            sum += exp(logits[i]);
        nll[t] = (float)(log(sum) - logits[tokens[t + 1]]);
    }
    return 0;
}

static double dev_seconds(const struct decoder *d)
{
    return 0.25 * d->layers;
}

static const char *dev_name(const struct decoder *d)
{
    return "a device made of the CPU";
}

/* clang-format off */
static const struct decoder_accel fake = {
    .name = "fake", .arithmetic = "float32", .open = dev_open, .close = dev_close,
    .put_hidden = dev_put, .layer = dev_layer, .likelihoods = dev_likelihoods,
    .seconds = dev_seconds, .device = dev_name,
};
/* clang-format on */

/* ---- what a run hands out -------------------------------------------------------------------- */

struct seen {
    int heads, kv_heads, d, quiet; /* quiet: the layer whose rows and map are not wanted */
    int begun, ended;              /* layers */
    float q[TINY_LAYERS][N * MAX_ROW], k[TINY_LAYERS][N * MAX_ROW], v[TINY_LAYERS][N * MAX_ROW];
    float sum[TINY_LAYERS][16 * CELLS * CELLS], max[TINY_LAYERS][16 * CELLS * CELLS];
    float nll[N - 1];
    double seconds;
};

static int begin(void *ctx, int layer, struct err *e)
{
    struct seen *s = ctx;
    ck_assert_int_eq(layer, s->begun++);
    return 0;
}

static int keep_rows(void *ctx, int layer, int64_t t0, int64_t n, const float *q, const float *k,
                     const float *v, struct err *e)
{
    struct seen *s = ctx;
    int64_t qd = (int64_t)s->heads * s->d, kd = (int64_t)s->kv_heads * s->d;
    ck_assert_int_eq(layer, s->begun - 1);
    if (layer == s->quiet)
        return 0;
    memcpy(s->q[layer] + t0 * qd, q, (size_t)(n * qd) * sizeof *q);
    memcpy(s->k[layer] + t0 * kd, k, (size_t)(n * kd) * sizeof *k);
    memcpy(s->v[layer] + t0 * kd, v, (size_t)(n * kd) * sizeof *v);
    return 0;
}

static int end(void *ctx, int layer, const struct attnmap *map, struct err *e)
{
    struct seen *s = ctx;
    ck_assert_int_eq(layer, s->ended++);
    ck_assert_int_eq(map != NULL, layer != s->quiet);
    if (map) {
        size_t bytes = (size_t)(map->heads * map->cells_q * map->cells_k) * sizeof(float);
        ck_assert_int_le(bytes, sizeof s->sum[layer]);
        memcpy(s->sum[layer], map->sum, bytes);
        memcpy(s->max[layer], map->max, bytes);
    }
    return 0;
}

static bool wanted(void *ctx, int layer)
{
    return layer != ((struct seen *)ctx)->quiet;
}

static int run_on(const struct decoder_accel *device, int quiet, struct seen *s)
{
    OWN(llm_close) struct llm_model m;
    int32_t ids[N];
    tiny_tokens(ids);
    assert_ok(llm_open(test_tmpdir(), &m, &err), &err);
    memset(s, 0, sizeof *s);
    s->heads = m.c.heads;
    s->kv_heads = m.c.kv_heads;
    s->d = m.c.head_dim;
    s->quiet = quiet;
    struct llm_run run = {.tokens = ids,
                          .n = N,
                          .pool = POOL,
                          .jobs = 1,
                          .nll = s->nll,
                          .device = device,
                          .local_rank = 3,
                          .device_seconds = &s->seconds};
    struct llm_hooks hooks = {s, begin, keep_rows, end, wanted, wanted};
    return llm_forward(&m, &run, &hooks, &err);
}

static void put_variant(const char *variant)
{
    OWN(json_decrefp) json_t *c = tiny_config(variant);
    tiny_put_config(test_tmpdir(), c);
    tiny_put_weights(test_tmpdir(), variant, 1, NULL);
}

/* ---- tests ---------------------------------------------------------------------------------- */

static struct seen on_cpu, on_device;

TEST_N(equals_the_cpu, TINY_VARIANTS)
{
    put_variant(tiny_variant(_i));
    fail_layer = -1;
    assert_ok(run_on(NULL, -1, &on_cpu), &err);
    assert_ok(run_on(&fake, -1, &on_device), &err);
    check_same("q", on_device.q[0], on_cpu.q[0], sizeof on_cpu.q / sizeof(float));
    check_same("k", on_device.k[0], on_cpu.k[0], sizeof on_cpu.k / sizeof(float));
    check_same("v", on_device.v[0], on_cpu.v[0], sizeof on_cpu.v / sizeof(float));
    check_same("map sum", on_device.sum[0], on_cpu.sum[0], sizeof on_cpu.sum / sizeof(float));
    check_same("map max", on_device.max[0], on_cpu.max[0], sizeof on_cpu.max / sizeof(float));
    check_same("nll", on_device.nll, on_cpu.nll, N - 1);
    ck_assert_int_eq(n_open, 0);
}

TEST(unwanted_layer_hands_out_nothing)
{
    put_variant(tiny_variant(0));
    fail_layer = -1;
    assert_ok(run_on(&fake, 0, &on_device), &err);
    assert_ok(run_on(NULL, 0, &on_cpu), &err);
    ck_assert_int_eq(on_device.ended, TINY_LAYERS);
    for (size_t i = 0; i < sizeof on_device.q[0] / sizeof(float); i++)
        ck_assert(on_device.q[0][i] == 0);
    check_same("q", on_device.q[1], on_cpu.q[1], sizeof on_cpu.q[1] / sizeof(float));
    ck_assert_double_eq(on_device.seconds, 0.25 * TINY_LAYERS);
}

TEST(error_names_the_layer_and_closes)
{
    put_variant(tiny_variant(0));
    fail_layer = 1;
    assert_fails(run_on(&fake, -1, &on_device), &err, ERR_RUN, "layer 1: the device is lost");
    ck_assert_int_eq(on_device.ended, 1);
    ck_assert_int_eq(n_open, 0);
}

static int no_device(int rank, const struct decoder_shape *s, struct decoder **out, struct err *e)
{
    return err_set(e, ERR_MACHINE, "no GPU");
}

TEST(missing_device_is_named)
{
    struct decoder_accel none = fake;
    none.open = no_device;
    put_variant(tiny_variant(0));
    assert_fails(run_on(&none, -1, &on_device), &err, ERR_MACHINE, "--device fake: no GPU");
    ck_assert_int_eq(on_device.begun, 0);
}
