/*
 * record.c - one record in memory and as a JSON line, and records of a set.
 *
 * The line is flat: identity, shape and outcome under their own names, then one key per metric.
 * JSON has no infinities: a non-finite metric is null, and the list "inf" names the metrics that
 * are +inf (a nonzero error over zero). The last member is the line's checksum.
 */
#include "core/record.h"

#include "core/mem.h"
#include "core/sealed.h"
#include "core/strmap.h"
#include "core/utf8.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const status_names[] = {"ok", "skip", "error"};
static const char *const scope_names[] = {"head", "model", "call", "decode"};

/* Members of a line that are not metrics, in the order of writing. */
enum field_type {
    F_ARRAY,   /* char[size] */
    F_TEXT,    /* char *, owned */
    F_MODEL,   /* record.model */
    F_INDEX,   /* int >= 0 */
    F_NO_HEAD, /* -1 */
    F_I64,
    F_NUMBER,
    F_BOOL,
    F_STATUS, /* this and the notes are written by record_json */
    F_NOTES,
};

enum {
    HEAD = 1 << RECORD_OF_HEAD | 1 << RECORD_OF_DECODE,
    CALL = 1 << RECORD_OF_CALL,
    MODEL = 1 << RECORD_OF_MODEL,
};

static const struct field {
    const char *key;
    enum field_type type;
    unsigned scopes;
    bool may_lack;
    size_t offset, size;
} fields[] = {
#define FIELD(type, scopes, lacks, key, name)                                                      \
    {                                                                                              \
        key, type, scopes, lacks, offsetof(struct record, name), sizeof((struct record *)0)->name  \
    }
    FIELD(F_ARRAY, HEAD | CALL, false, "trace", trace),
    FIELD(F_ARRAY, MODEL, false, "weights", trace),
    FIELD(F_MODEL, HEAD | CALL | MODEL, false, "model", model),
    FIELD(F_TEXT, MODEL, false, "task", task),
    FIELD(F_TEXT, MODEL, false, "setting", setting),
    FIELD(F_INDEX, HEAD | CALL, false, "run", run),
    FIELD(F_INDEX, HEAD | CALL, false, "step", step),
    FIELD(F_ARRAY, HEAD | CALL, false, "branch", branch),
    FIELD(F_NUMBER, HEAD | CALL, true, "timestep", timestep),
    FIELD(F_INDEX, HEAD | CALL, false, "layer", layer),
    FIELD(F_INDEX, HEAD, false, "head", head),
    FIELD(F_NO_HEAD, CALL, true, "head", head),
    FIELD(F_TEXT, CALL, false, "heads", heads),
    FIELD(F_INDEX, HEAD, false, "kv_head", kv_head),
    FIELD(F_ARRAY, HEAD | CALL | MODEL, false, "method", method),
    FIELD(F_TEXT, HEAD | CALL | MODEL, false, "params", params),
    FIELD(F_I64, HEAD | CALL | MODEL, false, "seed", seed),
    FIELD(F_ARRAY, HEAD | CALL | MODEL, false, "backend", backend),
    FIELD(F_ARRAY, HEAD | CALL | MODEL, false, "precision", precision),
    FIELD(F_ARRAY, HEAD | CALL, false, "permute", permute),
    FIELD(F_I64, HEAD | CALL | MODEL, false, "n_q", n_q),
    FIELD(F_I64, HEAD | CALL | MODEL, false, "n_k", n_k),
    FIELD(F_INDEX, HEAD | CALL, false, "d", d),
    FIELD(F_BOOL, HEAD | CALL | MODEL, true, "causal", causal),
    FIELD(F_STATUS, HEAD | CALL | MODEL, false, "status", status),
    FIELD(F_NOTES, HEAD | CALL | MODEL, true, "notes", notes),
#undef FIELD
};
#define N_FIELDS (int)(sizeof fields / sizeof *fields)

/* Is it a key of a record's line and so no metric? */
static bool key_is_fixed(const char *name)
{
    static const char *const others[] = {"reason", "inf", "sum", "scope"};
    for (int i = 0; i < N_FIELDS; i++)
        if (strcmp(fields[i].key, name) == 0)
            return true;
    for (int i = 0; i < 4; i++)
        if (strcmp(others[i], name) == 0)
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

int record_identity(const struct record *r, struct record *out, struct err *err)
{
    *out = *r;
    out->model = out->reason = no_text;
    out->heads = out->task = out->setting = NULL;
    out->names = NULL;
    out->values = NULL;
    out->notes = (struct buf){0};
    out->pooled = false;
    record_text(out, &out->model, "%s", r->model);
    out->params = strdup(r->params ? r->params : "");
    return out->params ? mem_check_short(err) : err_set(err, ERR_NOMEM, "record: out of memory");
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
    if (!names)
        PASS_ON(mem_zalloc(&names, 1, sizeof *names, "metrics", err));
    r->names = names;
    int64_t cap = names->cap;
    PASS_ON(mem_grow(&names->name, &names->cap, names->n + 1, sizeof *names->name, "metrics", err));
    if (names->cap != cap) {
        double *values = realloc(r->values, (size_t)names->cap * sizeof *values);
        if (!values)
            return err_set(err, ERR_NOMEM, "metrics: out of memory");
        r->values = values;
    }
    snprintf(names->name[names->n], METRIC_NAME, "%s", name);
    r->values[names->n++] = value;
    return 0;
}

int record_metric(struct record *r, const char *name, double value, struct err *err)
{
    char fault[UTF8_FAULT_MAX];
    int64_t at = metric_place(r->names, name);
    if (at >= 0) {
        r->values[at] = value;
        return 0;
    }
    if (!name[0] || strlen(name) >= METRIC_NAME || key_is_fixed(name) || utf8_fault(name, fault) ||
        r->pooled)
        return err_set(err, ERR_RUN, "'%s' cannot be the name of a metric", name);
    return add_metric(r, name, value, err);
}

int record_add_values(struct record *r, const struct named_value *values, struct err *err)
{
    for (; values->name; values++)
        PASS_ON(record_metric(r, values->name, values->value, err));
    return 0;
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
    if (r->scope == RECORD_OF_DECODE)
        buf_puts(b, "decode|");
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
            jw_karr(w, "inf");
            any = true;
        }
        jw_str(w, r->names->name[i]);
    }
    if (any)
        jw_arr_end(w);
}

static void json_field(const struct record *r, const struct field *f, struct jw *w)
{
    const void *at = (const char *)r + f->offset;
    const char *text = f->type == F_TEXT || f->type == F_MODEL ? *(const char *const *)at : NULL;
    jw_key(w, f->key);
    switch (f->type) {
    case F_ARRAY:
        jw_str(w, at);
        break;
    case F_TEXT:
    case F_MODEL:
        jw_str(w, text ? text : "");
        break;
    case F_INDEX:
    case F_NO_HEAD:
        jw_int(w, *(const int *)at);
        break;
    case F_NUMBER:
        jw_num(w, *(const double *)at);
        break;
    case F_BOOL:
        jw_bool(w, *(const bool *)at);
        break;
    default:
        jw_int(w, *(const int64_t *)at);
    }
}

void record_json(const struct record *r, struct buf *line)
{
    struct jw w;
    size_t start = line->len;
    jw_init(&w, line, 0);
    jw_obj(&w);
    if (r->scope != RECORD_OF_HEAD)
        jw_kstr(&w, "scope", scope_names[r->scope]);
    for (const struct field *f = fields; f->type != F_STATUS; f++)
        if (f->scopes >> r->scope & 1)
            json_field(r, f, &w);
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

static int parse_text(const json_t *o, const struct field *f, const char *where, struct record *r,
                      struct err *err)
{
    void *at = (char *)r + f->offset;
    size_t most = f->type == F_ARRAY ? f->size : f->type == F_MODEL ? RECORD_MODEL : SIZE_MAX;
    const char *s = NULL;
    PASS_ON(jget_str(o, f->key, where, &s, err));
    if (strlen(s) >= most)
        return err_set(err, ERR_INPUT, "%s: \"%s\": at most %zu bytes were expected, found %zu",
                       where, f->key, most - 1, strlen(s));
    PASS_ON(check_shown(s, f->key, where, err));
    if (f->type == F_ARRAY)
        strcpy(at, s);
    else if (f->type == F_MODEL)
        record_text(r, &r->model, "%s", s);
    else if (!(*(char **)at = strdup(s)))
        return err_set(err, ERR_NOMEM, "%s: out of memory", where);
    return 0;
}

static int parse_field(const json_t *o, const struct field *f, const char *where, struct record *r,
                       struct err *err)
{
    void *at = (char *)r + f->offset;
    int64_t v = -1;
    if (f->type == F_NUMBER)
        return jget_num_opt(o, f->key, where, at, err);
    if (f->type == F_BOOL)
        return jget_bool_opt(o, f->key, where, at, err);
    if (f->type == F_I64)
        return jget_int(o, f->key, where, at, err);
    if (f->type != F_INDEX && f->type != F_NO_HEAD)
        return parse_text(o, f, where, r, err);
    PASS_ON(f->may_lack ? jget_int_opt(o, f->key, where, &v, err)
                        : jget_int(o, f->key, where, &v, err));
    if (f->type == F_NO_HEAD && v != -1)
        return err_set(err, ERR_INPUT, "%s: \"head\": of a call -1 was expected, found %lld", where,
                       (long long)v);
    if (f->type == F_INDEX && (v < 0 || v > INT32_MAX))
        return err_set(err, ERR_INPUT, "%s: \"%s\": an index was expected, found %lld", where,
                       f->key, (long long)v);
    *(int *)at = (int)v;
    return 0;
}

static int parse_identity(const json_t *o, const char *where, struct record *r, struct err *err)
{
    int scope = 0;
    const char *name = scope_names[RECORD_OF_HEAD];
    PASS_ON(jget_str_opt(o, "scope", where, &name, err));
    while (scope < 4 && strcmp(name, scope_names[scope]) != 0)
        scope++;
    if (scope == 4)
        return err_set(err, ERR_INPUT,
                       "%s: \"scope\": head, decode, call or model was expected, found '%.60s'",
                       where, name);
    if (scope == RECORD_OF_MODEL)
        record_of_model(r);
    else if (scope == RECORD_OF_CALL)
        record_of_call(r);
    r->scope = (enum record_scope)scope;
    for (const struct field *f = fields; f->type != F_STATUS; f++)
        if (f->scopes >> scope & 1)
            PASS_ON(parse_field(o, f, where, r, err));
    return 0;
}

static int parse_outcome(const json_t *o, const char *where, struct record *r, struct err *err)
{
    const char *status = NULL, *notes = NULL, *reason = NULL;
    int i = 0;
    PASS_ON(jget_str(o, "status", where, &status, err));
    PASS_ON(jget_str_opt(o, "reason", where, &reason, err));
    PASS_ON(jget_str_opt(o, "notes", where, &notes, err));
    while (i < 3 && strcmp(status, status_names[i]) != 0)
        i++;
    if (i == 3)
        return err_set(err, ERR_INPUT, "%s: \"status\": ok, skip or error was expected, found '%s'",
                       where, status);
    r->status = (enum record_status)i;
    if (reason)
        record_text(r, &r->reason, "%s", reason);
    if (notes) {
        buf_puts(&r->notes, notes);
        return buf_check(&r->notes, where, err);
    }
    return 0;
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
        if (key_is_fixed(key) || !(json_is_number(v) || json_is_null(v)))
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
    OWN(json_decrefp) json_t *o = NULL;
    OWN(record_free) struct record r;
    record_init(&r);
    len -= len && line[len - 1] == '\n';
    /* A byte order mark is named by seal_json. */
    if (strncmp(line, "\xEF", len ? 1 : 0) != 0 && seal_state(line, len) == SEAL_BROKEN)
        return err_set(
            err, ERR_INPUT,
            "%s: its checksum does not fit: it was damaged, or edited (then set \"sum\" to null)",
            where);
    PASS_ON(seal_json(line, len, where, &o, err));
    PASS_ON(parse_identity(o, where, &r, err));
    PASS_ON(parse_outcome(o, where, &r, err));
    PASS_ON(parse_metrics(o, where, &r, err));
    *out = HAND_OVER(r);
    return 0;
}

/* ---- records of a set -------------------------------------------------------------------------
 *
 * They share texts and lists of names, and the lines of a replay are read without a tree of JSON.
 * Such a line is one whose checksum fits and which holds plain ASCII texts and finite numbers under
 * the keys of an ok record of a head, in either phase, none of them twice. Every other line goes
 * through record_parse, which knows every form and names what is wrong. */

#define METRICS_MOST 2048 /* of a line that is read here */

struct record_pool {
    struct strmap index; /* of texts */
    char **texts;        /* owned, as the texts */
    int64_t n_texts, cap_texts;
    struct metric_names **lists; /* owned, as the lists; the last one used stands first */
    int64_t n_lists, cap_lists;
};

int record_pool_new(struct record_pool **out, struct err *err)
{
    return mem_zalloc(out, 1, sizeof **out, "texts of records", err);
}

void record_pool_free(struct record_pool **p)
{
    if (!*p)
        return;
    for (int64_t i = 0; i < (*p)->n_texts; i++)
        free((*p)->texts[i]);
    for (int64_t i = 0; i < (*p)->n_lists; i++) {
        free((*p)->lists[i]->name);
        free((*p)->lists[i]);
    }
    strmap_free(&(*p)->index);
    free((*p)->texts);
    free((*p)->lists);
    free(*p);
    *p = NULL;
}

/* The pool's copy of a text. */
static int pool_text(struct record_pool *p, const char *text, char **out, struct err *err)
{
    int64_t at = strmap_get(&p->index, text);
    if (at < 0) {
        at = p->n_texts;
        PASS_ON(
            mem_grow(&p->texts, &p->cap_texts, at + 1, sizeof *p->texts, "texts of records", err));
        PASS_ON(mem_dup(&p->texts[at], text, "texts of records", err));
        p->n_texts++;
        PASS_ON(strmap_put(&p->index, text, at, err));
    }
    *out = p->texts[at];
    return 0;
}

/* ---- lists of names -------------------------------------------------------------------------- */

/* A name in a line. */
struct span {
    const char *at;
    size_t len;
};

static bool is_span(const char *name, struct span s)
{
    return strncmp(name, s.at, s.len) == 0 && !name[s.len];
}

static bool same_names(const struct metric_names *list, const struct span *names, int64_t n)
{
    bool same = list->n == n;
    for (int64_t i = 0; i < n && same; i++)
        same = is_span(list->name[i], names[i]);
    return same;
}

static int add_list(struct record_pool *p, const struct span *names, int64_t n, struct err *err)
{
    struct metric_names *list = NULL;
    PASS_ON(mem_grow(&p->lists, &p->cap_lists, p->n_lists + 1, sizeof *p->lists, "metrics", err));
    PASS_ON(mem_zalloc(&list, 1, sizeof *list, "metrics", err));
    p->lists[p->n_lists++] = list;
    PASS_ON(mem_grow(&list->name, &list->cap, n, sizeof *list->name, "metrics", err));
    for (; list->n < n; list->n++)
        snprintf(list->name[list->n], METRIC_NAME, "%.*s", (int)names[list->n].len,
                 names[list->n].at);
    return 0;
}

static int pool_names(struct record_pool *p, const struct span *names, int64_t n,
                      struct metric_names **out, struct err *err)
{
    int64_t i = 0;
    while (i < p->n_lists && !same_names(p->lists[i], names, n))
        i++;
    PASS_ON(i == p->n_lists ? add_list(p, names, n, err) : 0);
    *out = p->lists[i];
    p->lists[i] = p->lists[0];
    p->lists[0] = *out;
    return 0;
}

/* ---- lines ----------------------------------------------------------------------------------- */

struct scan {
    const char *p, *end;
    struct record_pool *pool;
    struct record *r;
    unsigned seen; /* bits of fields */
    int next;      /* the field that the writer puts next */
    struct span names[METRICS_MOST];
    double values[METRICS_MOST];
    int64_t n;
    struct metric_names *list; /* of the pool: begins with these names; NULL: none does */
};

static bool take(struct scan *s, const char *text)
{
    size_t len = strlen(text);
    if ((size_t)(s->end - s->p) < len || memcmp(s->p, text, len) != 0)
        return false;
    s->p += len;
    return true;
}

/* "text" without escapes. */
static bool take_text(struct scan *s, struct span *out)
{
    if (!take(s, "\""))
        return false;
    out->at = s->p;
    while (s->p < s->end && *s->p != '"') {
        if (*s->p == '\\' || *s->p < ' ' || *s->p > '~')
            return false;
        s->p++;
    }
    out->len = (size_t)(s->p - out->at);
    return take(s, "\"");
}

static const char *digits(const char *p, const char *end)
{
    while (p < end && isdigit((unsigned char)*p))
        p++;
    return p;
}

/* A number of JSON: no leading zeros, digits around a point. The line ends behind s->end, with a
 * quote, so that strtod stays in it. */
static bool take_number(struct scan *s, bool whole, double *out)
{
    char *stop;
    const char *first = s->p + (s->p < s->end && *s->p == '-'), *p = digits(first, s->end);
    if (p == first || p - first > 18 || (*first == '0' && p - first > 1))
        return false;
    if (!whole && p < s->end && *p == '.') {
        const char *fraction = p + 1;
        p = digits(fraction, s->end);
        if (p == fraction)
            return false;
    }
    if (!whole && p < s->end && (*p == 'e' || *p == 'E')) {
        const char *power = p + 1 + (p + 1 < s->end && (p[1] == '-' || p[1] == '+'));
        p = digits(power, s->end);
        if (p == power)
            return false;
    }
    *out = strtod(s->p, &stop);
    bool fits = stop == p && isfinite(*out);
    s->p = p;
    return fits;
}

static bool take_integer(struct scan *s, int64_t *out)
{
    double x;
    const char *from = s->p;
    if (!take_number(s, true, &x))
        return false;
    *out = strtoll(from, NULL, 10);
    return true;
}

static bool take_pooled(struct scan *s, char **out)
{
    struct span text;
    struct err ignored = {0};
    char copy[RECORD_REASON];
    if (!take_text(s, &text) || text.len >= sizeof copy)
        return false;
    memcpy(copy, text.at, text.len);
    copy[text.len] = '\0';
    return pool_text(s->pool, copy, out, &ignored) == 0;
}

static bool take_field(struct scan *s, const struct field *f)
{
    char *at = (char *)s->r + f->offset;
    struct span text;
    int64_t whole = 0;
    switch (f->type) {
    case F_ARRAY:
        if (!take_text(s, &text) || text.len >= f->size)
            return false;
        memcpy(at, text.at, text.len);
        at[text.len] = '\0';
        return true;
    case F_TEXT:
    case F_MODEL:
        return take_pooled(s, (char **)(void *)at) &&
               (f->type != F_MODEL || strlen(s->r->model) < RECORD_MODEL);
    case F_NOTES:
        if (!take_pooled(s, &s->r->notes.data))
            return false;
        s->r->notes.len = strlen(s->r->notes.data);
        return true;
    case F_INDEX:
        if (!take_integer(s, &whole) || whole < 0 || whole > INT32_MAX)
            return false;
        *(int *)(void *)at = (int)whole;
        return true;
    case F_I64:
        return take_integer(s, (int64_t *)(void *)at);
    case F_NUMBER:
        return take(s, "null") || take_number(s, false, (double *)(void *)at);
    case F_BOOL:
        *(bool *)at = take(s, "true");
        return *(bool *)at || take(s, "false");
    default:
        return take(s, "\"ok\"");
    }
}

/* The field of this key, -1 if it is none. */
static int field_of(const struct scan *s, struct span key)
{
    for (int i = 0; i < N_FIELDS; i++) {
        int k = (s->next + i) % N_FIELDS;
        if (fields[k].scopes & HEAD && is_span(fields[k].key, key))
            return k;
    }
    return -1;
}

/* Find a list of the pool that goes on with the key. */
static bool goes_on(struct scan *s, struct span key)
{
    struct metric_names *known = s->list;
    if (known && s->n < known->n && is_span(known->name[s->n], key))
        return true;
    s->list = NULL;
    for (int64_t i = 0; known && i < s->pool->n_lists && !s->list; i++) {
        struct metric_names *list = s->pool->lists[i];
        int64_t k = s->n < list->n && is_span(list->name[s->n], key) ? 0 : -1;
        while (k >= 0 && k < s->n && is_span(list->name[k], s->names[k]))
            k++;
        s->list = k == s->n ? list : NULL;
    }
    return s->list != NULL;
}

/* Is the key a metric? Those of earlier records are. */
static bool is_metric(struct scan *s, struct span key)
{
    char name[METRIC_NAME];
    if (key.len == 0 || key.len >= sizeof name)
        return false;
    if (goes_on(s, key))
        return true;
    snprintf(name, sizeof name, "%.*s", (int)key.len, key.at);
    for (int64_t i = 0; i < s->n; i++)
        if (is_span(name, s->names[i]))
            return false;
    return !key_is_fixed(name);
}

static bool take_member(struct scan *s)
{
    struct span key;
    if (!take_text(s, &key) || !take(s, ":"))
        return false;
    int f = s->n && s->next == N_FIELDS - 1 && !is_span("notes", key) ? -1 : field_of(s, key);
    if (f >= 0) {
        bool again = s->seen >> f & 1;
        s->seen |= 1u << f;
        s->next = (f + 1) % N_FIELDS;
        return !again && take_field(s, &fields[f]);
    }
    if (s->n == METRICS_MOST || !is_metric(s, key))
        return false;
    double *value = &s->values[s->n];
    s->names[s->n++] = key;
    if (take(s, "null"))
        *value = NAN;
    else if (!take_number(s, false, value))
        return false;
    return true;
}

/* The names are those of a list of the pool, which is found or made. They all differ: each that no
 * list went on with was compared with those before it. */
static bool take_names(struct scan *s)
{
    struct err ignored = {0};
    s->r->names = s->list;
    return (s->list && s->list->n == s->n) ||
           pool_names(s->pool, s->names, s->n, &s->r->names, &ignored) == 0;
}

static bool scan_members(struct scan *s)
{
    bool more = take(s, "{");
    if (take(s, "\"scope\":\"decode\","))
        s->r->scope = RECORD_OF_DECODE;
    while (more) {
        if (!take_member(s))
            return false;
        more = take(s, ",");
    }
    for (int f = 0; f < N_FIELDS; f++)
        if (fields[f].scopes & HEAD && !fields[f].may_lack && !(s->seen >> f & 1))
            return false;
    return s->p == s->end;
}
/* False: the line is none that is read here, and *r is as record_init leaves it. */
static bool scan_line(struct record_pool *p, const char *line, size_t len, struct record *r)
{
    static const char sum[] = ",\"sum\":\"";
    struct scan s; /* its arrays are large and need no zeros */
    s.p = line;
    s.pool = p;
    s.r = r;
    s.seen = 0;
    s.next = 0;
    s.n = 0;
    s.list = p->n_lists ? p->lists[0] : NULL;
    len -= len && line[len - 1] == '\n';
    record_init(r);
    if (seal_state(line, len) != SEAL_FITS || len < 64)
        return false;
    const char *tail = line + len - 47; /* ,"sum":"xxh3:DIGITS"} */
    if (memcmp(tail, sum, sizeof sum - 1) != 0)
        return false;
    s.end = tail;
    r->pooled = true;
    bool fits = scan_members(&s) && take_names(&s) &&
                (r->values = malloc((size_t)(s.n + 1) * sizeof *r->values)) != NULL;
    if (!fits) {
        record_init(r);
        return false;
    }
    memcpy(r->values, s.values, (size_t)s.n * sizeof *r->values);
    return true;
}

/* ---- any line -------------------------------------------------------------------------------- */

/* Move the texts and names of a record into the pool. */
static int pool_record(struct record_pool *p, struct record *r, struct err *err)
{
    struct span names[METRICS_MOST];
    struct record own = *r, shared = *r;
    int64_t n = record_metrics(r);
    if (n > METRICS_MOST)
        return 0; /* it stays as it is */
    for (int64_t i = 0; i < n; i++)
        names[i] = (struct span){own.names->name[i], strlen(own.names->name[i])};
    const char **const fixed[][2] = {{&own.model, &shared.model}, {&own.reason, &shared.reason}};
    char **const others[][2] = {{&own.params, &shared.params},
                                {&own.heads, &shared.heads},
                                {&own.task, &shared.task},
                                {&own.setting, &shared.setting},
                                {&own.notes.data, &shared.notes.data}};
    char *text;
    for (int i = 0; i < 2; i++) {
        PASS_ON(pool_text(p, *fixed[i][0], &text, err));
        *fixed[i][1] = text;
    }
    for (int i = 0; i < 5; i++)
        if (*others[i][0])
            PASS_ON(pool_text(p, *others[i][0], others[i][1], err));
    PASS_ON(pool_names(p, names, n, &shared.names, err));
    shared.values = NULL;
    PASS_ON(mem_alloc(&shared.values, n, sizeof *shared.values, "metrics", err));
    if (n)
        memcpy(shared.values, own.values, (size_t)n * sizeof *shared.values);
    shared.pooled = true;
    *r = shared;
    record_free(&own);
    return 0;
}

int record_parse_into(struct record_pool *p, const char *line, size_t len, const char *where,
                      struct record *out, struct err *err)
{
    if (scan_line(p, line, len, out))
        return 0;
    int rc = record_parse(line, len, where, out, err);
    if (!rc && (rc = pool_record(p, out, err)))
        record_free(out);
    return rc;
}

int record_pool_extend(struct record_pool *p, struct record *r, const struct named_value *v, int n,
                       struct err *err)
{
    struct span names[METRICS_MOST];
    int64_t had = record_metrics(r), cap = had;
    for (int i = 0; i < n && !r->pooled; i++)
        PASS_ON(record_metric(r, v[i].name, v[i].value, err));
    if (!r->pooled)
        return 0;
    if (had + n > METRICS_MOST)
        return err_set(err, ERR_RUN, "a record would have more than %d metrics", METRICS_MOST);
    PASS_ON(mem_grow(&r->values, &cap, had + n, sizeof *r->values, "metrics", err));
    for (int64_t i = 0; i < had + n; i++) {
        const char *name = i < had ? r->names->name[i] : v[i - had].name;
        names[i] = (struct span){name, strlen(name)};
        r->values[i] = i < had ? r->values[i] : v[i - had].value;
    }
    return pool_names(p, names, had + n, &r->names, err);
}
