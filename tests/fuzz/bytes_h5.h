/*
 * bytes_h5.h - changes of the metadata bytes of an HDF5 file whose checksums are made right again:
 * libhdf5 takes such bytes for what its own writer meant.
 */
#pragma once

#include "tests/fuzz/fuzz.h"

/* Once, by a target's `seeds`: libhdf5 keeps the half megabyte of a file's metadata cache for the
 * next file, for a sanitizer makes each allocation of that size a mapping of its own. */
void fuzz_h5_setup(void);

/* The body of a target's `mutate`. The first change of a case may put a variant in the place of the
 * seed: the seed after changes through the library (fuzz_h5) and `mend`, which may be NULL and
 * makes the content fit again. All others change bytes, mostly of metadata, and repair the
 * checksums. */
void fuzz_h5_change(struct fuzz_rng *r, struct buf *x, const struct fuzz_corpus *c,
                    void (*mend)(struct buf *x));
