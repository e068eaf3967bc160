/*
 * operands.c - copies of a head, and the scale of its values (operands.h).
 */
#include "cuda/operands.h"

#include "core/intmath.h"

#include <math.h>

/* ---- copies --------------------------------------------------------------------------------- */

/* Operands in 16 bits, and the outputs of two kernels. */
static double bytes_of(struct accel_heads n, const struct attn_in *x)
{
    return 2.0 * n.q * (double)x->nq * (x->d + 2 * x->dv) +
           2.0 * n.kv * (double)x->nk * (x->d + x->dv);
}

/* n query heads, in the largest groups of at most `group` that divide them. */
static struct accel_heads grouped(int n, int group)
{
    while (n % group)
        group--;
    return (struct accel_heads){n, n / group};
}

struct accel_heads copies_of(int wanted, struct accel_heads call, const struct attn_in *x, int sms,
                             int64_t memory)
{
    int group = call.kv > 0 && call.q > call.kv ? call.q / call.kv : 1, n = call.q;
    int64_t rows = ceil_div(x->nq, ACCEL_TILE);
    int64_t most = rows > 0 ? ceil_div((int64_t)sms * COPIES_ROWS, rows) : 1;

    if (wanted > 0)
        return grouped(wanted, group);
    n = n < 1 || most < 1 ? 1 : n < most ? n : (int)most;
    for (;; n--) {
        n -= n > group ? n % group : 0;
        struct accel_heads copies = grouped(n, group);
        if (n == 1 || bytes_of(copies, x) <= (double)memory / COPIES_SHARE)
            return copies;
    }
}

/* ---- values --------------------------------------------------------------------------------- */

int values_exponent(const float *v, int64_t n)
{
    float most = 0;
    int e;

    for (int64_t i = 0; i < n; i++)
        if (isfinite(v[i]) && fabsf(v[i]) > most)
            most = fabsf(v[i]);
    frexpf(most, &e);
    return most > 0 && (e > VALUES_EXPONENT || e <= -VALUES_EXPONENT) ? e : 0;
}

void values_scale(const float *v, int64_t n, int e, float *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = ldexpf(v[i], -e);
}
