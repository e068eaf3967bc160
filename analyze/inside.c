/*
 * inside.c - see inside.h.
 */
#include "analyze/inside.h"

#include "analyze/metricfacts.h"
#include "analyze/tables.h"
#include "core/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- points --------------------------------------------------------------------------------- */

static bool same_setting(const struct record *a, const struct record *b)
{
    return strcmp(a->model, b->model) == 0 && strcmp(a->method, b->method) == 0 &&
           strcmp(a->params ? a->params : "", b->params ? b->params : "") == 0;
}

static bool counts(const struct record *r, const char *metric)
{
    return r->status == RECORD_OK && strcmp(r->method, "dense") != 0 && record_has(r, metric) &&
           isfinite(record_value(r, metric));
}

/* Mean of the metric over the records of that scope and setting; NAN if there is none. */
static double mean_of(const struct recset *set, const struct record *like, enum record_scope scope,
                      const char *metric, int64_t *n)
{
    double sum = 0;
    *n = 0;
    for (int64_t i = 0; i < set->n; i++) {
        const struct record *r = set->r + i;
        if (r->scope == scope && same_setting(r, like) && counts(r, metric)) {
            sum += record_value(r, metric);
            ++*n;
        }
    }
    return *n ? sum / (double)*n : NAN;
}

static int by_setting(const void *a, const void *b)
{
    static const enum group_key keys[] = {KEY_MODEL, KEY_METHOD, KEY_PARAMS};
    const struct inside_point *p = a, *q = b;
    int order = 0;
    for (int i = 0; i < 3 && !order; i++)
        order = key_compare(p->first, q->first, keys[i]);
    return order;
}

int inside_points(const struct recset *set, const char *replay, const char *inside,
                  struct inside_point **out, int64_t *n, struct err *err)
{
    struct inside_point *p = NULL;
    int64_t cap = 0, count = 0;
    int rc = 0;

    for (int64_t i = 0; i < set->n; i++) {
        const struct record *r = set->r + i;
        bool seen = r->scope != RECORD_OF_MODEL || !counts(r, inside);
        for (int64_t k = 0; k < count && !seen; k++)
            seen = same_setting(p[k].first, r);
        if (seen)
            continue;
        struct inside_point x = {.first = r};
        x.inside = mean_of(set, r, RECORD_OF_MODEL, inside, &x.n_inside);
        x.replay = mean_of(set, r, RECORD_OF_HEAD, replay, &x.n_replay);
        if (isnan(x.replay))
            continue;
        TRY(mem_grow(&p, &cap, count + 1, sizeof *p, "settings", err));
        p[count++] = x;
    }
    if (count)
        qsort(p, (size_t)count, sizeof *p, by_setting);
    *out = p;
    *n = count;
    p = NULL;
out:
    free(p);
    return rc;
}

/* ---- ranks ---------------------------------------------------------------------------------- */

/* Average ranks, from 1. */
static void ranks(const double *x, int64_t n, double *rank)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t below = 0, equal = 0;
        for (int64_t k = 0; k < n; k++) {
            below += x[k] < x[i];
            equal += x[k] == x[i];
        }
        rank[i] = (double)below + (double)(equal + 1) / 2;
    }
}

int inside_spearman(const struct inside_point *p, int64_t n, double *rho, struct err *err)
{
    double *x = NULL, xy = 0, xx = 0, yy = 0, mean = (double)(n + 1) / 2;
    int rc = 0;

    *rho = NAN;
    if (n < INSIDE_LEAST)
        return 0;
    TRY(mem_alloc(&x, 4 * n, sizeof *x, "ranks", err));
    for (int64_t i = 0; i < n; i++) {
        x[i] = p[i].replay;
        x[n + i] = p[i].inside;
    }
    ranks(x, n, x + 2 * n);
    ranks(x + n, n, x + 3 * n);
    for (int64_t i = 0; i < n; i++) {
        double a = x[2 * n + i] - mean, b = x[3 * n + i] - mean;
        xy += a * b;
        xx += a * a;
        yy += b * b;
    }
    if (xx > 0 && yy > 0)
        *rho = xy / sqrt(xx * yy);
out:
    free(x);
    return rc;
}

/* ---- the table ------------------------------------------------------------------------------ */

#define REPLAY_METRICS "cra_min,cra_p1,cra_mean,err_l1_rel,err_l2_rel,err_cos,density_elem"
#define INSIDE_METRICS                                                                             \
    "nll_delta,kl_mean,kl_p99,top1_agree,answer_nll,needle_acc,multi_acc,kv_acc,copy_nll,psnr,"    \
    "ssim"

/* The metrics of a pattern list that records of that scope have. */
static int present(const struct recset *set, enum record_scope scope, const char *patterns,
                   struct str_list *out, struct err *err)
{
    struct str_list all = {0};
    int rc = recset_metrics(set, patterns, &all, err);
    for (int64_t i = 0; !rc && i < all.n; i++)
        for (int64_t k = 0; k < set->n; k++)
            if (set->r[k].scope == scope && counts(set->r + k, all.items[i])) {
                str_list_add(out, all.items[i]);
                break;
            }
    rc = rc ? rc : all.failed || out->failed ? err_set(err, ERR_NOMEM, "metrics") : 0;
    str_list_free(&all);
    return rc;
}

static int put_row(struct table *t, const struct recset *set, const char *replay,
                   const struct str_list *inside, struct err *err)
{
    struct inside_point *p = NULL;
    int64_t n, most = 0;
    double rho;
    int rc = 0;

    TRY(table_row(t, err));
    TRY(table_text(t, 0, replay, err));
    for (int64_t i = 0; i < inside->n; i++) {
        TRY(inside_points(set, replay, inside->items[i], &p, &n, err));
        TRY(inside_spearman(p, n, &rho, err));
        if (!isnan(rho))
            table_num(t, i + 2, rho);
        most = n > most ? n : most;
        free(p);
        p = NULL;
    }
    table_num(t, 1, (double)most);
out:
    free(p);
    return rc;
}

static int build_inside(const struct table_def *def, const struct recset *set,
                        const struct table_request *req, struct table *out, struct err *err)
{
    struct str_list replay = {0}, inside = {0};
    int rc = 0;

    if (req->group || req->pivot)
        FAIL(err, ERR_USAGE, "--group and --pivot do not apply to this table");
    TRY(present(set, RECORD_OF_HEAD, REPLAY_METRICS, &replay, err));
    TRY(present(set, RECORD_OF_MODEL, req->columns ? req->columns : INSIDE_METRICS, &inside, err));
    if (!replay.n || !inside.n)
        FAIL(err, ERR_INPUT,
             "needs the records of a replay and of `lacuna eval` with the same "
             "methods, in one directory or in several");
    TRY(table_column(out, "replay", "replay metric", "", COL_TEXT, 1, err));
    TRY(table_column(out, "settings", "settings", "", COL_INT, 1, err));
    for (int64_t i = 0; i < inside.n; i++)
        TRY(table_column(out, inside.items[i], inside.items[i], "rho", COL_REAL, 1, err));
    for (int64_t i = 0; i < replay.n; i++)
        TRY(put_row(out, set, replay.items[i], &inside, err));
    table_note(out,
               "Spearman's rank correlation over settings (method with parameters) that both "
               "have, means over their records; none below %d settings or where all values "
               "are equal",
               INSIDE_LEAST);
    table_note(out, "settings: the largest number of points of a row");
out:
    str_list_free(&replay);
    str_list_free(&inside);
    return rc;
}

static bool has_inside(const struct recset *set)
{
    bool head = false, model = false;
    for (int64_t i = 0; i < set->n; i++) {
        head = head || (set->r[i].scope == RECORD_OF_HEAD && set->r[i].status == RECORD_OK);
        model = model || (set->r[i].scope == RECORD_OF_MODEL && set->r[i].status == RECORD_OK);
    }
    return head && model;
}

const struct table_def table_inside = {
    .listed = {"inside", "Does a replay order settings as the model with the method inside does?",
               "rows: replay metrics; columns: rank correlation with metrics of scope model"},
    .keys = "",
    .metrics = "",
    .build = build_inside,
    .has_data = has_inside};
