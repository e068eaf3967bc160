/*
 * h5util.h - shared by the HDF5 files of lacuna (traces, mask dumps): element types, attributes,
 * checks on objects of untrusted files, error texts, and files that get their final name only when
 * they are complete.
 *
 * A message of this module names the object inside the file ("/model: attribute 'heads' ..."); the
 * caller prefixes the file. Ids are hid_t; a function that hands out an id gives ownership.
 */
#pragma once

#include "core/dtype.h"
#include "core/err.h"
#include "core/fileio.h"
#include "core/mem.h"

#include <hdf5.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Every sequence of HDF5 calls runs between these two. The lock is recursive and process-wide:
 * HDF5 itself is thread-safe only when built so. h5_lock also makes HDF5 keep the reasons of
 * failures for the calling thread (h5_fail) instead of printing them, and registers the zstd filter
 * once. */
void h5_lock(void);
void h5_unlock(void);
static inline void h5_unlock_at(const int *locked)
{
    (void)locked;
    h5_unlock();
}
/* A declaration: the lock is held from here to the end of the block. */
#define H5_LOCKED OWN(h5_unlock_at) __attribute__((unused)) const int locked_ = (h5_lock(), 1)

/* Store "text: reason". The reason is the innermost frame of HDF5's error stack of the last failed
 * call since h5_lock; successful calls after that one do not erase it. A full disk (ENOSPC, EDQUOT)
 * becomes ERR_MACHINE, whatever `code` says. Returns the code. */
int h5_fail(struct err *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Path of an object inside its file, for messages; returns buf. */
const char *h5_where(hid_t loc, char buf[128]);

/* Close an id of any kind; ids below zero (never opened) are ignored. To close a dataset can mean
 * to write what HDF5 has buffered of it: h5_check_closed says whether that failed since its last
 * call, for any file. A file is committed only after it (h5_part_commit). */
void h5_close(hid_t id);
OWN_AT(h5_close, hid_t)
int h5_check_closed(struct err *err);
void h5_forget_closed(void);

/* The file type of a dtype (little-endian). bfloat16 is a 2-byte float with 8 exponent bits, bias
 * 127, and 7 mantissa bits. The caller closes it with h5_close. H5I_INVALID_HID on failure. */
hid_t h5_type(enum dtype t);

/* ---- attributes ----------------------------------------------------------------------------- */

int h5_put_str(hid_t loc, const char *name, const char *value, struct err *err);
int h5_put_i64(hid_t loc, const char *name, int64_t value, struct err *err);
int h5_set_i64(hid_t loc, const char *name, int64_t value, struct err *err); /* one that is there */
int h5_put_f64(hid_t loc, const char *name, double value, struct err *err);

/* Scalar attributes. Missing, another class, not scalar or a string longer than cap - 1:
 * ERR_INPUT. */
int h5_get_str(hid_t loc, const char *name, char *out, size_t cap, struct err *err);
int h5_get_i64(hid_t loc, const char *name, int64_t *out, struct err *err);
int h5_get_f64(hid_t loc, const char *name, double *out, struct err *err);
bool h5_has_attr(hid_t loc, const char *name);

/* Members of a struct as attributes. */
struct h5_field {
    const char *name; /* NULL: the end of a table */
    enum h5_kind { H5_TEXT, H5_INT, H5_INT64, H5_REAL, H5_FLAG } kind; /* char[size], int, ... */
    size_t offset, size;
};
#define H5_FIELD(struct_, kind, name)                                                              \
    {                                                                                              \
#name, kind, offsetof(struct struct_, name), sizeof((struct struct_ *)0)->name             \
    }

int h5_put_fields(hid_t loc, const struct h5_field *table, const void *obj, struct err *err);

/* ERR_INPUT for a number out of range and a text that is unsafe to show. */
int h5_get_fields(hid_t loc, const struct h5_field *table, void *obj, struct err *err);
int h5_get_field(hid_t loc, const struct h5_field *f, void *obj, struct err *err);

/* ---- groups and datasets -------------------------------------------------------------------- */

/* Create a group that keeps its attributes in its checksummed object header and no times. */
int h5_create_group(hid_t loc, const char *name, hid_t *out, struct err *err);

/* Open a group, or create it where there is none. */
int h5_enter_group(hid_t loc, const char *name, hid_t *out, struct err *err);

/* Group number `index` of many, in buckets of a thousand: parent/012/012345. Listing or growing a
 * group of many thousand links is slow in HDF5. */
int h5_create_numbered(hid_t parent, int64_t index, hid_t *out, struct err *err);
int h5_open_numbered(hid_t parent, int64_t index, hid_t *out, struct err *err);

/* Open an object that is reached by a hard link; soft, external and user-defined links are refused
 * (an untrusted file must not lead elsewhere). Returns false when there is no such link. */
bool h5_has_link(hid_t loc, const char *name);
int h5_open_group(hid_t loc, const char *name, hid_t *out, struct err *err);
int h5_open_dataset(hid_t loc, const char *name, hid_t *out, struct err *err);

/* Names of the links of a group in alphabetic order; *names is one malloc'd array of n C strings,
 * released with h5_names_free. */
int h5_names(hid_t group, char ***names, int64_t *n, struct err *err);
void h5_names_free(char **names, int64_t n);

#define H5_MAX_DIMS 4
#define H5_MAX_FILTERS 3
#define H5_FILTER_ZSTD 32015 /* registered with The HDF Group */

/* How a dataset is stored. */
struct h5_info {
    int ndim;
    int64_t dims[H5_MAX_DIMS];
    bool chunked;
    int64_t offset;             /* contiguous: file position of the first element, -1 if none */
    int64_t chunk[H5_MAX_DIMS]; /* chunked */
    int nfilters;
    int filter[H5_MAX_FILTERS];
};

/* Read rank, shape and storage of a dataset. Refused with ERR_INPUT: an element type other than
 * `type`, a rank above H5_MAX_DIMS, external or virtual or compact storage, filters other than
 * shuffle, deflate and zstd. */
int h5_dataset_info(hid_t dset, enum dtype type, struct h5_info *out, struct err *err);

/* Creation properties of a dataset without times: contiguous, allocated at once, never filled when
 * chunk is NULL, otherwise chunked. */
hid_t h5_dataset_props(int ndim, const int64_t *chunk);

/* Create a dataset below loc; props from h5_dataset_props (closed by the caller). `type` may be a
 * committed type. */
int h5_create_dataset(hid_t loc, const char *name, hid_t type, int ndim, const int64_t *dims,
                      hid_t props, hid_t *out, struct err *err);

/* Write or read a small dataset as a whole: contiguous, shape as given. Reading checks type and
 * shape (ERR_INPUT). */
int h5_put_array(hid_t loc, const char *name, enum dtype type, int ndim, const int64_t *dims,
                 const void *data, struct err *err);
int h5_get_array(hid_t loc, const char *name, enum dtype type, int ndim, const int64_t *dims,
                 void *data, struct err *err);

/* ---- files ---------------------------------------------------------------------------------- */

/* A file being written. `out.fd` is a second descriptor of it, for pwrite at dataset offsets. */
struct h5_part {
    char *path; /* owned */
    struct io_part out;
    hid_t file;
};

/* Begin a file (io_part_open): superblock 2 with metadata checksums, objects of 4 KiB and more
 * aligned to 4 KiB. The root group gets format, version and complete = 0. ERR_USAGE when PATH
 * exists and not force, ERR_IO while another process writes it. */
int h5_part_create(struct h5_part *p, const char *path, const char *format, int64_t major,
                   int64_t minor, bool force, struct err *err);

/* Mark as complete, flush, close, io_part_close. All ids below the file are closed. */
int h5_part_commit(struct h5_part *p, struct err *err);
void h5_part_abort(struct h5_part *p); /* accepts a zeroed struct */

/* Open for reading and check format, version and completeness. Every structure of the file is
 * checked before libhdf5 decodes it (core/h5guard/h5guard.h): the superblock and the root group
 * here, other objects by h5_open_group and h5_open_dataset; an object that is opened in another way
 * has no content. The messages name the file and distinguish: a missing file, a file that is still
 * being written, a file whose writer was stopped, a file that is not HDF5, another kind of HDF5
 * file, a newer major version, a damaged file, a structure that lacuna does not read. */
int h5_open_file(const char *path, const char *format, int64_t major, hid_t *out, struct err *err);

/* Does a regular file begin as HDF5 does? */
int h5_signature(const char *path, bool *is_hdf5, struct err *err);

/* Another descriptor of a file that h5_open_file opened: the same file, whatever has that name by
 * now. The caller closes it. */
int h5_file_descriptor(hid_t file, int *out, struct err *err);

/* ---- byte shuffle and zstd of chunks, outside of HDF5's lock; filter 32015 ------------------ */

/* Make filter 32015 known to HDF5 in this process. HDF5's dynamic plug-in is no way out: in a
 * statically linked program it would bring a second copy of the library. */
void h5_zstd_register(void);

/* Room that a packed chunk of `size` bytes can need. */
size_t chunk_bound(size_t size);

/* The stored bytes of the chunk at `at`, which has `bytes` unpacked, into *packed (grown as
 * needed). *size is 0 where it was never written; bit k of *mask: filter k was left out. */
int h5_fetch_chunk(hid_t dset, const hsize_t *at, size_t bytes, void **packed, int64_t *cap,
                   size_t *size, uint32_t *mask, struct err *err);

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
