/*
 * gpumodel.h - how long attention takes on a GPU that is not at hand: a launch is arithmetic over
 * six integers of a mask (sim/work.h), a GPU (datasets/gpus) and the measured cycles of a stage
 * (datasets/kernels.json). doc/cost-model.md has the formulas, their source and their errors.
 */
#pragma once

#include "core/json.h"

/* Work of a launch, of all its heads: work_* of core/metrics.def, in whole numbers. */
struct work_counts {
    double rows, stages, masked, half, longest, shortest;
};
#define WORK_COUNTS 6
extern const char *const work_names[WORK_COUNTS]; /* "rows", ... in this order */
void work_counts_join(struct work_counts *a, const struct work_counts *more);

/* Work of bm x bn tiles where every pair is kept. */
struct work_counts work_of_dense(int64_t nq, int64_t nk, bool causal, int64_t bm, int64_t bn,
                                 int64_t heads);

/* ---- files ---------------------------------------------------------------------------------- */

/* Numbers of the files: their keys are names of members, those behind NEEDS may be absent and then
 * are 0. The array has them in the same order. */
#define NUMBERS(array, n, ...)                                                                     \
    union {                                                                                        \
        double array[n];                                                                           \
        struct {                                                                                   \
            double __VA_ARGS__;                                                                    \
        };                                                                                         \
    }

/* Of a GPU: rates per cycle and multiprocessor, GB/s, GHz. A state of the clock: GHz where the
 * tensor cores work in 97 % of the cycles, and their power then over that of all else. */
#define GPU_NEEDS                                                                                  \
    architecture, multiprocessors, peak_bf16, tensor_bf16, exp2, fp32, clock_rated, clock_boost,   \
        memory
#define GPU_MAY                                                                                    \
    tensor_int8, tensor_fp8, copy, sustained_clock, sustained_power, burst_clock, burst_power

/* Of a kernel: channels; first and last architecture; queries, keys of a stage. In stages: a masked
 * one more, start and end of a row; a stage that half of the rows want over half of one. Cycles of
 * a stage, or its structure: the share that is hidden, instructions a score. Rows that a
 * multiprocessor is at, none of them cut, or 0: rows are cut; Q K is in int8, P V in fp8. */
#define KERNEL_NEEDS d, sm, sm_last, bm, bn, masked, item
#define KERNEL_MAY half, s, hide, instructions, whole, qk_int8, pv_fp8

/* Of all: us of a launch, and of one that combines pieces; cycles until the first product and from
 * the last; stages that cut rows take beyond the mean at most; us of planning by lists; GB/s and
 * operations per ns where choosing was measured. */
#define LAUNCH_NEEDS                                                                               \
    launch_us, combine_us, start_cycles, cut_stages, plan_lists, plan_bits, plan_gather,           \
        select_copy, select_rate

/* us of choosing with 32 heads of 128 channels: fixed, per 32K keys, per its square. */
#define SELECT_NEEDS fixed, linear, square

#define MODEL_NAME 40
#define MODEL_ENTRIES 128

struct kernel_model {
    char name[MODEL_NAME]; /* a pattern ("hd128-*"), or a method, whose architectures are 0 */
    NUMBERS(number, 14, KERNEL_NEEDS, KERNEL_MAY);
    NUMBERS(choice, 3, SELECT_NEEDS);
};

struct gpu_model {
    char name[MODEL_NAME];
    NUMBERS(number, 16, GPU_NEEDS, GPU_MAY);
    NUMBERS(shared, 9, LAUNCH_NEEDS);
    struct kernel_model k[MODEL_ENTRIES];
    int n;

    double ghz, power, tune; /* of a state; a factor on its GHz */
    bool by_dense;           /* tune is by the measured time of dense attention */
    const char *instead;     /* "rated" or "boost": nobody measured the state; or NULL */

    /* gpu_model_change: a factor on the cost of choosing, how many times as fast exponentials and
     * tensor cores are; no waiting. */
    double choosing, exp, tensor;
    bool balance;
};

/* A GPU of datasets/gpus by name, or a file (a name with '/' or ".json"), at its sustained clock. A
 * number without a source is ERR_INPUT, an unknown name ERR_USAGE. */
int gpu_model_load(const char *name, struct gpu_model *g, struct err *err);

/* "sustained", "burst", "dense" or a number of GHz; without a measured state the rated or the boost
 * clock. ERR_USAGE. */
int gpu_model_clock(struct gpu_model *g, const char *text, struct err *err);

/* What if: "select=0,sms=160,exp=2" (doc/cost-model.md). ERR_USAGE. */
int gpu_model_change(struct gpu_model *g, const char *text, struct err *err);

/* ---- prediction ----------------------------------------------------------------------------- */

/* The first kernel for the GPU whose pattern fits a name without what it begins with if it computes
 * in bf16; NULL: none is described. */
const struct kernel_model *kernel_model_find(const struct gpu_model *g, const char *name);

/* What decides how long a launch takes. */
enum gpu_bound { BOUND_TENSOR, BOUND_SOFTMAX, BOUND_CHAIN, BOUND_ROW, BOUND_WAVES, BOUND_MEMORY };

struct gpu_launch {
    double mean, cycles, ghz, ns; /* mean of the multiprocessors; of the last one */
    enum gpu_bound bound;
};

/* keys: of a stage of w. bytes: that memory moves. ERR_USAGE: what-if asks for a faster unit of a
 * kernel whose stages wait for chains of instructions. */
int gpu_model_launch(const struct gpu_model *g, const struct kernel_model *k,
                     const struct work_counts *w, double keys, double bytes, struct gpu_launch *out,
                     struct err *err);
