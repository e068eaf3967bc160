/*
 * bpe.c - see bpe.h.
 *
 * The symbols of a piece are a linked list in an array; possible merges wait in a heap ordered by
 * (rank, position). An entry is checked when it is taken out: either of its symbols may have been
 * merged away since.
 */
#include "capture/bpe.h"

#include "core/strmap.h"
#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

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

int ids_add(struct ids *l, int32_t id, struct err *err)
{
    int rc = mem_grow(&l->v, &l->cap, l->n + 1, sizeof *l->v, "token ids", err);
    if (rc == 0)
        l->v[l->n++] = id;
    return rc;
}

void bpe_free(struct bpe *b)
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

int32_t bpe_id(const struct bpe *b, const char *token)
{
    return (int32_t)strmap_get(&b->vocab, token);
}

const char *bpe_token(const struct bpe *b, int64_t id)
{
    return id >= 0 && id < b->n_tokens ? b->tokens[id] : NULL;
}

int64_t bpe_max_id(const struct bpe *b)
{
    return b->n_tokens - 1;
}

int bpe_fallback_byte(const struct bpe *b, int64_t id)
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
    int rc = 0;

    if (!json_is_object(vocab))
        FAIL(err, ERR_INPUT, "%s: model: \"vocab\" must be an object from token to id", where);
    TRY(count_ids(vocab, where, &b->n_tokens, err));
    TRY(mem_zalloc(&b->tokens, b->n_tokens, sizeof *b->tokens, "vocabulary", err));
    json_object_foreach((json_t *)vocab, token, v)
    {
        int64_t id = json_integer_value(v);
        if (b->tokens[id])
            FAIL(err, ERR_INPUT, "%s: model: \"%.60s\" and \"%.60s\" have the same id %lld", where,
                 b->tokens[id], token, (long long)id);
        if (!(b->tokens[id] = strdup(token)))
            FAIL(err, ERR_NOMEM, "%s: vocabulary", where);
        TRY(strmap_put(&b->vocab, token, id, err));
    }
out:
    return rc;
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
    struct buf left = {0}, right = {0}, both = {0};
    size_t n = json_array_size(list);
    int rc = 0;

    if (!json_is_array(list) || n > INT32_MAX / 4)
        FAIL(err, ERR_INPUT, "%s: model: \"merges\" must be an array", where);
    for (b->merge_cap = 16; b->merge_cap < 2 * n; b->merge_cap *= 2)
        ;
    TRY(mem_alloc(&b->merges, (int64_t)b->merge_cap, sizeof *b->merges, "merges", err));
    for (uint64_t i = 0; i < b->merge_cap; i++)
        b->merges[i].rank = -1;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        if (json_is_string(v) && strncmp(json_string_value(v), "#version", 8) == 0)
            continue;
        TRY(merge_parts(v, where, i, &left, &right, err));
        TRY(add_merge(b, where, i, &left, &right, &both, err));
    }
out:
    buf_free(&left);
    buf_free(&right);
    buf_free(&both);
    return rc;
}

/* ---- the model ------------------------------------------------------------------------------- */

static int read_options(const json_t *model, const char *where, struct bpe *b, struct err *err)
{
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const char *type = "BPE", *text = NULL;
    double dropout = 0;
    int rc = 0;

    TRY(jget_str_opt(model, "type", where, &type, err));
    if (strcmp(type, "BPE") != 0)
        FAIL(err, ERR_INPUT, "%s: model type %.60s is not supported; supported: BPE", where, type);
    TRY(jget_num_opt(model, "dropout", where, &dropout, err));
    if (dropout != 0)
        FAIL(err, ERR_INPUT, "%s: model: dropout %g makes tokens random; only 0 is supported",
             where, dropout);
    for (int i = 0; i < 2; i++) {
        text = NULL;
        TRY(jget_str_opt(model, affixes[i], where, &text, err));
        if (text && text[0])
            FAIL(err, ERR_INPUT, "%s: model: %s \"%.60s\" is not supported", where, affixes[i],
                 text);
    }
    TRY(jget_bool_opt(model, "byte_fallback", where, &b->byte_fallback, err));
    TRY(jget_bool_opt(model, "ignore_merges", where, &b->ignore_merges, err));
    TRY(jget_bool_opt(model, "fuse_unk", where, &b->fuse_unknown, err));
out:
    return rc;
}

int bpe_read(const json_t *model, const char *where, struct bpe **out, struct err *err)
{
    struct bpe *b = NULL;
    const char *unknown = NULL;
    int rc = 0;

    TRY(mem_zalloc(&b, 1, sizeof *b, "tokenizer", err));
    if (!json_is_object(model))
        FAIL(err, ERR_INPUT, "%s: \"model\" must be an object", where);
    TRY(read_options(model, where, b, err));
    TRY(read_vocab(model, where, b, err));
    find_byte_tokens(b);
    TRY(read_merges(model, where, b, err));
    TRY(jget_str_opt(model, "unk_token", where, &unknown, err));
    b->unknown = unknown ? bpe_id(b, unknown) : -1;
    if (unknown && b->unknown < 0)
        FAIL(err, ERR_INPUT, "%s: model: unk_token \"%.60s\" is not in the vocabulary", where,
             unknown);
    *out = b;
    b = NULL;
out:
    bpe_free(b);
    return rc;
}

/* ---- encoding -------------------------------------------------------------------------------- */

static bool entry_before(struct entry a, struct entry b)
{
    return a.rank != b.rank ? a.rank < b.rank : a.at < b.at;
}

static int heap_push(struct bpe *b, struct entry e, struct err *err)
{
    int rc = mem_grow(&b->heap, &b->heap_cap, b->n_heap + 1, sizeof *b->heap, "merges", err);
    if (rc)
        return rc;
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
    int rc = mem_grow(&b->symbols, &b->symbol_cap, *n + 1, sizeof *b->symbols, "symbols", err);
    if (rc)
        return rc;
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
    int rc = 0;
    for (int i = 0; i < len; i++)
        bytes = bytes && b->byte_token[(uint8_t)c[i]] >= 0;
    if (!bytes && b->unknown < 0)
        return err_set(err, ERR_INPUT,
                       "the vocabulary has no token for the character \"%.*s\" and "
                       "none for unknown ones",
                       len, c);
    for (int i = 0; bytes && i < len; i++)
        TRY(add_symbol(b, n, b->byte_token[(uint8_t)c[i]], err));
    if (!bytes && !(*pending && b->fuse_unknown))
        TRY(add_symbol(b, n, b->unknown, err));
    *pending = !bytes;
out:
    return rc;
}

/* The piece's characters as symbols. */
static int split_symbols(struct bpe *b, const char *piece, size_t len, int64_t *n, struct err *err)
{
    bool pending = false; /* the symbol before is a fused unknown one */
    int rc = 0;

    *n = 0;
    b->n_heap = 0;
    for (size_t at = 0; at < len;) {
        char text[CHAR_MAX_BYTES + 1] = {0};
        utf8proc_int32_t c;
        utf8proc_ssize_t k = utf8proc_iterate((const utf8proc_uint8_t *)piece + at,
                                              (utf8proc_ssize_t)(len - at), &c);
        if (k <= 0)
            FAIL(err, ERR_INPUT, "text is not valid UTF-8 at byte %zu", at);
        memcpy(text, piece + at, (size_t)k);
        int32_t id = c ? bpe_id(b, text) : -1;
        if (id >= 0) {
            TRY(add_symbol(b, n, id, err));
            pending = false;
        } else {
            TRY(add_unknown(b, piece + at, (int)k, n, &pending, err));
        }
        at += (size_t)k;
    }
out:
    return rc;
}

static int merge_symbols(struct bpe *b, int64_t n, struct err *err)
{
    struct symbol *s = b->symbols;
    int rc = 0;

    for (int64_t i = 0; i + 1 < n; i++)
        TRY(push_pair(b, (int32_t)i, err));
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
            TRY(push_pair(b, s[e.at].prev, err));
        TRY(push_pair(b, e.at, err));
    }
out:
    return rc;
}

/* The token that is the whole piece, -1 if there is none. */
static int whole_piece(struct bpe *b, const char *piece, size_t len, int32_t *id, struct err *err)
{
    int rc = mem_grow(&b->word, &b->word_cap, (int64_t)len + 1, 1, "piece of text", err);
    if (rc)
        return rc;
    memcpy(b->word, piece, len);
    b->word[len] = '\0';
    *id = memchr(piece, '\0', len) ? -1 : bpe_id(b, b->word);
    return 0;
}

int bpe_encode(struct bpe *b, const char *piece, size_t len, struct ids *out, struct err *err)
{
    int64_t n = 0;
    int32_t id = -1;
    int rc = 0;

    if (len > INT32_MAX / 4)
        FAIL(err, ERR_INPUT, "a piece of %zu bytes of text is too long", len);
    if (b->ignore_merges)
        TRY(whole_piece(b, piece, len, &id, err));
    if (id >= 0)
        return ids_add(out, id, err);
    TRY(split_symbols(b, piece, len, &n, err));
    TRY(merge_symbols(b, n, err));
    for (int64_t i = 0; i < n; i++)
        if (b->symbols[i].len)
            TRY(ids_add(out, b->symbols[i].id, err));
out:
    return rc;
}
