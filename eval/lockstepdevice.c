/*
 * lockstepdevice.c - the layers of a lockstep run on a device (lockstep.h).
 */
#include "eval/lockstep.h"

#include "capture/llm_model.h"
#include "capture/nn.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/pool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct decoder_states *states(const struct lockstep *l)
{
    return l->device->on->decoder->states;
}

/* May rows that follow run there? */
static bool may_keep(const struct lockstep *l, const struct layer_attn *attn)
{
    bool method = l->n_streams > 1 && attn->how->decode_method;
    return l->keep && !method && l->work.round == DT_F32 && l->model->c.head_dim % 4 == 0;
}

static int open_decoder(struct lockstep *l, const struct layer_attn *attn, struct err *err)
{
    struct lockstep_device *dev = l->device;
    const struct lockstep_on *on = dev->on;
    int layers = l->model->c.layers;
    struct err own = {0};
    if (may_keep(l, attn)) {
        int rc = llm_device_open(l->model, on->decoder, on->local_rank, l->cap, l->n_streams,
                                 layers, &dev->d, &own);
        if (rc != ERR_NOMEM) {
            *err = rc ? own : *err;
            l->keep = false;
            return rc ? rc : mem_zalloc(&dev->loaded, layers, sizeof *dev->loaded, "layers", err);
        }
        log_warn("the device has no room for keys, values and weights of all layers: what follows "
                 "a prompt is decoded on the CPU (%s)",
                 own.msg);
    }
    return llm_device_open(l->model, on->decoder, on->local_rank, l->cap, l->n_streams, 0, &dev->d,
                           err);
}

static int put_table(struct lockstep *l, struct err *err)
{
    const struct llm_model *m = l->model;
    OWN(raw_tensor_free) struct decoder_tensor own = {0};
    struct decoder_tensor *table = m->embed == m->head ? &l->device->head : &own;
    if (table == &own)
        PASS_ON(raw_tensor_read(m->file, m->embed, &own, err));
    return states(l)->put_table(l->device->d, table, err);
}

int lockstep_device_open(struct lockstep *l, const struct layer_attn *attn,
                         const struct lockstep_on *on, struct err *err)
{
    struct lockstep_device *dev;
    PASS_ON(mem_zalloc(&l->device, 1, sizeof *l->device, "device", err));
    dev = l->device;
    dev->on = on;
    PASS_ON(open_decoder(l, attn, err));
    PASS_ON(raw_tensor_read(l->model->file, l->model->norm, &dev->norm, err));
    PASS_ON(raw_tensor_read(l->model->file, l->model->head, &dev->head, err));
    return put_table(l, err);
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
    free(dev->loaded);
    free(dev);
    l->device = NULL;
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
    round_all(rows->q, c->heads * n, l->work.round);
    round_all(rows->k, c->kv_heads * n, l->work.round);
    round_all(rows->v, c->kv_heads * n, l->work.round);
}

/* Keys and values into the cache that rows here will see. */
static void keep_rows(const struct lockstep *l, const struct decoder_rows *rows, struct nn_kv *kv)
{
    int64_t n = l->n * kv->d, step = kv->n * kv->d;
    for (int h = 0; h < kv->heads; h++) {
        memcpy(kv->k + h * step, rows->k + h * n, (size_t)n * sizeof *rows->k);
        memcpy(kv->v + h * step, rows->v + h * n, (size_t)n * sizeof *rows->v);
    }
}

static bool attends_exactly(const struct lockstep *l, const struct stream *s, int layer)
{
    return !s->attn || layer_attn_is_dense(s->attn, layer, l->n);
}

/* Attention of a stream; METHOD_SKIP with its reason in the stream's layer_attn. */
static int attend(struct lockstep *l, struct stream *s, int layer, const struct decoder_rows *rows,
                  const struct decoder_operands *operands, struct err *err)
{
    const struct llm_config *c = &l->model->c;
    struct decoder *d = l->device->d;
    struct layer_attn *a = s->attn;
    struct nn_kv kv = {l->n, c->kv_heads, c->head_dim, rows->k, rows->v, {0}};
    int rc = 0;
    if (attends_exactly(l, s, layer)) {
        if (a)
            layer_attn_count_dense(a, layer);
        return states(l)->attend(d, err);
    }
    a->there = operands;
    a->there_tokens = l->n;
    rc = layer_attn_attend(a, layer, rows->q, l->n, &kv, l->n, l->o, err);
    a->there = NULL;
    return rc || a->stayed ? rc : states(l)->put_attended(d, l->o, err);
}

static int stream_layer(struct lockstep *l, int i, int layer, struct err *err)
{
    struct stream *s = l->s + i;
    struct decoder_operands operands;
    struct decoder_rows rows = {0};
    struct decoder_diff diff = {0};
    struct lockstep_device *dev = l->device;
    bool wanted = l->keep || !attends_exactly(l, s, layer);
    struct err own = {0};
    double since = clock_ns(), then;
    int rc = 0;
    TRY(states(l)->project(dev->d, i, wanted ? &rows : NULL, &operands, err));
    if (wanted)
        round_rows(l, &rows);
    if (l->keep)
        keep_rows(l, &rows, s->kv + layer);
    then = clock_ns();
    dev->project_ns += then - since;
    rc = attend(l, s, layer, &rows, &operands, &own);
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

static int load(struct lockstep *l, int layer, struct err *err)
{
    struct lockstep_device *dev = l->device;
    bool there = dev->loaded && dev->loaded[layer];
    if (!there)
        PASS_ON(llm_raw_load(l->model, layer, &dev->layer, err));
    PASS_ON(states(l)->load(dev->d, layer, there ? NULL : dev->layer.t, err));
    if (dev->loaded)
        dev->loaded[layer] = true;
    return 0;
}

static int run_layer(struct lockstep *l, int layer, struct err *err)
{
    struct lockstep_device *dev = l->device;
    double ns = 0;
    if (interrupted())
        return err_set(err, ERR_INTERRUPTED, "interrupted");
    PASS_ON(load(l, layer, err));
    if (dev->on->samples)
        PASS_ON(states(l)->time_layer(dev->d, dev->on->samples, &ns, err));
    dev->linear_ns += ns;
    for (int i = 0; i < l->n_streams; i++)
        if (i == 0 || stream_runs(l->s + i))
            PASS_ON(stream_layer(l, i, layer, err));
    return 0;
}

int lockstep_device_prefill(struct lockstep *l, const int32_t *tokens, int64_t n, struct err *err)
{
    struct lockstep_device *dev = l->device;
    double ns = 0, since = clock_ns();
    int rc = 0;
    dev->project_ns = dev->methods_ns = dev->finish_ns = 0;
    TRY(states(l)->begin(dev->d, tokens, n, err));
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
        TRY(states(l)->get_hidden(dev->d, i, n - 1, 1, l->s[i].last, err));
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

int lockstep_device_rows(struct lockstep *l, int stream, const int32_t *tokens, int64_t pos,
                         int64_t m, float *rows, struct err *err)
{
    return states(l)->rows(l->device->d, stream, tokens, pos, m, rows, err);
}

int lockstep_device_hidden(struct lockstep *l, int stream, int64_t row, int64_t n, float *h,
                           struct err *err)
{
    return states(l)->get_hidden(l->device->d, stream, row, n, h, err);
}
