/*
 * growth.c - growth: how the error of a method inside the model grows from layer to layer, or from
 * denoising step to step; a line per setting.
 */
#include "plots/chart.h"

#include "core/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct point {
    double x, y;
};

struct growth {
    struct chart_groups g;
    struct series_list l;
    struct str_list names; /* "err_resid@layer=0", ... */
    const char *metric;
    char over[32]; /* "layer" or "step" */
    bool positive; /* every value is above 0 */
    double least;  /* of the values that are more than rounding */
    bool rounding; /* there are others */
};

static int by_x(const void *a, const void *b)
{
    const struct point *p = a, *q = b;
    return (p->x > q->x) - (p->x < q->x);
}

/* The names of the metric at layers or at steps. */
static int find_names(struct growth *q, struct err *err)
{
    struct buf pattern = {0};
    int rc = 0;

    buf_printf(&pattern, "%s@*=*", q->metric);
    TRY(buf_check(&pattern, "metric", err));
    TRY(recset_metrics(q->g.args->set, buf_str(&pattern), &q->names, err));
    if (q->names.n == 0)
        FAIL(err, ERR_INPUT,
             "no record has %s by layer or step: --metric takes err_resid, err_attn, err_local, "
             "density_elem, x_l2, x_cos, v_l2 of `lacuna eval`",
             q->metric);
    const char *at = strchr(q->names.items[0], '@') + 1;
    snprintf(q->over, sizeof q->over, "%.*s", (int)strcspn(at, "="), at);
out:
    buf_free(&pattern);
    return rc;
}

/* The points of one setting, by x; a name of the other kind (steps among layers) is left out. */
static int collect(const struct growth *q, const struct group *grp, struct point *p, int64_t *n,
                   struct err *err)
{
    int rc = 0;
    *n = 0;
    for (int64_t i = 0; i < q->names.n; i++) {
        const char *at = strchr(q->names.items[i], '@') + 1, *value = strchr(at, '=') + 1;
        struct stats s;
        if (strncmp(at, q->over, strlen(q->over)) != 0)
            continue;
        TRY(group_stats(&q->g.gs, grp, q->names.items[i], &s, NULL, err));
        if (s.n)
            p[(*n)++] = (struct point){strtod(value, NULL), s.mean};
    }
    if (*n)
        qsort(p, (size_t)*n, sizeof *p, by_x);
out:
    return rc;
}

static int write_lines(struct growth *q, struct buf *b, struct err *err)
{
    struct point *p = NULL;
    int64_t n;
    int rc = 0;

    q->positive = true;
    q->least = INFINITY;
    TRY(mem_alloc(&p, q->names.n, sizeof *p, "points", err));
    for (int64_t i = 0; i < q->g.gs.n; i++) {
        const struct record *r = q->g.gs.g[i].first;
        TRY(collect(q, &q->g.gs.g[i], p, &n, err));
        if (n == 0)
            continue;
        int k = chart_series(&q->g, r, r->params, &q->l, err);
        if (k < 0) {
            rc = err->code;
            goto out;
        }
        buf_printf(b, "# %s: %s, %s\n", q->l.s[k].name, q->over, q->metric);
        for (int64_t m = 0; m < n; m++) {
            buf_printf(b, "%.10g %.10g\n", p[m].x, p[m].y);
            q->positive = q->positive && p[m].y > 0;
            if (p[m].y < chart_rounding(q->metric, r))
                q->rounding = true;
            else
                q->least = fmin(q->least, p[m].y);
        }
        buf_puts(b, "\n\n");
    }
    if (q->l.n == 0)
        FAIL(err, ERR_INPUT, "no setting that is left has %s by %s", q->metric, q->over);
    TRY(series_labels(&q->l, LEGEND_CHARS, err));
    series_shade(&q->l, TELL_DASH_POINT);
out:
    free(p);
    return rc;
}

static int render(struct growth *q, const struct buf *data, struct err *err)
{
    struct buf title = {0}, label = {0}, axes = {0};
    double scale;
    int rc = 0;

    chart_metric_label(q->metric, &label, &scale);
    chart_metric_name(q->metric, &title);
    buf_printf(&title, " by %s, method inside the model against exact attention", q->over);
    buf_printf(&axes, "set xtics %g nomirror\n", gp_count_step((double)q->names.n, 12));
    if (q->positive)
        buf_printf(&axes, "set logscale y\nset format y '%s'\n", figure_powers(q->g.args->output));
    if (q->positive && q->rounding)
        buf_printf(&axes, "set yrange [%.6g:*]\n", chart_log_floor(q->least));
    TRY(buf_check(&title, "title", err));
    TRY(buf_check(&axes, "axes", err));
    struct chart_layout layout = {.title = buf_str(&title), .width = 560, .height = 340};
    if (q->positive && q->rounding)
        layout.caption = "Differences that are rounding lie below the lower edge.";
    const struct chart_lines lines = {.l = &q->l,
                                      .x_label =
                                          strcmp(q->over, "step") == 0 ? "denoising step" : q->over,
                                      .y_label = buf_str(&label),
                                      .with = "linespoints",
                                      .axes = buf_str(&axes)};
    TRY(chart_draw_lines(q->g.args, &layout, &lines, data, err));
out:
    buf_free(&title);
    buf_free(&label);
    buf_free(&axes);
    return rc;
}

static int draw(const struct figure_args *a, struct err *err)
{
    static const enum group_key keys[] = {KEY_METHOD, KEY_PARAMS};
    struct growth q = {.metric = a->metric ? a->metric : "err_resid"};
    struct buf data = {0};
    int rc = 0;

    TRY(chart_group(a, keys, 2, 0, NULL, KEY_COUNT, &q.g, err));
    TRY(find_names(&q, err));
    TRY(write_lines(&q, &data, err));
    TRY(buf_check(&data, "points", err));
    TRY(render(&q, &data, err));
out:
    chart_groups_free(&q.g);
    series_free(&q.l);
    str_list_free(&q.names);
    buf_free(&data);
    return rc;
}

const struct figure figure_growth = {
    .listed = {"growth", "growth of the error inside the model, by layer or denoising step",
               "input: records of `lacuna eval`; --metric (err_resid), also err_attn, err_local, "
               "density_elem; of clips x_l2, x_cos, v_l2"},
    .uses = "layer,head,step,branch,method,params,metric",
    .input = FIGURE_RECORDS,
    .draw = draw,
};
