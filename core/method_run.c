/*
 * method_run.c - parse "name:key=v1,v2:...@metric=v" into runs.
 *
 * Sweeps are the Cartesian product of the value lists, the first key varying slowest. A range
 * "a..b/logN" has the values a (b/a)^(i/(N-1)), "a..b/linN" a + (b-a) i/(N-1), both ends exact and
 * the others rounded to 12 significant digits (integers for integer parameters).
 */
#include "core/method_run.h"

#include "core/buf.h"
#include "core/fileio.h"
#include "core/hash.h"
#include "core/json.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/sealed.h"
#include "core/strmap.h"
#include "core/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- parameters that only count beside another one ------------------------------------------- */

/* The name that an OPT_ENUM holds; NULL where it is not given. */
static const char *enum_name(const struct opt *o, const void *params)
{
    int i = *(const int *)((const char *)params + o->offset);
    return i < 0 ? NULL : o->values[i];
}

static int refuse(const struct opt *o, const struct param_scope *s, const struct opt *key,
                  const char *has, const void *params, struct err *err)
{
    OWN(buf_free) struct buf value = {0};
    opt_value_text(o, params, &value);
    return err_set(err, ERR_USAGE, "%s=%s counts with %s only, not with %s=%s: leave it out",
                   o->name, buf_str(&value), s->only, key->name, has);
}

/* ERR_USAGE naming a parameter that is not at its default outside of its scope. */
static int param_scopes_check(const struct method *m, const void *params, struct err *err)
{
    for (const struct param_scope *s = m->params.scopes; s && s->params; s++) {
        char name[32];
        size_t len = strcspn(s->only, "=");
        snprintf(name, sizeof name, "%.*s", (int)len, s->only);
        const struct opt *key = opt_find(m->params.table, name);
        const char *has = enum_name(key, params);
        if (!has || words_have(s->only + len + 1, '|', has, strlen(has)))
            continue;
        for (const struct opt *o = m->params.table; o->type != OPT_END; o++) {
            bool is_default;
            if (!words_have(s->params, ' ', o->name, strlen(o->name)))
                continue;
            PASS_ON(opt_is_default(o, params, &is_default, err));
            if (!is_default)
                PASS_ON(refuse(o, s, key, has, params, err));
        }
    }
    return 0;
}

/* ---- calibration files ----------------------------------------------------------------------- */

static bool is_place(const char *key)
{
    return strcmp(key, "layer") == 0 || strcmp(key, "head") == 0 || strcmp(key, "tokens") == 0;
}

/* A JSON scalar as opt_set text. */
static int scalar_text(const json_t *v, const char *where, const char *key, struct buf *b,
                       struct err *err)
{
    char text[32];
    if (json_is_string(v)) {
        buf_puts(b, json_string_value(v));
    } else if (json_is_integer(v)) {
        buf_printf(b, "%lld", (long long)json_integer_value(v));
    } else if (json_is_real(v)) {
        num_text(json_real_value(v), text);
        buf_puts(b, text);
    } else if (json_is_boolean(v)) {
        buf_puts(b, json_is_true(v) ? "1" : "0");
    } else {
        return err_set(err, ERR_INPUT, "%s: \"%s\": a number, text or boolean was expected", where,
                       key);
    }
    return buf_check(b, where, err);
}

/* Set a parameter from its JSON value. null is "not given". Errors are about the file: ERR_INPUT.
 */
static int apply_value(const struct opt *table, const char *key, const json_t *v, const char *where,
                       void *params, struct err *err)
{
    OWN(buf_free) struct buf text = {0};
    struct err why = {0};
    const struct opt *o = opt_find(table, key);
    if (o && o->flags & OPT_OUTSIDE && !json_is_null(v))
        return err_set(err, ERR_INPUT,
                       "%s: \"%s\" names a %s, which a calibration may not: take it out, and set "
                       "the file's \"sum\" to null",
                       where, key, o->unit);
    if (o && json_is_null(v) && !o->def && !(o->flags & OPT_REQUIRED))
        buf_puts(&text, o->type == OPT_STR ? "" : "unset");
    else
        PASS_ON(scalar_text(v, where, key, &text, err));
    if (opt_set(table, params, where, key, buf_str(&text), &why))
        return err_set(err, ERR_INPUT, "%s", why.msg);
    return 0;
}

/* Apply an entry of "heads", then once more what was given beside calib=: a value that loses is
 * checked all the same. */
static int apply_entry(const struct method_run *run, const json_t *entry, const char *where,
                       void *params, struct err *err)
{
    const struct opt *table = run->method->params.table;
    OWN(buf_free) struct buf text = {0};
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)entry, key, v)
    {
        const struct opt *o = opt_find(table, key);
        if (is_place(key))
            continue;
        PASS_ON(apply_value(table, key, v, where, params, err));
        if (!run->given[o - table])
            continue;
        buf_reset(&text);
        opt_value_text(o, run->params, &text);
        PASS_ON(buf_check(&text, where, err));
        PASS_ON(opt_set_field(o, params, key, buf_str(&text), false, err));
    }
    return 0;
}

/* The settings with which the calibration was made: its heads were searched under them. A file
 * without "params" was written by hand and leaves the defaults. */
static int apply_settings(struct method_run *run, struct err *err)
{
    const struct method *m = run->method;
    const json_t *settings = json_object_get(run->calib_doc, "params");
    const char *key;
    char where[512];
    struct err why = {0};
    json_t *v;
    if (!settings)
        return 0;
    snprintf(where, sizeof where, "%s: params", run->calib);
    if (!json_is_object(settings))
        return err_set(err, ERR_INPUT, "%s: an object was expected", where);
    json_object_foreach((json_t *)(uintptr_t)settings, key, v)
        PASS_ON(apply_value(m->params.table, key, v, where, run->params, err));
    if (m->params.validate && m->params.validate(run->params, &why))
        return err_set(err, ERR_INPUT, "%s: %s", where, why.msg);
    return 0;
}

/* Lengths [*from, *below) for which an entry holds: "tokens": [16384, 49152], or [16384, null]
 * without an end; all lengths where it says nothing. */
static void entry_lengths(const json_t *e, int64_t *from, int64_t *below)
{
    const json_t *t = json_object_get(e, "tokens"), *end = json_array_get(t, 1);
    *from = t ? json_integer_value(json_array_get(t, 0)) : 0;
    *below = json_is_integer(end) ? json_integer_value(end) : INT64_MAX;
}

static int check_lengths(const json_t *e, const char *where, struct err *err)
{
    const json_t *t = json_object_get(e, "tokens"), *end = json_array_get(t, 1);
    int64_t from, below;
    if (!t)
        return 0;
    entry_lengths(e, &from, &below);
    if (json_array_size(t) != 2 || !json_is_integer(json_array_get(t, 0)) ||
        !(json_is_integer(end) || json_is_null(end)) || from < 0 || below <= from)
        return err_set(err, ERR_INPUT,
                       "%s: \"tokens\": two lengths were expected, as [16384, 49152], or null for "
                       "the second where there is no end",
                       where);
    return 0;
}

static const json_t *calib_entry(const struct method_run *run, int64_t layer, int64_t head,
                                 int64_t tokens)
{
    const json_t *heads = json_object_get(run->calib_doc, "heads");
    int64_t from, below;
    size_t i;
    json_t *e;
    json_array_foreach(heads, i, e)
    {
        entry_lengths(e, &from, &below);
        if (json_integer_value(json_object_get(e, "layer")) == layer &&
            json_integer_value(json_object_get(e, "head")) == head && tokens >= from &&
            tokens < below)
            return e;
    }
    return NULL;
}

/* A copy of the run's parameters with those of an entry, or NULL, of a calibration. */
static int params_with(const struct method_run *run, const json_t *entry, int64_t layer,
                       int64_t head, void **out, struct err *err)
{
    const struct method *m = run->method;
    int rc = 0;
    void *params = NULL;
    char where[512];
    TRY(method_params_copy(m, run->params, &params, err));
    if (entry) {
        snprintf(where, sizeof where, "%s: layer %lld head %lld", run->calib, (long long)layer,
                 (long long)head);
        TRY(apply_entry(run, entry, where, params, err));
    }
    struct err why = {0};
    if (m->params.validate && (rc = m->params.validate(params, &why)) != 0) {
        rc = entry ? err_set(err, ERR_INPUT, "%s: %s", where, why.msg)
                   : err_set(err, rc, "method %s: %s", m->name, why.msg);
        goto out;
    }
    *out = HAND_OVER(params);
out:
    method_params_free(m, params);
    return rc;
}

int method_params_for_head(const struct method_run *run, int layer, int head, int64_t tokens,
                           void **out, struct err *err)
{
    const json_t *entry = run->calib_doc ? calib_entry(run, layer, head, tokens) : NULL;
    return params_with(run, entry, layer, head, out, err);
}

static bool calib_sets(const struct method_run *run, const char *name)
{
    const json_t *heads = json_object_get(run->calib_doc, "heads");
    size_t i;
    json_t *e;
    json_array_foreach(heads, i, e)
    {
        if (json_object_get(e, name))
            return true;
    }
    return false;
}

static int calib_validate(struct method_run *run, struct err *err)
{
    const struct method *m = run->method;
    void *before = NULL;
    bool any = false, same;
    int rc = 0;
    TRY(method_params_copy(m, run->params, &before, err));
    TRY(m->params.validate(run->params, err));
    for (const struct opt *o = m->params.table; o->type != OPT_END; o++)
        any |= run->given[o - m->params.table];
    for (const struct opt *o = m->params.table; any && o->type != OPT_END; o++) {
        TRY(opt_same(o, before, run->params, &same, err));
        run->given[o - m->params.table] |= !same;
    }
out:
    method_params_free(m, before);
    return rc;
}

/* Is it a calibration of this method? */
static int check_document(const struct method_run *run, struct err *err)
{
    const char *where = run->calib, *method = NULL;
    PASS_ON(jget_str(run->calib_doc, "method", where, &method, err));
    if (strcmp(method, run->method->name) != 0)
        return err_set(err, ERR_INPUT, "%s: calibrates method %s, not %s", where, method,
                       run->method->name);
    if (!json_is_array(json_object_get(run->calib_doc, "heads")))
        return err_set(err, ERR_INPUT, "%s: \"heads\": an array was expected", where);
    return 0;
}

#define MOST_LENGTHS 64

/* Entries of one head hold for lengths of their own. seen: the last entry of every head so far,
 * before[i]: the one of the same head before entry i, or -1. */
static int check_place(const json_t *heads, int64_t i, const char *at, struct strmap *seen,
                       int64_t *before, struct err *err)
{
    const json_t *e = json_array_get(heads, (size_t)i);
    int64_t layer = 0, head = 0, from, below, lo, hi, n = 0;
    char key[48];
    PASS_ON(jget_int(e, "layer", at, &layer, err));
    PASS_ON(jget_int(e, "head", at, &head, err));
    if (layer < 0 || layer > INT32_MAX || head < 0 || head > INT32_MAX)
        return err_set(err, ERR_INPUT, "%s: layer %lld head %lld is not a head", at,
                       (long long)layer, (long long)head);
    PASS_ON(check_lengths(e, at, err));
    entry_lengths(e, &from, &below);
    snprintf(key, sizeof key, "%lld %lld", (long long)layer, (long long)head);
    before[i] = strmap_get(seen, key);
    for (int64_t k = before[i]; k >= 0; k = before[k]) {
        entry_lengths(json_array_get(heads, (size_t)k), &lo, &hi);
        if ((lo < below && from < hi) || ++n == MOST_LENGTHS)
            return err_set(err, ERR_INPUT, "%s: layer %lld head %lld occurs %s", at,
                           (long long)layer, (long long)head,
                           n == MOST_LENGTHS ? "more than 64 times" : "twice");
    }
    return strmap_put(seen, key, i, err);
}

static int calib_check(const struct method_run *run, struct err *err)
{
    const json_t *heads = json_object_get(run->calib_doc, "heads");
    OWN(strmap_free) struct strmap seen = {0};
    OWN(free_at) int64_t *before = NULL;
    size_t i;
    json_t *e;
    PASS_ON(
        mem_alloc(&before, (int64_t)json_array_size(heads), sizeof *before, "calibration", err));
    json_array_foreach(heads, i, e)
    {
        char at[512];
        void *params = NULL;
        snprintf(at, sizeof at, "%s: heads[%zu]", run->calib, i);
        PASS_ON(check_place(heads, (int64_t)i, at, &seen, before, err));
        PASS_ON(params_with(run, e, json_integer_value(json_object_get(e, "layer")),
                            json_integer_value(json_object_get(e, "head")), &params, err));
        method_params_free(run->method, params);
    }
    return 0;
}

/* What was searched on other data holds for that data alone. */
static int calib_is_of(const struct method_run *run, const char *key, const char *what,
                       const char *is, struct err *err)
{
    const char *of = NULL;
    int rc = jget_str_opt(run->calib_doc, key, run->calib, &of, err);
    if (rc || !of || strcmp(of, is) == 0)
        return rc;
    return err_set(err, ERR_INPUT,
                   "%s was calibrated with %s %s and is used with %s (calibrate it so, or "
                   "remove \"%s\" from the file and set its \"sum\" to null if that is meant)",
                   run->calib, what, of, is, key);
}

int method_calib_fits(const struct method_run *run, const char *model, const char *permute,
                      struct err *err)
{
    const struct method *m = run->method;
    const char *own = m->params.order ? m->params.order(run->params) : NULL;
    if (m->session.fits)
        PASS_ON(m->session.fits(run->params, model, permute, err));
    if (!run->calib_doc)
        return 0;
    PASS_ON(calib_is_of(run, "model", "model", model, err));
    return calib_is_of(run, "permute", "token order", own && strcmp(own, "none") ? own : permute,
                       err);
}

bool method_calib_lacks(const struct method_run *run, int layer, int head, int64_t tokens)
{
    return run->calib_doc && !calib_entry(run, layer, head, tokens);
}

/* Options of the search, "l1=0.05:l2=0.06". The run has those of the file (give). */
static int note_search(const struct method_run *run, struct record *rec, struct err *err)
{
    OWN(buf_free) struct buf b = {0};
    for (const struct opt *o = run->method->params.table; o->type != OPT_END; o++)
        /* A preset of other options has filled these in. */
        if (o->flags & OPT_IDENTITY_NOT && !(o->flags & OPT_CALIB_FIXED)) {
            buf_printf(&b, "%s%s=", b.len ? ":" : "", o->name);
            opt_value_text(o, run->params, &b);
        }
    PASS_ON(buf_check(&b, "note of the calibration", err));
    if (b.len)
        record_note(rec, "calib_search=%s", buf_str(&b));
    return 0;
}

int method_calib_note(const struct method_run *run, const char *trace_id, struct record *rec,
                      struct err *err)
{
    const json_t *traces = json_object_get(run->calib_doc, "traces");
    const char *per = NULL, *name = NULL;
    size_t i;
    json_t *t;
    bool own = false;
    if (!run->calib_doc)
        return 0;
    PASS_ON(jget_str_opt(run->calib_doc, "per", run->calib, &per, err));
    if (json_object_get(run->calib_doc, "params"))
        PASS_ON(note_search(run, rec, err));
    PASS_ON(jget_str_opt(run->calib_doc, "name", run->calib, &name, err));
    if (name && *name)
        record_note(rec, "calib_name=%s", name);
    record_note(rec, "calib_per=%s", per ? per : "head");
    if (!json_is_array(traces))
        return 0;
    json_array_foreach(traces, i, t)
    {
        const char *id = json_string_value(json_object_get(t, "id"));
        own |= id && strcmp(id, trace_id) == 0;
    }
    record_note(rec, "calib_inputs=%zu;calib_own=%d", json_array_size(traces), own);
    return 0;
}

static int calib_load(struct method_run *run, const char *path, char id[HASH_TEXT_MAX],
                      struct err *err)
{
    OWN(buf_free) struct buf file = {0};
    char text[HASH_TEXT_MAX];
    PASS_ON(mem_zalloc(&run->given, opt_count(run->method->params.table), sizeof *run->given,
                       "parameters given", err));
    PASS_ON(mem_dup(&run->calib, path, path, err));
    PASS_ON(buf_read_file(&file, path, (size_t)256 << 20, err));
    PASS_ON(seal_json(buf_str(&file), file.len, path, &run->calib_doc, err));
    hash_text(hash_bytes(buf_str(&file), file.len), text);
    snprintf(id, HASH_TEXT_MAX, "%s", strchr(text, ':') + 1);
    PASS_ON(check_document(run, err));
    return apply_settings(run, err);
}

#define MOST_KEYS 64
#define MOST_RUNS 100000
#define MOST_VALUES 10000

/* ---- the parts of a method text -------------------------------------------------------------- */

/* One "key=values" of the text. */
struct axis {
    const struct opt *opt;
    char *text; /* "key=values", owned; values points into it */
    char *values;
    struct str_list items;
};

struct spec {
    const struct method *method;
    const char *way_out; /* of a text that may name no file and no command; else NULL */
    char who[96];
    struct axis axes[MOST_KEYS];
    int n_axes;
    char *calib;                   /* owned path or NULL */
    struct budget_target *targets; /* owned */
    int64_t n_targets;
};

static void spec_free(struct spec *s)
{
    for (int i = 0; i < s->n_axes; i++) {
        free(s->axes[i].text);
        str_list_free(&s->axes[i].items);
    }
    free(s->calib);
    free(s->targets);
}

/* The i-th of n values between a and b, as text. */
static void range_value(const struct opt *o, double a, double b, bool is_log, int64_t i, int64_t n,
                        const char *suffix, struct str_list *items)
{
    char text[64];
    double t = n > 1 ? (double)i / (double)(n - 1) : 0;
    double x = i == 0 ? a : i == n - 1 ? b : is_log ? a * pow(b / a, t) : a + (b - a) * t;
    bool integer = o->type == OPT_INT || (o->type == OPT_SHARE && !suffix[0]);
    if (integer)
        snprintf(text, sizeof text, "%.0f%s", round(x), suffix);
    else
        snprintf(text, sizeof text, "%.*g%s", i == 0 || i == n - 1 ? 17 : 12, x, suffix);
    /* Rounding may repeat a value; neighbours are equal then. */
    if (items->n == 0 || strcmp(items->items[items->n - 1], text) != 0)
        str_list_add(items, text);
}

/* "0.1", "8%" between s and end. */
static bool range_end(const char *s, const char *end, double *x, bool *percent)
{
    char text[64];
    const char *stop;
    if (snprintf(text, sizeof text, "%.*s", (int)(end - s), s) >= (int)sizeof text ||
        !num_read(text, x, &stop))
        return false;
    *percent = *stop == '%';
    return !stop[*percent];
}

/* Expand "a..b/logN" or "a..b/linN" into items; *is_range = false when the text is none. */
static int expand_range(const struct spec *s, const struct opt *o, const char *text,
                        struct str_list *items, bool *is_range, struct err *err)
{
    const char *dots = strstr(text, ".."), *slash = strchr(text, '/');
    double a, b;
    bool pa, pb, is_log;
    int64_t n = 0;
    char *stop = NULL;
    *is_range = dots && (o->type == OPT_INT || o->type == OPT_NUM || o->type == OPT_SHARE);
    if (!*is_range)
        return 0;
    is_log = slash && strncmp(slash, "/log", 4) == 0;
    if (is_log || (slash && strncmp(slash, "/lin", 4) == 0))
        n = strtoll(slash + 4, &stop, 10);
    if (!stop || stop == slash + 4 || *stop || dots > slash || !range_end(text, dots, &a, &pa) ||
        !range_end(dots + 2, slash, &b, &pb) || pa != pb)
        return err_set(err, ERR_USAGE,
                       "%s: %s: '%s' is not a range; write a..b/linN or a..b/logN, N values",
                       s->who, o->name, text);
    if (n < 1 || n > MOST_VALUES || (n == 1 && a != b))
        return err_set(err, ERR_USAGE, "%s: %s: '%s': the number of values must be 2..%d", s->who,
                       o->name, text, MOST_VALUES);
    if (is_log && !(a > 0 && b > 0))
        return err_set(err, ERR_USAGE, "%s: %s: '%s': both ends of a /log range must be positive",
                       s->who, o->name, text);
    for (int64_t i = 0; i < n; i++)
        range_value(o, a, b, is_log, i, n, pa ? "%" : "", items);
    return 0;
}

static int expand_values(const struct spec *s, struct axis *a, struct err *err)
{
    for (char *p = a->values;;) {
        bool is_range;
        char *comma = strchr(p, ',');
        if (comma)
            *comma = '\0';
        PASS_ON(expand_range(s, a->opt, p, &a->items, &is_range, err));
        if (!is_range)
            str_list_add(&a->items, p);
        if (!comma)
            break;
        p = comma + 1;
    }
    if (a->items.failed)
        return err_set(err, ERR_NOMEM, "%s: out of memory", s->who);
    return 0;
}

/* Does "calib" name a calibration file, or is it a parameter of the method's own? */
static bool is_calib(const struct method *m, const char *key)
{
    return strcmp(key, "calib") == 0 && !opt_find(m->params.table, key);
}

/* Data starts nothing and leads to no other file. */
static int check_rights(const struct spec *s, const char *key, const char *what, struct err *err)
{
    if (!s->way_out)
        return 0;
    return err_set(err, ERR_USAGE, "%s: %s names a %s, which text from a file may not%s", s->who,
                   key, what, s->way_out);
}

static int add_calib(struct spec *s, const char *path, struct err *err)
{
    if (!s->method->search.calibrate)
        return err_set(err, ERR_USAGE, "%s: calib: this method has no per-head parameters", s->who);
    if (s->calib)
        return err_set(err, ERR_USAGE, "%s: calib is given twice", s->who);
    if (!path || !path[0])
        return err_set(err, ERR_USAGE, "%s: calib needs a file: calib=FILE", s->who);
    return mem_dup(&s->calib, path, s->who, err);
}

/* One "key=values" or, for a flag, "key". */
static int add_axis(struct spec *s, const char *part, struct err *err)
{
    struct axis *a = &s->axes[s->n_axes];
    if (s->n_axes == MOST_KEYS)
        return err_set(err, ERR_USAGE, "%s: more than %d parameters", s->who, MOST_KEYS);
    *a = (struct axis){.text = strdup(part)};
    if (!a->text)
        return err_set(err, ERR_NOMEM, "%s: out of memory", s->who);
    s->n_axes++;
    char *eq = strchr(a->text, '=');
    if (eq)
        *eq = '\0';
    if (is_calib(s->method, a->text)) {
        int rc = check_rights(s, "calib", "file", err);
        rc = rc ? rc : add_calib(s, eq ? eq + 1 : NULL, err);
        free(a->text);
        s->n_axes--;
        return rc;
    }
    a->opt = opt_find_or_fail(s->method->params.table, s->who, "", a->text, err);
    if (!a->opt)
        return ERR_USAGE;
    if (a->opt->flags & OPT_OUTSIDE && check_rights(s, a->text, a->opt->unit, err))
        return ERR_USAGE;
    for (int i = 0; i < s->n_axes - 1; i++)
        if (s->axes[i].opt == a->opt)
            return err_set(err, ERR_USAGE, "%s: %s is given twice", s->who, a->text);
    static char yes[] = "1";
    if (!eq && a->opt->type != OPT_BOOL)
        return err_set(err, ERR_USAGE, "%s: '%s' needs a value: %s=VALUE", s->who, a->text,
                       a->text);
    a->values = eq ? eq + 1 : yes;
    return expand_values(s, a, err);
}

static int spec_parse(struct spec *s, const struct method *const *methods, const char *text,
                      struct err *err)
{
    const char *target = budget_find(text);
    char *save = NULL;
    OWN(free_at) char *copy = target ? strndup(text, (size_t)(target - text)) : strdup(text);
    if (!copy)
        return err_set(err, ERR_NOMEM, "%s: out of memory", text);
    char *rest = strchr(copy, ':');
    if (rest)
        *rest++ = '\0';
    if (strchr(copy, '@'))
        return err_set(
            err, ERR_USAGE,
            "'%s': after '@' a target was expected, such as @density_elem=0.3, @cra_p1>=0.95 or "
            "@err_l1_rel<=0.05",
            copy);
    s->method = method_find(methods, copy, err);
    if (!s->method)
        return ERR_USAGE;
    snprintf(s->who, sizeof s->who, "method %s", s->method->name);
    for (char *part = rest ? strtok_r(rest, ":", &save) : NULL; part;
         part = strtok_r(NULL, ":", &save))
        PASS_ON(add_axis(s, part, err));
    if (target)
        PASS_ON(budget_parse(target + 1, s->who, &s->targets, &s->n_targets, err));
    return 0;
}

/* ---- runs ------------------------------------------------------------------------------------ */

static void run_free(struct method_run *r)
{
    if (r->session)
        r->method->session.close(r->session);
    if (r->method && r->params)
        opt_free(r->method->params.table, r->params);
    free(r->params);
    free(r->canonical);
    free(r->calib);
    free(r->given);
    free(r->target);
    json_decref(r->calib_doc);
    memset(r, 0, sizeof *r);
}

void method_runs_free(struct method_run *runs, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        run_free(&runs[i]);
    free(runs);
}

const char *method_run_colon(const struct method_run *run)
{
    return run->canonical[0] && run->canonical[0] != '@' ? ":" : "";
}

int method_run_open(struct method_run *run, struct err *err)
{
    if (!run->method->session.open || run->session)
        return 0;
    int rc = run->method->session.open(run->params, &run->session, err);
    return rc ? err_prefix(err, "method %s", run->method->name) : 0;
}

/* Set one parameter of the text. Beside a calibration it wins over the file where it says something
 * else. What counts in the search alone, or stands in for values that the heads of the file have,
 * is refused there: it would be a setting that was not applied. */
static int give(const struct spec *s, const struct opt *o, const char *value,
                struct method_run *run, struct err *err)
{
    const struct opt *table = s->method->params.table;
    OWN(buf_free) struct buf of_file = {0}, now = {0};
    opt_value_text(o, run->params, &of_file);
    PASS_ON(opt_set(table, run->params, s->who, o->name, value, err));
    if (!run->calib)
        return 0;
    opt_value_text(o, run->params, &now);
    PASS_ON(buf_check(now.failed ? &now : &of_file, o->name, err));
    bool differs = strcmp(buf_str(&of_file), buf_str(&now)) != 0;
    if (differs && o->flags & (OPT_IDENTITY_NOT | OPT_CALIB_FIXED))
        return err_set(
            err, ERR_USAGE,
            "%s: %s=%s would change nothing beside calib=%s, which was made with %s=%s and has "
            "values per head: leave it out, or calibrate again with it",
            s->who, o->name, buf_str(&now), run->calib, o->name, buf_str(&of_file));
    run->given[o - table] = differs || calib_sets(run, o->name);
    return 0;
}

static void put_param(const struct opt *o, const void *params, struct buf *b)
{
    buf_printf(b, "%s%s=", b->len ? ":" : "", o->name);
    size_t start = b->len;
    opt_value_text(o, params, b);
    /* ':' separates parameters: the order voxel:2x4x4 of a file is written as voxel-2x4x4. */
    for (size_t i = start; i < b->len; i++)
        if (b->data[i] == ':')
            b->data[i] = '-';
}

/* Left to right, what stands later wins: the settings that hold for all heads, the calibration, and
 * what was given beside it. So calib=F and calib=F:tau=T differ, even where T is the default. */
static int canonical_text(const struct method_run *run, const char *calib_id, struct buf *b,
                          struct err *err)
{
    const struct opt *table = run->method->params.table;
    if (!run->calib)
        return opt_canonical(table, run->params, b, err);
    for (const struct opt *o = table; o->type != OPT_END; o++) {
        bool is_default;
        PASS_ON(opt_is_default(o, run->params, &is_default, err));
        if (!is_default && !run->given[o - table] && !(o->flags & OPT_IDENTITY_NOT) &&
            !calib_sets(run, o->name))
            put_param(o, run->params, b);
    }
    buf_printf(b, "%scalib=%s", b->len ? ":" : "", calib_id);
    for (const struct opt *o = table; o->type != OPT_END; o++)
        if (run->given[o - table])
            put_param(o, run->params, b);
    return buf_check(b, "canonical parameters", err);
}

/* Scopes and the method's own check. */
static int check_params(const struct spec *s, struct method_run *run, struct err *err)
{
    const struct method *m = run->method;
    int rc = param_scopes_check(m, run->params, err);
    if (!rc && m->params.validate)
        rc = run->calib ? calib_validate(run, err) : m->params.validate(run->params, err);
    if (rc && run->calib)
        err_prefix(err, "with the settings of %s", run->calib);
    return rc ? err_prefix(err, "%s", s->who) : 0;
}

/* Give the run a target, and its text to the canonical one. */
static int bind_target(const struct spec *s, const struct budget_target *t, struct method_run *run,
                       struct buf *canonical, struct err *err)
{
    const struct opt *table = s->method->params.table;
    OWN(free_at) bool *given = NULL;
    PASS_ON(mem_zalloc(&given, opt_count(table), sizeof *given, "parameters given", err));
    for (int k = 0; k < s->n_axes; k++)
        given[s->axes[k].opt - table] = true;
    PASS_ON(mem_alloc(&run->target, 1, sizeof *run->target, "target", err));
    *run->target = *t;
    PASS_ON(budget_bind(run->target, s->method, run->params, given, err));
    budget_text(t, canonical);
    return buf_check(canonical, "canonical parameters", err);
}

/* The run with item pick[k] of every axis k, and the target unless NULL. */
static int make_run(const struct spec *s, const int64_t *pick, const struct budget_target *target,
                    struct method_run *run, struct err *err)
{
    const struct method *m = s->method;
    struct buf canonical = {0};
    char calib_id[HASH_TEXT_MAX] = "";
    int rc = 0;
    *run = (struct method_run){.method = m};
    TRY(mem_zalloc(&run->params, 1, m->params.size, "method parameters", err));
    TRY(opt_defaults(m->params.table, run->params, err));
    if (s->calib)
        TRY(calib_load(run, s->calib, calib_id, err));
    for (int k = 0; k < s->n_axes; k++)
        TRY(give(s, s->axes[k].opt, s->axes[k].items.items[pick[k]], run, err));
    TRY(opt_check_required(m->params.table, run->params, s->who, "", err));
    if (m->params.identify && (rc = m->params.identify(run->params, err)) != 0) {
        err_prefix(err, "%s", s->who);
        goto out;
    }
    TRY(canonical_text(run, calib_id, &canonical, err));
    if (target)
        TRY(bind_target(s, target, run, &canonical, err));
    TRY(check_params(s, run, err));
    if (s->calib)
        TRY(calib_check(run, err));
    if (!(run->canonical = strdup(buf_str(&canonical))))
        rc = err_set(err, ERR_NOMEM, "%s: out of memory", s->who);
out:
    buf_free(&canonical);
    if (rc)
        run_free(run);
    return rc;
}

/* Runs, and a map of their "method:canonical" to find repetitions in a large sweep. */
struct runs {
    struct method_run *list;
    int64_t n, cap;
    struct strmap known;
    struct buf key;
};

static int run_key(struct runs *all, const struct method_run *r, struct err *err)
{
    buf_reset(&all->key);
    buf_printf(&all->key, "%s:%s", r->method->name, r->canonical);
    return buf_check(&all->key, r->method->name, err);
}

static int know_runs(struct runs *all, struct err *err)
{
    for (int64_t i = 0; i < all->n; i++) {
        PASS_ON(run_key(all, all->list + i, err));
        PASS_ON(strmap_put(&all->known, buf_str(&all->key), i, err));
    }
    return 0;
}

/* Append r, or release it when it is known. */
static int keep_run(struct method_run *r, struct runs *all, struct err *err)
{
    int rc = 0;
    TRY(run_key(all, r, err));
    if (strmap_get(&all->known, buf_str(&all->key)) >= 0) {
        log_debug("method %s: %s is given twice, kept once", r->method->name, r->canonical);
        goto out;
    }
    TRY(mem_grow(&all->list, &all->cap, all->n + 1, sizeof *r, "runs", err));
    TRY(strmap_put(&all->known, buf_str(&all->key), all->n, err));
    all->list[all->n++] = *r;
    return 0;
out:
    run_free(r);
    return rc;
}

/* Count up the mixed-radix number `pick`, last axis fastest; false after the last. */
static bool next_pick(const struct spec *s, int64_t *pick)
{
    for (int k = s->n_axes - 1; k >= 0; k--) {
        if (++pick[k] < s->axes[k].items.n)
            return true;
        pick[k] = 0;
    }
    return false;
}

static int append_runs(const struct spec *s, struct runs *all, struct err *err)
{
    int64_t total = s->n_targets ? s->n_targets : 1, pick[MOST_KEYS] = {0}, t = 0;
    for (int k = 0; k < s->n_axes; k++) {
        if (!mul_ok(total, s->axes[k].items.n, &total) || total > MOST_RUNS)
            return err_set(err, ERR_USAGE, "%s: the sweep has more than %d runs", s->who,
                           MOST_RUNS);
    }
    int rc = 0;
    while (!rc) {
        struct method_run r;
        rc = make_run(s, pick, s->targets ? s->targets + t : NULL, &r, err);
        rc = rc ? rc : keep_run(&r, all, err);
        if (++t < s->n_targets)
            continue;
        t = 0;
        if (!next_pick(s, pick))
            break;
    }
    return rc;
}

static int parse_one(const struct method *const *methods, const char *text, struct runs *all,
                     struct err *err)
{
    OWN(spec_free) struct spec s = {0};
    PASS_ON(spec_parse(&s, methods, text, err));
    return append_runs(&s, all, err);
}

int method_runs_parse_all(const struct method *const *methods, char *const *texts, int64_t n_texts,
                          struct method_run **runs, int64_t *n, struct err *err)
{
    struct runs all = {.list = *runs, .n = *n, .cap = *n};
    int rc = know_runs(&all, err);
    for (int64_t i = 0; !rc && i < n_texts; i++)
        rc = parse_one(methods, texts[i], &all, err);
    *runs = all.list;
    *n = all.n;
    strmap_free(&all.known);
    buf_free(&all.key);
    return rc;
}

int method_runs_parse(const struct method *const *methods, const char *text,
                      struct method_run **runs, int64_t *n, struct err *err)
{
    char *one = (char *)(uintptr_t)text;
    return method_runs_parse_all(methods, &one, 1, runs, n, err);
}

int method_setting_parse(const struct method *const *methods, const char *text, const char *way_out,
                         struct method_run **run, struct err *err)
{
    OWN(spec_free) struct spec s = {.way_out = way_out};
    const int64_t pick[MOST_KEYS] = {0};
    int rc = 0;
    *run = NULL;
    PASS_ON(spec_parse(&s, methods, text, err));
    bool sweep = false;
    for (int k = 0; k < s.n_axes; k++)
        sweep |= s.axes[k].items.n != 1;
    if (sweep || s.n_targets)
        return err_set(err, ERR_USAGE, "'%s' is a %s, where one setting was expected", text,
                       sweep ? "sweep" : "target");
    PASS_ON(mem_alloc(run, 1, sizeof **run, "setting", err));
    if ((rc = make_run(&s, pick, NULL, *run, err)) != 0) {
        free(*run);
        *run = NULL;
    }
    return rc;
}

int method_run_takes(const struct method_run *run, struct head_in *in, struct err *err)
{
    const struct method *m = run->method;
    const char *order = m->params.order ? m->params.order(run->params) : NULL;
    struct method_ctx ctx = {.session = run->session};
    if (order && strcmp(order, "none") != 0)
        in->moved = order;
    int rc = m->session.takes ? m->session.takes(&ctx, run->params, in, err) : 0;
    return rc == METHOD_SKIP ? err_set(err, ERR_INPUT, "%s", ctx.skip) : rc;
}
