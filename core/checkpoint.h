/*
 * checkpoint.h - what a language model lies in: a directory in the Hugging Face layout, or one GGUF
 * file. Behind these functions nothing knows which.
 */
#pragma once

#include "core/json.h"
#include "core/safetensors.h"

/* Is the model a file, and so a GGUF file? */
bool checkpoint_is_gguf(const char *model);

/* The JSON file `name` (of at most max bytes) of a checkpoint. In the place of config.json,
 * tokenizer.json and the chat template of tokenizer_config.json stands what a GGUF file says of
 * them. *out = NULL where it is not there. where
 * [CHECKPOINT_PATH] receives its path for messages. */
#define CHECKPOINT_PATH 4096
int checkpoint_json(const char *model, const char *name, size_t max, char *where, json_t **out,
                    struct err *err);

/* The tensors. */
int checkpoint_weights(const char *model, struct st_file **out, struct err *err);

/* The model's own name. GGUF: the file's name without the type of the weights, else general.name,
 * which is often that of a training run. Directory: the last part of _name_or_path in config.json,
 * else its own name ("." and ".." are resolved). Where these say nothing ("hf", "model", a hash):
 * the name in the hub's cache, else the class. */
void checkpoint_name(const char *model, char *name, size_t size);

/* Types of the tensors and how many there are of each, the most frequent first: "Q4_1 (210), F32
 * (61)". */
void checkpoint_types(const struct st_file *weights, char *text, size_t size);
