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
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

/* In the file that is open: its name may lead elsewhere by now. */
static int create_file(struct h5_part *p, struct err *err)
{
    char name[40];
    OWN(h5_close_at) hid_t fapl = write_props(), fcpl = H5Pcreate(H5P_FILE_CREATE);
    H5Pset_obj_track_times(fcpl, 0);
    H5Pset_attr_phase_change(fcpl, 65535, 0);
    H5Pset_link_phase_change(fcpl, 65535, 0);
    snprintf(name, sizeof name, "/proc/self/fd/%d", p->out.fd);
    p->file = H5Fcreate(name, H5F_ACC_TRUNC, fcpl, fapl);
    return p->file < 0 ? h5_fail(err, ERR_IO, "%s: cannot create it", p->path) : 0;
}

static int end_file(struct h5_part *p, int rc, struct err *err)
{
    h5_forget_closed(); /* what failed belongs to this file, not to the next */
    rc = io_part_close(&p->out, rc, err);
    free(p->path);
    *p = (struct h5_part){.file = H5I_INVALID_HID};
    return rc;
}

int h5_part_create(struct h5_part *p, const char *path, const char *format, int64_t major,
                   int64_t minor, bool force, struct err *err)
{
    int rc = 0;
    char tool[64], part[NAME_MAX + 1];
    *p = (struct h5_part){.file = H5I_INVALID_HID};
    h5_lock();
    TRY(refuse_existing(path, force, err));
    if (io_part_find(path, part) == IO_PART_LIVE)
        FAIL(err, ERR_IO, "%s is being written by another process", path);
    TRY(mem_dup(&p->path, path, path, err));
    TRY(io_part_open(&p->out, p->path, err));
    if (!p->out.part)
        FAIL(err, ERR_USAGE, "%s is not a regular file", path);
    TRY(create_file(p, err));
    snprintf(tool, sizeof tool, "lacuna %s", lacuna_version());
    TRY(h5_put_str(p->file, "format", format, err));
    TRY(h5_put_i64(p->file, "version_major", major, err));
    TRY(h5_put_i64(p->file, "version_minor", minor, err));
    TRY(h5_put_str(p->file, "tool", tool, err));
    TRY(h5_put_i64(p->file, "complete", 0, err));
    if (H5Fflush(p->file, H5F_SCOPE_GLOBAL) < 0)
        rc = h5_fail(err, ERR_IO, "%s: cannot write", path);
out:
    if (rc)
        h5_part_abort(p);
    h5_unlock();
    return rc;
}

int h5_part_commit(struct h5_part *p, struct err *err)
{
    int rc = 0;
    h5_lock();
    if ((rc = mem_check_short(err)) != 0 || (rc = h5_check_closed(err)) != 0) {
        err_prefix(err, "%s", p->path);
        goto out;
    }
    TRY(h5_set_i64(p->file, "complete", 1, err));
    if (H5Fflush(p->file, H5F_SCOPE_GLOBAL) < 0) {
        rc = h5_fail(err, ERR_IO, "%s: cannot write", p->path);
        goto out;
    }
    /* HDF5 1.10 frees a file that it failed to close, but keeps the id: a second try crashes. */
    hid_t file = p->file;
    p->file = H5I_INVALID_HID;
    rc = H5Fclose(file) < 0 ? h5_fail(err, ERR_IO, "%s: cannot close", p->path) : 0;
    rc = end_file(p, rc, err);
out:
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
    end_file(p, ERR_IO, NULL);
    h5_unlock();
}

/* ---- opening --------------------------------------------------------------------------------- */

static const unsigned char magic[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};

static bool has_magic(int fd, off_t at)
{
    unsigned char head[sizeof magic];
    return pread(fd, head, sizeof head, at) == sizeof head &&
           memcmp(head, magic, sizeof magic) == 0;
}

static int refuse_foreign(int fd, const char *path, int64_t size, struct err *err)
{
    for (int64_t at = 512; at < size; at *= 2) /* where HDF5 looks for its beginning */
        if (has_magic(fd, at))
            return err_set(err, ERR_INPUT,
                           "%s has a user block of %lld bytes, which lacuna does not read: take it "
                           "out with h5unjam",
                           path, (long long)at);
    return err_set(err, ERR_INPUT, "%s is not an HDF5 file (%lld bytes)", path, (long long)size);
}

/* Open a regular file with the HDF5 signature. */
static int open_hdf5(const char *path, int *out, struct err *err)
{
    char part[NAME_MAX + 1];
    int64_t size;
    int rc;
    enum io_part_state found =
        access(path, F_OK) != 0 && errno == ENOENT ? io_part_find(path, part) : IO_PART_NONE;
    if (found)
        return err_set(err, ERR_INPUT, "%s: no such file, but %s is there: %s", path, part,
                       found == IO_PART_LIVE
                           ? "it is still being written"
                           : "its writer was stopped before the end; write it again");
    if ((rc = io_open(path, out, &size, err)) != 0)
        return rc;
    if (has_magic(*out, 0))
        return 0;
    rc = refuse_foreign(*out, path, size, err);
    close(*out);
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
        return err_set(err, rc, "%s: %s", path, why.msg);
    *out = h5guard_hdf5(guard);
    return *out >= 0 ? 0 : refuse_damaged(path, err);
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
    if (complete != 1)
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
    H5_LOCKED;
    int rc = open_guarded(path, &file, err);
    if (rc == 0)
        rc = check_format(file, path, format, major, err);
    if (rc == 0)
        *out = file;
    else if (file >= 0)
        H5Fclose(file);
    return rc;
}

int h5_signature(const char *path, bool *is_hdf5, struct err *err)
{
    int64_t size;
    int fd, rc = io_open(path, &fd, &size, err);
    if (rc)
        return rc;
    *is_hdf5 = has_magic(fd, 0);
    close(fd);
    return 0;
}

int h5_file_descriptor(hid_t file, int *out, struct err *err)
{
    struct h5guard *guard = h5guard_of(file);
    *out = guard ? fcntl(*h5guard_fd(guard), F_DUPFD_CLOEXEC, 0) : -1;
    return *out < 0 ? err_sys(err, ERR_IO, "descriptor of a file") : 0;
}
