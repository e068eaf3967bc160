/*
 * recordfile.c - files of records: appending, resuming, reading.
 *
 * A record is appended by one write() of a whole line, so after a crash only the last line can be
 * torn; it is recognised by its missing newline. A lock on the file keeps a second process out.
 */
#include "core/keyset.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/record.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- reading -------------------------------------------------------------------------------- */

/* Called with each record of a file, in order. Takes the record over. */
typedef int record_sink(void *ctx, struct record *r, struct err *err);

/* *torn_at is the offset of a torn last line, or -1. */
static int each_record(const char *path, record_sink *sink, void *ctx, int64_t *torn_at,
                       struct err *err)
{
    int rc = 0;
    char *line = NULL;
    size_t cap = 0;
    int64_t number = 0, offset = 0;
    ssize_t len;
    FILE *f = fopen(path, "re");

    *torn_at = -1;
    if (!f)
        return err_sys(err, ERR_INPUT, "%s: cannot open", path);
    while ((len = getline(&line, &cap, f)) > 0) {
        char where[512];
        struct record r;
        number++;
        if (line[len - 1] != '\n') {
            *torn_at = offset;
            break;
        }
        snprintf(where, sizeof where, "%s: record %lld", path, (long long)number);
        TRY(record_parse(line, (size_t)len, where, &r, err));
        TRY(sink(ctx, &r, err));
        offset += len;
    }
    if (ferror(f))
        rc = err_sys(err, ERR_IO, "%s: cannot read", path);
out:
    free(line);
    fclose(f);
    return rc;
}

struct loaded {
    struct record *list;
    int64_t n, cap;
    struct keyset index;
    struct buf key;
};

/* Keep the record at the place of an older one with the same key, or at the end. */
static int keep_record(void *ctx, struct record *r, struct err *err)
{
    struct loaded *l = ctx;
    int rc = 0;
    buf_reset(&l->key);
    record_key(r, &l->key);
    TRY(buf_check(&l->key, "record key", err));
    int64_t at = keyset_get(&l->index, buf_str(&l->key));
    if (at >= 0) {
        record_free(&l->list[at]);
        l->list[at] = *r;
        return 0;
    }
    TRY(mem_grow(&l->list, &l->cap, l->n + 1, sizeof *l->list, "records", err));
    TRY(keyset_put(&l->index, buf_str(&l->key), l->n, err));
    l->list[l->n++] = *r;
    return 0;
out:
    record_free(r);
    return rc;
}

static int is_record_file(const struct dirent *e)
{
    return fnmatch("records*.jsonl", e->d_name, 0) == 0;
}

static int load_dir(const char *dir, struct loaded *l, struct err *err)
{
    struct dirent **names = NULL;
    int rc = 0, n = scandir(dir, &names, is_record_file, alphasort);
    if (n < 0)
        return err_sys(err, ERR_INPUT, "%s: cannot list the directory", dir);
    if (n == 0)
        rc = err_set(err, ERR_INPUT, "%s: holds no records*.jsonl (was it made by lacuna replay?)",
                     dir);
    for (int i = 0; i < n; i++) {
        struct buf path = {0};
        int64_t torn;
        buf_printf(&path, "%s/%s", dir, names[i]->d_name);
        if (rc == 0)
            rc = buf_check(&path, dir, err);
        if (rc == 0)
            rc = each_record(buf_str(&path), keep_record, l, &torn, err);
        buf_free(&path);
        free(names[i]);
    }
    free(names);
    return rc;
}

int records_load(const char *path, struct record **out, int64_t *n, struct err *err)
{
    struct loaded l = {0};
    struct stat st;
    int64_t torn;
    int rc = 0;

    if (stat(path, &st) != 0)
        return err_sys(err, ERR_INPUT, "%s: cannot open", path);
    rc = S_ISDIR(st.st_mode) ? load_dir(path, &l, err)
                             : each_record(path, keep_record, &l, &torn, err);
    keyset_free(&l.index);
    buf_free(&l.key);
    if (rc) {
        records_free(l.list, l.n);
        return rc;
    }
    *out = l.list;
    *n = l.n;
    return 0;
}

void records_free(struct record *r, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        record_free(&r[i]);
    free(r);
}

/* ---- appending ------------------------------------------------------------------------------ */

struct record_file {
    char *path;
    int fd;
    pthread_mutex_t lock; /* guards done and the file */
    struct keyset done;   /* keys of finished cells */
    struct buf line, key;
};

/* A cell whose last record is an error is not finished. */
static int note_key(struct record_file *f, const struct record *r, struct err *err)
{
    buf_reset(&f->key);
    record_key(r, &f->key);
    int rc = buf_check(&f->key, "record key", err);
    return rc ? rc : keyset_put(&f->done, buf_str(&f->key), r->status != RECORD_ERROR, err);
}

static int note_old(void *ctx, struct record *r, struct err *err)
{
    int rc = note_key(ctx, r, err);
    record_free(r);
    return rc;
}

static int cut_torn_line(struct record_file *f, int64_t torn_at, struct err *err)
{
    if (torn_at < 0)
        return 0;
    log_warn("%s: the last line is incomplete and is dropped; its cell will be done again",
             f->path);
    if (ftruncate(f->fd, torn_at) != 0)
        return err_sys(err, ERR_IO, "%s: cannot cut off the incomplete last line", f->path);
    return 0;
}

int record_file_reopen(const char *path, struct record_file **out, struct err *err)
{
    int rc = 0;
    struct record_file *f = calloc(1, sizeof *f);
    if (!f)
        return err_set(err, ERR_NOMEM, "%s: out of memory", path);
    pthread_mutex_init(&f->lock, NULL);
    f->path = strdup(path);
    f->fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (!f->path)
        FAIL(err, ERR_NOMEM, "%s: out of memory", path);
    if (f->fd < 0) {
        rc = err_sys(err, ERR_IO, "%s: cannot open for appending", path);
        goto out;
    }
    /* Some network file systems have no locks; then nothing guards against a second process. */
    if (flock(f->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        FAIL(err, ERR_RUN, "%s: another process is writing to it", path);
    *out = f;
    f = NULL;
out:
    record_file_close(&f);
    return rc;
}

int record_file_open(const char *path, struct record_file **out, struct err *err)
{
    int64_t torn;
    struct record_file *f = NULL;
    int rc = record_file_reopen(path, &f, err);
    if (rc)
        return rc;
    TRY(each_record(path, note_old, f, &torn, err));
    TRY(cut_torn_line(f, torn, err));
    *out = f;
    f = NULL;
out:
    record_file_close(&f);
    return rc;
}

int record_file_clear(struct record_file *f, struct err *err)
{
    if (ftruncate(f->fd, 0) != 0)
        return err_sys(err, ERR_IO, "%s: cannot empty it", f->path);
    return 0;
}

bool record_file_has(const struct record_file *f, const char *key)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&f->lock;
    pthread_mutex_lock(lock);
    bool has = keyset_get(&f->done, key) > 0;
    pthread_mutex_unlock(lock);
    return has;
}

/* The whole line or nothing: what a full disk cut short is removed again. */
static int write_line(struct record_file *f, struct err *err)
{
    size_t put = 0;
    struct stat before;
    if (fstat(f->fd, &before) != 0)
        return err_sys(err, ERR_IO, "%s: cannot stat", f->path);
    while (put < f->line.len) {
        ssize_t n = write(f->fd, f->line.data + put, f->line.len - put);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            int rc = err_sys(err, ERR_IO, "%s: cannot append a record", f->path);
            if (put && ftruncate(f->fd, before.st_size) != 0)
                log_warn("%s: an incomplete record is left at its end", f->path);
            return rc;
        }
        put += (size_t)n;
    }
    return 0;
}

int record_file_append(struct record_file *f, const struct record *r, struct err *err)
{
    int rc = 0;
    pthread_mutex_lock(&f->lock);
    buf_reset(&f->line);
    record_json(r, &f->line);
    TRY(buf_check(&f->line, f->path, err));
    TRY(write_line(f, err));
    TRY(note_key(f, r, err));
out:
    pthread_mutex_unlock(&f->lock);
    return rc;
}

void record_file_close(struct record_file **pf)
{
    struct record_file *f = *pf;
    if (!f)
        return;
    if (f->fd >= 0)
        close(f->fd);
    pthread_mutex_destroy(&f->lock);
    keyset_free(&f->done);
    buf_free(&f->line);
    buf_free(&f->key);
    free(f->path);
    free(f);
    *pf = NULL;
}
