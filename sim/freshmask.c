/*
 * freshmask.c - see freshmask.h.
 */
#include "sim/freshmask.h"

#include "core/mem.h"
#include "core/pool.h"
#include "sim/maskchoice.h"

#include <stdlib.h>

/* The calls' heads with questions of their own. */
struct fresh {
    struct accel_call call; /* heads owned */
    struct run *const *runs;
    struct rule *rules; /* owned */
};

/* method NULL: nobody is asked. */
static struct accel_choice question(const struct run *run, struct rule *rule)
{
    const struct method *me = run->method;
    struct accel_choice q = {0};
    char why[160];
    bool ask = me->device.compares && run->source == SOURCE_REUSED &&
               run->cell->device->select != SELECT_CPU && me->device.rule(run->state, rule, why);
    q.method = ask ? me->name : NULL;
    q.rule = &rule->of;
    q.given = rule->data;
    return q;
}

static int take(void *fresh, int64_t i, int worker, struct err *err)
{
    struct fresh *f = fresh;
    struct accel_head *h = f->call.heads + i;
    (void)worker;
    if (!h->choice.method || h->answer != 0)
        return 0;
    const struct device_choice chosen = {.lists = &h->mask};
    return f->runs[i]->method->device.take(f->runs[i]->state, &chosen, err);
}

int fresh_masks(const struct accel_call *call, struct run *const *runs, int jobs, struct err *err)
{
    const struct sim_device *device = runs[0]->cell->device;
    struct fresh f = {.call = *call, .runs = runs};
    bool any = false;
    int rc = 0;

    f.call.heads = NULL;
    TRY(mem_zalloc(&f.rules, call->n, sizeof *f.rules, "rules of heads", err));
    TRY(mem_zalloc(&f.call.heads, call->n, sizeof *f.call.heads, "heads of a call", err));
    for (int i = 0; i < call->n; i++) {
        struct accel_head *h = f.call.heads + i;
        h->x = call->heads[i].x;
        h->answer = ACCEL_NO_SELECT;
        if (i >= call->copies)
            h->choice = question(runs[i], f.rules + i);
        any |= h->choice.method != NULL;
    }
    if (!any || !device->accel->select_call)
        goto out;
    TRY(device->accel->select_call(device->session, &f.call, err));
    TRY(pool_run(jobs, call->n, take, &f, err));
out:
    for (int i = 0; f.call.heads && i < call->n; i++)
        mask_free(&f.call.heads[i].mask);
    free(f.call.heads);
    free(f.rules);
    return rc;
}
