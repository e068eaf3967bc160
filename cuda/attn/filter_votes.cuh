/*
 * filter_votes.cuh - the decision of a scope's warps in the kernels that skip P V
 * (attn_filter.cuh), and their counts of computed tiles.
 */
#ifndef LACUNA_FILTER_VOTES_CUH
#define LACUNA_FILTER_VOTES_CUH

#include "cuda/attn/attn_outputs.cuh"
#include "cuda/attn/filter_shape.cuh"

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
template <class T, int SCOPE> struct filter_votes {
    using smem = filter_smem<T>;
    using rows = tile_rows<T>;

    const filter_args &f;
    smem &votes;
    ring<smem::SLOTS> ballot; /* slot of the stage's votes */
    float gap;                /* of the item's head */
    unsigned computed;        /* tiles of the item whose P V this thread's scope computed */

    DEVICE void start(int of_tile)
    {
        gap = f.gap[head_of(of_tile)];
        computed = 0;
    }

    /* Is no tile of the item skipped? */
    DEVICE bool always() const
    {
        return gap == INFINITY;
    }

    /* Does a row of the scope say yes, or of the warp where a scope has more than two of them?
     * w: the warpgroup. */
    DEVICE bool warps_any(int w, bool mine) const
    {
        return SCOPE == 32 ? named_any(8 + 2 * w + rows::warp() / 2, 64, mine)
                           : __any_sync(~0u, mine);
    }

    /* The bits of all warps of the scope or, of smaller ones, of the warpgroup. Nobody waits for a
     * bit of `open` that is in its own ones. */
    DEVICE int vote(int w, int own, int open)
    {
        const int set = SCOPE == 128 ? 0 : w;
        uint32_t bar = smem_addr(&votes.said_full[ballot.at][set]);
        const int4 *said = (const int4 *)votes.said[ballot.at];
        warp_publish(&votes.said[ballot.at][4 * w + rows::warp()], own, bar);
        if (open & ~own) {
            mbar_wait(bar, ballot.parity);
            int bits = elected_load_or(said + set);
            if (SCOPE == 128)
                bits |= elected_load_or(said + 1);
            own = uniform(bits);
        }
        ballot.next();
        return own;
    }

    /* Is a row of this thread near enough to its maximum `to`? Rows past the end have no say; a row
     * that has seen no key yet is near any score. first: row of the warpgroup. */
    DEVICE bool near(const float (&top)[2], const float (&to)[2], int first) const
    {
        int row = first + rows::warp() * 16 + (rows::lane() >> 2);
        bool yes = false;
#pragma unroll
        for (int r = 0; r < 2; r++)
            yes = yes || (top[r] - to[r] > -gap && row + 8 * r < f.base.nq);
        return yes;
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
            f.computed[(row * 2 + w) * 4 + scope] =
                first + scope * SCOPE < f.base.nq ? computed : 0;
    }
};

#endif
