/*
 * jobstore.c - what is kept in DIR/jobs. Only whole folders count, so that a kill at any moment
 * leaves either a finished job or one that its next run continues.
 */
#include "reproduce/jobstore.h"

#include "core/fileio.h"
#include "core/hash.h"
#include "core/mem.h"
#include "core/sealed.h"
#include "core/trace.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *job_output_name(enum job_do kind)
{
    static const char *const names[DO_COUNT] = {"prompt.txt",    "trace.h5",      "calib.json",
                                                "records.jsonl", "records.jsonl", "figure.png"};
    return names[kind];
}

static int trace_content(const char *path, char text[40], struct err *err)
{
    struct trace *t = NULL;
    int rc = trace_open(path, &t, err);
    if (!rc)
        snprintf(text, 40, "%s", trace_id(t));
    trace_close(&t);
    return rc;
}

int job_output_id(enum job_do kind, const char *dir, char text[40], struct err *err)
{
    struct buf path = {0}, content = {0};
    int rc = 0;
    text[0] = '\0';
    buf_printf(&path, "%s/%s", dir, job_output_name(kind));
    TRY(buf_check(&path, "path", err));
    if (access(buf_str(&path), R_OK) != 0)
        FAIL(err, ERR_INPUT, "%s is not there; remove the folder %s to make it again",
             buf_str(&path), dir);
    if (kind == DO_CAPTURE) {
        TRY(trace_content(buf_str(&path), text, err));
    } else if (kind == DO_CALIBRATE || kind == DO_PROMPT) {
        TRY(buf_read_file(&content, buf_str(&path), (size_t)1 << 30, err));
        hash_text(hash_bytes(content.data, content.len), text);
    }
out:
    buf_free(&path);
    buf_free(&content);
    return rc;
}

static int take_list(const json_t *doc, const char *key, struct str_list *out)
{
    size_t i;
    json_t *v;
    json_array_foreach(json_object_get(doc, key), i, v) if (json_is_string(v))
        str_list_add(out, json_string_value(v));
    return 0;
}

/* A calibration that is gone, damaged or edited fails what needs it, not the tables that do not. */
static int check_calibration(struct kept_job *j, struct err *err)
{
    struct buf path = {0};
    struct err own = {0};
    json_t *doc = NULL;
    int rc = 0;
    buf_printf(&path, "%s/%s", j->dir, job_output_name(j->kind));
    TRY(buf_check(&path, "path", err));
    rc = seal_json_file(buf_str(&path), (size_t)1 << 30, &doc, &own);
    if (rc == ERR_NOMEM)
        rc = err_set(err, ERR_NOMEM, "%s", own.msg);
    else if (rc) {
        snprintf(j->damage, sizeof j->damage, "%.200s; remove its folder to make it again",
                 own.msg);
        rc = 0;
    }
out:
    json_decref(doc);
    buf_free(&path);
    return rc;
}

static int read_job(struct kept_job *j, struct err *err)
{
    struct buf path = {0};
    json_t *doc = NULL;
    const char *kind, *key;
    int rc = 0, k = 0;

    buf_printf(&path, "%s/job.json", j->dir);
    TRY(buf_check(&path, "path", err));
    TRY(seal_json_file(buf_str(&path), (size_t)64 << 20, &doc, err));
    TRY(jget_str(doc, "do", buf_str(&path), &kind, err));
    TRY(jget_str(doc, "key", buf_str(&path), &key, err));
    TRY(jget_num(doc, "seconds", buf_str(&path), &j->seconds, err));
    while (job_do_names[k] && strcmp(job_do_names[k], kind) != 0)
        k++;
    if (k == DO_COUNT)
        FAIL(err, ERR_INPUT, "%s: do: unknown kind '%s'", buf_str(&path), kind);
    j->kind = (enum job_do)k;
    snprintf(j->key, sizeof j->key, "%s", key);
    take_list(doc, "units", &j->units);
    take_list(doc, "steps", &j->steps);
    take_list(doc, "commands", &j->commands);
    const char *output = json_str_or(doc, "output", "");
    struct buf made = {0};
    buf_printf(&made, "%s/%s", j->dir, job_output_name(j->kind));
    bool gone = j->kind == DO_CAPTURE && output[0] && access(buf_str(&made), F_OK) != 0;
    buf_free(&made);
    if (j->kind == DO_CALIBRATE)
        TRY(check_calibration(j, err));
    if (j->damage[0])
        goto out;
    if (gone)
        snprintf(j->output, sizeof j->output, "%s", output);
    else
        TRY(job_output_id(j->kind, j->dir, j->output, err));
out:
    json_decref(doc);
    buf_free(&path);
    return rc;
}

static void free_job(struct kept_job *j)
{
    free(j->id);
    free(j->dir);
    str_list_free(&j->units);
    str_list_free(&j->steps);
    str_list_free(&j->commands);
}

int job_store_add(struct job_store *s, const char *id, struct err *err)
{
    struct buf dir = {0};
    int rc = 0;
    if (s->n == s->cap) {
        int cap = s->cap ? 2 * s->cap : 64;
        struct kept_job *j = realloc(s->j, (size_t)cap * sizeof *j);
        if (!j)
            return err_set(err, ERR_NOMEM, "jobs: out of memory");
        s->j = j;
        s->cap = cap;
    }
    struct kept_job *j = &s->j[s->n];
    memset(j, 0, sizeof *j);
    buf_printf(&dir, "%s/%s", s->dir, id);
    j->id = strdup(id);
    j->dir = strdup(buf_str(&dir));
    buf_free(&dir);
    if (!j->id || !j->dir)
        rc = err_set(err, ERR_NOMEM, "jobs: out of memory");
    if (!rc)
        rc = read_job(j, err);
    if (rc)
        free_job(j);
    else
        s->n++;
    return rc;
}

/* Finished folders: 16 hexadecimal digits, nothing behind them. */
static int is_finished(const struct dirent *e)
{
    return strlen(e->d_name) == 16 && strspn(e->d_name, "0123456789abcdef") == 16;
}

int job_store_open(const char *dir, struct job_store *s, struct err *err)
{
    struct dirent **names = NULL;
    struct buf path = {0};
    int rc = 0;

    buf_printf(&path, "%s/jobs", dir);
    TRY(buf_check(&path, "path", err));
    s->dir = strdup(buf_str(&path));
    if (!s->dir)
        FAIL(err, ERR_NOMEM, "jobs: out of memory");
    int n = scandir(s->dir, &names, is_finished, alphasort);
    for (int i = 0; i < n; i++) {
        if (!rc)
            rc = job_store_add(s, names[i]->d_name, err);
        free(names[i]);
    }
    free(names);
out:
    buf_free(&path);
    return rc;
}

void job_store_free(struct job_store *s)
{
    for (int i = 0; i < s->n; i++)
        free_job(&s->j[i]);
    free(s->j);
    free(s->dir);
    memset(s, 0, sizeof *s);
}

const struct kept_job *job_store_unit(const struct job_store *s, const char *unit)
{
    for (int i = 0; i < s->n; i++)
        for (int64_t k = 0; k < s->j[i].units.n; k++)
            if (strcmp(s->j[i].units.items[k], unit) == 0)
                return &s->j[i];
    return NULL;
}
