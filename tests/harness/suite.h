/*
 * suite.h - what every file of tests/unit shares. check_main.c runs the tests of all files, or of
 * those that are named. Test data lies in tests/data; the working directory of a test is the
 * repository root.
 */
#pragma once

#include "core/err.h"
#include "core/mem.h"

#include <check.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

/* TEST(name) { ... } is a test of the file it stands in, and known to check_main.c before main()
 * begins: a process of its own. TEST_N runs it n times in that process, with _i = 0 ... n - 1;
 * TEST_EACH once for every row of a table. */
#define TEST_N(name, n)                                                                            \
    static void name##_row(int _i);                                                                \
    static void name##_rows(int _i)                                                                \
    {                                                                                              \
        suite_rows(__FILE__, name##_row, (int)(n));                                                \
    }                                                                                              \
    static const TTest name##_test = {#name, name##_rows, __FILE__, __LINE__};                     \
    __attribute__((constructor)) static void name##_add(void)                                      \
    {                                                                                              \
        suite_add_test(&name##_test);                                                              \
    }                                                                                              \
    static void name##_row(int _i)
#define TEST(name) TEST_N(name, 1)
#define TEST_EACH(name, table) TEST_N(name, sizeof(table) / sizeof *(table))
void suite_add_test(const TTest *test);
void suite_rows(const char *file, void (*row)(int i), int n);
int suite_row(void); /* the _i of the test that runs */

/* What is called before and after every test of the file, and every row of it; NULL: nothing. */
#define FIXTURE(begin, end)                                                                        \
    __attribute__((constructor)) static void suite_fixture_add(void)                               \
    {                                                                                              \
        suite_add_fixture(__FILE__, begin, end);                                                   \
    }
void suite_add_fixture(const char *file, SFun begin, SFun end);

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

/* The same with an error of their own, which the call gets as ERR. */
#define ERR (&suite_err)
#define MUST(call)                                                                                 \
    do {                                                                                           \
        struct err suite_err = {0};                                                                \
        assert_ok(call, ERR);                                                                      \
    } while (0)
#define FAILS(call, want_code, text)                                                               \
    do {                                                                                           \
        struct err suite_err = {0};                                                                \
        assert_fails(call, ERR, want_code, text);                                                  \
    } while (0)

/* A directory of the file's tests alone, below $TMPDIR or /tmp; removed when all tests have run. */
const char *test_tmpdir(void);

/* A name in it. The text stays valid for the next 63 calls. */
const char *test_path(const char *name);

/* Is neither a file of that name there, nor an unfinished one of its writer? */
bool test_absent(const char *name);
