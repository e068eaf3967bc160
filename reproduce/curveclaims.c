/*
 * curveclaims.c - claims at equal cost: `more: [A, B], at_equal: METRIC`. A is a case of several
 * settings, whose curve is read per unit where METRIC is what B has there; B is one setting.
 */
#include "reproduce/claims.h"

#include "analyze/curve.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SETTINGS_MOST 32

/* What the units of the curve's settings have. */
struct curve {
    struct unit_values x[SETTINGS_MOST], y[SETTINGS_MOST];
    int n;
};

static void curve_free(struct curve *c)
{
    for (int i = 0; i < c->n; i++) {
        unit_values_free(&c->x[i]);
        unit_values_free(&c->y[i]);
    }
    free(c);
}

/* The mean of a unit, NAN where it is none of them. */
static double unit_mean(const struct unit_values *v, const struct unit *u)
{
    for (int64_t i = 0; i < v->n; i++)
        if (v->u[i].layer == u->layer && v->u[i].head == u->head)
            return v->u[i].sum / (double)v->u[i].calls;
    return NAN;
}

static int job_of(const struct page *p, const json_t *test)
{
    const char *job = json_str_or(test, "job", NULL);
    return recipe_job_find(p->recipe,
                           job ? job : json_str_or(json_array_get(p->recipe->ours, 0), "job", ""));
}

/* The settings whose records the member has, each by itself. */
static int read_curve(const struct page *p, const json_t *test, int model, const struct member *m,
                      struct curve *c, struct err *err)
{
    const char *at = json_str_or(test, "at_equal", "");
    struct choice all = {model, job_of(p, test), m->where, NULL};
    struct str_list params = {0};
    json_t *where = json_deep_copy(m->where);
    int rc = 0;
    for (int64_t i = 0; i < p->evidence.n; i++) {
        const struct proof *v = &p->evidence.v[i];
        const char *text = v->r->params ? v->r->params : "";
        if (choice_takes(&p->evidence, &all, v) && !str_list_has(&params, text))
            str_list_add(&params, text);
    }
    for (int64_t i = 0; i < params.n; i++) {
        struct choice one = {model, all.job, where, NULL};
        if (c->n == SETTINGS_MOST)
            FAIL(err, ERR_INPUT, "%s: a curve of a claim has more than %d settings", p->recipe->id,
                 SETTINGS_MOST);
        json_object_set_new(where, "params", json_string(params.items[i]));
        c->n++;
        TRY(evidence_units(&p->evidence, &one, at, &c->x[c->n - 1], err));
        TRY(evidence_units(&p->evidence, &one, m->metric, &c->y[c->n - 1], err));
    }
out:
    json_decref(where);
    str_list_free(&params);
    return rc;
}

/* What the curve has where a unit of B is; NAN beyond its ends. */
static double at_unit(const struct curve *c, const struct unit *u, double x)
{
    struct curve_point p[SETTINGS_MOST];
    int64_t n = 0;
    for (int i = 0; i < c->n; i++) {
        p[n] = (struct curve_point){unit_mean(&c->x[i], u), unit_mean(&c->y[i], u)};
        n += isfinite(p[n].x) && isfinite(p[n].y);
    }
    return curve_at(p, n, x);
}

int claim_at_equal(const struct page *p, const json_t *test, int model, struct members *all,
                   struct err *err)
{
    const char *at = json_str_or(test, "at_equal", "");
    struct curve *c = NULL;
    struct unit_values x = {0}, kept = {0};
    int rc = 0;
    if (all->n != 2)
        return err_set(err, ERR_INPUT, "%s: at_equal compares two cases", p->recipe->id);
    struct choice b = {model, job_of(p, test), all->m[1].where, NULL};
    TRY(mem_zalloc(&c, 1, sizeof *c, "curve", err));
    TRY(read_curve(p, test, model, &all->m[0], c, err));
    TRY(evidence_units(&p->evidence, &b, at, &x, err));
    TRY(mem_alloc(&kept.u, x.n, sizeof *kept.u, "curve", err));
    for (int64_t i = 0; i < x.n; i++) {
        double y = at_unit(c, &x.u[i], x.u[i].sum / (double)x.u[i].calls);
        if (isfinite(y))
            kept.u[kept.n++] = (struct unit){x.u[i].layer, x.u[i].head, y, 1, x.u[i].task};
    }
    kept.of = all->m[1].units.of;
    unit_values_free(&all->m[0].units);
    all->m[0].units = kept;
    kept = (struct unit_values){.n = 0};
    snprintf(all->m[0].label + strlen(all->m[0].label),
             sizeof all->m[0].label - strlen(all->m[0].label), " at equal %s", at);
out:
    unit_values_free(&x);
    unit_values_free(&kept);
    if (c)
        curve_free(c);
    return rc;
}
