#include "tests/suite.h"

#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char tmpdir[256];
static pid_t tmp_owner;

static void remove_tmpdir(void)
{
    char cmd[300];
    if (tmp_owner == getpid() && tmpdir[0]) {
        snprintf(cmd, sizeof cmd, "rm -rf '%s'", tmpdir);
        if (system(cmd) != 0)
            fprintf(stderr, "could not remove %s\n", tmpdir);
    }
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
    const char *base = getenv("TMPDIR");
    snprintf(tmpdir, sizeof tmpdir, "%s/lacuna-test-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(tmpdir)) {
        perror(tmpdir);
        return 1;
    }
    tmp_owner = getpid();
    atexit(remove_tmpdir);

    openblas_set_num_threads(1);
    SRunner *sr = srunner_create(make_suite());
    srunner_run_all(sr, CK_ENV);
    int ran = srunner_ntests_run(sr), failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    if (ran == 0)
        fprintf(stderr, "no test ran\n");
    return ran == 0 || failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
