/*
 * gguf.h - GGUF files of llama.cpp: metadata, tensors, and what they say in the place of the JSON
 * files of a checkpoint directory.
 *
 * Versions 2 and 3, little-endian, in one file. Types: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1,
 * Q8_0, Q4_K, Q5_K, Q6_K. Every count, offset and size is checked against the file; what is damaged
 * or not supported is ERR_INPUT by name.
 */
#pragma once

#include "core/json.h"
#include "core/safetensors.h"

struct gguf_type {
    uint32_t number;
    const char *name;
    enum dtype dtype;        /* what reading gives; DT_NONE: not supported */
    struct st_blocks blocks; /* decode NULL: elements of dtype */
};

/* NULL if the number is none of ggml's. */
const struct gguf_type *gguf_type(uint32_t number);

struct gguf {
    json_t *meta;              /* owned: every key */
    struct st_tensor *tensors; /* owned, in the order of the file; shapes as in PyTorch */
    int64_t n, cap;
};

/* Read the header. */
int gguf_read(const char *path, struct gguf *g, struct err *err);
void gguf_free(struct gguf *g);
const struct st_tensor *gguf_tensor(const struct gguf *g, const char *name); /* NULL if absent */

/* What config.json (generation_config.json too) and tokenizer.json of the model would say. */
int gguf_config(const char *path, const struct gguf *g, json_t **out, struct err *err);
int gguf_tokenizer(const char *path, const struct gguf *g, json_t **out, struct err *err);
