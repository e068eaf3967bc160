/*
 * video_capture.c - a video diffusion transformer through its sampler into a trace: one call per
 * (step, branch, layer).
 */
#include "capture/nn.h"
#include "capture/capture.h"
#include "core/checkpoint.h"
#include "capture/trace/trace_tools.h"
#include "capture/video_input.h"
#include "capture/wan_model.h"
#include "core/clock.h"
#include "core/fileio.h"
#include "core/hash.h"
#include "core/mem.h"
#include "core/npy.h"
#include "core/pool.h"
#include "core/progress.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Blocks stay in memory when all of them take at most this much. */
#define CACHE_BYTES ((int64_t)1 << 30)

struct video_run {
    const struct capture_opts *o;
    struct wan_model model;
    struct trace_meta meta;
    struct trace_writer *writer;
    struct progress *progress;
    struct video_input in;
    float *v, *v_uncond;  /* [channels][t][h][w], owned */
    bool *layers, *steps; /* wanted, owned */
    struct head_select heads;
    int64_t n_layers, n_steps, last_step;
    struct trace_call call;      /* being captured */
    double layer_flop, map_flop; /* of a layer; of its maps, when stored */
    double begun;                /* of the layer that runs now */
    bool capturing;
    int order;
    const struct denoiser_accel *device; /* NULL: the CPU */
    double device_seconds;               /* NAN on the CPU */
};

static int prepare(struct video_run *r, struct err *err)
{
    const struct capture_opts *o = r->o;
    PASS_ON(wan_open(o->model, CACHE_BYTES, &r->model, err));
    PASS_ON(video_input_open(&r->model.c, &o->video, &r->in, err));
    PASS_ON(
        capture_choose(o->layers, r->model.c.layers, "--layers", &r->layers, &r->n_layers, err));
    PASS_ON(head_select_parse(o->heads, r->model.c.heads, r->model.c.heads, &r->heads, err));
    PASS_ON(capture_choose(o->capture_steps, o->video.steps, "--capture-steps", &r->steps,
                           &r->n_steps, err));
    for (int64_t i = 0; i < o->video.steps; i++)
        r->last_step = r->steps[i] ? i : r->last_step;
    if (o->save_frames || o->save_sample)
        r->last_step = o->video.steps - 1;
    if (o->save_frames && (r->model.c.out_channels != 3 || r->model.c.in_channels != 3))
        return err_set(err, ERR_USAGE,
                       "capture: --save-frames needs a model that denoises RGB pixels; this one "
                       "has %lld latent channels (use --save-sample and decode it elsewhere)",
                       (long long)r->model.c.out_channels);
    return 0;
}

static int fill_meta(struct video_run *r, struct err *err)
{
    const struct wan_config *c = &r->model.c;
    struct trace_meta *m = &r->meta;
    char id[HASH_TEXT_MAX];
    checkpoint_name(r->o->model, m->name, sizeof m->name);
    snprintf(m->architecture, sizeof m->architecture, "WanTransformer3DModel");
    m->layers = c->layers;
    PASS_ON(head_select_meta(&r->heads, m, err));
    m->head_dim = m->v_dim = c->head_dim;
    m->scale = 1 / sqrt(c->head_dim);
    m->positions_applied = true;
    snprintf(m->positions, sizeof m->positions, "rope-3d");
    m->dtype = stored_type(r->o->dtype, DT_BF16);
    snprintf(m->compute, sizeof m->compute, "%s", r->device ? r->device->arithmetic : "float32");
    if (!r->device)
        capture_computed_by(m->computed_by, sizeof m->computed_by);
    else if (!r->o->c.dry_run)
        r->device->computed_by(m->computed_by, sizeof m->computed_by);
    snprintf(m->source, sizeof m->source, "capture");
    hash_text(hash_bytes(r->in.text, (size_t)(r->in.n_text * c->text_dim) * sizeof(float)), id);
    snprintf(m->prompt_id, sizeof m->prompt_id, "%s", id);
    if (r->in.branches == 2) {
        hash_text(hash_bytes(r->in.negative, (size_t)(r->in.n_text * c->text_dim) * sizeof(float)),
                  id);
        snprintf(m->negative_id, sizeof m->negative_id, "%s", id);
    }
    m->n_q = m->n_k = r->in.grid[0] * r->in.grid[1] * r->in.grid[2];
    m->seed = r->o->c.seed;
    m->grid_t = r->in.grid[0];
    m->grid_h = r->in.grid[1];
    m->grid_w = r->in.grid[2];
    m->patch_t = c->patch[0];
    m->patch_h = c->patch[1];
    m->patch_w = c->patch[2];
    m->frames = r->in.t;
    m->height = r->in.h;
    m->width = r->in.w;
    snprintf(m->text_place, sizeof m->text_place, "none");
    snprintf(m->token_order, sizeof m->token_order, "raster");
    snprintf(m->sampler, sizeof m->sampler, "flow-euler");
    m->steps = r->o->video.steps;
    m->shift = r->o->video.shift;
    m->guidance = r->o->video.guidance;
    m->pool = r->o->maps == INT64_MIN ? 0 : r->o->maps;
    return r->o->c.dry_run ? 0 : st_content_id(r->model.file, m->weights_id, err);
}

/* ---- the run -------------------------------------------------------------------------------- */

static bool wants_layer(void *ctx, int layer)
{
    const struct video_run *r = ctx;
    return r->capturing && r->layers[layer];
}

/* Before a layer's attention: the call is written, but for its maps. */
static int take_rows(void *ctx, int layer, const float *q, const float *k, const float *v,
                     struct err *err)
{
    struct video_run *r = ctx;
    int64_t n = r->meta.n_q;
    int d = r->model.c.head_dim;
    bool store = wants_layer(r, layer);
    char text[64];
    if (interrupted())
        return err_set(err, ERR_INTERRUPTED, "interrupted");
    snprintf(text, sizeof text, "step %d %s layer %d", r->call.step, r->call.branch, layer);
    progress_add(r->progress, r->begun, r->begun > 0, text);
    r->begun = r->layer_flop + (store ? r->map_flop : 0);
    if (!store)
        return 0;
    r->call.layer = layer;
    r->call.order = r->order++;
    r->call.has_map = r->meta.pool > 0;
    PASS_ON(trace_begin_call(r->writer, &r->call, err));
    PASS_ON(head_select_put(&r->heads, r->writer, TRACE_Q, 0, n, q, d, err));
    PASS_ON(head_select_put(&r->heads, r->writer, TRACE_K, 0, n, k, d, err));
    PASS_ON(head_select_put(&r->heads, r->writer, TRACE_V, 0, n, v, d, err));
    if (!r->call.has_map)
        return trace_end_call(r->writer, err);
    return 0;
}

static int take_map(void *ctx, int layer, const struct attnmap *map, struct err *err)
{
    struct video_run *r = ctx;
    (void)layer;
    for (int i = 0; i < r->heads.n; i++) {
        int64_t at = r->heads.head[i] * map->cells_q * map->cells_k;
        PASS_ON(trace_put_map(r->writer, i, map->sum + at, map->max + at, err));
    }
    return trace_end_call(r->writer, err);
}

static int evaluate(struct video_run *r, int64_t step, const char *branch, const float *text,
                    float *v, struct err *err)
{
    struct wan_input in = {r->in.x, r->in.t,     r->in.h, r->in.w, 1000 * r->in.sigma[step],
                           text,    r->in.n_text};
    r->call =
        (struct trace_call){.step = (int)step, .timestep = in.timestep, .sigma = r->in.sigma[step]};
    snprintf(r->call.branch, sizeof r->call.branch, "%s", branch);
    struct wan_hooks hooks = {r, take_rows, wants_layer, r->meta.pool, take_map};
    r->capturing = r->steps[step];
    int rc = wan_forward(&r->model, &in, cmd_jobs(&r->o->c), &hooks, v, err);
    if (rc == 0)
        progress_add(r->progress, r->begun, 1, NULL);
    r->begun = 0;
    return rc;
}

static int denoise(struct video_run *r, struct err *err)
{
    for (int64_t s = 0; s <= r->last_step; s++) {
        PASS_ON(evaluate(r, s, "cond", r->in.text, r->v, err));
        if (r->in.branches == 2) {
            PASS_ON(evaluate(r, s, "uncond", r->in.negative, r->v_uncond, err));
            flow_guide(r->v, r->v_uncond, r->in.size, r->o->video.guidance);
        }
        flow_step(r->in.x, r->v, r->in.size, r->in.sigma[s], r->in.sigma[s + 1]);
    }
    return 0;
}

static int put_schedule(struct video_run *r, struct err *err)
{
    int64_t steps = r->o->video.steps;
    OWN(free_at) double *timestep = NULL;
    PASS_ON(mem_alloc(&timestep, steps, sizeof *timestep, "schedule", err));
    for (int64_t i = 0; i < steps; i++)
        timestep[i] = 1000 * r->in.sigma[i];
    PASS_ON(trace_put_run(r->writer, TRACE_SIGMAS, steps + 1, r->in.sigma, err));
    return trace_put_run(r->writer, TRACE_TIMESTEPS, steps, timestep, err);
}

static int save_results(struct video_run *r, struct err *err)
{
    int64_t shape[4] = {r->model.c.in_channels, r->in.t, r->in.h, r->in.w};
    if (r->o->save_sample)
        PASS_ON(npy_write(r->o->save_sample, DT_F32, 4, shape, r->in.x, err));
    if (r->o->save_frames)
        return frames_write(r->o->save_frames, r->in.x, r->in.t, r->in.h, r->in.w, err);
    return 0;
}

/* Products of a layer: its weights with every token, scores and values; of the maps: the scores
 * again. */
static void count_flop(struct video_run *r)
{
    const struct wan_config *c = &r->model.c;
    double n = (double)r->meta.n_q, weights = (double)wan_block_bytes(c) / 4;
    r->layer_flop = 2 * n * weights + 4 * n * n * (double)c->dim;
    r->map_flop = r->meta.pool ? 2 * n * n * (double)c->dim : 0;
}

static double total_flop(const struct video_run *r)
{
    double layers = (double)((r->last_step + 1) * r->in.branches) * r->model.c.layers;
    return layers * r->layer_flop +
           (double)(r->n_steps * r->in.branches * r->n_layers) * r->map_flop;
}

static int open_device(struct video_run *r, struct err *err)
{
    struct wan_device_ask ask = {
        .on = r->device, .size = {r->in.t, r->in.h, r->in.w}, .n_text = r->in.n_text};
    return wan_device_open(&r->model, &ask, err);
}

static int run_model(struct video_run *r, struct err *err)
{
    int64_t calls = r->n_steps * r->in.branches * r->n_layers;
    int64_t layers = (r->last_step + 1) * r->in.branches * r->model.c.layers;
    int rc = 0;
    TRY(video_input_noise(&r->model.c, &r->o->video, &r->in, err));
    if (r->device)
        TRY(open_device(r, err));
    if (r->o->save_frames) /* not after hours of work */
        TRY(make_dirs(r->o->save_frames, err));
    TRY(mem_alloc(&r->v, r->in.size, sizeof(float), "velocity", err));
    if (r->in.branches == 2)
        TRY(mem_alloc(&r->v_uncond, r->in.size, sizeof(float), "velocity", err));
    TRY(trace_create(r->o->out, &r->meta, calls, r->o->c.force, &r->writer, err));
    TRY(put_schedule(r, err));
    r->progress = progress_start("capture", total_flop(r), layers);
    TRY(denoise(r, err));
    if (r->device)
        r->device_seconds = wan_device_seconds(r->model.device);
    progress_end(&r->progress);
    TRY(trace_commit(&r->writer, err));
    TRY(save_results(r, err));
out:
    progress_end(&r->progress);
    trace_abort(&r->writer);
    return rc;
}

/* Memory of maps: normalisers, sums and maxima of the cells. */
static int64_t map_bytes(const struct video_run *r)
{
    const struct wan_config *c = &r->model.c;
    int64_t n = r->meta.n_q, cells = r->meta.pool ? (n + r->meta.pool - 1) / r->meta.pool : 0;
    return cells ? 8 * c->heads * (n + cells * cells) : 0;
}

/* Host memory of the run. */
static int64_t memory_bytes(const struct video_run *r)
{
    const struct wan_config *c = &r->model.c;
    int64_t ends = 12 * r->in.size, blocks = (c->layers - 1) * wan_block_bytes(c);
    if (r->device)
        return ends + wan_device_bytes(c, r->meta.n_q, r->meta.pool);
    return ends + wan_forward_bytes(c, r->in.t, r->in.h, r->in.w) + map_bytes(r) +
           (r->model.cached ? blocks : 0);
}

static int summarise(struct video_run *r, double seconds, struct err *err)
{
    int64_t calls = r->n_steps * r->in.branches * r->n_layers;
    struct capture_summary s = {.path = r->o->out,
                                .tokens = r->meta.n_q,
                                .calls = calls,
                                .file_bytes = trace_size(&r->meta, calls),
                                .memory_bytes = memory_bytes(r),
                                .seconds = seconds,
                                .nll = NAN,
                                .device_seconds = r->device_seconds};
    return capture_print(r->o, &s, err);
}

int video_capture(const struct capture_opts *o, const struct denoiser_accel *device,
                  struct err *err)
{
    struct video_run r = {.o = o, .device = device, .device_seconds = NAN};
    double begin = clock_s();
    int rc = 0;
    TRY(prepare(&r, err));
    TRY(fill_meta(&r, err));
    count_flop(&r);
    if (o->c.dry_run) {
        /* A device is not opened for a dry run. */
        TRY(summarise(&r, device ? NAN : total_flop(&r) / capture_rate(cmd_jobs(&o->c)), err));
        goto out;
    }
    TRY(run_model(&r, err));
    TRY(summarise(&r, clock_s() - begin, err));
out:
    wan_close(&r.model);
    video_input_close(&r.in);
    free(r.v);
    free(r.v_uncond);
    head_select_free(&r.heads);
    free(r.layers);
    free(r.steps);
    return rc;
}
