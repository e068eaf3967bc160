/*
 * lockstep.c - see lockstep.h.
 */
#include "eval/lockstep.h"

#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK 2048 /* tokens of a linear layer's call, as in a capture */

int64_t lockstep_bytes(const struct llm_config *c, int n_streams, int64_t cap, bool keep)
{
    int64_t qdim = (int64_t)c->heads * c->head_dim, kvdim = (int64_t)c->kv_heads * c->head_dim;
    int64_t stream = cap * (c->hidden + 2 * kvdim * (keep ? c->layers : 1));
    return 4 * (n_streams * stream + 3 * cap * qdim) + llm_work_bytes(c, cap < CHUNK ? cap : CHUNK);
}

static void stream_free(struct stream *s, int caches)
{
    for (int i = 0; s->kv && i < caches; i++)
        nn_kv_free(s->kv + i);
    free(s->kv);
    free(s->h);
    free(s->last);
    free(s->attn_err);
    free(s->attn_ref);
    free(s->resid_err);
    free(s->resid_ref);
}

/* Layers whose keys and values, or weights, are here at a time. */
static int caches(const struct lockstep *l)
{
    return l->keep ? l->model->c.layers : l->device ? 0 : 1;
}

void lockstep_close(struct lockstep *l)
{
    if (!l->model)
        return;
    for (int i = 0; l->s && i < l->n_streams; i++)
        stream_free(l->s + i, caches(l));
    for (int i = 0; l->weights && i < caches(l); i++)
        llm_layer_free(l->weights + i);
    free(l->weights);
    free(l->loaded);
    free(l->head);
    free(l->q);
    free(l->o);
    free(l->dense_o);
    free(l->s);
    lockstep_device_close(l); /* which caches() asks about */
    llm_work_free(&l->work);
    memset(l, 0, sizeof *l);
}

static int stream_init(struct lockstep *l, struct stream *s, struct layer_attn *attn,
                       struct err *err)
{
    const struct llm_config *c = &l->model->c;
    double **sums[] = {&s->attn_err, &s->attn_ref, &s->resid_err, &s->resid_ref};
    s->attn = attn;
    PASS_ON(mem_alloc(&s->last, c->hidden, sizeof(float), "hidden state", err));
    if (!l->device)
        PASS_ON(mem_alloc(&s->h, l->cap * c->hidden, sizeof(float), "hidden state", err));
    PASS_ON(mem_zalloc(&s->kv, caches(l), sizeof *s->kv, "keys and values", err));
    for (int i = 0; i < caches(l); i++)
        PASS_ON(nn_kv_init(s->kv + i, l->cap, c->kv_heads, c->head_dim, err));
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++)
        PASS_ON(mem_zalloc(sums[i], c->layers, sizeof(double), "errors of layers", err));
    return 0;
}

int lockstep_open(struct lockstep *l, struct llm_model *m, struct layer_attn *attn, int n_methods,
                  int64_t cap, bool keep, enum dtype round, int jobs, const struct lockstep_on *on,
                  struct err *err)
{
    const struct llm_config *c = &m->c;
    int64_t qdim = (int64_t)c->heads * c->head_dim;
    *l = (struct lockstep){
        .model = m, .jobs = jobs, .n_streams = n_methods + 1, .cap = cap, .keep = keep};
    m->c.rope.tokens = cap; /* frequencies that grow with the prompt are those of the longest */
    PASS_ON(llm_work_init(&l->work, c, cap < CHUNK ? cap : CHUNK, jobs, err));
    l->work.round = round;
    if (on)
        PASS_ON(lockstep_device_open(l, attn, on, err));
    PASS_ON(mem_zalloc(&l->s, l->n_streams, sizeof *l->s, "streams", err));
    for (int i = 0; i < l->n_streams; i++)
        PASS_ON(stream_init(l, l->s + i, i ? attn + i - 1 : NULL, err));
    PASS_ON(mem_zalloc(&l->weights, caches(l), sizeof *l->weights, "layers", err));
    PASS_ON(mem_zalloc(&l->loaded, c->layers, sizeof *l->loaded, "layers", err));
    PASS_ON(mem_alloc(&l->q, cap * qdim, sizeof(float), "queries", err));
    PASS_ON(mem_alloc(&l->o, cap * qdim, sizeof(float), "attention output", err));
    if (!on)
        PASS_ON(mem_alloc(&l->dense_o, cap * qdim, sizeof(float), "attention output", err));
    if (keep) {
        PASS_ON(mem_alloc(&l->head, c->vocab * c->hidden, sizeof(float), "output weights", err));
        PASS_ON(st_read_f32(m->file, m->head, 0, c->vocab * c->hidden, l->head, err));
    }
    return 0;
}

void lockstep_reset(struct lockstep *l)
{
    size_t n = (size_t)l->model->c.layers * sizeof(double);
    l->question = 0;
    for (int i = 0; i < l->n_streams; i++) {
        struct stream *s = l->s + i;
        double *sums[] = {s->attn_err, s->attn_ref, s->resid_err, s->resid_ref};
        for (size_t k = 0; k < sizeof sums / sizeof *sums; k++)
            memset(sums[k], 0, n);
        if (s->attn)
            layer_attn_reset(s->attn);
        if (l->device)
            l->device->linear_ns = l->device->prefills = 0;
        s->idle = false;
        s->status = RECORD_OK;
        s->reason[0] = '\0';
    }
}

/* ---- layers --------------------------------------------------------------------------------- */

static int load(struct lockstep *l, int layer, struct llm_layer **w, struct err *err)
{
    *w = l->weights + (l->keep ? layer : 0);
    if (l->keep && l->loaded[layer])
        return 0;
    l->loaded[layer] = l->keep;
    return llm_layer_load(l->model, layer, *w, err);
}

int lockstep_drop_out(struct stream *s, int layer, int rc, struct err *why, struct err *err)
{
    static const int fatal[] = {ERR_IO, ERR_MACHINE, ERR_USAGE, ERR_NOMEM, ERR_INTERRUPTED};
    bool ends = !s->attn;
    if (rc == METHOD_SKIP) {
        s->status = RECORD_SKIP;
        utf8_copy(s->reason, sizeof s->reason, s->attn->skip);
        return 0;
    }
    err_prefix(why, "layer %d", layer);
    for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++)
        ends = ends || rc == fatal[i];
    if (ends) {
        *err = *why;
        return rc;
    }
    s->status = RECORD_ERROR;
    utf8_copy(s->reason, sizeof s->reason, why->msg);
    return 0;
}

static int stream_layer(struct lockstep *l, struct stream *s, int layer, const struct llm_layer *w,
                        int64_t pos, int64_t n, float *o, float *h, struct err *err)
{
    struct layer_attention method = layer_attn_own(s->attn);
    struct err own = {0};
    int rc = llm_layer_run(&l->work, layer, w, pos, n, s->kv + (l->keep ? layer : 0),
                           s->attn ? &method : NULL, l->q, o, h, &own);
    if (!rc)
        return 0;
    rc = lockstep_drop_out(s, layer, rc, &own, err);
    return rc ? rc : METHOD_SKIP;
}

/* Add ||x - ref||^2 and ||ref||^2. */
static void add_squares(const float *x, const float *ref, int64_t n, double *err, double *norm)
{
    double e = 0, r = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)x[i] - ref[i];
        e += d * d;
        r += (double)ref[i] * ref[i];
    }
    *err += e;
    *norm += r;
}

static int prefill_layer(struct lockstep *l, int layer, struct err *err)
{
    struct stream *dense = l->s;
    int64_t hidden = l->model->c.hidden;
    struct llm_layer *w;
    int rc = 0;
    TRY(load(l, layer, &w, err));
    TRY(stream_layer(l, dense, layer, w, 0, l->n, l->dense_o, dense->h, err));
    for (struct stream *s = l->s + 1; s < l->s + l->n_streams; s++) {
        if (!stream_runs(s))
            continue;
        rc = stream_layer(l, s, layer, w, 0, l->n, l->o, s->h, err);
        if (rc < 0)
            goto out;
        if (rc == 0) {
            add_squares(l->o, l->dense_o, l->n * l->work.qdim, s->attn_err + layer,
                        s->attn_ref + layer);
            add_squares(s->h, dense->h, l->n * hidden, s->resid_err + layer, s->resid_ref + layer);
        }
        rc = 0;
    }
out:
    return rc;
}

int lockstep_prefill(struct lockstep *l, const int32_t *tokens, int64_t n, struct err *err)
{
    const struct llm_config *c = &l->model->c;
    int64_t last;
    PASS_ON(llm_check_tokens(c, tokens, n, err));
    if (n > l->cap)
        return err_set(err, ERR_RUN, "%lld tokens, room for %lld", (long long)n, (long long)l->cap);
    l->n = n;
    for (int i = 1; i < l->n_streams; i++) {
        l->s[i].attn->decoding = false;
        last = l->s[i].attn->how->dense_last;
        l->s[i].attn->dense_rows = last == DENSE_LAST_QUESTION ? l->question : last;
    }
    if (l->device)
        return lockstep_device_prefill(l, tokens, n, err);
    PASS_ON(llm_embed(l->model, tokens, n, l->s[0].h, err));
    for (int i = 1; i < l->n_streams; i++)
        memcpy(l->s[i].h, l->s[0].h, (size_t)(n * c->hidden) * sizeof(float));
    for (int layer = 0; layer < c->layers; layer++)
        PASS_ON(prefill_layer(l, layer, err));
    for (int i = 0; i < l->n_streams; i++) {
        struct stream *s = l->s + i;
        if (!stream_runs(s))
            continue;
        PASS_ON(llm_final_norm(l->model, n, s->h, err));
        memcpy(s->last, s->h + (n - 1) * c->hidden, (size_t)c->hidden * sizeof *s->last);
    }
    return 0;
}

/* Rows through the layers here, not normed. */
static int rows_here(struct lockstep *l, int stream, const int32_t *tokens, int64_t pos, int64_t m,
                     float *rows, struct err *err)
{
    const struct llm_config *c = &l->model->c;
    struct stream *s = l->s + stream;
    bool one_by_one = s->attn && s->attn->how->decode_method;
    int64_t step = one_by_one ? 1 : m;
    if (s->attn) {
        s->attn->decoding = true;
        s->attn->dense_rows = 0;
    }
    PASS_ON(llm_embed(l->model, tokens, m, rows, err));
    for (int64_t t = 0; t < m; t += step)
        for (int layer = 0; layer < c->layers; layer++) {
            struct llm_layer *w;
            PASS_ON(load(l, layer, &w, err));
            PASS_ON(stream_layer(l, s, layer, w, pos + t, step, l->o, rows + t * c->hidden, err));
        }
    return 0;
}

int lockstep_rows(struct lockstep *l, int stream, const int32_t *tokens, int64_t pos, int64_t m,
                  float *rows, struct err *err)
{
    if (pos + m > l->cap)
        return err_set(err, ERR_RUN, "%lld tokens, room for %lld", (long long)(pos + m),
                       (long long)l->cap);
    PASS_ON(l->keep ? rows_here(l, stream, tokens, pos, m, rows, err)
                    : lockstep_device_rows(l, stream, tokens, pos, m, rows, err));
    return llm_final_norm(l->model, m, rows, err);
}

int lockstep_logits(struct lockstep *l, const float *rows, int64_t m, float *logits,
                    struct err *err)
{
    const struct llm_config *c = &l->model->c;
    return nn_linear(rows, m, c->hidden, l->head, NULL, c->vocab, l->jobs, logits, err);
}

int lockstep_hidden(struct lockstep *l, int stream, int64_t row, int64_t n, float *h,
                    struct err *err)
{
    int64_t hidden = l->model->c.hidden;
    if (l->device) {
        PASS_ON(lockstep_device_hidden(l, stream, row, n, h, err));
        PASS_ON(llm_final_norm(l->model, n, h, err));
        return 0;
    }
    memcpy(h, l->s[stream].h + row * hidden, (size_t)(n * hidden) * sizeof *h);
    return 0;
}
