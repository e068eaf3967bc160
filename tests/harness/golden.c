/*
 * golden.c - heads for the tests: real ones from tests/data, one synthetic trace with known
 * structure, random ones.
 *
 * tests/data holds outputs of the shipped models computed in float32 by other programs. code-lm's
 * layer 0 has no stored values: its v is all zeros here, so its outputs are zero and only scores,
 * probabilities and masks of that layer mean something.
 */
#include "tests/harness/golden.h"
#include "core/mem.h"
#include "core/rng.h"
#include "core/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- storage -------------------------------------------------------------------------------- */

struct head_data {
    float *q, *k, *v;
};

static int data_alloc(struct head_data *x, int64_t nq, int64_t nk, int d, struct err *err)
{
    PASS_ON(mem_zalloc(&x->q, nq * d, sizeof(float), "golden q", err));
    PASS_ON(mem_zalloc(&x->k, nk * d, sizeof(float), "golden k", err));
    return mem_zalloc(&x->v, nk * d, sizeof(float), "golden v", err);
}

static void data_free(struct head_data *x)
{
    free(x->q);
    free(x->k);
    free(x->v);
}

static int copy_rows(float **dst, const float *src, int64_t n, int d, const char *what,
                     struct err *err)
{
    PASS_ON(mem_alloc(dst, n * d, sizeof(float), what, err));
    memcpy(*dst, src, (size_t)(n * d) * sizeof(float));
    return 0;
}

int head_init(struct sim_head *h, const struct head_in *in, enum precision prec, struct err *err)
{
    int rc = 0;
    const struct attn_in *x = &in->x;

    memset(h, 0, sizeof *h);
    h->in = *in;
    TRY(copy_rows(&h->q, x->q, x->nq, x->d, "queries", err));
    TRY(copy_rows(&h->k, x->k, x->nk, x->d, "keys", err));
    TRY(copy_rows(&h->v, x->v, x->nk, x->dv, "values", err));
    sim_head_ready(h, prec);
out:
    if (rc)
        sim_head_free(h);
    return rc;
}

static const double *all_rows(int (*ask)(struct exact *, int64_t, int64_t, const double **,
                                         struct err *),
                              const struct head_in *in)
{
    struct err err = {0};
    const double *rows;
    if (!ask(in->exact, 0, in->x.nq, &rows, &err))
        return rows;
    fprintf(stderr, "%s\n", err.msg);
    abort();
}

const double *head_lse(const struct head_in *in)
{
    return all_rows(exact_lse, in);
}

const double *head_out(const struct head_in *in)
{
    return all_rows(exact_out, in);
}

double weighted_row(const struct attn_in *x, int64_t i, const double *w, double zeros, double *out)
{
    double sum = zeros;
    memset(out, 0, (size_t)x->dv * sizeof *out);
    for (int64_t j = 0; j < x->nk; j++) {
        double s = 0;
        for (int c = 0; c < x->d && w[j] > 0; c++)
            s += (double)x->q[i * x->d + c] * x->k[j * x->d + c];
        s = w[j] > 0 ? w[j] * exp(s * x->scale) : 0;
        sum += s;
        for (int c = 0; c < x->dv && s > 0; c++)
            out[c] += s * x->v[j * x->dv + c];
    }
    for (int c = 0; c < x->dv && sum > 0; c++)
        out[c] /= sum;
    return log(sum);
}

struct head_in one_head(const float *q, const float *k, const float *v, int64_t nq, int64_t nk,
                        int d, bool causal)
{
    struct head_in in = {
        .x = {.nq = nq,
              .nk = nk,
              .d = d,
              .dv = d,
              .q = q,
              .k = k,
              .v = v,
              .scale = 1.0 / sqrt(d),
              .causal = causal},
        .src_dtype = DT_F32,
        .n_heads = 1,
        .n_kv_heads = 1,
        .n_layers = 1,
        .timestep = NAN,
        .branch = "main",
    };
    return in;
}

/* Rows [index][n][d] of a stored [heads][n][d] tensor. */
static int read_head(const struct st_file *f, const char *name, int64_t heads, int64_t index,
                     int64_t n, int64_t d, float *dst, struct err *err)
{
    const struct st_tensor *t;
    int64_t shape[3] = {heads, n, d};
    PASS_ON(st_require(f, name, 3, shape, &t, err));
    return st_read_f32(f, t, index * n * d, n * d, dst, err);
}

/* ---- real heads ----------------------------------------------------------------------------- */

int golden_code_lm(int layer, int head, enum precision prec, struct sim_head *h, struct err *err)
{
    enum { N = 770, D = 64, KV = 2, GROUP = 4 };
    OWN(st_close) struct st_file *f = NULL;
    OWN(data_free) struct head_data x = {0};
    char name[64];

    if ((layer != 0 && layer != 5) || (head != 0 && head != 7))
        return err_set(err, ERR_RUN, "code-lm-a has no layer %d head %d", layer, head);
    PASS_ON(st_open("tests/data/code-lm-a.safetensors", &f, err));
    PASS_ON(data_alloc(&x, N, N, D, err));
    snprintf(name, sizeof name, "layer%d.q.heads0,7", layer);
    PASS_ON(read_head(f, name, 2, head == 7, N, D, x.q, err));
    snprintf(name, sizeof name, "layer%d.k", layer);
    PASS_ON(read_head(f, name, KV, head / GROUP, N, D, x.k, err));
    if (layer == 5)
        PASS_ON(read_head(f, "layer5.v", KV, head / GROUP, N, D, x.v, err));
    struct head_in in = one_head(x.q, x.k, x.v, N, N, D, true);
    in.layer = layer;
    in.head = head;
    in.kv_head = head / GROUP;
    in.n_heads = KV * GROUP;
    in.n_kv_heads = KV;
    in.n_layers = 6;
    return head_init(h, &in, prec, err);
}

int golden_video(int step, int layer, int head, enum precision prec, struct sim_head *h,
                 struct err *err)
{
    enum { T = 4, H = 8, W = 12, N = T * H * W, D = 128, HEADS = 2 };
    OWN(st_close) struct st_file *f = NULL;
    OWN(data_free) struct head_data x = {0};
    const struct st_tensor *sigmas;
    float sigma;
    char name[64];
    float *dst[3];

    if ((step != 0 && step != 3) || (layer != 0 && layer != 5) || head < 0 || head >= HEADS)
        return err_set(err, ERR_RUN, "video-dit-a has no step %d layer %d head %d", step, layer,
                       head);
    PASS_ON(st_open("tests/data/video-dit-a.safetensors", &f, err));
    PASS_ON(data_alloc(&x, N, N, D, err));
    dst[0] = x.q, dst[1] = x.k, dst[2] = x.v;
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "step%d.layer%d.%c", step, layer, "qkv"[i]);
        PASS_ON(read_head(f, name, HEADS, head, N, D, dst[i], err));
    }
    PASS_ON(st_require(f, "sigmas", 1, (int64_t[]){5}, &sigmas, err));
    PASS_ON(st_read_f32(f, sigmas, step, 1, &sigma, err));
    struct head_in in = one_head(x.q, x.k, x.v, N, N, D, false);
    in.geom = (struct geometry){.t = T, .h = H, .w = W};
    in.layer = layer;
    in.head = in.kv_head = head;
    in.n_heads = in.n_kv_heads = HEADS;
    in.n_layers = 6;
    in.step = step;
    in.n_steps = 4;
    in.timestep = 1000.0 * sigma;
    in.branch = "cond";
    return head_init(h, &in, prec, err);
}

/* ---- made heads ----------------------------------------------------------------------------- */

/* Multiples of 1/16 in [-15/16, 15/16]: sums and products of a few of them are exact in float. */
static float sample_value(uint64_t t, int64_t n, int j)
{
    uint64_t u = rng_mix(0x9E3779B97F4A7C15ull * (1 + (t << 40) + 64 * (uint64_t)n + (uint64_t)j));
    return ((float)(u >> 60) - 7.5f) / 8.0f;
}

/* Queries that favour key 0 (a sink), key 2000 (a column), and the keys 5 and 986 before them (two
 * slashes). */
int golden_sample(int64_t n, enum precision prec, struct sim_head *h, struct err *err)
{
    enum { D = 64, NEAR = 5, FAR = 986, COLUMN = 2000 };
    OWN(data_free) struct head_data x = {0};

    PASS_ON(data_alloc(&x, n, n, D, err));
    for (int64_t i = 0; i < n; i++)
        for (int j = 0; j < D; j++) {
            float q = sample_value(1, i, j);
            q += 5 * sample_value(2, 0, j) + 5 * sample_value(2, COLUMN, j);
            q += i >= NEAR ? 5 * sample_value(2, i - NEAR, j) : 0;
            q += i >= FAR ? 5 * sample_value(2, i - FAR, j) : 0;
            x.q[i * D + j] = q;
            x.k[i * D + j] = sample_value(2, i, j);
            x.v[i * D + j] = sample_value(3, i, j);
        }
    struct head_in in = one_head(x.q, x.k, x.v, n, n, D, true);
    return head_init(h, &in, prec, err);
}

int random_head(uint64_t seed, int64_t nq, int64_t nk, int d, bool causal, double sigma,
                enum precision prec, struct sim_head *h, struct err *err)
{
    OWN(data_free) struct head_data x = {0};

    PASS_ON(data_alloc(&x, nq, nk, d, err));
    for (int64_t i = 0; i < nq * d; i++)
        x.q[i] = (float)(sigma * rng_normal(seed, 1, (uint64_t)i));
    for (int64_t i = 0; i < nk * d; i++) {
        x.k[i] = (float)(sigma * rng_normal(seed, 2, (uint64_t)i));
        x.v[i] = (float)(sigma * rng_normal(seed, 3, (uint64_t)i));
    }
    struct head_in in = one_head(x.q, x.k, x.v, nq, nk, d, causal);
    return head_init(h, &in, prec, err);
}

int random_video(uint64_t seed, int64_t t, int64_t h, int64_t w, int64_t text, int place,
                 struct sim_head *out, struct err *err)
{
    int64_t n = t * h * w + text;
    PASS_ON(random_head(seed, n, n, 16, false, 1.5, PREC_F64, out, err));
    out->in.geom = (struct geometry){t, h, w, text, text ? place : 0};
    out->in.layer = 7;
    out->in.n_layers = 40;
    out->in.n_steps = 50;
    out->in.branch = "cond";
    return 0;
}

float *golden_tensor(const char *path, const char *name, int64_t count)
{
    struct err err = {0};
    OWN(st_close) struct st_file *f = NULL;
    const struct st_tensor *t;
    float *x = malloc((size_t)count * sizeof *x);
    if (!x || st_open(path, &f, &err) || st_require(f, name, -1, NULL, &t, &err) ||
        t->count != count || st_read_f32(f, t, 0, count, x, &err)) {
        fprintf(stderr, "%s: %s: %s\n", path, name, err.code ? err.msg : "another size");
        abort();
    }
    return x;
}

double rel_l2(const float *x, const float *want, int64_t n)
{
    double d = 0, s = 0;
    for (int64_t i = 0; i < n; i++) {
        d += ((double)x[i] - want[i]) * ((double)x[i] - want[i]);
        s += (double)want[i] * want[i];
    }
    return sqrt(d / s);
}

int drawn_operand(const struct head_in *in, enum trace_aux which, int64_t gates,
                  struct aux_shape *shape, float **x, struct err *err)
{
    int64_t nq = in->x.nq, nk = in->x.nk;
    const struct aux_shape of[AUX_COUNT] = {
        [AUX_IQ] = {3, nq, 16},       [AUX_IK] = {1, nk, 16},    [AUX_IW] = {3, nq, 1},
        [AUX_GATE_Q] = {8, gates, 5}, [AUX_GATE_K] = {2, nk, 5},
    };
    bool last = which == AUX_IQ || which == AUX_IW; /* the rows are the last of the sequence */
    int64_t n = of[which].heads * of[which].rows, d = of[which].dim;
    *shape = of[which];
    PASS_ON(x ? mem_alloc(x, n * d, sizeof **x, "a drawn operand", err) : 0);
    for (int64_t i = 0; x && i < n * d; i++) {
        int64_t row = i / d % shape->rows + (last ? nk - nq : 0), head = i / d / shape->rows;
        double z = rng_normal(78, (uint64_t)which, (uint64_t)((row * 8 + head) * d + i % d));
        (*x)[i] = rintf(2 * (float)z) / 2;
    }
    return 0;
}
