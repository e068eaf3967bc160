/*
 * test_gguf.c - GGUF files of the package gguf (tests/data/gguf/make_gguf.py): every type bit for
 * bit, models against transformers, token ids against tokenizers and llama.cpp, damaged files.
 */
#include "core/checkpoint.h"
#include "capture/llm_model.h"
#include "capture/tokenizer.h"
#include "core/fileio.h"
#include "tests/harness/capturerun.h"
#include "tests/harness/suite.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define DATA "tests/data/gguf/"

enum { N = 40, LAYERS = 2 };

static struct err err;

static void json_release(json_t **o)
{
    json_decref(*o);
}

static const char *file_of(const char *name)
{
    static char path[96];
    snprintf(path, sizeof path, DATA "%s.gguf", name);
    return path;
}

/* ---- types ----------------------------------------------------------------------------------- */

TEST(every_type_is_bit_equal_to_the_package)
{
    OWN(st_close) struct st_file *f = NULL, *want = NULL;
    char text[128];
    assert_ok(checkpoint_weights(DATA "types.gguf", &f, &err), &err);
    assert_ok(st_open(DATA "types.safetensors", &want, &err), &err);
    ck_assert_int_eq(st_count(f), 11);
    ck_assert_int_eq(st_count(want), 11);
    for (int64_t i = 0; i < 11; i++) {
        const struct st_tensor *t = st_at(f, i), *w = st_find(want, t->name);
        float x[512], y[512];
        ck_assert_msg(w && strcmp(t->name, t->dtype_text) == 0, "%s", t->name);
        assert_ok(st_read_f32(f, t, 0, 512, x, &err), &err);
        assert_ok(st_read_f32(want, w, 0, 512, y, &err), &err);
        for (int k = 0; k < 512; k++)
            ck_assert_msg(memcmp(x + k, y + k, 4) == 0, "%s[%d] = %a, not %a", t->name, k, x[k],
                          y[k]);
        assert_ok(st_read_f32(f, t, 17, 300, x, &err), &err); /* within blocks */
        ck_assert_msg(memcmp(x, y + 17, 300 * sizeof *x) == 0, "%s from 17 on", t->name);
    }
    checkpoint_types(f, text, sizeof text);
    ck_assert_str_eq(text, "BF16 (1), F16 (1), F32 (1), Q4_0 (1), Q4_1 (1), Q4_K (1), Q5_0 (1), "
                           "Q5_1 (1), Q5_K (1), Q6_K (1), Q8_0 (1)");
}

/* ---- models ---------------------------------------------------------------------------------- */

static const char *const models[] = {"llama", "smollm", "qwen2", "qwen3", "phi3", "glm4"};

struct seen {
    int heads, kv_heads, d;
    float q[N * 64], k[N * 64], nll[N - 1]; /* q, k of the last layer [token][heads * d] */
};

static int keep(void *ctx, int layer, int64_t t0, int64_t n, const float *q, const float *k,
                const float *v, struct err *e)
{
    struct seen *s = ctx;
    int64_t qd = (int64_t)s->heads * s->d, kd = (int64_t)s->kv_heads * s->d;
    if (layer == LAYERS - 1) {
        memcpy(s->q + t0 * qd, q, (size_t)(n * qd) * sizeof *q);
        memcpy(s->k + t0 * kd, k, (size_t)(n * kd) * sizeof *k);
    }
    return 0;
}

static void check(const struct st_file *f, const char *model, const char *what, const float *x,
                  int heads, int n, int d)
{
    const struct st_tensor *t;
    char name[64];
    float want[N * 64];
    double diff = 0, norm = 0;
    snprintf(name, sizeof name, "%s.%s", model, what);
    assert_ok(st_require(f, name, -1, NULL, &t, &err), &err);
    ck_assert_int_eq(t->count, heads * n * d);
    assert_ok(st_read_f32(f, t, 0, t->count, want, &err), &err);
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < n; i++)
            for (int c = 0; c < d; c++) {
                double w = want[(h * n + i) * d + c], e = x[(i * heads + h) * d + c] - w;
                diff += e * e;
                norm += w * w;
            }
    ck_assert_msg(sqrt(diff / norm) < 2e-5, "%s: relative error %g", name, sqrt(diff / norm));
}

static json_t *tokens_json(void)
{
    json_t *o = NULL;
    assert_ok(json_read_file(DATA "tokens.json", 1 << 24, &o, &err), &err);
    return o;
}

TEST_EACH(models_compute_what_transformers_computes, models)
{
    OWN(json_release) json_t *o = tokens_json();
    OWN(st_close) struct st_file *golden = NULL;
    OWN(llm_close) struct llm_model m;
    int32_t ids[N];
    for (int i = 0; i < N; i++)
        ids[i] =
            (int32_t)json_integer_value(json_array_get(json_object_get(o, "prompt"), (size_t)i));
    assert_ok(st_open(DATA "golden.safetensors", &golden, &err), &err);
    assert_ok(llm_open(file_of(models[_i]), &m, &err), &err);
    struct seen s = {.heads = m.c.heads, .kv_heads = m.c.kv_heads, .d = m.c.head_dim};
    struct llm_run run = {.tokens = ids, .n = N, .jobs = 1, .nll = s.nll};
    struct llm_hooks hooks = {.ctx = &s, .rows = keep};
    assert_ok(llm_forward(&m, &run, &hooks, &err), &err);
    check(golden, models[_i], "q", s.q, s.heads, N, s.d);
    check(golden, models[_i], "k", s.k, s.kv_heads, N, s.d);
    check(golden, models[_i], "nll", s.nll, 1, N - 1, 1);
}

/* A device gets the rows in the same order. */
TEST_EACH(raw_layers_are_the_same, models)
{
    OWN(llm_close) struct llm_model m;
    OWN(llm_layer_free) struct llm_layer l = {0};
    OWN(llm_raw_free) struct llm_raw_layer raw = {0};
    assert_ok(llm_open(file_of(models[_i]), &m, &err), &err);
    assert_ok(llm_layer_load(&m, 1, &l, &err), &err);
    assert_ok(llm_raw_load(&m, 1, &raw, &err), &err);
    for (int i = 0; i < LLM_LAYER_TENSORS; i++) {
        const struct decoder_tensor *t = &raw.t[i];
        ck_assert((t->data == NULL) == (l.t[i] == NULL));
        for (int64_t k = 0; t->data && k < t->rows * t->cols; k++) {
            float x;
            dtype_to_f32(t->dtype, (const char *)t->data + (size_t)k * dtype_size(t->dtype), &x, 1);
            ck_assert_msg(x == l.t[i][k], "tensor %d, number %lld", i, (long long)k);
        }
    }
}

/* ---- tokens ---------------------------------------------------------------------------------- */

TEST_EACH(token_ids_are_those_of_other_readers, models)
{
    OWN(json_release) json_t *o = tokens_json();
    OWN(tokenizer_close) struct tokenizer *t = NULL;
    const json_t *texts = json_object_get(o, "texts");
    const json_t *all = json_object_get(json_object_get(o, "ids"), models[_i]);
    assert_ok(tokenizer_open(file_of(models[_i]), &t, &err), &err);
    ck_assert_int_gt(json_array_size(texts), 30);
    ck_assert_int_eq(json_array_size(texts), json_array_size(all));
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const char *text = json_string_value(json_array_get(texts, i));
        const json_t *want = json_array_get(all, i);
        OWN(free_at) int32_t *ids = NULL;
        int64_t n = 0;
        assert_ok(tokenizer_encode(t, text, strlen(text), NULL, &ids, &n, &err), &err);
        ck_assert_msg((size_t)n == json_array_size(want), "'%s': %lld tokens, not %zu", text,
                      (long long)n, json_array_size(want));
        for (int64_t k = 0; k < n; k++)
            ck_assert_msg(ids[k] == json_integer_value(json_array_get(want, (size_t)k)),
                          "'%s': token %lld is %d", text, (long long)k, ids[k]);
    }
}

TEST(the_chat_template_stands_where_a_directory_has_it)
{
    OWN(json_release) json_t *with = NULL, *without = NULL;
    char path[CHECKPOINT_PATH];
    const char *name = "tokenizer_config.json", *text;
    assert_ok(checkpoint_json(file_of("smollm"), name, 0, path, &with, &err), &err);
    text = json_string_value(json_object_get(with, "chat_template"));
    ck_assert(text && strstr(text, "<|im_start|>"));
    assert_ok(checkpoint_json(file_of("qwen2"), name, 0, path, &without, &err), &err);
    ck_assert_int_eq((int)json_object_size(without), 0);
}

/* ---- names ----------------------------------------------------------------------------------- */

#define HASH "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static const struct {
    const char *file, *name;
} named[] = {
    {"SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct"},
    {"qwen2.5-0.5b-instruct-q4_k_m.gguf", "qwen2.5-0.5b-instruct"},
    {"Llama-3.2-1B-BF16.GGUF", "Llama-3.2-1B"},
    {"Qwen-2.gguf", "Qwen-2"},
    {"Q8_0.gguf", "Q8_0"},
    {"ggml-model-f16.gguf", "tiny smollm"}, /* general.name */
    {"sha256-" HASH, "tiny smollm"},
};

TEST_EACH(a_model_is_called_by_its_file, named)
{
    OWN(buf_free) struct buf b = {0};
    char path[4096], name[128];
    snprintf(path, sizeof path, "%s/%s", test_tmpdir(), named[_i].file);
    assert_ok(buf_read_file(&b, DATA "smollm.gguf", 1 << 20, &err), &err);
    assert_ok(file_write_atomic(path, b.data, b.len, &err), &err);
    checkpoint_name(path, name, sizeof name);
    ck_assert_str_eq(name, named[_i].name);
}

TEST(a_missing_bos_token_is_named_as_the_format_names_it)
{
    const struct llm_config none = {.bos = -1};
    int32_t id;
    assert_fails(llm_bos(file_of("llama"), &none, &id, &err), &err, ERR_USAGE,
                 "llama.gguf: --bos yes, but the file has no tokenizer.ggml.bos_token_id");
    assert_fails(llm_bos("tests/data", &none, &id, &err), &err, ERR_USAGE,
                 "tests/data: --bos yes, but config.json has no bos_token_id");
}

/* ---- captures -------------------------------------------------------------------------------- */

TEST(a_capture_names_types_and_positions)
{
    OWN(trace_close) struct trace *t = NULL;
    char args[256], out[256];
    snprintf(args, sizeof args, "%s/ids.txt", test_tmpdir());
    FILE *f = fopen(args, "w");
    ck_assert(f != NULL);
    for (int i = 0; i < 300; i++)
        fprintf(f, "%d ", i);
    ck_assert(fclose(f) == 0);
    snprintf(args, sizeof args, "--tokens-file %s/ids.txt", test_tmpdir());
    for (int n = 256; n <= 300; n += 44) {
        char tokens[32];
        trace_close(&t);
        snprintf(out, sizeof out, "%s/%d.h5", test_tmpdir(), n);
        snprintf(tokens, sizeof tokens, "--tokens %d", n);
        assert_ok(capture_run(DATA "smollm.gguf", out, tokens, args, &err), &err);
        assert_ok(trace_open(out, &t, &err), &err);
        ck_assert_str_eq(trace_meta(t)->name, "smollm");
        ck_assert_str_eq(trace_meta(t)->weight_types, "BF16 (15), F32 (5)");
        ck_assert_int_eq(trace_meta(t)->max_positions, n > 256 ? 256 : 0);
        ck_assert_int_eq(trace_meta(t)->dtype, DT_BF16);
    }
}

/* ---- damaged and unsupported ----------------------------------------------------------------- */

/* A file of which `from` becomes `to`, of the same length; `keep` of 1000 parts are left of it. */
#define CHANGE(from, to) from, to, sizeof from - 1
static const struct damage {
    const char *from, *to;
    size_t len;
    int keep;
    const char *message;
} damages[] = {
    {CHANGE("GGUF", "GGML"), 1000, "no GGUF file"},
    {CHANGE("GGUF\3\0\0\0", "GGUF\1\0\0\0"), 1000, "GGUF version 1"},
    {CHANGE("GGUF\3\0\0\0", "GGUF\0\0\0\3"), 1000, "a big-endian GGUF file"},
    {CHANGE("", ""), 990, "go past the end of the file"},
    {CHANGE("", ""), 20, "do not fit into the file"},
    {CHANGE("\5\0\0\0\0\0\0\0llama", "\5\0\0\0\0\0\0\0mamba"), 1000,
     "general.architecture mamba is not supported"},
    {CHANGE("llama.block_count", "llama.block_camel"), 1000,
     "the key llama.block_count is missing"},
    {CHANGE("llama.rope.dimension_count", "llama.attention.clamp_kqv\0"), 1000, "zero byte"},
    {CHANGE("blk.1.attn_q.weight", "blk.1.attn_x.weight"), 1000,
     "tensor 'blk.1.attn_q.weight' is missing"},
    {CHANGE("blk.1.attn_k.weight", "blk.1.attn_q.weight"), 1000,
     "tensor 'blk.1.attn_q.weight' is there twice"},
    {CHANGE("rope_freqs.weight", "norm_freqs.weight"), 1000,
     "tensor 'norm_freqs.weight' is no part of LlamaForCausalLM"},
    {CHANGE("output_norm.weight\1\0\0\0 \0\0\0\0\0\0\0\0\0\0\0",
            "output_norm.weight\1\0\0\0 \0\0\0\0\0\0\0\x0b\0\0\0"),
     1000, "tensor 'output_norm.weight' is of type 11 (Q3_K)"},
};

static const char *changed(const char *model, const struct damage *d)
{
    static char path[256];
    OWN(buf_free) struct buf b = {0};
    assert_ok(buf_read_file(&b, file_of(model), 1 << 20, &err), &err);
    char *at = memmem(b.data, b.len, d->from, d->len);
    ck_assert_msg(at != NULL, "%s: '%s' is not in the file", model, d->from);
    memcpy(at, d->to, d->len);
    snprintf(path, sizeof path, "%s/x.gguf", test_tmpdir());
    assert_ok(file_write_atomic(path, b.data, b.len * (size_t)d->keep / 1000, &err), &err);
    return path;
}

/* As llama.cpp reads it, not as Qwen2's own class does, which has 32. */
TEST(absent_kv_heads_are_the_query_heads)
{
    const struct damage d = {CHANGE("head_count_kv", "head_count_xx"), 1000, NULL};
    struct llm_config c;
    assert_ok(llm_config_read(changed("qwen2", &d), &c, &err), &err);
    ck_assert_int_eq(c.kv_heads, c.heads);
}

TEST_EACH(damaged_files_are_refused_by_name, damages)
{
    OWN(llm_close) struct llm_model m = {0};
    assert_fails(llm_open(changed("llama", &damages[_i]), &m, &err), &err, ERR_INPUT,
                 damages[_i].message);
}
