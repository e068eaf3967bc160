/*
 * benchcu_filter.c - lines of benchcu for the kernels that skip P V.
 */
#include "core/mem.h"
#include "core/rng.h"
#include "cuda/own/own.h"
#include "tests/bench/benchcu.h"

#include <math.h>
#include <stdlib.h>

/* Random lists of all heads, in blocks of bq x bk. */
static int random_lists(const struct attn_problem *p, double density, int64_t **ptr, int32_t **col,
                        struct err *err)
{
    int64_t rows = p->heads * (p->nq / attn_block_rows(p->lists, NULL)), at = 0;
    int64_t blocks = p->nk / attn_block_keys(p->lists, NULL);
    PASS_ON(mem_alloc(ptr, rows + 1, sizeof **ptr, "lists", err));
    PASS_ON(mem_alloc(col, rows * blocks, sizeof **col, "lists", err));
    for (int64_t r = 0; r < rows; r++) {
        (*ptr)[r] = at;
        for (int64_t j = 0; j < blocks; j++)
            if (rng_uniform(3, (uint64_t)r, (uint64_t)j) < density)
                (*col)[at++] = (int32_t)j;
    }
    (*ptr)[rows] = at;
    return 0;
}

/* Dense attention in the arithmetic of the kernel. */
static int dense_beside(struct bench *b, const struct filter_kernel *k, struct attn_problem p,
                        const struct attn_tensors *x, const struct own_operands *ops,
                        struct attn_job *job, struct err *err)
{
    const struct attn_kernel *dense = NULL;
    OWN(attn_plan_free) struct attn_plan plan = {0};
    p.lists = ATTN_DENSE;
    PASS_ON(attn_kernel_for(&p, b->gpu.sm, k->kernel.element, &dense, err));
    PASS_ON(attn_plan_make(&p, &dense->tile, NULL, b->gpu.sms, &plan, err));
    if (ops)
        return attn8_job_init(&b->gpu, &p, dense, &plan, &ops->x, &ops->scales, job, err);
    return attn_job_init(&b->gpu, &p, dense, &plan, x, job, err);
}

/* Random data: no score stands out, so that a row's maximum settles, and at a distance of 0 more
 * and more tiles are skipped as a list goes on; at -1, which no method has, soon nearly all; at 16
 * none is, but every one is asked about. */
static int filter_line(struct bench *b, const struct filter_kernel *k, double density, double pv,
                       struct err *err)
{
    struct cu_case c = bench_case(k->kernel.d, 32768, 16, 16, false, ATTN_DENSE, NULL);
    struct cu_run r = {0};
    struct attn_job job = {0}, dense = {0};
    struct series product[2], times[2];
    struct attn_plan plan = {0};
    struct own_operands ops = {0};
    struct work_counts w;
    bool bytes = k->kernel.element != ATTN_BF16;
    int64_t *ptr = NULL;
    int32_t *col = NULL;
    double tiles[16] = {0}, pv_tiles = 0;
    char text[96];
    int rc = 0;

    snprintf(text, sizeof text, "%s 32K %g%% pv=%g", k->kernel.name, 100 * density, pv);
    if (!bench_is_wanted(b, text, ""))
        return 0;
    TRY(cu_run_init(&b->gpu, &c, &r, err));
    c.problem.lists = k->kernel.lists;
    struct accel_filter f = cu_filter(k, pv);
    f.tail = 1;
    TRY(random_lists(&c.problem, density, &ptr, &col, err));
    struct attn_csr csr = {.ptr = ptr, .col = col};
    TRY(filter_plan_make(&c.problem, k, &csr, f.tail, b->gpu.sms, &plan, err));
    if (bytes) {
        TRY(own_operands_init(&b->gpu, &c.problem, &f.quant, &r.job.x, &ops, err));
        TRY(own_operands_make(&b->gpu, &ops, err));
    }
    TRY(filter_job_init(&b->gpu, &c.problem, k, &plan, &f, 1, bytes ? &ops.x : &r.job.x,
                        bytes ? &ops.scales : NULL, &job, err));
    TRY(dense_beside(b, k, c.problem, &r.job.x, bytes ? &ops : NULL, &dense, err));
    struct work works[2] = {{bench_launch_attn, &job, 1}, {bench_launch_attn, &dense, 1}};
    TRY(bench_warm_up(b, works, 0.3, err));
    TRY(bench_turns(b, works, 2, product, times, err));
    TRY(attn_job_launch(&b->gpu, &job, err));
    if (k->skips)
        TRY(filter_tiles(&b->gpu, &job, k, tiles, err));
    for (int h = 0; h < 16; h++)
        pv_tiles += tiles[h];
    if (!k->skips)
        pv_tiles = (double)plan.blocks;
    double flop = 2.0 * k->kernel.d * (double)(f.bq * f.bk) * ((double)plan.blocks + pv_tiles);
    TRY(bench_work(&c.problem, &k->kernel.tile, ptr, col, NULL, &w, err));
    bench_raw(b, "matmul", product, CEILING_FLOP);
    bench_raw_attn(b, text, k->kernel.name, &w, times, flop);
    struct quartiles m = quartiles_of(product->ns, product->n),
                     q = quartiles_of(times->ns, times->n);
    double top = CEILING_FLOP / m.median * 1e-3, got = flop / q.median * 1e-3;
    printf("%-44s P V %5.1f%% %10.1f us %5.1f%% %7.1f %7.1f %6.3f of dense %5.3f\n", text,
           100 * pv_tiles / (double)plan.blocks, q.median * 1e-3, 100 * (q.q3 - q.q1) / q.median,
           got, top, got / top, bench_rate_over(times, flop, times + 1, cu_flop_dense(&c.problem)));
    fflush(stdout);
    b->lines++;
out:
    attn_job_free(&job);
    attn_job_free(&dense);
    own_operands_free(&ops);
    attn_plan_free(&plan);
    cu_run_free(&b->gpu, &r);
    free(ptr);
    free(col);
    return rc < 0 ? err_prefix(err, "%s", text) : rc;
}

int bench_filters(struct bench *b, struct err *err)
{
    static const double densities[] = {1, 0.5, 0.25, 0.125}, distances[] = {INFINITY, 16, 0, -1};
    for (const struct filter_kernel *k = filter_kernels; k->kernel.name; k++)
        for (int i = 0; i < 16 && (k->scope > 16 || b->all); i += k->skips ? 1 : 4)
            PASS_ON(filter_line(b, k, densities[i / 4], distances[i % 4], err));
    return 0;
}
