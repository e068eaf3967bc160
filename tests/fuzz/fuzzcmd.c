/*
 * fuzzcmd.c - all fuzzers in one program, for a machine that has nothing but this file.
 */
#include "tests/fuzz/fuzz_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct fuzz_target *const targets[] = {
#define FUZZ(name) &fuzz_##name,
#include "tests/fuzz/targets.def"
#undef FUZZ
};
enum { TARGETS = sizeof targets / sizeof *targets };

static const struct fuzz_target *find(const char *name)
{
    for (int i = 0; i < TARGETS; i++)
        if (strcmp(targets[i]->name, name) == 0)
            return targets[i];
    fprintf(stderr, "there is no fuzzer '%s' (fuzz list)\n", name);
    exit(2);
}

static int usage(void)
{
    fprintf(stderr, "usage: fuzz NAME [--seconds S] [--cases N] [--first I] [--seed N] [--case I] "
                    "[FILE...]\n"
                    "       fuzz list\n");
    return 2;
}

/* Options of `fuzz NAME`; what follows them are files. */
static int run_named(const char *program, const struct fuzz_target *t, int argc, char **argv)
{
    struct fuzz_options o = {.seconds = 10, .cases = INT64_MAX, .only = -1, .seed = 1};
    for (int i = 0; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strncmp(argv[i], "--", 2) != 0) {
            o.files = argv + i;
            o.n_files = argc - i;
            break;
        } else if (!strcmp(argv[i], "--seconds")) {
            o.seconds = atof(value);
        } else if (!strcmp(argv[i], "--cases")) {
            o.cases = atoll(value);
        } else if (!strcmp(argv[i], "--first")) {
            o.first = atoll(value);
        } else if (!strcmp(argv[i], "--seed")) {
            o.seed = strtoull(value, NULL, 10);
        } else if (!strcmp(argv[i], "--case")) {
            o.only = atoll(value);
        } else {
            return usage();
        }
    }
    return fuzz_run(t, &o, program);
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return usage();
    if (strcmp(argv[1], "list") == 0) {
        for (int i = 0; i < TARGETS; i++)
            puts(targets[i]->name);
        return 0;
    }
    return run_named(argv[0], find(argv[1]), argc - 2, argv + 2);
}
