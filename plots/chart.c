/*
 * chart.c - a figure of records: which cells are chosen, how they are grouped and what their groups
 * are called; its points, panels and marks; names and axes of metrics.
 */
#include "plots/chart.h"

#include "analyze/metricfacts.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/metricdef.h"
#include "core/text.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- groups --------------------------------------------------------------------------------- */

static bool fits(const void *ctx, const struct record *r)
{
    const struct chart *chart = ctx;
    const struct chart_groups *c = &chart->g;
    const struct figure_args *a = chart->a;
    return r->status == RECORD_OK && figure_has(&c->cells.layers, r->layer) &&
           figure_has(&c->cells.heads, r->head) && figure_has(&c->cells.steps, r->step) &&
           (!a->branch || strcmp(a->branch, r->branch) == 0) && figure_takes(a, r);
}

/* Are the dense calls of the record's method and parameters left out? */
static bool leaves_dense_out(const struct chart_groups *c, const struct record *r)
{
    for (int64_t i = 0; i < c->settings.n; i++)
        if (c->settings.g[i].steps == STEPS_SPARSE &&
            same_keys(c->settings.g[i].first, r, c->settings.keys, c->settings.n_keys))
            return true;
    return false;
}

/* The chosen cells without the dense calls of those that also ran sparse ones. */
static bool fits_sparse(const void *ctx, const struct record *r)
{
    return fits(ctx, r) && !(record_value(r, "dense_call") == 1 &&
                             leaves_dense_out(&((const struct chart *)ctx)->g, r));
}

/* Drop groups in which no cell has the metric. */
static int drop_without(struct grouping *gs, const char *metric, struct err *err)
{
    struct stats s;
    int64_t kept = 0;
    for (int64_t i = 0; i < gs->n; i++) {
        PASS_ON(group_stats(gs, &gs->g[i], metric, &s, NULL, err));
        if (s.n > 0)
            gs->g[kept++] = gs->g[i];
    }
    gs->n = kept;
    return 0;
}

static void chart_groups_free(struct chart_groups *c)
{
    figure_cells_free(&c->cells);
    grouping_free(&c->gs);
    grouping_free(&c->settings);
    *c = (struct chart_groups){0};
}

int chart_nothing(const struct figure_args *a, const char *metric, struct err *err)
{
    PASS_ON(metric ? recset_check_metrics(a->set, NULL, "--metrics", metric, err) : 0);
    return err_set(err, ERR_INPUT, "no ok record%s%s is left to draw", metric ? " with " : "",
                   metric ? metric : "");
}

int chart_regroup(struct chart *c, const char *keys, const char *metric, enum group_key without,
                  unsigned flags, struct err *err)
{
    const struct figure_args *a = c->a;
    struct chart_groups *g = &c->g;
    enum group_key scope[KEYS_MAX], setting[KEYS_MAX], own[KEYS_MAX];
    int n, n_own = 0;
    chart_groups_free(g);
    PASS_ON(figure_cells(a, -1, -1, &g->cells, err));
    PASS_ON(recset_scope(a->set, scope, &n, err));
    for (int i = 0; i < n; i++)
        if (scope[i] != without)
            g->scope[g->n_scope++] = scope[i];
    memcpy(setting, g->scope, sizeof setting);
    setting[g->n_scope] = KEY_METHOD;
    setting[g->n_scope + 1] = KEY_PARAMS;
    if (!(flags & FIGURE_ALL_CALLS)) /* which settings ran some calls dense and others not */
        PASS_ON(grouping_make(a->set, setting, g->n_scope + 2, GROUP_SPLIT_STEPS, fits, c,
                              &g->settings, err));
    if (keys[0])
        PASS_ON(keys_parse(keys, "figure", own, &n_own, err));
    memcpy(g->keys, g->scope, sizeof g->keys);
    memcpy(g->keys + g->n_scope, own, (size_t)n_own * sizeof *own);
    PASS_ON(grouping_make(a->set, g->keys, g->n_scope + n_own,
                          flags & FIGURE_PER_HEAD ? GROUP_PER_HEAD : 0, fits_sparse, c, &g->gs,
                          err));
    if (metric)
        PASS_ON(drop_without(&g->gs, metric, err));
    if (g->gs.n == 0)
        return chart_nothing(a, metric, err);
    return 0;
}

/* ---- names ---------------------------------------------------------------------------------- */

void chart_scope(const struct chart *c, const struct record *r, struct buf *b)
{
    for (int i = 0; i < c->g.n_scope; i++) {
        buf_puts(b, i ? " " : "");
        if (c->g.scope[i] != KEY_MODEL)
            buf_printf(b, "%s=", key_name(c->g.scope[i]));
        key_text(r, c->g.scope[i], b);
    }
}

void chart_name(const struct chart *c, const struct record *r, const char *params, struct buf *b)
{
    OWN(buf_free) struct buf scope = {0};
    chart_scope(c, r, &scope);
    series_name(buf_str(&scope), r->method, params, false, b);
    b->failed |= scope.failed;
}

int chart_series(struct chart *c, const struct record *r, const char *params, struct err *err)
{
    OWN(buf_free) struct buf scope = {0};
    int s = -1;
    c->l.methods = c->a->methods;
    chart_scope(c, r, &scope);
    if (!buf_check(&scope, "series", err))
        s = series_of_setting(&c->l, buf_str(&scope), r->method, params, leaves_dense_out(&c->g, r),
                              err);
    return s;
}

/* Different values of the key in a group, counted up to a limit that no title needs to pass. */
static int values_of(const struct grouping *gs, const struct group *g, enum group_key k)
{
    const struct record *seen[1000];
    int n = 0;
    for (int64_t i = 0; i < g->n && n < 1000; i++) {
        const struct record *r = &gs->set->r[g->at[i]];
        int j = 0;
        while (j < n && key_compare(seen[j], r, k) != 0)
            j++;
        if (j == n)
            seen[n++] = r;
    }
    return n;
}

/* Where methods run inside a model, a record is a text, a prompt or a clip. Those that have one of
 * the metrics count; groups with none are not drawn. */
static bool over_tasks(const struct chart *c, struct buf *b)
{
    const struct grouping *gs = &c->g.gs;
    int64_t least = INT64_MAX, most = 0;
    for (int64_t i = 0; i < gs->n; i++) {
        int64_t n = 0;
        if (gs->g[i].first->scope != RECORD_OF_MODEL)
            return false;
        for (int64_t m = 0; m < gs->g[i].n; m++) {
            bool has = c->metrics.n == 0;
            for (int64_t k = 0; k < c->metrics.n; k++)
                has |= record_has(&gs->set->r[gs->g[i].at[m]], c->metrics.items[k]);
            n += has;
        }
        least = n && n < least ? n : least;
        most = n > most ? n : most;
    }
    buf_printf(b, "%s%lld %s", least < most ? "up to " : "", (long long)most,
               most == 1 ? "text or prompt" : "texts or prompts");
    return true;
}

/* "heads of 6 layers and up to 4 steps", "10 texts or prompts": what a group's mean is taken over;
 * groups may differ. */
static void put_over(const struct chart *c, struct buf *b)
{
    static const struct {
        enum group_key key;
        const char *many;
    } all[] = {{KEY_LAYER, "layers"},
               {KEY_STEP, "steps"},
               {KEY_BRANCH, "branches"},
               {KEY_RUN, "runs"},
               {KEY_TRACE, "traces"}};
    char part[sizeof all / sizeof *all][40];
    int parts = 0;
    if (over_tasks(c, b))
        return;
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        int least = INT_MAX, most = 0;
        for (int64_t i = 0; i < c->g.gs.n; i++) {
            int n = values_of(&c->g.gs, &c->g.gs.g[i], all[k].key);
            least = n < least ? n : least;
            most = n > most ? n : most;
        }
        if (most > 1)
            snprintf(part[parts++], sizeof part[0], "%s%d %s", least < most ? "up to " : "", most,
                     all[k].many);
    }
    buf_puts(b, "heads");
    for (int k = 0; k < parts; k++)
        buf_printf(b, "%s%s", k == 0 ? " of " : k + 1 < parts ? ", " : " and ", part[k]);
}

/* ---- panels of methods ---------------------------------------------------------------------- */

static bool same_facet(const struct series *a, const struct series *b)
{
    return strcmp(a->method, b->method) == 0 &&
           strcmp(a->scope ? a->scope : "", b->scope ? b->scope : "") == 0;
}

/* The first series of its facet? */
static bool begins(const struct series_list *l, int i)
{
    for (int k = 0; k < i; k++)
        if (same_facet(&l->s[k], &l->s[i]))
            return false;
    return true;
}

/* Is this one of n settings drawn? All are, or FACET_SERIES from the first to the last. */
static bool is_drawn(int place, int n)
{
    int k = n > 1 ? (place * (FACET_SERIES - 1) + n - 2) / (n - 1) : 0;
    return n <= FACET_SERIES || k * (n - 1) / (FACET_SERIES - 1) == place;
}

static void fill(const struct series_list *l, int first, struct chart_facet *f)
{
    const struct series *s = &l->s[first];
    int n = 0, place = 0;
    snprintf(f->title, sizeof f->title, "%.48s%s%.32s%s", s->scope ? s->scope : "",
             s->scope && s->scope[0] && s->method[0] ? ": " : "", s->method,
             s->sparse ? " (sparse calls)" : "");
    for (int i = first; i < l->n; i++)
        n += same_facet(&l->s[i], s);
    for (int i = first; i < l->n; i++) {
        if (!same_facet(&l->s[i], s))
            continue;
        if (is_drawn(place++, n))
            f->s[f->n++] = i;
        else
            f->hidden++;
    }
}

static int chart_facets_make(const struct series_list *l, int most, struct chart_facets *out,
                             struct err *err)
{
    PASS_ON(mem_zalloc(&out->f, l->n ? l->n : 1, sizeof *out->f, "panels", err));
    if (l->n <= most) {
        out->n = 1;
        for (int i = 0; i < l->n; i++)
            out->f[0].s[out->f[0].n++] = i;
    } else
        for (int i = 0; i < l->n; i++)
            if (begins(l, i))
                fill(l, i, &out->f[out->n++]);
    for (int i = 0; i < out->n; i++) {
        out->most = out->f[i].n > out->most ? out->f[i].n : out->most;
        for (int k = 0; k < out->f[i].n; k++) {
            int chars = utf8_count(chart_facet_label(out, &l->s[out->f[i].s[k]]));
            out->longest = chars > out->longest ? chars : out->longest;
        }
    }
    return 0;
}

static void chart_facets_free(struct chart_facets *f)
{
    free(f->f);
    *f = (struct chart_facets){0};
}

const char *chart_facet_label(const struct chart_facets *f, const struct series *s)
{
    size_t scope = s->scope ? strlen(s->scope) : 0;
    if (f->n > 1 && !s->method[0] && scope && strncmp(series_label(s), s->scope, scope) == 0)
        return series_label(s) + scope + (series_label(s)[scope] == ' ');
    const char *label = series_label(s), *method = s->method[0] ? strstr(label, s->method) : NULL;
    if (f->n == 1 || !method)
        return label;
    method += strlen(s->method);
    while (*method == ' ')
        method++;
    return !*method || *method == '(' ? "defaults" : method;
}

static void chart_facets_note(const struct chart_facets *f, const struct series_list *l, bool grey,
                              struct buf *b)
{
    if (f->n > 1)
        buf_printf(b, " One panel per method, %d settings in all%s.", l->n,
                   grey ? "; grey: those of the other panels" : "");
    for (int i = 0; i < f->n; i++)
        if (f->f[i].hidden) {
            char text[200];
            snprintf(text, sizeof text, "%d of %d settings of %s are drawn", f->f[i].n,
                     f->f[i].n + f->f[i].hidden, f->f[i].title);
            log_warn("%s: choose with --params, --where or --layers", text);
            buf_printf(b, " %s; --params, --where and --layers choose others.", text);
        }
}

/* ---- marks ----------------------------------------------------------------------------------- */

#define MARK_STYLE "points pt 64 lw 1.6 ps 1.1*point_scale lc rgb '#595959'"

int marks_parse(const char *text, struct marks *out, struct err *err)
{
    const char *p = text ? strchr(text, '=') : NULL;
    int64_t cap = 0;
    const char *end;
    memset(out, 0, sizeof *out);
    if (!text)
        return 0;
    if (!p || p == text || (size_t)(p - text) >= sizeof out->name)
        return err_set(err, ERR_USAGE,
                       "--marks: NAME=X:Y,X:Y was expected, the name below %d letters, not '%s'",
                       (int)sizeof out->name, text);
    snprintf(out->name, sizeof out->name, "%.*s", (int)(p - text), text);
    do {
        struct xy_mark m;
        if (!num_read(++p, &m.x, &end) || *end != ':' || !num_read(end + 1, &m.y, &end) ||
            (*end && *end != ','))
            return err_set(err, ERR_USAGE, "--marks: X:Y, two numbers, was expected at '%s'", p);
        PASS_ON(mem_grow(&out->m, &cap, out->n + 1, sizeof *out->m, "marks", err));
        out->m[out->n++] = m;
        p = end;
    } while (*p);
    return 0;
}

static void marks_free(struct marks *k)
{
    free(k->m);
    memset(k, 0, sizeof *k);
}

void marks_data(const struct marks *k, struct buf *b)
{
    if (k->n)
        buf_printf(b, "# %s: x, y\n", k->name);
    for (int i = 0; i < k->n; i++)
        buf_printf(b, "%.10g %.10g\n", k->m[i].x, k->m[i].y);
    if (k->n)
        buf_puts(b, "\n\n");
}

void marks_plot(const struct marks *k, struct canvas *p, int block, double shift)
{
    if (k->n)
        canvas_plot(p, block, "using ($1-%.10g):2 with " MARK_STYLE, shift);
}

void marks_entry(const struct marks *k, struct canvas *p)
{
    if (k->n)
        canvas_entry(p, MARK_STYLE, k->name);
}

/* ---- points ---------------------------------------------------------------------------------- */

void chart_init(struct chart *c, const struct figure *f, const struct figure_args *a)
{
    *c = (struct chart){.f = f, .a = a, .metric = a->metrics ? a->metrics : f->metric};
}

void chart_free(struct chart *c)
{
    chart_groups_free(&c->g);
    series_free(&c->l);
    chart_facets_free(&c->facets);
    free(c->p);
    str_list_free(&c->metrics);
    str_list_free(&c->places);
    free(c->grid.v);
    str_list_free(&c->grid.titles);
    str_list_free(&c->grid.x_names);
    str_list_free(&c->grid.y_names);
    marks_free(&c->marks);
    buf_free(&c->title);
    buf_free(&c->says);
    buf_free(&c->caption);
    buf_free(&c->data);
    canvas_free(&c->canvas);
}

int chart_add(struct chart *c, const struct chart_point *p, struct err *err)
{
    PASS_ON(mem_grow(&c->p, &c->cap, c->n + 1, sizeof *c->p, "points", err));
    c->p[c->n] = *p;
    c->p[c->n++].panel = c->panels - 1;
    return 0;
}

int chart_add_stats(struct chart *c, int series, double x, const struct stats *s, double scale,
                    struct err *err)
{
    bool median = c->f->flags & FIGURE_QUARTILES;
    struct chart_point p = {.series = series,
                            .x = x,
                            .y = (median ? s->median : s->mean) * scale,
                            .lo = (median         ? s->q1
                                   : isnan(s->sd) ? 0
                                                  : s->sd) *
                                  scale,
                            .hi = s->q3 * scale};
    return series < 0 ? err->code : chart_add(c, &p, err);
}

static int by_place(const void *a, const void *b)
{
    const struct chart_point *p = a, *q = b;
    if (p->panel != q->panel)
        return p->panel - q->panel;
    if (p->series != q->series)
        return p->series - q->series;
    return p->x != q->x ? (p->x > q->x) - (p->x < q->x) : (p->y > q->y) - (p->y < q->y);
}

void chart_sort(struct chart *c)
{
    if (c->n)
        qsort(c->p, (size_t)c->n, sizeof *c->p, by_place);
}

void chart_y_name(const struct chart_panel *p, struct buf *b)
{
    double scale;
    if (p->y_name[0])
        buf_puts(b, p->y_name);
    else
        chart_metric_label(p->metric, b, &scale);
}

struct chart_panel *chart_panel(struct chart *c, const char *metric, const char *x_name,
                                enum figure_axis axis)
{
    struct chart_panel *p = &c->panel[c->panels++];
    *p = (struct chart_panel){.metric = metric, .axis = axis};
    snprintf(p->x_name, sizeof p->x_name, "%s", x_name);
    return p;
}

int chart_series_done(struct chart *c, enum series_tell tell, struct err *err)
{
    PASS_ON(series_labels(&c->l, LEGEND_CHARS, err));
    if (c->l.n && c->l.s[0].method[0])
        series_shade(&c->l, tell);
    int most = c->split ? 0 : c->facets_from ? c->facets_from : FACET_SERIES;
    PASS_ON(chart_facets_make(&c->l, most, &c->facets, err));
    chart_facets_note(&c->facets, &c->l, (c->f->flags & FIGURE_GREY) && !c->split, &c->caption);
    return 0;
}

/* ---- title ---------------------------------------------------------------------------------- */

static void put_metrics(const struct chart *c, struct buf *b)
{
    int n = (int)c->metrics.n;
    for (int i = 0; i < n; i++) {
        buf_puts(b, i == 0 ? "" : i + 1 < n ? "; " : " and ");
        chart_metric_name(c->metrics.items[i], b);
    }
    if (n == 0)
        chart_metric_name(c->metric, b);
}

/* What stands for a word with a dollar in the title of a figure; its length. */
static size_t put_word(struct chart *c, const char *word, struct buf *b)
{
    if (strncmp(word, "$over", 5) == 0) {
        put_over(c, b);
        return 5;
    }
    if (word[1] == 'y')
        put_metrics(c, b);
    else
        buf_puts(b, buf_str(&c->says));
    return 2;
}

int chart_title(struct chart *c, struct err *err)
{
    for (const char *t = c->f->title; *t;) {
        size_t plain = strcspn(t, "$");
        buf_put(&c->title, t, plain);
        t += plain;
        t += *t ? put_word(c, t, &c->title) : 0;
    }
    if (c->f->caption)
        buf_printf(&c->caption, " %s", c->f->caption);
    PASS_ON(buf_check(&c->title, "title", err));
    return buf_check(&c->caption, "caption", err);
}

/* ---- axes ----------------------------------------------------------------------------------- */

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

/* An axis of few decades has too few numbers of its own. */
void chart_log_x(double low, double high, int width, struct buf *s)
{
    int first = (int)floor(log10(low)), last = (int)ceil(log10(high));
    buf_puts(s, "set logscale x\nset format x '%g'\n");
    if (last - first > width / 150.0)
        return;
    buf_puts(s, "set xtics add (");
    for (int k = first; k < last; k++)
        buf_printf(s, "%s%g, %g", k > first ? ", " : "", 2 * pow(10, k), 5 * pow(10, k));
    buf_puts(s, ")\n");
}

/* A sweep over more than a decade of positive values reads better on a logarithmic axis; layers,
 * steps and the like are counted: no tics between them. */
static void x_axis(enum figure_axis axis, double low, double high, int width, struct buf *s)
{
    double pad = fmax(0.5, 0.04 * (high - low));
    if (axis == AXIS_TOKENS && low >= 1 && high >= 2 * low)
        token_axis(low, high, s);
    else if (axis == AXIS_PARAM && low > 0 && high >= 10 * low)
        chart_log_x(low, high, width, s);
    else if (axis == AXIS_COUNT || axis == AXIS_TOKENS)
        buf_printf(s, "set xrange [%g:%g]\nset xtics %g nomirror\n", low - pad, high + pad,
                   gp_count_step(high - low + 1, width > 300   ? 12
                                                 : width > 200 ? 8
                                                               : 5));
}

/* gnuplot's range of an axis of the metric: shares end at 1, what is never negative begins at 0;
 * shares that had better be large, most of which are near 1, begin where their data do. */
static const char *chart_range(const char *metric)
{
    const struct metric_def *def = metric_def_find(metric);
    enum metric_axis axis = metric_axis(metric);
    if (axis == AXIS_SHARE)
        return metric_better(metric) == BETTER_HIGHER ? "*<0.99:1" : "0:1";
    return axis == AXIS_LOG || !def ? "*:*" : "0<*:*";
}

static void y_axis(const struct chart *c, struct chart_panel *p, double least, bool positive,
                   double lowest, struct buf *s)
{
    bool log = positive && ((c->f->flags & FIGURE_LOG) || metric_axis(p->metric) == AXIS_LOG);
    if (log)
        buf_printf(s, "set logscale y\nset format y '%s'\n", figure_powers(c->a->output));
    if (log && p->rounding && (c->f->flags & FIGURE_LOG))
        buf_printf(s, "set yrange [%.6g:*]\n", chart_log_floor(least));
    else if (!log && (c->f->flags & FIGURE_NARROW) && lowest < 1) {
        double step = gp_step(1 - lowest, 4); /* low panels of one metric, to be compared */
        buf_printf(s, "set ytics %g nomirror\nset yrange [%.8g:1]\n", step,
                   1 - step * ceil((1 - lowest) / step));
    } else if (!log)
        buf_printf(s, "set yrange [%s]\n", chart_range(p->metric));
}

void chart_axes(const struct chart *c, int panel, struct buf *s)
{
    struct chart_panel *p = (struct chart_panel *)&c->panel[panel];
    double low = INFINITY, high = -INFINITY, least = INFINITY, lowest = INFINITY;
    bool positive = true;
    for (int64_t i = 0; i < c->n; i++) {
        const struct chart_point *q = &c->p[i];
        if (q->panel != panel)
            continue;
        low = fmin(low, q->x);
        high = fmax(high, q->x);
        positive = positive && q->y > 0;
        lowest = fmin(lowest, q->y);
        if (!q->rounding)
            least = fmin(least, q->y);
    }
    for (int i = 0; i < c->marks.n; i++) {
        low = fmin(low, c->marks.m[i].x);
        high = fmax(high, c->marks.m[i].x);
    }
    buf_puts(s, "unset logscale\nset xrange [*:*]\nset yrange [*:*]\n");
    if (c->f->flags & FIGURE_STEPS) { /* lines at the ends of the axes stand clear of the frame */
        double pad = high > low ? 0.03 * (high - low) : 0.05 * fmax(fabs(high), 1);
        buf_printf(s, "set xrange [%.8g:%.8g]\nset yrange [-0.03:1.03]\n", low - pad, high + pad);
        return;
    }
    x_axis(p->axis, low, high, c->canvas.width, s);
    y_axis(c, p, least, positive, lowest, s);
}

/* ---- metrics -------------------------------------------------------------------------------- */

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
            return err_set(err, ERR_USAGE, "--metrics: '%.*s' is too long", (int)len, p);
        snprintf(one, sizeof one, "%.*s", (int)len, p);
        if (len)
            str_list_add(out, one);
        p += len + (p[len] == ',');
    }
    return out->n ? 0 : err_set(err, ERR_USAGE, "--metrics: no metric given");
}
