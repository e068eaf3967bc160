/*
 * explain.h - what is behind a number on a page of `lacuna reproduce`.
 */
#ifndef LACUNA_EXPLAIN_H
#define LACUNA_EXPLAIN_H

#include "core/text.h"

#include <stdbool.h>

/* Print value, formula, conditions, records, commands and the printed number of the cell that
 * `what` ("spargeattn:9:HilbertCurve:Sparsity/video-dit") names, from DIR/pages/ID.json; as JSON
 * where asked for. ERR_USAGE with the labels that exist where there is no such cell. */
int explain_print(const struct str_list *dirs, const char *what, bool json, struct err *err);

#endif
