/*
 * insidefig.c - inside: a replay's metric against a metric of the model with the method inside, a
 * point per setting: does the cheap replay predict the expensive run?
 */
#include "plots/chart.h"

#include "analyze/inside.h"
#include "analyze/metricfacts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct scatter {
    const struct figure_args *a;
    struct str_list metrics;
    struct inside_point *p; /* owned */
    int64_t n;
    struct series_list l;
    double edge[2]; /* of x and y, for points beyond it; -1e300 where there is none */
};

/* Points of the methods that are chosen, a series per method. */
static int collect(struct scatter *q, struct buf *b, struct err *err)
{
    int64_t kept = 0;
    int rc = 0;

    TRY(inside_points(q->a->set, q->metrics.items[0], q->metrics.items[1], &q->p, &q->n, err));
    for (int64_t i = 0; i < q->n; i++)
        if (figure_takes(q->a, q->p[i].first))
            q->p[kept++] = q->p[i];
    q->n = kept;
    if (q->n == 0)
        FAIL(
            err, ERR_INPUT,
            "no setting has both %s of a replay and %s of `lacuna eval`: give directories of both, "
            "with the same methods",
            q->metrics.items[0], q->metrics.items[1]);
    q->l.methods = q->a->methods;
    for (int64_t i = 0; i < q->n; i++) {
        const struct record *r = q->p[i].first;
        bool starts = i == 0 || strcmp(q->p[i - 1].first->method, r->method) != 0;
        if (starts && series_of(&q->l, r->method, r->method, err) < 0) {
            rc = err->code;
            goto out;
        }
        buf_printf(b, "%s", starts && i ? "\n\n" : "");
        if (starts)
            buf_printf(b, "# %s: %s of the replay, %s inside, parameters\n", r->method,
                       q->metrics.items[0], q->metrics.items[1]);
        buf_printf(b, "%.10g %.10g \"%s\"\n", q->p[i].replay, q->p[i].inside, r->params);
    }
    buf_puts(b, "\n");
    TRY(series_labels(&q->l, LEGEND_CHARS, err));
out:
    return rc;
}

static double value_of(const struct inside_point *p, int side)
{
    return side ? p->inside : p->replay;
}

static bool log_axis(const struct scatter *q, int side)
{
    const char *metric = q->metrics.items[side];
    bool positive = metric_axis(metric) == AXIS_LOG || strncmp(metric, "nll_delta", 9) == 0;
    for (int64_t i = 0; i < q->n; i++)
        positive = positive && value_of(&q->p[i], side) > 0;
    return positive;
}

/* A logarithmic axis ends below the least value that is more than rounding; what is less is drawn
 * on its edge. */
static void set_axis(struct scatter *q, int side, struct gp *g)
{
    const char *name = side ? "y" : "x", *metric = q->metrics.items[side];
    double least = INFINITY;
    bool cut = false;
    q->edge[side] = -1e300;
    if (!log_axis(q, side))
        return;
    for (int64_t i = 0; i < q->n; i++) {
        double x = value_of(&q->p[i], side);
        bool rounding = x < chart_rounding(metric, q->p[i].first);
        least = rounding ? least : fmin(least, x);
        cut |= rounding;
    }
    buf_printf(&g->script, "set logscale %s\nset format %s '%s'\n", name, name,
               figure_powers(q->a->output));
    if (!cut)
        return;
    q->edge[side] = chart_log_floor(least);
    buf_printf(&g->script, "set %srange [%.6g:*]\n", name, q->edge[side]);
    buf_printf(&g->caption, " Differences that are rounding lie on the %s edge.",
               side ? "lower" : "left");
}

static int title_of(const struct scatter *q, struct buf *title, struct err *err)
{
    double rho;
    int rc = inside_spearman(q->p, q->n, &rho, err);
    if (rc)
        return rc;
    buf_printf(title, "Replay against the model with the method inside, %lld settings",
               (long long)q->n);
    if (!isnan(rho))
        buf_printf(title, "; Spearman's rho %.2f", rho);
    return buf_check(title, "title", err);
}

static int render(struct scatter *q, const struct buf *data, struct err *err)
{
    struct chart c = {0};
    struct buf title = {0}, x = {0}, y = {0};
    double scale;
    int rc = 0;

    TRY(title_of(q, &title, err));
    struct chart_layout layout = {
        .title = buf_str(&title), .panels = 1, .width = 480, .height = 360};
    chart_legend_room(&q->l, &layout);
    TRY(chart_open(q->a, &layout, &c, err));
    chart_metric_label(q->metrics.items[0], &x, &scale);
    chart_metric_label(q->metrics.items[1], &y, &scale);
    buf_puts(&x, ", replay");
    buf_puts(&y, ", inside");
    chart_panel(&c, 0, buf_str(&x), buf_str(&y));
    struct buf *s = &c.gp.script;
    set_axis(q, 0, &c.gp);
    set_axis(q, 1, &c.gp);
    for (int i = 0; i < q->l.n; i++) {
        buf_puts(s, i ? ", " : "plot ");
        gp_data_name(&c.gp, "dat");
        buf_printf(s,
                   " index %d using ($1<%.6g?%.6g:$1):($2<%.6g?%.6g:$2) with points pt %d ps "
                   "1.2*point_scale lc rgb '%s' notitle",
                   i, q->edge[0], q->edge[0], q->edge[1], q->edge[1], q->l.s[i].point,
                   q->l.s[i].color);
    }
    chart_legend(&c, &q->l);
    chart_end(&c);
    TRY(chart_finish(&c, data, err));
out:
    chart_free(&c);
    buf_free(&title);
    buf_free(&x);
    buf_free(&y);
    return rc;
}

static int draw(const struct figure_args *a, struct err *err)
{
    struct scatter q = {.a = a};
    struct buf data = {0};
    int rc = 0;

    TRY(metric_list(a->metric ? a->metric : "err_l2_rel,nll_delta", &q.metrics, err));
    if (q.metrics.n != 2)
        FAIL(err, ERR_USAGE,
             "--metric: two metrics were expected, one of a replay and one of "
             "`lacuna eval`, as in cra_mean,kl_mean");
    TRY(collect(&q, &data, err));
    TRY(buf_check(&data, "points", err));
    TRY(render(&q, &data, err));
out:
    str_list_free(&q.metrics);
    free(q.p);
    series_free(&q.l);
    buf_free(&data);
    return rc;
}

const struct figure figure_inside = {
    .listed = {"inside", "a replay's metric against one of the model with the method inside",
               "input: records of a replay and of `lacuna eval`; --metric REPLAY,INSIDE "
               "(err_l2_rel,nll_delta)"},
    .uses = "method,params,metric",
    .input = FIGURE_RECORDS,
    .draw = draw,
};
