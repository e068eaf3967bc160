/*
 * framesfig.c - the figure "frames": clips side by side, from the strips that `lacuna eval
 * --save-frames` writes: five frames of the exact clip above those of a method, and below four
 * times their difference.
 */
#include "plots/drawers.h"

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

enum { ABOVE = 26, MARGIN = 8, NAME = 20, LEAST = 480 };

/* Rows below each other, each below its name. */
static void draw_rows(const struct frames *f, double wide, double high, struct gp *g)
{
    struct buf *s = &g->script;
    double w = g->width, h = g->height;
    buf_puts(s, "unset key\nunset border\nunset tics\nset multiplot\n");
    for (int i = 0; i < f->n; i++) {
        double y = g->height - MARGIN - (f->n - i) * (high + NAME) + NAME;
        buf_printf(s, "set lmargin at screen %.8f\nset rmargin at screen %.8f\n", MARGIN / w,
                   (MARGIN + wide) / w);
        buf_printf(s, "set tmargin at screen %.8f\nset bmargin at screen %.8f\n", 1 - y / h,
                   1 - (y + high) / h);
        buf_puts(s, "set label ");
        gp_text(g, s, f->name[i]);
        buf_printf(s, " at screen %.8f, screen %.8f left noenhanced\n", MARGIN / w,
                   1 - (y - NAME / 2.0) / h);
        buf_printf(s, "set xrange [0:%d]\nset yrange [%d:0]\nplot ", f->width, f->height);
        gp_data_name(g, "bin");
        buf_printf(s,
                   " binary skip=%lld array=(%d,%d) format='%%uchar' origin=(0.5,0.5) "
                   "using 1:2:3 with rgbimage notitle\nunset label\n",
                   (long long)i * f->width * f->height * 3, f->width, f->height);
    }
    buf_puts(s, "unset multiplot\n");
}

static int render(const struct figure_args *a, const struct frames *f, struct err *err)
{
    static const char title[] = "frames of a clip from the same noise";
    struct gp g = {0};
    struct buf pixels = {0};
    bool titled = a->title || !a->untitled;
    int rc = 0, top = MARGIN + (titled ? ABOVE : 0);
    double wide = a->width ? a->width - 2 * MARGIN : fmin(fmax(LEAST, f->width), 2 * LEAST);
    double high = wide * f->height / f->width;

    TRY(figure_open(a, (int)(wide + 2 * MARGIN), (int)(top + f->n * (high + NAME) + MARGIN), &g,
                    err));
    figure_caption(a, title,
                   "The first, the middle three and the last frame; every row begins with the same "
                   "noise.",
                   &g);
    for (int i = 0; i < f->n; i++)
        buf_put(&pixels, f->row[i], (size_t)f->width * f->height * 3);
    TRY(buf_check(&pixels, "frames", err));
    TRY(gp_data(&g, "bin", pixels.data, pixels.len, err));
    if (titled) {
        buf_puts(&g.script, "set label ");
        gp_text(&g, &g.script, a->title ? a->title : title);
        buf_printf(&g.script, " at screen %.6f, screen %.6f left noenhanced font font_title\n",
                   14.0 / g.width, 1 - 18.0 / g.height);
    }
    draw_rows(f, wide, high, &g);
    TRY(gp_finish(&g, err));
out:
    gp_free(&g);
    buf_free(&pixels);
    return rc;
}

int draw_frames(const struct figure *f_, const struct figure_args *a, struct err *err)
{
    (void)f_;
    struct frames f = {.n = 0};
    int rc = read_rows(a, &f, err);
    if (!rc)
        rc = render(a, &f, err);
    for (int i = 0; i < FIGURE_TRACES; i++)
        free(f.pixels[i]);
    return rc;
}
