/*
 * videometric.c - see videometric.h.
 */
#include "eval/videometric.h"

#include "core/mem.h"
#include "core/pool.h"
#include "sim/metrics.h"

#include <math.h>
#include <png.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 11, CHANNELS = 3 };

static const double C1 = 0.01 * 0.01, C2 = 0.03 * 0.03;

void vector_compare(const float *x, const float *ref, int64_t n, double *l2, double *cosine)
{
    double e = 0, xx = 0, rr = 0, xr = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)x[i] - ref[i];
        e += d * d;
        xx += (double)x[i] * x[i];
        rr += (double)ref[i] * ref[i];
        xr += (double)x[i] * ref[i];
    }
    *l2 = ratio_or_inf(sqrt(e), sqrt(rr));
    *cosine = xx == 0 && rr == 0 ? 1 : xx == 0 || rr == 0 ? 0 : xr / (sqrt(xx) * sqrt(rr));
}

static double unit(float x)
{
    double y = ((double)x + 1) / 2;
    return y < 0 ? 0 : y > 1 ? 1 : y;
}

/* [channels][t][h][w] in [0, 1]. */
static int to_unit(const float *x, struct clip_size s, double **out, struct err *err)
{
    int64_t n = CHANNELS * s.t * s.h * s.w;
    PASS_ON(mem_alloc(out, n, sizeof **out, "clip", err));
    for (int64_t i = 0; i < n; i++)
        (*out)[i] = unit(x[i]);
    return 0;
}

static void compare_pixels(const double *x, const double *ref, struct clip_size s,
                           struct clip_diff *out)
{
    int64_t frame = s.h * s.w;
    double sum = 0, all = 0;
    for (int64_t t = 0; t < s.t; t++) {
        double mse = 0;
        for (int64_t c = 0; c < CHANNELS; c++)
            for (int64_t i = (c * s.t + t) * frame; i < (c * s.t + t + 1) * frame; i++)
                mse += (x[i] - ref[i]) * (x[i] - ref[i]);
        mse /= (double)(CHANNELS * frame);
        sum += mse > 0 ? 10 * log10(1 / mse) : INFINITY;
        all += mse / (double)s.t;
    }
    out->psnr = sum / (double)s.t;
    out->psnr_clip = all > 0 ? 10 * log10(1 / all) : INFINITY;
}

static void compare_flicker(const double *x, const double *ref, struct clip_size s,
                            struct clip_diff *out)
{
    int64_t frame = s.h * s.w;
    double mine = 0, dense = 0, diff = 0, n = (double)(CHANNELS * (s.t - 1) * frame);
    for (int64_t c = 0; c < CHANNELS; c++)
        for (int64_t i = c * s.t * frame; i < (c * s.t + s.t - 1) * frame; i++) {
            double a = x[i + frame] - x[i], b = ref[i + frame] - ref[i];
            mine += fabs(a);
            dense += fabs(b);
            diff += fabs(a - b);
        }
    out->flicker = s.t > 1 ? mine / n : NAN;
    out->flicker_dense = s.t > 1 ? dense / n : NAN;
    out->flicker_diff = s.t > 1 ? diff / n : NAN;
    out->flicker_ratio = s.t > 1 ? ratio_or_inf(mine, dense) : NAN;
}

/* ---- SSIM ----------------------------------------------------------------------------------- */

/* Weighted means of x, y, x^2, y^2, x y over the window around every pixel, separable. */
struct moments {
    double *m[5];         /* [h][w], owned */
    double *values, *tmp; /* owned */
};

static void moments_free(struct moments *m)
{
    for (int i = 0; i < 5; i++)
        free(m->m[i]);
    free(m->values);
    free(m->tmp);
}

static int moments_alloc(struct moments *m, int64_t frame, struct err *err)
{
    for (int i = 0; i < 5; i++)
        PASS_ON(mem_alloc(&m->m[i], frame, sizeof(double), "windows", err));
    PASS_ON(mem_alloc(&m->values, frame, sizeof(double), "windows", err));
    return mem_alloc(&m->tmp, frame, sizeof(double), "windows", err);
}

static double product(double x, double y, int k)
{
    switch (k) {
    case 0:
        return x;
    case 1:
        return y;
    case 2:
        return x * x;
    case 3:
        return y * y;
    default:
        return x * y;
    }
}

static void add_scaled(double *restrict to, const double *restrict from, double w, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] += w * from[i];
}

/* What stands outside of the frame is 0. Every sum goes over the window in its order. */
static void smooth(const double *x, const double *y, struct clip_size s, const double *w,
                   struct moments *m)
{
    enum { R = WINDOW / 2 };
    int64_t frame = s.h * s.w;
    for (int k = 0; k < 5; k++) {
        for (int64_t i = 0; i < frame; i++)
            m->values[i] = product(x[i], y[i], k);
        memset(m->tmp, 0, (size_t)frame * sizeof *m->tmp);
        memset(m->m[k], 0, (size_t)frame * sizeof *m->tmp);
        for (int64_t i = 0; i < s.h; i++)
            for (int64_t d = -R; d <= R; d++) {
                int64_t from = d < 0 ? -d : 0, to = d > 0 ? s.w - d : s.w;
                add_scaled(&m->tmp[i * s.w + from], &m->values[i * s.w + from + d], w[d + R],
                           to - from);
            }
        for (int64_t i = 0; i < s.h; i++)
            for (int64_t d = -R; d <= R; d++)
                if (i + d >= 0 && i + d < s.h)
                    add_scaled(&m->m[k][i * s.w], &m->tmp[(i + d) * s.w], w[d + R], s.w);
    }
}

static double ssim_at(const struct moments *m, int64_t i)
{
    double x = m->m[0][i], y = m->m[1][i];
    double xx = m->m[2][i] - x * x, yy = m->m[3][i] - y * y, xy = m->m[4][i] - x * y;
    return (2 * x * y + C1) * (2 * xy + C2) / ((x * x + y * y + C1) * (xx + yy + C2));
}

/* Mean over the pixels whose window lies inside the frame, or over all. */
static double mean_ssim(const struct moments *m, struct clip_size s, bool inside)
{
    int64_t r = inside ? WINDOW / 2 : 0;
    double sum = 0;
    for (int64_t i = r; i < s.h - r; i++)
        for (int64_t j = r; j < s.w - r; j++)
            sum += ssim_at(m, i * s.w + j);
    return sum / (double)((s.h - 2 * r) * (s.w - 2 * r));
}

static void weights(double gauss[WINDOW], double box[WINDOW])
{
    double sum = 0;
    for (int i = 0; i < WINDOW; i++) {
        double d = i - WINDOW / 2;
        gauss[i] = exp(-d * d / (2 * 1.5 * 1.5));
        sum += gauss[i];
        box[i] = 1.0 / WINDOW;
    }
    for (int i = 0; i < WINDOW; i++)
        gauss[i] /= sum;
}

/* A frame of a channel is an item of work. */
struct structure {
    const double *x, *ref;
    struct clip_size size;
    double gauss[WINDOW], box[WINDOW];
    struct moments *m; /* owned [workers] */
    double *ssim;      /* owned [frames][2]: of the Gaussian, of the box */
};

static int compare_frame(void *ctx, int64_t f, int worker, struct err *err)
{
    struct structure *c = ctx;
    struct moments *m = &c->m[worker];
    int64_t at = f * c->size.h * c->size.w;
    (void)err;
    smooth(c->x + at, c->ref + at, c->size, c->gauss, m);
    c->ssim[2 * f] = mean_ssim(m, c->size, true);
    smooth(c->x + at, c->ref + at, c->size, c->box, m);
    c->ssim[2 * f + 1] = mean_ssim(m, c->size, false);
    return 0;
}

static int compare_structure(const double *x, const double *ref, struct clip_size s, int jobs,
                             struct clip_diff *out, struct err *err)
{
    struct structure c = {.x = x, .ref = ref, .size = s};
    int64_t n = CHANNELS * s.t, workers = jobs < 1 ? 1 : jobs < n ? jobs : n;
    double sum = 0, sum_box = 0;
    int rc = 0;
    out->ssim = out->ssim_box11 = NAN;
    if (s.h < WINDOW || s.w < WINDOW)
        return 0;
    weights(c.gauss, c.box);
    TRY(mem_zalloc(&c.m, workers, sizeof *c.m, "windows", err));
    TRY(mem_alloc(&c.ssim, 2 * n, sizeof *c.ssim, "frames", err));
    for (int64_t i = 0; i < workers; i++)
        TRY(moments_alloc(&c.m[i], s.h * s.w, err));
    TRY(pool_run((int)workers, n, compare_frame, &c, err));
    for (int64_t f = 0; f < n; f++) { /* in the order of frames, whoever was done first */
        sum += c.ssim[2 * f];
        sum_box += c.ssim[2 * f + 1];
    }
    out->ssim = sum / (double)n;
    out->ssim_box11 = sum_box / (double)n;
out:
    for (int64_t i = 0; c.m && i < workers; i++)
        moments_free(&c.m[i]);
    free(c.m);
    free(c.ssim);
    return rc;
}

int clip_compare(const float *x, const float *ref, struct clip_size size, int jobs,
                 struct clip_diff *out, struct err *err)
{
    OWN(free_at) double *a = NULL, *b = NULL;
    PASS_ON(to_unit(x, size, &a, err));
    PASS_ON(to_unit(ref, size, &b, err));
    compare_pixels(a, b, size, out);
    compare_flicker(a, b, size, out);
    return compare_structure(a, b, size, jobs, out, err);
}

/* ---- pictures ------------------------------------------------------------------------------- */

static unsigned char byte_of(double y)
{
    return (unsigned char)(y <= 0 ? 0 : y >= 1 ? 255 : floor(y * 255 + 0.5));
}

int clip_strip(const char *path, const float *x, const float *ref, struct clip_size s,
               struct err *err)
{
    enum { COLUMNS = 5, ROWS = 3 };
    const int64_t frames[COLUMNS] = {0, s.t / 4, s.t / 2, 3 * s.t / 4, s.t - 1};
    int64_t width = COLUMNS * s.w;
    OWN(free_at) unsigned char *rgb = NULL;
    PASS_ON(mem_alloc(&rgb, ROWS * s.h * width * CHANNELS, 1, "strip", err));
    for (int64_t i = 0; i < s.h; i++)
        for (int64_t j = 0; j < width; j++)
            for (int64_t c = 0; c < CHANNELS; c++) {
                int64_t at = ((c * s.t + frames[j / s.w]) * s.h + i) * s.w + j % s.w;
                double a = unit(ref[at]), b = unit(x[at]);
                const double row[ROWS] = {a, b, 4 * fabs(a - b)};
                for (int64_t r = 0; r < ROWS; r++)
                    rgb[((r * s.h + i) * width + j) * CHANNELS + c] = byte_of(row[r]);
            }
    png_image image;
    memset(&image, 0, sizeof image);
    image.version = PNG_IMAGE_VERSION;
    image.width = (png_uint_32)width;
    image.height = (png_uint_32)(ROWS * s.h);
    image.format = PNG_FORMAT_RGB;
    if (!png_image_write_to_file(&image, path, 0, rgb, 0, NULL))
        return err_set(err, ERR_IO, "%s: %s", path, image.message);
    return 0;
}
