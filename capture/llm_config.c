/*
 * llm_config.c - config.json of Llama-family models: keys, their defaults in each family, refusals.
 */
#include "capture/llm_config.h"

#include "capture/foreign.h"
#include "core/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_CONFIG (1 << 20)
#define HEAD_DIM_MAX 1024

#define DEFAULT_WINDOW 4096

/* What differs between the families, and what config.json means when it does not say it. */
static const struct family {
    const char *architecture;
    bool qkv_bias;  /* always on q, k, v and never on o */
    bool bias_keys; /* attention_bias (q, k, v, o) is read */
    bool mlp_bias;  /* mlp_bias is read */
    bool qk_norm;
    int head_dim; /* default; 0: hidden_size / heads */
    enum { NO_WINDOW, WINDOW_EVERYWHERE, WINDOW_IF_USED } window;
} families[] = {
    {"LlamaForCausalLM", false, true, true, false, 0, NO_WINDOW},
    {"MistralForCausalLM", false, false, false, false, 0, WINDOW_EVERYWHERE},
    {"Qwen2ForCausalLM", true, false, false, false, 0, WINDOW_IF_USED},
    {"Qwen3ForCausalLM", false, true, false, true, 128, WINDOW_IF_USED},
};

static int find_family(const json_t *o, const char *path, const struct family **out,
                       struct err *err)
{
    const json_t *list = json_object_get(o, "architectures");
    const char *name = json_string_value(json_array_get(list, 0));
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
                   "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, "
                   "WanTransformer3DModel; " FOREIGN_ADVICE,
                   path, name);
}

/* ---- rotary embedding ----------------------------------------------------------------------- */

static int positive(const json_t *o, const char *key, const char *path, double *out, bool required,
                    struct err *err)
{
    int rc = required ? jget_num(o, key, path, out, err) : jget_num_opt(o, key, path, out, err);
    if (!rc && !isnan(*out) && !(*out > 0 && isfinite(*out)))
        rc = err_set(err, ERR_INPUT, "%s: rotary %s must be a positive number", path, key);
    return rc;
}

static int rope_llama3(const json_t *s, const char *path, struct rope_config *r, struct err *err)
{
    int rc = 0;
    r->type = ROPE_LLAMA3;
    TRY(positive(s, "factor", path, &r->factor, true, err));
    TRY(positive(s, "low_freq_factor", path, &r->low_freq_factor, true, err));
    TRY(positive(s, "high_freq_factor", path, &r->high_freq_factor, true, err));
    TRY(positive(s, "original_max_position_embeddings", path, &r->original_max, true, err));
    if (r->high_freq_factor <= r->low_freq_factor)
        FAIL(err, ERR_INPUT, "%s: rotary high_freq_factor must be above low_freq_factor", path);
out:
    return rc;
}

static int rope_yarn(const json_t *s, const char *path, double max_positions, struct rope_config *r,
                     struct err *err)
{
    int rc = 0;
    r->type = ROPE_YARN;
    r->factor = NAN;
    TRY(positive(s, "original_max_position_embeddings", path, &r->original_max, false, err));
    TRY(positive(s, "factor", path, &r->factor, false, err));
    if (isnan(r->factor)) /* not given: the ratio of the lengths */
        r->factor = max_positions / r->original_max;
    TRY(positive(s, "beta_fast", path, &r->beta_fast, false, err));
    TRY(positive(s, "beta_slow", path, &r->beta_slow, false, err));
    TRY(positive(s, "attention_factor", path, &r->attention_factor, false, err));
    TRY(jget_num_opt(s, "mscale", path, &r->mscale, err));
    TRY(jget_num_opt(s, "mscale_all_dim", path, &r->mscale_all, err));
    TRY(jget_bool_opt(s, "truncate", path, &r->truncate, err));
out:
    return rc;
}

/* Parameters that are fine one by one can still overflow together. */
static int check_frequencies(const struct llm_config *c, const char *path, struct err *err)
{
    double freq[HEAD_DIM_MAX / 2];
    bool ok = isfinite(rope_frequencies(&c->rope, c->head_dim, freq));
    for (int i = 0; i < c->head_dim / 2; i++)
        ok = ok && isfinite(freq[i]);
    return ok ? 0
              : err_set(err, ERR_INPUT,
                        "%s: the rotary parameters (theta %g, factor %g) give "
                        "frequencies that are not finite",
                        path, c->rope.theta, c->rope.factor);
}

/* The scaling by type; "type" is the older name of "rope_type". */
static int read_scaling(const json_t *s, const char *path, struct llm_config *c, struct err *err)
{
    const char *type = NULL;
    int rc = 0;

    TRY(jget_str_opt(s, "type", path, &type, err));
    TRY(jget_str_opt(s, "rope_type", path, &type, err));
    type = type ? type : "default";
    if (strcmp(type, "linear") == 0) {
        c->rope.type = ROPE_LINEAR;
        TRY(positive(s, "factor", path, &c->rope.factor, true, err));
    } else if (strcmp(type, "llama3") == 0) {
        TRY(rope_llama3(s, path, &c->rope, err));
    } else if (strcmp(type, "yarn") == 0) {
        TRY(rope_yarn(s, path, (double)c->max_positions, &c->rope, err));
    } else if (strcmp(type, "default") != 0) {
        FAIL(err, ERR_INPUT,
             "%s: rotary scaling of type %.50s is not supported; supported: "
             "default, linear, llama3, yarn",
             path, type);
    }
out:
    return rc;
}

/* The object with the rotary parameters in either spelling, NULL if there is none. */
static int find_scaling(const json_t *o, const char *path, const json_t **out, struct err *err)
{
    const json_t *v[] = {json_object_get(o, "rope_parameters"), json_object_get(o, "rope_scaling")};
    const char *key;
    json_t *value;

    for (int i = 0; i < 2; i++)
        v[i] = v[i] && json_is_null(v[i]) ? NULL : v[i];
    if (v[0] && v[1] && !json_equal(v[0], v[1]))
        return err_set(err, ERR_INPUT,
                       "%s: rope_parameters and rope_scaling are both given and "
                       "differ; keep one",
                       path);
    *out = v[0] ? v[0] : v[1];
    if (*out && !json_is_object(*out))
        return err_set(err, ERR_INPUT, "%s: %s must be an object", path,
                       v[0] ? "rope_parameters" : "rope_scaling");
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
static int read_rope(const json_t *o, const char *path, struct llm_config *c, struct err *err)
{
    const json_t *scaling = NULL;
    double partial = 1;
    int rc = 0;

    c->rope = (struct rope_config){.theta = 10000,
                                   .factor = 1,
                                   .beta_fast = 32,
                                   .beta_slow = 1,
                                   .original_max = (double)c->max_positions,
                                   .attention_factor = NAN,
                                   .mscale = NAN,
                                   .mscale_all = NAN,
                                   .truncate = true};
    TRY(find_scaling(o, path, &scaling, err));
    TRY(positive(o, "rope_theta", path, &c->rope.theta, false, err));
    TRY(jget_num_opt(o, "partial_rotary_factor", path, &partial, err));
    if (scaling) {
        TRY(positive(scaling, "rope_theta", path, &c->rope.theta, false, err));
        TRY(jget_num_opt(scaling, "partial_rotary_factor", path, &partial, err));
        TRY(read_scaling(scaling, path, c, err));
    }
    if (partial != 1)
        FAIL(err, ERR_INPUT, "%s: partial_rotary_factor %g is not supported (only 1)", path,
             partial);
    TRY(check_frequencies(c, path, err));
out:
    return rc;
}

/* ---- everything else ------------------------------------------------------------------------ */

/* Is any of the layers from `first` on a sliding one? layer_types, where given, decides. */
static bool any_sliding(const json_t *o, int64_t first, int64_t layers)
{
    const json_t *types = json_object_get(o, "layer_types");
    if (!json_is_array(types))
        return first < layers;
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *t = json_string_value(json_array_get(types, i));
        if (t && strcmp(t, "sliding_attention") == 0)
            return true;
    }
    return false;
}

/* The window of the layers that attend within one only; an explicit null is none. */
static int read_window(const json_t *o, const struct family *f, const char *path,
                       struct llm_config *c, struct err *err)
{
    const json_t *given = json_object_get(o, "sliding_window");
    bool use = f->window == WINDOW_EVERYWHERE;
    int64_t window = DEFAULT_WINDOW, full_layers = f->window == WINDOW_IF_USED ? 28 : 0;
    int rc = 0;

    if (f->window == WINDOW_IF_USED) {
        TRY(jget_bool_opt(o, "use_sliding_window", path, &use, err));
        TRY(jget_int_opt(o, "max_window_layers", path, &full_layers, err));
        use = use && any_sliding(o, full_layers, c->layers);
    }
    if (!use || (given && json_is_null(given)))
        return 0;
    TRY(jget_size_opt(o, "sliding_window", path, INT64_C(1) << 40, &window, err));
    c->window = window;
out:
    return rc;
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
    const char *act = "silu", *dtype = NULL;
    bool bias = false;
    int rc = 0;

    if (f->bias_keys)
        TRY(jget_bool_opt(o, "attention_bias", path, &bias, err));
    c->qkv_bias = f->qkv_bias || bias;
    c->o_bias = bias;
    c->qk_norm = f->qk_norm;
    if (f->mlp_bias)
        TRY(jget_bool_opt(o, "mlp_bias", path, &c->mlp_bias, err));
    TRY(jget_bool_opt(o, "tie_word_embeddings", path, &c->tied, err));
    TRY(jget_str_opt(o, "hidden_act", path, &act, err));
    if (strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        FAIL(err, ERR_INPUT, "%s: hidden_act %.50s is not supported (only silu)", path, act);
    TRY(jget_str_opt(o, "torch_dtype", path, &dtype, err));
    TRY(jget_str_opt(o, "dtype", path, &dtype, err));
    c->dtype = dtype ? dtype_from_name(dtype) : DT_NONE;
    if (dtype && c->dtype != DT_F32 && c->dtype != DT_BF16 && c->dtype != DT_F16)
        FAIL(err, ERR_INPUT, "%s: dtype %.50s is not supported (float32, bfloat16, float16)", path,
             dtype);
out:
    return rc;
}

static int read_shape(const json_t *o, const struct family *f, const char *path,
                      struct llm_config *c, struct err *err)
{
    int64_t layers, heads, kv, d;
    int rc = 0;

    TRY(jget_size(o, "num_hidden_layers", path, 4096, &layers, err));
    TRY(jget_size(o, "num_attention_heads", path, 4096, &heads, err));
    TRY(jget_size(o, "hidden_size", path, 1 << 20, &c->hidden, err));
    TRY(jget_size(o, "intermediate_size", path, 1 << 24, &c->ffn, err));
    TRY(jget_size(o, "vocab_size", path, 1 << 24, &c->vocab, err));
    kv = heads;
    d = f->head_dim ? f->head_dim : c->hidden % heads ? 0 : c->hidden / heads;
    c->max_positions = 2048;
    c->eps = 1e-6;
    TRY(jget_size_opt(o, "num_key_value_heads", path, heads, &kv, err));
    TRY(jget_size_opt(o, "head_dim", path, HEAD_DIM_MAX, &d, err));
    TRY(jget_size_opt(o, "max_position_embeddings", path, (int64_t)1 << 40, &c->max_positions,
                      err));
    TRY(jget_num_opt(o, "rms_norm_eps", path, &c->eps, err));
    if (c->eps < 0)
        FAIL(err, ERR_INPUT, "%s: rms_norm_eps is negative (%g)", path, c->eps);
    if (heads % kv || d < 2 || d > HEAD_DIM_MAX || d % 2)
        FAIL(
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
out:
    return rc;
}

int llm_config_read(const char *dir, struct llm_config *c, struct err *err)
{
    char path[4096];
    json_t *o = NULL;
    const struct family *f = NULL;
    int rc = 0;

    memset(c, 0, sizeof *c);
    snprintf(path, sizeof path, "%s/config.json", dir);
    TRY(json_read_file(path, MAX_CONFIG, &o, err));
    if (!json_is_object(o))
        FAIL(err, ERR_INPUT, "%s: not a JSON object", path);
    TRY(find_family(o, path, &f, err));
    snprintf(c->architecture, sizeof c->architecture, "%s", f->architecture);
    TRY(refuse_quantised(o, path, err));
    TRY(read_shape(o, f, path, c, err));
    TRY(read_flags(o, f, path, c, err));
    TRY(read_rope(o, path, c, err));
    TRY(read_window(o, f, path, c, err));
    c->bos = -1;
    TRY(jget_int_opt(o, "bos_token_id", path, &c->bos, err));
    if (c->bos < -1 || c->bos >= c->vocab)
        FAIL(err, ERR_INPUT, "%s: bos_token_id is %lld, the vocabulary has %lld tokens", path,
             (long long)c->bos, (long long)c->vocab);
out:
    json_decref(o);
    return rc;
}
