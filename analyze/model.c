/*
 * model.c - see model.h. The work of a call is that of its heads; a head that keeps every pair has
 * that of dense attention in the lists of the others.
 */
#include "analyze/model.h"

#include "analyze/group.h"
#include "core/gpumodel.h"
#include "core/intmath.h"
#include "core/mem.h"
#include "core/method_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GPUS_MOST 16

struct model {
    struct gpu_model gpu[GPUS_MOST];
    int n;
    struct kernel_models kernels;
    struct clock_request clock;
    double layers, hidden, query, key_value, inner; /* of --config; layers 0: none */
};

struct call {
    const struct record *of; /* any of its records */
    int64_t heads, kv, full; /* query heads, kv heads, heads that keep everything */
    const char *lists;       /* NULL: all keep everything */
    struct work_counts w[2]; /* of the lists; bits and gathered keys */
    double flops;            /* of choosing */
    const char *why;         /* it cannot be predicted */
};

/* ---- work of a call ------------------------------------------------------------------------- */

static double keys_of_stage(const struct record *r, const char *lists)
{
    return r->d == 64 && strncmp(lists, "128", 3) == 0 ? 192 : 128;
}

static void join(struct work_counts *w, const struct work_counts *more)
{
    w->rows += more->rows;
    w->stages += more->stages;
    w->half += more->half;
    w->masked += more->masked;
    w->longest = MAX(w->longest, more->longest);
    if (more->shortest && (!w->shortest || more->shortest < w->shortest))
        w->shortest = more->shortest;
}

static bool read_work(const struct record *r, const char *lists, struct work_counts *w)
{
    int64_t n[6];
    static const char *const what[] = {"rows", "stages", "half", "masked", "longest", "shortest"};
    char name[METRIC_NAME];
    for (int i = 0; i < 6; i++) {
        snprintf(name, sizeof name, "work_%s@%s", what[i], lists);
        double x = record_get(r, name);
        if (isnan(x))
            return false;
        n[i] = (int64_t)x;
    }
    *w = (struct work_counts){n[0], n[1], n[2], n[3], n[4], n[5]};
    return true;
}

static bool keeps_all(const struct record *r)
{
    size_t len = 0;
    const char *kernel = record_note_value(r, "kernel", &len);
    if (r->scope == RECORD_OF_CALL)
        return kernel && len > 6 && strncmp(kernel + len - 6, "-dense", 6) == 0;
    double square = (double)(r->n_k - r->n_q) + (double)(r->n_q + 1) / 2;
    double allowed = (double)r->n_q * (r->causal ? square : (double)r->n_k);
    return record_get(r, "pairs_kept") == allowed;
}

static void add_record(struct call *c, const struct record *r)
{
    static const char *const lists[] = {"128x128", "128x64", "64x64", "bits"};
    const struct method *m = method_find(metric_def_known_methods(), r->method, NULL);
    struct work_counts w, gathered = {0};
    size_t len;
    c->of = r;
    if (r->status != RECORD_OK)
        c->why = "a head was skipped or failed";
    else if (record_note_value(r, "rows", &len))
        c->why = "the records are of sampled rows";
    else if (m && m->arith.kind == ARITH_KERNEL)
        c->why = "kernels of the method's own arithmetic are not measured yet";
    for (int i = 0; i < 4 && !c->why; i++) {
        if (!read_work(r, lists[i], &w))
            continue;
        if (c->lists && c->lists != lists[i])
            c->why = "its heads have masks of different units";
        c->lists = lists[i];
        join(c->w, &w);
        if (i == 3 && read_work(r, "gather", &gathered))
            join(c->w + 1, &gathered);
        return;
    }
    if (!c->why && !keeps_all(r))
        c->why = "the records have no work_* counts: replay again";
    c->full += r->scope == RECORD_OF_CALL ? c->heads : 1;
}

/* Heads that keep everything, in the lists of the others. */
static void add_full(struct call *c)
{
    const struct record *r = c->of;
    struct work_counts w;
    if (!c->lists || !c->full)
        return;
    work_of_dense(r->n_q, r->n_k, r->causal, 128, (int64_t)keys_of_stage(r, c->lists), c->full, &w);
    if (strcmp(c->lists, "bits") == 0)
        w.masked = 0;
    join(c->w, &w);
    join(c->w + 1, &w);
}

/* ---- prediction ----------------------------------------------------------------------------- */

struct prediction {
    struct gpu_launch attend, dense;
    double select, total; /* ns; NAN: not known */
};

/* ns of choosing and planning. The part that grows with the keys moves bytes, that with their
 * square multiplies. */
static double select_ns(const struct model *m, const struct gpu_model *g, const struct call *c,
                        bool gathered, double ghz)
{
    const struct record *r = c->of;
    bool bits = c->lists && strcmp(c->lists, "bits") == 0;
    double n = (double)r->n_k / 32768, heads = (double)c->heads * r->d / (32 * 128);
    if (g->no_select || c->flops == 0)
        return 0;
    for (int64_t i = 0; i < m->kernels.n_select; i++) {
        const struct select_model *s = m->kernels.select + i;
        if (strcmp(s->method, r->method) == 0)
            return 1e3 *
                   (m->kernels.plan_us[gathered ? 2 : bits] + s->fixed +
                    heads * n * s->linear * 4290 / g->copy +
                    heads * n * n * s->square * (132 * 4096 * 1.392) / (g->sms * g->tensor * ghz));
    }
    return NAN;
}

static int predict(const struct model *m, const struct gpu_model *g, const struct call *c,
                   struct prediction *p, const char **why, struct err *err)
{
    const struct record *r = c->of;
    const struct kernel_model *dense = kernel_model_find(&m->kernels, g, r->d, "dense"), *k = dense;
    bool gathered = c->lists && (double)c->w[1].stages < 0.7 * (double)c->w[0].stages &&
                    strcmp(c->lists, "bits") == 0; /* GATHER_BELOW of a replay */
    double bytes = 4.0 * r->d * (double)(c->heads * r->n_q + c->kv * r->n_k);
    struct work_counts w;
    int rc = 0;
    if (c->lists)
        k = kernel_model_find(&m->kernels, g, r->d, gathered ? "gather" : c->lists);
    *why = c->why         ? c->why
           : !dense || !k ? "no kernel of such heads is described for the GPU"
                          : NULL;
    if (*why)
        return 0;
    work_of_dense(r->n_q, r->n_k, r->causal, (int64_t)dense->bm, (int64_t)dense->bn, c->heads, &w);
    TRY(gpu_model_launch(&m->kernels, g, dense, &w, dense->bn, bytes, m->clock, &p->dense, err));
    p->attend = p->dense;
    if (c->lists)
        TRY(gpu_model_launch(&m->kernels, g, k, c->w + gathered, keys_of_stage(r, c->lists), bytes,
                             m->clock, &p->attend, err));
    p->select = select_ns(m, g, c, gathered, p->dense.ghz);
    p->total = p->attend.ns + p->select;
out:
    return rc;
}

/* A lower bound of the time to the first token: linear layers at 0.9 of the tensor cores' rate, and
 * the attention of all layers. */
static double first_token_ns(const struct model *m, const struct gpu_model *g,
                             const struct prediction *p, double tokens)
{
    double weights = m->hidden * (2 * m->query + 2 * m->key_value) + 3 * m->hidden * m->inner;
    return m->layers *
           (p->total + 2 * tokens * weights / (0.9 * g->sms * g->tensor * p->dense.ghz));
}

static int put(struct recset *set, struct record *r, const struct model *m,
               const struct gpu_model *g, const struct prediction *p, double part, struct err *err)
{
    static const char *const bounds[] = {"tensor", "softmax", "chain", "row", "waves", "memory"};
    struct named_value v[16];
    char names[16][METRIC_NAME];
    int n = 0;
    const struct named_value all[] = {
        {"time_attend_ns_model", part * p->attend.ns},
        {"time_dense_ns_model", part * p->dense.ns},
        {"time_select_ns_model", part * p->select},
        {"time_total_ns_model", part * p->total},
        {"speedup_model", p->dense.ns / p->total},
        {"clock_model", p->attend.ghz},
        {"ttft_ns_model", m->layers > 0 ? first_token_ns(m, g, p, (double)r->n_q) : (double)NAN},
        {"model_quotient", p->attend.ns / record_get(r, "time_attend_ns")}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!isnan(all[i].value)) {
            snprintf(names[n], METRIC_NAME, "%s%s%s", all[i].name, m->n > 1 ? "@" : "",
                     m->n > 1 ? g->name : "");
            v[n++].value = all[i].value;
        }
    for (int i = 0; i < GPU_BOUNDS; i++) {
        snprintf(names[n], METRIC_NAME, "bound_%s_model%s%s", bounds[i], m->n > 1 ? "@" : "",
                 m->n > 1 ? g->name : "");
        v[n++].value = (int)p->attend.bound == i;
    }
    for (int i = 0; i < n; i++)
        v[i].name = names[i];
    return record_pool_extend(set->pool, r, v, n, err);
}

/* ---- the set -------------------------------------------------------------------------------- */

struct tally {
    int64_t predicted, left_out, unpriced;
    const char *why;
};

/* Predict a call; the numbers go to its records at[0..n). */
static int apply_call(struct recset *set, struct record *r, const int64_t *at, int64_t n,
                      const struct model *m, struct call *c, bool share, struct tally *t,
                      struct err *err)
{
    struct prediction p;
    const char *why = NULL;
    int rc = 0;
    add_full(c);
    for (int i = 0; i < m->n; i++) {
        TRY(predict(m, m->gpu + i, c, &p, &why, err));
        t->why = why ? why : t->why;
        t->left_out += why != NULL;
        t->predicted += !why;
        t->unpriced += !why && isnan(p.total);
        for (int64_t k = 0; k < n && !why; k++) {
            struct call alone = {.heads = 1};
            add_record(&alone, &r[at[k]]);
            add_full(&alone);
            double own = (double)(alone.w->stages + alone.w->rows) + (double)alone.w->half / 2;
            double all = (double)(c->w->stages + c->w->rows) + (double)c->w->half / 2;
            double part = alone.full ? 1.0 / (double)c->heads : all > 0 ? own / all : 0;
            TRY(put(set, &r[at[k]], m, m->gpu + i, &p, share ? part : 1, err));
        }
    }
out:
    return rc;
}

static int apply_calls(struct recset *set, const struct model *m, struct tally *t, struct err *err)
{
    int rc = 0;
    for (int64_t i = 0; i < set->n_calls && !rc; i++) {
        struct record *r = set->calls + i;
        size_t len = 0;
        const char *kind = record_note_value(r, "select_kind", &len);
        bool own = kind && len == 3 && strncmp(kind, "own", 3) == 0;
        struct call c = {.heads = (int64_t)record_get(r, "call_heads"),
                         .kv = (int64_t)record_get(r, "call_heads_kv"),
                         .flops = own};
        add_record(&c, r);
        rc = apply_call(set, set->calls, &i, 1, m, &c, false, t, err);
    }
    return rc;
}

static int apply_heads(struct recset *set, const struct model *m, bool share, struct tally *t,
                       struct err *err)
{
    static const enum group_key keys[] = {KEY_TRACE,   KEY_N_Q,       KEY_RUN,     KEY_STEP,
                                          KEY_BRANCH,  KEY_LAYER,     KEY_METHOD,  KEY_PARAMS,
                                          KEY_BACKEND, KEY_PRECISION, KEY_PERMUTE, KEY_SEED};
    struct grouping gs = {0};
    int rc = 0;
    TRY(grouping_make(set, keys, 12, 0, NULL, NULL, &gs, err));
    for (int64_t i = 0; i < gs.n; i++) {
        const struct group *g = gs.g + i;
        struct call c = {.heads = g->n};
        int low = INT32_MAX, high = 0;
        for (int64_t k = 0; k < g->n; k++) {
            const struct record *r = set->r + g->at[k];
            double flops = record_get(r, "cost_select_flops");
            add_record(&c, r);
            low = MIN(low, r->kv_head);
            high = MAX(high, r->kv_head);
            c.flops += isnan(flops) ? 1 : flops;
        }
        c.kv = high - low + 1;
        TRY(apply_call(set, set->r, g->at, g->n, m, &c, share, t, err));
    }
out:
    grouping_free(&gs);
    return rc;
}

static int read_config(const char *path, struct model *m, struct err *err)
{
    json_t *o = NULL;
    double heads = 0, kv, d;
    int rc = 0;
    TRY(json_read_file(path, (size_t)1 << 20, &o, err));
    TRY(jget_num(o, "num_hidden_layers", path, &m->layers, err));
    TRY(jget_num(o, "hidden_size", path, &m->hidden, err));
    TRY(jget_num(o, "intermediate_size", path, &m->inner, err));
    TRY(jget_num(o, "num_attention_heads", path, &heads, err));
    kv = heads;
    d = m->hidden / heads;
    TRY(jget_num_opt(o, "num_key_value_heads", path, &kv, err));
    TRY(jget_num_opt(o, "head_dim", path, &d, err));
    m->query = heads * d;
    m->key_value = kv * d;
out:
    json_decref(o);
    return rc;
}

static int open_model(const struct model_request *q, struct model *m, struct err *err)
{
    char *end, *list = strdup(q->gpu), *left = NULL;
    int rc = 0;
    m->clock.burst = strcmp(q->clock, "burst") == 0;
    if (!m->clock.burst && strcmp(q->clock, "sustained") != 0) {
        m->clock.ghz = strtod(q->clock, &end);
        if (*end || !(m->clock.ghz > 0))
            FAIL(err, ERR_USAGE, "--clock %s: it is sustained, burst or a number of GHz", q->clock);
    }
    if (!list)
        FAIL(err, ERR_NOMEM, "--gpu: out of memory");
    for (char *name = strtok_r(list, ",", &left); name; name = strtok_r(NULL, ",", &left)) {
        if (m->n == GPUS_MOST)
            FAIL(err, ERR_USAGE, "--gpu: %d GPUs at most", GPUS_MOST);
        TRY(gpu_model_load(name, m->gpu + m->n, err));
        TRY(gpu_model_change(m->gpu + m->n++, q->what_if, err));
    }
    TRY(kernel_models_load(&m->kernels, err));
    if (q->config)
        TRY(read_config(q->config, m, err));
out:
    free(list);
    return rc;
}

static void add_notes(const struct model_request *q, const struct model *m, const struct tally *t,
                      struct str_list *notes)
{
    char text[320];
    for (int i = 0; i < m->n; i++) {
        const struct gpu_model *g = m->gpu + i;
        bool state = (m->clock.burst ? g->burst.f0 : g->sustained.f0) > 0 || m->clock.ghz > 0;
        snprintf(text, sizeof text, "%s, predicted, not measured: clock %s%s; kernels %s%s%s",
                 g->name,
                 state            ? q->clock
                 : m->clock.burst ? "boost"
                                  : "rated",
                 state ? "" : " (its states are not measured)",
                 g->sm == 90 ? "measured on an H200" : "by structure alone, 5 to 20 % off",
                 q->what_if ? "; what if " : "", q->what_if ? q->what_if : "");
        str_list_add(notes, text);
    }
    snprintf(text, sizeof text, "no prediction for %lld of %lld calls: %s", (long long)t->left_out,
             (long long)(t->left_out + t->predicted), t->why ? t->why : "");
    if (t->left_out)
        str_list_add(notes, text);
    snprintf(text, sizeof text,
             "no total for %lld calls: choosing by these methods is not measured",
             (long long)t->unpriced);
    if (t->unpriced)
        str_list_add(notes, text);
    if (m->layers > 0)
        str_list_add(notes,
                     "time to first token: linear layers and attention alone, a lower bound");
}

int model_apply(struct recset *set, const struct model_request *q, bool share,
                struct str_list *notes, struct err *err)
{
    struct model m = {.n = 0};
    struct tally t = {0};
    int rc = 0;
    if (!q->gpu)
        return 0;
    TRY(open_model(q, &m, err));
    TRY(set->n_calls && !share ? apply_calls(set, &m, &t, err)
                               : apply_heads(set, &m, share, &t, err));
    if (!t.predicted)
        FAIL(err, ERR_INPUT, "--gpu: no call can be predicted: %s", t.why ? t.why : "no records");
    if (notes)
        add_notes(q, &m, &t, notes);
out:
    kernel_models_free(&m.kernels);
    return rc;
}
