/*
 * freshmask.c - see freshmask.h.
 */
#include "sim/freshmask.h"

#include "core/mem.h"
#include "core/pool.h"
#include "sim/accelchoice.h"

#include <stdlib.h>

struct fresh {
    struct run *const *runs;
    struct rule *rules;
    struct accel_choice *choices;
    struct mask *masks;
    int *answers;
    char (*why)[160];
};

/* method NULL: nobody is asked. */
static struct accel_choice question(const struct run *run, struct rule *rule)
{
    const struct method *me = run->method;
    struct accel_choice q = choice_of_head(run);
    char why[160];
    bool ask = me->device.compares && run->source == SOURCE_REUSED &&
               run->cell->device->select != SELECT_CPU && me->device.rule(run->state, rule, why);
    q.method = ask ? me->name : NULL;
    q.rule = &rule->of;
    q.given = rule->data;
    q.once = true;
    return q;
}

static int take(void *fresh, int64_t i, int worker, struct err *err)
{
    struct fresh *f = fresh;
    struct run *run = f->runs[i];
    (void)worker;
    if (!f->choices[i].method || f->answers[i] != 0)
        return 0;
    int rc =
        run->method->device.take(run->state, &(struct device_choice){.lists = f->masks + i}, err);
    mask_free(f->masks + i);
    return rc;
}

int fresh_masks_of_call(const struct accel_call *call, struct run *const *runs, int jobs,
                        struct err *err)
{
    const struct sim_device *device = runs[0]->cell->device;
    struct fresh f = {.runs = runs};
    bool any = false;
    int n = call->n, rc = 0;

    TRY(mem_zalloc(&f.rules, n, sizeof *f.rules, "rules of heads", err));
    TRY(mem_zalloc(&f.choices, n, sizeof *f.choices, "heads of a call", err));
    TRY(mem_zalloc(&f.masks, n, sizeof *f.masks, "heads of a call", err));
    TRY(mem_zalloc(&f.answers, n, sizeof *f.answers, "heads of a call", err));
    TRY(mem_zalloc(&f.why, n, sizeof *f.why, "heads of a call", err));
    for (int i = 0; i < n; i++) {
        f.choices[i] = question(runs[i], f.rules + i);
        f.answers[i] = ACCEL_NO_SELECT;
        any |= f.choices[i].method != NULL;
    }
    if (!any || !device->accel->select_call)
        goto out;
    TRY(device->accel->select_call(device->session, call, f.choices, f.masks, f.answers, f.why,
                                   err));
    TRY(pool_run(jobs, n, take, &f, err));
out:
    for (int i = 0; f.masks && i < n; i++)
        mask_free(f.masks + i);
    free(f.rules);
    free(f.choices);
    free(f.masks);
    free(f.answers);
    free(f.why);
    return rc;
}

int fresh_mask_of_head(struct run *run, struct err *err)
{
    const struct sim_device *device = run->cell->device;
    struct rule rule = {0};
    struct accel_choice choice = question(run, &rule);
    struct accel_time time;
    struct mask m = {0};
    char why[160];

    if (!choice.method || !device->accel->select)
        return 0;
    int rc = device->accel->select(device->session, &choice, &m, &time, why, err);
    if (rc == 0)
        rc = run->method->device.take(run->state, &(struct device_choice){.lists = &m}, err);
    mask_free(&m);
    return rc < 0 ? rc : 0;
}
