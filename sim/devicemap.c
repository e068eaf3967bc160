#include "sim/devicemap.h"

#include "core/clock.h"
#include "core/fileio.h"
#include "core/json.h"
#include "core/mem.h"
#include "core/progress.h"
#include "sim/accelattend.h"
#include "sim/blocks/exact.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
    if (!m->ref_lse || (out && !m->ref_out)) {
        if (!m->ref_lse)
            PASS_ON(mem_alloc(&m->ref_lse, x->nq, sizeof *lse, "dense log-sum-exp", err));
        if (out)
            PASS_ON(mem_alloc(&m->ref_out, x->nq * x->dv, sizeof *out, "dense output", err));
        PASS_ON(d->accel->reference(d->session, x, m->data, m->ref_out, m->ref_lse, err));
    }
    memcpy(lse + row0, m->ref_lse + row0, (size_t)(row1 - row0) * sizeof *lse);
    if (out)
        memcpy(out + row0 * x->dv, m->ref_out + row0 * x->dv,
               (size_t)((row1 - row0) * x->dv) * sizeof *out);
    return 0;
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

/* ---- judging -------------------------------------------------------------------------------- */

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
        PASS_ON(mask_count(masks + i, &c, err));
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
    OWN(free_at) double *own = NULL;
    if (!mass) /* without it nothing is measured */
        PASS_ON(mem_alloc(&own, head.x->nq, sizeof *own, "kept mass of rows", err));
    if (own)
        head.mass = own;
    PASS_ON(accel_attend_masks(d->accel, d->session, &how, &call, &r, why, err));
    *j = sums_of(&head);
    j->tiles_pv = f ? head.tiles_pv : 0;
    if (!f)
        return forgive_full(masks, n, j, err);
    return 0;
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
    PASS_ON(accel_attend_masks(d->accel, d->session, &how, &call, &r, why, err));
    for (int i = 0; i < JUDGE_MANY; i++) {
        masks[i].sum = sums_of(heads + i);
        PASS_ON(forgive_full(&masks[i].mask, 1, &masks[i].sum, err));
    }
    return 0;
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
    if (d->accel->select_call)
        PASS_ON(d->accel->select_call(d->session, &call, err));
    if (head.answer == ACCEL_NO_SELECT) {
        memcpy(why, head.why, 160);
        return METHOD_SKIP;
    }
    *whole = head.mask;
    return 0;
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

/* ---- rates ---------------------------------------------------------------------------------- */

static const char *const identity[] = {"uuid", "cuda_driver", "cuda_runtime"};
static const char *const rates[] = {"matmul_8192_tflops", "copy_tb_per_s"};
#define N_IDENTITY (sizeof identity / sizeof *identity)
#define N_RATES (sizeof rates / sizeof *rates)

/* Are they of this GPU, and complete? */
static bool fits(const json_t *kept, const json_t *gpu)
{
    for (size_t i = 0; i < N_IDENTITY; i++)
        if (!json_equal(json_object_get(kept, identity[i]), json_object_get(gpu, identity[i])))
            return false;
    for (size_t i = 0; i < N_RATES; i++)
        if (!(json_number_value(json_object_get(kept, rates[i])) > 0))
            return false;
    return true;
}

static void copy_members(const json_t *from, json_t *to)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)from, key, value) json_object_set(to, key, value);
}

/* What a function of the back end writes, as an object. */
static int read_back(int (*fn)(struct accel_session *s, struct jw *w, struct err *err),
                     const struct sim_device *d, const char *what, json_t **out, struct err *err)
{
    OWN(buf_free) struct buf b = {0};
    struct jw w;
    jw_init(&w, &b, 0);
    jw_obj(&w);
    PASS_ON(fn(d->session, &w, err));
    jw_obj_end(&w);
    PASS_ON(buf_check(&b, what, err));
    return json_read_text(buf_str(&b), b.len, what, out, err);
}

/* Only what says whose they are, and the rates. */
static int keep(const char *path, const json_t *gpu, struct err *err)
{
    OWN(json_decrefp) json_t *doc = json_object();
    OWN(free_at) char *text = NULL;
    for (size_t i = 0; i < N_IDENTITY; i++)
        json_object_set(doc, identity[i], json_object_get(gpu, identity[i]));
    for (size_t i = 0; i < N_RATES; i++)
        json_object_set(doc, rates[i], json_object_get(gpu, rates[i]));
    text = json_dumps(doc, JSON_INDENT(2));
    return text ? file_write_atomic(path, text, strlen(text), err)
                : err_set(err, ERR_NOMEM, "%s: out of memory", path);
}

static int add_ceilings(const struct sim_device *d, const char *dir, bool again, json_t *gpu,
                        struct err *err)
{
    const char *uuid = json_string_value(json_object_get(gpu, "uuid"));
    OWN(json_decrefp) json_t *kept = NULL, *measured = NULL;
    struct err damaged = {0}; /* such a file is as good as none */
    char path[4096];
    if (!d->accel->ceilings || !uuid)
        return 0;
    if (snprintf(path, sizeof path, "%s/ceilings-%s.json", dir, uuid) >= (int)sizeof path)
        return err_set(err, ERR_USAGE, "%s: the path is too long", dir);
    if (!again && access(path, R_OK) == 0)
        json_read_file(path, 1 << 16, &kept, &damaged);
    if (kept && fits(kept, gpu)) {
        copy_members(kept, gpu);
        return 0;
    }
    PASS_ON(read_back(d->accel->ceilings, d, "ceilings of the GPU", &measured, err));
    copy_members(measured, gpu);
    if (fits(gpu, gpu))
        return keep(path, gpu, err);
    return 0;
}

int rates_of_gpu(const struct sim_device *d, const char *dir, bool again, json_t **gpu,
                 struct err *err)
{
    PASS_ON(read_back(d->accel->describe, d, "description of the GPU", gpu, err));
    return add_ceilings(d, dir, again, *gpu, err);
}

int attn_rate(enum precision prec, double *flop_per_s, struct err *err)
{
    enum { N = 1024, D = 64 };
    OWN(free_at) float *x = NULL;
    OWN(free_at) double *out = NULL, *lse = NULL;
    OWN(attn_release) struct attn_ops ops = {0};
    struct mask full;
    double ns = 0;
    PASS_ON(mem_zalloc(&x, N * D, sizeof *x, "rate probe", err));
    PASS_ON(mem_alloc(&out, N * D, sizeof *out, "rate probe", err));
    PASS_ON(mem_alloc(&lse, N, sizeof *lse, "rate probe", err));
    for (int i = 0; i < N * D; i++)
        x[i] = (float)(i % 17) / 17;
    struct attn_in in = {.nq = N, .nk = N, .d = D, .dv = D, .q = x, .k = x, .v = x, .scale = 0.125};
    PASS_ON(attn_prepare(&ops, &in, prec, err));
    mask_full(&full, N, N, 0, N, false);
    for (int k = 0; k < 2; k++) { /* the first one warms up */
        double begin = clock_ns();
        PASS_ON(attn_rows(&ops, &full, out, lse, err));
        ns = clock_ns() - begin;
    }
    *flop_per_s = 4e9 * N * N * D / ns;
    return 0;
}
