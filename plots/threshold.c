/*
 * threshold.c - the figure "threshold" (figure 13 of FG-Attn, arXiv 2509.16518): what the threshold
 * c/N leaves. Left the share of blocks and slices of the exact map below it, from records of dense;
 * beside it density and recall of the slice masks of fg-attn, as far as records have them.
 */
#include "plots/chart.h"

#include "analyze/metricfacts.h"
#include "analyze/params.h"
#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const units[] = {"b128", "b64", "b32", "b16", "s128", "s64", "s16"};
static const char *const unit_names[] = {"128 x 128", "64 x 64", "32 x 32", "16 x 16",
                                         "128 x 1",   "64 x 1",  "16 x 1"};
static const char *const unit_colors[] = {"#440154", "#3b528b", "#21918c", "#5ec962",
                                          "#440154", "#3b528b", "#5ec962"};
#define N_UNITS 7

struct curve_point {
    double c, y;
};

static int by_c(const void *a, const void *b)
{
    const struct curve_point *p = a, *q = b;
    return (p->c > q->c) - (p->c < q->c);
}

static void put_block(const char *name, struct curve_point *p, int64_t n, struct buf *b)
{
    qsort(p, (size_t)n, sizeof *p, by_c);
    buf_printf(b, "# %s: c, mean\nnan nan\n", name);
    for (int64_t i = 0; i < n; i++)
        buf_printf(b, "%.10g %.10g\n", p[i].c, p[i].y);
    buf_puts(b, "\n\n");
}

/* Share below c/N of one kind of unit, at every c of the records. */
static int unit_block(const struct chart_groups *g, const struct str_list *names, int unit,
                      struct buf *b, bool *any, struct err *err)
{
    struct curve_point *p = NULL;
    struct stats s;
    int64_t n = 0;
    size_t len = strlen(units[unit]);
    int rc = mem_alloc(&p, names->n, sizeof *p, "points", err);
    if (rc)
        return rc;
    for (int64_t i = 0; i < names->n; i++) {
        const char *rest = names->items[i] + 6;
        if (strncmp(rest, units[unit], len) != 0 || (rest[len] && rest[len] != '@'))
            continue;
        TRY(group_stats(&g->gs, &g->gs.g[0], names->items[i], &s, NULL, err));
        if (s.n)
            p[n++] = (struct curve_point){metric_level(names->items[i]), s.mean};
    }
    *any |= n > 0;
    put_block(unit_names[unit], p, n, b);
out:
    free(p);
    return rc;
}

/* The cells of the figure as one group: several models, lengths or orders would need a choice. */
static int one_group(const struct figure_args *a, const char *metric, unsigned flags,
                     const enum group_key *keys, int n_keys, struct chart_groups *g,
                     struct err *err)
{
    int rc = chart_group(a, keys, n_keys, flags, metric, KEY_COUNT, g, err);
    if (!rc && g->n_scope) {
        rc = err_set(err, ERR_USAGE, "the records differ in %s: name directories that hold one",
                     key_name(g->scope[0]));
        chart_groups_free(g);
    }
    return rc;
}

/* The thresholds differ between records: whichever a record has counts, 0.5 need not be among
 * them. */
static int fill_units(const struct figure_args *a, struct buf *b, bool *any, struct err *err)
{
    struct chart_groups g = {0};
    struct str_list names = {0};
    int rc = 0;

    *any = false;
    TRY(recset_metrics(a->set, "below_b*,below_s*", &names, err));
    if (names.n == 0)
        goto out;
    TRY(one_group(a, NULL, GROUP_PER_HEAD, NULL, 0, &g, err));
    for (int u = 0; u < N_UNITS; u++)
        TRY(unit_block(&g, &names, u, b, any, err));
    if (!*any)
        buf_reset(b); /* of the chosen cells none has maps: no panel, no blocks */
out:
    str_list_free(&names);
    chart_groups_free(&g);
    return rc;
}

static bool is_slice_mask(const struct record *r)
{
    return r->status == RECORD_OK && strcmp(r->method, "fg-attn") == 0 &&
           record_get(r, "dense_call") != 1 && !params_value(r->params, "mode") &&
           !*params_target(r->params);
}

static const char *const mask_metrics[] = {"density_elem", "cra_mean", "cra_min"};

/* The parameters beside tau of the setting that was swept over most thresholds. */
static int swept_setting(const struct chart_groups *g, struct buf *best, struct err *err)
{
    struct buf rest = {0}, other = {0};
    int64_t most = 0;
    int rc = 0;
    for (int64_t i = 0; i < g->gs.n; i++) {
        int64_t n = 0;
        buf_reset(&rest);
        params_without(g->gs.g[i].first->params, "tau", &rest);
        for (int64_t k = 0; k < g->gs.n; k++) {
            buf_reset(&other);
            params_without(g->gs.g[k].first->params, "tau", &other);
            n += strcmp(buf_str(&rest), buf_str(&other)) == 0;
        }
        if (n > most) {
            most = n;
            buf_reset(best);
            buf_puts(best, buf_str(&rest));
        }
    }
    rc = buf_check(best, "setting", err);
    buf_free(&rest);
    buf_free(&other);
    return rc;
}

/* Mean of a metric over the slice masks of a group; refresh steps, which run dense, are none. */
static bool mask_mean(const struct recset *set, const struct group *g, const char *metric,
                      double *mean)
{
    double sum = 0;
    int64_t n = 0;
    for (int64_t k = 0; k < g->n; k++) {
        const struct record *r = &set->r[g->at[k]];
        if (is_slice_mask(r) && record_has(r, metric)) {
            sum += record_value(r, metric);
            n++;
        }
    }
    *mean = sum / (double)n;
    return n > 0;
}

static void mask_block(const struct figure_args *a, const struct chart_groups *g,
                       const char *setting, const char *metric, struct curve_point *p,
                       struct buf *b)
{
    struct buf rest = {0};
    int64_t n = 0;
    for (int64_t i = 0; i < g->gs.n; i++) {
        const char *params = g->gs.g[i].first->params, *tau = params_value(params, "tau");
        double mean;
        buf_reset(&rest);
        params_without(params, "tau", &rest);
        if (strcmp(buf_str(&rest), setting) == 0 && mask_mean(a->set, &g->gs.g[i], metric, &mean))
            p[n++] = (struct curve_point){tau ? strtod(tau, NULL) : 0.5, mean};
    }
    put_block(metric, p, n, b);
    buf_free(&rest);
}

/* A block per metric; *setting becomes the parameters beside tau. */
static int fill_masks(const struct figure_args *a, struct buf *b, struct buf *setting, bool *any,
                      struct err *err)
{
    static const enum group_key keys[] = {KEY_METHOD, KEY_PARAMS};
    struct figure_args own = *a;
    struct chart_groups g = {0};
    struct curve_point *p = NULL;
    int rc = 0;

    *any = false;
    for (int64_t i = 0; i < a->set->n; i++)
        *any |= is_slice_mask(&a->set->r[i]) && figure_takes(a, &a->set->r[i]);
    if (!*any)
        return 0;
    own.method = "fg-attn";
    TRY(one_group(&own, "density_elem", 0, keys, 2, &g, err));
    TRY(mem_alloc(&p, g.gs.n, sizeof *p, "points", err));
    TRY(swept_setting(&g, setting, err));
    for (int m = 0; m < 3; m++)
        mask_block(a, &g, buf_str(setting), mask_metrics[m], p, b);
out:
    free(p);
    chart_groups_free(&g);
    return rc;
}

/* Curve number i of a panel, from block `at` of the data. */
static void plot_curve(struct chart *c, int i, int at, int dash, int point, const char *color,
                       const char *name)
{
    char how[128];
    snprintf(how, sizeof how, "linespoints lw 1.4 dt %d pt %d ps 0.8*point_scale lc rgb '%s'", dash,
             point, color);
    buf_puts(&c->gp.script, i ? ", " : "plot ");
    gp_data_name(&c->gp, "dat");
    buf_printf(&c->gp.script, " index %d using 1:2 with %s notitle", at + i, how);
    chart_entry_as(c, how, name);
}

static void plot_units(struct chart *c, int at)
{
    for (int u = 0; u < N_UNITS; u++)
        plot_curve(c, u, at, u < 4 ? 1 : 2, u < 4 ? 7 : 9, unit_colors[u], unit_names[u]);
    chart_end(c);
}

static void plot_masks(struct chart *c, int at)
{
    static const char *const colors[] = {"#0072b2", "#009e73", "#d55e00"};
    static const char *const names[] = {"density of slices", "recall, mean of rows",
                                        "recall, worst row"};
    for (int m = 0; m < 3; m++)
        plot_curve(c, m, at, 1 + m, 5 + 2 * m, colors[m], names[m]);
    chart_end(c);
}

/* Each panel has its own curves, so each has its own legend to its right. */
static void start_panel(struct chart *c, int i, const char *y)
{
    chart_panel(c, i, "c, threshold in units of 1/N", y);
    chart_key(c, i);
    buf_puts(&c->gp.script,
             "set logscale x\nset yrange [0:1]\n"
             "set xtics nomirror (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)\n");
}

/* Room for the legends: of the units, and of the mask metrics. */
enum { UNITS_LEGEND = 150, MASKS_LEGEND = 214 };

static int draw_panels(const struct figure_args *a, bool maps, bool masks, const char *setting,
                       const struct buf *data, struct err *err)
{
    const struct chart_layout layout = {
        .title = "what the threshold c/N leaves, means over heads of calls",
        .panels = maps + masks,
        .width = 380,
        .height = 320,
        .each = true,
        .cols = maps + masks,
        .gap = UNITS_LEGEND + 80,
        .legend = masks ? MASKS_LEGEND : UNITS_LEGEND,
        .lines = maps ? N_UNITS : 3};
    struct chart c = {0};
    struct buf label = {0};
    int rc = 0;

    TRY(chart_open(a, &layout, &c, err));
    if (maps) {
        start_panel(&c, 0, "share of units, whose largest weight is below c/N");
        plot_units(&c, 0);
    }
    if (masks) {
        buf_printf(&label, "slice masks of fg-attn %s", setting);
        TRY(buf_check(&label, "label", err));
        start_panel(&c, maps, buf_str(&label));
        plot_masks(&c, maps ? N_UNITS : 0);
    }
    TRY(chart_finish(&c, data, err));
out:
    chart_free(&c);
    buf_free(&label);
    return rc;
}

static int draw_threshold(const struct figure_args *a, struct err *err)
{
    struct buf data = {0}, setting = {0};
    bool maps, masks;
    int rc = 0;

    TRY(fill_units(a, &data, &maps, err));
    TRY(fill_masks(a, &data, &setting, &masks, err));
    if (!maps && !masks)
        FAIL(err, ERR_INPUT, "no record of dense with below_* and none of fg-attn is left to draw");
    TRY(draw_panels(a, maps, masks, buf_str(&setting), &data, err));
out:
    buf_free(&data);
    buf_free(&setting);
    return rc;
}

const struct figure figure_threshold = {
    .listed =
        {"threshold", "share of blocks below c/N, density and recall of slice masks, against c",
         "input: records of dense:c=a+b+... and of fg-attn:tau=a,b,...; either alone will do"},
    .uses = "layer,head,step,branch,method,params",
    .input = FIGURE_RECORDS,
    .draw = draw_threshold,
};
