/*
 * heatmap.c - figures of attention maps: heatmap (the map), overlay (the map under the masks of
 * methods) and mask (the mask alone).
 *
 * The maps are block maxima of the exact softmax, so a vertical line one key wide or a slash one
 * token wide stays visible at any size.
 */
#include "plots/mapfig.h"

#include "analyze/keys.h"
#include "core/indexlist.h"
#include "core/maskindex.h"
#include "core/mem.h"
#include "plots/panels.h"
#include "plots/titles.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Cells per panel side at most: as many as the panel has pixels. */
static int64_t most_cells(const struct figure_args *a, int panels, int per_row, int lines)
{
    int side =
        a->width ? panels_room(panels, per_row, lines, a->width, a->height) : panels_side(panels);
    return side < 16 ? 16 : side;
}

/* Short where room is short. */
static void panel_title(const struct figure_args *a, const struct map_panel *p, char title[96])
{
    snprintf(title, 96, a->width ? "L%d H%d" : "layer %d head %d", p->layer, p->head);
}

static void scope_text(const struct figure_args *a, const struct map_choice *c, struct buf *b)
{
    const struct trace_meta *m = trace_meta(a->trace);
    if (m->n_q == m->n_k)
        buf_printf(b, "%s, %lld token%s", m->name, (long long)m->n_q, m->n_q == 1 ? "" : "s");
    else
        buf_printf(b, "%s, %lld %s x %lld keys", m->name, (long long)m->n_q,
                   m->n_q == 1 ? "query" : "queries", (long long)m->n_k);
    if (m->grid_t > 0)
        buf_printf(b, ", step %d, %s", c->step, c->branch);
}

static int alloc_panels(int n, struct map_figure *f, bool overlay, struct err *err)
{
    int rc = 0;
    TRY(mem_zalloc(&f->maps, n, sizeof *f->maps, "maps", err));
    TRY(mem_zalloc(&f->titles, n, sizeof *f->titles, "titles", err));
    if (overlay)
        TRY(mem_zalloc(&f->overlay, n, sizeof *f->overlay, "overlay", err));
    f->n = n;
out:
    return rc;
}

static void free_panels(struct map_figure *f)
{
    for (int i = 0; i < f->n; i++) {
        cells_free(&f->maps[i]);
        if (f->overlay)
            cells_free(&f->overlay[i]);
    }
    free(f->maps);
    free(f->overlay);
    free(f->titles);
}

static void map_scale(const struct figure_args *a, struct map_figure *f)
{
    f->low = isnan(a->low) ? 1e-6 : a->low;
    f->high = isnan(a->high) ? 1 : a->high;
    f->log = true;
    f->bar_label = a->mean ? "mean weight of the cell's pairs" : "largest weight in the cell";
}

static int check_scale(const struct figure_args *a, struct err *err)
{
    double low = isnan(a->low) ? 1e-6 : a->low, high = isnan(a->high) ? 1 : a->high;
    return low > 0 && low < high ? 0
                                 : err_set(err, ERR_USAGE,
                                           "--range %g:%g: a logarithmic scale "
                                           "needs 0 < low < high",
                                           low, high);
}

static void map_title(const struct figure_args *a, const struct map_choice *c,
                      const struct cells *cells, struct buf *b)
{
    buf_puts(b, "attention of ");
    scope_text(a, c, b);
    buf_printf(b, "; cells of %lld x %lld tokens, %s", (long long)cells->tokens,
               (long long)cells->tokens, a->mean ? "mean" : "maximum");
}

static int draw_heatmap(const struct figure_args *a, struct err *err)
{
    struct map_choice c = {0};
    struct map_figure f = {.args = a};
    struct buf title = {0};
    int rc = 0;

    TRY(check_scale(a, err));
    TRY(map_choose(a, &c, err));
    TRY(alloc_panels(c.n, &f, false, err));
    f.per_row = c.per_row;
    for (int i = 0; i < c.n; i++) {
        TRY(map_read(a->trace, &c.panel[i], a->mean, most_cells(a, c.n, c.per_row, 1), &f.maps[i],
                     err));
        panel_title(a, &c.panel[i], f.titles[i]);
    }
    map_scale(a, &f);
    map_title(a, &c, &f.maps[0], &title);
    f.title = buf_str(&title);
    TRY(map_draw(&f, err));
out:
    free_panels(&f);
    map_choice_free(&c);
    buf_free(&title);
    return rc;
}

/* ---- masks --------------------------------------------------------------------------------- */

/* What an overlay shows: maps of the chosen heads, each under the masks of the chosen settings. */
struct overlay {
    struct map_choice c;
    struct mask_index index;
    int *setting; /* [n] of the index */
    struct title_params *params;
    int n;
    bool methods; /* differ */
};

static void overlay_free(struct overlay *o)
{
    map_choice_free(&o->c);
    mask_index_free(&o->index);
    free(o->setting);
    free(o->params);
}

/* The settings that --method and --params take. */
static int choose_settings(const struct figure_args *a, struct overlay *o, struct err *err)
{
    int rc = 0;
    TRY(mask_index_make(a->masks, &o->index, err));
    TRY(mem_alloc(&o->setting, o->index.n_settings, sizeof *o->setting, "settings", err));
    TRY(mem_zalloc(&o->params, o->index.n_settings, sizeof *o->params, "titles", err));
    for (int k = 0; k < o->index.n_settings; k++) {
        const struct mask_setting *s = &o->index.settings[k];
        struct record r = {.params = s->params, .model = ""};
        memcpy(r.method, s->method, sizeof r.method);
        if (figure_takes(a, &r))
            o->setting[o->n++] = k;
    }
    if (o->n == 0)
        FAIL(err, ERR_INPUT, "no dumped mask of %s%s", a->method ? "method " : "any method",
             a->method ? a->method : "");
    if (o->c.n * o->n > MAPFIG_MOST)
        FAIL(err, ERR_USAGE,
             "%d heads under masks of %d settings are more than %d panels: choose with --layer, "
             "--head, --method and --params",
             o->c.n, o->n, MAPFIG_MOST);
out:
    return rc;
}

/* The mask of one panel. */
static int find_mask(const struct figure_args *a, const struct overlay *o,
                     const struct map_panel *p, int setting, const struct mask_entry **out,
                     struct err *err)
{
    struct buf name = {0};
    *out = mask_index_find(&o->index, o->c.step, o->c.branch, p->layer, p->head, setting);
    if (*out)
        return 0;
    mask_setting_text(&o->index.settings[setting], &name);
    int rc = err_set(err, ERR_INPUT, "no dumped mask of layer %d head %d step %d branch %s, %s",
                     p->layer, p->head, o->c.step, o->c.branch, buf_str(&name));
    buf_free(&name);
    return rc;
}

static int check_identity(const struct figure_args *a, const struct overlay *o,
                          const struct mask_entry *e, struct err *err)
{
    const struct trace_meta *t = trace_meta(a->trace);
    if (strcmp(e->trace, trace_id(a->trace)) != 0)
        return err_set(err, ERR_INPUT, "the masks belong to trace %s, not to %s (%s)", e->trace,
                       trace_path(a->trace), trace_id(a->trace));
    if (e->nq != t->n_q || e->nk != t->n_k)
        return err_set(err, ERR_INPUT, "mask of %lld x %lld tokens, trace of %lld x %lld",
                       (long long)e->nq, (long long)e->nk, (long long)t->n_q, (long long)t->n_k);
    if (strcmp(e->order, "none") != 0)
        return err_set(err, ERR_INPUT,
                       "the mask of %s stands in token order %s, the map in the trace's: choose "
                       "masks without a permute, or plot mask, which needs no map",
                       o->index.settings[e->setting].method, e->order);
    return 0;
}

/* Its head and the share of kept pairs; of several settings also which one. */
static void overlay_title(const struct figure_args *a, const struct overlay *o,
                          const struct map_panel *p, int k, double density, int panels,
                          char title[96])
{
    const struct title_params *t = &o->params[k];
    bool brief = panels > 4 || a->width;
    char share[16];
    title_share(density, brief ? 3 : 4, share);
    struct buf b = {0};
    if (o->n > 1)
        buf_printf(&b, "%.40s%s%.30s\n", t->above, t->above[0] && t->text[0] ? " " : "",
                   t->text[0] || t->above[0] ? t->text : "defaults");
    buf_printf(&b, o->n > 1 || brief ? "L%d H%d: %s" : "layer %d head %d, density_elem %s",
               p->layer, p->head, share);
    snprintf(title, 96, "%s", buf_str(&b));
    buf_free(&b);
}

/* Panel number i: head i / o->n under setting i % o->n. */
static int overlay_panel(const struct figure_args *a, const struct overlay *o, int i,
                         struct map_figure *f, struct err *err)
{
    const struct map_panel *p = &o->c.panel[i / o->n];
    const struct mask_entry *e = NULL;
    struct mask m = {0};
    struct mask_counts n;
    int rc = 0;
    TRY(map_read(a->trace, p, a->mean, most_cells(a, f->n, f->per_row, o->n > 1 ? 2 : 1),
                 &f->maps[i], err));
    TRY(find_mask(a, o, p, o->setting[i % o->n], &e, err));
    TRY(check_identity(a, o, e, err));
    TRY(maskfile_read(a->masks, e->cell, &m, err));
    TRY(cells_from_mask(&m, f->maps[i].tokens, &f->overlay[i], err));
    TRY(mask_count(&m, &n, err));
    overlay_title(a, o, p, i % o->n, (double)n.pairs_kept / (double)n.pairs_allowed, f->n,
                  f->titles[i]);
out:
    mask_free(&m);
    return rc;
}

/* The figure's title has what all settings share. */
static void name_settings(const struct figure_args *a, struct overlay *o, int panels,
                          struct buf *title)
{
    struct buf all = {0}, shared = {0};
    const struct mask_setting *first = &o->index.settings[o->setting[0]];
    for (int k = 1; k < o->n; k++)
        o->methods |= strcmp(o->index.settings[o->setting[k]].method, first->method) != 0;
    for (int k = 0; k < o->n; k++) {
        o->params[k].above = o->methods ? o->index.settings[o->setting[k]].method : "";
        o->params[k].params = o->index.settings[o->setting[k]].params;
    }
    if (o->n == 1) {
        mask_setting_text(first, &all);
    } else {
        title_params(o->params, o->n,
                     panels_title_room(panels, o->n, panels_side(panels), a->width), &shared);
        buf_printf(&all, "%s%s%s", o->methods ? "masks" : first->method, shared.len ? ":" : "",
                   buf_str(&shared));
    }
    title_cut(buf_str(&all), 72, title);
    buf_puts(title, " on ");
    scope_text(a, &o->c, title);
    buf_puts(title, panels > 4 || o->n > 1 || a->width ? "; dropped: pale; numbers: density_elem"
                                                       : "; dropped pairs are pale");
    buf_free(&all);
    buf_free(&shared);
}

static int draw_overlay(const struct figure_args *a, struct err *err)
{
    struct overlay o = {.n = 0};
    struct map_figure f = {.args = a};
    struct buf title = {0};
    int rc = 0;

    TRY(check_scale(a, err));
    TRY(map_choose(a, &o.c, err));
    TRY(choose_settings(a, &o, err));
    TRY(alloc_panels(o.c.n * o.n, &f, true, err));
    f.per_row = o.n > 1 ? o.n : o.c.per_row;
    name_settings(a, &o, f.n, &title);
    for (int i = 0; i < f.n; i++)
        TRY(overlay_panel(a, &o, i, &f, err));
    map_scale(a, &f);
    f.title = buf_str(&title);
    TRY(map_draw(&f, err));
out:
    free_panels(&f);
    overlay_free(&o);
    buf_free(&title);
    return rc;
}

/* ---- mask alone ---------------------------------------------------------------------------- */

/* *n = -1: no list was given, everything fits. */
static int wanted_list(const char *text, const char *what, int64_t **list, int64_t *n,
                       struct err *err)
{
    *n = -1;
    return text ? index_list_parse(text, -1, what, list, n, err) : 0;
}

/* A mask of the file that takes part. */
struct listed_mask {
    int64_t at;
    struct record id;
};

/* Those of a figure, and what tells them apart. */
struct mask_list {
    struct listed_mask m[MAPFIG_MOST];
    struct title_params params[MAPFIG_MOST];
    int n;
    bool methods, steps; /* differ */
};

static int by_cell(const void *a, const void *b)
{
    static const enum group_key keys[] = {KEY_METHOD, KEY_PARAMS, KEY_STEP,
                                          KEY_BRANCH, KEY_LAYER,  KEY_HEAD};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        int d = key_compare(&((const struct listed_mask *)a)->id,
                            &((const struct listed_mask *)b)->id, keys[i]);
        if (d)
            return d;
    }
    return 0;
}

/* Method and parameters, as far as they differ, stand above the rest, which always fits. */
static void mask_title(const struct record *id, const struct title_params *t, bool steps,
                       double density, char title[96])
{
    struct buf b = {0};
    char share[16];
    buf_printf(&b, "%s%s%s%s", t->above, t->above[0] && t->text[0] ? " " : "", t->text,
               t->above[0] || t->text[0] ? "\n" : "");
    if (steps)
        buf_printf(&b, "step %d %s ", id->step, id->branch);
    title_share(density, 3, share);
    buf_printf(&b, "L%d H%d: %s", id->layer, id->head, share);
    snprintf(title, 96, "%s", buf_str(&b));
    buf_free(&b);
}

static int add_mask(const struct figure_args *a, const struct mask_list *l, int i,
                    struct map_figure *f, struct err *err)
{
    struct mask m = {0};
    struct mask_counts count;
    struct cells *c = &f->maps[i];
    int rc = 0;

    TRY(maskfile_read(a->masks, l->m[i].at, &m, err));
    int64_t longest = m.nq > m.nk ? m.nq : m.nk;
    f->n++;
    TRY(cells_from_mask(&m, cells_factor(longest, longest, most_cells(a, l->n, 0, 2)), c, err));
    TRY(mask_count(&m, &count, err));
    mask_title(&l->m[i].id, &l->params[i], l->steps,
               (double)count.pairs_kept / (double)count.pairs_allowed, f->titles[i]);
    if (c->n_q != f->maps[0].n_q || c->n_k != f->maps[0].n_k)
        FAIL(err, ERR_USAGE,
             "masks of different sizes in one figure: choose with --layer, --method");
out:
    mask_free(&m);
    return rc;
}

/* The masks that the options choose, in the order of tables. */
static int list_masks(const struct figure_args *a, struct mask_list *l, struct err *err)
{
    int64_t *layers = NULL, *heads = NULL, n_layers, n_heads;
    struct record id;
    int rc = 0;

    TRY(wanted_list(a->layer, "--layer", &layers, &n_layers, err));
    TRY(wanted_list(a->head, "--head", &heads, &n_heads, err));
    for (int64_t i = 0; i < maskfile_cells(a->masks); i++) {
        TRY(maskfile_cell(a->masks, i, &id, err));
        bool fits = index_list_has(layers, n_layers, id.layer) &&
                    index_list_has(heads, n_heads, id.head) &&
                    (a->step == INT64_MIN || a->step == id.step) &&
                    (!a->branch || strcmp(a->branch, id.branch) == 0) && figure_takes(a, &id);
        if (fits && l->n < MAPFIG_MOST) {
            l->m[l->n++] = (struct listed_mask){i, id};
            continue;
        }
        record_free(&id);
        if (fits)
            FAIL(err, ERR_USAGE, "more than %d masks: choose with --layer, --head, --method",
                 MAPFIG_MOST);
    }
    if (l->n == 0)
        FAIL(err, ERR_INPUT, "no such mask in the file (%lld masks)",
             (long long)maskfile_cells(a->masks));
    qsort(l->m, (size_t)l->n, sizeof *l->m, by_cell);
out:
    free(layers);
    free(heads);
    return rc;
}

/* The figure's title has what all masks share. */
static void name_masks(const struct figure_args *a, struct mask_list *l, struct buf *title)
{
    struct buf all = {0}, shared = {0};
    for (int i = 1; i < l->n; i++) {
        const struct record *x = &l->m[i].id, *first = &l->m[0].id;
        l->methods |= strcmp(x->method, first->method) != 0;
        l->steps |= x->step != first->step || strcmp(x->branch, first->branch) != 0;
    }
    for (int i = 0; i < l->n; i++) {
        l->params[i].above = l->methods ? l->m[i].id.method : "";
        l->params[i].params = l->m[i].id.params;
    }
    title_params(l->params, l->n, panels_title_room(l->n, 0, panels_side(l->n), a->width), &shared);
    if (!l->methods)
        buf_puts(&all, l->m[0].id.method);
    buf_printf(&all, "%s%s", all.len && shared.len ? ":" : "", buf_str(&shared));
    buf_printf(title, "masks%s", all.len ? " of " : "");
    title_cut(buf_str(&all), 72, title);
    buf_puts(title, "; numbers: density_elem (kept/allowed pairs)");
    buf_free(&all);
    buf_free(&shared);
}

static int draw_mask(const struct figure_args *a, struct err *err)
{
    struct map_figure f = {.args = a};
    struct mask_list *l = NULL;
    struct buf title = {0};
    int rc = 0;

    TRY(mem_zalloc(&l, 1, sizeof *l, "masks", err));
    TRY(list_masks(a, l, err));
    TRY(alloc_panels(l->n, &f, false, err));
    name_masks(a, l, &title);
    f.n = 0;
    for (int i = 0; i < l->n; i++)
        TRY(add_mask(a, l, i, &f, err));
    f.low = isnan(a->low) ? 0 : a->low;
    f.high = isnan(a->high) ? 1 : a->high;
    f.bar_label = "kept share of the cell's allowed pairs";
    f.title = buf_str(&title);
    TRY(map_draw(&f, err));
out:
    for (int i = 0; l && i < l->n; i++)
        record_free(&l->m[i].id);
    free(l);
    free_panels(&f);
    buf_free(&title);
    return rc;
}

const struct figure figure_heatmap = {
    .listed =
        {"heatmap", "attention maps of a trace, one panel per head",
         "input: a trace with maps; --layer, --head, --step, --branch choose, --mean shows the "
         "mean weight of a cell instead of the largest, --range LOW:HIGH the colour scale"},
    .input = FIGURE_TRACE,
    .draw = draw_heatmap,
};

const struct figure figure_overlay = {
    .listed = {"overlay", "attention maps with dumped masks over them, a column per method",
               "input: a trace and --masks FILE of `lacuna replay --dump-masks`; of several "
               "settings --method and --params choose some, else each is a column and each head a "
               "row"},
    .input = FIGURE_TRACE,
    .needs_masks = true,
    .draw = draw_overlay,
};

const struct figure figure_mask = {
    .listed = {"mask", "dumped masks as kept share per cell", "input: a file of dumped masks"},
    .input = FIGURE_MASKS,
    .draw = draw_mask,
};
