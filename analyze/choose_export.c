/*
 * choose_export.c - entries of a plan in the files of other programs.
 */
#include "analyze/choose.h"

#include "analyze/params.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a format holds: one method, and the parameters that it knows. */
struct form {
    const char *format, *method;
    const char *params; /* separated by spaces */
};

static const struct form forms[] = {
    {"minference", "minference", "v s pattern init local top"},
    {"flexprefill", "flexprefill", "gamma tau min_budget max_budget"},
    {"spargeattn", "spargeattn", "theta tau topk pv select"},
    {"sale", "sale", "tau"},
};

static bool in_words(const char *list, const char *name, size_t len)
{
    for (const char *p = list; *p;) {
        size_t n = strcspn(p, " ");
        if (n == len && strncmp(p, name, n) == 0)
            return true;
        p += n + (p[n] == ' ');
    }
    return false;
}

/* NULL, or the first parameter that the format has no place for. */
static const char *foreign(const struct form *f, const char *params, size_t *len)
{
    const char *p = params;
    for (const char *word; (word = params_next(&p, len));) {
        *len = strcspn(word, "=");
        if (!in_words(f->params, word, *len))
            return word;
    }
    return NULL;
}

static double number(const char *params, const char *name, double otherwise)
{
    const char *v = params_value(params, name);
    return v ? strtod(v, NULL) : otherwise;
}

/* MInference's table: [pattern, v, s, score]. */
static void put_minference(const char *params, struct jw *w)
{
    const char *pattern = params_value(params, "pattern");
    bool shape = pattern && strncmp(pattern, "ashape", 6) == 0;
    bool block = pattern && strncmp(pattern, "block", 5) == 0;
    jw_arr(w);
    jw_str(w, shape ? "stream_llm" : block ? "block_sparse" : "vertical_and_slash");
    jw_num(w, shape   ? number(params, "init", 128)
              : block ? number(params, "top", 100)
                      : number(params, "v", 1000));
    jw_num(w, shape ? number(params, "local", 3968) : block ? 1 : number(params, "s", 6096));
    jw_num(w, 1); /* the score of its search, which nothing reads */
    jw_arr_end(w);
}

/* The given parameters by their names; numbers as numbers. */
static void put_params(const char *params, struct jw *w)
{
    const char *p = params;
    size_t len;
    jw_obj(w);
    for (const char *word; (word = params_next(&p, &len));) {
        char name[32], value[64], *end;
        size_t eq = strcspn(word, "=");
        snprintf(name, sizeof name, "%.*s", (int)eq, word);
        snprintf(value, sizeof value, "%.*s", (int)(len - eq - 1), word + eq + 1);
        double x = strtod(value, &end);
        if (*end || end == value)
            jw_kstr(w, name, value);
        else
            jw_knum(w, name, x);
    }
    jw_obj_end(w);
}

static int put_head(const struct form *f, const json_t *e, const char *where, struct jw *w,
                    struct str_list *left_out, struct err *err)
{
    const char *method = NULL, *params = "", *other;
    int64_t layer = 0, head = 0;
    char key[24], text[160];
    size_t len = 0;
    int rc = 0;
    TRY(jget_int(e, "layer", where, &layer, err));
    TRY(jget_int(e, "head", where, &head, err));
    TRY(jget_str(e, "method", where, &method, err));
    TRY(jget_str_opt(e, "params", where, &params, err));
    other = strcmp(method, f->method) == 0 ? foreign(f, params, &len) : NULL;
    if (strcmp(method, f->method) != 0 || other) {
        snprintf(text, sizeof text, "layer %lld head %lld: %s%s%.*s", (long long)layer,
                 (long long)head, method, other ? " with " : "", (int)len, other ? other : "");
        str_list_add(left_out, text);
        return 0;
    }
    snprintf(key, sizeof key, "%lld", (long long)head);
    jw_key(w, key);
    if (f == forms)
        put_minference(params, w);
    else
        put_params(params, w);
out:
    return rc;
}

/* A list of layers, each an object of heads. */
int plan_export(const json_t *plan, const char *where, const char *format, struct buf *out,
                struct str_list *left_out, struct err *err)
{
    const struct form *f = NULL;
    const json_t *entries = json_object_get(plan, "entries");
    int64_t layers = 0;
    struct jw w;
    size_t i;
    json_t *e;
    int rc = 0;

    for (size_t k = 0; k < sizeof forms / sizeof *forms; k++)
        if (strcmp(forms[k].format, format) == 0)
            f = &forms[k];
    if (!f)
        FAIL(err, ERR_USAGE,
             "--export %s: the formats are minference, flexprefill, spargeattn, sale for "
             "parameters, "
             "blockmask and bsr for masks",
             format);
    if (!json_is_array(entries))
        FAIL(err, ERR_INPUT, "%s: \"entries\": an array was expected", where);
    json_array_foreach(entries, i, e)
    {
        int64_t layer = json_integer_value(json_object_get(e, "layer"));
        layers = layer >= layers && layer < 1 << 20 ? layer + 1 : layers;
    }
    jw_init(&w, out, 2);
    jw_arr(&w);
    for (int64_t l = 0; l < layers; l++) {
        jw_obj(&w);
        json_array_foreach(entries, i, e)
        {
            if (json_integer_value(json_object_get(e, "layer")) == l)
                TRY(put_head(f, e, where, &w, left_out, err));
        }
        jw_obj_end(&w);
    }
    jw_arr_end(&w);
    buf_puts(out, "\n");
    TRY(buf_check(out, "export", err));
out:
    return rc;
}
