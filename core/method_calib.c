/*
 * method_calib.c - calibration files: parameters per head (method.h).
 */
#include "core/fileio.h"
#include "core/method_impl.h"

#include "core/hash.h"
#include "core/json.h"
#include "core/mem.h"
#include "core/sealed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    struct buf text = {0};
    struct err why = {0};
    const struct opt *o = opt_find(table, key);
    int rc = 0;
    if (o && json_is_null(v) && !o->def && !(o->flags & OPT_REQUIRED))
        buf_puts(&text, o->type == OPT_STR ? "" : "unset");
    else
        rc = scalar_text(v, where, key, &text, err);
    if (rc == 0 && opt_set(table, params, where, key, buf_str(&text), &why))
        rc = err_set(err, ERR_INPUT, "%s", why.msg);
    buf_free(&text);
    return rc;
}

/* Apply an entry of "heads", then once more what was given beside calib=: a value that loses is
 * checked all the same. */
static int apply_entry(const struct method_run *run, const json_t *entry, const char *where,
                       void *params, struct err *err)
{
    const struct opt *table = run->method->params.table;
    struct buf text = {0};
    const char *key;
    json_t *v;
    int rc = 0;
    json_object_foreach((json_t *)(uintptr_t)entry, key, v)
    {
        const struct opt *o = opt_find(table, key);
        if (is_place(key))
            continue;
        TRY(apply_value(table, key, v, where, params, err));
        if (!run->given[o - table])
            continue;
        buf_reset(&text);
        opt_value_text(o, run->params, &text);
        TRY(buf_check(&text, where, err));
        TRY(opt_set_field(o, params, key, buf_str(&text), false, err));
    }
out:
    buf_free(&text);
    return rc;
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
    int rc = 0;

    if (!settings)
        return 0;
    snprintf(where, sizeof where, "%s: params", run->calib);
    if (!json_is_object(settings))
        return err_set(err, ERR_INPUT, "%s: an object was expected", where);
    json_object_foreach((json_t *)(uintptr_t)settings, key, v)
        TRY(apply_value(m->params.table, key, v, where, run->params, err));
    if (m->params.validate && m->params.validate(run->params, &why))
        rc = err_set(err, ERR_INPUT, "%s: %s", where, why.msg);
out:
    return rc;
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

static bool entry_is_of(const json_t *e, int64_t layer, int64_t head)
{
    return json_integer_value(json_object_get(e, "layer")) == layer &&
           json_integer_value(json_object_get(e, "head")) == head;
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
        if (entry_is_of(e, layer, head) && tokens >= from && tokens < below)
            return e;
    }
    return NULL;
}

/* Is an entry before number `at` of the same head for some of the same lengths? */
static bool occurs_before(const json_t *heads, size_t at, int64_t layer, int64_t head)
{
    int64_t from, below, lo, hi;
    size_t i;
    json_t *e;
    entry_lengths(json_array_get(heads, at), &from, &below);
    json_array_foreach(heads, i, e)
    {
        if (i == at)
            break;
        entry_lengths(e, &lo, &hi);
        if (entry_is_of(e, layer, head) && lo < below && from < hi)
            return true;
    }
    return false;
}

int method_params_for_head(const struct method_run *run, int layer, int head, int64_t tokens,
                           void **out, struct err *err)
{
    const struct method *m = run->method;
    int rc = 0;
    void *params = NULL;
    char where[512];
    const json_t *entry = run->calib_doc ? calib_entry(run, layer, head, tokens) : NULL;

    TRY(method_params_copy(m, run->params, &params, err));
    if (entry) {
        snprintf(where, sizeof where, "%s: layer %d head %d", run->calib, layer, head);
        TRY(apply_entry(run, entry, where, params, err));
    }
    struct err why = {0};
    if (m->params.validate && (rc = m->params.validate(params, &why)) != 0) {
        rc = entry ? err_set(err, ERR_INPUT, "%s: %s", where, why.msg)
                   : err_set(err, rc, "method %s: %s", m->name, why.msg);
        goto out;
    }
    *out = params;
    params = NULL;
out:
    method_params_free(m, params);
    return rc;
}

bool method_calib_sets(const struct method_run *run, const char *name)
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

int method_calib_validate(struct method_run *run, struct err *err)
{
    const struct method *m = run->method;
    void *before = NULL;
    struct buf old = {0}, new = {0};
    bool any = false;
    int rc = 0;

    TRY(method_params_copy(m, run->params, &before, err));
    TRY(m->params.validate(run->params, err));
    for (const struct opt *o = m->params.table; o->type != OPT_END; o++)
        any |= run->given[o - m->params.table];
    for (const struct opt *o = m->params.table; any && o->type != OPT_END; o++) {
        buf_reset(&old);
        buf_reset(&new);
        opt_value_text(o, before, &old);
        opt_value_text(o, run->params, &new);
        TRY(buf_check(old.failed ? &old : &new, o->name, err));
        run->given[o - m->params.table] |= strcmp(buf_str(&old), buf_str(&new)) != 0;
    }
out:
    method_params_free(m, before);
    buf_free(&old);
    buf_free(&new);
    return rc;
}

/* Is it a calibration of this method? */
static int check_document(const struct method_run *run, struct err *err)
{
    const char *where = run->calib, *method = NULL;
    int rc = jget_str(run->calib_doc, "method", where, &method, err);
    if (rc)
        return rc;
    if (strcmp(method, run->method->name) != 0)
        return err_set(err, ERR_INPUT, "%s: calibrates method %s, not %s", where, method,
                       run->method->name);
    if (!json_is_array(json_object_get(run->calib_doc, "heads")))
        return err_set(err, ERR_INPUT, "%s: \"heads\": an array was expected", where);
    return 0;
}

int method_calib_check(const struct method_run *run, struct err *err)
{
    const json_t *heads = json_object_get(run->calib_doc, "heads");
    size_t i;
    json_t *e;
    json_array_foreach(heads, i, e)
    {
        char at[512];
        int64_t layer = 0, head = 0, from, below;
        void *params = NULL;
        int rc;
        snprintf(at, sizeof at, "%s: heads[%zu]", run->calib, i);
        if ((rc = jget_int(e, "layer", at, &layer, err)) ||
            (rc = jget_int(e, "head", at, &head, err)))
            return rc;
        if (layer < 0 || layer > INT32_MAX || head < 0 || head > INT32_MAX)
            return err_set(err, ERR_INPUT, "%s: layer %lld head %lld is not a head", at,
                           (long long)layer, (long long)head);
        if ((rc = check_lengths(e, at, err)))
            return rc;
        if (occurs_before(heads, i, layer, head))
            return err_set(err, ERR_INPUT, "%s: layer %lld head %lld occurs twice", at,
                           (long long)layer, (long long)head);
        entry_lengths(e, &from, &below);
        if ((rc = method_params_for_head(run, (int)layer, (int)head, from, &params, err)))
            return rc;
        opt_free(run->method->params.table, params);
        free(params);
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
    int rc = 0;
    if (m->session.fits)
        TRY(m->session.fits(run->params, model, permute, err));
    if (!run->calib_doc)
        return 0;
    TRY(calib_is_of(run, "model", "model", model, err));
    TRY(calib_is_of(run, "permute", "token order", own && strcmp(own, "none") ? own : permute,
                    err));
out:
    return rc;
}

bool method_calib_lacks(const struct method_run *run, int layer, int head, int64_t tokens)
{
    return run->calib_doc && !calib_entry(run, layer, head, tokens);
}

/* Options of the search, "l1=0.05:l2=0.06". The run has those of the file (method.c, give). */
static int note_search(const struct method_run *run, struct record *rec, struct err *err)
{
    struct buf b = {0};
    for (const struct opt *o = run->method->params.table; o->type != OPT_END; o++)
        /* A preset of other options has filled these in. */
        if (o->flags & OPT_IDENTITY_NOT && !(o->flags & OPT_CALIB_FIXED)) {
            buf_printf(&b, "%s%s=", b.len ? ":" : "", o->name);
            opt_value_text(o, run->params, &b);
        }
    int rc = buf_check(&b, "note of the calibration", err);
    if (!rc && b.len)
        record_note(rec, "calib_search=%s", buf_str(&b));
    buf_free(&b);
    return rc;
}

int method_calib_note(const struct method_run *run, const char *trace_id, struct record *rec,
                      struct err *err)
{
    const json_t *traces = json_object_get(run->calib_doc, "traces");
    const char *per = NULL, *name = NULL;
    size_t i;
    json_t *t;
    bool own = false;
    int rc = 0;

    if (!run->calib_doc)
        return 0;
    TRY(jget_str_opt(run->calib_doc, "per", run->calib, &per, err));
    if (json_object_get(run->calib_doc, "params"))
        TRY(note_search(run, rec, err));
    TRY(jget_str_opt(run->calib_doc, "name", run->calib, &name, err));
    if (name && *name)
        record_note(rec, "calib_name=%s", name);
    record_note(rec, "calib_per=%s", per ? per : "head");
    if (!json_is_array(traces))
        goto out;
    json_array_foreach(traces, i, t)
    {
        const char *id = json_string_value(json_object_get(t, "id"));
        own |= id && strcmp(id, trace_id) == 0;
    }
    record_note(rec, "calib_inputs=%zu;calib_own=%d", json_array_size(traces), own);
out:
    return rc;
}

int method_calib_load(struct method_run *run, const char *path, char id[HASH_TEXT_MAX],
                      struct err *err)
{
    int rc = 0;
    struct buf file = {0};
    char text[HASH_TEXT_MAX];
    int64_t n = 0;

    while (run->method->params.table[n].type != OPT_END)
        n++;
    TRY(mem_zalloc(&run->given, n, sizeof *run->given, "parameters given", err));
    if (!(run->calib = strdup(path)))
        FAIL(err, ERR_NOMEM, "%s: out of memory", path);
    TRY(buf_read_file(&file, path, (size_t)256 << 20, err));
    TRY(seal_json(buf_str(&file), file.len, path, &run->calib_doc, err));
    hash_text(hash_bytes(buf_str(&file), file.len), text);
    snprintf(id, HASH_TEXT_MAX, "%s", strchr(text, ':') + 1);
    TRY(check_document(run, err));
    TRY(apply_settings(run, err));
out:
    buf_free(&file);
    return rc;
}
