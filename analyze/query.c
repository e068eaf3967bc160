/*
 * query.c - see query.h.
 */
#include "analyze/query.h"
#include "core/mem.h"

#include "analyze/group.h"
#include "core/metricdef.h"

#include <ctype.h>
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- numbers of a record --------------------------------------------------------------------- */

/* A parser by recursive descent. sum = product {(+|-) product}; product = atom {(*|/) atom}; atom =
 * number | metric | "(" sum ")". What it cannot read it leaves. */
static const char *read_sum(struct expr *e, const char *p);

static void add_step(struct expr *e, char op, double number)
{
    if (e->n_steps < EXPR_STEPS)
        e->step[e->n_steps] = (struct expr_step){op, number, e->n - 1};
    e->n_steps++;
}

static const char *read_atom(struct expr *e, const char *p)
{
    size_t len = strcspn(p, "+-*/() ");
    const char *end;
    double number;
    if (*p == '(') {
        p = read_sum(e, p + 1);
        return p && *p == ')' ? p + 1 : NULL;
    }
    if (isdigit((unsigned char)*p)) {
        if (!num_read(p, &number, &end))
            return NULL;
        add_step(e, 'n', number);
        return end;
    }
    if (len == 0 || len >= METRIC_NAME || e->n == EXPR_TERMS)
        return NULL;
    snprintf(e->name[e->n++], METRIC_NAME, "%.*s", (int)len, p);
    add_step(e, 'm', 0);
    return p + len;
}

static const char *read_product(struct expr *e, const char *p)
{
    p = read_atom(e, p);
    while (p && (*p == '*' || *p == '/')) {
        char op = *p;
        p = read_atom(e, p + 1);
        add_step(e, op, 0);
    }
    return p;
}

static const char *read_sum(struct expr *e, const char *p)
{
    p = read_product(e, p);
    while (p && (*p == '+' || *p == '-')) {
        char op = *p;
        p = read_product(e, p + 1);
        add_step(e, op, 0);
    }
    return p;
}

struct expr expr_parse(const char *text)
{
    struct expr e = {.n = 0};
    const char *end = read_sum(&e, text);
    return end && !*end && e.n_steps <= EXPR_STEPS ? e : (struct expr){.n = 0};
}

double expr_of(const struct expr *e, const double *metrics)
{
    double stack[EXPR_STEPS] = {0};
    int n = 0;
    for (int i = 0; i < e->n_steps; i++) {
        const struct expr_step *s = &e->step[i];
        if (s->op == 'n' || s->op == 'm') {
            stack[n++] = s->op == 'n' ? s->number : metrics[s->metric];
            continue;
        }
        double y = stack[--n], *x = &stack[n - 1];
        *x = s->op == '+' ? *x + y : s->op == '-' ? *x - y : s->op == '*' ? *x * y : *x / y;
    }
    return stack[0];
}

bool expr_value(struct expr *e, const struct record *r, double *out)
{
    double x[EXPR_TERMS];
    if (!r->names || e->n == 0)
        return false;
    if (e->names != r->names) {
        e->has = true;
        e->names = r->names;
        for (int i = 0; i < e->n; i++) {
            e->at[i] = metric_place(r->names, e->name[i]);
            e->has = e->has && e->at[i] >= 0;
        }
    }
    for (int i = 0; i < e->n && e->has; i++)
        x[i] = r->values[e->at[i]];
    if (e->has)
        *out = expr_of(e, x);
    return e->has;
}

double record_value(const struct record *r, const char *metric)
{
    struct expr e = expr_parse(metric);
    double x;
    return expr_value(&e, r, &x) ? x : NAN;
}

bool record_has(const struct record *r, const char *metric)
{
    struct expr e = expr_parse(metric);
    double x;
    return expr_value(&e, r, &x);
}

bool any_has(const struct record *r, int64_t n, const char *metric)
{
    struct expr e = expr_parse(metric);
    double x;
    for (int64_t i = 0; i < n; i++)
        if (r[i].status == RECORD_OK && expr_value(&e, &r[i], &x))
            return true;
    return false;
}

/* ---- names of metrics ------------------------------------------------------------------------ */

bool name_matches(const char *patterns, const char *name)
{
    for (const char *p = patterns; *p;) {
        size_t len = strcspn(p, ",");
        char one[64];
        snprintf(one, sizeof one, "%.*s", (int)(len < sizeof one ? len : sizeof one - 1), p);
        if (fnmatch(one, name, 0) == 0)
            return true;
        p += len + (p[len] == ',');
    }
    return false;
}

bool list_is_new(struct lists_met *met, const struct record *r)
{
    for (int k = 0; k < 16; k++)
        if (met->list[k] == r->names)
            return false;
    met->list[met->next++ % 16] = r->names;
    return true;
}

static void add_matching(const struct record *r, int64_t n, const char *pattern,
                         struct str_list *out)
{
    struct lists_met met = {0};
    for (int64_t i = 0; i < n; i++) {
        if (r[i].status != RECORD_OK || !list_is_new(&met, &r[i]))
            continue;
        for (int64_t k = 0; k < record_metrics(&r[i]); k++) {
            const char *name = record_metric_name(&r[i], k);
            if (fnmatch(pattern, name, 0) == 0 && !str_list_has(out, name))
                str_list_add(out, name);
        }
    }
}

int recset_metrics(const struct recset *s, const char *patterns, struct str_list *out,
                   struct err *err)
{
    for (const char *p = patterns; *p;) {
        size_t len = strcspn(p, ",");
        char one[64];
        if (len >= sizeof one)
            return err_set(err, ERR_USAGE, "'%.*s' is longer than any metric's name", (int)len, p);
        snprintf(one, sizeof one, "%.*s", (int)len, p);
        add_matching(s->r, s->n, one, out);
        add_matching(s->calls, s->n_calls, one, out);
        p += len + (p[len] == ',');
    }
    return 0;
}

int recset_check_metrics(const struct recset *a, const struct recset *b, const char *option,
                         const char *patterns, struct err *err)
{
    for (const char *p = patterns; *p;) {
        int len = (int)strcspn(p, ",");
        char one[64];
        struct str_list found = {0};
        snprintf(one, sizeof one, "%.*s", len, p);
        int rc = recset_metrics(a, one, &found, err);
        if (!rc && !found.n && b)
            rc = recset_metrics(b, one, &found, err);
        bool any = found.n > 0;
        str_list_free(&found);
        if (rc)
            return rc;
        if (!any)
            return err_set(err, ERR_USAGE,
                           "%s: no ok record has a metric '%.*s' (lacuna list metrics)", option,
                           len, p);
        p += len + (p[len] == ',');
    }
    return 0;
}

/* ---- keys ------------------------------------------------------------------------------------ */

bool recset_varies(const struct recset *s, enum group_key k)
{
    if (s->keys_known && k < KEY_COUNT)
        return s->varying >> k & 1;
    for (int64_t i = 1; i < s->n; i++)
        if (key_compare(&s->r[0], &s->r[i], k) != 0)
            return true;
    return false;
}

/* What differs between these is not a sample of one quantity: never average over it. */
const enum group_key scope_keys[] = {
    KEY_SCOPE,   KEY_HEADS,   KEY_MODEL,     KEY_CAUSAL, KEY_N_Q,    KEY_N_K,     KEY_D,
    KEY_PERMUTE, KEY_BACKEND, KEY_PRECISION, KEY_SEED,   KEY_TOKENS, KEY_SETTING,
};
const int n_scope_keys = sizeof scope_keys / sizeof *scope_keys;

/* Does the key split records that agree in the keys chosen so far? */
static int splits_further(const struct recset *set, const enum group_key *keys, int n,
                          enum group_key k, bool *out, struct err *err)
{
    OWN(grouping_free) struct grouping gs = {0};
    int rc = grouping_make(set, keys, n, 0, NULL, NULL, &gs, err);
    *out = false;
    for (int64_t i = 0; i < gs.n && !*out; i++)
        for (int64_t m = 1; m < gs.g[i].n && !*out; m++)
            *out = key_compare(gs.g[i].first, &set->r[gs.g[i].at[m]], k) != 0;
    return rc;
}

int recset_scope(const struct recset *set, enum group_key keys[KEYS_MAX], int *n, struct err *err)
{
    bool split;
    *n = 0;
    for (int i = 0; i < n_scope_keys; i++) {
        if (!recset_varies(set, scope_keys[i]))
            continue;
        PASS_ON(splits_further(set, keys, *n, scope_keys[i], &split, err));
        if (split)
            keys[(*n)++] = scope_keys[i];
    }
    return 0;
}

bool has_key(const enum group_key *keys, int n, enum group_key k)
{
    for (int i = 0; i < n; i++)
        if (keys[i] == k)
            return true;
    return false;
}

int keys_compare(const struct record *a, const struct record *b, const enum group_key *keys, int n)
{
    int order = 0;
    for (int i = 0; i < n && !order; i++)
        order = key_compare(a, b, keys[i]);
    return order;
}

bool same_keys(const struct record *a, const struct record *b, const enum group_key *keys, int n)
{
    return keys_compare(a, b, keys, n) == 0;
}

/* ---- conditions ------------------------------------------------------------------------------ */

static int bad(const char *option, const struct condition *c, const char *why, struct err *err)
{
    return err_set(err, ERR_USAGE,
                   "%s '%s': %s; expected such as method=sale, layer=0..3, tau<=0.01 or cra_p1>0.9",
                   option, c->text, why);
}

/* Key or parameter, else a metric. */
static int resolve(const char *option, struct condition *c, struct err *err)
{
    enum group_key keys[KEYS_MAX];
    struct err why = {0};
    int n;
    if (keys_parse(c->name, option, keys, &n, &why) == 0 && n == 1) {
        c->is_key = true;
        c->key = keys[0];
        return 0;
    }
    if (c->relation <= IS_NOT && metric_def_find(c->name))
        return bad(option, c, "a metric is compared by <, <=, > or >=", err);
    c->metric = expr_parse(c->name);
    if (metric_def_find(c->name))
        return 0;
    *err = why;
    return why.code;
}

/* A number that fills the text; NAN otherwise. */
static double number(const char *text)
{
    const char *end;
    double x;
    if (!num_read(text, &x, &end) || (*end && strcmp(end, "%") != 0))
        return NAN;
    return *end ? x / 100 : x;
}

/* Does one of the values have the form of a range, 1..3, but an end that lacks or lies below the
 * beginning? `!=` would keep every record. */
static bool empty_range(const char *values)
{
    for (const char *p = values;;) {
        size_t len = strcspn(p, "|");
        char low[192];
        snprintf(low, sizeof low, "%.*s", (int)len, p);
        char *dots = strstr(low, "..");
        if (dots) {
            *dots = '\0';
            double a = number(low), b = number(dots + 2);
            bool one_end = (!isnan(a) && !dots[2]) || (!isnan(b) && !low[0]);
            if (one_end || a > b)
                return true;
        }
        if (!p[len])
            return false;
        p += len + 1;
    }
}

static int parse(const char *option, const char *text, size_t len, struct condition *c,
                 struct err *err)
{
    *c = (struct condition){0};
    if (len >= sizeof c->text)
        return err_set(err, ERR_USAGE, "%s: '%.*s...' is too long", option, 60, text);
    snprintf(c->text, sizeof c->text, "%.*s", (int)len, text);
    size_t n = strcspn(c->text, "=<>!");
    const char *op = c->text + n;
    if (n == 0 || n >= sizeof c->name || !*op || (*op == '!' && op[1] != '='))
        return bad(option, c, "no condition", err);
    snprintf(c->name, sizeof c->name, "%.*s", (int)n, c->text);
    bool equal = op[1] == '=';
    c->relation = *op == '='   ? IS
                  : *op == '!' ? IS_NOT
                  : *op == '<' ? (equal ? AT_MOST : BELOW)
                               : (equal ? AT_LEAST : ABOVE);
    c->values = (size_t)(op - c->text) + 1 + (*op != '=' && equal);
    if (c->relation > IS_NOT) {
        if (!num_fills(c->text + c->values, &c->limit))
            return bad(option, c, "not a number", err);
    } else if (empty_range(c->text + c->values)) {
        return bad(option, c, "a range that no value is in", err);
    }
    return resolve(option, c, err);
}

static bool value_is(const char *value, const char *wanted)
{
    const char *dots = strstr(wanted, "..");
    double x = number(value);
    if (dots && !isnan(x)) {
        char low[48];
        snprintf(low, sizeof low, "%.*s", (int)(dots - wanted), wanted);
        double a = number(low), b = number(dots + 2);
        if (!isnan(a) && !isnan(b))
            return a <= x && x <= b;
    }
    if (!isnan(x) && x == number(wanted))
        return true;
    return fnmatch(wanted, value, 0) == 0;
}

static bool is_one_of(const char *value, const char *values)
{
    for (const char *p = values;;) {
        size_t len = strcspn(p, "|");
        char one[192];
        snprintf(one, sizeof one, "%.*s", (int)len, p);
        if (value_is(value, one))
            return true;
        if (!p[len])
            return false;
        p += len + 1;
    }
}

static bool in_order(enum relation r, double x, double limit)
{
    switch (r) {
    case BELOW:
        return x < limit;
    case AT_MOST:
        return x <= limit;
    case ABOVE:
        return x > limit;
    default:
        return x >= limit;
    }
}

static bool holds(struct condition *c, const struct record *r)
{
    OWN(buf_free) struct buf b = {0};
    double x;
    bool yes;
    if (!c->is_key)
        return r->status == RECORD_OK && expr_value(&c->metric, r, &x) &&
               in_order(c->relation, x, c->limit);
    key_text(r, c->key, &b);
    if (c->relation > IS_NOT)
        yes = in_order(c->relation, number(buf_str(&b)), c->limit);
    else
        yes = is_one_of(buf_str(&b), c->text + c->values) == (c->relation == IS);
    return yes;
}

int where_parse(const char *option, const char *text, struct condition *out, int most, int *n,
                struct err *err)
{
    *n = 0;
    for (const char *p = text; *p;) {
        size_t len = strcspn(p, ",");
        if (*n == most)
            return err_set(err, ERR_USAGE, "%s: more than %d conditions", option, most);
        PASS_ON(parse(option, p, len, &out[(*n)++], err));
        p += len + (p[len] == ',');
    }
    return 0;
}

bool where_holds(struct condition *c, int n, const struct record *r)
{
    for (int i = 0; i < n; i++)
        if (!holds(&c[i], r))
            return false;
    return true;
}

static int64_t keep(struct condition *c, struct record *r, int64_t n)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++)
        if (holds(c, &r[i]))
            r[kept++] = r[i];
        else
            record_free(&r[i]);
    return kept;
}

#define CONDITIONS_MOST 32

int recset_where(const struct str_list *texts, struct recset *set, struct err *err)
{
    struct condition c[CONDITIONS_MOST];
    int n;
    for (int64_t i = 0; i < texts->n; i++) {
        PASS_ON(where_parse("--where", texts->items[i], c, CONDITIONS_MOST, &n, err));
        for (int k = 0; k < n; k++) {
            set->n = keep(&c[k], set->r, set->n);
            set->n_calls = keep(&c[k], set->calls, set->n_calls);
            recset_settle(set);
            if (set->n == 0)
                return err_set(err, ERR_INPUT, "--where '%s': no record is left", c[k].text);
        }
    }
    return 0;
}
