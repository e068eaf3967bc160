/*
 * opt.h - option tables: one table describes the fields of a struct and yields the command line,
 * `key=value` method parameters, validation, defaults, the canonical form, sweeps, help and JSON.
 */
#pragma once

#include "core/buf.h"
#include "core/err.h"
#include "core/json.h"
#include "core/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum opt_type {
    OPT_END = 0,
    OPT_BOOL,  /* bool; 0/1, no/yes, off/on, false/true; on a command line a flag without value */
    OPT_INT,   /* int64_t */
    OPT_NUM,   /* double; "inf" where max is INFINITY; "off" = INFINITY with OPT_OFF */
    OPT_ENUM,  /* int: index into `values` */
    OPT_STR,   /* char *, owned by the struct (opt_free) */
    OPT_SHARE, /* struct share: a count, or a percentage "8%" */
    OPT_LIST,  /* struct str_list: repeatable on the command line; otherwise one string */
};

/* A count or a share of something that is known later. */
struct share {
    double value;  /* count, or 0..1 when is_share */
    bool is_share; /* written "8%" */
};

/* ceil(share * of), or the count itself. */
int64_t share_resolve(struct share s, int64_t of);

enum opt_flags {
    OPT_REQUIRED = 1,      /* no default; must be given */
    OPT_MIN_OPEN = 4,      /* value must be > min (not >=) */
    OPT_MAX_OPEN = 8,      /* value must be < max */
    OPT_OFF = 16,          /* OPT_NUM: the word "off" means INFINITY */
    OPT_IDENTITY_NOT = 32, /* does not enter the canonical form (paths, thread counts) */
    OPT_CALIB_FIXED = 64,  /* stands in for other parameters, which a calibration has: beside
                            * calib= it would count nowhere */
    OPT_MAIN = 128,        /* a command that has these shows the others with --help=all only */
    OPT_OUTSIDE = 256,     /* a method parameter that names a file or a command: data may not set it
                            * (method_setting_parse) */
};

struct opt {
    const char *name; /* long name without dashes; parameter key */
    enum opt_type type;
    size_t offset;   /* of the field in the struct */
    const char *def; /* default as text, parsed by the same code. NULL: OPT_REQUIRED, or "not
                      * given": OPT_NUM NAN, OPT_INT INT64_MIN, OPT_STR NULL,
                      * OPT_ENUM -1, OPT_SHARE NAN, OPT_LIST empty */
    double min, max; /* numeric range, inclusive unless a flag says otherwise; none
                      * when both are 0. OPT_SHARE: range of a count */
    unsigned flags;
    const char *unit;          /* "tokens", "mass share", "" */
    const char *help;          /* one sentence */
    const char *const *values; /* OPT_ENUM: NULL-terminated names */
    char short_name;           /* command lines only, 0 = none */
    const char *arg;           /* command lines only: "FILE", "N"; NULL: from the type */
    const char *bare;          /* command lines only: the value of --name without one, which then
                                * needs '='; NULL: one must be given, or OPT_BOOL */
    const char *only;          /* command lines only: what reads it, "pack, map"; stands before the
                                * help; NULL: everything (opt_check_uses) */
};

/* Entries of a table over `S`, a struct type. The key is the field's name. After the help there may
 * be more members, `.flags = OPT_MIN_OPEN`. A table ends with {0}. */
#define OPT_INT(S, field, def, min, max, unit, ...)                                                \
    OPT_RANGE_(OPT_INT, S, field, def, min, max, unit, __VA_ARGS__)
#define OPT_NUM(S, field, def, min, max, unit, ...)                                                \
    OPT_RANGE_(OPT_NUM, S, field, def, min, max, unit, __VA_ARGS__)
#define OPT_SHARE(S, field, def, min, max, unit, ...)                                              \
    OPT_RANGE_(OPT_SHARE, S, field, def, min, max, unit, __VA_ARGS__)
#define OPT_BOOL(S, field, def, ...) OPT_AS(#field, OPT_BOOL, S, field, def, .help = __VA_ARGS__)
#define OPT_ENUM(S, field, def, names, ...)                                                        \
    OPT_AS(#field, OPT_ENUM, S, field, def, .values = names, .help = __VA_ARGS__)
#define OPT_STR(S, field, def, what, ...)                                                          \
    OPT_AS(#field, OPT_STR, S, field, def, .arg = what, .help = __VA_ARGS__)
#define OPT_LIST(S, field, def, what, ...)                                                         \
    OPT_AS(#field, OPT_LIST, S, field, def, .arg = what, .help = __VA_ARGS__)

/* An entry whose key is not the field's name, such as "max-len". */
#define OPT_AS(key, kind, S, field, text, ...)                                                     \
    {                                                                                              \
        .name = key, .type = kind, .offset = offsetof(S, field), .def = text, __VA_ARGS__          \
    }
#define OPT_RANGE_(kind, S, field, text, lo, hi, of, ...)                                          \
    OPT_AS(#field, kind, S, field, text, .min = lo, .max = hi, .unit = of, .help = __VA_ARGS__)

/* Fill every field from its default. obj must be zeroed or fresh memory. */
int opt_defaults(const struct opt *table, void *obj, struct err *err);

/* Release owned strings and lists and zero these fields. */
void opt_free(const struct opt *table, void *obj);

/* Deep copy of all fields of the table from src to dst (dst zeroed). */
int opt_copy(const struct opt *table, const void *src, void *dst, struct err *err);

/* Set one field from text; a list becomes this one item. Unknown key or bad value: ERR_USAGE naming
 * `who` ("method sale"), the key, what was expected, and the nearest key or value. */
int opt_set(const struct opt *table, void *obj, const char *who, const char *key, const char *value,
            struct err *err);

const struct opt *opt_find(const struct opt *table, const char *name);

/* The same; unknown: ERR_USAGE with the nearest name, NULL. `prefix` is "--" for a command line. */
const struct opt *opt_find_or_fail(const struct opt *table, const char *who, const char *prefix,
                                   const char *name, struct err *err);

/* Set the field of one table entry; `append` adds to a list. `label` opens the message. */
int opt_set_field(const struct opt *o, void *obj, const char *label, const char *value, bool append,
                  struct err *err);

/* True if the field is "not given" or OPT_REQUIRED and not yet set. */
bool opt_is_unset(const struct opt *o, const void *obj);

/* ERR_USAGE naming the first OPT_REQUIRED field that was not given. */
int opt_check_required(const struct opt *table, const void *obj, const char *who,
                       const char *prefix, struct err *err);

/* ERR_USAGE naming an option that is given and that none of the uses [NULL-terminated] reads. */
int opt_check_uses(const struct opt *table, const void *obj, const char *who,
                   const char *const *uses, struct err *err);

int64_t opt_count(const struct opt *table);

/* Have two structs of a table the same value in this field, as text? */
int opt_same(const struct opt *o, const void *a, const void *b, bool *same, struct err *err);

/* Does the field hold its default? */
int opt_is_default(const struct opt *o, const void *obj, bool *out, struct err *err);

/* Append the value of one field as text that opt_set reads back. */
void opt_value_text(const struct opt *o, const void *obj, struct buf *b);

/* Append "key=value:key=value" of all fields that differ from their default, in table order,
 * without OPT_IDENTITY_NOT ones. "" when all are at their default. */
int opt_canonical(const struct opt *table, const void *obj, struct buf *b, struct err *err);

/* Write every field into the open JSON object of w. */
void opt_json(const struct opt *table, const void *obj, struct jw *w);

/* Describe the table itself (name, type, default, range, unit, help) as a JSON array. */
void opt_table_json(const struct opt *table, struct jw *w);

/* Most entries of a command's table. */
#define OPT_TABLE_MAX 128

/* Command line: argv[0] is the first word after the command. Long options are --name VALUE or
 * --name=VALUE, flags --name / --no-name, short options -x VALUE or -xVALUE; "--" ends options;
 * there are no abbreviations. The last of repeated options wins; the first occurrence of a list
 * option clears the list. Words that are not options are appended to `rest` (copies). Required
 * options are not checked here. The caller handles --help and -h (cmd.h). */
int opt_parse_argv(const struct opt *table, void *obj, const char *who, int argc, char **argv,
                   struct str_list *rest, struct err *err);

/* Aligned help text of one option of a command. */
void opt_help(const struct opt *o, struct buf *b);

const char *opt_arg_name(const struct opt *o); /* "FILE", "N", ...; "" for flags */

/* Help, values, unit, range and default of one option on one line. */
void opt_describe(const struct opt *o, struct buf *b);

/* "in [0, 1)", ">= 0" or "<= 1"; nothing when there is no range. */
void opt_range_text(const struct opt *o, struct buf *b);
