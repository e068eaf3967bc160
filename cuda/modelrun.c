#include "cuda/modelrun.h"

#include "core/intmath.h"
#include "core/mem.h"
#include "cuda/metrics/metrics.h"
#include "cuda/timer.h"

#include <stdio.h>
#include <string.h>

#define MAX_SAMPLES 1000

int model_run_open(int local_rank, struct model_run *r, struct err *err)
{
    PASS_ON(gpu_open(local_rank, &r->gpu, err));
    PASS_ON(blas_open(&r->gpu, &r->blas, err));
    PASS_ON_CU(err, cudaEventCreate(&r->begin));
    return CU_STATUS(err, cudaEventCreate(&r->end));
}

void model_run_close(struct model_run *r)
{
    blas_close(&r->blas);
    if (r->begin)
        cudaEventDestroy(r->begin);
    if (r->end)
        cudaEventDestroy(r->end);
    gpu_close(&r->gpu);
    memset(r, 0, sizeof *r);
}

int pad_head_dim(int head_dim, int64_t *padded, struct err *err)
{
    if (head_dim > 128)
        return err_set(err, ERR_MACHINE,
                       "the GPU's attention kernels have head dims up to 128, the model has %d: "
                       "use --device cpu",
                       head_dim);
    *padded = head_dim <= 64 ? 64 : 128;
    return 0;
}

int plan_attention(struct model_run *r, const struct attn_problem *p, bool bf16,
                   const struct attn_tensors *x, struct attn_job *job, struct err *err)
{
    const struct attn_kernel *kernel;
    OWN(attn_plan_free) struct attn_plan plan = {0};
    PASS_ON(attn_kernel_for(p, r->gpu.sm, bf16 ? ATTN_BF16 : ATTN_F16, &kernel, err));
    PASS_ON(attn_plan_make(p, &kernel->tile, NULL, r->gpu.sms, &plan, err));
    return attn_job_init(&r->gpu, p, kernel, &plan, x, job, err);
}

int check_operands(struct model_run *r, const int *overflow, bool bf16, struct err *err)
{
    int flag = 0, rc = gpu_get(&r->gpu, &flag, overflow, 4, err);
    if (!rc && flag)
        rc = err_set(err, ERR_RUN, "q, k or v is beyond %s or not a number: use --device cpu",
                     bf16 ? "2^39" : "float16's range (65504)");
    return rc;
}

void model_computed_by(char *text, size_t size)
{
    struct gpu gpu = {0};
    struct err unused = {0};
    if (gpu_describe(0, &gpu, &unused) == 0)
        snprintf(text, size, "cublas 13, %s", gpu.name);
    else
        snprintf(text, size, "cublas 13");
}

/* ---- time ----------------------------------------------------------------------------------- */

int span_begin(struct model_run *r, struct err *err)
{
    return CU_STATUS(err, cudaEventRecord(r->begin, r->gpu.stream));
}

int span_end(struct model_run *r, struct err *err)
{
    float ms = 0;
    PASS_ON_CU(err, cudaEventRecord(r->end, r->gpu.stream));
    PASS_ON_CU(err, cudaEventSynchronize(r->end));
    PASS_ON_CU(err, cudaEventElapsedTime(&ms, r->begin, r->end));
    r->seconds += 1e-3 * (double)ms;
    return 0;
}

int time_work(struct model_run *r, int (*work)(void *ctx, struct err *err), void *ctx, int samples,
              double *ns, struct err *err)
{
    double x[MAX_SAMPLES];
    samples = samples < MAX_SAMPLES ? samples : MAX_SAMPLES;
    PASS_ON(work(ctx, err));
    for (int i = 0; i < samples; i++) {
        double before = r->seconds;
        PASS_ON(span_begin(r, err));
        PASS_ON(work(ctx, err));
        PASS_ON(span_end(r, err));
        x[i] = 1e9 * (r->seconds - before);
        r->seconds = before;
    }
    *ns = quartiles_of(x, samples).median;
    return 0;
}

/* ---- weights -------------------------------------------------------------------------------- */

static int64_t count(const struct decoder_tensor *t)
{
    return t->rows * t->cols;
}

int put_raw(struct model_run *r, const struct decoder_tensor *t, struct err *err)
{
    int64_t bytes = count(t) * (int64_t)dtype_size(t->dtype);
    if (bytes > r->raw_bytes)
        return err_set(err, ERR_RUN, "a weight of %lld bytes is larger than the model's shape says",
                       (long long)bytes);
    return gpu_put(&r->gpu, r->raw, t->data, bytes, err);
}

int put_vector(struct model_run *r, const struct decoder_tensor *t, float *to, struct err *err)
{
    PASS_ON(put_raw(r, t, err));
    return ops_widen(&r->gpu, r->raw, t->dtype, count(t), to, err);
}

int matrix_terms(const struct decoder_tensor *t, int first, int n)
{
    int terms = 2;
    for (int i = 0; i < n; i++)
        terms = t[first + 2 * i].dtype == DT_BF16 ? terms : 3;
    return terms;
}

int put_matrix(struct model_run *r, const struct decoder_tensor *t, int first, int n,
               struct matrix *m, struct err *err)
{
    int64_t at = 0;

    m->terms = matrix_terms(t, first, n);
    for (int i = 0; i < n; i++) {
        const struct decoder_tensor *w = t + first + 2 * i;
        if (w->cols != m->cols || at + w->rows > m->rows)
            return err_set(err, ERR_RUN,
                           "a weight does not have the shape that the model's sizes say");
        PASS_ON(put_raw(r, w, err));
        PASS_ON(ops_split_weights(&r->gpu, r->raw, w->dtype, w->rows, w->cols, m->terms,
                                  (char *)m->w + 2 * at * m->cols * m->terms, err));
        at += w->rows;
    }
    return 0;
}

int multiply(struct model_run *r, const struct matrix *m, int64_t n, const void *x, float beta,
             float *y, struct err *err)
{
    return blas_bf16(r->blas, n, m->rows, m->cols * m->terms, x, m->w, beta, y, m->rows, err);
}

int fetch_columns(struct model_run *r, const float *y, int64_t ld, int64_t n, int64_t at,
                  int64_t width, float *to, struct err *err)
{
    return CU_STATUS(err, cudaMemcpy2DAsync(to, (size_t)width * 4, y + at, (size_t)ld * 4,
                                            (size_t)width * 4, (size_t)n, cudaMemcpyDeviceToHost,
                                            r->gpu.stream));
}

int host_locked(int64_t bytes, const char *what, void *out, struct err *err)
{
    int rc = 0;
    CU(err, cudaHostAlloc(out, (size_t)bytes, cudaHostAllocDefault));
out:
    return rc ? err_prefix(err, "%s: %lld bytes of page-locked memory", what, (long long)bytes) : 0;
}

void host_locked_free(void *p)
{
    if (p)
        cudaFreeHost(p);
}

int fetch_locked(struct model_run *r, void *to, const void *from, int64_t bytes, struct err *err)
{
    return CU_STATUS(
        err, cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDeviceToHost, r->gpu.stream));
}

/* ---- pooled maps ---------------------------------------------------------------------------- */

/* Any cell size, any GPU: a thread block per cell. */
static int make_slowly(struct model_run *r, const struct map_source *s, int64_t pool, float *sum,
                       float *max, struct err *err)
{
    int64_t cells = ceil_div(s->tokens, pool), bytes = 4 * s->heads * cells * cells;
    struct ops_maps maps = {.q = s->q,
                            .k = s->k,
                            .lse = s->lse,
                            .heads = s->heads,
                            .kv_heads = s->kv_heads,
                            .padded = s->padded,
                            .tokens = s->tokens,
                            .pool = pool,
                            .scale = s->scale,
                            .causal = s->causal};

    PASS_ON(gpu_alloc(&r->gpu, bytes, &maps.sum, err));
    PASS_ON(gpu_alloc(&r->gpu, bytes, &maps.max, err));
    PASS_ON(span_begin(r, err));
    PASS_ON(ops_pool_map(&r->gpu, &maps, err));
    PASS_ON(span_end(r, err));
    PASS_ON(gpu_get(&r->gpu, sum, maps.sum, bytes, err));
    return gpu_get(&r->gpu, max, maps.max, bytes, err);
}

/* The map of one head, to sum and max on the host. */
static int make_head(struct model_run *r, const struct map_source *s, int head, int64_t pool,
                     float *sum, float *max, struct err *err)
{
    struct attn_problem p = {1,         1,        s->padded, s->tokens,
                             s->tokens, s->scale, s->causal, ATTN_DENSE};
    int64_t bytes = s->tokens * s->padded * 2, kv = head / (s->heads / s->kv_heads);
    struct attn_tensors x = {.q = (const char *)s->q + head * bytes,
                             .k = (const char *)s->k + kv * bytes};
    struct metrics_ask maps = {.cells = true, .sums = true, .element = ATTN_F16};
    OWN(metrics_pass_free) struct metrics_pass pass = {0};
    void *norm = NULL;

    PASS_ON(gpu_alloc(&r->gpu, s->tokens * 8, &norm, err));
    PASS_ON(span_begin(r, err));
    PASS_ON(metrics_norms_into(&r->gpu, s->lse + head * s->tokens, s->tokens, norm, err));
    PASS_ON(span_end(r, err));
    PASS_ON(metrics_pass_init(&r->gpu, &p, &x, norm, &maps, &pass, err));
    PASS_ON(span_begin(r, err));
    PASS_ON(metrics_pass_launch(&r->gpu, &pass, err));
    PASS_ON(span_end(r, err));
    return metrics_pass_cells(&r->gpu, &pass, pool, sum, max, err);
}

int make_maps(struct model_run *r, const struct map_source *s, int64_t pool, float *sum, float *max,
              struct err *err)
{
    struct gpu_mark mark = gpu_mark(&r->gpu);
    int64_t cells = ceil_div(s->tokens, pool);
    bool fast = r->gpu.sm == 90 && pool % METRICS_CELL == 0;
    int rc = fast ? 0 : make_slowly(r, s, pool, sum, max, err);

    for (int h = 0; fast && h < s->heads && !rc; h++) {
        rc = make_head(r, s, h, pool, sum + h * cells * cells, max + h * cells * cells, err);
        gpu_release(&r->gpu, mark);
    }
    gpu_release(&r->gpu, mark);
    return rc;
}
