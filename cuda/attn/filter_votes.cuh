/*
 * filter_votes.cuh - the decision of a scope's warps in the kernels that skip P V
 * (attn_filter.cuh), and their counts of computed tiles.
 */
#pragma once

#include "cuda/attn/attn_outputs.cuh"
#include "cuda/attn/filter_shape.cuh"

/* SCOPE: rows that decide together, 16, 32, 64 or 128. */
template <class T, int SCOPE> struct filter_votes {
    using smem = attn_smem<T>;
    using rows = tile_rows<T>;

    const filter_args &f;
    smem &votes;
    unsigned counts; /* lower 24 bits: tiles of the item whose P V this thread's scope computed;
                      * upper ones: number of the stage's vote. One register has both. */
    static constexpr unsigned COMPUTED = (1u << 24) - 1;

    DEVICE void start()
    {
        counts &= ~COMPUTED;
    }

    /* The distance of the item's head. */
    DEVICE float gap_of(int of_tile) const
    {
        float gap;
        asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(gap) : "l"(f.gap + head_of(of_tile)));
        return gap;
    }

    /* The bits of all warps of the scope or, of smaller ones, of the warpgroup; `own`, a warp's,
     * become those of the scope. Nobody waits for a bit of `open` that is in its own ones. */
    DEVICE int vote(int w, int &own, int open)
    {
        const int set = SCOPE == 128 ? 0 : w;
        const unsigned ballot = counts >> 24, slot = ballot % smem::SLOTS;
        uint32_t bar = smem_addr(&votes.said_full[slot][set]);
        int all = own;
        warp_publish(smem_addr(votes.said[slot] + 4 * w) + rows::warp(), own, bar);
        if (open & ~own) {
            mbar_wait(bar, ballot / smem::SLOTS & 1);
            const int *said = (const int *)votes.said[slot] + set;
            all = uniform(elected_load(said) | (SCOPE == 128 ? elected_load(said + 1) : 0));
            int pair = all >> (rows::warp() & 2) * 8;
            all = (all | all >> 8 | all >> 16 | all >> 24) & 3;
            own = SCOPE > 32 ? all : SCOPE == 32 ? uniform((pair | pair >> 8) & 3) : own;
        }
        counts += COMPUTED + 1;
        return all;
    }

    /* Is a row of this thread near enough to its maximum `to`? A row that has seen no key yet is
     * near any score. */
    static DEVICE bool near(const float (&top)[2], const float (&to)[2], float gap)
    {
        return top[0] - to[0] > -gap || top[1] - to[1] > -gap;
    }

    /* May a score of a stage not count whose keys end before key `end`? */
    DEVICE bool has_unseen(int end, int first) const
    {
        const attn_args &a = f.base;
        return end > (a.causal ? min(a.nk, first + a.offset + 1) : a.nk);
    }

    DEVICE void store_count(int w, int of_tile, int first)
    {
        const int warps = SCOPE < 64 ? SCOPE / 16 : 4;
        int scope = rows::warp() / warps;
        int row = head_of(of_tile) * f.base.q_blocks + block_of(of_tile);
        if (rows::lane() == 0 && rows::warp() % warps == 0 && (SCOPE < 128 || w == 0))
            f.computed[(row * T::WG + w) * 4 + scope] =
                first + scope * SCOPE < f.base.nq ? counts & COMPUTED : 0;
    }
};
