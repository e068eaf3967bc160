/*
 * steps.c - the figure "steps": attention maps of a head over the denoising steps, small multiples
 * with one row per head and one column per captured step.
 */
#include "plots/drawers.h"
#include "plots/mapfig.h"

#include "core/mem.h"
#include "plots/panels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct step_maps {
    const struct figure_args *args;
    const char *branch;
    struct map_choice rows; /* heads of one step */
    int *steps;             /* captured ones, ascending; owned */
    int n_steps;
};

/* The heads of the figure; the first one when none is named: all of them would not be legible. */
static int choose_rows(const struct figure_args *a, struct step_maps *s, struct err *err)
{
    const struct trace *t = a->trace;
    struct figure_args one = *a;
    char layer[16], head[16];

    snprintf(layer, sizeof layer, "%d", trace_call(t, 0)->layer);
    snprintf(head, sizeof head, "%d", trace_head_number(trace_meta(t), 0));
    one.layer = a->layer ? a->layer : layer;
    one.head = a->head ? a->head : head;
    one.branch = s->branch;
    one.step = s->steps[0];
    return map_choose(&one, &s->rows, err);
}

static int choose(const struct figure_args *a, struct step_maps *s, struct err *err)
{
    const struct trace *t = a->trace;
    int64_t cap = 0;
    int rc = 0;

    if (trace_calls(t) == 0)
        FAIL(err, ERR_INPUT, "%s: holds no attention call", trace_path(t));
    if (a->step != INT64_MIN)
        FAIL(err, ERR_USAGE, "figure steps draws all captured steps; --step belongs to heatmap");
    s->args = a;
    s->branch = a->branch ? a->branch : trace_call(t, 0)->branch;
    for (int64_t i = 0; i < trace_calls(t); i++) {
        const struct trace_call *c = trace_call(t, i);
        if (strcmp(c->branch, s->branch) != 0 ||
            (s->n_steps && s->steps[s->n_steps - 1] == c->step))
            continue;
        TRY(mem_grow(&s->steps, &cap, s->n_steps + 1, sizeof *s->steps, "steps", err));
        s->steps[s->n_steps++] = c->step;
    }
    if (s->n_steps == 0)
        FAIL(err, ERR_INPUT, "%s: no call of branch %s", trace_path(t), s->branch);
    TRY(choose_rows(a, s, err));
out:
    return rc;
}

static int add_map(const struct step_maps *s, const struct map_panel *row, int step,
                   struct map_panel *out, struct map_figure *f, struct err *err)
{
    *out = *row;
    out->call = trace_find(s->args->trace, step, s->branch, row->layer);
    if (out->call < 0)
        return err_set(err, ERR_INPUT, "%s: step %d, branch %s has no layer %d",
                       trace_path(s->args->trace), step, s->branch, row->layer);
    snprintf(f->titles[f->n], sizeof *f->titles, "step %d", step);
    f->n++;
    return 0;
}

/* A row per head and a column per step. */
static int head_steps(const struct step_maps *s, struct map_figure *f, struct err *err)
{
    int rc = 0;
    f->per_row = s->n_steps <= 16 ? s->n_steps : 0;
    if (s->rows.n == 1 || !f->per_row)
        return 0;
    TRY(mem_zalloc(&f->row_heads, s->rows.n, sizeof *f->row_heads, "titles", err));
    TRY(mem_zalloc(&f->col_heads, s->n_steps, sizeof *f->col_heads, "titles", err));
    for (int r = 0; r < s->rows.n; r++)
        snprintf(f->row_heads[r], sizeof *f->row_heads, "layer %d\nhead %d", s->rows.panel[r].layer,
                 s->rows.panel[r].head);
    for (int i = 0; i < s->n_steps; i++)
        snprintf(f->col_heads[i], sizeof *f->col_heads, "step %d", s->steps[i]);
out:
    return rc;
}

static int read_maps(const struct step_maps *s, struct map_figure *f, bool *stored, struct err *err)
{
    const struct trace_meta *m = trace_meta(s->args->trace);
    int n = s->rows.n * s->n_steps, rc = 0;
    struct map_panel *all = NULL;
    struct cells_span span;
    if (n > MAPFIG_MOST)
        FAIL(err, ERR_USAGE, "%d maps, at most %d fit: choose with --layer and --head", n,
             MAPFIG_MOST);
    TRY(mem_zalloc(&f->maps, n, sizeof *f->maps, "maps", err));
    TRY(mem_zalloc(&f->titles, n, sizeof *f->titles, "titles", err));
    TRY(mem_zalloc(&all, n, sizeof *all, "panels", err));
    for (int r = 0; r < s->rows.n; r++)
        for (int i = 0; i < s->n_steps; i++)
            TRY(add_map(s, &s->rows.panel[r], s->steps[i], &all[f->n], f, err));
    TRY(head_steps(s, f, err));
    TRY(map_part(s->args, m->n_q, m->n_k, &span, err));
    const struct map_room room = {n, f->per_row, f->col_heads ? 0 : 1};
    TRY(map_read(s->args, all, n, &span, map_most_cells(s->args, &room), f->maps, stored, err));
out:
    free(all);
    return rc;
}

int draw_steps(const struct figure *f_, const struct figure_args *a, struct err *err)
{
    (void)f_;
    struct step_maps s = {0};
    struct map_figure f = {.args = a, .log = true};
    struct buf title = {0}, caption = {0};
    bool stored;
    int rc = 0;

    f.low = isnan(a->low) ? 1e-6 : a->low;
    f.high = isnan(a->high) ? 1 : a->high;
    if (!(f.low > 0 && f.low < f.high))
        FAIL(err, ERR_USAGE, "--range %g:%g: a logarithmic scale needs 0 < low < high", f.low,
             f.high);
    TRY(choose(a, &s, err));
    TRY(read_maps(&s, &f, &stored, err));
    map_caption(a, &f.maps[0], stored, &caption);
    f.bar_label = a->mean ? "mean weight of the cell's pairs" : "largest weight in the cell";
    buf_printf(&title, "attention over denoising steps, %s", trace_meta(a->trace)->name);
    if (s.rows.n == 1)
        buf_printf(&title, " layer %d head %d", s.rows.panel[0].layer, s.rows.panel[0].head);
    buf_printf(&title, ", %s", s.branch);
    if (f.maps[0].tokens > 1)
        buf_printf(&title, "; cells of %lld tokens", (long long)f.maps[0].tokens);
    TRY(buf_check(&title, "title", err));
    TRY(buf_check(&caption, "caption", err));
    f.title = buf_str(&title);
    f.caption = buf_str(&caption);
    TRY(map_draw(&f, err));
out:
    for (int i = 0; i < f.n; i++)
        cells_free(&f.maps[i]);
    free(f.maps);
    free(f.titles);
    free(f.row_heads);
    free(f.col_heads);
    buf_free(&caption);
    map_choice_free(&s.rows);
    free(s.steps);
    buf_free(&title);
    return rc;
}
