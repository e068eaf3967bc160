/*
 * model.c - see model.h. The work of a call is that of its heads; a head that keeps every pair has
 * that of dense attention in the lists of the others.
 */
#include "analyze/model.h"

#include "analyze/group.h"
#include "core/gpumodel.h"
#include "core/intmath.h"
#include "core/method_run.h"
#include "core/text.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GPUS_MOST 16

struct model {
    struct gpu_model gpu[GPUS_MOST];
    int n;
    struct kernel_models kernels;
    double layers, weights; /* of --config: layers and numbers in the matrices of one; 0: none */
    bool share;
    int64_t predicted, left_out, unpriced; /* calls x GPUs */
    const char *why;                       /* of those that were left out */
};

struct call {
    const struct record *of; /* any of its records */
    int64_t heads, kv, full; /* query heads, KV heads, heads that keep everything */
    const char *lists;       /* NULL: all keep everything */
    struct work_counts w[2]; /* of the lists; bits and gathered keys */
    bool chosen;             /* its masks are chosen for it */
    const char *why;         /* it cannot be predicted */
};

/* ---- work of a call ------------------------------------------------------------------------- */

static int64_t keys_of_stage(const struct record *r, const char *lists)
{
    return r->d == 64 && strncmp(lists, "128", 3) == 0 ? 192 : 128;
}

static bool read_work(const struct record *r, const char *lists, struct work_counts *w)
{
    static const char *const what[] = {"rows", "stages", "half", "masked", "longest", "shortest"};
    double n[6];
    char name[METRIC_NAME];
    for (int i = 0; i < 6; i++) {
        snprintf(name, sizeof name, "work_%s@%s", what[i], lists);
        n[i] = record_get(r, name);
        if (isnan(n[i]))
            return false;
    }
    *w = (struct work_counts){(int64_t)n[0], (int64_t)n[1], (int64_t)n[2],
                              (int64_t)n[3], (int64_t)n[4], (int64_t)n[5]};
    return true;
}

static bool note_begins(const struct record *r, const char *key, const char *begin)
{
    size_t len = 0, n = strlen(begin);
    const char *value = record_note_value(r, key, &len);
    return value && len >= n && strncmp(value, begin, n) == 0;
}

static bool note_ends(const struct record *r, const char *key, const char *end)
{
    size_t len = 0, n = strlen(end);
    const char *value = record_note_value(r, key, &len);
    return value && len >= n && strncmp(value + len - n, end, n) == 0;
}

static void add_record(struct call *c, const struct record *r)
{
    static const char *const lists[] = {"128x128", "128x64", "64x64", "bits"};
    const struct method *m = method_find(metric_def_known_methods(), r->method, NULL);
    bool whole = r->scope == RECORD_OF_CALL;
    int64_t heads = whole ? (int64_t)record_get(r, "call_heads") : 1;
    double flops = record_get(r, "cost_select_flops");
    struct work_counts w;
    size_t len;
    c->heads += heads;
    c->kv +=
        whole ? (int64_t)record_get(r, "call_heads_kv") : !c->of || c->of->kv_head != r->kv_head;
    c->of = r;
    c->chosen |= whole ? note_ends(r, "select_kind", "own") : flops != 0;
    if (r->status != RECORD_OK)
        c->why = "a head was skipped or failed";
    else if (record_note_value(r, "rows", &len))
        c->why = "the records are of sampled rows";
    else if (m && m->arith.kind == ARITH_KERNEL)
        c->why = "kernels of the method's own arithmetic are not measured yet";
    else if (whole && note_begins(r, "kernel", "filter"))
        c->why = "kernels that may skip P V of a block are not measured yet";
    for (int i = 0; i < 4 && !c->why; i++) {
        if (!read_work(r, lists[i], &w))
            continue;
        if (c->lists && c->lists != lists[i])
            c->why = "its heads have masks of different units";
        c->lists = lists[i];
        work_counts_join(c->w, &w);
        if (i == 3 && read_work(r, "gather", &w))
            work_counts_join(c->w + 1, &w);
        return;
    }
    if (!c->why && record_get(r, "density_elem") != 1 && !note_ends(r, "kernel", "-dense"))
        c->why = "the records have no work_* counts: replay again";
    c->full += heads;
}

/* The call of records at[0..n). Heads that keep everything count in the lists of the others. */
static struct call call_of(const struct record *r, const int64_t *at, int64_t n, const char *lists)
{
    struct call c = {.lists = lists};
    struct work_counts w;
    for (int64_t i = 0; i < n; i++)
        add_record(&c, r + at[i]);
    if (c.lists && c.full) {
        work_of_dense(c.of->n_q, c.of->n_k, c.of->causal, 128, keys_of_stage(c.of, c.lists), c.full,
                      &w);
        w.masked = strcmp(c.lists, "bits") == 0 ? 0 : w.masked;
        work_counts_join(c.w, &w);
        work_counts_join(c.w + 1, &w);
    }
    return c;
}

/* ---- prediction ----------------------------------------------------------------------------- */

struct prediction {
    struct gpu_launch attend, dense;
    double select; /* ns; NAN: not known */
};

/* ns of choosing and planning. The part that grows with the keys moves bytes, that with their
 * square multiplies: both scale from the H200 of the measurement. */
static double select_ns(const struct kernel_models *m, const struct gpu_model *g,
                        const struct call *c, bool gathered, double ghz)
{
    bool bits = c->lists && strcmp(c->lists, "bits") == 0;
    double n = (double)c->of->n_k / 32768, heads = (double)c->heads * c->of->d / (32 * 128);
    if (!c->chosen)
        return 0;
    for (const struct select_model *s = m->select; s < m->select + m->n_select; s++)
        if (strcmp(s->method, c->of->method) == 0)
            return 1e3 * g->select *
                   ((gathered ? m->plan_gather
                     : bits   ? m->plan_bits
                              : m->plan_lists) +
                    s->fixed + heads * n * s->linear * 4290 / g->copy +
                    heads * n * n * s->square * (132 * 4096 * 1.392) / (g->sms * g->tensor * ghz));
    return g->select > 0 ? NAN : 0;
}

/* A call with records. *why: it cannot be predicted. */
static int predict(const struct model *m, const struct gpu_model *g, const struct call *c,
                   struct prediction *p, const char **why, struct err *err)
{
    const struct record *r = c->of;
    assert(r);
    const struct kernel_model *dense = kernel_model_find(&m->kernels, g, r->d, "dense"), *k = dense;
    bool gathered = c->lists && strcmp(c->lists, "bits") == 0 &&
                    (double)c->w[1].stages < 0.7 * (double)c->w[0].stages; /* as a replay does */
    double bytes = 4.0 * r->d * (double)(c->heads * r->n_q + c->kv * r->n_k);
    struct work_counts w;
    int rc = 0;
    if (c->lists)
        k = kernel_model_find(&m->kernels, g, r->d, gathered ? "gather" : c->lists);
    *why = c->why ? c->why : dense && k ? NULL : "no kernel of such heads is described for the GPU";
    if (*why)
        return 0;
    work_of_dense(r->n_q, r->n_k, r->causal, (int64_t)dense->bm, (int64_t)dense->bn, c->heads, &w);
    TRY(gpu_model_launch(&m->kernels, g, dense, &w, dense->bn, bytes, &p->dense, err));
    p->attend = p->dense;
    if (c->lists)
        TRY(gpu_model_launch(&m->kernels, g, k, c->w + gathered, (double)keys_of_stage(r, c->lists),
                             bytes, &p->attend, err));
    p->select = select_ns(&m->kernels, g, c, gathered, p->dense.ghz);
out:
    return rc;
}

/* A lower bound of the time to the first token: linear layers at 0.9 of the tensor cores' rate, and
 * the attention of all layers. */
static double first_token_ns(const struct model *m, const struct gpu_model *g,
                             const struct prediction *p, int64_t tokens)
{
    double linear = 2 * (double)tokens * m->weights / (0.9 * g->sms * g->tensor * p->dense.ghz);
    return m->layers > 0 ? m->layers * (p->attend.ns + p->select + linear) : NAN;
}

/* part: of the call that is the record's. */
static int put(struct recset *set, struct record *r, const struct model *m,
               const struct gpu_model *g, const struct prediction *p, double part, struct err *err)
{
    double total = p->attend.ns + p->select;
    enum gpu_bound bound = p->attend.bound;
    struct named_value v[] = {{"time_attend_ns_model", part * p->attend.ns},
                              {"time_dense_ns_model", part * p->dense.ns},
                              {"time_select_ns_model", part * p->select},
                              {"time_total_ns_model", part * total},
                              {"speedup_model", p->dense.ns / total},
                              {"clock_model", p->attend.ghz},
                              {"ttft_ns_model", first_token_ns(m, g, p, r->n_q)},
                              {"model_quotient", p->attend.ns / record_get(r, "time_attend_ns")},
                              {"bound_model@tensor", bound == BOUND_TENSOR},
                              {"bound_model@softmax", bound == BOUND_SOFTMAX},
                              {"bound_model@chain", bound == BOUND_CHAIN},
                              {"bound_model@row", bound == BOUND_ROW},
                              {"bound_model@waves", bound == BOUND_WAVES},
                              {"bound_model@memory", bound == BOUND_MEMORY}};
    enum { MOST = sizeof v / sizeof *v };
    char names[MOST][METRIC_NAME];
    int n = 0;
    for (int i = 0; i < MOST; i++) {
        if (isnan(v[i].value))
            continue;
        snprintf(names[n], METRIC_NAME, "%s%s%s", v[i].name, m->n > 1 ? "@" : "",
                 m->n > 1 ? g->name : "");
        v[n] = (struct named_value){names[n], v[i].value};
        n++;
    }
    return record_pool_extend(set->pool, r, v, n, err);
}

/* The part of a call that is a head's, by its stages. */
static double part_of(const struct call *c, const struct record *r, const int64_t *at, int64_t n)
{
    struct call own = call_of(r, at, 1, c->lists);
    double all = (double)(2 * c->w->stages + c->w->half + c->w->rows);
    double mine = (double)(2 * own.w->stages + own.w->half + own.w->rows);
    return c->lists && all > 0 ? mine / all : 1.0 / (double)n;
}

/* Predict the call of the records at[0..n), and give each its numbers. */
static int apply(struct recset *set, struct record *r, const int64_t *at, int64_t n,
                 struct model *m, struct err *err)
{
    struct call c = call_of(r, at, n, NULL);
    struct prediction p;
    const char *why = NULL;
    int rc = 0;
    for (int i = 0; i < m->n; i++) {
        TRY(predict(m, m->gpu + i, &c, &p, &why, err));
        m->why = why ? why : m->why;
        m->left_out += why != NULL;
        m->predicted += !why;
        m->unpriced += !why && isnan(p.select);
        for (int64_t k = 0; k < n && !why; k++) {
            double part = m->share ? part_of(&c, r, at + k, n) : 1;
            TRY(put(set, r + at[k], m, m->gpu + i, &p, part, err));
        }
    }
out:
    return rc;
}

/* ---- the request ---------------------------------------------------------------------------- */

static int read_config(const char *path, struct model *m, struct err *err)
{
    json_t *o = NULL;
    double hidden = 0, inner = 0, heads = 0, kv, d;
    int rc = 0;
    TRY(json_read_foreign(path, (size_t)1 << 20, &o, err));
    TRY(jget_num(o, "num_hidden_layers", path, &m->layers, err));
    TRY(jget_num(o, "hidden_size", path, &hidden, err));
    TRY(jget_num(o, "intermediate_size", path, &inner, err));
    TRY(jget_num(o, "num_attention_heads", path, &heads, err));
    kv = heads;
    d = hidden / heads;
    TRY(jget_num_opt(o, "num_key_value_heads", path, &kv, err));
    TRY(jget_num_opt(o, "head_dim", path, &d, err));
    m->weights = hidden * (2 * heads * d + 2 * kv * d + 3 * inner);
out:
    json_decref(o);
    return rc;
}

static int open_model(const struct model_request *q, struct model *m, struct err *err)
{
    char *list = strdup(q->gpu), *left = NULL;
    int rc = 0;
    if (!list)
        FAIL(err, ERR_NOMEM, "--gpu: out of memory");
    for (char *name = strtok_r(list, ",", &left); name; name = strtok_r(NULL, ",", &left)) {
        struct gpu_model *g = m->gpu + m->n++;
        if (m->n > GPUS_MOST)
            FAIL(err, ERR_USAGE, "--gpu: %d GPUs at most", GPUS_MOST);
        TRY(gpu_model_load(name, g, err));
        TRY(gpu_model_clock(g, q->clock, err));
        TRY(gpu_model_change(g, q->what_if ? q->what_if : "", err));
    }
    TRY(kernel_models_load(&m->kernels, err));
    if (q->config)
        TRY(read_config(q->config, m, err));
out:
    free(list);
    return rc;
}

static void add_notes(const struct model_request *q, const struct model *m, struct str_list *notes)
{
    char text[320];
    for (const struct gpu_model *g = m->gpu; g < m->gpu + m->n; g++) {
        bool known = g->ghz > 0 || (g->in_burst ? g->burst.f0 : g->sustained.f0) > 0;
        snprintf(text, sizeof text, "%.23s, predicted, not measured: clock %s; kernels %s%s%s",
                 g->name,
                 known         ? q->clock
                 : g->in_burst ? "boost (its states are not measured)"
                               : "rated (its states are not measured)",
                 g->sm == 90 ? "measured on an H200" : "by structure alone, 5 to 20 % off",
                 q->what_if ? "; what if " : "", q->what_if ? q->what_if : "");
        str_list_add(notes, text);
    }
    snprintf(text, sizeof text, "no prediction for %lld of %lld calls: %s", (long long)m->left_out,
             (long long)(m->left_out + m->predicted), m->why);
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
    struct model m = {.share = share, .why = "no records"};
    struct grouping gs = {0};
    int rc = 0;
    if (!q->gpu)
        return 0;
    TRY(open_model(q, &m, err));
    for (int64_t i = 0; i < set->n_calls && !share; i++)
        TRY(apply(set, set->calls, &i, 1, &m, err));
    if (set->n) /* the same calls, and those of a CPU */
        m.predicted = m.left_out = m.unpriced = 0;
    TRY(grouping_make(set, keys, sizeof keys / sizeof *keys, 0, NULL, NULL, &gs, err));
    for (int64_t i = 0; i < gs.n; i++)
        TRY(apply(set, set->r, gs.g[i].at, gs.g[i].n, &m, err));
    if (!m.predicted)
        FAIL(err, ERR_INPUT, "--gpu: no call can be predicted: %s", m.why);
    if (notes)
        add_notes(q, &m, notes);
out:
    grouping_free(&gs);
    return rc;
}
