/*
 * recordread.c - files of records line by line, and whole sets of them.
 *
 * A damaged line ends the reading. A table over the other lines would look like one over all: means
 * shift and nobody sees it. `lacuna records repair` takes the line away, under its name.
 */
#include "core/fileio.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/record.h"
#include "core/strmap.h"

#include <dirent.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- lines ---------------------------------------------------------------------------------- */

/* Parse a line, or say in `bad` why it is none. Only a lack of memory is an error. */
static int parse_line(struct record_pool *pool, enum io_line kind, const struct record_line *line,
                      struct record *r, struct err *bad, struct err *err)
{
    char where[512];
    snprintf(where, sizeof where, "%s: line %lld", line->path, (long long)line->number);
    if (kind == IO_LINE_LONG)
        err_set(bad, ERR_INPUT, "%s: longer than %zu bytes, which are the most of a record", where,
                RECORD_LINE_MAX);
    else if (pool)
        record_parse_into(pool, line->text, line->len, where, r, bad);
    else
        record_parse(line->text, line->len, where, r, bad);
    return bad->code == ERR_NOMEM ? err_set(err, ERR_NOMEM, "%s", bad->msg) : 0;
}

int record_lines(const char *path, struct record_pool *pool, record_line_fn *fn, void *ctx,
                 struct err *err)
{
    OWN(io_lines_close) struct io_lines lines = {0};
    enum io_line kind;
    int rc = 0;
    PASS_ON(io_lines_open(&lines, path, RECORD_LINE_MAX, RECORD_FILE_MAX, err));
    for (;;) {
        struct record r = {0};
        struct err bad = {0};
        struct record_line line = {.path = path};
        PASS_ON(io_line(&lines, &kind, &line.text, &line.len, err));
        if (kind == IO_LINE_END)
            break;
        line.number = lines.number;
        line.offset = lines.offset;
        line.torn = kind == IO_LINE_TORN;
        if (!line.torn)
            PASS_ON(parse_line(pool, kind, &line, &r, &bad, err));
        line.bad = bad.code ? &bad : NULL;
        line.record = line.torn || line.bad ? NULL : &r;
        rc = fn(ctx, &line, err);
        record_free(&r);
        if (rc)
            break;
    }
    return rc;
}

struct each {
    record_sink *sink;
    void *ctx;
    int64_t *torn_at;
};

static int give_record(void *ctx, struct record_line *line, struct err *err)
{
    struct each *e = ctx;
    if (line->bad && strcmp(line->path, "-") == 0)
        return err_set(err, ERR_INPUT, "%s", line->bad->msg);
    if (line->bad)
        return err_set(err, ERR_INPUT, "%s (`lacuna records repair %s` keeps the other lines)",
                       line->bad->msg, line->path);
    if (line->torn) {
        *e->torn_at = line->offset;
        return 0;
    }
    struct record r = *line->record;
    *line->record = (struct record){0};
    return e->sink(e->ctx, &r, err);
}

int records_each(const char *path, struct record_pool *pool, record_sink *sink, void *ctx,
                 int64_t *torn_at, struct err *err)
{
    struct each e = {sink, ctx, torn_at};
    *torn_at = -1;
    return record_lines(path, pool, give_record, &e, err);
}

/* ---- sets ----------------------------------------------------------------------------------- */

struct loaded {
    struct record *list;
    int64_t n, cap;
    struct strmap index;
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
    int64_t at = strmap_get(&l->index, buf_str(&l->key));
    if (at >= 0) {
        record_free(&l->list[at]);
        l->list[at] = *r;
        return 0;
    }
    TRY(mem_grow(&l->list, &l->cap, l->n + 1, sizeof *l->list, "records", err));
    TRY(strmap_put(&l->index, buf_str(&l->key), l->n, err));
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

static int list_directory(const char *dir, struct str_list *out, struct err *err)
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
        buf_printf(&path, "%s/%s", dir, names[i]->d_name);
        if (rc == 0)
            rc = buf_check(&path, dir, err);
        if (rc == 0)
            str_list_add(out, buf_str(&path));
        buf_free(&path);
        free(names[i]);
    }
    free(names);
    return rc;
}

int records_files(const char *path, struct str_list *out, struct err *err)
{
    struct stat st;
    bool named = strcmp(path, "-") != 0;
    if (named && stat(path, &st) != 0)
        return err_sys(err, ERR_INPUT, "%s: cannot open", path);
    if (named && S_ISDIR(st.st_mode))
        PASS_ON(list_directory(path, out, err));
    else
        str_list_add(out, path);
    if (out->failed)
        return err_set(err, ERR_NOMEM, "%s: out of memory", path);
    return 0;
}

int records_read(const char *path, struct record_pool *pool, record_sink *sink, void *ctx,
                 struct err *err)
{
    OWN(str_list_free) struct str_list files = {0};
    int64_t torn;
    PASS_ON(records_files(path, &files, err));
    for (int64_t i = 0; i < files.n; i++) {
        PASS_ON(records_each(files.items[i], pool, sink, ctx, &torn, err));
        if (torn >= 0)
            log_warn("%s: the last line is incomplete and is left out (its writer was stopped, or "
                     "is at work)",
                     files.items[i]);
    }
    return 0;
}

int records_load(const char *path, struct record **out, int64_t *n, struct err *err)
{
    struct loaded l = {0};
    int rc = records_read(path, NULL, keep_record, &l, err);
    strmap_free(&l.index);
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
