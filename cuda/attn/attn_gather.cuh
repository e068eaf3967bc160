/*
 * attn_gather.cuh - the producer of the Hopper attention kernels for lists of single keys
 * (attn_sm90.cuh): a warpgroup that copies rows of keys and values from anywhere in the tensor, by
 * cp.async of 16 bytes, to the places where TMA would put them.
 *
 * Nobody waits for copies: they arrive at the stage's barrier themselves when they have landed. The
 * bytes are the same as with TMA, but in requests of 16 bytes with an address each.
 */
#ifndef LACUNA_ATTN_GATHER_CUH
#define LACUNA_ATTN_GATHER_CUH

#include "cuda/attn/attn_shape.cuh"

#define PRODUCER_BARRIER 8

template <class T> struct gatherer {
    static constexpr int KEYS = T::BN / 4; /* rows of a warp */

    attn_smem<T> &sm;
    const attn_args &a;
    const CUtensorMap *mq;
    ring<T::QBUFS> q;
    ring<T::STAGES> k, v;
    int key_v, head_v; /* key and head of the values that are still to be copied */

    /* A warp copies its rows of x, of D channels. `key` is the number of the lane's row; -1 gives
     * zeros, as do channels from D on. */
    template <int D> DEVICE void copy_rows(uint8_t *tile, const void *x, int head, int key)
    {
        constexpr int PANELS = (D + 63) / 64, ROWS = 4 / PANELS, CHUNKS = 32 / ROWS;
        constexpr int STEP = ROWS > 1 ? 16 : 8;
        int chunk = threadIdx.x % CHUNKS, first = (threadIdx.x & 31) / CHUNKS;
        int row = threadIdx.x / 32 * KEYS + first;
        const char *src = (const char *)x + (size_t)head * a.nk * (D * 2) + chunk * 16;
        uint32_t dst = smem_addr(tile) + chunk / 8 * (T::BN * 128) + row * 128;
        uint32_t place = ((chunk ^ row) & 7) * 16;
#pragma unroll 1
        for (int j = 0; j < KEYS; j += STEP, dst += STEP * 128)
#pragma unroll
            for (int i = 0; i < STEP; i += ROWS) {
                int k = __shfl_sync(~0u, key, first + j + i);
                if (chunk < 8 * PANELS) /* three panels leave 8 lanes without one */
                    cp_async(dst + i * 128 + (place ^ (i & 7) * 16),
                             src + (size_t)max(k, 0) * (D * 2), k >= 0 && chunk < D / 8);
            }
    }

    /* Lanes from KEYS on repeat those of the first. */
    DEVICE int lane_key(int unit) const
    {
        return __ldg(a.keys + (size_t)unit * T::BN + threadIdx.x / 32 * KEYS + threadIdx.x % KEYS);
    }

    DEVICE void copy_values()
    {
        mbar_wait(smem_addr(&sm.v_empty[v.at]), v.parity ^ 1);
        copy_rows<T::DV>(sm.v[v.at], a.v, head_v, key_v);
        cp_async_arrive(smem_addr(&sm.v_full[v.at]));
        v.next();
    }

    /* One thread: the item and its queries. */
    DEVICE void start_item(const int4 &item, int head)
    {
        mbar_wait(smem_addr(&sm.q_empty[q.at]), q.parity ^ 1);
        int block = item.x - head * a.q_blocks;
        sm.work[q.at] = make_int4(place_of(head, block), item.y, item.z, item.w);
        uint32_t bar = smem_addr(&sm.q_full[q.at]);
        mbar_expect(bar, T::Q_BYTES);
#pragma unroll
        for (int p = 0; p < T::IN_PANELS; p++)
            tma_load(smem_addr(sm.q[q.at]) + p * T::BM * 128, mq, bar, p * 64, block * T::BM, head,
                     L2_EVICT_FIRST);
    }

    DEVICE void run()
    {
        bool pending = false;
        unsigned ticket = blockIdx.x; /* the first is not drawn */
        int turn = 0;
        while (ticket < (unsigned)a.n_items) {
            int4 item = __ldg(a.items + ticket);
            int head = item.x / a.q_blocks;
            int key = lane_key(item.z - 1);
            if (threadIdx.x == 0)
                start_item(item, head);
            __syncwarp();
            q.next();
            for (int e = item.z - 1; e >= item.y; e--) {
                int next = lane_key(max(e - 1, item.y)); /* on its way while rows are copied */
                int bits = __ldg(a.bits + e / T::PER_BLOCK);
                mbar_wait(smem_addr(&sm.k_empty[k.at]), k.parity ^ 1);
                uint32_t full = smem_addr(&sm.k_full[k.at]);
                if (threadIdx.x == 0) {
                    sm.keys[k.at][0] = 0;
                    sm.keys[k.at][1] = bits_of_unit<T>(bits, e);
                    mbar_arrive(full);
                    if (bits >= 0)
                        bulk_prefetch(a.words + (size_t)bits * 256, 2048);
                }
                __syncwarp();
                copy_rows<T::D>(sm.k[k.at], a.k, head / a.group, key);
                cp_async_arrive(full);
                k.next();
                if (pending)
                    copy_values();
                key_v = key;
                key = next;
                head_v = head / a.group;
                pending = true;
            }
            if (threadIdx.x == 0)
                sm.ticket[turn] = (int)(gridDim.x + atomicAdd(a.ticket, 1u));
            named_sync(PRODUCER_BARRIER, T::COPIERS);
            ticket = (unsigned)sm.ticket[turn];
            turn ^= 1;
        }
        if (pending)
            copy_values();
        if (threadIdx.x)
            return;
        if (ticket == (unsigned)a.n_items + gridDim.x - 1)
            *a.ticket = 0;
        mbar_wait(smem_addr(&sm.q_empty[q.at]), q.parity ^ 1);
        sm.work[q.at] = make_int4(-1, 0, 0, 0);
        mbar_arrive(smem_addr(&sm.q_full[q.at]));
    }
};

#endif
