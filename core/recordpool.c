/*
 * recordpool.c - records of a set: they share texts and lists of names, and the lines of a replay
 * are read without a tree of JSON.
 *
 * Such a line is one whose checksum fits and which holds plain ASCII texts and finite numbers under
 * the keys of an ok record of a head, none of them twice. Every other line goes through
 * record_parse, which knows every form and names what is wrong.
 */
#include "core/mem.h"
#include "core/record.h"
#include "core/sealed.h"
#include "core/strmap.h"

#include <ctype.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define METRICS_MOST 512 /* of a line that is read here */

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
    int rc = 0;
    if (at < 0) {
        at = p->n_texts;
        TRY(mem_grow(&p->texts, &p->cap_texts, at + 1, sizeof *p->texts, "texts of records", err));
        if (!(p->texts[at] = strdup(text)))
            FAIL(err, ERR_NOMEM, "texts of records: out of memory");
        p->n_texts++;
        TRY(strmap_put(&p->index, text, at, err));
    }
    *out = p->texts[at];
out:
    return rc;
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
    int rc = 0;
    TRY(mem_grow(&p->lists, &p->cap_lists, p->n_lists + 1, sizeof *p->lists, "metrics", err));
    TRY(mem_zalloc(&list, 1, sizeof *list, "metrics", err));
    p->lists[p->n_lists++] = list;
    TRY(mem_grow(&list->name, &list->cap, n, sizeof *list->name, "metrics", err));
    for (; list->n < n; list->n++)
        snprintf(list->name[list->n], METRIC_NAME, "%.*s", (int)names[list->n].len,
                 names[list->n].at);
out:
    return rc;
}

static int pool_names(struct record_pool *p, const struct span *names, int64_t n,
                      struct metric_names **out, struct err *err)
{
    int64_t i = 0;
    while (i < p->n_lists && !same_names(p->lists[i], names, n))
        i++;
    int rc = i == p->n_lists ? add_list(p, names, n, err) : 0;
    if (rc)
        return rc;
    *out = p->lists[i];
    p->lists[i] = p->lists[0];
    p->lists[0] = *out;
    return 0;
}

/* ---- lines ----------------------------------------------------------------------------------- */

enum field_type { F_ARRAY, F_TEXT, F_INDEX, F_I64, F_NUMBER, F_BOOL, F_OK, F_NOTES };

static const struct field {
    const char *key;
    enum field_type type;
    bool may_lack;
    size_t offset, size;
} fields[] = {
#define FIELD(type, lacks, name)                                                                   \
    {                                                                                              \
#name, type, lacks, offsetof(struct record, name), sizeof((struct record *)0)->name        \
    }
    FIELD(F_ARRAY, false, trace),   FIELD(F_TEXT, false, model),
    FIELD(F_INDEX, false, run),     FIELD(F_INDEX, false, step),
    FIELD(F_ARRAY, false, branch),  FIELD(F_NUMBER, true, timestep),
    FIELD(F_INDEX, false, layer),   FIELD(F_INDEX, false, head),
    FIELD(F_INDEX, false, kv_head), FIELD(F_ARRAY, false, method),
    FIELD(F_TEXT, false, params),   FIELD(F_I64, false, seed),
    FIELD(F_ARRAY, false, backend), FIELD(F_ARRAY, false, precision),
    FIELD(F_ARRAY, false, permute), FIELD(F_I64, false, n_q),
    FIELD(F_I64, false, n_k),       FIELD(F_INDEX, false, d),
    FIELD(F_BOOL, true, causal),    FIELD(F_OK, false, status),
    FIELD(F_NOTES, true, notes),
#undef FIELD
};
#define N_FIELDS (int)(sizeof fields / sizeof *fields)

struct scan {
    const char *p, *end;
    struct record_pool *pool;
    struct record *r;
    unsigned seen; /* bits of fields */
    int next;      /* the field that the writer puts next */
    struct span names[METRICS_MOST];
    double values[METRICS_MOST];
    int64_t n;
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
        return take_pooled(s, (char **)(void *)at) &&
               (f->offset != offsetof(struct record, model) || strlen(s->r->model) < RECORD_MODEL);
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
        if (is_span(fields[k].key, key))
            return k;
    }
    return -1;
}

/* Is the key a metric? Those of the last record are. */
static bool is_metric(const struct scan *s, struct span key)
{
    const struct metric_names *last = s->pool->n_lists ? s->pool->lists[0] : NULL;
    char name[METRIC_NAME];
    if (key.len == 0 || key.len >= sizeof name)
        return false;
    if (last && s->n < last->n && is_span(last->name[s->n], key))
        return true;
    snprintf(name, sizeof name, "%.*s", (int)key.len, key.at);
    for (int64_t i = 0; i < s->n; i++)
        if (is_span(name, s->names[i]))
            return false;
    return !record_key_is_fixed(name);
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

/* Are the names of a record that does not agree with an earlier one all different? is_metric has
 * compared those that it did not know; one that it knew may repeat one of these. */
static bool all_differ(const struct scan *s)
{
    const struct metric_names *last = s->pool->n_lists ? s->pool->lists[0] : NULL;
    if (last && same_names(last, s->names, s->n))
        return true;
    for (int64_t i = 0; i < s->n; i++)
        for (int64_t k = 0; k < i; k++)
            if (s->names[i].len == s->names[k].len &&
                memcmp(s->names[i].at, s->names[k].at, s->names[i].len) == 0)
                return false;
    return true;
}

static bool scan_members(struct scan *s)
{
    bool more = take(s, "{");
    while (more) {
        if (!take_member(s))
            return false;
        more = take(s, ",");
    }
    for (int f = 0; f < N_FIELDS; f++)
        if (!fields[f].may_lack && !(s->seen >> f & 1))
            return false;
    return s->p == s->end && all_differ(s);
}

/* False: the line is none that is read here, and *r is as record_init leaves it. */
static bool scan_line(struct record_pool *p, const char *line, size_t len, struct record *r)
{
    static const char sum[] = ",\"sum\":\"";
    struct err ignored = {0};
    struct scan s = {.p = line, .pool = p, .r = r};
    len -= len && line[len - 1] == '\n';
    record_init(r);
    if (seal_state(line, len) != SEAL_FITS || len < 64)
        return false;
    const char *tail = line + len - 47; /* ,"sum":"xxh3:DIGITS"} */
    if (memcmp(tail, sum, sizeof sum - 1) != 0)
        return false;
    s.end = tail;
    r->pooled = true;
    bool fits = scan_members(&s) && pool_names(p, s.names, s.n, &r->names, &ignored) == 0 &&
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
    int rc = 0;
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
        TRY(pool_text(p, *fixed[i][0], &text, err));
        *fixed[i][1] = text;
    }
    for (int i = 0; i < 5; i++)
        if (*others[i][0])
            TRY(pool_text(p, *others[i][0], others[i][1], err));
    TRY(pool_names(p, names, n, &shared.names, err));
    shared.values = NULL;
    TRY(mem_alloc(&shared.values, n, sizeof *shared.values, "metrics", err));
    if (n)
        memcpy(shared.values, own.values, (size_t)n * sizeof *shared.values);
    shared.pooled = true;
    *r = shared;
    record_free(&own);
out:
    return rc;
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
