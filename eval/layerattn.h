/*
 * layerattn.h - a method as the attention of a model's layers: every query head of a layer goes
 * through sim's flow (prepare, select, attend), and its output takes the place of exact attention.
 *
 * What the method needs of the exact map comes from the q, k, v that it is given, which are the
 * run's own.
 */
#pragma once

#include "capture/nn.h"
#include "core/decoder.h"
#include "core/maskfile.h"
#include "core/method_run.h"
#include "sim/budgetsearch.h"
#include "sim/devicemap.h"

#include <stdbool.h>
#include <stdint.h>

/* Heads of a model, and the tokens' geometry. */
struct attn_shape {
    int layers, heads, kv_heads, head_dim;
    bool causal;
    struct geometry geom; /* all zero for text */
};

/* How methods stand in the model: the same for all settings of a command. */
struct eval_how {
    bool *dense_head;      /* [layers * heads], owned: these attend exactly */
    int64_t dense_below;   /* shorter sequences attend exactly */
    int64_t dense_last;    /* last rows that attend exactly; DENSE_LAST_QUESTION: those behind the
                            * haystack */
    int64_t prefill_chunk; /* rows that a call of a prefill has at most, with the keys up to its
                            * last; 0: all in one call */
    bool decode_method;    /* rows after the prefill go through the method too */
    bool skip_is_dense;    /* a head where the method does not apply attends exactly */
    bool local_errors;     /* measure err_local, which costs dense attention */
    enum dtype round;      /* of q, k, v; DT_F32: as computed */
    enum precision precision;
    uint64_t seed;
    const struct sim_device *device; /* NULL: the CPU */
    bool all_on_device;              /* linear layers and exact attention of prefills, too */
    struct maskfile *masks;          /* NULL: not dumped */
};

#define DENSE_LAST_QUESTION (-1)

/* One setting. Numbers add up over prefills until layer_attn_reset. */
struct layer_attn {
    const struct method_run *run; /* borrowed, as the others */
    const struct eval_how *how;
    struct attn_shape shape;
    const char *model; /* its name, for calibrations and dumps */
    int jobs;

    /* The call at hand, set by the caller. */
    bool decoding;
    int64_t dense_rows; /* last rows that attend exactly */
    int step, n_steps;  /* video: denoising step, steps of the run */
    int branch;         /* video: guidance branch */
    double timestep;    /* NAN for text */
    double exact_ns;    /* device time of a head in a layer that attends exactly as a whole; NAN:
                         * not measured */
    /* q, k, v of the call on the device, [heads][there_tokens][padded], and q is by head; NULL:
     * only here. */
    const struct decoder_operands *there;
    int64_t there_tokens;
    bool stayed; /* after the call: the outputs are in there->out */

    /* Video: what methods carry from step to step, [branches][layers * heads] and, shared by the
     * branches, [layers * heads]; NULL: every call is on its own. Owned. */
    struct carry *carry, *shared;
    int branches;

    double *calls; /* [layers * heads]: prefills, or calls of the sampler; owned. A call over a
                    * part of a prefill's rows counts as their share of its pairs */
    double *elem, *exec;  /* [layers * heads]: sums of density_elem, density_exec; owned */
    double *sparse;       /* the sum of density_elem over calls that were not exact; owned */
    double *sparse_calls; /* [layers * heads]: their number; owned */
    /* [layers * heads]: sums of device times of attention with everything that it needs, and of
     * exact attention; NAN where a part was not measured. Owned. */
    double *attn_ns, *dense_ns, *plan_ns;
    struct target_sum {
        int64_t n, evals, ends[BUDGET_ENDS]; /* searches, settings evaluated, how they ended */
        double miss;                         /* sum of what was reached less the target */
    } target;                                /* of a run with one */
    int64_t heads_without_calib;
    double *local_err, *local_ref; /* [layers]: sums of squares; owned */
    bool was_skip_dense;           /* a head attends exactly because the method did not apply */
    char skip[512];                /* why and where the method does not apply */
};

int layer_attn_init(struct layer_attn *a, const struct method_run *run, const struct eval_how *how,
                    const struct attn_shape *shape, const char *model, int jobs, struct err *err);
void layer_attn_free(struct layer_attn *a);
void layer_attn_reset(struct layer_attn *a);

/* Let methods carry state from step to step, for `branches` guidance branches. */
int layer_attn_keep_state(struct layer_attn *a, int branches, struct err *err);

/* Do all heads of the layer attend exactly in a sequence of n tokens? Then the caller may do it,
 * and count it with layer_attn_count_dense. */
bool layer_attn_is_dense(const struct layer_attn *a, int layer, int64_t n);
void layer_attn_count_dense(struct layer_attn *a, int layer);

/* A method in the place of exact attention. */
struct layer_attention layer_attn_own(struct layer_attn *a);

/* layer_attention.attend with a struct layer_attn as ctx. METHOD_SKIP with `skip` set where the
 * method does not apply. With `there`, layers that attend exactly as a whole are the caller's. */
int layer_attn_attend(void *ctx, int layer, const float *q, int64_t nq, const struct nn_kv *kv,
                      int64_t nk, float *out, struct err *err);
