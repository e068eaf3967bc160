#include "cuda/values.h"

#include <math.h>

int values_exponent(const float *v, int64_t n)
{
    float most = 0;
    int e;

    for (int64_t i = 0; i < n; i++)
        if (isfinite(v[i]) && fabsf(v[i]) > most)
            most = fabsf(v[i]);
    frexpf(most, &e);
    return most > 0 && (e > VALUES_EXPONENT || e <= -VALUES_EXPONENT) ? e : 0;
}

void values_scale(const float *v, int64_t n, int e, float *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = ldexpf(v[i], -e);
}
