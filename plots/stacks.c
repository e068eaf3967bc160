/*
 * stacks.c - the drawer of stacked bars: where the time of a method goes.
 */
#include "plots/chart.h"

#include "core/mem.h"

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
static void put_bars(struct stacks *f)
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
                p + 3, p + 3, phase_colors[p], fill[h]);
    for (int p = 0; p < 3; p++) {
        snprintf(how, sizeof how, "boxes fs solid lc rgb '%s'", phase_colors[p]);
        canvas_entry(canvas, how, kinds[f->kind].name[p]);
    }
    snprintf(how, sizeof how, "boxes lc rgb '%s' fs %s", phase_colors[2], fill[1]);
    if (f->hatched)
        canvas_entry(canvas, how, "attend; selection not measured");
    canvas_end(canvas);
}

static int draw(struct stacks *f, struct err *err)
{
    struct chart *c = &f->c;
    int rows = c->l.n, without = (int)c->g.gs.n - rows, rc = 0;
    char x_name[32];

    buf_printf(&c->says, "%s, %s", subject(f), kinds[f->kind].what);
    if (without)
        buf_printf(&c->says, "; %d setting%s without times left out", without,
                   without > 1 ? "s" : "");
    TRY(chart_title(c, err));
    const struct canvas_wish w = {
        .title = buf_str(&c->title),
        .caption = buf_str(&c->caption),
        .width = 400,
        .height = 60 + 24 * rows,
        .least = rows * (c->a->width ? 26 : 13),
        .left = (int)(28 + (c->a->width ? 0.85 : 1) * CANVAS_CHAR * name_chars(f)),
        .entries = f->hatched ? 4 : 3,
        .chars = f->hatched ? 30 : 9};
    TRY(canvas_open(c->a, &w, &c->canvas, err));
    write_stacks(f);
    snprintf(x_name, sizeof x_name, "time [%s]", f->unit);
    canvas_panel(&c->canvas, x_name, "", NULL);
    put_axes(f);
    put_bars(f);
    TRY(canvas_finish(&c->canvas, &c->data, err));
out:
    return rc;
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
    TRY(draw(&f, err));
out:
    chart_free(&f.c);
    free(f.bars);
    return rc;
}
