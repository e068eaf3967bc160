/*
 * steps.c - the figure "steps": attention maps of a head over the denoising steps, small multiples
 * with one row per head and one column per captured step.
 */
#include "plots/mapfig.h"

#include "core/mem.h"
#include "plots/panels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct step_maps {
    const struct figure_args *args;
    const char *branch;
    int64_t *layers, *heads; /* owned */
    int64_t n_layers, n_heads;
    int *steps; /* captured ones, ascending; owned */
    int n_steps;
};

/* The first layer and head when none is named: a figure of all of them would not be legible. */
static int choose(const struct figure_args *a, struct step_maps *s, struct err *err)
{
    const struct trace *t = a->trace;
    char first[16];
    int64_t cap = 0;
    int rc = 0;

    if (trace_calls(t) == 0)
        FAIL(err, ERR_INPUT, "%s: holds no attention call", trace_path(t));
    if (a->step != INT64_MIN)
        FAIL(err, ERR_USAGE, "figure steps draws all captured steps; --step belongs to heatmap");
    s->args = a;
    s->branch = a->branch ? a->branch : trace_call(t, 0)->branch;
    snprintf(first, sizeof first, "%d", trace_call(t, 0)->layer);
    TRY(index_list_parse(a->layer && strcmp(a->layer, "all") != 0 ? a->layer : first,
                         trace_meta(t)->layers, "--layer", &s->layers, &s->n_layers, err));
    TRY(index_list_parse(a->head && strcmp(a->head, "all") != 0 ? a->head : "0",
                         trace_meta(t)->heads, "--head", &s->heads, &s->n_heads, err));
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
out:
    return rc;
}

static int add_map(const struct step_maps *s, int64_t layer, int64_t head, int step, int64_t most,
                   struct map_figure *f, struct err *err)
{
    struct map_panel p = {trace_find(s->args->trace, step, s->branch, (int)layer), (int)layer,
                          (int)head};
    if (p.call < 0)
        return err_set(err, ERR_INPUT, "%s: step %d, branch %s has no layer %lld",
                       trace_path(s->args->trace), step, s->branch, (long long)layer);
    int rc = map_read(s->args->trace, &p, s->args->mean, most, &f->maps[f->n], err);
    if (rc)
        return rc;
    if (s->n_layers * s->n_heads == 1)
        snprintf(f->titles[f->n], sizeof *f->titles, "step %d", step);
    else
        snprintf(f->titles[f->n], sizeof *f->titles, "L%lld H%lld step %d", (long long)layer,
                 (long long)head, step);
    f->n++;
    return 0;
}

static int read_maps(const struct step_maps *s, struct map_figure *f, struct err *err)
{
    int64_t n = s->n_layers * s->n_heads * s->n_steps;
    int rc = 0;
    if (n > MAPFIG_MOST)
        FAIL(err, ERR_USAGE, "%lld maps, at most %d fit: choose with --layer and --head",
             (long long)n, MAPFIG_MOST);
    TRY(mem_zalloc(&f->maps, n, sizeof *f->maps, "maps", err));
    TRY(mem_zalloc(&f->titles, n, sizeof *f->titles, "titles", err));
    for (int64_t l = 0; l < s->n_layers; l++)
        for (int64_t h = 0; h < s->n_heads; h++)
            for (int i = 0; i < s->n_steps; i++)
                TRY(add_map(s, s->layers[l], s->heads[h], s->steps[i], panels_side((int)n), f,
                            err));
out:
    return rc;
}

static int draw_steps(const struct figure_args *a, struct err *err)
{
    struct step_maps s = {0};
    struct map_figure f = {.args = a, .log = true};
    struct buf title = {0};
    int rc = 0;

    f.low = isnan(a->low) ? 1e-6 : a->low;
    f.high = isnan(a->high) ? 1 : a->high;
    if (!(f.low > 0 && f.low < f.high))
        FAIL(err, ERR_USAGE, "--range %g:%g: a logarithmic scale needs 0 < low < high", f.low,
             f.high);
    TRY(choose(a, &s, err));
    TRY(read_maps(&s, &f, err));
    f.per_row = s.n_layers * s.n_heads > 1 && s.n_steps <= 16 ? s.n_steps : 0;
    f.bar_label = a->mean ? "mean weight of the cell's pairs" : "largest weight in the cell";
    buf_printf(&title, "attention over denoising steps, %s", trace_meta(a->trace)->name);
    if (s.n_layers * s.n_heads == 1)
        buf_printf(&title, " layer %lld head %lld", (long long)s.layers[0], (long long)s.heads[0]);
    buf_printf(&title, ", %s; cells of %lld tokens", s.branch, (long long)f.maps[0].tokens);
    TRY(buf_check(&title, "title", err));
    f.title = buf_str(&title);
    TRY(map_draw(&f, err));
out:
    for (int i = 0; i < f.n; i++)
        cells_free(&f.maps[i]);
    free(f.maps);
    free(f.titles);
    free(s.layers);
    free(s.heads);
    free(s.steps);
    buf_free(&title);
    return rc;
}

const struct figure figure_steps = {
    .listed =
        {"steps", "attention maps of a head over the denoising steps",
         "input: a video trace with maps; --layer and --head choose (the first of each), --branch "
         "the guidance branch, --mean and --range as for heatmap"},
    .input = FIGURE_TRACE,
    .draw = draw_steps,
};
