#include "sim/blocks/gpusum.h"

#define MAX_CHUNK 1024

static int ceil_log2(int64_t n)
{
    int bits = 0;
    while (((int64_t)1 << bits) < n)
        bits++;
    return bits;
}

int gpusum_chunk(int64_t columns, int64_t rows)
{
    int ratio = 9 + ceil_log2(columns) - ceil_log2(rows), bits = ratio < 8 ? 4 : ratio / 2;
    return 2 << (bits > 9 ? 9 : bits);
}

static void scan(enum dtype t, float *sum, int chunk)
{
    for (int s = 1; s < chunk; s *= 2)
        for (int a = 0; a < chunk / 2; a++) {
            int from = a / s * 2 * s + s - 1, to = from + 1 + a % s;
            sum[to] = dtype_round(t, sum[to] + sum[from]);
        }
}

int64_t gpusum_count(enum dtype t, int chunk, const float *x, int64_t n, float bound)
{
    float sum[MAX_CHUNK] = {0}, before = 0;
    for (int64_t i0 = 0; i0 < n; i0 += chunk) {
        for (int i = 0; i < chunk; i++)
            sum[i] = i0 + i < n ? dtype_round(t, x[i0 + i]) : 0;
        sum[0] = dtype_round(t, sum[0] + before);
        scan(t, sum, chunk);
        for (int i = 0; i < chunk && i0 + i < n; i++)
            if (sum[i] > bound)
                return i0 + i;
        before = sum[chunk - 1];
    }
    return n;
}

float gpusum_fold(float *s, int warps, int lanes)
{
    for (int w = 0; w < warps; w++)
        for (int half = lanes / 2; half > 0; half /= 2)
            for (int i = 0; i < half; i++)
                s[w * lanes + i] = dtype_round(DT_BF16, s[w * lanes + i] + s[w * lanes + i + half]);
    for (int half = warps / 2; half > 0; half /= 2)
        for (int w = 0; w < half; w++)
            s[w * lanes] = dtype_round(DT_BF16, s[w * lanes] + s[(w + half) * lanes]);
    return s[0];
}
