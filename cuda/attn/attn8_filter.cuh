/*
 * attn8_filter.cuh - attention over block lists with SpargeAttn's second filter (attn_filter.cuh)
 * in the authors' arithmetic: INT8 scores, e4m3 P V (attn8_consumer.cuh).
 *
 * A stage is one tile of the method, 64 or 128 keys, and a warpgroup goes through it in turn:
 * scores, maxima, the scope's decision, probabilities, P V. A skipped tile ends with the decision.
 * None of its rows has a new maximum, so that sums and references stay as they are.
 */
#ifndef LACUNA_ATTN8_FILTER_CUH
#define LACUNA_ATTN8_FILTER_CUH

#include "cuda/attn/attn8_consumer.cuh"
#include "cuda/attn/filter_votes.cuh"

template <class T, int SCOPE>
struct filter_consumer<T, SCOPE, true> : consumer8<T>, filter_votes<T, SCOPE> {
    static constexpr int BN = T::BN;
    static_assert(T::UNITS == 1);

    using base = consumer8<T>;
    using base::kv, base::l, base::m, base::q, base::sm, base::w;
    using by = filter_votes<T, SCOPE>;

    /* The tile of a stage. */
    struct list_tile {
        int key0;
        bool exempt;
        float scale;
        bool floats;    /* its scores are floats in log2 units */
        bool mine, any; /* P V is computed for the scope; for some rows of the warpgroup */
        float top[2];   /* largest scores of the thread's rows */
    };

    DEVICE bool is_wanted() const
    {
        mbar_wait(smem_addr(&sm.k_full[kv.at]), kv.parity);
        return warp_load(&sm.keys[kv.at][1]) >> (FILTER_WANTED + w) & 1;
    }

    DEVICE void read_tile(list_tile &t) const
    {
        t.key0 = warp_load(&sm.keys[kv.at][0]);
        t.exempt = warp_load(&sm.keys[kv.at][1]) >> (FILTER_EXEMPT + w) & 1;
        t.scale = base::scale_of();
    }

    DEVICE void look(int (&s)[BN / 2], list_tile &t)
    {
        t.floats = by::has_unseen(t.key0 + BN) || __any_sync(~0u, t.scale > base::COARSE);
        if (t.floats) {
            base::mask_scores(s, t.scale, t.key0);
            base::template tops<true>(s, t.scale, t.top);
        } else
            base::template tops<false>(s, t.scale, t.top);
    }

    DEVICE void decide(list_tile &t)
    {
        bool always = by::always(), own = SCOPE >= 64 && always;
        if (!own)
            own = by::warps_any(w, by::near(t.top, m));
        t.any = always || t.exempt || by::vote(w, own, true);
        t.mine = (SCOPE < 64 ? own : t.any) || t.exempt;
        by::computed += t.mine || always;
    }

    /* Probabilities and sums of a tile where the scope computes them or skipped tiles count too. c:
     * factors of what was summed before. */
    template <bool FLOATS> DEVICE void take(int (&s)[BN / 2], list_tile &t, float (&c)[2])
    {
        if (t.mine || by::f.keep_sum)
            base::template soften<FLOATS>(s, t.top, t.scale, c);
#pragma unroll
        for (int i = 0; i < BN / 2 && SCOPE < 64; i++)
            s[i] = t.mine ? s[i] : 0;
    }

    /* The rest of a tile, of stage kv. */
    DEVICE void finish_tile(int (&s)[BN / 2], list_tile &t)
    {
        float c[2] = {1, 1};
        if (!t.any && !by::f.keep_sum) {
            base::drop_values();
            return;
        }
        if (t.floats)
            take<true>(s, t, c);
        else
            take<false>(s, t, c);
        if (t.any) {
            uint32_t p[BN / 8];
            base::pack(s, p);
            base::add_values(p, c);
        } else {
            base::rescale(c);
            base::drop_values();
        }
    }

    DEVICE void tile_of_stage()
    {
        int s[BN / 2];
        list_tile t;
        base::issue_scores(s);
        read_tile(t);
        base::await_scores(s);
        look(s, t);
        decide(t);
        finish_tile(s, t);
        kv.next();
    }

    DEVICE void run_item(const int4 &item)
    {
        base::start_item(item);
        by::start(item.x, base::first_row(item.x));
#pragma unroll 1
        for (int i = item.y; i < item.z; i++)
            if (is_wanted())
                tile_of_stage();
            else
                base::pass();
        base::arrive(&sm.q_empty[q.at]);
        by::store_count(w, item.x);
        base::finish();
    }

    DEVICE void run_items()
    {
        int4 item;
        while (base::await_item(item)) {
            run_item(item);
            q.next();
        }
        tma_store_wait_read();
    }
};

#endif
