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
        struct accel_outs o;
        mask_full(&full, N, N, 0, N, last->x->causal);
        accel_compute(last->x, &full, PREC_F64, &o, err);
        accel_deliver(c->heads + COPIES - 1, &o);
        accel_outs_free(&o);
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
    struct method_run *run = NULL;
    int64_t n = 0;
    ck_assert_ptr_eq(h->x->q, s->in->x.q);
    if (rule_choose(c, s->in, m))
        return;
    assert_ok(method_runs_parse(test_methods, s->setting, &run, &n, err), err);
    ck_assert(setting_choose(run, n, c, s->in, m));
    method_runs_free(run, n);
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

static void make_head(struct sim_head *h)
{
    enum { D = 16 };
    OWN(free_at) float *x = calloc((size_t)(3 * N * D), sizeof *x);
    for (int64_t i = 0; i < 3 * N * D; i++)
        x[i] = (float)(2 * sin(0.37 * (double)i + (double)(i % 97)) + cos(0.013 * (double)(i / D)));
    struct head_in in = one_head(x, x + N * D, x + 2 * N * D, N, N, D, true);
    in.n_heads = 12; /* of a call */
    in.n_kv_heads = 3;
    MUST(head_init(h, &in, PREC_F64, ERR));
}

static int run(struct accel_session *s, const struct sim_head *h, enum select_where where,
               const char *text, struct record *r, struct err *err)
{
    struct method_ctx ctx = {.seed = 1, .carry = &s->carry};
    const struct sim_device device = {.accel = &on_cpu, .session = s, .select = where};
    s->in = &h->in;
    s->setting = text;
    s->data = 0;
    return run_on_device(&device, &h->in, text, &ctx, r, err);
}

static bool has_note(const struct record *r, const char *note)
{
    return strstr(buf_str(&r->notes), note) != NULL;
}

TEST(same_mask_and_total_time)
{
    OWN(sim_head_free) struct sim_head h;
    struct accel_session s = {.answer = SAME};
    OWN(record_free) struct record r;
    make_head(&h);
    MUST(run(&s, &h, SELECT_AUTO, METHOD, &r, ERR));
    RUN(cpu, METHOD, &h.in);
    ck_assert_int_eq(s.selections, 1);
    ck_assert(has_note(&r, "select_backend=cuda"));
    ck_assert_double_eq(record_get(&r, "pairs_kept"), record_get(&cpu, "pairs_kept"));
    ck_assert_double_lt(record_get(&cpu, "density_tile"), 1);
    ck_assert_double_eq_tol(record_get(&r, "err_l2_rel"), record_get(&cpu, "err_l2_rel"), 1e-12);
    ck_assert_double_eq(record_get(&r, "time_select_ns"), 100);
    ck_assert_double_eq(record_get(&r, "time_total_ns"), 400);
    ck_assert_double_eq(record_get(&r, "select_share"), 0.25);
    ck_assert_double_eq(record_get(&r, "copies"), 8);
    ck_assert_double_eq(record_get(&r, "copies_kv"), 4);
    ck_assert_double_eq(record_get(&r, "counter_copies"), 8);
    ck_assert_double_eq(record_get(&r, "counter_copies_kv"), 4);
    ck_assert_double_eq(record_get(&r, "dram_read_bytes"), 64);
    ck_assert_double_eq(record_get(&r, "speedup"), 3);
}

TEST(changed_mask_is_the_one_that_counts)
{
    OWN(sim_head_free) struct sim_head h;
    struct accel_session s = {.answer = SAME};
    OWN(record_free) struct record same, r;
    make_head(&h);
    MUST(run(&s, &h, SELECT_AUTO, METHOD, &same, ERR));
    int64_t before = s.attended;
    s.answer = CHANGED;
    MUST(run(&s, &h, SELECT_GPU, METHOD, &r, ERR));
    int64_t gained = s.attended + 1 - before; /* blocks of the last group that were left out */
    ck_assert_int_gt(gained, 0);
    double pairs = record_get(&r, "pairs_kept") - record_get(&same, "pairs_kept");
    ck_assert_double_eq(pairs, (double)(N % 128 * 128 * gained - 128 * 128));
    ck_assert_double_ne(record_get(&r, "err_l2_rel"), record_get(&same, "err_l2_rel"));
}

/* Counts of the mask, as a search takes them, over what the device chose. */
static void count_mask(struct accel_session *s, const struct sim_head *h, struct record *r)
{
    const struct sim_device device = {.accel = &on_cpu, .session = s};
    struct method_ctx ctx = {.seed = 1, .carry = &s->carry};
    struct method_run *runs = NULL;
    int64_t n = 0;
    s->in = &h->in;
    s->setting = METHOD;
    record_init(r);
    MUST(method_runs_parse(test_methods, METHOD, &runs, &n, ERR));
    struct sim_cell cell = {.method = runs->method,
                            .params = runs->params,
                            .ctx = &ctx,
                            .in = &h->in,
                            .device = &device,
                            .measure = MEASURE_MASK};
    MUST(sim_run(&cell, r, ERR));
    method_runs_free(runs, n);
}

TEST(counts_alone_are_chosen_untimed)
{
    OWN(sim_head_free) struct sim_head h;
    struct accel_session s = {.answer = SAME};
    struct record all, counts;
    make_head(&h);
    for (int changed = 0; changed < 2; changed++) {
        s.answer = changed ? CHANGED : SAME;
        MUST(run(&s, &h, SELECT_AUTO, METHOD, &all, ERR));
        ck_assert_int_eq(s.asked, COPIES);
        count_mask(&s, &h, &counts);
        ck_assert_int_eq(s.asked, 1);
        ck_assert_double_eq(record_get(&counts, "pairs_kept"), record_get(&all, "pairs_kept"));
        record_free(&all);
        record_free(&counts);
    }
    s.answer = REFUSES; /* then the method chooses */
    count_mask(&s, &h, &counts);
    ck_assert_double_gt(record_get(&counts, "pairs_kept"), 0);
    record_free(&counts);
}

TEST(without_gpu_side)
{
    OWN(sim_head_free) struct sim_head h;
    struct accel_session s = {.answer = REFUSES};
    struct record r;
    make_head(&h);
    MUST(run(&s, &h, SELECT_AUTO, METHOD, &r, ERR));
    ck_assert_int_eq(r.status, RECORD_OK);
    ck_assert(has_note(&r, "select_backend=cpu"));
    ck_assert(isnan(record_get(&r, "time_total_ns")));
    ck_assert_double_eq(record_get(&r, "time_attend_ns"), 300);
    record_free(&r);
    MUST(run(&s, &h, SELECT_GPU, METHOD, &r, ERR));
    ck_assert_int_eq(r.status, RECORD_SKIP);
    ck_assert_str_eq(r.reason, "xattention has no GPU side here");
    record_free(&r);
    ck_assert_int_eq(s.selections, 2);
    MUST(run(&s, &h, SELECT_CPU, METHOD, &r, ERR));
    ck_assert(has_note(&r, "select_backend=cpu"));
    ck_assert_int_eq(s.selections, 2); /* it was not asked */
    record_free(&r);
}

TEST(other_units_are_an_error)
{
    OWN(sim_head_free) struct sim_head h;
    struct accel_session s = {.answer = OTHER_UNIT};
    OWN(record_free) struct record r;
    make_head(&h);
    FAILS(run(&s, &h, SELECT_AUTO, METHOD, &r, ERR), ERR_RUN, "units of 64 x 64");
}

TEST(nothing_to_choose_takes_no_time)
{
    OWN(sim_head_free) struct sim_head h;
    struct accel_session s = {.answer = FULL};
    struct record r;
    make_head(&h);
    MUST(run(&s, &h, SELECT_GPU, "sampleattention:chunks=22", &r, ERR));
    ck_assert_int_eq(r.status, RECORD_OK);
    ck_assert(has_note(&r, "select_backend=cuda"));
    ck_assert_double_eq(record_get(&r, "time_total_ns"), 300);
    ck_assert_double_eq(record_get(&r, "select_share"), 0);
    record_free(&r);
    /* A full mask where there is something to choose is no answer. */
    FAILS(run(&s, &h, SELECT_AUTO, METHOD, &r, ERR), ERR_RUN, "no list of blocks");
    record_free(&r);
}

/* The method does not choose beside the device: it hands out what it was given. */
TEST(chosen_by_a_rule)
{
    static const char *const method = "sale:tau=0.05";
    OWN(sim_head_free) struct sim_head h;
    struct accel_session s = {.answer = SAME};
    struct record r, changed;
    make_head(&h);
    RUN(cpu, method, &h.in);
    ck_assert_double_lt(record_get(&cpu, "tested_kept"), 1);
    MUST(run(&s, &h, SELECT_GPU, method, &r, ERR));
    ck_assert(has_note(&r, "select_backend=cuda"));
    ck_assert(has_note(&r, "select_kind=own"));
    ck_assert(isnan(record_get(&r, "ties")));
    ck_assert_double_eq(record_get(&r, "pairs_kept"), record_get(&cpu, "pairs_kept"));
    ck_assert_double_eq(record_get(&r, "tested_kept"), record_get(&cpu, "tested_kept"));
    ck_assert_double_eq(record_get(&r, "time_total_ns"), 400);
    s.answer = CHANGED;
    MUST(run(&s, &h, SELECT_AUTO, method, &changed, ERR));
    ck_assert_double_gt(record_get(&changed, "tested_kept"), record_get(&cpu, "tested_kept"));
    record_free(&changed);
    s.answer = OTHER_UNIT;
    FAILS(run(&s, &h, SELECT_AUTO, "fg-attn:mode=pooled", &changed, ERR), ERR_RUN,
          "a choice in units of 64 x 64, expected 128 x 1");
    record_free(&r);
    record_free(&changed);
}

/* Nothing runs to choose these masks, so that the total is the attention alone. */
TEST(static_masks_need_no_gpu_side)
{
    static const char *const settings[] = {"sparse-transformer:pattern=fixed",
                                           "streaming:sink=70:window=200:last=50",
                                           "minference:pattern=ashape:init=70:local=200"};
    OWN(sim_head_free) struct sim_head h;
    struct accel_session s = {.answer = REFUSES};
    make_head(&h);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        OWN(record_free) struct record r;
        MUST(run(&s, &h, SELECT_GPU, settings[i], &r, ERR));
        ck_assert_int_eq(r.status, RECORD_OK);
        ck_assert(has_note(&r, "select_backend=cpu"));
        ck_assert(has_note(&r, "select_kind=static"));
        ck_assert_double_eq(record_get(&r, "time_select_ns"), 0);
        ck_assert_double_eq(record_get(&r, "time_total_ns"), 300);
        ck_assert_double_eq(record_get(&r, "speedup"), 4);
        ck_assert(isnan(record_get(&r, "time_build_ns")));
    }
    ck_assert_int_eq(s.selections, 0); /* nobody was asked */
}

/* One step of a head whose state goes on over the steps. */
static void run_at_step(struct accel_session *s, struct sim_head *h, int step, const char *method,
                        struct record *r)
{
    h->in.step = step;
    MUST(run(s, h, SELECT_AUTO, method, r, ERR));
}

/* A refresh step pays for the choice, the steps that reuse its mask do not; each bears its share in
 * a number of its own. */
TEST(reused_masks_bear_a_share)
{
    static const char *const method = "fg-attn:refresh=4";
    OWN(sim_head_free) struct sim_head h;
    struct accel_session s = {.answer = SAME};
    struct record r;
    make_head(&h);
    run_at_step(&s, &h, 0, method, &r);
    ck_assert(has_note(&r, "select_kind=own"));
    ck_assert_double_eq(record_get(&r, "dense_call"), 1);
    ck_assert_double_eq(record_get(&r, "time_total_ns"), 400);
    ck_assert_double_eq(record_get(&r, "time_select_amortised_ns"), 25);
    record_free(&r);
    run_at_step(&s, &h, 1, method, &r);
    ck_assert(has_note(&r, "select_kind=reused"));
    ck_assert_double_eq(record_get(&r, "mask_age"), 1);
    ck_assert_double_eq(record_get(&r, "time_select_ns"), 0);
    ck_assert_double_eq(record_get(&r, "time_total_ns"), 300);
    ck_assert_double_eq(record_get(&r, "time_select_amortised_ns"), 25);
    ck_assert_int_eq(s.selections, 1);
    record_free(&r);
    s.carry.free(s.carry.data);
}

/* The device makes what a reused mask is compared with; the call's time has nothing of that. */
TEST(reused_masks_are_compared)
{
    static const char *const method = "fg-attn:refresh=4:M=64:compare=1";
    OWN(sim_head_free) struct sim_head h;
    struct accel_session s = {.answer = SAME};
    struct record r;
    make_head(&h);
    run_at_step(&s, &h, 0, method, &r);
    ck_assert_int_eq(s.selections, 1);
    ck_assert(isnan(record_get(&r, "mask_iou")));
    record_free(&r);
    run_at_step(&s, &h, 1, method, &r);
    ck_assert_int_eq(s.selections, 2);
    ck_assert(has_note(&r, "select_kind=reused"));
    ck_assert_double_eq(record_get(&r, "mask_precision"), 1);
    ck_assert_double_lt(record_get(&r, "mask_recall"), 1);
    /* Key 1; the first group has it in any case, as all keys beside its queries. */
    ck_assert_double_eq(record_get(&r, "mask_diff"), (double)((N + 63) / 64 - 1));
    ck_assert_double_eq(record_get(&r, "time_select_ns"), 0);
    record_free(&r);
    s.answer = REFUSES;
    run_at_step(&s, &h, 2, method, &r);
    ck_assert_double_gt(record_get(&r, "mask_margin"), 0); /* of the method's own choice */
    record_free(&r);
    s.carry.free(s.carry.data);
}
