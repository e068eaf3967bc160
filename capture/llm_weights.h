/*
 * llm_weights.h - tensors of one decoder layer by name and shape.
 */
#ifndef LACUNA_LLM_WEIGHTS_H
#define LACUNA_LLM_WEIGHTS_H

#include "capture/llm_model.h"
#include "core/decoder.h"

struct llm_layer {
    int number;
    float *t[LLM_LAYER_TENSORS]; /* owned; NULL where the architecture has none */
};

/* A tensor by name; ERR_INPUT unless it is there with this shape and holds floating-point numbers.
 */
int llm_tensor_require(const struct llm_model *m, const char *name, int ndim, const int64_t *shape,
                       const struct st_tensor **t, struct err *err);

/* Check that all tensors of a layer are there. */
int llm_layer_check(const struct llm_model *m, int layer, struct err *err);

/* Read a layer into *l (freed and reused). */
int llm_layer_load(const struct llm_model *m, int layer, struct llm_layer *l, struct err *err);
void llm_layer_free(struct llm_layer *l);

/* The same layer as stored (float64 becomes float32), for a device: t[i].data is owned. */
struct llm_raw_layer {
    struct decoder_tensor t[LLM_LAYER_TENSORS];
};
int llm_raw_load(const struct llm_model *m, int layer, struct llm_raw_layer *l, struct err *err);
void llm_raw_free(struct llm_raw_layer *l);

/* Memory of the largest layer in float32. */
int64_t llm_layer_bytes(const struct llm_config *c);

/* Weights by which a token is multiplied, per layer, on average: of its experts the chosen ones. */
double llm_active_weights(const struct llm_config *c);

#endif
