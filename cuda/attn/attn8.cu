/*
 * attn8.cu - dense attention with INT8 Q K^T and P V in e4m3 or float16 on Hopper (attn.h says what
 * it computes), and what the kernels over lists (attn_filter.cuh) share with it.
 *
 * Tile: 192 query rows against 128 keys, by a producer warpgroup and three consumer warpgroups; 256
 *   rows by four with 64 channels and e4m3.
 * Registers: 32 and 160 a thread: 64 sums, 64 scores whose place the sums of a stage's P V take, 16
 *   packed probabilities. Float16: 64 sums, of half of a stage 32 scores and 16 probabilities.
 *   Four warpgroups have 112: 32 sums and 64 scores.
 * Shared memory: 224 KB, of which four stages of keys and values are 128; float16 has two in 96.
 * Why this shape: with products at twice the rate of bf16, the chain of a stage (scores, maximum,
 *   exponentials, packing, P V, sums) is twice as long as its products. Two warpgroups cannot hide
 *   it from each other, however it is overlapped; three that go through it in turn come nearer, and
 *   four nearer still.
 *
 * The frame is that of attn_sm90.cuh: a persistent grid, items of a plan, the same producer,
 * outputs through shared memory. Items are walked by ascending keys, as the method does, because P
 * is rounded relative to the largest score so far; in a piece of a row, to the largest of the
 * piece: other roundings, of the same size. P V of a stage has sums of its own: those of the tensor
 * cores keep 13 bits of mantissa.
 */
#include "cuda/attn/attn8_consumer.cuh"
#include "cuda/attn/attn_sm90.cuh"

ATTN_LAUNCH(dense8_128)
ATTN_LAUNCH(dense8_64)
ATTN_LAUNCH(dense8f_128)
ATTN_LAUNCH(dense8f_64)

/* Four groups of keys of a tile may have scales; sums are those of the tensor cores. */
bool attn8_takes(const struct own_quantised *r, enum attn_element element, int keys)
{
    enum attn_element of = r->e4m3 ? ATTN_INT8 : ATTN_INT8_F16;
    return element == of && r->e4m3 == (r->sum != OWN_SUM_F16) && r->bk == keys &&
           r->gran != OWN_BY_TOKEN;
}

int attn8_job_init(struct gpu *g, const struct attn_problem *p, const struct attn_kernel *kernel,
                   const struct attn_plan *plan, const struct attn_tensors *x,
                   const struct attn8_scales *scales, struct attn_job *job, struct err *err)
{
    PASS_ON(attn_job_init(g, p, kernel, plan, x, job, err));
    attn_args *a = (attn_args *)job->args;
    a->scales = *scales;
    a->scale_log2 = 1; /* references are in log2 units */
    return 0;
}
