/*
 * gpumodel.c - see gpumodel.h.
 */
#include "core/gpumodel.h"

#include "core/environment.h"
#include "core/intmath.h"
#include "core/mem.h"
#include "core/opt.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

const char *const work_names[WORK_COUNTS] = {"rows", "stages",  "masked",
                                             "half", "longest", "shortest"};

void work_counts_join(struct work_counts *a, const struct work_counts *more)
{
    a->rows += more->rows;
    a->stages += more->stages;
    a->half += more->half;
    a->masked += more->masked;
    a->longest = MAX(a->longest, more->longest);
    if (more->shortest > 0 && (a->shortest == 0 || more->shortest < a->shortest))
        a->shortest = more->shortest;
}

struct work_counts work_of_dense(int64_t nq, int64_t nk, bool causal, int64_t bm, int64_t bn,
                                 int64_t heads)
{
    struct work_counts w = {0};
    for (int64_t row = 0; row < nq; row += bm) {
        int64_t last = MIN(row + bm, nq) + nk - nq, first = MAX(row + 1 + nk - nq, 0);
        int64_t seen = causal ? MAX(MIN(last, nk), 0) : nk, all = causal ? MIN(first, nk) : nk;
        int64_t n = ceil_div(seen, bn);
        if (n)
            work_counts_join(
                &w, &(struct work_counts){heads, heads * n, heads * (n - all / bn), 0, n, n});
    }
    return w;
}

/* ---- what is asked of a GPU ----------------------------------------------------------------- */

int gpu_model_clock(struct gpu_model *g, const char *text, struct err *err)
{
    bool burst = strcmp(text, "burst") == 0, dense = strcmp(text, "dense") == 0;
    double measured = burst ? g->burst_clock : g->sustained_clock, ghz = 0;
    bool number = num_fills(text, &ghz) && ghz > 0;
    if (!number && !burst && !dense && strcmp(text, "sustained") != 0)
        return err_set(err, ERR_USAGE,
                       "--clock %s: it is sustained, burst, dense or a number of GHz", text);
    g->by_dense = dense;
    g->instead = number || dense || measured > 0 ? NULL : burst ? "boost" : "rated";
    g->ghz = number ? ghz : measured > 0 ? measured : burst ? g->clock_boost : g->clock_rated;
    g->power = number ? 0 : burst ? g->burst_power : g->sustained_power;
    g->clock_boost = MAX(g->clock_boost, g->ghz);
    return 0;
}

static const struct opt changes[] = {
    OPT_AS("select", OPT_NUM, struct gpu_model, choosing, "1", .min = 0, .max = 1e6),
    OPT_BOOL(struct gpu_model, balance, "0", ""),
    OPT_AS("sms", OPT_NUM, struct gpu_model, multiprocessors, NULL, .min = 1, .max = 1e6),
    OPT_NUM(struct gpu_model, copy, NULL, 1, 1e9, "GB/s", ""),
    OPT_NUM(struct gpu_model, exp, "1", 0.01, 100, "", ""),
    OPT_NUM(struct gpu_model, tensor, "1", 0.01, 100, "", ""),
    {0}};

int gpu_model_change(struct gpu_model *g, const char *text, struct err *err)
{
    char key[64];
    for (size_t n; *text; text += n + (text[n] == ',')) {
        n = strcspn(text, ",");
        snprintf(key, sizeof key, "%.*s", (int)n, text);
        char *value = key + strcspn(key, "=");
        if (*value)
            *value++ = '\0';
        PASS_ON(opt_set(changes, g, "--what-if", key, value, err));
    }
    return 0;
}

/* ---- files ---------------------------------------------------------------------------------- */

#define FILE_MOST ((size_t)1 << 20)
#define TEXT_(...) #__VA_ARGS__
#define TEXT(...) TEXT_(__VA_ARGS__)

/* The numbers with these keys, "a, b; c" where c may be absent and then is 0. Each has a source,
 * its own ({"value", "unit", "source"}) or that of the object. */
static int read_numbers(const char *path, const json_t *o, const char *keys, double *out,
                        struct err *err)
{
    char key[32];
    bool needed = true;
    for (int n; sscanf(keys, "%31[a-z0-9_]%n", key, &n) == 1; out++) {
        const json_t *v = json_object_get(o, key), *of = json_is_object(v) ? v : o;
        const char *source = json_string_value(json_object_get(of, "source"));
        const char *unit = of == o ? "1" : json_string_value(json_object_get(v, "unit"));
        const json_t *x = of == o ? v : json_object_get(v, "value");
        *out = json_number_value(x);
        if ((v || needed) && (!(source && *source && unit && *unit) || !json_is_number(x) ||
                              *out < 0 || (of != o && *out == 0)))
            return err_set(err, ERR_INPUT, "%s: %s: it wants a value above 0, a unit and a source",
                           path, key);
        keys += n;
        needed &= *keys != ';';
        keys += strspn(keys, ",; ");
    }
    return 0;
}

static int read_entries(const char *path, const json_t *doc, bool select, struct gpu_model *g,
                        struct err *err)
{
    const char *name, *keys = select ? TEXT(SELECT_NEEDS) : TEXT(KERNEL_NEEDS) ";" TEXT(KERNEL_MAY);
    const json_t *o, *list = json_object_get(doc, select ? "select" : "kernels");
    size_t i;
    json_array_foreach(list, i, o)
    {
        struct kernel_model *k = g->k + g->n;
        if (g->n++ == MODEL_ENTRIES)
            return err_set(err, ERR_INPUT, "%s: more than %d kernels and methods", path,
                           MODEL_ENTRIES);
        PASS_ON(jget_str(o, "name", path, &name, err));
        snprintf(k->name, MODEL_NAME, "%s", name);
        PASS_ON(read_numbers(path, o, keys, select ? k->choice : k->number, err));
    }
    return 0;
}

int gpu_model_load(const char *name, struct gpu_model *g, struct err *err)
{
    OWN(buf_free) struct buf path = {0};
    char below[64];
    OWN(json_decrefp) json_t *gpu = NULL, *o = NULL;
    *g = (struct gpu_model){.tune = 1, .choosing = 1, .exp = 1, .tensor = 1};
    snprintf(below, sizeof below, "gpus/%s.json", name);
    if (strchr(name, '/') || strstr(name, ".json"))
        buf_puts(&path, name);
    else if (datadir_find(below, &path, NULL))
        return err_set(err, ERR_USAGE, "unknown GPU '%s' (lacuna list gpus names them)", name);
    PASS_ON(json_read_file(buf_str(&path), FILE_MOST, &gpu, err));
    PASS_ON(jget_str(gpu, "name", buf_str(&path), &name, err));
    snprintf(g->name, sizeof g->name, "%s", name);
    PASS_ON(read_numbers(buf_str(&path), gpu, TEXT(GPU_NEEDS) ";" TEXT(GPU_MAY), g->number, err));
    g->copy = g->copy > 0 ? g->copy : g->memory;
    buf_reset(&path);
    PASS_ON(datadir_find("kernels.json", &path, err));
    PASS_ON(json_read_file(buf_str(&path), FILE_MOST, &o, err));
    const json_t *shared = json_object_get(o, "shared");
    PASS_ON(read_numbers(buf_str(&path), shared, TEXT(LAUNCH_NEEDS), g->shared, err));
    PASS_ON(read_entries(buf_str(&path), o, false, g, err));
    PASS_ON(read_entries(buf_str(&path), o, true, g, err));
    return gpu_model_clock(g, "sustained", err);
}

/* ---- a launch ------------------------------------------------------------------------------- */

/* Cycles of the tensor cores for a stage; infinite without a unit for its types. */
static double products_of(const struct gpu_model *g, const struct kernel_model *k)
{
    double qk = k->qk_int8 > 0 ? g->tensor_int8 : g->tensor_bf16;
    double pv = k->pv_fp8 > 0 ? g->tensor_fp8 : g->tensor_bf16;
    return 2 * k->bm * k->bn * k->d * (1 / qk + 1 / pv);
}

const struct kernel_model *kernel_model_find(const struct gpu_model *g, const char *name)
{
    name += strncmp(name, "bf16-", 5) == 0 ? 5 : strncmp(name, "portable-", 9) == 0 ? 9 : 0;
    for (const struct kernel_model *k = g->k; k < g->k + g->n; k++)
        if (k->sm <= g->architecture && g->architecture <= k->sm_last &&
            isfinite(products_of(g, k)) && fnmatch(k->name, name, 0) == 0)
            return k;
    return NULL;
}

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

int gpu_model_launch(const struct gpu_model *g, const struct kernel_model *k,
                     const struct work_counts *w, double keys, double bytes, struct gpu_launch *out,
                     struct err *err)
{
    enum gpu_bound bound;
    double each = products_of(g, k), s = stage_cycles(g, k, each, &bound), us = g->launch_us;
    double scale = keys / k->bn, half = k->half > 0 ? k->half / 2 : 0.5;
    if (bound == BOUND_CHAIN && (g->tensor != 1 || g->exp != 1))
        return err_set(err, ERR_USAGE,
                       "--what-if: a stage of %s waits for chains of instructions, so what a "
                       "faster unit would bring is not known",
                       k->name);
    double work = s * scale * (w->stages + half * w->half), sms = g->multiprocessors;
    double item = w->rows > 0 ? k->item * s + k->masked * s * w->masked / w->rows : 0;
    double mean = work > 0 ? work / (w->stages + w->half) : 0; /* of a stage */
    double at_once = MAX(k->whole, 1);                         /* rows, each as much slower */
    double longest = at_once * (w->longest * mean + item);
    double waves = ceil(w->rows / (sms * at_once)) * at_once * (w->shortest * mean + item);
    double b = (work + w->rows * item) / sms, e = MAX(b, MAX(longest, waves));
    bound = e == b ? bound : longest >= waves ? BOUND_ROW : BOUND_WAVES;
    if (k->whole == 0 && e > b + g->cut_stages * s) {
        e = b + g->cut_stages * s;
        us += g->combine_us;
    }
    e = (g->balance ? b : e) + (w->rows > 0 ? g->start_cycles : 0);
    /* The power of the tensor cores, which work in a share u of the cycles, and that of all else
     * grow with the cube of the clock, and have a limit. */
    double u = e > 0 ? each / g->tensor * scale * (w->stages + w->half / 2) / (sms * e) : 0;
    double ghz = g->tune * g->ghz * cbrt((1 + 0.97 * g->power) / (1 + g->power * u));
    *out = (struct gpu_launch){b, e, MIN(g->clock_boost, ghz), 0, bound};
    out->ns = MAX(e / out->ghz + 1e3 * us, bytes / g->copy);
    if (bytes / g->copy == out->ns)
        out->bound = BOUND_MEMORY;
    return 0;
}
