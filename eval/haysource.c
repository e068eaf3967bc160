/*
 * haysource.c - see haysource.h. What is drawn, and in which order, is part of a prompt's identity:
 * a change here is another domain.
 */
#include "eval/haysource.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const nouns[64] = {
    "page",   "node",   "list",   "buf",     "queue",    "entry",   "table",  "lock",
    "map",    "block",  "device", "bus",     "port",     "frame",   "packet", "inode",
    "cache",  "timer",  "event",  "channel", "clock",    "pool",    "range",  "group",
    "slot",   "ring",   "state",  "mask",    "flag",     "key",     "name",   "size",
    "offset", "count",  "index",  "addr",    "data",     "field",   "domain", "region",
    "handle", "stream", "filter", "request", "response", "segment", "vector", "cursor",
    "bucket", "worker", "signal", "format",  "layer",    "sector",  "volume", "socket",
    "header", "option", "record", "session", "symbol",   "token",   "thread", "window"};
static const char *const verbs[32] = {
    "alloc",  "free",  "init",   "get",    "put",    "add",    "remove", "find",
    "read",   "write", "set",    "clear",  "start",  "stop",   "enable", "disable",
    "update", "flush", "attach", "detach", "lookup", "check",  "copy",   "wait",
    "wake",   "send",  "open",   "close",  "lock",   "unlock", "insert", "reset"};
static const char *const adjectives[16] = {
    "next",  "first", "last",   "old",    "new",     "free",  "active", "pending",
    "dirty", "local", "remote", "shared", "current", "empty", "busy",   "valid"};
static const char *const folders[8] = {"drivers", "fs", "net",   "kernel",
                                       "lib",     "mm", "sound", "block"};
static const char *const errors[4] = {"EINVAL", "ENOMEM", "EBUSY", "EIO"};
static const char *const types[4] = {"int", "unsigned long", "u32", "bool"};

static const char *const flags[4] = {"BUSY", "DIRTY", "VALID", "DONE"};

#define FIELDS 4
#define FUNCTIONS 7 /* of a file, at most */

struct source {
    struct haystack *h;
    char prefix[32], upper[32];   /* "page_list", "PAGE_LIST" */
    const char *field[FIELDS];    /* of the structure */
    char function[FUNCTIONS][64]; /* so far in this file */
    int functions;
    const char *self, *arg; /* of the function */
};

#define DRAW(s, list) ((list)[draw(&(s)->h->d, sizeof(list) / sizeof *(list))])

__attribute__((format(printf, 3, 4))) static int put(struct source *s, struct err *err,
                                                     const char *fmt, ...)
{
    char line[256];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line - 1, fmt, ap);
    va_end(ap);
    line[n] = '\n';
    return lines_add(&s->h->lines, line, (size_t)n + 1, err);
}

/* One of five forms, after `before`, up to `after`. */
static int sentence(struct source *s, const char *before, const char *after, struct err *err)
{
    int form = (int)draw(&s->h->d, 5);
    const char *v = DRAW(s, verbs), *a = DRAW(s, adjectives);
    const char *n = DRAW(s, nouns), *n2 = DRAW(s, nouns), *v2 = DRAW(s, verbs);
    switch (form) {
    case 0:
        return put(s, err, "%s%c%s the %s %s before the %s is %s.%s", before, toupper(v[0]), v + 1,
                   a, n, n2, DRAW(s, adjectives), after);
    case 1:
        return put(s, err, "%sThe %s of a %s holds its %s.%s", before, n, n2, DRAW(s, nouns),
                   after);
    case 2:
        return put(s, err, "%s%c%s %s may %s the %s, so %s it first.%s", before, toupper(a[0]),
                   a + 1, n, v, n2, v2, after);
    case 3:
        return put(s, err, "%sNothing to %s if the %s has no %s.%s", before, v, n, n2, after);
    default:
        return put(s, err, "%sCalled with the %s of the %s held.%s", before, n, n2, after);
    }
}

/* Path, comment, includes, flags. */
static int add_head(struct source *s, struct err *err)
{
    const char *a = DRAW(s, nouns), *b = DRAW(s, nouns), *folder = DRAW(s, folders);
    int rc = 0;

    snprintf(s->prefix, sizeof s->prefix, "%s_%s", a, b);
    for (size_t i = 0; i < sizeof s->prefix; i++)
        s->upper[i] = (char)toupper(s->prefix[i]);
    TRY(put(s, err, "// %s/%s/%s.c", folder, DRAW(s, nouns), s->prefix));
    TRY(put(s, err, "/*"));
    for (int n = 1 + (int)draw(&s->h->d, 2); n > 0; n--)
        TRY(sentence(s, " * ", "", err));
    TRY(put(s, err, " */"));
    TRY(put(s, err, "%s", ""));
    for (int n = 2 + (int)draw(&s->h->d, 4); n > 0; n--)
        TRY(put(s, err, "#include <linux/%s.h>", DRAW(s, nouns)));
    TRY(put(s, err, "%s", ""));
    for (int n = 1 + (int)draw(&s->h->d, 4), bit = 0; bit < n; bit++)
        TRY(put(s, err, "#define %s_%s\tBIT(%d)", s->upper, flags[bit], bit));
    TRY(put(s, err, "%s", ""));
out:
    return rc;
}

static int add_struct(struct source *s, struct err *err)
{
    int rc = 0;
    TRY(put(s, err, "struct %s {", s->prefix));
    TRY(put(s, err, "\tstruct mutex lock;"));
    for (int i = 0; i < FIELDS; i++) {
        /* Each from a quarter of the nouns, so that no two are the same. */
        s->field[i] = nouns[16 * i + (int)draw(&s->h->d, 16)];
        if (draw(&s->h->d, 4) == 0)
            TRY(put(s, err, "\tstruct %s *%s;", DRAW(s, nouns), s->field[i]));
        else
            TRY(put(s, err, "\t%s %s;", DRAW(s, types), s->field[i]));
    }
    TRY(put(s, err, "};"));
    TRY(put(s, err, "%s", ""));
out:
    return rc;
}

static int add_loop(struct source *s, const char *field, struct err *err)
{
    const char *n = DRAW(s, nouns), *v = DRAW(s, verbs);
    int rc = put(s, err, "\tfor (i = 0; i < %s->%s; i++)", s->self, field);
    return rc ? rc : put(s, err, "\t\t%s_%s(%s, i);", n, v, s->self);
}

static int add_locked(struct source *s, const char *field, struct err *err)
{
    int rc = put(s, err, "\tmutex_lock(&%s->lock);", s->self);
    rc = rc ? rc : put(s, err, "\t%s->%s += %s;", s->self, field, s->arg);
    return rc ? rc : put(s, err, "\tmutex_unlock(&%s->lock);", s->self);
}

/* A call of a function of this file, where there is one. */
static int add_call(struct source *s, struct err *err)
{
    const char *n = DRAW(s, nouns), *v = DRAW(s, verbs);
    int rc, last = s->functions;
    if (last)
        rc = put(s, err, "\tret = %s(%s, %s);", s->function[draw(&s->h->d, (uint64_t)last)],
                 s->self, s->arg);
    else
        rc = put(s, err, "\tret = %s_%s(%s, %s);", n, v, s->self, s->arg);
    rc = rc ? rc : put(s, err, "\tif (ret)");
    return rc ? rc : put(s, err, "\t\treturn ret;");
}

static int add_guard(struct source *s, const char *field, struct err *err)
{
    int rc = put(s, err, "\tif (%s->%s > %s) {", s->self, field, s->arg);
    rc = rc ? rc : put(s, err, "\t\tret = -%s;", DRAW(s, errors));
    rc = rc ? rc : put(s, err, "\t\tgoto out;");
    return rc ? rc : put(s, err, "\t}");
}

static int add_statement(struct source *s, struct err *err)
{
    int form = (int)draw(&s->h->d, 10);
    const char *f = s->field[draw(&s->h->d, FIELDS)];
    const char *n = DRAW(s, nouns), *v = DRAW(s, verbs);
    int rc = 0;
    switch (form) {
    case 0:
        return put(s, err, "\t%s->%s = %s;", s->self, f, s->arg);
    case 1:
        rc = put(s, err, "\tif (!%s->%s)", s->self, f);
        return rc ? rc : put(s, err, "\t\treturn -%s;", DRAW(s, errors));
    case 2:
        return add_loop(s, f, err);
    case 3:
        return add_locked(s, f, err);
    case 4:
        return add_call(s, err);
    case 5:
        return put(s, err, "\tpr_err(\"cannot %s the %s: %%d\\n\", ret);", v, n);
    case 6:
        return sentence(s, "\t/* ", " */", err);
    case 7:
        return add_guard(s, f, err);
    case 8:
        return put(s, err, "\t%s->%s |= %s_%s;", s->self, f, s->upper, flags[0]);
    default:
        return put(s, err, "\t%s_%s(&%s->%s);", n, v, s->self, f);
    }
}

static int add_function(struct source *s, struct err *err)
{
    char name[sizeof *s->function];
    int rc = 0;

    const char *v = DRAW(s, verbs), *n = DRAW(s, nouns);
    snprintf(name, sizeof name, "%s_%s_%s", s->prefix, v, n);
    s->self = draw(&s->h->d, 2) ? "p" : "self";
    s->arg = DRAW(s, nouns);
    if (draw(&s->h->d, 3) == 0)
        TRY(sentence(s, "/* ", " */", err));
    TRY(put(s, err, "static int %s(struct %s *%s, int %s)", name, s->prefix, s->self, s->arg));
    TRY(put(s, err, "{"));
    TRY(put(s, err, "\tint i, ret = 0;"));
    TRY(put(s, err, "%s", ""));
    for (int left = 3 + (int)draw(&s->h->d, 5); left > 0; left--)
        TRY(add_statement(s, err));
    TRY(put(s, err, "out:"));
    TRY(put(s, err, "\treturn ret;"));
    TRY(put(s, err, "}"));
    TRY(put(s, err, "%s", ""));
    memcpy(s->function[s->functions++], name, sizeof name);
out:
    return rc;
}

int haystack_add_source(struct haystack *h, struct err *err)
{
    struct source s = {.h = h};
    int rc = 0;

    TRY(add_head(&s, err));
    TRY(add_struct(&s, err));
    for (int n = 3 + (int)draw(&h->d, FUNCTIONS - 2); n > 0; n--)
        TRY(add_function(&s, err));
out:
    return rc;
}
