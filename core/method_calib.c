/*
 * method_calib.c - calibration files: parameters per head (method.h).
 */
#include "core/method_impl.h"

#include "core/hash.h"
#include "core/json.h"
#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_place(const char *key)
{
    return strcmp(key, "layer") == 0 || strcmp(key, "head") == 0;
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

/* Apply all parameters of one entry of "heads". Errors are about the file: ERR_INPUT. */
static int apply_entry(const struct method_run *run, const json_t *entry, const char *where,
                       void *params, struct err *err)
{
    const char *key;
    json_t     *v;
    json_object_foreach((json_t *)(uintptr_t)entry, key, v) {
        struct buf text = {0};
        struct err why = {0};
        if (is_place(key))
            continue;
        int rc = scalar_text(v, where, key, &text, err);
        if (rc == 0 && opt_set(run->method->params, params, where, key, buf_str(&text), &why))
            rc = err_set(err, ERR_INPUT, "%s", why.msg);
        buf_free(&text);
        if (rc)
            return rc;
    }
    return 0;
}

static const json_t *calib_entry(const struct method_run *run, int64_t layer, int64_t head)
{
    const json_t *heads = json_object_get(run->calib_doc, "heads");
    size_t        i;
    json_t       *e;
    json_array_foreach(heads, i, e) {
        if (json_integer_value(json_object_get(e, "layer")) == layer &&
            json_integer_value(json_object_get(e, "head")) == head)
            return e;
    }
    return NULL;
}

int method_params_for_head(const struct method_run *run, int layer, int head, void **out,
                           struct err *err)
{
    const struct method *m = run->method;
    int                  rc = 0;
    void                *params = NULL;
    char                 where[512];
    const json_t        *entry = run->calib_doc ? calib_entry(run, layer, head) : NULL;

    TRY(mem_zalloc(&params, 1, m->params_size, "method parameters", err));
    TRY(opt_copy(m->params, run->params, params, err));
    if (entry) {
        snprintf(where, sizeof where, "%s: layer %d head %d", run->calib, layer, head);
        TRY(apply_entry(run, entry, where, params, err));
    }
    struct err why = {0};
    if (m->validate && (rc = m->validate(params, &why)) != 0) {
        rc = entry ? err_set(err, ERR_INPUT, "%s: %s", where, why.msg)
                   : err_set(err, rc, "method %s: %s", m->name, why.msg);
        goto out;
    }
    *out = params;
    params = NULL;
out:
    if (params)
        opt_free(m->params, params);
    free(params);
    return rc;
}

int method_calib_check(const struct method_run *run, struct err *err)
{
    const char *where = run->calib, *method = NULL;
    size_t      i;
    json_t     *e, *heads = json_object_get(run->calib_doc, "heads");
    int         rc = jget_str(run->calib_doc, "method", where, &method, err);
    if (rc)
        return rc;
    if (strcmp(method, run->method->name) != 0)
        return err_set(err, ERR_INPUT, "%s: calibrates method %s, not %s", where, method,
                       run->method->name);
    if (!json_is_array(heads))
        return err_set(err, ERR_INPUT, "%s: \"heads\": an array was expected", where);
    json_array_foreach(heads, i, e) {
        char    at[512];
        int64_t layer = 0, head = 0;
        void   *params = NULL;
        snprintf(at, sizeof at, "%s: heads[%zu]", where, i);
        if ((rc = jget_int(e, "layer", at, &layer, err)) ||
            (rc = jget_int(e, "head", at, &head, err)))
            return rc;
        if (layer < 0 || layer > INT32_MAX || head < 0 || head > INT32_MAX)
            return err_set(err, ERR_INPUT, "%s: layer %lld head %lld is not a head", at,
                           (long long)layer, (long long)head);
        if (calib_entry(run, layer, head) != e)
            return err_set(err, ERR_INPUT, "%s: layer %lld head %lld occurs twice", at,
                           (long long)layer, (long long)head);
        if ((rc = method_params_for_head(run, (int)layer, (int)head, &params, err)))
            return rc;
        opt_free(run->method->params, params);
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
    return err_set(
        err, ERR_INPUT,
        "%s was calibrated with %s %s, this trace is replayed with %s (calibrate it so, or "
        "remove \"%s\" from the file if that is meant)",
        run->calib, what, of, is, key);
}

int method_calib_fits(const struct method_run *run, const char *model, const char *permute,
                      struct err *err)
{
    int rc = 0;
    if (!run->calib_doc)
        return 0;
    TRY(calib_is_of(run, "model", "model", model, err));
    TRY(calib_is_of(run, "permute", "token order", permute, err));
out:
    return rc;
}

bool method_calib_lacks(const struct method_run *run, int layer, int head)
{
    return run->calib_doc && !calib_entry(run, layer, head);
}

int method_calib_load(struct method_run *run, struct buf *canonical, struct err *err)
{
    int        rc = 0;
    struct buf file = {0};
    char       id[HASH_TEXT_MAX];

    TRY(buf_read_file(&file, run->calib, (size_t)256 << 20, err));
    TRY(json_read_text(buf_str(&file), file.len, run->calib, &run->calib_doc, err));
    hash_text(hash_bytes(buf_str(&file), file.len), id);
    buf_printf(canonical, "%scalib=%s", canonical->len ? ":" : "", strchr(id, ':') + 1);
    rc = buf_check(canonical, "canonical parameters", err);
out:
    buf_free(&file);
    return rc;
}
