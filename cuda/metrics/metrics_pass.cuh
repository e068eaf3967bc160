/*
 * metrics_pass.cuh - one pass over the exact probabilities of a head, which are reduced at once,
 * for Hopper. The CPU references are map_below_run (sim/blocks/exact.h), pool_map
 * (core/attention.h) and attn_rows.
 *
 * Tile: 256 queries x 128 keys. Warps: four consumer warpgroups with 64 rows each (16 per warp),
 * one warp that copies, and two that combine the findings of the warps of 128 rows. A thread has 64
 * scores and no second set of them: while one warpgroup reduces its scores, the products of the
 * others keep the tensor cores busy, and four warps per scheduler hide each other's latencies. The
 * warpgroups take turns, and each passes the turn when half of its products are done. Without turns
 * all would multiply at once and then all reduce at once.
 *
 * With b the row's base-2 LSE rounded to fp32, p = 2^(s c - b), and `norm.y`, 2^(b - LSE), corrects
 * row sums for the rounding. Thresholds and maps use p without that factor, which differs from 1 by
 * at most 6e-8 |LSE|: less than the error of fp32 scores of that size.
 *
 * METRICS_SIGNS  units below one threshold c, where units are ANDs: p is below where the score is
 *   below (LSE + log2(c / N)) / scale of its row, 1.5 instructions per score. A thread's 32 keys
 *   make a word, ANDed over its two rows and the 8 lanes with the same keys: slices of 16 rows.
 * METRICS_SLICES the same words, of which the gathering warps write the slices that are not below.
 * METRICS_SUMS   and sums of p over rows and the largest p: with b = LSE + log2(c / N) the sign of
 *   the exponent says the same.
 * METRICS_MAPS   sums of p over rows, and sums and maxima of 64 x 64 cells.
 * METRICS_LEVELS and units below several thresholds: column maxima of a thread's two rows, then of
 *   the 8 rows of lanes by a transposing butterfly (28 shuffles for 64 scores), so that a warp ends
 *   with the maxima of its 16 rows, four keys per lane.
 * METRICS_TOPS   the same of log2 p, for the units alone.
 *
 * Tiles on the diagonal or an edge are counted unit by unit with their allowed pairs. Counts are
 * integers and row sums are added in a fixed order: a result has the same bits on every launch.
 */
#pragma once

#include "cuda/metrics/metrics_consumer.cuh"
#include "cuda/metrics/metrics_gather.cuh"

/* ---- producer ------------------------------------------------------------------------------- */

template <class T, int ROWS>
DEVICE void pass_load_tile(const CUtensorMap *map, uint8_t *to, uint64_t *full, int row,
                           uint64_t policy)
{
    uint32_t bar = smem_addr(full);
    mbar_expect(bar, ROWS * T::PANELS * 128);
#pragma unroll
    for (int p = 0; p < T::PANELS; p++)
        tma_load(smem_addr(to) + p * ROWS * 128, map, bar, p * 64, row, 0, policy);
}

/* The producer warp. The first keys of an item come before its queries, because the queries' buffer
 * becomes free later. */
template <class T>
DEVICE void pass_produce(pass_smem<T> &sm, const metrics_args &a, const CUtensorMap *mq,
                         const CUtensorMap *mk)
{
    ring<1> q;
    ring<T::STAGES> k;
    unsigned ticket = atomicAdd(a.ticket, 1u);
    while (ticket < (unsigned)a.n_items) {
        int4 item = __ldg(a.items + ticket);
        int early = min(item.y + (T::STAGES > 1 ? 2 : 1), item.z) - 1;
        for (int i = item.y; i < item.z; i++) {
            mbar_wait(smem_addr(&sm.k_empty[k.at]), k.parity ^ 1);
            pass_load_tile<T, T::BN>(mk, sm.k[k.at], &sm.k_full[k.at], i * T::BN, L2_EVICT_LAST);
            k.next();
            if (i == early) {
                mbar_wait(smem_addr(&sm.q_empty), q.parity ^ 1);
                sm.work = make_int4(item.x, item.y, item.z, (int)ticket);
                pass_load_tile<T, T::BM>(mq, sm.q, &sm.q_full, item.x * T::BM, L2_EVICT_FIRST);
                q.next();
            }
        }
        ticket = atomicAdd(a.ticket, 1u);
    }
    /* Every CTA draws exactly one ticket past the end; the last of them resets the counter. */
    if (ticket == (unsigned)a.n_items + gridDim.x - 1)
        *a.ticket = 0;
    mbar_wait(smem_addr(&sm.q_empty), q.parity ^ 1);
    sm.work = make_int4(-1, 0, 0, 0);
    mbar_arrive(smem_addr(&sm.q_full));
}

/* ---- kernel --------------------------------------------------------------------------------- */

template <class T> DEVICE void pass_init(pass_smem<T> &sm)
{
    mbar_init(smem_addr(&sm.q_full), 1);
    mbar_init(smem_addr(&sm.q_empty), 4 * T::WG);
    for (int i = 0; i < T::STAGES; i++) {
        mbar_init(smem_addr(&sm.k_full[i]), 1);
        mbar_init(smem_addr(&sm.k_empty[i]), 4 * T::WG);
    }
    for (int i = 0; i < 2 * T::SLOTS; i++) {
        mbar_init(smem_addr(&sm.found_full[0][i]), pass_writers<T>);
        mbar_init(smem_addr(&sm.found_empty[0][i]), 32);
    }
    mbar_init_fence();
}

template <class T>
__global__ void __launch_bounds__(T::THREADS, 1)
    pass_sm90(const __grid_constant__ CUtensorMap mq, const __grid_constant__ CUtensorMap mk,
              const __grid_constant__ metrics_args a)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t raw[];
    pass_smem<T> &sm = *(pass_smem<T> *)raw;
    int warp = uniform(threadIdx.x >> 5);

    if (threadIdx.x == 0) {
        pass_init<T>(sm);
        tma_prefetch(&mq);
        tma_prefetch(&mk);
    }
    __syncthreads();
    if (warp < 4 * T::WG) {
        uint32_t base = smem_addr(raw);
        asm volatile("" : "+r"(base));
        pass_consumer<T> c = {base, a, warp >> 2};
        c.run();
    } else if (warp == 4 * T::WG) {
        if ((threadIdx.x & 31) == 0)
            pass_produce<T>(sm, a, &mq, &mk);
    } else if constexpr (T::KIND == METRICS_SLICES) {
        pass_gather<T, slice_writer>(sm, a, warp - 4 * T::WG - 1);
    } else if constexpr (T::SIGNS) {
        pass_gather<T, sign_counter>(sm, a, warp - 4 * T::WG - 1);
    } else if constexpr (T::LEVELS) {
        pass_gather<T, level_counter<T>>(sm, a, warp - 4 * T::WG - 1);
    } else if constexpr (T::MAPS) {
        pass_gather<T, no_counter>(sm, a, warp - 4 * T::WG - 1);
    }
#endif
}

template <class T>
static void pass_launch(int grid, cudaStream_t stream, const CUtensorMap *maps, const void *args)
{
    pass_sm90<T><<<grid, T::THREADS, sizeof(pass_smem<T>), stream>>>(maps[0], maps[1],
                                                                     *(const metrics_args *)args);
}

/* The kernel in a table. */
template <class T> static constexpr metrics_kernel pass_entry(attn_element element)
{
    return {T::D,          T::KIND, element, (int)sizeof(pass_smem<T>), (const void *)pass_sm90<T>,
            pass_launch<T>};
}
