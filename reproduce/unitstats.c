/*
 * unitstats.c - means per unit, their mean over units, and bootstrap intervals over units.
 */
#include "reproduce/evidence.h"

#include "core/hash.h"
#include "core/mem.h"
#include "core/metricdef.h"
#include "reproduce/claimtest.h"
#include "reproduce/expr.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* "score" is the grade of a question, whatever it is called: of a task file score@METRIC or the
 * likeliest choice, of generated prompts the share that is right. */
static double score_of(const struct record *r)
{
    static const char *const names[] = {"needle_acc", "multi_acc", "kv_acc",
                                        "chain_acc",  "copy_top1", "choice_acc"};
    for (int64_t i = 0; i < record_metrics(r); i++)
        if (strncmp(r->names->name[i], "score@", 6) == 0)
            return r->values[i];
    for (size_t k = 0; k < sizeof names / sizeof *names; k++)
        if (isfinite(record_get(r, names[k])))
            return record_get(r, names[k]);
    return NAN;
}

/* What a call has no phase for took no time: records leave out the quantisation of methods whose
 * choice makes its own operands. */
static double quantisation_of(const struct record *r)
{
    double ns = record_get(r, "time_quant_ns");
    return isfinite(ns) || isnan(record_get(r, "time_total_ns")) ? ns : 0;
}

static double get_metric(const void *ctx, const char *metric)
{
    if (strcmp(metric, "score") == 0)
        return score_of(ctx);
    return strcmp(metric, "time_quant_ns") == 0 ? quantisation_of(ctx) : record_get(ctx, metric);
}

static int find_keys(void *ctx, const char *metric, struct err *err)
{
    const struct metric_def *d = metric_def_find(metric);
    bool *all = ctx;
    (void)err;
    *all = *all && d && d->per == PER_KV_HEAD;
    return 0;
}

bool metric_of_keys(const char *metric)
{
    struct err ignored = {0};
    bool all = true;
    return expr_metrics(metric, find_keys, &all, &ignored) == 0 && all;
}

bool evidence_reads(const char *metric, const struct record *r)
{
    return isfinite(expr_eval(metric, get_metric, r));
}

static int by_place(const void *a, const void *b)
{
    const struct unit *x = a, *y = b;
    return x->layer != y->layer ? x->layer - y->layer : x->head - y->head;
}

struct unit *unit_at(const struct unit_values *v, int layer, int head)
{
    for (int64_t i = 0; i < v->n; i++)
        if (v->u[i].layer == layer && v->u[i].head == head)
            return &v->u[i];
    return NULL;
}

/* The unit of a record, new if it is the first of it. */
static int find_unit(struct unit_values *v, int64_t *cap, int layer, int head, struct unit **out,
                     struct err *err)
{
    *out = unit_at(v, layer, head);
    if (*out)
        return 0;
    int rc = mem_grow(&v->u, cap, v->n + 1, sizeof *v->u, "units", err);
    if (!rc) {
        *out = &v->u[v->n++];
        **out = (struct unit){.layer = layer, .head = head};
    }
    return rc;
}

/* The number of a prompt is made of its task's text, so that it is the same under every method; of
 * a clip, of its text and noise, so that it is the same at every size. */
static int number_of_prompt(const struct record *r)
{
    const char *task = r->task ? r->task : "", *text = strstr(task, ":text=");
    bool clip = strncmp(task, "video:", 6) == 0 && text;
    uint64_t h = hash_bytes(clip ? text : task, strlen(clip ? text : task)).lo;
    return (int)((clip ? h + r->seed : h) & 0x7fffffff);
}

/* Where a record belongs: (layer, head), (layer, -1) or (-1, number of the prompt). */
static void unit_place(const struct record *r, bool keys, int *layer, int *head)
{
    *layer = r->scope == RECORD_OF_MODEL ? -1 : r->layer;
    *head = r->scope == RECORD_OF_CALL ? -1 : keys ? r->kv_head : r->head;
    if (r->scope == RECORD_OF_MODEL)
        *head = number_of_prompt(r);
}

/* The dataset or the kind of generated prompt that a record is of: the text of its task up to the
 * first option, of a file up to its name's end. */
static uint64_t task_hash(const struct record *r)
{
    const char *task = r->task ? r->task : "";
    size_t n = strcspn(task, ":");
    if (strncmp(task, "file:", 5) == 0)
        n += 1 + strcspn(task + n + 1, ":");
    return hash_bytes(task, n).lo;
}

static int64_t units_of_task(const struct unit_values *v, int64_t end, uint64_t task)
{
    int64_t n = 0;
    for (int64_t k = 0; k < end; k++)
        n += v->u[k].task == task;
    return n;
}

/* Let every task count the same: the mean over units becomes the mean, or the sum, of the tasks'
 * means. */
static void weigh_tasks(struct unit_values *v, bool sum)
{
    int64_t tasks = 0;
    for (int64_t i = 0; i < v->n; i++)
        tasks += units_of_task(v, i, v->u[i].task) == 0;
    for (int64_t i = 0; i < v->n; i++)
        v->u[i].sum *=
            (double)v->n / (double)units_of_task(v, v->n, v->u[i].task) / (sum ? 1 : (double)tasks);
}

int evidence_units(const struct evidence *e, const struct choice *c, const char *metric,
                   struct unit_values *out, struct err *err)
{
    static const char *const of[] = {
        [RECORD_OF_HEAD] = "heads", [RECORD_OF_MODEL] = "prompts", [RECORD_OF_CALL] = "layers"};
    bool keys = metric_of_keys(metric);
    int64_t cap = 0;
    int rc = 0, layer, head;
    memset(out, 0, sizeof *out);
    out->of = of[RECORD_OF_HEAD];
    for (int64_t i = 0; i < e->n; i++) {
        struct unit *u;
        const struct record *r = e->v[i].r;
        if (!choice_takes(e, c, &e->v[i]))
            continue;
        double x = expr_eval(metric, get_metric, r);
        if (!isfinite(x))
            continue;
        out->of = of[r->scope];
        unit_place(r, keys, &layer, &head);
        TRY(find_unit(out, &cap, layer, head, &u, err));
        u->sum += x;
        u->task = task_hash(r);
        u->calls++;
        out->calls++;
    }
    if (out->n)
        qsort(out->u, (size_t)out->n, sizeof *out->u, by_place);
out:
    return rc;
}

void unit_values_free(struct unit_values *v)
{
    free(v->u);
    memset(v, 0, sizeof *v);
}

/* ---- statistics of a cell ---------------------------------------------------------------------
 */

struct sums {
    const struct evidence *e;
    const struct choice *c;
    struct sample_stats *out;
    struct err *err;
};

/* The sum of unit means of one metric: over all layers and heads of the model. */
static double sum_metric(const void *ctx, const char *metric)
{
    const struct sums *s = ctx;
    struct unit_values v = {0};
    double total = 0;
    if (evidence_units(s->e, s->c, metric, &v, s->err) != 0)
        return NAN;
    for (int64_t i = 0; i < v.n; i++)
        total += v.u[i].sum / (double)v.u[i].calls;
    s->out->units = v.n > s->out->units ? v.n : s->out->units;
    s->out->of = v.of;
    s->out->calls = v.calls > s->out->calls ? v.calls : s->out->calls;
    total = v.n ? total : NAN;
    unit_values_free(&v);
    return total;
}

static int spread(const struct unit_values *v, bool by_calls, struct sample_stats *o,
                  struct err *err)
{
    struct claim_sample s = {.n = {v->n, v->n}, .members = by_calls ? 2 : 1, .paired = true};
    struct claim_estimate e;
    double total = 0, weight = 0, square = 0, *x, *w;
    int rc = 0;
    TRY(mem_alloc(&s.x[0], v->n, sizeof *x, "units", err));
    TRY(mem_alloc(&s.x[1], v->n, sizeof *w, "units", err));
    x = s.x[0];
    w = s.x[1];
    o->min = INFINITY;
    o->max = -INFINITY;
    for (int64_t i = 0; i < v->n; i++) {
        double mean = v->u[i].sum / (double)v->u[i].calls;
        w[i] = by_calls ? (double)v->u[i].calls : 1;
        x[i] = mean * w[i];
        total += x[i];
        weight += w[i];
        o->min = fmin(o->min, mean);
        o->max = fmax(o->max, mean);
    }
    o->value = total / weight;
    for (int64_t i = 0; i < v->n; i++)
        square += (x[i] / w[i] - o->value) * (x[i] / w[i] - o->value);
    o->sd = v->n > 1 ? sqrt(square / (double)(v->n - 1)) : NAN;
    TRY(claim_estimate(&s, by_calls ? STAT_RATIO : STAT_MEAN, 1, &e, err));
    o->lo = e.lo;
    o->hi = e.hi;
out:
    free(s.x[0]);
    free(s.x[1]);
    return rc;
}

int evidence_stat(const struct evidence *e, const struct choice *c, const char *metric,
                  const char *stat, struct sample_stats *out, struct err *err)
{
    struct unit_values v = {0};
    int rc = 0;
    *out = (struct sample_stats){.value = NAN, .sd = NAN, .lo = NAN, .hi = NAN};
    if (strcmp(stat, "sum-over-layers") == 0) {
        struct sums s = {e, c, out, err};
        out->value = expr_eval(metric, sum_metric, &s);
        if (!isfinite(out->value))
            out->units = 0;
        return err->code;
    }
    TRY(evidence_units(e, c, metric, &v, err));
    if (v.n == 0)
        goto out;
    bool tasks = strcmp(stat, "mean-over-tasks") == 0 || strcmp(stat, "sum-over-tasks") == 0;
    if (tasks)
        weigh_tasks(&v, stat[0] == 's');
    TRY(spread(&v, strcmp(stat, "calls") == 0, out, err));
    if (tasks)
        out->sd = out->min = out->max = NAN;
    out->units = v.n;
    out->calls = v.calls;
    out->of = v.of;
    if (strcmp(stat, "min") == 0 || strcmp(stat, "max") == 0) {
        out->value = stat[1] == 'i' ? out->min : out->max;
        out->sd = out->lo = out->hi = NAN;
    }
out:
    unit_values_free(&v);
    return rc;
}
