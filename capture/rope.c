/*
 * rope.c - frequencies of every scaling and the rotation itself (llm_config.h). Frequencies and
 * angles are carried in double; implementations that multiply them in float32 differ by up to 5e-7
 * of the angle.
 */
#include "capture/llm_config.h"

#include <math.h>

#define PI 3.14159265358979323846

static double llama3(const struct rope_config *c, double inv)
{
    double wavelength = 2 * PI / inv;
    if (wavelength < c->original_max / c->high_freq_factor)
        return inv;
    if (wavelength > c->original_max / c->low_freq_factor)
        return inv / c->factor;
    double smooth = (c->original_max / wavelength - c->low_freq_factor) /
                    (c->high_freq_factor - c->low_freq_factor);
    return (1 - smooth) * inv / c->factor + smooth * inv;
}

/* Channel pair whose wavelength turns `rotations` times over the original length. */
static double yarn_channel(const struct rope_config *c, int d, double rotations)
{
    return d * log(c->original_max / (rotations * 2 * PI)) / (2 * log(c->theta));
}

static void yarn(const struct rope_config *c, int d, double *inv)
{
    double low = yarn_channel(c, d, c->beta_fast), high = yarn_channel(c, d, c->beta_slow);
    if (c->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, d - 1);
    if (low == high)
        high += 0.001;
    for (int i = 0; i < d / 2; i++) {
        double ramp = fmin(fmax((i - low) / (high - low), 0), 1);
        inv[i] = inv[i] / c->factor * ramp + inv[i] * (1 - ramp);
    }
}

static double yarn_mscale(double scale, double m)
{
    return scale <= 1 ? 1 : 0.1 * m * log(scale) + 1;
}

static double yarn_factor(const struct rope_config *c)
{
    if (!isnan(c->attention_factor))
        return c->attention_factor;
    bool both = !isnan(c->mscale) && !isnan(c->mscale_all) && c->mscale != 0 && c->mscale_all != 0;
    return both ? yarn_mscale(c->factor, c->mscale) / yarn_mscale(c->factor, c->mscale_all)
                : yarn_mscale(c->factor, 1);
}

/* Beyond the trained length the base grows with the prompt (NTK-aware, as of transformers). */
static double dynamic_base(const struct rope_config *c, int d)
{
    double ratio = (double)c->tokens / c->original_max;
    if (c->type != ROPE_DYNAMIC || ratio <= 1)
        return c->theta;
    return c->theta * pow(c->factor * ratio - (c->factor - 1), d / (d - 2.0));
}

static double long_factor(const struct rope_config *c)
{
    if (!isnan(c->attention_factor))
        return c->attention_factor;
    return c->factor <= 1 ? 1 : sqrt(1 + log(c->factor) / log(c->original_max));
}

double rope_frequencies(const struct rope_config *c, int d, double *inv_freq)
{
    double base = dynamic_base(c, d);
    const double *by = (double)c->tokens > c->original_max ? c->long_factor : c->short_factor;
    for (int i = 0; i < d / 2; i++) {
        double inv = pow(base, -2.0 * i / d);
        inv_freq[i] = c->type == ROPE_LINEAR   ? inv / c->factor
                      : c->type == ROPE_LLAMA3 ? llama3(c, inv)
                      : c->type == ROPE_LONG   ? inv / by[i]
                                               : inv;
    }
    if (c->type == ROPE_LONG)
        return long_factor(c);
    if (c->type != ROPE_YARN)
        return 1;
    yarn(c, d, inv_freq);
    return yarn_factor(c);
}

void rope_apply(float *x, int64_t n, int heads, int d, int64_t pos0, const double *inv_freq,
                double factor)
{
    rope_apply_part(x, n, heads, d, (struct rope_layout){d, false}, pos0, inv_freq, factor);
}

void rope_apply_part(float *x, int64_t n, int heads, int d, struct rope_layout how, int64_t pos0,
                     const double *inv_freq, double factor)
{
    int half = how.rotated / 2, step = how.interleaved ? 2 : 1, to = how.interleaved ? 1 : half;
    for (int64_t t = 0; t < n; t++)
        for (int i = 0; i < half; i++) {
            double a = (double)(pos0 + t) * inv_freq[i];
            float c = (float)(cos(a) * factor), s = (float)(sin(a) * factor);
            for (int h = 0; h < heads; h++) {
                float *p = x + (t * heads + h) * d + step * i;
                float u = p[0], w = p[to];
                p[0] = u * c - w * s;
                p[to] = w * c + u * s;
            }
        }
}
