/*
 * trace_export.c - tensors of a trace as .npy files or one .safetensors file.
 *
 * Directories are written tensor by tensor; a .safetensors file needs all of its tensors in memory
 * at once, since its header comes first.
 */
#include "capture/trace/trace_tools.h"
#include "core/fileio.h"
#include "core/indexlist.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/npy.h"
#include "core/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- metadata ------------------------------------------------------------------------------- */

static void put(json_t *o, const char *key, const char *value)
{
    if (value[0])
        json_object_set_new(o, key, json_string(value));
}

static void put_number(json_t *o, const char *key, double x)
{
    char text[40];
    snprintf(text, sizeof text, "%.17g", x);
    put(o, key, text);
}

static void put_video(json_t *o, const struct trace_meta *m)
{
    char grid[80];
    if (m->grid_t == 0)
        return;
    snprintf(grid, sizeof grid, "%lldx%lldx%lld", (long long)m->grid_t, (long long)m->grid_h,
             (long long)m->grid_w);
    put(o, "grid", grid);
    put(o, "token_order", m->token_order);
    if (m->text_tokens == 0)
        return;
    put(o, "text_place", m->text_place);
    put_number(o, "text_tokens", (double)m->text_tokens);
    put_number(o, "text_valid", (double)m->text_valid);
}

/* Name of something of a call. */
static void part_name(const struct trace_call *c, const char *what, char name[96])
{
    snprintf(name, 96, "step-%03d.%s.layer-%02d.%s", c->step, c->branch, c->layer, what);
}

/* What a call does to its scores, under the prefix of its tensors. */
static void put_score(json_t *o, const struct trace_call *c)
{
    char key[96];
    double value;
    for (int i = 0; trace_score_name(i); i++)
        if (trace_score_is_set(&c->score, i, &value)) {
            part_name(c, trace_score_name(i), key);
            put_number(o, key, value);
        }
}

/* All texts; *out is the caller's. */
static int export_metadata(const struct trace *t, const struct head_select *heads, json_t **out,
                           struct err *err)
{
    struct trace_meta selected = *trace_meta(t);
    const struct trace_meta *m = &selected;
    json_t *o = json_object();
    if (!o)
        return err_set(err, ERR_NOMEM, "metadata");
    int rc = head_select_meta(heads, &selected, err);
    if (rc) {
        json_decref(o);
        return rc;
    }
    put(o, "name", m->name);
    put(o, "architecture", m->architecture);
    put(o, "weights_id", m->weights_id);
    put(o, "positions", m->positions);
    put(o, "positions_applied", m->positions_applied ? "true" : "false");
    put(o, "compute", m->compute);
    put(o, "prompt_id", m->prompt_id);
    put(o, "negative_id", m->negative_id);
    put(o, "sampler", m->sampler);
    put(o, "causal", m->causal ? "true" : "false");
    put_number(o, "scale", m->scale);
    put_number(o, "layers", m->layers);
    if (m->row_group > 0)
        put_number(o, "row_group", (double)m->row_group);
    if (m->decode_from > 0)
        put_number(o, "decode_from", (double)m->decode_from);
    if (m->question_from > 0)
        put_number(o, "question_from", (double)m->question_from);
    put(o, "generated_by", m->generated_by);
    if (m->steps > 0)
        put_number(o, "steps", (double)m->steps);
    put_video(o, m);
    put(o, "head_ids", m->head_ids);
    put(o, "kv_head_ids", m->kv_head_ids);
    for (int64_t i = 0; i < trace_calls(t); i++)
        put_score(o, trace_call(t, i));
    *out = o;
    return 0;
}

enum { EX_MAP_SUM = TRACE_WHAT_COUNT, EX_MAP_MAX, EX_COUNT };

static const char *const tensor_names[EX_COUNT] = {"q",   "k",       "v",      "out",
                                                   "lse", "map_sum", "map_max"};

struct item {
    int64_t call;
    int tensor;
    char name[96];
    enum dtype dtype;
    int ndim;
    int64_t shape[3];
    int64_t slice_bytes, bytes;
    void *data; /* owned */
};

struct plan {
    const struct trace *t;
    int64_t *layers, *steps; /* NULL = all */
    int64_t n_layers, n_steps;
    struct head_select heads;
    bool want[EX_COUNT];
    struct item *items;
    int64_t n, cap;
};

/* ---- selection ------------------------------------------------------------------------------- */

static int parse_tensors(const char *text, bool want[EX_COUNT], struct err *err)
{
    for (const char *p = text; *p;) {
        size_t len = strcspn(p, ",");
        int found = -1;
        for (int i = 0; i < EX_COUNT; i++)
            if (strlen(tensor_names[i]) == len && strncmp(p, tensor_names[i], len) == 0)
                found = i;
        if (found < 0)
            return err_set(err, ERR_USAGE,
                           "--tensors: '%.*s' is none of q, k, v, out, lse, map_sum, "
                           "map_max",
                           (int)len, p);
        want[found] = true;
        p += len + (p[len] == ',');
    }
    return 0;
}

static bool call_has(const struct trace_call *c, int tensor)
{
    return tensor == TRACE_OUT   ? c->has_out
           : tensor == TRACE_LSE ? c->has_lse
                                 : tensor < TRACE_WHAT_COUNT || c->has_map;
}

static bool of_keys(int tensor)
{
    return tensor == TRACE_K || tensor == TRACE_V;
}

static int add_item(struct plan *p, int64_t call, int tensor, struct err *err)
{
    const struct trace_meta *m = trace_meta(p->t);
    const struct trace_call *c = trace_call(p->t, call);
    PASS_ON(mem_grow(&p->items, &p->cap, p->n + 1, sizeof *p->items, "tensors to export", err));
    struct item *it = &p->items[p->n++];
    memset(it, 0, sizeof *it);
    it->call = call;
    it->tensor = tensor;
    part_name(c, tensor_names[tensor], it->name);
    it->shape[0] = of_keys(tensor) ? p->heads.n_kv : p->heads.n;
    if (tensor < TRACE_WHAT_COUNT) {
        struct trace_shape s = trace_shape(m, (enum trace_what)tensor);
        it->dtype = s.dtype;
        it->shape[1] = s.tokens;
        it->shape[2] = s.dim;
    } else {
        it->dtype = DT_F32;
        it->shape[1] = trace_map_cells(p->t, false);
        it->shape[2] = trace_map_cells(p->t, true);
    }
    it->ndim = tensor == TRACE_LSE ? 2 : 3;
    if (!mul_ok(it->shape[1], it->shape[2], &it->slice_bytes) ||
        !mul_ok(it->slice_bytes, (int64_t)dtype_size(it->dtype), &it->slice_bytes) ||
        !mul_ok(it->slice_bytes, it->shape[0], &it->bytes))
        return err_set(err, ERR_INPUT, "%s: size overflows", it->name);
    return 0;
}

static int make_plan(struct plan *p, const struct trace_selection *s, struct err *err)
{
    const struct trace_meta *m = trace_meta(p->t);
    PASS_ON(parse_tensors(s->tensors, p->want, err));
    PASS_ON(index_list_parse(s->layers, m->layers, "--layers", &p->layers, &p->n_layers, err));
    PASS_ON(head_select_stored(s->heads, m, &p->heads, err));
    PASS_ON(index_list_parse(s->steps, m->steps > 0 ? m->steps : -1, "--steps", &p->steps,
                             &p->n_steps, err));
    for (int64_t i = 0; i < trace_calls(p->t); i++) {
        const struct trace_call *c = trace_call(p->t, i);
        if (!index_list_has(p->layers, p->n_layers, c->layer) ||
            !index_list_has(p->steps, p->n_steps, c->step) ||
            (s->branch && s->branch[0] && strcmp(s->branch, c->branch) != 0))
            continue;
        for (int tensor = 0; tensor < EX_COUNT; tensor++)
            if (p->want[tensor] && call_has(c, tensor))
                PASS_ON(add_item(p, i, tensor, err));
    }
    if (p->n == 0)
        return err_set(err, ERR_USAGE, "%s has no such tensor: nothing to export",
                       trace_path(p->t));
    return 0;
}

static void free_plan(struct plan *p)
{
    for (int64_t i = 0; i < p->n; i++)
        free(p->items[i].data);
    free(p->items);
    free(p->layers);
    free(p->steps);
    head_select_free(&p->heads);
}

/* ---- reading and writing --------------------------------------------------------------------- */

static int load(const struct plan *p, struct item *it, struct err *err)
{
    PASS_ON(mem_alloc(&it->data, it->bytes, 1, it->name, err));
    for (int64_t i = 0; i < it->shape[0]; i++) {
        void *dst = (char *)it->data + i * it->slice_bytes;
        int head = of_keys(it->tensor) ? p->heads.kv[i] : p->heads.head[i];
        if (it->tensor < TRACE_WHAT_COUNT)
            PASS_ON(trace_read_raw(p->t, it->call, (enum trace_what)it->tensor, head, 0,
                                   it->shape[1], dst, err));
        else
            PASS_ON(trace_read_map(p->t, it->call, head, it->tensor == EX_MAP_SUM ? dst : NULL,
                                   it->tensor == EX_MAP_MAX ? dst : NULL, err));
    }
    return 0;
}

/* A tensor whose data are given and become the item's. */
static int add_loaded(struct plan *p, const char *name, enum dtype dtype, int ndim,
                      const int64_t *shape, void *data, struct err *err)
{
    int rc = mem_grow(&p->items, &p->cap, p->n + 1, sizeof *p->items, "tensors to export", err);
    if (rc) {
        free(data);
        return rc;
    }
    struct item *it = &p->items[p->n++];
    *it = (struct item){.dtype = dtype, .ndim = ndim, .data = data};
    snprintf(it->name, sizeof it->name, "%s", name);
    memcpy(it->shape, shape, (size_t)ndim * sizeof *shape);
    return 0;
}

/* An array from TRACE_SINKS on: [1 or the selected heads] of `rest`, ndim - 1 sizes. */
static int add_values(struct plan *p, int64_t call, int which, int ndim, const int64_t shape[3],
                      struct err *err)
{
    static const char *const names[] = {"sinks", "alibi", "rel_bias", "bias", "col_sum"};
    bool own =
        which >= TRACE_AUX && which > TRACE_AUX + AUX_K_PRE; /* heads that are not the model's */
    int64_t width = shape[1] * shape[2];
    char name[96];
    OWN(free_at) float *x = NULL;
    int rc = 0;
    part_name(trace_call(p->t, call),
              which < TRACE_AUX ? names[which - TRACE_SINKS]
                                : trace_aux_name((enum trace_aux)(which - TRACE_AUX)),
              name);
    PASS_ON(mem_alloc(&x, shape[0] * width, sizeof *x, name, err));
    for (int64_t i = 0; i < shape[0]; i++)
        PASS_ON(trace_read_values(p->t, call, which,
                                  own                              ? (int)i
                                  : which == TRACE_AUX + AUX_K_PRE ? p->heads.kv[i]
                                                                   : p->heads.head[i],
                                  x + i * width, err));
    rc = add_loaded(p, name, DT_F32, ndim, shape, x, err);
    x = NULL;
    return rc;
}

/* What the exported calls do to their scores goes along: without it their tensors mean another
 * model. */
static int add_scores(struct plan *p, struct err *err)
{
    const struct trace_meta *m = trace_meta(p->t);
    int64_t tensors = p->n, last = -1;
    for (int64_t i = 0; i < tensors; i++) {
        int64_t call = p->items[i].call;
        const struct trace_score *s = &trace_call(p->t, call)->score;
        int64_t prompt[3] = {p->heads.n, m->decode_from, 1};
        if (call == last)
            continue;
        last = call;
        int64_t one[3] = {p->heads.n, 1, 1};
        int64_t rel[3] = {s->rel_bias == 1 ? 1 : p->heads.n, 2 * m->n_k - 1, 1};
        int64_t bias[3] = {s->bias == 1 ? 1 : p->heads.n, m->n_q, m->n_k};
        if (s->sinks)
            PASS_ON(add_values(p, call, TRACE_SINKS, 1, one, err));
        if (s->alibi)
            PASS_ON(add_values(p, call, TRACE_ALIBI, 1, one, err));
        if (s->rel_bias)
            PASS_ON(add_values(p, call, TRACE_REL_BIAS, 2, rel, err));
        if (s->bias)
            PASS_ON(add_values(p, call, TRACE_BIAS, 3, bias, err));
        if (trace_call(p->t, call)->has_col_sum)
            PASS_ON(add_values(p, call, TRACE_COL_SUM, 2, prompt, err));
        for (int a = 0; a < AUX_COUNT; a++) {
            struct aux_shape have = trace_call(p->t, call)->aux[a];
            int64_t aux[3] = {a == AUX_Q_PRE   ? p->heads.n
                              : a == AUX_K_PRE ? p->heads.n_kv
                                               : have.heads,
                              have.rows, have.dim};
            if (have.heads)
                PASS_ON(add_values(p, call, TRACE_AUX + a, 3, aux, err));
        }
    }
    return 0;
}

/* The arrays of the run that import takes back. */
static int add_tokens(struct plan *p, struct err *err)
{
    int32_t *ids = NULL;
    float *nll = NULL;
    double *times = NULL, *sigmas = NULL;
    int64_t n = 0;
    PASS_ON(trace_read_run(p->t, TRACE_TOKENS, &ids, &n, err));
    if (n)
        PASS_ON(add_loaded(p, "tokens", DT_I32, 1, &n, ids, err));
    struct row_sample rows;
    if (trace_rows(p->t, &rows)) {
        int32_t *at = NULL;
        PASS_ON(mem_alloc(&at, rows.n, sizeof *at, "sampled rows", err));
        memcpy(at, rows.at, (size_t)rows.n * sizeof *at);
        PASS_ON(add_loaded(p, "rows", DT_I32, 1, &rows.n, at, err));
    }
    PASS_ON(trace_read_run(p->t, TRACE_NLL, &nll, &n, err));
    if (n)
        PASS_ON(add_loaded(p, "nll", DT_F32, 1, &n, nll, err));
    PASS_ON(trace_read_run(p->t, TRACE_TIMESTEPS, &times, &n, err));
    if (n)
        PASS_ON(add_loaded(p, "timesteps", DT_F64, 1, &n, times, err));
    PASS_ON(trace_read_run(p->t, TRACE_SIGMAS, &sigmas, &n, err));
    if (n)
        return add_loaded(p, "sigmas", DT_F64, 1, &n, sigmas, err);
    return 0;
}

/* One tensor under the very name that was given. */
static int write_one_npy(struct plan *p, const char *path, bool force, struct err *err)
{
    struct item *it = p->items;
    if (p->n != 1)
        return err_set(err, ERR_USAGE,
                       "%s: one .npy file cannot hold %lld tensors; give a directory, a "
                       ".safetensors file, or select one",
                       path, (long long)p->n);
    PASS_ON(refuse_existing(path, force, err));
    PASS_ON(load(p, it, err));
    return npy_write(path, it->dtype, it->ndim, it->shape, it->data, err);
}

/* A file of one tensor has no place for windows and the like. */
static void warn_of_scores(const struct plan *p)
{
    char text[TRACE_SCORE_TEXT];
    for (int64_t i = 0; i < p->n; i++) {
        trace_score_text(&trace_call(p->t, p->items[i].call)->score, text);
        if (text[0]) {
            log_warn("%s: .npy files do not say what the calls do to their scores (%s); a "
                     ".safetensors file does",
                     p->items[i].name, text);
            return;
        }
    }
}

static int write_npy(struct plan *p, const char *dir, bool force, struct err *err)
{
    OWN(buf_free) struct buf path = {0};
    warn_of_scores(p);
    PASS_ON(make_dirs(dir, err));
    for (int64_t i = 0; i < p->n; i++) {
        struct item *it = &p->items[i];
        buf_reset(&path);
        buf_printf(&path, "%s/%s.npy", dir, it->name);
        PASS_ON(buf_check(&path, "name of a file", err));
        PASS_ON(refuse_existing(path.data, force, err));
        PASS_ON(load(p, it, err));
        PASS_ON(npy_write(path.data, it->dtype, it->ndim, it->shape, it->data, err));
        free(it->data);
        it->data = NULL;
    }
    return 0;
}

static int write_safetensors(struct plan *p, const char *path, bool force, struct err *err)
{
    OWN(free_at) struct st_out *out = NULL;
    OWN(json_decrefp) json_t *meta = NULL;
    PASS_ON(refuse_existing(path, force, err));
    PASS_ON(add_scores(p, err));
    PASS_ON(add_tokens(p, err));
    PASS_ON(export_metadata(p->t, &p->heads, &meta, err));
    PASS_ON(mem_zalloc(&out, p->n, sizeof *out, "tensors to export", err));
    for (int64_t i = 0; i < p->n; i++) {
        struct item *it = &p->items[i];
        if (!it->data)
            PASS_ON(load(p, it, err));
        out[i] = (struct st_out){
            .name = it->name, .dtype = it->dtype, .ndim = it->ndim, .data = it->data};
        memcpy(out[i].shape, it->shape, sizeof it->shape);
    }
    return st_write_meta(path, out, p->n, meta, err);
}

int trace_export(const struct trace *t, const struct trace_selection *s, const char *out,
                 bool force, bool dry, int64_t *n, int64_t *bytes, struct err *err)
{
    OWN(free_plan) struct plan p = {.t = t};
    const char *end = strrchr(out, '.');
    PASS_ON(make_plan(&p, s, err));
    *n = p.n;
    *bytes = 0;
    for (int64_t i = 0; i < p.n; i++)
        if (!add_ok(*bytes, p.items[i].bytes, bytes))
            return err_set(err, ERR_INPUT, "%s: size overflows", trace_path(t));
    if (dry)
        return 0;
    if (end && strcmp(end, ".safetensors") == 0)
        return write_safetensors(&p, out, force, err);
    else if (end && strcmp(end, ".npy") == 0)
        return write_one_npy(&p, out, force, err);
    else
        return write_npy(&p, out, force, err);
}
