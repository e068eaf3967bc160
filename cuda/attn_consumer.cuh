/*
 * attn_consumer.cuh - a consumer warpgroup of the Hopper attention kernels: products, softmax and
 * outputs of its 64 rows of a tile (attn_sm90.cuh).
 */
#ifndef LACUNA_ATTN_CONSUMER_CUH
#define LACUNA_ATTN_CONSUMER_CUH

#include "cuda/attn_shape.cuh"

template <class T> struct consumer {
    static constexpr int BN = T::BN, D = T::D;
    static constexpr bool BITS = T::BITS;

    attn_smem<T>      &sm;
    const attn_args   &a;
    const CUtensorMap *mo;
    int                w; /* warpgroup, from 0 */
    ring<T::QBUFS>     q;
    ring<T::STAGES>    kv;
    int                tile, slot, n; /* of the item: x and w of its entry, stages */
    int                masked;    /* stages of the item from its end that may need masking */
    bool               have_p;    /* p holds probabilities that have not met their values */
    ring<T::STAGES>    done;      /* BLOCKS_PAIR: the stage that those are of */
    ring<T::STAGES>    skipped;   /* BLOCKS_PAIR, if owing: one that was not wanted, whose values are */
    bool               owing;     /* still to be returned */
    float              o[D / 2], m[2], l[2];
    uint32_t           p[BN / 4];

    /* Thread of the warpgroup, its warp and lane: read again where used, registers are scarce. */
    static DEVICE int t() { return threadIdx.x & 127; }
    static DEVICE int warp() { return threadIdx.x >> 5 & 3; }
    static DEVICE int lane() { return threadIdx.x & 31; }

    /* Wait for the next item; false when there is none. */
    DEVICE bool fetch_item(int4 &next)
    {
        mbar_wait(smem_addr(&sm.q_full[q.at]), q.parity);
        next = warp_load(&sm.work[q.at]);
        return next.x >= 0;
    }

    DEVICE int key_of(int stage, int unit) const
    {
        return warp_load(&sm.keys[stage][unit]);
    }

    DEVICE int first_row(int of_tile) const
    {
        return of_tile % a.q_blocks * T::BM + w * 64;
    }

    DEVICE void start_item(const int4 &next)
    {
        tile = next.x;
        slot = next.w;
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

    /* Descriptors are made from uniform addresses before a wait, and advanced by constants after
     * it: the address bits stay in place. */
    DEVICE uint64_t q_desc() const
    {
        return tile_desc(uniform(smem_addr(sm.q[q.at]) + w * 64 * 128), 16, 1024);
    }
    DEVICE uint64_t k_desc(int stage) const
    {
        return tile_desc(uniform(smem_addr(sm.k[stage])), 16, 1024);
    }
    DEVICE uint64_t v_desc(int stage) const
    {
        return tile_desc(uniform(smem_addr(sm.v[stage])), BN * 128, 1024);
    }

    DEVICE void issue_qk(float (&s)[BN / 2], uint64_t qd, uint64_t kd)
    {
        wgmma_fence();
#pragma unroll
        for (int kk = 0; kk < D / 16; kk++)
            wgmma_ss<BN>(s, qd + (kk / 4 * (T::BM * 128) + kk % 4 * 32) / 16,
                         kd + (kk / 4 * (BN * 128) + kk % 4 * 32) / 16, kk > 0);
        wgmma_commit();
    }

    DEVICE void issue_pv(uint64_t vd)
    {
        hold(o);
        wgmma_fence();
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

    /* Whether a score may exceed its row's limit, by the bits: those of floats above a limit that
     * is not negative order like integers, and integers have a maximum of three. A negative limit
     * says yes without looking. */
    static DEVICE bool may_exceed(const float (&s)[BN / 2], const float (&limit)[2])
    {
        int top[2];
#pragma unroll
        for (int i = 0; i < BN / 2; i += 2) {
            const int r = i >> 1 & 1;
            int x = __float_as_int(s[i]), y = __float_as_int(s[i + 1]);
            top[r] = i < 4 ? max(x, y) : __vimax3_s32(top[r], x, y);
        }
        return limit[0] < 0 || limit[1] < 0 || top[0] > __float_as_int(limit[0]) ||
               top[1] > __float_as_int(limit[1]);
    }

    /* Largest scores of the thread's two rows, over the four lanes that share them. */
    static DEVICE void row_tops(const float (&s)[BN / 2], float (&top)[2])
    {
#pragma unroll
        for (int i = 0; i < BN / 2; i += 2) {
            const int r = i >> 1 & 1;
            float x = fmaxf(s[i], s[i + 1]);
            top[r] = i < 4 ? x : fmaxf(top[r], x);
        }
#pragma unroll
        for (int lanes = 1; lanes < 4; lanes *= 2)
#pragma unroll
            for (int r = 0; r < 2; r++)
                top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], lanes));
    }

    /* Raise the maxima of the rows whose scores exceed them by 2^8: scales the sums, and returns
     * the factors of the outputs. */
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

    /* Scores [FROM, TO) to probabilities, which are added to sum[]. */
    template <bool MASKED, int FROM = 0, int TO = BN / 2>
    DEVICE void exponentials(float (&s)[BN / 2], const float (&mx)[2], float (&sum)[2])
    {
        float base[2], add[2][2] = {{0, 0}, {0, 0}};
#pragma unroll
        for (int r = 0; r < 2; r++) {
            base[r] = mx[r] * a.scale_log2;
            if (MASKED && mx[r] == -INFINITY)
                base[r] = 0;
        }
#pragma unroll
        for (int i = FROM; i < TO; i++) {
            const int r = i >> 1 & 1;
            s[i] = exp2_fast(fmaf(s[i], a.scale_log2, -base[r]));
            add[r][i & 1] += s[i];
        }
#pragma unroll
        for (int r = 0; r < 2; r++)
            sum[r] += add[r][0] + add[r][1];
    }

    DEVICE void pack(const float (&s)[BN / 2])
    {
#pragma unroll
        for (int i = 0; i < BN / 4; i++)
            p[i] = pack_pair(s[2 * i], s[2 * i + 1]);
    }

    DEVICE void clear_outputs()
    {
#pragma unroll
        for (int i = 0; i < D / 2; i++)
            o[i] = 0;
    }

    /* Q K of the stage at hand and P V of the one before it, if that is pending, in one turn. When it
     * returns the scores are there; P V may still be under way. block, kept: the stage's bits. */
    template <bool PENDING>
    DEVICE void multiply(float (&s)[BN / 2], const ring<T::STAGES> &before, int &block, uint2 &kept)
    {
        uint64_t qd = q_desc(), kd = k_desc(kv.at), vd = v_desc(before.at);
        mbar_wait(smem_addr(&sm.k_full[kv.at]), kv.parity);
        block = BITS ? key_of(kv.at, T::UNITS) : -1;
        kept = BITS ? load_bits(block) : make_uint2(0, 0);
        take_turn();
        issue_qk(s, qd, kd);
        if (PENDING) {
            mbar_wait(smem_addr(&sm.v_full[before.at]), before.parity);
            issue_pv(vd);
        }
        pass_turn();
        wgmma_wait<PENDING ? 1 : 0>();
        hold(s);
    }

    /* One stage inside an item: Q K of this one, P V of the one before it, if that is pending. */
    template <bool MASKED, bool PENDING>
    DEVICE void step(bool last, bool clipped = true)
    {
        float s[BN / 2];
        ring<T::STAGES> before = pending();
        kv.next();
        int   block;
        uint2 kept;
        multiply<PENDING>(s, before, block, kept);
        if (MASKED)
            mask_stage(s, tile, block, kept, clipped);
        constexpr int EARLY = PENDING ? T::EARLY : 0;
        if (!EARLY)
            arrive(&sm.k_empty[kv.at]);
        if (last)
            arrive(&sm.q_empty[q.at]);
        float limit[2] = {m[0] + a.grow, m[1] + a.grow}, c[2];
        bool grows = __any_sync(~0u, may_exceed(s, limit));
        if (grows) /* a branch here also keeps ptxas from waiting before the maximum is known */
            raise(s, limit, c);
        if (EARLY) {
            exponentials<MASKED, 0, EARLY>(s, m, l);
            /* ptxas would move them behind the wait below: so the return of the keys hangs on their
             * sum, which is not negative. */
            int none = __float_as_int(fminf(l[0], l[1])) >> 31;
            warp_arrive(smem_addr(&sm.k_empty[kv.at]) + none);
        }
        if (PENDING) {
            wgmma_wait<0>();
            hold(o);
            arrive(&sm.v_empty[before.at]);
        }
        exponentials<MASKED, EARLY>(s, m, l);
        pack(s);
        if (grows)
            rescale(c);
        leave_pending();
    }

    /* P V of the stage at hand, alone; its values are released. */
    DEVICE void flush()
    {
        mbar_wait(smem_addr(&sm.v_full[kv.at]), kv.parity);
        issue_pv(v_desc(kv.at));
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
        kv.next();
        arrive(&sm.k_empty[kv.at]);
        if (last)
            arrive(&sm.q_empty[q.at]);
        skipped = kv;
        owing = true;
    }

    /* A stage of a pair list, which may be wanted in full, in part or not at all. */
    DEVICE void step_pair(bool masked, bool last)
    {
        ring<T::STAGES> here = kv;
        here.next();
        mbar_wait(smem_addr(&sm.k_full[here.at]), here.parity);
        int wanted = (key_of(here.at, 0) >> w & 1) + (key_of(here.at, T::UNITS - 1) >> w & 1);
        if (wanted == 0)
            skip(last);
        else if (wanted == 2 && !masked)
            have_p ? step<false, true>(last) : step<false, false>(last);
        else
            have_p ? step<true, true>(last) : step<true, false>(last);
    }

    /* First stage of an item, issued together with the last P V of the one before it (PENDING);
     * then that one is finished (PREVIOUS). `before` is the stage of the pending values. */
    template <bool PREVIOUS, bool PENDING>
    DEVICE void first_step(const int4 &next, const ring<T::STAGES> &before)
    {
        float s[BN / 2], m_new[2], l_new[2] = {0, 0};
        int   block;
        uint2 kept;
        multiply<PENDING>(s, before, block, kept);
        /* three warpgroups have no register left for the condition */
        bool clipped = T::WG == 3 || T::KIND == BLOCKS_PAIR || a.causal ||
                       key_of(kv.at, T::UNITS - 1) + T::UNIT > a.nk;
        mask_stage(s, next.x, block, kept, clipped);
        arrive(&sm.k_empty[kv.at]);
        if (next.z - next.y <= T::UNITS)
            arrive(&sm.q_empty[q.at]);
        row_tops(s, m_new);
        exponentials<true>(s, m_new, l_new);
        if (PENDING) {
            wgmma_wait<0>();
            hold(o);
            arrive(&sm.v_empty[before.at]);
        }
        pack(s);
        if (PREVIOUS)
            finish();
        start_item(next);
        clear_outputs();
        m[0] = m_new[0], m[1] = m_new[1];
        l[0] = l_new[0], l[1] = l_new[1];
        leave_pending();
    }

    /* Normalise and store the outputs of an item; a piece of a split row goes to its slot. */
    DEVICE void finish()
    {
        float inv[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            l[r] += __shfl_xor_sync(~0u, l[r], 1);
            l[r] += __shfl_xor_sync(~0u, l[r], 2);
            inv[r] = l[r] > 0 ? 1 / l[r] : 0;
        }
        if (slot >= 0)
            store_piece();
        else
            store_rows(tile / a.q_blocks, first_row(tile), inv);
    }

    DEVICE void store_piece()
    {
        int in_tile = w * 64 + warp() * 16 + (lane() >> 2);
        asm volatile("" : "+r"(in_tile)); /* computed here, not kept from item to item */
        float *dst = a.piece_out + ((size_t)slot * T::BM + in_tile) * D + 2 * (lane() & 3);
#pragma unroll
        for (int r = 0; r < 2; r++) {
#pragma unroll
            for (int j = 0; j < D / 8; j++)
                *(float2 *)(dst + 8 * r * D + 8 * j) =
                    make_float2(o[4 * j + 2 * r], o[4 * j + 2 * r + 1]);
            if ((lane() & 3) == 0)
                a.piece_ml[(size_t)slot * T::BM + in_tile + 8 * r] =
                    make_float2(m[r] * a.scale_log2, l[r]);
        }
    }

    DEVICE void store_rows(int head, int row0, const float (&inv)[2])
    {
        const float ln2 = 0.69314718055994531f;
        int         mine = warp() * 16 + (lane() >> 2);
        asm volatile("" : "+r"(mine));
        mine += row0;
#pragma unroll
        for (int r = 0; r < 2; r++)
            if ((lane() & 3) == 0 && mine + 8 * r < a.nq)
                a.lse[(size_t)head * a.nq + mine + 8 * r] =
                    l[r] > 0 ? (m[r] * a.scale_log2 + __log2f(l[r])) * ln2 : -INFINITY;
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

    DEVICE void run_stages()
    {
        int i = 1, to = min(n, masked);
        if constexpr (T::KIND == BLOCKS_PAIR) {
#pragma unroll 1
            for (; i < n; i++)
                step_pair(i < to, i == n - 1);
        } else if constexpr (BITS) {
#pragma unroll 1
            for (; i < n; i++)
                step<true, true>(i == n - 1, i < to);
        } else {
#pragma unroll 1
            for (; i < to; i++)
                step<true, true>(i == n - 1);
#pragma unroll 1
            for (; i < n; i++)
                step<false, true>(i == n - 1);
        }
    }

    DEVICE void run()
    {
        int4            next;
        ring<T::STAGES> before;
        if (w == T::WG - 1) /* the last warpgroup hands the first turn to the first */
            pass_turn();
        if (fetch_item(next)) {
            first_step<false, false>(next, before);
            for (;;) {
                run_stages();
                before = pending();
                kv.next();
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
