/*
 * sampleattention_v2.c - the earlier algorithm of SampleAttention (arXiv:2406.15486 v1 and v2):
 * a local window, the token columns that hold a share alpha of the mass of evenly strided exact
 * rows, and a few dense last rows. Token exact; there is no slash list.
 *
 * Cost: rows * N exact softmax rows, a sort of N column scores.
 */
#include "sim/methods/sampleattention/sampleattention.h"

#include "core/intmath.h"
#include "core/mem.h"
#include "core/opt.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
