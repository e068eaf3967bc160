/*
 * hash_sparse.cu - pairs of equal bucket under an angular hash (sim/methods/hash_sparse.c has the
 * rule and the reference). Directions are the reference's. Projections are in float, and again in
 * double where float does not tell the largest, so that buckets agree. Keys become one bit map per
 * bucket, and a row is a copy of its bucket's map.
 *
 * 2 N d buckets / 2 products, N^2 / 8 bytes written per head.
 */
#include "core/rng.h"
#include "cuda/select/method.cuh"
#include "cuda/select/products.cuh"

struct hash_args : head_args {
    struct hash_rule rule;
    double *dir;       /* [buckets / 2][d] */
    uint8_t *q_bucket; /* [heads][nq] */
    uint8_t *k_bucket; /* [kv_heads][words * 32] */
    uint32_t *bits;    /* [kv_heads][buckets][words]: the keys of a bucket */
};

/* The first of the largest values [x R, -x R], of those directions for which near(r). */
template <class F> static __device__ int exact_bucket(const hash_args &a, const uint4 *x, F near)
{
    int half = (int)a.rule.buckets / 2, at[2] = {0, 0};
    double best[2] = {-INFINITY, -INFINITY};
    for (int r = 0; r < half; r++) {
        if (!near(r))
            continue;
        double dot = exact_product(a.dir + (int64_t)r * a.d, x, a.d);
        for (int sign = 0; sign < 2; sign++)
            if ((sign ? -dot : dot) > best[sign]) {
                best[sign] = sign ? -dot : dot;
                at[sign] = r;
            }
    }
    return best[1] > best[0] ? half + at[1] : at[0];
}

/* Dot products in float differ from exact ones by less than (d + 1) 2^-24 |x|, because directions
 * have length 1, and |x| <= sqrt(d) max |x|. TOLERANCE covers two of them, for d up to 128. */
#define TOLERANCE 2e-4f
#define DIRECTIONS 32 /* at a time, or 8 where there are no more */

/* Largest absolute dot product in float, its direction and sign as a bucket, and the second. */
struct float_best {
    float first = -1, second = -1;
    int bucket = 0;

    __device__ __forceinline__ void add(float dot, int r, int half)
    {
        float x = fabsf(dot);
        second = fminf(fmaxf(second, x), first);
        if (x > first) {
            second = first;
            first = x;
            bucket = dot < 0 ? half + r : r;
        }
    }
};

/* Absolute dot products of a token with N directions in shared memory, [d][N]. */
template <int N>
static __device__ __forceinline__ void add_directions(const hash_args &a, const uint4 *x, int r0,
                                                      const float *shared, float *most,
                                                      float_best *best)
{
    int half = (int)a.rule.buckets / 2;
    float dot[N] = {0};
    add_products<N>(x, a.d, shared, dot, most);
#pragma unroll
    for (int i = 0; i < N; i++)
        if (r0 + i < half)
            best->add(dot[i], r0 + i, half);
}

/* Buckets of queries, and behind their heads of keys: in float, and again in double where that does
 * not tell the largest value from the next. Grid (tokens / 128, heads of both), 128 threads, one
 * token each. */
template <int N> static __global__ void __launch_bounds__(128) hash_tokens(const hash_args a)
{
    __shared__ alignas(16) float shared[128 * N];
    const bool keys = (int)blockIdx.y >= a.heads;
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, n = keys ? a.nk : a.nq;
    int64_t head = blockIdx.y - (keys ? a.heads : 0);
    const uint4 *x = (keys ? a.k : a.q) + (head * n + min(i, n - 1)) * (a.d / 8);
    int half = (int)a.rule.buckets / 2;
    float_best best;
    float most = 0;
    for (int r0 = 0; r0 < half; r0 += N) {
        __syncthreads();
        for (int e = threadIdx.x; e < a.d * N; e += 128) {
            int r = r0 + e / a.d, c = e % a.d;
            shared[c * N + e / a.d] = r < half ? (float)a.dir[(int64_t)r * a.d + c] : 0;
        }
        __syncthreads();
        add_directions<N>(a, x, r0, shared, &most, &best);
    }
    if (i >= n)
        return;
    float slack = TOLERANCE * most;
    if (!products_in_range(most))
        best.bucket = exact_bucket(a, x, [](int) { return true; });
    else if (!(best.first - best.second > slack))
        best.bucket = exact_bucket(a, x, [&](int r) {
            const double *g = a.dir + (int64_t)r * a.d;
            float dot = 0;
            for (int c = 0; c < a.d; c += 8) {
                float v[8];
                unpack(x[c / 8], v);
                for (int e = 0; e < 8; e++)
                    dot = fmaf((float)g[c + e], v[e], dot);
            }
            return fabsf(dot) >= best.first - slack;
        });
    (keys ? a.k_bucket + head * a.map.words * 32 : a.q_bucket + head * n)[i] = (uint8_t)best.bucket;
}

/* A word of keys per warp: its bits in the map of each bucket that it has. */
static __global__ void map_buckets(const hash_args a)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, kv = blockIdx.y;
    int64_t n = a.map.words * 32LL, buckets = a.rule.buckets;
    if (i >= n)
        return;
    int own = i < a.nk ? a.k_bucket[kv * n + i] : -1;
    uint32_t same = __match_any_sync(~0u, own);
    if (own >= 0 && (threadIdx.x & 31) == __ffs((int)same) - 1)
        a.bits[(kv * buckets + own) * a.map.words + i / 32] = same;
}

/* A warp per row: the keys of its bucket that it may see. */
static __global__ void copy_buckets(const hash_args a)
{
    int64_t row = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) >> 5;
    if (row >= a.heads * a.nq)
        return;
    int64_t head = row / a.nq, i = row % a.nq;
    int64_t limit = a.causal ? i + a.nk - a.nq + !a.rule.strict : a.nk;
    int64_t from = head / a.per_kv * a.rule.buckets + a.q_bucket[row];
    copy_row_bits(a.map, row, a.bits + from * a.map.words, min(limit, a.nk));
}

static int64_t bits_bytes(const hash_args *a)
{
    return a->kv_heads * a->rule.buckets * a->map.words * 4;
}

/* As the reference has them, before anything is timed. */
static int draw_directions(struct gpu *g, hash_args *a, struct err *err)
{
    int64_t half = a->rule.buckets / 2;
    OWN(free_at) double *dir = NULL;
    PASS_ON(mem_alloc(&dir, half * a->d, sizeof *dir, "directions", err));
    for (int64_t r = 0; r < half; r++) {
        double *x = dir + r * a->d, norm = 0;
        for (int c = 0; c < a->d; c++) {
            x[c] = a->rule.axes ? (double)(c == r)
                                : rng_normal(a->rule.seed, a->rule.stream, (uint64_t)r * a->d + c);
            norm += x[c] * x[c];
        }
        for (int c = 0; c < a->d; c++)
            x[c] /= sqrt(norm);
    }
    return put_array(g, dir, half * a->d, &a->dir, err);
}

static int init(struct gpu *g, struct select_job *job, struct err *err)
{
    hash_args *a = NULL;
    PASS_ON(method_init(g, job, 1, 1, &a, err));
    a->rule = select_rule(&job->problem, 0)->hash;
    PASS_ON(draw_directions(g, a, err));
    return take(g, err, &a->q_bucket, a->heads * a->nq, &a->k_bucket,
                32LL * a->kv_heads * a->map.words, &a->bits, bits_bytes(a) / 4);
}

static int launch(struct gpu *g, const struct select_job *job, struct err *err)
{
    const hash_args &a = *(const hash_args *)job->state;
    int64_t most = a.nq > a.nk ? a.nq : a.nk;
    PASS_ON_CU(err,
               run_kernel(g->stream, a.rule.buckets > 16 ? hash_tokens<DIRECTIONS> : hash_tokens<8>,
                          dim3(ceil_div(most, 128), a.heads + a.kv_heads), 128, 0, a));
    PASS_ON(gpu_zero(g, a.bits, bits_bytes(&a), err));
    PASS_ON_CU(err, run_kernel(g->stream, map_buckets, dim3(ceil_div(a.map.words, 4), a.kv_heads),
                               128, 0, a));
    return CU_STATUS(err,
                     run_kernel(g->stream, copy_buckets, ceil_div(a.heads * a.nq, 8), 256, 0, a));
}

extern "C" const struct select_method select_hash_sparse = {
    "hash-sparse", dims_fit, init, launch, NULL, NULL, false, NULL,
};
