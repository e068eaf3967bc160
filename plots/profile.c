/*
 * profile.c - figures that set one metric against several keys side by side: profile (layer, step,
 * sample and head; figures 14-17 of SpargeAttn, arXiv 2502.18137) and stability (reused masks by
 * age, figure 10 of FG-Attn, arXiv 2509.16518).
 */
#include "plots/chart.h"

#include "analyze/metricfacts.h"
#include "core/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One panel: a metric against a key. */
struct panel {
    enum group_key key;
    const char *metric;
    char label[96];   /* of the x axis */
    struct buf rows;  /* a block per series: x, median, quartiles */
    double low, high; /* of x */
    double least;     /* of the medians */
};

/* ---- profile --------------------------------------------------------------------------------- */

/* x of a sample: its place among the traces of the set in the order of their ids. */
static double sample_number(const struct grouping *traces, const struct record *r)
{
    for (int64_t i = 0; i < traces->n; i++)
        if (key_compare(traces->g[i].first, r, KEY_TRACE) == 0)
            return (double)i;
    return NAN;
}

struct point {
    int series;
    double x, median, q1, q3;
};

static int by_series(const void *a, const void *b)
{
    const struct point *p = a, *q = b;
    if (p->series != q->series)
        return p->series - q->series;
    return (p->x > q->x) - (p->x < q->x);
}

static void write_points(struct panel *p, struct point *pt, int64_t n, int series)
{
    qsort(pt, (size_t)n, sizeof *pt, by_series);
    p->low = INFINITY;
    p->high = -INFINITY;
    p->least = INFINITY;
    for (int s = 0; s < series; s++) {
        buf_puts(&p->rows, "nan nan nan nan\n");
        for (int64_t i = 0; i < n; i++)
            if (pt[i].series == s) {
                buf_printf(&p->rows, "%.10g %.10g %.10g %.10g\n", pt[i].x, pt[i].median, pt[i].q1,
                           pt[i].q3);
                p->low = fmin(p->low, pt[i].x);
                p->high = fmax(p->high, pt[i].x);
                p->least = fmin(p->least, pt[i].median);
            }
        buf_puts(&p->rows, "\n\n");
    }
}

/* Medians over all cells of one value of the key; `names` was filled by the first panel. */
static int fill_profile(const struct figure_args *a, struct panel *p, struct series_list *l,
                        struct err *err)
{
    static const enum group_key trace = KEY_TRACE;
    enum group_key keys[3] = {KEY_METHOD, KEY_PARAMS, p->key};
    struct chart_groups g = {0};
    struct grouping traces = {0};
    struct point *pt = NULL;
    struct stats s;
    const char *unit;
    double scale = metric_scale(p->metric, &unit);
    int rc = 0;

    TRY(chart_group(a, keys, 3, 0, p->metric, KEY_COUNT, &g, err));
    TRY(grouping_make(a->set, &trace, 1, 0, NULL, NULL, &traces, err));
    TRY(mem_alloc(&pt, g.gs.n, sizeof *pt, "points", err));
    for (int64_t i = 0; i < g.gs.n; i++) {
        const struct record *r = g.gs.g[i].first;
        TRY(group_stats(&g.gs, &g.gs.g[i], p->metric, &s, NULL, err));
        int k = chart_series(&g, r, r->params, l, err);
        if (k < 0) {
            rc = err->code;
            goto out;
        }
        double x = p->key == KEY_TRACE ? sample_number(&traces, r) : key_number(r, p->key);
        pt[i] = (struct point){k, x, s.median * scale, s.q1 * scale, s.q3 * scale};
    }
    write_points(p, pt, g.gs.n, l->n);
out:
    free(pt);
    grouping_free(&traces);
    chart_groups_free(&g);
    return rc;
}

/* ---- drawing ----------------------------------------------------------------------------------
 */

/* What is drawn: a row of panels for each facet of the series, a column for each key. */
struct drawing {
    struct panel *p;
    int n;
    struct series_list *l;
    struct chart_facets f;
    bool spread;       /* quartiles as whiskers */
    const char *range; /* of y */
};

static void one_line(struct chart *c, const struct series *k, int block, const char *what)
{
    gp_data_name(&c->gp, "dat");
    buf_printf(&c->gp.script, " index %d using %s lc rgb '%s' notitle", block, what, k->color);
}

/* The panels' blocks follow one another in the data file: panel i starts at block i * series. */
static void plot_panel(struct chart *c, const struct drawing *d, int facet, int i)
{
    const struct panel *p = &d->p[i];
    const struct chart_facet *f = &d->f.f[facet];
    struct buf *s = &c->gp.script;
    double pad = fmax(0.5, 0.04 * (p->high - p->low));
    const char *before = "plot ";
    buf_printf(s, "set xrange [%g:%g]\nset xtics %g nomirror\nset yrange [%s]\n", p->low - pad,
               p->high + pad, gp_count_step(p->high - p->low + 1, c->width > 200 ? 8 : 5),
               d->range);
    if (!d->spread && p->least < 1) { /* panels of one metric compare, and are too low for more */
        double step = gp_step(1 - p->least, 4);
        buf_printf(s, "set ytics %g nomirror\nset yrange [%.8g:1]\n", step,
                   1 - step * ceil((1 - p->least) / step));
    }
    for (int m = 0; m < f->n; m++) {
        const struct series *k = &d->l->s[f->s[m]];
        int at = i * d->l->n + f->s[m];
        char how[96];
        if (d->spread) {
            buf_puts(s, before);
            one_line(c, k, at, "1:3:(0):($4-$3) with vectors nohead lw 0.8");
            before = ", ";
        }
        snprintf(how, sizeof how, "1:2 with linespoints lw 1.4 dt %d pt %d ps 0.8*point_scale",
                 k->dash, k->point);
        buf_puts(s, before);
        one_line(c, k, at, how);
        before = ", ";
    }
    bool legend = d->f.n > 1 ? i == (c->key == KEY_EACH_RIGHT ? d->n - 1 : 0) : i == d->n - 1;
    for (int m = 0; m < f->n && legend; m++)
        chart_entry(c, &d->l->s[f->s[m]], chart_facet_label(&d->f, &d->l->s[f->s[m]]));
    chart_end(c);
}

static void draw_panel(struct chart *c, const struct drawing *d, int facet, int i)
{
    struct buf label = {0};
    double scale;
    int at = facet * d->n + i;
    chart_metric_label(d->p[i].metric, &label, &scale);
    chart_panel(c, at, d->p[i].label,
                i && strcmp(d->p[i].metric, d->p[0].metric) == 0 ? "" : buf_str(&label));
    c->gp.script.failed |= label.failed;
    buf_free(&label);
    if (d->f.n > 1) {
        if (i == 0)
            chart_head(c, at, d->f.f[facet].title);
        buf_puts(&c->gp.script, "unset key\n");
        chart_key(c, at);
    }
    plot_panel(c, d, facet, i);
}

static void write_panels(const struct drawing *d, struct buf *data)
{
    for (int i = 0; i < d->n; i++) {
        buf_printf(data,
                   "# panel %d: %s against %s; a block per line: x, median, lower and upper "
                   "quartile\n",
                   i, d->p[i].metric, d->p[i].label);
        buf_puts(data, buf_str(&d->p[i].rows));
    }
}

static int draw_panels(const struct figure_args *a, struct drawing *d, const char *title,
                       const char *caption, struct err *err)
{
    struct chart c = {0};
    struct buf data = {0}, note = {0};
    int rc = 0;

    TRY(chart_facets_make(d->l, false, &d->f, err));
    struct chart_layout layout = {.title = title};
    chart_facets_room(&d->f, &layout);
    layout.panels = d->f.n * d->n;
    layout.cols = d->n;
    layout.width = d->n > 2 ? 230 : 360;
    layout.height = d->f.n > 1 ? 150 : 290;
    buf_puts(&note, caption);
    chart_facets_note(&d->f, d->l, false, &note);
    TRY(buf_check(&note, "caption", err));
    layout.caption = buf_str(&note);
    write_panels(d, &data);
    TRY(chart_open(a, &layout, &c, err));
    for (int f = 0; f < d->f.n; f++)
        for (int i = 0; i < d->n; i++)
            draw_panel(&c, d, f, i);
    TRY(chart_finish(&c, &data, err));
out:
    chart_free(&c);
    chart_facets_free(&d->f);
    buf_free(&data);
    buf_free(&note);
    return rc;
}

static void free_panels(struct panel *p, int n)
{
    for (int i = 0; i < n; i++)
        buf_free(&p[i].rows);
}

/* Only keys that vary get a panel; --x names the only one. */
static int profile_panels(const struct figure_args *a, const char *metric, struct panel p[4])
{
    static const struct {
        enum group_key key;
        const char *label;
    } all[] = {{KEY_LAYER, "layer"},
               {KEY_STEP, "denoising step"},
               {KEY_TRACE, "sample"},
               {KEY_HEAD, "head"}};
    int n = 0;
    for (int i = 0; i < 4; i++) {
        const char *name = all[i].key == KEY_TRACE ? all[i].label : key_name(all[i].key);
        if (a->x ? strcmp(a->x, name) != 0 : !recset_varies(a->set, all[i].key))
            continue;
        p[n] = (struct panel){.key = all[i].key, .metric = metric};
        snprintf(p[n++].label, sizeof p->label, "%s", all[i].label);
    }
    return n;
}

static int draw_profile(const struct figure_args *a, struct err *err)
{
    const char *metric = a->metric ? a->metric : "sparsity_total";
    struct panel p[4] = {{0}};
    struct series_list l = {0};
    struct buf title = {0};
    int n = profile_panels(a, metric, p), rc = 0;

    if (n == 0)
        FAIL(err, ERR_INPUT,
             a->x ? "profile: --x takes layer, step, sample or head"
                  : "the records hold one layer, step, sample and head: nothing to compare");
    for (int i = 0; i < n; i++)
        TRY(fill_profile(a, &p[i], &l, err));
    TRY(series_labels(&l, LEGEND_CHARS, err));
    series_shade(&l, TELL_DASH_POINT);
    chart_metric_name(metric, &title);
    buf_printf(&title, ": median and quartiles of the cells, by %s", p[0].label);
    for (int i = 1; i < n; i++)
        buf_printf(&title, ", %s", p[i].label);
    TRY(buf_check(&title, "title", err));
    struct drawing d = {.p = p, .n = n, .l = &l, .spread = true, .range = chart_range(metric)};
    TRY(draw_panels(a, &d, buf_str(&title), "", err));
out:
    free_panels(p, n);
    series_free(&l);
    buf_free(&title);
    return rc;
}

/* ---- stability ---------------------------------------------------------------------------------
 */

#define LAYERS_MOST 512 /* of all settings; panels thin them out */

static void color_layer(struct series *s, int layer)
{
    static const char *const colors[] = {"#000000", "#e69f00", "#0072b2", "#009e73",
                                         "#d55e00", "#56b4e9", "#cc79a7", "#7f7f7f"};
    snprintf(s->color, sizeof s->color, "%s", colors[layer % 8]);
    s->point = 5 + 2 * (layer % 5);
    s->dash = 1 + layer / 8 % 5;
}

/* One line per layer, the median over heads and refresh periods. */
static int fill_stability(const struct figure_args *a, struct panel *p, struct series_list *l,
                          struct err *err)
{
    static const enum group_key keys[] = {KEY_METHOD, KEY_PARAMS, KEY_LAYER, KEY_MASK_AGE};
    struct chart_groups g = {0};
    struct buf name = {0}, setting = {0};
    struct point *pt = NULL;
    struct stats s;
    int rc = 0;

    l->most = LAYERS_MOST;
    TRY(chart_group(a, keys, 4, 0, p->metric, KEY_COUNT, &g, err));
    TRY(mem_alloc(&pt, g.gs.n, sizeof *pt, "points", err));
    bool several = g.gs.n && (g.n_scope || recset_varies(a->set, KEY_PARAMS));
    for (int64_t i = 0; i < g.gs.n; i++) {
        const struct record *r = g.gs.g[i].first;
        TRY(group_stats(&g.gs, &g.gs.g[i], p->metric, &s, NULL, err));
        buf_reset(&name);
        buf_reset(&setting);
        if (several)
            chart_name(&g, r, r->params, &setting);
        buf_printf(&name, "%s%slayer %d", buf_str(&setting), several ? " " : "", r->layer);
        TRY(buf_check(&name, "series", err));
        int k = series_of(l, buf_str(&name), "", err);
        if (k < 0) {
            rc = err->code;
            goto out;
        }
        color_layer(&l->s[k], r->layer);
        if (several && !l->s[k].scope && !(l->s[k].scope = strdup(buf_str(&setting))))
            FAIL(err, ERR_NOMEM, "series: out of memory");
        pt[i] = (struct point){k, key_number(r, KEY_MASK_AGE), s.median, s.q1, s.q3};
    }
    write_points(p, pt, g.gs.n, l->n);
out:
    free(pt);
    buf_free(&name);
    buf_free(&setting);
    chart_groups_free(&g);
    return rc;
}

static int draw_stability(const struct figure_args *a, struct err *err)
{
    struct panel p[2] = {{.key = KEY_MASK_AGE, .metric = "mask_iou"},
                         {.key = KEY_MASK_AGE, .metric = "mask_recall"}};
    struct series_list l = {0};
    int rc = 0;
    for (int i = 0; i < 2; i++) {
        snprintf(p[i].label, sizeof p->label, "age of the mask [step]");
        TRY(fill_stability(a, &p[i], &l, err));
    }
    TRY(series_labels(&l, LEGEND_CHARS, err));
    struct drawing d = {.p = p, .n = 2, .l = &l, .range = "*<0.99:1"};
    TRY(draw_panels(a, &d, "reused mask against the step's own, median over heads of calls", "",
                    err));
out:
    free_panels(p, 2);
    series_free(&l);
    return rc;
}

const struct figure figure_profile = {
    .listed = {"profile", "a metric by layer, denoising step, sample and head, side by side",
               "input: records; --metric (sparsity_total); a key that does not vary has no panel"},
    .uses = "layer,head,step,branch,method,params,metric,x",
    .input = FIGURE_RECORDS,
    .draw = draw_profile,
};

const struct figure figure_stability = {
    .listed = {"stability", "reused masks against each step's own, by age and layer",
               "input: records of fg-attn with compare=1"},
    .uses = "layer,head,step,branch,method,params",
    .input = FIGURE_RECORDS,
    .draw = draw_stability,
};
