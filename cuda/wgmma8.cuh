/*
 * wgmma8.cuh - wgmma.mma_async for the products of quantised attention, in the style of wgmma.cuh:
 *
 *   wgmma_s8    D[64][N] (+)= A[64][32] B[N][32]^T  int8, int32 sums; A and B in shared memory
 *   wgmma_e4m3  D[64][N] (+)= A[64][32] B[N][32]^T  e4m3, fp32 sums; A in registers
 *   wgmma_f16   D[64][N] (+)= A[64][16] B[16][N]    float16, sums too or fp32; A in registers
 *
 * N is 128 or 64. A and B of 8 bits are K-major. Accumulators lie as in
 * wgmma.cuh, those in float16 in packed pairs, as the A registers of wgmma_f16 do. An A register of
 * wgmma_e4m3 has four columns of a row: register i of lane l of warp w is row 16 w + l / 4 + 8 (i %
 * 2), columns 16 (i / 2) + 4 (l % 4) and on.
 */
#pragma once

#include "cuda/wgmma.cuh"

#define BIND_S4(i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3])
#define BIND_S16(i) BIND_S4(i), BIND_S4(i + 4), BIND_S4(i + 8), BIND_S4(i + 12)
#define BIND_S64 BIND_S16(0), BIND_S16(16), BIND_S16(32), BIND_S16(48)

/* The instructions of n columns, with `count` accumulators; `rest` are the operands behind them,
 * `add` the number of the one that says whether to add. */
#define WGMMA8(n, types, count, add, rest)                                                         \
    "{\n.reg .pred p;\nsetp.ne.b32 p, %" #add ", 0;\n"                                             \
    "wgmma.mma_async.sync.aligned.m64n" #n types " {" D_##count "}, " rest ";\n}"

DEVICE void wgmma_s8(int (&d)[64], uint64_t a, uint64_t b, int add)
{
    asm volatile(WGMMA8(128, "k32.s32.s8.s8", 64, 66, "%64, %65, p")
                 : BIND_S64
                 : "l"(a), "l"(b), "r"(add));
}

DEVICE void wgmma_s8(int (&d)[32], uint64_t a, uint64_t b, int add)
{
    asm volatile(WGMMA8(64, "k32.s32.s8.s8", 32, 34, "%32, %33, p")
                 : BIND_S16(0), BIND_S16(16)
                 : "l"(a), "l"(b), "r"(add));
}

DEVICE void wgmma_e4m3(float (&d)[64], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                       uint64_t b, int add)
{
    asm volatile(WGMMA8(128, "k32.f32.e4m3.e4m3", 64, 69, "{%64, %65, %66, %67}, %68, p, 1, 1")
                 : BIND_64
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(add));
}

DEVICE void wgmma_e4m3(float (&d)[32], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                       uint64_t b, int add)
{
    asm volatile(WGMMA8(64, "k32.f32.e4m3.e4m3", 32, 37, "{%32, %33, %34, %35}, %36, p, 1, 1")
                 : BIND_32
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(add));
}

DEVICE void wgmma_f16(int (&d)[16], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b,
                      int add)
{
    asm volatile(WGMMA8(64, "k16.f16.f16.f16", 16, 21, "{%16, %17, %18, %19}, %20, p, 1, 1, 1")
                 : BIND_S16(0)
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(add));
}

DEVICE void wgmma_f16(int (&d)[32], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b,
                      int add)
{
    asm volatile(WGMMA8(128, "k16.f16.f16.f16", 32, 37, "{%32, %33, %34, %35}, %36, p, 1, 1, 1")
                 : BIND_S16(0), BIND_S16(16)
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(add));
}

DEVICE void wgmma_f16(float (&d)[64], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                      uint64_t b, int add)
{
    asm volatile(WGMMA8(128, "k16.f32.f16.f16", 64, 69, "{%64, %65, %66, %67}, %68, p, 1, 1, 1")
                 : BIND_64
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(add));
}

DEVICE void wgmma_f16(float (&d)[32], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                      uint64_t b, int add)
{
    asm volatile(WGMMA8(64, "k16.f32.f16.f16", 32, 37, "{%32, %33, %34, %35}, %36, p, 1, 1, 1")
                 : BIND_32
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(add));
}

/* The same as hold() of floats, for integers. */
template <int N> DEVICE void hold(int (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+r"(d[i])::"memory");
}

/* Two numbers in float16; a in the lower half. */
DEVICE uint32_t pack_f16(float a, float b)
{
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a));
    return r;
}

/* Four numbers in e4m3, rounded to nearest, at most 448; a in the lowest byte. */
DEVICE uint32_t pack_e4m3(float a, float b, float c, float d)
{
    uint32_t r;
    asm("{\n.reg .b16 l, h;\ncvt.rn.satfinite.e4m3x2.f32 l, %2, %1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 h, %4, %3;\nmov.b32 %0, {l, h};\n}"
        : "=r"(r)
        : "f"(a), "f"(b), "f"(c), "f"(d));
    return r;
}
