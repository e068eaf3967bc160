/*
 * foundparams.c - see foundparams.h.
 */
#include "eval/foundparams.h"

#include "core/buf.h"
#include "core/log.h"
#include "core/record.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The records of one search: one per head, all with the same note. */
struct search_seen {
    char found[256]; /* "tau=0.03", "" before the first */
    double target, miss, keys;
    int64_t cells;
};

static bool is_of(const struct method_run *run, const char *model, const struct record *r)
{
    return strcmp(r->method, run->method->name) == 0 && strcmp(r->params, run->canonical) == 0 &&
           strcmp(r->model, model) == 0;
}

/* Why there is nothing to take: the search ended in skips or errors, or there was none. */
static int found_nothing(const struct method_run *run, const char *dir, const char *model,
                         const struct record *r, int64_t n, struct err *err)
{
    static const char *const ends[] = {
        [RECORD_OK] = "found no value", [RECORD_SKIP] = "was skipped", [RECORD_ERROR] = "failed"};
    const char *name = run->method->name, *colon = method_run_colon(run);
    for (int64_t i = 0; i < n; i++)
        if (is_of(run, model, r + i))
            return err_set(err, ERR_INPUT,
                           "--found %s: the search of %s%s%s %s%s%.300s; leave it out", dir, name,
                           colon, run->canonical, ends[r[i].status], r[i].reason[0] ? ": " : "",
                           r[i].reason);
    return err_set(err, ERR_INPUT,
                   "--found %s: no record of %s on a trace of %s: replay one with -m '%s%s%s' "
                   "first",
                   dir, name, model, name, colon, run->canonical);
}

static int look(const struct method_run *run, const char *dir, const char *model,
                const struct record *r, int64_t n, struct search_seen *s, struct err *err)
{
    char found[sizeof s->found];
    size_t len;
    int rc = 0;

    for (int64_t i = 0; i < n; i++) {
        bool counts = r[i].status == RECORD_OK && is_of(run, model, r + i);
        const char *note = counts ? record_note_value(r + i, "found", &len) : NULL;
        if (!note)
            continue;
        snprintf(found, sizeof found, "%.*s", (int)len, note);
        if (s->cells && strcmp(found, s->found) != 0)
            FAIL(err, ERR_INPUT,
                 "--found %s: %s%s%s was found as %s on one trace and %s on another: give the "
                 "records of one",
                 dir, run->method->name, method_run_colon(run), run->canonical, s->found, found);
        memcpy(s->found, found, sizeof found);
        s->target = record_get(r + i, "budget_target");
        s->miss = record_get(r + i, "budget_miss");
        s->keys = (double)r[i].n_k;
        s->cells++;
    }
    if (!s->cells)
        rc = found_nothing(run, dir, model, r, n, err);
out:
    return rc;
}

/* "sale:dense_below=0" and "tau=0.03" become a run of "sale:dense_below=0:tau=0.03". */
static int replace_run(const struct method *const *methods, const char *found,
                       struct method_run *run, struct err *err)
{
    const char *given = run->canonical, *at = strrchr(given, '@');
    struct method_run *made = NULL;
    struct buf text = {0};
    int64_t n = 0;
    int rc = 0;

    buf_puts(&text, run->method->name);
    if (at > given) {
        buf_puts(&text, ":");
        buf_put(&text, given, (size_t)(at - given));
    }
    buf_printf(&text, ":%s", found);
    TRY(buf_check(&text, "method", err));
    TRY(method_runs_parse(methods, buf_str(&text), &made, &n, err));
    struct method_run old = *run;
    *run = made[0];
    made[0] = old;
    if (old.session)
        TRY(method_run_open(run, err));
out:
    method_runs_free(made, n);
    buf_free(&text);
    return rc;
}

int found_params_take(const struct method *const *methods, const char *dir, const char *model,
                      struct method_run *runs, int64_t n, struct err *err)
{
    struct record *r = NULL;
    int64_t n_r = 0, taken = 0;
    int rc = 0;

    TRY(records_load(dir, &r, &n_r, err));
    for (int64_t i = 0; i < n; i++) {
        struct search_seen s = {0};
        if (!runs[i].target || runs[i].target->per != TARGET_PER_MODEL)
            continue;
        TRY(look(runs + i, dir, model, r, n_r, &s, err));
        const char *name = runs[i].method->name, *colon = method_run_colon(runs + i);
        log_info("%s%s%s: %s, as found on %lld heads of %.0f keys", name, colon, runs[i].canonical,
                 s.found, (long long)s.cells, s.keys);
        if (fabs(s.miss) > 0.05 * fabs(s.target))
            log_warn("%s%s%s: the search in %s ended at %.3g", name, colon, runs[i].canonical, dir,
                     s.target + s.miss);
        TRY(replace_run(methods, s.found, runs + i, err));
        taken++;
    }
    if (!taken)
        FAIL(err, ERR_USAGE, "--found %s: no method is given with a target and :per=model", dir);
out:
    records_free(r, n_r);
    return rc;
}
