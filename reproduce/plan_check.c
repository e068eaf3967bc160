/*
 * plan_check.c - what the cells and claims of a recipe are of, before anything runs. The settings
 * of its jobs stand in for their records, with the parameters that records will hold. Refused are
 * conditions that no setting fulfils, conditions that two settings fulfil, whose numbers a mean
 * would mix, and claims that cannot fail.
 */
#include "reproduce/claims.h"

#include "analyze/params.h"
#include "core/mem.h"
#include "core/method_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Stands for the hash of a calibration that is not made yet. */
#define ANY_CALIB "00000000000000000000000000000000"

/* Every setting of every job, as a record without metrics. */
struct settings {
    struct record *r; /* owned */
    struct proof *v;  /* owned, [n] */
    struct page page; /* its evidence are these */
    int64_t n, cap;
};

static void settings_free(struct settings *s)
{
    grid_free(&s->page);
    str_list_free(&s->page.notes);
    for (int64_t i = 0; i < s->n; i++)
        record_free(&s->r[i]);
    free(s->r);
    free(s->v);
}

/* ---- settings of jobs ------------------------------------------------------------------------ */

static int add_setting(struct settings *s, const struct method_run *run, const char *behind,
                       struct err *err)
{
    OWN(buf_free) struct buf params = {0};
    PASS_ON(mem_grow(&s->r, &s->cap, s->n + 1, sizeof *s->r, "settings", err));
    struct record *r = &s->r[s->n++];
    record_init(r);
    r->status = RECORD_OK;
    snprintf(r->method, sizeof r->method, "%s", run->method->name);
    buf_puts(&params, run->canonical);
    if (behind)
        buf_printf(&params, "%scalib=" ANY_CALIB "%s", params.len ? ":" : "", behind);
    PASS_ON(buf_check(&params, "settings", err));
    r->params = params.data ? params.data : strdup("");
    params = (struct buf){0};
    return 0;
}

/* The settings of "method:before:calib=FILE:behind", which is read without its file. */
static int add_method(struct settings *s, const struct plan *p, char *text, struct err *err)
{
    char *calib = strstr(text, ":calib="), *behind = NULL;
    struct method_run *runs = NULL;
    int64_t n = 0;
    int rc = 0;
    if (calib) {
        *calib++ = '\0';
        behind = calib + strcspn(calib, ":@");
    }
    TRY(method_runs_parse(p->app->methods, text, &runs, &n, err));
    for (int64_t i = 0; i < n; i++)
        TRY(add_setting(s, &runs[i], behind, err));
out:
    method_runs_free(runs, n);
    return rc;
}

static int add_step(struct settings *s, const struct plan *p, int step, struct err *err)
{
    OWN(str_list_free) struct str_list texts = {0};
    int64_t first = s->n, cap = first;
    int rc = step_methods(p, &p->s[step], &texts, err);
    for (int64_t i = 0; i < texts.n && !rc; i++) {
        rc = add_method(s, p, texts.items[i], err);
        if (rc)
            err_prefix(err, "%s: job '%s'", buf_str(&p->recipes[p->s[step].recipe].path),
                       step_job(p, &p->s[step])->name);
    }
    if (!rc)
        rc = mem_grow(&s->v, &cap, s->n + 1, sizeof *s->v, "settings", err);
    for (int64_t i = first; i < s->n && !rc; i++)
        s->v[i].step = step;
    return rc;
}

static int settings_of(const struct plan *p, const struct paper_data *d, int recipe,
                       struct settings *s, struct err *err)
{
    s->page = (struct page){.plan = p, .data = d, .at = recipe, .recipe = &p->recipes[recipe]};
    for (const struct step *k = NULL; (k = next_step(p, recipe, k));)
        if (step_has_records(p, k))
            PASS_ON(add_step(s, p, (int)(k - p->s), err));
    for (int64_t i = 0; i < s->n; i++)
        s->v[i].r = &s->r[i];
    s->page.evidence =
        (struct evidence){.plan = p, .recipe = recipe, .v = s->v, .n = s->n, .cap = s->n};
    PASS_ON(grid_make(&s->page, err));
    return page_fill(&s->page, err);
}

/* ---- conditions ------------------------------------------------------------------------------ */

/* Add to `out` the conditions that are of settings: method, parameters, and those of a case. What
 * differs from call to call, and variables, which name no setting, are left out. */
static void take_settings(const struct page *p, int job, const json_t *where, json_t *out)
{
    const json_t *each = job >= 0 ? p->recipe->jobs[job].each : NULL;
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)where, key, v)
    {
        const json_t *c = strcmp(key, "case") == 0 && json_is_string(v)
                              ? json_object_get(p->recipe->cases, json_string_value(v))
                              : NULL;
        if (c)
            take_settings(p, job, c, out);
        else if (strcmp(key, "method") == 0 || strcmp(key, "params") == 0 ||
                 strcmp(key, "calib") == 0 || (params_known(key) && !json_has_text(each, key)))
            json_object_set(out, key, v);
    }
}

/* What the conditions choose. */
struct chosen {
    const struct record *first, *other; /* two settings, or NULL */
    bool jobs;                          /* there are settings to choose from */
};

static struct chosen choose(const struct page *p, int model, int job, const json_t *where)
{
    const struct choice all = {model, job, NULL, NULL}, choice = {model, job, where, NULL};
    struct chosen c = {.jobs = next_proof(&p->evidence, &all, NULL) != NULL};
    for (const struct proof *v = NULL; (v = next_proof(&p->evidence, &choice, v));) {
        c.first = c.first ? c.first : v->r;
        if (strcmp(v->r->method, c.first->method) != 0 ||
            strcmp(v->r->params, c.first->params) != 0)
            c.other = v->r;
    }
    return c;
}

/* Is a condition fulfilled by nothing because its value is a default, which records leave out? */
static const char *default_key(const struct page *p, int model, int job, json_t *where)
{
    const char *key;
    json_t *v;
    json_object_foreach(where, key, v)
    {
        if (!params_known(key) || !json_is_string(v) || !json_string_value(v)[0])
            continue;
        json_t *without = json_copy(where);
        json_object_set_new(without, key, json_string(""));
        bool fits = choose(p, model, job, without).first != NULL;
        json_decref(without);
        if (fits)
            return key;
    }
    return NULL;
}

enum { OR_NONE = 1, OR_SEVERAL = 2 };

/* One setting must fulfil the conditions, or as many as `more` allows. */
static int check_choice(const struct page *p, int model, int job, const json_t *all, unsigned more,
                        struct err *err)
{
    OWN(json_decrefp) json_t *where = json_object();
    const char *name = job >= 0 ? p->recipe->jobs[job].name : "any", *key;
    OWN(free_at) char *text = NULL;
    take_settings(p, job, all, where);
    const struct chosen c = choose(p, model, job, where);
    if (!c.jobs)
        return 0;
    text = json_dumps(where, JSON_SORT_KEYS);
    if (!c.first && (key = default_key(p, model, job, where)))
        return err_set(
            err, ERR_INPUT,
            "no setting of job '%s' fulfils %s: this value of %s is the default, which records "
            "leave out; write \"\"",
            name, text ? text : "", key);
    if (!c.first && !(more & OR_NONE))
        return err_set(err, ERR_INPUT, "no setting of job '%s' fulfils %s", name, text ? text : "");
    if (c.other && !(more & OR_SEVERAL))
        return err_set(
            err, ERR_INPUT,
            "two settings of job '%s' fulfil %s, and a mean would mix them: %s %s and %s %s", name,
            text ? text : "", c.first->method, c.first->params, c.other->method, c.other->params);
    return 0;
}

/* ---- claims ---------------------------------------------------------------------------------- */

/* Does a calibration behind the job read what the job measures, and bound its error? */
static bool bounds_itself(const struct plan *p, const struct step *s)
{
    for (int i = s->n_from; i < s->n_in; i++) {
        const struct step *in = &p->s[s->in[i]];
        const struct recipe_job *j = step_job(p, in);
        const char *text = json_string_value(json_array_get(j->methods, 0));
        if (j->kind != DO_CALIBRATE || !text || !strstr(text, ":l1="))
            continue;
        for (int k = 0; k < in->n_from; k++)
            for (int m = 0; m < s->n_from; m++)
                if (strcmp(p->s[in->in[k]].id, p->s[s->in[m]].id) == 0)
                    return true;
    }
    return false;
}

/* A bound on an error that the calibration keeps on the same inputs. */
static int check_bound(const struct page *p, const struct claim *c, int job, struct err *err)
{
    bool bound = c->kind == CLAIM_WITHIN && c->stat == STAT_MEAN && isfinite(c->h) && c->metric &&
                 strncmp(c->metric, "err_", 4) == 0;
    for (const struct step *s = NULL; bound && (s = next_step(p->plan, p->at, s));)
        if (s->job == job && bounds_itself(p->plan, s))
            return err_set(err, ERR_INPUT,
                           "it holds by construction: '%s' measures the error on the inputs on "
                           "which the calibration bounds it; calibrate on others",
                           p->recipe->jobs[job].name);
    return 0;
}

/* Two members that choose the same records. */
static int check_members(const struct page *p, const struct claim *c, int model,
                         const struct members *all, struct err *err)
{
    bool curve = json_object_get(c->test, "at_equal"), front = c->kind == CLAIM_FRONT;
    for (int i = 0; i < all->n; i++) {
        const struct member *m = &all->m[i];
        PASS_ON(check_choice(p, model, m->job, m->where,
                             front || (curve && i == 0) ? OR_SEVERAL : 0, err));
        PASS_ON(check_bound(p, c, m->job, err));
        for (int k = 0; k < i; k++)
            if (strcmp(all->m[k].metric, m->metric) == 0 && json_equal(all->m[k].where, m->where))
                return err_set(err, ERR_INPUT, "'%s' is compared with itself", m->label);
    }
    return 0;
}

static int check_claim(const struct page *p, const json_t *claim, int model, struct err *err)
{
    struct members *all = NULL;
    struct claim c;
    int rc = 0;
    TRY(mem_zalloc(&all, 1, sizeof *all, "claim", err));
    TRY(claim_read(json_object_get(claim, "test"), &c, err));
    if (c.labels || c.setting)
        goto out;
    TRY(claim_members(p, &c, model, all, err));
    TRY(check_members(p, &c, model, all, err));
out:
    if (all)
        members_free(all);
    free(all);
    return rc;
}

/* ---- a recipe -------------------------------------------------------------------------------- */

static int check_recipe(const struct page *p, struct err *err)
{
    const char *path = buf_str(&p->recipe->path);
    size_t i;
    json_t *claim;
    for (const struct page_cell *c = NULL; (c = next_cell(p, c));)
        if (c->rule && c->metric[0] && c->model >= 0 && c->job >= 0 &&
            !json_object_get(c->rule, "setting") &&
            check_choice(p, c->model, c->job, c->where, OR_NONE, err))
            return err_prefix(err, "%s: ours: '%s', '%s'", path, c->row->path, c->column->path);
    for (int m = 0; m < p->plan->models->n; m++)
        json_array_foreach(p->recipe->claims, i, claim)
        {
            if (page_uses(p, -1, m) && check_claim(p, claim, m, err))
                return err_prefix(err, "%s: claim '%s'", path, json_str_or(claim, "id", ""));
        }
    return 0;
}

int plan_check(const struct plan *p, const struct paper_data *d, struct err *err)
{
    for (int i = 0; i < p->n_recipes; i++) {
        OWN(settings_free) struct settings s = {.n = 0};
        PASS_ON(settings_of(p, d, i, &s, err));
        PASS_ON(check_recipe(&s.page, err));
    }
    return 0;
}
