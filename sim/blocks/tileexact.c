/*
 * tileexact.c - the exact arithmetic of tileattn.h, in the precision of its operands.
 *
 * Whether P.V of a tile is computed depends only on scores up to this tile, not on P. Several tiles
 * are therefore processed at once: one product for their scores, one pass over their maxima that
 * decides, one softmax against the maximum after all of them, one product with V. The sum is the
 * same as tile by tile, because l and O only hold terms 2^(s - m) under a common m. The products
 * are as wide as those of core/attention.c; a product of 64 keys runs at half their speed. 4 bq bk
 * d operations per tile, 2 bq bk d where P.V is skipped by every scope.
 *
 * The engine is not core/attention.c with a filter: its scores are in units of log2, as the
 * filter's distance is; the filter needs the maxima of all tiles before the first exponential; and
 * a list of tiles needs no spans. The loops inside a row are the same (core/softmax.h).
 */
#include "sim/blocks/tileattn_impl.h"

#include "core/gemm.h"
#include "core/mem.h"
#include "core/softmax.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LOG2E 1.4426950408889634074
#define LN2 0.69314718055994530942
#define RUN_KEYS 512 /* taken at once, whole tiles: scores of a block stay in L2 */

struct tile_exact {
    const struct attn_ops *ops;
    int64_t run;             /* tiles taken at once */
    void *q, *s, *k, *v, *o; /* [bq][d], [bq][run bk], [run bk][d], [run bk][dv], [bq][dv] */
    double *m, *l;           /* [bq] */
    double *gap;             /* [bq / scope][run] largest of the scope's rows */
    bool *computed;          /* [bq / scope][run] */
    int64_t *visible;        /* [bq] leading columns of the run that the row sees */
};

int tile_exact_new(const struct tile_attn *t, struct tile_exact **out, struct err *err)
{
    struct tile_exact *w = NULL;
    int rc = 0;
    int64_t run = t->bk < RUN_KEYS ? RUN_KEYS / t->bk : 1, keys = run * t->bk;
    int64_t size = t->exact->prec == PREC_F64 ? sizeof(double) : sizeof(float);
    int64_t scopes = tile_scopes(t, t->bq);

    TRY(mem_zalloc(&w, 1, sizeof *w, "tile buffers", err));
    w->run = run;
    TRY(exact_operands(t->exact, &w->ops, err));
    TRY(mem_alloc(&w->q, t->bq * t->d, size, "query tile", err));
    TRY(mem_alloc(&w->s, t->bq * keys, size, "score tile", err));
    TRY(mem_alloc(&w->k, keys * t->d, size, "key tile", err));
    TRY(mem_alloc(&w->v, keys * t->dv, size, "value tile", err));
    TRY(mem_alloc(&w->o, t->bq * t->dv, size, "output tile", err));
    TRY(mem_alloc(&w->m, t->bq, sizeof *w->m, "row maxima", err));
    TRY(mem_alloc(&w->l, t->bq, sizeof *w->l, "row sums", err));
    TRY(mem_alloc(&w->gap, scopes * run, sizeof *w->gap, "gaps", err));
    TRY(mem_alloc(&w->computed, scopes * run, sizeof *w->computed, "computed scopes", err));
    TRY(mem_alloc(&w->visible, t->bq, sizeof *w->visible, "visible keys", err));
    *out = w;
    return 0;
out:
    tile_exact_free(w);
    return rc;
}

void tile_exact_free(struct tile_exact *w)
{
    if (!w)
        return;
    void *all[] = {w->q, w->s, w->k, w->v, w->o, w->m, w->l, w->gap, w->computed, w->visible};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    free(w);
}

/* The tiles taken at once: tile e holds the columns [e bk, e bk + bk) of the run's `keys`, the last
 * tile of the sequence (so of the run) fewer. */
struct run {
    int64_t row0, rows;
    const int32_t *col;
    int64_t n, keys;
    int64_t exempt; /* first tile that the filter must compute */
};

static int64_t tile_keys(const struct tile_attn *t, const struct run *run, int64_t e)
{
    int64_t left = run->keys - e * t->bk;
    return left < t->bk ? left : t->bk;
}

/* Decide for every scope and tile; returns the share of computed scopes, summed over the tiles. */
static double vote(const struct tile_attn *t, struct tile_exact *w, const struct run *run)
{
    int64_t scopes = tile_scopes(t, run->rows), n = 0;
    for (int64_t i = 0; i < scopes * run->n; i++) {
        w->computed[i] = tile_computes(t, w->gap[i], i % run->n >= run->exempt);
        n += w->computed[i];
    }
    return (double)n / (double)scopes;
}

static bool any_scope(const struct tile_attn *t, const struct tile_exact *w, const struct run *run,
                      int64_t e)
{
    for (int64_t g = 0; g < tile_scopes(t, run->rows); g++)
        if (w->computed[g * run->n + e])
            return true;
    return false;
}

/* ---- float ---------------------------------------------------------------------------------- */
#define REAL float
#define SUF(name) name##_f32
#define GEMM_NT gemm_nt_f32
#define GEMM_NN gemm_nn_f32
#include "sim/blocks/tileexact_kernel.inc"
#undef REAL
#undef SUF
#undef GEMM_NT
#undef GEMM_NN

/* ---- double --------------------------------------------------------------------------------- */
#define REAL double
#define SUF(name) name##_f64
#define GEMM_NT gemm_nt_f64
#define GEMM_NN gemm_nn_f64
#include "sim/blocks/tileexact_kernel.inc"

void tile_exact_block(const struct tile_attn *t, struct tile_exact *w, int64_t row0, int64_t rows,
                      const int32_t *col, int64_t n, double *out, double *lse, double *tiles_pv)
{
    if (w->ops->prec == PREC_F64)
        block_f64(t, w, w->ops->k64, w->ops->v64, row0, rows, col, n, out, lse, tiles_pv);
    else
        block_f32(t, w, t->exact->x.k, t->exact->x.v, row0, rows, col, n, out, lse, tiles_pv);
}
