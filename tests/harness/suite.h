/*
 * suite.h - what every file of tests/unit shares. A test_<unit>.c defines make_suite(), or has the
 * tests of test.h; check_main.c runs those of all files, or of those that are named. Test data lies
 * in tests/data; the working directory of a test is the repository root.
 */
#ifndef LACUNA_SUITE_H
#define LACUNA_SUITE_H

#include "core/err.h"

#include <check.h>
#include <stdatomic.h>
#include <stdbool.h>

/* A file's suite makes itself known under the file's name before main() begins. */
void suite_add(const char *name, Suite *(*make)(void));
#if defined TEST_NAME && !defined LACUNA_TEST_H
static Suite *make_suite(void);
__attribute__((constructor)) static void suite_add_own(void)
{
    suite_add(TEST_NAME, make_suite);
}
#endif

/* Check notes every assertion that holds, to place a crash: a system call each, which is most of
 * the time of a test that looks at millions of elements. Here a line of a file notes itself once.
 */
static inline void suite_mark(const char *file, int line)
{
    enum { LINES = 4096 };
    static atomic_bool seen[LINES]; /* some assertions are made by several threads */
    if (line >= LINES || !atomic_exchange_explicit(&seen[line], true, memory_order_relaxed))
        _mark_point(file, line);
}
#define _mark_point suite_mark

/* Fail with the error's message unless the call returned 0. */
#define assert_ok(call, err)                                                                       \
    do {                                                                                           \
        int assert_ok_rc = (call);                                                                 \
        ck_assert_msg(assert_ok_rc == 0, "%s -> %d: %s", #call, assert_ok_rc, (err)->msg);         \
    } while (0)

/* Demand this error code and that the message contains `text`. */
#define assert_fails(call, err, want_code, text)                                                   \
    do {                                                                                           \
        int assert_fails_rc = (call);                                                              \
        ck_assert_msg(assert_fails_rc == (want_code) && strstr((err)->msg, (text)) != NULL,        \
                      "%s -> %d: '%s' (wanted %d and '%s')", #call, assert_fails_rc, (err)->msg,   \
                      (int)(want_code), (text));                                                   \
        err_clear(err);                                                                            \
    } while (0)

/* A fresh directory below $TMPDIR or /tmp, removed at exit of the test process. */
const char *test_tmpdir(void);

/* A name in it. The text stays valid for the next seven calls. */
const char *test_path(const char *name);

#endif
