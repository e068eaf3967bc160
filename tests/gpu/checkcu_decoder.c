/*
 * checkcu_decoder.c - random checkpoints, run on both sides (checkcu.h).
 *
 * Attention on the GPU rounds its operands and its output to float16, a relative error of about
 * 3e-4 that the following layers see; everything else is float32 on both sides. These roundings
 * alone, made on the CPU, move q, k, v and maps of these models by up to 1.2e-3 (relative L2) and
 * the worst token's likelihood by 4e-3 to 1.2e-2 nat. Bounds: 2e-3 and 2e-2. Rows behind a sequence
 * attend in float32, the prefill that they are compared with in bf16, eight times as coarse as
 * float16: 1.6e-2.
 */
#include "tests/gpu/checkcu.h"

#include "capture/llm_model.h"
#include "capture/nn.h"
#include "core/mem.h"
#include "core/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROWS_BOUND 1.6e-2

enum { LAYERS = 3, HIDDEN = 96, FFN = 160, VOCAB = 200, TOKENS = 333 };

static const struct model {
    const char *text, *architecture, *extra; /* keys of config.json */
    int heads, kv_heads, d, pool;            /* pool: multiples of 64 take other kernels */
    enum dtype dtype;
    bool qkv_bias, o_bias, mlp_bias, qk_norm, tied;
} models[] = {
    {"llama, bf16", "LlamaForCausalLM", "", 4, 2, 64, 64, DT_BF16, false, false, false, false,
     true},
    {"llama, biases, f32, rope llama3", "LlamaForCausalLM",
     "\"attention_bias\": true, \"mlp_bias\": true, \"rope_scaling\": {\"rope_type\": \"llama3\", "
     "\"factor\": 8, \"low_freq_factor\": 1, \"high_freq_factor\": 4, "
     "\"original_max_position_embeddings\": 256}, ",
     3, 3, 32, 128, DT_F32, true, true, true, false, false},
    {"mistral, f16", "MistralForCausalLM", "\"sliding_window\": null, ", 8, 1, 128, 32, DT_F16,
     false, false, false, false, false},
    {"qwen2, bf16, head dim 80", "Qwen2ForCausalLM", "", 4, 2, 80, 50, DT_BF16, true, false, false,
     false, true},
    {"qwen3, f32", "Qwen3ForCausalLM", "", 6, 2, 128, 64, DT_F32, false, false, false, true, false},
};

/* ---- checkpoints ----------------------------------------------------------------------------- */

struct writer {
    const struct model *m;
    struct cu_checkpoint to;
};

/* Normal values: vectors around `mean`, matrices of a size that keeps activations near 1. */
static int add(struct writer *w, const char *name, int64_t rows, int64_t cols, double mean,
               struct err *err)
{
    const int64_t shape[2] = {rows, cols};
    return cu_checkpoint_add(&w->to, name, cols ? 2 : 1, shape, mean,
                             cols ? 1.5 / sqrt((double)cols) : 0.2, err);
}

static int add_linear(struct writer *w, int layer, const char *name, int64_t rows, int64_t cols,
                      bool bias, struct err *err)
{
    char text[96];
    snprintf(text, sizeof text, "model.layers.%d.%s.weight", layer, name);
    PASS_ON(add(w, text, rows, cols, 0, err));
    snprintf(text, sizeof text, "model.layers.%d.%s.bias", layer, name);
    if (bias)
        return add(w, text, rows, 0, 0, err);
    return 0;
}

static int add_norm(struct writer *w, int layer, const char *name, int64_t n, struct err *err)
{
    char text[96];
    snprintf(text, sizeof text, "model.layers.%d.%s.weight", layer, name);
    return add(w, text, n, 0, 1, err);
}

static int add_layer(struct writer *w, int l, struct err *err)
{
    const struct model *m = w->m;
    int64_t qd = (int64_t)m->heads * m->d, kd = (int64_t)m->kv_heads * m->d;
    PASS_ON(add_norm(w, l, "input_layernorm", HIDDEN, err));
    PASS_ON(add_norm(w, l, "post_attention_layernorm", HIDDEN, err));
    PASS_ON(add_linear(w, l, "self_attn.q_proj", qd, HIDDEN, m->qkv_bias, err));
    PASS_ON(add_linear(w, l, "self_attn.k_proj", kd, HIDDEN, m->qkv_bias, err));
    PASS_ON(add_linear(w, l, "self_attn.v_proj", kd, HIDDEN, m->qkv_bias, err));
    PASS_ON(add_linear(w, l, "self_attn.o_proj", HIDDEN, qd, m->o_bias, err));
    if (m->qk_norm) {
        PASS_ON(add_norm(w, l, "self_attn.q_norm", m->d, err));
        PASS_ON(add_norm(w, l, "self_attn.k_norm", m->d, err));
    }
    PASS_ON(add_linear(w, l, "mlp.gate_proj", FFN, HIDDEN, m->mlp_bias, err));
    PASS_ON(add_linear(w, l, "mlp.up_proj", FFN, HIDDEN, m->mlp_bias, err));
    return add_linear(w, l, "mlp.down_proj", HIDDEN, FFN, m->mlp_bias, err);
}

static int put_weights(const struct model *m, const char *path, struct err *err)
{
    static struct writer w;
    int rc = 0;
    w = (struct writer){.m = m, .to.dtype = m->dtype};
    TRY(add(&w, "model.embed_tokens.weight", VOCAB, HIDDEN, 0, err));
    TRY(add(&w, "model.norm.weight", HIDDEN, 0, 1, err));
    if (!m->tied)
        TRY(add(&w, "lm_head.weight", VOCAB, HIDDEN, 0, err));
    for (int l = 0; l < LAYERS; l++)
        TRY(add_layer(&w, l, err));
    TRY(st_write(path, w.to.t, w.to.n, err));
out:
    cu_checkpoint_free(&w.to);
    return rc;
}

static int put_config(const struct model *m, const char *path, struct err *err)
{
    FILE *f = fopen(path, "w");
    if (!f)
        return err_sys(err, ERR_IO, "%s", path);
    fprintf(f,
            "{\"architectures\": [\"%s\"], %s\"hidden_size\": %d, \"intermediate_size\": %d, "
            "\"num_hidden_layers\": %d, \"num_attention_heads\": %d, \"num_key_value_heads\": %d, "
            "\"head_dim\": %d, \"vocab_size\": %d, \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000, "
            "\"max_position_embeddings\": 1024, \"tie_word_embeddings\": %s}\n",
            m->architecture, m->extra, HIDDEN, FFN, LAYERS, m->heads, m->kv_heads, m->d, VOCAB,
            m->tied ? "true" : "false");
    return fclose(f) ? err_sys(err, ERR_IO, "%s", path) : 0;
}

/* ---- runs ------------------------------------------------------------------------------------ */

struct seen {
    const struct model *m;
    float *x[4]; /* [layers]: q, k, v of all tokens; map sums and maxima */
    int64_t width[4];
    float nll[TOKENS - 1];
};

static int take_rows(void *ctx, int layer, int64_t t0, int64_t n, const float *q, const float *k,
                     const float *v, struct err *err)
{
    struct seen *s = ctx;
    const float *from[3] = {q, k, v};
    for (int i = 0; i < 3; i++) {
        int64_t row = s->width[i] / TOKENS;
        memcpy(s->x[i] + layer * s->width[i] + t0 * row, from[i], (size_t)(n * row) * sizeof *q);
    }
    return 0;
}

static int take_map(void *ctx, int layer, const struct attnmap *map, struct err *err)
{
    struct seen *s = ctx;
    int64_t half = s->width[3] / 2;
    memcpy(s->x[3] + layer * s->width[3], map->sum, (size_t)half * sizeof *map->sum);
    memcpy(s->x[3] + layer * s->width[3] + half, map->max, (size_t)half * sizeof *map->max);
    return 0;
}

static int run_model(const char *dir, const struct model *m, const struct decoder_accel *device,
                     struct seen *s, struct err *err)
{
    OWN(llm_close) struct llm_model llm = {0};
    struct llm_hooks hooks = {.ctx = s, .rows = take_rows, .end_layer = take_map};
    int64_t cells = (TOKENS + m->pool - 1) / m->pool;
    int32_t tokens[TOKENS];

    s->m = m;
    s->width[0] = (int64_t)TOKENS * m->heads * m->d;
    s->width[1] = s->width[2] = (int64_t)TOKENS * m->kv_heads * m->d;
    s->width[3] = 2LL * m->heads * cells * cells;
    for (int i = 0; i < 4; i++)
        PASS_ON(mem_alloc(&s->x[i], LAYERS * s->width[i], sizeof(float), "rows of a run", err));
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = (int32_t)(rng_uniform(9, 0, (uint64_t)i) * VOCAB);
    struct llm_run run = {
        .tokens = tokens, .n = TOKENS, .pool = m->pool, .jobs = 1, .nll = s->nll, .device = device};
    PASS_ON(llm_open(dir, &llm, err));
    return llm_forward(&llm, &run, &hooks, err);
}

/* Worst over layers of q, k, v and maps, and of a token's likelihood. */
static void compare(const struct seen *got, const struct seen *ref, double *rows, double *nll)
{
    *rows = *nll = 0;
    for (int i = 0; i < 4; i++)
        for (int l = 0; l < LAYERS; l++) {
            int64_t at = l * ref->width[i];
            double e = cu_relative(got->x[i] + at, ref->x[i] + at, ref->width[i]);
            *rows = isnan(e) || e > *rows ? e : *rows;
        }
    for (int i = 0; i < TOKENS - 1; i++) {
        double e = fabs((double)got->nll[i] - ref->nll[i]);
        *nll = isnan(e) || e > *nll ? e : *nll;
    }
}

static int check_model(const char *dir, const struct model *m, const struct decoder_accel *device,
                       double *rows, double *nll, struct err *err)
{
    static struct seen got, ref;
    char config[300], weights[300];
    int rc = 0;

    memset(&got, 0, sizeof got);
    memset(&ref, 0, sizeof ref);
    snprintf(config, sizeof config, "%s/config.json", dir);
    snprintf(weights, sizeof weights, "%s/model.safetensors", dir);
    TRY(put_config(m, config, err));
    TRY(put_weights(m, weights, err));
    TRY(run_model(dir, m, NULL, &ref, err));
    TRY(run_model(dir, m, device, &got, err));
    compare(&got, &ref, rows, nll);
out:
    for (int i = 0; i < 4; i++) {
        free(got.x[i]);
        free(ref.x[i]);
    }
    unlink(config);
    unlink(weights);
    return rc;
}

/* ---- rows behind a sequence ------------------------------------------------------------------ */

enum { BEHIND = 70 }; /* more than are computed at a time */

/* Both states through all layers over the first n tokens. */
static int prefill(const struct llm_model *m, const struct decoder_accel *on, struct decoder *d,
                   const int32_t *tokens, int64_t n, bool again, struct err *err)
{
    const struct decoder_states *s = on->states;
    OWN(llm_raw_free) struct llm_raw_layer w = {0};
    struct decoder_operands operands;
    struct decoder_rows rows;
    struct decoder_diff diff;

    PASS_ON(s->begin(d, tokens, n, err));
    for (int l = 0; l < LAYERS; l++) {
        if (!again)
            PASS_ON(llm_raw_load(m, l, &w, err));
        PASS_ON(s->load(d, l, again ? NULL : w.t, err));
        for (int state = 0; state < 2; state++) {
            PASS_ON(s->project(d, state, state ? &rows : NULL, &operands, err));
            PASS_ON(s->attend(d, err));
            PASS_ON(s->finish(d, state, state ? &diff : NULL, err));
        }
    }
    return 0;
}

/* The last rows of a sequence as rows behind its beginning, in two steps, against a prefill of all
 * of it: *worst is the relative difference of what the last layer gives. */
static int rows_behind(const struct llm_model *m, const struct decoder_accel *on,
                       const int32_t *tokens, double *worst, struct err *err)
{
    enum { FROM = TOKENS - BEHIND };
    struct decoder_tensor table = {0};
    struct decoder *d = NULL;
    float *got = NULL, *want = NULL;
    int rc = 0;

    TRY(mem_alloc(&got, BEHIND * HIDDEN, sizeof *got, "rows", err));
    TRY(mem_alloc(&want, BEHIND * HIDDEN, sizeof *want, "rows", err));
    TRY(llm_device_open(m, on, 0, TOKENS, 2, LAYERS, &d, err));
    TRY(raw_tensor_read(m->file, m->embed, &table, err));
    TRY(on->states->put_table(d, &table, err));
    TRY(prefill(m, on, d, tokens, TOKENS, false, err));
    TRY(on->states->get_hidden(d, 1, FROM, BEHIND, want, err));
    TRY(prefill(m, on, d, tokens, FROM, true, err));
    TRY(on->states->rows(d, 1, tokens + FROM, FROM, 1, got, err));
    TRY(on->states->rows(d, 1, tokens + FROM + 1, FROM + 1, BEHIND - 1, got + HIDDEN, err));
    *worst = cu_relative(got, want, (int64_t)BEHIND * HIDDEN);
out:
    on->close(&d);
    raw_tensor_free(&table);
    free(got);
    free(want);
    return rc;
}

static int check_rows(const char *dir, const struct model *m, const struct decoder_accel *device,
                      double *worst, struct err *err)
{
    struct llm_model llm = {0};
    int32_t tokens[TOKENS];
    char config[300], weights[300];
    int rc = 0;

    snprintf(config, sizeof config, "%s/config.json", dir);
    snprintf(weights, sizeof weights, "%s/model.safetensors", dir);
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = (int32_t)(rng_uniform(9, 0, (uint64_t)i) * VOCAB);
    TRY(put_config(m, config, err));
    TRY(put_weights(m, weights, err));
    TRY(llm_open(dir, &llm, err));
    TRY(rows_behind(&llm, device, tokens, worst, err));
out:
    llm_close(&llm);
    unlink(config);
    unlink(weights);
    return rc;
}

void check_decoder(const struct decoder_accel *device, struct cu_choice *choice)
{
    const char *tmp = getenv("TMPDIR");
    char dir[256];
    snprintf(dir, sizeof dir, "%s/lacuna-check-XXXXXX", tmp ? tmp : "/tmp");
    bool made = mkdtemp(dir) != NULL;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct err err = {0};
        double rows = NAN, nll = NAN;
        char name[80];
        snprintf(name, sizeof name, "decoder %s", models[i].text);
        if (!cu_chosen(choice, name))
            continue;
        int rc = made ? check_model(dir, models + i, device, &rows, &nll, &err)
                      : err_sys(&err, ERR_IO, "%s", dir);
        bool ok = !rc && rows <= 2e-3 && nll <= 2e-2;
        ++cu_checks;
        cu_failures += !ok;
        printf("  %-5s decoder %s: q, k, v, maps %.1e, nll %.1e %s\n", ok ? "ok" : "FAIL",
               models[i].text, rows, nll, err.msg);
        err = (struct err){0};
        rc = made ? check_rows(dir, models + i, device, &rows, &err) : ERR_IO;
        ok = !rc && rows <= ROWS_BOUND;
        ++cu_checks;
        cu_failures += !ok;
        printf("  %-5s decoder %s: rows behind a sequence %.1e %s\n", ok ? "ok" : "FAIL",
               models[i].text, rows, err.msg);
    }
    if (made)
        rmdir(dir);
}
