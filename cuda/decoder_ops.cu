/*
 * decoder_ops.cu - see decoder_ops.h. All of these are bound by memory but the pooled maps, which
 * multiply on the float32 units: O(N^2 d / 2) per head.
 */
#include "cuda/decoder_ops.cuh"

#include <math.h>

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

extern "C" int ops_split_weights(struct gpu *g, const void *w, enum dtype type, int64_t rows,
                                 int64_t cols, int terms, void *out, struct err *err)
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

extern "C" int ops_widen(struct gpu *g, const void *x, enum dtype type, int64_t n, float *out,
                         struct err *err)
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

extern "C" int ops_rms_norm(struct gpu *g, const float *x, int64_t n, int64_t d, const float *w,
                            double eps, int terms, void *out, struct err *err)
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

extern "C" int ops_add_bias(struct gpu *g, float *y, int64_t n, int64_t d, int64_t ld,
                            const float *b, struct err *err)
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

extern "C" int ops_silu_gate(struct gpu *g, const float *y, int64_t n, int64_t d, int terms,
                             void *out, struct err *err)
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

extern "C" int ops_rope_table(struct gpu *g, const double *inv_freq, int half, int64_t n,
                              double factor, float *table, struct err *err)
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

extern "C" int ops_split_heads(struct gpu *g, const struct ops_heads *h, float *y, struct err *err)
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

extern "C" int ops_join_heads(struct gpu *g, const struct ops_outputs *o, int64_t tok0, int64_t n,
                              int terms, void *out, struct err *err)
{
    join_heads<<<(unsigned)n, THREADS, 0, g->stream>>>(*o, tok0, terms, (__nv_bfloat16 *)out);
    return LAUNCH_STATUS(err);
}

/* bf16 outputs as float rows [n][heads * d]. */
static __global__ void head_rows(const __nv_bfloat16 *x, int heads, int64_t tokens, int d,
                                 int padded, float *out)
{
    int width = heads * d;
    int64_t token = blockIdx.x;
    for (int c = threadIdx.x; c < width; c += THREADS) {
        int head = c / d;
        out[token * width + c] =
            __bfloat162float(x[(head * tokens + token) * padded + c - head * d]);
    }
}

extern "C" int ops_head_rows(struct gpu *g, const void *x, int heads, int64_t tokens, int d,
                             int padded, float *out, struct err *err)
{
    head_rows<<<(unsigned)tokens, THREADS, 0, g->stream>>>((const __nv_bfloat16 *)x, heads, tokens,
                                                           d, padded, out);
    return LAUNCH_STATUS(err);
}

static __global__ void split_rows(const float *x, int64_t d, int terms, __nv_bfloat16 *out)
{
    const float *row = x + blockIdx.x * d;
    for (int64_t c = threadIdx.x; c < d; c += THREADS)
        put_split(out + blockIdx.x * d * terms, d, c, terms, row[c]);
}

extern "C" int ops_split_rows(struct gpu *g, const float *x, int64_t n, int64_t d, int terms,
                              void *out, struct err *err)
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

extern "C" int ops_pool_map(struct gpu *g, const struct ops_maps *m, struct err *err)
{
    int rc = 0;
    int64_t cells = ceil_div(m->tokens, m->pool);
    dim3 grid((unsigned)cells, (unsigned)cells, (unsigned)m->heads);
    if (cells > 65535)
        FAIL(err, ERR_RUN,
             "%lld cells a row are more than the GPU's maps can have (65535): use a "
             "larger --maps",
             (long long)cells);
    pool_cells<<<grid, THREADS, 0, g->stream>>>(*m);
    CU_LAUNCHED(err);
out:
    return rc;
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

extern "C" int ops_nll(struct gpu *g, const float *x, int64_t n, int64_t vocab,
                       const int32_t *target, float *nll, struct err *err)
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

extern "C" int ops_difference(struct gpu *g, const float *x, const float *ref, int64_t n,
                              double *sums, struct err *err)
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

extern "C" int ops_score_rows(struct gpu *g, const float *p, const float *q, int64_t n,
                              int64_t vocab, const int32_t *target, struct decoder_score *out,
                              struct err *err)
{
    score_rows<<<(unsigned)n, THREADS, 0, g->stream>>>(p, q, vocab, target, out);
    return LAUNCH_STATUS(err);
}
