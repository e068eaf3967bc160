/*
 * attn.h - attention on the GPU: dense and from block lists. The reference is attn_rows
 * (core/attention.h).
 */
#ifndef LACUNA_ATTN_H
#define LACUNA_ATTN_H

#include "cuda/linkage.h"

BEGIN_C

#include "cuda/device.h"
#include "cuda/attn/plan.h"

/* Element type of q, k, v and out. */
enum attn_element { ATTN_BF16, ATTN_F16 };

struct attn_kernel {
    const char *name, *summary;
    int d;
    enum attn_lists lists;
    struct attn_tile tile;
    enum attn_element element;
    int sm; /* compute capability: 90 is Hopper alone, 80 everything from there on */
    int threads, smem_bytes;
    void (*launch)(int grid, cudaStream_t stream, const void *maps, const void *args);
};

/* All kernels; the last entry's name is NULL. The default is the first that fits. */
extern const struct attn_kernel attn_kernels[];

/* Kernel for a problem on a device of compute capability `sm`, by name (then of any element) or the
 * default one for bf16 (NULL). None: ERR_RUN with the reason; too old a GPU: ERR_MACHINE. */
int attn_kernel_find(const struct attn_problem *p, int sm, const char *name,
                     const struct attn_kernel **out, struct err *err);

/* The default kernel for operands of `element`. */
int attn_kernel_for(const struct attn_problem *p, int sm, enum attn_element element,
                    const struct attn_kernel **out, struct err *err);

/* Device side of a launch. q, k, v, out are [heads][n][d] of the kernel's element, lse float
 * [heads][nq] in natural log; an empty row gets out 0 and lse -inf. */
struct attn_tensors {
    const void *q, *k, *v;
    void *out;
    float *lse;
};

/* A plan on the device, ready to be launched any number of times (not concurrently with itself).
 * Memory comes from the arena and lives until its release. */
struct attn_job {
    const struct attn_kernel *kernel;
    struct attn_problem problem;
    struct attn_tensors x;
    int grid, n_splits, n_empty;
    void *args, *maps;          /* host, owned */
    const void *splits, *empty; /* device */
};

int attn_job_init(struct gpu *g, const struct attn_problem *p, const struct attn_kernel *kernel,
                  const struct attn_plan *plan, const struct attn_tensors *x, struct attn_job *job,
                  struct err *err);
int attn_job_launch(struct gpu *g, const struct attn_job *job, struct err *err);
void attn_job_free(struct attn_job *job);

END_C

#endif
