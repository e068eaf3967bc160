/*
 * test_conform.c - what every method owes, checked over all methods of core/methods.def. A method
 * is picked up by being registered; its variants and budgets add parameter sets.
 */
#include "core/maskfile.h"
#include "tests/harness/conform.h"

/* ---- tests ---------------------------------------------------------------------------------- */

TEST_N(descriptions_are_complete, test_methods_count())
{
    const struct method *m = test_methods[_i];
    ck_assert_msg(m->summary && m->summary[0] && m->paper && m->paper[0], "%s: no summary or paper",
                  m->name);
    ck_assert_msg(m->prepare && m->select && m->state_size, "%s: a required hook is missing",
                  m->name);
    ck_assert_msg(m->flags & (METHOD_CAUSAL | METHOD_BIDIRECTIONAL), "%s runs on nothing", m->name);
    ck_assert_msg(!m->arith.how || m->arith.attend, "%s decides about an attend it does not have",
                  m->name);
    ck_assert_msg(!m->device.rule || m->device.take, "%s has a rule and takes no choice", m->name);
    for (int k = 0; k < _i; k++)
        ck_assert_msg(strcmp(m->name, test_methods[k]->name) != 0 &&
                          (!m->alias || strcmp(m->alias, test_methods[k]->name) != 0),
                      "%s: the name is taken", m->name);
    for (const struct opt *o = m->params.table; o && o->type != OPT_END; o++) {
        ck_assert_msg(o->help && o->help[0], "%s: %s has no help", m->name, o->name);
        ck_assert_msg(opt_find(m->params.table, o->name) == o, "%s: %s twice", m->name, o->name);
    }
}

/* A test of every parameter set of every method. One process has all sets of a method: a process
 * per set costs more than the checks. */
#define VARIANTS_TEST(name)                                                                        \
    static void check_##name(const char *text);                                                    \
    TEST_N(name, test_methods_count())                                                             \
    {                                                                                              \
        char text[160];                                                                            \
        for (int k = 0; conform_variant(test_methods[_i], k, text); k++)                           \
            check_##name(text);                                                                    \
    }                                                                                              \
    static void check_##name(const char *text)

/* The canonical text of a run parses to the same run. */
VARIANTS_TEST(canonical_text_is_stable)
{
    struct method_run *runs, *again;
    const struct method *m = conform_method(text, &runs);
    char back[400];
    snprintf(back, sizeof back, "%s:%s", m->name, runs[0].canonical);
    ck_assert_ptr_eq(conform_method(back, &again), m);
    ck_assert_str_eq(again[0].canonical, runs[0].canonical);
    method_runs_free(runs, 1);
    method_runs_free(again, 1);
}

/* edge_data_stays_finite has 129 x 129. */
static const int64_t lengths[][2] = {{1, 1},     {2, 2},  {63, 63}, {64, 64},  {65, 65}, {127, 127},
                                     {200, 200}, {1, 64}, {4, 10},  {33, 129}, {64, 200}};
#define N_LENGTHS ((int)(sizeof lengths / sizeof *lengths))

VARIANTS_TEST(metrics_recompute_from_the_mask)
{
    for (int k = 0; k < 2 * N_LENGTHS; k++) {
        OWN(sim_head_free) struct sim_head h;
        conform_head(NORMAL, lengths[k / 2][0], lengths[k / 2][1], k & 1, PREC_F64, &h);
        conform_check(text, &h, "random data");
    }
}

VARIANTS_TEST(edge_data_stays_finite)
{
    for (int data = 0; data < DATA_KINDS; data++)
        for (int causal = 0; causal < 2; causal++) {
            OWN(sim_head_free) struct sim_head h;
            conform_head((enum conform_data)data, 129, 129, causal, PREC_F64, &h);
            conform_check(text, &h, conform_data_names[data]);
        }
}

static bool same_result(const struct conform_result *a, const struct conform_result *b)
{
    if (a->r.status != b->r.status || strcmp(a->r.reason, b->r.reason) != 0)
        return false;
    if (a->r.status != RECORD_OK)
        return true;
    bool same = memcmp(a->bits, b->bits, (size_t)(a->nq * a->nk)) == 0 &&
                memcmp(a->out, b->out, (size_t)(a->nq * a->dv) * sizeof *a->out) == 0 &&
                record_metrics(&a->r) == record_metrics(&b->r);
    for (int64_t k = 0; same && k < record_metrics(&a->r); k++)
        same = strncmp(a->r.names->name[k], "host_", 5) == 0 ||
               (strcmp(a->r.names->name[k], b->r.names->name[k]) == 0 &&
                a->r.values[k] == b->r.values[k]);
    return same;
}

VARIANTS_TEST(equal_seeds_give_equal_results)
{
    for (int causal = 0; causal < 2; causal++) {
        OWN(sim_head_free) struct sim_head h;
        struct conform_result a, b;
        struct carry ca = {0}, cb = {0};
        conform_head(NORMAL, 200, 200, causal, PREC_F64, &h);
        conform_run(text, &h.in, &ca, 9, &a);
        conform_run(text, &h.in, &cb, 9, &b);
        ck_assert_msg(same_result(&a, &b), "%s differs from run to run", text);
        conform_result_free(&a);
        conform_result_free(&b);
        carry_end(&ca);
        carry_end(&cb);
    }
}

/* Mask bits when select is called on ranges of `step` rows; false when the head is skipped. */
static bool select_in_steps(const char *text, const struct head_in *in, int64_t units,
                            uint8_t *bits)
{
    struct err err = {0};
    struct method_run *runs;
    const struct method *m = conform_method(text, &runs);
    struct carry carry = {0};
    struct method_ctx ctx = {.seed = 9, .carry = &carry};
    void *state = NULL;
    int rc = m->flags & (in->x.causal ? METHOD_CAUSAL : METHOD_BIDIRECTIONAL)
                 ? method_prepare(m, &ctx, runs[0].params, in, &state, &err)
                 : METHOD_SKIP;
    ck_assert_msg(rc >= 0, "%s: %s", text, err.msg);
    int64_t step = units * (rc == 0 ? ctx.unit_rows : 1);
    for (int64_t r = 0; rc == 0 && r < in->x.nq; r += step) {
        OWN(mask_free) struct mask mask = {0};
        int64_t end = r + step < in->x.nq ? r + step : in->x.nq;
        assert_ok(m->select(state, r, end, &mask, &err), &err);
        assert_ok(mask_check(&mask, &err), &err);
        ck_assert_msg(mask.row0 == r && mask.row1 == end, "%s: rows %lld..%lld", text,
                      (long long)mask.row0, (long long)mask.row1);
        sink_bits(bits, &mask, NULL, NULL, &err);
    }
    method_release(m, state);
    carry_end(&carry);
    method_runs_free(runs, 1);
    return rc == 0;
}

VARIANTS_TEST(row_ranges_do_not_change_the_mask)
{
    enum { N = 201 };
    static uint8_t whole[N * N], part[N * N];
    for (int causal = 0; causal < 2; causal++) {
        OWN(sim_head_free) struct sim_head h, other = {0};
        conform_head(NORMAL, N, N, causal, PREC_F64, &h);
        bool moved = !causal && conform_reordered(text, &h.in, 9, &other);
        const struct head_in *in = moved ? &other.in : &h.in;
        if (select_in_steps(text, in, N, whole)) {
            for (int64_t units = 1; units <= 3; units += 2) {
                ck_assert(select_in_steps(text, in, units, part));
                ck_assert_msg(memcmp(whole, part, sizeof whole) == 0,
                              "%s: the mask depends on ranges of %lld groups", text,
                              (long long)units);
            }
        }
    }
}

TEST_N(full_budget_is_dense, test_methods_count())
{
    const struct method *m = test_methods[_i];
    char text[160];
    if (!m->tests.full)
        return;
    conform_text(m, m->tests.full, text);
    for (int k = 0; k < 2 * N_LENGTHS; k++) {
        struct sim_head h;
        struct conform_result res;
        if (!(m->flags & (k & 1 ? METHOD_CAUSAL : METHOD_BIDIRECTIONAL)))
            continue;
        conform_head(NORMAL, lengths[k / 2][0], lengths[k / 2][1], k & 1, PREC_F64, &h);
        conform_run(text, &h.in, NULL, 1, &res);
        if (res.r.status == RECORD_OK) {
            const char *where = text;
            expect(record_get(&res.r, "density_elem") == 1,
                   "keeps %.9g of %lld x %lld, recall %.9g", record_get(&res.r, "density_elem"),
                   (long long)res.nq, (long long)res.nk, record_get(&res.r, "cra_min"));
            expect(record_get(&res.r, "err_l2_rel") <= 1e-12, "error %g",
                   record_get(&res.r, "err_l2_rel"));
            expect(fabs(record_get(&res.r, "cra_min") - 1) <= 1e-12, "recall %.17g",
                   record_get(&res.r, "cra_min"));
        }
        conform_result_free(&res);
        sim_head_free(&h);
    }
}

static void check_budget(const struct method *m, const struct method_budget *b, bool causal)
{
    OWN(sim_head_free) struct sim_head h;
    double density = 0, recall = 0;
    conform_head(NORMAL, 300, 300, causal, PREC_F64, &h);
    for (int k = 0; b->values[k]; k++) {
        char params[120], text[160];
        OWN(record_free) struct record r;
        snprintf(params, sizeof params, b->form, b->values[k]);
        conform_text(m, params, text);
        run_text_carry(text, &h.in, NULL, 1, NULL, NULL, &r);
        if (r.status == RECORD_OK) {
            ck_assert_msg(record_get(&r, "density_elem") >= density, "%s: density falls", text);
            ck_assert_msg(record_get(&r, "cra_mean") >= recall - 1e-12, "%s: recall falls", text);
            density = record_get(&r, "density_elem");
            recall = record_get(&r, "cra_mean");
        }
    }
}

TEST_N(larger_budgets_keep_more, test_methods_count())
{
    const struct method *m = test_methods[_i];
    for (const struct method_budget *b = m->tests.budgets; b && b->form; b++)
        for (int causal = 0; causal < 2; causal++)
            check_budget(m, b, causal);
}

/* A float replay stays close to the reference. Masks may differ in ties: recall is compared. */
VARIANTS_TEST(float_arithmetic_agrees)
{
    for (int causal = 0; causal < 2; causal++) {
        OWN(sim_head_free) struct sim_head a, b;
        OWN(conform_result_free) struct conform_result x, y;
        conform_head(NORMAL, 129, 129, causal, PREC_F64, &a);
        conform_head(NORMAL, 129, 129, causal, PREC_F32, &b);
        conform_run(text, &a.in, NULL, 2, &x);
        conform_run(text, &b.in, NULL, 2, &y);
        ck_assert_int_eq(x.r.status, y.r.status);
        if (x.r.status == RECORD_OK) {
            const char *where = text;
            conform_finite(where, &y);
            expect(fabs(record_get(&x.r, "cra_mean") - record_get(&y.r, "cra_mean")) < 2e-3,
                   "mean recall %g, in float %g", record_get(&x.r, "cra_mean"),
                   record_get(&y.r, "cra_mean"));
        }
    }
}

/* ---- dumped masks --------------------------------------------------------------------------- */

struct dump {
    struct maskfile *file;
    struct record *id;
    uint8_t *bits;
};

static int dump_chunk(void *ctx, const struct mask *m, const double *out, const double *lse,
                      struct err *err)
{
    struct dump *d = ctx;
    PASS_ON(sink_bits(d->bits, m, out, lse, err));
    return maskfile_put(d->file, d->id, NULL, m, err);
}

VARIANTS_TEST(dumped_masks_read_back)
{
    enum { N = 200 };
    static uint8_t bits[N * N], back[N * N];
    for (int causal = 0; causal < 2; causal++) {
        struct err err = {0};
        OWN(sim_head_free) struct sim_head h;
        OWN(record_free) struct record id, r;
        struct maskfile *f = NULL;
        struct mask m = {0};
        char path[400];

        conform_head(NORMAL, N, N, causal, PREC_F64, &h);
        record_init(&id);
        snprintf(id.method, sizeof id.method, "m");
        snprintf(id.branch, sizeof id.branch, "main");
        id.params = strdup("");
        id.n_q = id.n_k = N;
        id.causal = causal;
        snprintf(path, sizeof path, "%s/conform.h5", test_tmpdir());
        assert_ok(maskfile_create(path, true, &f, &err), &err);
        struct dump d = {f, &id, bits};
        run_text_carry(text, &h.in, NULL, 4, dump_chunk, &d, &r);
        if (r.status == RECORD_OK) {
            assert_ok(maskfile_commit(&f, &err), &err);
            assert_ok(maskfile_open(path, &f, &err), &err);
            ck_assert_int_eq(maskfile_cells(f), 1);
            assert_ok(maskfile_read(f, 0, &m, &err), &err);
            sink_bits(back, &m, NULL, NULL, &err);
            ck_assert_msg(memcmp(bits, back, sizeof bits) == 0, "%s: the dump differs", text);
            mask_free(&m);
            maskfile_close(&f);
        } else {
            maskfile_abort(&f);
        }
    }
}

/* ---- calibration ---------------------------------------------------------------------------- */

/* What calibrate writes are parameters of the method, with legal values. */
TEST_N(calibration_writes_parameters, test_methods_count())
{
    const struct method *m = test_methods[_i];
    struct err err = {0};
    if (!m->search.calibrate)
        return;
    for (int causal = 0; causal < 2; causal++) {
        struct sim_head h[2];
        struct head_in in[2];
        struct method_run *runs;
        struct method_ctx ctx = {.seed = 3};
        struct buf b = {0};
        struct jw w;
        json_t *doc = NULL, *v;
        const char *key;
        char text[160];

        if (!(m->flags & (causal ? METHOD_CAUSAL : METHOD_BIDIRECTIONAL)))
            continue;
        conform_head(NORMAL, 300, 300, causal, PREC_F64, &h[0]);
        conform_head(ONE_HOT, 300, 300, causal, PREC_F64, &h[1]);
        in[0] = h[0].in;
        in[1] = h[1].in;
        conform_text(m, m->tests.calibrate_short, text);
        conform_method(text, &runs);
        jw_init(&w, &b, 0);
        jw_obj(&w);
        int rc = m->search.calibrate(&ctx, runs[0].params, in, 2, &w, &err);
        ck_assert_msg(rc == 0 || (rc == METHOD_SKIP && ctx.skip[0]), "%s: %d %s", text, rc,
                      err.msg);
        jw_obj_end(&w);
        assert_ok(json_read_text(buf_str(&b), b.len, m->name, &doc, &err), &err);
        json_object_foreach(doc, key, v)
        {
            if (strcmp(key, "grid") == 0) /* all that was judged, no parameter */
                continue;
            if (json_is_string(v))
                snprintf(text, sizeof text, "%s", json_string_value(v));
            else if (json_is_boolean(v))
                snprintf(text, sizeof text, "%d", json_is_true(v));
            else if (json_is_integer(v))
                snprintf(text, sizeof text, "%lld", (long long)json_integer_value(v));
            else
                snprintf(text, sizeof text, "%.17g", json_real_value(v));
            assert_ok(opt_set(m->params.table, runs[0].params, m->name, key, text, &err), &err);
        }
        if (m->params.validate)
            assert_ok(m->params.validate(runs[0].params, &err), &err);
        json_decref(doc);
        buf_free(&b);
        method_runs_free(runs, 1);
        sim_head_free(&h[0]);
        sim_head_free(&h[1]);
    }
}
