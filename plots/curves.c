/*
 * curves.c - points of the figure "curves": what is x where nobody says it, and its value.
 */
#include "plots/drawers.h"

#include "analyze/metricfacts.h"
#include "analyze/params.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- x --------------------------------------------------------------------------------------- */

/* Number of "0.02", "8%" (as a share), "64x64" (the first side); NAN otherwise. */
static double number_of(const char *text)
{
    char *end;
    double x = strtod(text, &end);
    if (end == text)
        return NAN;
    return *end == '%' ? x / 100 : x;
}

/* Does any record of the method set the parameter? Only then it is swept. */
static bool is_swept(const struct recset *set, const char *method, const char *name)
{
    for (int64_t i = 0; i < set->n; i++)
        if (strcmp(set->r[i].method, method) == 0 && params_value(set->r[i].params, name))
            return true;
    return false;
}

/* Value of a parameter: from the canonical text, else the method's default. */
static double param_value(const struct figure_args *a, const struct record *r, const char *name)
{
    const char *v = params_value(r->params, name);
    if (v || !is_swept(a->set, r->method, name))
        return v ? number_of(v) : NAN;
    for (int i = 0; a->methods && a->methods[i]; i++)
        if (strcmp(a->methods[i]->name, r->method) == 0 && a->methods[i]->params.table) {
            const struct opt *o = opt_find(a->methods[i]->params.table, name);
            return o && o->def ? number_of(o->def) : NAN;
        }
    return NAN;
}

/* Do two settings of a method differ in the parameter, and in nothing else? */
static bool on_one_line(const struct figure_args *a, const struct record *r, const struct record *o,
                        const char *name)
{
    struct buf rest = {0}, other = {0};
    double x = param_value(a, r, name), y = param_value(a, o, name);
    if (isnan(x) || isnan(y) || x == y || strcmp(r->method, o->method) != 0)
        return false;
    params_without(r->params, name, &rest);
    params_without(o->params, name, &other);
    bool same = strcmp(buf_str(&rest), buf_str(&other)) == 0;
    buf_free(&rest);
    buf_free(&other);
    return same;
}

/* Number of settings that lie with another one on a line against the parameter. */
static int64_t swept_settings(const struct chart_groups *g, const char *name)
{
    int64_t n = 0;
    for (int64_t i = 0; i < g->gs.n; i++)
        for (int64_t k = 0; k < g->gs.n; k++)
            if (on_one_line(g->args, g->gs.g[i].first, g->gs.g[k].first, name)) {
                n++;
                break;
            }
    return n;
}

static bool seen(struct str_list *names, const char *name)
{
    for (int64_t i = 0; i < names->n; i++)
        if (strcmp(names->items[i], name) == 0)
            return true;
    str_list_add(names, name);
    return false;
}

/* The parameter that most settings sweep; one that no method varies is no axis. */
static int swept_param(const struct figure_args *a, char name[64], struct err *err)
{
    static const enum group_key keys[] = {KEY_METHOD, KEY_PARAMS};
    struct chart_groups g = {0};
    struct str_list tried = {0};
    int64_t most = 0;
    int rc = chart_group(a, keys, 2, 0, NULL, KEY_COUNT, &g, err);
    if (rc)
        return rc;
    name[0] = '\0';
    for (int64_t i = 0; i < g.gs.n; i++)
        for (const char *p = g.gs.g[i].first->params; p && *p;) {
            size_t part = strcspn(p, ":"), key = strcspn(p, "=");
            char one[64];
            snprintf(one, sizeof one, "%.*s", (int)(key < 63 ? key : 63), p);
            int64_t n = seen(&tried, one) ? 0 : swept_settings(&g, one);
            if (n > most) {
                most = n;
                snprintf(name, 64, "%s", one);
            }
            p += part + (p[part] == ':');
        }
    str_list_free(&tried);
    chart_groups_free(&g);
    return 0;
}

/* Do the chosen cells differ in the step? */
static int steps_vary(const struct figure_args *a, bool *out, struct err *err)
{
    static const enum group_key step = KEY_STEP;
    struct chart_groups g = {0};
    int rc = chart_group(a, &step, 1, 0, NULL, KEY_COUNT, &g, err);
    *out = false;
    for (int64_t i = 1; !rc && i < g.gs.n; i++)
        *out |= g.gs.g[i].first->step != g.gs.g[0].first->step;
    chart_groups_free(&g);
    return rc;
}

/* Settings of a method that differ in what a calibration found, not in a number. */
static bool calibrations_vary(const struct recset *set)
{
    const struct record *first = NULL;
    for (int64_t i = 0; i < set->n; i++) {
        const struct record *r = &set->r[i];
        if (!params_value(r->params, "calib"))
            continue;
        if (first && strcmp(first->method, r->method) == 0 && strcmp(first->params, r->params) != 0)
            return true;
        first = first ? first : r;
    }
    return false;
}

/* What is drawn against what. */
struct axis {
    char x[64];
    enum group_key key; /* KEY_COUNT: x is a parameter or a metric */
    bool metric;        /* x is a metric: a line joins all settings of a method */
};

/* A metric that is no parameter: sale records a tau, too. */
static bool is_metric(const struct recset *set, const char *name)
{
    bool has = false;
    for (int64_t i = 0; i < set->n; i++) {
        if (params_value(set->r[i].params, name))
            return false;
        has |= record_has(&set->r[i], name);
    }
    return has;
}

/* --x, or step when steps vary, else a swept parameter, else the density of calibrations, else the
 * layer. */
static int choose_x(const struct figure_args *a, const char **metric, struct axis *x,
                    struct err *err)
{
    static const enum group_key numeric[] = {KEY_STEP, KEY_LAYER,    KEY_HEAD,   KEY_N_Q,  KEY_N_K,
                                             KEY_RUN,  KEY_MASK_AGE, KEY_TOKENS, KEY_DEPTH};
    bool steps = false;
    int rc = a->x ? 0 : steps_vary(a, &steps, err);
    if (rc)
        return rc;
    if (a->x)
        snprintf(x->x, sizeof x->x, "%s", a->x);
    else if (steps)
        snprintf(x->x, sizeof x->x, "step");
    else
        rc = swept_param(a, x->x, err);
    if (!x->x[0] && calibrations_vary(a->set)) {
        snprintf(x->x, sizeof x->x, "density_elem");
        *metric = a->metrics ? *metric : "cra_mean";
    } else if (!x->x[0])
        snprintf(x->x, sizeof x->x, "layer");
    x->key = KEY_COUNT;
    for (size_t i = 0; i < sizeof numeric / sizeof *numeric; i++)
        if (strcmp(x->x, key_name(numeric[i])) == 0)
            x->key = numeric[i];
    x->metric = x->key == KEY_COUNT && is_metric(a->set, x->x);
    return rc;
}

/* x of a group; NAN: none. */
static int x_of(const struct chart_groups *g, const struct group *grp, const struct axis *x,
                double *out, struct err *err)
{
    struct stats s;
    int rc = 0;
    if (x->key != KEY_COUNT)
        *out = key_number(grp->first, x->key);
    else if (!x->metric)
        *out = param_value(g->args, grp->first, x->x);
    else {
        const char *unit;
        rc = group_stats(&g->gs, grp, x->x, &s, NULL, err);
        *out = s.n ? s.mean * metric_scale(x->x, &unit) : NAN;
    }
    return rc;
}

/* ---- points ---------------------------------------------------------------------------------- */

/* What of the parameters the line of a setting is named by. */
static void line_params(const struct record *r, const struct axis *x, struct buf *b)
{
    buf_reset(b);
    if (x->key != KEY_COUNT)
        buf_puts(b, r->params ? r->params : "");
    else if (!x->metric)
        params_without(r->params, x->x, b);
}

static int add_points(struct chart *c, const struct axis *x, struct err *err)
{
    struct buf rest = {0};
    struct stats s;
    const char *unit;
    double scale = metric_scale(c->metric, &unit), at;
    int rc = 0;
    for (int64_t i = 0; i < c->g.gs.n; i++) {
        const struct group *g = &c->g.gs.g[i];
        TRY(x_of(&c->g, g, x, &at, err));
        TRY(group_stats(&c->g.gs, g, c->metric, &s, NULL, err));
        if (isnan(at) || s.n == 0)
            continue;
        line_params(g->first, x, &rest);
        TRY(buf_check(&rest, "series", err));
        int k = chart_series(&c->g, g->first, x->metric ? NULL : buf_str(&rest), &c->l, err);
        TRY(chart_add_stats(c, k, at, &s, scale, err));
    }
    if (c->n == 0)
        FAIL(err, ERR_INPUT,
             "no record has a number for '%s': --x takes step, layer, head, n_q, of evals tokens "
             "or depth, a metric or a "
             "parameter such as tau",
             x->x);
out:
    buf_free(&rest);
    return rc;
}

/* The only method of the series; NULL where there are several. */
static const char *only_method(const struct series_list *l)
{
    for (int i = 1; i < l->n; i++)
        if (strcmp(l->s[i].method, l->s[0].method) != 0)
            return NULL;
    return l->n ? l->s[0].method : NULL;
}

/* "denoising step", "tau [mass share]", "pairs kept [kept/allowed pairs]". */
static void x_name(const struct chart *c, const struct axis *x, struct buf *b)
{
    const char *method = only_method(&c->l);
    double scale;
    const struct opt *o = NULL;
    for (int i = 0; method && c->a->methods && c->a->methods[i]; i++)
        if (strcmp(c->a->methods[i]->name, method) == 0 && c->a->methods[i]->params.table)
            o = opt_find(c->a->methods[i]->params.table, x->x);
    if (x->metric)
        chart_metric_label(x->x, b, &scale);
    else if (x->x[0] == '@') {
        buf_puts(b, "target of ");
        chart_metric_name(x->x + 1, b);
    } else
        buf_printf(b, "%s", x->key == KEY_STEP ? "denoising step" : x->x);
    if (o && o->unit && o->unit[0])
        buf_printf(b, " [%s]", o->unit);
}

static enum figure_axis axis_of(const struct axis *x)
{
    bool tokens = x->key == KEY_TOKENS || x->key == KEY_N_Q || x->key == KEY_N_K;
    return tokens ? AXIS_TOKENS : x->key != KEY_COUNT ? AXIS_COUNT : AXIS_PARAM;
}

int points_of_curve(struct chart *c, struct err *err)
{
    struct axis x = {.key = KEY_COUNT};
    struct buf name = {0}, keys = {0};
    int rc = 0;

    TRY(choose_x(c->a, &c->metric, &x, err));
    /* A time belongs to one length: over several a line leads from length to length. */
    bool by_length = x.metric && (strstr(x.x, "speedup") || strstr(x.x, "time_"));
    enum group_key along = by_length ? KEY_TOKENS : x.key;
    buf_printf(&keys, "%s%s%s", c->f->keys, along == KEY_COUNT ? "" : ",",
               along == KEY_COUNT ? "" : key_name(along));
    TRY(buf_check(&keys, "keys", err));
    /* Against the step a method's schedule is what one wants to see. */
    TRY(chart_regroup(c, keys.data, c->metric, along,
                      (x.key == KEY_STEP ? FIGURE_ALL_CALLS : 0) | c->f->flags, err));
    struct chart_panel *p = chart_panel(c, c->metric, "", axis_of(&x));
    TRY(add_points(c, &x, err));
    x_name(c, &x, &name);
    snprintf(p->x_name, sizeof p->x_name, "%s", buf_str(&name));
    buf_reset(&name);
    if (x.metric)
        chart_metric_name(x.x, &name);
    buf_puts(&c->says, x.metric ? buf_str(&name) : p->x_name);
    c->through = x.key == KEY_COUNT;
    /* A parameter of one name in two methods is not one quantity: each method has its own axis.
     * What begins with @ is a target on a metric, the same for all. */
    c->split = x.key == KEY_COUNT && !x.metric && x.x[0] != '@' && !only_method(&c->l);
    if (c->split)
        buf_puts(&c->caption, "The parameter means something else in each method, so each has an "
                              "axis of its own.");
out:
    buf_free(&name);
    buf_free(&keys);
    return rc;
}
