/*
 * test_models.c - the forward pass against transformers in float32 on tiny random checkpoints of
 * every supported architecture, position scaling and spelling of config.json (tests/data/tiny).
 *
 * Both compute in float32; the bounds are some 10 times the differences seen (2e-6 relative).
 */
#include "capture/llm_model.h"
#include "core/fileio.h"
#include "core/mem.h"
#include "tests/harness/suite.h"
#include "tests/harness/tinymodel.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct err err;

enum { N = TINY_TOKENS, MAX_ROW = 64 };

/* What a run hands out, of the last layer. */
struct seen {
    int heads, kv_heads, d;
    float q[N * MAX_ROW], k[N * MAX_ROW], v[N * MAX_ROW]; /* [token][heads * d] */
    float nll[N - 1], logits[TINY_VOCAB];
};

static int keep_rows(void *ctx, int layer, int64_t t0, int64_t n, const float *q, const float *k,
                     const float *v, struct err *e)
{
    struct seen *s = ctx;
    int64_t qd = (int64_t)s->heads * s->d, kd = (int64_t)s->kv_heads * s->d;
    if (layer != TINY_LAYERS - 1)
        return 0;
    memcpy(s->q + t0 * qd, q, (size_t)(n * qd) * sizeof *q);
    memcpy(s->k + t0 * kd, k, (size_t)(n * kd) * sizeof *k);
    memcpy(s->v + t0 * kd, v, (size_t)(n * kd) * sizeof *v);
    return 0;
}

static void run_model(const char *dir, int64_t chunk, int64_t pool, struct seen *s)
{
    OWN(llm_close) struct llm_model m;
    int32_t ids[N];
    tiny_tokens(ids);
    assert_ok(llm_open(dir, &m, &err), &err);
    *s = (struct seen){.heads = m.c.heads, .kv_heads = m.c.kv_heads, .d = m.c.head_dim};
    ck_assert_int_le(s->heads * s->d, MAX_ROW);
    struct llm_run run = {.tokens = ids,
                          .n = N,
                          .chunk = chunk,
                          .pool = pool,
                          .jobs = 1,
                          .nll = s->nll,
                          .last_logits = s->logits};
    struct llm_hooks hooks = {.ctx = s, .rows = keep_rows};
    assert_ok(llm_forward(&m, &run, &hooks, &err), &err);
}

static void put_variant(const char *variant, int shards)
{
    OWN(json_decrefp) json_t *c = tiny_config(variant);
    tiny_put_config(test_tmpdir(), c);
    tiny_put_weights(test_tmpdir(), variant, shards, NULL);
}

/* ---- golden ---------------------------------------------------------------------------------- */

static float *golden(const struct st_file *f, const char *variant, const char *what, int64_t count)
{
    char name[96];
    const struct st_tensor *t;
    float *x = NULL;
    snprintf(name, sizeof name, "%s.%s", variant, what);
    assert_ok(st_require(f, name, -1, NULL, &t, &err), &err);
    ck_assert_msg(t->count == count, "%s: %lld elements", name, (long long)t->count);
    assert_ok(mem_alloc(&x, count, sizeof *x, name, &err), &err);
    assert_ok(st_read_f32(f, t, 0, count, x, &err), &err);
    return x;
}

/* x [N][heads * d] against want [heads][N][d]. */
static void check_heads(const struct st_file *f, const char *variant, const char *what,
                        const float *x, int heads, int d)
{
    OWN(free_at) float *want = golden(f, variant, what, (int64_t)heads * N * d);
    double diff = 0, norm = 0;
    for (int h = 0; h < heads; h++)
        for (int t = 0; t < N; t++)
            for (int c = 0; c < d; c++) {
                double w = want[(h * N + t) * d + c], e = x[(t * heads + h) * d + c] - w;
                diff += e * e;
                norm += w * w;
            }
    ck_assert_msg(sqrt(diff / norm) < 2e-5, "%s.%s: relative error %g", variant, what,
                  sqrt(diff / norm));
}

static void check_close(const struct st_file *f, const char *variant, const char *what,
                        const float *x, int64_t n, double tol)
{
    OWN(free_at) float *want = golden(f, variant, what, n);
    for (int64_t i = 0; i < n; i++)
        ck_assert_msg(fabs((double)x[i] - want[i]) < tol, "%s.%s[%lld] = %g, expected %g", variant,
                      what, (long long)i, x[i], want[i]);
}

static void check_golden(const char *variant, const struct seen *s)
{
    OWN(st_close) struct st_file *f = NULL;
    assert_ok(st_open("tests/data/tiny/golden.safetensors", &f, &err), &err);
    check_heads(f, variant, "q", s->q, s->heads, s->d);
    check_heads(f, variant, "k", s->k, s->kv_heads, s->d);
    check_heads(f, variant, "v", s->v, s->kv_heads, s->d);
    check_close(f, variant, "nll", s->nll, N - 1, 3e-4);
    check_close(f, variant, "logits", s->logits, TINY_VOCAB, 3e-4);
}

TEST_N(every_variant_computes_what_transformers_does, TINY_VARIANTS)
{
    struct seen s;
    char variant[64];
    snprintf(variant, sizeof variant, "%s", tiny_variant(_i));
    put_variant(variant, 1);
    run_model(test_tmpdir(), 0, 0, &s);
    check_golden(variant, &s);
}

/* ---- the same by another way ----------------------------------------------------------------- */

TEST(shards_are_one_checkpoint)
{
    struct seen s;
    put_variant("qwen3-bias", 3);
    run_model(test_tmpdir(), 0, 0, &s);
    check_golden("qwen3-bias", &s);
}

TEST(chunks_of_any_size_give_the_same)
{
    static const int64_t sizes[] = {1, 7, 16, 39, 40, 4096};
    struct seen s;
    put_variant("qwen2", 1);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        run_model(test_tmpdir(), sizes[i], 0, &s);
        check_golden("qwen2", &s);
    }
}

/* ---- damaged checkpoints --------------------------------------------------------------------- */

static void refuse(int code, const char *message)
{
    struct llm_model m;
    assert_fails(llm_open(test_tmpdir(), &m, &err), &err, code, message);
}

TEST_N(a_missing_tensor_is_named, 9)
{
    static const struct {
        const char *variant, *tensor;
    } cases[] = {
        {"llama", "model.embed_tokens.weight"},
        {"llama", "model.norm.weight"},
        {"llama-untied", "lm_head.weight"},
        {"llama", "model.layers.1.self_attn.v_proj.weight"},
        {"llama", "model.layers.0.input_layernorm.weight"},
        {"qwen2", "model.layers.1.self_attn.q_proj.bias"},
        {"qwen3", "model.layers.0.self_attn.k_norm.weight"},
        {"llama-bias", "model.layers.0.self_attn.o_proj.bias"},
        {"llama-bias", "model.layers.1.mlp.down_proj.bias"},
    };
    put_variant(cases[_i].variant, 1);
    tiny_put_weights(test_tmpdir(), cases[_i].variant, 1, cases[_i].tensor);
    refuse(ERR_INPUT, cases[_i].tensor);
}

TEST(tensors_of_other_architectures_are_not_asked_for)
{
    struct seen s;
    put_variant("llama", 1);
    tiny_put_weights(test_tmpdir(), "llama", 1, "model.layers.0.self_attn.q_proj.bias");
    run_model(test_tmpdir(), 0, 0, &s);
    put_variant("qwen2", 1);
    tiny_put_weights(test_tmpdir(), "qwen2", 1, "model.layers.0.self_attn.o_proj.bias");
    run_model(test_tmpdir(), 0, 0, &s);
    put_variant("mistral-window", 1); /* tied */
    tiny_put_weights(test_tmpdir(), "mistral-window", 1, "lm_head.weight");
    run_model(test_tmpdir(), 0, 0, &s);
}

TEST(a_missing_shard_is_named)
{
    char path[4300];
    put_variant("llama", 2);
    snprintf(path, sizeof path, "%s/model-00002-of-00002.safetensors", test_tmpdir());
    unlink(path);
    refuse(ERR_INPUT, "model-00002-of-00002.safetensors");
}

/* transformers looks for the file first. */
TEST(the_file_stands_above_its_index)
{
    char path[4300];
    OWN(llm_close) struct llm_model whole;
    put_variant("llama", 2);
    put_variant("llama", 1);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", test_tmpdir());
    assert_ok(file_write_atomic(path, "{}", 2, &err), &err);
    assert_ok(llm_open(test_tmpdir(), &whole, &err), &err);
    unlink(path);
}

TEST_N(shapes_that_do_not_fit_the_configuration_are_named, 6)
{
    static const struct {
        const char *key, *tensor;
        int value;
    } cases[] = {
        {"hidden_size", "model.embed_tokens.weight", 48},
        {"vocab_size", "model.embed_tokens.weight", 65},
        {"intermediate_size", "mlp.gate_proj.weight", 64},
        {"num_attention_heads", "self_attn.q_proj.weight", 8},
        {"num_key_value_heads", "self_attn.k_proj.weight", 4},
        {"num_hidden_layers", "model.layers.2.", 3},
    };
    OWN(json_decrefp) json_t *c = tiny_config("llama");
    json_object_set_new(c, cases[_i].key, json_integer(cases[_i].value));
    tiny_put_config(test_tmpdir(), c);
    tiny_put_weights(test_tmpdir(), "llama", 1, NULL);
    refuse(ERR_INPUT, cases[_i].tensor);
}

TEST(a_tensor_of_integers_is_refused)
{
    char path[4300];
    int64_t data[TINY_VOCAB * 32] = {0};
    struct st_out t = {"model.embed_tokens.weight", DT_I64, 2, {TINY_VOCAB, 32}, data};
    put_variant("llama", 1);
    snprintf(path, sizeof path, "%s/model.safetensors", test_tmpdir());
    assert_ok(st_write(path, &t, 1, &err), &err);
    refuse(ERR_INPUT, "model.embed_tokens.weight");
}

TEST(prompts_beyond_the_sliding_window_run_on_the_cpu)
{
    OWN(llm_close) struct llm_model m;
    int32_t ids[N];
    float nll[N];
    json_t *c = tiny_config("mistral-window");
    tiny_tokens(ids);
    json_object_set_new(c, "sliding_window", json_integer(N - 1));
    tiny_put_config(test_tmpdir(), c);
    tiny_put_weights(test_tmpdir(), "mistral-window", 1, NULL);
    json_decref(c);
    assert_ok(llm_open(test_tmpdir(), &m, &err), &err);
    struct llm_run run = {.tokens = ids, .n = N, .jobs = 1, .nll = nll};
    assert_ok(llm_forward(&m, &run, NULL, &err), &err);
    ck_assert_str_eq(llm_device_lacks(&m.c, N), "sliding windows");
    ck_assert_str_eq(llm_device_lacks(&m.c, N - 1), "");
}
