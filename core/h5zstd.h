/*
 * h5zstd.h - byte shuffle + zstd of chunks: as the registered HDF5 filter 32015, and as plain
 * functions that pack and unpack chunks outside HDF5's lock.
 */
#ifndef LACUNA_H5ZSTD_H
#define LACUNA_H5ZSTD_H

#include "core/err.h"

#include <stddef.h>
#include <stdint.h>

/* Make filter 32015 known to HDF5 in this process. HDF5's dynamic plug-in is no way out: in a
 * statically linked program it would bring a second copy of the library. */
void h5_zstd_register(void);

/* Room that a packed chunk of `size` bytes can need. */
size_t chunk_bound(size_t size);

/* Shuffle elements of `elem` bytes and compress at `level`: what the HDF5 pipeline {shuffle, zstd}
 * stores. scratch has `size` bytes, dst chunk_bound(size). */
int chunk_pack(const void *src, size_t size, size_t elem, int level, void *scratch, void *dst,
               size_t *packed, struct err *err);

enum chunk_codec { CHUNK_ZSTD, CHUNK_DEFLATE };

/* The inverse, also of {shuffle, deflate}. libhdf5's own pipeline is not used for reading: it
 * trusts a deflated chunk to be as long as it should be. `skip` is the chunk's filter mask: bit 0 =
 * not shuffled, bit 1 = not compressed. The chunk must unpack to exactly `size` bytes (ERR_INPUT).
 */
int chunk_unpack(const void *src, size_t packed, enum chunk_codec codec, uint32_t skip, size_t elem,
                 void *scratch, void *dst, size_t size, struct err *err);

#endif
