/*
 * testmethods.h - all methods of the simulator, and the example of doc/adding-a-method.md, which no
 * program but the tests has.
 */
#pragma once

#include "core/method_run.h"
#include "tests/harness/suite.h"

extern const struct method *const test_methods[]; /* NULL-terminated */
int test_methods_count(void);

/* A method that needs a file or a program has no defaults; its own test gives it one. */
bool has_defaults(const struct method *m);

/* The one parameter set of a text: OWN(run_free) struct method_run *run = run_of(text); */
static inline struct method_run *run_of(const char *text)
{
    struct method_run *runs = NULL;
    int64_t n = 0;
    MUST(method_runs_parse(test_methods, text, &runs, &n, ERR));
    ck_assert_msg(n == 1, "%s is %d runs", text, (int)n);
    return runs;
}

static inline void run_free(struct method_run **run)
{
    method_runs_free(*run, 1);
}
