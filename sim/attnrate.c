#include "sim/attnrate.h"

#include "core/clock.h"
#include "core/mem.h"

#include <stdlib.h>

int attn_rate(enum precision prec, double *flop_per_s, struct err *err)
{
    enum { N = 1024, D = 64 };
    int rc = 0;
    float *x = NULL;
    double *out = NULL, *lse = NULL;
    struct attn_ops ops = {0};
    struct mask full;
    double ns = 0;

    TRY(mem_zalloc(&x, N * D, sizeof *x, "rate probe", err));
    TRY(mem_alloc(&out, N * D, sizeof *out, "rate probe", err));
    TRY(mem_alloc(&lse, N, sizeof *lse, "rate probe", err));
    for (int i = 0; i < N * D; i++)
        x[i] = (float)(i % 17) / 17;
    struct attn_in in = {.nq = N, .nk = N, .d = D, .dv = D, .q = x, .k = x, .v = x, .scale = 0.125};
    TRY(attn_prepare(&ops, &in, prec, err));
    mask_full(&full, N, N, 0, N, false);
    for (int k = 0; k < 2; k++) { /* the first one warms up */
        double begin = clock_ns();
        TRY(attn_rows(&ops, &full, out, lse, err));
        ns = clock_ns() - begin;
    }
    *flop_per_s = 4e9 * N * N * D / ns;
out:
    attn_release(&ops);
    free(x);
    free(out);
    free(lse);
    return rc;
}
