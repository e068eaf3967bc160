/*
 * calibinside.c - search of parameters inside the model (evalrun.h). On this processor. Memory: per
 * window the hidden state and one layer's q, k, v.
 */
#include "eval/evalrun.h"

#include "capture/llm_model.h"
#include "core/fileio.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/pool.h"
#include "core/sealed.h"
#include "core/version.h"
#include "eval/evaltask.h"
#include "sim/blocks/exact.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One window: its ids, residual stream, and one layer's q, k, v. */
struct window {
    int32_t *ids;
    float *h, *q;
    struct nn_kv kv;
};

struct search {
    const struct calib_inside *c;
    struct method_run run; /* the method, with what was found so far; owns calib_doc and given */
    struct window w[CALIB_INSIDE_WINDOWS];
    int n;
    char id[HASH_TEXT_MAX]; /* of the text */
    struct llm_work work;
    struct llm_layer weights;
    float *o;
    int layer;
    json_t **found; /* [heads]: parameters of this layer's heads; NULL: none */
    int64_t lacking;
};

/* ---- windows -------------------------------------------------------------------------------- */

static int make_windows(struct search *s, const int32_t *ids, int64_t n, struct err *err)
{
    const struct calib_inside *c = s->c;
    const struct llm_config *m = &c->m->llm.c;
    int64_t bos = c->m->bos >= 0, step = c->tokens - bos;
    for (; s->n < CALIB_INSIDE_WINDOWS && (s->n + 1) * step <= n; s->n++) {
        struct window *w = s->w + s->n;
        PASS_ON(mem_alloc(&w->ids, c->tokens, sizeof *w->ids, "token ids", err));
        PASS_ON(mem_alloc(&w->h, c->tokens * m->hidden, sizeof *w->h, "hidden state", err));
        PASS_ON(mem_alloc(&w->q, c->tokens * s->work.qdim, sizeof *w->q, "queries", err));
        PASS_ON(nn_kv_init(&w->kv, c->tokens, m->kv_heads, m->head_dim, err));
        w->ids[0] = c->m->bos;
        memcpy(w->ids + bos, ids + s->n * step, (size_t)step * sizeof *ids);
        PASS_ON(llm_embed(&c->m->llm, w->ids, c->tokens, w->h, err));
    }
    if (s->n == 0)
        return err_set(err, ERR_INPUT,
                       "%s has %lld tokens, --calibrate-tokens asks for windows of %lld", c->text,
                       (long long)(n + bos), (long long)c->tokens);
    return 0;
}

static int read_windows(struct search *s, struct err *err)
{
    OWN(buf_free) struct buf text = {0};
    OWN(free_at) int32_t *ids = NULL;
    int64_t n = 0;
    PASS_ON(buf_read_file(&text, s->c->text, EVAL_TEXT_MAX, err));
    hash_text(hash_bytes(buf_str(&text), text.len), s->id);
    PASS_ON(tokenizer_encode_plain(s->c->m->tok, buf_str(&text), text.len, &ids, &n, err));
    return make_windows(s, ids, n, err);
}

/* ---- a layer -------------------------------------------------------------------------------- */

/* A head of a window as the method sees it; q is the caller's copy. */
static void head_of(const struct search *s, const struct window *w, int head, float *q,
                    struct head_in *in)
{
    const struct llm_config *c = &s->c->m->llm.c;
    int kv_head = head / (c->heads / c->kv_heads), d = c->head_dim;
    nn_take_head(w->q, s->c->tokens, c->heads, d, head, q);
    *in = (struct head_in){.x = {.nq = s->c->tokens,
                                 .nk = s->c->tokens,
                                 .d = d,
                                 .dv = d,
                                 .q = q,
                                 .k = w->kv.k + kv_head * w->kv.n * d,
                                 .v = w->kv.v + kv_head * w->kv.n * d,
                                 .scale = 1 / sqrt(d),
                                 .causal = true,
                                 .reach = w->kv.reach},
                           .src_dtype = s->c->how->round,
                           .layer = s->layer,
                           .head = head,
                           .kv_head = kv_head,
                           .n_heads = c->heads,
                           .n_kv_heads = c->kv_heads,
                           .n_layers = c->layers,
                           .timestep = NAN,
                           .branch = "main"};
    if (in->x.reach.back >= in->x.nk)
        in->x.reach.back = 0;
}

static int search_samples(struct search *s, struct head_in *in, int head, struct err *err)
{
    struct method_ctx ctx = {.seed = s->c->how->seed};
    OWN(buf_free) struct buf b = {0};
    struct jw w;
    int rc;
    if (!attn_is_plain(&in[0].x))
        return 0; /* searches know no window; the layer keeps the settings of all heads */
    jw_init(&w, &b, 0);
    jw_obj(&w);
    rc = s->run.method->search.calibrate(&ctx, s->run.params, in, s->n, &w, err);
    jw_obj_end(&w);
    if (rc == METHOD_SKIP)
        rc = 0;
    else if (!rc && !(rc = buf_check(&b, "calibration of a head", err)) &&
             !(s->found[head] = json_loads(buf_str(&b), 0, NULL)))
        rc = err_set(err, ERR_NOMEM, "calibration: out of memory");
    return rc;
}

static int search_head(void *ctx, int64_t head, int worker, struct err *err)
{
    struct search *s = ctx;
    const struct llm_config *c = &s->c->m->llm.c;
    struct head_in in[CALIB_INSIDE_WINDOWS];
    struct exact exact[CALIB_INSIDE_WINDOWS] = {0};
    float *q[CALIB_INSIDE_WINDOWS] = {0};
    int rc = 0;
    if (s->c->how->dense_head[(int64_t)s->layer * c->heads + head])
        return 0;
    if (interrupted())
        FAIL(err, ERR_INTERRUPTED, "interrupted");
    for (int i = 0; i < s->n; i++) {
        TRY(mem_alloc(&q[i], s->c->tokens * c->head_dim, sizeof **q, "queries of a head", err));
        head_of(s, s->w + i, (int)head, q[i], in + i);
        exact_init(exact + i, &in[i].x, s->c->how->precision);
        in[i].exact = exact + i;
    }
    TRY(search_samples(s, in, (int)head, err));
out:
    for (int i = 0; i < s->n; i++) {
        exact_free(exact + i);
        free(q[i]);
    }
    return rc ? err_prefix(err, "layer %d head %lld", s->layer, (long long)head) : 0;
}

/* Move what was found into the document, where the layer's attention looks for it. */
static int keep_found(struct search *s, struct err *err)
{
    const struct llm_config *c = &s->c->m->llm.c;
    json_t *heads = json_object_get(s->run.calib_doc, "heads");
    for (int h = 0; h < c->heads; h++) {
        json_t *e = s->found[h];
        s->found[h] = NULL;
        if (!e) {
            s->lacking += !s->c->how->dense_head[(int64_t)s->layer * c->heads + h];
            continue;
        }
        json_object_del(e, "grid"); /* all that a grid judged: no parameter */
        if (json_object_set_new(e, "layer", json_integer(s->layer)) ||
            json_object_set_new(e, "head", json_integer(h)) || json_array_append_new(heads, e))
            return err_set(err, ERR_NOMEM, "calibration: out of memory");
    }
    return 0;
}

static int run_layer(struct search *s, struct layer_attn *attn, struct err *err)
{
    const struct calib_inside *c = s->c;
    int64_t n = c->tokens, hidden = c->m->llm.c.hidden, step = s->work.chunk;
    PASS_ON(llm_layer_load(&c->m->llm, s->layer, &s->weights, err));
    for (int i = 0; i < s->n; i++)
        for (int64_t t = 0; t < n; t += step)
            PASS_ON(llm_project(&s->work, &s->weights, s->w[i].h + t * hidden, t,
                                n - t < step ? n - t : step, &s->w[i].kv,
                                s->w[i].q + t * s->work.qdim, err));
    PASS_ON(pool_run(c->jobs, c->m->llm.c.heads, search_head, s, err));
    PASS_ON(keep_found(s, err));
    for (int i = 0; i < s->n; i++) {
        struct window *w = s->w + i;
        PASS_ON(layer_attn_attend(attn, s->layer, w->q, n, &w->kv, n, s->o, err));
        for (int64_t t = 0; t < n; t += step)
            PASS_ON(llm_finish(&s->work, &s->weights, s->o + t * s->work.qdim,
                               n - t < step ? n - t : step, w->h + t * hidden, err));
    }
    log_debug("calibration inside: layer %d", s->layer);
    return 0;
}

/* ---- the file ------------------------------------------------------------------------------- */

/* As `lacuna calibrate` writes it, with the text in the place of traces. */
static int write_file(const struct search *s, const char *path, struct err *err)
{
    const struct method_run *run = &s->run;
    OWN(buf_free) struct buf b = {0};
    struct jw w;
    jw_init(&w, &b, 2);
    jw_obj(&w);
    jw_members(&w, JW_STR("method", run->method->name), JW_STR("name", "inside"),
               JW_STR("per", "head"), JW_STR("lacuna", lacuna_version()),
               JW_STR("model", s->c->m->name), JW_INT("seed", (int64_t)s->c->how->seed),
               JW_STR("precision", s->c->how->precision == PREC_F64 ? "f64" : "f32"),
               JW_STR("permute", "none"), JW_INT("windows", s->n), JW_INT("tokens", s->c->tokens));
    jw_kobj(&w, "params");
    opt_json(run->method->params.table, run->params, &w);
    jw_obj_end(&w);
    jw_karr(&w, "traces");
    jw_row(&w, JW_STR("path", s->c->text), JW_STR("id", s->id));
    jw_arr_end(&w);
    jw_key(&w, "heads");
    jw_value(&w, json_object_get(run->calib_doc, "heads"));
    jw_obj_end(&w);
    seal_put(&b, 0);
    buf_puts(&b, "\n");
    PASS_ON(buf_check(&b, path, err));
    return file_write_atomic(path, buf_str(&b), b.len, err);
}

/* Whatever changes what is found is in the name. */
static void file_path(const struct search *s, const struct method_run *run, char *path, size_t size)
{
    const struct calib_inside *c = s->c;
    const struct llm_config *m = &c->m->llm.c;
    OWN(buf_free) struct buf b = {0};
    struct jw w;
    char id[HASH_TEXT_MAX];
    buf_printf(&b, "%s %s %s %lld %d %d %llu ", c->m->weights, s->id, run->canonical,
               (long long)c->tokens, (int)c->how->round, (int)c->how->precision,
               (unsigned long long)c->how->seed);
    jw_init(&w, &b, 0);
    jw_obj(&w);
    opt_json(run->method->params.table, run->params, &w);
    jw_obj_end(&w);
    for (int64_t i = 0; i < (int64_t)m->layers * m->heads; i++)
        buf_puts(&b, c->how->dense_head[i] ? "d" : ".");
    hash_text(hash_bytes(buf_str(&b), b.len), id);
    snprintf(path, size, "%s/calib-%s-%.12s.json", c->dir, run->method->name, strchr(id, ':') + 1);
}

static void search_free(struct search *s)
{
    for (int i = 0; i < CALIB_INSIDE_WINDOWS; i++) {
        free(s->w[i].ids);
        free(s->w[i].h);
        free(s->w[i].q);
        nn_kv_free(&s->w[i].kv);
    }
    for (int h = 0; s->found && h < s->c->m->llm.c.heads; h++)
        json_decref(s->found[h]);
    free(s->found);
    free(s->o);
    llm_layer_free(&s->weights);
    llm_work_free(&s->work);
    json_decref(s->run.calib_doc);
    free(s->run.given);
}

/* Through the layers; s has its windows. */
static int search_layers(struct search *s, struct err *err)
{
    const struct calib_inside *c = s->c;
    struct attn_shape shape = eval_model_shape(c->m);
    struct eval_how how = {.dense_head = c->how->dense_head,
                           .skip_is_dense = true,
                           .round = c->how->round,
                           .precision = c->how->precision,
                           .seed = c->how->seed};
    OWN(layer_attn_free) struct layer_attn attn = {0};
    PASS_ON(layer_attn_init(&attn, &s->run, &how, &shape, c->m->name, c->jobs, err));
    for (s->layer = 0; s->layer < shape.layers; s->layer++)
        PASS_ON(run_layer(s, &attn, err));
    if (s->lacking)
        log_warn("%s: the search inside the model has no answer for %lld heads, which use the "
                 "settings of all",
                 s->run.method->name, (long long)s->lacking);
    return 0;
}

static int open_search(struct search *s, const struct calib_inside *c, const struct method_run *run,
                       struct err *err)
{
    const struct llm_config *m = &c->m->llm.c;
    int64_t chunk = c->tokens < 2048 ? c->tokens : 2048;
    s->c = c;
    s->run = (struct method_run){.method = run->method,
                                 .params = run->params,
                                 .canonical = run->canonical,
                                 .calib = (char *)(uintptr_t) "the search inside the model"};
    PASS_ON(mem_zalloc(&s->run.given, opt_count(run->method->params.table), sizeof *s->run.given,
                       "parameters given", err));
    if (!(s->run.calib_doc = json_pack("{s:[]}", "heads")))
        return err_set(err, ERR_NOMEM, "calibration: out of memory");
    PASS_ON(mem_zalloc(&s->found, m->heads, sizeof(json_t *), "parameters of heads", err));
    PASS_ON(llm_work_init(&s->work, m, chunk, c->jobs, err));
    s->work.round = c->how->round;
    PASS_ON(mem_alloc(&s->o, c->tokens * s->work.qdim, sizeof *s->o, "attention output", err));
    return read_windows(s, err);
}

int calib_inside(const struct calib_inside *c, const struct method *const *methods,
                 struct method_run *run, struct err *err)
{
    struct search s = {0};
    struct method_run *made = NULL, old = *run;
    struct buf text = {0};
    char path[4096];
    int64_t n = 0;
    int rc = 0;
    if (c->tokens > c->m->llm.c.max_positions)
        FAIL(err, ERR_USAGE, "--calibrate-tokens %lld is more than the model's context of %lld",
             (long long)c->tokens, (long long)c->m->llm.c.max_positions);
    if (strpbrk(c->dir, ":,"))
        FAIL(err, ERR_USAGE,
             "--calibrate-inside writes files that methods name as calib=FILE: -o %s must have "
             "neither ':' nor ','",
             c->dir);
    TRY(open_search(&s, c, run, err));
    file_path(&s, run, path, sizeof path);
    if (access(path, F_OK) != 0) {
        log_info("%s: searching parameters inside the model, %d windows of %lld tokens of %s",
                 run->method->name, s.n, (long long)c->tokens, c->text);
        TRY(make_dirs(c->dir, err));
        TRY(search_layers(&s, err));
        TRY(write_file(&s, path, err));
    }
    buf_printf(&text, "%s:calib=%s", run->method->name, path);
    TRY(buf_check(&text, path, err));
    TRY(method_runs_parse(methods, buf_str(&text), &made, &n, err));
    *run = made[0];
    made[0] = old;
out:
    method_runs_free(made, n);
    buf_free(&text);
    search_free(&s);
    return rc;
}
