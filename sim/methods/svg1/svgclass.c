/*
 * svgclass.c - see svg1.h.
 */
#include "sim/methods/svg1/svg1.h"

#include "core/mem.h"
#include "sim/blocks/exact.h"

#include <math.h>
#include <stdlib.h>

/* ---- exact ---------------------------------------------------------------------------------- */

/* Rows of one mask that are computed together: all of a stretch when every row is wanted. */
#define STRETCH 64

static double squared_error(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t c = 0; c < n; c++)
        sum += (a[c] - b[c]) * (a[c] - b[c]);
    return sum;
}

static int exact_error(const struct head_in *in, const struct svg_band *trial, int64_t row0,
                       int64_t row1, double *out, double *lse, double *sum, double *pairs,
                       struct err *err)
{
    int64_t dv = in->x.dv;
    const double *ref;
    struct mask m = {0};
    struct mask_counts n;
    int rc = 0;
    TRY(svg_band_mask(trial, row0, row1, &m, err));
    TRY(mask_count(&m, &n, err));
    *pairs += (double)n.pairs_kept;
    TRY(exact_attend(in->exact, &m, out, lse, err));
    TRY(exact_out(in->exact, row0, row1, &ref, err));
    *sum += squared_error(out, ref, (row1 - row0) * dv);
out:
    mask_free(&m);
    return rc;
}

static int classify_exact(const struct head_in *in, const struct svg_band trial[2],
                          const int64_t *rows, int64_t n_rows, double sum[2], double *pairs,
                          struct err *err)
{
    double *out = NULL, *lse = NULL;
    int64_t step = rows ? 1 : STRETCH;
    int rc = 0;

    TRY(mem_alloc(&out, step * in->x.dv, sizeof *out, "trial output", err));
    TRY(mem_alloc(&lse, step, sizeof *lse, "trial normaliser", err));
    for (int64_t r = 0; r < n_rows; r += step) {
        int64_t row0 = rows ? rows[r] : r, row1 = row0 + (n_rows - r < step ? n_rows - r : step);
        for (int k = 0; k < 2; k++)
            TRY(exact_error(in, &trial[k], row0, row1, out, lse, &sum[k], pairs, err));
    }
out:
    free(out);
    free(lse);
    return rc;
}

/* ---- imitation of 16-bit tensors ------------------------------------------------------------ */

static float round_bf16(double x)
{
    return bf16_to_f32(f32_to_bf16((float)x));
}

/* Softmax over the keys of the spans and its product with v: probabilities and outputs are rounded,
 * sums are not. */
static void rounded_row(const struct attn_in *x, const float *s, const struct span *spans,
                        int64_t n_spans, float *out, double *sums)
{
    double top = -INFINITY, total = 0;
    for (int64_t k = 0; k < n_spans; k++)
        for (int64_t j = spans[k].lo; j < spans[k].hi; j++)
            top = fmax(top, s[j]);
    for (int64_t k = 0; k < n_spans; k++)
        for (int64_t j = spans[k].lo; j < spans[k].hi; j++)
            total += exp(s[j] - top);
    for (int c = 0; c < x->dv; c++)
        sums[c] = 0;
    for (int64_t k = 0; k < n_spans; k++)
        for (int64_t j = spans[k].lo; j < spans[k].hi; j++) {
            double p = round_bf16(exp(s[j] - top) / total);
            for (int c = 0; c < x->dv && p > 0; c++)
                sums[c] += p * x->v[j * x->dv + c];
        }
    for (int c = 0; c < x->dv; c++)
        out[c] = round_bf16(sums[c]);
}

struct rounded {
    double *scores, *sums; /* [nk], [dv] */
    float *s, *golden, *out;
    struct span *spans;
};

static int rounded_init(struct rounded *w, const struct attn_in *x, const struct svg_band trial[2],
                        struct err *err)
{
    int64_t a = svg_band_max_spans(&trial[0]), b = svg_band_max_spans(&trial[1]);
    int rc = 0;
    TRY(mem_alloc(&w->scores, x->nk, sizeof *w->scores, "scores of a row", err));
    TRY(mem_alloc(&w->s, x->nk, sizeof *w->s, "rounded scores", err));
    TRY(mem_alloc(&w->sums, x->dv, sizeof *w->sums, "trial output", err));
    TRY(mem_alloc(&w->golden, x->dv, sizeof *w->golden, "trial output", err));
    TRY(mem_alloc(&w->out, x->dv, sizeof *w->out, "trial output", err));
    TRY(mem_alloc(&w->spans, a > b ? a : b, sizeof *w->spans, "trial mask", err));
out:
    return rc;
}

static void rounded_free(struct rounded *w)
{
    free(w->scores);
    free(w->s);
    free(w->sums);
    free(w->golden);
    free(w->out);
    free(w->spans);
}

static int classify_bf16(const struct head_in *in, const struct svg_band trial[2],
                         const int64_t *rows, int64_t n_rows, double sum[2], struct err *err)
{
    const struct attn_in *x = &in->x;
    struct rounded w = {0};
    struct span all = {0, (int32_t)x->nk};
    int rc = 0;

    TRY(rounded_init(&w, x, trial, err));
    for (int64_t r = 0; r < n_rows; r++) {
        int64_t row = rows ? rows[r] : r;
        TRY(exact_scores(in->exact, row, row + 1, 0, x->nk, w.scores, err));
        for (int64_t j = 0; j < x->nk; j++)
            w.s[j] = round_bf16(round_bf16(w.scores[j] / x->scale) * x->scale);
        rounded_row(x, w.s, &all, 1, w.golden, w.sums);
        for (int k = 0; k < 2; k++) {
            rounded_row(x, w.s, w.spans, svg_band_row(&trial[k], row, w.spans), w.out, w.sums);
            for (int c = 0; c < x->dv; c++) {
                double delta = round_bf16((double)w.out[c] - w.golden[c]);
                sum[k] += round_bf16(delta * delta);
            }
        }
    }
out:
    rounded_free(&w);
    return rc;
}

int svg_classify(const struct head_in *in, const struct svg_band trial[2], const int64_t *rows,
                 int64_t n_rows, bool bf16, struct svg_class *out, struct err *err)
{
    double sum[2] = {0}, pairs = 0;
    double n = (double)((rows ? n_rows : in->x.nq) * in->x.dv);
    int rc = 0;

    if (bf16)
        TRY(classify_bf16(in, trial, rows, rows ? n_rows : in->x.nq, sum, err));
    else
        TRY(classify_exact(in, trial, rows, rows ? n_rows : in->x.nq, sum, &pairs, err));
    out->pairs = pairs;
    out->rows = rows ? n_rows : in->x.nq;
    for (int k = 0; k < 2; k++)
        out->mse[k] = bf16 ? round_bf16(sum[k] / n) : sum[k] / n;
    out->temporal = out->mse[1] < out->mse[0];
out:
    return rc;
}
