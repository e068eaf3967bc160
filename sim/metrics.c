/*
 * metrics.c - recall and errors of a head (metrics.h). For exact softmax over a 0/1 mask, recall_i
 * = e^(LSE'_i - LSE_i), so no second pass over probabilities is needed. Errors compare the method's
 * output with dense attention.
 */
#include "sim/metrics.h"

#include "core/intmath.h"
#include "core/mem.h"
#include "core/sort.h"

#include <math.h>
#include <stdio.h>
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
        a->sum[SUM_ABS_DELTA] += size;
        a->sum[SUM_SQ_DELTA] += delta * delta;
        a->sum[SUM_ABS_REF] += fabs(ref[c]);
        keep_max(&a->max_delta, size);
        dot += out[c] * ref[c];
        sq_out += out[c] * out[c];
        sq_ref += ref[c] * ref[c];
    }
    a->sum[SUM_DOT] += dot;
    a->sum[SUM_SQ_OUT] += sq_out;
    a->sum[SUM_SQ_REF] += sq_ref;
    keep_min(&a->min_row_cos, cosine(dot, sq_out, sq_ref));
}

static void add_row_lse(struct metrics_acc *a, double out, double ref)
{
    if (out == -INFINITY || ref == -INFINITY)
        return;
    double d = fabs(out - ref);
    a->sum[SUM_LSE] += d;
    a->sum[SUM_ROWS_LSE]++;
    keep_max(&a->max_lse, d);
}

void metrics_add_rows(struct metrics_acc *a, int64_t row0, int64_t n, const double *out,
                      const double *ref, const double *lse_mask, const double *lse_out,
                      const double *lse_ref)
{
    for (int64_t i = 0; i < n; i++) {
        add_row_errors(a, out + i * a->dv, ref + i * a->dv);
        bool empty = lse_mask[i] == -INFINITY;
        a->recall[row0 - a->row0 + i] = empty ? 0 : exp(lse_mask[i] - lse_ref[i]);
        a->sum[SUM_ROWS_EMPTY] += empty;
        add_row_lse(a, lse_out[i], lse_ref[i]);
    }
}

void metrics_add_sums(struct metrics_acc *a, const struct accel_sums *s, const double *mass)
{
    double one = ldexp(1, s->exp), square = one * one;
    a->sum[SUM_ABS_DELTA] += one * s->abs_delta;
    a->sum[SUM_SQ_DELTA] += square * s->sq_delta;
    a->sum[SUM_ABS_REF] += one * s->abs_ref;
    a->sum[SUM_SQ_REF] += square * s->sq_ref;
    a->sum[SUM_SQ_OUT] += square * s->sq_out;
    a->sum[SUM_DOT] += square * s->dot;
    keep_max(&a->max_delta, one * s->max_delta);
    keep_min(&a->min_row_cos, s->min_row_cos);
    a->sum[SUM_LSE] += s->sum_lse;
    keep_max(&a->max_lse, s->max_lse);
    a->sum[SUM_ROWS_LSE] += s->rows_lse;
    a->sum[SUM_ROWS_EMPTY] += s->rows_empty;
    memcpy(a->recall, mass, (size_t)a->n * sizeof *mass);
}

/* t += sign * more, but for the pairs that are executed. */
static void sum_tally(struct mask_tally *t, const struct mask_tally *more, int sign)
{
    const struct mask_counts *c = &more->counts;
    t->counts.pairs_kept += sign * c->pairs_kept;
    t->counts.pairs_allowed += sign * c->pairs_allowed;
    t->counts.tiles_kept += sign * c->tiles_kept;
    t->counts.tiles_allowed += sign * c->tiles_allowed;
    t->counts.tiles_rect += sign * c->tiles_rect;
    t->kept64 += sign * more->kept64;
    t->allowed64 += sign * more->allowed64;
    t->kept128 += sign * more->kept128;
    t->allowed128 += sign * more->allowed128;
}

void mask_tally_join(struct mask_tally *t, const struct mask_tally *more)
{
    int64_t exec = more->counts.pairs_exec;
    sum_tally(t, more, 1);
    t->counts.pairs_exec = exec < 0 ? -1 : t->counts.pairs_exec + exec;
    work_join(&t->work, &more->work);
}

static void add_tally(struct metrics_acc *a, const struct mask_tally *t, double tiles_pv)
{
    mask_tally_join(&a->tally, t);
    a->sum[SUM_TILES_PV] += tiles_pv < 0 ? (double)t->counts.tiles_kept : tiles_pv;
}

void metrics_add_tally(struct metrics_acc *a, const struct mask_tally *t)
{
    add_tally(a, t, -1);
}

/* As mask_count has it for lists with these counts. */
static int64_t pairs_exec_of(const struct mask *lists, const struct accel_units *u)
{
    int64_t sum = 0;
    if (lists->exec == EXEC_NONE)
        return -1;
    if (lists->exec == EXEC_TILES)
        return u->units * u->bq * u->bk;
    for (int64_t g = 0; g < u->groups; g++) {
        int64_t rows = MIN(u->bq, lists->nq - g * u->bq);
        sum += ceil_div(rows, lists->exec_bq) * lists->exec_bq *
               ceil_div(u->count[g] * u->bk, lists->exec_bk) * lists->exec_bk;
    }
    return sum;
}

int metrics_add_units(struct metrics_acc *a, const struct mask *lists, const struct accel_units *u,
                      double tiles_pv, struct err *err)
{
    struct mask_tally t = {0};
    PASS_ON(mask_tally_add(&t, lists, err));
    if (u->tile_rows)
        work_add_tiles(&t.work, u->tile_rows, ceil_div(lists->nq, ACCEL_TILE));
    t.counts.pairs_kept = u->pairs;
    t.counts.tiles_kept = u->units;
    t.counts.pairs_exec = pairs_exec_of(lists, u);
    t.kept64 = u->kept64;
    t.kept128 = u->tiles[0];
    add_tally(a, &t, tiles_pv);
    return 0;
}

int mask_tally_add(struct mask_tally *t, const struct mask *m, struct err *err)
{
    struct mask_tally one = {.work = {0}};
    PASS_ON(mask_count(m, &one.counts, err));
    PASS_ON(mask_tiles_kept(m, 64, 64, &one.kept64, &one.allowed64, err));
    PASS_ON(mask_tiles_kept(m, 128, 128, &one.kept128, &one.allowed128, err));
    PASS_ON(work_add(&one.work, m, err));
    mask_tally_join(t, &one);
    return 0;
}

int metrics_add_mask(struct metrics_acc *a, const struct mask *m, double tiles_pv, struct err *err)
{
    struct mask_tally t = {0};
    PASS_ON(mask_tally_add(&t, m, err));
    add_tally(a, &t, tiles_pv);
    return 0;
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

static int put_all(struct record *r, const struct named_value *v, size_t n, struct err *err)
{
    for (size_t i = 0; i < n; i++) {
        PASS_ON(record_metric(r, v[i].name, v[i].value, err));
        if (!isfinite(v[i].value))
            record_note(r, "nonfinite=%s", v[i].name);
    }
    return 0;
}

/* Smooth functions of sums over rows: what a sample of rows estimates with a standard error. */
struct figures {
    struct named_value v[20];
    size_t n;
};

static void figure(struct figures *f, const char *name, double value)
{
    f->v[f->n++] = (struct named_value){name, value};
}

/* rect: pairs of the rectangle, 0 = leave its figures out. */
static void count_figures(const struct metrics_acc *a, double rect, struct figures *f)
{
    const struct mask_counts *c = &a->tally.counts;
    double allowed = (double)c->pairs_allowed, tiles = (double)c->tiles_allowed;
    double qk = (double)c->tiles_kept, pv = a->sum[SUM_TILES_PV];

    figure(f, "density_elem", (double)c->pairs_kept / allowed);
    figure(f, "density_tile", qk / tiles);
    if (rect > 0)
        figure(f, "density_rect", (double)c->pairs_kept / rect);
    figure(f, "density_tile@64x64", (double)a->tally.kept64 / (double)a->tally.allowed64);
    figure(f, "density_tile@128x128", (double)a->tally.kept128 / (double)a->tally.allowed128);
    figure(f, "sparsity_qk", 1 - qk / tiles);
    figure(f, "sparsity_pv", 1 - pv / tiles);
    figure(f, "sparsity_total", 1 - (qk + pv) / (2 * tiles));
    if (rect > 0)
        figure(f, "sparsity_total_rect", 1 - (qk + pv) / (2 * (double)c->tiles_rect));
}

static void exec_figure(const struct metrics_acc *a, struct figures *f)
{
    if (a->tally.counts.pairs_exec >= 0)
        figure(f, "density_exec",
               (double)a->tally.counts.pairs_exec / (double)a->tally.counts.pairs_allowed);
}

int metrics_counts(const struct metrics_acc *a, int64_t nq, int64_t nk, struct record *r,
                   struct err *err)
{
    struct figures f = {.n = 0};

    count_figures(a, (double)nq * (double)nk, &f);
    figure(&f, "pairs_kept", (double)a->tally.counts.pairs_kept);
    figure(&f, "pairs_allowed", (double)a->tally.counts.pairs_allowed);
    exec_figure(a, &f);
    if (a->tally.counts.pairs_exec >= 0)
        figure(&f, "pairs_exec", (double)a->tally.counts.pairs_exec);
    PASS_ON(put_all(r, f.v, f.n, err));
    return work_record(&a->tally.work, a->dv, r, err);
}

static double sum_of(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i];
    return sum;
}

static double l1_rel(const struct metrics_acc *a)
{
    return ratio_or_inf(a->sum[SUM_ABS_DELTA], a->sum[SUM_ABS_REF]);
}

static double l2_rel(const struct metrics_acc *a)
{
    return ratio_or_inf(sqrt(a->sum[SUM_SQ_DELTA]), sqrt(a->sum[SUM_SQ_REF]));
}

static double rmse(const struct metrics_acc *a)
{
    return sqrt(a->sum[SUM_SQ_DELTA] / ((double)a->n * (double)a->dv));
}

static double lse_mean(const struct metrics_acc *a)
{
    return a->sum[SUM_ROWS_LSE] ? a->sum[SUM_LSE] / a->sum[SUM_ROWS_LSE] : 0;
}

int metrics_finish(struct metrics_acc *a, int64_t nq, int64_t nk, bool sample, struct record *r,
                   struct err *err)
{
    PASS_ON(metrics_counts(a, nq, nk, r, err));
    return metrics_output(a, sample, r, err);
}

int metrics_output(struct metrics_acc *a, bool sample, struct record *r, struct err *err)
{
    double n = (double)a->n;
    a->sum[SUM_RECALL] = sum_of(a->recall, a->n);
    sort_f64(a->recall, a->n);
    const struct named_value v[] = {
        {sample ? "cra_min~" : "cra_min", a->recall[0]},
        {"cra_p1", percentile_sorted(a->recall, a->n, 1)},
        {"cra_p5", percentile_sorted(a->recall, a->n, 5)},
        {"cra_p50", percentile_sorted(a->recall, a->n, 50)},
        {"cra_mean", a->sum[SUM_RECALL] / n},
        {"err_l1_rel", l1_rel(a)},
        {"err_l1_tok", a->sum[SUM_ABS_DELTA] / n},
        {"err_l2_rel", l2_rel(a)},
        {"err_cos", cosine(a->sum[SUM_DOT], a->sum[SUM_SQ_OUT], a->sum[SUM_SQ_REF])},
        {sample ? "err_cos_row_min~" : "err_cos_row_min", a->min_row_cos},
        {"err_rmse", rmse(a)},
        {sample ? "err_max~" : "err_max", a->max_delta},
        {"err_lse_mean", lse_mean(a)},
        {sample ? "err_lse_max~" : "err_lse_max", a->max_lse},
        {"rows_empty", a->sum[SUM_ROWS_EMPTY]},
    };
    return put_all(r, v, sizeof v / sizeof *v, err);
}

/* ---- samples of rows ------------------------------------------------------------------------ */

/* a += sign * b in all sums over rows. */
static void add_sums(struct metrics_acc *a, const struct metrics_acc *b, int sign)
{
    int64_t *exec = &a->tally.counts.pairs_exec, more = b->tally.counts.pairs_exec;
    for (int i = 0; i < N_SUMS; i++)
        a->sum[i] += sign * b->sum[i];
    sum_tally(&a->tally, &b->tally, sign);
    *exec = *exec < 0 || more < 0 ? -1 : *exec + sign * more;
}

void metrics_merge(struct metrics_acc *a, struct metrics_acc *part, int64_t n)
{
    int64_t at = 0;
    for (int64_t g = 0; g < n; at += part[g++].n) {
        part[g].sum[SUM_RECALL] = sum_of(part[g].recall, part[g].n);
        memcpy(a->recall + at, part[g].recall, (size_t)part[g].n * sizeof *a->recall);
        add_sums(a, &part[g], 1);
        keep_max(&a->max_delta, part[g].max_delta);
        keep_min(&a->min_row_cos, part[g].min_row_cos);
        keep_max(&a->max_lse, part[g].max_lse);
    }
}

/* All figures of the sums in a. Those over the rectangle depend on where the rows stand, more than
 * on what is kept there, and have no standard error. */
static void all_figures(const struct metrics_acc *a, bool errors, struct figures *f)
{
    f->n = 0;
    count_figures(a, 0, f);
    exec_figure(a, f);
    if (!errors)
        return;
    figure(f, "cra_mean", a->sum[SUM_RECALL] / (double)a->n);
    figure(f, "err_l1_rel", l1_rel(a));
    figure(f, "err_l1_tok", a->sum[SUM_ABS_DELTA] / (double)a->n);
    figure(f, "err_l2_rel", l2_rel(a));
    figure(f, "err_cos", cosine(a->sum[SUM_DOT], a->sum[SUM_SQ_OUT], a->sum[SUM_SQ_REF]));
    figure(f, "err_rmse", rmse(a));
    figure(f, "err_lse_mean", lse_mean(a));
}

/* A replicate t leaves group t out: (n - 1)(theta_t - theta_t+1) is, for a mean, the difference of
 * the groups t and t + 1, and to first order so for any smooth function of sums. */
int metrics_errors(const struct metrics_acc *a, const struct metrics_acc *part, int64_t n,
                   bool errors, struct record *r, struct err *err)
{
    double sum[20] = {0}, used = (double)(n - n % 2);
    struct figures f[2] = {{.n = 0}};

    for (int64_t g = 0; g + 1 < n; g += 2) {
        for (int k = 0; k < 2; k++) {
            struct metrics_acc rest = *a;
            add_sums(&rest, &part[g + k], -1);
            rest.n = a->n - part[g + k].n;
            all_figures(&rest, errors, &f[k]);
        }
        for (size_t i = 0; i < f[0].n; i++) {
            double d = (double)(n - 1) * (f[0].v[i].value - f[1].v[i].value);
            sum[i] += d * d;
        }
    }
    for (size_t i = 0; i < f[0].n; i++) {
        char name[48];
        snprintf(name, sizeof name, "%s~se", f[0].v[i].name);
        if (isfinite(sum[i]))
            PASS_ON(record_metric(r, name, sqrt(sum[i] / ((double)n * used)), err));
    }
    return 0;
}

/* ---- tiles of single pairs ------------------------------------------------------------------ */

int tile_count_add(struct tile_count *t, const struct mask *m, struct err *err)
{
    int64_t kept, allowed;
    PASS_ON(mask_tiles_kept(m, t->bq, t->bk, &kept, &allowed, err));
    t->kept += kept;
    t->allowed += allowed;
    t->rect += ceil_div(m->row1 - m->row0, t->bq) * ceil_div(m->nk, t->bk);
    return 0;
}

int tile_count_report(const struct tile_count *t, struct record *r, struct err *err)
{
    double density = (double)t->kept / (double)t->allowed;
    double rect = (double)t->kept / (double)t->rect;
    double exec = (double)(t->kept * t->bq * t->bk);
    return RECORD_ALL(r, err, {"density_tile", density}, {"sparsity_qk", 1 - density},
                      {"sparsity_pv", 1 - density}, {"sparsity_total", 1 - density},
                      {"sparsity_total_rect", 1 - rect}, {"pairs_exec", exec},
                      {"density_exec", exec / record_get(r, "pairs_allowed")});
}
