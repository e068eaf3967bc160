/*
 * attn_filter.cu - the table of the kernels of attn_filter.cuh, and their counts of computed tiles.
 */
#include "cuda/attn/attn.h"

#include "cuda/attn/attn8_shape.cuh"
#include "cuda/attn/filter_shape.cuh"
#include "core/intmath.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCOPES 4 /* of a warpgroup, at most */

template <class T, int SCOPE>
static constexpr filter_kernel entry(const char *name, const char *summary)
{
    attn_lists lists = T::BLOCK == 128 ? ATTN_64x128 : T::BLOCK == 64 ? ATTN_128x64 : ATTN_64x32;
    attn_tile tile = {T::BM, T::BN, T::UNITS};
    attn_element element = !T::BYTES ? ATTN_BF16 : T::BY_CHANNEL ? ATTN_INT8 : ATTN_INT8_F16;
    return {{name, summary, T::D, lists, tile, element, 90, T::TEAMS, T::THREADS,
             T::TEAMS * (int)sizeof(attn_smem<T>), filter_launch<T, SCOPE>},
            SCOPE,
            T::SKIPS};
}

#define KERNEL(d, shape, lists, scope, name, suffix, text, by)                                     \
    entry<shape, scope>(name "-hd" #d "-" lists suffix,                                            \
                        "head dim " #d ", " text "tiles " lists " skip P V" by)

/* The kernels of a shape in each arithmetic, of `bytes` with values in e4m3. */
#define KERNELS(d, shape, bytes, lists, scope, suffix, by)                                         \
    KERNEL(d, filter##d##_##shape, lists, scope, "filter", suffix, "", by),                        \
        KERNEL(d, filter8_##d##_##bytes, lists, scope, "filter-int8", suffix, "INT8 and e4m3, ",   \
               by),                                                                                \
        KERNEL(d, filter8f_##d##_##bytes, lists, scope, "filter-int8-f16", suffix,                 \
               "INT8 and float16, ", by)
#define WIDE(d, scope, suffix, by) KERNELS(d, wide, wide, "64x128", scope, suffix, by)
#define TALL(d, scope, bytes, suffix, by) KERNELS(d, tall, bytes, "128x64", scope, suffix, by)
#define LIST(d, shape, name, lists, text)                                                          \
    entry<shape, 64>(name "-hd" #d "-" lists, "head dim " #d ", " text ", lists of " lists)
#define LISTS(d, tall)                                                                             \
    LIST(d, list8_##d##_wide, "int8", "64x128", "INT8 and e4m3"),                                  \
        LIST(d, list8_##d##_##tall, "int8", "128x64", "INT8 and e4m3"),                            \
        LIST(d, list8f_##d##_wide, "int8-f16", "64x128", "INT8 and float16"),                      \
        LIST(d, list8f_##d##_##tall, "int8-f16", "128x64", "INT8 and float16"),                    \
        LIST(d, list8f_##d##_slim, "int8-f16", "64x32", "INT8 and float16")

/* The first that fits a filter is taken. */
const struct filter_kernel filter_kernels[] = {
    LISTS(128, half),
    LISTS(64, tall),
    WIDE(128, 64, "", ""),
    WIDE(128, 16, "-warp", " by 16 rows"),
    TALL(128, 128, tall, "", ""),
    TALL(128, 32, half, "-pair", " by 32 rows"),
    TALL(128, 16, half, "-warp", " by 16 rows"),
    WIDE(64, 64, "", ""),
    WIDE(64, 16, "-warp", " by 16 rows"),
    TALL(64, 128, tall, "", ""),
    TALL(64, 32, tall, "-pair", " by 32 rows"),
    {},
};

/* In the filter's arithmetic? */
static bool multiplies(const struct attn_kernel *k, const struct own_quantised *quant)
{
    return quant->levels ? attn8_takes(quant, k->element, attn_block_keys(k->lists, NULL))
                         : k->element == ATTN_BF16;
}

const struct filter_kernel *filter_kernel_find(int d, int sm, const struct accel_filter *f,
                                               char why[160])
{
    if (sm != 90) {
        snprintf(why, 160,
                 "kernels for a filter on P V need a Hopper GPU (sm_90), this one is sm_%d", sm);
        return NULL;
    }
    for (const filter_kernel *k = filter_kernels; k->kernel.name; k++)
        if (k->kernel.d == d && (k->skips ? k->scope == f->scope : f->pv == INFINITY) &&
            multiplies(&k->kernel, &f->quant) && attn_block_rows(k->kernel.lists, NULL) == f->bq &&
            attn_block_keys(k->kernel.lists, NULL) == f->bk)
            return k;
    snprintf(why, 160, "no CUDA kernel has P V of %lld x %lld tiles by %lld rows, head dim %d%s",
             (long long)f->bq, (long long)f->bk, (long long)f->scope, d,
             f->quant.levels ? ", in this integer arithmetic" : "");
    return NULL;
}

int filter_plan_make(const struct attn_problem *p, const struct filter_kernel *kernel,
                     const struct attn_csr *csr, int tail, int sms, struct attn_plan *plan,
                     struct err *err)
{
    const attn_kernel *k = &kernel->kernel;
    if (!kernel->skips)
        return attn_plan_make(p, &k->tile, csr, sms * k->teams, plan, err);
    return attn_plan_filtered(p, &k->tile, csr, tail, sms * k->teams, plan, err);
}

/* Groups of 64 rows, which have counts of their own. */
static int64_t counted(const struct attn_problem *p, const struct attn_kernel *k, int64_t q_blocks)
{
    return p->heads * q_blocks * (k->tile.bm / 64);
}

/* Counts, zero where no thread block comes by. */
static int init_args(struct gpu *g, const struct accel_filter *f, int n, int heads, int64_t groups,
                     struct attn_job *job, struct err *err)
{
    int64_t bytes = groups * SCOPES * 4;
    filter_args *a = (filter_args *)realloc(job->args, sizeof *a);
    OWN(free_at) float *gap = (float *)malloc((size_t)heads * sizeof *gap);

    job->args = a ? a : job->args;
    if (!a || !gap)
        return err_set(err, ERR_NOMEM, "kernel arguments: out of memory");
    for (int h = 0; h < heads; h++)
        gap[h] = (float)(f[h % n].pv / (double)a->base.scale_log2);
    PASS_ON(gpu_upload(g, gap, heads * 4LL, &a->gap, err));
    a->keep_sum = f->keep_denominator;
    PASS_ON(gpu_alloc(g, bytes, &a->computed, err));
    return gpu_zero(g, a->computed, bytes, err);
}

int filter_job_init(struct gpu *g, const struct attn_problem *p, const struct filter_kernel *kernel,
                    const struct attn_plan *plan, const struct accel_filter *f, int n,
                    const struct attn_tensors *x, const struct attn8_scales *scales,
                    struct attn_job *job, struct err *err)
{
    int rc = 0;
    if (scales)
        TRY(attn8_job_init(g, p, &kernel->kernel, plan, x, scales, job, err));
    else
        TRY(attn_job_init(g, p, &kernel->kernel, plan, x, job, err));
    TRY(init_args(g, f, n, p->heads, counted(p, &kernel->kernel, plan->q_blocks), job, err));
out:
    if (rc)
        attn_job_free(job);
    return rc;
}

/* Tiles of one list: of `rows` rows, whose counts begin at c. */
static double tiles_of_list(const unsigned *c, int64_t rows, int scope)
{
    double sum = 0;
    for (int64_t i = 0; i < (rows + 63) / 64 * SCOPES; i++)
        sum += c[i];
    return sum / (double)((rows + scope - 1) / scope);
}

int filter_tiles(struct gpu *g, const struct attn_job *job, const struct filter_kernel *kernel,
                 double *tiles, struct err *err)
{
    const struct attn_problem *p = &job->problem;
    const filter_args *a = (const filter_args *)job->args;
    int64_t groups = counted(p, &kernel->kernel, a->base.q_blocks), n = groups * SCOPES;
    int bq = attn_block_rows(p->lists, NULL);
    OWN(free_at) unsigned *computed = NULL;

    PASS_ON(mem_alloc(&computed, n, sizeof *computed, "counts of tiles", err));
    PASS_ON(gpu_get(g, computed, a->computed, n * (int64_t)sizeof *computed, err));
    for (int h = 0; h < p->heads; h++) {
        tiles[h] = 0;
        for (int64_t row0 = 0; row0 < p->nq; row0 += bq)
            tiles[h] += tiles_of_list(computed + (h * groups / p->heads + row0 / 64) * SCOPES,
                                      MIN(bq, p->nq - row0), kernel->scope);
    }
    return 0;
}
