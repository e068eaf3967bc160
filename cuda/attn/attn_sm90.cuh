/*
 * attn_sm90.cuh - exact attention forward over dense or listed key blocks, for Hopper.
 *
 *   O_i = sum_j softmax_j(scale q_i . k_j) v_j      LSE_i = ln sum_j e^{scale q_i . k_j}
 *
 * over all keys, all keys up to the diagonal, the key blocks of a list per query block, or of such
 * blocks the pairs whose bit is set. The CPU reference is attn_rows (core/attention.h).
 *
 * Tile: WG x 64 query rows against BN keys, D channels, DV of values; the shapes are in
 *   attn_shape.cuh.
 * Threads: a producer warpgroup, of which one warp or two issue TMA copies, and WG consumer
 *   warpgroups; when gathering, two producer warpgroups, one above 128 channels.
 * Registers: 40/232 per producer and consumer thread, 48/208 when gathering (72/216 above 128
 *   channels), 32/160 with three consumer warpgroups, moved by setmaxnreg: a consumer holds BN/2
 *   scores, BN/4 packed probabilities and DV/2 outputs.
 * Shared memory: up to 224 KB: queries, STAGES of keys and of values, and the outgoing tile, of
 *   which half has room above 128 channels, beside the queries of one item.
 * Why this shape: 128 rows per CTA keep L2 traffic at 128 FLOP per byte, and two warpgroups that
 *   take turns at the tensor cores hide one's softmax under the other's products.
 *
 * The chain of a warpgroup's stage (scores, exponentials, the turn, products) is longer than its
 * products, so a stage takes as long as the chain. The measurements behind these rules are in
 * doc/kernel-experiments.md:
 * - Nothing looks for a row's largest score. The first stage of an item sets a reference, which
 *   holds until a sum of probabilities exceeds 2^60. The scores are gone by then, so mma.sync
 *   computes them again, and the reference is raised. As bf16 has fp32's range, this is as exact as
 *   following the maximum while values are below 2^40 or so.
 * - Stages with masks, where a row may not have a reference yet, look for the maximum first (one
 *   vote), and raise the reference if a score exceeds it by 2^8. Stages with bits do not: while a
 *   warp has a row without a reference, they look for that row's.
 * - The operands of the next turn are looked up while exponentials run. All branches leave warps
 *   converged in a way that ptxas can see (hop.cuh), which keeps descriptors in uniform registers.
 * - The first exponentials (EARLY) run beside the warpgroup's own P V. Packing must wait for that P
 *   V, and fills the gaps between the other exponentials.
 * - The loop over stages is straight code with one branch; rare work is outside of it.
 *
 * The grid is persistent. Work items (attn_item) are drawn from a counter in the order of the plan,
 * and consumers run all their items as one stream: the last P V of an item is issued together with
 * the first Q K of the next, so that no item pays for an empty pipeline. P V cannot be issued
 * before Q K is done, and a warpgroup closes the item before in that time: its normalisers beside
 * the first stage of the next item, the rest of its outputs beside the second (D = 128), through
 * shared memory, each warp for its own rows.
 *
 * Keys of an item are walked from its end to its beginning. Blocks on the diagonal and the ragged
 * last block come first, and only those go through the masked copy of the softmax. Full attention
 * over tiles of keys that are all whole has a kernel without that copy (whole_tiles). Bits lie in
 * the order of the accumulators: a thread has those of a stage in one word, which it loads a stage
 * ahead.
 *
 * Items and positions of keys, which the producer writes into shared memory by ordinary stores, are
 * read by one lane per warp: the lane that returns the buffer later.
 *
 * A result does not depend on the schedule: an item is summed in list order by one CTA, and pieces
 * of a split row are combined in the order of their slots.
 */
#pragma once

#include "cuda/attn/attn_consumer.cuh"
#include "cuda/attn/attn_gather.cuh"
#include "cuda/attn/attn_producer.cuh"

#include <type_traits>

template <class T> struct consumer8; /* attn8_consumer.cuh */

template <class T>
__global__ void __launch_bounds__(T::THREADS, 1)
    attn_sm90(const __grid_constant__ attn_maps maps, const __grid_constant__ attn_args a)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t raw[];
    attn_smem<T> &sm = *(attn_smem<T> *)raw;
    const int group = uniform(threadIdx.x >> 7);

    attn_begin(sm, maps);
    if (group < T::PRODUCER_WG) {
        regs_dec<T::REGS_PRODUCER>();
        if constexpr (T::GATHER) {
            gather(sm, a, &maps.q);
        } else if (threadIdx.x < 32 * T::PRODUCERS) {
            produce(sm, a, maps);
        }
    } else {
        regs_inc<T::REGS_CONSUMER>();
        std::conditional_t<T::BYTES, consumer8<T>, consumer<T>> c = {
            {sm, a, &maps.o, uniform(group - T::PRODUCER_WG)}};
        c.run();
    }
#endif
}

/* maps, args: struct attn_maps, attn_args. */
template <class T>
static void attn_start(int grid, cudaStream_t stream, const void *maps, const void *args)
{
    cudaFuncSetAttribute(attn_sm90<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         (int)sizeof(attn_smem<T>));
    attn_sm90<T><<<grid, T::THREADS, sizeof(attn_smem<T>), stream>>>(*(const attn_maps *)maps,
                                                                     *(const attn_args *)args);
}

/* Where no score is left out, the kernel without masks, if there is one. */
template <class T>
void attn_launch(int grid, cudaStream_t stream, const void *maps, const void *args)
{
    const attn_args *a = (const attn_args *)args;
    if constexpr (T::UNITS == 1 && !T::BYTES && (T::KIND == BLOCKS_ALL || T::KIND == BLOCKS_LIST))
        if (!a->causal && a->nk % T::BLOCK == 0) {
            attn_start<whole_tiles<T>>(grid, stream, maps, args);
            return;
        }
    attn_start<T>(grid, stream, maps, args);
}

#define ATTN_LAUNCH(shape)                                                                         \
    template void attn_launch<shape>(int grid, cudaStream_t stream, const void *maps,              \
                                     const void *args);

/* The kernels for a head dimension, in a file of their own: dense, lists of blocks, and lists for
 * masks that are not made of blocks. */
#define ATTN_LAUNCHES(d)                                                                           \
    ATTN_LAUNCH(dense##d)                                                                          \
    ATTN_LAUNCH(list##d)                                                                           \
    ATTN_LAUNCH(half##d)                                                                           \
    ATTN_LAUNCH(pair##d)                                                                           \
    ATTN_LAUNCH(bits##d)                                                                           \
    ATTN_LAUNCH(gather##d)
