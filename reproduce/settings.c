/*
 * settings.c - cells that hold what a calibration found: a parameter that all heads share, of one
 * calibration or of several side by side.
 */
#include "reproduce/page.h"

#include "core/fileio.h"
#include "core/sealed.h"

#include <math.h>
#include <string.h>

/* The value that all heads have; NAN: they differ, or have none. */
static double shared_value(const json_t *doc, const char *name)
{
    const json_t *heads = json_object_get(doc, "heads");
    size_t i;
    json_t *h;
    double x = NAN;
    json_array_foreach(heads, i, h)
    {
        const json_t *v = json_object_get(h, name);
        if (!json_is_number(v) || (i && json_number_value(v) != x))
            return NAN;
        x = json_number_value(v);
    }
    return x;
}

const json_t *page_setting_rule(const struct recipe *r, const char *name)
{
    size_t i;
    json_t *o;
    json_array_foreach(
        r->ours, i,
        o) if (strcmp(json_str_or(json_object_get(o, "setting"), "name", ""), name) == 0) return o;
    return NULL;
}

const json_t *page_setting_jobs(const struct recipe *r, const char *name)
{
    return json_object_get(json_object_get(page_setting_rule(r, name), "setting"), "jobs");
}

static const struct step *step_of(const struct page *p, int model, int job)
{
    for (int i = 0; i < p->plan->n; i++) {
        const struct step *s = &p->plan->s[i];
        if (s->recipe == p->at && s->model == model && s->job == job)
            return s;
    }
    return NULL;
}

static int read_value(const struct page *p, const struct step *s, const char *name, double *x,
                      struct err *err)
{
    struct buf path = {0};
    json_t *doc = NULL;
    int rc = 0;
    step_output(p->plan, s, &path);
    TRY(buf_check(&path, "path", err));
    TRY(seal_json_file(buf_str(&path), (size_t)1 << 30, &doc, err));
    *x = shared_value(doc, name);
out:
    json_decref(doc);
    buf_free(&path);
    return rc;
}

int page_found(const struct page *p, int model, const char *job, const char *name, double *x,
               const char **reason, struct err *err)
{
    const struct step *s = step_of(p, model, recipe_job_find(p->recipe, job));
    *x = NAN;
    *reason = s && s->reason[0] ? s->reason : "there is no calibration of this";
    if (!s || s->failed || s->left_out || !s->done)
        return 0;
    int rc = read_value(p, s, name, x, err);
    *reason = isfinite(*x) ? NULL : "the calibration has no setting that all heads share";
    return rc;
}

int page_setting(struct page *p, const struct page_block *b, int row, int column,
                 const json_t *rule, const char **reason, struct err *err)
{
    struct page_cell *c = page_cell_at(b, row, column);
    const json_t *what = json_object_get(rule, "setting");
    const char *name = json_str_or(what, "name", "");
    int digits = page_digits(p, b, row, column), rc = 0;
    struct buf text = {0};
    int64_t prompts = 0;
    size_t i;
    json_t *job;

    *reason = NULL;
    json_array_foreach(json_object_get(what, "jobs"), i, job)
    {
        double x;
        TRY(page_found(p, c->model, json_string_value(job), name, &x, reason, err));
        if (*reason)
            goto out;
        const struct step *s =
            step_of(p, c->model, recipe_job_find(p->recipe, json_string_value(job)));
        buf_printf(&text, "%s%.*f", i ? json_str_or(b->j, "sep", " / ") : "", digits, x);
        if (c->n_jobs < 8)
            c->jobs[c->n_jobs++] = s->id;
        c->value[i < CELL_PARTS ? i : 0] = x;
        prompts = s->n_from;
    }
    TRY(buf_check(&text, "cell", err));
    c->ours = text.data;
    text = (struct buf){0};
    c->metric = strdup(name);
    c->job = recipe_job_find(p->recipe, json_str_or(rule, "job", ""));
    c->state = c->printed ? CELL_BESIDE : CELL_OURS;
    c->stats = (struct sample_stats){.value = c->value[0],
                                     .sd = NAN,
                                     .lo = NAN,
                                     .hi = NAN,
                                     .units = prompts,
                                     .calls = (int64_t)i,
                                     .of = OF_CALIBRATION};
    if (!p->plan->models->m[c->model].paper)
        letters_add(c->letters, 'a');
    letters_add(c->letters, 'd'); /* what is searched for, and on what, is ours */
    if (p->quick)
        letters_add(c->letters, 'q');
    for (const char *l = c->letters; *l; l++)
        letters_add(p->letters, *l);
out:
    buf_free(&text);
    return rc;
}
