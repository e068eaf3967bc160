/*
 * quant.c - group-wise integer quantisation and per-channel e4m3, see quant.h. O(n d).
 */
#include "sim/blocks/quant.h"
#include "core/intmath.h"
#include "core/mem.h"

#include <math.h>
#include <stdlib.h>

int64_t quant_group_count(const struct quant_groups *g, int64_t n)
{
    int64_t blocks = g->block > 0 ? ceil_div(n, g->block) : 1;
    switch (g->gran) {
    case OWN_BY_TENSOR:
        return 1;
    case OWN_BY_BLOCK:
        return blocks;
    case OWN_BY_WARP:
        return g->keys ? blocks : blocks * (g->block / g->warp);
    case OWN_BY_THREAD:
        return g->keys ? 4 * blocks : 8 * blocks * (g->block / g->warp);
    case OWN_BY_TOKEN:
        return n;
    }
    return 0;
}

int64_t quant_group_of(const struct quant_groups *g, int64_t t)
{
    switch (g->gran) {
    case OWN_BY_TENSOR:
        return 0;
    case OWN_BY_BLOCK:
        return t / g->block;
    case OWN_BY_WARP:
        return g->keys ? t / g->block : t / g->warp;
    case OWN_BY_THREAD:
        return g->keys ? t / g->block * 4 + t % 8 / 2 : t / g->warp * 8 + t % 8;
    case OWN_BY_TOKEN:
        return t;
    }
    return 0;
}

float quant_delta(enum own_round r, int levels, float amax)
{
    switch (r) {
    case OWN_RHA_EPS:
        return amax / (float)levels + 1e-7f;
    case OWN_RHA:
        return amax / (float)levels;
    case OWN_RNE:
        return (amax > 1e-7f ? amax : 1e-7f) / (float)levels;
    }
    return 0;
}

int32_t quant_value(enum own_round r, int levels, float amax, float x)
{
    if (amax == 0)
        return 0;
    float y;
    if (r == OWN_RNE)
        y = rintf(x * ((float)levels / (amax > 1e-7f ? amax : 1e-7f)));
    else
        y = truncf(x / quant_delta(r, levels, amax) + copysignf(0.5f, x));
    float top = (float)levels;
    return (int32_t)(y > top ? top : y < -top ? -top : y);
}

static void group_maxima(const float *x, int64_t n, int d, const struct quant_groups *g,
                         float *amax)
{
    for (int64_t t = 0; t < n; t++) {
        const float *row = x + t * d;
        float a = 0;
        for (int c = 0; c < d; c++)
            a = fmaxf(a, fabsf(row[c]));
        float *m = &amax[quant_group_of(g, t)];
        *m = fmaxf(*m, a);
    }
}

int quant_int(struct quant *out, const float *x, int64_t n, int d, const struct quant_groups *g,
              int levels, enum own_round r, struct err *err)
{
    OWN(quant_free) struct quant q = {n, d, levels, *g, quant_group_count(g, n), NULL, NULL, NULL};
    PASS_ON(mem_alloc(&q.q, n * d, sizeof *q.q, "quantised operand", err));
    PASS_ON(mem_zalloc(&q.amax, q.n_groups, sizeof *q.amax, "quantisation maxima", err));
    PASS_ON(mem_alloc(&q.scale, q.n_groups, sizeof *q.scale, "quantisation scales", err));

    group_maxima(x, n, d, g, q.amax);
    for (int64_t i = 0; i < q.n_groups; i++)
        q.scale[i] = quant_delta(r, levels, q.amax[i]);
    for (int64_t t = 0; t < n; t++) {
        float amax = q.amax[quant_group_of(g, t)];
        for (int c = 0; c < d; c++)
            q.q[t * d + c] = (int8_t)quant_value(r, levels, amax, x[t * d + c]);
    }
    *out = HAND_OVER(q);
    return 0;
}

void quant_free(struct quant *q)
{
    free(q->q);
    free(q->amax);
    free(q->scale);
    memset(q, 0, sizeof *q);
}

void quant_channels_e4m3(const float *v, int64_t n, int dv, float v_max, float *out, float *scale)
{
    for (int c = 0; c < dv; c++)
        scale[c] = 0;
    for (int64_t t = 0; t < n; t++)
        for (int c = 0; c < dv; c++)
            scale[c] = fmaxf(scale[c], fabsf(v[t * dv + c]));
    for (int64_t t = 0; t < n; t++)
        for (int c = 0; c < dv; c++)
            out[t * dv + c] = scale[c] > 0 ? e4m3_round(v[t * dv + c] * (v_max / scale[c])) : 0;
    for (int c = 0; c < dv; c++)
        scale[c] /= v_max;
}
