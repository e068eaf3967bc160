/*
 * llm_weights.h - tensors of one decoder layer by name and shape.
 */
#ifndef LACUNA_LLM_WEIGHTS_H
#define LACUNA_LLM_WEIGHTS_H

#include "capture/llm_model.h"

/* Order of the table in llm_weights.c. A bias stands behind its weight. */
enum llm_tensor {
    LLM_NORM1, LLM_Q, LLM_Q_B, LLM_K, LLM_K_B, LLM_V, LLM_V_B, LLM_O, LLM_O_B, LLM_QN, LLM_KN,
    LLM_NORM2, LLM_GATE, LLM_GATE_B, LLM_UP, LLM_UP_B, LLM_DOWN, LLM_DOWN_B,
    LLM_LAYER_TENSORS
};

struct llm_layer {
    float *t[LLM_LAYER_TENSORS]; /* owned; NULL where the architecture has none */
};

/* A tensor by name; ERR_INPUT unless it is there with this shape and holds floating-point numbers. */
int llm_tensor_require(const struct llm_model *m, const char *name, int ndim, const int64_t *shape,
                       const struct st_tensor **t, struct err *err);

/* Check that all tensors of a layer are there. */
int llm_layer_check(const struct llm_model *m, int layer, struct err *err);

/* Read a layer into *l (freed and reused). */
int     llm_layer_load(const struct llm_model *m, int layer, struct llm_layer *l, struct err *err);
void    llm_layer_free(struct llm_layer *l);
int64_t llm_layer_bytes(const struct llm_config *c);

#endif
