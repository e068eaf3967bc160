/*
 * model.c - see model.h. The work of a call is that of its heads; a head that keeps every pair has
 * that of dense attention in the lists of the others.
 */
#include "analyze/model.h"

#include "analyze/group.h"
#include "core/gpumodel.h"
#include "core/mem.h"
#include "core/method_run.h"
#include "core/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct model {
    struct gpu_model *gpu; /* [n], owned */
    int n;
    double layers, weights; /* of --config: layers and numbers in the matrices of one; 0: none */
    bool share;
    int64_t predicted, left_out, unpriced; /* calls x GPUs */
    struct err why;                        /* of those that were left out */
};

struct call {
    const struct record *of;     /* any of its records */
    int64_t heads, kv, full;     /* query heads, KV heads, heads that keep everything */
    const char *lists;           /* NULL: all keep everything */
    double keys;                 /* of a stage of the lists */
    struct work_counts w, other; /* in the lists; in those that it may have in their place */
    char kernel[MODEL_NAME];     /* that a GPU ran, or would run */
    bool others, chosen;         /* the kernel has the others; the masks are chosen for the call */
    const char *why;             /* it cannot be predicted */
};

/* ---- work of a call ------------------------------------------------------------------------- */

static struct work_counts of_dense(const struct record *r, double bm, double bn, int64_t heads)
{
    return work_of_dense(r->n_q, r->n_k, r->causal, (int64_t)bm, (int64_t)bn, heads);
}

static bool add_work(const struct record *r, const char *lists, struct work_counts *sum)
{
    double n[WORK_COUNTS];
    struct work_counts w;
    for (int i = 0; i < WORK_COUNTS; i++) {
        char name[METRIC_NAME];
        snprintf(name, sizeof name, "work_%s@%s", work_names[i], lists);
        n[i] = record_get(r, name);
        if (isnan(n[i]))
            return false;
    }
    memcpy(&w, n, sizeof w);
    work_counts_join(sum, &w);
    return true;
}

/* A note of the record; "": it has none. */
static void note(const struct record *r, const char *key, char text[MODEL_NAME])
{
    size_t len = 0;
    const char *value = record_note_value(r, key, &len);
    snprintf(text, MODEL_NAME, "%.*s", (int)len, value ? value : "");
}

static void add_record(struct call *c, const struct record *r)
{
    static const char *const all[] = {"128x128", "128x64", "64x64", "64x32", "bits", NULL};
    const char *const *lists = all;
    bool whole = r->scope == RECORD_OF_CALL, other = !c->heads || c->of->kv_head != r->kv_head;
    int64_t heads = whole ? (int64_t)record_get(r, "call_heads") : 1;
    char kind[MODEL_NAME], sample[MODEL_NAME], before[MODEL_NAME];
    c->heads += heads;
    c->kv += whole ? (int64_t)record_get(r, "call_heads_kv") : other;
    c->of = r;
    snprintf(before, sizeof before, "%s", c->kernel);
    note(r, "kernel", c->kernel);
    bool filter = strncmp(before, "filter", 6) == 0 || strncmp(c->kernel, "filter", 6) == 0;
    if (strchr(c->kernel, '+') || (before[0] && filter && strcmp(before, c->kernel) != 0))
        c->why = "its heads attend by different kernels";
    note(r, "select_kind", kind);
    note(r, "rows", sample); /* "64x4"; a number alone is one of the oracle's choice */
    if (strchr(sample, 'x'))
        c->why = "the records are of sampled rows";
    c->chosen |= kind[0] ? strcmp(kind, "own") == 0 || strcmp(kind, "mixed") == 0
                         : record_get(r, "cost_select_flops") > 0;
    while (*lists && !add_work(r, *lists, &c->w))
        lists++;
    if (*lists) {
        if (c->lists && c->lists != *lists)
            c->why = "its heads have masks of different units";
        c->lists = *lists;
        add_work(r, strcmp(*lists, "64x32") == 0 ? "bits" : "gather", &c->other);
        return;
    }
    c->full += heads;
    if (record_get(r, "density_elem") != 1 && strcmp(kind, "none") != 0 &&
        !strstr(c->kernel, "-dense"))
        c->why = "a head was skipped or failed, or has no work_* counts: replay again";
}

/* What runs the call: the kernel that a GPU ran, else by its arithmetic and lists. */
static void choose_kernel(struct call *c)
{
    const struct method *m = method_find(metric_def_known_methods(), c->of->method, NULL);
    const char *lists = c->lists ? c->lists : "dense";
    char arith[MODEL_NAME];
    if (c->kernel[0])
        return;
    if (m && m->arith.kind == ARITH_KERNEL)
        c->why = "only a replay on a GPU names the kernel of the method's own arithmetic";
    note(c->of, "arith", arith);
    if (strcmp(lists, "bits") == 0 && c->other.stages < 0.7 * c->w.stages)
        lists = "gather";
    else if (!arith[0] && strcmp(lists, "64x32") == 0 &&
             c->w.stages + c->w.half / 2 >= 0.8 * c->other.stages)
        lists = "bits";
    else if (arith[0] && strcmp(lists, "64x64") == 0)
        lists = "64x128";
    snprintf(c->kernel, MODEL_NAME, "%.15s%shd%d-%s", arith, arith[0] ? "-" : "", c->of->d, lists);
}

/* The call of records at[0..n), n > 0, in these lists or NULL. */
static struct call call_of(const struct record *r, const int64_t *at, int64_t n, const char *lists)
{
    struct call c = {.of = r + at[0], .lists = lists};
    for (int64_t i = 0; i < n; i++)
        add_record(&c, r + at[i]);
    c.keys = c.of->d == 64 && c.lists && strncmp(c.lists, "128", 3) == 0 ? 192 : 128;
    if (c.lists && c.full) {
        struct work_counts w = of_dense(c.of, 128, c.keys, c.full);
        w.masked = strcmp(c.lists, "bits") == 0 ? 0 : w.masked;
        work_counts_join(&c.w, &w);
        work_counts_join(&c.other, &w);
    }
    choose_kernel(&c);
    c.others = c.lists && (strstr(c.kernel, "gather") ||
                           (strcmp(c.lists, "64x32") == 0 && strstr(c.kernel, "bits")));
    return c;
}

/* ---- prediction ----------------------------------------------------------------------------- */

struct prediction {
    struct gpu_launch attend, dense;
    double select; /* ns; NAN: not known */
};

/* ns of choosing and planning. The part that grows with the keys moves bytes, that with their
 * square multiplies: both scale from the GPU of the measurement. */
static double select_ns(const struct gpu_model *g, const struct call *c, double ghz)
{
    double n = (double)c->of->n_k / 32768, part = n * (double)c->heads * c->of->d / (32 * 128);
    double bytes = part * g->select_copy / g->copy;
    double products = part * n * g->select_rate / (g->multiprocessors * g->tensor_bf16 * ghz);
    double plan = strstr(c->kernel, "gather") ? g->plan_gather
                  : strstr(c->kernel, "bits") ? g->plan_bits
                                              : g->plan_lists;
    if (!c->chosen)
        return 0;
    for (const struct kernel_model *s = g->k; s < g->k + g->n; s++)
        if (strcmp(s->name, c->of->method) == 0)
            return 1e3 * g->choosing * (plan + s->fixed + bytes * s->linear + products * s->square);
    return g->choosing > 0 ? NAN : 0;
}

/* ERR_INPUT: it cannot be predicted. */
static int predict(struct gpu_model *g, const struct call *c, struct prediction *p, struct err *err)
{
    const struct record *r = c->of;
    char all[MODEL_NAME];
    double bytes = 4.0 * r->d * (double)(c->heads * r->n_q + c->kv * r->n_k); /* q, k, v, outputs */
    double measured = record_get(r, "time_dense_ns");
    struct work_counts w;
    snprintf(all, sizeof all, "hd%d-dense", r->d);
    const struct kernel_model *dense = kernel_model_find(g, all);
    const struct kernel_model *k = kernel_model_find(g, c->kernel);
    if (c->why)
        return err_set(err, ERR_INPUT, "%s", c->why);
    if (!dense || !k)
        return err_set(err, ERR_INPUT, "no kernel %s is described for %s", dense ? c->kernel : all,
                       g->name);
    if (g->by_dense && isnan(measured))
        return err_set(
            err, ERR_INPUT,
            "no dense attention was timed beside it (--clock dense wants records of calls)");
    w = of_dense(r, dense->bm, dense->bn, c->heads);
    for (int i = 0; i <= g->by_dense; i++) {
        g->tune = i ? p->dense.ns / measured : 1;
        PASS_ON(gpu_model_launch(g, dense, &w, dense->bn, bytes, &p->dense, err));
    }
    w = !c->lists ? of_dense(r, k->bm, k->bn, c->heads) : c->others ? c->other : c->w;
    PASS_ON(gpu_model_launch(g, k, &w, c->lists ? c->keys : k->bn, bytes, &p->attend, err));
    p->select = select_ns(g, c, p->dense.ghz);
    return 0;
}

/* part: of the call that is the record's. To the first token, a lower bound: linear layers at 0.9
 * of the tensor cores' rate, and the attention of all layers. */
static int put(struct recset *set, struct record *r, const struct model *m,
               const struct gpu_model *g, const struct prediction *p, double part, struct err *err)
{
    double total = p->attend.ns + p->select, ops = 2 * (double)r->n_q * m->weights;
    double linear = ops / (0.9 * g->multiprocessors * g->tensor_bf16 * p->dense.ghz);
    double cycles = r->scope == RECORD_OF_CALL ? record_get(r, "counter_cycles") : NAN;
    double quotient =
        isnan(cycles) ? p->attend.ns / record_get(r, "time_attend_ns") : p->attend.cycles / cycles;
    struct named_value v[] = {[BOUND_TENSOR] = {"bound_model@tensor", 0},
                              [BOUND_SOFTMAX] = {"bound_model@softmax", 0},
                              [BOUND_CHAIN] = {"bound_model@chain", 0},
                              [BOUND_ROW] = {"bound_model@row", 0},
                              [BOUND_WAVES] = {"bound_model@waves", 0},
                              [BOUND_MEMORY] = {"bound_model@memory", 0},
                              {"time_attend_ns_model", part * p->attend.ns},
                              {"time_dense_ns_model", part * p->dense.ns},
                              {"time_select_ns_model", part * p->select},
                              {"time_total_ns_model", part * total},
                              {"speedup_model", p->dense.ns / total},
                              {"clock_model", p->attend.ghz},
                              {"ttft_ns_model", m->layers > 0 ? m->layers * (total + linear) : NAN},
                              {"model_quotient", quotient},
                              {"model_error", fabs(quotient - 1)}};
    char names[sizeof v / sizeof *v][METRIC_NAME];
    int n = 0;
    v[p->attend.bound].value = 1;
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        snprintf(names[n], METRIC_NAME, "%s%s%s", v[i].name, m->n > 1 ? "@" : "",
                 m->n > 1 ? g->name : "");
        v[n] = (struct named_value){names[n], v[i].value};
        n += !isnan(v[n].value);
    }
    return record_pool_extend(set->pool, r, v, n, err);
}

/* The part of a call that is a head's, by its stages. */
static double part_of(const struct call *c, const struct record *r, const int64_t *at, int64_t n)
{
    struct call own = call_of(r, at, 1, c->lists);
    double all = 2 * c->w.stages + c->w.half + c->w.rows;
    double mine = 2 * own.w.stages + own.w.half + own.w.rows;
    return c->lists && all > 0 ? mine / all : 1.0 / (double)n;
}

/* Predict the call of the records at[0..n), and give each its numbers. */
static int apply(struct recset *set, struct record *r, const int64_t *at, int64_t n,
                 struct model *m, struct err *err)
{
    struct call c = call_of(r, at, n, NULL);
    struct prediction p;
    int rc = 0;
    for (struct gpu_model *g = m->gpu; g < m->gpu + m->n; g++) {
        rc = predict(g, &c, &p, err);
        if (rc == ERR_INPUT) {
            m->left_out++;
            m->why = *err;
            err_clear(err);
            rc = 0;
            continue;
        }
        TRY(rc);
        m->predicted++;
        m->unpriced += isnan(p.select);
        for (int64_t k = 0; k < n; k++)
            TRY(put(set, r + at[k], m, g, &p, m->share ? part_of(&c, r, at + k, n) : 1, err));
    }
out:
    return rc;
}

/* ---- the request ---------------------------------------------------------------------------- */

static int read_config(const char *path, struct model *m, struct err *err)
{
    static const char *const keys[] = {"num_hidden_layers", "hidden_size", "intermediate_size",
                                       "num_attention_heads"};
    double x[4];
    OWN(json_decrefp) json_t *o = NULL;
    PASS_ON(json_read_foreign(path, (size_t)1 << 20, &o, err));
    for (int i = 0; i < 4; i++)
        PASS_ON(jget_num(o, keys[i], path, x + i, err));
    double kv = x[3], d = x[1] / x[3];
    PASS_ON(jget_num_opt(o, "num_key_value_heads", path, &kv, err));
    PASS_ON(jget_num_opt(o, "head_dim", path, &d, err));
    m->layers = x[0];
    m->weights = x[1] * (2 * x[3] * d + 2 * kv * d + 3 * x[2]);
    return 0;
}

static int open_model(const struct model_request *q, struct model *m, struct err *err)
{
    OWN(free_at) char *list = strdup(q->gpu);
    char *left = NULL;
    int64_t cap = 0;
    if (!list)
        return err_set(err, ERR_NOMEM, "--gpu: out of memory");
    for (char *name = strtok_r(list, ",", &left); name; name = strtok_r(NULL, ",", &left)) {
        PASS_ON(mem_grow(&m->gpu, &cap, m->n + 1, sizeof *m->gpu, "GPUs", err));
        struct gpu_model *g = m->gpu + m->n++;
        PASS_ON(gpu_model_load(name, g, err));
        PASS_ON(gpu_model_clock(g, q->clock, err));
        PASS_ON(gpu_model_change(g, q->what_if ? q->what_if : "", err));
    }
    if (!m->gpu)
        return err_set(err, ERR_USAGE, "--gpu: '%s' names no GPU (lacuna list gpus)", q->gpu);
    if (m->n > 1 && m->gpu->by_dense)
        return err_set(err, ERR_USAGE,
                       "--clock dense: name the GPU that the replay ran on, and no other");
    if (q->config)
        return read_config(q->config, m, err);
    return 0;
}

static void add_notes(const struct model_request *q, const struct model *m, struct str_list *notes)
{
    char text[320];
    for (const struct gpu_model *g = m->gpu; g < m->gpu + m->n; g++) {
        snprintf(
            text, sizeof text, "%s, predicted, not measured: clock %s%s; kernels %s%s%s", g->name,
            g->instead ? g->instead : q->clock, g->instead ? " (its states are not measured)" : "",
            g->architecture == 90 ? "measured on an H200" : "by structure alone, 5 to 20 % off",
            q->what_if ? "; what if " : "", q->what_if ? q->what_if : "");
        str_list_add(notes, text);
    }
    snprintf(text, sizeof text, "no prediction for %lld of %lld calls: %.200s",
             (long long)m->left_out, (long long)(m->left_out + m->predicted), m->why.msg);
    if (m->left_out)
        str_list_add(notes, text);
    if (m->unpriced)
        str_list_add(notes, "no total where choosing by the method is not measured");
    if (m->layers > 0)
        str_list_add(notes,
                     "time to first token: linear layers and attention alone, a lower bound");
}

int model_apply(struct recset *set, const struct model_request *q, bool share,
                struct str_list *notes, struct err *err)
{
    static const enum group_key keys[] = {KEY_TRACE,   KEY_N_Q,       KEY_RUN,     KEY_STEP,
                                          KEY_BRANCH,  KEY_LAYER,     KEY_METHOD,  KEY_PARAMS,
                                          KEY_BACKEND, KEY_PRECISION, KEY_PERMUTE, KEY_SEED};
    struct model m = {.share = share, .why = {.msg = "no records"}};
    struct grouping gs = {0};
    int rc = 0;
    if (!q->gpu)
        return 0;
    TRY(open_model(q, &m, err));
    for (int64_t i = 0; i < set->n_calls && !share; i++)
        TRY(apply(set, set->calls, &i, 1, &m, err));
    struct model calls = m;
    TRY(grouping_make(set, keys, sizeof keys / sizeof *keys, 0, NULL, NULL, &gs, err));
    for (int64_t i = 0; i < gs.n && !(m.gpu->by_dense && calls.predicted); i++)
        TRY(apply(set, set->r, gs.g[i].at, gs.g[i].n, &m, err));
    if (!m.predicted)
        FAIL(err, ERR_INPUT, "--gpu: no call can be predicted: %s", m.why.msg);
    if (notes) /* the same calls by their heads do not count again */
        add_notes(q, calls.predicted ? &calls : &m, notes);
out:
    grouping_free(&gs);
    free(m.gpu);
    return rc;
}
