/*
 * flow.h - the rectified-flow Euler sampler with timestep shift (Esser et al., arXiv 2403.03206;
 * Wan 2.1 uses shift 3 to 5):
 *
 *   u_i = 1 - i/S    sigma_i = shift u_i / (1 + (shift - 1) u_i)    timestep_i = 1000 sigma_i
 *   x <- x + (sigma_{i+1} - sigma_i) v(x, timestep_i)
 */
#ifndef LACUNA_FLOW_H
#define LACUNA_FLOW_H

#include <stdint.h>

/* sigma [steps + 1], from 1 down to 0. */
void flow_sigmas(int64_t steps, double shift, double *sigma);

/* One Euler step of n values. */
void flow_step(float *x, const float *v, int64_t n, double sigma, double sigma_next);

/* v <- v_uncond + guidance (v - v_uncond): classifier-free guidance. */
void flow_guide(float *v, const float *v_uncond, int64_t n, double guidance);

#endif
