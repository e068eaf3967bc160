/*
 * compare.c - a merge of two sets in the order of cells. NaN equals NaN, infinities equal
 * themselves. Beside the records a set takes a pointer for each.
 */
#include "analyze/compare.h"

#include "analyze/query.h"
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

/* Where the metrics of two lists of names are in the other one. */
struct pairing {
    const struct metric_names *a, *b;
    int64_t *at; /* owned: of those of a, then of b */
};
enum { ABSENT = -1, LEFT_OUT = -2 };
#define PAIRINGS 64 /* kept, by a hash of the lists */

struct walk {
    enum group_key keys[KEYS_MAX];
    int n_keys;
    const struct compare_opts *o;
    struct compare_result *res;
    struct table *t;
    struct pairing pairings[PAIRINGS];
};

int64_t compare_differences(const struct compare_result *r)
{
    return r->only_a + r->only_b + r->status + r->reason + r->values;
}

static int by_cell(const void *a, const void *b, void *walk)
{
    const struct walk *w = walk;
    return keys_compare(*(const struct record *const *)a, *(const struct record *const *)b, w->keys,
                        w->n_keys);
}

/* All records of a set by cell, each cell once. */
static int sorted(const struct recset *s, struct walk *w, const struct record ***out,
                  struct err *err)
{
    const struct record **all = NULL;
    int64_t n = s->n + s->n_calls;
    PASS_ON(mem_alloc(&all, n, sizeof(struct record *), "records by cell", err));
    *out = all;
    for (int64_t i = 0; i < n; i++)
        all[i] = i < s->n ? s->r + i : s->calls + i - s->n;
    qsort_r(all, (size_t)n, sizeof *all, by_cell, w);
    for (int64_t i = 1; i < n; i++)
        if (by_cell(all + i - 1, all + i, w) == 0)
            return err_set(err, ERR_USAGE,
                           "%s%s: several records are the same cell (layer %d head %d method %s)",
                           w->o->ignore ? "without " : "compare", w->o->ignore ? w->o->ignore : "",
                           all[i]->layer, all[i]->head, all[i]->method);
    return 0;
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

static bool wants_rows(const struct walk *w)
{
    return !w->o->most || w->t->n_rows < w->o->most;
}

/* A row, unless there are enough; texts may be NULL. */
static int add_row(struct walk *w, const struct record *r, const char *what, const char *a,
                   const char *b, double diff, double rel, struct err *err)
{
    OWN(buf_free) struct buf name = {0};
    if (!wants_rows(w))
        return 0;
    cell_name(w, r, &name);
    PASS_ON(buf_check(&name, "cell", err));
    PASS_ON(table_row(w->t, err));
    PASS_ON(table_text(w->t, C_CELL, buf_str(&name), err));
    PASS_ON(table_text(w->t, C_WHAT, what, err));
    PASS_ON(table_text(w->t, C_A, a, err));
    PASS_ON(table_text(w->t, C_B, b, err));
    if (!isnan(diff))
        table_num(w->t, C_DIFF, diff);
    if (!isnan(rel))
        table_num(w->t, C_REL, rel);
    return 0;
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

static bool is_compared(const struct walk *w, const char *name)
{
    return w->o->metrics ? name_matches(w->o->metrics, name) : metric_noise(name) != NOISE_MEASURED;
}

static int pair(const struct walk *w, const struct record *a, const struct record *b,
                struct pairing *p, struct err *err)
{
    const struct record *r[2] = {a, b};
    int64_t at = 0;
    free(p->at);
    *p = (struct pairing){.a = a->names, .b = b->names};
    PASS_ON(
        mem_alloc(&p->at, record_metrics(a) + record_metrics(b), sizeof *p->at, "metrics", err));
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < record_metrics(r[k]); i++) {
            const char *name = record_metric_name(r[k], i);
            p->at[at++] = is_compared(w, name) ? metric_place(r[!k]->names, name) : LEFT_OUT;
        }
    return 0;
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
    if (!wants_rows(w))
        return 0;
    value_text(x, tx);
    value_text(y, ty);
    return add_row(w, a, name, tx, ty, diff, rel, err);
}

static int compare_cell(struct walk *w, const struct record *a, const struct record *b,
                        struct err *err)
{
    static const char *const names[] = {"ok", "skip", "error"};
    w->res->cells++;
    if (a->status != b->status) {
        w->res->status++;
        return add_row(w, a, "status", names[a->status], names[b->status], NAN, NAN, err);
    }
    if (a->status != RECORD_OK && strcmp(a->reason, b->reason) != 0) {
        w->res->reason++;
        return add_row(w, a, "reason", a->reason, b->reason, NAN, NAN, err);
    }
    struct pairing *p =
        w->pairings + ((uintptr_t)a->names / 16 * 31 + (uintptr_t)b->names / 16) % PAIRINGS;
    if (p->a != a->names || p->b != b->names)
        PASS_ON(pair(w, a, b, p, err));
    const int64_t *at = p->at;
    for (int64_t i = 0; i < record_metrics(a); i++, at++)
        if (*at != LEFT_OUT)
            PASS_ON(compare_metric(w, a, record_metric_name(a, i), &a->values[i],
                                   *at < 0 ? NULL : &b->values[*at], err));
    for (int64_t i = 0; i < record_metrics(b); i++, at++)
        if (*at == ABSENT)
            PASS_ON(compare_metric(w, a, record_metric_name(b, i), NULL, &b->values[i], err));
    return 0;
}

static int choose_keys(struct walk *w, struct err *err)
{
    enum group_key drop[KEYS_MAX];
    int n_drop = 0;
    if (w->o->ignore && w->o->ignore[0])
        PASS_ON(keys_parse(w->o->ignore, "--ignore", drop, &n_drop, err));
    for (int i = 0; i < N_CELL_KEYS; i++) {
        int k = 0;
        while (k < n_drop && drop[k] != cell_keys[i])
            k++;
        if (k == n_drop)
            w->keys[w->n_keys++] = cell_keys[i];
    }
    return 0;
}

static int add_columns(struct table *t, struct err *err)
{
    PASS_ON(table_column(t, "cell", "cell", "", COL_TEXT, 1, err));
    PASS_ON(table_column(t, "what", "what", "", COL_TEXT, 1, err));
    PASS_ON(table_column(t, "a", "A", "", COL_TEXT, 1, err));
    PASS_ON(table_column(t, "b", "B", "", COL_TEXT, 1, err));
    PASS_ON(table_column(t, "difference", "B - A", "", COL_REAL, 1, err));
    PASS_ON(table_column(t, "relative", "relative", "", COL_REAL, 1, err));
    t->cols[C_DIFF].mixed = t->cols[C_REL].mixed = true;
    return 0;
}

static int merge(struct walk *w, const struct record **a, int64_t n, const struct record **b,
                 int64_t m, struct err *err)
{
    while (n || m) {
        int d = !n ? 1 : !m ? -1 : by_cell(a, b, w);
        PASS_ON(d == 0  ? compare_cell(w, *a, *b, err)
                : d < 0 ? add_row(w, *a, "cell", "present", "missing", NAN, NAN, err)
                        : add_row(w, *b, "cell", "missing", "present", NAN, NAN, err));
        w->res->only_a += d < 0;
        w->res->only_b += d > 0;
        a += d <= 0;
        n -= d <= 0;
        b += d >= 0;
        m -= d >= 0;
    }
    return 0;
}

int compare_sets(const struct recset *a, const struct recset *b, const struct compare_opts *o,
                 struct compare_result *res, struct table *out, struct err *err)
{
    const struct record **x = NULL, **y = NULL;
    struct walk w = {.o = o, .res = res, .t = out};
    int rc = 0;
    *res = (struct compare_result){0};
    table_init(out, "compare", "Differences between two sets of records");
    TRY(add_columns(out, err));
    TRY(choose_keys(&w, err));
    if (o->metrics)
        TRY(recset_check_metrics(a, b, "--metrics", o->metrics, err));
    TRY(sorted(a, &w, &x, err));
    TRY(sorted(b, &w, &y, err));
    TRY(merge(&w, x, a->n + a->n_calls, y, b->n + b->n_calls, err));
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
    for (int i = 0; i < PAIRINGS; i++)
        free(w.pairings[i].at);
    free(x);
    free(y);
    return rc;
}
