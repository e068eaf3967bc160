/*
 * wan_forward.c - one evaluation of the transformer (wan_model.h).
 *
 *   h  = patches(x) W + b
 *   e  = MLP(sin, cos of the timestep),  (s1, c1, g1, s2, c2, g2) = table + W silu(e)   per block
 *   h += g1 * SelfAttention(LN(h) (1 + c1) + s1)      q, k RMS-normed over all heads, 3-D RoPE
 *   h += CrossAttention(LN'(h), text)
 *   h += g2 * FFN(LN(h) (1 + c2) + s2)                GELU (tanh)
 *   v  = unpatch(W (LN(h) (1 + c) + s) + b)
 */
#include "capture/nn.h"
#include "capture/wan_model.h"
#include "core/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Tokens whose feed-forward activations exist at a time. */
#define FFN_ROWS 2048

struct state {
    struct wan_model *m;
    const struct wan_input *in;
    int jobs;
    int64_t grid[3], n;           /* tokens */
    float *h, *y, *q, *k, *v, *o; /* [n][dim] */
    float *temb, *mod;            /* [dim], [6][dim] */
    float *text, *k2, *v2;        /* [n_text][dim] */
    float *cos, *sin;             /* [n][head_dim / 2] */
    float *ffn;                   /* [FFN_ROWS][ffn_dim] */
};

int wan_grid(const struct wan_config *c, int64_t t, int64_t h, int64_t w, int64_t grid[3],
             struct err *err)
{
    static const char *const names[] = {"frames", "height", "width"};
    const int64_t size[] = {t, h, w};
    for (int i = 0; i < 3; i++) {
        if (size[i] < 1 || size[i] % c->patch[i])
            return err_set(err, ERR_USAGE, "%s %lld is not a positive multiple of the patch, %lld",
                           names[i], (long long)size[i], (long long)c->patch[i]);
        grid[i] = size[i] / c->patch[i];
        if (grid[i] > c->rope_max)
            return err_set(err, ERR_USAGE,
                           "%s %lld gives %lld tokens, the model's positions end at "
                           "%lld",
                           names[i], (long long)size[i], (long long)grid[i],
                           (long long)c->rope_max);
    }
    /* The sizes of all activations and of the latent stay below 2^62 bytes. */
    int64_t n, widest = 16 * (c->dim + c->in_channels * c->patch[0] * c->patch[1] * c->patch[2]);
    if (!mul_ok(grid[0], grid[1], &n) || !mul_ok(n, grid[2], &n) || !mul_ok(n, widest, &n) ||
        n > INT64_MAX / 8)
        return err_set(err, ERR_USAGE,
                       "%lld x %lld x %lld is too large: more memory than can be "
                       "addressed",
                       (long long)t, (long long)h, (long long)w);
    return 0;
}

/* ---- set-up --------------------------------------------------------------------------------- */

static void state_free(struct state *s)
{
    float *all[] = {s->h,   s->y,    s->q,  s->k,  s->v,   s->o,   s->temb,
                    s->mod, s->text, s->k2, s->v2, s->cos, s->sin, s->ffn};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static int state_init(struct state *s, struct err *err)
{
    const struct wan_config *c = &s->m->c;
    int64_t nd = s->n * c->dim, td = s->in->n_text * c->dim;
    float **tokens[] = {&s->h, &s->y, &s->q, &s->k, &s->v, &s->o};
    float **texts[] = {&s->text, &s->k2, &s->v2};
    int rc = 0;

    for (size_t i = 0; i < 6; i++)
        TRY(mem_alloc(tokens[i], nd, sizeof(float), "activations", err));
    for (size_t i = 0; i < 3; i++)
        TRY(mem_alloc(texts[i], td, sizeof(float), "text activations", err));
    TRY(mem_alloc(&s->temb, c->dim, sizeof(float), "timestep embedding", err));
    TRY(mem_alloc(&s->mod, 6 * c->dim, sizeof(float), "modulation", err));
    TRY(mem_alloc(&s->cos, s->n * c->head_dim / 2, sizeof(float), "rotary table", err));
    TRY(mem_alloc(&s->sin, s->n * c->head_dim / 2, sizeof(float), "rotary table", err));
    TRY(mem_alloc(&s->ffn, FFN_ROWS * c->ffn_dim, sizeof(float), "feed-forward", err));
out:
    return rc;
}

int64_t wan_forward_bytes(const struct wan_config *c, int64_t t, int64_t h, int64_t w)
{
    int64_t n = t / c->patch[0] * (h / c->patch[1]) * (w / c->patch[2]);
    /* six activations, keys and values by head inside attention, two rotary tables */
    return 4 * (8 * n * c->dim + n * c->head_dim + FFN_ROWS * c->ffn_dim) + wan_block_bytes(c);
}

/* Rotary angles: of the head's channel pairs the first belong to the frame, then to the row, then
 * to the column, with 2 (d div 6) channels each for row and column and the rest for the frame. */
static void rotary_tables(struct state *s)
{
    int64_t d = s->m->c.head_dim, hw = 2 * (d / 6), half = d / 2;
    int64_t width[3] = {d - 2 * hw, hw, hw};
    int64_t at = 0;
    for (int axis = 0; axis < 3; at += width[axis++] / 2)
        for (int64_t i = 0; i < width[axis] / 2; i++) {
            double freq = 1 / pow(10000, 2.0 * (double)i / (double)width[axis]);
            for (int64_t n = 0; n < s->n; n++) {
                int64_t pos[3] = {n / (s->grid[1] * s->grid[2]), n / s->grid[2] % s->grid[1],
                                  n % s->grid[2]};
                s->cos[n * half + at + i] = (float)cos((double)pos[axis] * freq);
                s->sin[n * half + at + i] = (float)sin((double)pos[axis] * freq);
            }
        }
}

/* Rotate adjacent channel pairs of every head of x [n][dim]. */
static void rotate(const struct state *s, float *x)
{
    int64_t half = s->m->c.head_dim / 2;
    for (int64_t n = 0; n < s->n; n++)
        for (int h = 0; h < s->m->c.heads; h++) {
            float *p = x + n * s->m->c.dim + h * 2 * half;
            const float *c = s->cos + n * half, *z = s->sin + n * half;
            for (int64_t i = 0; i < half; i++) {
                float a = p[2 * i], b = p[2 * i + 1];
                p[2 * i] = a * c[i] - b * z[i];
                p[2 * i + 1] = a * z[i] + b * c[i];
            }
        }
}

/* e and the six modulation vectors' common part; the text through its MLP. */
static int condition(struct state *s, struct err *err)
{
    const struct wan_config *c = &s->m->c;
    float **w = s->m->outer, *freq = NULL, *tmp = NULL;
    int64_t half = c->freq_dim / 2;
    int rc = 0;

    TRY(mem_alloc(&freq, c->freq_dim, sizeof *freq, "timestep frequencies", err));
    TRY(mem_alloc(&tmp, (s->in->n_text + 1) * c->dim, sizeof *tmp, "conditioning", err));
    for (int64_t i = 0; i < half; i++) {
        /* In float like the implementations the weights were trained with: at timestep 1000 the
         * rounding of the angle is visible in v (1e-4). */
        float a = (float)s->in->timestep * expf(-logf(10000) * (float)i / (float)half);
        freq[i] = cosf(a);
        freq[half + i] = sinf(a);
    }
    nn_linear(freq, 1, c->freq_dim, w[WAN_TIME1], w[WAN_TIME1_B], c->dim, 1, tmp);
    nn_silu(tmp, c->dim);
    nn_linear(tmp, 1, c->dim, w[WAN_TIME2], w[WAN_TIME2_B], c->dim, 1, s->temb);
    memcpy(tmp, s->temb, (size_t)c->dim * sizeof *tmp);
    nn_silu(tmp, c->dim);
    nn_linear(tmp, 1, c->dim, w[WAN_TIME_PROJ], w[WAN_TIME_PROJ_B], 6 * c->dim, 1, s->mod);
    nn_linear(s->in->text, s->in->n_text, c->text_dim, w[WAN_TEXT1], w[WAN_TEXT1_B], c->dim,
              s->jobs, tmp);
    nn_gelu_tanh(tmp, s->in->n_text * c->dim);
    nn_linear(tmp, s->in->n_text, c->dim, w[WAN_TEXT2], w[WAN_TEXT2_B], c->dim, s->jobs, s->text);
out:
    free(freq);
    free(tmp);
    return rc;
}

/* Position in x [channels][t][h][w] of patch n's element (channel, dt, dh, dw). */
static int64_t pixel(const struct state *s, int64_t n, int64_t ch, int64_t dt, int64_t dh,
                     int64_t dw)
{
    const int64_t *p = s->m->c.patch, *g = s->grid;
    int64_t t = n / (g[1] * g[2]) * p[0] + dt, h = n / g[2] % g[1] * p[1] + dh;
    int64_t w = n % g[2] * p[2] + dw;
    return ((ch * s->in->t + t) * s->in->h + h) * s->in->w + w;
}

/* The convolution with stride = kernel is a linear map of each patch. */
static int patchify(struct state *s, struct err *err)
{
    const struct wan_config *c = &s->m->c;
    int64_t size = c->in_channels * c->patch[0] * c->patch[1] * c->patch[2];
    float *rows = NULL;
    int rc = mem_alloc(&rows, s->n * size, sizeof *rows, "patches", err);
    if (rc)
        return rc;
    float *to = rows;
    for (int64_t n = 0; n < s->n; n++)
        for (int64_t ch = 0; ch < c->in_channels; ch++)
            for (int64_t dt = 0; dt < c->patch[0]; dt++)
                for (int64_t dh = 0; dh < c->patch[1]; dh++)
                    for (int64_t dw = 0; dw < c->patch[2]; dw++)
                        *to++ = s->in->x[pixel(s, n, ch, dt, dh, dw)];
    nn_linear(rows, s->n, size, s->m->outer[WAN_PATCH], s->m->outer[WAN_PATCH_B], c->dim, s->jobs,
              s->h);
    free(rows);
    return 0;
}

/* ---- blocks --------------------------------------------------------------------------------- */

/* y = LN(h) (1 + scale) + shift */
static void modulate(const struct state *s, const float *shift, const float *scale)
{
    int64_t d = s->m->c.dim;
    nn_layer_norm(s->h, s->n, d, NULL, NULL, s->m->c.eps, s->y);
    for (int64_t n = 0; n < s->n; n++)
        for (int64_t i = 0; i < d; i++)
            s->y[n * d + i] = s->y[n * d + i] * (1 + scale[i]) + shift[i];
}

/* h += gate * x; gate NULL = 1. */
static void add(const struct state *s, const float *x, const float *gate)
{
    int64_t d = s->m->c.dim;
    for (int64_t n = 0; n < s->n; n++)
        for (int64_t i = 0; i < d; i++)
            s->h[n * d + i] += gate ? gate[i] * x[n * d + i] : x[n * d + i];
}

/* y = attention of q over k, v [nk][dim]. */
static int attend(struct state *s, const float *k, const float *v, int64_t nk, struct err *err)
{
    const struct wan_config *c = &s->m->c;
    struct nn_kv kv;
    int rc = nn_kv_init(&kv, nk, c->heads, c->head_dim, err);
    if (rc)
        return rc;
    nn_kv_put(&kv, 0, nk, k, v);
    rc = nn_attention(s->q, &kv, s->n, nk, c->heads, 1 / sqrt(c->head_dim), false, s->jobs, s->y,
                      NULL, err);
    nn_kv_free(&kv);
    return rc;
}

static int self_attention(struct state *s, const struct wan_block *b, int layer, const float *mod,
                          wan_hook *hook, void *ctx, struct err *err)
{
    const struct wan_config *c = &s->m->c;
    int64_t d = c->dim;
    int rc = 0;

    modulate(s, mod, mod + d);
    nn_linear(s->y, s->n, d, b->t[WAN_Q1], b->t[WAN_Q1_B], d, s->jobs, s->q);
    nn_linear(s->y, s->n, d, b->t[WAN_K1], b->t[WAN_K1_B], d, s->jobs, s->k);
    nn_linear(s->y, s->n, d, b->t[WAN_V1], b->t[WAN_V1_B], d, s->jobs, s->v);
    nn_rms_norm(s->q, s->n, d, b->t[WAN_NQ1], c->eps, s->q);
    nn_rms_norm(s->k, s->n, d, b->t[WAN_NK1], c->eps, s->k);
    rotate(s, s->q);
    rotate(s, s->k);
    if (hook)
        TRY(hook(ctx, layer, s->q, s->k, s->v, err));
    TRY(attend(s, s->k, s->v, s->n, err));
    nn_linear(s->y, s->n, d, b->t[WAN_O1], b->t[WAN_O1_B], d, s->jobs, s->o);
    add(s, s->o, mod + 2 * d);
out:
    return rc;
}

static int cross_attention(struct state *s, const struct wan_block *b, struct err *err)
{
    const struct wan_config *c = &s->m->c;
    int64_t d = c->dim, nt = s->in->n_text;
    const float *x = s->h;
    int rc = 0;

    if (c->cross_attn_norm) {
        nn_layer_norm(s->h, s->n, d, b->t[WAN_NORM2], b->t[WAN_NORM2_B], c->eps, s->y);
        x = s->y;
    }
    nn_linear(x, s->n, d, b->t[WAN_Q2], b->t[WAN_Q2_B], d, s->jobs, s->q);
    nn_rms_norm(s->q, s->n, d, b->t[WAN_NQ2], c->eps, s->q);
    nn_linear(s->text, nt, d, b->t[WAN_K2], b->t[WAN_K2_B], d, s->jobs, s->k2);
    nn_rms_norm(s->k2, nt, d, b->t[WAN_NK2], c->eps, s->k2);
    nn_linear(s->text, nt, d, b->t[WAN_V2], b->t[WAN_V2_B], d, s->jobs, s->v2);
    TRY(attend(s, s->k2, s->v2, nt, err));
    nn_linear(s->y, s->n, d, b->t[WAN_O2], b->t[WAN_O2_B], d, s->jobs, s->o);
    add(s, s->o, NULL);
out:
    return rc;
}

static void feed_forward(struct state *s, const struct wan_block *b, const float *mod)
{
    const struct wan_config *c = &s->m->c;
    int64_t d = c->dim;
    modulate(s, mod + 3 * d, mod + 4 * d);
    for (int64_t r = 0; r < s->n; r += FFN_ROWS) {
        int64_t n = s->n - r < FFN_ROWS ? s->n - r : FFN_ROWS;
        nn_linear(s->y + r * d, n, d, b->t[WAN_F0], b->t[WAN_F0_B], c->ffn_dim, s->jobs, s->ffn);
        nn_gelu_tanh(s->ffn, n * c->ffn_dim);
        nn_linear(s->ffn, n, c->ffn_dim, b->t[WAN_F2], b->t[WAN_F2_B], d, s->jobs, s->o + r * d);
    }
    add(s, s->o, mod + 5 * d);
}

static int run_blocks(struct state *s, wan_hook *hook, void *ctx, struct err *err)
{
    int64_t d6 = 6 * s->m->c.dim;
    struct wan_block scratch = {0};
    float *mod = NULL;
    int rc = 0;

    TRY(mem_alloc(&mod, d6, sizeof *mod, "modulation", err));
    for (int layer = 0; layer < s->m->c.layers; layer++) {
        const struct wan_block *b;
        TRY(wan_block_get(s->m, layer, &scratch, &b, err));
        for (int64_t i = 0; i < d6; i++)
            mod[i] = b->t[WAN_MOD][i] + s->mod[i];
        TRY(self_attention(s, b, layer, mod, hook, ctx, err));
        TRY(cross_attention(s, b, err));
        feed_forward(s, b, mod);
    }
out:
    wan_block_free(&scratch);
    free(mod);
    return rc;
}

/* ---- output --------------------------------------------------------------------------------- */

static int unpatchify(struct state *s, float *v, struct err *err)
{
    const struct wan_config *c = &s->m->c;
    int64_t d = c->dim;
    int64_t size = c->out_channels * c->patch[0] * c->patch[1] * c->patch[2];
    float *rows = NULL, *mod = NULL;
    int rc = 0;

    TRY(mem_alloc(&mod, 2 * d, sizeof *mod, "modulation", err));
    TRY(mem_alloc(&rows, s->n * size, sizeof *rows, "patches", err));
    for (int64_t i = 0; i < 2 * d; i++)
        mod[i] = s->m->outer[WAN_OUT_MOD][i] + s->temb[i % d];
    modulate(s, mod, mod + d);
    nn_linear(s->y, s->n, d, s->m->outer[WAN_OUT], s->m->outer[WAN_OUT_B], size, s->jobs, rows);
    const float *from = rows;
    for (int64_t n = 0; n < s->n; n++)
        for (int64_t dt = 0; dt < c->patch[0]; dt++)
            for (int64_t dh = 0; dh < c->patch[1]; dh++)
                for (int64_t dw = 0; dw < c->patch[2]; dw++)
                    for (int64_t ch = 0; ch < c->out_channels; ch++)
                        v[pixel(s, n, ch, dt, dh, dw)] = *from++;
out:
    free(rows);
    free(mod);
    return rc;
}

int wan_forward(struct wan_model *m, const struct wan_input *in, int jobs, wan_hook *hook,
                void *hook_ctx, float *v, struct err *err)
{
    struct state s = {.m = m, .in = in, .jobs = jobs};
    int rc = 0;

    TRY(wan_grid(&m->c, in->t, in->h, in->w, s.grid, err));
    s.n = s.grid[0] * s.grid[1] * s.grid[2];
    TRY(state_init(&s, err));
    rotary_tables(&s);
    TRY(condition(&s, err));
    TRY(patchify(&s, err));
    TRY(run_blocks(&s, hook, hook_ctx, err));
    TRY(unpatchify(&s, v, err));
out:
    state_free(&s);
    return rc;
}
