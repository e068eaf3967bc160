/*
 * panels.c - geometry in pixels. Margins are fixed `at screen`, and a panel is a whole number of
 * pixels per whole cell, so that no cell falls between pixels; when a size is asked for, a cell may
 * get a fraction more than a pixel, never less.
 */
#include "plots/panels.h"

#include "plots/titles.h"

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

/* Pixels to the left and right of the panels that a title may stand over, of a second line of
 * titles, and that a panel has at least to either side. */
enum { LEFT_FREE = 54, RIGHT_FREE = 8, LINE = 15, LEAST = 48 };

/* Pixels of a character of a panel's title and of the figure's. */
#define CHAR 7.4
#define HEAD_CHAR 8.8

static void grid(int count, int wish, int *cols, int *rows)
{
    *cols = wish > 0 ? wish : (int)ceil(sqrt((double)count));
    *cols = *cols > count ? count : *cols;
    *rows = (count + *cols - 1) / *cols;
}

enum { ROW_HEAD = 40, COL_HEAD = 22, BELOW = 16, AXIS = 28 };

/* Between rows: titles, or the text below. */
static int gap_y(int lines)
{
    return lines == 0 ? 8 : GAP_Y + (lines > 1 ? LINE : 0);
}

int panels_room(int count, int wish, int lines, int width, int height)
{
    int cols, rows;
    grid(count, wish, &cols, &rows);
    int left = LEFT + (lines ? 0 : ROW_HEAD), gap = lines ? GAP_X : 8;
    int w = (width - left - RIGHT - (cols - 1) * gap) / cols;
    int h = (height - TOP - BOTTOM - rows * gap_y(lines)) / rows;
    return height == 0 || w < h ? w : h;
}

size_t panels_title_room(int count, int wish, int side, int width)
{
    int cols, rows;
    grid(count, wish, &cols, &rows);
    double room = ((double)(width - LEFT - RIGHT) / cols - 8) / CHAR;
    if (width == 0)
        room = side / CHAR;
    int least = width ? 8 : 28; /* a figure of any size takes room for that many */
    return room < least ? (size_t)least : room > 44 ? 44 : (size_t)room;
}

void panels_titles(const char (*titles)[96], int n, int *chars, int *lines)
{
    *chars = 0;
    *lines = 1;
    for (int i = 0; i < n; i++) {
        size_t first = strcspn(titles[i], "\n"), all = strlen(titles[i]);
        size_t longest = first < all && all - first - 1 > first ? all - first - 1 : first;
        *chars = (int)longest > *chars ? (int)longest : *chars;
        *lines = first < all ? 2 : *lines;
    }
}

void panels_title(const char *title, struct gp *g)
{
    const char *second = strchr(title, '\n');
    buf_puts(&g->script, "set title ");
    gp_text(g, &g->script, second ? second + 1 : title);
    buf_puts(&g->script, " noenhanced offset 0,-0.7\nunset label 99\n");
    if (second) {
        char first[96];
        snprintf(first, sizeof first, "%.*s", (int)(second - title), title);
        buf_puts(&g->script, "set label 99 ");
        gp_text(g, &g->script, first);
        buf_puts(&g->script, " at graph 0.5, graph 1 center offset 0,1.75 noenhanced\n");
    }
}

int panels_check(const struct panels *p, int least, int want_width, int want_height,
                 struct err *err)
{
    if (want_width <= 0 || (p->room >= least && panels_total_width(p, "") <= want_width &&
                            (want_height == 0 || panels_total_height(p) <= want_height)))
        return 0;
    int side = panels_side(p->count), w = p->cols * side, h = p->rows * side;
    if (want_height == 0)
        return err_set(err, ERR_USAGE,
                       "the figure's width is too small for %d panels in %d columns: choose some "
                       "with --layer, --head, --method, or give it %.1f times the --width",
                       p->count, p->cols,
                       (double)(p->cols * (48 + p->gap_x) + p->left + p->right) / want_width);
    return err_set(err, ERR_USAGE, "--size %dx%d is too small for %d panels (%dx%d would do)",
                   want_width, want_height, p->count,
                   w + p->left + p->right + (p->cols - 1) * p->gap_x,
                   h + p->top + p->bottom + p->rows * p->gap_y);
}

/* Pixels of a panel that lie next to each other, and one above the other, at most. */
static double most_width(const struct panels *p, int width)
{
    return (double)(width - p->left - p->right - (p->cols - 1) * p->gap_x) / p->cols;
}

static double most_height(const struct panels *p, int height)
{
    return (double)(height - p->top - p->bottom - p->rows * p->gap_y) / p->rows;
}

/* Whole pixels that cover the cells. */
static int pixels(double cell, double cells)
{
    return (int)ceil(cell * cells - 1e-9);
}

/* Least height of a panel: the label of the colour bar stands beside all rows, from below the title
 * to the lower edge. */
static int least_height(const struct panels *p, int bar_chars)
{
    int label = (int)(6.9 * bar_chars) - 72, all = label < 80 ? 80 : label;
    int one = (all + p->gap_y + p->rows - 1) / p->rows - p->gap_y;
    int least = p->heads ? 24 : LEAST;
    return one < least ? least : one;
}

/* Stretch a side to at least `least` pixels, of whole pixels per cell. */
static int stretched(int side, int least, double cells)
{
    return side >= least ? side : pixels(ceil(least / cells), cells);
}

static void panel_size(struct panels *p, const struct panels_wish *want)
{
    double fine = want->pixels > 1 ? want->pixels : 1;
    double cell = want->side / fmax(want->cells_x, want->cells_y);
    double w = most_width(p, want->width), h = most_height(p, want->height);
    cell = fine > 1 ? cell : round(cell);
    if (want->height == 0)
        h = INFINITY;
    if (want->width > 0)
        cell = fmin(w / want->cells_x, h / want->cells_y);
    p->room = (int)(fmax(cell, 0) * fine + 1e-6);
    cell = cell < 1 / fine ? 1 / fine : cell;
    p->cell = (int)(cell + 1e-6);
    p->width = stretched(pixels(cell, want->cells_x), p->heads ? 24 : LEAST, want->cells_x);
    bool narrow = want->width > 0 && want->height == 0;
    int least = narrow ? 24 : least_height(p, want->bar_chars);
    p->height = stretched(pixels(cell, want->cells_y), least, want->cells_y);
    if (want->width > 0 && p->room > 0) {
        p->width = p->width > w ? (int)w : p->width;
        p->height = p->height > h ? (int)h : p->height;
    }
}

/* What the heads of columns need above a gap between rows. */
static int above_heads(int lines, int gap)
{
    int room = COL_HEAD + (lines > 1 ? LINE : 0);
    return room > gap ? room - gap : 0;
}

void panels_layout(struct panels *p, const struct panels_wish *want)
{
    bool heads = want->heads;
    *p = (struct panels){.count = want->count,
                         .left = LEFT + (heads ? ROW_HEAD : 0),
                         .right = RIGHT,
                         .top = want->untitled ? 6 : TOP,
                         .bottom = BOTTOM,
                         .gap_x = heads ? 8 : GAP_X,
                         .gap_y = gap_y(heads             ? 0
                                        : want->lines > 1 ? 2
                                                          : 1) +
                                  (want->below ? BELOW : 0) + (want->own_axes ? AXIS : 0),
                         .heads = heads};
    if (heads)
        p->top += above_heads(want->lines, p->gap_y - (want->own_axes ? AXIS : 0));
    if (want->below)
        p->bottom += 14;
    if (want->own_axes)
        p->top -= AXIS; /* nothing stands above the first row */
    p->left += want->left;
    p->bottom += want->bottom;
    grid(want->count, want->cols, &p->cols, &p->rows);
    panel_size(p, want);
    /* Titles of neighbours must not touch, nor the outer ones run off the picture. */
    int text = (int)(CHAR * want->chars) + 18;
    if (p->cols > 1 && text > p->width + p->gap_x)
        p->gap_x = text - p->width;
    int over = text > p->width ? (text - p->width + 1) / 2 : 0;
    p->left += over > LEFT_FREE ? over - LEFT_FREE : 0;
    p->overhang = over > RIGHT_FREE ? over - RIGHT_FREE : 0;
    p->right += p->overhang;
}

int panels_total_width(const struct panels *p, const char *title)
{
    int w = p->left + p->cols * p->width + (p->cols - 1) * p->gap_x + p->right;
    int text = title[0] ? 30 + (int)(HEAD_CHAR * (double)strlen(title)) : 0;
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
    gp_text(g, &g->script, text);
    buf_printf(&g->script, " at screen %.6f, screen %.6f %s noenhanced\n", x, y, how);
}

/* Left edge, top and height of the colour bar. */
static void bar_place(const struct panels *p, int *x, int *top, int *high)
{
    *x = p->left + p->cols * (p->width + p->gap_x) - p->gap_x + 18 + p->overhang;
    *top = p->top + p->gap_y;
    *high = p->rows * (p->height + p->gap_y) - p->gap_y;
    *high = *high > 520 && !p->heads ? 520 : *high;
}

void panels_frame(const struct panels *p, const char *title, const char *x_label,
                  const char *y_label, const char *bar_label, struct gp *g)
{
    double w = g->width, h = g->height;
    double mid_x = (p->left + (p->cols * (p->width + p->gap_x) - p->gap_x) / 2.0) / w;
    double mid_y = 1 - (p->top + p->rows * (p->height + p->gap_y) / 2.0) / h;
    struct buf fitting = {0}; /* in a figure of a requested width */
    buf_puts(&g->script, "set border lw 0.6\nset tics scale 0.6\nunset key\nunset colorbox\n"
                         "set multiplot\n");
    title_cut(title, (size_t)((w - 30) / HEAD_CHAR) + 1, &fitting);
    if (title[0])
        screen_label(g, buf_str(&fitting), 14 / w, 1 - 18 / h, "left font font_title");
    g->script.failed |= fitting.failed;
    buf_free(&fitting);
    double low = 1 - (p->top + p->rows * (p->height + p->gap_y) + p->bottom - 16) / h;
    screen_label(g, x_label, mid_x, low, "center");
    screen_label(g, y_label, 14 / w, mid_y, "center rotate by 90");
    /* The bar's own label would stand where the terminal thinks that its tic labels end. */
    int x, top, high;
    bar_place(p, &x, &top, &high);
    if (7 * (double)strlen(bar_label) <= high + 2.0 * (h - high - top < top ? h - high - top : top))
        screen_label(g, bar_label, (x + 82) / w, 1 - (top + high / 2.0) / h, "center rotate by 90");
    else
        buf_printf(&g->caption, " Colour: %s.", bar_label);
}

/* Tics that do not run into each other on a bar of this many pixels. */
static void bar_tics(int pixels_high, double low, double high, bool log, struct buf *b)
{
    buf_puts(b, "set cbtics out nomirror");
    if (!log) {
        int most = pixels_high / 28;
        buf_printf(b, " %.10g", gp_step(high - low, most < 1 ? 1 : most > 10 ? 10 : most));
    } else if (log10(high / low) > pixels_high / 22.0) {
        double decades = ceil(log10(high / low) / (pixels_high / 22.0));
        buf_printf(b, " %.10g,%.10g", pow(10, ceil(log10(low) - 1e-9)), pow(10, decades));
    }
    buf_puts(b, "\n");
}

void panels_colorbox(const struct panels *p, double low, double high, bool log, struct gp *g)
{
    double w = g->width, h = g->height;
    int x, top, tall;
    bar_place(p, &x, &top, &tall);
    buf_printf(&g->script,
               "set colorbox vertical user origin screen %.6f, screen %.6f "
               "size screen %.6f, screen %.6f\n",
               x / w, 1 - (top + tall) / h, 14 / w, tall / h);
    bar_tics(tall, low, high, log, &g->script);
}

/* Tics of an axis of n tokens that is `side` pixels long, `room` pixels apart at least. */
static int64_t token_step(int64_t n, int side, int room)
{
    return gp_token_step(n, side / room + 1);
}

void panels_token_axes(const struct panels *p, int i, const struct cells *c, const char *title,
                       bool leftmost, bool lowest, struct gp *g)
{
    bool rightmost = i % p->cols == p->cols - 1 || i == p->count - 1;
    double x_end = (double)(c->k0 + c->n_k);
    int label = 24 + 8 * (int)log10(x_end); /* pixels of the longest number and a gap */
    long long step = token_step(c->n_k, p->width, label), first = (c->k0 + step - 1) / step * step;
    buf_printf(&g->script, "set xrange [%lld:%lld]\nset yrange [%lld:%lld]\n", (long long)c->k0,
               (long long)(c->k0 + c->n_k), (long long)(c->q0 + c->n_q), (long long)c->q0);
    double y_end = (double)(c->q0 + c->n_q);
    if (!rightmost && p->gap_x < label) /* a label at the edge would run into the next panel's 0 */
        x_end -= (double)c->n_k * label / 2 / p->width;
    if (p->gap_y < 14 && i + p->cols < p->count)
        y_end -= (double)c->n_q * 10 / p->height;
    if (rightmost && p->width < label) /* the end alone */
        first += step;
    buf_puts(&g->script, "unset xtics\n");
    if (x_end > (double)first || rightmost)
        buf_printf(&g->script, "set xtics %lld,%lld,%.10g out nomirror format '%s'\n", first, step,
                   fmax(x_end, (double)first + 1), lowest ? "%.0f" : "");
    step = token_step(c->n_q, p->height, 28);
    first = (c->q0 + step - 1) / step * step;
    buf_printf(&g->script, "set ytics %lld,%lld,%.10g out nomirror format '%s'\n", first, step,
               fmax(y_end, (double)first + 1), leftmost ? "%.0f" : "");
    if (title[0])
        panels_title(title, g);
}

/* Text of so many units, in small letters or cut where they are too few; in up to two lines, the
 * second nearer to the panel. */
static void head_lines(struct gp *g, const char *head, int room, double x, double y, double dx,
                       double dy, const char *how)
{
    const char *second = strchr(head, '\n');
    size_t longest = strcspn(head, "\n");
    if (second && strlen(second + 1) > longest)
        longest = strlen(second + 1);
    bool small = (double)longest * CHAR > room - 6;
    size_t most = room < 24 ? 3 : (size_t)(room / (small ? 0.8 * CHAR : CHAR));
    struct buf text = {0};
    char place[64];
    snprintf(place, sizeof place, "%s%s", how, small ? " font font_small" : "");
    for (int line = 0; line < 1 + (second != NULL); line++) {
        char one[96];
        const char *from = line ? second + 1 : head;
        snprintf(one, sizeof one, "%.*s", (int)strcspn(from, "\n"), from);
        double away = second && line == 0 ? 1 : 0;
        buf_reset(&text);
        title_cut(one, most, &text);
        screen_label(g, buf_str(&text), x - away * dx, y + away * dy, place);
    }
    g->script.failed |= text.failed;
    buf_free(&text);
}

/* "head 3" where there is room for it, else "3". */
static const char *short_head(const char *head, int room)
{
    const char *number = strrchr(head, ' ');
    return strchr(head, '\n') || !number || strlen(head) * CHAR <= room ? head : number + 1;
}

/* Have all heads room for the least that tells them apart? */
static bool heads_fit(char (*heads)[96], int n, int room)
{
    for (int i = 0; i < n; i++)
        if (strlen(short_head(heads[i], room)) * CHAR > 1.5 * room &&
            strcspn(heads[i], "\n") * CHAR > room)
            return false;
    return true;
}

/* Letters stand for heads that are too long: the caption says for which. */
static void letter(char (*heads)[96], int n, int i, int room, const char *what, char text[96],
                   struct buf *caption)
{
    snprintf(text, 96, "%s", heads[i]);
    if (heads_fit(heads, n, room))
        return;
    snprintf(text, 96, "%c", 'a' + i % 26);
    buf_printf(caption, "%s%c: ", i ? "; " : what, 'a' + i % 26);
    for (const char *c = heads[i]; *c; c++)
        buf_put(caption, *c == '\n' ? " " : c, 1);
    buf_puts(caption, i + 1 == n ? "." : "");
}

void panels_heads(const struct panels *p, int i, char (*rows)[96], char (*cols)[96], struct gp *g)
{
    int row = i / p->cols, col = i % p->cols;
    char text[96];
    double w = g->width, h = g->height;
    int x = p->left + col * (p->width + p->gap_x);
    int y = p->top + p->gap_y + row * (p->height + p->gap_y);
    if (row == 0) {
        letter(cols, p->cols, col, p->width + p->gap_x, " Columns: ", text, &g->caption);
        head_lines(g, short_head(text, p->width + p->gap_x), p->width + p->gap_x,
                   (x + p->width / 2.0) / w, 1 - (y - 10) / h, 0, 14 / h, "center");
    }
    if (col == 0) {
        letter(rows, p->rows, row, p->height + p->gap_y, " Rows: ", text, &g->caption);
        head_lines(g, short_head(text, p->height + p->gap_y), p->height + p->gap_y, (x - 68) / w,
                   1 - (y + p->height / 2.0) / h, 15 / w, 0, "center rotate by 90");
    }
}

void panels_below(const struct panels *p, int i, const char *text, struct gp *g)
{
    int row = i / p->cols, col = i % p->cols;
    int x = p->left + col * (p->width + p->gap_x);
    int y = p->top + p->gap_y + row * (p->height + p->gap_y) + p->height;
    bool lowest = i + p->cols >= p->count;
    if (p->width + p->gap_x < 6 * (int)strlen(text)) {
        buf_puts(&g->caption,
                 i + 1 == p->count ? " The panels are too narrow for their numbers." : "");
        return;
    }
    screen_label(g, text, (x + p->width / 2.0) / g->width,
                 1 - (y + (lowest ? 36.0 : 10.0)) / g->height, "center font font_small");
}

static int64_t axis_samples(int64_t cells, int64_t tokens, int64_t n, int repeat, int side)
{
    if (cells > 1 && n == cells * tokens)
        return cells * repeat;
    return side < 2 ? 2 : side;
}

struct panels_samples panels_sampling(const struct panels *p, const struct cells *c, int repeat)
{
    return (struct panels_samples){axis_samples(c->cols, c->tokens, c->n_k, repeat, p->width),
                                   axis_samples(c->rows, c->tokens, c->n_q, repeat, p->height)};
}

void panels_image(const struct cells *c, int i, struct panels_samples n, const char *tag,
                  const char *format, struct gp *g)
{
    double dx = (double)c->n_k / (double)n.x, dy = (double)c->n_q / (double)n.y;
    gp_data_name(g, tag);
    buf_printf(&g->script,
               " binary skip=%lld array=(%lld,%lld) format='%s' endian=little dx=%.10g dy=%.10g "
               "origin=(%.10g,%.10g)",
               (long long)(n.x * n.y) * 4 * i, (long long)n.x, (long long)n.y, format, dx, dy,
               (double)c->k0 + dx / 2, (double)c->q0 + dy / 2);
}

/* The cell of sample s of an axis of n tokens: the one that the sample ends in, so that every cell,
 * the last part of one too, has a sample of its own while there are as many samples as cells. */
static int64_t cell_at(int64_t s, int64_t samples, int64_t n, int64_t tokens)
{
    return ((s + 1) * n - 1) / (samples * tokens);
}

void panels_cells(const struct cells *c, int n, struct panels_samples s, panels_put_fn *put,
                  const void *ctx, struct buf *b)
{
    for (int i = 0; i < n; i++)
        for (int64_t y = 0; y < s.y; y++) {
            int64_t row = cell_at(y, s.y, c[i].n_q, c[i].tokens) * c[i].cols;
            for (int64_t x = 0; x < s.x; x++)
                put(ctx, i, row + cell_at(x, s.x, c[i].n_k, c[i].tokens), b);
        }
}
