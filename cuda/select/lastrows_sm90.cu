/*
 * lastrows_sm90.cu - rows of lastrows.cuh on Hopper: products by wgmma, sums in registers.
 *
 * A thread block is a warpgroup; it walks over a range of key tiles, the next one on its way. The
 * queries stay in shared memory. A thread has two or four rows, which lie a multiple of 8 apart,
 * and every other pair of columns: what it has of a diagonal is known when the program is compiled.
 * It adds its rows and its diagonals in registers. Diagonals that later tiles go on with stay
 * there; the others of a warp are added through shared memory. Sums are made in a fixed order.
 */
#include "cuda/select/lastrows_sm90.cuh"
#include "cuda/select/method.cuh"
#include "cuda/device.h"
#include "cuda/wgmma.cuh"

#define GROUP_THREADS 128

template <int D, int B> struct sm90_shape {
    static constexpr int TILES = B / 64, KEYS = 8192 / B, OCTETS = KEYS / 8; /* of columns */
    static constexpr int PANELS = D / 64, Q_BYTES = B * D * 2, K_BYTES = KEYS * D * 2;
    /* Diagonals by octets: those that a tile touches, and those that go on in the next one. */
    static constexpr int WINDOW = OCTETS + 1 + 8 * (TILES - 1), STAY = WINDOW - OCTETS;
    static constexpr int FLUSHES = TILES; /* after the last tile */
    static constexpr int PITCH = 8 * OCTETS + 7;
    static_assert(FLUSHES * OCTETS >= STAY, "all diagonals leave");
};

template <int D, int B> struct sm90_smem {
    using S = sm90_shape<D, B>;
    alignas(1024) uint8_t q[S::Q_BYTES];
    alignas(1024) uint8_t k[2][S::K_BYTES];
};

/* Three thread blocks of 75 KB fit on a multiprocessor: nothing can be added for B = 128. */
template <int D, int B> struct sm90_sums {
    using S = sm90_shape<D, B>;
    sm90_smem<D, B> in;
    uint64_t full[2];
    float diag[4][8][S::PITCH]; /* by warp and row */
    float left[4][7];           /* by warp: what the rows left behind */
    float col[2][4][S::KEYS];   /* by warp; a tile writes while the one before is read */
};

static_assert(sizeof(sm90_sums<128, 128>) <= 75 * 1024, "three thread blocks fit");

/* The same for sm90_parts. */
template <int D, int B> struct sm90_sizes {
    sm90_smem<D, B> in;
    uint64_t full[2];
};

/* Rows row_at(0), row_at(1), ... of x [n][D] as panels of 64 channels; negative ones are zeros. */
template <int D, int ROWS, class F> DEVICE void copy_panels(uint32_t to, const uint4 *x, F row_at)
{
#pragma unroll 4
    for (int e = threadIdx.x; e < ROWS * (D / 8); e += GROUP_THREADS) {
        int r = e / (D / 8), c = e % (D / 8);
        int64_t row = row_at(r);
        cp_async(to + c / 8 * (ROWS * 128) + r * 128 + ((c % 8 ^ (r & 7)) << 4),
                 x + (row < 0 ? 0 : row) * (D / 8) + c, row >= 0);
    }
}

/* Raw scores of a tile; acc[m][4 j + 2 h + e]: row 64 m + 16 warp + lane / 4 + 8 h, key 8 j + 2
 * (lane % 4) + e. -inf where a row does not see the key or does not count. */
template <int D, int B>
DEVICE void tile_scores(const last_rows &a, const sm90_smem<D, B> &sm, int tile, int stage,
                        float (&acc)[B / 64][4096 / B])
{
    using S = sm90_shape<D, B>;
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < D / 16; kk++) {
        uint32_t step = kk / 4 * (S::KEYS * 128) + kk % 4 * 32;
        uint64_t k = descriptor(desc_low(smem_addr(sm.k[0]) + stage * S::K_BYTES + step, 16));
#pragma unroll
        for (int m = 0; m < S::TILES; m++) {
            step = kk / 4 * (B * 128) + m * (64 * 128) + kk % 4 * 32;
            wgmma_ss<S::KEYS>(acc[m], descriptor(desc_low(smem_addr(sm.q) + step, 16)), k, kk > 0);
        }
    }
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int m = 0; m < S::TILES; m++)
        hold(acc[m]);

    int64_t first = a.end - 1 - (B - 1) * (int64_t)a.step; /* position of row 0 */
    int last = (int)(a.both ? a.n - 1 : first), more = a.both ? 0 : a.step, key0 = tile * S::KEYS;
    if (a.rows == B && key0 + S::KEYS <= last + 1)
        return;
    int row0 = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, col0 = key0 + threadIdx.x % 4 * 2;
#pragma unroll
    for (int m = 0; m < S::TILES; m++)
#pragma unroll
        for (int i = 0; i < S::KEYS / 2; i++) {
            int r = row0 + 64 * m + 8 * (i / 2 % 2), key = col0 + 8 * (i / 4) + i % 2;
            if (r < B - a.rows || key > last + more * r)
                acc[m][i] = -INFINITY;
        }
}

/* use(tile, scores) for the tiles of range blockIdx.y of head blockIdx.x. All threads have used a
 * tile before the next one is multiplied. */
template <int D, int B, class F>
DEVICE void walk_tiles(const last_rows &a, const CUtensorMap *map, sm90_smem<D, B> &sm,
                       uint64_t (&full)[2], F use)
{
    using S = sm90_shape<D, B>;
    const uint4 *q = a.q + (int64_t)blockIdx.x * a.nq * (D / 8);
    int t0 = blockIdx.y * a.each, t1 = min(t0 + a.each, a.tiles);
    int64_t first = a.end - 1 - (B - 1) * (int64_t)a.step - (a.n - a.nq);
    auto fetch = [&](int t) {
        uint32_t to = smem_addr(sm.k[0]) + (t - t0) % 2 * S::K_BYTES;
        uint32_t bar = smem_addr(&full[(t - t0) % 2]);
        if (t >= t1 || threadIdx.x > 0)
            return;
        mbar_expect(bar, S::K_BYTES);
#pragma unroll
        for (int c = 0; c < S::PANELS; c++)
            tma_load(to + c * S::KEYS * 128, map, bar, 64 * c, t * S::KEYS, blockIdx.x / a.per_kv,
                     L2_EVICT_LAST);
    };

    if (threadIdx.x == 0) {
        mbar_init(smem_addr(&full[0]), 1);
        mbar_init(smem_addr(&full[1]), 1);
        mbar_init_fence();
    }
    __syncthreads();
    fetch(t0);

    copy_panels<D, B>(smem_addr(sm.q), q,
                      [&](int r) { return r >= B - a.rows ? first + r * (int64_t)a.step : -1; });
    cp_async_commit();
    cp_async_wait<0>();
    async_proxy_fence();
#pragma unroll 1
    for (int t = t0; t < t1; t++) {
        float acc[S::TILES][S::KEYS / 2];
        __syncthreads();
        fetch(t + 1);
        mbar_wait(smem_addr(&full[(t - t0) % 2]), (t - t0) / 2 % 2);
        tile_scores<D, B>(a, sm, t, (t - t0) % 2, acc);
        use(t, acc);
    }
}

/* ---- log-sum-exps --------------------------------------------------------------------------- */

/* {largest, sum of 2^(score - largest)} of two parts of a row. */
DEVICE float2 join_parts(float2 x, float2 y)
{
    float most = fmaxf(x.x, y.x), base = most == -INFINITY ? 0 : most;
    return make_float2(most, x.y * exp2_fast(x.x - base) + y.y * exp2_fast(y.x - base));
}

template <int D, int B>
static __global__ void __launch_bounds__(GROUP_THREADS, 3)
    sm90_parts(const __grid_constant__ last_rows a, const __grid_constant__ CUtensorMap map)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using S = sm90_shape<D, B>;
    extern __shared__ __align__(1024) uint8_t raw[];
    sm90_sizes<D, B> &sm = *(sm90_sizes<D, B> *)raw;
    float2 part[2 * S::TILES];
#pragma unroll
    for (int r = 0; r < 2 * S::TILES; r++)
        part[r] = make_float2(-INFINITY, 0);
    auto add = [&](int, float(&acc)[S::TILES][S::KEYS / 2]) {
#pragma unroll
        for (int r = 0; r < 2 * S::TILES; r++) {
            const float *s = acc[r / 2] + r % 2 * 2;
            float most = -INFINITY, sum = 0;
#pragma unroll
            for (int i = 0; i < S::KEYS / 4; i++)
                most = fmaxf(most, s[4 * (i / 2) + i % 2]);
            most = fmaxf(part[r].x, a.scale_log2 * most);
            float base = most == -INFINITY ? 0 : most;
#pragma unroll
            for (int i = 0; i < S::KEYS / 4; i++)
                sum += exp2_fast(fmaf(s[4 * (i / 2) + i % 2], a.scale_log2, -base));
            part[r] = make_float2(most, part[r].y * exp2_fast(part[r].x - base) + sum);
        }
    };
    walk_tiles<D, B>(a, &map, sm.in, sm.full, add);
    int row0 = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int r = 0; r < 2 * S::TILES; r++) {
#pragma unroll
        for (int step = 1; step < 4; step *= 2)
            part[r] = join_parts(part[r], make_float2(__shfl_xor_sync(~0u, part[r].x, step),
                                                      __shfl_xor_sync(~0u, part[r].y, step)));
        if (threadIdx.x % 4 == 0)
            a.part[((int64_t)blockIdx.x * a.ranges + blockIdx.y) * B + row0 + 64 * (r / 2) +
                   8 * (r % 2)] = part[r];
    }
#endif
}

/* ---- sums ----------------------------------------------------------------------------------- */

/* Half of the values go to the lane `mask` away, which adds them to its own; lane bit 0 keeps the
 * lower half. */
template <int N> DEVICE void share_sums(float (&x)[N], int n, int mask)
{
    bool upper = threadIdx.x & mask;
#pragma unroll
    for (int i = 0; i < N; i++)
        if (i < n / 2) {
            float send = upper ? x[i] : x[i + n / 2], keep = upper ? x[i + n / 2] : x[i];
            x[i] = keep + __shfl_xor_sync(~0u, send, mask);
        }
}

/* Sums of the warp's rows down the columns of a tile, into to[KEYS]. */
template <int TILES, int KEYS> DEVICE void sum_columns(const float (&p)[TILES][KEYS / 2], float *to)
{
    constexpr int N = KEYS / 4, LEFT = N / 8;
    int lane = threadIdx.x % 32;
    float x[N]; /* column 8 (i / 2) + 2 (lane % 4) + i % 2 */
#pragma unroll
    for (int i = 0; i < N; i++) {
        x[i] = p[0][4 * (i / 2) + i % 2] + p[0][4 * (i / 2) + 2 + i % 2];
#pragma unroll
        for (int m = 1; m < TILES; m++)
            x[i] += p[m][4 * (i / 2) + i % 2] + p[m][4 * (i / 2) + 2 + i % 2];
    }
    share_sums(x, N, 16);
    share_sums(x, N / 2, 8);
    share_sums(x, N / 4, 4);
    int first = (lane >> 4 & 1) * (N / 2) + (lane >> 3 & 1) * (N / 4) + (lane >> 2 & 1) * LEFT;
#pragma unroll
    for (int i = 0; i < LEFT; i += 2)
        *(float2 *)(to + 4 * (first + i) + 2 * (lane % 4)) = make_float2(x[i], x[i + 1]);
}

/* Add the diagonals of the first octets over the warp's rows; to[8 OCTETS]. Then move up. */
template <class S>
DEVICE void flush_diagonals(float (&sum)[S::WINDOW][2], float (*rows)[S::PITCH], float *behind,
                            float *to)
{
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float *mine = rows[g] + 2 * t + 7 - g, out[S::OCTETS / 4], left = 0;
#pragma unroll
    for (int s = 0; s < S::OCTETS; s++) {
        mine[8 * s] = sum[s][0];
        mine[8 * s + 1] = sum[s][1];
    }
#pragma unroll
    for (int s = 0; s < S::WINDOW; s++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            sum[s][e] = s + S::OCTETS < S::WINDOW ? sum[(s + S::OCTETS) % S::WINDOW][e] : 0;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < S::OCTETS / 4; i++) {
        out[i] = i == 0 && lane < 7 ? behind[lane] : 0;
#pragma unroll
        for (int r = 0; r < 8; r++)
            out[i] += rows[r][32 * i + lane];
        to[32 * i + lane] = out[i];
    }
    if (lane < 7)
        for (int r = 0; r < 8; r++)
            left += rows[r][8 * S::OCTETS + lane];
    __syncwarp();
    if (lane < 7)
        behind[lane] = left;
    __syncwarp();
}

template <int D, int B>
static __global__ void __launch_bounds__(GROUP_THREADS, 3)
    sm90_sum(const __grid_constant__ last_rows a, const __grid_constant__ CUtensorMap map)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using S = sm90_shape<D, B>;
    extern __shared__ __align__(1024) uint8_t raw[];
    sm90_sums<D, B> &sm = *(sm90_sums<D, B> *)raw;
    int warp = threadIdx.x / 32, row0 = warp * 16 + threadIdx.x % 32 / 4, before = -1;
    int64_t head = blockIdx.x, at = (head * a.ranges + blockIdx.y) * 4 + warp;
    float *diag = a.diag_part + at * last_sm90_length(a), sum[S::WINDOW][2] = {{0}};
    float lse[2 * S::TILES];
#pragma unroll
    for (int r = 0; r < 2 * S::TILES; r++)
        lse[r] = a.lse[head * B + row0 + 64 * (r / 2) + 8 * (r % 2)];
    for (int i = threadIdx.x; i < 32 * S::PITCH; i += GROUP_THREADS)
        (&sm.diag[0][0][0])[i] = 0;
    if (threadIdx.x < 28)
        (&sm.left[0][0])[threadIdx.x] = 0;

    auto put_columns = [&](int t) { /* of a tile that all warps have summed */
                                    int64_t key = (int64_t)t * S::KEYS + threadIdx.x;
                                    if (t < 0 || threadIdx.x >= S::KEYS || key >= a.n)
                                        return;
                                    float all = 0;
                                    for (int w = 0; w < 4; w++)
                                        all += sm.col[t % 2][w][threadIdx.x];
                                    double *to = a.ver + head * a.n + key;
                                    *to = (a.add ? *to : 0) + (double)all / a.divide;
    };
    auto add = [&](int t, float(&acc)[S::TILES][S::KEYS / 2]) {
        put_columns(before);
        before = t;
#pragma unroll
        for (int m = 0; m < S::TILES; m++)
#pragma unroll
            for (int i = 0; i < S::KEYS / 2; i++) {
                int h = i / 2 % 2, s = i / 4 - h - 8 * m + S::STAY;
                acc[m][i] = exp2_fast(fmaf(acc[m][i], a.scale_log2, -lse[2 * m + h]));
                sum[s][i % 2] += acc[m][i];
            }
        sum_columns<S::TILES, S::KEYS>(acc, sm.col[t % 2][warp]);
        if (a.sla) {
            flush_diagonals<S>(sum, sm.diag[warp], sm.left[warp], diag);
            diag += S::KEYS;
        }
    };
    walk_tiles<D, B>(a, &map, sm.in, sm.full, add);
    __syncthreads();
    put_columns(before);
    if (a.sla)
#pragma unroll
        for (int i = 0; i < S::FLUSHES; i++)
            flush_diagonals<S>(sum, sm.diag[warp], sm.left[warp], diag + i * S::KEYS);
#endif
}

/* ---- launches ------------------------------------------------------------------------------- */

template <int D, int B>
static int launch(struct gpu *g, const last_rows &a, bool sums, struct err *err)
{
    int bytes = sums ? sizeof(sm90_sums<D, B>) : sizeof(sm90_sizes<D, B>);
    alignas(128) CUtensorMap map;
    PASS_ON(tensor_map(&map, a.k, D, a.n, a.heads / a.per_kv, sm90_shape<D, B>::KEYS, err));
    return CU_STATUS(err, (run_kernel(g->stream, sums ? sm90_sum<D, B> : sm90_parts<D, B>,
                                      dim3(a.heads, a.ranges), GROUP_THREADS, bytes, a, map)));
}

int last_sm90_launch(struct gpu *g, const last_rows &a, int d, bool sums, struct err *err)
{
    if (d == 128)
        return a.tall == 128 ? launch<128, 128>(g, a, sums, err) : launch<128, 64>(g, a, sums, err);
    return a.tall == 128 ? launch<64, 128>(g, a, sums, err) : launch<64, 64>(g, a, sums, err);
}
