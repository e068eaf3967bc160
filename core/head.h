/*
 * head.h - one query head of one attention call, as methods and metrics see it.
 */
#ifndef LACUNA_HEAD_H
#define LACUNA_HEAD_H

#include "core/attention.h"
#include "core/dtype.h"
#include "core/rowsample.h"

#include <stdbool.h>
#include <stdint.h>

struct exact; /* sim/blocks/exact.h */

/* Video geometry of a token sequence; all zero for text. */
struct geometry {
    int64_t t, h, w; /* latent grid in tokens; n_video = t*h*w */
    int64_t text;    /* text tokens in the sequence */
    int text_place;  /* 0 none, 1 front, 2 back */
};

/* All views are contiguous [token][dim] floats, widened from the trace's own type; the caller owns
 * them. */
struct head_in {
    struct attn_in x;     /* q, k, v, scale, causal */
    enum dtype src_dtype; /* type of q, k, v in the trace */
    struct geometry geom;
    int layer, head, kv_head, n_heads, n_kv_heads, n_layers;
    int step;                      /* denoising step index from 0; 0 for text */
    int n_steps;                   /* steps of the run, 0 if unknown */
    double timestep;               /* the sampler's timestep value, NAN for text */
    const char *branch;            /* "main", "cond", "uncond" */
    struct exact *exact;           /* the head's exact map, computed when asked for; never NULL */
    const struct row_sample *rows; /* sampled rows of x.q (x.nq = x.nk, position i is row i); the
                                    * other rows are 0 and are never asked for. NULL: all rows */
    int64_t n_padding;             /* padding tokens of the trace, which x leaves out */
    const char *order;             /* token order of the video (permute.h); NULL: raster */
    const char *moved; /* the order into which the trace's tokens were put; NULL: as stored */
    const char *trace; /* id of the trace, "" where there is none; may be NULL */
    bool some_heads;   /* head numbers are the model's; the trace holds a part of its heads */
    bool nonfinite[3]; /* q, k, v hold NaN or infinity: softmax of their rows has no value */
};

#endif
