/*
 * cellsources.c - cells of grids: layer by head, parameter by parameter, length by depth.
 */
#include "plots/drawers.h"

#include "analyze/metricfacts.h"
#include "analyze/params.h"
#include "core/mem.h"
#include "plots/titles.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int make_cells(struct chart_grid *g, struct err *err)
{
    int64_t n = (int64_t)g->panels * g->rows * g->cols;
    int rc = mem_alloc(&g->v, n, sizeof *g->v, "cells", err);
    for (int64_t i = 0; i < n && !rc; i++)
        g->v[i] = NAN;
    return rc;
}

/* The mean of what was added to a cell, in single precision. */
struct cell {
    float sum;
    int32_t n;
};

static void set_means(const struct cell *cell, int64_t n, double *v)
{
    for (int64_t i = 0; i < n; i++)
        v[i] = cell[i].n ? (double)(cell[i].sum / (float)cell[i].n) : NAN;
}

static const struct record *member(const struct chart *c, const struct group *g, int64_t i)
{
    return &c->a->set->r[g->at[i]];
}

/* ---- layer by head --------------------------------------------------------------------------- */

#define HEAD_PANELS 48

/* Units of a cell at least, and the layers or heads that the largest picture has room for. */
#define CELL_LEAST 4
#define CELLS_MOST (GP_SIDE_MOST / CELL_LEAST)

/* Numbers of layers and heads come out of a file, and maps have a cell for each of them: those that
 * no picture could show are refused before there are any maps. */
static int extent(struct chart *c, struct err *err)
{
    int64_t low = INT32_MAX, high = 0, heads = 0;
    for (int64_t i = 0; i < c->g.gs.n; i++)
        for (int64_t k = 0; k < c->g.gs.g[i].n; k++) {
            const struct record *r = member(c, &c->g.gs.g[i], k);
            if (r->scope != RECORD_OF_HEAD)
                return err_set(
                    err, ERR_INPUT,
                    "records of scope model have no layers and heads: see figure growth");
            low = r->layer < low ? r->layer : low;
            high = r->layer > high ? r->layer : high;
            heads = r->head >= heads ? (int64_t)r->head + 1 : heads;
        }
    int64_t layers = high - low + 1, most = CELLS_MOST;
    if (layers > most || heads > most || c->g.gs.n * layers * heads > most * most)
        return err_set(err, ERR_INPUT,
                       "layers %lld to %lld and heads 0 to %lld in %lld panels are more than a "
                       "picture can show: choose with --layers, --heads, --method",
                       (long long)low, (long long)high, (long long)heads - 1, (long long)c->g.gs.n);
    c->grid.first_row = (int)low;
    c->grid.rows = (int)layers;
    c->grid.cols = (int)heads;
    return 0;
}

/* Mean of the metric per (layer, head) over the group's other keys (steps, branches). */
static int fill_heads(struct chart *c, int panel, struct err *err)
{
    const struct chart_grid *g = &c->grid;
    const struct group *grp = &c->g.gs.g[panel];
    const char *unit;
    double scale = metric_scale(c->metric, &unit);
    int64_t n = (int64_t)g->rows * g->cols;
    struct cell *cell = NULL;
    int rc = mem_zalloc(&cell, n, sizeof *cell, "layer x head map", err);
    for (int64_t k = 0; k < grp->n && !rc; k++) {
        const struct record *r = member(c, grp, k);
        double x = record_value(r, c->metric);
        struct cell *at = &cell[(int64_t)(r->layer - g->first_row) * g->cols + r->head];
        if (!isfinite(x))
            continue;
        at->sum += (float)(x * scale);
        at->n++;
    }
    if (!rc)
        set_means(cell, n, g->v + panel * n);
    free(cell);
    return rc;
}

/* Titles say what differs, method above parameters; what all settings share stands in the figure's
 * title. */
static int name_settings(struct chart *c, struct err *err)
{
    struct title_params *t = NULL;
    struct str_list above = {0};
    struct buf text = {0}, shared = {0};
    int n = (int)c->g.gs.n, rc = 0;
    TRY(mem_zalloc(&t, n, sizeof *t, "titles", err));
    for (int i = 0; i < n; i++) {
        const struct record *r = c->g.gs.g[i].first;
        buf_reset(&text);
        chart_name(&c->g, r, r->params, &text);
        str_list_add(&c->grid.names, buf_str(&text));
        buf_reset(&text);
        chart_name(&c->g, r, NULL, &text);
        str_list_add(&above, buf_str(&text));
    }
    if (above.failed || text.failed)
        FAIL(err, ERR_NOMEM, "titles: out of memory");
    for (int i = 0; i < n; i++)
        t[i] = (struct title_params){.above = above.items[i], .params = c->g.gs.g[i].first->params};
    title_params(t, n, 44, &shared);
    for (int i = 0; i < n; i++) {
        buf_reset(&text);
        title_cut(t[i].above, 44, &text);
        buf_printf(&text, "%s%s", t[i].text[0] ? "\n" : "", t[i].text);
        str_list_add(&c->grid.titles, buf_str(&text));
    }
    if (shared.len) {
        buf_puts(&c->says, "; ");
        title_cut(buf_str(&shared), 72, &c->says);
    }
out:
    str_list_free(&above);
    buf_free(&text);
    buf_free(&shared);
    free(t);
    return rc;
}

/* Take panel i away. */
static void drop_panel(struct chart_grid *g, int i)
{
    int64_t n = (int64_t)g->rows * g->cols;
    struct str_list *const lists[] = {&g->titles, &g->names};
    for (int k = 0; k < 2; k++) {
        free(lists[k]->items[i]);
        memmove(&lists[k]->items[i], &lists[k]->items[i + 1],
                (size_t)(--lists[k]->n - i) * sizeof *lists[k]->items);
    }
    g->panels--;
    memmove(g->v + i * n, g->v + (i + 1) * n, (size_t)((g->panels - i) * n) * sizeof *g->v);
}

/* Subtract the panel that --against names ("method" or "method:params") from the others. */
static int subtract(struct chart *c, const char *against, struct err *err)
{
    struct chart_grid *g = &c->grid;
    int64_t n = (int64_t)g->rows * g->cols;
    int ref = -1;
    for (int i = 0; i < g->panels && ref < 0; i++) {
        const struct record *r = c->g.gs.g[i].first;
        size_t len = strcspn(against, ":");
        const char *params = against[len] ? against + len + 1 : "";
        if (strlen(r->method) == len && strncmp(r->method, against, len) == 0 &&
            strcmp(params, r->params ? r->params : "") == 0)
            ref = i;
    }
    if (ref < 0)
        return err_set(err, ERR_INPUT, "--against %s: no records of this method and parameters",
                       against);
    if (g->panels < 2)
        return err_set(err, ERR_USAGE, "--against %s: no other method is left", against);
    for (int i = 0; i < g->panels; i++)
        for (int64_t k = 0; i != ref && k < n; k++)
            g->v[i * n + k] = (double)((float)g->v[i * n + k] - (float)g->v[ref * n + k]);
    drop_panel(g, ref);
    g->difference = true;
    return 0;
}

int cells_of_heads(struct chart *c, struct err *err)
{
    struct chart_grid *g = &c->grid;
    int rc = 0;
    TRY(chart_regroup(c, c->f->keys, c->metric, KEY_COUNT, c->f->flags, err));
    if (c->g.gs.n > HEAD_PANELS)
        FAIL(err, ERR_USAGE, "more than %d panels: choose with --method and --params", HEAD_PANELS);
    TRY(extent(c, err));
    g->panels = (int)c->g.gs.n;
    g->x_name = "head";
    g->y_name = "layer";
    /* Cells large enough for their numbers while there are few of them. */
    int longest = g->rows > g->cols ? g->rows : g->cols;
    g->cell_x = g->cell_y = g->panels * longest > 40 && (g->panels > 6 || longest > 16) ? 16 : 36;
    if (c->a->against)
        buf_printf(&c->says, " minus that of %s,", c->a->against);
    buf_puts(&c->says, " by layer and head");
    TRY(name_settings(c, err));
    TRY(make_cells(g, err));
    for (int i = 0; i < g->panels; i++)
        TRY(fill_heads(c, i, err));
    if (c->a->against)
        TRY(subtract(c, c->a->against, err));
out:
    return rc;
}

/* ---- parameter by parameter ------------------------------------------------------------------ */

/* Most values of an axis. */
#define VALUES_MOST 64

static int value_of(const struct record *r, const char *name, struct buf *b, struct err *err)
{
    buf_reset(b);
    return record_param(r, name, b) ? 0
                                    : err_set(err, ERR_INPUT,
                                              "method %s has no parameter '%s': choose one with "
                                              "--method",
                                              r->method, name);
}

static int by_value(const void *a, const void *b)
{
    return natural_compare(*(char *const *)a, *(char *const *)b);
}

/* The values of a parameter over all settings, in order. */
static int list_values(const struct chart *c, const char *name, struct str_list *l, struct err *err)
{
    struct buf b = {0};
    int rc = 0;
    for (int64_t i = 0; i < c->g.gs.n; i++) {
        TRY(value_of(c->g.gs.g[i].first, name, &b, err));
        if (!str_list_has(l, buf_str(&b)))
            str_list_add(l, buf_str(&b));
    }
    if (l->n > VALUES_MOST)
        FAIL(err, ERR_INPUT, "%s has more than %d values: choose with --where", name, VALUES_MOST);
    qsort(l->items, (size_t)l->n, sizeof *l->items, by_value);
out:
    buf_free(&b);
    return rc;
}

static int place(const struct str_list *l, const struct record *r, const char *name, int *at,
                 struct err *err)
{
    struct buf b = {0};
    int rc = value_of(r, name, &b, err);
    for (*at = 0; !rc && strcmp(l->items[*at], buf_str(&b)) != 0;)
        ++*at;
    buf_free(&b);
    return rc;
}

/* Scope, method and the other parameters: of all settings the same, because a cell holds one. */
static int check_rest(struct chart *c, const struct record *r, struct err *err)
{
    const char *x = c->a->x, *y = c->a->y;
    struct buf one = {0}, two = {0}, name = {0};
    int rc = 0;
    params_without(r->params, x, &one);
    params_without(buf_str(&one), y, &two);
    chart_name(&c->g, r, buf_str(&two), &name);
    TRY(buf_check(&name, "settings", err));
    if (c->grid.names.n == 0)
        str_list_add(&c->grid.names, buf_str(&name));
    else if (strcmp(c->grid.names.items[0], buf_str(&name)) != 0)
        FAIL(err, ERR_USAGE,
             "'%s' and '%s' differ in more than %s and %s: choose one with --method, --params or "
             "--where",
             c->grid.names.items[0], buf_str(&name), x, y);
out:
    buf_free(&one);
    buf_free(&two);
    buf_free(&name);
    return rc;
}

int cells_of_params(struct chart *c, struct err *err)
{
    struct chart_grid *g = &c->grid;
    const char *x = c->a->x, *y = c->a->y, *unit;
    double scale = metric_scale(c->metric, &unit);
    int rc = 0;
    if (!x || !y || strcmp(x, y) == 0)
        FAIL(err, ERR_USAGE,
             "figure sweep needs two parameters, such as --x alpha_c --y alpha_s --method "
             "sampleattention");
    TRY(chart_regroup(c, c->f->keys, c->metric, KEY_COUNT, c->f->flags, err));
    TRY(list_values(c, x, &g->x_names, err));
    TRY(list_values(c, y, &g->y_names, err));
    if (g->x_names.n * g->y_names.n < 2)
        FAIL(err, ERR_INPUT, "%s and %s have one value each: nothing was swept", x, y);
    g->panels = 1;
    g->cols = (int)g->x_names.n;
    g->rows = (int)g->y_names.n;
    g->x_name = x;
    g->y_name = y;
    g->cell_x = g->cols < 4 ? 240 / g->cols : 58;
    g->cell_y = g->rows < 7 ? 230 / g->rows : 34;
    g->upwards = true;
    TRY(make_cells(g, err));
    for (int64_t i = 0; i < c->g.gs.n; i++) {
        const struct group *grp = &c->g.gs.g[i];
        struct stats s;
        int col, row;
        TRY(check_rest(c, grp->first, err));
        TRY(group_stats(&c->g.gs, grp, c->metric, &s, NULL, err));
        TRY(place(&g->x_names, grp->first, x, &col, err));
        TRY(place(&g->y_names, grp->first, y, &row, err));
        if (s.n)
            g->v[row * g->cols + col] = s.mean * scale;
    }
    buf_printf(&c->says, " of %s", g->names.items[0]);
out:
    return rc;
}

/* ---- length by depth ------------------------------------------------------------------------- */

#define PROMPT_PANELS 24

/* Numbers in ascending order. */
struct numbers {
    double x[VALUES_MOST];
    int n;
};

static int add_number(struct numbers *l, double x, const char *what, struct err *err)
{
    int at = 0;
    while (at < l->n && l->x[at] < x)
        at++;
    if (at < l->n && l->x[at] == x)
        return 0;
    if (l->n == VALUES_MOST)
        return err_set(err, ERR_INPUT, "more than %d %s: choose with --where", VALUES_MOST, what);
    memmove(l->x + at + 1, l->x + at, (size_t)(l->n - at) * sizeof *l->x);
    l->x[at] = x;
    l->n++;
    return 0;
}

static int index_of(const struct numbers *l, double x)
{
    for (int i = 0; i < l->n; i++)
        if (l->x[i] == x)
            return i;
    return -1;
}

static int find_axes(struct chart *c, struct numbers *lengths, struct numbers *depths,
                     struct err *err)
{
    int rc = 0;
    for (int64_t i = 0; i < c->g.gs.n; i++)
        for (int64_t k = 0; k < c->g.gs.g[i].n; k++) {
            const struct record *r = member(c, &c->g.gs.g[i], k);
            double tokens = key_number(r, KEY_TOKENS), depth = key_number(r, KEY_DEPTH);
            if (!record_has(r, c->metric) || isnan(tokens) || isnan(depth))
                continue;
            TRY(add_number(lengths, tokens, "lengths", err));
            TRY(add_number(depths, depth, "depths", err));
        }
    if (lengths->n == 0)
        FAIL(err, ERR_INPUT, "no record has %s by length and depth", c->metric);
out:
    return rc;
}

/* Mean over samples; *density over all cells of the setting, NAN where there are none. */
static int fill_prompts(struct chart *c, const struct group *g, const struct numbers *lengths,
                        const struct numbers *depths, double *v, double *density, struct err *err)
{
    int64_t n = (int64_t)lengths->n * depths->n, seen = 0;
    struct cell *cell = NULL;
    int rc = mem_zalloc(&cell, n, sizeof *cell, "grid", err);
    *density = 0;
    for (int64_t k = 0; k < g->n && !rc; k++) {
        const struct record *r = member(c, g, k);
        int col = index_of(lengths, key_number(r, KEY_TOKENS));
        int row = index_of(depths, key_number(r, KEY_DEPTH));
        double x = record_value(r, c->metric);
        if (col < 0 || row < 0 || !isfinite(x))
            continue;
        cell[row * lengths->n + col].sum += (float)x;
        cell[row * lengths->n + col].n++;
        *density += record_get(r, "density_elem");
        seen++;
    }
    if (!rc)
        set_means(cell, n, v);
    *density = seen ? *density / (double)seen : NAN;
    free(cell);
    return rc;
}

/* "8K"; "0.5" */
static void name_axes(struct chart_grid *g, const struct numbers *lengths,
                      const struct numbers *depths)
{
    char text[32];
    for (int i = 0; i < lengths->n; i++) {
        double tokens = lengths->x[i];
        bool kilo = tokens >= 1024 && fmod(tokens, 1024) == 0;
        snprintf(text, sizeof text, "%.0f%s", kilo ? tokens / 1024 : tokens, kilo ? "K" : "");
        str_list_add(&g->x_names, text);
    }
    for (int i = 0; i < depths->n; i++) {
        snprintf(text, sizeof text, "%g", depths->x[i]);
        str_list_add(&g->y_names, text);
    }
}

int cells_of_prompts(struct chart *c, struct err *err)
{
    struct chart_grid *g = &c->grid;
    struct numbers lengths = {.n = 0}, depths = {.n = 0};
    struct buf name = {0};
    int rc = 0;
    TRY(chart_regroup(c, c->f->keys, c->metric, KEY_TOKENS, c->f->flags, err));
    if (c->g.gs.n > PROMPT_PANELS)
        FAIL(err, ERR_USAGE, "more than %d panels: choose with --method and --params",
             PROMPT_PANELS);
    TRY(find_axes(c, &lengths, &depths, err));
    *g = (struct chart_grid){.panels = (int)c->g.gs.n,
                             .cols = lengths.n,
                             .rows = depths.n,
                             .x_name = "tokens",
                             .y_name = "depth",
                             .cell_x = 40,
                             .cell_y = 40,
                             .grade = true};
    name_axes(g, &lengths, &depths);
    TRY(make_cells(g, err));
    g->panels = 0;
    for (int64_t i = 0; i < c->g.gs.n; i++) {
        const struct record *r = c->g.gs.g[i].first;
        double density;
        TRY(fill_prompts(c, &c->g.gs.g[i], &lengths, &depths,
                         g->v + (int64_t)g->panels * g->rows * g->cols, &density, err));
        if (isnan(density))
            continue;
        g->panels++;
        buf_reset(&name);
        chart_name(&c->g, r, r->params, &name);
        str_list_add(&g->names, buf_str(&name));
        buf_printf(&name, "\ndensity %.3g", density);
        str_list_add(&g->titles, buf_str(&name));
    }
out:
    buf_free(&name);
    return rc;
}
