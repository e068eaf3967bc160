/*
 * test_config_limits.c - configurations that parse, but whose numbers no model can be run with.
 */
#include "tests/harness/suite.h"
#include "capture/llm_config.h"
#include "capture/wan_config.h"
#include "core/buf.h"
#include "core/fileio.h"

#include <stdio.h>
#include <string.h>

static struct err err;

static void write_config(const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/config.json", test_tmpdir());
    assert_ok(file_write_atomic(path, text, strlen(text), &err), &err);
}

/* A small Llama with `more` keys. */
static int read_llm(const char *more, struct llm_config *c)
{
    char text[1024];
    snprintf(text, sizeof text,
             "{\"architectures\":[\"LlamaForCausalLM\"],\"num_hidden_layers\":2,"
             "\"num_attention_heads\":4,\"hidden_size\":64,\"intermediate_size\":96,"
             "\"vocab_size\":100,\"num_key_value_heads\":2%s}",
             more);
    write_config(text);
    return llm_config_read(test_tmpdir(), c, &err);
}

static const struct {
    const char *more, *message;
} bad_llm[] = {
    {",\"rms_norm_eps\":-1e-6", "rms_norm_eps is negative"},
    {",\"bos_token_id\":100", "bos_token_id is 100, the vocabulary has 100 tokens"},
    {",\"bos_token_id\":-2", "bos_token_id is -2"},
    {",\"rope_theta\":1e-320,\"head_dim\":1024", "frequencies that are not finite"},
    {",\"rope_theta\":0", "rope_theta must be a positive number"},
    {",\"rope_scaling\":{\"type\":\"linear\",\"factor\":1e-320}",
     "frequencies that are not finite"},
};

TEST_EACH(language_models_that_cannot_run_are_refused, bad_llm)
{
    struct llm_config c;
    assert_fails(read_llm(bad_llm[_i].more, &c), &err, ERR_INPUT, bad_llm[_i].message);
}

TEST(limits_of_language_models_are_accepted)
{
    struct llm_config c;
    assert_ok(read_llm(",\"rms_norm_eps\":0,\"bos_token_id\":99", &c), &err);
    ck_assert_int_eq(c.bos, 99);
    assert_ok(read_llm(",\"bos_token_id\":null", &c), &err);
    ck_assert_int_eq(c.bos, -1);
    assert_ok(read_llm(",\"head_dim\":1024", &c), &err);
    ck_assert_int_eq(c.head_dim, 1024);
}

TEST(video_models_that_cannot_run_are_refused)
{
    static const char *const more[] = {"\"eps\":-1", "\"rope_max_seq_len\":0",
                                       "\"rope_max_seq_len\":-5", "\"freq_dim\":3"};
    static const char *const names[] = {"eps -1", "rope_max_seq_len 0", "rope_max_seq_len -5",
                                        "freq_dim must be even"};
    for (int i = 0; i < 4; i++) {
        char text[1024];
        struct wan_config c;
        snprintf(text, sizeof text,
                 "{\"_class_name\":\"WanTransformer3DModel\",\"num_layers\":2,"
                 "\"num_attention_heads\":2,\"attention_head_dim\":12,\"ffn_dim\":16,%s"
                 "\"text_dim\":8,\"in_channels\":3,\"out_channels\":3,\"patch_size\":[1,2,2],"
                 "\"qk_norm\":\"rms_norm_across_heads\",%s}",
                 i == 3 ? "" : "\"freq_dim\":8,", more[i]);
        write_config(text);
        assert_fails(wan_config_read(test_tmpdir(), &c, &err), &err, ERR_INPUT, names[i]);
    }
}
