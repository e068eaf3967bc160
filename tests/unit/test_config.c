/*
 * test_config.c - what config.json of a language model means: both spellings, the defaults of every
 * family, and everything that is refused.
 */
#include "capture/llm_config.h"
#include "tests/harness/suite.h"
#include "tests/harness/tinymodel.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static struct err err;

static int read_value(const json_t *c, struct llm_config *out)
{
    tiny_put_config(test_tmpdir(), c);
    return llm_config_read(test_tmpdir(), out, &err);
}

/* A variant of configs.json with `more` (JSON text of an object) on top; a value "-" takes a key
 * out. */
static int read_with(const char *variant, const char *more, struct llm_config *out)
{
    OWN(json_decrefp) json_t *c = tiny_config(variant), *change = NULL;
    json_t *v;
    const char *key;
    assert_ok(json_read_text(more, strlen(more), "change", &change, &err), &err);
    json_object_foreach(change, key,
                        v) if (json_is_string(v) && strcmp(json_string_value(v), "-") == 0)
        json_object_del(c, key);
    else json_object_set(c, key, v);
    return read_value(c, out);
}

static struct llm_config ok_with(const char *variant, const char *more)
{
    struct llm_config c;
    assert_ok(read_with(variant, more, &c), &err);
    return c;
}

TEST(code_lm)
{
    struct llm_config c;
    assert_ok(llm_config_read("datasets/models/code-lm", &c, &err), &err);
    ck_assert_str_eq(c.architecture, "LlamaForCausalLM");
    ck_assert(c.layers == 6 && c.heads == 8 && c.kv_heads == 2 && c.head_dim == 64);
    ck_assert(c.hidden == 384 && c.ffn == 896 && c.vocab == 4096 && c.max_positions == 32768);
    ck_assert(c.tied && !c.qkv_bias && !c.o_bias && !c.mlp_bias && !c.qk_norm);
    ck_assert(c.window == 0 && c.bos == 0 && c.dtype == DT_BF16 && c.eps == 1e-5);
    ck_assert(c.rope.type == ROPE_DEFAULT && c.rope.theta == 500000);
}

/* The two spellings of each pair give the same. */
TEST_N(both_spellings_mean_the_same, 3)
{
    static const char *const pairs[][2] = {
        {"linear", "linear-new"}, {"llama3", "llama3-new"}, {"yarn", "yarn-new"}};
    struct llm_config a = ok_with(pairs[_i][0], "{}"), b = ok_with(pairs[_i][1], "{}");
    double fa[8], fb[8];
    ck_assert(a.rope.type == b.rope.type && a.dtype == DT_BF16 && b.dtype == DT_BF16);
    ck_assert(rope_frequencies(&a.rope, 16, fa) == rope_frequencies(&b.rope, 16, fb));
    ck_assert(memcmp(fa, fb, sizeof fa) == 0);
}

TEST(families_differ_in_biases_and_norms)
{
    struct llm_config llama = ok_with("llama", "{}"), bias = ok_with("llama-bias", "{}");
    struct llm_config qwen2 = ok_with("qwen2", "{\"attention_bias\": true, \"mlp_bias\": true}");
    struct llm_config qwen3 = ok_with("qwen3", "{\"mlp_bias\": true}"),
                      q3b = ok_with("qwen3-bias", "{}");
    struct llm_config mistral =
        ok_with("mistral", "{\"attention_bias\": true, \"mlp_bias\": true}");
    ck_assert(!llama.qkv_bias && !llama.o_bias && !llama.mlp_bias && !llama.qk_norm);
    ck_assert(bias.qkv_bias && bias.o_bias && bias.mlp_bias);
    ck_assert(qwen2.qkv_bias && !qwen2.o_bias && !qwen2.mlp_bias && !qwen2.qk_norm);
    ck_assert(!qwen3.qkv_bias && !qwen3.mlp_bias && qwen3.qk_norm);
    ck_assert(q3b.qkv_bias && q3b.o_bias);
    ck_assert(!mistral.qkv_bias && !mistral.o_bias && !mistral.mlp_bias);
}

TEST(absent_keys_have_the_family_defaults)
{
    struct llm_config c =
        ok_with("llama", "{\"head_dim\":\"-\",\"num_key_value_heads\":\"-\",\"rope_theta\":"
                         "\"-\",\"tie_word_embeddings\":\"-\",\"rms_norm_eps\":\"-\","
                         "\"torch_dtype\":\"-\",\"max_position_embeddings\":\"-\"}");
    ck_assert(c.head_dim == 8 && c.kv_heads == 4 && c.rope.theta == 10000 && !c.tied);
    ck_assert(c.eps == 1e-6 && c.dtype == DT_NONE && c.max_positions == 2048 && c.bos == -1);
    ck_assert_int_eq(ok_with("qwen3", "{\"head_dim\":null}").head_dim, 128);
    ck_assert_int_eq(ok_with("mistral", "{\"sliding_window\":\"-\"}").window, 4096);
    ck_assert_int_eq(ok_with("llama", "{\"dtype\":\"float32\"}").dtype, DT_F32);
}

/* The values of the configuration classes of transformers 5.24 (InternLM2: of its repository). */
TEST(families_have_defaults_of_their_own)
{
    static const struct {
        const char *architecture;
        int kv_heads, head_dim;
        int64_t positions;
        double eps, theta;
        bool bias;
        int64_t window;
    } want[] = {
        {"LlamaForCausalLM", 32, 128, 2048, 1e-6, 1e4, false, 0},
        {"MistralForCausalLM", 8, 128, 131072, 1e-6, 1e4, false, 4096},
        {"MixtralForCausalLM", 8, 128, 131072, 1e-5, 1e6, false, 0},
        {"Qwen2ForCausalLM", 32, 128, 32768, 1e-6, 1e4, true, 0},
        {"Qwen3ForCausalLM", 32, 128, 32768, 1e-6, 1e4, false, 0},
        {"Qwen3MoeForCausalLM", 4, 128, 32768, 1e-6, 1e4, false, 0},
        {"Phi3ForCausalLM", 32, 128, 4096, 1e-5, 1e4, false, 0},
        {"GlmForCausalLM", 2, 128, 131072, 1.5625e-7, 1e4, true, 0},
        {"Glm4ForCausalLM", 2, 128, 131072, 1.5625e-7, 1e4, true, 0},
        {"InternLM2ForCausalLM", 32, 128, 2048, 1e-6, 1e4, true, 0},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        OWN(json_decrefp)
        json_t *o = json_pack("{s:[s], s:i, s:i, s:i, s:i, s:i}", "architectures",
                              want[i].architecture, "num_hidden_layers", 2, "hidden_size", 4096,
                              "num_attention_heads", 32, "intermediate_size", 64, "vocab_size", 8);
        struct llm_config c;
        assert_ok(read_value(o, &c), &err);
        ck_assert_msg(c.kv_heads == want[i].kv_heads && c.head_dim == want[i].head_dim &&
                          c.max_positions == want[i].positions && c.eps == want[i].eps &&
                          c.rope.theta == want[i].theta && c.qkv_bias == want[i].bias &&
                          c.window == want[i].window,
                      "%s: %d %d %lld %g %g %d %lld", want[i].architecture, c.kv_heads, c.head_dim,
                      (long long)c.max_positions, c.eps, c.rope.theta, c.qkv_bias,
                      (long long)c.window);
    }
}

#define LONG                                                                                       \
    "\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1,1,1,1,1,1,1],"                  \
    "\"long_factor\":[1,1,1,1,1,1,1,1],\"original_max_position_embeddings\":32}"
#define LLAMA3                                                                                     \
    "\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"                    \
    "\"high_freq_factor\":4"

/* In config.json itself, else among the rotary parameters, else the class's default. */
TEST(the_trained_length_is_where_transformers_looks_for_it)
{
    static const struct {
        const char *more;
        double length;
    } want[] = {
        {"{" LLAMA3 "},\"max_position_embeddings\":64}", 64},
        {"{" LLAMA3 ",\"original_max_position_embeddings\":32}}", 32},
        {"{" LLAMA3 ",\"original_max_position_embeddings\":32},"
         "\"original_max_position_embeddings\":16}",
         16},
        {"{\"architectures\":[\"Phi3ForCausalLM\"]," LONG "}", 4096},
        {"{\"architectures\":[\"Phi3ForCausalLM\"]," LONG
         ",\"original_max_position_embeddings\":16}",
         16},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        ck_assert_msg(ok_with("llama", want[i].more).rope.original_max == want[i].length, "%s",
                      want[i].more);
}

TEST(contradictions_follow_transformers)
{
    ck_assert(ok_with("llama", "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},"
                               "\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":4}}")
                  .rope.factor == 2);
    ck_assert(ok_with("llama", "{\"rope_scaling\":{},\"rope_parameters\":{\"rope_theta\":7}}")
                  .rope.theta == 7);
    ck_assert(
        ok_with("llama", "{\"rope_theta\":5,\"rope_parameters\":{\"rope_theta\":7}}").rope.theta ==
        7);
    ck_assert_int_eq(ok_with("llama", "{\"dtype\":\"float32\",\"torch_dtype\":\"float16\"}").dtype,
                     DT_F32);
    ck_assert_int_eq(ok_with("llama", "{\"torch_dtype\":\"auto\"}").dtype, DT_NONE);
}

TEST(windows_act_where_the_family_uses_them)
{
    static const struct {
        const char *variant, *more;
        int window;
    } cases[] = {
        {"llama", "{\"sliding_window\":8}", 0},
        {"mistral", "{\"sliding_window\":8}", 8},
        {"mistral", "{\"sliding_window\":8,\"use_sliding_window\":false}", 8},
        {"mistral", "{\"sliding_window\":null}", 0},
        {"qwen2", "{\"sliding_window\":8}", 0},
        {"qwen2", "{\"sliding_window\":8,\"use_sliding_window\":true,\"max_window_layers\":1}", 8},
        {"qwen2", "{\"sliding_window\":8,\"use_sliding_window\":true,\"max_window_layers\":2}", 0},
        {"qwen2", "{\"sliding_window\":8,\"use_sliding_window\":true,\"max_window_layers\":\"-\"}",
         0},
        {"qwen3", "{\"sliding_window\":null,\"use_sliding_window\":true,\"max_window_layers\":0}",
         0},
        {"qwen3", "{\"use_sliding_window\":true,\"max_window_layers\":0}", 4096},
        {"qwen3",
         "{\"sliding_window\":8,\"use_sliding_window\":true,\"max_window_layers\":0,"
         "\"layer_types\":[\"full_attention\",\"full_attention\"]}",
         0},
        {"qwen3",
         "{\"sliding_window\":8,\"use_sliding_window\":true,\"max_window_layers\":9,"
         "\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
         8},
        {"mistral",
         "{\"sliding_window\":8,\"layer_types\":[\"full_attention\",\"full_attention\"]}", 8},
        {"qwen3",
         "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"sliding_window\":8,"
         "\"use_sliding_window\":true,\"max_window_layers\":9}",
         8},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        ck_assert_msg(ok_with(cases[i].variant, cases[i].more).window == cases[i].window, "%s %s",
                      cases[i].variant, cases[i].more);
}

/* yarn without a factor: the ratio of the lengths. */
TEST(yarn_takes_its_factor_from_the_lengths)
{
    struct llm_config c = ok_with("yarn", "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":null,"
                                          "\"original_max_position_embeddings\":64}}");
    ck_assert(c.rope.factor == 4);
    ck_assert_double_eq_tol(rope_frequencies(&c.rope, 16, (double[8]){0}), 0.1 * log(4) + 1, 1e-15);
}

static const struct {
    const char *more, *message;
    /* clang-format off */
} refused[] = {
    {"{\"architectures\":\"-\"}", "architectures must name the model class"},
    {"{\"architectures\":[]}", "architectures must name the model class"},
    {"{\"architectures\":\"LlamaForCausalLM\"}", "architectures must name the model class"},
    {"{\"architectures\":[\"GemmaForCausalLM\"]}", "architecture GemmaForCausalLM is not supported; "
                                                   "supported: LlamaForCausalLM, MistralForCausalLM, "
                                                   "MixtralForCausalLM, Qwen2ForCausalLM"},
    {"{\"architectures\":[\"GemmaForCausalLM\"]}", "python -m lacuna_trace --hf DIR"},
    {"{\"hidden_act\":\"gelu\"}", "hidden_act gelu is not supported"},
    {"{\"hidden_act\":3}", "\"hidden_act\": a string was expected"},
    {"{\"hidden_size\":\"-\"}", "\"hidden_size\" is missing"},
    {"{\"hidden_size\":32.5}", "\"hidden_size\": an integer was expected"},
    {"{\"hidden_size\":\"big\"}", "\"hidden_size\": an integer was expected"},
    {"{\"hidden_size\":9000000000000000000}", "hidden_size is 9000000000000000000, expected 1.."},
    {"{\"num_attention_heads\":0}", "num_attention_heads is 0, expected 1.."},
    {"{\"num_attention_heads\":-4}", "num_attention_heads is -4"},
    {"{\"num_key_value_heads\":0}", "num_key_value_heads is 0"},
    {"{\"num_key_value_heads\":3}", "do not fit together"},
    {"{\"num_key_value_heads\":8}", "num_key_value_heads is 8"},
    {"{\"num_hidden_layers\":0}", "num_hidden_layers is 0"},
    {"{\"num_hidden_layers\":true}", "\"num_hidden_layers\": an integer was expected"},
    {"{\"vocab_size\":-1}", "vocab_size is -1"},
    {"{\"intermediate_size\":1e3}", "\"intermediate_size\": an integer was expected"},
    {"{\"head_dim\":15}", "do not fit together"},
    {"{\"head_dim\":0}", "head_dim is 0"},
    {"{\"head_dim\":\"-\",\"num_attention_heads\":5,\"num_key_value_heads\":5}", "do not fit together"},
    {"{\"tie_word_embeddings\":1}", "\"tie_word_embeddings\": a boolean was expected"},
    {"{\"torch_dtype\":\"int8\"}", "dtype int8 is not supported"},
    {"{\"quantization_config\":{\"quant_method\":\"gptq\"}}", "quantization_config (gptq)"},
    {"{\"partial_rotary_factor\":0.5}", "partial_rotary_factor 0.5 is not supported"},
    {"{\"rope_scaling\":3}", "rope_scaling must be an object"},
    {"{\"rope_scaling\":{\"type\":\"strange\",\"factor\":2}}", "type strange is not supported; supported: "
                                                           "default, linear, llama3, yarn, dynamic"},
    {"{\"rope_scaling\":{\"type\":\"dynamic\"}}", "\"factor\" is missing"},
    {"{\"rope_scaling\":{\"rope_type\":\"longrope\"}}", "short_factor must be a list of 8 numbers"},
    {"{\"rope_scaling\":{\"rope_type\":\"su\",\"short_factor\":[1,1,1,1,1,1,1,0]}}", "short_factor[7] must be"},
    {"{\"architectures\":[\"GlmForCausalLM\"],\"partial_rotary_factor\":0.1}", "no even number of channels"},
    {"{\"architectures\":[\"MixtralForCausalLM\"],\"num_experts_per_tok\":9}", "9 of 8 experts"},
    {"{\"rope_scaling\":{\"type\":\"linear\"}}", "\"factor\" is missing"},
    {"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":-1}}", "factor must be a positive number"},
    {"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":\"2\"}}", "\"factor\": a number was expected"},
    {"{\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8}}", "\"low_freq_factor\" is missing"},
    {"{\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,\"high_freq_factor\":4,"
     "\"original_max_position_embeddings\":32}}", "high_freq_factor must be above"},
    {"{\"architectures\":[\"Qwen2ForCausalLM\"],\"use_sliding_window\":true,\"layer_types\":[\"full_attention\"]}",
     "layer_types must be a list of 2 names"},
    {"{\"architectures\":[\"Qwen2ForCausalLM\"],\"use_sliding_window\":true,"
     "\"layer_types\":[\"full_attention\",\"chunked_attention\"]}", "layer_types[1] must be"},
    {"{\"rms_norm_eps\":-1e-6}", "rms_norm_eps is negative"},
    {"{\"vocab_size\":100,\"bos_token_id\":100}", "bos_token_id is 100, the vocabulary has 100 tokens"},
    {"{\"bos_token_id\":-2}", "bos_token_id is -2"},
    {"{\"rope_theta\":1e-320,\"head_dim\":1024}", "frequencies that are not finite"},
    {"{\"rope_theta\":0}", "rope_theta must be a positive number"},
    {"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":1e-320}}", "frequencies that are not finite"},
    {"{\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}}", "full_attention layers"},
};
/* clang-format on */

TEST_EACH(what_cannot_be_done_exactly_is_refused, refused)
{
    struct llm_config c;
    assert_fails(read_with("llama", refused[_i].more, &c), &err, ERR_INPUT, refused[_i].message);
}

TEST(limits_are_accepted)
{
    struct llm_config c =
        ok_with("llama", "{\"rms_norm_eps\":0,\"vocab_size\":100,\"bos_token_id\":99}");
    ck_assert_int_eq(c.bos, 99);
    ck_assert_int_eq(ok_with("llama", "{\"bos_token_id\":null}").bos, -1);
    ck_assert_int_eq(ok_with("llama", "{\"head_dim\":1024}").head_dim, 1024);
}

TEST(messages_name_the_file)
{
    struct llm_config c;
    char path[4300];
    snprintf(path, sizeof path, "%s/config.json: num_attention_heads is 0", test_tmpdir());
    assert_fails(read_with("llama", "{\"num_attention_heads\":0}", &c), &err, ERR_INPUT, path);
    OWN(json_decrefp) json_t *list = json_array();
    assert_fails(read_value(list, &c), &err, ERR_INPUT, "config.json: not a JSON object");
}
