/*
 * fileio_lines.c - a text line by line, in memory that does not grow with the file.
 */
#include "core/fileio.h"

#include "core/pool.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define CHUNK 65536 /* bytes of a read */

int io_lines_open(struct io_lines *l, const char *path, size_t max_line, int64_t max_file,
                  struct err *err)
{
    int64_t size = 0;
    *l = (struct io_lines){.path = path, .fd = -1, .max_line = max_line, .max_file = max_file};
    int rc = io_open_text(path, &l->fd, &size, err);
    if (!rc && size > max_file)
        rc = err_set(err, ERR_INPUT, "%s: %lld bytes, at most %lld are expected", path,
                     (long long)size, (long long)max_file);
    return rc;
}

void io_lines_close(struct io_lines *l)
{
    if (l->path && l->fd >= 0)
        close(l->fd);
    buf_free(&l->b);
    memset(l, 0, sizeof *l);
}

/* Append some bytes to b, whose used part goes first. */
static int fill(struct io_lines *l, struct err *err)
{
    ssize_t n;
    if (interrupted())
        return err_set(err, ERR_INTERRUPTED, "interrupted");
    if (l->at > 0) {
        memmove(l->b.data, l->b.data + l->at, l->b.len - l->at);
        l->b.len -= l->at;
        l->next -= l->at;
        l->at = 0;
    }
    if (!buf_reserve(&l->b, CHUNK))
        return buf_check(&l->b, l->path, err);
    do
        n = read(l->fd, l->b.data + l->b.len, CHUNK);
    while (n < 0 && errno == EINTR && !interrupted());
    if (n < 0)
        return err_sys(err, ERR_IO, "%s: cannot read", l->path);
    l->b.len += (size_t)n;
    l->total += n;
    l->ended = n == 0;
    if (l->total > l->max_file)
        return err_set(err, ERR_INPUT, "%s: more than %lld bytes, which are the most expected",
                       l->path, (long long)l->max_file);
    return 0;
}

/* The newline of the line that begins at b[at]; NULL if it is not among `limit` bytes. */
static int find_newline(struct io_lines *l, size_t limit, const char **newline, struct err *err)
{
    size_t seen = 0; /* bytes of the line without a newline */
    *newline = NULL;
    for (;;) {
        size_t have = l->b.len - l->at, n = have < limit ? have : limit;
        if (n > seen)
            *newline = memchr(l->b.data + l->at + seen, '\n', n - seen);
        seen = n;
        if (*newline || n == limit || l->ended)
            return 0;
        int rc = fill(l, err);
        if (rc)
            return rc;
    }
}

/* Forget the rest of a long line, chunk by chunk. */
static int skip_rest(struct io_lines *l, struct err *err)
{
    const char *newline = NULL;
    int rc = 0;
    while (!newline) {
        TRY(find_newline(l, CHUNK, &newline, err));
        size_t n = newline ? (size_t)(newline + 1 - (l->b.data + l->at)) : l->b.len - l->at;
        if (!newline && n > CHUNK)
            n = CHUNK;
        l->next = l->at += n;
        if (n == 0)
            break;
    }
    l->skip = false;
out:
    return rc;
}

int io_line(struct io_lines *l, enum io_line *kind, const char **text, size_t *len, struct err *err)
{
    const char *newline;
    int rc = 0;

    l->at = l->next;
    if (l->skip)
        TRY(skip_rest(l, err));
    TRY(find_newline(l, l->max_line, &newline, err));
    size_t have = l->b.len - l->at;
    *len = newline              ? (size_t)(newline + 1 - (l->b.data + l->at))
           : have < l->max_line ? have
                                : l->max_line;
    *text = have ? l->b.data + l->at : "";
    *kind = newline               ? IO_LINE_WHOLE
            : have == 0           ? IO_LINE_END
            : *len == l->max_line ? IO_LINE_LONG
                                  : IO_LINE_TORN;
    l->offset = l->total - (int64_t)have;
    l->number += *kind != IO_LINE_END;
    l->next = l->at + *len;
    l->skip = *kind == IO_LINE_LONG;
out:
    return rc;
}
