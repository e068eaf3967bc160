/* Families whose checkpoints differ from Llama's in names and packing, and in experts: the shipped
 * code-lm, written as each of them, gives the same queries, keys and values. */
#include "capture/llm_model.h"
#include "core/fileio.h"
#include "core/mem.h"
#include "tests/harness/suite.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL "datasets/models/code-lm"

enum { N = 50, LAYERS = 2, TENSORS = 64 };

static struct err err;

/* ---- checkpoints ----------------------------------------------------------------------------- */

struct checkpoint {
    struct st_file *from;
    struct llm_config c;
    struct st_out out[TENSORS];
    char names[TENSORS][96];
    int64_t n;
};

static float *read_all(const struct checkpoint *k, const char *name, int64_t *rows, int64_t *cols)
{
    const struct st_tensor *t = st_find(k->from, name);
    float *x = NULL;
    ck_assert_msg(t != NULL, "%s", name);
    assert_ok(mem_alloc(&x, t->count, sizeof *x, name, &err), &err);
    assert_ok(st_read_f32(k->from, t, 0, t->count, x, &err), &err);
    *rows = t->shape[0];
    *cols = t->ndim > 1 ? t->shape[1] : 1;
    return x;
}

static void put(struct checkpoint *k, const char *name, float *x, int64_t rows, int64_t cols)
{
    struct st_out *o = &k->out[k->n];
    snprintf(k->names[k->n], sizeof k->names[0], "%s", name);
    *o = (struct st_out){.name = k->names[k->n++],
                         .dtype = DT_F32,
                         .ndim = cols > 1 ? 2 : 1,
                         .shape = {rows, cols},
                         .data = x};
}

static void copy(struct checkpoint *k, const char *from, const char *to)
{
    int64_t rows, cols;
    float *x = read_all(k, from, &rows, &cols);
    put(k, to, x, rows, cols);
}

/* Rows of several tensors below each other; in `blocks` turns, each with its share of every one. */
static void stack(struct checkpoint *k, const char *const *from, int n, int64_t blocks,
                  const char *to)
{
    int64_t total = 0, rows[3], cols = 0, at = 0;
    float *x[3], *all = NULL;
    for (int i = 0; i < n; i++) {
        x[i] = read_all(k, from[i], &rows[i], &cols);
        total += rows[i];
    }
    assert_ok(mem_alloc(&all, total * cols, sizeof *all, to, &err), &err);
    for (int64_t b = 0; b < blocks; b++)
        for (int i = 0; i < n; i++) {
            int64_t part = rows[i] / blocks * cols;
            memcpy(all + at, x[i] + b * part, (size_t)part * sizeof *all);
            at += part;
        }
    for (int i = 0; i < n; i++)
        free(x[i]);
    put(k, to, all, total, cols);
}

static const char *in_layer(int layer, const char *name)
{
    static char text[32][96];
    static int next;
    char *to = text[next++ % 32];
    snprintf(to, 96, "model.layers.%d.%s", layer, name);
    return to;
}

static void rename_to(struct checkpoint *k, int l, const char *from, const char *to)
{
    copy(k, in_layer(l, from), in_layer(l, to));
}

enum kind { LLAMA, PHI3, INTERNLM2, MIXTRAL, KINDS };

static void put_attention(struct checkpoint *k, int l, enum kind kind)
{
    const char *const qkv[] = {in_layer(l, "self_attn.q_proj.weight"),
                               in_layer(l, "self_attn.k_proj.weight"),
                               in_layer(l, "self_attn.v_proj.weight")};
    bool intern = kind == INTERNLM2;
    rename_to(k, l, "input_layernorm.weight",
              intern ? "attention_norm.weight" : "input_layernorm.weight");
    rename_to(k, l, "post_attention_layernorm.weight",
              intern ? "ffn_norm.weight" : "post_attention_layernorm.weight");
    rename_to(k, l, "self_attn.o_proj.weight",
              intern ? "attention.wo.weight" : "self_attn.o_proj.weight");
    if (intern)
        stack(k, qkv, 3, k->c.kv_heads, in_layer(l, "attention.wqkv.weight"));
    else if (kind == PHI3)
        stack(k, qkv, 3, 1, in_layer(l, "self_attn.qkv_proj.weight"));
    else
        for (int i = 0; i < 3; i++)
            copy(k, qkv[i], qkv[i]);
}

/* Two experts that are both the dense layer, and a router that cannot tell them apart. */
static void put_experts(struct checkpoint *k, int l)
{
    float *router = NULL;
    char name[64];
    for (int e = 0; e < 2; e++) {
        static const char *const from[] = {"mlp.gate_proj.weight", "mlp.down_proj.weight",
                                           "mlp.up_proj.weight"};
        for (int i = 0; i < 3; i++) {
            snprintf(name, sizeof name, "block_sparse_moe.experts.%d.w%d.weight", e, i + 1);
            rename_to(k, l, from[i], name);
        }
    }
    assert_ok(mem_zalloc(&router, 2 * k->c.hidden, sizeof *router, "router", &err), &err);
    put(k, in_layer(l, "block_sparse_moe.gate.weight"), router, 2, k->c.hidden);
}

static void put_feed_forward(struct checkpoint *k, int l, enum kind kind)
{
    const char *const both[] = {in_layer(l, "mlp.gate_proj.weight"),
                                in_layer(l, "mlp.up_proj.weight")};
    if (kind == MIXTRAL) {
        put_experts(k, l);
        return;
    }
    if (kind == PHI3) {
        stack(k, both, 2, 1, in_layer(l, "mlp.gate_up_proj.weight"));
    } else {
        rename_to(k, l, "mlp.gate_proj.weight",
                  kind == LLAMA ? "mlp.gate_proj.weight" : "feed_forward.w1.weight");
        rename_to(k, l, "mlp.up_proj.weight",
                  kind == LLAMA ? "mlp.up_proj.weight" : "feed_forward.w3.weight");
    }
    rename_to(k, l, "mlp.down_proj.weight",
              kind == INTERNLM2 ? "feed_forward.w2.weight" : "mlp.down_proj.weight");
}

static void put_config(const char *dir, enum kind kind, int64_t window)
{
    static const char *const classes[] = {"LlamaForCausalLM", "Phi3ForCausalLM",
                                          "InternLM2ForCausalLM", "MixtralForCausalLM"};
    char path[512];
    json_t *o = NULL, *list = json_array();
    assert_ok(json_read_file(MODEL "/config.json", 1 << 20, &o, &err), &err);
    json_array_append_new(list, json_string(window ? "MistralForCausalLM" : classes[kind]));
    json_object_set_new(o, "architectures", list);
    json_object_set_new(o, "num_hidden_layers", json_integer(LAYERS));
    json_object_set_new(o, "tie_word_embeddings", json_true());
    json_object_set_new(o, "bias", json_false());
    json_object_set_new(o, "num_local_experts", json_integer(2));
    json_object_set_new(o, "num_experts_per_tok", json_integer(2));
    if (window)
        json_object_set_new(o, "sliding_window", json_integer(window));
    snprintf(path, sizeof path, "%s/config.json", dir);
    ck_assert_int_eq(json_dump_file(o, path, 0), 0);
    json_decref(o);
}

/* The first layers of code-lm as a checkpoint of the family. */
static void write_as(const char *dir, enum kind kind, int64_t window)
{
    struct checkpoint k = {0};
    char path[512];
    assert_ok(make_dirs(dir, &err), &err);
    assert_ok(st_open_dir(MODEL, "model", &k.from, &err), &err);
    assert_ok(llm_config_read(MODEL, &k.c, &err), &err);
    copy(&k, "model.embed_tokens.weight",
         kind == INTERNLM2 ? "model.tok_embeddings.weight" : "model.embed_tokens.weight");
    copy(&k, "model.norm.weight", "model.norm.weight");
    for (int l = 0; l < LAYERS; l++) {
        put_attention(&k, l, kind);
        put_feed_forward(&k, l, kind);
    }
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_ok(st_write(path, k.out, k.n, &err), &err);
    put_config(dir, kind, window);
    for (int64_t i = 0; i < k.n; i++)
        free((void *)(uintptr_t)k.out[i].data);
    st_close(&k.from);
}

/* ---- runs ------------------------------------------------------------------------------------ */

struct seen {
    float *q, *k, *v; /* of all layers, owned */
    int64_t qdim, kvdim;
};

static int keep(void *ctx, int layer, int64_t t0, int64_t n, const float *q, const float *k,
                const float *v, struct err *e)
{
    struct seen *s = ctx;
    (void)e;
    memcpy(s->q + (layer * N + t0) * s->qdim, q, (size_t)(n * s->qdim) * sizeof *q);
    memcpy(s->k + (layer * N + t0) * s->kvdim, k, (size_t)(n * s->kvdim) * sizeof *k);
    memcpy(s->v + (layer * N + t0) * s->kvdim, v, (size_t)(n * s->kvdim) * sizeof *v);
    return 0;
}

static void run(enum kind kind, int64_t window, struct seen *s)
{
    const char *dir = test_path("m");
    OWN(llm_close) struct llm_model m;
    int32_t tokens[N];
    write_as(dir, kind, window);
    assert_ok(llm_open(dir, &m, &err), &err);
    s->qdim = (int64_t)m.c.heads * m.c.head_dim;
    s->kvdim = (int64_t)m.c.kv_heads * m.c.head_dim;
    assert_ok(mem_alloc(&s->q, LAYERS * N * s->qdim, sizeof(float), "q", &err), &err);
    assert_ok(mem_alloc(&s->k, LAYERS * N * s->kvdim, sizeof(float), "k", &err), &err);
    assert_ok(mem_alloc(&s->v, LAYERS * N * s->kvdim, sizeof(float), "v", &err), &err);
    for (int i = 0; i < N; i++)
        tokens[i] = (int32_t)(i * 37 % m.c.vocab);
    struct llm_run how = {.tokens = tokens, .n = N, .chunk = 16, .jobs = 1};
    struct llm_hooks hooks = {.ctx = s, .rows = keep};
    assert_ok(llm_forward(&m, &how, &hooks, &err), &err);
}

static void seen_free(struct seen *s)
{
    free(s->q);
    free(s->k);
    free(s->v);
}

static void same(const float *a, const float *b, int64_t n, const char *what)
{
    for (int64_t i = 0; i < n; i++)
        ck_assert_msg(fabsf(a[i] - b[i]) <= 2e-5f * (1 + fabsf(b[i])), "%s %d: %g %g", what, (int)i,
                      (double)a[i], (double)b[i]);
}

TEST_N(families_of_the_same_weights_agree, KINDS - PHI3)
{
    OWN(seen_free) struct seen want, have;
    run(LLAMA, 0, &want);
    run((enum kind)(PHI3 + _i), 0, &have);
    same(have.q, want.q, LAYERS * N * want.qdim, "q");
    same(have.k, want.k, LAYERS * N * want.kvdim, "k");
    same(have.v, want.v, LAYERS * N * want.kvdim, "v");
}

/* A window of 12: the first 12 tokens see what they saw, later ones do not. */
TEST(a_window_takes_keys_away)
{
    OWN(seen_free) struct seen want, have;
    double most = 0;
    run(LLAMA, 0, &want);
    run(LLAMA, 12, &have);
    same(have.q, want.q, (N + 12) * want.qdim, "q");
    for (int64_t i = (N + 12) * want.qdim; i < 2 * N * want.qdim; i++)
        most = fmax(most, fabs((double)have.q[i] - (double)want.q[i]));
    ck_assert_double_gt(most, 1e-2);
}

/* A layer's memory counts all experts, its work the chosen ones. */
TEST(sizes_of_experts)
{
    struct llm_config c;
    assert_ok(make_dirs(test_path("m"), &err), &err);
    put_config(test_path("m"), MIXTRAL, 0);
    assert_ok(llm_config_read(test_path("m"), &c, &err), &err);
    int64_t expert = 3 * c.hidden * c.ffn;
    double two = llm_active_weights(&c);
    ck_assert_double_eq((double)llm_layer_bytes(&c) / 4, two);
    c.experts_used = 1;
    ck_assert_double_eq(two - llm_active_weights(&c), (double)expert);
    ck_assert_str_eq(llm_device_lacks(&c, 10), "experts");
}
