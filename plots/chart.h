/*
 * chart.h - what the figures of records share: choice and grouping of cells, series with a name and
 * a style, axes, panels side by side with one legend.
 */
#ifndef LACUNA_CHART_H
#define LACUNA_CHART_H

#include "analyze/group.h"
#include "plots/figure.h"

/* Most series in one figure: more cannot be told apart. */
#define CHART_MOST 40

/* The cells that --method, --params, --layer, --head, --step, --branch choose, grouped by the scope
 * keys that vary (model, length, ...) and by `keys`. */
struct chart_groups {
    const struct figure_args *args;
    int64_t *layers, *heads; /* owned */
    int64_t n_layers, n_heads;
    enum group_key scope[KEYS_MAX], keys[KEYS_MAX]; /* keys: scope first */
    int n_scope, n_keys;
    struct grouping gs;
};

/* No cell left: ERR_INPUT. `metric` (may be NULL) must be in a record, otherwise it is left out;
 * scope keys equal to `without` (KEY_COUNT = none) are not grouped by. */
int chart_group(const struct figure_args *a, const enum group_key *keys, int n_keys, unsigned flags,
                const char *metric, enum group_key without, struct chart_groups *out,
                struct err *err);
void chart_groups_free(struct chart_groups *c);

/* "code-lm, 2048: sale tau=0.02": scope, method, parameters (params NULL: none). */
void chart_name(const struct chart_groups *c, const struct record *r, const char *params,
                struct buf *b);

/* One line, or one set of bars. */
struct series {
    char *name; /* owned */
    char method[32];
    char color[8];
    int point, dash;
};

struct series_list {
    struct series *s; /* owned */
    int n;
    int64_t cap;
};

/* Index of the series of this name, added when it is new; -1 with err set when there are too many.
 */
int series_of(struct series_list *l, const char *name, const char *method, struct err *err);
void series_free(struct series_list *l);

/* Give series of one method different shades of its colour and, with `dashes`, dash types; without,
 * all lines are solid. */
void series_shade(struct series_list *l, bool dashes);

/* Panels side by side. */
struct chart {
    struct gp gp;
    int panels, width, height; /* of one panel's plotting area in pixels */
    int left, gap, top, bottom, legend;
};

/* panel_w x panel_h: wished plotting area. */
int chart_open(const struct figure_args *a, int panels, int panel_w, int panel_h,
               const struct series_list *legend, const char *title, struct chart *c,
               struct err *err);

/* Margins and state of panel i; the legend is drawn in the last one. */
void chart_panel(struct chart *c, int i, const char *x_label, const char *y_label);

/* ", keyentry ..." for every series, with lines, points or boxes. */
enum chart_mark { MARK_LINE_POINT, MARK_LINE, MARK_BOX };
void chart_legend(struct chart *c, const struct series_list *l, enum chart_mark mark);

/* Close: writes the data file "<stem>.dat" and runs gnuplot. */
int chart_finish(struct chart *c, const struct buf *data, struct err *err);
void chart_free(struct chart *c);

/* Name of a metric with its unit, for axes: "err_lse_mean [nat]". *scale: factor to that unit. */
void chart_metric_label(const char *metric, struct buf *b, double *scale);

/* Is larger better (recall, cosine, speed) or smaller (errors, times, densities)? */
bool metric_larger_is_better(const char *metric);

/* Does the metric live on a logarithmic axis (errors, times)? */
bool metric_is_log(const char *metric);

/* Split "a,b,c" (no empty parts). */
int metric_list(const char *text, struct str_list *out, struct err *err);

/* The first metric of the comma-separated list that some ok record has, NULL if none. */
const char *first_present(const struct recset *set, const struct str_list *names);

#endif
