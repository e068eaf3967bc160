/*
 * sampleattention_plan.c - from score lists to the block mask (arXiv:2406.15486, algorithm 1:
 * find_k, extend, merge).
 *
 *   keep block (I, J), J <= I  iff  J in I_c[i(I)]  or  I - J in extended I_s[i(I)]
 *                                   or forced (diagonal, sink)
 *
 * A token slash at distance B x + r lies on block diagonal x for a share 1 - r/B of its rows and on
 * x + 1 for the rest. cover2 therefore extends a bin to both diagonals; cover1 keeps one of them;
 * centred moves the bins by B/2 so that one diagonal holds at least half of every slash.
 */
#include "sim/methods/sampleattention/sampleattention.h"

#include "core/intmath.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

/* Mark the kept columns and bins of one pair of score lists in row `l`. */
static int mark_lists(struct sample_plan *p, const double *col, const double *slash, int slice,
                      int l, int32_t *order, struct err *err)
{
    int rc = 0;
    int64_t nb = p->nb;
    TRY(sample_find_k(col, nb, p->c.alpha_c, order, &p->kc[slice], err));
    for (int64_t i = 0; i < p->kc[slice]; i++)
        p->cols[l * nb + order[i]] = 1;
    TRY(sample_find_k(slash, nb, p->c.alpha_s, order, &p->ks[slice], err));
    for (int64_t i = 0; i < p->ks[slice]; i++)
        p->bins[l * nb + order[i]] = 1;
out:
    return rc;
}

static void extend_bins(struct sample_plan *p)
{
    for (int l = 0; l < p->lists; l++)
        for (int64_t x = 0; x < p->nb; x++)
            if (p->bins[l * p->nb + x]) {
                p->diags[l * (p->nb + 1) + x] = 1;
                if (p->c.extend == SAMPLE_COVER2)
                    p->diags[l * (p->nb + 1) + x + 1] = 1;
            }
}

/* Mean over the slices of lists [chunks][nb] into mean[nb]. */
static void mean_list(const double *list, int chunks, int64_t nb, double *mean)
{
    for (int64_t x = 0; x < nb; x++) {
        double sum = 0;
        for (int i = 0; i < chunks; i++)
            sum += list[i * nb + x];
        mean[x] = sum / chunks;
    }
}

int sample_plan_build(struct sample_plan *p, const struct sample_config *c,
                      const struct sample_scores *s, struct err *err)
{
    int rc = 0;
    int32_t *order = NULL;
    double *mean = NULL;
    memset(p, 0, sizeof *p);
    p->c = *c;
    p->nb = sample_blocks(c);
    p->lists = c->merge == SAMPLE_PERCHUNK ? c->chunks : 1;
    p->slices = c->merge == SAMPLE_MEAN ? 1 : c->chunks;
    sample_ends(c, p->end);
    TRY(mem_zalloc(&p->cols, p->lists * p->nb, 1, "column lists", err));
    TRY(mem_zalloc(&p->bins, p->lists * p->nb, 1, "slash lists", err));
    TRY(mem_zalloc(&p->diags, p->lists * (p->nb + 1), 1, "diagonals", err));
    TRY(mem_alloc(&order, p->nb, sizeof *order, "score order", err));
    if (c->merge == SAMPLE_MEAN) {
        TRY(mem_alloc(&mean, 2 * p->nb, sizeof *mean, "mean scores", err));
        mean_list(s->col, c->chunks, p->nb, mean);
        mean_list(s->slash, c->chunks, p->nb, mean + p->nb);
        TRY(mark_lists(p, mean, mean + p->nb, 0, 0, order, err));
    } else {
        for (int i = 0; i < c->chunks; i++)
            TRY(mark_lists(p, s->col + i * p->nb, s->slash + i * p->nb, i,
                           c->merge == SAMPLE_PERCHUNK ? i : 0, order, err));
    }
    extend_bins(p);
out:
    free(order);
    free(mean);
    if (rc)
        sample_plan_free(p);
    return rc;
}

void sample_plan_free(struct sample_plan *p)
{
    free(p->cols);
    free(p->bins);
    free(p->diags);
    memset(p, 0, sizeof *p);
}

int sample_plan_list(const struct sample_plan *p, int64_t row_block)
{
    int64_t last = (row_block + 1) * p->c.block;
    last = (last < p->c.nk ? last : p->c.nk) - 1;
    int i = 0;
    while (i < p->lists - 1 && p->end[i + 1] <= last)
        i++;
    return i;
}

int64_t sample_unit(const struct sample_config *c)
{
    return gcd(c->block, (c->nk - c->nq) % c->block);
}

int sample_plan_mask(const struct sample_plan *p, int64_t row0, int64_t row1, struct mask *out,
                     int64_t *forced, struct err *err)
{
    int rc = 0;
    int64_t b = p->c.block, unit = sample_unit(&p->c), shift = p->c.nk - p->c.nq;
    TRY(mask_lists_init(out, p->c.nq, p->c.nk, row0, row1, true, unit, b, err));
    for (int64_t g = 0; g < out->ngroups; g++) {
        int64_t i = (row0 + g * unit + shift) / b;
        int64_t first = reach_first(&p->c.reach, row0 + g * unit + shift) / b;
        int l = sample_plan_list(p, i);
        for (int64_t j = first; j <= i; j++) {
            int why = sample_plan_keeps(p, l, i, j);
            if (!why)
                continue;
            TRY(mask_lists_add(out, g, (int32_t)j, err));
            *forced += why == SAMPLE_BY_FORCE;
        }
    }
    mask_lists_finish(out);
out:
    return rc;
}
