/*
 * panels.h - a grid of small maps with common axes and one colour bar.
 */
#ifndef LACUNA_PANELS_H
#define LACUNA_PANELS_H

#include "plots/cells.h"
#include "plots/gp.h"

#include <stdbool.h>

/* Characters of a line of a title for which there is room above a panel of this side; a requested
 * width of the figure decides instead. */
size_t panels_title_room(int count, int wish, int side, int width);

/* What a grid of panels is made from. */
struct panels_wish {
    int count, cols;         /* cols 0 = square grid */
    double cells_x, cells_y; /* of every panel; the last cell may be part of one */
    int side;                /* wished pixels of a panel's longer side */
    int chars, lines;        /* of the titles above the panels: longest line, lines */
    bool heads;              /* of rows and columns instead of titles (panels_heads) */
    bool below;              /* a line of text below each panel */
    bool own_axes;           /* every row has the numbers of its own x axis */
    int left, bottom;        /* more room for the tics of the axes */
    bool untitled;           /* the figure has no title */
    double pixels;           /* of the picture to a unit; 0 = 1. More than 1: cells may be smaller
                              * than a unit */
    int bar_chars;           /* of the colour bar's label */
    int width, height;       /* requested size of the figure, which then decides; 0 = none; the
                              * height alone may be 0 */
};

/* Pixels around and between the panels. */
struct panels {
    int count, cols, rows;
    int left, right, top, bottom, gap_x, gap_y;
    int width, height; /* of one panel in pixels: whole multiples of whole cells */
    int cell;          /* whole units per cell */
    int room;          /* pixels of the picture per cell that fit: 0 when the size is too small */
    bool heads;
    int overhang; /* of the titles, over the colour bar's place */
};

/* Side in pixels at which this many panels are legible. */
int panels_side(int count);

/* Pixels that the shorter side of a panel has in a figure of this size (the height may be 0: any),
 * its titles having this many lines, 0: heads of rows and columns; may be negative. */
int panels_room(int count, int wish, int lines, int width, int height);

/* ERR_USAGE with a size that would do, when a requested size leaves less than `least` pixels to a
 * cell, or the panels do not fit into it. */
int panels_check(const struct panels *p, int least, int want_width, int want_height,
                 struct err *err);

/* Lay out panels. One that would be too low or narrow to read, such as a map of one row of cells,
 * is stretched: the figure has room for its axes and for the whole label of the colour bar. */
void panels_layout(struct panels *p, const struct panels_wish *want);

/* Size of the figure; wide enough for its title. */
int panels_total_width(const struct panels *p, const char *title);
int panels_total_height(const struct panels *p);

/* Commands for panel i: margins, and which edges it is on. */
void panels_place(const struct panels *p, int i, struct gp *g, bool *leftmost, bool *lowest);

/* Begin the panels: their style, then the figure's title above all of them, the names of the axes
 * and of the colour bar, which are labels that are set before the first panel and unset after it.
 */
void panels_frame(const struct panels *p, const char *title, const char *x_label,
                  const char *y_label, const char *bar_label, struct gp *g);

/* Place of the colour bar and its tics over [low, high]; belongs to the last panel, the others have
 * `unset colorbox`. */
void panels_colorbox(const struct panels *p, double low, double high, bool log, struct gp *g);

/* Titles of panels have one line or two, with a '\n' between them: the number of lines, and the
 * length of the longest. */
void panels_titles(const char (*titles)[96], int n, int *chars, int *lines);
void panels_title(const char *title, struct gp *g);

/* Axes in tokens of map panel i, row 0 on top, tic labels on the outer panels only, and its title.
 */
void panels_token_axes(const struct panels *p, int i, const struct cells *c, const char *title,
                       bool leftmost, bool lowest, struct gp *g);

/* For panel i the heads of its column, in the first row, and of its row, in the first column; a
 * head has one line or two. Text below a panel. */
void panels_heads(const struct panels *p, int i, char (*rows)[96], char (*cols)[96], struct gp *g);
void panels_below(const struct panels *p, int i, const char *text, struct gp *g);

/* Samples of a panel's image. They are its cells, each repeat x repeat times; on an axis that ends
 * within a cell, or has only one, they are pixels instead: gnuplot neither clips the cells of an
 * image nor draws a single row of them. */
struct panels_samples {
    int64_t x, y;
};
struct panels_samples panels_sampling(const struct panels *p, const struct cells *c, int repeat);

/* The `binary` clause that reads the samples of panel i, of c's shape, from the data file
 * "<stem>.<tag>", where all panels have so many samples; format: "%float32". */
void panels_image(const struct cells *c, int i, struct panels_samples n, const char *tag,
                  const char *format, struct gp *g);

/* Write the samples of the maps c[n]; `put` appends the value of cell k of map i. */
typedef void panels_put_fn(const void *ctx, int i, int64_t k, struct buf *b);
void panels_cells(const struct cells *c, int n, struct panels_samples s, panels_put_fn *put,
                  const void *ctx, struct buf *b);

#endif
