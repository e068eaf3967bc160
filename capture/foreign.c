/*
 * foreign.c - the families of diffusers by the beginning of their class names, for transformers
 * (CogVideoXTransformer3DModel) and pipelines (CogVideoXPipeline) alike.
 */
#include "capture/foreign.h"

#include "core/json.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define MAX_CONFIG (1 << 20)
#define WAN_CLASS "WanTransformer3DModel"

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
    json_t *o = NULL;
    const char *text = NULL;
    struct err ignored = {0};

    class[0] = '\0';
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (json_read_file(path, MAX_CONFIG, &o, &ignored) == 0 &&
        jget_str_opt(o, "_class_name", path, &text, &ignored) == 0 && text)
        snprintf(class, 128, "%s", text);
    json_decref(o);
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
