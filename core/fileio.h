/*
 * fileio.h - whole reads and writes on file descriptors, with errors that name the file.
 */
#ifndef LACUNA_FILEIO_H
#define LACUNA_FILEIO_H

#include "core/err.h"

#include <stdint.h>

/* Open a regular file for reading; *size is its length. Missing, unreadable or not a regular file
 * (directory, FIFO, device): ERR_INPUT. The caller closes *fd. */
int io_open(const char *path, int *fd, int64_t *size, struct err *err);

/* All of [offset, offset + n) by pread. `size` is the length that io_open gave: a file that has
 * become shorter since is ERR_IO with both lengths. Thread-safe. */
int io_read_at(int fd, const char *path, int64_t size, int64_t offset, void *dst, int64_t n,
               struct err *err);

/* Write n bytes at the file position. */
int io_write(int fd, const char *path, const void *data, int64_t n, struct err *err);

/* A file in the making: written as "path.part", renamed when it is complete. */
struct io_part {
    const char *path; /* borrowed; NULL while closed */
    char *part;       /* owned */
    int fd;
};

int io_part_open(struct io_part *p, const char *path, struct err *err);

/* Finish: with rc = 0 sync and rename, otherwise (or when that fails) remove the part. Returns rc
 * or the error of finishing. Does nothing to a zeroed or closed io_part. */
int io_part_close(struct io_part *p, int rc, struct err *err);

#endif
