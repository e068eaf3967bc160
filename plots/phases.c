/*
 * phases.c - phases: where the time of a method goes, stacked.
 */
#include "plots/chart.h"

#include "core/mem.h"
#include "core/text.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Light, middle and dark: parts that touch are told apart in print without colours, too. */
static const char *const phase_colors[3] = {"#dddddd", "#e69f00", "#0072b2"};

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
struct phases {
    struct chart_groups g;
    struct series_list l;
    struct bar *bars; /* owned */
    int kind;
    double scale, longest; /* of ns to the unit drawn; of the bars, in that unit */
    const char *unit;
    bool hatched;
};

static int collect(struct phases *f, struct err *err)
{
    double longest = 0;
    f->l.most = INT_MAX; /* rows with names need no colours that can be told apart */
    for (int64_t i = 0; i < f->g.gs.n; i++) {
        const struct record *r = f->g.gs.g[i].first;
        struct bar b;
        if (!mean_times(&f->g.gs, &f->g.gs.g[i], f->kind, &b))
            continue;
        int k = chart_series(&f->g, r, r->params, &f->l, err);
        if (k < 0)
            return err->code;
        f->bars[k] = b;
        f->hatched |= b.no_select;
        longest = fmax(longest, b.phase[0] + b.phase[1] + b.phase[2]);
    }
    f->scale = longest < 1e5 ? 1e-3 : 1e-6;
    f->unit = longest < 1e5 ? "µs" : "ms";
    f->longest = longest > 0 ? longest * f->scale : 1;
    return series_labels(&f->l, 48, err);
}

/* What a bar is the time of. */
static const char *subject(const struct phases *f)
{
    bool calls =
        group_of_calls(&f->g.gs, measured_attend) || f->g.gs.g[0].first->scope == RECORD_OF_CALL;
    return f->kind == OF_CLIPS ? "denoising step" : f->kind == OF_GPU && calls ? "call" : "head";
}

/* Is the width given, and the height free? */
static bool is_narrow(const struct figure_args *a)
{
    return a->width && !a->height;
}

/* The name of a bar; where a width is given, the parameters stand below the method. */
static void bar_name(const struct phases *f, struct chart *c, int i, struct buf *tics)
{
    const char *label = series_label(&f->l.s[i]),
               *cut = is_narrow(f->g.args) ? strchr(label, ' ') : NULL;
    char first[96];
    if (cut) {
        snprintf(first, sizeof first, "%.*s", (int)(cut - label), label);
        gp_tic(&c->gp, tics, first);
        buf_puts(tics, ".\"\\n\".");
    }
    gp_tic(&c->gp, tics, cut ? cut + 1 : label);
}

/* Characters of the longest line of the names. */
static int longest_line(const struct phases *f)
{
    int longest = 0;
    for (int i = 0; i < f->l.n; i++) {
        const char *label = series_label(&f->l.s[i]), *cut = strchr(label, ' ');
        int first = cut ? (int)(cut - label) : utf8_count(label);
        int second = cut ? utf8_count(cut + 1) : 0;
        longest = first > longest ? first : longest;
        longest = second > longest ? second : longest;
    }
    return longest;
}

/* Rows: position, is the selection missing, then the running sums of the phases. */
static void write_phases(const struct phases *f, struct chart *c, struct buf *b, struct buf *tics)
{
    const char *const *name = kinds[f->kind].name;
    buf_printf(b, "# position, 1 = selection not measured, then cumulative %s: %s, %s, %s\n",
               f->unit, name[0], name[1], name[2]);
    for (int i = 0; i < f->l.n; i++) {
        double sum = 0;
        buf_printf(b, "# %s\n%d %d", f->l.s[i].name, i, f->bars[i].no_select);
        for (int p = 0; p < 3; p++) {
            sum += f->bars[i].phase[p] * f->scale;
            buf_printf(b, " %.8g", sum);
        }
        buf_puts(b, "\n");
        buf_puts(tics, i ? ", " : "");
        bar_name(f, c, i, tics);
        buf_printf(tics, " %d", i);
    }
}

/* A bar whose selection was not measured is shorter than the method: it is hatched. */
static void plot_phases(struct chart *c, const struct phases *f, const struct buf *tics)
{
    static const char *const fill[2] = {"solid 1.0 noborder", "pattern 5 border lt -1"};
    struct buf *s = &c->gp.script;
    buf_printf(
        s,
        "set xrange [0:%.6g]\nset xtics %g nomirror\nset yrange [%d.6:-0.6]\nunset grid\nset grid "
        "xtics lc rgb '#dddddd' lw 0.6 lt 1\nset ytics scale 0 (%s) noenhanced%s\n",
        f->longest * 1.04, gp_step(f->longest * 1.04, c->width > 140 ? c->width / 70 : 2),
        f->l.n - 1, buf_str(tics), is_narrow(f->g.args) ? " font font_small" : "");
    for (int p = 2; p >= 0; p--)
        for (int h = 0; h <= f->hatched; h++) {
            buf_puts(s, p == 2 && h == 0 ? "plot " : ", ");
            gp_data_name(&c->gp, "dat");
            buf_printf(s,
                       " using ($2==%d?$%d/2:NaN):1:($%d/2):(0.34) with boxxyerror lc rgb '%s' "
                       "fs %s notitle",
                       h, p + 3, p + 3, phase_colors[p], fill[h]);
        }
    char how[96];
    for (int p = 0; p < 3; p++) {
        snprintf(how, sizeof how, "boxes fs solid lc rgb '%s'", phase_colors[p]);
        chart_entry_as(c, how, kinds[f->kind].name[p]);
    }
    snprintf(how, sizeof how, "boxes lc rgb '%s' fs %s", phase_colors[2], fill[1]);
    if (f->hatched)
        chart_entry_as(c, how, "attend; selection not measured");
    chart_end(c);
}

static int draw(const struct phases *f, const struct figure_args *a, struct err *err)
{
    struct chart c = {0};
    struct buf data = {0}, tics = {0}, title = {0}, x = {0};
    int rows = f->l.n, without = (int)f->g.gs.n - rows, rc = 0;

    buf_printf(&title, "Mean time of a %s, %s", subject(f), kinds[f->kind].what);
    if (without)
        buf_printf(&title, "; %d setting%s without times left out", without,
                   without > 1 ? "s" : "");
    TRY(buf_check(&title, "title", err));
    const struct chart_layout layout = {.title = buf_str(&title),
                                        .panels = 1,
                                        .width = 400,
                                        .height = 60 + 24 * rows,
                                        .least = rows * (is_narrow(a) ? 26 : 14),
                                        .left = is_narrow(a)
                                                    ? (int)(20 + 5.9 * longest_line(f))
                                                    : (int)(28 + 7.4 * series_longest(&f->l)),
                                        .legend = f->hatched ? 286 : 110,
                                        .lines = f->hatched ? 4 : 3};
    TRY(chart_open(a, &layout, &c, err));
    write_phases(f, &c, &data, &tics);
    buf_printf(&x, "time [%s]", f->unit);
    chart_panel(&c, 0, buf_str(&x), "");
    plot_phases(&c, f, &tics);
    TRY(chart_finish(&c, &data, err));
out:
    chart_free(&c);
    buf_free(&data);
    buf_free(&tics);
    buf_free(&title);
    buf_free(&x);
    return rc;
}

static int draw_phases(const struct figure_args *a, struct err *err)
{
    static const enum group_key keys[] = {KEY_METHOD, KEY_PARAMS};
    struct phases f = {0};
    int rc = 0;

    TRY(chart_group(a, keys, 2, 0, NULL, KEY_COUNT, &f.g, err));
    f.kind = find_kind(&f.g.gs);
    if (f.kind < 0)
        FAIL(err, ERR_INPUT, "no ok record has times");
    TRY(mem_alloc(&f.bars, f.g.gs.n, sizeof *f.bars, "bars", err));
    TRY(collect(&f, err));
    TRY(draw(&f, a, err));
out:
    chart_groups_free(&f.g);
    series_free(&f.l);
    free(f.bars);
    return rc;
}

const struct figure figure_phases = {
    .listed =
        {"phases", "time of prepare, select and attend by method, or of a clip's steps",
         "input: records with times: measured on a GPU, else those of the CPU reference, else of "
         "clips; never mixed"},
    .uses = "layer,head,step,branch,method,params",
    .input = FIGURE_RECORDS,
    .draw = draw_phases,
};
