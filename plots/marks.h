/*
 * marks.h - points from elsewhere, such as those that a paper prints, on the axes of a figure.
 */
#ifndef LACUNA_MARKS_H
#define LACUNA_MARKS_H

#include "plots/canvas.h"

struct marks {
    char name[64]; /* in the legend */
    struct xy_mark {
        double x, y; /* as the axes count */
    } * m;           /* owned [n] */
    int n;
};

/* Parse "NAME=X:Y,X:Y"; NULL: no marks. ERR_USAGE for another form. Free also after a failure. */
int marks_parse(const char *text, struct marks *out, struct err *err);
void marks_free(struct marks *k);

/* A block of the data file; behind the blocks before it. */
void marks_data(const struct marks *k, struct buf *b);

/* ", DATA index BLOCK ..." of a plot command, with x moved by `shift`, and the legend's entry: open
 * grey marks, which no method has. Nothing where there are none. */
void marks_plot(const struct marks *k, struct canvas *p, int block, double shift);
void marks_entry(const struct marks *k, struct canvas *p);

#endif
