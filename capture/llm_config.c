/*
 * llm_config.c - config.json of Llama-family models: keys, their defaults in each family, refusals.
 */
#include "capture/llm_config.h"

#include "core/checkpoint.h"
#include "capture/wan_config.h"
#include "core/json.h"
#include "core/log.h"
#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_CONFIG (1 << 20)
#define HEAD_DIM_MAX 1024

#define DEFAULT_WINDOW 4096

/* What differs between the families, and what config.json means when it does not say it: the
 * defaults of the configuration classes of transformers 5.24; 0 in this table: those of Llama. */
static const struct family {
    const char *architecture;
    bool qkv_bias;     /* always on q, k, v and never on o */
    bool bias_keys;    /* attention_bias (q, k, v, o) is read */
    bool qkv_bias_key; /* attention_bias (q, k, v) is read, default yes */
    bool mlp_bias;     /* mlp_bias is read */
    bool qk_norm;
    int head_dim; /* default; 0: hidden_size / heads */
    int kv_heads; /* where the key is absent; 0: heads. An explicit null is heads */
    int64_t max_positions, original_max; /* 0: 2048, the same as max_positions */
    double eps, theta;                   /* 0: 1e-6, 10000 */
    /* in all layers, by default or only where it is given; or by layer_types and use_sliding_window
     */
    enum { NO_WINDOW, WINDOW_EVERYWHERE, WINDOW_IF_GIVEN, WINDOW_BY_LAYER, WINDOW_IF_USED } window;
    enum llm_naming naming;
    enum llm_packing packing;
    bool pack_gate_up, post_norms, interleaved;
    double partial; /* share of a head that is rotated, where config.json does not say it; 0: all,
                     * and no other is known */
    enum { NO_EXPERTS, MIXTRAL_EXPERTS, QWEN_EXPERTS } experts;
} families[] = {
    {.architecture = "LlamaForCausalLM", .bias_keys = true, .mlp_bias = true},
    {.architecture = "MistralForCausalLM",
     .kv_heads = 8,
     .max_positions = 131072,
     .window = WINDOW_EVERYWHERE},
    {.architecture = "MixtralForCausalLM",
     .kv_heads = 8,
     .max_positions = 131072,
     .eps = 1e-5,
     .theta = 1e6,
     .window = WINDOW_IF_GIVEN,
     .naming = NAMES_MIXTRAL,
     .experts = MIXTRAL_EXPERTS},
    {.architecture = "Qwen2ForCausalLM",
     .qkv_bias = true,
     .kv_heads = 32,
     .max_positions = 32768,
     .window = WINDOW_BY_LAYER},
    {.architecture = "Qwen3ForCausalLM",
     .bias_keys = true,
     .qk_norm = true,
     .head_dim = 128,
     .kv_heads = 32,
     .max_positions = 32768,
     .window = WINDOW_BY_LAYER},
    {.architecture = "Qwen3MoeForCausalLM",
     .bias_keys = true,
     .qk_norm = true,
     .kv_heads = 4,
     .max_positions = 32768,
     .window = WINDOW_IF_USED,
     .experts = QWEN_EXPERTS},
    {.architecture = "Phi3ForCausalLM",
     .max_positions = 4096,
     .original_max = 4096,
     .eps = 1e-5,
     .window = WINDOW_IF_GIVEN,
     .packing = PACK_QKV,
     .pack_gate_up = true,
     .partial = 1},
    {.architecture = "GlmForCausalLM",
     .head_dim = 128,
     .kv_heads = 2,
     .max_positions = 131072,
     .eps = 1.5625e-7,
     .qkv_bias_key = true,
     .pack_gate_up = true,
     .interleaved = true,
     .partial = 0.5},
    {.architecture = "Glm4ForCausalLM",
     .head_dim = 128,
     .kv_heads = 2,
     .max_positions = 131072,
     .eps = 1.5625e-7,
     .qkv_bias_key = true,
     .pack_gate_up = true,
     .post_norms = true,
     .interleaved = true,
     .partial = 0.5},
    {.architecture = "InternLM2ForCausalLM", .naming = NAMES_INTERNLM2, .packing = PACK_GROUPS},
};

/* "LlamaForCausalLM, ..." */
static const char *supported(char text[512])
{
    size_t at = 0;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        at +=
            (size_t)snprintf(text + at, 512 - at, "%s%s", i ? ", " : "", families[i].architecture);
    return text;
}

static int find_family(const json_t *o, const char *path, const struct family **out,
                       struct err *err)
{
    const json_t *list = json_object_get(o, "architectures");
    const char *name = json_string_value(json_array_get(list, 0));
    char all[512];
    if (!name)
        return err_set(err, ERR_INPUT,
                       "%s: architectures must name the model class; " FOREIGN_ADVICE, path);
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strcmp(families[i].architecture, name) == 0) {
            *out = families + i;
            return 0;
        }
    return err_set(err, ERR_INPUT,
                   "%s: architecture %.100s is not supported; supported: "
                   "%s, WanTransformer3DModel; " FOREIGN_ADVICE,
                   path, name, supported(all));
}

/* ---- rotary embedding ----------------------------------------------------------------------- */

static int positive(const json_t *o, const char *key, const char *path, double *out, bool required,
                    struct err *err)
{
    PASS_ON(required ? jget_num(o, key, path, out, err) : jget_num_opt(o, key, path, out, err));
    if (!isnan(*out) && !(*out > 0 && isfinite(*out)))
        return err_set(err, ERR_INPUT, "%s: rotary %s must be a positive number", path, key);
    return 0;
}

static int rope_llama3(const json_t *s, const char *path, struct rope_config *r, struct err *err)
{
    r->type = ROPE_LLAMA3;
    PASS_ON(positive(s, "factor", path, &r->factor, true, err));
    PASS_ON(positive(s, "low_freq_factor", path, &r->low_freq_factor, true, err));
    PASS_ON(positive(s, "high_freq_factor", path, &r->high_freq_factor, true, err));
    if (r->high_freq_factor <= r->low_freq_factor)
        return err_set(err, ERR_INPUT, "%s: rotary high_freq_factor must be above low_freq_factor",
                       path);
    return 0;
}

static int rope_yarn(const json_t *s, const char *path, double max_positions, struct rope_config *r,
                     struct err *err)
{
    r->type = ROPE_YARN;
    r->factor = NAN;
    PASS_ON(positive(s, "factor", path, &r->factor, false, err));
    if (isnan(r->factor)) /* not given: the ratio of the lengths */
        r->factor = max_positions / r->original_max;
    PASS_ON(positive(s, "beta_fast", path, &r->beta_fast, false, err));
    PASS_ON(positive(s, "beta_slow", path, &r->beta_slow, false, err));
    PASS_ON(positive(s, "attention_factor", path, &r->attention_factor, false, err));
    PASS_ON(jget_num_opt(s, "mscale", path, &r->mscale, err));
    PASS_ON(jget_num_opt(s, "mscale_all_dim", path, &r->mscale_all, err));
    return jget_bool_opt(s, "truncate", path, &r->truncate, err);
}

/* Parameters that are fine one by one can still overflow together. */
static int check_frequencies(const struct llm_config *c, const char *path, struct err *err)
{
    double freq[HEAD_DIM_MAX / 2];
    bool ok = isfinite(rope_frequencies(&c->rope, c->rotary.rotated, freq));
    for (int i = 0; i < c->rotary.rotated / 2; i++)
        ok = ok && isfinite(freq[i]);
    return ok ? 0
              : err_set(err, ERR_INPUT,
                        "%s: the rotary parameters (theta %g, factor %g) give "
                        "frequencies that are not finite",
                        path, c->rope.theta, c->rope.factor);
}

static int read_factors(const json_t *s, const char *key, const char *path, int n, double *out,
                        struct err *err)
{
    const json_t *list = json_object_get(s, key);
    if (!json_is_array(list) || json_array_size(list) != (size_t)n)
        return err_set(err, ERR_INPUT, "%s: rotary %s must be a list of %d numbers", path, key, n);
    for (int i = 0; i < n; i++) {
        const json_t *x = json_array_get(list, (size_t)i);
        out[i] = json_is_number(x) ? json_number_value(x) : NAN;
        if (!(out[i] > 0 && isfinite(out[i])))
            return err_set(err, ERR_INPUT, "%s: rotary %s[%d] must be a positive number", path, key,
                           i);
    }
    return 0;
}

/* LongRoPE of Phi-3. */
static int rope_long(const json_t *s, const char *path, struct llm_config *c, struct err *err)
{
    struct rope_config *r = &c->rope;
    r->type = ROPE_LONG;
    r->factor = NAN;
    PASS_ON(positive(s, "factor", path, &r->factor, false, err));
    if (isnan(r->factor))
        r->factor = (double)c->max_positions / r->original_max;
    PASS_ON(positive(s, "attention_factor", path, &r->attention_factor, false, err));
    PASS_ON(read_factors(s, "short_factor", path, c->rotary.rotated / 2, r->short_factor, err));
    return read_factors(s, "long_factor", path, c->rotary.rotated / 2, r->long_factor, err);
}

/* The scaling by type; "type" is the older name of "rope_type". */
static int read_scaling(const json_t *o, const json_t *s, const struct family *f, const char *path,
                        struct llm_config *c, struct err *err)
{
    const char *type = NULL;
    PASS_ON(jget_str_opt(s, "type", path, &type, err));
    PASS_ON(jget_str_opt(s, "rope_type", path, &type, err));
    type = type ? type : "default";
    if (f->packing == PACK_QKV && strcmp(type, "yarn") == 0)
        type = "longrope"; /* an older name that Phi-3 had for it */
    /* The trained length of llama3, yarn and longrope; in config.json itself it stands above. */
    if (strcmp(type, "linear") != 0 && strcmp(type, "dynamic") != 0) {
        double *length = &c->rope.original_max;
        if (f->original_max)
            *length = (double)f->original_max;
        else
            PASS_ON(positive(s, "original_max_position_embeddings", path, length, false, err));
        PASS_ON(positive(o, "original_max_position_embeddings", path, length, false, err));
    }
    if (strcmp(type, "linear") == 0) {
        c->rope.type = ROPE_LINEAR;
        return positive(s, "factor", path, &c->rope.factor, true, err);
    } else if (strcmp(type, "llama3") == 0) {
        return rope_llama3(s, path, &c->rope, err);
    } else if (strcmp(type, "yarn") == 0) {
        return rope_yarn(s, path, (double)c->max_positions, &c->rope, err);
    } else if (strcmp(type, "dynamic") == 0) {
        c->rope.type = ROPE_DYNAMIC;
        return positive(s, "factor", path, &c->rope.factor, true, err);
    } else if (strcmp(type, "longrope") == 0 || strcmp(type, "su") == 0) {
        return rope_long(s, path, c, err);
    } else if (strcmp(type, "default") != 0) {
        return err_set(err, ERR_INPUT,
                       "%s: rotary scaling of type %.50s is not supported; supported: "
                       "default, linear, llama3, yarn, dynamic, longrope",
                       path, type);
    }
    return 0;
}

/* The object with the rotary parameters in either spelling, NULL if there is none. */
static int find_scaling(const json_t *o, const char *path, const json_t **out, struct err *err)
{
    const json_t *v[] = {json_object_get(o, "rope_parameters"), json_object_get(o, "rope_scaling")};
    const char *key;
    json_t *value;
    for (int i = 0; i < 2; i++)
        v[i] = v[i] && json_is_null(v[i]) ? NULL : v[i];
    if (v[0] && v[1] && json_object_size(v[1]) && !json_equal(v[0], v[1]))
        log_warn("%s: rope_parameters and rope_scaling differ; rope_scaling is taken, as in "
                 "transformers 5",
                 path);
    bool older = v[1] && (!v[0] || !json_is_object(v[1]) || json_object_size(v[1]));
    *out = older ? v[1] : v[0];
    if (*out && !json_is_object(*out))
        return err_set(err, ERR_INPUT, "%s: %s must be an object", path,
                       older ? "rope_scaling" : "rope_parameters");
    json_object_foreach(
        (json_t *)(uintptr_t)*out, key,
        value) if (json_is_object(value)) return err_set(err, ERR_INPUT,
                                                         "%s: rotary parameters of their own for "
                                                         "%.60s layers are "
                                                         "not supported",
                                                         path, key);
    return 0;
}

/* Both spellings: `rope_theta` with `rope_scaling`, and `rope_parameters` that holds everything. */
static int read_rope(const json_t *o, const struct family *f, const char *path,
                     struct llm_config *c, struct err *err)
{
    const json_t *scaling = NULL;
    double partial = f->partial > 0 ? f->partial : 1;
    c->rope = (struct rope_config){.theta = f->theta > 0 ? f->theta : 10000,
                                   .factor = 1,
                                   .beta_fast = 32,
                                   .beta_slow = 1,
                                   .original_max = (double)c->max_positions,
                                   .attention_factor = NAN,
                                   .mscale = NAN,
                                   .mscale_all = NAN,
                                   .truncate = true};
    PASS_ON(find_scaling(o, path, &scaling, err));
    PASS_ON(positive(o, "rope_theta", path, &c->rope.theta, false, err));
    PASS_ON(jget_num_opt(o, "partial_rotary_factor", path, &partial, err));
    if (scaling) {
        PASS_ON(positive(scaling, "rope_theta", path, &c->rope.theta, false, err));
        PASS_ON(jget_num_opt(scaling, "partial_rotary_factor", path, &partial, err));
    }
    if (partial != 1 && f->partial == 0)
        return err_set(err, ERR_INPUT, "%s: partial_rotary_factor %g is not supported (only 1)",
                       path, partial);
    c->rotary.interleaved = f->interleaved;
    c->rotary.rotated = partial > 0 && partial <= 1 ? (int)(c->head_dim * partial) : 0;
    if (c->rotary.rotated < 4 || c->rotary.rotated % 2)
        return err_set(
            err, ERR_INPUT,
            "%s: partial_rotary_factor %g of head_dim %d is no even number of channels from 4 on",
            path, partial, c->head_dim);
    if (scaling)
        PASS_ON(read_scaling(o, scaling, f, path, c, err));
    return check_frequencies(c, path, err);
}

/* ---- everything else ------------------------------------------------------------------------ */

/* Which layers slide: those from `first` on, unless layer_types decides. */
static int mark_sliding(const json_t *o, const char *path, int64_t first, struct llm_config *c,
                        struct err *err)
{
    const json_t *types = json_object_get(o, "layer_types");
    bool given = types && !json_is_null(types);
    if (given && json_array_size(types) != (size_t)c->layers)
        return err_set(err, ERR_INPUT, "%s: layer_types must be a list of %d names", path,
                       c->layers);
    for (int i = 0; i < c->layers; i++) {
        const char *t = json_string_value(json_array_get(types, (size_t)i));
        c->sliding[i] = given ? t && strcmp(t, "sliding_attention") == 0 : i >= first;
        if (given && !c->sliding[i] && (!t || strcmp(t, "full_attention") != 0))
            return err_set(err, ERR_INPUT,
                           "%s: layer_types[%d] must be full_attention or sliding_attention", path,
                           i);
    }
    return 0;
}

/* The window of the layers that attend within one only; an explicit null is none. */
static int read_window(const json_t *o, const struct family *f, const char *path,
                       struct llm_config *c, struct err *err)
{
    const json_t *given = json_object_get(o, "sliding_window");
    bool use = f->window == WINDOW_EVERYWHERE || (f->window == WINDOW_IF_GIVEN && given);
    int64_t window = DEFAULT_WINDOW, full_layers = 28;
    if (f->window == WINDOW_BY_LAYER || f->window == WINDOW_IF_USED)
        PASS_ON(jget_bool_opt(o, "use_sliding_window", path, &use, err));
    if (!use || (given && json_is_null(given)))
        return 0;
    PASS_ON(jget_size_opt(o, "sliding_window", path, INT64_C(1) << 40, &window, err));
    memset(c->sliding, true, (size_t)c->layers * sizeof *c->sliding);
    if (f->window == WINDOW_BY_LAYER) {
        PASS_ON(jget_int_opt(o, "max_window_layers", path, &full_layers, err));
        PASS_ON(mark_sliding(o, path, full_layers, c, err));
    }
    for (int i = 0; i < c->layers; i++)
        c->window = c->sliding[i] ? window : c->window;
    return 0;
}

/* Weights that are packed or scaled have other tensors than those that are read here. */
static int refuse_quantised(const json_t *o, const char *path, struct err *err)
{
    const json_t *q = json_object_get(o, "quantization_config");
    const char *method = json_string_value(json_object_get(q, "quant_method"));
    return !q || json_is_null(q)
               ? 0
               : err_set(err, ERR_INPUT,
                         "%s: quantization_config (%.60s): quantised checkpoints are "
                         "not supported, only float32, float16 and bfloat16 weights",
                         path, method ? method : "unnamed method");
}

static int read_flags(const json_t *o, const struct family *f, const char *path,
                      struct llm_config *c, struct err *err)
{
    const char *act = "silu", *dtype = NULL, *older = NULL;
    bool bias = f->naming == NAMES_INTERNLM2;
    if (f->bias_keys)
        PASS_ON(jget_bool_opt(o, "attention_bias", path, &bias, err));
    c->qkv_bias = f->qkv_bias_key;
    if (f->qkv_bias_key)
        PASS_ON(jget_bool_opt(o, "attention_bias", path, &c->qkv_bias, err));
    if (f->naming == NAMES_INTERNLM2)
        PASS_ON(jget_bool_opt(o, "bias", path, &bias, err));
    c->qkv_bias = f->qkv_bias || c->qkv_bias || bias;
    c->o_bias = bias;
    c->naming = f->naming;
    c->packing = f->packing;
    c->pack_gate_up = f->pack_gate_up;
    c->post_norms = f->post_norms;
    c->qk_norm = f->qk_norm;
    if (f->mlp_bias)
        PASS_ON(jget_bool_opt(o, "mlp_bias", path, &c->mlp_bias, err));
    PASS_ON(jget_bool_opt(o, "tie_word_embeddings", path, &c->tied, err));
    PASS_ON(jget_str_opt(o, "hidden_act", path, &act, err));
    if (strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        return err_set(err, ERR_INPUT, "%s: hidden_act %.50s is not supported (only silu)", path,
                       act);
    PASS_ON(jget_str_opt(o, "torch_dtype", path, &older, err));
    PASS_ON(jget_str_opt(o, "dtype", path, &dtype, err));
    if (dtype && older && strcmp(dtype, older) != 0)
        log_warn("%s: dtype is %.50s and torch_dtype %.50s; dtype is taken, as in transformers 5",
                 path, dtype, older);
    dtype = dtype ? dtype : older;
    if (dtype && strcmp(dtype, "auto") == 0)
        dtype = NULL; /* the weights say it */
    c->dtype = dtype ? dtype_from_name(dtype) : DT_NONE;
    if (dtype && c->dtype != DT_F32 && c->dtype != DT_BF16 && c->dtype != DT_F16)
        return err_set(err, ERR_INPUT,
                       "%s: dtype %.50s is not supported (float32, bfloat16, float16)", path,
                       dtype);
    return 0;
}

/* Experts: num_experts is the older name of num_local_experts. */
static int read_experts(const json_t *o, const struct family *f, const char *path,
                        struct llm_config *c, struct err *err)
{
    const json_t *dense = json_object_get(o, "mlp_only_layers");
    bool qwen = f->experts == QWEN_EXPERTS;
    int64_t n = qwen ? 128 : 8, used = qwen ? 8 : 2, step = 1;
    if (f->experts == NO_EXPERTS)
        return 0;
    c->expert_ffn = qwen ? 768 : c->ffn;
    c->experts_normalised = !qwen;
    PASS_ON(jget_size_opt(o, "num_experts", path, 65536, &n, err));
    PASS_ON(jget_size_opt(o, "num_local_experts", path, 65536, &n, err));
    PASS_ON(jget_size_opt(o, "num_experts_per_tok", path, 65536, &used, err));
    if (qwen) {
        PASS_ON(jget_size_opt(o, "moe_intermediate_size", path, 1 << 24, &c->expert_ffn, err));
        PASS_ON(jget_size_opt(o, "decoder_sparse_step", path, 1 << 20, &step, err));
        PASS_ON(jget_bool_opt(o, "norm_topk_prob", path, &c->experts_normalised, err));
    }
    if (used > n)
        return err_set(err, ERR_INPUT, "%s: num_experts_per_tok %lld of %lld experts", path,
                       (long long)used, (long long)n);
    c->experts = (int)n;
    c->experts_used = (int)used;
    for (int i = 0; i < c->layers; i++)
        c->dense[i] = (i + 1) % step != 0;
    for (size_t i = 0; i < json_array_size(dense); i++) {
        json_int_t layer = json_integer_value(json_array_get(dense, i));
        if (layer >= 0 && layer < c->layers)
            c->dense[layer] = true;
    }
    return 0;
}

int64_t llm_window(const struct llm_config *c, int layer)
{
    return c->sliding[layer] ? c->window : 0;
}

bool llm_has_experts(const struct llm_config *c, int layer)
{
    return c->experts > 0 && !c->dense[layer];
}

const char *llm_device_lacks(const struct llm_config *c, int64_t n)
{
    bool window = false;
    for (int i = 0; i < c->layers; i++)
        window |= llm_window(c, i) > 0 && llm_window(c, i) < n;
    return c->experts > 0                     ? "experts"
           : c->post_norms                    ? "norms behind attention"
           : c->rotary.interleaved            ? "interleaved rotary embedding"
           : c->rotary.rotated != c->head_dim ? "partial rotary embedding"
           : window                           ? "sliding windows"
                                              : "";
}

int llm_bos(const char *model, const struct llm_config *c, int32_t *id, struct err *err)
{
    *id = (int32_t)c->bos;
    return c->bos >= 0
               ? 0
               : err_set(err, ERR_USAGE, "%s: --bos yes, but %s", model,
                         checkpoint_is_gguf(model) ? "the file has no tokenizer.ggml.bos_token_id"
                                                   : "config.json has no bos_token_id");
}

static int read_shape(const json_t *o, const struct family *f, const char *path,
                      struct llm_config *c, struct err *err)
{
    int64_t layers, heads, kv, d;
    PASS_ON(jget_size(o, "num_hidden_layers", path, LLM_LAYERS_MAX, &layers, err));
    PASS_ON(jget_size(o, "num_attention_heads", path, 4096, &heads, err));
    PASS_ON(jget_size(o, "hidden_size", path, 1 << 20, &c->hidden, err));
    PASS_ON(jget_size(o, "intermediate_size", path, 1 << 24, &c->ffn, err));
    PASS_ON(jget_size(o, "vocab_size", path, 1 << 24, &c->vocab, err));
    const json_t *groups = json_object_get(o, "num_key_value_heads");
    kv = f->kv_heads && !groups ? f->kv_heads : heads;
    d = f->head_dim ? f->head_dim : c->hidden % heads ? 0 : c->hidden / heads;
    c->max_positions = f->max_positions ? f->max_positions : 2048;
    c->eps = f->eps > 0 ? f->eps : 1e-6;
    PASS_ON(jget_size_opt(o, "num_key_value_heads", path, heads, &kv, err));
    PASS_ON(jget_size_opt(o, "head_dim", path, HEAD_DIM_MAX, &d, err));
    PASS_ON(jget_size_opt(o, "max_position_embeddings", path, (int64_t)1 << 40, &c->max_positions,
                          err));
    PASS_ON(jget_num_opt(o, "rms_norm_eps", path, &c->eps, err));
    if (c->eps < 0)
        return err_set(err, ERR_INPUT, "%s: rms_norm_eps is negative (%g)", path, c->eps);
    if (heads % kv || d < 2 || d > HEAD_DIM_MAX || d % 2)
        return err_set(
            err, ERR_INPUT,
            "%s: hidden_size %lld, %lld query heads, %lld kv heads, head_dim %lld do "
            "not fit together (kv heads must divide query heads, head_dim must be even and at most "
            "%d and, if it is not given, hidden_size / heads)",
            path, (long long)c->hidden, (long long)heads, (long long)kv, (long long)d,
            HEAD_DIM_MAX);
    c->layers = (int)layers;
    c->heads = (int)heads;
    c->kv_heads = (int)kv;
    c->head_dim = (int)d;
    return 0;
}

/* llama.cpp names tensors in its own way, and orders the rows of Llama's q and k for its rotation.
 */
static void as_gguf(struct llm_config *c)
{
    c->naming = NAMES_GGUF;
    c->paired_rows = strcmp(c->architecture, "LlamaForCausalLM") == 0;
}

int llm_config_read(const char *model, struct llm_config *c, struct err *err)
{
    char path[CHECKPOINT_PATH];
    OWN(json_decrefp) json_t *o = NULL;
    const struct family *f = NULL;
    memset(c, 0, sizeof *c);
    PASS_ON(checkpoint_json(model, "config.json", MAX_CONFIG, path, &o, err));
    if (!o)
        return err_set(err, ERR_INPUT, "%s does not exist", path);
    PASS_ON(find_family(o, path, &f, err));
    snprintf(c->architecture, sizeof c->architecture, "%s", f->architecture);
    PASS_ON(refuse_quantised(o, path, err));
    PASS_ON(read_shape(o, f, path, c, err));
    PASS_ON(read_flags(o, f, path, c, err));
    if (checkpoint_is_gguf(model))
        as_gguf(c);
    PASS_ON(read_rope(o, f, path, c, err));
    PASS_ON(read_experts(o, f, path, c, err));
    PASS_ON(read_window(o, f, path, c, err));
    c->bos = -1;
    PASS_ON(jget_int_opt(o, "bos_token_id", path, &c->bos, err));
    if (c->bos < -1 || c->bos >= c->vocab)
        return err_set(err, ERR_INPUT, "%s: bos_token_id is %lld, the vocabulary has %lld tokens",
                       path, (long long)c->bos, (long long)c->vocab);
    return 0;
}
