/*
 * predictions.c - the texts that models answered with (evalrun.h).
 */
#include "eval/evalrun.h"

#include "core/fileio.h"
#include "core/json.h"
#include "core/mem.h"
#include "core/sealed.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define LINE_MAX_BYTES ((size_t)16 << 20)
#define FILE_MAX_BYTES ((int64_t)64 << 30)

struct predictions {
    char path[4096];
    int fd;
    struct buf line, key;
};

/* The lines to keep, as they are. */
static int kept_lines(const char *path, const struct record_file *records, struct buf *keep,
                      struct err *err)
{
    struct io_lines l = {0};
    enum io_line kind;
    const char *text, *key = NULL;
    json_t *o = NULL;
    size_t len;
    char where[4200];
    struct err damage = {0};
    int rc = 0;
    TRY(io_lines_open(&l, path, LINE_MAX_BYTES, FILE_MAX_BYTES, err));
    for (;;) {
        TRY(io_line(&l, &kind, &text, &len, err));
        if (kind != IO_LINE_WHOLE)
            break;
        snprintf(where, sizeof where, "%s: line %lld", path, (long long)l.number);
        /* The last line may have reached the disk in part: its record was not written yet. */
        if (damage.code)
            break;
        if (seal_json(text, len, where, &o, &damage) != 0)
            continue;
        TRY(jget_str(o, "key", where, &key, err));
        if (record_file_has(records, key))
            buf_put(keep, text, len);
        json_decref(o);
        o = NULL;
    }
    if (damage.code && (kind == IO_LINE_WHOLE || damage.code != ERR_INPUT))
        FAIL(err, damage.code, "%s", damage.msg);
    if (kind == IO_LINE_LONG)
        FAIL(err, ERR_INPUT, "%s: line %lld is longer than a prediction can be", path,
             (long long)l.number);
    TRY(buf_check(keep, path, err));
out:
    json_decref(o);
    io_lines_close(&l);
    return rc;
}

int predictions_open(const char *path, const struct record_file *records, bool fresh,
                     struct predictions **out, struct err *err)
{
    struct predictions *p = NULL;
    struct buf keep = {0};
    bool there;
    int rc = 0;
    TRY(mem_zalloc(&p, 1, sizeof *p, "predictions", err));
    p->fd = -1;
    snprintf(p->path, sizeof p->path, "%s", path);
    TRY(io_exists(p->path, &there, err));
    if (there) {
        if (!fresh)
            TRY(kept_lines(p->path, records, &keep, err));
        TRY(file_write_atomic(p->path, buf_str(&keep), keep.len, err));
    }
    TRY(io_append_open(p->path, &p->fd, err));
    *out = p;
    p = NULL;
out:
    buf_free(&keep);
    predictions_close(&p);
    return rc;
}

void predictions_close(struct predictions **pp)
{
    struct predictions *p = *pp;
    if (!p)
        return;
    if (p->fd >= 0)
        close(p->fd);
    buf_free(&p->line);
    buf_free(&p->key);
    free(p);
    *pp = NULL;
}

int predictions_add(struct predictions *p, const struct record *r, const char *prompt_id,
                    const char *text, struct err *err)
{
    struct jw w;
    int rc = 0;
    buf_reset(&p->line);
    buf_reset(&p->key);
    record_key(r, &p->key);
    jw_init(&w, &p->line, 0);
    jw_obj(&w);
    jw_kstr(&w, "task", r->task);
    jw_kstr(&w, "method", r->method);
    jw_kstr(&w, "params", r->params);
    jw_kstr(&w, "prompt", prompt_id);
    jw_kstr(&w, "prediction", text);
    jw_kstr(&w, "key", buf_str(&p->key));
    jw_obj_end(&w);
    seal_put(&p->line, 0);
    buf_puts(&p->line, "\n");
    TRY(buf_check(&p->key, p->path, err));
    TRY(buf_check(&p->line, p->path, err));
    TRY(io_write(p->fd, p->path, p->line.data, (int64_t)p->line.len, err));
out:
    return rc;
}

int predictions_sync(struct predictions *p, struct err *err)
{
    return io_sync_data(p->fd, p->path, err);
}
