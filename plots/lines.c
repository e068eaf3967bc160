/*
 * lines.c - the drawer of lines: a panel for each metric or key, a line for each series; more
 * series than a panel can show are panels of methods, with the lines of the others in grey behind.
 */
#include "plots/chart.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GREY "#d9d9d9"

/* Marks on a line of steps: enough to follow it, few enough to see it. */
#define MARKS 6

/* ---- data ------------------------------------------------------------------------------------ */

static void put_point(const struct chart *c, const struct chart_point *p)
{
    struct buf *b = (struct buf *)&c->data;
    buf_printf(b, "%.10g %.10g", p->x, p->y);
    if (c->f->flags & FIGURE_SD)
        buf_printf(b, " %.6g", p->lo);
    if (c->f->flags & FIGURE_QUARTILES)
        buf_printf(b, " %.10g %.10g", p->lo, p->hi);
    buf_puts(b, "\n");
}

/* A block for each series of each panel; one without points has a row of no numbers. */
static void write_lines(struct chart *c)
{
    const char *columns = c->f->flags & FIGURE_QUARTILES ? "x, median, lower and upper quartile"
                          : c->f->flags & FIGURE_SD      ? "x, mean, sd"
                          : c->f->flags & FIGURE_STEPS   ? "value, share of cells at or below it"
                                                         : "x, mean";
    int64_t i = 0;
    chart_sort(c);
    for (int panel = 0; panel < c->panels; panel++)
        for (int s = 0; s < c->l.n; s++) {
            bool any = false;
            if (c->panels > 1)
                buf_printf(&c->data, "# panel %d, %s against %s\n", panel, c->panel[panel].metric,
                           c->panel[panel].x_name);
            buf_printf(&c->data, "# %s: %s\n", c->l.s[s].name, columns);
            for (; i < c->n && c->p[i].panel == panel && c->p[i].series == s; i++, any = true)
                put_point(c, &c->p[i]);
            buf_puts(&c->data, any ? "\n\n" : "nan nan nan nan\n\n\n");
        }
    marks_data(&c->marks, &c->data);
}

/* ---- a panel --------------------------------------------------------------------------------- */

/* Marks of different lines of steps start at different rows: lines that run together show theirs.
 */
static void put_steps(struct chart *c, int series)
{
    const struct series *k = &c->l.s[series];
    long long rows = 0;
    for (int64_t i = 0; i < c->n; i++)
        rows += c->p[i].series == series;
    rows = rows / MARKS + 1;
    canvas_plot(&c->canvas, series, "using 1:2 with steps lw 1.4 dt %d lc rgb '%s'", k->dash,
                k->color);
    canvas_plot(&c->canvas, series,
                "every %lld::%lld using 1:2 with points pt %d ps 0.9*point_scale lc rgb '%s'", rows,
                series % rows, k->point, k->color);
}

static void put_series(struct chart *c, int panel, int series)
{
    int block = panel * c->l.n + series;
    char how[128];
    if (c->f->flags & FIGURE_STEPS) {
        put_steps(c, series);
        return;
    }
    series_line(&c->l.s[series], how);
    canvas_plot(&c->canvas, block, "using 1:2 with %s", how);
}

static bool in_facet(const struct chart_facet *f, int i)
{
    for (int k = 0; k < f->n; k++)
        if (f->s[k] == i)
            return true;
    return false;
}

static void put_grey(struct chart *c, const struct chart_facet *own)
{
    if (c->facets.n == 1 || c->split || !(c->f->flags & FIGURE_GREY))
        return;
    for (int s = 0; s < c->l.n; s++)
        if (!in_facet(own, s))
            canvas_plot(&c->canvas, s, "using 1:2 with %s lw 0.8 dt 1 lc rgb '" GREY "'",
                        c->f->flags & FIGURE_STEPS ? "steps" : "lines");
}

/* A line through many values of a parameter needs no name beside its panel's. */
static void put_entries(struct chart *c, const struct chart_facet *own)
{
    char how[128];
    for (int k = 0; k < own->n; k++) {
        const char *label = chart_facet_label(&c->facets, &c->l.s[own->s[k]]);
        series_line(&c->l.s[own->s[k]], how);
        if (!c->through || c->facets.n == 1 || own->n > 1 || strcmp(label, "defaults") != 0)
            canvas_entry(&c->canvas, how, label);
    }
    marks_entry(&c->marks, &c->canvas);
}

static void draw_panel(struct chart *c, int facet, int panel)
{
    const struct chart_facet *own = &c->facets.f[facet];
    const struct chart_panel *p = &c->panel[panel];
    bool many = c->facets.n > 1, last = facet + 1 == c->facets.n && panel + 1 == c->panels;
    bool named = c->panels > 1 ? panel == 0 || strcmp(p->metric, c->panel[0].metric) != 0 ||
                                     strcmp(p->y_name, c->panel[0].y_name) != 0
                               : c->canvas.next % c->canvas.cols == 0;
    struct buf y = {0};
    chart_y_name(p, &y);
    canvas_panel(&c->canvas, p->x_name, named ? buf_str(&y) : "",
                 many ? panel == 0 ? own->title : "" : NULL);
    chart_axes(c, panel, &c->canvas.gp.script);
    if (many ? panel == 0 : last)
        canvas_key(&c->canvas);
    buf_puts(&c->canvas.gp.script, "plot NaN notitle");
    put_grey(c, own);
    for (int k = 0; k < own->n; k++)
        put_series(c, panel, own->s[k]);
    marks_plot(&c->marks, &c->canvas, c->panels * c->l.n, 0);
    if (many ? panel == 0 : last)
        put_entries(c, own);
    canvas_end(&c->canvas);
    buf_free(&y);
}

/* ---- figure ---------------------------------------------------------------------------------- */

static int open_page(struct chart *c, struct err *err)
{
    const struct chart_facets *f = &c->facets;
    int marks = c->marks.n > 0, name = marks ? (int)strlen(c->marks.name) : 0;
    bool many = f->n > 1, grid = c->panels > 1;
    const struct canvas_wish w = {.title = buf_str(&c->title),
                                  .caption = buf_str(&c->caption),
                                  .panels = f->n * c->panels,
                                  .cols = grid ? c->panels : 0,
                                  .width = c->panels > 2 ? 230
                                           : grid        ? 360
                                           : many        ? 250
                                                         : 560,
                                  .height = grid   ? many ? 150 : 290
                                            : many ? 190
                                                   : 340,
                                  .head_lines = many,
                                  .entries = f->most + marks,
                                  .chars = f->longest > name ? f->longest : name,
                                  .each = many};
    return canvas_open(c->a, &w, &c->canvas, err);
}

int draw_lines(const struct figure *f, const struct figure_args *a, struct err *err)
{
    struct chart c;
    int rc = 0;

    chart_init(&c, f, a);
    TRY(marks_parse(a->marks, &c.marks, err));
    TRY(f->points(&c, err));
    TRY(chart_series_done(&c, TELL_DASH_POINT, err));
    if (c.marks.n)
        buf_printf(&c.caption, " Grey marks: %s.", c.marks.name);
    TRY(chart_title(&c, err));
    TRY(open_page(&c, err));
    write_lines(&c);
    for (int i = 0; i < c.facets.n; i++)
        for (int k = 0; k < c.panels; k++)
            draw_panel(&c, i, k);
    TRY(canvas_finish(&c.canvas, &c.data, err));
out:
    chart_free(&c);
    return rc;
}
