/*
 * maskblocks.c - dumped masks as block lists (maskblocks.h).
 */
#include "tests/harness/maskblocks.h"

#include "core/intmath.h"
#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool belongs(const struct mask_set *s, const struct record *id)
{
    return strncmp(s->method, id->method, sizeof s->method - 1) == 0 &&
           strncmp(s->params, id->params ? id->params : "", sizeof s->params - 1) == 0 &&
           s->nq == id->n_q && s->nk == id->n_k && s->causal == id->causal;
}

static void begin_set(struct mask_set *s, const struct record *id)
{
    *s = (struct mask_set){.nq = id->n_q, .nk = id->n_k, .causal = id->causal};
    snprintf(s->method, sizeof s->method, "%.31s", id->method);
    snprintf(s->params, sizeof s->params, "%.95s", id->params ? id->params : "");
}

int mask_sets(const struct maskfile *f, struct mask_set **sets, int64_t *n, struct err *err)
{
    int64_t cap = 0, at;
    int rc = 0;
    *sets = NULL;
    *n = 0;
    for (int64_t i = 0; i < maskfile_cells(f); i++) {
        struct record id;
        record_init(&id);
        rc = maskfile_cell(f, i, &id, err);
        for (at = 0; !rc && at < *n && !belongs(*sets + at, &id); at++)
            ;
        if (!rc && at == *n)
            rc = mem_grow(sets, &cap, *n + 1, sizeof **sets, "sets of masks", err);
        if (!rc && at == *n)
            begin_set(*sets + (*n)++, &id);
        record_free(&id);
        if (rc)
            goto out;
        struct mask_set *s = *sets + at;
        if (s->heads < MASK_SET_HEADS)
            s->cells[s->heads++] = i;
    }
out:
    if (rc) {
        free(*sets);
        *sets = NULL;
    }
    return rc;
}

/* Tiles of bk keys that rows [r0, r1) touch, ascending, to col (room for ceil(nk / bk)). Returns
 * their number, or a negative code. */
static int64_t tiles_of_rows(const struct mask *m, int64_t r0, int64_t r1, int64_t bk, int32_t *col,
                             struct err *err)
{
    OWN(free_at) struct span *s = NULL;
    int64_t count = 0;
    int64_t n = mem_alloc(&s, mask_union_max(m, r0, r1), sizeof *s, "mask spans", err);
    if (n == 0)
        n = mask_union_spans(m, r0, r1, s, err);
    for (int64_t k = 0; k < n; k++)
        for (int64_t t = s[k].lo / bk; t <= (s[k].hi - 1) / bk; t++)
            if (count == 0 || col[count - 1] < t)
                col[count++] = (int32_t)t;
    return n < 0 ? n : count;
}

int mask_blocks(const struct maskfile *f, const struct mask_set *s, int bq, int bk, int64_t **ptr,
                int32_t **col, double *share, struct err *err)
{
    int64_t groups = ceil_div(s->nq, bq), at = 0, allowed = 0;
    struct mask m = {0};
    int rc = 0;
    *ptr = NULL;
    *col = NULL;
    TRY(mem_alloc(ptr, s->heads * groups + 1, sizeof **ptr, "block lists", err));
    TRY(mem_alloc(col, s->heads * groups * ceil_div(s->nk, bk), sizeof **col, "block lists", err));
    for (int h = 0; h < s->heads; h++) {
        TRY(maskfile_read(f, s->cells[h], &m, err));
        for (int64_t g = 0; g < groups; g++) {
            int64_t end = (g + 1) * bq < s->nq ? (g + 1) * bq : s->nq;
            int64_t n = tiles_of_rows(&m, g * bq, end, bk, *col + at, err);
            if (n < 0) {
                rc = (int)n;
                goto out;
            }
            (*ptr)[h * groups + g] = at;
            at += n;
            allowed += ceil_div(mask_limit(&m, end - 1), bk);
        }
        mask_free(&m);
    }
    (*ptr)[s->heads * groups] = at;
    *share = allowed ? (double)at / (double)allowed : 0;
out:
    mask_free(&m);
    if (rc) {
        free(*ptr);
        free(*col);
        *ptr = NULL;
        *col = NULL;
    }
    return rc;
}
