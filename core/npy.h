/*
 * npy.h - reader and writer for NumPy .npy arrays (versions 1.0, 2.0, 3.0), reader for .npz
 * archives.
 */
#pragma once

#include "core/dtype.h"
#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

#define NPY_MAX_DIMS 8

struct npy {
    enum dtype dtype;
    int ndim;
    int64_t shape[NPY_MAX_DIMS];
    int64_t count;
    bool fortran, swap; /* column-major; other byte order */
    int64_t data_offset, file_size;
    int fd;
    char *path;
};

/* Open and check; v2_as_bf16 accepts descr '<V2' as bfloat16 (what ml_dtypes writes). */
int npy_open(const char *path, bool v2_as_bf16, struct npy **out, struct err *err);
void npy_close(struct npy **n);

/* The whole array in C order as float32; Fortran order is transposed, bytes swapped. */
int npy_read_f32(const struct npy *n, float *dst, struct err *err);

/* Elements [first, first + n) in row-major order, of an array stored in C order. Thread-safe. */
int npy_read_range_f32(const struct npy *n, int64_t first, int64_t count, float *dst,
                       struct err *err);

/* The same elements as they are stored, in the byte order of this machine. ERR_INPUT for an array
 * in Fortran order. Thread-safe. */
int npy_read_range(const struct npy *n, int64_t first, int64_t count, void *dst, struct err *err);

/* Write a C-ordered array (version 1.0); bf16 is written as '<V2'. */
int npy_write(const char *path, enum dtype t, int ndim, const int64_t *shape, const void *data,
              struct err *err);

/* ---- archives: what np.savez and np.savez_compressed write ------------------------------------
 *
 * Members are stored or deflated, with zip64 where sizes need it. Encrypted members and other
 * compressions are refused by name. */

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
