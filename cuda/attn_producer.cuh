/*
 * attn_producer.cuh - the producer of the Hopper attention kernels: one thread that draws work items
 * and issues the TMA copies of their queries, keys and values (attn_sm90.cuh).
 */
#ifndef LACUNA_ATTN_PRODUCER_CUH
#define LACUNA_ATTN_PRODUCER_CUH

#include "cuda/attn_shape.cuh"

template <class T> struct producer {
    attn_smem<T>           &sm;
    const attn_args        &a;
    const CUtensorMap      *mq, *mk, *mv;
    ring<T::QBUFS>          q;
    ring<T::STAGES>         k, v;
    int2                    keys_v; /* keys and kv head of the values that are still to be issued */
    int                     head_v;

    DEVICE void issue(const CUtensorMap *map, uint8_t *tile, uint32_t bar, int2 keys, int head)
    {
        mbar_expect(bar, T::KV_BYTES);
#pragma unroll
        for (int p = 0; p < T::PANELS; p++) {
            uint32_t dst = smem_addr(tile) + p * T::BN * 128;
            tma_load(dst, map, bar, p * 64, keys.x & ~3, head, L2_EVICT_LAST);
            if (T::HALVES)
                tma_load(dst + 64 * 128, map, bar, p * 64, keys.y & ~3, head, L2_EVICT_LAST);
        }
    }

    DEVICE void issue_values()
    {
        mbar_wait(smem_addr(&sm.v_empty[v.at]), v.parity ^ 1);
        issue(mv, sm.v[v.at], smem_addr(&sm.v_full[v.at]), keys_v, head_v);
        v.next();
    }

    /* A list entry as its first key, the wanted bits in the low ones. */
    static DEVICE int first_key(int entry)
    {
        return T::KIND == BLOCKS_PAIR ? (entry & 0x3fffffff) * 64 | (int)((uint32_t)entry >> 30)
                                      : entry * T::BOX;
    }

    /* Stage `i` of an item, counted from its end. The odd block of a list of halves stands alone in
     * the first stage, which is masked anyway. */
    DEVICE int2 stage_keys(const int4 &item, int i)
    {
        if (!T::HALVES) {
            int b = item.z - 1 - i, bits = T::KIND == BLOCKS_BITS ? __ldg(a.bits + b) : 0;
            if (T::KIND == BLOCKS_BITS && bits >= 0) /* two stages before they are read */
                bulk_prefetch(a.words + (size_t)bits * 256, 2048);
            return make_int2((T::LISTED ? __ldg(a.cols + b) : b) * T::BN, bits);
        }
        int odd = (item.z - item.y) & 1, hi = item.z - 1 + odd - 2 * i;
        return make_int2(first_key(__ldg(a.cols + hi - 1)),
                         odd && i == 0 ? NO_KEY : first_key(__ldg(a.cols + hi)));
    }

    DEVICE void run()
    {
        bool     pending = false;
        unsigned ticket = blockIdx.x; /* the first is not drawn */
        while (ticket < (unsigned)a.n_items) {
            int4 item = __ldg(a.items + ticket);
            int head = item.x / a.q_blocks, row = (item.x - head * a.q_blocks) * T::BM;
            mbar_wait(smem_addr(&sm.q_empty[q.at]), q.parity ^ 1);
            sm.work[q.at] = item;
            uint32_t bar = smem_addr(&sm.q_full[q.at]);
            mbar_expect(bar, T::Q_BYTES);
#pragma unroll
            for (int p = 0; p < T::PANELS; p++)
                tma_load(smem_addr(sm.q[q.at]) + p * T::BM * 128, mq, bar, p * 64, row, head,
                         L2_EVICT_FIRST);
            q.next();
            int n = item.z - item.y, stages = T::HALVES ? (n + 1) / 2 : n;
            for (int i = 0; i < stages; i++) {
                int2 keys = stage_keys(item, i);
                mbar_wait(smem_addr(&sm.k_empty[k.at]), k.parity ^ 1);
                sm.keys[k.at] = keys;
                issue(mk, sm.k[k.at], smem_addr(&sm.k_full[k.at]), keys, head / a.group);
                k.next();
                if (pending)
                    issue_values();
                keys_v = keys;
                head_v = head / a.group;
                pending = true;
            }
            /* Not earlier: a thread block must not sit on a second long item while others idle. The
             * stages in flight hide the latency. */
            ticket = gridDim.x + atomicAdd(a.ticket, 1u);
        }
        /* Every CTA draws exactly one ticket past the end; the last of them resets the counter. */
        if (ticket == (unsigned)a.n_items + gridDim.x - 1)
            *a.ticket = 0;
        if (pending)
            issue_values();
        mbar_wait(smem_addr(&sm.q_empty[q.at]), q.parity ^ 1);
        sm.work[q.at] = make_int4(-1, 0, 0, 0);
        mbar_arrive(smem_addr(&sm.q_full[q.at]));
    }
};

#endif
