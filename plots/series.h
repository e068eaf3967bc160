/*
 * series.h - the lines or bars of a figure: a name that tells each from the others, what the legend
 * says of it, and a style.
 */
#ifndef LACUNA_SERIES_H
#define LACUNA_SERIES_H

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
 * where a label is longer than `most` characters, parameters that tell no settings apart become an
 * ellipsis, and labels that would look alike stay long. */
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

#endif
