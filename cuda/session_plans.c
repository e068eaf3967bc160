/*
 * session_plans.c - see session_plans.h. Plans outlive what lies in the arena, so each has memory
 * of its own.
 */
#include "cuda/session_plans.h"

#include <stdlib.h>
#include <string.h>

static void plan_free(struct accel_session *s, struct session_plan *p)
{
    gpu_free_own(&s->gpu, p->memory, p->bytes);
    free(p->ptr);
    free(p);
}

void session_drop_plans(struct accel_session *s)
{
    for (struct session_plan *p = s->plans, *next; p; p = next) {
        next = p->next;
        plan_free(s, p);
    }
    s->plans = NULL;
}

static struct session_plan *find(struct accel_session *s, uint64_t id)
{
    struct session_plan *p = s->plans;
    while (p && p->id != id)
        p = p->next;
    return p;
}

const struct session_plan *session_find_plan(struct accel_session *s, uint64_t id)
{
    struct session_plan *p = id ? find(s, id) : NULL;
    if (p)
        p->used = ++s->plans_used;
    return p;
}

bool session_holds(struct accel_session *s, uint64_t id)
{
    session_lock(s);
    bool there = find(s, id) != NULL;
    session_unlock(s);
    return there;
}

/* Drop the oldest until `bytes` more fit. */
static void make_room(struct accel_session *s, int64_t bytes)
{
    for (;;) {
        struct session_plan **oldest = NULL;
        int64_t held = 0;
        for (struct session_plan **p = &s->plans; *p; p = &(*p)->next) {
            held += (*p)->bytes;
            if (!oldest || (*p)->used < (*oldest)->used)
                oldest = p;
        }
        if (!oldest || held + bytes <= SESSION_PLAN_BYTES)
            return;
        struct session_plan *gone = *oldest;
        *oldest = gone->next;
        plan_free(s, gone);
    }
}

/* One array of a plan: where it is on the host, its bytes, and where its place on the device goes.
 */
struct part {
    const void *from;
    int64_t bytes;
    const void **to;
};

enum { PARTS = 7 };

static void parts_of(const struct attn_problem *p, const struct attn_plan *plan,
                     struct attn_device_plan *d, struct part part[PARTS])
{
    const struct attn_csr *l = &plan->lists;
    bool bits = p->lists == ATTN_BITS || p->lists == ATTN_GATHER;
    int64_t keys = p->lists == ATTN_GATHER ? plan->blocks * ACCEL_TILE : 0;
    part[0] = (struct part){plan->items, plan->n_items * (int64_t)sizeof *plan->items, &d->items};
    part[1] =
        (struct part){plan->splits, plan->n_splits * (int64_t)sizeof *plan->splits, &d->splits};
    part[2] = (struct part){plan->empty, plan->n_empty * 4LL, &d->empty};
    part[3] = (struct part){plan->cols, plan->n_cols * 4, &d->cols};
    part[4] = (struct part){l->bits, bits ? plan->blocks * 4 : 0, &d->bits};
    part[5] = (struct part){l->keys, keys * 4, &d->keys};
    part[6] = (struct part){l->words, bits ? l->n_bits * ACCEL_TILE_WORDS * 8 : 0, &d->words};
}

static int64_t rounded(int64_t bytes)
{
    return (bytes + 255) & ~255LL;
}

/* Copy the parts into the plan's memory. */
static int put_parts(struct gpu *g, char *at, const struct part part[PARTS], struct err *err)
{
    int rc = 0;
    for (int i = 0; i < PARTS; i++) {
        *part[i].to = at;
        TRY(gpu_put(g, at, part[i].from, part[i].bytes, err));
        at += rounded(part[i].bytes);
    }
    TRY(gpu_sync(g, err));
out:
    return rc;
}

/* The plan as it is kept: only what is on the device, and its numbers. */
static struct attn_plan kept_plan(const struct attn_plan *plan)
{
    struct attn_plan kept = *plan;
    kept.items = NULL;
    kept.cols = NULL;
    kept.splits = NULL;
    kept.empty = NULL;
    kept.lists = (struct attn_csr){0};
    return kept;
}

int session_keep_plan(struct accel_session *s, uint64_t id, const struct attn_problem *p,
                      const struct attn_csr *csr, int64_t groups, struct attn_plan *plan,
                      struct err *err)
{
    struct attn_device_plan device;
    struct session_plan *k = NULL;
    struct part part[PARTS];
    int64_t bytes = 0, n = p->heads * groups + 1;
    int rc = 0;

    parts_of(p, plan, &device, part);
    for (int i = 0; i < PARTS; i++)
        bytes += rounded(part[i].bytes);
    if (bytes > SESSION_PLAN_BYTES || bytes > s->gpu.memory_bytes / 16)
        return 0;
    make_room(s, bytes);
    TRY(mem_zalloc(&k, 1, sizeof *k, "plan of a static mask", err));
    TRY(mem_alloc(&k->ptr, n, sizeof *k->ptr, "plan of a static mask", err));
    memcpy(k->ptr, csr->ptr, (size_t)n * sizeof *k->ptr);
    TRY(gpu_alloc_own(&s->gpu, bytes, &k->memory, err));
    k->bytes = bytes;
    TRY(put_parts(&s->gpu, k->memory, part, err));
    plan->device = device;
    k->id = id;
    k->problem = *p;
    k->plan = kept_plan(plan);
    k->used = ++s->plans_used;
    k->next = s->plans;
    s->plans = k;
    return 0;
out:
    if (k)
        plan_free(s, k);
    return rc;
}
