/*
 * rope.h - rotary position embedding (Su et al., arXiv 2104.09864) in the half-split layout of
 * Llama-family models, with the scalings of long-context checkpoints.
 *
 *   theta_i = base^(-2i/d), scaled by type:
 *   linear  theta / factor                                   (Chen et al., arXiv 2306.15595)
 *   llama3  theta / factor for wavelengths above old/low, unchanged below old/high, a linear blend
 * of both between                                     (Llama 3.1) yarn    blend over channels
 * between theta / factor and theta, cos and sin times the attention factor (Peng et al., arXiv
 * 2309.00071)
 */
#ifndef LACUNA_ROPE_H
#define LACUNA_ROPE_H

#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

enum rope_type { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN };

struct rope_config {
    enum rope_type type;
    double theta, factor;
    double low_freq_factor, high_freq_factor;    /* llama3 */
    double original_max;                         /* positions before scaling: llama3, yarn */
    double beta_fast, beta_slow;                 /* yarn */
    double attention_factor, mscale, mscale_all; /* yarn; NAN = not given */
    bool truncate;                               /* yarn: whole channels at the ramp's ends */
};

/* inv_freq [d / 2]; returns the factor on cos and sin (1 except yarn). */
double rope_frequencies(const struct rope_config *c, int d, double *inv_freq);

/* Rotate x [n][heads][d] of tokens pos0 .. pos0 + n - 1 in place: channels (i, i + d/2) by angle
 * pos * inv_freq[i]. */
void rope_apply(float *x, int64_t n, int heads, int d, int64_t pos0, const double *inv_freq,
                double factor);

#endif
