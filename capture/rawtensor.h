/*
 * rawtensor.h - tensors of a checkpoint as a device takes them (core/decoder.h).
 */
#ifndef LACUNA_RAWTENSOR_H
#define LACUNA_RAWTENSOR_H

#include "core/decoder.h"
#include "core/safetensors.h"

/* Read a tensor: F32, BF16 and F16 as stored, any other type as float32. Its first dimension are
 * the rows, all others the columns. out->data is owned: raw_tensor_free. */
int raw_tensor_read(const struct st_file *file, const struct st_tensor *t,
                    struct decoder_tensor *out, struct err *err);
void raw_tensor_free(struct decoder_tensor *t);

#endif
