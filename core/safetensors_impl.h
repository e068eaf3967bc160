/*
 * safetensors_impl.h - what the parts of the safetensors reader and writer share.
 */
#ifndef LACUNA_SAFETENSORS_IMPL_H
#define LACUNA_SAFETENSORS_IMPL_H

#include "core/json.h"
#include "core/safetensors.h"

struct shard {
    char *path;
    int fd;
    int64_t size, data; /* bytes of the file, offset of its data */
    json_t *metadata;   /* owned: strings; or NULL */
};

struct st_file {
    char *path; /* what the caller opened, for messages */
    struct shard *shards;
    int64_t n_shards;
    struct st_tensor *tensors; /* sorted by name; names are owned */
    int64_t n, cap;
};

/* An empty st_file with room for `shards` files. */
int st_new(const char *path, int64_t shards, struct st_file **out, struct err *err);

/* Open one file, check it and append its tensors. */
int st_add_file(struct st_file *f, const char *path, struct err *err);

/* Sort the tensors by name; a name in two shards is refused. Call once after the last file. */
int st_sort(struct st_file *f, struct err *err);

/* Name of a type in the format, NULL for DT_NONE. */
const char *st_type_name(enum dtype t);

#endif
