/*
 * bars.c - bars: a metric by layer, one bar per method, with the standard deviation over heads; and
 * phases: where the time of a method goes, stacked.
 */
#include "plots/chart.h"

#include "analyze/tables.h"
#include "core/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- bars ---------------------------------------------------------------------------------- */

static int series_name(const struct chart_groups *g, const struct record *r, struct series_list *l,
                       struct err *err)
{
    struct buf name = {0};
    chart_name(g, r, r->params, &name);
    int s = buf_check(&name, "series", err) ? -1 : series_of(l, buf_str(&name), r->method, err);
    buf_free(&name);
    return s;
}

struct bar {
    int series, layer;
    double mean, sd;
};

static int collect(const struct chart_groups *g, const char *metric, struct series_list *l,
                   struct bar *bars, struct err *err)
{
    const char *unit;
    double scale = metric_scale(metric, &unit);
    struct stats s;
    for (int64_t i = 0; i < g->gs.n; i++) {
        const struct group *grp = &g->gs.g[i];
        int rc = group_stats(&g->gs, grp, metric, &s, NULL, err);
        int k = rc ? -1 : series_name(g, grp->first, l, err);
        if (k < 0)
            return err->code;
        bars[i] = (struct bar){k, grp->first->layer, s.mean * scale, s.sd * scale};
    }
    return 0;
}

/* A block per series: x, value, standard deviation. */
static void write_bars(const struct bar *bars, int64_t n, const struct series_list *l, double width,
                       struct buf *b)
{
    for (int s = 0; s < l->n; s++) {
        buf_printf(b, "# %s: x, layer, mean, sd\nnan nan nan nan\n", l->s[s].name);
        for (int64_t i = 0; i < n; i++)
            if (bars[i].series == s)
                buf_printf(b, "%.6f %d %.10g %.10g\n",
                           bars[i].layer + (s - (l->n - 1) / 2.0) * width, bars[i].layer,
                           bars[i].mean, isnan(bars[i].sd) ? 0 : bars[i].sd);
        buf_puts(b, "\n\n");
    }
}

static void layer_range(const struct bar *bars, int64_t n, int *low, int *high)
{
    *low = INT32_MAX;
    *high = INT32_MIN;
    for (int64_t i = 0; i < n; i++) {
        *low = bars[i].layer < *low ? bars[i].layer : *low;
        *high = bars[i].layer > *high ? bars[i].layer : *high;
    }
}

static void plot_bars(struct chart *c, const struct series_list *l, double width, int low, int high)
{
    struct buf *s = &c->gp.script;
    buf_printf(s,
               "set boxwidth %.6f absolute\nset style fill solid 1.0 noborder\n"
               "set xrange [%g:%g]\nset xtics %g\nset grid noxtics\nset yrange [0:*]\n",
               width * 0.92, low - 0.6, high + 0.6,
               gp_step(high - low + 1, 16) < 1 ? 1 : gp_step(high - low + 1, 16));
    for (int i = 0; i < l->n; i++) {
        buf_puts(s, i ? ", " : "plot ");
        gp_data_name(&c->gp, "dat");
        buf_printf(s, " index %d using 1:3 with boxes lc rgb '%s' notitle", i, l->s[i].color);
        if (c->width * width / (high - low + 1.2) >= 5) {
            buf_puts(s, ", ");
            gp_data_name(&c->gp, "dat");
            buf_printf(s,
                       " index %d using 1:3:(0):4 with vectors nohead lc rgb '#555555' lw 0.8 "
                       "notitle, ",
                       i);
            gp_data_name(&c->gp, "dat");
            buf_printf(s,
                       " index %d using 1:3:(0):(-$4) with vectors nohead lc rgb '#555555' lw 0.8 "
                       "notitle",
                       i);
        }
    }
    chart_legend(c, l, MARK_BOX);
    buf_puts(s, "\n");
}

static int draw_bars(const struct figure_args *a, struct err *err)
{
    static const enum group_key keys[] = {KEY_METHOD, KEY_PARAMS, KEY_LAYER};
    const char *metric = a->metric ? a->metric : "density_elem";
    struct chart_groups g = {0};
    struct series_list l = {0};
    struct chart c = {0};
    struct bar *bars = NULL;
    struct buf data = {0}, label = {0}, title = {0};
    double scale;
    int low, high, rc = 0;

    TRY(chart_group(a, keys, 3, 0, metric, KEY_COUNT, &g, err));
    TRY(mem_alloc(&bars, g.gs.n, sizeof *bars, "bars", err));
    TRY(collect(&g, metric, &l, bars, err));
    series_shade(&l, false);
    layer_range(bars, g.gs.n, &low, &high);
    double width = 0.84 / l.n;
    int want = (high - low + 1) * (12 * l.n + 14);
    buf_printf(&title, "%s by layer, mean and standard deviation over heads", metric);
    TRY(chart_open(a, 1,
                   want < 460    ? 460
                   : want > 1400 ? 1400
                                 : want,
                   340, &l, buf_str(&title), &c, err));
    write_bars(bars, g.gs.n, &l, width, &data);
    chart_metric_label(metric, &label, &scale);
    chart_panel(&c, 0, "layer", buf_str(&label));
    plot_bars(&c, &l, width, low, high);
    TRY(chart_finish(&c, &data, err));
out:
    chart_free(&c);
    chart_groups_free(&g);
    series_free(&l);
    free(bars);
    buf_free(&data);
    buf_free(&label);
    buf_free(&title);
    return rc;
}

/* ---- phases -------------------------------------------------------------------------------- */

/* Measured, modelled and host times never share a figure: the first kind that the records have. */
static const struct {
    const char *what, *phase[3], *name[3];
} kinds[] = {
    {"measured on the GPU",
     {"time_quant_ns", "time_select_ns", "time_attend_ns"},
     {"quantise", "select", "attend"}},
    {"cost model, nothing measured",
     {"time_quant_ns_model", "time_select_ns_model", "time_attend_ns_model"},
     {"quantise", "select", "attend"}},
    {"wall time of the CPU reference",
     {"host_prepare_ns", "host_select_ns", "host_attend_ns"},
     {"prepare", "select", "attend"}},
};

static const char *const phase_colors[3] = {"#9e9e9e", "#ff7f0e", "#1f77b4"};

static int find_kind(const struct recset *set)
{
    for (int k = 0; k < 3; k++)
        for (int64_t i = 0; i < set->n; i++)
            for (int p = 0; set->r[i].status == RECORD_OK && p < 3; p++)
                if (record_has(&set->r[i], kinds[k].phase[p]))
                    return k;
    return -1;
}

/* Rows: position, name, then the running sums of the phases in ms. */
static int write_phases(const struct chart_groups *g, int kind, struct buf *b, struct buf *tics,
                        struct err *err)
{
    struct buf name = {0};
    struct stats s;
    int rc = 0;
    buf_printf(b, "# position, then cumulative ms: %s, %s, %s\n", kinds[kind].name[0],
               kinds[kind].name[1], kinds[kind].name[2]);
    for (int64_t i = 0; i < g->gs.n; i++) {
        double sum = 0;
        buf_reset(&name);
        chart_name(g, g->gs.g[i].first, g->gs.g[i].first->params, &name);
        buf_printf(b, "# %s\n%lld", buf_str(&name), (long long)i);
        for (int p = 0; p < 3; p++) {
            TRY(group_stats(&g->gs, &g->gs.g[i], kinds[kind].phase[p], &s, NULL, err));
            sum += s.n ? s.mean * 1e-6 : 0;
            buf_printf(b, " %.8g", sum);
        }
        buf_puts(b, "\n");
        buf_puts(tics, i ? ", " : "");
        gp_text(tics, buf_str(&name));
        buf_printf(tics, " %lld", (long long)i);
    }
out:
    buf_free(&name);
    return rc;
}

static void plot_phases(struct chart *c, const struct chart_groups *g, int kind,
                        const struct buf *tics)
{
    struct buf *s = &c->gp.script;
    buf_printf(s,
               "set xrange [0:*]\nset yrange [%lld.6:-0.6]\nunset grid\nset grid xtics lc rgb "
               "'#dddddd' lw 0.6 lt 1\nset ytics scale 0 (%s) noenhanced\n"
               "set style fill solid 1.0 noborder\n",
               (long long)g->gs.n - 1, buf_str(tics));
    for (int p = 2; p >= 0; p--) {
        buf_puts(s, p == 2 ? "plot " : ", ");
        gp_data_name(&c->gp, "dat");
        buf_printf(s, " using ($%d/2):1:($%d/2):(0.34) with boxxyerror lc rgb '%s' notitle", p + 2,
                   p + 2, phase_colors[p]);
    }
    for (int p = 0; p < 3; p++)
        buf_printf(s, ", keyentry with boxes fs solid lc rgb '%s' title '%s'", phase_colors[p],
                   kinds[kind].name[p]);
    buf_puts(s, "\n");
}

static int draw_phases(const struct figure_args *a, struct err *err)
{
    static const enum group_key keys[] = {KEY_METHOD, KEY_PARAMS};
    struct chart_groups g = {0};
    struct chart c = {0};
    struct buf data = {0}, tics = {0}, title = {0}, name = {0};
    size_t longest = 0;
    int kind = find_kind(a->set), rc = 0;

    if (kind < 0)
        FAIL(err, ERR_INPUT, "no ok record has times");
    TRY(chart_group(a, keys, 2, 0, NULL, KEY_COUNT, &g, err));
    TRY(write_phases(&g, kind, &data, &tics, err));
    for (int64_t i = 0; i < g.gs.n; i++) {
        buf_reset(&name);
        chart_name(&g, g.gs.g[i].first, g.gs.g[i].first->params, &name);
        longest = name.len > longest ? name.len : longest;
    }
    buf_printf(&title, "Mean time of a head, %s", kinds[kind].what);
    TRY(chart_open(a, 1, 520, 60 + 24 * (int)(g.gs.n > 60 ? 60 : g.gs.n), NULL, buf_str(&title), &c,
                   err));
    c.left = (int)(28 + 7.0 * (double)(longest > 48 ? 48 : longest));
    c.legend = 110;
    c.width = c.gp.width - c.left - c.legend;
    if (c.width < 100)
        FAIL(err, ERR_USAGE, "--size: too narrow for the names of the methods");
    chart_panel(&c, 0, "time [ms]", "");
    plot_phases(&c, &g, kind, &tics);
    TRY(chart_finish(&c, &data, err));
out:
    chart_free(&c);
    chart_groups_free(&g);
    buf_free(&data);
    buf_free(&tics);
    buf_free(&title);
    buf_free(&name);
    return rc;
}

const struct figure figure_bars = {
    .listed = {"bars", "a metric by layer, one bar per method",
               "input: records; --metric (density_elem)"},
    .input = FIGURE_RECORDS,
    .draw = draw_bars,
};

const struct figure figure_phases = {
    .listed =
        {"phases", "time of prepare, select and attend by method",
         "input: records with times: measured ones, else modelled ones, else those of the CPU "
         "reference; never mixed"},
    .input = FIGURE_RECORDS,
    .draw = draw_phases,
};
