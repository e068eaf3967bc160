/*
 * import_names.c - which tensors of a .safetensors file make up which attention call.
 *
 * A call is a set of names PREFIX.q, PREFIX.k, PREFIX.v (and PREFIX.out), with a prefix as in
 * core/trace.h.
 */
#include "capture/import.h"

#include "core/trace.h"
#include "core/log.h"
#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    int rc = mem_grow(&j->calls, &j->cap_calls, j->n_calls + 1, sizeof *j->calls, "calls", err);

    if (rc)
        return rc;
    struct import_call *c = &j->calls[j->n_calls];
    memset(c, 0, sizeof *c);
    c->call = *defaults;
    j->n_calls++;
    TRY(parse_prefix(prefix, len, path, &c->call, err));
    TRY(find_part(f, path, prefix, len, "q", false, layout, &c->q, err));
    TRY(find_part(f, path, prefix, len, "k", false, layout, &c->k, err));
    TRY(find_part(f, path, prefix, len, "v", false, layout, &c->v, err));
    TRY(find_part(f, path, prefix, len, "out", true, layout, &c->out, err));
    TRY(import_call_score(j, f, prefix, len, c, err));
out:
    return rc;
}

/* The order in which a run makes its calls: step, branch (uncond after cond), layer. */
static int by_call_order(const void *a, const void *b)
{
    const struct trace_call *x = &((const struct import_call *)a)->call;
    const struct trace_call *y = &((const struct import_call *)b)->call;
    int d = (x->step > y->step) - (x->step < y->step);
    if (d == 0)
        d = strcmp(x->branch, y->branch);
    return d ? d : (x->layer > y->layer) - (x->layer < y->layer);
}

/* A vector as float64; absent is fine. */
static int read_doubles(const struct st_file *f, const char *path, const char *name, double **out,
                        int64_t *n, struct err *err)
{
    const struct st_tensor *t = st_find(f, name);
    float *x = NULL;
    int rc = 0;

    if (!t)
        return 0;
    if (t->ndim != 1 || t->count < 1)
        FAIL(err, ERR_INPUT, "%s: tensor '%s' has %d dimensions, expected 1", path, name, t->ndim);
    TRY(mem_alloc(&x, t->count, sizeof *x, name, err));
    TRY(mem_alloc(out, t->count, sizeof **out, name, err));
    if (t->dtype == DT_F64)
        TRY(st_read_raw(f, t, 0, t->count, *out, err));
    else
        TRY(st_read_f32(f, t, 0, t->count, x, err));
    for (int64_t i = 0; t->dtype != DT_F64 && i < t->count; i++)
        (*out)[i] = x[i];
    *n = t->count;
out:
    free(x);
    return rc;
}

/* Tokens and losses only where they fit the sequence. */
static int read_text(struct import_job *j, const struct st_file *f, const char *path,
                     struct err *err)
{
    int64_t n = j->calls[0].k.tokens, *ids = NULL;
    const struct st_tensor *tokens = st_find(f, "tokens"), *nll = st_find(f, "nll");
    int rc = 0;

    if (tokens && tokens->count != n)
        log_warn("%s: %lld tokens for %lld keys: not stored", path, (long long)tokens->count,
                 (long long)n);
    if (tokens && tokens->count == n) {
        TRY(mem_alloc(&ids, n, sizeof *ids, "tokens", err));
        TRY(mem_alloc(&j->tokens, n, sizeof *j->tokens, "tokens", err));
        TRY(st_read_i64(f, tokens, 0, n, ids, err));
        for (int64_t i = 0; i < n; i++) {
            if (ids[i] < 0 || ids[i] > INT32_MAX)
                FAIL(err, ERR_INPUT, "%s: token %lld is %lld", path, (long long)i,
                     (long long)ids[i]);
            j->tokens[i] = (int32_t)ids[i];
        }
    }
    TRY(import_meta_tokens(j, f, n, err));
    if (nll && nll->count == n - 1 && n > 1) {
        TRY(mem_alloc(&j->nll, n - 1, sizeof *j->nll, "nll", err));
        TRY(st_read_f32(f, nll, 0, n - 1, j->nll, err));
    }
out:
    free(ids);
    return rc;
}

/* Positions of the query rows, where they are a sample. */
static int read_rows(struct import_job *j, const struct st_file *f, const char *path,
                     struct err *err)
{
    const struct st_tensor *rows = st_find(f, "rows");
    int64_t *at = NULL, n = j->calls[0].q.tokens;
    int rc = 0;

    if (!rows && j->meta.row_group)
        FAIL(err, ERR_INPUT, "%s: '__metadata__' has row_group, but there is no tensor 'rows'",
             path);
    if (!rows)
        return 0;
    if (rows->count != n)
        FAIL(err, ERR_INPUT, "%s: %lld sampled rows for %lld queries", path, (long long)rows->count,
             (long long)n);
    if (j->meta.row_group == 0)
        j->meta.row_group = ROW_GROUP;
    TRY(mem_alloc(&at, n, sizeof *at, "sampled rows", err));
    TRY(mem_alloc(&j->rows, n, sizeof *j->rows, "sampled rows", err));
    TRY(st_read_i64(f, rows, 0, n, at, err));
    for (int64_t i = 0; i < n; i++)
        j->rows[i] = at[i] < 0 || at[i] > INT32_MAX ? -1 : (int32_t)at[i];
    struct row_sample s = {.at = j->rows, .n = n, .group = j->meta.row_group};
    if ((rc = row_sample_check(&s, j->calls[0].k.tokens, ERR_INPUT, err)) != 0)
        err_prefix(err, "%s: rows", path);
out:
    free(at);
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
    int rc = 0;

    for (int64_t i = 0; i < st_count(f); i++) {
        const char *name = st_at(f, i)->name;
        size_t len = strlen(name);
        if (len == 0 || len > 250 || name[len - 1] != 'q' || (len > 1 && name[len - 2] != '.'))
            continue;
        TRY(add_call(j, f, path, name, len - 1, layout, defaults, err));
    }
    if (j->n_calls == 0)
        FAIL(err, ERR_INPUT,
             "%s: no tensor is named 'q' or '<prefix>.q'; --q, --k and --v name "
             "others",
             path);
    qsort(j->calls, (size_t)j->n_calls, sizeof *j->calls, by_call_order);
    for (int64_t i = 0; i < j->n_calls; i++) {
        j->calls[i].call.order = (int)i;
        if (i > 0 && by_call_order(&j->calls[i - 1], &j->calls[i]) == 0)
            FAIL(err, ERR_INPUT, "%s and %s are of the same step, branch and layer",
                 j->calls[i - 1].q.name, j->calls[i].q.name);
    }
    TRY(read_doubles(f, path, "timesteps", &j->timesteps, &j->n_timesteps, err));
    TRY(read_doubles(f, path, "sigmas", &j->sigmas, &j->n_sigmas, err));
    TRY(read_text(j, f, path, err));
    TRY(read_rows(j, f, path, err));
    set_schedule(j);
out:
    return rc;
}
