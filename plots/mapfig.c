/*
 * mapfig.c - the picture of a figure of maps: panels in rows and columns, each an image. One data
 * file holds the cells of all panels.
 *
 * gnuplot samples images at points, so a panel is a whole number of pixels per whole cell; when a
 * size is asked for, a cell may get a fraction more than a pixel, never less.
 */
#include "plots/mapfig.h"

#include "core/mem.h"
#include "plots/palette.h"
#include "plots/series.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- layout ---------------------------------------------------------------------------------- */

/* How the panels stand. */
struct layout {
    struct canvas_wish w;
    bool grid;   /* heads of rows and columns; else titles */
    bool brief;  /* numbers alone as heads of columns */
    double fine; /* pixels to a unit; cells of vector files are none: many */
    double cell; /* units of a cell */
};

/* Side in units at which this many panels are legible. */
static int wished_side(int64_t n)
{
    return n <= 1 ? 600 : n <= 2 ? 460 : n <= 4 ? 360 : n <= 9 ? 260 : n <= 24 ? 190 : 150;
}

/* Columns of a grid in which every row has the same ones; 0: the panels are none. */
static int grid_columns(const struct map_figure *f)
{
    int cols = 1;
    while (cols < f->n && strcmp(f->m[cols].row, f->m[0].row) == 0)
        cols++;
    if (f->own_axes)
        return cols;
    if (cols == 1 || cols > 16 || cols == f->n || f->n % cols != 0)
        return 0;
    for (int64_t i = 0; i < f->n; i++)
        if (strcmp(f->m[i].col, f->m[i % cols].col) != 0 ||
            strcmp(f->m[i].row, f->m[i - i % cols].row) != 0)
            return 0;
    return cols;
}

static void title_of(const struct map_figure *f, const struct layout *l, int64_t i, char text[240])
{
    const struct map *m = &f->m[i];
    bool cols = false, rows = m->row[0] != '\0';
    for (int64_t k = 1; k < f->n; k++)
        cols |= strcmp(f->m[k].col, f->m[0].col) != 0;
    cols |= f->n == 1 || m->mask < 0;
    if (l->grid) /* "head 3" is 3 where there is no room for more */
        snprintf(text, 240, "%s",
                 i >= l->w.cols ? ""
                 : l->brief     ? strrchr(m->col, ' ') + 1
                                : m->col);
    else
        snprintf(text, 240, "%s%s%s", m->row, rows && cols ? " " : "", cols ? m->col : "");
}

static int title_lines(const struct map_figure *f, const struct layout *l, double width)
{
    char text[240];
    int most = 1;
    for (int64_t i = 0; i < f->n; i++) {
        title_of(f, l, i, text);
        int n = canvas_count_lines(text, canvas_chars(width + l->w.gap_x - 10));
        most = n > most ? n : most;
    }
    return most;
}

static void set_heads(const struct map_figure *f, struct layout *l, double width)
{
    const char *col = f->m[f->n - 1].col;
    l->brief = l->grid && (strncmp(col, "head ", 5) == 0 || strncmp(col, "step ", 5) == 0) &&
               strrchr(col, ' ') == col + 4 && width + l->w.gap_x < 8 * CANVAS_CHAR;
    int lines = title_lines(f, l, width);
    l->w.head_lines = l->grid ? 1 : lines;
    l->w.top = l->grid ? lines * CANVAS_LINE : 0;
}

/* Panels and the room around them; `side`: of a panel at most. */
static double lay_out(const struct map_figure *f, struct layout *l)
{
    const struct figure_args *a = f->a;
    int cols = grid_columns(f);
    *l = (struct layout){.grid = cols > 0};
    l->w = (struct canvas_wish){.title = "x",
                                .panels = (int)f->n,
                                .cols = cols ? cols : (int)ceil(sqrt((double)f->n)),
                                .left = 84 + words_room(&f->words.queries),
                                .right = 112,
                                .bottom = 58 + words_room(&f->words.keys),
                                .foot = f->m[0].mask >= 0 ? CANVAS_LINE : 0,
                                .gap_x = cols ? 8 : 14,
                                .gap_y = f->own_axes ? 28 : 8,
                                .exact = true};
    double side = wished_side(f->n);
    if (a->width)
        side = canvas_panel_width(a, &l->w);
    set_heads(f, l, side);
    return a->width ? fmin(side, canvas_panel_height(a, &l->w)) : side;
}

/* Cells of a vector file do not depend on its size; so many are about its data's resolution on
 * paper and keep the file below some megabytes. */
#define VECTOR_CELLS 6e6
#define VECTOR_SIDE 2048
#define VECTOR_PIXELS 64

static int64_t most_cells(const struct map_figure *f, const struct layout *l, double side)
{
    if (l->fine == VECTOR_PIXELS)
        return (int64_t)fmin(VECTOR_SIDE, fmax(64, sqrt(VECTOR_CELLS / (double)f->n)));
    return (int64_t)fmax(16, side * l->fine);
}

/* Whole units of whole cells, where a cell has one. */
static int units(double cell, double cells)
{
    return (int)ceil((cell >= 1 ? floor(cell) : cell) * cells - 1e-6);
}

/* The size of the panels. One that would be too low or narrow to read, such as a map of one row of
 * cells, is stretched. */
static int size_panels(const struct map_figure *f, struct layout *l, double side, struct err *err)
{
    const struct cells *c = &f->m[0].cells;
    double x = (double)c->n_k / (double)c->tokens, y = (double)c->n_q / (double)c->tokens;
    int64_t longest = c->n_q > c->n_k ? c->n_q : c->n_k;
    bool given = f->a->width > 0;
    int least = l->grid ? 24 : 48;
    if (f->words.keys.n && side < WORDS_UNITS * longest && !given)
        side = (double)(WORDS_UNITS * longest);
    l->cell = given
                  ? fmin(canvas_panel_width(f->a, &l->w) / x, canvas_panel_height(f->a, &l->w) / y)
                  : side / fmax(x, y);
    if (l->fine <= 1 && !given)
        l->cell = round(l->cell);
    if (given && l->cell * l->fine < 1)
        return err_set(err, ERR_USAGE,
                       "the figure is too small for %d panels in %d columns: choose some with "
                       "--layers, --heads, --method, or give it a larger --width or --size",
                       (int)f->n, l->w.cols);
    l->cell = fmax(l->cell, 1 / l->fine);
    l->w.width = units(l->cell, x);
    l->w.height = units(l->cell, y);
    if (!given && l->w.width < least)
        l->w.width = least;
    if (l->w.height < least && (!given || !f->a->height))
        l->w.height = least;
    set_heads(f, l, l->w.width);
    return 0;
}

/* ---- cells ----------------------------------------------------------------------------------- */

static const struct trace *trace_of(const struct map_figure *f, const struct map *m)
{
    return f->a->n_traces > 1 ? f->a->traces[m->trace] : f->a->trace;
}

/* The maps [first, first + n), which are of one trace. */
static int read_maps(struct map_figure *f, int64_t first, int n, int64_t most, struct err *err)
{
    struct figure_args own = *f->a;
    struct map_panel *p = NULL;
    struct cells *out = NULL;
    struct cells_span span;
    bool stored;
    int rc = 0;
    own.trace = trace_of(f, &f->m[first]);
    const struct trace_meta *m = trace_meta(own.trace);
    TRY(map_part(&own, m->n_q, m->n_k, &span, err));
    TRY(words_read(&own, &span, &f->words, err));
    TRY(mem_alloc(&p, n, sizeof *p, "panels", err));
    TRY(mem_zalloc(&out, n, sizeof *out, "panels", err));
    for (int i = 0; i < n; i++)
        p[i] = f->m[first + i].p;
    rc = map_read(&own, p, n, &span, most, out, &stored, err);
    for (int i = 0; i < n; i++)
        f->m[first + i].cells = out[i];
    if (rc)
        goto out;
    if (f->own_axes)
        buf_printf(&f->caption, "%s%s: ", first ? " " : "", m->name);
    map_caption(&own, &f->m[first].cells, stored, &f->caption);
out:
    free(p);
    free(out);
    return rc;
}

/* Shares of a mask that are kept: a veil over the cells of its map, or cells of their own. */
static int read_mask(struct map_figure *f, struct map *m, int64_t most, struct err *err)
{
    struct mask mask = {0};
    struct mask_counts n;
    struct cells_span span;
    int rc = 0;
    TRY(maskfile_read(f->a->masks, m->mask, &mask, err));
    TRY(map_part(f->a, mask.nq, mask.nk, &span, err));
    int64_t tokens = f->shares ? cells_factor(span.n_q, span.n_k, most) : m->cells.tokens;
    TRY(cells_from_mask(&mask, &span, tokens, f->shares ? &m->cells : &m->veil, err));
    if (m->cells.n_q != f->m[0].cells.n_q || m->cells.n_k != f->m[0].cells.n_k)
        FAIL(err, ERR_USAGE,
             "masks of different sizes in one figure: choose with --layers, --method");
    TRY(mask_count(&mask, &n, err));
    title_share((double)n.pairs_kept / (double)n.pairs_allowed, 3, m->below);
out:
    mask_free(&mask);
    return rc;
}

static int read_cells(struct map_figure *f, int64_t most, struct err *err)
{
    int rc = 0;
    for (int64_t i = 0, n; i < f->n && !f->shares; i += n) {
        for (n = 1; i + n < f->n && f->m[i + n].trace == f->m[i].trace;)
            n++;
        TRY(read_maps(f, i, (int)n, most, err));
    }
    for (int64_t i = 0; i < f->n; i++)
        if (f->m[i].mask >= 0)
            TRY(read_mask(f, &f->m[i], most, err));
out:
    return rc;
}

/* ---- images ---------------------------------------------------------------------------------- */

/* Samples of an image. They are its cells, each repeat x repeat times; on an axis that ends within
 * a cell, or has only one, they are units of the panel instead: gnuplot neither clips the cells of
 * an image nor draws a single row of them. */
struct samples {
    int64_t x, y;
};

static int64_t axis_samples(int64_t cells, int64_t tokens, int64_t n, int repeat, int side)
{
    if (cells > 1 && n == cells * tokens)
        return cells * repeat;
    return side < 2 ? 2 : side;
}

/* Viewers of SVG blur enlarged images, so there a cell is as many samples as it has units. */
static struct samples sampling(const struct map_figure *f, double cell)
{
    const struct cells *c = &f->m[0].cells;
    const struct canvas *p = &f->canvas;
    int repeat = p->gp.type != GP_SVG || cell < 1 ? 1 : cell > 8 ? 8 : (int)cell;
    struct samples s = {0, 0};
    for (int64_t i = 0; f->own_axes && i < f->n; i++) { /* no cell is lost, none is much too wide */
        s.x = f->m[i].cells.cols * 4 > s.x ? f->m[i].cells.cols * 4 : s.x;
        s.y = f->m[i].cells.rows * 4 > s.y ? f->m[i].cells.rows * 4 : s.y;
    }
    if (f->own_axes)
        return s;
    return (struct samples){axis_samples(c->cols, c->tokens, c->n_k, repeat, p->width),
                            axis_samples(c->rows, c->tokens, c->n_q, repeat, p->height)};
}

/* White over the cells that the mask drops: opaque enough to see the mask, not to hide the map. */
#define VEIL 190

static void put_cell(const struct map_figure *f, double low, float x, bool veil, struct buf *b)
{
    unsigned char px[4] = {255, 255, 255, 0};
    if (veil) {
        px[3] = isnan(x) ? 0 : (unsigned char)lround(VEIL * (1 - fmin(1, (double)x)));
        buf_put(b, px, 4);
        return;
    }
    if (!f->shares && (double)x < low) /* false for NAN */
        x = (float)low;
    buf_put(b, &x, sizeof x);
}

/* The cell of sample s of an axis of n tokens: the one that the sample ends in, so that every cell,
 * the last part of one too, has a sample of its own while there are as many samples as cells. */
int64_t map_cell_at(int64_t s, int64_t samples, int64_t n, int64_t tokens)
{
    return ((s + 1) * n - 1) / (samples * tokens);
}

static int write_images(struct map_figure *f, struct samples s, double low, bool veil,
                        struct err *err)
{
    struct buf b = {0};
    int rc = 0;
    for (int64_t i = 0; i < f->n; i++) {
        const struct cells *c = veil ? &f->m[i].veil : &f->m[i].cells;
        for (int64_t y = 0; y < s.y; y++) {
            int64_t row = map_cell_at(y, s.y, c->n_q, c->tokens) * c->cols;
            for (int64_t x = 0; x < s.x; x++)
                put_cell(f, low, c->v[row + map_cell_at(x, s.x, c->n_k, c->tokens)], veil, &b);
        }
    }
    TRY(buf_check(&b, "cells", err));
    TRY(gp_data(&f->canvas.gp, veil ? "veil.bin" : "bin", b.data, b.len, err));
out:
    buf_free(&b);
    return rc;
}

/* 1 = most allowed pairs of the cell are kept, 0 = most are dropped, -1 = nothing is allowed. */
static int side_of(const struct cells *c, int64_t r, int64_t k)
{
    if (r < 0 || k < 0 || r >= c->rows || k >= c->cols || isnan(c->v[r * c->cols + k]))
        return -1;
    return c->v[r * c->cols + k] >= 0.5f;
}

/* Line segments between kept and dropped cells, in tokens. Two blank lines end a panel. */
static void add_edges(const struct cells *c, struct buf *b)
{
    buf_puts(b, "nan nan\n\n");
    for (int64_t r = 0; r < c->rows; r++)
        for (int64_t k = 0; k < c->cols; k++) {
            long long x = c->k0 + k * c->tokens, y = c->q0 + r * c->tokens, t = c->tokens;
            int here = side_of(c, r, k), below = side_of(c, r + 1, k), right = side_of(c, r, k + 1);
            if (here + below == 1)
                buf_printf(b, "%lld %lld\n%lld %lld\n\n", x, y + t, x + t, y + t);
            if (here + right == 1)
                buf_printf(b, "%lld %lld\n%lld %lld\n\n", x + t, y, x + t, y + t);
        }
    buf_puts(b, "\n");
}

static int write_edges(struct map_figure *f, struct err *err)
{
    struct buf b = {0};
    int rc = 0;
    for (int64_t i = 0; i < f->n; i++)
        add_edges(&f->m[i].veil, &b);
    TRY(buf_check(&b, "edges", err));
    TRY(gp_data(&f->canvas.gp, "edges.dat", b.data, b.len, err));
out:
    buf_free(&b);
    return rc;
}

/* ---- script ---------------------------------------------------------------------------------- */

#define FRAMES_MOST 256

/* Tokens of a frame, the first one's place and how many there are, of the trace or as the user
 * says; 0: no frames. */
static int64_t frame_tokens(const struct figure_args *a, int64_t *first, int64_t *n)
{
    const struct trace_meta *m = a->trace ? trace_meta(a->trace) : NULL;
    *first = 0;
    *n = FRAMES_MOST;
    if (a->frame > 0 || !m || m->grid_t < 2 ||
        (m->token_order[0] && strcmp(m->token_order, "raster") != 0))
        return a->frame;
    *n = m->grid_t < FRAMES_MOST ? m->grid_t : FRAMES_MOST;
    if (strcmp(m->text_place, "front") == 0)
        *first = m->text_tokens;
    return m->grid_h * m->grid_w;
}

/* Lines between the frames of a video, in tokens: where there are few enough to see the map. White
 * at a half is seen on dark cells, grey on light ones. */
static void frame_lines(struct map_figure *f)
{
    const struct cells *c = &f->m[0].cells;
    const char *color = f->shares ? "#40a0a0a0" : "#60ffffff";
    struct buf *s = &f->canvas.gp.script;
    int64_t first, n, frame = frame_tokens(f->a, &first, &n);
    if (frame <= 0 || f->own_axes || f->canvas.width * frame < 6 * c->n_k)
        return;
    for (int64_t i = 1; i <= n; i++) {
        double at = (double)(first + i * frame);
        if (at > c->k0 && at < c->k0 + c->n_k)
            buf_printf(
                s, "set arrow from %g, graph 0 to %g, graph 1 nohead front lw 0.5 lc rgb '%s'\n",
                at, at, color);
        if (at > c->q0 && at < c->q0 + c->n_q)
            buf_printf(s,
                       "set arrow from graph 0, first %g to graph 1, first %g nohead front lw 0.5 "
                       "lc rgb '%s'\n",
                       at, at, color);
    }
}

/* Tics at every power of two of tokens that leaves `room` units to each; before the end of the axis
 * where the next panel's numbers begin. */
static void token_tics(struct buf *s, char letter, int64_t from, int64_t n, int side, int room,
                       bool shown, bool ends)
{
    int64_t step = gp_token_step(n, side / room + 1), first = (from + step - 1) / step * step;
    double end = (double)(from + n) - (ends ? 0 : (double)n * room / 2 / side);
    if (ends && side < room) /* the end alone */
        first += step;
    buf_printf(s, "unset %ctics\n", letter);
    if (ends || end > (double)first)
        buf_printf(s, "set %ctics %lld,%lld,%.10g out nomirror format '%s'\n", letter,
                   (long long)first, (long long)step, fmax(end, (double)first + 1),
                   shown ? "%.0f" : "");
}

/* Axes in tokens, row 0 on top, numbers on the outer panels only. */
static void put_axes(struct map_figure *f, int64_t i)
{
    const struct canvas *p = &f->canvas;
    const struct cells *c = &f->m[i].cells;
    struct buf *s = &f->canvas.gp.script;
    bool leftmost = i % p->cols == 0, lowest = i + p->cols >= f->n;
    bool rightmost = i % p->cols == p->cols - 1 || i + 1 == f->n;
    int label = 24 + 8 * (int)log10((double)(c->k0 + c->n_k)); /* the longest number and a gap */
    buf_printf(s, "set xrange [%lld:%lld]\nset yrange [%lld:%lld]\n", (long long)c->k0,
               (long long)(c->k0 + c->n_k), (long long)(c->q0 + c->n_q), (long long)c->q0);
    token_tics(s, 'x', c->k0, c->n_k, p->width, label, lowest || f->own_axes, rightmost);
    token_tics(s, 'y', c->q0, c->n_q, p->height, 28, leftmost, true);
    words_axes(&f->words, c, p->width, p->height, leftmost, lowest, &f->canvas.gp);
}

/* The `binary` clause that reads the samples of panel i. */
static void put_image(struct map_figure *f, int64_t i, struct samples n, const char *tag,
                      const char *format)
{
    const struct cells *c = &f->m[i].cells;
    double dx = (double)c->n_k / (double)n.x, dy = (double)c->n_q / (double)n.y;
    gp_data_name(&f->canvas.gp, tag);
    buf_printf(&f->canvas.gp.script,
               " binary skip=%lld array=(%lld,%lld) format='%s' endian=little dx=%.10g dy=%.10g "
               "origin=(%.10g,%.10g)",
               (long long)(n.x * n.y) * 4 * i, (long long)n.x, (long long)n.y, format, dx, dy,
               (double)c->k0 + dx / 2, (double)c->q0 + dy / 2);
}

static void put_label(struct map_figure *f, const char *text, const char *where)
{
    buf_puts(&f->canvas.gp.script, "set label ");
    gp_text(&f->canvas.gp, &f->canvas.gp.script, text);
    buf_printf(&f->canvas.gp.script, " at %s noenhanced\n", where);
}

static void draw_panel(struct map_figure *f, const struct layout *l, int64_t i, struct samples n)
{
    const struct map *m = &f->m[i];
    struct buf *s = &f->canvas.gp.script;
    char title[240];
    title_of(f, l, i, title);
    canvas_panel(&f->canvas, NULL, NULL, title);
    put_axes(f, i);
    frame_lines(f);
    if (l->grid)
        buf_puts(s, "set title offset 0,0.7\n");
    if (l->grid && i % l->w.cols == 0)
        put_label(f, m->row, "graph 0, graph 1 left offset -1,0.6");
    if (m->below[0] && f->canvas.width + l->w.gap_x >= 32)
        put_label(f, m->below,
                  i + l->w.cols < f->n ? "graph 0.5, graph 0 center offset 0,-0.7 font font_small"
                                       : "graph 0.5, graph 0 center offset 0,-2.1 font font_small");
    buf_puts(s, "plot ");
    put_image(f, i, n, "bin", "%float32");
    buf_puts(s, " using 1 with image notitle");
    if (m->veil.v) {
        buf_puts(s, ", ");
        put_image(f, i, n, "veil.bin", "%4uchar");
        buf_puts(s, " using 1:2:3:4 with rgbalpha notitle");
    }
    if (m->veil.v && l->cell >= MAP_EDGE_CELL) {
        buf_puts(s, ", ");
        gp_data_name(&f->canvas.gp, "edges.dat");
        buf_printf(s, " index %lld with lines lc rgb '#d55e00' lw 1 notitle", (long long)i);
    }
    canvas_end(&f->canvas);
}

/* What the title and the caption say once the cells are there. */
static int put_texts(struct map_figure *f, const struct layout *l, struct err *err)
{
    const struct figure_args *a = f->a;
    const struct cells *c = &f->m[0].cells;
    bool under = !f->shares && f->m[0].mask >= 0;
    if (!f->shares && (a->rows || a->keys))
        buf_printf(&f->title, ", queries %lld-%lld, keys %lld-%lld", (long long)c->q0,
                   (long long)(c->q0 + c->n_q - 1), (long long)c->k0,
                   (long long)(c->k0 + c->n_k - 1));
    if (!f->shares && !under && !f->own_axes && c->tokens > 1)
        buf_printf(&f->title, "; cells of %lld x %lld tokens, %s", (long long)c->tokens,
                   (long long)c->tokens, a->mean ? "mean" : "maximum");
    if (f->shares)
        buf_puts(&f->caption, "Numbers: kept pairs over allowed pairs. Blank: no pair is allowed.");
    if (under)
        buf_puts(&f->caption, " The paleness of a cell is the share of its pairs that are dropped; "
                              "numbers are kept pairs over allowed pairs of the whole map.");
    if (f->m[0].below[0] && l->w.width + l->w.gap_x < 32)
        buf_puts(&f->caption, " The panels are too narrow for their numbers.");
    if (under && l->cell >= MAP_EDGE_CELL)
        buf_puts(&f->caption, " A red line surrounds the cells of which at least half is kept.");
    int rc = buf_check(&f->title, "title", err);
    return rc ? rc : buf_check(&f->caption, "caption", err);
}

static void put_scale(struct map_figure *f, double low, double high)
{
    struct buf *s = &f->canvas.gp.script;
    palette_viridis(s);
    if (!f->shares)
        buf_printf(s, "set logscale cb\nset format cb '%s'\n", figure_powers(f->a->output));
    buf_printf(s, "set cbrange [%.10g:%.10g]\nset border lw 0.6\nset tics scale 0.6\n", low, high);
    buf_puts(s, "unset colorbox\n");
}

static const char *bar_label(const struct map_figure *f)
{
    return f->shares    ? "kept share of the cell's allowed pairs"
           : f->a->mean ? "mean weight of the cell's pairs"
                        : "largest weight in the cell";
}

int map_draw(struct map_figure *f, struct err *err)
{
    const struct figure_args *a = f->a;
    double low = isnan(a->low) ? f->shares ? 0 : 1e-6 : a->low, high = isnan(a->high) ? 1 : a->high;
    enum gp_type type = GP_PNG;
    struct layout l;
    int rc = 0;

    TRY(gp_check_name(a->output, &type, err));
    double side = lay_out(f, &l);
    l.fine = type == GP_PNG ? gp_pixels_per_unit(type, &a->style) : VECTOR_PIXELS;
    TRY(read_cells(f, most_cells(f, &l, side), err));
    lay_out(f, &l);
    l.fine = type == GP_PNG ? gp_pixels_per_unit(type, &a->style) : VECTOR_PIXELS;
    TRY(size_panels(f, &l, side, err));
    TRY(put_texts(f, &l, err));
    l.w.title = buf_str(&f->title);
    l.w.caption = buf_str(&f->caption);
    TRY(canvas_open(a, &l.w, &f->canvas, err));
    struct samples n = sampling(f, l.cell);
    TRY(write_images(f, n, low, false, err));
    if (f->m[0].veil.v) {
        TRY(write_images(f, n, low, true, err));
        TRY(write_edges(f, err));
    }
    put_scale(f, low, high);
    canvas_names(&f->canvas, "key [token]", "query [token]");
    for (int64_t i = 0; i < f->n; i++) {
        if (i + 1 == f->n)
            canvas_colours(&f->canvas, low, high, !f->shares, bar_label(f));
        draw_panel(f, &l, i, n);
    }
    TRY(canvas_finish(&f->canvas, NULL, err));
out:
    return rc;
}
