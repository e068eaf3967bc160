/*
 * arrays.h - a float array from a .npy file or from one tensor of a .safetensors file.
 */
#ifndef LACUNA_ARRAYS_H
#define LACUNA_ARRAYS_H

#include "core/err.h"
#include "core/safetensors.h"

#include <stdint.h>

struct array {
    float *data; /* [count], owned */
    int ndim;
    int64_t shape[ST_MAX_DIMS], count;
    char text[128]; /* "[4][8][32]", for messages */
};

/* By the file's ending; `tensor` names the tensor of a .safetensors file. Release with array_free.
 */
int array_load(const char *path, const char *tensor, struct array *a, struct err *err);
void array_free(struct array *a);

#endif
