/*
 * copies.c - copies of one head for a timed launch (copies.h).
 */
#include "cuda/copies.h"

#include "core/intmath.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

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

/* x, `count` ints, n times over; NULL stays. */
static int repeat(const int32_t *x, int64_t count, int n, void **out, struct err *err)
{
    int rc = 0;
    if (!x)
        return 0;
    TRY(mem_alloc(out, (int64_t)n * count, sizeof *x, "lists of several heads", err));
    for (int i = 0; i < n && count; i++)
        memcpy((int32_t *)*out + i * count, x, (size_t)count * sizeof *x);
out:
    return rc;
}

int copied_lists_make(const struct accel_head *h, int64_t groups, int n, struct copied_lists *l,
                      struct err *err)
{
    int64_t *ptr = NULL, blocks;
    int rc = 0;

    *l = (struct copied_lists){{h->ptr, h->col, h->bits, h->keys, h->words, h->n_bits, false},
                               {NULL}};
    if (n == 1 || !h->ptr)
        return 0;
    blocks = h->ptr[groups];
    TRY(mem_alloc(&ptr, n * groups + 1, sizeof *ptr, "lists of several heads", err));
    l->owned[0] = ptr;
    for (int i = 0; i < n; i++)
        for (int64_t g = 0; g <= groups; g++)
            ptr[i * groups + g] = i * blocks + h->ptr[g];
    TRY(repeat(h->col, blocks, n, l->owned + 1, err));
    TRY(repeat(h->bits, blocks, n, l->owned + 2, err));
    TRY(repeat(h->keys, blocks * ACCEL_TILE, n, l->owned + 3, err));
    l->csr.ptr = ptr;
    l->csr.col = l->owned[1];
    l->csr.bits = l->owned[2]; /* of the same words */
    l->csr.keys = l->owned[3];
out:
    if (rc)
        copied_lists_free(l);
    return rc;
}

void copied_lists_free(struct copied_lists *l)
{
    for (size_t i = 0; i < sizeof l->owned / sizeof *l->owned; i++)
        free(l->owned[i]);
    memset(l, 0, sizeof *l);
}
