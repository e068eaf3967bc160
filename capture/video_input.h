/*
 * video_input.h - what a video diffusion transformer starts from (size, text embeddings, noise,
 * schedule), its sampler, and clips as pictures.
 */
#pragma once

#include "capture/wan_config.h"
#include "core/err.h"
#include "core/opt.h"

#include <stdint.h>

/* As users say it. */
struct video_ask {
    const char *who;               /* the command, for messages */
    const char *model;             /* directory */
    char *size;                    /* "16x256x384": frames x height x width of the latent */
    char *text, *negative, *noise; /* files, NULL: the model's prompts; zeros; from the seed */
    int64_t prompt_index, steps;
    double shift, guidance;
    uint64_t seed;
};

/* Entries of an option table over S, whose member `video` is a struct video_ask. */
#define VIDEO_INPUT_OPTS(S)                                                                        \
    OPT_AS("steps", OPT_INT, S, video.steps, "50", .min = 1, .max = 10000, .unit = "steps",        \
           .help = "denoising steps.", .only = "video models", .arg = "N"),                        \
        OPT_AS("shift", OPT_NUM, S, video.shift, "5", .min = 0, .max = 1000,                       \
               .help = "timestep shift of the schedule.", .only = "video models",                  \
               .flags = OPT_MIN_OPEN, .arg = "X"),                                                 \
        OPT_AS("text", OPT_STR, S, video.text, NULL, .arg = "FILE", .only = "video models",        \
               .help = "text embeddings, .safetensors (tensor text) or .npy; default "             \
                       "DIR/prompts.safetensors."),                                                \
        OPT_AS("prompt-index", OPT_INT, S, video.prompt_index, "0", .min = 0, .max = 1e6,          \
               .help = "which of the stacked text embeddings.", .only = "video models",            \
               .arg = "N"),                                                                        \
        OPT_AS("negative", OPT_STR, S, video.negative, NULL, .arg = "FILE",                        \
               .only = "video models",                                                             \
               .help = "text embeddings of the unconditional branch; default zeros. With "         \
                       "--guidance."),                                                             \
        OPT_AS("guidance", OPT_NUM, S, video.guidance, "1", .min = 0, .max = 100,                  \
               .help = "classifier-free guidance; above 1 every step runs the branches cond and "  \
                       "uncond.",                                                                  \
               .only = "video models", .arg = "X"),                                                \
        OPT_AS("noise", OPT_STR, S, video.noise, NULL, .arg = "FILE", .only = "video models",      \
               .help = "starting noise, .safetensors (tensor noise) or .npy, instead of --seed.")

struct video_input {
    int64_t t, h, w, size, grid[3]; /* latent size, values in it, token grid */
    float *x;                       /* [channels][t][h][w]: the noise, later the sample; owned */
    float *text, *negative;         /* [n_text][text_dim], owned; negative NULL without guidance */
    int64_t n_text, branches;       /* branches 2: with guidance */
    double *sigma;                  /* [steps + 1], owned */
};

/* Everything but the noise. ERR_USAGE and ERR_INPUT name option or file. */
int video_input_open(const struct wan_config *c, const struct video_ask *a, struct video_input *in,
                     struct err *err);
void video_input_close(struct video_input *in);

/* in->x. */
int video_input_noise(const struct wan_config *c, const struct video_ask *a, struct video_input *in,
                      struct err *err);

/* ---- the sampler ---------------------------------------------------------------------------- */

/* The rectified-flow Euler sampler with timestep shift (Esser et al., arXiv 2403.03206; Wan 2.1
 * uses shift 3 to 5):
 *
 *   u_i = 1 - i/S    sigma_i = shift u_i / (1 + (shift - 1) u_i)    timestep_i = 1000 sigma_i
 *   x <- x + (sigma_{i+1} - sigma_i) v(x, timestep_i)
 */

/* sigma [steps + 1], from 1 down to 0. */
void flow_sigmas(int64_t steps, double shift, double *sigma);

/* One Euler step of n values. */
void flow_step(float *x, const float *v, int64_t n, double sigma, double sigma_next);

/* v <- v_uncond + guidance (v - v_uncond): classifier-free guidance. */
void flow_guide(float *v, const float *v_uncond, int64_t n, double guidance);

/* ---- frames --------------------------------------------------------------------------------- */

/* Write DIR/frame-000.png ... from x [3][t][h][w], RGB in [-1, 1] (clamped). DIR is created. */
int frames_write(const char *dir, const float *x, int64_t t, int64_t h, int64_t w, struct err *err);
