/*
 * explorer.c - the data of the page's explorer as JSON: values of every metric by setting, layer
 * and head; maps and masks of the heads as small pictures.
 *
 *   metrics   [{name, label, definition, unit, scale, percent, log}]
 *   layers, heads   numbers; cell = row of the layer * number of heads + column of the head
 *   settings  [{name, method, color, bound, full, scope}]
 *   values    [setting][metric][cell], null where there is none: means over steps, branches, runs
 *             and traces
 *   maps      [scope]{trace, scale, "LAYER,HEAD": PNG}
 *   masks     {SETTING: {"LAYER,HEAD": PNG}}
 *
 * What would make the page too large is left out, the metrics that fewest look at first.
 */
#include "analyze/group.h"
#include "analyze/metricfacts.h"
#include "analyze/params.h"
#include "core/log.h"
#include "core/maskfile.h"
#include "core/mem.h"
#include "core/pool.h"
#include "core/sort.h"
#include "plots/cells.h"
#include "plots/gp.h"
#include "plots/series.h"
#include "report/report.h"

#include <math.h>
#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VALUES_MOST 300000 /* numbers on the page: about 7 bytes each */
#define HEADS_MOST 4096    /* cells of a grid */

/* Most wanted first. */
#define METRICS                                                                                    \
    "density_elem,err_l1_rel,cra_p1,cra_mean,cra_min,speedup,time_total_ns,density_tile,"          \
    "density_exec,sparsity_total,err_l2_rel,err_cos,err_max,time_*,mask_*,cra_*,err_*,density_*,"  \
    "sparsity_*,below_*,*"

/* A method with parameters in one scope. */
struct setting {
    const struct record *first;
    const int64_t *at; /* of the scope's records */
    int64_t n;
    enum group_steps steps;
    int scope;
};

struct explorer {
    struct report *r;
    struct report_scopes scopes;
    struct grouping gs[SCOPES_MOST];
    struct setting *s; /* owned */
    int64_t n_s;
    struct str_list metrics;
    int64_t *layers, *heads, n_layers, n_heads; /* owned, ascending */
    struct jw w;
    struct buf json;
};

/* ---- what there is -------------------------------------------------------------------------- */

static int64_t index_of(const int64_t *x, int64_t n, int64_t value)
{
    const int64_t *p = bsearch(&value, x, (size_t)n, sizeof *x, compare_i64);
    return p ? p - x : -1;
}

static bool is_shown(const void *ctx, const struct record *r)
{
    (void)ctx;
    return r->scope == RECORD_OF_HEAD && r->status == RECORD_OK;
}

/* The values of a key, ascending. */
static int find_values(const struct explorer *e, enum group_key key, int64_t **x, int64_t *n,
                       struct err *err)
{
    OWN(grouping_free) struct grouping gs = {0};
    PASS_ON(grouping_make(&e->r->set, &key, 1, 0, is_shown, NULL, &gs, err));
    PASS_ON(mem_alloc(x, gs.n, sizeof **x, "heads", err));
    for (*n = 0; *n < gs.n; ++*n)
        (*x)[*n] = (int64_t)key_number(gs.g[*n].first, key);
    return 0;
}

/* A method that ran some steps dense by its own schedule is shown by the sparse ones. */
static int find_settings(struct explorer *e, struct err *err)
{
    static const enum group_key keys[] = {KEY_METHOD, KEY_PARAMS};
    int64_t cap = 0;
    for (int k = 0; k < e->scopes.n; k++) {
        PASS_ON(grouping_make(&e->scopes.s[k].set, keys, 2, GROUP_SPLIT_STEPS, is_shown, NULL,
                              &e->gs[k], err));
        for (int64_t i = 0; i < e->gs[k].n; i++) {
            const struct group *g = &e->gs[k].g[i];
            PASS_ON(mem_grow(&e->s, &cap, e->n_s + 1, sizeof *e->s, "settings", err));
            e->n_s -= g->steps == STEPS_SPARSE && e->n_s > 0;
            e->s[e->n_s++] = (struct setting){g->first, g->at, g->n, g->steps, k};
        }
    }
    return 0;
}

/* As many metrics as the page has room for. */
static int find_metrics(struct explorer *e, struct err *err)
{
    int64_t cells = e->n_s * e->n_layers * e->n_heads;
    int rc = recset_metrics(&e->r->set, METRICS, &e->metrics, err);
    int64_t most = cells ? VALUES_MOST / cells : 0;
    for (most = most < 5 ? 5 : most; e->metrics.n > most;)
        free(e->metrics.items[--e->metrics.n]);
    return rc;
}

/* ---- values --------------------------------------------------------------------------------- */

static const struct record *member(const struct explorer *e, const struct setting *s, int64_t i)
{
    return &e->scopes.s[s->scope].set.r[s->at[i]];
}

static bool takes(const struct setting *s, const struct record *r)
{
    return r->status == RECORD_OK && (s->steps == STEPS_ALL || !(record_get(r, "dense_call") > 0));
}

/* Means over the records of each cell, with five digits: a picture of a head shows no more. sum and
 * n have room for the cells. */
static void put_values(struct explorer *e, const struct setting *s, const char *metric, double *sum,
                       int64_t *n)
{
    int64_t cells = e->n_layers * e->n_heads;
    struct expr value = expr_parse(metric);
    char text[32];
    double x;
    memset(sum, 0, (size_t)cells * sizeof *sum);
    memset(n, 0, (size_t)cells * sizeof *n);
    for (int64_t i = 0; i < s->n; i++) {
        const struct record *r = member(e, s, i);
        if (!takes(s, r) || !expr_value(&value, r, &x) || !isfinite(x))
            continue;
        int64_t at = index_of(e->layers, e->n_layers, r->layer) * e->n_heads +
                     index_of(e->heads, e->n_heads, r->head);
        sum[at] += x;
        n[at]++;
    }
    jw_arr(&e->w);
    for (int64_t i = 0; i < cells; i++) {
        snprintf(text, sizeof text, "%.5g", n[i] ? sum[i] / (double)n[i] : (double)NAN);
        jw_num(&e->w, strtod(text, NULL)); /* null where there is none */
    }
    jw_arr_end(&e->w);
}

static int put_all_values(struct explorer *e, struct err *err)
{
    OWN(free_at) int64_t *n = NULL;
    int64_t cells = e->n_layers * e->n_heads;
    OWN(free_at) double *sum = NULL;
    PASS_ON(mem_alloc(&sum, cells, sizeof *sum, "values of heads", err));
    PASS_ON(mem_alloc(&n, cells, sizeof *n, "values of heads", err));
    jw_karr(&e->w, "values");
    for (int64_t i = 0; i < e->n_s; i++) {
        jw_arr(&e->w);
        for (int64_t k = 0; k < e->metrics.n; k++)
            put_values(e, &e->s[i], e->metrics.items[k], sum, n);
        jw_arr_end(&e->w);
    }
    jw_arr_end(&e->w);
    return 0;
}

static void put_metrics(struct explorer *e)
{
    jw_karr(&e->w, "metrics");
    for (int64_t i = 0; i < e->metrics.n; i++) {
        const char *name = e->metrics.items[i], *unit;
        const struct metric_def *m = metric_def_find(name);
        double scale = metric_scale(name, &unit);
        jw_row(&e->w, JW_STR("name", name),
               JW_STR("label", strchr(name, '@') ? name : metric_label(name)),
               JW_STR("definition", m ? m->definition : "no definition is known"),
               JW_STR("unit", scale != 1 || !m || strcmp(m->unit, "1") != 0 ? unit : ""),
               JW_NUM("scale", scale), JW_BOOL("percent", metric_percent(name)),
               JW_BOOL("log", metric_axis(name) == AXIS_LOG));
    }
    jw_arr_end(&e->w);
}

static bool keeps_all(const struct explorer *e, const struct setting *s)
{
    for (int64_t i = 0; i < s->n; i++)
        if (takes(s, member(e, s, i)) && record_get(member(e, s, i), "density_elem") != 1)
            return false;
    return true;
}

static void put_setting(struct explorer *e, const struct setting *s)
{
    const struct record *r = s->first;
    const char *scope = buf_str(&e->scopes.s[s->scope].name);
    OWN(buf_free) struct buf name = {0};
    int64_t k = 0, of = 0;
    for (int64_t i = 0; i < e->n_s; i++)
        if (strcmp(e->s[i].first->method, r->method) == 0) {
            k += &e->s[i] < s;
            of++;
        }
    char color[8];
    style_shade(style_of(e->r->app->methods, r->method), (int)k, (int)of, 0.6, color);
    buf_printf(&name, "%s%s%s", scope, scope[0] ? ": " : "", r->method);
    buf_printf(&name, "%s%s", r->params && r->params[0] ? " " : "", r->params ? r->params : "");
    jw_row(&e->w, JW_STR("name", buf_str(&name)), JW_STR("method", r->method),
           JW_STR("color", color),
           JW_BOOL("bound", strcmp(r->method, "dense") == 0 || record_is_bound(r)),
           JW_BOOL("full", keeps_all(e, s)), JW_INT("scope", s->scope));
    e->json.failed |= name.failed;
}

static void put_numbers(struct explorer *e, const char *key, const int64_t *x, int64_t n)
{
    jw_karr(&e->w, key);
    for (int64_t i = 0; i < n; i++)
        jw_int(&e->w, x[i]);
    jw_arr_end(&e->w);
}

/* ---- PNG ------------------------------------------------------------------------------------ */

/* Levels of a picture: few, because a report has hundreds of pictures. Level 0 is transparent. */
#define LEVELS 32
#define SHOT_LEAST 1e-6

typedef unsigned char rgba[4];

static int level_of_share(float x)
{
    int k = 1 + (int)(x * (LEVELS - 2) + 0.5F);
    return isnan(x)                                          ? 0
           : x > 0 && k == 1 /* a kept pair is never pale */ ? 2
           : k > LEVELS - 1                                  ? LEVELS - 1
                                                             : k;
}

static int level_of_weight(float x)
{
    double at = log10(fmax((double)x, SHOT_LEAST)) / -log10(SHOT_LEAST) + 1;
    return isnan(x) ? 0 : 1 + (int)(fmin(at, 1) * (LEVELS - 2) + 0.5);
}

/* Between the colours of a list that lie at equal distances. */
static void blend(const unsigned char (*list)[3], int n, double t, rgba out)
{
    double at = t * (n - 1);
    int i = (int)at < n - 2 ? (int)at : n - 2;
    for (int k = 0; k < 3; k++)
        out[k] = (unsigned char)(list[i][k] + (at - i) * (list[i + 1][k] - list[i][k]) + 0.5);
    out[3] = 255;
}

static void palette(const unsigned char (*list)[3], int n, rgba out[LEVELS])
{
    memset(out[0], 0, sizeof out[0]);
    for (int i = 1; i < LEVELS; i++)
        blend(list, n, (i - 1) / (double)(LEVELS - 2), out[i]);
}

static int write_png(const struct cells *c, const unsigned char *levels, const rgba *colours,
                     struct buf *b, struct err *err)
{
    OWN(png_image_free)
    png_image image = {.version = PNG_IMAGE_VERSION,
                       .width = (png_uint_32)c->cols,
                       .height = (png_uint_32)c->rows,
                       .format = PNG_FORMAT_RGBA_COLORMAP,
                       .colormap_entries = LEVELS};
    png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(image);
    OWN(free_at) void *png = NULL;
    PASS_ON(mem_alloc(&png, (int64_t)size, 1, "picture", err));
    if (!png_image_write_to_memory(&image, png, &size, 0, levels, 0, colours))
        return err_set(err, ERR_NOMEM, "picture of %lld x %lld cells: %s", (long long)c->rows,
                       (long long)c->cols, image.message);
    base64(png, size, b);
    return 0;
}

/* As base64 of a PNG, one pixel per cell; cells without an allowed pair are transparent. Maps have
 * colours of the largest weight on a logarithmic scale from SHOT_LEAST to 1, masks from pale
 * (nothing kept) to dark blue (all allowed pairs kept). */
static int put_png(const struct cells *c, bool mask, struct buf *b, struct err *err)
{
    static const unsigned char viridis[][3] = {
        {68, 1, 84}, {59, 82, 139}, {33, 145, 140}, {94, 201, 98}, {253, 231, 37}};
    static const unsigned char blues[][3] = {{238, 241, 245}, {107, 174, 214}, {8, 48, 107}};
    rgba colours[LEVELS];
    OWN(free_at) unsigned char *levels = NULL;
    int rc = mem_alloc(&levels, c->rows * c->cols, 1, "picture", err);
    palette(mask ? blues : viridis, mask ? 3 : 5, colours);
    for (int64_t i = 0; !rc && i < c->rows * c->cols; i++)
        levels[i] = (unsigned char)(mask ? level_of_share(c->v[i]) : level_of_weight(c->v[i]));
    if (!rc)
        rc = write_png(c, levels, (const rgba *)colours, b, err);
    return rc;
}

/* ---- cells ---------------------------------------------------------------------------------- */

#define MAPS_WORK 4e11 /* operations: some seconds on two cores */

bool shots_are_cheap(const struct trace *t, int64_t maps)
{
    const struct trace_meta *m = trace_meta(t);
    return 4.0 * (double)m->n_q * (double)m->n_k * m->head_dim * (double)maps <= MAPS_WORK;
}

#define MAPS_MOST 1200000 /* bytes of pictures */
#define MASKS_MOST 1800000

/* ---- maps ----------------------------------------------------------------------------------- */

/* The call of a trace that a scope's pictures are of: the first of its first record's trace. */
struct view {
    const char *path; /* NULL: the trace is not among the inputs */
    const struct record *first;
    bool exact;
};

static const char *path_of(const struct report *r, const char *id)
{
    const char *found = NULL;
    for (int64_t i = 0; i < r->traces.n && !found; i++) {
        OWN(trace_close) struct trace *t = NULL;
        if (trace_open(r->traces.items[i], &t, NULL) == 0 && strcmp(trace_id(t), id) == 0)
            found = r->traces.items[i];
    }
    return found;
}

static struct view view_of(const struct explorer *e, int scope)
{
    const struct recset *set = &e->scopes.s[scope].set;
    struct view v = {0};
    for (int64_t i = 0; i < set->n && !v.path; i++)
        if (is_shown(NULL, &set->r[i]) &&
            (i == 0 || strcmp(set->r[i].trace, set->r[i - 1].trace) != 0)) {
            v.first = &set->r[i];
            v.path = path_of(e->r, v.first->trace);
        }
    return v;
}

struct map_job {
    const struct explorer *e;
    const struct view *v;
    const struct trace *t;
    int64_t side;
    struct buf *png; /* [cells] */
};

/* The map of a head, of at most `side` cells along its longer axis: computed from q and k, or
 * pooled from the map of the trace. ERR_INPUT where the trace has none. */
static int draw_map(void *ctx, int64_t i, int worker, struct err *err)
{
    const struct map_job *j = ctx;
    const struct trace_meta *m = trace_meta(j->t);
    const struct cells_span all = {0, m->n_q, 0, m->n_k};
    int layer = (int)j->e->layers[i / j->e->n_heads];
    int64_t call = trace_find(j->t, j->v->first->step, j->v->first->branch, layer);
    int head = trace_head_find(m, j->e->heads[i % j->e->n_heads]);
    OWN(cells_free) struct cells c = {0};
    (void)worker;
    if (call < 0 || head < 0)
        return 0;
    if (j->v->exact)
        PASS_ON(map_compute(j->t, call, head, &all, cells_factor(m->n_q, m->n_k, j->side), false,
                            &c, err));
    else
        PASS_ON(map_stored(j->t, call, head, false, j->side, &c, err));
    return put_png(&c, false, &j->png[i], err);
}

static int64_t side_for(int64_t pictures)
{
    return pictures <= 100 ? 128 : pictures <= 1600 ? 64 : 32;
}

static void put_key(struct explorer *e, int64_t layer, int64_t head)
{
    char key[48];
    snprintf(key, sizeof key, "%lld,%lld", (long long)layer, (long long)head);
    jw_key(&e->w, key);
}

static void put_maps(struct explorer *e, const struct view *v, const struct buf *png, int64_t n)
{
    OWN(buf_free) struct buf path = {0};
    size_t bytes = 0;
    shell_word(v->path, &path);
    jw_members(&e->w, JW_STR("trace", buf_str(&path)),
               JW_STR("scale", "largest weight of a cell, 1e-6 (dark) to 1 (yellow)"));
    for (int64_t i = 0; i < n && bytes + png[i].len < MAPS_MOST; i++)
        if (png[i].len) {
            put_key(e, e->layers[i / e->n_heads], e->heads[i % e->n_heads]);
            jw_str(&e->w, png[i].data);
            bytes += png[i].len;
        }
    e->json.failed |= path.failed;
}

/* A trace that cannot be drawn is no failure of the report: the explorer says that it has no map.
 */
static int maps_of(struct explorer *e, struct view *v, struct err *err)
{
    int64_t n = e->n_layers * e->n_heads;
    struct trace *t = NULL;
    struct buf *png = NULL;
    int rc = 0;
    TRY(trace_open(v->path, &t, err));
    v->exact = !trace_is_padded(t) && shots_are_cheap(t, n);
    TRY(mem_zalloc(&png, n, sizeof *png, "pictures", err));
    struct map_job job = {e, v, t, side_for(n), png};
    rc = pool_run(cpu_count(), n, draw_map, &job, err);
    if (!rc)
        put_maps(e, v, png, n);
    else if (rc == ERR_INPUT) {
        log_warn("no maps for the explorer: %s", err->msg);
        err_clear(err);
        rc = 0;
    }
out:
    for (int64_t i = 0; png && i < n; i++)
        buf_free(&png[i]);
    free(png);
    trace_close(&t);
    return rc;
}

/* ---- masks ---------------------------------------------------------------------------------- */

/* The files of dumped masks. */
struct dumps {
    struct maskfile **file; /* owned; NULL where one cannot be opened */
    struct mask_index *index;
    int64_t n;
};

/* The mask of a head under a setting in the view's call, and its file; NULL: none. */
static const struct mask_entry *find_mask(const struct dumps *d, const struct setting *s,
                                          const struct view *v, int layer, int head, int64_t *file)
{
    for (*file = 0; *file < d->n && v->first; ++*file) {
        const struct mask_index *x = &d->index[*file];
        for (int k = 0; k < x->n_settings; k++) {
            if (strcmp(x->settings[k].method, s->first->method) != 0 ||
                strcmp(x->settings[k].params, s->first->params) != 0)
                continue;
            const struct mask_entry *m =
                mask_index_find(x, v->first->step, v->first->branch, layer, head, k);
            for (const struct mask_entry *first = m;
                 m && m < x->entries + x->n && mask_entry_same(m, first); m++)
                if (strcmp(m->trace, v->first->trace) == 0 && strcmp(m->order, "none") == 0)
                    return m;
        }
    }
    return NULL;
}

static int draw_mask(const struct maskfile *m, int64_t at, int64_t side, struct buf *png,
                     struct err *err)
{
    OWN(mask_free) struct mask mask = {0};
    OWN(cells_free) struct cells c = {0};
    PASS_ON(maskfile_read(m, at, &mask, err));
    PASS_ON(cells_from_mask(&mask, NULL, cells_factor(mask.nq, mask.nk, side), &c, err));
    return put_png(&c, true, png, err);
}

/* The masks of a setting as an object; of side 0 none is drawn. *n counts them. */
static int put_masks(struct explorer *e, const struct dumps *d, int64_t setting,
                     const struct view *v, int64_t side, int64_t *n, size_t *bytes, struct err *err)
{
    OWN(buf_free) struct buf png = {0};
    char key[32];
    bool open = false;
    for (int64_t i = 0; i < e->n_layers * e->n_heads && *bytes < MASKS_MOST; i++) {
        int64_t layer = e->layers[i / e->n_heads], head = e->heads[i % e->n_heads], file;
        const struct mask_entry *m = find_mask(d, &e->s[setting], v, (int)layer, (int)head, &file);
        *n += m != NULL;
        if (!m || !side)
            continue;
        buf_reset(&png);
        PASS_ON(draw_mask(d->file[file], m->cell, side, &png, err));
        if (!open) {
            snprintf(key, sizeof key, "%lld", (long long)setting);
            jw_kobj(&e->w, key);
            open = true;
        }
        put_key(e, layer, head);
        jw_str(&e->w, buf_str(&png));
        *bytes += png.len;
    }
    if (open)
        jw_obj_end(&e->w);
    return 0;
}

static int masks(struct explorer *e, const struct view *views, struct err *err)
{
    const struct str_list *paths = &e->r->masks;
    struct dumps d = {.n = e->r->figures ? paths->n : 0};
    int64_t n = 0, side = 0;
    size_t bytes = 0;
    int rc = 0;
    TRY(mem_zalloc(&d.file, d.n, sizeof(struct maskfile *), "mask files", err));
    TRY(mem_zalloc(&d.index, d.n, sizeof *d.index, "mask files", err));
    for (int64_t i = 0; i < d.n; i++)
        if (maskfile_open(paths->items[i], &d.file[i], err) != 0 ||
            mask_index_make(d.file[i], &d.index[i], err) != 0) {
            log_warn("no masks for the explorer: %s", err->msg);
            err_clear(err);
        }
    jw_kobj(&e->w, "masks");
    for (int drawn = 0; drawn < 2; drawn++, side = side_for(n)) /* first how many there are */
        for (int64_t s = 0; s < e->n_s; s++)
            TRY(put_masks(e, &d, s, &views[e->s[s].scope], side, &n, &bytes, err));
    jw_obj_end(&e->w);
out:
    for (int64_t i = 0; d.file && d.index && i < d.n; i++) {
        mask_index_free(&d.index[i]);
        maskfile_close(&d.file[i]);
    }
    free(d.file);
    free(d.index);
    return rc;
}

static int put_pictures(struct explorer *e, struct err *err)
{
    struct view views[SCOPES_MOST] = {0};
    bool drawn = e->r->figures;
    jw_karr(&e->w, "maps");
    for (int i = 0; i < e->scopes.n && drawn; i++) {
        views[i] = view_of(e, i);
        jw_obj(&e->w);
        if (views[i].path)
            PASS_ON(maps_of(e, &views[i], err));
        jw_obj_end(&e->w);
    }
    jw_arr_end(&e->w);
    PASS_ON(masks(e, views, err));
    jw_members(
        &e->w,
        JW_STR("no_map",
               drawn ? "not on this page: the trace is not there, has no such head, or there is no "
                       "room for its map"
                     : "the report was made with --no-figures"),
        JW_STR(
            "no_mask",
            drawn ? "not on this page: replay with --dump-masks M.h5, then report with --masks M.h5"
                  : "the report was made with --no-figures"));
    return 0;
}

/* ---- the part ------------------------------------------------------------------------------- */

static int put_data(struct explorer *e, struct err *err)
{
    jw_init(&e->w, &e->json, 0);
    jw_obj(&e->w);
    put_numbers(e, "layers", e->layers, e->n_layers);
    put_numbers(e, "heads", e->heads, e->n_heads);
    put_metrics(e);
    jw_karr(&e->w, "settings");
    for (int64_t i = 0; i < e->n_s; i++)
        put_setting(e, &e->s[i]);
    jw_arr_end(&e->w);
    PASS_ON(put_all_values(e, err));
    PASS_ON(put_pictures(e, err));
    jw_obj_end(&e->w);
    return buf_check(&e->json, "data of the explorer", err);
}

static void put_section(struct explorer *e)
{
    struct buf *b = &e->r->explorer;
    buf_puts(b, "<section id=\"explorer\" class=\"explorer\" hidden>\n"
                "<h2 id=\"explore\">Explore</h2>\n<div id=\"controls\" class=\"controls\"></div>\n"
                "<p id=\"metric-text\" class=\"notes\"></p>\n<div class=\"explore\">\n"
                "<div id=\"points\"></div>\n<div><div id=\"grid-a\"></div>\n"
                "<div id=\"grid-b\"></div></div>\n<div id=\"head\" class=\"full\"></div>\n</div>\n"
                "</section>\n<script type=\"application/json\" id=\"data\">");
    json_in_html(&e->json, b);
    buf_puts(b, "</script>\n");
}

int report_explorer(struct report *r, struct err *err)
{
    struct explorer e = {.r = r};
    int rc = 0;
    TRY(find_values(&e, KEY_LAYER, &e.layers, &e.n_layers, err));
    TRY(find_values(&e, KEY_HEAD, &e.heads, &e.n_heads, err));
    if (e.n_layers * e.n_heads == 0 || e.n_layers * e.n_heads > HEADS_MOST)
        goto out;
    TRY(report_scopes(&r->set, &e.scopes, err));
    TRY(find_settings(&e, err));
    TRY(find_metrics(&e, err));
    TRY(put_data(&e, err));
    put_section(&e);
out:
    for (int i = 0; i < e.scopes.n; i++)
        grouping_free(&e.gs[i]);
    report_scopes_free(&e.scopes);
    free(e.s);
    free(e.layers);
    free(e.heads);
    str_list_free(&e.metrics);
    buf_free(&e.json);
    return rc;
}
