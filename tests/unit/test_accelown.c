/*
 * test_accelown.c - methods with arithmetic of their own on a back end that has kernels for it: the
 * rule that the back end is given, and what of its answer stands in the record. The back end here
 * computes LongNet and HyperAttention from the rule alone, by the weights of their pairs, and not
 * as the methods' CPU sides do; it chooses HyperAttention's mask from the rule as well.
 */
#include "tests/harness/accelrun.h"
#include "tests/harness/hyperweights.h"
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

static bool can_attend(const struct accel_session *s, const struct accel_head *h, char why[160])
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

static void dilated_rows(const struct attn_in *x, const struct own_dilated *d, double *out,
                         double *lse)
{
    double w[N];
    for (int64_t i = 0; i < x->nq; i++) {
        for (int64_t j = 0; j < N; j++)
            w[j] = j <= i ? weight(d, i, j) : 0;
        lse[i] = weighted_row(x, i, w, 0, out + i * x->dv);
    }
}

static void hashed_rows(const struct attn_in *x, const struct own_hashed *r, double *out,
                        double *lse)
{
    OWN(hyper_plan_free) struct hyper_plan p;
    double w[N];
    hyper_plan_make(&p, r, x);
    for (int64_t i = 0; i < x->nq; i++) {
        double zeros = hyper_weights(&p, i, w);
        lse[i] = weighted_row(x, i, w, zeros, out + i * x->dv);
    }
}

/* HyperAttention's mask, from what the question says. */
static int select_hashed(struct accel_session *s, const struct accel_call *call, struct err *err)
{
    struct accel_head *h = call->heads;
    const struct attn_in *x = h->x;
    struct own_hashed r = h->choice.rule->hashed;
    struct mask *m = &h->mask;
    OWN(hyper_plan_free) struct hyper_plan p = {0};
    double w[N];
    ck_assert_int_eq(r.head, 0);
    h->answer = 0;
    if (!own_squares_any(&r, x->nq, x->causal)) {
        mask_full(m, x->nq, x->nk, 0, x->nq, x->causal);
        return 0;
    }
    r.head = *(const int32_t *)h->choice.given;
    hyper_plan_make(&p, &r, x);
    assert_ok(mask_lists_init(m, x->nq, x->nk, 0, x->nq, x->causal, 1, 1, err), err);
    for (int64_t i = 0; i < x->nq; i++) {
        hyper_weights(&p, i, w);
        for (int64_t j = 0; j < x->nk; j++)
            if (w[j] > 0)
                assert_ok(mask_lists_add(m, i, (int32_t)j, err), err);
    }
    mask_lists_finish(m);
    return 0;
}

/* Where nothing is hashed there is no arithmetic of its own: softmax over the mask. */
static void plain_rows(const struct accel_head *h, struct err *err)
{
    OWN(attn_release) struct attn_ops ops = {0};
    struct mask full;
    mask_full(&full, h->x->nq, h->x->nk, 0, h->x->nq, h->x->causal);
    assert_ok(attn_prepare(&ops, h->x, PREC_F64, err), err);
    assert_ok(attn_rows(&ops, &full, h->out, h->lse, err), err);
}

static int attend(struct accel_session *s, const struct accel_call *c, const struct accel_lists *l,
                  struct accel_result *r, struct err *err)
{
    static const struct accel_time one = {1, 1, 1, 1}, two = {2, 2, 2, 1}, four = {4, 4, 4, 1};
    struct accel_head *h = c->heads;
    const struct attn_in *x = h->x;
    const struct own_rule *own = h->own_kernel;
    ck_assert(c->n == 1 && !h->filter);
    s->attended++;
    accel_untimed(c, r);
    r->attend = one;
    r->dense = (struct accel_time){6, 6, 6, 1};
    h->pairs_exec = 1;
    if (h->choice.method)
        r->select = four;
    if (!own) {
        plain_rows(h, err);
        return 0;
    }
    s->asked = *own;
    if (own->kind == OWN_HASHED)
        hashed_rows(x, &own->of.hashed, h->out, h->lse);
    else
        r->quant = two;
    if (own->kind == OWN_DILATED)
        dilated_rows(x, &own->of.dilated, h->out, h->lse);
    for (int64_t i = 0; i < x->nq * x->dv && own->kind == OWN_QUANTISED; i++)
        h->out[i] = h->lse[i / x->dv] = 0;
    return 0;
}

static const struct accel able = {
    .name = "cpu", .supports = supports, .attend_call = attend, .can_attend = can_attend};
static const struct accel chooses = {.name = "cpu",
                                     .supports = supports,
                                     .attend_call = attend,
                                     .can_attend = can_attend,
                                     .select_call = select_hashed};
static const struct accel unable = {.name = "cpu", .supports = supports, .attend_call = attend};

static int some_head(bool causal, struct sim_head *h, struct err *err)
{
    int rc = random_head(5, N, N, D, causal, 1, PREC_F64, h, err);
    h->in.head = 2;
    h->in.n_heads = 5;
    return rc;
}

static void run(struct accel_session *s, const struct accel *accel, const struct sim_head *h,
                const char *text, struct record *r)
{
    const struct sim_device device = {
        .accel = accel, .session = s, .select = accel->select_call ? SELECT_GPU : SELECT_CPU};
    struct method_ctx ctx = {.seed = 1}; /* as run_text */
    MUST(run_on_device(&device, &h->in, text, &ctx, r, ERR));
}

#define DILATED "longnet:segments=40+128:ratios=1+3"

TEST(same_record_as_on_the_cpu)
{
    struct accel_session s = {.attended = 0};
    OWN(record_free) struct record gpu;
    HEAD(h, some_head, true);
    run(&s, &able, &h, DILATED, &gpu);
    RUN(cpu, DILATED, &h.in);
    ck_assert_int_eq(s.attended, 1);
    ck_assert_msg(gpu.status == RECORD_OK, "%s", gpu.reason);
    assert_agree(&gpu, &cpu, 1e-9,
                 "density_elem density_exec err_l1_rel cra_mean weight_max mass_est_mean "
                 "mass_est_sd");
    ck_assert(s.asked.of.dilated.n == 2 && s.asked.of.dilated.b[1].w == 128);
    ck_assert_int_eq(s.asked.of.dilated.b[1].phase, 1); /* head 2 of 5, in pairs */
    ck_assert(!s.asked.of.dilated.padded);
}

/* Choice and attention from the rule and the head's number. The parameters say in which squares. */
TEST(hashed_as_on_the_cpu)
{
    static const char *const texts[] = {
        "min_len=30:block=16:samples=24", "min_len=0:block=20:samples=9:exclude=0:official_pad=1",
        "min_len=70:block=32:samples=0:projs=11", "min_len=300:block=32"};
    char text[120];
    for (int i = 0; i < 8; i++) {
        struct accel_session s = {.attended = 0};
        OWN(record_free) struct record gpu;
        HEAD(h, some_head, i & 1);
        snprintf(text, sizeof text, "hyperattention:%s", texts[i / 2]);
        run(&s, &chooses, &h, text, &gpu);
        RUN(cpu, text, &h.in);
        ck_assert_msg(gpu.status == RECORD_OK, "%s", gpu.reason);
        assert_agree(&gpu, &cpu, 1e-9,
                     "pairs_kept density_tile density_exec err_l1_rel cra_mean pairs_exec "
                     "mass_est_mean mass_est_sd");
        const char *squares = strstr(buf_str(&cpu.notes), "squares=");
        ck_assert(strncmp(strstr(buf_str(&gpu.notes), "squares="), squares,
                          strcspn(squares, ",\"")) == 0);
        ck_assert(strstr(buf_str(&gpu.notes), "select_backend=cuda") != NULL);
        HAS(&gpu, 0, "time_select_ns time_total_ns", 4, 5);
        bool hashed = i < 6 || !(i & 1);
        ck_assert(!hashed || (s.asked.kind == OWN_HASHED && s.asked.of.hashed.head == 2));
        ck_assert_int_eq(isnan(record_get(&gpu, "mass_est_mean")), i / 2 == 2 || !hashed);
    }
}

TEST(times_of_operands)
{
    struct accel_session s = {.attended = 0};
    struct record r;
    HEAD(h, some_head, true);
    run(&s, &able, &h, "sageattention:version=1", &r);
    ck_assert_msg(r.status == RECORD_OK, "%s", r.reason);
    HAS(&r, 0, "time_quant_ns time_total_ns speedup", 2, 3, 2);
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
}

TEST(what_is_skipped)
{
    struct accel_session s = {.refuses = true};
    struct record r;
    HEAD(h, some_head, true);
    run(&s, &able, &h, "sageattention", &r);
    assert_skipped(&r, "no such kernels here");
    run(&s, &unable, &h, DILATED, &r);
    assert_skipped(&r, "the back end has no kernels for the method's own arithmetic");
    s.refuses = false;
    run(&s, &able, &h, "sageattention:smooth_q=1", &r);
    assert_skipped(&r, "no CUDA kernel for smooth_q=1; smooth_q=0 has one");
    ck_assert_int_eq(s.attended, 0);
}
