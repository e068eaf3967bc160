/*
 * layerhead.c - layer x head map of a metric, one panel per method and parameters; with --against
 * the difference to another method on a diverging scale.
 */
#include "plots/chart.h"
#include "plots/panels.h"

#include "analyze/metricfacts.h"
#include "core/mem.h"
#include "plots/palette.h"
#include "plots/titles.h"

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PANELS_MOST 48

/* Pixels of a cell at least, and the layers or heads that the largest picture has room for. */
#define CELL_LEAST 4
#define CELLS_MOST (GP_SIDE_MOST / CELL_LEAST)

struct lh {
    struct chart_groups g;
    const char *metric;
    double scale;
    int layer0, layers, heads; /* of all records chosen */
    int n;
    struct cells map[PANELS_MOST]; /* [layers][heads], NAN = no cell */
    char title[PANELS_MOST][96];
    char *name[PANELS_MOST]; /* in full, for the data; owned */
    struct buf shared;       /* parameters of all panels */
    bool difference;
};

static int columns(int panels)
{
    return panels <= 3 ? panels : 0;
}

/* Numbers of layers and heads come out of a file, and maps have a cell for each of them: those that
 * no picture could show are refused before there are any maps. */
static int extent(struct lh *q, struct err *err)
{
    int64_t low = INT32_MAX, high = 0, heads = 0;
    for (int64_t i = 0; i < q->g.gs.n; i++)
        for (int64_t k = 0; k < q->g.gs.g[i].n; k++) {
            const struct record *r = &q->g.args->set->r[q->g.gs.g[i].at[k]];
            if (r->scope != RECORD_OF_HEAD)
                return err_set(
                    err, ERR_INPUT,
                    "records of scope model have no layers and heads: see figure growth");
            low = r->layer < low ? r->layer : low;
            high = r->layer > high ? r->layer : high;
            heads = r->head >= heads ? (int64_t)r->head + 1 : heads;
        }
    int64_t layers = high - low + 1, most = CELLS_MOST;
    if (layers > most || heads > most || q->g.gs.n * layers * heads > most * most)
        return err_set(err, ERR_INPUT,
                       "layers %lld to %lld and heads 0 to %lld in %lld panels are more than a "
                       "picture can show: choose with --layer, --head, --method",
                       (long long)low, (long long)high, (long long)heads - 1, (long long)q->g.gs.n);
    q->layer0 = (int)low;
    q->layers = (int)layers;
    q->heads = (int)heads;
    return 0;
}

/* Mean of the metric per (layer, head) over the group's other keys (steps, branches). */
static int fill(struct lh *q, const struct group *grp, struct cells *c, struct err *err)
{
    int64_t n = (int64_t)q->layers * q->heads;
    int32_t *count = NULL;
    int rc = 0;
    *c = (struct cells){q->layers, q->heads, q->layers, q->heads, 1, NULL, 0, 0};
    TRY(mem_alloc(&c->v, n, sizeof *c->v, "layer x head map", err));
    TRY(mem_zalloc(&count, n, sizeof *count, "layer x head map", err));
    for (int64_t i = 0; i < n; i++)
        c->v[i] = 0;
    for (int64_t k = 0; k < grp->n; k++) {
        const struct record *r = &q->g.args->set->r[grp->at[k]];
        double x = record_value(r, q->metric);
        int64_t at = (int64_t)(r->layer - q->layer0) * q->heads + r->head;
        if (!isfinite(x))
            continue;
        c->v[at] += (float)(x * q->scale);
        count[at]++;
    }
    for (int64_t i = 0; i < n; i++)
        c->v[i] = count[i] ? c->v[i] / (float)count[i] : NAN;
out:
    free(count);
    return rc;
}

/* Titles say what differs, method above parameters. */
static int name_panels(struct lh *q, struct err *err)
{
    struct title_params *t = NULL;
    struct buf above[PANELS_MOST] = {0}, name = {0};
    int n = (int)q->g.gs.n, rc = 0;
    size_t most = panels_title_room(n, columns(n), 0, q->g.args->width);

    TRY(mem_zalloc(&t, n, sizeof *t, "titles", err));
    for (int i = 0; i < n; i++) {
        const struct record *r = q->g.gs.g[i].first;
        chart_name(&q->g, r, NULL, &above[i]);
        t[i].above = buf_str(&above[i]);
        t[i].params = r->params;
        buf_reset(&name);
        chart_name(&q->g, r, r->params, &name);
        TRY(buf_check(&name, "name", err));
        q->name[i] = strdup(buf_str(&name));
        if (!q->name[i])
            FAIL(err, ERR_NOMEM, "names of panels: out of memory");
    }
    title_params(t, n, most, &q->shared);
    for (int i = 0; i < n; i++) {
        buf_reset(&name);
        title_cut(t[i].above, 44, &name);
        snprintf(q->title[i], sizeof q->title[i], "%s%s%.44s", buf_str(&name),
                 t[i].text[0] ? "\n" : "", t[i].text);
    }
out:
    for (int i = 0; i < n; i++)
        buf_free(&above[i]);
    buf_free(&name);
    free(t);
    return rc;
}

static int collect(struct lh *q, struct err *err)
{
    int rc = 0;
    if (q->g.gs.n > PANELS_MOST)
        FAIL(err, ERR_USAGE, "more than %d panels: choose with --method and --params", PANELS_MOST);
    TRY(extent(q, err));
    TRY(name_panels(q, err));
    for (int i = 0; i < q->g.gs.n; i++) {
        q->n = i + 1;
        TRY(fill(q, &q->g.gs.g[i], &q->map[i], err));
    }
out:
    return rc;
}

/* Subtract the panel that --against names ("method" or "method:params") from the others. */
static int subtract(struct lh *q, const char *against, struct err *err)
{
    int ref = -1;
    for (int i = 0; i < q->n && ref < 0; i++) {
        const struct record *r = q->g.gs.g[i].first;
        size_t len = strcspn(against, ":");
        const char *params = against[len] ? against + len + 1 : "";
        if (strlen(r->method) == len && strncmp(r->method, against, len) == 0 &&
            strcmp(params, r->params ? r->params : "") == 0)
            ref = i;
    }
    if (ref < 0)
        return err_set(err, ERR_INPUT, "--against %s: no records of this method and parameters",
                       against);
    if (q->n < 2)
        return err_set(err, ERR_USAGE, "--against %s: no other method is left", against);
    for (int i = 0; i < q->n; i++)
        for (int64_t k = 0; i != ref && k < (int64_t)q->layers * q->heads; k++)
            q->map[i].v[k] -= q->map[ref].v[k];
    cells_free(&q->map[ref]);
    memmove(&q->map[ref], &q->map[ref + 1], (size_t)(q->n - ref - 1) * sizeof *q->map);
    memmove(&q->title[ref], &q->title[ref + 1], (size_t)(q->n - ref - 1) * sizeof *q->title);
    free(q->name[ref]);
    memmove(&q->name[ref], &q->name[ref + 1], (size_t)(q->n - ref - 1) * sizeof *q->name);
    q->map[--q->n] = (struct cells){0};
    q->name[q->n] = NULL;
    q->difference = true;
    return 0;
}

static void range(const struct lh *q, double *low, double *high)
{
    *low = INFINITY;
    *high = -INFINITY;
    if (!q->difference && metric_axis(q->metric) == AXIS_SHARE) {
        *low = 0;
        *high = 1;
        return;
    }
    for (int i = 0; i < q->n; i++)
        for (int64_t k = 0; k < (int64_t)q->layers * q->heads; k++)
            if (!isnan(q->map[i].v[k])) {
                *low = fmin(*low, (double)q->map[i].v[k]);
                *high = fmax(*high, (double)q->map[i].v[k]);
            }
    if (isinf(*low))
        *low = *high = 0;
    if (q->difference) {
        *high = fmax(fabs(*low), fabs(*high));
        *low = -*high;
    }
    if (*high - *low < 1e-12) {
        double pad = *high != 0 ? fabs(*high) * 0.05 : 0.5;
        *low -= pad;
        *high += pad;
    }
}

/* "3e-3" */
static void short_power(double x, char text[32])
{
    snprintf(text, 32, "%.0e", x);
    char *power = strchr(text, 'e');
    if (power)
        snprintf(power + 1, 8, "%d", atoi(power + 1));
}

/* Number of a cell in few characters; `size` is the largest magnitude of the figure. No value but 0
 * is written 0, no share below 1 is written 1. */
static void cell_text(double x, double size, char text[32])
{
    int digits = size >= 99.95 ? 0 : size >= 9.995 ? 1 : size >= 0.05 ? 2 : -1;
    snprintf(text, 32, "%.*f", digits < 0 ? 0 : digits, x);
    if (x == 0)
        snprintf(text, 32, "0");
    else if (digits < 0 || strtod(text, NULL) == 0)
        short_power(x, text);
    else if (digits == 2 && x < 1 && strtod(text, NULL) == 1)
        snprintf(text, 32, ">0.99");
}

/* A block per panel: head, layer, value, text, 1 = the text is light. */
static void write_cells(const struct lh *q, double low, double high, struct buf *b)
{
    for (int i = 0; i < q->n; i++) {
        buf_printf(b, "# %s: head, layer, %s, label, light text\n", q->name[i], q->metric);
        for (int64_t k = 0; k < (int64_t)q->layers * q->heads; k++) {
            double x = (double)q->map[i].v[k], at = (x - low) / (high - low);
            char text[32];
            cell_text(x, fmax(fabs(low), fabs(high)), text);
            buf_printf(b, "%d %d %.8g \"%s\" %d\n", (int)(k % q->heads),
                       q->layer0 + (int)(k / q->heads), x, isnan(x) ? "" : text,
                       q->difference ? fabs(at - 0.5) > 0.42 : at < 0.55);
        }
        buf_puts(b, "\n\n");
    }
}

static void axes(const struct lh *q, const struct panels *p, const char *title, bool leftmost,
                 bool lowest, struct gp *g)
{
    buf_printf(&g->script, "set xrange [-0.5:%.1f]\nset yrange [%.1f:%.1f]\n", q->heads - 0.5,
               q->layer0 - 0.5 + q->layers, q->layer0 - 0.5);
    buf_printf(&g->script, "set xtics 0,%g out nomirror format '%s'\n",
               gp_count_step(q->heads, p->width / 24 + 1), lowest ? "%.0f" : "");
    buf_printf(&g->script, "set ytics 0,%g out nomirror format '%s'\n",
               gp_count_step(q->layers, p->height / 18 + 1), leftmost ? "%.0f" : "");
    panels_title(title, g);
}

/* Cells are boxes: gnuplot draws no image of a single row or column. */
static void draw_panel(const struct lh *q, const struct panels *p, int i, double low, double high,
                       struct gp *g)
{
    bool leftmost, lowest;
    panels_place(p, i, g, &leftmost, &lowest);
    axes(q, p, q->title[i], leftmost, lowest, g);
    if (i == q->n - 1)
        panels_colorbox(p, low, high, false, g);
    buf_puts(&g->script, "plot ");
    gp_data_name(g, "dat");
    buf_printf(&g->script,
               " index %d using 1:2:($1-0.5):($1+0.5):($2-0.5):($2+0.5):3 with boxxyerror fs solid "
               "noborder lc palette notitle",
               i);
    for (int light = 0; light < 2 && p->cell >= 34; light++) {
        buf_puts(&g->script, ", ");
        gp_data_name(g, "dat");
        buf_printf(&g->script,
                   " index %d using 1:2:($5==%d?strcol(4):'') with labels noenhanced "
                   "font font_small tc rgb '%s' notitle",
                   i, light, light ? "#ffffff" : "#000000");
    }
    buf_puts(&g->script, i == 0 ? "\nunset label\n" : "\n");
}

static void lay_out(const struct lh *q, int bar_chars, struct panels *p)
{
    const struct figure_args *a = q->g.args;
    /* Cells large enough for their numbers while there are few of them. */
    int longest = q->layers > q->heads ? q->layers : q->heads;
    int cell = q->n * longest > 40 && (q->n > 6 || longest > 16) ? 16 : 36;
    int chars, lines;
    panels_titles((const char(*)[96])q->title, q->n, &chars, &lines);
    panels_layout(p, &(struct panels_wish){.count = q->n,
                                           .cols = columns(q->n),
                                           .cells_x = q->heads,
                                           .cells_y = q->layers,
                                           .side = cell * longest,
                                           .chars = chars,
                                           .lines = lines,
                                           .bar_chars = bar_chars,
                                           .untitled = a->untitled && !a->title,
                                           .width = a->width,
                                           .height = a->height});
}

static void figure_title(const struct lh *q, struct buf *title)
{
    const struct figure_args *a = q->g.args;
    if (a->title) {
        buf_puts(title, a->title);
        return;
    }
    struct buf name = {0};
    chart_metric_name(q->metric, &name);
    title_sentence(buf_str(&name), title);
    title->failed |= name.failed;
    buf_free(&name);
    if (q->difference)
        buf_printf(title, " minus that of %s, by layer and head", a->against);
    else
        buf_puts(title, " by layer and head");
    if (q->shared.len) {
        buf_puts(title, "; ");
        title_cut(buf_str(&q->shared), 72, title);
    }
}

static int render(struct lh *q, const struct figure_args *a, struct err *err)
{
    struct panels p;
    struct gp g = {0};
    struct buf data = {0}, title = {0}, bar = {0};
    double low, high, scale;
    int rc = 0;

    range(q, &low, &high);
    low = isnan(a->low) ? low : a->low;
    high = isnan(a->high) ? high : a->high;
    chart_metric_label(q->metric, &bar, &scale);
    lay_out(q, (int)bar.len, &p);
    TRY(panels_check(&p, CELL_LEAST, a->width, a->height, err));
    figure_title(q, &title);
    const char *shown = a->title || !a->untitled ? buf_str(&title) : "";
    TRY(figure_open(a, panels_total_width(&p, shown), panels_total_height(&p), &g, err));
    figure_caption(a, buf_str(&title), NULL, &g);
    write_cells(q, low, high, &data);
    TRY(buf_check(&data, "cells", err));
    TRY(gp_data(&g, "dat", buf_str(&data), data.len, err));
    (q->difference ? palette_diverging : palette_viridis)(&g.script);
    buf_printf(&g.script, "set cbrange [%.8g:%.8g]\n", low, high);
    panels_frame(&p, shown, "head", "layer", buf_str(&bar), &g);
    for (int i = 0; i < q->n; i++)
        draw_panel(q, &p, i, low, high, &g);
    buf_puts(&g.script, "unset multiplot\n");
    TRY(gp_finish(&g, err));
out:
    gp_free(&g);
    buf_free(&data);
    buf_free(&title);
    buf_free(&bar);
    return rc;
}

static int draw(const struct figure_args *a, struct err *err)
{
    static const enum group_key keys[] = {KEY_METHOD, KEY_PARAMS};
    struct lh q = {0};
    const char *unit;
    int rc = 0;

    q.metric = a->metric ? a->metric : "density_elem";
    q.scale = metric_scale(q.metric, &unit);
    TRY(chart_group(a, keys, 2, 0, q.metric, KEY_COUNT, &q.g, err));
    TRY(collect(&q, err));
    if (a->against)
        TRY(subtract(&q, a->against, err));
    TRY(render(&q, a, err));
out:
    for (int i = 0; i < PANELS_MOST; i++) {
        cells_free(&q.map[i]);
        free(q.name[i]);
    }
    buf_free(&q.shared);
    chart_groups_free(&q.g);
    return rc;
}

const struct figure figure_layerhead = {
    .listed =
        {"layerhead", "layer x head map of a metric, one panel per method",
         "input: records; --metric (density_elem); --against METHOD[:PARAMS] shows differences "
         "to it on a diverging scale"},
    .uses = "layer,head,step,branch,method,params,metric,against,range",
    .input = FIGURE_RECORDS,
    .draw = draw,
};
