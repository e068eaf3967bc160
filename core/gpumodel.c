/*
 * gpumodel.c - see gpumodel.h.
 */
#include "core/gpumodel.h"

#include "core/intmath.h"
#include "core/opt.h"

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
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

/* ---- what is asked of a GPU ----------------------------------------------------------------- */

int gpu_model_clock(struct gpu_model *g, const char *text, struct err *err)
{
    g->in_burst = strcmp(text, "burst") == 0;
    g->by_dense = strcmp(text, "dense") == 0;
    if (g->in_burst || g->by_dense || strcmp(text, "sustained") == 0 ||
        (num_fills(text, &g->ghz) && g->ghz > 0))
        return 0;
    return err_set(err, ERR_USAGE, "--clock %s: it is sustained, burst, dense or a number of GHz",
                   text);
}

static const struct opt changes[] = {
    OPT_AS("select", OPT_NUM, struct gpu_model, choosing, "1", .min = 0, .max = 1e6),
    OPT_BOOL(struct gpu_model, balance, "0", ""),
    OPT_AS("half", OPT_BOOL, struct gpu_model, even, "0"),
    OPT_AS("sms", OPT_NUM, struct gpu_model, multiprocessors, NULL, .min = 1, .max = 1e6),
    OPT_NUM(struct gpu_model, copy, NULL, 1, 1e9, "GB/s", ""),
    OPT_NUM(struct gpu_model, exp, "1", 0.01, 100, "", ""),
    OPT_NUM(struct gpu_model, tensor, "1", 0.01, 100, "", ""),
    {0}};

int gpu_model_change(struct gpu_model *g, const char *text, struct err *err)
{
    char *copy = strdup(text), *left = NULL;
    int rc = copy ? 0 : err_set(err, ERR_NOMEM, "--what-if: out of memory");
    for (char *key = rc ? NULL : strtok_r(copy, ",", &left); key && !rc;
         key = strtok_r(NULL, ",", &left)) {
        char *value = strchr(key, '=');
        if (value)
            *value++ = '\0';
        rc = value ? opt_set(changes, g, "--what-if", key, value, err)
                   : err_set(err, ERR_USAGE, "--what-if %s: it wants KEY=VALUE", key);
    }
    free(copy);
    return rc;
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
    for (const struct kernel_model *k = g->k; k < g->k + g->n_kernels; k++)
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

/* GHz at a share u of cycles in which the tensor cores work: their power and that of all else,
 * which grow with the cube of the clock, have a limit. */
static double clock_at(const struct gpu_model *g, double u)
{
    double f0 = g->in_burst ? g->burst_clock : g->sustained_clock;
    double power = g->in_burst ? g->burst_power : g->sustained_power;
    if (g->ghz > 0)
        return g->ghz;
    if (!(f0 > 0))
        return g->tune * (g->in_burst ? g->clock_boost : g->clock_rated);
    return MIN(g->clock_boost, g->tune * f0 * cbrt((1 + 0.97 * power) / (1 + power * u)));
}

int gpu_model_launch(const struct gpu_model *g, const struct kernel_model *k,
                     const struct work_counts *w, double keys, double bytes, struct gpu_launch *out,
                     struct err *err)
{
    enum gpu_bound bound;
    double each = products_of(g, k), s = stage_cycles(g, k, each, &bound), us = g->launch_us;
    double scale = keys / k->bn, half = g->even ? 0.5 : k->half > 0 ? k->half / 2 : 0.5;
    if (bound == BOUND_CHAIN && (g->tensor != 1 || g->exp != 1))
        return err_set(err, ERR_USAGE,
                       "--what-if: a stage of %s waits for chains of instructions, so what a "
                       "faster unit would bring is not known",
                       k->name);
    double work = s * scale * (w->stages + half * w->half), sms = g->multiprocessors;
    double item = w->rows > 0 ? k->item * s + k->masked * s * w->masked / w->rows : 0;
    double mean = work > 0 ? work / (w->stages + w->half) : 0; /* of a stage */
    double longest = w->longest * mean + item;
    double waves = ceil(w->rows / sms) * (w->shortest * mean + item);
    double b = (work + w->rows * item) / sms, e = MAX(b, MAX(longest, waves));
    bound = e == b ? bound : longest >= waves ? BOUND_ROW : BOUND_WAVES;
    if (k->whole == 0 && e > b + g->cut_stages * s) {
        e = b + g->cut_stages * s;
        us += g->combine_us;
    }
    e = (g->balance ? b : e) + (w->rows > 0 ? g->start_cycles : 0);
    double products = each / g->tensor * scale * (w->stages + w->half / 2);
    *out = (struct gpu_launch){b, e, clock_at(g, e > 0 ? products / (sms * e) : 0), 0, bound};
    out->ns = MAX(e / out->ghz + 1e3 * us, bytes / g->copy);
    if (bytes / g->copy == out->ns)
        out->bound = BOUND_MEMORY;
    return 0;
}
