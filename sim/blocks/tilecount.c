/*
 * tilecount.c - see tilecount.h.
 */
#include "sim/blocks/tilecount.h"

int tile_count_add(struct tile_count *t, const struct mask *m, struct err *err)
{
    int64_t kept, allowed;
    int rc = mask_tiles_kept(m, t->bq, t->bk, &kept, &allowed, err);
    if (rc)
        return rc;
    t->kept += kept;
    t->allowed += allowed;
    t->rect += (m->row1 - m->row0 + t->bq - 1) / t->bq * ((m->nk + t->bk - 1) / t->bk);
    return 0;
}

int tile_count_report(const struct tile_count *t, struct record *r, struct err *err)
{
    double density = (double)t->kept / (double)t->allowed;
    double rect = (double)t->kept / (double)t->rect;
    double exec = (double)(t->kept * t->bq * t->bk);
    int rc = 0;

    TRY(record_metric(r, "density_tile", density, err));
    TRY(record_metric(r, "sparsity_qk", 1 - density, err));
    TRY(record_metric(r, "sparsity_pv", 1 - density, err));
    TRY(record_metric(r, "sparsity_total", 1 - density, err));
    TRY(record_metric(r, "sparsity_total_rect", 1 - rect, err));
    TRY(record_metric(r, "pairs_exec", exec, err));
    TRY(record_metric(r, "density_exec", exec / record_get(r, "pairs_allowed"), err));
out:
    return rc;
}
