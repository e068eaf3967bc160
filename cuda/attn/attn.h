/*
 * attn.h - attention on the GPU: dense and from block lists. The reference is attn_rows
 * (core/attention.h).
 */
#pragma once

#include "cuda/linkage.h"

BEGIN_C

#include "core/accel.h"
#include "cuda/attn/plan.h"
#include "cuda/device.h"

/* Element type of q, k, v and out; ATTN_INT8, ATTN_INT8_F16: of q and k, with v in e4m3 or float16
 * and out in bf16. */
enum attn_element { ATTN_BF16, ATTN_F16, ATTN_INT8, ATTN_INT8_F16 };

struct attn_kernel {
    const char *name, *summary;
    int d;
    enum attn_lists lists;
    struct attn_tile tile;
    enum attn_element element;
    int sm;    /* compute capability: 90 is Hopper alone, 80 everything from there on */
    int teams; /* items that a multiprocessor has at a time */
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

/* Device side of a launch. q, k, v, out are as in struct attn_problem, of the kernel's element, lse
 * float [heads][nq] in natural log; an empty row gets out 0 and lse -inf. */
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

/* ---- operands of 8 bits --------------------------------------------------------------------- */

/* Attention of INT8 q, k and e4m3 v (SageAttention 2, arXiv 2411.10958; the reference is
 * tile_attn_rows of sim/blocks/tileattn.h with the tiles of the kernel; dense: 128 keys):
 *
 *   x = q . k q_scale k_scale        P = e4m3(2^(x - m + top))     m: largest x so far
 *   out = sum P v / l v_scale + v_mean                             l: sums of what P was rounded
 * from lse = ln 2 (m - top + log2 l) + bias
 *
 * Tensors: q int8 [heads][nq][d], k int8 [kv_heads][nk][d], v e4m3 [kv_heads][d][padded] with
 * zeros from nk on; of each 16 keys, place attn8_place(r) has key r.
 *
 * ATTN_INT8_F16 (SageAttention 1, arXiv 2410.02367): P and v [kv_heads][nk][d] in float16, sums in
 * fp32; k_scale of 64 keys, in lists of 64 x 32 of 32. */
struct attn8_scales {
    const float *q; /* [heads][nq], equal for rows r and r + 8 of every 16 */
    const float *k; /* [kv_heads][padded]: of a token; in every tile, tokens with equal t % 8 / 2
                     * share the scale of the first of them */
    const float *v; /* [kv_heads][d] */
    const float *v_mean; /* the same; NULL: 0 */
    const float *bias;   /* [heads][nq]; NULL: 0 */
    int64_t padded;      /* nk rounded up to 128 */
    float top;
};

PLAN_FN int attn8_place(int r)
{
    return 2 * (r / 8) + 4 * (r % 8 / 2) + r % 2;
}

/* Can kernels of this element with tiles of so many keys do what the rule says? */
bool attn8_takes(const struct own_quantised *r, enum attn_element element, int keys);

/* Like attn_job_init; rows of dense attention may be cut. Launch and free the job like any other.
 */
int attn8_job_init(struct gpu *g, const struct attn_problem *p, const struct attn_kernel *kernel,
                   const struct attn_plan *plan, const struct attn_tensors *x,
                   const struct attn8_scales *scales, struct attn_job *job, struct err *err);

/* ---- a filter on P V ------------------------------------------------------------------------ */

/* Attention over block lists that skips P V of a tile if no row of it comes near its running
 * maximum: filter 2 of SpargeAttn (arXiv 2502.18137, section 3.4), in exact arithmetic or with
 * operands of 8 bits. The reference is tile_attn_rows (sim/blocks/tileattn.h). */

/* A kernel for lists of 64 x 128 or 128 x 64 blocks in which `scope` rows decide together; or,
 * without a filter, for lists of these or of 64 x 32 blocks. */
struct filter_kernel {
    struct attn_kernel kernel;
    int scope;
    bool skips; /* false: for an infinite distance alone */
};
extern const struct filter_kernel filter_kernels[]; /* NULL-terminated by name */

/* The kernel for this filter; NULL with the reason if compute capability `sm` has none. */
const struct filter_kernel *filter_kernel_find(int d, int sm, const struct accel_filter *f,
                                               char why[160]);

/* attn_plan_filtered, or for a kernel that skips nothing attn_plan_make: its rows may be cut. */
int filter_plan_make(const struct attn_problem *p, const struct filter_kernel *kernel,
                     const struct attn_csr *csr, int tail, int sms, struct attn_plan *plan,
                     struct err *err);

/* Like attn_job_init, with a plan of filter_plan_make. Launch and free the job like any other. Head
 * h has the filter f[h % n]; they differ in `pv` alone. scales: of operands of 8 bits, or NULL. */
int filter_job_init(struct gpu *g, const struct attn_problem *p, const struct filter_kernel *kernel,
                    const struct attn_plan *plan, const struct accel_filter *f, int n,
                    const struct attn_tensors *x, const struct attn8_scales *scales,
                    struct attn_job *job, struct err *err);

/* After a launch of a kernel that skips: per head the number of tiles whose P V was computed; a
 * tile counts with the share of its scopes that computed it. tiles [heads]. */
int filter_tiles(struct gpu *g, const struct attn_job *job, const struct filter_kernel *kernel,
                 double *tiles, struct err *err);

END_C
