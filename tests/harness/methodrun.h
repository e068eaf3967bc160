/*
 * methodrun.h - run a method given as text on a head, for tests.
 */
#ifndef LACUNA_METHODRUN_H
#define LACUNA_METHODRUN_H

#include "core/buf.h"
#include "core/json.h"
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
    struct method_run *runs = NULL;
    int64_t n = 0;
    struct method_ctx ctx = {.seed = seed, .carry = carry};

    MUST(method_runs_parse(test_methods, text, &runs, &n, ERR));
    ck_assert_int_eq(n, 1);
    record_init(r);
    struct sim_cell cell = {.method = runs[0].method,
                            .params = runs[0].params,
                            .ctx = &ctx,
                            .in = in,
                            .sink = sink,
                            .sink_ctx = sink_ctx};
    MUST(sim_run(&cell, r, ERR));
    method_runs_free(runs, n);
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
    struct method_run *runs = NULL;
    int64_t n = 0;
    assert_ok(method_runs_parse(test_methods, text, &runs, &n, err), err);
    ck_assert_int_eq(n, 1);
    record_init(r);
    struct sim_cell cell = {
        .method = runs->method, .params = runs->params, .ctx = ctx, .in = in, .device = device};
    int rc = sim_run(&cell, r, err);
    method_runs_free(runs, n);
    return rc;
}

/* The same head at a step of a run whose state goes from call to call. */
static inline void run_step(const char *text, struct sim_head *h, int step, struct carry *carry,
                            struct record *r)
{
    h->in.step = step;
    run_text_carry(text, &h->in, carry, 1, NULL, NULL, r);
}

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
    OWN(record_free) struct record r;
    run_step(text, h, step, carry, &r);
    ck_assert_msg(r.status == RECORD_OK, "%s, step %d: %s", text, step, r.reason);
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
    struct err e = {0};
    struct method_run *runs = NULL;
    struct method_ctx ctx = {0};
    struct buf b = {0};
    struct jw w;
    int64_t n_runs = 0;
    assert_ok(method_runs_parse(test_methods, text, &runs, &n_runs, &e), &e);
    jw_init(&w, &b, 0);
    jw_obj(&w);
    int rc = runs[0].method->search.calibrate(&ctx, runs[0].params, in, n, &w, err);
    jw_obj_end(&w);
    if (rc == 0)
        assert_ok(json_read_text(buf_str(&b), b.len, "calibration", doc, &e), &e);
    buf_free(&b);
    method_runs_free(runs, n_runs);
    return rc;
}

/* One metric of a method on a head. */
static inline double metric_of(const char *text, const struct head_in *in, const char *name)
{
    struct record r;
    run_text(text, in, &r);
    double x = record_get(&r, name);
    record_free(&r);
    return x;
}

/* Counts of the mask that a method which does not look at the data gives a head of this shape. */
static inline struct mask_counts shape_counts(const char *text, int64_t nq, int64_t nk, bool causal,
                                              int head, int n_heads, uint64_t seed)
{
    struct method_run *runs = NULL;
    int64_t n = 0;
    void *state = NULL;
    struct method_ctx ctx = {.seed = seed};
    struct mask_counts sum = {0};
    struct head_in in = {.x = {.nq = nq, .nk = nk, .d = 1, .dv = 1, .scale = 1, .causal = causal},
                         .head = head,
                         .kv_head = head,
                         .n_heads = n_heads,
                         .n_kv_heads = n_heads,
                         .n_layers = 1,
                         .branch = "main"};

    MUST(method_runs_parse(test_methods, text, &runs, &n, ERR));
    const struct method *m = runs[0].method;
    MUST(method_prepare(m, &ctx, runs[0].params, &in, &state, ERR));
    int64_t unit = ctx.unit_rows;
    int64_t step = (1024 + unit - 1) / unit * unit;
    for (int64_t r = 0; r < nq; r += step) {
        OWN(mask_free) struct mask mask = {0};
        struct mask_counts c;
        MUST(m->select(state, r, r + step < nq ? r + step : nq, &mask, ERR));
        MUST(mask_check(&mask, ERR));
        MUST(mask_count(&mask, &c, ERR));
        sum.pairs_kept += c.pairs_kept;
        sum.pairs_allowed += c.pairs_allowed;
        sum.pairs_exec += c.pairs_exec;
        sum.tiles_kept += c.tiles_kept;
        sum.tiles_allowed += c.tiles_allowed;
        sum.rows_empty += c.rows_empty;
    }
    method_release(m, state);
    method_runs_free(runs, n);
    return sum;
}

/* A sink that writes the mask as 0/1 bytes [nq][nk]. */
static inline int sink_bits(void *ctx, const struct mask *m, const double *out, const double *lse,
                            struct err *err)
{
    uint8_t *bits = ctx;
    struct span *s = calloc((size_t)mask_max_spans(m), sizeof *s);
    for (int64_t i = m->row0; i < m->row1; i++) {
        int64_t n = mask_row_spans(m, i, s);
        memset(bits + i * m->nk, 0, (size_t)m->nk);
        for (int64_t k = 0; k < n; k++)
            memset(bits + i * m->nk + s[k].lo, 1, (size_t)(s[k].hi - s[k].lo));
    }
    free(s);
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

/* Equal to a number printed with `digits` significant digits. */
#define assert_printed(x, want, digits)                                                            \
    do {                                                                                           \
        double printed_x = (x), printed_w = (want);                                                \
        double printed_t =                                                                         \
            printed_w == 0 ? pow(10, -(digits))                                                    \
                           : 0.5000001 * pow(10, floor(log10(fabs(printed_w))) + 1 - (digits));    \
        ck_assert_msg(fabs(printed_x - printed_w) <= printed_t, "%s = %.12g, expected %.12g", #x,  \
                      printed_x, printed_w);                                                       \
    } while (0)

#endif
