/*
 * h5array.h - datasets of other programs as plain arrays in a file.
 */
#ifndef LACUNA_H5ARRAY_H
#define LACUNA_H5ARRAY_H

#include "core/h5util.h"

/* Write the elements of a chunked dataset in row-major order to the empty file fd; elem: bytes of
 * an element. Pipelines: none, deflate or zstd, either behind shuffle. Chunks that were never
 * written are zeros. ERR_INPUT for anything else, and for more than H5_ARRAY_CHUNKS chunks. */
#define H5_ARRAY_CHUNKS (1 << 20)
int h5_array_unpack(hid_t dset, const struct h5_info *info, size_t elem, int fd, struct err *err);

#endif
