/*
 * bars.c - bars: a metric by layer, or of evals by task, a bar per setting: its median over heads
 * or prompts with quartiles.
 */
#include "plots/chart.h"

#include "analyze/metricfacts.h"
#include "core/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct bar {
    int series, layer;
    double median, q1, q3;
};

struct bars {
    struct chart_groups g;
    const char *metric;
    struct bar *bar; /* owned [g.gs.n] */
    struct series_list l;
    struct chart_facets f;
    int low, high; /* layers, or numbers of tasks; of records of whole models -1 */
    bool by_task;
    struct str_list tasks; /* texts of tasks in the order of their names */
};

static bool of_models(const struct bars *q)
{
    return q->high < 0;
}

/* The number of a record's task, new if it is the first of it; -1: out of memory. */
static int task_number(struct bars *q, const struct record *r)
{
    struct buf text = {0};
    int64_t k = 0;
    key_text(r, KEY_TASK, &text);
    while (k < q->tasks.n && strcmp(q->tasks.items[k], buf_str(&text)) != 0)
        k++;
    if (k == q->tasks.n)
        str_list_add(&q->tasks, buf_str(&text));
    bool failed = text.failed || q->tasks.failed;
    buf_free(&text);
    return failed ? -1 : (int)k;
}

/* "needle" of "needle:domain=c", "qasper.jsonl" of "file:file=qasper.jsonl:metric=f1". */
static void put_task(struct buf *b, const char *task)
{
    const char *name = strncmp(task, "file:file=", 10) == 0 ? task + 10 : task;
    buf_printf(b, "%.*s", (int)strcspn(name, ":"), name);
}

static int collect(struct bars *q, struct err *err)
{
    const char *unit;
    double scale = metric_scale(q->metric, &unit);
    struct stats s;
    q->low = INT32_MAX;
    q->high = INT32_MIN;
    for (int64_t i = 0; i < q->g.gs.n; i++) {
        const struct group *grp = &q->g.gs.g[i];
        const struct record *r = grp->first;
        int rc = group_stats(&q->g.gs, grp, q->metric, &s, NULL, err);
        int k = rc ? -1 : chart_series(&q->g, r, r->params, &q->l, err);
        if (k < 0)
            return err->code;
        int at = q->by_task ? task_number(q, r) : r->layer;
        if (q->by_task && at < 0)
            return err_set(err, ERR_NOMEM, "figure bars: out of memory");
        q->bar[i] = (struct bar){k, at, s.median * scale, s.q1 * scale, s.q3 * scale};
        q->low = at < q->low ? at : q->low;
        q->high = at > q->high ? at : q->high;
    }
    return 0;
}

/* Place of a series among the bars of its panel, and their number. */
static void place_of(const struct bars *q, int series, int *place, int *n)
{
    *place = *n = 0;
    for (int i = 0; i < q->f.n; i++)
        for (int k = 0; k < q->f.f[i].n; k++)
            if (q->f.f[i].s[k] == series) {
                *place = k;
                *n = q->f.f[i].n;
            }
}

#define GROUP_WIDTH 0.84 /* of the bars of a layer */

/* A block per series: x, layer, median, quartiles. */
static void write_bars(const struct bars *q, struct buf *b)
{
    for (int s = 0; s < q->l.n; s++) {
        int place, n;
        place_of(q, s, &place, &n);
        buf_printf(b, "# %s: x, layer, median, lower and upper quartile\nnan nan nan nan nan\n",
                   q->l.s[s].name);
        for (int64_t i = 0; i < q->g.gs.n && n; i++) {
            const struct bar *bar = &q->bar[i];
            double x = bar->layer + (place - (n - 1) / 2.0) * GROUP_WIDTH / n;
            if (bar->series == s)
                buf_printf(b, "%.6f %d %.10g %.10g %.10g\n", x, bar->layer, bar->median, bar->q1,
                           bar->q3);
        }
        buf_puts(b, "\n\n");
    }
}

/* Is a bar wide enough for a whisker, and is there any? */
static bool draws_whiskers(const struct bars *q, const struct chart *c, int n)
{
    bool any = false;
    for (int64_t i = 0; i < q->g.gs.n; i++)
        any |= q->bar[i].q1 < q->bar[i].q3;
    return any && c->width * GROUP_WIDTH / n / (q->high - q->low + 1.2) >= 4;
}

/* Bars of every second method of a panel have a border: in grey their colours are alike. Methods of
 * one colour (styles.def) differ by hatching, as they do by points in other figures. */
static void fill_of(const struct bars *q, const struct chart_facet *f, int k, struct buf *b)
{
    int methods = 0, alike = 0;
    const struct series *own = &q->l.s[f->s[k]];
    for (int j = 1; j <= k; j++) {
        const struct series *last = &q->l.s[f->s[j - 1]];
        bool next = strcmp(q->l.s[f->s[j]].method, last->method) != 0;
        methods += next;
        alike +=
            next && strcmp(last->method, own->method) != 0 && strcmp(last->color, own->color) == 0;
    }
    if (alike)
        buf_printf(b, "fs pattern %d border lc rgb '#333333'", alike == 1 ? 5 : 2);
    else
        buf_puts(b, methods % 2 ? "fs solid 1.0 border lc rgb '#333333'" : "fs solid 1.0 noborder");
}

static void put_tics(const struct bars *q, const struct chart *c, struct buf *s)
{
    if (of_models(q)) {
        buf_puts(s, "unset xtics\n");
        return;
    }
    if (!q->by_task) {
        buf_printf(s, "set xtics %g nomirror\n",
                   gp_count_step(q->high - q->low + 1, c->width / 26 + 1));
        return;
    }
    buf_puts(s, "set xtics nomirror (");
    for (int64_t k = 0; k < q->tasks.n; k++) {
        struct buf name = {0};
        put_task(&name, q->tasks.items[k]);
        buf_puts(s, k ? ", " : "");
        gp_tic(&c->gp, s, buf_str(&name));
        buf_printf(s, " %lld", (long long)k);
        buf_free(&name);
    }
    buf_puts(s, ")\n");
}

static void draw_facet(const struct bars *q, struct chart *c, int i)
{
    const struct chart_facet *f = &q->f.f[i];
    struct buf *s = &c->gp.script;
    double width = GROUP_WIDTH / f->n;
    bool whiskers = draws_whiskers(q, c, f->n);
    put_tics(q, c, s);
    buf_printf(s,
               "set boxwidth %.6f absolute\nset style fill solid 1.0 noborder\n"
               "set xrange [%g:%g]\nset grid noxtics\nset yrange [%s]\n",
               width * 0.92, q->low - 0.6, q->high + 0.6,
               metric_axis(q->metric) == AXIS_SHARE ? "0:1" : "0:*");
    for (int k = 0; k < f->n; k++) {
        buf_puts(s, k ? ", " : "plot ");
        gp_data_name(&c->gp, "dat");
        buf_printf(s, " index %d using 1:3 with boxes lc rgb '%s' ", f->s[k],
                   q->l.s[f->s[k]].color);
        fill_of(q, f, k, s);
        buf_puts(s, " notitle");
        if (!whiskers)
            continue;
        buf_puts(s, ", ");
        gp_data_name(&c->gp, "dat");
        buf_printf(s,
                   " index %d using 1:4:(0):($5-$4) with vectors nohead lc rgb '#333333' lw 0.8 "
                   "notitle",
                   f->s[k]);
    }
    for (int k = 0; k < f->n; k++) {
        struct buf how = {0};
        buf_printf(&how, "boxes lc rgb '%s' ", q->l.s[f->s[k]].color);
        fill_of(q, f, k, &how);
        chart_entry_as(c, buf_str(&how), chart_facet_label(&q->f, &q->l.s[f->s[k]]));
        buf_free(&how);
    }
    chart_end(c);
}

static int lay_out(struct bars *q, const struct figure_args *a, struct buf *title,
                   struct buf *caption, struct chart *c, struct err *err)
{
    int layers = q->high - q->low + 1, want = layers * (12 * q->f.most + 14), rc = 0;
    struct chart_layout layout = {.panels = 1,
                                  .width = want < 460    ? 460
                                           : want > 1400 ? 1400
                                                         : want,
                                  .height = 340};
    chart_metric_name(q->metric, title);
    buf_puts(title, of_models(q) ? "" : q->by_task ? " by task" : " by layer");
    buf_puts(title, ", median over ");
    chart_over(&q->g, NULL, title);
    chart_facets_note(&q->f, &q->l, false, caption);
    TRY(buf_check(title, "title", err));
    TRY(buf_check(caption, "caption", err));
    layout.title = buf_str(title);
    layout.caption = buf_str(caption);
    chart_facets_room(&q->f, &layout);
    TRY(chart_open(a, &layout, c, err));
    if (draws_whiskers(q, c, q->f.most))
        buf_puts(&c->gp.caption, " Whiskers: quartiles.");
out:
    return rc;
}

static int draw(struct bars *q, const struct figure_args *a, struct err *err)
{
    struct chart c = {0};
    struct buf data = {0}, label = {0}, title = {0}, caption = {0};
    double scale;
    int rc = 0;

    TRY(lay_out(q, a, &title, &caption, &c, err));
    write_bars(q, &data);
    chart_metric_label(q->metric, &label, &scale);
    for (int i = 0; i < q->f.n; i++) {
        chart_panel(&c, i,
                    of_models(q) ? ""
                    : q->by_task ? "task"
                                 : "layer",
                    i % c.cols == 0 ? buf_str(&label) : "");
        if (q->f.n > 1) {
            chart_head(&c, i, q->f.f[i].title);
            chart_key(&c, i);
        }
        draw_facet(q, &c, i);
    }
    TRY(chart_finish(&c, &data, err));
out:
    chart_free(&c);
    buf_free(&data);
    buf_free(&label);
    buf_free(&title);
    buf_free(&caption);
    return rc;
}

static int draw_bars(const struct figure_args *a, struct err *err)
{
    struct bars q = {.metric = a->metric ? a->metric : "density_elem",
                     .by_task = a->x && strcmp(a->x, "task") == 0};
    enum group_key keys[] = {KEY_METHOD, KEY_PARAMS, q.by_task ? KEY_TASK : KEY_LAYER};
    int rc = 0;

    if (a->x && !q.by_task && strcmp(a->x, "layer") != 0)
        FAIL(err, ERR_USAGE, "figure bars: --x %s: bars stand by layer or by task", a->x);

    TRY(chart_group(a, keys, 3, GROUP_SPLIT_STEPS, q.metric, KEY_COUNT, &q.g, err));
    TRY(mem_alloc(&q.bar, q.g.gs.n, sizeof *q.bar, "bars", err));
    TRY(collect(&q, err));
    TRY(series_labels(&q.l, LEGEND_CHARS, err));
    series_shade(&q.l, TELL_SHADE);
    TRY(chart_facets_make(&q.l, false, &q.f, err));
    TRY(draw(&q, a, err));
out:
    chart_groups_free(&q.g);
    series_free(&q.l);
    chart_facets_free(&q.f);
    str_list_free(&q.tasks);
    free(q.bar);
    return rc;
}

const struct figure figure_bars = {
    .listed = {"bars", "a metric by layer, or of a model, one bar per method",
               "input: records; --metric (density_elem), --x task: of evals by task"},
    .uses = "layer,head,step,branch,method,params,metric,x",
    .input = FIGURE_RECORDS,
    .draw = draw_bars,
};
