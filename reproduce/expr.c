/*
 * expr.c - a parser by recursive descent. sum = product {(+|-) product}; product = atom {(*|/)
 * atom}; atom = number | metric | "(" sum ")".
 */
#include "reproduce/expr.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct parser {
    const char *p;
    expr_value *value;
    const void *ctx;
    expr_metric *each;
    void *each_ctx;
    struct err *err;
    int rc;
};

static double sum(struct parser *x);

/* A metric's name may hold '@' with conditions, as in below_b16@0.25. */
static size_t name_length(const char *p)
{
    size_t n = 0;
    while (isalnum((unsigned char)p[n]) || p[n] == '_' || p[n] == '@' || p[n] == ':' ||
           (p[n] == '.' && n))
        n++;
    return n;
}

static double atom(struct parser *x)
{
    char name[64];
    if (*x->p == '(') {
        x->p++;
        double v = sum(x);
        if (*x->p != ')')
            x->rc = ERR_INPUT;
        else
            x->p++;
        return v;
    }
    if (isdigit((unsigned char)*x->p)) {
        char *end;
        double v = strtod(x->p, &end);
        x->p = end;
        return v;
    }
    size_t n = name_length(x->p);
    if (n == 0 || n >= sizeof name) {
        x->rc = ERR_INPUT;
        return NAN;
    }
    memcpy(name, x->p, n);
    name[n] = '\0';
    x->p += n;
    if (x->each && !x->rc)
        x->rc = x->each(x->each_ctx, name, x->err);
    return x->value ? x->value(x->ctx, name) : NAN;
}

static double product(struct parser *x)
{
    double v = atom(x);
    while (!x->rc && (*x->p == '*' || *x->p == '/')) {
        char op = *x->p++;
        double w = atom(x);
        v = op == '*' ? v * w : v / w;
    }
    return v;
}

static double sum(struct parser *x)
{
    double v = product(x);
    while (!x->rc && (*x->p == '+' || *x->p == '-')) {
        char op = *x->p++;
        double w = product(x);
        v = op == '+' ? v + w : v - w;
    }
    return v;
}

double expr_eval(const char *text, expr_value *value, const void *ctx)
{
    struct parser x = {.p = text, .value = value, .ctx = ctx};
    double v = sum(&x);
    return x.rc || *x.p ? NAN : v;
}

int expr_metrics(const char *text, expr_metric *fn, void *ctx, struct err *err)
{
    struct parser x = {.p = text, .each = fn, .each_ctx = ctx, .err = err};
    sum(&x);
    if (x.rc != 0 && err->code != 0)
        return x.rc;
    return x.rc || *x.p ? err_set(err, ERR_INPUT, "'%s' is no expression over metrics", text) : 0;
}
