/*
 * attn_softmax.cuh - softmax over the scores of a stage that one thread holds: N scores of two
 * rows, score i of row i / 2 % 2 (wgmma.cuh). Scores are in the units of Q K^T; probabilities are
 * 2^(scale_log2 (s - reference)).
 */
#pragma once

#include "cuda/hop.cuh"

/* Of the thread's scores [FROM, TO) of the two rows, the largest by their bits: those of floats
 * order like integers unless all are negative, and there is an instruction for the maximum of three
 * integers. */
template <int FROM, int TO, int N> DEVICE void top_bits(const float (&s)[N], int (&top)[2])
{
#pragma unroll
    for (int i = FROM; i < TO; i += 2) {
        const int r = i >> 1 & 1;
        int x = __float_as_int(s[i]), y = __float_as_int(s[i + 1]);
        top[r] = i < FROM + 4 ? max(x, y) : __vimax3_s32(top[r], x, y);
    }
}

/* Whether a score may exceed its row's limit, decided on the bits. With a negative limit the answer
 * is yes. */
template <int N> DEVICE bool may_exceed(const float (&s)[N], const float (&limit)[2])
{
    int top[2];
    top_bits<0, N>(s, top);
    return (limit[0] < 0) | (limit[1] < 0) | (top[0] > __float_as_int(limit[0])) |
           (top[1] > __float_as_int(limit[1]));
}

/* Largest of the thread's scores [FROM, TO) of the two rows. */
template <int FROM, int TO, int N> DEVICE void tops(const float (&s)[N], float (&top)[2])
{
#pragma unroll
    for (int i = FROM; i < TO; i += 2) {
        const int r = i >> 1 & 1;
        float x = fmaxf(s[i], s[i + 1]);
        top[r] = i < FROM + 4 ? x : fmaxf(top[r], x);
    }
}

/* The largest over the four lanes that share the rows. */
DEVICE void tops_of_lanes(float (&top)[2])
{
#pragma unroll
    for (int lanes = 1; lanes < 4; lanes *= 2)
#pragma unroll
        for (int r = 0; r < 2; r++)
            top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], lanes));
}

template <int N> DEVICE void row_tops(const float (&s)[N], float (&top)[2])
{
    tops<0, N>(s, top);
    tops_of_lanes(top);
}

/* References in log2 units. MASKED: a reference may be -inf (a row without a score); it gives 0. */
template <bool MASKED>
DEVICE void log2_base(const float (&reference)[2], float scale_log2, float (&base)[2])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        base[r] = reference[r] * scale_log2;
        if (MASKED && reference[r] == -INFINITY)
            base[r] = 0;
    }
}

/* Turn scores [FROM, TO) into probabilities; sum = their sums by row. */
template <int FROM, int TO, int N>
DEVICE void exponentials(float (&s)[N], const float (&base)[2], float scale_log2, float (&sum)[2])
{
    float add[2][2];
#pragma unroll
    for (int i = FROM; i < TO; i++) {
        const int r = i >> 1 & 1;
        s[i] = exp2_fast(fmaf(s[i], scale_log2, -base[r]));
        add[r][i & 1] = i < FROM + 4 ? s[i] : add[r][i & 1] + s[i];
    }
    sum[0] = add[0][0] + add[0][1];
    sum[1] = add[1][0] + add[1][1];
}

/* Pack probabilities [FROM, TO) as the A operand of P V. */
template <int FROM, int TO, int N> DEVICE void pack(const float (&s)[N], uint32_t (&p)[N / 2])
{
#pragma unroll
    for (int i = FROM / 2; i < TO / 2; i++)
        p[i] = pack_pair(s[2 * i], s[2 * i + 1]);
}

template <int N> DEVICE void pack(const float (&s)[N], uint32_t (&p)[N / 2])
{
    pack<0, N>(s, p);
}
