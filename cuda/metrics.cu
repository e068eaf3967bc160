/*
 * metrics.cu - launches of the metrics of a head: dense reference, second pass, errors (metrics.h).
 */
#include "cuda/metrics.h"

#include "cuda/metrics_sm90.cuh"
#include "cuda/tensormap.h"

extern "C" {
#include "core/mem.h"
}
#include "cuda/attn_args.h"

#include <cuda_bf16.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int put(struct gpu *g, const void *src, int64_t bytes, void *dst, struct err *err)
{
    int rc = gpu_alloc(g, bytes, dst, err);
    return rc ? rc : gpu_put(g, *(void **)dst, src, bytes, err);
}

/* ---- dense reference ------------------------------------------------------------------------ */

/* Pieces of a row become O = sum_i 2^(m_i - m) O_i / sum_i 2^(m_i - m) l_i in fp32, the natural
 * LSE, and the normaliser: b = LSE in base 2, rounded, and 2^(b - LSE). A warp per row. */
template <int D>
__global__ void finish_reference(const int2 *rows, const float *piece_out, const float2 *piece_ml,
                                 int bm, int nq, float *out, double *lse, float2 *norm)
{
    int row = blockIdx.x * 8 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    if (row >= nq)
        return;
    int2 slots = rows[row / bm];
    size_t at = (size_t)slots.x * bm + row % bm;
    float m = -INFINITY, l = 0, o[D / 32] = {};

    for (int i = 0; i < slots.y; i++) {
        float2 ml = piece_ml[at + (size_t)i * bm];
        if (ml.y > 0)
            m = fmaxf(m, ml.x);
    }
    for (int i = 0; i < slots.y; i++) {
        float2 ml = piece_ml[at + (size_t)i * bm];
        float weight = ml.y > 0 ? exp2f(ml.x - m) : 0;
        l += weight * ml.y;
        for (int c = 0; c < D / 32; c++)
            o[c] += weight * piece_out[(at + (size_t)i * bm) * D + lane + 32 * c];
    }
    for (int c = 0; c < D / 32; c++)
        out[(size_t)row * D + lane + 32 * c] = l > 0 ? o[c] / l : 0;
    if (lane)
        return;
    double exact = (double)m + log2((double)l);
    float b = (float)exact;
    lse[row] = l > 0 ? exact * 0.693147180559945309417 : -INFINITY;
    norm[row] = l > 0 ? make_float2(b, (float)exp2((double)b - exact)) : make_float2(INFINITY, 0);
}

/* Every row of tiles gets slots of its own, so that its outputs stay in fp32. */
static int slots_for_all(struct attn_plan *plan, int2 **rows, struct err *err)
{
    int rc = mem_zalloc(rows, plan->q_blocks, sizeof **rows, "slots of rows", err);
    if (rc)
        return rc;
    for (int32_t i = 0; i < plan->n_splits; i++)
        (*rows)[plan->splits[i].row] = make_int2(plan->splits[i].slot, plan->splits[i].n);
    for (int32_t i = 0; i < plan->n_items; i++)
        if (plan->items[i].slot < 0) {
            plan->items[i].slot = plan->n_slots++;
            (*rows)[plan->items[i].row] = make_int2(plan->items[i].slot, 1);
        }
    plan->n_splits = plan->n_empty = 0;
    return 0;
}

extern "C" int metrics_ref_init(struct gpu *g, const struct attn_problem *p,
                                const struct attn_tensors *x, struct metrics_ref *r,
                                struct err *err)
{
    int rc = 0;
    struct attn_plan plan = {};
    const struct attn_kernel *k = NULL;
    int2 *rows = NULL;

    memset(r, 0, sizeof *r);
    TRY(attn_kernel_find(p, g->sm, NULL, &k, err));
    TRY(attn_plan_make(p, &k->tile, NULL, g->sms, true, &plan, err));
    TRY(slots_for_all(&plan, &rows, err));
    TRY(attn_job_init(g, p, k, &plan, x, &r->job, err));
    TRY(put(g, rows, plan.q_blocks * (int64_t)sizeof *rows, &r->rows, err));
    TRY(gpu_alloc(g, p->nq * p->d * 4, &r->out, err));
    TRY(gpu_alloc(g, p->nq * 8, &r->lse, err));
    TRY(gpu_alloc(g, p->nq * 8, &r->norm, err));
    TRY(gpu_sync(g, err));
out:
    free(rows);
    attn_plan_free(&plan);
    if (rc)
        metrics_ref_free(r);
    return rc;
}

extern "C" int metrics_ref_launch(struct gpu *g, const struct metrics_ref *r, struct err *err)
{
    int rc = 0;
    const attn_args *a = (const attn_args *)r->job.args;
    int bm = r->job.kernel->tile.bm, d = r->job.problem.d;
    int nq = (int)r->job.problem.nq;
    unsigned blocks = ((unsigned)nq + 7) / 8;

    TRY(attn_job_launch(g, &r->job, err));
    if (d == 128)
        finish_reference<128><<<blocks, 256, 0, g->stream>>>((const int2 *)r->rows, a->piece_out,
                                                             a->piece_ml, bm, nq, r->out, r->lse,
                                                             (float2 *)r->norm);
    else
        finish_reference<64><<<blocks, 256, 0, g->stream>>>((const int2 *)r->rows, a->piece_out,
                                                            a->piece_ml, bm, nq, r->out, r->lse,
                                                            (float2 *)r->norm);
    CU_LAUNCHED(err);
out:
    return rc;
}

extern "C" void metrics_ref_free(struct metrics_ref *r)
{
    attn_job_free(&r->job);
    memset(r, 0, sizeof *r);
}

/* ---- second pass ---------------------------------------------------------------------------- */

struct pass_kernel {
    int d, n_c, smem;
    const void *entry;
    void (*launch)(int grid, cudaStream_t stream, const CUtensorMap *maps, const metrics_args *a);
};

template <class T>
static void launch(int grid, cudaStream_t stream, const CUtensorMap *maps, const metrics_args *a)
{
    metrics_sm90<T><<<grid, T::THREADS, sizeof(metrics_smem<T>), stream>>>(maps[0], maps[1], *a);
}

template <class T> static constexpr pass_kernel entry()
{
    return {T::D, T::NC, (int)sizeof(metrics_smem<T>), (const void *)metrics_sm90<T>, launch<T>};
}

static const pass_kernel pass_kernels[] = {
    entry<metrics_shape<128, 0>>(), entry<metrics_shape<128, 1>>(), entry<metrics_shape<128, 8>>(),
    entry<metrics_shape<64, 0>>(),  entry<metrics_shape<64, 1>>(),  entry<metrics_shape<64, 8>>(),
};

/* The smallest one that counts as many thresholds. */
static const pass_kernel *pass_kernel_of(const struct metrics_pass *pass)
{
    for (const pass_kernel &k : pass_kernels)
        if (k.d == pass->problem.d && k.n_c >= pass->n_c)
            return &k;
    return NULL;
}

static int check_pass(struct gpu *g, const struct metrics_pass *pass, struct err *err)
{
    if (g->sm != 90)
        return err_set(err, ERR_MACHINE,
                       "the metrics kernels need a Hopper GPU (sm_90), this one is sm_%d", g->sm);
    if (!pass_kernel_of(pass))
        return err_set(err, ERR_RUN, "no CUDA metrics kernel for head dim %d and %d thresholds",
                       pass->problem.d, pass->n_c);
    return 0;
}

static int alloc_results(struct gpu *g, bool cells, struct metrics_pass *pass, metrics_args *a,
                         struct err *err)
{
    int rc = 0;
    int64_t n = (pass->problem.nq + METRICS_CELL - 1) / METRICS_CELL;
    a->cells = (int)((pass->problem.nk + METRICS_CELL - 1) / METRICS_CELL);
    TRY(gpu_alloc(g, pass->n_items * (int64_t)METRICS_BM * 8, &pass->parts, err));
    TRY(gpu_alloc(g, sizeof(metrics_counts), &pass->counts, err));
    if (cells) {
        TRY(gpu_alloc(g, n * a->cells * 4, &pass->cell_sum, err));
        TRY(gpu_alloc(g, n * a->cells * 4, &pass->cell_max, err));
    }
    a->parts = (float2 *)pass->parts;
    a->counts = (metrics_counts *)pass->counts;
    a->cell_sum = pass->cell_sum;
    a->cell_max = pass->cell_max;
out:
    return rc;
}

static int upload_plan(struct gpu *g, const struct metrics_plan *plan, struct metrics_pass *pass,
                       metrics_args *a, struct err *err)
{
    int rc = 0;
    pass->n_items = a->n_items = plan->n_items;
    pass->grid = plan->n_items < g->sms ? plan->n_items : g->sms;
    TRY(mem_alloc(&pass->item_rows, plan->n_items, sizeof(int32_t), "work items", err));
    for (int32_t i = 0; i < plan->n_items; i++)
        pass->item_rows[i] = plan->items[i].row;
    TRY(put(g, plan->items, plan->n_items * (int64_t)sizeof *plan->items, &a->items, err));
    if (plan->tiles)
        TRY(put(g, plan->tiles, plan->n_tiles * 4, &a->tiles, err));
    TRY(gpu_alloc(g, 256, &a->ticket, err));
    TRY(gpu_zero(g, a->ticket, 256, err));
    TRY(gpu_sync(g, err));
out:
    return rc;
}

static int pass_args(struct metrics_pass *pass, const struct metrics_ref *ref, const double *c,
                     metrics_args **out, struct err *err)
{
    const struct attn_problem *p = &pass->problem;
    metrics_args *a = (metrics_args *)calloc(1, sizeof *a);
    if (!a)
        return err_set(err, ERR_NOMEM, "kernel arguments: out of memory");
    pass->args = a;
    a->norm = (const float2 *)ref->norm;
    a->nq = (int)p->nq;
    a->nk = (int)p->nk;
    a->causal = p->causal;
    a->offset = (int)(p->nk - p->nq);
    a->scale_log2 = (float)(p->scale * M_LOG2E);
    for (int i = 0; i < METRICS_C; i++)
        a->below[i] = i < pass->n_c ? (float)(c[i] / (double)p->nk) : 0;
    *out = a;
    return 0;
}

extern "C" int metrics_pass_init(struct gpu *g, const struct attn_problem *p,
                                 const struct attn_tensors *x, const struct metrics_ref *ref,
                                 const struct metrics_mask *mask, const double *c, int n_c,
                                 bool cells, struct metrics_pass *pass, struct err *err)
{
    int rc = 0;
    struct metrics_plan plan = {};
    metrics_args *a = NULL;
    CUtensorMap *maps = NULL;

    memset(pass, 0, sizeof *pass);
    pass->problem = *p;
    pass->n_c = cells && n_c == 0 ? 1 : n_c;
    TRY(check_pass(g, pass, err));
    TRY(metrics_plan_make(p, mask, pass->n_c > 0, g->sms, &plan, err));
    TRY(pass_args(pass, ref, c, &a, err));
    if (cells && n_c == 0)
        a->below[0] = 0;
    TRY(upload_plan(g, &plan, pass, a, err));
    TRY(alloc_results(g, cells, pass, a, err));
    pass->maps = aligned_alloc(128, 2 * sizeof *maps);
    if (!pass->maps)
        FAIL(err, ERR_NOMEM, "tensor maps: out of memory");
    maps = (CUtensorMap *)pass->maps;
    TRY(tensor_map(maps, x->q, p->d, p->nq, 1, METRICS_BM, err));
    TRY(tensor_map(maps + 1, x->k, p->d, p->nk, 1, METRICS_BN, err));
    CU(err, cudaFuncSetAttribute(pass_kernel_of(pass)->entry,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 pass_kernel_of(pass)->smem));
out:
    metrics_plan_free(&plan);
    if (rc)
        metrics_pass_free(pass);
    return rc;
}

extern "C" int metrics_pass_launch(struct gpu *g, const struct metrics_pass *pass, struct err *err)
{
    const metrics_args *a = (const metrics_args *)pass->args;
    int64_t n = (pass->problem.nq + METRICS_CELL - 1) / METRICS_CELL * a->cells;
    int rc = 0;

    if (pass->n_c)
        TRY(gpu_zero(g, pass->counts, sizeof(metrics_counts), err));
    if (pass->cell_sum) { /* cells that causality leaves out */
        TRY(gpu_zero(g, pass->cell_sum, n * 4, err));
        TRY(gpu_zero(g, pass->cell_max, n * 4, err));
    }
    if (pass->grid)
        pass_kernel_of(pass)->launch(pass->grid, g->stream, (const CUtensorMap *)pass->maps, a);
    CU_LAUNCHED(err);
out:
    return rc;
}

extern "C" void metrics_pass_free(struct metrics_pass *pass)
{
    free(pass->item_rows);
    free(pass->args);
    free(pass->maps);
    memset(pass, 0, sizeof *pass);
}

extern "C" int metrics_pass_mass(struct gpu *g, const struct metrics_pass *pass, double *sum,
                                 double *mass, struct err *err)
{
    int rc = 0;
    int64_t nq = pass->problem.nq;
    float2 *parts = NULL;

    TRY(mem_alloc(&parts, pass->n_items * (int64_t)METRICS_BM, sizeof *parts, "mass of rows", err));
    TRY(gpu_get(g, parts, pass->parts, pass->n_items * (int64_t)METRICS_BM * (int64_t)sizeof *parts,
                err));
    for (int64_t i = 0; i < nq; i++) {
        if (sum)
            sum[i] = 0;
        if (mass)
            mass[i] = 0;
    }
    for (int64_t k = 0; k < pass->n_items * (int64_t)METRICS_BM; k++) {
        int64_t row = pass->item_rows[k / METRICS_BM] * (int64_t)METRICS_BM + k % METRICS_BM;
        if (row >= nq)
            continue;
        if (sum)
            sum[row] += parts[k].x;
        if (mass)
            mass[row] += parts[k].y;
    }
out:
    free(parts);
    return rc;
}

/* Allowed pairs of a unit that no edge cuts. */
static int64_t whole_pairs(int unit)
{
    static const int64_t pairs[] = {256, 1024, 4096, 16384, 16, 64, 128};
    return pairs[unit];
}

extern "C" int metrics_pass_below(struct gpu *g, const struct metrics_pass *pass,
                                  struct metrics_below *out, struct err *err)
{
    metrics_counts n = {};
    int rc = 0;
    float top;

    memset(out, 0, sizeof *out);
    TRY(gpu_get(g, &n, pass->counts, sizeof n, err));
    for (int u = 0; u < ACCEL_UNITS; u++)
        for (int c = 0; c < pass->n_c; c++) {
            out->units[u][c] = (int64_t)(n.whole[u][c] + n.part[u][c]);
            out->pairs[u][c] =
                (int64_t)n.whole[u][c] * whole_pairs(u) + (int64_t)n.part_pairs[u][c];
        }
    memcpy(&top, &n.p_max, sizeof top);
    out->p_max = top;
out:
    return rc;
}

/* Cells of 64 of one row of the maps into the larger cells of theirs. */
static void fold_row(const float *sum, const float *max, int64_t cells, int64_t by, double *to_sum,
                     float *to_max)
{
    for (int64_t c = 0; c < cells; c++) {
        to_sum[c / by] += sum[c];
        to_max[c / by] = max[c] > to_max[c / by] ? max[c] : to_max[c / by];
    }
}

extern "C" int metrics_pass_cells(struct gpu *g, const struct metrics_pass *pass, int64_t pool,
                                  float *sum, float *max, struct err *err)
{
    int64_t cells = ((const metrics_args *)pass->args)->cells, by = pool / METRICS_CELL;
    int64_t rows = (pass->problem.nq + METRICS_CELL - 1) / METRICS_CELL;
    int64_t width = (cells + by - 1) / by;
    float *row = NULL;
    double *acc = NULL;
    int rc = 0;

    TRY(mem_alloc(&row, rows * cells * 2, sizeof *row, "cells of a map", err));
    TRY(mem_alloc(&acc, width, sizeof *acc, "cells of a map", err));
    TRY(gpu_get(g, row, pass->cell_sum, rows * cells * 4, err));
    TRY(gpu_get(g, row + rows * cells, pass->cell_max, rows * cells * 4, err));
    for (int64_t top = 0; top < rows; top += by, sum += width, max += width) {
        memset(acc, 0, (size_t)width * sizeof *acc);
        memset(max, 0, (size_t)width * sizeof *max);
        for (int64_t r = top; r < rows && r < top + by; r++)
            fold_row(row + r * cells, row + (rows + r) * cells, cells, by, acc, max);
        for (int64_t c = 0; c < width; c++)
            sum[c] = (float)acc[c];
    }
out:
    free(row);
    free(acc);
    return rc;
}

/* ---- errors --------------------------------------------------------------------------------- */

/* A warp per row. */
template <int D>
__global__ void row_errors(const __nv_bfloat16 *out, const float *ref, int nq, accel_row *rows)
{
    int row = blockIdx.x * 8 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    if (row >= nq)
        return;
    accel_row e = {};
    for (int c = lane; c < D; c += 32) {
        float x = __bfloat162float(out[(size_t)row * D + c]), y = ref[(size_t)row * D + c];
        float delta = x - y;
        e.abs_delta += fabsf(delta);
        e.sq_delta += delta * delta;
        e.abs_ref += fabsf(y);
        e.sq_ref += y * y;
        e.sq_out += x * x;
        e.dot += x * y;
        if (!(fabsf(delta) <= e.max_delta)) /* NaN stays */
            e.max_delta = fabsf(delta);
    }
    for (int bit = 1; bit < 32; bit *= 2) {
        e.abs_delta += __shfl_xor_sync(~0u, e.abs_delta, bit);
        e.sq_delta += __shfl_xor_sync(~0u, e.sq_delta, bit);
        e.abs_ref += __shfl_xor_sync(~0u, e.abs_ref, bit);
        e.sq_ref += __shfl_xor_sync(~0u, e.sq_ref, bit);
        e.sq_out += __shfl_xor_sync(~0u, e.sq_out, bit);
        e.dot += __shfl_xor_sync(~0u, e.dot, bit);
        float other = __shfl_xor_sync(~0u, e.max_delta, bit);
        if (isnan(other) || other > e.max_delta)
            e.max_delta = other;
    }
    if (lane == 0)
        rows[row] = e;
}

extern "C" int metrics_errors(struct gpu *g, int64_t nq, int d, const void *out, const float *ref,
                              struct accel_row *rows, struct err *err)
{
    int rc = 0;
    unsigned blocks = (unsigned)((nq + 7) / 8);
    const __nv_bfloat16 *x = (const __nv_bfloat16 *)out;
    if (d == 128)
        row_errors<128><<<blocks, 256, 0, g->stream>>>(x, ref, (int)nq, rows);
    else
        row_errors<64><<<blocks, 256, 0, g->stream>>>(x, ref, (int)nq, rows);
    CU_LAUNCHED(err);
out:
    return rc;
}
