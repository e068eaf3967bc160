/*
 * series.h - the lines or bars of a figure: a name that tells each from the others, what the legend
 * says of it, and a style. A method looks the same in every figure.
 */
#pragma once

#include "core/buf.h"
#include "core/method.h"

#include <stdbool.h>
#include <stdint.h>

/* Most series in one figure: more cannot be told apart. */
#define SERIES_MOST 40

struct series {
    char *name;   /* scope, method, all parameters; owned */
    char *label;  /* the legend's text, see series_labels; owned, NULL before */
    char *scope;  /* "code-lm n_q=2048", NULL when nothing but methods differs; owned */
    char *params; /* NULL when the name has none; owned */
    char method[32];
    bool sparse; /* without the calls that the method ran dense by its schedule */
    char color[8];
    int point, dash;
};

struct series_list {
    struct series *s;                    /* owned */
    int n, most;                         /* most: 0 = SERIES_MOST */
    const struct method *const *methods; /* registry for style_of; may be NULL */
    int64_t cap;
};

/* "code-lm n_q=2048: sale tau=0.02 (sparse calls)"; scope and params may be NULL. */
void series_name(const char *scope, const char *method, const char *params, bool sparse,
                 struct buf *b);

/* Index of the series of this name, added when it is new; -1 with err set when there are too many.
 */
int series_of(struct series_list *l, const char *name, const char *method, struct err *err);

/* The same by its parts; params may be NULL. */
int series_of_setting(struct series_list *l, const char *scope, const char *method,
                      const char *params, bool sparse, struct err *err);
void series_free(struct series_list *l);

/* Labels: the names without parameters that all settings of a method share, when it has several;
 * the middle of a label longer than `most` characters becomes an ellipsis, unless that would make
 * two alike. */
int series_labels(struct series_list *l, int most, struct err *err);

/* Characters of the longest label (or name, where labels were not made). */
int series_longest(const struct series_list *l);
const char *series_label(const struct series *s);

/* Its line with points, for a plot command. */
void series_line(const struct series *s, char how[128]);

/* How series of one method are told apart. */
enum series_tell {
    TELL_SHADE,      /* bars: shades of its colour */
    TELL_DASH,       /* lines whose hollow points mean something: dashes, and shades less apart */
    TELL_DASH_POINT, /* dashes, and hollow points for every second five */
};
void series_shade(struct series_list *l, enum series_tell tell);

/* ---- short texts ---------------------------------------------------------------------------- */

/* A share of something. One that is neither 0 nor 1 is never rounded to them: "<0.001", ">0.999".
 */
void title_share(double x, int digits, char text[16]);

/* The figure's title as a sentence begins: with a capital, unless it begins with a name of the
 * records such as "sd_tri". */
void title_sentence(const char *title, struct buf *out);

/* Leave out the middle of a text longer than `most` characters: "begin...end"; the end is of whole
 * words. */
void title_cut(const char *text, size_t most, struct buf *out);

/* Settings of one panel. */
struct title_params {
    const char *above;  /* what the title says besides, such as the method */
    const char *params; /* "tau=0.9:pv=20"; NULL: none */
    char text[512];     /* what is left of them to tell the panel from others with that `above` */
};

/* Fill the texts, of at most `most` characters each unless that would make two alike. What all
 * panels share goes to `shared` (NULL: nowhere) instead. */
void title_params(struct title_params *t, int n, size_t most, struct buf *shared);

/* ---- colours and styles --------------------------------------------------------------------- */

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
