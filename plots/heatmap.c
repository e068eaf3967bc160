/*
 * heatmap.c - figures of attention maps: heatmap (the map), overlay (the map under the masks of
 * methods) and mask (the mask alone).
 *
 * Cells of maps are maxima of the exact softmax, so a vertical line one key wide or a slash one
 * token wide stays visible at any size.
 */
#include "plots/drawers.h"
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
    free(f->row_heads);
    free(f->col_heads);
    free(f->below);
}

/* Heads of rows and columns in place of titles. */
static int alloc_heads(int rows, int cols, struct map_figure *f, struct err *err)
{
    int rc = mem_zalloc(&f->row_heads, rows, sizeof *f->row_heads, "titles", err);
    return rc ? rc : mem_zalloc(&f->col_heads, cols, sizeof *f->col_heads, "titles", err);
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
    if (a->rows || a->keys)
        buf_printf(b, ", queries %lld-%lld, keys %lld-%lld", (long long)cells->q0,
                   (long long)(cells->q0 + cells->n_q - 1), (long long)cells->k0,
                   (long long)(cells->k0 + cells->n_k - 1));
    if (cells->tokens > 1)
        buf_printf(b, "; cells of %lld x %lld tokens, %s", (long long)cells->tokens,
                   (long long)cells->tokens, a->mean ? "mean" : "maximum");
}

/* A row per layer and a column per head, when every layer has them all. */
static int name_maps(const struct figure_args *a, const struct map_choice *c, struct map_figure *f,
                     struct err *err)
{
    bool grid = c->per_row > 0 && c->n % c->per_row == 0;
    for (int i = 0; i < c->n; i++)
        panel_title(a, &c->panel[i], f->titles[i]);
    if (!grid)
        return 0;
    int rc = alloc_heads(c->n / c->per_row, c->per_row, f, err);
    for (int i = 0; i < c->n && !rc; i++) {
        snprintf(f->row_heads[i / c->per_row], sizeof *f->row_heads, "layer %d", c->panel[i].layer);
        snprintf(f->col_heads[i % c->per_row], sizeof *f->col_heads, "head %d", c->panel[i].head);
    }
    return rc;
}

/* The maps of several traces, a row each: the same layers and heads of all. */
struct several {
    struct map_choice c[FIGURE_TRACES];
    struct map_figure f;
    struct buf title, caption;
};

/* The arguments for one of the traces; --step is of those that have denoising steps. */
static struct figure_args args_of(const struct figure_args *a, int t)
{
    struct figure_args own = *a;
    own.trace = a->traces[t];
    if (trace_meta(own.trace)->grid_t <= 0)
        own.step = INT64_MIN;
    return own;
}

static int choose_several(const struct figure_args *a, struct several *s, struct err *err)
{
    int rc = 0;
    for (int t = 0; t < a->n_traces; t++) {
        const struct figure_args own = args_of(a, t);
        TRY(map_choose(&own, &s->c[t], err));
        bool same = s->c[t].n == s->c[0].n;
        for (int k = 0; same && k < s->c[t].n; k++)
            same = s->c[t].panel[k].layer == s->c[0].panel[k].layer &&
                   s->c[t].panel[k].head == s->c[0].panel[k].head;
        if (!same)
            FAIL(err, ERR_USAGE,
                 "%s and %s have other layers or heads: choose some that both have, with --layer "
                 "and --head",
                 trace_path(a->traces[0]), trace_path(a->traces[t]));
    }
    TRY(alloc_panels(a->n_traces * s->c[0].n, &s->f, false, err));
    TRY(alloc_heads(a->n_traces, s->c[0].n, &s->f, err));
    s->f.per_row = s->c[0].n;
out:
    return rc;
}

static int read_row(const struct figure_args *a, int t, struct several *s, struct err *err)
{
    const struct map_choice *c = &s->c[t];
    const struct map_room room = {s->f.n, s->f.per_row, 0};
    const struct figure_args own = args_of(a, t);
    struct cells_span span;
    bool stored;
    int rc = 0;
    const struct trace_meta *m = trace_meta(own.trace);
    struct cells *maps = s->f.maps + t * c->n;
    TRY(map_part(&own, m->n_q, m->n_k, &span, err));
    TRY(map_read(&own, c->panel, c->n, &span, map_most_cells(a, &room), maps, &stored, err));
    snprintf(s->f.row_heads[t], sizeof *s->f.row_heads, "%.60s", m->name);
    for (int k = 0; k < c->n; k++)
        panel_title(a, &c->panel[k], s->f.col_heads[k]);
    buf_puts(&s->title, t ? "; " : "attention of ");
    scope_text(&own, c, &s->title);
    buf_printf(&s->caption, "%s%s: ", t ? " " : "", m->name);
    map_caption(&own, maps, stored, &s->caption);
out:
    return rc;
}

static int draw_several(const struct figure_args *a, struct err *err)
{
    struct several s = {.f = {.args = a, .own_axes = true}};
    int rc = 0;
    if (a->tokens)
        FAIL(err, ERR_USAGE, "--tokens names the tokens of one trace, %d are given", a->n_traces);
    TRY(check_scale(a, err));
    TRY(choose_several(a, &s, err));
    for (int t = 0; t < a->n_traces; t++)
        TRY(read_row(a, t, &s, err));
    map_scale(a, &s.f);
    TRY(buf_check(&s.title, "title", err));
    TRY(buf_check(&s.caption, "caption", err));
    s.f.title = buf_str(&s.title);
    s.f.caption = buf_str(&s.caption);
    TRY(map_draw(&s.f, err));
out:
    free_panels(&s.f);
    for (int t = 0; t < FIGURE_TRACES; t++)
        map_choice_free(&s.c[t]);
    buf_free(&s.title);
    buf_free(&s.caption);
    return rc;
}

static int draw_one(const struct figure_args *a, struct err *err)
{
    struct map_choice c = {0};
    struct map_figure f = {.args = a};
    struct cells_span span;
    struct words words = {0};
    struct buf title = {0}, caption = {0};
    bool stored;
    int rc = 0;

    TRY(check_scale(a, err));
    TRY(map_choose(a, &c, err));
    TRY(map_part(a, trace_meta(a->trace)->n_q, trace_meta(a->trace)->n_k, &span, err));
    TRY(alloc_panels(c.n, &f, false, err));
    f.per_row = c.per_row;
    f.words = &words;
    TRY(words_read(a, &span, &words, err));
    TRY(name_maps(a, &c, &f, err));
    const struct map_room room = {c.n, c.per_row, f.col_heads ? 0 : 1};
    TRY(map_read(a, c.panel, c.n, &span, map_most_cells(a, &room), f.maps, &stored, err));
    map_scale(a, &f);
    map_title(a, &c, &f.maps[0], &title);
    map_caption(a, &f.maps[0], stored, &caption);
    TRY(buf_check(&title, "title", err));
    TRY(buf_check(&caption, "caption", err));
    f.title = buf_str(&title);
    f.caption = buf_str(&caption);
    TRY(map_draw(&f, err));
out:
    free_panels(&f);
    map_choice_free(&c);
    words_free(&words);
    buf_free(&title);
    buf_free(&caption);
    return rc;
}

int draw_heatmap(const struct figure *f_, const struct figure_args *a, struct err *err)
{
    (void)f_;
    return a->n_traces > 1 ? draw_several(a, err) : draw_one(a, err);
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

/* Its head and the share of kept pairs. */
static void overlay_title(const struct figure_args *a, const struct map_panel *p, double density,
                          int panels, char title[96])
{
    bool brief = panels > 4 || a->width;
    char share[16];
    title_share(density, brief ? 3 : 4, share);
    snprintf(title, 96, brief ? "L%d H%d: %s" : "layer %d head %d, kept pairs %s", p->layer,
             p->head, share);
}

/* A row per head, a column per setting, where there are several. */
static int overlay_heads(const struct overlay *o, struct map_figure *f, struct err *err)
{
    int rc = 0;
    if (o->n < 2)
        return 0;
    TRY(alloc_heads(o->c.n, o->n, f, err));
    TRY(mem_zalloc(&f->below, f->n, sizeof *f->below, "titles", err));
    for (int i = 0; i < o->c.n; i++)
        snprintf(f->row_heads[i], sizeof *f->row_heads, "layer %d\nhead %d", o->c.panel[i].layer,
                 o->c.panel[i].head);
    for (int k = 0; k < o->n; k++) {
        const struct title_params *t = &o->params[k];
        snprintf(f->col_heads[k], sizeof *f->col_heads, "%.40s%s%.50s", t->above,
                 t->above[0] && t->text[0] ? "\n" : "",
                 t->text[0] || t->above[0] ? t->text : "defaults");
    }
out:
    return rc;
}

/* Panel number i: head i / o->n under setting i % o->n. */
static int overlay_panel(const struct figure_args *a, const struct overlay *o, int i,
                         struct map_figure *f, struct err *err)
{
    const struct map_panel *p = &o->c.panel[i / o->n];
    const struct cells *c = &f->maps[i];
    const struct cells_span span = {c->q0, c->n_q, c->k0, c->n_k};
    const struct mask_entry *e = NULL;
    struct mask m = {0};
    struct mask_counts n;
    int rc = 0;
    TRY(find_mask(a, o, p, o->setting[i % o->n], &e, err));
    TRY(check_identity(a, o, e, err));
    TRY(maskfile_read(a->masks, e->cell, &m, err));
    TRY(cells_from_mask(&m, &span, c->tokens, &f->overlay[i], err));
    TRY(mask_count(&m, &n, err));
    double density = (double)n.pairs_kept / (double)n.pairs_allowed;
    if (f->below)
        title_share(density, 3, f->below[i]);
    else
        overlay_title(a, p, density, f->n, f->titles[i]);
out:
    mask_free(&m);
    return rc;
}

/* The map of each head, once for all its settings. */
static int overlay_maps(const struct figure_args *a, const struct overlay *o, struct map_figure *f,
                        struct buf *caption, struct err *err)
{
    const struct map_room room = {f->n, f->per_row, f->col_heads ? 0 : 1};
    struct cells_span span;
    struct map_panel *all = NULL;
    bool stored;
    int rc = 0;
    TRY(map_part(a, trace_meta(a->trace)->n_q, trace_meta(a->trace)->n_k, &span, err));
    TRY(mem_alloc(&all, f->n, sizeof *all, "panels", err));
    for (int i = 0; i < f->n; i++)
        all[i] = o->c.panel[i / o->n];
    TRY(map_read(a, all, f->n, &span, map_most_cells(a, &room), f->maps, &stored, err));
    buf_puts(caption,
             "The paleness of a cell is the share of its pairs that are dropped; numbers are "
             "kept pairs over allowed pairs of the whole map. ");
    map_caption(a, &f->maps[0], stored, caption);
    TRY(buf_check(caption, "caption", err));
out:
    free(all);
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
        buf_puts(&all, "mask of ");
        mask_setting_text(first, &all);
    } else {
        title_params(o->params, o->n,
                     panels_title_room(panels, o->n, panels_side(panels), a->width), &shared);
        buf_printf(&all, "masks%s%s%s%s", o->methods ? "" : " of ", o->methods ? "" : first->method,
                   shared.len ? ":" : "", buf_str(&shared));
    }
    title_cut(buf_str(&all), 72, title);
    buf_puts(title, " on ");
    scope_text(a, &o->c, title);
    buf_puts(title, panels > 4 || o->n > 1 || a->width ? "; dropped: pale; numbers: kept pairs"
                                                       : "; dropped pairs are pale");
    buf_free(&all);
    buf_free(&shared);
}

int draw_overlay(const struct figure *f_, const struct figure_args *a, struct err *err)
{
    (void)f_;
    struct overlay o = {.n = 0};
    struct map_figure f = {.args = a};
    struct buf title = {0}, caption = {0};
    int rc = 0;

    TRY(check_scale(a, err));
    TRY(map_choose(a, &o.c, err));
    TRY(choose_settings(a, &o, err));
    TRY(alloc_panels(o.c.n * o.n, &f, true, err));
    f.per_row = o.n > 1 ? o.n : o.c.per_row;
    name_settings(a, &o, f.n, &title);
    TRY(overlay_heads(&o, &f, err));
    TRY(overlay_maps(a, &o, &f, &caption, err));
    for (int i = 0; i < f.n; i++)
        TRY(overlay_panel(a, &o, i, &f, err));
    map_scale(a, &f);
    f.title = buf_str(&title);
    f.caption = buf_str(&caption);
    TRY(map_draw(&f, err));
out:
    free_panels(&f);
    overlay_free(&o);
    buf_free(&title);
    buf_free(&caption);
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
    bool methods, steps, layers; /* differ */
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
    const struct map_room room = {l->n, f->per_row, f->col_heads ? 0 : 2};
    struct mask m = {0};
    struct mask_counts count;
    struct cells *c = &f->maps[i];
    struct cells_span span;
    char share[16];
    int rc = 0;

    TRY(maskfile_read(a->masks, l->m[i].at, &m, err));
    f->n++;
    TRY(map_part(a, m.nq, m.nk, &span, err));
    TRY(cells_from_mask(&m, &span, cells_factor(span.n_q, span.n_k, map_most_cells(a, &room)), c,
                        err));
    TRY(mask_count(&m, &count, err));
    double density = (double)count.pairs_kept / (double)count.pairs_allowed;
    mask_title(&l->m[i].id, &l->params[i], l->steps, density, f->titles[i]);
    title_share(density, 3, share);
    if (f->below)
        snprintf(f->below[i], sizeof *f->below, "%s", share);
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

static bool same_head(const struct record *a, const struct record *b)
{
    return a->step == b->step && a->layer == b->layer && a->head == b->head &&
           strcmp(a->branch, b->branch) == 0;
}

static bool same_setting(const struct record *a, const struct record *b)
{
    return strcmp(a->method, b->method) == 0 &&
           strcmp(a->params ? a->params : "", b->params ? b->params : "") == 0;
}

/* Heads of a grid of settings, or of layers where there is one setting: every row must have the
 * same columns. One row of a figure that is not narrow is no grid. Returns their number, 0: none.
 * The masks stand in that order. */
static int grid_columns(const struct mask_list *l, bool narrow, bool *settings)
{
    const struct record *first = &l->m[0].id;
    int cols = 0;
    *settings = !same_setting(first, &l->m[l->n - 1].id);
    while (cols < l->n &&
           (*settings ? same_setting(first, &l->m[cols].id) : first->layer == l->m[cols].id.layer))
        cols++;
    if (cols == 0 || l->n % cols != 0 || cols > 16 || (l->n == cols && !narrow) ||
        (!*settings && l->steps))
        return 0;
    for (int i = 0; i < l->n; i++) {
        const struct record *x = &l->m[i].id, *top = &l->m[i % cols].id,
                            *row = &l->m[i - i % cols].id;
        if (*settings ? !same_head(x, top) || !same_setting(x, row)
                      : x->head != top->head || x->layer != row->layer)
            return 0;
    }
    return cols;
}

static int head_masks(const struct mask_list *l, bool narrow, struct map_figure *f, struct err *err)
{
    bool settings;
    int cols = grid_columns(l, narrow, &settings), rc = 0;
    if (cols == 0)
        return 0;
    f->per_row = cols;
    TRY(alloc_heads(l->n / cols, cols, f, err));
    TRY(mem_zalloc(&f->below, l->n, sizeof *f->below, "titles", err));
    for (int i = 0; i < l->n; i++) {
        const struct record *x = &l->m[i].id;
        const struct title_params *t = &l->params[i];
        char *row = f->row_heads[i / cols], *col = f->col_heads[i % cols];
        if (!settings)
            snprintf(row, sizeof *f->row_heads, "layer %d", x->layer);
        else if (l->methods)
            snprintf(row, sizeof *f->row_heads, "%.31s%s%.60s", t->above, t->text[0] ? "\n" : "",
                     t->text);
        else
            snprintf(row, sizeof *f->row_heads, "%.90s", t->text[0] ? t->text : "defaults");
        if (settings && l->steps)
            snprintf(col, sizeof *f->col_heads, "step %d\nL%d H%d", x->step, x->layer, x->head);
        else if (settings && (x->layer != l->m[0].id.layer || l->layers))
            snprintf(col, sizeof *f->col_heads, "L%d H%d", x->layer, x->head);
        else
            snprintf(col, sizeof *f->col_heads, "head %d", x->head);
    }
out:
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
        l->layers |= x->layer != first->layer;
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
    if (!l->layers)
        buf_printf(title, "%slayer %d", l->methods && !all.len ? " of " : ", ", l->m[0].id.layer);
    buf_puts(title, "; numbers: kept pairs / allowed pairs");
    buf_free(&all);
    buf_free(&shared);
}

int draw_mask(const struct figure *f_, const struct figure_args *a, struct err *err)
{
    (void)f_;
    struct map_figure f = {.args = a};
    struct mask_list *l = NULL;
    struct buf title = {0};
    int rc = 0;

    TRY(mem_zalloc(&l, 1, sizeof *l, "masks", err));
    TRY(list_masks(a, l, err));
    TRY(alloc_panels(l->n, &f, false, err));
    name_masks(a, l, &title);
    TRY(head_masks(l, a->width && !a->height, &f, err));
    f.n = 0;
    for (int i = 0; i < l->n; i++)
        TRY(add_mask(a, l, i, &f, err));
    f.low = isnan(a->low) ? 0 : a->low;
    f.high = isnan(a->high) ? 1 : a->high;
    f.bar_label = "kept share of the cell's allowed pairs";
    f.caption = "Blank: no pair is allowed.";
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
