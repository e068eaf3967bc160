/*
 * tileattn.c - shared by the exact and the quantised arithmetic of tileattn.h: the walk over a
 * mask, rows that see no key, the dtype of the output.
 */
#include "sim/blocks/tileattn_impl.h"

#include "core/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct tile_work {
    struct tile_exact *exact; /* one of the two */
    struct tile_quant *quant;
};

int tile_work_new(const struct tile_attn *t, struct tile_work **out, struct err *err)
{
    struct tile_work *w = NULL;
    int rc = 0;

    TRY(mem_zalloc(&w, 1, sizeof *w, "tile buffers", err));
    if (t->q)
        TRY(tile_quant_new(t, &w->quant, err));
    else
        TRY(tile_exact_new(t, &w->exact, err));
    *out = w;
    return 0;
out:
    tile_work_free(w);
    return rc;
}

void tile_work_free(struct tile_work *w)
{
    if (!w)
        return;
    tile_exact_free(w->exact);
    tile_quant_free(w->quant);
    free(w);
}

static void dead_row(const struct tile_attn *t, const int32_t *col, int64_t n, double *out)
{
    int64_t count = 0;
    memset(out, 0, (size_t)t->dv * sizeof *out);
    for (int64_t e = 0; t->dead_mean && e < n; e++) {
        int64_t k0 = col[e] * t->bk, k1 = k0 + t->bk < t->nk ? k0 + t->bk : t->nk;
        for (int64_t k = k0; k < k1; k++, count++)
            for (int c = 0; c < t->dv; c++)
                out[c] += t->exact->x.v[k * t->dv + c];
    }
    for (int c = 0; count && c < t->dv; c++)
        out[c] /= (double)count;
}

void tile_attn_block(const struct tile_attn *t, struct tile_work *w, int64_t row0, int64_t rows,
                     const int32_t *col, int64_t n, double *out, double *lse, double *tiles_pv)
{
    if (t->q)
        tile_quant_block(t, w->quant, row0, rows, col, n, out, lse, tiles_pv);
    else
        tile_exact_block(t, w->exact, row0, rows, col, n, out, lse, tiles_pv);
    for (int64_t r = 0; r < rows; r++) {
        double *o = out + r * t->dv;
        if (lse[r] == -INFINITY)
            dead_row(t, col, n, o);
        for (int c = 0; t->out_dtype != DT_NONE && c < t->dv; c++)
            o[c] = dtype_round(t->out_dtype, (float)o[c]);
    }
}

int tile_attn_rows(const struct tile_attn *t, const struct mask *m, double *out, double *lse,
                   double *tiles_pv, struct err *err)
{
    struct tile_work *w = NULL;
    int32_t *all = NULL;
    int64_t units = (t->nk + t->bk - 1) / t->bk;
    int rc = 0;

    TRY(tile_work_new(t, &w, err));
    TRY(mem_alloc(&all, units, sizeof *all, "tile list", err));
    for (int64_t i = 0; i < units; i++)
        all[i] = (int32_t)i;
    for (int64_t r = m->row0; r < m->row1; r += t->bq) {
        int64_t rows = m->row1 - r < t->bq ? m->row1 - r : t->bq, g = (r - m->row0) / t->bq;
        const int32_t *col = all;
        int64_t n = (mask_limit(m, r + rows - 1) + t->bk - 1) / t->bk;
        if (m->form == MASK_LISTS) {
            col = m->col + m->ptr[g];
            n = m->ptr[g + 1] - m->ptr[g];
        }
        tile_attn_block(t, w, r, rows, col, n, out + (r - m->row0) * t->dv, lse + (r - m->row0),
                        tiles_pv);
    }
out:
    tile_work_free(w);
    free(all);
    return rc;
}
