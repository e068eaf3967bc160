/*
 * llm_forward.c - the forward pass of a Llama-family decoder (llm_model.h): pre-norm residual
 * blocks (llm_block.c), then
 *
 *   logits = Head RMSNorm(h)
 *
 * Layers outside, chunks of tokens inside: a layer's weights are read once, and chunk i attends to
 * the keys of chunks 0..i of the same layer.
 */
#include "capture/llm_model.h"

#include "core/checkpoint.h"
#include "core/intmath.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/pool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_CHUNK 2048
#define VOCAB_CHUNK 8192
#define LOGIT_ROWS 512

struct state {
    struct llm_model *m;
    const struct llm_run *run;
    const struct llm_hooks *hooks;
    int64_t chunk;
    float *h;     /* [n][hidden] */
    float *q, *o; /* of a chunk */
    double *lse;  /* [heads][chunk] */
    struct nn_kv kv;
    struct llm_work work;
    struct llm_layer w;
};

static int64_t chunk_tokens(int64_t chunk, int64_t n, int64_t pool)
{
    int64_t c = chunk > 0 ? chunk : DEFAULT_CHUNK;
    if (pool > 0)
        c = (c + pool - 1) / pool * pool;
    return c < n ? c : n;
}

int64_t llm_forward_bytes(const struct llm_config *c, int64_t n, int64_t chunk, int64_t pool)
{
    int64_t rows = chunk_tokens(chunk, n, pool), cells = pool ? (n + pool - 1) / pool : 0;
    int64_t qdim = (int64_t)c->heads * c->head_dim, kvdim = (int64_t)c->kv_heads * c->head_dim;
    int64_t floats = n * c->hidden + 2 * n * kvdim + rows * (2 * qdim + 2 * c->heads);
    floats += VOCAB_CHUNK * c->hidden + LOGIT_ROWS * VOCAB_CHUNK;
    floats += 2 * c->heads * cells * cells;
    return 4 * floats + llm_work_bytes(c, rows) + llm_layer_bytes(c);
}

static void state_free(struct state *s)
{
    free(s->h);
    free(s->q);
    free(s->o);
    free(s->lse);
    nn_kv_free(&s->kv);
    llm_work_free(&s->work);
    llm_layer_free(&s->w);
}

static int state_init(struct state *s, struct err *err)
{
    const struct llm_config *c = &s->m->c;
    int64_t r = s->chunk, qdim = (int64_t)c->heads * c->head_dim;
    PASS_ON(llm_work_init(&s->work, c, r, s->run->jobs, err));
    PASS_ON(mem_alloc(&s->h, s->run->n * c->hidden, sizeof(float), "hidden state", err));
    PASS_ON(mem_alloc(&s->q, r * qdim, sizeof(float), "queries", err));
    PASS_ON(mem_alloc(&s->o, r * qdim, sizeof(float), "attention output", err));
    PASS_ON(mem_alloc(&s->lse, r * c->heads, sizeof(double), "log-sum-exp", err));
    return nn_kv_init(&s->kv, s->run->n, c->kv_heads, c->head_dim, err);
}

/* ---- one layer ------------------------------------------------------------------------------ */

static int run_chunk(struct state *s, int layer, int64_t t0, int64_t n, struct attnmap *map,
                     struct err *err)
{
    const struct llm_config *c = &s->m->c;
    double scale = 1 / sqrt(c->head_dim);
    float *h = s->h + t0 * c->hidden;
    if (interrupted())
        return err_set(err, ERR_INTERRUPTED, "interrupted");
    PASS_ON(llm_project(&s->work, &s->w, h, t0, n, &s->kv, s->q, err));
    if (s->hooks->rows)
        PASS_ON(s->hooks->rows(s->hooks->ctx, layer, t0, n, s->q, s->work.k, s->work.v, err));
    PASS_ON(nn_attention(s->q, &s->kv, n, t0 + n, c->heads, scale, true, s->run->jobs, s->o, s->lse,
                         err));
    if (map)
        PASS_ON(
            attnmap_rows(map, s->q, &s->kv, t0, n, t0 + n, scale, true, s->lse, s->run->jobs, err));
    return llm_finish(&s->work, &s->w, s->o, n, h, err);
}

static int run_layer(struct state *s, int layer, struct err *err)
{
    const struct llm_hooks *hooks = s->hooks;
    OWN(attnmap_free) struct attnmap map = {0};
    int64_t n = s->run->n;
    bool maps = s->run->pool > 0 && (!hooks->wants_map || hooks->wants_map(hooks->ctx, layer));
    PASS_ON(llm_layer_load(s->m, layer, &s->w, err));
    if (maps)
        PASS_ON(attnmap_init(&map, s->m->c.heads, n, n, s->run->pool, err));
    if (hooks->begin_layer)
        PASS_ON(hooks->begin_layer(hooks->ctx, layer, err));
    for (int64_t t = 0; t < n; t += s->chunk)
        PASS_ON(
            run_chunk(s, layer, t, t + s->chunk < n ? s->chunk : n - t, maps ? &map : NULL, err));
    if (hooks->end_layer)
        return hooks->end_layer(hooks->ctx, layer, maps ? &map : NULL, err);
    return 0;
}

/* ---- logits --------------------------------------------------------------------------------- */

/* Online log-sum-exp over the vocabulary of some tokens. */
struct tally {
    double *top, *sum, *target; /* [n] */
};

static void tally_row(struct tally *t, int64_t i, const float *logits, int64_t n, int64_t v0,
                      int64_t target)
{
    double top = t->top[i], sum = 0;
    for (int64_t j = 0; j < n; j++)
        top = logits[j] > top ? logits[j] : top;
    for (int64_t j = 0; j < n; j++)
        sum += exp(logits[j] - top);
    t->sum[i] = t->sum[i] * exp(t->top[i] - top) + sum;
    t->top[i] = top;
    if (target >= v0 && target < v0 + n)
        t->target[i] = logits[target - v0];
}

/* Rows of the head [v0, v0 + nv) against all tokens. */
static int vocab_chunk(struct state *s, int64_t v0, int64_t nv, float *w, float *logits,
                       struct tally *t, struct err *err)
{
    const struct llm_config *c = &s->m->c;
    const struct llm_run *run = s->run;
    PASS_ON(st_read_f32(s->m->file, s->m->head, v0 * c->hidden, nv * c->hidden, w, err));
    for (int64_t r = 0; run->nll && r < run->n - 1; r += LOGIT_ROWS) {
        int64_t n = run->n - 1 - r < LOGIT_ROWS ? run->n - 1 - r : LOGIT_ROWS;
        PASS_ON(nn_linear(s->h + r * c->hidden, n, c->hidden, w, NULL, nv, run->jobs, logits, err));
        for (int64_t i = 0; i < n; i++)
            tally_row(t, r + i, logits + i * nv, nv, v0, run->tokens[r + i + 1]);
    }
    if (run->last_logits)
        return nn_linear(s->h + (run->n - 1) * c->hidden, 1, c->hidden, w, NULL, nv, run->jobs,
                         run->last_logits + v0, err);
    return 0;
}

static int likelihoods(struct state *s, struct err *err)
{
    const struct llm_config *c = &s->m->c;
    int64_t n = s->run->n;
    float *w = NULL, *logits = NULL;
    struct tally t = {0};
    int rc = 0;
    TRY(llm_final_norm(s->m, n, s->h, err));
    TRY(mem_alloc(&w, VOCAB_CHUNK * c->hidden, sizeof *w, "output weights", err));
    TRY(mem_alloc(&logits, LOGIT_ROWS * VOCAB_CHUNK, sizeof *logits, "logits", err));
    TRY(mem_alloc(&t.top, n, sizeof(double), "likelihoods", err));
    TRY(mem_zalloc(&t.sum, n, sizeof(double), "likelihoods", err));
    TRY(mem_zalloc(&t.target, n, sizeof(double), "likelihoods", err));
    for (int64_t i = 0; i < n; i++)
        t.top[i] = -INFINITY;
    for (int64_t v = 0; v < c->vocab; v += VOCAB_CHUNK)
        TRY(vocab_chunk(s, v, c->vocab - v < VOCAB_CHUNK ? c->vocab - v : VOCAB_CHUNK, w, logits,
                        &t, err));
    for (int64_t i = 0; s->run->nll && i < n - 1; i++)
        s->run->nll[i] = (float)(t.top[i] + log(t.sum[i]) - t.target[i]);
out:
    free(w);
    free(logits);
    free(t.top);
    free(t.sum);
    free(t.target);
    return rc;
}

/* ---- the run -------------------------------------------------------------------------------- */

int llm_check_tokens(const struct llm_config *c, const int32_t *tokens, int64_t n, struct err *err)
{
    if (n < 1)
        return err_set(err, ERR_USAGE, "the prompt is empty");
    for (int64_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= c->vocab)
            return err_set(err, ERR_INPUT, "token %lld is %d, the model's vocabulary is 0..%lld",
                           (long long)i, tokens[i], (long long)c->vocab - 1);
    return 0;
}

int llm_forward(struct llm_model *m, const struct llm_run *run, const struct llm_hooks *hooks,
                struct err *err)
{
    static const struct llm_hooks none = {0};
    OWN(state_free) struct state s = {.m = m, .run = run, .hooks = hooks ? hooks : &none};
    int rc = 0;
    PASS_ON(llm_check_tokens(&m->c, run->tokens, run->n, err));
    const char *lacks = llm_device_lacks(&m->c, run->n);
    if (run->device && lacks[0])
        return err_set(err, ERR_MACHINE,
                       "--device %s has no %s, which %s needs: --device cpu runs it",
                       run->device->name, lacks, m->c.architecture);
    if (run->device)
        return llm_forward_device(m, run, s.hooks, err);
    s.chunk = chunk_tokens(run->chunk, run->n, run->pool);
    m->c.rope.tokens = run->n;
    PASS_ON(state_init(&s, err));
    PASS_ON(llm_embed(m, run->tokens, run->n, s.h, err));
    int layers = run->layers > 0 && run->layers < m->c.layers ? run->layers : m->c.layers;
    for (int layer = 0; layer < layers; layer++) {
        rc = run_layer(&s, layer, err);
        if (rc) {
            err_prefix(err, "layer %d", layer);
            return rc;
        }
    }
    if (run->nll || run->last_logits)
        PASS_ON(likelihoods(&s, err));
    return rc;
}

/* A head of its own that is not the embedding contradicts tie_word_embeddings: it is taken. */
static int check_tied(struct llm_model *m, const char *model, const char *name, struct err *err)
{
    const struct st_tensor *head = st_find(m->file, name);
    const int64_t chunk = 65536;
    OWN(free_at) float *a = NULL, *b = NULL;
    if (!head || head->count != m->embed->count)
        return 0;
    PASS_ON(mem_alloc(&a, chunk, sizeof *a, name, err));
    PASS_ON(mem_alloc(&b, chunk, sizeof *b, name, err));
    for (int64_t at = 0; at < head->count && m->c.tied; at += chunk) {
        int64_t n = MIN(chunk, head->count - at);
        PASS_ON(st_read_f32(m->file, m->embed, at, n, a, err));
        PASS_ON(st_read_f32(m->file, head, at, n, b, err));
        m->c.tied = memcmp(a, b, (size_t)n * sizeof *a) == 0;
    }
    if (!m->c.tied)
        log_warn("%s: tie_word_embeddings is true, but %s is not the embedding: it is taken, as in "
                 "transformers 5",
                 model, name);
    return 0;
}

/* Embeddings, output matrix and last norm. */
static int find_ends(struct llm_model *m, const char *model, struct err *err)
{
    static const char *const names[][3] = {
        [NAMES_LLAMA] = {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"},
        [NAMES_MIXTRAL] = {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"},
        [NAMES_INTERNLM2] = {"model.tok_embeddings.weight", "output.weight", "model.norm.weight"},
        [NAMES_GGUF] = {"token_embd.weight", "output.weight", "output_norm.weight"},
    };
    const char *const *name = names[m->c.naming];
    int64_t shape[2] = {m->c.vocab, m->c.hidden};
    PASS_ON(llm_tensor_require(m, name[0], 2, shape, &m->embed, err));
    m->head = m->embed;
    if (m->c.tied)
        PASS_ON(check_tied(m, model, name[1], err));
    if (!m->c.tied)
        PASS_ON(llm_tensor_require(m, name[1], 2, shape, &m->head, err));
    PASS_ON(llm_tensor_require(m, name[2], 1, shape + 1, &m->norm, err));
    if (m->c.dtype == DT_NONE)
        m->c.dtype = m->embed->dtype == DT_F64 ? DT_F32 : m->embed->dtype;
    return 0;
}

/* Rotary factors are part of the configuration. */
static int refuse_others(const char *path, const struct llm_model *m, const bool *used,
                         struct err *err)
{
    for (int64_t i = 0; i < st_count(m->file); i++) {
        const struct st_tensor *t = st_at(m->file, i);
        if (!used[i] && t != m->embed && t != m->head && t != m->norm &&
            strncmp(t->name, "rope_f", 6) != 0)
            return err_set(err, ERR_INPUT,
                           "%s: tensor '%s' is no part of %s as it is computed here; this variant "
                           "of the architecture is not supported",
                           path, t->name, m->c.architecture);
    }
    return 0;
}

int llm_open(const char *model, struct llm_model *m, struct err *err)
{
    bool *used = NULL;
    int rc = 0;
    memset(m, 0, sizeof *m);
    TRY(llm_config_read(model, &m->c, err));
    TRY(checkpoint_weights(model, &m->file, err));
    TRY(find_ends(m, model, err));
    TRY(mem_zalloc(&used, st_count(m->file), sizeof *used, "tensors", err));
    for (int i = 0; i < m->c.layers; i++)
        TRY(llm_layer_check(m, i, used, err));
    if (m->c.naming == NAMES_GGUF)
        TRY(refuse_others(model, m, used, err));
out:
    free(used);
    if (rc)
        llm_close(m);
    return rc;
}

void llm_close(struct llm_model *m)
{
    st_close(&m->file);
    memset(m, 0, sizeof *m);
}
