/*
 * lastrows.cuh - exact softmax rows of the last queries of a prompt, summed per key and per
 * query-key distance: the estimate behind vertical-slash methods (sim/tokscore.h).
 *
 * Tile of B rows x 128 keys, 256 threads, two passes over the keys: log-sum-exp of the rows, then
 * their probabilities; 4 B N d FLOP per head. Scores come from bf16 products summed in float,
 * probabilities and their sums over a tile are float, sums over tiles double.
 */
#ifndef LACUNA_LASTROWS_CUH
#define LACUNA_LASTROWS_CUH

#include "cuda/device.h"
#include "cuda/mma.cuh"

#define LAST_KEYS 128  /* of a tile */
#define LAST_PITCH 129 /* floats of a row of probabilities in shared memory */
#define LAST_DIAGS 256 /* distances that a tile touches, at most */
#define LAST_THREADS 256

/* The last `rows` of n queries, at most `tall` = 64 or 128, the height of the tiles. */
struct last_rows {
    int64_t n;
    int heads, per_kv, rows, tall, tiles; /* query heads, query heads of a kv head, key tiles */
    float scale_log2;
    double divide; /* sums are divided by it: 1, or rows for means */
    const uint4 *q, *k;
    float2 *part;      /* [heads][tiles][tall]: largest in base 2, sum */
    float *lse;        /* [heads][tall], base 2 */
    float *diag_part;  /* [heads][tiles][LAST_DIAGS] */
    double *ver, *sla; /* [heads][n]: mass per key, per distance */
};

/* Memory for n, heads, tall. */
static int last_rows_alloc(struct gpu *g, last_rows *a, struct err *err)
{
    int64_t h = a->heads;
    int rc = 0;
    a->tiles = (int)((a->n + LAST_KEYS - 1) / LAST_KEYS);
    TRY(gpu_alloc(g, h * a->tiles * a->tall * 8, &a->part, err));
    TRY(gpu_alloc(g, h * a->tall * 4, &a->lse, err));
    TRY(gpu_alloc(g, h * a->tiles * LAST_DIAGS * 4, &a->diag_part, err));
    TRY(gpu_alloc(g, h * a->n * 8, &a->ver, err));
    TRY(gpu_alloc(g, h * a->n * 8, &a->sla, err));
out:
    return rc;
}

/* Scores in base 2 of the last B positions of head blockIdx.y against the keys of tile blockIdx.x,
 * into shared memory; -inf where a row does not see the key or does not count. Warp w: rows of
 * quarter w % 4, keys of half w / 4. */
template <int D, int B> static __device__ __forceinline__ float *last_scores(const last_rows &a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    constexpr int MT = B / 64;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, head = blockIdx.y;
    int64_t key0 = blockIdx.x * (int64_t)LAST_KEYS;
    uint32_t q = shared_addr(shared), k = q + B * D * 2;
    const uint4 *rows = a.q + (int64_t)head * a.n * (D / 8);
    float acc[MT][8][4] = {{{0}}};

    for (int e = threadIdx.x; e < B * (D / 8); e += LAST_THREADS) {
        int r = e / (D / 8), c = e % (D / 8);
        bool valid = r >= B - a.rows;
        int64_t from = valid ? a.n - B + r : 0;
        copy_async(q + chunk_at<D>(r, c), rows + from * (D / 8) + c, valid);
    }
    copy_tile<D, LAST_KEYS, LAST_THREADS>(k, a.k + (int64_t)(head / a.per_kv) * a.n * (D / 8), key0,
                                          a.n);
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    add_scores<D, MT, 8>(q, warp % 4 * (B / 4), k, warp / 4 * 64, acc);
    __syncthreads();
    float *s = (float *)shared;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int r = warp % 4 * (B / 4) + 16 * m + (lane >> 2) + 8 * (i / 2);
                int c = warp / 4 * 64 + 8 * n + 2 * (lane & 3) + i % 2;
                bool seen = r >= B - a.rows && key0 + c <= a.n - B + r;
                s[r * LAST_PITCH + c] = seen ? acc[m][n][i] * a.scale_log2 : -INFINITY;
            }
    __syncthreads();
    return s;
}

/* Largest and sum of a row's part in a tile; LAST_THREADS / B threads a row. */
template <int D, int B>
static __global__ void __launch_bounds__(LAST_THREADS) last_parts(const last_rows a)
{
    constexpr int SHARES = LAST_THREADS / B;
    const float *s = last_scores<D, B>(a) + threadIdx.x / SHARES * LAST_PITCH;
    float top = -INFINITY, sum = 0;
    for (int c = threadIdx.x % SHARES; c < LAST_KEYS; c += SHARES)
        top = fmaxf(top, s[c]);
    for (int step = 1; step < SHARES; step *= 2)
        top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
    for (int c = threadIdx.x % SHARES; c < LAST_KEYS; c += SHARES)
        sum += exp2_fast(s[c] - (top == -INFINITY ? 0 : top));
    for (int step = 1; step < SHARES; step *= 2)
        sum += __shfl_xor_sync(~0u, sum, step);
    if (threadIdx.x % SHARES == 0)
        a.part[((int64_t)blockIdx.y * a.tiles + blockIdx.x) * B + threadIdx.x / SHARES] =
            make_float2(top, sum);
}

/* Log-sum-exp of 32 rows: a lane per row, tiles dealt out to 32 warps; 0 of rows that do not
 * count. */
static __global__ void __launch_bounds__(1024) last_join(const last_rows a)
{
    __shared__ double sums[32][32];
    __shared__ float tops[32][32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, row = blockIdx.x * 32 + lane;
    const float2 *part = a.part + (int64_t)blockIdx.y * a.tiles * a.tall + row;
    float top = -INFINITY;
    double sum = 0;
    for (int t = warp; t < a.tiles; t += 32)
        top = fmaxf(top, part[(int64_t)t * a.tall].x);
    tops[warp][lane] = top;
    __syncthreads();
    for (int w = 0; w < 32; w++)
        top = fmaxf(top, tops[w][lane]);
    if (top == -INFINITY)
        top = 0;
    for (int t = warp; t < a.tiles; t += 32) {
        float2 x = part[(int64_t)t * a.tall];
        sum += (double)x.y * exp2f(x.x - top);
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp == 0) {
        for (int w = 1; w < 32; w++)
            sum += sums[w][lane];
        a.lse[(int64_t)blockIdx.y * a.tall + row] = sum > 0 ? (float)(top + log2(sum)) : 0;
    }
}

/* Sums of a tile's probabilities down its columns and along its diagonals
 * r - c = i - (LAST_KEYS - 1). */
template <int D, int B>
static __global__ void __launch_bounds__(LAST_THREADS) last_sums(const last_rows a)
{
    float *s = last_scores<D, B>(a);
    int64_t key0 = blockIdx.x * (int64_t)LAST_KEYS, head = blockIdx.y;
    for (int e = threadIdx.x; e < B * LAST_KEYS; e += LAST_THREADS) {
        float *x = s + e / LAST_KEYS * LAST_PITCH + e % LAST_KEYS;
        *x = exp2_fast(*x - a.lse[head * B + e / LAST_KEYS]);
    }
    __syncthreads();
    if (threadIdx.x < LAST_KEYS && key0 + threadIdx.x < a.n) {
        float sum = 0;
        for (int r = 0; r < B; r++)
            sum += s[r * LAST_PITCH + threadIdx.x];
        a.ver[head * a.n + key0 + threadIdx.x] = (double)sum / a.divide;
    }
    int shift = (int)threadIdx.x - (LAST_KEYS - 1);
    float sum = 0;
    for (int r = max(shift, 0); r < min(B, LAST_KEYS + shift); r++)
        sum += s[r * LAST_PITCH + r - shift];
    a.diag_part[(head * a.tiles + blockIdx.x) * LAST_DIAGS + threadIdx.x] = sum;
}

/* Mass per distance d: key0 + c = n - tall + r - d, from the two or three tiles that have such
 * keys. */
static __global__ void last_diagonals(const last_rows a)
{
    int64_t d = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, head = blockIdx.y;
    if (d >= a.n)
        return;
    int64_t x = a.n - a.tall - d; /* first key of the diagonal, may be negative */
    double sum = 0;
    for (int64_t t = max((x + LAST_KEYS) / LAST_KEYS - 1, (int64_t)0); t < a.tiles; t++) {
        int64_t i = t * LAST_KEYS + LAST_KEYS - 1 - x;
        if (i >= a.tall + LAST_KEYS - 1)
            break;
        if (i >= 0)
            sum += a.diag_part[(head * a.tiles + t) * LAST_DIAGS + i];
    }
    a.sla[head * a.n + d] = sum / a.divide;
}

template <int D, int B>
static int last_rows_tiles(struct gpu *g, const last_rows &a, struct err *err)
{
    int rc = 0, tiles = (B + LAST_KEYS) * D * 2, scores = B * LAST_PITCH * 4;
    int smem = tiles > scores ? tiles : scores;
    dim3 grid(a.tiles, a.heads);
    CU(err, cudaFuncSetAttribute((const void *)last_parts<D, B>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, smem));
    CU(err, cudaFuncSetAttribute((const void *)last_sums<D, B>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, smem));
    last_parts<D, B><<<grid, LAST_THREADS, smem, g->stream>>>(a);
    CU_LAUNCHED(err);
    last_join<<<dim3(B / 32, a.heads), 1024, 0, g->stream>>>(a);
    CU_LAUNCHED(err);
    last_sums<D, B><<<grid, LAST_THREADS, smem, g->stream>>>(a);
    CU_LAUNCHED(err);
out:
    return rc;
}

/* Fill ver and sla; d = 64 or 128. */
static int last_rows_launch(struct gpu *g, const last_rows &a, int d, struct err *err)
{
    int rc = 0;
    if (d == 128)
        TRY((a.tall == 128 ? last_rows_tiles<128, 128>(g, a, err)
                           : last_rows_tiles<128, 64>(g, a, err)));
    else
        TRY((a.tall == 128 ? last_rows_tiles<64, 128>(g, a, err)
                           : last_rows_tiles<64, 64>(g, a, err)));
    last_diagonals<<<dim3((unsigned)((a.n + 255) / 256), a.heads), 256, 0, g->stream>>>(a);
    CU_LAUNCHED(err);
out:
    return rc;
}

#endif
