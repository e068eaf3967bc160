/*
 * evalvideo.c - a video diffusion transformer with methods inside it (evalrun.h).
 */
#include "eval/evalrun.h"

#include "core/checkpoint.h"
#include "capture/video_input.h"
#include "capture/wan_model.h"
#include "core/clock.h"
#include "core/fileio.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/pool.h"
#include "core/progress.h"
#include "eval/videometric.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Blocks stay in memory when all of them take at most this much. */
#define CACHE_BYTES ((int64_t)1 << 30)

int video_eval_open(struct video_eval *v, struct err *err)
{
    const struct wan_config *c = &v->model.c;
    PASS_ON(wan_open(v->ask.model, CACHE_BYTES, &v->model, err));
    PASS_ON(video_input_open(c, &v->ask, &v->in, err));
    PASS_ON(st_content_id(v->model.file, v->weights, err));
    checkpoint_name(v->ask.model, v->name, sizeof v->name);
    v->shape = (struct attn_shape){
        .layers = c->layers,
        .heads = c->heads,
        .kv_heads = c->heads,
        .head_dim = c->head_dim,
        .geom = {.t = v->in.grid[0], .h = v->in.grid[1], .w = v->in.grid[2]},
    };
    if (v->frames && c->out_channels != 3)
        return err_set(
            err, ERR_USAGE,
            "eval: --save-frames needs a model that denoises RGB pixels; this one has %lld latent "
            "channels",
            (long long)c->out_channels);
    return 0;
}

void video_eval_close(struct video_eval *v)
{
    wan_close(&v->model);
    video_input_close(&v->in);
    free(v->how.dense_head);
    free(v->tally);
}

int64_t video_eval_memory(const struct video_eval *v)
{
    const struct wan_config *c = &v->model.c;
    int64_t n = v->in.grid[0] * v->in.grid[1] * v->in.grid[2];
    int64_t run = v->device ? wan_device_bytes(c, n, 0) + 12 * n * c->dim
                            : wan_forward_bytes(c, v->in.t, v->in.h, v->in.w);
    return run + 4 * v->in.size * (2 * v->n_runs + 4);
}

/* ---- records -------------------------------------------------------------------------------- */

static void put_hash(struct buf *b, const char *key, const void *data, int64_t n)
{
    char hash[HASH_TEXT_MAX];
    hash_text(hash_bytes(data, (size_t)n * sizeof(float)), hash);
    buf_printf(b, ":%s=%s", key, hash + strlen("xxh3:"));
}

/* The noise enters through the seed, or by its content. */
static int task_name(struct video_eval *v, struct buf *b, struct err *err)
{
    const struct video_input *in = &v->in;
    int64_t text = in->n_text * v->model.c.text_dim;
    buf_printf(b, "video:size=%lldx%lldx%lld:steps=%lld:shift=%.15g:guidance=%.15g",
               (long long)in->t, (long long)in->h, (long long)in->w, (long long)v->ask.steps,
               v->ask.shift, v->ask.guidance);
    put_hash(b, "text", in->text, text);
    if (in->branches == 2)
        put_hash(b, "negative", in->negative, text);
    if (v->ask.noise) {
        if (!in->x)
            PASS_ON(video_input_noise(&v->model.c, &v->ask, &v->in, err));
        put_hash(b, "noise", in->x, in->size);
    }
    return buf_check(b, "task", err);
}

/* records [n_runs + 1], done[i]: there already. */
static int make_records(struct video_eval *v, struct record *rec, bool *done, struct err *err)
{
    struct eval_subject m = {v->name, v->weights, v->shape};
    OWN(buf_free) struct buf name = {0};
    PASS_ON(task_name(v, &name, err));
    v->count = (struct eval_count){.all = v->n_runs + 1};
    for (int i = 0; i <= v->n_runs; i++) {
        bool lacks = false;
        PASS_ON(
            eval_identity(&m, &v->how, buf_str(&name), i ? v->runs + i - 1 : NULL, rec + i, err));
        rec[i].n_q = rec[i].n_k = v->in.grid[0] * v->in.grid[1] * v->in.grid[2];
        PASS_ON(record_file_holds(v->records, rec + i, done + i, err));
        v->count.todo += !done[i];
        if (v->samples)
            PASS_ON(record_file_lacks(v->records, rec + i, RECORD_TIMES, &lacks, err));
        v->count.no_times += lacks;
    }
    return 0;
}

/* ---- streams -------------------------------------------------------------------------------- */

/* The sampler with one kind of attention. */
struct video_stream {
    struct layer_attn attn; /* not of stream 0 */
    float *x, *v;           /* sample, velocity of the step; owned */
    bool runs;              /* takes part, and its method has applied so far */
    double wall_ns;         /* on the host's clock, so far */
    struct record rec;
};

struct video_work {
    struct video_eval *e;
    struct video_stream *s; /* [n_runs + 1], owned */
    bool *done;             /* owned */
    float *uncond;          /* velocity of the other branch, owned */
    struct clip_times times;
    struct progress *progress;
};

static void work_free(struct video_work *w)
{
    for (int i = 0; w->s && i <= w->e->n_runs; i++) {
        layer_attn_free(&w->s[i].attn);
        free(w->s[i].x);
        free(w->s[i].v);
        record_free(&w->s[i].rec);
    }
    free(w->s);
    free(w->done);
    free(w->uncond);
}

static int open_streams(struct video_work *w, struct err *err)
{
    struct video_eval *e = w->e;
    OWN(free_at) struct record *rec = NULL;
    int rc = 0;
    PASS_ON(mem_zalloc(&w->s, e->n_runs + 1, sizeof *w->s, "streams", err));
    PASS_ON(mem_zalloc(&w->done, e->n_runs + 1, sizeof *w->done, "streams", err));
    PASS_ON(mem_zalloc(&rec, e->n_runs + 1, sizeof *rec, "records", err));
    for (int i = 0; i <= e->n_runs; i++)
        record_init(rec + i);
    rc = make_records(e, rec, w->done, err);
    for (int i = 0; i <= e->n_runs; i++)
        w->s[i].rec = rec[i];
    if (rc || e->count.todo == 0)
        return rc;
    if (!e->in.x)
        PASS_ON(video_input_noise(&e->model.c, &e->ask, &e->in, err));
    assert(e->in.x);
    PASS_ON(mem_alloc(&w->uncond, e->in.size, sizeof(float), "velocity", err));
    for (int i = 0; i <= e->n_runs; i++) {
        struct video_stream *s = w->s + i;
        s->runs = i == 0 || !w->done[i];
        PASS_ON(mem_alloc(&s->x, e->in.size, sizeof(float), "latent", err));
        PASS_ON(mem_alloc(&s->v, e->in.size, sizeof(float), "velocity", err));
        memcpy(s->x, e->in.x, (size_t)e->in.size * sizeof(float));
        if (i == 0)
            continue;
        PASS_ON(
            layer_attn_init(&s->attn, e->runs + i - 1, &e->how, &e->shape, e->name, e->jobs, err));
        PASS_ON(layer_attn_keep_state(&s->attn, (int)e->in.branches, err));
        s->attn.n_steps = (int)e->ask.steps;
    }
    return rc;
}

/* ---- the sampler ---------------------------------------------------------------------------- */

static int evaluate(struct video_work *w, struct video_stream *s, int64_t step, int branch,
                    float *v, struct err *err)
{
    struct video_eval *e = w->e;
    bool method = s != w->s;
    const float *text = branch ? e->in.negative : e->in.text;
    struct layer_attention own = layer_attn_own(&s->attn);
    struct wan_input in = {s->x, e->in.t,     e->in.h, e->in.w, 1000 * e->in.sigma[step],
                           text, e->in.n_text};
    if (interrupted())
        return err_set(err, ERR_INTERRUPTED,
                       "interrupted; a clip has no record before its last step");
    s->attn.step = (int)step;
    s->attn.timestep = in.timestep;
    s->attn.branch = branch;
    e->model.attention = method ? &own : NULL;
    int rc = wan_forward(&e->model, &in, e->jobs, NULL, v, err);
    e->model.attention = NULL;
    return rc;
}

/* What an evaluation takes beside a method's attention, behind the first of all. */
static int take_times(struct video_work *w, struct err *err)
{
    struct video_eval *e = w->e;
    double heads = (double)e->shape.layers * e->shape.heads;
    int rc = wan_device_time(&e->model, e->samples, &w->times.of, err);
    for (int i = 1; i <= e->n_runs; i++)
        w->s[i].attn.exact_ns = rc ? NAN : w->times.of.attention / heads;
    return rc;
}

/* A stream whose method ended it: a fatal error ends the run. */
static int drop_out(struct video_stream *s, int rc, const struct err *why, struct err *err)
{
    s->runs = false;
    if (rc == METHOD_SKIP) {
        s->rec.status = RECORD_SKIP;
        record_text(&s->rec, &s->rec.reason, "%s", s->attn.skip);
        return 0;
    }
    if (rc == ERR_IO || rc == ERR_MACHINE || rc == ERR_USAGE || rc == ERR_NOMEM ||
        rc == ERR_INTERRUPTED) {
        *err = *why;
        return rc;
    }
    s->rec.status = RECORD_ERROR;
    record_text(&s->rec, &s->rec.reason, "%s", why->msg);
    return 0;
}

static double sum_of(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i];
    return sum;
}

static int put_step(struct record *r, const char *name, int64_t step, double x, struct err *err)
{
    char full[48];
    snprintf(full, sizeof full, "%s@step=%lld", name, (long long)step);
    return record_metric(r, full, x, err);
}

/* Sums of a stream before a step. */
struct before_step {
    double kept, attn_ns, wall_ns;
};

static struct before_step before_step(const struct video_work *w, const struct video_stream *s)
{
    int64_t heads = (int64_t)w->e->shape.layers * w->e->shape.heads;
    struct before_step b = {.wall_ns = clock_ns()};
    if (s == w->s)
        return b;
    b.kept = sum_of(s->attn.elem, heads);
    b.attn_ns = eval_attention_ns(&s->attn).method;
    return b;
}

/* What a step of a stream kept and took, and how far it is from the exact one after it. */
static int compare_step(struct video_work *w, struct video_stream *s, int64_t step,
                        const struct before_step *before, struct err *err)
{
    const struct video_stream *dense = w->s;
    int64_t n = w->e->in.size, heads = (int64_t)w->e->shape.layers * w->e->shape.heads;
    double kept = sum_of(s->attn.elem, heads) - before->kept;
    double attn_ns = eval_attention_ns(&s->attn).method - before->attn_ns;
    double l2, cosine, v_l2, v_cosine;
    vector_compare(s->x, dense->x, n, &l2, &cosine);
    vector_compare(s->v, dense->v, n, &v_l2, &v_cosine);
    PASS_ON(put_step(&s->rec, "x_l2", step, l2, err));
    PASS_ON(put_step(&s->rec, "x_cos", step, cosine, err));
    PASS_ON(put_step(&s->rec, "v_l2", step, v_l2, err));
    PASS_ON(
        put_step(&s->rec, "density_elem", step, kept / (double)(heads * w->e->in.branches), err));
    if (w->e->samples && !isnan(attn_ns))
        return put_step(&s->rec, "time_attn_ns", step, attn_ns, err);
    return 0;
}

static int step_stream(struct video_work *w, struct video_stream *s, int64_t step, struct err *err)
{
    struct video_eval *e = w->e;
    struct before_step before = before_step(w, s);
    struct err own = {0};
    int rc = evaluate(w, s, step, 0, s->v, &own);
    if (!rc && e->in.branches == 2) {
        rc = evaluate(w, s, step, 1, w->uncond, &own);
        if (!rc)
            flow_guide(s->v, w->uncond, e->in.size, e->ask.guidance);
    }
    if (rc && s == w->s) {
        *err = own;
        return rc;
    }
    if (rc)
        return drop_out(s, rc, &own, err);
    flow_step(s->x, s->v, e->in.size, e->in.sigma[step], e->in.sigma[step + 1]);
    s->wall_ns += clock_ns() - before.wall_ns;
    if (s == w->s)
        return e->samples && step == 0 ? take_times(w, err) : 0;
    return compare_step(w, s, step, &before, err);
}

static int sample(struct video_work *w, struct err *err)
{
    char text[32];
    for (int64_t step = 0; step < w->e->ask.steps; step++)
        for (int i = 0; i <= w->e->n_runs; i++) {
            if (w->s[i].runs)
                PASS_ON(step_stream(w, w->s + i, step, err));
            snprintf(text, sizeof text, "step %lld", (long long)step);
            progress_add(w->progress, 1, 1, text);
        }
    return 0;
}

/* ---- the end -------------------------------------------------------------------------------- */

static int compare_clips(struct video_work *w, struct video_stream *s, struct err *err)
{
    const struct video_eval *e = w->e;
    struct clip_size size = {e->in.t, e->in.h, e->in.w};
    struct clip_diff d;
    if (e->model.c.out_channels != 3)
        return 0;
    PASS_ON(clip_compare(s->x, w->s->x, size, e->jobs, &d, err));
    const struct {
        const char *name;
        double value;
    } v[] = {{"psnr", d.psnr},
             {"psnr_clip", d.psnr_clip},
             {"ssim", d.ssim},
             {"ssim_box11", d.ssim_box11},
             {"flicker", d.flicker},
             {"flicker_dense", d.flicker_dense},
             {"flicker_ratio", d.flicker_ratio},
             {"flicker_diff", d.flicker_diff}};
    for (size_t i = 0; i < sizeof v / sizeof *v; i++)
        if (!isnan(v[i].value))
            PASS_ON(record_metric(&s->rec, v[i].name, v[i].value, err));
    return 0;
}

static int save_pictures(const struct video_work *w, int i, struct err *err)
{
    const struct video_eval *e = w->e;
    const struct video_stream *s = w->s + i;
    struct clip_size size = {e->in.t, e->in.h, e->in.w};
    char path[4096];
    if (i == 0)
        snprintf(path, sizeof path, "%s/dense", e->frames);
    else
        snprintf(path, sizeof path, "%s/%02d-%s", e->frames, i, e->runs[i - 1].method->name);
    PASS_ON(frames_write(path, s->x, size.t, size.h, size.w, err));
    if (i > 0) {
        strncat(path, ".png", sizeof path - strlen(path) - 1);
        PASS_ON(clip_strip(path, s->x, w->s->x, size, err));
        log_info("%s: dense above %s%s%s", path, s->rec.method, s->rec.params[0] ? ":" : "",
                 s->rec.params);
    }
    return 0;
}

static int finish(struct video_work *w, int i, struct err *err)
{
    struct video_eval *e = w->e;
    struct video_stream *s = w->s + i;
    if (s->runs) {
        s->rec.status = RECORD_OK;
        PASS_ON(compare_clips(w, s, err));
        if (i == 0)
            PASS_ON(record_metric(&s->rec, "density_elem", 1, err));
        else
            PASS_ON(eval_record_densities(&s->attn, &s->rec, err));
        if (e->samples)
            PASS_ON(eval_record_clip_times(&w->times, i ? &s->attn : NULL, &s->rec, err));
        log_debug("%s: %lld steps took %.3f s on the host's clock", s->rec.method,
                  (long long)e->ask.steps, 1e-9 * s->wall_ns);
        if (e->frames)
            PASS_ON(save_pictures(w, i, err));
    } else {
        record_no_metrics(&s->rec);
    }
    if (w->done[i])
        return 0;
    return eval_append(e->records, &s->rec, &e->count, i ? e->tally + i - 1 : NULL, err);
}

int video_eval_plan(struct video_eval *v, struct err *err)
{
    struct record *rec = NULL;
    bool *done = NULL;
    int rc = 0;
    TRY(mem_zalloc(&rec, v->n_runs + 1, sizeof *rec, "records", err));
    TRY(mem_zalloc(&done, v->n_runs + 1, sizeof *done, "records", err));
    for (int i = 0; i <= v->n_runs; i++)
        record_init(rec + i);
    TRY(make_records(v, rec, done, err));
out:
    for (int i = 0; rec && i <= v->n_runs; i++)
        record_free(rec + i);
    free(rec);
    free(done);
    return rc;
}

static int open_device(struct video_eval *v, struct err *err)
{
    struct wan_device_ask ask = {
        .on = v->device, .size = {v->in.t, v->in.h, v->in.w}, .n_text = v->in.n_text, .bf16 = true};
    return wan_device_open(&v->model, &ask, err);
}

int video_eval_run(struct video_eval *v, struct err *err)
{
    struct video_work w = {.e = v, .times = {.steps = v->ask.steps, .branches = v->in.branches}};
    struct err own = {0};
    int rc = 0, synced;
    TRY(mem_zalloc(&v->tally, v->n_runs, sizeof *v->tally, "settings", err));
    TRY(open_streams(&w, err));
    if (v->count.todo == 0)
        goto out;
    if (v->device)
        TRY(open_device(v, err));
    if (v->frames) /* not after hours of work */
        TRY(make_dirs(v->frames, err));
    w.progress = progress_start("eval", (double)v->ask.steps * (v->n_runs + 1),
                                v->ask.steps * (v->n_runs + 1));
    TRY(sample(&w, err));
    for (int i = 0; i <= v->n_runs; i++)
        if (i == 0 || !w.done[i])
            TRY(finish(&w, i, err));
out:
    progress_end(&w.progress);
    work_free(&w);
    synced = record_file_sync(v->records, &own);
    return rc || !synced ? rc : err_set(err, synced, "%s", own.msg);
}
