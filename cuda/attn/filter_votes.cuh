/*
 * filter_votes.cuh - what the kernels that skip P V have in common (attn_filter.cuh,
 * attn8_filter.cuh): the decision of a scope's warps, counts of computed tiles, and the launch.
 */
#ifndef LACUNA_FILTER_VOTES_CUH
#define LACUNA_FILTER_VOTES_CUH

#include "cuda/attn/attn_outputs.cuh"
#include "cuda/attn/attn_producer.cuh"
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
    int first;                /* first query row of the warpgroup */
    float gap;                /* of the item's head */
    unsigned computed;        /* tiles of the item whose P V this thread's scope computed */

    DEVICE void start(int of_tile, int first_row)
    {
        first = first_row;
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
     * that has seen no key yet is near any score. */
    DEVICE bool near(const float (&top)[2], const float (&to)[2]) const
    {
        int row = first + rows::warp() * 16 + (rows::lane() >> 2);
        bool yes = false;
#pragma unroll
        for (int r = 0; r < 2; r++)
            yes = yes || (top[r] - to[r] > -gap && row + 8 * r < f.base.nq);
        return yes;
    }

    /* May a score of a stage not count whose keys end before key `end`? */
    DEVICE bool has_unseen(int end) const
    {
        const attn_args &a = f.base;
        return end > (a.causal ? min(a.nk, first + a.offset + 1) : a.nk);
    }

    DEVICE void store_count(int w, int of_tile)
    {
        const int warps = SCOPE < 64 ? SCOPE / 16 : 4;
        int scope = rows::warp() / warps;
        int row = head_of(of_tile) * f.base.q_blocks + block_of(of_tile);
        if (rows::lane() == 0 && rows::warp() % warps == 0 && (SCOPE < 128 || w == 0))
            f.computed[(row * 2 + w) * 4 + scope] =
                first + scope * SCOPE < f.base.nq ? computed : 0;
    }
};

/* A consumer warpgroup; one for each kind of operands. */
template <class T, int SCOPE, bool BYTES = T::BYTES> struct filter_consumer;

template <class T, int SCOPE>
__global__ void __launch_bounds__(T::THREADS, 1)
    attn_filter(const __grid_constant__ attn_maps maps, const __grid_constant__ filter_args f)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t raw[];
    filter_smem<T> &sm = *(filter_smem<T> *)raw;
    int group = uniform(threadIdx.x >> 7);

    if (threadIdx.x == 0)
        for (int i = 0; i < sm.SLOTS * T::WG; i++)
            mbar_init(smem_addr(&sm.said_full[0][i]), SCOPE == 128 ? 8 : 4);
    attn_begin(sm, maps);
    if (group == 0) {
        regs_dec<T::REGS_PRODUCER>();
        if (threadIdx.x < 32) {
            producer<T> p = {sm, f.base, maps};
            p.run();
        } else if (T::PRODUCERS > 1 && threadIdx.x < 64) {
            producer<T> p = {sm, f.base, maps};
            p.run_values();
        }
    } else {
        regs_inc<T::REGS_CONSUMER>();
        filter_consumer<T, SCOPE> c = {{{sm, f.base, &maps.o, uniform(group - 1)}}, {f, sm}};
        c.run_items();
    }
#endif
}

template <class T, int SCOPE>
void filter_launch(int grid, cudaStream_t stream, const void *maps, const void *args)
{
    cudaFuncSetAttribute(attn_filter<T, SCOPE>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         (int)sizeof(filter_smem<T>));
    attn_filter<T, SCOPE><<<grid, T::THREADS, sizeof(filter_smem<T>), stream>>>(
        *(const attn_maps *)maps, *(const filter_args *)args);
}

#define FILTER_LAUNCH(shape, scope)                                                                \
    template void filter_launch<shape, scope>(int grid, cudaStream_t stream, const void *maps,     \
                                              const void *args);

#endif
