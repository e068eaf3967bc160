/*
 * chart.c - panels in rows, legends beside or below them, names of metrics.
 *
 * On a screen panels stand side by side and the legend to their right. Where a width is asked for
 * (and on paper and slides there is always one) panels go to further rows until they are wide
 * enough, and the legend goes below them, in columns.
 */
#include "plots/chart.h"

#include "analyze/metricfacts.h"
#include "core/text.h"
#include "plots/titles.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- geometry ------------------------------------------------------------------------------ */

#define LINE_HEIGHT 19
#define CHAR 7.4
#define SAMPLE 72       /* of a legend beside its text */
#define SAMPLE_LEAST 50 /* of one that stands below, in columns */
#define RIGHT 26        /* of the last panel, where no legend is: half of a tic's 7 letters */
#define LEAST_WIDTH 150 /* of a panel that is not the only one of its row */
#define HEAD 20         /* above a panel, for its title */
#define TITLE_CHAR 8.4  /* a letter of the figure's title, of 12 points */

void chart_legend_room(const struct series_list *l, struct chart_layout *out)
{
    out->legend = l->n ? (int)(SAMPLE + CHAR * series_longest(l)) : 0;
    out->lines = l->n;
}

static bool is_narrow(const struct figure_args *a)
{
    return a->width > 0 && (a->height == 0 || a->style.look != LOOK_SCREEN);
}

static int panel_width(const struct chart *c, int width)
{
    int beside = c->key == KEY_RIGHT || c->key == KEY_EACH_RIGHT ? c->legend : RIGHT;
    int cols = c->cols > 0 ? c->cols : 1;
    return (width - c->left - (cols - 1) * c->gap - beside) / cols;
}

/* Lines of a legend below, and its columns. */
static int key_lines(struct chart *c, int width)
{
    int wide = c->key == KEY_EACH_BELOW ? width : c->left + c->cols * (width + c->gap) - c->gap;
    int one = c->legend - (SAMPLE - SAMPLE_LEAST);
    int columns = one > 0 ? wide / one : 1;
    c->key_columns = columns < 1 ? 1 : columns;
    return (c->legend_lines + c->key_columns - 1) / c->key_columns;
}

static int key_height(struct chart *c)
{
    bool below = c->key == KEY_BELOW || c->key == KEY_EACH_BELOW;
    return below && c->legend_lines ? key_lines(c, c->width) * LINE_HEIGHT + 6 : 0;
}

/* Height of a row of panels: its titles, plotting areas, axes and legends. */
static int row_height(struct chart *c)
{
    return c->head + c->height + c->bottom + (c->key == KEY_EACH_BELOW ? key_height(c) : 0);
}

static int total_height(struct chart *c)
{
    return c->top + c->rows * row_height(c) + c->below + (c->key == KEY_BELOW ? key_height(c) : 0);
}

static void set_cols(struct chart *c, int cols)
{
    c->cols = cols < 1 ? 1 : cols > c->panels ? c->panels : cols;
    c->rows = (c->panels + c->cols - 1) / c->cols;
}

/* Rows and legend of a chart of a given width. */
static void fit_width(const struct chart_layout *l, struct chart *c, int width)
{
    c->left = l->left ? l->left : 88;
    c->bottom += 14; /* names of axes may have two lines */
    c->key = l->each ? KEY_EACH_BELOW : KEY_BELOW;
    c->gap = l->each ? 84 : c->gap;
    set_cols(c, l->cols ? l->cols : c->panels);
    int least = l->each && !l->cols && l->legend > LEAST_WIDTH ? l->legend : LEAST_WIDTH;
    while (c->cols > 1 && panel_width(c, width) < least)
        set_cols(c, c->cols - 1);
    c->width = panel_width(c, width);
    double aspect = l->width > 0 ? (double)l->height / l->width : 0.65;
    c->height = (int)(c->width * fmin(fmax(aspect, 0.45), 0.8));
    c->height = c->height < c->least ? c->least : c->height < 40 ? 40 : c->height;
    c->below = l->below;
    c->narrow = true;
}

/* A row of panels on a screen, or as many as a page is wide. */
static void fit_screen(const struct chart_layout *l, struct chart *c)
{
    int each = l->width + c->gap, most = (1500 - c->left) / each;
    c->key = l->each ? l->cols ? KEY_EACH_RIGHT : KEY_EACH_BELOW : KEY_RIGHT;
    set_cols(c, l->cols ? l->cols : l->each ? most : c->panels);
    c->width = c->key == KEY_EACH_BELOW && l->legend > l->width ? l->legend : l->width;
    c->height = l->height;
    if (c->key == KEY_RIGHT && c->height < l->lines * LINE_HEIGHT)
        c->height = l->lines * LINE_HEIGHT;
    if (c->key == KEY_EACH_RIGHT && c->height + c->bottom < l->lines * LINE_HEIGHT)
        c->height = l->lines * LINE_HEIGHT - c->bottom;
}

/* Margins and plotting areas; *w and *h: the size that holds the figure as wished. */
static void geometry(const struct figure_args *a, const struct chart_layout *l, struct chart *c,
                     int *w, int *h)
{
    const char *title = a->title ? a->title : a->untitled ? "" : l->title;
    int text = title[0] ? 28 + (int)(TITLE_CHAR * (double)strlen(title)) : 0;
    *c = (struct chart){.panels = l->panels,
                        .left = l->left ? l->left : 84,
                        .gap = l->gap ? l->gap : 92,
                        .legend = l->legend ? l->legend : RIGHT,
                        .legend_lines = l->lines,
                        .least = l->least,
                        .head = l->heads ? HEAD : 0,
                        .top = title[0] ? 46 : 14,
                        .bottom = 62};
    if (is_narrow(a)) {
        fit_width(l, c, a->width);
        *w = a->width;
        *h = total_height(c);
    } else {
        fit_screen(l, c);
        int beside = c->key == KEY_EACH_BELOW ? RIGHT : c->legend;
        *w = c->left + c->cols * (c->width + c->gap) - c->gap + beside;
        *w = text > *w ? text : *w;
        *h = total_height(c);
        c->width = panel_width(c, a->width ? a->width : *w);
    }
    if (a->height)
        c->height -= (*h - a->height + c->rows - 1) / c->rows;
}

int chart_panel_width(const struct figure_args *a, const struct chart_layout *l)
{
    struct chart c;
    int w, h;
    geometry(a, l, &c, &w, &h);
    return c.width;
}

/* Refuse what --size cannot hold; the figure's own size always can. */
static int check_room(struct chart *c, int width, int lines, struct err *err)
{
    const struct gp *g = &c->gp;
    int need = c->key == KEY_RIGHT ? lines * LINE_HEIGHT : 0;
    need = need < c->least ? c->least : need;
    int least = need > 40 ? need : 40;
    if (c->width >= 40 && c->height >= least)
        return 0;
    if (c->narrow && c->width < 40)
        return err_set(err, ERR_USAGE,
                       "the figure's width is too small: give it %.1f times the --width",
                       ceil(10.0 * (g->width + c->cols * (40 - c->width)) / g->width) / 10);
    char legend[64] = "";
    if (c->height < need)
        snprintf(legend, sizeof legend, ", whose names take %d lines",
                 c->least && need == c->least ? need / 14 : lines);
    int height = c->height < least ? g->height + c->rows * (least - c->height) : g->height;
    double scale = gp_pixels_per_unit(g->type, &g->style);
    return err_set(err, ERR_USAGE, "%.0fx%.0f is too small for this figure%s (%.0fx%.0f would do)",
                   g->width * scale, g->height * scale, legend,
                   ceil((c->width < 40 ? width : g->width) * scale), ceil(height * scale));
}

static void draw_title(struct chart *c, const char *title)
{
    struct buf *s = &c->gp.script;
    double fits = (c->gp.width - 20) / (TITLE_CHAR * (double)strlen(title) + 1);
    if (!title[0])
        return;
    buf_puts(s, "set label ");
    gp_text(&c->gp, s, title);
    buf_printf(s, " at screen %.6f, screen %.6f left noenhanced font ", 14.0 / c->gp.width,
               1 - 20.0 / c->gp.height);
    if (fits < 1)
        buf_printf(s, "',%.3g'\n", fits < 0.6 ? 7 : 12 * fits);
    else
        buf_puts(s, "font_title\n");
}

static void frame(struct buf *s)
{
    buf_puts(s, "set border 3 lw 0.8\n"
                "set tics out nomirror scale 0.7\n"
                "set xtics out nomirror\nset ytics out nomirror\n"
                "set grid xtics ytics lc rgb '#dddddd' lw 0.6 lt 1\n");
}

int chart_open(const struct figure_args *a, const struct chart_layout *l, struct chart *c,
               struct err *err)
{
    struct buf title = {0};
    int w, h, rc = 0;
    geometry(a, l, c, &w, &h);
    title_sentence(l->title, &title);
    TRY(buf_check(&title, "title", err));
    TRY(figure_open(a, w, h, &c->gp, err));
    TRY(check_room(c, w, l->lines, err));
    frame(&c->gp.script);
    buf_puts(&c->gp.script, "unset key\nset multiplot\n");
    draw_title(c, a->title ? a->title : a->untitled ? "" : buf_str(&title));
    figure_caption(a, l->title, l->caption, &c->gp);
out:
    buf_free(&title);
    return rc;
}

/* Left edge and top of a panel's plotting area. */
static void place(struct chart *c, int i, int *x, int *y)
{
    *x = c->left + i % c->cols * (c->width + c->gap);
    *y = c->top + i / c->cols * row_height(c) + c->head;
}

/* Where a name has two lines: the blank that leaves the longer one shortest, rather after a comma
 * or before the unit than between words. NULL: there is none. */
static const char *line_end(const char *text)
{
    int all = utf8_count(text), least = all, before = 0;
    const char *best = NULL;
    for (const char *p = text; *p; p++) {
        bool part = p > text && (p[-1] == ',' || p[1] == '[');
        int longer = before > all - before ? before : all - before;
        if (*p == ' ' && longer + (part ? 0 : 6) < least) {
            least = longer + (part ? 0 : 6);
            best = p;
        }
        before += ((unsigned char)*p & 0xc0) != 0x80;
    }
    return best;
}

/* Does the name of an axis of `room` units need two lines? LaTeX's letters are narrower. */
static bool too_long(const struct chart *c, const char *text, int room)
{
    return utf8_count(text) * CHAR > room && c->gp.type != GP_TEX && line_end(text);
}

static void x_label(struct chart *c, const char *text, int room)
{
    struct buf *s = &c->gp.script;
    const char *cut = too_long(c, text, room) ? line_end(text) : NULL;
    buf_puts(s, "set xlabel ");
    if (cut) {
        char first[160];
        snprintf(first, sizeof first, "%.*s", (int)(cut - text), text);
        gp_text(&c->gp, s, first);
        buf_puts(s, ".\"\\n\".");
    }
    gp_text(&c->gp, s, cut ? cut + 1 : text);
    buf_puts(s, " noenhanced\n");
}

/* Two lines stand where the margin begins: gnuplot would push them out of the picture when the
 * numbers of the axis are long. x, y: of the panel's upper left corner. */
static void y_label(struct chart *c, const char *text, int x, int y)
{
    struct buf *s = &c->gp.script;
    const char *cut =
        too_long(c, text, c->height + c->head + c->bottom / 2) ? line_end(text) : NULL;
    char first[160];
    if (!cut) {
        buf_puts(s, "set ylabel ");
        gp_text(&c->gp, s, text);
        buf_puts(s, " noenhanced\n");
        return;
    }
    snprintf(first, sizeof first, "%.*s", (int)(cut - text), text);
    buf_puts(s, "set ylabel ''\n");
    for (int line = 0; line < 2; line++) {
        buf_puts(s, "set label ");
        gp_text(&c->gp, s, line ? cut + 1 : first);
        buf_printf(s, " at screen %.8f, screen %.8f center rotate by 90 noenhanced\n",
                   (x - 76.0 + 14 * line) / c->gp.width, 1 - (y + c->height / 2.0) / c->gp.height);
    }
}

void chart_panel(struct chart *c, int i, const char *x_name, const char *y_name)
{
    struct buf *s = &c->gp.script;
    double w = c->gp.width, h = c->gp.height;
    int x, y;
    place(c, i, &x, &y);
    buf_printf(s,
               "set lmargin at screen %.8f\nset rmargin at screen %.8f\n"
               "set tmargin at screen %.8f\nset bmargin at screen %.8f\n",
               x / w, (x + c->width) / w, 1 - y / h, 1 - (y + c->height) / h);
    x_label(c, x_name, c->width + c->gap / 2);
    y_label(c, y_name, x, y);
    if (i == c->panels - 1 && (c->key == KEY_RIGHT || c->key == KEY_BELOW))
        chart_key(c, i);
}

void chart_head(struct chart *c, int i, const char *title)
{
    int x, y;
    place(c, i, &x, &y);
    buf_puts(&c->gp.script, "set label ");
    gp_text(&c->gp, &c->gp.script, title);
    buf_printf(&c->gp.script, " at screen %.8f, screen %.8f left noenhanced\n",
               (double)x / c->gp.width, 1 - (double)(y - HEAD / 2) / c->gp.height);
}

void chart_key(struct chart *c, int i)
{
    double w = c->gp.width, h = c->gp.height;
    int x, y, row = i / c->cols;
    place(c, c->key == KEY_RIGHT ? c->cols - 1 : i, &x, &y);
    c->key_lines = 0;
    if (c->key == KEY_RIGHT || c->key == KEY_EACH_RIGHT) {
        buf_printf(&c->gp.script,
                   "set key at screen %.8f, screen %.8f left top Left reverse noenhanced "
                   "samplen 2.2 spacing 1.15\n",
                   (x + c->width + 14) / w, 1 - y / h);
        return;
    }
    c->key_lines = key_lines(c, c->width);
    c->key_x = c->key == KEY_BELOW ? 14 : x - 40;
    c->key_y = y + c->height + c->bottom - 4;
    if (c->key == KEY_BELOW)
        c->key_y += (c->rows - 1 - row) * row_height(c);
}

/* gnuplot gives a legend no more lines than the plot beside it has room for, so one below is a plot
 * of its own. */
static void legend_below(struct chart *c)
{
    struct buf *s = &c->gp.script;
    double w = c->gp.width, h = c->gp.height;
    int high = c->key_lines * LINE_HEIGHT + 6;
    buf_printf(s,
               "unset border\nunset tics\nunset grid\nunset xlabel\nunset ylabel\n"
               "unset logscale\nunset object\nunset arrow\nset lmargin at screen %.8f\n"
               "set rmargin at screen 0.999\nset tmargin at screen %.8f\n"
               "set bmargin at screen %.8f\nset xrange [0:1]\nset yrange [0:1]\n"
               "set key at screen %.8f, screen %.8f left top Left reverse noenhanced samplen 2.2 "
               "spacing 1.15 vertical maxrows %d\nplot -1 notitle%s\n",
               c->key_x / w, 1 - c->key_y / h, 1 - (c->key_y + high) / h, c->key_x / w,
               1 - c->key_y / h, c->key_lines, buf_str(&c->entries));
    buf_puts(s, "unset key\nset xrange [*:*]\nset yrange [*:*]\n");
    frame(s);
}

void chart_end(struct chart *c)
{
    if (!c->key_lines)
        buf_puts(&c->gp.script, buf_str(&c->entries));
    buf_puts(&c->gp.script, "\nunset label\n");
    if (c->key_lines && c->entries.len)
        legend_below(c);
    c->gp.script.failed |= c->entries.failed;
    buf_reset(&c->entries);
    c->key_lines = 0;
}

void chart_entry_as(struct chart *c, const char *how, const char *label)
{
    buf_printf(&c->entries, ", keyentry with %s title ", how);
    gp_text(&c->gp, &c->entries, label);
}

void chart_entry(struct chart *c, const struct series *k, const char *label)
{
    char how[128];
    snprintf(how, sizeof how, "linespoints lw 1.4 dt %d pt %d ps 1*point_scale lc rgb '%s'",
             k->dash, k->point, k->color);
    chart_entry_as(c, how, label);
}

void chart_legend(struct chart *c, const struct series_list *l)
{
    for (int i = 0; i < l->n; i++)
        chart_entry(c, &l->s[i], series_label(&l->s[i]));
}

int chart_finish(struct chart *c, const struct buf *data, struct err *err)
{
    int rc = 0;
    buf_puts(&c->gp.script, "unset multiplot\n");
    TRY(buf_check(data, "data of the figure", err));
    TRY(gp_data(&c->gp, "dat", buf_str(data), data->len, err));
    TRY(gp_finish(&c->gp, err));
out:
    return rc;
}

void chart_free(struct chart *c)
{
    gp_free(&c->gp);
    buf_free(&c->entries);
}

/* ---- metrics ------------------------------------------------------------------------------- */

void chart_metric_name(const char *metric, struct buf *b)
{
    const char *label = metric_label(metric);
    if (strcmp(label, metric) != 0)
        buf_puts(b, label);
    else
        metric_title(metric, b);
}

/* A recall's name says what it is a share of; that of a density does not. */
void chart_metric_label(const char *metric, struct buf *b, double *scale)
{
    const char *unit;
    *scale = metric_scale(metric, &unit);
    const struct metric_def *def = metric_def_find(metric);
    bool told = def && def->label && def->section && strcmp(def->section, "recall") == 0;
    chart_metric_name(metric, b);
    if (unit[0] && !told)
        buf_printf(b, " [%s]", unit);
}

const char *chart_range(const char *metric)
{
    const struct metric_def *def = metric_def_find(metric);
    enum metric_axis axis = metric_axis(metric);
    if (axis == AXIS_SHARE)
        return metric_better(metric) == BETTER_HIGHER ? "*<0.99:1" : "0:1";
    return axis == AXIS_LOG || !def ? "*:*" : "0<*:*";
}

double chart_rounding(const char *metric, const struct record *r)
{
    if (metric_noise(metric) != NOISE_ROUNDING)
        return 0;
    return strcmp(r->precision, "f64") == 0 ? 1e-12 : 1e-6;
}

double chart_log_floor(double least)
{
    return isinf(least) ? 1e-3 : pow(10, floor(log10(least) - 0.3));
}

int metric_list(const char *text, struct str_list *out, struct err *err)
{
    for (const char *p = text; *p;) {
        size_t len = strcspn(p, ",");
        char one[96];
        if (len >= sizeof one)
            return err_set(err, ERR_USAGE, "--metric: '%.*s' is too long", (int)len, p);
        snprintf(one, sizeof one, "%.*s", (int)len, p);
        if (len)
            str_list_add(out, one);
        p += len + (p[len] == ',');
    }
    return out->n ? 0 : err_set(err, ERR_USAGE, "--metric: no metric given");
}
