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

static void put_pair(const struct claim_pair *c, struct buf *b)
{
    buf_printf(b, "%+.3f [%.3f, %.3f] over %lld heads", c->d, c->lo, c->hi, (long long)c->n);
}

static void put_holds(const struct members *all, const struct claim_result *r, struct buf *b)
{
    const struct member *x = &all->m[r->a], *y = r->b >= 0 ? &all->m[r->b] : NULL;
    const struct claim_pair *c = &r->pair;
    if (strcmp(r->kind, "most") == 0)
        buf_printf(b, "%s is highest with %s (%.3f); next %s (%.3f), ", x->metric, x->label, c->a,
                   y->label, c->b);
    else if (strcmp(r->kind, "least") == 0)
        buf_printf(b, "%s is lowest with %s (%.3f); next %s (%.3f), ", x->metric, y->label, c->b,
                   x->label, c->a);
    else if (strcmp(r->kind, "rises") == 0 || strcmp(r->kind, "falls") == 0) {
        bool falls = r->kind[0] == 'f', names = strcmp(x->metric, x->label) != 0;
        if (names)
            buf_printf(b, "%s ", x->metric);
        buf_puts(b, falls ? "falls: " : "rises: ");
        for (int i = 0; i < all->n; i++) {
            double sum = 0;
            for (int64_t k = 0; k < all->m[i].units.n; k++)
                sum += all->m[i].units.u[k].sum / (double)all->m[i].units.u[k].calls;
            buf_printf(b, "%s%s %.3f", i ? ", " : "", all->m[i].label,
                       sum / (double)all->m[i].units.n);
        }
        buf_puts(b, "; smallest step ");
    } else if (strcmp(r->kind, "more") == 0)
        buf_printf(b, "%s%s%s has %.3f and %s %.3f, ", strcmp(x->metric, x->label) ? x->metric : "",
                   strcmp(x->metric, x->label) ? ": " : "", x->label, c->a, y->label, c->b);
    if (!isfinite(r->l + r->h) || strcmp(r->kind, "ratio") == 0 || strcmp(r->kind, "within") == 0) {
        if (strcmp(r->kind, "ratio") == 0)
            buf_printf(b, "%s / %s is %.3f [%.3f, %.3f] over %lld heads, inside of [%g, %g]",
                       x->label, y->label, c->d, c->lo, c->hi, (long long)c->n, r->l, r->h);
        else if (strcmp(r->kind, "within") == 0)
            buf_printf(b, "%s%s%s is %.3f [%.3f, %.3f] over %lld heads, inside of [%g, %g]",
                       x->label, y ? " - " : "", y ? y->label : "", c->d, c->lo, c->hi,
                       (long long)c->n, r->l, r->h);
        else
            buf_printf(b,
                       "%s is %s %g in every case; nearest %s: %.4f [%.4f, %.4f] over %lld heads",
                       x->metric, r->kind, isfinite(r->h) ? r->h : r->l, x->label, c->d, c->lo,
                       c->hi, (long long)c->n);
    } else {
        put_pair(c, b);
    }
}

static bool is_range(const struct claim_result *r)
{
    return strcmp(r->kind, "below") == 0 || strcmp(r->kind, "above") == 0 ||
           strcmp(r->kind, "ratio") == 0 || strcmp(r->kind, "within") == 0;
}

static void put_not(const struct members *all, const struct claim_result *r, struct buf *b)
{
    const struct member *x = &all->m[r->a], *y = r->b >= 0 ? &all->m[r->b] : NULL;
    const struct claim_pair *c = &r->pair;
    if (is_range(r)) {
        buf_printf(b, "%s%s%s is %.3f [%.3f, %.3f] over %lld heads, outside of [%g, %g]", x->label,
                   !y                              ? ""
                   : strcmp(r->kind, "ratio") == 0 ? " / "
                                                   : " - ",
                   y ? y->label : "", c->d, c->lo, c->hi, (long long)c->n, r->l, r->h);
        return;
    }
    buf_printf(b, "%s is %.3f with %s and %.3f with %s, ",
               strcmp(x->metric, x->label) ? x->metric : "the share", c->b, y->label, c->a,
               x->label);
    put_pair(c, b);
}

static void put_why(const struct members *all, const struct claim_result *r, struct buf *b)
{
    const struct claim_pair *c = &r->pair;
    if (r->a < 0 && (strcmp(r->kind, "rises") == 0 || strcmp(r->kind, "falls") == 0) &&
        all->n < 3) {
        buf_printf(b, "there are only %d points", all->n);
        return;
    }
    if (r->a < 0 || c->n == 0) {
        buf_puts(b, "no record has the numbers");
        return;
    }
    const struct member *x = &all->m[r->a], *y = r->b >= 0 ? &all->m[r->b] : NULL;
    if (c->n < CLAIM_MIN_UNITS) {
        buf_printf(b, "there are only %lld heads", (long long)c->n);
    } else if (is_range(r)) {
        buf_printf(b, "%s%s%s is %.3f [%.3f, %.3f] over %lld heads, across [%g, %g]", x->label,
                   !y                              ? ""
                   : strcmp(r->kind, "ratio") == 0 ? " / "
                                                   : " - ",
                   y ? y->label : "", c->d, c->lo, c->hi, (long long)c->n, r->l, r->h);
    } else {
        buf_printf(b, "%s%s%s and %s differ by ", strcmp(x->metric, x->label) ? x->metric : "",
                   strcmp(x->metric, x->label) ? " of " : "", x->label, y->label);
        put_pair(c, b);
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
        if (count_inputs(p, model) == 1)
            buf_puts(b, "; one prompt: the interval covers heads only");
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

static int add_sentence(struct page *p, const json_t *claim, int model, struct err *err)
{
    const json_t *test = json_object_get(claim, "test");
    const char *text = json_str_or(claim, "text", "");
    struct members *all = NULL;
    struct claim_result r;
    struct buf b = {0};
    int rc = 0;

    TRY(mem_zalloc(&all, 1, sizeof *all, "claim", err));
    TRY(claim_members(p, test, model, all, err));
    const char *metric = json_str_or(test, "metric", all->n ? all->m[0].metric : "");
    TRY(claim_test(test, all, tie_of(p, metric), &r, err));
    buf_printf(&b, "\"%s\": ", text);
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
            if (used && !needs[0])
                TRY(add_sentence(p, claim, m, err));
        }
    }
    json_array_foreach(p->recipe->claims, i, claim)
    {
        const char *needs = json_str_or(claim, "needs", "");
        struct buf b = {0};
        if (!needs[0])
            continue;
        buf_printf(&b, "\"%s\": Cannot be tested, because it needs %s.",
                   json_str_or(claim, "text", ""),
                   strcmp(needs, "K") == 0   ? "a GPU"
                   : strcmp(needs, "M") == 0 ? "eval"
                                             : needs);
        str_list_add(&p->sentences, buf_str(&b));
        buf_free(&b);
    }
out:
    return rc;
}
