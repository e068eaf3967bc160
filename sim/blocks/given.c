/*
 * given.c - see given.h. O(units of the rows asked for).
 */
#include "sim/blocks/given.h"

#include "core/intmath.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

int given_init(struct given *g, const struct attn_in *x, int64_t bq, int64_t bk, struct err *err)
{
    memset(g, 0, sizeof *g);
    int rc = mask_lists_init(&g->whole, x->nq, x->nk, 0, x->nq, x->causal, bq, bk, err);
    g->whole.reach.prefix = x->reach.prefix; /* these keys come after rows that see them */
    if (!rc && bq == 1 && bk == 1)
        g->whole.exec = EXEC_NONE;
    return rc;
}

void given_free(struct given *g)
{
    mask_free(&g->whole);
    memset(g, 0, sizeof *g);
}

static int check_group(const struct mask *m, int64_t g, int64_t n, struct err *err)
{
    int64_t units = ceil_div(m->nk, m->bk), from = m->ptr[g], to = m->ptr[g + 1];
    if (to < from || to > n)
        return err_set(err, ERR_INPUT,
                       "the lists of row group %lld go from %lld to %lld of %lld entries",
                       (long long)g, (long long)from, (long long)to, (long long)n);
    for (int64_t e = from; e < to; e++) {
        if (m->col[e] < 0 || m->col[e] >= units)
            return err_set(err, ERR_INPUT,
                           "row group %lld has column %d, expected 0..%lld (%lld keys in units of "
                           "%lld)",
                           (long long)g, m->col[e], (long long)units - 1, (long long)m->nk,
                           (long long)m->bk);
        if (e > from && m->col[e] <= m->col[e - 1])
            return err_set(err, ERR_INPUT,
                           "row group %lld has column %d after column %d; columns must ascend, "
                           "each once",
                           (long long)g, m->col[e], m->col[e - 1]);
    }
    return 0;
}

int given_lists(struct given *g, int64_t *ptr, int32_t *col, int64_t n, struct err *err)
{
    struct mask *m = &g->whole;
    free(m->ptr);
    free(m->col);
    m->ptr = ptr;
    m->col = col;
    m->col_cap = n;
    if (ptr[0] != 0)
        return err_set(err, ERR_INPUT, "the row pointers begin with %lld, expected 0",
                       (long long)ptr[0]);
    for (int64_t i = 0; i < m->ngroups; i++) {
        PASS_ON(check_group(m, i, n, err));
    }
    if (ptr[m->ngroups] != n)
        return err_set(err, ERR_INPUT, "the row pointers end with %lld, there are %lld columns",
                       (long long)ptr[m->ngroups], (long long)n);
    return 0;
}

/* ---- rows ----------------------------------------------------------------------------------- */

/* First unit of group i of m that lies after all queries of the group. */
static int64_t end_unit(const struct mask *m, int64_t i)
{
    int64_t last = m->row0 + (i + 1) * m->bq;
    return ceil_div(mask_limit(m, (last < m->row1 ? last : m->row1) - 1), m->bk);
}

/* Pairs of unit c of group i. */
static int64_t unit_pairs(const struct mask *m, int64_t i, int64_t c)
{
    int64_t r0 = m->row0 + i * m->bq, k0 = c * m->bk;
    int64_t rows = r0 + m->bq < m->row1 ? m->bq : m->row1 - r0;
    return rows * (k0 + m->bk < m->nk ? m->bk : m->nk - k0);
}

static int add_unit(struct given *g, struct mask *out, int64_t i, int64_t end, int64_t c,
                    struct err *err)
{
    if (c < end || g->as_is)
        return mask_lists_add(out, i, (int32_t)c, err);
    g->dropped += unit_pairs(out, i, c);
    return 0;
}

static int add_listed(struct given *g, struct mask *out, int64_t i, struct err *err)
{
    const struct mask *m = &g->whole;
    int64_t at = out->row0 / m->bq + i, end = end_unit(out, i);
    for (int64_t e = m->ptr[at]; e < m->ptr[at + 1]; e++)
        PASS_ON(add_unit(g, out, i, end, m->col[e], err));
    return 0;
}

static int add_row(struct given *g, struct mask *out, int64_t i, uint8_t *keep, struct err *err)
{
    int64_t end = end_unit(out, i), units = ceil_div(out->nk, out->bk);
    PASS_ON(g->row(g->ctx, out->row0 / out->bq + i, keep, err));
    for (int64_t c = 0; c < units; c++)
        if (keep[c])
            PASS_ON(add_unit(g, out, i, end, c, err));
    return 0;
}

int given_select(struct given *g, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    const struct mask *m = &g->whole;
    OWN(free_at) uint8_t *keep = NULL;
    if (m->form != MASK_LISTS) {
        *out = *m;
        out->row0 = row0;
        out->row1 = row1;
        return 0;
    }
    PASS_ON(mask_lists_init(out, m->nq, m->nk, row0, row1, m->causal, m->bq, m->bk, err));
    out->reach = m->reach;
    out->exec = m->exec;
    out->exec_bq = m->exec_bq;
    out->exec_bk = m->exec_bk;
    if (g->row)
        PASS_ON(mem_alloc(&keep, ceil_div(m->nk, m->bk), 1, "row of a mask", err));
    for (int64_t i = 0; i < out->ngroups; i++)
        PASS_ON(g->row ? add_row(g, out, i, keep, err) : add_listed(g, out, i, err));
    mask_lists_finish(out);
    return 0;
}

/* ---- units ---------------------------------------------------------------------------------- */

int unit_parse(const char *text, int64_t *bq, int64_t *bk, struct err *err)
{
    char *end = NULL, *stop = NULL;
    long long a = strtoll(text, &end, 10), b = end && *end == 'x' ? strtoll(end + 1, &stop, 10) : 0;
    if (!stop || *stop || text[0] < '0' || text[0] > '9' || end[1] < '0' || end[1] > '9' || a < 1 ||
        b < 1 || a > 1 << 20 || b > 1 << 20)
        return err_set(err, ERR_USAGE,
                       "unit '%s': expected queries x keys, such as 64x64, each 1..1048576", text);
    *bq = a;
    *bk = b;
    return 0;
}
