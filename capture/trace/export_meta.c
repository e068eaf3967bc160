/*
 * export_meta.c - see export_meta.h.
 */
#include "capture/trace/export_meta.h"

#include <stdio.h>

static void put(json_t *o, const char *key, const char *value)
{
    if (value[0])
        json_object_set_new(o, key, json_string(value));
}

static void put_number(json_t *o, const char *key, double x)
{
    char text[40];
    snprintf(text, sizeof text, "%.17g", x);
    put(o, key, text);
}

/* The model's numbers of the heads where they are not 0 .. n - 1, and each kv head serves as many
 * of them as the next. */
static void put_heads(json_t *o, const struct trace_meta *m, const int64_t *heads, int64_t n,
                      const int *kv, int64_t n_kv)
{
    char ids[512] = "", kv_ids[512] = "";
    size_t at = 0, kv_at = 0;
    bool all = n == m->heads && !m->head_ids[0];

    for (int64_t i = 0; i < n; i++)
        if (n % n_kv || heads[i] / (m->heads / m->kv_heads) != kv[i / (n / n_kv)])
            return;
    for (int64_t i = 0; i < n && at < sizeof ids; i++)
        at += (size_t)snprintf(ids + at, sizeof ids - at, "%s%d", i ? "," : "",
                               trace_head_number(m, (int)heads[i]));
    for (int64_t i = 0; i < n_kv && kv_at < sizeof kv_ids; i++)
        kv_at += (size_t)snprintf(kv_ids + kv_at, sizeof kv_ids - kv_at, "%s%d", i ? "," : "",
                                  trace_kv_number(m, kv[i]));
    if (all || at >= sizeof ids || kv_at >= sizeof kv_ids)
        return;
    put(o, "head_ids", ids);
    put(o, "kv_head_ids", kv_ids);
}

static void put_video(json_t *o, const struct trace_meta *m)
{
    char grid[80];
    if (m->grid_t == 0)
        return;
    snprintf(grid, sizeof grid, "%lldx%lldx%lld", (long long)m->grid_t, (long long)m->grid_h,
             (long long)m->grid_w);
    put(o, "grid", grid);
    put(o, "token_order", m->token_order);
    if (m->text_tokens == 0)
        return;
    put(o, "text_place", m->text_place);
    put_number(o, "text_tokens", (double)m->text_tokens);
    put_number(o, "text_valid", (double)m->text_valid);
}

/* What a call does to its scores, under the prefix of its tensors. */
static void put_score(json_t *o, const struct trace_call *c)
{
    char key[96];
    double value;
    for (int i = 0; trace_score_name(i); i++)
        if (trace_score_is_set(&c->score, i, &value)) {
            snprintf(key, sizeof key, "step-%03d.%s.layer-%02d.%s", c->step, c->branch, c->layer,
                     trace_score_name(i));
            put_number(o, key, value);
        }
}

int export_metadata(const struct trace *t, const int64_t *heads, int64_t n_heads, const int *kv,
                    int64_t n_kv, json_t **out, struct err *err)
{
    const struct trace_meta *m = trace_meta(t);
    json_t *o = json_object();

    if (!o)
        return err_set(err, ERR_NOMEM, "metadata");
    put(o, "name", m->name);
    put(o, "architecture", m->architecture);
    put(o, "weights_id", m->weights_id);
    put(o, "positions", m->positions);
    put(o, "positions_applied", m->positions_applied ? "true" : "false");
    put(o, "compute", m->compute);
    put(o, "prompt_id", m->prompt_id);
    put(o, "negative_id", m->negative_id);
    put(o, "sampler", m->sampler);
    put(o, "causal", m->causal ? "true" : "false");
    put_number(o, "scale", m->scale);
    put_number(o, "layers", m->layers);
    if (m->row_group > 0)
        put_number(o, "row_group", (double)m->row_group);
    if (m->steps > 0)
        put_number(o, "steps", (double)m->steps);
    put_video(o, m);
    put_heads(o, m, heads, n_heads, kv, n_kv);
    for (int64_t i = 0; i < trace_calls(t); i++)
        put_score(o, trace_call(t, i));
    *out = o;
    return 0;
}
