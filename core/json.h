/*
 * json.h - JSON in (jansson, strict) and out (own writer: fixed key order, %.17g, non-finite as
 * null).
 */
#pragma once

#include "core/buf.h"
#include "core/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* ---- in ----------------------------------------------------------------------------------- */

/* Note failed allocations of jansson (mem_note_short): most of its functions lose them. What
 * jansson allocates from now on goes back through its own functions only, never by free(). */
void json_watch_memory(void);

/* Parse a whole file or text; duplicate keys, invalid UTF-8, trailing text are refused with
 * ERR_INPUT naming `path`, line (of several) and column. *out is a new reference (json_decref). */
int json_read_file(const char *path, size_t max_bytes, json_t **out, struct err *err);
int json_read_text(const char *text, size_t len, const char *name, json_t **out, struct err *err);

/* The same for files of other programs, which may hold what jansson refuses: a byte order mark,
 * integers beyond 64 bits (they become reals), NaN, Infinity, 1e400, and in strings \u0000 or half
 * of a surrogate pair. Such a value is read, so that keys which nobody asks for do no harm; the
 * typed look-ups below refuse it by key. */
int json_read_foreign(const char *path, size_t max_bytes, json_t **out, struct err *err);
int json_read_foreign_text(const char *text, size_t len, const char *name, json_t **out,
                           struct err *err);

/* Does a key hold such an escape? The text of a string, NULL for other values and for strings that
 * do. */
bool json_foreign(const char *key);
const char *jtext(const json_t *v);

/* A whole file of at most max_bytes by any reader of text. */
typedef int json_parser(const char *text, size_t len, const char *name, json_t **out,
                        struct err *err);
int json_file_by(json_parser *parse, const char *path, size_t max_bytes, json_t **out,
                 struct err *err);

/* Typed look-ups in an object. `where` names the file for messages. When the key is absent or null,
 * the _opt forms leave *out unchanged and the others fail with ERR_INPUT. A wrong type always
 * fails. Strings are borrowed from the object. */
int jget_int(const json_t *o, const char *key, const char *where, int64_t *out, struct err *err);
int jget_int_opt(const json_t *o, const char *key, const char *where, int64_t *out,
                 struct err *err);
/* A whole number in 1..max. */
int jget_size(const json_t *o, const char *key, const char *where, int64_t max, int64_t *out,
              struct err *err);
int jget_size_opt(const json_t *o, const char *key, const char *where, int64_t max, int64_t *out,
                  struct err *err);
int jget_num(const json_t *o, const char *key, const char *where, double *out, struct err *err);
int jget_num_opt(const json_t *o, const char *key, const char *where, double *out, struct err *err);
int jget_str(const json_t *o, const char *key, const char *where, const char **out,
             struct err *err);
int jget_str_opt(const json_t *o, const char *key, const char *where, const char **out,
                 struct err *err);
int jget_bool_opt(const json_t *o, const char *key, const char *where, bool *out, struct err *err);

/* ---- out ---------------------------------------------------------------------------------- */

/* A writer that appends to a buf. Commas are placed by the writer. `indent` > 0 pretty-prints. */
struct jw {
    struct buf *b;
    int indent, depth;
    bool comma, after_key;
};

void jw_init(struct jw *w, struct buf *b, int indent);
void jw_obj(struct jw *w);     /* { */
void jw_obj_end(struct jw *w); /* } */
void jw_arr(struct jw *w);
void jw_arr_end(struct jw *w);
void jw_key(struct jw *w, const char *key);
void jw_str(struct jw *w, const char *s); /* NULL -> null; invalid UTF-8 bytes become U+FFFD */
void jw_num(struct jw *w, double x);      /* as num_text() writes it; non-finite -> null */
void jw_int(struct jw *w, int64_t x);
void jw_bool(struct jw *w, bool x);
void jw_null(struct jw *w);
void jw_value(struct jw *w, const json_t *v); /* copy of a parsed value */

/* Shortest of %.15g, %.16g, %.17g that reads back as x (finite x). */
void num_text(double x, char text[32]);

/* Keys with their values: jw_members(w, JW_STR("name", s), JW_INT("n", n)) in the open object,
 * jw_row as an object of its own. */
struct jw_member {
    const char *key; /* NULL: the end */
    char type;       /* s, n, i, b */
    const char *text;
    double number;
    int64_t whole;
};
#define JW_STR(k, v)                                                                               \
    {                                                                                              \
        .key = k, .type = 's', .text = v                                                           \
    }
#define JW_NUM(k, v)                                                                               \
    {                                                                                              \
        .key = k, .type = 'n', .number = v                                                         \
    }
#define JW_INT(k, v)                                                                               \
    {                                                                                              \
        .key = k, .type = 'i', .whole = v                                                          \
    }
#define JW_BOOL(k, v)                                                                              \
    {                                                                                              \
        .key = k, .type = 'b', .whole = v                                                          \
    }
void jw_put(struct jw *w, bool row, const struct jw_member *m);
#define jw_members(w, ...) jw_put(w, false, (const struct jw_member[]){__VA_ARGS__, {NULL}})
#define jw_row(w, ...) jw_put(w, true, (const struct jw_member[]){__VA_ARGS__, {NULL}})

/* A key and what begins behind it. */
void jw_kobj(struct jw *w, const char *key);
void jw_karr(struct jw *w, const char *key);

/* One member. */
#define jw_kstr(w, k, v) jw_members(w, JW_STR(k, v))
#define jw_knum(w, k, v) jw_members(w, JW_NUM(k, v))
#define jw_kint(w, k, v) jw_members(w, JW_INT(k, v))
#define jw_kbool(w, k, v) jw_members(w, JW_BOOL(k, v))
