/*
 * import.c - tensors of .npy and .safetensors files into a trace (import.h).
 */
#include "capture/import.h"

#include "capture/trace/trace_tools.h"
#include "core/trace.h"
#include "core/gemm.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/pool.h"
#include "core/attention.h"
#include "core/progress.h"
#include "core/text.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int set_shape(struct source *s, int ndim, const int64_t *shape, enum source_layout layout,
                     struct err *err)
{
    char text[128] = "";
    size_t used = 0;
    for (int i = 0; i < ndim && used < sizeof text - 24; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%lld", i ? ", " : "",
                                 (long long)shape[i]);
    if (ndim == 4 && shape[0] != 1)
        return err_set(err, ERR_INPUT, "%s has shape (%s): a batch of %lld; store one sequence",
                       s->name, text, (long long)shape[0]);
    if (ndim == 4) {
        shape++;
        ndim--;
    }
    if (ndim != 2 && ndim != 3)
        return err_set(err, ERR_INPUT, "%s has shape (%s), expected %s", s->name, text,
                       layout == LAYOUT_NHD ? "(tokens, heads, dim) or (tokens, dim)"
                                            : "(heads, tokens, dim) or (tokens, dim)");
    s->token_major = ndim == 3 && layout == LAYOUT_NHD;
    s->heads = ndim == 2 ? 1 : shape[s->token_major ? 1 : 0];
    s->tokens = ndim == 2 ? shape[0] : shape[s->token_major ? 0 : 1];
    s->dim = shape[ndim - 1];
    if (s->heads < 1 || s->tokens < 1 || s->dim < 1)
        return err_set(err, ERR_INPUT, "%s has shape (%s): it is empty", s->name, text);
    if (s->heads == 1)
        s->token_major = false;
    if (s->dtype == DT_NONE || dtype_to_f32(s->dtype, NULL, NULL, 0) != 0)
        return err_set(err, ERR_INPUT, "%s has elements that are not floating-point numbers",
                       s->name);
    return 0;
}

static void source_free(struct source *s)
{
    npy_close(&s->npy);
    free(s->whole);
    memset(s, 0, sizeof *s);
}

int source_npy(struct source *s, const char *path, enum source_layout layout, struct err *err)
{
    int rc = 0;
    memset(s, 0, sizeof *s);
    snprintf(s->name, sizeof s->name, "%s", path);
    TRY(npy_open(path, true, &s->npy, err));
    s->dtype = s->npy->dtype;
    TRY(set_shape(s, s->npy->ndim, s->npy->shape, layout, err));
out:
    if (rc)
        source_free(s);
    return rc;
}

int source_st(struct source *s, const struct st_file *f, const char *path,
              const struct st_tensor *t, enum source_layout layout, struct err *err)
{
    memset(s, 0, sizeof *s);
    snprintf(s->name, sizeof s->name, "%s: tensor '%s'", path, t->name);
    s->st = f;
    s->tensor = t;
    s->dtype = t->dtype;
    return set_shape(s, t->ndim, t->shape, layout, err);
}

static int load_whole(struct source *s, struct err *err)
{
    int64_t count = s->heads * s->tokens * s->dim; /* the file is at least that large */
    int rc = 0;
    TRY(mem_alloc(&s->whole, count, sizeof *s->whole, s->name, err));
    rc = s->npy ? npy_read_f32(s->npy, s->whole, err)
                : st_read_f32(s->st, s->tensor, 0, count, s->whole, err);
    if (rc) {
        free(s->whole);
        s->whole = NULL;
    }
out:
    return rc;
}

/* One head as float32 [tokens][dim]. Thread-safe after the first call. */
static int source_head(struct source *s, int64_t head, float *dst, struct err *err)
{
    int64_t n = s->tokens * s->dim;
    if (!s->whole && (s->token_major || (s->npy && s->npy->fortran)))
        PASS_ON(load_whole(s, err));
    if (!s->whole && s->npy)
        return npy_read_range_f32(s->npy, head * n, n, dst, err);
    if (!s->whole)
        return st_read_f32(s->st, s->tensor, head * n, n, dst, err);
    if (!s->token_major) {
        memcpy(dst, s->whole + head * n, (size_t)n * sizeof *dst);
        return 0;
    }
    for (int64_t t = 0; t < s->tokens; t++)
        memcpy(dst + t * s->dim, s->whole + (t * s->heads + head) * s->dim,
               (size_t)s->dim * sizeof *dst);
    return 0;
}

/* ---- what files and the command say --------------------------------------------------------- */

/* All values of "__metadata__" are texts. A key of the model or the run is named as in the trace;
 * one of a call has the prefix of its tensors ("layer-03.window_left") or none, and is then that of
 * every call. */

/* Who says a key: facts given with the command win over the file's. */
static const char *said_by(const struct import_job *j, const char *key)
{
    return json_object_get(j->facts, key) ? "the command line" : "'__metadata__'";
}

static int says_wrong(const struct import_job *j, const char *key)
{
    return json_object_get(j->facts, key) ? ERR_USAGE : ERR_INPUT;
}

/* The text of a key, NULL where nothing says it. f may be NULL. */
static int fact(struct import_job *j, const struct st_file *f, const char *key, const char **value,
                struct err *err)
{
    *value = json_string_value(json_object_get(j->facts, key));
    json_object_del(j->unread, key);
    return *value || !f ? 0 : st_metadata(f, key, value, err);
}

int import_facts(struct import_job *j, const char *text, struct err *err)
{
    OWN(json_decrefp) json_t *o = NULL;
    json_t *v;
    const char *key;
    if (!(j->facts = json_object()) || !(j->unread = json_object()))
        return err_set(err, ERR_NOMEM, "--meta: out of memory");
    if (text && text[0] == '{')
        PASS_ON(json_read_text(text, strlen(text), "--meta", &o, err));
    else if (text)
        PASS_ON(json_read_file(text, (size_t)16 << 20, &o, err));
    if (o && !json_is_object(o))
        return err_set(err, ERR_INPUT, "--meta: an object of facts was expected, {\"name\": ...}");
    json_object_foreach(o, key, v)
    {
        char number[32];
        const char *word = json_string_value(v);
        if (json_is_boolean(v))
            word = json_is_true(v) ? "1" : "0";
        if (json_is_number(v)) {
            num_text(json_number_value(v), number);
            word = number;
        }
        if (!word)
            return err_set(err, ERR_INPUT,
                           "--meta: %s: a text, a number, true or false was expected", key);
        PASS_ON(import_fact(j, key, word, err));
    }
    return 0;
}

int import_fact(struct import_job *j, const char *key, const char *value, struct err *err)
{
    if (json_object_set_new(j->facts, key, json_string(value)) != 0 ||
        json_object_set_new(j->unread, key, json_true()) != 0)
        return err_set(err, ERR_NOMEM, "--meta: out of memory, or %s is not valid UTF-8", key);
    return 0;
}

int import_facts_read(const struct import_job *j, struct err *err)
{
    void *first = json_object_iter(j->unread);
    return first ? err_set(err, ERR_USAGE,
                           "--meta: %s changes nothing here; doc/trace-format.md lists what may "
                           "stand there",
                           json_object_iter_key(first))
                 : 0;
}

static int bad_value(const struct import_job *j, const char *key, const char *value,
                     const char *want, struct err *err)
{
    return err_set(err, says_wrong(j, key), "%s says %s = '%.80s', expected %s", said_by(j, key),
                   key, value, want);
}

static int take_text(struct import_job *j, const struct st_file *f, const char *key, char *field,
                     size_t size, struct err *err)
{
    const char *value;
    int rc = fact(j, f, key, &value, err);
    if (rc || !value)
        return rc;
    if (strlen(value) >= size)
        return err_set(err, says_wrong(j, key), "%s says %s, longer than %zu characters",
                       said_by(j, key), key, size - 1);
    strcpy(field, value);
    return 0;
}

/* *out stays where nothing says it. */
static int take_number(struct import_job *j, const struct st_file *f, const char *key, double *out,
                       struct err *err)
{
    const char *value;
    int rc = fact(j, f, key, &value, err);
    if (rc || !value)
        return rc;
    return num_fills(value, out) ? 0 : bad_value(j, key, value, "a number", err);
}

static int take_count(struct import_job *j, const struct st_file *f, const char *key, int64_t most,
                      int64_t *out, struct err *err)
{
    double x = (double)*out;
    PASS_ON(take_number(j, f, key, &x, err));
    if (x < 0 || x > (double)most || x != floor(x))
        return err_set(err, says_wrong(j, key), "%s says %s = %g, expected a count up to %lld",
                       said_by(j, key), key, x, (long long)most);
    *out = (int64_t)x;
    return 0;
}

/* true, 1, yes in any of these spellings. */
static const char *flag_text(const char *value)
{
    static const char *const words[] = {"0", "false", "False", "no", "1", "true", "True", "yes"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(value, words[i]) == 0)
            return i >= 4 ? "1" : "0";
    return NULL;
}

static int take_flag(struct import_job *j, const struct st_file *f, const char *key, bool *out,
                     struct err *err)
{
    const char *value;
    int rc = fact(j, f, key, &value, err);
    if (rc || !value)
        return rc;
    if (!flag_text(value))
        return bad_value(j, key, value, "true or false", err);
    *out = flag_text(value)[0] == '1';
    return 0;
}

/* "21x30x52", and the text in the sequence. */
static int take_grid(struct import_job *j, const struct st_file *f, struct err *err)
{
    struct trace_meta *m = &j->meta;
    const char *value;
    long long t, h, w;
    int used = 0, rc = fact(j, f, "grid", &value, err);
    if (rc || !value)
        return rc;
    if (sscanf(value, "%9lldx%9lldx%9lld%n", &t, &h, &w, &used) != 3 || value[used] || t < 1 ||
        h < 1 || w < 1)
        return bad_value(j, "grid", value, "TxHxW, as in 16x32x48", err);
    m->grid_t = t;
    m->grid_h = h;
    m->grid_w = w;
    strcpy(m->token_order, "raster");
    strcpy(m->text_place, "none");
    TRY(take_text(j, f, "token_order", m->token_order, sizeof m->token_order, err));
    TRY(take_count(j, f, "text_tokens", INT32_MAX, &m->text_tokens, err));
    TRY(take_text(j, f, "text_place", m->text_place, sizeof m->text_place, err));
    m->text_valid = m->text_tokens;
    TRY(take_count(j, f, "text_valid", INT32_MAX, &m->text_valid, err));
out:
    return rc;
}

int import_metadata(struct import_job *j, const struct st_file *f, struct err *err)
{
    struct trace_meta *m = &j->meta;
    const struct {
        const char *key;
        char *field;
        size_t size;
    } texts[] = {
        {"name", m->name, sizeof m->name},
        {"architecture", m->architecture, sizeof m->architecture},
        {"weights_id", m->weights_id, sizeof m->weights_id},
        {"positions", m->positions, sizeof m->positions},
        {"compute", m->compute, sizeof m->compute},
        {"prompt_id", m->prompt_id, sizeof m->prompt_id},
        {"negative_id", m->negative_id, sizeof m->negative_id},
        {"head_ids", m->head_ids, sizeof m->head_ids},
        {"kv_head_ids", m->kv_head_ids, sizeof m->kv_head_ids},
        {"sampler", m->sampler, sizeof m->sampler},
        {"generated_by", m->generated_by, sizeof m->generated_by},
    };
    int64_t layers = 0;
    double scale = NAN;

    strcpy(m->source, "import");
    strcpy(m->name, "imported");
    strcpy(m->compute, "float32");
    m->positions_applied = true;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        PASS_ON(take_text(j, f, texts[i].key, texts[i].field, texts[i].size, err));
    PASS_ON(take_grid(j, f, err));
    PASS_ON(take_count(j, f, "layers", 100000, &layers, err));
    PASS_ON(take_count(j, f, "row_group", INT32_MAX, &m->row_group, err));
    PASS_ON(take_count(j, f, "decode_from", INT32_MAX, &m->decode_from, err));
    PASS_ON(take_count(j, f, "question_from", INT32_MAX, &m->question_from, err));
    PASS_ON(take_count(j, f, "steps", 1000000, &m->steps, err));
    PASS_ON(take_flag(j, f, "causal", &m->causal, err));
    PASS_ON(take_flag(j, f, "positions_applied", &m->positions_applied, err));
    PASS_ON(take_number(j, f, "scale", &scale, err));
    if (scale == 0)
        return err_set(err, says_wrong(j, "scale"),
                       "%s says scale = 0, which makes all scores equal", said_by(j, "scale"));
    m->scale = isnan(scale) ? 0 : scale;
    m->layers = layers ? (int)layers : 1;
    return 0;
}

int import_call_defaults(struct import_job *j, struct trace_call *c, struct err *err)
{
    int64_t step = 0, layer = 0;
    *c = (struct trace_call){.branch = "main", .timestep = NAN, .sigma = NAN};
    PASS_ON(take_text(j, NULL, "branch", c->branch, sizeof c->branch, err));
    PASS_ON(take_count(j, NULL, "step", 999999, &step, err));
    PASS_ON(take_count(j, NULL, "layer", 99999, &layer, err));
    PASS_ON(take_number(j, NULL, "timestep", &c->timestep, err));
    PASS_ON(take_number(j, NULL, "sigma", &c->sigma, err));
    c->step = (int)step;
    c->layer = (int)layer;
    return 0;
}

/* "1, 2, 3" as tokens; a tensor of that name is used before. */
static int meta_tokens(struct import_job *j, const struct st_file *f, int64_t n, struct err *err)
{
    const char *p;
    int64_t count = 0;
    int rc = fact(j, f, "tokens", &p, err);
    if (rc || !p || j->tokens)
        return rc;
    TRY(mem_alloc(&j->tokens, n, sizeof *j->tokens, "tokens", err));
    for (char *end; *p; p = end, count++) {
        errno = 0;
        long x = strtol(p, &end, 10);
        if (end == p || errno || x < 0 || x > INT32_MAX || (*end && !strchr(", ", *end)))
            FAIL(err, ERR_INPUT, "'__metadata__': token %lld is no number", (long long)count);
        if (count < n)
            j->tokens[count] = (int32_t)x;
        end += strspn(end, ", ");
    }
    if (count == n)
        return 0;
    log_warn("'__metadata__': %lld tokens for %lld keys: not stored", (long long)count,
             (long long)n);
out:
    free(j->tokens);
    j->tokens = NULL;
    return rc;
}

/* What the call does to its scores: under its prefix, else that of all calls. */
static int take_score(struct import_job *j, const struct st_file *f, const char *prefix, size_t len,
                      struct trace_score *s, struct err *err)
{
    for (int i = 0; trace_score_name(i); i++) {
        const char *field = trace_score_name(i), *value = NULL;
        bool flag = strcmp(field, "causal") == 0;
        bool of_model = flag || !strcmp(field, "scale") || !strcmp(field, "text_valid");
        bool said = json_object_get(j->facts, field) != NULL;
        char key[300];
        int rc = 0;

        snprintf(key, sizeof key, "%.*s%s", (int)len, prefix, field);
        if (of_model && (said || len == 0))
            continue; /* import_metadata has it */
        if (len > 0 && !said)
            rc = fact(j, f, key, &value, err);
        if (rc == 0 && !value && !of_model) {
            rc = fact(j, f, field, &value, err);
            snprintf(key, sizeof key, "%s", field);
        }
        if (rc == 0 && value && flag && flag_text(value))
            value = flag_text(value);
        struct err own = {0};
        if (rc == 0 && value && trace_score_set(s, field, value, &own) != 0)
            rc = bad_value(j, key, value, "a value of it", err);
        if (rc)
            return rc;
    }
    return 0;
}

/* A tensor of `rows` x n values, rows = 1 or more; absent is fine. */
static int take_values(const struct st_file *f, const char *prefix, size_t len, const char *what,
                       const struct st_tensor **t, float **out, struct err *err)
{
    char name[300];
    snprintf(name, sizeof name, "%.*s%s", (int)len, prefix, what);
    *t = f ? st_find(f, name) : NULL;
    if (!*t)
        return 0;
    PASS_ON(mem_alloc(out, (*t)->count, sizeof **out, name, err));
    PASS_ON(st_read_f32(f, *t, 0, (*t)->count, *out, err));
    for (int64_t i = 0; i < (*t)->count; i++)
        if (!isfinite((*out)[i]))
            return err_set(err, ERR_INPUT, "tensor '%s': value %lld is not finite", name,
                           (long long)i);
    return 0;
}

static int wrong_shape(const struct st_tensor *t, const char *want, struct err *err)
{
    return err_set(err, ERR_INPUT, "tensor '%s' has %lld values, expected %s", t->name,
                   (long long)t->count, want);
}

/* Extra operands, [heads][rows][dim] each. */
static int take_aux(const struct st_file *f, const char *prefix, size_t len, struct import_call *c,
                    struct err *err)
{
    for (int i = 0; i < AUX_COUNT; i++) {
        const struct st_tensor *t;
        PASS_ON(
            take_values(f, prefix, len, trace_aux_name((enum trace_aux)i), &t, &c->aux[i], err));
        if (t && t->ndim != 3)
            return err_set(err, ERR_INPUT, "tensor '%s' is not of heads, rows and channels",
                           t->name);
        if (t)
            c->call.aux[i] = (struct aux_shape){t->shape[0], t->shape[1], t->shape[2]};
    }
    return 0;
}

int import_call_score(struct import_job *j, const struct st_file *f, const char *prefix, size_t len,
                      struct import_call *c, struct err *err)
{
    struct trace_score *s = &c->call.score;
    const struct st_tensor *sinks, *alibi, *rel, *bias, *sum;
    int64_t heads = c->q.heads, distances = 2 * c->k.tokens - 1, pairs = c->q.tokens * c->k.tokens;
    PASS_ON(take_score(j, f, prefix, len, s, err));
    PASS_ON(take_values(f, prefix, len, "sinks", &sinks, &c->sinks, err));
    PASS_ON(take_values(f, prefix, len, "alibi", &alibi, &c->alibi, err));
    PASS_ON(take_values(f, prefix, len, "rel_bias", &rel, &c->rel_bias, err));
    PASS_ON(take_values(f, prefix, len, "bias", &bias, &c->bias, err));
    PASS_ON(take_values(f, prefix, len, "col_sum", &sum, &c->col_sum, err));
    PASS_ON(take_aux(f, prefix, len, c, err));
    if (sinks && sinks->count != heads)
        return wrong_shape(sinks, "one per head", err);
    if (alibi && alibi->count != heads)
        return wrong_shape(alibi, "one per head", err);
    if (rel && rel->count != distances && rel->count != heads * distances)
        return wrong_shape(rel, "2 n_k - 1, for all heads or for each", err);
    if (bias && bias->count != pairs && bias->count != heads * pairs)
        return wrong_shape(bias, "n_q x n_k, for all heads or for each", err);
    if (sum && sum->count != heads * j->meta.decode_from)
        return wrong_shape(sum, "one per head and key of the prompt (decode_from)", err);
    c->call.has_col_sum = sum != NULL;
    s->sinks = sinks != NULL;
    s->alibi = alibi != NULL;
    s->rel_bias = !rel ? 0 : rel->count == distances ? 1 : (int)heads;
    s->bias = !bias ? 0 : bias->count == pairs ? 1 : (int)heads;
    return 0;
}

/* ---- which tensors make up which call ------------------------------------------------------- */

/* A call is a set of names PREFIX.q, PREFIX.k, PREFIX.v (and PREFIX.out), with a prefix as in
 * core/trace.h. */

static int parse_prefix(const char *prefix, size_t len, const char *path, struct trace_call *c,
                        struct err *err)
{
    struct call_name name = {.step = c->step, .layer = c->layer};
    size_t n = 0;
    memcpy(name.branch, c->branch, sizeof name.branch);
    const char *word = call_name_parse(prefix, len, &name, NULL, &n);
    if (word)
        return err_set(err, ERR_INPUT, "%s: tensor '%.*sq': '%.*s' is no step, layer or branch",
                       path, (int)len, prefix, (int)n, word);
    c->step = name.step;
    c->layer = name.layer;
    memcpy(c->branch, name.branch, sizeof c->branch);
    return 0;
}

/* A tensor of the call: prefix + what. Absent is an error unless optional. */
static int find_part(const struct st_file *f, const char *path, const char *prefix, size_t len,
                     const char *what, bool optional, enum source_layout layout, struct source *s,
                     struct err *err)
{
    char name[300];
    snprintf(name, sizeof name, "%.*s%s", (int)len, prefix, what);
    const struct st_tensor *t = st_find(f, name);
    if (!t && optional)
        return 0;
    if (!t)
        return err_set(err, ERR_INPUT, "%s: tensor '%.*sq' is there, '%s' is missing", path,
                       (int)len, prefix, name);
    return source_st(s, f, path, t, layout, err);
}

static int add_call(struct import_job *j, const struct st_file *f, const char *path,
                    const char *prefix, size_t len, enum source_layout layout,
                    const struct trace_call *defaults, struct err *err)
{
    PASS_ON(mem_grow(&j->calls, &j->cap_calls, j->n_calls + 1, sizeof *j->calls, "calls", err));
    struct import_call *c = &j->calls[j->n_calls];
    memset(c, 0, sizeof *c);
    c->call = *defaults;
    j->n_calls++;
    PASS_ON(parse_prefix(prefix, len, path, &c->call, err));
    PASS_ON(find_part(f, path, prefix, len, "q", false, layout, &c->q, err));
    PASS_ON(find_part(f, path, prefix, len, "k", false, layout, &c->k, err));
    PASS_ON(find_part(f, path, prefix, len, "v", false, layout, &c->v, err));
    PASS_ON(find_part(f, path, prefix, len, "out", true, layout, &c->out, err));
    return import_call_score(j, f, prefix, len, c, err);
}

static int by_call_order(const void *a, const void *b)
{
    return trace_call_order(&((const struct import_call *)a)->call,
                            &((const struct import_call *)b)->call);
}

/* A vector as float64; absent is fine. */
static int read_doubles(const struct st_file *f, const char *path, const char *name, double **out,
                        int64_t *n, struct err *err)
{
    const struct st_tensor *t = st_find(f, name);
    OWN(free_at) float *x = NULL;
    if (!t)
        return 0;
    if (t->ndim != 1 || t->count < 1)
        return err_set(err, ERR_INPUT, "%s: tensor '%s' has %d dimensions, expected 1", path, name,
                       t->ndim);
    PASS_ON(mem_alloc(&x, t->count, sizeof *x, name, err));
    PASS_ON(mem_alloc(out, t->count, sizeof **out, name, err));
    if (t->dtype == DT_F64)
        PASS_ON(st_read_raw(f, t, 0, t->count, *out, err));
    else
        PASS_ON(st_read_f32(f, t, 0, t->count, x, err));
    for (int64_t i = 0; t->dtype != DT_F64 && i < t->count; i++)
        (*out)[i] = x[i];
    *n = t->count;
    return 0;
}

/* Tokens and losses only where they fit the sequence. */
static int read_text(struct import_job *j, const struct st_file *f, const char *path,
                     struct err *err)
{
    OWN(free_at) int64_t *ids = NULL;
    int64_t n = j->calls[0].k.tokens;
    const struct st_tensor *tokens = st_find(f, "tokens"), *nll = st_find(f, "nll");
    if (tokens && tokens->count != n)
        log_warn("%s: %lld tokens for %lld keys: not stored", path, (long long)tokens->count,
                 (long long)n);
    if (tokens && tokens->count == n) {
        PASS_ON(mem_alloc(&ids, n, sizeof *ids, "tokens", err));
        PASS_ON(mem_alloc(&j->tokens, n, sizeof *j->tokens, "tokens", err));
        PASS_ON(st_read_i64(f, tokens, 0, n, ids, err));
        for (int64_t i = 0; i < n; i++) {
            if (ids[i] < 0 || ids[i] > INT32_MAX)
                return err_set(err, ERR_INPUT, "%s: token %lld is %lld", path, (long long)i,
                               (long long)ids[i]);
            j->tokens[i] = (int32_t)ids[i];
        }
    }
    PASS_ON(meta_tokens(j, f, n, err));
    if (nll && nll->count == n - 1 && n > 1) {
        PASS_ON(mem_alloc(&j->nll, n - 1, sizeof *j->nll, "nll", err));
        return st_read_f32(f, nll, 0, n - 1, j->nll, err);
    }
    return 0;
}

/* Positions of the query rows, where they are a sample. */
static int read_rows(struct import_job *j, const struct st_file *f, const char *path,
                     struct err *err)
{
    const struct st_tensor *rows = st_find(f, "rows");
    int64_t n = j->calls[0].q.tokens;
    OWN(free_at) int64_t *at = NULL;
    int rc = 0;
    if (!rows && j->meta.row_group)
        return err_set(err, ERR_INPUT,
                       "%s: '__metadata__' has row_group, but there is no tensor 'rows'", path);
    if (!rows)
        return 0;
    if (rows->count != n)
        return err_set(err, ERR_INPUT, "%s: %lld sampled rows for %lld queries", path,
                       (long long)rows->count, (long long)n);
    if (j->meta.row_group == 0)
        j->meta.row_group = ROW_GROUP;
    PASS_ON(mem_alloc(&at, n, sizeof *at, "sampled rows", err));
    PASS_ON(mem_alloc(&j->rows, n, sizeof *j->rows, "sampled rows", err));
    PASS_ON(st_read_i64(f, rows, 0, n, at, err));
    for (int64_t i = 0; i < n; i++)
        j->rows[i] = at[i] < 0 || at[i] > INT32_MAX ? -1 : (int32_t)at[i];
    struct row_sample s = {.at = j->rows, .n = n, .group = j->meta.row_group};
    if ((rc = row_sample_check(&s, j->calls[0].k.tokens, ERR_INPUT, err)) != 0)
        err_prefix(err, "%s: rows", path);
    return rc;
}

/* Number of steps, and timestep and sigma of the calls, from the schedule. */
static void set_schedule(struct import_job *j)
{
    if (j->meta.steps == 0)
        j->meta.steps = j->n_timesteps ? j->n_timesteps : j->n_sigmas > 1 ? j->n_sigmas - 1 : 0;
    for (int64_t i = 0; i < j->n_calls; i++) {
        struct trace_call *c = &j->calls[i].call;
        if (c->step < j->n_timesteps)
            c->timestep = j->timesteps[c->step];
        if (c->step < j->n_sigmas)
            c->sigma = j->sigmas[c->step];
    }
}

int import_safetensors(struct import_job *j, const struct st_file *f, const char *path,
                       enum source_layout layout, const struct trace_call *defaults,
                       struct err *err)
{
    for (int64_t i = 0; i < st_count(f); i++) {
        const char *name = st_at(f, i)->name;
        size_t len = strlen(name);
        if (len == 0 || len > 250 || name[len - 1] != 'q' || (len > 1 && name[len - 2] != '.'))
            continue;
        PASS_ON(add_call(j, f, path, name, len - 1, layout, defaults, err));
    }
    if (j->n_calls == 0)
        return err_set(err, ERR_INPUT,
                       "%s: no tensor is named 'q' or '<prefix>.q'; --q, --k and --v name "
                       "others",
                       path);
    qsort(j->calls, (size_t)j->n_calls, sizeof *j->calls, by_call_order);
    for (int64_t i = 0; i < j->n_calls; i++) {
        j->calls[i].call.order = (int)i;
        if (i > 0 && by_call_order(&j->calls[i - 1], &j->calls[i]) == 0)
            return err_set(err, ERR_INPUT, "%s and %s are of the same step, branch and layer",
                           j->calls[i - 1].q.name, j->calls[i].q.name);
    }
    PASS_ON(read_doubles(f, path, "timesteps", &j->timesteps, &j->n_timesteps, err));
    PASS_ON(read_doubles(f, path, "sigmas", &j->sigmas, &j->n_sigmas, err));
    PASS_ON(read_text(j, f, path, err));
    PASS_ON(read_rows(j, f, path, err));
    set_schedule(j);
    return 0;
}

/* ---- the trace ------------------------------------------------------------------------------ */

/* ---- shapes ---------------------------------------------------------------------------------- */

static int demand(const struct source *s, const char *what, int64_t have, int64_t want,
                  const char *why, struct err *err)
{
    if (have == want)
        return 0;
    return err_set(err, ERR_INPUT, "%s has %lld %s, expected %lld as %s", s->name, (long long)have,
                   what, (long long)want, why);
}

static int check_call(const struct import_call *c, const struct trace_meta *m, struct err *err)
{
    PASS_ON(demand(&c->q, "heads", c->q.heads, m->heads, "q of the first call", err));
    PASS_ON(demand(&c->q, "tokens", c->q.tokens, m->n_q, "q of the first call", err));
    PASS_ON(demand(&c->q, "dims", c->q.dim, m->head_dim, "q of the first call", err));
    PASS_ON(demand(&c->k, "heads", c->k.heads, m->kv_heads, "k of the first call", err));
    PASS_ON(demand(&c->k, "tokens", c->k.tokens, m->n_k, "k of the first call", err));
    PASS_ON(demand(&c->k, "dims", c->k.dim, m->head_dim, "q", err));
    PASS_ON(demand(&c->v, "heads", c->v.heads, m->kv_heads, "k", err));
    PASS_ON(demand(&c->v, "tokens", c->v.tokens, m->n_k, "k", err));
    PASS_ON(demand(&c->v, "dims", c->v.dim, m->v_dim, "v of the first call", err));
    if (c->out.heads > 0) {
        PASS_ON(demand(&c->out, "heads", c->out.heads, m->heads, "q", err));
        PASS_ON(demand(&c->out, "tokens", c->out.tokens, m->n_q, "q", err));
        return demand(&c->out, "dims", c->out.dim, m->v_dim, "v", err);
    }
    return 0;
}

static int choose_dtype(struct import_job *j, enum dtype dtype, struct err *err)
{
    enum dtype found = j->calls[0].q.dtype;
    if (dtype != DT_NONE) {
        j->meta.dtype = dtype;
        return 0;
    }
    for (int64_t i = 0; i < j->n_calls; i++) {
        const struct import_call *c = &j->calls[i];
        const struct source *all[] = {&c->q, &c->k, &c->v};
        for (int s = 0; s < 3; s++)
            if (all[s]->dtype != found)
                return err_set(err, ERR_INPUT,
                               "%s has %s, %s has %s; say with --dtype what to "
                               "store",
                               j->calls[0].q.name, dtype_name(found), all[s]->name,
                               dtype_name(all[s]->dtype));
    }
    if (found != DT_F32 && found != DT_BF16 && found != DT_F16)
        return err_set(err, ERR_INPUT,
                       "%s has %s; a trace holds float32, bfloat16 or float16: "
                       "choose with --dtype",
                       j->calls[0].q.name, dtype_name(found));
    j->meta.dtype = found;
    return 0;
}

int import_shapes(struct import_job *j, enum dtype dtype, struct err *err)
{
    struct trace_meta *m = &j->meta;
    struct import_call *c = j->calls;
    int rc = 0;
    if (c->q.heads > 65536 || c->k.heads > 65536 || c->q.dim > 65536 || c->v.dim > 65536)
        FAIL(err, ERR_INPUT, "%s: %lld heads of dim %lld are more than a trace holds", c->q.name,
             (long long)c->q.heads, (long long)c->q.dim);
    m->heads = (int)c->q.heads;
    m->kv_heads = (int)c->k.heads;
    m->head_dim = (int)c->q.dim;
    m->v_dim = (int)c->v.dim;
    m->n_q = c->q.tokens;
    m->n_k = c->k.tokens;
    if (m->heads % m->kv_heads != 0)
        FAIL(err, ERR_INPUT, "%s has %d heads, not a multiple of the %d kv heads of %s", c->q.name,
             m->heads, m->kv_heads, c->k.name);
    if (m->scale == 0)
        m->scale = 1 / sqrt(m->head_dim);
    for (int64_t i = 0; i < j->n_calls; i++) {
        TRY(check_call(&j->calls[i], m, err));
        if (j->calls[i].call.layer >= m->layers)
            m->layers = j->calls[i].call.layer + 1;
        trace_score_rebase(&j->calls[i].call.score, m, m);
    }
    TRY(choose_dtype(j, dtype, err));
    if ((rc = trace_meta_check(m, err)) != 0)
        rc = err_prefix(err, "%s", c->q.name);
out:
    return rc;
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Values that are not finite once stored. */
struct nonfinite {
    int64_t count, head, token, dim;
};

static void look_for_nonfinite(const float *x, const struct source *s, int64_t head, enum dtype t,
                               struct nonfinite *bad)
{
    for (int64_t i = 0; i < s->tokens * s->dim; i++)
        if (!isfinite(dtype_round(t, x[i])) && bad->count++ == 0) {
            bad->head = head;
            bad->token = i / s->dim;
            bad->dim = i % s->dim;
        }
}

static int put_source(struct import_job *j, struct trace_writer *w, struct source *s,
                      enum trace_what what, struct err *err)
{
    struct nonfinite bad = {0};
    OWN(free_at) float *x = NULL;
    PASS_ON(mem_alloc(&x, s->tokens * s->dim, sizeof *x, s->name, err));
    for (int64_t h = 0; h < s->heads; h++) {
        if (interrupted())
            return err_set(err, ERR_INTERRUPTED, "interrupted");
        PASS_ON(source_head(s, h, x, err));
        look_for_nonfinite(x, s, h, j->meta.dtype, &bad);
        PASS_ON(trace_put_head(w, what, (int)h, 0, s->tokens, x, err));
    }
    if (bad.count && !j->allow_nonfinite)
        return err_set(err, ERR_INPUT,
                       "%s: %lld values are NaN or infinite as %s, the first at head %lld, "
                       "token %lld, dim %lld; --allow-nonfinite takes them",
                       s->name, (long long)bad.count, dtype_name(j->meta.dtype),
                       (long long)bad.head, (long long)bad.token, (long long)bad.dim);
    return 0;
}

/* ---- maps ------------------------------------------------------------------------------------ */

struct map_work {
    struct import_job *j;
    struct import_call *c;
    struct trace_writer *w;
    struct progress *progress;
};

/* A head as it is stored. */
static int stored_head(struct source *s, int64_t head, enum dtype t, float **out, struct err *err)
{
    int64_t n = s->tokens * s->dim;
    PASS_ON(mem_alloc(out, n, sizeof **out, s->name, err));
    PASS_ON(source_head(s, head, *out, err));
    for (int64_t i = 0; i < n; i++)
        (*out)[i] = dtype_round(t, (*out)[i]);
    return 0;
}

/* Cap, bias and sink of a head. */
static struct score_mods call_mods(const struct import_call *c, const struct trace_meta *m,
                                   int64_t head)
{
    int64_t row = c->call.score.rel_bias > 1 ? head * (2 * m->n_k - 1) : 0;
    int64_t at = c->call.score.bias > 1 ? head * m->n_q * m->n_k : 0;
    return (struct score_mods){
        .softcap = c->call.score.softcap,
        .alibi = c->alibi ? (double)c->alibi[head] : 0,
        .rel = c->rel_bias ? c->rel_bias + row + m->n_k - 1 : NULL,
        .pair = {c->bias ? c->bias + at : NULL, m->n_k, m->n_k - m->n_q},
        .has_sink = c->sinks != NULL,
        .sink = c->sinks ? (double)c->sinks[head] : 0,
    };
}

static int map_head(void *ctx, int64_t head, int worker, struct err *err)
{
    struct map_work *m = ctx;
    struct trace_meta *t = &m->j->meta;
    OWN(free_at) float *q = NULL, *k = NULL;
    (void)worker;
    PASS_ON(stored_head(&m->c->q, head, t->dtype, &q, err));
    PASS_ON(stored_head(&m->c->k, head / (t->heads / t->kv_heads), t->dtype, &k, err));
    struct attn_in in = {.nq = t->n_q,
                         .nk = t->n_k,
                         .d = t->head_dim,
                         .dv = t->v_dim,
                         .q = q,
                         .k = k,
                         .scale = m->c->call.score.scale != 0 ? m->c->call.score.scale : t->scale,
                         .causal = trace_causal(t, &m->c->call.score),
                         .reach = m->c->call.score.reach,
                         .mods = call_mods(m->c, t, head)};
    PASS_ON(trace_map_head(m->w, (int)head, &in, t->pool, err));
    progress_add(m->progress, 1, 1, "map");
    return 0;
}

/* ---- file ------------------------------------------------------------------------------------ */

static int write_call(struct import_job *j, struct trace_writer *w, struct import_call *c, int jobs,
                      struct progress *progress, struct err *err)
{
    struct map_work maps = {j, c, w, progress};
    c->call.has_out = c->out.heads > 0;
    c->call.has_map = j->meta.pool > 0;
    PASS_ON(trace_begin_call(w, &c->call, err));
    PASS_ON(put_source(j, w, &c->q, TRACE_Q, err));
    PASS_ON(put_source(j, w, &c->k, TRACE_K, err));
    PASS_ON(put_source(j, w, &c->v, TRACE_V, err));
    if (c->call.has_out)
        PASS_ON(put_source(j, w, &c->out, TRACE_OUT, err));
    if (c->sinks)
        PASS_ON(trace_put_values(w, TRACE_SINKS, c->sinks, err));
    if (c->alibi)
        PASS_ON(trace_put_values(w, TRACE_ALIBI, c->alibi, err));
    if (c->rel_bias)
        PASS_ON(trace_put_values(w, TRACE_REL_BIAS, c->rel_bias, err));
    if (c->bias)
        PASS_ON(trace_put_values(w, TRACE_BIAS, c->bias, err));
    if (c->col_sum)
        PASS_ON(trace_put_values(w, TRACE_COL_SUM, c->col_sum, err));
    for (int i = 0; i < AUX_COUNT; i++)
        if (c->aux[i])
            PASS_ON(trace_put_values(w, TRACE_AUX + i, c->aux[i], err));
    progress_add(progress, 1, 1, "tensors");
    if (c->call.has_map)
        PASS_ON(gemm_ready(err));
    if (c->call.has_map)
        PASS_ON(pool_run(jobs, j->meta.heads, map_head, &maps, err));
    PASS_ON(trace_end_call(w, err));
    source_free(&c->q);
    source_free(&c->k);
    source_free(&c->v);
    source_free(&c->out);
    return 0;
}

int import_write(struct import_job *j, const char *path, int jobs, bool force, struct err *err)
{
    OWN(trace_abort) struct trace_writer *w = NULL;
    OWN(progress_end) struct progress *progress = NULL;
    int64_t items = j->n_calls * (1 + (j->meta.pool > 0 ? j->meta.heads : 0));
    PASS_ON(trace_create(path, &j->meta, j->n_calls, force, &w, err));
    progress = progress_start("import", (double)items, items);
    if (j->tokens)
        PASS_ON(trace_put_run(w, TRACE_TOKENS, j->meta.n_k, j->tokens, err));
    if (j->rows)
        PASS_ON(trace_put_run(w, TRACE_ROWS, j->meta.n_q, j->rows, err));
    if (j->nll)
        PASS_ON(trace_put_run(w, TRACE_NLL, j->meta.n_k - 1, j->nll, err));
    PASS_ON(trace_put_run(w, TRACE_TIMESTEPS, j->n_timesteps, j->timesteps, err));
    PASS_ON(trace_put_run(w, TRACE_SIGMAS, j->n_sigmas, j->sigmas, err));
    for (int64_t i = 0; i < j->n_calls; i++)
        PASS_ON(write_call(j, w, &j->calls[i], jobs, progress, err));
    return trace_commit(&w, err);
}

void import_free(struct import_job *j)
{
    for (int64_t i = 0; i < j->n_calls; i++) {
        source_free(&j->calls[i].q);
        source_free(&j->calls[i].k);
        source_free(&j->calls[i].v);
        source_free(&j->calls[i].out);
        free(j->calls[i].sinks);
        free(j->calls[i].alibi);
        free(j->calls[i].col_sum);
        for (int a = 0; a < AUX_COUNT; a++)
            free(j->calls[i].aux[a]);
        free(j->calls[i].rel_bias);
        free(j->calls[i].bias);
    }
    free(j->calls);
    free(j->tokens);
    free(j->rows);
    free(j->nll);
    free(j->timesteps);
    free(j->sigmas);
    json_decref(j->facts);
    json_decref(j->unread);
    memset(j, 0, sizeof *j);
}
