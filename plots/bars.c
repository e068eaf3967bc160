/*
 * bars.c - the drawers of bars: a bar for each setting beside the others of its layer or task, or
 * the means of one setting with their numbers and the mean of all bars (figures 14 and 16 of
 * SpargeAttn, arXiv 2502.18137); and of stacked bars: where the time of a method goes.
 */
#include "plots/chart.h"

#include "analyze/metricfacts.h"
#include "core/mem.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GROUP_WIDTH 0.84 /* of the bars at one place */
#define LABEL_LEAST 13   /* units of a bar below which no number fits, not even a vertical one */
#define MEAN_LINE "lines lw 1.6 dt 2 lc rgb '#990000'"

static bool has_numbers(const struct chart *c)
{
    return c->f->flags & FIGURE_NUMBERS;
}

/* ---- bars of settings ----------------------------------------------------------------------- */

/* "needle" of "needle:domain=c", "qasper.jsonl" of "file:file=qasper.jsonl:metric=f1". */
static void put_task(struct buf *b, const char *task)
{
    const char *name = strncmp(task, "file:file=", 10) == 0 ? task + 10 : task;
    buf_printf(b, "%.*s", (int)strcspn(name, ":"), name);
}

/* The place of a record's task, a new one if it is the first of it; -1: out of memory. */
static int task_place(struct chart *c, const struct record *r)
{
    OWN(buf_free) struct buf text = {0};
    int64_t k = 0;
    key_text(r, KEY_TASK, &text);
    while (k < c->places.n && strcmp(c->places.items[k], buf_str(&text)) != 0)
        k++;
    if (k == c->places.n)
        str_list_add(&c->places, buf_str(&text));
    bool failed = text.failed || c->places.failed;
    return failed ? -1 : (int)k;
}

int bars_of_key(struct chart *c, struct err *err)
{
    const char *unit, *x = c->a->x ? c->a->x : "layer";
    double scale = metric_scale(c->metric, &unit);
    bool by_task = strcmp(x, "task") == 0;
    OWN(buf_free) struct buf keys = {0};
    if (!by_task && strcmp(x, "layer") != 0)
        return err_set(err, ERR_USAGE, "--x %s: bars stand by layer or by task", x);
    buf_printf(&keys, "%s,%s", c->f->keys, x);
    PASS_ON(buf_check(&keys, "keys", err));
    PASS_ON(chart_regroup(c, keys.data, c->metric, KEY_COUNT, c->f->flags, err));
    bool models = !by_task && c->g.gs.g[c->g.gs.n - 1].first->layer < 0;
    chart_panel(c, c->metric, models ? "" : x, AXIS_COUNT);
    buf_printf(&c->says, "%s%s", models ? "" : " by ", models ? "" : x);
    for (int64_t i = 0; i < c->g.gs.n; i++) {
        const struct record *r = c->g.gs.g[i].first;
        struct stats s;
        PASS_ON(group_stats(&c->g.gs, &c->g.gs.g[i], c->metric, &s, NULL, err));
        int at = by_task ? task_place(c, r) : r->layer;
        if (by_task && at < 0)
            return err_set(err, ERR_NOMEM, "bars: out of memory");
        PASS_ON(chart_add_stats(c, chart_series(c, r, r->params, err), at, &s, scale, err));
    }
    return 0;
}

/* ---- means of one setting ------------------------------------------------------------------- */

/* Samples are counted from 1, in the order in which the records have them. */
static int sample_number(const struct recset *set, const struct record *r)
{
    int n = 1;
    for (int64_t i = 0; i < set->n; i++) {
        bool seen = false;
        if (key_compare(&set->r[i], r, KEY_TRACE) == 0)
            return n;
        for (int64_t k = 0; k < i && !seen; k++)
            seen = key_compare(&set->r[k], &set->r[i], KEY_TRACE) == 0;
        n += !seen;
    }
    return n;
}

static int by_mean(const void *a, const void *b)
{
    const struct chart_point *p = a, *q = b;
    return p->y != q->y ? (p->y < q->y) - (p->y > q->y) : p->scope - q->scope;
}

static int first_place(const struct chart *c)
{
    return strcmp(c->panel[0].x_name, "layer") == 0 ? c->p[0].scope : 1;
}

/* Marks have places of their own, also where no bar is. */
static int check_marks(const struct chart *c, struct err *err)
{
    bool layers = strcmp(c->panel[0].x_name, "layer") == 0;
    if (c->marks.n && layers && c->p[c->n - 1].scope - c->p[0].scope != (int)c->n - 1)
        return err_set(err, ERR_USAGE,
                       "--marks: of samples, or of layers of which none between is left out");
    return 0;
}

static int add_means(struct chart *c, const char *x, struct err *err)
{
    const char *unit;
    double scale = metric_scale(c->metric, &unit);
    for (int64_t i = 0; i < c->g.gs.n; i++) {
        const struct record *r = c->g.gs.g[i].first;
        struct stats s;
        PASS_ON(group_stats(&c->g.gs, &c->g.gs.g[i], c->metric, &s, NULL, err));
        PASS_ON(chart_add_stats(c, chart_series(c, r, r->params, err), 0, &s, scale, err));
        if (c->l.n > 1)
            return err_set(
                err, ERR_USAGE,
                "'%s' and '%s': means are drawn of one setting; choose with --method, --params or "
                "--where",
                c->l.s[0].name, c->l.s[1].name);
        c->p[c->n - 1].scope = strcmp(x, "layer") == 0 ? r->layer : sample_number(c->g.gs.set, r);
    }
    return 0;
}

/* All calls count: the paper's means are of whole runs. A bar's `scope` is its name, the number of
 * a layer or sample, and its x the place. */
int bars_of_means(struct chart *c, struct err *err)
{
    const char *x = c->a->x ? c->a->x : "layer";
    bool samples = strcmp(x, "sample") == 0;
    if (!name_matches(c->f->x, x))
        return err_set(err, ERR_USAGE, "means: --x takes layer or sample");
    PASS_ON(chart_regroup(c, samples ? "method,params,trace" : "method,params,layer", c->metric,
                          KEY_COUNT, c->f->flags, err));
    chart_panel(c, c->metric, x, AXIS_COUNT);
    PASS_ON(add_means(c, x, err));
    if (samples)
        qsort(c->p, (size_t)c->n, sizeof *c->p, by_mean);
    for (int64_t i = 0; i < c->n; i++)
        c->p[i].x = (double)i;
    PASS_ON(check_marks(c, err));
    buf_printf(&c->says, " of %s by %s", c->l.s[0].name, x);
    buf_printf(&c->caption, "Dashed: the mean of the bars.%s",
               samples ? " Samples from the largest to the least." : "");
    if (c->marks.n)
        buf_printf(&c->caption, " Grey: %s.", c->marks.name);
    return 0;
}

/* ---- data ----------------------------------------------------------------------------------- */

/* What the bars span. */
struct extent {
    double low, high, least, largest, sum; /* places; values */
    int64_t n;
};

static struct extent span_of(const struct chart *c)
{
    struct extent s = {INFINITY, -INFINITY, INFINITY, -INFINITY, 0, 0};
    for (int64_t i = 0; i < c->n; i++) {
        s.low = fmin(s.low, c->p[i].x);
        s.high = fmax(s.high, c->p[i].x);
        s.least = fmin(s.least, c->p[i].y);
        s.largest = fmax(s.largest, c->p[i].y);
        s.sum += c->p[i].y;
        s.n++;
    }
    for (int i = 0; i < c->marks.n; i++) {
        s.high = fmax(s.high, c->marks.m[i].x - first_place(c));
        s.largest = fmax(s.largest, c->marks.m[i].y);
        s.least = fmin(s.least, c->marks.m[i].y);
    }
    return s;
}

/* A share has two digits as in the paper, three where bars are so alike that two would not tell
 * them apart. */
static void number_text(const struct chart *c, double v, char text[16])
{
    struct extent all = span_of(c);
    if (metric_axis(c->metric) == AXIS_SHARE)
        title_share(v, all.largest - all.least < 0.1 ? 3 : 2, text);
    else
        snprintf(text, 16, "%.3g", v);
}

/* Place, mean, number, name. */
static void write_means(struct chart *c)
{
    struct buf *b = &c->data;
    buf_printf(b, "# %s: place, mean, number, %s\n", c->l.s[0].name, c->panel[0].x_name);
    for (int64_t i = 0; i < c->n; i++) {
        char text[16];
        number_text(c, c->p[i].y, text);
        buf_printf(b, "%.0f %.10g \"%s\" %d\n", c->p[i].x, c->p[i].y, text, c->p[i].scope);
    }
    buf_puts(b, "\n\n");
    marks_data(&c->marks, b);
}

/* Place of a series among the bars of its panel; their number, 0: it is not drawn. */
static int place_of(const struct chart *c, int series, int *place)
{
    for (int i = 0; i < c->facets.n; i++)
        for (int k = 0; k < c->facets.f[i].n; k++)
            if (c->facets.f[i].s[k] == series) {
                *place = k;
                return c->facets.f[i].n;
            }
    return 0;
}

/* A block for each series: x, layer, median, quartiles. */
static void write_bars(struct chart *c)
{
    struct buf *b = &c->data;
    for (int s = 0; s < c->l.n; s++) {
        int place = 0, n = place_of(c, s, &place);
        buf_printf(b, "# %s: x, %s, median, lower and upper quartile\nnan nan nan nan nan\n",
                   c->l.s[s].name, c->places.n ? "task" : "layer");
        for (int64_t i = 0; i < c->n && n; i++) {
            const struct chart_point *p = &c->p[i];
            if (p->series == s)
                buf_printf(b, "%.6f %.0f %.10g %.10g %.10g\n",
                           p->x + (place - (n - 1) / 2.0) * GROUP_WIDTH / n, p->x, p->y, p->lo,
                           p->hi);
        }
        buf_puts(b, "\n\n");
    }
}

/* ---- drawing -------------------------------------------------------------------------------- */

/* Is a bar wide enough for a whisker, and is there any? */
static bool draws_whiskers(const struct chart *c, int n)
{
    struct extent s = span_of(c);
    bool any = false;
    for (int64_t i = 0; i < c->n; i++)
        any |= !has_numbers(c) && c->p[i].lo < c->p[i].hi;
    return any && c->canvas.width * GROUP_WIDTH / n / (s.high - s.low + 1.2) >= 4;
}

/* Bars of every second method of a panel have a border: in grey their colours are alike. Methods of
 * one colour (styles.def) differ by hatching, as they do by points in other figures. */
static void fill_of(const struct chart *c, const struct chart_facet *f, int k, struct buf *b)
{
    int methods = 0, alike = 0;
    const struct series *own = &c->l.s[f->s[k]];
    for (int j = 1; j <= k; j++) {
        const struct series *last = &c->l.s[f->s[j - 1]];
        bool next = strcmp(c->l.s[f->s[j]].method, last->method) != 0;
        methods += next;
        alike +=
            next && strcmp(last->method, own->method) != 0 && strcmp(last->color, own->color) == 0;
    }
    if (alike)
        buf_printf(b, "fs pattern %d border lc rgb '#333333'", alike == 1 ? 5 : 2);
    else
        buf_puts(b, methods % 2 ? "fs solid 1.0 border lc rgb '#333333'" : "fs solid 1.0 noborder");
}

/* The name of a place: a task, or a number. */
static void put_tic(struct chart *c, const struct chart_point *p, struct buf *b)
{
    OWN(buf_free) struct buf name = {0};
    if (c->places.n)
        put_task(&name, c->places.items[(int)p->x]);
    else
        buf_printf(&name, "%d", has_numbers(c) ? p->scope : (int)p->x);
    gp_tic(&c->canvas.gp, b, buf_str(&name));
    buf_printf(b, " %.0f", p->x);
}

/* Names below the bars, as many as have room, and of marks where no bar is. */
static void put_tics(struct chart *c)
{
    struct buf *s = &c->canvas.gp.script;
    struct extent span = span_of(c);
    int64_t step = (int64_t)gp_count_step(span.high - span.low + 1, c->canvas.width / 26 + 1);
    bool any = false;
    if (span.low < 0) { /* whole models */
        buf_puts(s, "unset xtics\n");
        return;
    }
    buf_puts(s, "set xtics nomirror (");
    for (int64_t x = (int64_t)span.low; (double)x <= span.high; x += c->places.n ? 1 : step) {
        int64_t i = 0;
        while (i < c->n && c->p[i].x != (double)x)
            i++;
        if (i == c->n && !c->marks.n)
            continue;
        buf_puts(s, any ? ", " : "");
        any = true;
        if (i < c->n)
            put_tic(c, &c->p[i], s);
        else
            buf_printf(s, "'%lld' %lld", (long long)x + first_place(c), (long long)x);
    }
    buf_puts(s, ")\n");
}

/* How numbers stand on bars: 0: there is no room for them, 1: lying, 2: upright. */
static int number_turn(const struct chart *c, double places)
{
    double pitch = c->canvas.width / (places + 0.4);
    if (!has_numbers(c) || pitch < LABEL_LEAST)
        return 0;
    return pitch > 5 * 0.85 * CANVAS_CHAR ? 1 : 2;
}

/* Numbers stand on the bars, so that the axis goes on above the longest; with marks, which they
 * would hide, at the foot. */
static void value_axis(const struct chart *c, int turn, struct buf *s)
{
    static const double rooms[] = {8, 24, 52};
    struct extent all = span_of(c);
    double room = rooms[c->marks.n ? 0 : turn], height = fmax(c->canvas.height - room, 40);
    double top = fmax(all.largest, 0), low = fmin(all.least, 0);
    double more = (top - low) * room / height;
    top = top > low ? top : low + 1;
    if (has_numbers(c))
        buf_printf(s, "set yrange [%.8g:%.8g]\n", low < 0 ? low - more : 0, top + more);
    else
        buf_printf(s, "set yrange [%s]\n", metric_axis(c->metric) == AXIS_SHARE ? "0:1" : "0:*");
}

/* The bars of means, the mean of all, marks. */
static void put_means(struct chart *c)
{
    struct extent all = span_of(c);
    int turn = number_turn(c, all.high + 1);
    double mean = all.sum / (double)all.n;
    char what[128], text[16];
    canvas_plot(&c->canvas, 0, "using 1:2 with boxes fs solid 1.0 noborder lc rgb '%s'",
                c->l.s[0].color);
    buf_printf(&c->canvas.gp.script, ", %.10g with " MEAN_LINE " notitle", mean);
    if (turn)
        canvas_plot(&c->canvas, 0, "using 1:%s:3 with labels %s boxed font font_small noenhanced",
                    c->marks.n ? "(0)" : "2",
                    turn == 1 ? "center offset 0,0.6" : "left rotate by 90 offset 0,0.5");
    marks_plot(&c->marks, &c->canvas, 1, first_place(c));
    number_text(c, mean, text);
    snprintf(what, sizeof what, "mean of all %s", text);
    canvas_entry(&c->canvas, MEAN_LINE, what);
    marks_entry(&c->marks, &c->canvas);
}

static void put_bars(struct chart *c, const struct chart_facet *f)
{
    bool whiskers = draws_whiskers(c, f->n);
    struct buf how[SERIES_MOST] = {{0}};
    for (int k = 0; k < f->n; k++) {
        buf_printf(&how[k], "boxes lc rgb '%s' ", c->l.s[f->s[k]].color);
        fill_of(c, f, k, &how[k]);
        canvas_plot(&c->canvas, f->s[k], "using 1:3 with %s", buf_str(&how[k]));
        if (whiskers)
            canvas_plot(&c->canvas, f->s[k],
                        "using 1:4:(0):($5-$4) with vectors nohead lc rgb '#333333' lw 0.8");
    }
    for (int k = 0; k < f->n; k++) {
        canvas_entry(&c->canvas, buf_str(&how[k]), chart_facet_label(&c->facets, &c->l.s[f->s[k]]));
        buf_free(&how[k]);
    }
}

static void draw_panel(struct chart *c, int i)
{
    struct buf *s = &c->canvas.gp.script, label = {0};
    struct extent all = span_of(c);
    bool first = c->canvas.next % c->canvas.cols == 0;
    double scale;
    chart_metric_label(c->metric, &label, &scale);
    canvas_panel(&c->canvas, c->panel[0].x_name, first ? buf_str(&label) : "",
                 c->facets.n > 1 ? c->facets.f[i].title : NULL);
    put_tics(c);
    value_axis(c, number_turn(c, all.high + 1), s);
    buf_printf(s,
               "set boxwidth %.6f absolute\nset style fill solid 1.0 noborder\nset grid noxtics\n"
               "set xrange [%g:%g]\nset style textbox opaque noborder margins 0.3, 0.3\n",
               GROUP_WIDTH / (has_numbers(c) ? 1 : c->facets.f[i].n) * 0.92, all.low - 0.6,
               all.high + 0.6);
    canvas_key(&c->canvas);
    buf_puts(s, "plot NaN notitle");
    if (has_numbers(c))
        put_means(c);
    else
        put_bars(c, &c->facets.f[i]);
    canvas_end(&c->canvas);
    buf_free(&label);
}

static int open_page(struct chart *c, struct err *err)
{
    struct extent all = span_of(c);
    bool many = c->facets.n > 1, numbers = has_numbers(c);
    int places = (int)(all.high - all.low) + 1, most = c->facets.most;
    int want = numbers ? places * 30 : places * (12 * most + 14);
    int chars = numbers ? (int)fmax(16, (double)strlen(c->marks.name)) : c->facets.longest;
    const struct canvas_wish w = {.title = buf_str(&c->title),
                                  .caption = buf_str(&c->caption),
                                  .panels = c->facets.n,
                                  .width = many ? 250 : (int)fmin(fmax(want, 460), 1400),
                                  .height = many ? 190 : 330,
                                  .head_lines = many,
                                  .entries = numbers ? 1 + (c->marks.n > 0) : most,
                                  .chars = chars,
                                  .each = many};
    PASS_ON(canvas_open(c->a, &w, &c->canvas, err));
    if (draws_whiskers(c, c->facets.most))
        buf_puts(&c->canvas.gp.caption, " Whiskers: quartiles.");
    return 0;
}

int draw_bars(const struct figure *f, const struct figure_args *a, struct err *err)
{
    OWN(chart_free) struct chart c;
    chart_init(&c, f, a);
    PASS_ON(marks_parse(a->marks, &c.marks, err));
    PASS_ON(f->points(&c, err));
    PASS_ON(chart_series_done(&c, TELL_SHADE, err));
    PASS_ON(chart_title(&c, err));
    PASS_ON(open_page(&c, err));
    (has_numbers(&c) ? write_means : write_bars)(&c);
    for (int i = 0; i < c.facets.n; i++)
        draw_panel(&c, i);
    return canvas_finish(&c.canvas, &c.data, err);
}

/* ---- times ----------------------------------------------------------------------------------- */

/* Times of different kinds never share a figure: the first kind that the records have. */
enum { OF_GPU, OF_HOST, OF_CLIPS, KINDS };
static const struct {
    const char *what, *phase[3], *name[3];
} kinds[KINDS] = {
    {"measured on the GPU",
     {"time_quant_ns", "time_select_ns", "time_attend_ns"},
     {"quantise", "select", "attend"}},
    {"wall time of the CPU reference",
     {"host_prepare_ns", "host_select_ns", "host_attend_ns"},
     {"prepare", "select", "attend"}},
    {"measured on the GPU",
     {"time_attn_ns", "time_product_ns", "time_other_ns"},
     {"attention", "linear", "others"}},
};

/* Light, middle and dark: parts that touch are told apart in print without colours, too. What a
 * method changes is dark: of a call its last part, of a clip attention, its first. */
static const char *phase_color(int kind, int p)
{
    static const char *const colors[] = {"#dddddd", "#e69f00", "#0072b2"};
    return colors[kind == OF_CLIPS ? 2 - p : p];
}

/* The selection counts as measured where it is part of a total, or where there is none. */
static const char *const measured_total = "time_total_ns";
static const char *const measured_attend = "time_attend_ns";

/* From masks to tiles on the GPU: drawn with the attention that it prepares. */
static const char *const measured_plan = "time_plan_ns";

/* One bar. */
struct bar {
    double phase[3]; /* means in ns over the cells with times; a phase that a cell lacks is 0 */
    bool no_select;  /* the selection of some cell was not measured */
};

static bool has_times(const struct record *r, int kind)
{
    for (int p = 0; p < 3; p++)
        if (record_has(r, kinds[kind].phase[p]))
            return true;
    return false;
}

/* The cells of a bar: the calls beside the group where times are theirs. *gs becomes theirs. */
static struct group cells_of(const struct grouping **gs, const struct group *g, int kind)
{
    struct group own = *g, calls;
    const struct grouping *theirs;
    if (kind != OF_GPU || !group_of_calls(*gs, measured_attend))
        return own;
    own.n = 0;
    if (!group_calls(*gs, g, &theirs, &calls))
        return own;
    *gs = theirs;
    return calls;
}

/* Over the cells that the figure draws, not over all of the set. */
static int find_kind(const struct grouping *all)
{
    for (int k = 0; k < KINDS; k++)
        for (int64_t i = 0; i < all->n; i++) {
            const struct grouping *gs = all;
            struct group g = cells_of(&gs, &all->g[i], k);
            for (int64_t m = 0; m < g.n; m++)
                if (has_times(&gs->set->r[g.at[m]], k))
                    return k;
        }
    return -1;
}

/* False when no cell of the group has times. */
static bool mean_times(const struct grouping *gs, const struct group *g, int kind, struct bar *out)
{
    struct group cells = cells_of(&gs, g, kind);
    int64_t n = 0;
    *out = (struct bar){0};
    for (int64_t m = 0; m < cells.n; m++) {
        const struct record *r = &gs->set->r[cells.at[m]];
        if (!has_times(r, kind))
            continue;
        n++;
        for (int p = 0; p < 3; p++) {
            double x = record_value(r, kinds[kind].phase[p]);
            out->phase[p] += isfinite(x) ? x : 0;
        }
        double plan = kind == OF_GPU ? record_value(r, measured_plan) : 0;
        out->phase[2] += isfinite(plan) ? plan : 0;
        out->no_select |= kind == OF_GPU && !record_has(r, measured_total);
    }
    for (int p = 0; n && p < 3; p++)
        out->phase[p] /= (double)n;
    return n > 0;
}

/* The figure's bars, in the order of their series. */
struct stacks {
    struct chart c;
    struct bar *bars; /* owned */
    int kind;
    double scale, longest; /* of ns to the unit drawn; of the bars, in that unit */
    const char *unit;
    bool hatched;
};

static int collect(struct stacks *f, struct err *err)
{
    struct chart *c = &f->c;
    double longest = 0;
    c->l.most = INT_MAX; /* rows with names need no colours that can be told apart */
    for (int64_t i = 0; i < c->g.gs.n; i++) {
        const struct record *r = c->g.gs.g[i].first;
        struct bar b;
        if (!mean_times(&c->g.gs, &c->g.gs.g[i], f->kind, &b))
            continue;
        int k = chart_series(c, r, r->params, err);
        if (k < 0)
            return err->code;
        f->bars[k] = b;
        f->hatched |= b.no_select;
        longest = fmax(longest, b.phase[0] + b.phase[1] + b.phase[2]);
    }
    f->scale = longest < 1e5 ? 1e-3 : 1e-6;
    f->unit = longest < 1e5 ? "µs" : "ms";
    f->longest = longest > 0 ? longest * f->scale : 1;
    return series_labels(&c->l, 48, err);
}

/* What a bar is the time of. */
static const char *subject(const struct stacks *f)
{
    const struct grouping *gs = &f->c.g.gs;
    bool calls = group_of_calls(gs, measured_attend) || gs->g[0].first->scope == RECORD_OF_CALL;
    return f->kind == OF_CLIPS ? "denoising step" : f->kind == OF_GPU && calls ? "call" : "head";
}

/* Characters of a line of a bar's name. */
static int name_chars(const struct stacks *f)
{
    int longest = series_longest(&f->c.l);
    return f->c.a->width && longest > 26 ? 26 : longest;
}

/* Rows: position, is the selection missing, then the running sums of the phases. */
static void write_stacks(struct stacks *f)
{
    const char *const *name = kinds[f->kind].name;
    struct buf *b = &f->c.data;
    buf_printf(b, "# position, 1 = selection not measured, then cumulative %s: %s, %s, %s\n",
               f->unit, name[0], name[1], name[2]);
    for (int i = 0; i < f->c.l.n; i++) {
        double sum = 0;
        buf_printf(b, "# %s\n%d %d", f->c.l.s[i].name, i, f->bars[i].no_select);
        for (int p = 0; p < 3; p++) {
            sum += f->bars[i].phase[p] * f->scale;
            buf_printf(b, " %.8g", sum);
        }
        buf_puts(b, "\n");
    }
}

static void put_axes(struct stacks *f)
{
    struct canvas *canvas = &f->c.canvas;
    struct buf *s = &canvas->gp.script;
    buf_printf(s,
               "set xrange [0:%.6g]\nset xtics %g nomirror\nset yrange [%d.6:-0.6]\nunset grid\n"
               "set grid xtics lc rgb '#dddddd' lw 0.6 lt 1\nset ytics scale 0 (",
               f->longest * 1.04,
               gp_step(f->longest * 1.04, canvas->width > 140 ? canvas->width / 70 : 2),
               f->c.l.n - 1);
    for (int i = 0; i < f->c.l.n; i++) {
        buf_puts(s, i ? ", " : "");
        canvas_put(&canvas->gp, s, series_label(&f->c.l.s[i]), name_chars(f), gp_tic);
        buf_printf(s, " %d", i);
    }
    buf_printf(s, ") noenhanced%s\n", f->c.a->width ? " font font_small" : "");
}

/* A bar whose selection was not measured is shorter than the method: it is hatched. */
static void put_stacks(struct stacks *f)
{
    static const char *const fill[2] = {"solid 1.0 noborder", "pattern 5 border lt -1"};
    struct canvas *canvas = &f->c.canvas;
    char how[96];
    canvas_key(canvas);
    buf_puts(&canvas->gp.script, "plot NaN notitle");
    for (int p = 2; p >= 0; p--)
        for (int h = 0; h <= f->hatched; h++)
            canvas_plot(
                canvas, 0,
                "using ($2==%d?$%d/2:NaN):1:($%d/2):(0.34) with boxxyerror lc rgb '%s' fs %s", h,
                p + 3, p + 3, phase_color(f->kind, p), fill[h]);
    for (int p = 0; p < 3; p++) {
        snprintf(how, sizeof how, "boxes fs solid lc rgb '%s'", phase_color(f->kind, p));
        canvas_entry(canvas, how, kinds[f->kind].name[p]);
    }
    snprintf(how, sizeof how, "boxes lc rgb '%s' fs %s", phase_color(f->kind, 2), fill[1]);
    if (f->hatched)
        canvas_entry(canvas, how, "attend; selection not measured");
    canvas_end(canvas);
}

static int render(struct stacks *f, struct err *err)
{
    struct chart *c = &f->c;
    int rows = c->l.n, without = (int)c->g.gs.n - rows;
    char x_name[32];
    buf_printf(&c->says, "%s, %s", subject(f), kinds[f->kind].what);
    if (without)
        buf_printf(&c->says, "; %d setting%s without times left out", without,
                   without > 1 ? "s" : "");
    PASS_ON(chart_title(c, err));
    const struct canvas_wish w = {
        .title = buf_str(&c->title),
        .caption = buf_str(&c->caption),
        .width = 400,
        .height = 60 + 24 * rows,
        .least = rows * (c->a->width ? 26 : 13),
        .left = (int)(28 + (c->a->width ? 0.85 : 1) * CANVAS_CHAR * name_chars(f)),
        .entries = f->hatched ? 4 : 3,
        .chars = f->hatched ? 30 : 9};
    PASS_ON(canvas_open(c->a, &w, &c->canvas, err));
    write_stacks(f);
    snprintf(x_name, sizeof x_name, "time [%s]", f->unit);
    canvas_panel(&c->canvas, x_name, "", NULL);
    put_axes(f);
    put_stacks(f);
    return canvas_finish(&c->canvas, &c->data, err);
}

int draw_stacks(const struct figure *figure, const struct figure_args *a, struct err *err)
{
    struct stacks f = {.kind = 0};
    int rc = 0;
    chart_init(&f.c, figure, a);
    TRY(chart_regroup(&f.c, figure->keys, NULL, KEY_COUNT, figure->flags, err));
    f.kind = find_kind(&f.c.g.gs);
    if (f.kind < 0)
        FAIL(err, ERR_INPUT, "no ok record has times");
    TRY(mem_alloc(&f.bars, f.c.g.gs.n, sizeof *f.bars, "bars", err));
    TRY(collect(&f, err));
    TRY(render(&f, err));
out:
    chart_free(&f.c);
    free(f.bars);
    return rc;
}
