/*
 * modelrun.h - what the runners of models on the GPU share (decoder.c, denoiser.c): the device with
 * cuBLAS, weights from the host as bf16 terms, device time, pooled maps.
 */
#pragma once

#include "core/decoder.h"
#include "cuda/attn/attn.h"
#include "cuda/ops.h"

struct model_run {
    struct gpu gpu;
    struct blas *blas;
    void *raw; /* a tensor as stored, on the device; the runner allocates it */
    int64_t raw_bytes;
    cudaEvent_t begin, end;
    double seconds; /* of all spans so far */
};

/* A linear map as bf16 [rows][terms * cols] (ops.h). */
struct matrix {
    void *w;
    int64_t rows, cols;
    int terms;
};

/* Take GPU `local_rank` and cuBLAS. model_run_close accepts a zeroed or half opened one. */
int model_run_open(int local_rank, struct model_run *r, struct err *err);
void model_run_close(struct model_run *r);

/* Channels of a head as the attention kernels take them, 64 or 128; ERR_MACHINE above 128. */
int pad_head_dim(int head_dim, int64_t *padded, struct err *err);

/* The plan of dense attention, in bf16 or float16. */
int plan_attention(struct model_run *r, const struct attn_problem *p, bool bf16,
                   const struct attn_tensors *x, struct attn_job *job, struct err *err);

/* ERR_RUN if *overflow says that an operand of attention was out of range; waits for the device. */
int check_operands(struct model_run *r, const int *overflow, bool bf16, struct err *err);

/* Device time of what is launched in between, added to r->seconds; the second call waits for the
 * device. */
int span_begin(struct model_run *r, struct err *err);
int span_end(struct model_run *r, struct err *err);

/* Median device time in ns of `samples` runs of `work`, after one that is not counted; `work`
 * begins no span. r->seconds stays. */
int time_work(struct model_run *r, int (*work)(void *ctx, struct err *err), void *ctx, int samples,
              double *ns, struct err *err);

/* t as it is -> r->raw. */
int put_raw(struct model_run *r, const struct decoder_tensor *t, struct err *err);

/* A tensor as floats. The copy is not complete on return, but t->data is free to go. */
int put_vector(struct model_run *r, const struct decoder_tensor *t, float *to, struct err *err);

/* The tensors t[first], t[first + 2].. (biases lie between them) as one matrix: its number of
 * terms, and its rows, for which m->w has to have room. */
int matrix_terms(const struct decoder_tensor *t, int first, int n);
int put_matrix(struct model_run *r, const struct decoder_tensor *t, int first, int n,
               struct matrix *m, struct err *err);

/* y [n][rows of m] = x m^T + beta y; x bf16 [n][terms * cols]. */
int multiply(struct model_run *r, const struct matrix *m, int64_t n, const void *x, float beta,
             float *y, struct err *err);

/* Columns [at, at + width) of y [n][ld] to the host; nobody has waited for the device. */
int fetch_columns(struct model_run *r, const float *y, int64_t ld, int64_t n, int64_t at,
                  int64_t width, float *to, struct err *err);

/* Page-locked memory of the host, to which the device copies at full speed; freed by
 * host_locked_free, which accepts NULL. ERR_NOMEM names `what`. */
int host_locked(int64_t bytes, const char *what, void *out, struct err *err);
void host_locked_free(void *p);

/* bytes from the device to such memory; nobody has waited for the device. */
int fetch_locked(struct model_run *r, void *to, const void *from, int64_t bytes, struct err *err);

/* Library and GPU, as computed_by of core/decoder.h. */
void model_computed_by(char *text, size_t size);

/* Attention of which a runner makes maps: float16 q [heads][tokens][padded], k
 * [kv_heads][tokens][padded], lse [heads][tokens] on the device. */
struct map_source {
    const void *q, *k;
    const float *lse;
    int heads, kv_heads, padded;
    int64_t tokens;
    double scale;
    bool causal;
};

/* Its pooled maps in cells of pool x pool, [heads][cells][cells] on the host (core/attention.h). */
int make_maps(struct model_run *r, const struct map_source *s, int64_t pool, float *sum, float *max,
              struct err *err);
