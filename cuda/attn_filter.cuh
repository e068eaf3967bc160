/*
 * attn_filter.cuh - attention over block lists with SpargeAttn's second filter (arXiv 2502.18137,
 * section 3.4), for Hopper, in exact arithmetic. The CPU side is sim/tileattn.h.
 *
 *   for every tile of a row block's list, ascending, with scores s in log2 units:
 *     gap = max over the rows of the scope of (largest s of the tile - m);  m, O, l follow the
 * maximum P V and sum P only if gap + pv > 0, or the tile is one of the list's last ones
 *
 * What the other kernels of attn_sm90.cuh do differently, and why this one cannot: the maximum of a
 * row is the true one at every tile (they raise a reference when scores pass it by 2^8, or sums
 * 2^60), lists are walked from the beginning (they start with the diagonal), and a list is never
 * cut into pieces. A stage is one tile of the method: 64 rows of a warpgroup x 128 keys with lists
 * of 64 rows, two of which share the stages of their union; or both warpgroups x 64 keys. The
 * scores of a tile are formed while P V of the one before runs, if that is computed at all; values
 * of a skipped tile are loaded in vain, as in the authors' kernels, but not multiplied.
 *
 * Scopes of 64 and 128 rows vote through a barrier with a reduction; of smaller ones, which share
 * a warpgroup's product, those that skip put zeros into P.
 */
#ifndef LACUNA_ATTN_FILTER_CUH
#define LACUNA_ATTN_FILTER_CUH

#include "cuda/attn_consumer.cuh"
#include "cuda/attn_producer.cuh"
#include "cuda/plan.h"

/* Does x hold for any of `threads` threads that meet at this barrier? */
DEVICE bool named_any(int id, int threads, bool x)
{
    int any;
    asm volatile("{\n.reg .pred p, q;\nsetp.ne.b32 p, %3, 0;\n"
                 "bar.red.or.pred q, %1, %2, p;\nselp.b32 %0, 1, 0, q;\n}"
                 : "=r"(any)
                 : "r"(id), "r"(threads), "r"((int)x)
                 : "memory");
    return any;
}

/* SCOPE: rows that decide together, 16, 32, 64 or 128. */
template <class T, int SCOPE> struct filter_consumer : consumer<T> {
    static constexpr int BN = T::BN, D = T::D, STAGES = T::STAGES;

    const filter_args &f;
    int first;         /* first query row of the warpgroup */
    unsigned computed; /* tiles of the item whose P V this thread's scope computed */

    using base = consumer<T>;
    using base::a, base::have_p, base::kv, base::l, base::m, base::o, base::p, base::q;
    using base::sm, base::tile, base::w;

    /* ---- decisions -------------------------------------------------------------------------- */

    /* Does a row of the scope say yes? Called by all of the scope's threads. */
    DEVICE bool scope_any(bool mine) const
    {
        if (SCOPE == 128)
            return named_any(8, 256, mine);
        if (SCOPE == 64)
            return named_any(8 + w, 128, mine);
        if (SCOPE == 32)
            return named_any(8 + 2 * w + base::warp() / 2, 64, mine);
        return __any_sync(~0u, mine);
    }

    /* And of the warpgroup's scopes? */
    DEVICE bool group_any(bool scope) const
    {
        return SCOPE >= 64 ? scope : named_any(12 + w, 128, scope);
    }

    /* Is a row of this thread near enough to its maximum? Rows past the end have no say; a row that
     * has seen no key yet is near any score. */
    DEVICE bool near(const float (&top)[2]) const
    {
        int row = first + base::warp() * 16 + (base::lane() >> 2);
        bool yes = false;
#pragma unroll
        for (int r = 0; r < 2; r++)
            yes = yes || (top[r] - m[r] > -f.gap && row + 8 * r < a.nq);
        return yes;
    }

    /* ---- stages ----------------------------------------------------------------------------- */

    /* Keys up to here are seen by all rows of the warpgroup. */
    DEVICE int seen_by_all() const
    {
        return a.causal ? min(a.nk, first + a.offset + 1) : a.nk;
    }

    DEVICE void drop_values(const ring<STAGES> &of)
    {
        mbar_wait(smem_addr(&sm.v_full[of.at]), of.parity);
        base::arrive(&sm.v_empty[of.at]);
    }

    /* The maxima move on: scales the sums; the factors of the outputs. */
    DEVICE bool follow(const float (&top)[2], float (&c)[2])
    {
        bool grows = false;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float to = fmaxf(m[r], top[r]);
            c[r] = to > m[r] ? exp2_fast((m[r] - to) * a.scale_log2) : 1;
            grows = grows || to > m[r];
            m[r] = to;
            l[r] *= c[r];
        }
        return __any_sync(~0u, grows);
    }

    /* Probabilities of a tile, where any scope of the warpgroup multiplies them or skipped tiles
     * count too. */
    DEVICE void take(float (&s)[BN / 2], bool mine, bool any)
    {
        if (any || f.keep_sum) {
            float base[2], sum[2];
            log2_base<true>(m, a.scale_log2, base);
            exponentials<0, BN / 2>(s, base, a.scale_log2, sum);
#pragma unroll
            for (int r = 0; r < 2; r++)
                l[r] += mine || f.keep_sum ? sum[r] : 0;
        }
        if (any) {
            pack(s, p);
#pragma unroll
            for (int i = 0; i < BN / 4 && SCOPE < 64; i++)
                p[i] = mine ? p[i] : 0;
        }
        have_p = any;
        computed += mine;
    }

    /* One tile; P V of the stage before it, if that is pending. */
    template <bool PENDING>
    DEVICE void stage(int entry, bool is_first, bool is_last, const ring<STAGES> &before)
    {
        float s[BN / 2], top[2], c[2];
        base::k_at = base::k_desc(kv.at);
        base::issue_qk(s);
        if (PENDING) {
            mbar_wait(smem_addr(&sm.v_full[before.at]), before.parity);
            base::issue_pv(before.at);
        }
        wgmma_wait<PENDING ? 1 : 0>();
        hold(s);
        if ((entry & FILTER_BLOCK) * BN + BN > seen_by_all())
            base::mask_scores(s, kv.at, tile);
        base::arrive(&sm.k_empty[kv.at]);
        if (is_last)
            base::arrive(&sm.q_empty[q.at]);
        row_tops(s, top);
        bool mine = scope_any(near(top)) || f.always || (entry >> (FILTER_EXEMPT + w) & 1);
        bool any = group_any(mine), grows = follow(top, c);
        if (PENDING) {
            wgmma_wait<0>();
            hold(o);
            base::arrive(&sm.v_empty[before.at]);
        } else if (!is_first) {
            drop_values(before);
        }
        if (grows)
            base::rescale(c);
        take(s, mine, any);
    }

    /* A stage that only the other warpgroup wants. */
    DEVICE void pass(bool is_first, bool is_last, const ring<STAGES> &before)
    {
        finish_values(is_first, before);
        base::arrive(&sm.k_empty[kv.at]);
        if (is_last)
            base::arrive(&sm.q_empty[q.at]);
    }

    /* P V of a stage alone, or the values back unused. */
    DEVICE void finish_values(bool none, const ring<STAGES> &of)
    {
        if (have_p) {
            mbar_wait(smem_addr(&sm.v_full[of.at]), of.parity);
            base::issue_pv(of.at);
            wgmma_wait<0>();
            hold(o);
            base::arrive(&sm.v_empty[of.at]);
        } else if (!none) {
            drop_values(of);
        }
        have_p = false;
    }

    /* ---- items ------------------------------------------------------------------------------ */

    DEVICE void clear()
    {
        base::clear_outputs();
        m[0] = m[1] = -INFINITY;
        l[0] = l[1] = 0;
        have_p = false;
        computed = 0;
    }

    DEVICE void store_count(int of_tile)
    {
        const int warps = SCOPE < 64 ? SCOPE / 16 : 4;
        int scope = base::warp() / warps;
        int row = head_of(of_tile) * a.q_blocks + block_of(of_tile);
        if (base::lane() == 0 && base::warp() % warps == 0 && (SCOPE < 128 || w == 0))
            f.computed[(row * 2 + w) * 4 + scope] = first + scope * SCOPE < a.nq ? computed : 0;
    }

    DEVICE void run_items()
    {
        int place;
        while (base::await_item(place)) {
            int4 next = base::item();
            ring<STAGES> before;
            int n = next.z - next.y;
            tile = next.x;
            base::slot = -1;
            first = base::first_row(tile);
            clear();
#pragma unroll 1
            for (int i = 0; i < n; i++) {
                mbar_wait(smem_addr(&sm.k_full[kv.at]), kv.parity);
                int entry = base::key_of(kv.at, 1);
                if (!((uint32_t)entry >> (FILTER_WANTED + w) & 1))
                    pass(i == 0, i == n - 1, before);
                else if (have_p)
                    stage<true>(entry, i == 0, i == n - 1, before);
                else
                    stage<false>(entry, i == 0, i == n - 1, before);
                before = kv;
                kv.next();
            }
            finish_values(false, before);
            store_count(next.x);
            base::finish();
            q.next();
        }
        tma_store_wait_read();
    }
};

template <class T, int SCOPE>
__global__ void __launch_bounds__(T::THREADS, 1)
    attn_filter(const __grid_constant__ attn_maps maps, const __grid_constant__ filter_args f)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t raw[];
    attn_smem<T> &sm = *(attn_smem<T> *)raw;
    int group = uniform(threadIdx.x >> 7);

    attn_begin(sm, maps);
    if (group == 0) {
        regs_dec<T::REGS_PRODUCER>();
        if (threadIdx.x < 32) {
            producer<T> p = {sm, f.base, maps};
            p.run();
        }
    } else {
        regs_inc<T::REGS_CONSUMER>();
        filter_consumer<T, SCOPE> c = {{{sm, f.base, &maps.o, uniform(group - 1)}}, f};
        c.run_items();
    }
#endif
}

#endif
