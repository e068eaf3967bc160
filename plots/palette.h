/*
 * palette.h - colours: the viridis palette for magnitudes, a diverging one for differences, and one
 * line style per method, fixed by its name, so that a method looks the same in every figure.
 */
#ifndef LACUNA_PALETTE_H
#define LACUNA_PALETTE_H

#include "core/buf.h"

void palette_viridis(struct buf *script);
void palette_diverging(struct buf *script);

struct line_style {
    const char *color; /* "#rrggbb" */
    int point;         /* gnuplot point type, filled; the hollow one is point - 1 */
    int dash;
};

/* Style of a method; a name that styles.def does not list gets one from its hash. */
struct line_style style_of(const char *method);

/* The shade of a style for the k-th of n series of one method: the first is the colour itself, the
 * last has the share `most` of white in it. */
void style_shade(struct line_style s, int k, int n, double most, char color[8]);

#endif
