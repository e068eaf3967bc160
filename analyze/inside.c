/*
 * inside.c - see inside.h.
 */
#include "analyze/inside.h"

#include "analyze/group.h"
#include "analyze/stats.h"
#include "analyze/tables.h"
#include "core/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- points --------------------------------------------------------------------------------- */

/* Records of a metric and a scope. */
struct side {
    enum record_scope scope;
    const char *metric;
};

static bool on_side(const void *ctx, const struct record *r)
{
    const struct side *s = ctx;
    double x = r->scope == s->scope && r->status == RECORD_OK && strcmp(r->method, "dense") != 0
                   ? record_value(r, s->metric)
                   : NAN;
    return isfinite(x);
}

int inside_points(const struct recset *set, const char *replay, const char *inside,
                  struct inside_point **out, int64_t *n, struct err *err)
{
    static const enum group_key keys[] = {KEY_MODEL, KEY_METHOD, KEY_PARAMS};
    const struct side heads = {RECORD_OF_HEAD, replay}, models = {RECORD_OF_MODEL, inside};
    struct recset alone = *set; /* without the calls */
    OWN(grouping_free) struct grouping a = {0}, b = {0};
    OWN(free_at) struct inside_point *p = NULL;
    struct stats s, t;
    int64_t count = 0;
    alone.calls = NULL;
    alone.n_calls = 0;
    PASS_ON(grouping_make(&alone, keys, 3, 0, on_side, &heads, &a, err));
    PASS_ON(grouping_make(&alone, keys, 3, 0, on_side, &models, &b, err));
    PASS_ON(mem_alloc(&p, b.n, sizeof *p, "settings", err));
    for (int64_t i = 0; i < b.n; i++)
        for (int64_t k = 0; k < a.n; k++)
            if (same_keys(a.g[k].first, b.g[i].first, keys, 3)) {
                PASS_ON(group_stats(&a, &a.g[k], replay, &s, NULL, err));
                PASS_ON(group_stats(&b, &b.g[i], inside, &t, NULL, err));
                p[count++] = (struct inside_point){b.g[i].first, s.mean, t.mean, s.n, t.n};
            }
    *out = p;
    *n = count;
    p = NULL;
    return 0;
}

int inside_spearman(const struct inside_point *p, int64_t n, double *rho, struct err *err)
{
    OWN(free_at) double *x = NULL;
    int rc = mem_alloc(&x, 2 * n, sizeof *x, "ranks", err);
    for (int64_t i = 0; !rc && i < n; i++) {
        x[i] = p[i].replay;
        x[n + i] = p[i].inside;
    }
    *rho = NAN;
    if (!rc && n >= INSIDE_LEAST)
        rc = spearman(x, x + n, n, rho, err);
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
    OWN(str_list_free) struct str_list all = {0};
    PASS_ON(recset_metrics(set, patterns, &all, err));
    for (int64_t i = 0; i < all.n; i++) {
        const struct side side = {scope, all.items[i]};
        int64_t k = 0;
        while (k < set->n && !on_side(&side, &set->r[k]))
            k++;
        if (k < set->n)
            str_list_add(out, all.items[i]);
    }
    return all.failed || out->failed ? err_set(err, ERR_NOMEM, "metrics") : 0;
}

static int put_row(struct table *t, const struct recset *set, const char *replay,
                   const struct str_list *inside, struct err *err)
{
    OWN(free_at) struct inside_point *p = NULL;
    int64_t n, most = 0;
    double rho;
    PASS_ON(table_row(t, err));
    PASS_ON(table_text(t, 0, replay, err));
    for (int64_t i = 0; i < inside->n; i++) {
        PASS_ON(inside_points(set, replay, inside->items[i], &p, &n, err));
        PASS_ON(inside_spearman(p, n, &rho, err));
        if (!isnan(rho))
            table_num(t, i + 2, rho);
        most = n > most ? n : most;
        free(p);
        p = NULL;
    }
    table_num(t, 1, (double)most);
    return 0;
}

int build_inside(const struct table_def *def, const struct recset *set,
                 const struct table_request *req, struct table *out, struct err *err)
{
    OWN(str_list_free) struct str_list replay = {0}, inside = {0};
    if (req->group || req->pivot)
        return err_set(err, ERR_USAGE, "--group and --pivot do not apply to this table");
    PASS_ON(present(set, RECORD_OF_HEAD, REPLAY_METRICS, &replay, err));
    PASS_ON(
        present(set, RECORD_OF_MODEL, req->columns ? req->columns : INSIDE_METRICS, &inside, err));
    if (!replay.n || !inside.n)
        return err_set(err, ERR_INPUT,
                       "needs the records of a replay and of `lacuna eval` with the same "
                       "methods, in one directory or in several");
    PASS_ON(table_column(out, "replay", "replay metric", "", COL_TEXT, 1, err));
    PASS_ON(table_column(out, "settings", "settings", "", COL_INT, 1, err));
    for (int64_t i = 0; i < inside.n; i++)
        PASS_ON(table_column(out, inside.items[i], inside.items[i], "rho", COL_REAL, 1, err));
    for (int64_t i = 0; i < replay.n; i++)
        PASS_ON(put_row(out, set, replay.items[i], &inside, err));
    table_note(out,
               "Spearman's rank correlation over settings (method with parameters) that both "
               "have, means over their records; none below %d settings or where all values "
               "are equal",
               INSIDE_LEAST);
    table_note(out, "settings: the largest number of points of a row");
    return 0;
}

bool has_inside(const struct recset *set)
{
    bool head = false, model = false;
    for (int64_t i = 0; i < set->n; i++) {
        head = head || (set->r[i].scope == RECORD_OF_HEAD && set->r[i].status == RECORD_OK);
        model = model || (set->r[i].scope == RECORD_OF_MODEL && set->r[i].status == RECORD_OK);
    }
    return head && model;
}
