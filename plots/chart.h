/*
 * chart.h - what the figures of records share: choice and grouping of cells, series, panels of
 * methods, names and axes of metrics.
 */
#pragma once

#include "analyze/group.h"
#include "analyze/stats.h"
#include "plots/canvas.h"
#include "plots/series.h"

/* The cells that --method, --params, --layers, --heads, --steps, --branch choose, grouped by the
 * scope keys that vary (model, length, ...) and by `keys`. */
struct chart_groups {
    struct figure_cells cells;
    enum group_key scope[KEYS_MAX], keys[KEYS_MAX]; /* keys: scope first */
    int n_scope;
    struct grouping gs;
    struct grouping settings; /* without FIGURE_ALL_CALLS: by scope, method and parameters */
};

/* Most characters of a label in a legend. */
#define LEGEND_CHARS 60

/* More series than these in one panel cannot be told apart: they are split into panels. */
#define FACET_SERIES 8

/* One panel of a chart whose series are split: those of one method (and scope). */
struct chart_facet {
    char title[96];        /* "" where there is but one facet */
    int s[SERIES_MOST], n; /* indices of series */
    int hidden;            /* further settings of the method, which are not drawn */
};

/* Up to `most` series are one facet. Of more, each method (of each scope) is one; where a method
 * has more than FACET_SERIES settings, as many evenly over their order are drawn. */
struct chart_facets {
    struct chart_facet *f; /* owned */
    int n;
    int longest, most; /* characters of the longest label, most series of a facet */
};

/* What a facet's legend calls a series: without the method that its title names. */
const char *chart_facet_label(const struct chart_facets *f, const struct series *s);

/* ---- points from elsewhere, such as those that a paper prints ------------------------------- */

struct marks {
    char name[64]; /* in the legend */
    struct xy_mark {
        double x, y; /* as the axes count */
    } * m;           /* owned [n] */
    int n;
};

/* Parse "NAME=X:Y,X:Y"; NULL: no marks. ERR_USAGE for another form. */
int marks_parse(const char *text, struct marks *out, struct err *err);

/* A block of the data file; behind the blocks before it. */
void marks_data(const struct marks *k, struct buf *b);

/* ", DATA index BLOCK ..." of a plot command, with x moved by `shift`, and the legend's entry: open
 * grey marks, which no method has. Nothing where there are none. */
void marks_plot(const struct marks *k, struct canvas *p, int block, double shift);
void marks_entry(const struct marks *k, struct canvas *p);

/* ---- a figure of records in the making ------------------------------------------------------ */

/* A point, bar or cell of a series in a panel. */
struct chart_point {
    int panel, series;
    double x, y, lo, hi; /* lo: standard deviation or lower quartile; hi: upper one */
    double value;        /* of points: y before rounding errors became 0 */
    double eps;          /* what rounding alone makes of y */
    int scope;           /* of points: only those of one scope are compared */
    bool rounding;       /* y is no more than that */
    bool bound;          /* of points: the method is a bound, which dominates nobody */
    bool dominated;
    const char *text; /* borrowed; NULL: none */
};

/* A metric against something. */
struct chart_panel {
    const char *metric;
    char x_name[96], y_name[96]; /* y_name "": the metric's */
    enum figure_axis axis;       /* of x */
    bool rounding;               /* some values are rounding only */
    double edge[2];              /* of points: the lower edge of a logarithmic x and y axis */
};

#define CHART_PANELS 8

/* Cells of the drawer of grids, a panel for each series. */
struct chart_grid {
    int cols, rows;
    double *v;                        /* owned [panels][rows][cols]; NAN: no cell */
    struct str_list titles;           /* of the panels, of one line or more */
    struct str_list x_names, y_names; /* of columns and rows, in order */
    const char *x_name, *y_name;
    int cell_x, cell_y; /* units wished */
    bool upwards;       /* row 0 is the lowest */
    bool grade;         /* colours from bad to good, over 0 to 1 at least */
};

struct chart {
    const struct figure *f;
    const struct figure_args *a;
    const char *metric;    /* of --metrics, or the figure's own */
    struct chart_groups g; /* of the panel that was collected last */
    struct series_list l;
    struct chart_facets facets;
    struct chart_panel panel[CHART_PANELS];
    int panels;
    struct chart_point *p; /* owned */
    int64_t n, cap;
    struct str_list metrics; /* several metrics of --metrics; owned */
    struct marks marks;
    struct buf title, caption, data;
    struct buf says; /* $s of the title */
    struct canvas canvas;
    int facets_from; /* more series than these are split into facets; 0: FACET_SERIES */
    bool split;      /* a panel for each method always: their x is not the same quantity */
    struct chart_grid grid;
    struct str_list places; /* of bars: tasks; owned */
    bool through;           /* a line leads through several settings of its method */
};

void chart_init(struct chart *c, const struct figure *f, const struct figure_args *a);

/* Group the records by keys into c->g, whatever was there, as the flags of a figure say. Without
 * FIGURE_ALL_CALLS a method that ran some of the chosen calls dense by its own schedule is left
 * with the others, the sparse ones: calls that cost and keep everything say nothing of its masks. A
 * method that ran all of them dense keeps them.
 *
 * No cell left: ERR_INPUT. `metric` (may be NULL) must be in a record, otherwise it is left out;
 * scope keys equal to `without` (KEY_COUNT = none) are not grouped by. */
int chart_regroup(struct chart *c, const char *keys, const char *metric, enum group_key without,
                  unsigned flags, struct err *err);

/* The error where no record is left, or none with the metric (NULL: any). */
int chart_nothing(const struct figure_args *a, const char *metric, struct err *err);

/* "code-lm n_q=2048", the scope of a record; with method and parameters (NULL: none). */
void chart_scope(const struct chart *c, const struct record *r, struct buf *b);
void chart_name(const struct chart *c, const struct record *r, const char *params, struct buf *b);

/* The series of the record's scope, method and `params` (NULL: none); -1 with err set on failure.
 */
int chart_series(struct chart *c, const struct record *r, const char *params, struct err *err);

/* Begin a panel; the points that follow are its own. */
struct chart_panel *chart_panel(struct chart *c, const char *metric, const char *x_name,
                                enum figure_axis axis);
int chart_add(struct chart *c, const struct chart_point *p, struct err *err);

/* A point of what the figure shows of statistics. series < 0: err is set already. */
int chart_add_stats(struct chart *c, int series, double x, const struct stats *s, double scale,
                    struct err *err);

/* Points in the order of panels, series, x and y. */
void chart_sort(struct chart *c);

/* The name of a panel's y axis. */
void chart_y_name(const struct chart_panel *p, struct buf *b);

/* Labels, colours and panels of the series are made once all points are there. */
int chart_series_done(struct chart *c, enum series_tell tell, struct err *err);

/* c->title out of the figure's, and the caption. */
int chart_title(struct chart *c, struct err *err);

/* Ranges, scales and tics of a panel's axes; of a logarithmic x axis alone. */
void chart_axes(const struct chart *c, int panel, struct buf *s);
void chart_log_x(double low, double high, int width, struct buf *s);

void chart_free(struct chart *c);

/* Name of a metric for people with its unit: "pairs kept [kept/allowed pairs]", "time [ms]".
 * *scale: factor to that unit. chart_metric_name: the name alone. */
void chart_metric_label(const char *metric, struct buf *b, double *scale);
void chart_metric_name(const char *metric, struct buf *b);

/* What rounding alone makes of an error or a recall of such a record: 1e-12, or 1e-6 where the
 * reference is not in float64. Times and counts: 0. */
double chart_rounding(const char *metric, const struct record *r);

/* Lower edge of a logarithmic axis whose least value above 0 is this one; INFINITY: there is none.
 */
double chart_log_floor(double least);

/* Split "a,b,c" (no empty parts). */
int metric_list(const char *text, struct str_list *out, struct err *err);

/* ---- what the rows of figures.def name ------------------------------------------------------ */

typedef int drawer(const struct figure *f, const struct figure_args *a, struct err *err);
drawer draw_lines, draw_points, draw_bars, draw_stacks, draw_grid;
drawer draw_heatmap, draw_masks, draw_order, draw_frames;

/* Sources add panels, series and points to a chart. They may fail with ERR_INPUT where the records
 * lack what is drawn. */
typedef int point_source(struct chart *c, struct err *err);

point_source points_by_age;    /* a panel for each metric, a line for each layer */
point_source points_of_values; /* the sorted values of a metric, y: the share at or below */
point_source points_of_names;  /* a metric that is recorded by layer or step: NAME@layer=N */
point_source points_of_sizes;  /* shares below the threshold by side of blocks and slices */
point_source points_of_curve;  /* a metric against a parameter, key or metric */

point_source points_of_settings; /* x against the metrics, a line for each method */
point_source points_of_pairs;    /* a replay's metric against one of the model */

point_source bars_of_key, bars_of_means;

point_source cells_of_heads, cells_of_params, cells_of_prompts;
