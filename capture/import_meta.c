/*
 * import_meta.c - what "__metadata__" of .safetensors files says about the model, the run and the
 * calls, and the small tensors of a call (sinks, alibi, rel_bias, bias).
 *
 * All values are strings. A key of the model or the run is named as in the trace; one of a call has
 * the prefix of its tensors ("layer-03.window_left") or none, and is then that of every call. What
 * an option said is there before, and stays.
 */
#include "capture/import.h"

#include "core/log.h"
#include "core/mem.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int bad_value(const char *key, const char *value, const char *want, struct err *err)
{
    return err_set(err, ERR_INPUT, "'__metadata__' says %s = '%.80s', expected %s", key, value,
                   want);
}

/* A text unless the field is filled. */
static int take_text(const struct st_file *f, const char *key, char *field, size_t size,
                     struct err *err)
{
    const char *value;
    int rc = st_metadata(f, key, &value, err);

    if (rc || !value || field[0])
        return rc;
    if (strlen(value) >= size)
        return err_set(err, ERR_INPUT, "'__metadata__' says %s, longer than %zu characters", key,
                       size - 1);
    strcpy(field, value);
    return 0;
}

static int take_number(const struct st_file *f, const char *key, double *out, bool *found,
                       struct err *err)
{
    const char *value;
    char *end;
    int rc = st_metadata(f, key, &value, err);

    *found = !rc && value;
    if (!*found)
        return rc;
    *out = strtod(value, &end);
    return end == value || *end || !isfinite(*out) ? bad_value(key, value, "a number", err) : 0;
}

static int take_count(const struct st_file *f, const char *key, int64_t most, int64_t *out,
                      struct err *err)
{
    bool found;
    double x;
    int rc = take_number(f, key, &x, &found, err);

    if (rc || !found)
        return rc;
    if (x < 0 || x > (double)most || x != floor(x))
        return err_set(err, ERR_INPUT, "'__metadata__' says %s = %g, expected a count up to %lld",
                       key, x, (long long)most);
    *out = (int64_t)x;
    return 0;
}

static int take_flag(const struct st_file *f, const char *key, bool *out, struct err *err)
{
    static const char *const words[] = {"0", "false", "False", "no", "1", "true", "True", "yes"};
    const char *value;
    int rc = st_metadata(f, key, &value, err);

    if (rc || !value)
        return rc;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(value, words[i]) == 0) {
            *out = i >= 4;
            return 0;
        }
    return bad_value(key, value, "true or false", err);
}

/* "21x30x52", and the text in the sequence. */
static int take_grid(const struct st_file *f, struct trace_meta *m, struct err *err)
{
    const char *value;
    long long t, h, w;
    int used = 0, rc = st_metadata(f, "grid", &value, err);

    if (rc || !value || m->grid_t > 0)
        return rc;
    if (sscanf(value, "%9lldx%9lldx%9lld%n", &t, &h, &w, &used) != 3 || value[used] || t < 1 ||
        h < 1 || w < 1)
        return bad_value("grid", value, "TxHxW", err);
    m->grid_t = t;
    m->grid_h = h;
    m->grid_w = w;
    TRY(take_text(f, "token_order", m->token_order, sizeof m->token_order, err));
    TRY(take_text(f, "text_place", m->text_place, sizeof m->text_place, err));
    TRY(take_count(f, "text_tokens", INT32_MAX, &m->text_tokens, err));
    m->text_valid = m->text_tokens;
    TRY(take_count(f, "text_valid", INT32_MAX, &m->text_valid, err));
    if (!m->token_order[0])
        strcpy(m->token_order, "raster");
out:
    return rc;
}

int import_metadata(struct import_job *j, const struct st_file *f, struct err *err)
{
    struct trace_meta *m = &j->meta;
    int64_t layers = m->layers;
    bool found = false;
    double scale = 0;
    int rc = 0;

    TRY(take_text(f, "name", m->name, sizeof m->name, err));
    TRY(take_text(f, "architecture", m->architecture, sizeof m->architecture, err));
    TRY(take_text(f, "weights_id", m->weights_id, sizeof m->weights_id, err));
    TRY(take_text(f, "positions", m->positions, sizeof m->positions, err));
    TRY(take_text(f, "compute", m->compute, sizeof m->compute, err));
    TRY(take_text(f, "prompt_id", m->prompt_id, sizeof m->prompt_id, err));
    TRY(take_text(f, "negative_id", m->negative_id, sizeof m->negative_id, err));
    TRY(take_text(f, "head_ids", m->head_ids, sizeof m->head_ids, err));
    TRY(take_text(f, "kv_head_ids", m->kv_head_ids, sizeof m->kv_head_ids, err));
    TRY(take_text(f, "sampler", m->sampler, sizeof m->sampler, err));
    TRY(take_grid(f, m, err));
    if (layers == 0)
        TRY(take_count(f, "layers", 100000, &layers, err));
    TRY(take_count(f, "row_group", INT32_MAX, &m->row_group, err));
    if (m->steps == 0)
        TRY(take_count(f, "steps", 1000000, &m->steps, err));
    if (!j->given.causal)
        TRY(take_flag(f, "causal", &m->causal, err));
    if (!j->given.positions_applied)
        TRY(take_flag(f, "positions_applied", &m->positions_applied, err));
    TRY(take_number(f, "scale", &scale, &found, err));
    if (found && scale == 0)
        FAIL(err, ERR_INPUT, "'__metadata__' says scale = 0, which makes all scores equal");
    if (found && m->scale == 0)
        m->scale = scale;
    m->layers = (int)layers;
out:
    return rc;
}

/* "1, 2, 3" as tokens; a tensor of that name is used before. */
int import_meta_tokens(struct import_job *j, const struct st_file *f, int64_t n, struct err *err)
{
    const char *p;
    int64_t count = 0;
    int rc = st_metadata(f, "tokens", &p, err);

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

/* What the call does to its scores: under its prefix, else that of all calls, unless an option said
 * it. */
static int take_score(const struct import_job *j, const struct st_file *f, const char *prefix,
                      size_t len, struct trace_score *s, struct err *err)
{
    for (int i = 0; trace_score_name(i); i++) {
        const char *field = trace_score_name(i), *value = NULL;
        bool scale = strcmp(field, "scale") == 0, causal = strcmp(field, "causal") == 0;
        bool valid = strcmp(field, "text_valid") == 0, of_model = scale || causal || valid;
        char key[300];
        int rc = 0;

        if (trace_score_is_set(&j->score, i, NULL) || (scale && j->given.scale) ||
            (causal && j->given.causal) || (valid && j->given.text_valid))
            continue;
        snprintf(key, sizeof key, "%.*s%s", (int)len, prefix, field);
        if (len > 0 || !of_model)
            rc = st_metadata(f, key, &value, err);
        if (rc == 0 && !value && len > 0 && !of_model)
            rc = st_metadata(f, field, &value, err);
        if (rc == 0 && value && trace_score_set(s, field, value, err) != 0)
            rc = bad_value(key, value, "a value of it", err);
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
    int rc = 0;

    snprintf(name, sizeof name, "%.*s%s", (int)len, prefix, what);
    *t = st_find(f, name);
    if (!*t)
        return 0;
    TRY(mem_alloc(out, (*t)->count, sizeof **out, name, err));
    TRY(st_read_f32(f, *t, 0, (*t)->count, *out, err));
    for (int64_t i = 0; i < (*t)->count; i++)
        if (!isfinite((*out)[i]))
            FAIL(err, ERR_INPUT, "tensor '%s': value %lld is not finite", name, (long long)i);
out:
    return rc;
}

static int wrong_shape(const struct st_tensor *t, const char *want, struct err *err)
{
    return err_set(err, ERR_INPUT, "tensor '%s' has %lld values, expected %s", t->name,
                   (long long)t->count, want);
}

int import_call_score(const struct import_job *j, const struct st_file *f, const char *prefix,
                      size_t len, struct import_call *c, struct err *err)
{
    struct trace_score *s = &c->call.score;
    const struct st_tensor *sinks, *alibi, *rel, *bias;
    int64_t heads = c->q.heads, distances = 2 * c->k.tokens - 1, pairs = c->q.tokens * c->k.tokens;
    int rc = 0;

    *s = j->score;
    TRY(take_score(j, f, prefix, len, s, err));
    TRY(take_values(f, prefix, len, "sinks", &sinks, &c->sinks, err));
    TRY(take_values(f, prefix, len, "alibi", &alibi, &c->alibi, err));
    TRY(take_values(f, prefix, len, "rel_bias", &rel, &c->rel_bias, err));
    TRY(take_values(f, prefix, len, "bias", &bias, &c->bias, err));
    if (sinks && sinks->count != heads)
        return wrong_shape(sinks, "one per head", err);
    if (alibi && alibi->count != heads)
        return wrong_shape(alibi, "one per head", err);
    if (rel && rel->count != distances && rel->count != heads * distances)
        return wrong_shape(rel, "2 n_k - 1, for all heads or for each", err);
    if (bias && bias->count != pairs && bias->count != heads * pairs)
        return wrong_shape(bias, "n_q x n_k, for all heads or for each", err);
    s->sinks = sinks != NULL;
    s->alibi = alibi != NULL;
    s->rel_bias = !rel ? 0 : rel->count == distances ? 1 : (int)heads;
    s->bias = !bias ? 0 : bias->count == pairs ? 1 : (int)heads;
out:
    return rc;
}
