/*
 * fuzz_tokenizer.c - tokenizer.json, and tokenizer_config.json behind a byte 0x1e: open, encode,
 * decode.
 */
#include "tests/fuzz/fuzz.h"
#include "capture/pretokenize.h"
#include "capture/tokenizer.h"
#include "core/json.h"
#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SEPARATOR 0x1e

/* ---- seeds ---------------------------------------------------------------------------------- */

/* What differs between the seeds: JSON values, and whether the vocabulary spells bytes. */
static const struct flavour {
    bool bytes;
    const char *normalizer, *pre, *post, *config;
} flavours[] = {
    {true, "null", "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":true}",
     "{\"type\":\"ByteLevel\",\"trim_offsets\":false}", NULL},
    {true, "{\"type\":\"NFC\"}",
     "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"
     "\"(?i:'s|'t)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}|\\\\s+(?!\\\\S)|\\\\s+\"},"
     "\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\",\"add_prefix_space\":"
     "false,\"use_regex\":false}]}",
     "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"TemplateProcessing\",\"single\":["
     "{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}"
     "],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[1],\"tokens\":[\"<s>\"]}}}]}",
     NULL},
    {false,
     "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\\u2581\"},"
     "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\\u2581\"}]}",
     "null", "null",
     "{\"add_bos_token\":true,\"bos_token\":{\"content\":\"<s>\"},\"add_eos_token\":false,"
     "\"eos_token\":\"</s>\"}"},
    {false, "{\"type\":\"NFKC\"}",
     "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Metaspace\",\"replacement\":"
     "\"\\u2581\","
     "\"prepend_scheme\":\"first\",\"split\":true},{\"type\":\"Digits\",\"individual_digits\":"
     "true},{\"type\":\"Split\",\"pattern\":{\"String\":\"(\"},\"behavior\":\"MergedWithPrevious\","
     "\"invert\":true}]}",
     "null", NULL},
};

static void add_vocab(struct jw *w, bool bytes)
{
    static const char *const more[] = {"\xe2\x96\x81", "th", "the", "in", "int", "er"};
    int id = 3;
    jw_key(w, "vocab");
    jw_obj(w);
    jw_kint(w, "<unk>", 0);
    jw_kint(w, "<s>", 1);
    jw_kint(w, "</s>", 2);
    for (int b = 0; b < 256; b++) {
        char text[8];
        if (bytes)
            byte_char((uint8_t)b, text);
        else
            snprintf(text, sizeof text, "<0x%02X>", b);
        jw_kint(w, text, id++);
    }
    for (char c[2] = "a"; *c <= 'z' && !bytes; ++*c)
        jw_kint(w, c, id++);
    for (int i = 0; i < 6; i++)
        jw_kint(w, more[i], id++);
    jw_obj_end(w);
}

static void add_merges(struct jw *w, bool pairs)
{
    static const char *const merges[][2] = {
        {"t", "h"}, {"th", "e"}, {"i", "n"}, {"in", "t"}, {"e", "r"}};
    jw_key(w, "merges");
    jw_arr(w);
    for (int i = 0; i < 5; i++) {
        char text[16];
        snprintf(text, sizeof text, "%s %s", merges[i][0], merges[i][1]);
        if (!pairs) {
            jw_str(w, text);
            continue;
        }
        jw_arr(w);
        jw_str(w, merges[i][0]);
        jw_str(w, merges[i][1]);
        jw_arr_end(w);
    }
    jw_arr_end(w);
}

static void add_flavour(struct fuzz_corpus *c, const struct flavour *f)
{
    OWN(buf_free) struct buf b = {0};
    struct jw w;
    buf_printf(&b,
               "{\"version\":\"1.0\",\"normalizer\":%s,\"pre_tokenizer\":%s,\"post_processor\":%s,"
               "\"added_tokens\":[{\"id\":1,\"content\":\"<s>\",\"special\":true},{\"id\":2,"
               "\"content\":\"</s>\",\"single_word\":true,\"lstrip\":true,\"rstrip\":true,"
               "\"normalized\":true,\"special\":false}],\"model\":",
               f->normalizer, f->pre, f->post);
    jw_init(&w, &b, 0);
    jw_obj(&w);
    jw_kstr(&w, "type", "BPE");
    jw_kstr(&w, "unk_token", "<unk>");
    jw_kbool(&w, "byte_fallback", !f->bytes);
    jw_kbool(&w, "ignore_merges", f->config != NULL);
    jw_kbool(&w, "fuse_unk", !f->bytes);
    add_merges(&w, f->config != NULL);
    add_vocab(&w, f->bytes);
    jw_obj_end(&w);
    buf_puts(&b, "}");
    if (f->config)
        buf_printf(&b, "%c%s", SEPARATOR, f->config);
    fuzz_add(c, b.data, b.len);
}

static int seeds(struct fuzz_corpus *c, struct err *err)
{
    for (size_t i = 0; i < sizeof flavours / sizeof *flavours; i++)
        add_flavour(c, &flavours[i]);
    return 0;
}

/* Mostly what stands before the vocabulary, which is the bulk of the text, and behind it. */
static void mutate(struct fuzz_rng *r, struct buf *x, const struct fuzz_corpus *c)
{
    const char *vocab = strstr(buf_str(x), "\"vocab\""),
               *cut = memchr(buf_str(x), SEPARATOR, x->len);
    uint64_t how = fuzz_below(r, 8);
    if (how == 0)
        fuzz_bytes(r, x, c);
    else if (how < 3 && cut)
        fuzz_tokens(r, x, (size_t)(cut - x->data) + 1, x->len);
    else if (how < 7 && vocab)
        fuzz_tokens(r, x, 0, (size_t)(vocab - x->data));
    else
        fuzz_tokens(r, x, 0, x->len);
}

/* ---- reading -------------------------------------------------------------------------------- */

static int encode(const struct tokenizer *t, const char *text, size_t len, struct err *err)
{
    int32_t *ids = NULL;
    int64_t n = 0;
    bool bos = false;
    struct buf back = {0};
    int rc = tokenizer_encode(t, text, len, &bos, &ids, &n, err);
    for (int64_t i = 0; !rc && i < n; i++)
        if (ids[i] < 0 || ids[i] > tokenizer_max_id(t)) {
            fuzz_wild("id %d, the largest is %lld", ids[i], (long long)tokenizer_max_id(t));
            break;
        }
    if (!rc && bos && n == 0)
        fuzz_wild("a token was added in front, but there is none");
    if (!rc) {
        tokenizer_decode(t, ids, n, &back);
        if (utf8_invalid(buf_str(&back), back.len) >= 0)
            fuzz_wild("the text of the ids is not UTF-8");
    }
    buf_free(&back);
    free(ids);
    return rc;
}

static int run(const void *data, size_t len, struct err *err)
{
    static const char *const texts[] = {
        "",
        " ",
        "the inter int 123456  x\n\n\ty",
        "<s>a</s> b<s></s>",
        "e\xcc\x81 \xc3\xa9 \xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e \xf0\x9f\x98\x80 \xe2\x85\xa7",
        "(((a)))'s'T 0x7fULL;\r\n\xe2\x96\x81\xe2\x96\x81 \xc2\xa0 \x01\x7f"};
    const char *cut = memchr(data, SEPARATOR, len);
    size_t first = cut ? (size_t)(cut - (const char *)data) : len;
    OWN(tokenizer_close) struct tokenizer *t = NULL;
    fuzz_file("tokenizer.json", data, first);
    if (cut)
        fuzz_file("tokenizer_config.json", cut + 1, len - first - 1);
    else
        unlink(fuzz_file("tokenizer_config.json", "", 0));
    PASS_ON(tokenizer_open(fuzz_dir(), &t, err));
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        PASS_ON(encode(t, texts[i], strlen(texts[i]), err));
    return 0;
}

const struct fuzz_target fuzz_tokenizer = {"tokenizer", seeds, mutate, true, run};
