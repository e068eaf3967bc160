/*
 * attn_gather.cuh - the producer of the Hopper attention kernels for lists of single keys
 * (attn_sm90.cuh): warps that copy rows of keys, and as many for values, from anywhere in the
 * tensor, by cp.async of 16 bytes, to the places where TMA would put them.
 *
 * The bytes are the same as with TMA, but in requests of 16 bytes with an address each, of two
 * instructions: what counts is how long a warp takes from a free buffer to its last request. A warp
 * waits for its copies and fences them off, so that consumers need not; the other buffer is not
 * free any earlier.
 */
#pragma once

#include "cuda/attn/attn_shape.cuh"

/* A thread of the warps that copy keys (KEYS) or values. */
template <class T, bool KEYS> struct gatherer {
    static constexpr int D = KEYS ? T::D : T::DV, PANELS = (D + 63) / 64;
    static constexpr int LANES = PANELS == 1 ? 8 : PANELS == 2 ? 16 : 32; /* of a row */
    static constexpr int FOURS =
        T::BN * LANES / (32 * T::COPIERS) / 4; /* of rows, neighbours, of a lane */
    static constexpr int AHEAD = FOURS < 4 ? FOURS : 4;
    static_assert(FOURS % AHEAD == 0);

    attn_smem<T> &sm;
    const attn_args &a;
    const CUtensorMap *mq;
    int thread; /* of those that copy the same */
    ring<T::QBUFS> q;
    ring<T::STAGES> kv;

    DEVICE int first_row() const
    {
        return thread / LANES * (4 * FOURS);
    }

    /* Request the lane's part of row i of its rows. */
    static DEVICE void copy_row(uint32_t dst, const char *x, int i, int key)
    {
        cp_async((dst ^ i % 8 * 16) + i * 128, x + (int64_t)key * (D * 2));
    }

    /* Copy the lane's rows x[at[..]] to a tile. `key` has the first of them, and gets the keys that
     * are AHEAD of those it had, of this tile or of the next. Lanes behind the last channel copy
     * nothing: 8 of them with three panels, and those of a panel's empty half, which no product
     * reads. */
    DEVICE void copy(uint8_t *tile, const char *x, int4 (&key)[AHEAD], const int4 *at,
                     const int4 *next)
    {
        int chunk = thread % LANES, row = first_row();
        uint32_t dst = smem_addr(tile) + chunk / 8 * (T::BN * 128) + row * 128;
        dst += (chunk % 8 ^ row % 8) * 16;
#pragma unroll
        for (int i = 0; i < FOURS; i++) {
            int4 &k = key[i % AHEAD];
            if (chunk < D / 8) {
                copy_row(dst, x, 4 * i, k.x);
                copy_row(dst, x, 4 * i + 1, k.y);
                copy_row(dst, x, 4 * i + 2, k.z);
                copy_row(dst, x, 4 * i + 3, k.w);
            }
            k = __ldg(i + AHEAD < FOURS ? at + i + AHEAD : next + (i + AHEAD - FOURS));
        }
    }

    /* Wait for the buffer of a stage. */
    DEVICE void begin_stage(int unit)
    {
        int bits = KEYS ? __ldg(a.bits + unit / T::PER_BLOCK) : -1;
        mbar_wait(smem_addr(KEYS ? &sm.k_empty[kv.at] : &sm.v_empty[kv.at]), kv.parity ^ 1);
        if (thread == 0 && bits >= 0)
            bulk_prefetch(a.words + (size_t)bits * 256, 2048);
        __syncwarp();
    }

    /* Is this the thread that draws items? */
    DEVICE bool draws() const
    {
        return KEYS && thread == 0;
    }

    /* Copies the stages of an item. The next one is drawn while the last of them waits for its
     * buffer. */
    DEVICE void copy_item(const int4 &item, unsigned &ticket)
    {
        int64_t head = head_of(item.x) / a.group;
        const char *x = (const char *)(KEYS ? a.k : a.v) + head * a.nk * (D * 2);
        const int4 *at = (const int4 *)(a.keys + (int64_t)(item.z - 1) * T::BN + first_row());
        int4 key[AHEAD];
        x += thread % LANES * 16;
        asm volatile("" : "+l"(x), "+l"(at)); /* so that offsets become part of instructions */
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            key[i] = __ldg(at + i);
#pragma unroll 1
        for (int unit = item.z - 1; unit >= item.y; unit--) {
            if (draws() && unit == item.y)
                ticket = gridDim.x + atomicAdd(a.ticket, 1u);
            begin_stage(unit);
            const int4 *next = at - (unit > item.y ? T::BN / 4 : 0);
            copy(KEYS ? sm.k[kv.at] : sm.v[kv.at], x, key, at, next);
            at = next;
            cp_async_commit();
            cp_async_wait<0>();
            async_proxy_fence();
            __syncwarp();
            warp_arrive(smem_addr(KEYS ? &sm.k_full[kv.at] : &sm.v_full[kv.at]));
            kv.next();
        }
    }

    /* One thread: the item of a ticket, or that there is none, and its queries. */
    DEVICE void put_item(unsigned ticket)
    {
        bool some = ticket < (unsigned)a.n_items;
        int4 item = __ldg(a.items + (some ? ticket : 0));
        int head = item.x / a.q_blocks, block = item.x - head * a.q_blocks;
        uint32_t bar = smem_addr(&sm.q_full[q.at]);
        mbar_wait(smem_addr(&sm.q_empty[q.at]), q.parity ^ 1);
        sm.work[q.at] = make_int4(some ? place_of(head, block) : -1, item.y, item.z, item.w);
        mbar_arrive(smem_addr(&sm.drawn[q.at]));
        if (!some) {
            mbar_arrive(bar);
            return;
        }
        mbar_expect(bar, T::Q_BYTES);
#pragma unroll
        for (int p = 0; p < T::IN_PANELS; p++)
            tma_load(smem_addr(sm.q[q.at]) + p * T::BM * 128, mq, bar, p * 64, block * T::BM, head,
                     L2_EVICT_FIRST);
    }

    DEVICE void run()
    {
        unsigned ticket = blockIdx.x; /* the first is not drawn */
        for (;; q.next()) {
            if (draws())
                put_item(ticket);
            mbar_wait(smem_addr(&sm.drawn[q.at]), q.parity);
            int4 item = warp_load(&sm.work[q.at]);
            if (item.x < 0)
                break;
            warp_arrive(smem_addr(&sm.q_empty[q.at]));
            copy_item(item, ticket);
        }
        if (draws() && ticket == (unsigned)a.n_items + gridDim.x - 1)
            *a.ticket = 0;
    }
};

/* What a producer warp does. */
template <class T> DEVICE void gather(attn_smem<T> &sm, const attn_args &a, const CUtensorMap *mq)
{
    if (threadIdx.x < 32 * T::COPIERS)
        gatherer<T, true>{sm, a, mq, (int)threadIdx.x}.run();
    else
        gatherer<T, false>{sm, a, mq, (int)threadIdx.x - 32 * T::COPIERS}.run();
}
