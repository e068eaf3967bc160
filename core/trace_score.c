/*
 * trace_score.c - what a call does to its scores and allowed pairs beside the model's scale,
 * causality and valid text (format 1.1): attributes, checks, and the line of the content id.
 *
 * An attribute at its default is not written, and a call without any has the content id of format
 * 1.0. Windows are inclusive in the file (window_left = 1023: the row and 1023 keys before it), and
 * counts of keys with the row's own in memory (struct reach).
 */
#include "core/trace_internal.h"

#include "core/mem.h"
#include "core/text.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum kind { REAL, WINDOW, COUNT, FLAG, LENGTH };

/* In the order of the content id, which is part of the format. */
static const struct {
    const char *name;
    enum kind kind;
    size_t offset;
} fields[] = {
    {"scale", REAL, offsetof(struct trace_score, scale)},
    {"causal", FLAG, offsetof(struct trace_score, causal)},
    {"window_left", WINDOW, offsetof(struct trace_score, reach.back)},
    {"window_right", WINDOW, offsetof(struct trace_score, reach.ahead)},
    {"chunk", COUNT, offsetof(struct trace_score, reach.chunk)},
    {"prefix", COUNT, offsetof(struct trace_score, reach.prefix)},
    {"text_valid", LENGTH, offsetof(struct trace_score, text_valid)},
    {"softcap", REAL, offsetof(struct trace_score, softcap)},
};
#define FIELDS (sizeof fields / sizeof *fields)

static double real_at(const struct trace_score *s, size_t i)
{
    double x;
    memcpy(&x, (const char *)s + fields[i].offset, sizeof x);
    return x;
}

static int64_t count_at(const struct trace_score *s, size_t i)
{
    int64_t x;
    memcpy(&x, (const char *)s + fields[i].offset, sizeof x);
    return x;
}

static bool present(const struct trace_score *s, size_t i)
{
    return fields[i].kind == REAL ? real_at(s, i) != 0 : count_at(s, i) != 0;
}

/* May the file have 0 of it? Then memory has one more, and 0 where it is absent. */
static bool from_zero(size_t i)
{
    return fields[i].kind == WINDOW || fields[i].kind == FLAG || fields[i].kind == LENGTH;
}

/* As the file has it. */
static int64_t stored(const struct trace_score *s, size_t i)
{
    return count_at(s, i) - from_zero(i);
}

bool trace_score_any(const struct trace_score *s)
{
    for (size_t i = 0; i < FIELDS; i++)
        if (present(s, i))
            return true;
    return s->sinks || s->alibi || s->rel_bias || s->bias;
}

bool trace_score_has(const char *name)
{
    for (size_t i = 0; i < FIELDS; i++)
        if (strcmp(name, fields[i].name) == 0)
            return true;
    return false;
}

bool trace_score_equal(const struct trace_score *a, const struct trace_score *b)
{
    for (size_t i = 0; i < FIELDS; i++)
        if (fields[i].kind == REAL ? real_at(a, i) != real_at(b, i)
                                   : count_at(a, i) != count_at(b, i))
            return false;
    return a->sinks == b->sinks && a->alibi == b->alibi && a->rel_bias == b->rel_bias &&
           a->bias == b->bias;
}

int trace_score_put(hid_t group, const struct trace_score *s, struct err *err)
{
    for (size_t i = 0; i < FIELDS; i++) {
        if (!present(s, i))
            continue;
        PASS_ON(fields[i].kind == REAL ? h5_put_f64(group, fields[i].name, real_at(s, i), err)
                                       : h5_put_i64(group, fields[i].name, stored(s, i), err));
    }
    return 0;
}

static int get_field(hid_t group, size_t i, struct trace_score *s, struct err *err)
{
    char *at = (char *)s + fields[i].offset;
    int64_t n = 0, default_value = from_zero(i) ? -1 : 0;
    double x = 0;
    if (fields[i].kind == REAL) {
        PASS_ON(h5_get_f64(group, fields[i].name, &x, err));
        memcpy(at, &x, sizeof x);
        /* A default that is written has no line in the content id, so a reader would not notice
         * that it was changed. */
        return x != 0 ? 0
                      : err_set(err, ERR_INPUT, "attribute '%s' = 0 is written", fields[i].name);
    }
    PASS_ON(h5_get_i64(group, fields[i].name, &n, err));
    if (n <= default_value || n > INT32_MAX)
        return err_set(err, ERR_INPUT, "attribute '%s' = %lld is out of range", fields[i].name,
                       (long long)n);
    n += from_zero(i);
    memcpy(at, &n, sizeof n);
    return 0;
}

/* Heads of rel_bias or bias: its own first dimension, which must be 1 or all. */
static int get_bias_heads(hid_t group, const char *name, int ndim, const struct trace_meta *m,
                          int *heads, struct err *err)
{
    struct h5_info info;
    OWN(h5_close_at) hid_t dset = H5I_INVALID_HID;
    PASS_ON(h5_open_dataset(group, name, &dset, err));
    PASS_ON(h5_dataset_info(dset, DT_F32, &info, err));
    if (info.ndim != ndim || (info.dims[0] != 1 && info.dims[0] != m->heads))
        return err_set(err, ERR_INPUT, "'%s' is not of 1 or %d heads", name, m->heads);
    *heads = (int)info.dims[0];
    return 0;
}

int trace_score_get(hid_t group, const struct trace_meta *m, struct trace_score *s, struct err *err)
{
    memset(s, 0, sizeof *s);
    for (size_t i = 0; i < FIELDS; i++)
        if (h5_has_attr(group, fields[i].name))
            PASS_ON(get_field(group, i, s, err));
    s->sinks = h5_has_link(group, "sinks");
    s->alibi = h5_has_link(group, "alibi");
    if (h5_has_link(group, "rel_bias"))
        PASS_ON(get_bias_heads(group, "rel_bias", 2, m, &s->rel_bias, err));
    if (h5_has_link(group, "bias"))
        return get_bias_heads(group, "bias", 3, m, &s->bias, err);
    return 0;
}

static int check_biases(const struct trace_meta *m, const struct trace_score *s, int code,
                        struct err *err)
{
    if (s->alibi && s->rel_bias)
        return err_set(err, code, "both alibi and rel_bias; a score has one bias");
    if (s->bias && (s->alibi || s->rel_bias))
        return err_set(err, code, "both bias and %s; a score has one bias",
                       s->alibi ? "alibi" : "rel_bias");
    if (s->rel_bias != 0 && s->rel_bias != 1 && s->rel_bias != m->heads)
        return err_set(err, code, "rel_bias of %d heads; 1 or %d are possible", s->rel_bias,
                       m->heads);
    if (s->bias != 0 && s->bias != 1 && s->bias != m->heads)
        return err_set(err, code, "bias of %d heads; 1 or %d are possible", s->bias, m->heads);
    if (s->bias && (m->row_group || m->n_q > TRACE_BIAS_MOST / m->n_k))
        return err_set(err, code,
                       "a bias of %lld rows and %lld keys: at most 2^24 pairs and no "
                       "sample of rows have one",
                       (long long)m->n_q, (long long)m->n_k);
    return 0;
}

/* Causality and valid text of a call that are not the model's. */
static int check_own(const struct trace_meta *m, const struct trace_score *s, int code,
                     struct err *err)
{
    bool causal = s->causal == CALL_CAUSAL;
    if (s->causal < CAUSAL_AS_MODEL || s->causal > CALL_CAUSAL)
        return err_set(err, code, "causal = %lld is neither 0 nor 1", (long long)s->causal - 1);
    if (s->causal && causal == m->causal)
        return err_set(err, code, "causal = %d is that of /model, and is written", causal);
    if (s->causal && (m->row_group || m->decode_from || (causal && m->n_q > m->n_k)))
        return err_set(err, code, "causal = %d of %s", causal,
                       m->row_group     ? "sampled rows, whose calls are all causal"
                       : m->decode_from ? "a decode phase, whose calls are all causal"
                                        : "more queries than keys");
    if (s->text_valid && (m->grid_t == 0 || s->text_valid - 1 > m->text_tokens))
        return err_set(err, code, "text_valid = %lld of %lld text tokens",
                       (long long)s->text_valid - 1, (long long)m->text_tokens);
    if (s->text_valid && s->text_valid - 1 == m->text_valid)
        return err_set(err, code, "text_valid = %lld is that of /video, and is written",
                       (long long)m->text_valid);
    return 0;
}

int trace_score_check(const struct trace_meta *m, const struct trace_score *s, int code,
                      struct err *err)
{
    if (!isfinite(s->scale))
        return err_set(err, code, "scale = %g is not a usable softmax scale", s->scale);
    if (!isfinite(s->softcap) || s->softcap < 0)
        return err_set(err, code, "softcap = %g is not a positive number", s->softcap);
    for (size_t i = 0; i < FIELDS; i++)
        if (fields[i].kind != REAL && (count_at(s, i) < 0 || stored(s, i) > INT32_MAX))
            return err_set(err, code, "%s = %lld is out of range", fields[i].name,
                           (long long)stored(s, i));
    PASS_ON(check_own(m, s, code, err));
    bool causal = trace_causal(m, s);
    if (reach_any(&s->reach) && m->n_q > m->n_k)
        return err_set(err, code,
                       "a window, chunk or prefix with more queries (%lld) than keys (%lld)",
                       (long long)m->n_q, (long long)m->n_k);
    if (s->reach.prefix && (!causal || s->reach.back || s->reach.ahead || s->reach.chunk))
        return err_set(err, code, "prefix = %lld: a prefix stands alone in causal attention, %s",
                       (long long)s->reach.prefix,
                       causal ? "without a window or chunk" : "this is bidirectional");
    if (s->reach.prefix > m->n_k)
        return err_set(err, code, "prefix = %lld is longer than the %lld keys",
                       (long long)s->reach.prefix, (long long)m->n_k);
    return check_biases(m, s, code, err);
}

void content_score(const struct trace_score *s, struct buf *b)
{
    bool any = false;
    for (size_t i = 0; i < FIELDS; i++) {
        if (!present(s, i))
            continue;
        buf_printf(b, "%s %s=", any ? "" : "score", fields[i].name);
        if (fields[i].kind == REAL)
            buf_printf(b, "%.17g", real_at(s, i));
        else
            buf_printf(b, "%lld", (long long)stored(s, i));
        any = true;
    }
    if (any)
        buf_puts(b, "\n");
}

int64_t trace_call_pairs(const struct trace *t, int64_t call)
{
    const struct trace_meta *m = trace_meta(t);
    const struct trace_score *score = &trace_call(t, call)->score;
    struct head_shape shape = {m->n_q, m->n_k, trace_causal(m, score), score->reach};
    struct row_sample s;
    int64_t pairs = 0;
    if (!trace_rows(t, &s))
        return pairs_within(&shape, 0, m->n_q, 0, m->n_k);
    shape.nq = m->n_k;
    for (int64_t g = 0; g < row_sample_groups(&s); g++) {
        struct row_span span = row_sample_span(&s, g);
        pairs += pairs_within(&shape, span.pos, span.pos + span.rows, 0, m->n_k);
    }
    return pairs;
}

void trace_score_text(const struct trace_score *s, char text[TRACE_SCORE_TEXT])
{
    size_t n = 0, size = TRACE_SCORE_TEXT;
    text[0] = '\0';
#define ADD(...) n += (size_t)snprintf(text + n, size - n, __VA_ARGS__)
    if (s->scale != 0)
        ADD(", scale %.6g", s->scale);
    if (s->causal)
        ADD(", %s", s->causal == CALL_CAUSAL ? "causal" : "bidirectional");
    if (s->reach.back && !s->reach.ahead)
        ADD(", window %lld", (long long)s->reach.back);
    else if (s->reach.back)
        ADD(", window_left %lld", (long long)s->reach.back - 1);
    if (s->reach.ahead)
        ADD(", window_right %lld", (long long)s->reach.ahead - 1);
    if (s->reach.chunk)
        ADD(", chunk %lld", (long long)s->reach.chunk);
    if (s->reach.prefix)
        ADD(", prefix %lld", (long long)s->reach.prefix);
    if (s->text_valid)
        ADD(", %lld valid text tokens", (long long)s->text_valid - 1);
    if (s->softcap > 0)
        ADD(", softcap %g", s->softcap);
    if (s->sinks)
        ADD(", sinks");
    if (s->alibi)
        ADD(", ALiBi");
    if (s->rel_bias)
        ADD(", relative bias");
    if (s->bias)
        ADD(", bias");
#undef ADD
    if (n)
        memmove(text, text + 2, n - 1);
}

void trace_score_json(const struct trace_score *s, struct jw *w)
{
    for (size_t i = 0; i < FIELDS; i++) {
        if (!present(s, i))
            continue;
        if (fields[i].kind == REAL)
            jw_knum(w, fields[i].name, real_at(s, i));
        else if (fields[i].kind == FLAG)
            jw_kbool(w, fields[i].name, stored(s, i) != 0);
        else
            jw_kint(w, fields[i].name, stored(s, i));
    }
    if (s->sinks)
        jw_kbool(w, "sinks", true);
    if (s->alibi)
        jw_kbool(w, "alibi", true);
    if (s->rel_bias)
        jw_kbool(w, "rel_bias", true);
    if (s->bias)
        jw_kbool(w, "bias", true);
}

int trace_score_set(struct trace_score *s, const char *name, const char *value, struct err *err)
{
    for (size_t i = 0; i < FIELDS; i++) {
        char *at = (char *)s + fields[i].offset;
        if (strcmp(name, fields[i].name) != 0)
            continue;
        double x;
        bool fits = num_fills(value, &x);
        if (fits && fields[i].kind != REAL)
            fits = fields[i].kind == FLAG ? x == 0 || x == 1
                                          : x == floor(x) && x >= -1 && x < INT32_MAX;
        if (!fits)
            return err_set(err, ERR_USAGE, "%s = '%s' is not a %s", name, value,
                           fields[i].kind == REAL ? "number" : "count");
        int64_t n = fields[i].kind == REAL ? 0 : (int64_t)x + from_zero(i);
        memcpy(at, fields[i].kind == REAL ? (const void *)&x : &n, 8);
        return 0;
    }
    return 1;
}

const char *trace_score_name(int i)
{
    return i >= 0 && (size_t)i < FIELDS ? fields[i].name : NULL;
}

bool trace_score_is_set(const struct trace_score *s, int i, double *value)
{
    bool is_real = fields[i].kind == REAL;
    if (value)
        *value = is_real ? real_at(s, (size_t)i) : (double)stored(s, (size_t)i);
    return present(s, (size_t)i);
}

void trace_score_rebase(struct trace_score *s, const struct trace_meta *from,
                        const struct trace_meta *to)
{
    bool causal = trace_causal(from, s);
    int64_t valid = trace_text_valid(from, s);
    s->causal = causal == to->causal ? CAUSAL_AS_MODEL : causal ? CALL_CAUSAL : CALL_BIDIRECTIONAL;
    s->text_valid = valid == to->text_valid ? 0 : valid + 1;
}

/* ---- a head as input of exact attention ------------------------------------------------------ */

int trace_attn(const struct trace *t, int64_t call, int head, struct attn_in *in, float **rel,
               struct err *err)
{
    const struct trace_meta *m = trace_meta(t);
    const struct trace_score *s = &trace_call(t, call)->score;
    bool causal = trace_causal(m, s);
    int64_t n_k = m->n_k;
    *rel = NULL;
    *in = (struct attn_in){
        .nq = m->row_group ? n_k : m->n_q,
        .nk = n_k,
        .d = m->head_dim,
        .dv = m->v_dim,
        .scale = trace_call_scale(t, call),
        .causal = causal,
        .reach = {.back = s->reach.back < n_k ? s->reach.back : 0,
                  .ahead = !causal && s->reach.ahead < n_k ? s->reach.ahead : 0,
                  .chunk = s->reach.chunk < n_k ? s->reach.chunk : 0,
                  .prefix = s->reach.prefix},
        .mods = {.softcap = s->softcap, .has_sink = s->sinks},
    };
    float sink, slope;
    PASS_ON(trace_read_values(t, call, TRACE_SINKS, head, &sink, err));
    PASS_ON(trace_read_values(t, call, TRACE_ALIBI, head, &slope, err));
    in->mods.sink = sink;
    in->mods.alibi = slope;
    if (s->rel_bias) {
        PASS_ON(mem_alloc(rel, 2 * n_k - 1, sizeof **rel, "relative bias", err));
        PASS_ON(trace_read_values(t, call, TRACE_REL_BIAS, head, *rel, err));
        in->mods.rel = *rel + n_k - 1;
    }
    if (s->bias) {
        PASS_ON(mem_alloc(rel, m->n_q * n_k, sizeof **rel, "bias", err));
        PASS_ON(trace_read_values(t, call, TRACE_BIAS, head, *rel, err));
        in->mods.pair = (struct pair_bias){*rel, n_k, n_k - m->n_q};
    }
    return 0;
}
