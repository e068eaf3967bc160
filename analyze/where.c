/*
 * where.c - see where.h.
 */
#include "analyze/where.h"

#include "analyze/group.h"
#include "core/metricdef.h"
#include "analyze/keys.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum relation { IS, IS_NOT, BELOW, AT_MOST, ABOVE, AT_LEAST };

struct condition {
    char text[192], name[64];
    enum relation relation;
    const char *values; /* of IS and IS_NOT, in text */
    double limit;       /* of the others */
    bool is_key;
    enum group_key key;
};

static int bad(const struct condition *c, const char *why, struct err *err)
{
    return err_set(err, ERR_USAGE,
                   "--where '%s': %s; expected such as method=sale, layer=0..3, tau<=0.01 or "
                   "cra_p1>0.9",
                   c->text, why);
}

/* Key or parameter, else a metric. */
static int resolve(struct condition *c, struct err *err)
{
    enum group_key keys[KEYS_MAX];
    struct err why = {0};
    int n;
    if (keys_parse(c->name, "--where", keys, &n, &why) == 0 && n == 1) {
        c->is_key = true;
        c->key = keys[0];
        return 0;
    }
    if (c->relation <= IS_NOT && metric_def_find(c->name))
        return bad(c, "a metric is compared by <, <=, > or >=", err);
    if (metric_def_find(c->name))
        return 0;
    *err = why;
    return why.code;
}

/* A number that fills the text; NAN otherwise. */
static double number(const char *text)
{
    char *end;
    double x = strtod(text, &end);
    if (end != text && *end == '%' && !end[1])
        return x / 100;
    return end == text || *end ? NAN : x;
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

static int parse(const char *text, size_t len, struct condition *c, struct err *err)
{
    *c = (struct condition){0};
    if (len >= sizeof c->text)
        return err_set(err, ERR_USAGE, "--where: '%.*s...' is too long", 60, text);
    snprintf(c->text, sizeof c->text, "%.*s", (int)len, text);
    size_t n = strcspn(c->text, "=<>!");
    const char *op = c->text + n;
    if (n == 0 || n >= sizeof c->name || !*op || (*op == '!' && op[1] != '='))
        return bad(c, "no condition", err);
    snprintf(c->name, sizeof c->name, "%.*s", (int)n, c->text);
    bool equal = op[1] == '=';
    c->relation = *op == '='   ? IS
                  : *op == '!' ? IS_NOT
                  : *op == '<' ? (equal ? AT_MOST : BELOW)
                               : (equal ? AT_LEAST : ABOVE);
    c->values = op + 1 + (*op != '=' && equal);
    if (c->relation > IS_NOT) {
        char *end;
        c->limit = strtod(c->values, &end);
        if (end == c->values || *end || isnan(c->limit))
            return bad(c, "not a number", err);
    } else if (empty_range(c->values)) {
        return bad(c, "a range that no value is in", err);
    }
    return resolve(c, err);
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

static bool holds(const struct condition *c, const struct record *r)
{
    struct buf b = {0};
    bool yes;
    if (!c->is_key)
        return r->status == RECORD_OK && in_order(c->relation, record_value(r, c->name), c->limit);
    key_text(r, c->key, &b);
    if (c->relation > IS_NOT)
        yes = in_order(c->relation, number(buf_str(&b)), c->limit);
    else
        yes = is_one_of(buf_str(&b), c->values) == (c->relation == IS);
    buf_free(&b);
    return yes;
}

static int64_t keep(const struct condition *c, struct record *r, int64_t n)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++)
        if (holds(c, &r[i]))
            r[kept++] = r[i];
        else
            record_free(&r[i]);
    return kept;
}

int recset_where(const struct str_list *texts, struct recset *set, struct err *err)
{
    struct condition c;
    for (int64_t i = 0; i < texts->n; i++)
        for (const char *p = texts->items[i]; *p;) {
            size_t len = strcspn(p, ",");
            int rc = parse(p, len, &c, err);
            if (rc)
                return rc;
            set->n = keep(&c, set->r, set->n);
            set->n_calls = keep(&c, set->calls, set->n_calls);
            recset_settle(set);
            if (set->n == 0)
                return err_set(err, ERR_INPUT, "--where '%s': no record is left", c.text);
            p += len + (p[len] == ',');
        }
    return 0;
}
