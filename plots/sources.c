/*
 * sources.c - points of lines: a metric against keys, parameters or another one, its distribution,
 * metrics whose names hold x; what settings cost against what they keep, and a replay against the
 * model with the method inside.
 */
#include "plots/chart.h"
#include "core/mem.h"

#include "analyze/inside.h"
#include "analyze/metricfacts.h"
#include "analyze/params.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const layer_colors[] = {"#000000", "#e69f00", "#0072b2", "#009e73",
                                           "#d55e00", "#56b4e9", "#cc79a7", "#7f7f7f"};

/* A series that is no method's: its colour, dash and point. */
static int plain_series(struct chart *c, const char *name, const char *color, int dash, int point,
                        struct err *err)
{
    int k = series_of(&c->l, name, "", err);
    if (k < 0)
        return k;
    snprintf(c->l.s[k].color, sizeof c->l.s[k].color, "%s", color);
    c->l.s[k].dash = dash;
    c->l.s[k].point = point;
    return k;
}

/* ---- reused masks by age -------------------------------------------------------------------- */

#define LAYERS_MOST 512 /* of all settings; panels thin them out */

/* A layer of a setting is a series. */
static int series_of_layer(struct chart *c, const struct record *r, struct err *err)
{
    OWN(buf_free) struct buf name = {0}, setting = {0};
    int k = -1;
    c->l.most = LAYERS_MOST;
    bool several = c->g.n_scope || recset_varies(c->a->set, KEY_PARAMS);
    if (several)
        chart_name(c, r, r->params, &setting);
    buf_printf(&name, "%s%slayer %d", buf_str(&setting), several ? " " : "", r->layer);
    if (!buf_check(&name, "series", err))
        k = plain_series(c, name.data, layer_colors[r->layer % 8], 1 + r->layer / 8 % 5,
                         5 + 2 * (r->layer % 5), err);
    if (k >= 0 && several && !c->l.s[k].scope && !(c->l.s[k].scope = strdup(buf_str(&setting))))
        k = err_set(err, ERR_NOMEM, "series: out of memory");
    return k;
}

int points_by_age(struct chart *c, struct err *err)
{
    PASS_ON(metric_list(c->metric, &c->metrics, err));
    for (int64_t m = 0; m < c->metrics.n; m++) {
        const char *metric = c->metrics.items[m];
        chart_panel(c, metric, "age of the mask [step]", AXIS_COUNT);
        PASS_ON(chart_regroup(c, c->f->keys, metric, KEY_COUNT, c->f->flags, err));
        for (int64_t i = 0; i < c->g.gs.n; i++) {
            const struct record *r = c->g.gs.g[i].first;
            struct stats s;
            PASS_ON(group_stats(&c->g.gs, &c->g.gs.g[i], metric, &s, NULL, err));
            PASS_ON(chart_add_stats(c, series_of_layer(c, r, err), key_number(r, KEY_MASK_AGE), &s,
                                    1, err));
        }
    }
    return 0;
}

/* ---- the distribution of a metric ----------------------------------------------------------- */

int points_of_values(struct chart *c, struct err *err)
{
    const char *unit;
    double scale = metric_scale(c->metric, &unit), unused;
    OWN(buf_free) struct buf name = {0};
    PASS_ON(chart_regroup(c, c->f->keys, c->metric, KEY_COUNT, c->f->flags, err));
    chart_metric_label(c->metric, &name, &unused);
    PASS_ON(buf_check(&name, "name", err));
    struct chart_panel *p = chart_panel(c, c->metric, name.data, AXIS_OF_METRIC);
    snprintf(p->y_name, sizeof p->y_name, "share of heads of calls");
    for (int64_t i = 0; i < c->g.gs.n; i++) {
        const struct record *r = c->g.gs.g[i].first;
        struct stats s;
        OWN(free_at) double *x = NULL;
        PASS_ON(group_stats(&c->g.gs, &c->g.gs.g[i], c->metric, &s, &x, err));
        int k = chart_series(c, r, r->params, err);
        if (k < 0)
            return err->code;
        PASS_ON(chart_add(c, &(struct chart_point){.series = k, .x = x[0] * scale}, err));
        for (int64_t m = 0; m < s.n; m++)
            if (m + 1 == s.n || x[m + 1] != x[m])
                PASS_ON(chart_add(c,
                                  &(struct chart_point){.series = k,
                                                        .x = x[m] * scale,
                                                        .y = (double)(m + 1) / (double)s.n},
                                  err));
    }
    return 0;
}

/* ---- curves: what is x where nobody says it, and its value ---------------------------------- */

/* Number of "0.02", "8%" (as a share), "64x64" (the first side); NAN otherwise. */
static double number_of(const char *text)
{
    char *end;
    double x = strtod(text, &end);
    if (end == text)
        return NAN;
    return *end == '%' ? x / 100 : x;
}

/* Value of a parameter of a method of which some record sets it: else it is not swept. */
static double param_value(const struct recset *set, const struct record *r, const char *name)
{
    struct buf b = {0};
    double x = NAN;
    for (int64_t i = 0; i < set->n; i++)
        if (strcmp(set->r[i].method, r->method) == 0 && params_value(set->r[i].params, name)) {
            x = record_param(r, name, &b) ? number_of(buf_str(&b)) : NAN;
            break;
        }
    buf_free(&b);
    return x;
}

/* Values of the parameter beyond the first of each method. */
static int64_t swept_values(const struct grouping *gs, const char *name)
{
    int64_t n = 0;
    for (int64_t i = 0; i < gs->n; i++) {
        double x = param_value(gs->set, gs->g[i].first, name);
        bool any = false, same = isnan(x);
        for (int64_t k = 0; k < i && !same; k++) {
            double y = param_value(gs->set, gs->g[k].first, name);
            if (strcmp(gs->g[i].first->method, gs->g[k].first->method) != 0 || isnan(y))
                continue;
            any = true;
            same = x == y;
        }
        n += any && !same;
    }
    return n;
}

/* The step when steps vary, else the parameter of which most values occur, else the layer. */
static int usual_x(struct chart *c, char name[64], struct err *err)
{
    const struct grouping *gs = &c->g.gs;
    struct str_list tried = {0};
    int64_t most = 0;
    int rc = chart_regroup(c, "method,params", NULL, KEY_COUNT, FIGURE_ALL_CALLS, err);
    snprintf(name, 64, "layer");
    if (!rc && grouping_varies(gs, KEY_STEP))
        snprintf(name, 64, "step");
    for (int64_t i = 0; !rc && strcmp(name, "step") != 0 && i < gs->n; i++) {
        const char *p = gs->g[i].first->params, *word;
        size_t len;
        while (p && (word = params_next(&p, &len)) != NULL) {
            char one[64];
            snprintf(one, sizeof one, "%.*s", (int)strcspn(word, "=<>:"), word);
            if (str_list_has(&tried, one))
                continue;
            str_list_add(&tried, one);
            int64_t n = swept_values(gs, one);
            if (n > most)
                snprintf(name, 64, "%s", one);
            most = n > most ? n : most;
        }
    }
    str_list_free(&tried);
    return rc;
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

static int choose_x(struct chart *c, struct axis *x, struct err *err)
{
    static const enum group_key numeric[] = {KEY_STEP, KEY_LAYER,    KEY_HEAD,   KEY_N_Q,  KEY_N_K,
                                             KEY_RUN,  KEY_MASK_AGE, KEY_TOKENS, KEY_DEPTH};
    if (c->a->x)
        snprintf(x->x, sizeof x->x, "%s", c->a->x);
    else
        PASS_ON(usual_x(c, x->x, err));
    x->key = KEY_COUNT;
    for (size_t i = 0; i < sizeof numeric / sizeof *numeric; i++)
        if (strcmp(x->x, key_name(numeric[i])) == 0)
            x->key = numeric[i];
    x->metric = x->key == KEY_COUNT && is_metric(c->a->set, x->x);
    return 0;
}

/* x of a group; NAN: none. */
static int x_of(const struct chart *c, const struct group *grp, const struct axis *x, double *out,
                struct err *err)
{
    struct stats s;
    int rc = 0;
    if (x->key != KEY_COUNT)
        *out = key_number(grp->first, x->key);
    else if (!x->metric)
        *out = param_value(c->g.gs.set, grp->first, x->x);
    else {
        const char *unit;
        rc = group_stats(&c->g.gs, grp, x->x, &s, NULL, err);
        *out = s.n ? s.mean * metric_scale(x->x, &unit) : NAN;
    }
    return rc;
}

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
    OWN(buf_free) struct buf rest = {0};
    struct stats s;
    const char *unit;
    double scale = metric_scale(c->metric, &unit), at;
    for (int64_t i = 0; i < c->g.gs.n; i++) {
        const struct group *g = &c->g.gs.g[i];
        PASS_ON(x_of(c, g, x, &at, err));
        PASS_ON(group_stats(&c->g.gs, g, c->metric, &s, NULL, err));
        if (isnan(at) || s.n == 0)
            continue;
        line_params(g->first, x, &rest);
        PASS_ON(buf_check(&rest, "series", err));
        int k = chart_series(c, g->first, x->metric ? NULL : buf_str(&rest), err);
        PASS_ON(chart_add_stats(c, k, at, &s, scale, err));
    }
    if (c->n == 0)
        return err_set(
            err, ERR_INPUT,
            "no record has a number for '%s': --x takes step, layer, head, n_q, of evals tokens "
            "or depth, a metric or a "
            "parameter such as tau",
            x->x);
    return 0;
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
        buf_puts(b, x->key == KEY_STEP ? "denoising step" : x->key == KEY_N_Q ? "tokens" : x->x);
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
    OWN(buf_free) struct buf name = {0}, keys = {0};
    PASS_ON(choose_x(c, &x, err));
    /* A time belongs to one length: over several a line leads from length to length. */
    bool by_length = x.metric && (strstr(x.x, "speedup") || strstr(x.x, "time_"));
    enum group_key along = by_length ? KEY_TOKENS : x.key;
    buf_printf(&keys, "%s%s%s", c->f->keys, along == KEY_COUNT ? "" : ",",
               along == KEY_COUNT ? "" : key_name(along));
    PASS_ON(buf_check(&keys, "keys", err));
    /* Against the step a method's schedule is what one wants to see. */
    PASS_ON(chart_regroup(c, keys.data, c->metric, along,
                          (x.key == KEY_STEP ? FIGURE_ALL_CALLS : 0) | c->f->flags, err));
    struct chart_panel *p = chart_panel(c, c->metric, "", axis_of(&x));
    PASS_ON(add_points(c, &x, err));
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
    return 0;
}

/* ---- metrics whose names hold x ------------------------------------------------------------- */

/* The names of the metric at layers, steps or tokens; `over` becomes "layer", "step" or "token". */
static int find_names(struct chart *c, struct str_list *names, char over[32], struct err *err)
{
    OWN(buf_free) struct buf pattern = {0};
    buf_printf(&pattern, "%s@*=*", c->metric);
    PASS_ON(buf_check(&pattern, "metric", err));
    PASS_ON(recset_metrics(c->a->set, buf_str(&pattern), names, err));
    if (names->n == 0)
        return err_set(
            err, ERR_INPUT,
            "no record has %s by layer or step: --metrics takes err_resid, err_attn, err_local, "
            "density_elem, x_l2, x_cos, v_l2 of `lacuna eval`, recall, lost, cache_keys of `lacuna "
            "replay --phase decode`",
            c->metric);
    const char *at = strchr(names->items[0], '@') + 1;
    snprintf(over, 32, "%.*s", (int)strcspn(at, "="), at);
    return 0;
}

/* A name of the other kind (steps among layers) is left out. */
int points_of_names(struct chart *c, struct err *err)
{
    OWN(str_list_free) struct str_list names = {0};
    char over[32];
    PASS_ON(chart_regroup(c, c->f->keys, NULL, KEY_COUNT, c->f->flags, err));
    PASS_ON(find_names(c, &names, over, err));
    struct chart_panel *p =
        chart_panel(c, c->metric, strcmp(over, "step") == 0 ? "denoising step" : over, AXIS_COUNT);
    buf_puts(&c->says, over);
    for (int64_t i = 0; i < c->g.gs.n; i++)
        for (int64_t k = 0; k < names.n; k++) {
            const struct record *r = c->g.gs.g[i].first;
            const char *at = strchr(names.items[k], '@') + 1, *x = strchr(at, '=') + 1;
            struct stats s;
            if (strncmp(at, over, strlen(over)) != 0)
                continue;
            PASS_ON(group_stats(&c->g.gs, &c->g.gs.g[i], names.items[k], &s, NULL, err));
            if (s.n == 0)
                continue;
            PASS_ON(chart_add_stats(c, chart_series(c, r, r->params, err), strtod(x, NULL), &s, 1,
                                    err));
            c->p[c->n - 1].rounding = s.mean < chart_rounding(c->metric, r);
            p->rounding |= s.mean > 0 && c->p[c->n - 1].rounding;
        }
    if (c->n == 0)
        return err_set(err, ERR_INPUT, "no setting that is left has %s by %s", c->metric, over);
    if (p->rounding)
        buf_puts(&c->caption, "Differences that are rounding lie below the lower edge.");
    return 0;
}

/* Colour by model and length, circles for blocks, triangles on dashed lines for slices. */
static int add_sizes(struct chart *c, const struct group *g, bool slices, struct err *err)
{
    static const int sides[2][5] = {{16, 32, 64, 128, 0}, {16, 64, 128, 0}};
    static const char *const colors[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00"};
    OWN(buf_free) struct buf name = {0};
    struct stats s;
    chart_scope(c, g->first, &name);
    buf_printf(&name, "%s ", c->g.n_scope ? "" : g->first->model);
    buf_puts(&name, slices ? "M x 1 slices" : "b x b blocks");
    PASS_ON(buf_check(&name, "series", err));
    int k = plain_series(c, name.data, colors[c->l.n / 2 % 5], slices ? 2 : 1, slices ? 9 : 7, err);
    for (const int *side = sides[slices]; *side; side++) {
        char metric[32];
        snprintf(metric, sizeof metric, "below_%c%d", slices ? 's' : 'b', *side);
        PASS_ON(group_stats(&c->g.gs, g, metric, &s, NULL, err));
        if (s.n)
            PASS_ON(chart_add_stats(c, k, *side, &s, 1, err));
    }
    return 0;
}

int points_of_sizes(struct chart *c, struct err *err)
{
    PASS_ON(chart_regroup(c, c->f->keys, "below_b64", KEY_COUNT, c->f->flags, err));
    struct chart_panel *p =
        chart_panel(c, "below_b64", "block side b, or slice rows M [tokens]", AXIS_TOKENS);
    snprintf(p->y_name, sizeof p->y_name, "share of units below 0.5/N");
    c->facets_from = SERIES_MOST;
    for (int64_t i = 0; i < c->g.gs.n; i++) {
        PASS_ON(add_sizes(c, &c->g.gs.g[i], false, err));
        PASS_ON(add_sizes(c, &c->g.gs.g[i], true, err));
    }
    return 0;
}

/* ---- points of settings ---------------------------------------------------------------------- */

/* The line of a setting: of its method, or of the settings with targets on one metric that have all
 * other parameters in common. A parameter per head and one for all heads are not points of one
 * curve. */
static int line_of(struct chart *c, const struct record *r, struct err *err)
{
    const char *target = params_target(r->params), *per = strchr(target, ':');
    OWN(buf_free) struct buf name = {0};
    int line = -1;
    if (*target)
        buf_printf(&name, "%.*s%.*s%s", (int)(target - r->params), r->params,
                   (int)strcspn(target, "<>="), target, per ? per : "");
    if (!buf_check(&name, "series", err))
        line = chart_series(c, r, *target ? buf_str(&name) : NULL, err);
    return line;
}

static int add_settings(struct chart *c, const char *metric, struct err *err)
{
    const char *unit;
    double scale = metric_scale(metric, &unit), x_scale = metric_scale(c->f->x, &unit);
    struct stats x, y;
    int scope = 0;
    for (int64_t i = 0; i < c->g.gs.n; i++) {
        const struct group *g = &c->g.gs.g[i];
        struct chart_point p = {.eps = chart_rounding(metric, g->first),
                                .text = g->first->params,
                                .bound = record_is_bound(g->first)};
        PASS_ON(group_stats(&c->g.gs, g, c->f->x, &x, NULL, err));
        PASS_ON(group_stats(&c->g.gs, g, metric, &y, NULL, err));
        scope += i > 0 && !same_keys(c->g.gs.g[i - 1].first, g->first, c->g.scope, c->g.n_scope);
        p.series = line_of(c, g->first, err);
        PASS_ON(p.series < 0 ? err->code : 0);
        if (x.n == 0 || y.n == 0 || !(x.mean > 0))
            continue;
        p.scope = scope;
        p.x = x.mean * x_scale;
        p.lo = x.sd * x_scale;
        p.hi = y.sd * scale;
        p.value = y.mean * scale;
        p.rounding = metric_axis(metric) == AXIS_LOG && fabs(y.mean) < p.eps;
        p.y = p.rounding ? 0 : p.value;
        PASS_ON(chart_add(c, &p, err));
    }
    return 0;
}

/* Panels: those of --metrics, which must have data, or those of the usual ones that have. */
int points_of_settings(struct chart *c, struct err *err)
{
    OWN(str_list_free) struct str_list all = {0};
    OWN(buf_free) struct buf x = {0};
    double scale;
    PASS_ON(chart_regroup(c, c->f->keys, c->f->x, KEY_COUNT, c->f->flags, err));
    PASS_ON(metric_list(c->metric, &all, err));
    if (all.n > 4)
        return err_set(err, ERR_USAGE, "--metrics: a figure of points has up to 4 panels");
    for (int64_t m = 0; m < all.n; m++) {
        struct stats s;
        int64_t n = 0;
        for (int64_t i = 0; i < c->g.gs.n; i++) {
            PASS_ON(group_stats(&c->g.gs, &c->g.gs.g[i], all.items[m], &s, NULL, err));
            n += s.n;
        }
        if (n)
            str_list_add(&c->metrics, all.items[m]);
        else if (c->a->metrics || (m + 1 == all.n && c->metrics.n == 0))
            PASS_ON(chart_nothing(c->a, all.items[m], err));
    }
    if (c->metrics.failed)
        return err_set(err, ERR_NOMEM, "metrics: out of memory");
    chart_metric_label(c->f->x, &x, &scale);
    for (int64_t m = 0; m < c->metrics.n; m++) {
        chart_panel(c, c->metrics.items[m], buf_str(&x), AXIS_OF_METRIC);
        PASS_ON(add_settings(c, c->metrics.items[m], err));
    }
    return 0;
}

/* ---- pairs of a replay and a model ---------------------------------------------------------- */

int points_of_pairs(struct chart *c, struct err *err)
{
    OWN(free_at) struct inside_point *p = NULL;
    OWN(buf_free) struct buf x = {0}, y = {0};
    double scale, rho;
    int64_t n, kept = 0;
    PASS_ON(metric_list(c->metric, &c->metrics, err));
    if (c->metrics.n != 2)
        return err_set(err, ERR_USAGE,
                       "--metrics: two metrics were expected, one of a replay and one of "
                       "`lacuna eval`, as in cra_mean,kl_mean");
    const char *const *m = (const char *const *)c->metrics.items;
    PASS_ON(inside_points(c->a->set, m[0], m[1], &p, &n, err));
    chart_metric_label(m[0], &x, &scale);
    chart_metric_label(m[1], &y, &scale);
    buf_puts(&x, ", replay");
    buf_puts(&y, ", inside");
    struct chart_panel *panel = chart_panel(c, m[1], buf_str(&x), AXIS_OF_METRIC);
    snprintf(panel->y_name, sizeof panel->y_name, "%s", buf_str(&y));
    c->l.methods = c->a->methods;
    for (int64_t i = 0; i < n; i++) {
        const struct record *r = p[i].first;
        if (!figure_takes(c->a, r))
            continue;
        struct chart_point q = {.series = series_of(&c->l, r->method, r->method, err),
                                .x = p[i].replay,
                                .y = p[i].inside,
                                .text = r->params,
                                .rounding = p[i].inside < chart_rounding(m[1], r)};
        PASS_ON(q.series < 0 ? err->code : chart_add(c, &q, err));
        p[kept++] = p[i];
    }
    if (kept == 0)
        return err_set(
            err, ERR_INPUT,
            "no setting has both %s of a replay and %s of `lacuna eval`: give directories of both, "
            "with the same methods",
            m[0], m[1]);
    PASS_ON(inside_spearman(p, kept, &rho, err));
    buf_printf(&c->says, "%lld settings", (long long)kept);
    if (!isnan(rho))
        buf_printf(&c->says, "; Spearman's rho %.2f", rho);
    return 0;
}
