/*
 * claims.c - reading a claim, testing it on the units of one model of ours, and the row that the
 * numbers make. A claim that holds on a small model is a trend, and says nothing about the paper's.
 */
#include "reproduce/claims.h"

#include "analyze/stats.h"
#include "core/mem.h"
#include "core/metricdef.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const claim_state_names[] = {"holds", "does not hold", "open"};

/* ---- reading --------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    enum claim_kind kind;
    bool falls;
} kinds[] = {{"more", CLAIM_MORE, false},  {"rises", CLAIM_ORDER, false},
             {"falls", CLAIM_ORDER, true}, {"most", CLAIM_MOST, false},
             {"least", CLAIM_MOST, true},  {"within", CLAIM_WITHIN, false},
             {"front", CLAIM_FRONT, false}};

static const struct {
    const char *name;
    enum claim_stat stat;
} stats[] = {{"difference", STAT_DIFFERENCE},
             {"ratio", STAT_RATIO},
             {"spread", STAT_SPREAD},
             {"rank", STAT_RANK}};

#define COUNT(a) (sizeof(a) / sizeof *(a))

static double bound(const json_t *within, size_t i)
{
    const json_t *v = json_array_get(within, i);
    return json_is_number(v) ? json_number_value(v) : i ? INFINITY : -INFINITY;
}

int claim_read(const json_t *test, struct claim *c, struct err *err)
{
    const json_t *what = NULL;
    const char *kind = NULL;
    *c = (struct claim){.test = test,
                        .set = json_object_get(test, "of"),
                        .metric = json_str_or(test, "metric", NULL),
                        .setting = json_str_or(test, "setting", NULL),
                        .labels = json_str_or(test, "labels", NULL),
                        .at_equal = json_str_or(test, "at_equal", NULL),
                        .weight = json_str_or(test, "weight", NULL),
                        .last = json_is_true(json_object_get(test, "last")),
                        .least = json_object_get(test, "setting") ? 1 : CLAIM_MIN_UNITS};
    for (size_t i = 0; i < COUNT(kinds); i++) {
        const json_t *v = json_object_get(test, kinds[i].name);
        if (v && kind)
            return err_set(err, ERR_INPUT, "one test was expected, found '%s' and '%s'", kind,
                           kinds[i].name);
        if (!v)
            continue;
        kind = kinds[i].name;
        what = v;
        c->kind = kinds[i].kind;
        c->falls = kinds[i].falls;
    }
    if (!kind)
        return err_set(err, ERR_INPUT, "no test of more, rises, falls, most, least, within, front");
    if (c->kind == CLAIM_MORE || c->kind == CLAIM_ORDER)
        c->set = what;
    if (c->kind == CLAIM_MOST || c->kind == CLAIM_FRONT)
        c->x = json_string_value(what);
    c->l = bound(what, 0);
    c->h = bound(what, 1);
    for (size_t i = 0; i < COUNT(stats) && c->kind == CLAIM_WITHIN; i++)
        if (json_object_get(test, stats[i].name)) {
            c->stat = stats[i].stat;
            c->set = json_object_get(test, stats[i].name);
        }
    c->heads = c->stat == STAT_SPREAD && json_is_string(c->set) &&
               strcmp(json_string_value(c->set), "head") == 0;
    if (c->heads)
        c->stat = STAT_MEAN;
    return 0;
}

/* ---- members --------------------------------------------------------------------------------- */

void members_free(struct members *m)
{
    for (int i = 0; i < m->n; i++) {
        json_decref(m->m[i].where);
        unit_values_free(&m->m[i].weights);
        if (m->m[i].units.u != &m->m[i].one)
            unit_values_free(&m->m[i].units);
    }
    memset(m, 0, sizeof *m);
}

/* The rule whose cells have this metric: its job and its conditions that hold for all cells. */
static const json_t *rule_of(const struct page *p, const char *metric)
{
    for (const struct page_cell *c = NULL; (c = next_cell(p, c));) {
        const char *own = c->rule ? cell_metric(c, 0) : NULL;
        if (own && strcmp(own, metric) == 0)
            return c->rule;
    }
    return json_array_get(p->recipe->ours, 0);
}

/* A row or column that has this value of a variable in a field. */
static bool has_value(const struct grid_entry *e, const char *value)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)e->j, key, v)
    {
        if (strcmp(key, "csv") != 0 && json_is_string(v) &&
            strcmp(json_string_value(v), value) == 0)
            return true;
    }
    return false;
}

/* What readers call a value of a variable: the label of the row or column that has it. */
static const char *label_of(const struct page *p, const char *value)
{
    for (int i = 0; i < p->n_blocks; i++)
        for (int k = 0; k < 2; k++) {
            const struct grid_axis *a = k ? &p->blocks[i].columns : &p->blocks[i].rows;
            for (int n = 0; n < a->n; n++)
                if (has_value(&a->e[n], value))
                    return a->e[n].level[a->e[n].levels - 1];
        }
    return value;
}

bool claim_record_key(const char *key)
{
    return words_have("step layer head trace", ' ', key, strlen(key));
}

/* The members of a claim for a model. */
struct gathering {
    const struct page *p;
    const struct claim *c;
    int model;
    struct members *all;
    struct err *err;
};

static int new_member(const struct gathering *g, const char *metric, struct member **out)
{
    if (g->all->n == CLAIM_MEMBERS)
        return err_set(g->err, ERR_INPUT, "%s: a claim has more than %d members", g->p->recipe->id,
                       CLAIM_MEMBERS);
    *out = &g->all->m[g->all->n++];
    snprintf((*out)->metric, sizeof(*out)->metric, "%s", metric);
    return 0;
}

static void set_number(struct member *m, double x, const char *of)
{
    m->one = (struct unit){.sum = x, .calls = 1};
    m->units = (struct unit_values){.of = of, .u = &m->one, .n = 1, .calls = 1};
}

static struct choice choice_of(const struct gathering *g, const char *metric, const json_t *where)
{
    const char *job = json_str_or(rule_of(g->p, metric), "job", "");
    job = json_str_or(g->c->test, "job", job);
    return (struct choice){g->model, recipe_job_find(g->p->recipe, job), where, NULL};
}

/* Conditions on the records of a metric, before those of a member; a new reference. */
static json_t *where_of(const struct gathering *g, const char *metric, const char *key)
{
    const json_t *own = json_object_get(g->c->test, "where");
    return own                               ? json_deep_copy(own)
           : key && strcmp(key, "case") == 0 ? json_object()
                                             : rule_where(rule_of(g->p, metric), NULL);
}

/* Records with `key` = `value` (key NULL: all) of a metric. */
static int add_member(const struct gathering *g, const char *metric, const char *key,
                      const char *value)
{
    struct member *m = NULL;
    PASS_ON(new_member(g, metric, &m));
    m->where = where_of(g, metric, key);
    if (key)
        json_object_set_new(m->where, key, json_string(value));
    m->of_setting = key && !claim_record_key(key);
    if (key && strcmp(key, "trace") == 0)
        snprintf(m->label, sizeof m->label, "sample %d", g->all->n);
    else if (key && claim_record_key(key))
        snprintf(m->label, sizeof m->label, "%s %d", key, atoi(value));
    else
        snprintf(m->label, sizeof m->label, "%s", key ? label_of(g->p, value) : metric);
    snprintf(m->value, sizeof m->value, "%s", key ? value : metric);
    struct choice choice = choice_of(g, metric, m->where);
    m->job = choice.job;
    PASS_ON(evidence_units(&g->p->evidence, &choice, metric, &m->units, g->err));
    if (g->c->weight)
        return evidence_units(&g->p->evidence, &choice, g->c->weight, &m->weights, g->err);
    return 0;
}

/* The largest less the smallest head of every layer: a head's number means nothing in another. */
static int add_layers(const struct gathering *g, const char *metric)
{
    int rc = add_member(g, metric, NULL, NULL);
    struct unit_values *v = &g->all->m[g->all->n - 1].units;
    int64_t layers = 0;
    for (int64_t i = 0, end; !rc && i < v->n; i = end) {
        double low = INFINITY, high = -INFINITY;
        for (end = i; end < v->n && v->u[end].layer == v->u[i].layer; end++) {
            low = fmin(low, unit_mean(&v->u[end]));
            high = fmax(high, unit_mean(&v->u[end]));
        }
        if (end > i + 1)
            v->u[layers++] =
                (struct unit){.layer = v->u[i].layer, .head = -1, .sum = high - low, .calls = 1};
    }
    v->n = layers;
    v->of = "layers";
    return rc;
}

static int by_number(const void *a, const void *b)
{
    return atoi(*(char *const *)a) - atoi(*(char *const *)b);
}

static void add_value(struct str_list *values, const char *value)
{
    if (value && !str_list_has(values, value))
        str_list_add(values, value);
}

/* The values of a set: cases; a key of records, in their order; a variable, as far as steps of this
 * model have it. */
static void values_of(const struct gathering *g, const char *metric, const char *set,
                      struct str_list *values)
{
    const struct page *p = g->p;
    const char *name;
    json_t *v, *where = where_of(g, metric, NULL);
    struct choice choice = choice_of(g, metric, where);
    bool record_key = claim_record_key(set);
    if (strcmp(set, "cases") == 0)
        json_object_foreach((json_t *)p->recipe->cases, name, v) str_list_add(values, name);
    for (const struct step *s = NULL; !record_key && (s = next_step(p->plan, p->at, s));)
        add_value(values, s->model == g->model ? step_value(s, set) : NULL);
    for (const struct proof *r = NULL; record_key && (r = next_proof(&p->evidence, &choice, r));) {
        OWN(buf_free) struct buf text = {0};
        if (r->r->scope == RECORD_OF_HEAD && evidence_key(&p->evidence, r, set, &text))
            add_value(values, buf_str(&text));
    }
    json_decref(where);
    if (record_key && strcmp(set, "trace") != 0 && values->n)
        qsort(values->items, (size_t)values->n, sizeof *values->items, by_number);
}

static int add_set(const struct gathering *g, const char *metric)
{
    const char *set = json_string_value(g->c->set);
    const char *key = strcmp(set, "cases") == 0 ? "case" : set;
    OWN(str_list_free) struct str_list values = {0};
    values_of(g, metric, set, &values);
    for (int64_t i = g->c->last && values.n ? values.n - 1 : 0; i < values.n; i++)
        PASS_ON(add_member(g, metric, key, values.items[i]));
    return 0;
}

/* Metrics, or cases of one metric. */
static int add_list(const struct gathering *g, const char *metric)
{
    size_t i;
    json_t *v;
    json_array_foreach(g->c->set, i, v)
    {
        const char *name = json_string_value(v);
        bool is_case = json_object_get(g->p->recipe->cases, name) != NULL;
        PASS_ON(add_member(g, is_case ? metric : name, is_case ? "case" : NULL, name));
    }
    return 0;
}

/* What a calibration found is one unit without an interval. */
static int add_setting(const struct gathering *g, const char *job)
{
    const char *reason = NULL;
    struct member *m = NULL;
    double x;
    PASS_ON(new_member(g, g->c->setting, &m));
    snprintf(m->label, sizeof m->label, "%s", job);
    PASS_ON(setting_found(g->p, g->model, job, json_object_get(g->c->test, "where"), g->c->setting,
                          &x, &reason, g->err));
    if (reason)
        snprintf(g->all->reason, sizeof g->all->reason, "%s", reason);
    else
        set_number(m, x, "search");
    return 0;
}

/* ---- at equal cost ---------------------------------------------------------------------------
 * `at_equal: METRIC`: A is a case of several settings, whose means make a curve; it is read where
 * METRIC has the mean of B, a case of one setting. Members as STAT_AT_EQUAL takes them.
 */

/* Records of `where` with these parameters, unless NULL. */
static int add_point(const struct gathering *g, const char *metric, const json_t *where,
                     const char *params)
{
    struct member *m = NULL;
    PASS_ON(new_member(g, metric, &m));
    m->where = json_deep_copy(where);
    if (params)
        json_object_set_new(m->where, "params", json_string(params));
    struct choice choice = choice_of(g, metric, m->where);
    return evidence_units(&g->p->evidence, &choice, metric, &m->units, g->err);
}

/* [A, B] becomes [B, METRIC of B, a setting of A, METRIC of it, ...]. */
static int read_at_equal(const struct gathering *g)
{
    struct members *all = g->all;
    struct member a = all->m[0];
    const struct choice of_a = choice_of(g, a.metric, a.where);
    struct str_list params = {0};
    int rc = 0;
    all->m[0] = all->m[1];
    all->n = 1;
    for (const struct proof *v = NULL; (v = next_proof(&g->p->evidence, &of_a, v));)
        add_value(&params, v->r->params);
    TRY(add_point(g, g->c->at_equal, all->m[0].where, NULL));
    for (int64_t i = 0; i < params.n; i++) {
        TRY(add_point(g, a.metric, a.where, params.items[i]));
        TRY(add_point(g, g->c->at_equal, a.where, params.items[i]));
    }
    snprintf(all->m[1].label, sizeof a.label, "%.50s at equal %.30s", a.label, g->c->at_equal);
out:
    json_decref(a.where);
    unit_values_free(&a.units);
    str_list_free(&params);
    return rc;
}

/* ---- all members ----------------------------------------------------------------------------- */

int claim_members(const struct page *p, const struct claim *c, int model, struct members *all,
                  struct err *err)
{
    const struct gathering g = {p, c, model, all, err};
    const char *metric = c->metric ? c->metric : "";
    size_t i;
    json_t *v;
    if (c->setting) {
        json_array_foreach(c->set ? c->set : setting_jobs(p->recipe, c->setting), i, v)
            PASS_ON(add_setting(&g, json_string_value(v)));
    } else if (c->kind == CLAIM_FRONT) { /* all members with the first metric, then the second */
        json_array_foreach(json_object_get(c->test, "metrics"), i, v)
            PASS_ON(add_set(&g, json_string_value(v)));
    } else if (json_is_array(c->set)) {
        PASS_ON(add_list(&g, metric));
        if (c->at_equal && all->n == 2)
            return read_at_equal(&g);
    } else if (c->heads) {
        return add_layers(&g, metric);
    } else {
        return c->set ? add_set(&g, metric) : add_member(&g, metric, NULL, NULL);
    }
    return 0;
}

/* ---- answers --------------------------------------------------------------------------------- */

enum claim_state claim_above(const struct claim_estimate *e, double tie, int64_t least)
{
    if (e->n < least)
        return CLAIM_OPEN;
    if (e->value > tie && e->lo > 0)
        return CLAIM_HOLDS;
    return e->value < tie && e->wide_hi < tie ? CLAIM_HOLDS_NOT : CLAIM_OPEN;
}

enum claim_state claim_inside(const struct claim_estimate *e, double l, double h, int64_t least)
{
    if (e->n < least || !isfinite(e->value) || !isfinite(e->lo) || !isfinite(e->hi))
        return CLAIM_OPEN;
    if (e->lo >= l && e->hi <= h)
        return CLAIM_HOLDS;
    return e->lo > h || e->hi < l ? CLAIM_HOLDS_NOT : CLAIM_OPEN;
}

/* ---- testing --------------------------------------------------------------------------------- */

static void sample_free(struct claim_sample *s)
{
    for (int g = 0; g < s->members; g++) {
        free(s->x[g]);
        free(s->w[g]);
    }
}

static bool all_have(const struct member *const *m, int n, const struct unit *u)
{
    for (int g = 1; g < n; g++)
        if (!unit_at(&m[g]->units, u->layer, u->head))
            return false;
    return true;
}

/* Values of the units that all members have, in one order; `apart`: of all units of each. */
static int sample_make(const struct member *const *m, int n, bool apart, struct claim_sample *s,
                       struct err *err)
{
    *s = (struct claim_sample){.members = n, .paired = !apart};
    for (int g = 0; g < n; g++) {
        const struct unit_values *of = &m[apart ? g : 0]->units;
        const struct unit_values *weights = &m[g]->weights;
        PASS_ON(mem_alloc(&s->x[g], of->n + 1, sizeof *s->x[g], "values", err));
        if (weights->n)
            PASS_ON(mem_alloc(&s->w[g], of->n + 1, sizeof *s->w[g], "weights", err));
        for (int64_t i = 0; i < of->n; i++) {
            if (!apart && !all_have(m, n, &of->u[i]))
                continue;
            if (s->w[g])
                s->w[g][s->n[g]] = unit_mean(unit_at(weights, of->u[i].layer, of->u[i].head));
            s->x[g][s->n[g]++] = unit_mean(unit_at(&m[g]->units, of->u[i].layer, of->u[i].head));
        }
    }
    return 0;
}

/* Have all members the same units, and with `values` the same numbers? */
static bool same_units(const struct members *all, bool values)
{
    bool same = true;
    for (int k = 1; k < all->n && same; k++)
        same = units_equal(&all->m[k].units, &all->m[0].units, values);
    return same;
}

/* One comparison of a claim. */
struct comparison {
    const struct member *m[CLAIM_MEMBERS];
    int n;
    double mean[CLAIM_MEMBERS];
    struct claim_estimate e;
    enum claim_state state;
    double margin; /* how far it is from another state */
};

static int compare(const struct claim *c, bool apart, double tie, int tests, struct comparison *x,
                   struct err *err)
{
    bool within = c->kind == CLAIM_WITHIN;
    struct claim_sample s;
    int rc = 0;
    TRY(sample_make(x->m, x->n, apart, &s, err));
    TRY(claim_estimate(&s,
                       c->at_equal ? STAT_AT_EQUAL
                       : within    ? c->stat
                                   : STAT_DIFFERENCE,
                       tests, &x->e, err));
    for (int g = 0; g < x->n; g++)
        x->mean[g] = claim_mean(&s, g);
    x->state =
        within ? claim_inside(&x->e, c->l, c->h, c->least) : claim_above(&x->e, tie, c->least);
    x->margin = within ? fmin(c->h - x->e.value, x->e.value - c->l) : x->e.value;
out:
    sample_free(&s);
    return rc;
}

/* Among several comparisons one that is reversed decides against the claim, and one that is open
 * leaves it open. The row names the reversed, the open, or the closest one. */
static void join(struct comparison *worst, const struct comparison *x)
{
    static const int rank[] = {[CLAIM_HOLDS] = 0, [CLAIM_OPEN] = 1, [CLAIM_HOLDS_NOT] = 2};
    if (!worst->n || rank[x->state] > rank[worst->state] ||
        (x->state == worst->state && x->margin < worst->margin))
        *worst = *x;
}

/* The member of this name among the first n; -1: there is none. */
static int find_member(const struct members *all, const char *name, int n)
{
    for (int i = 0; i < n && name; i++)
        if (strcmp(all->m[i].value, name) == 0)
            return i;
    return -1;
}

/* MORE and numbers of several members: all at once. Bounds of a mean: each. ORDER: each and the
 * next. MOST: X and each other. */
static int test_members(const struct claim *c, const struct members *all, double tie,
                        struct comparison *worst, struct err *err)
{
    bool whole = c->kind == CLAIM_MORE || (c->kind == CLAIM_WITHIN && c->stat != STAT_MEAN);
    bool apart = c->kind == CLAIM_WITHIN && c->stat == STAT_SPREAD && !same_units(all, false);
    int n = whole ? 1 : c->kind == CLAIM_ORDER ? all->n - 1 : all->n;
    int x = find_member(all, c->x, all->n), tests = n > 1 ? all->n - 1 : 1;
    for (int i = 0; i < n; i++) {
        struct comparison one = {.n = whole ? all->n : c->kind == CLAIM_WITHIN ? 1 : 2};
        int other = c->kind == CLAIM_MOST ? x : i + 1;
        if (c->kind == CLAIM_MOST && (x < 0 || x == i))
            continue;
        for (int g = 0; g < one.n; g++)
            one.m[g] = &all->m[i + g];
        if (c->kind == CLAIM_ORDER || c->kind == CLAIM_MOST) {
            one.m[0] = &all->m[c->falls ? i : other];
            one.m[1] = &all->m[c->falls ? other : i];
        }
        PASS_ON(compare(c, apart, tie, tests, &one, err));
        join(worst, &one);
    }
    return 0;
}

/* Is member o better than x in the metric of one half? */
static int test_better(const struct claim *c, const struct members *all, int o, int x, double tie,
                       struct comparison *out, struct err *err)
{
    const struct metric_def *d = metric_def_find(all->m[x].metric);
    bool down = d && d->better == BETTER_LOWER;
    *out = (struct comparison){.m = {&all->m[down ? x : o], &all->m[down ? o : x]}, .n = 2};
    return compare(c, false, tie, 1, out, err);
}

/* X is dominated by a member that is better in both metrics, and on the front where every other one
 * is not better in one of them. The row has the differences of the first metric. */
static int test_front(const struct claim *c, const struct members *all, double tie,
                      struct comparison *worst, struct err *err)
{
    int half = all->n / 2, x = find_member(all, c->x, half);
    for (int i = 0; i < half && x >= 0; i++) {
        struct comparison one, two;
        if (i == x)
            continue;
        PASS_ON(test_better(c, all, i, x, tie, &one, err));
        PASS_ON(test_better(c, all, half + i, half + x, tie, &two, err));
        bool both = one.state == CLAIM_HOLDS && two.state == CLAIM_HOLDS;
        bool not_both = one.state == CLAIM_HOLDS_NOT || two.state == CLAIM_HOLDS_NOT;
        one.state = both ? CLAIM_HOLDS_NOT : not_both ? CLAIM_HOLDS : CLAIM_OPEN;
        one.margin = -one.e.value;
        one.e.n = two.e.n < one.e.n ? two.e.n : one.e.n;
        join(worst, &one);
    }
    return 0;
}

/* Settings with the same number in every unit were one experiment under several names, and decide
 * nothing about a comparison of them. */
static bool is_unmoved(const struct claim *c, const struct members *all)
{
    bool compares = c->kind != CLAIM_FRONT && (c->kind != CLAIM_WITHIN || c->stat != STAT_MEAN);
    for (int k = 0; k < all->n; k++)
        compares = compares && all->m[k].of_setting;
    return compares && all->n > 1 && all->m[0].units.n > 0 && same_units(all, true);
}

/* Grades that are all the best, or all the worst ones. */
static bool is_saturated(const struct member *m)
{
    double first = unit_mean(&m->units.u[0]);
    bool grade = strstr(m->metric, "score") || strstr(m->metric, "_acc");
    for (int64_t i = 1; i < m->units.n; i++)
        grade = grade && unit_mean(&m->units.u[i]) == first;
    return grade && (first == 0 || first == 1 || first == 100);
}

/* How many members a claim needs. */
static int least_members(const struct claim *c)
{
    if (c->kind == CLAIM_WITHIN)
        return c->stat == STAT_MEAN ? 1 : c->stat == STAT_RANK ? 5 : 2;
    return c->kind == CLAIM_ORDER ? 3 : 2;
}

/* ---- the row --------------------------------------------------------------------------------- */

static void put_test(const struct claim *c, char *out, size_t size)
{
    static const char *const names[] = {[STAT_MEAN] = "A",
                                        [STAT_DIFFERENCE] = "A - B",
                                        [STAT_RATIO] = "A / B",
                                        [STAT_SPREAD] = "largest - smallest",
                                        [STAT_RANK] = "rank correlation"};
    const char *name = c->heads ? "largest - smallest head of a layer"
                       : json_is_string(c->set) && c->stat == STAT_RATIO ? "each / next, mean"
                                                                         : names[c->stat];
    if (c->kind == CLAIM_FRONT)
        snprintf(out, size, "A - B, of the first metric");
    else if (c->kind != CLAIM_WITHIN)
        snprintf(out, size, "A - B > 0");
    else if (isfinite(c->l) && isfinite(c->h))
        snprintf(out, size, "%s in [%g, %g]", name, c->l, c->h);
    else
        snprintf(out, size, "%s %s %g", name,
                 isfinite(c->l) ? ">=" : "<=", isfinite(c->l) ? c->l : c->h);
}

/* A and B: two differences of four members, the outer members of a spread, else the first and the
 * last one. */
static void name_sides(const struct claim *c, const struct comparison *w, struct claim_row *row)
{
    int a = 0, b = w->n - 1;
    for (int g = 0; g < w->n && c->kind == CLAIM_WITHIN && c->stat == STAT_SPREAD; g++) {
        a = w->mean[g] > w->mean[a] ? g : a;
        b = w->mean[g] < w->mean[b] ? g : b;
    }
    if (c->at_equal) {
        snprintf(row->a, sizeof row->a, "%s", w->m[1]->label);
        snprintf(row->b, sizeof row->b, "%s", w->m[0]->label);
        row->mean[0] = w->e.value + w->mean[0];
        row->mean[1] = w->mean[0];
        return;
    }
    if (c->kind == CLAIM_MORE && w->n == 4) {
        snprintf(row->a, sizeof row->a, "%.60s - %.60s", w->m[0]->label, w->m[1]->label);
        snprintf(row->b, sizeof row->b, "%.60s - %.60s", w->m[2]->label, w->m[3]->label);
        row->mean[0] = w->mean[0] - w->mean[1];
        row->mean[1] = w->mean[2] - w->mean[3];
        return;
    }
    snprintf(row->a, sizeof row->a, "%s", w->m[a]->label);
    row->mean[0] = w->mean[a];
    if (w->n < 2)
        return;
    snprintf(row->b, sizeof row->b, "%s", w->m[b]->label);
    row->mean[1] = w->mean[b];
}

static void say_why(const struct claim *c, const struct members *all, const struct comparison *w,
                    struct claim_row *row)
{
    if (all->reason[0])
        snprintf(row->why, sizeof row->why, "%s", all->reason);
    else if (is_unmoved(c, all) && is_saturated(&all->m[0]))
        snprintf(row->why, sizeof row->why,
                 "all of %lld %s have the grade %g everywhere, which tells nothing apart",
                 (long long)all->m[0].units.n, all->m[0].units.of,
                 unit_mean(&all->m[0].units.u[0]));
    else if (is_unmoved(c, all))
        snprintf(row->why, sizeof row->why, "the same in each of %lld %s",
                 (long long)all->m[0].units.n, all->m[0].units.of);
    else if (all->n && all->n < least_members(c))
        snprintf(row->why, sizeof row->why, "it takes %d members, found %d", least_members(c),
                 all->n);
    else if (!w->n || w->e.n == 0)
        snprintf(row->why, sizeof row->why, "no record has the numbers");
    else if (w->e.n < c->least)
        snprintf(row->why, sizeof row->why, "it takes %d %s", c->least, row->of);
    else if (c->at_equal && !isfinite(w->e.lo))
        snprintf(row->why, sizeof row->why, "%s is beyond the ends of the curve", row->b);
    else if (!isfinite(w->e.value))
        snprintf(row->why, sizeof row->why, "%s is 0, which has no ratio", row->b);
}

int claim_test(const struct claim *c, const struct members *all, double tie, struct claim_row *row,
               struct err *err)
{
    struct comparison worst = {.n = 0};
    row->state = CLAIM_OPEN;
    row->value = (struct claim_estimate){NAN, NAN, NAN, NAN, 0};
    row->mean[0] = row->mean[1] = NAN;
    row->of = all->n ? all->m[0].units.of : "heads";
    snprintf(row->metric, sizeof row->metric, "%s",
             c->metric                                             ? c->metric
             : all->n && strcmp(all->m[0].metric, all->m[0].label) ? all->m[0].metric
                                                                   : "");
    put_test(c, row->test, sizeof row->test);
    if (!all->reason[0] && !is_unmoved(c, all) && all->n >= least_members(c))
        PASS_ON(c->kind == CLAIM_FRONT ? test_front(c, all, tie, &worst, err)
                                       : test_members(c, all, tie, &worst, err));
    if (worst.n) {
        row->state = worst.state;
        row->value = worst.e;
        name_sides(c, &worst, row);
    }
    if (row->state == CLAIM_OPEN)
        say_why(c, all, &worst, row);
    return 0;
}

/* ---- printed numbers ------------------------------------------------------------------------- */

/* The numbers of one row or column of the table, by member. */
struct line {
    struct members m;
    double tie;
};

/* Put the printed part of a cell under a member's name; of `factor` per unit of the claim's metric.
 * A `rest` is what the printed number leaves. */
static void put_number(const struct page *p, const struct page_cell *c, int part, const char *name,
                       double factor, bool rest, struct line *l)
{
    struct paper_number x;
    const char *end;
    double number;
    if (!name || l->m.n == CLAIM_MEMBERS || !cell_printed(p, c, part, &x) ||
        !num_read(x.value, &number, &end))
        return;
    double tie = 0.5 * pow(10, -printed_digits(x.value)) / factor;
    struct member *m = &l->m.m[l->m.n++];
    snprintf(m->value, sizeof m->value, "%s", name);
    set_number(m, (rest ? factor - number : number) / factor, "");
    l->tie = fmax(l->tie, tie);
}

/* The case whose conditions a cell has, all of them. */
static const char *case_of(const struct page *p, const json_t *where)
{
    const char *own = json_str_or(where, "case", NULL), *name, *key;
    json_t *c, *v;
    if (own)
        return own;
    json_object_foreach((json_t *)p->recipe->cases, name, c)
    {
        bool fits = json_object_size(c) > 0;
        json_object_foreach(c, key, v) fits =
            fits && strcmp(json_str_or(where, key, ""), json_string_value(v)) == 0;
        if (fits)
            return name;
    }
    return NULL;
}

/* Which member of the claim a cell of this metric belongs to; NULL: to none. */
static const char *member_of(const struct page *p, const struct claim *c, const json_t *where,
                             const char *metric)
{
    const char *axis = json_string_value(c->set);
    bool list = json_is_array(c->set), cases = list || (axis && strcmp(axis, "cases") == 0);
    if (list && json_has_text(c->set, metric))
        return metric;
    if (!c->metric || strcmp(c->metric, metric) != 0)
        return NULL;
    const char *value = cases ? case_of(p, where) : axis ? json_str_or(where, axis, NULL) : metric;
    return list && value && !json_has_text(c->set, value) ? NULL : value;
}

static void take_cell(const struct page *p, const struct claim *c, const struct page_cell *cell,
                      struct line *l)
{
    const char *metric = cell_metric(cell, 0), *want = c->metric ? c->metric : "";
    if (!cell->rule || json_object_get(cell->rule, "metric") || !metric)
        return;
    /* the table may print what the claim's metric leaves */
    bool rest = strncmp(metric, "1-", 2) == 0 && strcmp(metric + 2, want) == 0;
    OWN(json_decrefp) json_t *where = rule_where(cell->rule, cell);
    put_number(p, cell, 0, member_of(p, c, where, rest ? want : metric), cell_scale(cell), rest, l);
}

/* 1 holds, 0 does not, -1 the line has not what the claim compares. A number has no interval;
 * figures, whose numbers stand in no table, have ranks and spreads. */
static int line_holds(const struct claim *c, const struct line *l)
{
    bool within = c->kind == CLAIM_WITHIN, mean = within && c->stat == STAT_MEAN;
    bool list = json_is_array(c->set) && c->kind != CLAIM_MOST && !mean;
    int n = list ? (int)json_array_size(c->set) : l->m.n;
    struct comparison worst = {.n = 0};
    struct claim own = *c;
    struct members m = {.n = 0};
    struct err ignored = {0};
    for (int i = mean && c->last ? n - 1 : 0; i < n; i++) {
        const char *name = json_string_value(json_array_get(c->set, (size_t)i));
        int at = list ? find_member(&l->m, name, l->m.n) : i;
        if (at < 0 && c->kind != CLAIM_ORDER)
            return -1;
        if (at >= 0)
            m.m[m.n++] = l->m.m[at];
    }
    if (c->kind == CLAIM_FRONT || (within && (c->stat == STAT_SPREAD || c->stat == STAT_RANK)) ||
        m.n < (mean                                       ? 1
               : within && c->stat == STAT_RATIO && !list ? 3
                                                          : 2))
        return -1;
    own.least = 1;
    own.l -= mean ? 0 : l->tie;
    own.h += mean ? 0 : l->tie;
    /* of two differences each has two roundings */
    if (test_members(&own, &m, m.n == 4 && c->kind == CLAIM_MORE ? 2 * l->tie : l->tie, &worst,
                     &ignored) != 0 ||
        !worst.n || !isfinite(worst.e.value))
        return -1;
    return worst.state == CLAIM_HOLDS;
}

static void take_line(const struct claim *c, const struct line *l, const char *label,
                      struct printed_claim *out)
{
    int holds = l->m.n ? line_holds(c, l) : -1;
    if (holds < 0)
        return;
    out->lines++;
    out->held += holds;
    if (!holds && !out->failed[0])
        snprintf(out->failed, sizeof out->failed, "%s", label);
}

/* Lines of a claim over columns: the printed numbers of a row, by the labels of their columns. */
static void take_columns(const struct page *p, const struct claim *c, const struct page_block *b,
                         struct printed_claim *out)
{
    for (int r = 0; r < b->rows.n; r++) {
        struct line l = {.tie = 0};
        for (int k = 0; k < b->columns.n; k++)
            put_number(p, page_cell_at(b, r, k), 0, b->columns.e[k].path, 1, false, &l);
        take_line(c, &l, b->rows.e[r].path, out);
    }
}

/* Lines of a claim over pairs of rows, "* FGAttn" and "* baseline": the two numbers of a column.
 * Papers write the same word with and without a capital. */
static void take_row_pairs(const struct page *p, const struct claim *c, const struct page_block *b,
                           struct printed_claim *out)
{
    const char *first = json_string_value(json_array_get(c->set, 0));
    const char *second = json_string_value(json_array_get(c->set, 1));
    for (int k = 0; k < b->rows.n * b->rows.n; k++) {
        int r = k / b->rows.n, s = k % b->rows.n;
        char star[2][96];
        if (!label_part(first, b->rows.e[r].path, true, star[0], sizeof star[0]) ||
            !label_part(second, b->rows.e[s].path, true, star[1], sizeof star[1]) ||
            strcmp(star[0], star[1]) != 0)
            continue;
        for (int i = 0; i < b->columns.n; i++) {
            struct line l = {.tie = 0};
            char label[96];
            put_number(p, page_cell_at(b, r, i), 0, first, 1, false, &l);
            put_number(p, page_cell_at(b, s, i), 0, second, 1, false, &l);
            snprintf(label, sizeof label, "%.48s, %.40s", b->rows.e[r].path, b->columns.e[i].path);
            take_line(c, &l, label, out);
        }
    }
}

/* Lines of a claim on a setting: the parts of a cell are what the jobs of a calibration found. */
static void take_settings(const struct page *p, const struct claim *c, const struct page_block *b,
                          struct printed_claim *out)
{
    const json_t *jobs = setting_jobs(p->recipe, c->setting), *job;
    const char *label = json_str_or(setting_rule(p->recipe, c->setting), "row", "");
    for (int k = 0; k < b->rows.n * b->columns.n; k++) {
        const struct page_cell *cell = &b->cell[k];
        struct line l = {.tie = 0};
        size_t i;
        json_array_foreach((json_t *)jobs, i, job)
        {
            if (strcmp(cell->row->path, label) == 0)
                put_number(p, cell, (int)i, json_string_value(job), 1, false, &l);
        }
        l.tie = 0; /* settings are exact */
        take_line(c, &l, cell->column->path, out);
    }
}

static bool varies(const struct line *l)
{
    for (int k = 1; k < l->m.n; k++)
        if (strcmp(l->m.m[k].value, l->m.m[0].value) != 0)
            return true;
    return false;
}

/* Lines of a claim on records: columns, and rows whose cells are of several members. */
static void take_lines(const struct page *p, const struct claim *c, const struct page_block *b,
                       bool rows, struct printed_claim *out)
{
    const struct grid_axis *along = rows ? &b->rows : &b->columns;
    const struct grid_axis *across = rows ? &b->columns : &b->rows;
    bool one = c->kind == CLAIM_WITHIN && c->stat == STAT_MEAN;
    for (int i = 0; i < along->n; i++) {
        struct line l = {.tie = 0};
        for (int k = 0; k < across->n; k++)
            take_cell(p, c, rows ? page_cell_at(b, i, k) : page_cell_at(b, k, i), &l);
        if (c->last ? varies(&l) : !rows || (!one && varies(&l)))
            take_line(c, &l, along->e[i].path, out);
    }
}

void claim_on_printed(const struct page *p, const struct claim *c, struct printed_claim *out)
{
    *out = (struct printed_claim){.lines = 0};
    for (int i = 0; i < p->n_blocks; i++) {
        const struct page_block *b = &p->blocks[i];
        if (c->labels) {
            (strcmp(c->labels, "row") == 0 ? take_row_pairs : take_columns)(p, c, b, out);
        } else if (c->setting) {
            take_settings(p, c, b, out);
        } else {
            take_lines(p, c, b, false, out);
            take_lines(p, c, b, true, out);
        }
    }
}

/* ---- all claims of a page -------------------------------------------------------------------- */

/* Half a unit of the last digit that the paper prints for a metric, in the metric's own scale. */
static double tie_of(const struct page *p, const char *metric)
{
    struct paper_number x;
    for (const struct page_cell *cell = NULL; (cell = next_cell(p, cell));) {
        const char *own =
            json_str_or(cell->column->j, "ours", json_str_or(cell->row->j, "ours", ""));
        if (strcmp(own, metric) == 0 && cell_printed(p, cell, 0, &x))
            return 0.5 * pow(10, -printed_digits(x.value)) / cell_scale(cell);
    }
    return 0.0005;
}

/* In how much of the printed table the claim holds. */
static void put_printed(const struct page *p, const struct claim *c, struct claim_row *row)
{
    struct printed_claim in;
    claim_on_printed(p, c, &in);
    if (in.lines && in.held == in.lines)
        snprintf(row->printed, sizeof row->printed, "holds");
    else if (in.lines)
        snprintf(row->printed, sizeof row->printed, "%d of %d, not in %s", in.held, in.lines,
                 in.failed);
    if (!c->labels)
        return;
    row->state = !in.lines ? CLAIM_OPEN : in.held == in.lines ? CLAIM_HOLDS : CLAIM_HOLDS_NOT;
    row->value.n = in.lines;
    row->of = strcmp(c->labels, "row") == 0 ? "printed pairs" : "printed rows";
    put_test(c, row->test, sizeof row->test);
}

/* With one input behind the records an interval says nothing of prompts. */
static void note_one_prompt(struct page *p, int model, const struct claim_row *row)
{
    const struct choice all = {model, -1, NULL, NULL};
    const struct proof *first = next_proof(&p->evidence, &all, NULL), *v = first;
    while (v && strcmp(v->r->trace, first->r->trace) == 0)
        v = next_proof(&p->evidence, &all, v);
    if (!v && row->state != CLAIM_OPEN && strcmp(row->of, "prompts") != 0 && row->value.n > 1)
        page_note(p, "%s read one prompt here: intervals cover %s only", row->model, row->of);
}

/* Why numbers of the shipped model contradict the paper, as the recipe says it. */
static void note_cause(struct page *p, const json_t *claim, int model, const struct claim_row *row)
{
    const char *cause = json_str_or(claim, "cause", NULL);
    if (cause && row->state != CLAIM_HOLDS && isfinite(row->value.value) &&
        !p->plan->models->m[model].given)
        page_note(p, "Why '%s' does not show on %s: %s", row->text, row->model, cause);
}

static int test_on_model(struct page *p, const struct claim *c, int model, struct claim_row *row,
                         struct err *err)
{
    struct members *all = NULL;
    int rc = 0;
    TRY(mem_zalloc(&all, 1, sizeof *all, "claim", err));
    TRY(claim_members(p, c, model, all, err));
    const char *metric = c->metric ? c->metric : all->n ? all->m[0].metric : "";
    TRY(claim_test(c, all, tie_of(p, metric), row, err));
    snprintf(row->model, sizeof row->model, "%s", p->plan->models->m[model].name);
    note_one_prompt(p, model, row);
out:
    if (all)
        members_free(all);
    free(all);
    return rc;
}

/* Model -1: of printed labels alone, or not tested, because of what `needs` says. */
static int add_row(struct page *p, const json_t *claim, int model, const char *needs,
                   struct err *err)
{
    struct claim c;
    PASS_ON(claim_read(json_object_get(claim, "test"), &c, err));
    PASS_ON(
        mem_grow(&p->claims, &p->cap_claims, p->n_claims + 1, sizeof *p->claims, "claims", err));
    struct claim_row *row = &p->claims[p->n_claims++];
    *row = (struct claim_row){.id = json_str_or(claim, "id", ""),
                              .text = json_str_or(claim, "text", ""),
                              .mean = {NAN, NAN},
                              .value = {NAN, NAN, NAN, NAN, 0},
                              .of = "heads",
                              .state = CLAIM_OPEN};
    put_printed(p, &c, row);
    if (model >= 0) {
        PASS_ON(test_on_model(p, &c, model, row, err));
        note_cause(p, claim, model, row);
    } else if (!c.labels)
        snprintf(row->why, sizeof row->why, "needs %s", *needs == 'K' ? "a GPU" : "eval");
    return 0;
}

int page_claims(struct page *p, struct err *err)
{
    size_t i;
    json_t *claim;
    for (int m = 0; m <= p->plan->models->n; m++)
        json_array_foreach(p->recipe->claims, i, claim)
        {
            const char *needs = json_str_or(claim, "needs", "");
            bool labels = json_object_get(json_object_get(claim, "test"), "labels") != NULL;
            bool here = !needs[0] || p->plan->cuda, last = m == p->plan->models->n;
            if (!last && !labels && here && page_uses(p, -1, m))
                PASS_ON(add_row(p, claim, m, needs, err));
            if (last && (labels || (needs[0] && !(p->plan->cuda && p->recipe->n_jobs))))
                PASS_ON(add_row(p, claim, -1, needs, err));
        }
    return 0;
}
