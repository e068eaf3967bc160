/*
 * mutate_h5.h - changes of an HDF5 file through the HDF5 library: the file stays well-formed HDF5
 * (its metadata checksums are right), and what a reader finds in it is not what it expects.
 */
#pragma once

#include "tests/fuzz/fuzz.h"

/* One change of a file image: an attribute deleted, renamed, rewritten with another value, type or
 * shape; a link deleted, renamed, doubled, made soft or external; a dataset replaced by one of
 * another type, shape, layout or filter. false when x is not an HDF5 file that can be written. */
bool fuzz_h5(struct fuzz_rng *r, struct buf *x);

/* Set a string attribute of the root group. */
bool fuzz_h5_set_string(struct buf *x, const char *name, const char *value);
