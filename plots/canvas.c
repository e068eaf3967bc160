/*
 * canvas.c - see canvas.h. gnuplot gets one `set multiplot layout` with margins and spacing; names
 * of axes, titles, tics and legends are its own. It gives a legend no more rows than the panel
 * beside it has room for, so panels are at least as high as their legend.
 */
#include "plots/canvas.h"
#include "core/mem.h"

#include "plots/series.h"

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define SAMPLE 56       /* of a legend beside its text */
#define RIGHT 26        /* margin without a legend: half of a tic's 7 letters */
#define LEAST_WIDTH 150 /* of a large panel that is not the only one of its row */
#define LEAST 40        /* of any panel */
#define TITLE_CHAR 8.8  /* a letter of the figure's title */
#define TITLE_LINE 19

/* ---- text in lines -------------------------------------------------------------------------- */

/* Where a line of at most `chars` characters ends: at the last blank that fits, before a unit in
 * brackets where the rest fits into the next line, or behind a colon; *next: where the next line
 * begins, at the end of the text behind the last one. */
static size_t line_length(const char *text, int chars, size_t *next)
{
    const char *unit = strstr(text, " [");
    size_t given = strcspn(text, "\n"), end = 0;
    int n = 0;
    for (const char *p = text; p < text + given; p++)
        n += ((unsigned char)*p & 0xc0) != 0x80;
    *next = given + (text[given] == '\n');
    if (n <= chars)
        return given;
    n = 0;
    for (const char *p = text; p < text + given && (n <= chars || !end); p++) {
        if (*p == ' ' || (*p == ':' && (n < chars || !end))) {
            end = (size_t)(p - text) + (*p == ':');
            *next = (size_t)(p - text) + 1;
        }
        n += ((unsigned char)*p & 0xc0) != 0x80;
    }
    if (unit && (size_t)(unit - text) < end && utf8_count(unit + 1) <= chars) {
        end = (size_t)(unit - text);
        *next = end + 1;
    }
    return end ? end : given;
}

int canvas_count_lines(const char *text, int chars)
{
    int n = 0;
    size_t next;
    do {
        line_length(text, chars, &next);
        text += next;
        n++;
    } while (*text);
    return n;
}

void canvas_put(const struct gp *g, struct buf *b, const char *text, int chars, canvas_word *put)
{
    OWN(buf_free) struct buf one = {0};
    int lines = canvas_count_lines(text, chars);
    while (chars > 1 && canvas_count_lines(text, chars - 1) == lines) /* lines of like length */
        chars--;
    chars = g->type == GP_TEX ? INT_MAX : chars; /* whose letters are narrower */
    do {
        size_t next, len = line_length(text, chars, &next);
        buf_reset(&one);
        buf_put(&one, text, len);
        put(g, b, buf_str(&one));
        text += next;
        buf_puts(b, *text ? ".\"\\n\"." : "");
    } while (*text);
    b->failed |= one.failed;
}

/* ---- geometry ------------------------------------------------------------------------------- */

static bool is_narrow(const struct figure_args *a)
{
    return a->width > 0 && (a->height == 0 || a->style.look != LOOK_SCREEN);
}

static void set_cols(struct canvas *p, int cols)
{
    p->cols = cols < 1 ? 1 : cols > p->panels ? p->panels : cols;
    p->rows = (p->panels + p->cols - 1) / p->cols;
}

static int width_of_panels(const struct canvas *p, int width)
{
    assert(p->cols > 0);
    return (width - p->left - p->right - (p->cols - 1) * p->gap_x) / p->cols;
}

static double legend_width(const struct canvas_wish *w)
{
    return w->chars * CANVAS_CHAR + SAMPLE;
}

/* Rows of a legend below panels. */
static void set_key(const struct canvas_wish *w, struct canvas *p)
{
    int all = p->cols * (p->width + p->gap_x) - p->gap_x + p->left + p->right - 14;
    int wide = w->each && !w->cols ? p->width + p->gap_x / 2 : all;
    p->key_columns = (int)fmax(1, fmin(w->entries, wide / legend_width(w)));
    p->key_rows = (w->entries + p->key_columns - 1) / p->key_columns;
}

static void set_rows(const struct canvas_wish *w, struct canvas *p)
{
    int legend = 0;
    p->head = w->head_lines ? w->head_lines * CANVAS_LINE + 8 : 0;
    p->foot =
        w->foot +
        (w->exact ? 0 : p->bottom); /* exact panels have names of axes below the last row only */
    if (p->key_right) {
        p->key_rows = w->entries;
        p->key_columns = 1;
    } else if (w->entries) {
        set_key(w, p);
        legend = p->key_rows * CANVAS_LINE + 12;
    }
    p->foot += w->each ? legend : 0;
    p->below = (w->each ? 0 : legend) + (w->exact ? p->bottom : 0);
    int least = p->key_rows * (CANVAS_LINE + 1);
    p->height = p->height < least ? least : p->height;
    p->height = p->height < w->least ? w->least : p->height;
}

static int height_of_page(const struct canvas *p)
{
    return p->top + p->rows * (p->head + p->height + p->foot) + (p->rows - 1) * p->gap_y + p->below;
}

/* Panels of a figure of a given width. */
static void fit_width(const struct figure_args *a, const struct canvas_wish *w, struct canvas *p)
{
    double least = fmin(LEAST_WIDTH, 0.75 * w->width);
    if (w->each && !w->cols)
        least = fmax(least, legend_width(w));
    double aspect = w->width > 0 ? (double)w->height / w->width : 0.65;
    set_cols(p, w->cols ? w->cols : p->panels);
    while (p->cols > 1 && !w->exact && width_of_panels(p, a->width) < least)
        set_cols(p, p->cols - 1);
    if (w->exact)
        return;
    p->width = width_of_panels(p, a->width);
    p->height = (int)(p->width * fmin(fmax(aspect, 0.45), 0.8));
    p->bottom += 14; /* names of axes may have two lines */
}

static void fit_screen(const struct canvas_wish *w, struct canvas *p)
{
    int most = (1500 - p->left) / (p->width + p->gap_x);
    set_cols(p, w->cols ? w->cols : w->each ? most : p->panels);
}

static const char *title_of(const struct figure_args *a, const struct canvas_wish *w)
{
    return a->title ? a->title : a->untitled ? "" : w->title;
}

/* Size of the page; a figure grows with its title up to twice the width of its panels. */
static void geometry(const struct figure_args *a, const struct canvas_wish *w, struct canvas *p,
                     int *wide, int *high)
{
    const char *title = title_of(a, w);
    bool narrow = is_narrow(a);
    *p = (struct canvas){.panels = w->panels ? w->panels : 1,
                         .width = w->width,
                         .height = w->height,
                         .left = w->left ? w->left : 88,
                         .right = w->right ? w->right : RIGHT,
                         .bottom = w->bottom ? w->bottom : 58,
                         .gap_x = w->gap_x  ? w->gap_x
                                  : w->each ? 84
                                            : 92,
                         .gap_y = w->gap_y ? w->gap_y : 4,
                         .each = w->each,
                         .key_right = w->entries && !w->each && !narrow};
    if (p->key_right)
        p->right = (int)legend_width(w) + 14;
    if (narrow)
        fit_width(a, w, p);
    else
        fit_screen(w, p);
    *wide = p->left + p->cols * (p->width + p->gap_x) - p->gap_x + p->right;
    int text = (int)(TITLE_CHAR * utf8_count(title)) + 28, most = *wide > 560 ? *wide : 560;
    *wide = a->width ? a->width : title[0] && text > *wide ? (text < most ? text : most) : *wide;
    if (a->width && !narrow && !w->exact) {
        while (w->each && !w->cols && p->cols > 1 && width_of_panels(p, *wide) < legend_width(w))
            set_cols(p, p->cols - 1);
        p->width = width_of_panels(p, *wide);
        p->bottom += w->each ? CANVAS_LINE : 0; /* names of axes may have two lines */
    }
    int lines = title[0] ? canvas_count_lines(title, (int)((*wide - 20) / TITLE_CHAR)) : 0;
    p->top = w->top + (lines ? 18 + lines * TITLE_LINE : 12);
    set_rows(w, p);
    *high = height_of_page(p);
    if (a->height && !w->exact)
        p->height -= (*high - a->height + p->rows - 1) / p->rows;
}

void canvas_room(const struct figure_args *a, const struct canvas_wish *w, double *width,
                 double *height)
{
    struct canvas_wish flat = *w;
    struct canvas p;
    int wide, high;
    flat.height = 0;
    flat.least = 0;
    geometry(a, &flat, &p, &wide, &high);
    *width = a->width ? width_of_panels(&p, a->width) : INFINITY;
    *height = a->height ? (double)(a->height - high) / p.rows + p.height : INFINITY;
}

/* Refuse what --size cannot hold; the figure's own size always can. */
static int check_room(const struct canvas_wish *w, const struct canvas *p, struct err *err)
{
    double scale = gp_pixels_per_unit(p->gp.type, &p->gp.style);
    int least = w->exact ? 1 : LEAST,
        need = (int)fmax(w->least, fmax(least, p->key_rows * CANVAS_LINE));
    int more_x = p->width < least ? p->cols * (least - p->width) : 0;
    int more_y = p->height < need ? p->rows * (need - p->height) : 0;
    if (!more_x && !more_y)
        return 0;
    return err_set(err, ERR_USAGE, "%.0fx%.0f is too small for this figure (%.0fx%.0f would do)",
                   p->gp.width * scale, p->gp.height * scale, ceil((p->gp.width + more_x) * scale),
                   ceil((p->gp.height + more_y) * scale));
}

/* ---- script --------------------------------------------------------------------------------- */

static void put_layout(const struct canvas *p, const char *title, struct buf *s)
{
    double w = p->gp.width, h = p->gp.height;
    int row = p->head + p->height + p->foot + p->gap_y;
    int right = p->left + p->cols * (p->width + p->gap_x) - p->gap_x;
    int bottom = p->top + (p->rows - 1) * row + p->head + p->height;
    buf_puts(s, "unset key\nset multiplot layout ");
    buf_printf(s, "%d,%d", p->rows, p->cols);
    if (title[0]) {
        buf_puts(s, " title ");
        canvas_put(&p->gp, s, title, (int)((w - 20) / TITLE_CHAR), gp_text);
        buf_puts(s, " noenhanced font font_title");
    }
    buf_printf(s, " margins screen %.8f,%.8f,%.8f,%.8f spacing screen %.8f,%.8f\n", p->left / w,
               right / w, 1 - bottom / h, 1 - (p->top + p->head) / h, p->gap_x / w,
               (row - p->height) / h);
}

int canvas_open(const struct figure_args *a, const struct canvas_wish *w, struct canvas *p,
                struct err *err)
{
    struct gp *g = &p->gp;
    OWN(buf_free) struct buf title = {0}, own = {0};
    int wide, high;
    geometry(a, w, p, &wide, &high);
    title_sentence(title_of(a, w), &title);
    title_sentence(w->title, &own);
    PASS_ON(buf_check(&title, "title", err));
    PASS_ON(gp_open(g, a->output, a->width ? a->width : wide, a->height ? a->height : high,
                    &a->style, err));
    g->inputs = a->inputs;
    g->made_by = a->made_by;
    PASS_ON(check_room(w, p, err));
    if (!w->exact)
        buf_puts(&g->script, "set border 3 lw 0.8\nset tics out nomirror scale 0.7\n"
                             "set grid xtics ytics lc rgb '#dddddd' lw 0.6 lt 1\n");
    put_layout(p, a->title ? a->title : buf_str(&title), &g->script);
    buf_printf(&g->caption, "%s%s%s.%s%s", a->title ? a->title : "", a->title ? ". " : "",
               buf_str(&own), w->caption[0] && w->caption[0] != ' ' ? " " : "", w->caption);
    return 0;
}

static void put_name(struct canvas *p, const char *what, const char *name, int room)
{
    struct buf *s = &p->gp.script;
    if (!name)
        return;
    buf_printf(s, "set %s ", what);
    canvas_put(&p->gp, s, name, canvas_chars(room), gp_text);
    int lines = canvas_count_lines(name, canvas_chars(room));
    buf_printf(s, " noenhanced offset %s\n",
               strcmp(what, "title") == 0    ? "0,-0.5"
               : strcmp(what, "ylabel") != 0 ? "0,0"
               : lines > 2                   ? "-0.4,0"
               : lines > 1                   ? "-0.3,0" /* clear of the numbers */
                                             : "0,0");
}

int canvas_chars(double room)
{
    return room < 2 * CANVAS_CHAR ? 2 : (int)(room / CANVAS_CHAR);
}

void canvas_panel(struct canvas *p, const char *x_name, const char *y_name, const char *title)
{
    put_name(p, "xlabel", x_name, p->width + p->gap_x / 2);
    put_name(p, "ylabel", y_name, p->height + 2 * (int)fmin(p->top + p->head, p->bottom) - 10);
    put_name(p, "title", title, p->width + p->gap_x - 10);
    p->next++;
}

void canvas_key(struct canvas *p)
{
    double w = p->gp.width, h = p->gp.height;
    int i = p->next - 1, row = p->head + p->height + p->foot + p->gap_y;
    int x = p->left + i % p->cols * (p->width + p->gap_x) - 40;
    int y = p->top + i / p->cols * row + p->head + p->height + p->bottom - 4;
    if (p->key_right) {
        x = p->left + p->cols * (p->width + p->gap_x) - p->gap_x + 14;
        y = p->top + p->head;
    } else if (!p->each) {
        x = 14;
        y += (p->rows - 1 - i / p->cols) * row;
    }
    buf_printf(&p->gp.script,
               "set key at screen %.8f, screen %.8f left top Left reverse noenhanced samplen 2.2 "
               "spacing 1.15 vertical maxrows %d\n",
               fmax(x, 6) / w, 1 - y / h, p->key_rows ? p->key_rows : 1);
}

void canvas_plot(struct canvas *p, int block, const char *format, ...)
{
    char what[512];
    va_list ap;
    va_start(ap, format);
    vsnprintf(what, sizeof what, format, ap);
    va_end(ap);
    buf_puts(&p->gp.script, ", ");
    gp_data_name(&p->gp, "dat");
    buf_printf(&p->gp.script, " index %d %s notitle", block, what);
}

void canvas_entry(struct canvas *p, const char *how, const char *label)
{
    buf_printf(&p->gp.script, ", keyentry with %s title ", how);
    gp_text(&p->gp, &p->gp.script, label);
}

void canvas_end(struct canvas *p)
{
    buf_puts(&p->gp.script, "\nunset key\nunset label\nunset arrow\nunset object\n");
}

/* A text in the middle of x and y, counted from the upper left corner. */
static void put_label(struct canvas *p, const char *text, double x, double y, bool upright)
{
    struct buf *s = &p->gp.script;
    buf_puts(s, "set label ");
    gp_text(&p->gp, s, text);
    buf_printf(s, " at screen %.6f, screen %.6f center%s noenhanced\n", x / p->gp.width,
               1 - y / p->gp.height, upright ? " rotate by 90" : "");
}

void canvas_names(struct canvas *p, const char *x_name, const char *y_name)
{
    double x = p->cols * (p->width + p->gap_x) - p->gap_x;
    double y = p->rows * (p->head + p->height + p->foot + p->gap_y) - p->gap_y - p->foot;
    put_label(p, x_name, p->left + x / 2, p->gp.height - 14, false);
    put_label(p, y_name, 14, p->top + y / 2, true);
}

/* Tics that do not run into each other on a bar of so many units. */
static void bar_tics(int high, double low, double top, bool log, struct buf *b)
{
    int most = high / 28;
    buf_puts(b, "set cbtics out nomirror");
    if (!log)
        buf_printf(b, " %.10g", gp_step(top - low, most < 1 ? 1 : most > 10 ? 10 : most));
    else if (log10(top / low) > high / 22.0)
        buf_printf(b, " %.10g,%.10g", pow(10, ceil(log10(low) - 1e-9)),
                   pow(10, ceil(log10(top / low) / (high / 22.0))));
    buf_puts(b, "\n");
}

void canvas_colours(struct canvas *p, double low, double high, bool log, const char *label)
{
    struct buf *s = &p->gp.script;
    double w = p->gp.width, h = p->gp.height;
    int x = p->left + p->cols * (p->width + p->gap_x) - p->gap_x + 18;
    int y = p->top + p->head,
        tall = p->rows * (p->head + p->height + p->foot + p->gap_y) - p->gap_y - p->foot - p->head;
    buf_printf(s,
               "set colorbox vertical user origin screen %.6f, screen %.6f size screen %.6f, "
               "screen %.6f\n",
               x / w, 1 - (y + tall) / h, 14 / w, tall / h);
    bar_tics(tall, low, high, log, s);
    if (CANVAS_CHAR * utf8_count(label) > p->gp.height - 8) {
        buf_printf(&p->gp.caption, " Colour: %s.", label);
        return;
    }
    double mid = y + tall / 2.0, half = CANVAS_CHAR * utf8_count(label) / 2 + 4;
    mid = mid < half ? half : mid > h - half ? h - half : mid;
    put_label(p, label, x + 82, mid, true); /* a cblabel would stand where long numbers end */
}

int canvas_finish(struct canvas *p, const struct buf *data, struct err *err)
{
    buf_puts(&p->gp.script, "unset multiplot\n");
    if (data) {
        PASS_ON(buf_check(data, "data of the figure", err));
        PASS_ON(gp_data(&p->gp, "dat", buf_str(data), data->len, err));
    }
    return gp_finish(&p->gp, err);
}

void canvas_free(struct canvas *p)
{
    gp_free(&p->gp);
}
