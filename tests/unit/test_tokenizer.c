/*
 * test_tokenizer.c - token ids are those of Hugging Face's tokenizers, for every supported kind.
 */
#include "capture/pretokenize.h"
#include "capture/tokenizer.h"
#include "core/fileio.h"
#include "core/safetensors.h"
#include "tests/harness/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct err err;

static void put_file(const char *name, const char *text)
{
    assert_ok(file_write_atomic(test_path(name), text, strlen(text), &err), &err);
}

/* A tokenizer from the text of tokenizer.json and of tokenizer_config.json (may be NULL). */
static int open_text(const char *json, const char *config, struct tokenizer **t)
{
    put_file("tokenizer.json", json);
    if (config)
        put_file("tokenizer_config.json", config);
    else
        unlink(test_path("tokenizer_config.json"));
    return tokenizer_open(test_tmpdir(), t, &err);
}

static struct tokenizer *open_value(const json_t *tokenizer, const json_t *config)
{
    struct tokenizer *t = NULL;
    OWN(free_at) char *text = json_dumps(tokenizer, JSON_COMPACT);
    OWN(free_at) char *more = json_is_null(config) ? NULL : json_dumps(config, JSON_COMPACT);
    ck_assert(text);
    assert_ok(open_text(text, more, &t), &err);
    return t;
}

/* ---- golden ids ------------------------------------------------------------------------------ */

static json_t *goldens(void)
{
    json_t *o = NULL;
    assert_ok(json_read_file("tests/data/tiny/tokenizers.json", 1 << 24, &o, &err), &err);
    return o;
}

static void check_ids(const char *name, const char *text, const int32_t *ids, int64_t n,
                      const json_t *want)
{
    for (int64_t i = 0; i < n && i < (int64_t)json_array_size(want); i++)
        ck_assert_msg(ids[i] == json_integer_value(json_array_get(want, (size_t)i)),
                      "%s: \"%s\": id %lld is %d, expected %lld", name, text, (long long)i, ids[i],
                      (long long)json_integer_value(json_array_get(want, (size_t)i)));
    ck_assert_msg(n == (int64_t)json_array_size(want), "%s: \"%s\": %lld ids, expected %zu", name,
                  text, (long long)n, json_array_size(want));
}

TEST_N(ids_are_those_of_the_reference, 18)
{
    json_t *all = goldens(), *texts = json_object_get(all, "texts");
    const json_t *g = json_array_get(json_object_get(all, "tokenizers"), (size_t)_i);
    const char *name = json_string_value(json_object_get(g, "name"));
    OWN(tokenizer_close)
    struct tokenizer *t = open_value(json_object_get(g, "tokenizer"), json_object_get(g, "config"));

    ck_assert_uint_gt(json_array_size(texts), 90);
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const char *text = json_string_value(json_array_get(texts, i));
        OWN(free_at) int32_t *ids = NULL;
        int64_t n = 0;
        assert_ok(tokenizer_encode(t, text, strlen(text), NULL, &ids, &n, &err), &err);
        check_ids(name, text, ids, n, json_array_get(json_object_get(g, "ids"), i));
    }
    json_decref(all);
}

TEST(the_golden_file_has_18_tokenizers)
{
    OWN(json_decrefp) json_t *all = goldens();
    ck_assert_uint_eq(json_array_size(json_object_get(all, "tokenizers")), 18);
}

/* The shipped model: its tokens begin with id 0. */
TEST(code_lm_ids_are_the_golden_tokens)
{
    OWN(st_close) struct st_file *f = NULL;
    const struct st_tensor *want;
    OWN(tokenizer_close) struct tokenizer *t = NULL;
    OWN(buf_free) struct buf text = {0};
    OWN(free_at) int32_t *ids = NULL;
    int64_t n = 0, *tokens;
    bool bos = true;
    assert_ok(st_open("tests/data/code-lm-a.safetensors", &f, &err), &err);
    assert_ok(st_require(f, "tokens", -1, NULL, &want, &err), &err);
    ck_assert_int_eq(want->count, 770);
    tokens = malloc((size_t)want->count * sizeof *tokens);
    assert_ok(st_read_i64(f, want, 0, want->count, tokens, &err), &err);
    assert_ok(tokenizer_open("datasets/models/code-lm", &t, &err), &err);
    assert_ok(buf_read_file(&text, "tests/data/code-lm-a.txt", 1 << 20, &err), &err);
    assert_ok(tokenizer_encode(t, text.data, text.len, &bos, &ids, &n, &err), &err);
    ck_assert(bos);
    ck_assert_int_eq(tokenizer_max_id(t), 4095);
    ck_assert_int_eq(n, want->count);
    for (int64_t i = 0; i < n; i++)
        ck_assert_int_eq(ids[i], tokens[i]);
    free(tokens);
}

/* ---- the files beside tokenizer.json --------------------------------------------------------- */

static const char *const beside[] = {"tokenizer.json", "tokenizer_config.json",
                                     "special_tokens_map.json", "added_tokens.json"};

static struct tokenizer *open_files(const json_t *files)
{
    struct tokenizer *t = NULL;
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++) {
        const json_t *v = json_object_get(files, beside[i]);
        OWN(free_at) char *text = v ? json_dumps(v, JSON_COMPACT) : NULL;
        if (text)
            put_file(beside[i], text);
        else
            unlink(test_path(beside[i]));
    }
    assert_ok(tokenizer_open(test_tmpdir(), &t, &err), &err);
    for (size_t i = 2; i < sizeof beside / sizeof *beside; i++)
        unlink(test_path(beside[i]));
    return t;
}

TEST(tokens_of_every_file_are_those_of_transformers)
{
    OWN(json_decrefp) json_t *all = NULL;
    assert_ok(json_read_file("tests/data/tiny/declared.json", 1 << 20, &all, &err), &err);
    ck_assert_uint_eq(json_array_size(all), 40);
    for (size_t i = 0; i < json_array_size(all); i++) {
        const json_t *g = json_array_get(all, i);
        const char *text = json_string_value(json_object_get(g, "text"));
        OWN(tokenizer_close) struct tokenizer *t = open_files(json_object_get(g, "files"));
        OWN(free_at) int32_t *ids = NULL;
        int64_t n = 0;
        assert_ok(tokenizer_encode(t, text, strlen(text), NULL, &ids, &n, &err), &err);
        check_ids(json_string_value(json_object_get(g, "name")), text, ids, n,
                  json_object_get(g, "ids"));
    }
}

#define VOCAB "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"<s>\":3,\"</s>\":4}"
#define MODEL "\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"a b\"]}"

/* ---- bytes and decoding ---------------------------------------------------------------------- */

static void round_trip(const struct tokenizer *t, const char *text, size_t len)
{
    OWN(free_at) int32_t *ids = NULL;
    int64_t n = 0;
    bool bos = false;
    OWN(buf_free) struct buf b = {0};
    assert_ok(tokenizer_encode(t, text, len, &bos, &ids, &n, &err), &err);
    tokenizer_decode(t, ids + bos, n - bos, &b);
    ck_assert_uint_eq(b.len, len);
    ck_assert(memcmp(buf_str(&b), text, len) == 0);
}

TEST(decoding_gives_the_text_back)
{
    OWN(tokenizer_close) struct tokenizer *t = NULL;
    OWN(buf_free) struct buf long_spaces = {0}, all = {0};
    assert_ok(tokenizer_open("datasets/models/code-lm", &t, &err), &err);
    round_trip(t, "", 0);
    round_trip(t, "a\0b\0", 4);
    round_trip(t, "int f(void)\r\n{\t/* 日本語 😀 <|endoftext|> */ }\n",
               strlen("int f(void)\r\n{\t/* "
                      "日本語 😀 <|endoftext|> */ }\n"));
    for (int i = 0; i < 300000; i++)
        buf_puts(&long_spaces, " ");
    round_trip(t, long_spaces.data, long_spaces.len);
    for (int c = 0; c < 0x80; c++)
        buf_put(&all, &(char){(char)c}, 1);
    for (int c = 0x80; c < 0x800; c++)
        buf_put(&all, (char[]){(char)(0xc0 | c >> 6), (char)(0x80 | (c & 63))}, 2);
    round_trip(t, all.data, all.len);
}

TEST(incomplete_characters_decode_to_the_replacement)
{
    OWN(tokenizer_close) struct tokenizer *t = NULL;
    OWN(buf_free) struct buf b = {0};
    int32_t ids[] = {0, 3, 0, 99, 1};
    assert_ok(
        open_text("{\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\\u00c3\":3},\"merges\":[]},"
                  "\"pre_tokenizer\":{\"type\":\"ByteLevel\"}}",
                  NULL, &t),
        &err);
    tokenizer_decode(t, ids, 5, &b);
    ck_assert_str_eq(buf_str(&b), "a\xef\xbf\xbd"
                                  "a\xef\xbf\xbd"
                                  "b");
}

TEST(byte_characters_are_a_bijection)
{
    bool seen[0x200] = {false};
    for (int b = 0; b < 256; b++) {
        char c[3];
        byte_char((uint8_t)b, c);
        int code = (unsigned char)c[0] < 0x80 ? c[0] : (c[0] & 0x1f) << 6 | (c[1] & 0x3f);
        ck_assert_int_ge(code, 0x21);
        ck_assert(!seen[code]);
        seen[code] = true;
        ck_assert_int_eq(char_byte(code), b);
    }
    ck_assert_int_eq(char_byte(' '), -1);
    ck_assert_int_eq(char_byte(0x144), -1);
    ck_assert_int_eq(char_byte(0x143), 0xad);
}

TEST(text_that_is_not_utf8_is_refused_with_its_offset)
{
    static const struct {
        const char *text;
        const char *at;
    } bad[] = {{"ab\x80", "byte 2"},
               {"\xc3", "byte 0"},
               {"a\xed\xa0\x80", "byte 1"},
               {"\xc0\xaf", "byte 0"},
               {"ok \xf4\x90\x80\x80", "byte 3"}};
    OWN(tokenizer_close) struct tokenizer *t = NULL;
    int32_t *ids = NULL;
    int64_t n = 0;
    assert_ok(open_text("{" MODEL "}", NULL, &t), &err);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_fails(tokenizer_encode(t, bad[i].text, strlen(bad[i].text), NULL, &ids, &n, &err),
                     &err, ERR_INPUT, bad[i].at);
        ck_assert(!ids);
    }
    assert_fails(tokenizer_encode(t, "abc", 3, NULL, &ids, &n, &err), &err, ERR_INPUT, "\"c\"");
}

/* ---- what is refused ------------------------------------------------------------------------- */

#define WITH(key, value) "{" MODEL ",\"" key "\":" value "}"

static const struct {
    const char *json, *config, *message;
    /* clang-format off */
} refused[] = {
    {"[]", NULL, "not a JSON object"},
    {"{}", NULL, "\"model\" must be an object"},
    {"{\"model\":{\"type\":\"WordPiece\"}}", NULL, "model type WordPiece is not supported"},
    {"{\"model\":{\"type\":\"Unigram\"}}", NULL, "model type Unigram is not supported"},
    {"{\"model\":{\"type\":\"BPE\"}}", NULL, "\"vocab\" must be an object"},
    {"{\"model\":{\"vocab\":{},\"merges\":[]}}", NULL, "vocabulary is empty"},
    {"{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", NULL, "id of \"a\""},
    {"{\"model\":{\"vocab\":{\"a\":1.5},\"merges\":[]}}", NULL, "id of \"a\""},
    {"{\"model\":{\"vocab\":{\"a\":99999999999},\"merges\":[]}}", NULL, "id of \"a\""},
    {"{\"model\":{\"vocab\":{\"a\":1,\"b\":1},\"merges\":[]}}", NULL, "same id 1"},
    {"{\"model\":{" VOCAB "}}", NULL, "\"merges\" must be an array"},
    {"{\"model\":{" VOCAB ",\"merges\":[\"ab\"]}}", NULL, "merge 0 must be"},
    {"{\"model\":{" VOCAB ",\"merges\":[\"a b\",\"a b c\"]}}", NULL, "merge 1 must be"},
    {"{\"model\":{" VOCAB ",\"merges\":[[\"a\",\"b\",\"a\"]]}}", NULL, "merge 0 must be"},
    {"{\"model\":{" VOCAB ",\"merges\":[\"a b\",\"b a\"]}}", NULL, "\"ba\" is not in the vocabulary"},
    {"{\"model\":{" VOCAB ",\"merges\":[\"a z\"]}}", NULL, "\"z\" is not in the vocabulary"},
    {"{\"model\":{" VOCAB ",\"merges\":[],\"dropout\":0.1}}", NULL, "dropout 0.1"},
    {"{\"model\":{" VOCAB ",\"merges\":[],\"end_of_word_suffix\":\"</w>\"}}", NULL,
     "end_of_word_suffix \"</w>\""},
    {"{\"model\":{" VOCAB ",\"merges\":[],\"unk_token\":\"?\"}}", NULL, "unk_token \"?\""},
    {WITH("normalizer", "{\"type\":\"Lowercase\"}"), NULL, "normalizer Lowercase is not supported"},
    {WITH("normalizer", "{\"type\":\"Precompiled\"}"), NULL, "normalizer Precompiled"},
    {WITH("normalizer", "{}"), NULL, "\"type\" is missing"},
    {WITH("normalizer", "{\"type\":\"Sequence\"}"), NULL, "\"normalizers\" must be an array"},
    {WITH("normalizer", "{\"type\":\"Replace\",\"content\":\"x\",\"pattern\":{\"Regex\":\"(\"}}"),
     NULL, "\"(\" is not a usable regular expression"},
    {WITH("pre_tokenizer", "{\"type\":\"BertPreTokenizer\"}"), NULL,
     "pre_tokenizer BertPreTokenizer is not supported"},
    {WITH("pre_tokenizer", "{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":"
          "\"a(?\"}}"), NULL, "\"a(?\" is not a usable regular expression"},
    {WITH("pre_tokenizer", "{\"type\":\"Split\",\"behavior\":\"Dropped\",\"pattern\":{\"String\":"
          "\"a\"}}"), NULL, "unknown behavior \"Dropped\""},
    {WITH("pre_tokenizer", "{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":\"a\"}"), NULL,
     "object"},
    {WITH("pre_tokenizer", "{\"type\":\"Metaspace\",\"prepend_scheme\":\"last\"}"), NULL,
     "prepend_scheme \"last\""},
    {WITH("pre_tokenizer", "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},"
          "{\"type\":\"Digits\"}]}"), NULL, "only as the last step"},
    {WITH("post_processor", "{\"type\":\"BertProcessing\"}"), NULL,
     "post_processor BertProcessing is not supported"},
    {WITH("post_processor", "{\"type\":\"TemplateProcessing\",\"single\":[]}"), NULL, "the text once"},
    {WITH("post_processor", "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":"
     "\"x\"}},{\"Sequence\":{}}],\"special_tokens\":{\"x\":{\"ids\":[2147483646]}}}"), NULL,
     "an id of \"x\" is not a token id"},
    {WITH("post_processor", "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":"
          "\"<s>\"}}]}"), NULL, "\"<s>\" has no \"ids\""},
    {WITH("added_tokens", "3"), NULL, "\"added_tokens\" must be an array"},
    {WITH("added_tokens", "[{\"id\":1}]"), NULL, "\"content\" is missing"},
    {WITH("added_tokens", "[{\"id\":-1,\"content\":\"x\"}]"), NULL, "id -1"},
    {"{" MODEL "}", "[]", "not a JSON object"},
    {"{" MODEL "}", "{\"add_bos_token\":1}", "a boolean was expected"},
    {"{" MODEL "}", "{\"split_special_tokens\":true}", "split_special_tokens is not supported"},
    {"{" MODEL "}", "{\"added_tokens_decoder\":[]}", "added_tokens_decoder must be an object"},
    {"{" MODEL "}", "{\"added_tokens_decoder\":{\"1x\":\"<x>\"}}", "\"1x\" is no token id"},
    {"{" MODEL "}", "{\"added_tokens_decoder\":{\"5\":{}}}", "\"content\" is missing"},
    {"{" MODEL "}", "{\"pad_token\":\"\\u0000\"}", "pad_token"},
    {"{\"model\":{\"vocab\":{\"a\\ud800\":1},\"merges\":[]}}", NULL, "half of a surrogate pair"},
};
/* clang-format on */

TEST_EACH(what_cannot_be_done_exactly_is_refused, refused)
{
    struct tokenizer *t = NULL;
    assert_fails(open_text(refused[_i].json, refused[_i].config, &t), &err, ERR_INPUT,
                 refused[_i].message);
    ck_assert(!t);
}

TEST(messages_name_the_file)
{
    struct tokenizer *t = NULL;
    char path[4300];
    snprintf(path, sizeof path, "%s/tokenizer.json: model", test_tmpdir());
    assert_fails(open_text("{\"model\":{\"type\":\"WordLevel\"}}", NULL, &t), &err, ERR_INPUT,
                 path);
    unlink(test_path("tokenizer.json"));
    assert_fails(tokenizer_open(test_tmpdir(), &t, &err), &err, ERR_INPUT,
                 "tokenizer.json does not exist");
}

/* A pattern that backtracks without end gives an error, not a hang. */
TEST(runaway_patterns_end_in_an_error)
{
    OWN(tokenizer_close) struct tokenizer *t = NULL;
    int32_t *ids = NULL;
    int64_t n = 0;
    char text[65];
    memset(text, 'a', 63);
    strcpy(text + 63, "b");
    assert_ok(
        open_text(WITH("pre_tokenizer", "{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":"
                                        "{\"Regex\":\"(?:a|a)+[^ab]\"}}"),
                  NULL, &t),
        &err);
    assert_fails(tokenizer_encode(t, text, 64, NULL, &ids, &n, &err), &err, ERR_INPUT,
                 "(?:a|a)+[^ab]");
}
