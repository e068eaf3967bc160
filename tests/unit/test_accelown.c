/*
 * test_accelown.c - methods with arithmetic of their own on a back end that has kernels for it: the
 * rule that the back end is given, and what of its answer stands in the record. The back end here
 * computes LongNet from the rule alone, by the weights of its pairs, and not as the method's CPU
 * side does, segment by segment.
 */
#include "tests/harness/accelrun.h"
#include "tests/harness/methodrun.h"
#include "tests/harness/spargerun.h"

#include <math.h>

#define N 300
#define D 32

struct accel_session {
    struct own_rule asked;
    int attended;
    bool refuses;
};

static bool supports(const struct accel_session *s, const struct attn_in *x, int64_t *bq,
                     int64_t *bk, char why[160])
{
    *bq = *bk = ACCEL_TILE;
    return true;
}

static bool owns(const struct accel_session *s, const struct attn_in *x, const struct own_rule *r,
                 char why[160])
{
    if (s->refuses)
        snprintf(why, 160, "no such kernels here");
    return !s->refuses;
}

/* In how many branches is the pair? */
static int weight(const struct own_dilated *d, int64_t i, int64_t j)
{
    int n = 0;
    for (int b = 0; b < d->n; b++) {
        const struct own_branch *x = d->b + b;
        n += i / x->w == j / x->w && i % x->w % x->r == x->phase && j % x->w % x->r == x->phase;
    }
    return n;
}

static void dilated_row(const struct attn_in *x, const struct own_dilated *d, int64_t i,
                        double *out, double *lse)
{
    double sum = 0;
    memset(out, 0, (size_t)x->dv * sizeof *out);
    for (int64_t j = 0; j <= i; j++) {
        int w = weight(d, i, j);
        double s = 0;
        for (int c = 0; c < x->d; c++)
            s += (double)x->q[i * x->d + c] * x->k[j * x->d + c];
        double e = w * exp(s * x->scale);
        sum += e;
        for (int c = 0; c < x->dv; c++)
            out[c] += e * x->v[j * x->dv + c];
    }
    for (int c = 0; c < x->dv && sum > 0; c++)
        out[c] /= sum;
    *lse = log(sum);
}

static int attend(struct accel_session *s, const struct accel_head *h, struct accel_result *r,
                  struct err *err)
{
    static const struct accel_time one = {1, 1, 1, 1}, two = {2, 2, 2, 1};
    const struct attn_in *x = h->x;
    ck_assert(h->own && !h->filter);
    s->asked = *h->own;
    s->attended++;
    r->attend = one;
    r->quant = two;
    r->dense = (struct accel_time){6, 6, 6, 1};
    r->pairs_exec = 1;
    for (int64_t i = 0; i < x->nq && h->own->kind == OWN_DILATED; i++)
        dilated_row(x, &h->own->of.dilated, i, r->out + i * x->dv, r->lse + i);
    for (int64_t i = 0; i < x->nq * x->dv && h->own->kind == OWN_QUANTISED; i++)
        r->out[i] = r->lse[i / x->dv] = 0;
    return 0;
}

static const struct accel able = {
    .name = "cpu", .supports = supports, .attend = attend, .owns = owns};
static const struct accel unable = {.name = "cpu", .supports = supports, .attend = attend};

static void make_head(struct sim_head *h)
{
    struct err err = {0};
    float *x = normals(5, 3 * N * D);
    struct head_in in = one_head(x, x + N * D, x + 2 * N * D, N, N, D, true);
    in.head = 2;
    in.n_heads = 5;
    assert_ok(head_init(h, &in, PREC_F64, &err), &err);
    free(x);
}

static void run(struct accel_session *s, const struct accel *accel, const struct sim_head *h,
                const char *text, struct record *r)
{
    const struct sim_device device = {.accel = accel, .session = s, .select = SELECT_CPU};
    struct method_ctx ctx = {0};
    struct err err = {0};
    assert_ok(run_on_device(&device, &h->in, text, &ctx, r, &err), &err);
}

#define DILATED "longnet:segments=40+128:ratios=1+3"

START_TEST(same_record_as_on_the_cpu)
{
    static const char *const names[] = {"density_elem", "density_exec",  "err_l1_rel", "cra_mean",
                                        "weight_max",   "mass_est_mean", "mass_est_sd"};
    struct sim_head h;
    struct accel_session s = {.attended = 0};
    struct record gpu, cpu;
    make_head(&h);
    run(&s, &able, &h, DILATED, &gpu);
    run_text(DILATED, &h.in, &cpu);
    ck_assert_int_eq(s.attended, 1);
    ck_assert_msg(gpu.status == RECORD_OK, "%s", gpu.reason);
    for (size_t k = 0; k < sizeof names / sizeof *names; k++)
        ck_assert_msg(fabs(record_get(&gpu, names[k]) - record_get(&cpu, names[k])) < 1e-9,
                      "%s: %.12g and %.12g", names[k], record_get(&gpu, names[k]),
                      record_get(&cpu, names[k]));
    ck_assert(s.asked.of.dilated.n == 2 && s.asked.of.dilated.b[1].w == 128);
    ck_assert_int_eq(s.asked.of.dilated.b[1].phase, 1); /* head 2 of 5, in pairs */
    ck_assert(!s.asked.of.dilated.padded);
    record_free(&gpu);
    record_free(&cpu);
    sim_head_free(&h);
}
END_TEST

START_TEST(times_of_operands)
{
    struct sim_head h;
    struct accel_session s = {.attended = 0};
    struct record r;
    make_head(&h);
    run(&s, &able, &h, "sageattention:version=1", &r);
    ck_assert_msg(r.status == RECORD_OK, "%s", r.reason);
    ck_assert_double_eq(record_get(&r, "time_quant_ns"), 2);
    ck_assert_double_eq(record_get(&r, "time_total_ns"), 3);
    ck_assert_double_eq(record_get(&r, "speedup"), 2);
    ck_assert_double_eq_tol(record_get(&r, "select_share"), 2.0 / 3, 1e-12);
    const struct own_quantised *q = &s.asked.of.quantised;
    ck_assert(s.asked.kind == OWN_QUANTISED && q->bq == 128 && q->bk == 64 && q->levels == 127);
    ck_assert(q->fold_scale && !q->e4m3 && q->round == OWN_RHA && q->gran == OWN_BY_BLOCK);
    ck_assert(q->sum == OWN_SUM_F16 && q->smooth_k && !q->smooth_v);
    record_free(&r);
    run(&s, &able, &h, "sageattention", &r);
    ck_assert(q->e4m3 && q->bq == 64 && q->bk == 128 && q->warp == 16 && q->v_top == 448);
    ck_assert(q->round == OWN_RHA_EPS && q->gran == OWN_BY_THREAD && q->sum == OWN_SUM_F32);
    record_free(&r);
    sim_head_free(&h);
}
END_TEST

START_TEST(what_is_skipped)
{
    struct sim_head h;
    struct accel_session s = {.refuses = true};
    struct record r;
    make_head(&h);
    run(&s, &able, &h, "sageattention", &r);
    assert_skipped(&r, "no such kernels here");
    run(&s, &unable, &h, DILATED, &r);
    assert_skipped(&r, "the back end has no kernels for the method's own arithmetic");
    s.refuses = false;
    run(&s, &able, &h, "sageattention:smooth_q=1", &r);
    assert_skipped(&r, "no CUDA kernel for smooth_q=1; smooth_q=0 has one");
    ck_assert_int_eq(s.attended, 0);
    sim_head_free(&h);
}
END_TEST

Suite *make_suite(void)
{
    Suite *s = suite_create("accelown");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, same_record_as_on_the_cpu);
    tcase_add_test(t, times_of_operands);
    tcase_add_test(t, what_is_skipped);
    suite_add_tcase(s, t);
    return s;
}
