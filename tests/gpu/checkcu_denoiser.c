/*
 * checkcu_denoiser.c - random Wan checkpoints, run on both sides (checkcu.h).
 *
 * Attention on the GPU rounds its operands and its output to float16, everything else is float32 on
 * both sides (checkcu_decoder.c). These roundings alone, made on the CPU, move q, k, v and the
 * velocity of these models by up to 1.8e-4 (relative L2) and maps by 5.5e-4. Bounds: 5e-4
 * and 1.5e-3.
 */
#include "tests/gpu/checkcu.h"

#include "capture/wan_model.h"
#include "core/mem.h"
#include "core/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LAYERS = 2, FREQ = 32 };

#define WIDE 100000 /* racecheck does not come to an end of products so wide */

static const struct model {
    const char *text;
    int heads, d;
    int64_t ffn, channels, patch[3], size[3], text_dim, n_text, pool;
    enum dtype dtype;
    bool norm2;
} models[] = {
    {"bf16, head dim 128", 2, 128, 320, 3, {1, 8, 8}, {7, 40, 56}, 32, 8, 64, DT_BF16, true},
    {"f32, head dim 16, long text",
     3,
     16,
     80,
     16,
     {1, 2, 2},
     {5, 14, 18},
     24,
     300,
     128,
     DT_F32,
     true},
    {"f16, no norm before the text",
     5,
     24,
     100,
     4,
     {2, 2, 4},
     {6, 22, 28},
     16,
     1,
     50,
     DT_F16,
     false},
    /* 256 tokens of these are all that the device takes at a time. */
    {"bf16, in chunks of tokens",
     1,
     16,
     430000,
     4,
     {1, 2, 2},
     {5, 16, 16},
     16,
     5,
     64,
     DT_BF16,
     true},
    {"bf16, head dim 80, one frame",
     1,
     80,
     96,
     16,
     {1, 2, 2},
     {1, 34, 30},
     40,
     77,
     64,
     DT_BF16,
     true},
};

/* ---- checkpoints ----------------------------------------------------------------------------- */

struct writer {
    const struct model *m;
    struct cu_checkpoint to;
};

/* A linear map and its bias, of a size that keeps activations near 1. */
static int add_linear(struct writer *w, const char *name, int64_t rows, int64_t cols,
                      struct err *err)
{
    const int64_t shape[2] = {rows, cols};
    char text[96];
    snprintf(text, sizeof text, "%s.weight", name);
    PASS_ON(cu_checkpoint_add(&w->to, text, 2, shape, 0, 1.2 / sqrt((double)cols), err));
    snprintf(text, sizeof text, "%s.bias", name);
    return cu_checkpoint_add(&w->to, text, 1, shape, 0, 0.2, err);
}

static int add_vector(struct writer *w, const char *name, int64_t n, double mean, struct err *err)
{
    return cu_checkpoint_add(&w->to, name, 1, &n, mean, 0.2, err);
}

static int add_block(struct writer *w, int block, struct err *err)
{
    static const char *const linear[] = {"attn1.to_q",     "attn1.to_k",    "attn1.to_v",
                                         "attn1.to_out.0", "attn2.to_q",    "attn2.to_k",
                                         "attn2.to_v",     "attn2.to_out.0"};
    static const char *const norms[] = {"attn1.norm_q", "attn1.norm_k", "attn2.norm_q",
                                        "attn2.norm_k"};
    int64_t dim = (int64_t)w->m->heads * w->m->d, table[3] = {1, 6, dim};
    char text[96];

    snprintf(text, sizeof text, "blocks.%d.scale_shift_table", block);
    PASS_ON(cu_checkpoint_add(&w->to, text, 3, table, 0.1, 0.3, err));
    for (size_t i = 0; i < sizeof linear / sizeof *linear; i++) {
        snprintf(text, sizeof text, "blocks.%d.%s", block, linear[i]);
        PASS_ON(add_linear(w, text, dim, dim, err));
    }
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++) {
        snprintf(text, sizeof text, "blocks.%d.%s.weight", block, norms[i]);
        PASS_ON(add_vector(w, text, dim, 1, err));
    }
    snprintf(text, sizeof text, "blocks.%d.ffn.net.0.proj", block);
    PASS_ON(add_linear(w, text, w->m->ffn, dim, err));
    snprintf(text, sizeof text, "blocks.%d.ffn.net.2", block);
    PASS_ON(add_linear(w, text, dim, w->m->ffn, err));
    if (!w->m->norm2)
        return 0;
    snprintf(text, sizeof text, "blocks.%d.norm2.weight", block);
    PASS_ON(add_vector(w, text, dim, 1, err));
    snprintf(text, sizeof text, "blocks.%d.norm2.bias", block);
    return add_vector(w, text, dim, 0, err);
}

#define EMBED "condition_embedder."

static int add_outer(struct writer *w, struct err *err)
{
    const struct model *m = w->m;
    int64_t dim = (int64_t)m->heads * m->d, values = m->patch[0] * m->patch[1] * m->patch[2];
    int64_t patch[5] = {dim, m->channels, m->patch[0], m->patch[1], m->patch[2]};
    int64_t table[3] = {1, 2, dim};

    values *= m->channels;
    PASS_ON(cu_checkpoint_add(&w->to, "patch_embedding.weight", 5, patch, 0,
                              1.2 / sqrt((double)values), err));
    PASS_ON(add_vector(w, "patch_embedding.bias", dim, 0, err));
    PASS_ON(add_linear(w, EMBED "time_embedder.linear_1", dim, FREQ, err));
    PASS_ON(add_linear(w, EMBED "time_embedder.linear_2", dim, dim, err));
    PASS_ON(add_linear(w, EMBED "time_proj", 6 * dim, dim, err));
    PASS_ON(add_linear(w, EMBED "text_embedder.linear_1", dim, m->text_dim, err));
    PASS_ON(add_linear(w, EMBED "text_embedder.linear_2", dim, dim, err));
    PASS_ON(add_linear(w, "proj_out", values, dim, err));
    return cu_checkpoint_add(&w->to, "scale_shift_table", 3, table, 0.1, 0.3, err);
}

static int put_weights(const struct model *m, const char *path, struct err *err)
{
    static struct writer w;
    int rc = 0;
    w = (struct writer){.m = m, .to.dtype = m->dtype};
    TRY(add_outer(&w, err));
    for (int i = 0; i < LAYERS; i++)
        TRY(add_block(&w, i, err));
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
            "{\"_class_name\": \"WanTransformer3DModel\", \"num_layers\": %d, "
            "\"num_attention_heads\": %d, \"attention_head_dim\": %d, \"ffn_dim\": %lld, "
            "\"freq_dim\": %d, \"text_dim\": %lld, \"in_channels\": %lld, \"out_channels\": %lld, "
            "\"patch_size\": [%lld, %lld, %lld], \"qk_norm\": \"rms_norm_across_heads\", "
            "\"cross_attn_norm\": %s}\n",
            LAYERS, m->heads, m->d, (long long)m->ffn, FREQ, (long long)m->text_dim,
            (long long)m->channels, (long long)m->channels, (long long)m->patch[0],
            (long long)m->patch[1], (long long)m->patch[2], m->norm2 ? "true" : "false");
    return fclose(f) ? err_sys(err, ERR_IO, "%s", path) : 0;
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* What an evaluation showed: q, k, v, map sums and maxima of all layers, the velocity. */
struct seen {
    float *rows[3], *map[2], *v;
    int64_t rows_n, map_n, v_n; /* rows_n and map_n of a layer */
};

static int take_rows(void *ctx, int layer, const float *q, const float *k, const float *v,
                     struct err *err)
{
    struct seen *s = ctx;
    const float *from[3] = {q, k, v};
    for (int i = 0; i < 3; i++)
        memcpy(s->rows[i] + layer * s->rows_n, from[i], (size_t)s->rows_n * sizeof *q);
    return 0;
}

static int take_map(void *ctx, int layer, const struct attnmap *map, struct err *err)
{
    struct seen *s = ctx;
    memcpy(s->map[0] + layer * s->map_n, map->sum, (size_t)s->map_n * sizeof *map->sum);
    memcpy(s->map[1] + layer * s->map_n, map->max, (size_t)s->map_n * sizeof *map->max);
    return 0;
}

static void seen_free(struct seen *s)
{
    for (int i = 0; i < 3; i++)
        free(s->rows[i]);
    free(s->map[0]);
    free(s->map[1]);
    free(s->v);
    memset(s, 0, sizeof *s);
}

static int seen_init(const struct model *m, struct seen *s, struct err *err)
{
    int64_t n = 1, cells;

    memset(s, 0, sizeof *s);
    for (int a = 0; a < 3; a++)
        n *= m->size[a] / m->patch[a];
    cells = (n + m->pool - 1) / m->pool;
    s->rows_n = n * m->heads * m->d;
    s->map_n = m->heads * cells * cells;
    s->v_n = m->channels * m->size[0] * m->size[1] * m->size[2];
    for (int i = 0; i < 3; i++)
        PASS_ON(mem_alloc(&s->rows[i], LAYERS * s->rows_n, sizeof(float), "rows of a run", err));
    for (int i = 0; i < 2; i++)
        PASS_ON(mem_alloc(&s->map[i], LAYERS * s->map_n, sizeof(float), "maps of a run", err));
    return mem_alloc(&s->v, s->v_n, sizeof(float), "velocity", err);
}

static int evaluate(struct wan_model *wan, const struct model *m, struct seen *s, struct err *err)
{
    struct wan_hooks hooks = {.ctx = s, .rows = take_rows, .pool = m->pool, .maps = take_map};
    int64_t text = m->n_text * m->text_dim;
    OWN(free_at) float *x = NULL, *t = NULL;

    PASS_ON(seen_init(m, s, err));
    PASS_ON(mem_alloc(&x, s->v_n, sizeof *x, "latent", err));
    PASS_ON(mem_alloc(&t, text, sizeof *t, "text", err));
    for (int64_t i = 0; i < s->v_n; i++)
        x[i] = (float)rng_normal(3, 1, (uint64_t)i);
    for (int64_t i = 0; i < text; i++)
        t[i] = (float)rng_normal(3, 2, (uint64_t)i);
    struct wan_input in = {x, m->size[0], m->size[1], m->size[2], 731.25, t, m->n_text};
    return wan_forward(wan, &in, 1, &hooks, s->v, err);
}

static double worse(double a, double b)
{
    return isnan(b) || b > a ? b : a;
}

/* Worst over layers of q, k, v and maps, and of the velocity. */
static void compare(const struct seen *got, const struct seen *ref, double e[3])
{
    for (int l = 0; l < LAYERS; l++) {
        for (int i = 0; i < 3; i++)
            e[0] = worse(e[0], cu_relative(got->rows[i] + l * ref->rows_n,
                                           ref->rows[i] + l * ref->rows_n, ref->rows_n));
        for (int i = 0; i < 2; i++)
            e[1] = worse(e[1], cu_relative(got->map[i] + l * ref->map_n,
                                           ref->map[i] + l * ref->map_n, ref->map_n));
    }
    e[2] = cu_relative(got->v, ref->v, ref->v_n);
}

/* brief: one run on the device, no times. racecheck's memory grows with the launches of a process,
 * to tens of GB with those of all runs. */
static int check_model(const char *dir, const struct model *m, const struct denoiser_accel *device,
                       bool brief, double e[3], bool *same, struct denoiser_times *t,
                       struct err *err)
{
    struct wan_device_ask ask = {
        .on = device, .size = {m->size[0], m->size[1], m->size[2]}, .n_text = m->n_text};
    struct seen ref = {0}, got = {0}, again = {0};
    struct wan_model wan = {0};
    char config[300], weights[300];
    int rc = 0;

    snprintf(config, sizeof config, "%s/config.json", dir);
    snprintf(weights, sizeof weights, "%s/diffusion_pytorch_model.safetensors", dir);
    TRY(put_config(m, config, err));
    TRY(put_weights(m, weights, err));
    TRY(wan_open(dir, 0, &wan, err));
    TRY(evaluate(&wan, m, &ref, err));
    TRY(wan_device_open(&wan, &ask, err));
    TRY(evaluate(&wan, m, &got, err));
    compare(&got, &ref, e);
    *same = true;
    if (brief)
        goto out;
    TRY(wan_device_time(&wan, 3, t, err)); /* which changes no evaluation behind it */
    TRY(evaluate(&wan, m, &again, err));
    *same = memcmp(got.v, again.v, (size_t)got.v_n * sizeof *got.v) == 0;
out:
    wan_close(&wan);
    seen_free(&ref);
    seen_free(&got);
    seen_free(&again);
    unlink(config);
    unlink(weights);
    return rc;
}

void check_denoiser(const struct denoiser_accel *device, struct cu_choice *choice)
{
    const char *tmp = getenv("TMPDIR");
    char dir[256];
    snprintf(dir, sizeof dir, "%s/lacuna-check-XXXXXX", tmp ? tmp : "/tmp");
    bool made = mkdtemp(dir) != NULL;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct err err = {0};
        double e[3] = {0, 0, 0};
        struct denoiser_times t = {0};
        bool same = false;
        char name[80];
        snprintf(name, sizeof name, "denoiser %s", models[i].text);
        if ((choice->brief && models[i].ffn >= WIDE) || !cu_chosen(choice, name))
            continue;
        int rc = made ? check_model(dir, models + i, device, choice->brief, e, &same, &t, &err)
                      : err_sys(&err, ERR_IO, "%s", dir);
        bool times = choice->brief || (t.product > 0 && t.linear > 0 && t.attention > 0);
        bool ok = !rc && e[0] <= 5e-4 && e[1] <= 1.5e-3 && e[2] <= 5e-4 && same && times;
        ++cu_checks;
        cu_failures += !ok;
        printf("  %-5s denoiser %s: q, k, v %.1e, maps %.1e, velocity %.1e%s; %.0f us, products "
               "%.0f, attention %.0f %s\n",
               ok ? "ok" : "FAIL", models[i].text, e[0], e[1], e[2], same ? "" : ", not repeatable",
               1e-3 * t.linear, 1e-3 * t.product, 1e-3 * t.attention, err.msg);
    }
    if (made)
        rmdir(dir);
}
