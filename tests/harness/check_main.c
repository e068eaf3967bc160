#include "tests/harness/test.h"

#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char tmpdir[256];
static pid_t tmp_owner;

extern char **environ;

/* The user's gnuplot, launcher and settings are not the tests': these set what they want. */
static void clean_environment(void)
{
    static const char *const prefixes[] = {"LACUNA_", "SLURM_",   "OMPI_",
                                           "PMI_",    "GNUTERM=", "SOURCE_DATE_EPOCH="};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        for (char **e = environ; *e;) {
            if (strncmp(*e, prefixes[i], strlen(prefixes[i])) == 0) {
                char *name = strndup(*e, strcspn(*e, "="));
                unsetenv(name); /* the next one is in its place */
                free(name);
            } else {
                e++;
            }
        }
}

static void remove_tmpdir(void)
{
    char program[] = "rm", option[] = "-rf", *argv[] = {program, option, tmpdir, NULL};
    pid_t pid;
    int status = 0;
    if (tmp_owner != getpid() || !tmpdir[0])
        return;
    if (posix_spawnp(&pid, "rm", NULL, NULL, argv, environ) != 0 ||
        waitpid(pid, &status, 0) != pid || status != 0)
        fprintf(stderr, "could not remove %s\n", tmpdir);
}

const char *test_tmpdir(void)
{
    return tmpdir;
}

const char *test_path(const char *name)
{
    static char path[8][4300];
    static int at;
    at = (at + 1) % 8;
    snprintf(path[at], sizeof path[at], "%s/%s", tmpdir, name);
    return path[at];
}

static struct {
    const char *name;
    Suite *(*make)(void);
} suites[256];
static int n_suites;

void suite_add(const char *name, Suite *(*make)(void))
{
    if (n_suites == sizeof suites / sizeof *suites)
        abort();
    suites[n_suites].name = name;
    suites[n_suites++].make = make;
}

static struct {
    const char *file;
    const TTest *test;
    int n;
    void (*begin)(void), (*end)(void);
} tests[4096];
static int n_tests;

void suite_test(const char *file, const TTest *test, int n, void (*begin)(void), void (*end)(void))
{
    if (n_tests == sizeof tests / sizeof *tests)
        abort();
    tests[n_tests].file = file;
    tests[n_tests].test = test;
    tests[n_tests].n = n;
    tests[n_tests].begin = begin;
    tests[n_tests++].end = end;
}

/* Add the tests of test.h from number `at` on that are of one file; returns the number behind. */
static int add_file(SRunner *sr, int at)
{
    const char *file = tests[at].file;
    Suite *s = suite_create(file);
    TCase *c = tcase_create(file);
    suite_add_tcase(s, c);
    for (; at < n_tests && strcmp(tests[at].file, file) == 0; at++) {
        if (tests[at].test) {
            tcase_add_loop_test(c, tests[at].test, 0, tests[at].n);
            continue;
        }
        c = tcase_create(file);
        suite_add_tcase(s, c);
        if (tests[at].begin)
            tcase_add_checked_fixture(c, tests[at].begin, tests[at].end);
    }
    srunner_add_suite(sr, s);
    return at;
}

/* Add the suite of that name, or all if there is none. */
static bool choose(SRunner *sr, const char *name)
{
    bool found = false;
    for (int at = 0; at < n_tests;) {
        bool wanted = !name || strcmp(name, tests[at].file) == 0;
        const char *file = tests[at].file;
        if (wanted)
            at = add_file(sr, at);
        while (!wanted && at < n_tests && strcmp(tests[at].file, file) == 0)
            at++;
        found |= wanted;
    }
    for (int i = 0; i < n_suites; i++)
        if (!name || strcmp(name, suites[i].name) == 0) {
            srunner_add_suite(sr, suites[i].make());
            found = true;
        }
    if (!found)
        fprintf(stderr, "no file tests/unit/%s.c has tests\n", name);
    return found;
}

/* A test, and a program that it starts, may take 300 s of processor time, however long it waits for
 * its turn on a busy machine. One that waits for something else is ended after an hour. */
static void set_limits(void)
{
    struct rlimit limit = {300, RLIM_INFINITY};
    setrlimit(RLIMIT_CPU, &limit);
    setenv("CK_DEFAULT_TIMEOUT", "3600", 0);
    setenv("CK_TIMEOUT_MULTIPLIER", "1", 0);
}

/* check [NAME...]: the tests of these files of tests/unit, by default of all. */
int main(int argc, char **argv)
{
    clean_environment();
    set_limits();
    const char *base = getenv("TMPDIR");
    snprintf(tmpdir, sizeof tmpdir, "%s/lacuna-test-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(tmpdir)) {
        perror(tmpdir);
        return 1;
    }
    tmp_owner = getpid();
    atexit(remove_tmpdir);

    SRunner *sr = srunner_create(NULL);
    bool ok = argc > 1 || choose(sr, NULL);
    for (int i = 1; i < argc; i++)
        ok = choose(sr, argv[i]) && ok;
    if (ok)
        srunner_run_all(sr, CK_ENV);
    int ran = srunner_ntests_run(sr), failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    if (ran == 0)
        fprintf(stderr, "no test ran\n");
    return ran == 0 || failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
