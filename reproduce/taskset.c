/*
 * taskset.c - task files of --tasks. A file counts by its content, wherever it lies.
 */
#include "reproduce/taskset.h"

#include "core/fileio.h"
#include "core/hash.h"
#include "core/mem.h"
#include "reproduce/modelset.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define LINE_MAX_BYTES ((size_t)256 << 20)
#define FILE_MAX_BYTES ((int64_t)16 << 30)

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* ---- the first line ---------------------------------------------------------------------------
 */

/* Does the line have what a hole of the prompt asks for? Options stand in a list. */
static bool has_hole(const json_t *line, const char *key)
{
    if (strncmp(key, "OPTION_", 7) == 0)
        return json_is_array(json_object_get(line, "options"));
    return json_is_string(json_object_get(line, key));
}

static int check_holes(const struct task_file *f, const json_t *line, struct err *err)
{
    const char *p = json_str_or(f->j, "template", "");
    char key[64];
    while ((p = strchr(p, '{')) != NULL) {
        snprintf(key, sizeof key, "%.*s", (int)strcspn(p + 1, "}"), p + 1);
        if (!has_hole(line, key))
            return err_set(err, ERR_INPUT, "%s: line 1: no \"%s\", which the lines of %s's %s have",
                           f->path, key, f->of, f->id);
        p++;
    }
    return 0;
}

static int check_line(const struct task_file *f, const json_t *line, struct err *err)
{
    const char *dataset = json_str_or(line, "dataset", NULL);
    if (!json_is_object(line))
        return err_set(err, ERR_INPUT, "%s: line 1 is no JSON object", f->path);
    if (dataset && strcmp(dataset, f->id) != 0)
        return err_set(err, ERR_INPUT, "%s: line 1: dataset '%s' was expected, found '%.60s'",
                       f->path, f->id, dataset);
    if (!json_object_get(line, "answers") && !json_object_get(line, "answer"))
        return err_set(err, ERR_INPUT, "%s: line 1: no \"answers\", nor \"answer\"", f->path);
    return check_holes(f, line, err);
}

static int read_first_line(const struct task_file *f, struct err *err)
{
    struct io_lines l = {0};
    enum io_line kind;
    const char *text;
    size_t len;
    struct buf where = {0};
    json_t *line = NULL;
    int rc = 0;
    TRY(io_lines_open(&l, f->path, LINE_MAX_BYTES, FILE_MAX_BYTES, err));
    TRY(io_line(&l, &kind, &text, &len, err));
    if (kind == IO_LINE_END)
        FAIL(err, ERR_INPUT, "%s: no question in it", f->path);
    if (kind == IO_LINE_LONG)
        FAIL(err, ERR_INPUT, "%s: line 1 is longer than %zu bytes", f->path, LINE_MAX_BYTES);
    buf_printf(&where, "%s: line 1", f->path);
    TRY(buf_check(&where, "path", err));
    TRY(json_read_text(text, len, buf_str(&where), &line, err));
    TRY(check_line(f, line, err));
out:
    json_decref(line);
    io_lines_close(&l);
    buf_free(&where);
    return rc;
}

/* ---- folders ----------------------------------------------------------------------------------
 */

/* The file in this folder, if it is there. */
static int look_in(struct task_file *f, const char *folder, bool *has, struct err *err)
{
    struct buf path = {0};
    struct hash_state *h = NULL;
    struct stat st;
    int rc = 0;
    buf_printf(&path, "%s/%s", folder, f->file);
    TRY(buf_check(&path, "path", err));
    if (stat(buf_str(&path), &st) != 0)
        goto out;
    if (f->path)
        FAIL(err, ERR_USAGE, "reproduce: --tasks %s: %s stands in another folder as well: %s",
             folder, f->file, f->path);
    *has = true;
    f->path = realpath(buf_str(&path), NULL);
    if (!f->path)
        FAIL(err, ERR_NOMEM, "tasks: out of memory");
    TRY(read_first_line(f, err));
    TRY(hash_new(&h, err));
    TRY(hash_input_file(h, f->path, f->file, err));
    hash_text(hash_digest(h), f->hash);
out:
    hash_free(h);
    buf_free(&path);
    return rc;
}

int task_set_make(const struct paper_data *d, const struct str_list *folders, struct task_set *s,
                  struct err *err)
{
    size_t i;
    json_t *o;
    int rc = 0;
    TRY(mem_zalloc(&s->f, (int64_t)json_array_size(d->tasks) + 1, sizeof *s->f, "tasks", err));
    json_array_foreach(d->tasks, i, o) s->f[s->n++] =
        (struct task_file){.j = o,
                           .id = json_str_or(o, "id", ""),
                           .file = json_str_or(o, "file", ""),
                           .of = json_str_or(o, "of", "")};
    for (int64_t k = 0; k < folders->n; k++) {
        const char *folder = folders->items[k];
        bool any = false;
        if (!is_folder(folder))
            FAIL(err, ERR_USAGE, "reproduce: --tasks %s: no such folder", folder);
        for (int n = 0; n < s->n; n++)
            TRY(look_in(&s->f[n], folder, &any, err));
        if (!any)
            FAIL(err, ERR_USAGE,
                 "reproduce: --tasks %s: none of the files of datasets/paper/tasks.json is there "
                 "(%s, ...)",
                 folder, s->n ? s->f[0].file : "");
    }
out:
    return rc;
}

void task_set_free(struct task_set *s)
{
    for (int i = 0; i < s->n; i++)
        free(s->f[i].path);
    free(s->f);
    memset(s, 0, sizeof *s);
}

const struct task_file *task_set_find(const struct task_set *s, const char *id)
{
    for (int i = 0; s && i < s->n; i++)
        if (strcmp(s->f[i].id, id) == 0)
            return &s->f[i];
    return NULL;
}

int task_file_options(const struct task_file *f, struct str_list *words, struct err *err)
{
    static const char *const keys[3][2] = {
        {"template", "--template"}, {"metric", "--grade"}, {"max_new", "--max-new"}};
    char text[4096];
    for (int i = 0; i < 3; i++)
        if (json_text(f->j, keys[i][0], text, sizeof text)) {
            str_list_add(words, keys[i][1]);
            str_list_add(words, text);
        }
    return words->failed ? err_set(err, ERR_NOMEM, "tasks: out of memory") : 0;
}
