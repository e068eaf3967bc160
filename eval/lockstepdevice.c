/*
 * lockstepdevice.c - see lockstepdevice.h.
 */
#include "eval/lockstepdevice.h"

#include "capture/llm_device.h"
#include "capture/rawtensor.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/pool.h"
#include "eval/lockstep.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define EMBED_ROWS 1024

static const struct decoder_states *states(const struct lockstep *l)
{
    return l->device->on->decoder->states;
}

int lockstep_device_open(struct lockstep *l, const struct lockstep_on *on, struct err *err)
{
    struct lockstep_device *dev;
    int rc = 0;

    TRY(mem_zalloc(&l->device, 1, sizeof *l->device, "device", err));
    dev = l->device;
    dev->on = on;
    TRY(llm_device_open(l->model, on->decoder, on->local_rank, l->cap, l->n_streams, &dev->d, err));
    TRY(raw_tensor_read(l->model->file, l->model->norm, &dev->norm, err));
    TRY(raw_tensor_read(l->model->file, l->model->head, &dev->head, err));
out:
    return rc;
}

void lockstep_device_close(struct lockstep *l)
{
    struct lockstep_device *dev = l->device;
    if (!dev)
        return;
    dev->on->decoder->close(&dev->d);
    llm_raw_free(&dev->layer);
    raw_tensor_free(&dev->norm);
    raw_tensor_free(&dev->head);
    free(dev);
    l->device = NULL;
}

static int embed(struct lockstep *l, const int32_t *tokens, int64_t n, struct err *err)
{
    int64_t hidden = l->model->c.hidden;
    float *h = NULL;
    int rc = 0;

    TRY(mem_alloc(&h, EMBED_ROWS * hidden, sizeof *h, "embeddings", err));
    for (int64_t t = 0; t < n; t += EMBED_ROWS) {
        int64_t rows = n - t < EMBED_ROWS ? n - t : EMBED_ROWS;
        TRY(llm_embed(l->model, tokens + t, rows, h, err));
        TRY(states(l)->put_hidden(l->device->d, t, rows, h, err));
    }
out:
    free(h);
    return rc;
}

/* ---- layers --------------------------------------------------------------------------------- */

static void round_all(float *x, int64_t n, enum dtype t)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = dtype_round(t, x[i]);
}

/* q, k, v as a trace would hold them, where the host has them; the device's operands are those of a
 * bf16 checkpoint anyhow. */
static void round_rows(const struct lockstep *l, const struct decoder_rows *rows)
{
    const struct llm_config *c = &l->model->c;
    int64_t n = l->n * c->head_dim;
    if (l->work.round == DT_F32)
        return;
    if (rows->q)
        round_all(rows->q, c->heads * n, l->work.round);
    for (int h = 0; rows->k && h < c->kv_heads; h++) {
        round_all(rows->k + h * rows->kv_stride, n, l->work.round);
        round_all(rows->v + h * rows->kv_stride, n, l->work.round);
    }
}

/* Attention of a stream; METHOD_SKIP with its reason in the stream's layer_attn. */
static int attend(struct lockstep *l, struct stream *s, int layer, struct nn_kv *kv,
                  const struct decoder_operands *operands, struct err *err)
{
    struct decoder *d = l->device->d;
    struct layer_attn *a = s->attn;
    int rc = 0;

    if (!a || (layer_attn_is_dense(a, layer, l->n) && !l->device->on->samples)) {
        if (a)
            layer_attn_count_dense(a, layer);
        return states(l)->attend(d, err);
    }
    a->there = operands;
    a->there_tokens = l->n;
    rc = layer_attn_attend(a, layer, l->q, l->n, kv, l->n, l->o, err);
    a->there = NULL;
    return rc ? rc : states(l)->put_attended(d, l->o, err);
}

static int stream_layer(struct lockstep *l, int i, int layer, struct err *err)
{
    const struct llm_config *c = &l->model->c;
    struct stream *s = l->s + i;
    struct nn_kv *kv = s->kv + (l->keep ? layer : 0);
    struct decoder_operands operands;
    struct decoder_rows rows = {.kv_stride = kv->n * c->head_dim};
    struct decoder_diff diff = {0};
    struct lockstep_device *dev = l->device;
    struct err own = {0};
    double since = clock_ns(), then;
    int rc = 0;

    rows.q = s->attn ? l->q : NULL;
    if (s->attn || l->keep) {
        rows.k = kv->k;
        rows.v = kv->v;
    }
    TRY(states(l)->project(dev->d, i, &rows, &operands, err));
    round_rows(l, &rows);
    then = clock_ns();
    dev->project_ns += then - since;
    rc = attend(l, s, layer, kv, &operands, &own);
    since = clock_ns();
    dev->methods_ns += since - then;
    if (rc)
        return lockstep_drop_out(s, layer, rc, &own, err);
    TRY(states(l)->finish(dev->d, i, i ? &diff : NULL, err));
    dev->finish_ns += clock_ns() - since;
    if (i) {
        s->attn_err[layer] += diff.attn;
        s->attn_ref[layer] += diff.attn_ref;
        s->resid_err[layer] += diff.resid;
        s->resid_ref[layer] += diff.resid_ref;
    }
out:
    return rc;
}

static int run_layer(struct lockstep *l, int layer, struct err *err)
{
    struct lockstep_device *dev = l->device;
    double ns = 0;
    int rc = 0;

    if (interrupted())
        FAIL(err, ERR_INTERRUPTED, "interrupted");
    TRY(llm_raw_load(l->model, layer, &dev->layer, err));
    TRY(states(l)->load(dev->d, dev->layer.t, err));
    if (dev->on->samples)
        TRY(states(l)->time_layer(dev->d, dev->on->samples, &ns, err));
    dev->linear_ns += ns;
    for (int i = 0; i < l->n_streams; i++)
        if (i == 0 || stream_runs(l->s + i))
            TRY(stream_layer(l, i, layer, err));
out:
    return rc;
}

int lockstep_device_prefill(struct lockstep *l, const int32_t *tokens, int64_t n, struct err *err)
{
    struct lockstep_device *dev = l->device;
    double ns = 0, since = clock_ns();
    int rc = 0;

    dev->project_ns = dev->methods_ns = dev->finish_ns = 0;
    TRY(states(l)->begin(dev->d, n, err));
    TRY(embed(l, tokens, n, err));
    for (int layer = 0; layer < l->model->c.layers; layer++) {
        rc = run_layer(l, layer, err);
        if (rc) {
            err_prefix(err, "layer %d", layer);
            goto out;
        }
    }
    if (dev->on->samples)
        TRY(states(l)->time_head(dev->d, &dev->norm, &dev->head, dev->on->samples, &ns, err));
    dev->linear_ns += ns;
    dev->prefills++;
    for (int i = 0; i < l->n_streams; i++) {
        if (!stream_runs(l->s + i))
            continue;
        TRY(states(l)->get_hidden(dev->d, i, n - 1, l->s[i].last, err));
        TRY(llm_final_norm(l->model, 1, l->s[i].last, err));
    }
    log_debug("prefill of %lld tokens: %.3f s on the host's clock, of which q, k, v %.3f, "
              "attention %.3f, what follows it %.3f",
              (long long)n, 1e-9 * (clock_ns() - since), 1e-9 * dev->project_ns,
              1e-9 * dev->methods_ns, 1e-9 * dev->finish_ns);
out:
    return rc;
}

int lockstep_device_score(struct lockstep *l, const int32_t *tokens, int64_t from,
                          const bool *wants, struct decoder_score *const *out, struct err *err)
{
    struct lockstep_device *dev = l->device;
    return states(l)->score(dev->d, &dev->norm, &dev->head, tokens, from, wants, out, err);
}
