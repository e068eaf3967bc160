/*
 * attn_shape.cuh - template arguments of the Hopper attention kernels: tile shapes, kinds of key
 * lists, the shared memory of a thread block (attn_sm90.cuh).
 */
#pragma once

#include "cuda/attn/attn_args.h"
#include "cuda/attn/plan.h"
#include "cuda/wgmma.cuh"

#include <cuda_bf16.h>

/* Meaning of the units [beg, end) of an item. */
enum list_kind {
    BLOCKS_ALL,  /* dense: unit i is keys [i BN, (i + 1) BN) */
    BLOCKS_LIST, /* units of the listed blocks, one after the other: block b of cols has the units
                  * [b PER_BLOCK, (b + 1) PER_BLOCK) */
    BLOCKS_PAIR, /* the same with one unit per block of 64 rows; bits 30 and 31 of an entry say
                  * which of the tile's two rows of blocks want the block */
    BLOCKS_BITS, /* as BLOCKS_LIST, one block per stage; where bits[b] >= 0 only the pairs whose bit
                  * is set count */
    BLOCKS_GATHER, /* entries of BN single keys with bits; the bits also exclude pairs that are not
                    * allowed */
    BLOCKS_FILTER, /* one block per unit, walked from the first one; entries as in plan.h */
};

/* BLOCK: keys of a list's block. UNIT: keys that are copied at once. A stage may hold the last
 * units of a block and the first of the next, so its width need not follow that of the block. */
template <int D_, int BN_, int WG_, int STAGES_, list_kind KIND_, int BLOCK_ = BN_, int UNIT_ = BN_,
          bool TURNS_ = true, int DV_ = D_>
struct shape {
    static constexpr int D = D_, DV = DV_, BN = BN_, WG = WG_, STAGES = STAGES_;
    static constexpr int QBUFS = D > 128 ? 1 : 2; /* queries of this item, and of the next */
    static constexpr int TEAMS = 1;               /* of WG warpgroups each in a thread block */
    static constexpr bool LENDS =
        false; /* outputs leave from the place of the item's last values */
    static constexpr list_kind KIND = KIND_;
    static constexpr bool TURNS = TURNS_;   /* warpgroups take turns at the tensor cores */
    static constexpr int ARRIVALS = 4 * WG; /* arrivals that empty a buffer, one per warp */
    static constexpr int BM = 64 * WG;
    /* Of 128 bytes: of a query or a key, of a value, in the buffer of outputs. */
    static constexpr int IN_PANELS = (D + 63) / 64, PANELS = (DV + 63) / 64;
    static constexpr int OUT_PANELS = D > 128 ? PANELS / 2 : PANELS;
    static constexpr int BLOCK = BLOCK_, UNIT = UNIT_;
    static constexpr int UNITS = BN / UNIT, PER_BLOCK = BLOCK / UNIT;
    static constexpr bool GATHER = KIND == BLOCKS_GATHER, BITS = KIND == BLOCKS_BITS || GATHER;
    static constexpr bool FILTER = KIND == BLOCKS_FILTER;
    static constexpr bool SKIPS = FILTER;           /* tiles may be skipped */
    static constexpr bool ASCENDS = FILTER;         /* lists are walked from their beginning */
    static constexpr bool BYTES = false;            /* operands of 8 bits (attn8_shape.cuh), */
    static constexpr bool BY_CHANNEL = false;       /* values among them, */
    static constexpr int SCALES = 0, SCALED = UNIT; /* where scales lie among positions, the keys
                                                     * that have four of them */
    static constexpr bool CLIPS = true;             /* some scores may not count (whole_tiles) */
    /* Warpgroups of producers; when gathering, half of their warps copy keys and half copy values.
     * Above 128 channels consumers need the registers. */
    static constexpr int PRODUCER_WG = GATHER && D <= 128 ? 2 : 1;
    static constexpr int THREADS = 128 * (WG + PRODUCER_WG);
    static constexpr int COPIERS = GATHER ? 2 * PRODUCER_WG : 1; /* arrivals that fill a buffer */
    /* Producer warps. A second warp copies values in two cases: if warpgroups skip stages, because
     * they then return keys and values in different orders; and if a stage takes many copies. */
    static constexpr int PRODUCERS = KIND == BLOCKS_PAIR || (IN_PANELS > 1 && UNITS > 1) ? 2 : 1;
    /* Arrivals that empty a buffer of queries and its item: of all who read either. */
    static constexpr int Q_ARRIVALS = ARRIVALS + (GATHER ? 4 * PRODUCER_WG : PRODUCERS - 1);
    static constexpr bool LANES = /* one lane per unit issues the copy */
        PER_BLOCK == 1 && (UNITS > 1 || KIND == BLOCKS_PAIR);
    /* How many of a thread's BN/2 exponentials of a stage come before the end of the P V that runs
     * beside them. With D = 128, 20 to 28 make no difference, and 16 and 32 cost 3 to 5 %; with 96,
     * 40 is 1.5 % faster than 24. In pair lists 8 is 4 % faster than 24 at 10 % of the blocks, and
     * 6 % slower where both rows of a pair want all blocks. */
    static constexpr int EARLY = KIND == BLOCKS_PAIR ? 8
                                 : BN == 64          ? 12
                                 : BN == 192         ? 30
                                 : D == 96           ? 40
                                                     : 24;
    /* Three warpgroups have no registers to compute scores again, so every stage looks for the
     * maximum. They have none for the operands of the next turn either. */
    static constexpr bool CHECKED = WG == 3;
    /* Outputs of an item leave beside the second stage of the next item. With D = 64, where the
     * exponentials determine the time of a stage, this costs 4 %. */
    static constexpr bool DEFERS =
        OUT_PANELS == 2 && D <= 128 && (KIND == BLOCKS_ALL || KIND == BLOCKS_LIST);
    /* How many of the DV/16 slices (16 columns each) of a warp's outputs go to their buffer beside
     * the first stage already; both stages have a little time to spare. At 10 % of the blocks, none
     * or all of them is 0.4 to 0.7 % slower. */
    static constexpr int BUFFERED = OUT_PANELS < PANELS ? 4 * OUT_PANELS : DV / 16;
    static constexpr int OUT_EARLY = DEFERS ? 3 * DV / 64 : BUFFERED;
    static constexpr int POSITIONS = FILTER ? 2 * UNITS : UNITS;
    static constexpr int Q_BYTES = BM * IN_PANELS * 128, K_BYTES = BN * IN_PANELS * 128,
                         V_BYTES = BN * PANELS * 128;
    /* setmaxnreg moves registers between warpgroups; the launch has 168 per thread for three
     * warpgroups, 128 for four, 96 for five. */
    static constexpr int REGS_PRODUCER = WG >= 3 ? 32 : !GATHER ? 40 : PRODUCER_WG == 2 ? 48 : 72;
    static constexpr int REGS_CONSUMER = WG == 4            ? 112
                                         : WG == 3          ? 160
                                         : PRODUCER_WG == 2 ? 208
                                                            : (504 - REGS_PRODUCER) / 2;
};

/* The same shape N times in a thread block: teams with items and buffers of their own, whose warps
 * hide each other's chains. Of registers the launch has 128 per thread for three warpgroups of
 * consumers, 96 for four. */
template <class T, int N> struct teams : T {
    static constexpr int TEAMS = N, THREADS = 128 * (N * T::WG + 1);
    static constexpr bool LENDS = T::WG == 1;
    static constexpr bool TURNS = LENDS && T::D == 128;
    static constexpr int QBUFS = LENDS ? 1 : T::QBUFS;
    static constexpr int PRODUCERS = LENDS ? 1 : 2, Q_ARRIVALS = T::ARRIVALS + PRODUCERS - 1;
    static constexpr int REGS_PRODUCER = 32, REGS_CONSUMER = N * T::WG == 3 ? 160 : 112;
};

/* The same shape for launches in which every score of every stage counts: full attention over tiles
 * of keys that are all whole. Lists of 128 x 128 with 10 % of the blocks are 0.2 % faster if the
 * kernel has no masks. */
template <class T> struct whole_tiles : T {
    static_assert(T::UNITS == 1 && (T::KIND == BLOCKS_ALL || T::KIND == BLOCKS_LIST));
    static constexpr bool CLIPS = false;
};

template <class T> struct attn_smem {
    alignas(1024) uint8_t q[T::QBUFS][T::Q_BYTES];
    alignas(1024) uint8_t k[T::STAGES][T::K_BYTES];
    alignas(1024) uint8_t v[T::STAGES][T::V_BYTES];
    alignas(1024) uint8_t o[T::WG][T::LENDS ? 16 : T::OUT_PANELS * 64 * 128];
    int4 work[T::QBUFS]; /* the item of each query buffer, with its place_of() as x; -1: no more
                          * items */
    int keys[T::STAGES][T::POSITIONS]; /* first key of each unit, with the two bits of BLOCKS_PAIR;
                                        * with BLOCKS_FILTER then each unit's entry (0: none) */
    uint64_t q_full[T::QBUFS], q_empty[T::QBUFS];
    uint64_t k_full[T::STAGES], k_empty[T::STAGES], v_full[T::STAGES], v_empty[T::STAGES];
    uint64_t done;            /* of the first team: that no team has more items */
    uint64_t drawn[T::QBUFS]; /* BLOCKS_GATHER: that an item is in `work` */
    /* BLOCKS_FILTER: votes of the warps on a stage (filter_votes.cuh). The warps that vote together
     * are at most one ring of keys apart; there are at least twice as many slots, so that no slot
     * is written before it has been read. */
    static constexpr int SLOTS = T::FILTER ? 16 : 1;
    static_assert(!T::FILTER || SLOTS >= 2 * T::STAGES);
    uint64_t said_full[SLOTS][T::WG];
    alignas(8) uint8_t said[SLOTS][4 * T::WG]; /* bit u: near in unit u; by warp */
};

/* Head and query block of an item in one word, because consumers have no time to divide.
 * attn_plan_make checks that both fit. */
DEVICE int place_of(int head, int block)
{
    return head << 16 | block;
}
DEVICE int head_of(int place)
{
    return place >> 16;
}
DEVICE int block_of(int place)
{
    return place & 0xffff;
}

/* First key of a unit of an item; in a pair list the low two bits say which rows want it. */
template <class T> DEVICE int unit_key(const attn_args &a, int unit)
{
    if (T::KIND == BLOCKS_ALL)
        return unit * T::UNIT;
    int entry = __ldg(a.cols + unit / T::PER_BLOCK);
    if (T::FILTER)
        return (entry & FILTER_BLOCK) * T::BLOCK;
    if (T::KIND == BLOCKS_PAIR)
        return (entry & 0x3fffffff) * T::UNIT | (int)((uint32_t)entry >> 30);
    return entry * T::BLOCK + unit % T::PER_BLOCK * T::UNIT;
}

/* A unit's part of its block of bits: number `block` in memory, negative for none. */
template <class T> DEVICE int bits_of_unit(int block, int unit)
{
    return block < 0 ? block : block * T::PER_BLOCK + unit % T::PER_BLOCK;
}

/* Start of the units that a stage lacks; no key has this index. */
#define NO_KEY (1 << 29)

/* Query rows of a warp: the height of the box of outputs. */
#define OUT_ROWS 16

/* Tensor maps of a launch. Boxes of k[i] and v[i] have UNIT 2^i keys, up to a block. */
#define BOX_HEIGHTS 2
struct attn_maps {
    CUtensorMap q, o, k[BOX_HEIGHTS], v[BOX_HEIGHTS];
};

/* Initialise the barriers of a thread block. All its threads call this before anything else. */
template <class T> DEVICE void attn_begin(attn_smem<T> &sm, const attn_maps &maps)
{
    if (threadIdx.x == 0) {
        for (int i = 0; i < T::QBUFS; i++) {
            mbar_init(smem_addr(&sm.q_full[i]), 1);
            mbar_init(smem_addr(&sm.q_empty[i]), T::Q_ARRIVALS);
            mbar_init(smem_addr(&sm.drawn[i]), 1);
        }
        for (int i = 0; i < T::STAGES; i++) {
            mbar_init(smem_addr(&sm.k_full[i]), T::COPIERS);
            mbar_init(smem_addr(&sm.v_full[i]), T::COPIERS);
            mbar_init(smem_addr(&sm.k_empty[i]), T::ARRIVALS);
            mbar_init(smem_addr(&sm.v_empty[i]), T::ARRIVALS);
        }
        mbar_init_fence();
        tma_prefetch(&maps.q);
        tma_prefetch(&maps.o);
        for (int i = 0; T::UNIT << i <= T::BLOCK; i++) {
            tma_prefetch(&maps.k[i]);
            tma_prefetch(&maps.v[i]);
        }
    }
    __syncthreads();
}

/*                          D   BN  WG ST           BLOCK UNIT */
using dense128 = shape<128, 128, 2, 2, BLOCKS_ALL>;
using list128 = shape<128, 128, 2, 2, BLOCKS_LIST, 128, 128>;
using half128 = shape<128, 128, 2, 2, BLOCKS_LIST, 64, 64>;
using pair128 = shape<128, 128, 2, 2, BLOCKS_PAIR, 64, 64, false>;
using slim128 = shape<128, 128, 2, 2, BLOCKS_PAIR, 32, 32, false>;
using dense64 = shape<64, 128, 3, 3, BLOCKS_ALL>;
using list64 = shape<64, 192, 2, 3, BLOCKS_LIST, 128, 64>;
using half64 = shape<64, 192, 2, 3, BLOCKS_LIST, 64, 64>;
using pair64 = shape<64, 128, 2, 4, BLOCKS_PAIR, 64, 64, false>;
using slim64 = shape<64, 128, 2, 4, BLOCKS_PAIR, 32, 32, false>;
using bits128 = shape<128, 128, 2, 2, BLOCKS_BITS>;
using bits64 = shape<64, 128, 2, 4, BLOCKS_BITS>;
using gather128 = shape<128, 128, 2, 2, BLOCKS_GATHER>;
using gather64 = shape<64, 128, 2, 4, BLOCKS_GATHER>;
using dense96 = shape<96, 128, 2, 2, BLOCKS_ALL>;
using list96 = shape<96, 128, 2, 2, BLOCKS_LIST, 128, 128>;
using half96 = shape<96, 128, 2, 2, BLOCKS_LIST, 64, 64>;
using pair96 = shape<96, 128, 2, 2, BLOCKS_PAIR, 64, 64, false>;
using bits96 = shape<96, 128, 2, 2, BLOCKS_BITS>;
using gather96 = shape<96, 128, 2, 2, BLOCKS_GATHER>;
using dense192 = shape<192, 128, 2, 2, BLOCKS_ALL, 128, 128, true, 128>;
using list192 = shape<192, 128, 2, 2, BLOCKS_LIST, 128, 128, true, 128>;
using half192 = shape<192, 128, 2, 2, BLOCKS_LIST, 64, 64, true, 128>;
using pair192 = shape<192, 128, 2, 2, BLOCKS_PAIR, 64, 64, false, 128>;
using bits192 = shape<192, 128, 2, 2, BLOCKS_BITS, 128, 128, true, 128>;
using gather192 = shape<192, 128, 2, 2, BLOCKS_GATHER, 128, 128, true, 128>;
using dense256 = shape<256, 64, 2, 2, BLOCKS_ALL>;
using list256 = shape<256, 64, 2, 2, BLOCKS_LIST, 128, 64>;
using half256 = shape<256, 64, 2, 2, BLOCKS_LIST, 64, 64>;
using pair256 = shape<256, 64, 2, 2, BLOCKS_PAIR, 64, 64, false>;
using bits256 = shape<256, 64, 2, 2, BLOCKS_BITS, 128, 64>;
using gather256 = shape<256, 64, 2, 2, BLOCKS_GATHER, 128, 64>;

/* Launch the kernel of a shape (struct attn_kernel); a file per head dimension has the code. */
template <class T>
void attn_launch(int grid, cudaStream_t stream, const void *maps, const void *args);
