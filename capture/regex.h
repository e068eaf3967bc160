/*
 * regex.h - regular expressions of tokenizers, through PCRE2 with JIT.
 *
 * Patterns are written for Oniguruma in tokenizer.json; those that occur there mean the same in
 * PCRE2 with Unicode classes and multi-line anchors.
 */
#ifndef LACUNA_REGEX_H
#define LACUNA_REGEX_H

#include "core/err.h"

#include <stddef.h>

struct regex;

/* ERR_INPUT naming `where`, the pattern and the position that PCRE2 objects to. */
int regex_compile(const char *pattern, const char *where, struct regex **out, struct err *err);
void regex_free(struct regex *r); /* accepts NULL */

/* First match in text[from, len): 1 with [*lo, *hi), 0 if there is none, negative on failure. The
 * text must be valid UTF-8 and `from` a character boundary. Not thread-safe for one regex. */
int regex_find(const struct regex *r, const char *text, size_t len, size_t from, size_t *lo,
               size_t *hi, struct err *err);

#endif
