/*
 * recordfile.c - a file of records that is appended to and continued.
 *
 * A record is appended by one write() of a whole line, so after a crash only the last line can be
 * torn; it is recognised by its missing newline. A lock on the file keeps a second process out.
 */
#include "core/clock.h"
#include "core/fileio.h"
#include "core/strmap.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/record.h"

#include <errno.h>
#include <pthread.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Seconds between syncs: a record costs as little as a millisecond, a sync some more. */
#define SYNC_S 2

/* Beside enum record_extra: the cell's last record is ok or skip. */
#define RECORD_FINISHED 1

struct record_file {
    char *path;
    int fd;
    pthread_mutex_t lock; /* guards done and the file */
    struct strmap done;   /* of cells: RECORD_FINISHED and enum record_extra */
    struct buf line, key;
    double synced_s; /* when the file was last synced */
};

/* A cell whose last record is an error is not finished. */
static int note_key(struct record_file *f, const struct record *r, struct err *err)
{
    buf_reset(&f->key);
    record_key(r, &f->key);
    PASS_ON(buf_check(&f->key, "record key", err));
    int64_t has = r->status != RECORD_ERROR ? RECORD_FINISHED : 0;
    if (r->status != RECORD_OK || isfinite(record_get(r, "err_local@0")))
        has |= RECORD_LOCAL;
    if (r->status != RECORD_OK || isfinite(record_get(r, "time_linear_ns")))
        has |= RECORD_TIMES;
    return strmap_put(&f->done, buf_str(&f->key), has, err);
}

static int note_old(void *ctx, struct record *r, struct err *err)
{
    int rc = note_key(ctx, r, err);
    record_free(r);
    return rc;
}

static int cut_at(struct record_file *f, int64_t size)
{
    int rc;
    do
        rc = ftruncate(f->fd, size);
    while (rc != 0 && errno == EINTR);
    return rc;
}

static int cut_torn_line(struct record_file *f, int64_t torn_at, struct err *err)
{
    if (torn_at < 0)
        return 0;
    log_warn("%s: the last line is incomplete and is dropped; its cell will be done again",
             f->path);
    if (cut_at(f, torn_at) != 0)
        return err_sys(err, ERR_IO, "%s: cannot cut off the incomplete last line", f->path);
    return 0;
}

static int record_file_new(const char *path, struct record_file **out, struct err *err)
{
    struct record_file *f = calloc(1, sizeof *f);
    if (!f)
        return err_set(err, ERR_NOMEM, "%s: out of memory", path);
    pthread_mutex_init(&f->lock, NULL);
    f->fd = -1;
    f->path = strdup(path);
    if (!f->path) {
        record_file_close(&f);
        return err_set(err, ERR_NOMEM, "%s: out of memory", path);
    }
    *out = f;
    return 0;
}

int record_file_peek(const char *path, struct record_file **out, struct err *err)
{
    int64_t torn;
    OWN(record_file_close) struct record_file *f = NULL;
    bool there;
    PASS_ON(record_file_new(path, &f, err));
    PASS_ON(io_exists(path, &there, err));
    if (there)
        PASS_ON(records_each(path, NULL, note_old, f, &torn, err));
    *out = HAND_OVER(f);
    return 0;
}

int record_file_reopen(const char *path, struct record_file **out, struct err *err)
{
    OWN(record_file_close) struct record_file *f = NULL;
    PASS_ON(record_file_new(path, &f, err));
    PASS_ON(io_append_open(path, &f->fd, err));
    f->synced_s = clock_s();
    *out = HAND_OVER(f);
    return 0;
}

int record_file_open(const char *path, struct record_file **out, struct err *err)
{
    int64_t torn;
    OWN(record_file_close) struct record_file *f = NULL;
    PASS_ON(record_file_reopen(path, &f, err));
    PASS_ON(records_each(path, NULL, note_old, f, &torn, err));
    PASS_ON(cut_torn_line(f, torn, err));
    *out = HAND_OVER(f);
    return 0;
}

int record_file_clear(struct record_file *f, struct err *err)
{
    if (cut_at(f, 0) != 0)
        return err_sys(err, ERR_IO, "%s: cannot empty it", f->path);
    return 0;
}

bool record_file_has(const struct record_file *f, const char *key)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&f->lock;
    pthread_mutex_lock(lock);
    int64_t has = strmap_get(&f->done, key); /* -1: not there */
    pthread_mutex_unlock(lock);
    return has > 0 && (has & RECORD_FINISHED);
}

int record_file_holds(const struct record_file *f, const struct record *r, bool *holds,
                      struct err *err)
{
    OWN(buf_free) struct buf key = {0};
    *holds = false;
    if (!f)
        return 0;
    record_key(r, &key);
    PASS_ON(buf_check(&key, "record key", err));
    *holds = record_file_has(f, buf_str(&key));
    return 0;
}

int record_file_lacks(const struct record_file *f, const struct record *r, enum record_extra what,
                      bool *lacks, struct err *err)
{
    OWN(buf_free) struct buf key = {0};
    *lacks = false;
    if (!f)
        return 0;
    record_key(r, &key);
    PASS_ON(buf_check(&key, "record key", err));
    if (record_file_has(f, buf_str(&key)))
        *lacks = !(strmap_get(&f->done, buf_str(&key)) & what);
    return 0;
}

/* The whole line or nothing: what a full disk cut short is removed again. */
static int write_line(struct record_file *f, struct err *err)
{
    struct stat before;
    if (fstat(f->fd, &before) != 0)
        return err_sys(err, ERR_IO, "%s: cannot stat", f->path);
    int rc = io_write(f->fd, f->path, f->line.data, (int64_t)f->line.len, err);
    if (rc && cut_at(f, before.st_size) != 0)
        log_warn("%s: an incomplete record is left at its end", f->path);
    return rc;
}

int record_file_append(struct record_file *f, const struct record *r, struct err *err)
{
    int rc = 0;
    bool due = false;
    pthread_mutex_lock(&f->lock);
    buf_reset(&f->line);
    record_json(r, &f->line);
    TRY(buf_check(&f->line, f->path, err));
    TRY(mem_check_short(err));
    if (f->line.len > RECORD_LINE_MAX)
        FAIL(err, ERR_RUN, "%s: a record of %zu bytes, at most %zu can be read again", f->path,
             f->line.len, RECORD_LINE_MAX);
    TRY(write_line(f, err));
    TRY(note_key(f, r, err));
    due = clock_s() - f->synced_s >= SYNC_S;
    if (due)
        f->synced_s = clock_s();
out:
    pthread_mutex_unlock(&f->lock);
    /* Not under the lock: other threads append while one waits for the disk. */
    return due ? record_file_sync(f, err) : rc;
}

int record_file_sync(struct record_file *f, struct err *err)
{
    return io_sync_data(f->fd, f->path, err);
}

void record_file_close(struct record_file **pf)
{
    struct record_file *f = *pf;
    if (!f)
        return;
    if (f->fd >= 0)
        close(f->fd);
    pthread_mutex_destroy(&f->lock);
    strmap_free(&f->done);
    buf_free(&f->line);
    buf_free(&f->key);
    free(f->path);
    free(f);
    *pf = NULL;
}
