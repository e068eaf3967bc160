/*
 * attn_portable.cu - exact attention forward with the warp-wide tensor instructions of sm_80 and
 * later (mma.sync m16n8k16, ldmatrix, cp.async), for GPUs that are not Hopper. The same work items,
 * lists, split rows and results as attn_sm90.cuh.
 *
 * Tile: 64 or 128 query rows, one warp per 16 rows, against 64 keys at a time, with the next 64 in
 * flight (FlashAttention-2, arXiv 2307.08691, algorithm 1). One thread block per item, in the order
 * of the plan. Keys go from the item's end to its beginning, because the plan puts masked units at
 * the end. Registers hold the queries, 64 scores and D outputs per row of a warp. Shared memory: Q
 * and two stages of K and V, in rows of D elements whose 16-byte chunks are XORed with row & 7, so
 * that ldmatrix has no bank conflicts.
 */
#include "cuda/attn/attn_args.h"
#include "cuda/softrows.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>

#define BN 64

/* ---- instructions --------------------------------------------------------------------------- */

/* What differs between the element types. */
template <class E> struct element;

template <> struct element<__nv_bfloat16> {
    static __device__ __forceinline__ uint32_t pack(float lo, float hi)
    {
        uint32_t r;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
        return r;
    }
    static __device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                               uint32_t b1)
    {
        MMA_16X8X16("bf16", d, a, b0, b1);
    }
};

template <> struct element<__half> {
    static __device__ __forceinline__ uint32_t pack(float lo, float hi)
    {
        uint32_t r;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
        return r;
    }
    static __device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                               uint32_t b1)
    {
        MMA_16X8X16("f16", d, a, b0, b1);
    }
};

/* ---- a warp --------------------------------------------------------------------------------- */

/* Rows list[0 .. ROWS) of x [n][D] to shared memory. */
template <int D, int ROWS, int THREADS, class E>
static __device__ __forceinline__ void gather_rows(uint32_t dst, const E *x, const int32_t *list)
{
    constexpr int CHUNKS = D / 8;
#pragma unroll 1 /* registers are short */
    for (int i = threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
        int r = i / CHUNKS, c = i % CHUNKS, row = __ldg(list + r);
        copy_async(dst + (r * CHUNKS + (c ^ (r & 7))) * 16, x + (size_t)row * D + c * 8, true);
    }
}

/* Rows [row0, row0 + ROWS) of x [n][D] to shared memory; rows from n on become 0. */
template <int D, int ROWS, int THREADS, class E>
static __device__ __forceinline__ void load_rows(uint32_t dst, const E *x, int row0, int n)
{
    constexpr int CHUNKS = D / 8;
    for (int i = threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
        int r = i / CHUNKS, c = i % CHUNKS;
        bool in = row0 + r < n;
        copy_async(dst + (r * CHUNKS + (c ^ (r & 7))) * 16,
                   x + (size_t)(in ? row0 + r : 0) * D + c * 8, in);
    }
}

template <int D>
static __device__ __forceinline__ uint32_t chunk_addr(uint32_t base, int row, int c)
{
    return base + (row * (D / 8) + (c ^ (row & 7))) * 16;
}

template <int D, class E> struct warp_tile {
    uint32_t q[D / 16][4];
    float s[BN / 8][4], o[D / 8][4], m[2], l[2];

    static __device__ __forceinline__ int lane()
    {
        return threadIdx.x & 31;
    }

    __device__ __forceinline__ void start(uint32_t q_smem)
    {
        int row = (threadIdx.x >> 5) * 16 + (lane() & 15);
#pragma unroll
        for (int kk = 0; kk < D / 16; kk++)
            load_matrices(chunk_addr<D>(q_smem, row, 2 * kk + (lane() >> 4)), q[kk]);
#pragma unroll
        for (int i = 0; i < D / 8; i++)
            o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0;
        m[0] = m[1] = -INFINITY;
        l[0] = l[1] = 0;
    }

    __device__ __forceinline__ void scores(uint32_t k_smem)
    {
        int row = (lane() >> 4) * 8 + (lane() & 7), half = lane() >> 3 & 1;
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
            s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0;
#pragma unroll
        for (int kk = 0; kk < D / 16; kk++)
#pragma unroll
            for (int j = 0; j < BN / 8; j += 2) {
                uint32_t b[4];
                load_matrices(chunk_addr<D>(k_smem, 8 * j + row, 2 * kk + half), b);
                element<E>::mma(s[j], q[kk], b[0], b[1]);
                element<E>::mma(s[j + 1], q[kk], b[2], b[3]);
            }
    }

    /* limit[r]: first key that row r of this thread does not see, less key0 and its columns. */
    __device__ __forceinline__ void mask(const int (&limit)[2])
    {
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (8 * j + (i & 1) >= limit[i >> 1])
                    s[j][i] = -INFINITY;
    }

    /* kept: a bit per score, in order. */
    __device__ __forceinline__ void keep(uint32_t kept)
    {
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (!(kept >> (4 * j + i) & 1))
                    s[j][i] = -INFINITY;
    }

    __device__ __forceinline__ void softmax(float scale_log2)
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float top = m[r];
#pragma unroll
            for (int j = 0; j < BN / 8; j++)
                top = fmaxf(top, fmaxf(s[j][2 * r], s[j][2 * r + 1]));
            top = row_max(top);
            float base = top == -INFINITY ? 0 : top * scale_log2, add = 0;
            float c = exp2_fast(fmaf(m[r], scale_log2, -base));
            m[r] = top;
#pragma unroll
            for (int j = 0; j < BN / 8; j++)
#pragma unroll
                for (int i = 2 * r; i < 2 * r + 2; i++) {
                    s[j][i] = exp2_fast(fmaf(s[j][i], scale_log2, -base));
                    add += s[j][i];
                }
            l[r] = fmaf(l[r], c, add);
            scale_row(o, r, c);
        }
    }

    __device__ __forceinline__ void values(uint32_t v_smem)
    {
        int row = lane() & 15, half = lane() >> 4;
#pragma unroll
        for (int kk = 0; kk < BN / 16; kk++) {
            uint32_t a[4] = {element<E>::pack(s[2 * kk][0], s[2 * kk][1]),
                             element<E>::pack(s[2 * kk][2], s[2 * kk][3]),
                             element<E>::pack(s[2 * kk + 1][0], s[2 * kk + 1][1]),
                             element<E>::pack(s[2 * kk + 1][2], s[2 * kk + 1][3])};
#pragma unroll
            for (int i = 0; i < D / 8; i += 2) {
                uint32_t b[4];
                load_transposed(chunk_addr<D>(v_smem, 16 * kk + row, i + half), b);
                element<E>::mma(o[i], a, b[0], b[1]);
                element<E>::mma(o[i + 1], a, b[2], b[3]);
            }
        }
    }

    __device__ __forceinline__ void store(const attn_args &a, E *out, int head, int row0, int slot,
                                          int rows)
    {
        int in_tile = (threadIdx.x >> 5) * 16 + (lane() >> 2);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            l[r] = row_add(l[r]);
            int row = in_tile + 8 * r;
            float inv = l[r] > 0 ? 1 / l[r] : 0;
            size_t to = slot >= 0 ? (size_t)slot * rows + row : (size_t)head * a.nq + row0 + row;
            if (slot >= 0) {
#pragma unroll
                for (int i = 0; i < D / 8; i++)
                    *(float2 *)(a.piece_out + to * D + 8 * i + 2 * (lane() & 3)) =
                        make_float2(o[i][2 * r], o[i][2 * r + 1]);
                if ((lane() & 3) == 0)
                    a.piece_ml[to] = make_float2(m[r] * a.scale_log2, l[r]);
            } else if (row0 + row < a.nq) {
#pragma unroll
                for (int i = 0; i < D / 8; i++)
                    *(uint32_t *)(out + to * D + 8 * i + 2 * (lane() & 3)) =
                        element<E>::pack(o[i][2 * r] * inv, o[i][2 * r + 1] * inv);
                if ((lane() & 3) == 0)
                    a.lse[to] = l[r] > 0
                                    ? (m[r] * a.scale_log2 + log2f(l[r])) * 0.69314718055994531f
                                    : -INFINITY;
            }
        }
    }
};

/* ---- kernel --------------------------------------------------------------------------------- */

/* First key of step i, counted from the item's end: blocks of `keys` keys make keys / BN steps. */
static __device__ __forceinline__ int step_key(const attn_args &a, const int4 &item, int keys,
                                               int i)
{
    int steps = keys / BN, b = item.z - 1 - i / steps;
    return (a.cols ? __ldg(a.cols + b) : b) * keys + (steps - 1 - i % steps) * BN;
}

/* Bits of the thread's scores of step i: half a word, as blocks of 128 keys make two steps. False
 * where the block is kept as a whole. */
static __device__ __forceinline__ bool step_bits(const attn_args &a, const int4 &item, int i,
                                                 uint32_t &kept)
{
    int block = __ldg(a.bits + item.z - 1 - i / 2);
    if (block >= 0)
        kept = __ldg((const uint32_t *)(a.words + (size_t)block * 256 + threadIdx.x) + 1 - i % 2);
    return block >= 0;
}

/* What a list's blocks are besides whole ones of keys that follow each other. */
enum block_kind { WHOLE, BITS, GATHER };

/* Keys or values of a step. */
template <int D, int THREADS, block_kind KIND, class E>
static __device__ __forceinline__ void load_step(const attn_args &a, uint32_t dst, const E *x,
                                                 int key0)
{
    if constexpr (KIND == GATHER)
        gather_rows<D, BN, THREADS>(dst, x, a.keys + key0);
    else
        load_rows<D, BN, THREADS>(dst, x, key0, a.nk);
}

template <int D, int WARPS, class E, block_kind KIND = WHOLE>
__global__ void __launch_bounds__(32 * WARPS)
    attn_portable(const E *q, const E *k, const E *v, E *out, const attn_args a, int keys)
{
    constexpr int ROWS = 16 * WARPS, THREADS = 32 * WARPS, STAGE = BN * D * 2;
    extern __shared__ __align__(128) uint8_t raw[];
    uint32_t q_smem = (uint32_t)__cvta_generic_to_shared(raw), k_smem = q_smem + ROWS * D * 2;
    uint32_t v_smem = k_smem + 2 * STAGE;
    int4 item = __ldg(a.items + blockIdx.x);
    int head = item.x / a.q_blocks, row0 = (item.x - head * a.q_blocks) * ROWS;
    int steps = (item.z - item.y) * (keys / BN), masked = a.masked_units * (keys / BN);
    int row = row0 + (threadIdx.x >> 5) * 16 + ((threadIdx.x & 31) >> 2);
    size_t kv = (size_t)(head / a.group) * a.nk * D;
    warp_tile<D, E> w;

    int key0 = step_key(a, item, keys, 0);
    load_rows<D, ROWS, THREADS>(q_smem, q + (size_t)head * a.nq * D, row0, a.nq);
    load_step<D, THREADS, KIND>(a, k_smem, k + kv, key0);
    load_step<D, THREADS, KIND>(a, v_smem, v + kv, key0);
    copy_commit();
    for (int i = 0; i < steps; i++) {
        int at = (i & 1) * STAGE, next = key0;
        if (i + 1 < steps) {
            next = step_key(a, item, keys, i + 1);
            load_step<D, THREADS, KIND>(a, k_smem + (STAGE - at), k + kv, next);
            load_step<D, THREADS, KIND>(a, v_smem + (STAGE - at), v + kv, next);
        }
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        if (i == 0)
            w.start(q_smem);
        uint32_t kept = 0;
        bool partly = KIND != WHOLE && step_bits(a, item, i, kept);
        w.scores(k_smem + at);
        if (partly) {
            w.keep(kept);
        } else if (KIND != GATHER && i < masked) {
            int first = key0 + 2 * (threadIdx.x & 3), limit[2];
            for (int r = 0; r < 2; r++)
                limit[r] = (a.causal ? min(a.nk, row + 8 * r + a.offset + 1) : a.nk) - first;
            w.mask(limit);
        }
        w.softmax(a.scale_log2);
        w.values(v_smem + at);
        __syncthreads(); /* the stage may be overwritten */
        key0 = next;
    }
    w.store(a, out, head, row0, item.w, ROWS);
}

/* ---- launch --------------------------------------------------------------------------------- */

int attn_portable_smem(int d, int rows)
{
    return (rows + 4 * BN) * d * 2;
}

template <int D, int WARPS, class E, block_kind KIND = WHOLE>
static void launch(cudaStream_t stream, const void *maps, const void *args, int keys)
{
    const attn_tensors *x = (const attn_tensors *)maps;
    const attn_args *a = (const attn_args *)args;
    int bytes = attn_portable_smem(D, 16 * WARPS);
    cudaFuncSetAttribute(attn_portable<D, WARPS, E, KIND>,
                         cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    attn_portable<D, WARPS, E, KIND><<<a->n_items, 32 * WARPS, bytes, stream>>>(
        (const E *)x->q, (const E *)x->k, (const E *)x->v, (E *)x->out, *a, keys);
}

/* keys 0: float16 operands, dense; 1: with bits, 2: gathered. */
template <int ROWS, int D, int KEYS>
static void launch_as(cudaStream_t stream, const void *maps, const void *args)
{
    if constexpr (KEYS == 0)
        launch<D, ROWS / 16, __half>(stream, maps, args, BN);
    else if constexpr (KEYS < 3)
        launch<D, ROWS / 16, __nv_bfloat16, KEYS == 1 ? BITS : GATHER>(stream, maps, args, 2 * BN);
    else
        launch<D, ROWS / 16, __nv_bfloat16>(stream, maps, args, KEYS);
}

#define X(rows, d, keys)                                                                           \
    void attn_portable_##rows##_##d##_##keys(int, cudaStream_t stream, const void *maps,           \
                                             const void *args)                                     \
    {                                                                                              \
        launch_as<rows, d, keys>(stream, maps, args);                                              \
    }
PORTABLE_LAUNCHES(X)
#undef X
