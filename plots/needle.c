/*
 * needle.c - needle: the grid of a retrieval task as the field draws it, length by depth from dark
 * red to pale green, the number in the cell, one panel per setting.
 */
#include "plots/chart.h"
#include "plots/panels.h"

#include "core/mem.h"
#include "core/metricdef.h"
#include "plots/palette.h"
#include "plots/titles.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PANELS_MOST 24
#define SIDE_MOST 64 /* lengths, depths */

struct grid {
    struct chart_groups g;
    const char *metric;
    double length[SIDE_MOST], depth[SIDE_MOST]; /* ascending */
    int lengths, depths, n;
    struct cells map[PANELS_MOST]; /* [depths][lengths], NAN = no cell */
    char title[PANELS_MOST][96];
    char below[PANELS_MOST][24]; /* of a figure of a given width: what titles have no room for */
    int cols;                    /* of panels; 0: a square grid */
};

/* Put x into the ascending list unless it is there. */
static int add_value(double *list, int *n, double x, const char *what, struct err *err)
{
    int at = 0;
    while (at < *n && list[at] < x)
        at++;
    if (at < *n && list[at] == x)
        return 0;
    if (*n == SIDE_MOST)
        return err_set(err, ERR_INPUT, "more than %d %s: choose with --where", SIDE_MOST, what);
    memmove(list + at + 1, list + at, (size_t)(*n - at) * sizeof *list);
    list[at] = x;
    ++*n;
    return 0;
}

static int index_of(const double *list, int n, double x)
{
    for (int i = 0; i < n; i++)
        if (list[i] == x)
            return i;
    return -1;
}

static const struct record *member(const struct grid *q, const struct group *g, int64_t i)
{
    return &q->g.args->set->r[g->at[i]];
}

static int find_axes(struct grid *q, struct err *err)
{
    int rc = 0;
    for (int64_t i = 0; i < q->g.gs.n; i++)
        for (int64_t k = 0; k < q->g.gs.g[i].n; k++) {
            const struct record *r = member(q, &q->g.gs.g[i], k);
            double tokens = key_number(r, KEY_TOKENS), depth = key_number(r, KEY_DEPTH);
            if (!record_has(r, q->metric) || isnan(tokens) || isnan(depth))
                continue;
            TRY(add_value(q->length, &q->lengths, tokens, "lengths", err));
            TRY(add_value(q->depth, &q->depths, depth, "depths", err));
        }
    if (q->lengths == 0)
        FAIL(err, ERR_INPUT, "no record has %s by length and depth", q->metric);
out:
    return rc;
}

/* Mean over samples; *density over all cells of the setting. */
static int fill(struct grid *q, const struct group *g, struct cells *c, double *density,
                struct err *err)
{
    int64_t n = (int64_t)q->lengths * q->depths, seen = 0;
    int32_t *count = NULL;
    int rc = 0;

    *c = (struct cells){q->depths, q->lengths, q->depths, q->lengths, 1, NULL, 0, 0};
    *density = 0;
    TRY(mem_alloc(&c->v, n, sizeof *c->v, "grid", err));
    TRY(mem_zalloc(&count, n, sizeof *count, "grid", err));
    for (int64_t i = 0; i < n; i++)
        c->v[i] = 0;
    for (int64_t k = 0; k < g->n; k++) {
        const struct record *r = member(q, g, k);
        int col = index_of(q->length, q->lengths, key_number(r, KEY_TOKENS));
        int row = index_of(q->depth, q->depths, key_number(r, KEY_DEPTH));
        double x = record_value(r, q->metric);
        if (col < 0 || row < 0 || !isfinite(x))
            continue;
        c->v[row * q->lengths + col] += (float)x;
        count[row * q->lengths + col]++;
        *density += record_get(r, "density_elem");
        seen++;
    }
    for (int64_t i = 0; i < n; i++)
        c->v[i] = count[i] ? c->v[i] / (float)count[i] : NAN;
    *density = seen ? *density / (double)seen : NAN;
out:
    free(count);
    return rc;
}

/* Columns of a figure of a given width, whose titles are to have 12 characters at least. */
static int fitting_columns(const struct grid *q, int panels)
{
    int cols = panels;
    while (cols > 1 && panels_title_room(panels, cols, 0, q->g.args->width) < 12)
        cols--;
    return cols;
}

/* Parameters for titles of a figure of a given width. Those that tell no panels apart give way, but
 * where all panels share some, which no other text would say. */
static void name_settings(struct grid *q, struct title_params t[PANELS_MOST])
{
    int n = (int)q->g.gs.n;
    size_t most = panels_title_room(n, q->cols, 0, q->g.args->width);
    struct buf text = {0};
    for (int i = 0; i < n; i++) {
        const struct record *r = q->g.gs.g[i].first;
        t[i] = (struct title_params){.above = r->method, .params = r->params};
    }
    title_params(t, n, most, &text);
    bool shared = text.len > 0;
    for (int i = 0; i < n; i++) {
        buf_reset(&text);
        if (shared)
            title_cut(t[i].params ? t[i].params : "", most, &text);
        else if (strcmp(t[i].text, "...") != 0)
            buf_puts(&text, t[i].text);
        snprintf(t[i].text, sizeof t[i].text, "%s", buf_str(&text));
    }
    buf_free(&text);
}

/* "sale tau=0.016" over its density; where a width is given, the method over `params`. */
static int name_panel(struct grid *q, const struct record *r, const char *params, double density,
                      struct err *err)
{
    const struct figure_args *a = q->g.args;
    size_t most = a->width ? panels_title_room((int)q->g.gs.n, q->cols, 0, a->width) : 40;
    struct buf name = {0}, cut = {0};
    int rc = 0;

    chart_name(&q->g, r, a->width ? NULL : r->params, &name);
    title_cut(buf_str(&name), most, &cut);
    if (a->width) {
        buf_puts(&cut, "\n");
        buf_puts(&cut, params);
        snprintf(q->below[q->n], sizeof q->below[0], "%.3g", density);
    } else
        buf_printf(&cut, "\ndensity %.3g", density);
    TRY(buf_check(&name, "title", err));
    TRY(buf_check(&cut, "title", err));
    snprintf(q->title[q->n++], sizeof q->title[0], "%.95s", buf_str(&cut));
out:
    buf_free(&name);
    buf_free(&cut);
    return rc;
}

static int collect(struct grid *q, struct err *err)
{
    struct title_params t[PANELS_MOST];
    double density;
    int rc = 0;

    if (q->g.gs.n > PANELS_MOST)
        FAIL(err, ERR_USAGE, "more than %d panels: choose with --method and --params", PANELS_MOST);
    TRY(find_axes(q, err));
    q->cols = q->g.args->width ? fitting_columns(q, (int)q->g.gs.n) : q->g.gs.n <= 3 ? 3 : 0;
    if (q->g.args->width)
        name_settings(q, t);
    for (int64_t i = 0; i < q->g.gs.n; i++) {
        const struct record *r = q->g.gs.g[i].first;
        TRY(fill(q, &q->g.gs.g[i], &q->map[q->n], &density, err));
        if (isnan(density)) {
            cells_free(&q->map[q->n]);
            continue;
        }
        TRY(name_panel(q, r, t[i].text, density, err));
    }
out:
    return rc;
}

/* Number of a cell: 1 and 0 are written for nothing else. */
static void cell_text(double x, char text[16])
{
    snprintf(text, 16, fabs(x) < 9.95 ? "%.2f" : "%.0f", x);
    if (x == 0 || x == 1)
        snprintf(text, 16, "%.0f", x);
    else if (strcmp(text, "1.00") == 0 && x < 1)
        snprintf(text, 16, ">.99");
    else if (strcmp(text, "0.00") == 0)
        snprintf(text, 16, "<.01");
}

/* A block per panel: column, row, value, label. */
static void write_cells(const struct grid *q, struct buf *b)
{
    for (int i = 0; i < q->n; i++) {
        int first = (int)strcspn(q->title[i], "\n");
        bool more = q->below[i][0] && q->title[i][first + 1];
        buf_printf(b, "# %.*s%s%s: column, row, %s, label\n", first, q->title[i], more ? " " : "",
                   more ? q->title[i] + first + 1 : "", q->metric);
        for (int k = 0; k < q->lengths * q->depths; k++) {
            double x = (double)q->map[i].v[k];
            char text[16];
            cell_text(x, text);
            buf_printf(b, "%d %d %.8g \"%s\"\n", k % q->lengths, k / q->lengths, x,
                       isnan(x) ? "" : text);
        }
        buf_puts(b, "\n\n");
    }
}

/* "8K" */
static void length_text(double tokens, char text[32])
{
    bool kilo = tokens >= 1024 && fmod(tokens, 1024) == 0;
    snprintf(text, 32, "%.0f%s", kilo ? tokens / 1024 : tokens, kilo ? "K" : "");
}

static void axes(const struct grid *q, int i, bool leftmost, bool lowest, struct gp *g)
{
    struct buf *s = &g->script;
    char text[32];
    buf_printf(s, "set xrange [-0.5:%.1f]\nset yrange [%.1f:-0.5]\nset xtics out nomirror (",
               q->lengths - 0.5, q->depths - 0.5);
    for (int k = 0; k < q->lengths; k++) {
        length_text(q->length[k], text);
        buf_printf(s, "%s'%s' %d", k ? ", " : "", lowest ? text : "", k);
    }
    buf_puts(s, ")\nset ytics out nomirror (");
    for (int k = 0; k < q->depths; k++) {
        snprintf(text, sizeof text, "%g", q->depth[k]);
        buf_printf(s, "%s'%s' %d", k ? ", " : "", leftmost ? text : "", k);
    }
    buf_puts(s, ")\n");
    panels_title(q->title[i], g);
}

static void draw_panel(const struct grid *q, const struct panels *p, int i, double low, double high,
                       struct gp *g)
{
    bool leftmost, lowest;
    panels_place(p, i, g, &leftmost, &lowest);
    axes(q, i, leftmost, lowest, g);
    if (q->below[i][0])
        panels_below(p, i, q->below[i], g);
    if (i == q->n - 1)
        panels_colorbox(p, low, high, false, g);
    buf_puts(&g->script, "plot ");
    gp_data_name(g, "dat");
    buf_printf(&g->script,
               " index %d using 1:2:($1-0.5):($1+0.5):($2-0.5):($2+0.5):3 with boxxyerror fs solid "
               "noborder lc palette notitle",
               i);
    if (p->cell >= 24) {
        buf_puts(&g->script, ", ");
        gp_data_name(g, "dat");
        buf_printf(&g->script,
                   " index %d using 1:2:4 with labels noenhanced font font_small notitle", i);
    }
    buf_puts(&g->script, "\nunset label\n"); /* drawn once */
}

/* Shares from 0 to 1; other metrics over what they span. */
static void colour_range(const struct grid *q, double *low, double *high)
{
    const struct figure_args *a = q->g.args;
    *low = 0;
    *high = 1;
    for (int i = 0; i < q->n; i++)
        for (int k = 0; k < q->lengths * q->depths; k++)
            if (!isnan(q->map[i].v[k])) {
                *low = fmin(*low, (double)q->map[i].v[k]);
                *high = fmax(*high, (double)q->map[i].v[k]);
            }
    *low = isnan(a->low) ? *low : a->low;
    *high = isnan(a->high) ? *high : a->high;
}

static void lay_out(const struct grid *q, int bar_chars, struct panels *p)
{
    const struct figure_args *a = q->g.args;
    int chars, lines, longest = q->lengths > q->depths ? q->lengths : q->depths;
    panels_titles((const char(*)[96])q->title, q->n, &chars, &lines);
    panels_layout(p, &(struct panels_wish){.count = q->n,
                                           .cols = q->cols,
                                           .cells_x = q->lengths,
                                           .cells_y = q->depths,
                                           .side = 40 * longest,
                                           .chars = a->width ? 0 : chars,
                                           .lines = lines,
                                           .below = a->width > 0,
                                           .bar_chars = bar_chars,
                                           .untitled = a->untitled && !a->title,
                                           .width = a->width,
                                           .height = a->height});
}

static int render(struct grid *q, struct err *err)
{
    const struct figure_args *a = q->g.args;
    struct panels p;
    struct gp g = {0};
    struct buf data = {0}, bar = {0}, name = {0}, title = {0};
    double low, high, scale;
    int rc = 0;

    colour_range(q, &low, &high);
    chart_metric_label(q->metric, &bar, &scale);
    lay_out(q, (int)bar.len, &p);
    TRY(panels_check(&p, 8, a->width, a->height, err));
    buf_puts(&title, a->title ? a->title : "");
    if (!a->title) {
        chart_metric_name(q->metric, &name);
        title_sentence(buf_str(&name), &title);
        buf_puts(&title, " by length and depth");
    }
    const char *shown = a->title || !a->untitled ? buf_str(&title) : "";
    TRY(figure_open(a, panels_total_width(&p, shown), panels_total_height(&p), &g, err));
    figure_caption(a, buf_str(&title),
                   a->width ? "Numbers below the panels: pairs kept, mean over prompts." : NULL,
                   &g);
    write_cells(q, &data);
    TRY(buf_check(&data, "cells", err));
    TRY(gp_data(&g, "dat", buf_str(&data), data.len, err));
    const struct metric_def *def = metric_def_find(q->metric);
    palette_grade(def && def->better == BETTER_LOWER, &g.script);
    buf_printf(&g.script, "set cbrange [%.8g:%.8g]\n", low, high);
    panels_frame(&p, shown, "tokens", "depth", buf_str(&bar), &g);
    for (int i = 0; i < q->n; i++)
        draw_panel(q, &p, i, low, high, &g);
    buf_puts(&g.script, "unset multiplot\n");
    TRY(gp_finish(&g, err));
out:
    gp_free(&g);
    buf_free(&data);
    buf_free(&bar);
    buf_free(&name);
    buf_free(&title);
    return rc;
}

static int draw(const struct figure_args *a, struct err *err)
{
    static const enum group_key keys[] = {KEY_METHOD, KEY_PARAMS};
    struct grid q = {.metric = a->metric ? a->metric : "needle_acc"};
    int rc = 0;

    TRY(chart_group(a, keys, 2, 0, q.metric, KEY_TOKENS, &q.g, err));
    TRY(collect(&q, err));
    TRY(render(&q, err));
out:
    for (int i = 0; i < PANELS_MOST; i++)
        cells_free(&q.map[i]);
    chart_groups_free(&q.g);
    return rc;
}

const struct figure figure_needle = {
    .listed = {"needle", "grid of a retrieval task, length by depth, one panel per setting",
               "input: records of `lacuna eval`; --metric (needle_acc), also multi_acc, kv_acc, "
               "answer_nll"},
    .uses = "layer,head,step,branch,method,params,metric,range",
    .input = FIGURE_RECORDS,
    .draw = draw,
};
