/*
 * fuzz_config.c - config.json of both model families; what is accepted can be run.
 */
#include "tests/fuzz/fuzz.h"
#include "core/mem.h"
#include "capture/llm_config.h"
#include "capture/wan_config.h"

#include <math.h>

static const char *const scalings[] = {
    "\"rope_scaling\":{\"type\":\"linear\",\"factor\":4.0}",
    "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,"
    "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192}",
    "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":32768,"
    "\"beta_fast\":32,\"beta_slow\":1,\"mscale\":1.0,\"mscale_all_dim\":0.8,\"truncate\":false}",
    "\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":1e6,\"factor\":2.5,"
    "\"attention_factor\":1.2}",
    "\"sliding_window\":4096,\"use_sliding_window\":true,\"max_window_layers\":3",
    "\"sliding_window\":512,\"layer_types\":[\"full_attention\",\"sliding_attention\"]",
};

static int seeds(struct fuzz_corpus *c, struct err *err)
{
    static const char *const families[] = {"LlamaForCausalLM", "MistralForCausalLM",
                                           "Qwen2ForCausalLM", "Qwen3ForCausalLM"};
    PASS_ON(fuzz_add_file(c, "datasets/models/code-lm/config.json", err));
    PASS_ON(fuzz_add_file(c, "datasets/models/video-dit/config.json", err));
    for (int i = 0; i < 6; i++) {
        OWN(buf_free) struct buf b = {0};
        buf_printf(&b,
                   "{\"architectures\":[\"%s\"],\"num_hidden_layers\":6,\"num_attention_heads\":8,"
                   "\"hidden_size\":384,\"intermediate_size\":896,\"vocab_size\":4096,"
                   "\"head_dim\":64,\"num_key_value_heads\":2,\"rms_norm_eps\":1e-5,"
                   "\"max_position_embeddings\":32768,\"dtype\":\"bfloat16\",%s}",
                   families[i % 4], scalings[i]);
        fuzz_add(c, b.data, b.len);
    }
    return 0;
}

static void check_llm(const struct llm_config *c)
{
    double freq[512];
    if (c->layers < 1 || c->heads < 1 || c->kv_heads < 1 || c->heads % c->kv_heads ||
        c->head_dim < 2 || c->head_dim > 1024 || c->hidden < 1 || c->ffn < 1 || c->vocab < 1 ||
        c->max_positions < 1 || c->window < 0) {
        fuzz_wild("sizes");
        return;
    }
    if (!(c->eps >= 0 && isfinite(c->eps)))
        fuzz_wild("eps %g", c->eps);
    if (c->bos < -1 || c->bos >= c->vocab)
        fuzz_wild("bos %lld of %lld tokens", (long long)c->bos, (long long)c->vocab);
    double factor = rope_frequencies(&c->rope, c->head_dim, freq);
    if (!isfinite(factor))
        fuzz_wild("rotary factor %g", factor);
    for (int i = 0; i < c->head_dim / 2; i++)
        if (!(freq[i] >= 0 && isfinite(freq[i]))) {
            fuzz_wild("rotary frequency %d is %g", i, freq[i]);
            return;
        }
}

static void check_wan(const struct wan_config *c)
{
    if (c->layers < 1 || c->heads < 1 || c->head_dim < 1 || c->dim < 1 || c->ffn_dim < 1 ||
        c->freq_dim < 1 || c->text_dim < 1 || c->in_channels < 1 || c->out_channels < 1 ||
        c->rope_max < 1 || c->patch[0] < 1 || c->patch[1] < 1 || c->patch[2] < 1)
        fuzz_wild("sizes");
    if (c->dim != (int64_t)c->heads * c->head_dim)
        fuzz_wild("width %lld", (long long)c->dim);
    if (!(c->eps >= 0 && isfinite(c->eps)))
        fuzz_wild("eps %g", c->eps);
}

static int run(const void *data, size_t len, struct err *err)
{
    struct wan_config wan;
    struct llm_config llm;
    fuzz_file("config.json", data, len);
    if (wan_config_is(fuzz_dir())) {
        int rc = wan_config_read(fuzz_dir(), &wan, err);
        if (!rc)
            check_wan(&wan);
        return rc;
    }
    int rc = llm_config_read(fuzz_dir(), &llm, err);
    if (!rc)
        check_llm(&llm);
    return rc;
}

const struct fuzz_target fuzz_config = {"config", seeds, NULL, true, run};
