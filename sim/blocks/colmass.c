/*
 * colmass.c - see colmass.h. A few rows at a time.
 */
#include "sim/blocks/colmass.h"

#include "core/mem.h"
#include "sim/blocks/exact.h"

#include <stdlib.h>

int column_mass(const struct head_in *in, int64_t row0, int64_t row1, double *mass, struct err *err)
{
    enum { ROWS = 64 };
    int64_t nk = in->x.nk;
    double *p = NULL;
    int rc = 0;
    TRY(mem_alloc(&p, ROWS * nk, sizeof *p, "rows of the map", err));
    for (int64_t r = row0; r < row1; r += ROWS) {
        int64_t end = r + ROWS < row1 ? r + ROWS : row1;
        TRY(exact_probs(in->exact, r, end, p, err));
        for (int64_t i = 0; i < end - r; i++)
            for (int64_t j = 0; j < nk; j++)
                mass[j] += p[i * nk + j];
    }
out:
    free(p);
    return rc;
}
