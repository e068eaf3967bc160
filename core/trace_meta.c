/*
 * trace_meta.c - metadata of a trace: one table drives attributes, texts, the content id and JSON.
 */
#include "core/trace_internal.h"

#include "core/utf8.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum field_type { F_STR, F_INT, F_I64, F_F64, F_BOOL, F_DTYPE };

struct field {
    const char *group, *name;
    enum field_type type;
    size_t offset, size;
};

#define SIZE(name) sizeof((struct trace_meta *)0)->name
#define FIELD(group, type, name) #group, #name, type, offsetof(struct trace_meta, name), SIZE(name)

/* The order is that of the content id: part of the format. */
static const struct field fields[] = {
    {FIELD(model, F_STR, name)},
    {FIELD(model, F_STR, architecture)},
    {FIELD(model, F_STR, weights_id)},
    {FIELD(model, F_INT, layers)},
    {FIELD(model, F_INT, heads)},
    {FIELD(model, F_INT, kv_heads)},
    {FIELD(model, F_INT, head_dim)},
    {FIELD(model, F_INT, v_dim)},
    {FIELD(model, F_F64, scale)},
    {FIELD(model, F_BOOL, causal)},
    {FIELD(model, F_BOOL, positions_applied)},
    {FIELD(model, F_STR, positions)},
    {FIELD(model, F_DTYPE, dtype)},
    {FIELD(model, F_STR, compute)},
    {FIELD(model, F_STR, head_ids)},
    {FIELD(model, F_STR, kv_head_ids)},
    {FIELD(run, F_STR, source)},
    {FIELD(run, F_STR, prompt_id)},
    {FIELD(run, F_STR, negative_id)},
    {FIELD(run, F_I64, n_q)},
    {FIELD(run, F_I64, n_k)},
    {FIELD(run, F_I64, seed)},
    {FIELD(run, F_I64, pool)},
    {FIELD(run, F_I64, row_group)},
    {FIELD(run, F_STR, computed_by)},
    {FIELD(video, F_I64, grid_t)},
    {FIELD(video, F_I64, grid_h)},
    {FIELD(video, F_I64, grid_w)},
    {FIELD(video, F_I64, frames)},
    {FIELD(video, F_I64, height)},
    {FIELD(video, F_I64, width)},
    {FIELD(video, F_F64, fps)},
    {FIELD(video, F_I64, vae_t)},
    {FIELD(video, F_I64, vae_h)},
    {FIELD(video, F_I64, vae_w)},
    {FIELD(video, F_I64, patch_t)},
    {FIELD(video, F_I64, patch_h)},
    {FIELD(video, F_I64, patch_w)},
    {FIELD(video, F_I64, text_tokens)},
    {FIELD(video, F_I64, text_valid)},
    {FIELD(video, F_STR, text_place)},
    {FIELD(video, F_STR, token_order)},
    {FIELD(video, F_STR, sampler)},
    {FIELD(video, F_I64, steps)},
    {FIELD(video, F_F64, shift)},
    {FIELD(video, F_F64, guidance)},
    {NULL, NULL, F_STR, 0, 0},
};

static bool is_video(const struct trace_meta *m)
{
    return m->grid_t > 0;
}

/* Not content: it stays out of the content id, and a reader may ignore it. */
static bool is_provenance(const struct field *f)
{
    return f->offset == offsetof(struct trace_meta, computed_by);
}

/* Fields that are left out where they say nothing. */
static bool is_optional(const struct field *f)
{
    return f->offset == offsetof(struct trace_meta, head_ids) ||
           f->offset == offsetof(struct trace_meta, kv_head_ids) ||
           f->offset == offsetof(struct trace_meta, row_group) || is_provenance(f);
}

static bool in_use(const struct field *f, const struct trace_meta *m)
{
    if (f->offset == offsetof(struct trace_meta, row_group))
        return m->row_group != 0;
    if (is_optional(f))
        return ((const char *)m)[f->offset] != '\0';
    return strcmp(f->group, "video") != 0 || is_video(m);
}

bool trace_meta_has(const char *group, const char *name)
{
    for (const struct field *f = fields; f->name; f++)
        if (strcmp(f->group, group) == 0 && strcmp(f->name, name) == 0)
            return true;
    return false;
}

/* ---- attributes ------------------------------------------------------------------------------ */

static int put_field(hid_t group, const struct field *f, const struct trace_meta *m,
                     struct err *err)
{
    const void *p = (const char *)m + f->offset;
    switch (f->type) {
    case F_STR:
        return h5_put_str(group, f->name, p, err);
    case F_INT:
        return h5_put_i64(group, f->name, *(const int *)p, err);
    case F_I64:
        return h5_put_i64(group, f->name, *(const int64_t *)p, err);
    case F_F64:
        return h5_put_f64(group, f->name, *(const double *)p, err);
    case F_BOOL:
        return h5_put_i64(group, f->name, *(const bool *)p, err);
    case F_DTYPE:
        return h5_put_str(group, f->name, dtype_name(*(const enum dtype *)p), err);
    }
    return 0;
}

static int get_field(hid_t group, const struct field *f, struct trace_meta *m, struct err *err)
{
    void *p = (char *)m + f->offset;
    char text[32];
    int64_t i = 0;
    int rc;

    if (f->type == F_STR)
        return h5_get_str(group, f->name, p, f->size, err);
    if (f->type == F_F64)
        return h5_get_f64(group, f->name, p, err);
    if (f->type == F_DTYPE) {
        if ((rc = h5_get_str(group, f->name, text, sizeof text, err)) != 0)
            return rc;
        *(enum dtype *)p = dtype_from_name(text);
        return *(enum dtype *)p != DT_NONE
                   ? 0
                   : err_set(err, ERR_INPUT, "/%s: %s '%s' is unknown", f->group, f->name, text);
    }
    if ((rc = h5_get_i64(group, f->name, &i, err)) != 0)
        return rc;
    if ((f->type == F_BOOL && (i < 0 || i > 1)) || (f->type == F_INT && (i < 0 || i > INT32_MAX)))
        return err_set(err, ERR_INPUT, "/%s: %s = %lld is out of range", f->group, f->name,
                       (long long)i);
    if (f->type == F_BOOL)
        *(bool *)p = i == 1;
    else if (f->type == F_INT)
        *(int *)p = (int)i;
    else
        *(int64_t *)p = i;
    return 0;
}

int trace_meta_put(hid_t file, const struct trace_meta *m, struct err *err)
{
    hid_t group = H5I_INVALID_HID;
    const char *open = "";
    int rc = 0;

    for (const struct field *f = fields; f->name; f++) {
        if (!in_use(f, m))
            continue;
        if (strcmp(open, f->group) != 0) {
            h5_close(group);
            group = H5I_INVALID_HID;
            TRY(h5_create_group(file, f->group, &group, err));
            open = f->group;
        }
        TRY(put_field(group, f, m, err));
        if (is_provenance(f))
            TRY(h5_put_str(group, "optional", f->name, err));
    }
out:
    h5_close(group);
    return rc;
}

int trace_meta_get(hid_t file, struct trace_meta *m, struct err *err)
{
    hid_t group = H5I_INVALID_HID;
    const char *open = "";
    bool video = h5_has_link(file, "video");
    int rc = 0;

    memset(m, 0, sizeof *m);
    for (const struct field *f = fields; f->name; f++) {
        if (strcmp(open, f->group) != 0) {
            if (strcmp(f->group, "video") == 0 && !video)
                break;
            h5_close(group);
            group = H5I_INVALID_HID;
            TRY(h5_open_group(file, f->group, &group, err));
            open = f->group;
        }
        if (!is_optional(f) || h5_has_attr(group, f->name))
            TRY(get_field(group, f, m, err));
        else
            continue;
        if (f->offset == offsetof(struct trace_meta, row_group) && m->row_group == 0)
            FAIL(err, ERR_INPUT, "/run: row_group = 0 is written");
    }
    if (video && !is_video(m))
        FAIL(err, ERR_INPUT, "/video: grid_t = %lld", (long long)m->grid_t);
out:
    h5_close(group);
    return rc;
}

void trace_meta_json(const struct trace_meta *m, struct jw *w)
{
    const char *open = "";

    for (const struct field *f = fields; f->name; f++) {
        if (!in_use(f, m))
            continue;
        const void *p = (const char *)m + f->offset;
        if (strcmp(open, f->group) != 0) {
            if (open[0])
                jw_obj_end(w);
            jw_key(w, f->group);
            jw_obj(w);
            open = f->group;
        }
        if (f->type == F_STR)
            jw_kstr(w, f->name, p);
        else if (f->type == F_DTYPE)
            jw_kstr(w, f->name, dtype_name(*(const enum dtype *)p));
        else if (f->type == F_F64)
            jw_knum(w, f->name, *(const double *)p);
        else if (f->type == F_BOOL)
            jw_kbool(w, f->name, *(const bool *)p);
        else
            jw_kint(w, f->name, f->type == F_INT ? *(const int *)p : *(const int64_t *)p);
    }
    jw_obj_end(w);
}

/* ---- texts, content id, numbers of heads
 * --------------------------------------------------------- */

int trace_meta_strings(const struct trace_meta *m, int code, struct err *err)
{
    for (const struct field *f = fields; f->name; f++) {
        const char *s = (const char *)m + f->offset;
        char what[UTF8_FAULT_MAX];
        if (f->type != F_STR)
            continue;
        if (!memchr(s, '\0', f->size))
            return err_set(err, code, "/%s: %s has no end", f->group, f->name);
        const char *fault = utf8_fault(s, what);
        if (fault)
            return err_set(err, code, "/%s: %s has a %s", f->group, f->name, fault);
    }
    return 0;
}

void content_meta(const struct trace_meta *m, struct buf *b)
{
    buf_printf(b, "%s %d\n", TRACE_FORMAT, TRACE_VERSION_MAJOR);
    for (const struct field *f = fields; f->name; f++) {
        if (!in_use(f, m) || is_provenance(f))
            continue;
        const void *p = (const char *)m + f->offset;
        buf_printf(b, "%s.%s=", f->group, f->name);
        if (f->type == F_STR)
            buf_puts(b, p);
        else if (f->type == F_DTYPE)
            buf_puts(b, dtype_name(*(const enum dtype *)p));
        else if (f->type == F_F64)
            content_f64(b, *(const double *)p);
        else
            buf_printf(b, "%lld",
                       f->type == F_INT    ? (long long)*(const int *)p
                       : f->type == F_BOOL ? (long long)*(const bool *)p
                                           : (long long)*(const int64_t *)p);
        buf_puts(b, "\n");
    }
}

/* Entry `at` of a list such as "0,4-7"; `at` itself for "" or past its end. */
static int list_entry(const char *list, int at)
{
    int left = at;
    for (const char *p = list; *p;) {
        char *end;
        long a = strtol(p, &end, 10), b = *end == '-' ? strtol(end + 1, &end, 10) : a;
        if (left <= b - a)
            return (int)(a + left);
        left -= (int)(b - a + 1);
        if (*end != ',')
            break;
        p = end + 1;
    }
    return at;
}

int trace_head_number(const struct trace_meta *m, int head)
{
    return list_entry(m->head_ids, head);
}

int trace_kv_number(const struct trace_meta *m, int kv_head)
{
    return list_entry(m->kv_head_ids, kv_head);
}

int trace_head_find(const struct trace_meta *m, int64_t number)
{
    for (int head = 0; head < m->heads; head++)
        if (trace_head_number(m, head) == number)
            return head;
    return -1;
}
