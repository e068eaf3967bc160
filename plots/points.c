/*
 * points.c - the drawer of points: what settings cost against what they keep, and a replay against
 * the model with the method inside.
 *
 * A point that another one of the same scope dominates (it is no worse in both coordinates and
 * better in one) is hollow. A bound (METHOD_BOUND) dominates nobody.
 */
#include "plots/chart.h"

#include "analyze/inside.h"
#include "analyze/metricfacts.h"
#include "analyze/params.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Densities are quotients of counts; only their mean rounds. */
#define X_ROUNDING 1e-12

/* ---- settings -------------------------------------------------------------------------------- */

/* The line of a setting: of its method, or of the settings with targets on one metric that have all
 * other parameters in common. A parameter per head and one for all heads are not points of one
 * curve. */
static int line_of(struct chart *c, const struct record *r, struct err *err)
{
    const char *target = params_target(r->params), *per = strchr(target, ':');
    struct buf name = {0};
    int line = -1;
    if (*target)
        buf_printf(&name, "%.*s%.*s%s", (int)(target - r->params), r->params,
                   (int)strcspn(target, "<>="), target, per ? per : "");
    if (!buf_check(&name, "series", err))
        line = chart_series(c, r, *target ? buf_str(&name) : NULL, err);
    buf_free(&name);
    return line;
}

static int add_settings(struct chart *c, const char *metric, struct err *err)
{
    const char *unit;
    double scale = metric_scale(metric, &unit), x_scale = metric_scale(c->f->x, &unit);
    struct stats x, y;
    int scope = 0, rc = 0;
    for (int64_t i = 0; i < c->g.gs.n; i++) {
        const struct group *g = &c->g.gs.g[i];
        struct chart_point p = {.eps = chart_rounding(metric, g->first), .text = g->first->params};
        TRY(group_stats(&c->g.gs, g, c->f->x, &x, NULL, err));
        TRY(group_stats(&c->g.gs, g, metric, &y, NULL, err));
        scope += i > 0 && !same_keys(c->g.gs.g[i - 1].first, g->first, c->g.scope, c->g.n_scope);
        p.series = line_of(c, g->first, err);
        TRY(p.series < 0 ? err->code : 0);
        if (x.n == 0 || y.n == 0 || !(x.mean > 0))
            continue;
        p.scope = scope;
        p.x = x.mean * x_scale;
        p.lo = x.sd * x_scale;
        p.hi = y.sd * scale;
        p.value = y.mean * scale;
        p.rounding = metric_axis(metric) == AXIS_LOG && fabs(y.mean) < p.eps;
        p.y = p.rounding ? 0 : p.value;
        TRY(chart_add(c, &p, err));
    }
out:
    return rc;
}

/* Panels: those of --metrics, which must have data, or those of the usual ones that have. */
int points_of_settings(struct chart *c, struct err *err)
{
    struct str_list all = {0};
    struct buf x = {0};
    double scale;
    int rc = 0;
    TRY(chart_regroup(c, c->f->keys, c->f->x, KEY_COUNT, c->f->flags, err));
    TRY(metric_list(c->metric, &all, err));
    if (all.n > 4)
        FAIL(err, ERR_USAGE, "--metrics: a figure of points has up to 4 panels");
    for (int64_t m = 0; m < all.n; m++) {
        struct stats s;
        int64_t n = 0;
        for (int64_t i = 0; i < c->g.gs.n; i++) {
            TRY(group_stats(&c->g.gs, &c->g.gs.g[i], all.items[m], &s, NULL, err));
            n += s.n;
        }
        if (n)
            str_list_add(&c->metrics, all.items[m]);
        else if (c->a->metrics || (m + 1 == all.n && c->metrics.n == 0))
            TRY(chart_nothing(c->a, all.items[m], err));
    }
    if (c->metrics.failed)
        FAIL(err, ERR_NOMEM, "metrics: out of memory");
    chart_metric_label(c->f->x, &x, &scale);
    for (int64_t m = 0; m < c->metrics.n; m++) {
        chart_panel(c, c->metrics.items[m], buf_str(&x), AXIS_OF_METRIC);
        TRY(add_settings(c, c->metrics.items[m], err));
    }
    for (int64_t i = 0; i < c->n; i++)
        c->has_target |= *params_target(c->p[i].text) != '\0';
out:
    str_list_free(&all);
    buf_free(&x);
    return rc;
}

/* ---- pairs of a replay and a model ------------------------------------------------------------
 */

int points_of_pairs(struct chart *c, struct err *err)
{
    struct inside_point *p = NULL;
    struct buf x = {0}, y = {0};
    double scale, rho;
    int64_t n, kept = 0;
    int rc = 0;

    TRY(metric_list(c->metric, &c->metrics, err));
    if (c->metrics.n != 2)
        FAIL(err, ERR_USAGE,
             "--metrics: two metrics were expected, one of a replay and one of "
             "`lacuna eval`, as in cra_mean,kl_mean");
    const char *const *m = (const char *const *)c->metrics.items;
    TRY(inside_points(c->a->set, m[0], m[1], &p, &n, err));
    chart_metric_label(m[0], &x, &scale);
    chart_metric_label(m[1], &y, &scale);
    buf_puts(&x, ", replay");
    buf_puts(&y, ", inside");
    struct chart_panel *panel = chart_panel(c, m[1], buf_str(&x), AXIS_OF_METRIC);
    snprintf(panel->y_name, sizeof panel->y_name, "%s", buf_str(&y));
    c->l.methods = c->a->methods;
    for (int64_t i = 0; i < n; i++) {
        const struct record *r = p[i].first;
        if (!figure_takes(c->a, r))
            continue;
        struct chart_point q = {.series = series_of(&c->l, r->method, r->method, err),
                                .x = p[i].replay,
                                .y = p[i].inside,
                                .text = r->params,
                                .rounding = p[i].inside < chart_rounding(m[1], r)};
        TRY(q.series < 0 ? err->code : chart_add(c, &q, err));
        p[kept++] = p[i];
    }
    if (kept == 0)
        FAIL(
            err, ERR_INPUT,
            "no setting has both %s of a replay and %s of `lacuna eval`: give directories of both, "
            "with the same methods",
            m[0], m[1]);
    TRY(inside_spearman(p, kept, &rho, err));
    buf_printf(&c->says, "%lld settings", (long long)kept);
    if (!isnan(rho))
        buf_printf(&c->says, "; Spearman's rho %.2f", rho);
out:
    free(p);
    buf_free(&x);
    buf_free(&y);
    return rc;
}

/* ---- dominated points ------------------------------------------------------------------------ */

/* Is b no worse than a in both coordinates and better in one, by more than rounding? */
static bool dominates(const struct chart_point *b, const struct chart_point *a, double x_sign,
                      double y_sign)
{
    double x = x_sign * (b->x - a->x), y = y_sign * (b->y - a->y), eps = fmax(a->eps, b->eps);
    return x <= X_ROUNDING && y <= eps && (x < -X_ROUNDING || y < -eps);
}

static bool is_bound(const struct figure_args *a, const char *method)
{
    for (int i = 0; a->methods && a->methods[i]; i++)
        if (strcmp(a->methods[i]->name, method) == 0)
            return a->methods[i]->flags & METHOD_BOUND;
    return false;
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
            if (a->panel == b->panel && a->scope == b->scope && x * y != 0 &&
                !is_bound(c->a, c->l.s[b->series].method))
                a->dominated |= dominates(b, a, x, y);
        }
}

/* ---- axes ------------------------------------------------------------------------------------ */

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

/* A grey band where settings were to have a density (@density_elem=0.3): within 2 % they have. */
static void target_bands(const struct chart *c, struct buf *s)
{
    double drawn[64];
    char target[64];
    int n = 0;
    snprintf(target, sizeof target, "@%s", c->f->x);
    for (int64_t i = 0; i < c->n && n < 64; i++) {
        const char *v = params_value(c->p[i].text, target);
        double x = v ? strtod(v, NULL) : 0;
        bool seen = x <= 0;
        for (int k = 0; k < n; k++)
            seen |= drawn[k] == x;
        if (seen)
            continue;
        drawn[n++] = x;
        buf_printf(
            s,
            "set object %d rectangle from first %.8g, graph 0 to first %.8g, graph 1 fs solid "
            "0.5 noborder fc rgb '#cccccc' behind\n",
            100 + n, 0.98 * x, 1.02 * x);
    }
}

/* ---- drawing --------------------------------------------------------------------------------- */

/* A block for each series of a panel, empty ones too, so that the index is the series. */
static void write_points(struct chart *c, int panel, double edge)
{
    bool lines = c->f->flags & FIGURE_DOMINATED;
    struct buf *b = &c->data;
    buf_printf(b, "# %s: %s\n", c->panel[panel].metric,
               lines ? "x, value drawn, dominated, value, sd of x, sd of value, parameters"
                     : "x, y, parameters");
    for (int s = 0; s < c->l.n; s++) {
        bool any = false;
        buf_printf(b, "# %s\n", c->l.s[s].name);
        for (int64_t i = 0; i < c->n; i++) {
            const struct chart_point *p = &c->p[i];
            if (p->series != s || p->panel != panel)
                continue;
            any = true;
            if (lines)
                buf_printf(b, "%.10g %.10g %d %.10g %.4g %.4g \"%s\"\n", p->x, fmax(p->y, edge),
                           p->dominated, p->value, p->lo, p->hi, p->text ? p->text : "");
            else
                buf_printf(b, "%.10g %.10g \"%s\"\n", p->x, p->y, p->text ? p->text : "");
        }
        buf_puts(b, any ? "\n\n" : "nan nan 0\n\n\n");
    }
}

static void put_points(struct chart *c, int panel, int series, const double edge[2])
{
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

static void put_legend(struct chart *c)
{
    char how[128];
    for (int i = 0; i < c->l.n; i++) {
        series_line(&c->l.s[i], how);
        canvas_entry(&c->canvas, how, series_label(&c->l.s[i]));
    }
    if (any_dominated(c))
        canvas_entry(&c->canvas, "points pt 6 ps 1*point_scale lw 1.2 lc rgb '#555555'", HOLLOW);
}

static void draw_panel(struct chart *c, int i)
{
    const struct chart_panel *p = &c->panel[i];
    const char *x_metric = c->f->flags & FIGURE_DOMINATED ? c->f->x : c->metrics.items[0];
    struct buf y = {0};
    double edge[2];
    chart_y_name(p, &y);
    canvas_panel(&c->canvas, p->x_name, buf_str(&y), NULL);
    axis(c, i, false, x_metric, &edge[0]);
    axis(c, i, true, p->metric, &edge[1]);
    write_points(c, i, edge[1]);
    if (c->f->flags & FIGURE_DOMINATED) {
        ideal_corner(c, sign_of(c->f->x), sign_of(p->metric));
        target_bands(c, &c->canvas.gp.script);
    }
    if (i + 1 == c->panels)
        canvas_key(&c->canvas);
    buf_puts(&c->canvas.gp.script, "plot NaN notitle");
    for (int s = 0; s < c->l.n; s++)
        put_points(c, i, s, edge);
    if (i + 1 == c->panels)
        put_legend(c);
    canvas_end(&c->canvas);
    buf_free(&y);
}

static void put_caption(struct chart *c)
{
    bool edge = false;
    for (int64_t i = 0; i < c->n; i++)
        edge |= c->p[i].rounding;
    if (c->has_target)
        buf_puts(&c->caption, " Grey bands: densities that settings were to have, within 2 %.");
    if (edge)
        buf_puts(&c->caption, " What is 0 stands on the lower edge of a logarithmic axis.");
}

int draw_points(const struct figure *f, const struct figure_args *a, struct err *err)
{
    struct chart c;
    int rc = 0;

    chart_init(&c, f, a);
    c.facets_from = SERIES_MOST;
    TRY(f->points(&c, err));
    TRY(chart_series_done(&c, TELL_DASH, err));
    TRY(chart_title(&c, err));
    if (f->flags & FIGURE_DOMINATED)
        mark_dominated(&c);
    put_caption(&c);
    chart_sort(&c);
    int hollow = any_dominated(&c), longest = series_longest(&c.l);
    const struct canvas_wish w = {
        .title = buf_str(&c.title),
        .caption = buf_str(&c.caption),
        .panels = c.panels,
        .width = c.panels == 1 ? 560 : 330,
        .height = 330,
        .entries = c.l.n + hollow,
        .chars = hollow && longest < (int)strlen(HOLLOW) ? (int)strlen(HOLLOW) : longest};
    TRY(canvas_open(a, &w, &c.canvas, err));
    for (int i = 0; i < c.panels; i++)
        draw_panel(&c, i);
    TRY(canvas_finish(&c.canvas, &c.data, err));
out:
    chart_free(&c);
    return rc;
}
