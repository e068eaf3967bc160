#include "tests/harness/suite.h"

#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char tmp_root[256], tmpdir[512]; /* of all files, of the file that runs */
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
    char program[] = "rm", option[] = "-rf", *argv[] = {program, option, tmp_root, NULL};
    pid_t pid;
    int status = 0;
    if (tmp_owner != getpid())
        return;
    if (posix_spawnp(&pid, "rm", NULL, NULL, argv, environ) != 0 ||
        waitpid(pid, &status, 0) != pid || status != 0)
        fprintf(stderr, "could not remove %s\n", tmp_root);
}

const char *test_tmpdir(void)
{
    return tmpdir;
}

const char *test_path(const char *name)
{
    static char path[64][4300];
    static int at;
    at = (at + 1) % 64;
    snprintf(path[at], sizeof path[at], "%s/%s", tmpdir, name);
    return path[at];
}

/* Tests of several files make files of the same name. */
static void enter_tmpdir(const char *file)
{
    const char *base = strrchr(file, '/') ? strrchr(file, '/') + 1 : file;
    snprintf(tmpdir, sizeof tmpdir, "%s/%.*s", tmp_root, (int)strcspn(base, "."), base);
    if (mkdir(tmpdir, 0700) != 0 && errno != EEXIST)
        ck_abort_msg("%s: %s", tmpdir, strerror(errno));
}

static const TTest *tests[4096];
static int n_tests;

void suite_add_test(const TTest *test)
{
    if (n_tests == sizeof tests / sizeof *tests)
        abort();
    tests[n_tests++] = test;
}

static struct {
    const char *file;
    SFun begin, end;
} fixtures[256];
static int n_fixtures;

void suite_add_fixture(const char *file, SFun begin, SFun end)
{
    if (n_fixtures == sizeof fixtures / sizeof *fixtures)
        abort();
    fixtures[n_fixtures].file = file;
    fixtures[n_fixtures].begin = begin;
    fixtures[n_fixtures++].end = end;
}

static int row; /* of the test that runs */

/* What tests of several rows began, in memory of all processes: a failed test leaves its row. */
static struct {
    int n;
    struct {
        const char *file;
        int row;
    } of[4096];
} * begun;

static void tell_rows(void)
{
    for (int i = 0; i < begun->n; i++)
        if (begun->of[i].row >= 0)
            fprintf(stderr, "%s: a test ended in row %d\n", begun->of[i].file, begun->of[i].row);
}

int suite_row(void)
{
    return row;
}

void suite_rows(const char *file, void (*test)(int i), int n)
{
    int f = 0;
    while (f < n_fixtures && strcmp(fixtures[f].file, file) != 0)
        f++;
    SFun begin = f < n_fixtures ? fixtures[f].begin : NULL;
    SFun end = f < n_fixtures ? fixtures[f].end : NULL;
    int at = begun->n++;
    enter_tmpdir(file);
    for (row = 0; row < n; row++) {
        begun->of[at].file = file;
        begun->of[at].row = n > 1 ? row : -1;
        if (begin)
            begin();
        test(row);
        if (end)
            end();
    }
    begun->of[at].row = -1;
}

/* The file's tests as a suite. */
static Suite *suite_of(const char *file)
{
    Suite *s = suite_create(file);
    TCase *c = tcase_create(file);
    for (int i = 0; i < n_tests; i++)
        if (strcmp(tests[i]->file, file) == 0)
            tcase_add_test(c, tests[i]);
    suite_add_tcase(s, c);
    return s;
}

/* Is it tests/unit/NAME.c? */
static bool named(const char *file, const char *name)
{
    const char *base = strrchr(file, '/') ? strrchr(file, '/') + 1 : file;
    size_t n = strlen(name);
    return strncmp(base, name, n) == 0 && strcmp(base + n, ".c") == 0;
}

/* Add the suite of that name, or all if there is none. */
static bool choose(SRunner *sr, const char *name)
{
    bool found = false;
    for (int i = 0; i < n_tests; i++) /* those of a file lie together */
        if ((i == 0 || strcmp(tests[i]->file, tests[i - 1]->file) != 0) &&
            (!name || named(tests[i]->file, name))) {
            srunner_add_suite(sr, suite_of(tests[i]->file));
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
    snprintf(tmp_root, sizeof tmp_root, "%s/lacuna-test-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(tmp_root)) {
        perror(tmp_root);
        return 1;
    }
    begun = mmap(NULL, sizeof *begun, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (begun == MAP_FAILED) {
        perror("mmap");
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
    tell_rows();
    int ran = srunner_ntests_run(sr), failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    if (ran == 0)
        fprintf(stderr, "no test ran\n");
    return ran == 0 || failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
