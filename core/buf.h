/*
 * buf.h - a growing byte string, always NUL-terminated. Release with buf_free().
 *
 * An allocation failure marks the buffer (`failed`); later appends do nothing, and the one place
 * that uses the result checks it with buf_check().
 */
#ifndef LACUNA_BUF_H
#define LACUNA_BUF_H

#include "core/err.h"

#include <stdbool.h>
#include <stddef.h>

struct buf {
    char *data; /* NULL until the first append */
    size_t len, cap;
    bool failed;
};

void buf_put(struct buf *b, const void *data, size_t len);
void buf_puts(struct buf *b, const char *s);
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void buf_reset(struct buf *b); /* empty, memory kept */
void buf_free(struct buf *b);
const char *buf_str(const struct buf *b); /* never NULL */
int buf_check(const struct buf *b, const char *what, struct err *err);

/* Append a whole file to b (binary safe); "-" is standard input. Refuses files larger than `max`
 * bytes with ERR_INPUT. */
int buf_read_file(struct buf *b, const char *path, size_t max, struct err *err);

/* Write data to path through "path.part", fsync and rename, so that path is never half-written. */
int file_write_atomic(const char *path, const void *data, size_t len, struct err *err);

/* ERR_USAGE where `out` is there already and is the file `input`: writing it would destroy what is
 * read. Either may be NULL. */
int refuse_input(const char *out, const char *input, struct err *err);

/* mkdir -p. */
int make_dirs(const char *path, struct err *err);

#endif
