/*
 * tileexact.c - the exact arithmetic of tileattn.h, in the precision of its operands.
 *
 * Whether a tile's P.V is computed depends on the scores before it alone, not on P. So several
 * tiles are taken at once: one product for their scores, one pass that walks over their maxima and
 * decides, one softmax against the maximum after all of them, one product with V. That is the same
 * sum as tile by tile, since l and O only ever hold terms 2^(s - m) under a common m, in products
 * as wide as those of core/attention.c; a product of 64 keys runs at half their speed. 4 bq bk d
 * operations per tile, 2 bq bk d where P.V is skipped by every scope.
 */
#include "sim/tileattn_impl.h"

#include "core/mem.h"
#include "core/simd.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LOG2E 1.4426950408889634074
#define LN2 0.69314718055994530942
#define RUN_KEYS 512 /* taken at once, whole tiles: scores of a block stay in L2 */

struct tile_exact {
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
    int64_t size = t->ops->prec == PREC_F64 ? sizeof(double) : sizeof(float);
    int64_t scopes = tile_scopes(t, t->bq);

    TRY(mem_zalloc(&w, 1, sizeof *w, "tile buffers", err));
    w->run = run;
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
#define GEMM cblas_sgemm
#define EXP_BITS uint32_t
#define EXP_SHIFT 23
#define EXP_ONE 0x3f800000u
#define EXP_MAGIC 0x1.8p23f
#define EXP_MIN (-126.0f)
/* clang-format off */
#define EXP_POLY(r)                                                                               \
    (1 + (r) * (1 + (r) * (1.0f / 2 + (r) * (1.0f / 6 + (r) * (1.0f / 24 + (r) * (1.0f / 120 +    \
     (r) * (1.0f / 720 + (r) * (1.0f / 5040))))))))
/* clang-format on */
#include "sim/tileexact_kernel.inc"
#undef REAL
#undef SUF
#undef GEMM
#undef EXP_BITS
#undef EXP_SHIFT
#undef EXP_ONE
#undef EXP_MAGIC
#undef EXP_MIN
#undef EXP_POLY

/* ---- double --------------------------------------------------------------------------------- */
#define REAL double
#define SUF(name) name##_f64
#define GEMM cblas_dgemm
#define EXP_BITS uint64_t
#define EXP_SHIFT 52
#define EXP_ONE 0x3ff0000000000000ull
#define EXP_MAGIC 0x1.8p52
#define EXP_MIN (-1022.0)
/* clang-format off */
#define EXP_HIGH(r)                                                                               \
    (1.0 / 5040 + (r) * (1.0 / 40320 + (r) * (1.0 / 362880 + (r) * (1.0 / 3628800 + (r) *         \
     (1.0 / 39916800 + (r) * (1.0 / 479001600))))))
#define EXP_POLY(r)                                                                               \
    (1 + (r) * (1 + (r) * (1.0 / 2 + (r) * (1.0 / 6 + (r) * (1.0 / 24 + (r) * (1.0 / 120 + (r) *  \
     (1.0 / 720 + (r) * EXP_HIGH(r))))))))
/* clang-format on */
#include "sim/tileexact_kernel.inc"

void tile_exact_block(const struct tile_attn *t, struct tile_exact *w, int64_t row0, int64_t rows,
                      const int32_t *col, int64_t n, double *out, double *lse, double *tiles_pv)
{
    if (t->ops->prec == PREC_F64)
        block_f64(t, w, t->ops->k64, t->ops->v64, row0, rows, col, n, out, lse, tiles_pv);
    else
        block_f32(t, w, t->ops->in.k, t->ops->in.v, row0, rows, col, n, out, lse, tiles_pv);
}
