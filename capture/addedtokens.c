/*
 * addedtokens.c - see addedtokens.h. Tokens are sorted by first byte, longest first, so that the
 * first one that fits at a place is the longest. O(text x tokens with that first byte).
 */
#include "capture/addedtokens.h"

#include "core/mem.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#define MAX_ID (1 << 24)

struct added {
    char *text;  /* as written in the file */
    char *match; /* as looked for: normalised if `normalized` */
    size_t len;  /* of match */
    int32_t id;
    bool single_word, lstrip, rstrip, normalized;
};

struct added_tokens {
    struct added *v; /* owned, by first byte of match, longest first */
    int64_t n;
    int64_t first[257]; /* tokens that begin with byte b: [first[b], first[b + 1]) */
};

void added_free(struct added_tokens *a)
{
    if (!a)
        return;
    for (int64_t i = 0; a->v && i < a->n; i++) {
        free(a->v[i].text);
        free(a->v[i].match);
    }
    free(a->v);
    free(a);
}

int32_t added_id(const struct added_tokens *a, const char *text)
{
    for (int64_t i = 0; i < a->n; i++)
        if (strcmp(a->v[i].text, text) == 0)
            return a->v[i].id;
    return -1;
}

const char *added_text(const struct added_tokens *a, int64_t id)
{
    for (int64_t i = 0; i < a->n; i++)
        if (a->v[i].id == id)
            return a->v[i].text;
    return NULL;
}

int64_t added_max_id(const struct added_tokens *a)
{
    int64_t max = -1;
    for (int64_t i = 0; i < a->n; i++)
        max = a->v[i].id > max ? a->v[i].id : max;
    return max;
}

/* ---- reading --------------------------------------------------------------------------------- */

static int read_one(const json_t *v, const char *where, const struct bpe *bpe,
                    const struct normalizer *norm, struct added *t, struct err *err)
{
    const char *text;
    int64_t id;
    bool special = false;
    struct buf b = {0};
    int rc = 0;

    TRY(jget_str(v, "content", where, &text, err));
    TRY(jget_int(v, "id", where, &id, err));
    if (id < 0 || id > MAX_ID)
        FAIL(err, ERR_INPUT, "%s: added token \"%.60s\": id %lld is not within 0..%d", where, text,
             (long long)id, MAX_ID);
    t->id = bpe_id(bpe, text);
    if (t->id < 0)
        t->id = (int32_t)id;
    TRY(jget_bool_opt(v, "special", where, &special, err));
    t->normalized = !special;
    TRY(jget_bool_opt(v, "normalized", where, &t->normalized, err));
    TRY(jget_bool_opt(v, "single_word", where, &t->single_word, err));
    TRY(jget_bool_opt(v, "lstrip", where, &t->lstrip, err));
    TRY(jget_bool_opt(v, "rstrip", where, &t->rstrip, err));
    buf_puts(&b, text);
    if (t->normalized)
        TRY(normalizer_run(norm, text, strlen(text), &b, err));
    t->text = strdup(text);
    t->match = strdup(buf_str(&b));
    if (!t->text || !t->match)
        FAIL(err, ERR_NOMEM, "%s: added tokens", where);
    t->len = strlen(t->match);
out:
    buf_free(&b);
    return rc;
}

static int by_first_byte(const void *pa, const void *pb)
{
    const struct added *a = pa, *b = pb;
    unsigned char ca = (unsigned char)a->match[0], cb = (unsigned char)b->match[0];
    if (ca != cb)
        return ca < cb ? -1 : 1;
    if (a->len != b->len)
        return a->len > b->len ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

int added_read(const json_t *list, const char *where, const struct bpe *bpe,
               const struct normalizer *norm, struct added_tokens **out, struct err *err)
{
    struct added_tokens *a = NULL;
    size_t n = json_array_size(list);
    int rc = 0;

    TRY(mem_zalloc(&a, 1, sizeof *a, "added tokens", err));
    if (list && !json_is_null(list) && !json_is_array(list))
        FAIL(err, ERR_INPUT, "%s: \"added_tokens\" must be an array", where);
    TRY(mem_zalloc(&a->v, (int64_t)n, sizeof *a->v, "added tokens", err));
    for (size_t i = 0; i < n; i++) {
        a->n = (int64_t)i + 1;
        TRY(read_one(json_array_get(list, i), where, bpe, norm, a->v + i, err));
    }
    qsort(a->v, n, sizeof *a->v, by_first_byte);
    for (int64_t b = 0, i = 0; b <= 256; b++) {
        while (i < a->n && (unsigned char)a->v[i].match[0] < b)
            i++;
        a->first[b] = i;
    }
    *out = a;
    a = NULL;
out:
    added_free(a);
    return rc;
}

/* ---- matching -------------------------------------------------------------------------------- */

static utf8proc_int32_t char_at(const char *s, size_t len, size_t at, size_t *next)
{
    utf8proc_int32_t c = -1;
    utf8proc_ssize_t n =
        utf8proc_iterate((const utf8proc_uint8_t *)s + at, (utf8proc_ssize_t)(len - at), &c);
    *next = at + (n > 0 ? (size_t)n : 1);
    return c;
}

/* Start of the character that ends before `at` (> 0). */
static size_t char_before(const char *s, size_t at)
{
    do
        at--;
    while (at > 0 && ((unsigned char)s[at] & 0xc0) == 0x80);
    return at;
}

static bool is_space(utf8proc_int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return (c >= 9 && c <= 13) || c == 0x85 || k == UTF8PROC_CATEGORY_ZS ||
           k == UTF8PROC_CATEGORY_ZL || k == UTF8PROC_CATEGORY_ZP;
}

/* A word character as in \w: letters, marks, digits, connectors, the joiners, and the enclosed
 * letters that are alphabetic without being letters. */
static bool is_word(utf8proc_int32_t c)
{
    if (c == 0x200c || c == 0x200d || (c >= 0x24b6 && c <= 0x24e9) ||
        (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
        (c >= 0x1f170 && c <= 0x1f189))
        return true;
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return false;
    }
}

/* The token that matches at text[at], NULL if none does. */
static const struct added *match_at(const struct added_tokens *a, bool normalized, const char *text,
                                    size_t len, size_t at)
{
    unsigned char c = (unsigned char)text[at];
    for (int64_t i = a->first[c]; i < a->first[c + 1]; i++) {
        const struct added *t = a->v + i;
        if (t->normalized == normalized && t->len > 0 && t->len <= len - at &&
            memcmp(text + at, t->match, t->len) == 0)
            return t;
    }
    return NULL;
}

static bool stands_alone(const char *text, size_t len, size_t lo, size_t hi)
{
    size_t next;
    return (lo == 0 || !is_word(char_at(text, len, char_before(text, lo), &next))) &&
           (hi == len || !is_word(char_at(text, len, hi, &next)));
}

static int add_stretch(struct stretches *s, size_t lo, size_t hi, int32_t id, struct err *err)
{
    int rc = lo == hi ? 0 : mem_grow(&s->v, &s->cap, s->n + 1, sizeof *s->v, "stretches", err);
    if (rc == 0 && lo < hi)
        s->v[s->n++] = (struct stretch){lo, hi, id};
    return rc;
}

int added_split(const struct added_tokens *a, bool normalized, const char *text, size_t len,
                struct stretches *out, struct err *err)
{
    size_t done = 0, at = 0;
    int rc = 0;

    out->n = 0;
    while (at < len) {
        const struct added *t = match_at(a, normalized, text, len, at);
        if (!t) {
            at++;
            continue;
        }
        size_t lo = at, hi = at + t->len, next;
        at = hi;
        if (t->single_word && !stands_alone(text, len, lo, hi))
            continue;
        if (t->lstrip)
            while (lo > done && is_space(char_at(text, len, char_before(text, lo), &next)))
                lo = char_before(text, lo);
        if (t->rstrip)
            while (hi < len && is_space(char_at(text, len, hi, &next)))
                hi = next;
        /* A match inside the white space that the token before has taken begins there. */
        if (lo < done)
            lo = done;
        TRY(add_stretch(out, done, lo, -1, err));
        TRY(add_stretch(out, lo, hi, t->id, err));
        done = hi;
    }
    TRY(add_stretch(out, done, len, -1, err));
out:
    return rc;
}
