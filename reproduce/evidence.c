/*
 * evidence.c - records of a page's jobs, conditions on them, means per unit, and bootstrap
 * intervals over units.
 */
#include "reproduce/evidence.h"

#include "analyze/stats.h"
#include "analyze/params.h"
#include "analyze/query.h"
#include "core/hash.h"
#include "core/mem.h"
#include "core/metricdef.h"
#include "core/rng.h"
#include "core/sort.h"

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading --------------------------------------------------------------------------------- */

int record_as_counted(struct record *r, struct err *err)
{
    static const char *const grades[] = {"needle_acc", "multi_acc", "kv_acc",
                                         "chain_acc",  "copy_top1", "choice_acc"};
    double grade = NAN;
    for (int64_t i = 0; i < record_metrics(r) && isnan(grade); i++)
        if (strncmp(record_metric_name(r, i), "score@", 6) == 0)
            grade = r->values[i];
    for (size_t k = 0; k < sizeof grades / sizeof *grades && isnan(grade); k++)
        grade = record_get(r, grades[k]);
    if (!isnan(grade))
        PASS_ON(record_metric(r, "score", grade, err));
    if (!record_has(r, "time_quant_ns") && record_has(r, "time_total_ns"))
        return record_metric(r, "time_quant_ns", 0, err);
    return 0;
}

int evidence_load(const struct plan *p, int recipe, struct evidence *e, struct err *err)
{
    e->plan = p;
    e->recipe = recipe;
    PASS_ON(mem_zalloc(&e->sets, p->n + 1, sizeof *e->sets, "records", err));
    for (const struct step *s = NULL; (s = next_step(p, recipe, s));) {
        struct record_set *set = &e->sets[e->n_sets];
        if (!s->done || !step_has_records(p, s))
            continue;
        PASS_ON(records_load(s->id, &set->r, &set->n, err));
        e->n_sets++;
        PASS_ON(mem_grow(&e->v, &e->cap, e->n + set->n, sizeof *e->v, "records", err));
        for (int64_t k = 0; k < set->n; k++) {
            PASS_ON(record_as_counted(&set->r[k], err));
            e->v[e->n++] = (struct proof){&set->r[k], (int)(s - p->s)};
        }
    }
    return 0;
}

void evidence_free(struct evidence *e)
{
    for (int i = 0; i < e->n_sets; i++)
        records_free(e->sets[i].r, e->sets[i].n);
    free(e->sets);
    free(e->v);
    memset(e, 0, sizeof *e);
}

/* ---- conditions ------------------------------------------------------------------------------ */

bool evidence_key(const struct evidence *e, const struct proof *p, const char *key, struct buf *b)
{
    const char *value = step_value(&e->plan->s[p->step], key);
    if (!value && strcmp(key, "task") == 0) /* all of it */
        value = p->r->task ? p->r->task : "";
    if (value) {
        buf_puts(b, value);
        return true;
    }
    for (enum group_key k = 0; k < KEY_COUNT; k++)
        if (strcmp(key_name(k), key) == 0) {
            key_text(p->r, k, b);
            return true;
        }
    return false;
}

/* "16K..48K": from 16K on, below 48K; each end may be missing. */
static bool range_holds(double x, const char *want, const char *dots)
{
    char low[32];
    snprintf(low, sizeof low, "%.*s", (int)(dots - want), want);
    return !(x < size_value(low)) && !(x >= size_value(dots + 2));
}

bool value_fits(const char *key, const char *have, const char *want)
{
    double a = size_value(have), b = size_value(want);
    bool length = strcmp(key, "n") == 0 || strcmp(key, "n_q") == 0;
    const char *dots = length ? strstr(want, "..") : NULL, *bar = strchr(want, '|');
    char first[256];
    snprintf(first, sizeof first, "%.*s", (int)strcspn(want, "|"), want);
    if (bar)
        return value_fits(key, have, first) || value_fits(key, have, bar + 1);
    if (dots && isfinite(a))
        return range_holds(a, want, dots);
    if (isfinite(a) && isfinite(b))
        return fabs(a - b) <= (length ? 0.02 * b : 1e-9 * fabs(b));
    return fnmatch(want, have, 0) == 0;
}

bool evidence_fits(const struct evidence *e, const struct proof *p, const json_t *where)
{
    const struct recipe *r = &e->plan->recipes[e->recipe];
    const char *key;
    json_t *v;
    bool fits = true;
    json_object_foreach((json_t *)where, key, v)
    {
        const char *param = params_value(p->r->params, key);
        struct buf have = {0};
        char want[256];
        if (strcmp(key, "case") == 0) {
            const json_t *c = json_object_get(r->cases, json_string_value(v));
            fits = fits && c && evidence_fits(e, p, c);
            continue;
        }
        if (!evidence_key(e, p, key, &have) && param)
            buf_put(&have, param, params_value_len(param));
        fits = fits && json_text(where, key, want, sizeof want) &&
               value_fits(key, buf_str(&have), want);
        buf_free(&have);
    }
    return fits;
}

/* ---- pairs of calls -------------------------------------------------------------------------- */

/* pairs {"cases": [A, B], "metric": M, "above": x}: is |M of A - M of B| of this call above x? */
static bool pair_takes(const struct evidence *e, const json_t *pairs, const struct proof *p)
{
    static const enum group_key call[] = {KEY_LAYER,  KEY_HEAD,  KEY_STEP,
                                          KEY_BRANCH, KEY_TRACE, KEY_PERMUTE};
    const json_t *cases = json_object_get(pairs, "cases");
    const char *metric = json_str_or(pairs, "metric", "");
    double x[2] = {NAN, NAN};
    for (int64_t i = 0; i < e->n; i++)
        for (size_t k = 0; k < 2; k++) {
            const json_t *c = json_object_get(e->plan->recipes[e->recipe].cases,
                                              json_string_value(json_array_get(cases, k)));
            if (same_keys(e->v[i].r, p->r, call, 6) && c && evidence_fits(e, &e->v[i], c))
                x[k] = record_get(e->v[i].r, metric);
        }
    return fabs(x[0] - x[1]) > json_number_value(json_object_get(pairs, "above"));
}

static bool takes(const struct evidence *e, const struct choice *c, const struct proof *p)
{
    const struct step *s = &e->plan->s[p->step];
    return p->r->status == RECORD_OK && (c->model < 0 || s->model == c->model) &&
           (c->job < 0 || s->job == c->job) && (!c->where || evidence_fits(e, p, c->where)) &&
           (!c->pairs || pair_takes(e, c->pairs, p));
}

const struct proof *next_proof(const struct evidence *e, const struct choice *c,
                               const struct proof *p)
{
    for (p = p ? p + 1 : e->v; p && p < e->v + e->n; p++)
        if (takes(e, c, p))
            return p;
    return NULL;
}

/* ---- units ----------------------------------------------------------------------------------- */

bool metric_of_keys(const char *metric)
{
    struct expr e = expr_parse(metric);
    bool all = e.n > 0;
    for (int i = 0; i < e.n; i++) {
        const struct metric_def *d = metric_def_find(e.name[i]);
        all = all && d && d->per == PER_KV_HEAD;
    }
    return all;
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

double unit_mean(const struct unit *u)
{
    return u ? u->sum / (double)u->calls : NAN;
}

bool units_equal(const struct unit_values *a, const struct unit_values *b, bool values)
{
    bool equal = a->n == b->n;
    for (int64_t i = 0; equal && i < a->n; i++)
        equal = by_place(&a->u[i], &b->u[i]) == 0 &&
                (!values || (a->u[i].sum == b->u[i].sum && a->u[i].calls == b->u[i].calls));
    return equal;
}

void unit_values_free(struct unit_values *v)
{
    free(v->u);
    memset(v, 0, sizeof *v);
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

/* The dataset or the kind of generated prompt that a record is of: the text of its task up to the
 * first option, of a file up to its name's end. */
static uint64_t task_of(const struct record *r)
{
    const char *task = r->task ? r->task : "";
    size_t n = strcspn(task, ":");
    if (strncmp(task, "file:", 5) == 0)
        n += 1 + strcspn(task + n + 1, ":");
    return hash_bytes(task, n).lo;
}

/* Where a record belongs: (layer, head), (layer, -1) or (-1, number of the prompt). */
static struct unit unit_of_record(const struct record *r, bool keys)
{
    return (struct unit){.layer = r->scope == RECORD_OF_MODEL ? -1 : r->layer,
                         .head = r->scope == RECORD_OF_MODEL  ? number_of_prompt(r)
                                 : r->scope == RECORD_OF_CALL ? -1
                                 : keys                       ? r->kv_head
                                                              : r->head,
                         .task = task_of(r)};
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
    struct expr number = expr_parse(metric);
    bool keys = metric_of_keys(metric);
    int64_t cap = 0;
    *out = (struct unit_values){.of = of[RECORD_OF_HEAD]};
    for (const struct proof *p = NULL; (p = next_proof(e, c, p));) {
        const struct record *r = p->r;
        double x;
        if (!expr_value(&number, r, &x) || !isfinite(x))
            continue;
        struct unit own = unit_of_record(r, keys), *u = unit_at(out, own.layer, own.head);
        if (!u) {
            PASS_ON(mem_grow(&out->u, &cap, out->n + 1, sizeof *out->u, "units", err));
            u = &out->u[out->n++];
            *u = own;
        }
        out->of = of[r->scope];
        u->sum += x;
        u->task = own.task;
        u->calls++;
        out->calls++;
    }
    if (out->n)
        qsort(out->u, (size_t)out->n, sizeof *out->u, by_place);
    return 0;
}

/* ---- intervals ------------------------------------------------------------------------------- */

#define RESAMPLES 10000

/* See STAT_AT_EQUAL. */
static double above_at_equal(const double *m, int n)
{
    struct curve_point p[CLAIM_MEMBERS];
    int points = n / 2 - 1;
    for (int i = 0; i < points; i++)
        p[i] = (struct curve_point){m[2 * i + 3], m[2 * i + 2]};
    return curve_at(p, points, m[1]) - m[0];
}

static int statistic(const double *m, int n, enum claim_stat stat, double *out, struct err *err)
{
    double most = m[0], least = m[0], place[CLAIM_MEMBERS];
    int rc = 0;
    *out = m[0];
    if (stat == STAT_DIFFERENCE)
        *out = n == 4 ? (m[0] - m[1]) - (m[2] - m[3]) : m[0] - m[1];
    if (stat == STAT_RATIO)
        *out = n == 2 ? m[0] / m[1] : pow(m[0] / m[n - 1], 1.0 / (n - 1));
    for (int g = 0; g < n; g++) {
        most = fmax(most, m[g]);
        least = fmin(least, m[g]);
        place[g] = g;
    }
    if (stat == STAT_SPREAD)
        *out = most - least;
    if (stat == STAT_AT_EQUAL)
        *out = above_at_equal(m, n);
    if (stat == STAT_RANK) {
        rc = spearman(m, place, n, out, err);
        *out = isfinite(*out) ? *out : 0; /* all are equal */
    }
    return rc;
}

/* The upper end of a percentile interval of this level; mirrored it is the lower one. */
static int upper_end(double level)
{
    return (int)ceil((1 + level) / 2 * (RESAMPLES - 1));
}

/* Resamples without a number lie beyond either end. */
static double end_at(const double *sorted, int64_t n, int64_t at)
{
    return at >= 0 && at < n ? sorted[at] : NAN;
}

double claim_mean(const struct claim_sample *s, int g)
{
    double sum = 0, weight = 0;
    for (int64_t i = 0; i < s->n[g]; i++) {
        double w = s->w[g] ? s->w[g][i] : 1;
        sum += w * s->x[g][i];
        weight += w;
    }
    return weight > 0 ? sum / weight : NAN;
}

/* Means of resample k; paired members are drawn together. */
static void resample(const struct claim_sample *s, int64_t k, double *m)
{
    uint64_t draw = 0;
    for (int g = 0; g < s->members; g++) {
        double weight = 0;
        draw = s->paired ? 0 : draw;
        m[g] = 0;
        for (int64_t i = 0; i < s->n[g]; i++) {
            uint64_t unit = rng_below(0, (uint64_t)k, draw++, (uint64_t)s->n[g]);
            double w = s->w[g] ? s->w[g][unit] : 1;
            m[g] += w * s->x[g][unit];
            weight += w;
        }
        m[g] /= weight;
    }
}

int claim_estimate(const struct claim_sample *s, enum claim_stat stat, int tests,
                   struct claim_estimate *out, struct err *err)
{
    double m[CLAIM_MEMBERS] = {0};
    OWN(free_at) double *drawn = NULL;
    int64_t n = 0; /* resamples with a number */
    *out = (struct claim_estimate){NAN, NAN, NAN, NAN, 0};
    for (int g = 0; g < s->members; g++) {
        m[g] = claim_mean(s, g);
        if (s->n[g] < 1)
            return 0;
        out->n = s->paired ? s->n[g] : out->n + s->n[g];
    }
    PASS_ON(statistic(m, s->members, stat, &out->value, err));
    out->lo = out->hi = out->wide_hi = out->value;
    if (out->n == (s->paired ? 1 : s->members)) /* every resample is the sample */
        return 0;
    PASS_ON(mem_alloc(&drawn, RESAMPLES, sizeof *drawn, "resamples", err));
    for (int64_t k = 0; k < RESAMPLES; k++) {
        resample(s, k, m);
        PASS_ON(statistic(m, s->members, stat, &drawn[n], err));
        n += !isnan(drawn[n]);
    }
    sort_f64(drawn, n);
    out->lo = end_at(drawn, n, n - 1 - upper_end(0.95));
    out->hi = end_at(drawn, n, upper_end(0.95));
    out->wide_hi = end_at(drawn, n, upper_end(1 - 0.05 / tests));
    return 0;
}

/* ---- statistics of a cell -------------------------------------------------------------------- */

/* The expression over sums of its metrics' unit means: over all layers and heads of the model. */
static int sum_over_layers(const struct evidence *e, const struct choice *c, const char *metric,
                           struct sample_stats *out, struct err *err)
{
    struct expr number = expr_parse(metric);
    double sum[EXPR_TERMS];
    for (int k = 0; k < number.n; k++) {
        struct unit_values v;
        int rc = evidence_units(e, c, number.name[k], &v, err);
        sum[k] = v.n ? 0 : NAN;
        for (int64_t i = 0; i < v.n; i++)
            sum[k] += unit_mean(&v.u[i]);
        out->units = v.n > out->units ? v.n : out->units;
        out->calls = v.calls > out->calls ? v.calls : out->calls;
        out->of = v.of;
        unit_values_free(&v);
        if (rc)
            return rc;
    }
    out->value = number.n ? expr_of(&number, sum) : NAN;
    out->units = isfinite(out->value) ? out->units : 0;
    return 0;
}

static double largest(const struct unit_values *v)
{
    double most = -INFINITY;
    for (int64_t i = 0; i < v->n; i++)
        most = fmax(most, unit_mean(&v->u[i]));
    return most;
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
    for (int64_t i = 0; i < v->n; i++) {
        double mean = unit_mean(&v->u[i]);
        w[i] = by_calls ? (double)v->u[i].calls : 1;
        x[i] = mean * w[i];
        total += x[i];
        weight += w[i];
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
    OWN(unit_values_free) struct unit_values v = {0};
    bool tasks = strstr(stat, "-over-tasks") != NULL;
    *out = (struct sample_stats){.value = NAN, .sd = NAN, .lo = NAN, .hi = NAN};
    if (strcmp(stat, "sum-over-layers") == 0)
        return sum_over_layers(e, c, metric, out, err);
    PASS_ON(evidence_units(e, c, metric, &v, err));
    if (v.n == 0)
        return 0;
    if (tasks)
        weigh_tasks(&v, stat[0] == 's');
    if (strcmp(stat, "largest") == 0)
        out->value = largest(&v);
    else
        PASS_ON(spread(&v, strcmp(stat, "calls") == 0, out, err));
    if (tasks)
        out->sd = NAN;
    out->units = v.n;
    out->calls = v.calls;
    out->of = v.of;
    return 0;
}
