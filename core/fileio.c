/*
 * fileio.c - open, pread and write until everything is done; files that appear complete or not at
 * all.
 */
#include "core/fileio.h"
#include "core/buf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define STEP (1 << 30) /* one call moves at most 2 GiB on Linux */

int io_open(const char *path, int *out, int64_t *size, struct err *err)
{
    int rc = 0;
    struct stat st;
    /* O_NONBLOCK: opening a FIFO by mistake must not hang. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return err_sys(err, errno == EMFILE || errno == ENFILE ? ERR_MACHINE : ERR_INPUT,
                       "%s: cannot open", path);
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

int io_part_open(struct io_part *p, const char *path, struct err *err)
{
    struct buf name = {0};
    buf_printf(&name, "%s.part", path);
    int rc = buf_check(&name, path, err);
    if (rc) {
        buf_free(&name);
        return rc;
    }
    int fd = open(name.data, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        rc = err_sys(err, ERR_IO, "%s: cannot create", name.data);
        buf_free(&name);
        return rc;
    }
    *p = (struct io_part){path, name.data, fd};
    return 0;
}

int io_part_close(struct io_part *p, int rc, struct err *err)
{
    if (!p->path)
        return rc;
    if (!rc && fsync(p->fd) != 0)
        rc = err_sys(err, ERR_IO, "%s: cannot sync", p->part);
    close(p->fd);
    if (!rc && rename(p->part, p->path) != 0)
        rc = err_sys(err, ERR_IO, "%s: cannot rename to %s", p->part, p->path);
    if (rc)
        unlink(p->part);
    free(p->part);
    memset(p, 0, sizeof *p);
    return rc;
}
