/*
 * test_accelmetrics.c - a replay whose metrics come from a back end: with a back end that computes
 * on the CPU, in double, records say what they say without one; and methods that claim to need no
 * dense reference select the same without it.
 */
#include "core/mem.h"
#include "sim/basemap.h"
#include "tests/accelrun.h"
#include "tests/methodrun.h"

#include <math.h>

/* ---- a back end made of the CPU reference ---------------------------------------------------- */

struct accel_session {
    int maps;      /* calls of `map` */
    uint64_t data; /* of the last `attend` */
};

static bool supports_all(const struct accel_session *s, const struct attn_in *x, int64_t *bq,
                         int64_t *bk, char why[160])
{
    if (*bq % 64 || *bk % 64)
        *bq = *bk = ACCEL_TILE;
    return true;
}

/* Tiles with bits as lists of keys, row by row. */
static void bits_to_mask(const struct accel_head *h, struct mask *m, struct err *err)
{
    const struct attn_in *x = h->x;
    assert_ok(mask_lists_init(m, x->nq, x->nk, 0, x->nq, x->causal, 1, 1, err), err);
    for (int64_t r = 0; r < x->nq; r++)
        for (int64_t i = h->ptr[r / ACCEL_TILE]; i < h->ptr[r / ACCEL_TILE + 1]; i++)
            for (int k = 0; k < ACCEL_TILE; k++) {
                int row = (int)(r % ACCEL_TILE);
                int64_t key = h->keys ? h->keys[i * ACCEL_TILE + k] : h->col[i] * ACCEL_TILE + k;
                const uint64_t *w = h->words + h->bits[i] * ACCEL_TILE_WORDS;
                bool kept = h->bits[i] < 0 || w[accel_word(row, k)] >> accel_bit(row, k) & 1;
                if (kept && key >= 0 && key < mask_limit(m, r))
                    assert_ok(mask_lists_add(m, r, (int32_t)key, err), err);
            }
    mask_lists_finish(m);
}

static void head_mask(const struct accel_head *h, struct mask *m, struct err *err)
{
    if (h->bits)
        bits_to_mask(h, m, err);
    else
        accel_lists_mask(h, m, err);
}

static void measure_row(const double *out, const double *ref, int d, struct accel_row *e)
{
    double v[7] = {0};
    for (int c = 0; c < d; c++) {
        double delta = out[c] - ref[c];
        v[0] += fabs(delta);
        v[1] += delta * delta;
        v[2] += fabs(ref[c]);
        v[3] += ref[c] * ref[c];
        v[4] += out[c] * out[c];
        v[5] += out[c] * ref[c];
        v[6] = fmax(v[6], fabs(delta));
    }
    *e = (struct accel_row){(float)v[0], (float)v[1], (float)v[2], (float)v[3],
                            (float)v[4], (float)v[5], (float)v[6]};
}

static int attend_on_cpu(struct accel_session *s, const struct accel_head *h,
                         struct accel_result *r, struct err *err)
{
    const struct attn_in *x = h->x;
    struct attn_ops ops = {0};
    struct mask m = {0}, full;
    double *out = calloc((size_t)(x->nq * x->dv), sizeof *out);
    double *ref = calloc((size_t)(x->nq * x->dv), sizeof *ref);

    assert_ok(attn_prepare(&ops, x, PREC_F64, err), err);
    head_mask(h, &m, err);
    assert_ok(attn_rows(&ops, &m, out, r->lse, err), err);
    mask_full(&full, x->nq, x->nk, 0, x->nq, x->causal);
    s->data = h->data;
    ck_assert_ptr_nonnull(r->rows);
    ck_assert_ptr_null(r->out); /* nobody asked for it */
    assert_ok(attn_rows(&ops, &full, ref, r->dense_lse, err), err);
    for (int64_t i = 0; i < x->nq; i++) {
        measure_row(out + i * x->dv, ref + i * x->dv, x->dv, r->rows + i);
        r->mass[i] = r->lse[i] == -INFINITY ? 0 : exp(r->lse[i] - r->dense_lse[i]);
    }
    r->attend = r->dense = r->metrics = (struct accel_time){1, 1, 1, 1};
    r->pairs_exec = 1;
    mask_free(&m);
    attn_release(&ops);
    free(out);
    free(ref);
    return 0;
}

static int map_on_cpu(struct accel_session *s, const struct attn_in *x, struct accel_map *m,
                      struct err *err)
{
    struct attn_ops ops = {0};
    struct mask full;
    struct map_below *b = calloc(1, sizeof *b);
    double *lse = calloc((size_t)x->nq, sizeof *lse);

    ck_assert_uint_eq(m->data, s->data); /* the same operands, which are there already */
    assert_ok(attn_prepare(&ops, x, PREC_F64, err), err);
    mask_full(&full, x->nq, x->nk, 0, x->nq, x->causal);
    assert_ok(attn_rows(&ops, &full, NULL, lse, err), err);
    b->n_c = m->n_c;
    memcpy(b->c, m->c, (size_t)m->n_c * sizeof *m->c);
    assert_ok(map_below_run(&ops, lse, b, err), err);
    for (int u = 0; u < ACCEL_UNITS; u++)
        for (int i = 0; i < m->n_c; i++) {
            m->units[u * m->n_c + i] = b->below[u][i];
            m->pairs[u * m->n_c + i] = b->below_pairs[u][i];
        }
    m->p_max = m->sums || m->n_c > 1 ? b->p_max : NAN; /* as on a GPU */
    m->sum_err = m->sums ? 0 : NAN;
    s->maps++;
    attn_release(&ops);
    free(b);
    free(lse);
    return 0;
}

static const struct accel on_cpu = {
    .name = "cpu", .supports = supports_all, .attend = attend_on_cpu, .map = map_on_cpu};

/* ---- heads ---------------------------------------------------------------------------------- */

static void make_head(int64_t n, bool causal, struct sim_head *h)
{
    enum { D = 64 };
    struct err err = {0};
    float *x = calloc((size_t)(3 * n * D), sizeof *x);
    for (int64_t i = 0; i < 3 * n * D; i++)
        x[i] =
            (float)(1.5 * sin(0.37 * (double)i + (double)(i % 97)) + cos(0.013 * (double)(i / D)));
    struct head_in in = one_head(x, x + n * D, x + 2 * n * D, n, n, D, causal);
    in.n_layers = 4;
    if (!causal)
        in.geom = (struct geometry){.t = n / 64, .h = 8, .w = 8};
    assert_ok(sim_head_init(h, &in, PREC_F64, &err), &err);
    free(x);
}

static struct head_in without_reference(const struct sim_head *h)
{
    struct head_in in = h->in;
    in.lse = in.out = NULL;
    return in;
}

/* ---- records -------------------------------------------------------------------------------- */

static bool recorded(const struct record *r, const char *name)
{
    for (int64_t k = 0; k < r->n_metrics; k++)
        if (strcmp(r->metrics[k].name, name) == 0)
            return true;
    return false;
}

/* p_max: the back end knows it. */
static void compare_records(const char *text, const struct head_in *in, const struct record *with,
                            const struct record *without, bool p_max)
{
    int compared = 0;
    for (int64_t i = 0; i < without->n_metrics; i++) {
        const char *name = without->metrics[i].name;
        double a = without->metrics[i].value, b = NAN;
        if (strncmp(name, "host_", 5) == 0 || (strcmp(name, "p_max") == 0 && !p_max))
            continue;
        for (int64_t k = 0; k < with->n_metrics; k++)
            if (strcmp(with->metrics[k].name, name) == 0)
                b = with->metrics[k].value;
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
    struct err err = {0};
    struct method_run *runs = NULL;
    struct record with, without;
    struct head_in in = without_reference(h);
    struct method_ctx ctx = {
        .seed = 1, .accel = &on_cpu, .session = &session, .accel_metrics = true};
    int64_t n = 0;

    assert_ok(method_runs_parse(sim_methods, text, &runs, &n, &err), &err);
    record_init(&with);
    assert_ok(sim_run(runs->method, runs->params, &ctx, &in, NULL, NULL, &with, &err), &err);
    ck_assert_msg(with.status == RECORD_OK, "%s: %s", text, with.reason);
    run_text(text, &h->in, &without);
    compare_records(text, &in, &with, &without, p_max);
    ck_assert_int_eq(session.maps, maps);
    ck_assert_int_eq(recorded(&with, "p_max"), p_max);
    ck_assert_int_eq(recorded(&with, "p_sum_err"), p_sums);
    record_free(&with);
    record_free(&without);
    method_runs_free(runs, n);
}

START_TEST(records_agree)
{
    struct sim_head h;
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
    sim_head_free(&h);
}
END_TEST

/* ---- no reference --------------------------------------------------------------------------- */

static void select_whole(const struct method_run *run, const struct head_in *in, struct mask *m,
                         bool *applies)
{
    struct method_ctx ctx = {.seed = 1};
    struct carry carry = {0}, shared = {0};
    struct err err = {0};
    void *state = NULL;

    ctx.carry = run->method->flags & METHOD_NEEDS_STEPS ? &carry : NULL;
    ctx.shared = run->method->flags & METHOD_SHARES_BRANCHES ? &shared : NULL;
    int rc = run->method->prepare(&ctx, run->params, in, &state, &err);
    ck_assert_msg(rc == 0 || rc == METHOD_SKIP, "%s: %s", run->method->name, err.msg);
    *applies = rc == 0;
    if (*applies)
        assert_ok(run->method->select(state, 0, in->x.nq, m, &err), &err);
    if (run->method->release)
        run->method->release(state);
    if (carry.free)
        carry.free(carry.data);
    if (shared.free)
        shared.free(shared.data);
}

static void assert_same_mask(const char *name, const struct mask *a, const struct mask *b)
{
    int64_t room = mask_max_spans(a) > mask_max_spans(b) ? mask_max_spans(a) : mask_max_spans(b);
    struct span *x = calloc((size_t)(2 * room), sizeof *x);
    for (int64_t i = 0; i < a->nq; i++) {
        int64_t n = mask_row_spans(a, i, x), k = mask_row_spans(b, i, x + room);
        ck_assert_msg(n == k && memcmp(x, x + room, (size_t)n * sizeof *x) == 0,
                      "%s: row %lld differs", name, (long long)i);
    }
    free(x);
}

START_TEST(masks_need_no_reference)
{
    struct sim_head h;
    int tried = 0;
    make_head(448, _i, &h);
    for (const struct method *const *m = sim_methods; *m; m++) {
        unsigned need = _i ? METHOD_CAUSAL : METHOD_BIDIRECTIONAL;
        struct head_in in = without_reference(&h);
        struct mask a = {0}, b = {0};
        struct method_run *runs = NULL;
        struct err err = {0};
        bool applies;
        int64_t n = 0;
        if (!((*m)->flags & METHOD_NO_REFERENCE) || !((*m)->flags & need))
            continue;
        assert_ok(method_runs_parse(sim_methods, (*m)->name, &runs, &n, &err), &err);
        select_whole(runs, &in, &a, &applies);
        if (applies) {
            select_whole(runs, &h.in, &b, &applies);
            assert_same_mask((*m)->name, &a, &b);
            tried++;
        }
        mask_free(&a);
        mask_free(&b);
        method_runs_free(runs, n);
    }
    ck_assert_int_ge(tried, 5);
    sim_head_free(&h);
}
END_TEST

Suite *make_suite(void)
{
    Suite *s = suite_create("accelmetrics");
    TCase *t = tcase_create("all");
    tcase_add_loop_test(t, records_agree, 0, 2);
    tcase_add_loop_test(t, masks_need_no_reference, 0, 2);
    suite_add_tcase(s, t);
    return s;
}
