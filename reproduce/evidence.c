/*
 * evidence.c - records of a page's jobs, and conditions on them.
 */
#include "reproduce/evidence.h"

#include "analyze/params.h"
#include "core/mem.h"

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading --------------------------------------------------------------------------------- */

/* The records of a job, which several steps may share; at: its index in e->sets. */
static int load_job(struct evidence *e, const char *id, int *at, struct err *err)
{
    for (*at = 0; *at < e->n_sets; ++*at)
        if (strcmp(e->sets[*at].id, id) == 0)
            return 0;
    int rc = mem_grow(&e->sets, &e->cap_sets, e->n_sets + 1, sizeof *e->sets, "records", err);
    if (rc)
        return rc;
    struct record_set *set = &e->sets[*at];
    *set = (struct record_set){.id = id};
    e->n_sets++;
    return records_load(id, &set->r, &set->n, err);
}

int evidence_load(const struct plan *p, int recipe, struct evidence *e, struct err *err)
{
    int rc = 0, at;
    e->plan = p;
    e->recipe = recipe;
    for (int i = 0; i < p->n; i++) {
        const struct step *s = &p->s[i];
        enum job_do kind = step_job(p, s)->kind;
        if (s->recipe != recipe || !s->done || (kind != DO_REPLAY && kind != DO_EVAL))
            continue;
        TRY(load_job(e, s->id, &at, err));
        for (int64_t k = 0; k < e->sets[at].n; k++) {
            TRY(mem_grow(&e->v, &e->cap, e->n + 1, sizeof *e->v, "records", err));
            e->v[e->n++] = (struct proof){&e->sets[at].r[k], i};
        }
    }
out:
    return rc;
}

void evidence_free(struct evidence *e)
{
    for (int i = 0; i < e->n_sets; i++)
        records_free(e->sets[i].r, e->sets[i].n);
    free(e->sets);
    free(e->v);
    memset(e, 0, sizeof *e);
}

/* ---- conditions ------------------------------------------------------------------------------ */

bool evidence_key(const struct evidence *e, const struct proof *p, const char *key, char *text,
                  size_t size)
{
    const struct record *r = p->r;
    const struct {
        const char *key, *text;
    } texts[] = {{"method", r->method},  {"params", r->params}, {"permute", r->permute},
                 {"trace", r->trace},    {"branch", r->branch}, {"task", r->task},
                 {"setting", r->setting}};
    const struct {
        const char *key;
        int64_t number;
    } numbers[] = {{"layer", r->layer}, {"head", r->head}, {"step", r->step}, {"n_q", r->n_q}};
    const char *value = step_value(&e->plan->s[p->step], key);
    for (size_t i = 0; i < sizeof texts / sizeof *texts && !value; i++)
        if (strcmp(texts[i].key, key) == 0)
            value = texts[i].text ? texts[i].text : "";
    if (value)
        snprintf(text, size, "%s", value);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && !value; i++)
        if (strcmp(numbers[i].key, key) == 0) {
            snprintf(text, size, "%lld", (long long)numbers[i].number);
            return true;
        }
    return value != NULL;
}

static bool value_fits(const char *key, const char *have, const json_t *want)
{
    char text[256];
    double a = size_value(have), b;
    if (json_is_string(want))
        snprintf(text, sizeof text, "%s", json_string_value(want));
    else if (json_is_number(want))
        num_text(json_number_value(want), text);
    else
        return false;
    if (strcmp(key, "permute") == 0 && strcmp(text, "row") == 0)
        snprintf(text, sizeof text, "none");
    b = size_value(text);
    if (isfinite(a) && isfinite(b)) {
        bool length = strcmp(key, "n") == 0 || strcmp(key, "n_q") == 0;
        return fabs(a - b) <= (length ? 0.02 * b : 1e-9 * fabs(b));
    }
    return fnmatch(text, have, 0) == 0;
}

bool evidence_fits(const struct evidence *e, const struct proof *p, const json_t *where)
{
    const struct recipe *r = &e->plan->recipes[e->recipe];
    const char *key;
    json_t *want;
    char have[1024];
    json_object_foreach((json_t *)where, key, want)
    {
        if (strcmp(key, "case") == 0) {
            const json_t *c = json_object_get(r->cases, json_string_value(want));
            if (!c || !evidence_fits(e, p, c))
                return false;
            continue;
        }
        const char *param = params_value(p->r->params, key);
        have[0] = '\0';
        if (!evidence_key(e, p, key, have, sizeof have) && param)
            snprintf(have, sizeof have, "%.*s", (int)params_value_len(param), param);
        if (!value_fits(key, have, want))
            return false;
    }
    return true;
}

/* ---- pairs of calls -------------------------------------------------------------------------- */

static bool same_call(const struct record *a, const struct record *b)
{
    return a->layer == b->layer && a->head == b->head && a->step == b->step &&
           strcmp(a->branch, b->branch) == 0 && strcmp(a->trace, b->trace) == 0 &&
           strcmp(a->permute, b->permute) == 0;
}

/* pairs {"cases": [A, B], "metric": M, "above": x}: is |M of A - M of B| of this call above x? */
static bool pair_takes(const struct evidence *e, const json_t *pairs, const struct proof *p)
{
    const json_t *cases = json_object_get(pairs, "cases");
    const char *metric = json_str_or(pairs, "metric", "");
    double x[2] = {NAN, NAN};
    for (int64_t i = 0; i < e->n; i++)
        for (size_t k = 0; k < 2; k++) {
            const json_t *c = json_object_get(e->plan->recipes[e->recipe].cases,
                                              json_string_value(json_array_get(cases, k)));
            if (same_call(e->v[i].r, p->r) && c && evidence_fits(e, &e->v[i], c))
                x[k] = record_get(e->v[i].r, metric);
        }
    return fabs(x[0] - x[1]) > json_number_value(json_object_get(pairs, "above"));
}

bool choice_takes(const struct evidence *e, const struct choice *c, const struct proof *p)
{
    const struct step *s = &e->plan->s[p->step];
    return p->r->status == RECORD_OK && (c->model < 0 || s->model == c->model) &&
           (c->job < 0 || s->job == c->job) && (!c->where || evidence_fits(e, p, c->where)) &&
           (!c->pairs || pair_takes(e, c->pairs, p));
}
