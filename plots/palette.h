/*
 * palette.h - colours: the viridis palette for magnitudes, a diverging one for differences, and one
 * line style per method, so that a method looks the same in every figure.
 */
#ifndef LACUNA_PALETTE_H
#define LACUNA_PALETTE_H

#include "core/buf.h"
#include "core/method.h"

#include <stdbool.h>

void palette_viridis(struct buf *script);
void palette_diverging(struct buf *script);
void palette_grade(bool low_is_good, struct buf *script); /* green is good, red is bad */

struct line_style {
    char color[8]; /* "#rrggbb" */
    int point;     /* gnuplot point type, filled; the hollow one is point - 1 */
    int dash;
};

/* The method that a name stands for: itself, or the one with whose id or alias it begins, whatever
 * the case: "SALE w/o calibration" is sale. `methods`: a NULL-terminated registry, may be NULL. */
const char *style_method(const struct method *const *methods, const char *name);

/* Style of a method: its line of styles.def; else that of style_method; else the colour of some
 * method in a dash of its own. */
struct line_style style_of(const struct method *const *methods, const char *method);

/* The shade of a style for the k-th of n series of one method: the first is the colour itself, the
 * last has the share `most` of white in it. */
void style_shade(struct line_style s, int k, int n, double most, char color[8]);

#endif
