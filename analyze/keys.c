/*
 * keys.c - group keys: values, parsing, order.
 */
#include "analyze/keys.h"
#include "core/mem.h"

#include "analyze/params.h"
#include "core/opt.h"
#include "core/text.h"

#include <ctype.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define HASH_DIGITS 8 /* that tell texts apart */

static const struct {
    const char *name;
    bool number;
    const char *title;
} info[KEY_COUNT] = {
#define X(id, name, num, title, help) {name, num, title},
    GROUP_KEYS(X)
#undef X
};

/* Names of the parameters that are keys, numbered from KEY_COUNT + 1 on. */
static char param_names[PARAM_KEYS_MAX][32];
static int n_param_names;

static bool is_param(enum group_key k)
{
    return (int)k > KEY_COUNT;
}

const char *key_name(enum group_key k)
{
    return is_param(k) ? param_names[(int)k - KEY_COUNT - 1] : info[k].name;
}

const char *key_title(enum group_key k)
{
    return is_param(k) ? key_name(k) : info[k].title;
}

bool key_is_number(enum group_key k)
{
    return !is_param(k) && info[k].number;
}

static int unknown_key(const char *word, const char *what, struct err *err)
{
    struct names all = {0};
    for (int k = 0; k < KEY_COUNT; k++)
        names_add(&all, info[k].name);
    names_unknown(&all, "key or parameter", word, err);
    return err_prefix(err, "%s", what);
}

static int param_key(const char *word, const char *what, int *k, struct err *err)
{
    const char *name = word + (*word == ':');
    if (*word != '@' && !params_known(name))
        return unknown_key(word, what, err);
    for (int i = 0; i < n_param_names; i++)
        if (strcmp(param_names[i], name) == 0) {
            *k = KEY_COUNT + 1 + i;
            return 0;
        }
    if (n_param_names == PARAM_KEYS_MAX)
        return err_set(err, ERR_USAGE, "%s: more than %d parameters", what, PARAM_KEYS_MAX);
    snprintf(param_names[n_param_names], sizeof *param_names, "%s", name);
    *k = KEY_COUNT + 1 + n_param_names++;
    return 0;
}

static int key_of(const char *word, const char *what, int *k, struct err *err)
{
    for (*k = 0; *k < KEY_COUNT; ++*k)
        if (strcmp(word, info[*k].name) == 0)
            return 0;
    return param_key(word, what, k, err);
}

int keys_parse(const char *text, const char *what, enum group_key keys[KEYS_MAX], int *n,
               struct err *err)
{
    int count = 0;
    for (const char *p = text; *p;) {
        size_t len = strcspn(p, ",");
        char word[32];
        snprintf(word, sizeof word, "%.*s", (int)(len < sizeof word ? len : sizeof word - 1), p);
        int k, seen = 0, rc = key_of(word, what, &k, err);
        if (rc)
            return rc;
        while (seen < count && keys[seen] != (enum group_key)k)
            seen++;
        if (seen == count)
            keys[count++] = (enum group_key)k;
        p += len + (p[len] == ',');
    }
    if (count == 0)
        return err_set(err, ERR_USAGE, "%s: no key given", what);
    *n = count;
    return 0;
}

/* The value of "name=" in the text of a task, NULL if it is not there; *len is its length. */
static const char *task_value(const struct record *r, const char *name, size_t *len)
{
    size_t n = strlen(name);
    const char *p = r->task ? strchr(r->task, ':') : NULL;
    for (; p; p = strchr(p + 1, ':'))
        if (strncmp(p + 1, name, n) == 0 && p[1 + n] == '=') {
            *len = strcspn(p + n + 2, ":");
            return p + n + 2;
        }
    return NULL;
}

static double task_number(const struct record *r, const char *name)
{
    size_t len;
    const char *v = task_value(r, name, &len);
    return v ? strtod(v, NULL) : NAN;
}

const char *task_hash(const struct record *r, size_t *len)
{
    return task_value(r, "hash", len);
}

/* The task without what other keys say, and without hashes; of a record that tells texts apart with
 * the first digits of its text's. */
static void task_text(const struct record *r, struct buf *b)
{
    static const char *const left_out[] = {"tokens", "depth",    "sample", "hash", "line",
                                           "text",   "negative", "noise",  NULL};
    for (const char *p = r->task ? r->task : ""; *p;) {
        size_t len = strcspn(p, ":"), name = strcspn(p, "=:");
        bool skip = p[len] == '=';
        for (int i = 0; left_out[i]; i++)
            skip = skip || (p[name] == '=' && strlen(left_out[i]) == name &&
                            strncmp(p, left_out[i], name) == 0);
        if (!skip)
            buf_printf(b, "%s%.*s", b->len ? ":" : "", (int)len, p);
        else if (r->tells_text && strncmp(p, "hash=", 5) == 0)
            buf_printf(b, ":%.*s", (int)(len < 5 + HASH_DIGITS ? len : 5 + HASH_DIGITS), p);
        p += len + (p[len] == ':');
    }
}

/* The parameters, up to the '@' of a target. */
static void base_text(const struct record *r, struct buf *b)
{
    const char *all = r->params ? r->params : "", *target = params_target(all);
    buf_put(b, all, *target ? (size_t)(target - 1 - all) : strlen(all));
}

/* By the method's own parameter, else by the replay; "row" is how tokens are stored. */
static void order_text(const struct record *r, struct buf *b)
{
    const char *own = strcmp(r->permute, "none") == 0 ? params_value(r->params, "permute") : NULL;
    size_t len = own ? params_value_len(own) : strlen(r->permute);
    const char *order = own ? own : r->permute;
    if (len == 3 && strncmp(order, "row", len) == 0)
        buf_puts(b, "none");
    else
        buf_put(b, order, len);
}

/* A clip's task has its size in pixels. */
static bool is_clip(const struct record *r)
{
    return r->scope == RECORD_OF_MODEL && r->task && strncmp(r->task, "video:", 6) == 0;
}

/* Where a record has the value of a key; the others are made from several fields. */
#define FIELD(kind, field)                                                                         \
    {                                                                                              \
        kind, offsetof(struct record, field)                                                       \
    }
static const struct {
    enum { MADE, TEXT, CHARS, INT } kind; /* const char *, char [], int */
    size_t offset;
} fields[KEY_COUNT] = {
    [KEY_MODEL] = FIELD(TEXT, model),
    [KEY_TRACE] = FIELD(CHARS, trace),
    [KEY_D] = FIELD(INT, d),
    [KEY_PERMUTE] = FIELD(CHARS, permute),
    [KEY_BACKEND] = FIELD(CHARS, backend),
    [KEY_PRECISION] = FIELD(CHARS, precision),
    [KEY_HEADS] = FIELD(TEXT, heads),
    [KEY_SETTING] = FIELD(TEXT, setting),
    [KEY_METHOD] = FIELD(CHARS, method),
    [KEY_PARAMS] = FIELD(TEXT, params),
    [KEY_RUN] = FIELD(INT, run),
    [KEY_STEP] = FIELD(INT, step),
    [KEY_BRANCH] = FIELD(CHARS, branch),
    [KEY_LAYER] = FIELD(INT, layer),
    [KEY_HEAD] = FIELD(INT, head),
    [KEY_KV_HEAD] = FIELD(INT, kv_head),
};

double key_number(const struct record *r, enum group_key k)
{
    bool of_model = r->scope == RECORD_OF_MODEL;
    int x = 0;
    if (fields[k].kind == INT) {
        memcpy(&x, (const char *)r + fields[k].offset, sizeof x);
        return x < 0 || (k == KEY_D && of_model) ? NAN : x;
    }
    return k == KEY_CAUSAL     ? r->causal
           : k == KEY_N_Q      ? (of_model ? NAN : (double)r->n_q)
           : k == KEY_N_K      ? (of_model ? NAN : (double)r->n_k)
           : k == KEY_SEED     ? (double)r->seed
           : k == KEY_TOKENS   ? (is_clip(r) ? (double)r->n_q : task_number(r, "tokens"))
           : k == KEY_DEPTH    ? task_number(r, "depth")
           : k == KEY_SAMPLE   ? task_number(r, "sample")
           : k == KEY_MASK_AGE ? record_get(r, "mask_age")
                               : 0;
}

static const char *text_of(const struct record *r, enum group_key k)
{
    static const char *const status[] = {"ok", "skip", "error"};
    static const char *const scopes[] = {[RECORD_OF_HEAD] = "head",
                                         [RECORD_OF_MODEL] = "model",
                                         [RECORD_OF_CALL] = "call",
                                         [RECORD_OF_DECODE] = "decode"};
    const char *at = (const char *)r + fields[k].offset, *text = "";
    if (fields[k].kind == CHARS)
        return at;
    if (fields[k].kind == TEXT)
        memcpy(&text, at, sizeof text);
    else if (k == KEY_SCOPE)
        text = scopes[r->scope];
    else if (k == KEY_TARGET)
        text = params_target(r->params);
    else if (k == KEY_STATUS)
        text = status[r->status];
    else if (k == KEY_REASON && r->status != RECORD_OK)
        text = r->reason;
    return text ? text : "";
}

void key_text(const struct record *r, enum group_key k, struct buf *b)
{
    if (is_param(k))
        record_param(r, key_name(k), b);
    else if (k == KEY_SEED)
        buf_printf(b, "%llu", (unsigned long long)r->seed);
    else if (info[k].number && isnan(key_number(r, k)))
        buf_puts(b, "none");
    else if (k == KEY_DEPTH)
        buf_printf(b, "%g", key_number(r, k));
    else if (k == KEY_TASK)
        task_text(r, b);
    else if (k == KEY_BASE)
        base_text(r, b);
    else if (k == KEY_ORDER)
        order_text(r, b);
    else if (info[k].number)
        buf_printf(b, "%.0f", key_number(r, k));
    else
        buf_puts(b, text_of(r, k));
}

static bool number_starts(const char *s)
{
    return isdigit((unsigned char)*s) || (*s == '.' && isdigit((unsigned char)s[1]));
}

int natural_compare(const char *a, const char *b)
{
    const char *a0 = a, *b0 = b;
    if (a == b || strcmp(a, b) == 0)
        return 0;
    while (*a && *b) {
        if (number_starts(a) && number_starts(b)) {
            char *a_end, *b_end;
            double x = strtod(a, &a_end), y = strtod(b, &b_end);
            if (x != y)
                return x < y ? -1 : 1;
            a = a_end;
            b = b_end;
        } else if (*a != *b) {
            return (unsigned char)*a < (unsigned char)*b ? -1 : 1;
        } else {
            a++;
            b++;
        }
    }
    if (*a || *b)
        return *a ? 1 : -1;
    return strcmp(a0, b0); /* "0.50" and "0.5" are different texts of one value */
}

static int compare_params(const struct record *a, const struct record *b, const char *name)
{
    OWN(buf_free) struct buf x = {0}, y = {0};
    record_param(a, name, &x);
    record_param(b, name, &y);
    return natural_compare(buf_str(&x), buf_str(&y));
}

static int compare_texts(const struct record *a, const struct record *b,
                         void (*text)(const struct record *, struct buf *))
{
    OWN(buf_free) struct buf x = {0}, y = {0};
    text(a, &x);
    text(b, &y);
    return natural_compare(buf_str(&x), buf_str(&y));
}

int key_compare(const struct record *a, const struct record *b, enum group_key k)
{
    if (k == KEY_SEED)
        return (a->seed > b->seed) - (a->seed < b->seed);
    if (is_param(k))
        return compare_params(a, b, key_name(k));
    if (info[k].number) {
        double x = key_number(a, k), y = key_number(b, k);
        if (isnan(x) || isnan(y)) /* no value stands first */
            return isnan(y) - isnan(x);
        return (x > y) - (x < y);
    }
    if (k == KEY_TASK || k == KEY_BASE || k == KEY_ORDER)
        return compare_texts(a, b,
                             k == KEY_TASK   ? task_text
                             : k == KEY_BASE ? base_text
                                             : order_text);
    if (k == KEY_METHOD) {
        bool x = strcmp(a->method, "dense") == 0, y = strcmp(b->method, "dense") == 0;
        if (x != y)
            return x ? -1 : 1;
    }
    return natural_compare(text_of(a, k), text_of(b, k));
}

static uint64_t hash_text_of(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325U; /* FNV-1a */
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3U;
    return hash;
}

uint64_t key_hash(const struct record *r, enum group_key k)
{
    OWN(buf_free) struct buf b = {0};
    double x = is_param(k) || !info[k].number ? 0 : key_number(r, k);
    uint64_t hash = 0;
    if (is_param(k) || k == KEY_TASK || k == KEY_BASE || k == KEY_ORDER) {
        key_text(r, k, &b);
        hash = hash_text_of(buf_str(&b));
    } else if (k == KEY_SEED) {
        hash = r->seed;
    } else if (!info[k].number) {
        hash = hash_text_of(text_of(r, k));
    } else if (!isnan(x) && x != 0) {
        memcpy(&hash, &x, sizeof hash);
    }
    return hash;
}
