/*
 * buf.c - growing byte strings, whole-file reads and atomic file writes.
 */
#include "core/buf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Room for `more` bytes and the final NUL. */
static bool reserve(struct buf *b, size_t more)
{
    if (b->failed || more > SIZE_MAX / 4 || b->len > SIZE_MAX / 4) {
        b->failed = true;
        return false;
    }
    size_t need = b->len + more + 1;
    if (need <= b->cap)
        return true;
    size_t cap = b->cap ? b->cap : 64;
    while (cap < need)
        cap *= 2;
    char *p = realloc(b->data, cap);
    if (!p) {
        b->failed = true;
        return false;
    }
    b->data = p;
    b->cap = cap;
    return true;
}

void buf_put(struct buf *b, const void *data, size_t len)
{
    if (!reserve(b, len))
        return;
    if (len)
        memcpy(b->data + b->len, data, len);
    b->len += len;
    b->data[b->len] = '\0';
}

void buf_puts(struct buf *b, const char *s)
{
    buf_put(b, s, strlen(s));
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0) {
        b->failed = true;
    } else if (reserve(b, (size_t)n)) {
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
}

void buf_reset(struct buf *b)
{
    b->len = 0;
    b->failed = false;
    if (b->data)
        b->data[0] = '\0';
}

void buf_free(struct buf *b)
{
    free(b->data);
    memset(b, 0, sizeof *b);
}

const char *buf_str(const struct buf *b)
{
    return b->data ? b->data : "";
}

int buf_check(const struct buf *b, const char *what, struct err *err)
{
    if (b->failed)
        return err_set(err, ERR_NOMEM, "%s: out of memory while building %zu bytes of text", what,
                       b->len);
    return 0;
}

static int read_fd(int fd, struct buf *b, const char *path, size_t max, struct err *err)
{
    size_t start = b->len;
    for (;;) {
        if (!reserve(b, 65536))
            return buf_check(b, path, err);
        ssize_t n = read(fd, b->data + b->len, b->cap - b->len - 1);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_sys(err, ERR_IO, "%s: cannot read", path);
        b->len += (size_t)n;
        b->data[b->len] = '\0';
        if (b->len - start > max)
            return err_set(err, ERR_INPUT, "%s: larger than %zu bytes, which is the most expected",
                           path, max);
        if (n == 0)
            return 0;
    }
}

int buf_read_file(struct buf *b, const char *path, size_t max, struct err *err)
{
    if (strcmp(path, "-") == 0)
        return read_fd(STDIN_FILENO, b, "standard input", max, err);

    int rc = 0;
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_sys(err, ERR_INPUT, "%s: cannot open", path);
    if (fstat(fd, &st) != 0) {
        rc = err_sys(err, ERR_IO, "%s: cannot stat", path);
        goto out;
    }
    if (S_ISDIR(st.st_mode))
        FAIL(err, ERR_INPUT, "%s: is a directory, a file was expected", path);
    if (S_ISREG(st.st_mode)) {
        if (st.st_size > 0 && (uint64_t)st.st_size > max)
            FAIL(err, ERR_INPUT, "%s: %lld bytes, at most %zu are expected", path,
                 (long long)st.st_size, max);
        reserve(b, (size_t)st.st_size + 1);
        TRY(buf_check(b, path, err));
    }
    TRY(read_fd(fd, b, path, max, err));
out:
    close(fd);
    return rc;
}

static int write_all(int fd, const char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, data, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        data += n;
        len -= (size_t)n;
    }
    return 0;
}

int file_write_atomic(const char *path, const void *data, size_t len, struct err *err)
{
    int rc = 0, fd = -1;
    struct buf part = {0};

    buf_printf(&part, "%s.part", path);
    TRY(buf_check(&part, path, err));
    fd = open(part.data, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        rc = err_sys(err, ERR_IO, "%s: cannot create", part.data);
        goto out;
    }
    if (write_all(fd, data, len) != 0 || fsync(fd) != 0) {
        rc = err_sys(err, ERR_IO, "%s: cannot write %zu bytes", part.data, len);
        goto out;
    }
    int closed = close(fd);
    fd = -1;
    if (closed != 0 || rename(part.data, path) != 0)
        rc = err_sys(err, ERR_IO, "%s: cannot rename %s to it", path, part.data);
out:
    if (fd >= 0)
        close(fd);
    if (rc && part.data)
        unlink(part.data);
    buf_free(&part);
    return rc;
}

static int make_one(const char *path, struct err *err)
{
    struct stat st;
    if (mkdir(path, 0777) == 0)
        return 0;
    int sys = errno;
    if (stat(path, &st) == 0) {
        if (S_ISDIR(st.st_mode))
            return 0;
        return err_set(err, ERR_IO, "%s: exists and is not a directory", path);
    }
    errno = sys;
    return err_sys(err, ERR_IO, "%s: cannot create the directory", path);
}

int refuse_input(const char *out, const char *input, struct err *err)
{
    struct stat a, b;
    if (!out || !input || stat(out, &a) != 0 || stat(input, &b) != 0 || a.st_dev != b.st_dev ||
        a.st_ino != b.st_ino || S_ISCHR(a.st_mode))
        return 0;
    return err_set(err, ERR_USAGE, "%s is what is read: name another file for the result", out);
}

int make_dirs(const char *path, struct err *err)
{
    int rc = 0;
    char *copy = strdup(path);
    if (!copy)
        return err_set(err, ERR_NOMEM, "%s: out of memory", path);
    for (char *p = copy + 1; copy[0] && *p; p++) {
        if (*p != '/')
            continue;
        *p = '\0';
        TRY(make_one(copy, err));
        *p = '/';
    }
    TRY(make_one(copy, err));
out:
    free(copy);
    return rc;
}
