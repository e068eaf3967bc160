/*
 * sale.cu - SALE's choice of 64 x 32 blocks on the GPU (arXiv:2505.24179, algorithm 1): 4-bit
 * operands, exact statistics of the sink-local region, a low-bit test of every other pair. The
 * rules and the reference are sim/methods/sale/sale.c.
 *
 * What the reference rounds is rounded here at the same places and in the same way, so that
 * integers, scales and corrections are equal; sums of the statistics differ in their order.
 *
 * In an m16n8k32 product the two columns of a lane lie in one of SALE's key groups and its two rows
 * in one of the query groups: a lane has the eight scores of a (row, group) by itself.
 *
 * O(N^2 d / 2) integer products; N d (1 + 2) bytes of operands per head.
 */
#include "cuda/methods/sale/sale_portable.cuh"
#include "cuda/methods/sale/sale_queries.cuh"
#include "cuda/methods/sale/sale_sm90.cuh"
#include "cuda/tensormap.h"

extern "C" {
#include "core/mem.h"
}

#include <stdio.h>
#include <stdlib.h>

/* The blocks that are always kept, and the number of all. A warp per row of the map. */
static __global__ void add_kept_blocks(const sale_args a)
{
    int64_t row = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) >> 5;
    if (row >= (int64_t)a.heads * a.groups)
        return;
    regions g = regions_of(a, (int)(row % a.groups));
    fill_row_words(a.map, row, [&](int w) {
        uint32_t word = a.map.map[row * a.map.words + w];
        for (int b = 0; b < 32; b++) {
            int j = 32 * w + b;
            word |= j < g.n && (j == 0 || j > g.mid) ? 1u << b : 0;
        }
        return word;
    });
}

/* ---- launches ------------------------------------------------------------------------------- */

/* Means first: both sides need them. */
template <int D> static int launch_operands(struct gpu *g, const sale_args &a, struct err *err)
{
    unsigned heads = (unsigned)a.heads, kv_heads = (unsigned)a.kv_heads;
    int rc = 0, bytes = THRESHOLD_BLOCKS(a) * BK * D * 2;
    TRY(gpu_zero(g, a.k_norm, (a.kv_heads + a.heads + 1) * 4, err));
    sum_tokens<D><<<dim3((unsigned)a.chunks, heads + kv_heads), 256, 0, g->stream>>>(a);
    CU_LAUNCHED(err);
    mean_tokens<D><<<heads + kv_heads, dim3(D, MEAN_PARTS), 0, g->stream>>>(a);
    CU_LAUNCHED(err);
    prepare_keys<D><<<dim3((unsigned)(a.npad / 128), kv_heads), 128, 0, g->stream>>>(a);
    CU_LAUNCHED(err);
    CU(err, cudaFuncSetAttribute((const void *)prepare_queries<D>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    prepare_queries<D>
        <<<dim3((unsigned)(a.npad / BQ), kv_heads), QUERY_THREADS, bytes, g->stream>>>(a);
    CU_LAUNCHED(err);
out:
    return rc;
}

template <int D> static int launch_portable(struct gpu *g, const sale_args &a, struct err *err)
{
    int rc = 0, bytes = 3 * byte_tile<D>::BYTES;
    CU(err, cudaFuncSetAttribute((const void *)test_blocks<D>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    test_blocks<D>
        <<<dim3((unsigned)(a.npad / TILE), (unsigned)a.heads), THREADS, bytes, g->stream>>>(a);
    CU_LAUNCHED(err);
out:
    return rc;
}

struct sale_state {
    sale_args args;
    CUtensorMap *maps; /* of the integers of q and k, on Hopper; owned */
};

template <int D>
static int launch_all(struct gpu *g, const sale_state &s, const struct select_lists *l,
                      struct err *err)
{
    const sale_args &a = s.args;
    int rc = 0;
    TRY(gpu_zero(g, l->map, l->rows * l->words * 4, err));
    TRY(launch_operands<D>(g, a, err));
    if (s.maps) {
        TRY(sale_test_e4m3_sm90(g, a, D, s.maps, err));
        TRY(sale_test_sm90(g, a, D, s.maps, err));
    } else
        TRY(launch_portable<D>(g, a, err));
    add_kept_blocks<<<(unsigned)((l->rows + 7) / 8), 256, 0, g->stream>>>(a);
    CU_LAUNCHED(err);
out:
    return rc;
}

/* ---- the table's functions ------------------------------------------------------------------ */

static bool fits(const struct select_problem *p, char why[160])
{
    if (!p->causal || p->nq != p->nk)
        snprintf(why, 160, "whole causal prompts only");
    else if (p->d != 64 && p->d != 128)
        snprintf(why, 160, "the GPU side has head dimensions 64 and 128, not %d", p->d);
    else
        return true;
    return false;
}

static int alloc_operands(struct gpu *g, const struct select_problem *p, sale_args *a,
                          struct err *err)
{
    int64_t q = p->heads, k = p->kv_heads, d = p->d;
    int rc = 0;
    TRY(gpu_alloc(g, q * 8, &a->tau, err));
    TRY(gpu_alloc(g, (q + k) * a->chunks * d * 8, &a->part, err));
    TRY(gpu_alloc(g, (q + k) * d * 2, &a->mean, err));
    TRY(gpu_alloc(g, k * a->npad * d * 2, &a->k16, err));
    TRY(gpu_alloc(g, q * a->npad * PITCH, &a->qi, err));
    TRY(gpu_alloc(g, k * a->npad * PITCH, &a->ki, err));
    TRY(gpu_alloc(g, q * a->npad / 2 * 8, &a->q_scale, err));
    TRY(gpu_alloc(g, k * a->npad / 8 * 2, &a->k_scale, err));
    TRY(gpu_alloc(g, k * a->npad / 8 * 2, &a->k_scale1, err));
    TRY(gpu_alloc(g, q * a->npad * 2, &a->corr, err));
    TRY(gpu_alloc(g, q * a->npad / 2 * 4, &a->q_norm, err));
    TRY(gpu_alloc(g, q * a->npad * 4, &a->thr, err));
    TRY(gpu_alloc(g, (k + q + 1) * 4, &a->k_norm, err));
    a->corr_max = (unsigned *)a->k_norm + k;
    a->inexact = a->k_norm + k + q;
out:
    return rc;
}

/* A calibration gives every head its own. */
static int put_tau(struct gpu *g, const struct select_problem *p, double *tau, struct err *err)
{
    double *of_heads = NULL;
    int rc = mem_alloc(&of_heads, p->heads, sizeof *of_heads, "thresholds of heads", err);
    for (int h = 0; h < p->heads && !rc; h++)
        of_heads[h] = select_rule(p, h)->sale.tau;
    rc = rc ? rc : gpu_put(g, tau, of_heads, p->heads * (int64_t)sizeof *of_heads, err);
    free(of_heads);
    return rc;
}

/* To a copy, rows of 128 bytes are rows of 64 numbers of 16 bits. */
static int make_maps(const sale_args *a, CUtensorMap **maps, struct err *err)
{
    int rc = 0;
    *maps = (CUtensorMap *)aligned_alloc(128, 2 * sizeof **maps);
    if (!*maps)
        FAIL(err, ERR_NOMEM, "tensor maps: out of memory");
    TRY(tensor_map(*maps, a->qi, PITCH / 2, a->npad, a->heads, BQ, err));
    TRY(tensor_map(*maps + 1, a->ki, PITCH / 2, a->npad, a->kv_heads, TILE, err));
out:
    return rc;
}

static int init(struct gpu *g, struct select_job *job, struct err *err)
{
    const struct select_problem *p = &job->problem;
    const struct sale_rule *r = &select_rule(p, 0)->sale;
    sale_state *s = (sale_state *)calloc(1, sizeof *s);
    sale_args *a = &s->args;
    int rc = 0;

    job->state = s;
    if (!s)
        FAIL(err, ERR_NOMEM, "sale on the GPU: out of memory");
    TRY(select_lists_init(g, job, BQ, BK, err));
    a->q = (const uint4 *)p->q;
    a->k = (const uint4 *)p->k;
    a->n = p->nq;
    a->npad = (p->nq + TILE - 1) / TILE * TILE;
    a->heads = p->heads;
    a->kv_heads = p->kv_heads;
    a->per_kv = p->heads / p->kv_heads;
    a->groups = (int)job->lists.groups;
    a->units = (int)job->lists.units;
    a->words = (int)job->lists.words;
    a->chunks = (int)((p->nq + SUM_ROWS - 1) / SUM_ROWS);
    a->local = (int)r->local_blocks;
    a->strict = r->strict;
    a->causal_stats = r->causal_stats;
    a->scale = r->scale;
    a->e4m3 = g->sm == 90;
    a->map = map_rows_of(&job->lists);
    TRY(alloc_operands(g, p, a, err));
    TRY(put_tau(g, p, a->tau, err));
    if (a->e4m3)
        TRY(make_maps(a, &s->maps, err));
out:
    return rc;
}

static int launch(struct gpu *g, const struct select_job *job, struct err *err)
{
    const sale_state &s = *(const sale_state *)job->state;
    return job->problem.d == 128 ? launch_all<128>(g, s, &job->lists, err)
                                 : launch_all<64>(g, s, &job->lists, err);
}

static void release(struct select_job *job)
{
    free(((sale_state *)job->state)->maps);
}

/* Heads differ in their threshold alone. */
static bool together(const union method_rule *a, const union method_rule *b)
{
    const struct sale_rule *x = &a->sale, *y = &b->sale;
    return x->scale == y->scale && x->local_blocks == y->local_blocks && x->strict == y->strict &&
           x->causal_stats == y->causal_stats;
}

extern "C" const struct select_method select_sale = {
    "sale", fits, init, launch, NULL, NULL, release, false, together,
};
