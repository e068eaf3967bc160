/*
 * lastrows.cuh - exact softmax rows of the last queries of a prompt, summed per key and per
 * query-key distance. Vertical-slash methods estimate a head from these sums
 * (sim/blocks/vslash.h).
 *
 * Two passes over the keys: log-sum-exp of the rows, then their probabilities; 4 B N d FLOP per
 * head. lastrows_sm90.cu has them for Hopper, what follows is for other GPUs. Tiles of B rows x
 * 8192 / B keys, 256 threads; a warp has 32 rows, whose queries stay in registers, and 32 keys of a
 * tile. A thread block walks over a range of tiles, with the copy of the next tile in flight.
 * Scores come from bf16 products summed in float; probabilities and their sums over a tile are
 * float, sums over tiles double. Probabilities go through shared memory for their sums; rows are 8
 * banks apart, so that neither pairs nor columns nor diagonals have bank conflicts.
 */
#pragma once

#include "cuda/mma.cuh"
#include "cuda/select/lastrows_sm90.cuh"
#include "cuda/select/method.cuh"

#define LAST_THREADS 256
#define LAST_DIAGS 192 /* a tile touches one distance fewer */

template <int D, int B> struct last_shape {
    static constexpr int ROW_WARPS = B / 32, KEY_WARPS = 8 / ROW_WARPS, KEYS = 32 * KEY_WARPS;
    static constexpr int PITCH = KEYS + 8, K_BYTES = KEYS * D * 2, P_BYTES = B * PITCH * 4;
    static_assert(2 * K_BYTES >= B * D * 2, "queries are staged where keys come");
};

#define LSE_THREADS 1024

/* Log-sum-exp of the lane's row, in base 2. part(p), p < n, is {largest score, sum of 2^(score -
 * largest)}. 32 warps share the parts; sums are double, in a fixed order. Valid in warp 0; -inf
 * when no part has a score. */
template <class F> static __device__ __forceinline__ double row_lse(int n, F part)
{
    __shared__ double sums[32][32];
    __shared__ float tops[32][32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float top = -INFINITY;
    double sum = 0;
#pragma unroll 4
    for (int p = warp; p < n; p += 32)
        top = fmaxf(top, part(p).x);
    tops[warp][lane] = top;
    __syncthreads();
    for (int w = 0; w < 32; w++)
        top = fmaxf(top, tops[w][lane]);
    if (top == -INFINITY)
        top = 0;
#pragma unroll 4
    for (int p = warp; p < n; p += 32) {
        float2 x = part(p);
        sum += (double)x.y * exp2f(x.x - top);
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp == 0)
        for (int w = 1; w < 32; w++)
            sum += sums[w][lane];
    return top + log2(sum);
}

/* Sizes and memory for the last `rows` queries of a problem. */
static int last_rows_init(struct gpu *g, const struct select_problem *p, int rows, double divide,
                          last_rows *a, struct err *err)
{
    int64_t h = p->heads;
    a->n = p->nk;
    a->nq = p->nq;
    a->step = 1;
    a->heads = p->heads;
    a->per_kv = p->heads / p->kv_heads;
    a->rows = rows;
    a->divide = divide;
    a->both = !p->causal;
    a->scale_log2 = (float)(p->scale * M_LOG2E);
    a->q = (const uint4 *)p->q;
    a->k = (const uint4 *)p->k;
    a->tall = rows > 64 ? 128 : 64;
    a->tiles = (int)ceil_div(a->n, 8192 / a->tall);
    /* Two thread blocks fit on a multiprocessor, three on Hopper. Each waits for its queries first,
     * so take no more ranges than make one wave. */
    a->sm90 = g->sm == 90;
    int64_t ranges = (a->sm90 ? 3 : 2) * g->sms / h;
    ranges = ranges < 1 ? 1 : ranges < a->tiles ? ranges : a->tiles;
    a->each = (int)ceil_div(a->tiles, ranges);
    a->ranges = (int)ceil_div(a->tiles, a->each);
    return take(g, err, &a->part, h * a->ranges * a->tall, &a->lse, h * a->tall, &a->diag_part,
                h * (a->sm90 ? last_sm90_diags(*a) : (int64_t)a->tiles * LAST_DIAGS), &a->ver,
                h * a->n, &a->sla, h * a->n);
}

/* Load the queries of a warp's rows as A operands. All threads have read theirs on return. */
template <int D, int B>
static __device__ __forceinline__ void last_queries(const last_rows &a, uint32_t stage,
                                                    uint32_t (&q)[2][D / 16][4])
{
    int row0 = (threadIdx.x >> 5) % last_shape<D, B>::ROW_WARPS * 32;
    const uint4 *rows = a.q + (int64_t)blockIdx.x * a.nq * (D / 8);
    int64_t first = first_row<B>(a) - (a.n - a.nq);
    for (int e = threadIdx.x; e < B * (D / 8); e += LAST_THREADS) {
        int r = e / (D / 8), c = e % (D / 8);
        bool valid = r >= B - a.rows;
        int64_t from = valid ? first + r * a.step : 0;
        copy_async(stage + chunk_at<D>(r, c), rows + from * (D / 8) + c, valid);
    }
    copy_commit();
    copy_wait<0>();
    __syncthreads();
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int kk = 0; kk < D / 16; kk++)
            load_a<D>(stage, row0 + 16 * m, kk, q[m][kk]);
    __syncthreads();
}

/* Raw scores of a warp's 32 rows and 16 keys from `from` on; -inf where a row does not see the key
 * or does not count. acc[m][n][i]: row 16 m + lane / 4 + 8 (i / 2), key 8 n + 2 (lane % 4) + i % 2.
 * With 32 keys at a time the queries would not fit into registers beside them. */
template <int D, int B>
static __device__ __forceinline__ void last_scores(const last_rows &a, uint32_t k, int key0,
                                                   int from, const uint32_t (&q)[2][D / 16][4],
                                                   float (&acc)[2][2][4])
{
    using S = last_shape<D, B>;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    int row0 = warp % S::ROW_WARPS * 32;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                acc[m][n][i] = 0;
#pragma unroll
    for (int kk = 0; kk < D / 16; kk++) {
        uint32_t b[4];
        load_b<D>(k, from, kk, b);
#pragma unroll
        for (int m = 0; m < 2; m++) {
            mma_bf16(acc[m][0], q[m][kk], b[0], b[1]);
            mma_bf16(acc[m][1], q[m][kk], b[2], b[3]);
        }
    }
    /* The last key that row 0 sees, and how many more each row sees. */
    int last = (int)(a.both ? a.n - 1 : first_row<B>(a)), step = a.both ? 0 : a.step;
    if (a.rows == B && key0 + S::KEYS <= last + 1)
        return;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int r = row0 + 16 * m + (lane >> 2) + 8 * (i / 2);
                int key = key0 + from + 8 * n + 2 * (lane & 3) + i % 2;
                if (r < B - a.rows || key > last + step * r)
                    acc[m][n][i] = -INFINITY;
            }
}

/* For the tiles of range blockIdx.y of head blockIdx.x, the keys of the next one on their way:
 * use(key, scores) twice, then end(tile). All threads are done with a tile before the next. */
template <int D, int B, class F, class G>
static __device__ __forceinline__ void last_walk(const last_rows &a, uint32_t k, F use, G end)
{
    using S = last_shape<D, B>;
    const uint4 *keys = a.k + (int64_t)(blockIdx.x / a.per_kv) * a.n * (D / 8);
    int t0 = blockIdx.y * a.each, t1 = min(t0 + a.each, a.tiles);
    uint32_t q[2][D / 16][4];

    last_queries<D, B>(a, k, q);
    copy_tile<D, S::KEYS, LAST_THREADS>(k, keys, (int64_t)t0 * S::KEYS, a.n);
    copy_commit();
    for (int t = t0; t < t1; t++) {
        float acc[2][2][4];
        copy_wait<0>();
        __syncthreads();
        if (t + 1 < t1)
            copy_tile<D, S::KEYS, LAST_THREADS>(k + (t + 1 - t0) % 2 * S::K_BYTES, keys,
                                                (int64_t)(t + 1) * S::KEYS, a.n);
        copy_commit();
        int from = (int)(threadIdx.x >> 5) / S::ROW_WARPS * 32;
#pragma unroll 1
        for (int key = from; key < from + 32; key += 16) {
            last_scores<D, B>(a, k + (t - t0) % 2 * S::K_BYTES, t * S::KEYS, key, q, acc);
            use(key, acc);
        }
        end(t);
    }
}

/* Largest and sum of the rows over a range of tiles: running ones in the four lanes of a row, then
 * over the warps that share rows. */
template <int D, int B>
static __global__ void __launch_bounds__(LAST_THREADS, 2) last_parts(const last_rows a)
{
    extern __shared__ __align__(128) uint8_t memory[];
    using S = last_shape<D, B>;
    __shared__ float2 row_part[S::KEY_WARPS][B];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    float top[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY}, sum[4] = {0};

    auto add = [&](int, float(&acc)[2][2][4]) {
#pragma unroll
        for (int r = 0; r < 4; r++) {
            float most = top[r], old;
#pragma unroll
            for (int n = 0; n < 2; n++)
                most = fmaxf(most, a.scale_log2 * fmaxf(acc[r / 2][n][r % 2 * 2],
                                                        acc[r / 2][n][r % 2 * 2 + 1]));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
            float base = most == -INFINITY ? 0 : most;
            old = exp2_fast(top[r] - base);
            top[r] = most;
            sum[r] *= old;
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    sum[r] += exp2_fast(fmaf(acc[r / 2][n][r % 2 * 2 + e], a.scale_log2, -base));
        }
    };
    last_walk<D, B>(a, shared_addr(memory), add, [](int) {});
#pragma unroll
    for (int r = 0; r < 4; r++) {
        sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
        sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
        if ((lane & 3) == 0)
            row_part[warp / S::ROW_WARPS][warp % S::ROW_WARPS * 32 + 8 * r + (lane >> 2)] =
                make_float2(top[r], sum[r]);
    }
    __syncthreads();
    if (threadIdx.x < B) {
        float most = -INFINITY, all = 0;
        for (int w = 0; w < S::KEY_WARPS; w++)
            most = fmaxf(most, row_part[w][threadIdx.x].x);
        for (int w = 0; w < S::KEY_WARPS && most > -INFINITY; w++)
            all += row_part[w][threadIdx.x].y * exp2_fast(row_part[w][threadIdx.x].x - most);
        a.part[((int64_t)blockIdx.x * a.ranges + blockIdx.y) * B + threadIdx.x] =
            make_float2(most, all);
    }
}

/* Log-sum-exp of 32 rows, a lane each; 0 of rows that do not count. */
static __global__ void __launch_bounds__(LSE_THREADS) last_join(const last_rows a)
{
    int row = blockIdx.x * 32 + (threadIdx.x & 31);
    const float2 *part = a.part + (int64_t)blockIdx.y * a.ranges * a.tall + row;
    double lse = row_lse(a.ranges, [=](int t) { return part[(int64_t)t * a.tall]; });
    if (threadIdx.x < 32)
        a.lse[(int64_t)blockIdx.y * a.tall + row] = lse == -INFINITY ? 0 : (float)lse;
}

/* Sums of a tile's probabilities p [B][PITCH] down its columns, 32 rows a thread, and along its
 * diagonals r - c = i - (KEYS - 1). The threads of a column start at different rows, for the sake
 * of the banks. */
template <int D, int B>
static __device__ __forceinline__ void last_tile_sums(const last_rows &a, int t, const float *p)
{
    using S = last_shape<D, B>;
    constexpr int SHARES = LAST_THREADS / S::KEYS;
    int64_t head = blockIdx.x, key = (int64_t)t * S::KEYS + threadIdx.x / SHARES;
    static_assert(B / SHARES == 32, "rows of a thread");
    int share = threadIdx.x % SHARES;
    float sum = 0;
#pragma unroll 8
    for (int i = 0; i < 32; i++)
        sum += p[(32 * share + (i + share * (4 / SHARES)) % 32) * S::PITCH + threadIdx.x / SHARES];
#pragma unroll
    for (int step = 1; step < SHARES; step *= 2)
        sum += __shfl_xor_sync(~0u, sum, step);
    if (threadIdx.x % SHARES == 0 && key < a.n) {
        double *to = a.ver + head * a.n + key;
        *to = (a.add ? *to : 0) + (double)sum / a.divide;
    }
    if (threadIdx.x >= LAST_DIAGS)
        return;
    int shift = (int)threadIdx.x - (S::KEYS - 1);
    sum = 0;
#pragma unroll 8
    for (int r = max(shift, 0); r < min(B, S::KEYS + shift); r++)
        sum += p[r * S::PITCH + r - shift];
    a.diag_part[(head * a.tiles + t) * LAST_DIAGS + threadIdx.x] = sum;
}

template <int D, int B>
static __global__ void __launch_bounds__(LAST_THREADS, 2) last_sums(const last_rows a)
{
    extern __shared__ __align__(128) uint8_t memory[];
    using S = last_shape<D, B>;
    float *p = (float *)(memory + 2 * S::K_BYTES), lse[4];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    int row0 = warp % S::ROW_WARPS * 32 + (lane >> 2);
    float *mine = p + row0 * S::PITCH + 2 * (lane & 3);

#pragma unroll
    for (int r = 0; r < 4; r++)
        lse[r] = a.lse[(int64_t)blockIdx.x * B + row0 + 8 * r];
    auto put = [&](int key, float(&acc)[2][2][4]) {
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const float *s = acc[r / 2][n] + r % 2 * 2;
                *(float2 *)(mine + 8 * r * S::PITCH + key + 8 * n) =
                    make_float2(exp2_fast(fmaf(s[0], a.scale_log2, -lse[r])),
                                exp2_fast(fmaf(s[1], a.scale_log2, -lse[r])));
            }
    };
    last_walk<D, B>(a, shared_addr(memory), put, [&](int t) {
        __syncthreads();
        last_tile_sums<D, B>(a, t, p);
    });
}

/* Sum of a diagonal from the tiles that have its keys; x is its first one, may be negative. */
static __device__ double last_diagonal(const last_rows &a, int64_t head, int64_t x)
{
    int keys = 8192 / a.tall;
    double sum = 0;
    for (int64_t t = x > 0 ? x / keys : 0; t < a.tiles; t++) {
        int64_t i = t * keys + keys - 1 - x;
        if (i >= a.tall + keys - 1)
            break;
        if (i >= 0)
            sum += a.diag_part[(head * a.tiles + t) * LAST_DIAGS + i];
    }
    return sum;
}

/* Mass per distance d: key = end - tall + r - d; with both sides also + d. */
static __global__ void last_diagonals(const last_rows a)
{
    int64_t d = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, head = blockIdx.y;
    int64_t first = a.end - a.tall;
    if (d >= a.n)
        return;
    auto diagonal = [&](int64_t x) {
        return a.sm90 ? last_sm90_diagonal(a, head, x) : last_diagonal(a, head, x);
    };
    double sum = diagonal(first - d);
    if (a.both && d > 0)
        sum += diagonal(first + d);
    double *to = a.sla + head * a.n + d;
    *to = (a.add ? *to : 0) + sum / a.divide;
}

template <int D, int B>
static int last_rows_tiles(struct gpu *g, const last_rows &a, struct err *err)
{
    using S = last_shape<D, B>;
    int parts = 2 * S::K_BYTES, sums = 2 * S::K_BYTES + S::P_BYTES;
    dim3 grid(a.heads, a.ranges);
    if (a.sm90)
        PASS_ON(last_sm90_launch(g, a, D, false, err));
    else
        PASS_ON_CU(err, (run_kernel(g->stream, last_parts<D, B>, grid, LAST_THREADS, parts, a)));
    PASS_ON_CU(err, run_kernel(g->stream, last_join, dim3(B / 32, a.heads), LSE_THREADS, 0, a));
    if (a.sm90)
        return last_sm90_launch(g, a, D, true, err);
    return CU_STATUS(err, (run_kernel(g->stream, last_sums<D, B>, grid, LAST_THREADS, sums, a)));
}

/* Fill ver and sla from the last rows of all, from the back, a pass for each `tall` of them; d = 64
 * or 128. */
static int last_rows_launch(struct gpu *g, const last_rows &a, int d, struct err *err)
{
    auto wide = a.tall == 128 ? last_rows_tiles<128, 128> : last_rows_tiles<128, 64>;
    auto narrow = a.tall == 128 ? last_rows_tiles<64, 128> : last_rows_tiles<64, 64>;
    for (int done = 0; done < a.rows; done += a.tall) {
        last_rows pass = a;
        pass.rows = a.rows - done < a.tall ? a.rows - done : a.tall;
        pass.end = a.n - done * (int64_t)a.step;
        pass.add = done > 0;
        if (!a.both) { /* no row sees a later key */
            pass.tiles = (int)ceil_div(pass.end, 8192 / a.tall);
            pass.each = (int)ceil_div(pass.tiles, a.ranges);
            pass.ranges = (int)ceil_div(pass.tiles, pass.each);
        }
        PASS_ON((d == 128 ? wide : narrow)(g, pass, err));
        if (!a.sla)
            continue;
        PASS_ON_CU(err, run_kernel(g->stream, last_diagonals, dim3(((a.n + 255) / 256), a.heads),
                                   256, 0, pass));
    }
    return 0;
}
