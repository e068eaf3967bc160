/*
 * means.c - the figure "means": bars of a setting's means with their numbers and the mean of all
 * bars as a dashed line, by layer or sample; by head a panel per layer, whose title has the largest
 * (figures 14, 16 and 17 of SpargeAttn, arXiv 2502.18137).
 */
#include "plots/chart.h"
#include "plots/marks.h"

#include "analyze/metricfacts.h"
#include "core/mem.h"
#include "plots/titles.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Bars stand beside each other in the order of their layers or heads, samples from the largest. */
struct mean_bar {
    int panel, place, name; /* name: the number of the layer, sample or head */
    double mean;
};

struct means {
    struct chart_groups g;
    const char *metric;
    enum group_key key;
    struct mean_bar *bar; /* owned [n] */
    int n, panels, most;  /* most: bars of a panel */
    double mean, least, largest;
    int digits; /* behind the point, of shares; 0: three significant ones */
    struct series_list l;
    struct marks marks; /* by layer, or by the place of a sample from 1 */
};

#define PANELS_MOST 64
#define COLUMNS 4 /* of panels, as in the paper */
#define LABEL_CHAR 6.2
#define LABEL_LEAST 13 /* units of a bar below which no number fits, not even a vertical one */

/* ---- the bars -------------------------------------------------------------------------------- */

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
    const struct mean_bar *p = a, *q = b;
    if (p->mean != q->mean)
        return p->mean < q->mean ? 1 : -1;
    return p->name - q->name;
}

/* A share has two digits as in the paper, three where bars are so alike that two would not tell
 * them apart. */
static void scale_of(struct means *q)
{
    double sum = 0;
    q->least = INFINITY;
    q->largest = -INFINITY;
    for (int i = 0; i < q->n; i++) {
        sum += q->bar[i].mean;
        q->least = fmin(q->least, q->bar[i].mean);
        q->largest = fmax(q->largest, q->bar[i].mean);
    }
    q->mean = sum / q->n;
    if (metric_axis(q->metric) == AXIS_SHARE)
        q->digits = q->largest - q->least < 0.1 ? 3 : 2;
}

static int first_place(const struct means *q)
{
    return q->key == KEY_LAYER ? q->bar[0].name : 1;
}

/* Marks have places of their own, also where no bar is. */
static int place_marks(struct means *q, struct err *err)
{
    if (q->marks.n && (q->key == KEY_HEAD ||
                       (q->key == KEY_LAYER && q->bar[q->n - 1].name - q->bar[0].name != q->n - 1)))
        return err_set(err, ERR_USAGE,
                       "--marks: of samples, or of layers of which none between is left out");
    for (int i = 0; i < q->marks.n; i++) {
        int place = (int)q->marks.m[i].x - first_place(q);
        q->most = place + 1 > q->most ? place + 1 : q->most;
        q->largest = fmax(q->largest, q->marks.m[i].y);
        q->least = fmin(q->least, q->marks.m[i].y);
    }
    return 0;
}

/* Places within the panels; bars come in the order of layer, then head. */
static int place_bars(struct means *q, struct err *err)
{
    if (q->key == KEY_TRACE)
        qsort(q->bar, (size_t)q->n, sizeof *q->bar, by_mean);
    int rc = 0;
    for (int i = 0; i < q->n; i++) {
        struct mean_bar *b = &q->bar[i];
        bool same = i > 0 && (q->key != KEY_HEAD || b[-1].panel == b->panel);
        b->place = same ? b[-1].place + 1 : 0;
        q->panels += !same;
        q->most = b->place + 1 > q->most ? b->place + 1 : q->most;
    }
    TRY(place_marks(q, err));
    if (q->panels > PANELS_MOST)
        return err_set(err, ERR_USAGE, "%d layers, of which %d have room: choose with --layer",
                       q->panels, PANELS_MOST);
out:
    return rc;
}

static int collect(struct means *q, struct err *err)
{
    const char *unit;
    double scale = metric_scale(q->metric, &unit);
    int rc = 0;
    for (int64_t i = 0; i < q->g.gs.n; i++) {
        const struct group *g = &q->g.gs.g[i];
        const struct record *r = g->first;
        struct stats s;
        TRY(group_stats(&q->g.gs, g, q->metric, &s, NULL, err));
        if (chart_series(&q->g, r, r->params, &q->l, err) < 0) {
            rc = err->code;
            goto out;
        }
        if (q->l.n > 1)
            FAIL(err, ERR_USAGE,
                 "'%s' and '%s': means are drawn of one setting; choose with --method, --params or "
                 "--where",
                 q->l.s[0].name, q->l.s[1].name);
        q->bar[q->n++] =
            (struct mean_bar){.panel = r->layer,
                              .name = q->key == KEY_LAYER  ? r->layer
                                      : q->key == KEY_HEAD ? r->head
                                                           : sample_number(q->g.gs.set, r),
                              .mean = s.mean * scale};
    }
    scale_of(q);
    TRY(place_bars(q, err));
out:
    return rc;
}

static void number_text(const struct means *q, double v, char text[16])
{
    if (q->digits)
        title_share(v, q->digits, text);
    else
        snprintf(text, 16, "%.3g", v);
}

/* ---- drawing --------------------------------------------------------------------------------- */

/* A block per panel: place, mean, number, name. */
static void write_bars(const struct means *q, struct buf *b)
{
    for (int i = 0; i < q->n; i++) {
        char text[16];
        if (q->bar[i].place == 0)
            buf_printf(b, "%s# %s%s: place, mean, number, %s\n", i ? "\n\n" : "", q->l.s[0].name,
                       q->key == KEY_HEAD ? ", a layer" : "", key_name(q->key));
        number_text(q, q->bar[i].mean, text);
        buf_printf(b, "%d %.10g \"%s\" %d\n", q->bar[i].place, q->bar[i].mean, text,
                   q->bar[i].name);
    }
    buf_puts(b, "\n");
}

/* How the numbers stand on the bars: 0: there is no room for them, 1: lying, 2: upright. */
static int number_turn(const struct means *q, const struct chart *c)
{
    double pitch = c->width / (q->most + 0.4);
    if (q->key == KEY_HEAD || pitch < LABEL_LEAST)
        return 0;
    return pitch > (q->digits ? q->digits + 2 : 5) * LABEL_CHAR ? 1 : 2;
}

/* Numbers stand on the bars, so that the axis goes on above the longest; with marks, which they
 * would hide, at the foot. */
static void axes(const struct means *q, const struct chart *c, int first, int turn, struct buf *s)
{
    static const double rooms[] = {8, 24, 52};
    double room = rooms[q->marks.n ? 0 : turn];
    double top = fmax(q->largest, 0), low = fmin(q->least, 0);
    double more = (top - low) * room / fmax(c->height - room, 40);
    int step = (int)gp_count_step(q->most, c->width / 26 + 1);
    if (!(top > low))
        top = low + 1;
    buf_printf(s, "set boxwidth 0.8 absolute\nset xrange [-0.7:%g]\nset yrange [%.8g:%.8g]\n",
               q->most - 0.3, low < 0 ? low - more : 0, top + more);
    buf_puts(s, "set grid noxtics\nset xtics (");
    for (int i = first, k = 0; i < q->n && (i == first || q->bar[i].place > 0); i++, k++)
        if (k % step == 0)
            buf_printf(s, "%s'%d' %d", k ? ", " : "", q->bar[i].name, k);
    for (int k = q->n; q->key == KEY_LAYER && k < q->most; k++) /* of marks alone */
        if (k % step == 0)
            buf_printf(s, ", '%d' %d", q->bar[0].name + k, k);
    buf_puts(s, ")\n");
}

static void draw_panel(const struct means *q, struct chart *c, int first, int block, bool last)
{
    struct buf *s = &c->gp.script;
    int turn = number_turn(q, c);
    char text[16];
    axes(q, c, first, turn, s);
    buf_puts(s, "set style textbox opaque noborder margins 0.3, 0.3\nplot ");
    gp_data_name(&c->gp, "dat");
    buf_printf(s, " index %d using 1:2 with boxes fs solid 1.0 noborder lc rgb '%s' notitle", block,
               q->l.s[0].color);
    if (q->key != KEY_HEAD)
        buf_printf(s, ", %.10g with lines lw 1.6 dt 2 lc rgb '#990000' notitle", q->mean);
    if (turn) {
        buf_puts(s, ", ");
        gp_data_name(&c->gp, "dat");
        buf_printf(s,
                   " index %d using 1:%s:3 with labels %s boxed font font_small noenhanced notitle",
                   block, q->marks.n ? "(0)" : "2",
                   turn == 1 ? "center offset 0,0.6" : "left rotate by 90 offset 0,0.5");
    }
    marks_plot(&q->marks, c, q->panels, first_place(q));
    if (last && q->key != KEY_HEAD) {
        char label[64];
        number_text(q, q->mean, text);
        snprintf(label, sizeof label, "mean of all %s", text);
        chart_entry_as(c, "lines lw 1.6 dt 2 lc rgb '#990000'", label);
        marks_entry(&q->marks, c);
    }
    chart_end(c);
}

/* "L0, max 0.60"; numbers of the y axis only in the first column. */
static void head_panel(const struct means *q, struct chart *c, int first, int panel)
{
    char text[16], head[48];
    double most = q->bar[first].mean;
    for (int i = first + 1; i < q->n && q->bar[i].place > 0; i++)
        most = fmax(most, q->bar[i].mean);
    number_text(q, most, text);
    snprintf(head, sizeof head, "L%d, max %s", q->bar[first].panel, text);
    chart_head(c, panel, head);
    buf_printf(&c->gp.script, "set format y '%s'\n", panel % c->cols == 0 ? "%h" : "");
}

static const char *axis_name(const struct means *q)
{
    return q->key == KEY_LAYER ? "layer" : q->key == KEY_HEAD ? "head" : "sample";
}

static void describe(const struct means *q, struct buf *title, struct buf *caption)
{
    chart_metric_name(q->metric, title);
    buf_printf(title, " of %s by %s, mean over ", q->l.s[0].name, axis_name(q));
    chart_over(&q->g, NULL, title);
    if (q->key == KEY_HEAD)
        buf_puts(caption, " A panel per layer; its title has the largest of its heads.");
    else
        buf_puts(caption, " Dashed: the mean of the bars.");
    if (q->key == KEY_TRACE)
        buf_puts(caption, " Samples from the largest to the least.");
    if (q->marks.n)
        buf_printf(caption, " Grey: %s.", q->marks.name);
}

static int draw_bars(struct means *q, const struct figure_args *a, struct err *err)
{
    struct chart c = {0};
    struct buf data = {0}, title = {0}, caption = {0}, label = {0};
    bool heads = q->key == KEY_HEAD;
    int want = heads ? 150 : (int)fmin(fmax(q->most * 30, 420), 1400), rc = 0;
    double scale;
    struct chart_layout layout = {
        .panels = q->panels,
        .width = want,
        .height = heads ? 110 : 290,
        .gap = heads ? 30 : 0,
        .cols = heads ? COLUMNS : 0,
        .legend = heads ? 0 : (int)fmax(170, 72 + 7.4 * (double)strlen(q->marks.name)),
        .lines = heads ? 0 : 1 + (q->marks.n > 0),
        .heads = heads};
    describe(q, &title, &caption);
    if (heads)
        chart_metric_name(q->metric, &label); /* low panels have no room for the unit */
    else
        chart_metric_label(q->metric, &label, &scale);
    TRY(buf_check(&title, "title", err));
    TRY(buf_check(&caption, "caption", err));
    layout.title = buf_str(&title);
    layout.caption = buf_str(&caption);
    TRY(chart_open(a, &layout, &c, err));
    write_bars(q, &data);
    buf_puts(&data, q->marks.n ? "\n" : "");
    marks_data(&q->marks, &data);
    for (int i = 0, p = 0; i < q->n; i++) {
        if (q->bar[i].place > 0)
            continue;
        chart_panel(&c, p, axis_name(q), p % c.cols == 0 ? buf_str(&label) : "");
        if (heads)
            head_panel(q, &c, i, p);
        draw_panel(q, &c, i, p, p == q->panels - 1);
        p++;
    }
    TRY(chart_finish(&c, &data, err));
out:
    chart_free(&c);
    buf_free(&data);
    buf_free(&title);
    buf_free(&caption);
    buf_free(&label);
    return rc;
}

static int choose_key(const struct figure_args *a, enum group_key *key, struct err *err)
{
    const char *x = a->x ? a->x : "layer";
    *key = strcmp(x, "layer") == 0    ? KEY_LAYER
           : strcmp(x, "head") == 0   ? KEY_HEAD
           : strcmp(x, "sample") == 0 ? KEY_TRACE
                                      : KEY_COUNT;
    return *key == KEY_COUNT ? err_set(err, ERR_USAGE, "means: --x takes layer, sample or head")
                             : 0;
}

/* All calls count, as in `profile`: the paper's means are of whole runs. */
static int draw_means(const struct figure_args *a, struct err *err)
{
    enum group_key keys[4] = {KEY_METHOD, KEY_PARAMS, KEY_LAYER, KEY_HEAD};
    struct means q = {.metric = a->metric ? a->metric : "sparsity_total"};
    int rc = 0;
    TRY(choose_key(a, &q.key, err));
    TRY(marks_parse(a->marks, &q.marks, err));
    keys[2] = q.key == KEY_HEAD ? KEY_LAYER : q.key;
    TRY(chart_group(a, keys, q.key == KEY_HEAD ? 4 : 3, 0, q.metric, KEY_COUNT, &q.g, err));
    TRY(mem_alloc(&q.bar, q.g.gs.n, sizeof *q.bar, "bars", err));
    TRY(collect(&q, err));
    TRY(draw_bars(&q, a, err));
out:
    chart_groups_free(&q.g);
    series_free(&q.l);
    marks_free(&q.marks);
    free(q.bar);
    return rc;
}

const struct figure figure_means = {
    .listed = {"means", "means of a setting by layer or sample, or by head in a panel per layer",
               "input: records of one setting; --x (layer), sample or head; --metric "
               "(sparsity_total)"},
    .uses = "layer,head,step,branch,method,params,metric,x,marks",
    .input = FIGURE_RECORDS,
    .draw = draw_means,
};
