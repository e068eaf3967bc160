/*
 * rope.h - rotary position embedding (Su et al., arXiv 2104.09864) in the half-split layout of
 * Llama-family models or the interleaved one of GLM, with the scalings of long-context checkpoints.
 *
 *   theta_i = base^(-2i/d), scaled by type:
 *   linear  theta / factor                                   (Chen et al., arXiv 2306.15595)
 *   llama3  theta / factor for wavelengths above old/low, unchanged below old/high, a linear blend
 * of both between                                     (Llama 3.1) yarn    blend over channels
 * between theta / factor and theta, cos and sin times the attention factor (Peng et al., arXiv
 * 2309.00071)
 *   dynamic a larger base beyond the trained length, for all positions of the prompt
 *   long    theta / factor_i, one factor per channel, another set beyond the trained length
 *                                                            (LongRoPE, arXiv 2402.13753)
 */
#ifndef LACUNA_ROPE_H
#define LACUNA_ROPE_H

#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

enum rope_type { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN, ROPE_DYNAMIC, ROPE_LONG };

#define ROPE_CHANNELS_MAX 512 /* half of the largest head dim */

struct rope_config {
    enum rope_type type;
    double theta, factor;
    double low_freq_factor, high_freq_factor;    /* llama3 */
    double original_max;                         /* positions before scaling: llama3, yarn */
    double beta_fast, beta_slow;                 /* yarn */
    double attention_factor, mscale, mscale_all; /* yarn; NAN = not given */
    bool truncate;                               /* yarn: whole channels at the ramp's ends */
    int64_t tokens;                              /* of the prompt: dynamic, long */
    double short_factor[ROPE_CHANNELS_MAX], long_factor[ROPE_CHANNELS_MAX]; /* long */
};

/* inv_freq [d / 2]; returns the factor on cos and sin (1 except yarn and long). */
double rope_frequencies(const struct rope_config *c, int d, double *inv_freq);

/* Rotate x [n][heads][d] of tokens pos0 .. pos0 + n - 1 in place: channels (i, i + d/2) by angle
 * pos * inv_freq[i]. */
void rope_apply(float *x, int64_t n, int heads, int d, int64_t pos0, const double *inv_freq,
                double factor);

/* The same on the first `rotated` channels of each head; interleaved: channels (2 i, 2 i + 1). */
struct rope_layout {
    int rotated;
    bool interleaved;
};
void rope_apply_part(float *x, int64_t n, int heads, int d, struct rope_layout how, int64_t pos0,
                     const double *inv_freq, double factor);

#endif
