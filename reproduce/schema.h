/*
 * schema.h - the form of a JSON file, as tables of fields. What a table does not know is an error,
 * because a misspelt field would silently change what a page says.
 */
#ifndef LACUNA_REPRODUCE_SCHEMA_H
#define LACUNA_REPRODUCE_SCHEMA_H

#include "core/json.h"

#include <stdbool.h>

enum field_type {
    FIELD_ANY,
    FIELD_TEXT,
    FIELD_NUMBER,
    FIELD_COUNT, /* an integer from 1 on */
    FIELD_FLAG,
    FIELD_TEXTS,   /* a list of texts */
    FIELD_RANGE,   /* two numbers, the lower first; null: no bound */
    FIELD_OBJECT,  /* of the fields `in` */
    FIELD_OBJECTS, /* a list of them */
    FIELD_MAP,     /* names -> objects of the fields `in`; in NULL: any values */
};

struct field {
    const char *name; /* NULL behind the last of a table */
    enum field_type type;
    bool required;
    const struct field *in;
    const char *const *values; /* the texts that are possible, NULL-terminated; NULL: any */
};

/* ERR_INPUT "FILE: PLACE: ..." names the first field that is not as the table says. */
int schema_check(const json_t *o, const struct field *fields, const char *file, struct err *err);

#endif
