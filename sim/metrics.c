/*
 * metrics.c - recall and errors of a head (metrics.h). For exact softmax over a 0/1 mask, recall_i
 * = e^(LSE'_i - LSE_i), so no second pass over probabilities is needed. Errors compare the method's
 * output with dense attention.
 */
#include "sim/metrics.h"

#include "core/mem.h"
#include "core/sort.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int metrics_init(struct metrics_acc *a, int64_t nq, int64_t dv, struct err *err)
{
    memset(a, 0, sizeof *a);
    a->n = nq;
    a->dv = dv;
    a->min_row_cos = INFINITY;
    return mem_zalloc(&a->recall, nq, sizeof *a->recall, "recall of rows", err);
}

void metrics_free(struct metrics_acc *a)
{
    free(a->recall);
    memset(a, 0, sizeof *a);
}

/* Cosine with the conventions of two zero vectors (1) and one zero vector (0). */
static double cosine(double dot, double sq_a, double sq_b)
{
    if (sq_a == 0 && sq_b == 0)
        return 1;
    return sq_a == 0 || sq_b == 0 ? 0 : dot / (sqrt(sq_a) * sqrt(sq_b));
}

/* *top = max(*top, x); a NaN, once seen, stays: it must not disappear in a comparison. */
static void keep_max(double *top, double x)
{
    if (!isnan(*top) && !(x <= *top))
        *top = x;
}

static void keep_min(double *low, double x)
{
    if (!isnan(*low) && !(x >= *low))
        *low = x;
}

static void add_row_errors(struct metrics_acc *a, const double *out, const double *ref)
{
    double dot = 0, sq_out = 0, sq_ref = 0;
    for (int64_t c = 0; c < a->dv; c++) {
        double delta = out[c] - ref[c], size = fabs(delta);
        a->sum_abs_delta += size;
        a->sum_sq_delta += delta * delta;
        a->sum_abs_ref += fabs(ref[c]);
        keep_max(&a->max_delta, size);
        dot += out[c] * ref[c];
        sq_out += out[c] * out[c];
        sq_ref += ref[c] * ref[c];
    }
    a->dot += dot;
    a->sum_sq_out += sq_out;
    a->sum_sq_ref += sq_ref;
    keep_min(&a->min_row_cos, cosine(dot, sq_out, sq_ref));
}

static void add_row_lse(struct metrics_acc *a, double out, double ref)
{
    if (out == -INFINITY || ref == -INFINITY)
        return;
    double d = fabs(out - ref);
    a->sum_lse += d;
    a->rows_lse++;
    keep_max(&a->max_lse, d);
}

void metrics_add_rows(struct metrics_acc *a, int64_t row0, int64_t n, const double *out,
                      const double *ref, const double *lse_mask, const double *lse_out,
                      const double *lse_ref)
{
    for (int64_t i = 0; i < n; i++) {
        add_row_errors(a, out + i * a->dv, ref + i * a->dv);
        bool empty = lse_mask[i] == -INFINITY;
        a->recall[row0 + i] = empty ? 0 : exp(lse_mask[i] - lse_ref[i]);
        a->rows_empty += empty;
        add_row_lse(a, lse_out[i], lse_ref[i]);
    }
}

void metrics_add_measured(struct metrics_acc *a, const struct accel_result *r)
{
    double one = ldexp(1, r->rows_exp), square = one * one;
    for (int64_t i = 0; i < a->n; i++) {
        const struct accel_row *e = r->rows + i;
        a->sum_abs_delta += one * e->abs_delta;
        a->sum_sq_delta += square * e->sq_delta;
        a->sum_abs_ref += one * e->abs_ref;
        a->sum_sq_ref += square * e->sq_ref;
        a->sum_sq_out += square * e->sq_out;
        a->dot += square * e->dot;
        keep_max(&a->max_delta, one * e->max_delta);
        keep_min(&a->min_row_cos, cosine(e->dot, e->sq_out, e->sq_ref));
        a->recall[i] = r->mass[i];
        a->rows_empty += r->lse[i] == -INFINITY;
        add_row_lse(a, r->lse[i], r->dense_lse[i]);
    }
}

int metrics_add_mask(struct metrics_acc *a, const struct mask *m, double tiles_pv, struct err *err)
{
    struct mask_counts c;
    int64_t kept, allowed;
    int rc = 0;

    TRY(mask_count(m, &c, err));
    a->counts.pairs_kept += c.pairs_kept;
    a->counts.pairs_allowed += c.pairs_allowed;
    a->counts.pairs_exec = c.pairs_exec < 0 ? -1 : a->counts.pairs_exec + c.pairs_exec;
    a->counts.tiles_kept += c.tiles_kept;
    a->counts.tiles_allowed += c.tiles_allowed;
    a->counts.tiles_rect += c.tiles_rect;
    a->tiles_pv += tiles_pv < 0 ? (double)c.tiles_kept : tiles_pv;
    TRY(mask_tiles_kept(m, 64, 64, &kept, &allowed, err));
    a->kept64 += kept;
    a->allowed64 += allowed;
    TRY(mask_tiles_kept(m, 128, 128, &kept, &allowed, err));
    a->kept128 += kept;
    a->allowed128 += allowed;
out:
    return rc;
}

double percentile_sorted(const double *x, int64_t n, double p)
{
    int64_t rank = (int64_t)ceil(p * (double)n / 100);
    return x[rank < 1 ? 0 : rank > n ? n - 1 : rank - 1];
}

double ratio_or_inf(double num, double den)
{
    return num == 0 && den == 0 ? 0 : num / den;
}

struct named {
    const char *name;
    double value;
};

static int put_all(struct record *r, const struct named *v, size_t n, struct err *err)
{
    int rc = 0;
    for (size_t i = 0; i < n; i++) {
        TRY(record_metric(r, v[i].name, v[i].value, err));
        if (!isfinite(v[i].value))
            record_note(r, "nonfinite=%s", v[i].name);
    }
out:
    return rc;
}

int metrics_counts(const struct metrics_acc *a, int64_t nq, int64_t nk, struct record *r,
                   struct err *err)
{
    const struct mask_counts *c = &a->counts;
    double allowed = (double)c->pairs_allowed, tiles = (double)c->tiles_allowed;
    double qk = (double)c->tiles_kept, pv = a->tiles_pv;
    const struct named v[] = {
        {"density_elem", (double)c->pairs_kept / allowed},
        {"density_tile", qk / tiles},
        {"density_rect", (double)c->pairs_kept / ((double)nq * (double)nk)},
        {"density_tile@64x64", (double)a->kept64 / (double)a->allowed64},
        {"density_tile@128x128", (double)a->kept128 / (double)a->allowed128},
        {"sparsity_qk", 1 - qk / tiles},
        {"sparsity_pv", 1 - pv / tiles},
        {"sparsity_total", 1 - (qk + pv) / (2 * tiles)},
        {"sparsity_total_rect", 1 - (qk + pv) / (2 * (double)c->tiles_rect)},
        {"pairs_kept", (double)c->pairs_kept},
        {"pairs_allowed", allowed},
    };
    int rc = put_all(r, v, sizeof v / sizeof *v, err);
    if (rc || c->pairs_exec < 0)
        return rc;
    const struct named e[] = {
        {"density_exec", (double)c->pairs_exec / allowed},
        {"pairs_exec", (double)c->pairs_exec},
    };
    return put_all(r, e, 2, err);
}

int metrics_finish(struct metrics_acc *a, int64_t nq, int64_t nk, struct record *r, struct err *err)
{
    int rc = 0;
    double sum = 0, n = (double)a->n;

    TRY(metrics_counts(a, nq, nk, r, err));
    for (int64_t i = 0; i < a->n; i++)
        sum += a->recall[i];
    sort_f64(a->recall, a->n);
    const struct named v[] = {
        {"cra_min", a->recall[0]},
        {"cra_p1", percentile_sorted(a->recall, a->n, 1)},
        {"cra_p5", percentile_sorted(a->recall, a->n, 5)},
        {"cra_p50", percentile_sorted(a->recall, a->n, 50)},
        {"cra_mean", sum / n},
        {"err_l1_rel", ratio_or_inf(a->sum_abs_delta, a->sum_abs_ref)},
        {"err_l1_tok", a->sum_abs_delta / n},
        {"err_l2_rel", ratio_or_inf(sqrt(a->sum_sq_delta), sqrt(a->sum_sq_ref))},
        {"err_cos", cosine(a->dot, a->sum_sq_out, a->sum_sq_ref)},
        {"err_cos_row_min", a->min_row_cos},
        {"err_rmse", sqrt(a->sum_sq_delta / (n * (double)a->dv))},
        {"err_max", a->max_delta},
        {"err_lse_mean", a->rows_lse ? a->sum_lse / (double)a->rows_lse : 0},
        {"err_lse_max", a->max_lse},
        {"rows_empty", (double)a->rows_empty},
    };
    TRY(put_all(r, v, sizeof v / sizeof *v, err));
out:
    return rc;
}
