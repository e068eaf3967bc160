/*
 * llm_experts.h - the feed-forward part of a layer with experts (Mixtral, Qwen3-MoE): every token
 * goes through the few experts that the router gives most.
 */
#ifndef LACUNA_LLM_EXPERTS_H
#define LACUNA_LLM_EXPERTS_H

#include "capture/llm_weights.h"

/* Work space for `rows` tokens. */
struct llm_experts {
    float *logits;      /* [rows][experts]; then the weights, 0 for experts not chosen */
    float *sum;         /* [rows][hidden] */
    float *in, *out;    /* [rows][hidden]: tokens of one expert */
    float *gate, *up;   /* [rows][expert_ffn] */
    int64_t *of_expert; /* [rows]: their numbers */
};

int llm_experts_init(struct llm_experts *e, const struct llm_config *c, int64_t rows,
                     struct err *err);
void llm_experts_free(struct llm_experts *e);
int64_t llm_experts_bytes(const struct llm_config *c, int64_t rows); /* 0 without experts */

/* x [n][hidden], normed, becomes what the experts make of it. */
int llm_experts_run(struct llm_experts *e, const struct llm_config *c, const struct llm_layer *l,
                    float *x, int64_t n, int jobs, struct err *err);

#endif
