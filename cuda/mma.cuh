/*
 * mma.cuh - warp-level products: tiles of rows of 16-bit floats in shared memory, 16-byte chunks
 * XORed with the row so that ldmatrix has no bank conflicts, cp.async, mma.sync m16n8k16. For
 * selection kernels and for attention on GPUs without wgmma.
 *
 * A selection kernel reads its keys once and is bound by memory, so the synchronous product is fast
 * enough, and its tiles can have any height.
 */
#pragma once

#include "cuda/ldmatrix.cuh"
#include "cuda/mma16.cuh"

#include <stdint.h>

/* Byte offset of chunk c (8 channels) of a row of D channels. */
template <int D> static __device__ __forceinline__ uint32_t chunk_at(int row, int c)
{
    return (uint32_t)(row * (D * 2) + ((c ^ (row & 7)) << 4));
}

static __device__ __forceinline__ uint32_t shared_addr(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* 16 bytes, or zeros where !valid. */
static __device__ __forceinline__ void copy_async(uint32_t dst, const void *src, bool valid)
{
    int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int PENDING> static __device__ __forceinline__ void copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* ROWS x D of x from row0 on, rows past n as zeros, by THREADS threads. */
template <int D, int ROWS, int THREADS>
static __device__ __forceinline__ void copy_tile(uint32_t dst, const uint4 *x, int64_t row0,
                                                 int64_t n)
{
#pragma unroll 2
    for (int e = threadIdx.x; e < ROWS * (D / 8); e += THREADS) {
        int r = e / (D / 8), c = e % (D / 8);
        bool valid = row0 + r < n;
        copy_async(dst + chunk_at<D>(r, c), x + (valid ? row0 + r : 0) * (D / 8) + c, valid);
    }
}

static __device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* A operand: rows row0 .. row0 + 15, channels 16 kk .. 16 kk + 15. */
template <int D>
static __device__ __forceinline__ void load_a(uint32_t tile, int row0, int kk, uint32_t (&a)[4])
{
    int lane = threadIdx.x & 31;
    load_matrices(tile + chunk_at<D>(row0 + (lane & 15), 2 * kk + (lane >> 4)), a);
}

/* B operands of the rows row0 .. row0 + 7 (b[0], b[1]) and row0 + 8 .. row0 + 15 (b[2], b[3]). */
template <int D>
static __device__ __forceinline__ void load_b(uint32_t tile, int row0, int kk, uint32_t (&b)[4])
{
    int lane = threadIdx.x & 31;
    load_matrices(tile + chunk_at<D>(row0 + (lane & 7) + (lane >> 4) * 8, 2 * kk + (lane >> 3 & 1)),
                  b);
}

/* d (+)= A B^T; element i of d: row lane / 4 + 8 (i / 2), column 2 (lane % 4) + i % 2. */
static __device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                                uint32_t b1)
{
    MMA_16X8X16("bf16", d, a, b0, b1);
}

/* The same of bytes, 32 at a time, in 32-bit integers. */
static __device__ __forceinline__ void mma_s8(int (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                              uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* acc += products of MT x 16 rows of the tile q with NT x 8 rows of the tile k. */
template <int D, int MT, int NT>
static __device__ __forceinline__ void add_scores(uint32_t q, int q_row, uint32_t k, int k_row,
                                                  float (&acc)[MT][NT][4])
{
#pragma unroll
    for (int kk = 0; kk < D / 16; kk++) {
        uint32_t a[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++)
            load_a<D>(q, q_row + 16 * m, kk, a[m]);
#pragma unroll
        for (int n = 0; n < NT; n += 2) {
            uint32_t b[4];
            load_b<D>(k, k_row + 8 * n, kk, b);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma_bf16(acc[m][n], a[m], b[0], b[1]);
                mma_bf16(acc[m][n + 1], a[m], b[2], b[3]);
            }
        }
    }
}
