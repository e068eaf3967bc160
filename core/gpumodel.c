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
#define GPU_MODELS 64

/* ---- work ----------------------------------------------------------------------------------- */

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
        struct work_counts one = {heads, heads * n, 0, heads * (n - all / bn), n, n};
        if (n)
            work_counts_join(w, &one);
    }
}

/* ---- files ---------------------------------------------------------------------------------- */

/* What json_unpack_ex says. */
static int refuse(const char *path, const json_error_t *why, struct err *err)
{
    return err_set(err, ERR_INPUT, "%s: %s", path, why->text);
}

/* Every number of a file stands as {"value", "unit", "source"}; *plain gets the values alone. */
static int read_sourced(const char *path, json_t *o, json_t *plain, struct err *err)
{
    const char *key, *unit, *source;
    json_t *v;
    double x;
    json_object_foreach(o, key, v)
    {
        if (json_is_string(v))
            continue;
        if (json_unpack(v, "{s:F, s:s, s:s}", "value", &x, "unit", &unit, "source", &source) ||
            !(x > 0) || !unit[0] || !source[0])
            return err_set(err, ERR_INPUT, "%s: %s: it wants a value above 0, a unit and a source",
                           path, key);
        if (json_object_set_new(plain, key, json_real(x)))
            return err_set(err, ERR_NOMEM, "%s: out of memory", path);
    }
    return 0;
}

static int read_gpu(const char *path, struct gpu_model *g, struct err *err)
{
    json_t *o = NULL, *plain = json_object();
    json_error_t why;
    const char *name;
    int rc = 0;
    *g = (struct gpu_model){.tune = 1, .select = 1, .exp = 1, .products = 1};
    TRY(json_read_file(path, FILE_MOST, &o, err));
    TRY(jget_str(o, "name", path, &name, err));
    snprintf(g->name, sizeof g->name, "%s", name);
    TRY(read_sourced(path, o, plain, err));
    if (json_unpack_ex(
            plain, &why, 0,
            "{s:F, s:F, s:F, s:F, s:F, s:F, s:F, s:F, s:F, s?F, s?F, s?F, s?F, s?F, s?F, s?F}",
            "architecture", &g->sm, "multiprocessors", &g->sms, "peak_bf16", &g->peak,
            "tensor_bf16", &g->rate[RATE_BF16], "exp2", &g->exp2, "fp32", &g->fp32, "clock_rated",
            &g->rated, "clock_boost", &g->boost, "memory", &g->memory, "tensor_int8",
            &g->rate[RATE_INT8], "tensor_fp8", &g->rate[RATE_FP8], "copy", &g->copy,
            "sustained_clock", &g->sustained.f0, "sustained_power", &g->sustained.power,
            "burst_clock", &g->burst.f0, "burst_power", &g->burst.power))
        TRY(refuse(path, &why, err));
    g->copy = g->copy > 0 ? g->copy : g->memory;
out:
    json_decref(o);
    json_decref(plain);
    return rc;
}

/* The GPUs of datasets/gpus, sorted by name. */
static int read_gpus(struct gpu_model all[GPU_MODELS], int *n, struct err *err)
{
    struct buf pattern = {0};
    glob_t files = {0};
    int rc = 0;
    TRY(datadir_find("gpus", &pattern, err));
    buf_puts(&pattern, "/*.json");
    TRY(buf_check(&pattern, "gpus", err));
    if (glob(buf_str(&pattern), 0, NULL, &files))
        FAIL(err, ERR_INPUT, "%s: no file of a GPU", buf_str(&pattern));
    for (*n = 0; *n < GPU_MODELS && (size_t)*n < files.gl_pathc; ++*n)
        TRY(read_gpu(files.gl_pathv[*n], all + *n, err));
out:
    globfree(&files);
    buf_free(&pattern);
    return rc;
}

int gpu_model_load(const char *name, struct gpu_model *g, struct err *err)
{
    struct gpu_model all[GPU_MODELS];
    struct names known = {0};
    int n;
    if (strchr(name, '/') || strstr(name, ".json"))
        return read_gpu(name, g, err);
    int rc = read_gpus(all, &n, err);
    for (int i = 0; i < n && !rc; i++) {
        names_add(&known, all[i].name);
        *g = all[i];
        if (strcmp(g->name, name) == 0)
            return 0;
    }
    return rc ? rc : names_unknown(&known, "GPU", name, err);
}

int gpu_models_list(struct jw *w, struct err *err)
{
    struct gpu_model all[GPU_MODELS];
    int n, rc = read_gpus(all, &n, err);
    for (const struct gpu_model *g = all; !rc && g < all + n; g++) {
        char text[160];
        snprintf(text, sizeof text,
                 "for --gpu: sm_%.0f, %.0f multiprocessors, %.0f TFLOP/s at %.2f GHz, %.0f GB/s%s",
                 g->sm, g->sms, g->peak, g->rated, g->memory,
                 g->sustained.f0 > 0 ? "; clock measured" : "");
        jw_obj(w);
        jw_kstr(w, "name", g->name);
        jw_kstr(w, "summary", text);
        jw_kstr(w, "for", "analyze --table model --gpu");
        jw_obj_end(w);
    }
    return rc;
}

static enum rate_of rate_named(const char *type)
{
    return strcmp(type, "int8") == 0 ? RATE_INT8 : strcmp(type, "fp8") == 0 ? RATE_FP8 : RATE_BF16;
}

static bool read_kernel(json_t *o, struct kernel_model *k, json_error_t *why)
{
    const char *name, *source, *qk = "bf16", *pv = "bf16";
    int whole = 0;
    *k = (struct kernel_model){.half = 1};
    if (json_unpack_ex(o, why, 0,
                       "{s:s, s:s, s:F, s:F, s:F, s:F, s:F, s:F, s:F, s?F, s?F, s?F, s?F, s?s, "
                       "s?s, s?b}",
                       "name", &name, "source", &source, "d", &k->d, "sm", &k->first_sm, "sm_last",
                       &k->last_sm, "bm", &k->bm, "bn", &k->bn, "masked", &k->masked, "item",
                       &k->item, "half", &k->half, "s", &k->s, "hide", &k->hide, "instructions",
                       &k->instructions, "qk", &qk, "pv", &pv, "whole", &whole))
        return false;
    snprintf(k->name, sizeof k->name, "%s", name);
    k->qk = rate_named(qk);
    k->pv = rate_named(pv);
    k->whole = whole;
    return true;
}

static bool read_select(json_t *o, struct select_model *s, json_error_t *why)
{
    const char *method, *source;
    if (json_unpack_ex(o, why, 0, "{s:s, s:s, s:F, s:F, s:F}", "method", &method, "source", &source,
                       "fixed", &s->fixed, "linear", &s->linear, "square", &s->square))
        return false;
    snprintf(s->method, sizeof s->method, "%s", method);
    return true;
}

int kernel_models_load(struct kernel_models *m, struct err *err)
{
    struct buf path = {0};
    json_t *o = NULL, *kernels, *select;
    json_error_t why;
    int rc = 0;
    *m = (struct kernel_models){.n = 0};
    TRY(datadir_find("kernels.json", &path, err));
    TRY(json_read_file(buf_str(&path), FILE_MOST, &o, err));
    if (json_unpack_ex(o, &why, 0, "{s:{s:F, s:F, s:F, s:F, s:F, s:F, s:F, s:F}, s:o, s:o}",
                       "shared", "launch_us", &m->launch_us, "combine_us", &m->combine_us,
                       "cut_stages", &m->cut_stages, "plan_lists", &m->plan_lists, "plan_bits",
                       &m->plan_bits, "plan_gather", &m->plan_gather, "select_copy",
                       &m->select_copy, "select_rate", &m->select_rate, "kernels", &kernels,
                       "select", &select))
        TRY(refuse(buf_str(&path), &why, err));
    m->n = (int)json_array_size(kernels);
    m->n_select = (int)json_array_size(select);
    if (MAX(m->n, m->n_select) > MODEL_ENTRIES)
        FAIL(err, ERR_INPUT, "%s: more than %d entries in a list", buf_str(&path), MODEL_ENTRIES);
    for (int i = 0; i < m->n; i++)
        if (!read_kernel(json_array_get(kernels, (size_t)i), m->k + i, &why))
            TRY(refuse(buf_str(&path), &why, err));
    for (int i = 0; i < m->n_select; i++)
        if (!read_select(json_array_get(select, (size_t)i), m->select + i, &why))
            TRY(refuse(buf_str(&path), &why, err));
out:
    json_decref(o);
    buf_free(&path);
    return rc;
}

const struct kernel_model *kernel_model_find(const struct kernel_models *m,
                                             const struct gpu_model *g, const char *name)
{
    for (const struct kernel_model *k = m->k; k < m->k + m->n; k++)
        if (k->first_sm <= g->sm && g->sm <= k->last_sm && g->rate[k->qk] > 0 &&
            g->rate[k->pv] > 0 && fnmatch(k->name, name, 0) == 0)
            return k;
    return NULL;
}

/* ---- what is asked of a GPU ----------------------------------------------------------------- */

int gpu_model_clock(struct gpu_model *g, const char *text, struct err *err)
{
    g->in_burst = strcmp(text, "burst") == 0;
    g->by_dense = strcmp(text, "dense") == 0;
    if (g->in_burst || g->by_dense || strcmp(text, "sustained") == 0)
        return 0;
    if (num_fills(text, &g->ghz) && g->ghz > 0 && isfinite(g->ghz))
        return 0;
    return err_set(err, ERR_USAGE, "--clock %s: it is sustained, burst, dense or a number of GHz",
                   text);
}

static const struct opt changes[] = {
    OPT_NUM(struct gpu_model, select, "1", 0, 1e6, "", "Factor on the time of choosing."),
    OPT_BOOL(struct gpu_model, balance, "0", "No multiprocessor waits for another."),
    OPT_BOOL(struct gpu_model, half, "0", "Half stages cost half."),
    OPT_NUM(struct gpu_model, sms, NULL, 1, 1e6, "", "Multiprocessors."),
    OPT_NUM(struct gpu_model, copy, NULL, 1, 1e9, "GB/s", "Rate of a copy."),
    OPT_NUM(struct gpu_model, exp, "1", 0.01, 100, "", "How many times as fast exponentials are."),
    OPT_AS("tensor", OPT_NUM, struct gpu_model, products, "1", .min = 0.01, .max = 100,
           .help = "How many times as fast the tensor cores are."),
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

/* A measured stage is bound by a unit that explains it within this share. */
#define EXPLAINED 0.05

/* A stage of bn keys: its cycles, those of the tensor cores among them, and what binds. */
struct stage {
    double cycles, tensor;
    enum gpu_bound bound;
};

static struct stage stage_of(const struct gpu_model *g, const struct kernel_model *k)
{
    double e = k->bm * k->bn, instructions = k->s > 0 ? 3.5 : k->instructions + k->d / k->bn;
    double t = 2 * e * k->d * (1 / g->rate[k->qk] + 1 / g->rate[k->pv]);
    double x = e / g->exp2, soft = x + e * instructions / g->fp32;
    double fast = t / g->products, other = soft - x + x / g->exp;
    if (!(k->s > 0))
        return (struct stage){MAX(fast, other) + (1 - k->hide) * MIN(fast, other), fast,
                              fast > other ? BOUND_TENSOR : BOUND_SOFTMAX};
    if (k->s < (1 + EXPLAINED) * t)
        return (struct stage){MAX(k->s / g->products, MIN(k->s, other)), fast, BOUND_TENSOR};
    if (k->s < (1 + EXPLAINED) * soft)
        return (struct stage){MAX(k->s - soft + other, fast), fast, BOUND_SOFTMAX};
    return (struct stage){k->s, fast, BOUND_CHAIN};
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

int gpu_model_launch(const struct kernel_models *m, const struct gpu_model *g,
                     const struct kernel_model *k, const struct work_counts *w, double keys,
                     double bytes, struct gpu_launch *out, struct err *err)
{
    struct stage stage = stage_of(g, k);
    double s = stage.cycles, stages = (double)(w->stages + w->half), launch_us = m->launch_us;
    double rows = (double)w->rows, scale = keys / k->bn, half = g->half ? 0.5 : k->half / 2;
    if (stage.bound == BOUND_CHAIN && (g->products != 1 || g->exp != 1))
        return err_set(err, ERR_USAGE,
                       "--what-if: a stage of %s waits for chains of instructions, so what a "
                       "faster unit would bring is not known",
                       k->name);
    double work = s * scale * ((double)w->stages + half * (double)w->half);
    double item = k->item * s + (rows > 0 ? k->masked * s * (double)w->masked / rows : 0);
    double mean = stages > 0 ? work / stages : 0; /* of a stage */
    double longest = rows > 0 ? (double)w->longest * mean + item : 0;
    double waves = ceil(rows / g->sms) * ((double)w->shortest * mean + item);
    double b = (work + rows * item) / g->sms, e = MAX(b, MAX(longest, waves));
    enum gpu_bound bound = e == b ? stage.bound : longest >= waves ? BOUND_ROW : BOUND_WAVES;
    if (!k->whole && e > b + m->cut_stages * s) {
        e = b + m->cut_stages * s;
        launch_us += m->combine_us;
    }
    e = g->balance ? b : e;
    double products = stage.tensor * scale * ((double)w->stages + (double)w->half / 2);
    *out = (struct gpu_launch){b, e, clock_at(g, e > 0 ? products / (g->sms * e) : 0), 0, bound};
    out->ns = e / out->ghz + 1e3 * launch_us;
    if (bytes / g->copy > out->ns) {
        out->ns = bytes / g->copy;
        out->bound = BOUND_MEMORY;
    }
    return 0;
}
