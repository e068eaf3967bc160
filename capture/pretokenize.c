/*
 * pretokenize.c - normalising a text, and cutting it into the pieces that byte-pair encoding works
 * on.
 *
 * Every pre-tokenizer is brought to one of two forms: a pattern with a rule for what becomes of its
 * matches (Split, ByteLevel's own expression, Digits), or Metaspace's rewriting of spaces.
 */
#include "capture/pretokenize.h"

#include "core/log.h"
#include "core/mem.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* ---- regular expressions -------------------------------------------------------------------- */

/* Through PCRE2 with JIT. Patterns are written for Oniguruma in tokenizer.json; those that occur
 * there mean the same in PCRE2 with Unicode classes and multi-line anchors. */

#define JIT_STACK_START (32 << 10)
#define JIT_STACK_MAX (16 << 20)

struct regex {
    pcre2_code *code;
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    char *pattern; /* for messages */
};

/* accepts NULL */
static void regex_free(struct regex *r)
{
    if (!r)
        return;
    pcre2_match_data_free(r->match);
    pcre2_match_context_free(r->context);
    pcre2_jit_stack_free(r->stack);
    pcre2_code_free(r->code);
    free(r->pattern);
    free(r);
}
OWN_AT(regex_free, struct regex *)

static int compile(struct regex *r, const char *where, struct err *err)
{
    int code;
    PCRE2_SIZE at;
    r->code = pcre2_compile((PCRE2_SPTR)r->pattern, PCRE2_ZERO_TERMINATED,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &code, &at, NULL);
    if (!r->code) {
        PCRE2_UCHAR why[160];
        pcre2_get_error_message(code, why, sizeof why);
        return err_set(err, ERR_INPUT,
                       "%s: the pattern \"%.200s\" is not a usable regular "
                       "expression: %s at byte %zu",
                       where, r->pattern, (const char *)why, (size_t)at);
    }
    /* Without JIT support in the library the interpreter does the same, slower. */
    pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE);
    r->match = pcre2_match_data_create(1, NULL);
    r->context = pcre2_match_context_create(NULL);
    r->stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_MAX, NULL);
    if (!r->match || !r->context)
        return err_set(err, ERR_NOMEM, "%s: regular expression", where);
    if (r->stack)
        pcre2_jit_stack_assign(r->context, NULL, r->stack);
    return 0;
}

/* ERR_INPUT naming `where`, the pattern and the position that PCRE2 objects to. */
static int regex_compile(const char *pattern, const char *where, struct regex **out,
                         struct err *err)
{
    OWN(regex_free_at) struct regex *r = NULL;
    PASS_ON(mem_zalloc(&r, 1, sizeof *r, "regular expression", err));
    r->pattern = strdup(pattern);
    if (!r->pattern)
        return err_set(err, ERR_NOMEM, "%s: regular expression", where);
    PASS_ON(compile(r, where, err));
    *out = HAND_OVER(r);
    return 0;
}

/* First match in text[from, len): 1 with [*lo, *hi), 0 if there is none, negative on failure. The
 * text must be valid UTF-8 and `from` a character boundary. Not thread-safe for one regex. */
static int regex_find(const struct regex *r, const char *text, size_t len, size_t from, size_t *lo,
                      size_t *hi, struct err *err)
{
    /* The text was checked once; without this flag every call would scan the rest of it again. */
    int rc =
        pcre2_match(r->code, (PCRE2_SPTR)text, len, from, PCRE2_NO_UTF_CHECK, r->match, r->context);
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc < 0) {
        PCRE2_UCHAR why[160];
        pcre2_get_error_message(rc, why, sizeof why);
        return err_set(err, ERR_INPUT,
                       "the pattern \"%.200s\" failed at byte %zu of a text of %zu: "
                       "%s",
                       r->pattern, from, len, (const char *)why);
    }
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(r->match);
    /* \K in a lookahead can put the start behind the end; such a match is empty. */
    *lo = span[0] <= span[1] ? span[0] : span[1];
    *hi = span[1];
    return 1;
}

/* ---- normalisers ---------------------------------------------------------------------------- */

/* Unicode normal forms (Unicode annex 15, through utf8proc), Prepend and Replace (the space marker
 * of sentencepiece-like vocabularies). */
enum norm_kind { FORM, PREPEND, REPLACE, REPLACE_REGEX };

struct norm_step {
    enum norm_kind kind;
    utf8proc_option_t form; /* FORM */
    char *text, *with;      /* PREPEND: text. REPLACE: text (pattern) by `with` */
    struct regex *regex;
};

struct normalizer {
    struct norm_step *steps; /* owned */
    int64_t n, cap;
};

void normalizer_free(struct normalizer *n)
{
    if (!n)
        return;
    for (int64_t i = 0; i < n->n; i++) {
        free(n->steps[i].text);
        free(n->steps[i].with);
        regex_free(n->steps[i].regex);
    }
    free(n->steps);
    free(n);
}

static const struct {
    const char *name;
    utf8proc_option_t form;
} forms[] = {
    {"NFC", UTF8PROC_STABLE | UTF8PROC_COMPOSE},
    {"NFD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE},
    {"NFKC", UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
    {"NFKD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT},
};

static int norm_text(const json_t *v, const char *key, const char *where, char **out,
                     struct err *err)
{
    const char *s;
    PASS_ON(jget_str(v, key, where, &s, err));
    return mem_dup(out, s, where, err);
}

static int read_replace(const json_t *v, const char *where, struct norm_step *s, struct err *err)
{
    const json_t *pattern = json_object_get(v, "pattern");
    const char *regex = NULL;
    PASS_ON(norm_text(v, "content", where, &s->with, err));
    PASS_ON(jget_str_opt(pattern, "Regex", where, &regex, err));
    s->kind = regex ? REPLACE_REGEX : REPLACE;
    if (regex)
        return regex_compile(regex, where, &s->regex, err);
    return norm_text(pattern, "String", where, &s->text, err);
}

static int read_norm_steps(const json_t *v, const char *where, int depth, struct normalizer *n,
                           struct err *err)
{
    const char *type;
    PASS_ON(jget_str(v, "type", where, &type, err));
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(v, "normalizers");
        if (!json_is_array(list) || depth > 8)
            return err_set(err, ERR_INPUT,
                           "%s: normalizer Sequence: \"normalizers\" must be an array, nested "
                           "at most 8 deep",
                           where);
        for (size_t i = 0; i < json_array_size(list); i++)
            PASS_ON(read_norm_steps(json_array_get(list, i), where, depth + 1, n, err));
        return 0;
    }
    PASS_ON(mem_grow(&n->steps, &n->cap, n->n + 1, sizeof *n->steps, "normalizer", err));
    struct norm_step *s = memset(n->steps + n->n++, 0, sizeof *s);
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (strcmp(type, forms[i].name) == 0) {
            s->kind = FORM;
            s->form = forms[i].form;
            return 0;
        }
    if (strcmp(type, "Prepend") == 0) {
        s->kind = PREPEND;
        return norm_text(v, "prepend", where, &s->text, err);
    } else if (strcmp(type, "Replace") == 0) {
        return read_replace(v, where, s, err);
    } else {
        return err_set(err, ERR_INPUT,
                       "%s: normalizer %.60s is not supported; supported: Sequence, NFC, NFD, "
                       "NFKC, NFKD, Prepend, Replace",
                       where, type);
    }
}

int normalizer_read(const json_t *v, const char *where, struct normalizer **out, struct err *err)
{
    OWN(normalizer_free_at) struct normalizer *n = NULL;
    PASS_ON(mem_zalloc(&n, 1, sizeof *n, "normalizer", err));
    if (v && !json_is_null(v))
        PASS_ON(read_norm_steps(v, where, 0, n, err));
    *out = HAND_OVER(n);
    return 0;
}

static int run_form(const struct norm_step *s, const char *text, size_t len, struct buf *out,
                    struct err *err)
{
    utf8proc_uint8_t *form = NULL;
    utf8proc_ssize_t n =
        utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)len, &form, s->form);
    if (n < 0)
        return err_set(err, n == UTF8PROC_ERROR_NOMEM ? ERR_NOMEM : ERR_INPUT,
                       "normalising %zu bytes of text: %s", len, utf8proc_errmsg(n));
    buf_put(out, form, (size_t)n);
    free(form);
    return 0;
}

static void run_replace(const struct norm_step *s, const char *text, size_t len, struct buf *out)
{
    size_t k = strlen(s->text);
    const char *at = text, *end = text + len, *hit;
    while (k && (hit = memmem(at, (size_t)(end - at), s->text, k)) != NULL) {
        buf_put(out, at, (size_t)(hit - at));
        buf_puts(out, s->with);
        at = hit + k;
    }
    buf_put(out, at, (size_t)(end - at));
}

static int run_regex(const struct norm_step *s, const char *text, size_t len, struct buf *out,
                     struct err *err)
{
    size_t at = 0, from = 0, lo, hi;
    int rc = 0;
    while (from <= len && (rc = regex_find(s->regex, text, len, from, &lo, &hi, err)) > 0) {
        buf_put(out, text + at, lo - at);
        buf_puts(out, s->with);
        at = hi;
        from = hi;
        if (lo == hi) /* an empty match: on to the next character */
            for (from++; from < len && ((unsigned char)text[from] & 0xc0) == 0x80; from++)
                ;
    }
    buf_put(out, text + at, len - at);
    return rc;
}

int normalizer_run(const struct normalizer *n, const char *text, size_t len, struct buf *out,
                   struct err *err)
{
    OWN(buf_free) struct buf in = {0};
    buf_reset(out);
    buf_put(out, text, len);
    for (int64_t i = 0; i < n->n; i++) {
        const struct norm_step *s = n->steps + i;
        struct buf swap = in;
        in = *out;
        *out = swap;
        buf_reset(out);
        if (s->kind == FORM)
            PASS_ON(run_form(s, buf_str(&in), in.len, out, err));
        else if (s->kind == REPLACE_REGEX)
            PASS_ON(run_regex(s, buf_str(&in), in.len, out, err));
        else if (s->kind == REPLACE)
            run_replace(s, buf_str(&in), in.len, out);
        else if (in.len) {
            buf_puts(out, s->text);
            buf_put(out, in.data, in.len);
        }
    }
    return buf_check(out, "normalised text", err);
}

/* ---- pre-tokenizers -------------------------------------------------------------------------- */

enum kind { SPLIT, PREFIX_SPACE, METASPACE, BYTES };

/* What becomes of a match. */
enum behavior { REMOVED, ISOLATED, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT, CONTIGUOUS };

static const char *const behavior_names[] = {"Removed", "Isolated", "MergedWithPrevious",
                                             "MergedWithNext", "Contiguous"};

enum scheme { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER };

struct step {
    enum kind kind;
    struct regex *regex; /* SPLIT by expression */
    char *text;          /* SPLIT by text; METASPACE: the replacement */
    enum behavior behavior;
    bool invert;
    enum scheme scheme; /* METASPACE */
};

struct pretokenizer {
    struct step *steps; /* owned */
    int64_t n, cap;
    struct regex *unassigned; /* owned: a character that PCRE2's tables lack; NULL without a step
                               * by expression, or once it was said */
};

/* The expression of GPT-2, which ByteLevel applies unless use_regex is false. */
#define GPT2_PATTERN                                                                               \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* ---- pieces ---------------------------------------------------------------------------------- */

int pieces_add(struct pieces *p, const char *s, size_t len, struct err *err)
{
    if (len == 0)
        return 0;
    PASS_ON(mem_grow(&p->end, &p->cap, p->n + 1, sizeof *p->end, "pieces of text", err));
    buf_put(&p->text, s, len);
    PASS_ON(buf_check(&p->text, "pieces of text", err));
    p->end[p->n++] = (int64_t)p->text.len;
    return 0;
}

void pieces_reset(struct pieces *p)
{
    buf_reset(&p->text);
    p->n = 0;
    p->at_start = false;
}

void pieces_free(struct pieces *p)
{
    buf_free(&p->text);
    free(p->end);
    memset(p, 0, sizeof *p);
}

/* ---- bytes as characters --------------------------------------------------------------------- */

static bool printable_byte(int b)
{
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
}

void byte_char(uint8_t byte, char out[3])
{
    int c = byte;
    if (!printable_byte(byte)) {
        c = 0x100;
        for (int b = 0; b < byte; b++)
            c += !printable_byte(b);
    }
    memset(out, 0, 3);
    if (c < 0x80) {
        out[0] = (char)c;
    } else {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
    }
}

int char_byte(int32_t c)
{
    if (c >= 0 && c < 0x100)
        return printable_byte(c) ? c : -1;
    for (int b = 0, at = 0x100; b < 0x100 && at <= c; b++)
        if (!printable_byte(b) && at++ == c)
            return b;
    return -1;
}

int64_t utf8_invalid(const char *s, size_t len)
{
    size_t at = 0;
    while (at < len) {
        utf8proc_int32_t c;
        utf8proc_ssize_t n =
            utf8proc_iterate((const utf8proc_uint8_t *)s + at, (utf8proc_ssize_t)(len - at), &c);
        if (n <= 0)
            return (int64_t)at;
        at += (size_t)n;
    }
    return -1;
}

/* ---- reading --------------------------------------------------------------------------------- */

static struct step *add_step(struct pretokenizer *t, enum kind kind, struct err *err)
{
    if (mem_grow(&t->steps, &t->cap, t->n + 1, sizeof *t->steps, "pre-tokenizer", err))
        return NULL;
    struct step *s = t->steps + t->n++;
    memset(s, 0, sizeof *s);
    s->kind = kind;
    return s;
}

/* A Split that lets the matches of a fixed expression stand alone. */
static int add_pattern(struct pretokenizer *t, const char *pattern, const char *where,
                       struct err *err)
{
    struct step *s = add_step(t, SPLIT, err);
    if (!s)
        return ERR_NOMEM;
    s->behavior = ISOLATED;
    return regex_compile(pattern, where, &s->regex, err);
}

static int copy_text(const char *text, const char *where, char **out, struct err *err)
{
    return mem_dup(out, text, where, err);
}

static int read_split(const json_t *v, const char *where, struct pretokenizer *t, struct err *err)
{
    const json_t *pattern = json_object_get(v, "pattern");
    const char *regex = NULL, *text, *behavior;
    size_t b = 0;
    struct step *s = add_step(t, SPLIT, err);
    if (!s)
        return ERR_NOMEM;
    PASS_ON(jget_bool_opt(v, "invert", where, &s->invert, err));
    PASS_ON(jget_str(v, "behavior", where, &behavior, err));
    while (b < 5 && strcmp(behavior, behavior_names[b]) != 0)
        b++;
    if (b == 5)
        return err_set(err, ERR_INPUT, "%s: Split: unknown behavior \"%.60s\"", where, behavior);
    s->behavior = (enum behavior)b;
    PASS_ON(jget_str_opt(pattern, "Regex", where, &regex, err));
    if (regex)
        return regex_compile(regex, where, &s->regex, err);
    PASS_ON(jget_str(pattern, "String", where, &text, err));
    return copy_text(text, where, &s->text, err);
}

static int read_byte_level(const json_t *v, const char *where, struct pretokenizer *t,
                           struct err *err)
{
    bool prefix = true, use_regex = true;
    PASS_ON(jget_bool_opt(v, "add_prefix_space", where, &prefix, err));
    PASS_ON(jget_bool_opt(v, "use_regex", where, &use_regex, err));
    if (prefix && !add_step(t, PREFIX_SPACE, err))
        return ERR_NOMEM;
    if (use_regex)
        PASS_ON(add_pattern(t, GPT2_PATTERN, where, err));
    if (!add_step(t, BYTES, err))
        return ERR_NOMEM;
    return 0;
}

static int read_metaspace(const json_t *v, const char *where, struct pretokenizer *t,
                          struct err *err)
{
    const char *text = "\xe2\x96\x81", *scheme = NULL;
    bool prefix = true, split = true;
    struct step *s = add_step(t, METASPACE, err);
    if (!s)
        return ERR_NOMEM;
    PASS_ON(jget_str_opt(v, "replacement", where, &text, err));
    PASS_ON(jget_bool_opt(v, "add_prefix_space", where, &prefix, err));
    PASS_ON(jget_str_opt(v, "prepend_scheme", where, &scheme, err));
    PASS_ON(jget_bool_opt(v, "split", where, &split, err));
    if (!scheme)
        scheme = prefix ? "always" : "never";
    if (strcmp(scheme, "always") == 0)
        s->scheme = PREPEND_ALWAYS;
    else if (strcmp(scheme, "first") == 0)
        s->scheme = PREPEND_FIRST;
    else if (strcmp(scheme, "never") == 0)
        s->scheme = PREPEND_NEVER;
    else
        return err_set(err, ERR_INPUT, "%s: Metaspace: unknown prepend_scheme \"%.60s\"", where,
                       scheme);
    PASS_ON(copy_text(text, where, &s->text, err));
    if (!split)
        return 0;
    if (!(s = add_step(t, SPLIT, err)))
        return ERR_NOMEM;
    s->behavior = MERGED_WITH_NEXT;
    return copy_text(text, where, &s->text, err);
}

static int read_steps(const json_t *v, const char *where, int depth, struct pretokenizer *t,
                      struct err *err)
{
    const char *type;
    bool single = false;
    PASS_ON(jget_str(v, "type", where, &type, err));
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(v, "pretokenizers");
        if (!json_is_array(list) || depth > 8)
            return err_set(err, ERR_INPUT,
                           "%s: pre_tokenizer Sequence: \"pretokenizers\" must be an array, "
                           "nested at most 8 deep",
                           where);
        for (size_t i = 0; i < json_array_size(list); i++)
            PASS_ON(read_steps(json_array_get(list, i), where, depth + 1, t, err));
    } else if (strcmp(type, "Split") == 0) {
        return read_split(v, where, t, err);
    } else if (strcmp(type, "ByteLevel") == 0) {
        return read_byte_level(v, where, t, err);
    } else if (strcmp(type, "Digits") == 0) {
        PASS_ON(jget_bool_opt(v, "individual_digits", where, &single, err));
        return add_pattern(t, single ? "\\p{N}" : "\\p{N}+", where, err);
    } else if (strcmp(type, "Metaspace") == 0) {
        return read_metaspace(v, where, t, err);
    } else {
        return err_set(err, ERR_INPUT,
                       "%s: pre_tokenizer %.60s is not supported; supported: Sequence, Split, "
                       "ByteLevel, Digits, Metaspace",
                       where, type);
    }
    return 0;
}

/* Bytes must be the last thing that happens: nothing else can work on bytes. */
static int check_order(const struct pretokenizer *t, const char *where, struct err *err)
{
    for (int64_t i = 0; i + 1 < t->n; i++)
        if (t->steps[i].kind == BYTES)
            return err_set(err, ERR_INPUT,
                           "%s: pre_tokenizer: ByteLevel is supported only as the "
                           "last step",
                           where);
    return 0;
}

int pretokenizer_read(const json_t *v, const char *where, struct pretokenizer **out,
                      struct err *err)
{
    OWN(pretokenizer_free_at) struct pretokenizer *t = NULL;
    PASS_ON(mem_zalloc(&t, 1, sizeof *t, "pre-tokenizer", err));
    if (v && !json_is_null(v))
        PASS_ON(read_steps(v, where, 0, t, err));
    PASS_ON(check_order(t, where, err));
    for (int64_t i = 0; i < t->n && !t->unassigned; i++)
        if (t->steps[i].regex)
            PASS_ON(regex_compile("\\p{Cn}", where, &t->unassigned, err));
    *out = HAND_OVER(t);
    return 0;
}

void pretokenizer_free(struct pretokenizer *t)
{
    if (!t)
        return;
    for (int64_t i = 0; i < t->n; i++) {
        regex_free(t->steps[i].regex);
        free(t->steps[i].text);
    }
    regex_free(t->unassigned);
    free(t->steps);
    free(t);
}

void pretokenizer_doubt(struct pretokenizer *t, const char *text, size_t len)
{
    size_t at, end;
    char version[32] = "?";
    utf8proc_int32_t c = 0;
    struct err ignored = {0};
    if (!t->unassigned || regex_find(t->unassigned, text, len, 0, &at, &end, &ignored) <= 0)
        return;
    utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(len - at), &c);
    pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version);
    log_warn(
        "the text has U+%04X at byte %zu, which PCRE2's tables (Unicode %s) do not know: other "
        "tokenizers may cut the text differently there",
        (unsigned)c, at, version);
    regex_free(t->unassigned);
    t->unassigned = NULL;
}

bool pretokenizer_bytes(const struct pretokenizer *t)
{
    return t->n > 0 && t->steps[t->n - 1].kind == BYTES;
}

/* ---- running --------------------------------------------------------------------------------- */

/* A stretch of a piece: a match or what lies between two. */
struct cut {
    size_t lo, hi;
    bool match;
};

struct cuts {
    struct cut *v; /* owned */
    int64_t n, cap;
};

static int cuts_add(struct cuts *c, size_t lo, size_t hi, bool match, struct err *err)
{
    PASS_ON(lo == hi ? 0 : mem_grow(&c->v, &c->cap, c->n + 1, sizeof *c->v, "cuts", err));
    if (lo < hi)
        c->v[c->n++] = (struct cut){lo, hi, match};
    return 0;
}

static int find_text(const char *want, const char *s, size_t len, size_t from, size_t *lo,
                     size_t *hi)
{
    size_t k = strlen(want);
    const char *hit = k ? memmem(s + from, len - from, want, k) : NULL;
    if (!hit)
        return 0;
    *lo = (size_t)(hit - s);
    *hi = *lo + k;
    return 1;
}

static int find_cuts(const struct step *t, const char *s, size_t len, struct cuts *c,
                     struct err *err)
{
    size_t at = 0, from = 0, lo, hi;
    int found;
    c->n = 0;
    while (from < len) {
        found = t->regex ? regex_find(t->regex, s, len, from, &lo, &hi, err)
                         : find_text(t->text, s, len, from, &lo, &hi);
        if (found < 0)
            return found;
        if (!found)
            break;
        PASS_ON(cuts_add(c, at, lo, t->invert, err));
        PASS_ON(cuts_add(c, lo, hi, !t->invert, err));
        at = from = hi;
        if (lo == hi) /* an empty match: on to the next character */
            for (from++; from < len && ((unsigned char)s[from] & 0xc0) == 0x80; from++)
                ;
    }
    return cuts_add(c, at, len, t->invert, err);
}

/* Join the cuts by the step's rule: one entry per piece to keep. */
static void merge_cuts(enum behavior behavior, struct cuts *c)
{
    int64_t n = 0;
    for (int64_t i = 0; i < c->n; i++) {
        struct cut cut = c->v[i];
        bool join = false;
        if (behavior == REMOVED && cut.match)
            continue;
        if (behavior == CONTIGUOUS)
            join = n > 0 && c->v[n - 1].match == cut.match;
        else if (behavior == MERGED_WITH_PREVIOUS)
            join = n > 0 && cut.match && !c->v[n - 1].match;
        else if (behavior == MERGED_WITH_NEXT)
            join = n > 0 && !cut.match && c->v[n - 1].match;
        if (join)
            c->v[n - 1] = (struct cut){c->v[n - 1].lo, cut.hi, cut.match};
        else
            c->v[n++] = cut;
    }
    c->n = n;
}

static int run_split(const struct step *t, const struct pieces *in, struct pieces *out,
                     struct err *err)
{
    struct cuts c = {0};
    int rc = 0;
    for (int64_t i = 0; i < in->n; i++) {
        size_t len;
        const char *s = piece(in, i, &len);
        TRY(find_cuts(t, s, len, &c, err));
        merge_cuts(t->behavior, &c);
        if (i == 0)
            out->at_start = in->at_start && c.n > 0 && c.v[0].lo == 0;
        for (int64_t k = 0; k < c.n; k++)
            TRY(pieces_add(out, s + c.v[k].lo, c.v[k].hi - c.v[k].lo, err));
    }
out:
    free(c.v);
    return rc;
}

static int run_prefix_space(const struct pieces *in, struct pieces *out, struct err *err)
{
    OWN(buf_free) struct buf b = {0};
    out->at_start = in->at_start;
    for (int64_t i = 0; i < in->n; i++) {
        size_t len;
        const char *s = piece(in, i, &len);
        buf_reset(&b);
        if (s[0] != ' ')
            buf_puts(&b, " ");
        buf_put(&b, s, len);
        PASS_ON(pieces_add(out, buf_str(&b), b.len, err));
    }
    return 0;
}

/* Spaces become the replacement; one is put in front unless the piece begins with it. */
static int run_metaspace(const struct step *t, const struct pieces *in, struct pieces *out,
                         struct err *err)
{
    size_t k = strlen(t->text);
    OWN(buf_free) struct buf b = {0};
    out->at_start = in->at_start;
    for (int64_t i = 0; i < in->n; i++) {
        size_t len;
        const char *s = piece(in, i, &len);
        bool begins = s[0] == ' ' || (len >= k && memcmp(s, t->text, k) == 0);
        buf_reset(&b);
        if (!begins &&
            (t->scheme == PREPEND_ALWAYS || (t->scheme == PREPEND_FIRST && i == 0 && in->at_start)))
            buf_puts(&b, t->text);
        for (size_t c = 0; c < len; c++)
            if (s[c] == ' ')
                buf_put(&b, t->text, k);
            else
                buf_put(&b, s + c, 1);
        PASS_ON(buf_check(&b, "pieces of text", err));
        PASS_ON(pieces_add(out, buf_str(&b), b.len, err));
    }
    return 0;
}

int pretokenizer_run(const struct pretokenizer *t, struct pieces *p, struct err *err)
{
    OWN(pieces_free) struct pieces out = {0};
    for (int64_t i = 0; i < t->n; i++) {
        const struct step *s = t->steps + i;
        if (s->kind == BYTES)
            continue;
        pieces_reset(&out);
        if (s->kind == SPLIT)
            PASS_ON(run_split(s, p, &out, err));
        else if (s->kind == PREFIX_SPACE)
            PASS_ON(run_prefix_space(p, &out, err));
        else
            PASS_ON(run_metaspace(s, p, &out, err));
        struct pieces swap = *p;
        *p = out;
        out = swap;
    }
    return 0;
}
