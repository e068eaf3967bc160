/*
 * grids.c - the drawer of grids: cells with their colours and, where there is room, their numbers;
 * a panel for each setting, one colour bar.
 */
#include "plots/drawers.h"

#include "analyze/metricfacts.h"
#include "core/text.h"
#include "plots/palette.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TITLE_CHARS 28 /* of a line of a panel's title, for which a figure makes room */

/* ---- numbers --------------------------------------------------------------------------------- */

/* "3e-3" */
static void short_power(double x, char text[32])
{
    snprintf(text, 32, "%.0e", x);
    char *power = strchr(text, 'e');
    if (power)
        snprintf(power + 1, 8, "%d", atoi(power + 1));
}

/* Number of a cell in few characters; `size` is the largest magnitude of the figure. No value but 0
 * is written 0, no share below 1 is written 1. */
static void cell_text(double x, double size, char text[32])
{
    int digits = size >= 99.95 ? 0 : size >= 9.995 ? 1 : size >= 0.05 ? 2 : -1;
    snprintf(text, 32, "%.*f", digits < 0 ? 0 : digits, x);
    if (x == 0)
        snprintf(text, 32, "0");
    else if (digits < 0 || strtod(text, NULL) == 0)
        short_power(x, text);
    else if (digits == 2 && x < 1 && strtod(text, NULL) == 1)
        snprintf(text, 32, ">0.99");
}

/* Number of a cell: 1 and 0 are written for nothing else. */
static void grade_text(double x, char text[32])
{
    snprintf(text, 32, fabs(x) < 9.95 ? "%.2f" : "%.0f", x);
    if (x == 0 || x == 1)
        snprintf(text, 32, "%.0f", x);
    else if (strcmp(text, "1.00") == 0 && x < 1)
        snprintf(text, 32, ">.99");
    else if (strcmp(text, "0.00") == 0)
        snprintf(text, 32, "<.01");
}

static void number_of(const struct chart *c, double x, double size, char text[32])
{
    if (c->grid.grade)
        grade_text(x, text);
    else if (c->grid.x_names.n)
        snprintf(text, 32, "%.3g", x);
    else
        cell_text(x, size, text);
}

/* What the colours span: of shares 0 to 1, of differences as much below 0 as above. */
static void colour_range(const struct chart *c, double *low, double *high)
{
    const struct chart_grid *g = &c->grid;
    bool share = metric_axis(c->metric) == AXIS_SHARE && !g->difference && !g->upwards;
    *low = share || g->grade ? 0 : INFINITY;
    *high = share || g->grade ? 1 : -INFINITY;
    for (int64_t i = 0; i < (int64_t)g->panels * g->rows * g->cols && !share; i++)
        if (!isnan(g->v[i])) {
            *low = fmin(*low, g->v[i]);
            *high = fmax(*high, g->v[i]);
        }
    if (isinf(*low))
        *low = *high = 0;
    if (g->difference) {
        *high = fmax(fabs(*low), fabs(*high));
        *low = -*high;
    }
    *low = isnan(c->a->low) ? *low : c->a->low;
    *high = isnan(c->a->high) ? *high : c->a->high;
    if (*high - *low < 1e-12) {
        double pad = *high != 0 ? fabs(*high) * 0.05 : 0.5;
        *low -= pad;
        *high += pad;
    }
}

/* A block for each panel: column, row, value, label, 1 = the text is light, names. */
static void write_cells(struct chart *c, double low, double high)
{
    const struct chart_grid *g = &c->grid;
    struct buf *b = &c->data;
    for (int i = 0; i < g->panels; i++) {
        buf_printf(b, "# %s: column, row, %s, label%s\n", g->names.items[i], c->metric,
                   g->grade ? "" : ", light text");
        for (int k = 0; k < g->rows * g->cols; k++) {
            double x = g->v[(int64_t)i * g->rows * g->cols + k], at = (x - low) / (high - low);
            char text[32];
            if (isnan(x) && g->upwards)
                continue;
            number_of(c, x, fmax(fabs(low), fabs(high)), text);
            buf_printf(b, "%d %d %.*g \"%s\"", k % g->cols, g->first_row + k / g->cols,
                       g->upwards ? 10 : 8, x, isnan(x) ? "" : text);
            if (!g->grade)
                buf_printf(b, " %d", g->difference ? fabs(at - 0.5) > 0.42 : at < 0.55);
            if (g->upwards)
                buf_printf(b, " \"%s\" \"%s\"", g->x_names.items[k % g->cols],
                           g->y_names.items[k / g->cols]);
            buf_puts(b, "\n");
        }
        buf_puts(b, "\n\n");
    }
}

/* ---- layout ---------------------------------------------------------------------------------- */

static int longest_title(const struct chart *c)
{
    int longest = 0;
    for (int64_t i = 0; i < c->grid.titles.n; i++)
        for (const char *t = c->grid.titles.items[i]; *t;) {
            int n = (int)strcspn(t, "\n");
            longest = n > longest ? n : longest;
            t += n + (t[n] == '\n');
        }
    return longest < TITLE_CHARS ? longest : TITLE_CHARS;
}

static int title_lines(const struct chart *c, int chars)
{
    int most = 0;
    for (int64_t i = 0; i < c->grid.titles.n; i++) {
        int n = canvas_count_lines(c->grid.titles.items[i], chars);
        most = n > most && c->grid.titles.items[i][0] ? n : most;
    }
    return most;
}

/* Panels of whole cells: as large as wished, or as a given width and height have room for. */
static void set_panels(const struct chart *c, struct canvas_wish *w)
{
    const struct chart_grid *g = &c->grid;
    const struct figure_args *a = c->a;
    int text = (int)(CANVAS_CHAR * longest_title(c)) + 10;
    double cell_x = g->cell_x, cell_y = g->cell_y;
    w->cols = g->panels <= 3 ? g->panels : (int)ceil(sqrt(g->panels));
    w->gap_x = 14;
    if (a->width) {
        while (w->cols > 1 && canvas_panel_width(a, w) < (text < 90 ? text : 90))
            w->cols--;
        cell_x = fmin(canvas_panel_width(a, w) / g->cols, a->height ? INFINITY : 1.5 * g->cell_x);
    } else if (text > g->cols * cell_x + w->gap_x)
        w->gap_x = 30; /* more would bring titles near the colour bar */
    w->width = (int)(cell_x >= 2 ? floor(cell_x) * g->cols : cell_x * g->cols);
    w->head_lines = title_lines(c, canvas_chars(w->width + w->gap_x - 10));
    if (a->width)
        cell_y = fmin(cell_x * g->cell_y / g->cell_x, canvas_panel_height(a, w) / g->rows);
    w->height = (int)(cell_y >= 2 ? floor(cell_y) * g->rows : cell_y * g->rows);
    if (!a->height && w->height < 48)
        w->height = 48;
    if (!a->width && w->width < 48)
        w->width = 48;
}

/* ---- drawing --------------------------------------------------------------------------------- */

static void put_names(struct chart *c, char letter, const struct str_list *names, bool shown)
{
    struct buf *s = &c->canvas.gp.script;
    buf_printf(s, "set %ctics out nomirror noenhanced (", letter);
    for (int64_t k = 0; k < names->n; k++) {
        buf_puts(s, k ? ", " : "");
        gp_tic(&c->canvas.gp, s, shown ? names->items[k] : "");
        buf_printf(s, " %lld", (long long)k);
    }
    buf_puts(s, ")\n");
}

static void put_axes(struct chart *c, int i)
{
    const struct chart_grid *g = &c->grid;
    struct canvas *canvas = &c->canvas;
    struct buf *s = &canvas->gp.script;
    double top = g->first_row - 0.5, bottom = top + g->rows;
    bool leftmost = i % canvas->cols == 0, lowest = i + canvas->cols >= g->panels;
    buf_printf(s, "set xrange [-0.5:%.1f]\nset yrange [%.1f:%.1f]\n", g->cols - 0.5,
               g->upwards ? top : bottom, g->upwards ? bottom : top);
    if (g->x_names.n) {
        put_names(c, 'x', &g->x_names, lowest);
        put_names(c, 'y', &g->y_names, leftmost);
        return;
    }
    buf_printf(s,
               "set xtics 0,%g out nomirror format '%s'\nset ytics 0,%g out nomirror format '%s'\n",
               gp_count_step(g->cols, canvas->width / 24 + 1), lowest ? "%.0f" : "",
               gp_count_step(g->rows, canvas->height / 18 + 1), leftmost ? "%.0f" : "");
}

/* Cells are boxes: gnuplot draws no image of a single row or column. */
static void draw_panel(struct chart *c, int i, double low, double high, const char *bar)
{
    const struct chart_grid *g = &c->grid;
    struct canvas *canvas = &c->canvas;
    struct buf *s = &canvas->gp.script;
    bool numbers =
        canvas->width >= (g->grade ? 24 : 34) * g->cols && canvas->height >= 14 * g->rows;
    canvas_panel(canvas, NULL, NULL, g->titles.n ? g->titles.items[i] : NULL);
    put_axes(c, i);
    if (i + 1 == g->panels)
        canvas_colours(canvas, low, high, false, bar);
    buf_puts(s, "plot NaN notitle");
    canvas_plot(canvas, i,
                "using 1:2:($1-0.5):($1+0.5):($2-0.5):($2+0.5):3 with boxxyerror fs solid noborder "
                "lc palette");
    if (numbers && g->grade)
        canvas_plot(canvas, i, "using 1:2:4 with labels noenhanced font font_small");
    for (int light = 0; light < 2 && numbers && !g->grade; light++)
        canvas_plot(canvas, i,
                    "using 1:2:($5==%d?strcol(4):'') with labels noenhanced font font_small tc rgb "
                    "'%s'",
                    light, light ? "#ffffff" : "#000000");
    canvas_end(canvas);
}

static int render(struct chart *c, struct err *err)
{
    struct buf bar = {0};
    double low, high, scale;
    int rc = 0;

    colour_range(c, &low, &high);
    chart_metric_label(c->metric, &bar, &scale);
    struct canvas_wish w = {.title = buf_str(&c->title),
                            .caption = buf_str(&c->caption),
                            .panels = c->grid.panels,
                            .right = 112,
                            .gap_y = 14,
                            .exact = true};
    set_panels(c, &w);
    TRY(canvas_open(c->a, &w, &c->canvas, err));
    write_cells(c, low, high);
    struct buf *s = &c->canvas.gp.script;
    if (c->grid.grade)
        palette_grade(metric_better(c->metric) == BETTER_LOWER, s);
    else
        (c->grid.difference ? palette_diverging : palette_viridis)(s);
    buf_printf(s,
               "set border lw 0.6\nset tics scale 0.6\nunset colorbox\nset cbrange [%.8g:%.8g]\n",
               low, high);
    canvas_names(&c->canvas, c->grid.x_name, c->grid.y_name);
    for (int i = 0; i < c->grid.panels; i++)
        draw_panel(c, i, low, high, buf_str(&bar));
    TRY(canvas_finish(&c->canvas, &c->data, err));
out:
    buf_free(&bar);
    return rc;
}

int draw_grid(const struct figure *f, const struct figure_args *a, struct err *err)
{
    struct chart c;
    int rc = 0;

    chart_init(&c, f, a);
    TRY(f->points(&c, err));
    if (c.grid.titles.failed || c.grid.names.failed || c.grid.x_names.failed)
        FAIL(err, ERR_NOMEM, "names of panels: out of memory");
    TRY(chart_title(&c, err));
    TRY(render(&c, err));
out:
    chart_free(&c);
    return rc;
}
