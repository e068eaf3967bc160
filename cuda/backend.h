/*
 * backend.h - the CUDA back end behind the interfaces of core/accel.h, core/decoder.h and
 * core/denoiser.h.
 */
#pragma once

#include "core/accel.h"
#include "core/denoiser.h"

extern const struct accel cuda_accel;
extern const struct decoder_accel cuda_decoder;
extern const struct denoiser_accel cuda_denoiser;

/* For `lacuna list kernels` and `gpus` (core/cmd.h). */
int cuda_list_kernels(struct jw *w, struct err *err);
int cuda_list_gpus(struct jw *w, struct err *err);
