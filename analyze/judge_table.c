/*
 * judge_table.c - SpargeAttn's table 10: error and sparsity with and without the test of
 * self-similarity (the judge). A cell with the test is compared with the cell that differs in theta
 * or judge alone and accepts every block: by theta = -1, or by judge=0, which keeps the other
 * parameters of a calibration.
 *
 * Sorting by everything but theta brings partners together: O(n log n).
 */
#include "analyze/tables.h"

#include "analyze/params.h"
#include "core/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Two cells whose output errors differ by more than this are the "filtered" columns. */
#define JUDGE_FILTER 0.05

struct judged {
    const struct record *r;
    struct buf cell; /* the record's identity without theta and judge */
    bool with;       /* theta >= 0, the rule set's own or a calibration's */
};

static bool is_judged(const struct record *r)
{
    return r->status == RECORD_OK && strcmp(r->method, "spargeattn") == 0 &&
           record_has(r, "err_l1_rel") && record_has(r, "sparsity_total");
}

static bool is_with_judge(const struct record *r)
{
    const char *theta = params_value(r->params, "theta"), *judge = params_value(r->params, "judge");
    return (!judge || *judge != '0') && (!theta || strtod(theta, NULL) >= 0);
}

static int judged_init(struct judged *j, const struct record *r, struct err *err)
{
    struct record other = *r;
    struct buf judged = {0}, rest = {0};
    int rc = 0;
    j->r = r;
    j->with = is_with_judge(r);
    params_without(r->params, "judge", &judged);
    TRY(buf_check(&judged, "parameters", err));
    params_without(buf_str(&judged), "theta", &rest);
    TRY(buf_check(&rest, "parameters", err));
    other.params = (char *)(uintptr_t)buf_str(&rest);
    record_key(&other, &j->cell);
    TRY(buf_check(&j->cell, "cell", err));
out:
    buf_free(&judged);
    buf_free(&rest);
    return rc;
}

static int by_cell(const void *x, const void *y)
{
    const struct judged *a = x, *b = y;
    int d = strcmp(buf_str(&a->cell), buf_str(&b->cell));
    return d ? d : a->with - b->with;
}

/* ---- pairs ----------------------------------------------------------------------------------- */

struct pairs {
    struct recset set;             /* the cells with the judge: shallow copies */
    const struct record **without; /* owned: the partner of each */
    int64_t cap, unpaired;
};

static void pairs_free(struct pairs *p)
{
    free(p->set.r);
    free(p->without);
}

static int add_pair(struct pairs *p, const struct record *with, const struct record *without,
                    struct err *err)
{
    int rc = 0;
    TRY(mem_grow(&p->set.r, &p->set.cap, p->set.n + 1, sizeof *p->set.r, "pairs", err));
    TRY(mem_grow(&p->without, &p->cap, p->set.n + 1, sizeof *p->without, "pairs", err));
    p->without[p->set.n] = without;
    p->set.r[p->set.n++] = *with;
out:
    return rc;
}

/* Cells j[0..n) that differ in theta or judge alone; those without the judge come first. */
static int pair_cells(const struct judged *j, int64_t n, struct pairs *p, struct err *err)
{
    int rc = 0;
    if (j[0].with) {
        p->unpaired += n;
        return 0;
    }
    for (int64_t i = 1; i < n && !rc; i++)
        if (j[i].with)
            rc = add_pair(p, j[i].r, j[0].r, err);
    p->unpaired += j[n - 1].with ? 0 : n;
    return rc;
}

static int find_pairs(const struct recset *set, struct pairs *p, struct err *err)
{
    struct judged *j = NULL;
    int64_t n = 0;
    int rc = 0;

    TRY(mem_zalloc(&j, set->n, sizeof *j, "cells", err));
    for (int64_t i = 0; i < set->n; i++)
        if (is_judged(&set->r[i]))
            TRY(judged_init(&j[n++], &set->r[i], err));
    qsort(j, (size_t)n, sizeof *j, by_cell);
    for (int64_t a = 0, b; a < n; a = b) {
        for (b = a; b < n && strcmp(buf_str(&j[a].cell), buf_str(&j[b].cell)) == 0; b++)
            ;
        TRY(pair_cells(j + a, b - a, p, err));
    }
out:
    for (int64_t i = 0; j && i < set->n; i++)
        buf_free(&j[i].cell);
    free(j);
    return rc;
}

bool has_judge(const struct recset *set)
{
    struct pairs p = {0};
    struct err ignored = {0};
    bool any = find_pairs(set, &p, &ignored) == 0 && p.set.n > 0;
    pairs_free(&p);
    return any;
}

/* ---- table ----------------------------------------------------------------------------------- */

#define NUMBERS 4 /* of a pair */

/* Counts and numbers of all pairs, then of those that the filter lets through. */
static int add_columns(struct table *t, struct err *err)
{
    static const char *const columns[NUMBERS][2] = {{"l1_with", "L1 with judge"},
                                                    {"l1_without", "L1 without"},
                                                    {"sparsity_with", "sparsity with judge"},
                                                    {"sparsity_without", "sparsity without"}};
    char title[128], name[48];
    int rc = 0;
    for (int filtered = 0; filtered < 2; filtered++) {
        TRY(table_column(t, filtered ? "n_filtered" : "n", filtered ? "n filtered" : "n",
                         "pairs of cells", COL_INT, 1, err));
        for (int i = 0; i < NUMBERS; i++) {
            snprintf(title, sizeof title, "%s%s", columns[i][1], filtered ? ", filtered" : "");
            snprintf(name, sizeof name, "%s%s", columns[i][0], filtered ? "_filtered" : "");
            TRY(table_column(t, name, title, "", COL_STATS, 1, err));
        }
    }
out:
    return rc;
}

static int put_numbers(struct table *t, int64_t col, const struct pairs *p, const struct group *g,
                       bool filtered, struct err *err)
{
    double *x = NULL;
    struct stats s;
    int64_t n = 0;
    int rc = mem_alloc(&x, NUMBERS * g->n, sizeof *x, "pairs", err);
    for (int64_t i = 0; i < g->n && !rc; i++) {
        const struct record *with = &p->set.r[g->at[i]], *without = p->without[g->at[i]];
        const double v[NUMBERS] = {
            record_get(with, "err_l1_rel"), record_get(without, "err_l1_rel"),
            record_get(with, "sparsity_total"), record_get(without, "sparsity_total")};
        if (filtered && !(fabs(v[0] - v[1]) > JUDGE_FILTER))
            continue;
        for (int k = 0; k < NUMBERS; k++)
            x[k * g->n + n] = v[k];
        n++;
    }
    if (!rc)
        table_num(t, col, (double)n);
    for (int k = 0; k < NUMBERS && n && !rc; k++) {
        stats_of(x + k * g->n, n, &s);
        table_stats(t, col + 1 + k, &s);
    }
    free(x);
    return rc;
}

int build_judge(const struct table_def *def, const struct recset *set,
                const struct table_request *req, struct table *out, struct err *err)
{
    enum group_key keys[KEYS_MAX];
    struct pairs p = {0};
    struct grouping gs = {0};
    int n, rc = 0;

    if (req->group || req->columns || req->pivot)
        FAIL(err, ERR_USAGE, "--group, --columns and --pivot do not apply to this table");
    TRY(find_pairs(set, &p, err));
    if (p.set.n == 0)
        FAIL(err, ERR_INPUT,
             "no cell of spargeattn has a partner that differs in theta or judge alone: replay "
             "spargeattn:theta=-1 or judge=0 beside the setting");
    TRY(recset_scope(&p.set, keys, &n, err));
    if (!has_key(keys, n, KEY_PERMUTE))
        keys[n++] = KEY_PERMUTE;
    keys[n++] = KEY_PARAMS;
    TRY(table_key_columns(out, keys, n, err));
    TRY(add_columns(out, err));
    TRY(grouping_make(&p.set, keys, n, 0, NULL, NULL, &gs, err));
    for (int64_t i = 0; i < gs.n; i++) {
        TRY(table_row(out, err));
        TRY(table_put_keys(out, gs.g[i].first, keys, n, err));
        TRY(put_numbers(out, n, &p, &gs.g[i], false, err));
        TRY(put_numbers(out, n + NUMBERS + 1, &p, &gs.g[i], true, err));
    }
    table_note(out,
               "without: theta=-1 or judge=0; filtered: pairs whose err_l1_rel differ by more than "
               "%g; %lld "
               "cells have no partner",
               JUDGE_FILTER, (long long)p.unpaired);
out:
    grouping_free(&gs);
    pairs_free(&p);
    return rc;
}
