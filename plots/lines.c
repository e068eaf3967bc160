/*
 * lines.c - the drawers of lines and of points: a panel for each metric or key, a line for each
 * series; more series than a panel can show are panels of methods, with the lines of the others in
 * grey behind.
 *
 * Of settings a point that another one of the same scope dominates (it is no worse in both
 * coordinates and better in one) is hollow. A bound (METHOD_BOUND) dominates nobody.
 */
#include "plots/chart.h"
#include "core/mem.h"

#include "analyze/metricfacts.h"

#include <math.h>
#include <string.h>

#define GREY "#d9d9d9"

/* Marks on a line of steps, or of very many points: enough to follow it, few enough to see it. */
#define MARKS 6
#define VERY_MANY 64

/* Densities are quotients of counts; only their mean rounds. */
#define X_ROUNDING 1e-12

static bool has_points(const struct chart *c)
{
    return c->f->draw == draw_points;
}

/* ---- data ----------------------------------------------------------------------------------- */

static void put_point(struct chart *c, const struct chart_point *p)
{
    struct buf *b = &c->data;
    const char *text = p->text ? p->text : "";
    if (c->f->flags & FIGURE_DOMINATED)
        buf_printf(b, "%.10g %.10g %d %.10g %.4g %.4g \"%s\"\n", p->x,
                   fmax(p->y, c->panel[p->panel].edge[1]), p->dominated, p->value, p->lo, p->hi,
                   text);
    else if (has_points(c))
        buf_printf(b, "%.10g %.10g \"%s\"\n", p->x, p->y, text);
    else if (c->f->flags & FIGURE_QUARTILES)
        buf_printf(b, "%.10g %.10g %.10g %.10g\n", p->x, p->y, p->lo, p->hi);
    else if (c->f->flags & FIGURE_SD)
        buf_printf(b, "%.10g %.10g %.6g\n", p->x, p->y, p->lo);
    else
        buf_printf(b, "%.10g %.10g\n", p->x, p->y);
}

/* A block for each series of each panel; one without points has a row of no numbers. */
static void write_lines(struct chart *c)
{
    const char *columns = c->f->flags & FIGURE_DOMINATED
                              ? "x, value drawn, dominated, value, sd of x, sd of value, parameters"
                          : has_points(c)                  ? "x, y, parameters"
                          : c->f->flags & FIGURE_QUARTILES ? "x, median, lower and upper quartile"
                          : c->f->flags & FIGURE_SD        ? "x, mean, sd"
                          : c->f->flags & FIGURE_STEPS     ? "value, share of cells at or below it"
                                                           : "x, mean";
    int64_t i = 0;
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

/* ---- dominated points ----------------------------------------------------------------------- */

/* Is b no worse than a in both coordinates and better in one, by more than rounding? */
static bool dominates(const struct chart_point *b, const struct chart_point *a, double x_sign,
                      double y_sign)
{
    double x = x_sign * (b->x - a->x), y = y_sign * (b->y - a->y), eps = fmax(a->eps, b->eps);
    return x <= X_ROUNDING && y <= eps && (x < -X_ROUNDING || y < -eps);
}

static double sign_of(const char *metric)
{
    enum metric_better b = metric_better(metric);
    return b == BETTER_HIGHER ? -1 : b == BETTER_LOWER ? 1 : 0;
}

static void mark_dominated(struct chart *c)
{
    double x = sign_of(c->f->x);
    for (int64_t i = 0; i < c->n; i++)
        for (int64_t k = 0; k < c->n; k++) {
            struct chart_point *a = &c->p[i];
            const struct chart_point *b = &c->p[k];
            double y = sign_of(c->panel[a->panel].metric);
            if (a->panel == b->panel && a->scope == b->scope && x * y != 0 && !b->bound)
                a->dominated |= dominates(b, a, x, y);
        }
}

/* ---- axes ----------------------------------------------------------------------------------- */

static double value_of(const struct chart_point *p, bool y)
{
    return y ? p->y : p->x;
}

/* An axis of a panel. One of errors is logarithmic where all that is more than rounding is
 * positive; what is rounding is drawn on its lower edge. *edge: that edge, -1e300: none. */
static void axis(struct chart *c, int panel, bool y, const char *metric, double *edge)
{
    struct buf *s = &c->canvas.gp.script;
    const char *name = y ? "y" : "x";
    bool log = metric_axis(metric) == AXIS_LOG ||
               ((c->f->flags & FIGURE_LOG) && strncmp(metric, "nll_delta", 9) == 0);
    double least = INFINITY, top = 0;
    *edge = -1e300;
    for (int64_t i = 0; i < c->n; i++) {
        double v = value_of(&c->p[i], y);
        if (c->p[i].panel != panel)
            continue;
        bool rounding = y ? c->p[i].rounding : fabs(v) < X_ROUNDING;
        log = log && (rounding || v > 0);
        least = rounding ? least : fmin(least, v);
        top = fmax(top, v);
    }
    buf_printf(s, "unset logscale %s\nset format %s '%%g'\n", name, name);
    if (log) {
        *edge = chart_log_floor(least);
        buf_printf(s, "set logscale %s\nset format %s '%s'\nset %srange [%.6g:%.6g]\n", name, name,
                   figure_powers(c->a->output), name, *edge,
                   fmax(pow(10, ceil(log10(fmax(top, *edge) * 1.05))), *edge * 10));
    } else if (!y && metric_axis(metric) == AXIS_SHARE) {
        chart_log_x(least, 1, c->canvas.width, s);
        buf_puts(s, "set xrange [*:1]\n");
    } else
        buf_printf(s, "set %srange [%s]\n", name,
                   metric_axis(metric) == AXIS_SHARE ? "*<0.99:1" : "*:*");
}

static void ideal_corner(struct chart *c, double x_sign, double y_sign)
{
    double x = x_sign > 0 ? 0.012 : 0.988, from = x_sign > 0 ? 0.075 : 0.925;
    double at = x_sign > 0 ? 0.085 : 0.915, y = y_sign > 0 ? 0.045 : 0.955;
    if (x_sign * y_sign == 0)
        return;
    buf_printf(&c->canvas.gp.script,
               "set arrow 1 from graph %.3f, graph %.3f to graph %.3f, graph %.3f head filled size "
               "graph 0.02,20 lc rgb '#009e73' front\n"
               "set label 9 'ideal' at graph %.3f, graph %.3f %s font font_small tc rgb '#009e73' "
               "front\n",
               from, y, x, y_sign > 0 ? 0.012 : 0.99, at, y, x_sign > 0 ? "left" : "right");
}

/* ---- points --------------------------------------------------------------------------------- */

static void put_points(struct chart *c, int panel, int series)
{
    const double *edge = c->panel[panel].edge;
    const struct series *k = &c->l.s[series];
    int block = panel * c->l.n + series;
    if (!(c->f->flags & FIGURE_DOMINATED)) {
        canvas_plot(&c->canvas, block,
                    "using ($1<%.6g?%.6g:$1):($2<%.6g?%.6g:$2) with points pt %d ps "
                    "1.2*point_scale lc rgb '%s'",
                    edge[0], edge[0], edge[1], edge[1], k->point, k->color);
        return;
    }
    canvas_plot(&c->canvas, block, "using 1:2 with lines lw 1.4 dt %d lc rgb '%s'", k->dash,
                k->color);
    for (int hollow = 0; hollow < 2; hollow++)
        canvas_plot(
            &c->canvas, block,
            "using ($3==%d?$1:NaN):2 with points pt %d ps 1.1*point_scale lw 1.2 lc rgb '%s'",
            hollow, k->point - hollow, k->color);
}

#define HOLLOW "hollow: dominated"

static bool any_dominated(const struct chart *c)
{
    bool any = false;
    for (int64_t i = 0; i < c->n; i++)
        any |= c->p[i].dominated;
    return any;
}

/* ---- a panel -------------------------------------------------------------------------------- */

/* Points of a series in a panel. */
static long long points_of(const struct chart *c, int panel, int series)
{
    long long n = 0;
    for (int64_t i = 0; i < c->n; i++)
        n += c->p[i].series == series && c->p[i].panel == panel;
    return n;
}

/* Marks of different lines of steps start at different rows: lines that run together show theirs.
 */
static void put_steps(struct chart *c, int series)
{
    const struct series *k = &c->l.s[series];
    long long rows = points_of(c, 0, series) / MARKS + 1;
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
    if (c->f->flags & FIGURE_BAND)
        canvas_plot(&c->canvas, block,
                    "using 1:3:4 with filledcurves fs transparent solid 0.12 noborder lc rgb '%s'",
                    c->l.s[series].color);
    series_line(&c->l.s[series], how);
    long long n = points_of(c, panel, series);
    if (n > VERY_MANY)
        canvas_plot(&c->canvas, block, "using 1:2 with %s pi %lld", how, n / MARKS);
    else
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
    if (any_dominated(c))
        canvas_entry(&c->canvas, "points pt 6 ps 1*point_scale lw 1.2 lc rgb '#555555'", HOLLOW);
}

static void put_axes(struct chart *c, int panel)
{
    double *edge = c->panel[panel].edge;
    bool settings = c->f->flags & FIGURE_DOMINATED;
    const char *y = c->panel[panel].metric;
    if (!has_points(c)) {
        chart_axes(c, panel, &c->canvas.gp.script);
        return;
    }
    axis(c, panel, false, settings ? c->f->x : c->metrics.items[0], &edge[0]);
    axis(c, panel, true, y, &edge[1]);
    if (settings)
        ideal_corner(c, sign_of(c->f->x), sign_of(y));
}

static void draw_panel(struct chart *c, int facet, int panel)
{
    const struct chart_facet *own = &c->facets.f[facet];
    const struct chart_panel *p = &c->panel[panel];
    bool many = c->facets.n > 1, last = facet + 1 == c->facets.n && panel + 1 == c->panels;
    bool key = many ? panel == 0 : last;
    bool named = c->panels > 1 ? panel == 0 || strcmp(p->metric, c->panel[0].metric) != 0 ||
                                     strcmp(p->y_name, c->panel[0].y_name) != 0
                               : c->canvas.next % c->canvas.cols == 0;
    OWN(buf_free) struct buf y = {0};
    chart_y_name(p, &y);
    canvas_panel(&c->canvas, p->x_name, named ? buf_str(&y) : "",
                 many ? panel == 0 ? own->title : "" : NULL);
    put_axes(c, panel);
    if (key)
        canvas_key(&c->canvas);
    buf_puts(&c->canvas.gp.script, "plot NaN notitle");
    put_grey(c, own);
    for (int k = 0; k < own->n; k++)
        if (has_points(c))
            put_points(c, panel, own->s[k]);
        else
            put_series(c, panel, own->s[k]);
    marks_plot(&c->marks, &c->canvas, c->panels * c->l.n, 0);
    if (key)
        put_entries(c, own);
    canvas_end(&c->canvas);
}

/* ---- figure --------------------------------------------------------------------------------- */

static int open_page(struct chart *c, struct err *err)
{
    const struct chart_facets *f = &c->facets;
    int marks = c->marks.n > 0, name = marks ? (int)strlen(c->marks.name) : 0;
    bool many = f->n > 1, points = has_points(c), grid = c->panels > 1 && !points;
    int hollow = any_dominated(c) ? (int)strlen(HOLLOW) : 0, other = name > hollow ? name : hollow;
    const struct canvas_wish w = {.title = buf_str(&c->title),
                                  .caption = buf_str(&c->caption),
                                  .panels = f->n * c->panels,
                                  .cols = grid ? c->panels : 0,
                                  .width = points && c->panels > 1 ? 330
                                           : c->panels > 2 && grid ? 230
                                           : grid                  ? 360
                                           : many                  ? 250
                                                                   : 560,
                                  .height = points ? 330
                                            : grid ? many ? 150 : 290
                                            : many ? 190
                                                   : 340,
                                  .head_lines = many,
                                  .entries = f->most + marks + (hollow > 0),
                                  .chars = f->longest > other ? f->longest : other,
                                  .each = many};
    return canvas_open(c->a, &w, &c->canvas, err);
}

/* What points leave unsaid. */
static void put_caption(struct chart *c)
{
    bool edge = false;
    if (c->marks.n)
        buf_printf(&c->caption, " Grey marks: %s.", c->marks.name);
    for (int64_t i = 0; i < c->n && has_points(c); i++)
        edge |= c->p[i].rounding;
    if (edge)
        buf_puts(&c->caption, " What is 0 stands on the lower edge of a logarithmic axis.");
}

static int draw(const struct figure *f, const struct figure_args *a, enum series_tell tell,
                struct err *err)
{
    OWN(chart_free) struct chart c;
    chart_init(&c, f, a);
    c.facets_from = has_points(&c) ? SERIES_MOST : 0;
    PASS_ON(marks_parse(a->marks, &c.marks, err));
    PASS_ON(f->points(&c, err));
    PASS_ON(chart_series_done(&c, tell, err));
    chart_sort(&c);
    if (f->flags & FIGURE_DOMINATED)
        mark_dominated(&c);
    PASS_ON(chart_title(&c, err));
    put_caption(&c);
    PASS_ON(open_page(&c, err));
    for (int i = 0; i < c.facets.n; i++)
        for (int k = 0; k < c.panels; k++)
            draw_panel(&c, i, k);
    write_lines(&c);
    return canvas_finish(&c.canvas, &c.data, err);
}

int draw_lines(const struct figure *f, const struct figure_args *a, struct err *err)
{
    return draw(f, a, TELL_DASH_POINT, err);
}

int draw_points(const struct figure *f, const struct figure_args *a, struct err *err)
{
    return draw(f, a, TELL_DASH, err);
}
