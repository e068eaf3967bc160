/*
 * gp.h - figures through gnuplot: a script and its data files, kept beside the figure, so that
 * `gnuplot fig.gp` in that directory draws the same picture again.
 */
#pragma once

#include "core/buf.h"
#include "core/err.h"
#include "core/opt.h"

#include <stdbool.h>
#include <stdint.h>

/* GP_TEX: cairolatex, text for LaTeX in fig.tex and lines in fig.pdf. */
enum gp_type { GP_PNG, GP_SVG, GP_PDF, GP_EPS, GP_TEX };

enum gp_look { LOOK_SCREEN, LOOK_PAPER, LOOK_SLIDE };

/* How a figure looks; zeroed: as on a screen. Sizes of a figure are in units: text has a height of
 * 13.3 of them, whatever the size of its letters is, so that every layout holds in every style. */
struct gp_style {
    enum gp_look look;
    double font_pt;   /* 0: 10 (vector files 9), on paper 8, on slides 18 */
    const char *font; /* NULL: Sans; borrowed */
};

/* Units of an inch; pixels of a unit (of vector files 1). */
double gp_units_per_inch(enum gp_type type, const struct gp_style *s);
double gp_pixels_per_unit(enum gp_type type, const struct gp_style *s);

/* Units of a side of a figure, and pixels. */
enum { GP_SIDE_LEAST = 64, GP_SIDE_MOST = 16384 };

struct gp {
    enum gp_type type;
    int width, height; /* units */
    struct gp_style style;
    struct buf caption;  /* what the figure shows, for "fig.txt": sentences */
    struct buf script;   /* commands after terminal and output: append with buf_printf; points are
                          * `ps X*point_scale` */
    char dir[3000];      /* directory of the figure, "." when none was named */
    char file[256];      /* "fig.png" */
    bool staged;         /* files are in the making */
    bool replaces;       /* a picture is there already */
    const char *made_by; /* command line that made the figure, a comment of the script; borrowed */
    const struct str_list *inputs; /* files that must not be written; NULL = none; borrowed */
};

/* Start a figure. The suffix of path chooses the terminal; another than those of enum gp_type is
 * ERR_USAGE, and so are sizes outside GP_SIDE_LEAST..GP_SIDE_MOST. style may be NULL. */
int gp_open(struct gp *g, const char *path, int width, int height, const struct gp_style *style,
            struct err *err);
void gp_free(struct gp *g);

/* Append text as a gnuplot string that no text can leave: in single quotes, where gnuplot runs
 * nothing and reads no escapes, or in double quotes with octal escapes when it has a quote itself.
 * Line breaks and tabs become spaces, what is unsafe to show (core/utf8.h) is escaped. Use it
 * together with `noenhanced`. For LaTeX its characters are escaped too. */
void gp_text(const struct gp *g, struct buf *b, const char *text);

/* The same for the label of a tic, which is a number format for gnuplot. */
void gp_tic(const struct gp *g, struct buf *b, const char *text);

/* A word of a command line as a shell reads it back: quoted when it needs to be. */
void shell_word(const char *word, struct buf *b);

/* ERR_USAGE unless the name ends like one of enum gp_type and has no control characters. */
int gp_check_name(const char *path, enum gp_type *type, struct err *err);

/* Write a data file "<stem>.<tag>"; it takes its place beside the figure with gp_finish. A file of
 * the figure that is one of its inputs is ERR_USAGE. gp_data_name appends the name to the script as
 * a string. */
int gp_data(struct gp *g, const char *tag, const void *data, size_t len, struct err *err);
void gp_data_name(struct gp *g, const char *tag);

/* Write the script "<stem>.gp" and, where there is a caption, "<stem>.txt", and run it. When
 * gnuplot ended well and the picture is not empty, script, data and picture take their places
 * together. Otherwise a picture that is already there keeps its script and data; where none is, the
 * new ones take their places all the same. gnuplot missing: ERR_MACHINE; a script error: ERR_RUN
 * with gnuplot's message. SIGINT or SIGTERM: ERR_INTERRUPTED, and nothing is left. */
int gp_finish(struct gp *g, struct err *err);

/* Tics of a linear axis 0..n: a step of 1, 2 or 5 times a power of ten with at most `most` tics;
 * on a token axis the step is a power of two, on one that counts (layers, heads, steps) a whole
 * number. */
double gp_step(double n, int most);
int64_t gp_token_step(int64_t n, int most);
double gp_count_step(double n, int most);
