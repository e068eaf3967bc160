/*
 * video_input.c - see video_input.h.
 */
#include "capture/video_input.h"

#include "capture/wan_model.h"
#include "core/fileio.h"
#include "core/mem.h"
#include "core/npy.h"
#include "core/rng.h"

#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- arrays from files ---------------------------------------------------------------------- */

struct array {
    float *data; /* [count], owned */
    int ndim;
    int64_t shape[ST_MAX_DIMS], count;
    char text[128]; /* "[4][8][32]", for messages */
};

static void array_free(struct array *a)
{
    free(a->data);
    memset(a, 0, sizeof *a);
}

static int from_npy(const char *path, struct array *a, struct err *err)
{
    OWN(npy_close) struct npy *n = NULL;
    PASS_ON(npy_open(path, true, &n, err));
    a->ndim = n->ndim;
    memcpy(a->shape, n->shape, sizeof n->shape);
    a->count = n->count;
    PASS_ON(mem_alloc(&a->data, a->count, sizeof *a->data, path, err));
    return npy_read_f32(n, a->data, err);
}

static int from_safetensors(const char *path, const char *tensor, struct array *a, struct err *err)
{
    OWN(st_close) struct st_file *f = NULL;
    const struct st_tensor *t;
    PASS_ON(st_open(path, &f, err));
    PASS_ON(st_require(f, tensor, -1, NULL, &t, err));
    a->ndim = t->ndim;
    memcpy(a->shape, t->shape, sizeof t->shape);
    a->count = t->count;
    PASS_ON(mem_alloc(&a->data, a->count, sizeof *a->data, path, err));
    return st_read_f32(f, t, 0, t->count, a->data, err);
}

/* By the file's ending; `tensor` names the tensor of a .safetensors file. Release with array_free.
 */
static int array_load(const char *path, const char *tensor, struct array *a, struct err *err)
{
    const char *dot = strrchr(path, '.');
    memset(a, 0, sizeof *a);
    int rc = dot && strcmp(dot, ".npy") == 0 ? from_npy(path, a, err)
             : dot && strcmp(dot, ".safetensors") == 0
                 ? from_safetensors(path, tensor, a, err)
                 : err_set(err, ERR_USAGE, "%s: expected a .npy or .safetensors file", path);
    if (rc) {
        array_free(a);
        return rc;
    }
    size_t used = 0;
    for (int i = 0; i < a->ndim && used < sizeof a->text; i++)
        used += (size_t)snprintf(a->text + used, sizeof a->text - used, "[%lld]",
                                 (long long)a->shape[i]);
    return 0;
}

/* Stream of the counter-based generator that the starting noise comes from. */
#define NOISE_STREAM 1

static int parse_size(const struct wan_config *c, const struct video_ask *a, struct video_input *in,
                      struct err *err)
{
    long long t, h, w;
    char rest;
    if (!a->size)
        return err_set(err, ERR_USAGE, "%s: --size TxHxW is missing (frames x height x width)",
                       a->who);
    if (sscanf(a->size, "%lldx%lldx%lld%c", &t, &h, &w, &rest) != 3 || t > 1 << 20 || h > 1 << 20 ||
        w > 1 << 20)
        return err_set(err, ERR_USAGE,
                       "%s: --size %s is not of the form TxHxW, as in "
                       "16x256x384",
                       a->who, a->size);
    in->t = t;
    in->h = h;
    in->w = w;
    int rc = wan_grid(c, t, h, w, in->grid, err);
    if (rc)
        return err_prefix(err, "%s: --size %s", a->who, a->size);
    in->size = c->in_channels * t * h * w;
    return 0;
}

/* Text embeddings [tokens][text_dim], or prompt `index` of [prompts][tokens][text_dim]. */
static int load_text(const struct wan_config *c, const char *path, int64_t index, float **text,
                     int64_t *n_text, struct err *err)
{
    OWN(array_free) struct array a = {0};
    int64_t dim = c->text_dim;
    PASS_ON(array_load(path, "text", &a, err));
    if (a.ndim < 2 || a.ndim > 3 || a.shape[a.ndim - 1] != dim || a.count == 0)
        return err_set(err, ERR_INPUT,
                       "%s: text embeddings must be [tokens][%lld] or "
                       "[prompts][tokens][%lld], found %s",
                       path, (long long)dim, (long long)dim, a.text);
    int64_t prompts = a.ndim == 3 ? a.shape[0] : 1, tokens = a.shape[a.ndim - 2];
    if (index >= prompts)
        return err_set(err, ERR_USAGE,
                       "%s: --prompt-index %lld, but there are %lld prompts (from 0)", path,
                       (long long)index, (long long)prompts);
    PASS_ON(mem_alloc(text, tokens * dim, sizeof(float), "text embeddings", err));
    memcpy(*text, a.data + index * tokens * dim, (size_t)(tokens * dim) * sizeof(float));
    *n_text = tokens;
    return 0;
}

static int load_texts(const struct wan_config *c, const struct video_ask *a, struct video_input *in,
                      struct err *err)
{
    char path[4096];
    int64_t n = 0;
    bool there;
    snprintf(path, sizeof path, "%s/prompts.safetensors", a->model);
    PASS_ON(io_exists(path, &there, err));
    if (!a->text && !there)
        return err_set(err, ERR_USAGE,
                       "%s: --text FILE is missing, and %s holds no prompts.safetensors", a->who,
                       a->model);
    PASS_ON(load_text(c, a->text ? a->text : path, a->prompt_index, &in->text, &in->n_text, err));
    in->branches = a->guidance > 1 ? 2 : 1;
    if (in->branches == 1 && a->negative)
        return err_set(err, ERR_USAGE,
                       "%s: --negative needs --guidance above 1: without guidance there is "
                       "no unconditional branch",
                       a->who);
    if (in->branches == 1)
        return 0;
    if (!a->negative) {
        PASS_ON(mem_zalloc(&in->negative, in->n_text * c->text_dim, sizeof(float),
                           "text embeddings", err));
        return 0;
    }
    PASS_ON(load_text(c, a->negative, 0, &in->negative, &n, err));
    if (n != in->n_text)
        return err_set(err, ERR_INPUT, "%s: %lld text tokens, the prompt has %lld", a->negative,
                       (long long)n, (long long)in->n_text);
    return 0;
}

int video_input_open(const struct wan_config *c, const struct video_ask *a, struct video_input *in,
                     struct err *err)
{
    PASS_ON(parse_size(c, a, in, err));
    PASS_ON(load_texts(c, a, in, err));
    if (c->out_channels != c->in_channels)
        return err_set(err, ERR_INPUT,
                       "%s: %lld input and %lld output channels: the sampler needs the same",
                       a->model, (long long)c->in_channels, (long long)c->out_channels);
    PASS_ON(mem_alloc(&in->sigma, a->steps + 1, sizeof(double), "schedule", err));
    flow_sigmas(a->steps, a->shift, in->sigma);
    return 0;
}

void video_input_close(struct video_input *in)
{
    free(in->x);
    free(in->text);
    free(in->negative);
    free(in->sigma);
    memset(in, 0, sizeof *in);
}

int video_input_noise(const struct wan_config *c, const struct video_ask *ask,
                      struct video_input *in, struct err *err)
{
    OWN(array_free) struct array a = {0};
    PASS_ON(mem_alloc(&in->x, in->size, sizeof(float), "latent", err));
    if (!ask->noise) {
        for (int64_t i = 0; i < in->size; i++)
            in->x[i] = (float)rng_normal(ask->seed, NOISE_STREAM, (uint64_t)i);
        return 0;
    }
    PASS_ON(array_load(ask->noise, "noise", &a, err));
    int first = a.ndim - 4; /* leading axes of size 1 are allowed */
    if (first < 0 || a.count != in->size || a.shape[first] != c->in_channels ||
        a.shape[first + 1] != in->t || a.shape[first + 2] != in->h || a.shape[first + 3] != in->w)
        return err_set(err, ERR_INPUT, "%s: noise must be [%lld][%lld][%lld][%lld], found %s",
                       ask->noise, (long long)c->in_channels, (long long)in->t, (long long)in->h,
                       (long long)in->w, a.text);
    memcpy(in->x, a.data, (size_t)in->size * sizeof(float));
    return 0;
}

/* ---- the sampler ---------------------------------------------------------------------------- */

void flow_sigmas(int64_t steps, double shift, double *sigma)
{
    for (int64_t i = 0; i <= steps; i++) {
        double u = 1 - (double)i / (double)steps;
        sigma[i] = shift * u / (1 + (shift - 1) * u);
    }
}

void flow_step(float *x, const float *v, int64_t n, double sigma, double sigma_next)
{
    float dt = (float)(sigma_next - sigma);
    for (int64_t i = 0; i < n; i++)
        x[i] += dt * v[i];
}

void flow_guide(float *v, const float *v_uncond, int64_t n, double guidance)
{
    for (int64_t i = 0; i < n; i++)
        v[i] = v_uncond[i] + (float)guidance * (v[i] - v_uncond[i]);
}

/* ---- frames --------------------------------------------------------------------------------- */

static unsigned char to_byte(float x)
{
    float y = (x + 1) * 127.5f;
    return (unsigned char)(y <= 0 ? 0 : y >= 255 ? 255 : y + 0.5f);
}

int frames_write(const char *dir, const float *x, int64_t t, int64_t h, int64_t w, struct err *err)
{
    OWN(free_at) unsigned char *rgb = NULL;
    char path[4096];
    PASS_ON(make_dirs(dir, err));
    PASS_ON(mem_alloc(&rgb, 3 * h * w, 1, "frame", err));
    for (int64_t f = 0; f < t; f++) {
        for (int64_t i = 0; i < h * w; i++)
            for (int64_t c = 0; c < 3; c++)
                rgb[3 * i + c] = to_byte(x[(c * t + f) * h * w + i]);
        png_image image;
        memset(&image, 0, sizeof image);
        image.version = PNG_IMAGE_VERSION;
        image.width = (png_uint_32)w;
        image.height = (png_uint_32)h;
        image.format = PNG_FORMAT_RGB;
        snprintf(path, sizeof path, "%s/frame-%03lld.png", dir, (long long)f);
        if (!png_image_write_to_file(&image, path, 0, rgb, 0, NULL))
            return err_set(err, ERR_IO, "%s: %s", path, image.message);
    }
    return 0;
}
