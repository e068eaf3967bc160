/*
 * benchcu_masks.c - lines of benchcu for lists of real masks (--masks).
 */
#include "tests/bench/benchcu.h"
#include "core/mem.h"
#include "tests/harness/maskblocks.h"

#include <stdlib.h>

/* One set in the lists of one kernel. */
static int mask_line(struct bench *b, const struct maskfile *f, const struct mask_set *s,
                     const struct attn_kernel *k, const struct cu_run *dense, struct err *err)
{
    struct cu_case c = bench_case(k->d, s->nq, s->heads, s->heads, s->causal, k->lists, k->name);
    int bq = attn_block_rows(k->lists, NULL), bk = attn_block_keys(k->lists, NULL);
    OWN(free_at) int64_t *ptr = NULL;
    OWN(free_at) int32_t *col = NULL;
    double share;
    char text[240];

    PASS_ON(mask_blocks(f, s, bq, bk, &ptr, &col, &share, err));
    struct attn_csr csr = {.ptr = ptr, .col = col};
    c.given = &csr;
    snprintf(text, sizeof text, "hd%d %lldK mask %dx%d %.1f%% %s%s%s", k->d,
             (long long)s->nq / 1024, bq, bk, 100 * share, s->method, *s->params ? ":" : "",
             s->params);
    if (share > 0)
        return bench_line(b, text, &c, dense, err);
    return 0;
}

static int mask_set_lines(struct bench *b, const struct maskfile *f, const struct mask_set *s,
                          int d, struct err *err)
{
    struct cu_case c = bench_case(d, s->nq, s->heads, s->heads, s->causal, ATTN_DENSE, NULL);
    struct cu_run dense = {0};
    int rc = 0;

    if (s->nq != s->nk)
        FAIL(err, ERR_USAGE, "--masks: %s has %lld queries and %lld keys, as many are expected",
             s->method, (long long)s->nq, (long long)s->nk);
    TRY(cu_run_init(&b->gpu, &c, &dense, err));
    for (const struct attn_kernel *k = attn_kernels; k->name; k++)
        if (k->d == d && k->lists && !cu_has_bits(k->lists) && bench_uses(b, k))
            TRY(mask_line(b, f, s, k, &dense, err));
out:
    if (dense.kernel)
        cu_run_free(&b->gpu, &dense);
    return rc;
}

int bench_masks(struct bench *b, struct err *err)
{
    OWN(maskfile_close) struct maskfile *f = NULL;
    OWN(free_at) struct mask_set *sets = NULL;
    int64_t n = 0;

    PASS_ON(maskfile_open(b->masks, &f, err));
    PASS_ON(mask_sets(f, &sets, &n, err));
    for (int d = 128; d >= 64; d /= 2)
        for (int64_t i = 0; i < n; i++)
            PASS_ON(mask_set_lines(b, f, sets + i, d, err));
    return 0;
}
