/*
 * fuzz_run.h - running a fuzzer (fuzz.c).
 */
#pragma once

#include "tests/fuzz/fuzz.h"

struct fuzz_options {
    double seconds;
    int64_t first, cases, only; /* only = -1: cases first, first + 1, ... */
    uint64_t seed;
    char **files;
    int n_files;
};

/* Returns 0, 1 after a failed case, or 2 without a scratch directory or seeds; a crash or a
 * sanitizer ends the process. */
int fuzz_run(const struct fuzz_target *t, const struct fuzz_options *o, const char *program);
