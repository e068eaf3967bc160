/*
 * backend.h - the CUDA back end behind the interfaces of core/accel.h and core/decoder.h.
 */
#ifndef LACUNA_BACKEND_H
#define LACUNA_BACKEND_H

#include "core/decoder.h"
#include "core/accel.h"

extern const struct accel cuda_accel;
extern const struct decoder_accel cuda_decoder;

/* For `lacuna list kernels` and `gpus` (core/cmd.h). */
int cuda_list_kernels(struct jw *w, struct err *err);
int cuda_list_gpus(struct jw *w, struct err *err);

#endif
