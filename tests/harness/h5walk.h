/*
 * h5walk.h - any HDF5 file through the guard: open it, visit every object, read everything in it.
 */
#pragma once

#include "core/h5util.h"

/* Open a file of whatever content; the caller closes it with h5_close, all under h5_lock. */
int h5walk_open(const char *path, hid_t *file, struct err *err);

/* Call `visit` for the root, every group, dataset and committed type that hard links reach, at most
 * 6 deep and 300 in all. The first error of opening or of `visit` ends the walk. */
int h5walk(hid_t file, int (*visit)(void *ctx, hid_t object, const char *path, struct err *err),
           void *ctx, struct err *err);

/* A visitor: read all attributes and, where libhdf5 needs no filter for it, all elements; look up
 * the chunks of the others. ctx is not used. */
int h5walk_read(void *ctx, hid_t object, const char *path, struct err *err);

/* Elements of a dataset as stored: *data is malloc'd, *n bytes. NULL and 0 for more than 1 MiB and
 * for types with references or variable lengths. */
int h5walk_elements(hid_t dset, void **data, size_t *n, struct err *err);
