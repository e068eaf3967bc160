/*
 * fileio.c - open, pread and write until everything is done; whole files and directories.
 */
#include "core/fileio.h"

#include "core/buf.h"
#include "core/mem.h"
#include "core/pool.h"

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
    PASS_ON(refuse_part(path, err));
    /* O_NONBLOCK: opening a FIFO by mistake must not hang. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return err_sys(err, ERR_INPUT, "%s: cannot open", path);
    int rc = fstat(fd, &st) != 0    ? err_sys(err, ERR_IO, "%s: cannot stat", path)
             : !S_ISREG(st.st_mode) ? err_set(err, ERR_INPUT, "%s: not a regular file", path)
                                    : 0;
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

int io_write_at(int fd, const char *path, const void *data, int64_t n, int64_t offset,
                struct err *err)
{
    const char *p = data;
    while (n > 0) {
        size_t most = (size_t)(n < STEP ? n : STEP);
        ssize_t put = offset < 0 ? write(fd, p, most) : pwrite(fd, p, most, offset);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return err_sys(err, ERR_IO, "%s: cannot write", path);
        p += put;
        n -= put;
        offset += offset < 0 ? 0 : put;
    }
    return 0;
}

int io_write(int fd, const char *path, const void *data, int64_t n, struct err *err)
{
    return io_write_at(fd, path, data, n, -1, err);
}

int io_sync_data(int fd, const char *path, struct err *err)
{
    /* File systems that cannot sync say EINVAL: they need not. */
    if (fdatasync(fd) != 0 && errno != EINVAL && errno != EROFS)
        return err_sys(err, ERR_IO, "%s: cannot sync", path);
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
    OWN(io_close_at) int fd = -1;
    int64_t size = 0;
    PASS_ON(io_open_text(path, &fd, &size, err));
    if (size > 0 && (uint64_t)size > max)
        return err_set(err, ERR_INPUT, "%s: %lld bytes, at most %zu are expected", path,
                       (long long)size, max);
    buf_reserve(b, size > 0 ? (size_t)size + 1 : 1);
    PASS_ON(buf_check(b, path, err));
    return read_fd(fd, b, strcmp(path, "-") == 0 ? "standard input" : path, max, err);
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

int refuse_existing(const char *path, bool force, struct err *err)
{
    if (force || access(path, F_OK) != 0)
        return 0;
    return err_set(err, ERR_USAGE, "%s exists; give --force to replace it", path);
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
    OWN(free_at) char *copy = strdup(path);
    if (!copy)
        return err_set(err, ERR_NOMEM, "%s: out of memory", path);
    for (char *p = copy + 1; copy[0] && *p; p++) {
        if (*p != '/')
            continue;
        *p = '\0';
        PASS_ON(make_one(copy, err));
        *p = '/';
    }
    return make_one(copy, err);
}

/* ---- outputs that appear complete or not at all -------------------------------------------------
 *
 * A writer holds a lock on its part. Whoever finds a part without a lock may remove it: the process
 * that wrote it has ended. */

#define LINKS_MAX 40 /* symbolic links in a row, as the kernel counts them */
#define TAG 6        /* characters that make a part's name its own */
#define TRIES 100    /* files that were taken away between their opening and their lock */

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

/* May it be removed? The descriptor holds it meanwhile; close it where it is not negative. */
static bool is_free(int dir, const char *name, int *fd)
{
    struct stat st;
    *fd = openat(dir, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    return *fd >= 0 && fstat(*fd, &st) == 0 && S_ISREG(st.st_mode) &&
           flock(*fd, LOCK_EX | LOCK_NB) == 0;
}

/* Looks for parts of a target, or removes those without a writer. A convenience: what cannot be
 * removed stays. */
static enum io_part_state scan_parts(const char *target, bool clear, char found[NAME_MAX + 1])
{
    enum io_part_state state = IO_PART_NONE;
    char *copy = strdup(target), *dir = directory_of(target);
    DIR *d = dir ? opendir(dir) : NULL;
    const char *base = copy ? basename(copy) : NULL;
    int fd;
    for (struct dirent *e; d && base && state != IO_PART_LIVE && (e = readdir(d));) {
        if (!is_part_of(e->d_name, base))
            continue;
        bool stale = is_free(dirfd(d), e->d_name, &fd);
        if (clear && stale)
            unlinkat(dirfd(d), e->d_name, 0);
        if (!clear) {
            state = !stale && fd >= 0 ? IO_PART_LIVE : IO_PART_STALE;
            snprintf(found, NAME_MAX + 1, "%s", e->d_name);
        }
        if (fd >= 0)
            close(fd);
    }
    if (d)
        closedir(d);
    free(copy);
    free(dir);
    return state;
}

enum io_part_state io_part_find(const char *path, char name[NAME_MAX + 1])
{
    OWN(free_at) char *target = NULL;
    enum io_part_state state = IO_PART_NONE;
    if (follow_links(path, &target, NULL) == 0)
        state = scan_parts(target, false, name);
    return state;
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
        int fd = open(part, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
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
    scan_parts(p->target, true, NULL);
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
    OWN(free_at) char *dir = directory_of(path);
    int fd = dir ? open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1, rc = 0;
    /* Some file systems cannot sync a directory and say EINVAL: they need not. */
    if (fd >= 0 && fsync(fd) != 0 && errno != EINVAL && errno != EROFS)
        rc = err_sys(err, ERR_IO, "%s: cannot sync its directory", path);
    if (fd >= 0)
        close(fd);
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

int io_unnamed(const char *beside, int *fd, struct err *err)
{
    struct io_part p;
    PASS_ON(io_part_open(&p, beside, err));
    *fd = fcntl(p.fd, F_DUPFD_CLOEXEC, 0);
    if (*fd < 0)
        err_sys(err, ERR_IO, "%s: cannot create a file beside it", beside);
    io_part_close(&p, ERR_IO, NULL); /* takes the name away */
    return *fd < 0 ? ERR_IO : 0;
}

void io_remove_parts(void)
{
    char link[40], name[4096];
    for (int fd = 3; fd < 65536; fd++) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, name, sizeof name - 1);
        if (n <= 0)
            continue;
        name[n] = '\0';
        if (n > 5 && strcmp(name + n - 5, ".part") == 0)
            unlink(name);
    }
}

int file_write_atomic(const char *path, const void *data, size_t len, struct err *err)
{
    struct io_part part = {0};
    int rc = io_part_open(&part, path, err);
    if (!rc)
        rc = io_write(part.fd, path, data, (int64_t)len, err);
    return io_part_close(&part, rc, err);
}

/* *moved: the file has lost its name to another one before it was locked. */
static int open_locked(const char *path, int *out, bool *moved, struct err *err)
{
    struct stat mine, named;
    bool there;
    PASS_ON(io_exists(path, &there, err));
    /* O_NONBLOCK: opening a FIFO by mistake must not hang. */
    int fd = *out =
        open(path, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0666);
    if (fd < 0 && errno == ELOOP)
        return err_set(err, ERR_INPUT, "%s: is a symbolic link: name the file that it leads to",
                       path);
    if (fd < 0)
        return err_sys(err, ERR_IO, "%s: cannot open for appending", path);
    if (fstat(fd, &mine) != 0)
        return err_sys(err, ERR_IO, "%s: cannot stat", path);
    if (!S_ISREG(mine.st_mode))
        return err_set(err, ERR_INPUT, "%s: not a regular file, nothing can be appended", path);
    /* Some network file systems have no locks; then nothing guards against a second process. */
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return err_set(err, ERR_RUN, "%s: another process is writing to it", path);
    *moved = stat(path, &named) != 0 || named.st_ino != mine.st_ino || named.st_dev != mine.st_dev;
    return there ? 0 : io_sync_directory_of(path, err);
}

int io_append_open(const char *path, int *fd, struct err *err)
{
    bool moved = true;
    int rc = 0;
    *fd = -1;
    for (int i = 0; i < TRIES && moved && !rc; i++) {
        if (*fd >= 0)
            close(*fd);
        rc = open_locked(path, fd, &moved, err);
    }
    if (!rc && moved)
        rc = err_set(err, ERR_RUN, "%s: another process replaces it", path);
    if (rc && *fd >= 0)
        close(*fd);
    *fd = rc ? -1 : *fd;
    return rc;
}

/* ---- a text line by line, in memory that does not grow with the file ------------------------- */

#define CHUNK 65536 /* bytes of a read */

int io_lines_open(struct io_lines *l, const char *path, size_t max_line, int64_t max_file,
                  struct err *err)
{
    int64_t size = 0;
    *l = (struct io_lines){.path = path, .fd = -1, .max_line = max_line, .max_file = max_file};
    PASS_ON(io_open_text(path, &l->fd, &size, err));
    if (size > max_file)
        return err_set(err, ERR_INPUT, "%s: %lld bytes, at most %lld are expected", path,
                       (long long)size, (long long)max_file);
    return 0;
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
        PASS_ON(fill(l, err));
    }
}

/* Forget the rest of a long line, chunk by chunk. */
static int skip_rest(struct io_lines *l, struct err *err)
{
    const char *newline = NULL;
    while (!newline) {
        PASS_ON(find_newline(l, CHUNK, &newline, err));
        size_t n = newline ? (size_t)(newline + 1 - (l->b.data + l->at)) : l->b.len - l->at;
        if (!newline && n > CHUNK)
            n = CHUNK;
        l->next = l->at += n;
        if (n == 0)
            break;
    }
    l->skip = false;
    return 0;
}

int io_line(struct io_lines *l, enum io_line *kind, const char **text, size_t *len, struct err *err)
{
    const char *newline;
    l->at = l->next;
    if (l->skip)
        PASS_ON(skip_rest(l, err));
    PASS_ON(find_newline(l, l->max_line, &newline, err));
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
    return 0;
}
