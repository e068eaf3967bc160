/*
 * test_accelselect.c - a replay whose masks are chosen by a back end: whose mask is attended to and
 * counted, what is recorded, and who chooses where the back end does not. The back end here chooses
 * what the method's CPU side chooses, or that with given changes.
 */
#include "tests/harness/accelrun.h"
#include "tests/harness/methodrun.h"
#include "tests/harness/rulechoice.h"

#include <math.h>

/* ---- a back end ----------------------------------------------------------------------------- */

#define N 2700 /* more rows than a chunk of the reference */
enum { COPIES = 8 };

enum answer { SAME, CHANGED, REFUSES, OTHER_UNIT, FULL };

struct accel_session {
    const struct head_in *in;
    const char *setting; /* the method with its parameters */
    enum answer answer;
    int selections;
    int asked;                  /* heads of the call of the last choice */
    int64_t attended;           /* blocks that attend was asked for */
    uint64_t data, data_before; /* of the selection in this run; of the run before */
    struct carry carry;         /* of the method, from run to run */
};

/* Copies in pairs that share keys and values. */
static struct accel_heads eight(const struct accel_session *s, const struct attn_in *x,
                                struct accel_heads call)
{
    ck_assert_int_eq(call.q, s->in->n_heads);
    ck_assert_int_eq(call.kv, s->in->n_kv_heads);
    return (struct accel_heads){COPIES, COPIES / 2};
}

static struct accel_time of_copies(double ns)
{
    ns *= COPIES;
    return (struct accel_time){ns, 0.9 * ns, 1.1 * ns, 5};
}

static int attend_on_cpu(struct accel_session *s, const struct accel_call *c,
                         const struct accel_lists *l, struct accel_result *r, struct err *err)
{
    const struct accel_head *last = c->heads + COPIES - 1;
    struct mask full;
    ck_assert(c->n == COPIES && c->group == 2 && c->copies == COPIES - 1);
    ck_assert(l->first == 0 && l->count == COPIES);
    if (s->data)
        ck_assert_uint_eq(c->data, s->data);
    ck_assert_uint_ne(c->data, s->data_before);
    s->data_before = c->data;
    for (int h = 0; h < COPIES; h++) {
        const int64_t *ptr = accel_rows_of(c, l, h);
        ck_assert_ptr_eq(c->heads[h].x, last->x);
        ck_assert(!ptr || ptr[ceil_div(N, l->bq)] - ptr[0] == l->ptr[ceil_div(N, l->bq)]);
        ck_assert_ptr_eq(c->heads[h].choice.method, last->choice.method);
        c->heads[h].pairs_exec = 1;
    }
    accel_untimed(c, r);
    s->attended = l->ptr ? l->ptr[ceil_div(N, l->bq)] : 0;
    if (l->bits) {
        OWN(accel_outs_free) struct accel_outs o;
        mask_full(&full, N, N, 0, N, last->x->causal);
        accel_compute(last->x, &full, PREC_F64, &o, err);
        accel_deliver(c->heads + COPIES - 1, &o);
    } else {
        accel_attend_head(c, l, COPIES - 1, PREC_F64, err);
    }
    r->attend = of_copies(300);
    r->dense = of_copies(1200);
    if (last->choice.method && s->answer != FULL)
        *(last->is_static ? &r->build : &r->select) = of_copies(100);
    r->counters.tensor_pipe_pct = 50;
    r->counters.dram_read_bytes = r->counters.dram_write_bytes = 64 * COPIES;
    return 0;
}

/* The rule has to be that of the setting. */
static void select_on_cpu(const struct accel_session *s, const struct accel_head *h, struct mask *m,
                          struct err *err)
{
    const struct accel_choice *c = &h->choice;
    OWN(run_free) struct method_run *run = run_of(s->setting);
    ck_assert_ptr_eq(h->x->q, s->in->x.q);
    if (!rule_choose(c, s->in, m))
        ck_assert(setting_choose(run, 1, c, s->in, m));
}

/* Group 1 loses its first block, and the last group gets all that it may see. */
static void change(const struct mask *m, struct mask *out, struct err *err)
{
    int64_t bq = m->bq, last = m->ngroups - 1;
    assert_ok(mask_lists_init(out, m->nq, m->nk, 0, m->nq, m->causal, bq, m->bk, err), err);
    for (int64_t g = 0; g < last; g++)
        for (int64_t i = m->ptr[g] + (g == 1); i < m->ptr[g + 1]; i++)
            assert_ok(mask_lists_add(out, g, m->col[i], err), err);
    assert_ok(mask_lists_add_run(out, last, 0, (int32_t)((m->nk + m->bk - 1) / m->bk), err), err);
    mask_lists_finish(out);
}

/* The first n keys for each group of FG-Attn. */
static void first_keys(const struct accel_head *h, int n, struct mask *m, struct err *err)
{
    const struct attn_in *x = h->x;
    int64_t M = h->choice.rule->fg.M;
    assert_ok(mask_lists_init(m, x->nq, x->nk, 0, x->nq, x->causal, M, 1, err), err);
    for (int64_t g = 0; g < m->ngroups; g++)
        assert_ok(mask_lists_add_run(m, g, 0, n, err), err);
    mask_lists_finish(m);
}

static int select_call(struct accel_session *s, const struct accel_call *call, struct err *err)
{
    struct accel_head *h = call->heads + call->n - 1;
    const struct accel_choice *c = &h->choice;
    const struct attn_in *x = h->x;
    struct mask own = {0}, *m = &h->mask;
    ck_assert_uint_ne(call->data, 0);
    ck_assert_int_eq(call->copies, call->n - 1);
    for (int i = 0; i < call->copies; i++) /* one of them is enough */
        ck_assert_ptr_null(call->heads[i].choice.method);
    s->data = call->data;
    s->selections++;
    s->asked = call->n;
    h->answer = 0;
    if (s->answer == FULL) {
        mask_full(m, x->nq, x->nk, 0, x->nq, x->causal);
        return 0;
    }
    if (s->answer == REFUSES) {
        snprintf(h->why, sizeof h->why, "%s has no GPU side here", c->method);
        h->answer = ACCEL_NO_SELECT;
        return 0;
    }
    if (s->answer == OTHER_UNIT)
        return mask_lists_init(m, x->nq, x->nk, 0, x->nq, x->causal, 64, 64, err);
    if (strcmp(c->method, "fg-attn") == 0) { /* whose call on a refresh step is full */
        ck_assert_int_eq(c->rule->fg.by, FG_CHOOSE_MAX);
        ck_assert_double_eq(c->rule->fg.at, 0.5 / (double)x->nk);
        first_keys(h, s->selections, m, err);
        return 0;
    }
    select_on_cpu(s, h, s->answer == CHANGED ? &own : m, err);
    if (s->answer == CHANGED)
        change(&own, m, err);
    mask_free(&own);
    return 0;
}

static bool supports(const struct accel_session *s, const struct attn_in *x, int64_t *bq,
                     int64_t *bk, char why[160])
{
    if (*bk == 1)
        *bq = *bk = ACCEL_TILE;
    return true;
}

static const struct accel on_cpu = {.name = "cpu",
                                    .supports = supports,
                                    .copies = eight,
                                    .attend_call = attend_on_cpu,
                                    .select_call = select_call};

/* ---- runs ----------------------------------------------------------------------------------- */

#define METHOD "xattention:stride=8:tau=0.5"

static struct sim_head h;
static struct accel_session s;

static void begin(void)
{
    MUST(random_head(5, N, N, 16, true, 1, PREC_F64, &h, ERR));
    h.in.n_heads = 12; /* of a call */
    h.in.n_kv_heads = 3;
    s = (struct accel_session){.in = &h.in};
}

static void end(void)
{
    carry_end(&s.carry);
    sim_head_free(&h);
}
FIXTURE(begin, end)

static int run(enum select_where where, const char *text, struct record *r, struct err *err)
{
    struct method_ctx ctx = {.seed = 1, .carry = &s.carry};
    const struct sim_device device = {.accel = &on_cpu, .session = &s, .select = where};
    s.setting = text;
    s.data = 0;
    return run_on_device(&device, &h.in, text, &ctx, r, err);
}

/* The record `r` of the block, of a device that answers like this. */
#define ANSWERED(r, how, where, text)                                                              \
    OWN(record_free) struct record r;                                                              \
    s.answer = how;                                                                                \
    MUST(run(where, text, &r, ERR))

TEST(same_mask_and_total_time)
{
    ANSWERED(r, SAME, SELECT_AUTO, METHOD);
    RUN(cpu, METHOD, &h.in);
    ck_assert_int_eq(s.selections, 1);
    assert_note(&r, "select_backend=cuda");
    ck_assert_double_lt(record_get(&cpu, "density_tile"), 1);
    assert_agree(&r, &cpu, 1e-12, "pairs_kept err_l2_rel");
    HAS(&r, 0, "copies copies_kv counter_copies counter_copies_kv dram_read_bytes", 8, 4, 8, 4, 64);
    HAS(&r, 0, "time_select_ns time_total_ns select_share speedup", 100, 400, 0.25, 3);
}

TEST(changed_mask_is_the_one_that_counts)
{
    ANSWERED(same, SAME, SELECT_AUTO, METHOD);
    int64_t before = s.attended;
    ANSWERED(r, CHANGED, SELECT_GPU, METHOD);
    int64_t gained = s.attended + 1 - before; /* blocks of the last group that were left out */
    ck_assert_int_gt(gained, 0);
    double pairs = record_get(&r, "pairs_kept") - record_get(&same, "pairs_kept");
    ck_assert_double_eq(pairs, (double)(N % 128 * 128 * gained - 128 * 128));
    ck_assert_double_ne(record_get(&r, "err_l2_rel"), record_get(&same, "err_l2_rel"));
}

/* Pairs of the mask, as a search counts them, over what the device chose. */
static double count_mask(enum answer answer)
{
    OWN(run_free) struct method_run *one = run_of(METHOD);
    OWN(record_free) struct record r;
    const struct sim_device device = {.accel = &on_cpu, .session = &s};
    struct method_ctx ctx = {.seed = 1, .carry = &s.carry};
    struct sim_cell cell = {.method = one->method,
                            .params = one->params,
                            .ctx = &ctx,
                            .in = &h.in,
                            .device = &device,
                            .measure = MEASURE_MASK};
    s.answer = answer;
    record_init(&r);
    MUST(sim_run(&cell, &r, ERR));
    return record_get(&r, "pairs_kept");
}

TEST(counts_alone_are_chosen_untimed)
{
    for (enum answer answer = SAME; answer <= CHANGED; answer++) {
        ANSWERED(all, answer, SELECT_AUTO, METHOD);
        ck_assert_int_eq(s.asked, COPIES);
        HAS(&all, 0, "pairs_kept", count_mask(answer));
        ck_assert_int_eq(s.asked, 1);
    }
    ck_assert_double_gt(count_mask(REFUSES), 0); /* then the method chooses */
}

TEST(without_gpu_side)
{
    ANSWERED(r, REFUSES, SELECT_AUTO, METHOD);
    ck_assert_int_eq(r.status, RECORD_OK);
    assert_note(&r, "select_backend=cpu");
    HAS(&r, 0, "time_total_ns time_attend_ns", NONE, 300);
    struct record none;
    MUST(run(SELECT_GPU, METHOD, &none, ERR));
    assert_skipped(&none, "xattention has no GPU side here");
    ck_assert_int_eq(s.selections, 2);
    ANSWERED(cpu, REFUSES, SELECT_CPU, METHOD);
    assert_note(&cpu, "select_backend=cpu");
    ck_assert_int_eq(s.selections, 2); /* it was not asked */
}

TEST(nothing_to_choose_takes_no_time)
{
    ANSWERED(r, FULL, SELECT_GPU, "sampleattention:chunks=22");
    ck_assert_int_eq(r.status, RECORD_OK);
    assert_note(&r, "select_backend=cuda");
    HAS(&r, 0, "time_total_ns select_share", 300, 0);
}

/* The method does not choose beside the device: it hands out what it was given. */
TEST(chosen_by_a_rule)
{
    static const char *const method = "sale:tau=0.05";
    RUN(cpu, method, &h.in);
    ck_assert_double_lt(record_get(&cpu, "tested_kept"), 1);
    ANSWERED(r, SAME, SELECT_GPU, method);
    assert_note(&r, "select_backend=cuda");
    assert_note(&r, "select_kind=own");
    ck_assert_int_eq(assert_agree(&r, &cpu, 0, "pairs_kept tested_kept"), 2);
    HAS(&r, 0, "ties time_total_ns", NONE, 400);
    ANSWERED(changed, CHANGED, SELECT_AUTO, method);
    ck_assert_double_gt(record_get(&changed, "tested_kept"), record_get(&cpu, "tested_kept"));
}

/* Lists of a device come out as the method's own mask, with its own numbers. */
static const struct {
    const char *text, *metrics;
    bool causal;
} taken[] = {
    {"skip-softmax:lambda=0.6:unit=64x128", "pairs_exec tiles_walked tiles_skipped", true},
    {"moba:chunk=100:topk=5:dense_last=0", "density_native", true},
    {"nsa:share=head:block=32:top=9", "pairs_exec density_native", true},
    {"sla:topk=0.3", "pairs_exec density_native", false},
    {"subblock:skip_first_steps=0:sparsity=0.8:min_seq=0", "pairs_exec density_native", false},
    {"sol:dense_layers=0:dense_steps=0:compensate=0", "pairs_exec density_native", false},
};

TEST_EACH(taken_masks_are_the_methods_own, taken)
{
    h.in.x.causal = taken[_i].causal;
    h.in.src_dtype = DT_BF16;
    ANSWERED(r, SAME, SELECT_GPU, taken[_i].text);
    RUN(cpu, taken[_i].text, &h.in);
    assert_note(&r, "select_backend=cuda");
    ck_assert_double_lt(record_get(&cpu, "density_elem"), 1);
    assert_agree(&r, &cpu, 0, "pairs_kept");
    assert_agree(&r, &cpu, 0, taken[_i].metrics);
}

/* What attends densely by its parameters has nothing to choose. */
TEST_N(dense_by_parameters, 4)
{
    static const char *const settings[] = {"moba", "nsa:share=head:dense_below=9999", "subblock",
                                           "sol:compensate=0"};
    h.in.x.causal = _i < 2;
    h.in.src_dtype = DT_BF16;
    ANSWERED(r, FULL, SELECT_GPU, settings[_i]);
    assert_note(&r, "select_backend=cuda");
    HAS(&r, 0, "density_elem time_total_ns", 1, 300);
}

static const struct {
    enum answer answer;
    const char *text, *why;
} wrong[] = {
    {OTHER_UNIT, METHOD, "units of 64 x 64"},
    {OTHER_UNIT, "fg-attn:mode=pooled", "a choice in units of 64 x 64, expected 128 x 1"},
    {FULL, "skip-softmax", "expected 128 x 128"},
    {FULL, METHOD, "no list of blocks"}, /* where there is something to choose */
};

TEST_EACH(wrong_answers_are_errors, wrong)
{
    OWN(record_free) struct record r;
    s.answer = wrong[_i].answer;
    FAILS(run(SELECT_AUTO, wrong[_i].text, &r, ERR), ERR_RUN, wrong[_i].why);
}

/* Nothing runs to choose these masks, so that the total is the attention alone. */
TEST_N(static_masks_need_no_gpu_side, 3)
{
    static const char *const settings[] = {"sparse-transformer:pattern=fixed",
                                           "streaming:sink=70:window=200:last=50",
                                           "minference:pattern=ashape:init=70:local=200"};
    ANSWERED(r, REFUSES, SELECT_GPU, settings[_i]);
    ck_assert_int_eq(r.status, RECORD_OK);
    assert_note(&r, "select_backend=cpu");
    assert_note(&r, "select_kind=static");
    HAS(&r, 0, "time_select_ns time_total_ns speedup time_build_ns", 0, 300, 4, NONE);
    ck_assert_int_eq(s.selections, 0); /* nobody was asked */
}

/* A refresh step pays for the choice, the steps that reuse its mask do not; each bears its share in
 * a number of its own. */
TEST(reused_masks_bear_a_share)
{
    ANSWERED(made, SAME, SELECT_AUTO, "fg-attn:refresh=4");
    assert_note(&made, "select_kind=own");
    HAS(&made, 0, "dense_call time_total_ns time_select_amortised_ns", 1, 400, 25);
    h.in.step = 1;
    ANSWERED(r, SAME, SELECT_AUTO, "fg-attn:refresh=4");
    assert_note(&r, "select_kind=reused");
    HAS(&r, 0, "mask_age time_select_ns time_total_ns time_select_amortised_ns", 1, 0, 300, 25);
    ck_assert_int_eq(s.selections, 1);
}

/* The device makes what a reused mask is compared with; the call's time has nothing of that. */
TEST(reused_masks_are_compared)
{
    static const char *const method = "fg-attn:refresh=4:M=64:compare=1";
    ANSWERED(made, SAME, SELECT_AUTO, method);
    ck_assert_int_eq(s.selections, 1);
    ck_assert(isnan(record_get(&made, "mask_iou")));
    h.in.step = 1;
    ANSWERED(r, SAME, SELECT_AUTO, method);
    ck_assert_int_eq(s.selections, 2);
    assert_note(&r, "select_kind=reused");
    ck_assert_double_lt(record_get(&r, "mask_recall"), 1);
    /* Key 1; the first group has it in any case, as all keys beside its queries. */
    HAS(&r, 0, "mask_precision mask_diff time_select_ns", 1, (double)((N + 63) / 64 - 1), 0);
    h.in.step = 2;
    ANSWERED(own, REFUSES, SELECT_AUTO, method);
    ck_assert_double_gt(record_get(&own, "mask_margin"), 0); /* of the method's own choice */
}
