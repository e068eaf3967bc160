/*
 * csv.h - reader for CSV by RFC 4180 (quoted fields, doubled quotes, line breaks inside quotes).
 */
#pragma once

#include "core/err.h"

#include <stdint.h>

struct csv {
    char ***row;    /* [n][n_fields], owned; row[0] is the header */
    int64_t n;      /* rows, the header included */
    int64_t fields; /* of every row */
    char *text;     /* owned: all fields */
};

/* Every row must have as many fields as the header: ERR_INPUT with file and line. */
int csv_read(const char *path, struct csv *out, struct err *err);
void csv_free(struct csv *c);

/* Index of a header field; ERR_INPUT naming it when it is missing. */
int csv_column(const struct csv *c, const char *name, const char *path, int64_t *out,
               struct err *err);
