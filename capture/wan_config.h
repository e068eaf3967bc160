/*
 * wan_config.h - config.json of a Wan 2.1 video diffusion transformer in diffusers' layout
 * (_class_name WanTransformer3DModel).
 */
#pragma once

#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

struct wan_config {
    int layers, heads, head_dim; /* model width = heads * head_dim */
    int64_t dim, ffn_dim, freq_dim, text_dim;
    int64_t in_channels, out_channels;
    int64_t patch[3]; /* frames, height, width of a patch */
    int64_t rope_max; /* positions per axis that the rotary table covers */
    double eps;
    bool cross_attn_norm; /* affine layer norm before cross-attention */
};

/* Read DIR/config.json; anything that this runner does not do exactly is ERR_INPUT by name. */
int wan_config_read(const char *dir, struct wan_config *c, struct err *err);

/* Is DIR/config.json of this class? False for anything else, unreadable files included. */
bool wan_config_is(const char *dir);

/* ---- models that lacuna does not run -------------------------------------------------------- */

/* The advice at the end of a refusal, of a language model and of a model of diffusers. */
#define FOREIGN_ADVICE                                                                             \
    "any other model: capture it in Python, where it runs: pip install './capture/torch[hf]' and " \
    "python -m lacuna_trace --hf DIR --prompt FILE -o T.h5 (doc/capture-from-python.md)"
#define FOREIGN_ADVICE_DIFFUSERS                                                                   \
    "any other model: capture it in Python, where it runs: pip install './capture/torch[video]' "  \
    "and python -m lacuna_trace --diffusers DIR --prompt TEXT -o T.h5 "                            \
    "(doc/capture-from-python.md)"

/* Refuse (ERR_INPUT) a directory of diffusers that capture cannot run, by its _class_name: another
 * transformer than Wan's, or a whole pipeline (model_index.json), of which one folder is wanted. 0
 * for everything else, a language model or no model at all. */
int foreign_refuse(const char *dir, struct err *err);
