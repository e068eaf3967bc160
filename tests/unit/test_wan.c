/* The Wan 2.1 runner against two independent runs of the shipped model on a 4 x 64 x 96 clip, four
 * steps: tests/data/video-dit-exact.safetensors (float64, every eighth token of q, k, v) and
 * tests/data/video-dit-a.safetensors (float32 with TF32 products, itself 1e-4 to 3e-4 off the
 * first; make_video_exact.py prints the differences). */
#include "capture/video_input.h"
#include "capture/nn.h"
#include "capture/wan_model.h"
#include "core/mem.h"
#include "core/rng.h"
#include "tests/harness/golden.h"
#include "tests/harness/suite.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL "datasets/models/video-dit"
#define GOLDEN "tests/data/video-dit-a.safetensors"
#define EXACT "tests/data/video-dit-exact.safetensors"

enum { T = 4, H = 64, W = 96, SIZE = 3 * T * H * W, STEPS = 4, N = 384, DIM = 256 };

static float *read_golden(const struct st_file *f, const char *name, int64_t count)
{
    const struct st_tensor *t = st_find(f, name);
    float *x = NULL;
    ck_assert_msg(t && t->count == count, "%s", name);
    MUST(mem_alloc(&x, count, sizeof *x, name, ERR));
    MUST(st_read_f32(f, t, 0, count, x, ERR));
    return x;
}

struct probe {
    const struct st_file *golden, *exact;
    int step, compared;
};

/* Stored as [head][token][dim], every stride-th token; x is [token][head * dim]. */
static void compare_heads(struct probe *p, const struct st_file *f, int stride, double tol,
                          int layer, const char *what, const float *x)
{
    char name[64];
    int n = N / stride;
    snprintf(name, sizeof name, "step%d.layer%d.%s", p->step, layer, what);
    if (!st_find(f, name))
        return;
    OWN(free_at)
    float *want = read_golden(f, name, n * DIM), *got = malloc((size_t)n * DIM * sizeof *got);
    for (int h = 0; h < 2; h++)
        for (int i = 0; i < n; i++)
            memcpy(got + (h * n + i) * 128, x + i * stride * DIM + h * 128, 128 * sizeof *got);
    double e = rel_l2(got, want, n * DIM);
    ck_assert_msg(e < tol, "%s: relative L2 %g, at most %g", name, e, tol);
    p->compared++;
}

static void compare_both(struct probe *p, int layer, const char *what, const float *x)
{
    compare_heads(p, p->exact, 8, 2e-5, layer, what, x);
    compare_heads(p, p->golden, 1, 5e-4, layer, what, x);
}

static void compare_frame(const struct probe *p, const char *name, const float *x)
{
    const struct st_file *f[] = {p->exact, p->golden};
    for (int i = 0; i < 2; i++) {
        OWN(free_at) float *want = read_golden(f[i], name, SIZE);
        double e = rel_l2(x, want, SIZE), tol = i ? 1e-3 : 2e-5;
        ck_assert_msg(e < tol, "%s: relative L2 %g, at most %g", name, e, tol);
    }
}

static int probe_hook(void *ctx, int layer, const float *q, const float *k, const float *v,
                      struct err *err)
{
    compare_both(ctx, layer, "q", q);
    compare_both(ctx, layer, "k", k);
    compare_both(ctx, layer, "v", v);
    return 0;
}

static void check_run(int64_t cache_bytes)
{
    OWN(wan_close) struct wan_model m;
    OWN(st_close) struct st_file *golden = NULL, *exact = NULL;
    struct probe probe = {0};
    double sigma[STEPS + 1];
    char name[64];
    MUST(st_open(GOLDEN, &golden, ERR));
    MUST(st_open(EXACT, &exact, ERR));
    MUST(wan_open(MODEL, cache_bytes, &m, ERR));
    OWN(free_at)
    float *x = read_golden(golden, "noise", SIZE), *text = read_golden(golden, "text", 8 * 32);
    OWN(free_at)
    float *want_sigma = read_golden(golden, "sigmas", STEPS + 1), *v = malloc(SIZE * sizeof *v);
    probe.golden = golden;
    probe.exact = exact;
    flow_sigmas(STEPS, 5, sigma);
    for (int s = 0; s < STEPS; s++) {
        ck_assert_double_eq_tol(sigma[s], want_sigma[s], 1e-6);
        struct wan_input in = {x, T, H, W, 1000 * sigma[s], text, 8};
        struct wan_hooks hooks = {.ctx = &probe, .rows = probe_hook};
        probe.step = s;
        MUST(wan_forward(&m, &in, 2, &hooks, v, ERR));
        snprintf(name, sizeof name, "step%d.velocity", s);
        compare_frame(&probe, name, v);
        flow_step(x, v, SIZE, sigma[s], sigma[s + 1]);
    }
    ck_assert_int_eq(probe.compared, 24);
    compare_frame(&probe, "sample", x);
}

TEST(golden_run_with_weights_in_memory)
{
    check_run((int64_t)1 << 30);
}

TEST(golden_run_reading_weights_layer_by_layer)
{
    check_run(0);
}

/* Seven rows, 13 columns and 11 frames of patches: no count of blocks is whole. */
TEST(velocity_does_not_depend_on_the_number_of_threads)
{
    enum { FRAMES = 11, HIGH = 56, WIDE = 104, COUNT = 3 * FRAMES * HIGH * WIDE };
    static float x[COUNT], text[8 * 32], one[COUNT], many[COUNT];
    OWN(wan_close) struct wan_model m;
    for (int i = 0; i < COUNT; i++)
        x[i] = (float)rng_normal(5, 1, (uint64_t)i);
    for (int i = 0; i < 8 * 32; i++)
        text[i] = (float)rng_normal(5, 2, (uint64_t)i);
    MUST(wan_open(MODEL, (int64_t)1 << 30, &m, ERR));
    struct wan_input in = {x, FRAMES, HIGH, WIDE, 700, text, 8};
    MUST(wan_forward(&m, &in, 1, NULL, one, ERR));
    MUST(wan_forward(&m, &in, 5, NULL, many, ERR));
    ck_assert_mem_eq(one, many, sizeof one);
}

TEST(gelu_is_that_of_libm_to_float_rounding)
{
    enum { COUNT = 40001 };
    static float x[COUNT], y[COUNT];
    for (int i = 0; i < COUNT; i++)
        x[i] = y[i] = (float)(i - COUNT / 2) / 1000;
    nn_gelu_tanh(y, COUNT);
    for (int i = 0; i < COUNT; i++) {
        double z = x[i], u = sqrt(2 / acos(-1)) * (z + 0.044715 * z * z * z);
        double want = z / (1 + exp(-2 * u));
        /* The exponent's own rounding grows with it. */
        ck_assert_double_le(fabs(y[i] - want), 2e-7 * (1 + fabs(2 * u)) * fabs(want) + 1e-36);
    }
    ck_assert_float_eq(y[COUNT - 1], x[COUNT - 1]);
}

TEST(schedule_with_shift)
{
    double s[51];
    flow_sigmas(50, 5, s);
    ck_assert_double_eq(s[0], 1);
    ck_assert_double_eq(s[50], 0);
    ck_assert_double_eq_tol(s[25], 5 * 0.5 / 3, 1e-15);
    flow_sigmas(4, 1, s);
    ck_assert_double_eq(s[1], 0.75);
}

TEST(guidance_extrapolates)
{
    float v[2] = {2, 4}, u[2] = {1, 4};
    flow_guide(v, u, 2, 5);
    ck_assert_float_eq(v[0], 6);
    ck_assert_float_eq(v[1], 4);
}

TEST(sizes_are_checked)
{
    struct wan_config c;
    int64_t grid[3];
    MUST(wan_config_read(MODEL, &c, ERR));
    MUST(wan_grid(&c, 16, 256, 384, grid, ERR));
    ck_assert_int_eq(grid[0] * grid[1] * grid[2], 24576);
    FAILS(wan_grid(&c, 16, 250, 384, grid, ERR), ERR_USAGE, "height 250");
    FAILS(wan_grid(&c, 0, 256, 384, grid, ERR), ERR_USAGE, "frames 0");
    FAILS(wan_grid(&c, 16, 16384, 384, grid, ERR), ERR_USAGE, "positions end at 1024");
}
