/*
 * tinymodel.h - the tiny checkpoints of tests/data/tiny as directories, with any part of them
 * changed.
 */
#pragma once

#include "core/err.h"
#include "core/json.h"

#include <stdint.h>

enum { TINY_TOKENS = 40, TINY_VOCAB = 64, TINY_LAYERS = 2 };

/* config.json of a variant (configs.json): a copy, json_decref. */
json_t *tiny_config(const char *variant);

/* Names of the variants; n of them. */
const char *tiny_variant(int i);
#define TINY_VARIANTS 22

/* The prompt. */
void tiny_tokens(int32_t ids[TINY_TOKENS]);

/* Write DIR/config.json. */
void tiny_put_config(const char *dir, const json_t *config);

/* Write the weights of a variant to DIR in `shards` files (1: model.safetensors), without the
 * tensor `leave_out` (NULL: all). */
void tiny_put_weights(const char *dir, const char *variant, int shards, const char *leave_out);

/* The tensors of the file `source` as the checkpoint DIR/STEM... of `shards` files, without the
 * tensor `leave_out` (NULL: all). */
void tiny_put_checkpoint(const char *dir, const char *source, const char *stem, int shards,
                         const char *leave_out);
