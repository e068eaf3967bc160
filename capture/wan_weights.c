/*
 * wan_weights.c - tensors of a Wan 2.1 checkpoint by name and shape.
 */
#include "capture/nn.h"
#include "capture/wan_model.h"

#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sizes that occur in shapes. */
enum dim { NONE, ONE, SIX, TWO, DIM, FFN, FREQ, TEXT, DIM6, CIN, POUT, PT, PH, PW };

struct spec {
    const char *name;
    enum dim shape[5];
};

/* clang-format off */
static const struct spec block_specs[WAN_BLOCK_TENSORS] = {
    [WAN_MOD] = {"scale_shift_table", {ONE, SIX, DIM}},
    [WAN_Q1] = {"attn1.to_q.weight", {DIM, DIM}},       [WAN_Q1_B] = {"attn1.to_q.bias", {DIM}},
    [WAN_K1] = {"attn1.to_k.weight", {DIM, DIM}},       [WAN_K1_B] = {"attn1.to_k.bias", {DIM}},
    [WAN_V1] = {"attn1.to_v.weight", {DIM, DIM}},       [WAN_V1_B] = {"attn1.to_v.bias", {DIM}},
    [WAN_O1] = {"attn1.to_out.0.weight", {DIM, DIM}},   [WAN_O1_B] = {"attn1.to_out.0.bias", {DIM}},
    [WAN_NQ1] = {"attn1.norm_q.weight", {DIM}},         [WAN_NK1] = {"attn1.norm_k.weight", {DIM}},
    [WAN_Q2] = {"attn2.to_q.weight", {DIM, DIM}},       [WAN_Q2_B] = {"attn2.to_q.bias", {DIM}},
    [WAN_K2] = {"attn2.to_k.weight", {DIM, DIM}},       [WAN_K2_B] = {"attn2.to_k.bias", {DIM}},
    [WAN_V2] = {"attn2.to_v.weight", {DIM, DIM}},       [WAN_V2_B] = {"attn2.to_v.bias", {DIM}},
    [WAN_O2] = {"attn2.to_out.0.weight", {DIM, DIM}},   [WAN_O2_B] = {"attn2.to_out.0.bias", {DIM}},
    [WAN_NQ2] = {"attn2.norm_q.weight", {DIM}},         [WAN_NK2] = {"attn2.norm_k.weight", {DIM}},
    [WAN_F0] = {"ffn.net.0.proj.weight", {FFN, DIM}},   [WAN_F0_B] = {"ffn.net.0.proj.bias", {FFN}},
    [WAN_F2] = {"ffn.net.2.weight", {DIM, FFN}},        [WAN_F2_B] = {"ffn.net.2.bias", {DIM}},
    [WAN_NORM2] = {"norm2.weight", {DIM}},              [WAN_NORM2_B] = {"norm2.bias", {DIM}},
};
/* clang-format on */

#define EMBED "condition_embedder."
static const struct spec outer_specs[WAN_OUTER_TENSORS] = {
    [WAN_PATCH] = {"patch_embedding.weight", {DIM, CIN, PT, PH, PW}},
    [WAN_PATCH_B] = {"patch_embedding.bias", {DIM}},
    [WAN_TIME1] = {EMBED "time_embedder.linear_1.weight", {DIM, FREQ}},
    [WAN_TIME1_B] = {EMBED "time_embedder.linear_1.bias", {DIM}},
    [WAN_TIME2] = {EMBED "time_embedder.linear_2.weight", {DIM, DIM}},
    [WAN_TIME2_B] = {EMBED "time_embedder.linear_2.bias", {DIM}},
    [WAN_TIME_PROJ] = {EMBED "time_proj.weight", {DIM6, DIM}},
    [WAN_TIME_PROJ_B] = {EMBED "time_proj.bias", {DIM6}},
    [WAN_TEXT1] = {EMBED "text_embedder.linear_1.weight", {DIM, TEXT}},
    [WAN_TEXT1_B] = {EMBED "text_embedder.linear_1.bias", {DIM}},
    [WAN_TEXT2] = {EMBED "text_embedder.linear_2.weight", {DIM, DIM}},
    [WAN_TEXT2_B] = {EMBED "text_embedder.linear_2.bias", {DIM}},
    [WAN_OUT] = {"proj_out.weight", {POUT, DIM}},
    [WAN_OUT_B] = {"proj_out.bias", {POUT}},
    [WAN_OUT_MOD] = {"scale_shift_table", {ONE, TWO, DIM}},
};

static int64_t dim_size(const struct wan_config *c, enum dim d)
{
    switch (d) {
    case NONE:
        return 0;
    case ONE:
        return 1;
    case TWO:
        return 2;
    case SIX:
        return 6;
    case DIM:
        return c->dim;
    case FFN:
        return c->ffn_dim;
    case FREQ:
        return c->freq_dim;
    case TEXT:
        return c->text_dim;
    case DIM6:
        return 6 * c->dim;
    case CIN:
        return c->in_channels;
    case POUT:
        return c->out_channels * c->patch[0] * c->patch[1] * c->patch[2];
    case PT:
        return c->patch[0];
    case PH:
        return c->patch[1];
    case PW:
        return c->patch[2];
    }
    return 0;
}

static int find(const struct wan_model *m, const struct spec *s, int block,
                const struct st_tensor **t, struct err *err)
{
    char name[128];
    int64_t shape[5];
    int ndim = 0;
    if (block >= 0)
        snprintf(name, sizeof name, "blocks.%d.%s", block, s->name);
    else
        snprintf(name, sizeof name, "%s", s->name);
    for (; ndim < 5 && s->shape[ndim] != NONE; ndim++)
        shape[ndim] = dim_size(&m->c, s->shape[ndim]);
    return st_require(m->file, name, ndim, shape, t, err);
}

static int load(const struct wan_model *m, const struct spec *s, int block, float **out,
                struct err *err)
{
    const struct st_tensor *t = NULL;
    PASS_ON(find(m, s, block, &t, err));
    PASS_ON(mem_alloc(out, t->count, sizeof **out, t->name, err));
    return st_read_f32(m->file, t, 0, t->count, *out, err);
}

static bool has_tensor(const struct wan_config *c, int i)
{
    return c->cross_attn_norm || (i != WAN_NORM2 && i != WAN_NORM2_B);
}

static int load_block(const struct wan_model *m, int block, struct wan_block *b, struct err *err)
{
    int rc = 0;
    for (int i = 0; i < WAN_BLOCK_TENSORS; i++)
        if (has_tensor(&m->c, i))
            TRY(load(m, block_specs + i, block, &b->t[i], err));
out:
    if (rc)
        wan_block_free(b);
    return rc;
}

void wan_block_free(struct wan_block *b)
{
    for (int i = 0; i < WAN_BLOCK_TENSORS; i++)
        free(b->t[i]);
    memset(b, 0, sizeof *b);
}

int64_t wan_block_bytes(const struct wan_config *c)
{
    int64_t n = 0;
    for (int i = 0; i < WAN_BLOCK_TENSORS; i++) {
        int64_t count = 1;
        for (int k = 0; k < 5 && block_specs[i].shape[k] != NONE; k++)
            count *= dim_size(c, block_specs[i].shape[k]);
        n += has_tensor(c, i) ? count : 0;
    }
    return n * (int64_t)sizeof(float);
}

int wan_block_get(struct wan_model *m, int i, struct wan_block *scratch,
                  const struct wan_block **out, struct err *err)
{
    if (m->cached) {
        if (!m->blocks[i].t[0])
            PASS_ON(load_block(m, i, &m->blocks[i], err));
        *out = &m->blocks[i];
    } else {
        wan_block_free(scratch);
        PASS_ON(load_block(m, i, scratch, err));
        *out = scratch;
    }
    return 0;
}

static int raw(const struct wan_model *m, const struct spec *s, int block,
               struct decoder_tensor *out, struct err *err)
{
    const struct st_tensor *t = NULL;
    PASS_ON(find(m, s, block, &t, err));
    PASS_ON(raw_tensor_read(m->file, t, out, err));
    if (s->shape[0] == ONE)
        *out = (struct decoder_tensor){out->data, out->dtype, t->count, 1};
    return 0;
}

int wan_raw_block(const struct wan_model *m, int i, struct decoder_tensor t[WAN_BLOCK_TENSORS],
                  struct err *err)
{
    int rc = 0;
    memset(t, 0, WAN_BLOCK_TENSORS * sizeof *t);
    for (int k = 0; k < WAN_BLOCK_TENSORS; k++)
        if (has_tensor(&m->c, k))
            TRY(raw(m, block_specs + k, i, t + k, err));
out:
    for (int k = 0; rc && k < WAN_BLOCK_TENSORS; k++)
        raw_tensor_free(t + k);
    return rc;
}

int wan_raw_outer(const struct wan_model *m, struct decoder_tensor t[WAN_OUTER_TENSORS],
                  struct err *err)
{
    int rc = 0;
    memset(t, 0, WAN_OUTER_TENSORS * sizeof *t);
    for (int k = 0; k < WAN_OUTER_TENSORS; k++)
        TRY(raw(m, outer_specs + k, -1, t + k, err));
out:
    for (int k = 0; rc && k < WAN_OUTER_TENSORS; k++)
        raw_tensor_free(t + k);
    return rc;
}

int wan_open(const char *dir, int64_t cache_bytes, struct wan_model *m, struct err *err)
{
    const struct st_tensor *t;
    int rc = 0;
    memset(m, 0, sizeof *m);
    TRY(wan_config_read(dir, &m->c, err));
    TRY(st_open_dir(dir, "diffusion_pytorch_model", &m->file, err));
    for (int b = 0; b < m->c.layers; b++)
        for (int i = 0; i < WAN_BLOCK_TENSORS; i++)
            if (has_tensor(&m->c, i))
                TRY(find(m, block_specs + i, b, &t, err));
    for (int i = 0; i < WAN_OUTER_TENSORS; i++)
        TRY(load(m, outer_specs + i, -1, &m->outer[i], err));
    TRY(mem_zalloc(&m->blocks, m->c.layers, sizeof *m->blocks, "blocks", err));
    m->cached = wan_block_bytes(&m->c) <= cache_bytes / m->c.layers;
out:
    if (rc)
        wan_close(m);
    return rc;
}

void wan_close(struct wan_model *m)
{
    wan_device_close(&m->device);
    for (int i = 0; m->blocks && i < m->c.layers; i++)
        wan_block_free(&m->blocks[i]);
    for (int i = 0; i < WAN_OUTER_TENSORS; i++)
        free(m->outer[i]);
    free(m->blocks);
    st_close(&m->file);
    memset(m, 0, sizeof *m);
}
