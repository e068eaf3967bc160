/*
 * callreader.c - see callreader.h. Reading is thread-safe by itself: HDF5 is behind its lock
 * (core/h5util.h), and nothing else of a trace changes after it was opened.
 */
#include "sim/callreader.h"

#include "core/mem.h"
#include "core/pool.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A call in memory, or on its way there. */
struct slot {
    const struct call_reader *reader;
    struct call_place place;
    struct sim_head *heads; /* [place.group->n], owned */
    int rc;
    struct err err;
    pthread_t thread;
    bool running;
};

struct call_reader {
    const struct replay *replay;
    int jobs;
    bool ahead;
    struct slot slots[2]; /* the one that was taken, and the next one */
    int taken;
};

/* Load the heads of one run of them that share their KV head. */
static int load_group(void *slot, int64_t item, int worker, struct err *err)
{
    struct slot *s = slot;
    const struct replay *r = s->reader->replay;
    const struct call_group *g = s->place.group;
    const struct trace *t = r->traces[r->series[g->series[0]].trace];
    int64_t first = item * g->group;
    int rc = 0;
    (void)worker;
    for (int64_t i = first; i < first + g->group; i++)
        TRY(head_load_kin(t, s->place.call, r->series[g->series[i]].head, &r->load,
                          i > first ? s->heads + first : NULL, s->heads + i, err));
out:
    return rc;
}

static void empty(struct slot *s)
{
    if (s->running)
        pthread_join(s->thread, NULL);
    /* The later heads of a run borrow keys and values of its first one. */
    for (int64_t i = s->heads ? s->place.group->n - 1 : -1; i >= 0; i--)
        sim_head_free(s->heads + i);
    free(s->heads);
    *s = (struct slot){.reader = s->reader};
}

static void load(struct slot *s, int jobs)
{
    const struct call_group *g = s->place.group;
    s->rc = mem_zalloc(&s->heads, g->n, sizeof *s->heads, "heads of a call", &s->err);
    if (!s->rc)
        s->rc = pool_run(jobs, g->n / g->group, load_group, s, &s->err);
}

static void *load_ahead(void *slot)
{
    struct slot *s = slot;
    int jobs = s->reader->jobs;
    load(s, jobs > 1 ? jobs - 1 : 1); /* one processor stays with the call that is worked on */
    return NULL;
}

int call_reader_new(const struct replay *r, int jobs, bool ahead, struct call_reader **out,
                    struct err *err)
{
    struct call_reader *rd = NULL;
    int rc = mem_zalloc(&rd, 1, sizeof *rd, "reader of calls", err);
    if (rc)
        return rc;
    rd->replay = r;
    rd->jobs = jobs;
    rd->ahead = ahead;
    rd->slots[0].reader = rd->slots[1].reader = rd;
    *out = rd;
    return 0;
}

void call_reader_free(struct call_reader **rd)
{
    if (!*rd)
        return;
    empty((*rd)->slots);
    empty((*rd)->slots + 1);
    free(*rd);
    *rd = NULL;
}

static bool same_place(struct call_place a, struct call_place b)
{
    return a.group == b.group && a.call == b.call;
}

int call_reader_take(struct call_reader *rd, struct call_place at, struct sim_head **heads,
                     struct err *err)
{
    struct slot *s = rd->slots + !rd->taken;
    empty(rd->slots + rd->taken);
    rd->taken = !rd->taken;
    if (s->running)
        pthread_join(s->thread, NULL);
    s->running = false;
    if (!s->heads || !same_place(s->place, at)) {
        empty(s);
        s->place = at;
        load(s, rd->jobs);
    }
    *heads = s->heads;
    return s->rc ? err_set(err, s->rc, "%s", s->err.msg) : 0;
}

void call_reader_expect(struct call_reader *rd, struct call_place next)
{
    struct slot *s = rd->slots + !rd->taken;
    if (!rd->ahead || !next.group)
        return;
    empty(s);
    s->place = next;
    /* Without a thread it is read when it is taken. */
    s->running = pthread_create(&s->thread, NULL, load_ahead, s) == 0;
}
