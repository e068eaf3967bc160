/*
 * gguf_config.c - config.json of a GGUF file: the same values under llama.cpp's names.
 *
 * Scalings of the rotary embedding that differ by channel are tensors there: rope_freqs (Llama 3.1)
 * and rope_factors_short, rope_factors_long (Phi-3). They divide the frequencies, as LongRoPE's do.
 */
#include "core/gguf.h"

#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* What is read, and for what it stands. */
static const struct {
    const char *architecture, *class;
} classes[] = {{"llama", "LlamaForCausalLM"},
               {"qwen2", "Qwen2ForCausalLM"},
               {"qwen3", "Qwen3ForCausalLM"},
               {"phi3", "Phi3ForCausalLM"},
               {"glm4", "Glm4ForCausalLM"}};

/* Keys behind "ARCHITECTURE."; null where the file has none: its KV heads are then the query heads,
 * whatever the class has in their place. */
static const struct key {
    const char *from, *to;
    bool required;
} keys[] = {
    {"block_count", "num_hidden_layers", true},
    {"attention.head_count", "num_attention_heads", true},
    {"embedding_length", "hidden_size", true},
    {"feed_forward_length", "intermediate_size", true},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps", true},
    {"context_length", "max_position_embeddings", true},
    {"attention.head_count_kv", "num_key_value_heads", false},
    {"rope.freq_base", "rope_theta", false},
};

/* Keys that change the arithmetic and are not implemented, with the value that says nothing. */
static const struct {
    const char *name;
    double neutral;
} refused[] = {
    {"expert_count", 0},
    {"attention.clamp_kqv", 0},
    {"attention.max_alibi_bias", 0},
    {"attention.scale", 0},
    {"logit_scale", 0},
    {"embedding_scale", 0},
    {"residual_scale", 0},
    {"attention.causal", 1},
    {"attn_logit_softcapping", 0},
    {"final_logit_softcapping", 0},
};

struct source {
    const char *path, *architecture;
    const struct gguf *g;
    json_t *out;
};

static const json_t *get(const struct source *s, const char *name)
{
    char key[160];
    snprintf(key, sizeof key, "%s.%s", s->architecture, name);
    return json_object_get(s->g->meta, key);
}

/* -1 if it is not there, or no whole number. */
static int64_t whole(const struct source *s, const char *name)
{
    const json_t *v = get(s, name);
    return json_is_integer(v) ? json_integer_value(v) : -1;
}

static void set(const struct source *s, const char *key, json_t *v)
{
    json_object_set_new(s->out, key, v); /* NULL: no memory, which json_watch_memory notes */
}

static int find_class(struct source *s, struct err *err)
{
    const char *name = NULL;
    PASS_ON(jget_str(s->g->meta, "general.architecture", s->path, &name, err));
    s->architecture = name;
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (strcmp(classes[i].architecture, name) == 0) {
            set(s, "architectures", json_pack("[s]", classes[i].class));
            return 0;
        }
    return err_set(err, ERR_INPUT,
                   "%s: general.architecture %.60s is not supported; supported: llama (with "
                   "Mistral), qwen2, qwen3, phi3, glm4",
                   s->path, name);
}

static int copy_keys(const struct source *s, struct err *err)
{
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *v = get(s, keys[i].from);
        if (!v && keys[i].required)
            return err_set(err, ERR_INPUT, "%s: the key %s.%s is missing", s->path, s->architecture,
                           keys[i].from);
        json_object_set(s->out, keys[i].to, v ? (json_t *)(uintptr_t)v : json_null());
    }
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const json_t *v = get(s, refused[i].name);
        double x = json_is_boolean(v) ? json_is_true(v) : json_number_value(v);
        if (v && x != refused[i].neutral)
            return err_set(err, ERR_INPUT, "%s: %s.%s = %g is not supported", s->path,
                           s->architecture, refused[i].name, x);
    }
    return 0;
}

/* Head dimension, rotated part of it, window. */
static int attention(const struct source *s, struct err *err)
{
    int64_t hidden = whole(s, "embedding_length"), heads = whole(s, "attention.head_count");
    int64_t d = whole(s, "attention.key_length"), v = whole(s, "attention.value_length");
    int64_t rotated = whole(s, "rope.dimension_count"), window;
    if (d < 0)
        d = heads > 0 ? hidden / heads : 0;
    if (v >= 0 && v != d)
        return err_set(err, ERR_INPUT, "%s: keys of %lld and values of %lld channels", s->path,
                       (long long)d, (long long)v);
    set(s, "head_dim", json_integer(d));
    if (rotated < 0)
        rotated = d;
    if (d > 0)
        set(s, "partial_rotary_factor", json_real((double)rotated / (double)d));
    if (get(s, "rope.dimension_sections"))
        return err_set(err, ERR_INPUT, "%s: rotary sections (a model of images) are not supported",
                       s->path);
    window = whole(s, "attention.sliding_window");
    if (window > 0 && strcmp(s->architecture, "phi3") != 0)
        return err_set(err, ERR_INPUT, "%s: %s.attention.sliding_window is not supported", s->path,
                       s->architecture);
    if (window > 0)
        set(s, "sliding_window", json_integer(window));
    return 0;
}

/* ---- rotary scaling -------------------------------------------------------------------------- */

/* Copy a number of the file to a key of the scaling. */
static void number_to(const struct source *s, const char *from, json_t *o, const char *to)
{
    const json_t *v = get(s, from);
    if (v)
        json_object_set(o, to, (json_t *)(uintptr_t)v);
}

static int put_factors(const struct source *s, const char *name, json_t *o, const char *to,
                       struct err *err)
{
    const struct st_tensor *t = gguf_tensor(s->g, name);
    OWN(st_close) struct st_file *f = NULL;
    OWN(free_at) float *x = NULL;
    OWN(json_decrefp) json_t *list = json_array();
    if (!t || t->count > 4096)
        return err_set(err, ERR_INPUT, "%s: the tensor %s is missing or too large", s->path, name);
    PASS_ON(st_adopt(s->path, t, 1, &f, err));
    PASS_ON(mem_alloc(&x, t->count, sizeof *x, name, err));
    PASS_ON(st_read_f32(f, st_at(f, 0), 0, t->count, x, err));
    for (int64_t i = 0; i < t->count; i++)
        if (!(x[i] > 0 && isfinite(x[i])))
            return err_set(err, ERR_INPUT, "%s: tensor %s holds %g, a positive number was expected",
                           s->path, name, x[i]);
        else
            json_array_append_new(list, json_real(x[i]));
    json_object_set(o, to, list);
    return 0;
}

static int channel_scaling(const struct source *s, json_t *o, struct err *err)
{
    bool llama3 = gguf_tensor(s->g, "rope_freqs.weight") != NULL;
    json_object_set_new(o, "rope_type", json_string("longrope"));
    PASS_ON(put_factors(s, llama3 ? "rope_freqs.weight" : "rope_factors_short.weight", o,
                        "short_factor", err));
    PASS_ON(put_factors(s, llama3 ? "rope_freqs.weight" : "rope_factors_long.weight", o,
                        "long_factor", err));
    if (llama3)
        json_object_set_new(o, "attention_factor", json_integer(1));
    else
        number_to(s, "rope.scaling.attn_factor", o, "attention_factor");
    return 0;
}

static int scaling(const struct source *s, struct err *err)
{
    const json_t *type = get(s, "rope.scaling.type"), *linear = get(s, "rope.scale_linear");
    const char *name = json_is_string(type) ? json_string_value(type) : linear ? "linear" : "none";
    bool by_channel = gguf_tensor(s->g, "rope_freqs.weight") ||
                      gguf_tensor(s->g, "rope_factors_long.weight") ||
                      strcmp(name, "longrope") == 0 || strcmp(name, "su") == 0;
    OWN(json_decrefp) json_t *o = json_object();
    number_to(s, "rope.scaling.original_context_length", s->out,
              "original_max_position_embeddings");
    number_to(s, "rope.scale_linear", o, "factor");
    number_to(s, "rope.scaling.factor", o, "factor");
    if (by_channel && (strcmp(name, "linear") == 0 || strcmp(name, "yarn") == 0))
        return err_set(err, ERR_INPUT,
                       "%s: rotary scaling %s and factors by channel are both given", s->path,
                       name);
    if (by_channel) {
        PASS_ON(channel_scaling(s, o, err));
    } else {
        const json_t *more = get(s, "rope.scaling.attn_factor");
        if (more && json_number_value(more) != 1)
            return err_set(err, ERR_INPUT,
                           "%s: rope.scaling.attn_factor %g is not supported with %s scaling",
                           s->path, json_number_value(more), name);
        json_object_set_new(o, "rope_type",
                            json_string(strcmp(name, "none") == 0 ? "default" : name));
        number_to(s, "rope.scaling.yarn_beta_fast", o, "beta_fast");
        number_to(s, "rope.scaling.yarn_beta_slow", o, "beta_slow");
    }
    json_object_set(s->out, "rope_scaling", o);
    return 0;
}

/* ---- tensors and tokens ---------------------------------------------------------------------- */

/* The vocabulary is that of the embeddings. Weights in blocks were rounded from bfloat16. */
static int from_tensors(const struct source *s, struct err *err)
{
    const struct st_tensor *embed = gguf_tensor(s->g, "token_embd.weight");
    if (!embed || embed->ndim != 2)
        return err_set(err, ERR_INPUT, "%s: the matrix token_embd.weight is missing", s->path);
    set(s, "vocab_size", json_integer(embed->shape[0]));
    set(s, "torch_dtype", json_string(embed->blocks ? "bfloat16" : dtype_name(embed->dtype)));
    set(s, "tie_word_embeddings", json_boolean(!gguf_tensor(s->g, "output.weight")));
    set(s, "attention_bias", json_boolean(gguf_tensor(s->g, "blk.0.attn_q.bias") != NULL));
    set(s, "mlp_bias", json_boolean(gguf_tensor(s->g, "blk.0.ffn_up.bias") != NULL));
    return 0;
}

static void from_tokens(const struct source *s)
{
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id",
                                       "tokenizer.ggml.eot_token_id"};
    json_t *list = json_array();
    for (int i = 0; i < 2; i++) {
        const json_t *v = json_object_get(s->g->meta, ends[i]);
        if (v && !json_equal(v, json_array_get(list, 0)))
            json_array_append(list, (json_t *)(uintptr_t)v);
    }
    set(s, "eos_token_id", list);
    const json_t *bos = json_object_get(s->g->meta, "tokenizer.ggml.bos_token_id");
    if (bos)
        json_object_set(s->out, "bos_token_id", (json_t *)(uintptr_t)bos);
    const json_t *name = json_object_get(s->g->meta, "general.name");
    if (name)
        json_object_set(s->out, "_name_or_path", (json_t *)(uintptr_t)name);
}

int gguf_config(const char *path, const struct gguf *g, json_t **out, struct err *err)
{
    struct source s = {.path = path, .g = g, .out = json_object()};
    int rc = 0;
    TRY(find_class(&s, err));
    TRY(copy_keys(&s, err));
    TRY(attention(&s, err));
    TRY(scaling(&s, err));
    TRY(from_tensors(&s, err));
    from_tokens(&s);
    *out = s.out;
    s.out = NULL;
out:
    json_decref(s.out);
    return rc;
}
