/*
 * trace_info.c - what a trace holds, as text and as JSON.
 */
#include "capture/trace/trace_tools.h"
#include "core/mem.h"
#include "core/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void put_line(struct buf *b, const char *key)
{
    buf_printf(b, "%-9s ", key);
}

static void text_model(const struct trace_meta *m, struct buf *b)
{
    put_line(b, "model");
    buf_printf(b, "%s", m->name[0] ? m->name : "(no name)");
    if (m->architecture[0])
        buf_printf(b, ", %s", m->architecture);
    buf_puts(b, "\n");
    if (m->weights_id[0]) {
        put_line(b, "");
        buf_printf(b, "weights %s\n", m->weights_id);
    }
    if (m->weight_types[0]) {
        put_line(b, "");
        buf_printf(b, "stored as %s\n", m->weight_types);
    }
    put_line(b, "");
    buf_printf(b, "%d layer%s, %d query and %d kv heads, head dim %d", m->layers,
               m->layers == 1 ? "" : "s", m->heads, m->kv_heads, m->head_dim);
    if (m->head_ids[0])
        buf_printf(b, " (heads %s, kv heads %s of the model)", m->head_ids, m->kv_head_ids);
    if (m->v_dim != m->head_dim)
        buf_printf(b, ", value dim %d", m->v_dim);
    buf_printf(b, ", scale %.6g, %s\n", m->scale, m->causal ? "causal" : "bidirectional");
    put_line(b, "");
    buf_printf(b, "%s", dtype_name(m->dtype));
    if (m->compute[0])
        buf_printf(b, ", computed in %s", m->compute);
    buf_printf(b, ", positions %s", m->positions_applied ? "applied" : "not applied");
    buf_printf(b, m->positions[0] ? " (%s)\n" : "\n", m->positions);
}

static void text_video(const struct trace_meta *m, struct buf *b)
{
    put_line(b, "video");
    buf_printf(b, "grid %lldx%lldx%lld", (long long)m->grid_t, (long long)m->grid_h,
               (long long)m->grid_w);
    if (m->frames > 0)
        buf_printf(b, " of %lld frames %lldx%lld", (long long)m->frames, (long long)m->height,
                   (long long)m->width);
    if (m->text_tokens > 0)
        buf_printf(b, ", %lld text tokens (%lld valid) at the %s", (long long)m->text_tokens,
                   (long long)m->text_valid, m->text_place);
    buf_printf(b, ", order %s\n", m->token_order[0] ? m->token_order : "unknown");
    if (!m->sampler[0] && m->steps == 0)
        return;
    put_line(b, "sampler");
    buf_printf(b, "%s, %lld steps", m->sampler[0] ? m->sampler : "unknown", (long long)m->steps);
    if (m->shift != 0)
        buf_printf(b, ", shift %g", m->shift);
    if (m->guidance != 0)
        buf_printf(b, ", guidance %g", m->guidance);
    buf_puts(b, "\n");
}

static void text_run(const struct trace *t, struct buf *b)
{
    const struct trace_meta *m = trace_meta(t);
    put_line(b, "run");
    buf_printf(b, "%s, %lld queries x %lld keys, seed %lld", m->source, (long long)m->n_q,
               (long long)m->n_k, (long long)m->seed);
    buf_printf(b, m->prompt_id[0] ? ", prompt %s\n" : "\n", m->prompt_id);
    if (m->max_positions > 0) {
        put_line(b, "");
        buf_printf(b, "beyond the model's %lld positions\n", (long long)m->max_positions);
    }
    struct row_sample s;
    if (trace_rows(t, &s)) {
        put_line(b, "rows");
        buf_printf(b, "a sample of %lld groups of %lld query rows\n",
                   (long long)row_sample_groups(&s), (long long)s.group);
    }
    struct trace_decode decode = trace_decode(m);
    if (decode.from) {
        put_line(b, "decode");
        buf_printf(b,
                   "prompt of %lld tokens, %lld generated%s%s%s; queries of the last %lld tokens "
                   "of the prompt",
                   (long long)decode.from, (long long)decode.steps, m->generated_by[0] ? " (" : "",
                   m->generated_by, m->generated_by[0] ? ")" : "", (long long)decode.window);
        if (m->question_from)
            buf_printf(b, ", question from token %lld", (long long)m->question_from);
        buf_puts(b, "\n");
    }
    if (m->computed_by[0]) {
        put_line(b, "");
        buf_printf(b, "computed by %s\n", m->computed_by);
    }
    if (m->pool > 0) {
        put_line(b, "maps");
        buf_printf(b, "%lld x %lld cells of %lld x %lld pairs\n",
                   (long long)trace_map_cells(t, false), (long long)trace_map_cells(t, true),
                   (long long)m->pool, (long long)m->pool);
    }
}

static bool same_row(const struct trace_call *a, const struct trace_call *b)
{
    return a->step == b->step && strcmp(a->branch, b->branch) == 0 && a->has_out == b->has_out &&
           a->has_lse == b->has_lse && a->has_map == b->has_map &&
           a->has_col_sum == b->has_col_sum && memcmp(a->aux, b->aux, sizeof a->aux) == 0 &&
           trace_score_equal(&a->score, &b->score);
}

/* Layers of the calls [i, end) of one row, "0-3,5". */
static void put_layers(const struct trace *t, int64_t i, int64_t end, struct buf *b)
{
    for (bool first = true; i < end; first = false) {
        int64_t j = i;
        while (j + 1 < end && trace_call(t, j + 1)->layer == trace_call(t, j)->layer + 1)
            j++;
        buf_printf(b, first ? "%d" : ",%d", trace_call(t, i)->layer);
        if (j > i)
            buf_printf(b, "-%d", trace_call(t, j)->layer);
        i = j + 1;
    }
}

static void text_calls(const struct trace *t, struct buf *b)
{
    int64_t n = trace_calls(t);
    put_line(b, "calls");
    buf_printf(b, "%lld\n", (long long)n);
    if (n > 0)
        buf_printf(b, "  %4s  %9s  %8s  %-8s  %-20s  %s\n", "step", "timestep", "sigma", "branch",
                   "layers", "holds");
    for (int64_t i = 0, end; i < n; i = end) {
        const struct trace_call *c = trace_call(t, i);
        OWN(buf_free) struct buf layers = {0};
        char time[32] = "-", sigma[32] = "-", score[TRACE_SCORE_TEXT];
        for (end = i + 1; end < n && same_row(c, trace_call(t, end)); end++)
            ;
        put_layers(t, i, end, &layers);
        if (!isnan(c->timestep))
            snprintf(time, sizeof time, "%.6g", c->timestep);
        if (!isnan(c->sigma))
            snprintf(sigma, sizeof sigma, "%.6g", c->sigma);
        trace_score_text(&c->score, score);
        buf_printf(b, "  %4d  %9s  %8s  %-8s  %-20s  q k v%s%s%s%s", c->step, time, sigma,
                   c->branch, buf_str(&layers), c->has_out ? " out" : "", c->has_lse ? " lse" : "",
                   c->has_map ? " map" : "", c->has_col_sum ? " col_sum" : "");
        for (int e = 0; e < AUX_COUNT; e++)
            if (c->aux[e].heads)
                buf_printf(b, " %s", trace_aux_name((enum trace_aux)e));
        buf_printf(b, "%s%s\n", score[0] ? "; " : "", score);
    }
}

int trace_info_text(const struct trace *t, struct buf *b, struct err *err)
{
    struct trace_extent e;
    char stored[24], bytes[24];
    PASS_ON(trace_extent(t, &e, err));
    put_line(b, "trace");
    buf_printf(b, "%s\n", trace_path(t));
    put_line(b, "content");
    buf_printf(b, "%s\n", trace_id(t));
    put_line(b, "storage");
    buf_printf(b, "%s, ", trace_storage_name(trace_storage(t)));
    bytes_text((double)e.stored, stored);
    bytes_text((double)e.bytes, bytes);
    buf_printf(b, "%s in the file, %lld objects of %s\n", stored, (long long)e.objects, bytes);
    text_model(trace_meta(t), b);
    text_run(t, b);
    if (trace_meta(t)->grid_t > 0)
        text_video(trace_meta(t), b);
    text_calls(t, b);
    return 0;
}

static void json_call(const struct trace_call *c, struct jw *w)
{
    jw_obj(w);
    jw_members(w, JW_INT("order", c->order), JW_INT("step", c->step), JW_STR("branch", c->branch),
               JW_INT("layer", c->layer), JW_STR("block", c->block),
               JW_NUM("timestep", c->timestep), JW_NUM("sigma", c->sigma),
               JW_BOOL("out", c->has_out), JW_BOOL("lse", c->has_lse), JW_BOOL("map", c->has_map));
    if (c->has_col_sum)
        jw_kbool(w, "col_sum", true);
    for (int i = 0; i < AUX_COUNT; i++)
        if (c->aux[i].heads)
            jw_kbool(w, trace_aux_name((enum trace_aux)i), true);
    trace_score_json(&c->score, w);
    jw_obj_end(w);
}

int trace_info_json(const struct trace *t, struct jw *w, struct err *err)
{
    struct trace_extent e;
    PASS_ON(trace_extent(t, &e, err));
    jw_obj(w);
    jw_members(w, JW_STR("trace", trace_path(t)), JW_STR("content_id", trace_id(t)),
               JW_STR("storage", trace_storage_name(trace_storage(t))),
               JW_INT("file_bytes", e.stored), JW_INT("objects", e.objects),
               JW_INT("payload_bytes", e.bytes));
    trace_meta_json(trace_meta(t), w);
    jw_karr(w, "calls");
    for (int64_t i = 0; i < trace_calls(t); i++)
        json_call(trace_call(t, i), w);
    jw_arr_end(w);
    jw_obj_end(w);
    return 0;
}
