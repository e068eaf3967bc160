/*
 * budgetsearch.c - see budgetsearch.h.
 */
#include "sim/budgetsearch.h"

#include <math.h>
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

void budget_note_end(struct record *r, enum budget_end end)
{
    record_note(r, "budget=%s", ends[end]);
}

void budget_note_heads(struct record *r, const int64_t heads[BUDGET_ENDS])
{
    record_note(r, "budget=" HEADS, (long long)heads[BUDGET_MET], (long long)heads[BUDGET_COARSE],
                (long long)heads[BUDGET_RANGE]);
}

bool budget_end_of(const struct record *r, enum budget_end *end)
{
    size_t len;
    const char *note = record_note_value(r, "budget", &len);
    for (int e = 0; note && e < BUDGET_ENDS; e++)
        if (len == strlen(ends[e]) && strncmp(note, ends[e], len) == 0) {
            *end = (enum budget_end)e;
            return true;
        }
    return false;
}

bool budget_missed(const struct record *r)
{
    long long n[BUDGET_ENDS];
    enum budget_end end;
    size_t len;
    const char *note = record_note_value(r, "budget", &len);
    if (note && sscanf(note, HEADS, n, n + 1, n + 2) == BUDGET_ENDS)
        return n[BUDGET_COARSE] + n[BUDGET_RANGE] > 0;
    return budget_end_of(r, &end) && end != BUDGET_MET;
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
    int rc = s->q->eval(s->q->ctx, at, &p.value, &p.cost, err);
    if (rc)
        return rc;
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
    int rc = probe(s, 0, &least, err);
    rc = rc ? rc : probe(s, s->q->count - 1, &most, err);
    if (!rc)
        s->direction = most.value < least.value ? -1 : 1;
    return rc;
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
        int rc = probe(s, at, &p, err);
        if (rc)
            return rc;
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
    int rc = 0;
    for (int i = 0; !rc && i < BUDGET_EVALS; i++)
        rc = probe(s, (int64_t)llround((double)last * i / (BUDGET_EVALS - 1)), &p, err);
    return rc;
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
    int rc = s.direction ? 0 : learn_direction(&s, err);

    rc = rc ? rc : close_in(&s, err);
    if (!rc && contradicts(&s)) {
        scanned = true;
        rc = scan(&s, err);
    }
    if (rc)
        return rc;
    const struct point *best = s.points;
    for (int i = 1; i < s.n; i++)
        if (better(&s, s.points + i, best))
            best = s.points + i;
    judge(&s, best, a);
    a->scanned = scanned;
    return 0;
}
