/*
 * test_accelmetrics.c - a replay whose metrics come from a back end: with a back end that computes
 * on the CPU, in double, records say what they say without one, and no dense row is computed beside
 * it that no method asks for.
 */
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
    OWN(accel_outs_free) struct accel_outs o;
    OWN(mask_free) struct mask m = {0};
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
    return 0;
}

static int map_on_cpu(struct accel_session *s, const struct attn_in *x, uint64_t data,
                      struct accel_map *m, struct err *err)
{
    ck_assert_uint_eq(data, s->data); /* the same operands, which are there already */
    double p_max = accel_map_below(x, m, err);
    m->p_max = m->sums || m->n_c > 1 ? p_max : NAN; /* as on a GPU */
    m->sum_err = m->sums ? 0 : NAN;
    s->maps++;
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

static int grid_head(bool causal, struct sim_head *h, struct err *err)
{
    enum { ROWS = 448 };
    int rc = random_head(5, ROWS, ROWS, 64, causal, 1, PREC_F64, h, err);
    h->in.n_layers = 4;
    if (!causal)
        h->in.geom = (struct geometry){.t = ROWS / 64, .h = 8, .w = 8};
    return rc;
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

/* Run on the head, whose dense rows are counted. */
static void run_counted(const struct accel *accel, struct accel_session *session, const char *text,
                        const struct sim_head *h, struct dense_rows *d, struct record *r)
{
    const struct sim_device device = {.accel = accel, .session = session, .metrics = true};
    OWN(carry_end) struct carry carry = {0};
    struct method_ctx ctx = {.seed = 1, .carry = &carry};
    struct head_in in = h->in;
    *d = (struct dense_rows){.rows = 0};
    exact_init(&d->exact, &in.x, PREC_F64);
    exact_dense_from(&d->exact, count_dense, d);
    in.exact = &d->exact;
    MUST(run_on_device(&device, &in, text, &ctx, r, ERR));
    ck_assert_msg(r->status == RECORD_OK, "%s: %s", text, r->reason);
    exact_free(&d->exact);
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
    OWN(record_free) struct record with;
    struct dense_rows dense;
    run_counted(&on_cpu, &session, text, h, &dense, &with);
    ck_assert_int_eq(dense.rows, 0);
    RUN(without, text, &h->in);
    compare_records(text, &h->in, &with, &without, p_max);
    ck_assert_int_eq(session.maps, maps);
    ck_assert_int_eq(recorded(&with, "p_max"), p_max);
    ck_assert_int_eq(recorded(&with, "p_sum_err"), p_sums);
}

TEST_N(records_agree, 2)
{
    HEAD(h, grid_head, _i);
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
TEST_N(the_device_computes_the_reference, 4)
{
    static const char *const texts[] = {"sampleattention", "flexprefill:gamma=0.9:min_budget=0",
                                        "minference:v=20:s=50", "oracle:alpha=0.9"};
    struct accel_session session = {0};
    OWN(record_free) struct record with;
    struct dense_rows dense;
    HEAD(h, grid_head, true);
    run_counted(&with_reference, &session, texts[_i], &h, &dense, &with);
    ck_assert_int_eq(dense.rows, 0);
    ck_assert_int_eq(session.references, 1);
    RUN(without, texts[_i], &h.in);
    compare_records(texts[_i], &h.in, &with, &without, false);
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
    {"skip-softmax", true, 0, false},
    {"nm", true, 0, false},
    {"moba:chunk=32:topk=3:dense_last=0", true, 0, false},
    {"nsa:share=head:block=16:top=4", true, 0, false},
    {"sla:topk=0.4", false, 0, false},
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
    struct accel_session session = {0};
    OWN(record_free) struct record r;
    struct dense_rows dense;
    HEAD(h, grid_head, asked[_i].causal);
    run_counted(&on_cpu, &session, asked[_i].text, &h, &dense, &r);
    ck_assert_msg(dense.rows == asked[_i].rows && dense.out == asked[_i].out,
                  "%s: %lld dense rows%s", asked[_i].text, (long long)dense.rows,
                  dense.out ? " with outputs" : "");
}
