/*
 * attn_consumer.cuh - a consumer warpgroup of the Hopper attention kernels: products and softmax of
 * its 64 rows of a tile (attn_sm90.cuh).
 */
#pragma once

#include "cuda/attn/attn_outputs.cuh"
#include "cuda/attn/attn_scores.cuh"
#include "cuda/attn/attn_shape.cuh"
#include "cuda/attn/attn_softmax.cuh"

/* If the sum of a thread's probabilities of a row and stage reaches this limit, the row's reference
 * has become too small: no probability may leave the range of its 16-bit type. */
#ifndef ATTN_SUM_LIMIT
#define ATTN_SUM_LIMIT 0x1p60f
#endif

template <class T> struct consumer : tile_rows<T> {
    static constexpr int BN = T::BN, D = T::D;
    static constexpr bool BITS = T::BITS;

    using rows = tile_rows<T>;
    using rows::a, rows::l, rows::m, rows::o, rows::slot, rows::sm, rows::tile, rows::w;
    using rows::first_row, rows::lane, rows::pass_turn, rows::rescale, rows::t, rows::take_turn,
        rows::warp;

    ring<T::QBUFS> q;
    ring<T::STAGES> kv;
    int n;                   /* of the item: stages */
    int first_unit;          /* of the item: y of its entry */
    int masked;              /* stages of the item from its end that may need masking */
    bool have_p;             /* p holds probabilities that have not met their values */
    bool owed;               /* o holds the outputs of the item before, whose place this is: */
    int owed_tile;           /* they leave beside the second stage */
    ring<T::STAGES> done;    /* BLOCKS_PAIR: the stage that the pending probabilities are of */
    ring<T::STAGES> skipped; /* BLOCKS_PAIR, if owing: one that was not wanted, whose */
    bool owing;              /* values are still to be returned */
    int wanted;              /* BLOCKS_PAIR: units_wanted(), 0 if that was too early */
    bool unseen;             /* BLOCKS_PAIR: no key of the item has been wanted yet */
    uint32_t p[BN / 4];
    ring<T::STAGES> ahead; /* the stage after kv */
    uint32_t q_at, k_at;   /* the next turn's operands, low words of descriptors */
    int k_here;            /* whether those keys were seen to have landed */
    int unit, block;       /* BITS: the unit of that stage and its block of bits, -1 for none */
    bool lacking;          /* BITS: some row of the warp has not met a key yet */

    /* Wait for the next item and get its place_of(); false when there is none. */
    DEVICE bool await_item(int &place)
    {
        mbar_wait(smem_addr(&sm.q_full[q.at]), q.parity);
        if (!T::CHECKED)
            q_at = q_desc();
        int mine = elected_load(&sm.work[q.at].x);
        place = uniform(mine);
        return !__any_sync(~0u, mine < 0);
    }

    DEVICE int4 item() const
    {
        return warp_load(&sm.work[q.at]);
    }

    DEVICE int key_of(int stage, int unit) const
    {
        return warp_load(&sm.keys[stage][unit]);
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

    /* Look up the operands of the next turn, whose keys are those of the stage after kv. Called
     * while exponentials run: from a stage's scores to the next turn is one long chain of
     * instructions, and work that does not depend on the probabilities must not lengthen it. */
    DEVICE void prepare()
    {
        ahead = kv;
        ahead.next();
        k_at = k_desc(ahead.at);
        if (!T::CHECKED)
            asm volatile("" : "+r"(ahead.at), "+r"(ahead.parity), "+r"(k_at));
        k_here = T::GATHER ? 0 : mbar_test(smem_addr(&sm.k_full[ahead.at]), ahead.parity);
        if (T::KIND == BLOCKS_PAIR)
            wanted = units_wanted(k_here);
    }

    /* How many of the units of the stage ahead of a pair list this warpgroup wants, plus 8, in one
     * lane; 0 in the other lanes, and in all if its keys have not landed. */
    DEVICE int units_wanted(int landed) const
    {
        const int *key = sm.keys[ahead.at];
        int n = 8;
        if (!is_elected() || !landed)
            return 0;
#pragma unroll
        for (int u = 0; u < T::UNITS; u++)
            n += key[u] >> w & 1;
        return n;
    }

    /* Wait for these keys; the number of wanted units in all lanes. */
    DEVICE int wanted_ahead()
    {
        int units = uniform(wanted);
        if (!units) {
            mbar_wait(smem_addr(&sm.k_full[ahead.at]), ahead.parity);
            units = uniform(units_wanted(1));
        }
        k_here = 1;
        return units & 7;
    }

    DEVICE int bits_of(int of_unit) const
    {
        return bits_of_unit<T>(__ldg(a.bits + of_unit / T::PER_BLOCK), of_unit);
    }

    /* At a stage: which bits the next one has. The look-up has the time of the stage. */
    DEVICE void look_up_bits()
    {
        unit = max(unit - 1, 0);
        block = bits_of(unit);
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

    /* FRESH: overwrite o instead of adding to it. */
    template <bool FRESH = false> DEVICE void issue_pv(int stage)
    {
        hold(o);
        wgmma_fence();
        uint64_t vd = descriptor(uniform(v_desc(stage)));
#pragma unroll
        for (int kk = 0; kk < BN / 16; kk++)
            wgmma_rs<T::DV>(o, p[4 * kk], p[4 * kk + 1], p[4 * kk + 2], p[4 * kk + 3],
                            vd + kk * 2048 / 16, !FRESH || kk > 0);
        wgmma_commit();
    }

    /* Set scores to -inf whose key the thread's row r (0 or 1) may not see. */
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

    /* Load the thread's bits of a stage, bit i for score i; of none, anything. They are not set
     * before, because a loop would wait for a load that may leave them as they are. A stage of half
     * a block has half of each word. */
    DEVICE uint2 load_bits(int bits) const
    {
        uint2 kept;
        const int64_t word = (int64_t)(bits / T::PER_BLOCK) * 256 + w * 128 + t();
        const uint32_t *from = (const uint32_t *)(a.words + word) + bits % T::PER_BLOCK;
        if (T::PER_BLOCK == 1)
            asm volatile("{\n.reg .pred p;\nsetp.ge.s32 p, %2, 0;\n"
                         "@p ld.global.nc.v2.u32 {%0, %1}, [%3];\n}"
                         : "=r"(kept.x), "=r"(kept.y)
                         : "r"(bits), "l"(from));
        else
            asm volatile("{\n.reg .pred p;\nsetp.ge.s32 p, %1, 0;\n"
                         "@p ld.global.nc.u32 %0, [%2];\n}"
                         : "=r"(kept.x)
                         : "r"(bits), "l"(from));
        return kept;
    }

    /* Set the scores [FROM, TO) to -inf whose bit is not set. */
    template <int FROM, int TO> DEVICE static void mask_bits(float (&s)[BN / 2], uint2 bits)
    {
#pragma unroll
        for (int i = FROM; i < TO; i++)
            if (!((i < 32 ? bits.x : bits.y) >> (i & 31) & 1))
                s[i] = -INFINITY;
    }

    /* Rows that have not met a key yet take their reference from this stage; base: of all rows, in
     * log2 units. */
    DEVICE void start_rows(const float (&s)[BN / 2], float (&base)[2])
    {
        float top[2];
        row_tops(s, top);
#pragma unroll
        for (int r = 0; r < 2; r++)
            m[r] = m[r] == -INFINITY ? top[r] : m[r];
        log2_base<true>(m, a.scale_log2, base);
        lacking = rows_lack();
    }

    DEVICE bool rows_lack() const
    {
        return __any_sync(~0u, fminf(m[0], m[1]) == -INFINITY);
    }

    /* Raise the references that scores exceed by 2^8. Scales the sums; c = factors of the outputs.
     */
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

    /* Issue Q K of the current stage, and P V of the stage before it if that is pending, in one
     * turn at the tensor cores. Returns when the scores are there; P V may still run. P V cannot be
     * issued before Q K is done, so what beside() does costs no time if it is short. FRESH: the
     * outputs start anew. */
    template <bool PENDING, bool FRESH, class F>
    DEVICE void multiply(float (&s)[BN / 2], const ring<T::STAGES> &before, F beside)
    {
        if (T::CHECKED) /* no registers to keep them in */
            q_at = q_desc(), k_at = k_desc(kv.at);
        mbar_wait_unless(k_here, smem_addr(&sm.k_full[kv.at]), kv.parity);
        take_turn();
        issue_qk(s);
        if (PENDING) {
            mbar_wait(smem_addr(&sm.v_full[before.at]), before.parity);
            beside();
            issue_pv<FRESH>(before.at);
        } else {
            beside();
        }
        pass_turn();
        wgmma_wait<PENDING ? 1 : 0>();
        hold(s);
    }

    /* Wait for P V of the stage before, if that is pending, and return its buffer. */
    template <bool PENDING> DEVICE void end_values(const ring<T::STAGES> &before)
    {
        if (PENDING) {
            wgmma_wait<0>();
            hold(o);
            arrive(&sm.v_empty[before.at]);
        }
    }

    /* Key of a row of 8 keys of stage i of the item, i > 0. */
    DEVICE int row_key(int i, int eight, int row) const
    {
        int unit = first_unit + (n - 1 - i) * T::UNITS + eight / (T::UNIT / 8);
        if (T::GATHER)
            return __ldg(a.keys + (size_t)unit * BN + 8 * eight + row);
        int first = unit_key<T>(a, unit);
        return (T::KIND == BLOCKS_PAIR ? first & ~3 : first) + eight % (T::UNIT / 8) * 8 + row;
    }

    /* Repeat the softmax of stage i, whose probabilities became too large or infinite, after
     * raising the references. */
    DEVICE void soften(int i, float (&sum)[2])
    {
        float s[BN / 2], base[2];
        int head = head_of(tile);
        float limit[2] = {m[0] + a.grow, m[1] + a.grow}, c[2];
        size_t q_rows = (size_t)head * a.nq, k_rows = (size_t)(head / a.group) * a.nk;
        warp_scores<D>(s, (const uint16_t *)a.q + q_rows * D,
                       first_row(tile) + warp() * 16 + (lane() >> 2), a.nq,
                       (const uint16_t *)a.k + k_rows * D,
                       [&](int eight, int row) { return row_key(i, eight, row); });
        if (BITS) {
            int bits = bits_of(first_unit + n - 1 - i);
            if (bits >= 0)
                mask_bits<0, BN / 2>(s, load_bits(bits));
        }
        raise(s, limit, c);
        log2_base<true>(m, a.scale_log2, base);
        exponentials<0, BN / 2>(s, base, a.scale_log2, sum);
        pack(s, p);
        rescale(c);
    }

    /* Return the keys of the current stage when the first exponentials are done. ptxas would move
     * these behind the wait for P V that follows, so the return depends on their sum, which is not
     * negative. */
    DEVICE void return_keys_after(const float (&sum)[2])
    {
        int none = __float_as_int(fminf(sum[0], sum[1])) >> 31;
        warp_arrive(smem_addr(&sm.k_empty[kv.at]) + none);
    }

    /* A stage inside an item, all of whose scores count, or MASKED, those whose bit is set: Q K of
     * this stage, and P V of the stage before it if that is pending. Nothing looks for the largest
     * score: a row's reference (`base`, in log2 units) holds until a sum exceeds the limit. The
     * result is true if one does, if this is the `last` stage, or with BITS, if the next one is of
     * the other kind. `empties`: the queries are not needed after this stage. OWED: store the
     * outputs of the item before meanwhile. */
    template <bool PENDING, bool OWED, bool MASKED = false>
    DEVICE bool try_step(float (&base)[2], bool empties, bool last, float (&sum)[2],
                         uint2 bits = make_uint2(0, 0))
    {
        float s[BN / 2], rest[2];
        ring<T::STAGES> before = pending();
        constexpr int EARLY = PENDING ? T::EARLY : 0;
        kv = ahead;
        if (BITS)
            look_up_bits();
        multiply<PENDING, OWED>(s, before, [&] {
            if (OWED) {
                rows::template put_outputs<T::OUT_EARLY, T::DV / 16>();
                rows::send_rows(owed_tile);
            }
        });
        warp_arrive_if(empties, smem_addr(&sm.q_empty[q.at]));
        if (MASKED && lacking) {
            mask_bits<0, BN / 2>(s, bits);
            start_rows(s, base);
        }
        if (EARLY) {
            if (MASKED)
                mask_bits<0, EARLY>(s, bits);
            exponentials<0, EARLY>(s, base, a.scale_log2, sum);
            return_keys_after(sum);
        } else {
            arrive(&sm.k_empty[kv.at]);
        }
        end_values<PENDING>(before);
        prepare();
        if (MASKED)
            mask_bits<EARLY, BN / 2>(s, bits);
        exponentials<EARLY, BN / 2>(s, base, a.scale_log2, rest);
        sum[0] = EARLY ? sum[0] + rest[0] : rest[0];
        sum[1] = EARLY ? sum[1] + rest[1] : rest[1];
        pack(s, p);
        return exceeds(sum, last || (BITS && MASKED != (block >= 0)));
    }

    /* Is a sum of the warp too large, or or_else true in a lane? */
    DEVICE static bool exceeds(const float (&sum)[2], bool or_else = false)
    {
        return __any_sync(~0u, !(fmaxf(sum[0], sum[1]) < ATTN_SUM_LIMIT) || or_else);
    }

    DEVICE void add_sums(const float (&sum)[2])
    {
        l[0] += sum[0];
        l[1] += sum[1];
    }

    /* References for steps, in log2 units. Pinned, because otherwise ptxas repeats the
     * multiplication in every stage. */
    DEVICE void references(float (&base)[2]) const
    {
        log2_base<false>(m, a.scale_log2, base);
        asm volatile("" : "+f"(base[0]), "+f"(base[1]));
    }

    template <bool PENDING> DEVICE void step(int i)
    {
        float base[2], sum[2];
        log2_base<false>(m, a.scale_log2, base);
        if (try_step<PENDING, false>(base, i == n - 1, false, sum))
            soften(i, sum);
        add_sums(sum);
        leave_pending();
    }

    /* Stages from i on, until a sum is too large or the item ends. The loop has one branch and adds
     * sums one stage late, because its length is the time of a stage. */
    DEVICE void loop_steps(int &i, float (&base)[2], float (&sum)[2])
    {
        bool stop;
#pragma unroll 1
        do {
            add_sums(sum);
            i++;
            stop = try_step<true, false>(base, i == n, i == n, sum);
        } while (!stop);
    }

    /* The stages from i on, all as for try_step(). Rare work is outside of the loop. It stands
     * before the loop, except in kernels without masks, which are 0.1 % faster with it behind;
     * kernels of 64 channels or of blocks of 128 x 64 would be 1 to 2 % slower. */
    DEVICE void steps(int i)
    {
        float base[2], sum[2] = {0, 0};
        references(base);
        if (T::DEFERS && owed) {
            try_step<true, true>(base, i == n - 1, false, sum);
            i++;
        }
        if constexpr (T::CLIPS)
            for (;;) {
                if (exceeds(sum)) {
                    soften(i - 1, sum);
                    references(base);
                }
                if (i >= n)
                    break;
                loop_steps(i, base, sum);
            }
        else
            for (bool stop = i >= n || exceeds(sum);; stop = i >= n) {
                if (!stop)
                    loop_steps(i, base, sum);
                if (!exceeds(sum))
                    break;
                soften(i - 1, sum);
                references(base);
            }
        add_sums(sum);
        leave_pending();
    }

    /* A stage that looks for the largest score before the exponentials. For stages with scores that
     * do not count (MASKED), and for kernels with too few registers for step(). */
    template <bool MASKED, bool PENDING> DEVICE void step_checked(int i)
    {
        float s[BN / 2], sum[2];
        ring<T::STAGES> before = pending();
        kv = ahead;
        multiply<PENDING, false>(s, before, [] {});
        if (MASKED)
            mask_scores(s, kv.at, tile);
        arrive(&sm.k_empty[kv.at]);
        warp_arrive_if(i == n - 1, smem_addr(&sm.q_empty[q.at]));
        float limit[2] = {m[0] + a.grow, m[1] + a.grow}, c[2];
        bool grows = __any_sync(~0u, may_exceed(s, limit));
        if (grows) /* a branch here also keeps ptxas from waiting before the maximum is known */
            raise(s, limit, c);
        end_values<PENDING>(before);
        prepare();
        float base[2];
        log2_base<MASKED>(m, a.scale_log2, base);
        exponentials<0, BN / 2>(s, base, a.scale_log2, sum);
        l[0] += sum[0];
        l[1] += sum[1];
        pack(s, p);
        if (grows)
            rescale(c);
        leave_pending();
    }

    /* P V of the current stage alone; returns its values. */
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

    /* Return the values of a skipped stage. Waits until they have landed, because otherwise the
     * barriers would count wrong. */
    DEVICE void settle()
    {
        if (owing) {
            mbar_wait(smem_addr(&sm.v_full[skipped.at]), skipped.parity);
            arrive(&sm.v_empty[skipped.at]);
        }
        owing = false;
    }

    /* A stage that this warpgroup does not want (BLOCKS_PAIR). Its keys are returned at once. Its
     * values may still be in flight and are returned at the end of the next stage: waiting for them
     * here would make one warpgroup wait for buffers that the other returns. A pending P V is
     * issued with the next Q K, unless a second stage is skipped, whose values need the buffer. */
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
        if (units == T::UNITS && !masked && !unseen)
            have_p ? step<true>(i) : step<false>(i);
        else
            have_p ? step_checked<true, true>(i) : step_checked<true, false>(i);
        unseen = false;
    }

    /* The stages from i on that have bits, until a sum is too large or one has none. */
    DEVICE void loop_masked(int &i, float (&base)[2], float (&sum)[2])
    {
        uint2 kept = load_bits(block);
        bool stop;
#pragma unroll 1
        do {
            add_sums(sum);
            i++;
            stop = try_step<true, false, true>(base, i == n, i == n, sum, kept);
            kept = load_bits(block);
        } while (!stop);
    }

    /* The stages of an item whose blocks may have bits; `to`: the first that cannot be clipped. */
    DEVICE void steps_bits(int to)
    {
#pragma unroll 1
        for (int i = 1; i < n;) {
            bool has_bits = uniform(block) >= 0;
            if (!T::GATHER && !has_bits && i < to) {
                step_checked<true, true>(i++);
                lacking = rows_lack();
                look_up_bits();
                continue;
            }
            float base[2], sum[2] = {0, 0};
            if (has_bits) {
                log2_base<true>(m, a.scale_log2, base);
                loop_masked(i, base, sum);
            } else {
                references(base);
                loop_steps(i, base, sum);
            }
            if (exceeds(sum))
                soften(i - 1, sum);
            add_sums(sum);
            leave_pending();
        }
    }

    /* First stage of an item, issued together with the last P V of the item before (PENDING). Then
     * the item before is finished (PREVIOUS). `before` is the stage of the pending values. */
    template <bool PREVIOUS, bool PENDING>
    DEVICE void first_step(int place, const ring<T::STAGES> &before)
    {
        int4 next;
        float s[BN / 2], m_new[2], l_new[2], rest[2], base[2];
        if (T::KIND == BLOCKS_PAIR)
            unseen = wanted_ahead() == 0;
        int its_block = -1;
        uint2 bits;
        multiply<PENDING, false>(s, before, [&] {
            next = item();
            if (BITS) {
                unit = next.z - 1;
                its_block = uniform(bits_of(unit));
                bits = load_bits(its_block);
                look_up_bits();
            }
            if (PREVIOUS) {
                rows::close_rows();
                rows::await_output_buffer();
            }
        });
        /* three warpgroups have no register left for the condition */
        bool clipped =
            T::CLIPS && (T::WG == 3 || T::KIND == BLOCKS_PAIR || a.causal || a.nk % T::UNIT != 0 ||
                         (T::UNITS > 1 && (next.z - next.y) % T::UNITS != 0));
        if (its_block >= 0)
            mask_bits<0, BN / 2>(s, bits);
        else if (!T::GATHER && clipped)
            mask_scores(s, kv.at, place);
        /* From here on without a branch: outputs of the item before go to their buffer in the gaps
         * between exponentials. */
        row_tops(s, m_new);
        log2_base<true>(m_new, a.scale_log2, base);
        exponentials<0, T::EARLY>(s, base, a.scale_log2, l_new);
        return_keys_after(l_new);
        warp_arrive_if(next.z - next.y <= T::UNITS, smem_addr(&sm.q_empty[q.at]));
        end_values<PENDING>(before);
        prepare();
        if (PREVIOUS)
            rows::template put_outputs<0, T::OUT_EARLY>();
        exponentials<T::EARLY, BN / 2>(s, base, a.scale_log2, rest);
        l_new[0] += rest[0];
        l_new[1] += rest[1];
        pack(s, p);
        int was = tile, was_slot = slot;
        start_item(next);
        owed = T::DEFERS && PREVIOUS && was_slot < 0 && n > 1 && (masked < 2 || !T::CLIPS);
        owed_tile = was;
        if (!owed) {
            if (PREVIOUS && T::DEFERS)
                rows::template put_outputs<T::OUT_EARLY, T::DV / 16>();
            if (PREVIOUS)
                rows::send_outputs(was, was_slot);
            rows::clear_outputs();
        }
        m[0] = m_new[0], m[1] = m_new[1];
        l[0] = l_new[0], l[1] = l_new[1];
        if (BITS)
            lacking = rows_lack();
        leave_pending();
    }

    DEVICE void run_stages()
    {
        int i = 1, to = T::CLIPS ? min(n, masked) : 1;
        if constexpr (T::KIND == BLOCKS_PAIR) {
#pragma unroll 1
            for (; i < n; i++)
                step_pair(i < to, i);
        } else if constexpr (BITS) {
            steps_bits(to);
        } else {
#pragma unroll 1
            for (; T::CLIPS && i < to; i++)
                step_checked<true, true>(i);
            if constexpr (!T::CHECKED)
                steps(i);
#pragma unroll 1
            for (; T::CHECKED && i < n; i++)
                step_checked<false, true>(i);
        }
    }

    DEVICE void run()
    {
        int place;
        ring<T::STAGES> before;
        if (w == T::WG - 1) /* the last warpgroup hands the first turn to the first */
            pass_turn();
        if (await_item(place)) {
            ahead = kv;
            k_at = k_desc(0);
            k_here = wanted = 0;
            first_step<false, false>(place, before);
            for (;;) {
                run_stages();
                before = pending();
                kv = ahead;
                q.next();
                if (!await_item(place))
                    break;
                if (T::KIND == BLOCKS_PAIR && !have_p)
                    first_step<true, false>(place, before);
                else
                    first_step<true, true>(place, before);
            }
            kv = before;
            if (T::KIND != BLOCKS_PAIR || have_p)
                flush();
            rows::finish();
        }
        if (T::KIND == BLOCKS_PAIR)
            settle();
        tma_store_wait_read();
    }
};
