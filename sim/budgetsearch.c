#include "sim/budgetsearch.h"

#include "core/log.h"
#include "core/mem.h"
#include "core/pool.h"
#include "core/strmap.h"
#include "core/utf8.h"
#include "sim/replay.h"
#include "sim/simulate.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A continuous search ends within this share of the target; after so many evaluations, which tell
 * that the metric moves in steps, the tolerance is enough. */
#define NEAR 1e-3
#define PATIENCE 12

/* A bound: the settings on its two sides cost the same but for this share. */
#define COST_NEAR 5e-3

/* ---- notes ---------------------------------------------------------------------------------- */

static const char *const ends[BUDGET_ENDS] = {"met", "coarse", "range"};

#define HEADS "%lld heads met, %lld between two values, %lld at the end of the range"

void budget_note_heads(struct record *r, const int64_t heads[BUDGET_ENDS])
{
    record_note(r, "budget=" HEADS, (long long)heads[BUDGET_MET], (long long)heads[BUDGET_COARSE],
                (long long)heads[BUDGET_RANGE]);
}

bool budget_missed(const struct record *r)
{
    long long n[BUDGET_ENDS];
    size_t len;
    const char *note = record_note_value(r, "budget", &len);
    if (note && sscanf(note, HEADS, n, n + 1, n + 2) == BUDGET_ENDS)
        return n[BUDGET_COARSE] + n[BUDGET_RANGE] > 0;
    return note && strncmp(note, ends[BUDGET_MET], len) != 0;
}

/* ---- the search ----------------------------------------------------------------------------- */

struct point {
    int64_t at;
    double value, cost;
};

struct search {
    const struct budget_question *q;
    struct point points[2 * BUDGET_EVALS + 2]; /* by `at` */
    int n, evals;
    int direction;
};

/* The point of value `at`, evaluated now unless it was before. Later insertions move it. */
static int probe(struct search *s, int64_t at, struct point *out, struct err *err)
{
    int i = 0;
    while (i < s->n && s->points[i].at < at)
        i++;
    if (i < s->n && s->points[i].at == at) {
        *out = s->points[i];
        return 0;
    }
    struct point p = {.at = at};
    PASS_ON(s->q->eval(s->q->ctx, at, &p.value, &p.cost, err));
    for (int k = s->n; k > i; k--)
        s->points[k] = s->points[k - 1];
    s->points[i] = p;
    s->n++;
    s->evals++;
    *out = p;
    return 0;
}

/* Do two neighbours go the wrong way? Sums of floats may differ in their last digits. */
static bool contradicts(const struct search *s)
{
    for (int i = 1; i < s->n; i++) {
        double a = s->points[i - 1].value, b = s->points[i].value;
        if (s->direction * (b - a) < -1e-9 * fmax(fabs(a), fabs(b)))
            return true;
    }
    return false;
}

static bool satisfies(const struct budget_question *q, double value)
{
    return q->kind == TARGET_AT_LEAST ? value >= q->target : value <= q->target;
}

/* Does keeping more help to satisfy a bound? */
static bool more_helps(const struct search *s)
{
    return (s->q->kind == TARGET_AT_LEAST) == (s->direction > 0);
}

/* Is the answer at this value or among those that keep more? */
static bool look_above(const struct search *s, double value)
{
    if (s->q->kind == TARGET_HIT)
        return s->direction * (value - s->q->target) < 0;
    return more_helps(s) ? !satisfies(s->q, value) : satisfies(s->q, value);
}

static bool near_enough(const struct search *s, double value)
{
    const struct budget_question *q = s->q;
    if (q->whole || q->kind != TARGET_HIT)
        return q->kind == TARGET_HIT && value == q->target;
    double share = s->evals < PATIENCE ? NEAR : BUDGET_TOLERANCE;
    return fabs(value - q->target) <= share * fabs(q->target);
}

/* Learn the direction of a metric of which nothing is known. */
static int learn_direction(struct search *s, struct err *err)
{
    struct point least, most;
    PASS_ON(probe(s, 0, &least, err));
    PASS_ON(probe(s, s->q->count - 1, &most, err));
    s->direction = most.value < least.value ? -1 : 1;
    return 0;
}

/* The values that enclose the answer, and what the setting costs there: low keeps too little. */
struct bracket {
    int64_t low, high; /* -1 and count: no value is known on this side */
    struct point below, above;
};

static bool bracket_closed(const struct search *s, const struct bracket *b)
{
    bool both = b->low >= 0 && b->high < s->q->count;
    if (b->high - b->low <= 1)
        return true;
    return both && !s->q->whole && s->q->kind != TARGET_HIT &&
           b->above.cost - b->below.cost <= COST_NEAR * b->above.cost;
}

/* Between two values that enclose a target to hit, by turns where a straight line through them
 * meets it, and the middle; else the middle. Counts are few, and their neighbours are wanted. */
static int64_t next_value(const struct search *s, const struct bracket *b, bool line)
{
    int64_t middle = b->low + (b->high - b->low) / 2;
    double rise = b->above.value - b->below.value;
    if (!line || s->q->whole || s->q->kind != TARGET_HIT || b->low < 0 || b->high >= s->q->count)
        return middle;
    double share = (s->q->target - b->below.value) / rise;
    if (!(share > 0 && share < 1))
        return middle;
    int64_t at = b->low + (int64_t)llround(share * (double)(b->high - b->low));
    return at <= b->low ? b->low + 1 : at >= b->high ? b->high - 1 : at;
}

static int close_in(struct search *s, struct err *err)
{
    int64_t last = s->q->count - 1;
    int64_t at = s->q->start < 0 ? 0 : s->q->start > last ? last : s->q->start;
    struct bracket b = {.low = -1, .high = s->q->count};
    struct point p;
    for (int step = 0; s->evals < BUDGET_EVALS && !contradicts(s); step++) {
        PASS_ON(probe(s, at, &p, err));
        if (near_enough(s, p.value))
            return 0;
        if (look_above(s, p.value)) {
            b.low = at;
            b.below = p;
        } else {
            b.high = at;
            b.above = p;
        }
        if (bracket_closed(s, &b))
            return 0;
        /* After the first value, the end on the target's side: often there is nothing to find. */
        at = step > 0 ? next_value(s, &b, step % 2 == 1) : b.high > last ? last : 0;
    }
    return 0;
}

static int scan(struct search *s, struct err *err)
{
    struct point p;
    int64_t last = s->q->count - 1;
    for (int i = 0; i < BUDGET_EVALS; i++)
        PASS_ON(probe(s, (int64_t)llround((double)last * i / (BUDGET_EVALS - 1)), &p, err));
    return 0;
}

/* Is a the better answer? */
static bool better(const struct search *s, const struct point *a, const struct point *b)
{
    const struct budget_question *q = s->q;
    if (q->kind != TARGET_HIT) {
        bool fits = satisfies(q, a->value), other = satisfies(q, b->value);
        if (fits != other)
            return fits;
        if (fits && a->cost != b->cost)
            return (a->cost < b->cost) == more_helps(s);
        if (fits)
            return (a->at < b->at) == more_helps(s);
    }
    double da = fabs(a->value - q->target), db = fabs(b->value - q->target);
    if (da != db || a->cost != b->cost)
        return da < db || (da == db && a->cost < b->cost);
    return llabs(a->at - q->start) < llabs(b->at - q->start);
}

static void judge(const struct search *s, const struct point *best, struct budget_answer *a)
{
    const struct budget_question *q = s->q;
    bool met = q->kind == TARGET_HIT
                   ? fabs(best->value - q->target) <= BUDGET_TOLERANCE * fabs(q->target)
                   : satisfies(q, best->value);
    double gap = INFINITY;
    *a = (struct budget_answer){
        .at = best->at, .value = best->value, .evals = s->evals, .next = NAN, .end = BUDGET_MET};
    bool above = best->value > q->target;
    for (int i = 0; i < s->n; i++) {
        const struct point *p = s->points + i;
        double d = fabs(p->value - q->target);
        if (p->value != q->target && (p->value > q->target) != above && d < gap) {
            gap = d;
            a->next = p->value;
        }
    }
    if (!met)
        a->end = isnan(a->next) ? BUDGET_RANGE : BUDGET_COARSE;
}

int budget_search(const struct budget_question *q, struct budget_answer *a, struct err *err)
{
    struct search s = {.q = q, .direction = q->direction};
    bool scanned = false;
    PASS_ON(s.direction ? 0 : learn_direction(&s, err));
    PASS_ON(close_in(&s, err));
    if (contradicts(&s)) {
        scanned = true;
        PASS_ON(scan(&s, err));
    }
    const struct point *best = s.points;
    for (int i = 1; i < s.n; i++)
        if (better(&s, s.points + i, best))
            best = s.points + i;
    judge(&s, best, a);
    a->scanned = scanned;
    return 0;
}

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
    PASS_ON(mem_grow(&h->items, &h->cap, h->n + 1, sizeof *h->items, "heads of a search", err));
    h->items[h->n++] = *i;
    return 0;
}

/* The heads of the group that `name` stands for. */
static int fill_group(struct hunt *h, const struct budget_item *name, struct err *err)
{
    const struct trace *t = h->r->traces[h->trace];
    bool joins = h->run->method->reuse.shares_branches;
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
            PASS_ON(add_item(h, &i, err));
        }
    }
    return 0;
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
    if (h->in) {
        struct method_ctx mc = {.seed = h->seed, .session = h->run->session};
        PASS_ON(budget_set(h->range, h->run->target, h->run->method, at, h->params, NULL, err));
        PASS_ON(measure(h->run, h->in, h->device, &mc, h->params, &sum, err));
    } else {
        h->at = at;
        PASS_ON(trial_run(h, &sum, err));
    }
    if (sum.cells == 0) /* zeros then: they end the search soon */
        memcpy(h->why, sum.why, sizeof h->why);
    *value = sum.value;
    *cost = sum.cost;
    return 0;
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
    snprintf(f->params, sizeof f->params, "%s", buf_str(&text));
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
    if (f->params[0])
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

void budget_book_free(struct budget_book **book)
{
    struct budget_book *b = *book;
    if (!b)
        return;
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

static bool book_has(struct budget_book *b, const char *key, struct budget_found *f)
{
    pthread_mutex_lock(&b->lock);
    int64_t i = strmap_get(&b->index, key);
    if (i >= 0)
        *f = b->entries[i];
    pthread_mutex_unlock(&b->lock);
    return i >= 0;
}

static int book_put(struct budget_book *b, const char *key, const struct budget_found *f,
                    struct err *err)
{
    int rc = 0;
    pthread_mutex_lock(&b->lock);
    TRY(mem_grow(&b->entries, &b->cap, b->n + 1, sizeof *b->entries, "found parameters", err));
    TRY(strmap_put(&b->index, key, b->n, err));
    b->entries[b->n++] = *f;
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
    if (f.params[0])
        log_info("%s%s%s: %s of %s: %s (%d evaluations)", run->method->name, method_run_colon(run),
                 run->canonical, name.layer < 0 ? "all layers" : "a layer",
                 trace_path(r->traces[s->trace]), f.params, f.answer.evals);
    else
        log_warn("%s%s%s: no value is found, because %s of %s is skipped: %s", run->method->name,
                 method_run_colon(run), run->canonical, name.layer < 0 ? "every head" : "a layer",
                 trace_path(r->traces[s->trace]), f.why);
out:
    return rc < 0
               ? err_prefix(err, "%s%s%s", run->method->name, method_run_colon(run), run->canonical)
               : rc;
}

int budget_book_open(struct replay *r, int jobs, struct budget_book **out, struct err *err)
{
    OWN(budget_book_free) struct budget_book *b = NULL;
    PASS_ON(mem_zalloc(&b, 1, sizeof *b, "found parameters", err));
    pthread_mutex_init(&b->lock, NULL);
    for (int64_t k = 0; k < r->n_runs; k++)
        for (int64_t i = 0; i < r->n_series; i++)
            if (r->runs[k].target && r->runs[k].target->per != TARGET_PER_HEAD &&
                (r->series[i].todo || r->masks || r->outputs))
                PASS_ON(open_group(r, b, k, r->series + i, jobs, err));
    *out = HAND_OVER(b);
    return 0;
}

/* ---- one cell ------------------------------------------------------------------------------- */

/* Parameters of a group of several cells: from the book, or searched now by this thread, to which
 * the group belongs. */
static int resolve_shared(struct replay *r, const struct series *s, int64_t k,
                          const struct head_in *in, struct budget_found *f, struct err *err)
{
    struct budget_item name = group_name(r, k, s->layer, s->head, in->branch);
    char key[96];
    group_key(k, s->trace, &name, key);
    if (book_has(r->book, key, f))
        return 0;
    PASS_ON(seek_group(r, k, s->trace, &name, 1, f, err));
    return book_put(r->book, key, f, err);
}

int budget_resolve(struct replay *r, const struct series *s, int64_t k, const struct head_in *in,
                   void *params, struct budget_found *f, struct err *err)
{
    const struct method_run *run = r->runs + k;
    struct sim_device own;
    if (!is_shared(run))
        return budget_resolve_head(run, in, search_device(r, &own), r->seed, params, f, err);
    memset(f, 0, sizeof *f);
    PASS_ON(resolve_shared(r, s, k, in, f, err));
    if (f->params[0])
        return budget_apply(run->target, run->method, f->params, params, err);
    return 0;
}

int budget_record(const struct budget_target *t, const struct budget_found *f, struct record *rec,
                  struct err *err)
{
    if (rec->status != RECORD_OK || !f->params[0])
        return 0;
    PASS_ON(record_metric(rec, "budget_target", t->value, err));
    PASS_ON(record_metric(rec, "budget_miss", f->answer.value - t->value, err));
    PASS_ON(record_metric(rec, "budget_evals", f->answer.evals, err));
    record_note(rec, "found=%s", f->params);
    record_note(rec, "budget=%s", ends[f->answer.end]);
    if (f->answer.end != BUDGET_MET && !isnan(f->answer.next))
        record_note(rec, "budget_next=%.6g", f->answer.next);
    if (f->answer.scanned)
        record_note(rec, "budget_scan=%d values, because the metric does not follow the parameter",
                    BUDGET_EVALS);
    return 0;
}
