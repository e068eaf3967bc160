/*
 * attn8.cu - dense attention with INT8 Q K^T and e4m3 P V on Hopper (attn.h says what it computes),
 * and what the kernels over lists (attn8_filter.cuh) share with it.
 *
 * Tile: 192 query rows against 128 keys, by a producer warpgroup and three consumer warpgroups.
 * Registers: 32 and 160 a thread: 64 sums, 64 scores whose place the sums of a stage's P V take, 16
 *   packed probabilities.
 * Shared memory: 224 KB, of which four stages of keys and values are 128.
 * Why this shape: with products at twice the rate of bf16, the chain of a stage (scores, maximum,
 *   exponentials, packing, P V, sums) is twice as long as its products. Two warpgroups cannot hide
 *   it from each other, however it is overlapped; three that go through it in turn come nearer.
 *
 * The frame is that of attn_sm90.cuh: a persistent grid, items of a plan, the same producer,
 * outputs through shared memory. Items are walked by ascending keys, as the method does, because P
 * is rounded relative to the largest score so far; for the same reason rows are not cut into
 * pieces. P V of a stage has sums of its own: those of the tensor cores keep 13 bits of mantissa.
 */
#include "cuda/attn/attn8_consumer.cuh"
#include "cuda/attn/attn_producer.cuh"

template <class T>
__global__ void __launch_bounds__(T::THREADS, 1)
    attn8(const __grid_constant__ attn_maps maps, const __grid_constant__ attn_args a)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t raw[];
    attn_smem<T> &sm = *(attn_smem<T> *)raw;
    const int group = uniform(threadIdx.x >> 7);

    attn_begin(sm, maps);
    if (group == 0) {
        regs_dec<T::REGS_PRODUCER>();
        if (threadIdx.x < 32) {
            producer<T> p = {sm, a, maps};
            p.run();
        }
    } else {
        regs_inc<T::REGS_CONSUMER>();
        consumer8<T> c = {{sm, a, &maps.o, uniform(group - 1)}};
        c.run();
    }
#endif
}

template <class T>
static void launch(int grid, cudaStream_t stream, const void *maps, const void *args)
{
    cudaFuncSetAttribute(attn8<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         (int)sizeof(attn_smem<T>));
    attn8<T><<<grid, T::THREADS, sizeof(attn_smem<T>), stream>>>(*(const attn_maps *)maps,
                                                                 *(const attn_args *)args);
}

template <class T> static constexpr attn_kernel entry(const char *name, const char *summary)
{
    return {name,
            summary,
            T::D,
            ATTN_DENSE,
            {T::BM, T::BN, T::UNITS},
            ATTN_INT8,
            90,
            T::THREADS,
            (int)sizeof(attn_smem<T>),
            launch<T>};
}

static const struct attn_kernel kernels[] = {
    entry<dense8_128>("int8-hd128-dense", "head dim 128, dense, INT8 and e4m3, tiles 192 x 128"),
    entry<dense8_64>("int8-hd64-dense", "head dim 64, dense, INT8 and e4m3, tiles 192 x 128"),
};

/* Four groups of keys of a tile may have scales; sums are those of the tensor cores. */
bool attn8_takes(const struct own_quantised *r, int keys)
{
    return r->e4m3 && r->bk == keys && r->gran != OWN_BY_TOKEN && r->sum != OWN_SUM_F16;
}

const struct attn_kernel *attn8_kernel_find(const struct attn_problem *p, int sm)
{
    for (const attn_kernel &k : kernels)
        if (sm == k.sm && p->d == k.d && p->lists == k.lists)
            return &k;
    return NULL;
}

int attn8_job_init(struct gpu *g, const struct attn_problem *p, const struct attn_kernel *kernel,
                   const struct attn_plan *plan, const struct attn_tensors *x,
                   const struct attn8_scales *scales, struct attn_job *job, struct err *err)
{
    int rc = attn_job_init(g, p, kernel, plan, x, job, err);
    if (rc)
        return rc;
    attn_args *a = (attn_args *)job->args;
    a->scales = *scales;
    a->scale_log2 = 1; /* references are in log2 units */
    return 0;
}
