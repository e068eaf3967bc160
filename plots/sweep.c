/*
 * sweep.c - the figure "sweep": a metric over two parameters of a method, one cell per setting.
 *
 * All other parameters are the same in every cell: settings that differ in them are refused with
 * what tells them apart, because a cell may hold one setting only.
 */
#include "plots/chart.h"

#include "analyze/metricfacts.h"
#include "analyze/params.h"
#include "core/mem.h"
#include "plots/palette.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Most values of an axis. */
#define VALUES_MOST 64

struct axis {
    const char *name;
    char values[VALUES_MOST][48];
    int n;
};

struct sweep {
    struct chart_groups g;
    const char *metric;
    double scale;
    struct axis x, y;
    double *cells; /* [y.n][x.n], NAN = no setting; owned */
    double low, high;
    struct buf rest; /* method and the parameters that all settings share */
};

static int by_value(const void *a, const void *b)
{
    return natural_compare(a, b);
}

static int value_of(const struct record *r, const char *name, char text[48], struct err *err)
{
    struct buf b = {0};
    int rc = 0;
    if (!record_param(r, name, &b))
        rc = err_set(err, ERR_INPUT, "method %s has no parameter '%s': choose one with --method",
                     r->method, name);
    else
        snprintf(text, 48, "%s", buf_str(&b));
    buf_free(&b);
    return rc;
}

static int add_value(struct axis *a, const struct record *r, struct err *err)
{
    char text[48];
    int rc = value_of(r, a->name, text, err);
    if (rc)
        return rc;
    for (int i = 0; i < a->n; i++)
        if (strcmp(a->values[i], text) == 0)
            return 0;
    if (a->n == VALUES_MOST)
        return err_set(err, ERR_INPUT, "%s has more than %d values: choose with --where", a->name,
                       VALUES_MOST);
    snprintf(a->values[a->n++], sizeof *a->values, "%s", text);
    return 0;
}

static int find_axes(struct sweep *q, struct err *err)
{
    int rc = 0;
    for (int64_t i = 0; i < q->g.gs.n; i++) {
        TRY(add_value(&q->x, q->g.gs.g[i].first, err));
        TRY(add_value(&q->y, q->g.gs.g[i].first, err));
    }
    qsort(q->x.values, (size_t)q->x.n, sizeof *q->x.values, by_value);
    qsort(q->y.values, (size_t)q->y.n, sizeof *q->y.values, by_value);
    if (q->x.n * q->y.n < 2)
        FAIL(err, ERR_INPUT, "%s and %s have one value each: nothing was swept", q->x.name,
             q->y.name);
out:
    return rc;
}

static int place(const struct axis *a, const struct record *r, struct err *err)
{
    char text[48];
    if (value_of(r, a->name, text, err))
        return -1;
    int i = 0;
    while (strcmp(a->values[i], text) != 0)
        i++;
    return i;
}

/* Scope, method and the other parameters: of all settings the same. */
static int check_rest(struct sweep *q, const struct record *r, struct err *err)
{
    struct buf one = {0}, two = {0}, name = {0};
    int rc = 0;
    params_without(r->params, q->x.name, &one);
    params_without(buf_str(&one), q->y.name, &two);
    chart_name(&q->g, r, buf_str(&two), &name);
    TRY(buf_check(&name, "settings", err));
    if (!q->rest.len)
        buf_puts(&q->rest, buf_str(&name));
    else if (strcmp(buf_str(&q->rest), buf_str(&name)) != 0)
        FAIL(err, ERR_USAGE,
             "'%s' and '%s' differ in more than %s and %s: choose one with --method, --params or "
             "--where",
             buf_str(&q->rest), buf_str(&name), q->x.name, q->y.name);
    TRY(buf_check(&q->rest, "settings", err));
out:
    buf_free(&one);
    buf_free(&two);
    buf_free(&name);
    return rc;
}

static int fill(struct sweep *q, struct err *err)
{
    struct stats s;
    int64_t n = (int64_t)q->x.n * q->y.n;
    int rc = 0;
    TRY(mem_alloc(&q->cells, n, sizeof *q->cells, "cells", err));
    for (int64_t i = 0; i < n; i++)
        q->cells[i] = NAN;
    q->low = INFINITY;
    q->high = -INFINITY;
    for (int64_t i = 0; i < q->g.gs.n; i++) {
        const struct group *g = &q->g.gs.g[i];
        TRY(check_rest(q, g->first, err));
        TRY(group_stats(&q->g.gs, g, q->metric, &s, NULL, err));
        int x = place(&q->x, g->first, err), y = place(&q->y, g->first, err);
        if (x < 0 || y < 0)
            FAIL(err, ERR_INPUT, "a setting without %s or %s", q->x.name, q->y.name);
        if (s.n == 0)
            continue;
        double v = s.mean * q->scale;
        q->cells[y * q->x.n + x] = v;
        q->low = fmin(q->low, v);
        q->high = fmax(q->high, v);
    }
out:
    return rc;
}

static void write_cells(const struct sweep *q, double low, double high, struct buf *b)
{
    buf_printf(b, "# %s: column, row, %s, label, light text, %s, %s\n", buf_str(&q->rest),
               q->metric, q->x.name, q->y.name);
    for (int y = 0; y < q->y.n; y++)
        for (int x = 0; x < q->x.n; x++) {
            double v = q->cells[y * q->x.n + x];
            if (!isnan(v))
                buf_printf(b, "%d %d %.10g \"%.3g\" %d \"%s\" \"%s\"\n", x, y, v, v,
                           (v - low) / (high - low) < 0.55, q->x.values[x], q->y.values[y]);
        }
}

static void tics(const struct axis *a, char letter, struct gp *g)
{
    struct buf *s = &g->script;
    buf_printf(s, "set %ctics (", letter);
    for (int i = 0; i < a->n; i++) {
        buf_puts(s, i ? ", " : "");
        gp_tic(g, s, a->values[i]);
        buf_printf(s, " %d", i);
    }
    buf_printf(s, ") noenhanced\nset %crange [-0.5:%.1f]\n", letter, a->n - 0.5);
}

#define BAR_ROOM 62 /* below the axes: the bar, its numbers and its title */
#define BAR_HEIGHT 14

/* The colour bar with its title: beside the panel, and below it in a figure of a given width. */
static void color_bar(struct chart *c, double low, double high, const char *title)
{
    struct buf *s = &c->gp.script;
    bool below = c->key == KEY_BELOW || c->key == KEY_EACH_BELOW;
    double w = c->gp.width, h = c->gp.height;
    if (below)
        buf_printf(s,
                   "set colorbox horizontal user origin screen %.8f, screen %.8f size screen %.8f, "
                   "screen %.8f\nset cbtics %.8g offset 0,0.4\n",
                   c->left / w, (BAR_ROOM - BAR_HEIGHT) / h, c->width / w, BAR_HEIGHT / h,
                   gp_step(high - low, 5));
    buf_puts(s, "set cblabel ");
    gp_text(&c->gp, s, title);
    buf_printf(s, " noenhanced offset %s\n", below ? "0,0.8" : "2.5,0");
}

static int render(struct sweep *q, const struct figure_args *a, struct err *err)
{
    struct chart c = {0};
    struct buf data = {0}, title = {0}, bar = {0};
    double low = isnan(a->low) ? q->low : a->low, high = isnan(a->high) ? q->high : a->high, scale;
    int rc = 0;

    if (!(high > low))
        high = low + (low != 0 ? fabs(low) * 0.05 : 1);
    chart_metric_label(q->metric, &bar, &scale);
    chart_metric_name(q->metric, &title);
    buf_printf(&title, " of %s, mean over ", buf_str(&q->rest));
    chart_over(&q->g, NULL, &title);
    TRY(buf_check(&title, "title", err));
    struct chart_layout layout = {.title = buf_str(&title),
                                  .panels = 1,
                                  .width = q->x.n * 58 > 240 ? q->x.n * 58 : 240,
                                  .height = q->y.n * 34 > 230 ? q->y.n * 34 : 230,
                                  .legend = 150,
                                  .below = BAR_ROOM};
    TRY(chart_open(a, &layout, &c, err));
    write_cells(q, low, high, &data);
    chart_panel(&c, 0, q->x.name, q->y.name);
    struct buf *s = &c.gp.script;
    palette_viridis(s);
    tics(&q->x, 'x', &c.gp);
    tics(&q->y, 'y', &c.gp);
    buf_printf(s, "unset grid\nset cbrange [%.8g:%.8g]\n", low, high);
    color_bar(&c, low, high, buf_str(&bar));
    buf_puts(s, "plot ");
    gp_data_name(&c.gp, "dat");
    buf_puts(s, " using 1:2:($1-0.5):($1+0.5):($2-0.5):($2+0.5):3 with boxxyerror fs solid "
                "noborder lc palette notitle");
    for (int light = 0; light < 2; light++) {
        buf_puts(s, ", ");
        gp_data_name(&c.gp, "dat");
        buf_printf(
            s,
            " using 1:2:($5==%d?strcol(4):'') with labels noenhanced font font_small tc rgb '%s' "
            "notitle",
            light, light ? "#ffffff" : "#000000");
    }
    buf_puts(s, "\n");
    TRY(chart_finish(&c, &data, err));
out:
    chart_free(&c);
    buf_free(&data);
    buf_free(&title);
    buf_free(&bar);
    return rc;
}

static int draw(const struct figure_args *a, struct err *err)
{
    static const enum group_key keys[] = {KEY_METHOD, KEY_PARAMS};
    struct sweep q = {
        .metric = a->metric ? a->metric : "density_elem", .x = {.name = a->x}, .y = {.name = a->y}};
    const char *unit;
    int rc = 0;

    if (!a->x || !a->y || strcmp(a->x, a->y) == 0)
        FAIL(err, ERR_USAGE,
             "figure sweep needs two parameters, such as --x alpha_c --y alpha_s --method "
             "sampleattention");
    q.scale = metric_scale(q.metric, &unit);
    TRY(chart_group(a, keys, 2, GROUP_SPLIT_STEPS, q.metric, KEY_COUNT, &q.g, err));
    TRY(find_axes(&q, err));
    TRY(fill(&q, err));
    TRY(render(&q, a, err));
out:
    chart_groups_free(&q.g);
    free(q.cells);
    buf_free(&q.rest);
    return rc;
}

const struct figure figure_sweep = {
    .listed = {"sweep", "a metric over two parameters of a method, a cell per setting",
               "input: records of one method; --x and --y name the parameters, --metric "
               "(density_elem)"},
    .uses = "layer,head,step,branch,method,params,metric,x,y,range",
    .input = FIGURE_RECORDS,
    .draw = draw,
};
