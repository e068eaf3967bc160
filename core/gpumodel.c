/*
 * gpumodel.c - see gpumodel.h.
 */
#include "core/gpumodel.h"

#include "core/environment.h"
#include "core/intmath.h"
#include "core/opt.h"
#include "core/text.h"

#include <fnmatch.h>
#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_MOST ((size_t)1 << 20)

/* ---- work ----------------------------------------------------------------------------------- */

const char *const work_names[WORK_COUNTS] = {"rows", "stages",  "masked",
                                             "half", "longest", "shortest"};

void work_counts_join(struct work_counts *a, const struct work_counts *more)
{
    a->rows += more->rows;
    a->stages += more->stages;
    a->half += more->half;
    a->masked += more->masked;
    a->longest = MAX(a->longest, more->longest);
    if (more->shortest && (!a->shortest || more->shortest < a->shortest))
        a->shortest = more->shortest;
}

void work_of_dense(int64_t nq, int64_t nk, bool causal, int64_t bm, int64_t bn, int64_t heads,
                   struct work_counts *w)
{
    *w = (struct work_counts){0};
    for (int64_t row = 0; row < nq; row += bm) {
        int64_t last = MIN(row + bm, nq) + nk - nq, first = MAX(row + 1 + nk - nq, 0);
        int64_t seen = causal ? MAX(MIN(last, nk), 0) : nk, all = causal ? MIN(first, nk) : nk;
        int64_t n = ceil_div(seen, bn);
        struct work_counts one = {heads, heads * n, heads * (n - all / bn), 0, n, n};
        if (n)
            work_counts_join(w, &one);
    }
}

/* ---- files ---------------------------------------------------------------------------------- */

#define COUNT(names) (int)(sizeof(names) / sizeof *(names))

/* In the order of the structs. */
static const char *const gpu_numbers[] = {
    "architecture",    "multiprocessors", "peak_bf16",   "tensor_bf16", "exp2",       "fp32",
    "clock_rated",     "clock_boost",     "memory",      "tensor_int8", "tensor_fp8", "copy",
    "sustained_clock", "sustained_power", "burst_clock", "burst_power"};
static const char *const kernel_numbers[] = {
    "d",    "sm", "sm_last", "bm",           "bn",    "masked",  "item",
    "half", "s",  "hide",    "instructions", "whole", "qk_int8", "pv_fp8"};
static const char *const shared_numbers[] = {"launch_us",   "combine_us", "cut_stages",
                                             "plan_lists",  "plan_bits",  "plan_gather",
                                             "select_copy", "select_rate"};
static const char *const select_numbers[] = {"fixed", "linear", "square"};

/* The numbers of an object, of which the first `needed` must be there. Each has a source, its own
 * ({"value", "unit", "source"}) or the object's. */
static int read_numbers(const char *path, const json_t *o, const char *const *names, int needed,
                        int n, double *out, struct err *err)
{
    for (int i = 0; i < n; i++) {
        const json_t *v = json_object_get(o, names[i]), *of = json_is_object(v) ? v : o;
        const char *source = json_string_value(json_object_get(of, "source"));
        const char *unit = of == o ? "1" : json_string_value(json_object_get(v, "unit"));
        const json_t *x = of == o ? v : json_object_get(v, "value");
        if (!v && i >= needed)
            continue;
        out[i] = json_number_value(x);
        if (!(source && *source && unit && *unit) || !json_is_number(x) || out[i] < 0 ||
            (of != o && out[i] == 0))
            return err_set(err, ERR_INPUT, "%s: %s: it wants a value above 0, a unit and a source",
                           path, names[i]);
    }
    return 0;
}

/* A list of entries, of which `needed` numbers must be there. */
static int read_entries(const char *path, const json_t *list, const char *const *names, int needed,
                        int numbers, struct kernel_model *out, int *n, struct err *err)
{
    const json_t *o;
    size_t i;
    int rc = 0;
    if (json_array_size(list) > MODEL_ENTRIES)
        FAIL(err, ERR_INPUT, "%s: more than %d kernels or methods", path, MODEL_ENTRIES);
    json_array_foreach(list, i, o)
    {
        struct kernel_model *k = out + (*n)++;
        const char *name;
        TRY(jget_str(o, "name", path, &name, err));
        snprintf(k->name, sizeof k->name, "%s", name);
        k->half = 1;
        TRY(read_numbers(path, o, names, needed, numbers, k->number, err));
    }
out:
    return rc;
}

static int read_models(struct gpu_model *g, struct err *err)
{
    struct buf path = {0};
    json_t *o = NULL;
    int rc = 0;
    TRY(datadir_find("kernels.json", &path, err));
    const char *file = buf_str(&path);
    TRY(json_read_file(file, FILE_MOST, &o, err));
    TRY(read_numbers(file, json_object_get(o, "shared"), shared_numbers, 8, 8, g->shared, err));
    TRY(read_entries(file, json_object_get(o, "kernels"), kernel_numbers, 7, COUNT(kernel_numbers),
                     g->k, &g->n_kernels, err));
    TRY(read_entries(file, json_object_get(o, "select"), select_numbers, 3, 3, g->select,
                     &g->n_select, err));
out:
    json_decref(o);
    buf_free(&path);
    return rc;
}

static int read_gpu(const char *path, struct gpu_model *g, struct err *err)
{
    json_t *o = NULL;
    const char *name;
    int rc = 0;
    *g = (struct gpu_model){.tune = 1, .choosing = 1, .exp = 1, .tensor = 1};
    TRY(json_read_file(path, FILE_MOST, &o, err));
    TRY(jget_str(o, "name", path, &name, err));
    snprintf(g->name, sizeof g->name, "%s", name);
    TRY(read_numbers(path, o, gpu_numbers, 9, COUNT(gpu_numbers), g->number, err));
    g->copy = g->copy > 0 ? g->copy : g->memory;
    TRY(read_models(g, err));
out:
    json_decref(o);
    return rc;
}

/* The files of datasets/gpus, sorted. Release with globfree. */
static int known_gpus(glob_t *files, struct err *err)
{
    struct buf pattern = {0};
    int rc = 0;
    TRY(datadir_find("gpus", &pattern, err));
    buf_puts(&pattern, "/*.json");
    TRY(buf_check(&pattern, "gpus", err));
    if (glob(buf_str(&pattern), 0, NULL, files))
        FAIL(err, ERR_INPUT, "%s: no file of a GPU", buf_str(&pattern));
out:
    buf_free(&pattern);
    return rc;
}

int gpu_model_load(const char *name, struct gpu_model *g, struct err *err)
{
    struct names known = {0};
    glob_t files = {0};
    int rc = 0;
    if (strchr(name, '/') || strstr(name, ".json"))
        return read_gpu(name, g, err);
    TRY(known_gpus(&files, err));
    for (size_t i = 0; i < files.gl_pathc; i++) {
        char *file = strrchr(files.gl_pathv[i], '/') + 1, *end = strrchr(file, '.');
        if (strncmp(file, name, (size_t)(end - file)) == 0 && !name[end - file]) {
            TRY(read_gpu(files.gl_pathv[i], g, err));
            goto out;
        }
        *end = '\0';
        names_add(&known, file);
    }
    TRY(names_unknown(&known, "GPU", name, err));
out:
    globfree(&files);
    return rc;
}

int gpu_models_list(struct jw *w, struct err *err)
{
    struct gpu_model g;
    glob_t files = {0};
    int rc = 0;
    TRY(known_gpus(&files, err));
    for (size_t i = 0; i < files.gl_pathc; i++) {
        char text[160];
        TRY(read_gpu(files.gl_pathv[i], &g, err));
        snprintf(text, sizeof text,
                 "for --gpu: sm_%.0f, %.0f multiprocessors, %.0f TFLOP/s at %.2f GHz, %.0f GB/s%s",
                 g.sm, g.sms, g.peak, g.rated, g.memory,
                 g.sustained.f0 > 0 ? "; clock measured" : "");
        jw_obj(w);
        jw_kstr(w, "name", g.name);
        jw_kstr(w, "summary", text);
        jw_kstr(w, "for", "analyze --table model --gpu");
        jw_obj_end(w);
    }
out:
    globfree(&files);
    return rc;
}

/* Cycles of the tensor cores for a stage; infinite without a unit for its types. */
static double products_of(const struct gpu_model *g, const struct kernel_model *k)
{
    double qk = k->int8_scores > 0 ? g->int8 : g->bf16, pv = k->fp8_mass > 0 ? g->fp8 : g->bf16;
    return 2 * k->bm * k->bn * k->d * (1 / qk + 1 / pv);
}

const struct kernel_model *kernel_model_find(const struct gpu_model *g, const char *name)
{
    for (const struct kernel_model *k = g->k; k < g->k + g->n_kernels; k++)
        if (k->first_sm <= g->sm && g->sm <= k->last_sm && isfinite(products_of(g, k)) &&
            fnmatch(k->name, name, 0) == 0)
            return k;
    return NULL;
}

/* ---- what is asked of a GPU ----------------------------------------------------------------- */

int gpu_model_clock(struct gpu_model *g, const char *text, struct err *err)
{
    g->in_burst = strcmp(text, "burst") == 0;
    g->by_dense = strcmp(text, "dense") == 0;
    if (g->in_burst || g->by_dense || strcmp(text, "sustained") == 0 ||
        (num_fills(text, &g->ghz) && g->ghz > 0 && isfinite(g->ghz)))
        return 0;
    return err_set(err, ERR_USAGE, "--clock %s: it is sustained, burst, dense or a number of GHz",
                   text);
}

static const struct opt changes[] = {
    OPT_AS("select", OPT_NUM, struct gpu_model, choosing, "1", .min = 0, .max = 1e6),
    OPT_BOOL(struct gpu_model, balance, "0", ""),
    OPT_AS("half", OPT_BOOL, struct gpu_model, even, "0"),
    OPT_NUM(struct gpu_model, sms, NULL, 1, 1e6, "", ""),
    OPT_NUM(struct gpu_model, copy, NULL, 1, 1e9, "GB/s", ""),
    OPT_NUM(struct gpu_model, exp, "1", 0.01, 100, "", ""),
    OPT_NUM(struct gpu_model, tensor, "1", 0.01, 100, "", ""),
    {0}};

int gpu_model_change(struct gpu_model *g, const char *text, struct err *err)
{
    char *copy = strdup(text), *left = NULL;
    int rc = 0;
    if (!copy)
        return err_set(err, ERR_NOMEM, "--what-if: out of memory");
    for (char *key = strtok_r(copy, ",", &left); key; key = strtok_r(NULL, ",", &left)) {
        char *value = strchr(key, '=');
        if (!value)
            FAIL(err, ERR_USAGE, "--what-if %s: it wants KEY=VALUE", key);
        *value++ = '\0';
        TRY(opt_set(changes, g, "--what-if", key, value, err));
    }
out:
    free(copy);
    return rc;
}

/* ---- a launch ------------------------------------------------------------------------------- */

const char *const gpu_bounds[BOUNDS] = {"tensor", "softmax", "chain", "row", "waves", "memory"};

/* Cycles of a stage of bn keys, and what binds: a unit explains a measured stage within 5 %. */
static double stage_cycles(const struct gpu_model *g, const struct kernel_model *k, double products,
                           enum gpu_bound *bound)
{
    double e = k->bm * k->bn, instructions = k->s > 0 ? 3.5 : k->instructions + k->d / k->bn;
    double x = e / g->exp2, soft = x + e * instructions / g->fp32;
    double fast = products / g->tensor, other = soft - x + x / g->exp;
    bool tensor = k->s > 0 ? k->s < 1.05 * products : fast > other;
    *bound = tensor ? BOUND_TENSOR : k->s > 0 && k->s >= 1.05 * soft ? BOUND_CHAIN : BOUND_SOFTMAX;
    if (!(k->s > 0))
        return MAX(fast, other) + (1 - k->hide) * MIN(fast, other);
    return tensor                    ? MAX(k->s / g->tensor, MIN(k->s, other))
           : *bound == BOUND_SOFTMAX ? MAX(k->s - soft + other, fast)
                                     : k->s;
}

/* GHz at a share u of cycles in which the tensor cores work: their power and that of all else,
 * which grow with the cube of the clock, have a limit. */
static double clock_at(const struct gpu_model *g, double u)
{
    const struct gpu_clock *c = g->in_burst ? &g->burst : &g->sustained;
    if (g->ghz > 0)
        return g->ghz;
    if (!(c->f0 > 0))
        return g->tune * (g->in_burst ? g->boost : g->rated);
    return MIN(g->boost, g->tune * c->f0 * cbrt((1 + 0.97 * c->power) / (1 + c->power * u)));
}

int gpu_model_launch(const struct gpu_model *g, const struct kernel_model *k,
                     const struct work_counts *w, double keys, double bytes, struct gpu_launch *out,
                     struct err *err)
{
    enum gpu_bound bound;
    double each = products_of(g, k), s = stage_cycles(g, k, each, &bound),
           stages = (double)(w->stages + w->half), us = g->launch_us;
    double rows = (double)w->rows, scale = keys / k->bn, half = g->even ? 0.5 : k->half / 2;
    if (bound == BOUND_CHAIN && (g->tensor != 1 || g->exp != 1))
        return err_set(err, ERR_USAGE,
                       "--what-if: a stage of %s waits for chains of instructions, so what a "
                       "faster unit would bring is not known",
                       k->name);
    double work = s * scale * ((double)w->stages + half * (double)w->half);
    double item = k->item * s + (rows > 0 ? k->masked * s * (double)w->masked / rows : 0);
    double mean = stages > 0 ? work / stages : 0; /* of a stage */
    double at_once = MAX(k->whole, 1);            /* each as much slower */
    double longest = rows > 0 ? at_once * ((double)w->longest * mean + item) : 0;
    double waves = ceil(rows / (g->sms * at_once)) * at_once * ((double)w->shortest * mean + item);
    double b = (work + rows * item) / g->sms, e = MAX(b, MAX(longest, waves));
    bound = e == b ? bound : longest >= waves ? BOUND_ROW : BOUND_WAVES;
    if (k->whole == 0 && e > b + g->cut_stages * s) {
        e = b + g->cut_stages * s;
        us += g->combine_us;
    }
    e = g->balance ? b : e;
    double products = each / g->tensor * scale * (stages - (double)w->half / 2);
    *out = (struct gpu_launch){b, e, clock_at(g, e > 0 ? products / (g->sms * e) : 0), 0, bound};
    out->ns = e / out->ghz + 1e3 * us;
    if (bytes / g->copy > out->ns) {
        out->ns = bytes / g->copy;
        out->bound = BOUND_MEMORY;
    }
    return 0;
}
