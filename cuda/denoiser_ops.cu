/*
 * denoiser_ops.cu - see denoiser_ops.h. All of these are bound by memory.
 */
#include "cuda/denoiser_ops.h"

#include "cuda/decoder_ops.cuh"

/* ---- patches -------------------------------------------------------------------------------- */

static __device__ __forceinline__ int64_t patch_values(const ops_grid &l)
{
    return l.channels * l.patch[0] * l.patch[1] * l.patch[2];
}

/* Where the value (channel, frame, row, column) of a token's patch lies in the latent. */
static __device__ __forceinline__ int64_t pixel(const ops_grid &l, int64_t token, int64_t ch,
                                                int64_t dt, int64_t dh, int64_t dw)
{
    int64_t t = token / (l.grid[1] * l.grid[2]) * l.patch[0] + dt;
    int64_t h = token / l.grid[2] % l.grid[1] * l.patch[1] + dh;
    int64_t w = token % l.grid[2] * l.patch[2] + dw;
    return ((ch * l.size[0] + t) * l.size[1] + h) * l.size[2] + w;
}

/* A block per token. */
static __global__ void gather_patches(const float *x, const ops_grid l, int64_t tok0, int terms,
                                      __nv_bfloat16 *out)
{
    int64_t values = patch_values(l);
    __nv_bfloat16 *to = out + blockIdx.x * values * terms;
    for (int64_t i = threadIdx.x; i < values; i += THREADS) {
        int64_t dw = i % l.patch[2], dh = i / l.patch[2] % l.patch[1];
        int64_t dt = i / (l.patch[2] * l.patch[1]) % l.patch[0];
        int64_t ch = i / (l.patch[2] * l.patch[1] * l.patch[0]);
        put_split(to, values, i, terms, x[pixel(l, tok0 + blockIdx.x, ch, dt, dh, dw)]);
    }
}

extern "C" int ops_patches(struct gpu *g, const float *x, const struct ops_grid *l, int64_t tok0,
                           int64_t n, int terms, void *out, struct err *err)
{
    gather_patches<<<(unsigned)n, THREADS, 0, g->stream>>>(x, *l, tok0, terms,
                                                           (__nv_bfloat16 *)out);
    return LAUNCH_STATUS(err);
}

static __global__ void scatter_pixels(const float *rows, const float *bias, const ops_grid l,
                                      int64_t tok0, float *x)
{
    int64_t values = patch_values(l);
    const float *from = rows + blockIdx.x * values;
    for (int64_t i = threadIdx.x; i < values; i += THREADS) {
        int64_t ch = i % l.channels, dw = i / l.channels % l.patch[2];
        int64_t dh = i / (l.channels * l.patch[2]) % l.patch[1];
        int64_t dt = i / (l.channels * l.patch[2] * l.patch[1]);
        x[pixel(l, tok0 + blockIdx.x, ch, dt, dh, dw)] = from[i] + bias[i];
    }
}

extern "C" int ops_pixels(struct gpu *g, const float *rows, const float *bias,
                          const struct ops_grid *l, int64_t tok0, int64_t n, float *x,
                          struct err *err)
{
    scatter_pixels<<<(unsigned)n, THREADS, 0, g->stream>>>(rows, bias, *l, tok0, x);
    return LAUNCH_STATUS(err);
}

/* ---- rows ----------------------------------------------------------------------------------- */

static __global__ void layer_norm(const float *x, int64_t d, const float *w, const float *b,
                                  float eps, int terms, __nv_bfloat16 *out)
{
    const float *row = x + blockIdx.x * d;
    __nv_bfloat16 *to = out + blockIdx.x * d * terms;
    float sum = 0, sq = 0;
    for (int64_t c = threadIdx.x; c < d; c += THREADS)
        sum += row[c];
    float mean = block_sum(sum) / (float)d;
    for (int64_t c = threadIdx.x; c < d; c += THREADS)
        sq += (row[c] - mean) * (row[c] - mean);
    float inv = 1 / sqrtf(block_sum(sq) / (float)d + eps);
    for (int64_t c = threadIdx.x; c < d; c += THREADS)
        put_split(to, d, c, terms, (row[c] - mean) * inv * w[c] + b[c]);
}

extern "C" int ops_layer_norm(struct gpu *g, const float *x, int64_t n, int64_t d, const float *w,
                              const float *b, double eps, int terms, void *out, struct err *err)
{
    layer_norm<<<(unsigned)n, THREADS, 0, g->stream>>>(x, d, w, b, (float)eps, terms,
                                                       (__nv_bfloat16 *)out);
    return LAUNCH_STATUS(err);
}

static __device__ __forceinline__ float apply(enum ops_function f, float x)
{
    if (f == OPS_SILU)
        return x / (1 + expf(-x));
    return x / (1 + expf(-1.5957691216057308f * (x + 0.044715f * x * x * x)));
}

static __global__ void activate(const float *y, int64_t d, const float *bias, enum ops_function f,
                                int terms, __nv_bfloat16 *out)
{
    const float *row = y + blockIdx.x * d;
    __nv_bfloat16 *to = out + blockIdx.x * d * terms;
    for (int64_t c = threadIdx.x; c < d; c += THREADS)
        put_split(to, d, c, terms, apply(f, row[c] + (bias ? bias[c] : 0)));
}

extern "C" int ops_activate(struct gpu *g, const float *y, int64_t n, int64_t d, const float *bias,
                            enum ops_function f, int terms, void *out, struct err *err)
{
    activate<<<(unsigned)n, THREADS, 0, g->stream>>>(y, d, bias, f, terms, (__nv_bfloat16 *)out);
    return LAUNCH_STATUS(err);
}

static __global__ void add_gated(float *h, const float *y, int64_t d, const float *bias,
                                 const float *gate)
{
    float *to = h + blockIdx.x * d;
    const float *row = y + blockIdx.x * d;
    for (int64_t c = threadIdx.x; c < d; c += THREADS)
        to[c] += gate ? gate[c] * (row[c] + bias[c]) : row[c] + bias[c];
}

extern "C" int ops_add_gated(struct gpu *g, float *h, const float *y, int64_t n, int64_t d,
                             const float *bias, const float *gate, struct err *err)
{
    add_gated<<<(unsigned)n, THREADS, 0, g->stream>>>(h, y, d, bias, gate);
    return LAUNCH_STATUS(err);
}

static __global__ void modulation(const float *table, const float *e, bool e_is_row, int64_t n,
                                  int64_t d, unsigned scales, float *out)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n)
        out[i] = table[i] + e[e_is_row ? i % d : i] + (float)(scales >> (i / d) & 1);
}

extern "C" int ops_modulation(struct gpu *g, const float *table, const float *e, bool e_is_row,
                              int rows, int64_t d, unsigned scales, float *out, struct err *err)
{
    modulation<<<blocks_of(rows * d), THREADS, 0, g->stream>>>(table, e, e_is_row, rows * d, d,
                                                               scales, out);
    return LAUNCH_STATUS(err);
}

/* ---- heads ---------------------------------------------------------------------------------- */

/* cos and sin for pair p of a head of token `token`. */
static __device__ __forceinline__ float2 turn(const ops_wide &w, int64_t token, int64_t p)
{
    int64_t pos[3] = {token / (w.grid[1] * w.grid[2]), token / w.grid[2] % w.grid[1],
                      token % w.grid[2]};
    int axis = p < w.pairs[0] ? 0 : p < w.pairs[0] + w.pairs[1] ? 1 : 2;
    p -= axis == 0 ? 0 : axis == 1 ? w.pairs[0] : w.pairs[0] + w.pairs[1];
    return ((const float2 *)w.table[axis])[pos[axis] * w.pairs[axis] + p];
}

/* A block per token. */
static __global__ void split_wide(const ops_wide w, float *y)
{
    float *row = y + blockIdx.x * w.ld, limit = operand_limit(w.bf16), inv = 1;
    int64_t token = w.tok0 + blockIdx.x;
    int width = w.heads * w.d, half = w.d / 2;
    bool big = false;

    if (w.norm) {
        float sq = 0;
        for (int c = threadIdx.x; c < width; c += THREADS)
            sq += row[c] * row[c];
        inv = 1 / sqrtf(block_sum(sq) / (float)width + (float)w.eps);
    }
    for (int i = threadIdx.x; i < width / 2; i += THREADS) {
        int head = i / half, p = i - head * half;
        float a = row[2 * i], b = row[2 * i + 1];
        int64_t at = (head * w.tokens + token) * w.padded + 2 * p;
        if (w.norm) {
            a *= inv * w.norm[2 * i];
            b *= inv * w.norm[2 * i + 1];
        }
        if (w.rotate) {
            float2 r = turn(w, token, p);
            float turned = a * r.x - b * r.y;
            b = a * r.y + b * r.x;
            a = turned;
        }
        row[2 * i] = a;
        row[2 * i + 1] = b;
        big = big || !(fabsf(a) <= limit) || !(fabsf(b) <= limit);
        put_operand(w.to, w.bf16, at, a);
        put_operand(w.to, w.bf16, at + 1, b);
        if (w.wide)
            *(float2 *)(w.wide + (head * w.tokens + token) * w.d + 2 * p) = make_float2(a, b);
    }
    if (big)
        *w.overflow = 1;
}

extern "C" int ops_split_wide(struct gpu *g, const struct ops_wide *w, float *y, struct err *err)
{
    split_wide<<<(unsigned)w->n, THREADS, 0, g->stream>>>(*w, y);
    return LAUNCH_STATUS(err);
}
