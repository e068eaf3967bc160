/*
 * buf.h - a growing byte string, always NUL-terminated. Release with buf_free().
 *
 * An allocation failure sets `failed`, and later appends do nothing. Call buf_check() once, before
 * the result is used.
 */
#pragma once

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

/* Makes room for `more` bytes and a NUL behind data + len; false when there is no memory. */
bool buf_reserve(struct buf *b, size_t more);
void buf_free(struct buf *b);
const char *buf_str(const struct buf *b); /* never NULL */
int buf_check(const struct buf *b, const char *what, struct err *err);
