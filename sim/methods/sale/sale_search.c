/*
 * sale_search.c - SALE's offline calibration of one head's threshold (arXiv:2505.24179, section 3.5
 * and appendix C): tau is halved until the summed absolute output error per token is below theta on
 * every sample, in order. A smaller tau keeps a superset of blocks, so earlier samples stay within
 * the bound and are not judged again.
 */
#include "sim/methods/sale/sale.h"

/* The next smaller tau: half, or 0 when that is at or below tau_min. */
static double sale_next_tau(double tau, double tau_min)
{
    double half = tau / 2;
    return half <= tau_min ? 0 : half;
}

int sale_search_tau(const struct sale_search *s, int n, sale_judge_fn *judge, void *ctx,
                    double *tau, int64_t *rounds, struct err *err)
{
    double t = s->tau0;
    *rounds = 0;
    for (int i = 0; i < n; i++)
        for (bool ok = false; !ok; ++*rounds) {
            int rc = t > 0 ? judge(ctx, i, t, &ok, err) : 0;
            if (rc)
                return rc;
            if (!ok && t == 0)
                ok = true;
            else if (!ok)
                t = sale_next_tau(t, s->tau_min);
        }
    *tau = t;
    return 0;
}
