/*
 * xattn_sm90.cu - antidiagonal scores of strided cells on Hopper: wgmma, q and k by TMA.
 *
 * A run of S tokens is one row of S D channels in memory, so the scores are a plain product of two
 * matrices of N / S rows; only the runs of q are read from their last token to their first. A
 * thread block per multiprocessor takes tiles of 256 x 128 scores in turn: two warpgroups have 128
 * rows each, one warp copies 64 channels at a time. A thread reduces its scores in registers, while
 * the copies of the next tile are under way.
 */
#include "core/intmath.h"
#include "cuda/methods/xattention/xattn_sm90.cuh"
#include "cuda/tensormap.h"
#include "cuda/wgmma.cuh"

extern "C" {
#include "core/mem.h"
}

#include <math.h>
#include <stdlib.h>

#define DEPTH 64 /* channels of a stage */
#define STAGES 4
#define SM90_THREADS (256 + 32)

struct score_smem {
    alignas(1024) uint8_t q[STAGES][WIDE_ROWS * DEPTH * 2];
    alignas(1024) uint8_t k[STAGES][TILE * DEPTH * 2];
    uint64_t full[STAGES], empty[STAGES];
};

struct place {
    int head, row0, key0; /* reduced */
};

template <int PER> static DEVICE place place_at(const xattn_args &a, const xattn_sm90 &s, int i)
{
    int at = __ldg(s.places + i % s.n_places);
    return {i / s.n_places, (at >> 16) * WIDE_ROWS, (at & 0xffff) * TILE};
}

/* ---- copies --------------------------------------------------------------------------------- */

template <int PER>
static DEVICE void produce(score_smem &sm, const xattn_args &a, const xattn_sm90 &s,
                           const CUtensorMap *mq, const CUtensorMap *mk, int d)
{
    int n = a.stride * d / DEPTH;
    ring<STAGES> at;
    for (int i = blockIdx.x; i < s.n_places * a.heads; i += gridDim.x) {
        place p = place_at<PER>(a, s, i);
        for (int c = 0; c < n; c++) {
            uint32_t bar = smem_addr(&sm.full[at.at]);
            int x = c * DEPTH, t = x / d;
            mbar_wait(smem_addr(&sm.empty[at.at]), at.parity ^ 1);
            mbar_expect(bar, sizeof sm.q[0] + sizeof sm.k[0]);
            tma_load(smem_addr(sm.q[at.at]), mq, bar, x + (a.stride - 1 - 2 * t) * d, p.row0,
                     p.head, L2_EVICT_LAST);
            tma_load(smem_addr(sm.k[at.at]), mk, bar, x, p.key0, p.head / a.per_kv, L2_EVICT_LAST);
            at.next();
        }
    }
}

/* ---- scores of a tile ------------------------------------------------------------------------ */

/* From the 64 scores of a thread to the largest and the block sums of its two rows; PER reduced
 * columns a block. A quad has a row: the sum of a block of 8 and more columns is over its lanes, of
 * 4 over two of them. */
template <int PER>
static DEVICE void reduce_rows(const xattn_args &a, const place &p, int row0,
                               const float (&score)[64])
{
    constexpr int BLOCKS = TILE / PER, LANES = PER >= 8 ? 4 : PER / 2;
    int quad = threadIdx.x & 3;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = row0 + 8 * half;
        int limit = row < a.rows ? min(columns(a, row), a.keys) : 0;
        int n = min(max(limit - p.key0, 0), TILE);
        int64_t at = (int64_t)p.head * a.rows + row;
        float top = -INFINITY;
#pragma unroll
        for (int c = 0; c < 32; c++)
            if (8 * (c / 2) + 2 * quad + c % 2 < n)
                top = fmaxf(top, score[4 * (c / 2) + 2 * half + c % 2]);
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2)) * a.factor;
        if (row < a.rows && quad == 0)
            a.top[at * a.tiles + p.key0 / TILE] = n > 0 ? top : -INFINITY;
#pragma unroll
        for (int b0 = 0; b0 < BLOCKS; b0 += 4 / LANES) { /* those that lie in the same columns */
            float sum = 0;
            int block = b0 + quad / LANES;
#pragma unroll
            for (int c = 0; c < (PER >= 8 ? PER / 4 : 2); c++) {
                int column = b0 * PER / 8 + c / 2;
                float x = score[4 * column + 2 * half + c % 2];
                bool in = 8 * column + 2 * quad + c % 2 < n;
                sum += in ? exp2_fast(fmaf(x, a.factor, -top)) : 0;
            }
#pragma unroll
            for (int step = 1; step < LANES; step *= 2)
                sum += __shfl_xor_sync(~0u, sum, step);
            int to = p.key0 / PER + block;
            bool mine = LANES == 4 ? quad == b0 % 4 : quad % LANES == 0;
            if (mine && row < a.rows && to < a.key_blocks)
                a.sum[at * a.key_blocks + to] = sum;
        }
    }
}

template <int PER>
static DEVICE void consume(score_smem &sm, const xattn_args &a, const xattn_sm90 &s, int d)
{
    int n = a.stride * d / DEPTH, group = threadIdx.x >> 7;
    int own = 128 * group + 16 * (threadIdx.x >> 5 & 3) + (threadIdx.x >> 2 & 7);
    float acc[2][64];
    ring<STAGES> at;
    for (int i = blockIdx.x; i < s.n_places * a.heads; i += gridDim.x) {
        place p = place_at<PER>(a, s, i);
        int before = 0;
#pragma unroll 1
        for (int c = 0; c < n; c++) {
            mbar_wait(smem_addr(&sm.full[at.at]), at.parity);
            uint64_t q = descriptor(desc_low(smem_addr(sm.q[at.at]) + group * 128 * 128, 16));
            uint64_t k = descriptor(desc_low(smem_addr(sm.k[at.at]), 16));
            wgmma_fence();
#pragma unroll
            for (int kk = 0; kk < DEPTH / 16; kk++) {
                wgmma_ss<128>(acc[0], q + 2 * kk, k + 2 * kk, c + kk > 0);
                wgmma_ss<128>(acc[1], q + 512 + 2 * kk, k + 2 * kk, c + kk > 0);
            }
            wgmma_commit();
            wgmma_wait<1>(); /* the stage before is done */
            if (c > 0)
                warp_arrive(smem_addr(&sm.empty[before]));
            before = at.at;
            at.next();
        }
        wgmma_wait<0>();
        hold(acc[0]);
        hold(acc[1]);
        warp_arrive(smem_addr(&sm.empty[before]));
        reduce_rows<PER>(a, p, p.row0 + own, acc[0]);
        reduce_rows<PER>(a, p, p.row0 + own + 64, acc[1]);
    }
}

template <int PER>
static __global__ void __launch_bounds__(SM90_THREADS, 1)
    score_runs(const __grid_constant__ CUtensorMap mq, const __grid_constant__ CUtensorMap mk,
               const __grid_constant__ xattn_args a, const __grid_constant__ xattn_sm90 s, int d)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t raw[];
    score_smem &sm = *(score_smem *)raw;
    int warp = uniform(threadIdx.x >> 5);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            mbar_init(smem_addr(&sm.full[i]), 1);
            mbar_init(smem_addr(&sm.empty[i]), 8);
        }
        mbar_init_fence();
    }
    __syncthreads();
    if (warp == 8) {
        if ((threadIdx.x & 31) == 0)
            produce<PER>(sm, a, s, &mq, &mk, d);
        return;
    }
    consume<PER>(sm, a, s, d);
#endif
}

/* ---- launches ------------------------------------------------------------------------------- */

/* Heads of n rows of `width` uint4 become heads of m >= n rows, the further ones zero. */
static __global__ void pad_heads(const uint4 *x, int64_t n, int64_t m, int width, int heads,
                                 uint4 *to)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    int64_t head = i / (m * width), row = i / width % m;
    if (head < heads)
        to[i] = row < n ? x[(head * n + row) * width + i % width] : make_uint4(0, 0, 0, 0);
}

static int pad(struct gpu *g, const uint4 *x, int64_t n, int64_t m, int d, int heads, uint4 *to,
               struct err *err)
{
    int rc = 0;
    if (!to)
        return 0;
    pad_heads<<<(unsigned)ceil_div(heads * m * (d / 8), 256), 256, 0, g->stream>>>(x, n, m, d / 8,
                                                                                   heads, to);
    CU_LAUNCHED(err);
out:
    return rc;
}

template <int PER>
static int launch(struct gpu *g, const xattn_args &a, int d, const xattn_sm90 &s, struct err *err)
{
    int rc = 0, tiles = s.n_places * a.heads;
    unsigned grid = (unsigned)(tiles < g->sms ? tiles : g->sms);
    CU(err, cudaFuncSetAttribute((const void *)score_runs<PER>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(score_smem)));
    score_runs<PER><<<grid, SM90_THREADS, sizeof(score_smem), g->stream>>>(s.q, s.k, a, s, d);
    CU_LAUNCHED(err);
out:
    return rc;
}

int xattn_sm90_launch(struct gpu *g, const xattn_args &a, int d, const xattn_sm90 &s,
                      struct err *err)
{
    int rc = 0;
    TRY(pad(g, a.q, a.nq, (int64_t)a.rows * a.stride, d, a.heads, s.padded[0], err));
    TRY(pad(g, a.k, a.nk, (int64_t)a.keys * a.stride, d, a.heads / a.per_kv, s.padded[1], err));
    switch (a.per_block) {
    case 8:
        return launch<8>(g, a, d, s, err);
    case 16:
        return launch<16>(g, a, d, s, err);
    default:
        return launch<32>(g, a, d, s, err);
    }
out:
    return rc;
}

/* Tiles that hold a score, row by row. */
static int make_places(struct gpu *g, const xattn_args &a, xattn_sm90 *s, struct err *err)
{
    int64_t rows = ceil_div(a.rows, WIDE_ROWS);
    int32_t *places = NULL, *to = NULL;
    int rc = 0;
    TRY(mem_alloc(&places, rows * a.tiles, sizeof *places, "tiles of scores", err));
    for (int64_t r = 0; r < rows; r++) {
        int64_t last = (r + 1) * WIDE_ROWS < a.rows ? (r + 1) * WIDE_ROWS : a.rows;
        int n = columns(a, (int)last - 1);
        n = n < 0 ? 0 : n < a.keys ? n : a.keys;
        for (int64_t t = 0; t * TILE < n; t++)
            places[s->n_places++] = (int32_t)(r << 16 | t);
    }
    TRY(gpu_alloc(g, (int64_t)s->n_places * 4 + 4, &to, err));
    TRY(gpu_put(g, to, places, (int64_t)s->n_places * 4, err));
    s->places = to;
out:
    free(places);
    return rc;
}

int xattn_sm90_init(struct gpu *g, const xattn_args &a, int d, xattn_sm90 *s, struct err *err)
{
    int64_t nq = (int64_t)a.rows * a.stride, nk = (int64_t)a.keys * a.stride;
    int rc = 0, kv_heads = a.heads / a.per_kv;
    if (nq != a.nq)
        TRY(gpu_alloc(g, a.heads * nq * d * 2, &s->padded[0], err));
    if (nk != a.nk)
        TRY(gpu_alloc(g, kv_heads * nk * d * 2, &s->padded[1], err));
    TRY(tensor_map(&s->q, s->padded[0] ? s->padded[0] : a.q, a.stride * d, a.rows, a.heads,
                   WIDE_ROWS, err));
    TRY(tensor_map(&s->k, s->padded[1] ? s->padded[1] : a.k, a.stride * d, a.keys, kv_heads, TILE,
                   err));
    TRY(make_places(g, a, s, err));
out:
    return rc;
}
