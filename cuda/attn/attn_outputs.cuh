/*
 * attn_outputs.cuh - the rows of a consumer warpgroup of the Hopper attention kernels: outputs,
 * sums and references, and their way to memory when an item is done (attn_consumer.cuh).
 */
#pragma once

#include "cuda/attn/attn_shape.cuh"

template <class T> struct tile_rows {
    static constexpr int DV = T::DV;
    static constexpr bool TEAM_TURNS = T::TEAMS > 1 && T::TURNS;
    static constexpr int TEAM_TURN = 5; /* barrier of the first team; those before it are of the
                                         * outputs */

    attn_smem<T> &sm;
    const attn_args &a;
    const CUtensorMap *mo;
    int w;            /* warpgroup, from 0 */
    int tile, slot;   /* of the item: its place_of() and w of its entry */
    float o[DV / 2];  /* outputs, not normalised */
    float m[2], l[2]; /* references and sums of the thread's two rows */
    float inv[2];     /* factors of the outputs of an item that is done */
    int lent;         /* LENDS: the buffer of values that outputs take, -1: none */

    /* Thread of the warpgroup, its warp and its lane. Read again at each use, because registers are
     * scarce. */
    static DEVICE int t()
    {
        return threadIdx.x & 127;
    }
    static DEVICE int warp()
    {
        return threadIdx.x >> 5 & 3;
    }
    static DEVICE int lane()
    {
        return threadIdx.x & 31;
    }

    DEVICE int first_row(int of_tile) const
    {
        return block_of(of_tile) * T::BM + w * 64;
    }
    /* That of the item. Computed at each use. */
    DEVICE int first() const
    {
        int of_tile = tile;
        asm volatile("" : "+r"(of_tile));
        return first_row(of_tile);
    }

    /* Turns at the tensor cores, from warpgroup to warpgroup: of one tile, or of teams. */
    static DEVICE int team()
    {
        return (threadIdx.x >> 7) - 1;
    }
    DEVICE void take_turn()
    {
        if (T::TURNS)
            named_sync(TEAM_TURNS ? TEAM_TURN + team() : 1 + w, 256);
    }
    DEVICE void pass_turn()
    {
        if (T::TURNS)
            named_arrive(TEAM_TURNS ? TEAM_TURN + (team() + 1) % T::TEAMS : 1 + (w + 1) % T::WG,
                         256);
    }

    /* The last team hands the first turn to the first. */
    DEVICE void begin_team_turns()
    {
        if (TEAM_TURNS && team() == T::TEAMS - 1)
            pass_turn();
    }

    /* A team whose item is done leaves one turn out: its outputs take about as long as a round, and
     * the others would wait. */
    DEVICE void sit_out()
    {
        if (TEAM_TURNS) {
            take_turn();
            pass_turn();
        }
    }

    /* A team without more items passes its turns on until the others have none either. Its warps
     * ask together, as they may see the last one's word at different times. */
    DEVICE void end_team_turns()
    {
        if (!TEAM_TURNS)
            return;
        uint32_t done = smem_addr(&(&sm)[-team()].done);
        bool over;
        take_turn();
        warp_arrive(done);
        pass_turn();
        do {
            take_turn();
            over = named_any(team() + 1, 128, mbar_test(done, 0));
            pass_turn();
        } while (!over);
    }

    DEVICE void rescale(const float (&c)[2])
    {
#pragma unroll
        for (int i = 0; i < DV / 2; i++)
            o[i] *= c[i >> 1 & 1];
    }

    DEVICE void clear_outputs()
    {
#pragma unroll
        for (int i = 0; i < DV / 2; i++)
            o[i] = 0;
    }

    /* When the sums and references of an item's rows are final: compute the factors of the outputs
     * and store the normalisers; of a piece of a split row, store reference and sum for
     * combine_pieces. Two of the four lanes that share two rows store one row each. m and l are
     * free afterwards. */
    DEVICE void close_rows()
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            l[r] += __shfl_xor_sync(~0u, l[r], 1);
            l[r] += __shfl_xor_sync(~0u, l[r], 2);
            inv[r] = l[r] > 0 ? reciprocal_fast(l[r]) : 0;
        }
        int r = lane() & 1, in_tile = w * 64 + warp() * 16 + (lane() >> 2) + 8 * r;
        asm volatile("" : "+r"(in_tile)); /* computed here, not kept from item to item */
        float sum = r ? l[1] : l[0], reference = (r ? m[1] : m[0]) * a.scale_log2;
        int row = block_of(tile) * T::BM + in_tile;
        bool mine = (lane() & 2) == 0, piece = slot >= 0;
        /* clang-format off */ /* it takes the two comparisons for a template's brackets */
        store_if(mine && !piece && row < a.nq, a.lse + ((int64_t)head_of(tile) * a.nq + row),
                 sum > 0 ? (reference + log2_fast(sum)) * 0.69314718055994531f : -INFINITY);
        /* clang-format on */
        store_if(mine && piece, a.piece_ml + ((int64_t)slot * T::BM + in_tile),
                 make_float2(reference, sum));
    }

    /* Send the outputs of an item from their buffer to memory. The outputs of a piece of a split
     * row are not normalised and go from o to the piece's slot. */
    DEVICE void send_outputs(int of_tile, int of_slot)
    {
        if (of_slot >= 0) {
            store_piece(of_slot);
            return;
        }
        send_rows(of_tile);
        if (T::BUFFERED < DV / 16) { /* the other half of the panels */
            await_output_buffer();
            put_outputs<T::BUFFERED, DV / 16>();
            send_rows(of_tile, T::OUT_PANELS);
        }
    }

    DEVICE void store_piece(int of_slot)
    {
        int in_tile = w * 64 + warp() * 16 + (lane() >> 2);
        asm volatile("" : "+r"(in_tile));
        float *dst = a.piece_out + ((size_t)of_slot * T::BM + in_tile) * DV + 2 * (lane() & 3);
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int j = 0; j < DV / 8; j++)
                *(float2 *)(dst + 8 * r * DV + 8 * j) =
                    make_float2(o[4 * j + 2 * r], o[4 * j + 2 * r + 1]);
    }

    /* Wait until the warp's last store of outputs has read its part of the buffer, or LENDS, until
     * no warp reads values from it. */
    DEVICE void await_output_buffer()
    {
        if (T::LENDS) {
            named_sync(threadIdx.x >> 7, 128);
            return;
        }
        tma_store_wait_read();
        __syncwarp();
    }

    DEVICE uint32_t output_buffer() const
    {
        return smem_addr(T::LENDS ? sm.v[lent] : sm.o[w]);
    }

    /* Put outputs into their buffer; call after await_output_buffer(). */
    template <int FROM, int TO> DEVICE void put_outputs()
    {
        int in_warp = (lane() & 7) + 8 * (lane() >> 3 & 1), row = warp() * 16 + in_warp;
        uint32_t base = output_buffer();
        asm volatile("" : "+r"(row), "+r"(base)); /* not to be kept from item to item */
#pragma unroll
        for (int j = FROM; j < TO; j++) {
            int e = 8 * j, chunk = (j % 4 * 2 + (lane() >> 4)) ^ (row & 7);
            stmatrix_x4(base + j / 4 % T::OUT_PANELS * (64 * 128) + row * 128 + chunk * 16,
                        pack_pair(o[e] * inv[0], o[e + 1] * inv[0]),
                        pack_pair(o[e + 2] * inv[1], o[e + 3] * inv[1]),
                        pack_pair(o[e + 4] * inv[0], o[e + 5] * inv[0]),
                        pack_pair(o[e + 6] * inv[1], o[e + 7] * inv[1]));
        }
    }

    /* A warp stores its rows by itself: the panels in the buffer, of which `first` is the first. */
    DEVICE void send_rows(int of_tile, int first = 0)
    {
        async_proxy_fence();
        __syncwarp();
#pragma unroll
        for (int i = 0; i < T::OUT_PANELS; i++)
            warp_tma_store(mo, output_buffer() + warp() * OUT_ROWS * 128 + i * (64 * 128),
                           (first + i) * 64, first_row(of_tile) + warp() * OUT_ROWS,
                           head_of(of_tile));
        warp_tma_commit();
    }

    DEVICE void finish()
    {
        close_rows();
        await_output_buffer();
        put_outputs<0, T::BUFFERED>();
        send_outputs(tile, slot);
    }
};
