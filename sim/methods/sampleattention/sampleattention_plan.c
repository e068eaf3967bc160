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
#include "core/intmath.h"
#include "core/mem.h"
#include "core/opt.h"
#include "sim/blocks/tokscore.h"
#include "sim/methods/sampleattention/sampleattention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- sampled slices and their score lists ---------------------------------------------------- */

/* A_c[i][J] = 1/B sum over q in slice i, k in block J      of P[q][k]
 *   A_s[i][x] = 1/B sum over q in slice i, k with bin(q-k)=x of P[q][k]
 *
 * The slash list bins token distances: for a slice that is one row block, summing over diagonals of
 * the block grid would be A_c in reverse order and carry nothing new. Scores are sums (not maxima),
 * because find_k compares their running total with a share of mass.
 *
 * Cost: chunks * B exact softmax rows, 2 B N d chunks FLOP. */

/* Exact rows held at a time. */
#define PIECE 16

int64_t sample_blocks(const struct sample_config *c)
{
    return (c->nk + c->block - 1) / c->block;
}

bool sample_applies(const struct sample_config *c)
{
    return c->nq >= 2 * c->block && c->chunks * c->block < c->nq;
}

void sample_ends(const struct sample_config *c, int64_t end[SAMPLE_MAX_CHUNKS + 1])
{
    int64_t shift = c->nk - c->nq;
    end[0] = shift;
    for (int i = 1; i < c->chunks; i++)
        end[i] = (shift + i * c->nq / c->chunks + c->block - 1) / c->block * c->block;
    end[c->chunks] = c->nk;
}

int64_t sample_bin(const struct sample_config *c, int64_t d)
{
    if (c->extend != SAMPLE_CENTRED)
        return d / c->block;
    int64_t x = (d + c->block / 2) / c->block, last = sample_blocks(c) - 1;
    return x < last ? x : last;
}

int sample_scores_init(struct sample_scores *s, const struct sample_config *c, struct err *err)
{
    int rc = 0;
    int64_t n = c->chunks * sample_blocks(c);
    memset(s, 0, sizeof *s);
    TRY(mem_zalloc(&s->col, n, sizeof *s->col, "column scores", err));
    TRY(mem_zalloc(&s->slash, n, sizeof *s->slash, "slash scores", err));
out:
    if (rc)
        sample_scores_free(s);
    return rc;
}

void sample_scores_free(struct sample_scores *s)
{
    free(s->col);
    free(s->slash);
    memset(s, 0, sizeof *s);
}

void sample_scores_add(struct sample_scores *s, const struct sample_config *c, int i, int64_t pos,
                       const double *p)
{
    int64_t nb = sample_blocks(c);
    double *col = s->col + i * nb, *slash = s->slash + i * nb, share = 1.0 / (double)c->block;
    if (c->reduce == SAMPLE_SUM) {
        for (int64_t k = 0; k <= pos; k++) {
            col[k / c->block] += share * p[k];
            slash[sample_bin(c, pos - k)] += share * p[k];
        }
        return;
    }
    for (int64_t k = 0; k <= pos; k++) {
        double *a = &col[k / c->block], *b = &slash[sample_bin(c, pos - k)];
        *a = p[k] > *a ? p[k] : *a;
        *b = p[k] > *b ? p[k] : *b;
    }
}

int sample_scores_run(struct sample_scores *s, const struct sample_config *c, struct exact *exact,
                      struct err *err)
{
    int rc = 0;
    double *p = NULL;
    int64_t end[SAMPLE_MAX_CHUNKS + 1], shift = c->nk - c->nq;

    sample_ends(c, end);
    TRY(mem_alloc(&p, PIECE * c->nk, sizeof *p, "sampled rows", err));
    for (int i = 0; i < c->chunks; i++)
        for (int64_t q = end[i + 1] - c->block; q < end[i + 1]; q += PIECE) {
            int64_t r0 = q - shift;
            TRY(exact_probs(exact, r0, r0 + PIECE, p, err));
            for (int r = 0; r < PIECE; r++)
                sample_scores_add(s, c, i, q + r, p + r * c->nk);
        }
out:
    free(p);
    return rc;
}

/* ---- find_k ----------------------------------------------------------------------------- */

int sample_find_k(const double *score, int64_t n, double alpha, int32_t *order, int64_t *k,
                  struct err *err)
{
    double total = 0, running = 0;
    int rc = order_descending(score, n, order, err);
    if (rc)
        return rc;
    for (int64_t i = 0; i < n; i++)
        total += score[i];

    /* The running total is taken in another order than the total and may stall just below it, so
     * that alpha >= 1 is its own case. */
    int64_t count = alpha >= 1 ? n : 0;
    while (count < n && (count == 0 || running < alpha * total))
        running += score[order[count++]];
    *k = count;
    return 0;
}

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

/* ---- the earlier algorithm ------------------------------------------------------------------- */

/* arXiv:2406.15486 v1 and v2: a local window, the token columns that hold a share alpha of the mass
 * of evenly strided exact rows, and a few dense last rows. Token exact; there is no slash list.
 *
 * Cost: rows * N exact softmax rows, a sort of N column scores. */

static int by_index(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

void sample_v2_init(struct sample_v2 *v, const struct attn_in *x, double window, double rows,
                    int64_t bottom)
{
    *v = (struct sample_v2){.nq = x->nq, .nk = x->nk, .bottom = MIN(bottom, x->nq)};
    v->step = (int64_t)fmin(fmax(round(1 / rows), 1), (double)x->nq);
    v->window = share_resolve((struct share){.value = window, .is_share = true}, x->nk);
    for (int64_t r = x->nq - 1; r >= 0; r -= v->step, v->sampled++)
        v->pairs += (double)(attn_limit(x, r) - attn_first(x, r));
}

int sample_v2_choose(struct sample_v2 *v, double alpha, struct exact *exact, struct err *err)
{
    double *score = NULL, *p = NULL;
    int rc = 0;
    TRY(mem_zalloc(&score, v->nk, sizeof *score, "column scores", err));
    TRY(mem_alloc(&p, v->nk, sizeof *p, "sampled row", err));
    for (int64_t r = v->nq - 1; r >= 0; r -= v->step) {
        TRY(exact_probs(exact, r, r + 1, p, err));
        for (int64_t k = 0; k < v->nk; k++)
            score[k] += p[k];
    }
    TRY(mem_alloc(&v->cols, v->nk, sizeof *v->cols, "token columns", err));
    TRY(sample_find_k(score, v->nk, alpha, v->cols, &v->ncols, err));
    qsort(v->cols, (size_t)v->ncols, sizeof *v->cols, by_index);
out:
    free(score);
    free(p);
    return rc;
}

void sample_v2_free(struct sample_v2 *v)
{
    free(v->cols);
    memset(v, 0, sizeof *v);
}

int sample_v2_mask(const struct sample_v2 *v, int64_t row0, int64_t row1, struct mask *out,
                   struct err *err)
{
    int rc = 0;
    TRY(mask_lists_init(out, v->nq, v->nk, row0, row1, true, 1, 1, err));
    /* No published kernel runs this mask: executed pairs are unknown. */
    out->exec = EXEC_NONE;
    for (int64_t r = row0; r < row1; r++) {
        int64_t pos = r + v->nk - v->nq, near = pos + 1 - v->window;
        near = near < 0 || r >= v->nq - v->bottom ? 0 : near;
        for (int64_t i = 0; i < v->ncols && v->cols[i] < near && v->cols[i] <= pos; i++)
            TRY(mask_lists_add(out, r - row0, v->cols[i], err));
        TRY(mask_lists_add_run(out, r - row0, (int32_t)near, (int32_t)(pos + 1), err));
    }
    mask_lists_finish(out);
out:
    return rc;
}
