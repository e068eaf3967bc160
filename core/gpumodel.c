/*
 * gpumodel.c - see gpumodel.h.
 */
#include "core/gpumodel.h"

#include "core/environment.h"
#include "core/intmath.h"
#include "core/mem.h"
#include "core/text.h"

#include <dirent.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_MOST ((size_t)1 << 20)

/* ---- GPUs ----------------------------------------------------------------------------------- */

static const struct number {
    const char *key;
    size_t at;
    bool needed;
} numbers[] = {
    {"architecture", offsetof(struct gpu_model, sm), true},
    {"multiprocessors", offsetof(struct gpu_model, sms), true},
    {"peak_bf16", offsetof(struct gpu_model, peak), true},
    {"tensor_bf16", offsetof(struct gpu_model, tensor), true},
    {"exp2", offsetof(struct gpu_model, exp2), true},
    {"fp32", offsetof(struct gpu_model, fp32), true},
    {"clock_rated", offsetof(struct gpu_model, rated), true},
    {"clock_boost", offsetof(struct gpu_model, boost), true},
    {"memory", offsetof(struct gpu_model, memory), true},
    {"copy", offsetof(struct gpu_model, copy), false},
    {"l2", offsetof(struct gpu_model, l2), false},
    {"sustained_clock", offsetof(struct gpu_model, sustained.f0), false},
    {"sustained_power", offsetof(struct gpu_model, sustained.power), false},
    {"burst_clock", offsetof(struct gpu_model, burst.f0), false},
    {"burst_power", offsetof(struct gpu_model, burst.power), false},
};

static int read_number(const json_t *o, const struct number *n, const char *where,
                       struct gpu_model *g, struct err *err)
{
    const json_t *v = json_object_get(o, n->key);
    double *to = (double *)((char *)g + n->at);
    const char *source = "", *unit = "";
    int rc = 0;
    if (!v && !n->needed)
        return 0;
    TRY(jget_num(v, "value", where, to, err));
    TRY(jget_str(v, "unit", where, &unit, err));
    TRY(jget_str(v, "source", where, &source, err));
    if (!(*to > 0) || !source[0] || !unit[0])
        FAIL(err, ERR_INPUT, "%s: it wants a value above 0, a unit and a source", where);
out:
    return rc ? err_prefix(err, "%s", n->key) : 0;
}

static int read_gpu(const char *path, struct gpu_model *g, struct err *err)
{
    json_t *o = NULL;
    const char *name;
    int rc = 0;
    *g = (struct gpu_model){.exp_speed = 1, .tensor_speed = 1};
    TRY(json_read_file(path, FILE_MOST, &o, err));
    TRY(jget_str(o, "name", path, &name, err));
    snprintf(g->name, sizeof g->name, "%s", name);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        TRY(read_number(o, numbers + i, path, g, err));
    g->copy = g->copy > 0 ? g->copy : g->memory;
out:
    json_decref(o);
    return rc;
}

/* Names of the GPUs of datasets/gpus, sorted. */
static int known_gpus(struct buf *dir, struct str_list *out, struct err *err)
{
    struct dirent **files = NULL;
    int rc = datadir_find("gpus", dir, err);
    int n = rc ? 0 : scandir(buf_str(dir), &files, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        char *dot = strrchr(files[i]->d_name, '.');
        if (dot && strcmp(dot, ".json") == 0) {
            *dot = '\0';
            str_list_add(out, files[i]->d_name);
        }
        free(files[i]);
    }
    free(files);
    return rc;
}

int gpu_model_load(const char *name, struct gpu_model *g, struct err *err)
{
    struct buf path = {0};
    struct str_list known = {0};
    struct names all = {0};
    bool found = false;
    int rc = 0;
    if (strchr(name, '/') || strstr(name, ".json"))
        return read_gpu(name, g, err);
    TRY(known_gpus(&path, &known, err));
    for (int64_t i = 0; i < known.n; i++) {
        found |= strcmp(known.items[i], name) == 0;
        names_add(&all, known.items[i]);
    }
    if (!found) {
        names_unknown(&all, "GPU", name, err);
        rc = err->code;
        goto out;
    }
    buf_printf(&path, "/%s.json", name);
    TRY(buf_check(&path, "path", err));
    TRY(read_gpu(buf_str(&path), g, err));
out:
    str_list_free(&known);
    buf_free(&path);
    return rc;
}

int gpu_models_list(struct jw *w, struct err *err)
{
    struct buf dir = {0};
    struct str_list known = {0};
    int rc = 0;
    TRY(known_gpus(&dir, &known, err));
    for (int64_t i = 0; i < known.n; i++) {
        struct gpu_model g;
        char text[160], clock[64] = "clock states not measured";
        TRY(gpu_model_load(known.items[i], &g, err));
        if (g.sustained.f0 > 0)
            snprintf(clock, sizeof clock, "sustained %.2f, burst %.2f GHz", g.sustained.f0,
                     g.burst.f0);
        snprintf(text, sizeof text,
                 "sm_%.0f, %.0f multiprocessors, %.0f TFLOP/s at %.2f GHz, %.0f GB/s; %s", g.sm,
                 g.sms, g.peak, g.rated, g.memory, clock);
        jw_obj(w);
        jw_kstr(w, "name", known.items[i]);
        jw_kstr(w, "summary", text);
        jw_kstr(w, "for", "analyze --table model --gpu");
        jw_obj_end(w);
    }
out:
    str_list_free(&known);
    buf_free(&dir);
    return rc;
}

/* One change: its key, of n characters, and value. */
static int change(struct gpu_model *g, const char *key, size_t n, const char *value,
                  struct err *err)
{
    const struct {
        const char *name;
        double *number;
        bool *is;
        bool factor;
    } keys[] = {{"select", NULL, &g->no_select, false}, {"balance", NULL, &g->balanced, false},
                {"half", NULL, &g->even, false},        {"sms", &g->sms, NULL, false},
                {"clock", NULL, NULL, false},           {"copy", &g->copy, NULL, false},
                {"exp", &g->exp_speed, NULL, true},     {"tensor", &g->tensor_speed, NULL, true}};
    char *end;
    double x = strtod(value, &end);
    bool factor = *end == 'x';
    end += factor;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (strlen(keys[i].name) != n || strncmp(keys[i].name, key, n) != 0)
            continue;
        bool flag = keys[i].is && x == (i == 0 ? 0 : 1);
        if (end == value || (*end && *end != ',') || factor != keys[i].factor ||
            (keys[i].is ? !flag : !(x > 0 && isfinite(x))))
            break;
        if (keys[i].is)
            *keys[i].is = true;
        else if (keys[i].number)
            *keys[i].number = x;
        else
            g->rated = g->boost = x, g->sustained.f0 = g->burst.f0 = 0;
        return 0;
    }
    return err_set(err, ERR_USAGE,
                   "--what-if %.*s=%s: known are select=0, balance=1, half=1, sms=N, clock=GHZ, "
                   "copy=GB/S, exp=2x and tensor=2x; the model has no L2, and another tile needs "
                   "another replay",
                   (int)n, key, value);
}

int gpu_model_change(struct gpu_model *g, const char *text, struct err *err)
{
    int rc = 0;
    while (text && *text && !rc) {
        size_t n = strcspn(text, "=,");
        rc = change(g, text, n, text[n] == '=' ? text + n + 1 : "", err);
        text = strchr(text, ',');
        text = text ? text + 1 : NULL;
    }
    return rc;
}

/* ---- kernels -------------------------------------------------------------------------------- */

static int read_kernel(const json_t *o, const char *where, struct kernel_model *k, struct err *err)
{
    const struct {
        const char *key;
        double *to;
    } all[] = {{"d", &k->d},       {"sm", &k->first_sm},  {"sm_last", &k->last_sm},
               {"bm", &k->bm},     {"bn", &k->bn},        {"half", &k->half},
               {"item", &k->item}, {"masked", &k->masked}};
    const char *name, *lists, *source;
    int rc = 0;
    TRY(jget_str(o, "name", where, &name, err));
    TRY(jget_str(o, "lists", where, &lists, err));
    TRY(jget_str(o, "source", where, &source, err));
    snprintf(k->name, sizeof k->name, "%s", name);
    snprintf(k->lists, sizeof k->lists, "%s", lists);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        TRY(jget_num(o, all[i].key, where, all[i].to, err));
    TRY(jget_num_opt(o, "s", where, &k->s, err));
    if (k->s > 0)
        return 0;
    TRY(jget_num(o, "hide", where, &k->hide, err));
    TRY(jget_num(o, "instructions", where, &k->instructions, err));
out:
    return rc;
}

static int read_select(const json_t *o, const char *where, struct select_model *s, struct err *err)
{
    const json_t *us = json_object_get(o, "us");
    const char *method;
    int rc = 0;
    TRY(jget_str(o, "method", where, &method, err));
    snprintf(s->method, sizeof s->method, "%s", method);
    s->fixed = json_number_value(json_array_get(us, 0));
    s->linear = json_number_value(json_array_get(us, 1));
    s->square = json_number_value(json_array_get(us, 2));
out:
    return rc;
}

int kernel_models_load(struct kernel_models *m, struct err *err)
{
    struct buf path = {0};
    json_t *o = NULL;
    int rc = 0;
    *m = (struct kernel_models){.n = 0};
    TRY(datadir_find("kernels.json", &path, err));
    const char *where = buf_str(&path);
    TRY(json_read_file(where, FILE_MOST, &o, err));
    const json_t *shared = json_object_get(o, "shared"), *plan = json_object_get(o, "plan_us");
    const json_t *k = json_object_get(o, "kernels"), *s = json_object_get(o, "select");
    TRY(jget_num(o, "version", where, &m->version, err));
    TRY(jget_num(shared, "launch_us", where, &m->launch_us, err));
    TRY(jget_num(shared, "combine_us", where, &m->combine_us, err));
    TRY(jget_num(shared, "cut_stages", where, &m->cut_stages, err));
    TRY(jget_num(plan, "lists", where, m->plan_us, err));
    TRY(jget_num(plan, "tiles", where, m->plan_us + 1, err));
    TRY(jget_num(plan, "gather", where, m->plan_us + 2, err));
    TRY(mem_zalloc(&m->k, (int64_t)json_array_size(k), sizeof *m->k, "kernels", err));
    for (; m->n < (int64_t)json_array_size(k); m->n++)
        TRY(read_kernel(json_array_get(k, (size_t)m->n), where, m->k + m->n, err));
    TRY(mem_zalloc(&m->select, (int64_t)json_array_size(s), sizeof *m->select, "kernels", err));
    for (; m->n_select < (int64_t)json_array_size(s); m->n_select++)
        TRY(read_select(json_array_get(s, (size_t)m->n_select), where, m->select + m->n_select,
                        err));
out:
    json_decref(o);
    buf_free(&path);
    return rc;
}

void kernel_models_free(struct kernel_models *m)
{
    free(m->k);
    free(m->select);
    *m = (struct kernel_models){.n = 0};
}

const struct kernel_model *kernel_model_find(const struct kernel_models *m,
                                             const struct gpu_model *g, int d, const char *lists)
{
    for (int64_t i = 0; i < m->n; i++) {
        const struct kernel_model *k = m->k + i;
        if (k->d == d && k->first_sm <= g->sm && g->sm <= k->last_sm &&
            (strcmp(k->lists, lists) == 0 || strcmp(k->lists, "any") == 0))
            return k;
    }
    return NULL;
}

/* ---- a launch ------------------------------------------------------------------------------- */

/* A measured stage is bound by a unit that explains it within this share. */
#define EXPLAINED 0.05

/* Cycles of a stage of bn keys, of them those of the tensor cores, and what binds. */
static int stage_of(const struct gpu_model *g, const struct kernel_model *k, double *tensor,
                    double *stage, enum gpu_bound *bound, struct err *err)
{
    double e = k->bm * k->bn, instructions = k->s > 0 ? 3.5 : k->instructions + k->d / k->bn;
    double t = 4 * e * k->d / g->tensor, x = e / g->exp2, soft = x + e * instructions / g->fp32;
    double fast = t / g->tensor_speed, other = soft - x + x / g->exp_speed;
    *tensor = fast;
    if (k->s == 0) {
        *bound = fast > other ? BOUND_TENSOR : BOUND_SOFTMAX;
        *stage = MAX(fast, other) + (1 - k->hide) * MIN(fast, other);
        return 0;
    }
    bool by_tensor = k->s < (1 + EXPLAINED) * t, by_soft = k->s < (1 + EXPLAINED) * soft;
    *bound = by_tensor ? BOUND_TENSOR : by_soft ? BOUND_SOFTMAX : BOUND_CHAIN;
    *stage = k->s;
    if (*bound == BOUND_CHAIN && (g->tensor_speed != 1 || g->exp_speed != 1))
        return err_set(err, ERR_USAGE,
                       "--what-if: a stage of %s waits for chains of instructions, so what a "
                       "faster unit would bring is not known",
                       k->name);
    if (by_tensor)
        *stage = MAX(k->s / g->tensor_speed, MIN(k->s, other));
    else if (by_soft)
        *stage = MAX(k->s - soft + other, fast);
    return 0;
}

/* GHz at a share u of cycles in which the tensor cores work: their power and that of all else,
 * which grow with the cube of the clock, have a limit. */
static double clock_at(const struct gpu_model *g, struct clock_request r, double u)
{
    const struct gpu_clock *c = r.burst ? &g->burst : &g->sustained;
    if (r.ghz > 0)
        return r.ghz;
    if (!(c->f0 > 0))
        return r.burst ? g->boost : g->rated;
    double f = c->f0 * cbrt((1 + 0.97 * c->power) / (1 + c->power * u));
    return MIN(f, g->boost);
}

int gpu_model_launch(const struct kernel_models *m, const struct gpu_model *g,
                     const struct kernel_model *k, const struct work_counts *w, double keys,
                     double bytes, struct clock_request clock, struct gpu_launch *out,
                     struct err *err)
{
    double tensor, s, stages = (double)(w->stages + w->half), launch_us = m->launch_us;
    double rows = (double)w->rows, scale = keys / k->bn, half = g->even ? 0.5 : k->half / 2;
    enum gpu_bound bound;
    int rc = stage_of(g, k, &tensor, &s, &bound, err);
    if (rc)
        return rc;
    double work = s * scale * ((double)w->stages + half * (double)w->half);
    double item = k->item * s + (rows > 0 ? k->masked * s * (double)w->masked / rows : 0);
    double mean = stages > 0 ? work / stages : 0; /* of a stage */
    double longest = rows > 0 ? (double)w->longest * mean + item : 0;
    double waves = ceil(rows / g->sms) * ((double)w->shortest * mean + item);
    double b = (work + rows * item) / g->sms, e = MAX(b, MAX(longest, waves));
    bound = e == b ? bound : longest >= waves ? BOUND_ROW : BOUND_WAVES;
    if (e > b + m->cut_stages * s) {
        e = b + m->cut_stages * s;
        launch_us += m->combine_us;
    }
    e = g->balanced ? b : e;
    double u =
        e > 0 ? tensor * scale * ((double)w->stages + (double)w->half / 2) / (g->sms * e) : 0;
    *out = (struct gpu_launch){b, e, clock_at(g, clock, u), 0, bound};
    out->ns = e / out->ghz + 1e3 * launch_us;
    if (bytes / g->copy > out->ns) {
        out->ns = bytes / g->copy;
        out->bound = BOUND_MEMORY;
    }
    return 0;
}

void work_of_dense(int64_t nq, int64_t nk, bool causal, int64_t bm, int64_t bn, int64_t heads,
                   struct work_counts *w)
{
    *w = (struct work_counts){0};
    for (int64_t row = 0; row < nq; row += bm) {
        int64_t last = MIN(row + bm, nq) + nk - nq, first = MAX(row + 1 + nk - nq, 0);
        int64_t seen = causal ? MAX(MIN(last, nk), 0) : nk, all = causal ? MIN(first, nk) : nk;
        int64_t stages = ceil_div(seen, bn);
        if (!stages)
            continue;
        w->rows += heads;
        w->stages += heads * stages;
        w->masked += heads * (stages - all / bn);
        w->longest = MAX(w->longest, stages);
        w->shortest = w->shortest ? MIN(w->shortest, stages) : stages;
    }
}
