/*
 * xattn_sm90.cuh - launch of xattention's scores on Hopper (xattn_sm90.cu).
 */
#ifndef LACUNA_XATTN_SM90_CUH
#define LACUNA_XATTN_SM90_CUH

#include "cuda/device.h"
#include "cuda/methods/xattention/xattn_common.cuh"

#include <cuda.h>

#define XATTN_COLUMNS 256 /* reduced columns of a tile there */

/* What the launch needs beside xattn_args. */
struct xattn_sm90 {
    CUtensorMap q, k;  /* of rows of S D channels, boxes of 64 channels */
    const int2 *tiles; /* on the device: {head << 16 | rows of tiles, copies of keys << 24 | tile of
                          columns} */
    int n, blocks;     /* tiles; thread blocks, which take one after the other */
    int *taken;       /* on the device: tiles taken beside the first of each block, blocks that have
                         ended; 0       between launches */
    uint4 *padded[2]; /* q and k with whole runs of S tokens; NULL where they have them */
};

/* Memory and descriptors for d = 64 or 128. */
int xattn_sm90_init(struct gpu *g, const xattn_args &a, int d, xattn_sm90 *s, struct err *err);

/* Fill a.top and a.sum. */
int xattn_sm90_launch(struct gpu *g, const xattn_args &a, int d, const xattn_sm90 &s,
                      struct err *err);

#endif
