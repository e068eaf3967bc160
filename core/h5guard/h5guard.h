/*
 * h5guard.h - the check of HDF5 metadata that runs before libhdf5 sees a file, and the file driver
 * through which libhdf5 then reads it.
 *
 * libhdf5 follows what it finds in a file: one wrong byte under a right checksum makes it read and
 * free memory that is not its own. The guard decodes every structure that a reader of lacuna
 * touches with bounds of its own and refuses what it does not understand. doc/robustness.md says
 * what is decoded, why it is enough, and what it costs.
 *
 * Three properties make it complete:
 * - An object (group, dataset, committed type) is admitted as a whole or not at all: its header
 * with all messages, its attributes, its links, the index of its chunks, the heaps behind them.
 * - libhdf5 reads metadata only through h5guard_read: bytes of admitted structures come from the
 *   guard's own copy, all other metadata bytes read as zero. A change of the file between check and
 *   use has no effect, and a structure that the guard does not know has no content.
 * - Structures do not overlap. So no byte is read in two meanings, and no walk has a cycle.
 *
 * The guard is not thread-safe; its callers hold the HDF5 lock (h5_lock). Errors are ERR_INPUT and
 * name the structure and its offset: "the file is damaged: ..." or "the file uses X, which lacuna
 * does not read"; callers put the file's name in front. ERR_IO and ERR_NOMEM are possible too.
 */
#pragma once

#include "core/err.h"

#include <hdf5.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct h5guard;

/* Check the superblock and the root group of the file behind fd. The guard owns fd from here on,
 * also when the call fails. */
int h5guard_open(int fd, struct h5guard **out, struct err *err);

/* Check the object whose header is at `addr`. An object that was admitted before costs nothing. */
int h5guard_admit(struct h5guard *g, uint64_t addr, struct err *err);

/* n bytes at offset `at` as libhdf5 may see them. `payload`: elements of datasets, whose bytes are
 * read from the file; false: metadata. Returns false when reading fails, with errno set, or the
 * file ends before, with errno 0. */
bool h5guard_read(struct h5guard *g, bool payload, uint64_t at, size_t n, void *out);

/* Size of the file in bytes, as it was when the guard opened it. */
uint64_t h5guard_size(const struct h5guard *g);

/* The descriptor, still owned by the guard. */
int *h5guard_fd(struct h5guard *g);

/* Close the descriptor and release everything; accepts NULL. */
void h5guard_free(struct h5guard *g);

/* ---- the file driver through which libhdf5 reads a guarded file ----------------------------- */

/* Open a checked file for reading. The file owns the guard from here on; when opening fails the
 * guard is released. Below zero: h5_fail tells the reason. */
hid_t h5guard_hdf5(struct h5guard *g);

/* The guard of a file, group or dataset that was opened so; NULL: another one, such as a file that
 * this process writes. */
struct h5guard *h5guard_of(hid_t loc);
