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
#include "capture/wan_model.h"
#include "core/mem.h"
#include "core/pool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Tokens whose feed-forward activations exist at a time. */
#define FFN_ROWS 4096

/* Tokens of a work item outside products: fixed, although rows are independent. */
#define BLOCK_ROWS 128

struct state {
    struct wan_model *m;
    const struct wan_input *in;
    int jobs;
    int64_t grid[3], n;           /* tokens */
    float *h, *y, *q, *k, *v, *o; /* [n][dim] */
    float *temb, *mod;            /* [dim], [6][dim] */
    float *text, *k2, *v2;        /* [n_text][dim] */
    int64_t pairs[3];             /* wan_rotary */
    float *cos[3], *sin[3];       /* per axis [grid[axis]][pairs[axis]] */
    float *ffn;                   /* [ffn_rows][ffn_dim] */
    int64_t ffn_rows;
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
    float *all[] = {s->h,    s->y,   s->q,    s->k,  s->v,  s->o,
                    s->temb, s->mod, s->text, s->k2, s->v2, s->ffn};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    for (int axis = 0; axis < 3; axis++) {
        free(s->cos[axis]);
        free(s->sin[axis]);
    }
}

/* 2 (d div 6) channels each belong to row and column, the rest, which stands first, to the frame.
 */
void wan_rotary(const struct wan_config *c, int64_t pairs[3], double *inv_freq)
{
    pairs[1] = pairs[2] = c->head_dim / 6;
    pairs[0] = c->head_dim / 2 - 2 * pairs[1];
    for (int axis = 0; axis < 3; axis++)
        for (int64_t i = 0; i < pairs[axis]; i++)
            *inv_freq++ = 1 / pow(10000, (double)i / (double)pairs[axis]);
}

static int state_init(struct state *s, struct err *err)
{
    const struct wan_config *c = &s->m->c;
    int64_t nd = s->n * c->dim, td = s->in->n_text * c->dim;
    float **tokens[] = {&s->h, &s->y, &s->q, &s->k, &s->v, &s->o};
    float **texts[] = {&s->text, &s->k2, &s->v2};
    for (size_t i = 0; i < 6; i++)
        PASS_ON(mem_alloc(tokens[i], nd, sizeof(float), "activations", err));
    for (size_t i = 0; i < 3; i++)
        PASS_ON(mem_alloc(texts[i], td, sizeof(float), "text activations", err));
    PASS_ON(mem_alloc(&s->temb, c->dim, sizeof(float), "timestep embedding", err));
    PASS_ON(mem_alloc(&s->mod, 6 * c->dim, sizeof(float), "modulation", err));
    for (int axis = 0; axis < 3; axis++) {
        int64_t count = s->grid[axis] * s->pairs[axis];
        PASS_ON(mem_alloc(&s->cos[axis], count, sizeof(float), "rotary table", err));
        PASS_ON(mem_alloc(&s->sin[axis], count, sizeof(float), "rotary table", err));
    }
    s->ffn_rows = s->n < FFN_ROWS ? s->n : FFN_ROWS;
    return mem_alloc(&s->ffn, s->ffn_rows * c->ffn_dim, sizeof(float), "feed-forward", err);
}

int64_t wan_forward_bytes(const struct wan_config *c, int64_t t, int64_t h, int64_t w)
{
    int64_t n = t / c->patch[0] * (h / c->patch[1]) * (w / c->patch[2]);
    int64_t rows = n < FFN_ROWS ? n : FFN_ROWS;
    /* six activations, keys and values by head inside attention */
    return 4 * (8 * n * c->dim + rows * c->ffn_dim) + wan_block_bytes(c);
}

static void rotary_tables(struct state *s, const double *inv_freq)
{
    for (int axis = 0; axis < 3; axis++) {
        int64_t pairs = s->pairs[axis];
        for (int64_t i = 0; i < pairs; i++)
            for (int64_t pos = 0; pos < s->grid[axis]; pos++) {
                s->cos[axis][pos * pairs + i] = (float)cos((double)pos * inv_freq[i]);
                s->sin[axis][pos * pairs + i] = (float)sin((double)pos * inv_freq[i]);
            }
        inv_freq += pairs;
    }
}

static void rotate_pairs(float *p, const float *c, const float *z, int64_t pairs)
{
    for (int64_t i = 0; i < pairs; i++) {
        float a = p[2 * i], b = p[2 * i + 1];
        p[2 * i] = a * c[i] - b * z[i];
        p[2 * i + 1] = a * z[i] + b * c[i];
    }
}

/* Rotate adjacent channel pairs of every head of token n, x [dim]. */
static void rotate(const struct state *s, int64_t n, float *x)
{
    const int64_t *g = s->grid, pos[3] = {n / (g[1] * g[2]), n / g[2] % g[1], n % g[2]};
    for (int h = 0; h < s->m->c.heads; h++)
        for (int axis = 0; axis < 3; axis++) {
            int64_t pairs = s->pairs[axis], at = pos[axis] * pairs;
            rotate_pairs(x, s->cos[axis] + at, s->sin[axis] + at, pairs);
            x += 2 * pairs;
        }
}

/* ---- rows on several threads ---------------------------------------------------------------- */

/* Work on the tokens [a, b); rows are independent of each other. */
typedef void rows_fn(const struct state *s, const void *arg, int64_t a, int64_t b);

struct rows_job {
    const struct state *s;
    rows_fn *fn;
    const void *arg;
    int64_t n;
};

static int rows_item(void *ctx, int64_t item, int worker, struct err *err)
{
    const struct rows_job *j = ctx;
    int64_t a = item * BLOCK_ROWS, b = a + BLOCK_ROWS < j->n ? a + BLOCK_ROWS : j->n;
    j->fn(j->s, j->arg, a, b);
    return 0;
}

static int each_rows(const struct state *s, int64_t n, rows_fn *fn, const void *arg,
                     struct err *err)
{
    struct rows_job j = {s, fn, arg, n};
    return pool_run(s->jobs, (n + BLOCK_ROWS - 1) / BLOCK_ROWS, rows_item, &j, err);
}

/* In float like the implementations the weights were trained with: at timestep 1000 the rounding of
 * the angle is visible in v (1e-4). */
void wan_timestep(const struct wan_config *c, double timestep, float *freq)
{
    int64_t half = c->freq_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        float a = (float)timestep * expf(-logf(10000) * (float)i / (float)half);
        freq[i] = cosf(a);
        freq[half + i] = sinf(a);
    }
}

/* e and the six modulation vectors' common part; the text through its MLP. */
static int condition(struct state *s, struct err *err)
{
    const struct wan_config *c = &s->m->c;
    OWN(free_at) float *freq = NULL, *tmp = NULL;
    float **w = s->m->outer;
    PASS_ON(mem_alloc(&freq, c->freq_dim, sizeof *freq, "timestep frequencies", err));
    PASS_ON(mem_alloc(&tmp, (s->in->n_text + 1) * c->dim, sizeof *tmp, "conditioning", err));
    wan_timestep(c, s->in->timestep, freq);
    PASS_ON(
        nn_linear(freq, 1, c->freq_dim, w[WAN_TIME1], w[WAN_TIME1_B], c->dim, s->jobs, tmp, err));
    nn_silu(tmp, c->dim);
    PASS_ON(nn_linear(tmp, 1, c->dim, w[WAN_TIME2], w[WAN_TIME2_B], c->dim, s->jobs, s->temb, err));
    memcpy(tmp, s->temb, (size_t)c->dim * sizeof *tmp);
    nn_silu(tmp, c->dim);
    PASS_ON(nn_linear(tmp, 1, c->dim, w[WAN_TIME_PROJ], w[WAN_TIME_PROJ_B], 6 * c->dim, s->jobs,
                      s->mod, err));
    PASS_ON(nn_linear(s->in->text, s->in->n_text, c->text_dim, w[WAN_TEXT1], w[WAN_TEXT1_B], c->dim,
                      s->jobs, tmp, err));
    nn_gelu_tanh(tmp, s->in->n_text * c->dim);
    return nn_linear(tmp, s->in->n_text, c->dim, w[WAN_TEXT2], w[WAN_TEXT2_B], c->dim, s->jobs,
                     s->text, err);
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

static int64_t patch_size(const struct wan_config *c, int64_t channels)
{
    return channels * c->patch[0] * c->patch[1] * c->patch[2];
}

/* rows [n][patch] <- latent */
static void gather_rows(const struct state *s, const void *arg, int64_t a, int64_t b)
{
    const struct wan_config *c = &s->m->c;
    float *to = *(float *const *)arg + a * patch_size(c, c->in_channels);
    for (int64_t n = a; n < b; n++)
        for (int64_t ch = 0; ch < c->in_channels; ch++)
            for (int64_t dt = 0; dt < c->patch[0]; dt++)
                for (int64_t dh = 0; dh < c->patch[1]; dh++)
                    for (int64_t dw = 0; dw < c->patch[2]; dw++)
                        *to++ = s->in->x[pixel(s, n, ch, dt, dh, dw)];
}

/* The convolution with stride = kernel is a linear map of each patch. */
static int patchify(struct state *s, struct err *err)
{
    const struct wan_config *c = &s->m->c;
    int64_t size = patch_size(c, c->in_channels);
    OWN(free_at) float *rows = NULL;
    PASS_ON(mem_alloc(&rows, s->n * size, sizeof *rows, "patches", err));
    PASS_ON(each_rows(s, s->n, gather_rows, &rows, err));
    return nn_linear(rows, s->n, size, s->m->outer[WAN_PATCH], s->m->outer[WAN_PATCH_B], c->dim,
                     s->jobs, s->h, err);
}

/* ---- blocks --------------------------------------------------------------------------------- */

struct shift_scale {
    const float *shift, *scale; /* [dim] */
};

static void modulate_rows(const struct state *s, const void *arg, int64_t a, int64_t b)
{
    const struct shift_scale *m = arg;
    int64_t d = s->m->c.dim;
    nn_layer_norm(s->h + a * d, b - a, d, NULL, NULL, s->m->c.eps, s->y + a * d);
    for (int64_t n = a; n < b; n++)
        for (int64_t i = 0; i < d; i++)
            s->y[n * d + i] = s->y[n * d + i] * (1 + m->scale[i]) + m->shift[i];
}

/* y = LN(h) (1 + scale) + shift */
static int modulate(const struct state *s, const float *shift, const float *scale, struct err *err)
{
    return each_rows(s, s->n, modulate_rows, &(struct shift_scale){shift, scale}, err);
}

/* h += gate * o; gate NULL = 1. */
static void add_rows(const struct state *s, const void *arg, int64_t a, int64_t b)
{
    const float *gate = arg;
    int64_t d = s->m->c.dim;
    for (int64_t n = a; n < b; n++)
        for (int64_t i = 0; i < d; i++)
            s->h[n * d + i] += gate ? gate[i] * s->o[n * d + i] : s->o[n * d + i];
}

/* q and k of self-attention: RMS norm over all heads, rotation. */
static void qk_rows(const struct state *s, const void *arg, int64_t a, int64_t b)
{
    const struct wan_block *w = arg;
    int64_t d = s->m->c.dim;
    nn_rms_norm(s->q + a * d, b - a, d, w->t[WAN_NQ1], s->m->c.eps, s->q + a * d);
    nn_rms_norm(s->k + a * d, b - a, d, w->t[WAN_NK1], s->m->c.eps, s->k + a * d);
    for (int64_t n = a; n < b; n++) {
        rotate(s, n, s->q + n * d);
        rotate(s, n, s->k + n * d);
    }
}

/* Norm before cross-attention, and of its queries. */
static void norm2_rows(const struct state *s, const void *arg, int64_t a, int64_t b)
{
    const struct wan_block *w = arg;
    int64_t d = s->m->c.dim;
    nn_layer_norm(s->h + a * d, b - a, d, w->t[WAN_NORM2], w->t[WAN_NORM2_B], s->m->c.eps,
                  s->y + a * d);
}

static void q2_rows(const struct state *s, const void *arg, int64_t a, int64_t b)
{
    const struct wan_block *w = arg;
    int64_t d = s->m->c.dim;
    nn_rms_norm(s->q + a * d, b - a, d, w->t[WAN_NQ2], s->m->c.eps, s->q + a * d);
}

static void gelu_rows(const struct state *s, const void *arg, int64_t a, int64_t b)
{
    nn_gelu_tanh(s->ffn + a * s->m->c.ffn_dim, (b - a) * s->m->c.ffn_dim);
}

/* y = exact attention of q over k, v [nk][dim]; lse [heads][n], NULL: not wanted. */
static int attend_exact(struct state *s, const struct nn_kv *kv, double *lse, struct err *err)
{
    const struct wan_config *c = &s->m->c;
    return nn_attention(s->q, kv, s->n, kv->n, c->heads, 1 / sqrt(c->head_dim), false, s->jobs,
                        s->y, lse, err);
}

static int attend_text(struct state *s, struct err *err)
{
    const struct wan_config *c = &s->m->c;
    int64_t nt = s->in->n_text;
    OWN(nn_kv_free) struct nn_kv kv = {0};
    PASS_ON(nn_kv_init(&kv, nt, c->heads, c->head_dim, err));
    nn_kv_put(&kv, 0, nt, s->k2, s->v2);
    return attend_exact(s, &kv, NULL, err);
}

/* Exact self-attention with its maps. */
static int attend_mapped(struct state *s, const struct nn_kv *kv, int layer,
                         const struct wan_hooks *hooks, struct err *err)
{
    const struct wan_config *c = &s->m->c;
    OWN(attnmap_free) struct attnmap map = {0};
    OWN(free_at) double *lse = NULL;
    PASS_ON(mem_alloc(&lse, s->n * c->heads, sizeof *lse, "log-sum-exp", err));
    PASS_ON(attend_exact(s, kv, lse, err));
    PASS_ON(attnmap_init(&map, c->heads, s->n, s->n, hooks->pool, err));
    PASS_ON(attnmap_rows(&map, s->q, kv, 0, s->n, s->n, 1 / sqrt(c->head_dim), false, lse, s->jobs,
                         err));
    return hooks->maps(hooks->ctx, layer, &map, err);
}

/* y = self-attention: the model's own where it has one. */
static int attend_self(struct state *s, int layer, const struct wan_hooks *hooks, struct err *err)
{
    const struct wan_config *c = &s->m->c;
    const struct layer_attention *own = s->m->attention;
    OWN(nn_kv_free) struct nn_kv kv = {0};
    PASS_ON(nn_kv_init(&kv, s->n, c->heads, c->head_dim, err));
    nn_kv_put(&kv, 0, s->n, s->k, s->v);
    if (own)
        return own->attend(own->ctx, layer, s->q, s->n, &kv, s->n, s->y, err);
    else if (wan_wants_maps(hooks, layer))
        return attend_mapped(s, &kv, layer, hooks, err);
    else
        return attend_exact(s, &kv, NULL, err);
}

static int self_attention(struct state *s, const struct wan_block *b, int layer, const float *mod,
                          const struct wan_hooks *hooks, struct err *err)
{
    const struct wan_config *c = &s->m->c;
    int64_t d = c->dim;
    PASS_ON(modulate(s, mod, mod + d, err));
    PASS_ON(nn_linear(s->y, s->n, d, b->t[WAN_Q1], b->t[WAN_Q1_B], d, s->jobs, s->q, err));
    PASS_ON(nn_linear(s->y, s->n, d, b->t[WAN_K1], b->t[WAN_K1_B], d, s->jobs, s->k, err));
    PASS_ON(nn_linear(s->y, s->n, d, b->t[WAN_V1], b->t[WAN_V1_B], d, s->jobs, s->v, err));
    PASS_ON(each_rows(s, s->n, qk_rows, b, err));
    if (hooks && hooks->rows)
        PASS_ON(hooks->rows(hooks->ctx, layer, s->q, s->k, s->v, err));
    PASS_ON(attend_self(s, layer, hooks, err));
    PASS_ON(nn_linear(s->y, s->n, d, b->t[WAN_O1], b->t[WAN_O1_B], d, s->jobs, s->o, err));
    return each_rows(s, s->n, add_rows, mod + 2 * d, err);
}

static int cross_attention(struct state *s, const struct wan_block *b, struct err *err)
{
    const struct wan_config *c = &s->m->c;
    int64_t d = c->dim, nt = s->in->n_text;
    const float *x = s->h;
    if (c->cross_attn_norm) {
        PASS_ON(each_rows(s, s->n, norm2_rows, b, err));
        x = s->y;
    }
    PASS_ON(nn_linear(x, s->n, d, b->t[WAN_Q2], b->t[WAN_Q2_B], d, s->jobs, s->q, err));
    PASS_ON(each_rows(s, s->n, q2_rows, b, err));
    PASS_ON(nn_linear(s->text, nt, d, b->t[WAN_K2], b->t[WAN_K2_B], d, s->jobs, s->k2, err));
    nn_rms_norm(s->k2, nt, d, b->t[WAN_NK2], c->eps, s->k2);
    PASS_ON(nn_linear(s->text, nt, d, b->t[WAN_V2], b->t[WAN_V2_B], d, s->jobs, s->v2, err));
    PASS_ON(attend_text(s, err));
    PASS_ON(nn_linear(s->y, s->n, d, b->t[WAN_O2], b->t[WAN_O2_B], d, s->jobs, s->o, err));
    return each_rows(s, s->n, add_rows, NULL, err);
}

static int feed_forward(struct state *s, const struct wan_block *b, const float *mod,
                        struct err *err)
{
    const struct wan_config *c = &s->m->c;
    int64_t d = c->dim;
    PASS_ON(modulate(s, mod + 3 * d, mod + 4 * d, err));
    for (int64_t r = 0; r < s->n; r += s->ffn_rows) {
        int64_t n = s->n - r < s->ffn_rows ? s->n - r : s->ffn_rows;
        PASS_ON(nn_linear(s->y + r * d, n, d, b->t[WAN_F0], b->t[WAN_F0_B], c->ffn_dim, s->jobs,
                          s->ffn, err));
        PASS_ON(each_rows(s, n, gelu_rows, NULL, err));
        PASS_ON(nn_linear(s->ffn, n, c->ffn_dim, b->t[WAN_F2], b->t[WAN_F2_B], d, s->jobs,
                          s->o + r * d, err));
    }
    return each_rows(s, s->n, add_rows, mod + 5 * d, err);
}

static int run_blocks(struct state *s, const struct wan_hooks *hooks, struct err *err)
{
    int64_t d6 = 6 * s->m->c.dim;
    OWN(wan_block_free) struct wan_block scratch = {0};
    OWN(free_at) float *mod = NULL;
    PASS_ON(mem_alloc(&mod, d6, sizeof *mod, "modulation", err));
    for (int layer = 0; layer < s->m->c.layers; layer++) {
        const struct wan_block *b;
        PASS_ON(wan_block_get(s->m, layer, &scratch, &b, err));
        for (int64_t i = 0; i < d6; i++)
            mod[i] = b->t[WAN_MOD][i] + s->mod[i];
        PASS_ON(self_attention(s, b, layer, mod, hooks, err));
        PASS_ON(cross_attention(s, b, err));
        PASS_ON(feed_forward(s, b, mod, err));
    }
    return 0;
}

/* ---- output --------------------------------------------------------------------------------- */

struct pixels {
    const float *rows; /* [n][patch] */
    float *v;
};

static void scatter_rows(const struct state *s, const void *arg, int64_t a, int64_t b)
{
    const struct wan_config *c = &s->m->c;
    const struct pixels *p = arg;
    const float *from = p->rows + a * patch_size(c, c->out_channels);
    for (int64_t n = a; n < b; n++)
        for (int64_t dt = 0; dt < c->patch[0]; dt++)
            for (int64_t dh = 0; dh < c->patch[1]; dh++)
                for (int64_t dw = 0; dw < c->patch[2]; dw++)
                    for (int64_t ch = 0; ch < c->out_channels; ch++)
                        p->v[pixel(s, n, ch, dt, dh, dw)] = *from++;
}

static int unpatchify(struct state *s, float *v, struct err *err)
{
    const struct wan_config *c = &s->m->c;
    int64_t d = c->dim, size = patch_size(c, c->out_channels);
    OWN(free_at) float *rows = NULL, *mod = NULL;
    PASS_ON(mem_alloc(&mod, 2 * d, sizeof *mod, "modulation", err));
    PASS_ON(mem_alloc(&rows, s->n * size, sizeof *rows, "patches", err));
    for (int64_t i = 0; i < 2 * d; i++)
        mod[i] = s->m->outer[WAN_OUT_MOD][i] + s->temb[i % d];
    PASS_ON(modulate(s, mod, mod + d, err));
    PASS_ON(nn_linear(s->y, s->n, d, s->m->outer[WAN_OUT], s->m->outer[WAN_OUT_B], size, s->jobs,
                      rows, err));
    return each_rows(s, s->n, scatter_rows, &(struct pixels){rows, v}, err);
}

int wan_forward(struct wan_model *m, const struct wan_input *in, int jobs,
                const struct wan_hooks *hooks, float *v, struct err *err)
{
    OWN(state_free) struct state s = {.m = m, .in = in, .jobs = jobs};
    OWN(free_at) double *inv_freq = NULL;
    if (m->device)
        return wan_device_forward(m, in, hooks, v, err);
    PASS_ON(wan_grid(&m->c, in->t, in->h, in->w, s.grid, err));
    s.n = s.grid[0] * s.grid[1] * s.grid[2];
    PASS_ON(mem_alloc(&inv_freq, m->c.head_dim / 2, sizeof *inv_freq, "rotary frequencies", err));
    wan_rotary(&m->c, s.pairs, inv_freq);
    PASS_ON(state_init(&s, err));
    rotary_tables(&s, inv_freq);
    PASS_ON(condition(&s, err));
    PASS_ON(patchify(&s, err));
    PASS_ON(run_blocks(&s, hooks, err));
    return unpatchify(&s, v, err);
}
