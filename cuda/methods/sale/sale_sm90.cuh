/*
 * sale_sm90.cuh - launch of SALE's test of every pair on Hopper (sale_sm90.cu).
 */
#ifndef LACUNA_SALE_SM90_CUH
#define LACUNA_SALE_SM90_CUH

#include "cuda/methods/sale/sale_common.cuh"

#include <cuda.h>

/* Set the bits of the tested blocks that pass in a.map.map, which holds none of theirs yet. maps:
 * of qi, boxes of 128 bytes x 64 rows, and of ki, x 128 rows. d: 64 or 128. */
int sale_test_sm90(struct gpu *g, const sale_args &a, int d, const CUtensorMap *maps,
                   struct err *err);

/* The same for the warps for which sums_are_exact(); sale_test_sm90 then has the others. */
int sale_test_e4m3_sm90(struct gpu *g, const sale_args &a, int d, const CUtensorMap *maps,
                        struct err *err);

#endif
