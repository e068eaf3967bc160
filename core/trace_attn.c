#include "core/trace_attn.h"

#include "core/mem.h"

int trace_attn(const struct trace *t, int64_t call, int head, struct attn_in *in, float **rel,
               struct err *err)
{
    const struct trace_meta *m = trace_meta(t);
    const struct trace_score *s = &trace_call(t, call)->score;
    bool causal = trace_causal(m, s);
    int64_t n_k = m->n_k;
    int rc = 0;

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
    TRY(trace_sink(t, call, head, &in->mods.sink, err));
    TRY(trace_alibi(t, call, head, &in->mods.alibi, err));
    if (s->rel_bias) {
        TRY(mem_alloc(rel, 2 * n_k - 1, sizeof **rel, "relative bias", err));
        TRY(trace_rel_bias(t, call, head, *rel, err));
        in->mods.rel = *rel + n_k - 1;
    }
    if (s->bias) {
        TRY(mem_alloc(rel, m->n_q * n_k, sizeof **rel, "bias", err));
        TRY(trace_bias(t, call, head, *rel, err));
        in->mods.pair = (struct pair_bias){*rel, n_k, n_k - m->n_q};
    }
out:
    return rc;
}
