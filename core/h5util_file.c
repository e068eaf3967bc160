/*
 * h5util_file.c - HDF5 files that are complete or visibly unfinished, whatever happens.
 *
 * Superblock 2 (library bounds 1.8) has metadata checksums and no status flags, so a file that was
 * flushed and then abandoned by a killed process still opens. The root attribute `complete` is 0
 * until the commit; the name ends in ".part" until everything is on disk.
 */
#include "core/h5util.h"

#include "core/fileio.h"
#include "core/h5guard/h5guard.h"
#include "core/mem.h"
#include "core/version.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ALIGNMENT 4096
#define METADATA_BLOCK 16384

static hid_t write_props(void)
{
    hid_t fapl = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_libver_bounds(fapl, H5F_LIBVER_V18, H5F_LIBVER_V18);
    H5Pset_alignment(fapl, ALIGNMENT, ALIGNMENT);
    H5Pset_meta_block_size(fapl, METADATA_BLOCK);
    H5Pset_fclose_degree(fapl, H5F_CLOSE_STRONG);
    /* Our own lock, below, tells writers apart; HDF5's fails on file systems without flock. */
    H5Pset_file_locking(fapl, 0, 1);
    return fapl;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* An open-file-description lock: released by the kernel when the writer dies. */
static bool lock_writer(int fd)
{
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(fd, F_OFD_SETLK, &l) == 0 || (errno != EAGAIN && errno != EACCES);
}

static bool writer_alive(const char *part)
{
    struct flock l = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    int fd = open(part, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool alive = fcntl(fd, F_OFD_GETLK, &l) == 0 && l.l_type != F_UNLCK;
    close(fd);
    return alive;
}

/* Open and lock the .part file; it must still be the one of that name once the lock is held, for
 * another writer may have renamed it meanwhile. */
static int claim_part(struct h5_part *p, struct err *err)
{
    struct stat mine, named;
    p->fd = open(p->part, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (p->fd < 0)
        return err_sys(err, ERR_IO, "creating %s", p->part);
    if (!lock_writer(p->fd))
        return err_set(err, ERR_IO, "%s is being written by another process", p->part);
    if (fstat(p->fd, &mine) != 0)
        return err_sys(err, ERR_IO, "%s", p->part);
    if (!S_ISREG(mine.st_mode))
        return err_set(err, ERR_IO, "%s is not a regular file", p->part);
    if (stat(p->part, &named) != 0 || named.st_ino != mine.st_ino || named.st_dev != mine.st_dev)
        return err_set(err, ERR_IO, "%s is being written by another process", p->part);
    return 0;
}

static int create_file(struct h5_part *p, struct err *err)
{
    hid_t fapl = write_props(), fcpl = H5Pcreate(H5P_FILE_CREATE);
    H5Pset_obj_track_times(fcpl, 0);
    H5Pset_attr_phase_change(fcpl, 65535, 0);
    H5Pset_link_phase_change(fcpl, 65535, 0);
    p->file = H5Fcreate(p->part, H5F_ACC_TRUNC, fcpl, fapl);
    h5_close(fcpl);
    h5_close(fapl);
    return p->file < 0 ? h5_fail(err, ERR_IO, "creating %s", p->part) : 0;
}

static void forget(struct h5_part *p)
{
    if (p->fd >= 0)
        close(p->fd);
    free(p->path);
    free(p->part);
    *p = (struct h5_part){.fd = -1, .file = H5I_INVALID_HID};
}

int h5_part_create(struct h5_part *p, const char *path, const char *format, int64_t major,
                   int64_t minor, bool force, struct err *err)
{
    int rc = 0;
    bool claimed = false;
    char tool[64];
    struct stat st;

    *p = (struct h5_part){.fd = -1, .file = H5I_INVALID_HID};
    h5_lock();
    if (stat(path, &st) == 0 && !force)
        FAIL(err, ERR_USAGE, "%s exists; give --force to replace it", path);
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        FAIL(err, ERR_USAGE, "%s is not a regular file", path);
    p->path = strdup(path);
    p->part = malloc(strlen(path) + sizeof ".part");
    if (!p->path || !p->part)
        FAIL(err, ERR_NOMEM, "%s: out of memory", path);
    sprintf(p->part, "%s.part", path);
    TRY(claim_part(p, err));
    claimed = true;
    TRY(create_file(p, err));
    snprintf(tool, sizeof tool, "lacuna %s", lacuna_version());
    TRY(h5_put_str(p->file, "format", format, err));
    TRY(h5_put_i64(p->file, "version_major", major, err));
    TRY(h5_put_i64(p->file, "version_minor", minor, err));
    TRY(h5_put_str(p->file, "tool", tool, err));
    TRY(h5_put_i64(p->file, "complete", 0, err));
    if (H5Fflush(p->file, H5F_SCOPE_GLOBAL) < 0)
        rc = h5_fail(err, ERR_IO, "writing %s", p->part);
out:
    if (rc && claimed)
        h5_part_abort(p);
    else if (rc)
        forget(p);
    h5_unlock();
    return rc;
}

int h5_part_commit(struct h5_part *p, struct err *err)
{
    int rc = 0;

    h5_lock();
    if ((rc = mem_check_short(err)) != 0 || (rc = h5_check_closed(err)) != 0) {
        err_prefix(err, "%s", p->part);
        goto out;
    }
    TRY(h5_set_i64(p->file, "complete", 1, err));
    if (H5Fflush(p->file, H5F_SCOPE_GLOBAL) < 0) {
        rc = h5_fail(err, ERR_IO, "writing %s", p->part);
        goto out;
    }
    /* HDF5 1.10 frees a file that it failed to close, but keeps the id: a second try crashes. */
    hid_t file = p->file;
    p->file = H5I_INVALID_HID;
    if (H5Fclose(file) < 0) {
        rc = h5_fail(err, ERR_IO, "closing %s", p->part);
        goto out;
    }
    if (fsync(p->fd) != 0) {
        rc = err_sys(err, ERR_IO, "syncing %s", p->part);
        goto out;
    }
    if (rename(p->part, p->path) != 0) {
        rc = err_sys(err, ERR_IO, "renaming %s to %s", p->part, p->path);
        goto out;
    }
    rc = io_sync_directory_of(p->path, err);
    forget(p);
out:
    if (p->path)
        h5_part_abort(p);
    h5_unlock();
    return rc;
}

void h5_part_abort(struct h5_part *p)
{
    if (!p->path)
        return;
    h5_lock();
    if (p->file >= 0)
        H5Fclose(p->file);
    h5_forget_closed(); /* what failed belongs to this file, not to the next */
    unlink(p->part);
    forget(p);
    h5_unlock();
}

/* ---- opening --------------------------------------------------------------------------------- */

static bool is_part(const char *path)
{
    size_t n = strlen(path);
    return n > 5 && strcmp(path + n - 5, ".part") == 0;
}

static int refuse_part(const char *path, bool complete, struct err *err)
{
    if (writer_alive(path))
        return err_set(err, ERR_INPUT,
                       "%s is still being written; wait until it is renamed to its "
                       "final name",
                       path);
    if (complete)
        return err_set(err, ERR_INPUT,
                       "%s is complete but its writer was stopped before the rename; "
                       "rename it to '%.*s' to use it",
                       path, (int)(strlen(path) - 5), path);
    return err_set(err, ERR_INPUT,
                   "%s is unfinished: its writer was stopped before the end; remove "
                   "it and write it again",
                   path);
}

static int refuse_missing(const char *path, struct err *err)
{
    char part[1024];
    struct stat st;
    int sys = errno;

    snprintf(part, sizeof part, "%s.part", path);
    if (sys == ENOENT && stat(part, &st) == 0)
        return err_set(err, ERR_INPUT, "%s: no such file, but %s is there: %s", path, part,
                       writer_alive(part) ? "it is still being written"
                                          : "its writer was stopped before the end; write it "
                                            "again");
    errno = sys;
    return err_sys(err, ERR_INPUT, "%s", path);
}

static const unsigned char magic[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};

static bool has_magic(int fd, off_t at)
{
    unsigned char head[sizeof magic];
    return pread(fd, head, sizeof head, at) == sizeof head &&
           memcmp(head, magic, sizeof magic) == 0;
}

static int refuse_foreign(int fd, const char *path, int64_t size, struct err *err)
{
    if (is_part(path))
        return refuse_part(path, false, err);
    for (int64_t at = 512; at < size; at *= 2) /* where HDF5 looks for its beginning */
        if (has_magic(fd, at))
            return err_set(err, ERR_INPUT,
                           "%s has a user block of %lld bytes, which lacuna does not read: take it "
                           "out with h5unjam",
                           path, (long long)at);
    return err_set(err, ERR_INPUT, "%s is not an HDF5 file (%lld bytes)", path, (long long)size);
}

/* Open a regular file with the HDF5 signature; O_NONBLOCK because opening a FIFO would wait. */
static int open_hdf5(const char *path, int *out, struct err *err)
{
    struct stat st;
    int rc = 0, fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0)
        return refuse_missing(path, err);
    if (fstat(fd, &st) != 0)
        rc = err_sys(err, ERR_INPUT, "%s", path);
    else if (!S_ISREG(st.st_mode))
        rc = err_set(err, ERR_INPUT, "%s is not a regular file", path);
    else if (!has_magic(fd, 0))
        rc = refuse_foreign(fd, path, st.st_size, err);
    if (rc)
        close(fd);
    else
        *out = fd;
    return rc;
}

static int refuse_damaged(const char *path, struct err *err)
{
    return h5_fail(err, ERR_INPUT,
                   "%s is damaged or truncated; copy it again from where it is whole, or write it "
                   "again",
                   path);
}

/* The one way to a file for reading: checked by the guard first, then read by libhdf5 through it.
 */
static int open_guarded(const char *path, hid_t *out, struct err *err)
{
    struct h5guard *guard = NULL;
    struct err why = {0};
    int fd = -1, rc = open_hdf5(path, &fd, err);

    if (rc)
        return rc;
    if ((rc = h5guard_open(fd, &guard, &why)) != 0)
        return is_part(path) && rc == ERR_INPUT ? refuse_part(path, false, err)
                                                : err_set(err, rc, "%s: %s", path, why.msg);
    *out = h5guard_hdf5(guard);
    if (*out >= 0)
        return 0;
    return is_part(path) ? refuse_part(path, false, err) : refuse_damaged(path, err);
}

static int check_format(hid_t file, const char *path, const char *format, int64_t major,
                        struct err *err)
{
    char found[64];
    int64_t have, minor, complete;
    int rc = 0;

    htri_t is_ours = H5Aexists(file, "format");
    if (is_ours < 0)
        return refuse_damaged(path, err);
    if (!is_ours || !h5_has_attr(file, "version_major"))
        FAIL(err, ERR_INPUT,
             "%s is an HDF5 file but not a %s (no attributes 'format' and "
             "'version_major')",
             path, format);
    TRY(h5_get_str(file, "format", found, sizeof found, err));
    if (strcmp(found, format) != 0)
        FAIL(err, ERR_INPUT, "%s is a %s, expected a %s", path, found, format);
    TRY(h5_get_i64(file, "version_major", &have, err));
    TRY(h5_get_i64(file, "version_minor", &minor, err));
    if (have != major)
        FAIL(err, ERR_INPUT,
             "%s has format version %lld.%lld; this lacuna (%s) reads version "
             "%lld.x",
             path, (long long)have, (long long)minor, lacuna_version(), (long long)major);
    TRY(h5_get_i64(file, "complete", &complete, err));
    if (is_part(path))
        rc = refuse_part(path, complete == 1, err);
    else if (complete != 1)
        FAIL(err, ERR_INPUT,
             "%s is unfinished (attribute complete = %lld): its writer was stopped "
             "before the end",
             path, (long long)complete);
out:
    if (rc && err && !strstr(err->msg, path))
        err_prefix(err, "%s", path);
    return rc;
}

int h5_open_file(const char *path, const char *format, int64_t major, hid_t *out, struct err *err)
{
    hid_t file = H5I_INVALID_HID;

    h5_lock();
    int rc = open_guarded(path, &file, err);
    if (rc == 0)
        rc = check_format(file, path, format, major, err);
    if (rc == 0)
        *out = file;
    else if (file >= 0)
        H5Fclose(file);
    h5_unlock();
    return rc;
}

int h5_open_foreign(const char *path, hid_t *out, struct err *err)
{
    h5_lock();
    int rc = open_guarded(path, out, err);
    h5_unlock();
    return rc;
}

int h5_file_descriptor(hid_t file, int *out, struct err *err)
{
    struct h5guard *guard = h5guard_of(file);

    *out = guard ? fcntl(*h5guard_fd(guard), F_DUPFD_CLOEXEC, 0) : -1;
    return *out < 0 ? err_sys(err, ERR_IO, "descriptor of a file") : 0;
}
