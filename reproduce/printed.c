/*
 * printed.c - a claim on the numbers that the paper prints: does it hold there, in the words in
 * which we test it on ours? A line is a row or a column of the table; a number has no interval.
 */
#include "reproduce/claims.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The numbers of one line, by member. */
struct line {
    char value[MEMBERS_MAX][96];
    double x[MEMBERS_MAX], tie;
    int n;
};

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

static bool lists(const json_t *list, const char *name)
{
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v) if (json_is_string(v) &&
                                       strcmp(json_string_value(v), name) == 0) return true;
    return false;
}

/* Which member of the claim a cell belongs to; false: to none. */
static bool member_of(const struct page *p, const json_t *test, const json_t *where,
                      const char *metric, char *out, size_t size)
{
    const char *kind = claim_kind(test), *want = json_str_or(test, "metric", NULL);
    const json_t *what = json_object_get(test, kind);
    const json_t *list = json_object_get(test, "difference") ? json_object_get(test, "difference")
                         : json_is_array(json_object_get(test, "of")) ? json_object_get(test, "of")
                         : strcmp(kind, "within") != 0 && json_is_array(what) ? what
                                                                              : NULL;
    const char *axis =
        json_str_or(test, "of", json_is_string(what) ? json_string_value(what) : NULL);
    const char *value = NULL;
    if (list && lists(list, metric)) {
        value = metric;
    } else if (want && strcmp(want, metric) == 0) {
        value = list || (axis && strcmp(axis, "cases") == 0) ? case_of(p, where)
                : axis                                       ? json_str_or(where, axis, NULL)
                                                             : metric;
        if (list && value && !lists(list, value))
            value = NULL;
    }
    if (value)
        snprintf(out, size, "%s", value);
    return value != NULL;
}

/* The value of `at_largest`'s variable in a printed cell; NAN: it has none, or another claim. */
static double size_at(const struct page *p, const json_t *test, const struct page_block *b, int r,
                      int c)
{
    const json_t *rule = page_rule(p, &b->rows.e[r], &b->columns.e[c]);
    struct paper_number x;
    if (!rule || !b->rows.e[r].printed || !b->columns.e[c].printed ||
        !page_printed(p, b, &b->rows.e[r], &b->columns.e[c], 0, &x))
        return NAN;
    json_t *where = page_where(rule, &b->rows.e[r], &b->columns.e[c]);
    double size = size_value(json_str_or(where, json_str_or(test, "at_largest", ""), ""));
    json_decref(where);
    return size;
}

/* Does the claim take the cell, or only those of a larger value? */
static bool is_taken(const struct page *p, const json_t *test, const struct page_block *b,
                     const struct grid_entry *row, const struct grid_entry *column)
{
    if (!json_object_get(test, "at_largest"))
        return true;
    double own = size_at(p, test, b, (int)(row - b->rows.e), (int)(column - b->columns.e));
    for (int r = 0; r < b->rows.n; r++)
        for (int c = 0; c < b->columns.n; c++)
            if (size_at(p, test, b, r, c) > own)
                return false;
    return isfinite(own);
}

static void take_cell(const struct page *p, const json_t *test, const struct page_block *b,
                      const struct grid_entry *row, const struct grid_entry *column, struct line *l)
{
    const json_t *rule = page_rule(p, row, column), *scale = json_object_get(b->j, "scale");
    double factor = json_is_number(scale) ? json_number_value(scale) : 1;
    struct paper_number x;
    char *end;
    if (!rule || json_object_get(rule, "metric") || !row->printed || !column->printed ||
        l->n == MEMBERS_MAX || !page_printed(p, b, row, column, 0, &x) ||
        !is_taken(p, test, b, row, column))
        return;
    const char *metric = page_metric(p, b, row, column, rule, 0);
    const char *want = json_str_or(test, "metric", "");
    json_t *where = page_where(rule, row, column);
    double number = strtod(x.value, &end);
    bool rest = metric && strncmp(metric, "1-", 2) == 0 && strcmp(metric + 2, want) == 0;
    if (rest) { /* the table prints what the claim's metric leaves */
        metric = want;
        number = factor - number;
    }
    if (metric && end != x.value &&
        member_of(p, test, where, metric, l->value[l->n], sizeof l->value[0])) {
        double tie = 0.5 * pow(10, -printed_digits(x.value)) / factor;
        l->tie = l->n ? fmax(l->tie, tie) : tie;
        l->x[l->n++] = number / factor;
    }
    json_decref(where);
}

static double member(const struct line *l, const char *name)
{
    for (int i = 0; i < l->n; i++)
        if (strcmp(l->value[i], name) == 0)
            return l->x[i];
    return NAN;
}

/* Every other member lies below (sign 1) or above (-1) the one of this name. */
static int is_extreme(const struct line *l, const char *name, double sign)
{
    double x = member(l, name);
    if (l->n < 2 || !isfinite(x))
        return -1;
    for (int i = 0; i < l->n; i++)
        if (strcmp(l->value[i], name) != 0 && !(sign * (x - l->x[i]) > l->tie))
            return 0;
    return 1;
}

static int is_ordered(const struct line *l, const json_t *list, double sign)
{
    double last = NAN;
    size_t n = list ? json_array_size(list) : (size_t)l->n;
    int seen = 0;
    for (size_t i = 0; i < n; i++) {
        double x = list ? member(l, json_string_value(json_array_get(list, i))) : l->x[i];
        if (!isfinite(x))
            continue;
        if (seen++ && !(sign * (x - last) > l->tie))
            return 0;
        last = x;
    }
    return seen < 2 ? -1 : 1;
}

static double listed(const struct line *l, const json_t *list, size_t i)
{
    const char *name = json_string_value(json_array_get(list, i));
    return name ? member(l, name) : NAN;
}

static int is_inside(const json_t *test, const char *kind, const struct line *l)
{
    const json_t *two = json_object_get(test, "difference"), *in = json_object_get(test, "within");
    const json_t *ratio = json_object_get(test, "ratio");
    double low = json_is_array(in) ? json_number_value(json_array_get(in, 0)) : -INFINITY;
    double high = json_is_array(in) ? json_number_value(json_array_get(in, 1)) : INFINITY;
    if (strcmp(kind, "below") == 0)
        high = json_number_value(json_object_get(test, kind));
    if (strcmp(kind, "above") == 0)
        low = json_number_value(json_object_get(test, kind));
    if (two || ratio) {
        double a = listed(l, two ? two : ratio, 0), b = listed(l, two ? two : ratio, 1);
        double d = two ? a - b : a / b;
        return !isfinite(d) ? -1 : d >= low - l->tie && d <= high + l->tie;
    }
    for (int i = 0; i < l->n; i++)
        if (!(l->x[i] >= low && l->x[i] <= high))
            return 0;
    return l->n ? 1 : -1;
}

/* The relative step between neighbours, in the geometric mean; a tie at either end moves it. */
static int step_inside(const json_t *test, const struct line *l)
{
    const json_t *in = json_object_get(test, "within");
    double low = json_number_value(json_array_get(in, 0)), root = 1.0 / (l->n - 1);
    double high = json_number_value(json_array_get(in, 1)), a = l->x[0], b = l->x[l->n - 1];
    if (l->n < 3 || !(a - l->tie > 0) || !(b - l->tie > 0))
        return -1;
    return pow((b + l->tie) / (a - l->tie), root) - 1 >= low &&
           pow((b - l->tie) / (a + l->tie), root) - 1 <= high;
}

/* 1 holds, 0 does not, -1 the line has not what the claim compares. */
static int line_holds(const json_t *test, const struct line *l)
{
    const char *kind = claim_kind(test);
    const json_t *what = json_object_get(test, kind);
    if (strcmp(kind, "most") == 0 || strcmp(kind, "least") == 0)
        return is_extreme(l, json_string_value(what), kind[0] == 'm' ? 1 : -1);
    if (strcmp(kind, "rises") == 0 || strcmp(kind, "falls") == 0)
        return is_ordered(l, json_is_array(what) ? what : NULL, kind[0] == 'r' ? 1 : -1);
    if (strcmp(kind, "more") == 0) {
        double d = listed(l, what, 0) - listed(l, what, 1);
        if (json_array_size(what) == 4) /* of two differences each has two roundings */
            d = (d - listed(l, what, 2) + listed(l, what, 3)) / 2;
        return isfinite(d) ? d > l->tie : -1;
    }
    if (strcmp(kind, "step") == 0)
        return step_inside(test, l);
    if (strcmp(kind, "trend") == 0 || strcmp(kind, "spread") == 0 || strcmp(kind, "front") == 0)
        return -1; /* of figures, whose numbers stand in no table */
    return is_inside(test, kind, l);
}

static void take_line(const json_t *test, const struct line *l, const char *label,
                      struct printed_claim *out)
{
    int holds = l->n ? line_holds(test, l) : -1;
    if (holds < 0)
        return;
    out->lines++;
    out->held += holds;
    if (!holds && !out->failed[0])
        snprintf(out->failed, sizeof out->failed, "%s", label);
}

bool claim_of_labels(const json_t *test)
{
    return json_object_get(test, "labels") != NULL;
}

bool claim_of_rows(const json_t *test)
{
    return strcmp(json_str_or(test, "labels", ""), "row") == 0;
}

/* Put the printed number of a cell under a member's name. */
static void put_number(const struct page *p, const struct page_block *b, int r, int c,
                       const char *name, struct line *l)
{
    struct paper_number x;
    char *end;
    if (!page_printed(p, b, &b->rows.e[r], &b->columns.e[c], 0, &x))
        return;
    double number = strtod(x.value, &end);
    if (end == x.value)
        return;
    snprintf(l->value[l->n], sizeof l->value[0], "%s", name);
    l->tie = fmax(l->tie, 0.5 * pow(10, -printed_digits(x.value)));
    l->x[l->n++] = number;
}

/* Lines of a claim over labels: the printed numbers of a row, by the labels of their columns. */
static void take_labels(const struct page *p, const json_t *test, const struct page_block *b,
                        struct printed_claim *out)
{
    for (int r = 0; r < b->rows.n; r++) {
        struct line l = {.n = 0};
        for (int c = 0; c < b->columns.n && l.n < MEMBERS_MAX; c++)
            put_number(p, b, r, c, b->columns.e[c].path, &l);
        take_line(test, &l, b->rows.e[r].path, out);
    }
}

/* Lines of a claim over pairs of rows, "* FGAttn" and "* baseline": the two numbers of a column.
 * Papers write the same word with and without a capital. */
static void take_row_pairs(const struct page *p, const json_t *test, const struct page_block *b,
                           struct printed_claim *out)
{
    const json_t *two = json_object_get(test, "difference");
    const char *first = json_string_value(json_array_get(two, 0));
    const char *second = json_string_value(json_array_get(two, 1));
    for (int r = 0; r < b->rows.n; r++)
        for (int s = 0; s < b->rows.n; s++) {
            char star[2][96];
            if (!label_part(first, b->rows.e[r].path, true, star[0], sizeof star[0]) ||
                !label_part(second, b->rows.e[s].path, true, star[1], sizeof star[1]) ||
                strcmp(star[0], star[1]) != 0)
                continue;
            for (int c = 0; c < b->columns.n; c++) {
                struct line l = {.n = 0};
                char label[96];
                put_number(p, b, r, c, first, &l);
                put_number(p, b, s, c, second, &l);
                snprintf(label, sizeof label, "%.48s, %.40s", b->rows.e[r].path,
                         b->columns.e[c].path);
                take_line(test, &l, label, out);
            }
        }
}

void claim_on_printed(const struct page *p, const json_t *test, struct printed_claim *out)
{
    const char *kind = claim_of_setting(test) ? "" : claim_kind(test);
    bool one = strcmp(kind, "below") == 0 || strcmp(kind, "above") == 0;
    *out = (struct printed_claim){.lines = 0};
    if (claim_of_setting(test)) {
        setting_on_printed(p, test, out);
        return;
    }
    for (int i = 0; i < p->n_blocks; i++) {
        const struct page_block *b = &p->blocks[i];
        if (claim_of_labels(test)) {
            (claim_of_rows(test) ? take_row_pairs : take_labels)(p, test, b, out);
            continue;
        }
        for (int c = 0; c < b->columns.n; c++) {
            struct line l = {.n = 0};
            for (int r = 0; r < b->rows.n; r++)
                take_cell(p, test, b, &b->rows.e[r], &b->columns.e[c], &l);
            take_line(test, &l, b->columns.e[c].path, out);
        }
        for (int r = 0; r < b->rows.n && !one; r++) {
            struct line l = {.n = 0};
            for (int c = 0; c < b->columns.n; c++)
                take_cell(p, test, b, &b->rows.e[r], &b->columns.e[c], &l);
            bool varies = false;
            for (int k = 1; k < l.n; k++)
                varies = varies || strcmp(l.value[k], l.value[0]) != 0;
            if (varies)
                take_line(test, &l, b->rows.e[r].path, out);
        }
    }
}
