/*
 * attn_shape.cuh - what the Hopper attention kernels are instantiated with: tile shapes, the kinds of
 * key lists, the shared memory of a thread block (attn_sm90.cuh).
 */
#ifndef LACUNA_ATTN_SHAPE_CUH
#define LACUNA_ATTN_SHAPE_CUH

#include "cuda/attn_args.h"
#include "cuda/wgmma.cuh"

#include <cuda_bf16.h>

/* What the key blocks of an item are. */
enum list_kind {
    BLOCKS_ALL,  /* dense: blocks [beg, end) of BN keys */
    BLOCKS_LIST, /* cols[beg .. end): blocks of BN keys */
    BLOCKS_HALF, /* cols[beg .. end): blocks of 64 keys, two of them make a stage of BN = 128 */
    BLOCKS_PAIR, /* the same, bits 30 and 31 say for which of the two 64-row blocks */
    BLOCKS_BITS, /* as BLOCKS_LIST; of an entry with bits[i] >= 0 only the pairs of its bits */
    BLOCKS_GATHER, /* entries of BN single keys with bits, which include what is not allowed */
};

template <int D_, int BN_, int WG_, int STAGES_, int QBUFS_, int OPANELS_, list_kind KIND_,
          bool TURNS_ = true>
struct shape {
    static constexpr int D = D_, BN = BN_, WG = WG_, STAGES = STAGES_, QBUFS = QBUFS_;
    static constexpr int OPANELS = OPANELS_; /* 64-column panels of the outgoing tile at once */
    static constexpr list_kind KIND = KIND_;
    static constexpr bool TURNS = TURNS_; /* warpgroups take turns at the tensor cores */
    static constexpr bool LISTED = KIND != BLOCKS_ALL;
    static constexpr bool HALVES = KIND == BLOCKS_HALF || KIND == BLOCKS_PAIR;
    static constexpr int BM = 64 * WG, PANELS = D / 64, THREADS = 128 * (WG + 1);
    static constexpr int BOX = HALVES ? 64 : BN; /* keys per TMA copy */
    static constexpr int Q_BYTES = BM * D * 2, KV_BYTES = BN * D * 2;
    /* setmaxnreg moves registers inside what the launch took: 168 x 3 or 128 x 4 per thread. */
    static constexpr bool GATHER = KIND == BLOCKS_GATHER, BITS = KIND == BLOCKS_BITS || GATHER;
    static constexpr int COPIERS = GATHER ? 128 : 1; /* producer threads that fill a stage */
    static constexpr bool MORE = HALVES || BITS; /* what a stage's entry takes */
    static constexpr int REGS_PRODUCER = WG == 3 ? 32 : MORE ? 40 : 24;
    static constexpr int REGS_CONSUMER = WG == 3 ? 160 : MORE ? 232 : 240;
};

template <class T> struct attn_smem {
    alignas(1024) uint8_t q[T::QBUFS][T::Q_BYTES];
    alignas(1024) uint8_t k[T::STAGES][T::KV_BYTES];
    alignas(1024) uint8_t v[T::STAGES][T::KV_BYTES];
    alignas(1024) uint8_t o[T::WG][T::OPANELS * 64 * 128];
    int4     work[T::QBUFS];  /* the item of each query buffer; x = -1: no more */
    int2     keys[T::STAGES]; /* first key of each half of a stage; BLOCKS_PAIR: bits 0 and 1;
                               * with bits: y = their block, -1 for none */
    uint64_t q_full[T::QBUFS], q_empty[T::QBUFS];
    uint64_t k_full[T::STAGES], k_empty[T::STAGES], v_full[T::STAGES], v_empty[T::STAGES];
    int      ticket[2]; /* BLOCKS_GATHER: the next item, for all threads of the producer */
};

/* The barriers of a thread block, before anything else; all its threads. */
template <class T>
DEVICE void attn_begin(attn_smem<T> &sm, const CUtensorMap &mq, const CUtensorMap &mk,
                       const CUtensorMap &mv, const CUtensorMap &mo)
{
    if (threadIdx.x == 0) {
        for (int i = 0; i < T::QBUFS; i++) {
            mbar_init(smem_addr(&sm.q_full[i]), 1);
            mbar_init(smem_addr(&sm.q_empty[i]), T::WG);
        }
        for (int i = 0; i < T::STAGES; i++) {
            mbar_init(smem_addr(&sm.k_full[i]), T::COPIERS);
            mbar_init(smem_addr(&sm.v_full[i]), T::COPIERS);
            mbar_init(smem_addr(&sm.k_empty[i]), T::WG);
            mbar_init(smem_addr(&sm.v_empty[i]), T::WG);
        }
        mbar_init_fence();
        tma_prefetch(&mq);
        tma_prefetch(&mk);
        tma_prefetch(&mv);
        tma_prefetch(&mo);
    }
    __syncthreads();
}

/* No key can have this index: a half stage that is to be masked starts here. */
#define NO_KEY (1 << 29)

/*                        D   BN  WG ST QB OP */
using dense128_wide = shape<128, 176, 2, 2, 1, 1, BLOCKS_ALL>;
using dense128 = shape<128, 128, 2, 2, 2, 2, BLOCKS_ALL>;
using list128 = shape<128, 128, 2, 2, 2, 2, BLOCKS_LIST>;
using half128 = shape<128, 128, 2, 2, 2, 2, BLOCKS_HALF>;
using pair128 = shape<128, 128, 2, 2, 2, 2, BLOCKS_PAIR, false>;
using dense64 = shape<64, 128, 3, 3, 2, 1, BLOCKS_ALL>;
using dense64_two = shape<64, 128, 2, 4, 2, 1, BLOCKS_ALL>;
using dense64_wide = shape<64, 192, 2, 3, 2, 1, BLOCKS_ALL>;
using list64 = shape<64, 128, 2, 4, 2, 1, BLOCKS_LIST>;
using half64 = shape<64, 128, 2, 4, 2, 1, BLOCKS_HALF>;
using pair64 = shape<64, 128, 2, 4, 2, 1, BLOCKS_PAIR, false>;
using bits128 = shape<128, 128, 2, 2, 2, 2, BLOCKS_BITS>;
using bits64 = shape<64, 128, 2, 4, 2, 1, BLOCKS_BITS>;
using gather128 = shape<128, 128, 2, 2, 2, 2, BLOCKS_GATHER>;
using gather64 = shape<64, 128, 2, 4, 2, 1, BLOCKS_GATHER>;

#endif
