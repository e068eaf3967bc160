/*
 * phases.c - phases: where the time of a method goes, stacked.
 */
#include "plots/chart.h"

#include <stdlib.h>

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
    const struct chart_layout layout = {.title = buf_str(&title),
                                        .panels = 1,
                                        .width = 400,
                                        .height = 60 + 24 * (int)(g.gs.n > 60 ? 60 : g.gs.n),
                                        .left = (int)(28 + 7.0 * (double)longest),
                                        .legend = 110};
    TRY(chart_open(a, &layout, &c, err));
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

const struct figure figure_phases = {
    .listed =
        {"phases", "time of prepare, select and attend by method",
         "input: records with times: measured ones, else modelled ones, else those of the CPU "
         "reference; never mixed"},
    .input = FIGURE_RECORDS,
    .draw = draw_phases,
};
