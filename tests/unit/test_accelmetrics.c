/*
 * test_accelmetrics.c - a replay whose metrics come from a back end: with a back end that computes
 * on the CPU, in double, records say what they say without one, and no dense row is computed beside
 * it that no method asks for.
 */
#include "core/mem.h"
#include "sim/blocks/exact.h"
#include "tests/harness/accelrun.h"
#include "tests/harness/methodrun.h"

#include <math.h>

/* ---- a back end made of the CPU reference --------------------------------------------------- */

struct accel_session {
    int maps;       /* calls of `map` */
    int references; /* calls of `reference` */
    uint64_t data;  /* of the last `attend_call` */
};

#define SUMS_EXP 20 /* sums are of outputs that were divided by 2^20 */

static int attend_on_cpu(struct accel_session *s, const struct accel_call *c,
                         const struct accel_lists *l, struct accel_result *r, struct err *err)
{
    struct accel_head *h = c->heads;
    struct accel_outs o;
    struct mask m = {0};

    ck_assert_int_eq(c->n, 1);
    s->data = c->data;
    ck_assert_ptr_nonnull(h->mass);
    ck_assert_ptr_null(h->out); /* nobody asked for it */
    accel_head_mask(c, l, 0, &m, err);
    accel_compute(h->x, &m, PREC_F64, &o, err);
    accel_deliver(h, &o);
    accel_measure(h, &o, SUMS_EXP);
    accel_untimed(c, r);
    r->attend = r->dense = (struct accel_time){1, 1, 1, 1};
    h->pairs_exec = 1;
    accel_outs_free(&o);
    mask_free(&m);
    return 0;
}

static int map_on_cpu(struct accel_session *s, const struct attn_in *x, uint64_t data,
                      struct accel_map *m, struct err *err)
{
    struct exact exact;
    struct map_below *b = calloc(1, sizeof *b);

    ck_assert_uint_eq(data, s->data); /* the same operands, which are there already */
    exact_init(&exact, x, PREC_F64);
    b->n_c = m->n_c;
    memcpy(b->c, m->c, (size_t)m->n_c * sizeof *m->c);
    assert_ok(map_below_run(&exact, b, err), err);
    for (int u = 0; u < ACCEL_UNITS; u++)
        for (int i = 0; i < m->n_c; i++) {
            m->units[u * m->n_c + i] = b->below[u][i];
            m->pairs[u * m->n_c + i] = b->below_pairs[u][i];
        }
    m->p_max = m->sums || m->n_c > 1 ? b->p_max : NAN; /* as on a GPU */
    m->sum_err = m->sums ? 0 : NAN;
    s->maps++;
    exact_free(&exact);
    free(b);
    return 0;
}

static int reference_on_cpu(struct accel_session *s, const struct attn_in *x, uint64_t data,
                            double *out, double *lse, struct err *err)
{
    struct attn_ops ops = {0};
    struct mask full;
    ck_assert_uint_ne(data, 0);
    assert_ok(attn_prepare(&ops, x, PREC_F64, err), err);
    mask_full(&full, x->nq, x->nk, 0, x->nq, x->causal);
    assert_ok(attn_rows(&ops, &full, out, lse, err), err);
    attn_release(&ops);
    s->references++;
    return 0;
}

static const struct accel on_cpu = {
    .name = "cpu", .supports = accel_supports_all, .attend_call = attend_on_cpu, .map = map_on_cpu};
static const struct accel with_reference = {.name = "cpu",
                                            .supports = accel_supports_all,
                                            .attend_call = attend_on_cpu,
                                            .map = map_on_cpu,
                                            .reference = reference_on_cpu};

/* ---- heads ---------------------------------------------------------------------------------- */

static void make_head(int64_t n, bool causal, struct sim_head *h)
{
    enum { D = 64 };
    OWN(free_at) float *x = calloc((size_t)(3 * n * D), sizeof *x);
    for (int64_t i = 0; i < 3 * n * D; i++)
        x[i] =
            (float)(1.5 * sin(0.37 * (double)i + (double)(i % 97)) + cos(0.013 * (double)(i / D)));
    struct head_in in = one_head(x, x + n * D, x + 2 * n * D, n, n, D, causal);
    in.n_layers = 4;
    if (!causal)
        in.geom = (struct geometry){.t = n / 64, .h = 8, .w = 8};
    MUST(head_init(h, &in, PREC_F64, ERR));
}

/* Dense rows from the CPU, counted. */
struct dense_rows {
    struct exact exact;
    int64_t rows; /* computed so far */
    bool out;     /* with outputs */
};

static int count_dense(void *self, int64_t row0, int64_t row1, double *out, double *lse,
                       struct err *err)
{
    struct dense_rows *d = self;
    const struct attn_ops *ops;
    const struct attn_in *x = &d->exact.x;
    struct mask full;
    d->rows += row1 - row0;
    d->out |= out != NULL;
    assert_ok(exact_operands(&d->exact, &ops, err), err);
    mask_full(&full, x->nq, x->nk, row0, row1, x->causal);
    return attn_rows(ops, &full, out ? out + row0 * x->dv : NULL, lse + row0, err);
}

static struct head_in counted(const struct sim_head *h, struct dense_rows *d)
{
    struct head_in in = h->in;
    *d = (struct dense_rows){.rows = 0};
    exact_init(&d->exact, &in.x, PREC_F64);
    exact_dense_from(&d->exact, count_dense, d);
    in.exact = &d->exact;
    return in;
}

/* ---- records -------------------------------------------------------------------------------- */

static bool recorded(const struct record *r, const char *name)
{
    for (int64_t k = 0; k < record_metrics(r); k++)
        if (strcmp(r->names->name[k], name) == 0)
            return true;
    return false;
}

/* p_max: the back end knows it. */
static void compare_records(const char *text, const struct head_in *in, const struct record *with,
                            const struct record *without, bool p_max)
{
    int compared = 0;
    for (int64_t i = 0; i < record_metrics(without); i++) {
        const char *name = without->names->name[i];
        double a = without->values[i], b = NAN;
        if (strncmp(name, "host_", 5) == 0 || (strcmp(name, "p_max") == 0 && !p_max))
            continue;
        for (int64_t k = 0; k < record_metrics(with); k++)
            if (strcmp(with->names->name[k], name) == 0)
                b = with->values[k];
        ck_assert_msg(fabs(a - b) <= 1e-6 * (1 + fabs(a)), "%s%s: %s is %.9g, without it %.9g",
                      text, in->x.causal ? " causal" : "", name, b, a);
        compared++;
    }
    ck_assert_int_gt(compared, 20);
}

static void same_record(const char *text, const struct sim_head *h, bool maps, bool p_max,
                        bool p_sums)
{
    struct accel_session session = {0};
    struct method_run *runs = NULL;
    struct record with;
    struct dense_rows dense;
    struct head_in in = counted(h, &dense);
    struct method_ctx ctx = {.seed = 1};
    const struct sim_device device = {.accel = &on_cpu, .session = &session, .metrics = true};
    int64_t n = 0;

    MUST(method_runs_parse(test_methods, text, &runs, &n, ERR));
    record_init(&with);
    struct sim_cell cell = {
        .method = runs->method, .params = runs->params, .ctx = &ctx, .in = &in, .device = &device};
    MUST(sim_run(&cell, &with, ERR));
    ck_assert_int_eq(dense.rows, 0);
    ck_assert_msg(with.status == RECORD_OK, "%s: %s", text, with.reason);
    RUN(without, text, &h->in);
    compare_records(text, &in, &with, &without, p_max);
    ck_assert_int_eq(session.maps, maps);
    ck_assert_int_eq(recorded(&with, "p_max"), p_max);
    ck_assert_int_eq(recorded(&with, "p_sum_err"), p_sums);
    record_free(&with);
    method_runs_free(runs, n);
    exact_free(&dense.exact);
}

TEST_N(records_agree, 2)
{
    OWN(sim_head_free) struct sim_head h;
    make_head(448, _i, &h);
    same_record("dense:c=0.25+0.5+1", &h, true, true, false);
    same_record("dense:c=0.25+0.5+1:sums=1", &h, true, true, true);
    same_record("dense:c=0.5", &h, true, false, false);
    same_record("dense:c=0.5:sums=1", &h, true, true, true);
    same_record("dense:map=0", &h, false, false, false);
    same_record("xattention:stride=8:tau=0.7", &h, false, false, false);
    same_record("streaming:sink=4:window=50", &h, false, false, false);
    if (_i) {
        same_record("streaming:dilate=dilated1", &h, false, false, false);
        same_record("sparse-transformer", &h, false, false, false);
    }
    if (!_i)
        same_record("bigbird:block=64", &h, false, false, false);
}

/* A method's questions go to the back end, once per method and head, and none to the CPU. */
static void device_answers(const char *text, const struct sim_head *h)
{
    struct accel_session session = {0};
    struct method_run *runs = NULL;
    struct record with;
    struct dense_rows dense;
    struct head_in in = counted(h, &dense);
    struct method_ctx ctx = {.seed = 1};
    const struct sim_device device = {
        .accel = &with_reference, .session = &session, .metrics = true};
    int64_t n = 0;

    MUST(method_runs_parse(test_methods, text, &runs, &n, ERR));
    record_init(&with);
    struct sim_cell cell = {
        .method = runs->method, .params = runs->params, .ctx = &ctx, .in = &in, .device = &device};
    MUST(sim_run(&cell, &with, ERR));
    ck_assert_msg(with.status == RECORD_OK, "%s: %s", text, with.reason);
    ck_assert_int_eq(dense.rows, 0);
    ck_assert_msg(session.references == 1, "%s: %d references", text, session.references);
    RUN(without, text, &h->in);
    compare_records(text, &in, &with, &without, false);
    record_free(&with);
    method_runs_free(runs, n);
    exact_free(&dense.exact);
}

TEST(the_device_computes_the_reference)
{
    OWN(sim_head_free) struct sim_head h;
    make_head(448, true, &h);
    device_answers("sampleattention", &h);
    device_answers("flexprefill:gamma=0.9:min_budget=0", &h);
    device_answers("minference:v=20:s=50", &h);
    device_answers("oracle:alpha=0.9", &h);
}

/* ---- what is asked for ---------------------------------------------------------------------- */

/* Dense rows of 448 that a setting computes where the device measures: none, those of the blocks
 * that it looks at, or all; and whether with outputs. */
static const struct {
    const char *text;
    bool causal;
    int64_t rows;
    bool out;
} asked[] = {
    {"dense", true, 0, false},
    {"streaming", true, 0, false},
    {"bigbird:block=64", false, 0, false},
    {"longformer", true, 0, false},
    {"sparse-transformer", true, 0, false},
    {"radial", false, 0, false},
    {"spargeattn:pv=off", true, 0, false},
    {"xattention", true, 0, false},
    {"sale", true, 0, false},
    {"svg2:qc=8:kc=16:dense_steps=0:dense_layers=0", false, 0, false},
    {"fg-attn:mode=pooled", true, 0, false},
    {"oracle:kind=topk:k=9", true, 0, false},
    {"flexprefill:min_budget=64", true, 192, false},
    {"minference", true, 192, false},
    {"sampleattention", true, 192, false},
    {"fg-attn:refresh=1", true, 448, false},
    {"oracle", true, 448, false},
    {"oracle:kind=value", true, 448, true},
    {"svg1:dense_steps=0:dense_layers=0:row_limit=200", false, 256, true},
};

TEST_EACH(only_what_is_asked_for_is_computed, asked)
{
    OWN(sim_head_free) struct sim_head h;
    struct dense_rows dense;
    struct accel_session session = {0};
    struct method_run *runs = NULL;
    struct method_ctx ctx = {.seed = 1};
    const struct sim_device device = {.accel = &on_cpu, .session = &session, .metrics = true};
    struct carry carry = {0};
    struct record r;
    int64_t n = 0;

    make_head(448, asked[_i].causal, &h);
    struct head_in in = counted(&h, &dense);
    MUST(method_runs_parse(test_methods, asked[_i].text, &runs, &n, ERR));
    if (runs->method->flags & METHOD_NEEDS_STEPS)
        ctx.carry = &carry;
    struct sim_cell cell = {
        .method = runs->method, .params = runs->params, .ctx = &ctx, .in = &in, .device = &device};
    record_init(&r);
    MUST(sim_run(&cell, &r, ERR));
    ck_assert_msg(r.status == RECORD_OK, "%s: %s", asked[_i].text, r.reason);
    ck_assert_msg(dense.rows == asked[_i].rows && dense.out == asked[_i].out,
                  "%s: %lld dense rows%s", asked[_i].text, (long long)dense.rows,
                  dense.out ? " with outputs" : "");
    record_free(&r);
    carry_end(&carry);
    method_runs_free(runs, n);
    exact_free(&dense.exact);
}
