/*
 * curves.c - lines: curves (a metric against a parameter, step, layer or length) and granularity
 * (how sparse the exact map is at each block size).
 */
#include "plots/chart.h"
#include "plots/marks.h"

#include "analyze/params.h"
#include "analyze/metricfacts.h"
#include "core/mem.h"
#include "core/method.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- curves -------------------------------------------------------------------------------- */

struct xy {
    int series;
    double x, y, sd;
};

static int by_x(const void *a, const void *b)
{
    const struct xy *p = a, *q = b;
    if (p->series != q->series)
        return p->series - q->series;
    return (p->x > q->x) - (p->x < q->x);
}

/* Number of "0.02", "8%" (as a share), "64x64" (the first side); NAN otherwise. */
static double number_of(const char *text)
{
    char *end;
    double x = strtod(text, &end);
    if (end == text)
        return NAN;
    return *end == '%' ? x / 100 : x;
}

/* Does any record of the method set the parameter? Only then it is swept. */
static bool is_swept(const struct recset *set, const char *method, const char *name)
{
    for (int64_t i = 0; i < set->n; i++)
        if (strcmp(set->r[i].method, method) == 0 && params_value(set->r[i].params, name))
            return true;
    return false;
}

/* Value of a parameter: from the canonical text, else the method's default. */
static double param_value(const struct figure_args *a, const struct record *r, const char *name)
{
    const char *v = params_value(r->params, name);
    if (v || !is_swept(a->set, r->method, name))
        return v ? number_of(v) : NAN;
    for (int i = 0; a->methods && a->methods[i]; i++)
        if (strcmp(a->methods[i]->name, r->method) == 0 && a->methods[i]->params.table) {
            const struct opt *o = opt_find(a->methods[i]->params.table, name);
            return o && o->def ? number_of(o->def) : NAN;
        }
    return NAN;
}

/* Do two settings of a method differ in the parameter, and in nothing else? */
static bool on_one_line(const struct figure_args *a, const struct record *r, const struct record *o,
                        const char *name)
{
    struct buf rest = {0}, other = {0};
    double x = param_value(a, r, name), y = param_value(a, o, name);
    if (isnan(x) || isnan(y) || x == y || strcmp(r->method, o->method) != 0)
        return false;
    params_without(r->params, name, &rest);
    params_without(o->params, name, &other);
    bool same = strcmp(buf_str(&rest), buf_str(&other)) == 0;
    buf_free(&rest);
    buf_free(&other);
    return same;
}

/* Number of settings that lie with another one on a line against the parameter. */
static int64_t swept_settings(const struct chart_groups *g, const char *name)
{
    int64_t n = 0;
    for (int64_t i = 0; i < g->gs.n; i++)
        for (int64_t k = 0; k < g->gs.n; k++)
            if (on_one_line(g->args, g->gs.g[i].first, g->gs.g[k].first, name)) {
                n++;
                break;
            }
    return n;
}

static bool seen(struct str_list *names, const char *name)
{
    for (int64_t i = 0; i < names->n; i++)
        if (strcmp(names->items[i], name) == 0)
            return true;
    str_list_add(names, name);
    return false;
}

/* The parameter that most settings sweep; one that no method varies is no axis. */
static int swept_param(const struct figure_args *a, char name[64], struct err *err)
{
    static const enum group_key keys[] = {KEY_METHOD, KEY_PARAMS};
    struct chart_groups g = {0};
    struct str_list tried = {0};
    int64_t most = 0;
    int rc = chart_group(a, keys, 2, 0, NULL, KEY_COUNT, &g, err);
    if (rc)
        return rc;
    name[0] = '\0';
    for (int64_t i = 0; i < g.gs.n; i++)
        for (const char *p = g.gs.g[i].first->params; p && *p;) {
            size_t part = strcspn(p, ":"), key = strcspn(p, "=");
            char one[64];
            snprintf(one, sizeof one, "%.*s", (int)(key < 63 ? key : 63), p);
            int64_t n = seen(&tried, one) ? 0 : swept_settings(&g, one);
            if (n > most) {
                most = n;
                snprintf(name, 64, "%s", one);
            }
            p += part + (p[part] == ':');
        }
    str_list_free(&tried);
    chart_groups_free(&g);
    return 0;
}

/* Do the chosen cells differ in the step? */
static int steps_vary(const struct figure_args *a, bool *out, struct err *err)
{
    static const enum group_key step = KEY_STEP;
    struct chart_groups g = {0};
    int rc = chart_group(a, &step, 1, 0, NULL, KEY_COUNT, &g, err);
    *out = false;
    for (int64_t i = 1; !rc && i < g.gs.n; i++)
        *out |= g.gs.g[i].first->step != g.gs.g[0].first->step;
    chart_groups_free(&g);
    return rc;
}

/* Settings of a method that differ in what a calibration found, not in a number. */
static bool calibrations_vary(const struct recset *set)
{
    const struct record *first = NULL;
    for (int64_t i = 0; i < set->n; i++) {
        const struct record *r = &set->r[i];
        if (!params_value(r->params, "calib"))
            continue;
        if (first && strcmp(first->method, r->method) == 0 && strcmp(first->params, r->params) != 0)
            return true;
        first = first ? first : r;
    }
    return false;
}

/* What is drawn against what. */
struct axis {
    char x[64];
    enum group_key key; /* KEY_COUNT: x is a parameter or a metric */
    bool metric;        /* x is a metric: a line joins all settings of a method */
};

/* A metric that is no parameter: sale records a tau, too. */
static bool is_metric(const struct recset *set, const char *name)
{
    bool has = false;
    for (int64_t i = 0; i < set->n; i++) {
        if (params_value(set->r[i].params, name))
            return false;
        has |= record_has(&set->r[i], name);
    }
    return has;
}

/* --x, or step when steps vary, else a swept parameter, else the density of calibrations, else the
 * layer. */
static int choose_x(const struct figure_args *a, const char **metric, struct axis *x,
                    struct err *err)
{
    static const enum group_key numeric[] = {KEY_STEP, KEY_LAYER,    KEY_HEAD,   KEY_N_Q,  KEY_N_K,
                                             KEY_RUN,  KEY_MASK_AGE, KEY_TOKENS, KEY_DEPTH};
    bool steps = false;
    int rc = a->x ? 0 : steps_vary(a, &steps, err);
    if (rc)
        return rc;
    if (a->x)
        snprintf(x->x, sizeof x->x, "%s", a->x);
    else if (steps)
        snprintf(x->x, sizeof x->x, "step");
    else
        rc = swept_param(a, x->x, err);
    if (!x->x[0] && calibrations_vary(a->set)) {
        snprintf(x->x, sizeof x->x, "density_elem");
        *metric = a->metric ? *metric : "cra_mean";
    } else if (!x->x[0])
        snprintf(x->x, sizeof x->x, "layer");
    x->key = KEY_COUNT;
    for (size_t i = 0; i < sizeof numeric / sizeof *numeric; i++)
        if (strcmp(x->x, key_name(numeric[i])) == 0)
            x->key = numeric[i];
    x->metric = x->key == KEY_COUNT && is_metric(a->set, x->x);
    return rc;
}

/* x of a group; NAN: none. */
static int x_of(const struct chart_groups *g, const struct group *grp, const struct axis *x,
                double *out, struct err *err)
{
    struct stats s;
    int rc = 0;
    if (x->key != KEY_COUNT)
        *out = key_number(grp->first, x->key);
    else if (!x->metric)
        *out = param_value(g->args, grp->first, x->x);
    else {
        const char *unit;
        rc = group_stats(&g->gs, grp, x->x, &s, NULL, err);
        *out = s.n ? s.mean * metric_scale(x->x, &unit) : NAN;
    }
    return rc;
}

/* What of the parameters the line of a setting is named by. */
static void line_params(const struct record *r, const struct axis *x, struct buf *b)
{
    buf_reset(b);
    if (x->key != KEY_COUNT)
        buf_puts(b, r->params ? r->params : "");
    else if (!x->metric)
        params_without(r->params, x->x, b);
}

static int collect(const struct chart_groups *g, const struct axis *x, const char *metric,
                   struct series_list *l, struct xy *p, int64_t *n, struct err *err)
{
    struct buf rest = {0};
    struct stats s;
    const char *unit;
    double scale = metric_scale(metric, &unit), at;
    int rc = 0;
    *n = 0;
    for (int64_t i = 0; i < g->gs.n; i++) {
        const struct record *r = g->gs.g[i].first;
        TRY(x_of(g, &g->gs.g[i], x, &at, err));
        TRY(group_stats(&g->gs, &g->gs.g[i], metric, &s, NULL, err));
        if (isnan(at) || s.n == 0)
            continue;
        line_params(r, x, &rest);
        TRY(buf_check(&rest, "series", err));
        int k = chart_series(g, r, x->metric ? NULL : buf_str(&rest), l, err);
        if (k < 0) {
            rc = err->code;
            goto out;
        }
        p[(*n)++] = (struct xy){k, at, s.mean * scale, s.sd * scale};
    }
    if (*n == 0)
        FAIL(err, ERR_INPUT,
             "no record has a number for '%s': --x takes step, layer, head, n_q, of evals tokens "
             "or depth, a metric or a "
             "parameter such as tau",
             x->x);
    qsort(p, (size_t)*n, sizeof *p, by_x);
out:
    buf_free(&rest);
    return rc;
}

static void write_xy(const struct xy *p, int64_t n, const struct series_list *l, struct buf *b)
{
    for (int s = 0; s < l->n; s++) {
        buf_printf(b, "# %s: x, mean, sd\nnan nan nan\n", l->s[s].name);
        for (int64_t i = 0; i < n; i++)
            if (p[i].series == s)
                buf_printf(b, "%.10g %.10g %.6g\n", p[i].x, p[i].y, isnan(p[i].sd) ? 0 : p[i].sd);
        buf_puts(b, "\n\n");
    }
}

/* A sweep over more than a decade of positive values reads better on a logarithmic axis. */
static bool spans_decade(const struct xy *p, int64_t n)
{
    double low = INFINITY, high = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!(p[i].x > 0))
            return false;
        low = fmin(low, p[i].x);
        high = fmax(high, p[i].x);
    }
    return high >= 10 * low;
}

static bool all_positive(const struct xy *p, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!(p[i].y > 0))
            return false;
    return true;
}

static void plot_lines(struct chart *c, const struct series_list *l)
{
    struct buf *s = &c->gp.script;
    for (int i = 0; i < l->n; i++) {
        buf_puts(s, i ? ", " : "plot ");
        gp_data_name(&c->gp, "dat");
        buf_printf(s,
                   " index %d using 1:2 with linespoints lw 1.4 dt %d pt %d ps 1*point_scale "
                   "lc rgb '%s' "
                   "notitle",
                   i, l->s[i].dash, l->s[i].point, l->s[i].color);
    }
    chart_legend(c, l);
    chart_end(c);
}

static bool counts_tokens(enum group_key key)
{
    return key == KEY_TOKENS || key == KEY_N_Q || key == KEY_N_K;
}

/* Lengths are told apart by what they are times another: "8K 16K 32K", all at one distance. */
static void token_axis(double low, double high, struct buf *s)
{
    int first = (int)ceil(log2(low) - 0.01), last = (int)floor(log2(high) + 0.01);
    int every = (last - first) / 8 + 1;
    buf_printf(s, "set logscale x 2\nset xrange [%.6g:%.6g]\nset xtics (", low / 1.15, high * 1.15);
    for (int k = first; k <= last; k += every)
        buf_printf(s, "%s'%.0f%s' %.0f", k > first ? ", " : "", ldexp(1, k % 10),
                   k < 10   ? ""
                   : k < 20 ? "K"
                   : k < 30 ? "M"
                            : "G",
                   ldexp(1, k));
    buf_puts(s, ")\n");
}

/* Steps, layers and the like are counted: no tics between them. */
static void curve_axes(const struct figure_args *a, const struct xy *p, int64_t n,
                       const struct marks *k, enum group_key key, const char *metric, struct buf *s)
{
    double low = INFINITY, high = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
        low = fmin(low, p[i].x);
        high = fmax(high, p[i].x);
    }
    for (int i = 0; i < k->n; i++) {
        low = fmin(low, k->m[i].x);
        high = fmax(high, k->m[i].x);
    }
    if (counts_tokens(key) && low >= 1 && high >= 2 * low)
        token_axis(low, high, s);
    else if (spans_decade(p, n))
        buf_puts(s, "set logscale x\n");
    else if (key != KEY_COUNT)
        buf_printf(s, "set xtics %g nomirror\n",
                   gp_count_step(high - low + 1, counts_tokens(key) ? 5 : 12));
    if (metric_axis(metric) == AXIS_LOG && all_positive(p, n))
        buf_printf(s, "set logscale y\nset format y '%s'\n", figure_powers(a->output));
    else
        buf_printf(s, "set yrange [%s]\n", chart_range(metric));
}

/* "denoising step", "tau [mass share]", "pairs kept [kept/allowed pairs]". */
static void x_name(const struct figure_args *a, const struct axis *x, const char *method,
                   struct buf *b)
{
    double scale;
    const struct opt *o = NULL;
    for (int i = 0; method && a->methods && a->methods[i]; i++)
        if (strcmp(a->methods[i]->name, method) == 0 && a->methods[i]->params.table)
            o = opt_find(a->methods[i]->params.table, x->x);
    if (x->metric)
        chart_metric_label(x->x, b, &scale);
    else if (x->x[0] == '@') {
        buf_puts(b, "target of ");
        chart_metric_name(x->x + 1, b);
    } else
        buf_printf(b, "%s", x->key == KEY_STEP ? "denoising step" : x->x);
    if (o && o->unit && o->unit[0])
        buf_printf(b, " [%s]", o->unit);
}

/* The only method of the series; NULL where there are several. */
static const char *only_method(const struct series_list *l)
{
    for (int i = 1; i < l->n; i++)
        if (strcmp(l->s[i].method, l->s[0].method) != 0)
            return NULL;
    return l->n ? l->s[0].method : NULL;
}

/* A parameter of one name in two methods is not one quantity: each method has its own axis. What
 * begins with @ is a target on a metric, the same for all. */
static bool unlike(const struct axis *x, const struct series_list *l)
{
    return x->key == KEY_COUNT && !x->metric && x->x[0] != '@' && !only_method(l);
}

static int draw_lines(const struct figure_args *a, const struct chart_groups *g,
                      const struct series_list *l, const struct xy *p, int64_t n,
                      const char *metric, const struct axis *x, struct err *err)
{
    struct buf data = {0}, x_label = {0}, y_label = {0}, title = {0}, axes = {0}, name = {0};
    struct marks marks = {.n = 0};
    double scale;
    int rc = 0;

    TRY(marks_parse(a->marks, &marks, err));
    x_name(a, x, only_method(l), &x_label);
    if (x->metric)
        chart_metric_name(x->x, &name);
    chart_metric_name(metric, &title);
    buf_printf(&title, " against %s, mean over ", x->metric ? buf_str(&name) : buf_str(&x_label));
    chart_over(g, NULL, &title);
    chart_metric_label(metric, &y_label, &scale);
    curve_axes(a, p, n, &marks, x->key, metric, &axes);
    write_xy(p, n, l, &data);
    marks_data(&marks, &data);
    TRY(buf_check(&title, "title", err));
    TRY(buf_check(&x_label, "title", err));
    TRY(buf_check(&axes, "axes", err));
    struct chart_layout layout = {.title = buf_str(&title), .width = 560, .height = 340};
    if (unlike(x, l))
        layout.caption = "The parameter means something else in each method, so each has an axis "
                         "of its own.";
    const struct chart_lines lines = {.l = l,
                                      .x_label = buf_str(&x_label),
                                      .y_label = buf_str(&y_label),
                                      .with = "linespoints",
                                      .axes = buf_str(&axes),
                                      .marks = &marks,
                                      .through = x->key == KEY_COUNT,
                                      .split = unlike(x, l)};
    TRY(chart_draw_lines(a, &layout, &lines, &data, err));
out:
    marks_free(&marks);
    buf_free(&data);
    buf_free(&x_label);
    buf_free(&y_label);
    buf_free(&title);
    buf_free(&axes);
    buf_free(&name);
    return rc;
}

static int draw_curves(const struct figure_args *a, struct err *err)
{
    enum group_key keys[3] = {KEY_METHOD, KEY_PARAMS};
    const char *metric = a->metric ? a->metric : "density_elem";
    struct chart_groups g = {0};
    struct series_list l = {0};
    struct xy *p = NULL;
    struct axis x = {.key = KEY_COUNT};
    int64_t n;
    int rc = 0;

    TRY(choose_x(a, &metric, &x, err));
    /* A time belongs to one length: over several a line leads from length to length. */
    bool by_length = x.metric && (strstr(x.x, "speedup") || strstr(x.x, "time_"));
    keys[2] = by_length ? KEY_TOKENS : x.key;
    /* Against the step a method's schedule is what one wants to see. */
    TRY(chart_group(a, keys, by_length || x.key != KEY_COUNT ? 3 : 2,
                    x.key == KEY_STEP ? 0 : GROUP_SPLIT_STEPS, metric,
                    by_length ? KEY_TOKENS : x.key, &g, err));
    TRY(mem_alloc(&p, g.gs.n, sizeof *p, "points", err));
    TRY(collect(&g, &x, metric, &l, p, &n, err));
    TRY(series_labels(&l, LEGEND_CHARS, err));
    series_shade(&l, TELL_DASH_POINT);
    TRY(draw_lines(a, &g, &l, p, n, metric, &x, err));
out:
    chart_groups_free(&g);
    series_free(&l);
    free(p);
    return rc;
}

/* ---- granularity --------------------------------------------------------------------------- */

static const int block_sides[] = {16, 32, 64, 128};
static const int slice_rows[] = {16, 64, 128};

static int granularity_series(const struct chart_groups *g, const struct group *grp, bool slices,
                              struct series_list *l, struct buf *b, struct err *err)
{
    struct buf name = {0};
    struct stats s;
    const int *side = slices ? slice_rows : block_sides;
    int n = slices ? 3 : 4, rc = 0;
    for (int i = 0; i < g->n_scope; i++) {
        if (g->scope[i] != KEY_MODEL)
            buf_printf(&name, "%s=", key_name(g->scope[i]));
        key_text(grp->first, g->scope[i], &name);
        buf_puts(&name, " ");
    }
    if (g->n_scope == 0)
        buf_printf(&name, "%s ", grp->first->model);
    buf_puts(&name, slices ? "M x 1 slices" : "b x b blocks");
    /* Colour by model and length, circles for blocks, triangles on dashed lines for slices. */
    static const char *const colors[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00"};
    int k = series_of(l, buf_str(&name), "", err);
    if (k < 0) {
        rc = err->code;
        goto out;
    }
    l->s[k].dash = slices ? 2 : 1;
    l->s[k].point = slices ? 9 : 7;
    snprintf(l->s[k].color, sizeof l->s[k].color, "%s", colors[k / 2 % 5]);
    buf_printf(b, "# %s: side, share below the threshold, sd over heads\nnan nan nan\n",
               buf_str(&name));
    for (int i = 0; i < n; i++) {
        char metric[32];
        snprintf(metric, sizeof metric, "below_%c%d", slices ? 's' : 'b', side[i]);
        TRY(group_stats(&g->gs, grp, metric, &s, NULL, err));
        if (s.n)
            buf_printf(b, "%d %.10g %.6g\n", side[i], s.mean, isnan(s.sd) ? 0 : s.sd);
    }
    buf_puts(b, "\n\n");
out:
    buf_free(&name);
    return rc;
}

static int draw_granularity(const struct figure_args *a, struct err *err)
{
    static const enum group_key keys[] = {KEY_MODEL};
    struct chart_groups g = {0};
    struct series_list l = {0};
    struct chart c = {0};
    struct buf data = {0}, title = {0};
    int rc = 0;

    TRY(chart_group(a, keys, 1, GROUP_PER_HEAD, "below_b64", KEY_COUNT, &g, err));
    for (int64_t i = 0; i < g.gs.n; i++) {
        TRY(granularity_series(&g, &g.gs.g[i], false, &l, &data, err));
        TRY(granularity_series(&g, &g.gs.g[i], true, &l, &data, err));
    }
    buf_puts(&title, "Share of blocks whose largest weight is below 0.5/N, mean over ");
    chart_over(&g, NULL, &title);
    TRY(buf_check(&title, "title", err));
    struct chart_layout layout = {
        .title = buf_str(&title), .panels = 1, .width = 520, .height = 340};
    chart_legend_room(&l, &layout);
    TRY(chart_open(a, &layout, &c, err));
    chart_panel(&c, 0, "block side b, or slice rows M [tokens]", "share of units below 0.5/N");
    buf_puts(&c.gp.script, "set logscale x 2\nset xtics (16, 32, 64, 128)\nset xrange [13:160]\n"
                           "set yrange [0:1]\n");
    plot_lines(&c, &l);
    TRY(chart_finish(&c, &data, err));
out:
    chart_free(&c);
    chart_groups_free(&g);
    series_free(&l);
    buf_free(&data);
    buf_free(&title);
    return rc;
}

const struct figure figure_curves = {
    .listed =
        {"curves", "a metric against a parameter, step, layer or length",
         "input: records; --metric (density_elem), --x a key, parameter or metric (step when it "
         "varies, else a swept parameter, else the density of calibrations, else layer)"},
    .uses = "layer,head,step,branch,method,params,metric,x,marks",
    .input = FIGURE_RECORDS,
    .draw = draw_curves,
};

const struct figure figure_granularity = {
    .listed = {"granularity", "share of blocks and slices below 0.5/N by their size",
               "input: records of the method dense"},
    .uses = "layer,head,step,branch,method,params",
    .input = FIGURE_RECORDS,
    .draw = draw_granularity,
};
