/*
 * canvas.h - the page of a figure: panels in rows and columns with names of axes, titles and
 * legends. gnuplot places them (`set multiplot layout`); this file says how much room each part
 * has.
 *
 * Lengths are units (gp.h). On a screen the legend stands to the right of the panels. Where a width
 * is given (on paper and slides there is always one), panels go to further rows until they
 * are wide enough, and the legend stands below them.
 */
#pragma once

#include "plots/figure.h"

/* What a page is made from. 0 is the usual value of a member. */
struct canvas_wish {
    const char *title;   /* unless --title gives one; not drawn on paper and slides */
    const char *caption; /* sentences after the title in fig.txt */
    int panels, cols;    /* cols: panels of a row; 0: as many as fit */
    int width, height;   /* of a panel; in a figure of a given width their proportion counts */
    int least;           /* height of a panel that its content needs */
    int left, right, bottom, gap_x, gap_y; /* margins, and room between panels */
    int top, foot;                         /* more room above the first row, below each panel */
    int head_lines;                        /* of the titles above panels */
    int entries, chars;                    /* of a legend: entries, characters of the longest */
    bool each;  /* a legend below each panel or, where cols is given, each row of panels */
    bool exact; /* panels have the size wished, whatever the width of the figure */
};

struct canvas {
    struct gp gp;
    int panels, cols, rows;
    int width, height; /* of a panel */
    int left, top, right, bottom, gap_x, gap_y;
    int key_rows, key_columns; /* of a legend */
    int head, foot; /* of a row of panels: room for titles above it, for axes and legend below */
    int below;      /* room for a legend of all panels below them */
    bool each, key_right;
    int next; /* panels begun */
};

/* Units of a character and of a line of text. */
#define CANVAS_CHAR 7.4
#define CANVAS_LINE 16

/* Width and height of one panel that a figure of a given width (and height) leaves for `exact`
 * panels; INFINITY where they are not given. */
void canvas_room(const struct figure_args *a, const struct canvas_wish *w, double *width,
                 double *height);

/* ERR_USAGE, with a size that would do, when --size or --width leave too little room. */
int canvas_open(const struct figure_args *a, const struct canvas_wish *w, struct canvas *p,
                struct err *err);

/* Begin the next panel: names of its axes and its title, of which NULL and "" are none. */
void canvas_panel(struct canvas *p, const char *x_name, const char *y_name, const char *title);

/* The legend of all panels (or of this one) begins with the entries that follow. */
void canvas_key(struct canvas *p);

/* A block of the data in the panel's plot command, which is begun: ", DATA index BLOCK ...
 * notitle". */
void canvas_plot(struct canvas *p, int block, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* An entry, drawn as `how` says, such as "boxes fs solid". */
void canvas_entry(struct canvas *p, const char *how, const char *label);

/* End the panel's `plot` command; labels, arrows and objects of the panel are taken away. */
void canvas_end(struct canvas *p);

/* The name of all x axes below all panels, and of all y axes to their left; before the panels. */
void canvas_names(struct canvas *p, const char *x_name, const char *y_name);

/* The only colour bar, over [low, high]; belongs to the panel that is begun. */
void canvas_colours(struct canvas *p, double low, double high, bool log, const char *label);

/* Writes the data file "<stem>.dat" (NULL: there is none) and runs gnuplot. */
int canvas_finish(struct canvas *p, const struct buf *data, struct err *err);
void canvas_free(struct canvas *p);

/* Text in lines of at most `chars` characters (rather before a unit in brackets), as a gnuplot
 * string; how many lines that makes. A '\n' ends a line. */
typedef void canvas_word(const struct gp *g, struct buf *b, const char *text); /* gp_text, gp_tic */
void canvas_put(const struct gp *g, struct buf *b, const char *text, int chars, canvas_word *put);
int canvas_count_lines(const char *text, int chars);

/* Characters that so many units have room for. */
int canvas_chars(double room);
