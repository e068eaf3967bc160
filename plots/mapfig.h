/*
 * mapfig.h - what the figures of attention maps share: choice of calls and heads, reading, drawing.
 */
#ifndef LACUNA_MAPFIG_H
#define LACUNA_MAPFIG_H

#include "plots/cells.h"
#include "plots/figure.h"
#include "plots/words.h"

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

/* The part that --rows and --keys choose of maps of n_q x n_k tokens; all of them by default. */
int map_part(const struct figure_args *a, int64_t n_q, int64_t n_k, struct cells_span *out,
             struct err *err);

/* How the panels of a figure stand, and so how many cells each has room for. */
struct map_room {
    int panels, per_row; /* 0: a square of panels */
    int lines;           /* of a panel's title; 0: heads of rows and columns */
};
int64_t map_most_cells(const struct figure_args *a, const struct map_room *r);

/* The map of one panel in cells of tokens x tokens, out of q and k (mapcompute.c). */
int map_compute(const struct trace *t, const struct map_panel *p, const struct cells_span *span,
                int64_t tokens, bool mean, struct cells *out, struct err *err);

/* The stored map of one panel as cells of at most `most` per side. A trace without: ERR_INPUT. */
int map_stored(const struct trace *t, const struct map_panel *p, bool mean, int64_t most,
               struct cells *out, struct err *err);

/* The maps of n panels as cells of at most `most` per side: computed from q and k, or the stored
 * ones where they are about as fine, where --map asks for them, and, with a warning, where
 * computing would take minutes. *stored: which it was. No stored maps where they are asked for:
 * ERR_INPUT. */
int map_read(const struct figure_args *a, const struct map_panel *p, int n,
             const struct cells_span *span, int64_t most, struct cells *out, bool *stored,
             struct err *err);

/* ". Cells of 8 x 8 tokens hold ..." for captions. */
void map_caption(const struct figure_args *a, const struct cells *c, bool stored, struct buf *b);

/* Draw maps on the logarithmic scale [low, high] (values below are raised to low; NAN stays blank).
 * overlay, when not NULL, is one kept share per cell of each map: dropped cells are veiled and the
 * kept region is outlined. titles[i], of one line or two, stands above panel i; with heads of rows
 * and columns there are none. */
struct map_figure {
    const struct figure_args *args;
    struct cells *maps, *overlay; /* [n] */
    char (*titles)[96];
    char (*row_heads)[96], (*col_heads)[96]; /* [rows], [per_row]; NULL: titles. Lines as there */
    char (*below)[24];                       /* [n] a number below each panel; or NULL */
    const struct words *words;               /* names of the tokens on the axes; or NULL */
    int n, per_row;
    bool own_axes; /* rows are of different traces: their maps differ in shape */
    const char *title, *caption, *bar_label;
    double low, high;
    bool log;
};
int map_draw(const struct map_figure *f, struct err *err);

/* Edges of an overlay are drawn where cells have so many units. */
#define MAP_EDGE_CELL 4

#endif
