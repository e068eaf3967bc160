/*
 * sale_feed.cuh - how queries and keys reach the warps of SALE's tests on Hopper (sale_sm90.cu,
 * sale_e4m3_sm90.cu): a tile of queries once, tiles of keys through a ring.
 */
#ifndef LACUNA_SALE_FEED_CUH
#define LACUNA_SALE_FEED_CUH

#include "cuda/hop.cuh"
#include "cuda/methods/sale/sale_pairs.cuh"

/* ROWS queries, and keys in STAGES stages. */
template <int ROWS, int STAGES> struct sale_smem {
    alignas(1024) int8_t queries[ROWS * PITCH];
    alignas(1024) int8_t keys[STAGES][TILE * PITCH];
    alignas(16) key_side side[STAGES];
    uint64_t q_full, q_empty, full[STAGES], empty[STAGES];
};

/* By one thread, before all others wait: `warps` warps give a stage back, and the queries. */
template <int ROWS, int STAGES> DEVICE void feed_init(sale_smem<ROWS, STAGES> &sm, int warps)
{
    mbar_init(smem_addr(&sm.q_full), 1);
    mbar_init(smem_addr(&sm.q_empty), warps);
    for (int i = 0; i < STAGES; i++) {
        mbar_init(smem_addr(&sm.full[i]), 1);
        mbar_init(smem_addr(&sm.empty[i]), warps);
    }
    mbar_init_fence();
}

/* By one thread: a tile of queries and then the keys from `first` (0 or BK) on, tile by tile. maps
 * as for sale_test_sm90. */
template <int ROWS, int STAGES>
DEVICE void feed(sale_smem<ROWS, STAGES> &sm, ring<STAGES> &k, const sale_args &a,
                 const CUtensorMap *mq, const CUtensorMap *mk, int tile, int head, int n_tiles,
                 int first)
{
    int kv = head / a.per_kv;
    const __half *corr = a.corr + head * a.npad + first;
    const __half *scale = (first ? a.k_scale1 : a.k_scale) + kv * (a.npad / 8);

    mbar_expect(smem_addr(&sm.q_full), sizeof sm.queries);
    for (int i = 0; i < ROWS; i += BQ)
        tma_load(smem_addr(sm.queries + i * PITCH), mq, smem_addr(&sm.q_full), 0, tile * ROWS + i,
                 head, L2_EVICT_FIRST);
    for (int s = 0; s < n_tiles; s++) {
        uint32_t bar = smem_addr(&sm.full[k.at]);
        key_side *side = &sm.side[k.at];
        mbar_wait(smem_addr(&sm.empty[k.at]), k.parity ^ 1);
        mbar_expect(bar, sizeof sm.keys[0] + sizeof *side);
        tma_load(smem_addr(sm.keys[k.at]), mk, bar, 0, first + s * TILE, kv, L2_EVICT_LAST);
        bulk_load(smem_addr(side->corr), corr + s * TILE, sizeof side->corr, bar);
        bulk_load(smem_addr(side->scale), scale + s * (TILE / 8), sizeof side->scale, bar);
        k.next();
    }
}

#endif
