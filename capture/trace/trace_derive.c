/*
 * trace_derive.c - traces made from traces (trace_tools.h). A call is copied dataset by dataset,
 * head by head, as stored; so what is kept keeps its bits. Memory is one head, and with maps what
 * attention of a head needs.
 */
#include "capture/trace/trace_tools.h"

#include "core/gemm.h"
#include "core/indexlist.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/pool.h"
#include "core/attention.h"
#include "core/progress.h"
#include "core/trace.h"
#include "core/trace_internal.h"

#include <stdlib.h>
#include <string.h>

#define CELLS_MOST 1024

/* A call to write, and where it comes from. */
struct piece {
    const struct trace *t;
    int64_t call;
    struct trace_call out;
};

struct derive {
    const struct derive_options *o;
    struct trace_meta meta;
    struct head_select heads;
    struct piece *pieces; /* owned, in the order of the new file */
    int64_t n, cap;
    struct trace_writer *w;
    struct row_sample rows; /* drawn anew; rows.at owned, NULL: none */
    int64_t skip;           /* stored query rows before the first one of the new file */
    void *buf;              /* one head, owned */
    int64_t buf_cap;
    struct progress *progress;
};

int64_t map_cell_for(int64_t n_k)
{
    int64_t cell = 64;
    while ((n_k + cell - 1) / cell > CELLS_MOST)
        cell *= 2;
    return cell;
}

/* ---- what to write --------------------------------------------------------------------------- */

static int differs(const struct trace *a, const struct trace *b, const char *what, struct err *err)
{
    return err_set(err, ERR_USAGE,
                   "%s and %s have different %s: only calls of one run of one model "
                   "can be joined",
                   trace_path(a), trace_path(b), what);
}

/* Traces of one model and run: all metadata equal but for where they were computed, and for
 * causality and valid text, which calls can say. */
static int check_alike(const struct trace *a, const struct trace *b, struct err *err)
{
    struct trace_meta x = *trace_meta(a), y = *trace_meta(b);
    struct buf p = {0}, q = {0};
    char field[80];
    int rc;
    y.causal = x.causal;
    y.text_valid = x.text_valid;
    content_meta(&x, &p);
    content_meta(&y, &q);
    if ((rc = buf_check(&p, "metadata", err)) == 0 && (rc = buf_check(&q, "metadata", err)) == 0 &&
        strcmp(buf_str(&p), buf_str(&q)) != 0) {
        const char *s = buf_str(&p), *line = s;
        for (const char *r = buf_str(&q); *s && *s == *r; s++, r++)
            line = *s == '\n' ? s + 1 : line;
        snprintf(field, sizeof field, "%.*s", (int)strcspn(line, "=\n"), line);
        rc = differs(a, b, field, err);
    }
    buf_free(&p);
    buf_free(&q);
    if (rc == 0 && a->rows && memcmp(a->rows, b->rows, (size_t)x.n_q * sizeof *a->rows) != 0)
        rc = differs(a, b, "sampled rows", err);
    return rc;
}

struct wanted {
    int64_t *layers, n_layers, *steps, n_steps;
};

static int add_calls(struct derive *d, const struct trace *t, const struct wanted *w,
                     struct err *err)
{
    for (int64_t i = 0; i < trace_calls(t); i++) {
        const struct trace_call *c = trace_call(t, i);
        if (!index_list_has(w->layers, w->n_layers, c->layer) ||
            !index_list_has(w->steps, w->n_steps, c->step) ||
            (d->o->branch[0] && strcmp(d->o->branch, c->branch) != 0))
            continue;
        PASS_ON(mem_grow(&d->pieces, &d->cap, d->n + 1, sizeof *d->pieces, "calls", err));
        d->pieces[d->n] = (struct piece){t, i, *c};
        trace_score_rebase(&d->pieces[d->n++].out.score, trace_meta(t), &d->meta);
    }
    return 0;
}

int trace_call_order(const struct trace_call *x, const struct trace_call *y)
{
    int d = (x->step > y->step) - (x->step < y->step);
    if (d == 0)
        d = strcmp(x->branch, y->branch);
    return d ? d : (x->layer > y->layer) - (x->layer < y->layer);
}

static int by_run(const void *a, const void *b)
{
    return trace_call_order(&((const struct piece *)a)->out, &((const struct piece *)b)->out);
}

static int sort_calls(struct derive *d, struct err *err)
{
    qsort(d->pieces, (size_t)d->n, sizeof *d->pieces, by_run);
    for (int64_t i = 1; i < d->n; i++)
        if (by_run(&d->pieces[i - 1], &d->pieces[i]) == 0)
            return err_set(err, ERR_USAGE, "step %d, branch %s, layer %d is in %s and in %s",
                           d->pieces[i].out.step, d->pieces[i].out.branch, d->pieces[i].out.layer,
                           trace_path(d->pieces[i - 1].t), trace_path(d->pieces[i].t));
    return 0;
}

/* What all chosen calls say in another way than the model becomes the model's. */
static void settle_model(struct derive *d)
{
    struct trace_meta old = d->meta;
    const struct trace_score *first = &d->pieces[0].out.score;
    bool causal = true, valid = true;
    for (int64_t i = 0; i < d->n; i++) {
        causal &= d->pieces[i].out.score.causal != CAUSAL_AS_MODEL;
        valid &= d->pieces[i].out.score.text_valid != 0 &&
                 d->pieces[i].out.score.text_valid == first->text_valid;
    }
    if (causal)
        d->meta.causal = !old.causal;
    if (valid)
        d->meta.text_valid = first->text_valid - 1;
    for (int64_t i = 0; i < d->n; i++)
        trace_score_rebase(&d->pieces[i].out.score, &old, &d->meta);
}

static bool all_causal(const struct derive *d)
{
    for (int64_t i = 0; i < d->n; i++)
        if (!trace_causal(&d->meta, &d->pieces[i].out.score))
            return false;
    return true;
}

/* The prefill alone: a part of the prompt, or some rows of the sequence. */
static void drop_decode(struct derive *d)
{
    d->meta.decode_from = d->meta.question_from = 0;
    d->meta.generated_by[0] = '\0';
    for (int64_t i = 0; i < d->n; i++)
        d->pieces[i].out.has_col_sum = false;
}

/* The steps [a, b) of a decode phase: the tokens before them are the new prompt, whose window is as
 * long as before. */
static int set_steps(struct derive *d, const struct trace *t, struct err *err)
{
    struct trace_meta *m = &d->meta;
    struct trace_decode all = trace_decode(m);
    const char *text = d->o->steps;
    char *end = NULL;
    if (all.from == 0 || strcmp(text, "all") == 0)
        return 0;
    long long a = strtoll(text, &end, 10), b = *end == ':' ? strtoll(end + 1, &end, 10) : -1;
    if (*end || a < 0 || b <= a || b > all.steps)
        return err_set(
            err, ERR_USAGE,
            "%s: --steps %s: it has a decode phase of %lld steps; give the first one and "
            "the one behind the last, as in 0:%lld",
            trace_path(t), text, (long long)all.steps, (long long)all.steps);
    d->skip = a;
    m->n_q = all.window + b - a;
    m->n_k = all.from + b;
    if (a > 0 && d->pieces[0].out.has_col_sum)
        log_warn("col_sum is of the prompt of %lld tokens: it is left out", (long long)all.from);
    for (int64_t i = 0; a > 0 && i < d->n; i++)
        d->pieces[i].out.has_col_sum = false;
    m->decode_from += a;
    return 0;
}

static int set_tokens(struct derive *d, const struct trace *t, struct err *err)
{
    struct trace_meta *m = &d->meta;
    int64_t n = d->o->tokens;
    if (n == 0 || n == m->n_k)
        return 0;
    if (!all_causal(d) || m->n_q != m->n_k)
        return err_set(err, ERR_USAGE,
                       "%s: --tokens %lld: only of a causal sequence with as many queries as keys "
                       "the first tokens are a run of their own",
                       trace_path(t), (long long)n);
    if (n > m->n_k)
        return err_set(err, ERR_USAGE, "%s has %lld tokens, --tokens asks for %lld", trace_path(t),
                       (long long)m->n_k, (long long)n);
    m->n_q = m->n_k = n;
    if (n <= m->decode_from)
        drop_decode(d);
    return 0;
}

static int set_rows(struct derive *d, const struct trace *t, struct err *err)
{
    struct trace_meta *m = &d->meta;
    int64_t groups, n = m->n_q;
    int32_t *at = NULL;
    if (!d->o->rows)
        return 0;
    if (!all_causal(d) || m->n_q != m->n_k || m->grid_t > 0)
        return err_set(
            err, ERR_USAGE,
            "%s: --rows %s: rows are drawn from a causal sequence with as many queries as keys",
            trace_path(t), d->o->rows);
    PASS_ON(row_sample_parse(d->o->rows, "--rows", &groups, &m->row_group, err));
    PASS_ON(row_sample_draw(n, groups, m->row_group, d->o->seed, &at, &m->n_q, err));
    d->rows = (struct row_sample){.at = at, .n = m->n_q, .group = m->row_group};
    drop_decode(d);
    return 0;
}

/* Which datasets each new call has. Maps of other tokens are no maps of these. */
static void set_flags(struct derive *d, const struct trace *t)
{
    const struct trace_meta *of = trace_meta(t);
    bool cut = d->meta.n_q != of->n_q || d->meta.n_k != of->n_k, lost = false;
    bool keep = d->o->maps == 0 && d->o->tokens == 0 && !cut;
    for (int64_t i = 0; i < d->n; i++) {
        struct trace_call *c = &d->pieces[i].out;
        lost |= c->has_map && !keep && d->o->maps == 0;
        c->has_map = d->o->maps > 0 || (c->has_map && keep);
    }
    if (!keep)
        d->meta.pool = d->o->maps;
    if (lost)
        log_warn("maps are of all tokens: they are left out; lacuna trace map makes them anew");
}

/* Extra operands of the heads and rows that stay. Those with rows of their own are of all tokens.
 */
static void set_aux(struct derive *d, const struct trace *t, struct trace_call *c)
{
    const struct trace_meta *m = &d->meta, *of = trace_meta(t);
    for (int i = 0; i < AUX_COUNT; i++) {
        struct aux_shape *a = &c->aux[i];
        enum trace_what like = trace_aux_rows((enum trace_aux)i);
        if (a->heads == 0)
            continue;
        if (like != TRACE_WHAT_COUNT) {
            a->rows = trace_shape(m, like).tokens;
        } else if (m->n_q != of->n_q || m->n_k != of->n_k) {
            log_warn("aux/%s of layer %d has rows of its own, of all tokens: it is left out",
                     trace_aux_name((enum trace_aux)i), c->layer);
            *a = (struct aux_shape){0};
        }
        if (i == AUX_Q_PRE || i == AUX_K_PRE)
            a->heads = trace_shape(m, like).heads;
    }
}

static int plan(struct derive *d, struct trace *const *t, int64_t n, struct err *err)
{
    struct wanted w = {0};
    int rc = 0;
    d->meta = *trace_meta(t[0]);
    for (int64_t i = 1; i < n; i++)
        TRY(check_alike(t[0], t[i], err));
    TRY(index_list_parse(d->o->layers, d->meta.layers, "--layers", &w.layers, &w.n_layers, err));
    TRY(index_list_parse(d->meta.decode_from ? "all" : d->o->steps,
                         d->meta.steps > 0 ? d->meta.steps : -1, "--steps", &w.steps, &w.n_steps,
                         err));
    for (int64_t i = 0; i < n; i++)
        TRY(add_calls(d, t[i], &w, err));
    if (d->n == 0)
        FAIL(err, ERR_USAGE, "%s: no call matches --layers %s --steps %s%s%s", trace_path(t[0]),
             d->o->layers, d->o->steps, d->o->branch[0] ? " --branch " : "", d->o->branch);
    settle_model(d);
    if (n > 1)
        TRY(sort_calls(d, err));
    for (int64_t i = 0; n > 1 && i < d->n; i++)
        d->pieces[i].out.order = (int)i;
    TRY(set_steps(d, t[0], err));
    TRY(set_tokens(d, t[0], err));
    TRY(set_rows(d, t[0], err));
    if (d->meta.row_group && d->o->maps > 0)
        FAIL(err, ERR_USAGE, "%s holds a sample of query rows; maps are of all rows",
             trace_path(t[0]));
    set_flags(d, t[0]);
    TRY(head_select_stored(d->o->heads, &d->meta, &d->heads, err));
    TRY(head_select_meta(&d->heads, &d->meta, err));
    for (int64_t i = 0; i < d->n; i++) { /* a bias per head stays one per stored head */
        struct trace_score *s = &d->pieces[i].out.score;
        if (s->bias && (d->rows.at || d->meta.n_k != trace_meta(t[0])->n_k))
            FAIL(err, ERR_USAGE,
                 "%s: layer %d has a bias of rows and keys, of which --tokens and --rows keep no "
                 "part; leave them out or choose other --layers",
                 trace_path(t[0]), d->pieces[i].out.layer);
        set_aux(d, t[0], &d->pieces[i].out);
        s->rel_bias = s->rel_bias > 1 ? d->meta.heads : s->rel_bias;
        s->bias = s->bias > 1 ? d->meta.heads : s->bias;
    }
out:
    free(w.layers);
    free(w.steps);
    return rc;
}

/* ---- datasets -------------------------------------------------------------------------------- */

/* Slice of the source that becomes slice i of dataset j. */
static int64_t source_slice(const struct derive *d, const struct trace_array *a, int j, int64_t i)
{
    if (j == TRACE_K || j == TRACE_V)
        return d->heads.kv[i];
    if (j >= TRACE_AUX && j != TRACE_AUX + AUX_Q_PRE) /* heads of their own, which all stay */
        return j == TRACE_AUX + AUX_K_PRE ? d->heads.kv[i] : i;
    return (j == TRACE_REL_BIAS || j == TRACE_BIAS) && a->slices == 1 ? 0 : d->heads.head[i];
}

static bool of_queries(int j)
{
    return j == TRACE_Q || j == TRACE_OUT || j == TRACE_LSE ||
           (j >= TRACE_AUX && trace_aux_rows((enum trace_aux)(j - TRACE_AUX)) == TRACE_Q);
}

/* Rows of a slice that the new file has; the middle of a bias per distance. */
static const char *kept_rows(const struct derive *d, const struct trace_array *from,
                             const struct trace_array *to, int j, const void *data)
{
    int64_t skip = j == TRACE_REL_BIAS ? (from->rows - to->rows) / 2 : of_queries(j) ? d->skip : 0;
    return (const char *)data + skip * from->row_bytes;
}

/* The drawn rows of a slice of q, out or lse, moved to its front. */
static void gather_rows(const struct derive *d, int j, int64_t row_bytes, char *data)
{
    for (int64_t i = 0; of_queries(j) && i < d->rows.n; i++)
        memmove(data + i * row_bytes, data + d->rows.at[i] * row_bytes, (size_t)row_bytes);
}

static int copy_array(struct derive *d, const struct piece *p, int j, struct err *err)
{
    const struct trace_array *from = &p->t->calls[p->call].arr[j];
    struct trace_array to;
    trace_call_array(&d->meta, &p->out, j, &to);
    for (int64_t i = 0; i < to.slices; i++) {
        if (interrupted())
            return err_set(err, ERR_INTERRUPTED, "interrupted");
        PASS_ON(
            mem_grow(&d->buf, &d->buf_cap, from->rows * from->row_bytes, 1, "head to copy", err));
        PASS_ON(trace_read_slice(p->t, p->call, from, source_slice(d, from, j, i), d->buf, err));
        gather_rows(d, j, from->row_bytes, d->buf);
        PASS_ON(trace_put_slice(d->w, j, i, kept_rows(d, from, &to, j, d->buf), err));
    }
    return 0;
}

/* ---- maps ------------------------------------------------------------------------------------ */

struct map_work {
    struct derive *d;
    const struct piece *p;
};

static int read_floats(const struct map_work *m, enum trace_what what, int head, int64_t rows,
                       int64_t dim, float **x, struct err *err)
{
    PASS_ON(mem_alloc(x, rows * dim, sizeof **x, "values of a head", err));
    return trace_read(m->p->t, m->p->call, what, head, 0, rows, *x, err);
}

int trace_map_head(struct trace_writer *w, int head, const struct attn_in *in, int64_t pool,
                   struct err *err)
{
    int64_t cells = (in->nq + pool - 1) / pool * ((in->nk + pool - 1) / pool);
    OWN(attn_release) struct attn_ops ops = {0};
    struct mask full;
    OWN(free_at) float *sum = NULL, *max = NULL;
    OWN(free_at) double *lse = NULL;
    PASS_ON(mem_alloc(&lse, in->nq, sizeof *lse, "lse", err));
    PASS_ON(mem_alloc(&sum, cells, sizeof *sum, "map", err));
    PASS_ON(mem_alloc(&max, cells, sizeof *max, "map", err));
    PASS_ON(attn_prepare(&ops, in, PREC_F32, err));
    attn_full_mask(in, 0, in->nq, &full);
    PASS_ON(attn_rows(&ops, &full, NULL, lse, err));
    PASS_ON(pool_map(&ops, lse, pool, sum, max, err));
    return trace_put_map(w, head, sum, max, err);
}

static int map_head(void *ctx, int64_t i, int worker, struct err *err)
{
    const struct map_work *m = ctx;
    const struct trace_meta *t = &m->d->meta, *of = trace_meta(m->p->t);
    int head = m->d->heads.head[i];
    struct attn_in in;
    OWN(free_at) float *rel = NULL, *q = NULL, *k = NULL;
    (void)worker;
    PASS_ON(trace_attn(m->p->t, m->p->call, head, &in, &rel, err));
    in.nq = t->n_q;
    in.nk = t->n_k;
    PASS_ON(read_floats(m, TRACE_Q, head, in.nq, in.d, &q, err));
    PASS_ON(read_floats(m, TRACE_K, head / (of->heads / of->kv_heads), in.nk, in.d, &k, err));
    in.q = q;
    in.k = k;
    PASS_ON(trace_map_head(m->d->w, (int)i, &in, t->pool, err));
    progress_add(m->d->progress, 1, 1, "map");
    return 0;
}

/* ---- file ------------------------------------------------------------------------------------ */

static int write_call(struct derive *d, const struct piece *p, struct err *err)
{
    struct map_work maps = {d, p};
    PASS_ON(trace_begin_call(d->w, &p->out, err));
    for (int j = 0; j < CALL_ARRAYS; j++) {
        bool map = j == TRACE_MAP_SUM || j == TRACE_MAP_MAX;
        if (trace_call_has(&p->out, j) && !(map && d->o->maps > 0))
            PASS_ON(copy_array(d, p, j, err));
    }
    progress_add(d->progress, 1, 1, "tensors");
    if (d->o->maps > 0) {
        PASS_ON(gemm_ready(err));
        PASS_ON(pool_run(d->o->jobs, d->meta.heads, map_head, &maps, err));
    }
    return trace_end_call(d->w, err);
}

/* Arrays of the run: those of the first file that has them, cut to the tokens. */
static int write_run(struct derive *d, struct trace *const *t, int64_t n, struct err *err)
{
    for (int i = 0; i < RUN_ARRAYS; i++) {
        int64_t from = 0, want = trace_run_length(&d->meta, i);
        if (i == TRACE_ROWS && d->rows.at) {
            PASS_ON(trace_put_run(d->w, TRACE_ROWS, d->rows.n, d->rows.at, err));
            continue;
        }
        while (from < n && !t[from]->run[i].present)
            from++;
        if (from == n)
            continue;
        const struct trace_array *a = &t[from]->run[i];
        PASS_ON(mem_grow(&d->buf, &d->buf_cap, a->rows * a->row_bytes, 1, a->name, err));
        PASS_ON(trace_read_slice(t[from], -1, a, 0, d->buf, err));
        PASS_ON(trace_put_run(d->w, i, want >= 0 ? want : a->rows, d->buf, err));
    }
    return 0;
}

static int write_all(struct derive *d, struct trace *const *t, int64_t n, const char *path,
                     struct err *err)
{
    int64_t items = d->n * (1 + (d->o->maps > 0 ? d->meta.heads : 0)), bytes = 65536;
    struct trace_form form = {.jobs = 1, .force = d->o->force, .copy = d->o->maps == 0};
    int rc = 0;
    for (int64_t i = 0; i < d->n; i++)
        bytes += trace_call_size(&d->meta, &d->pieces[i].out);
    form.need_bytes = bytes;
    TRY(trace_create_as(path, &d->meta, &form, &d->w, err));
    d->progress = progress_start("trace", (double)items, items);
    TRY(write_run(d, t, n, err));
    for (int64_t i = 0; i < d->n; i++)
        TRY(write_call(d, &d->pieces[i], err));
    TRY(trace_commit(&d->w, err));
out:
    progress_end(&d->progress);
    trace_abort(&d->w);
    return rc;
}

int trace_derive(struct trace *const *t, int64_t n, const struct derive_options *o,
                 const char *path, struct derived *out, struct err *err)
{
    struct derive d = {.o = o};
    int rc = 0;
    for (int64_t i = 0; i < n; i++) {
        struct trace_ignored lost = trace_ignored(t[i]);
        if (lost.n)
            log_warn("%s: not copied, as this lacuna does not know them: %lld names, %s%s", path,
                     (long long)lost.n, lost.first, lost.n > 1 ? ", ..." : "");
    }
    TRY(plan(&d, t, n, err));
    out->meta = d.meta;
    out->calls = d.n;
    out->bytes = 0;
    for (int64_t i = 0; i < d.n; i++)
        out->bytes += trace_call_size(&d.meta, &d.pieces[i].out);
    if (!o->dry)
        TRY(write_all(&d, t, n, path, err));
out:
    head_select_free(&d.heads);
    free((int32_t *)(uintptr_t)d.rows.at);
    free(d.pieces);
    free(d.buf);
    return rc;
}
