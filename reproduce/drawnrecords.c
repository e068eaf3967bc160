/*
 * drawnrecords.c - records under the names that a legend shows.
 */
#include "reproduce/drawnrecords.h"

#include "core/fileio.h"
#include "core/method_run.h"
#include "reproduce/evidence.h"

#include <stdint.h>
#include <string.h>

/* The job of the calibration that a method's text names by its folder; NULL: none. */
static const char *calibration_of(const struct plan *p, const struct step *s, const char *text)
{
    for (int i = s->n_from; i < s->n_in; i++) {
        const struct step *in = &p->s[s->in[i]];
        if (step_job(p, in)->kind == DO_CALIBRATE && in->id[0] && strstr(text, in->id))
            return step_job(p, in)->name;
    }
    return NULL;
}

/* Parameters with a calibration, and the name of its job; two lists of equal length. */
struct calibrations {
    struct str_list params, names;
};

static int find_calibrations(const struct plan *p, const struct step *s, struct calibrations *out,
                             struct err *err)
{
    struct str_list texts = {0};
    int rc = 0;
    TRY(step_methods(p, s, &texts, err));
    for (int64_t i = 0; i < texts.n; i++) {
        const char *name = calibration_of(p, s, texts.items[i]);
        struct method_run *runs = NULL;
        int64_t n = 0;
        if (!name)
            continue;
        TRY(method_runs_parse(p->app->methods, texts.items[i], &runs, &n, err));
        for (int64_t k = 0; k < n; k++) {
            str_list_add(&out->params, runs[k].canonical);
            str_list_add(&out->names, name);
        }
        method_runs_free(runs, n);
    }
out:
    str_list_free(&texts);
    return rc;
}

/* A calibration is called as in the recipe, not by the hash of its content. */
static void put_params(const struct calibrations *c, const char *params, struct buf *b)
{
    const char *at = strstr(params, "calib=");
    for (int64_t i = 0; at && i < c->params.n; i++) {
        if (strcmp(c->params.items[i], params) != 0)
            continue;
        buf_printf(b, "%.*s%s%s", (int)(at + 6 - params), params, c->names.items[i],
                   at + 6 + strcspn(at + 6, ":"));
        return;
    }
    buf_puts(b, params);
}

/* The name of a line as in the paper; NULL: the recipe gives none. */
static const char *series_of(const struct plan *p, const struct recipe_job *j, int step,
                             const struct record *r)
{
    const struct evidence e = {.plan = p, .recipe = p->s[step].recipe};
    const struct proof proof = {r, step};
    const char *name;
    json_t *where;
    json_object_foreach((json_t *)j->series, name, where)
    {
        if (evidence_fits(&e, &proof, where))
            return name;
    }
    return NULL;
}

/* The record with the names that the drawing shows; a named bar needs no parameters. */
static void put_record(const struct plan *p, const struct recipe_job *j, int step,
                       const struct calibrations *c, const struct record *r, struct buf *lines)
{
    const char *name = series_of(p, j, step, r);
    struct record shown = *r;
    struct buf params = {0};
    if (name)
        snprintf(shown.method, sizeof shown.method, "%s", name);
    if (!name || strcmp(j->figure, "bars") != 0)
        put_params(c, r->params ? r->params : "", &params);
    shown.params = (char *)(uintptr_t)buf_str(&params);
    record_json(&shown, lines);
    lines->failed |= params.failed;
    buf_free(&params);
}

int drawn_records_write(const struct plan *p, const struct step *s, struct err *err)
{
    struct buf lines = {0}, path = {0};
    int rc = 0;
    buf_printf(&path, "%s.part", s->id);
    TRY(buf_check(&path, "path", err));
    TRY(make_dirs(buf_str(&path), err));
    buf_puts(&path, "/drawn.jsonl");
    for (int i = 0; i < s->n_from && !rc; i++) {
        const struct step *in = &p->s[s->in[i]];
        struct calibrations c = {{0}, {0}};
        struct record *r = NULL;
        int64_t n = 0;
        rc = find_calibrations(p, in, &c, err);
        if (!rc)
            rc = records_load(in->id, &r, &n, err);
        for (int64_t m = 0; m < n && !rc; m++)
            put_record(p, step_job(p, s), s->in[i], &c, &r[m], &lines);
        records_free(r, n);
        str_list_free(&c.params);
        str_list_free(&c.names);
    }
    if (rc)
        goto out;
    TRY(buf_check(&lines, "records", err));
    TRY(buf_check(&path, "path", err));
    TRY(file_write_atomic(buf_str(&path), lines.data, lines.len, err));
out:
    buf_free(&lines);
    buf_free(&path);
    return rc;
}
