/*
 * safetensors.h - reader for one .safetensors file or a sharded checkpoint (index.json).
 *
 * Strict: every violation of the format (see the tests) is ERR_INPUT naming file and tensor. Data
 * is read with pread, so a file larger than memory can be used.
 */
#pragma once

#include "core/dtype.h"
#include "core/err.h"
#include "core/json.h"

#include <stdint.h>

#define ST_MAX_DIMS 8

/* Numbers that other formats store in blocks, at most ST_BLOCK_MAX of them in one. */
#define ST_BLOCK_MAX 256
struct st_blocks {
    int count, bytes; /* of a block */
    void (*decode)(const uint8_t *block, float *out);
};

struct st_tensor {
    const char *name;
    enum dtype dtype; /* DT_NONE for a known safetensors type that lacuna cannot convert */
    const struct st_blocks *blocks; /* else NULL; dtype is then DT_F32, and reading decodes */
    char dtype_text[16];
    int ndim;
    int64_t shape[ST_MAX_DIMS];
    int64_t count, bytes; /* elements, bytes */
    int shard;
    int64_t offset; /* in its shard file */
};

struct st_file;

/* Open one file. */
int st_open(const char *path, struct st_file **out, struct err *err);

/* Open several files as one; of a name that ends in .index.json the files that it names. A tensor
 * in two of them is ERR_INPUT. */
int st_open_all(const char *const *paths, int64_t n, struct st_file **out, struct err *err);

/* Open a checkpoint directory: model.safetensors.index.json or model.safetensors (the latter where
 * both are there), or the same with `stem` instead of "model" (diffusers:
 * "diffusion_pytorch_model"). */
int st_open_dir(const char *dir, const char *stem, struct st_file **out, struct err *err);

/* A file of another format, with n tensors that the caller found in its header; their names are
 * copied. A tensor beyond the file, two that overlap and a name that occurs twice are ERR_INPUT. */
int st_adopt(const char *path, const struct st_tensor *tensors, int64_t n, struct st_file **out,
             struct err *err);

void st_close(struct st_file **f);
int64_t st_count(const struct st_file *f);
const struct st_tensor *st_at(const struct st_file *f, int64_t i);          /* sorted by name */
const struct st_tensor *st_find(const struct st_file *f, const char *name); /* NULL if absent */

/* The text of a key of "__metadata__", borrowed; *value = NULL: no file has it. Files that
 * contradict each other are ERR_INPUT. */
int st_metadata(const struct st_file *f, const char *key, const char **value, struct err *err);

/* Like st_find but fails with ERR_INPUT naming the directory, the tensor and, when dims are given
 * (ndim >= 0), the expected and found shape. */
int st_require(const struct st_file *f, const char *name, int ndim, const int64_t *shape,
               const struct st_tensor **out, struct err *err);

/* Elements [first, first+n) of a tensor as float32 / as stored (blocks: as float32). */
int st_read_f32(const struct st_file *f, const struct st_tensor *t, int64_t first, int64_t n,
                float *dst, struct err *err);
int st_read_raw(const struct st_file *f, const struct st_tensor *t, int64_t first, int64_t n,
                void *dst, struct err *err);
/* Elements of an integer tensor (I8..I64, U8..U32, BOOL) as int64. */
int st_read_i64(const struct st_file *f, const struct st_tensor *t, int64_t first, int64_t n,
                int64_t *dst, struct err *err);

/* Content id of the checkpoint: XXH3-128 over names, dtypes, shapes and data of all tensors in name
 * order, as "xxh3:...". Reads everything once. */
int st_content_id(const struct st_file *f, char text[40], struct err *err);

/* Write float32 / bf16 / ... tensors: used by `trace export`. data[i] are in the tensors' dtype. */
struct st_out {
    const char *name;
    enum dtype dtype;
    int ndim;
    int64_t shape[ST_MAX_DIMS];
    const void *data;
};
int st_write(const char *path, const struct st_out *tensors, int64_t n, struct err *err);

/* The same with "__metadata__": a JSON object whose values are strings, or NULL. */
int st_write_meta(const char *path, const struct st_out *tensors, int64_t n, const json_t *meta,
                  struct err *err);
