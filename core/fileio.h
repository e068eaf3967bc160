/*
 * fileio.h - whole reads and writes, lines, with errors that name the file.
 *
 * Every reader has a limit and no reader waits for a writer: an input is a regular file, or a
 * descriptor that the caller opened and named ("-", /dev/stdin, /dev/fd/N).
 */
#pragma once

#include "core/buf.h"
#include "core/err.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

/* Open a regular file for reading; *size is its length. Missing, unreadable or not a regular file
 * (directory, FIFO, device): ERR_INPUT. The caller closes *fd. */
int io_open(const char *path, int *fd, int64_t *size, struct err *err);

/* Open a text for reading in order: a regular file as io_open does, or a named descriptor, for
 * which *size is -1. ERR_INPUT as of io_open. The caller closes *fd. */
int io_open_text(const char *path, int *fd, int64_t *size, struct err *err);

static inline void io_close_at(int *fd) /* for OWN */
{
    if (*fd >= 0)
        close(*fd);
}

/* The descriptor of /dev/stdin, /dev/stdout, /dev/stderr, /dev/fd/N or /proc/self/fd/N, else -1. */
int io_named_descriptor(const char *path);

/* Read [offset, offset + n) with pread. `size` is the length that io_open gave; a file that has
 * become shorter since then is ERR_IO with both lengths. Thread-safe. */
int io_read_at(int fd, const char *path, int64_t size, int64_t offset, void *dst, int64_t n,
               struct err *err);

/* Write n bytes at the file position. */
int io_write(int fd, const char *path, const void *data, int64_t n, struct err *err);

/* The same at an offset; -1: at the file position. Thread-safe. */
int io_write_at(int fd, const char *path, const void *data, int64_t n, int64_t offset,
                struct err *err);

/* Appends a whole text (io_open_text) to b, binary safe. More than `max` bytes: ERR_INPUT. */
int buf_read_file(struct buf *b, const char *path, size_t max, struct err *err);

/* *there: is something of that name there? ERR_INPUT where the system cannot tell (a directory that
 * may not be searched, a disk that fails): what is only taken where it exists must not be left out.
 */
int io_exists(const char *path, bool *there, struct err *err);

/* mkdir -p; the parents of new directories are synced. */
int make_dirs(const char *path, struct err *err);

/* ERR_USAGE if `out` exists and is the same file as `input`: writing it would destroy the input.
 * Either may be NULL. */
int refuse_input(const char *out, const char *input, struct err *err);

/* ERR_USAGE if a file of that name is there and not force. */
int refuse_existing(const char *path, bool force, struct err *err);

/* Sync the directory in which path lies, so that a new name survives a power failure. */
int io_sync_directory_of(const char *path, struct err *err);

/* Sync the content of a file that grows. */
int io_sync_data(int fd, const char *path, struct err *err);

/* ---- lines ----------------------------------------------------------------------------------- */

struct io_lines {
    const char *path; /* borrowed */
    int fd;
    size_t max_line;  /* bytes of a line with its newline */
    int64_t max_file; /* bytes */
    int64_t number;   /* of the line that io_line gave last, from 1 */
    int64_t offset;   /* where that line begins, in bytes */
    int64_t total;    /* bytes read so far */
    size_t at, next;  /* begin of that line in b, and of what follows it */
    struct buf b;
    bool ended, skip; /* no more bytes; the rest of a long line is still to be skipped */
};

enum io_line {
    IO_LINE_END,
    IO_LINE_WHOLE,
    IO_LINE_TORN, /* the last one, without a newline */
    IO_LINE_LONG, /* of which only max_line bytes are there; the next call skips the others */
};

/* Read a text (io_open_text) line by line. More than max_file bytes: ERR_INPUT, at the latest when
 * they have been read. The lines are zeroed or open; close them in both cases. */
int io_lines_open(struct io_lines *l, const char *path, size_t max_line, int64_t max_file,
                  struct err *err);
void io_lines_close(struct io_lines *l);

/* The next line, with its newline; *text is valid until the next call. ERR_INTERRUPTED after a
 * signal (core/pool.h). */
int io_line(struct io_lines *l, enum io_line *kind, const char **text, size_t *len,
            struct err *err);

/* ---- outputs -------------------------------------------------------------------------------- */

/*
 * An output file under construction.
 * - A new or regular file is written as PATH.XXXXXX.part beside PATH, under a name that no other
 *   writer has, and renamed when it is complete. Readers see the old or the new content whole; of
 *   two writers the later one wins.
 * - Of a symbolic link the target is replaced, and the link stays.
 * - A device, a FIFO or the name of an open descriptor ("-", /dev/stdout, /dev/fd/N) is written
 *   directly.
 */
struct io_part {
    const char *path; /* as the caller named it, borrowed; NULL while closed */
    char *target;     /* owned: the file that is replaced */
    char *part;       /* owned; NULL: the target is written directly */
    int fd;
};

/* The unfinished file of a writer of PATH: `name` is its name beside PATH. */
enum io_part_state { IO_PART_NONE, IO_PART_STALE, IO_PART_LIVE };
enum io_part_state io_part_find(const char *path, char name[NAME_MAX + 1]);

/* ERR_IO if the file cannot be created. Removes parts of PATH that an ended process left behind. */
int io_part_open(struct io_part *p, const char *path, struct err *err);

/* Finish: with rc = 0 sync, rename and sync the directory; otherwise, or when that fails, remove
 * the part. Returns rc or the error of the sync or rename. Does nothing with a zeroed or closed
 * io_part. */
int io_part_close(struct io_part *p, int rc, struct err *err);

/* A new file without a name on the disk of `beside`, which is gone when *fd is closed. ERR_IO. */
int io_unnamed(const char *beside, int *fd, struct err *err);

/* Open a file for appending, which is made where it is not there: a regular file, no symbolic link,
 * locked until *fd is closed. ERR_RUN while another process appends to it. */
int io_append_open(const char *path, int *fd, struct err *err);

/* Remove the parts that this process writes. Safe in a signal handler. */
void io_remove_parts(void);

/* Write a whole file: io_part_open, io_write, io_part_close. */
int file_write_atomic(const char *path, const void *data, size_t len, struct err *err);
