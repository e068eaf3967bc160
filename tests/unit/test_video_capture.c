/*
 * test_video_capture.c - `lacuna capture` from noise and text embeddings to a trace: the shipped
 * video model against two independent runs (see test_wan.c for their difference), a tiny checkpoint
 * with the structure of Wan 2.1 against a float64 run, guidance, selections, saved clips, refusals.
 */
#include "capture/video_input.h"
#include "capture/wan_model.h"
#include "core/mem.h"
#include "core/npy.h"
#include "core/safetensors.h"
#include "tests/harness/capturerun.h"
#include "tests/harness/golden.h"
#include "tests/harness/suite.h"
#include "tests/harness/tinymodel.h"

#include <math.h>
#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define DIT "datasets/models/video-dit"
#define GOLDEN "tests/data/video-dit-a.safetensors"
#define EXACT "tests/data/video-dit-exact.safetensors"
#define WAN_CONFIG "tests/data/tiny/wan-config.json"
#define WAN_WEIGHTS "tests/data/tiny/wan-weights.safetensors"
#define WAN_GOLDEN "tests/data/tiny/wan-golden.safetensors"
#define STEM "diffusion_pytorch_model"

static struct err err;

static int capture(const char *model, const char *out, const char *args)
{
    return capture_run(model, out, "--jobs 2 --force", args, &err);
}

static float *read_npy(const char *path, int64_t count)
{
    OWN(npy_close) struct npy *n = NULL;
    float *x = NULL;
    assert_ok(npy_open(path, true, &n, &err), &err);
    ck_assert_int_eq(n->count, count);
    assert_ok(mem_alloc(&x, count, sizeof *x, path, &err), &err);
    assert_ok(npy_read_f32(n, x, &err), &err);
    return x;
}

/* All tokens of all heads of a call: [head][token][dim]. */
static float *heads_of(const struct trace *t, int step, const char *branch, int layer,
                       enum trace_what what, int64_t *count)
{
    struct trace_shape s = trace_shape(trace_meta(t), what);
    float *x = NULL;
    int64_t call = trace_find(t, step, branch, layer);
    ck_assert_msg(call >= 0, "no call at step %d, %s, layer %d", step, branch, layer);
    *count = s.heads * s.tokens * s.dim;
    assert_ok(mem_alloc(&x, *count, sizeof *x, "heads", &err), &err);
    for (int h = 0; h < s.heads; h++)
        assert_ok(trace_read(t, call, what, h, 0, s.tokens, x + h * s.tokens * s.dim, &err), &err);
    return x;
}

/* q, k, v of a call against step*.layer*.q ... of a file that holds every stride-th token. */
static void check_call(const struct trace *t, int step, int layer, const char *file, int stride,
                       double tol)
{
    for (enum trace_what w = TRACE_Q; w <= TRACE_V; w++) {
        struct trace_shape s = trace_shape(trace_meta(t), w);
        char name[64];
        int64_t count, few = s.heads * (s.tokens / stride) * s.dim;
        OWN(free_at) float *x = heads_of(t, step, "cond", layer, w, &count);
        snprintf(name, sizeof name, "step%d.layer%d.%s", step, layer, trace_what_name(w));
        OWN(free_at) float *want = golden_tensor(file, name, few);
        for (int64_t i = 0; i < few / s.dim; i++)
            memmove(x + i * s.dim, x + i * stride * s.dim, (size_t)s.dim * sizeof *x);
        double e = rel_l2(x, want, few);
        ck_assert_msg(e < tol, "%s of %s: relative L2 %g, at most %g", name, file, e, tol);
    }
}

/* Two calls hold the same bits. */
static void same_call(const struct trace *a, const char *branch_a, const struct trace *b,
                      const char *branch_b, int step, int layer)
{
    for (enum trace_what w = TRACE_Q; w <= TRACE_V; w++) {
        int64_t na, nb;
        OWN(free_at) float *x = heads_of(a, step, branch_a, layer, w, &na);
        OWN(free_at) float *y = heads_of(b, step, branch_b, layer, w, &nb);
        ck_assert(na == nb && memcmp(x, y, (size_t)na * sizeof *x) == 0);
    }
}

/* ---- the shipped model ----------------------------------------------------------------------- */

#define DIT_RUN "--size 4x64x96 --steps 4 --noise " GOLDEN " --text " GOLDEN " "
enum { DIT_LATENT = 3 * 4 * 64 * 96 };

TEST(float32_trace_is_the_golden_run)
{
    char args[5000];
    snprintf(args, sizeof args,
             DIT_RUN "--dtype f32 --layers 0,5 --capture-steps 0,3 --save-sample %s",
             test_path("x.npy"));
    assert_ok(capture(DIT, test_path("t.h5"), args), &err);
    OWN(trace_close) struct trace *t = open_trace(test_path("t.h5"));
    ck_assert_int_eq(trace_calls(t), 4);
    for (int step = 0; step < 4; step += 3)
        for (int layer = 0; layer < 6; layer += 5) {
            check_call(t, step, layer, EXACT, 8, 2e-5);
            check_call(t, step, layer, GOLDEN, 1, 5e-4);
        }
    float *x = read_npy(test_path("x.npy"), DIT_LATENT),
          *want = golden_tensor(EXACT, "sample", DIT_LATENT);
    ck_assert_double_lt(rel_l2(x, want, DIT_LATENT), 2e-5);
    free(want);
    want = golden_tensor(GOLDEN, "sample", DIT_LATENT);
    ck_assert_double_lt(rel_l2(x, want, DIT_LATENT), 1e-3);
    free(want);
    free(x);
}

TEST(metadata_schedule_and_call_order)
{
    assert_ok(capture(DIT, test_path("t.h5"),
                      "--size 2x16x24 --steps 4 --guidance 3 --layers 1,4 "
                      "--capture-steps 1-2 --maps 4 --seed 9 --prompt-index 1"),
              &err);
    OWN(trace_close) struct trace *t = open_trace(test_path("t.h5"));
    const struct trace_meta *m = trace_meta(t);
    OWN(free_at) double *sigma = NULL, *time = NULL;
    double want[5];
    int64_t n;

    ck_assert(strncmp(m->computed_by, "openblas ", 9) == 0);
    ck_assert_str_eq(m->name, "video-dit");
    ck_assert_str_eq(m->architecture, "WanTransformer3DModel");
    ck_assert_str_eq(m->positions, "rope-3d");
    ck_assert_str_eq(m->token_order, "raster");
    ck_assert_str_eq(m->text_place, "none");
    ck_assert(m->grid_t == 2 && m->grid_h == 2 && m->grid_w == 3 && m->n_q == 12 && m->n_k == 12);
    ck_assert(m->frames == 2 && m->height == 16 && m->width == 24);
    ck_assert(m->patch_t == 1 && m->patch_h == 8 && m->patch_w == 8);
    ck_assert(!m->causal && m->positions_applied && m->steps == 4 && m->shift == 5);
    ck_assert(m->guidance == 3 && m->seed == 9 && m->pool == 4 && m->dtype == DT_BF16);
    ck_assert(strncmp(m->prompt_id, "xxh3:", 5) == 0 && strncmp(m->negative_id, "xxh3:", 5) == 0);
    flow_sigmas(4, 5, want);
    assert_ok(trace_read_run(t, TRACE_SIGMAS, &sigma, &n, &err), &err);
    ck_assert(n == 5 && memcmp(sigma, want, sizeof want) == 0);
    assert_ok(trace_read_run(t, TRACE_TIMESTEPS, &time, &n, &err), &err);
    ck_assert(n == 4 && time[0] == 1000 && time[2] == 1000 * want[2]);
    ck_assert_int_eq(trace_calls(t), 8);
    for (int i = 0; i < 8; i++) { /* step, then branch, then layer */
        const struct trace_call *c = trace_call(t, i);
        ck_assert(c->step == 1 + i / 4 && c->layer == (i % 2 ? 4 : 1) && c->order == i);
        ck_assert_str_eq(c->branch, i % 4 < 2 ? "cond" : "uncond");
        ck_assert(c->timestep == time[c->step] && c->sigma == sigma[c->step] && c->has_map);
    }
}

/* Rows of the map's cells sum to the number of their queries. */
TEST(maps_cover_every_pair)
{
    assert_ok(
        capture(DIT, test_path("t.h5"), "--size 2x16x24 --steps 1 --layers 3 --maps 5 --heads 1"),
        &err);
    OWN(trace_close) struct trace *t = open_trace(test_path("t.h5"));
    float sum[9], max[9];
    ck_assert_int_eq(trace_map_cells(t, true), 3);
    ck_assert_str_eq(trace_meta(t)->head_ids, "1");
    assert_ok(trace_read_map(t, 0, 0, sum, max, &err), &err);
    for (int r = 0; r < 3; r++)
        ck_assert_float_eq_tol(sum[3 * r] + sum[3 * r + 1] + sum[3 * r + 2], r < 2 ? 5 : 2, 1e-4f);
}

TEST(the_seed_decides_the_noise)
{
    const char *run = "--size 1x16x16 --steps 1 --layers 0 ";
    char args[100];
    for (int i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d.h5", i);
        snprintf(args, sizeof args, "%s--seed %d", run, i / 2);
        assert_ok(capture(DIT, test_path(name), args), &err);
    }
    OWN(trace_close)
    struct trace *a = open_trace(test_path("0.h5")), *b = open_trace(test_path("1.h5")),
                 *c = open_trace(test_path("2.h5"));
    ck_assert_str_eq(trace_id(a), trace_id(b));
    same_call(a, "cond", b, "cond", 0, 0);
    ck_assert_str_ne(trace_id(a), trace_id(c));
}

/* The run ends after the last stored step, unless a sample is asked for; stored steps do not depend
 * on which others are. */
TEST(steps_are_those_asked_for)
{
    const char *run = "--size 1x16x24 --steps 6 --dtype f32 --layers 2 ";
    char args[5000];
    assert_ok(capture(DIT, test_path("all.h5"), run), &err);
    snprintf(args, sizeof args, "%s--capture-steps 1,3 --save-sample %s", run, test_path("x.npy"));
    assert_ok(capture(DIT, test_path("some.h5"), args), &err);
    OWN(trace_close)
    struct trace *all = open_trace(test_path("all.h5")), *some = open_trace(test_path("some.h5"));
    ck_assert(trace_calls(all) == 6 && trace_calls(some) == 2);
    same_call(all, "cond", some, "cond", 1, 2);
    same_call(all, "cond", some, "cond", 3, 2);
    ck_assert(trace_find(some, 0, "cond", 2) < 0 && trace_find(some, 5, "cond", 2) < 0);
    OWN(free_at) float *x = read_npy(test_path("x.npy"), 3 * 16 * 24);
    snprintf(args, sizeof args, "%s--save-sample %s", run, test_path("y.npy"));
    assert_ok(capture(DIT, test_path("all.h5"), args), &err);
    OWN(free_at) float *y = read_npy(test_path("y.npy"), 3 * 16 * 24);
    ck_assert(memcmp(x, y, 3 * 16 * 24 * sizeof *x) == 0);
}

static unsigned char *read_png(const char *path, png_uint_32 w, png_uint_32 h)
{
    png_image image;
    memset(&image, 0, sizeof image);
    image.version = PNG_IMAGE_VERSION;
    ck_assert_msg(png_image_begin_read_from_file(&image, path), "%s: %s", path, image.message);
    image.format = PNG_FORMAT_RGB;
    ck_assert(image.width == w && image.height == h);
    unsigned char *rgb = malloc(PNG_IMAGE_SIZE(image));
    ck_assert(rgb && png_image_finish_read(&image, NULL, rgb, 0, NULL));
    return rgb;
}

/* [-1, 1] becomes 0..255; what lies outside is clamped. */
TEST(frames_are_the_sample_in_bytes)
{
    char args[9000];
    enum { T = 3, H = 16, W = 24, FRAME = H * W };
    snprintf(args, sizeof args,
             "--size 3x16x24 --steps 2 --layers 0 --save-sample %s --save-frames %s",
             test_path("x.npy"), test_path("png/clip"));
    assert_ok(capture(DIT, test_path("t.h5"), args), &err);
    OWN(free_at) float *x = read_npy(test_path("x.npy"), 3 * T * FRAME);
    int outside = 0;
    for (int f = 0; f < T; f++) {
        char name[32];
        snprintf(name, sizeof name, "png/clip/frame-%03d.png", f);
        OWN(free_at) unsigned char *rgb = read_png(test_path(name), W, H);
        for (int i = 0; i < FRAME; i++)
            for (int c = 0; c < 3; c++) {
                double want = (x[(c * T + f) * FRAME + i] + 1) * 127.5;
                outside += want < 0 || want > 255;
                ck_assert_double_le(fabs(rgb[3 * i + c] - fmin(255, fmax(0, want))), 0.5001);
            }
    }
    ck_assert_int_gt(outside, 0);
    ck_assert(access(test_path("png/clip/frame-003.png"), F_OK) != 0);
}

/* ---- guidance -------------------------------------------------------------------------------- */

static void put_npy(const char *name, int ndim, const int64_t *shape, const float *x)
{
    assert_ok(npy_write(test_path(name), DT_F32, ndim, shape, x, &err), &err);
}

/* One step with guidance g is x_u + g (x_c - x_u) of the steps without, and its branches hold what
 * the two runs hold. `negative`: other text for the unconditional branch, or zeros. */
static void check_guidance(bool negative)
{
    const char *run = "--size 1x16x24 --steps 3 --dtype f32 --layers 0,5 --capture-steps 0 ";
    float text[8 * 32] = {0}, *x[3];
    char args[3][18000];
    for (int i = 0; negative && i < 8 * 32; i++)
        text[i] = (float)sin(i * 0.37);
    put_npy("neg.npy", 2, (int64_t[]){8, 32}, text);
    /* The last of one step is the sample. */
    snprintf(args[0], sizeof *args, "%s--steps 1 --save-sample %s", run, test_path("0.npy"));
    snprintf(args[1], sizeof *args, "%s--steps 1 --text %s --save-sample %s", run,
             test_path("neg.npy"), test_path("1.npy"));
    snprintf(args[2], sizeof *args, "%s--steps 1 --guidance 4.5 %s %s --save-sample %s", run,
             negative ? "--negative" : "", negative ? test_path("neg.npy") : "",
             test_path("2.npy"));
    struct trace *t[3];
    for (int i = 0; i < 3; i++) {
        char h5[16], npy[16];
        snprintf(h5, sizeof h5, "%d.h5", i);
        snprintf(npy, sizeof npy, "%d.npy", i);
        assert_ok(capture(DIT, test_path(h5), args[i]), &err);
        t[i] = open_trace(test_path(h5));
        x[i] = read_npy(test_path(npy), 3 * 16 * 24);
    }
    ck_assert(trace_calls(t[0]) == 2 && trace_calls(t[2]) == 4);
    for (int layer = 0; layer < 6; layer += 5) {
        same_call(t[2], "cond", t[0], "cond", 0, layer);
        same_call(t[2], "uncond", t[1], "cond", 0, layer);
    }
    ck_assert(rel_l2(x[0], x[1], 3 * 16 * 24) > 1e-3); /* the text matters */
    for (int i = 0; i < 3 * 16 * 24; i++)
        ck_assert_float_eq_tol(x[2][i], x[1][i] + 4.5f * (x[0][i] - x[1][i]), 2e-5f);
    ck_assert_str_eq(trace_meta(t[2])->negative_id, trace_meta(t[1])->prompt_id);
    ck_assert_str_eq(trace_meta(t[0])->negative_id, "");
    for (int i = 0; i < 3; i++) {
        trace_close(&t[i]);
        free(x[i]);
    }
}

TEST(guidance_against_zeros)
{
    check_guidance(false);
}

TEST(guidance_against_a_negative_prompt)
{
    check_guidance(true);
}

/* ---- a checkpoint with the structure of Wan 2.1 ---------------------------------------------- */

static void put_wan(int shards, const char *leave_out)
{
    json_t *c = NULL;
    assert_ok(json_read_file(WAN_CONFIG, 1 << 16, &c, &err), &err);
    tiny_put_config(test_tmpdir(), c);
    json_decref(c);
    tiny_put_checkpoint(test_tmpdir(), WAN_WEIGHTS, STEM, shards, leave_out);
}

#define WAN_RUN "--size 3x8x12 --steps 4 --shift 3 --noise " WAN_GOLDEN " --text " WAN_GOLDEN " "

static void check_wan(struct trace *t, const char *sample)
{
    const struct trace_meta *m = trace_meta(t);
    ck_assert(m->n_q == 72 && m->grid_t == 3 && m->grid_h == 4 && m->grid_w == 6);
    ck_assert(m->heads == 3 && m->kv_heads == 3 && m->head_dim == 16 && m->layers == 3);
    for (int step = 0; step < 4; step += 3)
        for (int layer = 0; layer < 3; layer += 2)
            check_call(t, step, layer, WAN_GOLDEN, 1, 2e-5);
    OWN(free_at)
    float *x = read_npy(sample, 16 * 3 * 8 * 12),
          *want = golden_tensor(WAN_GOLDEN, "sample", 16 * 288);
    ck_assert_double_lt(rel_l2(x, want, 16 * 288), 2e-5);
}

/* One file, or the tensors of every block spread over three. */
TEST_N(sixteen_channels_in_patches_are_the_exact_run, 2)
{
    char args[5000];
    put_wan(_i ? 3 : 1, NULL);
    ck_assert(!_i || access(test_path(STEM "-00002-of-00003.safetensors"), F_OK) == 0);
    snprintf(args, sizeof args, WAN_RUN "--dtype f32 --save-sample %s", test_path("x.npy"));
    assert_ok(capture(test_tmpdir(), test_path("t.h5"), args), &err);
    OWN(trace_close) struct trace *t = open_trace(test_path("t.h5"));
    ck_assert_int_eq(trace_calls(t), 12);
    check_wan(t, test_path("x.npy"));
}

static int forward(struct wan_model *m, const float *noise, const float *text, float *v)
{
    struct wan_input in = {noise, 3, 8, 12, 1000, text, 6};
    return wan_forward(m, &in, 1, NULL, v, &err);
}

/* Without room for all blocks they are read one at a time, with the same bits as a result. */
TEST(blocks_are_read_one_at_a_time)
{
    enum { N = 16 * 288 };
    float v[2][N], *noise = golden_tensor(WAN_GOLDEN, "noise", N);
    OWN(free_at) float *text = golden_tensor(WAN_GOLDEN, "text", 120);
    struct wan_model m;
    put_wan(2, NULL);
    for (int i = 0; i < 2; i++) {
        assert_ok(wan_open(test_tmpdir(), i ? 0 : 1 << 30, &m, &err), &err);
        ck_assert(m.cached == !i);
        assert_ok(forward(&m, noise, text, v[i]), &err);
        for (int b = 0; b < 3; b++)
            ck_assert((m.blocks[b].t[0] != NULL) == !i);
        wan_close(&m);
    }
    ck_assert(memcmp(v[0], v[1], sizeof v[0]) == 0);
    OWN(free_at) float *want = golden_tensor(WAN_GOLDEN, "step0.velocity", N);
    ck_assert_double_lt(rel_l2(v[0], want, N), 2e-5);
    free(noise);
}

/* Parameters of the published models: Wan2.1-T2V-1.3B 1,418,996,800 and Wan2.1-T2V-14B
 * 14,288,491,584. */
static void check_published(int layers, int heads, int ffn, int64_t parameters)
{
    struct wan_config c;
    json_t *o = NULL;
    int64_t grid[3], d = 128 * heads;
    assert_ok(json_read_file(WAN_CONFIG, 1 << 16, &o, &err), &err);
    json_object_set_new(o, "num_layers", json_integer(layers));
    json_object_set_new(o, "num_attention_heads", json_integer(heads));
    json_object_set_new(o, "attention_head_dim", json_integer(128));
    json_object_set_new(o, "ffn_dim", json_integer(ffn));
    json_object_set_new(o, "freq_dim", json_integer(256));
    json_object_set_new(o, "text_dim", json_integer(4096));
    tiny_put_config(test_tmpdir(), o);
    json_decref(o);
    assert_ok(wan_config_read(test_tmpdir(), &c, &err), &err);
    int64_t patch = 65 * d, time = 257 * d + 7 * (d * d + d), text = 4097 * d + d * d + d,
            out = 64 * (d + 1) + 2 * d;
    ck_assert_int_eq(wan_block_bytes(&c) / 4 * layers + patch + time + text + out, parameters);
    assert_ok(wan_grid(&c, 21, 60, 104, grid, &err), &err);
    ck_assert_int_eq(grid[0] * grid[1] * grid[2], 32760);
    assert_ok(wan_grid(&c, 21, 90, 160, grid, &err), &err);
    ck_assert_int_eq(grid[0] * grid[1] * grid[2], 75600);
}

TEST(published_sizes)
{
    check_published(30, 12, 8960, 1418996800);
    check_published(40, 40, 13824, 14288491584);
}

/* ---- refusals: none leaves a trace behind
 * -------------------------------------------------------- */

#define SMALL "--size 1x16x24 --steps 2 "
static const struct {
    const char *args, *message;
    int code;
} refused[] = {
    {"--steps 2", "--size TxHxW is missing", ERR_USAGE},
    {"--size 16x128", "not of the form TxHxW", ERR_USAGE},
    {"--size 16x128x192x3", "not of the form TxHxW", ERR_USAGE},
    {"--size 4x60x96", "height 60 is not a positive multiple of the patch, 8", ERR_USAGE},
    {"--size 4x64x100", "width 100 is not a positive multiple of the patch, 8", ERR_USAGE},
    {"--size 0x64x96", "frames 0 is not", ERR_USAGE},
    {"--size -9000000000000000000x64x96", "frames -9", ERR_USAGE},
    {"--size 2000x64x96", "2000 tokens, the model's positions end at 1024", ERR_USAGE},
    {SMALL "--steps 0", "steps", ERR_USAGE},
    {SMALL "--capture-steps 2", "--capture-steps", ERR_USAGE},
    {SMALL "--capture-steps 1-x", "--capture-steps", ERR_USAGE},
    {SMALL "--layers 6", "--layers", ERR_USAGE},
    {SMALL "--heads 2", "--heads", ERR_USAGE},
    {SMALL "--shift 0", "shift", ERR_USAGE},
    {SMALL "--guidance -1", "guidance", ERR_USAGE},
    {SMALL "--negative " GOLDEN, "--negative needs --guidance above 1", ERR_USAGE},
    {SMALL "--text " WAN_GOLDEN, "[tokens][32]", ERR_INPUT},
    {SMALL "--text no-such.npy", "no-such.npy", ERR_INPUT},
    {SMALL "--text README.md", "expected a .npy or .safetensors file", ERR_USAGE},
    {SMALL "--text " EXACT, "tensor 'text' is missing", ERR_INPUT},
    {SMALL "--text " GOLDEN " --prompt-index 1", "there are 1 prompts", ERR_USAGE},
    {SMALL "--noise " GOLDEN, "noise must be [3][1][16][24], found [3][4][64][96]", ERR_INPUT},
    {SMALL "--noise " WAN_GOLDEN, "noise must be [3][1][16][24], found [16][3][8][12]", ERR_INPUT},
    {SMALL "--guidance 2 --text " GOLDEN " --negative no.npy", "no.npy", ERR_INPUT},
    {SMALL "--prompt README.md", "--prompt changes nothing here; it is for language models",
     ERR_USAGE},
};

TEST_EACH(what_cannot_be_done_is_refused_without_a_trace, refused)
{
    assert_fails(capture(DIT, test_path("bad.h5"), refused[_i].args), &err, refused[_i].code,
                 refused[_i].message);
    ck_assert(test_absent("bad.h5"));
}

TEST(checkpoints_that_do_not_fit_are_refused)
{
    static const char *const names[] = {"blocks.2.attn2.to_k.bias", "proj_out.weight",
                                        "condition_embedder.time_proj.bias"};
    char args[5000];
    for (size_t i = 0; i < 3; i++) {
        put_wan(1, names[i]);
        assert_fails(capture(test_tmpdir(), test_path("bad.h5"), WAN_RUN), &err, ERR_INPUT,
                     names[i]);
    }
    put_wan(2, NULL);
    unlink(test_path(STEM "-00002-of-00002.safetensors"));
    assert_fails(capture(test_tmpdir(), test_path("bad.h5"), WAN_RUN), &err, ERR_INPUT,
                 "00002-of-00002");
    put_wan(1, NULL);
    assert_fails(capture(test_tmpdir(), test_path("bad.h5"), "--size 3x8x12 --steps 1"), &err,
                 ERR_USAGE, "--text FILE is missing");
    snprintf(args, sizeof args, WAN_RUN "--save-frames %s", test_path("png"));
    assert_fails(capture(test_tmpdir(), test_path("bad.h5"), args), &err, ERR_USAGE, "RGB");
    assert_fails(capture(test_tmpdir(), test_path("bad.h5"), WAN_RUN "--size 3x9x12"), &err,
                 ERR_USAGE, "height 9 is not a positive multiple of the patch, 2");
    ck_assert(test_absent("bad.h5"));
}

static void check_config(const char *key, json_t *value, const char *message)
{
    json_t *c = NULL;
    assert_ok(json_read_file(WAN_CONFIG, 1 << 16, &c, &err), &err);
    json_object_set_new(c, key, value);
    tiny_put_config(test_tmpdir(), c);
    json_decref(c);
    assert_fails(capture(test_tmpdir(), test_path("bad.h5"), WAN_RUN), &err, ERR_INPUT, message);
}

TEST(configurations_of_other_variants_are_refused)
{
    put_wan(1, NULL);
    check_config("image_dim", json_integer(1280), "image-to-video");
    check_config("added_kv_proj_dim", json_integer(48), "image-to-video");
    check_config("qk_norm", json_string("layer_norm"), "qk_norm is layer_norm");
    check_config("patch_size", json_integer(2), "patch_size");
    check_config("num_layers", json_integer(4), "blocks.3");
    check_config("num_attention_heads", json_integer(2), "expected");
    check_config("attention_head_dim", json_integer(15), "even");
    check_config("rope_max_seq_len", json_integer(0), "rope_max_seq_len 0");
    check_config("rope_max_seq_len", json_integer(-5), "rope_max_seq_len -5");
    check_config("eps", json_integer(-1), "eps -1");
    check_config("freq_dim", json_integer(3), "freq_dim must be even");
    check_config("out_channels", json_integer(8), "proj_out");
}

/* Sizes whose products do not fit into 64 bits are refused, not wrapped. */
TEST(absurd_sizes_are_refused)
{
    json_t *c = NULL;
    put_wan(1, NULL);
    assert_ok(json_read_file(WAN_CONFIG, 1 << 16, &c, &err), &err);
    json_object_set_new(c, "rope_max_seq_len", json_integer(INT64_MAX));
    tiny_put_config(test_tmpdir(), c);
    json_decref(c);
    assert_fails(
        capture(test_tmpdir(), test_path("bad.h5"), WAN_RUN "--size 1048576x1048576x1048576"), &err,
        ERR_USAGE, "too large");
}
