/*
 * test_wan_device.c - a video model on a device (capture/wan_device.c) hands it every weight, input
 * and row in its place: a device made of the CPU's own building blocks gives what the CPU's run
 * gives, in evaluations and in a capture from the noise to the trace.
 */
#include "capture/wan_model.h"
#include "core/rng.h"
#include "tests/harness/capturerun.h"
#include "tests/harness/fakedenoiser.h"
#include "tests/harness/floats.h"
#include "tests/harness/tinymodel.h"

#include <math.h>
#include <string.h>

#define WAN_CONFIG "tests/data/tiny/wan-config.json"
#define WAN_WEIGHTS "tests/data/tiny/wan-weights.safetensors"

static struct err err;

/* The tiny checkpoint: 3 layers, 3 heads of 16 channels, patches of 1 x 2 x 2 of 16 channels. */
enum { LAYERS = 3, HEADS = 3, DIM = 48, N = 3 * 4 * 6, TEXT = 6, TEXT_DIM = 20 };
enum { SIZE = 16 * 3 * 8 * 12, POOL = 16, CELLS = (N + POOL - 1) / POOL };

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
    .on = &fake_denoiser, .local_rank = 0, .size = {3, 8, 12}, .n_text = TEXT};

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

static void compare(const struct seen *got, const struct seen *ref)
{
    check_same("q, k, v", got->qkv[0][0], ref->qkv[0][0], sizeof ref->qkv / sizeof(float));
    check_same("map sum", got->sum[0], ref->sum[0], sizeof ref->sum / sizeof(float));
    check_same("map max", got->max[0], ref->max[0], sizeof ref->max / sizeof(float));
    check_same("velocity", got->v, ref->v, SIZE);
    ck_assert(got->rows == ref->rows && got->maps == ref->maps);
}

static struct seen on_cpu, on_device;

TEST(equals_the_cpu)
{
    put_model();
    fake_denoiser_fails = -1;
    assert_ok(evaluate(NULL, NULL, -1, &on_cpu), &err);
    assert_ok(evaluate(&fake_denoiser, NULL, -1, &on_device), &err);
    ck_assert(on_cpu.rows == LAYERS && on_cpu.maps == LAYERS);
    compare(&on_device, &on_cpu);
    ck_assert_double_eq(on_device.seconds, 0.25 * LAYERS);
    ck_assert_int_eq(fake_denoisers, 0);
}

TEST(unwanted_layer_hands_out_nothing)
{
    put_model();
    fake_denoiser_fails = -1;
    assert_ok(evaluate(NULL, NULL, 1, &on_cpu), &err);
    assert_ok(evaluate(&fake_denoiser, NULL, 1, &on_device), &err);
    ck_assert(on_cpu.rows == LAYERS && on_cpu.maps == LAYERS - 1);
    compare(&on_device, &on_cpu);
}

/* An attention that is none: half of the query plus the value. On a device it leaves what it makes
 * of layer 1 there. */
struct own {
    int refuse, exact; /* layers, -1 = none */
    const struct decoder_operands *there;
    int calls, were_there;
    bool stayed;
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
    o->stayed = o->there && layer == 1;
    out = o->stayed ? o->there->out : out;
    for (int64_t t = 0; t < N; t++)
        for (int64_t i = 0; i < DIM; i++) {
            int64_t by_head = (i / d * N + t) * d + i % d;
            out[t * DIM + i] = q[o->there ? by_head : t * DIM + i] / 2 + kv->v[by_head];
        }
    return 0;
}

static bool own_stayed(void *ctx)
{
    return ((struct own *)ctx)->stayed;
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

TEST(own_attention_takes_the_place_of_exact_attention)
{
    struct own o = {.refuse = -1, .exact = -1};
    struct layer_attention own = {&o, own_attend, own_exact, own_there, own_stayed};
    put_model();
    fake_denoiser_fails = -1;
    assert_ok(evaluate(NULL, &own, 0, &on_cpu), &err);
    ck_assert(o.calls == LAYERS && o.were_there == 0);
    assert_ok(evaluate(&fake_denoiser, &own, 0, &on_device), &err);
    ck_assert(o.calls == 2 * LAYERS && o.were_there == LAYERS && !o.there);
    ck_assert_int_eq(on_cpu.maps, 0);
    compare(&on_device, &on_cpu);
    o.refuse = 1;
    ck_assert_int_eq(evaluate(NULL, &own, 0, &on_cpu), 1);
    ck_assert_int_eq(evaluate(&fake_denoiser, &own, 0, &on_device), 1);
    ck_assert_int_eq(fake_denoisers, 0);
}

/* Where it says no, the device attends: with one layer of its own, what precedes it is exact. */
TEST(own_attention_may_leave_a_layer_to_the_device)
{
    struct own o = {.refuse = -1, .exact = 0};
    struct layer_attention own = {&o, own_attend, own_exact, own_there, own_stayed};
    put_model();
    fake_denoiser_fails = -1;
    assert_ok(evaluate(NULL, NULL, -1, &on_cpu), &err);
    assert_ok(evaluate(&fake_denoiser, &own, -1, &on_device), &err);
    ck_assert_int_eq(o.calls, LAYERS - 1);
    check_same("q, k, v", on_device.qkv[1][0], on_cpu.qkv[1][0],
               sizeof on_cpu.qkv[1] / sizeof(float));
    ck_assert(fabsf(on_device.v[0] - on_cpu.v[0]) > 1e-4F);
}

TEST(errors_name_the_layer_and_close)
{
    put_model();
    fake_denoiser_fails = 1;
    assert_fails(evaluate(&fake_denoiser, NULL, -1, &on_device), &err, ERR_RUN,
                 "layer 1: the device is lost");
    ck_assert(on_device.rows == 1 && fake_denoisers == 0); /* fails before it hands out rows */
}

static int no_device(int rank, const struct denoiser_shape *s, struct denoiser **out, struct err *e)
{
    return err_set(e, ERR_MACHINE, "no GPU");
}

TEST(missing_device_is_named)
{
    struct denoiser_accel none = fake_denoiser;
    none.open = no_device;
    put_model();
    assert_fails(evaluate(&none, NULL, -1, &on_device), &err, ERR_MACHINE, "--device fake: no GPU");
    ck_assert_int_eq(on_device.rows, 0);
}

TEST(other_sizes_are_refused)
{
    static float x[2 * SIZE], text[TEXT * TEXT_DIM], v[2 * SIZE];
    struct wan_input in = {x, 3, 8, 24, 500, text, TEXT};
    struct wan_model m;
    put_model();
    fake_denoiser_fails = -1;
    assert_ok(wan_open(test_tmpdir(), 1 << 30, &m, &err), &err);
    assert_ok(wan_device_open(&m, &ask, &err), &err);
    assert_fails(wan_forward(&m, &in, 1, NULL, v, &err), &err, ERR_RUN, "3x8x24");
    wan_close(&m);
    ck_assert_int_eq(fake_denoisers, 0);
}

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
TEST(capture_equals_that_of_the_cpu)
{
#define RUN                                                                                        \
    "--size 3x8x12 --steps 3 --capture-steps 0,2 --layers 0,2 --heads 0,2 --guidance 4 "           \
    "--dtype f32 --maps 16 --jobs 1 --noise tests/data/tiny/wan-golden.safetensors "               \
    "--text tests/data/tiny/wan-golden.safetensors"
    put_model();
    fake_denoiser_fails = -1;
    assert_ok(capture_run(test_tmpdir(), test_path("cpu.h5"), RUN, "", &err), &err);
    assert_ok(capture_run_on(&fake_denoiser, test_tmpdir(), test_path("dev.h5"), RUN,
                             "--device cuda", &err),
              &err);
    ck_assert_int_eq(fake_denoisers, 0);
    OWN(trace_close)
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
}

TEST(a_build_without_devices_says_so)
{
    put_model();
    assert_fails(capture_run(test_tmpdir(), test_path("no.h5"), RUN, "--device cuda", &err), &err,
                 ERR_MACHINE, "needs a build with CUDA");
}
