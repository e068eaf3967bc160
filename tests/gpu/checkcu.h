/*
 * checkcu.h - the parts of checkcu (checkcu.c), each in the file of its name. They add to the
 * counts of checks and failures, and print a line for each thing they checked.
 */
#pragma once

#include "core/accel.h"
#include "core/decoder.h"
#include "core/denoiser.h"
#include "core/safetensors.h"
#include "tests/gpu/checkcu_case.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Which of its checks a run of checkcu makes. */
struct cu_choice {
    const char *only; /* in the name of a kernel, a setting, ... */
    bool small;       /* few and short sequences */
    bool brief;       /* and of these a part */
    int part, parts;  /* every parts-th of those, from number `part` on */
    int at;           /* number of the next one */
};

static inline bool cu_chosen(struct cu_choice *c, const char *name)
{
    return strstr(name, c->only) && c->at++ % c->parts == c->part;
}

/* Counts of all parts, for the exit status. */
extern int64_t cu_checks, cu_failures;

/* Random checkpoints for runs on both sides. */
#define CU_TENSORS 128

struct cu_checkpoint {
    enum dtype dtype; /* F32, BF16 or F16, of all tensors */
    struct st_out t[CU_TENSORS];
    char names[CU_TENSORS][96];
    int n;
};

/* Add a tensor of normal values around `mean`. */
int cu_checkpoint_add(struct cu_checkpoint *c, const char *name, int ndim, const int64_t *shape,
                      double mean, double scale, struct err *err);
void cu_checkpoint_free(struct cu_checkpoint *c);

/* ||x - ref|| / ||ref|| of n values. */
double cu_relative(const float *x, const float *ref, int64_t n);

/* Kernels that are chosen. Nonzero when the GPU can no longer be used. */
int check_filters(struct gpu *g, struct cu_choice *choice);

/* Launch a dense, bidirectional case and compare every row of every head with softmax(scale S) V in
 * double, S = Q K^T by cuBLAS. `same` is not filled in. */
int cu_check_scores(struct gpu *g, const struct cu_case *c, struct cu_errors *e, struct err *err);

/* Random checkpoints of every family and type of weights, in a temporary directory; q, k, v of
 * every layer, pooled maps and likelihoods compared. */
void check_decoder(const struct decoder_accel *device, struct cu_choice *choice);

/* Random checkpoints, in a temporary directory; q, k, v of every layer, pooled maps and velocity
 * compared, and a second evaluation has to give the same bits. Adds to the counts and prints a line
 * each. */
void check_denoiser(const struct denoiser_accel *device, struct cu_choice *choice);

/* Outputs, log-sum-exps and metrics of dense attention, block lists and filters against the CPU;
 * the choice is by the name "values". */
void check_values(const struct accel *a, const struct cu_choice *choice);

/* Outputs and log-sum-exps of every row; the choice is by the method's name. Adds to the counters
 * and prints a line per setting. */
void check_own(const struct accel *a, struct gpu *g, struct cu_choice *choice);

/* Random maps of many units and patterns against the host's tiles. True: the GPU is lost. */
bool check_maps(struct gpu *g, const struct cu_choice *choice);

/* Settings that are chosen; adds to the counters. Nonzero when the GPU is lost. */
int check_selections(struct gpu *g, struct cu_choice *choice);

/* Run every method on heads of each trace (bf16, so that both sides see the same values) with the
 * back end and without, and compare masks, outputs, LSE and metrics; a line per setting. Adds to
 * the counts. */
void check_traces(int n, char *const *paths);

/* Two captures of one run, by CPU and by GPU, both stored in bf16: q, k, v of every head within
 * 2e-3 relative L2 (rounding alone is 1.7e-3). */
void check_same(const char *a, const char *b);

/* Every method on calls of 1, 3, 8 and 32 heads of each trace. Counts checks and failures. */
void check_calls(int n, char *const *paths);
