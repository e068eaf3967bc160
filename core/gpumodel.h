/*
 * gpumodel.h - how long attention takes on a GPU that is not at hand: a launch is arithmetic over
 * six integers of a mask (sim/work.h) and the measured cycles of a stage. doc/cost-model.md has the
 * formulas, their source and their errors.
 *
 * GPUs are files of datasets/gpus, kernels are in datasets/kernels.json.
 */
#ifndef LACUNA_GPUMODEL_H
#define LACUNA_GPUMODEL_H

#include "core/json.h"

/* Work of a launch, of all its heads. A row of tiles has 128 query rows, a stage 128 keys, of
 * kernels for 64 channels and blocks of 128 rows 192. */
struct work_counts {
    int64_t rows;              /* of tiles, with a key */
    int64_t stages;            /* that the whole tile wants */
    int64_t masked;            /* of block lists those at the end of a row with keys that a query of
                                * the tile does not see; of bits tiles that lack an allowed pair */
    int64_t half;              /* that one of the two 64-row blocks of the tile wants */
    int64_t longest, shortest; /* stages of a row, half ones too */
};
#define WORK_COUNTS 6
extern const char *const work_names[WORK_COUNTS]; /* "rows", ... in this order */
void work_counts_join(struct work_counts *a, const struct work_counts *more);

/* Work of bm x bn tiles where every pair is kept. */
void work_of_dense(int64_t nq, int64_t nk, bool causal, int64_t bm, int64_t bn, int64_t heads,
                   struct work_counts *w);

#define MODEL_NAME 40
#define MODEL_ENTRIES 48

/* An entry of kernels.json. Numbers stand in the order of gpumodel.c's names. */
struct kernel_model {
    char name[MODEL_NAME]; /* pattern: "hd128-dense", "hd128-*"; or a method */
    union {
        double number[14];
        struct {
            double d, first_sm, last_sm, bm, bn; /* channels; GPUs; query rows, keys of a stage */
            double masked, item; /* in stages: more for a masked one; start and end of a row */
            double half;         /* a stage that half of the rows want, over half of one */
            double s;            /* cycles of a stage; 0: by its structure, */
            double hide, instructions; /* the share that is hidden, instructions a score */
            double whole; /* rows that a multiprocessor is at, none of them cut; 0: they are cut */
            double int8_scores, fp8_mass; /* Q K in int8, P V in fp8; 0: in bf16 */
        };
        double us[3]; /* of choosing: fixed, per 32K keys, per its square */
    };
};

/* A GPU and the kernels that are described for it. Rates are per cycle and multiprocessor, of
 * memory GB/s; clocks are in GHz. */
struct gpu_model {
    char name[24];
    union {
        double number[16];
        struct {
            double sm, sms, peak, bf16, exp2, fp32, rated, boost, memory; /* all have these */
            double int8, fp8, copy;
            struct gpu_clock { /* a state: f0 GHz where the tensor cores work in 97 % of the cycles,
                                * their power then over that of all else */
                double f0, power;
            } sustained, burst;
        };
    };

    struct kernel_model k[MODEL_ENTRIES];
    struct kernel_model select[MODEL_ENTRIES]; /* at 32 heads of 128 channels, where measured */
    int n_kernels, n_select;
    union {
        double shared[8];
        struct {
            double launch_us, combine_us, cut_stages;  /* of all kernels */
            double plan_lists, plan_bits, plan_gather; /* us */
            double select_copy, select_rate; /* of the measurement: GB/s, operations in a ns */
        };
    };

    /* What is asked (gpu_model_clock). Without a measured state: the rated or boost clock. */
    bool in_burst, by_dense; /* after a pause; as dense attention took its measured time */
    double ghz, tune;        /* above 0: that clock; factor on the clock of a state */

    /* gpu_model_change: a factor on the cost of choosing, how many times as fast exponentials and
     * tensor cores are; no waiting; half stages cost half. */
    double choosing, exp, tensor;
    bool balance, even;
};

/* A GPU of datasets/gpus by name, or a file (a name with '/' or ".json"), at its sustained clock. A
 * number without a source is ERR_INPUT, an unknown name ERR_USAGE with those that there are. */
int gpu_model_load(const char *name, struct gpu_model *g, struct err *err);

/* All GPUs of datasets/gpus, as entries of `lacuna list gpus`. */
int gpu_models_list(struct jw *w, struct err *err);

/* "sustained", "burst", "dense" or a number of GHz. ERR_USAGE. */
int gpu_model_clock(struct gpu_model *g, const char *text, struct err *err);

/* What if: "select=0", "balance=1", "half=1", "sms=160", "copy=3000" (GB/s), "exp=2" and "tensor=2"
 * (times as fast); several are separated by commas. ERR_USAGE. */
int gpu_model_change(struct gpu_model *g, const char *text, struct err *err);

/* The first kernel for the GPU whose pattern fits; NULL: none is described. */
const struct kernel_model *kernel_model_find(const struct gpu_model *g, const char *name);

/* What decides how long a launch takes. */
enum gpu_bound {
    BOUND_TENSOR,
    BOUND_SOFTMAX,
    BOUND_CHAIN,
    BOUND_ROW,
    BOUND_WAVES,
    BOUND_MEMORY,
    BOUNDS
};
extern const char *const gpu_bounds[BOUNDS]; /* "tensor", ... */

struct gpu_launch {
    double mean, cycles, ghz, ns; /* mean of the multiprocessors; of the last one */
    enum gpu_bound bound;
};

/* keys: of a stage of w. bytes: that memory moves. ERR_USAGE: what-if asks for a faster unit of a
 * kernel whose stages wait for chains of instructions. */
int gpu_model_launch(const struct gpu_model *g, const struct kernel_model *k,
                     const struct work_counts *w, double keys, double bytes, struct gpu_launch *out,
                     struct err *err);

#endif
