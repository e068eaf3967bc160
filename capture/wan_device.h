/*
 * wan_device.h - the evaluations of wan_model.h on a device (core/denoiser.h).
 */
#ifndef LACUNA_WAN_DEVICE_H
#define LACUNA_WAN_DEVICE_H

#include "capture/wan_model.h"

struct wan_device;

/* What runs there, and its size. Strings and structs are borrowed. */
struct wan_device_ask {
    const struct denoiser_accel *on;
    int local_rank;
    int64_t size[3]; /* of the latent: frames, height, width */
    int64_t n_text;  /* tokens of the text */
    bool bf16;       /* as in struct denoiser_shape */
};

/* Put the model's weights on the device; from now on wan_forward runs there, with inputs of this
 * size, until wan_close. Errors begin with the option --device. */
int wan_device_open(struct wan_model *m, const struct wan_device_ask *ask, struct err *err);
void wan_device_close(struct wan_device **d);

/* As wan_forward, of a model with a device. */
int wan_device_forward(struct wan_model *m, const struct wan_input *in,
                       const struct wan_hooks *hooks, float *v, struct err *err);

/* Times of the parts of one evaluation, after one (denoiser_accel.time). */
int wan_device_time(struct wan_model *m, int samples, struct denoiser_times *t, struct err *err);

/* Time that the device has worked so far, in seconds. */
double wan_device_seconds(const struct wan_device *d);

/* Bytes of host memory that it takes, with maps in cells of pool (0: none). */
int64_t wan_device_bytes(const struct wan_config *c, int64_t tokens, int64_t pool);

#endif
