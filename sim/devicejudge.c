/*
 * devicejudge.c - see devicejudge.h.
 */
#include "sim/devicejudge.h"

#include "core/clock.h"
#include "core/mem.h"
#include "core/rng.h"
#include "sim/accelattend.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool device_judges(const struct sim_device *d, const struct attn_in *x, char why[160])
{
    int64_t bq = ACCEL_TILE, bk = ACCEL_TILE;
    return d->accel->supports(d->session, x, &bq, &bk, why);
}

static bool filters(void *self, const struct accel_filter *f, char why[160])
{
    const struct device_map *m = &((struct device_judge *)self)->map;
    const struct accel *a = m->device->accel;
    const struct accel_head head = {.x = &m->in->x, .filter = f};
    snprintf(why, 160, "the back end has no filter on P V");
    return a->can_attend && a->can_attend(m->device->session, &head, why);
}

static struct judged sums_of(const struct accel_head *h)
{
    const struct accel_sums *s = &h->sums;
    return (struct judged){.abs_delta = ldexp(s->abs_delta, s->exp),
                           .sq_delta = ldexp(s->sq_delta, 2 * s->exp),
                           .sq_ref = ldexp(s->sq_ref, 2 * s->exp)};
}

/* Masks that together keep all pairs are dense attention: what a kernel rounds is no error of
 * theirs, and settings that keep everything stay equal, as on the CPU. */
static int forgive_full(const struct mask *masks, int64_t n, struct judged *j, struct err *err)
{
    int64_t missing = 0;
    for (int64_t i = 0; i < n && missing == 0; i++) {
        struct mask_counts c;
        int rc = mask_count(masks + i, &c, err);
        if (rc)
            return rc;
        missing += c.pairs_allowed - c.pairs_kept;
    }
    if (missing == 0)
        j->abs_delta = j->sq_delta = 0;
    return 0;
}

static int judge_masks(void *self, const struct mask *masks, int64_t n,
                       const struct accel_filter *f, double *mass, struct judged *j, char why[160],
                       struct err *err)
{
    struct device_judge *judge = self;
    const struct device_map *m = &judge->map;
    const struct sim_device *d = m->device;
    struct accel_head head = {
        .x = &m->in->x, .masks = masks, .n_masks = n, .filter = f, .mass = mass};
    const struct accel_call call = {.n = 1, .group = 1, .heads = &head, .data = m->data};
    const struct attend_how how = {.jobs = judge->judge.jobs};
    struct accel_result r;
    double *own = NULL;
    int rc = 0;

    if (!mass) /* without it nothing is measured */
        TRY(mem_alloc(&own, head.x->nq, sizeof *own, "kept mass of rows", err));
    if (own)
        head.mass = own;
    if ((rc = accel_attend_masks(d->accel, d->session, &how, &call, &r, why, err)) != 0)
        goto out;
    *j = sums_of(&head);
    j->tiles_pv = f ? head.tiles_pv : 0;
    if (!f)
        rc = forgive_full(masks, n, j, err);
out:
    free(own);
    return rc;
}

/* As the heads of a call that is made of copies of this one: one launch for all masks. */
static int judge_many(void *self, struct judge_many *masks, char why[160], struct err *err)
{
    struct device_judge *judge = self;
    const struct sim_device *d = judge->map.device;
    struct accel_head heads[JUDGE_MANY] = {{0}};
    struct accel_result r;

    if (!judge->many)
        judge->many = device_numbers(JUDGE_MANY);
    const struct accel_call call = {
        .n = JUDGE_MANY, .group = JUDGE_MANY, .heads = heads, .data = judge->many};
    const struct attend_how how = {.jobs = judge->judge.jobs};
    for (int i = 0; i < JUDGE_MANY; i++) {
        heads[i].x = &judge->map.in->x;
        heads[i].masks = &masks[i].mask;
        heads[i].n_masks = 1;
        heads[i].mass = masks[i].mass;
    }
    int rc = accel_attend_masks(d->accel, d->session, &how, &call, &r, why, err);
    for (int i = 0; i < JUDGE_MANY && !rc; i++) {
        masks[i].sum = sums_of(heads + i);
        rc = forgive_full(&masks[i].mask, 1, &masks[i].sum, err);
    }
    return rc;
}

static int choose(void *self, const char *method, const union method_rule *rule, struct mask *whole,
                  char why[160], struct err *err)
{
    const struct device_map *m = &((struct device_judge *)self)->map;
    const struct sim_device *d = m->device;
    struct accel_head head = {.x = &m->in->x,
                              .choice = {.method = method, .rule = rule},
                              .answer = ACCEL_NO_SELECT,
                              .why = "the back end does not select"};
    const struct accel_call call = {.n = 1, .group = 1, .heads = &head, .data = m->data};
    int rc = 0;

    if (d->accel->select_call)
        TRY(d->accel->select_call(d->session, &call, err));
    if (head.answer == ACCEL_NO_SELECT) {
        memcpy(why, head.why, 160);
        return METHOD_SKIP;
    }
    *whole = head.mask;
out:
    return rc;
}

void device_judge_attach(struct device_judge *j, const struct sim_device *d,
                         const struct head_in *in, int jobs)
{
    device_map_attach(&j->map, d, in, device_numbers(1));
    j->judge = (struct judge){.self = j,
                              .jobs = jobs,
                              .filters = filters,
                              .masks = judge_masks,
                              .many = judge_many,
                              .choose = choose};
    j->many = 0;
    judge_from(in->exact, &j->judge);
}

void device_judge_detach(struct device_judge *j)
{
    if (!j->map.in)
        return;
    judge_from(j->map.in->exact, NULL);
    device_map_detach(&j->map);
    j->map.in = NULL;
}

/* ---- time ----------------------------------------------------------------------------------- */

/* Wall time of one question, the best of three after a first one that also uploads. */
static int time_judge(const struct sim_device *d, int64_t n, int dim, bool causal, double *seconds,
                      struct err *err)
{
    struct exact exact = {0};
    struct head_in in = {.n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .exact = &exact};
    struct device_judge j = {0};
    struct judged sum;
    struct mask full;
    float *x = NULL;
    char why[160] = "";
    int rc = 0;

    *seconds = INFINITY;
    TRY(mem_alloc(&x, n * dim, sizeof *x, "rate probe", err));
    for (int64_t i = 0; i < n * dim; i++)
        x[i] = (float)rng_normal(1, 0, (uint64_t)i);
    in.x = (struct attn_in){.nq = n,
                            .nk = n,
                            .d = dim,
                            .dv = dim,
                            .q = x,
                            .k = x,
                            .v = x,
                            .scale = 1 / sqrt(dim),
                            .causal = causal};
    exact_init(&exact, &in.x, PREC_F32);
    device_judge_attach(&j, d, &in, 1);
    mask_full(&full, n, n, 0, n, causal);
    for (int k = 0; k < 4; k++) {
        double begin = clock_s();
        rc = judge_masks(&j, &full, 1, NULL, NULL, &sum, why, err);
        if (rc == METHOD_SKIP)
            rc = err_set(err, ERR_MACHINE, "%s", why);
        if (rc)
            goto out;
        *seconds = k ? fmin(*seconds, clock_s() - begin) : INFINITY;
    }
out:
    device_judge_detach(&j);
    exact_free(&exact);
    free(x);
    return rc;
}

int device_judge_rate(const struct sim_device *d, int dim, bool causal, struct judge_rate *rate,
                      struct err *err)
{
    enum { SHORT = 1024, LONG = 8192 };
    double few = (double)pairs_allowed(SHORT, SHORT, causal);
    double many = (double)pairs_allowed(LONG, LONG, causal), a, b;
    int rc = 0;
    TRY(time_judge(d, SHORT, dim, causal, &a, err));
    TRY(time_judge(d, LONG, dim, causal, &b, err));
    rate->per_pair = fmax(b - a, 0) / (many - few);
    rate->fixed = fmax(a - rate->per_pair * few, 0);
out:
    return rc;
}
