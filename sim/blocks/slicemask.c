#include "sim/blocks/slicemask.h"

#include "core/intmath.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

int slice_mask_init(struct slice_mask *m, int64_t nq, int64_t nk, bool causal, int64_t height,
                    int64_t width, struct err *err)
{
    int64_t n;
    memset(m, 0, sizeof *m);
    m->nq = nq;
    m->nk = nk;
    m->causal = causal;
    m->exec_bq = m->exec_bk = 128;
    m->height = height;
    m->width = width;
    m->groups = ceil_div(nq, height);
    m->units = ceil_div(nk, width);
    m->words = (m->units + 63) / 64;
    if (!mul_ok(m->groups, m->words, &n))
        return err_set(err, ERR_NOMEM, "slice mask of %lld groups", (long long)m->groups);
    return mem_zalloc(&m->bits, n, sizeof *m->bits, "slice mask", err);
}

void slice_mask_free(struct slice_mask *m)
{
    free(m->bits);
    memset(m, 0, sizeof *m);
}

/* What a kernel multiplies for the mask. */
static void set_exec(const struct slice_mask *m, struct mask *out)
{
    if (m->exec_bq < 0)
        return;
    out->exec = m->exec_bq ? EXEC_GATHER : EXEC_NONE;
    if (m->exec_bq) {
        out->exec_bq = m->exec_bq;
        out->exec_bk = m->exec_bk;
    }
}

int slice_mask_take(struct slice_mask *m, const struct device_choice *c, int64_t height,
                    int64_t width, int64_t exec_bq, struct err *err)
{
    const struct mask *lists = c->lists;
    if (!lists) {
        m->exec_bq = exec_bq;
        m->exec_bk = 1;
        set_exec(m, c->exec);
        return 0;
    }
    if (lists->form != MASK_LISTS || lists->bq != height || lists->bk != width)
        return err_set(err, ERR_RUN, "a choice in units of %lld x %lld, expected %lld x %lld",
                       (long long)lists->bq, (long long)lists->bk, (long long)height,
                       (long long)width);
    PASS_ON(slice_mask_init(m, lists->nq, lists->nk, lists->causal, height, width, err));
    m->exec_bq = exec_bq;
    m->exec_bk = 1;
    for (int64_t g = 0; g < lists->ngroups; g++)
        mask_mark_units(m->bits + g * m->words, lists->col + lists->ptr[g],
                        lists->ptr[g + 1] - lists->ptr[g]);
    return 0;
}

int pairs_take(void *state, const struct device_choice *c, struct err *err)
{
    if (!c->lists)
        c->exec->exec_bq = c->exec->exec_bk = 1;
    else if (c->lists->bq != 1 || c->lists->bk != 1)
        return err_set(err, ERR_RUN, "a choice in units, not in pairs");
    return 0;
}

static int64_t group_end(const struct slice_mask *m, int64_t g)
{
    int64_t end = (g + 1) * m->height;
    return end < m->nq ? end : m->nq;
}

int64_t slice_mask_visible(const struct slice_mask *m, int64_t g)
{
    return ceil_div(key_limit(m->nq, m->nk, m->causal, group_end(m, g) - 1), m->width);
}

int64_t slice_mask_count(const struct slice_mask *m, int64_t g)
{
    int64_t n = 0;
    for (int64_t w = 0; w < m->words; w++)
        n += __builtin_popcountll(m->bits[g * m->words + w]);
    return n;
}

int64_t slice_mask_total(const struct slice_mask *m)
{
    return slice_mask_common(m, m);
}

int64_t slice_mask_common(const struct slice_mask *a, const struct slice_mask *b)
{
    int64_t n = 0;
    for (int64_t w = 0; w < a->groups * a->words; w++)
        n += __builtin_popcountll(a->bits[w] & b->bits[w]);
    return n;
}

int slice_mask_lists(const struct slice_mask *m, int64_t row0, int64_t row1, struct mask *out,
                     struct err *err)
{
    PASS_ON(mask_lists_init(out, m->nq, m->nk, row0, row1, m->causal, m->height, m->width, err));
    set_exec(m, out);
    for (int64_t g = 0; g < out->ngroups; g++)
        PASS_ON(mask_lists_add_bits(out, g, m->bits + (row0 / m->height + g) * m->words, m->words,
                                    err));
    mask_lists_finish(out);
    return 0;
}

int slice_mask_density(const struct slice_mask *m, double *density, struct err *err)
{
    int64_t kept = 0, step = ceil_div(4096, m->height) * m->height;
    for (int64_t r = 0; r < m->nq; r += step) {
        OWN(mask_free) struct mask lists = {0};
        struct mask_counts c;
        PASS_ON(slice_mask_lists(m, r, r + step < m->nq ? r + step : m->nq, &lists, err));
        PASS_ON(mask_count(&lists, &c, err));
        kept += c.pairs_kept;
    }
    *density = (double)kept / (double)pairs_allowed(m->nq, m->nk, m->causal);
    return 0;
}
