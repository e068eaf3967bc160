/*
 * predictions.c - the texts that models answered with (evalrun.h).
 */
#include "eval/evalrun.h"

#include "core/fileio.h"
#include "core/json.h"
#include "core/mem.h"
#include "core/sealed.h"

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
    OWN(io_lines_close) struct io_lines l = {0};
    enum io_line kind;
    const char *text, *key = NULL;
    OWN(json_decrefp) json_t *o = NULL;
    size_t len;
    char where[4200];
    struct err damage = {0};
    PASS_ON(io_lines_open(&l, path, LINE_MAX_BYTES, FILE_MAX_BYTES, err));
    for (;;) {
        PASS_ON(io_line(&l, &kind, &text, &len, err));
        if (kind != IO_LINE_WHOLE)
            break;
        snprintf(where, sizeof where, "%s: line %lld", path, (long long)l.number);
        /* The last line may have reached the disk in part: its record was not written yet. */
        if (damage.code)
            break;
        if (seal_json(text, len, where, &o, &damage) != 0)
            continue;
        PASS_ON(jget_str(o, "key", where, &key, err));
        if (record_file_has(records, key))
            buf_put(keep, text, len);
        json_decref(o);
        o = NULL;
    }
    if (damage.code && (kind == IO_LINE_WHOLE || damage.code != ERR_INPUT))
        return err_set(err, damage.code, "%s", damage.msg);
    if (kind == IO_LINE_LONG)
        return err_set(err, ERR_INPUT, "%s: line %lld is longer than a prediction can be", path,
                       (long long)l.number);
    return buf_check(keep, path, err);
}

int predictions_open(const char *path, const struct record_file *records, bool fresh,
                     struct predictions **out, struct err *err)
{
    OWN(predictions_close) struct predictions *p = NULL;
    OWN(buf_free) struct buf keep = {0};
    bool there;
    PASS_ON(mem_zalloc(&p, 1, sizeof *p, "predictions", err));
    p->fd = -1;
    snprintf(p->path, sizeof p->path, "%s", path);
    PASS_ON(io_exists(p->path, &there, err));
    if (there) {
        if (!fresh)
            PASS_ON(kept_lines(p->path, records, &keep, err));
        PASS_ON(file_write_atomic(p->path, buf_str(&keep), keep.len, err));
    }
    PASS_ON(io_append_open(p->path, &p->fd, err));
    *out = HAND_OVER(p);
    return 0;
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
    buf_reset(&p->line);
    buf_reset(&p->key);
    record_key(r, &p->key);
    jw_init(&w, &p->line, 0);
    jw_row(&w, JW_STR("task", r->task), JW_STR("method", r->method), JW_STR("params", r->params),
           JW_STR("prompt", prompt_id), JW_STR("prediction", text),
           JW_STR("key", buf_str(&p->key)));
    seal_put(&p->line, 0);
    buf_puts(&p->line, "\n");
    PASS_ON(buf_check(&p->key, p->path, err));
    PASS_ON(buf_check(&p->line, p->path, err));
    return io_write(p->fd, p->path, p->line.data, (int64_t)p->line.len, err);
}

int predictions_sync(struct predictions *p, struct err *err)
{
    return io_sync_data(p->fd, p->path, err);
}
