/*
 * maps.c - the panels of heatmap, overlay, mask and steps: which heads of which calls, under which
 * masks, and what tells their rows and columns apart.
 */
#include "plots/drawers.h"
#include "plots/mapfig.h"

#include "analyze/keys.h"
#include "core/indexlist.h"
#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int add_map(struct map_figure *f, const struct map *m, struct err *err)
{
    int rc = 0;
    if (f->n == MAPFIG_MOST)
        FAIL(err, ERR_USAGE,
             "more than %d maps: choose with --layers, --heads, --method and --params",
             MAPFIG_MOST);
    TRY(mem_grow(&f->m, &f->cap, f->n + 1, sizeof *f->m, "maps", err));
    f->m[f->n++] = *m;
out:
    return rc;
}

void map_free(struct map_figure *f)
{
    for (int64_t i = 0; i < f->n; i++) {
        cells_free(&f->m[i].cells);
        cells_free(&f->m[i].veil);
    }
    free(f->m);
    words_free(&f->words);
    buf_free(&f->title);
    buf_free(&f->caption);
    canvas_free(&f->canvas);
}

static const struct trace *trace_of(const struct figure_args *a, int i)
{
    return a->n_traces > 1 ? a->traces[i] : a->trace;
}

/* ---- heads of a trace ------------------------------------------------------------------------ */

static int no_call(const struct trace *t, struct err *err)
{
    struct buf b = {0};
    for (int64_t i = 0; i < trace_calls(t) && i < 40; i++) {
        const struct trace_call *c = trace_call(t, i);
        buf_printf(&b, "%s%d/%s/%d", i ? " " : "", c->step, c->branch, c->layer);
    }
    buf_puts(&b, trace_calls(t) > 40 ? " ..." : "");
    int rc = err_set(err, ERR_INPUT, "%s: no such call; step/branch/layer in the trace: %s",
                     trace_path(t), buf_str(&b));
    buf_free(&b);
    return rc;
}

/* The heads that --layers and --heads name (NULL: all) of the calls of a step and branch. */
static int add_heads(struct map_figure *f, int trace, const char *layer, const char *head, int step,
                     const char *branch, struct err *err)
{
    const struct trace *t = trace_of(f->a, trace);
    const struct trace_meta *m = trace_meta(t);
    int64_t *layers = NULL, *heads = NULL, n_layers = -1, n_heads = -1, before = f->n;
    int rc = 0;
    if (layer)
        TRY(index_list_parse(layer, m->layers, "--layers", &layers, &n_layers, err));
    if (head)
        TRY(index_list_parse(head, m->head_ids[0] ? -1 : m->heads, "--heads", &heads, &n_heads,
                             err));
    for (int64_t i = 0; i < trace_calls(t); i++) {
        const struct trace_call *call = trace_call(t, i);
        if (call->step != step || strcmp(call->branch, branch) != 0 ||
            !index_list_has(layers, n_layers, call->layer))
            continue;
        for (int h = 0; h < m->heads; h++) {
            int number = trace_head_number(m, h);
            const struct map one = {
                .p = {i, call->layer, number, h}, .step = step, .trace = trace, .mask = -1};
            if (index_list_has(heads, n_heads, number))
                TRY(add_map(f, &one, err));
        }
    }
    if (f->n == before)
        TRY(no_call(t, err));
out:
    free(layers);
    free(heads);
    return rc;
}

static int first_call(const struct trace *t, const struct trace_call **call, struct err *err)
{
    if (trace_calls(t) == 0)
        return err_set(err, ERR_INPUT, "%s: holds no attention call", trace_path(t));
    *call = trace_call(t, 0);
    return 0;
}

static void put_trace(const struct trace *t, int step, const char *branch, struct buf *b)
{
    const struct trace_meta *m = trace_meta(t);
    if (m->n_q == m->n_k)
        buf_printf(b, "%s, %lld token%s", m->name, (long long)m->n_q, m->n_q == 1 ? "" : "s");
    else
        buf_printf(b, "%s, %lld %s x %lld keys", m->name, (long long)m->n_q,
                   m->n_q == 1 ? "query" : "queries", (long long)m->n_k);
    if (m->grid_t > 0)
        buf_printf(b, ", step %d, %s", step, branch);
}

/* *step becomes that of --steps, if it is given: a map is of one. */
static int one_step(const struct figure_args *a, int64_t *step, struct err *err)
{
    int64_t *steps = NULL, n = 1;
    int rc = 0;
    if (!a->steps)
        return 0;
    TRY(index_list_parse(a->steps, -1, "--steps", &steps, &n, err));
    if (n != 1)
        FAIL(err, ERR_USAGE,
             "--steps %s: a map is of one denoising step; figure steps shows all captured ones",
             a->steps);
    *step = steps[0];
out:
    free(steps);
    return rc;
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

/* ---- heatmap --------------------------------------------------------------------------------- */

/* The heads of one of several traces, a row each: the same layers and heads of all. --steps is of
 * those that have denoising steps. */
static int add_trace(struct map_figure *f, int trace, struct err *err)
{
    const struct figure_args *a = f->a;
    const struct trace *t = trace_of(a, trace);
    const struct trace_call *first;
    bool several = a->n_traces > 1;
    int64_t before = f->n;
    int rc = 0;
    TRY(first_call(t, &first, err));
    int64_t step = first->step;
    if (!several || trace_meta(t)->grid_t > 0)
        TRY(one_step(a, &step, err));
    const char *branch = a->branch ? a->branch : first->branch;
    TRY(add_heads(f, trace, a->layers, a->heads, (int)step, branch, err));
    for (int64_t i = before; i < f->n; i++) {
        struct map *m = &f->m[i];
        const struct map *same = &f->m[i - before];
        if (m->p.layer != same->p.layer || m->p.head != same->p.head ||
            (f->n - before) * (trace + 1) != f->n)
            FAIL(err, ERR_USAGE,
                 "%s and %s have other layers or heads: choose some that both have, with --layers "
                 "and --heads",
                 trace_path(trace_of(a, 0)), trace_path(t));
        if (several)
            snprintf(m->row, sizeof m->row, "%.60s", trace_meta(t)->name);
        else
            snprintf(m->row, sizeof m->row, "layer %d", m->p.layer);
        if (several)
            snprintf(m->col, sizeof m->col, "L%d H%d", m->p.layer, m->p.head);
        else
            snprintf(m->col, sizeof m->col, "head %d", m->p.head);
    }
    buf_puts(&f->title, trace ? "; " : "attention of ");
    put_trace(t, (int)step, branch, &f->title);
out:
    return rc;
}

int draw_heatmap(const struct figure *figure, const struct figure_args *a, struct err *err)
{
    struct map_figure f = {.a = a, .own_axes = a->n_traces > 1};
    int rc = 0;
    (void)figure;
    if (a->tokens && a->n_traces > 1)
        FAIL(err, ERR_USAGE, "--tokens names the tokens of one trace, %d are given", a->n_traces);
    TRY(check_scale(a, err));
    for (int t = 0; t < (a->n_traces > 1 ? a->n_traces : 1); t++)
        TRY(add_trace(&f, t, err));
    TRY(map_draw(&f, err));
out:
    map_free(&f);
    return rc;
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* A row for each head, a column for each captured step of the branch. */
static int add_steps(struct map_figure *f, const char *branch, struct err *err)
{
    const struct figure_args *a = f->a;
    const struct trace *t = a->trace;
    char layer[16], head[16];
    int *steps = NULL, rc = 0;
    int64_t n = 0, cap = 0;
    snprintf(layer, sizeof layer, "%d", trace_call(t, 0)->layer);
    snprintf(head, sizeof head, "%d", trace_head_number(trace_meta(t), 0));
    for (int64_t i = 0; i < trace_calls(t); i++) {
        const struct trace_call *c = trace_call(t, i);
        if (strcmp(c->branch, branch) != 0 || (n && steps[n - 1] == c->step))
            continue;
        TRY(mem_grow(&steps, &cap, n + 1, sizeof *steps, "steps", err));
        steps[n++] = c->step;
    }
    if (n == 0)
        FAIL(err, ERR_INPUT, "%s: no call of branch %s", trace_path(t), branch);
    TRY(add_heads(f, 0, a->layers ? a->layers : layer, a->heads ? a->heads : head, steps[0], branch,
                  err));
    int64_t rows = f->n;
    for (int64_t k = 1; k < n; k++)
        for (int64_t i = 0; i < rows; i++) {
            struct map m = f->m[i];
            m.step = steps[k];
            m.p.call = trace_find(t, m.step, branch, m.p.layer);
            if (m.p.call < 0)
                FAIL(err, ERR_INPUT, "%s: step %d, branch %s has no layer %d", trace_path(t),
                     m.step, branch, m.p.layer);
            TRY(add_map(f, &m, err));
        }
    for (int64_t i = 0; i < f->n; i++) {
        struct map *m = &f->m[i];
        if (rows > 1)
            snprintf(m->row, sizeof m->row, "layer %d head %d", m->p.layer, m->p.head);
        snprintf(m->col, sizeof m->col, "step %d", m->step);
    }
out:
    free(steps);
    return rc;
}

static int by_head(const void *a, const void *b)
{
    const struct map *p = a, *q = b;
    return p->p.layer != q->p.layer ? p->p.layer - q->p.layer
           : p->p.head != q->p.head ? p->p.head - q->p.head
                                    : p->step - q->step;
}

int draw_steps(const struct figure *figure, const struct figure_args *a, struct err *err)
{
    struct map_figure f = {.a = a};
    const struct trace_call *first;
    int rc = 0;
    (void)figure;
    TRY(check_scale(a, err));
    TRY(first_call(a->trace, &first, err));
    if (a->steps)
        FAIL(err, ERR_USAGE, "figure steps draws all captured steps; --steps belongs to heatmap");
    const char *branch = a->branch ? a->branch : first->branch;
    TRY(add_steps(&f, branch, err));
    if (!f.m)
        FAIL(err, ERR_USAGE, "figure steps: no captured step has branch '%s'", branch);
    qsort(f.m, (size_t)f.n, sizeof *f.m, by_head);
    buf_printf(&f.title, "attention over denoising steps, %s", trace_meta(a->trace)->name);
    if (!f.m[0].row[0])
        buf_printf(&f.title, " layer %d head %d", f.m[0].p.layer, f.m[0].p.head);
    buf_printf(&f.title, ", %s", branch);
    TRY(map_draw(&f, err));
out:
    map_free(&f);
    return rc;
}

/* ---- masks ----------------------------------------------------------------------------------- */

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
    bool methods, settings, steps, layers; /* differ */
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

/* The masks that the options choose, in the order of tables. Over maps those of one step and
 * branch. */
static int list_masks(const struct figure_args *a, bool over, struct mask_list *l, struct err *err)
{
    const struct trace_call *first = over && trace_calls(a->trace) ? trace_call(a->trace, 0) : NULL;
    int64_t *layers = NULL, *heads = NULL, n_layers = -1, n_heads = -1;
    int64_t step = first ? first->step : INT64_MIN;
    const char *branch = !a->branch && first ? first->branch : a->branch;
    struct record id;
    int rc = 0;

    TRY(one_step(a, &step, err));
    if (a->layers)
        TRY(index_list_parse(a->layers, -1, "--layers", &layers, &n_layers, err));
    if (a->heads)
        TRY(index_list_parse(a->heads, -1, "--heads", &heads, &n_heads, err));
    for (int64_t i = 0; i < maskfile_cells(a->masks); i++) {
        TRY(maskfile_cell(a->masks, i, &id, err));
        bool fits = index_list_has(layers, n_layers, id.layer) &&
                    index_list_has(heads, n_heads, id.head) &&
                    (step == INT64_MIN || step == id.step) &&
                    (!branch || strcmp(branch, id.branch) == 0) && figure_takes(a, &id);
        if (fits && l->n < MAPFIG_MOST) {
            l->m[l->n++] = (struct listed_mask){i, id};
            continue;
        }
        record_free(&id);
        if (fits)
            FAIL(err, ERR_USAGE, "more than %d masks: choose with --layers, --heads, --method",
                 MAPFIG_MOST);
    }
    if (l->n == 0)
        FAIL(err, ERR_INPUT, "no dumped mask fits the options (%lld masks in the file)",
             (long long)maskfile_cells(a->masks));
    qsort(l->m, (size_t)l->n, sizeof *l->m, by_cell);
out:
    free(layers);
    free(heads);
    return rc;
}

/* What all masks share goes to `shared`: "spargeattn:theta=-1". */
static void compare_masks(struct mask_list *l, struct buf *shared)
{
    struct buf params = {0};
    const struct record *first = &l->m[0].id;
    for (int i = 1; i < l->n; i++) {
        const struct record *x = &l->m[i].id;
        l->methods |= strcmp(x->method, first->method) != 0;
        l->settings |= l->methods || key_compare(x, first, KEY_PARAMS) != 0;
        l->steps |= x->step != first->step || strcmp(x->branch, first->branch) != 0;
        l->layers |= x->layer != first->layer;
    }
    for (int i = 0; i < l->n; i++)
        l->params[i] = (struct title_params){.above = l->methods ? l->m[i].id.method : "",
                                             .params = l->m[i].id.params};
    title_params(l->params, l->n, 60, &params);
    if (!l->methods)
        buf_puts(shared, first->method);
    buf_printf(shared, "%s%s", shared->len && params.len ? ":" : "", buf_str(&params));
    shared->failed |= params.failed;
    buf_free(&params);
}

/* A row for each setting and a column for each head; of one setting a row for each layer. */
static void name_mask(const struct mask_list *l, int i, struct map *m)
{
    const struct record *x = &l->m[i].id;
    const struct title_params *t = &l->params[i];
    struct buf col = {0};
    if (!l->settings)
        snprintf(m->row, sizeof m->row, "layer %d", x->layer);
    else
        snprintf(m->row, sizeof m->row, "%.31s%s%.90s", t->above,
                 t->above[0] && t->text[0] ? " " : "",
                 t->text[0] || t->above[0] ? t->text : "defaults");
    if (l->steps)
        buf_printf(&col, "step %d %s ", x->step, x->branch);
    if (l->settings && l->layers)
        buf_printf(&col, "L%d H%d", x->layer, x->head);
    else
        buf_printf(&col, "head %d", x->head);
    snprintf(m->col, sizeof m->col, "%s", buf_str(&col));
    buf_free(&col);
}

/* The map under a mask: of the same trace, in its order of tokens. */
static int find_map(const struct figure_args *a, const struct record *id, struct map *m,
                    struct err *err)
{
    const struct trace *t = a->trace;
    const struct trace_meta *meta = trace_meta(t);
    if (strcmp(id->trace, trace_id(t)) != 0)
        return err_set(err, ERR_INPUT, "the masks belong to trace %s, not to %s (%s)", id->trace,
                       trace_path(t), trace_id(t));
    if (id->n_q != meta->n_q || id->n_k != meta->n_k)
        return err_set(err, ERR_INPUT, "mask of %lld x %lld tokens, trace of %lld x %lld",
                       (long long)id->n_q, (long long)id->n_k, (long long)meta->n_q,
                       (long long)meta->n_k);
    if (strcmp(id->permute, "none") != 0)
        return err_set(err, ERR_INPUT,
                       "the mask of %s stands in token order %s, the map in the trace's: choose "
                       "masks without a permute, or plot mask, which needs no map",
                       id->method, id->permute);
    m->p.call = trace_find(t, id->step, id->branch, id->layer);
    m->p.stored = trace_head_find(meta, id->head);
    if (m->p.call < 0 || m->p.stored < 0)
        return err_set(err, ERR_INPUT,
                       "%s has no map of layer %d head %d step %d branch %s, of which "
                       "there is a mask",
                       trace_path(t), id->layer, id->head, id->step, id->branch);
    return 0;
}

/* The masks alone, or over the maps of their heads. */
static int draw_masks(const struct figure_args *a, bool over, struct err *err)
{
    struct map_figure f = {.a = a, .shares = !over};
    struct mask_list *l = NULL;
    struct buf shared = {0};
    int rc = 0;

    TRY(mem_zalloc(&l, 1, sizeof *l, "masks", err));
    TRY(list_masks(a, over, l, err));
    compare_masks(l, &shared);
    for (int i = 0; i < l->n; i++) {
        const struct record *id = &l->m[i].id;
        struct map m = {.p = {-1, id->layer, id->head, 0}, .step = id->step, .trace = -1};
        m.mask = l->m[i].at;
        m.trace = over ? 0 : -1;
        if (over)
            TRY(find_map(a, id, &m, err));
        name_mask(l, i, &m);
        TRY(add_map(&f, &m, err));
    }
    buf_printf(&f.title, "masks%s", shared.len ? " of " : "");
    title_cut(buf_str(&shared), 72, &f.title);
    if (over) {
        buf_puts(&f.title, " on ");
        put_trace(a->trace, f.m[0].step, l->m[0].id.branch, &f.title);
        buf_puts(&f.title, "; dropped: pale");
    } else if (!l->layers)
        buf_printf(&f.title, "%slayer %d", shared.len ? ", " : " of ", l->m[0].id.layer);
    buf_puts(&f.title, "; numbers: kept pairs");
    TRY(map_draw(&f, err));
out:
    for (int i = 0; l && i < l->n; i++)
        record_free(&l->m[i].id);
    free(l);
    map_free(&f);
    buf_free(&shared);
    return rc;
}

int draw_overlay(const struct figure *figure, const struct figure_args *a, struct err *err)
{
    int rc = check_scale(a, err);
    (void)figure;
    return rc ? rc : draw_masks(a, true, err);
}

int draw_mask(const struct figure *figure, const struct figure_args *a, struct err *err)
{
    (void)figure;
    return draw_masks(a, false, err);
}
