/*
 * settingclaims.c - claims on what calibrations found: `setting: NAME, at_most: [A, B]`, the value
 * of job A is at most that of job B, or `at_most: b`, every job's is at most b. A search has one
 * outcome, so that there is no interval.
 */
#include "reproduce/claims.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool claim_of_setting(const json_t *test)
{
    return json_object_get(test, "setting") != NULL;
}

/* The values of a claim's jobs, in the order of the rule that shows them; printed or ours. */
struct found {
    const char *job[CELL_PARTS];
    double x[CELL_PARTS];
    int n;
};

static double value_of(const struct found *f, const char *job)
{
    for (int i = 0; i < f->n; i++)
        if (strcmp(f->job[i], job) == 0)
            return f->x[i];
    return NAN;
}

/* 1 holds, 0 does not, -1 a value is missing. */
static int is_at_most(const json_t *test, const struct found *f)
{
    const json_t *bound = json_object_get(test, "at_most");
    if (json_is_array(bound)) {
        double a = value_of(f, json_string_value(json_array_get(bound, 0)));
        double b = value_of(f, json_string_value(json_array_get(bound, 1)));
        return isfinite(a) && isfinite(b) ? a <= b : -1;
    }
    for (int i = 0; i < f->n; i++)
        if (!(f->x[i] <= json_number_value(bound)))
            return isfinite(f->x[i]) ? 0 : -1;
    return f->n ? 1 : -1;
}

/* The rule that shows the setting, NULL: none. */
static const json_t *rule_of(const struct recipe *r, const char *name)
{
    size_t i;
    json_t *o;
    json_array_foreach(r->ours, i, o)
    {
        if (strcmp(json_str_or(json_object_get(o, "setting"), "name", ""), name) == 0)
            return o;
    }
    return NULL;
}

static void name_jobs(const json_t *rule, struct found *f)
{
    size_t i;
    json_t *v;
    *f = (struct found){.n = 0};
    json_array_foreach(json_object_get(json_object_get(rule, "setting"), "jobs"), i, v)
    {
        if (f->n == CELL_PARTS)
            return;
        f->job[f->n] = json_string_value(v);
        f->x[f->n++] = NAN;
    }
}

int setting_claim_check(const struct recipe *r, const json_t *test)
{
    const json_t *bound = json_object_get(test, "at_most");
    const json_t *rule = rule_of(r, json_str_or(test, "setting", ""));
    struct found f;
    if (!rule)
        return -1;
    name_jobs(rule, &f);
    for (size_t i = 0; i < json_array_size(bound); i++) {
        bool known = false;
        for (int k = 0; k < f.n; k++)
            known = known || strcmp(json_string_value(json_array_get(bound, i))
                                        ? json_string_value(json_array_get(bound, i))
                                        : "",
                                    f.job[k]) == 0;
        if (!known)
            return -1;
    }
    return json_is_number(bound) || json_array_size(bound) == 2 ? 0 : -1;
}

void setting_on_printed(const struct page *p, const json_t *test, struct printed_claim *out)
{
    const json_t *rule = rule_of(p->recipe, json_str_or(test, "setting", ""));
    const char *label = json_str_or(rule, "row", "");
    for (int i = 0; i < p->n_blocks; i++) {
        const struct page_block *b = &p->blocks[i];
        for (int r = 0; r < b->rows.n; r++)
            for (int c = 0; c < b->columns.n && strcmp(b->rows.e[r].path, label) == 0; c++) {
                struct paper_number x;
                struct found f;
                name_jobs(rule, &f);
                for (int k = 0; k < f.n; k++)
                    if (page_printed(p, b, &b->rows.e[r], &b->columns.e[c], k, &x))
                        f.x[k] = strtod(x.value, NULL);
                int holds = is_at_most(test, &f);
                if (holds < 0)
                    continue;
                out->lines++;
                out->held += holds;
                if (!holds && !out->failed[0])
                    snprintf(out->failed, sizeof out->failed, "%s", b->columns.e[c].path);
            }
    }
}

int setting_sentence(const struct page *p, const json_t *test, int model, struct buf *b,
                     struct err *err)
{
    const char *name = json_str_or(test, "setting", ""), *model_name, *reason = NULL;
    const json_t *bound = json_object_get(test, "at_most");
    struct found f;
    int rc = 0;
    name_jobs(rule_of(p->recipe, name), &f);
    for (int k = 0; k < f.n && !reason; k++)
        TRY(page_found(p, model, f.job[k], name, &f.x[k], &reason, err));
    int holds = is_at_most(test, &f);
    model_name = p->plan->models->m[model].name;
    if (reason || holds < 0) {
        buf_printf(b, "Cannot be tested on %s, because %s.", model_name,
                   reason ? reason : "there is no calibration of this");
        goto out;
    }
    buf_printf(b, "%s on %s%s: %s is ", holds ? "Holds" : "Does not hold", model_name,
               p->quick ? " (quick)" : "", name);
    for (int k = 0; k < f.n; k++)
        buf_printf(b, "%s%g in %s", k ? " and " : "", f.x[k], f.job[k]);
    if (json_is_number(bound))
        buf_printf(b, ", the bound is %g", json_number_value(bound));
    buf_puts(b, "; one search, which has no interval.");
out:
    return rc;
}
