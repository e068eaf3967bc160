/*
 * words.h - texts of tokens in place of numbers on the axes of a short part of a map.
 */
#ifndef LACUNA_WORDS_H
#define LACUNA_WORDS_H

#include "plots/cells.h"
#include "plots/figure.h"

/* Tokens of an axis at most: more names cannot be read. */
#define WORDS_MOST 96

/* Units that a token takes on an axis, so that the names of neighbours do not touch. */
#define WORDS_UNITS 12

struct words {
    struct str_list queries, keys; /* of the part; none: numbers */
};

/* The texts of the tokens of a part, where --tokens asks for them. ERR_USAGE where the part is too
 * long, ERR_INPUT where the trace holds no token ids or not those of this tokenizer. */
int words_read(const struct figure_args *a, const struct cells_span *span, struct words *w,
               struct err *err);
void words_free(struct words *w);

/* Room that the longest of a list takes, beyond that of a number. */
int words_room(const struct str_list *l);

/* Tics of the axes of a panel of so many units, after panels_token_axes; as many as have room,
 * which the caption says. */
void words_axes(const struct words *w, const struct cells *c, int width, int height, bool leftmost,
                bool lowest, struct gp *g);

#endif
