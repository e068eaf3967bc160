/*
 * attn_filter.cuh - attention over block lists with SpargeAttn's second filter (arXiv 2502.18137,
 * section 3.4), for Hopper, in exact arithmetic. The CPU side is sim/blocks/tileattn.h.
 *
 *   for every tile of a row block's list, ascending, with scores s in log2 units:
 *     gap = max over the rows of the scope of (largest s of the tile - m)
 *     m, O, l follow the maximum
 *     P V and sum P only if gap + pv > 0, or the tile is one of the list's last ones
 *
 * Differences to the other kernels of attn_sm90.cuh:
 * - The maximum of a row is the true one at every tile, as the decision depends on it. The others
 *   keep a reference and raise it when scores exceed it by 2^8, or sums 2^60.
 * - Lists are walked from the beginning, as the method does. The others start with the diagonal.
 * - A list is never cut into pieces.
 *
 * A stage is one tile of the method per warpgroup, 64 rows x 128 keys, where two lists of 64 rows
 * share the stages of their union. Or it is two tiles (units) of both warpgroups x 64 keys, each
 * with its own decision, the second after the maximum of the first. The scores of a stage are
 * formed while P V of the stage before runs. Values of a skipped tile are loaded but not
 * multiplied, as in the authors' kernels.
 *
 * Warps vote through shared memory. Only a warp with a tile in which no score is near its maximum
 * waits for the other votes: a barrier would make warpgroups run in step, and both would leave the
 * tensor cores idle at once. Scopes of 16 and 32 rows share a warpgroup's product: a scope that
 * skips puts zeros into P. The two warps of a scope of 32 rows meet at a barrier.
 */
#ifndef LACUNA_ATTN_FILTER_CUH
#define LACUNA_ATTN_FILTER_CUH

#include "cuda/attn/attn_consumer.cuh"
#include "cuda/attn/filter_votes.cuh"

template <class T, int SCOPE>
struct filter_consumer<T, SCOPE, false> : consumer<T>, filter_votes<T, SCOPE> {
    static constexpr int BN = T::BN, D = T::D, STAGES = T::STAGES, UNITS = T::UNITS;
    static constexpr int SCORES = T::UNIT / 2; /* of a thread and unit */

    int pending; /* bit u: P V of unit u of the stage before is to be computed */

    using base = consumer<T>;
    using base::a, base::kv, base::l, base::m, base::o, base::p, base::q;
    using base::sm, base::tile, base::w;
    using by = filter_votes<T, SCOPE>;
    using by::always, by::computed, by::f, by::near, by::vote, by::warps_any;

    /* ---- stages ----------------------------------------------------------------------------- */

    DEVICE void drop_values(const ring<STAGES> &of)
    {
        mbar_wait(smem_addr(&sm.v_full[of.at]), of.parity);
        base::arrive(&sm.v_empty[of.at]);
    }

    /* The maxima move to `to`: scales the sums; the factors of the outputs. */
    DEVICE bool follow(const float (&to)[2], float (&c)[2])
    {
        bool grows = false;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            c[r] = to[r] > m[r] ? exp2_fast((m[r] - to[r]) * a.scale_log2) : 1;
            grows = grows || to[r] > m[r];
            m[r] = to[r];
            l[r] *= c[r];
        }
        return __any_sync(~0u, grows);
    }

    /* Probabilities of a tile, where any scope of the warpgroup multiplies them or skipped tiles
     * count too. */
    template <int UNIT>
    DEVICE void take(float (&s)[BN / 2], const float (&reference)[2], bool mine, bool any)
    {
        constexpr int FROM = UNIT * SCORES, TO = FROM + SCORES;
        if (any || f.keep_sum) {
            float sum[2];
            exponentials<FROM, TO>(s, reference, a.scale_log2, sum);
#pragma unroll
            for (int r = 0; r < 2; r++)
                l[r] += mine || f.keep_sum ? sum[r] : 0;
        }
        if (any) {
            pack<FROM, TO>(s, p);
#pragma unroll
            for (int i = FROM / 2; i < TO / 2 && SCOPE < 64; i++)
                p[i] = mine ? p[i] : 0;
        }
        computed += mine;
    }

    /* P V of the units in PENDING: a branch around products under way would serialise them. */
    template <int PENDING> DEVICE void issue_pending(int of_stage)
    {
        hold(o);
        wgmma_fence();
        uint64_t vd = descriptor(uniform(base::v_desc(of_stage)));
#pragma unroll
        for (int u = 0; u < UNITS; u++)
            if (PENDING >> u & 1)
#pragma unroll
                for (int kk = u * SCORES / 8; kk < (u + 1) * SCORES / 8; kk++)
                    wgmma_rs<D>(o, p[4 * kk], p[4 * kk + 1], p[4 * kk + 2], p[4 * kk + 3],
                                vd + kk * 2048 / 16, true);
        wgmma_commit();
    }

    /* Bits of the stage's units: those that it has, and those that are never skipped. */
    DEVICE void look_up(int &listed, int &exempt) const
    {
        listed = exempt = 0;
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            int entry = base::key_of(kv.at, UNITS + u);
            listed |= (entry >> (FILTER_WANTED + w) & 1) << u;
            exempt |= (always() || entry >> (FILTER_EXEMPT + w) & 1) << u;
        }
    }

    /* Which units the scope (`mine`) and the warpgroup (`any`) multiply, and where the maxima go.
     */
    DEVICE void decide(const float (&s)[BN / 2], int listed, int exempt, float (&to)[2], int &mine,
                       int &any)
    {
        float top[2];
        int own = 0;
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            if (u == 0)
                row_tops<0, SCORES>(s, top);
            else
                row_tops<BN / 2 - SCORES, BN / 2>(s, top);
            own |= (!always() && warps_any(w, near(top, to))) << u;
#pragma unroll
            for (int r = 0; r < 2; r++)
                to[r] = fmaxf(to[r], top[r]);
        }
        any = always() ? 0 : vote(w, own, listed & ~exempt);
        mine = ((SCOPE < 64 ? own : any) | exempt) & listed;
        any = (any | exempt) & listed;
    }

    /* One stage; P V of the units of the stage before it that are pending. */
    template <int PENDING>
    DEVICE void stage(bool is_first, bool is_last, const ring<STAGES> &before)
    {
        float s[BN / 2], to[2] = {m[0], m[1]}, c[2], reference[2];
        int listed, exempt, mine, any;
        base::k_at = base::k_desc(kv.at);
        base::issue_qk(s);
        if (PENDING) {
            mbar_wait(smem_addr(&sm.v_full[before.at]), before.parity);
            issue_pending<PENDING>(before.at);
        }
        look_up(listed, exempt);
        wgmma_wait<PENDING ? 1 : 0>();
        hold(s);
        /* Units ascend, and one that the stage lacks lies behind all. */
        if (by::has_unseen(base::key_of(kv.at, UNITS - 1) + T::UNIT))
            base::mask_scores(s, kv.at, tile);
        base::arrive(&sm.k_empty[kv.at]);
        if (is_last)
            base::arrive(&sm.q_empty[q.at]);
        decide(s, listed, exempt, to, mine, any);
        bool grows = follow(to, c);
        if (PENDING) {
            wgmma_wait<0>();
            hold(o);
            base::arrive(&sm.v_empty[before.at]);
        } else if (!is_first) {
            drop_values(before);
        }
        if (grows)
            base::rescale(c);
        log2_base<true>(m, a.scale_log2, reference);
        take<0>(s, reference, mine & 1, any & 1);
        if constexpr (UNITS > 1)
            take<1>(s, reference, mine >> 1, any >> 1);
        pending = any;
    }

    /* A stage that only the other warpgroup wants. */
    DEVICE void pass(bool is_first, bool is_last, const ring<STAGES> &before)
    {
        finish_values(is_first, before);
        base::arrive(&sm.k_empty[kv.at]);
        if (is_last)
            base::arrive(&sm.q_empty[q.at]);
    }

    /* P V of a stage alone. */
    template <int PENDING> DEVICE void finish_pending(const ring<STAGES> &of)
    {
        mbar_wait(smem_addr(&sm.v_full[of.at]), of.parity);
        issue_pending<PENDING>(of.at);
        wgmma_wait<0>();
        hold(o);
        base::arrive(&sm.v_empty[of.at]);
    }

    /* The same, or the values back unused. */
    DEVICE void finish_values(bool none, const ring<STAGES> &of)
    {
        if (UNITS > 1 && pending == 3)
            finish_pending<3>(of);
        else if (UNITS > 1 && pending == 2)
            finish_pending<2>(of);
        else if (pending)
            finish_pending<1>(of);
        else if (!none)
            drop_values(of);
        pending = 0;
    }

    /* Does this warpgroup want a tile of the stage? Rows of 128 share their lists. */
    DEVICE bool is_wanted() const
    {
        return UNITS > 1 || (uint32_t)base::key_of(kv.at, 1) >> (FILTER_WANTED + w) & 1;
    }

    /* ---- items ------------------------------------------------------------------------------ */

    DEVICE void clear()
    {
        base::clear_outputs();
        m[0] = m[1] = -INFINITY;
        l[0] = l[1] = 0;
        pending = 0;
    }

    DEVICE void run_items()
    {
        int place;
        while (base::await_item(place)) {
            int4 next = base::item();
            ring<STAGES> before;
            int n = (next.z - next.y + UNITS - 1) / UNITS;
            tile = next.x;
            base::slot = -1;
            by::start(tile, base::first_row(tile));
            clear();
#pragma unroll 1
            for (int i = 0; i < n; i++) {
                mbar_wait(smem_addr(&sm.k_full[kv.at]), kv.parity);
                if (!is_wanted())
                    pass(i == 0, i == n - 1, before);
                else if (pending == 0)
                    stage<0>(i == 0, i == n - 1, before);
                else if (UNITS == 1 || pending == 1)
                    stage<1>(i == 0, i == n - 1, before);
                else if (pending == 2)
                    stage<2>(i == 0, i == n - 1, before);
                else
                    stage<3>(i == 0, i == n - 1, before);
                before = kv;
                kv.next();
            }
            finish_values(false, before);
            by::store_count(w, next.x);
            base::finish();
            q.next();
        }
        tma_store_wait_read();
    }
};

#endif
