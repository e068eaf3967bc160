/*
 * unitkeys.c - see unitkeys.h. O(N d).
 */
#include "sim/blocks/unitkeys.h"

#include "core/mem.h"
#include "sim/blocks/exact.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int unit_keys_make(struct unit_keys *u, const struct head_in *in, struct err *err)
{
    struct attn_in x = in->x;
    int d = x.d, rc = 0;
    TRY(mem_alloc(&u->k, x.nk * d, sizeof *u->k, "keys of unit length", err));
    for (int64_t j = 0; j < x.nk; j++) {
        const float *k = x.k + j * d;
        double norm = 0;
        for (int c = 0; c < d; c++)
            norm += (double)k[c] * k[c];
        for (int c = 0; c < d; c++)
            u->k[j * d + c] = norm > 0 ? (float)(k[c] / sqrt(norm)) : 0;
    }
    x.k = u->k;
    TRY(attn_prepare(&u->ops, &x, in->exact->prec, err));
out:
    return rc;
}

void unit_keys_free(struct unit_keys *u)
{
    free(u->k);
    attn_release(&u->ops);
    memset(u, 0, sizeof *u);
}
