/*
 * results.c - what a run left, held against what the undisturbed run left.
 */
#include "tests/fault/fault.h"
#include "core/mem.h"

#include <dirent.h>
#include <fnmatch.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char why[8192];

static const char *differs(const char *fmt, const char *a, const char *b)
{
    snprintf(why, sizeof why, fmt, a, b);
    return why;
}

/* ---- files of JSON --------------------------------------------------------------------------- */

/* What may differ between two runs that did the same. */
static bool is_of_the_run(const char *key)
{
    static const char *const keys[] = {"start",   "end",         "elapsed_s", "peak_memory_bytes",
                                       "history", "host",        "cpu",       "sum",
                                       "pid",     "cells_before"};
    size_t n = strlen(key);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(key, keys[i]) == 0)
            return true;
    return n > 3 && strcmp(key + n - 3, "_ns") == 0;
}

static json_t *without_run(const char *text, size_t len, const char *path)
{
    const char *key;
    json_t *v, *plain = json_object(), *o = json_loadb(text, len, 0, NULL);
    if (!json_is_object(o))
        give_up("%s: a result that is no JSON object", path);
    json_object_foreach(o, key, v)
    {
        if (!is_of_the_run(key))
            json_object_set(plain, key, v);
    }
    json_decref(o);
    return plain;
}

/* Members that make a record's cell. */
static char *cell_of(const json_t *record)
{
    static const char *const keys[] = {
        "trace", "run",     "step",      "branch",  "layer", "head",    "method", "params",
        "seed",  "backend", "precision", "permute", "scope", "weights", "task",   "setting"};
    const char *key = json_string_value(json_object_get(record, "key"));
    if (key) /* of a prediction */
        return strdup(key);
    OWN(json_decrefp) json_t *cell = json_array();
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        json_array_append(cell, json_object_get(record, keys[i]));
    return json_dumps(cell, JSON_COMPACT);
}

/* Records by cell; the last line of a cell counts. A cell that was done twice is an error, one
 * that failed at first is none. */
static json_t *read_records(const char *path, bool *doubled)
{
    OWN(buf_free) struct buf b = {0};
    json_t *all = json_object();
    read_whole(path, &b);
    for (char *line = b.data, *end; line && (end = strchr(line, '\n')); line = end + 1) {
        json_t *r = without_run(line, (size_t)(end - line), path);
        OWN(free_at) char *cell = cell_of(r);
        const json_t *before = json_object_get(all, cell);
        const char *status = json_string_value(json_object_get(before, "status"));
        if (before && status && strcmp(status, "error") != 0)
            *doubled = true;
        json_object_set_new(all, cell, r);
    }
    return all;
}

static const char *compare_records(const char *want, const char *got)
{
    bool doubled = false;
    json_t *a = read_records(want, &doubled), *b = read_records(got, &doubled);
    const char *diff = "";
    if (doubled)
        diff = differs("%s: a cell is there twice%s", got, "");
    else if (json_object_size(a) != json_object_size(b))
        diff = differs("%s: a record is missing%s", got, "");
    else if (!json_equal(a, b))
        diff = differs("%s: records differ from %s", got, want);
    json_decref(a);
    json_decref(b);
    return diff;
}

/* The same with a page that shows manifests, whose members stand on lines of their own; of an array
 * the end stands alone, as deep as the key. */
static void lines_without_run(struct buf *b)
{
    struct buf kept = {0};
    size_t deep = 0; /* of the array that is left out */
    for (char *line = b->data, *end; line && (end = strchr(line, '\n')); line = end + 1) {
        char key[64];
        size_t depth = strspn(line, " ");
        bool of_run = sscanf(line, " &quot;%63[a-z_]&quot;:", key) == 1 && is_of_the_run(key);
        if (!deep && !of_run)
            buf_put(&kept, line, (size_t)(end + 1 - line));
        if (!deep && of_run && end[-1] == '[')
            deep = depth;
        else if (depth == deep && line[depth] == ']')
            deep = 0;
    }
    buf_free(b);
    *b = kept;
}

static const char *compare_bytes(const char *want, const char *got)
{
    OWN(buf_free) struct buf a = {0}, b = {0};
    read_whole(want, &a);
    read_whole(got, &b);
    if (fnmatch("*.html", want, 0) == 0) {
        lines_without_run(&a);
        lines_without_run(&b);
    }
    bool same = a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
    if (!same && fnmatch("*manifest.json", want, 0) == 0) {
        json_t *x = without_run(a.data, a.len, want), *y = without_run(b.data, b.len, got);
        same = json_equal(x, y);
        json_decref(x);
        json_decref(y);
    }
    return same ? "" : differs("%s differs from %s", got, want);
}

/* ---- trees ----------------------------------------------------------------------------------- */

static const char *compare(const char *want, const char *got);

/* A repair that is done again keeps the damaged file once more; logs, and what was left to do, tell
 * of each time. */
static int visible(const struct dirent *e)
{
    static const char *const others[] = {".*", "*.damaged.*", "log.txt", "make.log", "Makefile"};
    bool seen = true;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        seen &= fnmatch(others[i], e->d_name, 0) != 0;
    return seen;
}

/* The same names, and below them the same content. */
static const char *compare_directories(const char *want, const char *got)
{
    struct dirent **a = NULL, **b = NULL;
    int n = scandir(want, &a, visible, alphasort), m = scandir(got, &b, visible, alphasort);
    const char *diff = "";
    for (int i = 0; !*diff && (i < n || i < m); i++) {
        char x[2048], y[2048];
        int order = i >= n ? 1 : i >= m ? -1 : strcmp(a[i]->d_name, b[i]->d_name);
        if (order != 0) {
            diff = order < 0 ? differs("%s: %s is missing", got, a[i]->d_name)
                             : differs("%s: %s is left there", got, b[i]->d_name);
            break;
        }
        snprintf(x, sizeof x, "%s/%s", want, a[i]->d_name);
        snprintf(y, sizeof y, "%s/%s", got, b[i]->d_name);
        diff = compare(x, y);
    }
    for (int i = 0; i < n; i++)
        free(a[i]);
    for (int i = 0; i < m; i++)
        free(b[i]);
    free(a);
    free(b);
    return diff;
}

static const char *compare(const char *want, const char *got)
{
    struct stat a, b;
    if (stat(want, &a) != 0)
        give_up("%s: not there", want);
    if (stat(got, &b) != 0)
        return differs("%s is missing%s", got, "");
    if (S_ISDIR(a.st_mode))
        return compare_directories(want, got);
    return fnmatch("*.jsonl", want, 0) == 0 ? compare_records(want, got) : compare_bytes(want, got);
}

const char *results_differ(const struct step *s, const char *dir)
{
    char ref[64];
    struct dirent **names = NULL;
    const char *diff = "";
    snprintf(ref, sizeof ref, "ref-%s", s->name);
    for (int i = 0; i < STEP_FILES && s->out[i] && !*diff; i++)
        diff = compare(trial_path(ref, s->out[i]), trial_path(dir, s->out[i]));
    int n = scandir(trial_path(dir, ""), &names, visible, NULL);
    for (int i = 0; i < n; i++) {
        if (!*diff && fnmatch("*.part", names[i]->d_name, 0) == 0)
            diff = differs("%s is left in %s", names[i]->d_name, dir);
        free(names[i]);
    }
    free(names);
    return diff;
}

/* A directory is made file by file, and records grow: both may be there in part. */
const char *results_torn(const struct step *s, const char *dir)
{
    char ref[64];
    struct stat st;
    const char *diff = "";
    snprintf(ref, sizeof ref, "ref-%s", s->name);
    for (int i = 0; i < STEP_FILES && s->out[i] && !*diff; i++) {
        const char *got = trial_path(dir, s->out[i]);
        if (stat(got, &st) == 0 && S_ISREG(st.st_mode))
            diff = compare(trial_path(ref, s->out[i]), got);
    }
    return diff;
}

/* ---- recovery -------------------------------------------------------------------------------- */

/* Do what the message says. False: it says nothing that is known here. */
static bool follow_advice(const char *message, const char *dir)
{
    char name[256], words[300];
    struct outcome o;
    const char *at;
    if ((at = strstr(message, "`lacuna records repair ")) &&
        sscanf(at, "`lacuna records repair %255[^`]", name) == 1) {
        snprintf(words, sizeof words, "records repair -q %s", name);
        run_words(words, dir, (struct fault){0}, NULL, &o);
        snprintf(words, sizeof words, "%s.damaged", name);
        return o.code == 0 ? remove(trial_path(dir, words)) == 0
                           : strstr(o.err, "remove the file") && !remove(trial_path(dir, name));
    }
    if (strstr(message, "move it away to go on") &&
        sscanf(message, "%*[^:]: %*[^:]: %*[^:]: %255[^:]", name) == 1)
        return remove(trial_path(dir, name)) == 0;
    /* A result that was renamed but not synced: it is whole (results_torn), and is made again. */
    if ((at = strstr(message, " exists; "))) {
        const char *begin = at;
        while (begin > message && begin[-1] != ' ')
            begin--;
        snprintf(name, sizeof name, "%.*s", (int)(at - begin), begin);
        return remove(trial_path(dir, name)) == 0;
    }
    return false;
}

const char *recover(const struct step *s, const char *dir, bool *refused)
{
    struct outcome o;
    *refused = false;
    for (int i = 0; i < 4; i++) {
        run_words(s->words, dir, (struct fault){0}, NULL, &o);
        if (o.code == 0)
            return results_differ(s, dir);
        if (o.code > 5 || !follow_advice(o.err, dir))
            break;
        *refused = true;
    }
    return differs("cannot go on: %s%s", o.err, "");
}
