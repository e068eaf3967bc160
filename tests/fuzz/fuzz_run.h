/*
 * fuzz_run.h - running a fuzzer: one in this process (fuzz.c), or all in many (fuzzlong.c).
 */
#ifndef LACUNA_FUZZ_RUN_H
#define LACUNA_FUZZ_RUN_H

#include "tests/fuzz/fuzz.h"

struct fuzz_options {
    double seconds;
    int64_t first, cases, only; /* only = -1: cases first, first + 1, ... */
    uint64_t seed;
    char **files;
    int n_files;
};

/* Where a run is, in memory shared with the process that started it. */
struct fuzz_progress {
    int64_t index; /* the case in progress; below 0: an unchanged seed */
    int64_t tried; /* cases that passed */
};

enum { FUZZ_NOT_STARTED = 2 }; /* status of a run that had no scratch directory or seeds */

/* Returns 0, 1 after a failed case, or FUZZ_NOT_STARTED; a crash or a sanitizer ends the process.
 * With `progress` nothing is printed but failures. */
int fuzz_run(const struct fuzz_target *t, const struct fuzz_options *o, const char *program,
             struct fuzz_progress *progress);

/* N inputs in all over these fuzzers, in `jobs` processes that go on after a failure. Prints the
 * table "case, tried, failures, inputs per second of processor time". Returns 0, or 1 after a
 * failure.
 */
int fuzz_long(const struct fuzz_target *const *targets, int n_targets, int64_t inputs,
              uint64_t seed, int jobs, const char *program);

#endif
