/*
 * tilecount.h - densities of a mask whose lists have single elements but whose kernel works on
 * tiles.
 *
 * The replay counts tiles at the unit of a mask's lists. A method whose rule is about single pairs,
 * or about pairs in a token order of its own, counts its tiles here and replaces those numbers in
 * its record.
 */
#ifndef LACUNA_TILECOUNT_H
#define LACUNA_TILECOUNT_H

#include "core/mask.h"
#include "core/record.h"

#include <stdint.h>

struct tile_count {
    int64_t bq, bk;
    int64_t kept, allowed; /* bq x bk tiles with a kept pair; with an allowed pair */
    int64_t rect;          /* all tiles of the rectangle */
};

/* Add the rows of m, which start at a multiple of bq. */
int tile_count_add(struct tile_count *t, const struct mask *m, struct err *err);

/* Replace density_tile, the sparsities, pairs_exec and density_exec of a record that already has
 * pairs_allowed: whole tiles are executed, in Q.K and in P.V alike. */
int tile_count_report(const struct tile_count *t, struct record *r, struct err *err);

#endif
