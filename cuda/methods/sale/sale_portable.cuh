/*
 * sale_portable.cuh - SALE's test of every pair by mma.sync, for GPUs without wgmma.
 *
 * In an m16n8k32 product the two columns of a lane lie in one of SALE's key groups and its two rows
 * in one of the query groups: a lane has the eight scores of a (row, group) by itself.
 */
#ifndef LACUNA_SALE_PORTABLE_CUH
#define LACUNA_SALE_PORTABLE_CUH

#include "cuda/methods/sale/sale_pairs.cuh"
#include "cuda/mma.cuh"

#define THREADS 256

/* 128 rows of D bytes; a distance of D + 16 keeps the eight rows of a matrix in different banks. */
template <int D> struct byte_tile {
    static constexpr int STEP = D + 16, BYTES = TILE * STEP, CHUNKS = D / 16;

    /* Where a thread's part of a tile comes from, and lies in it. */
    static __device__ __forceinline__ int from()
    {
        return threadIdx.x / CHUNKS * PITCH + threadIdx.x % CHUNKS * 16;
    }
    static __device__ __forceinline__ int to()
    {
        return threadIdx.x / CHUNKS * STEP + threadIdx.x % CHUNKS * 16;
    }
    static __device__ __forceinline__ void copy(uint32_t to, const int8_t *from)
    {
        constexpr int ROWS = THREADS / CHUNKS;
#pragma unroll
        for (int r = 0; r < TILE; r += ROWS)
            copy_async(to + r * STEP, from + r * PITCH, true);
    }
};

/* Keys of one head as the test reads them, a tile at a time. */
template <int D> struct key_source {
    const int8_t *ki; /* this thread's part of the next tile */
    const char *side; /* of its corrections or scales; NULL: it copies none */
    int step;         /* bytes of `side` per tile */
    uint32_t to, side_to;

    __device__ __forceinline__ key_source(const sale_args &a, int head, uint32_t tiles,
                                          const key_side *sides)
    {
        int kv = head / a.per_kv, t = threadIdx.x;
        bool corr = t < TILE / 8, scale = !corr && t < TILE / 8 + TILE / 64;
        ki = a.ki + kv * a.npad * PITCH + byte_tile<D>::from();
        to = tiles + byte_tile<D>::to();
        side = corr    ? (const char *)(a.corr + head * a.npad + 8 * t)
               : scale ? (const char *)(a.k_scale + kv * (a.npad / 8) + 8 * (t - TILE / 8))
                       : NULL;
        step = corr ? TILE * 2 : TILE / 8 * 2;
        side_to = shared_addr(sides) + 16 * t; /* scales follow corrections */
    }

    __device__ __forceinline__ void load(int stage)
    {
        byte_tile<D>::copy(to + stage * byte_tile<D>::BYTES, ki);
        if (side) {
            copy_async(side_to + stage * (int)sizeof(key_side), side, true);
            side += step;
        }
        copy_commit();
        ki += TILE * PITCH;
    }
};

/* Products of a warp's 16 rows with 32 keys: by strip of 8 keys. */
template <int D>
static __device__ __forceinline__ void multiply(const uint32_t (&rows)[D / 32][4], uint32_t keys,
                                                int (&dot)[4][4])
{
    keys += (threadIdx.x & 7) * byte_tile<D>::STEP + 16 * ((threadIdx.x & 31) >> 3);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int c = 0; c < D / 64; c++) {
            uint32_t y[4];
            load_matrices(keys + 8 * i * byte_tile<D>::STEP + 64 * c, y);
            mma_s8(dot[i], rows[2 * c], y[0], y[1]);
            mma_s8(dot[i], rows[2 * c + 1], y[2], y[3]);
        }
}

/* Bits in shared memory that other warps may be setting. */
static __device__ __forceinline__ unsigned shared_bits(unsigned *bits)
{
    unsigned x = (threadIdx.x & 31) == 0 ? atomicOr(bits, 0) : 0;
    return __shfl_sync(~0u, x, 0);
}

/* 128 queries against all keys that one of their two blocks tests, a warp for 16 of them. Grid
 * (npad / 128, heads), from the end, where most keys are. The four warps of a query block begin
 * with different key blocks and leave out those that another one has kept already. */
template <int D> static __global__ void __launch_bounds__(THREADS, 3) test_blocks(const sale_args a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ __align__(16) key_side side[2];
    __shared__ unsigned kept[2][2]; /* by stage and query block: bits of key blocks */
    constexpr int BYTES = byte_tile<D>::BYTES, STEP = byte_tile<D>::STEP;
    int tile = gridDim.x - 1 - blockIdx.x, head = blockIdx.y, lane = threadIdx.x & 31;
    int warp = threadIdx.x >> 5, m = 2 * tile + warp / 4;
    int mid = m < a.groups ? regions_of(a, m).mid : 0;
    int most = max(regions_of(a, 2 * tile).mid,
                   2 * tile + 1 < a.groups ? regions_of(a, 2 * tile + 1).mid : 0);
    int n_tiles = most == 0 ? 0 : most / 4 + 1;
    uint32_t base = shared_addr(shared), rows[D / 32][4];
    uint32_t *map = a.map.map + (head * (int64_t)a.groups + m) * a.map.words;

    if (n_tiles == 0)
        return;
    key_source<D> keys(a, head, base + BYTES, side);
    byte_tile<D>::copy(base + byte_tile<D>::to(),
                       a.qi + (head * a.npad + tile * TILE) * PITCH + byte_tile<D>::from());
    keys.load(0);
    row_side r = row_side_of(a, head, tile * (int64_t)TILE + 16 * warp + (lane >> 2), mid > 0);
    bool any_flat = __any_sync(~0u, r.flat);
    bool large = __any_sync(~0u, __uint_as_float(a.corr_max[head]) * r.inverse > 65000.0f);
    if (threadIdx.x < 4)
        kept[threadIdx.x / 2][threadIdx.x % 2] = 0;
    for (int s = 0; s < n_tiles; s++) {
        if (s + 1 < n_tiles) {
            keys.load((s + 1) % 2);
            copy_wait<1>();
        } else {
            copy_wait<0>();
        }
        __syncthreads();
        if (s == 0)
#pragma unroll
            for (int c = 0; c < D / 32; c++)
                load_matrices(base + (16 * warp + (lane & 15)) * STEP + 32 * c + 16 * (lane >> 4),
                              rows[c]);
        const key_side &here = side[s % 2];
        unsigned *done = &kept[s % 2][warp / 4];
#pragma unroll 1
        for (int turn = 0; turn < 4; turn++) {
            int b = (turn + warp) % 4, j = 4 * s + b, dot[4][4] = {{0}};
            if (j < 1 || j > mid || (shared_bits(done) >> b & 1))
                continue;
            multiply<D>(rows, base + BYTES * (1 + s % 2) + 32 * b * STEP, dot);
            const __half *corr = here.corr + 32 * b + 8 * (lane & 3);
            float k_scale = __half2float(here.scale[4 * (lane & 3) + b]);
            bool keep = large ? test_pairs<true>(a, dot, corr, k_scale, r)
                              : test_pairs<false>(a, dot, corr, k_scale, r);
            if (any_flat)
                keep = r.flat ? test_flat(a, corr, k_scale, r) : keep;
            if (__any_sync(~0u, keep) && lane == 0)
                atomicOr(done, 1u << b);
        }
        __syncthreads();
        if (lane == 0 && warp % 4 == 0) { /* four bits of a word that is this warp's alone */
            unsigned bits = *done;
            *done = 0;
            if (bits)
                map[s / 8] |= bits << 4 * (s % 8);
        }
    }
}

#endif
