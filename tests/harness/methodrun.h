/*
 * methodrun.h - run a method given as text on a head, for tests.
 */
#pragma once

#include "core/buf.h"
#include "core/json.h"
#include "core/sort.h"
#include "tests/harness/testmethods.h"
#include "sim/simulate.h"
#include "tests/harness/golden.h"
#include "tests/harness/suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Run the one parameter set of `text` on in; the record is filled. With carry (may be NULL) state
 * goes from call to call. */
static inline void run_text_carry(const char *text, const struct head_in *in, struct carry *carry,
                                  uint64_t seed, sim_sink_fn *sink, void *sink_ctx,
                                  struct record *r)
{
    OWN(run_free) struct method_run *run = run_of(text);
    struct method_ctx ctx = {.seed = seed, .carry = carry};
    struct sim_cell cell = {.method = run->method,
                            .params = run->params,
                            .ctx = &ctx,
                            .in = in,
                            .sink = sink,
                            .sink_ctx = sink_ctx};
    record_init(r);
    MUST(sim_run(&cell, r, ERR));
}

static inline void run_text(const char *text, const struct head_in *in, struct record *r)
{
    run_text_carry(text, in, NULL, 1, NULL, NULL, r);
    ck_assert_msg(r->status == RECORD_OK, "%s: skipped: %s", text, r->reason);
}

/* The same with a record `r` of the block. */
#define RUN(r, text, in)                                                                           \
    OWN(record_free) struct record r;                                                              \
    run_text(text, in, &r)

/* The one parameter set of `text` on a back end: what sim_run answers; a skipped record is an
 * answer. */
static inline int run_on_device(const struct sim_device *device, const struct head_in *in,
                                const char *text, struct method_ctx *ctx, struct record *r,
                                struct err *err)
{
    OWN(run_free) struct method_run *run = run_of(text);
    struct sim_cell cell = {
        .method = run->method, .params = run->params, .ctx = ctx, .in = in, .device = device};
    record_init(r);
    return sim_run(&cell, r, err);
}

/* The same head at a step of a run whose state goes from call to call. */
static inline void run_step(const char *text, struct sim_head *h, int step, struct carry *carry,
                            struct record *r)
{
    h->in.step = step;
    run_text_carry(text, &h->in, carry, 1, NULL, NULL, r);
}

/* The record `r` of the block, of a step that runs. */
#define STEP(r, text, h, t, carry)                                                                 \
    OWN(record_free) struct record r;                                                              \
    run_step(text, h, t, carry, &r);                                                               \
    ck_assert_msg(r.status == RECORD_OK, "%s, step %d: skipped: %s", text, (int)(t), r.reason)

/* Free the state that a method left, if any. */
static inline void carry_end(struct carry *c)
{
    if (c->free)
        c->free(c->data);
    *c = (struct carry){0};
}

/* A skipped record with this reason, which is released. */
static inline void assert_skipped(struct record *r, const char *why)
{
    ck_assert_int_eq(r->status, RECORD_SKIP);
    ck_assert_msg(strstr(r->reason, why) != NULL, "'%s' (wanted '%s')", r->reason, why);
    record_free(r);
}

/* A step that runs, and one that does not apply. */
static inline void step_runs(const char *text, struct sim_head *h, int step, struct carry *carry)
{
    STEP(r, text, h, step, carry);
}

static inline void step_skips(const char *text, struct sim_head *h, int step, struct carry *carry,
                              const char *why)
{
    struct record r;
    run_step(text, h, step, carry, &r);
    assert_skipped(&r, why);
}

/* The method does not apply to this head, and says why. */
static inline void assert_skips(const char *text, const struct head_in *in, const char *why)
{
    struct record r;
    run_text_carry(text, in, NULL, 1, NULL, NULL, &r);
    assert_skipped(&r, why);
}

/* These parameters are a usage error whose message contains `why`. */
static inline void assert_refused(const char *text, const char *why)
{
    struct method_run *runs = NULL;
    int64_t n = 0;
    FAILS(method_runs_parse(test_methods, text, &runs, &n, ERR), ERR_USAGE, why);
    method_runs_free(runs, n);
}

/* Calibrate a method given as text on n samples of one head: 0 and what it chose in *doc (released
 * by the caller with json_decref), or the method's own error. */
static inline int calibrate_text(const char *text, const struct head_in *in, int n, json_t **doc,
                                 struct err *err)
{
    OWN(run_free) struct method_run *run = run_of(text);
    OWN(buf_free) struct buf b = {0};
    struct method_ctx ctx = {0};
    struct jw w;
    jw_init(&w, &b, 0);
    jw_obj(&w);
    int rc = run->method->search.calibrate(&ctx, run->params, in, n, &w, err);
    jw_obj_end(&w);
    if (rc == 0)
        MUST(json_read_text(buf_str(&b), b.len, "calibration", doc, ERR));
    return rc;
}

/* One number of what it chose. */
static inline double calibrated(const char *text, const struct head_in *in, int n, const char *key)
{
    OWN(json_decrefp) json_t *doc = NULL;
    double x;
    MUST(calibrate_text(text, in, n, &doc, ERR));
    MUST(jget_num(doc, key, "calibration", &x, ERR));
    return x;
}

/* One metric of a method on a head. */
static inline double metric_of(const char *text, const struct head_in *in, const char *name)
{
    RUN(r, text, in);
    return record_get(&r, name);
}

static inline void assert_note(const struct record *r, const char *note)
{
    ck_assert_msg(strstr(buf_str(&r->notes), note) != NULL, "notes '%s' lack '%s'",
                  buf_str(&r->notes), note);
}

/* A method that has been prepared for a head: for tests of what comes between its parts. */
struct prepared {
    struct method_run *run;
    const struct method *me;
    struct method_ctx ctx;
    void *state;
};

static inline void prepare_text(struct prepared *p, const char *text, const struct head_in *in,
                                uint64_t seed, struct carry *carry)
{
    *p = (struct prepared){.run = run_of(text), .ctx = {.seed = seed, .carry = carry}};
    p->me = p->run->method;
    MUST(method_prepare(p->me, &p->ctx, p->run->params, in, &p->state, ERR));
}

static inline void prepared_free(struct prepared *p)
{
    method_release(p->me, p->state);
    method_runs_free(p->run, 1);
}

#define PREPARED(p, text, in, seed, carry)                                                         \
    OWN(prepared_free) struct prepared p;                                                          \
    prepare_text(&p, text, in, seed, carry)

/* What it asks of a device. */
static inline struct rule rule_of(const struct prepared *p)
{
    struct rule rule;
    char why[160] = "";
    ck_assert_msg(p->me->device.rule(p->state, &rule, why), "%s: %s", p->me->name, why);
    return rule;
}

/* It takes the masks `lists`, with `own` beside them, from a device, and refuses them alone. */
static inline void take_choice(const struct prepared *p, const struct mask *lists,
                               const struct accel_own *own)
{
    const struct accel_own none = {0};
    struct err err = {0};
    ck_assert_int_eq(
        p->me->device.take(p->state, &(struct device_choice){.lists = lists, .own = &none}, &err),
        ERR_RUN);
    MUST(p->me->device.take(p->state, &(struct device_choice){.lists = lists, .own = own}, ERR));
}

/* Counts of the mask that a method which does not look at the data gives a head of this shape. */
static inline struct mask_counts shape_counts(const char *text, int64_t nq, int64_t nk, bool causal,
                                              int head, int n_heads, uint64_t seed)
{
    struct mask_counts sum = {0};
    struct head_in in = {.x = {.nq = nq, .nk = nk, .d = 1, .dv = 1, .scale = 1, .causal = causal},
                         .head = head,
                         .kv_head = head,
                         .n_heads = n_heads,
                         .n_kv_heads = n_heads,
                         .n_layers = 1,
                         .branch = "main"};

    PREPARED(p, text, &in, seed, NULL);
    int64_t unit = p.ctx.unit_rows;
    int64_t step = (1024 + unit - 1) / unit * unit;
    for (int64_t r = 0; r < nq; r += step) {
        OWN(mask_free) struct mask mask = {0};
        struct mask_counts c;
        MUST(p.me->select(p.state, r, r + step < nq ? r + step : nq, &mask, ERR));
        MUST(mask_check(&mask, ERR));
        MUST(mask_count(&mask, &c, ERR));
        sum.pairs_kept += c.pairs_kept;
        sum.pairs_allowed += c.pairs_allowed;
        sum.pairs_exec += c.pairs_exec;
        sum.tiles_kept += c.tiles_kept;
        sum.tiles_allowed += c.tiles_allowed;
        sum.rows_empty += c.rows_empty;
    }
    return sum;
}

/* A sink that writes the mask as 0/1 bytes [nq][nk]. */
static inline int sink_bits(void *ctx, const struct mask *m, const double *out, const double *lse,
                            struct err *err)
{
    uint8_t *bits = ctx;
    OWN(free_at) struct span *s = calloc((size_t)mask_max_spans(m), sizeof *s);
    for (int64_t i = m->row0; i < m->row1; i++) {
        int64_t n = mask_row_spans(m, i, s);
        memset(bits + i * m->nk, 0, (size_t)m->nk);
        for (int64_t k = 0; k < n; k++)
            memset(bits + i * m->nk + s[k].lo, 1, (size_t)(s[k].hi - s[k].lo));
    }
    return 0;
}

/* The mask that `text` makes as bytes [nq][nk], to be freed. */
static inline uint8_t *run_bits(const char *text, const struct head_in *in)
{
    OWN(record_free) struct record r;
    uint8_t *bits = calloc((size_t)(in->x.nq * in->x.nk), 1);
    run_text_carry(text, in, NULL, 1, sink_bits, bits, &r);
    ck_assert_msg(r.status == RECORD_OK, "%s: skipped: %s", text, r.reason);
    return bits;
}

/* Recall per row of a run, for percentiles by other conventions than those of the records. */
struct recalls {
    double *keep;        /* [nq], out */
    const double *dense; /* [nq] log-sum-exps */
};

static inline int sink_recalls(void *ctx, const struct mask *m, const double *out,
                               const double *lse, struct err *err)
{
    struct recalls *r = ctx;
    for (int64_t i = m->row0; i < m->row1; i++)
        r->keep[i] = exp(lse[i - m->row0] - r->dense[i]);
    return 0;
}

/* Run; the golden traces' first percentile of the recalls, entry n / 100 of the ascending list. */
static inline double run_p1(const char *text, const struct head_in *in, struct record *r)
{
    OWN(free_at) double *keep = calloc((size_t)in->x.nq, sizeof *keep);
    struct recalls rows = {keep, head_lse(in)};
    run_text_carry(text, in, NULL, 1, sink_recalls, &rows, r);
    sort_f64(keep, in->x.nq);
    return keep[in->x.nq / 100];
}

/* The rows from `cut` on as a prompt chunk of their own; tol: they keep what they keep in the whole
 * prompt. NAN: they may keep more. */
static inline void assert_chunk_keeps(const char *text, const struct sim_head *whole, int64_t cut,
                                      double tol)
{
    OWN(sim_head_free) struct sim_head part;
    struct head_in in = whole->in;
    in.x.nq -= cut;
    in.x.q = whole->q + cut * in.x.d;
    MUST(head_init(&part, &in, PREC_F64, ERR));
    const struct head_in *heads[] = {&whole->in, &part.in};
    double *keep[2];
    for (int k = 0; k < 2; k++) {
        OWN(record_free) struct record r;
        keep[k] = calloc((size_t)heads[k]->x.nq, sizeof **keep);
        struct recalls rows = {keep[k], head_lse(heads[k])};
        run_text_carry(text, heads[k], NULL, 1, sink_recalls, &rows, &r);
        ck_assert(record_get(&r, "rows_empty") == 0 && record_get(&r, "density_elem") < 1);
    }
    for (int64_t q = 0; q < in.x.nq && !isnan(tol); q++)
        ck_assert_double_eq_tol(keep[1][q], keep[0][q + cut], tol);
    free(keep[0]);
    free(keep[1]);
}

/* ---- numbers -------------------------------------------------------------------------------- */

#define DIGITS(n)                                                                                  \
    (-(double)(n))       /* as a tolerance: that of a number printed with so many digits           \
                          */
#define NONE (-INFINITY) /* as a metric: the record has none */

static inline bool is_within(double x, double want, double tol)
{
    if (tol < 0)
        tol = want == 0 ? pow(10, tol) : 0.5000001 * pow(10, floor(log10(fabs(want))) + 1 + tol);
    return want == NONE ? isnan(x) : fabs(x - want) <= tol;
}

/* Equal to a number printed with `digits` significant digits. */
#define assert_printed(x, want, digits)                                                            \
    do {                                                                                           \
        double printed_x = (x), printed_w = (want);                                                \
        ck_assert_msg(is_within(printed_x, printed_w, DIGITS(digits)),                             \
                      "%s = %.12g, expected %.12g", #x, printed_x, printed_w);                     \
    } while (0)

/* The next of the names that blanks separate, into name[64]; the rest. NULL: there was none. */
static inline const char *next_metric(const char *names, char *name)
{
    size_t len = strcspn(names, " ");
    ck_assert_uint_lt(len, 64);
    memcpy(name, names, len);
    name[len] = '\0';
    return len ? names + len + strspn(names + len, " ") : NULL;
}

static inline void assert_metrics(int line, const struct record *r, double tol, const char *names,
                                  const double *want, size_t n)
{
    char name[64];
    size_t k = 0;
    for (const char *rest = names; (rest = next_metric(rest, name)); k++) {
        ck_assert_msg(k < n, "line %d: %d values of '%s'", line, (int)n, names);
        ck_assert_msg(is_within(record_get(r, name), want[k], tol),
                      "line %d: %s = %.12g, expected %.12g", line, name, record_get(r, name),
                      want[k]);
    }
    ck_assert_msg(k == n, "line %d: %d values of '%s'", line, (int)n, names);
}

/* Two records agree in these metrics, which both have or neither, within tol (1 + |x|); how many
 * there are. */
static inline int assert_agree(const struct record *a, const struct record *b, double tol,
                               const char *names)
{
    char name[64];
    int both = 0;
    for (const char *rest = names; (rest = next_metric(rest, name));) {
        double x = record_get(a, name), y = record_get(b, name);
        ck_assert_msg((isnan(x) && isnan(y)) || fabs(x - y) <= tol * (1 + fabs(x)),
                      "%s: %.12g and %.12g", name, x, y);
        both += !isnan(x);
    }
    return both;
}

/* HAS(&r, 1e-9, "cra_min cra_mean", 0.5, 0.7): metrics of a record within a tolerance of these
 * values, or of those in an array (HAS_ALL). RUN_HAS and STEP_HAS run a setting for that. */
#define HAS_ALL(r, tol, names, values)                                                             \
    assert_metrics(__LINE__, r, tol, names, values, sizeof(values) / sizeof(double))
#define HAS(r, tol, names, ...) HAS_ALL(r, tol, names, ((const double[]){__VA_ARGS__}))
#define RUN_HAS(text, in, tol, names, ...)                                                         \
    do {                                                                                           \
        RUN(run_has_r, text, in);                                                                  \
        HAS(&run_has_r, tol, names, __VA_ARGS__);                                                  \
    } while (0)
#define STEP_HAS(text, h, t, carry, tol, names, ...)                                               \
    do {                                                                                           \
        STEP(step_has_r, text, h, t, carry);                                                       \
        HAS(&step_has_r, tol, names, __VA_ARGS__);                                                 \
    } while (0)
