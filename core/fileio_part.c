/*
 * fileio_part.c - outputs that appear complete or not at all (struct io_part).
 *
 * A writer holds a lock on its part. Whoever finds a part without a lock may remove it: the process
 * that wrote it has ended.
 */
#include "core/fileio.h"

#include "core/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINKS_MAX 40 /* symbolic links in a row, as the kernel counts them */
#define TAG 6        /* characters that make a part's name its own */
#define TRIES 100    /* parts that were taken away between their creation and their lock */

/* ---- names ---------------------------------------------------------------------------------- */

/* A copy of the directory of path, "." if it names none; NULL: no memory. */
static char *directory_of(const char *path)
{
    char *copy = strdup(path), *dir = copy ? strdup(dirname(copy)) : NULL;
    free(copy);
    return dir;
}

int io_named_descriptor(const char *path)
{
    static const char *const prefixes[] = {"/dev/fd/", "/proc/self/fd/"};
    if (strcmp(path, "/dev/stdin") == 0)
        return STDIN_FILENO;
    if (strcmp(path, "/dev/stdout") == 0)
        return STDOUT_FILENO;
    if (strcmp(path, "/dev/stderr") == 0)
        return STDERR_FILENO;
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(prefixes[i]);
        char *end;
        if (strncmp(path, prefixes[i], n) == 0 && path[n] >= '0' && path[n] <= '9') {
            long fd = strtol(path + n, &end, 10);
            return *end || fd > 65535 ? -1 : (int)fd;
        }
    }
    return -1;
}

/* Where a link leads, also to a file that is not there yet; the path itself if it is no link. */
static int follow_links(const char *path, char **out, struct err *err)
{
    int rc = 0;
    char *at = strdup(path), to[4096];
    for (int i = 0; at && i < LINKS_MAX; i++) {
        ssize_t n = readlink(at, to, sizeof to - 1);
        if (n < 0) {
            *out = at;
            return 0;
        }
        to[n] = '\0';
        struct buf next = {0};
        char *dir = directory_of(at);
        if (to[0] == '/' || !dir)
            buf_puts(&next, to);
        else
            buf_printf(&next, "%s/%s", dir, to);
        free(dir);
        free(at);
        at = next.data;
    }
    rc = at ? err_set(err, ERR_IO, "%s: too many symbolic links", path)
            : err_set(err, ERR_NOMEM, "%s: out of memory", path);
    free(at);
    return rc;
}

/* ---- parts that nobody writes any more ------------------------------------------------------ */

static bool is_part_of(const char *name, const char *base)
{
    size_t n = strlen(base);
    return strncmp(name, base, n) == 0 && name[n] == '.' && strlen(name + n) == TAG + 6 &&
           strcmp(name + n + 1 + TAG, ".part") == 0;
}

static void remove_if_free(int dir, const char *name)
{
    int fd = openat(dir, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct stat st;
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && flock(fd, LOCK_EX | LOCK_NB) == 0)
        unlinkat(dir, name, 0);
    if (fd >= 0)
        close(fd);
}

/* A convenience: what cannot be removed stays. */
static void remove_stale(const char *target)
{
    char *copy = strdup(target), *dir = directory_of(target);
    DIR *d = dir ? opendir(dir) : NULL;
    const char *base = copy ? basename(copy) : NULL;
    for (struct dirent *e; d && base && (e = readdir(d));)
        if (is_part_of(e->d_name, base))
            remove_if_free(dirfd(d), e->d_name);
    if (d)
        closedir(d);
    free(copy);
    free(dir);
}

/* ---- writing -------------------------------------------------------------------------------- */

/* A part with a name of its own, locked. Returns its descriptor, or -1 with errno. */
static int create_part(char *part)
{
    static const char digits[] = "abcdefghijklmnopqrstuvwxyz234567";
    char *tag = part + strlen(part) - strlen(".part") - TAG;
    for (int i = 0; i < TRIES; i++) {
        unsigned char random[TAG];
        struct stat st;
        if (getrandom(random, sizeof random, 0) != sizeof random)
            return -1;
        for (int c = 0; c < TAG; c++)
            tag[c] = digits[random[c] & 31];
        int fd = open(part, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0 && errno != EEXIST)
            return -1;
        if (fd < 0)
            continue;
        /* File systems without locks: nobody removes the part then, because nobody gets a lock. */
        flock(fd, LOCK_EX);
        if (fstat(fd, &st) == 0 && st.st_nlink > 0)
            return fd;
        unlink(part);
        close(fd);
    }
    errno = EEXIST;
    return -1;
}

static int open_direct(struct io_part *p, int descriptor, struct err *err)
{
    const char *path = p->path;
    p->fd = descriptor >= 0 ? fcntl(descriptor, F_DUPFD_CLOEXEC, 3)
                            : open(p->target, O_WRONLY | O_NOCTTY | O_CLOEXEC);
    if (p->fd >= 0)
        return 0;
    int rc = err_sys(err, ERR_IO, "%s: cannot open for writing", path);
    free(p->target);
    memset(p, 0, sizeof *p);
    return rc;
}

static int open_part(struct io_part *p, const struct stat *old, struct err *err)
{
    struct buf name = {0};
    int rc = 0;
    buf_printf(&name, "%s.%.*s.part", p->target, TAG, "------");
    TRY(buf_check(&name, p->path, err));
    remove_stale(p->target);
    p->fd = create_part(name.data);
    if (p->fd < 0) {
        rc = err_sys(err, ERR_IO, "%s: cannot create a file beside it", p->path);
        goto out;
    }
    if (old)
        fchmod(p->fd, old->st_mode & 07777);
    p->part = name.data;
    return 0;
out:
    buf_free(&name);
    free(p->target);
    memset(p, 0, sizeof *p);
    return rc;
}

int io_part_open(struct io_part *p, const char *path, struct err *err)
{
    struct stat st;
    int descriptor = strcmp(path, "-") == 0 ? STDOUT_FILENO : io_named_descriptor(path);
    *p = (struct io_part){.path = path, .fd = -1};
    if (descriptor >= 0)
        return open_direct(p, descriptor, err);
    int rc = follow_links(path, &p->target, err);
    if (rc) {
        memset(p, 0, sizeof *p);
        return rc;
    }
    bool there = stat(p->target, &st) == 0;
    if (there && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
        return open_direct(p, -1, err);
    if (there && S_ISDIR(st.st_mode)) {
        rc = err_set(err, ERR_IO, "%s: is a directory, a file was expected", path);
        free(p->target);
        memset(p, 0, sizeof *p);
        return rc;
    }
    return open_part(p, there ? &st : NULL, err);
}

int io_sync_directory_of(const char *path, struct err *err)
{
    char *dir = directory_of(path);
    int fd = dir ? open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1, rc = 0;
    /* Some file systems cannot sync a directory and say EINVAL: they need not. */
    if (fd >= 0 && fsync(fd) != 0 && errno != EINVAL && errno != EROFS)
        rc = err_sys(err, ERR_IO, "%s: cannot sync its directory", path);
    if (fd >= 0)
        close(fd);
    free(dir);
    return rc;
}

int io_part_close(struct io_part *p, int rc, struct err *err)
{
    if (!p->path)
        return rc;
    rc = rc ? rc : mem_check_short(err);
    if (!rc && p->part && fsync(p->fd) != 0)
        rc = err_sys(err, ERR_IO, "%s: cannot sync", p->part);
    /* Renamed while it is locked: nobody takes it for a stale part. */
    if (!rc && p->part && rename(p->part, p->target) != 0)
        rc = err_sys(err, ERR_IO, "%s: cannot rename to %s", p->part, p->target);
    if (rc && p->part)
        unlink(p->part);
    else if (p->part)
        rc = io_sync_directory_of(p->target, err);
    if (close(p->fd) != 0 && !rc && !p->part)
        rc = err_sys(err, ERR_IO, "%s: cannot write", p->path);
    free(p->part);
    free(p->target);
    memset(p, 0, sizeof *p);
    return rc;
}

int file_write_atomic(const char *path, const void *data, size_t len, struct err *err)
{
    struct io_part part = {0};
    int rc = io_part_open(&part, path, err);
    if (!rc)
        rc = io_write(part.fd, path, data, (int64_t)len, err);
    return io_part_close(&part, rc, err);
}
