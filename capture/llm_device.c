/*
 * llm_device.c - weights to a device layer by layer, and what it hands out to the hooks
 * (llm_model.h).
 */
#include "capture/llm_model.h"

#include "capture/nn.h"
#include "core/intmath.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/pool.h"

#include <stdlib.h>

#define EMBED_ROWS 1024

struct device_run {
    struct llm_model *m;
    const struct llm_run *run;
    const struct llm_hooks *hooks;
    const struct decoder_accel *on;
    struct decoder *d;
    struct llm_raw_layer w;
    int layer;
};

/* The device works on chunks of rows with a gigabyte of activations, and hands them out so; its
 * driver and runtime take the rest. */
#define CHUNK_ACTIVATIONS ((int64_t)1 << 30)
#define RUNTIME_BYTES ((int64_t)300 << 20)

int64_t llm_device_bytes(const struct llm_model *m, int64_t n, int64_t pool)
{
    const struct llm_config *c = &m->c;
    enum dtype stored = m->embed ? m->embed->dtype : c->dtype; /* blocks are decoded to float32 */
    int64_t cells = pool ? (n + pool - 1) / pool : 0;
    int64_t row = ((int64_t)c->heads + 2 * c->kv_heads) * c->head_dim;
    int64_t rows = MIN(n, CHUNK_ACTIVATIONS / (8 * c->ffn + 6 * MAX(c->ffn, c->hidden)) + 1);
    int64_t weights = llm_layer_bytes(c) / 4 * (int64_t)dtype_size(stored);
    return 4 * (rows * row + 2 * c->heads * cells * cells) + weights + 4 * EMBED_ROWS * c->hidden +
           RUNTIME_BYTES;
}

int llm_device_open(const struct llm_model *m, const struct decoder_accel *on, int local_rank,
                    int64_t n, int states, int kept, struct decoder **out, struct err *err)
{
    const struct llm_config *c = &m->c;
    OWN(free_at) double *inv_freq = NULL;
    int rc = 0;
    PASS_ON(mem_alloc(&inv_freq, c->head_dim / 2, sizeof *inv_freq, "rotary table", err));
    struct decoder_shape shape = {.tokens = n,
                                  .hidden = c->hidden,
                                  .ffn = c->ffn,
                                  .vocab = c->vocab,
                                  .heads = c->heads,
                                  .kv_heads = c->kv_heads,
                                  .head_dim = c->head_dim,
                                  .eps = c->eps,
                                  .inv_freq = inv_freq,
                                  .states = states,
                                  .kept = kept};
    struct rope_config rope = c->rope;
    rope.tokens = n;
    shape.rope_factor = rope_frequencies(&rope, c->head_dim, inv_freq);
    rc = on->open(local_rank, &shape, out, err);
    if (rc) {
        err_prefix(err, "--device %s", on->name);
        return rc;
    }
    log_debug("the model runs on %s", on->device(*out));
    return rc;
}

static int embed(struct device_run *r, struct err *err)
{
    int64_t d = r->m->c.hidden, n = r->run->n;
    OWN(free_at) float *h = NULL;
    PASS_ON(mem_alloc(&h, EMBED_ROWS * d, sizeof *h, "embeddings", err));
    for (int64_t t = 0; t < n; t += EMBED_ROWS) {
        int64_t rows = n - t < EMBED_ROWS ? n - t : EMBED_ROWS;
        for (int64_t i = 0; i < rows; i++)
            PASS_ON(
                st_read_f32(r->m->file, r->m->embed, r->run->tokens[t + i] * d, d, h + i * d, err));
        PASS_ON(r->on->put_hidden(r->d, t, rows, h, err));
    }
    return 0;
}

static int take_rows(void *ctx, int64_t tok0, int64_t n, const float *q, const float *k,
                     const float *v, struct err *err)
{
    struct device_run *r = ctx;
    return r->hooks->rows(r->hooks->ctx, r->layer, tok0, n, q, k, v, err);
}

static bool wanted(bool (*ask)(void *ctx, int layer), void *ctx, int layer)
{
    return !ask || ask(ctx, layer);
}

static int run_layer(struct device_run *r, struct err *err)
{
    const struct llm_hooks *hooks = r->hooks;
    struct decoder_sink sink = {.ctx = r};
    OWN(attnmap_free) struct attnmap map = {0};
    int64_t n = r->run->n;
    bool maps = r->run->pool > 0 && wanted(hooks->wants_map, hooks->ctx, r->layer);
    if (interrupted())
        return err_set(err, ERR_INTERRUPTED, "interrupted");
    PASS_ON(llm_raw_load(r->m, r->layer, &r->w, err));
    if (maps) {
        PASS_ON(attnmap_init(&map, r->m->c.heads, n, n, r->run->pool, err));
        sink.pool = r->run->pool;
        sink.map_sum = map.sum;
        sink.map_max = map.max;
    }
    if (hooks->rows && wanted(hooks->wants_rows, hooks->ctx, r->layer))
        sink.rows = take_rows;
    if (hooks->begin_layer)
        PASS_ON(hooks->begin_layer(hooks->ctx, r->layer, err));
    PASS_ON(r->on->layer(r->d, r->w.t, &sink, err));
    if (hooks->rows && !sink.rows)
        PASS_ON(hooks->rows(hooks->ctx, r->layer, 0, n, NULL, NULL, NULL, err));
    if (hooks->end_layer)
        return hooks->end_layer(hooks->ctx, r->layer, maps ? &map : NULL, err);
    return 0;
}

static int likelihoods(struct device_run *r, struct err *err)
{
    OWN(raw_tensor_free) struct decoder_tensor norm = {0}, head = {0};
    PASS_ON(raw_tensor_read(r->m->file, r->m->norm, &norm, err));
    PASS_ON(raw_tensor_read(r->m->file, r->m->head, &head, err));
    return r->on->likelihoods(r->d, &norm, &head, r->run->tokens, r->run->nll, err);
}

int llm_forward_device(struct llm_model *m, const struct llm_run *run,
                       const struct llm_hooks *hooks, struct err *err)
{
    struct device_run r = {.m = m, .run = run, .hooks = hooks, .on = run->device};
    int layers = run->layers > 0 && run->layers < m->c.layers ? run->layers : m->c.layers;
    int rc = 0;
    TRY(llm_device_open(m, run->device, run->local_rank, run->n, 0, 0, &r.d, err));
    TRY(embed(&r, err));
    for (r.layer = 0; r.layer < layers; r.layer++) {
        rc = run_layer(&r, err);
        if (rc) {
            err_prefix(err, "layer %d", r.layer);
            goto out;
        }
    }
    if (run->nll)
        TRY(likelihoods(&r, err));
    if (run->device_seconds)
        *run->device_seconds = r.on->seconds(r.d);
out:
    llm_raw_free(&r.w);
    r.on->close(&r.d);
    return rc;
}
