/*
 * wan_config.h - config.json of a Wan 2.1 video diffusion transformer in diffusers' layout
 * (_class_name WanTransformer3DModel).
 */
#ifndef LACUNA_WAN_CONFIG_H
#define LACUNA_WAN_CONFIG_H

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

#endif
