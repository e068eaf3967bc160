#include "capture/wan_config.h"

#include "core/json.h"
#include "core/mem.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define MAX_CONFIG (1 << 20)
#define WAN_CLASS "WanTransformer3DModel"

static int read_config(const char *dir, char *path, size_t size, json_t **o, struct err *err)
{
    snprintf(path, size, "%s/config.json", dir);
    return json_read_foreign(path, MAX_CONFIG, o, err);
}

bool wan_config_is(const char *dir)
{
    char path[4096];
    OWN(json_decrefp) json_t *o = NULL;
    const char *name = NULL;
    struct err ignored = {0};
    return read_config(dir, path, sizeof path, &o, &ignored) == 0 &&
           jget_str_opt(o, "_class_name", path, &name, &ignored) == 0 && name &&
           strcmp(name, WAN_CLASS) == 0;
}

static int get_patch(const json_t *o, const char *path, int64_t patch[3], struct err *err)
{
    const json_t *p = json_object_get(o, "patch_size");
    if (!json_is_array(p) || json_array_size(p) != 3)
        return err_set(err, ERR_INPUT, "%s: patch_size must be three integers", path);
    for (size_t i = 0; i < 3; i++) {
        const json_t *e = json_array_get(p, i);
        patch[i] = json_integer_value(e);
        if (!json_is_integer(e) || patch[i] < 1 || patch[i] > 64)
            return err_set(err, ERR_INPUT, "%s: patch_size[%zu] must be an integer in 1..64", path,
                           i);
    }
    return 0;
}

/* Features of the image-to-video variants change the attention; a run without them would be wrong.
 */
static int refuse_variants(const json_t *o, const char *path, struct err *err)
{
    static const char *const keys[] = {"image_dim", "added_kv_proj_dim", "pos_embed_seq_len"};
    for (size_t i = 0; i < 3; i++) {
        const json_t *v = json_object_get(o, keys[i]);
        if (v && !json_is_null(v))
            return err_set(err, ERR_INPUT,
                           "%s: %s is set: image-to-video models are not supported, "
                           "only text-to-video",
                           path, keys[i]);
    }
    const json_t *norm = json_object_get(o, "qk_norm");
    const char *name = json_is_string(norm) ? json_string_value(norm) : "null";
    if (strcmp(name, "rms_norm_across_heads") != 0)
        return err_set(err, ERR_INPUT, "%s: qk_norm is %s, supported: rms_norm_across_heads", path,
                       name);
    return 0;
}

int wan_config_read(const char *dir, struct wan_config *c, struct err *err)
{
    char path[4096];
    OWN(json_decrefp) json_t *o = NULL;
    const char *name = NULL;
    int64_t layers, heads, head_dim;
    memset(c, 0, sizeof *c);
    PASS_ON(read_config(dir, path, sizeof path, &o, err));
    PASS_ON(jget_str(o, "_class_name", path, &name, err));
    if (strcmp(name, WAN_CLASS) != 0)
        return err_set(err, ERR_INPUT, "%s: _class_name is %s, supported: " WAN_CLASS, path, name);
    PASS_ON(refuse_variants(o, path, err));
    PASS_ON(jget_size(o, "num_layers", path, 1024, &layers, err));
    PASS_ON(jget_size(o, "num_attention_heads", path, 1024, &heads, err));
    PASS_ON(jget_size(o, "attention_head_dim", path, 1024, &head_dim, err));
    PASS_ON(jget_size(o, "ffn_dim", path, 1 << 20, &c->ffn_dim, err));
    PASS_ON(jget_size(o, "freq_dim", path, 1 << 16, &c->freq_dim, err));
    PASS_ON(jget_size(o, "text_dim", path, 1 << 16, &c->text_dim, err));
    PASS_ON(jget_size(o, "in_channels", path, 4096, &c->in_channels, err));
    PASS_ON(jget_size(o, "out_channels", path, 4096, &c->out_channels, err));
    PASS_ON(get_patch(o, path, c->patch, err));
    c->rope_max = 1024;
    c->eps = 1e-6;
    c->cross_attn_norm = true;
    PASS_ON(jget_int_opt(o, "rope_max_seq_len", path, &c->rope_max, err));
    PASS_ON(jget_num_opt(o, "eps", path, &c->eps, err));
    PASS_ON(jget_bool_opt(o, "cross_attn_norm", path, &c->cross_attn_norm, err));
    if (c->eps < 0 || c->rope_max < 1)
        return err_set(err, ERR_INPUT,
                       "%s: eps %g is negative or rope_max_seq_len %lld is not positive", path,
                       c->eps, (long long)c->rope_max);
    if (head_dim % 2 || c->freq_dim % 2)
        return err_set(err, ERR_INPUT, "%s: attention_head_dim and freq_dim must be even", path);
    c->layers = (int)layers;
    c->heads = (int)heads;
    c->head_dim = (int)head_dim;
    c->dim = heads * head_dim;
    return 0;
}

/* ---- models that lacuna does not run -------------------------------------------------------- */

/* A longer beginning stands before a shorter one that it contains. */
static const struct family {
    const char *begins, *name, *makes;
} families[] = {
    {"Allegro", "Allegro", "video"},
    {"AuraFlow", "AuraFlow", "image"},
    {"CogVideoX", "CogVideoX", "video"},
    {"CogView", "CogView", "image"},
    {"ConsisID", "ConsisID", "video"},
    {"Cosmos", "Cosmos", "video"},
    {"EasyAnimate", "EasyAnimate", "video"},
    {"Flux", "Flux", "image"},
    {"HunyuanDiT", "Hunyuan-DiT", "image"},
    {"HunyuanImage", "HunyuanImage", "image"},
    {"HunyuanVideo", "HunyuanVideo", "video"},
    {"LTX", "LTX-Video", "video"},
    {"Latte", "Latte", "video"},
    {"Lumina", "Lumina", "image"},
    {"Mochi", "Mochi", "video"},
    {"PixArt", "PixArt", "image"},
    {"QwenImage", "Qwen-Image", "image"},
    {"SD3", "Stable Diffusion 3", "image"},
    {"SkyReels", "SkyReels", "video"},
    {"StableDiffusion3", "Stable Diffusion 3", "image"},
    {"StableDiffusion", "Stable Diffusion", "image"},
    {"UNet2D", "Stable Diffusion", "image"},
    {"Wan", "a variant of Wan", "video"},
};

static const struct family *find_family(const char *class)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strncmp(class, families[i].begins, strlen(families[i].begins)) == 0)
            return families + i;
    return NULL;
}

/* _class_name of DIR/NAME, "" if there is none. */
static void read_class(const char *dir, const char *name, char class[128])
{
    char path[4096];
    OWN(json_decrefp) json_t *o = NULL;
    const char *text = NULL;
    struct err ignored = {0};
    class[0] = '\0';
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (json_read_foreign(path, MAX_CONFIG, &o, &ignored) == 0 &&
        jget_str_opt(o, "_class_name", path, &text, &ignored) == 0 && text)
        snprintf(class, 128, "%s", text);
}

static int refuse(const char *dir, const char *class, struct err *err)
{
    const struct family *f = find_family(class);
    char what[160];
    if (strcmp(class, "WanModel") == 0)
        return err_set(err, ERR_INPUT,
                       "%s: this is Wan in the layout of its own repository (WanModel); capture "
                       "reads the layout of diffusers: take the model's release for diffusers and "
                       "its folder transformer (" WAN_CLASS ")",
                       dir);
    if (f)
        snprintf(what, sizeof what, "%s (%s model, %.60s)", f->name, f->makes, class);
    else
        snprintf(what, sizeof what, "a model of diffusers, %.100s", class);
    return err_set(err, ERR_INPUT,
                   "%s: this is %s; capture itself runs the architecture of Wan 2.1 "
                   "(" WAN_CLASS " of diffusers) and language models; " FOREIGN_ADVICE_DIFFUSERS,
                   dir, what);
}

int foreign_refuse(const char *dir, struct err *err)
{
    char class[128], of_pipeline[128], below[4096];
    read_class(dir, "config.json", class);
    if (class[0])
        return strcmp(class, WAN_CLASS) == 0 ? 0 : refuse(dir, class, err);
    read_class(dir, "model_index.json", of_pipeline);
    if (!of_pipeline[0])
        return 0;
    snprintf(below, sizeof below, "%s/transformer", dir);
    read_class(below, "config.json", class);
    if (strcmp(class, WAN_CLASS) == 0)
        return err_set(err, ERR_INPUT,
                       "%s: this is a whole pipeline (%s); capture runs its transformer: --model "
                       "%s, with the text embeddings as --text FILE",
                       dir, of_pipeline, below);
    return refuse(dir, class[0] ? class : of_pipeline, err);
}
