/*
 * text.h - text: lists of names, the name nearest to a misspelt word, text that is safe to show,
 * line wrapping, sizes and estimates.
 */
#pragma once

#include "core/buf.h"
#include "core/err.h"
#include "core/utf8.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* ---- lists of texts ------------------------------------------------------------------------- */

struct str_list {
    char **items; /* owned */
    int64_t n, cap;
    bool failed; /* an addition found no memory */
};

void str_list_add(struct str_list *l, const char *s); /* a copy */
void str_list_free(struct str_list *l);
bool str_list_has(const struct str_list *l, const char *s);

/* Is name[0..len) one of the words of a list, separated by `by`? */
bool words_have(const char *list, char by, const char *name, size_t len);

/* Split a command as a POSIX shell does, without expanding anything: blanks part words, ' and " and
 * backslash keep them together. ERR_USAGE: a quote that is not closed, or no word at all. */
int words_split(const char *text, struct str_list *out, struct err *err);

/* ---- names that a user may choose from ------------------------------------------------------ */

#define NAMES_MAX 255

/* Borrowed names. Initialise with {0}; the list then stays NULL-terminated. Names beyond NAMES_MAX
 * are dropped, which only shortens a message. */
struct names {
    const char *items[NAMES_MAX + 1];
    int n;
};

void names_add(struct names *all, const char *name);
void names_text(const struct names *all, struct buf *b); /* "a, b, c" */

/* The name in `names` (NULL-terminated) that is nearest to `word` by edit distance or begins with
 * it; NULL if none is close. */
const char *nearest_name(const char *word, const char *const *names);

/* "; did you mean 'NAME'?" with the nearest name, "" if none is close. Returns `text`. */
#define HINT_MAX 160
const char *did_you_mean(const char *word, const char *const *names, char text[HINT_MAX]);

/* Sets and returns ERR_USAGE: "unknown KIND 'WORD'; did you mean 'NAME'? (there are ...)". */
int names_unknown(const struct names *all, const char *kind, const char *word, struct err *err);

/* ---- safe to show --------------------------------------------------------------------------- */

/* Appends text with what is unsafe to show (core/utf8.h) escaped: "\x1b" for a byte, "\u202e" for a
 * character. Characters in `keep` stay, such as "\n\t". */
void text_escape(struct buf *b, const char *s, const char *keep);

/* printf for lines that hold names and paths: all but newlines and tabs is escaped. Returns 0, or
 * -1 with errno. */
int text_printf(FILE *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- wrapping ------------------------------------------------------------------------------- */

/* Appends text word by word in lines of at most `width` columns. The first line starts at column
 * `col`, the others at column `indent`. Ends with a newline. */
void text_wrap(struct buf *b, const char *text, int col, int indent, int width);

/* ---- numbers -------------------------------------------------------------------------------- */

/* Read a finite decimal number at the beginning of s; *end is behind it. false, without a change of
 * *x, if there is none: no blank before it, no hexadecimal number, no "inf". "-0" is 0. */
bool num_read(const char *s, double *x, const char **end);

/* The same for a number that fills the text. */
bool num_fills(const char *s, double *x);

/* ---- sizes and estimates as people say them -------------------------------------------------- */

/* Decimal units, two significant digits from 1 kB on: "512 B", "9.5 MB", "86 GB". */
void bytes_text(double bytes, char text[24]);

/* Time of work that would take so many seconds on a machine that does nothing else, without what
 * the estimate left out; four times as much is the upper end. "under 2 s", "8 to 30 s", "2 to 8
 * min", "12 to 48 h", "2 to 8 days": in the unit of the upper end. */
void estimate_text(double seconds, char text[48]);
