/*
 * copies.c - copies of one head for a timed launch (copies.h).
 */
#include "cuda/copies.h"

#include "core/intmath.h"

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
