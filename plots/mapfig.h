/*
 * mapfig.h - what the figures of attention maps share: choice of calls and heads, reading, drawing.
 */
#ifndef LACUNA_MAPFIG_H
#define LACUNA_MAPFIG_H

#include "plots/cells.h"
#include "plots/figure.h"

/* Panels of one figure at most: more cannot be told apart. */
#define MAPFIG_MOST 96

/* One head of one call. */
struct map_panel {
    int64_t call;
    int layer, head; /* the model's number */
    int stored;      /* the trace's */
};

struct map_choice {
    struct map_panel *panel; /* owned */
    int n, per_row;          /* heads per layer */
    int step;
    const char *branch; /* of the trace */
};

/* The calls and heads that --layer, --head, --step, --branch name (all layers and heads of the
 * first captured step and branch by default). No such call: ERR_INPUT with what the trace has. */
int map_choose(const struct figure_args *a, struct map_choice *out, struct err *err);
void map_choice_free(struct map_choice *c);

/* The pooled map of a panel as cells of at most `most` per side. A trace without maps: ERR_INPUT.
 */
int map_read(const struct trace *t, const struct map_panel *p, bool mean, int64_t most,
             struct cells *out, struct err *err);

/* Draw maps on the logarithmic scale [low, high] (values below are raised to low; NAN stays blank).
 * overlay, when not NULL, is one kept share per cell of each map: dropped cells are veiled and the
 * kept region is outlined. titles[i], of one line or two, stands above panel
 * i. */
struct map_figure {
    const struct figure_args *args;
    struct cells *maps, *overlay; /* [n] */
    char (*titles)[96];
    int n, per_row;
    const char *title, *bar_label;
    double low, high;
    bool log;
};
int map_draw(const struct map_figure *f, struct err *err);

#endif
