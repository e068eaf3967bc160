/*
 * fuzz.h - seeded mutation fuzzing of readers.
 *
 *   build/tests/fuzz/fuzz NAME [--seconds S] [--cases N] [--seed N] [--case I] [FILE...]
 *   build/tests/fuzz/fuzz list
 *
 * A target makes small valid inputs, the framework mutates them and gives each to the target, which
 * reads it end to end. Case I of a seed is a pure function of (seed, I), so `--seed N --case I`
 * repeats it; FILE... are read as they are, without mutation. A case fails by a crash or sanitizer
 * report, by taking more than 5 s of processor time or 10 s in all, by asking for more than 1 GB,
 * by leaked memory, by an error without a message or with control characters in it, or when the
 * target finds that an accepted input gave an impossible result. The failing input is left in
 * <program>-NAME-SEED-CASE.crash.
 */
#pragma once

#include "core/buf.h"
#include "core/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Random numbers of one case. */
struct fuzz_rng {
    uint64_t seed, stream, n;
};
uint64_t fuzz_u64(struct fuzz_rng *r);
uint64_t fuzz_below(struct fuzz_rng *r, uint64_t n); /* 0..n-1; 0 for n = 0 */

/* Valid inputs to start from. */
struct fuzz_corpus {
    struct buf *seeds; /* owned */
    int64_t n, cap;
};
void fuzz_add(struct fuzz_corpus *c, const void *data, size_t len);
int fuzz_add_file(struct fuzz_corpus *c, const char *path, struct err *err);

/* Called in front of every look for leaks: what a library keeps for later would hide them. */
void fuzz_before_leaks(void (*tidy)(void));

/* Replace every checksum (core/sealed.h) by null: with it nearly every change would be refused for
 * that alone. */
void fuzz_unseal(struct buf *text);

/* A scratch directory of this process, in memory where there is one; removed at exit. */
const char *fuzz_dir(void);

struct fuzz_target {
    const char *name;

    int (*seeds)(struct fuzz_corpus *c, struct err *err);

    /* Change x; NULL = fuzz_bytes or, for text, fuzz_tokens and fuzz_bytes. */
    void (*mutate)(struct fuzz_rng *r, struct buf *x, const struct fuzz_corpus *c);
    bool text;

    /* Read x[0..len) end to end and release everything. Returns the reader's code; an impossible
     * result is reported through fuzz_wild and its return value. */
    int (*run)(const void *x, size_t len, struct err *err);
};

/* The input was accepted but what came out of it cannot be: fails the case. */
int fuzz_wild(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* A text of a method as a file may hold it: read with the rights of data, nothing that it sets
 * leads outside (fuzz_method.c). */
void fuzz_check_data(const char *text);

/* Write data to `name` in fuzz_dir() and return the path (valid until the next call). */
const char *fuzz_file(const char *name, const void *data, size_t len);

#define FUZZ(name) extern const struct fuzz_target fuzz_##name;
#include "tests/fuzz/targets.def"
#undef FUZZ

/* ---- mutations ------------------------------------------------------------------------------ */

/* One change of bytes: bit flip, byte set, truncation, block copied, deleted, inserted or taken
 * from another seed, an integer of 1, 2, 4 or 8 bytes replaced by a boundary value. */
void fuzz_bytes(struct fuzz_rng *r, struct buf *x, const struct fuzz_corpus *c);

/* One change of the tokens of JSON-like text in x[begin, end): a token or run of tokens replaced,
 * swapped, doubled, deleted or nested deeply, a number replaced by a boundary value. Returns the
 * new end. */
size_t fuzz_tokens(struct fuzz_rng *r, struct buf *x, size_t begin, size_t end);

/* Replace x[at, at + drop) by src[0..len). Ranges outside x are clipped. */
void fuzz_splice(struct buf *x, size_t at, size_t drop, const void *src, size_t len);
