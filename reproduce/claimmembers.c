/*
 * claimmembers.c - the members of a claim for one model, with a number for each unit.
 */
#include "reproduce/claims.h"

#include "analyze/stats.h"
#include "core/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void members_free(struct members *m)
{
    for (int i = 0; i < m->n; i++) {
        json_decref(m->m[i].where);
        unit_values_free(&m->m[i].units);
    }
    memset(m, 0, sizeof *m);
}

/* The rule whose cells have this metric: its job and its conditions that hold for all cells. */
static const json_t *rule_of(const struct page *p, const char *metric)
{
    for (int i = 0; i < p->n_blocks; i++) {
        const struct page_block *b = &p->blocks[i];
        for (int k = 0; k < b->rows.n * b->columns.n; k++) {
            const struct grid_entry *row = &b->rows.e[k / b->columns.n];
            const struct grid_entry *column = &b->columns.e[k % b->columns.n];
            const json_t *rule = page_rule(p, row, column);
            const char *own = rule ? page_metric(p, b, row, column, rule, 0) : NULL;
            if (own && strcmp(own, metric) == 0)
                return rule;
        }
    }
    return json_array_get(p->recipe->ours, 0);
}

/* What readers call a value of a variable: the label of the row or column that has it in a field.
 */
static void label_of(const struct page *p, const char *value, char *out, size_t size)
{
    for (int i = 0; i < p->n_blocks; i++)
        for (int k = 0; k < 2; k++) {
            const struct grid_axis *a = k ? &p->blocks[i].columns : &p->blocks[i].rows;
            for (int n = 0; n < a->n; n++) {
                const char *key;
                json_t *v;
                json_object_foreach((json_t *)a->e[n].j, key, v)
                {
                    if (strcmp(key, "csv") == 0 || !json_is_string(v) ||
                        strcmp(json_string_value(v), value) != 0)
                        continue;
                    snprintf(out, size, "%s", a->e[n].level[a->e[n].levels - 1]);
                    return;
                }
            }
        }
    snprintf(out, size, "%s", value);
}

bool claim_record_key(const char *key)
{
    return strcmp(key, "step") == 0 || strcmp(key, "layer") == 0 || strcmp(key, "head") == 0 ||
           strcmp(key, "trace") == 0;
}

static int new_member(const struct page *p, struct members *all, const char *metric,
                      struct member **out, struct err *err)
{
    if (all->n == CLAIM_MEMBERS)
        return err_set(err, ERR_INPUT, "%s: a claim has more than %d members", p->recipe->id,
                       CLAIM_MEMBERS);
    *out = &all->m[all->n++];
    snprintf((*out)->metric, sizeof(*out)->metric, "%s", metric);
    return 0;
}

static struct choice choice_of(const struct page *p, const struct claim *c, const char *metric,
                               int model, const json_t *where)
{
    const char *job = json_str_or(rule_of(p, metric), "job", "");
    job = json_str_or(c->test, "job", job);
    return (struct choice){model, recipe_job_find(p->recipe, job), where, NULL};
}

/* Records with `key` = `value` (key NULL: all) of a metric. */
static int add_member(const struct page *p, const struct claim *c, const char *metric,
                      const char *key, const char *value, int model, struct members *all,
                      struct err *err)
{
    const json_t *own = json_object_get(c->test, "where");
    struct member *m = NULL;
    int rc = new_member(p, all, metric, &m, err);
    if (rc)
        return rc;
    m->where = own                               ? json_deep_copy(own)
               : key && strcmp(key, "case") == 0 ? json_object()
                                                 : page_where(rule_of(p, metric), NULL, NULL);
    if (key)
        json_object_set_new(m->where, key, json_string(value));
    m->of_setting = key && !claim_record_key(key);
    if (key && strcmp(key, "trace") == 0)
        snprintf(m->label, sizeof m->label, "sample %d", all->n);
    else if (key && claim_record_key(key))
        snprintf(m->label, sizeof m->label, "%s %d", key, atoi(value));
    else if (key)
        label_of(p, value, m->label, sizeof m->label);
    else
        snprintf(m->label, sizeof m->label, "%s", metric);
    snprintf(m->value, sizeof m->value, "%s", key ? value : metric);
    struct choice choice = choice_of(p, c, metric, model, m->where);
    return evidence_units(&p->evidence, &choice, metric, &m->units, err);
}

static int by_number(const void *a, const void *b)
{
    return atoi(*(char *const *)a) - atoi(*(char *const *)b);
}

/* The values of a set: cases; a key of records, in their order; a variable, as far as steps of this
 * model have it. */
static void values_of(const struct page *p, const struct claim *c, const char *metric,
                      const char *set, int model, struct str_list *values)
{
    const json_t *own = json_object_get(c->test, "where");
    const char *name;
    char text[80];
    json_t *v, *where;
    if (strcmp(set, "cases") == 0) {
        json_object_foreach((json_t *)p->recipe->cases, name, v) str_list_add(values, name);
        return;
    }
    for (int i = 0; i < p->plan->n && !claim_record_key(set); i++) {
        const struct step *s = &p->plan->s[i];
        const char *value = s->recipe == p->at && s->model == model ? step_value(s, set) : NULL;
        if (value && !str_list_has(values, value))
            str_list_add(values, value);
    }
    if (!claim_record_key(set))
        return;
    where = own ? json_incref((json_t *)own) : page_where(rule_of(p, metric), NULL, NULL);
    struct choice choice = choice_of(p, c, metric, model, where);
    for (int64_t i = 0; i < p->evidence.n; i++) {
        const struct proof *r = &p->evidence.v[i];
        if (r->r->scope == RECORD_OF_HEAD && choice_takes(&p->evidence, &choice, r) &&
            evidence_key(&p->evidence, r, set, text, sizeof text) && !str_list_has(values, text))
            str_list_add(values, text);
    }
    json_decref(where);
    if (strcmp(set, "trace") != 0 && values->n)
        qsort(values->items, (size_t)values->n, sizeof *values->items, by_number);
}

static int add_set(const struct page *p, const struct claim *c, const char *metric, int model,
                   struct members *all, struct err *err)
{
    const char *set = json_string_value(c->set);
    const char *key = strcmp(set, "cases") == 0 ? "case" : set;
    struct str_list values = {0};
    int rc = 0;
    values_of(p, c, metric, set, model, &values);
    for (int64_t i = c->last && values.n ? values.n - 1 : 0; i < values.n; i++)
        TRY(add_member(p, c, metric, key, values.items[i], model, all, err));
out:
    str_list_free(&values);
    return rc;
}

/* Metrics, or cases of one metric. */
static int add_list(const struct page *p, const struct claim *c, int model, struct members *all,
                    struct err *err)
{
    size_t i;
    json_t *v;
    int rc = 0;
    json_array_foreach(c->set, i, v)
    {
        const char *name = json_string_value(v);
        if (json_object_get(p->recipe->cases, name))
            TRY(add_member(p, c, c->metric ? c->metric : "", "case", name, model, all, err));
        else
            TRY(add_member(p, c, name, NULL, NULL, model, all, err));
    }
out:
    return rc;
}

/* What a calibration found is one unit without an interval. */
static int add_setting(const struct page *p, const struct claim *c, const char *job, int model,
                       struct members *all, struct err *err)
{
    const char *reason = NULL;
    struct member *m = NULL;
    double x;
    int rc = 0;
    TRY(new_member(p, all, c->setting, &m, err));
    snprintf(m->label, sizeof m->label, "%s", job);
    TRY(page_found(p, model, job, c->setting, &x, &reason, err));
    if (reason) {
        snprintf(all->reason, sizeof all->reason, "%s", reason);
        goto out;
    }
    TRY(mem_zalloc(&m->units.u, 1, sizeof *m->units.u, "setting", err));
    m->units.u[0] = (struct unit){.sum = x, .calls = 1};
    m->units.n = 1;
    m->units.of = "search";
out:
    return rc;
}

/* ---- at equal cost ---------------------------------------------------------------------------
 * `at_equal: METRIC`: A is a case of several settings, whose curve is read per unit where METRIC is
 * what B has there; B is one setting. Units beyond the curve's ends are left out.
 */

#define SETTINGS_MOST 32

/* The curve of one unit. */
struct curve {
    struct curve_point p[SETTINGS_MOST];
    int64_t n;
};

static double unit_mean(const struct unit_values *v, const struct unit *u)
{
    const struct unit *own = unit_at(v, u->layer, u->head);
    return own ? own->sum / (double)own->calls : NAN;
}

/* One setting is a point of every unit's curve. */
static int add_points(const struct page *p, const struct choice *one, const char *at,
                      const char *metric, const struct unit_values *units, struct curve *curves,
                      struct err *err)
{
    struct unit_values x = {0}, y = {0};
    int rc = 0;
    TRY(evidence_units(&p->evidence, one, at, &x, err));
    TRY(evidence_units(&p->evidence, one, metric, &y, err));
    for (int64_t i = 0; i < units->n; i++) {
        struct curve *c = &curves[i];
        struct curve_point new = {unit_mean(&x, &units->u[i]), unit_mean(&y, &units->u[i])};
        if (isfinite(new.x) && isfinite(new.y) && c->n < SETTINGS_MOST)
            c->p[c->n++] = new;
    }
out:
    unit_values_free(&x);
    unit_values_free(&y);
    return rc;
}

static int read_at_equal(const struct page *p, const struct claim *c, const char *at, int model,
                         struct members *all, struct err *err)
{
    struct member *a = &all->m[0];
    struct choice one = choice_of(p, c, a->metric, model, all->m[1].where);
    json_t *where = json_deep_copy(a->where);
    struct curve *curves = NULL;
    struct unit_values x = {0};
    struct str_list params = {0};
    size_t len = strlen(a->label);
    int rc = 0;
    TRY(evidence_units(&p->evidence, &one, at, &x, err));
    TRY(mem_zalloc(&curves, x.n + 1, sizeof *curves, "curve", err));
    one.where = a->where;
    for (int64_t i = 0; i < p->evidence.n; i++) {
        const char *text = p->evidence.v[i].r->params;
        if (text && choice_takes(&p->evidence, &one, &p->evidence.v[i]) &&
            !str_list_has(&params, text))
            str_list_add(&params, text);
    }
    one.where = where;
    for (int64_t i = 0; i < params.n; i++) {
        json_object_set_new(where, "params", json_string(params.items[i]));
        TRY(add_points(p, &one, at, a->metric, &x, curves, err));
    }
    a->units.n = 0;
    a->units.of = x.of;
    for (int64_t i = 0; i < x.n; i++) {
        double y = curve_at(curves[i].p, curves[i].n, x.u[i].sum / (double)x.u[i].calls);
        if (!isfinite(y))
            continue;
        x.u[a->units.n++] =
            (struct unit){.layer = x.u[i].layer, .head = x.u[i].head, .sum = y, .calls = 1};
    }
    free(a->units.u); /* the units of B with A's numbers */
    a->units.u = x.u;
    x.u = NULL;
    snprintf(a->label + len, sizeof a->label - len, " at equal %s", at);
out:
    json_decref(where);
    str_list_free(&params);
    free(curves);
    unit_values_free(&x);
    return rc;
}

/* ---- all ------------------------------------------------------------------------------------- */

int claim_members(const struct page *p, const struct claim *c, int model, struct members *all,
                  struct err *err)
{
    const char *at = json_str_or(c->test, "at_equal", NULL);
    size_t i;
    json_t *v;
    int rc = 0;
    if (c->setting) {
        json_array_foreach(c->set ? c->set : page_setting_jobs(p->recipe, c->setting), i, v)
            TRY(add_setting(p, c, json_string_value(v), model, all, err));
    } else if (c->kind == CLAIM_FRONT) { /* all members with the first metric, then the second */
        json_array_foreach(json_object_get(c->test, "metrics"), i, v)
            TRY(add_set(p, c, json_string_value(v), model, all, err));
    } else if (json_is_array(c->set)) {
        TRY(add_list(p, c, model, all, err));
        if (at && all->n == 2)
            TRY(read_at_equal(p, c, at, model, all, err));
    } else if (c->set) {
        TRY(add_set(p, c, c->metric ? c->metric : "", model, all, err));
    } else {
        TRY(add_member(p, c, c->metric ? c->metric : "", NULL, NULL, model, all, err));
    }
out:
    return rc;
}
