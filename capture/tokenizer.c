/*
 * tokenizer.c - reading tokenizer.json and tokenizer_config.json, and the way of a text through
 * their steps (tokenizer.h).
 */
#include "capture/tokenizer.h"

#include "core/checkpoint.h"
#include "capture/pretokenize.h"
#include "core/intmath.h"
#include "core/json.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/strmap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* ---- byte-pair encoding --------------------------------------------------------------------- */

/* A growing list of token ids; zero it, release v with free(). */
struct ids {
    int32_t *v;
    int64_t n, cap;
};

#define MAX_ID (1 << 24)
#define CHAR_MAX_BYTES 4

/* What two adjacent symbols become. */
struct merge {
    uint64_t pair; /* left << 32 | right */
    int32_t rank, id;
};

struct symbol {
    int32_t id, len; /* len 0: merged into the symbol before it */
    int32_t prev, next;
};

struct entry {
    int32_t rank, at, id;
};

struct bpe {
    struct strmap vocab;
    char **tokens; /* [n_tokens], owned; NULL where an id is not used */
    int64_t n_tokens;
    struct merge *merges; /* [merge_cap], rank -1 = free slot */
    uint64_t merge_cap;   /* power of two */
    bool byte_fallback, ignore_merges, fuse_unknown;
    int32_t unknown;         /* -1 if none */
    int32_t byte_token[256]; /* ids of "<0xNN>", -1 if absent */
    /* scratch of bpe_encode */
    struct symbol *symbols;
    struct entry *heap;
    char *word;
    int64_t symbol_cap, heap_cap, n_heap, word_cap;
};

static int ids_add(struct ids *l, int32_t id, struct err *err)
{
    PASS_ON(mem_grow(&l->v, &l->cap, l->n + 1, sizeof *l->v, "token ids", err));
    l->v[l->n++] = id;
    return 0;
}

/* accepts NULL */
static void bpe_free(struct bpe *b)
{
    if (!b)
        return;
    for (int64_t i = 0; b->tokens && i < b->n_tokens; i++)
        free(b->tokens[i]);
    free(b->tokens);
    strmap_free(&b->vocab);
    free(b->merges);
    free(b->symbols);
    free(b->heap);
    free(b->word);
    free(b);
}
OWN_AT(bpe_free, struct bpe *)

/* -1 if unknown */
static int32_t bpe_id(const struct bpe *b, const char *token)
{
    return (int32_t)strmap_get(&b->vocab, token);
}

/* NULL if there is none */
static const char *bpe_token(const struct bpe *b, int64_t id)
{
    return id >= 0 && id < b->n_tokens ? b->tokens[id] : NULL;
}

static int64_t bpe_max_id(const struct bpe *b)
{
    return b->n_tokens - 1;
}

/* The byte that the token "<0xNN>" of a byte-fallback vocabulary stands for, else -1. */
static int bpe_fallback_byte(const struct bpe *b, int64_t id)
{
    const char *token = b->byte_fallback ? bpe_token(b, id) : NULL;
    unsigned byte;
    char tail;
    return token && sscanf(token, "<0x%2x%c", &byte, &tail) == 2 && tail == '>' && byte < 256 &&
                   b->byte_token[byte] == id
               ? (int)byte
               : -1;
}

/* ---- vocabulary ------------------------------------------------------------------------------ */

static int count_ids(const json_t *vocab, const char *where, int64_t *n, struct err *err)
{
    const char *token;
    json_t *v;
    *n = 0;
    json_object_foreach((json_t *)vocab, token, v)
    {
        int64_t id = json_integer_value(v);
        if (json_foreign(token))
            return err_set(err, ERR_INPUT,
                           "%s: model: the token with id %lld holds \\u0000 or half of a surrogate "
                           "pair",
                           where, (long long)id);
        if (!json_is_integer(v) || id < 0 || id > MAX_ID)
            return err_set(err, ERR_INPUT,
                           "%s: model: the id of \"%.60s\" must be an integer in "
                           "0..%d",
                           where, token, MAX_ID);
        *n = id >= *n ? id + 1 : *n;
    }
    return *n > 0 ? 0 : err_set(err, ERR_INPUT, "%s: model: the vocabulary is empty", where);
}

static int read_vocab(const json_t *model, const char *where, struct bpe *b, struct err *err)
{
    const json_t *vocab = json_object_get(model, "vocab");
    const char *token;
    json_t *v;
    if (!json_is_object(vocab))
        return err_set(err, ERR_INPUT, "%s: model: \"vocab\" must be an object from token to id",
                       where);
    PASS_ON(count_ids(vocab, where, &b->n_tokens, err));
    PASS_ON(mem_zalloc(&b->tokens, b->n_tokens, sizeof *b->tokens, "vocabulary", err));
    json_object_foreach((json_t *)vocab, token, v)
    {
        int64_t id = json_integer_value(v);
        if (b->tokens[id])
            return err_set(err, ERR_INPUT,
                           "%s: model: \"%.60s\" and \"%.60s\" have the same id %lld", where,
                           b->tokens[id], token, (long long)id);
        PASS_ON(mem_dup(&b->tokens[id], token, where, err));
        PASS_ON(strmap_put(&b->vocab, token, id, err));
    }
    return 0;
}

static void find_byte_tokens(struct bpe *b)
{
    char text[8];
    for (unsigned i = 0; i < 256; i++) {
        snprintf(text, sizeof text, "<0x%02X>", i);
        b->byte_token[i] = bpe_id(b, text);
    }
}

/* ---- merges ---------------------------------------------------------------------------------- */

static uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* The slot of a pair, or the free slot where it belongs. */
static struct merge *merge_slot(const struct bpe *b, uint64_t pair)
{
    uint64_t h = pair * 0x9e3779b97f4a7c15u;
    for (uint64_t i = h ^ h >> 32;; i++) {
        struct merge *m = b->merges + (i & (b->merge_cap - 1));
        if (m->rank < 0 || m->pair == pair)
            return m;
    }
}

static const struct merge *merge_find(const struct bpe *b, int32_t left, int32_t right)
{
    const struct merge *m = merge_slot(b, pair_of(left, right));
    return m->rank < 0 ? NULL : m;
}

/* A merge is "left right" or ["left", "right"]. */
static int merge_parts(const json_t *v, const char *where, size_t i, struct buf *left,
                       struct buf *right, struct err *err)
{
    const char *text = json_string_value(v), *space = text ? strchr(text, ' ') : NULL;
    buf_reset(left);
    buf_reset(right);
    if (space && !strchr(space + 1, ' ')) {
        buf_put(left, text, (size_t)(space - text));
        buf_puts(right, space + 1);
    } else if (json_array_size(v) == 2 && json_is_string(json_array_get(v, 0)) &&
               json_is_string(json_array_get(v, 1))) {
        buf_puts(left, json_string_value(json_array_get(v, 0)));
        buf_puts(right, json_string_value(json_array_get(v, 1)));
    }
    if (left->len == 0 || right->len == 0)
        return err_set(err, ERR_INPUT,
                       "%s: model: merge %zu must be \"left right\" or [\"left\", "
                       "\"right\"]",
                       where, i);
    return 0;
}

static int add_merge(struct bpe *b, const char *where, size_t i, const struct buf *left,
                     const struct buf *right, struct buf *both, struct err *err)
{
    buf_reset(both);
    buf_put(both, left->data, left->len);
    buf_put(both, right->data, right->len);
    if (buf_check(both, "merge", err))
        return ERR_NOMEM;
    const char *text[] = {left->data, right->data, both->data};
    int32_t id[3];
    for (int k = 0; k < 3; k++)
        if ((id[k] = bpe_id(b, text[k])) < 0)
            return err_set(err, ERR_INPUT,
                           "%s: model: merge %zu (\"%.60s\" \"%.60s\"): \"%.60s\" is "
                           "not in the vocabulary",
                           where, i, text[0], text[1], text[k]);
    struct merge *m = merge_slot(b, pair_of(id[0], id[1]));
    *m = (struct merge){pair_of(id[0], id[1]), (int32_t)i, id[2]};
    return 0;
}

static int read_merges(const json_t *model, const char *where, struct bpe *b, struct err *err)
{
    const json_t *list = json_object_get(model, "merges");
    OWN(buf_free) struct buf left = {0}, right = {0}, both = {0};
    size_t n = json_array_size(list);
    if (!json_is_array(list) || n > INT32_MAX / 4)
        return err_set(err, ERR_INPUT, "%s: model: \"merges\" must be an array", where);
    for (b->merge_cap = 16; b->merge_cap < 2 * n; b->merge_cap *= 2)
        ;
    PASS_ON(mem_alloc(&b->merges, (int64_t)b->merge_cap, sizeof *b->merges, "merges", err));
    for (uint64_t i = 0; i < b->merge_cap; i++)
        b->merges[i].rank = -1;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        if (json_is_string(v) && strncmp(json_string_value(v), "#version", 8) == 0)
            continue;
        PASS_ON(merge_parts(v, where, i, &left, &right, err));
        PASS_ON(add_merge(b, where, i, &left, &right, &both, err));
    }
    return 0;
}

/* ---- the model ------------------------------------------------------------------------------- */

static int read_options(const json_t *model, const char *where, struct bpe *b, struct err *err)
{
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const char *type = "BPE", *text = NULL;
    double dropout = 0;
    PASS_ON(jget_str_opt(model, "type", where, &type, err));
    if (strcmp(type, "BPE") != 0)
        return err_set(err, ERR_INPUT, "%s: model type %.60s is not supported; supported: BPE",
                       where, type);
    PASS_ON(jget_num_opt(model, "dropout", where, &dropout, err));
    if (dropout != 0)
        return err_set(err, ERR_INPUT,
                       "%s: model: dropout %g makes tokens random; only 0 is supported", where,
                       dropout);
    for (int i = 0; i < 2; i++) {
        text = NULL;
        PASS_ON(jget_str_opt(model, affixes[i], where, &text, err));
        if (text && text[0])
            return err_set(err, ERR_INPUT, "%s: model: %s \"%.60s\" is not supported", where,
                           affixes[i], text);
    }
    PASS_ON(jget_bool_opt(model, "byte_fallback", where, &b->byte_fallback, err));
    PASS_ON(jget_bool_opt(model, "ignore_merges", where, &b->ignore_merges, err));
    return jget_bool_opt(model, "fuse_unk", where, &b->fuse_unknown, err);
}

/* From the value of "model". A missing vocabulary, merges of unknown pieces, dropout and model
 * types other than BPE are ERR_INPUT naming `where`. */
static int bpe_read(const json_t *model, const char *where, struct bpe **out, struct err *err)
{
    OWN(bpe_free_at) struct bpe *b = NULL;
    const char *unknown = NULL;
    PASS_ON(mem_zalloc(&b, 1, sizeof *b, "tokenizer", err));
    if (!json_is_object(model))
        return err_set(err, ERR_INPUT, "%s: \"model\" must be an object", where);
    PASS_ON(read_options(model, where, b, err));
    PASS_ON(read_vocab(model, where, b, err));
    find_byte_tokens(b);
    PASS_ON(read_merges(model, where, b, err));
    PASS_ON(jget_str_opt(model, "unk_token", where, &unknown, err));
    b->unknown = unknown ? bpe_id(b, unknown) : -1;
    if (unknown && b->unknown < 0)
        return err_set(err, ERR_INPUT, "%s: model: unk_token \"%.60s\" is not in the vocabulary",
                       where, unknown);
    *out = HAND_OVER(b);
    return 0;
}

/* ---- encoding -------------------------------------------------------------------------------- */

static bool entry_before(struct entry a, struct entry b)
{
    return a.rank != b.rank ? a.rank < b.rank : a.at < b.at;
}

static int heap_push(struct bpe *b, struct entry e, struct err *err)
{
    PASS_ON(mem_grow(&b->heap, &b->heap_cap, b->n_heap + 1, sizeof *b->heap, "merges", err));
    int64_t i = b->n_heap++;
    for (; i > 0 && entry_before(e, b->heap[(i - 1) / 2]); i = (i - 1) / 2)
        b->heap[i] = b->heap[(i - 1) / 2];
    b->heap[i] = e;
    return 0;
}

static struct entry heap_pop(struct bpe *b)
{
    struct entry top = b->heap[0], last = b->heap[--b->n_heap];
    int64_t i = 0;
    for (int64_t child; (child = 2 * i + 1) < b->n_heap; i = child) {
        if (child + 1 < b->n_heap && entry_before(b->heap[child + 1], b->heap[child]))
            child++;
        if (!entry_before(b->heap[child], last))
            break;
        b->heap[i] = b->heap[child];
    }
    b->heap[i] = last;
    return top;
}

static int push_pair(struct bpe *b, int32_t at, struct err *err)
{
    const struct symbol *s = b->symbols + at;
    if (s->next < 0)
        return 0;
    const struct merge *m = merge_find(b, s->id, b->symbols[s->next].id);
    return m ? heap_push(b, (struct entry){m->rank, at, m->id}, err) : 0;
}

static int add_symbol(struct bpe *b, int64_t *n, int32_t id, struct err *err)
{
    PASS_ON(mem_grow(&b->symbols, &b->symbol_cap, *n + 1, sizeof *b->symbols, "symbols", err));
    b->symbols[*n] = (struct symbol){id, 1, (int32_t)*n - 1, -1};
    if (*n > 0)
        b->symbols[*n - 1].next = (int32_t)*n;
    ++*n;
    return 0;
}

/* A character without a token of its own: its bytes' tokens, or the unknown token (one for a run of
 * such characters if they are fused). */
static int add_unknown(struct bpe *b, const char *c, int len, int64_t *n, bool *pending,
                       struct err *err)
{
    bool bytes = b->byte_fallback;
    for (int i = 0; i < len; i++)
        bytes = bytes && b->byte_token[(uint8_t)c[i]] >= 0;
    if (!bytes && b->unknown < 0)
        return err_set(err, ERR_INPUT,
                       "the vocabulary has no token for the character \"%.*s\" and "
                       "none for unknown ones",
                       len, c);
    for (int i = 0; bytes && i < len; i++)
        PASS_ON(add_symbol(b, n, b->byte_token[(uint8_t)c[i]], err));
    if (!bytes && !(*pending && b->fuse_unknown))
        PASS_ON(add_symbol(b, n, b->unknown, err));
    *pending = !bytes;
    return 0;
}

/* The piece's characters as symbols. */
static int split_symbols(struct bpe *b, const char *piece, size_t len, int64_t *n, struct err *err)
{
    bool pending = false; /* the symbol before is a fused unknown one */
    *n = 0;
    b->n_heap = 0;
    for (size_t at = 0; at < len;) {
        char text[CHAR_MAX_BYTES + 1] = {0};
        utf8proc_int32_t c;
        utf8proc_ssize_t k = utf8proc_iterate((const utf8proc_uint8_t *)piece + at,
                                              (utf8proc_ssize_t)(len - at), &c);
        if (k <= 0)
            return err_set(err, ERR_INPUT, "text is not valid UTF-8 at byte %zu", at);
        memcpy(text, piece + at, (size_t)k);
        int32_t id = c ? bpe_id(b, text) : -1;
        if (id >= 0) {
            PASS_ON(add_symbol(b, n, id, err));
            pending = false;
        } else {
            PASS_ON(add_unknown(b, piece + at, (int)k, n, &pending, err));
        }
        at += (size_t)k;
    }
    return 0;
}

static int merge_symbols(struct bpe *b, int64_t n, struct err *err)
{
    struct symbol *s = b->symbols;
    for (int64_t i = 0; i + 1 < n; i++)
        PASS_ON(push_pair(b, (int32_t)i, err));
    while (b->n_heap > 0) {
        struct entry e = heap_pop(b);
        if (s[e.at].len == 0 || s[e.at].next < 0)
            continue;
        const struct merge *m = merge_find(b, s[e.at].id, s[s[e.at].next].id);
        if (!m || m->id != e.id)
            continue;
        struct symbol *right = s + s[e.at].next;
        s[e.at].id = e.id;
        s[e.at].next = right->next;
        right->len = 0;
        if (right->next >= 0)
            s[right->next].prev = e.at;
        if (s[e.at].prev >= 0)
            PASS_ON(push_pair(b, s[e.at].prev, err));
        PASS_ON(push_pair(b, e.at, err));
    }
    return 0;
}

/* The token that is the whole piece, -1 if there is none. */
static int whole_piece(struct bpe *b, const char *piece, size_t len, int32_t *id, struct err *err)
{
    PASS_ON(mem_grow(&b->word, &b->word_cap, (int64_t)len + 1, 1, "piece of text", err));
    memcpy(b->word, piece, len);
    b->word[len] = '\0';
    *id = memchr(piece, '\0', len) ? -1 : bpe_id(b, b->word);
    return 0;
}

/* Append the ids of one piece: its characters are joined by the merge of the lowest rank, the
 * leftmost first, until none applies. O(len log len). A character that the vocabulary cannot spell,
 * and for which it has neither byte tokens nor an unknown token, is ERR_INPUT. */
static int bpe_encode(struct bpe *b, const char *piece, size_t len, struct ids *out,
                      struct err *err)
{
    int64_t n = 0;
    int32_t id = -1;
    if (len > INT32_MAX / 4)
        return err_set(err, ERR_INPUT, "a piece of %zu bytes of text is too long", len);
    if (b->ignore_merges)
        PASS_ON(whole_piece(b, piece, len, &id, err));
    if (id >= 0)
        return ids_add(out, id, err);
    PASS_ON(split_symbols(b, piece, len, &n, err));
    PASS_ON(merge_symbols(b, n, err));
    for (int64_t i = 0; i < n; i++)
        if (b->symbols[i].len)
            PASS_ON(ids_add(out, b->symbols[i].id, err));
    return 0;
}

/* ---- added tokens --------------------------------------------------------------------------- */

/* A stretch of text: an added token (id >= 0) or what lies between two. */
struct stretch {
    size_t lo, hi;
    int32_t id;
};

struct stretches {
    struct stretch *v; /* owned: free() */
    int64_t n, cap;
};

struct added {
    char *text;  /* as written in the file */
    char *match; /* as looked for: normalised if `normalized` */
    size_t len;  /* of match */
    int32_t id;
    bool single_word, lstrip, rstrip, normalized;
};

struct added_tokens {
    struct added *v;        /* owned; once all are there by first byte of match, longest first */
    int64_t n, cap, max_id; /* -1: none */
    struct strmap place;    /* of a text in v, until v is sorted */
    int64_t first[257];     /* tokens that begin with byte b: [first[b], first[b + 1]) */
};

/* accepts NULL */
static void added_free(struct added_tokens *a)
{
    if (!a)
        return;
    for (int64_t i = 0; a->v && i < a->n; i++) {
        free(a->v[i].text);
        free(a->v[i].match);
    }
    free(a->v);
    strmap_free(&a->place);
    free(a);
}
OWN_AT(added_free, struct added_tokens *)

/* Id of an added token by its text, -1 if there is none; text of an id, NULL if there is none. */
static int32_t added_id(const struct added_tokens *a, const char *text)
{
    for (int64_t i = 0; i < a->n; i++)
        if (strcmp(a->v[i].text, text) == 0)
            return a->v[i].id;
    return -1;
}

static const char *added_text(const struct added_tokens *a, int64_t id)
{
    for (int64_t i = 0; i < a->n; i++)
        if (a->v[i].id == id)
            return a->v[i].text;
    return NULL;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* The id of a new token: the vocabulary's, or the next free one, as the reference numbers them. */
static int next_id(const struct added_tokens *a, const struct bpe *bpe, const char *text)
{
    int64_t id = bpe_id(bpe, text);
    return (int)(id >= 0 ? id : MAX(a->max_id + 1, bpe->vocab.n));
}

/* Flags of a token, and what it is looked for as; a text without flags is a special token. */
static int read_added(const json_t *v, const char *where, const struct normalizer *norm,
                      const char *text, struct added *t, struct err *err)
{
    bool special = !json_is_object(v);
    OWN(buf_free) struct buf b = {0};
    if (!special) {
        PASS_ON(jget_bool_opt(v, "special", where, &special, err));
        t->normalized = !special;
        PASS_ON(jget_bool_opt(v, "normalized", where, &t->normalized, err));
        PASS_ON(jget_bool_opt(v, "single_word", where, &t->single_word, err));
        PASS_ON(jget_bool_opt(v, "lstrip", where, &t->lstrip, err));
        PASS_ON(jget_bool_opt(v, "rstrip", where, &t->rstrip, err));
    }
    buf_puts(&b, text);
    if (t->normalized)
        PASS_ON(normalizer_run(norm, text, strlen(text), &b, err));
    t->text = strdup(text);
    t->match = strdup(buf_str(&b));
    if (!t->text || !t->match)
        return err_set(err, ERR_NOMEM, "%s: added tokens", where);
    t->len = strlen(t->match);
    return 0;
}

/* Add a token, a text or an object with "content" and flags, unless its text is known (`replace`:
 * then it takes the flags). `id` is the one that the file gives it, or -1. */
static int add_token(struct added_tokens *a, const json_t *v, int64_t id, bool replace,
                     const char *where, const struct bpe *bpe, const struct normalizer *norm,
                     struct err *err)
{
    const char *text = jtext(v);
    struct added t = {0};
    int rc = 0;
    if (!text)
        TRY(jget_str(v, "content", where, &text, err));
    int64_t at = strmap_get(&a->place, text);
    if (!*text || (at >= 0 && !replace))
        goto out;
    if (id < -1 || id > MAX_ID)
        FAIL(err, ERR_INPUT, "%s: added token \"%.60s\": id %lld is not within 0..%d", where, text,
             (long long)id, MAX_ID);
    t.id = at >= 0 ? a->v[at].id : next_id(a, bpe, text);
    if (id >= 0 && id != t.id)
        log_warn("%s: added token \"%.60s\" has id %lld there; it gets %d, as in transformers 5",
                 where, text, (long long)id, t.id);
    TRY(read_added(v, where, norm, text, &t, err));
    TRY(mem_grow(&a->v, &a->cap, a->n + 1, sizeof *a->v, "added tokens", err));
    TRY(strmap_put(&a->place, text, at >= 0 ? at : a->n, err));
    a->max_id = MAX(a->max_id, t.id);
    struct added old = at >= 0 ? a->v[at] : (struct added){0};
    a->v[at >= 0 ? at : a->n++] = t;
    t = old;
out:
    free(t.text);
    free(t.match);
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

/* From the value of "added_tokens" of tokenizer.json (NULL or null: none). */
static int added_read(const json_t *list, const char *where, const struct bpe *bpe,
                      const struct normalizer *norm, struct added_tokens **out, struct err *err)
{
    OWN(added_free_at) struct added_tokens *a = NULL;
    int64_t id;
    PASS_ON(mem_zalloc(&a, 1, sizeof *a, "added tokens", err));
    a->max_id = -1;
    if (list && !json_is_null(list) && !json_is_array(list))
        return err_set(err, ERR_INPUT, "%s: \"added_tokens\" must be an array", where);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        PASS_ON(jget_int(v, "id", where, &id, err));
        if (id < 0)
            return err_set(err, ERR_INPUT, "%s: added token %zu: id %lld is negative", where, i,
                           (long long)id);
        PASS_ON(add_token(a, v, id, true, where, bpe, norm, err));
    }
    *out = HAND_OVER(a);
    return 0;
}

/* All tokens are there. */
static void added_sort(struct added_tokens *a)
{
    strmap_free(&a->place);
    if (a->n > 0)
        qsort(a->v, (size_t)a->n, sizeof *a->v, by_first_byte);
    for (int64_t b = 0, i = 0; b <= 256; b++) {
        while (i < a->n && (unsigned char)a->v[i].match[0] < b)
            i++;
        a->first[b] = i;
    }
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
    PASS_ON(lo == hi ? 0 : mem_grow(&s->v, &s->cap, s->n + 1, sizeof *s->v, "stretches", err));
    if (lo < hi)
        s->v[s->n++] = (struct stretch){lo, hi, id};
    return 0;
}

/* Cut text (valid UTF-8) at the added tokens: the leftmost first, of those the longest.
 * `normalized` picks the tokens that are looked for in raw or in normalised text. out is started
 * anew. */
static int added_split(const struct added_tokens *a, bool normalized, const char *text, size_t len,
                       struct stretches *out, struct err *err)
{
    size_t done = 0, at = 0;
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
        PASS_ON(add_stretch(out, done, lo, -1, err));
        PASS_ON(add_stretch(out, lo, hi, t->id, err));
        done = hi;
    }
    return add_stretch(out, done, len, -1, err);
}

#define MAX_FILE ((size_t)256 << 20)
#define MAX_DEPTH 8

struct tokenizer {
    struct bpe *bpe;
    struct added_tokens *added;
    struct normalizer *norm;
    struct pretokenizer *pre;
    bool bytes;                /* the vocabulary spells bytes */
    struct ids prefix, suffix; /* special tokens around every text */
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
    if (!json_is_array(list))
        return err_set(err, ERR_INPUT, "%s: post_processor: special token \"%.60s\" has no \"ids\"",
                       where, name);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 ||
            json_integer_value(v) > tokenizer_max_id(t))
            return err_set(err, ERR_INPUT,
                           "%s: post_processor: an id of \"%.60s\" is not a token id", where, name);
        PASS_ON(ids_add(out, (int32_t)json_integer_value(v), err));
    }
    return 0;
}

/* "single": special tokens and once the text, {"Sequence": {"id": "A"}}. */
static int read_template(struct tokenizer *t, const json_t *v, const char *where, struct err *err)
{
    const json_t *list = json_object_get(v, "single");
    bool text_seen = false;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *e = json_array_get(list, i), *special = json_object_get(e, "SpecialToken");
        const char *name;
        if (special) {
            PASS_ON(jget_str(special, "id", where, &name, err));
            PASS_ON(template_ids(t, v, name, where, text_seen ? &t->suffix : &t->prefix, err));
        } else if (json_object_get(e, "Sequence") && !text_seen) {
            text_seen = true;
        } else {
            return err_set(err, ERR_INPUT,
                           "%s: post_processor: element %zu of \"single\" is neither a special "
                           "token nor the text",
                           where, i);
        }
    }
    if (!text_seen)
        return err_set(err, ERR_INPUT,
                       "%s: post_processor: \"single\" must be an array that holds the text "
                       "once",
                       where);
    return 0;
}

static int read_processor(struct tokenizer *t, const json_t *v, const char *where, int depth,
                          struct err *err)
{
    const char *type;
    if (!v || json_is_null(v))
        return 0;
    PASS_ON(jget_str(v, "type", where, &type, err));
    if (strcmp(type, "TemplateProcessing") == 0) {
        return read_template(t, v, where, err);
    } else if (strcmp(type, "Sequence") == 0 && depth < MAX_DEPTH) {
        const json_t *list = json_object_get(v, "processors");
        for (size_t i = 0; i < json_array_size(list); i++)
            PASS_ON(read_processor(t, json_array_get(list, i), where, depth + 1, err));
    } else if (strcmp(type, "ByteLevel") != 0) { /* which only moves offsets */
        return err_set(err, ERR_INPUT,
                       "%s: post_processor %.60s is not supported; supported: "
                       "TemplateProcessing, ByteLevel, Sequence",
                       where, type);
    }
    return 0;
}

/* ---- the files beside tokenizer.json --------------------------------------------------------- */

/* `key` names it in messages. */
static int declare(struct tokenizer *t, const json_t *v, int64_t id, const char *key,
                   const char *where, struct err *err)
{
    int rc =
        !v || json_is_null(v) ? 0 : add_token(t->added, v, id, false, where, t->bpe, t->norm, err);
    if (rc)
        err_prefix(err, "\"%.60s\"", key);
    return rc;
}

/* A token that a file declares with its id. */
struct declared {
    int64_t id;
    const json_t *token; /* borrowed */
};

static int by_id(const void *pa, const void *pb)
{
    const struct declared *a = pa, *b = pb;
    return a->id < b->id ? -1 : a->id > b->id;
}

/* "added_tokens_decoder", from id to token, in the order of ids. */
static int declare_by_id(struct tokenizer *t, const json_t *tokens, const char *where,
                         struct err *err)
{
    OWN(free_at) struct declared *list = NULL;
    const char *key;
    char *end;
    json_t *v;
    int64_t n = 0;
    PASS_ON(mem_alloc(&list, (int64_t)json_object_size(tokens), sizeof *list, "added tokens", err));
    json_object_foreach((json_t *)(uintptr_t)tokens, key, v)
    {
        list[n] = (struct declared){strtoll(key, &end, 10), v};
        if (end == key || *end || list[n++].id < 0)
            return err_set(err, ERR_INPUT, "%s: added_tokens_decoder: \"%.60s\" is no token id",
                           where, key);
    }
    if (n > 0)
        qsort(list, (size_t)n, sizeof *list, by_id);
    for (int64_t i = 0; i < n; i++)
        PASS_ON(declare(t, list[i].token, list[i].id, "added token", where, err));
    return 0;
}

static const char *const named[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                    "pad_token", "cls_token", "mask_token"};

static bool is_named(const char *key)
{
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        if (strcmp(key, named[i]) == 0)
            return true;
    return false;
}

static const json_t *extra_tokens(const json_t *config)
{
    const json_t *extra = json_object_get(config, "extra_special_tokens");
    return json_object_size(extra) || json_array_size(extra)
               ? extra
               : json_object_get(config, "additional_special_tokens");
}

/* Tokens that tokenizer_config.json names by what they are for. */
static int declare_named(struct tokenizer *t, const json_t *config, const char *where,
                         struct err *err)
{
    const json_t *extra = extra_tokens(config);
    const char *key;
    json_t *v;
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        PASS_ON(declare(t, json_object_get(config, named[i]), -1, named[i], where, err));
    json_object_foreach((json_t *)(uintptr_t)config, key, v)
    {
        size_t n = strlen(key);
        bool token = n > 6 && strcmp(key + n - 6, "_token") == 0 && !is_named(key);
        if (token && (json_is_string(v) || json_is_object(v)))
            PASS_ON(declare(t, v, -1, key, where, err));
    }
    json_object_foreach((json_t *)(uintptr_t)extra, key, v)
        PASS_ON(declare(t, v, -1, key, where, err));
    for (size_t i = 0; i < json_array_size(extra); i++)
        PASS_ON(declare(t, json_array_get(extra, i), -1, "extra_special_tokens", where, err));
    return 0;
}
/* Is a text one of those tokens? */
static bool is_special(const json_t *config, const char *text)
{
    const json_t *extra = extra_tokens(config), *v;
    size_t n = sizeof named / sizeof *named;
    for (size_t i = 0; i < n + json_array_size(extra); i++) {
        v = i < n ? json_object_get(config, named[i]) : json_array_get(extra, i - n);
        const char *s = json_string_value(json_is_object(v) ? json_object_get(v, "content") : v);
        if (s && strcmp(s, text) == 0)
            return true;
    }
    return false;
}

/* added_tokens.json, from token to id. */
static int declare_added(struct tokenizer *t, const json_t *tokens, const json_t *config,
                         const char *where, struct err *err)
{
    OWN(json_decrefp) json_t *list = json_object();
    json_t *v;
    const char *text, *other;
    char id[32];
    json_object_foreach((json_t *)(uintptr_t)tokens, text, v)
    {
        bool special = is_special(config, text);
        if (!json_is_integer(v))
            return err_set(err, ERR_INPUT, "%s: the id of \"%.60s\" must be an integer", where,
                           text);
        other = added_text(t->added, json_integer_value(v));
        if (other && strcmp(other, text) != 0)
            log_warn("%s: \"%.60s\" is left out, as in transformers 5: its id %lld is that of "
                     "\"%.60s\" in tokenizer.json",
                     where, text, (long long)json_integer_value(v), other);
        if (other)
            continue;
        snprintf(id, sizeof id, "%lld", (long long)json_integer_value(v));
        json_object_set_new(list, id,
                            json_pack("{s:s, s:b, s:b}", "content", text, "special", special,
                                      "normalized", !special));
    }
    PASS_ON(mem_check_short(err));
    return declare_by_id(t, list, where, err);
}

/* What a flag of older files says of an end of the text. tokenizer.json decides. */
static int check_flag(const struct tokenizer *t, const json_t *config, const char *flag,
                      const char *key, const struct ids *ids, const char *where, struct err *err)
{
    const json_t *v = json_object_get(config, key), *given = json_object_get(config, flag);
    const char *text = json_string_value(json_is_object(v) ? json_object_get(v, "content") : v);
    bool add = false;
    int rc = jget_bool_opt(config, flag, where, &add, err);
    int32_t says = add && text ? token_id(t, text) : -1, does = ids->n > 0 ? ids->v[0] : -1;
    if (!rc && given && !json_is_null(given) && says != does)
        log_warn("%s: %s is %s, but the template of tokenizer.json adds %s: as in transformers 5, "
                 "the template decides (transformers 4 followed the flag)",
                 where, flag, add ? "true" : "false",
                 does < 0   ? "no token"
                 : says < 0 ? "a token"
                            : "another one");
    return rc;
}

/* Tokens that stand in files beside tokenizer.json, in the order in which transformers 5 adds them
 * (PreTrainedTokenizerBase._from_pretrained, TokenizersBackend.__init__). */
static int read_files(struct tokenizer *t, const char *model, struct err *err)
{
    static const char extra[] = "extra_special_tokens";
    char path[CHECKPOINT_PATH], other[CHECKPOINT_PATH];
    OWN(json_decrefp) json_t *config = NULL, *map = NULL, *added = NULL;
    bool split = false;
    PASS_ON(checkpoint_json(model, "tokenizer_config.json", MAX_FILE, path, &config, err));
    config = config ? config : json_object();
    const json_t *by_id = json_object_get(config, "added_tokens_decoder");
    PASS_ON(jget_bool_opt(config, "split_special_tokens", path, &split, err));
    if (split)
        return err_set(err, ERR_INPUT, "%s: split_special_tokens is not supported", path);
    if (by_id && !json_is_null(by_id)) {
        if (!json_is_object(by_id))
            return err_set(err, ERR_INPUT, "%s: added_tokens_decoder must be an object", path);
        PASS_ON(declare_by_id(t, by_id, path, err));
    } else {
        PASS_ON(checkpoint_json(model, "special_tokens_map.json", MAX_FILE, other, &map, err));
        json_t *more = json_object_get(map, extra), *first = json_object_get(config, extra);
        if (json_is_array(more) && json_is_array(first)) {
            json_array_extend(first, more);
            json_object_set(map, extra, first);
        }
        if (extra_tokens(config))
            json_object_del(map, "additional_special_tokens");
        if (map)
            json_object_update(config, map);
        PASS_ON(checkpoint_json(model, "added_tokens.json", MAX_FILE, other, &added, err));
        PASS_ON(declare_added(t, added, config, other, err));
        if (map)
            snprintf(path, sizeof path, "%s: tokenizer_config.json and special_tokens_map.json",
                     model);
    }
    PASS_ON(declare_named(t, config, path, err));
    added_sort(t->added);
    PASS_ON(check_flag(t, config, "add_bos_token", "bos_token", &t->prefix, path, err));
    return check_flag(t, config, "add_eos_token", "eos_token", &t->suffix, path, err);
}

int64_t tokenizer_max_id(const struct tokenizer *t)
{
    return MAX(bpe_max_id(t->bpe), t->added->max_id);
}

/* ---- reading --------------------------------------------------------------------------------- */

static int read_tokenizer(struct tokenizer *t, const char *model, struct err *err)
{
    char path[CHECKPOINT_PATH];
    OWN(json_decrefp) json_t *o = NULL;
    PASS_ON(checkpoint_json(model, "tokenizer.json", MAX_FILE, path, &o, err));
    if (!o)
        return err_set(err, ERR_INPUT,
                       "%s does not exist; capture reads tokenizer.json only (a "
                       "tokenizer.model has to be converted), or give token ids with --tokens-file",
                       path);
    PASS_ON(bpe_read(json_object_get(o, "model"), path, &t->bpe, err));
    PASS_ON(normalizer_read(json_object_get(o, "normalizer"), path, &t->norm, err));
    PASS_ON(pretokenizer_read(json_object_get(o, "pre_tokenizer"), path, &t->pre, err));
    t->bytes = pretokenizer_bytes(t->pre);
    PASS_ON(added_read(json_object_get(o, "added_tokens"), path, t->bpe, t->norm, &t->added, err));
    return read_processor(t, json_object_get(o, "post_processor"), path, 0, err);
}

int tokenizer_open(const char *model, struct tokenizer **out, struct err *err)
{
    OWN(tokenizer_close) struct tokenizer *t = NULL;
    PASS_ON(mem_zalloc(&t, 1, sizeof *t, "tokenizer", err));
    PASS_ON(read_tokenizer(t, model, err));
    PASS_ON(read_files(t, model, err));
    *out = HAND_OVER(t);
    return 0;
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
    pieces_reset(&w->pieces);
    w->pieces.at_start = at_start;
    PASS_ON(pieces_add(&w->pieces, s, len, err));
    PASS_ON(pretokenizer_run(t->pre, &w->pieces, err));
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
            PASS_ON(buf_check(&w->spelled, "text as bytes", err));
            p = w->spelled.data;
            n = w->spelled.len;
        }
        PASS_ON(bpe_encode(t->bpe, p, n, &w->ids, err));
    }
    return 0;
}

/* A stretch of the text that holds no added token of the raw kind. */
static int encode_stretch(const struct tokenizer *t, struct work *w, const char *s, size_t len,
                          bool at_start, struct err *err)
{
    PASS_ON(normalizer_run(t->norm, s, len, &w->normal, err));
    PASS_ON(added_split(t->added, true, buf_str(&w->normal), w->normal.len, &w->inner, err));
    for (int64_t i = 0; i < w->inner.n; i++) {
        struct stretch x = w->inner.v[i];
        if (x.id >= 0)
            PASS_ON(ids_add(&w->ids, x.id, err));
        else
            PASS_ON(
                encode_plain(t, w, w->normal.data + x.lo, x.hi - x.lo, at_start && x.lo == 0, err));
    }
    return 0;
}

static int add_all(struct ids *to, const struct ids *from, struct err *err)
{
    for (int64_t i = 0; i < from->n; i++)
        PASS_ON(ids_add(to, from->v[i], err));
    return 0;
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, bool *added_bos,
                     int32_t **ids, int64_t *n, struct err *err)
{
    OWN(work_free) struct work w = {0};
    int64_t bad = utf8_invalid(text, len);
    if (bad >= 0)
        return err_set(err, ERR_INPUT, "the text is not valid UTF-8 at byte %lld", (long long)bad);
    pretokenizer_doubt(t->pre, text, len);
    PASS_ON(add_all(&w.ids, &t->prefix, err));
    PASS_ON(added_split(t->added, false, text, len, &w.raw, err));
    for (int64_t i = 0; i < w.raw.n; i++) {
        struct stretch x = w.raw.v[i];
        if (x.id >= 0)
            PASS_ON(ids_add(&w.ids, x.id, err));
        else
            PASS_ON(encode_stretch(t, &w, text + x.lo, x.hi - x.lo, x.lo == 0, err));
    }
    PASS_ON(add_all(&w.ids, &t->suffix, err));
    PASS_ON(mem_grow(&w.ids.v, &w.ids.cap, 1, sizeof *w.ids.v, "token ids", err));
    if (added_bos)
        *added_bos = t->prefix.n > 0;
    *ids = w.ids.v;
    *n = w.ids.n;
    w.ids.v = NULL;
    return 0;
}

int tokenizer_encode_plain(const struct tokenizer *t, const char *text, size_t len, int32_t **ids,
                           int64_t *n, struct err *err)
{
    OWN(work_free) struct work w = {0};
    int64_t bad = utf8_invalid(text, len);
    if (bad >= 0)
        return err_set(err, ERR_INPUT, "the text is not valid UTF-8 at byte %lld", (long long)bad);
    pretokenizer_doubt(t->pre, text, len);
    if (len > 0) {
        PASS_ON(normalizer_run(t->norm, text, len, &w.normal, err));
        PASS_ON(encode_plain(t, &w, buf_str(&w.normal), w.normal.len, true, err));
    }
    PASS_ON(mem_grow(&w.ids.v, &w.ids.cap, 1, sizeof *w.ids.v, "token ids", err));
    *ids = w.ids.v;
    *n = w.ids.n;
    w.ids.v = NULL;
    return 0;
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
    OWN(buf_free) struct buf b = {0};
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
}

int tokenizer_texts(const char *dir, const int32_t *ids, int64_t n, struct str_list *out,
                    struct err *err)
{
    OWN(tokenizer_close) struct tokenizer *t = NULL;
    OWN(buf_free) struct buf b = {0};
    PASS_ON(tokenizer_open(dir, &t, err));
    for (int64_t i = 0; i < n; i++) {
        buf_reset(&b);
        tokenizer_decode(t, ids + i, 1, &b);
        PASS_ON(buf_check(&b, "text of a token", err));
        str_list_add(out, buf_str(&b));
    }
    if (out->failed)
        return err_set(err, ERR_NOMEM, "texts of tokens: out of memory");
    return 0;
}
