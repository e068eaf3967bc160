/*
 * npz.h - reader for NumPy .npz files (np.savez, np.savez_compressed): .npy arrays in a zip
 * archive.
 *
 * Only what NumPy writes is read: members stored or deflated, zip64 where sizes need it. Encrypted
 * members, archives in several parts and other compressions are refused by name.
 */
#ifndef LACUNA_NPZ_H
#define LACUNA_NPZ_H

#include "core/npy.h"

struct npz;

/* Open and check the directory of the archive. ERR_INPUT names file and member. */
int npz_open(const char *path, struct npz **out, struct err *err);
void npz_close(struct npz **z);

/* Members whose names end with ".npy", in the order of the archive; the name without the ending. */
int64_t npz_count(const struct npz *z);
const char *npz_name(const struct npz *z, int64_t i);

/* Open member i after its checksum was compared. A deflated one is unpacked into memory first. The
 * caller closes it with npy_close; it may outlive z. */
int npz_array(const struct npz *z, int64_t i, struct npy **out, struct err *err);

#endif
