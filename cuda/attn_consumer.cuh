/*
 * attn_consumer.cuh - a consumer warpgroup of the Hopper attention kernels: products, softmax and
 * outputs of its 64 rows of a tile (attn_sm90.cuh).
 */
#ifndef LACUNA_ATTN_CONSUMER_CUH
#define LACUNA_ATTN_CONSUMER_CUH

#include "cuda/attn_scores.cuh"
#include "cuda/attn_shape.cuh"
#include "cuda/attn_softmax.cuh"

/* Sums of a thread's probabilities of a row and stage from here on say that the row's reference has
 * become too small: no probability may leave the range of its 16-bit type. */
#ifndef ATTN_SUM_LIMIT
#define ATTN_SUM_LIMIT 0x1p60f
#endif

template <class T> struct consumer {
    static constexpr int BN = T::BN, D = T::D;
    static constexpr bool BITS = T::BITS;

    attn_smem<T>      &sm;
    const attn_args   &a;
    const CUtensorMap *mo;
    int                w; /* warpgroup, from 0 */
    ring<T::QBUFS>     q;
    ring<T::STAGES>    kv;
    int                tile, slot, n; /* of the item: its place, w of its entry, stages */
    int                first_unit;    /* of the item: y of its entry */
    int                masked;        /* stages of the item from its end that may need masking */
    bool               have_p;        /* p holds probabilities that have not met their values */
    ring<T::STAGES>    done;          /* BLOCKS_PAIR: the stage that those are of */
    ring<T::STAGES>    skipped;       /* BLOCKS_PAIR, if owing: one that was not wanted, whose */
    bool               owing;         /* values are still to be returned */
    int                wanted;        /* BLOCKS_PAIR: units_wanted(), 0 if that was too early */
    bool               unseen;        /* BLOCKS_PAIR: no key of the item has been wanted yet */
    float              o[D / 2], m[2], l[2];
    uint32_t           p[BN / 4];
    ring<T::STAGES>    ahead;     /* the stage after kv */
    uint32_t           q_at, k_at; /* the next turn's operands, low words of descriptors */
    int                k_here;    /* whether those keys were seen to have landed */

    /* Thread of the warpgroup, its warp and lane: read again where used, registers are scarce. */
    static DEVICE int t() { return threadIdx.x & 127; }
    static DEVICE int warp() { return threadIdx.x >> 5 & 3; }
    static DEVICE int lane() { return threadIdx.x & 31; }

    /* Wait for the next item; false when there is none. */
    DEVICE bool fetch_item(int4 &next)
    {
        mbar_wait(smem_addr(&sm.q_full[q.at]), q.parity);
        next = warp_load(&sm.work[q.at]);
        if (!T::CHECKED)
            q_at = q_desc();
        return next.x >= 0;
    }

    DEVICE int key_of(int stage, int unit) const
    {
        return warp_load(&sm.keys[stage][unit]);
    }

    DEVICE int first_row(int of_tile) const
    {
        return block_of(of_tile) * T::BM + w * 64;
    }

    DEVICE void start_item(const int4 &next)
    {
        tile = next.x;
        slot = next.w;
        first_unit = next.y;
        int units = next.z - next.y;
        n = (units + T::UNITS - 1) / T::UNITS;
        masked = (a.masked_units - units + n * T::UNITS + T::UNITS - 1) / T::UNITS;
    }

    /* Turns at the tensor cores. */
    DEVICE void take_turn()
    {
        if (T::TURNS)
            named_sync(1 + w, 256);
    }
    DEVICE void pass_turn()
    {
        if (T::TURNS)
            named_arrive(1 + (w + 1) % T::WG, 256);
    }

    /* Give a buffer back. */
    DEVICE void arrive(uint64_t *bar)
    {
        warp_arrive(smem_addr(bar));
    }

    DEVICE uint32_t q_desc() const
    {
        return desc_low(smem_addr(sm.q[q.at]) + w * 64 * 128, 16);
    }
    DEVICE uint32_t k_desc(int stage) const
    {
        return desc_low(smem_addr(sm.k[stage]), 16);
    }
    DEVICE uint32_t v_desc(int stage) const
    {
        return desc_low(smem_addr(sm.v[stage]), BN * 128);
    }

    /* Look ahead to the next turn, whose keys are those of the stage after kv. Called while
     * exponentials run: from a stage's scores to the next turn is one long chain of instructions,
     * and what does not hang on the probabilities must not lengthen it. */
    DEVICE void prepare()
    {
        ahead = kv;
        ahead.next();
        k_at = k_desc(ahead.at);
        if (!T::CHECKED)
            asm volatile("" : "+r"(ahead.at), "+r"(ahead.parity), "+r"(k_at));
        k_here = mbar_test(smem_addr(&sm.k_full[ahead.at]), ahead.parity);
        if (T::KIND == BLOCKS_PAIR)
            wanted = units_wanted(k_here);
    }

    /* Of the stage ahead of a pair list, whose keys have landed: how many of its two units this
     * warpgroup wants, and 4, in one lane; 0 in the others. */
    DEVICE int units_wanted(int landed) const
    {
        const int *key = sm.keys[ahead.at];
        return is_elected() && landed ? 4 + (key[0] >> w & 1) + (key[T::UNITS - 1] >> w & 1) : 0;
    }

    /* The same number in all lanes, when its keys have landed. */
    DEVICE int wanted_ahead()
    {
        int units = uniform(wanted);
        if (!units) {
            mbar_wait(smem_addr(&sm.k_full[ahead.at]), ahead.parity);
            units = uniform(units_wanted(1));
        }
        k_here = 1;
        return units & 3;
    }

    /* Of the stage ahead, when its keys have landed: the block of its bits, -1 for none. */
    DEVICE int bits_ahead()
    {
        mbar_wait_unless(k_here, smem_addr(&sm.k_full[ahead.at]), ahead.parity);
        k_here = 1;
        return key_of(ahead.at, T::UNITS);
    }

    DEVICE void issue_qk(float (&s)[BN / 2])
    {
        wgmma_fence();
        uint64_t qd = descriptor(uniform(q_at)), kd = descriptor(uniform(k_at));
#pragma unroll
        for (int kk = 0; kk < D / 16; kk++)
            wgmma_ss<BN>(s, qd + (kk / 4 * (T::BM * 128) + kk % 4 * 32) / 16,
                         kd + (kk / 4 * (BN * 128) + kk % 4 * 32) / 16, kk > 0);
        wgmma_commit();
    }

    DEVICE void issue_pv(int stage)
    {
        hold(o);
        wgmma_fence();
        uint64_t vd = descriptor(uniform(v_desc(stage)));
#pragma unroll
        for (int kk = 0; kk < BN / 16; kk++)
            wgmma_rs<D>(o, p[4 * kk], p[4 * kk + 1], p[4 * kk + 2], p[4 * kk + 3],
                        vd + kk * 2048 / 16);
        wgmma_commit();
    }

    /* Scores that row r (0 or 1) of this thread may not see become -inf. */
    DEVICE void mask_scores(float (&s)[BN / 2], int stage, int of_tile)
    {
        int row = warp() * 16 + (lane() >> 2), end[2];
        asm volatile("" : "+r"(row)); /* computed here, not kept from stage to stage */
        row += first_row(of_tile);
#pragma unroll
        for (int r = 0; r < 2; r++)
            end[r] = (a.causal ? min(a.nk, row + 8 * r + a.offset + 1) : a.nk) - 2 * (lane() & 3);
#pragma unroll
        for (int unit = 0; unit < T::UNITS; unit++) {
            int key = key_of(stage, unit);
            if (T::KIND == BLOCKS_PAIR)
                key = key >> w & 1 ? key & ~3 : NO_KEY;
#pragma unroll
            for (int i = 0; i < T::UNIT / 2; i++)
                if (8 * (i / 4) + i % 2 >= end[i / 2 % 2] - key)
                    s[T::UNIT / 2 * unit + i] = -INFINITY;
        }
    }

    /* The thread's bits of a stage, on their way while its products run: bit i for score i. */
    DEVICE uint2 load_bits(int block) const
    {
        uint2 kept = make_uint2(0, 0);
        asm volatile("{\n.reg .pred p;\nsetp.ge.s32 p, %2, 0;\n"
                     "@p ld.global.nc.v2.u32 {%0, %1}, [%3];\n}"
                     : "+r"(kept.x), "+r"(kept.y)
                     : "r"(block), "l"(a.words + ((int64_t)block * 256 + w * 128 + t())));
        return kept;
    }

    /* Scores of the stage at hand whose bit is not set become -inf; without bits (block < 0) those
     * that are not allowed, if it may have any (clipped). */
    DEVICE void mask_stage(float (&s)[BN / 2], int of_tile, int block, uint2 kept, bool clipped)
    {
        if (BITS && block >= 0) {
#pragma unroll
            for (int i = 0; i < BN / 2; i++)
                if (!((i < 32 ? kept.x : kept.y) >> (i & 31) & 1))
                    s[i] = -INFINITY;
        } else if (!T::GATHER && clipped) {
            mask_scores(s, kv.at, of_tile);
        }
    }

    /* Raise the references of the rows whose scores exceed them by 2^8: scales the sums, and
     * returns the factors of the outputs. */
    DEVICE void raise(const float (&s)[BN / 2], const float (&limit)[2], float (&c)[2])
    {
        float top[2];
        row_tops(s, top);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            c[r] = 1;
            if (top[r] > limit[r]) {
                c[r] = exp2_fast((m[r] - top[r]) * a.scale_log2);
                m[r] = top[r];
            }
            l[r] *= c[r];
        }
    }

    DEVICE void rescale(const float (&c)[2])
    {
#pragma unroll
        for (int i = 0; i < D / 2; i++)
            o[i] *= c[i >> 1 & 1];
    }

    DEVICE void clear_outputs()
    {
#pragma unroll
        for (int i = 0; i < D / 2; i++)
            o[i] = 0;
    }

    /* Q K of the stage at hand and P V of the one before it, if that is pending, in one turn. When
     * it returns the scores are there; P V may still be under way. The thread's bits of the stage,
     * if it has any (block, mask_stage). */
    template <bool PENDING>
    DEVICE uint2 multiply(float (&s)[BN / 2], const ring<T::STAGES> &before, int block)
    {
        if (T::CHECKED) /* no registers to keep them in */
            q_at = q_desc(), k_at = k_desc(kv.at);
        mbar_wait_unless(k_here, smem_addr(&sm.k_full[kv.at]), kv.parity);
        uint2 kept = BITS ? load_bits(block) : make_uint2(0, 0);
        take_turn();
        issue_qk(s);
        if (PENDING) {
            mbar_wait(smem_addr(&sm.v_full[before.at]), before.parity);
            issue_pv(before.at);
        }
        pass_turn();
        wgmma_wait<PENDING ? 1 : 0>();
        hold(s);
        return kept;
    }

    /* P V of the stage before, if that is pending, comes to its end. */
    template <bool PENDING> DEVICE void end_values(const ring<T::STAGES> &before)
    {
        if (PENDING) {
            wgmma_wait<0>();
            hold(o);
            arrive(&sm.v_empty[before.at]);
        }
    }

    /* First keys of the units of the item's stage i, which is not its first. */
    DEVICE void unit_keys(int i, int (&key)[T::UNITS]) const
    {
#pragma unroll
        for (int u = 0; u < T::UNITS; u++) {
            key[u] = unit_key<T>(a, first_unit + (n - 1 - i) * T::UNITS + u);
            if (T::KIND == BLOCKS_PAIR)
                key[u] &= ~3;
        }
    }

    /* The softmax of stage i once more, whose scores have become probabilities too large or
     * infinite, after raising the references. */
    DEVICE void soften(float (&s)[BN / 2], int i, float (&sum)[2])
    {
        int head = head_of(tile), key[T::UNITS];
        float limit[2] = {m[0] + a.grow, m[1] + a.grow}, c[2];
        size_t q_rows = (size_t)head * a.nq, k_rows = (size_t)(head / a.group) * a.nk;
        unit_keys(i, key);
        warp_scores<D, T::UNIT>(s, (const uint16_t *)a.q + q_rows * D,
                                first_row(tile) + warp() * 16 + (lane() >> 2), a.nq,
                                (const uint16_t *)a.k + k_rows * D, key);
        raise(s, limit, c);
        exponentials<true, 0, BN / 2>(s, m, a.scale_log2, sum);
        pack(s, p);
        rescale(c);
    }

    /* Stage i inside an item, all of whose scores count: Q K of this one, P V of the one before it,
     * if that is pending. Nothing looks for the largest score: a row's reference holds until a sum
     * says otherwise. */
    template <bool PENDING> DEVICE void step(int i)
    {
        float s[BN / 2], sum[2], rest[2];
        ring<T::STAGES> before = pending();
        constexpr int EARLY = PENDING ? T::EARLY : 0;
        kv = ahead;
        multiply<PENDING>(s, before, -1);
        warp_arrive_if(i == n - 1, smem_addr(&sm.q_empty[q.at]));
        if (EARLY)
            exponentials<false, 0, EARLY>(s, m, a.scale_log2, sum);
        /* ptxas would move the first exponentials behind the wait below: so the return of the keys
         * hangs on their sum, which is not negative. */
        int none = EARLY ? __float_as_int(fminf(sum[0], sum[1])) >> 31 : 0;
        warp_arrive(smem_addr(&sm.k_empty[kv.at]) + none);
        end_values<PENDING>(before);
        prepare();
        exponentials<false, EARLY, BN / 2>(s, m, a.scale_log2, rest);
        sum[0] = EARLY ? sum[0] + rest[0] : rest[0];
        sum[1] = EARLY ? sum[1] + rest[1] : rest[1];
        pack(s, p);
        if (__any_sync(~0u, !(fmaxf(sum[0], sum[1]) < ATTN_SUM_LIMIT)))
            soften(s, i, sum);
        l[0] += sum[0];
        l[1] += sum[1];
        leave_pending();
    }

    /* The same by the largest score, which is looked for before the exponentials: of stages with
     * scores that do not count (MASKED) or with bits, and where registers are too few for step().
     */
    template <bool MASKED, bool PENDING>
    DEVICE void step_checked(int i, bool clipped = true, int block = -1)
    {
        float s[BN / 2], sum[2];
        ring<T::STAGES> before = pending();
        kv = ahead;
        uint2 kept = multiply<PENDING>(s, before, block);
        if (MASKED)
            mask_stage(s, tile, block, kept, clipped);
        arrive(&sm.k_empty[kv.at]);
        warp_arrive_if(i == n - 1, smem_addr(&sm.q_empty[q.at]));
        float limit[2] = {m[0] + a.grow, m[1] + a.grow}, c[2];
        bool grows = __any_sync(~0u, may_exceed(s, limit));
        if (grows) /* a branch here also keeps ptxas from waiting before the maximum is known */
            raise(s, limit, c);
        end_values<PENDING>(before);
        prepare();
        exponentials<MASKED, 0, BN / 2>(s, m, a.scale_log2, sum);
        l[0] += sum[0];
        l[1] += sum[1];
        pack(s, p);
        if (grows)
            rescale(c);
        leave_pending();
    }

    /* P V of the stage at hand, alone; its values are released. */
    DEVICE void flush()
    {
        mbar_wait(smem_addr(&sm.v_full[kv.at]), kv.parity);
        issue_pv(kv.at);
        wgmma_wait<0>();
        hold(o);
        arrive(&sm.v_empty[kv.at]);
        have_p = false;
    }

    /* The stage whose probabilities are pending. */
    DEVICE ring<T::STAGES> pending() const
    {
        return T::KIND == BLOCKS_PAIR ? done : kv;
    }

    /* At the end of a stage: its probabilities are pending. */
    DEVICE void leave_pending()
    {
        have_p = true;
        if (T::KIND == BLOCKS_PAIR) {
            done = kv;
            settle();
        }
    }

    /* Return the values of a skipped stage. They must have landed, or the barriers count wrong. */
    DEVICE void settle()
    {
        if (owing) {
            mbar_wait(smem_addr(&sm.v_full[skipped.at]), skipped.parity);
            arrive(&sm.v_empty[skipped.at]);
        }
        owing = false;
    }

    /* A stage that this warpgroup does not want (BLOCKS_PAIR). Its keys are returned at once, its
     * values, which may be on their way, at the end of the next stage: waiting for them here would
     * let one warpgroup wait for buffers that the other one returns. The P V that is pending goes
     * along with the next Q K, unless a second stage is skipped, whose values need the buffer. */
    DEVICE void skip(bool last)
    {
        if (owing && have_p) {
            ring<T::STAGES> here = kv;
            kv = done;
            flush();
            kv = here;
        }
        settle();
        kv = ahead;
        arrive(&sm.k_empty[kv.at]);
        if (last)
            arrive(&sm.q_empty[q.at]);
        skipped = kv;
        owing = true;
        prepare();
    }

    /* A stage of a pair list, which may be wanted in full, in part or not at all. */
    DEVICE void step_pair(bool masked, int i)
    {
        int units = wanted_ahead();
        if (units == 0) {
            skip(i == n - 1);
            return;
        }
        if (units == 2 && !masked && !unseen)
            have_p ? step<true>(i) : step<false>(i);
        else
            have_p ? step_checked<true, true>(i) : step_checked<true, false>(i);
        unseen = false;
    }

    /* A stage of blocks that may have bits. */
    DEVICE void step_bits(bool clipped, int i)
    {
        int block = bits_ahead();
        if (!T::GATHER && block < 0 && !clipped)
            step<true>(i);
        else
            step_checked<true, true>(i, clipped, block);
    }

    /* First stage of an item, issued together with the last P V of the one before it (PENDING);
     * then that one is finished (PREVIOUS). `before` is the stage of the pending values. */
    template <bool PREVIOUS, bool PENDING>
    DEVICE void first_step(const int4 &next, const ring<T::STAGES> &before)
    {
        float s[BN / 2], m_new[2], l_new[2];
        float inv[2];
        if (PREVIOUS)
            close_rows(inv);
        if (T::KIND == BLOCKS_PAIR)
            unseen = wanted_ahead() == 0;
        int   block = BITS ? bits_ahead() : -1;
        uint2 kept = multiply<PENDING>(s, before, block);
        /* three warpgroups have no register left for the condition */
        bool clipped = T::WG == 3 || T::KIND == BLOCKS_PAIR || a.causal ||
                       key_of(kv.at, T::UNITS - 1) + T::UNIT > a.nk;
        mask_stage(s, next.x, block, kept, clipped);
        arrive(&sm.k_empty[kv.at]);
        if (next.z - next.y <= T::UNITS)
            arrive(&sm.q_empty[q.at]);
        row_tops(s, m_new);
        exponentials<true, 0, BN / 2>(s, m_new, a.scale_log2, l_new);
        end_values<PENDING>(before);
        prepare();
        pack(s, p);
        if (PREVIOUS)
            store_outputs(inv);
        start_item(next);
        clear_outputs();
        m[0] = m_new[0], m[1] = m_new[1];
        l[0] = l_new[0], l[1] = l_new[1];
        leave_pending();
    }

    /* The sums and references of an item's rows are final: store the normalisers, or what a piece
     * of a split row leaves to be combined; the factors of the outputs. Nothing else needs m and l.
     */
    DEVICE void close_rows(float (&inv)[2])
    {
        const float ln2 = 0.69314718055994531f;
        int in_tile = w * 64 + warp() * 16 + (lane() >> 2);
        asm volatile("" : "+r"(in_tile)); /* computed here, not kept from item to item */
#pragma unroll
        for (int r = 0; r < 2; r++) {
            l[r] += __shfl_xor_sync(~0u, l[r], 1);
            l[r] += __shfl_xor_sync(~0u, l[r], 2);
            inv[r] = l[r] > 0 ? __fdividef(1, l[r]) : 0;
            int row = block_of(tile) * T::BM + in_tile + 8 * r;
            if ((lane() & 3) != 0)
                continue;
            if (slot >= 0)
                a.piece_ml[(size_t)slot * T::BM + in_tile + 8 * r] =
                    make_float2(m[r] * a.scale_log2, l[r]);
            else if (row < a.nq)
                a.lse[(size_t)head_of(tile) * a.nq + row] =
                    l[r] > 0 ? (m[r] * a.scale_log2 + __log2f(l[r])) * ln2 : -INFINITY;
        }
    }

    /* Store the outputs of an item; a piece of a split row goes to its slot, not normalised. */
    DEVICE void store_outputs(const float (&inv)[2])
    {
        if (slot >= 0)
            store_piece();
        else
            store_rows(head_of(tile), first_row(tile), inv);
    }

    DEVICE void store_piece()
    {
        int in_tile = w * 64 + warp() * 16 + (lane() >> 2);
        asm volatile("" : "+r"(in_tile));
        float *dst = a.piece_out + ((size_t)slot * T::BM + in_tile) * D + 2 * (lane() & 3);
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int j = 0; j < D / 8; j++)
                *(float2 *)(dst + 8 * r * D + 8 * j) =
                    make_float2(o[4 * j + 2 * r], o[4 * j + 2 * r + 1]);
    }

    DEVICE void store_rows(int head, int row0, const float (&inv)[2])
    {
        int      in_warp = (lane() & 7) + 8 * (lane() >> 3 & 1), row_wg = warp() * 16 + in_warp;
        uint32_t base = smem_addr(sm.o[w]);
        asm volatile("" : "+r"(row_wg), "+r"(base)); /* not to be kept from item to item */
#pragma unroll
        for (int panel = 0; panel < T::PANELS; panel++) {
            uint32_t dst = base + panel % T::OPANELS * (64 * 128);
            if (panel % T::OPANELS == 0) { /* the buffer's last store must have been read */
                if (t() == 0)
                    tma_store_wait_read();
                named_sync(1 + T::WG + w, 128);
            }
#pragma unroll
            for (int j = 0; j < 8; j += 2) {
                int e = 4 * (panel * 8 + j);
                int chunk = (j + (lane() >> 4)) ^ (row_wg & 7);
                stmatrix_x4(dst + row_wg * 128 + chunk * 16,
                            pack_pair(o[e] * inv[0], o[e + 1] * inv[0]),
                            pack_pair(o[e + 2] * inv[1], o[e + 3] * inv[1]),
                            pack_pair(o[e + 4] * inv[0], o[e + 5] * inv[0]),
                            pack_pair(o[e + 6] * inv[1], o[e + 7] * inv[1]));
            }
            async_proxy_fence();
            named_sync(1 + T::WG + w, 128);
            if (t() == 0) {
                tma_store(mo, dst, panel * 64, row0, head);
                tma_store_commit();
            }
        }
    }

    DEVICE void finish()
    {
        float inv[2];
        close_rows(inv);
        store_outputs(inv);
    }

    DEVICE void run_stages()
    {
        int i = 1, to = min(n, masked);
        if constexpr (T::KIND == BLOCKS_PAIR) {
#pragma unroll 1
            for (; i < n; i++)
                step_pair(i < to, i);
        } else if constexpr (BITS) {
#pragma unroll 1
            for (; i < n; i++)
                step_bits(i < to, i);
        } else {
#pragma unroll 1
            for (; i < to; i++)
                step_checked<true, true>(i);
#pragma unroll 1
            for (; i < n; i++)
                T::CHECKED ? step_checked<false, true>(i) : step<true>(i);
        }
    }

    DEVICE void run()
    {
        int4            next;
        ring<T::STAGES> before;
        if (w == T::WG - 1) /* the last warpgroup hands the first turn to the first */
            pass_turn();
        if (fetch_item(next)) {
            ahead = kv;
            k_at = k_desc(0);
            k_here = wanted = 0;
            first_step<false, false>(next, before);
            for (;;) {
                run_stages();
                before = pending();
                kv = ahead;
                q.next();
                if (!fetch_item(next))
                    break;
                if (T::KIND == BLOCKS_PAIR && !have_p)
                    first_step<true, false>(next, before);
                else
                    first_step<true, true>(next, before);
            }
            kv = before;
            if (T::KIND != BLOCKS_PAIR || have_p)
                flush();
            finish();
        }
        if (T::KIND == BLOCKS_PAIR)
            settle();
        if (t() == 0)
            tma_store_wait_read();
    }
};

#endif
