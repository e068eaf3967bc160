/*
 * metrics.cu - launches of the metrics of a head: dense reference, second pass
 * (metrics.h).
 */
#include "cuda/metrics/metrics.h"

#include "cuda/metrics/metrics_pass.cuh"
#include "cuda/device.h"

#include "cuda/attn/attn_args.h"

#include <cuda_bf16.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- dense reference ------------------------------------------------------------------------ */

/* Lanes that have the channels of a row between them. */
#define ROW_LANES 8

struct finish_args {
    const int2 *rows;
    const float *piece_out;
    const float2 *piece_ml;
    int bm, nq, q_blocks; /* rows and rows of tiles of a head */
    int n;                /* rows of all heads */
    float *out;           /* NULL: not wanted */
    double *lse;
    float2 *norm;
};

/* Pieces of a row become O = sum_i 2^(m_i - m) O_i / sum_i 2^(m_i - m) l_i in fp32, the natural
 * LSE, and the normaliser: b = LSE in base 2, rounded, and 2^(b - LSE). Lane l of a row has
 * channels 4 l + 32 i. */
template <int D> __global__ void finish_reference(const finish_args a)
{
    constexpr int N = D / ROW_LANES;
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / ROW_LANES, lane = threadIdx.x % ROW_LANES;
    bool mine = row < a.n;
    row = mine ? row : a.n - 1;
    int head = row / a.nq, in_head = row - head * a.nq;
    int2 slots = a.rows[head * a.q_blocks + in_head / a.bm];
    size_t at = (size_t)slots.x * a.bm + in_head % a.bm;
    float m = -INFINITY, l = 0, o[N] = {};

    for (int i = 0; i < slots.y; i++) {
        float2 ml = a.piece_ml[at + (size_t)i * a.bm];
        if (ml.y > 0)
            m = fmaxf(m, ml.x);
    }
    for (int i = 0; i < slots.y; i++) {
        float2 ml = a.piece_ml[at + (size_t)i * a.bm];
        float weight = ml.y > 0 ? exp2f(ml.x - m) : 0;
        const float *piece = a.piece_out + (at + (size_t)i * a.bm) * D + 4 * lane;
        l += weight * ml.y;
#pragma unroll
        for (int c = 0; c < N; c += 4) {
            float4 x = *(const float4 *)(piece + ROW_LANES * c);
            o[c] += weight * x.x;
            o[c + 1] += weight * x.y;
            o[c + 2] += weight * x.z;
            o[c + 3] += weight * x.w;
        }
    }
    size_t to = (size_t)row * D + 4 * lane;
#pragma unroll
    for (int c = 0; c < N; c += 4) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            o[c + i] = l > 0 ? o[c + i] / l : 0;
        if (a.out && mine)
            *(float4 *)(a.out + to + ROW_LANES * c) =
                make_float4(o[c], o[c + 1], o[c + 2], o[c + 3]);
    }
    if (lane || !mine)
        return;
    double exact = (double)m + log2((double)l);
    float b = (float)exact;
    a.lse[row] = l > 0 ? exact * 0.693147180559945309417 : -INFINITY;
    a.norm[row] = l > 0 ? make_float2(b, (float)exp2((double)b - exact)) : make_float2(INFINITY, 0);
}

/* Every row of tiles gets slots of its own, so that its outputs stay in fp32. */
static int slots_for_all(struct attn_plan *plan, int64_t n, int2 **rows, struct err *err)
{
    PASS_ON(mem_zalloc(rows, n, sizeof **rows, "slots of rows", err));
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

/* The launch of *r without its results. */
static int ref_job(struct gpu *g, const struct attn_problem *p, const struct attn_tensors *x,
                   struct metrics_ref *r, struct err *err)
{
    OWN(attn_plan_free) struct attn_plan plan = {};
    const struct attn_kernel *k = NULL;
    OWN(free_at) int2 *rows = NULL;
    int64_t n;

    PASS_ON(attn_kernel_find(p, g->sm, NULL, &k, err));
    PASS_ON(attn_plan_make(p, &k->tile, NULL, g->sms, &plan, err));
    n = (int64_t)p->heads * plan.q_blocks;
    r->q_blocks = plan.q_blocks;
    PASS_ON(slots_for_all(&plan, n, &rows, err));
    PASS_ON(attn_job_init(g, p, k, &plan, x, &r->job, err));
    PASS_ON(gpu_upload(g, rows, n * (int64_t)sizeof *rows, &r->rows, err));
    return gpu_sync(g, err);
}

static int ref_results(struct gpu *g, const struct attn_problem *p, bool keep_out,
                       struct metrics_ref *r, struct err *err)
{
    int64_t n = p->heads * p->nq;
    if (keep_out)
        PASS_ON(gpu_alloc(g, n * attn_dv(p->d) * 4, &r->out, err));
    PASS_ON(gpu_alloc(g, n * 8, &r->lse, err));
    return gpu_alloc(g, n * 8, &r->norm, err);
}

int metrics_ref_init(struct gpu *g, const struct attn_problem *p, const struct attn_tensors *x,
                     bool keep_out, struct metrics_ref *r, struct err *err)
{
    int rc = 0;
    memset(r, 0, sizeof *r);
    TRY(ref_job(g, p, x, r, err));
    TRY(ref_results(g, p, keep_out, r, err));
out:
    if (rc)
        metrics_ref_free(r);
    return rc;
}

int metrics_dense_make(struct gpu *g, const struct attn_problem *p, const struct attn_tensors *x,
                       struct metrics_dense *d, struct err *err)
{
    struct metrics_ref r = {};
    struct gpu_mark mark;
    int rc = 0;
    TRY(ref_results(g, p, true, &r, err));
    *d = {r.out, r.lse, r.norm};
    mark = gpu_mark(g);
    rc = ref_job(g, p, x, &r, err);
    if (!rc)
        rc = metrics_ref_launch(g, &r, err);
    if (!rc)
        rc = gpu_sync(g, err);
    gpu_release(g, mark);
out:
    metrics_ref_free(&r);
    return rc;
}

int metrics_ref_launch(struct gpu *g, const struct metrics_ref *r, struct err *err)
{
    const attn_args *a = (const attn_args *)r->job.args;
    int nq = (int)r->job.problem.nq, n = nq * r->job.problem.heads;
    unsigned blocks = ((unsigned)n * ROW_LANES + 255) / 256;
    auto finish = BY_HEAD_DIM(attn_dv(r->job.problem.d), finish_reference);
    finish_args f = {(const int2 *)r->rows,
                     a->piece_out,
                     a->piece_ml,
                     r->job.kernel->tile.bm,
                     nq,
                     r->q_blocks,
                     n,
                     r->out,
                     r->lse,
                     (float2 *)r->norm};

    PASS_ON(attn_job_launch(g, &r->job, err));
    finish<<<blocks, 256, 0, g->stream>>>(f);
    return LAUNCH_STATUS(err);
}

void metrics_ref_free(struct metrics_ref *r)
{
    attn_job_free(&r->job);
    memset(r, 0, sizeof *r);
}

__global__ static void norms_of(const float *lse, int64_t n, float2 *norm)
{
    int64_t i = blockIdx.x * 256LL + threadIdx.x;
    if (i < n)
        norm[i] =
            isinf(lse[i]) ? make_float2(INFINITY, 0) : make_float2(lse[i] * 1.4426950408889634f, 1);
}

int metrics_norms_into(struct gpu *g, const float *lse, int64_t n, void *norm, struct err *err)
{
    norms_of<<<(unsigned)((n + 255) / 256), 256, 0, g->stream>>>(lse, n, (float2 *)norm);
    return LAUNCH_STATUS(err);
}

/* ---- second pass ---------------------------------------------------------------------------- */

/* The kinds that a replay asks for. Maps are of captures, slices of fg-attn's choice. */
#define PASSES(d)                                                                                  \
    pass_entry<pass_shape<d, METRICS_SIGNS>>(ATTN_BF16),                                           \
        pass_entry<pass_shape<d, METRICS_SUMS>>(ATTN_BF16),                                        \
        pass_entry<pass_shape<d, METRICS_LEVELS>>(ATTN_BF16),                                      \
        pass_entry<pass_shape<d, METRICS_TOPS>>(ATTN_BF16)

static const metrics_kernel metrics_kernels[] = {
    PASSES(128),
    PASSES(64),
    PASSES(96),
    PASSES(192),
    PASSES(256),
    pass_entry<pass_shape<128, METRICS_MAPS>>(ATTN_BF16),
    pass_entry<pass_shape<64, METRICS_MAPS>>(ATTN_BF16),
    pass_entry<pass_shape<128, METRICS_SLICES>>(ATTN_BF16),
    pass_entry<pass_shape<64, METRICS_SLICES>>(ATTN_BF16),
    {},
};

static int choose_kernel(struct gpu *g, const struct metrics_ask *ask, struct metrics_pass *pass,
                         struct err *err)
{
    enum metrics_kind kind = METRICS_LEVELS;
    bool alone =
        !ask->cells && pass->problem.scale > 0; /* scores in the order of p, nothing else */
    if (g->sm != 90)
        return err_set(err, ERR_MACHINE,
                       "the metrics kernels need a Hopper GPU (sm_90), this one is sm_%d", g->sm);
    /* With c < 1 a row's largest p, at least 1 / N, is above it: exponents above 0 know it. */
    if (ask->slices)
        kind = METRICS_SLICES;
    else if (ask->n_c == 0)
        kind = METRICS_MAPS;
    else if (alone && ask->n_c == 1 && ask->c[0] > 1e-6)
        kind = !ask->sums ? METRICS_SIGNS : ask->c[0] < 0.99 ? METRICS_SUMS : METRICS_LEVELS;
    else if (alone && !ask->sums)
        kind = METRICS_TOPS;
    for (const metrics_kernel *k = ask->element == ATTN_F16 ? metrics_half_maps : metrics_kernels;
         k->d; k++)
        if (k->d == pass->problem.d && k->kind == kind && ask->n_c <= METRICS_C)
            pass->kernel = k;
    if (!pass->kernel || (ask->n_c == 0 && !ask->cells))
        return err_set(err, ERR_RUN, "no CUDA metrics kernel for head dim %d and %d thresholds",
                       pass->problem.d, ask->n_c);
    bool scores = kind == METRICS_SIGNS || kind == METRICS_SLICES;
    pass->n_c = ask->n_c;
    pass->sums = !scores && kind != METRICS_TOPS;
    pass->p_max = !scores;
    pass->unit = scores || kind == METRICS_SUMS ? ask->c[0] / (double)pass->problem.nk : 1;
    return 0;
}

static int alloc_results(struct gpu *g, bool cells, struct metrics_pass *pass, metrics_args *a,
                         struct err *err)
{
    int64_t n = (pass->problem.nq + METRICS_CELL - 1) / METRICS_CELL;
    a->cells = (int)((pass->problem.nk + METRICS_CELL - 1) / METRICS_CELL);
    if (pass->sums)
        PASS_ON(gpu_alloc(g, pass->n_items * (int64_t)METRICS_BM * 4, &pass->parts, err));
    PASS_ON(gpu_alloc(g, sizeof(metrics_counts), &pass->counts, err));
    if (cells) {
        PASS_ON(gpu_alloc(g, n * a->cells * 4, &pass->cell_sum, err));
        PASS_ON(gpu_alloc(g, n * a->cells * 4, &pass->cell_max, err));
    }
    a->parts = (float *)pass->parts;
    a->counts = (metrics_counts *)pass->counts;
    a->cell_sum = pass->cell_sum;
    a->cell_max = pass->cell_max;
    return 0;
}

static int upload_plan(struct gpu *g, const struct metrics_plan *plan, struct metrics_pass *pass,
                       metrics_args *a, struct err *err)
{
    pass->n_items = a->n_items = plan->n_items;
    pass->grid = plan->n_items < g->sms ? plan->n_items : g->sms;
    PASS_ON(mem_alloc(&pass->item_rows, plan->n_items, sizeof(int32_t), "work items", err));
    for (int32_t i = 0; i < plan->n_items; i++)
        pass->item_rows[i] = plan->items[i].row;
    PASS_ON(
        gpu_upload(g, plan->items, plan->n_items * (int64_t)sizeof *plan->items, &a->items, err));
    PASS_ON(gpu_alloc(g, 256, &a->ticket, err));
    PASS_ON(gpu_zero(g, a->ticket, 256, err));
    return gpu_sync(g, err);
}

static int pass_args(struct metrics_pass *pass, const void *norm, const struct metrics_ask *ask,
                     metrics_args **out, struct err *err)
{
    const struct attn_problem *p = &pass->problem;
    metrics_args *a = NULL;
    PASS_ON(mem_zalloc(&a, 1, sizeof *a, "kernel arguments", err));
    pass->args = a;
    a->norm = (const float2 *)norm;
    a->nq = (int)p->nq;
    a->nk = (int)p->nk;
    a->causal = p->causal;
    a->offset = (int)(p->nk - p->nq);
    a->scale_log2 = (float)(p->scale * M_LOG2E);
    a->per_scale = (float)(1 / (p->scale * M_LOG2E));
    a->unit = (float)pass->unit;
    a->shift = (float)log2(pass->unit);
    for (int i = 0; i < ask->n_c; i++) {
        double below = ask->c[i] / (double)p->nk;
        a->below[i] = (float)(pass->kernel->kind == METRICS_TOPS ? log2(below) : below);
    }
    if (ask->slices) {
        a->map = ask->slices->map;
        a->words = (int)ask->slices->words;
        a->height = ask->slices->M;
        a->text0 = (int)ask->slices->text0;
        a->text1 = (int)ask->slices->text1;
    }
    *out = a;
    return 0;
}

int metrics_pass_init(struct gpu *g, const struct attn_problem *p, const struct attn_tensors *x,
                      const void *norm, const struct metrics_ask *ask, struct metrics_pass *pass,
                      struct err *err)
{
    int rc = 0;
    struct metrics_plan plan = {};
    metrics_args *a = NULL;
    CUtensorMap *maps = NULL;

    memset(pass, 0, sizeof *pass);
    pass->problem = *p;
    TRY(choose_kernel(g, ask, pass, err));
    TRY(metrics_plan_make(p, g->sms, &plan, err));
    TRY(pass_args(pass, norm, ask, &a, err));
    TRY(upload_plan(g, &plan, pass, a, err));
    TRY(alloc_results(g, ask->cells, pass, a, err));
    pass->maps = aligned_alloc(128, 2 * sizeof *maps);
    if (!pass->maps)
        FAIL(err, ERR_NOMEM, "tensor maps: out of memory");
    maps = (CUtensorMap *)pass->maps;
    TRY(tensor_map(maps, x->q, p->d, p->nq, 1, METRICS_BM, err));
    TRY(tensor_map(maps + 1, x->k, p->d, p->nk, 1, METRICS_BN, err));
    CU(err, cudaFuncSetAttribute(pass->kernel->entry, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 pass->kernel->smem));
out:
    metrics_plan_free(&plan);
    if (rc)
        metrics_pass_free(pass);
    return rc;
}

int metrics_pass_launch(struct gpu *g, const struct metrics_pass *pass, struct err *err)
{
    const metrics_args *a = (const metrics_args *)pass->args;
    int64_t n = (pass->problem.nq + METRICS_CELL - 1) / METRICS_CELL * a->cells;

    if (pass->n_c)
        PASS_ON(gpu_zero(g, pass->counts, sizeof(metrics_counts), err));
    if (pass->cell_sum) { /* cells that causality leaves out */
        PASS_ON(gpu_zero(g, pass->cell_sum, n * 4, err));
        PASS_ON(gpu_zero(g, pass->cell_max, n * 4, err));
    }
    if (pass->grid)
        pass->kernel->launch(pass->grid, g->stream, (const CUtensorMap *)pass->maps, a);
    return LAUNCH_STATUS(err);
}

void metrics_pass_free(struct metrics_pass *pass)
{
    free(pass->item_rows);
    free(pass->args);
    free(pass->maps);
    memset(pass, 0, sizeof *pass);
}

int metrics_pass_sums(struct gpu *g, const struct metrics_pass *pass, double *sum, struct err *err)
{
    int64_t nq = pass->problem.nq, n = pass->n_items * (int64_t)METRICS_BM;
    OWN(free_at) float *parts = NULL;

    PASS_ON(mem_alloc(&parts, n, sizeof *parts, "sums of rows", err));
    PASS_ON(gpu_get(g, parts, pass->parts, n * (int64_t)sizeof *parts, err));
    memset(sum, 0, (size_t)nq * sizeof *sum);
    for (int64_t k = 0; k < n; k++) {
        int64_t row = pass->item_rows[k / METRICS_BM] * (int64_t)METRICS_BM + k % METRICS_BM;
        if (row < nq)
            sum[row] += parts[k];
    }
    return 0;
}

/* Allowed pairs of a unit that no edge cuts. */
static int64_t whole_pairs(int unit)
{
    static const int64_t pairs[] = {256, 1024, 4096, 16384, 16, 64, 128};
    return pairs[unit];
}

int metrics_pass_below(struct gpu *g, const struct metrics_pass *pass, struct metrics_below *out,
                       struct err *err)
{
    metrics_counts n = {};
    float top;

    memset(out, 0, sizeof *out);
    PASS_ON(gpu_get(g, &n, pass->counts, sizeof n, err));
    for (int u = 0; u < ACCEL_UNITS; u++)
        for (int c = 0; c < pass->n_c; c++) {
            out->units[u][c] = (int64_t)(n.whole[u][c] + n.part[u][c]);
            out->pairs[u][c] =
                (int64_t)n.whole[u][c] * whole_pairs(u) + (int64_t)n.part_pairs[u][c];
        }
    memcpy(&top, &n.p_max, sizeof top);
    out->p_max = pass->p_max ? top : NAN;
    return 0;
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

int metrics_pass_cells(struct gpu *g, const struct metrics_pass *pass, int64_t pool, float *sum,
                       float *max, struct err *err)
{
    int64_t cells = ((const metrics_args *)pass->args)->cells, by = pool / METRICS_CELL;
    int64_t rows = (pass->problem.nq + METRICS_CELL - 1) / METRICS_CELL;
    int64_t width = (cells + by - 1) / by;
    OWN(free_at) float *row = NULL;
    OWN(free_at) double *acc = NULL;

    PASS_ON(mem_alloc(&row, rows * cells * 2, sizeof *row, "cells of a map", err));
    PASS_ON(mem_alloc(&acc, width, sizeof *acc, "cells of a map", err));
    PASS_ON(gpu_get(g, row, pass->cell_sum, rows * cells * 4, err));
    PASS_ON(gpu_get(g, row + rows * cells, pass->cell_max, rows * cells * 4, err));
    for (int64_t top = 0; top < rows; top += by, sum += width, max += width) {
        memset(acc, 0, (size_t)width * sizeof *acc);
        memset(max, 0, (size_t)width * sizeof *max);
        for (int64_t r = top; r < rows && r < top + by; r++)
            fold_row(row + r * cells, row + (rows + r) * cells, cells, by, acc, max);
        for (int64_t c = 0; c < width; c++)
            sum[c] = (float)acc[c];
    }
    return 0;
}
