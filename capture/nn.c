/*
 * nn.c - see nn.h. Sums over channels are carried in double.
 */
#include "capture/nn.h"

#include "core/decoder.h"
#include "core/safetensors.h"
#include "core/gemm.h"
#include "core/mem.h"
#include "core/pool.h"
#include "core/attention.h"
#include "core/simd.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rows and columns of y that one item computes. Fixed, so that a value is the same sum however many
 * threads there are; BLAS threads are not used, whose idle ones would spin on the pool's
 * processors. */
#define LINEAR_COLS 512

struct linear_job {
    const float *x, *w, *b;
    int64_t n, in, out, row_blocks;
    float *y;
};

static int linear_item(void *ctx, int64_t item, int worker, struct err *err)
{
    const struct linear_job *j = ctx;
    int64_t r0 = item % j->row_blocks * NN_LINEAR_ROWS, c0 = item / j->row_blocks * LINEAR_COLS;
    int64_t rows = j->n - r0 < NN_LINEAR_ROWS ? j->n - r0 : NN_LINEAR_ROWS;
    int64_t cols = j->out - c0 < LINEAR_COLS ? j->out - c0 : LINEAR_COLS;
    float *y = j->y + r0 * j->out + c0;
    for (int64_t r = 0; j->b && r < rows; r++)
        memcpy(y + r * j->out, j->b + c0, (size_t)cols * sizeof *y);
    gemm_nt_f32(rows, cols, j->in, 1, j->x + r0 * j->in, j->in, j->w + c0 * j->in, j->in,
                j->b ? 1 : 0, y, j->out);
    return 0;
}

int nn_linear(const float *x, int64_t n, int64_t in, const float *w, const float *b, int64_t out,
              int jobs, float *y, struct err *err)
{
    int64_t row_blocks = (n + NN_LINEAR_ROWS - 1) / NN_LINEAR_ROWS;
    struct linear_job j = {x, w, b, n, in, out, row_blocks, y};
    int64_t items = row_blocks * ((out + LINEAR_COLS - 1) / LINEAR_COLS);
    PASS_ON(gemm_ready(err));
    return pool_run(jobs, items, linear_item, &j, err);
}

void nn_layer_norm(const float *x, int64_t n, int64_t d, const float *w, const float *b, double eps,
                   float *y)
{
    for (int64_t r = 0; r < n; r++) {
        const float *in = x + r * d;
        float *to = y + r * d;
        double sum = 0, sq = 0;
        for (int64_t c = 0; c < d; c++)
            sum += in[c];
        double mean = sum / (double)d;
        for (int64_t c = 0; c < d; c++)
            sq += (in[c] - mean) * (in[c] - mean);
        double inv = 1 / sqrt(sq / (double)d + eps);
        for (int64_t c = 0; c < d; c++) {
            double z = (in[c] - mean) * inv;
            to[c] = (float)(w ? z * w[c] + (b ? b[c] : 0) : z);
        }
    }
}

void nn_rms_norm(const float *x, int64_t n, int64_t d, const float *w, double eps, float *y)
{
    for (int64_t r = 0; r < n; r++) {
        const float *in = x + r * d;
        double sq = 0;
        for (int64_t c = 0; c < d; c++)
            sq += (double)in[c] * in[c];
        double inv = 1 / sqrt(sq / (double)d + eps);
        for (int64_t c = 0; c < d; c++)
            y[r * d + c] = (float)(in[c] * inv * w[c]);
    }
}

void nn_silu(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] / (1 + expf(-x[i]));
}

/* (1 + tanh u) / 2 = 1 / (1 + e^(-2u)), with e^z = 2^k e^r: k = rint(z log2 e) by adding a constant
 * whose last mantissa bit is worth 1, |r| <= ln 2 / 2 and a Taylor polynomial of degree 7. At |2u|
 * above 87 the factor is 0 or 1 in float. */
SIMD_CLONES
void nn_gelu_tanh(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float z = -1.5957691216057308f * (x[i] + 0.044715f * x[i] * x[i] * x[i]), scale;
        z = z > -87 ? z : -87;
        z = z < 87 ? z : 87;
        float t = z * 1.44269504f + 12582912.0f, k = t - 12582912.0f;
        uint32_t bits;
        memcpy(&bits, &t, sizeof bits);
        bits = (bits << 23) + 0x3f800000u;
        memcpy(&scale, &bits, sizeof scale);
        float r = (z - k * 0.693359375f) - k * -2.12194440e-4f;
        float p = 1.0f / 120 + r * (1.0f / 720 + r * (1.0f / 5040));
        p = 1 + r * (1 + r * (0.5f + r * (1.0f / 6 + r * (1.0f / 24 + r * p))));
        x[i] = x[i] / (1 + p * scale);
    }
}

/* ---- attention of all heads ----------------------------------------------------------------- */

int nn_kv_init(struct nn_kv *kv, int64_t n, int heads, int d, struct err *err)
{
    *kv = (struct nn_kv){.n = n, .heads = heads, .d = d};
    PASS_ON(mem_alloc(&kv->k, n * heads * d, sizeof(float), "keys of a layer", err));
    return mem_alloc(&kv->v, n * heads * d, sizeof(float), "values of a layer", err);
}

void nn_kv_free(struct nn_kv *kv)
{
    free(kv->k);
    free(kv->v);
    memset(kv, 0, sizeof *kv);
}

void nn_take_head(const float *x, int64_t n, int heads, int d, int head, float *to)
{
    for (int64_t r = 0; r < n; r++)
        memcpy(to + r * d, x + (r * heads + head) * d, (size_t)d * sizeof *to);
}

void nn_kv_put(struct nn_kv *kv, int64_t tok0, int64_t n, const float *k, const float *v)
{
    for (int h = 0; h < kv->heads; h++) {
        nn_take_head(k, n, kv->heads, kv->d, h, kv->k + (h * kv->n + tok0) * kv->d);
        nn_take_head(v, n, kv->heads, kv->d, h, kv->v + (h * kv->n + tok0) * kv->d);
    }
}

/* Row chunks per head: enough items for the threads when there are few heads. */
#define CHUNK 1024

struct attend_job {
    const float *q;
    const struct nn_kv *kv;
    int64_t nq, nk, chunks;
    int heads;
    double scale;
    bool causal;
    float *out;
    double *lse;
};

static int attend_item(void *ctx, int64_t item, int worker, struct err *err)
{
    const struct attend_job *j = ctx;
    const struct nn_kv *kv = j->kv;
    int64_t head = item / j->chunks, r0 = item % j->chunks * CHUNK, d = kv->d;
    int64_t n = j->nq - r0 < CHUNK ? j->nq - r0 : CHUNK;
    int64_t kv_at = head / (j->heads / kv->heads) * kv->n * d;
    OWN(free_at) float *q = NULL;
    OWN(free_at) double *out = NULL, *lse = NULL;
    OWN(attn_release) struct attn_ops ops = {0};
    struct mask m;
    /* A chunk of rows is a head of its own whose last query stands at its absolute position. */
    int64_t nk = j->causal ? r0 + n + j->nk - j->nq : j->nk;
    PASS_ON(mem_alloc(&q, n * d, sizeof *q, "queries of a head", err));
    PASS_ON(mem_alloc(&out, n * d, sizeof *out, "output of a head", err));
    PASS_ON(mem_alloc(&lse, n, sizeof *lse, "log-sum-exp of a head", err));
    nn_take_head(j->q + r0 * j->heads * d, n, j->heads, kv->d, (int)head, q);
    struct attn_in in = {.nq = n,
                         .nk = nk,
                         .d = kv->d,
                         .dv = kv->d,
                         .q = q,
                         .k = kv->k + kv_at,
                         .v = kv->v + kv_at,
                         .scale = j->scale,
                         .causal = j->causal,
                         .reach = kv->reach};
    PASS_ON(attn_prepare(&ops, &in, PREC_F32, err));
    attn_full_mask(&in, 0, n, &m);
    PASS_ON(attn_rows(&ops, &m, out, lse, err));
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < d; c++)
            j->out[((r0 + r) * j->heads + head) * d + c] = (float)out[r * d + c];
    if (j->lse)
        memcpy(j->lse + head * j->nq + r0, lse, (size_t)n * sizeof *lse);
    return 0;
}

int nn_attention(const float *q, const struct nn_kv *kv, int64_t nq, int64_t nk, int heads,
                 double scale, bool causal, int jobs, float *out, double *lse, struct err *err)
{
    struct attend_job j = {q, kv, nq, nk, (nq + CHUNK - 1) / CHUNK, heads, scale, causal, out, lse};
    return pool_run(jobs, heads * j.chunks, attend_item, &j, err);
}

/* ---- pooled attention maps ------------------------------------------------------------------ */

int attnmap_init(struct attnmap *m, int heads, int64_t n_q, int64_t n_k, int64_t pool,
                 struct err *err)
{
    *m =
        (struct attnmap){pool, (n_q + pool - 1) / pool, (n_k + pool - 1) / pool, heads, NULL, NULL};
    int64_t cells = heads * m->cells_q * m->cells_k;
    PASS_ON(mem_zalloc(&m->sum, cells, sizeof(float), "map sums", err));
    return mem_zalloc(&m->max, cells, sizeof(float), "map maxima", err);
}

void attnmap_free(struct attnmap *m)
{
    free(m->sum);
    free(m->max);
    memset(m, 0, sizeof *m);
}

struct map_job {
    struct attnmap *m;
    const float *q;
    const struct nn_kv *kv;
    int64_t row0, n, nk, cell_rows;
    double scale;
    bool causal;
    const double *lse;
};

/* One row of cells of one head. */
static int map_item(void *ctx, int64_t item, int worker, struct err *err)
{
    const struct map_job *j = ctx;
    struct attnmap *m = j->m;
    const struct nn_kv *kv = j->kv;
    int64_t head = item / j->cell_rows, cell = item % j->cell_rows;
    int64_t a = cell * m->pool, b = a + m->pool < j->n ? a + m->pool : j->n, d = kv->d;
    int64_t kv_at = head / (m->heads / kv->heads) * kv->n * d;
    int64_t at = (head * m->cells_q + j->row0 / m->pool + cell) * m->cells_k;
    OWN(free_at) float *q = NULL;
    OWN(attn_release) struct attn_ops ops = {0};
    /* These rows against the keys up to their end are a head of their own. */
    int64_t nk = j->causal ? b + j->nk - j->n : j->nk;
    PASS_ON(mem_alloc(&q, (b - a) * d, sizeof *q, "queries of a cell row", err));
    nn_take_head(j->q + a * m->heads * d, b - a, m->heads, kv->d, (int)head, q);
    struct attn_in in = {.nq = b - a,
                         .nk = nk,
                         .d = kv->d,
                         .dv = kv->d,
                         .q = q,
                         .k = kv->k + kv_at,
                         .scale = j->scale,
                         .causal = j->causal,
                         .reach = kv->reach};
    PASS_ON(attn_prepare(&ops, &in, PREC_F32, err));
    return pool_map(&ops, j->lse + head * j->n + a, m->pool, m->sum + at, m->max + at, err);
}

int attnmap_rows(struct attnmap *m, const float *q, const struct nn_kv *kv, int64_t row0, int64_t n,
                 int64_t nk, double scale, bool causal, const double *lse, int jobs,
                 struct err *err)
{
    struct map_job j = {m, q, kv, row0, n, nk, (n + m->pool - 1) / m->pool, scale, causal, lse};
    return pool_run(jobs, m->heads * j.cell_rows, map_item, &j, err);
}

/* ---- tensors as a device takes them --------------------------------------------------------- */

int raw_tensor_read(const struct st_file *file, const struct st_tensor *t,
                    struct decoder_tensor *out, struct err *err)
{
    bool stored = t->dtype == DT_F32 || t->dtype == DT_BF16 || t->dtype == DT_F16;
    enum dtype type = stored ? t->dtype : DT_F32;
    int64_t rows = t->ndim ? t->shape[0] : 1;
    OWN(free_at) void *data = NULL;
    PASS_ON(mem_alloc(&data, t->count, dtype_size(type), t->name, err));
    if (stored)
        PASS_ON(st_read_raw(file, t, 0, t->count, data, err));
    else
        PASS_ON(st_read_f32(file, t, 0, t->count, data, err));
    *out = (struct decoder_tensor){data, type, rows, rows ? t->count / rows : 0};
    data = NULL;
    return 0;
}

void raw_tensor_free(struct decoder_tensor *t)
{
    free((void *)(uintptr_t)t->data);
    t->data = NULL;
}
