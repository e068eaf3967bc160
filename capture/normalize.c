/*
 * normalize.c - normalisers of tokenizer.json: Unicode normal forms (Unicode annex 15, through
 * utf8proc), Prepend and Replace (the space marker of sentencepiece-like vocabularies).
 */
#include "capture/pretokenize.h"
#include "capture/regex.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum kind { FORM, PREPEND, REPLACE, REPLACE_REGEX };

struct step {
    enum kind kind;
    utf8proc_option_t form; /* FORM */
    char *text, *with;      /* PREPEND: text. REPLACE: text (pattern) by `with` */
    struct regex *regex;
};

struct normalizer {
    struct step *steps; /* owned */
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

/* ---- reading --------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    utf8proc_option_t form;
} forms[] = {
    {"NFC", UTF8PROC_STABLE | UTF8PROC_COMPOSE},
    {"NFD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE},
    {"NFKC", UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
    {"NFKD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT},
};

static int copy_text(const json_t *v, const char *key, const char *where, char **out,
                     struct err *err)
{
    const char *s;
    int rc = jget_str(v, key, where, &s, err);
    if (rc)
        return rc;
    *out = strdup(s);
    return *out ? 0 : err_set(err, ERR_NOMEM, "%s: normalizer", where);
}

static int read_replace(const json_t *v, const char *where, struct step *s, struct err *err)
{
    const json_t *pattern = json_object_get(v, "pattern");
    const char *regex = NULL;
    int rc = 0;

    TRY(copy_text(v, "content", where, &s->with, err));
    TRY(jget_str_opt(pattern, "Regex", where, &regex, err));
    s->kind = regex ? REPLACE_REGEX : REPLACE;
    if (regex)
        return regex_compile(regex, where, &s->regex, err);
    TRY(copy_text(pattern, "String", where, &s->text, err));
out:
    return rc;
}

static int read_steps(const json_t *v, const char *where, int depth, struct normalizer *n,
                      struct err *err)
{
    const char *type;
    int rc = 0;

    TRY(jget_str(v, "type", where, &type, err));
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(v, "normalizers");
        if (!json_is_array(list) || depth > 8)
            FAIL(err, ERR_INPUT,
                 "%s: normalizer Sequence: \"normalizers\" must be an array, nested "
                 "at most 8 deep",
                 where);
        for (size_t i = 0; i < json_array_size(list); i++)
            TRY(read_steps(json_array_get(list, i), where, depth + 1, n, err));
        return 0;
    }
    TRY(mem_grow(&n->steps, &n->cap, n->n + 1, sizeof *n->steps, "normalizer", err));
    struct step *s = memset(n->steps + n->n++, 0, sizeof *s);
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (strcmp(type, forms[i].name) == 0) {
            s->kind = FORM;
            s->form = forms[i].form;
            return 0;
        }
    if (strcmp(type, "Prepend") == 0) {
        s->kind = PREPEND;
        TRY(copy_text(v, "prepend", where, &s->text, err));
    } else if (strcmp(type, "Replace") == 0) {
        TRY(read_replace(v, where, s, err));
    } else {
        FAIL(err, ERR_INPUT,
             "%s: normalizer %.60s is not supported; supported: Sequence, NFC, NFD, "
             "NFKC, NFKD, Prepend, Replace",
             where, type);
    }
out:
    return rc;
}

int normalizer_read(const json_t *v, const char *where, struct normalizer **out, struct err *err)
{
    struct normalizer *n = NULL;
    int rc = 0;

    TRY(mem_zalloc(&n, 1, sizeof *n, "normalizer", err));
    if (v && !json_is_null(v))
        TRY(read_steps(v, where, 0, n, err));
    *out = n;
    n = NULL;
out:
    normalizer_free(n);
    return rc;
}

/* ---- running --------------------------------------------------------------------------------- */

static int run_form(const struct step *s, const char *text, size_t len, struct buf *out,
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

static void run_replace(const struct step *s, const char *text, size_t len, struct buf *out)
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

static int run_regex(const struct step *s, const char *text, size_t len, struct buf *out,
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
    struct buf in = {0};
    int rc = 0;

    buf_reset(out);
    buf_put(out, text, len);
    for (int64_t i = 0; i < n->n; i++) {
        const struct step *s = n->steps + i;
        struct buf swap = in;
        in = *out;
        *out = swap;
        buf_reset(out);
        if (s->kind == FORM)
            TRY(run_form(s, buf_str(&in), in.len, out, err));
        else if (s->kind == REPLACE_REGEX)
            TRY(run_regex(s, buf_str(&in), in.len, out, err));
        else if (s->kind == REPLACE)
            run_replace(s, buf_str(&in), in.len, out);
        else if (in.len) {
            buf_puts(out, s->text);
            buf_put(out, in.data, in.len);
        }
    }
    TRY(buf_check(out, "normalised text", err));
out:
    buf_free(&in);
    return rc;
}
