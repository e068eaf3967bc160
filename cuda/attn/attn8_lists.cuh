/*
 * attn8_lists.cuh - attention over lists of 64 x 32 blocks with INT8 scores and float16 values, for
 * Hopper: teams of one warpgroup as in attn_filter.cuh, whose stages are four blocks (units),
 * without a filter. The CPU side is sim/blocks/tileattn.h.
 *
 * P V of the first two units runs beside the exponentials of the others. The probabilities of all
 * four are relative to one maximum, where the method takes that of each unit: other roundings, of
 * the same size. P V is summed in fp32, its sums in float16 being no faster.
 */
#pragma once

#include "cuda/attn/attn_filter.cuh"

template <class T> struct list_consumer : filter_consumer<T, 64> {
    static_assert(T::LENDS);
    static constexpr int BN = T::BN, UNITS = T::UNITS;
    static constexpr int HALF = UNITS / 2, FIRST = (1 << HALF) - 1; /* units, and which */

    using base = filter_consumer<T, 64>;
    using arith = filter_arith<T>;
    using by = filter_votes<T, 64>;
    using arith::kv, arith::l, arith::m, arith::q, arith::SCORES, arith::sm;

    /* Probabilities of the units [UNIT, END), their sums in l. */
    template <bool FLOATS, int UNIT, int END> DEVICE void take(int (&s)[BN / 2])
    {
        constexpr int FROM = UNIT * SCORES, TO = FROM + SCORES;
        float reference[2], sum[2];
        arith::references(reference);
        arith::template soften<FLOATS, FROM, TO>(s, reference, sum);
        l[0] += sum[0];
        l[1] += sum[1];
        arith::template pack_all<FROM, TO>(s);
        if constexpr (UNIT + 1 < END)
            take<FLOATS, UNIT + 1, END>(s);
    }

    template <bool FLOATS> DEVICE void multiply(int (&s)[BN / 2])
    {
        typename arith::sums u;
        take<FLOATS, 0, HALF>(s);
        base::await_values();
        arith::template issue_values<FIRST, 0>(kv.at, u);
        take<FLOATS, HALF, UNITS>(s);
        arith::template add_values<FIRST << HALF>(kv.at);
        arith::template end_values<0>(u);
    }

    DEVICE void stage(bool is_last)
    {
        int s[BN / 2];
        typename base::unit_tops tops;
        float c[2];
        arith::issue_scores(s);
        if constexpr (T::STAGES > 1)
            arith::return_lent();
        arith::look_up_scales();
        bool unseen = by::has_unseen(base::key_of(UNITS - 1) + T::UNIT, base::first());
        wgmma_wait<0>();
        hold(s);
        arith::mask(s, unseen);
        arith::arrive(&sm.k_empty[kv.at]);
        if (is_last)
            arith::arrive(&sm.q_empty[q.at]);
        base::template find_tops<false>(s, tops);
        float(&top)[2] = tops[0];
#pragma unroll
        for (int u = UNITS - 1; u > 0; u--) {
            tops[u - 1][0] = fmaxf(tops[u - 1][0], tops[u][0]);
            tops[u - 1][1] = fmaxf(tops[u - 1][1], tops[u][1]);
        }
        if (uniform(top[0] > m[0] || top[1] > m[1]))
            base::follow(top, c);
        if (arith::floats())
            multiply<true>(s);
        else
            multiply<false>(s);
        if (!is_last)
            arith::arrive(&sm.v_empty[kv.at]);
        kv.next();
    }

    DEVICE void run()
    {
        int4 item;
        arith::lent = -1;
        for (; arith::next_item(item); q.next()) {
            arith::start_item(item);
            arith::slot = item.w;
#pragma unroll 1
            for (int n = (item.z - item.y + UNITS - 1) / UNITS; n > 0; n--)
                stage(n == 1);
            arith::lent = kv.before().at;
            arith::finish();
        }
        tma_store_wait_read();
    }
};
