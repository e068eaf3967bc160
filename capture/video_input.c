/*
 * video_input.c - see video_input.h.
 */
#include "capture/video_input.h"

#include "capture/arrays.h"
#include "capture/flow.h"
#include "capture/wan_model.h"
#include "core/fileio.h"
#include "core/mem.h"
#include "core/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    struct array a = {0};
    int64_t dim = c->text_dim;
    int rc = 0;

    TRY(array_load(path, "text", &a, err));
    if (a.ndim < 2 || a.ndim > 3 || a.shape[a.ndim - 1] != dim || a.count == 0)
        FAIL(err, ERR_INPUT,
             "%s: text embeddings must be [tokens][%lld] or "
             "[prompts][tokens][%lld], found %s",
             path, (long long)dim, (long long)dim, a.text);
    int64_t prompts = a.ndim == 3 ? a.shape[0] : 1, tokens = a.shape[a.ndim - 2];
    if (index >= prompts)
        FAIL(err, ERR_USAGE, "%s: --prompt-index %lld, but there are %lld prompts (from 0)", path,
             (long long)index, (long long)prompts);
    TRY(mem_alloc(text, tokens * dim, sizeof(float), "text embeddings", err));
    memcpy(*text, a.data + index * tokens * dim, (size_t)(tokens * dim) * sizeof(float));
    *n_text = tokens;
out:
    array_free(&a);
    return rc;
}

static int load_texts(const struct wan_config *c, const struct video_ask *a, struct video_input *in,
                      struct err *err)
{
    char path[4096];
    int64_t n = 0;
    bool there;
    int rc = 0;

    snprintf(path, sizeof path, "%s/prompts.safetensors", a->model);
    TRY(io_exists(path, &there, err));
    if (!a->text && !there)
        FAIL(err, ERR_USAGE, "%s: --text FILE is missing, and %s holds no prompts.safetensors",
             a->who, a->model);
    TRY(load_text(c, a->text ? a->text : path, a->prompt_index, &in->text, &in->n_text, err));
    in->branches = a->guidance > 1 ? 2 : 1;
    if (in->branches == 1 && a->negative)
        FAIL(err, ERR_USAGE,
             "%s: --negative needs --guidance above 1: without guidance there is "
             "no unconditional branch",
             a->who);
    if (in->branches == 1)
        return 0;
    if (!a->negative) {
        TRY(mem_zalloc(&in->negative, in->n_text * c->text_dim, sizeof(float), "text embeddings",
                       err));
        return 0;
    }
    TRY(load_text(c, a->negative, 0, &in->negative, &n, err));
    if (n != in->n_text)
        FAIL(err, ERR_INPUT, "%s: %lld text tokens, the prompt has %lld", a->negative, (long long)n,
             (long long)in->n_text);
out:
    return rc;
}

int video_input_open(const struct wan_config *c, const struct video_ask *a, struct video_input *in,
                     struct err *err)
{
    int rc = 0;

    TRY(parse_size(c, a, in, err));
    TRY(load_texts(c, a, in, err));
    if (c->out_channels != c->in_channels)
        FAIL(err, ERR_INPUT, "%s: %lld input and %lld output channels: the sampler needs the same",
             a->model, (long long)c->in_channels, (long long)c->out_channels);
    TRY(mem_alloc(&in->sigma, a->steps + 1, sizeof(double), "schedule", err));
    flow_sigmas(a->steps, a->shift, in->sigma);
out:
    return rc;
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
    struct array a = {0};
    int rc = 0;

    TRY(mem_alloc(&in->x, in->size, sizeof(float), "latent", err));
    if (!ask->noise) {
        for (int64_t i = 0; i < in->size; i++)
            in->x[i] = (float)rng_normal(ask->seed, NOISE_STREAM, (uint64_t)i);
        return 0;
    }
    TRY(array_load(ask->noise, "noise", &a, err));
    int first = a.ndim - 4; /* leading axes of size 1 are allowed */
    if (first < 0 || a.count != in->size || a.shape[first] != c->in_channels ||
        a.shape[first + 1] != in->t || a.shape[first + 2] != in->h || a.shape[first + 3] != in->w)
        FAIL(err, ERR_INPUT, "%s: noise must be [%lld][%lld][%lld][%lld], found %s", ask->noise,
             (long long)c->in_channels, (long long)in->t, (long long)in->h, (long long)in->w,
             a.text);
    memcpy(in->x, a.data, (size_t)in->size * sizeof(float));
out:
    array_free(&a);
    return rc;
}
