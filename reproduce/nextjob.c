/*
 * nextjob.c - the next job with its commands. Steps that wait for the same thing are merged here.
 */
#include "reproduce/jobplan.h"
#include "reproduce/schedule.h"

#include "core/fileio.h"
#include "core/hash.h"
#include "core/record.h"
#include "reproduce/evidence.h"

#include <stdlib.h>
#include <string.h>

#define LONG_JOB 60 /* seconds */

void job_free(struct job *j)
{
    for (int i = 0; i < 2; i++)
        str_list_free(&j->argv[i]);
    str_list_free(&j->units);
    str_list_free(&j->steps);
    memset(j, 0, sizeof *j);
}

/* Another step that the same job would serve. */
static bool joins(const struct plan *p, const struct step *s, const struct job *j)
{
    return step_job(p, s)->kind == j->kind && strcmp(s->key, j->key) == 0;
}

static void add_once(struct str_list *l, const char *text)
{
    if (!str_list_has(l, text))
        str_list_add(l, text);
}

/* "xxh3:0123..." to a folder's name of 16 digits. */
static void job_id(struct job *j, const struct str_list *more)
{
    struct buf b = {0};
    char text[40];
    buf_puts(&b, j->key);
    for (int64_t i = 0; more && i < more->n; i++)
        buf_printf(&b, ",%s", more->items[i]);
    hash_text(hash_bytes(buf_str(&b), b.len), text);
    snprintf(j->id, sizeof j->id, "%.16s", strchr(text, ':') + 1);
    buf_free(&b);
}

static void add_all(struct str_list *to, const struct str_list *from)
{
    for (int64_t i = 0; i < from->n; i++)
        str_list_add(to, from->items[i]);
}

/* ---- captures -------------------------------------------------------------------------------- */

static int by_number(const void *a, const void *b)
{
    long x = atol(*(char *const *)a), y = atol(*(char *const *)b);
    return (x > y) - (x < y);
}

/* Does a method that carries state from step to step read this sample? Its calls must lie in one
 * file. The methods of a replay are parsed when its inputs are finished, so their names decide. */
static bool wants_one_file(const struct plan *p, int capture)
{
    for (int i = 0; i < p->n; i++) {
        const struct step *s = &p->s[i];
        bool reads = false;
        size_t k;
        json_t *v;
        for (int n = 0; n < s->n_from; n++)
            reads = reads || s->in[n] == capture;
        if (!reads || step_job(p, s)->kind != DO_REPLAY)
            continue;
        json_array_foreach(step_job(p, s)->methods, k, v)
        {
            const char *text = json_string_value(v);
            for (const struct method *const *m = p->app->methods; *m; m++) {
                size_t len = strlen((*m)->name);
                if ((*m)->flags & METHOD_NEEDS_STEPS && strncmp(text, (*m)->name, len) == 0 &&
                    strchr(":@", text[len]))
                    return true;
            }
        }
    }
    return false;
}

/* The steps of the sample that no kept capture has; all of them where one file must hold them. */
static int capture_steps(struct plan *p, struct job *j, int *maps)
{
    bool whole = false;
    *maps = -1;
    for (int i = 0; i < p->n; i++) {
        const struct step *s = &p->s[i];
        if (!joins(p, s, j))
            continue;
        for (int64_t k = 0; k < s->wanted.n; k++)
            add_once(&j->steps, s->wanted.items[k]);
        *maps = s->maps > *maps ? s->maps : *maps;
        whole = whole || wants_one_file(p, i);
    }
    for (int i = 0; i < p->store->n && !whole; i++) {
        const struct kept_job *k = &p->store->j[i];
        for (int64_t n = 0; k->kind == DO_CAPTURE && strcmp(k->key, j->key) == 0 && n < j->steps.n;)
            if (str_list_has(&k->steps, j->steps.items[n])) {
                free(j->steps.items[n]);
                memmove(&j->steps.items[n], &j->steps.items[n + 1],
                        (size_t)(--j->steps.n - n) * sizeof *j->steps.items);
            } else {
                n++;
            }
    }
    if (j->steps.n)
        qsort(j->steps.items, (size_t)j->steps.n, sizeof *j->steps.items, by_number);
    return 0;
}

static void capture_job(struct plan *p, const struct step *s, struct job *j)
{
    const struct model_use *m = &p->models->m[s->model];
    struct str_list *a = &j->argv[0];
    char maps_text[16];
    struct buf steps = {0};
    int maps;

    capture_steps(p, j, &maps);
    job_id(j, &j->steps);
    str_list_add(a, "capture");
    str_list_add(a, "--model");
    str_list_add(a, m->dir);
    add_all(a, &s->words);
    for (int64_t i = 0; i < j->steps.n; i++)
        buf_printf(&steps, "%s%s", i ? "," : "", j->steps.items[i]);
    if (steps.len) {
        str_list_add(a, "--capture-steps");
        str_list_add(a, buf_str(&steps));
    }
    buf_free(&steps);
    if (maps >= 0) {
        snprintf(maps_text, sizeof maps_text, "%d", maps);
        str_list_add(a, "--maps");
        str_list_add(a, maps_text);
    }
    if (p->cuda) {
        str_list_add(a, "--device");
        str_list_add(a, "cuda");
    }
    str_list_add(a, "-o");
    str_list_add(a, "{}/trace.h5");
    str_list_add(&j->argv[1], "trace");
    str_list_add(&j->argv[1], "verify");
    str_list_add(&j->argv[1], "{}/trace.h5");
    j->n_argv = 2;
}

/* ---- other kinds ------------------------------------------------------------------------------
 */

static void prompt_job(struct plan *p, const struct step *s, struct job *j)
{
    struct str_list *a = &j->argv[0];
    job_id(j, NULL);
    str_list_add(a, "prompt");
    add_all(a, &s->words);
    if (s->model >= 0) {
        str_list_add(a, "--model");
        str_list_add(a, p->models->m[s->model].dir);
    }
    str_list_add(a, "-o");
    str_list_add(a, "{}/prompt.txt");
}

static void calibrate_job(const struct plan *p, const struct step *s, struct job *j)
{
    struct str_list *a = &j->argv[0];
    job_id(j, NULL);
    str_list_add(a, "calibrate");
    add_all(a, &s->texts);
    add_all(a, &s->inputs);
    add_all(a, &s->words);
    if (p->cuda) {
        str_list_add(a, "--backend");
        str_list_add(a, "cuda");
    }
    str_list_add(a, "-o");
    str_list_add(a, "{}/calib.json");
}

/* Settings that one of several jobs of a step takes: a long step is worked on by several jobs side
 * by side, unless its settings leave files of one run. */
static int64_t settings_of_job(const struct plan *p, const struct step *s, const struct job *j)
{
    if (p->at_once == 1 || j->timed || strstr(step_job(p, s)->args, "{out}") || s->alone < LONG_JOB)
        return INT64_MAX;
    return 1 + (int64_t)(s->n_units * LONG_JOB / s->alone);
}

/* Texts of methods are taken whole. */
static void add_units(const struct plan *p, const struct step *t, struct job *j,
                      struct str_list *texts)
{
    int64_t most = settings_of_job(p, t, j);
    for (int k = 0; k < t->n_units; k++) {
        const struct step_unit *u = &t->units[k];
        bool more = j->units.n >= most && !str_list_has(texts, u->text);
        if (u->kept >= 0 || (u->later && !j->timed) || plan_runs(p, u->id) || more)
            continue;
        add_once(texts, u->text);
        add_once(&j->units, u->id);
        if (j->timed)
            add_once(&j->units, u->any);
    }
}

/* All methods that some step wants on the same traces with the same words. Side by side every step
 * has a job of its own, and those that want times one for all of them. */
static void records_job(struct plan *p, const struct step *s, struct job *j)
{
    struct str_list *a = &j->argv[0], texts = {0};
    j->timed = step_timed(p, s);
    for (int i = 0; i < p->n; i++) {
        const struct step *t = &p->s[i];
        bool with = t == s || j->timed || p->at_once == 1;
        if (with && joins(p, t, j) && step_timed(p, t) == j->timed && step_waits(p, t))
            add_units(p, t, j, &texts);
    }
    job_id(j, &j->units);
    str_list_add(a, job_do_commands[j->kind]);
    if (j->kind == DO_EVAL) {
        str_list_add(a, "--model");
        str_list_add(a, p->models->m[s->model].dir);
    }
    add_all(a, &s->inputs);
    for (int64_t i = 0; i < texts.n; i++) {
        str_list_add(a, "-m");
        str_list_add(a, texts.items[i]);
    }
    if (s->task) {
        str_list_add(a, "--task");
        str_list_add(a, s->task->path);
    }
    add_all(a, &s->words);
    if (p->cuda) {
        str_list_add(a, j->kind == DO_EVAL ? "--device" : "--backend");
        str_list_add(a, "cuda");
    }
    if (p->cuda && j->kind == DO_REPLAY && !j->timed) {
        str_list_add(a, "--samples");
        str_list_add(a, "0");
    }
    str_list_add(a, "-o");
    str_list_add(a, "{}");
    str_list_free(&texts);
}

/* Is the drawing made of records, and not of traces? */
static bool has_records(const struct plan *p, const struct step *s)
{
    enum job_do kind = s->n_from ? step_job(p, &p->s[s->in[0]])->kind : DO_DRAW;
    return kind == DO_REPLAY || kind == DO_EVAL;
}

static void draw_job(struct plan *p, const struct step *s, struct job *j)
{
    static const char *const outputs[] = {"{}/figure.png", "{}/figure.pdf"};
    char records[32];
    job_id(j, NULL);
    snprintf(records, sizeof records, "%s.jsonl", j->id);
    for (int i = 0; i < 2; i++) {
        struct str_list *a = &j->argv[i];
        str_list_add(a, "plot");
        str_list_add(a, step_job(p, s)->figure);
        if (has_records(p, s))
            str_list_add(a, records);
        else
            add_all(a, &s->inputs);
        add_all(a, &s->words);
        if (step_job(p, s)->marks.len) {
            str_list_add(a, "--marks");
            str_list_add(a, buf_str(&step_job(p, s)->marks));
        }
        str_list_add(a, "--style");
        str_list_add(a, p->style);
        str_list_add(a, "-o");
        str_list_add(a, outputs[i]);
    }
    j->n_argv = 2;
}

/* Does the record belong to a unit of the step? */
static bool is_of(const struct step *s, const struct record *r)
{
    for (int i = 0; i < s->n_units; i++)
        if (strcmp(r->method, s->units[i].method) == 0 &&
            strcmp(r->params ? r->params : "", s->units[i].params) == 0)
            return true;
    return false;
}

/* In a legend a calibration is called as in the recipe, not by the hash of its content. */
static void name_calibration(const struct plan *p, const struct step *s, struct record *r)
{
    char *at = r->params ? strstr(r->params, "calib=") : NULL;
    size_t len = at ? strcspn(at + 6, ":") : 0;
    for (int i = s->n_from; at && i < s->n_in; i++) {
        const struct recipe_job *j = step_job(p, &p->s[s->in[i]]);
        const char *text = NULL;
        for (int k = 0; k < s->n_units; k++)
            if (strcmp(r->params, s->units[k].params) == 0)
                text = s->units[k].text;
        struct buf path = {0};
        struct err ignored = {0};
        bool own = j->kind == DO_CALIBRATE && text &&
                   step_output(p, &p->s[s->in[i]], &path, &ignored) == 0 &&
                   strstr(text, buf_str(&path));
        buf_free(&path);
        if (!own || strlen(j->name) > len)
            continue;
        memcpy(at + 6, j->name, strlen(j->name));
        memmove(at + 6 + strlen(j->name), at + 6 + len, strlen(at + 6 + len) + 1);
        return;
    }
}

/* The name of a line as in the paper, in place of the method's; a bar needs no parameters then. */
static void name_series(const struct plan *p, const struct recipe_job *j, int step,
                        struct record *r)
{
    const json_t *series = j->series;
    const struct evidence e = {.plan = p, .recipe = p->s[step].recipe};
    const struct proof proof = {r, step};
    const char *name;
    json_t *where;
    json_object_foreach((json_t *)series, name, where)
    {
        if (!evidence_fits(&e, &proof, where))
            continue;
        snprintf(r->method, sizeof r->method, "%s", name);
        if (r->params && strcmp(j->figure, "bars") == 0)
            r->params[0] = '\0';
        return;
    }
}

/* A folder of records may hold those of other tables, which a figure must not show. */
int job_records(const struct plan *p, const struct job *j, struct err *err)
{
    const struct step *s = &p->s[j->first];
    struct buf lines = {0}, path = {0};
    int rc = 0;
    if (j->kind != DO_DRAW || !has_records(p, s))
        return 0;
    for (int i = 0; i < s->n_from; i++) {
        const struct step *in = &p->s[s->in[i]];
        for (int k = 0; k < in->n_kept; k++) {
            struct record *r = NULL;
            int64_t n = 0;
            TRY(records_load(p->store->j[in->kept[k]].dir, &r, &n, err));
            for (int64_t m = 0; m < n; m++)
                if (is_of(in, &r[m])) {
                    name_series(p, step_job(p, s), s->in[i], &r[m]);
                    name_calibration(p, in, &r[m]);
                    record_json(&r[m], &lines);
                }
            records_free(r, n);
        }
    }
    buf_printf(&path, "%s.jsonl", j->id);
    TRY(buf_check(&lines, "records", err));
    TRY(buf_check(&path, "path", err));
    TRY(file_write_atomic(buf_str(&path), lines.data, lines.len, err));
out:
    buf_free(&lines);
    buf_free(&path);
    return rc;
}

int plan_next(struct plan *p, struct job *j, bool *found, struct err *err)
{
    int at = plan_choose(p);
    memset(j, 0, sizeof *j);
    *found = at >= 0;
    if (at < 0)
        return 0;
    const struct step *s = &p->s[at];
    j->first = at;
    j->kind = step_job(p, s)->kind;
    j->n_argv = 1;
    snprintf(j->key, sizeof j->key, "%s", s->key);
    if (j->kind == DO_CAPTURE)
        capture_job(p, s, j);
    else if (j->kind == DO_PROMPT)
        prompt_job(p, s, j);
    else if (j->kind == DO_CALIBRATE)
        calibrate_job(p, s, j);
    else if (j->kind == DO_DRAW)
        draw_job(p, s, j);
    else
        records_job(p, s, j);
    if (j->argv[0].failed || j->argv[1].failed || j->units.failed || j->steps.failed)
        return err_set(err, ERR_NOMEM, "plan: out of memory");
    return 0;
}

/* Of records another step's units may be in another job. */
static bool asks_for(const struct step *s, const struct job *j)
{
    for (int i = 0; i < s->n_units; i++)
        if (str_list_has(&j->units, s->units[i].id))
            return true;
    return s->n_units == 0;
}

void plan_fail(struct plan *p, const struct job *j, const char *why)
{
    for (int i = 0; i < p->n; i++)
        if (joins(p, &p->s[i], j) && !p->s[i].done && asks_for(&p->s[i], j)) {
            p->s[i].failed = true;
            snprintf(p->s[i].reason, sizeof p->s[i].reason, "%s", why);
        }
}
