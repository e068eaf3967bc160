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
#include "report/explorer.h"

#include "analyze/format.h"
#include "analyze/group.h"
#include "analyze/metricfacts.h"
#include "core/mem.h"
#include "plots/series.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define VALUES_MOST 300000 /* numbers on the page: about 7 bytes each */
#define HEADS_MOST 4096    /* cells of a grid */

/* Most wanted first. */
#define METRICS                                                                                    \
    "density_elem,err_l1_rel,cra_p1,cra_mean,cra_min,speedup,time_total_ns,density_tile,"          \
    "density_exec,sparsity_total,err_l2_rel,err_cos,err_max,time_*,mask_*,cra_*,err_*,density_*,"  \
    "sparsity_*,below_*,*"

/* ---- what there is -------------------------------------------------------------------------- */

static int by_number(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int64_t unique(int64_t *x, int64_t n)
{
    int64_t m = 0;
    qsort(x, (size_t)n, sizeof *x, by_number);
    for (int64_t i = 0; i < n; i++)
        if (m == 0 || x[m - 1] != x[i])
            x[m++] = x[i];
    return m;
}

int64_t explorer_index(const int64_t *x, int64_t n, int64_t value)
{
    const int64_t *p = bsearch(&value, x, (size_t)n, sizeof *x, by_number);
    return p ? p - x : -1;
}

bool explorer_takes(const void *ctx, const struct record *r)
{
    (void)ctx;
    return r->scope == RECORD_OF_HEAD && r->status == RECORD_OK;
}

static int find_heads(struct explorer *e, struct err *err)
{
    const struct recset *set = &e->r->set;
    int rc = 0;
    TRY(mem_alloc(&e->layers, set->n, sizeof *e->layers, "layers", err));
    TRY(mem_alloc(&e->heads, set->n, sizeof *e->heads, "heads", err));
    for (int64_t i = 0; i < set->n; i++)
        if (explorer_takes(NULL, &set->r[i])) {
            e->layers[e->n_layers++] = set->r[i].layer;
            e->heads[e->n_heads++] = set->r[i].head;
        }
    e->n_layers = unique(e->layers, e->n_layers);
    e->n_heads = unique(e->heads, e->n_heads);
out:
    return rc;
}

/* Of a method that ran some steps dense by its own schedule, the sparse ones. */
static int find_settings(struct explorer *e, struct err *err)
{
    static const enum group_key keys[] = {KEY_METHOD, KEY_PARAMS};
    int64_t cap = 0;
    int rc = 0;
    for (int k = 0; k < e->scopes.n; k++) {
        TRY(grouping_make(&e->scopes.s[k].set, keys, 2, GROUP_SPLIT_STEPS, explorer_takes, NULL,
                          &e->gs[k], err));
        for (int64_t i = 0; i < e->gs[k].n; i++) {
            const struct group *g = &e->gs[k].g[i];
            TRY(mem_grow(&e->s, &cap, e->n_s + 1, sizeof *e->s, "settings", err));
            e->n_s -= g->steps == STEPS_SPARSE && e->n_s > 0;
            e->s[e->n_s++] = (struct setting){g->first, g->at, g->n, g->steps, k};
        }
    }
out:
    return rc;
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

/* Five digits: a picture of a head shows no more. */
static void put_value(struct jw *w, double x)
{
    char text[32];
    snprintf(text, sizeof text, "%.5g", x);
    jw_num(w, strtod(text, NULL));
}

static int put_values(struct explorer *e, const struct setting *s, const char *metric, double *sum,
                      int64_t *n, struct err *err)
{
    int64_t cells = e->n_layers * e->n_heads;
    struct expr value = expr_parse(metric);
    (void)err;
    for (int64_t i = 0; i < cells; i++) {
        sum[i] = 0;
        n[i] = 0;
    }
    for (int64_t i = 0; i < s->n; i++) {
        const struct record *r = member(e, s, i);
        double x;
        if (!takes(s, r) || !expr_value(&value, r, &x) || !isfinite(x))
            continue;
        int64_t at = explorer_index(e->layers, e->n_layers, r->layer) * e->n_heads +
                     explorer_index(e->heads, e->n_heads, r->head);
        sum[at] += x;
        n[at]++;
    }
    jw_arr(&e->w);
    for (int64_t i = 0; i < cells; i++)
        if (n[i])
            put_value(&e->w, sum[i] / (double)n[i]);
        else
            jw_null(&e->w);
    jw_arr_end(&e->w);
    return 0;
}

static int put_all_values(struct explorer *e, struct err *err)
{
    int64_t cells = e->n_layers * e->n_heads, *n = NULL;
    double *sum = NULL;
    int rc = 0;
    TRY(mem_alloc(&sum, cells, sizeof *sum, "values of heads", err));
    TRY(mem_alloc(&n, cells, sizeof *n, "values of heads", err));
    jw_key(&e->w, "values");
    jw_arr(&e->w);
    for (int64_t i = 0; i < e->n_s; i++) {
        jw_arr(&e->w);
        for (int64_t k = 0; k < e->metrics.n; k++)
            TRY(put_values(e, &e->s[i], e->metrics.items[k], sum, n, err));
        jw_arr_end(&e->w);
    }
    jw_arr_end(&e->w);
out:
    free(sum);
    free(n);
    return rc;
}

static void put_metrics(struct explorer *e)
{
    jw_key(&e->w, "metrics");
    jw_arr(&e->w);
    for (int64_t i = 0; i < e->metrics.n; i++) {
        const char *name = e->metrics.items[i], *unit;
        const struct metric_def *m = metric_def_find(name);
        double scale = metric_scale(name, &unit);
        jw_obj(&e->w);
        jw_kstr(&e->w, "name", name);
        jw_kstr(&e->w, "label", strchr(name, '@') ? name : metric_label(name));
        jw_kstr(&e->w, "definition", m ? m->definition : "no definition is known");
        jw_kstr(&e->w, "unit", scale != 1 || !m || strcmp(m->unit, "1") != 0 ? unit : "");
        jw_knum(&e->w, "scale", scale);
        jw_kbool(&e->w, "percent", metric_percent(name));
        jw_kbool(&e->w, "log", metric_axis(name) == AXIS_LOG);
        jw_obj_end(&e->w);
    }
    jw_arr_end(&e->w);
}

static bool is_bound(const struct explorer *e, const char *method)
{
    for (int i = 0; e->r->app->methods && e->r->app->methods[i]; i++)
        if (strcmp(e->r->app->methods[i]->name, method) == 0)
            return strcmp(method, "dense") == 0 || e->r->app->methods[i]->flags & METHOD_BOUND;
    return strcmp(method, "dense") == 0;
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
    const char *scope = e->scopes.s[s->scope].name;
    struct buf name = {0};
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
    jw_obj(&e->w);
    jw_kstr(&e->w, "name", buf_str(&name));
    jw_kstr(&e->w, "method", r->method);
    jw_kstr(&e->w, "color", color);
    jw_kbool(&e->w, "bound", is_bound(e, r->method));
    jw_kbool(&e->w, "full", keeps_all(e, s));
    jw_kint(&e->w, "scope", s->scope);
    jw_obj_end(&e->w);
    e->json.failed |= name.failed;
    buf_free(&name);
}

static void put_numbers(struct explorer *e, const char *key, const int64_t *x, int64_t n)
{
    jw_key(&e->w, key);
    jw_arr(&e->w);
    for (int64_t i = 0; i < n; i++)
        jw_int(&e->w, x[i]);
    jw_arr_end(&e->w);
}

/* ---- the part ------------------------------------------------------------------------------- */

static int put_data(struct explorer *e, struct err *err)
{
    int rc = 0;
    jw_init(&e->w, &e->json, 0);
    jw_obj(&e->w);
    put_numbers(e, "layers", e->layers, e->n_layers);
    put_numbers(e, "heads", e->heads, e->n_heads);
    put_metrics(e);
    jw_key(&e->w, "settings");
    jw_arr(&e->w);
    for (int64_t i = 0; i < e->n_s; i++)
        put_setting(e, &e->s[i]);
    jw_arr_end(&e->w);
    TRY(put_all_values(e, err));
    if (e->r->figures)
        TRY(explorer_pictures(e, err));
    else {
        jw_key(&e->w, "maps");
        jw_arr(&e->w);
        jw_arr_end(&e->w);
        jw_key(&e->w, "masks");
        jw_obj(&e->w);
        jw_obj_end(&e->w);
        jw_kstr(&e->w, "no_map", "the report was made with --no-figures");
        jw_kstr(&e->w, "no_mask", "the report was made with --no-figures");
    }
    jw_obj_end(&e->w);
    TRY(buf_check(&e->json, "data of the explorer", err));
out:
    return rc;
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
    TRY(find_heads(&e, err));
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
