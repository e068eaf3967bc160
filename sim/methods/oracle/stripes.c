/*
 * stripes.c - see stripes.h. O(rows N).
 */
#include "sim/methods/oracle/stripes.h"

#include "core/mem.h"
#include "sim/blocks/colmass.h"
#include "sim/blocks/prefix.h"

#include <stdlib.h>

/* End of chunk i, rounded up to whole slices; the last one ends with the rows. */
static int64_t chunk_end(int64_t n, int64_t chunks, int64_t i)
{
    int64_t end = (i + 1) * n / chunks;
    end = (end + STRIPE_ROWS - 1) / STRIPE_ROWS * STRIPE_ROWS;
    return i + 1 == chunks || end > n ? n : end;
}

void stripe_slice(int64_t n, int64_t chunks, int64_t i, int64_t *row0, int64_t *row1)
{
    int64_t before = i ? chunk_end(n, chunks, i - 1) : 0;
    *row1 = chunk_end(n, chunks, i);
    *row0 = *row1 - before > STRIPE_ROWS ? *row1 - STRIPE_ROWS : before;
}

int stripes_choose(const struct head_in *in, int64_t chunks, int64_t count, int32_t *keys,
                   int64_t *n, int64_t *rows, struct err *err)
{
    struct prefix_work *work = NULL;
    struct prefix top;
    int64_t nq = in->x.nq, nk = in->x.nk, row0, row1;
    double *mass = NULL;
    int rc = 0;

    *n = *rows = 0;
    TRY(mem_zalloc(&mass, nk, sizeof *mass, "mass of columns", err));
    TRY(prefix_work_new(&work, err));
    for (int64_t i = 0; i < (chunks ? chunks : 1); i++) {
        row0 = 0;
        row1 = nq;
        if (chunks)
            stripe_slice(nq, chunks, i, &row0, &row1);
        TRY(column_mass(in, row0, row1, mass, err));
        *rows += row1 - row0;
    }
    TRY(prefix_topk(work, mass, nk, count, &top, err));
    for (int64_t j = 0; j < nk; j++)
        if (prefix_has(&top, mass[j], j))
            keys[(*n)++] = (int32_t)j;
out:
    prefix_work_free(work);
    free(mass);
    return rc;
}
