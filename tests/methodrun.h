/*
 * methodrun.h - run a method given as text on a head, for tests.
 */
#ifndef LACUNA_METHODRUN_H
#define LACUNA_METHODRUN_H

#include "sim/registry.h"
#include "sim/simulate.h"
#include "tests/golden.h"
#include "tests/suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Run the one parameter set of `text` on in; the record is filled. With carry (may be NULL) state
 * goes from call to call. */
static inline void run_text_carry(const char *text, const struct head_in *in, struct carry *carry,
                                  uint64_t seed, sim_sink_fn *sink, void *sink_ctx,
                                  struct record *r)
{
    struct err         err = {0};
    struct method_run *runs = NULL;
    int64_t            n = 0;
    struct method_ctx  ctx = {.seed = seed, .carry = carry};

    assert_ok(method_runs_parse(sim_methods, text, &runs, &n, &err), &err);
    ck_assert_int_eq(n, 1);
    record_init(r);
    assert_ok(sim_run(runs[0].method, runs[0].params, &ctx, in, sink, sink_ctx, r, &err), &err);
    method_runs_free(runs, n);
}

static inline void run_text(const char *text, const struct head_in *in, struct record *r)
{
    run_text_carry(text, in, NULL, 1, NULL, NULL, r);
    ck_assert_msg(r->status == RECORD_OK, "%s: skipped: %s", text, r->reason);
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

/* Equal to a number printed with `digits` significant digits. */
#define assert_printed(x, want, digits)                                                       \
    do {                                                                                      \
        double printed_x = (x), printed_w = (want);                                           \
        double printed_t = printed_w == 0                                                     \
                               ? pow(10, -(digits))                                           \
                               : 0.5000001 * pow(10, floor(log10(fabs(printed_w))) + 1 - (digits)); \
        ck_assert_msg(fabs(printed_x - printed_w) <= printed_t, "%s = %.12g, expected %.12g", #x, \
                      printed_x, printed_w);                                                  \
    } while (0)

#endif
