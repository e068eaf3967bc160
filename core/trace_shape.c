/*
 * trace_shape.c - shapes, names and sizes of the datasets of a trace, and paths of its calls.
 */
#include "core/trace_internal.h"

#include "core/mem.h"

#include <stdio.h>
#include <string.h>

static const char *const call_names[CALL_ARRAYS] = {
    "q", "k", "v", "out", "lse", "map_sum", "map_max", "sinks", "alibi", "rel_bias", "bias"};
static const char *const run_names[RUN_ARRAYS] = {"tokens", "nll", "timesteps", "sigmas", "rows"};
static const enum dtype run_types[RUN_ARRAYS] = {DT_I32, DT_F32, DT_F64, DT_F64, DT_I32};

const char *trace_what_name(enum trace_what what)
{
    return call_names[what];
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

/* The arrays of format 1.1: one value per head, a bias per distance, or one per row and key. */
static bool score_array(const struct trace_meta *m, const struct trace_call *c, int i,
                        struct trace_array *a)
{
    bool rel = i == ARR_REL_BIAS;
    int64_t distances = 2 * m->n_k - 1;

    a->type = DT_F32;
    if (i == ARR_BIAS)
        return bias_array(m, c, a);
    a->ndim = rel ? 2 : 1;
    a->dims[0] = rel && c ? c->score.rel_bias : m->heads;
    a->dims[1] = distances;
    return rel ? set_sizes(a, a->dims[0], distances, 1) : set_sizes(a, m->heads, 1, 1);
}

bool trace_call_array(const struct trace_meta *m, const struct trace_call *c, int i,
                      struct trace_array *a)
{
    memset(a, 0, sizeof *a);
    a->name = call_names[i];
    if (i >= ARR_SINKS)
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
    return i == ARR_TOKENS ? m->n_k : i == ARR_NLL ? m->n_k - 1 : i == ARR_ROWS ? m->n_q : -1;
}

bool trace_call_has(const struct trace_call *c, int i)
{
    return i == TRACE_OUT      ? c->has_out
           : i == TRACE_LSE    ? c->has_lse
           : i == ARR_SINKS    ? c->score.sinks
           : i == ARR_ALIBI    ? c->score.alibi
           : i == ARR_REL_BIAS ? c->score.rel_bias > 0
           : i == ARR_BIAS     ? c->score.bias > 0
                               : i < TRACE_WHAT_COUNT || c->has_map;
}

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
