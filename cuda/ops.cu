/*
 * ops.cu - see ops.h. All of these are bound by memory but the pooled maps, which multiply on the
 * float32 units: O(N^2 d / 2) per head.
 */
#include "cuda/ops.h"

#include "core/intmath.h"
#include "cuda/warp.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>

#define THREADS 256

static inline unsigned blocks_of(int64_t n)
{
    return (unsigned)ceil_div(n, THREADS);
}

/* hi, lo (and hi again) of x at column c of a row of `d` columns. */
static __device__ __forceinline__ void put_split(__nv_bfloat16 *row, int64_t d, int64_t c,
                                                 int terms, float x)
{
    __nv_bfloat16 hi = __float2bfloat16(x);
    row[c] = hi;
    row[d + c] = __float2bfloat16(x - __bfloat162float(hi));
    if (terms == 3)
        row[2 * d + c] = hi;
}

static __device__ __forceinline__ float load_as_float(const void *x, int type, int64_t i)
{
    if (type == DT_BF16)
        return __bfloat162float(((const __nv_bfloat16 *)x)[i]);
    if (type == DT_F16)
        return __half2float(((const __half *)x)[i]);
    return ((const float *)x)[i];
}

/* Sum over a block of THREADS, in all threads. */
static __device__ float block_sum(float x)
{
    __shared__ float part[THREADS / 32];
    x = warp_add(x);
    if ((threadIdx.x & 31) == 0)
        part[threadIdx.x >> 5] = x;
    __syncthreads();
    x = part[threadIdx.x & (THREADS / 32 - 1)];
    for (int m = THREADS / 64; m; m >>= 1)
        x += __shfl_xor_sync(~0u, x, m);
    __syncthreads();
    return x;
}

/* Larger values of q, k or v are refused. */
static __device__ __forceinline__ float operand_limit(bool bf16)
{
    return bf16 ? 0x1p39F : 65504;
}

static __device__ __forceinline__ void put_operand(void *to, bool bf16, int64_t i, float x)
{
    if (bf16)
        ((__nv_bfloat16 *)to)[i] = __float2bfloat16(x);
    else
        ((__half *)to)[i] = __float2half(x);
}

static __device__ __forceinline__ float operand(const void *x, bool bf16, int64_t i)
{
    return bf16 ? __bfloat162float(((const __nv_bfloat16 *)x)[i])
                : __half2float(((const __half *)x)[i]);
}

static __device__ float block_max(float x)
{
    __shared__ float part[THREADS / 32];
    x = warp_max(x);
    if ((threadIdx.x & 31) == 0)
        part[threadIdx.x >> 5] = x;
    __syncthreads();
    x = part[threadIdx.x & (THREADS / 32 - 1)];
    for (int m = THREADS / 64; m; m >>= 1)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, m));
    __syncthreads();
    return x;
}

/* ---- weights -------------------------------------------------------------------------------- */

static __global__ void split_weights(const void *w, int type, int64_t n, int64_t cols, int terms,
                                     __nv_bfloat16 *out)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n)
        return;
    float x = load_as_float(w, type, i);
    __nv_bfloat16 hi = __float2bfloat16(x);
    __nv_bfloat16 *row = out + i / cols * cols * terms + i % cols;
    row[0] = hi;
    row[cols] = hi;
    if (terms == 3)
        row[2 * cols] = __float2bfloat16(x - __bfloat162float(hi));
}

int ops_split_weights(struct gpu *g, const void *w, enum dtype type, int64_t rows, int64_t cols,
                      int terms, void *out, struct err *err)
{
    split_weights<<<blocks_of(rows * cols), THREADS, 0, g->stream>>>(w, type, rows * cols, cols,
                                                                     terms, (__nv_bfloat16 *)out);
    return LAUNCH_STATUS(err);
}

static __global__ void widen(const void *x, int type, int64_t n, float *out)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n)
        out[i] = load_as_float(x, type, i);
}

int ops_widen(struct gpu *g, const void *x, enum dtype type, int64_t n, float *out, struct err *err)
{
    widen<<<blocks_of(n), THREADS, 0, g->stream>>>(x, type, n, out);
    return LAUNCH_STATUS(err);
}

/* ---- rows ----------------------------------------------------------------------------------- */

static __global__ void rms_norm(const float *x, int64_t d, const float *w, float eps, int terms,
                                __nv_bfloat16 *out)
{
    const float *row = x + blockIdx.x * d;
    __nv_bfloat16 *to = out + blockIdx.x * d * terms;
    float sq = 0;
    for (int64_t c = threadIdx.x; c < d; c += THREADS)
        sq += row[c] * row[c];
    float inv = 1 / sqrtf(block_sum(sq) / (float)d + eps);
    for (int64_t c = threadIdx.x; c < d; c += THREADS)
        put_split(to, d, c, terms, row[c] * inv * w[c]);
}

int ops_rms_norm(struct gpu *g, const float *x, int64_t n, int64_t d, const float *w, double eps,
                 int terms, void *out, struct err *err)
{
    rms_norm<<<(unsigned)n, THREADS, 0, g->stream>>>(x, d, w, (float)eps, terms,
                                                     (__nv_bfloat16 *)out);
    return LAUNCH_STATUS(err);
}

/* A block per row. */
static __global__ void add_bias(float *y, int64_t d, int64_t ld, const float *b)
{
    float *row = y + blockIdx.x * ld;
    for (int64_t c = threadIdx.x; c < d; c += THREADS)
        row[c] += b[c];
}

int ops_add_bias(struct gpu *g, float *y, int64_t n, int64_t d, int64_t ld, const float *b,
                 struct err *err)
{
    add_bias<<<(unsigned)n, THREADS, 0, g->stream>>>(y, d, ld, b);
    return LAUNCH_STATUS(err);
}

static __global__ void silu_gate(const float *y, int64_t d, int terms, __nv_bfloat16 *out)
{
    const float *gate = y + blockIdx.x * 2 * d, *up = gate + d;
    __nv_bfloat16 *to = out + blockIdx.x * d * terms;
    for (int64_t c = threadIdx.x; c < d; c += THREADS)
        put_split(to, d, c, terms, gate[c] / (1 + expf(-gate[c])) * up[c]);
}

int ops_silu_gate(struct gpu *g, const float *y, int64_t n, int64_t d, int terms, void *out,
                  struct err *err)
{
    silu_gate<<<(unsigned)n, THREADS, 0, g->stream>>>(y, d, terms, (__nv_bfloat16 *)out);
    return LAUNCH_STATUS(err);
}

/* ---- heads ---------------------------------------------------------------------------------- */

static __global__ void rope_table(const double *inv_freq, int half, int64_t n, double factor,
                                  float2 *table)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n)
        return;
    double s, c;
    sincos((double)(i / half) * inv_freq[i % half], &s, &c);
    table[i] = make_float2((float)(c * factor), (float)(s * factor));
}

int ops_rope_table(struct gpu *g, const double *inv_freq, int half, int64_t n, double factor,
                   float *table, struct err *err)
{
    rope_table<<<blocks_of(n * half), THREADS, 0, g->stream>>>(inv_freq, half, n * half, factor,
                                                               (float2 *)table);
    return LAUNCH_STATUS(err);
}

/* One head of q, k or v by a warp. */
static __device__ void split_head(const ops_heads &h, float *x, int64_t token, int head)
{
    int lane = threadIdx.x & 31, half = h.d / 2;
    bool is_q = head < h.heads, is_v = head >= h.heads + h.kv_heads;
    const float *w = is_v ? NULL : is_q ? h.q_norm : h.k_norm;
    int own = is_q ? head : is_v ? head - h.heads - h.kv_heads : head - h.heads;
    int64_t at = ((int64_t)own * h.tokens + h.tok0 + token) * h.padded;
    void *to = is_q ? h.q : is_v ? h.v : h.k;
    float *wide = is_q ? h.q32 : is_v ? h.v32 : h.k32, limit = operand_limit(h.bf16);
    float inv = 1;
    bool big = false;

    if (w) {
        float sq = 0;
        for (int c = lane; c < h.d; c += 32)
            sq += x[c] * x[c];
        inv = 1 / sqrtf(warp_add(sq) / (float)h.d + (float)h.eps);
    }
    for (int c = lane; c < half; c += 32) {
        float a = x[c], b = x[c + half];
        if (w) {
            a *= inv * w[c];
            b *= inv * w[c + half];
        }
        if (!is_v) {
            float2 r = ((const float2 *)h.rope)[(h.tok0 + token) * half + c];
            float turned = a * r.x - b * r.y;
            b = b * r.x + a * r.y;
            a = turned;
            x[c] = a;
            x[c + half] = b;
        }
        if (to) {
            big = big || !(fabsf(a) <= limit) || !(fabsf(b) <= limit);
            put_operand(to, h.bf16, at + c, a);
            put_operand(to, h.bf16, at + c + half, b);
        }
        if (wide) {
            float *row = wide + ((int64_t)own * h.tokens32 + h.tok0 + token) * h.d;
            row[c] = a;
            row[c + half] = b;
        }
    }
    for (int c = h.d + lane; to && c < h.padded; c += 32)
        put_operand(to, h.bf16, at + c, 0);
    if (big)
        *h.overflow = 1;
}

/* A block per token. */
static __global__ void split_heads(const ops_heads h, float *y)
{
    int all = h.heads + 2 * h.kv_heads;
    int64_t token = blockIdx.x;
    for (int head = threadIdx.x >> 5; head < all; head += THREADS / 32)
        split_head(h, y + (token * all + head) * h.d, token, head);
}

int ops_split_heads(struct gpu *g, const struct ops_heads *h, float *y, struct err *err)
{
    split_heads<<<(unsigned)h->n, THREADS, 0, g->stream>>>(*h, y);
    return LAUNCH_STATUS(err);
}

static __global__ void join_heads(const ops_outputs o, int64_t tok0, int terms, __nv_bfloat16 *out)
{
    int width = o.heads * o.d;
    int64_t token = blockIdx.x;
    __nv_bfloat16 *to = out + token * width * terms;
    for (int c = threadIdx.x; c < width; c += THREADS) {
        int head = c / o.d;
        put_split(
            to, width, c, terms,
            operand(o.x, o.bf16, (head * o.tokens + tok0 + token) * o.padded + c - head * o.d));
    }
}

int ops_join_heads(struct gpu *g, const struct ops_outputs *o, int64_t tok0, int64_t n, int terms,
                   void *out, struct err *err)
{
    join_heads<<<(unsigned)n, THREADS, 0, g->stream>>>(*o, tok0, terms, (__nv_bfloat16 *)out);
    return LAUNCH_STATUS(err);
}

static __global__ void head_rows(const __nv_bfloat16 *x, int width, int64_t tokens, int d,
                                 int padded, float unit, float *out, int64_t stride)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, token = i / width;
    int c = (int)(i % width), head = c / d;
    if (token < tokens)
        out[token * stride + c] =
            __bfloat162float(x[(head * tokens + token) * padded + c - head * d]) * unit;
}

int ops_head_rows(struct gpu *g, const void *x, int heads, int64_t tokens, int d, int padded,
                  float unit, float *out, int64_t stride, struct err *err)
{
    head_rows<<<blocks_of(tokens * heads * d), THREADS, 0, g->stream>>>(
        (const __nv_bfloat16 *)x, heads * d, tokens, d, padded, unit, out, stride);
    return LAUNCH_STATUS(err);
}

static __global__ void split_rows(const float *x, int64_t d, int terms, __nv_bfloat16 *out)
{
    const float *row = x + blockIdx.x * d;
    for (int64_t c = threadIdx.x; c < d; c += THREADS)
        put_split(out + blockIdx.x * d * terms, d, c, terms, row[c]);
}

int ops_split_rows(struct gpu *g, const float *x, int64_t n, int64_t d, int terms, void *out,
                   struct err *err)
{
    split_rows<<<(unsigned)n, THREADS, 0, g->stream>>>(x, d, terms, (__nv_bfloat16 *)out);
    return LAUNCH_STATUS(err);
}

/* ---- pooled maps ---------------------------------------------------------------------------- */

#define TILE 64
#define DEPTH 32 /* channels in shared memory at a time */

/* 64 x 64 scores from row q0 and key k0 on: a thread has rows 4 ty.. and keys 4 tx... */
static __device__ void tile_scores(const __half *q, const __half *k, int64_t q0, int64_t k0,
                                   int64_t tokens, int padded, float (*qs)[TILE + 4],
                                   float (*ks)[TILE + 4], float (&s)[4][4])
{
    int tx = threadIdx.x & 15, ty = threadIdx.x >> 4;
    for (int i = 0; i < 16; i++)
        s[i >> 2][i & 3] = 0;
    for (int c0 = 0; c0 < padded; c0 += DEPTH) {
        for (int i = threadIdx.x; i < TILE * DEPTH; i += THREADS) {
            int c = i % DEPTH, r = i / DEPTH;
            qs[c][r] = q0 + r < tokens ? __half2float(q[(q0 + r) * padded + c0 + c]) : 0;
            ks[c][r] = k0 + r < tokens ? __half2float(k[(k0 + r) * padded + c0 + c]) : 0;
        }
        __syncthreads();
#pragma unroll 8
        for (int c = 0; c < DEPTH; c++) {
            float4 a = *(const float4 *)&qs[c][4 * ty], b = *(const float4 *)&ks[c][4 * tx];
            float av[4] = {a.x, a.y, a.z, a.w}, bv[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
            for (int i = 0; i < 16; i++)
                s[i >> 2][i & 3] = fmaf(av[i >> 2], bv[i & 3], s[i >> 2][i & 3]);
        }
        __syncthreads();
    }
}

/* A block per cell: (key cell, query cell, head). */
static __global__ void __launch_bounds__(THREADS) pool_cells(const ops_maps m)
{
    __shared__ __align__(16) float qs[DEPTH][TILE + 4], ks[DEPTH][TILE + 4];
    int64_t a = blockIdx.y, b = blockIdx.x, cells = gridDim.x, head = blockIdx.z;
    int64_t at = (head * cells + a) * cells + b, kv = head / (m.heads / m.kv_heads);
    float sum = 0, top = 0, scale = (float)m.scale, s[4][4];
    if (m.causal && b > a) {
        if (threadIdx.x == 0)
            m.sum[at] = m.max[at] = 0;
        return;
    }
    const __half *q = (const __half *)m.q + head * m.tokens * m.padded;
    const __half *k = (const __half *)m.k + kv * m.tokens * m.padded;
    int64_t q_end = min((a + 1) * m.pool, m.tokens), k_end = min((b + 1) * m.pool, m.tokens);
    for (int64_t q0 = a * m.pool; q0 < q_end; q0 += TILE)
        for (int64_t k0 = b * m.pool; k0 < (m.causal ? min(k_end, q0 + TILE) : k_end); k0 += TILE) {
            float part = 0;
            tile_scores(q, k, q0, k0, m.tokens, m.padded, qs, ks, s);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int64_t row = q0 + 4 * (threadIdx.x >> 4) + i;
                float lse = row < q_end ? m.lse[head * m.tokens + row] : 0;
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    int64_t key = k0 + 4 * (threadIdx.x & 15) + j;
                    bool in = row < q_end && key < k_end && (!m.causal || key <= row);
                    float p = in ? expf(fmaf(s[i][j], scale, -lse)) : 0;
                    part += p;
                    top = fmaxf(top, p);
                }
            }
            sum += part;
        }
    sum = block_sum(sum);
    top = block_max(top);
    if (threadIdx.x == 0) {
        m.sum[at] = sum;
        m.max[at] = top;
    }
}

int ops_pool_map(struct gpu *g, const struct ops_maps *m, struct err *err)
{
    int64_t cells = ceil_div(m->tokens, m->pool);
    dim3 grid((unsigned)cells, (unsigned)cells, (unsigned)m->heads);
    if (cells > 65535)
        return err_set(err, ERR_RUN,
                       "%lld cells a row are more than the GPU's maps can have (65535): use a "
                       "larger --maps",
                       (long long)cells);
    pool_cells<<<grid, THREADS, 0, g->stream>>>(*m);
    return LAUNCH_STATUS(err);
}

/* ---- likelihood ----------------------------------------------------------------------------- */

static __global__ void nll_rows(const float *x, int64_t vocab, const int32_t *target, float *nll)
{
    const float *row = x + blockIdx.x * vocab;
    float top = -INFINITY, sum = 0;
    for (int64_t c = threadIdx.x; c < vocab; c += THREADS)
        top = fmaxf(top, row[c]);
    top = block_max(top);
    for (int64_t c = threadIdx.x; c < vocab; c += THREADS)
        sum += expf(row[c] - top);
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        nll[blockIdx.x] = (float)((double)top - row[target[blockIdx.x]] + log((double)sum));
}

int ops_nll(struct gpu *g, const float *x, int64_t n, int64_t vocab, const int32_t *target,
            float *nll, struct err *err)
{
    nll_rows<<<(unsigned)n, THREADS, 0, g->stream>>>(x, vocab, target, nll);
    return LAUNCH_STATUS(err);
}

/* ---- several states ------------------------------------------------------------------------- */

/* Sums over a block of THREADS in a fixed order, in thread 0. */
static __device__ double block_sum_f64(double x)
{
    __shared__ double part[THREADS / 32];
    for (int m = 16; m; m >>= 1)
        x += __shfl_xor_sync(~0u, x, m);
    if ((threadIdx.x & 31) == 0)
        part[threadIdx.x >> 5] = x;
    __syncthreads();
    x = 0;
    for (int i = 0; i < THREADS / 32; i++)
        x += part[i];
    __syncthreads();
    return x;
}

static __global__ void difference(const float *x, const float *ref, int64_t n, double *sums)
{
    double e = 0, r = 0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * THREADS) {
        double d = (double)x[i] - ref[i];
        e += d * d;
        r += (double)ref[i] * ref[i];
    }
    e = block_sum_f64(e);
    r = block_sum_f64(r);
    if (threadIdx.x == 0) {
        sums[2 * blockIdx.x] = e;
        sums[2 * blockIdx.x + 1] = r;
    }
}

int ops_difference(struct gpu *g, const float *x, const float *ref, int64_t n, double *sums,
                   struct err *err)
{
    difference<<<OPS_SUMS, THREADS, 0, g->stream>>>(x, ref, n, sums);
    return LAUNCH_STATUS(err);
}

/* The largest value of a row, and the lowest index that has it, in all threads. */
static __device__ double row_top(const float *x, int64_t n, int64_t *likely)
{
    __shared__ double tops[THREADS / 32];
    __shared__ int64_t ids[THREADS / 32];
    double top = -INFINITY;
    int64_t id = 0;
    for (int64_t c = threadIdx.x; c < n; c += THREADS)
        if (x[c] > top) {
            top = x[c];
            id = c;
        }
    for (int m = 16; m; m >>= 1) {
        double t = __shfl_xor_sync(~0u, top, m);
        int64_t i = __shfl_xor_sync(~0u, id, m);
        if (t > top || (t == top && i < id)) {
            top = t;
            id = i;
        }
    }
    if ((threadIdx.x & 31) == 0) {
        tops[threadIdx.x >> 5] = top;
        ids[threadIdx.x >> 5] = id;
    }
    __syncthreads();
    for (int i = 0; i < THREADS / 32; i++)
        if (tops[i] > top || (tops[i] == top && ids[i] < id)) {
            top = tops[i];
            id = ids[i];
        }
    __syncthreads();
    *likely = id;
    return top;
}

/* eval/likelihood.c has the formula of kl. */
static __global__ void score_rows(const float *p, const float *q, int64_t vocab,
                                  const int32_t *target, decoder_score *out)
{
    const float *a = p + blockIdx.x * vocab, *b = q + blockIdx.x * vocab;
    int64_t likely, unused;
    double top_a = row_top(a, vocab, &unused), top_b = row_top(b, vocab, &likely);
    double sum_a = 0, sum_b = 0, cross = 0;
    for (int64_t c = threadIdx.x; c < vocab; c += THREADS) {
        double e = exp(a[c] - top_a);
        sum_a += e;
        sum_b += exp(b[c] - top_b);
        cross += e * ((double)a[c] - b[c]);
    }
    sum_a = block_sum_f64(sum_a);
    sum_b = block_sum_f64(sum_b);
    cross = block_sum_f64(cross);
    if (threadIdx.x == 0) {
        double lse_a = top_a + log(sum_a), lse_b = top_b + log(sum_b);
        double kl = cross / sum_a - (lse_a - lse_b);
        out[blockIdx.x].nll = lse_b - b[target[blockIdx.x]];
        out[blockIdx.x].kl = kl > 0 ? kl : 0;
        out[blockIdx.x].likely = likely;
    }
}

int ops_score_rows(struct gpu *g, const float *p, const float *q, int64_t n, int64_t vocab,
                   const int32_t *target, struct decoder_score *out, struct err *err)
{
    score_rows<<<(unsigned)n, THREADS, 0, g->stream>>>(p, q, vocab, target, out);
    return LAUNCH_STATUS(err);
}

static __global__ void take_rows(const void *table, int type, int64_t d, const int32_t *ids,
                                 float *out)
{
    int64_t at = ids[blockIdx.x] * d;
    for (int64_t c = threadIdx.x; c < d; c += THREADS)
        out[blockIdx.x * d + c] = load_as_float(table, type, at + c);
}

int ops_take_rows(struct gpu *g, const void *table, enum dtype type, int64_t d, const int32_t *ids,
                  int64_t n, float *out, struct err *err)
{
    take_rows<<<(unsigned)n, THREADS, 0, g->stream>>>(table, type, d, ids, out);
    return LAUNCH_STATUS(err);
}

/* ---- a few rows in float32 ------------------------------------------------------------------ */

/* A block takes one row, the heads of one KV head and a part of the keys, so that every key is read
 * once. Its threads have a key each for the scores, and a channel each for the outputs. Parts are
 * put together by a second kernel. */
#define KEYS 128        /* at a time, and threads of a block */
#define PART (4 * KEYS) /* keys of a block */
#define MAX_D 128
#define MAX_GROUP 8 /* heads that a block takes at a time */

/* A part has the output not divided by its sum, the sum, the maximum. */
static inline __host__ __device__ int64_t part_floats(int d)
{
    return d + 2;
}

int64_t ops_few_parts(int heads, int d, int64_t keys)
{
    return heads * ceil_div(keys, PART) * part_floats(d);
}

/* Largest x over the block, in all threads. */
static __device__ float max_of_keys(float x, float *part)
{
    x = warp_max(x);
    if ((threadIdx.x & 31) == 0)
        part[threadIdx.x >> 5] = x;
    __syncthreads();
    x = part[0];
    for (int i = 1; i < KEYS / 32; i++)
        x = fmaxf(x, part[i]);
    __syncthreads();
    return x;
}

static __device__ float sum_of_keys(float x, float *part)
{
    x = warp_add(x);
    if ((threadIdx.x & 31) == 0)
        part[threadIdx.x >> 5] = x;
    __syncthreads();
    x = 0;
    for (int i = 0; i < KEYS / 32; i++)
        x += part[i];
    __syncthreads();
    return x;
}

/* Scores of one key with the `group` queries in shared memory. */
static __device__ __forceinline__ void score(const float *k, const float (*q)[MAX_D], int d,
                                             int group, float (&s)[MAX_GROUP])
{
#pragma unroll
    for (int h = 0; h < MAX_GROUP; h++)
        s[h] = 0;
    for (int c = 0; c < d; c += 4) {
        float4 x = *(const float4 *)(k + c);
#pragma unroll
        for (int h = 0; h < MAX_GROUP; h++)
            if (h < group) {
                float4 y = *(const float4 *)&q[h][c];
                s[h] = fmaf(x.x, y.x, fmaf(x.y, y.y, fmaf(x.z, y.z, fmaf(x.w, y.w, s[h]))));
            }
    }
}

/* grid: parts of the keys, groups of heads, rows. */
static __global__ void __launch_bounds__(KEYS) attend_part(const ops_few f, int group, int per_kv)
{
    __shared__ __align__(16) float q[MAX_GROUP][MAX_D];
    __shared__ float p[MAX_GROUP][KEYS], warps[KEYS / 32];
    int kv = blockIdx.y / per_kv, of_kv = f.heads / f.kv_heads;
    int first = blockIdx.y % per_kv * group, n = min(group, of_kv - first);
    int head = kv * of_kv + first;
    int64_t row = blockIdx.z, seen = f.pos + row + 1, from = (int64_t)blockIdx.x * PART;
    int64_t to = min(from + PART, seen);
    const float *k = f.k + kv * f.stride * f.d, *v = f.v + kv * f.stride * f.d;
    float acc[MAX_GROUP], sum[MAX_GROUP], top[MAX_GROUP], s[MAX_GROUP];

#pragma unroll
    for (int h = 0; h < MAX_GROUP; h++) {
        acc[h] = sum[h] = 0;
        top[h] = -INFINITY;
    }
    for (int i = threadIdx.x; i < n * f.d; i += KEYS)
        q[i / f.d][i % f.d] = f.q[row * f.ld + head * f.d + i] * (float)f.scale;
    __syncthreads();
    for (int64_t at = from; at < to; at += KEYS) {
        int64_t key = at + threadIdx.x;
        int here = (int)min((int64_t)KEYS, to - at);
        if (key < to)
            score(k + key * f.d, q, f.d, n, s);
#pragma unroll
        for (int h = 0; h < MAX_GROUP; h++) {
            if (h >= n)
                break;
            float x = key < to ? s[h] : -INFINITY;
            float best = fmaxf(top[h], max_of_keys(x, warps)), shrink = expf(top[h] - best);
            float e = expf(x - best);
            top[h] = best;
            sum[h] = sum[h] * shrink + sum_of_keys(e, warps);
            acc[h] *= shrink;
            p[h][threadIdx.x] = e;
        }
        __syncthreads();
        if (threadIdx.x < f.d)
            for (int j = 0; j < here; j++) {
                float x = v[(at + j) * f.d + threadIdx.x];
#pragma unroll
                for (int h = 0; h < MAX_GROUP; h++)
                    if (h < n)
                        acc[h] = fmaf(p[h][j], x, acc[h]);
            }
        __syncthreads();
    }
    float *out = f.parts + ((row * f.heads + head) * gridDim.x + blockIdx.x) * part_floats(f.d);
#pragma unroll
    for (int h = 0; h < MAX_GROUP; h++) {
        if (h >= n)
            break;
        float *mine = out + (int64_t)h * gridDim.x * part_floats(f.d);
        if (threadIdx.x < f.d)
            mine[threadIdx.x] = acc[h];
        if (threadIdx.x == 0) {
            mine[f.d] = sum[h];
            mine[f.d + 1] = top[h];
        }
    }
}

/* A block per head and row. Parts without a key have sum 0 and maximum -infinity. */
static __global__ void __launch_bounds__(MAX_D) join_parts(const ops_few f, int parts)
{
    int64_t row = blockIdx.y, head = blockIdx.x, size = part_floats(f.d);
    const float *from = f.parts + (row * f.heads + head) * parts * size;
    float top = -INFINITY, sum = 0, acc = 0;
    for (int i = 0; i < parts; i++)
        top = fmaxf(top, from[i * size + f.d + 1]);
    for (int i = 0; i < parts; i++) {
        float weight = expf(from[i * size + f.d + 1] - top);
        sum += weight * from[i * size + f.d];
        if (threadIdx.x < f.d)
            acc += weight * from[i * size + threadIdx.x];
    }
    if (threadIdx.x < f.d)
        f.out[(row * f.heads + head) * f.d + threadIdx.x] = acc / sum;
}

int ops_attend_few(struct gpu *g, const struct ops_few *f, struct err *err)
{
    int of_kv = f->heads / f->kv_heads, group = min(of_kv, MAX_GROUP);
    int per_kv = (int)ceil_div(of_kv, group);
    int64_t parts = ceil_div(f->pos + f->m, PART);
    dim3 grid((unsigned)parts, (unsigned)(f->kv_heads * per_kv), (unsigned)f->m);
    dim3 join((unsigned)f->heads, (unsigned)f->m);

    if (f->d % 4 || f->d > MAX_D)
        return err_set(err, ERR_RUN,
                       "attention of single rows on the GPU has head dims up to %d, not %d", MAX_D,
                       f->d);
    attend_part<<<grid, KEYS, 0, g->stream>>>(*f, group, per_kv);
    PASS_ON_LAUNCH(err);
    join_parts<<<join, MAX_D, 0, g->stream>>>(*f, (int)parts);
    return LAUNCH_STATUS(err);
}

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

int ops_patches(struct gpu *g, const float *x, const struct ops_grid *l, int64_t tok0, int64_t n,
                int terms, void *out, struct err *err)
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

int ops_pixels(struct gpu *g, const float *rows, const float *bias, const struct ops_grid *l,
               int64_t tok0, int64_t n, float *x, struct err *err)
{
    scatter_pixels<<<(unsigned)n, THREADS, 0, g->stream>>>(rows, bias, *l, tok0, x);
    return LAUNCH_STATUS(err);
}

/* ---- rows of a video denoiser --------------------------------------------------------------- */

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

int ops_layer_norm(struct gpu *g, const float *x, int64_t n, int64_t d, const float *w,
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

int ops_activate(struct gpu *g, const float *y, int64_t n, int64_t d, const float *bias,
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

int ops_add_gated(struct gpu *g, float *h, const float *y, int64_t n, int64_t d, const float *bias,
                  const float *gate, struct err *err)
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

int ops_modulation(struct gpu *g, const float *table, const float *e, bool e_is_row, int rows,
                   int64_t d, unsigned scales, float *out, struct err *err)
{
    modulation<<<blocks_of(rows * d), THREADS, 0, g->stream>>>(table, e, e_is_row, rows * d, d,
                                                               scales, out);
    return LAUNCH_STATUS(err);
}

/* ---- heads of a video denoiser -------------------------------------------------------------- */

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

int ops_split_wide(struct gpu *g, const struct ops_wide *w, float *y, struct err *err)
{
    split_wide<<<(unsigned)w->n, THREADS, 0, g->stream>>>(*w, y);
    return LAUNCH_STATUS(err);
}

/* ---- random data ---------------------------------------------------------------------------- */

static __device__ uint32_t mix(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

/* Box-Muller on a counter hash. */
static __global__ void fill_normal(__nv_bfloat16 *x, int64_t n, uint32_t seed)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        uint32_t a = mix((uint32_t)i * 2 + mix(seed));
        uint32_t b = mix(a + 0x9e3779b9u + (uint32_t)(i >> 32));
        float u = (a + 1.0f) * 2.3283064e-10f, v = b * 2.3283064e-10f;
        x[i] = __float2bfloat16(sqrtf(-2 * logf(u)) * cosf(6.2831853f * v));
    }
}

int ops_fill_normal(struct gpu *g, void *x, int64_t n, uint32_t seed, struct err *err)
{
    fill_normal<<<1056, 256, 0, g->stream>>>((__nv_bfloat16 *)x, n, seed);
    return LAUNCH_STATUS(err);
}
