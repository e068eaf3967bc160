/*
 * panels.c - geometry in pixels. Margins are fixed `at screen`, and a panel is a whole number of
 * pixels per cell, so that no cell falls between pixels; when a size is asked for, a cell may get a
 * fraction more than a pixel, never less.
 */
#include "plots/panels.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

int panels_side(int count)
{
    return count <= 1    ? 600
           : count <= 2  ? 460
           : count <= 4  ? 360
           : count <= 9  ? 260
           : count <= 24 ? 190
                         : 150;
}

/* Pixels around the panels. */
enum { LEFT = 84, RIGHT = 112, TOP = 40, BOTTOM = 58, GAP_X = 14, GAP_Y = 26 };

static void grid(int count, int wish, int *cols, int *rows)
{
    *cols = wish > 0 ? wish : (int)ceil(sqrt((double)count));
    *cols = *cols > count ? count : *cols;
    *rows = (count + *cols - 1) / *cols;
}

int panels_room(int count, int wish, int width, int height)
{
    int cols, rows;
    grid(count, wish, &cols, &rows);
    int w = (width - LEFT - RIGHT - (cols - 1) * GAP_X) / cols;
    int h = (height - TOP - BOTTOM - rows * GAP_Y) / rows;
    return w < h ? w : h;
}

int panels_check(const struct panels *p, int least, int want_width, int want_height,
                 struct err *err)
{
    if (want_width <= 0 || (p->room >= least && panels_total_width(p, "") <= want_width &&
                            panels_total_height(p) <= want_height))
        return 0;
    int side = panels_side(p->count), w = p->cols * side, h = p->rows * side;
    return err_set(err, ERR_USAGE, "--size %dx%d is too small for %d panels (%dx%d would do)",
                   want_width, want_height, p->count,
                   w + p->left + p->right + (p->cols - 1) * p->gap_x,
                   h + p->top + p->bottom + p->rows * p->gap_y);
}

void panels_layout(struct panels *p, int count, int wish, int64_t cells_x, int64_t cells_y,
                   int side, size_t chars, int want_width, int want_height)
{
    *p = (struct panels){.count = count,
                         .left = LEFT,
                         .right = RIGHT,
                         .top = TOP,
                         .bottom = BOTTOM,
                         .gap_x = GAP_X,
                         .gap_y = GAP_Y,
                         .cells_x = cells_x,
                         .cells_y = cells_y};
    grid(count, wish, &p->cols, &p->rows);
    int64_t longest = cells_x > cells_y ? cells_x : cells_y;
    double cell = round((double)side / (double)longest);
    if (want_width > 0) {
        double w = (double)(want_width - p->left - p->right - (p->cols - 1) * p->gap_x) / p->cols;
        double h = (double)(want_height - p->top - p->bottom - p->rows * p->gap_y) / p->rows;
        cell = fmin(w / (double)cells_x, h / (double)cells_y);
    }
    p->room = (int)fmax(cell, 0);
    cell = cell < 1 ? 1 : cell;
    p->cell = (int)cell;
    p->width = (int)(cell * (double)cells_x);
    p->height = (int)(cell * (double)cells_y);
    /* Titles of neighbours must not touch. */
    int text = (int)(7.4 * (double)chars) + 8;
    if (p->cols > 1 && text > p->width + p->gap_x)
        p->gap_x = text - p->width;
    p->overhang = text > p->width ? (text - p->width) / 2 : 0;
    p->right += p->overhang;
}

int panels_total_width(const struct panels *p, const char *title)
{
    int w = p->left + p->cols * p->width + (p->cols - 1) * p->gap_x + p->right;
    int text = 30 + (int)(8.2 * (double)strlen(title));
    return w < text ? text : w;
}

int panels_total_height(const struct panels *p)
{
    return p->top + p->rows * (p->height + p->gap_y) + p->bottom;
}

void panels_place(const struct panels *p, int i, struct gp *g, bool *leftmost, bool *lowest)
{
    int row = i / p->cols, col = i % p->cols;
    int x = p->left + col * (p->width + p->gap_x);
    int y = p->top + p->gap_y + row * (p->height + p->gap_y);
    double w = g->width, h = g->height;
    buf_printf(&g->script,
               "set lmargin at screen %.10f\nset rmargin at screen %.10f\n"
               "set tmargin at screen %.10f\nset bmargin at screen %.10f\n",
               x / w, (x + p->width) / w, 1 - y / h, 1 - (y + p->height) / h);
    *leftmost = col == 0;
    *lowest = i + p->cols >= p->count;
}

static void screen_label(struct gp *g, const char *text, double x, double y, const char *how)
{
    buf_puts(&g->script, "set label ");
    gp_text(&g->script, text);
    buf_printf(&g->script, " at screen %.6f, screen %.6f %s noenhanced\n", x, y, how);
}

/* Left edge, top and height of the colour bar. */
static void bar_place(const struct panels *p, int *x, int *top, int *high)
{
    *x = p->left + p->cols * (p->width + p->gap_x) - p->gap_x + 18 + p->overhang;
    *top = p->top + p->gap_y;
    *high = p->rows * (p->height + p->gap_y) - p->gap_y;
    *high = *high > 520 ? 520 : *high;
}

void panels_frame(const struct panels *p, const char *title, const char *x_label,
                  const char *y_label, const char *bar_label, struct gp *g)
{
    double w = g->width, h = g->height;
    double mid_x = (p->left + (p->cols * (p->width + p->gap_x) - p->gap_x) / 2.0) / w;
    double mid_y = 1 - (p->top + p->rows * (p->height + p->gap_y) / 2.0) / h;
    screen_label(g, title, 14 / w, 1 - 18 / h, "left font ',12'");
    double low = 1 - (p->top + p->rows * (p->height + p->gap_y) + 42) / h;
    screen_label(g, x_label, mid_x, low, "center");
    screen_label(g, y_label, 14 / w, mid_y, "center rotate by 90");
    /* The bar's own label would stand where the terminal thinks that its tic labels end. */
    int x, top, high;
    bar_place(p, &x, &top, &high);
    screen_label(g, bar_label, (x + 82) / w, 1 - (top + high / 2.0) / h, "center rotate by 90");
}

void panels_colorbox(const struct panels *p, struct gp *g)
{
    double w = g->width, h = g->height;
    int x, top, high;
    bar_place(p, &x, &top, &high);
    buf_printf(&g->script,
               "set colorbox vertical user origin screen %.6f, screen %.6f "
               "size screen %.6f, screen %.6f\n",
               x / w, 1 - (top + high) / h, 14 / w, high / h);
    buf_puts(&g->script, "set cbtics out nomirror\n");
}

void panels_token_axes(const struct panels *p, int i, const struct cells *c, const char *title,
                       bool leftmost, bool lowest, struct gp *g)
{
    bool rightmost = i % p->cols == p->cols - 1 || i == p->count - 1;
    int64_t x_end = c->cols * c->tokens;
    int64_t step_x = gp_token_step(c->n_k, p->width / 58 + 2);
    int64_t step_y = gp_token_step(c->n_q, p->height / 40 + 2);
    buf_printf(&g->script, "set xrange [0:%lld]\nset yrange [%lld:0]\n", (long long)x_end,
               (long long)(c->rows * c->tokens));
    if (!rightmost) /* a label at the edge would run into the next panel's 0 */
        x_end -= x_end * 30 / p->width;
    buf_printf(&g->script, "set xtics 0,%lld,%lld out nomirror format '%s'\n", (long long)step_x,
               (long long)x_end, lowest ? "%.0f" : "");
    buf_printf(&g->script, "set ytics %lld out nomirror format '%s'\n", (long long)step_y,
               leftmost ? "%.0f" : "");
    buf_puts(&g->script, "set title ");
    gp_text(&g->script, title);
    buf_puts(&g->script, " noenhanced offset 0,-0.7\n");
}

void panels_image(const struct cells *c, int i, int repeat, const char *tag, const char *format,
                  struct gp *g)
{
    double step = (double)c->tokens / repeat;
    gp_data_name(g, tag);
    buf_printf(&g->script,
               " binary skip=%lld array=(%lld,%lld) format='%s' endian=little dx=%.10g dy=%.10g "
               "origin=(%.10g,%.10g)",
               (long long)(c->rows * c->cols * repeat * repeat) * 4 * i,
               (long long)c->cols * repeat, (long long)c->rows * repeat, format, step, step,
               step / 2, step / 2);
}

void panels_cells(const struct cells *c, int n, int repeat, size_t size, panels_put_fn *put,
                  const void *ctx, struct buf *b)
{
    for (int i = 0; i < n; i++)
        for (int64_t r = 0; r < c->rows; r++) {
            size_t from = b->len;
            for (int64_t k = 0; k < c->cols; k++) {
                size_t at = b->len;
                put(ctx, i, r * c->cols + k, b);
                for (int m = 1; m < repeat && !b->failed; m++) {
                    char copy[8];
                    memcpy(copy, b->data + at, size);
                    buf_put(b, copy, size);
                }
            }
            for (int m = 1; m < repeat && !b->failed; m++) {
                struct buf row = {0};
                buf_put(&row, b->data + from, (size_t)(c->cols * repeat) * size);
                b->failed |= row.failed;
                if (!row.failed)
                    buf_put(b, row.data, row.len);
                buf_free(&row);
            }
        }
}
