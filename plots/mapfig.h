/*
 * mapfig.h - figures of attention maps and masks: panels (maps.c), their cells (mapread.c,
 * mapcompute.c) and the picture (mapfig.c).
 */
#ifndef LACUNA_MAPFIG_H
#define LACUNA_MAPFIG_H

#include "plots/canvas.h"
#include "plots/cells.h"
#include "plots/words.h"

/* Panels of one figure at most: more cannot be told apart. */
#define MAPFIG_MOST 96

/* One head of one call. */
struct map_panel {
    int64_t call;
    int layer, head; /* the model's number */
    int stored;      /* the trace's */
};

/* The part that --rows and --keys choose of maps of n_q x n_k tokens; all of them by default. */
int map_part(const struct figure_args *a, int64_t n_q, int64_t n_k, struct cells_span *out,
             struct err *err);

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

/* One panel of a figure of maps. */
struct map {
    struct map_panel p;
    int step;
    int trace;     /* number of its trace; -1: none, the mask alone */
    int64_t mask;  /* cell of the file of masks; -1: none */
    char row[160]; /* what tells its row of panels from others, and its column */
    char col[64];
    char below[24];           /* a number below the panel; "": none */
    struct cells cells, veil; /* veil: kept shares over the cells, where v is not NULL */
};

/* A figure of maps: panels in rows and columns. */
struct map_figure {
    const struct figure_args *a;
    struct map *m; /* owned */
    int64_t n, cap;
    struct words words;
    struct buf title, caption;
    bool shares;   /* kept shares from 0 to 1 instead of weights on a logarithmic scale */
    bool own_axes; /* rows are of different traces: their maps differ in shape */
    struct canvas canvas;
};

/* Lay the panels out, read their cells and draw them. */
int map_draw(struct map_figure *f, struct err *err);
void map_free(struct map_figure *f);

/* The cell of sample s of an axis of n tokens in cells of so many. */
int64_t map_cell_at(int64_t s, int64_t samples, int64_t n, int64_t tokens);

/* Edges of an overlay are drawn where cells have so many units. */
#define MAP_EDGE_CELL 4

#endif
