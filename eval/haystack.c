/*
 * haystack.c - the lines of haystacks (prompt.h).
 */
#include "eval/prompt.h"

#include "core/fileio.h"
#include "core/hash.h"
#include "core/mem.h"
#include "core/rng.h"
#include "eval/evaltask.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- random numbers and words --------------------------------------------------------------- */

struct draws draws_of(uint64_t seed, enum draw_task task, int purpose, int64_t sample)
{
    uint64_t stream = ((uint64_t)task << 48) + ((uint64_t)purpose << 40) + (uint64_t)sample;
    return (struct draws){seed, stream, 0};
}

uint64_t draw(struct draws *d, uint64_t n)
{
    return rng_below(d->seed, d->stream, d->count++, n);
}

int64_t draw_number(struct draws *d, int digits)
{
    int64_t low = 1;
    for (int i = 1; i < digits; i++)
        low *= 10;
    return low + (int64_t)draw(d, (uint64_t)(9 * low));
}

double draw_place(struct draws *d)
{
    return (double)draw(d, (uint64_t)1 << 32) * 0x1p-32;
}

void draw_word(struct draws *d, int syllables, char word[16])
{
    static const char consonants[] = "bdfghklmnprstvwz", vowels[] = "aeiou";
    int n = 0, m = syllables ? syllables : 2 + (int)draw(d, 2);
    for (int i = 0; i < m; i++) {
        uint64_t k = draw(d, 80);
        word[n++] = consonants[k / 5];
        word[n++] = vowels[k % 5];
    }
    word[n] = '\0';
}

/* ---- lines ---------------------------------------------------------------------------------- */

void lines_free(struct lines *l)
{
    buf_free(&l->text);
    free(l->start);
    memset(l, 0, sizeof *l);
}

int lines_add(struct lines *l, const char *text, size_t len, struct err *err)
{
    PASS_ON(mem_grow(&l->start, &l->cap, l->n + 2, sizeof *l->start, "lines", err));
    l->start[l->n++] = (int64_t)l->text.len;
    buf_put(&l->text, text, len);
    PASS_ON(buf_check(&l->text, "lines", err));
    l->start[l->n] = (int64_t)l->text.len;
    return 0;
}

int lines_read(struct lines *l, const char *path, char hash[40], struct err *err)
{
    OWN(buf_free) struct buf text = {0};
    PASS_ON(buf_read_file(&text, path, EVAL_TEXT_MAX, err));
    hash_text(hash_bytes(buf_str(&text), text.len), hash);
    for (size_t at = 0; at < text.len;) {
        const char *end = memchr(text.data + at, '\n', text.len - at);
        if (!end) { /* a last line without a newline gets one */
            buf_puts(&text, "\n");
            PASS_ON(buf_check(&text, path, err));
            end = text.data + text.len - 1;
        }
        size_t len = (size_t)(end - (text.data + at)) + 1;
        PASS_ON(lines_add(l, text.data + at, len, err));
        at += len;
    }
    if (l->n == 0)
        return err_set(err, ERR_INPUT, "%s: no line to hide anything between", path);
    return 0;
}

/* ---- made-up C and English ------------------------------------------------------------------ */

/* One more line. Without memory h->lines.text.failed says so. */
__attribute__((format(printf, 2, 3))) static void put(struct haystack *h, const char *fmt, ...)
{
    char line[256];
    struct err none = {0};
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line - 1, fmt, ap);
    va_end(ap);
    line[n] = '\n';
    if (lines_add(&h->lines, line, (size_t)n + 1, &none) != 0)
        h->lines.text.failed = true;
}

/* One statement of a function, a line or two. */
static void add_statement(struct haystack *h, const char *p, const char *a, const char *i)
{
    char w[16];
    int k = (int)draw(&h->d, 6);
    draw_word(&h->d, 0, w);
    int n = (int)draw(&h->d, 256);

    switch (k) {
    case 0:
        put(h, "\t%s->%s = %d;", p, w, n);
        break;
    case 1:
        put(h, "\tif (%s->%s > %d)", p, w, n);
        put(h, "\t\treturn -1;");
        break;
    case 2:
        put(h, "\t%s->%s += %s;", p, w, a);
        break;
    case 3:
        put(h, "\tfor (%s = 0; %s < %d; %s++)", i, i, n, i);
        put(h, "\t\t%s->%s ^= %s;", p, w, i);
        break;
    case 4:
        put(h, "\t%s = %s(%s, %d);", a, w, p, n);
        break;
    default:
        put(h, "\twhile (%s > %d)", a, n);
        put(h, "\t\t%s -= %s->%s;", a, p, w);
        break;
    }
}

static void add_function(struct haystack *h)
{
    char f1[16], f2[16], t[16], p[16], a[16], i[16];
    draw_word(&h->d, 0, f1);
    draw_word(&h->d, 0, f2);
    draw_word(&h->d, 0, t);
    draw_word(&h->d, 2, p);
    draw_word(&h->d, 2, a);
    draw_word(&h->d, 2, i);
    int statements = 2 + (int)draw(&h->d, 4);
    put(h, "static int %s_%s(struct %s *%s, int %s)", f1, f2, t, p, a);
    put(h, "{");
    put(h, "\tint %s = 0;", i);
    put(h, "%s", "");
    for (int k = 0; k < statements; k++)
        add_statement(h, p, a, i);
    put(h, "\treturn %s;", a);
    put(h, "}");
    put(h, "%s", "");
}

static void add_sentence(struct haystack *h)
{
    static const char *const en_adjectives[] = {
        "old",   "quiet",   "bright", "narrow", "heavy",  "gentle", "distant",  "empty",
        "early", "careful", "broken", "golden", "simple", "hidden", "northern", "patient"};
    static const char *const en_nouns[] = {
        "river",  "garden", "teacher", "machine", "window", "letter", "market", "engine",
        "bridge", "farmer", "station", "picture", "doctor", "forest", "harbor", "kitchen"};
    static const char *const en_verbs[] = {
        "follows", "reaches", "watches", "repairs",   "remembers", "crosses", "measures", "paints",
        "visits",  "carries", "changes", "describes", "leaves",    "answers", "guards",   "finds"};
    static const char *const ends[] = {"", " every morning", " before the winter",
                                       " without a word"};
    const char *a = en_adjectives[draw(&h->d, 16)], *n = en_nouns[draw(&h->d, 16)];
    const char *v = en_verbs[draw(&h->d, 16)], *a2 = en_adjectives[draw(&h->d, 16)];
    const char *n2 = en_nouns[draw(&h->d, 16)], *x = ends[draw(&h->d, 4)];
    put(h, "The %s %s %s the %s %s%s.", a, n, v, a2, n2, x);
}

/* ---- C source files ------------------------------------------------------------------------- */

/* Generated files as a kernel's tree has them, one after another: a path, a comment, includes, a
 * structure, functions. Names are English words, as in source that models are trained on. What is
 * drawn, and in which order, is part of a prompt's identity: a change here is another domain. */

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

#define DRAW(h, list) ((list)[draw(&(h)->d, sizeof(list) / sizeof *(list))])

/* One of five forms, after `before`, up to `after`. */
static void comment(struct haystack *h, const char *before, const char *after)
{
    int form = (int)draw(&h->d, 5);
    const char *v = DRAW(h, verbs), *a = DRAW(h, adjectives);
    const char *n = DRAW(h, nouns), *n2 = DRAW(h, nouns), *v2 = DRAW(h, verbs);
    switch (form) {
    case 0:
        put(h, "%s%c%s the %s %s before the %s is %s.%s", before, toupper(v[0]), v + 1, a, n, n2,
            DRAW(h, adjectives), after);
        break;
    case 1:
        put(h, "%sThe %s of a %s holds its %s.%s", before, n, n2, DRAW(h, nouns), after);
        break;
    case 2:
        put(h, "%s%c%s %s may %s the %s, so %s it first.%s", before, toupper(a[0]), a + 1, n, v, n2,
            v2, after);
        break;
    case 3:
        put(h, "%sNothing to %s if the %s has no %s.%s", before, v, n, n2, after);
        break;
    default:
        put(h, "%sCalled with the %s of the %s held.%s", before, n, n2, after);
        break;
    }
}

/* Path, comment, includes, flags. */
static void add_head(struct source *s)
{
    struct haystack *h = s->h;
    const char *a = DRAW(h, nouns), *b = DRAW(h, nouns), *folder = DRAW(h, folders);
    snprintf(s->prefix, sizeof s->prefix, "%s_%s", a, b);
    for (size_t i = 0; i < sizeof s->prefix; i++)
        s->upper[i] = (char)toupper(s->prefix[i]);
    put(h, "// %s/%s/%s.c", folder, DRAW(h, nouns), s->prefix);
    put(h, "/*");
    for (int n = 1 + (int)draw(&h->d, 2); n > 0; n--)
        comment(h, " * ", "");
    put(h, " */");
    put(h, "%s", "");
    for (int n = 2 + (int)draw(&h->d, 4); n > 0; n--)
        put(h, "#include <linux/%s.h>", DRAW(h, nouns));
    put(h, "%s", "");
    for (int n = 1 + (int)draw(&h->d, 4), bit = 0; bit < n; bit++)
        put(h, "#define %s_%s\tBIT(%d)", s->upper, flags[bit], bit);
    put(h, "%s", "");
}

static void add_struct(struct source *s)
{
    struct haystack *h = s->h;
    put(h, "struct %s {", s->prefix);
    put(h, "\tstruct mutex lock;");
    for (int i = 0; i < FIELDS; i++) {
        /* Each from a quarter of the nouns, so that no two are the same. */
        s->field[i] = nouns[16 * i + (int)draw(&h->d, 16)];
        if (draw(&h->d, 4) == 0)
            put(h, "\tstruct %s *%s;", DRAW(h, nouns), s->field[i]);
        else
            put(h, "\t%s %s;", DRAW(h, types), s->field[i]);
    }
    put(h, "};");
    put(h, "%s", "");
}

/* A call of a function of this file, where there is one. */
static void add_call(struct source *s)
{
    struct haystack *h = s->h;
    const char *n = DRAW(h, nouns), *v = DRAW(h, verbs);
    uint64_t last = (uint64_t)s->functions;
    if (last)
        put(h, "\tret = %s(%s, %s);", s->function[draw(&h->d, last)], s->self, s->arg);
    else
        put(h, "\tret = %s_%s(%s, %s);", n, v, s->self, s->arg);
    put(h, "\tif (ret)");
    put(h, "\t\treturn ret;");
}

static void add_source_statement(struct source *s)
{
    struct haystack *h = s->h;
    int form = (int)draw(&h->d, 10);
    const char *f = s->field[draw(&h->d, FIELDS)], *self = s->self;
    const char *n = DRAW(h, nouns), *v = DRAW(h, verbs);
    switch (form) {
    case 0:
        put(h, "\t%s->%s = %s;", self, f, s->arg);
        break;
    case 1:
        put(h, "\tif (!%s->%s)", self, f);
        put(h, "\t\treturn -%s;", DRAW(h, errors));
        break;
    case 2:
        n = DRAW(h, nouns);
        v = DRAW(h, verbs);
        put(h, "\tfor (i = 0; i < %s->%s; i++)", self, f);
        put(h, "\t\t%s_%s(%s, i);", n, v, self);
        break;
    case 3:
        put(h, "\tmutex_lock(&%s->lock);", self);
        put(h, "\t%s->%s += %s;", self, f, s->arg);
        put(h, "\tmutex_unlock(&%s->lock);", self);
        break;
    case 4:
        add_call(s);
        break;
    case 5:
        put(h, "\tpr_err(\"cannot %s the %s: %%d\\n\", ret);", v, n);
        break;
    case 6:
        comment(h, "\t/* ", " */");
        break;
    case 7:
        put(h, "\tif (%s->%s > %s) {", self, f, s->arg);
        put(h, "\t\tret = -%s;", DRAW(h, errors));
        put(h, "\t\tgoto out;");
        put(h, "\t}");
        break;
    case 8:
        put(h, "\t%s->%s |= %s_%s;", self, f, s->upper, flags[0]);
        break;
    default:
        put(h, "\t%s_%s(&%s->%s);", n, v, self, f);
        break;
    }
}

static void add_source_function(struct source *s)
{
    struct haystack *h = s->h;
    char name[sizeof *s->function];

    const char *v = DRAW(h, verbs), *n = DRAW(h, nouns);
    snprintf(name, sizeof name, "%s_%s_%s", s->prefix, v, n);
    s->self = draw(&h->d, 2) ? "p" : "self";
    s->arg = DRAW(h, nouns);
    if (draw(&h->d, 3) == 0)
        comment(h, "/* ", " */");
    put(h, "static int %s(struct %s *%s, int %s)", name, s->prefix, s->self, s->arg);
    put(h, "{");
    put(h, "\tint i, ret = 0;");
    put(h, "%s", "");
    for (int left = 3 + (int)draw(&h->d, 5); left > 0; left--)
        add_source_statement(s);
    put(h, "out:");
    put(h, "\treturn ret;");
    put(h, "}");
    put(h, "%s", "");
    memcpy(s->function[s->functions++], name, sizeof name);
}

static void add_source(struct haystack *h)
{
    struct source s = {.h = h};
    add_head(&s);
    add_struct(&s);
    for (int n = 3 + (int)draw(&h->d, FUNCTIONS - 2); n > 0; n--)
        add_source_function(&s);
}

/* ---- the haystack --------------------------------------------------------------------------- */

void haystack_init(struct haystack *h, enum domain domain, const struct lines *file, uint64_t seed,
                   int64_t sample)
{
    static const int purposes[] = {
        [DOMAIN_C] = DRAW_C, [DOMAIN_EN] = DRAW_EN, [DOMAIN_SOURCE] = DRAW_SOURCE};
    int purpose = file ? DRAW_START : purposes[domain];
    *h = (struct haystack){.domain = domain, .file = file};
    h->d = draws_of(seed, DRAW_HAYSTACK, purpose, sample);
    if (file)
        h->next = (int64_t)draw(&h->d, (uint64_t)file->n);
}

void haystack_free(struct haystack *h)
{
    lines_free(&h->lines);
}

int haystack_need(struct haystack *h, int64_t n, struct err *err)
{
    int rc = 0;
    while (h->lines.n < n && !rc) {
        if (h->file) {
            size_t len;
            const char *line = line_at(h->file, h->next, &len);
            rc = lines_add(&h->lines, line, len, err);
            h->next = (h->next + 1) % h->file->n;
        } else {
            (h->domain == DOMAIN_SOURCE ? add_source
             : h->domain == DOMAIN_C    ? add_function
                                        : add_sentence)(h);
            rc = buf_check(&h->lines.text, "haystack", err);
        }
    }
    return rc;
}
