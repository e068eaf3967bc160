/*
 * cmd_records.c - `lacuna records check|repair`: damaged lines of files of records.
 */
#include "core/cmd.h"
#include "core/fileio.h"
#include "core/mem.h"
#include "core/record.h"
#include "core/sealed.h"
#include "core/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define FLUSH ((size_t)1 << 20) /* bytes of good lines per write */

struct records_opts {
    struct common_opts common;
};

static const struct opt options[] = {COMMON_OPTS, {0}};

/* ---- looking at a file ----------------------------------------------------------------------- */

struct bad_line {
    int64_t number;
    char *why; /* owned, without file and line */
};

/* What a file holds. */
struct finding {
    const char *path; /* borrowed */
    int64_t records, without_sum;
    struct bad_line *bad; /* owned */
    int64_t n, cap;
    char *kept; /* owned; where repair put the file as it was, NULL: nowhere */
};

static void finding_free(struct finding *f)
{
    for (int64_t i = 0; i < f->n; i++)
        free(f->bad[i].why);
    free(f->bad);
    free(f->kept);
}

/* The message of a bad line without "FILE: line N: ". */
static const char *reason_of(const struct record_line *line)
{
    OWN(buf_free) struct buf where = {0};
    if (line->torn)
        return "incomplete, its newline is missing: its writer was stopped, or is at work";
    buf_printf(&where, "%s: line %lld: ", line->path, (long long)line->number);
    bool in_front = strncmp(line->bad->msg, buf_str(&where), where.len) == 0;
    return line->bad->msg + (in_front ? where.len : 0);
}

static int look_at_line(void *ctx, struct record_line *line, struct err *err)
{
    struct finding *f = ctx;
    if (line->record) {
        f->records++;
        f->without_sum += seal_state(line->text, line->len) == SEAL_ABSENT;
        return 0;
    }
    PASS_ON(mem_grow(&f->bad, &f->cap, f->n + 1, sizeof *f->bad, "damaged lines", err));
    f->bad[f->n] = (struct bad_line){line->number, strdup(reason_of(line))};
    if (!f->bad[f->n].why)
        return err_set(err, ERR_NOMEM, "%s: out of memory", line->path);
    f->n++;
    return 0;
}

/* ---- repairing a file ------------------------------------------------------------------------ */

struct salvage {
    struct io_part part;
    struct buf lines;
};

static int flush(struct salvage *s, struct err *err)
{
    int rc = buf_check(&s->lines, s->part.path, err);
    if (!rc)
        rc = io_write(s->part.fd, s->part.path, s->lines.data, (int64_t)s->lines.len, err);
    buf_reset(&s->lines);
    return rc;
}

static int keep_line(void *ctx, struct record_line *line, struct err *err)
{
    struct salvage *s = ctx;
    if (line->record)
        buf_put(&s->lines, line->text, line->len);
    return s->lines.len >= FLUSH ? flush(s, err) : 0;
}

static int keep_good_lines(const char *path, struct err *err)
{
    struct salvage s = {0};
    int rc = 0;
    TRY(io_part_open(&s.part, path, err));
    TRY(record_lines(path, NULL, keep_line, &s, err));
    TRY(flush(&s, err));
out:
    buf_free(&s.lines);
    return io_part_close(&s.part, rc, err);
}

/* Gives the file a second name, PATH.damaged, or PATH.damaged.N from 2 where earlier repairs left
 * theirs. */
static int keep_as(const char *path, char **out, struct err *err)
{
    struct buf b = {0};
    int rc = 0;
    for (int i = 1; i == 1 || errno == EEXIST; i++) {
        buf_reset(&b);
        buf_printf(&b, i == 1 ? "%s.damaged" : "%s.damaged.%d", path, i);
        TRY(buf_check(&b, path, err));
        if (link(path, b.data) == 0) {
            *out = b.data;
            return 0;
        }
    }
    rc = err_sys(err, ERR_IO, "%s: the file as it was cannot be kept", b.data);
out:
    buf_free(&b);
    return rc;
}

/* Nothing is lost at any moment: the file has its second name before the good lines take the first.
 */
static int replace_file(struct finding *f, struct err *err)
{
    if (f->records == 0)
        return err_set(err, ERR_INPUT,
                       "%s: no line is a good record, so nothing can be kept; remove the file",
                       f->path);
    PASS_ON(keep_as(f->path, &f->kept, err));
    return keep_good_lines(f->path, err);
}

static int repair_file(struct finding *f, bool dry_run, struct err *err)
{
    OWN(io_close_at) int fd = -1;
    int64_t size;
    if (io_named_descriptor(f->path) >= 0 || strcmp(f->path, "-") == 0)
        return err_set(err, ERR_USAGE, "records repair: %s has no name, so it cannot be replaced",
                       f->path);
    /* The lock that a writer of records takes (core/recordfile.c). */
    PASS_ON(io_open(f->path, &fd, &size, err));
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return err_set(err, ERR_RUN, "%s: another process is writing to it", f->path);
    PASS_ON(record_lines(f->path, NULL, look_at_line, f, err));
    if (f->n > 0 && !dry_run)
        PASS_ON(replace_file(f, err));
    return 0;
}

/* ---- output ---------------------------------------------------------------------------------- */

static void print_text(const struct finding *f)
{
    for (int64_t i = 0; i < f->n; i++)
        text_printf(stdout, "%s: line %lld: %s\n", f->path, (long long)f->bad[i].number,
                    f->bad[i].why);
    text_printf(stdout, "%s: %lld records", f->path, (long long)f->records);
    if (f->without_sum)
        printf(" (%lld without a checksum)", (long long)f->without_sum);
    printf(", %lld damaged line%s", (long long)f->n, f->n == 1 ? "" : "s");
    if (f->kept)
        text_printf(stdout, " taken out; the file as it was: %s", f->kept);
    printf("\n");
}

static void put_json(const struct finding *f, struct jw *w)
{
    jw_obj(w);
    jw_members(w, JW_STR("file", f->path), JW_INT("records", f->records),
               JW_INT("without_sum", f->without_sum));
    jw_karr(w, "damaged");
    for (int64_t i = 0; i < f->n; i++)
        jw_row(w, JW_INT("line", f->bad[i].number), JW_STR("why", f->bad[i].why));
    jw_arr_end(w);
    if (f->kept)
        jw_kstr(w, "kept_as", f->kept);
    jw_obj_end(w);
}

/* ---- the command ----------------------------------------------------------------------------- */

/* Every file, in order. *damaged: lines. */
static int each_file(const struct str_list *files, bool repair, const struct records_opts *o,
                     struct jw *w, int64_t *damaged, struct err *err)
{
    int rc = 0;
    for (int64_t i = 0; i < files->n && !rc; i++) {
        OWN(finding_free) struct finding f = {.path = files->items[i]};
        rc = repair ? repair_file(&f, o->common.dry_run, err)
                    : record_lines(f.path, NULL, look_at_line, &f, err);
        if (!rc && o->common.json)
            put_json(&f, w);
        else if (!rc)
            print_text(&f);
        *damaged += f.n;
    }
    return rc;
}

static int find_action(const struct str_list *rest, bool *repair, struct err *err)
{
    struct names all = {0};
    const char *name = rest->n ? rest->items[0] : "";
    if (rest->n == 0)
        return err_set(err, ERR_USAGE, "records: check or repair was expected");
    names_add(&all, "check");
    names_add(&all, "repair");
    *repair = strcmp(name, "repair") == 0;
    if (!*repair && strcmp(name, "check") != 0)
        return names_unknown(&all, "action of records", name, err);
    return rest->n > 1 ? 0
                       : err_set(err, ERR_USAGE,
                                 "records %s: no directory given: pass the -o directory of a "
                                 "replay",
                                 name);
}

static int run(const struct app *app, void *opts, struct str_list *rest, struct err *err)
{
    struct records_opts *o = opts;
    OWN(str_list_free) struct str_list files = {0};
    OWN(buf_free) struct buf b = {0};
    struct jw w;
    bool repair;
    int64_t damaged = 0;
    PASS_ON(find_action(rest, &repair, err));
    for (int64_t i = 1; i < rest->n; i++)
        PASS_ON(records_files(rest->items[i], &files, err));
    jw_init(&w, &b, 2);
    jw_arr(&w);
    PASS_ON(each_file(&files, repair, o, &w, &damaged, err));
    jw_arr_end(&w);
    PASS_ON(buf_check(&b, "result", err));
    if (o->common.json)
        puts(buf_str(&b));
    if (damaged && !repair)
        return err_set(
            err, ERR_CHECK,
            "%lld damaged line%s; `lacuna records repair` takes out what is damaged and keeps the "
            "rest",
            (long long)damaged, damaged == 1 ? "" : "s");
    return 0;
}

const struct command cmd_records = {
    .name = "records",
    .usage = "records check DIR...\n"
             "records repair DIR...",
    .summary = "find and take out damaged lines of records",
    .run = run,
    .options = options,
    .size = sizeof(struct records_opts),
    .details =
        "DIR is the -o directory of `lacuna replay`, or a .jsonl file; check reads - as well.\n"
        "check names every line that is no record, whose checksum does not fit or that is\n"
        "incomplete, and exits with 1 if there is one. repair keeps the good lines as they are,\n"
        "names the others, and leaves the file as it was beside it as records.jsonl.damaged;\n"
        "the replay that wrote it does the cells of the lost lines again. With --dry-run it\n"
        "only looks.\n"
        "\n"
        "Examples:\n"
        "  lacuna records check out\n"
        "  lacuna records repair out && lacuna replay t.h5 -m dense -o out\n",
};
