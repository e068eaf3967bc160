/*
 * claims.c - the claims of a recipe, tested on the units of one model of ours, and the sentence
 * that the numbers make. A claim that holds on a small model says nothing about the paper's; it is
 * a trend, and the sentence names the model, the length and n.
 */
#include "reproduce/claims.h"

#include "core/metricdef.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- members ----------------------------------------------------------------------------------
 */

/* The rule whose cells have this metric: its job and its conditions that hold for all cells. */
static const json_t *rule_of(const struct page *p, const char *metric)
{
    for (int i = 0; i < p->n_blocks; i++) {
        const struct page_block *b = &p->blocks[i];
        for (int r = 0; r < b->rows.n; r++)
            for (int c = 0; c < b->columns.n; c++) {
                const json_t *rule = page_rule(p, &b->rows.e[r], &b->columns.e[c]);
                const char *own =
                    rule ? page_metric(p, b, &b->rows.e[r], &b->columns.e[c], rule, 0) : NULL;
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
                json_object_foreach((json_t *)a->e[n].j, key,
                                    v) if (strcmp(key, "csv") != 0 && json_is_string(v) &&
                                           strcmp(json_string_value(v), value) == 0)
                {
                    snprintf(out, size, "%s", a->e[n].level[a->e[n].levels - 1]);
                    return;
                }
            }
        }
    snprintf(out, size, "%s", value);
}

void members_free(struct members *m)
{
    for (int i = 0; i < m->n; i++) {
        json_decref(m->m[i].where);
        unit_values_free(&m->m[i].units);
    }
    memset(m, 0, sizeof *m);
}

/* Keys of records that a claim may compare the values of. */
static bool is_record_key(const char *key)
{
    return strcmp(key, "step") == 0 || strcmp(key, "layer") == 0 || strcmp(key, "head") == 0 ||
           strcmp(key, "trace") == 0;
}

/* `at_largest: VARIABLE`: records of the largest value that steps of this model have, which names
 * the member. */
static void take_largest(const struct page *p, const json_t *test, int model, struct member *m)
{
    const char *variable = json_str_or(test, "at_largest", NULL), *largest = NULL;
    for (int i = 0; variable && i < p->plan->n; i++) {
        const struct step *s = &p->plan->s[i];
        const char *value =
            s->recipe == p->at && s->model == model ? step_value(s, variable) : NULL;
        if (value && (!largest || size_value(value) > size_value(largest)))
            largest = value;
    }
    if (!largest)
        return;
    json_object_set_new(m->where, variable, json_string(largest));
    snprintf(m->label, sizeof m->label, "%s", largest);
}

/* A member: records with `key` = `value` (key NULL: none), of a metric. */
static int add_member(const struct page *p, const json_t *test, const char *metric, const char *key,
                      const char *value, int model, struct members *all, struct err *err)
{
    if (all->n == MEMBERS_MAX)
        return err_set(err, ERR_INPUT, "%s: a claim has more than %d members", p->recipe->id,
                       MEMBERS_MAX);
    struct member *m = &all->m[all->n++];
    const json_t *rule = rule_of(p, metric), *own = json_object_get(test, "where");
    const char *job = json_str_or(test, "job", json_str_or(rule, "job", ""));
    bool by_case = key && strcmp(key, "case") == 0;
    m->where = own ? json_deep_copy(own) : by_case ? json_object() : page_where(rule, NULL, NULL);
    if (key)
        json_object_set_new(m->where, key, json_string(value));
    snprintf(m->metric, sizeof m->metric, "%s", metric);
    m->setting = key && !is_record_key(key);
    if (key && is_record_key(key))
        snprintf(m->label, sizeof m->label, "%s %d", strcmp(key, "trace") ? key : "sample",
                 strcmp(key, "trace") ? atoi(value) : all->n);
    else if (key)
        label_of(p, value, m->label, sizeof m->label);
    else
        snprintf(m->label, sizeof m->label, "%s", metric);
    take_largest(p, test, model, m);
    snprintf(m->value, sizeof m->value, "%s", key ? value : metric);
    struct choice c = {model, recipe_job_find(p->recipe, job), m->where, NULL};
    return evidence_units(&p->evidence, &c, metric, &m->units, err);
}

static int by_number(const void *a, const void *b)
{
    return atoi(*(char *const *)a) - atoi(*(char *const *)b);
}

/* The values of a key that records of this model have; steps, layers and heads in their order. */
static int add_record_values(const struct page *p, const json_t *test, const char *metric,
                             const char *key, int model, struct members *all, struct err *err)
{
    const json_t *own = json_object_get(test, "where"), *rule = rule_of(p, metric);
    json_t *where = own ? json_deep_copy(own) : page_where(rule, NULL, NULL);
    struct choice c = {model, recipe_job_find(p->recipe, json_str_or(rule, "job", "")), where,
                       NULL};
    struct str_list values = {0};
    char text[80];
    int rc = 0;
    for (int64_t i = 0; i < p->evidence.n; i++) {
        const struct proof *v = &p->evidence.v[i];
        if (v->r->scope == RECORD_OF_HEAD && choice_takes(&p->evidence, &c, v) &&
            evidence_key(&p->evidence, v, key, text, sizeof text) && !str_list_has(&values, text))
            str_list_add(&values, text);
    }
    if (strcmp(key, "trace") != 0 && values.n)
        qsort(values.items, (size_t)values.n, sizeof *values.items, by_number);
    for (int64_t i = 0; i < values.n; i++)
        TRY(add_member(p, test, metric, key, values.items[i], model, all, err));
out:
    str_list_free(&values);
    json_decref(where);
    return rc;
}

/* Values of a variable: as far as steps of this model have it, in the recipe's order. */
static int add_values(const struct page *p, const json_t *test, const char *metric,
                      const char *variable, int model, struct members *all, struct err *err)
{
    int rc = 0;
    if (is_record_key(variable))
        return add_record_values(p, test, metric, variable, model, all, err);
    if (strcmp(variable, "cases") == 0) {
        const char *name;
        json_t *v;
        json_object_foreach((json_t *)p->recipe->cases, name, v)
        {
            (void)v;
            TRY(add_member(p, test, metric, "case", name, model, all, err));
        }
        goto out;
    }
    for (int i = 0; i < p->plan->n; i++) {
        const struct step *s = &p->plan->s[i];
        const char *value =
            s->recipe == p->at && s->model == model ? step_value(s, variable) : NULL;
        bool known = false;
        for (int k = 0; value && k < all->n; k++)
            known = known || strcmp(all->m[k].value, value) == 0;
        if (value && !known)
            TRY(add_member(p, test, metric, variable, value, model, all, err));
    }
out:
    return rc;
}

/* A list of metrics, or of cases of one metric. */
static int add_list(const struct page *p, const json_t *test, const json_t *list, int model,
                    struct members *all, struct err *err)
{
    const char *metric = json_str_or(test, "metric", NULL);
    size_t i;
    json_t *v;
    int rc = 0;
    json_array_foreach(list, i, v)
    {
        const char *name = json_is_string(v) ? json_string_value(v) : "";
        if (json_object_get(p->recipe->cases, name))
            TRY(add_member(p, test, metric ? metric : "", "case", name, model, all, err));
        else
            TRY(add_member(p, test, name, NULL, NULL, model, all, err));
    }
out:
    return rc;
}

static const char *const kinds[] = {"most",  "least", "more",  "rises", "falls", "trend",  "spread",
                                    "front", "below", "above", "ratio", "step",  "within", NULL};

/* `above` is the bound of a spread, and `within` that of a ratio or step. */
const char *claim_kind(const json_t *test)
{
    for (int i = 0; kinds[i]; i++)
        if (json_object_get(test, kinds[i]))
            return kinds[i];
    return NULL;
}

/* The members of a front: all of S with the first metric, then all with the second. */
static int add_front(const struct page *p, const json_t *test, int model, struct members *all,
                     struct err *err)
{
    const json_t *metrics = json_object_get(test, "metrics");
    int rc = 0;
    for (size_t k = 0; k < 2 && !rc; k++) {
        struct members half = {0};
        const char *metric = json_string_value(json_array_get(metrics, k));
        rc = add_values(p, test, metric ? metric : "", json_str_or(test, "of", ""), model, &half,
                        err);
        for (int i = 0; i < half.n; i++)
            if (!rc && all->n == MEMBERS_MAX)
                rc = err_set(err, ERR_INPUT, "%s: a claim has more than %d members", p->recipe->id,
                             MEMBERS_MAX);
            else if (!rc) {
                all->m[all->n++] = half.m[i];
                half.m[i] = (struct member){.where = NULL};
            }
        members_free(&half);
    }
    return rc;
}

int claim_members(const struct page *p, const json_t *test, int model, struct members *all,
                  struct err *err)
{
    const char *kind = claim_kind(test), *metric = json_str_or(test, "metric", "");
    const json_t *what = kind ? json_object_get(test, kind) : NULL;
    const char *of = json_str_or(test, "of", NULL);
    if (!kind)
        return err_set(err, ERR_INPUT, "%s: a claim's test has no known kind", p->recipe->id);
    if (strcmp(kind, "front") == 0)
        return add_front(p, test, model, all, err);
    if (strcmp(kind, "within") == 0 && json_object_get(test, "difference"))
        return add_list(p, test, json_object_get(test, "difference"), model, all, err);
    if (of)
        return add_values(p, test, metric, of, model, all, err);
    if (json_is_array(json_object_get(test, "of")))
        return add_list(p, test, json_object_get(test, "of"), model, all, err);
    if (json_is_array(what) && strcmp(kind, "within") != 0) {
        int rc = add_list(p, test, what, model, all, err);
        return rc || !json_object_get(test, "at_equal") ? rc
                                                        : claim_at_equal(p, test, model, all, err);
    }
    if (json_is_string(what))
        return add_values(p, test, metric, json_string_value(what), model, all, err);
    return add_member(p, test, metric, NULL, NULL, model, all, err);
}

/* ---- tests ------------------------------------------------------------------------------------
 */

static int by_unit(const struct unit *u, const struct unit *w)
{
    return u->layer != w->layer ? u->layer - w->layer : u->head - w->head;
}

/* Values of the units that both members have, in the same order; malloc'd. */
static int pair_up(const struct member *a, const struct member *b, double **x, double **y,
                   int64_t *n, struct err *err)
{
    int64_t i = 0, k = 0;
    int rc = 0;
    *n = 0;
    TRY(mem_alloc(x, a->units.n, sizeof **x, "values", err));
    TRY(mem_alloc(y, a->units.n, sizeof **y, "values", err));
    while (i < a->units.n && (!b || k < b->units.n)) {
        const struct unit *u = &a->units.u[i], *w = b ? &b->units.u[k] : u;
        int order = by_unit(u, w);
        if (order == 0) {
            (*x)[*n] = u->sum / (double)u->calls;
            (*y)[(*n)++] = w->sum / (double)w->calls;
        }
        i += order <= 0;
        k += order >= 0;
    }
out:
    return rc;
}

static int test_more(const struct member *a, const struct member *b, double tie, int tests,
                     struct claim_pair *out, struct err *err)
{
    double *x = NULL, *y = NULL;
    int64_t n;
    int rc = pair_up(a, b, &x, &y, &n, err);
    if (!rc)
        rc = claim_more(x, y, n, tie, tests, out, err);
    free(x);
    free(y);
    return rc;
}

/* Is A - B more than C - D in the units that all four have? */
static int test_gaps(const struct members *all, double tie, struct claim_pair *out, struct err *err)
{
    struct member gap[2] = {{.units = {.n = 0}}};
    int rc = 0;
    for (int k = 0; k < 2; k++) {
        double *x = NULL, *y = NULL;
        const struct member *a = &all->m[2 * k], *b = &all->m[2 * k + 1];
        int64_t n = 0, at = 0;
        rc = pair_up(a, b, &x, &y, &n, err);
        if (!rc)
            rc = mem_alloc(&gap[k].units.u, a->units.n, sizeof *gap[k].units.u, "gaps", err);
        for (int64_t i = 0, w = 0; !rc && i < a->units.n && at < n; i++) {
            const struct unit *u = &a->units.u[i];
            while (w < b->units.n && by_unit(&b->units.u[w], u) < 0)
                w++;
            if (w < b->units.n && by_unit(&b->units.u[w], u) == 0) {
                gap[k].units.u[at] = (struct unit){
                    .layer = u->layer, .head = u->head, .sum = x[at] - y[at], .calls = 1};
                at++;
            }
        }
        gap[k].units.n = at;
        free(x);
        free(y);
        if (rc)
            break;
    }
    if (!rc)
        rc = test_more(&gap[0], &gap[1], tie, 1, out, err);
    unit_values_free(&gap[0].units);
    unit_values_free(&gap[1].units);
    return rc;
}

static int test_range(const struct member *a, const struct member *b, enum claim_range of, double l,
                      double h, struct claim_pair *out, struct err *err)
{
    double *x = NULL, *y = NULL;
    int64_t n;
    int rc = pair_up(a, b, &x, &y, &n, err);
    if (!rc)
        rc = claim_within(x, b ? y : NULL, n, of, l, h, out, err);
    free(x);
    free(y);
    return rc;
}

/* A claim of several comparisons: any reversed decides against it, any open leaves it open. `worst`
 * is the comparison that the sentence names: the reversed, the open, or the closest one. */
static void join(struct claim_result *r, const struct claim_pair *pair, double margin, int a, int b)
{
    static const int rank[] = {[CLAIM_HOLDS] = 0, [CLAIM_CANNOT] = 1, [CLAIM_HOLDS_NOT] = 2};
    bool first = r->a < 0;
    if (first || rank[pair->state] > rank[r->pair.state] ||
        (pair->state == r->pair.state && margin < r->margin)) {
        r->pair = *pair;
        r->margin = margin;
        r->a = a;
        r->b = b;
    }
}

static int test_order(const struct members *all, int from, int to, bool falls, double tie,
                      struct claim_result *r, struct err *err)
{
    int rc = 0, tests = to - from;
    for (int i = from; i < to && !rc; i++) {
        struct claim_pair pair;
        int hi = falls ? i : i + 1, lo = falls ? i + 1 : i;
        rc = test_more(&all->m[hi], &all->m[lo], tie, tests, &pair, err);
        if (!rc)
            join(r, &pair, pair.d, hi, lo);
    }
    return rc;
}

static int test_extreme(const struct members *all, const char *name, bool most, double tie,
                        struct claim_result *r, struct err *err)
{
    int at = -1, rc = 0;
    for (int i = 0; i < all->n; i++)
        if (strcmp(all->m[i].value, name) == 0)
            at = i;
    for (int i = 0; i < all->n && at >= 0 && !rc; i++) {
        struct claim_pair pair;
        if (i == at)
            continue;
        rc = test_more(&all->m[most ? at : i], &all->m[most ? i : at], tie, all->n - 1, &pair, err);
        if (!rc)
            join(r, &pair, pair.d, most ? at : i, most ? i : at);
    }
    return rc;
}

/* Values of a member as an array; malloc'd. */
static int values_of(const struct member *m, double **x, struct err *err)
{
    int rc = mem_alloc(x, m->units.n, sizeof **x, "values", err);
    for (int64_t i = 0; !rc && i < m->units.n; i++)
        (*x)[i] = m->units.u[i].sum / (double)m->units.u[i].calls;
    return rc;
}

static bool same_units(const struct members *all)
{
    for (int k = 1; k < all->n; k++) {
        if (all->m[k].units.n != all->m[0].units.n)
            return false;
        for (int64_t i = 0; i < all->m[0].units.n; i++)
            if (all->m[k].units.u[i].layer != all->m[0].units.u[i].layer ||
                all->m[k].units.u[i].head != all->m[0].units.u[i].head)
                return false;
    }
    return true;
}

/* Values of all members, [members][n], the caller's to free. */
static int rows_of(const struct members *all, int64_t n, double **v, struct err *err)
{
    double *x = NULL;
    int rc = 0;
    TRY(mem_alloc(v, all->n * n, sizeof **v, "values", err));
    for (int k = 0; k < all->n; k++) {
        TRY(values_of(&all->m[k], &x, err));
        memcpy(*v + k * n, x, (size_t)n * sizeof **v);
        free(x);
        x = NULL;
    }
out:
    free(x);
    return rc;
}

static int test_trend(const struct members *all, struct claim_result *r, struct err *err)
{
    int64_t n = all->n ? all->m[0].units.n : 0;
    double *v = NULL;
    int rc = 0;
    if (all->n < CLAIM_MIN_TREND || n == 0 || !same_units(all))
        return 0;
    TRY(rows_of(all, n, &v, err));
    TRY(claim_trend(v, all->n, n, &r->pair, err));
    r->a = 0;
    r->b = all->n - 1;
out:
    free(v);
    return rc;
}

/* The mean of the relative steps from each member to the next. */
static int test_step(const struct members *all, const json_t *within, struct claim_result *r,
                     struct err *err)
{
    int64_t n = all->n ? all->m[0].units.n : 0;
    double *v = NULL;
    int rc = 0;
    r->l = json_number_value(json_array_get(within, 0));
    r->h = json_number_value(json_array_get(within, 1));
    if (all->n < 2 || n == 0 || !same_units(all))
        return 0;
    TRY(rows_of(all, n, &v, err));
    TRY(claim_step(v, all->n, n, r->l, r->h, &r->pair, err));
    r->a = 0;
    r->b = all->n - 1;
out:
    free(v);
    return rc;
}

static int test_spread(const struct members *all, double least, struct claim_result *r,
                       struct err *err)
{
    double *x[MEMBERS_MAX] = {0};
    int64_t n[MEMBERS_MAX];
    int rc = 0, high, low;
    for (int k = 0; k < all->n; k++) {
        n[k] = all->m[k].units.n;
        TRY(values_of(&all->m[k], &x[k], err));
    }
    r->l = least;
    r->h = INFINITY;
    if (all->n < 2)
        goto out;
    TRY(claim_spread(x, n, all->n, same_units(all), least, &r->pair, &high, &low, err));
    r->a = r->pair.n ? high : -1;
    r->b = low;
out:
    for (int k = 0; k < all->n; k++)
        free(x[k]);
    return rc;
}

/* +1 where larger is better. */
static double direction(const char *metric)
{
    const struct metric_def *d = metric_def_find(metric);
    return d && d->better == BETTER_LOWER ? -1 : 1;
}

/* How member `o` stands to `x` in the metric of one half: does it win? */
static int test_better(const struct members *all, int o, int x, double tie, struct claim_pair *out,
                       struct err *err)
{
    bool up = direction(all->m[x].metric) > 0;
    return test_more(&all->m[up ? o : x], &all->m[up ? x : o], tie, 1, out, err);
}

/* X is dominated by a member that is better in both metrics, and on the front where every other one
 * is not better in one of them. */
static int test_front(const struct members *all, const char *name, double tie,
                      struct claim_result *r, struct err *err)
{
    int half = all->n / 2, at = -1, rc = 0;
    for (int i = 0; i < half; i++)
        if (strcmp(all->m[i].value, name) == 0)
            at = i;
    for (int i = 0; i < half && at >= 0 && !rc; i++) {
        struct claim_pair one, two;
        if (i == at)
            continue;
        rc = test_better(all, i, at, tie, &one, err);
        if (!rc)
            rc = test_better(all, half + i, half + at, tie, &two, err);
        if (rc)
            break;
        enum claim_state state =
            one.state == CLAIM_HOLDS && two.state == CLAIM_HOLDS           ? CLAIM_HOLDS_NOT
            : one.state == CLAIM_HOLDS_NOT || two.state == CLAIM_HOLDS_NOT ? CLAIM_HOLDS
                                                                           : CLAIM_CANNOT;
        one.state = state;
        one.n = two.n < one.n ? two.n : one.n;
        join(r, &one, -one.d, at, i);
    }
    return rc;
}

/* Settings with the same number in every unit were one experiment under several names, and decide
 * nothing about a comparison of them. */
static bool is_unmoved(const json_t *test, const struct members *all)
{
    const char *kind = claim_kind(test);
    bool compares = strcmp(kind, "below") != 0 && strcmp(kind, "above") != 0 &&
                    strcmp(kind, "front") != 0 &&
                    (strcmp(kind, "within") != 0 || json_object_get(test, "difference"));
    if (!compares || all->n < 2 || all->m[0].units.n < 1 || !same_units(all))
        return false;
    for (int k = 0; k < all->n; k++)
        for (int64_t i = 0; i < all->m[0].units.n; i++)
            if (!all->m[k].setting || all->m[k].units.u[i].sum != all->m[0].units.u[i].sum ||
                all->m[k].units.u[i].calls != all->m[0].units.u[i].calls)
                return false;
    return true;
}

int claim_test(const json_t *test, const struct members *all, double tie, struct claim_result *r,
               struct err *err)
{
    const char *kind = claim_kind(test);
    const json_t *what = json_object_get(test, kind), *in = json_object_get(test, "within");
    double l = -INFINITY, h = INFINITY;
    int rc = 0;

    *r = (struct claim_result){.kind = kind, .a = -1, .b = -1};
    r->pair.state = CLAIM_CANNOT;
    r->unmoved = is_unmoved(test, all);
    if (r->unmoved)
        return 0;
    if (strcmp(kind, "rises") == 0 || strcmp(kind, "falls") == 0)
        return all->n < 3 ? 0 : test_order(all, 0, all->n - 1, kind[0] == 'f', tie, r, err);
    if (strcmp(kind, "trend") == 0)
        return test_trend(all, r, err);
    if (strcmp(kind, "spread") == 0)
        return test_spread(all, json_number_value(json_object_get(test, "above")), r, err);
    if (strcmp(kind, "step") == 0)
        return test_step(all, in, r, err);
    if (strcmp(kind, "front") == 0)
        return test_front(all, json_string_value(what), tie, r, err);
    if (strcmp(kind, "most") == 0 || strcmp(kind, "least") == 0)
        return test_extreme(all, json_string_value(what), kind[0] == 'm', tie, r, err);
    if (strcmp(kind, "more") == 0) {
        struct claim_pair pair;
        if (all->n != 2 && all->n != 4)
            return 0;
        rc = all->n == 2 ? test_more(&all->m[0], &all->m[1], tie, 1, &pair, err)
                         : test_gaps(all, tie, &pair, err);
        if (!rc)
            join(r, &pair, pair.d, 0, all->n == 4 ? 2 : 1);
        return rc;
    }
    if (json_is_array(in)) {
        l = json_number_value(json_array_get(in, 0));
        h = json_number_value(json_array_get(in, 1));
    } else if (strcmp(kind, "below") == 0) {
        h = json_number_value(what);
    } else {
        l = json_number_value(what);
    }
    r->l = l;
    r->h = h;
    bool two = strcmp(kind, "ratio") == 0 || json_object_get(test, "difference");
    for (int i = 0; i < all->n && !rc; i += two ? 2 : 1) {
        struct claim_pair pair;
        if (two && i + 1 >= all->n)
            break;
        rc = test_range(&all->m[i], two ? &all->m[i + 1] : NULL,
                        !two                         ? RANGE_OF_MEAN
                        : strcmp(kind, "ratio") == 0 ? RANGE_OF_RATIO
                                                     : RANGE_OF_DIFFERENCE,
                        l, h, &pair, err);
        if (!rc)
            join(r, &pair, fmin(h - pair.d, pair.d - l), i, two ? i + 1 : -1);
    }
    return rc;
}
