/*
 * llm_weights.c - tensors of a decoder layer: one table of names and shapes says which there are.
 */
#include "capture/llm_model.h"

#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum dim { NONE, HIDDEN, QDIM, KVDIM, HEAD, FFN, EXPERTS, EXPERT_FFN };

/* Names behind model.layers.N. (of GGUF blk.N.) in each naming (NULL: as the first); %d is the
 * expert. */
static const struct spec {
    const char *name, *mixtral, *internlm2, *gguf;
    enum dim rows, cols; /* cols NONE = vector */
} specs[LLM_LAYER_TENSORS] = {
    [LLM_NORM1] = {"input_layernorm.weight", NULL, "attention_norm.weight", "attn_norm.weight",
                   HIDDEN, NONE},
    [LLM_Q] = {"self_attn.q_proj.weight", NULL, "attention.wqkv.weight", "attn_q.weight", QDIM,
               HIDDEN},
    [LLM_Q_B] = {"self_attn.q_proj.bias", NULL, "attention.wqkv.bias", "attn_q.bias", QDIM, NONE},
    [LLM_K] = {"self_attn.k_proj.weight", NULL, "attention.wqkv.weight", "attn_k.weight", KVDIM,
               HIDDEN},
    [LLM_K_B] = {"self_attn.k_proj.bias", NULL, "attention.wqkv.bias", "attn_k.bias", KVDIM, NONE},
    [LLM_V] = {"self_attn.v_proj.weight", NULL, "attention.wqkv.weight", "attn_v.weight", KVDIM,
               HIDDEN},
    [LLM_V_B] = {"self_attn.v_proj.bias", NULL, "attention.wqkv.bias", "attn_v.bias", KVDIM, NONE},
    [LLM_O] = {"self_attn.o_proj.weight", NULL, "attention.wo.weight", "attn_output.weight", HIDDEN,
               QDIM},
    [LLM_O_B] = {"self_attn.o_proj.bias", NULL, "attention.wo.bias", "attn_output.bias", HIDDEN,
                 NONE},
    [LLM_QN] = {"self_attn.q_norm.weight", NULL, NULL, "attn_q_norm.weight", HEAD, NONE},
    [LLM_KN] = {"self_attn.k_norm.weight", NULL, NULL, "attn_k_norm.weight", HEAD, NONE},
    [LLM_NORM2] = {"post_attention_layernorm.weight", NULL, "ffn_norm.weight", "ffn_norm.weight",
                   HIDDEN, NONE},
    [LLM_GATE] = {"mlp.gate_proj.weight", NULL, "feed_forward.w1.weight", "ffn_gate.weight", FFN,
                  HIDDEN},
    [LLM_GATE_B] = {"mlp.gate_proj.bias", NULL, NULL, "ffn_gate.bias", FFN, NONE},
    [LLM_UP] = {"mlp.up_proj.weight", NULL, "feed_forward.w3.weight", "ffn_up.weight", FFN, HIDDEN},
    [LLM_UP_B] = {"mlp.up_proj.bias", NULL, NULL, "ffn_up.bias", FFN, NONE},
    [LLM_DOWN] = {"mlp.down_proj.weight", NULL, "feed_forward.w2.weight", "ffn_down.weight", HIDDEN,
                  FFN},
    [LLM_DOWN_B] = {"mlp.down_proj.bias", NULL, NULL, "ffn_down.bias", HIDDEN, NONE},
    [LLM_POST1] = {"post_self_attn_layernorm.weight", NULL, NULL, "post_attention_norm.weight",
                   HIDDEN, NONE},
    [LLM_POST2] = {"post_mlp_layernorm.weight", NULL, NULL, "post_ffw_norm.weight", HIDDEN, NONE},
    [LLM_ROUTER] = {"mlp.gate.weight", "block_sparse_moe.gate.weight", NULL, NULL, EXPERTS, HIDDEN},
    [LLM_E_GATE] = {"mlp.experts.%d.gate_proj.weight", "block_sparse_moe.experts.%d.w1.weight",
                    NULL, NULL, EXPERT_FFN, HIDDEN},
    [LLM_E_UP] = {"mlp.experts.%d.up_proj.weight", "block_sparse_moe.experts.%d.w3.weight", NULL,
                  NULL, EXPERT_FFN, HIDDEN},
    [LLM_E_DOWN] = {"mlp.experts.%d.down_proj.weight", "block_sparse_moe.experts.%d.w2.weight",
                    NULL, NULL, HIDDEN, EXPERT_FFN},
};

/* Rows of a tensor of the file that are those of a layer's tensor: `blocks` times `count` rows,
 * every `stride` rows from `first` on. */
struct part {
    const struct st_tensor *t;
    int64_t cols, first, count, stride, blocks;
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
    case EXPERTS:
        return c->experts;
    case EXPERT_FFN:
        return c->expert_ffn;
    }
    return 0;
}

static bool of_experts(int i)
{
    return i == LLM_E_GATE || i == LLM_E_UP || i == LLM_E_DOWN;
}

static bool has_tensor(const struct llm_config *c, int layer, int i)
{
    bool sparse = llm_has_experts(c, layer);
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
    case LLM_GATE:
    case LLM_UP:
    case LLM_DOWN:
        return !sparse;
    case LLM_GATE_B:
    case LLM_UP_B:
    case LLM_DOWN_B:
        return c->mlp_bias;
    case LLM_POST1:
    case LLM_POST2:
        return c->post_norms;
    case LLM_ROUTER:
    case LLM_E_GATE:
    case LLM_E_UP:
    case LLM_E_DOWN:
        return sparse;
    default:
        return true;
    }
}

int llm_tensor_require(const struct llm_model *m, const char *name, int ndim, const int64_t *shape,
                       const struct st_tensor **t, struct err *err)
{
    PASS_ON(st_require(m->file, name, ndim, shape, t, err));
    enum dtype d = (*t)->dtype;
    if (d != DT_F32 && d != DT_BF16 && d != DT_F16 && d != DT_F64)
        return err_set(err, ERR_INPUT,
                       "tensor '%s' is stored as %s; supported: F32, F16, BF16, F64", name,
                       (*t)->dtype_text);
    return 0;
}

/* Where q, k and v lie in a tensor that holds all three. */
static void split_qkv(const struct llm_config *c, int i, struct part *p, int64_t *rows)
{
    int64_t q = dim_size(c, QDIM), kv = dim_size(c, KVDIM), d = c->head_dim;
    int64_t group = c->heads / c->kv_heads, width = (group + 2) * d;
    int which = i == LLM_Q || i == LLM_Q_B ? 0 : i == LLM_K || i == LLM_K_B ? 1 : 2;
    *rows = q + 2 * kv;
    if (c->packing == PACK_QKV) {
        p->first = which == 0 ? 0 : which == 1 ? q : q + kv;
        return;
    }
    p->first = which == 0 ? 0 : (group + which - 1) * d;
    p->count = which == 0 ? group * d : d;
    p->stride = width;
    p->blocks = c->kv_heads;
}

static const char *tensor_name(const struct llm_config *c, int i)
{
    const struct spec *s = &specs[i];
    bool gguf = c->naming == NAMES_GGUF;
    bool gate_up = c->pack_gate_up && (i == LLM_GATE || i == LLM_UP);
    bool qkv = c->packing == PACK_QKV && (i == LLM_Q || i == LLM_K || i == LLM_V);
    const char *other = c->naming == NAMES_MIXTRAL     ? s->mixtral
                        : c->naming == NAMES_INTERNLM2 ? s->internlm2
                        : gguf                         ? s->gguf
                                                       : NULL;
    return gate_up ? (gguf ? "ffn_up.weight" : "mlp.gate_up_proj.weight")
           : qkv   ? (gguf ? "attn_qkv.weight" : "self_attn.qkv_proj.weight")
           : other ? other
                   : s->name;
}

static int find(const struct llm_model *m, int layer, int i, int expert, struct part *p,
                struct err *err)
{
    const struct llm_config *c = &m->c;
    char name[256], form[160];
    bool vector = specs[i].cols == NONE;
    int64_t rows = dim_size(c, specs[i].rows), cols = vector ? 1 : dim_size(c, specs[i].cols);
    *p = (struct part){.cols = cols, .count = rows, .blocks = 1};
    if (c->packing != PACK_NONE && i >= LLM_Q && i <= LLM_V_B)
        split_qkv(c, i, p, &rows);
    if (c->pack_gate_up && (i == LLM_GATE || i == LLM_UP)) {
        p->first = i == LLM_UP ? rows : 0;
        rows *= 2;
    }
    int64_t shape[2] = {rows, cols};
    snprintf(form, sizeof form, "%s", tensor_name(c, i));
    char *number = strstr(form, "%d");
    if (number) {
        *number = '\0';
        snprintf(name, sizeof name, "model.layers.%d.%s%d%s", layer, form, expert, number + 2);
    } else {
        snprintf(name, sizeof name, "%s.%d.%s", c->naming == NAMES_GGUF ? "blk" : "model.layers",
                 layer, form);
    }
    return llm_tensor_require(m, name, vector ? 1 : 2, shape, &p->t, err);
}

/* Tensors of the file that make up tensor i of a layer. */
static int files_of(const struct llm_config *c, int i)
{
    return of_experts(i) ? c->experts : 1;
}

int llm_layer_check(const struct llm_model *m, int layer, bool *used, struct err *err)
{
    struct part p;
    for (int i = 0; i < LLM_LAYER_TENSORS; i++)
        for (int e = 0; has_tensor(&m->c, layer, i) && e < files_of(&m->c, i); e++) {
            PASS_ON(find(m, layer, i, e, &p, err));
            used[p.t - st_at(m->file, 0)] = true;
        }
    return 0;
}

/* Rows of `width` bytes of q or k in the order of channels, where they lie in pairs. */
static int order_rows(const struct llm_config *c, int i, void *data, size_t width, struct err *err)
{
    bool of_q = i == LLM_Q || i == LLM_Q_B, of_k = i == LLM_K || i == LLM_K_B;
    int heads = of_q ? c->heads : of_k ? c->kv_heads : 0, d = c->head_dim;
    OWN(free_at) char *head = NULL;
    if (!c->paired_rows || heads == 0)
        return 0;
    PASS_ON(mem_alloc(&head, d, width, "a head's weights", err));
    for (char *to = data; heads > 0; heads--, to += (size_t)d * width) {
        memcpy(head, to, (size_t)d * width);
        for (size_t r = 0; r < (size_t)d; r++)
            memcpy(to + (r % 2 * (size_t)d / 2 + r / 2) * width, head + r * width, width);
    }
    return 0;
}

int llm_layer_load(const struct llm_model *m, int layer, struct llm_layer *l, struct err *err)
{
    llm_layer_free(l);
    l->number = layer;
    for (int i = 0; i < LLM_LAYER_TENSORS; i++) {
        struct part p = {0};
        if (!has_tensor(&m->c, layer, i))
            continue;
        for (int e = 0; e < files_of(&m->c, i); e++) {
            PASS_ON(find(m, layer, i, e, &p, err));
            int64_t block = p.count * p.cols, all = p.blocks * block;
            if (e == 0)
                PASS_ON(
                    mem_alloc(&l->t[i], files_of(&m->c, i) * all, sizeof(float), p.t->name, err));
            for (int64_t b = 0; b < p.blocks; b++)
                PASS_ON(st_read_f32(m->file, p.t, (p.first + b * p.stride) * p.cols, block,
                                    l->t[i] + e * all + b * block, err));
        }
        PASS_ON(order_rows(&m->c, i, l->t[i], (size_t)p.cols * sizeof(float), err));
    }
    return 0;
}

void llm_layer_free(struct llm_layer *l)
{
    for (int i = 0; i < LLM_LAYER_TENSORS; i++)
        free(l->t[i]);
    memset(l, 0, sizeof *l);
}

/* Rows of a tensor as stored. */
static int raw_part(const struct llm_model *m, const struct part *p, struct decoder_tensor *out,
                    struct err *err)
{
    bool wide = p->t->dtype == DT_F64;
    enum dtype dtype = wide ? DT_F32 : p->t->dtype;
    int64_t block = p->count * p->cols;
    OWN(free_at) char *data = NULL;
    PASS_ON(mem_alloc(&data, p->blocks * block, dtype_size(dtype), p->t->name, err));
    for (int64_t b = 0; b < p->blocks; b++) {
        int64_t at = (p->first + b * p->stride) * p->cols;
        char *to = data + b * block * (int64_t)dtype_size(dtype);
        if (wide)
            PASS_ON(st_read_f32(m->file, p->t, at, block, (float *)(void *)to, err));
        else
            PASS_ON(st_read_raw(m->file, p->t, at, block, to, err));
    }
    *out = (struct decoder_tensor){data, dtype, p->blocks * p->count, p->cols};
    data = NULL;
    return 0;
}

int llm_raw_load(const struct llm_model *m, int layer, struct llm_raw_layer *l, struct err *err)
{
    llm_raw_free(l);
    for (int i = 0; i < LLM_LAYER_TENSORS; i++) {
        struct part p;
        if (!has_tensor(&m->c, layer, i) || of_experts(i))
            continue;
        PASS_ON(find(m, layer, i, 0, &p, err));
        PASS_ON(raw_part(m, &p, &l->t[i], err));
        PASS_ON(order_rows(&m->c, i, (void *)(uintptr_t)l->t[i].data,
                           (size_t)p.cols * dtype_size(l->t[i].dtype), err));
    }
    return 0;
}

void llm_raw_free(struct llm_raw_layer *l)
{
    for (int i = 0; i < LLM_LAYER_TENSORS; i++)
        free((void *)(uintptr_t)l->t[i].data);
    memset(l, 0, sizeof *l);
}

/* Numbers of a layer; of its experts `experts`. */
static int64_t layer_numbers(const struct llm_config *c, int layer, int experts)
{
    int64_t n = 0;
    for (int i = 0; i < LLM_LAYER_TENSORS; i++)
        if (has_tensor(c, layer, i))
            n += (of_experts(i) ? experts : 1) * dim_size(c, specs[i].rows) *
                 (specs[i].cols == NONE ? 1 : dim_size(c, specs[i].cols));
    return n;
}

int64_t llm_layer_bytes(const struct llm_config *c)
{
    int64_t most = 0;
    for (int i = 0; i < c->layers; i++) {
        int64_t n = layer_numbers(c, i, c->experts);
        most = n > most ? n : most;
    }
    return most * (int64_t)sizeof(float);
}

double llm_active_weights(const struct llm_config *c)
{
    double sum = 0;
    for (int i = 0; i < c->layers; i++)
        sum += (double)layer_numbers(c, i, c->experts_used);
    return sum / c->layers;
}
