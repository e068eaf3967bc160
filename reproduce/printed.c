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
    char value[CLAIM_MEMBERS][96];
    double x[CLAIM_MEMBERS], tie;
    int n;
};

/* Put the printed part of a cell under a member's name; of `factor` per unit of the claim's metric.
 * A `rest` is what the printed number leaves. */
static void put_number(const struct page *p, const struct page_cell *c, int part, const char *name,
                       double factor, bool rest, struct line *l)
{
    struct paper_number x;
    char *end;
    if (!name || l->n == CLAIM_MEMBERS || !cell_printed(p, c, part, &x))
        return;
    double number = strtod(x.value, &end), tie = 0.5 * pow(10, -printed_digits(x.value)) / factor;
    if (end == x.value)
        return;
    snprintf(l->value[l->n], sizeof l->value[0], "%s", name);
    l->tie = l->n ? fmax(l->tie, tie) : tie;
    l->x[l->n++] = (rest ? factor - number : number) / factor;
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
    json_t *where = rule_where(cell->rule, cell);
    put_number(p, cell, 0, member_of(p, c, where, rest ? want : metric), cell_scale(cell), rest, l);
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

static double listed(const struct claim *c, const struct line *l, size_t i)
{
    const char *name = json_string_value(json_array_get(c->set, i));
    return name ? member(l, name) : NAN;
}

/* A number has no interval; figures, whose numbers stand in no table, have ranks and spreads. */
static int is_inside(const struct claim *c, const struct line *l)
{
    double d = NAN;
    if (c->stat == STAT_MEAN) {
        for (int i = c->last ? l->n - 1 : 0; i < l->n; i++)
            if (!(l->x[i] >= c->l && l->x[i] <= c->h))
                return 0;
        return l->n ? 1 : -1;
    }
    if (c->stat == STAT_DIFFERENCE)
        d = listed(c, l, 0) - listed(c, l, 1);
    else if (c->stat == STAT_RATIO && json_is_array(c->set))
        d = listed(c, l, 0) / listed(c, l, 1);
    else if (c->stat == STAT_RATIO && l->n > 2)
        d = pow(l->x[0] / l->x[l->n - 1], 1.0 / (l->n - 1));
    return !isfinite(d) ? -1 : d >= c->l - l->tie && d <= c->h + l->tie;
}

/* 1 holds, 0 does not, -1 the line has not what the claim compares. */
static int line_holds(const struct claim *c, const struct line *l)
{
    double d;
    switch (c->kind) {
    case CLAIM_MOST:
        return is_extreme(l, c->x, c->falls ? -1 : 1);
    case CLAIM_ORDER:
        return is_ordered(l, json_is_array(c->set) ? c->set : NULL, c->falls ? -1 : 1);
    case CLAIM_MORE:
        d = listed(c, l, 0) - listed(c, l, 1);
        if (json_array_size(c->set) == 4) /* of two differences each has two roundings */
            d = (d - listed(c, l, 2) + listed(c, l, 3)) / 2;
        return isfinite(d) ? d > l->tie : -1;
    case CLAIM_WITHIN:
        return is_inside(c, l);
    default:
        return -1;
    }
}

static void take_line(const struct claim *c, const struct line *l, const char *label,
                      struct printed_claim *out)
{
    int holds = l->n ? line_holds(c, l) : -1;
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
        struct line l = {.n = 0};
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
            struct line l = {.n = 0};
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
        struct line l = {.n = 0};
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
    for (int k = 1; k < l->n; k++)
        if (strcmp(l->value[k], l->value[0]) != 0)
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
        struct line l = {.n = 0};
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
