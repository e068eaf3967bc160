/*
 * compare.c - a merge of two sets in the order of cells. NaN equals NaN, infinities equal
 * themselves.
 */
#include "analyze/compare.h"

#include "analyze/group.h"
#include "analyze/metricfacts.h"
#include "core/mem.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What makes a cell, in the order in which differences are listed. */
static const enum group_key cell_keys[] = {
    KEY_MODEL,   KEY_TRACE, KEY_RUN,    KEY_STEP,   KEY_BRANCH, KEY_LAYER,     KEY_SCOPE,
    KEY_HEADS,   KEY_HEAD,  KEY_METHOD, KEY_PARAMS, KEY_SEED,   KEY_PRECISION, KEY_BACKEND,
    KEY_PERMUTE, KEY_TASK,  KEY_TOKENS, KEY_DEPTH,  KEY_SAMPLE, KEY_SETTING, /* of a model */
};

static bool is_of_model(enum group_key k)
{
    return k == KEY_TASK || k == KEY_TOKENS || k == KEY_DEPTH || k == KEY_SAMPLE ||
           k == KEY_SETTING;
}

#define N_CELL_KEYS (int)(sizeof cell_keys / sizeof *cell_keys)

enum { C_CELL, C_WHAT, C_A, C_B, C_DIFF, C_REL };

struct walk {
    enum group_key keys[KEYS_MAX];
    int n_keys;
    const struct compare_opts *o;
    struct compare_result *res;
    struct table *t;
};

int64_t compare_differences(const struct compare_result *r)
{
    return r->only_a + r->only_b + r->status + r->reason + r->values;
}

/* The records by cell, each of them once. */
static int sorted(const struct recset *s, const struct walk *w, struct grouping *out,
                  struct err *err)
{
    int rc = grouping_make(s, w->keys, w->n_keys, 0, NULL, NULL, out, err);
    for (int64_t i = 0; !rc && i < out->n; i++) {
        const struct record *r = out->g[i].first;
        if (out->g[i].n > 1)
            rc = err_set(err, ERR_USAGE,
                         "%s%s: several records are the same cell (layer %d head %d method %s)",
                         w->o->ignore ? "without " : "compare", w->o->ignore ? w->o->ignore : "",
                         r->layer, r->head, r->method);
    }
    return rc;
}

static void cell_name(const struct walk *w, const struct record *r, struct buf *b)
{
    assert(r);
    for (int i = 0; i < w->n_keys; i++) {
        enum group_key k = w->keys[i];
        if (k == KEY_MODEL || k == KEY_TRACE || k == KEY_PRECISION ||
            (k == KEY_PARAMS && (!r->params || !r->params[0])) || (k == KEY_RUN && r->run == 0) ||
            (k == KEY_SEED && r->seed == 0) || (k == KEY_SCOPE && r->scope != RECORD_OF_CALL) ||
            (k == KEY_HEADS && (!r->heads || !r->heads[0])) ||
            (k == KEY_HEAD && r->scope == RECORD_OF_CALL) ||
            (is_of_model(k) && r->scope != RECORD_OF_MODEL) ||
            (k == KEY_BACKEND && strcmp(r->backend, "cpu") == 0) ||
            (k == KEY_PERMUTE && strcmp(r->permute, "none") == 0))
            continue; /* what is usual is not worth a word */
        buf_printf(b, "%s%s ", b->len ? " " : "", key_name(k));
        key_text(r, k, b);
    }
}

/* A row, unless there are enough; texts may be NULL. */
static int add_row(struct walk *w, const struct record *r, const char *what, const char *a,
                   const char *b, double diff, double rel, struct err *err)
{
    struct buf name = {0};
    int rc = 0;
    if (w->o->most && w->t->n_rows >= w->o->most)
        return 0;
    cell_name(w, r, &name);
    TRY(buf_check(&name, "cell", err));
    TRY(table_row(w->t, err));
    TRY(table_text(w->t, C_CELL, buf_str(&name), err));
    TRY(table_text(w->t, C_WHAT, what, err));
    TRY(table_text(w->t, C_A, a, err));
    TRY(table_text(w->t, C_B, b, err));
    if (!isnan(diff))
        table_num(w->t, C_DIFF, diff);
    if (!isnan(rel))
        table_num(w->t, C_REL, rel);
out:
    buf_free(&name);
    return rc;
}

static void value_text(const double *x, char text[32])
{
    if (!x)
        snprintf(text, 32, "-");
    else if (!isfinite(*x))
        snprintf(text, 32, "%s", isnan(*x) ? "nan" : *x < 0 ? "-inf" : "inf");
    else
        num_text(*x, text);
}

static const double *value_of(const struct record *r, const char *name)
{
    int64_t at = metric_place(r->names, name);
    return at < 0 ? NULL : &r->values[at];
}

static bool is_compared(const struct walk *w, const char *name)
{
    return w->o->metrics ? name_matches(w->o->metrics, name) : metric_noise(name) != NOISE_MEASURED;
}

static bool equal_values(const struct walk *w, double a, double b)
{
    if (isnan(a) || isnan(b))
        return isnan(a) && isnan(b);
    if (isinf(a) || isinf(b))
        return a == b;
    return fabs(a - b) <= w->o->atol + w->o->rtol * fmax(fabs(a), fabs(b));
}

static int compare_metric(struct walk *w, const struct record *a, const char *name, const double *x,
                          const double *y, struct err *err)
{
    char tx[32], ty[32];
    double diff = NAN, rel = NAN;

    w->res->metrics++;
    if (x && y && isfinite(*x) && isfinite(*y)) {
        double size = fmax(fabs(*x), fabs(*y));
        diff = *y - *x;
        rel = size > 0 ? fabs(diff) / size : 0;
        w->res->worst_abs = fmax(w->res->worst_abs, fabs(diff));
        w->res->worst_rel = fmax(w->res->worst_rel, rel);
    }
    if (x && y && equal_values(w, *x, *y))
        return 0;
    w->res->values++;
    value_text(x, tx);
    value_text(y, ty);
    return add_row(w, a, name, tx, ty, diff, rel, err);
}

static int compare_cell(struct walk *w, const struct record *a, const struct record *b,
                        struct err *err)
{
    static const char *const names[] = {"ok", "skip", "error"};
    int rc = 0;
    w->res->cells++;
    if (a->status != b->status) {
        w->res->status++;
        return add_row(w, a, "status", names[a->status], names[b->status], NAN, NAN, err);
    }
    if (a->status != RECORD_OK && strcmp(a->reason, b->reason) != 0) {
        w->res->reason++;
        return add_row(w, a, "reason", a->reason, b->reason, NAN, NAN, err);
    }
    for (int64_t i = 0; i < record_metrics(a); i++) {
        const char *name = record_metric_name(a, i);
        if (is_compared(w, name))
            TRY(compare_metric(w, a, name, &a->values[i], value_of(b, name), err));
    }
    for (int64_t i = 0; i < record_metrics(b); i++) {
        const char *name = record_metric_name(b, i);
        if (is_compared(w, name) && !value_of(a, name))
            TRY(compare_metric(w, a, name, NULL, &b->values[i], err));
    }
out:
    return rc;
}

static int choose_keys(struct walk *w, struct err *err)
{
    enum group_key drop[KEYS_MAX];
    int n_drop = 0, rc = 0;
    if (w->o->ignore && w->o->ignore[0])
        TRY(keys_parse(w->o->ignore, "--ignore", drop, &n_drop, err));
    for (int i = 0; i < N_CELL_KEYS; i++) {
        int k = 0;
        while (k < n_drop && drop[k] != cell_keys[i])
            k++;
        if (k == n_drop)
            w->keys[w->n_keys++] = cell_keys[i];
    }
out:
    return rc;
}

static int add_columns(struct table *t, struct err *err)
{
    int rc = 0;
    TRY(table_column(t, "cell", "cell", "", COL_TEXT, 1, err));
    TRY(table_column(t, "what", "what", "", COL_TEXT, 1, err));
    TRY(table_column(t, "a", "A", "", COL_TEXT, 1, err));
    TRY(table_column(t, "b", "B", "", COL_TEXT, 1, err));
    TRY(table_column(t, "difference", "B - A", "", COL_REAL, 1, err));
    TRY(table_column(t, "relative", "relative", "", COL_REAL, 1, err));
    t->cols[C_DIFF].mixed = t->cols[C_REL].mixed = true;
out:
    return rc;
}

static int merge(struct walk *w, const struct grouping *a, const struct grouping *b,
                 struct err *err)
{
    int rc = 0;
    for (int64_t i = 0, j = 0; i < a->n || j < b->n;) {
        const struct record *x = i < a->n ? a->g[i].first : NULL;
        const struct record *y = j < b->n ? b->g[j].first : NULL;
        int d = !x ? 1 : !y ? -1 : keys_compare(x, y, w->keys, w->n_keys);
        i += d <= 0;
        j += d >= 0;
        w->res->only_a += d < 0;
        w->res->only_b += d > 0;
        TRY(d == 0  ? compare_cell(w, x, y, err)
            : d < 0 ? add_row(w, x, "cell", "present", "missing", NAN, NAN, err)
                    : add_row(w, y, "cell", "missing", "present", NAN, NAN, err));
    }
out:
    return rc;
}

int compare_sets(const struct recset *a, const struct recset *b, const struct compare_opts *o,
                 struct compare_result *res, struct table *out, struct err *err)
{
    struct grouping x = {0}, y = {0};
    struct recset all_a = {0}, all_b = {0};
    struct walk w = {.o = o, .res = res, .t = out};
    int rc = 0;

    *res = (struct compare_result){0};
    table_init(out, "compare", "Differences between two sets of records");
    TRY(add_columns(out, err));
    TRY(choose_keys(&w, err));
    if (o->metrics)
        TRY(recset_check_metrics(a, b, "--metrics", o->metrics, err));
    TRY(recset_all(a, &all_a, err));
    TRY(recset_all(b, &all_b, err));
    TRY(sorted(&all_a, &w, &x, err));
    TRY(sorted(&all_b, &w, &y, err));
    TRY(merge(&w, &x, &y, err));
    int64_t found = compare_differences(res);
    table_note(out,
               "%lld cells and %lld metrics compared: %lld cells only in A, %lld only in B, "
               "%lld of other status, %lld with another reason, %lld metrics differ",
               (long long)res->cells, (long long)res->metrics, (long long)res->only_a,
               (long long)res->only_b, (long long)res->status, (long long)res->reason,
               (long long)res->values);
    table_note(out, "largest difference of a metric: %.3g absolute, %.3g relative", res->worst_abs,
               res->worst_rel);
    if (found > out->n_rows)
        table_note(out, "%lld of %lld differences shown (--most 0 shows all)",
                   (long long)out->n_rows, (long long)found);
out:
    grouping_free(&x);
    grouping_free(&y);
    free(all_a.r);
    free(all_b.r);
    return rc;
}
