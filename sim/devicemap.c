/*
 * devicemap.c - see devicemap.h.
 */
#include "sim/devicemap.h"

#include "core/mem.h"
#include "core/progress.h"
#include "sim/accelattend.h"
#include "sim/blocks/exactmap.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(ACCEL_UNITS == BELOW_UNITS, "the back end counts the same units");

/* Counts of the device's pass [BELOW_UNITS][n_c] beside those that follow from the shape. */
static void take_counts(const struct attn_in *x, const struct accel_map *m, struct map_below *b)
{
    map_below_totals(x, b);
    for (int u = 0; u < BELOW_UNITS; u++)
        for (int k = 0; k < b->n_c; k++) {
            b->below[u][k] = m->units[u * b->n_c + k];
            b->below_pairs[u][k] = m->pairs[u * b->n_c + k];
        }
    b->p_max = m->p_max;
    b->sum_err = m->sum_err;
    b->summed = b->sums;
    b->timed = m->time.samples > 0;
    b->ns = m->time.median;
    b->ns_q1 = m->time.q1;
    b->ns_q3 = m->time.q3;
}

static int below(void *self, struct map_below *b, struct err *err)
{
    struct device_map *m = self;
    const struct sim_device *d = m->device;
    int64_t n = BELOW_UNITS * (int64_t)b->n_c;
    struct accel_map map = {.n_c = b->n_c, .c = b->c, .sums = b->sums};
    int rc = 0;

    TRY(mem_zalloc(&map.units, n, sizeof *map.units, "counts", err));
    TRY(mem_zalloc(&map.pairs, n, sizeof *map.pairs, "counts", err));
    TRY(d->accel->map(d->session, &m->in->x, m->data, &map, err));
    take_counts(&m->in->x, &map, b);
out:
    free(map.units);
    free(map.pairs);
    return rc;
}

/* Dense rows of the service: the device computes all rows at once, and the rest waits here. */
static int dense(void *self, int64_t row0, int64_t row1, double *out, double *lse, struct err *err)
{
    struct device_map *m = self;
    const struct sim_device *d = m->device;
    const struct attn_in *x = &m->in->x;
    int rc = 0;

    if (!m->ref_lse || (out && !m->ref_out)) {
        if (!m->ref_lse)
            TRY(mem_alloc(&m->ref_lse, x->nq, sizeof *lse, "dense log-sum-exp", err));
        if (out)
            TRY(mem_alloc(&m->ref_out, x->nq * x->dv, sizeof *out, "dense output", err));
        TRY(d->accel->reference(d->session, x, m->data, m->ref_out, m->ref_lse, err));
    }
    memcpy(lse + row0, m->ref_lse + row0, (size_t)(row1 - row0) * sizeof *lse);
    if (out)
        memcpy(out + row0 * x->dv, m->ref_out + row0 * x->dv,
               (size_t)((row1 - row0) * x->dv) * sizeof *out);
out:
    return rc;
}

static int masked(void *self, const struct mask *m, double *out, double *lse, struct err *err)
{
    struct device_map *map = self;
    const struct sim_device *d = map->device;
    struct accel_head head = {.x = &map->in->x, .masks = m, .n_masks = 1, .out = out, .lse = lse};
    const struct accel_call one = {
        .n = 1, .group = 1, .heads = &head, .data = map->data, .unmeasured = true};
    const struct attend_how how = {.jobs = 1, .untimed = true};
    struct accel_result r;
    char why[160];
    return accel_attend_masks(d->accel, d->session, &how, &one, &r, why, err);
}

static bool can_reference(const struct sim_device *d, const struct attn_in *x)
{
    int64_t bq = 128, bk = 128;
    char why[160];
    return (d->metrics || d->dense) && d->accel->reference &&
           d->accel->supports(d->session, x, &bq, &bk, why);
}

static double used(void *device)
{
    const struct sim_device *d = device;
    return d->accel->used_s(d->session);
}

void device_meter(const struct sim_device *d, struct progress *p)
{
    if (d->accel && d->accel->used_s)
        progress_meter(p, "GPU in use", used, (void *)(uintptr_t)d);
}

uint64_t device_numbers(int n)
{
    static _Atomic uint64_t heads;
    return atomic_fetch_add(&heads, (uint64_t)n) + 1;
}

void device_map_attach(struct device_map *m, const struct sim_device *device,
                       const struct head_in *in, uint64_t data)
{
    *m = (struct device_map){.device = device, .in = in, .data = data};
    if (device->metrics)
        exact_below_from(in->exact, below, m);
    m->gives_dense = can_reference(device, &in->x);
    if (m->gives_dense)
        exact_dense_from(in->exact, dense, m);
    if (device->metrics || device->dense)
        exact_masked_from(in->exact, masked, m);
}

void device_map_detach(struct device_map *m)
{
    exact_below_from(m->in->exact, NULL, NULL);
    exact_masked_from(m->in->exact, NULL, NULL);
    if (m->gives_dense)
        exact_dense_from(m->in->exact, NULL, NULL);
    free(m->ref_lse);
    free(m->ref_out);
    m->ref_lse = m->ref_out = NULL;
}
