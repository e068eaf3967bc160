/* greedy.c - list scheduling on a binary heap, and an interchange after it (greedy.h). */
#include "core/greedy.h"

#include "core/mem.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int64_t greedy_place(int64_t *free_at, int workers, int64_t cost)
{
    int64_t end = free_at[0] + cost;
    int i = 0;
    for (;;) {
        int child = 2 * i + 1;
        if (child >= workers)
            break;
        if (child + 1 < workers && free_at[child + 1] < free_at[child])
            child++;
        if (free_at[child] >= end)
            break;
        free_at[i] = free_at[child];
        i = child;
    }
    free_at[i] = end;
    return end;
}

/* ---- interchange ---------------------------------------------------------------------------- */

/* Low bits of a time in the heap that name the worker. */
#define WORKER_BITS 16

/* Exchanges, per worker, after which it has taken long enough: some are enough for as good as all
 * of what there is to gain. */
#define MOST_STEPS 16

struct worker {
    int64_t end; /* of its last job */
    int32_t id;
};

/* Jobs of the tail by worker, as lists that end in -1. */
struct crew {
    const int64_t *cost;     /* of the tail's jobs */
    int32_t *next;           /* [tail] */
    int32_t *first;          /* [workers] */
    struct worker *by_end;   /* [workers], the earliest first */
    int64_t *at_tail, *heap; /* [workers] when each is free: before the tail, after it */
    int workers, tail;
};

static int32_t worker_of(int64_t free_at)
{
    return (int32_t)(free_at & ((1 << WORKER_BITS) - 1));
}

static int by_end_time(const void *x, const void *y)
{
    const struct worker *a = x, *b = y;
    if (a->end != b->end)
        return a->end < b->end ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

/* The job that a link holds, -1 at the end of a list, is taken out. */
static int32_t unlink_job(struct crew *c, int32_t *link)
{
    int32_t job = *link;
    if (job >= 0)
        *link = c->next[job];
    return job;
}

static void link_job(struct crew *c, int32_t job, int32_t worker)
{
    if (job < 0)
        return;
    c->next[job] = c->first[worker];
    c->first[worker] = job;
}

/* Deal the tail's jobs, in the given order of the tail or as they stand; when the last job ends. */
static int64_t deal_tail(struct crew *c, const int32_t *order)
{
    int64_t latest = 0;
    memcpy(c->heap, c->at_tail, (size_t)c->workers * sizeof *c->heap);
    for (int w = 0; w < c->workers; w++)
        c->first[w] = -1;
    for (int32_t i = 0; i < c->tail; i++) {
        int32_t job = order ? order[i] : i;
        link_job(c, job, worker_of(c->heap[0]));
        greedy_place(c->heap, c->workers, c->cost[job] << WORKER_BITS);
    }
    for (int w = 0; w < c->workers; w++) {
        c->by_end[w] = (struct worker){c->heap[w] >> WORKER_BITS, worker_of(c->heap[w])};
        latest = c->by_end[w].end > latest ? c->by_end[w].end : latest;
    }
    qsort(c->by_end, (size_t)c->workers, sizeof *c->by_end, by_end_time);
    return latest;
}

/* The jobs before the tail. */
static void deal_head(struct crew *c, const int64_t *cost, int32_t n)
{
    for (int w = 0; w < c->workers; w++)
        c->at_tail[w] = w;
    for (int32_t i = 0; i < n; i++)
        greedy_place(c->at_tail, c->workers, cost[i] << WORKER_BITS);
}

/* The job of `late` and that of `early` (or none: -1) whose exchange brings their ends together
 * most, as links that hold them; what the exchange takes from `late`, 0 if none helps. */
static int64_t best_exchange(struct crew *c, const struct worker *late, const struct worker *early,
                             int32_t **give, int32_t **take)
{
    int64_t gap = late->end - early->end, best = 0, far = gap;
    for (int32_t *i = &c->first[late->id]; *i >= 0; i = &c->next[*i])
        for (int32_t *j = &c->first[early->id];; j = &c->next[*j]) {
            int64_t d = c->cost[*i] - (*j >= 0 ? c->cost[*j] : 0), off = llabs(gap - 2 * d);
            if (d > 0 && off < far) {
                best = d;
                far = off;
                *give = i;
                *take = j;
            }
            if (*j < 0)
                break;
        }
    return best;
}

/* In order again, after two ends have changed. */
static void settle(struct worker *w, int n)
{
    for (int i = 1; i < n; i++) {
        struct worker x = w[i];
        int at = i;
        for (; at > 0 && by_end_time(&x, &w[at - 1]) < 0; at--)
            w[at] = w[at - 1];
        w[at] = x;
    }
}

/* One exchange between the worker that ends last and the first of the others with which one helps;
 * false when there is none. */
static bool step(struct crew *c)
{
    struct worker *late = &c->by_end[c->workers - 1];
    for (int k = 0; k < c->workers - 1; k++) {
        struct worker *early = &c->by_end[k];
        int32_t *give, *take;
        int64_t d = best_exchange(c, late, early, &give, &take);
        if (d == 0)
            continue;
        int32_t i = unlink_job(c, give), j = unlink_job(c, take);
        link_job(c, i, early->id);
        link_job(c, j, late->id);
        late->end -= d;
        early->end += d;
        settle(c->by_end, c->workers);
        return true;
    }
    return false;
}

/* A job of the tail and when it begins. */
struct begun {
    int64_t begin, cost;
    int32_t job;
};

static int longer_first(const void *x, const void *y)
{
    const struct begun *a = x, *b = y;
    if (a->cost != b->cost)
        return a->cost > b->cost ? -1 : 1;
    return a->job < b->job ? -1 : a->job > b->job;
}

static int earlier_first(const void *x, const void *y)
{
    const struct begun *a = x, *b = y;
    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    return longer_first(x, y);
}

/* order[tail]: the tail's jobs in the order in which they begin; each worker takes its longest
 * first. */
static void in_order(const struct crew *c, struct begun *jobs, int32_t *order)
{
    int32_t n = 0;
    for (int w = 0; w < c->workers; w++) {
        int32_t from = n;
        int64_t at = c->by_end[w].end;
        for (int32_t i = c->first[c->by_end[w].id]; i >= 0; i = c->next[i]) {
            jobs[n++] = (struct begun){0, c->cost[i], i};
            at -= c->cost[i];
        }
        qsort(jobs + from, (size_t)(n - from), sizeof *jobs, longer_first);
        for (int32_t i = from; i < n; at += jobs[i++].cost)
            jobs[i].begin = at;
    }
    qsort(jobs, (size_t)n, sizeof *jobs, earlier_first);
    for (int32_t i = 0; i < n; i++)
        order[i] = jobs[i].job;
}

int greedy_interchange(const int64_t *cost, int32_t n, int workers, int32_t tail, int32_t *order,
                       int64_t *end, struct err *err)
{
    struct crew c = {.workers = workers, .tail = tail < n ? tail : n};
    struct begun *jobs = NULL;
    int32_t head = n - c.tail;
    int rc = 0;

    c.cost = cost + head;
    TRY(mem_alloc(&c.next, c.tail, sizeof *c.next, "schedule", err));
    TRY(mem_alloc(&c.first, workers, sizeof *c.first, "schedule", err));
    TRY(mem_alloc(&c.by_end, workers, sizeof *c.by_end, "schedule", err));
    TRY(mem_alloc(&c.at_tail, workers, sizeof *c.at_tail, "schedule", err));
    TRY(mem_alloc(&c.heap, workers, sizeof *c.heap, "schedule", err));
    TRY(mem_alloc(&jobs, c.tail, sizeof *jobs, "schedule", err));
    deal_head(&c, cost, head);
    int64_t before = deal_tail(&c, NULL);
    for (int64_t steps = (int64_t)MOST_STEPS * workers; steps > 0 && step(&c); steps--)
        ;
    in_order(&c, jobs, order + head);
    *end = deal_tail(&c, order + head);
    bool better = *end < before; /* who idles in the exchanged plan does not in a greedy one */
    *end = better ? *end : before;
    for (int32_t i = 0; i < n; i++)
        order[i] = i < head || !better ? i : head + order[i];
out:
    free(c.next);
    free(c.first);
    free(c.by_end);
    free(c.at_tail);
    free(c.heap);
    free(jobs);
    return rc;
}
