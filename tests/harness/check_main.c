#include "tests/harness/suite.h"

#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

int main(void)
{
    clean_environment();
    const char *base = getenv("TMPDIR");
    snprintf(tmpdir, sizeof tmpdir, "%s/lacuna-test-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(tmpdir)) {
        perror(tmpdir);
        return 1;
    }
    tmp_owner = getpid();
    atexit(remove_tmpdir);

    SRunner *sr = srunner_create(make_suite());
    srunner_run_all(sr, CK_ENV);
    int ran = srunner_ntests_run(sr), failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    if (ran == 0)
        fprintf(stderr, "no test ran\n");
    return ran == 0 || failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
