/*
 * panels.h - a grid of small maps with common axes and one colour bar.
 */
#ifndef LACUNA_PANELS_H
#define LACUNA_PANELS_H

#include "plots/cells.h"
#include "plots/gp.h"

#include <stdbool.h>

/* Pixels around and between the panels. */
struct panels {
    int count, cols, rows;
    int left, right, top, bottom, gap_x, gap_y;
    int64_t cells_x, cells_y; /* of every panel */
    int width, height;        /* of one panel in pixels: whole multiples of the cells */
    int cell;                 /* pixels per cell */
    int room;                 /* pixels per cell that fit: 0 when the size is too small */
    int overhang;             /* of the titles, to either side of a panel */
};

/* Side in pixels at which this many panels are legible. */
int panels_side(int count);

/* Pixels that the shorter side of a panel has in a figure of this size; may be negative. */
int panels_room(int count, int wish, int width, int height);

/* ERR_USAGE with a size that would do, when a requested size leaves less than `least` pixels to a
 * cell, or the panels do not fit into it. */
int panels_check(const struct panels *p, int least, int want_width, int want_height,
                 struct err *err);

/* Lay out `count` panels with `wish` columns (0 = square grid) of cells_x x cells_y cells; side is
 * the wished side of a panel, `chars` the length of the longest panel title. A requested figure
 * size (0 = none) decides instead. */
void panels_layout(struct panels *p, int count, int wish, int64_t cells_x, int64_t cells_y,
                   int side, size_t chars, int want_width, int want_height);

/* Size of the figure; wide enough for its title. */
int panels_total_width(const struct panels *p, const char *title);
int panels_total_height(const struct panels *p);

/* Commands for panel i: margins, and which edges it is on. */
void panels_place(const struct panels *p, int i, struct gp *g, bool *leftmost, bool *lowest);

/* The figure's title above all panels, the names of the axes and of the colour bar: labels that are
 * set before the first panel and unset after it. */
void panels_frame(const struct panels *p, const char *title, const char *x_label,
                  const char *y_label, const char *bar_label, struct gp *g);

/* Place of the colour bar; belongs to the last panel, the others have `unset colorbox`. */
void panels_colorbox(const struct panels *p, struct gp *g);

/* Axes in tokens of map panel i, row 0 on top, tic labels on the outer panels only, and its title.
 */
void panels_token_axes(const struct panels *p, int i, const struct cells *c, const char *title,
                       bool leftmost, bool lowest, struct gp *g);

/* The `binary` clause that reads the cells of panel i, all panels having c's shape, from the data
 * file "<stem>.<tag>", in which every cell stands repeat x repeat times; format: "%float32". */
void panels_image(const struct cells *c, int i, int repeat, const char *tag, const char *format,
                  struct gp *g);

/* Write one value per cell of n maps of one shape, each repeat x repeat times; `put` appends the
 * value of cell k of map i, `size` bytes. */
typedef void panels_put_fn(const void *ctx, int i, int64_t k, struct buf *b);
void panels_cells(const struct cells *c, int n, int repeat, size_t size, panels_put_fn *put,
                  const void *ctx, struct buf *b);

#endif
