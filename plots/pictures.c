/*
 * pictures.c - figures of videos. "order": how the token orders of permute.h walk through the grid
 * of a video, one panel per order (SpargeAttn, arXiv 2502.18137, figure 5). "frames": clips side by
 * side, from the strips that `lacuna eval --save-frames` writes: five frames of the exact clip
 * above those of a method, and below four times their difference.
 */
#include "plots/chart.h"

#include "core/mem.h"
#include "core/permute.h"

#include <math.h>
#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- order ----------------------------------------------------------------------------------- */

#define BLOCK 4          /* tokens of one colour, as in the paper */
#define TOKENS_MOST 1024 /* more cannot be told apart */

static const char *const orders[] = {"random", "row", "column", "time", "hilbert"};

enum { ORDERS = sizeof orders / sizeof *orders };

/* Frames stand side by side, a cell apart. */
struct place {
    int64_t x, y;
};

static struct place place_of(const struct geometry *g, int64_t token)
{
    int64_t frame = token / (g->h * g->w);
    return (struct place){frame * (g->w + 1) + token % g->w, token / g->w % g->h};
}

static int check_grid(const struct figure_args *a, const struct geometry *g, struct err *err)
{
    int64_t n = g->t * g->h * g->w;
    if (n == 0)
        return err_set(err, ERR_INPUT,
                       "%s: figure order draws the grid of a video, and text has none",
                       trace_path(a->trace));
    if (n > TOKENS_MOST)
        return err_set(err, ERR_INPUT,
                       "%s: figure order draws every token, and %lld are more than %d: capture a "
                       "smaller clip, such as --size 1x48x48",
                       trace_path(a->trace), (long long)n, TOKENS_MOST);
    return 0;
}

/* A block of data: column, row, number of the block of tokens, and how far the next token is. */
static int write_order(const struct geometry *g, const char *name, struct buf *b, struct err *err)
{
    struct geometry video = {.t = g->t, .h = g->h, .w = g->w};
    OWN(free_at) int64_t *perm = NULL;
    int64_t n = g->t * g->h * g->w;
    PASS_ON(permute_make(name, &video, n, 0, &perm, err));
    buf_printf(b, "# %s: column, row, block of %d tokens, way to the next token\n", name, BLOCK);
    for (int64_t i = 0; i < n; i++) {
        struct place p = place_of(g, perm[i]), to = place_of(g, perm[i + 1 < n ? i + 1 : i]);
        buf_printf(b, "%lld %lld %lld %lld %lld\n", (long long)p.x, (long long)p.y,
                   (long long)(i / BLOCK), (long long)(to.x - p.x), (long long)(to.y - p.y));
    }
    buf_puts(b, "\n\n");
    return 0;
}

/* A light line under a dark one shows on all colours; a dot is where the order begins. */
static void draw_order_panel(const struct geometry *g, int i, struct canvas *c)
{
    struct buf *s = &c->gp.script;
    canvas_panel(c, NULL, NULL, orders[i]);
    buf_printf(s, "set xrange [-0.5:%lld.5]\nset yrange [%lld.5:-0.5]\nunset xtics\nunset ytics\n",
               (long long)(g->t * (g->w + 1) - 2), (long long)(g->h - 1));
    buf_puts(s, "plot NaN notitle");
    canvas_plot(c, i,
                "using 1:2:($1-0.5):($1+0.5):($2-0.5):($2+0.5):3 with boxxyerror fs solid noborder "
                "lc palette");
    for (int k = 0; k < 2; k++)
        canvas_plot(c, i, "using 1:2:4:5 with vectors nohead lw %g lc rgb '%s'", k ? 0.7 : 2.2,
                    k ? "black" : "white");
    canvas_plot(c, i, "every ::0::0 using 1:2 with points pt 7 ps 0.8 lc rgb 'white'");
    canvas_end(c);
}

static int render_orders(const struct figure_args *a, const struct geometry *g,
                         const struct buf *data, struct err *err)
{
    OWN(canvas_free) struct canvas c = {.panels = 0};
    char title[96];
    double last = (double)((g->t * g->h * g->w - 1) / BLOCK), high = last > 0 ? last : 1;
    double x = (double)(g->t * (g->w + 1) - 1), y = (double)g->h;
    snprintf(title, sizeof title, "Token orders of %lld x %lld x %lld tokens", (long long)g->t,
             (long long)g->h, (long long)g->w);
    struct canvas_wish w = {.title = title,
                            .caption = "Lines join successive tokens, from the dot on; a colour "
                                       "has four of them. random: of seed 0.",
                            .panels = ORDERS,
                            .cols = 3,
                            .left = 40,
                            .right = 112,
                            .bottom = 30,
                            .gap_x = 14,
                            .head_lines = 1,
                            .exact = true};
    double side, room_x, room_y;
    canvas_room(a, &w, &room_x, &room_y);
    side = a->width ? fmin(room_x, room_y * x / y) : 160 * x / fmax(x, y);
    w.width = (int)side;
    w.height = (int)(side * y / x);
    PASS_ON(canvas_open(a, &w, &c, err));
    palette_viridis(&c.gp.script);
    buf_printf(&c.gp.script, "set border lw 0.6\nunset colorbox\nset cbrange [0:%g]\n", high);
    canvas_names(&c, g->t > 1 ? "column, frame by frame" : "column", "row");
    for (int i = 0; i < ORDERS; i++) {
        if (i == ORDERS - 1)
            canvas_colours(&c, 0, high, false, "block of tokens");
        draw_order_panel(g, i, &c);
    }
    return canvas_finish(&c, data, err);
}

int draw_order(const struct figure *figure, const struct figure_args *a, struct err *err)
{
    const struct trace_meta *m = trace_meta(a->trace);
    const struct geometry g = {.t = m->grid_t, .h = m->grid_h, .w = m->grid_w};
    OWN(buf_free) struct buf data = {0};
    (void)figure;
    PASS_ON(check_grid(a, &g, err));
    for (int i = 0; i < ORDERS; i++)
        PASS_ON(write_order(&g, orders[i], &data, err));
    return render_orders(a, &g, &data, err);
}

/* ---- frames ---------------------------------------------------------------------------------- */

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
    OWN(png_image_free) png_image image = {.version = PNG_IMAGE_VERSION};
    struct stat st;
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
        return err_set(err, ERR_INPUT,
                       "%s: %lld x %lld pixels are no strip of %d frames in %d rows (lacuna eval "
                       "--save-frames)",
                       path, (long long)w, (long long)h, STRIP_FRAMES, STRIP_ROWS);
    if (at && (w != f->width || h / STRIP_ROWS != f->height))
        return err_set(err, ERR_INPUT,
                       "%s: its frames have another size than those of the first strip", path);
    f->width = (int)w;
    f->height = (int)(h / STRIP_ROWS);
    PASS_ON(mem_alloc(&f->pixels[at], w * h * 3, 1, "frames", err));
    if (!png_image_finish_read(&image, NULL, f->pixels[at], 0, NULL))
        return err_set(err, ERR_INPUT, "%s: %s", path, image.message);
    return 0;
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
    int n = (int)a->inputs->n;
    for (int i = 0; i < n; i++) {
        char name[40];
        PASS_ON(read_strip(a->inputs->items[i], f, i, err));
        method_name(a->inputs->items[i], name);
        if (i == 0)
            add_row(f, 0, 0, "exact");
        add_row(f, i, 1, name);
    }
    if (n == 1)
        add_row(f, 0, 2, "four times the difference");
    return 0;
}

enum { MARGIN = 8, LEAST = 480 };

static int render_frames(const struct figure_args *a, const struct frames *f, struct err *err)
{
    OWN(canvas_free) struct canvas c = {.panels = 0};
    OWN(buf_free) struct buf pixels = {0};
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
    PASS_ON(canvas_open(a, &w, &c, err));
    for (int i = 0; i < f->n; i++)
        buf_put(&pixels, f->row[i], (size_t)f->width * f->height * 3);
    PASS_ON(buf_check(&pixels, "frames", err));
    PASS_ON(gp_data(&c.gp, "bin", pixels.data, pixels.len, err));
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
    return canvas_finish(&c, NULL, err);
}

int draw_frames(const struct figure *figure, const struct figure_args *a, struct err *err)
{
    struct frames f = {.n = 0};
    int rc = read_rows(a, &f, err);
    (void)figure;
    if (!rc)
        rc = render_frames(a, &f, err);
    for (int i = 0; i < FIGURE_TRACES; i++)
        free(f.pixels[i]);
    return rc;
}
