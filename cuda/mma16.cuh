/*
 * mma16.cuh - mma.sync m16n8k16 of 16-bit floats with fp32 accumulators, one instruction.
 *
 * d[4] += A B^T: `element` "bf16" or "f16", a[4] and b0, b1 in packed pairs. Element i of d of lane
 * l is row l / 4 + 8 (i / 2), column 2 (l % 4) + i % 2. A macro, because `element` is a word of the
 * instruction's name.
 */
#pragma once

#define MMA_16X8X16(element, d, a, b0, b1)                                                         \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." element "." element                      \
                 ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"            \
                 : "+f"((d)[0]), "+f"((d)[1]), "+f"((d)[2]), "+f"((d)[3])                          \
                 : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "r"(b0), "r"(b1))
