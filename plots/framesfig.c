/*
 * framesfig.c - the figure "frames": clips side by side, from the strips that `lacuna eval
 * --save-frames` writes: five frames of the exact clip above those of a method, and below four
 * times their difference.
 */
#include "plots/chart.h"

#include "core/mem.h"

#include <math.h>
#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define STRIP_ROWS 3
#define STRIP_FRAMES 5
#define ROWS_MOST (FIGURE_TRACES + 2)

/* Rows of the figure, of one size. */
struct frames {
    const unsigned char *row[ROWS_MOST]; /* into `pixels`: RGB, top line first */
    char name[ROWS_MOST][40];
    unsigned char *pixels[FIGURE_TRACES]; /* owned: a strip each */
    int n, width, height;                 /* rows; pixels of one */
};

static int read_strip(const char *path, struct frames *f, int at, struct err *err)
{
    png_image image = {.version = PNG_IMAGE_VERSION};
    struct stat st;
    int rc = 0;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return err_set(err, ERR_USAGE,
                       "figure frames: %s is a directory; name strips of frames, such as %s/*.png "
                       "(lacuna eval --save-frames)",
                       path, path);
    if (!png_image_begin_read_from_file(&image, path))
        return err_set(err, ERR_INPUT,
                       "figure frames: %s: %s; strips of frames are wanted (lacuna eval "
                       "--save-frames)",
                       path, image.message);
    image.format = PNG_FORMAT_RGB;
    int64_t w = image.width, h = image.height;
    if (w > 32768 || h > 32768 || w % STRIP_FRAMES || h % STRIP_ROWS)
        FAIL(err, ERR_INPUT,
             "%s: %lld x %lld pixels are no strip of %d frames in %d rows (lacuna eval "
             "--save-frames)",
             path, (long long)w, (long long)h, STRIP_FRAMES, STRIP_ROWS);
    if (at && (w != f->width || h / STRIP_ROWS != f->height))
        FAIL(err, ERR_INPUT, "%s: its frames have another size than those of the first strip",
             path);
    f->width = (int)w;
    f->height = (int)(h / STRIP_ROWS);
    TRY(mem_alloc(&f->pixels[at], w * h * 3, 1, "frames", err));
    if (!png_image_finish_read(&image, NULL, f->pixels[at], 0, NULL))
        rc = err_set(err, ERR_INPUT, "%s: %s", path, image.message);
out:
    png_image_free(&image);
    return rc;
}

/* "frames/01-fg-attn.png" is fg-attn. */
static void method_name(const char *path, char name[40])
{
    const char *base = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    size_t digits = strspn(base, "0123456789");
    base += digits && base[digits] == '-' ? digits + 1 : 0;
    snprintf(name, 40, "%.*s", (int)(strlen(base) - strlen(".png")), base);
}

static void add_row(struct frames *f, int strip, int row, const char *name)
{
    f->row[f->n] = f->pixels[strip] + (size_t)row * f->height * f->width * 3;
    snprintf(f->name[f->n++], sizeof f->name[0], "%s", name);
}

/* Exact frames once; the difference where there is but one method. */
static int read_rows(const struct figure_args *a, struct frames *f, struct err *err)
{
    int n = (int)a->inputs->n, rc = 0;
    for (int i = 0; i < n; i++) {
        char name[40];
        TRY(read_strip(a->inputs->items[i], f, i, err));
        method_name(a->inputs->items[i], name);
        if (i == 0)
            add_row(f, 0, 0, "exact");
        add_row(f, i, 1, name);
    }
    if (n == 1)
        add_row(f, 0, 2, "four times the difference");
out:
    return rc;
}

enum { MARGIN = 8, LEAST = 480 };

static int render(const struct figure_args *a, const struct frames *f, struct err *err)
{
    struct canvas c = {.panels = 0};
    struct buf pixels = {0};
    double wide = a->width ? a->width - 2 * MARGIN : fmin(fmax(LEAST, f->width), 2 * LEAST);
    const struct canvas_wish w = {.title = "frames of a clip from the same noise",
                                  .caption = "The first, the middle three and the last frame; "
                                             "every row begins with the same noise.",
                                  .panels = f->n,
                                  .cols = 1,
                                  .width = (int)wide,
                                  .height = (int)(wide * f->height / f->width),
                                  .left = MARGIN,
                                  .right = MARGIN,
                                  .bottom = MARGIN,
                                  .head_lines = 1,
                                  .exact = true};
    struct buf *s = &c.gp.script;
    int rc = 0;

    TRY(canvas_open(a, &w, &c, err));
    for (int i = 0; i < f->n; i++)
        buf_put(&pixels, f->row[i], (size_t)f->width * f->height * 3);
    TRY(buf_check(&pixels, "frames", err));
    TRY(gp_data(&c.gp, "bin", pixels.data, pixels.len, err));
    buf_puts(s, "unset border\nunset tics\n");
    for (int i = 0; i < f->n; i++) {
        canvas_panel(&c, NULL, NULL, f->name[i]);
        buf_printf(s, "set xrange [0:%d]\nset yrange [%d:0]\nplot ", f->width, f->height);
        gp_data_name(&c.gp, "bin");
        buf_printf(s,
                   " binary skip=%lld array=(%d,%d) format='%%uchar' origin=(0.5,0.5) "
                   "using 1:2:3 with rgbimage notitle",
                   (long long)i * f->width * f->height * 3, f->width, f->height);
        canvas_end(&c);
    }
    TRY(canvas_finish(&c, NULL, err));
out:
    canvas_free(&c);
    buf_free(&pixels);
    return rc;
}

int draw_frames(const struct figure *figure, const struct figure_args *a, struct err *err)
{
    struct frames f = {.n = 0};
    int rc = read_rows(a, &f, err);
    (void)figure;
    if (!rc)
        rc = render(a, &f, err);
    for (int i = 0; i < FIGURE_TRACES; i++)
        free(f.pixels[i]);
    return rc;
}
