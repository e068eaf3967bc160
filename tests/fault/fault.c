/*
 * fault.c - `fault KIND... [--seed N] [--tries N] [--only STEP]`: run the commands of a small chain
 * with faults and print a table: case, tried, failures.
 *
 * LACUNA names the program, ROOT the repository. --how NAME --at N repeats one case of --only STEP.
 * Exit status 1 if a case failed, 2 if the tests could not run.
 */
#include "tests/fault/fault.h"

#include "core/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct kind {
    const char *name, *what;
    void (*run)(const struct step *, struct tally *);
} all_kinds[] = {
    {"calls", "a system call fails", each_call_fails},
    {"memory", "an allocation fails", each_allocation_fails},
    {"clock", "the clock steps a day", clock_steps},
    {"kills", "SIGKILL at a system call", kills},
    {"cuts", "the power goes", power_cuts},
};
#define N_KINDS (sizeof all_kinds / sizeof *all_kinds)

void tally_print(const struct tally *t)
{
    printf("  %-8s %-10s %8ld tried %8ld completed %8ld refused %6ld failed\n", t->kind, t->step,
           t->tried, t->completed, t->refused, t->failures);
    fflush(stdout);
}

void tally_fail(struct tally *t, const char *dir, const char *what, const char *why)
{
    char kept[64];
    t->failures++;
    printf("FAILED fault %s --only %s %s --seed %llu: %s\n", t->kind, t->step, what,
           (unsigned long long)driver.seed, why);
    snprintf(kept, sizeof kept, "failed-%s-%s-%ld", t->kind, t->step, t->failures);
    if (driver.keep && t->failures <= 3) {
        remove_tree(trial_path(kept, ""));
        copy_tree(trial_path(dir, ""), trial_path(kept, ""));
    }
}

struct options {
    const char *kinds[N_KINDS];
    int n_kinds;
};

static const char *absolute(const char *path)
{
    char *p = realpath(path, NULL);
    if (!p)
        give_up("%s: not there", path);
    return p;
}

static void parse(int argc, char **argv, struct options *o)
{
    const char *program = getenv("LACUNA"), *root = getenv("ROOT");
    char shim[2048];
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--seed") == 0)
            driver.seed = strtoull(value, NULL, 10), i++;
        else if (strcmp(argv[i], "--tries") == 0)
            driver.tries = atol(value), i++;
        else if (strcmp(argv[i], "--only") == 0)
            driver.only = value, i++;
        else if (strcmp(argv[i], "--how") == 0)
            driver.how = value, i++;
        else if (strcmp(argv[i], "--at") == 0)
            driver.at = atol(value), i++;
        else if (strcmp(argv[i], "--all") == 0)
            driver.scope = "all";
        else if (strcmp(argv[i], "--verbose") == 0)
            driver.verbose = true;
        else if (strcmp(argv[i], "--keep") == 0)
            driver.keep = true;
        else if (argv[i][0] != '-' && o->n_kinds < (int)N_KINDS)
            o->kinds[o->n_kinds++] = argv[i];
        else
            give_up("%s: unknown; see the top of fault.c", argv[i]);
    }
    driver.root = absolute(root ? root : ".");
    driver.program = absolute(program ? program : "build/lacuna");
    snprintf(shim, sizeof shim, "%.*s/shim.so",
             (int)(strrchr(argv[0], '/') ? strrchr(argv[0], '/') - argv[0] : 1),
             strrchr(argv[0], '/') ? argv[0] : ".");
    driver.shim = absolute(shim);
}

static void make_scratch(void)
{
    static char dir[256];
    const char *base = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%s/lacuna-fault.XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm"
             : base                        ? base
                                           : "/tmp");
    if (!mkdtemp(dir))
        give_up("%s: cannot create", dir);
    driver.scratch = dir;
}

static long run_kind(const struct kind *k)
{
    long failures = 0, steps_run = 0;
    for (const struct step *s = steps; s->name; s++) {
        struct tally t = {.kind = k->name, .step = s->name};
        if ((driver.only && strcmp(driver.only, s->name) != 0) ||
            (s->starts_others && k->run != kills))
            continue;
        k->run(s, &t);
        if (t.tried)
            tally_print(&t);
        failures += t.failures;
        steps_run++;
    }
    if (!steps_run)
        give_up("--only %s: no such step", driver.only);
    return failures;
}

int main(int argc, char **argv)
{
    struct options o = {0};
    long failures = 0;
    double start = clock_s();
    driver.seed = 1;
    parse(argc, argv, &o);
    make_scratch();
    umask(022);
    setenv("LC_ALL", "C", 1);
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    unsetenv("SOURCE_DATE_EPOCH");
    chain_make();
    for (size_t i = 0; i < N_KINDS; i++)
        for (int j = 0; j < o.n_kinds; j++)
            if (strcmp(all_kinds[i].name, o.kinds[j]) == 0)
                failures += run_kind(&all_kinds[i]);
    printf("fault: seed %llu, %.0f s, %ld failures\n", (unsigned long long)driver.seed,
           clock_s() - start, failures);
    if (!driver.keep)
        remove_tree(driver.scratch);
    return failures ? 1 : 0;
}
