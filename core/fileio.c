/*
 * fileio.c - open, pread and write until everything is done; whole files and directories.
 */
#include "core/fileio.h"
#include "core/buf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define STEP (1 << 30) /* one call moves at most 2 GiB on Linux */

/* A part has the size, and may have the header, of the finished file. */
static int refuse_part(const char *path, struct err *err)
{
    size_t n = strlen(path);
    if (n <= 5 || strcmp(path + n - 5, ".part") != 0)
        return 0;
    return err_set(err, ERR_INPUT,
                   "%s is unfinished: its writer is at work or was stopped before the end; write "
                   "it again (a whole file of this name has to be renamed)",
                   path);
}

int io_open(const char *path, int *out, int64_t *size, struct err *err)
{
    struct stat st;
    int rc = refuse_part(path, err);
    if (rc)
        return rc;
    /* O_NONBLOCK: opening a FIFO by mistake must not hang. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return err_sys(err, ERR_INPUT, "%s: cannot open", path);
    if (fstat(fd, &st) != 0)
        rc = err_sys(err, ERR_IO, "%s: cannot stat", path);
    else if (!S_ISREG(st.st_mode))
        rc = err_set(err, ERR_INPUT, "%s: not a regular file", path);
    if (rc) {
        close(fd);
        return rc;
    }
    *out = fd;
    *size = st.st_size;
    return 0;
}

int io_open_text(const char *path, int *out, int64_t *size, struct err *err)
{
    struct stat st;
    int descriptor = strcmp(path, "-") == 0 ? STDIN_FILENO : io_named_descriptor(path);
    if (descriptor >= 0) {
        *size = -1;
        *out = fcntl(descriptor, F_DUPFD_CLOEXEC, 3);
        return *out >= 0 ? 0 : err_sys(err, ERR_INPUT, "%s: cannot open", path);
    }
    /* Other types would block or have no end. */
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return err_set(err, ERR_INPUT, "%s: is a directory, a file was expected", path);
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return err_set(err, ERR_INPUT, "%s: not a regular file (\"-\" reads standard input)", path);
    return io_open(path, out, size, err);
}

int io_read_at(int fd, const char *path, int64_t size, int64_t offset, void *dst, int64_t n,
               struct err *err)
{
    char *p = dst;
    struct stat st;
    while (n > 0) {
        ssize_t got = pread(fd, p, (size_t)(n < STEP ? n : STEP), offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_sys(err, ERR_IO, "%s: cannot read %lld bytes at offset %lld", path,
                           (long long)n, (long long)offset);
        if (got == 0)
            return err_set(
                err, ERR_IO, "%s: the file shrank while it was open: %lld bytes at first, now %lld",
                path, (long long)size, fstat(fd, &st) == 0 ? (long long)st.st_size : -1LL);
        p += got;
        offset += got;
        n -= got;
    }
    return 0;
}

int io_write(int fd, const char *path, const void *data, int64_t n, struct err *err)
{
    const char *p = data;
    while (n > 0) {
        ssize_t put = write(fd, p, (size_t)(n < STEP ? n : STEP));
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return err_sys(err, ERR_IO, "%s: cannot write", path);
        p += put;
        n -= put;
    }
    return 0;
}

/* ---- whole files and directories ------------------------------------------------------------ */

static int read_fd(int fd, struct buf *b, const char *path, size_t max, struct err *err)
{
    size_t start = b->len;
    for (;;) {
        if (!buf_reserve(b, 65536))
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
    int rc = 0, fd = -1;
    int64_t size = 0;
    TRY(io_open_text(path, &fd, &size, err));
    if (size > 0 && (uint64_t)size > max)
        FAIL(err, ERR_INPUT, "%s: %lld bytes, at most %zu are expected", path, (long long)size,
             max);
    buf_reserve(b, size > 0 ? (size_t)size + 1 : 1);
    TRY(buf_check(b, path, err));
    TRY(read_fd(fd, b, strcmp(path, "-") == 0 ? "standard input" : path, max, err));
out:
    if (fd >= 0)
        close(fd);
    return rc;
}

static int make_one(const char *path, struct err *err)
{
    struct stat st;
    if (mkdir(path, 0777) == 0)
        return io_sync_directory_of(path, err);
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

int io_exists(const char *path, bool *there, struct err *err)
{
    *there = access(path, F_OK) == 0;
    if (!*there && errno != ENOENT && errno != ENOTDIR)
        return err_sys(err, ERR_INPUT, "%s: the system cannot tell whether it exists", path);
    return 0;
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
