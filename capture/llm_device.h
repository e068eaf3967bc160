/*
 * llm_device.h - the forward pass of llm_model.h on a device (core/decoder.h).
 */
#ifndef LACUNA_LLM_DEVICE_H
#define LACUNA_LLM_DEVICE_H

#include "capture/llm_model.h"

/* As llm_forward for run->device. last_logits must be NULL. */
int llm_forward_device(struct llm_model *m, const struct llm_run *run,
                       const struct llm_hooks *hooks, struct err *err);

/* Open the device for sequences of up to n tokens of the model; states and kept as in
 * decoder_shape. Nothing is said against a model that it lacks something for (llm_device_lacks). */
int llm_device_open(const struct llm_model *m, const struct decoder_accel *on, int local_rank,
                    int64_t n, int states, int kept, struct decoder **out, struct err *err);

/* Bytes of host memory that it allocates for n tokens. */
int64_t llm_device_bytes(const struct llm_config *c, int64_t n, int64_t pool);

#endif
