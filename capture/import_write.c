/*
 * import_write.c - checked tensors into a trace file, with pooled maps if asked for.
 */
#include "capture/import.h"

#include "core/gemm.h"
#include "core/mem.h"
#include "core/pool.h"
#include "core/attention.h"
#include "core/progress.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- shapes ---------------------------------------------------------------------------------- */

static int demand(const struct source *s, const char *what, int64_t have, int64_t want,
                  const char *why, struct err *err)
{
    if (have == want)
        return 0;
    return err_set(err, ERR_INPUT, "%s has %lld %s, expected %lld as %s", s->name, (long long)have,
                   what, (long long)want, why);
}

static int check_call(const struct import_call *c, const struct trace_meta *m, struct err *err)
{
    int rc = 0;
    TRY(demand(&c->q, "heads", c->q.heads, m->heads, "q of the first call", err));
    TRY(demand(&c->q, "tokens", c->q.tokens, m->n_q, "q of the first call", err));
    TRY(demand(&c->q, "dims", c->q.dim, m->head_dim, "q of the first call", err));
    TRY(demand(&c->k, "heads", c->k.heads, m->kv_heads, "k of the first call", err));
    TRY(demand(&c->k, "tokens", c->k.tokens, m->n_k, "k of the first call", err));
    TRY(demand(&c->k, "dims", c->k.dim, m->head_dim, "q", err));
    TRY(demand(&c->v, "heads", c->v.heads, m->kv_heads, "k", err));
    TRY(demand(&c->v, "tokens", c->v.tokens, m->n_k, "k", err));
    TRY(demand(&c->v, "dims", c->v.dim, m->v_dim, "v of the first call", err));
    if (c->out.heads > 0) {
        TRY(demand(&c->out, "heads", c->out.heads, m->heads, "q", err));
        TRY(demand(&c->out, "tokens", c->out.tokens, m->n_q, "q", err));
        TRY(demand(&c->out, "dims", c->out.dim, m->v_dim, "v", err));
    }
out:
    return rc;
}

static int choose_dtype(struct import_job *j, enum dtype dtype, struct err *err)
{
    enum dtype found = j->calls[0].q.dtype;

    if (dtype != DT_NONE) {
        j->meta.dtype = dtype;
        return 0;
    }
    for (int64_t i = 0; i < j->n_calls; i++) {
        const struct import_call *c = &j->calls[i];
        const struct source *all[] = {&c->q, &c->k, &c->v};
        for (int s = 0; s < 3; s++)
            if (all[s]->dtype != found)
                return err_set(err, ERR_INPUT,
                               "%s has %s, %s has %s; say with --dtype what to "
                               "store",
                               j->calls[0].q.name, dtype_name(found), all[s]->name,
                               dtype_name(all[s]->dtype));
    }
    if (found != DT_F32 && found != DT_BF16 && found != DT_F16)
        return err_set(err, ERR_INPUT,
                       "%s has %s; a trace holds float32, bfloat16 or float16: "
                       "choose with --dtype",
                       j->calls[0].q.name, dtype_name(found));
    j->meta.dtype = found;
    return 0;
}

int import_shapes(struct import_job *j, enum dtype dtype, struct err *err)
{
    struct trace_meta *m = &j->meta;
    struct import_call *c = j->calls;
    int rc = 0;

    if (c->q.heads > 65536 || c->k.heads > 65536 || c->q.dim > 65536 || c->v.dim > 65536)
        FAIL(err, ERR_INPUT, "%s: %lld heads of dim %lld are more than a trace holds", c->q.name,
             (long long)c->q.heads, (long long)c->q.dim);
    m->heads = (int)c->q.heads;
    m->kv_heads = (int)c->k.heads;
    m->head_dim = (int)c->q.dim;
    m->v_dim = (int)c->v.dim;
    m->n_q = c->q.tokens;
    m->n_k = c->k.tokens;
    if (m->heads % m->kv_heads != 0)
        FAIL(err, ERR_INPUT, "%s has %d heads, not a multiple of the %d kv heads of %s", c->q.name,
             m->heads, m->kv_heads, c->k.name);
    if (m->scale == 0)
        m->scale = 1 / sqrt(m->head_dim);
    for (int64_t i = 0; i < j->n_calls; i++) {
        TRY(check_call(&j->calls[i], m, err));
        if (j->calls[i].call.layer >= m->layers)
            m->layers = j->calls[i].call.layer + 1;
        trace_score_rebase(&j->calls[i].call.score, m, m);
    }
    TRY(choose_dtype(j, dtype, err));
    if ((rc = trace_meta_check(m, err)) != 0)
        rc = err_prefix(err, "%s", c->q.name);
out:
    return rc;
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Values that are not finite once stored. */
struct nonfinite {
    int64_t count, head, token, dim;
};

static void look_for_nonfinite(const float *x, const struct source *s, int64_t head, enum dtype t,
                               struct nonfinite *bad)
{
    for (int64_t i = 0; i < s->tokens * s->dim; i++)
        if (!isfinite(dtype_round(t, x[i])) && bad->count++ == 0) {
            bad->head = head;
            bad->token = i / s->dim;
            bad->dim = i % s->dim;
        }
}

static int put_source(struct import_job *j, struct trace_writer *w, struct source *s,
                      enum trace_what what, struct err *err)
{
    struct nonfinite bad = {0};
    float *x = NULL;
    int rc = 0;

    TRY(mem_alloc(&x, s->tokens * s->dim, sizeof *x, s->name, err));
    for (int64_t h = 0; h < s->heads; h++) {
        if (interrupted())
            FAIL(err, ERR_INTERRUPTED, "interrupted");
        TRY(source_head(s, h, x, err));
        look_for_nonfinite(x, s, h, j->meta.dtype, &bad);
        TRY(trace_put_head(w, what, (int)h, 0, s->tokens, x, err));
    }
    if (bad.count && !j->allow_nonfinite)
        FAIL(err, ERR_INPUT,
             "%s: %lld values are NaN or infinite as %s, the first at head %lld, "
             "token %lld, dim %lld; --allow-nonfinite takes them",
             s->name, (long long)bad.count, dtype_name(j->meta.dtype), (long long)bad.head,
             (long long)bad.token, (long long)bad.dim);
out:
    free(x);
    return rc;
}

/* ---- maps ------------------------------------------------------------------------------------ */

struct map_work {
    struct import_job *j;
    struct import_call *c;
    struct trace_writer *w;
    struct progress *progress;
};

/* A head as it is stored. */
static int stored_head(struct source *s, int64_t head, enum dtype t, float **out, struct err *err)
{
    int64_t n = s->tokens * s->dim;
    int rc = mem_alloc(out, n, sizeof **out, s->name, err);
    if (rc == 0)
        rc = source_head(s, head, *out, err);
    for (int64_t i = 0; rc == 0 && i < n; i++)
        (*out)[i] = dtype_round(t, (*out)[i]);
    return rc;
}

/* Cap, bias and sink of a head. */
static struct score_mods call_mods(const struct import_call *c, const struct trace_meta *m,
                                   int64_t head)
{
    int64_t row = c->call.score.rel_bias > 1 ? head * (2 * m->n_k - 1) : 0;
    int64_t at = c->call.score.bias > 1 ? head * m->n_q * m->n_k : 0;
    return (struct score_mods){
        .softcap = c->call.score.softcap,
        .alibi = c->alibi ? (double)c->alibi[head] : 0,
        .rel = c->rel_bias ? c->rel_bias + row + m->n_k - 1 : NULL,
        .pair = {c->bias ? c->bias + at : NULL, m->n_k, m->n_k - m->n_q},
        .has_sink = c->sinks != NULL,
        .sink = c->sinks ? (double)c->sinks[head] : 0,
    };
}

static int map_head(void *ctx, int64_t head, int worker, struct err *err)
{
    struct map_work *m = ctx;
    struct trace_meta *t = &m->j->meta;
    int64_t cq = (t->n_q + t->pool - 1) / t->pool, ck = (t->n_k + t->pool - 1) / t->pool;
    struct attn_ops ops = {0};
    struct mask full;
    float *q = NULL, *k = NULL, *sum = NULL, *max = NULL;
    double *lse = NULL;
    int rc = 0;

    (void)worker;
    TRY(stored_head(&m->c->q, head, t->dtype, &q, err));
    TRY(stored_head(&m->c->k, head / (t->heads / t->kv_heads), t->dtype, &k, err));
    TRY(mem_alloc(&lse, t->n_q, sizeof *lse, "lse", err));
    TRY(mem_alloc(&sum, cq * ck, sizeof *sum, "map", err));
    TRY(mem_alloc(&max, cq * ck, sizeof *max, "map", err));
    struct attn_in in = {.nq = t->n_q,
                         .nk = t->n_k,
                         .d = t->head_dim,
                         .dv = t->v_dim,
                         .q = q,
                         .k = k,
                         .scale = m->c->call.score.scale != 0 ? m->c->call.score.scale : t->scale,
                         .causal = trace_causal(t, &m->c->call.score),
                         .reach = m->c->call.score.reach,
                         .mods = call_mods(m->c, t, head)};
    TRY(attn_prepare(&ops, &in, PREC_F32, err));
    attn_full_mask(&in, 0, t->n_q, &full);
    TRY(attn_rows(&ops, &full, NULL, lse, err));
    TRY(pool_map(&ops, lse, t->pool, sum, max, err));
    TRY(trace_put_map(m->w, (int)head, sum, max, err));
    progress_add(m->progress, 1, 1, "map");
out:
    attn_release(&ops);
    free(q);
    free(k);
    free(lse);
    free(sum);
    free(max);
    return rc;
}

/* ---- file ------------------------------------------------------------------------------------ */

static int write_call(struct import_job *j, struct trace_writer *w, struct import_call *c, int jobs,
                      struct progress *progress, struct err *err)
{
    struct map_work maps = {j, c, w, progress};
    int rc = 0;

    c->call.has_out = c->out.heads > 0;
    c->call.has_map = j->meta.pool > 0;
    TRY(trace_begin_call(w, &c->call, err));
    TRY(put_source(j, w, &c->q, TRACE_Q, err));
    TRY(put_source(j, w, &c->k, TRACE_K, err));
    TRY(put_source(j, w, &c->v, TRACE_V, err));
    if (c->call.has_out)
        TRY(put_source(j, w, &c->out, TRACE_OUT, err));
    if (c->sinks)
        TRY(trace_put_values(w, TRACE_SINKS, c->sinks, err));
    if (c->alibi)
        TRY(trace_put_values(w, TRACE_ALIBI, c->alibi, err));
    if (c->rel_bias)
        TRY(trace_put_values(w, TRACE_REL_BIAS, c->rel_bias, err));
    if (c->bias)
        TRY(trace_put_values(w, TRACE_BIAS, c->bias, err));
    progress_add(progress, 1, 1, "tensors");
    if (c->call.has_map)
        TRY(gemm_ready(err));
    if (c->call.has_map)
        TRY(pool_run(jobs, j->meta.heads, map_head, &maps, err));
    TRY(trace_end_call(w, err));
    source_free(&c->q);
    source_free(&c->k);
    source_free(&c->v);
    source_free(&c->out);
out:
    return rc;
}

int import_write(struct import_job *j, const char *path, int jobs, bool force, struct err *err)
{
    struct trace_writer *w = NULL;
    struct progress *progress = NULL;
    int64_t items = j->n_calls * (1 + (j->meta.pool > 0 ? j->meta.heads : 0));
    int rc = 0;

    TRY(trace_create(path, &j->meta, j->n_calls, force, &w, err));
    progress = progress_start("import", (double)items, items);
    if (j->tokens)
        TRY(trace_put_run(w, TRACE_TOKENS, j->meta.n_k, j->tokens, err));
    if (j->rows)
        TRY(trace_put_run(w, TRACE_ROWS, j->meta.n_q, j->rows, err));
    if (j->nll)
        TRY(trace_put_run(w, TRACE_NLL, j->meta.n_k - 1, j->nll, err));
    TRY(trace_put_run(w, TRACE_TIMESTEPS, j->n_timesteps, j->timesteps, err));
    TRY(trace_put_run(w, TRACE_SIGMAS, j->n_sigmas, j->sigmas, err));
    for (int64_t i = 0; i < j->n_calls; i++)
        TRY(write_call(j, w, &j->calls[i], jobs, progress, err));
    TRY(trace_commit(&w, err));
out:
    progress_end(&progress);
    trace_abort(&w);
    return rc;
}

void import_free(struct import_job *j)
{
    for (int64_t i = 0; i < j->n_calls; i++) {
        source_free(&j->calls[i].q);
        source_free(&j->calls[i].k);
        source_free(&j->calls[i].v);
        source_free(&j->calls[i].out);
        free(j->calls[i].sinks);
        free(j->calls[i].alibi);
        free(j->calls[i].rel_bias);
        free(j->calls[i].bias);
    }
    free(j->calls);
    free(j->tokens);
    free(j->rows);
    free(j->nll);
    free(j->timesteps);
    free(j->sigmas);
    memset(j, 0, sizeof *j);
}
