/*
 * budgetrun.c - see budgetrun.h.
 */
#include "sim/budgetrun.h"

#include "core/log.h"
#include "core/mem.h"
#include "core/pool.h"
#include "core/strmap.h"
#include "core/utf8.h"
#include "sim/simulate.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The calls of one head in call order, which may pass a state on; of the name of a group layer and
 * head are -1 where it has all. */
struct budget_item {
    int layer, head;
    char branch[16]; /* "" = all */
};

/* ---- what a search covers ------------------------------------------------------------------- */

struct sum {
    double value, cost;
    int64_t cells;
    char why[160]; /* a head is skipped, "": none is */
};

/* A search on a group of heads of a trace, or on one loaded head. */
struct hunt {
    const struct method_run *run;
    const struct budget_range *range;
    const struct sim_device *device; /* chooses the masks; NULL: the method itself */
    uint64_t seed;
    char why[160];            /* all cells are skipped, "": one is not */
    const struct head_in *in; /* NULL: the group */
    void *params;             /* of the head */

    struct replay *r;
    int trace, jobs;
    struct budget_item *items; /* owned */
    int64_t n, cap;
    int64_t at;       /* the setting that is tried */
    struct sum *sums; /* [n] */
};

static int add_item(struct hunt *h, const struct budget_item *i, struct err *err)
{
    for (int64_t k = h->n - 1; k >= 0; k--)
        if (h->items[k].layer == i->layer && h->items[k].head == i->head &&
            strcmp(h->items[k].branch, i->branch) == 0)
            return 0;
    int rc = mem_grow(&h->items, &h->cap, h->n + 1, sizeof *h->items, "heads of a search", err);
    if (!rc)
        h->items[h->n++] = *i;
    return rc;
}

/* The heads of the group that `name` stands for. */
static int fill_group(struct hunt *h, const struct budget_item *name, struct err *err)
{
    const struct trace *t = h->r->traces[h->trace];
    bool joins = h->run->method->reuse.shares_branches;
    int rc = 0;
    for (int64_t c = 0; c < trace_calls(t); c++) {
        const struct trace_call *call = trace_call(t, c);
        if ((name->layer >= 0 && call->layer != name->layer) ||
            (name->branch[0] && strcmp(name->branch, call->branch) != 0))
            continue;
        for (int k = 0; k < trace_meta(t)->heads; k++) {
            struct budget_item i = {.layer = call->layer, .head = k};
            if (name->head >= 0 && name->head != k)
                continue;
            if (!joins)
                snprintf(i.branch, sizeof i.branch, "%s", call->branch);
            TRY(add_item(h, &i, err));
        }
    }
out:
    return rc;
}

/* ---- what a setting is worth ---------------------------------------------------------------- */

/* The metric of one head with given parameters; but its reason nothing is added where the method
 * skips it. A device (or NULL) chooses masks where their counts are enough. */
static int measure(const struct method_run *run, const struct head_in *in,
                   const struct sim_device *device, struct method_ctx *ctx, const void *params,
                   struct sum *sum, struct err *err)
{
    const char *metric = run->target->metric;
    bool counts = budget_needs_counts_only(metric);
    struct sim_cell cell = {.method = run->method,
                            .params = params,
                            .ctx = ctx,
                            .in = in,
                            .device = counts ? device : NULL,
                            .measure = counts ? MEASURE_MASK : MEASURE_ALL};
    struct record rec;
    int rc;

    record_init(&rec);
    TRY(sim_run(&cell, &rec, err));
    if (rec.status != RECORD_OK) {
        utf8_copy(sum->why, sizeof sum->why, rec.reason);
        goto out;
    }
    double x = record_get(&rec, metric), cost = record_get(&rec, "density_exec");
    if (isnan(x))
        FAIL(err, ERR_RUN, "method %s gives no %s here, which @%s asks for", run->method->name,
             metric, metric);
    sum->value += x;
    sum->cost += isnan(cost) ? record_get(&rec, "density_elem") : cost;
    sum->cells++;
out:
    record_free(&rec);
    return rc;
}

static int trial_call(struct hunt *t, const struct budget_item *i, int64_t call, struct carry *own,
                      struct carry *shared, struct sum *sum, struct err *err)
{
    const struct method_run *run = t->run;
    const struct method *m = run->method;
    const struct trace *trace = t->r->traces[t->trace];
    struct method_ctx ctx = {.seed = t->seed,
                             .session = run->session,
                             .carry = m->flags & METHOD_NEEDS_STEPS ? own : NULL,
                             .shared = m->reuse.shares_branches ? shared : NULL};
    struct sim_head head = {0};
    void *params = NULL;
    int rc = 0;

    TRY(head_load(trace, call, i->head, &t->r->load, &head, err));
    TRY(method_params_for_head(run, i->layer, head.in.head, head.in.x.nk, &params, err));
    TRY(budget_set(t->range, run->target, m, t->at, params, NULL, err));
    TRY(measure(run, &head.in, t->device, &ctx, params, sum, err));
out:
    method_params_free(m, params);
    sim_head_free(&head);
    return rc;
}

/* The states of the branches of a head. */
struct branch_carry {
    char name[16];
    struct carry *carry; /* owned */
};

static int trial_item(void *ctx, int64_t item, int worker, struct err *err)
{
    enum { BRANCHES = 16 };
    struct hunt *t = ctx;
    const struct budget_item *i = t->items + item;
    const struct trace *trace = t->r->traces[t->trace];
    struct branch_carry own[BRANCHES] = {0};
    struct carry *shared = NULL;
    int n = 0, rc = 0;

    TRY(mem_zalloc(&shared, 1, sizeof *shared, "state of a search", err));
    for (int64_t c = 0; c < trace_calls(trace); c++) {
        const struct trace_call *call = trace_call(trace, c);
        int b = 0;
        if (call->layer != i->layer || (i->branch[0] && strcmp(i->branch, call->branch) != 0))
            continue;
        if (interrupted())
            FAIL(err, ERR_INTERRUPTED, "interrupted while searching; the same command continues");
        while (b < n && strcmp(own[b].name, call->branch) != 0)
            b++;
        if (b == BRANCHES)
            FAIL(err, ERR_INPUT, "%s: more than %d branches", trace_path(trace), BRANCHES);
        if (b == n) {
            snprintf(own[n++].name, sizeof own[b].name, "%s", call->branch);
            TRY(mem_zalloc(&own[b].carry, 1, sizeof *own[b].carry, "state of a search", err));
        }
        TRY(trial_call(t, i, c, own[b].carry, shared, t->sums + item, err));
    }
out:
    for (int b = 0; b < n; b++)
        carries_free(own[b].carry, 1);
    carries_free(shared, 1);
    return rc;
}

/* Plain mean over the cells of the group. */
static int trial_run(struct hunt *t, struct sum *mean, struct err *err)
{
    int rc = 0;
    *mean = (struct sum){0};
    TRY(mem_zalloc(&t->sums, t->n, sizeof *t->sums, "sums of a search", err));
    TRY(pool_run(t->jobs, t->n, trial_item, t, err));
    for (int64_t i = 0; i < t->n; i++) {
        mean->value += t->sums[i].value;
        mean->cost += t->sums[i].cost;
        mean->cells += t->sums[i].cells;
        if (!mean->why[0])
            memcpy(mean->why, t->sums[i].why, sizeof mean->why);
    }
    if (mean->cells) {
        mean->value /= (double)mean->cells;
        mean->cost /= (double)mean->cells;
    }
out:
    free(t->sums);
    t->sums = NULL;
    return rc;
}

/* ---- searches ------------------------------------------------------------------------------- */

static int evaluate(void *ctx, int64_t at, double *value, double *cost, struct err *err)
{
    struct hunt *h = ctx;
    struct sum sum = {0};
    int rc = 0;
    if (h->in) {
        struct method_ctx mc = {.seed = h->seed, .session = h->run->session};
        TRY(budget_set(h->range, h->run->target, h->run->method, at, h->params, NULL, err));
        TRY(measure(h->run, h->in, h->device, &mc, h->params, &sum, err));
    } else {
        h->at = at;
        TRY(trial_run(h, &sum, err));
    }
    if (sum.cells == 0) /* zeros then: they end the search soon */
        memcpy(h->why, sum.why, sizeof h->why);
    *value = sum.value;
    *cost = sum.cost;
out:
    return rc;
}

static int seek(struct hunt *h, const void *params, int64_t nk, struct budget_found *f,
                struct err *err)
{
    const struct method *m = h->run->method;
    const struct budget_target *t = h->run->target;
    struct budget_range range;
    struct buf text = {0};
    void *scratch = NULL;
    int rc = 0;

    TRY(budget_range(t, m, nk, &range, err));
    h->range = &range;
    struct budget_question q = {.count = range.count,
                                .start = budget_start(&range, t, m, params, nk),
                                .whole = range.of->scale == BUDGET_COUNT,
                                .kind = t->kind,
                                .target = t->value,
                                .direction = budget_direction(t->metric),
                                .eval = evaluate,
                                .ctx = h};
    TRY(budget_search(&q, &f->answer, err));
    memcpy(f->why, h->why, sizeof f->why);
    if (h->why[0])
        goto out;
    TRY(method_params_copy(m, params, &scratch, err));
    TRY(budget_set(&range, t, m, f->answer.at, scratch, &text, err));
    if (!(f->params = strdup(buf_str(&text))))
        rc = err_set(err, ERR_NOMEM, "parameters that were found: out of memory");
out:
    method_params_free(m, scratch);
    buf_free(&text);
    return rc;
}

/* The replay's device as searches use it, head by head; NULL: masks are chosen on the CPU. */
static const struct sim_device *search_device(const struct replay *r, struct sim_device *own)
{
    *own = r->device;
    own->calls = own->timed = false;
    return own->accel && own->select != SELECT_CPU ? own : NULL;
}

/* Search the parameters of run number k for the group `name` of a trace, on `jobs` threads. */
static int seek_group(struct replay *r, int64_t k, int trace, const struct budget_item *name,
                      int jobs, struct budget_found *f, struct err *err)
{
    struct sim_device own;
    struct hunt h = {.run = r->runs + k,
                     .device = search_device(r, &own),
                     .seed = r->seed,
                     .r = r,
                     .trace = trace,
                     .jobs = jobs};
    int rc = 0;
    TRY(fill_group(&h, name, err));
    TRY(seek(&h, h.run->params, trace_meta(r->traces[trace])->n_k, f, err));
out:
    free(h.items);
    return rc;
}

int budget_resolve_head(const struct method_run *run, const struct head_in *in,
                        const struct sim_device *device, uint64_t seed, void *params,
                        struct budget_found *f, struct err *err)
{
    struct hunt h = {.run = run, .in = in, .device = device, .seed = seed};
    int rc = 0;

    memset(f, 0, sizeof *f);
    TRY(method_params_copy(run->method, params, &h.params, err));
    TRY(seek(&h, params, in->x.nk, f, err));
    if (f->params)
        TRY(budget_apply(run->target, run->method, f->params, params, err));
out:
    method_params_free(run->method, h.params);
    return rc;
}

/* ---- what was found ------------------------------------------------------------------------- */

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
    size_t len;
    const char *value = record_note_value(rec, key, &len);
    return value ? strndup(value, len) : NULL;
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
    int head = trace_head_find(trace_meta(x->r->traces[trace]), rec->head), rc = 0;
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

/* Does the record have the method, parameters, arithmetic and trace of run k? Other records' values
 * are others. */
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
    TRY(seek_group(r, k, s->trace, &name, jobs, &f, err));
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
    TRY(seek_group(r, k, s->trace, &name, 1, f, err));
    TRY(book_put(r->book, key, f, err));
out:
    return rc;
}

int budget_resolve(struct replay *r, const struct series *s, int64_t k, const struct head_in *in,
                   void *params, struct budget_found *f, struct err *err)
{
    const struct method_run *run = r->runs + k;
    struct sim_device own;
    int rc = 0;

    if (!is_shared(run))
        return budget_resolve_head(run, in, search_device(r, &own), r->seed, params, f, err);
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
