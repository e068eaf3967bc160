/*
 * trace_meta.c - what a trace says about itself: metadata, of which one table drives attributes,
 * texts, the content id and JSON; shapes of the datasets; what all of it must fulfil.
 */
#include "core/trace_internal.h"

#include "core/mem.h"
#include "core/utf8.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
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
    {FIELD(model, F_STR, weight_types)},
    {FIELD(run, F_STR, source)},
    {FIELD(run, F_STR, prompt_id)},
    {FIELD(run, F_STR, negative_id)},
    {FIELD(run, F_I64, n_q)},
    {FIELD(run, F_I64, n_k)},
    {FIELD(run, F_I64, seed)},
    {FIELD(run, F_I64, pool)},
    {FIELD(run, F_I64, row_group)},
    {FIELD(run, F_I64, decode_from)},
    {FIELD(run, F_I64, question_from)},
    {FIELD(run, F_STR, generated_by)},
    {FIELD(run, F_I64, max_positions)},
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
    return f->offset == offsetof(struct trace_meta, computed_by) ||
           f->offset == offsetof(struct trace_meta, weight_types) ||
           f->offset == offsetof(struct trace_meta, max_positions);
}

/* Fields that are left out where they say nothing. */
static bool is_optional(const struct field *f)
{
    return f->offset == offsetof(struct trace_meta, head_ids) ||
           f->offset == offsetof(struct trace_meta, kv_head_ids) ||
           f->offset == offsetof(struct trace_meta, row_group) ||
           f->offset == offsetof(struct trace_meta, decode_from) ||
           f->offset == offsetof(struct trace_meta, question_from) ||
           f->offset == offsetof(struct trace_meta, generated_by) || is_provenance(f);
}

static bool in_use(const struct field *f, const struct trace_meta *m)
{
    if (is_optional(f) && f->type == F_I64)
        return *(const int64_t *)(const void *)((const char *)m + f->offset) != 0;
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

/* The text of a field, NULL of one that is a number. */
static const char *text_of(const struct field *f, const struct trace_meta *m)
{
    const void *p = (const char *)m + f->offset;
    return f->type == F_STR ? p : f->type == F_DTYPE ? dtype_name(*(const enum dtype *)p) : NULL;
}

static int64_t whole_of(const struct field *f, const struct trace_meta *m)
{
    assert(m);
    const void *p = (const char *)m + f->offset;
    return f->type == F_INT    ? *(const int *)p
           : f->type == F_BOOL ? *(const bool *)p
                               : *(const int64_t *)p;
}

static double real_of(const struct field *f, const struct trace_meta *m)
{
    return *(const double *)(const void *)((const char *)m + f->offset);
}

static int put_field(hid_t group, const struct field *f, const struct trace_meta *m,
                     struct err *err)
{
    const char *text = text_of(f, m);
    return text               ? h5_put_str(group, f->name, text, err)
           : f->type == F_F64 ? h5_put_f64(group, f->name, real_of(f, m), err)
                              : h5_put_i64(group, f->name, whole_of(f, m), err);
}

static int get_field(hid_t group, const struct field *f, struct trace_meta *m, struct err *err)
{
    static const enum h5_kind kinds[] = {[F_STR] = H5_TEXT,
                                         [F_INT] = H5_INT,
                                         [F_I64] = H5_INT64,
                                         [F_F64] = H5_REAL,
                                         [F_BOOL] = H5_FLAG};
    enum dtype *type = (enum dtype *)(void *)((char *)m + f->offset);
    char text[32];
    if (f->type != F_DTYPE)
        return h5_get_field(group, &(struct h5_field){f->name, kinds[f->type], f->offset, f->size},
                            m, err);
    PASS_ON(h5_get_str(group, f->name, text, sizeof text, err));
    *type = dtype_from_name(text);
    return *type != DT_NONE
               ? 0
               : err_set(err, ERR_INPUT, "/%s: %s '%s' is unknown", f->group, f->name, text);
}

/* Names of a group that a reader may ignore, where it has any. */
static int put_optional(hid_t file, const char *group, const struct trace_meta *m, struct err *err)
{
    OWN(buf_free) struct buf names = {0};
    OWN(h5_close_at) hid_t at = H5I_INVALID_HID;
    for (const struct field *f = fields; f->name; f++)
        if (strcmp(f->group, group) == 0 && is_provenance(f) && in_use(f, m))
            buf_printf(&names, "%s%s", names.len ? " " : "", f->name);
    if (names.len == 0)
        return 0;
    PASS_ON(buf_check(&names, "metadata", err));
    PASS_ON(h5_open_group(file, group, &at, err));
    return h5_put_str(at, "optional", buf_str(&names), err);
}

int trace_meta_put(hid_t file, const struct trace_meta *m, struct err *err)
{
    OWN(h5_close_at) hid_t group = H5I_INVALID_HID;
    const char *open = "";
    for (const struct field *f = fields; f->name; f++) {
        if (!in_use(f, m))
            continue;
        if (strcmp(open, f->group) != 0) {
            h5_close(group);
            group = H5I_INVALID_HID;
            PASS_ON(h5_create_group(file, f->group, &group, err));
            open = f->group;
        }
        PASS_ON(put_field(group, f, m, err));
    }
    PASS_ON(put_optional(file, "model", m, err));
    return put_optional(file, "run", m, err);
}

int trace_meta_get(hid_t file, struct trace_meta *m, struct err *err)
{
    OWN(h5_close_at) hid_t group = H5I_INVALID_HID;
    const char *open = "";
    bool video = h5_has_link(file, "video");
    memset(m, 0, sizeof *m);
    for (const struct field *f = fields; f->name; f++) {
        if (strcmp(open, f->group) != 0) {
            if (strcmp(f->group, "video") == 0 && !video)
                break;
            h5_close(group);
            group = H5I_INVALID_HID;
            PASS_ON(h5_open_group(file, f->group, &group, err));
            open = f->group;
        }
        if (!is_optional(f) || h5_has_attr(group, f->name))
            PASS_ON(get_field(group, f, m, err));
        else
            continue;
        if (f->type == F_I64 && is_optional(f) && !is_provenance(f) && !in_use(f, m))
            return err_set(err, ERR_INPUT, "/run: %s = 0 is written", f->name);
    }
    if (video && !is_video(m))
        return err_set(err, ERR_INPUT, "/video: grid_t = %lld", (long long)m->grid_t);
    return 0;
}

void trace_meta_json(const struct trace_meta *m, struct jw *w)
{
    const char *open = "";
    for (const struct field *f = fields; f->name; f++) {
        if (!in_use(f, m))
            continue;
        if (strcmp(open, f->group) != 0) {
            if (open[0])
                jw_obj_end(w);
            jw_key(w, f->group);
            jw_obj(w);
            open = f->group;
        }
        if (text_of(f, m))
            jw_kstr(w, f->name, text_of(f, m));
        else if (f->type == F_F64)
            jw_knum(w, f->name, real_of(f, m));
        else if (f->type == F_BOOL)
            jw_kbool(w, f->name, whole_of(f, m) != 0);
        else
            jw_kint(w, f->name, whole_of(f, m));
    }
    jw_obj_end(w);
}

/* ---- texts, numbers of heads ----------------------------------------------------------------- */

/* Texts of the metadata are texts of their sizes. */
static int trace_meta_strings(const struct trace_meta *m, int code, struct err *err)
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

static void content_f64(struct buf *b, double x)
{
    /* The sign of a NaN is not content, and C libraries print it differently. */
    if (isnan(x))
        buf_puts(b, "nan");
    else
        buf_printf(b, "%.17g", x);
}

void content_meta(const struct trace_meta *m, struct buf *b)
{
    buf_printf(b, "%s %d\n", TRACE_FORMAT, TRACE_VERSION_MAJOR);
    for (const struct field *f = fields; f->name; f++) {
        if (!in_use(f, m) || is_provenance(f))
            continue;
        buf_printf(b, "%s.%s=", f->group, f->name);
        if (text_of(f, m))
            buf_puts(b, text_of(f, m));
        else if (f->type == F_F64)
            content_f64(b, real_of(f, m));
        else
            buf_printf(b, "%lld", (long long)whole_of(f, m));
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

/* ---- what metadata must fulfil --------------------------------------------------------------- */

struct range {
    const char *name;
    int64_t value, min, max;
};

static int check_ranges(const struct range *r, int code, struct err *err)
{
    for (; r->name; r++)
        if (r->value < r->min || r->value > r->max)
            return err_set(err, code, "%s = %lld is not within %lld..%lld", r->name,
                           (long long)r->value, (long long)r->min, (long long)r->max);
    return 0;
}

static int check_video(const struct trace_meta *m, int code, struct err *err)
{
    int64_t side = 1 << 20, n = 0;
    const struct range r[] = {
        {"/video: grid_h", m->grid_h, 1, side},
        {"/video: grid_w", m->grid_w, 1, side},
        {"/video: grid_t", m->grid_t, 1, side},
        {"/video: text_tokens", m->text_tokens, 0, INT64_C(1) << 40},
        {"/video: text_valid", m->text_valid, 0, m->text_tokens},
        {"/video: steps", m->steps, 0, 1000000},
        {NULL, 0, 0, 0},
    };
    PASS_ON(check_ranges(r, code, err));
    if (!mul_ok(m->grid_t, m->grid_h, &n) || !mul_ok(n, m->grid_w, &n) ||
        !add_ok(n, m->text_tokens, &n) || n != m->n_k || n != m->n_q)
        return err_set(err, code,
                       "/video: grid %lldx%lldx%lld and %lld text tokens do not make %lld "
                       "tokens",
                       (long long)m->grid_t, (long long)m->grid_h, (long long)m->grid_w,
                       (long long)m->text_tokens, (long long)m->n_k);
    if (strcmp(m->text_place, "none") != 0 && strcmp(m->text_place, "front") != 0 &&
        strcmp(m->text_place, "back") != 0)
        return err_set(err, code, "/video: text_place '%s' is not none, front or back",
                       m->text_place);
    if ((strcmp(m->text_place, "none") == 0) != (m->text_tokens == 0))
        return err_set(err, code, "/video: text_place '%s' with %lld text tokens", m->text_place,
                       (long long)m->text_tokens);
    return 0;
}

/* One number of a list, at most 65535; *p moves behind it. -1: there is none. */
static long id_number(const char **p)
{
    char *end;
    if (!isdigit((unsigned char)**p))
        return -1;
    long x = strtol(*p, &end, 10);
    *p = end;
    return x <= 65535 ? x : -1;
}

/* Is it an ascending list of n numbers and ranges? Several query heads that are stored may share a
 * kv head that is then stored for each of them. */
static bool is_id_list(const char *ids, int n, bool repeats)
{
    long last = -1, count = 0;
    for (const char *p = ids;; p++) {
        long a = id_number(&p), b = a;
        if (*p == '-') {
            p++;
            b = id_number(&p);
        }
        if (a < 0 || b < a || (repeats ? a < last : a <= last))
            return false;
        count += b - a + 1;
        last = b;
        if (!*p)
            return count == n;
        if (*p != ',')
            return false;
    }
}

static int check_ids(const struct trace_meta *m, int code, struct err *err)
{
    if (m->head_ids[0] && !is_id_list(m->head_ids, m->heads, false))
        return err_set(err, code, "/model: head_ids '%s' is no ascending list of %d heads",
                       m->head_ids, m->heads);
    if (m->kv_head_ids[0] && !is_id_list(m->kv_head_ids, m->kv_heads, true))
        return err_set(err, code, "/model: kv_head_ids '%s' is no ascending list of %d heads",
                       m->kv_head_ids, m->kv_heads);
    return 0;
}

static int check_decode(const struct trace_meta *m, int code, struct err *err)
{
    struct trace_decode d = trace_decode(m);
    if (m->decode_from == 0 && (m->question_from || m->generated_by[0]))
        return err_set(err, code, "/run: %s without decode_from",
                       m->question_from ? "question_from" : "generated_by");
    if (m->decode_from == 0)
        return 0;
    if (!m->causal || m->row_group || m->grid_t > 0)
        return err_set(err, code,
                       "/run: decode_from = %lld: only a causal run over text, whose rows are no "
                       "sample, has a decode phase",
                       (long long)m->decode_from);
    if (d.steps < 1 || d.window < 0)
        return err_set(err, code,
                       "/run: decode_from = %lld of %lld tokens, of which the last %lld have "
                       "queries: all tokens from decode_from on have one, at least 1",
                       (long long)d.from, (long long)m->n_k, (long long)m->n_q);
    if (m->question_from >= m->decode_from)
        return err_set(err, code, "/run: question_from = %lld is not in the prompt of %lld tokens",
                       (long long)m->question_from, (long long)m->decode_from);
    return 0;
}

int trace_meta_validate(struct trace_meta *m, int code, struct err *err)
{
    if (m->v_dim == 0)
        m->v_dim = m->head_dim;
    if (!m->text_place[0])
        strcpy(m->text_place, "none");
    const struct range r[] = {
        {"/model: layers", m->layers, 1, 100000},
        {"/model: heads", m->heads, 1, 65536},
        {"/model: kv_heads", m->kv_heads, 1, 65536},
        {"/model: head_dim", m->head_dim, 1, 65536},
        {"/model: v_dim", m->v_dim, 1, 65536},
        {"/run: n_q", m->n_q, 1, INT32_MAX},
        {"/run: n_k", m->n_k, 1, INT32_MAX},
        {"/run: pool", m->pool, 0, INT32_MAX},
        {"/video: grid_t", m->grid_t, 0, INT32_MAX},
        {"/run: row_group", m->row_group, 0, INT32_MAX},
        {"/run: decode_from", m->decode_from, 0, INT32_MAX},
        {"/run: question_from", m->question_from, 0, INT32_MAX},
        {NULL, 0, 0, 0},
    };
    PASS_ON(trace_meta_strings(m, code, err));
    PASS_ON(check_ranges(r, code, err));
    if (m->heads % m->kv_heads != 0)
        return err_set(err, code, "/model: %d query heads are not a multiple of %d kv heads",
                       m->heads, m->kv_heads);
    PASS_ON(check_ids(m, code, err));
    if (!isfinite(m->scale) || m->scale == 0)
        return err_set(err, code, "/model: scale = %g is not a usable softmax scale", m->scale);
    if (m->dtype != DT_F32 && m->dtype != DT_BF16 && m->dtype != DT_F16)
        return err_set(err, code, "/model: dtype %s is not float32, bfloat16 or float16",
                       dtype_name(m->dtype));
    if (m->causal && m->n_q > m->n_k)
        return err_set(err, code, "/run: causal with more queries (%lld) than keys (%lld)",
                       (long long)m->n_q, (long long)m->n_k);
    if (m->row_group != 0 && (!m->causal || m->pool != 0 || m->n_q >= m->n_k || m->grid_t > 0))
        return err_set(
            err, code,
            "/run: sampled rows are fewer rows of a causal run than it has keys, without "
            "maps and without a video");
    PASS_ON(check_decode(m, code, err));
    for (int i = 0; i < CALL_ARRAYS; i++) {
        struct trace_array a;
        if (!trace_call_array(m, NULL, i, &a))
            return err_set(err, code, "size of '%s' overflows", a.name);
    }
    return m->grid_t > 0 ? check_video(m, code, err) : 0;
}

int trace_meta_check(struct trace_meta *m, struct err *err)
{
    return trace_meta_validate(m, ERR_USAGE, err);
}

/* Extra operands have the rows that they must have; those before the rotation the shape of q and k.
 */
static int check_aux(const struct trace_meta *m, const struct trace_call *c, int code,
                     struct err *err)
{
    for (int i = 0; i < AUX_COUNT; i++) {
        const struct aux_shape *have = &c->aux[i];
        enum trace_what like = trace_aux_rows((enum trace_aux)i);
        struct trace_shape s = trace_shape(m, like);
        struct trace_array a;
        bool whole = i == AUX_Q_PRE || i == AUX_K_PRE;
        if (have->heads == 0)
            continue;
        if (have->heads < 1 || have->rows < 1 || have->dim < 1 ||
            !trace_call_array(m, c, TRACE_AUX + i, &a) ||
            (like != TRACE_WHAT_COUNT && have->rows != s.tokens) ||
            (whole && (have->heads != s.heads || have->dim != s.dim)))
            return err_set(
                err, code,
                "aux/%s of %lld x %lld x %lld does not fit the %lld queries and %lld keys of "
                "a call",
                trace_aux_name((enum trace_aux)i), (long long)have->heads, (long long)have->rows,
                (long long)have->dim, (long long)m->n_q, (long long)m->n_k);
    }
    return 0;
}

int trace_call_check(const struct trace_meta *m, const struct trace_call *c, int code,
                     struct err *err)
{
    size_t len = strnlen(c->branch, sizeof c->branch);
    char what[UTF8_FAULT_MAX];
    if (c->layer < 0 || c->layer >= m->layers)
        return err_set(err, code, "layer %d of a model with %d layers", c->layer, m->layers);
    if (c->step < 0 || (m->steps > 0 && c->step >= m->steps))
        return err_set(err, code, "step %d of a run with %lld steps", c->step, (long long)m->steps);
    if (c->order < 0)
        return err_set(err, code, "order %d is negative", c->order);
    if (len == 0 || len == sizeof c->branch)
        return err_set(err, code, "a branch name of %zu characters", len);
    for (size_t i = 0; i < len; i++)
        if (!isalnum((unsigned char)c->branch[i]) && !strchr("-_", c->branch[i]))
            return err_set(err, code,
                           "branch '%s' has other characters than letters, digits, '-' "
                           "and '_'",
                           c->branch);
    if (strnlen(c->block, sizeof c->block) == sizeof c->block || utf8_fault(c->block, what))
        return err_set(err, code, "the name of the block kind is not a short text");
    if (c->has_map && m->pool == 0)
        return err_set(err, code, "maps without a pool size");
    if (c->has_col_sum && m->decode_from == 0)
        return err_set(err, code, "col_sum without decode_from");
    PASS_ON(check_aux(m, c, code, err));
    return trace_score_check(m, &c->score, code, err);
}

/* ---- shapes, names and sizes of the datasets ------------------------------------------------- */

static const char *const call_names[CALL_ARRAYS] = {
    "q",      "k",      "v",        "out",        "lse",       "map_sum",   "map_max",
    "sinks",  "alibi",  "rel_bias", "bias",       "col_sum",   "aux/q_pre", "aux/k_pre",
    "aux/iq", "aux/ik", "aux/iw",   "aux/gate_q", "aux/gate_k"};
static const char *const run_names[RUN_ARRAYS] = {"tokens", "nll", "timesteps", "sigmas", "rows"};
static const enum dtype run_types[RUN_ARRAYS] = {DT_I32, DT_F32, DT_F64, DT_F64, DT_I32};

const char *trace_what_name(enum trace_what what)
{
    return call_names[what];
}

const char *trace_aux_name(enum trace_aux i)
{
    return call_names[TRACE_AUX + i] + strlen("aux/");
}

enum trace_what trace_aux_rows(enum trace_aux i)
{
    return i == AUX_K_PRE || i == AUX_IK                  ? TRACE_K
           : i == AUX_Q_PRE || i == AUX_IQ || i == AUX_IW ? TRACE_Q
                                                          : TRACE_WHAT_COUNT;
}

static int64_t cells(const struct trace_meta *m, int64_t n)
{
    return m->pool > 0 ? (n + m->pool - 1) / m->pool : 0;
}

struct trace_shape trace_shape(const struct trace_meta *m, enum trace_what what)
{
    bool of_keys = what == TRACE_K || what == TRACE_V;
    return (struct trace_shape){
        .heads = of_keys ? m->kv_heads : m->heads,
        .tokens = of_keys ? m->n_k : m->n_q,
        .dim = what == TRACE_LSE                    ? 1
               : what == TRACE_Q || what == TRACE_K ? m->head_dim
                                                    : m->v_dim,
        .dtype = what == TRACE_LSE ? DT_F32 : m->dtype,
    };
}

static bool set_sizes(struct trace_array *a, int64_t slices, int64_t rows, int64_t dim)
{
    a->slices = slices;
    a->rows = rows;
    return mul_ok(dim, (int64_t)dtype_size(a->type), &a->row_bytes) &&
           mul_ok(a->row_bytes, rows, &a->bytes) && mul_ok(a->bytes, slices, &a->bytes);
}

/* A bias of rows and keys is small where there is one (trace_score_check), so "all heads" of it
 * may not overflow for a sequence that has none. */
static bool bias_array(const struct trace_meta *m, const struct trace_call *c,
                       struct trace_array *a)
{
    a->ndim = 3;
    a->dims[0] = c ? c->score.bias : 1;
    a->dims[1] = m->n_q;
    a->dims[2] = m->n_k;
    return c ? set_sizes(a, c->score.bias, m->n_q, m->n_k) : set_sizes(a, 1, 1, 1);
}

/* The arrays from TRACE_SINKS on: one value per head, a bias per distance, one per row and key, or
 * a sum per key of the prompt. */
static bool score_array(const struct trace_meta *m, const struct trace_call *c, int i,
                        struct trace_array *a)
{
    bool rel = i == TRACE_REL_BIAS, values = rel || i == TRACE_COL_SUM;
    int64_t n = rel ? 2 * m->n_k - 1 : m->decode_from;
    a->type = DT_F32;
    if (i == TRACE_BIAS)
        return bias_array(m, c, a);
    a->ndim = values ? 2 : 1;
    a->dims[0] = rel && c ? c->score.rel_bias : m->heads;
    a->dims[1] = n;
    return set_sizes(a, a->dims[0], values ? n : 1, 1);
}

bool trace_call_array(const struct trace_meta *m, const struct trace_call *c, int i,
                      struct trace_array *a)
{
    memset(a, 0, sizeof *a);
    a->name = call_names[i];
    if (i >= TRACE_AUX) {
        struct aux_shape s = c ? c->aux[i - TRACE_AUX] : (struct aux_shape){0};
        a->type = DT_F32;
        a->ndim = 3;
        a->dims[0] = s.heads;
        a->dims[1] = s.rows;
        a->dims[2] = s.dim;
        return set_sizes(a, s.heads, s.rows, s.dim);
    }
    if (i >= TRACE_SINKS)
        return score_array(m, c, i, a);
    if (i >= TRACE_WHAT_COUNT) {
        a->type = DT_F32;
        a->ndim = 3;
        a->dims[0] = m->heads;
        a->dims[1] = cells(m, m->n_q);
        a->dims[2] = cells(m, m->n_k);
        return set_sizes(a, a->dims[0], a->dims[1], a->dims[2]);
    }
    struct trace_shape s = trace_shape(m, (enum trace_what)i);
    a->type = s.dtype;
    a->ndim = i == TRACE_LSE ? 2 : 3;
    a->dims[0] = s.heads;
    a->dims[1] = s.tokens;
    a->dims[2] = s.dim;
    return set_sizes(a, s.heads, s.tokens, s.dim);
}

bool trace_run_array(int i, int64_t n, struct trace_array *a)
{
    memset(a, 0, sizeof *a);
    a->name = run_names[i];
    a->type = run_types[i];
    a->ndim = 1;
    a->dims[0] = n;
    return set_sizes(a, 1, n, 1);
}

int64_t trace_run_length(const struct trace_meta *m, int i)
{
    return i == TRACE_TOKENS ? m->n_k : i == TRACE_NLL ? m->n_k - 1 : i == TRACE_ROWS ? m->n_q : -1;
}

bool trace_call_has(const struct trace_call *c, int i)
{
    return i == TRACE_OUT        ? c->has_out
           : i == TRACE_LSE      ? c->has_lse
           : i == TRACE_SINKS    ? c->score.sinks
           : i == TRACE_ALIBI    ? c->score.alibi
           : i == TRACE_REL_BIAS ? c->score.rel_bias > 0
           : i == TRACE_BIAS     ? c->score.bias > 0
           : i == TRACE_COL_SUM  ? c->has_col_sum
           : i >= TRACE_AUX      ? c->aux[i - TRACE_AUX].heads > 0
                                 : i < TRACE_WHAT_COUNT || c->has_map;
}

const struct h5_field trace_call_fields[] = {
    H5_FIELD(trace_call, H5_INT, step),   H5_FIELD(trace_call, H5_TEXT, branch),
    H5_FIELD(trace_call, H5_INT, layer),  H5_FIELD(trace_call, H5_INT, order),
    H5_FIELD(trace_call, H5_TEXT, block), H5_FIELD(trace_call, H5_REAL, timestep),
    H5_FIELD(trace_call, H5_REAL, sigma), {0},
};

void trace_call_path(const struct trace_call *c, char path[CALL_PATH_MAX])
{
    snprintf(path, CALL_PATH_MAX, "/calls/step-%03d/%s/layer-%02d", c->step, c->branch, c->layer);
}

int64_t trace_call_size(const struct trace_meta *meta, const struct trace_call *c)
{
    struct trace_meta m = *meta;
    struct trace_array a;
    int64_t sum = 16384; /* groups and attributes */
    if (m.v_dim == 0)
        m.v_dim = m.head_dim;
    for (int i = 0; i < CALL_ARRAYS; i++) {
        if (!trace_call_has(c, i))
            continue;
        /* Alignment, the checksums and two object headers come with each dataset. */
        if (!trace_call_array(&m, c, i, &a) || !add_ok(sum, a.bytes, &sum) ||
            !add_ok(sum, 4096 + 1024 + 16 * a.slices, &sum))
            return INT64_MAX;
    }
    return sum;
}

int64_t trace_size(const struct trace_meta *m, int64_t n_calls)
{
    struct trace_call c = {.has_map = m->pool > 0};
    int64_t sum;
    if (!mul_ok(trace_call_size(m, &c), n_calls, &sum) || !add_ok(sum, 65536 + 8 * m->n_k, &sum))
        return INT64_MAX;
    return sum;
}

/* ---- content id ---------------------------------------------------------------------------------
 *
 * XXH3-128 of a text with one line per metadata field, one per call and one per payload dataset
 * with its checksums (doc/trace-format.md has the exact form). So it identifies the content
 * independently of the file's name, storage form and writing program, and a changed attribute or
 * checksum cannot go unnoticed. */

void content_call(const struct trace_call *c, struct buf *b)
{
    buf_printf(b, "call step=%d branch=%s layer=%d block=%s order=%d timestep=", c->step, c->branch,
               c->layer, c->block, c->order);
    content_f64(b, c->timestep);
    buf_puts(b, " sigma=");
    content_f64(b, c->sigma);
    buf_puts(b, "\n");
    content_score(&c->score, b);
}

void content_array(const struct trace_array *a, struct buf *b)
{
    if (!a->present)
        return;
    buf_puts(b, a->name);
    for (int i = 0; i < a->ndim; i++)
        buf_printf(b, "%s%lld", i ? "x" : " ", (long long)a->dims[i]);
    for (int64_t s = 0; s < a->slices; s++)
        buf_printf(b, " %016llx%016llx", (unsigned long long)a->sums[s].hi,
                   (unsigned long long)a->sums[s].lo);
    buf_puts(b, "\n");
}

void sum_to_bytes(struct hash128 h, uint8_t out[16])
{
    for (int i = 0; i < 8; i++) {
        out[i] = (uint8_t)(h.hi >> (56 - 8 * i));
        out[8 + i] = (uint8_t)(h.lo >> (56 - 8 * i));
    }
}

struct hash128 sum_from_bytes(const uint8_t in[16])
{
    struct hash128 h = {0};
    for (int i = 0; i < 8; i++) {
        h.hi = h.hi << 8 | in[i];
        h.lo = h.lo << 8 | in[8 + i];
    }
    return h;
}

/* ---- names of tensors that belong to a call -------------------------------------------------- */

/* "step-012" with word "step" -> 12. */
static bool numbered(const char *s, size_t len, const char *word, int *out)
{
    size_t n = strlen(word), i = n;
    long x = 0;
    if (len <= n || strncmp(s, word, n) != 0)
        return false;
    i += s[i] == '-';
    if (i == len)
        return false;
    for (; i < len; i++) {
        if (!isdigit((unsigned char)s[i]) || x > 1000000)
            return false;
        x = 10 * x + (s[i] - '0');
    }
    *out = (int)x;
    return true;
}

const char *call_name_parse(const char *text, size_t len, struct call_name *c, int *head,
                            size_t *word_len)
{
    bool has_branch = false;
    for (size_t at = 0; at < len;) {
        const char *word = text + at;
        size_t n = 0;
        while (at + n < len && word[n] != '.')
            n++;
        at += n + 1;
        if (numbered(word, n, "step", &c->step) || numbered(word, n, "layer", &c->layer) ||
            (head && numbered(word, n, "head", head)))
            continue;
        if (has_branch || n == 0 || n >= sizeof c->branch) {
            *word_len = n;
            return word;
        }
        memcpy(c->branch, word, n);
        c->branch[n] = '\0';
        has_branch = true;
    }
    return NULL;
}
