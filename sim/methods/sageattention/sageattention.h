/*
 * sageattention.h - operands of SageAttention (sim/methods/sageattention/sageattention.c), for its
 * tests.
 */
#pragma once

#include "core/method.h"
#include "sim/blocks/tileattn.h"

enum sage_version { SAGE_1, SAGE_2, SAGE_2PP };
enum sage_arch { SAGE_SM80, SAGE_SM89, SAGE_SM90 };

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

/* Parameters with the defaults of version and profile filled in, for head dimension d and the
 * dtype of the trace. */
struct sage_rules {
    struct own_quantised own;
    bool smooth_q;
};

void sage_resolve(const struct sage_params *p, int d, enum dtype src, struct sage_rules *r);

struct sage {
    struct sage_rules rules;
    struct head_in in;
    float *kbar, *k, *qbar; /* [d], [nk][d] smoothed, [ceil(nq/bq)][d] or NULL; owned */
    struct tile_operands operands;
    struct tile_attn tile;
};

/* Parameters and sizes alone, into a zeroed state; sage_make reads q, k, v, once. */
void sage_begin(const struct sage_params *p, const struct head_in *in, struct sage *s);
int sage_make(struct sage *s, struct err *err);
void sage_free(struct sage *s);
