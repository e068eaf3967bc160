/*
 * test.h - suite.h for files whose tests make themselves known, in the order of the file:
 *
 *   TEST(name) { ... }           a test
 *   LOOP_TEST(name, n) { ... }   the same for _i = 0 .. n - 1
 *   FIXTURE(begin, end);         what runs before and after each of the tests that follow; NULL:
 *                                nothing
 */
#ifndef LACUNA_TEST_H
#define LACUNA_TEST_H

#include "tests/harness/suite.h"

/* test NULL: `begin` and `end` are the fixture of what follows. */
void suite_test(const char *file, const TTest *test, int n, void (*begin)(void), void (*end)(void));

#define LOOP_TEST(name, n)                                                                         \
    static void name##_fn(int _i);                                                                 \
    static const TTest name##_test = {#name, name##_fn, __FILE__, __LINE__};                       \
    __attribute__((constructor)) static void name##_add(void)                                      \
    {                                                                                              \
        suite_test(TEST_NAME, &name##_test, (int)(n), NULL, NULL);                                 \
    }                                                                                              \
    static void name##_fn(int _i)

#define TEST(name) LOOP_TEST(name, 1)

#define FIXTURE(begin, end) FIXTURE_AT(__LINE__, begin, end)
#define FIXTURE_AT(line, begin, end) FIXTURE_OF(line, begin, end)
#define FIXTURE_OF(line, begin, end)                                                               \
    __attribute__((constructor)) static void fixture_##line(void)                                  \
    {                                                                                              \
        suite_test(TEST_NAME, NULL, 0, begin, end);                                                \
    }                                                                                              \
    struct fixture_##line

#endif
