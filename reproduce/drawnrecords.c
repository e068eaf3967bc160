/*
 * drawnrecords.c - records under the names that a legend shows.
 */
#include "reproduce/drawnrecords.h"

#include "core/fileio.h"
#include "reproduce/evidence.h"

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

/* A calibration is called as in the recipe, not by the hash of its content. */
static void name_calibration(struct record *r, const char *name)
{
    char *at = r->params ? strstr(r->params, "calib=") : NULL;
    size_t len = at ? strcspn(at + 6, ":") : 0, n = strlen(name);
    if (!at || n > len)
        return;
    memcpy(at + 6, name, n);
    memmove(at + 6 + n, at + 6 + len, strlen(at + 6 + len) + 1);
}

static int name_calibrations(const struct plan *p, const struct step *s, struct record *r,
                             int64_t n, struct err *err)
{
    struct str_list texts = {0};
    int rc = 0;
    TRY(step_methods(p, s, &texts, err));
    for (int64_t i = 0; i < texts.n; i++) {
        const char *name = calibration_of(p, s, texts.items[i]);
        struct method_run *runs = NULL;
        int64_t n_runs = 0;
        if (!name)
            continue;
        TRY(method_runs_parse(p->app->methods, texts.items[i], &runs, &n_runs, err));
        for (int64_t k = 0; k < n_runs; k++)
            for (int64_t m = 0; m < n; m++)
                if (r[m].params && strcmp(r[m].params, runs[k].canonical) == 0)
                    name_calibration(&r[m], name);
        method_runs_free(runs, n_runs);
    }
out:
    str_list_free(&texts);
    return rc;
}

/* The name of a line as in the paper, in place of the method's; a bar needs no parameters then. */
static void name_series(const struct plan *p, const struct recipe_job *j, int step,
                        struct record *r)
{
    const struct evidence e = {.plan = p, .recipe = p->s[step].recipe};
    const struct proof proof = {r, step};
    const char *name;
    json_t *where;
    json_object_foreach((json_t *)j->series, name, where)
    {
        if (!evidence_fits(&e, &proof, where))
            continue;
        snprintf(r->method, sizeof r->method, "%s", name);
        if (r->params && strcmp(j->figure, "bars") == 0)
            r->params[0] = '\0';
        return;
    }
}

int drawn_records_write(const struct plan *p, const struct step *s, struct err *err)
{
    struct buf lines = {0}, path = {0};
    int rc = 0;
    buf_printf(&path, "%s.part", s->id);
    TRY(buf_check(&path, "path", err));
    TRY(make_dirs(buf_str(&path), err));
    buf_puts(&path, "/drawn.jsonl");
    for (int i = 0; i < s->n_from; i++) {
        const struct step *in = &p->s[s->in[i]];
        struct record *r = NULL;
        int64_t n = 0;
        TRY(records_load(in->id, &r, &n, err));
        for (int64_t m = 0; m < n; m++)
            name_series(p, step_job(p, s), s->in[i], &r[m]);
        rc = name_calibrations(p, in, r, n, err);
        for (int64_t m = 0; m < n && !rc; m++)
            record_json(&r[m], &lines);
        records_free(r, n);
        if (rc)
            goto out;
    }
    TRY(buf_check(&lines, "records", err));
    TRY(buf_check(&path, "path", err));
    TRY(file_write_atomic(buf_str(&path), lines.data, lines.len, err));
out:
    buf_free(&lines);
    buf_free(&path);
    return rc;
}
