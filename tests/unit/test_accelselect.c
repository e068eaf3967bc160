/*
 * test_accelselect.c - a replay whose masks are chosen by a back end: whose mask is attended to and
 * counted, what is recorded, and who chooses where the back end does not. The back end here chooses
 * what the method's CPU side chooses, or that with given changes; of a band its tiles.
 */
#include "tests/harness/accelrun.h"
#include "tests/harness/methodrun.h"

#include <math.h>

/* ---- a back end ----------------------------------------------------------------------------- */

#define N 2700 /* more rows than a chunk of the reference */

enum answer { SAME, CHANGED, REFUSES, OTHER_UNIT, FULL, TILES, TILES_CHANGED };

struct accel_session {
    const struct head_in *in;
    enum answer answer;
    int selections;
    bool alone, once;           /* of the last choice: before the method's own; without times */
    int64_t attended;           /* blocks that attend was asked for */
    uint64_t data, data_before; /* of the selection in this run; of the run before */
    struct carry carry;         /* of the method, from run to run */
};

static bool supports_all(const struct accel_session *s, const struct attn_in *x, int64_t *bq,
                         int64_t *bk, char why[160])
{
    if (*bk == 1)
        *bq = *bk = ACCEL_TILE;
    return true;
}

static int attend_on_cpu(struct accel_session *s, const struct accel_head *h,
                         struct accel_result *r, struct err *err)
{
    const struct attn_in *x = h->x;
    struct attn_ops ops = {0};
    struct mask m = {0};
    if (s->data)
        ck_assert_uint_eq(h->data, s->data);
    ck_assert_uint_ne(h->data, s->data_before);
    s->data_before = h->data;
    if (h->bits)
        mask_full(&m, x->nq, x->nk, 0, x->nq, x->causal);
    else
        accel_lists_mask(h, &m, err);
    assert_ok(attn_prepare(&ops, x, PREC_F64, err), err);
    assert_ok(attn_rows(&ops, &m, r->out, r->lse, err), err);
    s->attended = h->ptr ? h->ptr[m.ngroups] : 0;
    r->attend = (struct accel_time){300, 290, 310, 5};
    r->dense = (struct accel_time){1200, 1190, 1210, 5};
    r->pairs_exec = 1;
    r->copies = (struct accel_heads){8, 4};
    ck_assert_int_eq(h->call.q, s->in->n_heads);
    ck_assert_int_eq(h->call.kv, s->in->n_kv_heads);
    mask_free(&m);
    attn_release(&ops);
    return 0;
}

/* The mask of a method with other parameters than those asked for would not do. */
static void select_on_cpu(const struct accel_choice *c, const struct head_in *in, struct mask *m,
                          struct err *err)
{
    const struct method *me = method_find(test_methods, c->method, err);
    struct method_ctx ctx = {.seed = c->seed};
    void *state = NULL;
    ck_assert_ptr_eq(c->options, me->params.table);
    ck_assert_ptr_eq(c->x->q, in->x.q);
    assert_ok(method_prepare(me, &ctx, c->params, in, &state, err), err);
    assert_ok(me->select(state, 0, in->x.nq, m, err), err);
    method_release(me, state);
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

/* The 128 x 128 tiles with a kept pair, row by row, but not the last tile of row 5. */
static void tiles_of(const struct mask *band, bool changed, struct mask *m, struct err *err)
{
    assert_ok(mask_lists_init(m, band->nq, band->nk, 0, band->nq, band->causal, 128, 128, err),
              err);
    for (int64_t g = 0; g < m->ngroups; g++) {
        bool kept[N / 128 + 1] = {false};
        for (int64_t i = g * 128; i < g * 128 + 128 && i < band->nq; i++) {
            struct span s[2];
            int64_t n = mask_row_spans(band, i, s);
            for (int64_t e = 0; e < n; e++)
                for (int64_t k = s[e].lo; k < s[e].hi; k++)
                    kept[k / 128] = true;
        }
        for (int64_t c = 0; c <= N / 128; c++)
            if (kept[c] && !(changed && g == 5 && c == 5))
                assert_ok(mask_lists_add(m, g, (int32_t)c, err), err);
    }
    mask_lists_finish(m);
}

/* The first n keys for each group of FG-Attn. */
static void first_keys(const struct accel_choice *c, int n, struct mask *m, struct err *err)
{
    const struct attn_in *x = c->x;
    assert_ok(mask_lists_init(m, x->nq, x->nk, 0, x->nq, x->causal, c->rule->fg.M, 1, err), err);
    for (int64_t g = 0; g < m->ngroups; g++)
        assert_ok(mask_lists_add_run(m, g, 0, n, err), err);
    mask_lists_finish(m);
}

static int select_head(struct accel_session *s, const struct accel_choice *c, struct mask *m,
                       struct accel_time *time, char why[160], struct err *err)
{
    struct mask own = {0};
    ck_assert_uint_ne(c->data, 0);
    ck_assert_int_eq(c->call.q, s->in->n_heads);
    ck_assert_int_eq(c->call.kv, s->in->n_kv_heads);
    s->data = c->data;
    s->selections++;
    s->alone = c->own != NULL;
    s->once = c->once;
    *time = (struct accel_time){100, 90, 110, 5};
    if (s->answer == FULL) {
        mask_full(m, c->x->nq, c->x->nk, 0, c->x->nq, c->x->causal);
        *time = (struct accel_time){0, 0, 0, 5};
        return 0;
    }
    if (s->answer == TILES || s->answer == TILES_CHANGED) {
        ck_assert_ptr_nonnull(c->shape);
        ck_assert_int_eq(c->shape->row1, c->x->nq);
        tiles_of(c->shape, s->answer == TILES_CHANGED, m, err);
        return 0;
    }
    ck_assert_ptr_null(c->shape);
    if (s->answer == REFUSES) {
        snprintf(why, 160, "%s has no GPU side here", c->method);
        return ACCEL_NO_SELECT;
    }
    if (s->answer == OTHER_UNIT)
        return mask_lists_init(m, c->x->nq, c->x->nk, 0, c->x->nq, c->x->causal, 64, 64, err);
    if (strcmp(c->method, "fg-attn") == 0) { /* whose call on a refresh step is full */
        ck_assert_int_eq(c->rule->fg.by, FG_CHOOSE_MAX);
        ck_assert_double_eq(c->rule->fg.at, 0.5 / (double)c->x->nk);
        first_keys(c, s->selections, m, err);
        return 0;
    }
    select_on_cpu(c, s->in, s->answer == CHANGED ? &own : m, err);
    if (s->answer == CHANGED)
        change(&own, m, err);
    mask_free(&own);
    return 0;
}

static const struct accel on_cpu = {
    .name = "cpu", .supports = supports_all, .attend = attend_on_cpu, .select = select_head};

/* ---- runs ----------------------------------------------------------------------------------- */

#define METHOD "xattention:stride=8:tau=0.5"

static void make_head(struct sim_head *h)
{
    enum { D = 16 };
    struct err err = {0};
    float *x = calloc((size_t)(3 * N * D), sizeof *x);
    for (int64_t i = 0; i < 3 * N * D; i++)
        x[i] = (float)(2 * sin(0.37 * (double)i + (double)(i % 97)) + cos(0.013 * (double)(i / D)));
    struct head_in in = one_head(x, x + N * D, x + 2 * N * D, N, N, D, true);
    in.n_heads = 12; /* of a call */
    in.n_kv_heads = 3;
    assert_ok(head_init(h, &in, PREC_F64, &err), &err);
    free(x);
}

static int run(struct accel_session *s, const struct sim_head *h, enum select_where where,
               const char *text, struct record *r, struct err *err)
{
    struct method_ctx ctx = {.seed = 1, .carry = &s->carry};
    const struct sim_device device = {.accel = &on_cpu, .session = s, .select = where};
    s->in = &h->in;
    s->data = 0;
    return run_on_device(&device, &h->in, text, &ctx, r, err);
}

static bool has_note(const struct record *r, const char *note)
{
    return strstr(buf_str(&r->notes), note) != NULL;
}

START_TEST(same_mask_and_total_time)
{
    struct sim_head h;
    struct accel_session s = {.answer = SAME};
    struct record r, cpu;
    struct err err = {0};
    make_head(&h);
    assert_ok(run(&s, &h, SELECT_AUTO, METHOD, &r, &err), &err);
    run_text(METHOD, &h.in, &cpu);
    ck_assert_int_eq(s.selections, 1);
    ck_assert(has_note(&r, "select_backend=cuda"));
    ck_assert_double_eq(record_get(&r, "mask_diff"), 0);
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
    ck_assert_double_eq(record_get(&r, "speedup"), 3);
    record_free(&r);
    record_free(&cpu);
    sim_head_free(&h);
}
END_TEST

START_TEST(changed_mask_is_the_one_that_counts)
{
    struct sim_head h;
    struct accel_session s = {.answer = SAME};
    struct record same, r;
    struct err err = {0};
    make_head(&h);
    assert_ok(run(&s, &h, SELECT_AUTO, METHOD, &same, &err), &err);
    int64_t before = s.attended;
    s.answer = CHANGED;
    assert_ok(run(&s, &h, SELECT_GPU, METHOD, &r, &err), &err);
    int64_t gained = s.attended + 1 - before; /* blocks of the last group that were left out */
    ck_assert_int_gt(gained, 0);
    ck_assert_double_eq(record_get(&r, "mask_diff"), (double)(gained + 1));
    double pairs = record_get(&r, "pairs_kept") - record_get(&same, "pairs_kept");
    ck_assert_double_eq(pairs, (double)(N % 128 * 128 * gained - 128 * 128));
    ck_assert_double_ne(record_get(&r, "err_l2_rel"), record_get(&same, "err_l2_rel"));
    record_free(&same);
    record_free(&r);
    sim_head_free(&h);
}
END_TEST

/* Counts of the mask, as a search takes them, over what the device chose. */
static void count_mask(struct accel_session *s, const struct sim_head *h, struct record *r)
{
    const struct sim_device device = {.accel = &on_cpu, .session = s};
    struct method_ctx ctx = {.seed = 1, .carry = &s->carry};
    struct method_run *runs = NULL;
    struct err err = {0};
    int64_t n = 0;
    s->in = &h->in;
    record_init(r);
    assert_ok(method_runs_parse(test_methods, METHOD, &runs, &n, &err), &err);
    struct sim_cell cell = {.method = runs->method,
                            .params = runs->params,
                            .ctx = &ctx,
                            .in = &h->in,
                            .device = &device,
                            .measure = MEASURE_MASK};
    assert_ok(sim_run(&cell, r, &err), &err);
    method_runs_free(runs, n);
}

START_TEST(counts_alone_ask_the_device_alone)
{
    struct sim_head h;
    struct accel_session s = {.answer = SAME};
    struct record all, counts;
    struct err err = {0};
    make_head(&h);
    for (int changed = 0; changed < 2; changed++) {
        s.answer = changed ? CHANGED : SAME;
        assert_ok(run(&s, &h, SELECT_AUTO, METHOD, &all, &err), &err);
        ck_assert(!s.alone && !s.once && !isnan(record_get(&all, "mask_diff")));
        count_mask(&s, &h, &counts);
        ck_assert(s.alone && s.once);
        ck_assert_double_eq(record_get(&counts, "pairs_kept"), record_get(&all, "pairs_kept"));
        record_free(&all);
        record_free(&counts);
    }
    s.answer = REFUSES; /* then the method chooses */
    count_mask(&s, &h, &counts);
    ck_assert_double_gt(record_get(&counts, "pairs_kept"), 0);
    record_free(&counts);
    sim_head_free(&h);
}
END_TEST

START_TEST(without_gpu_side)
{
    struct sim_head h;
    struct accel_session s = {.answer = REFUSES};
    struct record r;
    struct err err = {0};
    make_head(&h);
    assert_ok(run(&s, &h, SELECT_AUTO, METHOD, &r, &err), &err);
    ck_assert_int_eq(r.status, RECORD_OK);
    ck_assert(has_note(&r, "select_backend=cpu"));
    ck_assert(isnan(record_get(&r, "time_total_ns")));
    ck_assert(isnan(record_get(&r, "mask_diff")));
    ck_assert_double_eq(record_get(&r, "time_attend_ns"), 300);
    record_free(&r);
    assert_ok(run(&s, &h, SELECT_GPU, METHOD, &r, &err), &err);
    ck_assert_int_eq(r.status, RECORD_SKIP);
    ck_assert_str_eq(r.reason, "xattention has no GPU side here");
    record_free(&r);
    ck_assert_int_eq(s.selections, 2);
    assert_ok(run(&s, &h, SELECT_CPU, METHOD, &r, &err), &err);
    ck_assert(has_note(&r, "select_backend=cpu"));
    ck_assert_int_eq(s.selections, 2); /* it was not asked */
    record_free(&r);
    sim_head_free(&h);
}
END_TEST

START_TEST(other_units_are_an_error)
{
    struct sim_head h;
    struct accel_session s = {.answer = OTHER_UNIT};
    struct record r;
    struct err err = {0};
    make_head(&h);
    assert_fails(run(&s, &h, SELECT_AUTO, METHOD, &r, &err), &err, ERR_RUN, "units of 64 x 64");
    record_free(&r);
    sim_head_free(&h);
}
END_TEST

/* A band is the reference's, of parameters alone; what may differ is the list of its tiles. */
START_TEST(tiles_of_bands_are_compared)
{
    struct sim_head h;
    struct accel_session s = {.answer = TILES};
    struct record r;
    struct err err = {0};
    make_head(&h);
    for (int changed = 0; changed < 2; changed++) {
        s.answer = changed ? TILES_CHANGED : TILES;
        assert_ok(run(&s, &h, SELECT_GPU, "streaming:sink=70:window=200:last=50", &r, &err), &err);
        ck_assert_int_eq(r.status, RECORD_OK);
        ck_assert(has_note(&r, "select_backend=cuda"));
        ck_assert_double_eq(record_get(&r, "mask_diff"), changed);
        ck_assert(has_note(&r, "select_kind=static"));
        ck_assert_double_eq(record_get(&r, "time_build_ns"), 100);
        ck_assert_double_eq(record_get(&r, "time_select_ns"), 0);
        ck_assert_double_eq(record_get(&r, "time_total_ns"), 300);
        ck_assert_double_gt(record_get(&r, "host_plan_ns"), 0);
        record_free(&r);
    }
    sim_head_free(&h);
}
END_TEST

START_TEST(nothing_to_choose_takes_no_time)
{
    struct sim_head h;
    struct accel_session s = {.answer = FULL};
    struct record r;
    struct err err = {0};
    make_head(&h);
    assert_ok(run(&s, &h, SELECT_GPU, "sampleattention:chunks=22", &r, &err), &err);
    ck_assert_int_eq(r.status, RECORD_OK);
    ck_assert(has_note(&r, "select_backend=cuda"));
    ck_assert_double_eq(record_get(&r, "mask_diff"), 0);
    ck_assert_double_eq(record_get(&r, "time_total_ns"), 300);
    ck_assert_double_eq(record_get(&r, "select_share"), 0);
    record_free(&r);
    /* A full mask where the reference keeps less is no answer. */
    assert_fails(run(&s, &h, SELECT_AUTO, METHOD, &r, &err), &err, ERR_RUN,
                 "the reference does not");
    record_free(&r);
    sim_head_free(&h);
}
END_TEST

/* A method with a rule does not choose beside the device: it hands out what it was given. */
START_TEST(chosen_by_a_rule)
{
    static const char *const method = "sale:tau=0.05";
    struct sim_head h;
    struct accel_session s = {.answer = SAME};
    struct record r, cpu, changed;
    struct err err = {0};
    make_head(&h);
    run_text(method, &h.in, &cpu);
    ck_assert_double_lt(record_get(&cpu, "tested_kept"), 1);
    assert_ok(run(&s, &h, SELECT_GPU, method, &r, &err), &err);
    ck_assert(has_note(&r, "select_backend=cuda"));
    ck_assert(has_note(&r, "select_kind=own"));
    ck_assert(isnan(record_get(&r, "mask_diff")));
    ck_assert(isnan(record_get(&r, "ties")));
    ck_assert_double_eq(record_get(&r, "pairs_kept"), record_get(&cpu, "pairs_kept"));
    ck_assert_double_eq(record_get(&r, "tested_kept"), record_get(&cpu, "tested_kept"));
    ck_assert_double_eq(record_get(&r, "time_total_ns"), 400);
    s.answer = CHANGED;
    assert_ok(run(&s, &h, SELECT_AUTO, method, &changed, &err), &err);
    ck_assert_double_gt(record_get(&changed, "tested_kept"), record_get(&cpu, "tested_kept"));
    record_free(&changed);
    s.answer = OTHER_UNIT;
    assert_fails(run(&s, &h, SELECT_AUTO, "fg-attn:mode=pooled", &changed, &err), &err, ERR_RUN,
                 "a choice in units of 64 x 64, expected 128 x 1");
    record_free(&cpu);
    record_free(&r);
    record_free(&changed);
    sim_head_free(&h);
}
END_TEST

/* Nothing runs to choose these masks, so that the total is the attention alone. */
START_TEST(static_masks_need_no_gpu_side)
{
    struct sim_head h;
    struct accel_session s = {.answer = REFUSES};
    struct record r;
    struct err err = {0};
    make_head(&h);
    assert_ok(run(&s, &h, SELECT_GPU, "sparse-transformer:pattern=fixed", &r, &err), &err);
    ck_assert_int_eq(r.status, RECORD_OK);
    ck_assert(has_note(&r, "select_backend=cpu"));
    ck_assert(has_note(&r, "select_kind=static"));
    ck_assert_double_eq(record_get(&r, "time_select_ns"), 0);
    ck_assert_double_eq(record_get(&r, "time_total_ns"), 300);
    ck_assert_double_eq(record_get(&r, "speedup"), 4);
    ck_assert(isnan(record_get(&r, "time_build_ns")));
    record_free(&r);
    sim_head_free(&h);
}
END_TEST

/* One step of a head whose state goes on over the steps. */
static void run_at_step(struct accel_session *s, struct sim_head *h, int step, const char *method,
                        struct record *r)
{
    struct err err = {0};
    h->in.step = step;
    assert_ok(run(s, h, SELECT_AUTO, method, r, &err), &err);
}

/* A refresh step pays for the choice, the steps that reuse its mask do not; each bears its share in
 * a number of its own. */
START_TEST(reused_masks_bear_a_share)
{
    static const char *const method = "fg-attn:refresh=4";
    struct sim_head h;
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
    sim_head_free(&h);
}
END_TEST

/* The device makes what a reused mask is compared with; the call's time has nothing of that. */
START_TEST(reused_masks_are_compared)
{
    static const char *const method = "fg-attn:refresh=4:M=64:compare=1";
    struct sim_head h;
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
    sim_head_free(&h);
}
END_TEST

Suite *make_suite(void)
{
    Suite *s = suite_create("accelselect");
    TCase *t = tcase_create("all");
    tcase_add_test(t, same_mask_and_total_time);
    tcase_add_test(t, changed_mask_is_the_one_that_counts);
    tcase_add_test(t, counts_alone_ask_the_device_alone);
    tcase_add_test(t, without_gpu_side);
    tcase_add_test(t, other_units_are_an_error);
    tcase_add_test(t, tiles_of_bands_are_compared);
    tcase_add_test(t, chosen_by_a_rule);
    tcase_add_test(t, static_masks_need_no_gpu_side);
    tcase_add_test(t, reused_masks_bear_a_share);
    tcase_add_test(t, reused_masks_are_compared);
    tcase_add_test(t, nothing_to_choose_takes_no_time);
    suite_add_tcase(s, t);
    return s;
}
