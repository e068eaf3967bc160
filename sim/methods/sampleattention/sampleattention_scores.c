/*
 * sampleattention_scores.c - SampleAttention's sampled slices, score lists and find_k
 * (arXiv:2406.15486, algorithm 1 and section 4).
 *
 *   A_c[i][J] = 1/B sum over q in slice i, k in block J      of P[q][k]
 *   A_s[i][x] = 1/B sum over q in slice i, k with bin(q-k)=x of P[q][k]
 *
 * The slash list bins token distances: for a slice that is one row block, summing over diagonals of
 * the block grid would be A_c in reverse order and carry nothing new. Scores are sums (not maxima),
 * because find_k compares their running total with a share of mass.
 *
 * Cost: chunks * B exact softmax rows, 2 B N d chunks FLOP.
 */
#include "sim/methods/sampleattention/sampleattention.h"

#include "core/mem.h"
#include "sim/blocks/tokscore.h"

#include <stdlib.h>
#include <string.h>

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
