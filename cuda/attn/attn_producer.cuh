/*
 * attn_producer.cuh - the producer of the Hopper attention kernels (attn_sm90.cuh). One warp draws
 * work items and issues the TMA copies of their queries, keys and values. Its lanes look up the
 * positions of a stage's units; the first lane does the rest. In kernels whose stages may be
 * skipped, or whose stages take many TMA copies, a second warp copies the values instead.
 */
#pragma once

#include "cuda/attn/attn_shape.cuh"

template <class T> struct producer {
    static constexpr int UNITS = T::UNITS, PER_BLOCK = T::PER_BLOCK;
    /* Bytes of a unit of keys and of values, in a panel if they have any. */
    static constexpr int K_UNIT = T::UNIT * (T::BYTES ? T::D : 128);
    static constexpr int V_UNIT = T::UNIT * (T::BY_CHANNEL ? T::D : 128);

    attn_smem<T> &sm;
    const attn_args &a;
    const attn_maps &maps;
    ring<T::QBUFS> q;
    ring<T::STAGES> k, v;

    /* The units [beg, end) of a list that a stage holds; `key` is the first key of the lane's unit.
     */
    struct span {
        int beg, end, key;
        DEVICE int to() const /* end, without a register for it where stages have one unit */
        {
            return UNITS == 1 ? beg + 1 : end;
        }
    };

    span late;       /* the stage whose values are issued next */
    int head_v = -1; /* their kv head, -1: none */
    int head_k = 0;  /* BYTES: the kv head of the item */

    static DEVICE int lane()
    {
        return T::PRODUCERS * T::TEAMS > 1 ? threadIdx.x & 31 : threadIdx.x;
    }

    static DEVICE int stages_of(const int4 &item)
    {
        return (item.z - item.y + UNITS - 1) / UNITS;
    }

    /* The first stage of an item. Stages go from the end of the list to its beginning, or ASCEND; a
     * stage that is not full comes first. */
    DEVICE span first_span(const int4 &item) const
    {
        span s;
        int more = (item.z - item.y - 1) % UNITS;
        s.beg = T::ASCENDS ? item.y : item.z - 1 - more;
        s.end = T::ASCENDS ? item.y + 1 + more : item.z;
        s.key = first_key(s);
        return s;
    }

    /* The next stage. The look-up of its keys is in flight while the stage before it waits for a
     * buffer. */
    DEVICE span next_span(const span &s, bool any) const
    {
        span next;
        next.beg = T::ASCENDS ? s.to() : s.beg - UNITS;
        next.end = next.beg + UNITS;
        next.key = NO_KEY;
        if (any)
            next.key = first_key(next);
        return next;
    }

    /* First key of the lane's unit; in a pair list the low two bits say which rows want it. The
     * lane after the last unit fetches the stage's bits to L2; with a filter, as many lanes as
     * there are units get the units' entries; with BYTES, four more lanes for SCALED keys get their
     * scales. */
    DEVICE int first_key(const span &s) const
    {
        int unit = s.beg + lane();
        if (T::BYTES && lane() >= T::SCALES && lane() < T::POSITIONS) {
            int scale = lane() - T::SCALES, key = T::BN > T::SCALED ? scale / 4 * T::SCALED : 0;
            unit = s.beg + key / T::UNIT;
            return unit < s.to() ? __float_as_int(__ldg(
                                       a.scales.k + (int64_t)head_k * a.scales.padded +
                                       unit_key<T>(a, unit) + key % T::UNIT + 2 * (scale % 4)))
                                 : 0;
        }
        if (T::FILTER && lane() >= UNITS && lane() < 2 * UNITS)
            return unit - UNITS < s.to() ? __ldg(a.cols + unit - UNITS) : 0;
        if (T::BITS && lane() == UNITS) {
            int bits = __ldg(a.bits + s.beg / PER_BLOCK);
            if (bits >= 0) /* two stages before they are read */
                bulk_prefetch(a.words + (size_t)bits * 256, 2048);
        }
        return unit < s.to() && lane() < UNITS ? unit_key<T>(a, unit) : NO_KEY;
    }

    /* log2 of the number of units, from unit `at` of a stage on, that one copy takes: neighbouring
     * units of one block. Units that a stage lacks are read from beyond the tensor, as zeros. */
    static DEVICE int box_height(const span &s, int at)
    {
        int unit = s.beg + at, left = PER_BLOCK - unit % PER_BLOCK;
        left = min(left, unit < s.end ? s.end - unit : UNITS - at);
        return UNITS > 1 ? 31 - __clz(left) : 0;
    }

    /* Issue the copy of neighbouring units from `key` on, of keys (POSITIONS) or values. */
    template <bool POSITIONS>
    DEVICE void copy(const CUtensorMap *map, uint32_t dst, uint32_t bar, int key, int head)
    {
        constexpr bool BY_CHANNEL = !POSITIONS && T::BY_CHANNEL;
        constexpr int PANELS = POSITIONS ? T::IN_PANELS : BY_CHANNEL ? 1 : T::PANELS;
#pragma unroll
        for (int p = 0; p < PANELS; p++)
            tma_load(dst + p * T::BN * 128, map, bar, BY_CHANNEL ? key / 2 : p * 64,
                     BY_CHANNEL ? 0 : key, head, L2_EVICT_LAST);
    }

    /* One lane per unit issues its copy. The lane that arrives writes the positions. */
    template <bool POSITIONS>
    DEVICE void issue_by_lanes(const CUtensorMap *map, uint32_t dst, uint32_t bar, int *keys,
                               const span &s, int head)
    {
        __syncwarp();
        if (lane() < UNITS)
            copy<POSITIONS>(map, dst + lane() * (POSITIONS ? K_UNIT : V_UNIT), bar,
                            T::KIND == BLOCKS_PAIR ? s.key & ~3 : s.key, head);
#pragma unroll
        for (int u = 0; u < UNITS && POSITIONS; u++) {
            int key = __shfl_sync(~0u, s.key, u);
            if (lane() == 0)
                keys[u] = key;
        }
        __syncwarp();
    }

    /* One lane issues the copies, one copy for each run of neighbouring units of a block. */
    template <bool POSITIONS>
    DEVICE void issue_in_turn(const CUtensorMap *map, uint32_t dst, uint32_t bar, int *keys,
                              const span &s, int head)
    {
#pragma unroll 1
        for (int at = 0; at < UNITS;) {
            int height = box_height(s, at), key = s.key;
            if (UNITS > 1)
                key = __shfl_sync(~0u, key, at);
            if (lane() == 0) {
                copy<POSITIONS>(map + height, dst, bar, key, head);
                if (POSITIONS)
                    for (int i = 0; i < 1 << height; i++)
                        keys[at + i] = key + i * T::UNIT;
            }
            at += 1 << height;
            dst += (POSITIONS ? K_UNIT : V_UNIT) << height;
        }
    }

    /* Announces the copies before it issues them. The arrival comes last, after the keys'
     * positions. */
    template <bool POSITIONS>
    DEVICE void issue(const CUtensorMap *map, uint8_t *tile, uint64_t *full, int *keys,
                      const span &s, int head)
    {
        uint32_t dst = smem_addr(tile), bar = smem_addr(full);
        if (lane() == 0)
            mbar_announce(bar, POSITIONS ? T::K_BYTES : T::V_BYTES);
        if constexpr (T::LANES)
            issue_by_lanes<POSITIONS>(map, dst, bar, keys, s, head);
        else
            issue_in_turn<POSITIONS>(map, dst, bar, keys, s, head);
#pragma unroll
        for (int u = UNITS; u < T::POSITIONS && POSITIONS; u++) {
            int more = __shfl_sync(~0u, s.key, u);
            if (lane() == 0)
                keys[u] = more;
        }
        if (lane() == 0)
            mbar_arrive(bar);
    }

    DEVICE void issue_keys(const span &s, int head)
    {
        mbar_wait(smem_addr(&sm.k_empty[k.at]), k.parity ^ 1);
        issue<true>(maps.k, sm.k[k.at], &sm.k_full[k.at], sm.keys[k.at], s, head);
        k.next();
    }

    DEVICE void issue_values(const span &s, int head)
    {
        mbar_wait(smem_addr(&sm.v_empty[v.at]), v.parity ^ 1);
        issue<false>(maps.v, sm.v[v.at], &sm.v_full[v.at], nullptr, s, head);
        v.next();
    }

    DEVICE void issue_queries(const int4 &item, int head)
    {
        int block = item.x - head * a.q_blocks;
        mbar_wait(smem_addr(&sm.q_empty[q.at]), q.parity ^ 1);
        if (lane() == 0) {
            uint32_t bar = smem_addr(&sm.q_full[q.at]);
            int slot = T::SKIPS ? -1 : item.w; /* rows with a filter are whole */
            sm.work[q.at] = make_int4(place_of(head, block), item.y, item.z, slot);
            mbar_expect(bar, T::Q_BYTES);
#pragma unroll
            for (int p = 0; p < T::IN_PANELS; p++)
                tma_load(smem_addr(sm.q[q.at]) + p * T::BM * 128, &maps.q, bar, p * 64,
                         block * T::BM, head, L2_EVICT_FIRST);
        }
        q.next();
    }

    /* How many teams of the grid draw tickets. Computed at each use. */
    static DEVICE unsigned drawers()
    {
        unsigned blocks;
        asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(blocks));
        return T::TEAMS * blocks;
    }

    /* The next ticket, in lane 0. */
    DEVICE unsigned draw() const
    {
        return lane() == 0 ? drawers() + atomicAdd(a.ticket, 1u) : 0;
    }

    /* The second warp: copies the values of the items that the first warp drew. */
    DEVICE void run_values()
    {
        for (;; q.next()) {
            mbar_wait(smem_addr(&sm.q_full[q.at]), q.parity);
            int4 item = warp_load(&sm.work[q.at]);
            if (item.x < 0)
                break;
            warp_arrive(smem_addr(&sm.q_empty[q.at]));
            int head = head_of(item.x) / a.group;
            span s = first_span(item), next;

            for (int i = stages_of(item); i > 0; i--, s = next) {
                next = next_span(s, i > 1);
                issue_values(s, head);
            }
        }
    }

    /* Copy the keys of a stage, and the values of the stage before it unless the second warp copies
     * those. */
    DEVICE void issue_stage(const span &s, int head)
    {
        if (T::LENDS)
            v = k; /* they go in step, and registers hold one of them */
        issue_keys(s, head);
        if (T::LENDS)
            issue_values(s, head);
        if (T::PRODUCERS > 1 || T::LENDS)
            return;
        if (head_v >= 0)
            issue_values(late, head_v);
        late = s;
        head_v = head;
    }

    DEVICE int4 item_at(unsigned ticket) const
    {
        return __ldg(a.items + (ticket < (unsigned)a.n_items ? ticket : 0));
    }

    DEVICE void run()
    {
        /* The first is not drawn. */
        unsigned team = T::TEAMS > 1 ? threadIdx.x / (32 * T::PRODUCERS) : 0;
        unsigned ticket = blockIdx.x + team * gridDim.x;
        int4 item = item_at(ticket);
        while (ticket < (unsigned)a.n_items) {
            int head = item.x / a.q_blocks, kv_head = head / a.group, i = stages_of(item);
            head_k = kv_head;
            span s = first_span(item);
            issue_queries(item, head);
            for (; i > (T::TEAMS > 1 ? 1 : 2); i--) {
                span next = next_span(s, true);
                issue_stage(s, kv_head);
                s = next;
            }
            /* The next item is drawn and looked up while the last stages of this one wait for their
             * buffers. Not earlier: a thread block must not sit on a second long item while others
             * idle. */
            unsigned drawn = draw();
            if (i == 2) {
                span next = next_span(s, true);
                issue_stage(s, kv_head);
                s = next;
            }
            ticket = __shfl_sync(~0u, drawn, 0);
            item = item_at(ticket);
            issue_stage(s, kv_head);
        }
        /* Each draws exactly one ticket past the end; the last of them resets the counter. */
        if (lane() == 0 && ticket == (unsigned)a.n_items + drawers() - 1)
            *a.ticket = 0;
        if (head_v >= 0)
            issue_values(late, head_v);
        mbar_wait(smem_addr(&sm.q_empty[q.at]), q.parity ^ 1);
        if (lane() == 0) {
            sm.work[q.at] = make_int4(-1, 0, 0, 0);
            mbar_arrive(smem_addr(&sm.q_full[q.at]));
        }
    }
};

/* What a team's producer warps do. */
template <class T> DEVICE void produce(attn_smem<T> &sm, const attn_args &a, const attn_maps &maps)
{
    producer<T> p = {sm, a, maps};
    if (T::PRODUCERS == 1 || threadIdx.x / 32 % 2 == 0)
        p.run();
    else
        p.run_values();
}
