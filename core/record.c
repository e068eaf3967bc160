/*
 * record.c - one record in memory and as a JSON line.
 *
 * The line is flat: identity, shape and outcome under their own names, then one key per metric.
 * JSON has no infinities: a non-finite metric is null, and the list "inf" names the metrics that
 * are +inf (a nonzero error over zero). The last member is the line's checksum.
 */
#include "core/record.h"

#include "core/mem.h"
#include "core/sealed.h"
#include "core/utf8.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const status_names[] = {"ok", "skip", "error"};
static const char *const scope_names[] = {"head", "model", "call"};

/* Keys that are not metrics. */
static const char *const fixed_keys[] = {
    "trace",   "model",   "run",    "step",    "branch",  "timestep",  "layer",   "head",
    "kv_head", "method",  "params", "seed",    "backend", "precision", "permute", "n_q",
    "n_k",     "d",       "causal", "status",  "reason",  "notes",     "inf",     "sum",
    "scope",   "weights", "task",   "setting", "heads",   NULL};

bool record_key_is_fixed(const char *name)
{
    for (int i = 0; fixed_keys[i]; i++)
        if (strcmp(fixed_keys[i], name) == 0)
            return true;
    return false;
}

static const char no_text[] = "";

void record_init(struct record *r)
{
    memset(r, 0, sizeof *r);
    r->timestep = NAN;
    r->model = r->reason = no_text;
    snprintf(r->branch, sizeof r->branch, "main");
    snprintf(r->backend, sizeof r->backend, "cpu");
    snprintf(r->precision, sizeof r->precision, "f64");
    snprintf(r->permute, sizeof r->permute, "none");
}

void record_of_model(struct record *r)
{
    r->scope = RECORD_OF_MODEL;
    r->layer = r->head = r->kv_head = -1;
}

void record_of_call(struct record *r)
{
    r->scope = RECORD_OF_CALL;
    r->head = r->kv_head = -1;
}

static void free_text(const char *text)
{
    if (text != no_text)
        free((char *)(uintptr_t)text);
}

void record_free(struct record *r)
{
    free(r->values);
    if (!r->pooled) {
        free_text(r->model);
        free_text(r->reason);
        free(r->params);
        free(r->heads);
        free(r->task);
        free(r->setting);
        free(r->names ? r->names->name : NULL);
        free(r->names);
        buf_free(&r->notes);
    }
    memset(r, 0, sizeof *r);
}

void record_text(struct record *r, const char **field, const char *fmt, ...)
{
    char all[2 * RECORD_REASON], fits[RECORD_REASON];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(all, sizeof all, fmt, ap);
    va_end(ap);
    utf8_copy(fits, field == &r->model ? RECORD_MODEL : RECORD_REASON, all);
    char *copy = strdup(fits);
    if (!copy)
        mem_note_short();
    free_text(*field);
    *field = copy ? copy : no_text;
}

int64_t metric_place(const struct metric_names *names, const char *name)
{
    for (int64_t i = 0; names && i < names->n; i++)
        if (strcmp(names->name[i], name) == 0)
            return i;
    return -1;
}

const char *record_metric_name(const struct record *r, int64_t i)
{
    return r->names->name[i];
}

static int add_metric(struct record *r, const char *name, double value, struct err *err)
{
    struct metric_names *names = r->names;
    int rc = 0;
    if (!names)
        TRY(mem_zalloc(&names, 1, sizeof *names, "metrics", err));
    r->names = names;
    int64_t cap = names->cap;
    TRY(mem_grow(&names->name, &names->cap, names->n + 1, sizeof *names->name, "metrics", err));
    if (names->cap != cap) {
        double *values = realloc(r->values, (size_t)names->cap * sizeof *values);
        if (!values)
            FAIL(err, ERR_NOMEM, "metrics: out of memory");
        r->values = values;
    }
    snprintf(names->name[names->n], METRIC_NAME, "%s", name);
    r->values[names->n++] = value;
out:
    return rc;
}

int record_metric(struct record *r, const char *name, double value, struct err *err)
{
    char fault[UTF8_FAULT_MAX];
    int64_t at = metric_place(r->names, name);
    if (at >= 0) {
        r->values[at] = value;
        return 0;
    }
    if (!name[0] || strlen(name) >= METRIC_NAME || record_key_is_fixed(name) ||
        utf8_fault(name, fault) || r->pooled)
        return err_set(err, ERR_RUN, "'%s' cannot be the name of a metric", name);
    return add_metric(r, name, value, err);
}

int record_add_values(struct record *r, const struct named_value *values, struct err *err)
{
    int rc = 0;
    for (; values->name && !rc; values++)
        rc = record_metric(r, values->name, values->value, err);
    return rc;
}

double record_get(const struct record *r, const char *name)
{
    int64_t at = metric_place(r->names, name);
    return at >= 0 ? r->values[at] : NAN;
}

void record_note(struct record *r, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (r->notes.len)
        buf_puts(&r->notes, ";");
    buf_puts(&r->notes, text);
}

const char *record_note_value(const struct record *r, const char *key, size_t *len)
{
    const char *p = r->notes.len ? r->notes.data : "";
    size_t n = strlen(key);
    while (*p) {
        size_t word = strcspn(p, ";");
        if (word > n && strncmp(p, key, n) == 0 && p[n] == '=') {
            *len = word - n - 1;
            return p + n + 1;
        }
        p += word + (p[word] == ';');
    }
    return NULL;
}

/* The parameters come last: they alone may hold any character. */
void record_key(const struct record *r, struct buf *b)
{
    if (r->scope == RECORD_OF_MODEL) {
        buf_printf(b, "model|%s|%s|%s|%s|%s|%llu|%s|%s", r->trace, r->task ? r->task : "",
                   r->setting ? r->setting : "", r->backend, r->precision,
                   (unsigned long long)r->seed, r->method, r->params ? r->params : "");
        return;
    }
    if (r->scope == RECORD_OF_CALL)
        buf_printf(b, "call|%s|", r->heads ? r->heads : "");
    buf_printf(b, "%s|%d|%d|%s|%d|%d|%s|%s|%s|%llu|%s|%s", r->trace, r->run, r->step, r->branch,
               r->layer, r->head, r->backend, r->precision, r->permute, (unsigned long long)r->seed,
               r->method, r->params ? r->params : "");
}

/* ---- JSON ----------------------------------------------------------------------------------- */

static void json_infinities(const struct record *r, struct jw *w)
{
    bool any = false;
    for (int64_t i = 0; i < record_metrics(r); i++) {
        if (!(isinf(r->values[i]) && r->values[i] > 0))
            continue;
        if (!any) {
            jw_key(w, "inf");
            jw_arr(w);
            any = true;
        }
        jw_str(w, r->names->name[i]);
    }
    if (any)
        jw_arr_end(w);
}

static void json_trace_cell(const struct record *r, struct jw *w)
{
    bool call = r->scope == RECORD_OF_CALL;
    if (call)
        jw_kstr(w, "scope", scope_names[r->scope]);
    jw_kstr(w, "trace", r->trace);
    jw_kstr(w, "model", r->model);
    jw_kint(w, "run", r->run);
    jw_kint(w, "step", r->step);
    jw_kstr(w, "branch", r->branch);
    jw_knum(w, "timestep", r->timestep);
    jw_kint(w, "layer", r->layer);
    jw_kint(w, "head", r->head);
    if (call)
        jw_kstr(w, "heads", r->heads ? r->heads : "");
    else
        jw_kint(w, "kv_head", r->kv_head);
    jw_kstr(w, "method", r->method);
    jw_kstr(w, "params", r->params ? r->params : "");
    jw_kint(w, "seed", (int64_t)r->seed);
    jw_kstr(w, "backend", r->backend);
    jw_kstr(w, "precision", r->precision);
    jw_kstr(w, "permute", r->permute);
    jw_kint(w, "n_q", r->n_q);
    jw_kint(w, "n_k", r->n_k);
    jw_kint(w, "d", r->d);
    jw_kbool(w, "causal", r->causal);
}

static void json_model_cell(const struct record *r, struct jw *w)
{
    jw_kstr(w, "scope", scope_names[r->scope]);
    jw_kstr(w, "weights", r->trace);
    jw_kstr(w, "model", r->model);
    jw_kstr(w, "task", r->task ? r->task : "");
    jw_kstr(w, "setting", r->setting ? r->setting : "");
    jw_kstr(w, "method", r->method);
    jw_kstr(w, "params", r->params ? r->params : "");
    jw_kint(w, "seed", (int64_t)r->seed);
    jw_kstr(w, "backend", r->backend);
    jw_kstr(w, "precision", r->precision);
    jw_kint(w, "n_q", r->n_q);
    jw_kint(w, "n_k", r->n_k);
    jw_kbool(w, "causal", r->causal);
}

void record_json(const struct record *r, struct buf *line)
{
    struct jw w;
    size_t start = line->len;
    jw_init(&w, line, 0);
    jw_obj(&w);
    if (r->scope == RECORD_OF_MODEL)
        json_model_cell(r, &w);
    else
        json_trace_cell(r, &w);
    jw_kstr(&w, "status", status_names[r->status]);
    if (r->reason[0])
        jw_kstr(&w, "reason", r->reason);
    for (int64_t i = 0; i < record_metrics(r); i++)
        jw_knum(&w, r->names->name[i], r->values[i]);
    json_infinities(r, &w);
    if (r->notes.len)
        jw_kstr(&w, "notes", buf_str(&r->notes));
    jw_obj_end(&w);
    seal_put(line, start);
    buf_puts(line, "\n");
    if (r->notes.failed)
        line->failed = true;
}

/* Texts of the identity become names in tables, figures and messages. */
static int check_shown(const char *s, const char *key, const char *where, struct err *err)
{
    char what[UTF8_FAULT_MAX];
    const char *fault = utf8_fault(s, what);
    return fault ? err_set(err, ERR_INPUT, "%s: \"%s\" has a %s", where, key, fault) : 0;
}

static int parse_text(const json_t *o, const char *key, const char *where, char *out, size_t size,
                      struct err *err)
{
    const char *s = NULL;
    int rc = jget_str(o, key, where, &s, err);
    if (rc)
        return rc;
    if (strlen(s) >= size)
        return err_set(err, ERR_INPUT, "%s: \"%s\": at most %zu bytes were expected, found %zu",
                       where, key, size - 1, strlen(s));
    rc = check_shown(s, key, where, err);
    if (!rc)
        snprintf(out, size, "%s", s);
    return rc;
}

static int parse_index(const json_t *o, const char *key, const char *where, int *out,
                       struct err *err)
{
    int64_t v = 0;
    int rc = jget_int(o, key, where, &v, err);
    if (rc)
        return rc;
    if (v < 0 || v > INT32_MAX)
        return err_set(err, ERR_INPUT, "%s: \"%s\": an index was expected, found %lld", where, key,
                       (long long)v);
    *out = (int)v;
    return 0;
}

static int parse_copy(const json_t *o, const char *key, const char *where, char **out,
                      struct err *err)
{
    const char *s = NULL;
    int rc = jget_str(o, key, where, &s, err);
    rc = rc ? rc : check_shown(s, key, where, err);
    if (rc)
        return rc;
    *out = strdup(s);
    return *out ? 0 : err_set(err, ERR_NOMEM, "%s: out of memory", where);
}

/* What cells of a head and of a call have. */
static int parse_trace_cell(const json_t *o, const char *where, struct record *r, struct err *err)
{
    int rc = 0;
    TRY(parse_text(o, "trace", where, r->trace, sizeof r->trace, err));
    TRY(parse_text(o, "branch", where, r->branch, sizeof r->branch, err));
    TRY(parse_text(o, "permute", where, r->permute, sizeof r->permute, err));
    TRY(parse_index(o, "run", where, &r->run, err));
    TRY(parse_index(o, "step", where, &r->step, err));
    TRY(parse_index(o, "layer", where, &r->layer, err));
    TRY(parse_index(o, "d", where, &r->d, err));
out:
    return rc;
}

static int parse_head_cell(const json_t *o, const char *where, struct record *r, struct err *err)
{
    int rc = 0;
    TRY(parse_trace_cell(o, where, r, err));
    TRY(parse_index(o, "head", where, &r->head, err));
    TRY(parse_index(o, "kv_head", where, &r->kv_head, err));
out:
    return rc;
}

static int parse_call_cell(const json_t *o, const char *where, struct record *r, struct err *err)
{
    int64_t head = -1;
    int rc = 0;
    record_of_call(r);
    TRY(parse_trace_cell(o, where, r, err));
    TRY(parse_copy(o, "heads", where, &r->heads, err));
    TRY(jget_int_opt(o, "head", where, &head, err));
    if (head != -1)
        FAIL(err, ERR_INPUT, "%s: \"head\": of a call -1 was expected, found %lld", where,
             (long long)head);
out:
    return rc;
}

static int parse_model_cell(const json_t *o, const char *where, struct record *r, struct err *err)
{
    int rc = 0;
    record_of_model(r);
    TRY(parse_text(o, "weights", where, r->trace, sizeof r->trace, err));
    TRY(parse_copy(o, "task", where, &r->task, err));
    TRY(parse_copy(o, "setting", where, &r->setting, err));
out:
    return rc;
}

static int parse_identity(const json_t *o, const char *where, struct record *r, struct err *err)
{
    int rc = 0;
    int64_t seed = 0;
    char model[RECORD_MODEL];
    const char *scope = scope_names[RECORD_OF_HEAD];
    TRY(jget_str_opt(o, "scope", where, &scope, err));
    if (strcmp(scope, scope_names[RECORD_OF_HEAD]) == 0)
        TRY(parse_head_cell(o, where, r, err));
    else if (strcmp(scope, scope_names[RECORD_OF_MODEL]) == 0)
        TRY(parse_model_cell(o, where, r, err));
    else if (strcmp(scope, scope_names[RECORD_OF_CALL]) == 0)
        TRY(parse_call_cell(o, where, r, err));
    else
        FAIL(err, ERR_INPUT, "%s: \"scope\": head, call or model was expected, found '%.60s'",
             where, scope);
    TRY(parse_text(o, "model", where, model, sizeof model, err));
    record_text(r, &r->model, "%s", model);
    TRY(parse_text(o, "method", where, r->method, sizeof r->method, err));
    TRY(parse_text(o, "backend", where, r->backend, sizeof r->backend, err));
    TRY(parse_text(o, "precision", where, r->precision, sizeof r->precision, err));
    TRY(jget_int(o, "seed", where, &seed, err));
    TRY(jget_int(o, "n_q", where, &r->n_q, err));
    TRY(jget_int(o, "n_k", where, &r->n_k, err));
    TRY(jget_bool_opt(o, "causal", where, &r->causal, err));
    TRY(jget_num_opt(o, "timestep", where, &r->timestep, err));
    TRY(parse_copy(o, "params", where, &r->params, err));
    r->seed = (uint64_t)seed;
out:
    return rc;
}

static int parse_outcome(const json_t *o, const char *where, struct record *r, struct err *err)
{
    const char *status = NULL, *notes = NULL, *reason = NULL;
    int rc = 0, i = 0;
    TRY(jget_str(o, "status", where, &status, err));
    TRY(jget_str_opt(o, "reason", where, &reason, err));
    TRY(jget_str_opt(o, "notes", where, &notes, err));
    while (i < 3 && strcmp(status, status_names[i]) != 0)
        i++;
    if (i == 3)
        FAIL(err, ERR_INPUT, "%s: \"status\": ok, skip or error was expected, found '%s'", where,
             status);
    r->status = (enum record_status)i;
    if (reason)
        record_text(r, &r->reason, "%s", reason);
    if (notes) {
        buf_puts(&r->notes, notes);
        TRY(buf_check(&r->notes, where, err));
    }
out:
    return rc;
}

/* Every number (or null) under a key that is not fixed is a metric; other types are left alone, so
 * that later versions may add texts. */
static int parse_metrics(const json_t *o, const char *where, struct record *r, struct err *err)
{
    const char *key;
    json_t *v;
    size_t i;
    json_object_foreach((json_t *)(uintptr_t)o, key, v)
    {
        if (record_key_is_fixed(key) || !(json_is_number(v) || json_is_null(v)))
            continue;
        struct err why = {0};
        if (record_metric(r, key, json_is_null(v) ? NAN : json_number_value(v), &why))
            return err_set(err, why.code == ERR_NOMEM ? ERR_NOMEM : ERR_INPUT, "%s: %s", where,
                           why.msg);
    }
    json_array_foreach(json_object_get(o, "inf"), i, v)
    {
        int64_t at = json_is_string(v) ? metric_place(r->names, json_string_value(v)) : -1;
        if (at < 0)
            return err_set(err, ERR_INPUT, "%s: \"inf\" names no metric of this record", where);
        r->values[at] = INFINITY;
    }
    return 0;
}

int record_parse(const char *line, size_t len, const char *where, struct record *out,
                 struct err *err)
{
    json_t *o = NULL;
    struct record r;
    int rc = 0;

    record_init(&r);
    len -= len && line[len - 1] == '\n';
    if (seal_state(line, len) == SEAL_BROKEN)
        FAIL(err, ERR_INPUT,
             "%s: its checksum does not fit: it was damaged, or edited (then set \"sum\" to null)",
             where);
    TRY(seal_json(line, len, where, &o, err));
    TRY(parse_identity(o, where, &r, err));
    TRY(parse_outcome(o, where, &r, err));
    TRY(parse_metrics(o, where, &r, err));
    *out = r;
    memset(&r, 0, sizeof r);
out:
    json_decref(o);
    record_free(&r);
    return rc;
}
