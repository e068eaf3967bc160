/*
 * checkcu_metrics.c - the metrics of the GPU against those of the CPU in double: normalisers and
 * dense outputs, the mass that a mask keeps, sums of p, blocks and slices below thresholds, pooled
 * maps, and the differences of two outputs.
 *
 * Probabilities of the GPU come from fp32 scores, whose error grows with their size: the tolerance
 * of p is 1e-4, or 4e-6 of the largest |LSE|. Counts of units below c must lie between the CPU's
 * at c (1 - tolerance) and c (1 + tolerance).
 */
#include "core/mem.h"
#include "core/attention.h"
#include "core/dtype.h"
#include "cuda/metrics/metrics.h"
#include "sim/blocks/exact.h"
#include "tests/gpu/checkcu_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double levels[METRICS_C] = {0.02, 0.25, 0.5, 1, 1.5, 4, 16, 100};

struct metrics_check {
    struct gpu *g;
    const struct cu_run *r;
    struct attn_problem p; /* dense */
    struct exact exact;    /* of the CPU */
    const struct attn_ops *ops;
    const double *lse, *out;
    double tolerance;
    double worst;   /* of the kept mass */
    char what[200]; /* first complaint */
};

static bool complain(struct metrics_check *k, const char *what, double got, double want)
{
    if (!k->what[0])
        snprintf(k->what, sizeof k->what, "%s: %.9g, expected %.9g (tolerance of p %.1e)", what,
                 got, want, k->tolerance);
    return false;
}

static bool near(struct metrics_check *k, const char *what, double got, double want, double tol)
{
    return got == want || fabs(got - want) <= tol || complain(k, what, got, want);
}

static int cpu_reference(struct metrics_check *k, struct err *err)
{
    const struct attn_problem *p = &k->p;
    struct attn_in in = {.nq = p->nq,
                         .nk = p->nk,
                         .d = p->d,
                         .dv = attn_dv(p->d),
                         .q = k->r->q,
                         .k = k->r->k,
                         .v = k->r->v,
                         .scale = p->scale,
                         .causal = p->causal};
    double most = 0;

    exact_init(&k->exact, &in, PREC_F64);
    PASS_ON(exact_operands(&k->exact, &k->ops, err));
    PASS_ON(exact_out(&k->exact, 0, p->nq, &k->out, err));
    PASS_ON(exact_lse(&k->exact, 0, p->nq, &k->lse, err));
    for (int64_t i = 0; i < p->nq; i++)
        if (isfinite(k->lse[i]) && fabs(k->lse[i]) > most)
            most = fabs(k->lse[i]);
    k->tolerance = fmax(1e-4, 4e-6 * most);
    return 0;
}

/* ---- parts ---------------------------------------------------------------------------------- */

static int check_reference(struct metrics_check *k, const struct metrics_ref *ref, struct err *err)
{
    int64_t n = k->p.nq * attn_dv(k->p.d);
    OWN(free_at) float *out = NULL;
    OWN(free_at) double *lse = NULL;
    double delta = 0, size = 0;

    PASS_ON(mem_alloc(&out, n, sizeof *out, "output", err));
    PASS_ON(mem_alloc(&lse, k->p.nq, sizeof *lse, "log-sum-exp", err));
    PASS_ON(gpu_get(k->g, out, ref->out, n * 4, err));
    PASS_ON(gpu_get(k->g, lse, ref->lse, k->p.nq * 8, err));
    for (int64_t i = 0; i < k->p.nq; i++)
        if (!near(k, "dense LSE", lse[i], k->lse[i], k->tolerance))
            return 0;
    for (int64_t i = 0; i < n; i++) {
        delta += (out[i] - k->out[i]) * (out[i] - k->out[i]);
        size += k->out[i] * k->out[i];
    }
    near(k, "dense output, relative L2", sqrt(delta / fmax(size, 1e-300)), 0, 4e-3);
    return 0;
}

static double row_sum(const struct metrics_check *k, int64_t row)
{
    return k->lse[row] == -INFINITY ? 0 : 1;
}

/* Against the CPU's mass over the mask. */
static int check_mass(struct metrics_check *k, const double *mass, struct err *err)
{
    const struct attn_problem *p = &k->r->c.problem;
    OWN(mask_free) struct mask m = {0};
    OWN(free_at) double *kept = NULL;
    int bq = attn_block_rows(p->lists, NULL);

    PASS_ON(mem_alloc(&kept, p->nq, sizeof *kept, "mass", err));
    PASS_ON(mask_lists_init(&m, p->nq, p->nk, 0, p->nq, p->causal, bq,
                            attn_block_keys(p->lists, NULL), err));
    for (int64_t b = 0; b * bq < p->nq; b++)
        for (int64_t i = k->r->ptr[b]; i < k->r->ptr[b + 1]; i++)
            PASS_ON(mask_lists_add(&m, b, k->r->col[i], err));
    mask_lists_finish(&m);
    PASS_ON(attn_rows(k->ops, &m, NULL, kept, err));
    for (int64_t i = 0; i < p->nq; i++) {
        double want = kept[i] == -INFINITY ? 0 : exp(kept[i] - k->lse[i]);
        if (!near(k, "kept mass of a row", mass[i], want, k->tolerance))
            break;
        k->worst = fmax(k->worst, fabs(mass[i] - want));
    }
    return 0;
}

static int check_sums(struct metrics_check *k, const struct metrics_pass *pass, struct err *err)
{
    OWN(free_at) double *sum = NULL;
    PASS_ON(mem_alloc(&sum, k->p.nq, sizeof *sum, "sums", err));
    PASS_ON(metrics_pass_sums(k->g, pass, sum, err));
    for (int64_t i = 0; i < k->p.nq; i++)
        if (!near(k, "sum of p of a row", sum[i], row_sum(k, i), 1e-4))
            break;
    return 0;
}

static void between(struct metrics_check *k, const char *what, int unit, double c, int64_t got,
                    int64_t low, int64_t high)
{
    char text[64];
    if (got >= low && got <= high)
        return;
    snprintf(text, sizeof text, "%s of %s below %g/N", what, map_below_name(unit), c);
    complain(k, text, (double)got, (double)low);
}

static int check_below(struct metrics_check *k, const struct metrics_pass *pass, const double *c,
                       int n_c, struct err *err)
{
    struct metrics_below got;
    OWN(free_at) struct map_below *want = NULL;

    PASS_ON(mem_zalloc(&want, 1, sizeof *want, "map statistics", err));
    for (int i = 0; i < n_c; i++) {
        want->c[2 * i] = c[i] * (1 - k->tolerance);
        want->c[2 * i + 1] = c[i] * (1 + k->tolerance);
    }
    want->n_c = 2 * n_c;
    PASS_ON(map_below_run(&k->exact, want, err));
    PASS_ON(metrics_pass_below(k->g, pass, &got, err));
    if (pass->p_max)
        near(k, "largest p", got.p_max, want->p_max, k->tolerance * want->p_max);
    for (int u = 0; u < BELOW_UNITS; u++)
        for (int i = 0; i < n_c; i++) {
            between(k, "units", u, c[i], got.units[u][i], want->below[u][2 * i],
                    want->below[u][2 * i + 1]);
            between(k, "pairs", u, c[i], got.pairs[u][i], want->below_pairs[u][2 * i],
                    want->below_pairs[u][2 * i + 1]);
        }
    return 0;
}

static int check_cells(struct metrics_check *k, const struct metrics_pass *pass, int64_t pool,
                       struct err *err)
{
    int64_t n = (k->p.nq + pool - 1) / pool * ((k->p.nk + pool - 1) / pool);
    OWN(free_at) float *x = NULL; /* sum, max of the GPU; sum, max of the CPU */

    PASS_ON(mem_alloc(&x, 4 * n, sizeof *x, "maps", err));
    PASS_ON(metrics_pass_cells(k->g, pass, pool, x, x + n, err));
    PASS_ON(pool_map(k->ops, k->lse, pool, x + 2 * n, x + 3 * n, err));
    for (int64_t i = 0; i < n; i++)
        if (!near(k, "sum of a cell", x[i], x[2 * n + i],
                  k->tolerance * fmax(1e-3, x[2 * n + i])) ||
            !near(k, "maximum of a cell", x[n + i], x[3 * n + i],
                  k->tolerance * fmax(1e-3, x[3 * n + i])))
            break;
    return 0;
}

/* Against the same formulas in double, on the very outputs that the device compared. */
static void sums_agree(struct metrics_check *k, const uint16_t *out, const float *ref,
                       const struct accel_sums *s)
{
    double l1 = 0, l2 = 0, a = 0, rr = 0, oo = 0, dot = 0, most = 0;
    for (int64_t c = 0; c < k->p.nq * attn_dv(k->p.d); c++) {
        double x = bf16_to_f32(out[c]), y = ref[c];
        l1 += fabs(x - y);
        l2 += (x - y) * (x - y);
        a += fabs(y);
        rr += y * y;
        oo += x * x;
        dot += x * y;
        most = fmax(most, fabs(x - y));
    }
    near(k, "sum |Delta|", s->abs_delta, l1, 1e-5 * (l1 + 1e-3 * a));
    near(k, "sum Delta^2", s->sq_delta, l2, 1e-5 * (l2 + 1e-4 * rr));
    near(k, "sum |O|", s->abs_ref, a, 1e-5 * a);
    near(k, "sum O^2", s->sq_ref, rr, 1e-5 * rr);
    near(k, "sum O'^2", s->sq_out, oo, 1e-5 * oo);
    near(k, "sum O' O", s->dot, dot, 1e-5 * sqrt(oo * rr));
    near(k, "max |Delta|", s->max_delta, most, 1e-5 * (most + 1e-3 * a));
}

/* The outputs over the mask, compared as a replay does it. */
static int check_compare(struct metrics_check *k, const struct metrics_ref *ref, struct err *err)
{
    int64_t n = k->p.nq * attn_dv(k->p.d);
    const struct attn_tensors *x = &k->r->job.x;
    const struct metrics_dense dense = {ref->out, ref->lse, ref->norm};
    const struct metrics_outputs o = {x->out, x->lse, x->lse, false};
    struct accel_sums sums;
    OWN(free_at) uint16_t *out = NULL;
    OWN(free_at) float *want = NULL;
    OWN(free_at) double *mass = NULL;

    PASS_ON(mem_alloc(&out, n, sizeof *out, "output", err));
    PASS_ON(mem_alloc(&want, n, sizeof *want, "output", err));
    PASS_ON(mem_alloc(&mass, k->p.nq, sizeof *mass, "mass", err));
    PASS_ON(attn_job_launch(k->g, &k->r->job, err));
    PASS_ON(metrics_compare(k->g, &k->p, &dense, &o, &sums, mass, err));
    PASS_ON(gpu_get(k->g, out, x->out, n * 2, err));
    PASS_ON(gpu_get(k->g, want, ref->out, n * 4, err));
    sums_agree(k, out, want, &sums);
    return check_mass(k, mass, err);
}

/* ---- a case --------------------------------------------------------------------------------- */

/* Bits of all results of a pass. */
static int fingerprint(struct metrics_check *k, const struct metrics_pass *pass, double **out,
                       struct err *err)
{
    PASS_ON(mem_zalloc(out, k->p.nq + 1, sizeof **out, "results", err));
    if (pass->sums)
        PASS_ON(metrics_pass_sums(k->g, pass, *out, err));
    if (pass->n_c) {
        struct metrics_below b;
        PASS_ON(metrics_pass_below(k->g, pass, &b, err));
        for (int u = 0; u < ACCEL_UNITS; u++)
            for (int c = 0; c < pass->n_c; c++)
                (*out)[k->p.nq] += (double)(b.pairs[u][c] * (u + 1) + b.units[u][c]);
    }
    return 0;
}

static int check_repeat(struct metrics_check *k, const struct metrics_pass *pass, struct err *err)
{
    OWN(free_at) double *a = NULL, *b = NULL;
    PASS_ON(fingerprint(k, pass, &a, err));
    PASS_ON(metrics_pass_launch(k->g, pass, err));
    PASS_ON(fingerprint(k, pass, &b, err));
    if (memcmp(a, b, (size_t)(k->p.nq + 1) * sizeof *a) != 0)
        complain(k, "a second launch gave other bits", 1, 0);
    return 0;
}

static int check_pass(struct metrics_check *k, const struct metrics_ref *ref,
                      const struct metrics_ask *ask, bool twice, struct err *err)
{
    struct metrics_pass pass = {0};
    struct gpu_mark mark = gpu_mark(k->g);
    int rc = 0;

    TRY(metrics_pass_init(k->g, &k->p, &k->r->job.x, ref->norm, ask, &pass, err));
    if (pass.sums) /* no sum is to stay unwritten */
        CU(err, cudaMemsetAsync(pass.parts, 0xff, (size_t)pass.n_items * 1024, k->g->stream));
    TRY(metrics_pass_launch(k->g, &pass, err));
    if (pass.sums)
        TRY(check_sums(k, &pass, err));
    if (ask->n_c)
        TRY(check_below(k, &pass, ask->c, ask->n_c, err));
    if (ask->cells) {
        TRY(check_cells(k, &pass, 64, err));
        TRY(check_cells(k, &pass, 192, err));
    }
    if (twice)
        TRY(check_repeat(k, &pass, err));
out:
    metrics_pass_free(&pass);
    gpu_release(k->g, mark);
    return rc;
}

int cu_metrics_check(struct gpu *g, const struct cu_run *r, bool brief, double *worst,
                     char what[200], struct err *err)
{
    struct metrics_check k = {.g = g, .r = r, .p = r->c.problem};
    struct metrics_ref ref = {0};
    struct gpu_mark mark = gpu_mark(g);
    const struct metrics_ask asks[] = {
        {.c = levels + r->c.seed % METRICS_C, .n_c = 1},
        {.c = levels + 2, .n_c = 1},
        {.c = levels + r->c.seed % 3, .n_c = 1, .sums = true},
        {.c = levels + 3, .n_c = 1, .cells = true, .sums = true},
        {.cells = true, .sums = true},
        {.c = levels, .n_c = METRICS_C, .cells = r->c.seed % 2, .sums = true},
        {.c = levels, .n_c = METRICS_C},
    };
    const size_t n = sizeof asks / sizeof *asks, turn = r->c.seed / 2 % n;
    int rc = 0;

    k.p.lists = ATTN_DENSE;
    TRY(cpu_reference(&k, err));
    TRY(metrics_ref_init(g, &k.p, &r->job.x, true, &ref, err));
    TRY(metrics_ref_launch(g, &ref, err));
    TRY(check_reference(&k, &ref, err));
    TRY(check_compare(&k, &ref, err));
    for (size_t i = brief ? turn : 0; i < (brief ? turn + 1 : n); i++)
        if (asks[i].n_c || k.p.d == 64 || k.p.d == 128) /* captures alone ask for maps only */
            TRY(check_pass(&k, &ref, asks + i, !brief, err));
out:
    snprintf(what, 200, "%s", k.what);
    *worst = fmax(*worst, k.worst);
    metrics_ref_free(&ref);
    exact_free(&k.exact);
    gpu_release(g, mark);
    return rc;
}
