/*
 * checkcu_values.c - values of 2^124 and 2^-124 times normal ones: sums of p v and squares of
 * outputs leave float32's range, the exact output does not (cuda/operands.h). With rising data the
 * probabilities pass their row's reference by up to 2^60 as well.
 */
#include "tests/gpu/checkcu.h"

#include "core/intmath.h"
#include "core/mem.h"
#include "cuda/attn/attn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 700 };

/* A head, what the GPU made of it, and the same on the CPU; owned. */
struct head {
    struct attn_in x;
    float *q, *k, *v;
    double *out, *lse; /* of the CPU */
    int64_t *ptr;
    int32_t *col;
    struct accel_head head; /* its arrays owned */
    struct accel_result r;
};

static void head_free(struct head *h)
{
    free(h->q);
    free(h->k);
    free(h->v);
    free(h->out);
    free(h->lse);
    free(h->ptr);
    free(h->col);
    free(h->head.out);
    free(h->head.lse);
    free(h->head.mass);
}

static int reference(struct head *h, struct err *err)
{
    OWN(attn_release) struct attn_ops ops = {0};
    struct mask full;
    mask_full(&full, N, N, 0, N, h->x.causal);
    PASS_ON(mem_alloc(&h->out, N * h->x.d, sizeof *h->out, "outputs", err));
    PASS_ON(mem_alloc(&h->lse, N, sizeof *h->lse, "log-sum-exp", err));
    PASS_ON(attn_prepare(&ops, &h->x, PREC_F64, err));
    return attn_rows(&ops, &full, h->out, h->lse, err);
}

static int head_init(int d, bool causal, enum cu_data data, int exponent, struct head *h,
                     struct err *err)
{
    struct cu_case c = {
        .problem = {1, 1, d, N, N, 1 / sqrt(d), causal, ATTN_DENSE}, .data = data, .seed = 11};
    memset(h, 0, sizeof *h);
    PASS_ON(cu_make_tensor(&c, 0, 1, N, &h->q, err));
    PASS_ON(cu_make_tensor(&c, 1, 1, N, &h->k, err));
    PASS_ON(cu_make_tensor(&c, 2, 1, N, &h->v, err));
    for (int i = 0; i < N * d; i++)
        h->v[i] = ldexpf(h->v[i], exponent);
    h->x = (struct attn_in){.nq = N,
                            .nk = N,
                            .d = d,
                            .dv = d,
                            .q = h->q,
                            .k = h->k,
                            .v = h->v,
                            .scale = c.problem.scale,
                            .causal = causal};
    PASS_ON(reference(h, err));
    h->head.x = &h->x;
    PASS_ON(mem_alloc(&h->head.out, N * d, sizeof *h->head.out, "outputs", err));
    PASS_ON(mem_alloc(&h->head.lse, N, sizeof *h->head.lse, "log-sum-exp", err));
    return mem_alloc(&h->head.mass, N, sizeof *h->head.mass, "mass", err);
}

/* Lists of all blocks of bq x bk that have an allowed pair. */
static int all_blocks(struct head *h, int bq, int bk, struct err *err)
{
    int64_t groups = ceil_div(N, bq), n = 0;
    PASS_ON(mem_alloc(&h->ptr, groups + 1, sizeof *h->ptr, "lists", err));
    PASS_ON(mem_alloc(&h->col, groups * ceil_div(N, bk), sizeof *h->col, "lists", err));
    for (int64_t g = 0; g < groups; g++) {
        int64_t last = (g + 1) * bq < N && h->x.causal ? (g + 1) * bq : N;
        h->ptr[g] = n;
        for (int64_t b = 0; b < ceil_div(last, bk); b++)
            h->col[n++] = (int32_t)b;
    }
    h->ptr[groups] = n;
    return 0;
}

static void compare(const struct head *h, char what[160])
{
    const struct accel_sums *sums = &h->head.sums;
    double delta = 0, ref = 0, lse = 0, most = 0;
    double sum_delta = ldexp(sums->sq_delta, 2 * sums->exp);
    double sum_ref = ldexp(sums->sq_ref, 2 * sums->exp);
    for (int64_t i = 0; i < (int64_t)N * h->x.d; i++) {
        double d = h->head.out[i] - h->out[i];
        delta += d * d;
        ref += h->out[i] * h->out[i];
    }
    for (int64_t i = 0; i < N; i++) {
        lse = fmax(lse, isnan(h->head.lse[i]) ? INFINITY : fabs(h->head.lse[i] - h->lse[i]));
        most = fmax(most, fabs(h->lse[i]));
    }
    if (!(delta <= 25e-6 * ref))
        snprintf(what, 160, "output %.2e", sqrt(delta / ref));
    else if (!(lse <= fmax(1e-3, 2e-6 * most)))
        snprintf(what, 160, "lse %.2e of %.1f", lse, most);
    else if (!(fabs(sum_ref - ref) <= 1e-2 * ref))
        snprintf(what, 160, "measured norm of the reference %.6g, expected %.6g", sqrt(sum_ref),
                 sqrt(ref));
    else if (!(sum_delta <= 25e-6 * ref))
        snprintf(what, 160, "measured difference %.2e", sqrt(sum_delta / ref));
}

/* The kernel for lists of bq x bk blocks, 0 = dense, or of a filter. */
struct form {
    int bq, bk;
    const struct filter_kernel *filter;
};

/* False where this GPU has no such kernel. */
static bool check_case(const struct accel *a, struct accel_session *s, const struct form *f,
                       struct head *h, char what[160], struct err *err)
{
    struct accel_filter filter = {.bq = f->bq,
                                  .bk = f->bk,
                                  .pv = INFINITY,
                                  .scope = f->filter ? f->filter->scope : 0,
                                  .keep_denominator = true};
    struct accel_lists l = {
        .count = 1, .bq = f->bq ? f->bq : 128, .bk = f->bk ? f->bk : 128, .untimed = true};
    static uint64_t data; /* every head has another number */
    const struct accel_call call = {.n = 1, .group = 1, .heads = &h->head, .data = ++data};
    char why[160];
    int rc = 0;

    h->head.filter = f->filter ? &filter : NULL;
    if (f->filter && !a->can_attend(s, &h->head, why))
        return false;
    if (f->bq)
        TRY(all_blocks(h, f->bq, f->bk, err));
    l.ptr = h->ptr;
    l.col = h->col;
    TRY(a->attend_call(s, &call, &l, &h->r, err));
    compare(h, what);
out:
    if (rc)
        snprintf(what, 160, "%.150s", err->msg);
    return true;
}

static void check_form(const struct accel *a, struct accel_session *s, const struct form *f, int d)
{
    static const int exponents[] = {124, -124, 0};
    for (int i = 0; i < 3 * 2 * 2; i++) {
        enum cu_data data = i % 2 ? DATA_RISING : DATA_NORMAL;
        bool causal = i / 2 % 2;
        OWN(head_free) struct head h;
        struct err err = {0};
        char what[160] = "";
        int rc = head_init(d, causal, data, exponents[i / 4], &h, &err);
        if (rc)
            snprintf(what, sizeof what, "%.150s", err.msg);
        bool ran = rc || check_case(a, s, f, &h, what, &err);
        cu_checks += ran;
        cu_failures += *what != 0;
        if (*what)
            printf("FAIL values hd%d: values of 2^%d, data %s%s, kernel %s: %s\n", d,
                   exponents[i / 4], cu_data_names[data], causal ? ", causal" : "", h.r.kernel,
                   what);
    }
}

void check_values(const struct accel *a, const struct cu_choice *choice)
{
    static const struct form lists[] = {{0}, {128, 128, NULL}, {128, 64, NULL}, {64, 64, NULL}};
    const struct accel_options o = {.copies = 1, .events = true};
    int64_t before = cu_checks, failed = cu_failures;
    struct accel_session *s = NULL;
    struct err err = {0};

    if (a->open(&o, &s, &err)) {
        printf("FAIL values: %s\n", err.msg);
        ++cu_checks;
        ++cu_failures;
        return;
    }
    for (int d = 64; d <= 128; d *= 2)
        for (int i = 0; i < (choice->small ? 1 : 4); i++)
            check_form(a, s, lists + i, d);
    for (const struct filter_kernel *k = filter_kernels; k->kernel.name && !choice->small; k++) {
        if (k->kernel.element != ATTN_BF16)
            continue;
        struct form f = {attn_block_rows(k->kernel.lists, NULL),
                         attn_block_keys(k->kernel.lists, NULL), k};
        check_form(a, s, &f, k->kernel.d);
    }
    a->close(&s);
    printf("  %-5s values: %lld checks\n", cu_failures > failed ? "FAIL" : "ok",
           (long long)(cu_checks - before));
}
