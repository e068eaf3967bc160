/*
 * budgetrun.c - see budgetrun.h.
 */
#include "sim/budgetrun_impl.h"

#include "core/log.h"
#include "core/mem.h"
#include "core/strmap.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct budget_book {
    pthread_mutex_t lock;
    struct strmap index;          /* key of a group -> entry */
    struct budget_found *entries; /* owned */
    int64_t n, cap;
};

void budget_found_free(struct budget_found *f)
{
    free(f->params);
    memset(f, 0, sizeof *f);
}

static int found_copy(const struct budget_found *from, struct budget_found *to, struct err *err)
{
    *to = *from;
    if (from->params && !(to->params = strdup(from->params)))
        return err_set(err, ERR_NOMEM, "parameters that were found: out of memory");
    return 0;
}

void budget_book_free(struct budget_book **book)
{
    struct budget_book *b = *book;
    if (!b)
        return;
    for (int64_t i = 0; i < b->n; i++)
        budget_found_free(b->entries + i);
    free(b->entries);
    strmap_free(&b->index);
    pthread_mutex_destroy(&b->lock);
    free(b);
    *book = NULL;
}

/* ---- groups --------------------------------------------------------------------------------- */

static void group_key(int64_t run, int trace, const struct budget_item *i, char key[96])
{
    snprintf(key, 96, "%lld|%d|%d|%d|%s", (long long)run, trace, i->layer, i->head, i->branch);
}

/* What names the group of a cell: layer and head are -1 where it has all. */
static struct budget_item group_name(const struct replay *r, int64_t run, int layer, int head,
                                     const char *branch)
{
    enum target_per per = r->runs[run].target->per;
    struct budget_item i = {.layer = per == TARGET_PER_MODEL ? -1 : layer,
                            .head = per == TARGET_PER_HEAD ? head : -1};
    bool joins = r->runs[run].method->reuse.shares_branches;
    if (per == TARGET_PER_HEAD && !joins)
        snprintf(i.branch, sizeof i.branch, "%s", branch);
    return i;
}

/* ---- the book ------------------------------------------------------------------------------- */

static int book_get(struct budget_book *b, const char *key, struct budget_found *f, bool *has,
                    struct err *err)
{
    pthread_mutex_lock(&b->lock);
    int64_t i = strmap_get(&b->index, key);
    *has = i >= 0;
    int rc = *has ? found_copy(b->entries + i, f, err) : 0;
    pthread_mutex_unlock(&b->lock);
    return rc;
}

static int book_put(struct budget_book *b, const char *key, const struct budget_found *f,
                    struct err *err)
{
    int rc = 0;
    pthread_mutex_lock(&b->lock);
    TRY(mem_grow(&b->entries, &b->cap, b->n + 1, sizeof *b->entries, "found parameters", err));
    TRY(strmap_put(&b->index, key, b->n, err));
    TRY(found_copy(f, b->entries + b->n, err));
    b->n++;
out:
    pthread_mutex_unlock(&b->lock);
    return rc;
}

/* Does one search serve several cells? */
static bool is_shared(const struct method_run *run)
{
    return run->target &&
           (run->target->per != TARGET_PER_HEAD || run->method->flags & METHOD_NEEDS_STEPS);
}

/* The value of "key=..." among the notes, NULL if there is none. Owned by the caller. */
static char *note_value(const struct record *rec, const char *key)
{
    const char *p = rec->notes.len ? rec->notes.data : "";
    size_t len = strlen(key);
    while (*p) {
        size_t n = strcspn(p, ";");
        if (n > len && strncmp(p, key, len) == 0 && p[len] == '=')
            return strndup(p + len + 1, n - len - 1);
        p += n + (p[n] == ';');
    }
    return NULL;
}

struct reading {
    struct replay *r;
    struct budget_book *book;
};

static int take_found(struct reading *x, int64_t k, int trace, const struct record *rec,
                      struct err *err)
{
    struct budget_found f = {.params = note_value(rec, "found"), .answer.next = NAN};
    char *next = note_value(rec, "budget_next"), key[96];
    char *scanned = note_value(rec, "budget_scan");
    const struct trace_meta *m = trace_meta(x->r->traces[trace]);
    int head = 0, rc = 0;

    while (head < m->heads && trace_head_number(m, head) != rec->head)
        head++;
    struct budget_item name = group_name(x->r, k, rec->layer, head, rec->branch);
    group_key(k, trace, &name, key);
    if (!f.params || !budget_end_of(rec, &f.answer.end) || strmap_get(&x->book->index, key) >= 0)
        goto out;
    f.answer.value = record_get(rec, "budget_target") + record_get(rec, "budget_miss");
    f.answer.evals = (int)record_get(rec, "budget_evals");
    f.answer.next = next ? strtod(next, NULL) : NAN;
    f.answer.scanned = scanned != NULL;
    TRY(book_put(x->book, key, &f, err));
out:
    budget_found_free(&f);
    free(next);
    free(scanned);
    return rc;
}

/* Of the same method, parameters, arithmetic and trace as run k: another's values are others. */
static bool is_of(const struct replay *r, int64_t k, int trace, const struct record *rec)
{
    return strcmp(rec->method, r->runs[k].method->name) == 0 &&
           strcmp(rec->params, r->runs[k].canonical) == 0 && rec->seed == r->seed &&
           strcmp(rec->trace, trace_id(r->traces[trace])) == 0 &&
           strcmp(rec->precision, r->load.precision == PREC_F64 ? "f64" : "f32") == 0 &&
           strcmp(rec->permute, r->load.permute ? r->load.permute : "none") == 0;
}

static int read_record(void *ctx, struct record *rec, struct err *err)
{
    struct reading *x = ctx;
    int rc = 0;
    for (int64_t k = 0; k < x->r->n_runs && rec->status == RECORD_OK; k++)
        for (int t = 0; is_shared(x->r->runs + k) && t < x->r->n_traces; t++)
            if (is_of(x->r, k, t, rec))
                TRY(take_found(x, k, t, rec, err));
out:
    record_free(rec);
    return rc;
}

static int open_group(struct replay *r, struct budget_book *b, int64_t k, const struct series *s,
                      int jobs, struct err *err)
{
    const struct method_run *run = r->runs + k;
    struct budget_item name = group_name(r, k, s->layer, s->head, s->branch);
    struct budget_found f = {0};
    char key[96];
    int rc = 0;

    group_key(k, s->trace, &name, key);
    if (strmap_get(&b->index, key) >= 0)
        return 0;
    TRY(budget_seek_group(r, k, s->trace, &name, jobs, &f, err));
    TRY(book_put(b, key, &f, err));
    if (f.params)
        log_info("%s%s%s: %s of %s: %s (%d evaluations)", run->method->name, method_run_colon(run),
                 run->canonical, name.layer < 0 ? "all layers" : "a layer",
                 trace_path(r->traces[s->trace]), f.params, f.answer.evals);
    else
        log_warn("%s%s%s: no value is found, because %s of %s is skipped: %s", run->method->name,
                 method_run_colon(run), run->canonical, name.layer < 0 ? "every head" : "a layer",
                 trace_path(r->traces[s->trace]), f.why);
out:
    budget_found_free(&f);
    return rc < 0
               ? err_prefix(err, "%s%s%s", run->method->name, method_run_colon(run), run->canonical)
               : rc;
}

int budget_book_open(struct replay *r, int jobs, struct budget_book **out, struct err *err)
{
    struct budget_book *b = NULL;
    bool any = false;
    int64_t torn;
    int rc = 0;

    for (int64_t k = 0; k < r->n_runs; k++)
        any |= is_shared(r->runs + k);
    TRY(mem_zalloc(&b, 1, sizeof *b, "found parameters", err));
    pthread_mutex_init(&b->lock, NULL);
    if (any)
        TRY(records_each(record_file_path(r->records), NULL, read_record, &(struct reading){r, b},
                         &torn, err));
    for (int64_t k = 0; k < r->n_runs; k++)
        for (int64_t i = 0; i < r->n_series; i++)
            if (r->runs[k].target && r->runs[k].target->per != TARGET_PER_HEAD &&
                (r->series[i].todo || r->masks || r->outputs))
                TRY(open_group(r, b, k, r->series + i, jobs, err));
    *out = b;
    b = NULL;
out:
    budget_book_free(&b);
    return rc;
}

/* ---- one cell ------------------------------------------------------------------------------- */

/* Parameters of a group of several cells: from the book, or searched now by this thread, to which
 * the group belongs. */
static int resolve_shared(struct replay *r, const struct series *s, int64_t k,
                          const struct head_in *in, struct budget_found *f, struct err *err)
{
    struct budget_item name = group_name(r, k, s->layer, s->head, in->branch);
    char key[96];
    bool has;
    int rc = 0;
    group_key(k, s->trace, &name, key);
    TRY(book_get(r->book, key, f, &has, err));
    if (has)
        return 0;
    TRY(budget_seek_group(r, k, s->trace, &name, 1, f, err));
    TRY(book_put(r->book, key, f, err));
out:
    return rc;
}

int budget_resolve(struct replay *r, const struct series *s, int64_t k, const struct head_in *in,
                   void *params, struct budget_found *f, struct err *err)
{
    const struct method_run *run = r->runs + k;
    struct sim_device on;
    int rc = 0;

    budget_device(r, &on);
    if (!is_shared(run))
        return budget_resolve_head(run, in, on.accel ? &on : NULL, r->seed, params, f, err);
    memset(f, 0, sizeof *f);
    TRY(resolve_shared(r, s, k, in, f, err));
    if (f->params)
        TRY(budget_apply(run->target, run->method, f->params, params, err));
out:
    return rc;
}

int budget_record(const struct budget_target *t, const struct budget_found *f, struct record *rec,
                  struct err *err)
{
    int rc = 0;
    if (rec->status != RECORD_OK || !f->params)
        return 0;
    TRY(record_metric(rec, "budget_target", t->value, err));
    TRY(record_metric(rec, "budget_miss", f->answer.value - t->value, err));
    TRY(record_metric(rec, "budget_evals", f->answer.evals, err));
    record_note(rec, "found=%s", f->params);
    budget_note_end(rec, f->answer.end);
    if (f->answer.end != BUDGET_MET && !isnan(f->answer.next))
        record_note(rec, "budget_next=%.6g", f->answer.next);
    if (f->answer.scanned)
        record_note(rec, "budget_scan=%d values, because the metric does not follow the parameter",
                    BUDGET_EVALS);
out:
    return rc;
}
