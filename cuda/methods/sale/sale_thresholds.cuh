/*
 * sale_thresholds.cuh - the thresholds of SALE's rows: exact scores of a query block with its sink
 * and local blocks (sim/methods/sale/sale_select.c has the rule).
 */
#ifndef LACUNA_SALE_THRESHOLDS_CUH
#define LACUNA_SALE_THRESHOLDS_CUH

#include "cuda/methods/sale/sale_common.cuh"
#include "cuda/mma.cuh"

#define THRESHOLD_THREADS 256
#define THRESHOLD_BLOCKS(a) ((a).local + 4) /* most sink and local blocks of a query block */

static __device__ __forceinline__ void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                               uint32_t b1)
{
    MMA_16X8X16("f16", d, a, b0, b1);
}

/* Largest score of a row so far and the sum of e^(score - largest). */
struct online {
    float top;
    double sum;

    /* Eight scores, -INFINITY for none: added among themselves in float. */
    __device__ __forceinline__ void add(const float (&x)[8], float factor)
    {
        float most = top, part = 0;
#pragma unroll
        for (int i = 0; i < 8; i++)
            most = fmaxf(most, x[i]);
        if (most == -INFINITY)
            return;
#pragma unroll
        for (int i = 0; i < 8; i++)
            part += exp2f((x[i] - most) * factor);
        sum = sum * exp2f((top - most) * factor) + part;
        top = most;
    }
    __device__ __forceinline__ void merge(int bit, float factor)
    {
        float other = __shfl_xor_sync(~0u, top, bit), most = fmaxf(top, other);
        double theirs = __shfl_xor_sync(~0u, sum, bit);
        sum = sum == 0 ? 0 : sum * exp2f((top - most) * factor);
        sum += theirs == 0 ? 0 : theirs * exp2f((other - most) * factor);
        top = most;
    }
};

/* Two bf16 values as fp16. */
static __device__ __forceinline__ uint32_t two_fl16(const uint32_t *from)
{
    uint32_t raw = *from;
    __half2 x = __floats2half2_rn(fl16(__uint_as_float(raw << 16)),
                                  fl16(__uint_as_float(raw & 0xffff0000u)));
    return *(uint32_t *)&x;
}

/* Scores of a warp's 16 rows with 32 keys, by strip of 8. */
template <int D>
static __device__ __forceinline__ void score_block(const uint32_t (&rows)[D / 16][4], uint32_t keys,
                                                   float (&acc)[4][4])
{
#pragma unroll
    for (int c = 0; c < D / 16; c++)
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            uint32_t y[4];
            load_b<D>(keys, 8 * i, c, y);
            mma_f16(acc[i], rows[c], y[0], y[1]);
            mma_f16(acc[i + 1], rows[c], y[2], y[3]);
        }
}

/* Thresholds of a query block in all heads that read the same keys, which stay in shared memory; a
 * warp for 16 rows of one head in two. Grid (groups, kv_heads). */
template <int D>
static __global__ void __launch_bounds__(THRESHOLD_THREADS, 2) find_thresholds(const sale_args a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    int m = blockIdx.x, kv = blockIdx.y, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int64_t row0 = (int64_t)m * BQ + 16 * (warp % 4), row = row0 + (lane >> 2);
    const uint4 *keys = (const uint4 *)a.k16 + kv * a.npad * (D / 8);
    float factor = (float)(a.scale * 1.4426950408889634);
    regions g = regions_of(a, m);

    if (g.mid == 0)
        return;
    for (int j = 0, at = 0; j < g.n; j = j == 0 ? g.mid + 1 : j + 1, at++)
        copy_tile<D, BK, THRESHOLD_THREADS>(shared_addr(shared) + at * BK * D * 2, keys, j * BK,
                                            a.npad);
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    for (int i = warp / 4; i < a.per_kv; i += 2) {
        int head = kv * a.per_kv + i;
        const uint32_t *q = (const uint32_t *)a.q + head * a.n * (D / 2) + (lane & 3);
        online s[2] = {{-INFINITY, 0}, {-INFINITY, 0}};
        uint32_t rows[D / 16][4];
#pragma unroll
        for (int c = 0; c < D / 16; c++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                rows[c][e] =
                    two_fl16(q + min(row + 8 * (e % 2), a.n - 1) * (D / 2) + 8 * c + 4 * (e / 2));
        for (int j = 0, at = 0; j < g.n; j = j == 0 ? g.mid + 1 : j + 1, at++) {
            float acc[4][4] = {{0}};
            score_block<D>(rows, shared_addr(shared) + at * BK * D * 2, acc);
            int64_t last = j * (int64_t)BK + BK - 1;
            bool cut = last >= a.n || (a.causal_stats && last > row0);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float x[8];
#pragma unroll
                for (int e = 0; e < 8; e++) {
                    int64_t key = j * BK + 8 * (e / 2) + 2 * (lane & 3) + e % 2;
                    bool seen = !cut || (key < a.n && (!a.causal_stats || key <= row + 8 * r));
                    x[e] = seen ? acc[e / 2][2 * r + e % 2] : -INFINITY;
                }
                s[r].add(x, factor);
            }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            s[r].merge(1, factor);
            s[r].merge(2, factor);
            if ((lane & 3) == 0) {
                double l = (float)s[r].sum;
                double thr = log2(a.tau * l) / (a.scale * 1.4426950408889634) + (double)s[r].top;
                a.thr[head * a.npad + row + 8 * r] = fl16((float)thr);
            }
        }
    }
}

#endif
