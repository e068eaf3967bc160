/* Distances of clips against scikit-image 0.26 (Gaussian weights, population covariance) and values
 * by hand. */
#include "eval/videometric.h"
#include "tests/harness/suite.h"

#include <math.h>
#include <string.h>

enum { T = 3, H = 16, W = 20, N = 3 * T * H * W };

static struct err err;
static const struct clip_size size = {T, H, W};

/* Bytes as values of a clip. */
static float value(int byte)
{
    return (float)(byte / 255.0 * 2 - 1);
}

static void fill(float *a, float *b)
{
    for (int c = 0, i = 0; c < 3; c++)
        for (int t = 0; t < T; t++)
            for (int y = 0; y < H; y++)
                for (int x = 0; x < W; x++, i++) {
                    int p = (7 * x + 11 * y + 29 * t + 50 * c) % 256;
                    int q = p + (x + 2 * y + 3 * t + c) % 5 - 2;
                    a[i] = value(p);
                    b[i] = value(q < 0 ? 0 : q > 255 ? 255 : q);
                }
}

TEST(against_scikit_image)
{
    float a[N], b[N];
    struct clip_diff d;
    fill(a, b);
    assert_ok(clip_compare(b, a, size, 1, &d, &err), &err);
    ck_assert_double_eq_tol(d.psnr, 45.151528, 2e-6);
    ck_assert_double_eq_tol(d.psnr_clip, 45.151528, 2e-6);
    ck_assert_double_eq_tol(d.ssim, 0.998754, 5e-7);
    ck_assert_double_eq_tol(d.ssim_box11, 0.999845, 5e-7);
    ck_assert_double_eq_tol(d.flicker, 0.217226, 5e-7);
    ck_assert_double_eq_tol(d.flicker_dense, 0.217255, 5e-7);
    ck_assert_double_eq_tol(d.flicker_diff, 0.009355, 5e-7);
    ck_assert_double_eq_tol(d.flicker_ratio, 0.217226 / 0.217255, 1e-5);
}

/* The vectors are the values in [0, 1] here. */
TEST(vectors)
{
    float a[N], b[N];
    double l2, cosine;
    fill(a, b);
    for (int i = 0; i < N; i++) {
        a[i] = (a[i] + 1) / 2;
        b[i] = (b[i] + 1) / 2;
    }
    vector_compare(b, a, N, &l2, &cosine);
    ck_assert_double_eq_tol(l2, 0.009185, 5e-7);
    ck_assert_double_eq_tol(cosine, 0.999958, 5e-7);
    vector_compare(a, a, N, &l2, &cosine);
    ck_assert_double_eq(l2, 0);
    ck_assert_double_eq_tol(cosine, 1, 1e-15);
}

TEST(equal_and_one_level_off)
{
    float a[N], b[N];
    struct clip_diff d;
    for (int i = 0; i < N; i++) {
        a[i] = value(i % 200);
        b[i] = value(i % 200 + 1);
    }
    assert_ok(clip_compare(a, a, size, 1, &d, &err), &err);
    ck_assert(isinf(d.psnr) && isinf(d.psnr_clip));
    ck_assert_double_eq_tol(d.ssim, 1, 1e-12);
    ck_assert_double_eq(d.flicker_ratio, 1);
    ck_assert_double_eq(d.flicker_diff, 0);
    assert_ok(clip_compare(b, a, size, 1, &d, &err), &err);
    ck_assert_double_eq_tol(d.psnr, 48.130804, 2e-5);
}

TEST(threads_change_no_bit)
{
    float a[N], b[N];
    struct clip_diff one, many;
    fill(a, b);
    assert_ok(clip_compare(b, a, size, 1, &one, &err), &err);
    assert_ok(clip_compare(b, a, size, 3, &many, &err), &err);
    ck_assert_int_eq(memcmp(&one, &many, sizeof one), 0);
}

/* Frames too small for a window, one frame alone. */
TEST(not_computed)
{
    float a[N], b[N];
    struct clip_diff d;
    fill(a, b);
    assert_ok(clip_compare(b, a, (struct clip_size){1, 10, 32}, 1, &d, &err), &err);
    ck_assert(isnan(d.ssim) && isnan(d.ssim_box11));
    ck_assert(isnan(d.flicker) && isnan(d.flicker_ratio));
}
