/*
 * denoiser_body.h - the inside of a denoiser on the GPU, shared by its files: denoiser.c (opening,
 * weights), denoiser_run.c (an evaluation).
 */
#ifndef LACUNA_DENOISER_BODY_H
#define LACUNA_DENOISER_BODY_H

#include "cuda/attn/attn.h"
#include "cuda/denoiser_ops.h"
#include "cuda/modelrun.h"

/* Matrices that are multiplied as one. */
enum { QKV1, OUT1, Q2, KV2, OUT2, FFN0, FFN2, BLOCK_MATRICES };
enum { PATCH, TIME1, TIME2, TIME_PROJ, TEXT1, TEXT2, HEAD, OUTER_MATRICES };

struct linear {
    struct matrix m;
    float *bias; /* [rows of m] */
};

struct block {
    struct linear l[BLOCK_MATRICES];
    float *mod, *q1_norm, *k1_norm, *q2_norm, *k2_norm;
    float *norm2, *norm2_b; /* NULL: no norm before cross-attention */
};

struct denoiser {
    struct model_run on;
    struct denoiser_shape shape;
    struct ops_grid in, out;
    int64_t tokens, dim, padded;
    int64_t rows; /* tokens of a chunk */
    struct attn_job self, cross;
    struct linear outer[OUTER_MATRICES];
    float *out_mod;
    struct block *blocks; /* [layers], owned */

    float *latent;       /* the input, at the end the velocity */
    float *h;            /* [tokens][dim] */
    float *y;            /* [rows][widest output of a matrix] */
    void *x;             /* bf16 [rows][3 * widest input] */
    void *q, *k, *v, *o; /* [heads][tokens][padded] */
    void *k2, *v2;       /* [heads][n_text][padded] */
    float *lse, *table[3];
    float *freq, *text_in, *text; /* inputs of the embeddings; [n_text][dim] */
    float *temb, *emod, *mod;     /* [dim], [6][dim] of the timestep, [6][dim] of a block */
    int *overflow;
    float *host;            /* [rows][3 dim] by tensor; owned */
    struct {                /* of somebody else's attention, NULL before it */
        float *qkv, *out;   /* on the device: [3][heads][tokens][d], [tokens][dim] */
        float *host;        /* qkv for the host; owned, page-locked */
        float *attended;    /* [tokens][dim], owned */
        bool wanted, there; /* in the layer at hand; its outputs are in `out` */
    } own;
};

/* begin, layer, end and time of core/denoiser.h. */
int denoiser_begin(struct denoiser *d, const float *x, const float *frequencies, const float *text,
                   struct err *err);
int denoiser_layer(struct denoiser *d, int at, const struct denoiser_sink *sink, struct err *err);
int denoiser_end(struct denoiser *d, float *v, struct err *err);
int denoiser_time(struct denoiser *d, int samples, struct denoiser_times *t, struct err *err);

#endif
