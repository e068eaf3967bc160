/*
 * decoder_few.cu - embeddings, and attention of a few rows in float32 (ops_attend_few in
 * decoder_ops.h).
 *
 * A block takes one row, the heads of one KV head and a part of the keys, so that every key is read
 * once. Its threads have a key each for the scores, and a channel each for the outputs. Parts are
 * put together by a second kernel.
 */
#include "cuda/decoder_ops.cuh"

#include <math.h>

#define KEYS 128        /* at a time, and threads of a block */
#define PART (4 * KEYS) /* keys of a block */
#define MAX_D 128
#define MAX_GROUP 8 /* heads that a block takes at a time */

static __global__ void take_rows(const void *table, int type, int64_t d, const int32_t *ids,
                                 float *out)
{
    int64_t at = ids[blockIdx.x] * d;
    for (int64_t c = threadIdx.x; c < d; c += THREADS)
        out[blockIdx.x * d + c] = load_as_float(table, type, at + c);
}

extern "C" int ops_take_rows(struct gpu *g, const void *table, enum dtype type, int64_t d,
                             const int32_t *ids, int64_t n, float *out, struct err *err)
{
    take_rows<<<(unsigned)n, THREADS, 0, g->stream>>>(table, type, d, ids, out);
    return LAUNCH_STATUS(err);
}

/* Of a part: the output not divided by its sum, the sum, the maximum. */
static inline __host__ __device__ int64_t part_floats(int d)
{
    return d + 2;
}

extern "C" int64_t ops_few_parts(int heads, int d, int64_t keys)
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

extern "C" int ops_attend_few(struct gpu *g, const struct ops_few *f, struct err *err)
{
    int of_kv = f->heads / f->kv_heads, group = min(of_kv, MAX_GROUP);
    int per_kv = (int)ceil_div(of_kv, group), rc = 0;
    int64_t parts = ceil_div(f->pos + f->m, PART);
    dim3 grid((unsigned)parts, (unsigned)(f->kv_heads * per_kv), (unsigned)f->m);
    dim3 join((unsigned)f->heads, (unsigned)f->m);

    if (f->d % 4 || f->d > MAX_D)
        FAIL(err, ERR_RUN, "attention of single rows on the GPU has head dims up to %d, not %d",
             MAX_D, f->d);
    attend_part<<<grid, KEYS, 0, g->stream>>>(*f, group, per_kv);
    CU_LAUNCHED(err);
    join_parts<<<join, MAX_D, 0, g->stream>>>(*f, (int)parts);
    CU_LAUNCHED(err);
out:
    return rc;
}
