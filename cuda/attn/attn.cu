/*
 * attn.cu - the table of the attention kernels and their launch: tensor maps, arguments, the two
 * small kernels around the large one.
 */
#include "cuda/attn/attn.h"

#include "cuda/attn/attn8_shape.cuh"
#include "cuda/attn/attn_args.h"
#include "core/intmath.h"
#include "cuda/device.h"

#include <cuda_fp16.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- small kernels -------------------------------------------------------------------------- */

#define COMBINE_THREADS 256

static DEVICE uint32_t pair_f16(float lo, float hi)
{
    return (uint32_t)__half_as_ushort(__float2half(lo)) |
           (uint32_t)__half_as_ushort(__float2half(hi)) << 16;
}

/* Combine the pieces of split rows: O = sum_i 2^(m_i - m) O_i / sum_i 2^(m_i - m) l_i, pieces in
 * slot order. A thread has four channels of a query row. */
template <int D>
__global__ void combine_pieces(const int3 *splits, const float *piece_out, const float2 *piece_ml,
                               int bm, int q_blocks, int nq, bool half, uint16_t *out, float *lse)
{
    int3 s = splits[blockIdx.x];
    int thread = blockIdx.y * COMBINE_THREADS + threadIdx.x, in_tile = thread / (D / 4);
    int head = s.x / q_blocks, row = (s.x - head * q_blocks) * bm + in_tile;
    int channel = thread % (D / 4) * 4;
    float m = -INFINITY, l = 0;
    float4 sum = make_float4(0, 0, 0, 0);
    size_t at = (size_t)s.y * bm + in_tile;

    if (row >= nq)
        return;
    for (int i = 0; i < s.z; i++) {
        float2 ml = piece_ml[at + (size_t)i * bm];
        if (ml.y > 0)
            m = fmaxf(m, ml.x);
    }
#pragma unroll 4
    for (int i = 0; i < s.z; i++) {
        float2 ml = piece_ml[at + (size_t)i * bm];
        float4 o = *(const float4 *)(piece_out + (at + (size_t)i * bm) * D + channel);
        float weight = ml.y > 0 ? exp2f(ml.x - m) : 0;
        l += weight * ml.y;
        sum.x += weight * o.x;
        sum.y += weight * o.y;
        sum.z += weight * o.z;
        sum.w += weight * o.w;
    }
    float inv = l > 0 ? 1 / l : 0;
    size_t to = (size_t)head * nq + row;
    float4 y = make_float4(sum.x * inv, sum.y * inv, sum.z * inv, sum.w * inv);
    *(uint2 *)(out + to * D + channel) = half
                                             ? make_uint2(pair_f16(y.x, y.y), pair_f16(y.z, y.w))
                                             : make_uint2(pack_pair(y.x, y.y), pack_pair(y.z, y.w));
    if (channel == 0)
        lse[to] = l > 0 ? (m + log2f(l)) * 0.69314718055994531f : -INFINITY;
}

/* Rows of tiles without a key. A block of 128 threads per row of tiles. */
__global__ void fill_empty(const int *rows, int bm, int q_blocks, int nq, int d, uint16_t *out,
                           float *lse)
{
    int head = rows[blockIdx.x] / q_blocks, block = rows[blockIdx.x] % q_blocks;
    for (int i = 0; i < bm && block * bm + i < nq; i++) {
        size_t at = (size_t)head * nq + block * bm + i;
        for (int c = threadIdx.x; c < d; c += blockDim.x)
            out[at * d + c] = 0;
        if (threadIdx.x == 0)
            lse[at] = -INFINITY;
    }
}

/* ---- table ---------------------------------------------------------------------------------- */

template <class T>
static constexpr attn_kernel entry(const char *name, const char *summary, attn_lists lists)
{
    return {name,
            summary,
            T::D,
            lists,
            {T::BM, T::BN, T::UNITS},
            !T::BYTES       ? ATTN_BF16
            : T::BY_CHANNEL ? ATTN_INT8
                            : ATTN_INT8_F16,
            90,
            1,
            T::THREADS,
            (int)sizeof(attn_smem<T>),
            attn_launch<T>};
}

#define HOPPER(shape, d, lists, suffix, summary)                                                   \
    entry<shape##d>("bf16-hd" #d "-" suffix, "head dim " #d ", " summary, lists)

#define HOPPER_ALL(d, dense_summary)                                                               \
    HOPPER(dense, d, ATTN_DENSE, "dense", dense_summary),                                          \
        HOPPER(list, d, ATTN_128x128, "128x128", "lists of 128 x 128 blocks"),                     \
        HOPPER(half, d, ATTN_128x64, "128x64", "lists of 128 x 64 blocks"),                        \
        HOPPER(pair, d, ATTN_64x64, "64x64", "lists of 64 x 64 blocks"),                           \
        HOPPER(bits, d, ATTN_BITS, "bits", "lists of 128 x 128 blocks with bits"),                 \
        HOPPER(gather, d, ATTN_GATHER, "gather", "lists of keys for 128 rows, with bits")

#define HOPPER_SLIM(d) HOPPER(slim, d, ATTN_64x32, "64x32", "lists of 64 x 32 blocks")

#define HALF(d, rows, threads)                                                                     \
    {                                                                                              \
        "f16-hd" #d "-dense", "head dim " #d ", dense, float16", d, ATTN_DENSE, {rows, 128, 1},    \
            ATTN_F16, 90, 1, threads, attn_half_smem(d), attn_half_launch##d                       \
    }

/* keys: see attn_args.h. */
#define PORTABLE(d, lists, rows, keys, element, prefix, suffix, summary)                           \
    {                                                                                              \
        prefix "hd" #d "-" suffix, "head dim " #d ", " summary ", mma.sync", d, lists,             \
            {rows,                                                                                 \
             keys > 2 ? keys                                                                       \
             : keys   ? 128                                                                        \
                      : 64,                                                                          \
             1},                                                                                   \
            element, 80, 1, 2 * rows, attn_portable_smem(d, rows),                                 \
            attn_portable_##rows##_##d##_##keys                                                    \
    }

#define PORTABLE_BF16(d, lists, rows, keys, suffix, summary)                                       \
    PORTABLE(d, lists, rows, keys, ATTN_BF16, "portable-", suffix, summary)

#define PORTABLE_ALL(d)                                                                            \
    PORTABLE_BF16(d, ATTN_DENSE, 128, 64, "dense", "dense"),                                       \
        PORTABLE_BF16(d, ATTN_128x128, 128, 128, "128x128", "lists of 128 x 128 blocks"),          \
        PORTABLE_BF16(d, ATTN_128x64, 128, 64, "128x64", "lists of 128 x 64 blocks"),              \
        PORTABLE_BF16(d, ATTN_64x64, 64, 64, "64x64", "lists of 64 x 64 blocks"),                  \
        PORTABLE_BF16(d, ATTN_BITS, 128, 1, "bits", "lists of 128 x 128 blocks with bits"),        \
        PORTABLE_BF16(d, ATTN_GATHER, 128, 2, "gather", "lists of keys for 128 rows, with bits")

const struct attn_kernel attn_kernels[] = {
    HOPPER_ALL(128, "dense, tiles 128 x 128"),
    HOPPER_SLIM(128),
    HOPPER_ALL(64, "dense, tiles 192 x 128"),
    HOPPER_SLIM(64),
    HOPPER_ALL(96, "dense, tiles 128 x 128"),
    HOPPER_ALL(192, "values of 128, dense, tiles 128 x 128"),
    HOPPER_ALL(256, "dense, tiles 128 x 64"),
    entry<dense8_128>("int8-hd128-dense", "head dim 128, dense, INT8 and e4m3, tiles 192 x 128",
                      ATTN_DENSE),
    entry<dense8_64>("int8-hd64-dense", "head dim 64, dense, INT8 and e4m3, tiles 256 x 128",
                     ATTN_DENSE),
    entry<dense8f_128>("int8-f16-hd128-dense",
                       "head dim 128, dense, INT8 and float16, tiles 192 x 128", ATTN_DENSE),
    entry<dense8f_64>("int8-f16-hd64-dense",
                      "head dim 64, dense, INT8 and float16, tiles 192 x 128", ATTN_DENSE),
    HALF(128, 128, 384),
    HALF(64, 192, 512),
    PORTABLE_ALL(128),
    PORTABLE_ALL(64),
    PORTABLE(128, ATTN_DENSE, 128, 0, ATTN_F16, "portable-f16-", "dense", "dense, float16"),
    PORTABLE(64, ATTN_DENSE, 128, 0, ATTN_F16, "portable-f16-", "dense", "dense, float16"),
    {},
};

static bool runs_on(const attn_kernel *k, int sm)
{
    return k->sm == 90 ? sm == 90 : sm >= k->sm;
}

static int find_kernel(const struct attn_problem *p, int sm, const char *name, int element,
                       const struct attn_kernel **out, struct err *err)
{
    if (sm < 80)
        return err_set(err, ERR_MACHINE,
                       "the attention kernels need a GPU of sm_80 or later, this one is sm_%d", sm);
    if (!(p->scale > 0))
        return err_set(err, ERR_RUN, "the attention kernels need a positive softmax scale");
    *out = NULL;
    for (const attn_kernel *k = attn_kernels; k->name; k++)
        if (k->d == p->d && k->lists == p->lists && runs_on(k, sm) &&
            (name ? strcmp(name, k->name) == 0 : k->element == element)) {
            *out = k;
            break;
        }
    if (*out)
        return 0;
    return err_set(err, ERR_RUN, "no CUDA kernel%s%s for head dim %d on sm_%d", name ? " " : "",
                   name ? name : "", p->d, sm);
}

int attn_kernel_find(const struct attn_problem *p, int sm, const char *name,
                     const struct attn_kernel **out, struct err *err)
{
    return find_kernel(p, sm, name, ATTN_BF16, out, err);
}

int attn_kernel_for(const struct attn_problem *p, int sm, enum attn_element element,
                    const struct attn_kernel **out, struct err *err)
{
    return find_kernel(p, sm, NULL, element, out, err);
}

/* ---- jobs ----------------------------------------------------------------------------------- */

static int make_maps(struct attn_job *job, struct err *err)
{
    const attn_problem *p = &job->problem;
    const attn_tile *t = &job->kernel->tile;
    int unit = t->bn / t->units, block = attn_block_keys(p->lists, t);
    enum attn_element element = job->kernel->element;
    bool bytes = element == ATTN_INT8 || element == ATTN_INT8_F16; /* two are a word of a map */
    int words = bytes ? p->d / 2 : p->d;
    const int channels[3] = {unit / 2, p->d, 1}; /* values of 8 bits: all channels of a unit */
    attn_maps *m = (attn_maps *)aligned_alloc(128, sizeof *m);

    job->maps = m;
    if (!m)
        return err_set(err, ERR_NOMEM, "tensor maps: out of memory");
    memset(m, 0, sizeof *m);
    PASS_ON(tensor_map(&m->q, job->x.q, words, p->nq, p->heads, t->bm, err));
    PASS_ON(tensor_map(&m->o, job->x.out, attn_dv(p->d), p->nq, p->heads, OUT_ROWS, err));
    for (int i = 0; i < BOX_HEIGHTS && unit << i <= block; i++) {
        PASS_ON(tensor_map(m->k + i, job->x.k, words, p->nk, p->kv_heads, unit << i, err));
        if (element == ATTN_INT8)
            PASS_ON(tensor_map_boxes(m->v + i, job->x.v, ceil_div(p->nk, 128) * 64, p->d,
                                     p->kv_heads, channels, err));
        else
            PASS_ON(
                tensor_map(m->v + i, job->x.v, attn_dv(p->d), p->nk, p->kv_heads, unit << i, err));
    }
    return 0;
}

/* The portable kernels take the tensors as they are. */
static int keep_tensors(struct attn_job *job, struct err *err)
{
    PASS_ON(mem_alloc(&job->maps, 1, sizeof job->x, "kernel arguments", err));
    memcpy(job->maps, &job->x, sizeof job->x);
    return 0;
}

/* Items and lists of the plan, uploaded unless they are on the device. */
static int put_lists(struct gpu *g, const struct attn_plan *plan, const struct attn_job *job,
                     attn_args *a, struct err *err)
{
    const struct attn_csr *l = &plan->lists;
    const struct attn_device_plan *d = &plan->device;
    enum attn_lists lists = job->problem.lists;
    if (lists == ATTN_GATHER)
        a->v = job->x.v;
    if (d->items) {
        a->items = (const int4 *)d->items;
        a->cols = (const int32_t *)d->cols;
        a->bits = (const int32_t *)d->bits;
        a->words = (const uint64_t *)d->words;
        a->keys = (const int32_t *)d->keys;
        return 0;
    }
    PASS_ON(gpu_upload(g, plan->items, plan->n_items * (int64_t)sizeof(int4), &a->items, err));
    if (plan->cols)
        PASS_ON(gpu_upload(g, plan->cols, plan->n_cols * 4, &a->cols, err));
    if (lists == ATTN_BITS || lists == ATTN_GATHER) {
        PASS_ON(gpu_upload(g, l->bits, plan->blocks * 4, &a->bits, err));
        PASS_ON(gpu_upload(g, l->words, l->n_bits * 2048, &a->words, err));
    }
    if (lists == ATTN_GATHER)
        return gpu_upload(g, l->keys, plan->blocks * 512, &a->keys, err);
    return 0;
}

static int make_args(struct gpu *g, const struct attn_plan *plan, struct attn_job *job,
                     struct err *err)
{
    const attn_problem *p = &job->problem;
    int64_t slot_rows = (int64_t)plan->n_slots * plan->tile.bm;
    attn_args *a = NULL;

    PASS_ON(mem_zalloc(&a, 1, sizeof *a, "kernel arguments", err));
    job->args = a;
    PASS_ON(put_lists(g, plan, job, a, err));
    PASS_ON(gpu_alloc(g, 256, &a->ticket, err));
    PASS_ON(gpu_zero(g, a->ticket, 256, err));
    PASS_ON(gpu_alloc(g, slot_rows * attn_dv(p->d) * 4, &a->piece_out, err));
    PASS_ON(gpu_alloc(g, slot_rows * 8, &a->piece_ml, err));
    a->lse = job->x.lse;
    a->q = job->x.q;
    a->k = job->x.k;
    a->n_items = plan->n_items;
    a->nq = (int)p->nq;
    a->nk = (int)p->nk;
    a->q_blocks = plan->q_blocks;
    a->group = p->heads / p->kv_heads;
    a->causal = p->causal;
    a->offset = (int)(p->nk - p->nq);
    a->masked_units = plan->masked_units;
    a->scale_log2 = (float)(p->scale * M_LOG2E);
    a->grow = 8 / a->scale_log2;
    return 0;
}

int attn_job_init(struct gpu *g, const struct attn_problem *p, const struct attn_kernel *kernel,
                  const struct attn_plan *plan, const struct attn_tensors *x, struct attn_job *job,
                  struct err *err)
{
    int rc = 0;

    memset(job, 0, sizeof *job);
    job->kernel = kernel;
    job->problem = *p;
    job->x = *x;
    job->grid = plan->n_items < g->sms ? plan->n_items : g->sms;
    job->n_splits = plan->n_splits;
    job->n_empty = plan->n_empty;
    if (kernel->sm == 90)
        TRY(make_maps(job, err));
    else
        TRY(keep_tensors(job, err));
    TRY(make_args(g, plan, job, err));
    job->splits = plan->device.splits;
    job->empty = plan->device.empty;
    if (!plan->device.items) {
        TRY(gpu_upload(g, plan->splits, plan->n_splits * (int64_t)sizeof(int3), &job->splits, err));
        TRY(gpu_upload(g, plan->empty, plan->n_empty * 4LL, &job->empty, err));
    }
    TRY(gpu_sync(g, err));
out:
    if (rc)
        attn_job_free(job);
    return rc;
}

int attn_job_launch(struct gpu *g, const struct attn_job *job, struct err *err)
{
    const attn_args *a = (const attn_args *)job->args;
    uint16_t *out = (uint16_t *)job->x.out;
    bool half = job->kernel->element == ATTN_F16;
    int bm = job->kernel->tile.bm, d = attn_dv(job->problem.d);

    if (job->grid)
        job->kernel->launch(job->grid, g->stream, job->maps, job->args);
    PASS_ON_LAUNCH(err);
    if (job->n_splits) {
        auto combine = BY_HEAD_DIM(d, combine_pieces);
        dim3 grid(job->n_splits, bm * d / (4 * COMBINE_THREADS));
        combine<<<grid, COMBINE_THREADS, 0, g->stream>>>((const int3 *)job->splits, a->piece_out,
                                                         a->piece_ml, bm, a->q_blocks, a->nq, half,
                                                         out, a->lse);
        PASS_ON_LAUNCH(err);
    }
    if (job->n_empty) {
        fill_empty<<<job->n_empty, 128, 0, g->stream>>>((const int *)job->empty, bm, a->q_blocks,
                                                        a->nq, d, out, a->lse);
        return LAUNCH_STATUS(err);
    }
    return 0;
}

void attn_job_free(struct attn_job *job)
{
    free(job->args);
    free(job->maps);
    memset(job, 0, sizeof *job);
}
