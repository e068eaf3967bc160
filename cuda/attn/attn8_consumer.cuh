/*
 * attn8_consumer.cuh - a consumer warpgroup of the attention with INT8 scores and P V in e4m3 or
 * float16 (attn8.cu): products and softmax of its 64 rows of a tile, stage after stage.
 */
#pragma once

#include "cuda/attn/attn8_shape.cuh"
#include "cuda/attn/attn_outputs.cuh"
#include "cuda/attn/attn_softmax.cuh"
#include "cuda/wgmma8.cuh"

template <class T> struct consumer8 : tile_rows<T> {
    static constexpr int BN = T::BN, D = T::D, SHIFT_BITS = 0x4B400000;
    /* Four warpgroups have no registers for the references as they were rounded. */
    static constexpr bool KEEPS = !T::FILTER && T::WG < 4;
    static constexpr float SHIFT = 12582912, /* of the bits SHIFT_BITS */
        COARSE = 0.015625; /* log2 units of a score's one: from here on it is converted */

    /* What a score of 0 is. Where half of the keys are multiplied at a time, products are added to
     * the bits of SHIFT. */
    static constexpr int ORIGIN = T::BY_CHANNEL || T::FILTER ? 0 : SHIFT_BITS;

    using rows = tile_rows<T>;
    using rows::a, rows::inv, rows::l, rows::m, rows::o, rows::slot, rows::sm, rows::tile, rows::w;
    using rows::first_row, rows::lane, rows::warp;

    ring<T::QBUFS> q;
    ring<T::STAGES> kv;
    float q_scale; /* of the thread's two rows */
    float before;  /* scale of the stage before, 0 if its scores were floats (rounded) */
    float kept[2]; /* references of the stage before, as they were rounded (KEEPS) */

    /* The first of the thread's two rows, in its head. Computed at each use. */
    DEVICE int row() const
    {
        int t;
        asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
        return (T::FILTER ? rows::first() : first_row(tile)) + (t >> 5 & 3) * 16 + (t >> 2 & 7);
    }

    /* A tile with rows of 128 bytes, or of 64 that are swizzled as such. */
    template <int ROW> DEVICE uint64_t operand(const uint8_t *x) const
    {
        uint32_t at = smem_addr(x);
        asm volatile("" : "+r"(at)); /* ptxas would keep, and spill, descriptors of all stages */
        return ROW == 128 ? descriptor(desc_low(at, 16)) : descriptor64(desc_low(at, 16));
    }

    DEVICE void arrive(uint64_t *bar)
    {
        warp_arrive(smem_addr(bar));
    }

    /* Begin the scores of the stage, whose keys are there. Teams wait for them, and for their turn,
     * here. */
    DEVICE void issue_scores(int (&s)[BN / 2])
    {
        uint64_t qd = operand<D>(sm.q[q.at] + w * 64 * D), kd = operand<D>(sm.k[kv.at]);
        if (T::TEAMS > 1) {
            mbar_wait(smem_addr(&sm.k_full[kv.at]), kv.parity);
            rows::take_turn();
        }
        hold(s);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < D / 32; i++)
            wgmma_s8(s, qd + 2 * i, kd + 2 * i, i > 0);
        wgmma_commit();
    }

    /* What the scores of SCALED keys are multiplied by, in log2 units: all of a thread have one
     * scale. */
    DEVICE float scale_of(int part) const
    {
        int4 four = warp_load((const int4 *)&sm.keys[kv.at][T::SCALES + 4 * part]);
        int even = lane() & 2 ? four.z : four.x, odd = lane() & 2 ? four.w : four.y;
        return q_scale * __int_as_float(lane() & 1 ? odd : even);
    }

    /* The scores are there; returns the keys. */
    DEVICE void await_scores(int (&s)[BN / 2])
    {
        wgmma_wait<0>();
        hold(s);
        arrive(&sm.k_empty[kv.at]);
    }

    /* P V of the stage, in sums of its own; returns its values. */
    DEVICE void multiply_values(const uint32_t (&p)[BN / 8], float (&u)[D / 2])
    {
        mbar_wait(smem_addr(&sm.v_full[kv.at]), kv.parity);
        uint64_t vd = operand<BN>(sm.v[kv.at]);
        hold(u);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < BN / 32; i++)
            wgmma_e4m3(u, p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3], vd + 2 * i, i > 0);
        wgmma_commit();
        wgmma_wait<0>();
        hold(u);
        arrive(&sm.v_empty[kv.at]);
    }

    /* Scores [FROM, TO) become floats in log2 units, -inf where a row does not see the key; key0:
     * the first of theirs. */
    template <int FROM, int TO, int N>
    DEVICE void mask_scores(int (&s)[N], float scale, int key0) const
    {
        int end[2];
        if constexpr (T::FILTER) { /* takes a register less, and 1 % of dense attention's time */
            int last = a.causal ? row() + a.offset + 1 : a.nk, first = key0 + 2 * (lane() & 3);
            end[0] = min(a.nk, last) - first;
            end[1] = min(a.nk, last + 8) - first;
        } else {
#pragma unroll
            for (int r = 0; r < 2; r++)
                end[r] = (a.causal ? min(a.nk, row() + 8 * r + a.offset + 1) : a.nk) - key0 -
                         2 * (lane() & 3);
        }
#pragma unroll
        for (int i = FROM; i < TO; i++) {
            bool seen = 8 * ((i - FROM) / 4) + i % 2 < end[i / 2 % 2];
            s[i] = __float_as_int(seen ? (float)(s[i] - ORIGIN) * scale : -INFINITY);
        }
    }

    /* Largest of the thread's scores [FROM, TO), in log2 units. Integers are compared before they
     * are converted: an instruction compares three. */
    template <bool FLOATS, int FROM, int TO, int N>
    static DEVICE void tops(const int (&s)[N], float scale, float (&top)[2])
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (FLOATS) {
                top[r] = -INFINITY;
#pragma unroll
                for (int i = FROM + 2 * r; i < TO; i += 4)
                    top[r] = fmaxf(top[r], fmaxf(__int_as_float(s[i]), __int_as_float(s[i + 1])));
                continue;
            }
            const int at = FROM + 2 * r;
            int x = max(s[at], s[at + 1]), y = max(s[at + 4], s[at + 5]);
#pragma unroll
            for (int i = at + 8; i < TO; i += 8) {
                x = __vimax3_s32(x, s[i], s[i + 1]);
                y = __vimax3_s32(y, s[i + 4], s[i + 5]);
            }
            top[r] = (float)(max(x, y) - ORIGIN) * scale;
        }
    }

    /* What is subtracted from integer scores instead of x: base holds SHIFT scale, which rounds by
     * at most 0.75 scale. Threads of a row differ, as their scales do. */
    static DEVICE float rounded(float x, float scale)
    {
        return fmaf(-SHIFT, scale, fmaf(SHIFT, scale, x));
    }

    /* The reference of row r as the stage before subtracted it. */
    DEVICE float subtracted(int r) const
    {
        return KEEPS ? kept[r] : rounded(m[r], before);
    }

    /* Follow the largest scores of the rows, which lie at most a.scales.top above their references
     * m. c: factors of what was summed before; base: what exponentials subtracts. Most stages raise
     * no row of a warp, and have no shuffles.
     *
     * Sums and outputs are relative to the rounded references of the last stage, so that no error
     * remains in the sums; probabilities next to 448 may saturate. The references themselves are
     * never rounded: what they would gather from stage to stage would differ in a row's threads. */
    template <bool FLOATS>
    DEVICE void raise(float (&top)[2], float scale, float (&c)[2], float (&base)[2])
    {
        float of[2] = {subtracted(0), subtracted(1)};
        top[0] -= a.scales.top;
        top[1] -= a.scales.top;
        if (__any_sync(~0u, top[0] > m[0] || top[1] > m[1])) {
            tops_of_lanes(top);
            m[0] = fmaxf(m[0], top[0]);
            m[1] = fmaxf(m[1], top[1]);
        }
        before = FLOATS ? 0 : scale;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            base[r] = !FLOATS ? fmaf(SHIFT, scale, m[r]) : m[r] == -INFINITY ? 0 : m[r];
            kept[r] = FLOATS ? m[r] : fmaf(-SHIFT, scale, base[r]);
            c[r] = exp2_fast(of[r] - (FLOATS ? base[r] : kept[r]));
        }
    }

    /* Scores [FROM, TO) become probabilities, as the bits of floats; their sums. A score is at most
     * 127 127 128 < 2^22, so that its sum with the bits of SHIFT = 1.5 2^23 is the float SHIFT +
     * score exactly: an addition in place of a conversion, of which a multiprocessor does an eighth
     * as many. shift: what of SHIFT base does not hold. */
    template <bool FLOATS, int FROM, int TO, int N>
    static DEVICE void exponentials(int (&s)[N], const float (&base)[2], float scale, float shift,
                                    float (&sum)[2])
    {
        sum[0] = sum[1] = 0;
#pragma unroll
        for (int i = FROM; i < TO; i++) {
            const int r = i / 2 % 2;
            float x =
                FLOATS ? __int_as_float(s[i]) - base[r]
                       : fmaf(__int_as_float(s[i] + SHIFT_BITS - ORIGIN) - shift, scale, -base[r]);
            float p = exp2_fast(x);
            s[i] = __float_as_int(p);
            sum[r] += p;
        }
    }

    /* Probabilities [FROM, TO) as the A operand over keys in the order of attn8_place. */
    template <int FROM, int TO>
    static DEVICE void pack(const int (&s)[BN / 2], uint32_t (&p)[BN / 8])
    {
#pragma unroll
        for (int i = FROM / 4; i < TO / 4; i++) {
            const int at = 8 * (i / 2) + 2 * (i % 2);
            p[i] = pack_e4m3(__int_as_float(s[at]), __int_as_float(s[at + 1]),
                             __int_as_float(s[at + 4]), __int_as_float(s[at + 5]));
        }
    }

    /* Packed probabilities of the stage, their sums in l. FLOATS: scores are floats in log2 units
     * already. */
    template <bool FLOATS>
    DEVICE void soften(int (&s)[BN / 2], float (&top)[2], float scale, float (&c)[2],
                       uint32_t (&p)[BN / 8])
    {
        float base[2], sum[2];
        raise<FLOATS>(top, scale, c, base);
        exponentials<FLOATS, 0, BN / 2>(s, base, scale, 0, sum);
        l[0] = fmaf(l[0], c[0], sum[0]);
        l[1] = fmaf(l[1], c[1], sum[1]);
        pack<0, BN / 2>(s, p);
    }

    /* MASKED: some keys may not count. `masked` says the same of a stage that shares its code.
     * A warpgroup has its turn until its scores are there, or until their maximum is where three
     * share the registers. */
    template <bool MASKED> DEVICE void step(int key0, bool masked = false)
    {
        if constexpr (!T::BY_CHANNEL)
            return step_f16<MASKED>(key0);
        int s[BN / 2];
        uint32_t p[BN / 8];
        float top[2], c[2];
        mbar_wait(smem_addr(&sm.k_full[kv.at]), kv.parity);
        rows::take_turn();
        issue_scores(s);
        float scale = scale_of(0);
        await_scores(s);
        if (T::WG == 4)
            rows::pass_turn();
        if (MASKED || __any_sync(~0u, masked || scale > COARSE)) {
            mask_scores<0, BN / 2>(s, scale, key0);
            tops<true, 0, BN / 2>(s, scale, top);
            if (T::WG < 4)
                rows::pass_turn();
            soften<true>(s, top, scale, c, p);
        } else {
            tops<false, 0, BN / 2>(s, scale, top);
            if (T::WG < 4)
                rows::pass_turn();
            soften<false>(s, top, scale, c, p);
        }
        add_values(p, c);
        kv.next();
    }

    /* With P and values in float16, half of the keys at a time: registers do not hold the packed P
     * of all beside their scores. */
    template <bool MASKED> DEVICE void step_f16(int key0)
    {
        int s[BN / 4];
        uint32_t p[BN / 8];
        mbar_wait(smem_addr(&sm.k_full[kv.at]), kv.parity);
        clear_half_scores(s);
        rows::take_turn();
        issue_half_scores(s, 0);
        wgmma_wait<0>();
        hold(s);
        rows::pass_turn();
        soften_half<MASKED>(s, p, scale_of(0), key0);
        mbar_wait(smem_addr(&sm.v_full[kv.at]), kv.parity);
        add_half_values(p, 0);
        clear_half_scores(s);
        issue_half_scores(s, 1);
        float scale = scale_of(1);
        wgmma_wait<0>();
        hold(s);
        hold(o);
        arrive(&sm.k_empty[kv.at]);
        soften_half<MASKED>(s, p, scale, key0 + BN / 2);
        add_half_values(p, 1);
        wgmma_wait<0>();
        hold(o);
        arrive(&sm.v_empty[kv.at]);
        kv.next();
    }

    static DEVICE void clear_half_scores(int (&s)[BN / 4])
    {
#pragma unroll
        for (int i = 0; i < BN / 4; i++)
            s[i] = ORIGIN;
        hold(s);
    }

    DEVICE void issue_half_scores(int (&s)[BN / 4], int half)
    {
        uint64_t qd = operand<D>(sm.q[q.at] + w * 64 * D);
        uint64_t kd = operand<D>(sm.k[kv.at] + half * (BN / 2 * D));
        hold(s);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < D / 32; i++)
            wgmma_s8(s, qd + 2 * i, kd + 2 * i, true);
        wgmma_commit();
    }

    /* Scores of the keys from key0 on become the operand of P V; l and o follow the maxima. */
    template <bool MASKED>
    DEVICE void soften_half(int (&s)[BN / 4], uint32_t (&p)[BN / 8], float scale, int key0)
    {
        float top[2], c[2], base[2], sum[2];
        if (MASKED)
            mask_scores<0, BN / 4>(s, scale, key0);
        tops<MASKED, 0, BN / 4>(s, scale, top);
        raise<true>(top, 1, c, base);
        exponentials<MASKED, 0, BN / 4>(s, base, scale, SHIFT, sum);
        l[0] = fmaf(l[0], c[0], sum[0]);
        l[1] = fmaf(l[1], c[1], sum[1]);
#pragma unroll
        for (int i = 0; i < BN / 8; i++)
            p[i] = pack_f16(__int_as_float(s[2 * i]), __int_as_float(s[2 * i + 1]));
        if (__any_sync(~0u, c[0] != 1 || c[1] != 1))
            rows::rescale(c);
    }

    /* o += P V of half of the stage, begun. */
    DEVICE void add_half_values(const uint32_t (&p)[BN / 8], int half)
    {
        uint32_t at = smem_addr(sm.v[kv.at]) + half * (BN / 2 * 128);
        asm volatile("" : "+r"(at));
        uint64_t vd = descriptor(desc_low(at, BN * 128));
        hold(o);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < BN / 32; i++)
            wgmma_f16(o, p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3], vd + i * 2048 / 16, 1);
        wgmma_commit();
    }

    /* o = o c + P V. */
    DEVICE void add_values(const uint32_t (&p)[BN / 8], const float (&c)[2])
    {
        float u[D / 2];
        multiply_values(p, u);
#pragma unroll
        for (int i = 0; i < D / 2; i++)
            o[i] = fmaf(o[i], c[i / 2 % 2], u[i]);
    }

    /* Buffers that are not used are returned when they are full, because otherwise the barriers
     * would count wrong. */
    DEVICE void drop_values()
    {
        mbar_wait(smem_addr(&sm.v_full[kv.at]), kv.parity);
        arrive(&sm.v_empty[kv.at]);
    }

    /* A stage of which no row of the warpgroup has a key. */
    DEVICE void pass()
    {
        rows::take_turn();
        rows::pass_turn();
        mbar_wait(smem_addr(&sm.k_full[kv.at]), kv.parity);
        arrive(&sm.k_empty[kv.at]);
        drop_values();
        kv.next();
    }

    DEVICE void start_item(const int4 &item)
    {
        tile = item.x;
        slot = -1;
        rows::clear_outputs();
        m[0] = m[1] = kept[0] = kept[1] = -INFINITY;
        l[0] = l[1] = before = 0;
        look_up_query_scale();
    }

    DEVICE void look_up_query_scale()
    {
        int r = row();
        q_scale = r < a.nq ? __ldg(a.scales.q + ((int64_t)head_of(tile) * a.nq + r)) : 0;
    }

    /* Scales and means of the channels, applied to outputs with their factors f and the normaliser,
     * which those of a piece of a row do not have yet. */
    DEVICE void scale_channels(const float (&f)[2])
    {
        const bool piece = !T::SKIPS && slot >= 0;
        int64_t at = (int64_t)(head_of(tile) / a.group) * D + 2 * (lane() & 3);
        bool means = a.scales.v_mean;
#pragma unroll
        for (int i = 0; i < D / 2; i += 4) {
            float2 by = __ldg((const float2 *)(a.scales.v + at + 2 * i));
            float2 mean = make_float2(0, 0);
            if (means)
                mean = __ldg((const float2 *)(a.scales.v_mean + at + 2 * i));
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float one = piece ? l[r] : inv[r] > 0 ? 1 : 0, to = piece ? f[r] : inv[r] * f[r];
                o[i + 2 * r] = fmaf(o[i + 2 * r] * to, by.x, one * mean.x);
                o[i + 2 * r + 1] = fmaf(o[i + 2 * r + 1] * to, by.y, one * mean.y);
            }
        }
        inv[0] = inv[1] = 1;
    }

    DEVICE void finish()
    {
        int first = row();
        float f[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float bias = 0;
            f[r] = m[r] == -INFINITY ? 1 : exp2_fast(subtracted(r) - m[r]);
            l[r] *= f[r];
            if (a.scales.bias && first + 8 * r < a.nq)
                bias = __ldg(a.scales.bias + ((int64_t)head_of(tile) * a.nq + first + 8 * r));
            m[r] += bias * 1.44269504088896341f;
        }
        rows::close_rows();
        scale_channels(f);
        if (!T::SKIPS && slot >= 0) {
            rows::store_piece(slot);
        } else {
            rows::await_output_buffer();
            rows::template put_outputs<0, D / 16>();
            rows::send_rows(tile);
        }
        if (T::LENDS && T::STAGES == 1)
            return_lent();
    }

    /* LENDS: the buffer of the last item's outputs, if they have one, gets values again. */
    DEVICE void return_lent()
    {
        if (rows::lent < 0)
            return;
        tma_store_wait_read();
        __syncwarp();
        arrive(&sm.v_empty[rows::lent]);
        rows::lent = -1;
    }

    /* Stages by ascending keys, as the method goes; the last ones are those with masks. Where four
     * warpgroups share the registers, they hold one copy of a stage's code for both kinds. */
    DEVICE void run_item(const int4 &item)
    {
        int masked = a.causal || a.nk % BN ? min(a.masked_units, item.z - item.y) : 0;
        int i = item.y, whole = item.z - masked;
        start_item(item);
#pragma unroll 1
        for (; T::WG < 4 && i < whole; i++)
            step<false>(i * BN);
        int last = a.causal ? min(first_row(tile) + 63, a.nq - 1) + a.offset : a.nk;
        int end = min(item.z, (last + BN) / BN);
#pragma unroll 1
        for (; i < end; i++)
            step<(T::WG < 4)>(i * BN, i >= whole);
#pragma unroll 1
        for (; i < item.z; i++)
            pass();
        slot = warp_load(&sm.work[q.at]).w;
        arrive(&sm.q_empty[q.at]);
        finish();
    }

    /* Wait for the next item; false when there is none. */
    DEVICE bool await_item(int4 &item)
    {
        mbar_wait(smem_addr(&sm.q_full[q.at]), q.parity);
        item = warp_load(&sm.work[q.at]);
        return item.x >= 0;
    }

    DEVICE void run()
    {
        int4 item;
        if (w == T::WG - 1) /* the last warpgroup hands the first turn to the first */
            rows::pass_turn();
        for (; await_item(item); q.next())
            run_item(item);
        tma_store_wait_read();
    }
};
