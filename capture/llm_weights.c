/*
 * llm_weights.c - tensors of a decoder layer: one table of names and shapes says which there are.
 */
#include "capture/llm_weights.h"

#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum dim { NONE, HIDDEN, QDIM, KVDIM, HEAD, FFN };

static const struct spec {
    const char *name;
    enum dim rows, cols; /* cols NONE = vector */
} specs[LLM_LAYER_TENSORS] = {
    [LLM_NORM1] = {"input_layernorm.weight", HIDDEN, NONE},
    [LLM_Q] = {"self_attn.q_proj.weight", QDIM, HIDDEN},
    [LLM_Q_B] = {"self_attn.q_proj.bias", QDIM, NONE},
    [LLM_K] = {"self_attn.k_proj.weight", KVDIM, HIDDEN},
    [LLM_K_B] = {"self_attn.k_proj.bias", KVDIM, NONE},
    [LLM_V] = {"self_attn.v_proj.weight", KVDIM, HIDDEN},
    [LLM_V_B] = {"self_attn.v_proj.bias", KVDIM, NONE},
    [LLM_O] = {"self_attn.o_proj.weight", HIDDEN, QDIM},
    [LLM_O_B] = {"self_attn.o_proj.bias", HIDDEN, NONE},
    [LLM_QN] = {"self_attn.q_norm.weight", HEAD, NONE},
    [LLM_KN] = {"self_attn.k_norm.weight", HEAD, NONE},
    [LLM_NORM2] = {"post_attention_layernorm.weight", HIDDEN, NONE},
    [LLM_GATE] = {"mlp.gate_proj.weight", FFN, HIDDEN},
    [LLM_GATE_B] = {"mlp.gate_proj.bias", FFN, NONE},
    [LLM_UP] = {"mlp.up_proj.weight", FFN, HIDDEN},
    [LLM_UP_B] = {"mlp.up_proj.bias", FFN, NONE},
    [LLM_DOWN] = {"mlp.down_proj.weight", HIDDEN, FFN},
    [LLM_DOWN_B] = {"mlp.down_proj.bias", HIDDEN, NONE},
};

static int64_t dim_size(const struct llm_config *c, enum dim d)
{
    switch (d) {
    case NONE:
        return 0;
    case HIDDEN:
        return c->hidden;
    case QDIM:
        return (int64_t)c->heads * c->head_dim;
    case KVDIM:
        return (int64_t)c->kv_heads * c->head_dim;
    case HEAD:
        return c->head_dim;
    case FFN:
        return c->ffn;
    }
    return 0;
}

static bool has_tensor(const struct llm_config *c, int i)
{
    switch (i) {
    case LLM_Q_B:
    case LLM_K_B:
    case LLM_V_B:
        return c->qkv_bias;
    case LLM_O_B:
        return c->o_bias;
    case LLM_QN:
    case LLM_KN:
        return c->qk_norm;
    case LLM_GATE_B:
    case LLM_UP_B:
    case LLM_DOWN_B:
        return c->mlp_bias;
    default:
        return true;
    }
}

int llm_tensor_require(const struct llm_model *m, const char *name, int ndim, const int64_t *shape,
                       const struct st_tensor **t, struct err *err)
{
    int rc = st_require(m->file, name, ndim, shape, t, err);
    if (rc)
        return rc;
    enum dtype d = (*t)->dtype;
    if (d != DT_F32 && d != DT_BF16 && d != DT_F16 && d != DT_F64)
        return err_set(err, ERR_INPUT,
                       "tensor '%s' is stored as %s; supported: F32, F16, BF16, F64", name,
                       (*t)->dtype_text);
    return 0;
}

static int find(const struct llm_model *m, int layer, int i, const struct st_tensor **t,
                struct err *err)
{
    char name[128];
    int64_t shape[2] = {dim_size(&m->c, specs[i].rows), dim_size(&m->c, specs[i].cols)};
    snprintf(name, sizeof name, "model.layers.%d.%s", layer, specs[i].name);
    return llm_tensor_require(m, name, specs[i].cols == NONE ? 1 : 2, shape, t, err);
}

int llm_layer_check(const struct llm_model *m, int layer, struct err *err)
{
    const struct st_tensor *t;
    int rc = 0;
    for (int i = 0; i < LLM_LAYER_TENSORS; i++)
        if (has_tensor(&m->c, i))
            TRY(find(m, layer, i, &t, err));
out:
    return rc;
}

int llm_layer_load(const struct llm_model *m, int layer, struct llm_layer *l, struct err *err)
{
    int rc = 0;
    llm_layer_free(l);
    for (int i = 0; i < LLM_LAYER_TENSORS; i++) {
        const struct st_tensor *t;
        if (!has_tensor(&m->c, i))
            continue;
        TRY(find(m, layer, i, &t, err));
        TRY(mem_alloc(&l->t[i], t->count, sizeof(float), t->name, err));
        TRY(st_read_f32(m->file, t, 0, t->count, l->t[i], err));
    }
out:
    if (rc)
        llm_layer_free(l);
    return rc;
}

void llm_layer_free(struct llm_layer *l)
{
    for (int i = 0; i < LLM_LAYER_TENSORS; i++)
        free(l->t[i]);
    memset(l, 0, sizeof *l);
}

int llm_raw_tensor(const struct llm_model *m, const struct st_tensor *t, struct decoder_tensor *out,
                   struct err *err)
{
    bool wide = t->dtype == DT_F64;
    void *data = NULL;
    int rc = 0;
    TRY(mem_alloc(&data, t->count, wide ? sizeof(float) : dtype_size(t->dtype), t->name, err));
    if (wide)
        TRY(st_read_f32(m->file, t, 0, t->count, data, err));
    else
        TRY(st_read_raw(m->file, t, 0, t->count, data, err));
    *out = (struct decoder_tensor){data, wide ? DT_F32 : t->dtype, t->shape[0],
                                   t->ndim == 2 ? t->shape[1] : 1};
    data = NULL;
out:
    free(data);
    return rc;
}

int llm_raw_load(const struct llm_model *m, int layer, struct llm_raw_layer *l, struct err *err)
{
    int rc = 0;
    llm_raw_free(l);
    for (int i = 0; i < LLM_LAYER_TENSORS; i++) {
        const struct st_tensor *t;
        if (!has_tensor(&m->c, i))
            continue;
        TRY(find(m, layer, i, &t, err));
        TRY(llm_raw_tensor(m, t, &l->t[i], err));
    }
out:
    if (rc)
        llm_raw_free(l);
    return rc;
}

void llm_raw_free(struct llm_raw_layer *l)
{
    for (int i = 0; i < LLM_LAYER_TENSORS; i++)
        free((void *)(uintptr_t)l->t[i].data);
    memset(l, 0, sizeof *l);
}

int64_t llm_layer_bytes(const struct llm_config *c)
{
    int64_t n = 0;
    for (int i = 0; i < LLM_LAYER_TENSORS; i++)
        if (has_tensor(c, i))
            n += dim_size(c, specs[i].rows) *
                 (specs[i].cols == NONE ? 1 : dim_size(c, specs[i].cols));
    return n * (int64_t)sizeof(float);
}
