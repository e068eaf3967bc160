/*
 * wan_device.c - weights to a device once, then evaluations block by block, and what it hands out
 * to the hooks (wan_model.h).
 */
#include "capture/wan_model.h"

#include "capture/nn.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/pool.h"

#include <stdlib.h>
#include <string.h>

struct wan_device {
    const struct denoiser_accel *on;
    struct denoiser *d;
    int64_t size[3], n_text, tokens;
    float *
        rows[3]; /* q, k, v of a layer [tokens][dim]; owned, NULL before the first that is wanted */
    float *freq; /* [freq_dim], owned */
};

/* One evaluation. */
struct device_run {
    struct wan_model *m;
    struct wan_device *dev;
    const struct wan_hooks *hooks;
    int layer;
    bool wanted; /* the hook wants the layer's rows */
};

/* The driver's and the runtime's. */
#define RUNTIME_BYTES ((int64_t)300 << 20)

int64_t wan_device_bytes(const struct wan_config *c, int64_t tokens, int64_t pool)
{
    int64_t cells = pool ? (tokens + pool - 1) / pool : 0;
    /* q, k, v, and the chunk of them that the device hands out */
    return 24 * tokens * c->dim + 8 * c->heads * cells * cells + wan_block_bytes(c) + RUNTIME_BYTES;
}

/* ---- opening -------------------------------------------------------------------------------- */

static int put_weights(const struct wan_model *m, struct wan_device *dev, struct err *err)
{
    struct decoder_tensor outer[WAN_OUTER_TENSORS] = {0}, block[WAN_BLOCK_TENSORS] = {0};
    int rc = 0;
    TRY(wan_raw_outer(m, outer, err));
    TRY(dev->on->put_outer(dev->d, outer, err));
    for (int i = 0; i < m->c.layers; i++) {
        TRY(wan_raw_block(m, i, block, err));
        TRY(dev->on->put_block(dev->d, i, block, err));
        for (int k = 0; k < WAN_BLOCK_TENSORS; k++)
            raw_tensor_free(block + k);
    }
out:
    for (int k = 0; k < WAN_OUTER_TENSORS; k++)
        raw_tensor_free(outer + k);
    for (int k = 0; k < WAN_BLOCK_TENSORS; k++)
        raw_tensor_free(block + k);
    return rc;
}

static int open_on(const struct wan_model *m, const struct wan_device_ask *ask,
                   struct wan_device *dev, struct err *err)
{
    const struct wan_config *c = &m->c;
    OWN(free_at) double *inv_freq = NULL;
    int64_t grid[3];
    PASS_ON(wan_grid(c, ask->size[0], ask->size[1], ask->size[2], grid, err));
    PASS_ON(mem_alloc(&inv_freq, c->head_dim / 2, sizeof *inv_freq, "rotary frequencies", err));
    PASS_ON(mem_alloc(&dev->freq, c->freq_dim, sizeof *dev->freq, "timestep frequencies", err));
    struct denoiser_shape shape = {.in_channels = c->in_channels,
                                   .out_channels = c->out_channels,
                                   .ffn = c->ffn_dim,
                                   .freq = c->freq_dim,
                                   .text_dim = c->text_dim,
                                   .n_text = ask->n_text,
                                   .layers = c->layers,
                                   .heads = c->heads,
                                   .head_dim = c->head_dim,
                                   .eps = c->eps,
                                   .inv_freq = inv_freq,
                                   .bf16 = ask->bf16};
    memcpy(shape.size, ask->size, sizeof shape.size);
    memcpy(shape.patch, c->patch, sizeof shape.patch);
    wan_rotary(c, shape.pairs, inv_freq);
    memcpy(dev->size, ask->size, sizeof dev->size);
    dev->n_text = ask->n_text;
    dev->tokens = grid[0] * grid[1] * grid[2];
    PASS_ON(dev->on->open(ask->local_rank, &shape, &dev->d, err));
    PASS_ON(put_weights(m, dev, err));
    log_debug("the model runs on %s", dev->on->device(dev->d));
    return 0;
}

int wan_device_open(struct wan_model *m, const struct wan_device_ask *ask, struct err *err)
{
    OWN(wan_device_close) struct wan_device *dev = NULL;
    int rc = 0;
    PASS_ON(mem_zalloc(&dev, 1, sizeof *dev, "device", err));
    dev->on = ask->on;
    rc = open_on(m, ask, dev, err);
    if (rc) {
        err_prefix(err, "--device %s", ask->on->name);
        return rc;
    }
    m->device = HAND_OVER(dev);
    return rc;
}

void wan_device_close(struct wan_device **d)
{
    struct wan_device *dev = *d;
    if (!dev)
        return;
    dev->on->close(&dev->d);
    for (int i = 0; i < 3; i++)
        free(dev->rows[i]);
    free(dev->freq);
    free(dev);
    *d = NULL;
}

double wan_device_seconds(const struct wan_device *d)
{
    return d->on->seconds(d->d);
}

int wan_device_time(struct wan_model *m, int samples, struct denoiser_times *t, struct err *err)
{
    return m->device->on->time(m->device->d, samples, t, err);
}

/* ---- an evaluation -------------------------------------------------------------------------- */

/* Chunks of rows, put together; the hook sees all of them. */
static int take_rows(void *ctx, int64_t tok0, int64_t n, const float *q, const float *k,
                     const float *v, struct err *err)
{
    struct device_run *r = ctx;
    struct wan_device *dev = r->dev;
    const float *from[3] = {q, k, v};
    int64_t dim = r->m->c.dim;
    for (int i = 0; i < 3; i++)
        memcpy(dev->rows[i] + tok0 * dim, from[i], (size_t)(n * dim) * sizeof *q);
    if (tok0 + n < dev->tokens)
        return 0;
    return r->hooks->rows(r->hooks->ctx, r->layer, dev->rows[0], dev->rows[1], dev->rows[2], err);
}

/* The model's own self-attention. */
static int attend(void *ctx, const struct decoder_operands *there, const struct decoder_rows *rows,
                  float *out, bool *stayed, struct err *err)
{
    struct device_run *r = ctx;
    const struct wan_config *c = &r->m->c;
    const struct layer_attention *own = r->m->attention;
    int64_t n = r->dev->tokens;
    struct nn_kv kv = {n, c->heads, c->head_dim, rows->k, rows->v, {0}};
    own->there(own->ctx, there, n);
    int rc = own->attend(own->ctx, r->layer, rows->q, n, &kv, n, out, err);
    *stayed = rc == 0 && own->stayed(own->ctx);
    own->there(own->ctx, NULL, 0);
    return rc;
}

static int prepare_rows(struct device_run *r, struct err *err)
{
    struct wan_device *dev = r->dev;
    for (int i = 0; i < 3; i++)
        if (!dev->rows[i])
            PASS_ON(mem_alloc(&dev->rows[i], dev->tokens * r->m->c.dim, sizeof(float),
                              "queries, keys and values", err));
    return 0;
}

static int run_layer(struct device_run *r, struct err *err)
{
    const struct wan_hooks *hooks = r->hooks;
    struct denoiser_sink sink = {.ctx = r};
    OWN(attnmap_free) struct attnmap map = {0};
    int64_t n = r->dev->tokens;
    const struct layer_attention *own = r->m->attention;
    bool maps = wan_wants_maps(hooks, r->layer) && !own;
    r->wanted = wan_wants(hooks, r->layer) && hooks->rows;
    if (interrupted())
        return err_set(err, ERR_INTERRUPTED, "interrupted");
    if (own && !(own->exact && own->exact(own->ctx, r->layer, n)))
        sink.attend = attend;
    if (r->wanted) {
        PASS_ON(prepare_rows(r, err));
        sink.rows = take_rows;
    }
    if (maps) {
        PASS_ON(attnmap_init(&map, r->m->c.heads, n, n, hooks->pool, err));
        sink.pool = hooks->pool;
        sink.map_sum = map.sum;
        sink.map_max = map.max;
    }
    if (hooks && hooks->rows && !r->wanted)
        PASS_ON(hooks->rows(hooks->ctx, r->layer, NULL, NULL, NULL, err));
    PASS_ON(r->dev->on->layer(r->dev->d, r->layer, &sink, err));
    if (maps)
        return hooks->maps(hooks->ctx, r->layer, &map, err);
    return 0;
}

int wan_device_forward(struct wan_model *m, const struct wan_input *in,
                       const struct wan_hooks *hooks, float *v, struct err *err)
{
    struct wan_device *dev = m->device;
    struct device_run r = {m, dev, hooks, 0, false};
    int rc = 0;
    if (in->t != dev->size[0] || in->h != dev->size[1] || in->w != dev->size[2] ||
        in->n_text != dev->n_text)
        FAIL(err, ERR_RUN,
             "the device was opened for %lldx%lldx%lld and %lld tokens of text, the input has "
             "%lldx%lldx%lld and %lld",
             (long long)dev->size[0], (long long)dev->size[1], (long long)dev->size[2],
             (long long)dev->n_text, (long long)in->t, (long long)in->h, (long long)in->w,
             (long long)in->n_text);
    wan_timestep(&m->c, in->timestep, dev->freq);
    TRY(dev->on->begin(dev->d, in->x, dev->freq, in->text, err));
    for (r.layer = 0; r.layer < m->c.layers; r.layer++) {
        rc = run_layer(&r, err);
        if (rc < 0)
            err_prefix(err, "layer %d", r.layer);
        if (rc)
            goto out;
    }
    TRY(dev->on->end(dev->d, v, err));
out:
    return rc;
}
