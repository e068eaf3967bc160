#include "capture/flow.h"

void flow_sigmas(int64_t steps, double shift, double *sigma)
{
    for (int64_t i = 0; i <= steps; i++) {
        double u = 1 - (double)i / (double)steps;
        sigma[i] = shift * u / (1 + (shift - 1) * u);
    }
}

void flow_step(float *x, const float *v, int64_t n, double sigma, double sigma_next)
{
    float dt = (float)(sigma_next - sigma);
    for (int64_t i = 0; i < n; i++)
        x[i] += dt * v[i];
}

void flow_guide(float *v, const float *v_uncond, int64_t n, double guidance)
{
    for (int64_t i = 0; i < n; i++)
        v[i] = v_uncond[i] + (float)guidance * (v[i] - v_uncond[i]);
}
