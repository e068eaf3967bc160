/*
 * llm_block.c - the parts of a layer (llm_model.h).
 */
#include "capture/llm_model.h"

#include "capture/nn.h"
#include "core/mem.h"
#include "core/pool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- experts -------------------------------------------------------------------------------- */

static int llm_experts_init(struct llm_experts *e, const struct llm_config *c, int64_t rows,
                            struct err *err)
{
    PASS_ON(mem_alloc(&e->logits, rows * c->experts, sizeof(float), "router", err));
    PASS_ON(mem_alloc(&e->sum, rows * c->hidden, sizeof(float), "experts", err));
    PASS_ON(mem_alloc(&e->in, rows * c->hidden, sizeof(float), "experts", err));
    PASS_ON(mem_alloc(&e->out, rows * c->hidden, sizeof(float), "experts", err));
    PASS_ON(mem_alloc(&e->gate, rows * c->expert_ffn, sizeof(float), "experts", err));
    PASS_ON(mem_alloc(&e->up, rows * c->expert_ffn, sizeof(float), "experts", err));
    return mem_alloc(&e->of_expert, rows, sizeof *e->of_expert, "experts", err);
}

static void llm_experts_free(struct llm_experts *e)
{
    free(e->logits);
    free(e->sum);
    free(e->in);
    free(e->out);
    free(e->gate);
    free(e->up);
    free(e->of_expert);
    memset(e, 0, sizeof *e);
}

/* 0 without experts */
static int64_t llm_experts_bytes(const struct llm_config *c, int64_t rows)
{
    if (c->experts == 0)
        return 0;
    return rows * (4 * (c->experts + 3 * c->hidden + 2 * c->expert_ffn) + (int64_t)sizeof(int64_t));
}

/* Softmax of n logits; all but the `used` largest become 0. Among equals the first is
 * chosen. */
static void route(float *z, int n, int used, bool normalise)
{
    float top = z[0];
    double sum = 0, kept = 0;
    for (int i = 1; i < n; i++)
        top = z[i] > top ? z[i] : top;
    for (int i = 0; i < n; i++)
        sum += z[i] = expf(z[i] - top);
    for (int k = 0; k < used; k++) {
        int best = -1;
        for (int i = 0; i < n; i++)
            if (z[i] >= 0 && (best < 0 || z[i] > z[best]))
                best = i;
        kept += z[best];
        z[best] = -1 - z[best]; /* chosen */
    }
    for (int i = 0; i < n; i++)
        z[i] = z[i] < 0 ? (float)((-1 - z[i]) / (normalise ? kept : sum)) : 0;
}

/* The tokens of one expert, and what it makes of them added to their sums. */
static int run_expert(struct llm_experts *e, const struct llm_config *c, const struct llm_layer *l,
                      int expert, const float *x, int64_t n, int jobs, struct err *err)
{
    int64_t d = c->hidden, f = c->expert_ffn, m = 0, at = expert * d * f;
    for (int64_t i = 0; i < n; i++)
        if (e->logits[i * c->experts + expert] > 0) {
            memcpy(e->in + m * d, x + i * d, (size_t)d * sizeof *x);
            e->of_expert[m++] = i;
        }
    if (m == 0)
        return 0;
    PASS_ON(nn_linear(e->in, m, d, l->t[LLM_E_GATE] + at, NULL, f, jobs, e->gate, err));
    PASS_ON(nn_linear(e->in, m, d, l->t[LLM_E_UP] + at, NULL, f, jobs, e->up, err));
    nn_silu(e->gate, m * f);
    for (int64_t i = 0; i < m * f; i++)
        e->gate[i] *= e->up[i];
    PASS_ON(nn_linear(e->gate, m, f, l->t[LLM_E_DOWN] + at, NULL, d, jobs, e->out, err));
    for (int64_t k = 0; k < m; k++) {
        float w = e->logits[e->of_expert[k] * c->experts + expert];
        float *to = e->sum + e->of_expert[k] * d;
        for (int64_t i = 0; i < d; i++)
            to[i] += w * e->out[k * d + i];
    }
    return 0;
}

/* x [n][hidden], normed, becomes what the experts make of it. */
static int llm_experts_run(struct llm_experts *e, const struct llm_config *c,
                           const struct llm_layer *l, float *x, int64_t n, int jobs,
                           struct err *err)
{
    PASS_ON(nn_linear(x, n, c->hidden, l->t[LLM_ROUTER], NULL, c->experts, jobs, e->logits, err));
    for (int64_t i = 0; i < n; i++)
        route(e->logits + i * c->experts, c->experts, c->experts_used, c->experts_normalised);
    memset(e->sum, 0, (size_t)(n * c->hidden) * sizeof(float));
    for (int i = 0; i < c->experts; i++)
        PASS_ON(run_expert(e, c, l, i, x, n, jobs, err));
    memcpy(x, e->sum, (size_t)(n * c->hidden) * sizeof(float));
    return 0;
}

int64_t llm_work_bytes(const struct llm_config *c, int64_t chunk)
{
    int64_t kvdim = (int64_t)c->kv_heads * c->head_dim;
    return 4 * chunk * (c->hidden + 2 * kvdim + 2 * c->ffn) + llm_experts_bytes(c, chunk);
}

void llm_work_free(struct llm_work *s)
{
    float *all[] = {s->x, s->k, s->v, s->gate, s->up};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    free(s->inv_freq);
    llm_experts_free(&s->experts);
    memset(s, 0, sizeof *s);
}

int llm_work_init(struct llm_work *s, const struct llm_config *c, int64_t chunk, int jobs,
                  struct err *err)
{
    *s = (struct llm_work){.c = c, .jobs = jobs, .chunk = chunk, .round = DT_F32};
    s->qdim = (int64_t)c->heads * c->head_dim;
    s->kvdim = (int64_t)c->kv_heads * c->head_dim;
    PASS_ON(mem_alloc(&s->x, chunk * c->hidden, sizeof(float), "activations", err));
    PASS_ON(mem_alloc(&s->k, chunk * s->kvdim, sizeof(float), "keys", err));
    PASS_ON(mem_alloc(&s->v, chunk * s->kvdim, sizeof(float), "values", err));
    PASS_ON(mem_alloc(&s->gate, chunk * c->ffn, sizeof(float), "feed-forward", err));
    PASS_ON(mem_alloc(&s->up, chunk * c->ffn, sizeof(float), "feed-forward", err));
    PASS_ON(mem_alloc(&s->inv_freq, c->head_dim / 2, sizeof(double), "rotary table", err));
    s->rope_factor = rope_frequencies(&c->rope, c->rotary.rotated, s->inv_freq);
    if (c->experts > 0)
        PASS_ON(llm_experts_init(&s->experts, c, chunk, err));
    return 0;
}

/* Through the type of the checkpoint and back, as a trace would hold it. */
static void round_all(float *x, int64_t n, enum dtype t)
{
    for (int64_t i = 0; t != DT_F32 && i < n; i++)
        x[i] = dtype_round(t, x[i]);
}

int llm_project(struct llm_work *s, const struct llm_layer *layer, const float *h, int64_t pos0,
                int64_t n, struct nn_kv *kv, float *q, struct err *err)
{
    const struct llm_config *c = s->c;
    float *const *w = layer->t;
    nn_rms_norm(h, n, c->hidden, w[LLM_NORM1], c->eps, s->x);
    PASS_ON(nn_linear(s->x, n, c->hidden, w[LLM_Q], w[LLM_Q_B], s->qdim, s->jobs, q, err));
    PASS_ON(nn_linear(s->x, n, c->hidden, w[LLM_K], w[LLM_K_B], s->kvdim, s->jobs, s->k, err));
    PASS_ON(nn_linear(s->x, n, c->hidden, w[LLM_V], w[LLM_V_B], s->kvdim, s->jobs, s->v, err));
    if (c->qk_norm) {
        nn_rms_norm(q, n * c->heads, c->head_dim, w[LLM_QN], c->eps, q);
        nn_rms_norm(s->k, n * c->kv_heads, c->head_dim, w[LLM_KN], c->eps, s->k);
    }
    rope_apply_part(q, n, c->heads, c->head_dim, c->rotary, pos0, s->inv_freq, s->rope_factor);
    rope_apply_part(s->k, n, c->kv_heads, c->head_dim, c->rotary, pos0, s->inv_freq,
                    s->rope_factor);
    round_all(q, n * s->qdim, s->round);
    round_all(s->k, n * s->kvdim, s->round);
    round_all(s->v, n * s->kvdim, s->round);
    nn_kv_put(kv, pos0, n, s->k, s->v);
    kv->reach.back = llm_window(c, layer->number);
    return 0;
}

/* h += x, or x after the norm `post`. */
static void add(const struct llm_config *c, float *h, float *x, int64_t rows, const float *post)
{
    if (post)
        nn_rms_norm(x, rows, c->hidden, post, c->eps, x);
    for (int64_t i = 0; i < rows * c->hidden; i++)
        h[i] += x[i];
}

static int feed_forward(struct llm_work *s, const struct llm_layer *layer, int64_t n, float *h,
                        struct err *err)
{
    const struct llm_config *c = s->c;
    float *const *w = layer->t;
    nn_rms_norm(h, n, c->hidden, w[LLM_NORM2], c->eps, s->x);
    if (llm_has_experts(c, layer->number)) {
        PASS_ON(llm_experts_run(&s->experts, c, layer, s->x, n, s->jobs, err));
        add(c, h, s->x, n, w[LLM_POST2]);
        return 0;
    }
    PASS_ON(
        nn_linear(s->x, n, c->hidden, w[LLM_GATE], w[LLM_GATE_B], c->ffn, s->jobs, s->gate, err));
    PASS_ON(nn_linear(s->x, n, c->hidden, w[LLM_UP], w[LLM_UP_B], c->ffn, s->jobs, s->up, err));
    nn_silu(s->gate, n * c->ffn);
    for (int64_t i = 0; i < n * c->ffn; i++)
        s->gate[i] *= s->up[i];
    PASS_ON(
        nn_linear(s->gate, n, c->ffn, w[LLM_DOWN], w[LLM_DOWN_B], c->hidden, s->jobs, s->x, err));
    add(c, h, s->x, n, w[LLM_POST2]);
    return 0;
}

int llm_finish(struct llm_work *s, const struct llm_layer *layer, const float *o, int64_t n,
               float *h, struct err *err)
{
    int64_t hidden = s->c->hidden;
    float *const *w = layer->t;
    PASS_ON(nn_linear(o, n, s->qdim, w[LLM_O], w[LLM_O_B], hidden, s->jobs, s->x, err));
    add(s->c, h, s->x, n, w[LLM_POST1]);
    return feed_forward(s, layer, n, h, err);
}

int llm_layer_run(struct llm_work *s, int layer, const struct llm_layer *w, int64_t pos0, int64_t n,
                  struct nn_kv *kv, const struct layer_attention *attention, float *q, float *o,
                  float *h, struct err *err)
{
    const struct llm_config *c = s->c;
    int64_t step = s->chunk;
    for (int64_t t = 0; t < n; t += step) {
        if (interrupted())
            return err_set(err, ERR_INTERRUPTED, "interrupted");
        PASS_ON(llm_project(s, w, h + t * c->hidden, pos0 + t, t + step < n ? step : n - t, kv,
                            q + t * s->qdim, err));
    }
    if (attention)
        PASS_ON(attention->attend(attention->ctx, layer, q, n, kv, pos0 + n, o, err));
    else
        PASS_ON(nn_attention(q, kv, n, pos0 + n, c->heads, 1 / sqrt(c->head_dim), true, s->jobs, o,
                             NULL, err));
    for (int64_t t = 0; t < n; t += step)
        PASS_ON(
            llm_finish(s, w, o + t * s->qdim, t + step < n ? step : n - t, h + t * c->hidden, err));
    return 0;
}

int llm_embed(const struct llm_model *m, const int32_t *tokens, int64_t n, float *h,
              struct err *err)
{
    int64_t d = m->c.hidden;
    for (int64_t i = 0; i < n; i++)
        PASS_ON(st_read_f32(m->file, m->embed, tokens[i] * d, d, h + i * d, err));
    return 0;
}

int llm_final_norm(const struct llm_model *m, int64_t n, float *h, struct err *err)
{
    const struct llm_config *c = &m->c;
    OWN(free_at) float *w = NULL;
    PASS_ON(mem_alloc(&w, c->hidden, sizeof *w, "final norm", err));
    PASS_ON(st_read_f32(m->file, m->norm, 0, c->hidden, w, err));
    nn_rms_norm(h, n, c->hidden, w, c->eps, h);
    return 0;
}
