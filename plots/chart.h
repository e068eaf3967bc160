/*
 * chart.h - what the figures of records share: choice and grouping of cells, axes, panels side by
 * side with one legend.
 */
#ifndef LACUNA_CHART_H
#define LACUNA_CHART_H

#include "analyze/group.h"
#include "plots/figure.h"
#include "plots/series.h"

/* The cells that --method, --params, --layer, --head, --step, --branch choose, grouped by the scope
 * keys that vary (model, length, ...) and by `keys`. */
struct chart_groups {
    const struct figure_args *args;
    int64_t *layers, *heads; /* owned */
    int64_t n_layers, n_heads;
    enum group_key scope[KEYS_MAX], keys[KEYS_MAX]; /* keys: scope first */
    int n_scope, n_keys;
    struct grouping gs;
    struct grouping settings; /* with GROUP_SPLIT_STEPS: by scope, method and parameters */
};

/* With GROUP_SPLIT_STEPS a method that ran some of the chosen calls dense by its own schedule is
 * left with the others, the sparse ones: calls that cost and keep everything say nothing of its
 * masks. A method that ran all of them dense keeps them.
 *
 * No cell left: ERR_INPUT. `metric` (may be NULL) must be in a record, otherwise it is left out;
 * scope keys equal to `without` (KEY_COUNT = none) are not grouped by. */
int chart_group(const struct figure_args *a, const enum group_key *keys, int n_keys, unsigned flags,
                const char *metric, enum group_key without, struct chart_groups *out,
                struct err *err);
void chart_groups_free(struct chart_groups *c);

/* "heads of 6 layers and up to 4 steps": what a group's mean is taken over; groups may differ. */
void chart_over(const struct chart_groups *c, struct buf *b);

/* "code-lm, 2048: sale tau=0.02": scope, method, parameters (params NULL: none). */
void chart_name(const struct chart_groups *c, const struct record *r, const char *params,
                struct buf *b);

/* The series of the record's scope, method and `params` (NULL: none); -1 with err set on failure.
 */
int chart_series(const struct chart_groups *c, const struct record *r, const char *params,
                 struct series_list *l, struct err *err);

/* Most characters of a label in a legend to the right. */
#define LEGEND_CHARS 60

/* Panels side by side. */
struct chart {
    struct gp gp;
    int panels, width, height; /* of one panel's plotting area in pixels */
    int left, gap, top, bottom, legend;
};

/* What a chart needs: a plotting area per panel as wished, margins of which 0 is the usual one. */
struct chart_layout {
    const char *title; /* unless --title gives one */
    int panels, width, height;
    int left, gap, legend;
    int lines; /* of the longest legend: lower than that no panel may be */
};

/* Room for the legend of a list of series. */
void chart_legend_room(const struct series_list *l, struct chart_layout *out);

/* Width of a panel's plotting area that chart_open will give. */
int chart_panel_width(const struct figure_args *a, const struct chart_layout *l);

/* ERR_USAGE, with a size that would do, when --size leaves too little for panels or legend. */
int chart_open(const struct figure_args *a, const struct chart_layout *l, struct chart *c,
               struct err *err);

/* Margins and state of panel i; the legend is drawn in the last one. */
void chart_panel(struct chart *c, int i, const char *x_label, const char *y_label);

/* The legend to the right of panel i, for panels with legends of their own. */
void chart_key(struct chart *c, int i);

/* ", keyentry ..." for every series, with lines and points or with boxes. */
enum chart_mark { MARK_LINE_POINT, MARK_BOX };
void chart_legend(struct chart *c, const struct series_list *l, enum chart_mark mark);

/* Close: writes the data file "<stem>.dat" and runs gnuplot. */
int chart_finish(struct chart *c, const struct buf *data, struct err *err);
void chart_free(struct chart *c);

/* Name of a metric (metric_title) with its unit, for axes: "err_lse_mean [nat]", "time_total [ms]".
 * *scale: factor to that unit. */
void chart_metric_label(const char *metric, struct buf *b, double *scale);

/* Split "a,b,c" (no empty parts). */
int metric_list(const char *text, struct str_list *out, struct err *err);

#endif
