/*
 * wgmma.cuh - wgmma.mma_async for 16-bit floats (ATTN_ELEMENT) with fp32 accumulators, one wrapper
 * per shape in use.
 *
 *   wgmma_ss<N>  D[64][N] (+)= A[64][16] B[N][16]^T   A and B in shared memory, both K-major
 *   wgmma_rs<N>  D[64][N] (+)= A[64][16] B[16][N]     A in registers, B in shared memory MN-major
 *
 * With add = 0 the old accumulators are ignored. Accumulator i of a thread (lane l of warp w of the
 * warpgroup) is row 16 w + l / 4 + 8 (i / 2 % 2), column 8 (i / 4) + 2 (l % 4) + i % 2; the A
 * registers of wgmma_rs are the same layout in packed pairs.
 */
#pragma once

#include "cuda/hop.cuh"

/* The accumulators d of a thread as operands %0, %1, ... of an instruction: their names, and the
 * constraints that bind them. */
#define D_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define D_32 D_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define D_48 D_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define D_64 D_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define D_96                                                                                       \
    D_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, " \
         "%81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define D_128                                                                                      \
    D_96                                                                                           \
        ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, " \
        "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, "     \
        "%125, %126, %127"
#define BIND_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define BIND_16(i) BIND_4(i), BIND_4(i + 4), BIND_4(i + 8), BIND_4(i + 12)
#define BIND_32 BIND_16(0), BIND_16(16)
#define BIND_48 BIND_32, BIND_16(32)
#define BIND_64 BIND_48, BIND_16(48)
#define BIND_96 BIND_64, BIND_16(64), BIND_16(80)
#define BIND_128 BIND_96, BIND_16(96), BIND_16(112)

/* The instruction of n columns, with `count` accumulators; `rest` are the operands behind them,
 * `add` the number of the one that says whether to add. */
#define WGMMA(n, count, add, rest)                                                                 \
    "{\n.reg .pred p;\nsetp.ne.b32 p, %" #add ", 0;\n"                                             \
    "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." ATTN_ELEMENT "." ATTN_ELEMENT " {" D_##count \
        "}, " rest ";\n}"

template <int N> struct wgmma;

#define WGMMA_SS(n, count, a_at, b_at, add_at)                                                     \
    static DEVICE void ss(float(&d)[count], uint64_t a, uint64_t b, int add)                       \
    {                                                                                              \
        asm volatile(WGMMA(n, count, add_at, "%" #a_at ", %" #b_at ", p, 1, 1, 0, 0")              \
                     : BIND_##count                                                                \
                     : "l"(a), "l"(b), "r"(add));                                                  \
    }

#define WGMMA_RS(n, count, a, b_at, add_at)                                                        \
    static DEVICE void rs(float(&d)[count], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,    \
                          uint64_t b, int add)                                                     \
    {                                                                                              \
        asm volatile(WGMMA(n, count, add_at, "{" a "}, %" #b_at ", p, 1, 1, 1")                    \
                     : BIND_##count                                                                \
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(add));                      \
    }

template <> struct wgmma<64> {
    WGMMA_SS(64, 32, 32, 33, 34)
    WGMMA_RS(64, 32, "%32, %33, %34, %35", 36, 37)
};

template <> struct wgmma<96> {
    WGMMA_RS(96, 48, "%48, %49, %50, %51", 52, 53)
};

template <> struct wgmma<128> {
    WGMMA_SS(128, 64, 64, 65, 66)
    WGMMA_RS(128, 64, "%64, %65, %66, %67", 68, 69)
};

template <> struct wgmma<192> {
    WGMMA_SS(192, 96, 96, 97, 98)
};

template <> struct wgmma<256> {
    WGMMA_RS(256, 128, "%128, %129, %130, %131", 132, 133)
};

template <int N> DEVICE void wgmma_ss(float (&d)[N / 2], uint64_t a, uint64_t b, int add)
{
    wgmma<N>::ss(d, a, b, add);
}

template <int N>
DEVICE void wgmma_rs(float (&d)[N / 2], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                     uint64_t b, int add)
{
    wgmma<N>::rs(d, a0, a1, a2, a3, b, add);
}
