/*
 * budget.c - see budget.h.
 */
#include "core/budget.h"

#include "core/mem.h"
#include "core/method.h"
#include "core/text.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Values between the ends of a continuous range: far finer than any metric answers to. */
#define CONTINUOUS_STEPS ((int64_t)1 << 20)

/* How far from an end that the option excludes the range ends, as a share of it. */
#define OPEN_END 1e-4

/* Least 1 - x of BUDGET_COMPLEMENT before x becomes the upper end itself. */
#define COMPLEMENT_LEAST 1e-7

/* ---- text ----------------------------------------------------------------------------------- */

static bool name_char(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '.' || c == '@';
}

const char *budget_find(const char *text)
{
    for (const char *at = strchr(text, '@'); at; at = strchr(at + 1, '@')) {
        const char *end = at + 1;
        while (name_char(*end))
            end++;
        if (end > at + 1 && (*end == '=' || (strchr("<>", *end) && *end && end[1] == '=')))
            return at;
    }
    return NULL;
}

static int check_metric(const char *name, const char *who, struct err *err)
{
    const struct metric_def *m = metric_def_find(name);
    struct names all = {0};
    if (!m) {
        for (const struct metric_def *d = metric_defs; d->name; d++)
            names_add(&all, d->name);
        names_unknown(&all, "metric", name, err);
        return err_prefix(err, "%s", who);
    }
    if (m->noise == NOISE_MEASURED)
        return err_set(err, ERR_USAGE,
                       "%s: @%s: a measured time or counter differs from run to run and cannot be "
                       "met; take a density, a recall or an error",
                       who, name);
    if (m->section && strcmp(m->section, "budget") == 0)
        return err_set(err, ERR_USAGE, "%s: @%s: that is itself the outcome of a search", who,
                       name);
    return 0;
}

/* ":per=..." at the end of a target, cut off. */
static int parse_per(char *text, const char *who, enum target_per *per, struct err *err)
{
    static const char *const names[] = {"head", "layer", "model", NULL};
    char *colon = strchr(text, ':');
    *per = TARGET_PER_HEAD;
    if (!colon)
        return 0;
    *colon++ = '\0';
    if (strncmp(colon, "per=", 4) == 0)
        for (int i = 0; names[i]; i++)
            if (strcmp(colon + 4, names[i]) == 0) {
                *per = (enum target_per)i;
                return 0;
            }
    return err_set(err, ERR_USAGE,
                   "%s: '%s' after the target: per=head, per=layer or per=model was expected; "
                   "parameters stand before the '@'",
                   who, colon);
}

/* No setting reaches a share above 1 or an error below 0: every search would end at an edge. */
static int check_value(const char *metric, double x, const char *who, struct err *err)
{
    const struct metric_def *m = metric_def_find(metric);
    bool share = m && m->axis == AXIS_SHARE, positive = share || (m && m->axis == AXIS_LOG);
    if ((positive && x < 0) || (share && x > 1))
        return err_set(err, ERR_USAGE, "%s: @%s: %.6g is never reached, it is %s", who, metric, x,
                       share ? "a share from 0 to 1" : "0 or more");
    return 0;
}

static int add_value(const char *word, const char *who, const struct budget_target *t,
                     struct budget_target **list, int64_t *n, int64_t *cap, struct err *err)
{
    double x;
    if (!num_fills(word, &x))
        return err_set(err, ERR_USAGE, "%s: @%s: '%s' is not a number", who, t->metric, word);
    PASS_ON(check_value(t->metric, x, who, err));
    PASS_ON(mem_grow(list, cap, *n + 1, sizeof **list, "targets", err));
    (*list)[*n] = *t;
    (*list)[(*n)++].value = x;
    return 0;
}

int budget_parse(const char *text, const char *who, struct budget_target **list, int64_t *n,
                 struct err *err)
{
    struct budget_target t = {.kind = TARGET_HIT};
    char *copy = strdup(text), *save = NULL;
    int64_t cap = 0;
    int rc = 0;
    *list = NULL;
    *n = 0;
    if (!copy)
        return err_set(err, ERR_NOMEM, "%s: out of memory", who);
    size_t len = strcspn(copy, "<>=");
    char op = copy[len];
    snprintf(t.metric, sizeof t.metric, "%.*s", (int)(len < 47 ? len : 47), copy);
    TRY(check_metric(t.metric, who, err));
    t.kind = op == '>' ? TARGET_AT_LEAST : op == '<' ? TARGET_AT_MOST : TARGET_HIT;
    char *values = copy + len + (op == '=' ? 1 : 2);
    TRY(parse_per(values, who, &t.per, err));
    for (char *word = strtok_r(values, ",", &save); word; word = strtok_r(NULL, ",", &save))
        TRY(add_value(word, who, &t, list, n, &cap, err));
    if (*n == 0)
        FAIL(err, ERR_USAGE, "%s: @%s: a number is missing", who, t.metric);
out:
    free(copy);
    if (rc) {
        free(*list);
        *list = NULL;
        *n = 0;
    }
    return rc;
}

void budget_text(const struct budget_target *t, struct buf *b)
{
    static const char *const ops[] = {"=", ">=", "<="};
    static const char *const per[] = {"", ":per=layer", ":per=model"};
    char value[32];
    num_text(t->value, value);
    buf_printf(b, "@%s%s%s%s", t->metric, ops[t->kind], value, per[t->per]);
}

/* ---- which parameter ------------------------------------------------------------------------ */

/* One condition "key=a|b". */
static bool holds(const struct method *m, const void *params, const char *cond, size_t len)
{
    char text[96];
    snprintf(text, sizeof text, "%.*s", (int)len, cond);
    char *values = strchr(text, '=');
    *values++ = '\0';
    const struct opt *o = opt_find(m->params.table, text);
    int i = *(const int *)((const char *)params + o->offset);
    const char *has = i < 0 ? "unset" : o->values[i];
    return words_have(values, '|', has, strlen(has));
}

static bool applies(const struct method *m, const void *params, const struct budget_param *b)
{
    for (const char *p = b->only; p && *p;) {
        size_t len = strcspn(p, " ");
        if (!holds(m, params, p, len))
            return false;
        p += len + (p[len] == ' ');
    }
    return true;
}

/* The budget parameter that m has under these parameters, NULL if none. */
static const struct budget_param *budget_of(const struct method *m, const void *params)
{
    for (const struct budget_param *b = m->params.budget; b && b->params; b++)
        if (applies(m, params, b))
            return b;
    return NULL;
}

/* The option that a list of names, separated by spaces, begins with, which is then taken off it;
 * NULL at its end. */
static const struct opt *next_param(const struct method *m, const char **list)
{
    char name[48];
    size_t len = strcspn(*list, " ");
    if (len == 0)
        return NULL;
    snprintf(name, sizeof name, "%.*s", (int)len, *list);
    *list += len + ((*list)[len] == ' ');
    return opt_find(m->params.table, name);
}

static int no_budget(const struct budget_target *t, const struct method *m, struct err *err)
{
    OWN(buf_free) struct buf where = {0};
    for (const struct budget_param *b = m->params.budget; b && b->params; b++)
        buf_printf(&where, "%s%s%s%s", where.len ? ", " : "", b->params, b->only ? " with " : "",
                   b->only ? b->only : "");
    return where.len ? err_set(err, ERR_USAGE,
                               "method %s has no budget parameter under these settings, so @%s "
                               "cannot be searched; it has %s",
                               m->name, t->metric, buf_str(&where))
                     : err_set(err, ERR_USAGE,
                               "method %s has no budget parameter, so @%s cannot be searched: "
                               "replay it as it is",
                               m->name, t->metric);
}

/* ---- values --------------------------------------------------------------------------------- */

int budget_range(const struct budget_target *t, const struct method *m, int64_t nk,
                 struct budget_range *r, struct err *err)
{
    const char *list = t->params;
    const struct budget_param *b = t->of;
    const struct opt *o = next_param(m, &list);
    double lo = b->lo, hi = b->hi;
    if (lo == 0 && hi == 0) {
        lo = o->min;
        hi = o->max;
    }
    if (hi == BUDGET_TOKENS || (b->scale == BUDGET_COUNT && hi > (double)nk))
        hi = (double)nk;
    if (b->scale == BUDGET_LIN && o->flags & OPT_MIN_OPEN && lo == o->min)
        lo += (hi - lo) * OPEN_END;
    if (b->scale == BUDGET_LIN && o->flags & OPT_MAX_OPEN && hi == o->max)
        hi -= (hi - lo) * OPEN_END;
    if (b->scale == BUDGET_COMPLEMENT && o->flags & OPT_MIN_OPEN && lo == o->min)
        lo = OPEN_END;
    if (!(lo <= hi))
        return err_set(err, ERR_RUN, "method %s: no value of %s is left to search for %lld keys",
                       m->name, o->name, (long long)nk);
    *r = (struct budget_range){b, lo, hi, CONTINUOUS_STEPS + 1, b->step ? b->step : 1};
    if (b->scale == BUDGET_COUNT)
        r->count = (int64_t)((hi - lo) / (double)r->step) + 1;
    return 0;
}

static double budget_value(const struct budget_range *r, int64_t at)
{
    int64_t i = r->of->falls ? r->count - 1 - at : at;
    double u = r->count > 1 ? (double)i / (double)(r->count - 1) : 0, span;
    switch (r->of->scale) {
    case BUDGET_COUNT:
        return r->lo + (double)(i * r->step);
    case BUDGET_LOG:
        return i == r->count - 1 ? r->hi : r->lo * pow(r->hi / r->lo, u);
    case BUDGET_COMPLEMENT:
        span = COMPLEMENT_LEAST / (1 - r->lo);
        return i == r->count - 1 ? r->hi : 1 - (1 - r->lo) * pow(span, u);
    case BUDGET_LIN:
        break;
    }
    return r->lo + (r->hi - r->lo) * u;
}

/* The value of a parameter as a number, NAN if it is unset: of an OPT_SHARE the count, or the share
 * where shares are searched. */
static double number_of(const struct opt *o, const void *params, enum budget_scale scale,
                        int64_t nk)
{
    const void *p = (const char *)params + o->offset;
    if (opt_is_unset(o, params))
        return NAN;
    if (o->type == OPT_INT)
        return (double)*(const int64_t *)p;
    if (o->type == OPT_SHARE && scale == BUDGET_COUNT)
        return (double)share_resolve(*(const struct share *)p, nk);
    if (o->type == OPT_SHARE) {
        const struct share *s = p;
        return s->is_share ? s->value : s->value / (double)nk;
    }
    return *(const double *)p;
}

int64_t budget_start(const struct budget_range *r, const struct budget_target *t,
                     const struct method *m, const void *params, int64_t nk)
{
    const char *list = t->params;
    double x = number_of(next_param(m, &list), params, r->of->scale, nk);
    int64_t low = 0, high = r->count - 1;
    if (isnan(x))
        return high / 2;
    while (low < high) { /* values ascend or, with `falls`, descend along the numbers */
        int64_t mid = low + (high - low) / 2;
        double y = budget_value(r, mid);
        if (r->of->falls ? y > x : y < x)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* A number with as many digits as a reader needs to set it again. */
static void value_text(const struct budget_range *r, const struct opt *o, int64_t at, char *text,
                       size_t size)
{
    double x = budget_value(r, at);
    int64_t i = r->of->falls ? r->count - 1 - at : at;
    if (r->of->scale == BUDGET_COUNT) {
        snprintf(text, size, "%.0f", x);
    } else if (r->of->scale == BUDGET_COMPLEMENT && x > 0.5 && i < r->count - 1) {
        snprintf(text, size, "%.5g", 1 - x); /* of 0.99999: the digits after the nines */
        snprintf(text, size, "%.12g", 1 - strtod(text, NULL));
    } else if (o->type == OPT_SHARE) {
        snprintf(text, size, "%.5g%%", 100 * x);
    } else {
        snprintf(text, size, "%.5g", x);
    }
}

int budget_set(const struct budget_range *r, const struct budget_target *t, const struct method *m,
               int64_t at, void *params, struct buf *found, struct err *err)
{
    const struct opt *o;
    char text[48];
    for (const char *p = t->params; (o = next_param(m, &p));) {
        value_text(r, o, at, text, sizeof text);
        PASS_ON(opt_set_field(o, params, o->name, text, false, err));
        if (found)
            buf_printf(found, "%s%s=%s", found->len ? ":" : "", o->name, text);
    }
    if (m->params.validate)
        PASS_ON(m->params.validate(params, err));
    if (found)
        return buf_check(found, "parameters that were found", err);
    return 0;
}

/* Any value: what a method's check demands before the search has begun. */
static int set_middle(const struct budget_target *t, const struct method *m, void *params,
                      struct err *err)
{
    enum { SOME_KEYS = 4096 };
    struct budget_range r;
    PASS_ON(budget_range(t, m, SOME_KEYS, &r, err));
    return budget_set(&r, t, m, (r.count - 1) / 2, params, NULL, err);
}

int budget_bind(struct budget_target *t, const struct method *m, void *params, const bool *given,
                struct err *err)
{
    const struct opt *o;
    bool unset = false;
    t->of = budget_of(m, params);
    if (!t->of)
        return no_budget(t, m, err);
    t->params[0] = '\0';
    for (const char *p = t->of->params; (o = next_param(m, &p));) {
        size_t used = strlen(t->params);
        if (!given[o - m->params.table])
            snprintf(t->params + used, sizeof t->params - used, "%s%s", used ? " " : "", o->name);
        unset |= opt_is_unset(o, params);
    }
    if (!t->params[0])
        return err_set(err, ERR_USAGE,
                       "method %s: @%s searches %s, which is given as well: leave one of the two "
                       "out",
                       m->name, t->metric, t->of->params);
    return unset ? set_middle(t, m, params, err) : 0;
}

int budget_apply(const struct budget_target *t, const struct method *m, const char *found,
                 void *params, struct err *err)
{
    char *save = NULL;
    OWN(free_at) char *copy = strdup(found);
    if (!copy)
        return err_set(err, ERR_NOMEM, "%s: out of memory", found);
    for (char *part = strtok_r(copy, ":", &save); part; part = strtok_r(NULL, ":", &save)) {
        char *eq = strchr(part, '=');
        if (!eq || !words_have(t->params, ' ', part, (size_t)(eq - part)))
            return err_set(err, ERR_USAGE, "'%s' does not set %s", found, t->params);
        *eq = '\0';
        PASS_ON(opt_set(m->params.table, params, m->name, part, eq + 1, err));
    }
    if (m->params.validate)
        PASS_ON(m->params.validate(params, err));
    return 0;
}

/* ---- metrics -------------------------------------------------------------------------------- */

static bool in_section(const struct metric_def *m, const char *section)
{
    return m && m->section && strcmp(m->section, section) == 0;
}

int budget_direction(const char *metric)
{
    const struct metric_def *m = metric_def_find(metric);
    if (in_section(m, "density"))
        return strcmp(m->name, "pairs_allowed") == 0 ? 0 : 1;
    if (in_section(m, "sparsity"))
        return -1;
    if (in_section(m, "recall") || in_section(m, "error"))
        return m->better == BETTER_HIGHER ? 1 : m->better == BETTER_LOWER ? -1 : 0;
    return 0;
}

bool budget_needs_counts_only(const char *metric)
{
    static const char *const counts[] = {"density_elem", "density_tile", "density_rect",
                                         "pairs_kept",   "sparsity_qk",  NULL};
    const struct metric_def *m = metric_def_find(metric);
    for (int i = 0; m && counts[i]; i++)
        if (strcmp(m->name, counts[i]) == 0)
            return true;
    return false;
}
