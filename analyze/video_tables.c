/*
 * video_tables.c - FG-Attn's table 2 and figure 13, SpargeAttn's tables 4, 9 and 10 from records.
 */
#include "analyze/video_tables.h"

#include "analyze/metricfacts.h"
#include "analyze/params.h"
#include "analyze/table_calls.h"
#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what they share ------------------------------------------------------------------------- */

static int no_request(const struct table_request *req, struct err *err)
{
    return req->group || req->columns || req->pivot
               ? err_set(err, ERR_USAGE,
                         "--group, --columns and --pivot do not apply to this table")
               : 0;
}

static bool any_record(const struct recset *set, group_filter *wanted)
{
    for (int64_t i = 0; i < set->n; i++)
        if (wanted(NULL, &set->r[i]))
            return true;
    return false;
}

/* The scope keys that vary and `more`, without repeats. */
static int scope_and(const struct recset *set, const enum group_key *more, int n_more,
                     enum group_key keys[KEYS_MAX], int *n, struct err *err)
{
    int rc = recset_scope(set, keys, n, err);
    for (int i = 0; i < n_more && !rc; i++) {
        int k = 0;
        while (k < *n && keys[k] != more[i])
            k++;
        if (k == *n)
            keys[(*n)++] = more[i];
    }
    return rc;
}

static int put_keys(struct table *t, const struct record *r, const enum group_key *keys, int n,
                    struct err *err)
{
    int rc = 0;
    for (int i = 0; i < n; i++)
        TRY(table_put_key(t, i, r, keys[i], err));
out:
    return rc;
}

static int stats_column(struct table *t, const char *name, const char *title, struct err *err)
{
    return table_column(t, name, title, metric_unit(name), COL_STATS, 1, err);
}

static int put_stats(struct table *t, int64_t col, const struct grouping *gs, const struct group *g,
                     const char *metric, struct err *err)
{
    struct stats s;
    int rc = group_stats(gs, g, metric, &s, NULL, err);
    if (!rc && s.n)
        table_stats(t, col, &s);
    return rc;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static bool has_below(const void *ctx, const struct record *r)
{
    for (int64_t i = 0; r->status == RECORD_OK && i < record_metrics(r); i++)
        if (strncmp(record_metric_name(r, i), "below_", 6) == 0)
            return true;
    return false;
}

static bool blocks_data(const struct recset *set)
{
    return any_record(set, has_below);
}

/* "below_b64@0.25": kind b, side 64, c 0.25. */
struct below_name {
    char kind;
    int side;
    double c;
};

static bool below_parse(const char *name, struct below_name *b)
{
    int used = 0;
    b->c = metric_level(name);
    if (sscanf(name, "below_%c%d%n", &b->kind, &b->side, &used) != 2 || used == 0)
        return false;
    return name[used] == '\0' || name[used] == '@';
}

static int below_order(const void *x, const void *y)
{
    struct below_name a = {0}, b = {0};
    below_parse(*(char *const *)x, &a);
    below_parse(*(char *const *)y, &b);
    if (a.c != b.c)
        return a.c < b.c ? -1 : 1;
    return a.kind != b.kind ? a.kind - b.kind
                            : b.side - a.side; /* large blocks first, as printed */
}

static int put_below(struct table *t, int64_t col, const struct grouping *gs, const struct group *g,
                     const char *metric, struct err *err)
{
    struct below_name b = {0};
    struct stats s;
    char unit[32], area[64];
    int rc = 0;

    below_parse(metric, &b);
    snprintf(unit, sizeof unit, b.kind == 'b' ? "%d x %d" : "%d x 1", b.side, b.side);
    snprintf(area, sizeof area, "below_%c%d_area%s", b.kind, b.side,
             strchr(metric, '@') ? strchr(metric, '@') : "");
    TRY(group_stats(gs, g, metric, &s, NULL, err));
    table_num(t, col, b.c);
    TRY(table_text(t, col + 1, unit, err));
    table_num(t, col + 2, (double)s.n);
    table_stats(t, col + 3, &s);
    TRY(put_stats(t, col + 4, gs, g, area, err));
out:
    return rc;
}

static int build_blocks(const struct table_def *def, const struct recset *set,
                        const struct table_request *req, struct table *out, struct err *err)
{
    enum group_key keys[KEYS_MAX];
    static const enum group_key order[] = {KEY_PERMUTE};
    struct grouping gs = {0};
    struct str_list names = {0};
    struct below_name b;
    int n, rc = 0;

    TRY(no_request(req, err));
    if (!blocks_data(set))
        FAIL(err, ERR_INPUT, "no ok record has a metric below_*: replay the method dense");
    TRY(recset_metrics(set, "below_b*,below_s*", &names, err));
    qsort(names.items, (size_t)names.n, sizeof *names.items, below_order);
    TRY(scope_and(set, order, 1, keys, &n, err));
    TRY(table_key_columns(out, keys, n, err));
    TRY(table_column(out, "c", "c", "1/N", COL_REAL, 1, err));
    TRY(table_column(out, "unit", "unit", "queries x keys", COL_TEXT, 1, err));
    TRY(table_column(out, "n", "n", "", COL_INT, 1, err));
    TRY(table_column(out, "below", "largest p < c/N", metric_unit("below_b64"), COL_STATS, 1, err));
    TRY(table_column(out, "below_area", "the same by area", metric_unit("below_b64_area"),
                     COL_STATS, 1, err));
    out->cols[out->n_cols - 2].axis = out->cols[out->n_cols - 1].axis = AXIS_SHARE;
    TRY(grouping_make(set, keys, n, GROUP_PER_HEAD, has_below, NULL, &gs, err));
    for (int64_t i = 0; i < gs.n; i++)
        for (int64_t k = 0; k < names.n; k++) {
            if (!below_parse(names.items[k], &b)) /* the _area twin of another */
                continue;
            TRY(table_row(out, err));
            TRY(put_keys(out, gs.g[i].first, keys, n, err));
            TRY(put_below(out, n, &gs, &gs.g[i], names.items[k], err));
        }
    table_note(out, "over heads of calls; each head of a call counts once");
out:
    grouping_free(&gs);
    str_list_free(&names);
    return rc;
}

const struct table_def table_blocks = {
    {"blocks", "Blocks and slices whose largest weight is below c/N (FG-Attn, table 2)",
     "rows: c, block or slice size; from the method dense, whose parameter c=a+b+... gives several "
     "thresholds"},
    "permute",
    "below_*",
    0,
    build_blocks,
    blocks_data};

/* ---- threshold ------------------------------------------------------------------------------- */

static bool is_slice_mask(const void *ctx, const struct record *r)
{
    return r->status == RECORD_OK && strcmp(r->method, "fg-attn") == 0 &&
           record_get(r, "dense_call") != 1 && !params_value(r->params, "mode") &&
           !*params_target(r->params);
}

static bool threshold_data(const struct recset *set)
{
    return any_record(set, is_slice_mask);
}

/* c of a setting; 0.5 is the method's default. */
static double threshold_of(const struct record *r)
{
    const char *v = params_value(r->params, "tau");
    return v ? strtod(v, NULL) : 0.5;
}

struct threshold_row {
    const struct group *g;
    struct buf rest;
    double c;
};

static int threshold_order(const void *x, const void *y)
{
    const struct threshold_row *a = x, *b = y;
    int d = natural_compare(buf_str(&a->rest), buf_str(&b->rest));
    return d ? d : (a->c > b->c) - (a->c < b->c);
}

static const char *const threshold_metrics[] = {"density_elem", "density_exec", "cra_min",
                                                "cra_p1",       "cra_mean",     "err_l1_rel"};
#define N_THRESHOLD (int)(sizeof threshold_metrics / sizeof *threshold_metrics)

/* A table in the making. */
struct threshold_table {
    enum group_key scope[KEYS_MAX];
    int n_scope;
    struct grouping gs;
    struct str_list times; /* measured on a GPU, of whole calls where calls were timed */
    bool calls, other;     /* a column counts calls; some row's calls are of other heads */
    struct table *out;
};

static bool slice_masks_have(const struct record *r, int64_t n, const char *metric)
{
    for (int64_t i = 0; i < n; i++)
        if (is_slice_mask(NULL, &r[i]) && record_has(&r[i], metric))
            return true;
    return false;
}

static void find_times(const struct recset *set, struct str_list *times)
{
    static const char *const names[] = {"time_select_ns", "time_attend_ns", "time_total_ns",
                                        "speedup"};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++)
        if (slice_masks_have(set->r, set->n, names[k]) ||
            slice_masks_have(set->calls, set->n_calls, names[k]))
            str_list_add(times, names[k]);
}

static int threshold_columns(struct threshold_table *h, struct err *err)
{
    struct table *t = h->out;
    int rc = 0;
    TRY(table_key_columns(t, h->scope, h->n_scope, err));
    TRY(table_column(t, "params", "other parameters", "", COL_TEXT, 1, err));
    TRY(table_column(t, "c", "c", "1/N", COL_REAL, 1, err));
    TRY(table_column(t, "n", "n", "", COL_INT, 1, err));
    if (h->calls)
        TRY(table_column(t, "calls", "calls", "", COL_INT, 1, err));
    for (int k = 0; k < N_THRESHOLD; k++)
        TRY(stats_column(t, threshold_metrics[k], threshold_metrics[k], err));
    for (int64_t k = 0; k < h->times.n; k++)
        TRY(table_metric_column(t, h->times.items[k], err));
out:
    return rc;
}

static int put_threshold(struct threshold_table *h, const struct threshold_row *row,
                         struct err *err)
{
    struct table *t = h->out;
    int64_t col = h->n_scope;
    int rc = 0;
    TRY(table_row(t, err));
    TRY(put_keys(t, row->g->first, h->scope, h->n_scope, err));
    TRY(table_text(t, col++, buf_str(&row->rest), err));
    table_num(t, col++, row->c);
    table_num(t, col++, (double)row->g->n_ok);
    if (h->calls)
        table_num(t, col++, (double)calls_beside(&h->gs, row->g, &h->other));
    for (int k = 0; k < N_THRESHOLD; k++)
        TRY(put_stats(t, col++, &h->gs, row->g, threshold_metrics[k], err));
    for (int64_t k = 0; k < h->times.n; k++)
        TRY(put_stats(t, col++, &h->gs, row->g, h->times.items[k], err));
out:
    return rc;
}

/* Groups come by scope first; within one of them settings that differ in c alone stand together. */
static int threshold_rows(struct threshold_table *h, struct err *err)
{
    const struct grouping *gs = &h->gs;
    struct threshold_row *rows = NULL;
    int rc = 0;
    TRY(mem_zalloc(&rows, gs->n, sizeof *rows, "rows", err));
    for (int64_t i = 0; i < gs->n; i++) {
        rows[i] = (struct threshold_row){.g = &gs->g[i], .c = threshold_of(gs->g[i].first)};
        params_without(gs->g[i].first->params, "tau", &rows[i].rest);
    }
    for (int64_t a = 0, b; a < gs->n; a = b) {
        for (b = a;
             b < gs->n && same_keys(rows[a].g->first, rows[b].g->first, h->scope, h->n_scope); b++)
            ;
        qsort(rows + a, (size_t)(b - a), sizeof *rows, threshold_order);
    }
    for (int64_t i = 0; i < gs->n; i++)
        TRY(put_threshold(h, &rows[i], err));
out:
    for (int64_t i = 0; rows && i < gs->n; i++)
        buf_free(&rows[i].rest);
    free(rows);
    return rc;
}

static int build_threshold(const struct table_def *def, const struct recset *set,
                           const struct table_request *req, struct table *out, struct err *err)
{
    static const enum group_key more[] = {KEY_PERMUTE};
    struct threshold_table h = {.out = out};
    enum group_key keys[KEYS_MAX];
    int rc = 0;

    TRY(no_request(req, err));
    if (!threshold_data(set))
        FAIL(err, ERR_INPUT,
             "no record of fg-attn with a mask of its own: replay fg-attn:refresh=1:tau=a,b,...");
    TRY(scope_and(set, more, 1, h.scope, &h.n_scope, err));
    memcpy(keys, h.scope, sizeof keys);
    keys[h.n_scope] = KEY_PARAMS;
    TRY(grouping_make(set, keys, h.n_scope + 1, 0, is_slice_mask, NULL, &h.gs, err));
    find_times(set, &h.times);
    h.calls = calls_in_columns(&h.gs, &h.times);
    TRY(threshold_columns(&h, err));
    TRY(threshold_rows(&h, err));
    calls_note(&h.gs, set, &h.times, h.other, out);
    table_note(out, "calls that run dense by the method's schedule (refresh steps) are left out");
out:
    str_list_free(&h.times);
    grouping_free(&h.gs);
    return rc;
}

const struct table_def table_threshold = {
    {"threshold", "Density, recall and error of slice masks against c (FG-Attn, figure 13)",
     "rows: the threshold tau of fg-attn (mode=cached; refresh=1 gives every step its own mask)"},
    "params",
    "density_elem",
    0,
    build_threshold,
    threshold_data};

/* ---- permutations ---------------------------------------------------------------------------- */

static bool has_similarity(const void *ctx, const struct record *r)
{
    return r->status == RECORD_OK && record_has(r, "sim_q");
}

static bool is_sparse_call(const void *ctx, const struct record *r)
{
    return r->status == RECORD_OK && strcmp(r->method, "dense") != 0 &&
           record_has(r, "sparsity_total") && record_get(r, "dense_call") != 1;
}

static bool permutations_data(const struct recset *set)
{
    return any_record(set, has_similarity);
}

/* What was replayed in the stored order and as "row" is one cell of the view. */
static int drop_repeated(struct recset *view, struct err *err)
{
    bool *drop = NULL;
    int64_t kept = 0;
    int rc = 0;
    TRY(mem_zalloc(&drop, view->n, sizeof *drop, "repeated cells", err));
    TRY(records_repeated(view->r, view->n, drop, err));
    for (int64_t i = 0; i < view->n; i++)
        if (!drop[i])
            view->r[kept++] = view->r[i];
    view->n = kept;
out:
    free(drop);
    return rc;
}

/* A view of the records in which `permute` is the order that the method saw, also where the
 * method's own parameter asked for it. The records stay the set's. */
static int ordered_view(const struct recset *set, struct recset *view, struct err *err)
{
    int rc = mem_alloc(&view->r, set->n, sizeof *view->r, "records", err);
    if (rc)
        return rc;
    view->n = set->n;
    for (int64_t i = 0; i < set->n; i++) {
        struct record *r = &view->r[i];
        *r = set->r[i];
        const char *own = params_value(r->params, "permute");
        if (own && strcmp(r->permute, "none") == 0)
            snprintf(r->permute, sizeof r->permute, "%.*s", (int)params_value_len(own), own);
        if (strcmp(r->permute, "row") == 0) /* the order in which tokens are stored */
            snprintf(r->permute, sizeof r->permute, "none");
    }
    return drop_repeated(view, err);
}

enum { P_SIM_Q, P_SIM_K, P_BELOW, P_METHOD, P_PARAMS, P_N, P_L1, P_SPARSITY, P_COLUMNS };

static int permutation_columns(struct table *t, struct err *err)
{
    int rc = 0;
    TRY(stats_column(t, "sim_q", "sim_q", err));
    TRY(stats_column(t, "sim_k", "sim_k", err));
    TRY(stats_column(t, "below_b64", "below_b64", err));
    TRY(table_column(t, "method", "method", "", COL_TEXT, 1, err));
    TRY(table_column(t, "params", "parameters", "", COL_TEXT, 1, err));
    TRY(table_column(t, "n", "n", "", COL_INT, 1, err));
    TRY(stats_column(t, "err_l1_rel", "err_l1_rel", err));
    TRY(stats_column(t, "sparsity_total", "sparsity_total", err));
out:
    return rc;
}

/* One row: an order, and a method in it (m NULL: none was replayed). */
static int put_order(struct table *t, const struct grouping *sims, const struct group *s,
                     const struct grouping *methods, const struct group *m,
                     const enum group_key *keys, int n, struct err *err)
{
    struct buf rest = {0};
    int rc = 0;
    TRY(table_row(t, err));
    TRY(put_keys(t, s->first, keys, n, err));
    TRY(put_stats(t, n + P_SIM_Q, sims, s, "sim_q", err));
    TRY(put_stats(t, n + P_SIM_K, sims, s, "sim_k", err));
    TRY(put_stats(t, n + P_BELOW, sims, s, "below_b64", err));
    if (!m)
        return 0;
    params_without(m->first->params, "permute", &rest);
    TRY(table_text(t, n + P_METHOD, m->first->method, err));
    TRY(table_text(t, n + P_PARAMS, buf_str(&rest), err));
    table_num(t, n + P_N, (double)m->n_ok);
    TRY(put_stats(t, n + P_L1, methods, m, "err_l1_rel", err));
    TRY(put_stats(t, n + P_SPARSITY, methods, m, "sparsity_total", err));
out:
    buf_free(&rest);
    return rc;
}

static int build_permutations(const struct table_def *def, const struct recset *set,
                              const struct table_request *req, struct table *out, struct err *err)
{
    static const enum group_key more[] = {KEY_PERMUTE};
    enum group_key keys[KEYS_MAX], all[KEYS_MAX];
    struct recset view = {0};
    struct grouping sims = {0}, methods = {0};
    int n, rc = 0;

    TRY(no_request(req, err));
    if (!permutations_data(set))
        FAIL(err, ERR_INPUT,
             "no ok record has a metric sim_q: replay the method dense with --permute");
    TRY(ordered_view(set, &view, err));
    TRY(scope_and(&view, more, 1, keys, &n, err));
    memcpy(all, keys, sizeof all);
    all[n] = KEY_METHOD;
    all[n + 1] = KEY_PARAMS;
    TRY(table_key_columns(out, keys, n, err));
    TRY(permutation_columns(out, err));
    TRY(grouping_make(&view, keys, n, GROUP_PER_HEAD, has_similarity, NULL, &sims, err));
    TRY(grouping_make(&view, all, n + 2, 0, is_sparse_call, NULL, &methods, err));
    for (int64_t i = 0; i < sims.n; i++) {
        bool any = false;
        for (int64_t k = 0; k < methods.n; k++)
            if (same_keys(sims.g[i].first, methods.g[k].first, keys, n)) {
                TRY(put_order(out, &sims, &sims.g[i], &methods, &methods.g[k], keys, n, err));
                any = true;
            }
        if (!any)
            TRY(put_order(out, &sims, &sims.g[i], NULL, NULL, keys, n, err));
    }
    table_note(out, "none: the stored order, row-major for video; sim_q and sim_k are those of all "
                    "replayed heads in that order, whatever the method");
    table_note(out, "calls that a method runs dense by its schedule are left out");
out:
    grouping_free(&sims);
    grouping_free(&methods);
    free(view.r);
    return rc;
}

const struct table_def table_permutations = {
    {"permutations", "Similarity, error and sparsity in each token order (SpargeAttn, tables 4, 9)",
     "rows: token order, then the methods replayed in it; from records of dense and of methods "
     "with "
     "--permute"},
    "permute",
    "sim_q",
    0,
    build_permutations,
    permutations_data};
