/*
 * chart.c - grouping for figures, names and styles of series, panels with a legend to their right.
 */
#include "plots/chart.h"

#include "analyze/tables.h"
#include "core/mem.h"
#include "plots/palette.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- groups -------------------------------------------------------------------------------- */

static bool in_list(const int64_t *list, int64_t n, int x)
{
    for (int64_t i = 0; i < n; i++)
        if (list[i] == x)
            return true;
    return n < 0;
}

static bool fits(const void *ctx, const struct record *r)
{
    const struct chart_groups *c = ctx;
    const struct figure_args *a = c->args;
    return r->status == RECORD_OK && in_list(c->layers, c->n_layers, r->layer) &&
           in_list(c->heads, c->n_heads, r->head) && (a->step == INT64_MIN || a->step == r->step) &&
           (!a->branch || strcmp(a->branch, r->branch) == 0) && figure_takes(a, r);
}

static int lists(const struct figure_args *a, struct chart_groups *c, struct err *err)
{
    int rc = 0;
    c->n_layers = c->n_heads = -1;
    if (a->layer)
        TRY(index_list_parse(a->layer, -1, "--layer", &c->layers, &c->n_layers, err));
    if (a->head)
        TRY(index_list_parse(a->head, -1, "--head", &c->heads, &c->n_heads, err));
out:
    return rc;
}

/* Drop groups in which no cell has the metric. */
static int drop_without(struct grouping *gs, const char *metric, struct err *err)
{
    struct stats s;
    int64_t kept = 0;
    for (int64_t i = 0; i < gs->n; i++) {
        int rc = group_stats(gs, &gs->g[i], metric, &s, NULL, err);
        if (rc)
            return rc;
        if (s.n > 0)
            gs->g[kept++] = gs->g[i];
    }
    gs->n = kept;
    return 0;
}

int chart_group(const struct figure_args *a, const enum group_key *keys, int n_keys, unsigned flags,
                const char *metric, enum group_key without, struct chart_groups *out,
                struct err *err)
{
    struct chart_groups c = {.args = a};
    enum group_key scope[KEYS_MAX];
    int n, rc = 0;

    TRY(lists(a, &c, err));
    TRY(recset_scope(a->set, scope, &n, err));
    for (int i = 0; i < n; i++)
        if (scope[i] != without)
            c.scope[c.n_scope++] = scope[i];
    for (int i = 0; i < c.n_scope; i++)
        c.keys[c.n_keys++] = c.scope[i];
    for (int i = 0; i < n_keys; i++)
        c.keys[c.n_keys++] = keys[i];
    TRY(grouping_make(a->set, c.keys, c.n_keys, flags, fits, &c, &c.gs, err));
    if (metric)
        TRY(drop_without(&c.gs, metric, err));
    if (c.gs.n == 0)
        FAIL(err, ERR_INPUT, "no ok record%s%s is left to draw", metric ? " with " : "",
             metric ? metric : "");
    *out = c;
out:
    if (rc)
        chart_groups_free(&c);
    return rc;
}

void chart_groups_free(struct chart_groups *c)
{
    free(c->layers);
    free(c->heads);
    grouping_free(&c->gs);
    *c = (struct chart_groups){0};
}

void chart_name(const struct chart_groups *c, const struct record *r, const char *params,
                struct buf *b)
{
    for (int i = 0; i < c->n_scope; i++) {
        if (c->scope[i] != KEY_MODEL)
            buf_printf(b, "%s=", key_name(c->scope[i]));
        key_text(r, c->scope[i], b);
        buf_puts(b, i + 1 < c->n_scope ? " " : ": ");
    }
    buf_puts(b, r->method);
    if (params && params[0])
        buf_printf(b, " %s", params);
}

/* ---- series -------------------------------------------------------------------------------- */

int series_of(struct series_list *l, const char *name, const char *method, struct err *err)
{
    for (int i = 0; i < l->n; i++)
        if (strcmp(l->s[i].name, name) == 0)
            return i;
    if (l->n == CHART_MOST) {
        err_set(err, ERR_USAGE, "more than %d series: choose with --method and --params",
                CHART_MOST);
        return -1;
    }
    if (mem_grow(&l->s, &l->cap, l->n + 1, sizeof *l->s, "series", err))
        return -1;
    struct line_style st = style_of(method);
    struct series *s = &l->s[l->n];
    *s = (struct series){.name = strdup(name), .point = st.point, .dash = st.dash};
    if (!s->name) {
        err_set(err, ERR_NOMEM, "series: out of memory");
        return -1;
    }
    snprintf(s->method, sizeof s->method, "%s", method);
    snprintf(s->color, sizeof s->color, "%s", st.color);
    return l->n++;
}

void series_free(struct series_list *l)
{
    for (int i = 0; i < l->n; i++)
        free(l->s[i].name);
    free(l->s);
    *l = (struct series_list){0};
}

void series_shade(struct series_list *l, bool dashes)
{
    for (int i = 0; i < l->n; i++) {
        int k = 0, n = 0;
        for (int j = 0; j < l->n; j++)
            if (strcmp(l->s[j].method, l->s[i].method) == 0) {
                k += j < i;
                n++;
            }
        style_shade(style_of(l->s[i].method), k, n, l->s[i].color);
        l->s[i].dash = !dashes ? 1 : n > 1 ? 1 + k % 5 : l->s[i].dash;
    }
}

/* ---- panels -------------------------------------------------------------------------------- */

int chart_open(const struct figure_args *a, int panels, int panel_w, int panel_h,
               const struct series_list *legend, const char *title, struct chart *c,
               struct err *err)
{
    size_t longest = 0;
    *c = (struct chart){.panels = panels, .left = 84, .gap = 92, .top = 46, .bottom = 62};
    for (int i = 0; legend && i < legend->n; i++)
        longest = strlen(legend->s[i].name) > longest ? strlen(legend->s[i].name) : longest;
    c->legend = legend && legend->n ? (int)(72 + 7.4 * (double)(longest > 60 ? 60 : longest)) : 24;
    int need = legend ? legend->n * 19 : 0, height = panel_h > need ? panel_h : need;
    int w = c->left + panels * panel_w + (panels - 1) * c->gap + c->legend;
    int rc = figure_open(a, w, c->top + height + c->bottom, &c->gp, err);
    if (rc)
        return rc;
    c->width = (c->gp.width - c->left - c->legend - (panels - 1) * c->gap) / panels;
    c->height = c->gp.height - c->top - c->bottom;
    if (c->width < 40 || c->height < 40)
        return err_set(err, ERR_USAGE, "--size %dx%d is too small for this figure (%dx%d would do)",
                       c->gp.width, c->gp.height, w, c->top + height + c->bottom);
    struct buf *s = &c->gp.script;
    buf_puts(s, "set border 3 lw 0.8\nset tics out nomirror scale 0.7\n"
                "set grid lc rgb '#dddddd' lw 0.6 lt 1\nunset key\nset multiplot\nset label ");
    gp_text(s, a->title ? a->title : title);
    buf_printf(s, " at screen %.6f, screen %.6f left noenhanced font ',12'\n", 14.0 / c->gp.width,
               1 - 20.0 / c->gp.height);
    return 0;
}

void chart_panel(struct chart *c, int i, const char *x_label, const char *y_label)
{
    struct buf *s = &c->gp.script;
    double w = c->gp.width, h = c->gp.height, x = c->left + i * (c->width + c->gap);
    buf_printf(s,
               "set lmargin at screen %.8f\nset rmargin at screen %.8f\n"
               "set tmargin at screen %.8f\nset bmargin at screen %.8f\n",
               x / w, (x + c->width) / w, 1 - c->top / h, c->bottom / h);
    buf_puts(s, "set xlabel ");
    gp_text(s, x_label);
    buf_puts(s, " noenhanced\nset ylabel ");
    gp_text(s, y_label);
    buf_puts(s, " noenhanced\n");
    if (i == c->panels - 1)
        buf_printf(s,
                   "set key at screen %.8f, screen %.8f left top Left reverse noenhanced "
                   "samplen 2.2 spacing 1.15\n",
                   (x + c->width + 14) / w, 1 - c->top / h);
}

void chart_legend(struct chart *c, const struct series_list *l, enum chart_mark mark)
{
    struct buf *s = &c->gp.script;
    for (int i = 0; i < l->n; i++) {
        const struct series *k = &l->s[i];
        if (mark == MARK_BOX)
            buf_printf(s, ", keyentry with boxes fs solid lc rgb '%s' title ", k->color);
        else if (mark == MARK_LINE)
            buf_printf(s, ", keyentry with lines lw 1.8 dt %d lc rgb '%s' title ", k->dash,
                       k->color);
        else
            buf_printf(s,
                       ", keyentry with linespoints lw 1.4 dt %d pt %d ps 1*point_scale lc rgb "
                       "'%s' title ",
                       k->dash, k->point, k->color);
        gp_text(s, k->name);
    }
}

int chart_finish(struct chart *c, const struct buf *data, struct err *err)
{
    int rc = 0;
    buf_puts(&c->gp.script, "unset multiplot\n");
    TRY(buf_check(data, "data of the figure", err));
    TRY(gp_data(&c->gp, "dat", buf_str(data), data->len, err));
    TRY(gp_finish(&c->gp, err));
out:
    return rc;
}

void chart_free(struct chart *c)
{
    gp_free(&c->gp);
}

/* ---- metrics ------------------------------------------------------------------------------- */

void chart_metric_label(const char *metric, struct buf *b, double *scale)
{
    const char *unit;
    *scale = metric_scale(metric, &unit);
    buf_puts(b, metric);
    if (unit[0])
        buf_printf(b, " [%s]", unit);
}

bool metric_larger_is_better(const char *metric)
{
    return name_matches("cra_*,err_cos*,sparsity_*,speed*,mask_precision,mask_recall,mask_iou,"
                        "below_*,sd_*,1-density_*",
                        metric);
}

bool metric_is_log(const char *metric)
{
    return name_matches("err_l1_rel,err_l2_rel,err_l1_tok,err_rmse,err_max,err_lse_*,time_*,host_*",
                        metric);
}

int metric_list(const char *text, struct str_list *out, struct err *err)
{
    for (const char *p = text; *p;) {
        size_t len = strcspn(p, ",");
        char one[96];
        if (len >= sizeof one)
            return err_set(err, ERR_USAGE, "--metric: '%.*s' is too long", (int)len, p);
        snprintf(one, sizeof one, "%.*s", (int)len, p);
        if (len)
            str_list_add(out, one);
        p += len + (p[len] == ',');
    }
    return out->n ? 0 : err_set(err, ERR_USAGE, "--metric: no metric given");
}

const char *first_present(const struct recset *set, const struct str_list *names)
{
    for (int64_t k = 0; k < names->n; k++)
        for (int64_t i = 0; i < set->n; i++)
            if (set->r[i].status == RECORD_OK && record_has(&set->r[i], names->items[k]))
                return names->items[k];
    return NULL;
}
