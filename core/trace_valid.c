/*
 * trace_valid.c - what metadata of a trace and of a call must fulfil, in files as in what a program
 * wants to write.
 */
#include "core/trace_internal.h"

#include "core/mem.h"
#include "core/utf8.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    int rc = check_ranges(r, code, err);
    if (rc)
        return rc;
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
        {NULL, 0, 0, 0},
    };
    int rc = trace_meta_strings(m, code, err);
    if (rc == 0)
        rc = check_ranges(r, code, err);
    if (rc)
        return rc;
    if (m->heads % m->kv_heads != 0)
        return err_set(err, code, "/model: %d query heads are not a multiple of %d kv heads",
                       m->heads, m->kv_heads);
    rc = check_ids(m, code, err);
    if (rc)
        return rc;
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

int trace_call_check(const struct trace_meta *m, const struct trace_call *c, int code,
                     struct err *err)
{
    size_t len = strnlen(c->branch, sizeof c->branch);
    char what[UTF8_FAULT_MAX];

    if (c->layer < 0 || c->layer >= m->layers)
        return err_set(err, code, "layer %d of a model with %d layers", c->layer, m->layers);
    if (c->step < 0 || (m->steps > 0 && c->step >= m->steps))
        return err_set(err, code, "step %d of a run with %lld steps", c->step, (long long)m->steps);
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
    return trace_score_check(m, &c->score, code, err);
}
