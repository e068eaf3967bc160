#include "sim/settingtally.h"

#include "core/buf.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/metricdef.h"
#include "sim/budgetsearch.h"

#include <stdio.h>
#include <string.h>

/* ---- counting ------------------------------------------------------------------------------- */

/* The method's reason, of the first cell that has one. */
static void tell_why(struct setting_tally *t, const struct record *rec)
{
    size_t len;
    const char *why = record_note_value(rec, "full", &len);
    if (why && !__atomic_exchange_n(&t->told, 1, __ATOMIC_RELAXED))
        snprintf(t->why, sizeof t->why, "%.*s", (int)len, why);
}

static void add_one(int64_t *count, bool yes)
{
    if (yes)
        __atomic_add_fetch(count, 1, __ATOMIC_RELAXED);
}

void setting_tally_add(struct setting_tally *t, const struct record *rec)
{
    if (rec->status != RECORD_OK) {
        add_one(rec->status == RECORD_SKIP ? &t->skip : &t->error, true);
        if (!__atomic_exchange_n(&t->told_bad, 1, __ATOMIC_RELAXED))
            snprintf(t->bad, sizeof t->bad, "%.255s", rec->reason);
        return;
    }
    double density = record_get(rec, "density_elem");
    size_t len;
    bool full = density >= 1 - 1e-12; /* of a model it is a mean */
    full = full && !(record_get(rec, "err_l2_rel") > DENSE_ERROR);
    add_one(&t->ok, true);
    add_one(&t->full, full);
    add_one(&t->empty, density == 0);
    add_one(&t->missed, budget_missed(rec));
    add_one(&t->uncalibrated,
            rec->scope == RECORD_OF_MODEL && record_note_value(rec, "calib", &len));
    if (full)
        tell_why(t, rec);
}

/* ---- warnings ------------------------------------------------------------------------------- */

/* A setting as it is given to -m: METHOD, METHOD:PARAMS or METHOD@TARGET. */
static void put_setting(struct buf *b, const struct method_run *run)
{
    const char *params = run->canonical;
    buf_printf(b, "%s%s%s", run->method->name, params[0] && params[0] != '@' ? ":" : "", params);
}

/* Names of settings with their reasons, the first few of them. */
struct named {
    struct buf text;
    const char *last; /* reason, which stands behind all that have it */
    size_t end;       /* of the text before it */
    int64_t shown, more;
};

static void name_full(struct named *l, const struct method_run *run, const char *why)
{
    enum { MOST = 4 };
    struct buf name = {0};
    bool cut = run->calib || strlen(run->canonical) > 40;
    if (cut)
        buf_printf(&name, "%s%s", run->method->name, run->calib ? " (calibrated)" : ":...");
    else
        put_setting(&name, run);
    if (cut && strstr(buf_str(&l->text), buf_str(&name))) /* of several the same is left */
        goto out;
    if (l->shown == MOST) {
        l->more++;
        goto out;
    }
    if (l->shown && why[0] && strcmp(why, l->last) == 0)
        l->text.len = l->end;
    buf_printf(&l->text, "%s%s", l->shown++ ? ", " : "", buf_str(&name));
    l->end = l->text.len;
    l->last = why;
    if (why[0])
        buf_printf(&l->text, " (%s)", why);
out:
    buf_free(&name);
}

/* A setting that keeps every pair of every cell is dense attention: what it costs and loses says
 * nothing about its method. */
static void warn_full(const struct method_run *runs, const struct setting_tally *t, int64_t n)
{
    struct named l = {.last = ""};
    for (int64_t i = 0; i < n; i++)
        if (!(runs[i].method->flags & METHOD_KEEPS_ALL) && t[i].ok && t[i].full == t[i].ok)
            name_full(&l, runs + i, t[i].why);
    if (l.more)
        buf_printf(&l.text, " and %lld other setting%s", (long long)l.more, l.more == 1 ? "" : "s");
    if (l.shown)
        log_warn("%s kept every allowed pair in every cell: the results of %s are those of dense "
                 "attention",
                 buf_str(&l.text), l.shown == 1 ? "this setting" : "these settings");
    buf_free(&l.text);
}

static void warn_of(const struct method_run *run, const struct setting_tally *t)
{
    OWN(buf_free) struct buf name = {0};
    put_setting(&name, run);
    if (t->ok && t->empty == t->ok)
        log_warn("%s kept no pair in any cell: its outputs are 0", buf_str(&name));
    /* A search that ended beside its target leaves a setting that is called by the target all the
     * same. */
    if (t->missed)
        log_warn("%s is not at its target in %lld of %lld cells: `lacuna analyze DIR "
                 "--columns budget_miss` says by how much",
                 buf_str(&name), (long long)t->missed, (long long)t->ok);
    if (t->uncalibrated)
        log_warn(
            "%s has no parameters for some heads, in %lld of %lld cells: they keep those given, "
            "with the note calib=absent",
            run->calib ? run->calib : buf_str(&name), (long long)t->uncalibrated, (long long)t->ok);
    /* A setting without a result leaves nothing to see in a table, so one of its reasons is told.
     */
    if (t->ok == 0 && t->skip + t->error > 0)
        log_warn("%s: none of its cells is ok, %lld %s: %s%s", buf_str(&name),
                 (long long)(t->error ? t->error : t->skip), t->error ? "failed" : "skipped",
                 t->skip + t->error > 1 ? "for one, " : "", t->bad);
}

void setting_tally_warn(const struct method_run *runs, const struct setting_tally *t, int64_t n)
{
    if (!t)
        return;
    warn_full(runs, t, n);
    for (int64_t i = 0; i < n; i++)
        warn_of(runs + i, t + i);
}
