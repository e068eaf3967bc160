/*
 * journal.c - see journal.h.
 */
#include "sim/journal.h"

#include "core/buf.h"
#include "core/fileio.h"
#include "core/json.h"
#include "core/mem.h"
#include "core/sealed.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define JOURNAL_MOST ((size_t)1 << 30)

struct journal {
    int fd;
    pthread_mutex_t lock;
    char *path;
};

void journal_close(struct journal **j)
{
    if (!*j)
        return;
    if ((*j)->fd >= 0)
        close((*j)->fd);
    pthread_mutex_destroy(&(*j)->lock);
    free((*j)->path);
    free(*j);
    *j = NULL;
}

static int write_line(struct journal *j, struct buf *line, struct err *err)
{
    int rc = buf_check(line, j->path, err);
    rc = rc ? rc : mem_check_short(err);
    if (rc)
        return rc;
    pthread_mutex_lock(&j->lock);
    for (size_t done = 0; done < line->len && !rc;) {
        ssize_t n = write(j->fd, line->data + done, line->len - done);
        if (n < 0 && errno != EINTR)
            rc = err_sys(err, ERR_IO, "%s", j->path);
        done += n > 0 ? (size_t)n : 0;
    }
    if (!rc && fdatasync(j->fd) != 0 && errno != EINVAL)
        rc = err_sys(err, ERR_IO, "%s", j->path);
    pthread_mutex_unlock(&j->lock);
    return rc;
}

int journal_add(struct journal *j, int64_t job, const char *text, const char *skip, struct err *err)
{
    struct buf line = {0};
    struct jw w;
    jw_init(&w, &line, 0);
    jw_obj(&w);
    jw_kint(&w, "job", job);
    jw_kstr(&w, text ? "found" : "skip", text ? text : skip);
    jw_obj_end(&w);
    seal_put(&line, 0);
    buf_puts(&line, "\n");
    int rc = write_line(j, &line, err);
    buf_free(&line);
    return rc;
}

static int take_line(const struct journal *j, char *line, size_t len, journal_sink *sink, void *ctx,
                     struct err *err)
{
    json_t *o = NULL;
    int64_t job = 0;
    const char *text = NULL, *skip = NULL;
    int rc = 0;
    TRY(seal_json(line, len, j->path, &o, err));
    TRY(jget_int(o, "job", j->path, &job, err));
    TRY(jget_str_opt(o, "found", j->path, &text, err));
    TRY(jget_str_opt(o, "skip", j->path, &skip, err));
    TRY(sink(ctx, job, text, skip, err));
out:
    json_decref(o);
    return rc;
}

/* The first line is the identity, the others are jobs. *end: where the last whole line ends. */
static int take_lines(const struct journal *j, const char *identity, struct buf *b,
                      journal_sink *sink, void *ctx, size_t *end, struct err *err)
{
    int rc = 0;
    *end = 0;
    for (size_t at = 0; at < b->len;) {
        char *nl = memchr(b->data + at, '\n', b->len - at);
        if (!nl)
            break;
        size_t len = (size_t)(nl - b->data) - at;
        *nl = '\0';
        bool other = at == 0 && strcmp(b->data, identity) != 0;
        if (other && at + len + 1 == b->len)
            return 0; /* nothing was found yet: the file is begun anew */
        if (other)
            FAIL(
                err, ERR_USAGE,
                "%s holds the beginning of a calibration with other settings or inputs: repeat its "
                "command to go on, or give --force to start anew",
                j->path);
        if (at)
            TRY(take_line(j, b->data + at, len, sink, ctx, err));
        at += len + 1;
        *end = at;
    }
out:
    return rc;
}

int journal_open(const char *path, const char *identity, journal_sink *sink, void *ctx,
                 struct journal **out, struct err *err)
{
    struct journal *j = NULL;
    struct buf b = {0};
    size_t end = 0;
    int rc = 0;

    TRY(mem_zalloc(&j, 1, sizeof *j, "journal", err));
    pthread_mutex_init(&j->lock, NULL);
    j->fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (!(j->path = strdup(path)))
        FAIL(err, ERR_NOMEM, "%s: out of memory", path);
    if (j->fd < 0) {
        rc = err_sys(err, ERR_IO, "%s", path);
        goto out;
    }
    if (flock(j->fd, LOCK_EX | LOCK_NB) != 0)
        FAIL(err, ERR_RUN, "%s: another process calibrates to it", path);
    TRY(buf_read_file(&b, path, JOURNAL_MOST, err));
    TRY(take_lines(j, identity, &b, sink, ctx, &end, err));
    if (ftruncate(j->fd, (off_t)end) != 0) {
        rc = err_sys(err, ERR_IO, "%s", path);
        goto out;
    }
    if (end == 0) {
        buf_reset(&b);
        buf_printf(&b, "%s\n", identity);
        TRY(write_line(j, &b, err));
    }
    *out = j;
    j = NULL;
out:
    journal_close(&j);
    buf_free(&b);
    return rc;
}
