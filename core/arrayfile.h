/*
 * arrayfile.h - named arrays of whole numbers in files of other programs: .npy, .npz, .safetensors.
 * The file's first bytes say which it is.
 */
#pragma once

#include "core/dtype.h"
#include "core/err.h"

#include <stdint.h>

#define ARRAY_DIMS 8

struct array_at {
    const char *name; /* borrowed; of a .npy file its own name without folder and ending */
    enum dtype dtype; /* DT_NONE: something else than numbers or booleans */
    int ndim;
    int64_t shape[ARRAY_DIMS], count;
    int64_t index; /* in its file */
};

struct array_file;

int array_file_open(const char *path, struct array_file **out, struct err *err);
void array_file_close(struct array_file **f);

int64_t array_file_count(const struct array_file *f);
const struct array_at *array_file_at(const struct array_file *f, int64_t i);

/* "[8][512][512]" */
void array_shape_text(const struct array_at *a, char text[160]);

/* Elements [first, first + n) in row-major order of an integer or boolean array. Thread-safe.
 * Anything else, or an array in Fortran order, is ERR_INPUT naming file and array. */
int array_read_i64(const struct array_file *f, const struct array_at *a, int64_t first, int64_t n,
                   int64_t *dst, struct err *err);

/* The same of a boolean array or of integers that are 0 or 1, as bytes. */
int array_read_bool(const struct array_file *f, const struct array_at *a, int64_t first, int64_t n,
                    uint8_t *dst, struct err *err);
