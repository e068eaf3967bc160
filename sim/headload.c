#include "sim/headload.h"

#include "core/indexlist.h"
#include "core/mem.h"
#include "core/permute.h"
#include "core/strmap.h"
#include "core/trace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void sim_head_ready(struct sim_head *h, enum precision prec)
{
    h->in.x.q = h->q;
    h->in.x.k = h->k;
    h->in.x.v = h->v;
    h->in.x.on_device = NULL; /* a device has the head as it was, if at all */
    exact_init(&h->exact, &h->in.x, prec);
    h->in.exact = &h->exact;
}

void sim_head_free(struct sim_head *h)
{
    exact_free(&h->exact);
    free(h->q);
    if (!h->borrows_kv) {
        free(h->k);
        free(h->v);
    }
    free(h->perm);
    free(h->rel);
    memset(h, 0, sizeof *h);
}

static int rows_permuted(float **to, const float *x, int64_t n, int64_t d, const int64_t *perm,
                         const char *what, struct err *err)
{
    PASS_ON(mem_alloc(to, n * d, sizeof **to, what, err));
    permute_rows(x, n, d, perm, *to);
    return 0;
}

/* Rows of the head that *self comes from: moved, not computed again. */
static int moved_dense(void *self, int64_t row0, int64_t row1, double *out, double *lse,
                       struct err *err)
{
    const struct sim_head *h = self;
    const int64_t *perm = h->perm + row0, n = h->in.x.nq, dv = h->in.x.dv, rows = row1 - row0;
    const double *all;

    if (out) {
        PASS_ON(exact_out(h->from, 0, n, &all, err));
        permute_rows_f64(all, rows, dv, perm, out + row0 * dv);
    }
    PASS_ON(exact_lse(h->from, 0, n, &all, err));
    permute_rows_f64(all, rows, 1, perm, lse + row0);
    return 0;
}

int sim_head_reorder(const struct head_in *in, const char *order, uint64_t seed, struct sim_head *h,
                     struct err *err)
{
    const struct attn_in *x = &in->x;
    int64_t n = x->nq;
    int rc = 0;

    memset(h, 0, sizeof *h);
    if (x->causal || x->nq != x->nk)
        FAIL(err, ERR_USAGE,
             "token order '%s' needs bidirectional attention of a sequence with itself", order);
    TRY(permute_make(order, &in->geom, n, seed, &h->perm, err));
    h->in = *in;
    TRY(rows_permuted(&h->q, x->q, n, x->d, h->perm, "queries", err));
    TRY(rows_permuted(&h->k, x->k, n, x->d, h->perm, "keys", err));
    TRY(rows_permuted(&h->v, x->v, n, x->dv, h->perm, "values", err));
    h->in.order = strcmp(order, "row") == 0 ? NULL : order;
    h->in.moved = order;
    h->in.queries = NULL; /* those at hand are in the order before */
    h->in.operand = NULL;
    h->from = in->exact;
    sim_head_ready(h, in->exact->prec);
    exact_dense_from(&h->exact, moved_dense, h);
out:
    if (rc)
        sim_head_free(h);
    return rc;
}

/* ---- traces --------------------------------------------------------------------------------- */

int traces_open(char *const *args, int64_t n_args, struct trace ***traces, int64_t *n,
                struct err *err)
{
    OWN(str_list_free) struct str_list files = {0};
    OWN(strmap_free) struct strmap seen = {0};
    struct stat st = {0};
    char id[48];
    PASS_ON(trace_list(args, n_args, &files, err));
    PASS_ON(mem_zalloc(traces, files.n, sizeof **traces, "traces", err));
    for (int64_t i = 0; i < files.n; i++) {
        bool there = stat(files.items[i], &st) == 0;
        snprintf(id, sizeof id, "%llu:%llu", (unsigned long long)st.st_dev,
                 (unsigned long long)st.st_ino);
        if (there && strmap_get(&seen, id) >= 0)
            continue;
        PASS_ON(strmap_put(&seen, id, i, err));
        PASS_ON(trace_open(files.items[i], *traces + *n, err));
        if (strmap_get(&seen, trace_id((*traces)[*n])) >= 0) { /* a copy: its cells are the same */
            trace_close(*traces + *n);
            continue;
        }
        PASS_ON(strmap_put(&seen, trace_id((*traces)[(*n)++]), i, err));
    }
    return 0;
}

void traces_close(struct trace ***traces, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        trace_close(*traces + i);
    free(*traces);
    *traces = NULL;
}

int traces_whole(struct trace *const *traces, int64_t n, const char *why, struct err *err)
{
    for (int64_t i = 0; i < n; i++)
        if (trace_meta(traces[i])->row_group)
            return err_set(err, ERR_INPUT, "%s holds a sample of query rows; %s",
                           trace_path(traces[i]), why);
    return 0;
}

int traces_prefill(struct trace *const *traces, int64_t n, struct err *err)
{
    for (int64_t i = 0; i < n; i++) {
        const struct trace_meta *m = trace_meta(traces[i]);
        struct trace_decode d = trace_decode(m);
        if (d.window < d.from)
            return err_set(
                err, ERR_INPUT,
                "%s has a decode phase of %lld steps and queries of the last %lld of %lld "
                "tokens of its prompt; the prefill needs those of all: replay it with "
                "--phase decode, or capture it with --window %lld",
                trace_path(traces[i]), (long long)d.steps, (long long)d.window, (long long)d.from,
                (long long)d.from);
    }
    return 0;
}

int traces_decode(struct trace *const *traces, int64_t n, struct err *err)
{
    for (int64_t i = 0; i < n; i++)
        if (!trace_meta(traces[i])->decode_from)
            return err_set(
                err, ERR_INPUT,
                "%s has no decode phase: `lacuna capture --generate N` makes a trace with "
                "one",
                trace_path(traces[i]));
    return 0;
}

static int parse_list(const char *text, int64_t limit, const char *what, struct call_list *l,
                      struct err *err)
{
    *l = (struct call_list){NULL, -1};
    if (!text || !*text || strcmp(text, "all") == 0)
        return 0;
    return index_list_parse(text, limit, what, &l->list, &l->n, err);
}

int call_filter_init(struct call_filter *f, const struct call_select *sel,
                     const struct trace_meta *m, struct err *err)
{
    *f = (struct call_filter){.branch = sel->branch};
    PASS_ON(parse_list(sel->layers, m->layers, "--layers", &f->layers, err));
    PASS_ON(parse_list(sel->heads, m->head_ids[0] ? -1 : m->heads, "--heads", &f->heads, err));
    return parse_list(sel->steps, -1, "--steps", &f->steps, err);
}

void call_filter_free(struct call_filter *f)
{
    free(f->layers.list);
    free(f->heads.list);
    free(f->steps.list);
    memset(f, 0, sizeof *f);
}

bool call_filter_takes(const struct call_filter *f, const struct trace *t, int64_t call, int head)
{
    const struct trace_call *c = trace_call(t, call);
    return index_list_has(f->layers.list, f->layers.n, c->layer) &&
           index_list_has(f->steps.list, f->steps.n, c->step) &&
           (!f->branch || !*f->branch || strcmp(f->branch, c->branch) == 0) &&
           index_list_has(f->heads.list, f->heads.n, trace_head_number(trace_meta(t), head));
}

int call_select_empty(const char *kind, const struct call_select *sel, struct err *err)
{
    const char *branch = sel->branch ? sel->branch : "";
    return err_set(err, ERR_USAGE, "no %s call matches --layers %s --heads %s --steps %s%s%s", kind,
                   sel->layers ? sel->layers : "all", sel->heads ? sel->heads : "all",
                   sel->steps ? sel->steps : "all", *branch ? " --branch " : "", branch);
}

/* ---- reading -------------------------------------------------------------------------------- */

/* Refuse NaN and infinity, or say that they are there: one such key makes every later row of a
 * causal head NaN. */
static int check_finite(const struct trace *t, const struct trace_call *c, const char *what,
                        int head, const float *x, int64_t n, int d, const struct head_load *how,
                        bool *found, struct err *err)
{
    int64_t bad = 0, first = 0;
    for (int64_t i = 0; i < n * d; i++)
        if (!isfinite(x[i]) && bad++ == 0)
            first = i;
    *found = bad > 0;
    if (!bad || how->allow_nonfinite)
        return 0;
    return err_set(
        err, ERR_INPUT,
        "%s: step %d, branch %s, layer %d: %s of head %d has %lld non-finite values, the "
        "first at token %lld, channel %lld (--allow-nonfinite skips such heads)",
        trace_path(t), c->step, c->branch, c->layer, what, head, (long long)bad,
        (long long)(first / d), (long long)(first % d));
}

static int read_tensor(const struct trace *t, int64_t call, enum trace_what what, int head,
                       int64_t n, int d, const struct head_load *how, struct head_in *in,
                       float **out, struct err *err)
{
    static const char *const names[] = {"q", "k", "v"};
    PASS_ON(mem_alloc(out, n * d, sizeof(float), names[what], err));
    PASS_ON(trace_read(t, call, what, head, 0, n, *out, err));
    return check_finite(t, trace_call(t, call), names[what], head, *out, n, d, how,
                        in->nonfinite + what, err);
}

/* Queries of sampled rows, each at its position: x [n_k][d], 0 elsewhere. Pages without a row cost
 * no memory. */
static int read_sample(const struct trace *t, int64_t call, int head, int d,
                       const struct head_load *how, struct sim_head *h, struct err *err)
{
    const struct row_sample *s = &h->sample;
    OWN(free_at) float *stored = NULL;

    PASS_ON(read_tensor(t, call, TRACE_Q, head, s->n, d, how, &h->in, &stored, err));
    PASS_ON(mem_zalloc(&h->q, trace_meta(t)->n_k * d, sizeof *h->q, "q", err));
    for (int64_t i = 0; i < s->n; i++)
        memcpy(h->q + s->at[i] * d, stored + i * d, (size_t)d * sizeof *stored);
    return 0;
}

static int read_queries(const struct trace *t, int64_t call, int head, const struct head_load *how,
                        struct sim_head *h, struct err *err)
{
    const struct attn_in *x = &h->in.x;
    if (h->in.rows)
        return read_sample(t, call, head, x->d, how, h, err);
    return read_tensor(t, call, TRACE_Q, head, x->nq, x->d, how, &h->in, &h->q, err);
}

/* The rows that `in` has may be a part of the head's: its x.q points into h->q. */
static int trace_queries(const struct head_in *in, int g, float *q, struct err *err)
{
    const struct sim_head *h = in->queries_from;
    struct head_load how = {.allow_nonfinite = h->allow_nonfinite};
    struct sim_head other = {.in = h->in, .sample = h->sample};
    int64_t from = in->x.q - h->q;
    int group = in->n_heads / in->n_kv_heads;
    int rc = read_queries(h->trace, h->call, h->number / group * group + g, &how, &other, err);
    if (!rc)
        memcpy(q, other.q + from, (size_t)(in->x.nq * in->x.d) * sizeof *q);
    free(other.q);
    return rc;
}

/* Rows as of q: of the queries that `in` has. */
static int trace_operand(const struct head_in *in, int layer, enum trace_aux which,
                         struct aux_shape *shape, float **x, struct err *err)
{
    const struct sim_head *h = in->operand_from;
    const struct trace_call *c = trace_call(h->trace, h->call);
    int64_t call = trace_find(h->trace, c->step, c->branch, layer), each;
    int64_t skip = trace_aux_rows(which) == TRACE_Q && in->x.q ? (in->x.q - h->q) / in->x.d : 0;
    *shape = call < 0 ? (struct aux_shape){0} : trace_call(h->trace, call)->aux[which];
    if (!x || !shape->heads)
        return 0;
    each = shape->rows * shape->dim;
    PASS_ON(mem_alloc(x, shape->heads * each, sizeof **x, "an extra operand", err));
    for (int i = 0; i < shape->heads; i++)
        PASS_ON(trace_read_values(h->trace, call, TRACE_AUX + which, i, *x + i * each, err));
    shape->rows -= skip;
    for (int64_t i = 0; i < shape->heads && skip; i++)
        memmove(*x + i * shape->rows * shape->dim, *x + i * each + skip * shape->dim,
                (size_t)(shape->rows * shape->dim) * sizeof **x);
    return 0;
}

static struct geometry trace_geometry(const struct trace_meta *m)
{
    struct geometry g = {m->grid_t, m->grid_h, m->grid_w, m->text_tokens, 0};
    if (m->text_tokens)
        g.text_place = strcmp(m->text_place, "front") == 0 ? 1 : 2;
    return g;
}

/* The order that the tokens have after --permute: the trace's own, unless that is replaced. */
static const char *token_order(const struct trace_meta *m, const struct head_load *how)
{
    const char *order =
        how->permute && strcmp(how->permute, "none") != 0 ? how->permute : m->token_order;
    bool raster = !*order || strcmp(order, "raster") == 0 || strcmp(order, "row") == 0;
    return raster ? NULL : order;
}

static void describe(const struct trace *t, int64_t call, int head, const struct head_load *how,
                     struct head_in *in)
{
    const struct trace_meta *m = trace_meta(t);
    const struct trace_call *c = trace_call(t, call);
    in->src_dtype = m->dtype;
    in->geom = trace_geometry(m);
    in->layer = c->layer;
    in->head = trace_head_number(m, head);
    in->kv_head = trace_kv_number(m, head / (m->heads / m->kv_heads));
    in->n_heads = m->heads;
    in->some_heads = m->head_ids[0] != '\0';
    in->n_kv_heads = m->kv_heads;
    in->n_layers = m->layers;
    in->step = c->step;
    in->n_steps = (int)m->steps;
    in->timestep = c->timestep;
    in->branch = c->branch;
    in->order = token_order(m, how);
    in->moved = how->permute && strcmp(how->permute, "none") != 0 ? how->permute : NULL;
    in->trace = trace_id(t);
}

/* Padding text tokens at the end of the sequence are real rows of the tensors and no tokens: they
 * are dropped before anything looks at the head. */
static int drop_padding(const struct trace *t, int64_t call, struct head_in *in, struct err *err)
{
    const struct trace_meta *m = trace_meta(t);
    const struct trace_score *s = &trace_call(t, call)->score;
    struct trace_span padding = trace_padding(m, s);
    if (padding.count == 0)
        return 0;
    if (padding.first + padding.count != m->n_k)
        return err_set(err, ERR_INPUT,
                       "%s: %lld padding text tokens stand in front of the video; "
                       "only padding at the end can be left out",
                       trace_path(t), (long long)padding.count);
    in->x.nq -= padding.count;
    in->x.nk -= padding.count;
    in->geom.text = trace_text_valid(m, s);
    in->n_padding = padding.count;
    return 0;
}

static int reorder(float **x, int64_t n, int d, const int64_t *perm, struct err *err)
{
    float *to = NULL;
    PASS_ON(rows_permuted(&to, *x, n, d, perm, "reordered tokens", err));
    free(*x);
    *x = to;
    return 0;
}

static int apply_order(const struct trace *t, struct sim_head *h, const struct head_load *how,
                       struct err *err)
{
    OWN(free_at) int64_t *perm = NULL;
    const struct attn_in *x = &h->in.x;

    if (!how->permute || strcmp(how->permute, "none") == 0)
        return 0;
    if (x->causal || x->nq != x->nk)
        return err_set(err, ERR_USAGE,
                       "%s: --permute %s needs bidirectional attention of a sequence with "
                       "itself",
                       trace_path(t), how->permute);
    if (reach_any(&x->reach) || score_has_bias(&x->mods))
        return err_set(
            err, ERR_USAGE,
            "%s: --permute %s of a call whose window, chunk or bias depends on positions",
            trace_path(t), how->permute);
    PASS_ON(permute_make(how->permute, &h->in.geom, x->nk, how->seed, &perm, err));
    PASS_ON(reorder(&h->q, x->nq, x->d, perm, err));
    if (h->borrows_kv)
        return 0; /* they are in this order already */
    PASS_ON(reorder(&h->k, x->nk, x->d, perm, err));
    return reorder(&h->v, x->nk, x->dv, perm, err);
}

static int load_kv(const struct trace *t, int64_t call, int head, const struct head_load *how,
                   struct sim_head *h, struct err *err)
{
    const struct attn_in *x = &h->in.x;
    int kv = head / (trace_meta(t)->heads / trace_meta(t)->kv_heads);
    PASS_ON(read_tensor(t, call, TRACE_K, kv, x->nk, x->d, how, &h->in, &h->k, err));
    return read_tensor(t, call, TRACE_V, kv, x->nk, x->dv, how, &h->in, &h->v, err);
}

int head_shape(const struct trace *t, int64_t call, int head, const struct head_load *how,
               struct sim_head *h, struct err *err)
{
    int rc = 0;

    memset(h, 0, sizeof *h);
    h->trace = t;
    h->call = call;
    h->number = head;
    describe(t, call, head, how, &h->in);
    h->in.operand = h->in.moved ? NULL : trace_operand;
    h->in.queries_from = h->in.operand_from = h;
    TRY(trace_attn(t, call, head, &h->in.x, &h->rel, err));
    TRY(drop_padding(t, call, &h->in, err));
    if (trace_rows(t, &h->sample))
        h->in.rows = &h->sample;
out:
    if (rc)
        sim_head_free(h);
    return rc;
}

int head_load_sharing(const struct trace *t, int64_t call, int head, const struct head_load *how,
                      const struct sim_head *owner, struct sim_head *h, struct err *err)
{
    int rc = 0;

    TRY(head_shape(t, call, head, how, h, err));
    TRY(read_queries(t, call, head, how, h, err));
    h->allow_nonfinite = how->allow_nonfinite;
    h->in.queries = h->in.moved ? NULL : trace_queries;
    h->borrows_kv = owner != NULL;
    if (owner) {
        h->k = owner->k;
        h->v = owner->v;
        h->in.nonfinite[TRACE_K] = owner->in.nonfinite[TRACE_K];
        h->in.nonfinite[TRACE_V] = owner->in.nonfinite[TRACE_V];
    } else {
        TRY(load_kv(t, call, head, how, h, err));
    }
    TRY(apply_order(t, h, how, err));
    sim_head_ready(h, how->precision);
    if (h->in.rows)
        exact_sampled(&h->exact, h->in.rows);
out:
    if (rc)
        sim_head_free(h);
    return rc;
}

int head_load(const struct trace *t, int64_t call, int head, const struct head_load *how,
              struct sim_head *h, struct err *err)
{
    return head_load_sharing(t, call, head, how, NULL, h, err);
}

int64_t head_load_bytes(const struct trace_meta *m)
{
    return (int64_t)dtype_size(m->dtype) *
           (m->n_q * m->head_dim + m->n_k * (m->head_dim + m->v_dim));
}

int64_t head_load_memory(const struct trace_meta *m, enum precision prec)
{
    int64_t floats = m->n_q * m->head_dim + m->n_k * (m->head_dim + m->v_dim);
    int64_t doubles = m->n_q * (m->v_dim + 1);
    if (prec == PREC_F64)
        doubles += m->n_k * (m->head_dim + m->v_dim);
    return floats * 4 + doubles * 8;
}
