/*
 * test_accelfilter.c - a method that skips P V on a back end that can do the same: what the back
 * end is asked for, and what of its answer stands in the record. The back end here computes as the
 * method's CPU side does, so that the two records agree.
 */
#include "sim/blocks/tileattn.h"
#include "tests/harness/accelrun.h"
#include "tests/harness/spargerun.h"

#define N 1100 /* more rows than fit into one tile, and a ragged last one */
#define D 32

struct accel_session {
    struct accel_filter asked;
    int attended;
    bool refuses;
};

static bool supports(const struct accel_session *s, const struct attn_in *x, int64_t *bq,
                     int64_t *bk, char why[160])
{
    *bk = 64; /* without a filter: a wide unit in halves, for a kernel with blocks of 64 keys */
    return true;
}

static bool can_attend(const struct accel_session *s, const struct accel_head *h, char why[160])
{
    if (s->refuses)
        snprintf(why, 160, "no such filter here");
    return !s->refuses;
}

static int attend(struct accel_session *s, const struct accel_call *c, const struct accel_lists *l,
                  struct accel_result *r, struct err *err)
{
    struct accel_head *h = c->heads;
    const struct accel_filter *f = h->filter;
    const struct attn_in *x = h->x;
    OWN(exact_free) struct exact exact;
    OWN(mask_free) struct mask m = {0};
    ck_assert_int_eq(c->n, 1);
    s->attended++;
    memset(&s->asked, 0, sizeof s->asked);
    accel_untimed(c, r);
    r->attend = r->dense = (struct accel_time){1, 1, 1, 1};
    h->pairs_exec = 1;
    exact_init(&exact, x, PREC_F64);
    if (f) {
        ck_assert(l->bq == f->bq && l->bk == f->bk);
        struct tile_attn t = {.nq = x->nq,
                              .nk = x->nk,
                              .d = x->d,
                              .dv = x->dv,
                              .causal = x->causal,
                              .bq = f->bq,
                              .bk = f->bk,
                              .exact = &exact,
                              .pv = f->pv,
                              .scope = f->scope,
                              .tail = f->tail,
                              .keep_denominator = f->keep_denominator,
                              .out_dtype = DT_NONE};
        s->asked = *f;
        accel_head_mask(c, l, 0, &m, err);
        assert_ok(tile_attn_rows(&t, &m, h->out, h->lse, &h->tiles_pv, err), err);
    } else {
        mask_full(&m, x->nq, x->nk, 0, x->nq, x->causal);
        assert_ok(exact_attend(&exact, &m, h->out, h->lse, err), err);
    }
    return 0;
}

static const struct accel able = {
    .name = "cpu", .supports = supports, .attend_call = attend, .can_attend = can_attend};
static const struct accel unable = {.name = "cpu", .supports = supports, .attend_call = attend};

/* Neighbouring tokens resemble each other: far ones are skipped. */
static void make_head(struct sim_head *h, bool causal)
{
    OWN(free_at) float *x = normals(5, 3 * N * D);
    for (int64_t i = 0; i < 2 * N * D; i++)
        x[i] = (float)(0.3 * x[i] + 3 * cos(0.01 * (double)(i / D % N) + (double)(i % D * i % D)));
    struct head_in in = one_head(x, x + N * D, x + 2 * N * D, N, N, D, causal);
    MUST(head_init(h, &in, PREC_F64, ERR));
}

static void run(struct accel_session *s, const struct accel *accel, const struct sim_head *h,
                const char *text, struct record *r)
{
    const struct sim_device device = {.accel = accel, .session = s, .select = SELECT_CPU};
    struct method_ctx ctx = {0};
    MUST(run_on_device(&device, &h->in, text, &ctx, r, ERR));
}

TEST_N(same_record_as_on_the_cpu, 2)
{
    static const char *const texts[] = {
        "spargeattn:pv=6:tau=0.9",
        "spargeattn:pv=6:tau=0.9:arch=sm90",
        "spargeattn:pv=4:tau=1:theta=-1:pv_scope=warp",
        "spargeattn:lambda=-4:profile=paper",
    };
    OWN(sim_head_free) struct sim_head h;
    make_head(&h, _i % 2);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct accel_session s = {.attended = 0};
        OWN(record_free) struct record gpu;
        run(&s, &able, &h, texts[i], &gpu);
        RUN(cpu, texts[i], &h.in);
        ck_assert_int_eq(s.attended, 1);
        ck_assert_msg(gpu.status == RECORD_OK, "%s: %s", texts[i], gpu.reason);
        assert_agree(&gpu, &cpu, 1e-9,
                     "sparsity_qk sparsity_pv sparsity_total err_l1_rel err_lse_mean cra_mean "
                     "dead_rows density_native");
        ck_assert_double_gt(record_get(&gpu, "sparsity_pv"), record_get(&gpu, "sparsity_qk"));
    }
}

/* The presets of the official kernels. */
TEST(what_is_asked_for)
{
    OWN(sim_head_free) struct sim_head h;
    OWN(record_free) struct record r, paper, quantised, half, first, off, sale;
    struct accel_session s = {.attended = 0};
    make_head(&h, true);
    run(&s, &able, &h, "spargeattn:arch=sm90", &r);
    ck_assert(s.asked.bq == 64 && s.asked.bk == 128 && s.asked.scope == 64 && s.asked.tail == 1);
    ck_assert(s.asked.pv == 50 && !s.asked.keep_denominator);
    run(&s, &able, &h, "spargeattn:profile=paper:lambda=-2:arch=sm89", &paper);
    ck_assert(s.asked.bq == 128 && s.asked.bk == 64 && s.asked.scope == 32 && s.asked.tail == 0);
    ck_assert_double_eq_tol(s.asked.pv, 2.885390, 1e-6);
    ck_assert(s.asked.keep_denominator);
    ck_assert_int_eq(s.asked.quant.levels, 0);
    run(&s, &able, &h, "spargeattn:arith=sage2:v_max=2.25:smooth_k=0:pv=off", &quantised);
    const struct own_quantised *q = &s.asked.quant;
    ck_assert(q->bq == 128 && q->bk == 64 && q->levels == 127 && q->gran == OWN_BY_BLOCK);
    ck_assert(q->e4m3 && q->v_top == 2.25f && q->sum == OWN_SUM_F32 && !q->smooth_k);
    ck_assert_double_eq(s.asked.pv, INFINITY);
    run(&s, &able, &h, "spargeattn:arith=sage2:v_max=2.25:arch=sm89", &half);
    ck_assert_int_eq(q->sum, OWN_SUM_F16);
    run(&s, &able, &h, "spargeattn:arith=sage1", &first);
    ck_assert(q->levels == 127 && !q->e4m3 && q->offset == 0 && q->sum == OWN_SUM_F16);
    run(&s, &able, &h, "spargeattn:pv=off", &off); /* plain lists */
    ck_assert(s.asked.bq == 0 && s.attended == 6);
    run(&s, &able, &h, "sale:dense_below=0:arith=sage1", &sale);
    ck_assert(s.asked.bq == 64 && s.asked.bk == 32 && s.asked.tail == 0);
    ck_assert_double_eq(s.asked.pv, INFINITY);
    ck_assert(q->bq == 64 && q->bk == 32 && q->levels == 127 && q->gran == OWN_BY_BLOCK);
    ck_assert(q->round == OWN_RNE && q->smooth_k && q->inputs_as == DT_F16);
    ck_assert(q->mean_as == DT_F16 && q->keys_as == DT_F16 && q->values_as == DT_F16);
    HAS(&sale, 0, "sparsity_pv", record_get(&sale, "sparsity_qk"));
}

TEST(what_is_skipped)
{
    OWN(sim_head_free) struct sim_head h;
    struct accel_session s = {.refuses = true};
    OWN(record_free) struct record r;
    make_head(&h, false);
    run(&s, &able, &h, "spargeattn", &r);
    assert_skipped(&r, "no such filter here");
    run(&s, &unable, &h, "spargeattn", &r);
    assert_skipped(&r, "the back end has no filter on P V");
    s.refuses = false;
    run(&s, &able, &h, "spargeattn:dead=mean", &r);
    assert_skipped(&r, "no CUDA kernel for dead=mean; dead=zero has one");
    run(&s, &able, &h, "sale", &r);
    ck_assert_int_eq(s.attended, 0);
}
