/*
 * sageattention.h - operands of SageAttention (sim/methods/sageattention/sageattention.c), for its
 * tests.
 */
#pragma once

#include "core/method.h"
#include "sim/blocks/quant.h"
#include "sim/blocks/tileattn.h"

enum sage_version { SAGE_1, SAGE_2, SAGE_2PP };
enum sage_arch { SAGE_SM80, SAGE_SM89, SAGE_SM90 };
enum sage_pv { SAGE_F16, SAGE_F8 };

/* A parameter that is not set: -1 for enums, else NAN. */
struct sage_params {
    int version, profile, arch, qk, gran;
    bool smooth_k;
    int smooth_q;
    bool smooth_v;
    int pv;
    double p_max, v_max;
    int accum;
};

/* Parameters with the defaults of version and profile filled in, for head dimension d. */
struct sage_rules {
    int64_t bq, bk, warp;
    int levels;
    enum quant_gran gran;
    enum quant_round round;
    bool fold_scale; /* Q holds scale * log2 e before it is quantised */
    bool round_k;    /* k - kbar is rounded to the input dtype */
    bool smooth_k, smooth_q, smooth_v;
    enum sage_pv pv;
    float p_offset, p_factor; /* P = 2^(s - m + offset) * factor */
    float v_max;
    enum tile_acc acc;
};

void sage_resolve(const struct sage_params *p, int d, struct sage_rules *r);

struct sage {
    struct sage_rules rules;
    struct head_in in;
    float *kbar, *k, *qbar; /* [d], [nk][d] smoothed, [ceil(nq/bq)][d] or NULL; owned */
    struct quant qi, ki;
    float *v, *v_scale, *v_mean; /* [nk][dv], [dv], [dv]; owned */
    struct tile_attn tile;
};

int sage_new(const struct sage_params *p, const struct head_in *in, struct sage **out,
             struct err *err);
void sage_free(struct sage *s); /* accepts NULL */
