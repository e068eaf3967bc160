/*
 * titles.h - short texts above the panels of a figure that still tell the panels apart.
 */
#ifndef LACUNA_TITLES_H
#define LACUNA_TITLES_H

#include "core/buf.h"

/* A share of something. One that is neither 0 nor 1 is never rounded to them: "<0.001", ">0.999".
 */
void title_share(double x, int digits, char text[16]);

/* The figure's title as a sentence begins: with a capital, unless it begins with a name of the
 * records such as "sd_tri". */
void title_sentence(const char *title, struct buf *out);

/* Leave out the middle of a text longer than `most` characters: "begin...end". */
void title_cut(const char *text, size_t most, struct buf *out);

/* Settings of one panel. */
struct title_params {
    const char *above;  /* what the title says besides, such as the method */
    const char *params; /* "tau=0.9:pv=20"; NULL: none */
    char text[512];     /* what is left of them to tell the panel from others with that `above` */
};

/* Fill the texts, of at most `most` characters each. What all panels share goes to `shared`
 * instead; where it is still too long, parameters that tell no panels apart become "...", the last
 * ones first. */
void title_params(struct title_params *t, int n, size_t most, struct buf *shared);

#endif
