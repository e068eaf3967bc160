/*
 * sentences.c - what is said of a claim. Every word that depends on data comes from the numbers.
 */
#include "reproduce/claims.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void count_text(struct buf *b, int64_t n)
{
    if (n >= 10000) {
        count_text(b, n / 1000);
        buf_printf(b, ",%03d", (int)(n % 1000));
    } else {
        buf_printf(b, "%lld", (long long)n);
    }
}

/* "1536 tokens" or "1000 to 4000 tokens" of the model's records. */
static void put_length(const struct page *p, int model, struct buf *b)
{
    int64_t low = INT64_MAX, high = 0;
    for (int64_t i = 0; i < p->evidence.n; i++) {
        const struct proof *v = &p->evidence.v[i];
        if (p->plan->s[v->step].model != model || v->r->status != RECORD_OK)
            continue;
        low = v->r->n_q < low ? v->r->n_q : low;
        high = v->r->n_q > high ? v->r->n_q : high;
    }
    if (!high)
        return;
    buf_puts(b, " (");
    if (low < high) {
        count_text(b, low);
        buf_puts(b, " to ");
    }
    count_text(b, high);
    buf_printf(b, " tokens%s)", p->quick ? ", quick" : "");
}

/* Inputs behind the records: with one, the interval says nothing of prompts. */
static int count_inputs(const struct page *p, int model)
{
    char seen[64][64];
    int n = 0;
    for (int64_t i = 0; i < p->evidence.n; i++) {
        const struct proof *v = &p->evidence.v[i];
        bool known = p->plan->s[v->step].model != model;
        for (int k = 0; k < n && !known; k++)
            known = strcmp(seen[k], v->r->trace) == 0;
        if (!known && n < 64)
            snprintf(seen[n++], sizeof seen[0], "%s", v->r->trace);
    }
    return n;
}

static void put_n(const struct members *all, const struct claim_pair *c, struct buf *b)
{
    buf_printf(b, " over %lld %s", (long long)c->n, all->n ? all->m[0].units.of : "heads");
}

/* Numbers below 0.01, such as errors, need more digits than shares. */
static int pair_digits(const struct claim_pair *c)
{
    return fmax(fabs(c->a), fabs(c->b)) < 0.01 ? 5 : 3;
}

static void put_pair(const struct members *all, const struct claim_pair *c, struct buf *b)
{
    int digits = pair_digits(c);
    buf_printf(b, "%+.*f [%.*f, %.*f]", digits, c->d, digits, c->lo, digits, c->hi);
    put_n(all, c, b);
}

static double member_mean(const struct member *m)
{
    double sum = 0;
    for (int64_t k = 0; k < m->units.n; k++)
        sum += m->units.u[k].sum / (double)m->units.u[k].calls;
    return sum / (double)m->units.n;
}

static bool is_kind(const struct claim_result *r, const char *kind)
{
    return strcmp(r->kind, kind) == 0;
}

static bool is_order(const struct claim_result *r)
{
    return is_kind(r, "rises") || is_kind(r, "falls") || is_kind(r, "trend");
}

static bool is_range(const struct claim_result *r)
{
    return is_kind(r, "below") || is_kind(r, "above") || is_kind(r, "ratio") ||
           is_kind(r, "within") || is_kind(r, "spread") || is_kind(r, "step");
}

/* The metric, where the label does not say it already. */
static void put_metric(const struct member *x, const char *behind, struct buf *b)
{
    if (strcmp(x->metric, x->label))
        buf_printf(b, "%s%s", x->metric, behind);
}

static bool is_gap(const struct members *all, const struct claim_result *r)
{
    return is_kind(r, "more") && all->n == 4;
}

/* "A - B has 0.100 and C - D 0.200, " */
static void put_gaps(const struct members *all, const struct claim_result *r, struct buf *b)
{
    put_metric(&all->m[0], ": ", b);
    buf_printf(b, "%s less %s is %.3f, %s less %s %.3f; the first is more by ", all->m[0].label,
               all->m[1].label, r->pair.a, all->m[2].label, all->m[3].label, r->pair.b);
    put_pair(all, &r->pair, b);
}

/* "A 0.100, B 0.200" */
static void put_means(const struct members *all, struct buf *b)
{
    for (int i = 0; i < all->n; i++)
        buf_printf(b, "%s%s %.3f", i ? ", " : "", all->m[i].label, member_mean(&all->m[i]));
}

/* "A - B is 0.1 [0.0, 0.2] over 12 heads, WHERE [0, 1]" */
static void put_range(const struct members *all, const struct claim_result *r, const char *where,
                      struct buf *b)
{
    const struct member *x = &all->m[r->a], *y = r->b >= 0 ? &all->m[r->b] : NULL;
    const struct claim_pair *c = &r->pair;
    if (y && is_kind(r, "spread")) {
        buf_printf(b, "%s of %s (%.3f) less that of %s (%.3f)", x->metric, x->label, c->a, y->label,
                   c->b);
    } else if (y && is_kind(r, "step")) {
        put_metric(x, ": ", b);
        put_means(all, b);
        buf_puts(b, "; the mean relative step");
    } else {
        put_metric(x, y ? ": " : " of ", b);
        buf_printf(b, "%s%s%s", x->label, y ? is_kind(r, "ratio") ? " / " : " - " : "",
                   y ? y->label : "");
    }
    buf_printf(b, " is %.3f [%.3f, %.3f]", c->d, c->lo, c->hi);
    put_n(all, c, b);
    if (isfinite(r->l) && isfinite(r->h))
        buf_printf(b, ", %s [%g, %g]", where, r->l, r->h);
    else
        buf_printf(b, ", the bound is %g", isfinite(r->h) ? r->h : r->l);
}

static void put_front(const struct members *all, const struct claim_result *r, struct buf *b)
{
    const struct member *x = &all->m[r->a], *y = &all->m[r->b];
    int half = all->n / 2;
    buf_printf(b, "%s %s %.3f and %s %.3f, %s %.3f and %.3f", x->label, x->metric, member_mean(x),
               all->m[r->a + half].metric, member_mean(&all->m[r->a + half]), y->label,
               member_mean(y), member_mean(&all->m[r->b + half]));
    put_n(all, &r->pair, b);
}

static void put_trend(const struct members *all, const struct claim_result *r, struct buf *b)
{
    put_means(all, b);
    buf_printf(b, "; rank correlation %.3f [%.3f, %.3f]", r->pair.d, r->pair.lo, r->pair.hi);
    put_n(all, &r->pair, b);
}

static void put_holds(const struct members *all, const struct claim_result *r, struct buf *b)
{
    const struct member *x = &all->m[r->a], *y = r->b >= 0 ? &all->m[r->b] : NULL;
    const struct claim_pair *c = &r->pair;
    if (is_kind(r, "front")) {
        buf_puts(b, "no other is better in both; nearest ");
        put_front(all, r, b);
        return;
    }
    if (all->n == 1 && (is_kind(r, "below") || is_kind(r, "above"))) {
        buf_printf(b, "%s is %.4f [%.4f, %.4f]", x->metric, c->d, c->lo, c->hi);
        put_n(all, c, b);
        buf_printf(b, ", %s %g", r->kind, isfinite(r->h) ? r->h : r->l);
        return;
    }
    if (is_kind(r, "below") || is_kind(r, "above")) {
        buf_printf(b, "%s is %s %g in every case; nearest %s: %.4f [%.4f, %.4f]", x->metric,
                   r->kind, isfinite(r->h) ? r->h : r->l, x->label, c->d, c->lo, c->hi);
        put_n(all, c, b);
        return;
    }
    if (is_gap(all, r)) {
        put_gaps(all, r, b);
        return;
    }
    if (is_range(r)) {
        put_range(all, r, "inside of", b);
        return;
    }
    if (is_kind(r, "trend")) {
        put_metric(x, ": ", b);
        put_trend(all, r, b);
        return;
    }
    if (is_kind(r, "most"))
        buf_printf(b, "%s is highest with %s (%.3f); next %s (%.3f), ", x->metric, x->label, c->a,
                   y->label, c->b);
    else if (is_kind(r, "least"))
        buf_printf(b, "%s is lowest with %s (%.3f); next %s (%.3f), ", x->metric, y->label, c->b,
                   x->label, c->a);
    else if (is_order(r)) {
        put_metric(x, " ", b);
        buf_puts(b, is_kind(r, "falls") ? "falls: " : "rises: ");
        put_means(all, b);
        buf_puts(b, "; smallest step ");
    } else {
        put_metric(x, ": ", b);
        buf_printf(b, "%s has %.*f and %s %.*f, ", x->label, pair_digits(c), c->a, y->label,
                   pair_digits(c), c->b);
    }
    put_pair(all, c, b);
}

static void put_not(const struct members *all, const struct claim_result *r, struct buf *b)
{
    const struct member *x = &all->m[r->a], *y = r->b >= 0 ? &all->m[r->b] : NULL;
    const struct claim_pair *c = &r->pair;
    if (is_gap(all, r)) {
        put_gaps(all, r, b);
    } else if (is_range(r)) {
        put_range(all, r, "outside of", b);
    } else if (is_kind(r, "trend")) {
        put_metric(x, ": ", b);
        put_trend(all, r, b);
    } else if (is_kind(r, "front")) {
        buf_printf(b, "%s is better in both: ", y->label);
        put_front(all, r, b);
    } else {
        buf_printf(b, "%s is %.*f with %s and %.*f with %s, ",
                   strcmp(x->metric, x->label) ? x->metric : "the share", pair_digits(c), c->b,
                   y->label, pair_digits(c), c->a, x->label);
        put_pair(all, c, b);
    }
}

static void put_why(const struct members *all, const struct claim_result *r, struct buf *b)
{
    const struct claim_pair *c = &r->pair;
    if (r->unmoved) {
        const char *last = all->m[all->n - 1].label;
        buf_puts(b, "nothing tells them apart: ");
        put_metric(&all->m[0], " of ", b);
        for (int i = 0; i < all->n - 1; i++)
            buf_printf(b, "%s%s", i ? ", " : "", all->m[i].label);
        buf_printf(b, " and %s is the same in each of %lld %s", last, (long long)all->m[0].units.n,
                   all->m[0].units.of);
        return;
    }
    int points = is_kind(r, "trend")                          ? 5
                 : is_order(r)                                ? 3
                 : is_kind(r, "spread") || is_kind(r, "step") ? 2
                                                              : 0;
    if (r->a < 0 && all->n < points) {
        buf_printf(b, "there %s only %d point%s", all->n == 1 ? "is" : "are", all->n,
                   all->n == 1 ? "" : "s");
        return;
    }
    if (r->a < 0 || c->n == 0) {
        buf_puts(b, "no record has the numbers");
        return;
    }
    const struct member *x = &all->m[r->a], *y = r->b >= 0 ? &all->m[r->b] : NULL;
    if (c->n < CLAIM_MIN_UNITS) {
        buf_printf(b, "it takes %d %s and there %s %lld", CLAIM_MIN_UNITS, all->m[0].units.of,
                   c->n == 1 ? "is" : "are", (long long)c->n);
    } else if (is_gap(all, r)) {
        put_gaps(all, r, b);
    } else if (is_kind(r, "ratio") && y && !isfinite(c->d)) {
        put_metric(y, " of ", b);
        buf_printf(b, "%s is 0, which has no ratio", y->label);
    } else if (is_range(r)) {
        put_range(all, r, "across", b);
    } else if (is_kind(r, "trend")) {
        put_metric(x, ": ", b);
        put_trend(all, r, b);
    } else if (is_kind(r, "front")) {
        buf_puts(b, "these are too close: ");
        put_front(all, r, b);
    } else {
        put_metric(x, " of ", b);
        buf_printf(b, "%s and %s differ%s by ", x->label, y->label,
                   strcmp(x->metric, x->label) ? "s" : "");
        put_pair(all, c, b);
    }
}

void claim_sentence(const struct page *p, const struct members *all, const struct claim_result *r,
                    int model, struct buf *b)
{
    const char *name = p->plan->models->m[model].name;
    if (r->pair.state == CLAIM_CANNOT) {
        buf_printf(b, "Cannot be tested on %s, because ", name);
        put_why(all, r, b);
    } else {
        buf_printf(b, r->pair.state == CLAIM_HOLDS ? "Holds on %s" : "Does not hold on %s", name);
        put_length(p, model, b);
        buf_puts(b, ": ");
        if (r->pair.state == CLAIM_HOLDS)
            put_holds(all, r, b);
        else
            put_not(all, r, b);
        if (count_inputs(p, model) == 1 && strcmp(all->m[0].units.of, "prompts") != 0)
            buf_printf(b, "; one prompt: the interval covers %s only", all->m[0].units.of);
    }
    buf_puts(b, ".");
}

/* Half a unit of the last digit that the paper prints for a metric, in the metric's own scale. */
static double tie_of(const struct page *p, const char *metric)
{
    struct paper_number x;
    for (int i = 0; i < p->n_blocks; i++) {
        const struct page_block *b = &p->blocks[i];
        const json_t *scale = json_object_get(b->j, "scale");
        for (int r = 0; r < b->rows.n; r++)
            for (int c = 0; c < b->columns.n; c++) {
                const struct grid_entry *row = &b->rows.e[r], *column = &b->columns.e[c];
                const char *own = json_str_or(column->j, "ours", json_str_or(row->j, "ours", ""));
                if (strcmp(own, metric) == 0 && page_printed(p, b, row, column, 0, &x))
                    return 0.5 * pow(10, -printed_digits(x.value)) /
                           (json_is_number(scale) ? json_number_value(scale) : 1);
            }
    }
    return 0.0005;
}

/* The claim in the paper's words, and in how much of the printed table it holds. */
static void put_claim(const struct page *p, const char *text, const json_t *test, struct buf *b)
{
    struct printed_claim in;
    claim_on_printed(p, test, &in);
    buf_printf(b, "\"%s\"", text);
    if (in.lines && in.held == in.lines)
        buf_puts(b, " (holds in the printed numbers)");
    else if (in.lines)
        buf_printf(b, " (holds in %d of %d printed rows or columns; not in %s)", in.held, in.lines,
                   in.failed);
    buf_puts(b, ": ");
}

/* What the paper prints about its own labels. */
static void put_labels(const struct page *p, const json_t *claim, struct buf *b)
{
    struct printed_claim in;
    const char *of = claim_of_rows(json_object_get(claim, "test")) ? "pairs" : "rows";
    claim_on_printed(p, json_object_get(claim, "test"), &in);
    buf_printf(b, "\"%s\": ", json_str_or(claim, "text", ""));
    if (in.lines && in.held == in.lines)
        buf_printf(b, "Holds in the printed numbers, %d %s.", in.lines, of);
    else if (in.lines)
        buf_printf(b, "Holds in %d of %d printed %s; not in %s.", in.held, in.lines, of, in.failed);
    else
        buf_puts(b, "Cannot be tested, because the table does not print these numbers.");
}

static int add_sentence(struct page *p, const json_t *claim, int model, struct err *err)
{
    const json_t *test = json_object_get(claim, "test");
    const char *text = json_str_or(claim, "text", "");
    struct members *all = NULL;
    struct claim_result r;
    struct buf b = {0};
    int rc = 0;

    if (claim_of_setting(test)) {
        put_claim(p, text, test, &b);
        TRY(setting_sentence(p, test, model, &b, err));
        TRY(buf_check(&b, "sentence", err));
        str_list_add(&p->sentences, buf_str(&b));
        goto out;
    }
    TRY(mem_zalloc(&all, 1, sizeof *all, "claim", err));
    TRY(claim_members(p, test, model, all, err));
    const char *metric = json_str_or(test, "metric", all->n ? all->m[0].metric : "");
    TRY(claim_test(test, all, tie_of(p, metric), &r, err));
    put_claim(p, text, test, &b);
    claim_sentence(p, all, &r, model, &b);
    TRY(buf_check(&b, "sentence", err));
    str_list_add(&p->sentences, buf_str(&b));
out:
    if (all)
        members_free(all);
    free(all);
    buf_free(&b);
    return rc;
}

int page_claims(struct page *p, struct err *err)
{
    size_t i;
    json_t *claim;
    int rc = 0;
    for (int m = 0; m < p->plan->models->n; m++) {
        bool used = false;
        for (int k = 0; k < p->plan->n && !used; k++)
            used = p->plan->s[k].recipe == p->at && p->plan->s[k].model == m;
        json_array_foreach(p->recipe->claims, i, claim)
        {
            const char *needs = json_str_or(claim, "needs", "");
            if (used && !claim_of_labels(json_object_get(claim, "test")) &&
                (!needs[0] || p->plan->cuda))
                TRY(add_sentence(p, claim, m, err));
        }
    }
    json_array_foreach(p->recipe->claims, i, claim)
    {
        const char *needs = json_str_or(claim, "needs", "");
        struct buf b = {0};
        if (claim_of_labels(json_object_get(claim, "test"))) {
            put_labels(p, claim, &b);
            str_list_add(&p->sentences, buf_str(&b));
            buf_free(&b);
            continue;
        }
        if (!needs[0] || (p->plan->cuda && p->recipe->n_jobs))
            continue;
        put_claim(p, json_str_or(claim, "text", ""), json_object_get(claim, "test"), &b);
        buf_printf(&b, "Cannot be tested, because it needs %s.",
                   strcmp(needs, "K") == 0   ? "a GPU"
                   : strcmp(needs, "M") == 0 ? "eval"
                                             : needs);
        str_list_add(&p->sentences, buf_str(&b));
        buf_free(&b);
    }
out:
    return rc;
}
