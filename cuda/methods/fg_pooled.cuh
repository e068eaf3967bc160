/*
 * fg_pooled.cuh - what the kernels of FG-Attn's choice share, and those of mode=pooled on Hopper
 * (fg_pooled_sm90.cu).
 */
#pragma once

#include "cuda/select/method.cuh"

#include <cuda.h>

struct fg_args : head_args { /* map: of single keys, before they are put together to units */
    int M, by;
    int64_t text0, text1, want;
    float scale, at;
    uint4 *mean;  /* [3][heads][groups][d / 8] bf16: the terms of the mean queries */
    float *t;     /* [heads][groups][nk], or [units] where units are ranked; NULL: not needed */
    int64_t keys; /* values of a row of t */
    int width;    /* keys of a value of t */
};

/* Keys of group g that some row may see: [0, limit); those from `forced` on are kept anyway. */
static __device__ __host__ __forceinline__ void group_bounds(const fg_args &a, int g, int *limit,
                                                             int *forced)
{
    int64_t r0 = (int64_t)g * a.M, r1 = min(r0 + a.M, a.nq), shift = a.nk - a.nq;
    bool text = a.text0 < a.text1 && r0 + shift < a.text1 && r1 + shift > a.text0;
    *limit = (int)(a.causal ? max(min(a.nk, r1 + shift), (int64_t)0) : a.nk);
    *forced = (int)(text ? 0 : a.causal ? max(r0 + shift, (int64_t)0) : a.nk);
}

/* What fg_pooled_sm90.cu needs beside fg_args; of a pass over the scores of mean queries. */
struct fg_pooled;

/* a.mean is there. *out is the caller's, to be released with fg_pooled_free. */
int fg_pooled_init(struct gpu *g, const fg_args &a, struct fg_pooled **out, struct err *err);
void fg_pooled_free(struct fg_pooled *p);

/* Fill a.map by the rules norm and literal, from a.mean. */
int fg_pooled_launch(struct gpu *g, const fg_args &a, const struct fg_pooled *p, struct err *err);
