/*
 * checkcu_case.h - one attention problem for the GPU checks and benchmarks: data, lists, launch,
 * and comparison with the CPU reference (attn_rows in double) on sampled blocks of rows.
 */
#pragma once

#include "core/mask.h"
#include "cuda/attn/attn.h"
#include "sim/accelattend.h"

enum cu_data {
    DATA_NORMAL,
    DATA_EQUAL,
    DATA_HUGE,
    DATA_TINY,
    DATA_ONE_HOT,
    DATA_OFFSET,
    DATA_SMOOTH, /* neighbouring tokens resemble each other */
    DATA_SIGNS,  /* of one size, most alike but for a token's sign: long in few bits */
    DATA_COUNT,
    DATA_RISING = DATA_COUNT /* of the attention kernels alone: probabilities of early keys, which
                              * are walked last, grow by up to 2^91 */
};
extern const char *const cu_data_names[];

/* Which blocks a list keeps, of those with an allowed pair. */
enum cu_pattern { KEEP_RANDOM, KEEP_ALL, KEEP_FIRST, KEEP_DIAGONAL, KEEP_SOME_ROWS, KEEP_SKEWED };

/* Masks of lists with bits. */
enum cu_bits {
    BITS_SLICES,  /* 128 x 1, random */
    BITS_BAND,    /* 16 sinks and a window, the last rows dense */
    BITS_PAIRS,   /* 1 x 1: a quarter or an eighth at random; some rows keep nothing, some only
                   * their first keys, so that what they meet first is empty */
    BITS_FINE,    /* 64 x 32 blocks, random */
    BITS_STRIPES, /* a few columns and diagonals, rows one by one */
    BITS_MIXED,   /* 128 x 128, random; of every third only every fifth row, so that the others meet
                   * whole blocks before they have met a key */
    BITS_COUNT
};

static inline bool cu_has_bits(enum attn_lists lists)
{
    return lists == ATTN_BITS || lists == ATTN_GATHER;
}

struct cu_case {
    struct attn_problem problem;
    enum cu_data data;
    enum cu_pattern pattern;
    double density;     /* of KEEP_RANDOM, KEEP_SOME_ROWS, KEEP_SKEWED, random bits */
    enum cu_bits bits;  /* with cu_has_bits */
    int64_t window;     /* of BITS_BAND */
    const char *kernel; /* NULL = the default one */
    bool split;         /* false: every row of the plan stays whole */
    bool once;          /* one launch: whether a second one gives the same bits is not asked */
    uint64_t seed;
    bool on_device;               /* normal data made on the GPU: no comparison possible */
    const struct attn_csr *given; /* lists in place of a pattern's, or NULL; must outlive the run */
};

/* A case on the device. */
struct cu_run {
    struct cu_case c;
    const struct attn_kernel *kernel;
    float *q, *k, *v; /* host, values representable in bf16, owned */
    int64_t *ptr;     /* lists, owned; NULL when dense */
    int32_t *col;
    struct accel_tiles tiles; /* of all heads, owned; with cu_has_bits */
    struct attn_plan plan;
    double plan_ns; /* wall time of planning, on the host */
    struct attn_job job;
    struct gpu_mark mark;
};

int cu_run_init(struct gpu *g, const struct cu_case *c, struct cu_run *r, struct err *err);
void cu_run_free(struct gpu *g, struct cu_run *r);

/* The mask of a case with bits: rows [row0, row1) of a head; row0 a multiple of 128. */
int cu_bits_mask(const struct cu_case *c, int head, int64_t row0, int64_t row1, struct mask *m,
                 struct err *err);

/* Lists of all heads of such a case. */
int cu_bits_lists(const struct cu_case *c, struct accel_tiles *all, struct err *err);

/* q, k or v (which = 0, 1, 2) of the case: values representable in bf16, [heads][n][d]; the caller
 * owns *out. */
int cu_make_tensor(const struct cu_case *c, int which, int heads, int64_t n, float **out,
                   struct err *err);

/* Floating-point operations of the pairs that the problem allows (dense), and of the computed
 * blocks. */
double cu_flop_dense(const struct attn_problem *p);
double cu_flop_blocks(const struct cu_run *r);

struct cu_errors {
    double l2_rel;  /* of the outputs of the sampled rows together */
    double lse_max; /* largest absolute difference; inf where only one is -inf */
    double lse_ref; /* largest |LSE| among them */
    bool same;      /* a second launch gave the same bits */
};

/* Metrics of the case (one head, with lists) against the CPU, every pair of it; `what` is the first
 * thing that disagrees, or empty, and *worst grows to the error of the kept mass. brief: one form
 * of a pass, by the seed, launched once. */
int cu_metrics_check(struct gpu *g, const struct cu_run *r, bool brief, double *worst,
                     char what[200], struct err *err);

/* Launch twice on poisoned outputs, or once (struct cu_case), and compare. */
int cu_run_check(struct gpu *g, struct cu_run *r, struct cu_errors *e, struct err *err);

/* A head without values, for a method. */
struct head_in;
struct head_in cu_head(int64_t nq, int64_t nk, int d, double scale, bool causal);

/* The filter of a kernel, in its arithmetic, at a distance of pv; no tail. */
struct accel_filter cu_filter(const struct filter_kernel *k, double pv);

/* Put n floats, converted to `type`, into new arena memory; complete on return. */
int cu_put(struct gpu *g, enum dtype type, const float *x, int64_t n, const void **out,
           struct err *err);
