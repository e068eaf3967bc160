/*
 * tokenizer.c - reading tokenizer.json and tokenizer_config.json, and the way of a text through
 * their steps (tokenizer.h).
 */
#include "capture/tokenizer.h"

#include "capture/addedtokens.h"
#include "core/fileio.h"
#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#define MAX_FILE ((size_t)256 << 20)
#define MAX_DEPTH 8

struct tokenizer {
    struct bpe *bpe;
    struct added_tokens *added;
    struct normalizer *norm;
    struct pretokenizer *pre;
    bool bytes;                /* the vocabulary spells bytes */
    struct ids prefix, suffix; /* special tokens around every text */
    bool silent;               /* nothing says what stands around a text */
};

void tokenizer_close(struct tokenizer **tp)
{
    struct tokenizer *t = *tp;
    if (!t)
        return;
    bpe_free(t->bpe);
    added_free(t->added);
    normalizer_free(t->norm);
    pretokenizer_free(t->pre);
    free(t->prefix.v);
    free(t->suffix.v);
    free(t);
    *tp = NULL;
}

static int32_t token_id(const struct tokenizer *t, const char *text)
{
    int32_t id = added_id(t->added, text);
    return id >= 0 ? id : bpe_id(t->bpe, text);
}

/* ---- special tokens -------------------------------------------------------------------------- */

/* The ids of a special token of a template. */
static int template_ids(const struct tokenizer *t, const json_t *processor, const char *name,
                        const char *where, struct ids *out, struct err *err)
{
    const json_t *token = json_object_get(json_object_get(processor, "special_tokens"), name);
    const json_t *list = json_object_get(token, "ids");
    int rc = 0;

    if (!json_is_array(list))
        FAIL(err, ERR_INPUT, "%s: post_processor: special token \"%.60s\" has no \"ids\"", where,
             name);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 ||
            json_integer_value(v) > tokenizer_max_id(t))
            FAIL(err, ERR_INPUT, "%s: post_processor: an id of \"%.60s\" is not a token id", where,
                 name);
        TRY(ids_add(out, (int32_t)json_integer_value(v), err));
    }
out:
    return rc;
}

/* "single": special tokens and once the text, {"Sequence": {"id": "A"}}. */
static int read_template(struct tokenizer *t, const json_t *v, const char *where, struct err *err)
{
    const json_t *list = json_object_get(v, "single");
    bool text_seen = false;
    int rc = 0;

    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *e = json_array_get(list, i), *special = json_object_get(e, "SpecialToken");
        const char *name;
        if (special) {
            TRY(jget_str(special, "id", where, &name, err));
            TRY(template_ids(t, v, name, where, text_seen ? &t->suffix : &t->prefix, err));
        } else if (json_object_get(e, "Sequence") && !text_seen) {
            text_seen = true;
        } else {
            FAIL(err, ERR_INPUT,
                 "%s: post_processor: element %zu of \"single\" is neither a special "
                 "token nor the text",
                 where, i);
        }
    }
    if (!text_seen)
        FAIL(err, ERR_INPUT,
             "%s: post_processor: \"single\" must be an array that holds the text "
             "once",
             where);
    t->silent = false;
out:
    return rc;
}

static int read_processor(struct tokenizer *t, const json_t *v, const char *where, int depth,
                          struct err *err)
{
    const char *type;
    int rc = 0;

    if (!v || json_is_null(v))
        return 0;
    TRY(jget_str(v, "type", where, &type, err));
    if (strcmp(type, "TemplateProcessing") == 0) {
        TRY(read_template(t, v, where, err));
    } else if (strcmp(type, "Sequence") == 0 && depth < MAX_DEPTH) {
        const json_t *list = json_object_get(v, "processors");
        for (size_t i = 0; i < json_array_size(list); i++)
            TRY(read_processor(t, json_array_get(list, i), where, depth + 1, err));
    } else if (strcmp(type, "ByteLevel") != 0) { /* which only moves offsets */
        FAIL(err, ERR_INPUT,
             "%s: post_processor %.60s is not supported; supported: "
             "TemplateProcessing, ByteLevel, Sequence",
             where, type);
    }
out:
    return rc;
}

/* One special token at an end of the text, as tokenizer_config.json wants it. */
static int read_flag(struct tokenizer *t, const json_t *config, const char *flag, const char *key,
                     const char *where, struct ids *ids, struct err *err)
{
    const json_t *v = json_object_get(config, key);
    const char *text = json_string_value(json_is_object(v) ? json_object_get(v, "content") : v);
    bool add = false;
    int rc = 0;

    if (!json_object_get(config, flag) || json_is_null(json_object_get(config, flag)))
        return 0;
    TRY(jget_bool_opt(config, flag, where, &add, err));
    ids->n = 0;
    if (!add)
        return 0;
    if (!text || token_id(t, text) < 0)
        FAIL(err, ERR_INPUT, "%s: %s is true, but \"%s\" names no token of tokenizer.json", where,
             flag, key);
    TRY(ids_add(ids, token_id(t, text), err));
out:
    return rc;
}

static int read_config(struct tokenizer *t, const char *dir, struct err *err)
{
    char path[4096];
    json_t *o = NULL;
    bool there;
    int rc = 0;

    snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
    TRY(io_exists(path, &there, err));
    if (!there)
        return 0;
    TRY(json_read_file(path, MAX_FILE, &o, err));
    if (!json_is_object(o))
        FAIL(err, ERR_INPUT, "%s: not a JSON object", path);
    TRY(read_flag(t, o, "add_bos_token", "bos_token", path, &t->prefix, err));
    TRY(read_flag(t, o, "add_eos_token", "eos_token", path, &t->suffix, err));
    t->silent = false;
out:
    json_decref(o);
    return rc;
}

bool tokenizer_wants_bos(const struct tokenizer *t)
{
    return t->silent;
}

int64_t tokenizer_max_id(const struct tokenizer *t)
{
    int64_t max = bpe_max_id(t->bpe), added = added_max_id(t->added);
    return added > max ? added : max;
}

/* ---- reading --------------------------------------------------------------------------------- */

static int read_tokenizer(struct tokenizer *t, const char *path, struct err *err)
{
    json_t *o = NULL;
    bool there;
    int rc = 0;

    TRY(io_exists(path, &there, err));
    if (!there)
        FAIL(err, ERR_INPUT,
             "%s does not exist; capture reads tokenizer.json only (a "
             "tokenizer.model has to be converted), or give token ids with --tokens-file",
             path);
    TRY(json_read_file(path, MAX_FILE, &o, err));
    if (!json_is_object(o))
        FAIL(err, ERR_INPUT, "%s: not a JSON object", path);
    TRY(bpe_read(json_object_get(o, "model"), path, &t->bpe, err));
    TRY(normalizer_read(json_object_get(o, "normalizer"), path, &t->norm, err));
    TRY(pretokenizer_read(json_object_get(o, "pre_tokenizer"), path, &t->pre, err));
    t->bytes = pretokenizer_bytes(t->pre);
    TRY(added_read(json_object_get(o, "added_tokens"), path, t->bpe, t->norm, &t->added, err));
    TRY(read_processor(t, json_object_get(o, "post_processor"), path, 0, err));
out:
    json_decref(o);
    return rc;
}

int tokenizer_open(const char *dir, struct tokenizer **out, struct err *err)
{
    struct tokenizer *t = NULL;
    char path[4096];
    int rc = 0;

    TRY(mem_zalloc(&t, 1, sizeof *t, "tokenizer", err));
    t->silent = true;
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    TRY(read_tokenizer(t, path, err));
    TRY(read_config(t, dir, err));
    *out = t;
    t = NULL;
out:
    tokenizer_close(&t);
    return rc;
}

/* ---- encoding -------------------------------------------------------------------------------- */

/* What one text needs on its way. */
struct work {
    struct buf normal, spelled;
    struct pieces pieces;
    struct stretches raw, inner;
    struct ids ids;
};

static void work_free(struct work *w)
{
    buf_free(&w->normal);
    buf_free(&w->spelled);
    pieces_free(&w->pieces);
    free(w->raw.v);
    free(w->inner.v);
    free(w->ids.v);
}

/* Normalised text between added tokens. */
static int encode_plain(const struct tokenizer *t, struct work *w, const char *s, size_t len,
                        bool at_start, struct err *err)
{
    int rc = 0;

    pieces_reset(&w->pieces);
    w->pieces.at_start = at_start;
    TRY(pieces_add(&w->pieces, s, len, err));
    TRY(pretokenizer_run(t->pre, &w->pieces, err));
    for (int64_t i = 0; i < w->pieces.n; i++) {
        size_t n;
        const char *p = piece(&w->pieces, i, &n);
        if (t->bytes) {
            char c[3];
            buf_reset(&w->spelled);
            for (size_t k = 0; k < n; k++) {
                byte_char((uint8_t)p[k], c);
                buf_puts(&w->spelled, c);
            }
            TRY(buf_check(&w->spelled, "text as bytes", err));
            p = w->spelled.data;
            n = w->spelled.len;
        }
        TRY(bpe_encode(t->bpe, p, n, &w->ids, err));
    }
out:
    return rc;
}

/* A stretch of the text that holds no added token of the raw kind. */
static int encode_stretch(const struct tokenizer *t, struct work *w, const char *s, size_t len,
                          bool at_start, struct err *err)
{
    int rc = 0;

    TRY(normalizer_run(t->norm, s, len, &w->normal, err));
    TRY(added_split(t->added, true, buf_str(&w->normal), w->normal.len, &w->inner, err));
    for (int64_t i = 0; i < w->inner.n; i++) {
        struct stretch x = w->inner.v[i];
        if (x.id >= 0)
            TRY(ids_add(&w->ids, x.id, err));
        else
            TRY(encode_plain(t, w, w->normal.data + x.lo, x.hi - x.lo, at_start && x.lo == 0, err));
    }
out:
    return rc;
}

static int add_all(struct ids *to, const struct ids *from, struct err *err)
{
    int rc = 0;
    for (int64_t i = 0; i < from->n; i++)
        TRY(ids_add(to, from->v[i], err));
out:
    return rc;
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, bool *added_bos,
                     int32_t **ids, int64_t *n, struct err *err)
{
    struct work w = {0};
    int64_t bad = utf8_invalid(text, len);
    int rc = 0;

    if (bad >= 0)
        FAIL(err, ERR_INPUT, "the text is not valid UTF-8 at byte %lld", (long long)bad);
    TRY(add_all(&w.ids, &t->prefix, err));
    TRY(added_split(t->added, false, text, len, &w.raw, err));
    for (int64_t i = 0; i < w.raw.n; i++) {
        struct stretch x = w.raw.v[i];
        if (x.id >= 0)
            TRY(ids_add(&w.ids, x.id, err));
        else
            TRY(encode_stretch(t, &w, text + x.lo, x.hi - x.lo, x.lo == 0, err));
    }
    TRY(add_all(&w.ids, &t->suffix, err));
    TRY(mem_grow(&w.ids.v, &w.ids.cap, 1, sizeof *w.ids.v, "token ids", err));
    if (added_bos)
        *added_bos = t->prefix.n > 0;
    *ids = w.ids.v;
    *n = w.ids.n;
    w.ids.v = NULL;
out:
    work_free(&w);
    return rc;
}

int tokenizer_encode_plain(const struct tokenizer *t, const char *text, size_t len, int32_t **ids,
                           int64_t *n, struct err *err)
{
    struct work w = {0};
    int64_t bad = utf8_invalid(text, len);
    int rc = 0;

    if (bad >= 0)
        FAIL(err, ERR_INPUT, "the text is not valid UTF-8 at byte %lld", (long long)bad);
    if (len > 0) {
        TRY(normalizer_run(t->norm, text, len, &w.normal, err));
        TRY(encode_plain(t, &w, buf_str(&w.normal), w.normal.len, true, err));
    }
    TRY(mem_grow(&w.ids.v, &w.ids.cap, 1, sizeof *w.ids.v, "token ids", err));
    *ids = w.ids.v;
    *n = w.ids.n;
    w.ids.v = NULL;
out:
    work_free(&w);
    return rc;
}

int32_t tokenizer_id(const struct tokenizer *t, const char *token)
{
    return token_id(t, token);
}

/* ---- decoding -------------------------------------------------------------------------------- */

/* The bytes of a token of the vocabulary. */
static void token_bytes(const struct tokenizer *t, int64_t id, const char *text, struct buf *b)
{
    int byte = bpe_fallback_byte(t->bpe, id);
    if (byte >= 0) {
        buf_put(b, &(char){(char)byte}, 1);
        return;
    }
    for (size_t at = 0, len = strlen(text); at < len;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t k =
            utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(len - at), &c);
        if (k <= 0)
            break;
        byte = t->bytes ? char_byte(c) : c == 0x2581 ? ' ' : -1;
        if (byte >= 0)
            buf_put(b, &(char){(char)byte}, 1);
        else
            buf_put(b, text + at, (size_t)k);
        at += (size_t)k;
    }
}

/* Unknown ids become `unknown`. */
static void all_bytes(const struct tokenizer *t, const int32_t *ids, int64_t n, const char *unknown,
                      struct buf *b)
{
    for (int64_t i = 0; i < n; i++) {
        const char *added = added_text(t->added, ids[i]), *text = bpe_token(t->bpe, ids[i]);
        if (added)
            buf_puts(b, added);
        else if (text)
            token_bytes(t, ids[i], text, b);
        else
            buf_puts(b, unknown);
    }
}

void tokenizer_decode_bytes(const struct tokenizer *t, const int32_t *ids, int64_t n,
                            struct buf *out)
{
    all_bytes(t, ids, n, "", out);
}

void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, int64_t n, struct buf *out)
{
    static const char unknown[] = "\xef\xbf\xbd";
    struct buf b = {0};
    int64_t bad;
    size_t at = 0;

    all_bytes(t, ids, n, unknown, &b);
    while (at < b.len && (bad = utf8_invalid(b.data + at, b.len - at)) >= 0) {
        buf_put(out, b.data + at, (size_t)bad);
        buf_puts(out, unknown);
        at += (size_t)bad + 1;
    }
    if (at < b.len)
        buf_put(out, b.data + at, b.len - at);
    out->failed |= b.failed;
    buf_free(&b);
}

int tokenizer_texts(const char *dir, const int32_t *ids, int64_t n, struct str_list *out,
                    struct err *err)
{
    struct tokenizer *t = NULL;
    struct buf b = {0};
    int rc = 0;
    TRY(tokenizer_open(dir, &t, err));
    for (int64_t i = 0; i < n; i++) {
        buf_reset(&b);
        tokenizer_decode(t, ids + i, 1, &b);
        TRY(buf_check(&b, "text of a token", err));
        str_list_add(out, buf_str(&b));
    }
    if (out->failed)
        FAIL(err, ERR_NOMEM, "texts of tokens: out of memory");
out:
    tokenizer_close(&t);
    buf_free(&b);
    return rc;
}
