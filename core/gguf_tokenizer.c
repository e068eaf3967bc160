/*
 * gguf_tokenizer.c - tokenizer.json of a GGUF file: the vocabulary and its merges as they stand
 * there, and the steps that the file only names.
 *
 * "gpt2" is byte-level BPE; tokenizer.ggml.pre names the expression that cuts a text. "llama" is
 * SentencePiece's BPE: scores in the place of merges, a space in front, bytes for what is unknown.
 */
#include "core/gguf.h"

#include "core/log.h"
#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPACE "\xe2\x96\x81" /* SentencePiece's mark of a space */

/* Kinds of tokens (tokenizer.ggml.token_type). */
enum { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED };

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define LLAMA3_BUT_DIGITS(digits)                                                                  \
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits                                          \
                 "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define LOWER "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
#define CASED(tail, digits)                                                                        \
    "[^\\r\\n\\p{L}\\p{N}]?[" UPPER "]*[" LOWER "]+" tail "|[^\\r\\n\\p{L}\\p{N}]?[" UPPER         \
    "]+[" LOWER "]*" tail "|" digits                                                               \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* Values of tokenizer.ggml.pre: the expression (NULL: GPT-2's, which ByteLevel has), digits cut one
 * by one before it, a whole piece that is a token is that token, a beginning-of-text token unless
 * the file says otherwise, normal form C. */
static const struct pre {
    const char *name, *pattern;
    bool digits, whole, bos, nfc;
} pres[] = {
    {.name = "default"},
    {.name = "gpt-2"},
    {.name = "smollm", .digits = true},
    {.name = "llama-bpe", LLAMA3_BUT_DIGITS("\\p{N}{1,3}"), .whole = true, .bos = true},
    {.name = "llama3", LLAMA3_BUT_DIGITS("\\p{N}{1,3}"), .whole = true, .bos = true},
    {.name = "smaug-bpe", LLAMA3_BUT_DIGITS("\\p{N}{1,3}")},
    {.name = "dbrx", LLAMA3_BUT_DIGITS("\\p{N}{1,3}")},
    {.name = "glm4", LLAMA3_BUT_DIGITS("\\p{N}{1,3}")},
    {.name = "chatglm-bpe", LLAMA3_BUT_DIGITS("\\p{N}{1,3}")},
    {.name = "qwen2", LLAMA3_BUT_DIGITS("\\p{N}"), .nfc = true},
    {.name = "deepseek-r1-qwen", LLAMA3_BUT_DIGITS("\\p{N}")},
    {.name = "gpt-4o", CASED(CONTRACTIONS "?", "\\p{N}{1,3}")},
    {.name = "tekken", CASED("", "\\p{N}"), .whole = true, .bos = true},
};

struct source {
    const char *path;
    const json_t *meta, *tokens, *types;
    const struct pre *pre; /* NULL: SentencePiece */
};

static const json_t *get(const struct source *s, const char *name)
{
    char key[80];
    snprintf(key, sizeof key, "tokenizer.ggml.%s", name);
    return json_object_get(s->meta, key);
}

static bool flag(const struct source *s, const char *name, bool otherwise)
{
    const json_t *v = get(s, name);
    return json_is_boolean(v) ? json_is_true(v) : otherwise;
}

static const char *token(const struct source *s, int64_t id)
{
    return id < 0 ? NULL : json_string_value(json_array_get(s->tokens, (size_t)id));
}

static int kind(const struct source *s, size_t id)
{
    return s->types ? (int)json_integer_value(json_array_get(s->types, id)) : NORMAL;
}

/* ---- what the file says ---------------------------------------------------------------------- */

static int find_pre(struct source *s, struct err *err)
{
    const json_t *v = get(s, "pre");
    const char *name = json_is_string(v) ? json_string_value(v) : "default";
    OWN(buf_free) struct buf all = {0};
    for (size_t i = 0; i < sizeof pres / sizeof *pres && !s->pre; i++) {
        if (strcmp(name, pres[i].name) == 0)
            s->pre = &pres[i];
        buf_printf(&all, "%s%s", i ? ", " : "", pres[i].name);
    }
    if (!s->pre)
        return err_set(
            err, ERR_INPUT,
            "%s: tokenizer.ggml.pre %.60s is not supported; supported: %s; --tokens-file takes "
            "token ids",
            s->path, name, buf_str(&all));
    if (strcmp(name, "default") == 0)
        log_warn("%s: the file does not say how its tokenizer cuts a text (tokenizer.ggml.pre); "
                 "GPT-2's way is taken, and tokens may not be those of the model",
                 s->path);
    return 0;
}

static int read_source(struct source *s, struct err *err)
{
    const char *model = NULL;
    PASS_ON(jget_str(s->meta, "tokenizer.ggml.model", s->path, &model, err));
    s->tokens = get(s, "tokens");
    s->types = get(s, "token_type");
    if (!json_is_array(s->tokens) || !json_is_string(json_array_get(s->tokens, 0)))
        return err_set(err, ERR_INPUT, "%s: tokenizer.ggml.tokens must be a list of texts",
                       s->path);
    if (s->types && json_array_size(s->types) != json_array_size(s->tokens))
        return err_set(err, ERR_INPUT, "%s: %zu tokens, but %zu of tokenizer.ggml.token_type",
                       s->path, json_array_size(s->tokens), json_array_size(s->types));
    if (strcmp(model, "gpt2") == 0)
        return find_pre(s, err);
    else if (strcmp(model, "llama") != 0)
        return err_set(err, ERR_INPUT,
                       "%s: tokenizer.ggml.model %.60s is not supported; supported: gpt2, llama; "
                       "--tokens-file takes token ids",
                       s->path, model);
    return 0;
}

static int read_vocab(const struct source *s, json_t *vocab, struct err *err)
{
    size_t i;
    json_t *v;
    json_array_foreach(s->tokens, i, v)
    {
        const char *text = json_string_value(v);
        if (!text || json_object_get(vocab, text))
            return err_set(err, ERR_INPUT, "%s: token %zu ('%.60s') is no text or is there twice",
                           s->path, i, text ? text : "");
        json_object_set_new(vocab, text, json_integer((json_int_t)i));
    }
    return 0;
}

/* ---- merges of SentencePiece ----------------------------------------------------------------- */

/* Two tokens that make a third one of this score; lengths in characters. */
struct join {
    double score;
    int32_t id, left, right; /* the token; characters of its parts */
    int32_t at;              /* bytes of the left part */
};

/* As transformers orders them: the best score first, then the longer left and right part. */
static int by_score(const void *pa, const void *pb)
{
    const struct join *a = pa, *b = pb;
    if (a->score != b->score)
        return a->score > b->score ? -1 : 1;
    if (a->left != b->left)
        return a->left > b->left ? -1 : 1;
    if (a->right != b->right)
        return a->right > b->right ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

static bool begins(char c)
{
    return ((unsigned char)c & 0xc0) != 0x80;
}

/* All ways to cut a token into two tokens. */
static int add_joins(const char *text, struct join j, const json_t *vocab, struct join **list,
                     int64_t *n, int64_t *cap, struct err *err)
{
    int32_t chars = 0;
    size_t len = strlen(text);
    OWN(free_at) char *left = strdup(text);
    if (!left)
        return err_set(err, ERR_NOMEM, "merges");
    for (size_t i = 0; i < len; i++)
        chars += begins(text[i]);
    for (size_t i = 1; i < len; i++) {
        if (!begins(text[i]))
            continue;
        j.left++;
        left[i] = '\0';
        if (json_object_get(vocab, left) && json_object_get(vocab, text + i)) {
            PASS_ON(mem_grow(list, cap, *n + 1, sizeof **list, "merges", err));
            j.right = chars - j.left;
            j.at = (int32_t)i;
            (*list)[(*n)++] = j;
        }
        left[i] = text[i];
    }
    return 0;
}

static int score_merges(const struct source *s, const json_t *vocab, json_t *merges,
                        struct err *err)
{
    const json_t *scores = get(s, "scores");
    OWN(free_at) struct join *list = NULL;
    int64_t n = 0, cap = 0;
    if (json_array_size(scores) != json_array_size(s->tokens))
        return err_set(err, ERR_INPUT,
                       "%s: tokenizer.ggml.scores must have a number for each of the tokens",
                       s->path);
    for (size_t i = 0; i < json_array_size(s->tokens); i++) {
        struct join j = {json_number_value(json_array_get(scores, i)), (int32_t)i, 0, 0, 0};
        if (kind(s, i) == NORMAL)
            PASS_ON(add_joins(token(s, j.id), j, vocab, &list, &n, &cap, err));
    }
    if (n > 1)
        qsort(list, (size_t)n, sizeof *list, by_score);
    for (int64_t i = 0; i < n; i++) {
        const char *text = token(s, list[i].id);
        json_array_append_new(merges,
                              json_pack("[s%, s]", text, (size_t)list[i].at, text + list[i].at));
    }
    return 0;
}

/* ---- the parts of tokenizer.json ------------------------------------------------------------- */

static int read_model(const struct source *s, json_t *out, struct err *err)
{
    OWN(json_decrefp) json_t *vocab = json_object(), *merges = NULL;
    const json_t *unknown = get(s, "unknown_token_id");
    const char *text = json_is_integer(unknown) ? token(s, json_integer_value(unknown)) : NULL;
    bool spm = !s->pre;
    PASS_ON(read_vocab(s, vocab, err));
    if (spm) {
        merges = json_array();
        PASS_ON(score_merges(s, vocab, merges, err));
    } else {
        merges = json_incref((json_t *)(uintptr_t)get(s, "merges"));
        if (!json_is_array(merges))
            return err_set(err, ERR_INPUT, "%s: tokenizer.ggml.merges must be a list", s->path);
    }
    json_object_set_new(out, "model",
                        json_pack("{s:s, s:O, s:O, s:b, s:b, s:b}", "type", "BPE", "vocab", vocab,
                                  "merges", merges, "byte_fallback", spm, "fuse_unk", spm,
                                  "ignore_merges", spm ? false : s->pre->whole));
    if (spm && text)
        json_object_set_new(json_object_get(out, "model"), "unk_token", json_string(text));
    return 0;
}

static json_t *sequence(const char *of, json_t *list)
{
    return json_pack("{s:s, s:o}", "type", "Sequence", of, list);
}

static void put_steps(const struct source *s, json_t *out)
{
    json_t *norm = json_array(), *cut = json_array();
    const struct pre *p = s->pre;
    if (p && p->nfc)
        json_array_append_new(norm, json_pack("{s:s}", "type", "NFC"));
    if (!p && flag(s, "add_space_prefix", true))
        json_array_append_new(norm, json_pack("{s:s, s:s}", "type", "Prepend", "prepend", SPACE));
    if (!p)
        json_array_append_new(norm, json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern",
                                              "String", " ", "content", SPACE));
    if (p && p->digits)
        json_array_append_new(cut,
                              json_pack("{s:s, s:b}", "type", "Digits", "individual_digits", true));
    if (p && p->pattern)
        json_array_append_new(cut, json_pack("{s:s, s:{s:s}, s:s}", "type", "Split", "pattern",
                                             "Regex", p->pattern, "behavior", "Isolated"));
    if (p)
        json_array_append_new(cut, json_pack("{s:s, s:b, s:b}", "type", "ByteLevel",
                                             "add_prefix_space", false, "use_regex", !p->pattern));
    json_object_set_new(out, "normalizer", sequence("normalizers", norm));
    json_object_set_new(out, "pre_tokenizer", sequence("pretokenizers", cut));
}

/* Special tokens, and those that its maker added. Phi-3's take the white space behind them, but for
 * three. */
static void put_added(const struct source *s, json_t *out)
{
    const json_t *arch = json_object_get(s->meta, "general.architecture");
    bool phi = !s->pre && json_is_string(arch) && strcmp(json_string_value(arch), "phi3") == 0;
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(s->tokens); i++) {
        int k = kind(s, i);
        const char *text = token(s, (int64_t)i);
        bool strip = phi && strcmp(text, "<unk>") != 0 && strcmp(text, "<s>") != 0 &&
                     strcmp(text, "<|endoftext|>") != 0;
        if (k < UNKNOWN || k > USER_DEFINED || !text[0])
            continue;
        json_array_append_new(list, json_pack("{s:I, s:s, s:b, s:b, s:b}", "id", (json_int_t)i,
                                              "content", text, "special", k != USER_DEFINED,
                                              "normalized", false, "rstrip", strip));
    }
    json_object_set_new(out, "added_tokens", list);
}

/* The special token at an end of a text, if the file wants one. */
static int put_end(const struct source *s, const char *wants, bool otherwise, const char *key,
                   json_t *single, json_t *special, struct err *err)
{
    const json_t *id = get(s, key);
    const char *text;
    if (!flag(s, wants, otherwise))
        return 0;
    text = json_is_integer(id) ? token(s, json_integer_value(id)) : NULL;
    if (!text)
        return err_set(err, ERR_INPUT, "%s: %s is wanted, but tokenizer.ggml.%s names no token",
                       s->path, wants, key);
    json_array_append_new(single, json_pack("{s:{s:s}}", "SpecialToken", "id", text));
    json_object_set_new(special, text, json_pack("{s:[O]}", "ids", id));
    return 0;
}

static int put_template(const struct source *s, json_t *out, struct err *err)
{
    OWN(json_decrefp) json_t *single = json_array(), *special = json_object();
    if (s->pre && s->pre->bos && !flag(s, "add_bos_token", true))
        log_warn("%s: tokenizer.ggml.add_bos_token is false, but a text of tokenizer.ggml.pre %s "
                 "begins with a beginning-of-text token: the flag decides, as in llama.cpp; --bos "
                 "yes adds the token",
                 s->path, s->pre->name);
    PASS_ON(
        put_end(s, "add_bos_token", !s->pre || s->pre->bos, "bos_token_id", single, special, err));
    json_array_append_new(single, json_pack("{s:{s:s}}", "Sequence", "id", "A"));
    PASS_ON(put_end(s, "add_eos_token", false, "eos_token_id", single, special, err));
    json_object_set_new(out, "post_processor",
                        json_pack("{s:s, s:O, s:O}", "type", "TemplateProcessing", "single", single,
                                  "special_tokens", special));
    return 0;
}

int gguf_tokenizer(const char *path, const struct gguf *g, json_t **out, struct err *err)
{
    struct source s = {.path = path, .meta = g->meta};
    OWN(json_decrefp) json_t *o = json_object();
    PASS_ON(read_source(&s, err));
    PASS_ON(read_model(&s, o, err));
    put_steps(&s, o);
    put_added(&s, o);
    PASS_ON(put_template(&s, o, err));
    *out = HAND_OVER(o);
    return 0;
}
