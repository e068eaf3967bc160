/*
 * spargeattn_select.c - SpargeAttn's filter 1: which key blocks a query block keeps (arXiv
 * 2502.18137, section 3.3 and algorithm 1).
 *
 *   S^[i][j] = p(Q_i) . p(K'_j) scale, -inf where K'_j is not self-similar or not admissible
 *   P^[i]    = softmax over j;  kept: the largest P^, up to a sum of tau (or a fixed number)
 *   plus every key block that is not self-similar, plus whole rows whose Q_i is not
 *
 * 2 n_q n_k d for the scores, n_q n_k log n_k for sorting.
 */
#include "sim/methods/spargeattn/spargeattn.h"

#include "core/mem.h"
#include "sim/blocks/gpusum.h"
#include "sim/blocks/selectcost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct sparge_row {
    double *score;          /* [n] */
    struct sparge_entry *e; /* [n] */
    float *p;               /* [n] sorted */
    bool *keep;             /* [n] */
};

int sparge_row_new(int64_t n, struct sparge_row **out, struct err *err)
{
    struct sparge_row *w = NULL;
    int rc = 0;
    TRY(mem_zalloc(&w, 1, sizeof *w, "block row", err));
    TRY(mem_alloc(&w->score, n, sizeof *w->score, "block scores", err));
    TRY(mem_alloc(&w->e, n, sizeof *w->e, "block row", err));
    TRY(mem_alloc(&w->p, n, sizeof *w->p, "block probabilities", err));
    TRY(mem_alloc(&w->keep, n, sizeof *w->keep, "block map", err));
    *out = w;
    return 0;
out:
    sparge_row_free(w);
    return rc;
}

void sparge_row_free(struct sparge_row *w)
{
    if (!w)
        return;
    free(w->score);
    free(w->e);
    free(w->p);
    free(w->keep);
    free(w);
}

bool sparge_similar(const struct sparge_rules *r, double s, bool whole)
{
    return r->paper ? s >= r->theta : whole && s > r->theta;
}

static int by_probability(const void *a, const void *b)
{
    const struct sparge_entry *x = a, *y = b;
    if (x->p != y->p)
        return x->p < y->p ? 1 : -1;
    return (x->j > y->j) - (x->j < y->j);
}

void sparge_sort(struct sparge_entry *e, int64_t n)
{
    qsort(e, (size_t)n, sizeof *e, by_probability);
}

/* Leading entries whose running sum stays at or below the bound. In DT_F32 the sum is carried in
 * double and compared as float, so that rounding cannot lift it above 1; in the 16-bit types it is
 * that of the GPU that the official code runs on. */
static int64_t cut_by_mass(const struct sparge_rules *r, const float *p, int64_t n)
{
    double total = 0, sum = 0;
    for (int64_t i = 0; i < n; i++)
        total += p[i];
    float bound = (float)(r->paper ? r->tau * total : r->tau);
    if (r->cdf != DT_F32)
        return gpusum_count(r->cdf, r->chunk, p, n, bound);
    for (int64_t i = 0; i < n; i++) {
        sum += p[i];
        if ((float)sum > bound)
            return i;
    }
    return n;
}

int64_t sparge_cut(const struct sparge_rules *r, const float *p, int64_t n, double *mass)
{
    int64_t count;
    if (r->topk_cut)
        count = (int64_t)((float)r->topk * (float)n);
    else
        count = cut_by_mass(r, p, n);
    if (count < 1 && (r->topk_cut || !r->paper))
        count = 1;
    count = count > n ? n : count;
    if (mass) {
        *mass = 0;
        for (int64_t i = 0; i < count; i++)
            *mass += p[i];
    }
    return count;
}

/* Scaled product of two block means on the grid of the map. */
static double coarse_score(const struct sparge *s, int64_t i, int64_t j)
{
    int d = s->in.x.d;
    const float *a = s->qb.mean + i * d, *b = s->kb.mean + j * d;
    double dot = 0;
    for (int c = 0; c < d; c++)
        dot += (double)a[c] * b[c];
    if (s->map == DT_F32)
        return dot * s->in.x.scale;
    float x = dtype_round(s->map, (float)dot);
    return dtype_round(s->map, x * (float)s->in.x.scale);
}

/* Coarse probabilities of query block i; false when no key block is judged. */
static bool coarse_row(const struct sparge *s, struct sparge_row *w, int64_t i)
{
    double top = -INFINITY, sum = 0;
    for (int64_t j = 0; j < s->nk_blocks; j++) {
        bool judged = s->kb.similar[j] && sparge_admissible(&s->rules, s->in.x.causal, i, j);
        w->score[j] = judged ? coarse_score(s, i, j) : -INFINITY;
        top = fmax(top, w->score[j]);
    }
    if (top == -INFINITY)
        return false;
    for (int64_t j = 0; j < s->nk_blocks; j++) {
        w->score[j] = exp(w->score[j] - top);
        sum += w->score[j];
    }
    for (int64_t j = 0; j < s->nk_blocks; j++)
        w->e[j] =
            (struct sparge_entry){dtype_round(s->map, (float)(w->score[j] / sum)), (int32_t)j};
    return true;
}

int64_t sparge_list(const struct sparge *s, struct sparge_row *w, int64_t i, int32_t *col,
                    double *mass)
{
    int64_t n = s->nk_blocks, count = 0;
    *mass = -1;
    if (s->rules.dense || !s->qb.similar[i]) {
        memset(w->keep, 1, (size_t)n);
    } else {
        for (int64_t j = 0; j < n; j++)
            w->keep[j] = !s->kb.similar[j];
        if (coarse_row(s, w, i)) {
            sparge_sort(w->e, n);
            for (int64_t j = 0; j < n; j++)
                w->p[j] = w->e[j].p;
            int64_t taken = sparge_cut(&s->rules, w->p, n, mass);
            for (int64_t r = 0; r < taken; r++)
                w->keep[w->e[r].j] = true;
        }
    }
    if (s->rules.sink)
        w->keep[0] = true;
    for (int64_t j = 0; j < n; j++)
        if (w->keep[j] && sparge_admissible(&s->rules, s->in.x.causal, i, j))
            col[count++] = (int32_t)j;
    return count;
}

int64_t sparge_tiles(int64_t nq_blocks, int64_t nk_blocks, const struct sparge_rules *r,
                     bool causal)
{
    if (!causal)
        return nq_blocks * nk_blocks;
    int64_t n = 0;
    for (int64_t i = 0; i < nq_blocks; i++) {
        int64_t row = ((i + 1) * r->bq + r->bk - 1) / r->bk;
        n += row < nk_blocks ? row : nk_blocks;
    }
    return n;
}

int64_t sparge_native_tiles(int64_t nq_blocks, int64_t nk_blocks, bool causal)
{
    return causal ? nq_blocks * ((nk_blocks + 2) / 2) : nq_blocks * nk_blocks;
}

/* Key blocks that enter the softmax of query block i. */
static int64_t judged_keys(const struct sparge *s, int64_t i)
{
    int64_t n = 0;
    for (int64_t j = 0; s->qb.similar[i] && j < s->nk_blocks; j++)
        n += s->kb.similar[j] && sparge_admissible(&s->rules, s->in.x.causal, i, j);
    return n;
}

void sparge_cost(const struct sparge *s, struct select_cost *c)
{
    const struct attn_in *x = &s->in.x;
    double tokens = (double)(x->nq + x->nk), keys = (double)x->nk * x->d, judged = 0;
    double blocks = (double)(s->nq_blocks + s->nk_blocks);
    if (s->rules.dense)
        return;
    for (int64_t i = 0; i < s->nq_blocks; i++)
        judged += (double)judged_keys(s, i);
    if (s->rules.smooth_k) {
        cost_sums(c, 2 * keys); /* the mean, and the difference to it */
        cost_kept(c, keys);
        cost_rows(c, &s->in, 2 * (double)x->nk, x->d);
    }
    cost_sums(c, tokens * x->d);     /* means of blocks */
    cost_products(c, tokens, x->d);  /* lengths of rows */
    cost_sums(c, 2 * tokens * x->d); /* unit rows and their sum */
    cost_products(c, blocks, x->d);  /* its length */
    cost_products(c, judged, x->d);
    cost_softmax(c, judged);
    cost_rows(c, &s->in, (double)(x->nq + (s->rules.smooth_k ? 0 : x->nk)), x->d);
    cost_kept(c, blocks * (x->d + 1) + judged);
}
