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

/* Sets and returns ERR_INPUT: no record is left, or none with the metric (NULL: any), with the name
 * of a recorded one that was meant. */
int chart_nothing(const struct figure_args *a, const char *metric, struct err *err);

/* "heads of 6 layers and up to 4 steps", "10 texts or prompts": what a group's mean is taken over;
 * groups may differ. Texts count that have one of the metrics; NULL: the groups' records all have
 * what is drawn. */
void chart_over(const struct chart_groups *c, const struct str_list *metrics, struct buf *b);

/* "code-lm, 2048: sale tau=0.02": scope, method, parameters (params NULL: none). */
void chart_name(const struct chart_groups *c, const struct record *r, const char *params,
                struct buf *b);

/* The series of the record's scope, method and `params` (NULL: none); -1 with err set on failure.
 */
int chart_series(const struct chart_groups *c, const struct record *r, const char *params,
                 struct series_list *l, struct err *err);

/* Most characters of a label in a legend. */
#define LEGEND_CHARS 60

/* More series than these in one panel cannot be told apart: they are split into panels. */
#define FACET_SERIES 8

/* One panel of a chart whose series are split: those of one method (and scope). */
struct chart_facet {
    char title[96];         /* "" where there is but one facet */
    int s[FACET_SERIES], n; /* indices of series */
    int hidden;             /* further settings of the method, which are not drawn */
};

/* Few series are one facet, unless they are to be split. Of more, each method (of each scope) is
 * one; where a method has more than FACET_SERIES settings, as many evenly over their order are
 * drawn. */
struct chart_facets {
    struct chart_facet *f; /* owned */
    int n;
    int longest, most; /* characters of the longest label, most series of a facet */
};
int chart_facets_make(const struct series_list *l, bool split, struct chart_facets *out,
                      struct err *err);
void chart_facets_free(struct chart_facets *f);

/* What a facet's legend calls a series: without the method that its title names. */
const char *chart_facet_label(const struct chart_facets *f, const struct series *s);

/* Sentences for the caption: what is grey, what was left out. */
void chart_facets_note(const struct chart_facets *f, const struct series_list *l, bool grey,
                       struct buf *b);

/* Where a legend stands. */
enum key_place {
    KEY_RIGHT,      /* one for all panels, to the right of the first row */
    KEY_BELOW,      /* one for all panels, in columns below them */
    KEY_EACH_RIGHT, /* one per row of panels, right of it */
    KEY_EACH_BELOW, /* one per panel, below it */
};

/* Panels in rows. Lengths are units (gp.h). */
struct chart {
    struct gp gp;
    int panels, cols, rows;
    int width, height; /* of one panel's plotting area */
    int left, gap, top, head, bottom;
    int legend, legend_lines, least, below;
    enum key_place key;
    bool narrow; /* of a given width: the height follows */
    int key_columns;
    struct buf entries;                 /* of the legend of the panel that is being drawn */
    int key_x, key_y, key_w, key_lines; /* the place of a legend below */
};

/* What a chart needs: a plotting area per panel as wished, margins of which 0 is the usual one. */
struct chart_layout {
    const char *title;   /* unless --title gives one; not drawn on paper and slides */
    const char *caption; /* sentences after the title in fig.txt; NULL: none */
    int panels, width, height;
    int least; /* height that the panels' content needs; 0: what a legend does */
    int cols;  /* panels of a row; 0: as many as fit */
    int left, gap, legend;
    int lines;  /* of a legend: lower than that no panel may be beside one */
    int below;  /* room below the panels of a figure of a given width, such as for a colour bar */
    bool each;  /* legends of their own: of every panel or, with cols, of every row */
    bool heads; /* titles above the panels */
};

/* Room for the legend of a list of series; of facets. */
void chart_legend_room(const struct series_list *l, struct chart_layout *out);
void chart_facets_room(const struct chart_facets *f, struct chart_layout *out);

/* Width of a panel's plotting area that chart_open will give. */
int chart_panel_width(const struct figure_args *a, const struct chart_layout *l);

/* ERR_USAGE, with a size that would do, when --size leaves too little for panels or legend. */
int chart_open(const struct figure_args *a, const struct chart_layout *l, struct chart *c,
               struct err *err);

/* Margins and state of panel i; a legend for all is drawn in the last one, others at chart_key. */
void chart_panel(struct chart *c, int i, const char *x_name, const char *y_name);

/* A title above panel i, and its own legend. */
void chart_head(struct chart *c, int i, const char *title);
void chart_key(struct chart *c, int i);

/* After `plot`: the legend's entries, the end of the line; what is drawn once is taken away. */
void chart_end(struct chart *c);

/* Entries of the legend, which chart_end draws: every series, or one under a name, with lines and
 * points; chart_entry_as: drawn as `how` says, such as "boxes fs solid". */
void chart_legend(struct chart *c, const struct series_list *l);
void chart_entry(struct chart *c, const struct series *s, const char *label);
void chart_entry_as(struct chart *c, const char *how, const char *label);

/* Draw line charts: a block of the data per series, x in column 1, y in column 2. */
struct marks;
struct chart_lines {
    const struct series_list *l;
    const char *x_label, *y_label;
    const char *with;          /* "linespoints", or "steps" with marks of their own */
    const char *axes;          /* commands before every panel */
    const int64_t *rows;       /* of the blocks, for marks of steps; else NULL */
    const struct marks *marks; /* a last block of the data; NULL: none */
    bool through;              /* a line leads through several settings of its method */
    bool split;                /* a panel per method always: their x is not the same quantity */
};
int chart_draw_lines(const struct figure_args *a, struct chart_layout *layout,
                     const struct chart_lines *d, const struct buf *data, struct err *err);

/* Close: writes the data file "<stem>.dat" and runs gnuplot. */
int chart_finish(struct chart *c, const struct buf *data, struct err *err);
void chart_free(struct chart *c);

/* Name of a metric for people with its unit: "pairs kept [kept/allowed pairs]", "time [ms]".
 * *scale: factor to that unit. chart_metric_name: the name alone. */
void chart_metric_label(const char *metric, struct buf *b, double *scale);
void chart_metric_name(const char *metric, struct buf *b);

/* gnuplot's range of an axis of the metric: shares end at 1, what is never negative begins at 0;
 * shares that had better be large, most of which are near 1, begin where their data do. */
const char *chart_range(const char *metric);

/* What rounding alone makes of an error or a recall of such a record: 1e-12, or 1e-6 where the
 * reference is not in float64. Times and counts: 0. */
double chart_rounding(const char *metric, const struct record *r);

/* Lower edge of a logarithmic axis whose least value above 0 is this one; INFINITY: there is none.
 */
double chart_log_floor(double least);

/* Split "a,b,c" (no empty parts). */
int metric_list(const char *text, struct str_list *out, struct err *err);

#endif
